/* Names, extended attributes and native blocks of the core, on a pool in anonymous
 * memory.  Every test leaves its pool detached, and fsck has to find nothing in it.
 *
 *   t_names [test]        MEM=incoherent, SEED=n, OPS=n, BENCH=1 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include "internal.h"

#define CHECK(x, ...) do { if (!(x)) fail(__FILE__, __LINE__, #x), printf("   " __VA_ARGS__), printf("\n"), exit(1); } while (0)
#define IS(call, want) do { long r_ = (long)(call), w_ = (long)(want); if (r_ != w_) fail(__FILE__, __LINE__, #call), printf("   got %s, expected %s\n", text(r_), text(w_)), exit(1); } while (0)
#define OK(call) IS(call, 0)
#define N(s) (s), strlen(s)

static void fail(const char *file, int line, const char *what) { printf("%s:%d: %s\n   last error: %s\n", file, line, what, bfs_errmsg()); }
static const char *text(long rc)
{
	static char s[4][64];
	static int i;
	char *p = s[i++ % 4];
	if (rc < 0) snprintf(p, 64, "%s", strerrorname_np((int)-rc) ? strerrorname_np((int)-rc) : "?");
	else snprintf(p, 64, "%ld", rc);
	return p;
}

static u64 rng = 1;
static u64 rnd(void) { return rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17, rng; }
static u32 below(u32 n) { return (u32)(rnd() >> 20) % n; }

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* ---- the pool --------------------------------------------------------------------------- */
static struct bfs_mem mem;
static struct bfs *b;
static struct bfs_opts opts;
static u32 pool_pages; /* of metadata, 0 = default */

static void on_problem(void *arg, int severity, const char *code, const char *line)
{
	(void)arg;
	if (severity) printf("   fsck: %s: %s\n", code, line);
}

static void fsck(void)
{
	struct bfs_fsck_result r;
	if (getenv("NOFSCK")) return;
	int n = bfs_fsck(&mem, true, on_problem, NULL, &r);
	CHECK(n == 0, "fsck: %s", text(n));
}

static void attach(void) { OK(bfs_attach(&mem, &opts, &b)); }
static void detach(void)
{
	OK(bfs_detach(b, true));
	b = NULL;
	fsck();
}

static void make_pool(u64 mib, u32 inodes)
{
	const char *kind = getenv("MEM");
	memset(&mem, 0, sizeof mem);
	mem.ops = kind && !strcmp(kind, "incoherent") ? &bfs_ops_incoherent : &bfs_ops_coherent;
	mem.coherent = mem.ops == &bfs_ops_coherent;
	mem.size = mib << 20;
	mem.base = mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (getenv("BENCH") ? MAP_POPULATE : 0), -1, 0);
	CHECK(mem.base != MAP_FAILED, "mmap");
	struct bfs_mkfs_params p = {.size_bytes = mem.size, .inodes = inodes, .meta_pages = pool_pages, .incarnation = 0x1234567, .uuid = {1}};
	OK(bfs_mkfs(&mem, &p, NULL));
	memset(&opts, 0, sizeof opts);
	opts.uuid[0] = 1, opts.boot = 1, opts.slot = -1;
	attach();
}

static void drop_pool(void)
{
	if (b) detach();
	munmap(mem.base, mem.size);
}

static u64 ino_of(u64 dir, const char *name)
{
	struct bfs_attr a;
	int rc = bfs_lookup(b, dir, N(name), &a);
	CHECK(!rc, "lookup of %s: %s", name, text(rc));
	return a.ino;
}
static u64 mk(u64 dir, const char *name, char type)
{
	struct bfs_attr a = {0};
	if (type == 'd') OK(bfs_mkdir(b, dir, N(name), 0755, 1, 2, &a));
	else if (type == 'l') OK(bfs_symlink(b, dir, N(name), N("target"), 1, 2, &a));
	else OK(bfs_mknod(b, dir, N(name), (type == 'p' ? S_IFIFO : S_IFREG) | 0644, 0, 1, 2, &a));
	return a.ino;
}
static struct bfs_attr attr(u64 ino)
{
	struct bfs_attr a;
	OK(bfs_getattr(b, ino, &a));
	return a;
}
static const struct bfs_root *root_now(struct rd *r)
{
	OK(rd_begin(b, r));
	return r->v.root;
}

/* ---- one call each ------------------------------------------------------------------------ */
static void t_basic(void)
{
	struct bfs_attr a, c;
	char long_name[300], buf[5000];
	u64 p;
	make_pool(64, 0);
	memset(long_name, 'x', sizeof long_name);
	OK(bfs_getattr(b, BFS_ROOT_INO, &a));
	CHECK(S_ISDIR(a.mode) && a.nlink == 2 && a.ino == 1, "root");
	OK(bfs_parent(b, 1, &p));
	CHECK(p == 1, "parent of the root");

	IS(bfs_lookup(b, 1, N("nothing"), &a), -ENOENT);
	static const struct { const char *s; size_t n; int rc; } bad[] = {{"", 0, -EINVAL}, {".", 1, -EINVAL}, {"..", 2, -EINVAL}, {"a/b", 3, -EINVAL}, {"a\0b", 3, -EINVAL}, {"...", 3, -ENOENT}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		IS(bfs_lookup(b, 1, bad[i].s, bad[i].n, &a), bad[i].rc);
		IS(bfs_unlink(b, 1, bad[i].s, bad[i].n), bad[i].rc);
		IS(bfs_rmdir(b, 1, bad[i].s, bad[i].n), bad[i].rc);
		IS(bfs_rename(b, 1, bad[i].s, bad[i].n, 1, N("x"), 0), bad[i].rc);
		if (bad[i].rc == -ENOENT) continue;
		IS(bfs_mkdir(b, 1, bad[i].s, bad[i].n, 0755, 0, 0, &a), bad[i].rc);
		IS(bfs_symlink(b, 1, bad[i].s, bad[i].n, N("t"), 0, 0, &a), bad[i].rc);
	}
	IS(bfs_mkdir(b, 1, long_name, 256, 0755, 0, 0, &a), -ENAMETOOLONG);
	IS(bfs_lookup(b, 1, long_name, 256, &a), -ENAMETOOLONG);
	OK(bfs_mkdir(b, 1, long_name, 255, 0750, 3, 4, &a));
	CHECK(a.mode == (S_IFDIR | 0750) && a.uid == 3 && a.gid == 4 && a.nlink == 2, "attributes");
	IS(bfs_mkdir(b, 1, long_name, 255, 0755, 0, 0, &c), -EEXIST);
	CHECK(attr(1).nlink == 3, "links of the root");
	OK(bfs_parent(b, a.ino, &p));
	CHECK(p == 1, "parent");
	u64 d = a.ino, f = mk(d, "f", 'f');
	IS(bfs_parent(b, f, &p), -ENOTDIR);
	IS(bfs_lookup(b, f, N("x"), &a), -ENOTDIR);
	IS(bfs_mkdir(b, f, N("x"), 0755, 0, 0, &a), -ENOTDIR);
	IS(bfs_readdir(b, f, 0, NULL, 0), -ENOTDIR);
	IS(bfs_rmdir(b, 1, long_name, 255), -ENOTEMPTY);
	IS(bfs_unlink(b, 1, long_name, 255), -EISDIR);
	IS(bfs_rmdir(b, d, N("f")), -ENOTDIR);
	IS(bfs_link(b, d, 1, N("hard"), &a), -EPERM);
	OK(bfs_link(b, f, 1, N("hard"), &a));
	CHECK(a.nlink == 2 && a.ino == f, "links");
	IS(bfs_link(b, f, 1, N("hard"), &a), -EEXIST);
	OK(bfs_unlink(b, d, N("f")));
	CHECK(attr(f).nlink == 1, "links");
	OK(bfs_unlink(b, 1, N("hard")));
	IS(bfs_getattr(b, f, &a), -ESTALE);
	IS(bfs_link(b, f, 1, N("hard"), &a), -ESTALE);
	OK(bfs_rmdir(b, 1, long_name, 255));
	IS(bfs_getattr(b, d, &a), -ESTALE);
	IS(bfs_mkdir(b, d, N("x"), 0755, 0, 0, &a), -ESTALE);
	IS(bfs_lookup(b, d, N("x"), &a), -ESTALE);
	CHECK(attr(1).nlink == 2, "links of the root");

	/* special files, mode bits, times */
	OK(bfs_mknod(b, 1, N("null"), S_IFCHR | 0666, 0x0103, 0, 0, &a));
	CHECK(a.rdev == 0x0103 && a.mode == (S_IFCHR | 0666), "device");
	OK(bfs_mknod(b, 1, N("pipe"), S_IFIFO | 0600, 7, 0, 0, &a));
	CHECK(a.rdev == 0, "fifo");
	OK(bfs_mknod(b, 1, N("sock"), S_IFSOCK | 0600, 0, 0, 0, &a));
	IS(bfs_mknod(b, 1, N("odd"), S_IFLNK | 0600, 0, 0, 0, &a), -EINVAL);
	IS(bfs_mknod(b, 1, N("odd"), S_IFDIR | 0600, 0, 0, 0, &a), -EPERM);
	OK(bfs_mknod(b, 1, N("reg"), 04755, 0, 5, 6, &a));
	CHECK(a.mode == (S_IFREG | 04755) && a.state == BFS_ST_SEALED && a.cls == BFS_CLS_ORDINARY && a.nlink == 1, "regular file");
	struct bfs_attr in = {.mode = 0600, .uid = 77, .gid = 88, .atime_ns = 123456789012345678, .mtime_ns = -5, .ctime_ns = 9};
	OK(bfs_setattr(b, a.ino, BFS_SET_MODE | BFS_SET_UID | BFS_SET_GID | BFS_SET_ATIME | BFS_SET_MTIME, &in, 0, &c));
	CHECK(c.mode == (S_IFREG | 0600) && c.uid == 77 && c.gid == 88 && c.atime_ns == in.atime_ns && c.mtime_ns == -5 && c.ctime_ns >= a.ctime_ns && c.btime_ns == a.btime_ns, "setattr");
	OK(bfs_setattr(b, a.ino, BFS_SET_CTIME, &in, 0, NULL));
	CHECK(attr(a.ino).ctime_ns == 9, "ctime");
	IS(bfs_setattr(b, 1, BFS_SET_SIZE, &in, 0, NULL), -EISDIR);
	in.mode = 02775, in.gid = 500;
	u64 s = mk(1, "sgid", 'd');
	OK(bfs_setattr(b, s, BFS_SET_MODE | BFS_SET_GID, &in, 0, NULL));
	OK(bfs_mkdir(b, s, N("sub"), 0755, 1, 1, &a));
	CHECK(a.gid == 500 && a.mode == (S_IFDIR | 02755), "set-group-id directory");
	i64 before = attr(s).mtime_ns;
	mk(s, "x", 'p');
	CHECK(attr(s).mtime_ns > before && attr(s).ctime_ns == attr(s).mtime_ns, "mtime of the directory");

	/* symbolic links of all lengths */
	for (size_t i = 0; i < sizeof buf; i++) buf[i] = (char)('a' + i % 26);
	IS(bfs_symlink(b, 1, N("l"), "", 0, 0, 0, &a), -ENOENT);
	IS(bfs_symlink(b, 1, N("l"), buf, 4096, 0, 0, &a), -ENAMETOOLONG);
	static const size_t lens[] = {1, 79, 80, 81, 4048, 4049, 4095};
	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
		char got[5000];
		OK(bfs_symlink(b, 1, N("l"), buf, lens[i], 0, 0, &a));
		CHECK(a.size == lens[i] && a.mode == (S_IFLNK | 0777), "symlink");
		IS(bfs_readlink(b, a.ino, got, sizeof got), (long)lens[i]);
		CHECK(!memcmp(got, buf, lens[i]), "target");
		IS(bfs_readlink(b, a.ino, got, 1), 1);
		OK(bfs_unlink(b, 1, N("l")));
	}
	IS(bfs_readlink(b, 1, buf, 10), -EINVAL);
	/* it all is still there in the next life */
	u64 reg = ino_of(1, "reg");
	detach(), attach();
	CHECK(ino_of(1, "reg") == reg && attr(reg).uid == 77, "after attaching again");
	drop_pool();
}

