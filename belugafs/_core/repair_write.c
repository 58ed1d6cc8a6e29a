/* Repair: the pages of the repaired tree.
 *
 * A page that would have the same content as the one in its place stays; all others are new,
 * and lie where nothing of the damaged state does that verifies.  So as long as no root line
 * names the new root page, the damaged state is what it was. */
#include <stdlib.h>
#include <sys/stat.h>
#include "repair.h"

#define LEAF_FILL 96u /* records of a new leaf, children of a new node: room for what comes next */

/* ---- pages --------------------------------------------------------------------------------- */
static bool keep(struct rp *r, struct bfs_ptr p)
{
	if (fk_get(r->kept, p.page)) return false;
	fk_set(r->kept, p.page);
	r->nkept++;
	return true;
}

/* A page that is free in the damaged state; when these are used up, one that its map counts as
 * used and nothing that verifies leads to. */
static u32 fresh(struct rp *r)
{
	u32 n = r->k->sb.meta_pages;
	for (; r->pass < 2; r->pass++, r->cursor = 0)
		while (++r->cursor < n) {
			u32 p = r->cursor;
			if (fk_get(r->seen, p) || fk_get(r->kept, p) || (!r->pass && fk_get(r->mapbits, p) && !fk_get(r->logged, p))) continue;
			fk_set(r->kept, p);
			r->nkept++, r->written++;
			return p;
		}
	if (!r->k->err) r->k->err = -ENOSPC;
	return 0;
}

static struct bfs_ptr put_at(struct rp *r, u32 page, void *buf)
{
	struct ck *k = r->k;
	struct bfs_phead *h = buf;
	u8 *p = k->m->base + fk_page_off(k, page);
	if (!page || k->err) return (struct bfs_ptr){0};
	h->self = page, h->term = r->term, h->txn = r->txn;
	h->csum = bfs_xxh((u8 *)buf + 32, BFS_PAGE - 32, k->sb.incarnation ^ bfs_xxh(buf, 24, k->sb.incarnation));
	if (k->m->ops->copy_in(k->m, p, buf, BFS_PAGE)) k->err = -EIO;
	mm_flush(k->m, p, BFS_PAGE);
	return (struct bfs_ptr){page, r->term, r->txn};
}

/* buf has kind, count, aux and body as they should be */
static struct bfs_ptr settle(struct rp *r, struct bfs_ptr old, void *buf)
{
	u64 was[BFS_PAGE / 8];
	const struct bfs_phead *h = buf, *w = (const void *)was;
	if (old.page && rp_page(r, old, h->kind, was) && h->count == w->count && h->aux == w->aux && !memcmp((u8 *)buf + 32, (u8 *)was + 32, BFS_PAGE - 32) && keep(r, old)) return old;
	return put_at(r, fresh(r), buf);
}

/* ---- tables ---------------------------------------------------------------------------------- */
typedef struct bfs_ptr leaf_fn(struct rp *r, u64 index, struct bfs_ptr old);
typedef bool any_fn(struct rp *r, u64 from, u64 to); /* a leaf is wanted in [from, to), where there is none now */
static struct bfs_ptr table(struct rp *r, struct bfs_ptr old, u32 level, u64 base, u64 nleaves, leaf_fn *f, any_fn *wanted)
{
	u64 was[BFS_PAGE / 8], step = 1;
	struct bfs_radix n = {.h.kind = BFS_PK_RADIX, .h.aux = level};
	const struct bfs_radix *w = (const void *)was;
	bool any = false;
	if (r->k->err) return (struct bfs_ptr){0};
	if (!level) return f(r, base, old);
	bool had = old.page && rp_page(r, old, BFS_PK_RADIX, was) && w->h.aux == level;
	if (had) n.h.count = w->h.count; /* not used */
	for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
	if (!had && !wanted(r, base, base + step * BFS_RADIX_FAN)) return (struct bfs_ptr){0};
	for (u32 i = 0; i < BFS_RADIX_FAN && base + i * step < nleaves; i++) {
		n.child[i] = table(r, had ? w->child[i] : (struct bfs_ptr){0}, level - 1, base + i * step, nleaves, f, wanted);
		any |= n.child[i].page != 0;
	}
	return any ? settle(r, had ? old : (struct bfs_ptr){0}, &n) : (struct bfs_ptr){0};
}

