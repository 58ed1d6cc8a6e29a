/* bfs_fsck against damage.
 *
 *   break    one thing is broken in a good pool, with the checksum made good again: exactly
 *            the expected code has to be told
 *   random   bytes anywhere in superblocks, host slots and metadata: never a crash, a hang or a
 *            read outside (run it under AddressSanitizer), and what hits a page that is in
 *            use is told.  Half of the pages get a good checksum again, so that the damage
 *            reaches the checks behind it
 *
 *   t_fsck [--rounds N] [--seed S]
 *   t_fsck --make FILE        writes the pool of the test, for tests in Python; its listing goes to stdout
 *   t_fsck --check FILE       fsck of a file: prints findings
 */
#include <fcntl.h>
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

static void make(struct bfs_mem *m)
{
	struct bfs_mkfs_params p = {.size_bytes = SIZE, .inodes = 256, .nhosts = 3, .rows = 8, .ring_entries = 64, .region_granules = 64, .chunk_bytes = 4096, .meta_pages = 400, .incarnation = 0xabcdef, .label = "test"};
	struct bfs *b;
	memset(m->base, 0, m->size);
	CHECK(!bfs_mkfs(m, &p, NULL));
	CHECK(!bfs_attach(m, &opts, &b));
	populate(b);
	/* a second host, of which nothing is heard any more: what is freed from now on waits for it */
	struct bfs_opts o2 = {.uuid = {3, 4}, .boot = 7, .slot = -1, .follower = true};
	struct bfs *b2;
	CHECK(!bfs_attach(m, &o2, &b2));
	CHECK(!bfs_detach(b2, false));
	delete_some(b);
	CHECK(!bfs_detach(b, true));
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
B(b_torn) { host_line(e->b, 0, BFS_L_GRANT)->w[0] ^= 4; }
B(b_none) { (void)e; }

static const struct {
	const char *name;
	void (*f)(struct env *e);
	const char *codes; /* every one of these has to be told, and no other; "(x)": may be */
	bool data;
} breaks[] = {
	{"nothing", b_none, "", true},
	{"torn line", b_torn, "", false},
	{"superblock A", b_super_a, "super-copy ", false},
	{"both superblocks", b_super_both, "super ", false},
	{"superblocks differ", b_super_differs, "super-differs ", false},
	{"geometry", b_super_geometry, "super ", false},
	{"version", b_super_version, "super ", false},
	{"feature of mkfs", b_super_feature, "features ", false},
	{"both root lines", b_roots, "root-lines root-none ", false},
	{"no root line", b_no_roots, "root-none ", false},
	{"state published twice", b_root_twice, "root-twice ", false},
	{"root page", b_root_page, "page-csum root-page ", false},
	{"root's tag", b_root_tag, "root-tag page-tag root-page ", false},
	{"root's number", b_root_range, "page-range root-page ", false},
	{"feature of the root", b_root_feature, "features ", false},
	{"height of records", b_root_height, "root-page ", false},
	{"page checksum", b_page_csum, "page-csum *", false},
	{"page kind", b_page_kind, "page-kind *", false},
	{"page tag", b_page_tag, "page-tag *", false},
	{"page number", b_page_self, "page-tag *", false},
	{"pointer out of range", b_ptr_range, "page-range *", false},
	{"page used twice", b_ptr_twice, "page-twice *", false},
	{"tag without a page", b_ptr_empty, "ptr-empty *", false},
	{"level of a table", b_level, "table-level *", false},
	{"child beyond the end", b_table_end, "table-end ", false},
	{"map bit clear", b_map_clear, "map-clear count-pages ", false},
	{"page leaked", b_page_leak, "page-leak count-pages ", false},
	{"map bit beyond the end", b_map_end, "map-end ", false},
	{"log: number", b_log_range, "log-range page-leak ", false},
	{"log: twice", b_log_twice, "log-twice page-leak ", false},
	{"log: tag", b_log_tag, "log-tag ", false},
	{"log: page in use", b_log_live, "log-live page-leak ", false},
	{"log: count", b_log_count, "page-count *", false},
	{"counter of pages", b_count_pages, "count-pages ", false},
	{"counter of slots", b_count_slots, "count-slots ", false},
	{"counter of blocks", b_count_blocks, "count-blocks ", false},
	{"counter of ordinary files", b_count_ordinary, "count-ordinary ", false},
	{"counter of unsealed files", b_count_unsealed, "count-unsealed ", false},
	{"counter of orphans", b_count_orphans, "count-orphans ", false},
	{"counter of evictable granules", b_count_evictable, "count-evictable ", false},
	{"counter of granules", b_count_granules, "count-granules ", false},
	{"host row", b_host_row, "host-row ", false},
	{"next cookie", b_next_cookie, "cookie ", false},
	{"first virgin slot", b_virgin, "obj-virgin *", false},
	{"object: slot", b_obj_slot, "obj-slot *", false},
	{"object: mode", b_obj_mode, "obj-mode entry-type ", false},
	{"object: state", b_obj_state, "obj-state obj-owner *", false},
	{"object: class", b_obj_class, "obj-class ", false},
	{"object: owner", b_obj_owner, "obj-owner ", false},
	{"object: flags", b_obj_flags, "obj-flags ", false},
	{"object: size", b_obj_size, "obj-size sums ", false},
	{"object: next free", b_obj_nextfree, "obj-free ", false},
	{"links of a file", b_nlink, "nlink ", false},
	{"links of a directory", b_nlink_dir, "nlink ", false},
	{"subdirectories", b_subdirs, "nlink ", false},
	{"entries of a directory", b_dir_entries, "dir-entries ", false},
	{"cookie of a link", b_cookie, "link-differs entry-unlinked ", false},
	{"hash of a link", b_hash, "link-differs entry-unlinked ", false},
	{"no link", b_no_link, "link-entry entry-unlinked nlink ", false},
	{"directories in a circle", b_parent_loop, "link-entry entry-unlinked dir-lost *", false},
	{"symbolic link", b_symlink, "symlink ", false},
	{"length of attributes", b_blob, "blob ", false},
	{"length of a blob page", b_blob_aux, "blob ", false},
	{"blob in a circle", b_blob_loop, "page-twice page-leak ", false},
	{"height of sums", b_sums_height, "sums page-leak ", false},
	{"number of sums", b_nsums, "sums ", false},
	{"no sums", b_no_sums, "sums ", false},
	{"granules of a file", b_granules, "granules (count-evictable) ", false},
	{"number of extents", b_nextents, "nextents ", false},
	{"inline extent outside", b_inline_range, "extent-range own-unused ", false},
	{"inline extent on another device", b_inline_dev, "extent-range own-unused ", false},
	{"extent of another file", b_inline_shared, "extent-overlap *", false},
	{"wrong sum", b_sum_wrong, "data ", true},
	{"wrong data", b_data, "data ", true},
	{"wrong data, sums in pages", b_data_large, "data ", true},
	{"wrong sum, in a page", b_sums_page, "data ", true},
	{"free list: head", b_free_head, "free-list ", false},
	{"free list: tail", b_free_tail, "free-list ", false},
	{"free list: circle", b_free_loop, "free-list ", false},
	{"free list: cut", b_free_cut, "free-list ", false},
	{"free slot not empty", b_free_used, "obj-free ", false},
	{"entry: name", b_ent_name, "entry-name entry-hash list-differs link-differs entry-unlisted entry-unlinked ", false},
	{"entry: fingerprint", b_ent_fp, "entry-hash ", false},
	{"entry: place", b_ent_off, "entry-place *", false},
	{"entry: length", b_ent_len, "entry-place *", false},
	{"entry: heap", b_ent_aux, "entry-place ", false},
	{"entry: count", b_ent_count, "page-count *", false},
	{"entry: type", b_ent_type, "entry-type ", false},
	{"entry: private", b_ent_owner, "entry-owner ", false},
	{"entry: no such host", b_ent_owner_range, "entry-owner ", false},
	{"entry: inode", b_ent_ino, "list-differs link-differs entry-object entry-unlisted entry-unlinked ", false},
	{"entry: cookie", b_ent_cookie, "link-entry *", false},
	{"entry: directory", b_ent_dir, "entry-dir *", false},
	{"bucket in a circle", b_bucket_loop, "page-twice *", false},
	{"records: order", b_rec_order, "rec-order *", false},
	{"records: reserved part", b_rec_low, "rec-fields *", false},
	{"listing lost", b_list_gone, "entry-unlisted ", false},
	{"listing: cookie", b_list_cookie, "list-entry entry-unlisted *", false},
	{"listing: inode", b_list_ino, "list-differs entry-unlisted ", false},
	{"listing: hash", b_list_hash, "list-differs entry-unlisted ", false},
	{"listing of keys", b_keys, "list-differs entry-unlisted ", false},
	{"link record: hash", b_link_hash, "link-differs entry-unlinked ", false},
	{"link record: cookie", b_link_cookie, "link-entry *", false},
	{"extent: length", b_ext_len, "ext-overlap *", false},
	{"extent: address", b_ext_addr, "extent-range own-unused ", false},
	{"extent: overlay of a sealed file", b_ext_overlay, "ext-state own-state ", false},
	{"extent: hole in the base", b_ext_hole, "rec-fields *", false},
	{"owner: another file", b_own_ino, "own-differs ", false},
	{"owner: gone", b_own_gone_ino, "own-object own-differs ", false},
	{"owner: granted", b_own_grant, "own-state ", false},
	{"owner: length", b_own_len, "*", false},
	{"owner: host", b_own_host, "rec-fields ", false},
	{"quarantine: length", b_quar_len, "rec-fields *", false},
	{"quarantine: address", b_quar_addr, "*", false},
	{"region: bit clear", b_region_clear, "region-clear ", false},
	{"region: bit set", b_region_leak, "region-leak ", false},
	{"region: free", b_region_count, "region-count ", false},
	{"region: class", b_region_class, "region-class ", false},
	{"records: leaf count", b_bleaf_count, "page-count *", false},
	{"records: node count", b_bnode_count, "page-count *", false},
	{"records: node level", b_bnode_level, "table-level *", false},
	{"records: bounds", b_bnode_bounds, "rec-bounds *", false},
	{"row", b_row, "row-damaged ", false},
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
	e->fifo = look(e, 1, "fifo"), e->link = look(e, 1, "long"), e->deep = look(e, e->sub, "deep");
}

static void close_env(struct env *e)
{
	rd_end(&e->r);
	CHECK(!bfs_detach(e->b, true));
}

/* "a b (c) *": a and b told, c perhaps; with * anything else too */
static bool as_expected(const char *want, const char *got)
{
	char w[4200], *save = NULL, list[4200] = " ";
	bool any = false;
	snprintf(w, sizeof w, "%s", want);
	for (char *p = strtok_r(w, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
		char x[64];
		if (!strcmp(p, "*")) {
			any = true;
			continue;
		}
		bool maybe = *p == '(';
		if (maybe) p[strlen(p) - 1] = 0, p++;
		snprintf(x, sizeof x, "%s ", p);
		const char *at = strstr(got, x);
		while (at && at != got && at[-1] != ' ') at = strstr(at + 1, x);
		if (!at && !maybe) return false;
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s", x);
	}
	if (any) return *got;
	snprintf(w, sizeof w, "%s", got);
	for (char *p = strtok_r(w, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
		char x[64];
		snprintf(x, sizeof x, " %s ", p);
		if (!strstr(list, x)) return false;
	}
	return true;
}

static int break_all(const u8 *good, u8 *work)
{
	int failed = 0, n = (int)(sizeof breaks / sizeof *breaks);
	for (int i = 0; i < n; i++) {
		struct env e;
		memcpy(work, good, SIZE);
		open_env(&e, work);
		breaks[i].f(&e);
		close_env(&e);
		struct found *f = fsck(&e.m, breaks[i].data);
		if (as_expected(breaks[i].codes, f->codes)) continue;
		failed++;
		fprintf(stderr, "%s: expected %s, found %s\n%s", breaks[i].name, *breaks[i].codes ? breaks[i].codes : "nothing", *f->codes ? f->codes : "nothing", f->text);
	}
	printf("t_fsck: %d things broken one by one, %d not told as expected\n", n, failed);
	return failed;
}

/* ---- random damage ---------------------------------------------------------------------------------------------- */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int random_damage(const u8 *good, u8 *work, u64 rounds)
{
	struct bfs_super sb;
	u64 told = 0, missed = 0, pages = 0, first_seed = seed;
	double worst = 0, t0 = now();
	memcpy(&sb, good, sizeof sb);
	/* which pages are in use: those whose damage is told */
	u8 *used = calloc(1, sb.meta_pages);
	memcpy(work, good, SIZE);
	for (u32 p = 1; p < sb.meta_pages; p++) {
		struct bfs_mem m = mem_of(work, SIZE);
		work[sb.meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
		used[p] = fsck(&m, false)->n > 0;
		pages += used[p];
		work[sb.meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
	}
	for (u64 i = 0; i < rounds; i++) {
		struct bfs_mem m = mem_of(work, SIZE);
		u64 s = seed;
		u32 n = 1 + (u32)(rnd() % 8 ? 0 : rnd() % 64), again = 0;
		bool must = false;
		memcpy(work, good, SIZE);
		for (u32 k = 0; k < n; k++) {
			u64 where = rnd() % 16, off, len = 1 + rnd() % (rnd() % 4 ? 8 : 300);
			u32 page = 0;
			if (where == 0) off = rnd() % 8192;
			else if (where < 3) off = sb.host_off + rnd() % (sb.meta_off - sb.host_off);
			else {
				do page = 1 + (u32)(rnd() % (sb.meta_pages - 1)); while (!used[page]);
				off = sb.meta_off + (u64)page * BFS_PAGE + (rnd() % 3 ? rnd() % BFS_PAGE : rnd() % 64);
			}
			for (u64 j = 0; j < len; j++) {
				u8 old = work[off + j];
				if (page && (off + j - sb.meta_off) / BFS_PAGE != page) break;
				work[off + j] = rnd() % 3 ? (u8)rnd() : rnd() % 2 ? 0 : 255;
				if (work[off + j] == old) work[off + j] ^= 1u << rnd() % 8;
			}
			if (where == 0) { /* a good checksum again, mostly */
				if (rnd() % 4) seal_super((void *)(work + off / 4096 * 4096));
			} else if (where < 3) {
				u64 in = (off - sb.host_off) % sb.host_stride;
				if (in < 8192 && rnd() % 2) bfs_line_seal((void *)(work + off / 64 * 64), sb.incarnation, (u32)((off - sb.host_off) / sb.host_stride), (u32)(in / 64));
			} else if (rnd() % 2) {
				struct bfs_phead *h = (void *)(work + sb.meta_off + (u64)page * BFS_PAGE);
				h->csum = bfs_xxh((u8 *)h + 32, BFS_PAGE - 32, sb.incarnation ^ bfs_xxh(h, 24, sb.incarnation));
				again++;
			} else {
				must = true;
			}
		}
		double t = now();
		struct found *f = fsck(&m, i % 4 == 0);
		t = now() - t;
		if (t > worst) worst = t;
		told += f->n > 0;
		/* several damages may hide each other: one alone has to be told */
		if (must && n == 1 && !f->n) {
			missed++;
			fprintf(stderr, "damage of a page in use wasn't told; seed %llu\n", (unsigned long long)s);
		}
		if (worst > 20) {
			fprintf(stderr, "seed %llu took %.1f s\n", (unsigned long long)s, worst);
			return 1;
		}
	}
	printf("t_fsck: %llu pools with random damage (%llu of %u pages in use), %llu told, %llu missed; slowest %.3f s; seed %llu; %.0f/s\n", (unsigned long long)rounds, (unsigned long long)pages, sb.meta_pages,
	       (unsigned long long)told, (unsigned long long)missed, worst, (unsigned long long)first_seed, (double)rounds / (now() - t0));
	free(used);
	return missed != 0;
}

/* ---- a short pool, and one that can't be read -------------------------------------------------------------------------- */
static int unreadable(const u8 *good)
{
	char path[] = "/tmp/t_fsck.XXXXXX";
	int fd = mkstemp(path), failed = 0;
	CHECK(fd >= 0 && write(fd, good, SIZE) == (ssize_t)SIZE);
	u8 *p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	struct bfs_mem m = mem_of(p, SIZE);
	/* read-only mapping */
	struct found *f = fsck(&m, true);
	if (f->n) failed++, fprintf(stderr, "read-only mapping:\n%s", f->text);
	/* truncated under the mapping: SIGBUS, not a crash */
	CHECK(!ftruncate(fd, 1 << 20));
	f = fsck(&m, true);
	if (!strstr(f->codes, "read-error")) failed++, fprintf(stderr, "truncated under the mapping: found %s\n", f->codes);
	m.size = 1 << 20;
	f = fsck(&m, true);
	if (strcmp(f->codes, "super ")) failed++, fprintf(stderr, "short pool: found %s\n", f->codes);
	m.size = 100;
	f = fsck(&m, true);
	if (!strstr(f->codes, "super ")) failed++, fprintf(stderr, "tiny pool: found %s\n", f->codes);
	munmap(p, SIZE);
	unlink(path);
	close(fd);
	return failed;
}

/* ---- for tests in Python --------------------------------------------------------------------------------------------------- */
static void list(struct bfs *b, u64 dir, const char *path)
{
	static u8 buf[1 << 20];
	struct bfs_dirent e[64];
	int n;
	for (u64 after = 0; (n = bfs_readdir(b, dir, after, e, 64)) > 0; after = e[n - 1].cookie)
		for (int i = 0; i < n; i++) {
			struct bfs_attr a;
			char p[1024];
			snprintf(p, sizeof p, "%s/%.*s", path, e[i].len, e[i].name);
			CHECK(!bfs_lookup(b, dir, e[i].name, e[i].len, &a));
			u64 sum = 0;
			if (S_ISREG(a.mode)) {
				u64 fh;
				CHECK(!bfs_open(b, a.ino, O_RDONLY, &fh));
				CHECK(bfs_read(b, fh, 0, buf, sizeof buf) == (ssize_t)a.size);
				sum = bfs_xxh(buf, a.size, 0);
				CHECK(!bfs_release(b, fh));
			}
			printf("%s %llu %o %u %llu %016llx\n", p, (unsigned long long)a.ino, a.mode, a.nlink, (unsigned long long)a.size, (unsigned long long)sum);
			if (S_ISDIR(a.mode)) list(b, a.ino, p);
		}
	CHECK(!n);
}

static int to_file(const char *path, u8 *pool)
{
	struct bfs_mem m = mem_of(pool, SIZE);
	struct bfs_opts o = opts;
	struct bfs *b;
	FILE *f = fopen(path, "w");
	CHECK(f && fwrite(pool, 1, SIZE, f) == SIZE && !fclose(f));
	o.readonly = true;
	CHECK(!bfs_attach(&m, &o, &b));
	list(b, BFS_ROOT_INO, "");
	CHECK(!bfs_detach(b, true));
	return 0;
}

static void print_finding(void *arg, int severity, const char *code, const char *text)
{
	(void)arg;
	printf("%s %s: %s\n", severity ? "problem" : "note", code, text);
}

static int check_file(const char *path)
{
	struct stat st;
	struct bfs_fsck_result r;
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && !fstat(fd, &st));
	u8 *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	struct bfs_mem m = mem_of(p, (size_t)st.st_size);
	int n = bfs_fsck(&m, true, print_finding, NULL, &r);
	printf("%llu pages, %llu objects, %llu entries, %llu extents, %llu blocks, %llu bad, %llu bytes checked, %d problems\n", (unsigned long long)r.pages, (unsigned long long)r.objects, (unsigned long long)r.entries,
	       (unsigned long long)r.extents, (unsigned long long)r.blocks, (unsigned long long)r.blocks_bad, (unsigned long long)r.bytes_checked, n);
	return n != 0;
}

int main(int argc, char **argv)
{
#ifdef __SANITIZE_ADDRESS__
	u64 rounds = 1500;
#else
	u64 rounds = 4000;
#endif
	const char *out = NULL;
	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && !strcmp(argv[i], "--rounds")) rounds = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--make")) out = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--check")) return check_file(argv[++i]);
		else return fprintf(stderr, "usage: t_fsck [--rounds N] [--seed S] | --make FILE | --check FILE\n"), 2;
	}
	u8 *good = malloc(SIZE), *work = malloc(SIZE);
	struct bfs_mem m = mem_of(good, SIZE);
	make(&m);
	if (out) return to_file(out, good);
	int failed = break_all(good, work);
	failed += unreadable(good);
	failed += random_damage(good, work, rounds);
	free(good);
	free(work);
	return failed != 0;
}
