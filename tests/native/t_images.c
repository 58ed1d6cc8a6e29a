/* Crash images of one host.
 *
 * A recording memory plays the machine: what the core stores goes to the pool only when it
 * is flushed and fenced; until then each 64-byte line may have arrived, or not, or be torn
 * at 8 bytes.  Operations and sequences of up to three run on it, and behind every store,
 * flush and fence of the last one pools are built as a crash at that moment may leave them:
 *
 *   durable  only what was fenced
 *   all      everything, as when only the process dies
 *   random   any subset of the lines in flight, some torn
 *   last     all but the last line, that one torn
 *
 * Each pool is checked by bfs_fsck as it is, attached, checked again, and listed with all its
 * content: that must be the state before the operation or the one behind it, nothing between;
 * what was acknowledged is there.  Some attachments are cut off in turn and joined again.
 *
 *   t_images [--images N] [--full] [--seed S] [--sequence a,b,c] [--keep FILE] [--go-on]
 *   t_images --mutants   (built with BFS_MUTANTS) steps left out in turn: the images have to notice
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../../belugafs/_core/internal.h"

#define TEXT (64 << 10)
#define POOL_PAGES 200u
#define DATA_GRANULES 192u
#define CHUNK 4096u

static u64 seed = 1;
static u64 next_rnd(u64 *s)
{
	*s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
	return *s;
}
static u64 images, attaches, second, unannounced;
static const char *keep = "/tmp/t_images.pool";
static char doing[512];

/* ---- recording memory ------------------------------------------------------------------ */
struct pending {
	u32 line;
	u64 w[8];
};
struct rec {
	struct bfs_mem mem;
	size_t size, lines;
	u8 *cur;  /* what this host sees */
	u8 *seen; /* what the recorder knows of: durable + pending */
	u8 *dur;  /* in the pool for certain */
	u8 *dirty;
	u32 *dlist, ndirty;
	struct pending *pend;
	u32 npend, cap;
	u64 clock, rng;
	void (*cut)(struct rec *r, const char *what);
	u64 cuts;
};

static struct rec *rec_of(struct bfs_mem *m) { return m->priv; }
static void span(struct rec *r, const void *p, size_t n, u32 *from, u32 *to)
{
	size_t off = (size_t)((const u8 *)p - r->cur);
	if (off > r->size || n > r->size - off) {
		fprintf(stderr, "%s: access outside of the pool, offset %zu\n", doing, off);
		abort();
	}
	*from = (u32)(off / BFS_LINE), *to = (u32)((off + n + BFS_LINE - 1) / BFS_LINE);
}

static void known(struct rec *r, u32 l)
{
	if (r->dirty[l] || !memcmp(r->cur + (size_t)l * 64, r->seen + (size_t)l * 64, 64)) return;
	if (!unannounced++) fprintf(stderr, "%s: line at offset 0x%zx was stored to without mm_dirty\n", doing, (size_t)l * 64);
}

static void clean(struct rec *r, u32 l)
{
	if (!r->dirty[l]) return;
	r->dirty[l] = 0;
	for (u32 i = r->ndirty; i-- > 0;)
		if (r->dlist[i] == l) {
			r->dlist[i] = r->dlist[--r->ndirty];
			return;
		}
}

static void soil(struct rec *r, u32 l)
{
	if (r->dirty[l]) return;
	r->dirty[l] = 1;
	r->dlist[r->ndirty++] = l;
}

static void push(struct rec *r, u32 l)
{
	if (r->npend == r->cap) {
		r->cap = r->cap ? r->cap * 2 : 1024;
		r->pend = realloc(r->pend, r->cap * sizeof *r->pend);
	}
	r->pend[r->npend].line = l;
	memcpy(r->pend[r->npend++].w, r->cur + (size_t)l * 64, 64);
	memcpy(r->seen + (size_t)l * 64, r->cur + (size_t)l * 64, 64);
	clean(r, l);
}

static void cut(struct rec *r, const char *what)
{
	r->cuts++;
	if (r->cut) r->cut(r, what);
}

static void r_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	struct rec *r = rec_of(m);
	u32 a, e;
	span(r, d, n, &a, &e);
	for (u32 l = a; l < e; l++) known(r, l);
	memcpy(d, s, n);
	for (u32 l = a; l < e; l++) push(r, l);
	cut(r, "store");
}

static void writeback(struct bfs_mem *m, const void *p, size_t n, const char *what)
{
	struct rec *r = rec_of(m);
	u32 a, e, any = 0;
	span(r, p, n, &a, &e);
	for (u32 l = a; l < e; l++) {
		known(r, l);
		if (!r->dirty[l]) continue;
		push(r, l), any = 1;
	}
	if (any) cut(r, what);
}
static void r_flush(struct bfs_mem *m, const void *p, size_t n) { writeback(m, p, n, "flush"); }
static void r_inval(struct bfs_mem *m, const void *p, size_t n) { writeback(m, p, n, "inval"); }

static void r_fence(struct bfs_mem *m)
{
	struct rec *r = rec_of(m);
	if (!r->npend) return;
	for (u32 i = 0; i < r->npend; i++) memcpy(r->dur + (size_t)r->pend[i].line * 64, r->pend[i].w, 64);
	r->npend = 0;
	cut(r, "fence");
}

static void r_dirty(struct bfs_mem *m, void *p, size_t n)
{
	struct rec *r = rec_of(m);
	u32 a, e;
	span(r, p, n, &a, &e);
	for (u32 l = a; l < e; l++) {
		known(r, l);
		soil(r, l);
	}
}

static int r_in(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	r_dirty(m, d, n);
	memcpy(d, s, n);
	cut(rec_of(m), "data");
	return 0;
}
static int r_out(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	u32 a, e;
	span(rec_of(m), s, n, &a, &e);
	memcpy(d, s, n);
	return 0;
}
static int r_zero(struct bfs_mem *m, void *d, size_t n)
{
	r_dirty(m, d, n);
	memset(d, 0, n);
	cut(rec_of(m), "zero");
	return 0;
}
static u64 r_now(struct bfs_mem *m) { return 1700000000000000000ull + (rec_of(m)->clock += 1000000); }
static u64 r_mono(struct bfs_mem *m) { return rec_of(m)->clock += 1000; }
static u64 r_rand(struct bfs_mem *m) { return next_rnd(&rec_of(m)->rng); }
static void r_pause(struct bfs_mem *m, u64 ns) { rec_of(m)->clock += ns; }
static void *r_alloc(struct bfs_mem *m, size_t n) { (void)m; return calloc(1, n ? n : 1); }
static void r_free(struct bfs_mem *m, void *p) { (void)m; free(p); }

static const struct bfs_mem_ops rec_ops = {
	.name = "recording", .store = r_store, .inval = r_inval, .flush = r_flush, .fence = r_fence, .dirty = r_dirty,
	.copy_in = r_in, .copy_out = r_out, .zero = r_zero,
	.now_ns = r_now, .mono_ns = r_mono, .rand64 = r_rand, .pause = r_pause, .alloc = r_alloc, .free = r_free,
};

static void rec_init(struct rec *r, size_t size)
{
	memset(r, 0, sizeof *r);
	r->size = size, r->lines = size / 64;
	r->cur = aligned_alloc(4096, size), r->seen = aligned_alloc(4096, size), r->dur = aligned_alloc(4096, size);
	r->dirty = calloc(1, r->lines), r->dlist = calloc(r->lines, sizeof *r->dlist);
	r->mem = (struct bfs_mem){.ops = &rec_ops, .base = r->cur, .size = size, .coherent = false, .priv = r};
}