static bool any_obj(struct rp *r, u64 from, u64 to)
{
	(void)to;
	return from * BFS_OBJS < r->nslots;
}
static bool any_run(struct rp *r, u64 from, u64 to)
{
	(void)to;
	return r->run.n && from * r->k->sb.region_granules <= BFS_GIDX(r->run.v[r->run.n - 1].addr) + r->run.v[r->run.n - 1].len;
}
static bool any_stamp(struct rp *r, u64 from, u64 to) { return (void)r, (void)from, (void)to, false; }

static struct bfs_ptr leaf_obj(struct rp *r, u64 index, struct bfs_ptr old)
{
	struct bfs_objs n = {.h.kind = BFS_PK_OBJ};
	u64 first = index * BFS_OBJS, was[BFS_PAGE / 8];
	if (first >= r->nslots || (!r->s[first].read && first >= r->root.slot_virgin)) return (struct bfs_ptr){0};
	for (u32 i = 0; i < BFS_OBJS; i++) n.o[i] = r->s[first + i].o;
	if (old.page && rp_page(r, old, BFS_PK_OBJ, was)) n.h.count = ((struct bfs_phead *)was)->count, n.h.aux = ((struct bfs_phead *)was)->aux;
	return settle(r, old, &n);
}

static struct bfs_ptr leaf_stamp(struct rp *r, u64 index, struct bfs_ptr old)
{
	u64 was[BFS_PAGE / 8];
	(void)index;
	return old.page && rp_page(r, old, BFS_PK_STAMP, was) && keep(r, old) ? old : (struct bfs_ptr){0};
}

/* as in alloc.c: only a matter of placement */
static u32 class_of(u32 n)
{
	if (n <= 8) return n - 1;
	u32 e = 31 - (u32)__builtin_clz(n);
	return 8 * (e - 3) + (n >> (e - 3) & 7) + 7;
}

static struct bfs_ptr leaf_region(struct rp *r, u64 index, struct bfs_ptr old)
{
	struct bfs_region n = {.h.kind = BFS_PK_REGION};
	u64 was[BFS_PAGE / 8], from = index * r->k->sb.region_granules, to = from + r->k->sb.region_granules;
	const struct bfs_region *w = (const void *)was;
	u32 first = 0;
	bool had = old.page && rp_page(r, old, BFS_PK_REGION, was);
	if (to > r->k->sb.data_granules) to = r->k->sb.data_granules;
	while (r->run_at < r->run.n && BFS_GIDX(r->run.v[r->run_at].addr) + r->run.v[r->run_at].len <= from) r->run_at++;
	n.h.aux = (u32)(to - from);
	for (size_t j = r->run_at; j < r->run.n && BFS_GIDX(r->run.v[j].addr) < to; j++) {
		u64 a = BFS_GIDX(r->run.v[j].addr), e = a + r->run.v[j].len;
		if (!first) first = r->run.v[j].len;
		for (u64 x = a < from ? from : a; x < e && x < to; x++) fk_set(n.bits, x - from), n.h.aux--;
	}
	if (first) n.h.count = had && w->h.count && w->h.count <= 97 ? w->h.count : (u16)(class_of(first) + 1);
	else if (!had) return (struct bfs_ptr){0};
	return settle(r, old, &n);
}

/* ---- entries ----------------------------------------------------------------------------------- */
/* entries that stay, by bucket: place of the first of this bucket or a later one */
static u32 order_at(struct rp *r, u64 bucket)
{
	u32 lo = 0, hi = r->norder;
	while (lo < hi) {
		u32 m = lo + (hi - lo) / 2;
		if (r->ent.v[r->order[m]].bucket < bucket) lo = m + 1;
		else hi = m;
	}
	return lo;
}
static bool any_hash(struct rp *r, u64 from, u64 to) { return order_at(r, from) < order_at(r, to); }

