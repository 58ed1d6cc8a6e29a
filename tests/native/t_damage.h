/* The pool that t_fsck and t_repair damage, and the ways to damage it: one thing each, with the
 * checksum made good again, so that the damage reaches the checks behind it. */
#ifndef T_DAMAGE_H
#define T_DAMAGE_H

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "../../belugafs/_core/internal.h"

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, bfs_errmsg()); exit(1); } } while (0)

static u64 seed = 1;
static u64 next_rnd(u64 *s)
{
	*s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
	return *s;
}
static u64 rnd(void) { return next_rnd(&seed); }

/* ---- memory: an exact size, so that the sanitizer sees what lies behind it ------------------- */
static struct bfs_mem_ops ops;
static u64 fixed_rand = 0x9E3779B97F4A7C15ull, fixed_now = 1700000000000000000ull;
static u64 f_rand(struct bfs_mem *m) { (void)m; return next_rnd(&fixed_rand); }
static u64 f_now(struct bfs_mem *m) { (void)m; return fixed_now += 1000000; }

static struct bfs_mem mem_of(u8 *p, size_t n)
{
	ops = bfs_ops_coherent;
	ops.rand64 = f_rand, ops.now_ns = f_now;
	return (struct bfs_mem){.ops = &ops, .base = p, .size = n, .coherent = true};
}

/* ---- a pool with something of everything ------------------------------------------------------- */
#define SIZE (6u << 20)
static const struct bfs_opts opts = {.uuid = {1, 2}, .boot = 7, .slot = -1};

static void fill(u8 *p, size_t n, u64 s)
{
	s = s * 0x9E3779B97F4A7C15ull | 1;
	for (size_t i = 0; i < n; i++) p[i] = (u8)(next_rnd(&s) >> 32);
}

static void file(struct bfs *b, u64 dir, const char *name, size_t n, u64 s)
{
	u8 *buf = malloc(n + 1);
	struct bfs_attr a;
	u64 fh;
	fill(buf, n, s);
	CHECK(!bfs_create(b, dir, name, strlen(name), 0644, 1000, 100, O_WRONLY | O_EXCL, &a, &fh));
	if (n) CHECK(bfs_write(b, fh, 0, buf, n) == (ssize_t)n);
	CHECK(!bfs_flush(b, fh, false));
	CHECK(!bfs_release(b, fh));
	free(buf);
}