static void rec_load(struct rec *r, const u8 *pool, u64 rng)
{
	memcpy(r->cur, pool, r->size), memcpy(r->seen, pool, r->size), memcpy(r->dur, pool, r->size);
	memset(r->dirty, 0, r->lines);
	r->ndirty = r->npend = 0;
	r->clock = 0, r->rng = rng, r->cut = NULL, r->cuts = 0;
}

/* every plain store was announced */
static void rec_audit(struct rec *r)
{
	for (u32 l = 0; l < r->lines; l++) known(r, l);
}

/* ---- what a pool holds, as text ------------------------------------------------------------ */
/* A file that is rewritten in place: meanwhile a crash may show old and new bytes mixed. */
struct loose {
	u64 ino; /* 0 none */
	bool on; /* no state has one content */
	u8 old[64 << 10], mid[64 << 10], new[64 << 10];
	u32 nold, nmid, nnew; /* mid: between two changes, 0 none */
};
struct ctx {
	struct bfs *b;
	u64 fh;            /* left open by an operation, 0 none */
	u64 durable[2]; /* files in their first writing that were synced: they survive */
	struct loose hot;  /* the file behind fh, once it is written on */
	struct loose cold; /* the file that the operation rewrites */
	u32 step;
	int rc;
	/* states in the order they were acknowledged; a crash shows state[at] or state[at + 1] */
	char *state[8];
	char *mixed[8]; /* the same with the content of hot and cold left open */
	u32 nstates, at;
	bool learning;
	bool full; /* so that eviction may come in */
};
struct text {
	char *s;
	size_t n;
	bool live;         /* of a running host: what would be gone after a crash isn't listed */
	const struct ctx *c;
	bool mix;          /* content of hot and cold: only that it is old or new */
};
static char wrong[4096];

static void say(struct text *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(t->s + t->n, TEXT - t->n, fmt, ap);
	va_end(ap);
	if (n > 0) t->n = t->n + (size_t)n < TEXT ? t->n + (size_t)n : TEXT - 1;
}

static int content(struct bfs *b, u64 ino, u64 size, const char *path, struct text *t)
{
	static u8 buf[128 << 10];
	u64 fh;
	int rc = bfs_open(b, ino, O_RDONLY, &fh);
	if (rc) return snprintf(wrong, sizeof wrong, "%s: open: %d (%s)", path, rc, bfs_errmsg()), -1;
	ssize_t n = bfs_read(b, fh, 0, buf, sizeof buf);
	if (n < 0 || (u64)n != size) snprintf(wrong, sizeof wrong, "%s: read: %zd of %llu (%s)", path, n, (unsigned long long)size, bfs_errmsg());
	bfs_release(b, fh);
	if (n < 0 || (u64)n != size) return -1;
	for (int k = 0; k < 2; k++) {
		const struct loose *l = k ? &t->c->cold : &t->c->hot;
		if (!l->ino || ino != l->ino || !(t->mix || l->on)) continue;
		if (size && size != l->nold && size != l->nmid && size != l->nnew) return snprintf(wrong, sizeof wrong, "%s: size %llu, expected %u or %u", path, (unsigned long long)size, l->nold, l->nnew), -1;
		for (u32 i = 0; i < size; i++)
			if (!(i < l->nold && buf[i] == l->old[i]) && !(i < l->nmid && buf[i] == l->mid[i]) && !(i < l->nnew && buf[i] == l->new[i]) && !(i >= l->nold && buf[i] == 0))
				return snprintf(wrong, sizeof wrong, "%s: byte %u of %llu is %u, expected %u or %u: neither old nor new", path, i, (unsigned long long)size, buf[i], i < l->nold ? l->old[i] : 0, i < l->nnew ? l->new[i] : 0), -1;
		say(t, " loose");
		return 0;
	}
	say(t, " size %llu content %016llx", (unsigned long long)size, (unsigned long long)bfs_xxh(buf, (size_t)n, 7));
	return 0;
}

static int by_name(const void *p, const void *q) { return strcmp(((const struct bfs_dirent *)p)->name, ((const struct bfs_dirent *)q)->name); }

static int walk(struct bfs *b, u64 dir, const char *path, int depth, struct text *t)
{
	struct bfs_dirent *e = calloc(64, sizeof *e);
	int n = 0, got, rc = 0;
	for (u64 after = 0; n < 60 && (got = bfs_readdir(b, dir, after, e + n, 60 - n)) != 0; n += got, after = e[n - 1].cookie)
		if (got < 0) {
			snprintf(wrong, sizeof wrong, "%s: readdir: %d (%s)", path, got, bfs_errmsg());
			free(e);
			return -1;
		}
	qsort(e, (size_t)n, sizeof *e, by_name);
	for (int i = 0; i < n && !rc; i++) {
		struct bfs_attr a;
		char p[512], list[1024];
		snprintf(p, sizeof p, "%s/%.*s", path, e[i].len, e[i].name);
		if ((rc = bfs_lookup(b, dir, e[i].name, e[i].len, &a)) || a.ino != e[i].ino || a.mode >> 12 != e[i].type) {
			snprintf(wrong, sizeof wrong, "%s: listed as inode %llu type %u, look-up: %d inode %llu mode %o (%s)", p, (unsigned long long)e[i].ino, e[i].type, rc, (unsigned long long)a.ino, a.mode, bfs_errmsg());
			rc = -1;
			break;
		}
		if (a.state == BFS_ST_ABANDONED) continue; /* nobody is promised it */
		if (a.state == BFS_ST_NEW) {
			if (t->live && a.ino != t->c->durable[0] && a.ino != t->c->durable[1]) continue;
			if (!t->live) {
				snprintf(wrong, sizeof wrong, "%s: still in its first writing after the attach", p);
				rc = -1;
				break;
			}
		}
		say(t, "%s %o nlink %u", p, a.mode, a.nlink);
		bool on = a.ino == t->c->hot.ino && (t->mix || t->c->hot.on); /* synced and written on: no block after a crash */
		if (a.cls == BFS_CLS_BLOCK && !on) say(t, " block ");
		if (S_ISREG(a.mode)) rc = content(b, a.ino, a.size, p, t);
		if (S_ISLNK(a.mode)) {
			char link[4096];
			ssize_t m = bfs_readlink(b, a.ino, link, sizeof link);
			if (m < 0) rc = -1, snprintf(wrong, sizeof wrong, "%s: readlink: %zd (%s)", p, m, bfs_errmsg());
			else say(t, " -> %zd %.*s", m, (int)(m < 20 ? m : 20), link);
		}
		ssize_t m = rc ? 0 : bfs_listxattr(b, a.ino, list, sizeof list);
		for (char *x = list; m > 0 && x < list + m && !rc; x += strlen(x) + 1) {
			char val[16384];
			if (!strncmp(x, "user.beluga.", 12)) continue;
			ssize_t v = bfs_getxattr(b, a.ino, x, val, sizeof val);
			if (v < 0) rc = -1, snprintf(wrong, sizeof wrong, "%s: getxattr %s: %zd (%s)", p, x, v, bfs_errmsg());
			else say(t, " %s=%016llx", x, (unsigned long long)bfs_xxh(val, (size_t)v, 7));
		}
		say(t, "\n");
		if (!rc && S_ISDIR(a.mode)) rc = depth < 8 ? walk(b, a.ino, p, depth + 1, t) : -1;
	}
	free(e);
	return rc;
}