/* The pages of a bucket hold just the entries that they should, as they should be. */
static bool bucket_good(struct rp *r, const u32 *in, struct bfs_ptr old, u32 n)
{
	u64 was[BFS_PAGE / 8];
	const struct bfs_bucket *b = (const void *)was;
	u32 found = 0, pages = 0;
	for (struct bfs_ptr p = old; p.page; p = b->more) {
		u32 sum = 0;
		if (!rp_page(r, p, BFS_PK_HASH, was) || fk_get(r->kept, p.page) || ++pages > n + 1 || b->h.count > BFS_BUCKET_MAX || b->h.aux > BFS_BUCKET_HEAP || (!b->h.count && pages > 1)) return false;
		for (u32 i = 0; i < b->h.count; i++) {
			const struct bfs_ent *e = (const void *)(b->heap + b->off[i]);
			u64 at = fk_page_off(r->k, p.page) + offsetof(struct bfs_bucket, heap) + b->off[i] + sizeof *e;
			const struct rent *x = NULL;
			if (b->off[i] % 4 || b->off[i] + sizeof *e > b->h.aux || b->off[i] + sizeof *e + e->len > b->h.aux) return false;
			for (u32 j = 0; j < n && !x; j++)
				if (!r->ent.v[in[j]].made && r->ent.v[in[j]].name == at) x = &r->ent.v[in[j]];
			if (!x || x->owner != e->owner || x->type != e->type || b->fp[i] != (u16)(x->hash >> 48)) return false;
			sum += (u32)(sizeof *e + e->len + 3) & ~3u;
			found++;
		}
		if (sum != b->h.aux) return false;
		if (b->more.page == p.page) return false;
	}
	return found == n;
}

static struct bfs_ptr leaf_hash(struct rp *r, u64 index, struct bfs_ptr old)
{
	u64 was[BFS_PAGE / 8];
	u32 first = order_at(r, index), n = order_at(r, index + 1) - first;
	const u32 *in = r->order + first;
	if (!old.page) old = (struct bfs_ptr){0};
	if (bucket_good(r, in, old, n)) {
		for (struct bfs_ptr p = old; p.page; p = ((const struct bfs_bucket *)was)->more)
			if (!rp_page(r, p, BFS_PK_HASH, was) || !keep(r, p)) {
				r->k->err = -EIO; /* it changed under us */
				break;
			}
		return old;
	}
	struct bfs_ptr more = {0};
	for (u32 j = 0; j < n && !r->k->err;) { /* the chain is made from its end */
		struct bfs_bucket b = {.h.kind = BFS_PK_HASH, .more = more};
		for (; j < n && b.h.count < BFS_BUCKET_MAX; j++) {
			const struct rent *x = &r->ent.v[in[j]];
			u32 size = (u32)(sizeof(struct bfs_ent) + x->len + 3) & ~3u;
			if (b.h.aux + size > BFS_BUCKET_HEAP) break;
			struct bfs_ent *e = (void *)(b.heap + b.h.aux);
			*e = (struct bfs_ent){(u32)x->dir, (u32)(x->dir >> 32), (u32)x->ino, (u32)(x->ino >> 32), (u32)x->cookie, (u32)(x->cookie >> 32), x->kind, x->owner, x->type, x->len};
			if (x->made) memcpy(e + 1, x->text, x->len);
			else if (!fk_rd(r->k, x->name, e + 1, x->len)) r->k->err = -EIO;
			b.fp[b.h.count] = (u16)(x->hash >> 48);
			b.off[b.h.count++] = (u16)b.h.aux;
			b.h.aux += size;
		}
		more = put_at(r, fresh(r), &b);
	}
	return more;
}

static const struct rp *cur; /* for qsort */
static int by_bucket(const void *p, const void *q)
{
	const struct rent *a = &cur->ent.v[*(const u32 *)p], *b = &cur->ent.v[*(const u32 *)q];
	return a->bucket != b->bucket ? (a->bucket < b->bucket ? -1 : 1) : a < b ? -1 : a > b;
}