/* ---- rename: every kind of source and target ---------------------------------------------------- */
static void t_rename(void)
{
	static const char kinds[] = "-fldn"; /* none, file, link, empty directory, full directory */
	make_pool(64, 0);
	for (u32 flags = 0; flags <= 2; flags++)
		for (int same = 0; same < 2; same++)
			for (int s = 0; kinds[s]; s++)
				for (int d = 0; kinds[d]; d++) {
					u64 top = mk(1, "top", 'd'), d1 = mk(top, "d1", 'd'), d2 = same ? d1 : mk(top, "d2", 'd'), is = 0, id = 0;
					bool sd = kinds[s] == 'd' || kinds[s] == 'n', dd = kinds[d] == 'd' || kinds[d] == 'n';
					if (s && (is = mk(d1, "s", kinds[s] == 'n' ? 'd' : kinds[s])) && kinds[s] == 'n') mk(is, "in", 'f');
					if (d && (id = mk(d2, "t", kinds[d] == 'n' ? 'd' : kinds[d])) && kinds[d] == 'n') mk(id, "in", 'f');
					int want = 0;
					if (!s) want = -ENOENT;
					else if (flags == BFS_RENAME_EXCHANGE) want = d ? 0 : -ENOENT;
					else if (d && flags == BFS_RENAME_NOREPLACE) want = -EEXIST;
					else if (d && sd && !dd) want = -ENOTDIR;
					else if (d && !sd && dd) want = -EISDIR;
					else if (kinds[d] == 'n') want = -ENOTEMPTY;
					int rc = bfs_rename(b, d1, N("s"), d2, N("t"), flags);
					CHECK(rc == want, "%c to %c, flags %u, %s directory: got %s, expected %s", kinds[s], kinds[d], flags, same ? "same" : "other", text(rc), text(want));
					struct bfs_attr a;
					bool moved = !want && s, swap = moved && flags == BFS_RENAME_EXCHANGE;
					IS(bfs_lookup(b, d1, N("s"), &a), (moved && !swap) || !s ? -ENOENT : 0);
					if (swap) CHECK(a.ino == id, "exchanged");
					IS(bfs_lookup(b, d2, N("t"), &a), moved || d ? 0 : -ENOENT);
					if (moved) CHECK(a.ino == is, "moved");
					if (moved && !swap && d) IS(bfs_getattr(b, id, &a), -ESTALE);
					u32 n1 = 2, n2 = 2; /* links by subdirectories */
					if (!swap) n1 += sd && !moved, *(same ? &n1 : &n2) += (sd && moved) || (dd && !moved);
					else n1 += dd, *(same ? &n1 : &n2) += sd;
					CHECK(attr(d1).nlink == n1 && (same || attr(d2).nlink == n2), "links: %u %u, expected %u %u", attr(d1).nlink, attr(d2).nlink, n1, n2);
					u64 par;
					if (moved && sd) {
						OK(bfs_parent(b, is, &par));
						CHECK(par == d2, "parent");
					}
					if (swap && dd) {
						OK(bfs_parent(b, id, &par));
						CHECK(par == d1, "parent");
					}
					/* away with it */
					u64 dirs[] = {is, id, d1, d2};
					struct bfs_dirent e[4];
					for (int i = 0; i < 4; i++) {
						int n = dirs[i] && !bfs_getattr(b, dirs[i], &a) && S_ISDIR(a.mode) ? bfs_readdir(b, dirs[i], 0, e, 4) : 0;
						for (int j = 0; j < n; j++)
							OK(e[j].type == S_IFDIR >> 12 ? bfs_rmdir(b, dirs[i], e[j].name, e[j].len) : bfs_unlink(b, dirs[i], e[j].name, e[j].len));
					}
					OK(bfs_rmdir(b, top, N("d1")));
					if (!same) OK(bfs_rmdir(b, top, N("d2")));
					OK(bfs_rmdir(b, 1, N("top")));
				}
	/* own subtree, ancestors, same object */
	u64 a1 = mk(1, "a", 'd'), a2 = mk(a1, "b", 'd'), a3 = mk(a2, "c", 'd'), f = mk(a3, "f", 'f');
	struct bfs_attr x;
	IS(bfs_rename(b, 1, N("a"), a1, N("x"), 0), -EINVAL);
	IS(bfs_rename(b, 1, N("a"), a3, N("x"), 0), -EINVAL);
	IS(bfs_rename(b, 1, N("a"), a2, N("c"), BFS_RENAME_EXCHANGE), -EINVAL);
	IS(bfs_rename(b, a2, N("c"), 1, N("a"), BFS_RENAME_EXCHANGE), -EINVAL);
	IS(bfs_rename(b, a2, N("c"), 1, N("a"), 0), -ENOTEMPTY);
	IS(bfs_rename(b, 1, N("a"), 1, N("a"), 0), 0);
	IS(bfs_rename(b, 1, N("a"), 1, N("a"), BFS_RENAME_NOREPLACE), -EEXIST);
	IS(bfs_rename(b, 1, N("a"), 1, N("b"), 3), -EINVAL);
	IS(bfs_rename(b, 1, N("a"), 1, N("b"), 8), -EINVAL);
	IS(bfs_rename(b, 1, N("a"), f, N("b"), 0), -ENOTDIR);
	IS(bfs_rename(b, f, N("a"), 1, N("b"), 0), -ENOTDIR);
	OK(bfs_link(b, f, 1, N("g"), &x));
	OK(bfs_rename(b, a3, N("f"), 1, N("g"), 0)); /* two names of one file: nothing happens */
	CHECK(ino_of(a3, "f") == f && ino_of(1, "g") == f && attr(f).nlink == 2, "no-op");
	OK(bfs_rename(b, a3, N("f"), a1, N("f"), 0));
	OK(bfs_rename(b, a1, N("f"), 1, N("h"), 0));
	CHECK(attr(f).nlink == 2, "links");
	/* exchange among hard links: the back references stay right */
	u64 g2 = mk(a1, "other", 'f');
	OK(bfs_link(b, g2, a2, N("o2"), &x));
	OK(bfs_rename(b, 1, N("h"), a2, N("o2"), BFS_RENAME_EXCHANGE));
	OK(bfs_rename(b, 1, N("g"), a1, N("other"), BFS_RENAME_EXCHANGE));
	CHECK(ino_of(1, "h") == g2 && ino_of(1, "g") == g2 && ino_of(a2, "o2") == f && ino_of(a1, "other") == f, "exchanged");
	detach(), attach();
	OK(bfs_unlink(b, a2, N("o2")));
	OK(bfs_unlink(b, 1, N("g")));
	OK(bfs_rename(b, a1, N("other"), 1, N("h"), 0));
	IS(bfs_getattr(b, g2, &x), -ESTALE);
	CHECK(attr(f).nlink == 1, "links");
	drop_pool();
}