static char *listing(struct bfs *b, const struct ctx *c, bool live, bool mix)
{
	struct text t = {malloc(TEXT), 0, live, c, mix};
	t.s[0] = 0;
	if (!walk(b, BFS_ROOT_INO, "", 0, &t)) return t.s;
	free(t.s);
	return NULL;
}

/* ---- operations ------------------------------------------------------------------------------ */
static void fill(u8 *p, size_t n, u64 s)
{
	s = s * 0x9E3779B97F4A7C15ull | 1;
	for (size_t i = 0; i < n; i++) p[i] = (u8)(next_rnd(&s) >> 32);
}

static int find(struct ctx *c, const char *path, struct bfs_attr *a)
{
	u64 dir = BFS_ROOT_INO;
	char buf[128];
	snprintf(buf, sizeof buf, "%s", path);
	for (char *s = NULL, *p = strtok_r(buf, "/", &s); p; p = strtok_r(NULL, "/", &s)) {
		int rc = bfs_lookup(c->b, dir, p, strlen(p), a);
		if (rc) return rc;
		dir = a->ino;
	}
	return 0;
}

/* what is acknowledged up to here survives; state by state */
static void acknowledge(struct ctx *c)
{
	struct rec *r = rec_of(c->b->m);
	void (*keep_cut)(struct rec *, const char *) = r->cut;
	r->cut = NULL;
	if (c->learning) {
		char *s = listing(c->b, c, true, false), *m = listing(c->b, c, true, true);
		if (!s || !m) {
			fprintf(stderr, "%s: the running host shows: %s\n", doing, wrong);
			exit(1);
		}
		c->state[c->nstates] = s, c->mixed[c->nstates++] = m;
	} else { /* for the sake of what the reading changes: recency */
		free(listing(c->b, c, true, false)), free(listing(c->b, c, true, true));
		c->at++;
	}
	r->cut = keep_cut;
}

static int put_file(struct ctx *c, u64 dir, const char *name, size_t n, u64 s)
{
	static u8 buf[64 << 10];
	struct bfs_attr a;
	u64 fh;
	int rc = bfs_create(c->b, dir, name, strlen(name), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh);
	if (rc) return rc;
	fill(buf, n, s);
	for (size_t at = 0; at < n && !rc; at += 20000) {
		ssize_t w = bfs_write(c->b, fh, at, buf + at, n - at < 20000 ? n - at : 20000);
		if (w < 0) rc = (int)w;
	}
	int f = bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	return rc ? rc : f;
}

/* opens /path, writes at off, closes */
static int rewrite(struct ctx *c, const char *path, u64 off, size_t n, int flags, u64 s)
{
	static u8 buf[64 << 10];
	struct bfs_attr a;
	u64 fh;
	int rc = find(c, path, &a);
	if (rc || (rc = bfs_open(c->b, a.ino, O_WRONLY | flags, &fh))) return rc;
	fill(buf, n, s);
	ssize_t w = n ? bfs_write(c->b, fh, off, buf, n) : 0;
	int f = bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	return w < 0 ? (int)w : f;
}

static int o_mkdir(struct ctx *c) { struct bfs_attr a; return bfs_mkdir(c->b, 1, "n", 1, 0755, 0, 0, &a); }
static int o_mkdir2(struct ctx *c) { struct bfs_attr d, a; int rc = find(c, "/d", &d); return rc ? rc : bfs_mkdir(c->b, d.ino, "n", 1, 0755, 0, 0, &a); }
static int o_create(struct ctx *c) { return put_file(c, 1, "f", 3000, 11); }
static int o_create_big(struct ctx *c) { return put_file(c, 1, "g", 47000, 12); }
static int o_create_empty(struct ctx *c) { return put_file(c, 1, "z", 0, 0); }
static int o_create_in(struct ctx *c) { struct bfs_attr d; int rc = find(c, "/d", &d); return rc ? rc : put_file(c, d.ino, "f", 9000, 13); }
static int o_mknod(struct ctx *c) { struct bfs_attr a; return bfs_mknod(c->b, 1, "fifo", 4, S_IFIFO | 0600, 0, 0, 0, &a); }
static int o_rename(struct ctx *c) { return bfs_rename(c->b, 1, "a", 1, 1, "f", 1, 0); }
static int o_rename_over(struct ctx *c) { return bfs_rename(c->b, 1, "a", 1, 1, "b", 1, 0); }
static int o_rename_dir(struct ctx *c) { struct bfs_attr d; int rc = find(c, "/d", &d); return rc ? rc : bfs_rename(c->b, d.ino, "e", 1, 1, "m", 1, 0); }
static int o_rename_in(struct ctx *c) { struct bfs_attr d; int rc = find(c, "/d", &d); return rc ? rc : bfs_rename(c->b, 1, "b", 1, d.ino, "b", 1, 0); }
static int o_exchange(struct ctx *c) { return bfs_rename(c->b, 1, "a", 1, 1, "b", 1, BFS_RENAME_EXCHANGE); }
static int o_unlink(struct ctx *c) { return bfs_unlink(c->b, 1, "a", 1); }
static int o_unlink_f(struct ctx *c) { return bfs_unlink(c->b, 1, "f", 1); }
static int o_unlink_g(struct ctx *c) { return bfs_unlink(c->b, 1, "g", 1); }
static int o_rmdir(struct ctx *c) { struct bfs_attr d; int rc = find(c, "/d", &d); return rc ? rc : bfs_rmdir(c->b, d.ino, "e", 1); }
static int o_link(struct ctx *c) { struct bfs_attr a; int rc = find(c, "/b", &a); return rc ? rc : bfs_link(c->b, a.ino, 1, "l", 1, &a); }
static int o_symlink(struct ctx *c) { struct bfs_attr a; return bfs_symlink(c->b, 1, "y", 1, "target", 6, 0, 0, &a); }
static int o_symlink_long(struct ctx *c)
{
	char t[300];
	struct bfs_attr a;
	memset(t, 'x', sizeof t);
	return bfs_symlink(c->b, 1, "w", 1, t, sizeof t, 0, 0, &a);
}
static int o_setxattr(struct ctx *c) { struct bfs_attr a; int rc = find(c, "/b", &a); return rc ? rc : bfs_setxattr(c->b, a.ino, "user.x", "value", 5, 0); }
static int o_setxattr_big(struct ctx *c)
{
	static u8 v[9000];
	struct bfs_attr a;
	int rc = find(c, "/d", &a);
	fill(v, sizeof v, 5);
	return rc ? rc : bfs_setxattr(c->b, a.ino, "user.big", v, sizeof v, 0);
}
static int o_removexattr(struct ctx *c) { struct bfs_attr a; int rc = find(c, "/a", &a); return rc ? rc : bfs_removexattr(c->b, a.ino, "user.a"); }
static int o_chmod(struct ctx *c) { struct bfs_attr a, in = {.mode = 0600}; int rc = find(c, "/b", &a); return rc ? rc : bfs_setattr(c->b, a.ino, BFS_SET_MODE, &in, 0, &a); }
static int o_truncate(struct ctx *c) { struct bfs_attr a, in = {.size = 5000}; int rc = find(c, "/a", &a); return rc ? rc : bfs_setattr(c->b, a.ino, BFS_SET_SIZE, &in, 0, &a); }
static int o_truncate_0(struct ctx *c) { struct bfs_attr a, in = {.size = 0}; int rc = find(c, "/b", &a); return rc ? rc : bfs_setattr(c->b, a.ino, BFS_SET_SIZE, &in, 0, &a); }
static int o_extend(struct ctx *c) { struct bfs_attr a, in = {.size = 30000}; int rc = find(c, "/b", &a); return rc ? rc : bfs_setattr(c->b, a.ino, BFS_SET_SIZE, &in, 0, &a); }