static void order(struct rp *r)
{
	r->order = malloc((r->ent.n + 1) * sizeof *r->order);
	if (!r->order) {
		r->k->err = -ENOMEM;
		return;
	}
	for (u32 i = 0; i < r->ent.n; i++)
		if (r->ent.v[i].keep) r->order[r->norder++] = i;
	cur = r;
	fk_sort(r->order, r->norder, sizeof *r->order, by_bucket);
}

/* ---- pages that hang on objects ----------------------------------------------------------------- */
static void keep_sums(struct rp *r, struct bfs_ptr p, u32 level)
{
	u64 buf[BFS_PAGE / 8];
	if (!p.page || !keep(r, p)) return;
	if (!level || !rp_page(r, p, BFS_PK_RADIX, buf)) return;
	for (u32 i = 0; i < BFS_RADIX_FAN; i++) keep_sums(r, ((const struct bfs_radix *)buf)->child[i], level - 1);
}

static void keep_hanging(struct rp *r)
{
	for (u32 i = 1; i < r->nslots; i++) {
		const struct rslot *s = &r->s[i];
		u64 buf[BFS_PAGE / 8];
		if (!s->used || s->drop) continue;
		for (struct bfs_ptr p = s->o.blob; p.page && rp_page(r, p, BFS_PK_BLOB, buf) && keep(r, p); p = ((const struct bfs_blob *)buf)->next) {}
		if (S_ISREG(s->o.mode) && s->o.nsums > BFS_INLINE_SUMS) keep_sums(r, s->o.v.sums, s->o.sums_height);
	}
}

/* ---- records --------------------------------------------------------------------------------------- */
struct child {
	struct bfs_key k;
	struct bfs_ptr p;
};
static int by_first(const void *p, const void *q) { return key_cmp(&((const struct child *)p)->k, &((const struct child *)q)->k); }

struct children {
	struct child *v;
	size_t n, cap;
};
static void add(struct rp *r, struct children *c, struct bfs_key k, struct bfs_ptr p)
{
	if (ROOM(r->k, *c)) c->v[c->n++] = (struct child){k, p};
}

static void records(struct rp *r)
{
	struct children c = {0}, old = {0};
	struct bfs_bleaf l = {.h.kind = BFS_PK_BLEAF};
	u64 was[BFS_PAGE / 8];
	const struct bfs_bleaf *w = (const void *)was;
	size_t at = 0, o = 0;
	for (size_t i = 0; i < r->leaf.n; i++)
		if (rp_page(r, r->leaf.v[i], BFS_PK_BLEAF, was)) add(r, &old, w->r[0].k, r->leaf.v[i]);
	fk_sort(old.v, old.n, sizeof *old.v, by_first);
	while (at < r->want.n && !r->k->err) {
		while (o < old.n && key_cmp(&old.v[o].k, &r->want.v[at].k) < 0) o++;
		if (o < old.n && !key_cmp(&old.v[o].k, &r->want.v[at].k) && rp_page(r, old.v[o].p, BFS_PK_BLEAF, was) && w->h.count <= r->want.n - at && !memcmp(w->r, &r->want.v[at], w->h.count * sizeof *w->r) && keep(r, old.v[o].p)) {
			if (l.h.count) {
				add(r, &c, l.r[0].k, put_at(r, fresh(r), &l));
				l = (struct bfs_bleaf){.h.kind = BFS_PK_BLEAF};
			}
			add(r, &c, w->r[0].k, old.v[o].p);
			at += w->h.count, o++;
			continue;
		}
		l.r[l.h.count++] = r->want.v[at++];
		if (l.h.count == LEAF_FILL || at == r->want.n) {
			add(r, &c, l.r[0].k, put_at(r, fresh(r), &l));
			l = (struct bfs_bleaf){.h.kind = BFS_PK_BLEAF};
		}
	}
	for (r->root.bt_height = 0; c.n > 1 && !r->k->err;) {
		size_t n = 0;
		r->root.bt_height++;
		for (size_t i = 0; i < c.n; n++) {
			struct bfs_bnode b = {.h.kind = BFS_PK_BNODE, .h.aux = r->root.bt_height};
			struct bfs_key first = c.v[i].k;
			for (; i < c.n && b.h.count < LEAF_FILL; i++) b.e[b.h.count].k = c.v[i].k, b.e[b.h.count++].p = c.v[i].p;
			c.v[n] = (struct child){first, put_at(r, fresh(r), &b)};
		}
		c.n = n;
	}
	r->root.bt = c.n ? c.v[0].p : (struct bfs_ptr){0};
	free(c.v), free(old.v);
}