/* ---- random operations against a model ------------------------------------------------------------- */
enum { MAXN = 400, MAXE = 800, NAMES = 10 };
static struct mobj { char type; u64 ino; int nlink; u32 mode; int target; } mo[MAXN];
static struct ment { bool used; int dir, obj, name; } me[MAXE];
static const char *mname(int i)
{
	static char s[NAMES][256];
	if (!s[i][0]) {
		snprintf(s[i], sizeof s[i], "name-%d", i);
		if (i == NAMES - 1) memset(s[i], 'L', 255);
	}
	return s[i];
}
static struct ment *mfind(int dir, int name)
{
	for (int i = 0; i < MAXE; i++)
		if (me[i].used && me[i].dir == dir && me[i].name == name) return &me[i];
	return NULL;
}
static int mcount(int dir)
{
	int n = 0;
	for (int i = 0; i < MAXE; i++) n += me[i].used && me[i].dir == dir;
	return n;
}
static struct ment *mfree_ent(void)
{
	for (int i = 0; i < MAXE; i++)
		if (!me[i].used) return &me[i];
	return NULL;
}
static int mfree_obj(void)
{
	for (int i = 1; i < MAXN; i++)
		if (!mo[i].type) return i;
	return -1;
}
static int mparent(int dir)
{
	for (int i = 0; i < MAXE; i++)
		if (me[i].used && me[i].obj == dir) return me[i].dir;
	return -1;
}
static bool mwithin(int a, int d)
{
	for (; d > 0; d = mparent(d))
		if (d == a) return true;
	return d == a;
}
static void mdrop(struct ment *e)
{
	e->used = false;
	if (!--mo[e->obj].nlink) mo[e->obj].type = 0;
}
static u32 mtype(char c) { return c == 'd' ? S_IFDIR : c == 'l' ? S_IFLNK : c == 'p' ? S_IFIFO : S_IFREG; }

static void mcompare(void)
{
	u64 objects = 0;
	for (int d = 0; d < MAXN; d++) {
		if (!mo[d].type) continue;
		struct bfs_attr a;
		OK(bfs_getattr(b, mo[d].ino, &a));
		objects++;
		CHECK((a.mode & S_IFMT) == mtype(mo[d].type) && (a.mode & 07777) == mo[d].mode, "object %d: mode %o", d, a.mode);
		if (mo[d].type == 'l') {
			char t[5000];
			IS(bfs_readlink(b, mo[d].ino, t, sizeof t), mo[d].target);
		}
		if (mo[d].type != 'd') {
			CHECK((int)a.nlink == mo[d].nlink, "object %d: %u links, expected %d", d, a.nlink, mo[d].nlink);
			continue;
		}
		int subs = 0, seen = 0, n, want = mcount(d);
		for (int i = 0; i < MAXE; i++) subs += me[i].used && me[i].dir == d && mo[me[i].obj].type == 'd';
		CHECK((int)a.nlink == 2 + subs, "directory %d: %u links, expected %d", d, a.nlink, 2 + subs);
		u64 par, after = 0;
		OK(bfs_parent(b, mo[d].ino, &par));
		CHECK(par == (d ? mo[mparent(d)].ino : 1), "parent of %d", d);
		struct bfs_dirent e[7];
		while ((n = bfs_readdir(b, mo[d].ino, after, e, 1 + (int)below(7))) > 0)
			for (int i = 0; i < n; i++, seen++) {
				CHECK(e[i].cookie > after, "cookie order");
				after = e[i].cookie;
				struct ment *m = NULL;
				for (int k = 0; k < NAMES && !m; k++)
					if (strlen(mname(k)) == e[i].len && !memcmp(mname(k), e[i].name, e[i].len)) m = mfind(d, k);
				CHECK(m && mo[m->obj].ino == e[i].ino && mtype(mo[m->obj].type) >> 12 == e[i].type, "entry %s of directory %d", e[i].name, d);
			}
		OK(n);
		CHECK(seen == want, "directory %d: %d entries, expected %d", d, seen, want);
		for (int k = 0; k < NAMES; k++) {
			struct ment *m = mfind(d, k);
			int rc = bfs_lookup(b, mo[d].ino, N(mname(k)), &a);
			CHECK(rc == (m ? 0 : -ENOENT) && (!m || a.ino == mo[m->obj].ino), "lookup of %s in %d: %s", mname(k), d, text(rc));
		}
	}
	struct rd r;
	CHECK(root_now(&r)->slots_used == objects, "%u slots, expected %llu", r.v.root->slots_used, (unsigned long long)objects);
	rd_end(&r);
}

static int mdir(void)
{
	for (;;) {
		int d = (int)below(MAXN);
		if (mo[d].type == 'd') return d;
		if (below(50) == 0) return 0;
	}
}

static void mstep(void)
{
	int d = mdir(), d2 = below(3) ? mdir() : d, n = (int)below(NAMES), n2 = (int)below(NAMES), o = mfree_obj(), want = 0, rc;
	struct ment *e = mfind(d, n), *e2, *fresh = mfree_ent();
	struct bfs_attr a;
	u64 di = mo[d].ino, di2 = mo[d2].ino;
	static const char kinds[] = "fdlpfdd";
	char kind = kinds[below(7)];
	static char target[4095];
	memset(target, 't', sizeof target);
	switch (below(10)) {
	case 0: case 1: case 2: { /* make */
		if (o < 0 || !fresh) return;
		int tl = 1 + (int)(below(3) ? below(90) : below(4095));
		u32 mode = kind == 'l' ? 0777 : below(010000) & ~02000u;
		rc = kind == 'd' ? bfs_mkdir(b, di, N(mname(n)), mode, 1, 1, &a) : kind == 'l' ? bfs_symlink(b, di, N(mname(n)), target, (size_t)tl, 1, 1, &a) :
		     bfs_mknod(b, di, N(mname(n)), mtype(kind) | mode, 0, 1, 1, &a);
		IS(rc, e ? -EEXIST : 0);
		if (rc) return;
		*fresh = (struct ment){true, d, o, n};
		mo[o] = (struct mobj){kind, a.ino, 1, mode, tl};
		return;
	}
	case 3: /* unlink */
		want = !e ? -ENOENT : mo[e->obj].type == 'd' ? -EISDIR : 0;
		IS(bfs_unlink(b, di, N(mname(n))), want);
		if (!want) mdrop(e);
		return;
	case 4: /* rmdir */
		want = !e ? -ENOENT : mo[e->obj].type != 'd' ? -ENOTDIR : mcount(e->obj) ? -ENOTEMPTY : 0;
		IS(bfs_rmdir(b, di, N(mname(n))), want);
		if (!want) mdrop(e);
		return;
	case 5: case 6: case 7: { /* rename */
		u32 flags = below(4) ? 0 : 1 + below(2);
		e2 = mfind(d2, n2);
		if (!e || (flags == 2 && !e2)) want = -ENOENT;
		else if (e2 && flags == 1) want = -EEXIST;
		else if (e2 && e2->obj == e->obj) want = 1;
		else if (mo[e->obj].type == 'd' && mwithin(e->obj, d2)) want = -EINVAL;
		else if (flags == 2) want = mo[e2->obj].type == 'd' && mwithin(e2->obj, d) ? -EINVAL : 0;
		else if (e2 && mo[e->obj].type == 'd' && mo[e2->obj].type != 'd') want = -ENOTDIR;
		else if (e2 && mo[e->obj].type != 'd' && mo[e2->obj].type == 'd') want = -EISDIR;
		else if (e2 && mo[e2->obj].type == 'd' && mcount(e2->obj)) want = -ENOTEMPTY;
		IS(bfs_rename(b, di, N(mname(n)), di2, N(mname(n2)), flags), want > 0 ? 0 : want);
		if (want) return;
		if (flags == 2) {
			int t = e->obj;
			e->obj = e2->obj, e2->obj = t;
			return;
		}
		if (e2) mdrop(e2);
		e->dir = d2, e->name = n2;
		return;
	}
	case 8: /* link */
		e2 = mfind(d2, n2);
		if (!e || !fresh) return;
		want = mo[e->obj].type == 'd' ? -EPERM : e2 ? -EEXIST : 0;
		IS(bfs_link(b, mo[e->obj].ino, di2, N(mname(n2)), &a), want);
		if (want) return;
		*fresh = (struct ment){true, d2, e->obj, n2};
		mo[e->obj].nlink++;
		return;
	default: { /* setattr */
		if (!e || mo[e->obj].type == 'l') return;
		struct bfs_attr in = {.mode = below(010000) & ~02000u};
		OK(bfs_setattr(b, mo[e->obj].ino, BFS_SET_MODE, &in, 0, &a));
		mo[e->obj].mode = in.mode;
	}
	}
}

static void t_random(void)
{
	u64 ops = getenv("OPS") ? strtoull(getenv("OPS"), NULL, 0) : 60000;
	make_pool(64, 2048);
	memset(mo, 0, sizeof mo), memset(me, 0, sizeof me);
	mo[0] = (struct mobj){'d', 1, 1, 0755, 0};
	for (u64 i = 0; i < ops; i++) {
		/* now and then many calls are one transaction, sometimes one that never happens */
		if (below(40) == 0) {
			static struct mobj so[MAXN];
			static struct ment se[MAXE];
			bool abort = below(2);
			memcpy(so, mo, sizeof so), memcpy(se, me, sizeof se);
			OK(bfs_batch_begin(b));
			for (int k = (int)below(30); k > 0; k--) mstep();
			if (abort) {
				OK(bfs_batch_abort(b));
				memcpy(mo, so, sizeof so), memcpy(me, se, sizeof se);
				mcompare();
			} else {
				OK(bfs_batch_commit(b));
			}
		} else {
			mstep();
		}
		if (i % 500 == 0) mcompare();
		if (i % 1000 == 0) OK(bfs_tick(b));
		if (i % 5000 == 4999) detach(), attach();
	}
	mcompare();
	drop_pool();
}