static u8 key(u8 *k, u8 n)
{
	fill(k, 32, n);
	return 32;
}
static int put_block(struct ctx *c, u8 n, size_t len)
{
	static u8 buf[64 << 10];
	struct bfs_attr ns;
	u8 k[32];
	int rc = find(c, "/ns", &ns);
	fill(buf, len, n);
	return rc ? rc : bfs_block_put(c->b, ns.ino, k, key(k, n), buf, len);
}
static int o_put(struct ctx *c) { return put_block(c, 2, 8192); }
static int o_put_big(struct ctx *c) { return put_block(c, 3, 50000); }
static int o_put_again(struct ctx *c) { return put_block(c, 1, 4096); }
static int o_delete(struct ctx *c)
{
	struct bfs_attr ns;
	u8 k[32];
	int rc = find(c, "/ns", &ns);
	return rc ? rc : bfs_block_delete(c->b, ns.ino, k, key(k, 1));
}
static int o_evict(struct ctx *c)
{
	u64 freed;
	int rc = bfs_evict(c->b, 1, &freed);
	return rc > 0 ? 0 : rc;
}
static int o_batch(struct ctx *c)
{
	struct bfs_attr a;
	int rc = bfs_batch_begin(c->b);
	if (rc) return rc;
	bfs_mkdir(c->b, 1, "p", 1, 0755, 0, 0, &a);
	bfs_mkdir(c->b, 1, "q", 1, 0755, 0, 0, &a);
	bfs_rename(c->b, 1, "a", 1, 1, "r", 1, 0);
	bfs_unlink(c->b, 1, "b", 1);
	bfs_symlink(c->b, 1, "t", 1, "target", 6, 0, 0, &a);
	return bfs_batch_commit(c->b);
}
static int o_batch_abort(struct ctx *c)
{
	struct bfs_attr a;
	int rc = bfs_batch_begin(c->b);
	if (rc) return rc;
	bfs_mkdir(c->b, 1, "p", 1, 0755, 0, 0, &a);
	bfs_unlink(c->b, 1, "a", 1);
	bfs_batch_abort(c->b);
	return -ECANCELED;
}
static int o_tick(struct ctx *c) { return bfs_tick(c->b); }
static int o_reclaim(struct ctx *c)
{
	int rc = bfs_apply_scan(c->b);
	return rc ? rc : bfs_reclaim(c->b);
}

/* operations of several acknowledged steps */
static int o_unlink_open(struct ctx *c)
{
	struct bfs_attr a;
	u64 fh;
	u8 buf[64];
	int rc = find(c, "/b", &a);
	if (rc || (rc = bfs_open(c->b, a.ino, O_RDONLY, &fh))) return rc;
	rc = bfs_unlink(c->b, 1, "b", 1);
	acknowledge(c);
	if (bfs_read(c->b, fh, 0, buf, sizeof buf) < 0 && a.size) {
		fprintf(stderr, "%s: unlinked file can't be read: %s\n", doing, bfs_errmsg());
		exit(1);
	}
	bfs_release(c->b, fh);
	return rc;
}
static int o_unlink_new(struct ctx *c) /* never closed, never there */
{
	struct bfs_attr a;
	u64 fh;
	int rc = bfs_create(c->b, 1, "u", 1, 0644, 0, 0, O_RDWR | O_EXCL, &a, &fh);
	if (rc) return rc;
	bfs_write(c->b, fh, 0, "12345", 5);
	rc = bfs_unlink(c->b, 1, "u", 1);
	bfs_write(c->b, fh, 5, "67890", 5);
	bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	return rc;
}
static int o_killed(struct ctx *c) /* writer killed in its first writing */
{
	struct bfs_attr a;
	u64 fh;
	int rc = bfs_create(c->b, 1, "k", 1, 0644, 0, 0, O_RDWR | O_EXCL, &a, &fh);
	if (rc) return rc;
	bfs_write(c->b, fh, 0, "12345", 5);
	bfs_flush(c->b, fh, true);
	bfs_release(c->b, fh);
	return 0;
}
static int o_rename_new(struct ctx *c) /* rename of a file being written seals it first */
{
	struct bfs_attr a;
	static u8 buf[6000];
	u64 fh;
	int rc = bfs_create(c->b, 1, "v.tmp", 5, 0644, 0, 0, O_RDWR | O_EXCL, &a, &fh);
	if (rc) return rc;
	fill(buf, sizeof buf, 77);
	bfs_write(c->b, fh, 0, buf, sizeof buf);
	rc = bfs_fsync(c->b, fh);
	if (!rc) { /* there from now on, whatever its state */
		c->durable[1] = a.ino;
		acknowledge(c);
		rc = bfs_rename(c->b, 1, "v.tmp", 5, 1, "v", 1, 0);
		acknowledge(c);
	}
	bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	c->durable[1] = 0;
	return rc;
}
/* written, synced, left open: the state of /o is its content at the sync */
static int o_open(struct ctx *c)
{
	struct bfs_attr a;
	if (c->fh) return -EEXIST;
	u64 fh;
	int rc = bfs_create(c->b, 1, "o", 1, 0644, 0, 0, O_RDWR | O_EXCL, &a, &fh);
	if (rc) return rc;
	struct loose *l = &c->hot;
	l->nold = l->nnew = 9000;
	fill(l->old, l->nold, 31);
	memcpy(l->new, l->old, l->nold);
	ssize_t w = bfs_write(c->b, fh, 0, l->old, l->nold);
	if (w == (ssize_t)l->nold && !(rc = bfs_fsync(c->b, fh))) {
		c->fh = fh, c->durable[0] = l->ino = a.ino;
		return 0;
	}
	bfs_release(c->b, fh);
	return rc ? rc : (int)w;
}
/* what is behind fh changes, at off: to these bytes, or to zeros */
static void change_on(struct ctx *c, u32 off, const u8 *p, u32 n)
{
	struct loose *l = &c->hot;
	memcpy(l->mid, l->new, sizeof l->mid);
	l->nmid = l->nnew;
	if (off > l->nnew) memset(l->new + l->nnew, 0, off - l->nnew);
	if (p) memcpy(l->new + off, p, n);
	else memset(l->new + off, 0, n);
	if (off + n > l->nnew) l->nnew = off + n;
	l->on = true;
}
/* written on without a sync: bytes old or new, never an error */
static int o_write_on(struct ctx *c)
{
	if (!c->fh) return -EBADF;
	u8 buf[6000];
	fill(buf, sizeof buf, 32);
	change_on(c, 6000, buf, sizeof buf);
	ssize_t w = bfs_write(c->b, c->fh, 6000, buf, sizeof buf);
	return w < 0 ? (int)w : 0;
}
static int o_punch_on(struct ctx *c)
{
	if (!c->fh) return -EBADF;
	change_on(c, 2000, NULL, 6700);
	return bfs_fallocate(c->b, c->fh, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2000, 6700);
}
static int o_zero_on(struct ctx *c)
{
	if (!c->fh) return -EBADF;
	change_on(c, 3000, NULL, 17000);
	return bfs_fallocate(c->b, c->fh, FALLOC_FL_ZERO_RANGE, 3000, 17000);
}
static int o_room_on(struct ctx *c)
{
	if (!c->fh) return -EBADF;
	u32 n = c->hot.nnew;
	change_on(c, n, NULL, 30000 > n ? 30000 - n : 0);
	return bfs_fallocate(c->b, c->fh, 0, 0, 30000);
}
static int o_close(struct ctx *c)
{
	if (!c->fh) return -EBADF;
	int rc = bfs_flush(c->b, c->fh, false);
	bfs_release(c->b, c->fh);
	c->fh = 0;
	if (!rc) c->durable[0] = 0, c->hot.on = false;
	return rc;
}
/* The process ends, in order or not, and the next one joins. */
static int join_again(struct ctx *c, bool clean)
{
	struct bfs_mem *m = c->b->m;
	struct bfs_opts o = {.uuid = {1, 2}, .boot = 7, .slot = -1};
	int rc = bfs_detach(c->b, clean);
	c->b = NULL;
	if (!rc) rc = bfs_attach(m, &o, &c->b);
	if (rc) {
		fprintf(stderr, "%s: detach and attach: %d (%s)\n", doing, rc, bfs_errmsg());
		exit(1);
	}
	c->fh = c->durable[0] = 0;
	c->hot.on = false;
	return 0;
}
static int o_detach(struct ctx *c) { return join_again(c, true); }
static int o_restart(struct ctx *c) { return join_again(c, false); }
/* many transactions that change nothing to be seen: the page log fills, pages come back */
static int o_churn(struct ctx *c)
{
	struct bfs_attr a;
	int rc = find(c, "/s", &a);
	for (int i = 0; i < 150 && !rc; i++) rc = bfs_setattr(c->b, a.ino, BFS_SET_UID, &a, 0, &a);
	return rc;
}
/* blocks until the pool is full and old ones have to go */
static int o_fill(struct ctx *c)
{
	int rc = 0;
	c->full = true;
	for (u8 i = 100; i < 120 && !rc; i++) rc = put_block(c, i, 60000);
	return rc;
}
static int o_overwrite(struct ctx *c) { return rewrite(c, "/a", 4096, 3000, 0, 21); }
static int o_append(struct ctx *c) { return rewrite(c, "/a", 12288, 10000, 0, 22); }
static int o_replace(struct ctx *c) { return rewrite(c, "/b", 0, 7000, O_TRUNC, 23); }
static int o_hole(struct ctx *c) { return rewrite(c, "/b", 40000, 100, 0, 24); }