/* a file of several extents with holes between them */
static void sparse(struct bfs *b, u64 dir, const char *name)
{
	u8 buf[4096];
	struct bfs_attr a;
	u64 fh;
	CHECK(!bfs_create(b, dir, name, strlen(name), 0600, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
	for (u64 i = 0; i < 6; i++) {
		fill(buf, sizeof buf, i + 50);
		CHECK(bfs_write(b, fh, i * 40960, buf, sizeof buf) == (ssize_t)sizeof buf);
	}
	CHECK(!bfs_flush(b, fh, false));
	CHECK(!bfs_release(b, fh));
}

static void delete_some(struct bfs *b)
{
	struct bfs_attr a;
	CHECK(!bfs_lookup(b, 1, "ns", 2, &a));
	for (u64 i = 0; i < 24; i += 5) {
		u8 key[32];
		fill(key, sizeof key, i);
		CHECK(!bfs_block_delete(b, a.ino, key, sizeof key));
	}
}

static void populate(struct bfs *b)
{
	struct bfs_attr a, d;
	char name[300];
	static u8 buf[200 << 10];
	u64 ns;
	CHECK(!bfs_mkdir(b, 1, "d", 1, 0755, 0, 0, &d));
	u64 dir = d.ino;
	CHECK(!bfs_mkdir(b, dir, "e", 1, 0700, 1000, 100, &a));
	u64 sub = a.ino;
	file(b, sub, "deep", 5000, 1);
	file(b, 1, "empty", 0, 0);
	file(b, 1, "small", 100, 2);
	file(b, 1, "large", 150000, 3);
	sparse(b, 1, "sparse");
	for (int i = 0; i < 140; i++) { /* records of several leaves, buckets that overflow */
		int n = snprintf(name, sizeof name, "%0*d", i % 7 ? 20 + i : 200, i);
		CHECK(!bfs_symlink(b, dir, name, (size_t)n, "target", 6, 0, 0, &a));
	}
	for (int i = 0; i < 140; i += 3) {
		int n = snprintf(name, sizeof name, "%0*d", i % 7 ? 20 + i : 200, i);
		CHECK(!bfs_unlink(b, dir, name, (size_t)n));
	}
	memset(name, 'x', 200);
	CHECK(!bfs_symlink(b, 1, "long", 4, name, 200, 0, 0, &a));
	CHECK(!bfs_mknod(b, 1, "fifo", 4, S_IFIFO | 0600, 0, 0, 0, &a));
	CHECK(!bfs_lookup(b, 1, "small", 5, &a));
	CHECK(!bfs_link(b, a.ino, dir, "second", 6, &a));
	CHECK(!bfs_link(b, a.ino, sub, "third", 5, &a));
	CHECK(!bfs_setxattr(b, a.ino, "user.a", "value", 5, 0));
	fill(buf, 9000, 9);
	CHECK(!bfs_setxattr(b, dir, "user.big", buf, 9000, 0));
	CHECK(!bfs_setxattr(b, dir, "user.b", "", 0, 0));
	CHECK(!bfs_ns_create(b, "ns", &ns));
	for (u64 i = 0; i < 24; i++) {
		u8 key[32];
		size_t n = i % 4 ? 4096 * (1 + i % 5) : 60000 + 1000 * i;
		fill(key, sizeof key, i);
		fill(buf, n, i + 1000);
		CHECK(!bfs_block_put(b, ns, key, sizeof key, buf, n));
	}
}

static struct bfs *begin(struct bfs_mem *m)
{
	struct bfs_mkfs_params p = {.size_bytes = SIZE, .inodes = 256, .nhosts = 3, .rows = 8, .ring_entries = 64, .region_granules = 64, .chunk_bytes = 4096, .meta_pages = 400, .incarnation = 0xabcdef, .label = "test"};
	struct bfs *b;
	memset(m->base, 0, m->size);
	CHECK(!bfs_mkfs(m, &p, NULL));
	CHECK(!bfs_attach(m, &opts, &b));
	populate(b);
	return b;
}

static void make(struct bfs_mem *m)
{
	struct bfs *b = begin(m);
	/* a second host, of which nothing is heard any more: what is freed from now on waits for it */
	struct bfs_opts o2 = {.uuid = {3, 4}, .boot = 7, .slot = -1, .follower = true};
	struct bfs *b2;
	CHECK(!bfs_attach(m, &o2, &b2));
	CHECK(!bfs_detach(b2, false));
	delete_some(b);
	CHECK(!bfs_detach(b, true));
}

/* The same after a crash of its host: a first writing that was synced, one that wasn't, one whose writer was
 * killed, a rewriting, a file that was deleted while it was open. */
static void crash(struct bfs_mem *m)
{
	static u8 buf[20000];
	struct bfs *b;
	struct bfs_attr a;
	u64 fh;
	CHECK(!bfs_attach(m, &opts, &b));
	fill(buf, sizeof buf, 300);
	CHECK(!bfs_create(b, 1, "new", 3, 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
	CHECK(bfs_write(b, fh, 0, buf, 5000) == 5000);
	CHECK(!bfs_create(b, 1, "synced", 6, 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
	CHECK(bfs_write(b, fh, 0, buf, 20000) == 20000 && !bfs_fsync(b, fh));
	CHECK(!bfs_create(b, 1, "killed", 6, 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
	CHECK(bfs_write(b, fh, 0, buf, 7000) == 7000 && !bfs_flush(b, fh, true) && !bfs_release(b, fh));
	CHECK(!bfs_lookup(b, 1, "large", 5, &a) && !bfs_open(b, a.ino, O_WRONLY, &fh));
	CHECK(bfs_write(b, fh, 8192, buf, 9000) == 9000 && !bfs_fsync(b, fh));
	file(b, 1, "gone", 6000, 31);
	CHECK(!bfs_lookup(b, 1, "gone", 4, &a) && !bfs_open(b, a.ino, O_RDONLY, &fh));
	CHECK(!bfs_unlink(b, 1, "gone", 4));
	CHECK(!bfs_detach(b, false));
}

/* ---- findings ---------------------------------------------------------------------------------------- */
struct found {
	char codes[4096]; /* of problems, each once, "a b c " */
	char notes[4096];
	char text[8192];
	u64 n;
};
static void note_code(char *list, size_t size, const char *code)
{
	char x[64];
	snprintf(x, sizeof x, "%s ", code);
	for (const char *p = list; (p = strstr(p, x)); p++)
		if (p == list || p[-1] == ' ') return;
	if (strlen(list) + strlen(x) < size) strcat(list, x);
}
static void finding(void *arg, int severity, const char *code, const char *text)
{
	struct found *f = arg;
	note_code(severity ? f->codes : f->notes, sizeof f->codes, code);
	size_t n = strlen(f->text);
	if (n + 1 < sizeof f->text) snprintf(f->text + n, sizeof f->text - n, "  %s%s: %s\n", severity ? "" : "(note) ", code, text);
	f->n += severity > 0;
}

static struct found *fsck(struct bfs_mem *m, bool data)
{
	static struct found f;
	struct bfs_fsck_result r;
	memset(&f, 0, sizeof f);
	int rc = bfs_fsck(m, data, finding, &f, &r);
	CHECK(rc >= 0 && (u64)rc == r.problems);
	return &f;
}

/* ---- breaking one thing --------------------------------------------------------------------------------- */
struct env {
	struct bfs_mem m;
	struct bfs *b; /* attached for reading: finds places, writes nothing */
	struct rd r;
	struct bfs_root *root;
	u64 small, dir, sub, ns, block, large, sparse, fifo, link, deep;
	u64 fresh, synced, killed; /* after a crash */
};

static void good_page(struct env *e, void *p)
{
	struct bfs_phead *h = (void *)((uintptr_t)e->m.base + e->b->sb.meta_off + ((uintptr_t)p - (uintptr_t)e->m.base - e->b->sb.meta_off) / BFS_PAGE * BFS_PAGE);
	h->csum = pg_csum(e->b, h);
}
static struct bfs_phead *head(struct env *e, const void *p)
{
	return (void *)((uintptr_t)e->m.base + e->b->sb.meta_off + ((uintptr_t)p - (uintptr_t)e->m.base - e->b->sb.meta_off) / BFS_PAGE * BFS_PAGE);
}
static struct bfs_obj *obj(struct env *e, u64 ino)
{
	int rc = 0;
	const struct bfs_obj *o = ob_slot(&e->r.v, INO_SLOT(ino), &rc);
	CHECK(o);
	return (void *)(uintptr_t)o;
}
/* the record with exactly this key, in place */
static struct bfs_rec *rec_in(struct env *e, struct bfs_ptr p, u32 level, struct bfs_key k)
{
	int rc = 0;
	if (!level) {
		const struct bfs_bleaf *l = pg_get(e->b, p, BFS_PK_BLEAF, &rc);
		for (u32 i = 0; l && i < l->h.count; i++)
			if (!key_cmp(&l->r[i].k, &k)) return (void *)(uintptr_t)&l->r[i];
		return NULL;
	}
	const struct bfs_bnode *n = pg_get(e->b, p, BFS_PK_BNODE, &rc);
	for (u32 i = 0; n && i < n->h.count; i++) {
		struct bfs_rec *r = rec_in(e, n->e[i].p, level - 1, k);
		if (r) return r;
	}
	return NULL;
}
static struct bfs_rec *first(struct env *e, u64 kind)
{
	struct bfs_rec r;
	CHECK(!bt_seek(&e->r.v, KEY(kind << 56, 0, 0), &r) && r.k.a >> 56 == kind);
	struct bfs_rec *p = rec_in(e, e->root->bt, e->root->bt_height, r.k);
	CHECK(p);
	return p;
}
static struct bfs_rec *rec_of_slot(struct env *e, u64 kind, u32 slot)
{
	struct bfs_rec r;
	CHECK(bt_range(&e->r.v, KEY(BFS_T(kind, slot), 0, 0), &r, 1) == 1);
	return rec_in(e, e->root->bt, e->root->bt_height, r.k);
}
/* the entry of an object's first link, in place */
static struct bfs_ent *ent(struct env *e, u64 ino, struct bfs_bucket **bucket, u32 *index)
{
	const struct bfs_obj *o = obj(e, ino);
	u64 at = (u64)(((unsigned __int128)(o->hash << 16) * e->b->sb.hash_buckets) >> 64);
	int rc = 0;
	const struct bfs_bucket *k = rx_get(e->b, e->root->hash, e->b->h_hash, at, BFS_PK_HASH, &rc);
	for (; k; k = k->more.page ? pg_get(e->b, k->more, BFS_PK_HASH, &rc) : NULL)
		for (u32 i = 0; i < k->h.count; i++) {
			const struct bfs_ent *x = (const void *)(k->heap + k->off[i]);
			if (((u64)x->cookie_hi << 32 | x->cookie_lo) == o->cookie) {
				*bucket = (void *)(uintptr_t)k, *index = i;
				return (void *)(uintptr_t)x;
			}
		}
	CHECK(!"entry");
	return NULL;
}
static void *leaf(struct env *e, struct bfs_ptr p, u32 h, u64 i, int kind)
{
	int rc = 0;
	const void *x = rx_get(e->b, p, h, i, kind, &rc);
	CHECK(x);
	return (void *)(uintptr_t)x;
}
static struct bfs_log *some_log(struct env *e)
{
	int rc = 0;
	for (u32 i = 0; i < e->b->log_cap; i++) {
		const struct bfs_log *l = rx_get(e->b, e->root->log, e->b->h_log, i, BFS_PK_LOG, &rc);
		if (l && l->h.count > 1) return (void *)(uintptr_t)l;
	}
	CHECK(!"log");
	return NULL;
}
static void seal_super(struct bfs_super *s) { s->csum = bfs_xxh(s, sizeof *s - 8, 0); }
static struct bfs_super *sup(struct env *e, int i) { return (void *)(e->m.base + 4096 * i); }
static struct bfs_region *region0(struct env *e) { return leaf(e, e->root->region, e->b->h_region, 0, BFS_PK_REGION); }
static void flip_page(struct env *e, u32 page) { ((u8 *)pg_addr(e->b, page))[2000] ^= 0x10; }

#define B(name) static void name(struct env *e)
#define OBJ(field, ino, change) struct bfs_obj *o = obj(e, e->ino); o->field change; good_page(e, o)
B(b_super_a) { e->m.base[100] ^= 1; }
B(b_super_both) { e->m.base[100] ^= 1, e->m.base[4096 + 100] ^= 1; }
B(b_super_differs) { sup(e, 1)->created_s++; seal_super(sup(e, 1)); }
B(b_super_geometry) { for (int i = 0; i < 2; i++) sup(e, i)->meta_pages = 0x7fffffff, seal_super(sup(e, i)); }
B(b_super_version) { for (int i = 0; i < 2; i++) sup(e, i)->version_major = 2, seal_super(sup(e, i)); }
B(b_super_feature) { for (int i = 0; i < 2; i++) sup(e, i)->incompat = 1ull << 40, seal_super(sup(e, i)); }
B(b_roots) { for (u32 i = 2; i < 4; i++) host_line(e->b, 0, i)->w[1] ^= 1; }
B(b_no_roots) { for (u32 i = 2; i < 4; i++) memset(host_line(e->b, 0, i), 0, 64); }
B(b_root_twice)
{
	struct bfs_line *a = host_line(e->b, 0, 2), *z = host_line(e->b, 0, 3), *hi = a->w[1] > z->w[1] ? a : z, l = *hi;
	l.w[2] = 7;
	bfs_line_seal(&l, e->b->sb.incarnation, 1, 2);
	*host_line(e->b, 1, 2) = l;
}
B(b_root_page) { flip_page(e, e->r.s.root.page); }
B(b_root_tag)
{
	for (u32 i = 2; i < 4; i++) {
		struct bfs_line *l = host_line(e->b, 0, i);
		l->w[3] = 0x7fffffff;
		bfs_line_seal(l, e->b->sb.incarnation, 0, i);
	}
}
B(b_root_range)
{
	for (u32 i = 2; i < 4; i++) {
		struct bfs_line *l = host_line(e->b, 0, i);
		l->w[2] = 400;
		bfs_line_seal(l, e->b->sb.incarnation, 0, i);
	}
}
B(b_root_feature) { e->root->incompat = 2; good_page(e, e->root); }
B(b_root_height) { e->root->bt_height = 13; good_page(e, e->root); }
B(b_page_csum) { flip_page(e, e->root->bt.page); }
B(b_page_kind) { struct bfs_phead *h = pg_addr(e->b, e->root->bt.page); h->kind = BFS_PK_OBJ; good_page(e, h); }
B(b_page_tag) { struct bfs_phead *h = pg_addr(e->b, e->root->bt.page); h->txn++; good_page(e, h); }
B(b_page_self) { struct bfs_phead *h = pg_addr(e->b, e->root->bt.page); h->self++; good_page(e, h); }
B(b_ptr_range) { e->root->stamp = (struct bfs_ptr){400, 3, 2}; good_page(e, e->root); }
B(b_ptr_twice) { e->root->stamp = e->root->obj; good_page(e, e->root); }
B(b_ptr_empty) { e->root->stamp = (struct bfs_ptr){0, 3, 2}; good_page(e, e->root); }
B(b_level) { struct bfs_radix *n = pg_addr(e->b, e->root->hash.page); CHECK(n->h.kind == BFS_PK_RADIX); n->h.aux = 2; good_page(e, n); }
B(b_table_end) { struct bfs_radix *n = pg_addr(e->b, e->root->hash.page); n->child[e->b->sb.hash_buckets] = (struct bfs_ptr){5, 3, 2}; good_page(e, n); }
B(b_map_clear) { struct bfs_map *p = leaf(e, e->root->map, e->b->h_map, 0, BFS_PK_MAP); p->bits[e->root->bt.page / 64] &= ~(1ull << e->root->bt.page % 64), good_page(e, p); }
static u32 free_page(struct env *e, struct bfs_map *p)
{
	for (u32 i = 1; i < e->b->sb.meta_pages; i++)
		if (!(p->bits[i / 64] >> i % 64 & 1)) return i;
	CHECK(!"free page");
	return 0;
}
B(b_page_leak) { struct bfs_map *p = leaf(e, e->root->map, e->b->h_map, 0, BFS_PK_MAP); u32 i = free_page(e, p); p->bits[i / 64] |= 1ull << i % 64, good_page(e, p); }
B(b_map_end) { struct bfs_map *p = leaf(e, e->root->map, e->b->h_map, 0, BFS_PK_MAP); p->bits[499] |= 1, good_page(e, p); }
B(b_log_range) { struct bfs_log *l = some_log(e); l->e[0].page = 0, good_page(e, l); }
B(b_log_twice) { struct bfs_log *l = some_log(e); l->e[1].page = l->e[0].page, good_page(e, l); }
B(b_log_tag) { struct bfs_log *l = some_log(e); l->e[0].ftxn = 1ull << 60, l->e[0].fterm = 0x7fffffff, good_page(e, l); }
B(b_log_live) { struct bfs_log *l = some_log(e); l->e[0].page = e->root->bt.page, good_page(e, l); }
B(b_log_count) { struct bfs_log *l = some_log(e); l->h.count = 200, good_page(e, l); }
B(b_count_pages) { e->root->pages_used++; good_page(e, e->root); }
B(b_count_slots) { e->root->slots_used++; good_page(e, e->root); }
B(b_count_blocks) { e->root->nblocks--; good_page(e, e->root); }
B(b_count_ordinary) { e->root->nordinary--; good_page(e, e->root); }
B(b_count_unsealed) { e->root->nunsealed++; good_page(e, e->root); }
B(b_count_orphans) { e->root->norphans++; good_page(e, e->root); }
B(b_count_evictable) { e->root->blocks_granules++; good_page(e, e->root); }
B(b_count_granules) { e->root->granules_quar++; good_page(e, e->root); }
B(b_host_row) { e->root->host[2].state = 9; good_page(e, e->root); }
B(b_next_cookie) { e->root->next_cookie = 20; good_page(e, e->root); }
B(b_virgin) { e->root->slot_virgin--; good_page(e, e->root); }
B(b_obj_slot) { OBJ(slot, small, ++); }
B(b_obj_mode) { OBJ(mode, fifo, = 0030600); }
B(b_obj_state) { OBJ(state, fifo, = BFS_ST_DIRTY); }
B(b_obj_class) { OBJ(cls, fifo, = BFS_CLS_BLOCK); }
B(b_obj_owner) { OBJ(owner, small, = 2); }
B(b_obj_flags) { OBJ(flags, small, |= 64); }
B(b_obj_pins) { OBJ(flags, small, |= BFS_OF_PINNED | BFS_OF_PINNED_SOFT); }
B(b_obj_emptied) { OBJ(flags, dir, |= BFS_OF_EMPTIED); }
B(b_obj_size) { OBJ(size, small, |= 1ull << 63); }
B(b_obj_nextfree) { OBJ(next_free, small, = 3); }
B(b_nlink) { OBJ(nlink, small, ++); }
B(b_nlink_dir) { OBJ(nlink, dir, ++); }
B(b_subdirs) { OBJ(u.d.subdirs, dir, ++); }
B(b_dir_entries) { OBJ(u.d.entries, dir, --); }
B(b_cookie) { OBJ(cookie, small, ++); }
B(b_hash) { OBJ(hash, small, ^= 1ull << 20); }
B(b_no_link) { OBJ(cookie, fifo, = 0); }
B(b_parent_loop) { OBJ(parent, dir, = e->sub); }
B(b_symlink) { OBJ(size, link, = 3); }
B(b_blob) { OBJ(blob_len, dir, ++); }
B(b_blob_aux) { struct bfs_obj *o = obj(e, e->dir); struct bfs_blob *p = pg_addr(e->b, o->blob.page); p->h.aux--; good_page(e, p); }
B(b_blob_loop) { struct bfs_obj *o = obj(e, e->dir); struct bfs_blob *p = pg_addr(e->b, o->blob.page); p->next = o->blob; good_page(e, p); }
B(b_xattrs) { struct bfs_obj *o = obj(e, e->dir); struct bfs_blob *p = pg_addr(e->b, o->blob.page); p->data[1] = 1; good_page(e, p); }
B(b_xattr_order) { struct bfs_obj *o = obj(e, e->dir); struct bfs_blob *p = pg_addr(e->b, o->blob.page); p->data[4 + 5] = 'z'; good_page(e, p); }
B(b_sums_height) { OBJ(sums_height, large, ++); }
B(b_nsums) { OBJ(nsums, small, = 2); }
B(b_no_sums) { OBJ(nsums, small, = 0); }
B(b_granules) { OBJ(granules, large, ++); }
B(b_nextents) { OBJ(u.f.nextents, sparse, ++); }
B(b_inline_range) { OBJ(u.f.inl_addr, small, = 1ull << 30); }
B(b_inline_dev) { OBJ(u.f.inl_addr, small, |= 1ull << 56); }
B(b_inline_shared) { struct bfs_obj *o = obj(e, e->small); o->u.f.inl_addr = obj(e, e->deep)->u.f.inl_addr; good_page(e, o); }
B(b_sum_wrong) { OBJ(v.sum[0], small, ^= 1); }
B(b_data) { ((u8 *)al_mem(e->b, obj(e, e->small)->u.f.inl_addr))[17] ^= 1; }
B(b_data_large)
{
	struct bfs_obj *o = obj(e, e->large);
	u64 addr = o->u.f.inl_addr ? o->u.f.inl_addr : rec_of_slot(e, BFS_T_EXT, o->slot)->x;
	((u8 *)al_mem(e->b, addr))[99] ^= 1;
}
B(b_sums_page)
{
	struct bfs_obj *o = obj(e, e->large);
	CHECK(o->nsums > BFS_INLINE_SUMS);
	struct bfs_sums *s = leaf(e, o->v.sums, o->sums_height, 0, BFS_PK_SUMS);
	s->s[20] ^= 1;
	good_page(e, s);
}
B(b_free_head) { e->root->free_head = 1; good_page(e, e->root); }
B(b_free_tail) { e->root->free_tail++; good_page(e, e->root); }
B(b_free_loop) { struct bfs_obj *o = obj(e, e->root->free_tail); o->next_free = e->root->free_head; good_page(e, o); }
B(b_free_cut) { struct bfs_obj *o = obj(e, e->root->free_head); e->root->free_tail = e->root->free_head, o->next_free = 0; good_page(e, o), good_page(e, e->root); }
B(b_free_used) { struct bfs_obj *o = obj(e, e->root->free_head); o->nlink = 1; good_page(e, o); }
#define ENT(ino) struct bfs_bucket *k; u32 i; struct bfs_ent *x = ent(e, e->ino, &k, &i); (void)x, (void)i
B(b_ent_name) { ENT(fifo); ((u8 *)(x + 1))[1] = '/'; good_page(e, k); }
B(b_ent_fp) { ENT(fifo); k->fp[i] ^= 1; good_page(e, k); }
B(b_ent_off) { ENT(fifo); k->off[i] = 3790; good_page(e, k); }
B(b_ent_len) { ENT(fifo); x->len = 255; good_page(e, k); }
B(b_ent_aux) { ENT(fifo); k->h.aux += 4; good_page(e, k); }
B(b_ent_count) { ENT(fifo); k->h.count = 65; good_page(e, k); }
B(b_ent_type) { ENT(fifo); x->type = 8; good_page(e, k); }
B(b_ent_owner) { ENT(fifo); x->owner = 1; good_page(e, k); }
B(b_ent_owner_range) { ENT(fifo); x->owner = 200; good_page(e, k); }
B(b_ent_ino) { ENT(fifo); x->ino_hi++; good_page(e, k); }
B(b_ent_cookie) { ENT(fifo); x->cookie_lo++; good_page(e, k); }
B(b_ent_dir) { ENT(fifo); x->dir_hi++; good_page(e, k); }
B(b_bucket_loop) { ENT(fifo); k->more = (struct bfs_ptr){k->h.self, k->h.term, k->h.txn}; good_page(e, k); }
#define REC(kind) struct bfs_rec *r = first(e, kind)
B(b_rec_order) { REC(BFS_T_LIST); struct bfs_rec t = r[0]; r[0] = r[1], r[1] = t; good_page(e, r); }
B(b_rec_low) { REC(BFS_T_OWN); r->k.a |= 1; good_page(e, r); }
B(b_list_gone)
{
	REC(BFS_T_LIST);
	struct bfs_bleaf *l = (void *)head(e, r);
	memmove(r, r + 1, (size_t)((u8 *)&l->r[l->h.count] - (u8 *)(r + 1)));
	l->h.count--;
	good_page(e, l);
}
B(b_list_cookie) { REC(BFS_T_LIST); r->k.b--; good_page(e, r); }
B(b_list_ino) { REC(BFS_T_LIST); r->y ^= 1; good_page(e, r); }
B(b_list_hash) { REC(BFS_T_LIST); r->x ^= 1; good_page(e, r); }
B(b_keys) { REC(BFS_T_KEYS); r->y ^= 1; good_page(e, r); }
B(b_link_hash) { REC(BFS_T_LINK); r->x ^= 1; good_page(e, r); }
B(b_link_cookie) { REC(BFS_T_LINK); r->k.c++; good_page(e, r); }
B(b_ext_len) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->sparse)); r->y += 20; good_page(e, r); }
B(b_ext_addr) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->sparse)); r->x = e->b->sb.data_granules + 1; good_page(e, r); }
B(b_ext_overlay) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->sparse)); r->k.c = 1; good_page(e, r); }
B(b_ext_hole) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->sparse)); r->y |= 1ull << 32; good_page(e, r); }
B(b_own_ino) { REC(BFS_T_OWN); r->y = e->small == r->y ? e->deep : e->small; good_page(e, r); }
B(b_own_gone_ino) { REC(BFS_T_OWN); r->y += 1ull << 32; good_page(e, r); }
B(b_own_grant) { REC(BFS_T_OWN); r->x |= 1ull << 40; good_page(e, r); }
B(b_own_len) { REC(BFS_T_OWN); r->x += 1; good_page(e, r); }
B(b_own_host) { REC(BFS_T_OWN); r->x |= 9ull << 32; good_page(e, r); }
B(b_quar_len) { REC(BFS_T_QUAR); r->x = 1ull << 33; good_page(e, r); }
B(b_quar_addr) { REC(BFS_T_QUAR); r->k.c = e->b->sb.data_granules; good_page(e, r); }
B(b_region_clear) { struct bfs_region *g = region0(e); CHECK(g->bits[0] & 1); g->bits[0] &= ~1ull; good_page(e, g); }
B(b_region_leak)
{
	for (u32 i = 0; i < e->b->nregions; i++) {
		int rc = 0;
		struct bfs_region *g = (void *)(uintptr_t)rx_get(e->b, e->root->region, e->b->h_region, i, BFS_PK_REGION, &rc);
		if (!g || !g->h.aux || g->bits[0] >> 63) continue;
		g->bits[0] |= 1ull << 63;
		good_page(e, g);
		return;
	}
	CHECK(!"region with room");
}
B(b_region_count) { struct bfs_region *g = region0(e); g->h.aux ^= 1; good_page(e, g); }
B(b_region_class) { struct bfs_region *g = region0(e); g->h.count = 0; good_page(e, g); }
B(b_bleaf_count) { REC(BFS_T_LIST); struct bfs_phead *h = head(e, r); h->count = 102; good_page(e, h); }
B(b_bnode_count) { struct bfs_phead *h = pg_addr(e->b, e->root->bt.page); CHECK(e->root->bt_height); h->count = 0; good_page(e, h); }
B(b_bnode_level) { struct bfs_phead *h = pg_addr(e->b, e->root->bt.page); h->aux++; good_page(e, h); }
B(b_bnode_bounds) { struct bfs_bnode *n = pg_addr(e->b, e->root->bt.page); n->e[1].k.b = n->e[1].k.c = ~0ull; good_page(e, n); }
B(b_row)
{
	struct bfs_row *r = host_row(e->b, 0, 5);
	r[0].size = 1, r[1].size = 1;
}
static u32 page_of(struct env *e, const void *p) { return head(e, p)->self; }
B(b_objs_top) { flip_page(e, page_of(e, obj(e, 1))); }
B(b_objs_ns) { flip_page(e, page_of(e, obj(e, e->ns))); }
B(b_bucket) { ENT(fifo); flip_page(e, page_of(e, k)); }
B(b_bucket_dir) { ENT(dir); flip_page(e, page_of(e, k)); }
B(b_bucket_ns) { ENT(ns); flip_page(e, page_of(e, k)); }
B(b_buckets) { flip_page(e, e->root->hash.page); }
B(b_objs_node) { CHECK(e->b->h_obj); flip_page(e, e->root->obj.page); }
B(b_leaf_ext) { flip_page(e, page_of(e, rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->sparse)))); }
B(b_leaf_own) { REC(BFS_T_OWN); flip_page(e, page_of(e, r)); }
B(b_leaf_list) { REC(BFS_T_LIST); flip_page(e, page_of(e, r)); }
B(b_leaf_keys) { REC(BFS_T_KEYS); flip_page(e, page_of(e, r)); }
B(b_leaf_quar) { REC(BFS_T_QUAR); flip_page(e, page_of(e, r)); }
B(b_leaf_link) { REC(BFS_T_LINK); flip_page(e, page_of(e, r)); }
B(b_map_page) { flip_page(e, e->root->map.page); }
B(b_log_page) { flip_page(e, page_of(e, some_log(e))); }
B(b_region_page) { flip_page(e, page_of(e, region0(e))); }
B(b_stamp_page) { CHECK(e->root->stamp.page); flip_page(e, e->root->stamp.page); }
B(b_blob_page) { flip_page(e, obj(e, e->dir)->blob.page); }
B(b_blob_link) { flip_page(e, obj(e, e->link)->blob.page); }
B(b_sums_lost) { struct bfs_obj *o = obj(e, e->large); flip_page(e, page_of(e, leaf(e, o->v.sums, o->sums_height, 0, BFS_PK_SUMS))); }
B(b_names_and_map) { b_buckets(e), b_map_page(e); }
B(b_objs_and_bucket) { b_objs_ns(e), b_bucket_ns(e); }
B(b_ident) { host_line(e->b, 0, BFS_L_IDENT)->w[0] ^= 1; }
B(b_root_newest) { struct bfs_line *a = host_line(e->b, 0, 2), *z = host_line(e->b, 0, 3); (a->w[1] > z->w[1] ? a : z)->csum ^= 1; }
B(b_claims) { host_line(e->b, 0, BFS_L_CLAIM)->w[0] ^= 4, host_line(e->b, 0, BFS_L_CLAIM_B)->w[0] ^= 4; }
B(b_claim_high) { struct bfs_line *l = host_line(e->b, 0, BFS_L_CLAIM); l->w[0] = UINT32_MAX; bfs_line_seal(l, e->b->sb.incarnation, 0, BFS_L_CLAIM), b_count_slots(e); }
B(b_root_high)
{
	struct bfs_line *l = host_line(e->b, 2, BFS_L_ROOT_A);
	*l = (struct bfs_line){.w = {UINT32_MAX, 9, 1, 2, 3}};
	bfs_line_seal(l, e->b->sb.incarnation, 2, BFS_L_ROOT_A);
}
B(b_two_dirs)
{
	/* the fifo's entry and listing lead to the directory d: two names of one directory */
	ENT(fifo);
	struct bfs_obj *o = obj(e, e->fifo);
	struct bfs_rec *r = rec_in(e, e->root->bt, e->root->bt_height, KEY(BFS_T(BFS_T_LIST, 1), o->cookie, 0));
	x->ino_lo = (u32)e->dir, x->ino_hi = (u32)(e->dir >> 32), x->type = S_IFDIR >> 12;
	r->y = e->dir;
	good_page(e, k), good_page(e, r);
}
/* after a crash */
B(b_open_ino) { REC(BFS_T_OPEN); r->x ^= 1ull << 33; good_page(e, r); }
B(b_open_version) { REC(BFS_T_OPEN); r->y++; good_page(e, r); }
B(b_orphan_ino) { REC(BFS_T_ORPHAN); r->x ^= 1ull << 33; good_page(e, r); }
B(b_new_state) { OBJ(state, synced, = BFS_ST_SEALED); }
B(b_new_owner) { OBJ(owner, synced, = 2); }
B(b_new_owner_range) { OBJ(owner, synced, = 9); }
B(b_new_granules) { OBJ(granules, synced, ++); }
B(b_dirty_granules) { OBJ(granules, large, ++); }
B(b_dirty_owner) { OBJ(owner, large, = 0); }
B(b_dirty_sum) { struct bfs_obj *o = obj(e, e->large); o->v.sums.page = 0; good_page(e, o); }
B(b_killed_state) { OBJ(state, killed, = BFS_ST_SEALED); }
B(b_private) { ENT(synced); x->owner = 0; good_page(e, k); }
B(b_overlay) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->synced)); r->x = 1ull << 30; good_page(e, r); }
B(b_overlay_base) { struct bfs_rec *r = rec_of_slot(e, BFS_T_EXT, INO_SLOT(e->synced)); r->k.c = 0; good_page(e, r); }
B(b_rows) { for (u32 i = 0; i < 8; i++) host_row(e->b, 0, i)[0].size ^= 1, host_row(e->b, 0, i)[1].size ^= 1; }
B(b_row_one)
{
	for (u32 i = 0; i < 8; i++) host_row(e->b, 0, i)[0].mtime_ns ^= 1;
}
B(b_leaf_open) { REC(BFS_T_OPEN); flip_page(e, page_of(e, r)); }
B(b_objs_new) { flip_page(e, page_of(e, obj(e, e->synced))); }
B(b_bucket_new) { ENT(synced); flip_page(e, page_of(e, k)); }
B(b_ident_open) { b_ident(e), b_count_slots(e); }
B(b_count_crashed) { b_count_slots(e); }
B(b_torn) { host_line(e->b, 0, BFS_L_GRANT)->w[0] ^= 4; }
B(b_none) { (void)e; }