/* ---- a listing while others change the directory ------------------------------------------------------ */
static void t_listing(void)
{
	enum { STABLE = 100000, OTHERS = 2000 };
	char name[64];
	make_pool(512, 150000);
	u64 d = mk(1, "d", 'd'), d2 = mk(1, "d2", 'd');
	for (int i = 0; i < STABLE;) {
		OK(bfs_batch_begin(b));
		for (int k = 0; k < 1000; k++, i++) {
			snprintf(name, sizeof name, "stable-%d", i);
			mk(d, name, 'p');
			if (i % (STABLE / OTHERS)) continue;
			snprintf(name, sizeof name, "other-%d", i / (STABLE / OTHERS));
			mk(d, name, 'p');
		}
		OK(bfs_batch_commit(b));
	}
	u8 *seen = calloc(STABLE, 1);
	struct bfs_dirent *e = malloc(100 * sizeof *e);
	u64 after = 0;
	int n, total = 0, step = 0;
	while ((n = bfs_readdir(b, d, after, e, 1 + (int)below(100))) > 0) {
		for (int i = 0; i < n; i++) {
			int k;
			CHECK(e[i].cookie > after, "cookie order");
			after = e[i].cookie;
			if (sscanf(e[i].name, "stable-%d", &k) == 1) seen[k]++, total++;
		}
		char to[64];
		snprintf(name, sizeof name, "other-%d", step % OTHERS);
		snprintf(to, sizeof to, "moved-%d", step++);
		switch (step % 3) {
		case 0: bfs_unlink(b, d, N(name)); break;
		case 1: bfs_rename(b, d, N(name), d2, N(to), 0); break;
		default: bfs_rename(b, d, N(name), d, N(to), 0);
		}
	}
	OK(n);
	CHECK(total == STABLE, "%d of %d names", total, STABLE);
	for (int i = 0; i < STABLE; i++) CHECK(seen[i] == 1, "stable-%d was listed %d times", i, seen[i]);
	for (int i = 0; i < STABLE; i += 977) {
		snprintf(name, sizeof name, "stable-%d", i);
		ino_of(d, name);
	}
	free(seen), free(e);
	drop_pool();
}

/* ---- slots ------------------------------------------------------------------------------------------------ */
static void t_slots(void)
{
	struct bfs_attr a;
	char name[64];
	u64 ino[4096], first;
	int n = 0;
	make_pool(64, 512);
	for (;; n++) {
		snprintf(name, sizeof name, "f%d", n);
		int rc = bfs_mknod(b, 1, N(name), S_IFREG | 0644, 0, 0, 0, &a);
		if (rc == -ENOSPC) break;
		OK(rc);
		ino[n] = a.ino;
	}
	CHECK(n == 510, "%d files in 512 slots", n); /* slot 0 is none, slot 1 the root */
	struct rd r;
	CHECK(root_now(&r)->slots_used == 511 && r.v.root->nordinary == 510, "counters");
	rd_end(&r);
	/* freed slots come back first in, first out, with another generation */
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "f%d", 100 - i * 7);
		OK(bfs_unlink(b, 1, N(name)));
	}
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof name, "g%d", i);
		OK(bfs_mknod(b, 1, N(name), S_IFREG | 0644, 0, 0, 0, &a));
		CHECK(INO_SLOT(a.ino) == INO_SLOT(ino[100 - i * 7]) && INO_GEN(a.ino) == INO_GEN(ino[100 - i * 7]) + 1, "slot %u", INO_SLOT(a.ino));
		IS(bfs_getattr(b, ino[100 - i * 7], &a), -ESTALE);
	}
	IS(bfs_mknod(b, 1, N("one more"), S_IFREG | 0644, 0, 0, 0, &a), -ENOSPC);
	IS(bfs_getattr(b, 0, &a), -ESTALE);
	IS(bfs_getattr(b, INO(511, 3), &a), -ESTALE);
	IS(bfs_getattr(b, INO(512, 0), &a), -ESTALE);
	IS(bfs_getattr(b, INO(0xffffffff, 0), &a), -ESTALE);
	IS(bfs_getattr(b, ~0ull, &a), -ESTALE);
	/* the same slot many times over */
	OK(bfs_unlink(b, 1, N("g0")));
	OK(bfs_mknod(b, 1, N("h"), S_IFIFO | 0644, 0, 0, 0, &a));
	first = a.ino;
	for (int i = 0; i < 200; i++) {
		OK(bfs_unlink(b, 1, N("h")));
		OK(bfs_mknod(b, 1, N("h"), S_IFIFO | 0644, 0, 0, 0, &a));
	}
	CHECK(INO_SLOT(a.ino) == INO_SLOT(first) && INO_GEN(a.ino) == INO_GEN(first) + 200, "generation");
	/* hard links to the limit */
	u64 f = ino_of(1, "f0");
	OK(bfs_batch_begin(b));
	for (u32 i = 1; i < BFS_LINK_MAX; i++) {
		snprintf(name, sizeof name, "l%u", i);
		int rc = bfs_link(b, f, 1, N(name), &a);
		if (rc == -ENOSPC) { /* pages; half of the limit is a test too */
			printf("   (%u links in a pool of this size)\n", i);
			break;
		}
		OK(rc);
		if (i + 1 == BFS_LINK_MAX) IS(bfs_link(b, f, 1, N("too many"), &a), -EMLINK);
	}
	OK(bfs_batch_abort(b));
	CHECK(attr(f).nlink == 1, "links");
	drop_pool();
}

/* ---- no pages left -------------------------------------------------------------------------------------------- */
/* Links to one file, with long names, take pages but no slots. */
static void t_full(void)
{
	enum { MAX = 6000, ROUNDS = 40 };
	static bool there[MAX];
	struct bfs_attr a;
	char name[256];
	int n = 0, least = MAX, most = 0, rc = 0;
	pool_pages = 400;
	make_pool(64, 512);
	pool_pages = 0;
	memset(there, 0, sizeof there);
	u64 f = mk(1, "f", 'f');
	for (int round = 0; round < ROUNDS; round++) {
		for (rc = 0; !rc;) {
			int i = (int)below(MAX);
			if (there[i]) continue;
			snprintf(name, sizeof name, "%0*d", 200 + i % 50, i);
			if (!(rc = bfs_link(b, f, 1, N(name), &a))) there[i] = true, n++;
		}
		IS(rc, -ENOSPC);
		if (n > most) most = n;
		if (n < least) least = n;
		if (getenv("VERBOSE")) {
			struct rd r;
			root_now(&r);
			printf("   round %d: %d names, %u pages in use, %u of these wait, %u at hand\n", round, n, r.v.root->pages_used, r.v.root->pages_log, b->nfree);
			rd_end(&r);
		}
		CHECK(n > 1000, "%d names, round %d", n, round);
		if (round % 7 == 6) detach(), attach();
		/* what is full can be emptied */
		bool all = round == ROUNDS - 1;
		for (int k = all ? MAX : 1 + (int)below(200), i = (int)below(MAX); k > 0; i = (i + 1) % MAX) {
			k -= all || there[i];
			if (!there[i]) continue;
			snprintf(name, sizeof name, "%0*d", 200 + i % 50, i);
			OK(bfs_unlink(b, 1, N(name)));
			there[i] = false, n--;
		}
	}
	CHECK(!n && attr(f).nlink == 1, "%d names left", n);
	printf("   (%d to %d names in 400 pages)\n", least, most);
	drop_pool();
}

/* ---- private names ---------------------------------------------------------------------------------------------- */
static u64 priv(u64 dir, const char *name, u32 host, int want)
{
	struct txn *t;
	u64 ino = 0;
	OK(op_begin(b, &t));
	int rc = nm_create(t, dir, N(name), 0644, 1, 1, (u8)(host + 1), &ino);
	if (!rc) { /* as bfs_create does */
		struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_OPEN, host), INO_SLOT(ino), 0), .x = ino, .y = 0};
		rc = bt_put(t, &r);
	}
	IS(op_end(b, t, rc), want);
	return ino;
}
static int publish(u64 ino)
{
	struct txn *t;
	OK(op_begin(b, &t));
	struct bfs_obj *o = ob_cow(t, ino);
	int rc = nm_publish(t, o);
	if (!rc) {
		rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, o->owner - 1u), o->slot, 0));
		ob_count(t, o, -1);
		o->state = BFS_ST_SEALED, o->owner = 0;
		ob_count(t, o, 1);
	}
	return op_end(b, t, rc);
}
static int drop_orphan(u32 host, u64 ino)
{
	struct txn *t;
	OK(op_begin(b, &t));
	return op_end(b, t, nm_free_orphan(t, host, ino));
}
static int count_names(u64 dir)
{
	struct bfs_dirent e[50];
	return bfs_readdir(b, dir, 0, e, 50);
}