/* /path: fallocate, then a write where there is room, close */
static int allocate(struct ctx *c, const char *path, int mode, u64 off, u64 len, u64 at, size_t n)
{
	static u8 buf[64 << 10];
	struct bfs_attr a;
	u64 fh;
	int rc = find(c, path, &a);
	if (rc || (rc = bfs_open(c->b, a.ino, O_WRONLY, &fh))) return rc;
	fill(buf, n, 25);
	if (!(rc = bfs_fallocate(c->b, fh, mode, off, len)) && n && bfs_write(c->b, fh, at, buf, n) < 0) {
		fprintf(stderr, "%s: no room where it was promised: %s\n", doing, bfs_errmsg());
		exit(1);
	}
	int f = bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	return rc ? rc : f;
}
static int o_room(struct ctx *c) { return allocate(c, "/b", 0, 3000, 30000, 0, 0); }
static int o_room_keep(struct ctx *c) { return allocate(c, "/a", FALLOC_FL_KEEP_SIZE, 2000, 20000, 15000, 2000); }
static int o_punch(struct ctx *c) { return allocate(c, "/a", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2000, 8000, 0, 0); }
static int o_punch_end(struct ctx *c) { return allocate(c, "/b", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096, 0, 0); }
static int o_zero(struct ctx *c) { return allocate(c, "/a", FALLOC_FL_ZERO_RANGE, 2000, 18000, 0, 0); }
static int nameless(struct ctx *c, size_t n, bool sync, const char *name)
{
	static u8 buf[64 << 10];
	struct bfs_attr a;
	u64 fh;
	int rc = bfs_tmpfile(c->b, 1, 0644, 0, 0, O_RDWR, &a, &fh);
	if (rc) return rc;
	fill(buf, n, 26);
	ssize_t w = bfs_write(c->b, fh, 0, buf, n);
	if (sync) rc = bfs_fsync(c->b, fh);
	if (name && w > 0 && !rc && !(rc = bfs_link(c->b, a.ino, 1, name, strlen(name), &a))) acknowledge(c);
	bfs_flush(c->b, fh, false);
	bfs_release(c->b, fh);
	return w < 0 ? (int)w : rc;
}
static int o_tmpfile(struct ctx *c) { return nameless(c, 5000, false, NULL); }
static int o_tmpfile_named(struct ctx *c) { return nameless(c, 9000, false, "x"); }
static int o_tmpfile_synced(struct ctx *c) { return nameless(c, 9000, true, "x"); }

/* A file that is written again may be found as the last write left it: any of the steps of
 * open(O_TRUNC), write, close, and of an unsynced write any mixture. */
static const struct op {
	const char *name;
	int (*f)(struct ctx *c);
	const char *loose; /* content of this file may be old, new or a mixture meanwhile */
	u8 rare;           /* so many transactions that few of its moments are looked at; 255: only comes before others */
} ops[] = {
	{"mkdir", o_mkdir, NULL, 0}, {"mkdir-in", o_mkdir2, NULL, 0}, {"create", o_create, NULL, 0}, {"create-big", o_create_big, NULL, 0},
	{"create-empty", o_create_empty, NULL, 0}, {"create-in", o_create_in, NULL, 0}, {"mknod", o_mknod, NULL, 0}, {"rename", o_rename, NULL, 0},
	{"rename-over", o_rename_over, NULL, 0}, {"rename-dir", o_rename_dir, NULL, 0}, {"rename-in", o_rename_in, NULL, 0},
	{"exchange", o_exchange, NULL, 0}, {"unlink", o_unlink, NULL, 0}, {"unlink-f", o_unlink_f, NULL, 0}, {"unlink-g", o_unlink_g, NULL, 0},
	{"rmdir", o_rmdir, NULL, 0}, {"link", o_link, NULL, 0}, {"symlink", o_symlink, NULL, 0}, {"symlink-long", o_symlink_long, NULL, 0},
	{"setxattr", o_setxattr, NULL, 0}, {"setxattr-big", o_setxattr_big, NULL, 0}, {"removexattr", o_removexattr, NULL, 0}, {"chmod", o_chmod, NULL, 0},
	{"truncate", o_truncate, "/a", 0}, {"truncate-0", o_truncate_0, "/b", 0}, {"extend", o_extend, "/b", 0}, {"put", o_put, NULL, 0},
	{"put-big", o_put_big, NULL, 0}, {"put-again", o_put_again, NULL, 0}, {"delete", o_delete, NULL, 0}, {"evict", o_evict, NULL, 0},
	{"batch", o_batch, NULL, 0}, {"batch-abort", o_batch_abort, NULL, 0}, {"tick", o_tick, NULL, 0}, {"reclaim", o_reclaim, NULL, 0},
	{"unlink-open", o_unlink_open, NULL, 0}, {"unlink-new", o_unlink_new, NULL, 0}, {"killed", o_killed, NULL, 0}, {"rename-new", o_rename_new, NULL, 0},
	{"open", o_open, NULL, 0}, {"write-on", o_write_on, NULL, 0}, {"close", o_close, NULL, 0}, {"overwrite", o_overwrite, "/a", 0},
	{"room", o_room, "/b", 0}, {"room-keep", o_room_keep, "/a", 0}, {"punch", o_punch, "/a", 0}, {"punch-end", o_punch_end, "/b", 0}, {"zero", o_zero, "/a", 0},
	{"room-on", o_room_on, NULL, 0}, {"punch-on", o_punch_on, NULL, 0}, {"zero-on", o_zero_on, NULL, 0},
	{"tmpfile", o_tmpfile, NULL, 0}, {"tmpfile-named", o_tmpfile_named, NULL, 0}, {"tmpfile-synced", o_tmpfile_synced, NULL, 0},
	{"append", o_append, "/a", 0}, {"replace", o_replace, "/b", 0}, {"hole", o_hole, "/b", 0},
	{"detach", o_detach, NULL, 0}, {"restart", o_restart, NULL, 0}, {"churn", o_churn, NULL, 60}, {"fill", o_fill, NULL, 255},
};
#define NOPS (sizeof ops / sizeof *ops)