static const struct {
	const char *name;
	void (*f)(struct env *e);
	const char *codes; /* every one of these has to be told, and no other; "(x)": may be */
	bool data, crashed;
} breaks[] = {
	{"nothing", b_none, "", true, false},
	{"torn line", b_torn, "", false, false},
	{"superblock A", b_super_a, "super-copy ", false, false},
	{"both superblocks", b_super_both, "super ", false, false},
	{"superblocks differ", b_super_differs, "super-differs ", false, false},
	{"geometry", b_super_geometry, "super ", false, false},
	{"version", b_super_version, "super ", false, false},
	{"feature of mkfs", b_super_feature, "features ", false, false},
	{"both root lines", b_roots, "root-lines root-none ", false, false},
	{"no root line", b_no_roots, "root-none ", false, false},
	{"state published twice", b_root_twice, "root-twice ", false, false},
	{"root page", b_root_page, "page-csum root-page ", false, false},
	{"root's tag", b_root_tag, "root-tag page-tag root-page ", false, false},
	{"root's number", b_root_range, "page-range root-page ", false, false},
	{"feature of the root", b_root_feature, "features ", false, false},
	{"height of records", b_root_height, "root-page ", false, false},
	{"page checksum", b_page_csum, "page-csum *", false, false},
	{"page kind", b_page_kind, "page-kind *", false, false},
	{"page tag", b_page_tag, "page-tag *", false, false},
	{"page number", b_page_self, "page-tag *", false, false},
	{"pointer out of range", b_ptr_range, "page-range *", false, false},
	{"page used twice", b_ptr_twice, "page-twice *", false, false},
	{"tag without a page", b_ptr_empty, "ptr-empty *", false, false},
	{"level of a table", b_level, "table-level *", false, false},
	{"child beyond the end", b_table_end, "table-end ", false, false},
	{"map bit clear", b_map_clear, "map-clear count-pages ", false, false},
	{"page leaked", b_page_leak, "page-leak count-pages ", false, false},
	{"map bit beyond the end", b_map_end, "map-end ", false, false},
	{"log: number", b_log_range, "log-range page-leak ", false, false},
	{"log: twice", b_log_twice, "log-twice page-leak ", false, false},
	{"log: tag", b_log_tag, "log-tag ", false, false},
	{"log: page in use", b_log_live, "log-live page-leak ", false, false},
	{"log: count", b_log_count, "page-count *", false, false},
	{"counter of pages", b_count_pages, "count-pages ", false, false},
	{"counter of slots", b_count_slots, "count-slots ", false, false},
	{"counter of blocks", b_count_blocks, "count-blocks ", false, false},
	{"counter of ordinary files", b_count_ordinary, "count-ordinary ", false, false},
	{"counter of unsealed files", b_count_unsealed, "count-unsealed ", false, false},
	{"counter of orphans", b_count_orphans, "count-orphans ", false, false},
	{"counter of evictable granules", b_count_evictable, "count-evictable ", false, false},
	{"counter of granules", b_count_granules, "count-granules ", false, false},
	{"host row", b_host_row, "host-row ", false, false},
	{"next cookie", b_next_cookie, "cookie ", false, false},
	{"first virgin slot", b_virgin, "obj-virgin *", false, false},
	{"object: slot", b_obj_slot, "obj-slot *", false, false},
	{"object: mode", b_obj_mode, "obj-mode entry-type ", false, false},
	{"object: state", b_obj_state, "obj-state obj-owner *", false, false},
	{"object: class", b_obj_class, "obj-class ", false, false},
	{"object: owner", b_obj_owner, "obj-owner ", false, false},
	{"object: flags", b_obj_flags, "obj-flags ", false, false},
	{"object: both kinds of pin", b_obj_pins, "obj-flags ", false, false},
	{"object: emptied, with entries", b_obj_emptied, "obj-flags ", false, false},
	{"object: size", b_obj_size, "obj-size sums ", false, false},
	{"object: next free", b_obj_nextfree, "obj-free ", false, false},
	{"links of a file", b_nlink, "nlink ", false, false},
	{"links of a directory", b_nlink_dir, "nlink ", false, false},
	{"subdirectories", b_subdirs, "nlink ", false, false},
	{"entries of a directory", b_dir_entries, "dir-entries ", false, false},
	{"cookie of a link", b_cookie, "link-differs entry-unlinked ", false, false},
	{"hash of a link", b_hash, "link-differs entry-unlinked ", false, false},
	{"no link", b_no_link, "link-entry entry-unlinked nlink ", false, false},
	{"directories in a circle", b_parent_loop, "link-entry entry-unlinked dir-lost *", false, false},
	{"symbolic link", b_symlink, "symlink ", false, false},
	{"length of attributes", b_blob, "blob ", false, false},
	{"length of a blob page", b_blob_aux, "blob ", false, false},
	{"list of attributes", b_xattrs, "blob ", false, false},
	{"order of attributes", b_xattr_order, "blob ", false, false},
	{"blob in a circle", b_blob_loop, "page-twice page-leak ", false, false},
	{"height of sums", b_sums_height, "sums page-leak ", false, false},
	{"number of sums", b_nsums, "sums ", false, false},
	{"no sums", b_no_sums, "sums ", false, false},
	{"granules of a file", b_granules, "granules (count-evictable) ", false, false},
	{"number of extents", b_nextents, "nextents ", false, false},
	{"inline extent outside", b_inline_range, "extent-range own-unused ", false, false},
	{"inline extent on another device", b_inline_dev, "extent-range own-unused ", false, false},
	{"extent of another file", b_inline_shared, "extent-overlap *", false, false},
	{"wrong sum", b_sum_wrong, "data ", true, false},
	{"wrong data", b_data, "data ", true, false},
	{"wrong data, sums in pages", b_data_large, "data ", true, false},
	{"wrong sum, in a page", b_sums_page, "data ", true, false},
	{"free list: head", b_free_head, "free-list ", false, false},
	{"free list: tail", b_free_tail, "free-list ", false, false},
	{"free list: circle", b_free_loop, "free-list ", false, false},
	{"free list: cut", b_free_cut, "free-list ", false, false},
	{"free slot not empty", b_free_used, "obj-free ", false, false},
	{"entry: name", b_ent_name, "entry-name entry-hash list-differs link-differs entry-unlisted entry-unlinked ", false, false},
	{"entry: fingerprint", b_ent_fp, "entry-hash ", false, false},
	{"entry: place", b_ent_off, "entry-place *", false, false},
	{"entry: length", b_ent_len, "entry-place *", false, false},
	{"entry: heap", b_ent_aux, "entry-place ", false, false},
	{"entry: count", b_ent_count, "page-count *", false, false},
	{"entry: type", b_ent_type, "entry-type ", false, false},
	{"entry: private", b_ent_owner, "entry-owner ", false, false},
	{"entry: no such host", b_ent_owner_range, "entry-owner ", false, false},
	{"entry: inode", b_ent_ino, "list-differs link-differs entry-object entry-unlisted entry-unlinked ", false, false},
	{"entry: cookie", b_ent_cookie, "link-entry *", false, false},
	{"entry: directory", b_ent_dir, "entry-dir *", false, false},
	{"bucket in a circle", b_bucket_loop, "page-twice *", false, false},
	{"records: order", b_rec_order, "rec-order *", false, false},
	{"records: reserved part", b_rec_low, "rec-fields *", false, false},
	{"listing lost", b_list_gone, "entry-unlisted ", false, false},
	{"listing: cookie", b_list_cookie, "list-entry entry-unlisted *", false, false},
	{"listing: inode", b_list_ino, "list-differs entry-unlisted ", false, false},
	{"listing: hash", b_list_hash, "list-differs entry-unlisted ", false, false},
	{"listing of keys", b_keys, "list-differs entry-unlisted ", false, false},
	{"link record: hash", b_link_hash, "link-differs entry-unlinked ", false, false},
	{"link record: cookie", b_link_cookie, "link-entry *", false, false},
	{"extent: length", b_ext_len, "ext-overlap *", false, false},
	{"extent: address", b_ext_addr, "extent-range own-unused ", false, false},
	{"extent: overlay of a sealed file", b_ext_overlay, "ext-state own-state ", false, false},
	{"extent: hole in the base", b_ext_hole, "rec-fields *", false, false},
	{"owner: another file", b_own_ino, "own-differs ", false, false},
	{"owner: gone", b_own_gone_ino, "own-object own-differs ", false, false},
	{"owner: granted", b_own_grant, "own-state ", false, false},
	{"owner: length", b_own_len, "*", false, false},
	{"owner: host", b_own_host, "rec-fields ", false, false},
	{"quarantine: length", b_quar_len, "rec-fields *", false, false},
	{"quarantine: address", b_quar_addr, "*", false, false},
	{"region: bit clear", b_region_clear, "region-clear ", false, false},
	{"region: bit set", b_region_leak, "region-leak ", false, false},
	{"region: free", b_region_count, "region-count ", false, false},
	{"region: class", b_region_class, "region-class ", false, false},
	{"records: leaf count", b_bleaf_count, "page-count *", false, false},
	{"records: node count", b_bnode_count, "page-count *", false, false},
	{"records: node level", b_bnode_level, "table-level *", false, false},
	{"records: bounds", b_bnode_bounds, "rec-bounds *", false, false},
	{"page of objects: the root directory's", b_objs_top, "page-csum *", false, false},
	{"page of objects: a namespace's", b_objs_ns, "page-csum *", false, false},
	{"page of a bucket", b_bucket, "page-csum *", false, false},
	{"page of a bucket: a directory's name", b_bucket_dir, "page-csum *", false, false},
	{"page of a bucket: a namespace's name", b_bucket_ns, "page-csum *", false, false},
	{"node above all buckets", b_buckets, "page-csum *", false, false},
	{"node above all objects", b_objs_node, "page-csum *", false, false},
	{"page of records: extents", b_leaf_ext, "page-csum *", false, false},
	{"page of records: owners", b_leaf_own, "page-csum *", false, false},
	{"page of records: listing", b_leaf_list, "page-csum *", false, false},
	{"page of records: keys", b_leaf_keys, "page-csum *", false, false},
	{"page of records: quarantine", b_leaf_quar, "page-csum *", false, false},
	{"page of records: links", b_leaf_link, "page-csum *", false, false},
	{"page of the map", b_map_page, "page-csum *", false, false},
	{"page of the log", b_log_page, "page-csum *", false, false},
	{"page of a region", b_region_page, "page-csum *", false, false},
	{"page of stamps", b_stamp_page, "page-csum *", false, false},
	{"page of attributes", b_blob_page, "page-csum *", false, false},
	{"page of a link's target", b_blob_link, "page-csum *", false, false},
	{"page of sums", b_sums_lost, "page-csum *", false, false},
	{"all buckets and the map", b_names_and_map, "page-csum *", false, false},
	{"a namespace and its name", b_objs_and_bucket, "page-csum *", false, false},
	{"two names of a directory", b_two_dirs, "link-differs entry-unlinked nlink ", false, false},
	{"line of the registration", b_ident, "", false, false},
	{"newest root line", b_root_newest, "", false, false},
	{"both claims", b_claims, "", false, false},
	{"highest claim there can be", b_claim_high, "terms count-slots ", false, false},
	{"highest root there can be", b_root_high, "*", false, false},
	{"row", b_row, "row-damaged ", false, false},
	{"crash: list of files being written: inode", b_open_ino, "*", false, true},
	{"crash: list of files being written: version", b_open_version, "open-differs ", false, true},
	{"crash: list of deleted files", b_orphan_ino, "*", false, true},
	{"crash: state of a first writing", b_new_state, "*", false, true},
	{"crash: owner of a first writing", b_new_owner, "*", false, true},
	{"crash: owner that can't be", b_new_owner_range, "*", false, true},
	{"crash: granules of a first writing", b_new_granules, "granules ", false, true},
	{"crash: granules of a rewriting", b_dirty_granules, "granules ", false, true},
	{"crash: owner of a rewriting", b_dirty_owner, "*", false, true},
	{"crash: sums of a rewriting", b_dirty_sum, "*", true, true},
	{"crash: state of a killed writing", b_killed_state, "*", false, true},
	{"crash: private name", b_private, "entry-owner ", false, true},
	{"crash: extent of a first writing", b_overlay, "*", false, true},
	{"crash: extent of a base", b_overlay_base, "*", false, true},
	{"crash: rows", b_rows, "row-damaged ", false, true},
	{"crash: one copy of the rows", b_row_one, "", false, true},
	{"crash: page of records", b_leaf_open, "page-csum *", false, true},
	{"crash: page of objects", b_objs_new, "page-csum *", false, true},
	{"crash: page of a bucket", b_bucket_new, "page-csum *", false, true},
	{"crash: line of the registration", b_ident_open, "count-slots ", false, true},
	{"crash: a counter", b_count_crashed, "count-slots ", false, true},
	{"crash: nothing", b_none, "", false, true},
};