static void t_private(void)
{
	struct bfs_attr a;
	struct rd r;
	make_pool(64, 0);
	u64 d = mk(1, "d", 'd'), theirs = priv(d, "x", 5, 0);
	/* another host's first writing isn't seen, but keeps the directory alive */
	IS(bfs_lookup(b, d, N("x"), &a), -ENOENT);
	IS(count_names(d), 0);
	IS(bfs_rmdir(b, 1, N("d")), -ENOTEMPTY);
	IS(bfs_unlink(b, d, N("x")), -ENOENT);
	IS(bfs_link(b, theirs, d, N("y"), &a), -ENOENT);
	/* the own one may have the same name; the first seal wins */
	u64 own = priv(d, "x", b->slot, 0);
	CHECK(ino_of(d, "x") == own, "own private entry");
	IS(count_names(d), 1);
	priv(d, "x", b->slot, -EEXIST);
	CHECK(root_now(&r)->nunsealed == 2 && r.v.root->nblocks == 0, "counters");
	rd_end(&r);
	OK(publish(theirs));
	CHECK(ino_of(d, "x") == own, "the own private entry hides the published one");
	IS(count_names(d), 1);
	IS(publish(own), -EEXIST);
	OK(bfs_unlink(b, d, N("x"))); /* the own one goes, the other shows */
	CHECK(ino_of(d, "x") == theirs, "published entry");
	IS(bfs_getattr(b, own, &a), -ESTALE);
	CHECK(root_now(&r)->nunsealed == 0 && r.v.root->nblocks == 1, "counters");
	rd_end(&r);
	/* replaced by rename: what is private and what it hides */
	own = mk(d, "src", 'f');
	u64 hidden = priv(d, "y", 5, 0), mine = priv(d, "y", b->slot, 0);
	OK(publish(hidden));
	OK(bfs_rename(b, d, N("src"), d, N("y"), 0));
	CHECK(ino_of(d, "y") == own, "renamed");
	IS(bfs_getattr(b, hidden, &a), -ESTALE);
	IS(bfs_getattr(b, mine, &a), -ESTALE);
	IS(count_names(d), 2);
	/* unlinked while another host writes it again: an orphan of that host */
	u64 ino = priv(d, "z", 5, 0);
	OK(publish(ino));
	struct txn *t;
	OK(op_begin(b, &t));
	struct bfs_obj *o = ob_cow(t, ino);
	ob_count(t, o, -1);
	o->state = BFS_ST_DIRTY, o->owner = 6;
	ob_count(t, o, 1);
	struct bfs_rec rec = {.k = KEY(BFS_T(BFS_T_OPEN, 5), INO_SLOT(ino), 0), .x = ino, .y = o->version};
	OK(op_end(b, t, bt_put(t, &rec)));
	OK(bfs_unlink(b, d, N("z")));
	IS(bfs_lookup(b, d, N("z"), &a), -ENOENT);
	CHECK(attr(ino).nlink == 0, "orphan");
	CHECK(root_now(&r)->norphans == 1 && r.v.root->nunsealed == 1, "counters");
	rd_end(&r);
	IS(bfs_link(b, ino, d, N("again"), &a), -ENOENT);
	detach(), attach();
	OK(drop_orphan(5, ino));
	IS(drop_orphan(5, ino), -ENOENT);
	CHECK(root_now(&r)->norphans == 0 && r.v.root->nunsealed == 0, "counters");
	rd_end(&r);
	/* several names of an unsealed file are published together or not at all */
	u64 two = priv(d, "p", 5, 0);
	OK(op_begin(b, &t));
	o = ob_cow(t, two);
	OK(op_end(b, t, nm_add(t, d, BFS_EK_NAME, N("q"), o, 6, NULL)));
	mk(d, "q", 'f');
	IS(publish(two), -EEXIST);
	IS(bfs_lookup(b, d, N("p"), &a), -ENOENT);
	OK(bfs_unlink(b, d, N("q")));
	OK(publish(two));
	CHECK(ino_of(d, "p") == two && ino_of(d, "q") == two, "both");
	drop_pool();
}

/* ---- names of files that are open ------------------------------------------------------------------------------------ */
static u64 create(u64 dir, const char *name, const char *bytes, u64 *fh)
{
	struct bfs_attr a;
	OK(bfs_create(b, dir, N(name), 0644, 1, 1, O_RDWR | O_EXCL, &a, fh));
	IS(bfs_write(b, *fh, 0, N(bytes)), (long)strlen(bytes));
	return a.ino;
}
static void has(u64 fh, const char *bytes)
{
	char got[100];
	IS(bfs_read(b, fh, 0, got, sizeof got), (long)strlen(bytes));
	CHECK(!memcmp(got, bytes, strlen(bytes)), "content");
}
static void is_xattr(u64 ino, const char *name, const char *want)
{
	char got[100] = "";
	ssize_t n = bfs_getxattr(b, ino, name, got, sizeof got - 1);
	CHECK(n == (ssize_t)strlen(want) && !memcmp(got, want, (size_t)n), "%s: %zd, %s, expected %s", name, n, got, want);
}

static void t_open(void)
{
	struct bfs_attr a, in = {0};
	struct rd r;
	u64 fh, fh2, ino, d;
	make_pool(64, 0);
	d = mk(1, "d", 'd');
	/* renamed in its first writing: sealed under its first name, written on under the second */
	ino = create(1, "f", "one", &fh);
	is_xattr(ino, "user.beluga.state", "new");
	is_xattr(ino, "user.beluga.owner", "0");
	CHECK(attr(ino).size == 3 && count_names(1) == 2, "own view");
	OK(bfs_rename(b, 1, N("f"), d, N("g"), 0));
	CHECK(ino_of(d, "g") == ino && attr(ino).size == 3, "renamed");
	IS(bfs_write(b, fh, 3, "two", 3), 3);
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
	is_xattr(ino, "user.beluga.state", "sealed");
	is_xattr(ino, "user.beluga.class", "block");
	OK(bfs_open(b, ino, O_RDONLY, &fh));
	has(fh, "onetwo");
	/* unlinked and replaced while open */
	OK(bfs_unlink(b, d, N("g")));
	IS(bfs_lookup(b, d, N("g"), &a), -ENOENT);
	has(fh, "onetwo");
	CHECK(attr(ino).nlink == 0 && root_now(&r)->norphans == 1, "orphan");
	rd_end(&r);
	OK(bfs_release(b, fh));
	IS(bfs_getattr(b, ino, &a), -ESTALE);
	ino = create(d, "new", "x", &fh); /* never sealed */
	OK(bfs_unlink(b, d, N("new")));
	has(fh, "x");
	IS(bfs_write(b, fh, 1, "y", 1), 1);
	has(fh, "xy");
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
	IS(bfs_getattr(b, ino, &a), -ESTALE);
	ino = create(d, "t", "target", &fh);
	OK(bfs_flush(b, fh, false));
	mk(d, "s", 'f');
	OK(bfs_rename(b, d, N("s"), d, N("t"), 0));
	has(fh, "target");
	OK(bfs_release(b, fh));
	IS(bfs_getattr(b, ino, &a), -ESTALE);
	CHECK(root_now(&r)->norphans == 0 && r.v.root->nunsealed == 0, "counters");
	rd_end(&r);
	/* a second name: sealed; still a block, that its names keep */
	ino = create(d, "l", "linked", &fh);
	OK(bfs_link(b, ino, d, N("l2"), &a));
	CHECK(a.nlink == 2 && a.size == 6, "linked");
	IS(bfs_write(b, fh, 6, "!", 1), 1);
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
	is_xattr(ino, "user.beluga.class", "block");
	CHECK(attr(ino).size == 7 && root_now(&r)->nblocks == 1 && r.v.root->nordinary == 1 && !r.v.root->blocks_granules, "counters");
	rd_end(&r);
	/* size and times of what is open */
	OK(bfs_open(b, ino, O_RDWR, &fh));
	in.size = 2, in.mtime_ns = 77, in.mode = 0600;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE | BFS_SET_MTIME | BFS_SET_MODE, &in, fh, &a));
	CHECK(a.size == 2 && a.mtime_ns == 77 && a.mode == (S_IFREG | 0600), "setattr: size %llu, mtime %lld", (unsigned long long)a.size, (long long)a.mtime_ns);
	has(fh, "li");
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
	CHECK(attr(ino).size == 2 && attr(ino).mtime_ns == 77, "after the seal: mtime %lld", (long long)attr(ino).mtime_ns);
	in.size = 5000;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE, &in, 0, &a));
	CHECK(a.size == 5000, "truncate without a handle");
	/* exchanged with a file in its first writing: that one is sealed */
	u64 first = create(d, "e1", "first", &fh), other = mk(d, "e2", 'd');
	OK(bfs_rename(b, d, N("e1"), d, N("e2"), BFS_RENAME_EXCHANGE));
	CHECK(ino_of(d, "e2") == first && ino_of(d, "e1") == other, "exchanged");
	OK(bfs_release(b, fh));
	/* hidden until it is closed */
	opts.publish_close = true;
	detach(), attach();
	int before = count_names(d);
	ino = create(d, "hidden", "h", &fh);
	IS(bfs_lookup(b, d, N("hidden"), &a), -ENOENT);
	IS(count_names(d), before);
	CHECK(attr(ino).size == 1, "by inode it is there");
	IS(bfs_create(b, d, N("hidden"), 0644, 1, 1, O_RDWR | O_EXCL, &a, &fh2), -EEXIST);
	OK(bfs_flush(b, fh, false));
	CHECK(ino_of(d, "hidden") == ino && count_names(d) == before + 1, "published");
	OK(bfs_release(b, fh));
	drop_pool();
}