/* ---- one image ------------------------------------------------------------------------------------ */
static struct rec run_mem, again_mem;
static u8 *image, *template_pool;
static struct ctx run; /* the sequence that is cut */
static char found[4096];

static void problem(void *arg, int severity, const char *code, const char *text)
{
	(void)arg;
	if (!severity) return;
	size_t n = strlen(found);
	snprintf(found + n, sizeof found - n, "  %s: %s\n", code, text);
}

static bool go_on;
static u64 failures;
static jmp_buf next_image;
static _Noreturn void fail(const char *what, const char *detail)
{
	FILE *f = fopen(keep, "w");
	if (f) {
		fwrite(image, 1, run_mem.size, f);
		fclose(f);
	}
	fprintf(stderr, "FAILED at image %llu: %s\n  %s\n%s\n", (unsigned long long)images, doing, what, detail);
	if (go_on) {
		failures++;
		longjmp(next_image, 1);
	}
	fprintf(stderr, "  the pool as the crash left it is in %s; --seed %llu\n", keep, (unsigned long long)seed);
	exit(1);
}

static void fsck(struct bfs_mem *m, const char *when)
{
	struct bfs_fsck_result res;
	found[0] = 0;
	int rc = bfs_fsck(m, true, problem, NULL, &res);
	if (rc) {
		char what[128];
		snprintf(what, sizeof what, "fsck %s: %d problems", when, rc);
		fail(what, found);
	}
}

static const struct bfs_opts crash_opts = {.uuid = {1, 2}, .boot = 7, .slot = -1};

static bool has_line(const char *text, const char *line, size_t n)
{
	for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
		if (!strncmp(p, line, n) && p[n] == '\n') return true;
	return false;
}

/* In a full pool blocks may go at any time, between the state before and the one after too. */
static bool but_for_evicted(const char *s, const char *before, const char *after)
{
	const char *part[3] = {s, before, after};
	for (int k = 0; k < 3; k++)
		for (const char *p = part[k], *e; *p; p = e + (*e == '\n')) {
			e = p + strcspn(p, "\n");
			size_t n = (size_t)(e - p);
			bool block = !strncmp(p, "/ns/", 4) || memmem(p, n, " block ", 7);
			if (k == 0 && !has_line(before, p, n) && !has_line(after, p, n)) return false;
			if (k && !block && has_line(before, p, n) && has_line(after, p, n) && !has_line(s, p, n)) return false;
		}
	return true;
}

static bool one_of(const char *s, char **state, u32 at, u32 last)
{
	for (u32 i = at; s && i <= last; i++)
		if (!strcmp(s, state[i])) return true;
	return s && run.full && but_for_evicted(s, state[at], state[last]);
}

/* Exactly one of the states, or, while a file is rewritten in place, one of them with old and
 * new bytes mixed in that file. */
static void compare(struct bfs *b, u32 at, u32 last)
{
	char *m = NULL, *s = listing(b, &run, false, false);
	bool loose = run.hot.ino || run.cold.ino;
	if (!s && !loose) fail("the joined pool shows", wrong);
	if (!one_of(s, run.state, at, last) && loose && !(m = listing(b, &run, false, true))) fail("the joined pool shows", wrong);
	if (!one_of(s, run.state, at, last) && !one_of(m, run.mixed, at, last)) {
		static char text[4 * TEXT];
		snprintf(text, sizeof text, "found:\n%sexpected:\n%s%s%s", m ? m : s, m ? run.mixed[at] : run.state[at], last > at ? "or:\n" : "", last > at ? (m ? run.mixed : run.state)[last] : "");
		fail("neither the state before nor the one after", text);
	}
	free(s), free(m);
}

static void cut_again(struct rec *r, const char *what);
static u64 again_at;

static void check_image(u32 at, u32 last, u64 *rng)
{
	struct bfs *b = NULL;
	struct bfs_opts o = crash_opts;
	images++;
	u8 *own = image;
	if (go_on && setjmp(next_image)) {
		image = own;
		return;
	}
	if (*rng % 2) o.boot = 8; /* another boot, or only another process */
	bool twice = next_rnd(rng) % 16 == 0;
	rec_load(&again_mem, image, next_rnd(rng) | 1);
	fsck(&again_mem.mem, "as the crash left it");
	if (twice) { /* the attach is cut off too */
		again_at = next_rnd(rng) % 60;
		again_mem.cut = cut_again;
	}
	int rc = bfs_attach(&again_mem.mem, &o, &b);
	again_mem.cut = NULL;
	attaches++;
	if (rc) fail("attach", bfs_errmsg());
	fsck(&again_mem.mem, "after the attach");
	compare(b, at, last);
	rec_audit(&again_mem);
	if ((rc = bfs_detach(b, true))) fail("detach", bfs_errmsg());
	if (images % 8 == 0) fsck(&again_mem.mem, "after the detach");
}

/* ---- building images --------------------------------------------------------------------------------- */
enum { M_DURABLE, M_ALL, M_RANDOM, M_LAST };

static void torn(u8 *line, const u64 *w, u64 mask)
{
	for (int i = 0; i < 8; i++)
		if (mask >> i & 1) memcpy(line + 8 * i, &w[i], 8);
}

static void build(struct rec *r, u8 *out, int mode, u64 *rng)
{
	memcpy(out, r->dur, r->size);
	if (mode == M_DURABLE) return;
	u64 p = next_rnd(rng) % 100; /* of a line to arrive */
	/* a line's stores arrive in order: one that is skipped ends that line */
	static u8 *stop;
	if (!stop) stop = calloc(1, r->lines);
	for (u32 i = 0; i < r->npend; i++) {
		u32 l = r->pend[i].line;
		u8 *to = out + (size_t)l * 64;
		if (stop[l]) continue;
		bool all = mode == M_ALL || (mode == M_LAST && i + 1 < r->npend);
		if (all) memcpy(to, r->pend[i].w, 64);
		else if (mode == M_LAST || next_rnd(rng) % 100 < 20) torn(to, r->pend[i].w, next_rnd(rng)), stop[l] = 1;
		else if (next_rnd(rng) % 100 < p) memcpy(to, r->pend[i].w, 64);
		else stop[l] = 1;
	}
	for (u32 i = 0; i < r->ndirty; i++) { /* stored, not flushed: may be written back at any time */
		u32 l = r->dlist[i];
		u64 w[8];
		if (stop[l]) continue;
		memcpy(w, r->cur + (size_t)l * 64, 64);
		if (mode == M_ALL) torn(out + (size_t)l * 64, w, 255);
		else if (mode == M_RANDOM && next_rnd(rng) % 100 < p) torn(out + (size_t)l * 64, w, next_rnd(rng) % 4 ? 255 : next_rnd(rng));
	}
	for (u32 i = 0; i < r->npend; i++) stop[r->pend[i].line] = 0;
}

