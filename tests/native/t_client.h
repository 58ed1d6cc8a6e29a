/* What tests of processes that use a pool in place share: a pool that is a file without a name, a daemon that is a
 * struct bfs, processes that are connections of this one, or children. */
#ifndef T_CLIENT_H
#define T_CLIENT_H

#include "client.h"
#include "lead.h"
#include "lease.h"
#include "t_pool.h"
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#define KEY_BYTES 32
#define BLOCK (300u << 10) /* two chunks */
static int pool_fd = -1;
static char base[64];
static u64 ns;
static struct bfs_opts other;

/* ---- a pool, a daemon, processes --------------------------------------------------------------- */
static inline void make(u64 mib)
{
	struct bfs_mkfs_params p = {.incarnation = 0x1234567, .uuid = {7}, .region_granules = 128};
	const char *tmp = getenv("TMPDIR");
	snprintf(base, sizeof base, "%s/belugafs-lease-XXXXXX", tmp && strlen(tmp) < 32 ? tmp : "/tmp");
	CHECK(mkdtemp(base), "mkdtemp");
	pool_fd = memfd_create("pool", MFD_CLOEXEC);
	memset(&mem, 0, sizeof mem);
	mem.ops = &bfs_ops_coherent, mem.coherent = true;
	mem.size = p.size_bytes = mib << 20;
	CHECK(!ftruncate(pool_fd, (off_t)mem.size), "ftruncate");
	mem.base = mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd, 0);
	CHECK(mem.base != MAP_FAILED, "mmap");
	OK(bfs_mkfs(&mem, &p, NULL));
	memset(&opts, 0, sizeof opts);
	opts.uuid[0] = 1, opts.boot = 1, opts.slot = -1, opts.local = base, opts.pool_fd = pool_fd, opts.suspect_ns = 1000;
	other = opts;
	other.uuid[0] = 2;
	bfs_guard_install();
	attach();
	OK(bfs_local_error(b));
	OK(bfs_ns_create(b, "ns", &ns));
}

static inline int entries(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;
	for (struct dirent *e; d && (e = readdir(d));) n += *e->d_name != '.';
	if (d) closedir(d);
	return n;
}

static inline void drop(void)
{
	if (b) detach(true);
	IS(entries(base), 0); /* nothing is left of a host that nobody reads as */
	OK(rmdir(base));
	munmap(mem.base, mem.size);
	close(pool_fd);
}

static inline bfc *join_as(u32 pid)
{
	int fd[3];
	bfc *c;
	OK(bfs_client_new(b, pid, 0, fd));
	OK(bfc_open(fd[0], fd[1], fd[2], &c));
	return c;
}
static inline bfc *join(void) { return join_as((u32)getpid()); }

static inline const u8 *key_of(u64 k)
{
	static __thread u8 key[KEY_BYTES];
	pattern(k, 1 << 20, key, sizeof key);
	return key;
}
static inline void put_block(u64 k, size_t n)
{
	static u8 *buf;
	if (!buf) buf = malloc(8 << 20);
	pattern(k, 0, buf, n);
	OK(bfs_block_put(b, ns, key_of(k), KEY_BYTES, buf, n));
}
static inline bool is_block(const void *p, u64 k, size_t n)
{
	u8 *want = malloc(n);
	pattern(k, 0, want, n);
	bool same = !memcmp(p, want, n);
	free(want);
	return same;
}
static inline u8 *keys_of(u64 first, int n)
{
	u8 *keys = malloc((size_t)n * KEY_BYTES);
	for (int i = 0; i < n; i++) memcpy(keys + (size_t)i * KEY_BYTES, key_of(first + (u64)i), KEY_BYTES);
	return keys;
}
static inline int lease_one(bfc *c, u64 k, struct bfc_block *out) { return bfc_lease(c, ns, key_of(k), KEY_BYTES, 1, out); }
static inline struct bfc_block leased(bfc *c, u64 k)
{
	struct bfc_block x;
	int n = lease_one(c, k, &x);
	CHECK(n == 1, "block %llu: %s", (unsigned long long)k, text(n < 0 ? n : x.error));
	CHECK(is_block(x.addr, k, BLOCK), "block %llu", (unsigned long long)k);
	return x;
}
#endif