/* ---- map and root ------------------------------------------------------------------------------------- */
/* Its own pages are in it, so all of them are chosen before the first is written. */
static void map_and_root(struct rp *r, struct bfs_ptr *rootp)
{
	u64 n = fk_up(r->k->sb.meta_pages, BFS_MAP_BITS), all = n;
	u32 height = rx_height(n);
	u64 count[6] = {n};
	for (u32 l = 1; l <= height; l++) all += count[l] = fk_up(count[l - 1], BFS_RADIX_FAN);
	u32 *page = calloc(all + 1, sizeof *page);
	if (!page) {
		r->k->err = -ENOMEM;
		return;
	}
	for (u64 i = 0; i <= all; i++) page[i] = fresh(r);
	for (u64 i = 0; i < n && !r->k->err; i++) {
		struct bfs_map m = {.h.kind = BFS_PK_MAP};
		for (u64 p = i * BFS_MAP_BITS, b = 0; p < r->k->sb.meta_pages && b < BFS_MAP_BITS; p++, b++)
			if (fk_get(r->kept, p)) fk_set(m.bits, b);
		put_at(r, page[i], &m);
	}
	u64 below = 0, here = n;
	for (u32 l = 1; l <= height && !r->k->err; l++) {
		for (u64 i = 0; i < count[l]; i++) {
			struct bfs_radix x = {.h.kind = BFS_PK_RADIX, .h.aux = l};
			for (u32 j = 0; j < BFS_RADIX_FAN && i * BFS_RADIX_FAN + j < count[l - 1]; j++) x.child[j] = (struct bfs_ptr){page[below + i * BFS_RADIX_FAN + j], r->term, r->txn};
			put_at(r, page[here + i], &x);
		}
		below = here, here += count[l];
	}
	struct bfs_root *root = &r->root;
	root->map = (struct bfs_ptr){page[all - 1], r->term, r->txn};
	root->pages_used = r->nkept;
	root->time_ns = (i64)r->k->m->ops->now_ns(r->k->m);
	root->h = (struct bfs_phead){.kind = BFS_PK_ROOT};
	memset(root->pad, 0, sizeof root->pad);
	mm_fence(r->k->m); /* who finds the root page finds its tree */
	*rootp = put_at(r, page[all], root);
	mm_fence(r->k->m);
	free(page);
}

int rp_write(struct rp *r, struct bfs_ptr *rootp)
{
	const struct bfs_super *sb = &r->k->sb;
	u64 regions = fk_up((sb->max_size_bytes - sb->data_off) / BFS_GRANULE, sb->region_granules);
	order(r);
	if (r->k->err) return r->k->err;
	keep_hanging(r);
	r->root.obj = table(r, r->old.obj, rx_height(sb->inodes / BFS_OBJS), 0, sb->inodes / BFS_OBJS, leaf_obj, any_obj);
	r->root.hash = table(r, r->old.hash, rx_height(sb->hash_buckets), 0, sb->hash_buckets, leaf_hash, any_hash);
	records(r);
	r->root.region = table(r, r->old.region, rx_height(regions), 0, fk_up(sb->data_granules, sb->region_granules), leaf_region, any_run);
	r->root.stamp = table(r, r->old.stamp, rx_height(fk_up(sb->inodes, BFS_STAMPS)), 0, fk_up(sb->inodes, BFS_STAMPS), leaf_stamp, any_stamp);
	if (!r->k->err) map_and_root(r, rootp);
	return r->k->err;
}