static u64 rng_images = 88172645463325252ull;
static u32 per_cut = 1, one_in = 1;

static void cut_here(struct rec *r, const char *what)
{
	char keep_doing[256];
	if (one_in > 1 && next_rnd(&rng_images) % one_in) return;
	struct rec *m = r;
	(void)what;
	snprintf(keep_doing, sizeof keep_doing, "%.200s", doing);
	u32 at = run.at, last = at + 1 < run.nstates ? at + 1 : at;
	if (r->npend || r->ndirty) {
		static const int modes[] = {M_ALL, M_RANDOM, M_RANDOM, M_LAST, M_RANDOM};
		for (u32 i = 0; i < per_cut; i++) {
			int mode = modes[next_rnd(&rng_images) % 5];
			snprintf(doing, sizeof doing, "%s, cut %llu (%s) mode %d", keep_doing, (unsigned long long)r->cuts, what, mode);
			build(m, image, mode, &rng_images);
			check_image(at, last, &rng_images);
		}
	} else {
		snprintf(doing, sizeof doing, "%s, cut %llu (%s) durable", keep_doing, (unsigned long long)r->cuts, what);
		build(m, image, M_DURABLE, &rng_images);
		check_image(at, last, &rng_images);
	}
	snprintf(doing, sizeof doing, "%s", keep_doing);
}

/* during an attach of a crash image: one image of it, which has to come up with the same states */
static void cut_again(struct rec *r, const char *what)
{
	static struct rec third;
	static u8 *image2;
	struct bfs *b = NULL;
	struct bfs_opts o = crash_opts;
	if (again_at--) return;
	r->cut = NULL;
	if (!third.cur) rec_init(&third, r->size), image2 = malloc(r->size);
	build(r, image2, next_rnd(&rng_images) % 2 ? M_RANDOM : M_ALL, &rng_images);
	u8 *keep_image = image;
	image = image2;
	second++, images++;
	rec_load(&third, image2, next_rnd(&rng_images) | 1);
	fsck(&third.mem, "as the second crash left it");
	int rc = bfs_attach(&third.mem, &o, &b);
	if (rc) fail("attach after the second crash", bfs_errmsg());
	fsck(&third.mem, "after the second attach");
	compare(b, run.at, run.at + 1 < run.nstates ? run.at + 1 : run.at);
	bfs_detach(b, true);
	image = keep_image;
	(void)what;
}

/* ---- sequences ---------------------------------------------------------------------------------------------- */
static void open_run(struct ctx *c, u64 rng)
{
	struct bfs_opts o = {.uuid = {1, 2}, .boot = 7, .slot = -1};
	struct ctx fresh = {.learning = c->learning, .nstates = c->nstates};
	memcpy(fresh.state, c->state, sizeof fresh.state);
	memcpy(fresh.mixed, c->mixed, sizeof fresh.mixed);
	*c = fresh;
	rec_load(&run_mem, template_pool, rng);
	if (bfs_attach(&run_mem.mem, &o, &c->b)) {
		fprintf(stderr, "attach of the first pool: %s\n", bfs_errmsg());
		exit(1);
	}
}

/* content of the file that the operation writes in place, before and after it */
static u32 slurp(struct ctx *c, const char *path, u8 *buf)
{
	struct bfs_attr a;
	u64 fh;
	if (find(c, path, &a) || !S_ISREG(a.mode) || bfs_open(c->b, a.ino, O_RDONLY, &fh)) return 0;
	ssize_t n = bfs_read(c->b, fh, 0, buf, sizeof c->cold.old);
	bfs_release(c->b, fh);
	return n < 0 ? 0 : (u32)n;
}

static void learn(struct ctx *c, const struct op *o, bool after)
{
	struct loose *l = &c->cold;
	struct bfs_attr a;
	if (!o->loose || find(c, o->loose, &a)) return;
	l->ino = a.ino;
	l->nnew = slurp(c, o->loose, l->new);
	if (!after) l->nold = l->nnew, memcpy(l->old, l->new, sizeof l->old);
}

static struct ctx learned;
static void sequence(const u32 *seq, u32 n)
{
	if (ops[seq[n - 1]].rare == 255) return;
	u64 rng = 0x2545F4914F6CDD1Dull + seq[0] * 77 + n;
	char name[128] = "";
	for (u32 i = 0; i < n; i++) snprintf(name + strlen(name), sizeof name - strlen(name), "%s%s", i ? "," : "", ops[seq[i]].name);
	snprintf(doing, sizeof doing, "%s", name);
	/* first without cuts, to learn the states; then again */
	for (int pass = 0; pass < 2; pass++) {
		snprintf(doing, sizeof doing, "%s", name);
		run.learning = !pass;
		if (!pass) run.nstates = 0;
		open_run(&run, rng);
		for (u32 i = 0; i + 1 < n; i++) {
			run.learning = false; /* the inner steps of what comes before don't count */
			ops[seq[i]].f(&run);
			run.at = 0;
		}
		run.learning = !pass;
		if (!pass) learn(&run, &ops[seq[n - 1]], false), acknowledge(&run);
		else run.cold = learned.cold, run.cold.nnew = run.cold.nold, acknowledge(&run), run.cold.nnew = learned.cold.nnew, run.at = 0;
		run_mem.cut = pass ? cut_here : NULL;
		one_in = ops[seq[n - 1]].rare;
		run_mem.cuts = 0;
		int rc = ops[seq[n - 1]].f(&run);
		run_mem.cut = NULL;
		if (!pass) {
			learn(&run, &ops[seq[n - 1]], true);
			acknowledge(&run);
			learned = run;
			if (rc < 0 && !run.full && run.nstates == 2 && strcmp(run.state[0], run.state[1])) {
				fprintf(stderr, "%s: returned %d (%s) and changed something:\n%s\n%s\n", name, rc, bfs_errmsg(), run.state[0], run.state[1]);
				exit(1);
			}
		} else { /* it has returned: the state behind it and no other */
			run.at = run.nstates - 1;
			run.cold.ino = 0;
			if (!run.fh) run.hot.ino = 0;
			snprintf(doing, sizeof doing, "%s, returned", name);
			for (int mode = M_DURABLE; mode <= M_ALL; mode++) {
				build(&run_mem, image, mode, &rng_images);
				check_image(run.at, run.at, &rng_images);
			}
		}
		rec_audit(&run_mem);
		snprintf(doing, sizeof doing, "%s, end of the process", name);
		if (run.fh) bfs_release(run.b, run.fh);
		bfs_detach(run.b, false);
	}
	for (u32 i = 0; i < run.nstates; i++) free(run.state[i]), free(run.mixed[i]);
}