static u64 look(struct env *e, u64 dir, const char *name)
{
	struct bfs_attr a;
	CHECK(!bfs_lookup(e->b, dir, name, strlen(name), &a));
	return a.ino;
}

static void open_env(struct env *e, u8 *pool)
{
	struct bfs_opts o = opts;
	int rc = 0;
	o.readonly = true;
	e->m = mem_of(pool, SIZE);
	CHECK(!bfs_attach(&e->m, &o, &e->b));
	CHECK(!rd_begin(e->b, &e->r));
	e->root = (void *)(uintptr_t)pg_get(e->b, e->r.s.root, BFS_PK_ROOT, &rc);
	e->dir = look(e, 1, "d"), e->sub = look(e, e->dir, "e"), e->ns = look(e, 1, "ns");
	e->small = look(e, 1, "small"), e->large = look(e, 1, "large"), e->sparse = look(e, 1, "sparse");
	struct bfs_attr a;
	if (!bfs_lookup(e->b, 1, "synced", 6, &a)) e->synced = a.ino, e->fresh = look(e, 1, "new"), e->killed = look(e, 1, "killed");
	e->fifo = look(e, 1, "fifo"), e->link = look(e, 1, "long"), e->deep = look(e, e->sub, "deep");
}

static void close_env(struct env *e)
{
	rd_end(&e->r);
	CHECK(!bfs_detach(e->b, true));
}

