/* A pool in anonymous memory, and what the tests of the core do to it in one line each.  A test
 * leaves its pool detached, and fsck has to find nothing in it.
 *
 * Environment: MEM=incoherent, POOL=directory (as root), SEED=n, OPS=n, ROUNDS=n, NOFSCK=1, VERBOSE=1 */
#ifndef T_POOL_H
#define T_POOL_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "internal.h"

#define CHECK(x, ...) do { if (!(x)) fail(__FILE__, __LINE__, #x), printf("   " __VA_ARGS__), printf("\n"), fflush(stdout), abort(); } while (0)
#define IS(call, want) do { long r_ = (long)(call), w_ = (long)(want); if (r_ != w_) fail(__FILE__, __LINE__, #call), printf("   got %s, expected %s\n", text(r_), text(w_)), fflush(stdout), abort(); } while (0)
#define OK(call) IS(call, 0)
#define N(s) (s), strlen(s)

static inline void fail(const char *file, int line, const char *what) { printf("%s:%d: %s\n   last error: %s\n", file, line, what, bfs_errmsg()); }
static inline const char *text(long rc)
{
	static __thread char s[4][64];
	static __thread int i;
	char *p = s[i++ % 4];
	if (rc < 0) snprintf(p, 64, "%s", strerrorname_np((int)-rc) ? strerrorname_np((int)-rc) : "?");
	else snprintf(p, 64, "%ld", rc);
	return p;
}

static u64 seed = 1;
struct rng { u64 s; };
static inline u64 rnd(struct rng *r) { return r->s ^= r->s << 13, r->s ^= r->s >> 7, r->s ^= r->s << 17, r->s; }
static inline u32 below(struct rng *r, u32 n) { return (u32)(rnd(r) >> 20) % n; }
static inline int env(const char *name, int dflt) { return getenv(name) ? atoi(getenv(name)) : dflt; }
static inline double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- the pool --------------------------------------------------------------------------- */
static struct bfs_mem mem;
static struct bfs *b;
static struct bfs_opts opts;

static inline void on_problem(void *arg, int severity, const char *code, const char *line)
{
	(void)arg;
	if (severity) printf("   fsck: %s: %s\n", code, line);
}

static inline void fsck(void)
{
	struct bfs_fsck_result r;
	if (getenv("NOFSCK")) return;
	struct bfs_fsck_how how = {.data = true, .cb = on_problem, .directory = opts.directory, .data_fd = opts.data_fd};
	int n = bfs_fsck_run(&mem, &how, &r);
	CHECK(n == 0, "fsck: %s", text(n));
}

static inline void attach(void) { OK(bfs_attach(&mem, &opts, &b)); }
static inline void detach(bool clean)
{
	OK(bfs_detach(b, clean));
	b = NULL;
	if (clean) fsck();
}

/* The directory of backing files in a tmpfs that has no name: it goes with the descriptor. */
static inline int backing_dir(u64 bytes)
{
	char path[] = "/tmp/belugafs-native-XXXXXX", data[64], how[64];
	CHECK(mkdtemp(path), "mkdtemp");
	snprintf(how, sizeof how, "size=%llu,nr_inodes=0,huge=within_size", (unsigned long long)bytes);
	CHECK(!mount("belugafs-native", path, "tmpfs", 0, how), "mount: only root may");
	snprintf(data, sizeof data, "%s/data", path);
	CHECK(!mkdir(data, 0700), "mkdir");
	int fd = open(data, O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0 && !umount2(path, MNT_DETACH) && !rmdir(path), "umount");
	return fd;
}

static inline void make_pool_rg(u64 mib, u32 inodes, u32 region)
{
	const char *kind = getenv("MEM");
	memset(&mem, 0, sizeof mem);
	mem.ops = kind && !strcmp(kind, "incoherent") ? &bfs_ops_incoherent : &bfs_ops_coherent;
	mem.coherent = mem.ops == &bfs_ops_coherent;
	struct bfs_mkfs_params p = {.inodes = inodes, .incarnation = 0x1234567, .uuid = {1}, .region_granules = region};
	if (getenv("POOL") && !strcmp(getenv("POOL"), "directory")) p.directory = true, p.data_bytes = mib << 20, p.nhosts = 1;
	mem.size = p.size_bytes = p.directory ? bfs_directory_bytes(&p) : mib << 20;
	mem.base = mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(mem.base != MAP_FAILED, "mmap");
	OK(bfs_mkfs(&mem, &p, NULL));
	memset(&opts, 0, sizeof opts);
	opts.uuid[0] = 1, opts.boot = 1, opts.slot = -1;
	/* the metadata is elsewhere, and counts as if it were in it */
	if (p.directory) opts.directory = true, opts.data_fd = backing_dir(p.data_bytes);
	attach();
}
static inline void make_pool(u64 mib, u32 inodes) { make_pool_rg(mib, inodes, 0); }

static inline void drop_pool(void)
{
	if (b) detach(true);
	if (opts.directory) close(opts.data_fd);
	munmap(mem.base, mem.size);
}

static inline struct bfs_stat st(void)
{
	struct bfs_stat s;
	OK(bfs_statfs(b, &s));
	return s;
}