/* of operations that say nothing alone: too rare among random ones */
static const char *const always[] = {
	"open,write-on", "open,punch-on", "open,zero-on", "open,room-on", "open,write-on,punch-on", "open,punch-on,write-on", "open,punch-on,close", "open,zero-on,close",
	"create-big,unlink-g,room", "create-big,unlink-g,zero", "create-big,unlink-g,room-keep", "punch,overwrite", "punch,room-keep", "fill,tmpfile-named",
};
static void named_sequence(const char *names)
{
	u32 n = 0, s[3];
	char buf[256], *save = NULL;
	snprintf(buf, sizeof buf, "%s", names);
	for (char *p = strtok_r(buf, ",", &save); p && n < 3; p = strtok_r(NULL, ",", &save)) {
		for (s[n] = 0; s[n] < NOPS && strcmp(ops[s[n]].name, p); s[n]++) {}
		if (s[n] == NOPS) exit((fprintf(stderr, "no operation %s\n", p), 2));
		n++;
	}
	sequence(s, n);
}

/* /a three granules with an attribute, /b 5000 bytes, /d/e, a symlink, a namespace with a block */
static void make_template(void)
{
	struct bfs_mkfs_params p = {
		.inodes = 64, .nhosts = 2, .rows = 8, .ring_entries = 16, .region_granules = 64, .chunk_bytes = CHUNK, .meta_pages = POOL_PAGES, .incarnation = 0x1234567,
	};
	size_t size = 8192 + 2 * 12288 + (size_t)POOL_PAGES * 4096 + (size_t)DATA_GRANULES * 4096 + 8192;
	rec_init(&run_mem, size);
	rec_init(&again_mem, size);
	image = malloc(size), template_pool = calloc(1, size);
	rec_load(&run_mem, template_pool, 99);
	p.size_bytes = size;
	struct bfs_opts o = {.uuid = {1, 2}, .boot = 7, .slot = -1};
	struct ctx c = {0};
	struct bfs_attr a, d;
	u64 ns;
	snprintf(doing, sizeof doing, "first pool");
	int rc = bfs_mkfs(&run_mem.mem, &p, NULL);
	if (!rc) rc = bfs_attach(&run_mem.mem, &o, &c.b);
	if (!rc) rc = put_file(&c, 1, "a", 12288, 1);
	if (!rc) rc = put_file(&c, 1, "b", 5000, 2);
	if (!rc) rc = bfs_mkdir(c.b, 1, "d", 1, 0755, 0, 0, &d);
	if (!rc) rc = bfs_mkdir(c.b, d.ino, "e", 1, 0755, 0, 0, &a);
	if (!rc) rc = bfs_symlink(c.b, 1, "s", 1, "a", 1, 0, 0, &a);
	if (!rc) rc = bfs_ns_create(c.b, "ns", &ns);
	if (!rc) rc = put_block(&c, 1, 4096);
	if (!rc) rc = find(&c, "/a", &a);
	if (!rc) rc = bfs_setxattr(c.b, a.ino, "user.a", "1", 1, 0);
	if (!rc) rc = bfs_detach(c.b, true);
	if (rc) {
		fprintf(stderr, "first pool: %d (%s)\n", rc, bfs_errmsg());
		exit(1);
	}
	rec_audit(&run_mem);
	if (run_mem.npend || run_mem.ndirty) {
		fprintf(stderr, "first pool: %u lines not fenced, %u not flushed after a clean detach\n", run_mem.npend, run_mem.ndirty);
		exit(1);
	}
	memcpy(template_pool, run_mem.dur, size);
	memcpy(image, template_pool, size);
	rec_load(&again_mem, template_pool, 1);
	fsck(&again_mem.mem, "of the first pool");
}

/* ---- mutants -------------------------------------------------------------------------------------------------- */
#ifdef BFS_MUTANTS
int bfs_mutant;
static const struct { int id; const char *name; } mutants[] = {
#define M(x) {x, #x}
	M(MUT_PAGES_NO_FLUSH), M(MUT_ONE_ROOT_LINE), M(MUT_ROOT_CLEARED), M(MUT_MAP_BIT_EARLY),
	M(MUT_REUSE_UNCONFIRMED), M(MUT_DATA_NO_FLUSH), M(MUT_ROW_ONE_COPY),
	/* not MUT_ROOT_NO_FENCE: one host's next fresh read of the claims fences as well */
#undef M
};

/* each in a process of its own, which has to fail */
static int run_mutants(char *self)
{
	int survived = 0, n = (int)(sizeof mutants / sizeof *mutants);
	for (int i = 0; i < n; i++) {
		char id[16];
		snprintf(id, sizeof id, "%d", mutants[i].id);
		pid_t pid = fork();
		if (!pid) {
			if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(9);
			execl(self, self, "--mutant", id, "--images", "60000", "--keep", "/dev/null", (char *)NULL);
			_exit(9);
		}
		int status = 0;
		waitpid(pid, &status, 0);
		bool noticed = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 1);
		printf("t_images: %-24s %s\n", mutants[i].name, noticed ? "noticed" : "NOT NOTICED");
		fflush(stdout);
		survived += !noticed;
	}
	return survived != 0;
}
#endif

int main(int argc, char **argv)
{
#ifdef __SANITIZE_ADDRESS__
	u64 want = 2000; /* memory errors, not orders of stores */
#else
	u64 want = 12000;
#endif
	bool full = false;
	const char *one = NULL;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--full")) full = true;
		else if (!strcmp(argv[i], "--go-on")) go_on = true;
#ifdef BFS_MUTANTS
		else if (!strcmp(argv[i], "--mutants")) return run_mutants(argv[0]);
		else if (i + 1 < argc && !strcmp(argv[i], "--mutant")) bfs_mutant = atoi(argv[++i]);
#endif
		else if (i + 1 < argc && !strcmp(argv[i], "--images")) want = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--keep")) keep = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--sequence")) one = argv[++i];
		else return fprintf(stderr, "usage: t_images [--images N] [--full] [--seed S] [--sequence a,b,c] [--keep FILE] [--go-on]\n"), 2;
	}
	rng_images ^= seed * 0x9E3779B97F4A7C15ull;
	u64 pick = rng_images | 1, nseq = 0;
	struct timespec t0, t1;
	clock_gettime(CLOCK_MONOTONIC, &t0);
	make_template();
	u32 s[3];
	if (one) {
		per_cut = 20;
		named_sequence(one);
		nseq = 1;
	} else {
		for (s[0] = 0; s[0] < NOPS; s[0]++, nseq++) sequence(s, 1);
		for (u32 i = 0; i < sizeof always / sizeof *always; i++, nseq++) named_sequence(always[i]);
		if (full) { /* every sequence of two and of three */
			for (u32 i = 0; i < NOPS * NOPS; i++, nseq++) s[0] = i / NOPS, s[1] = i % NOPS, sequence(s, 2);
			for (u32 i = 0; i < NOPS * NOPS * NOPS; i++, nseq++) s[0] = i / NOPS / NOPS, s[1] = i / NOPS % NOPS, s[2] = i % NOPS, sequence(s, 3);
		} else {
			for (; images < want; nseq++) {
				for (int i = 0; i < 3; i++) s[i] = (u32)(next_rnd(&pick) % NOPS);
				sequence(s, 2 + nseq % 2);
			}
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &t1);
	double sec = (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9;
	printf("t_images: %llu images of %llu sequences, %llu attaches, %llu of them cut off again; seed %llu; %.1f s, %.0f images/s\n", (unsigned long long)images, (unsigned long long)nseq, (unsigned long long)attaches,
	       (unsigned long long)second, (unsigned long long)seed, sec, (double)images / sec);
	if (failures) return fprintf(stderr, "%llu images failed\n", (unsigned long long)failures), 1;
	if (unannounced) return fprintf(stderr, "%llu lines were stored to without mm_dirty\n", (unsigned long long)unannounced), 1;
	return 0;
}