/* ---- extended attributes ------------------------------------------------------------------------------------------- */
static void t_xattr(void)
{
	static u8 big[70000], got[70000];
	char name[300], list[70000];
	make_pool(64, 0);
	for (size_t i = 0; i < sizeof big; i++) big[i] = (u8)(i * 7);
	u64 f = mk(1, "f", 'f'), d = mk(1, "d", 'd'), l = mk(1, "l", 'l'), s = mk(1, "p", 'p');
	IS(bfs_getxattr(b, f, "user.a", got, 100), -ENODATA);
	IS(bfs_removexattr(b, f, "user.a"), -ENODATA);
	IS(bfs_setxattr(b, f, "user.a", "x", 1, XATTR_REPLACE), -ENODATA);
	OK(bfs_setxattr(b, f, "user.a", "one", 3, 0));
	IS(bfs_setxattr(b, f, "user.a", "x", 1, XATTR_CREATE), -EEXIST);
	IS(bfs_setxattr(b, f, "user.a", "x", 1, 4), -EINVAL);
	OK(bfs_setxattr(b, f, "user.a", "four", 4, XATTR_REPLACE));
	IS(bfs_getxattr(b, f, "user.a", NULL, 0), 4);
	IS(bfs_getxattr(b, f, "user.a", got, 3), -ERANGE);
	IS(bfs_getxattr(b, f, "user.a", got, 4), 4);
	CHECK(!memcmp(got, "four", 4), "value");
	OK(bfs_setxattr(b, f, "user.empty", NULL, 0, 0));
	IS(bfs_getxattr(b, f, "user.empty", got, 10), 0);
	OK(bfs_setxattr(b, f, "trusted.z", "t", 1, 0));
	OK(bfs_setxattr(b, f, "security.selinux", "s", 1, 0));
	IS(bfs_setxattr(b, f, "system.posix_acl_access", "s", 1, 0), -EOPNOTSUPP);
	IS(bfs_getxattr(b, f, "nothing", got, 1), -EOPNOTSUPP);
	IS(bfs_setxattr(b, f, "user.", "s", 1, 0), -EINVAL);
	memset(name, 'n', sizeof name), memcpy(name, "user.", 5), name[256] = 0;
	IS(bfs_setxattr(b, f, name, "s", 1, 0), -ERANGE);
	name[255] = 0;
	OK(bfs_setxattr(b, f, name, "s", 1, 0));
	OK(bfs_removexattr(b, f, name));
	/* the list is sorted, and names end with a zero */
	static const char want[] = "security.selinux\0trusted.z\0user.a\0user.empty\0user.beluga.checksum\0user.beluga.class\0user.beluga.extents\0user.beluga.owner\0user.beluga.state\0user.beluga.version";
	IS(bfs_listxattr(b, f, NULL, 0), sizeof want);
	IS(bfs_listxattr(b, f, list, sizeof want - 1), -ERANGE);
	IS(bfs_listxattr(b, f, list, sizeof list), sizeof want);
	CHECK(!memcmp(list, want, sizeof want), "list");
	IS(bfs_listxattr(b, d, list, sizeof list), 0);
	/* computed ones */
	IS(bfs_getxattr(b, f, "user.beluga.class", got, 100), 8);
	CHECK(!memcmp(got, "ordinary", 8), "class");
	IS(bfs_getxattr(b, f, "user.beluga.state", got, 100), 6);
	IS(bfs_getxattr(b, f, "user.beluga.state", got, 5), -ERANGE);
	IS(bfs_getxattr(b, f, "user.beluga.owner", got, 100), 4);
	IS(bfs_getxattr(b, f, "user.beluga.version", got, 100), 1);
	IS(bfs_getxattr(b, f, "user.beluga.checksum", got, 100), 4);
	IS(bfs_getxattr(b, f, "user.beluga.nothing", got, 100), -ENODATA);
	IS(bfs_getxattr(b, d, "user.beluga.state", got, 100), -ENODATA);
	IS(bfs_setxattr(b, f, "user.beluga.state", "x", 1, 0), -EPERM);
	IS(bfs_removexattr(b, f, "user.beluga.class"), -EPERM);
	/* 64 KiB together, with 4 bytes an entry */
	OK(bfs_setxattr(b, d, "user.big", big, 65536 - 4 - 8, 0));
	IS(bfs_getxattr(b, d, "user.big", got, sizeof got), 65536 - 12);
	CHECK(!memcmp(got, big, 65536 - 12), "big value");
	IS(bfs_setxattr(b, d, "user.more", "", 0, 0), -ENOSPC);
	IS(bfs_setxattr(b, d, "user.big", big, 65536 - 4 - 7, 0), -ENOSPC);
	IS(bfs_setxattr(b, d, "user.big", big, 65537, 0), -E2BIG);
	IS(bfs_getxattr(b, d, "user.big", got, sizeof got), 65536 - 12);
	OK(bfs_setxattr(b, d, "user.big", "small", 5, 0));
	OK(bfs_removexattr(b, d, "user.big"));
	IS(bfs_listxattr(b, d, list, sizeof list), 0);
	for (int i = 0; i < 200; i++) { /* many: every order */
		snprintf(name, sizeof name, "user.k%d", (i * 71) % 200);
		OK(bfs_setxattr(b, d, name, big, (size_t)i, XATTR_CREATE));
	}
	detach(), attach();
	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof name, "user.k%d", (i * 71) % 200);
		IS(bfs_getxattr(b, d, name, got, sizeof got), i);
		CHECK(!memcmp(got, big, (size_t)i), "value");
		if (i % 2) OK(bfs_removexattr(b, d, name));
	}
	ssize_t n = bfs_listxattr(b, d, list, sizeof list);
	int names = 0;
	for (char *p = list, *last = NULL; p < list + n; last = p, p += strlen(p) + 1, names++) CHECK(!last || strcmp(last, p) < 0, "order: %s", p);
	CHECK(names == 100, "%d names", names);
	/* symbolic links have none, others do */
	IS(bfs_setxattr(b, l, "trusted.a", "x", 1, 0), -EOPNOTSUPP);
	IS(bfs_getxattr(b, l, "trusted.a", got, 1), -ENODATA);
	IS(bfs_listxattr(b, l, list, sizeof list), 0);
	OK(bfs_setxattr(b, s, "trusted.a", "x", 1, 0));
	IS(bfs_getxattr(b, INO(77, 7), "user.a", got, 1), -ESTALE);
	OK(bfs_unlink(b, 1, N("f")));
	OK(bfs_unlink(b, 1, N("p")));
	OK(bfs_rmdir(b, 1, N("d")));
	drop_pool();
}

/* ---- blocks -------------------------------------------------------------------------------------------------------------- */
static void key_of(u64 i, u8 *key)
{
	for (int k = 0; k < 4; k++) {
		u64 x = bfs_xxh(&i, sizeof i, (u64)k);
		memcpy(key + 8 * k, &x, 8);
	}
}
static void fill(u8 *p, size_t n, u64 seed)
{
	for (size_t i = 0; i < n; i++) p[i] = (u8)(seed + i * 31 + (i >> 12));
}