/* used + quarantine + bad is what the bitmaps say, and what the records say */
static inline void check_space(void)
{
	struct rd r;
	struct bfs_rec rec[64];
	u64 bits = 0, own = 0, quar = 0, bad = 0, last = 0;
	int rc = 0, n;
	if (b->back) return; /* the tmpfs counts */
	OK(rd_begin(b, &r));
	for (u64 i = 0; i < b->nregions; i++) {
		const struct bfs_region *p = rx_get(b, r.v.root->region, b->h_region, i, BFS_PK_REGION, &rc);
		u64 left = b->sb.data_granules - i * b->sb.region_granules, len = left < b->sb.region_granules ? left : b->sb.region_granules, set = 0;
		if (!p) continue;
		for (u32 k = 0; k < BFS_REGION_GRANULES_MAX / 64; k++) set += (u64)__builtin_popcountll(p->bits[k]);
		CHECK(set == (p->h.count ? len - p->h.aux : 0), "region %llu: %llu set, %u free of %llu", (unsigned long long)i, (unsigned long long)set, p->h.aux, (unsigned long long)len);
		bits += set;
	}
	struct bfs_key k = KEY(BFS_T(BFS_T_OWN, 0), 0, 0);
	while ((n = bt_range(&r.v, k, rec, 64)) > 0)
		for (int i = 0; i < n; i++, k.b = rec[i - 1].k.b + 1) {
			CHECK(rec[i].k.b >= last, "extents overlap at %llx", (unsigned long long)rec[i].k.b);
			last = rec[i].k.b + (u32)rec[i].x;
			own += (u32)rec[i].x;
		}
	k = KEY(BFS_T(BFS_T_QUAR, 0), 0, 0);
	while ((n = bt_range(&r.v, k, rec, 64)) > 0)
		for (int i = 0; i < n; i++) quar += rec[i].x, k.b = rec[i].k.b, k.c = rec[i].k.c + 1;
	k = KEY(BFS_T(BFS_T_BAD, 0), 0, 0);
	while ((n = bt_range(&r.v, k, rec, 64)) > 0)
		for (int i = 0; i < n; i++) bad += rec[i].x, k.b = rec[i].k.b + 1;
	CHECK(own == r.v.root->granules_used && quar == r.v.root->granules_quar && bad == r.v.root->granules_bad && bits == own + quar + bad,
	      "bits %llu; owned %llu, said %llu; quarantine %llu, said %llu; bad %llu, said %llu", (unsigned long long)bits, (unsigned long long)own,
	      (unsigned long long)r.v.root->granules_used, (unsigned long long)quar, (unsigned long long)r.v.root->granules_quar, (unsigned long long)bad, (unsigned long long)r.v.root->granules_bad);
	rd_end(&r);
}

static inline void settle(void)
{
	OK(bfs_tick(b));
	OK(bfs_apply_scan(b));
}

static inline struct bfs_attr attr(u64 ino)
{
	struct bfs_attr a;
	OK(bfs_getattr(b, ino, &a));
	return a;
}
static inline u64 mkdir_(const char *name)
{
	struct bfs_attr a;
	OK(bfs_mkdir(b, 1, N(name), 0755, 0, 0, &a));
	return a.ino;
}
static inline u64 create(u64 dir, const char *name, int flags, u64 *ino)
{
	struct bfs_attr a;
	u64 fh;
	OK(bfs_create(b, dir, N(name), 0644, 0, 0, flags, &a, &fh));
	if (ino) *ino = a.ino;
	return fh;
}
static inline u64 open_(u64 ino, int flags)
{
	u64 fh;
	OK(bfs_open(b, ino, flags, &fh));
	return fh;
}
static inline void close_(u64 fh)
{
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
}
static inline void write_(u64 fh, u64 off, const void *p, size_t n) { IS(bfs_write(b, fh, off, p, n), n); }

/* bytes that follow from a key, so that any part of a block can be checked */
static inline void pattern(u64 key, u64 off, u8 *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		u64 x = (off + i) / 8 * 0x9E3779B97F4A7C15ull + key * 0xD1B54A32D192ED03ull;
		x ^= x >> 29;
		p[i] = (u8)(x >> ((off + i) % 8 * 8));
	}
}
static inline u64 put(u64 dir, const char *name, u64 key, size_t n)
{
	static u8 *buf;
	u64 ino, fh = create(dir, name, O_WRONLY | O_EXCL, &ino);
	if (!buf) buf = malloc(80 << 20);
	pattern(key, 0, buf, n);
	for (size_t o = 0; o < n; o += 1 << 20) write_(fh, o, buf + o, n - o < 1 << 20 ? n - o : 1 << 20);
	close_(fh);
	return ino;
}
static inline bool there(u64 dir, const char *name)
{
	struct bfs_attr a;
	int rc = bfs_lookup(b, dir, N(name), &a);
	CHECK(!rc || rc == -ENOENT, "lookup %s: %s", name, text(rc));
	return !rc;
}
static inline void check_block(u64 ino, u64 key, size_t n)
{
	u8 *got = malloc(n + 1), *want = malloc(n + 1);
	u64 fh = open_(ino, O_RDONLY);
	IS(bfs_read(b, fh, 0, got, n + 1), n);
	pattern(key, 0, want, n);
	CHECK(!memcmp(got, want, n), "block %llu", (unsigned long long)key);
	OK(bfs_release(b, fh));
	free(got);
	free(want);
}

/* ---- running ---------------------------------------------------------------------------------- */
struct test { const char *name; void (*f)(void); bool seeded; };
static inline int run_tests(const struct test *tests, size_t n, int argc, char **argv)
{
	bool any = false;
	seed = (u64)env("SEED", 1);
	for (size_t i = 0; i < n; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name)) continue;
		double t0 = now();
		u64 first = seed;
		any = true;
		for (int k = 0; k < (tests[i].seeded ? env("ROUNDS", 3) : 1); k++, seed++) tests[i].f();
		seed = first;
		printf("%-10s ok  %.2f s\n", tests[i].name, now() - t0);
		fflush(stdout);
	}
	if (!any) printf("no test %s\n", argv[1]);
	return !any;
}
#endif