/* ---- random damage ------------------------------------------------------------------------------ */
/* Bytes anywhere in superblocks, host slots and pages in use, mostly with a checksum made good again.
 * True: a single change of a page, which its checksum gives away. */
static __attribute__((unused)) bool wild(u8 *work, const struct bfs_super *sb, const u8 *used)
{
	u32 n = 1 + (u32)(rnd() % 8 ? 0 : rnd() % 64);
	bool must = false;
	for (u32 k = 0; k < n; k++) {
		u64 where = rnd() % 16, off, len = 1 + rnd() % (rnd() % 4 ? 8 : 300);
		u32 page = 0;
		if (where == 0) off = rnd() % 8192;
		else if (where < 3) off = sb->host_off + rnd() % (sb->meta_off - sb->host_off);
		else {
			do page = 1 + (u32)(rnd() % (sb->meta_pages - 1)); while (!used[page]);
			off = sb->meta_off + (u64)page * BFS_PAGE + (rnd() % 3 ? rnd() % BFS_PAGE : rnd() % 64);
		}
		for (u64 j = 0; j < len; j++) {
			u8 old = work[off + j];
			if (page && (off + j - sb->meta_off) / BFS_PAGE != page) break;
			work[off + j] = rnd() % 3 ? (u8)rnd() : rnd() % 2 ? 0 : 255;
			if (work[off + j] == old) work[off + j] ^= 1u << rnd() % 8;
		}
		if (where == 0) { /* a good checksum again, mostly */
			if (rnd() % 4) seal_super((void *)(work + off / 4096 * 4096));
		} else if (where < 3) {
			u64 in = (off - sb->host_off) % sb->host_stride;
			if (in < 8192 && rnd() % 2) bfs_line_seal((void *)(work + off / 64 * 64), sb->incarnation, (u32)((off - sb->host_off) / sb->host_stride), (u32)(in / 64));
		} else if (rnd() % 2) {
			struct bfs_phead *h = (void *)(work + sb->meta_off + (u64)page * BFS_PAGE);
			h->csum = bfs_xxh((u8 *)h + 32, BFS_PAGE - 32, sb->incarnation ^ bfs_xxh(h, 24, sb->incarnation));
		} else {
			must = true;
		}
	}
	return must && n == 1;
}

#endif