static void t_blocks(void)
{
	enum { BIG = 5 << 20 };
	u8 *data = malloc(BIG), *got = malloc(BIG), key[32], keys[64 * 32], present[64];
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 262144, 262145, 2621440, 2621441, BIG - 3};
	u64 ns, ns2;
	struct bfs_attr a;
	struct rd r;
	make_pool(256, 0);
	OK(bfs_ns_create(b, "model", &ns));
	OK(bfs_ns_create(b, "model", &ns2));
	CHECK(ns == ns2, "same namespace");
	mk(1, "plain", 'd');
	IS(bfs_ns_create(b, "plain", &ns2), -EEXIST);
	IS(bfs_ns_create(b, "a/b", &ns2), -EINVAL);
	IS(bfs_block_put(b, ino_of(1, "plain"), "key", 3, "x", 1), -EINVAL);
	IS(bfs_block_put(b, ns, "k", 1, "x", 1), -EINVAL);
	IS(bfs_block_put(b, ns, keys, 65, "x", 1), -EINVAL);
	IS(bfs_block_get(b, ns, "key", 3, got, 10), -ENOENT);
	IS(bfs_block_delete(b, ns, "key", 3), -ENOENT);
	int nsizes = sizeof sizes / sizeof *sizes;
	for (int i = 0; i < nsizes; i++) {
		key_of((u64)i, key);
		fill(data, sizes[i], (u64)i);
		OK(bfs_block_put(b, ns, key, 32, data, sizes[i]));
		IS(bfs_block_put(b, ns, key, 32, data, sizes[i]), -EEXIST);
	}
	CHECK(root_now(&r)->nblocks == (u64)nsizes && r.v.root->nordinary == 0, "counters");
	u64 granules = r.v.root->blocks_granules;
	CHECK(granules == r.v.root->granules_used, "%llu granules of blocks, %llu used", (unsigned long long)granules, (unsigned long long)r.v.root->granules_used);
	rd_end(&r);
	for (int round = 0; round < 3; round++) {
		opts.verify = round;
		detach(), attach();
		for (int i = 0; i < nsizes; i++) {
			key_of((u64)i, key);
			fill(data, sizes[i], (u64)i);
			IS(bfs_block_get(b, ns, key, 32, NULL, 0), (long)sizes[i]);
			if (sizes[i] > 1) IS(bfs_block_get(b, ns, key, 32, got, sizes[i] - 1), -ERANGE);
			memset(got, 0xee, BIG);
			IS(bfs_block_get(b, ns, key, 32, got, BIG), (long)sizes[i]);
			CHECK(!memcmp(got, data, sizes[i]), "bytes of block %d", i);
			IS(bfs_block_get(b, ns, key, 32, got, BIG), (long)sizes[i]);
		}
	}
	opts.verify = BFS_VERIFY_ALWAYS;
	detach(), attach();

	/* batches of keys: 0..9 are there, 10.. aren't */
	for (int i = 0; i < 64; i++) key_of((u64)i, keys + 32 * i);
	IS(bfs_block_exists(b, ns, keys, 32, 64, present), nsizes);
	for (int i = 0; i < 64; i++) CHECK(present[i] == (i < nsizes), "key %d", i);
	IS(bfs_block_match(b, ns, keys, 32, 64), nsizes);
	IS(bfs_block_match(b, ns, keys, 32, 3), 3);
	IS(bfs_block_match(b, ns, keys + 32 * 20, 32, 3), 0);
	IS(bfs_block_match(b, ns, keys, 32, 0), 0);
	IS(bfs_block_exists(b, ns, keys, 16, 64, present), 0); /* a truncated key is another key */

	/* as files */
	char path[80];
	for (int i = 0; i < 32; i++) snprintf(path + 2 * i, 3, "%02x", keys[3 * 32 + i]);
	CHECK(attr(ns).nlink == 1, "links of a namespace are unknown");
	IS(bfs_lookup(b, ns, "zz", 2, &a), -ENOENT);
	IS(bfs_lookup(b, ns, path, 3, &a), -ENOENT);
	OK(bfs_lookup(b, ns, path, 2, &a));
	CHECK(S_ISDIR(a.mode), "prefix");
	u64 p1 = a.ino, p2, f, par;
	OK(bfs_lookup(b, p1, path + 2, 2, &a));
	p2 = a.ino;
	OK(bfs_lookup(b, p2, path, 64, &a));
	f = a.ino;
	CHECK(a.size == sizes[3] && S_ISREG(a.mode) && a.cls == BFS_CLS_BLOCK && a.state == BFS_ST_SEALED && a.granules == 1, "block as a file");
	IS(bfs_lookup(b, p2, path, 62, &a), -ENOENT);
	OK(bfs_parent(b, p2, &par));
	CHECK(par == p1, "parent");
	OK(bfs_parent(b, p1, &par));
	CHECK(par == ns && attr(p1).ino == p1 && attr(p2).ino == p2, "parent");
	struct bfs_dirent e[300];
	IS(bfs_readdir(b, p2, 0, e, 300), 1);
	CHECK(e[0].len == 64 && !memcmp(e[0].name, path, 64) && e[0].ino == f, "listing");
	IS(bfs_readdir(b, ns, 0, e, 300), nsizes);
	for (int i = 1; i < nsizes; i++) CHECK(strcmp(e[i - 1].name, e[i].name) < 0 && e[i].type == S_IFDIR >> 12, "prefixes");
	IS(bfs_readdir(b, ns, e[4].cookie, e, 2), 2);
	IS(bfs_mkdir(b, ns, N("x"), 0755, 0, 0, &a), -EPERM);
	IS(bfs_mkdir(b, p1, N("x"), 0755, 0, 0, &a), -EPERM);
	IS(bfs_mknod(b, p2, N("x"), S_IFREG | 0644, 0, 0, 0, &a), -EPERM);
	IS(bfs_rename(b, p2, path, 64, 1, N("out"), 0), -EXDEV);
	IS(bfs_rename(b, 1, N("plain"), ns, N("in"), 0), -EPERM);
	IS(bfs_rename(b, 1, N("model"), ino_of(1, "plain"), N("in"), 0), -EXDEV);
	IS(bfs_link(b, f, 1, N("out"), &a), -EPERM);
	IS(bfs_setattr(b, p1, BFS_SET_MODE, &a, 0, NULL), -EPERM);
	IS(bfs_setxattr(b, p1, "user.x", "x", 1, 0), -EPERM);
	IS(bfs_getxattr(b, f, "user.beluga.class", got, 100), 5);
	IS(bfs_getxattr(b, f, "user.beluga.checksum", got, 1000), 14 + 17);
	CHECK(!memcmp(got, "xxh3 262144 1\n", 14), "checksum: %.31s", (char *)got);
	IS(bfs_rmdir(b, ns, path, 2), -ENOTEMPTY);
	IS(bfs_rmdir(b, p1, path + 2, 2), -ENOTEMPTY);
	IS(bfs_rmdir(b, 1, N("model")), -ENOTEMPTY);
	IS(bfs_unlink(b, ns, path, 2), -EISDIR);
	OK(bfs_unlink(b, p2, path, 64)); /* rm -r */
	OK(bfs_rmdir(b, p1, path + 2, 2));
	OK(bfs_rmdir(b, ns, path, 2));
	IS(bfs_getattr(b, p1, &a), -ESTALE);
	IS(bfs_getattr(b, p2, &a), -ESTALE);
	IS(bfs_readdir(b, p2, 0, e, 300), -ESTALE);
	IS(bfs_rmdir(b, ns, N("zz")), -ENOENT);
	IS(bfs_block_get(b, ns, keys + 3 * 32, 32, got, BIG), -ENOENT);

	/* damage is found, and is an error rather than wrong bytes */
	struct bfs_attr at;
	for (int i = 0; i < 32; i++) snprintf(path + 2 * i, 3, "%02x", keys[7 * 32 + i]);
	OK(bfs_lookup(b, ns, path, 2, &a));
	OK(bfs_lookup(b, a.ino, path + 2, 2, &a));
	OK(bfs_lookup(b, a.ino, path, 64, &at));
	OK(rd_begin(b, &r));
	int rc;
	const struct bfs_obj *o = ob_get(&r.v, at.ino, &rc);
	u64 addr = o->u.f.inl_addr;
	if (!addr) {
		struct bfs_rec rec;
		OK(bt_seek(&r.v, KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0), &rec));
		addr = rec.x;
	}
	rd_end(&r);
	u8 *where = (u8 *)al_mem(b, addr) + 100;
	*where ^= 1;
	IS(bfs_block_get(b, ns, keys + 7 * 32, 32, got, BIG), -EIO);
	CHECK(strstr(bfs_errmsg(), "checksum") && b->corrupt == 1, "message: %s", bfs_errmsg());
	*where ^= 1;
	IS(bfs_block_get(b, ns, keys + 7 * 32, 32, got, BIG), (long)sizes[7]);

	/* keys that share their first bytes: one directory, listed in pieces */
	u8 k16[16] = "same";
	OK(bfs_batch_begin(b));
	for (u32 i = 0; i < 3000; i++) {
		memcpy(k16 + 8, &i, 4);
		OK(bfs_block_put(b, ns, k16, 16, &i, 4));
	}
	OK(bfs_batch_commit(b));
	OK(bfs_lookup(b, ns, "73", 2, &a));
	OK(bfs_lookup(b, a.ino, "61", 2, &a));
	u64 dir = a.ino, after = 0;
	int n, seen = 0;
	while ((n = bfs_readdir(b, dir, after, e, 1 + (int)below(100))) > 0)
		for (int i = 0; i < n; i++, seen++) {
			CHECK(e[i].cookie > after && e[i].len == 32 && !memcmp(e[i].name, "73616d65", 8), "listing");
			after = e[i].cookie;
		}
	OK(n);
	CHECK(seen == 3000, "%d of 3000", seen);
	for (u32 i = 0; i < 3000; i++) {
		u32 x;
		memcpy(k16 + 8, &i, 4);
		IS(bfs_block_get(b, ns, k16, 16, &x, 4), 4);
		CHECK(x == i, "block %u", i);
		if (i % 3) OK(bfs_block_delete(b, ns, k16, 16));
	}
	detach(), attach();
	for (u32 i = 0; i < 3000; i++) {
		memcpy(k16 + 8, &i, 4);
		IS(bfs_block_exists(b, ns, k16, 16, 1, present), i % 3 ? 0 : 1);
		if (!(i % 3)) OK(bfs_block_delete(b, ns, k16, 16));
	}
	for (int i = 0; i < nsizes; i++)
		if (i != 3) OK(bfs_block_delete(b, ns, keys + 32 * i, 32));
	CHECK(root_now(&r)->nblocks == 0 && r.v.root->blocks_granules == 0, "counters");
	rd_end(&r);
	OK(bfs_rmdir(b, 1, N("model")));
	free(data), free(got);
	drop_pool();
}

/* ---- blocks make room: for slots, for space ---------------------------------------------------------------------------------- */
static void t_room(void)
{
	u8 key[32], *data = calloc(1, 1 << 20), present;
	struct bfs_attr a;
	u64 ns;
	make_pool(64, 64);
	OK(bfs_ns_create(b, "n", &ns));
	for (u64 i = 0; i < 300; i++) {
		key_of(i, key);
		OK(bfs_block_put(b, ns, key, 32, &i, 8));
	}
	for (u64 i = 0; i < 300; i++) { /* the newest are there */
		key_of(i, key);
		IS(bfs_block_exists(b, ns, key, 32, 1, &present), present);
		CHECK(i < 280 || present, "block %llu", (unsigned long long)i);
		CHECK(i > 200 || !present, "block %llu", (unsigned long long)i);
	}
	mk(1, "d", 'd'), mk(1, "f", 'f'), mk(1, "l", 'l');
	OK(bfs_batch_begin(b));
	for (u64 i = 1000; i < 1040; i++) {
		key_of(i, key);
		OK(bfs_block_put(b, ns, key, 32, &i, 8));
	}
	OK(bfs_batch_commit(b));
	opts.evict_none = true;
	detach(), attach();
	int rc = 0, n = 0;
	for (char name[16]; !rc; n++) snprintf(name, sizeof name, "x%d", n), rc = bfs_mkdir(b, 1, N(name), 0755, 0, 0, &a);
	IS(rc, -ENOSPC);
	key_of(5000, key);
	IS(bfs_block_put(b, ns, key, 32, "x", 1), -ENOSPC);
	opts.evict_none = false;
	drop_pool();

	make_pool(64, 0);
	OK(bfs_ns_create(b, "n", &ns));
	for (u64 i = 0; i < 200; i++) {
		u64 got;
		key_of(i, key);
		memcpy(data, &i, 8);
		OK(bfs_block_put(b, ns, key, 32, data, 1 << 20));
		rc = (int)bfs_block_get(b, ns, key, 32, data, 1 << 20);
		memcpy(&got, data, 8);
		CHECK(rc == 1 << 20 && got == i, "after put %llu: %s", (unsigned long long)i, text(rc));
		for (u64 k = i > 9 ? i - 9 : 0; k < i; k++) {
			key_of(k, key);
			IS(bfs_block_exists(b, ns, key, 32, 1, &present), 1);
		}
	}
	struct rd r;
	CHECK(root_now(&r)->evicted_blocks >= 140 && r.v.root->nblocks == 200 - r.v.root->evicted_blocks, "%llu evicted", (unsigned long long)r.v.root->evicted_blocks);
	rd_end(&r);
	free(data);
	drop_pool();
}

/* ---- readers beside a writer ------------------------------------------------------------------------------------------------- */
static struct { u64 dir, ns; _Atomic(int) stop; _Atomic(u64) lists, gets, hits; } th;

/* One call of readdir is one snapshot: of two names that one file has in turn, it shows one.
 * A block is all there or not at all, also while it is deleted and put again. */
static void *reader(void *arg)
{
	u8 *buf = malloc(1 << 20), key[32];
	struct bfs_dirent e[16];
	struct bfs_attr a;
	u64 x = (u64)(uintptr_t)arg + 1;
	while (!atomic_load(&th.stop)) {
		int n = bfs_readdir(b, th.dir, 0, e, 16), flip = 0;
		for (int i = 0; i < n; i++) flip += e[i].name[0] == 'A' || e[i].name[0] == 'B';
		CHECK(n == 9 && flip == 1, "%d names, %d of A and B", n, flip);
		atomic_fetch_add(&th.lists, 1);
		OK(bfs_lookup(b, th.dir, N("s3"), &a));
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		u64 k = (x >> 40) % 24, got = 0;
		key_of(k, key);
		ssize_t rc = bfs_block_get(b, th.ns, key, 32, buf, 1 << 20);
		CHECK(rc == (ssize_t)(100000 + k * 8192) || rc == -ENOENT, "block_get: %s", text(rc));
		if (rc > 0) {
			memcpy(&got, buf, 8);
			for (ssize_t i = 8; i + 8 <= rc; i += 8) CHECK(!memcmp(buf + i, buf, 8), "block %llu, byte %zd: another block's bytes", (unsigned long long)k, i);
			CHECK(got >> 32 == k, "block %llu has the bytes of %llu", (unsigned long long)k, (unsigned long long)(got >> 32));
			atomic_fetch_add(&th.hits, 1);
		}
		atomic_fetch_add(&th.gets, 1);
	}
	free(buf);
	return NULL;
}

static void t_readers(void)
{
	pthread_t t[3];
	u8 key[32];
	u64 *data = malloc(1 << 20);
	char name[16];
	double end = now() + (getenv("SECONDS_EACH") ? atof(getenv("SECONDS_EACH")) : 2);
	make_pool(64, 0);
	memset(&th, 0, sizeof th);
	th.dir = mk(1, "d", 'd');
	OK(bfs_ns_create(b, "n", &th.ns));
	for (int i = 0; i < 8; i++) snprintf(name, sizeof name, "s%d", i), mk(th.dir, name, 'f');
	mk(th.dir, "A", 'f');
	for (u64 i = 0; i < 3; i++) pthread_create(&t[i], NULL, reader, (void *)(uintptr_t)i);
	u64 step = 0, puts = 0;
	for (; now() < end; step++) {
		OK(bfs_rename(b, th.dir, step % 2 ? "B" : "A", 1, th.dir, step % 2 ? "A" : "B", 1, 0));
		u64 k = rnd() % 24;
		key_of(k, key);
		int rc = bfs_block_delete(b, th.ns, key, 32);
		CHECK(!rc || rc == -ENOENT, "block_delete: %s", text(rc));
		for (u64 i = 0; i < (100000 + k * 8192) / 8; i++) data[i] = k << 32 | (u32)step;
		rc = bfs_block_put(b, th.ns, key, 32, data, 100000 + k * 8192);
		CHECK(!rc || rc == -ENOSPC, "block_put: %s", text(rc));
		puts += !rc;
		if (step % 16 == 0) OK(bfs_tick(b));
	}
	atomic_store(&th.stop, 1);
	for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
	printf("   %llu renames, %llu puts, %llu listings, %llu gets, %llu hits\n", (unsigned long long)step, (unsigned long long)puts, (unsigned long long)th.lists, (unsigned long long)th.gets, (unsigned long long)th.hits);
	free(data);
	drop_pool();
}

/* ---- figures, when asked for ------------------------------------------------------------------------------------------------- */
static void t_bench(void)
{
	enum { BLOCKS = 200000, BATCH = 938 };
	if (!getenv("BENCH")) return;
	u8 *keys = malloc((size_t)BLOCKS * 32), *present = malloc(BLOCKS), *data = malloc(2621440);
	u64 ns;
	char name[64];
	make_pool(2048, 400000);
	OK(bfs_ns_create(b, "n", &ns));
	fill(data, 2621440, 1);
	for (int i = 0; i < BLOCKS; i++) key_of((u64)i, keys + (size_t)i * 32);
	double t0 = now();
	for (int i = 0; i < BLOCKS;) {
		OK(bfs_batch_begin(b));
		for (int k = 0; k < 1000; k++, i++) OK(bfs_block_put(b, ns, keys + (size_t)i * 32, 32, data, 64));
		OK(bfs_batch_commit(b));
	}
	double t1 = now();
	printf("   put, 64 bytes, 1000 a batch: %.2f us\n", (t1 - t0) / BLOCKS * 1e6);
	for (int round = 0; round < 2; round++) {
		t0 = now();
		for (int i = 0; i + BATCH <= BLOCKS; i += BATCH) IS(bfs_block_match(b, ns, keys + (size_t)i * 32, 32, BATCH), BATCH);
		t1 = now();
		IS(bfs_block_exists(b, ns, keys, 32, BLOCKS, present), BLOCKS);
		double t2 = now();
		printf("   match, %d keys: %.0f us (%.0f ns a key); exists: %.0f ns a key\n", BATCH, (t1 - t0) / (BLOCKS / BATCH) * 1e6, (t1 - t0) / BLOCKS * 1e9, (t2 - t1) / BLOCKS * 1e9);
	}
	t0 = now();
	for (int i = 0; i < 20000; i++) IS(bfs_block_get(b, ns, keys + (size_t)(i * 7 % BLOCKS) * 32, 32, data, 64), 64);
	printf("   get, 64 bytes: %.2f us\n", (now() - t0) / 20000 * 1e6);
	u64 d = mk(1, "d", 'd');
	t0 = now();
	for (int i = 0; i < 20000; i++) snprintf(name, sizeof name, "f%d", i), mk(d, name, 'p');
	printf("   mknod: %.2f us\n", (now() - t0) / 20000 * 1e6);
	t0 = now();
	for (int i = 0; i < 20000; i++) snprintf(name, sizeof name, "f%d", i), ino_of(d, name);
	printf("   lookup: %.2f us\n", (now() - t0) / 20000 * 1e6);
	struct bfs_dirent *e = malloc(1000 * sizeof *e);
	t0 = now();
	int n = 0, total = 0;
	for (u64 after = 0; (n = bfs_readdir(b, d, after, e, 1000)) > 0; after = e[n - 1].cookie) total += n;
	printf("   readdir: %.2f us an entry\n", (now() - t0) / total * 1e6);
	fill(data, 2621440, 3);
	t0 = now();
	for (int i = 0; i < 200; i++) {
		key_of((u64)i + 1000000, keys);
		OK(bfs_block_put(b, ns, keys, 32, data, 2621440));
	}
	t1 = now();
	for (int i = 0; i < 200; i++) {
		key_of((u64)i + 1000000, keys);
		IS(bfs_block_get(b, ns, keys, 32, data, 2621440), 2621440);
	}
	double t2 = now();
	printf("   put, 2.5 MiB: %.0f us (%.2f GB/s); get: %.0f us (%.2f GB/s)\n", (t1 - t0) / 200 * 1e6, 200 * 2.62144e-3 / (t1 - t0), (t2 - t1) / 200 * 1e6, 200 * 2.62144e-3 / (t2 - t1));
	free(keys), free(present), free(data), free(e);
	drop_pool();
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*f)(void); } tests[] = {
		{"basic", t_basic}, {"rename", t_rename}, {"random", t_random}, {"listing", t_listing}, {"slots", t_slots}, {"full", t_full},
		{"private", t_private}, {"open", t_open}, {"xattr", t_xattr}, {"blocks", t_blocks}, {"room", t_room}, {"readers", t_readers}, {"bench", t_bench},
	};
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getenv("SEED")) rng = strtoull(getenv("SEED"), NULL, 0) | 1;
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name)) continue;
		double t = now();
		tests[i].f();
		printf("%-8s ok %6.2f s\n", tests[i].name, now() - t);
	}
	return 0;
}
