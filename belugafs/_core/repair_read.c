/* Repair: everything that verifies in the damaged tree.
 *
 * A page counts when the pointer to it and its own header and checksum agree.  Pages below a
 * damaged node are out of reach of pointers, but not lost: by the page map and the log of
 * freed pages it is known which pages belong to this state, and pages of objects, entries and
 * records say themselves what they hold.  So if both are whole, such pages are taken in, with
 * the reservation that files found this way have to verify. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "repair.h"

/* ---- pages ------------------------------------------------------------------------------ */
static bool intact(struct rp *r, u32 page, void *buf)
{
	struct ck *k = r->k;
	const struct bfs_phead *h = buf;
	const u8 *p = k->m->base + fk_page_off(k, page);
	if (!k->m->coherent) {
		mm_inval(k->m, p, BFS_PAGE);
		mm_fence(k->m);
	}
	if (fk_page_off(k, page) + BFS_PAGE > k->m->size || bfs_guarded_copy(buf, p, BFS_PAGE, false)) return false;
	return h->self == page && !rp_after(r, h->term, h->txn) && h->csum == bfs_xxh((u8 *)buf + 32, BFS_PAGE - 32, k->sb.incarnation ^ bfs_xxh(buf, 24, k->sb.incarnation));
}

bool rp_page(struct rp *r, struct bfs_ptr p, int kind, void *buf)
{
	const struct bfs_phead *h = buf;
	if (p.page < 1 || p.page >= r->k->sb.meta_pages || !intact(r, p.page, buf)) return false;
	return h->kind == kind && h->term == p.term && h->txn == p.txn;
}

/* Each page has one place: the first that asks for it. */
static bool take(struct rp *r, struct bfs_ptr p, int kind, void *buf)
{
	if (!rp_page(r, p, kind, buf) || fk_get(r->seen, p.page)) return false;
	fk_set(r->seen, p.page);
	return true;
}

typedef void leaf_fn(struct rp *r, u64 index, void *buf);
/* false: a page of the table doesn't verify */
static bool table(struct rp *r, struct bfs_ptr p, u32 level, u64 base, u64 nleaves, int kind, leaf_fn *f)
{
	u64 buf[BFS_PAGE / 8], step = 1;
	const struct bfs_radix *n = (const void *)buf;
	bool ok = true;
	if (!p.page) return true;
	if (!take(r, p, level ? BFS_PK_RADIX : kind, buf)) return false;
	if (!level) {
		if (f) f(r, base, buf);
		return true;
	}
	if (n->h.aux != level) return false;
	for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
	for (u32 i = 0; i < BFS_RADIX_FAN; i++)
		if (base + i * step < nleaves) ok &= table(r, n->child[i], level - 1, base + i * step, nleaves, kind, f);
	return ok;
}

static void leaf_map(struct rp *r, u64 index, void *buf)
{
	const struct bfs_map *m = buf;
	for (u64 i = 0; i < BFS_MAP_BITS && index * BFS_MAP_BITS + i < r->k->sb.meta_pages; i++)
		if (fk_get(m->bits, i)) fk_set(r->mapbits, index * BFS_MAP_BITS + i);
}

static void leaf_log(struct rp *r, u64 index, void *buf)
{
	const struct bfs_log *l = buf;
	(void)index;
	if (l->h.count > BFS_LOG_MAX) r->log_ok = false;
	for (u32 i = 0; i < l->h.count && i < BFS_LOG_MAX; i++)
		if (l->e[i].page && l->e[i].page < r->k->sb.meta_pages) fk_set(r->logged, l->e[i].page);
		else r->log_ok = false;
}

/* ---- objects ----------------------------------------------------------------------------- */
bool rp_room(struct rp *r, u32 slots)
{
	if (slots <= r->nslots) return true;
	u32 n = r->nslots ? r->nslots : 64;
	while (n < slots) n = n > 1u << 30 ? slots : n * 2;
	if (n > r->k->sb.inodes) n = r->k->sb.inodes;
	struct rslot *s = realloc(r->s, (size_t)n * sizeof *s);
	if (!s) {
		r->k->err = -ENOMEM;
		return false;
	}
	memset(s + r->nslots, 0, (size_t)(n - r->nslots) * sizeof *s);
	r->s = s, r->nslots = n;
	return true;
}

static void objects(struct rp *r, u64 index, const void *buf, bool doubt)
{
	const struct bfs_objs *p = buf;
	u64 first = index * BFS_OBJS;
	if (first + BFS_OBJS > r->k->sb.inodes || !rp_room(r, (u32)(first + BFS_OBJS)) || r->s[first].read) return;
	for (u32 i = 0; i < BFS_OBJS; i++) {
		struct rslot *s = &r->s[first + i];
		s->o = p->o[i], s->free_next = p->o[i].next_free, s->read = 1, s->doubt = doubt;
		s->used = p->o[i].mode && first + i;
		if (s->used && p->o[i].slot != first + i) rp_drop(r, s, "it says that it is another object");
		if (p->o[i].gen > r->max_gen && !(p->o[i].gen >> 31)) r->max_gen = p->o[i].gen;
	}
}
static void leaf_obj(struct rp *r, u64 index, void *buf) { objects(r, index, buf, false); }

/* where a page of objects belongs, by itself */
static void stray_objects(struct rp *r, const struct bfs_objs *p)
{
	u32 at = BFS_OBJS;
	for (u32 i = 0; i < BFS_OBJS; i++) {
		if (!p->o[i].slot && !p->o[i].mode) continue;
		if (p->o[i].slot % BFS_OBJS != i || (at < BFS_OBJS && p->o[i].slot / BFS_OBJS != p->o[at].slot / BFS_OBJS)) return;
		if (at == BFS_OBJS) at = i;
	}
	if (at < BFS_OBJS) objects(r, p->o[at].slot / BFS_OBJS, p, true);
}

/* ---- entries -------------------------------------------------------------------------------- */
static inline u64 e64(u32 lo, u32 hi) { return (u64)hi << 32 | lo; }

/* One page; entries that can't be believed are left out: what they stood for has lost its name. */
static void bucket(struct rp *r, u32 page, const struct bfs_bucket *b)
{
	struct ck *k = r->k;
	u32 heap = b->h.aux < BFS_BUCKET_HEAP ? b->h.aux : BFS_BUCKET_HEAP;
	u64 tile[BFS_BUCKET_HEAP / 4 / 64 + 1] = {0};
	for (u32 i = 0; i < b->h.count && i < BFS_BUCKET_MAX; i++) {
		const struct bfs_ent *e = (const void *)(b->heap + b->off[i]);
		const u8 *name = (const u8 *)(e + 1);
		if (b->off[i] % 4 || b->off[i] + sizeof *e > heap || b->off[i] + sizeof *e + e->len > heap) continue;
		if (fk_get(tile, b->off[i] / 4)) continue; /* met before */
		fk_set(tile, b->off[i] / 4);
		bool dots = e->len <= 2 && name[0] == '.' && (e->len == 1 || name[1] == '.');
		if (e->kind == BFS_EK_KEY ? e->len < 2 || e->len > BFS_KEY_MAX : e->kind != BFS_EK_NAME || !e->len || dots || memchr(name, 0, e->len) || memchr(name, '/', e->len)) continue;
		struct rent x = {
			.dir = e64(e->dir_lo, e->dir_hi), .ino = e64(e->ino_lo, e->ino_hi), .cookie = e64(e->cookie_lo, e->cookie_hi),
			.prefix = e->kind == BFS_EK_KEY ? (u64)name[0] << 56 | (u64)name[1] << 48 : 0, .kind = e->kind, .owner = e->owner, .type = e->type, .len = e->len,
			.name = fk_page_off(k, page) + offsetof(struct bfs_bucket, heap) + b->off[i] + sizeof *e,
		};
		x.hash = XXH3_64bits_withSeed(name, x.len, k->sb.hash_seed ^ (x.dir * 0x9E3779B97F4A7C15ull) ^ (u64)x.kind << 62);
		x.bucket = (u32)(((unsigned __int128)(x.hash << 16) * k->sb.hash_buckets) >> 64);
		if (!x.cookie || x.cookie >> 62) continue;
		if (!ROOM(k, r->ent)) return;
		r->ent.v[r->ent.n++] = x;
	}
}

static void leaf_hash(struct rp *r, u64 index, void *buf)
{
	struct bfs_bucket *b = buf;
	(void)index;
	for (;;) {
		bucket(r, b->h.self, b);
		struct bfs_ptr more = b->more;
		if (!more.page || !take(r, more, BFS_PK_HASH, buf)) return;
	}
}

/* ---- records ---------------------------------------------------------------------------------- */
static void leaf_records(struct rp *r, const void *buf)
{
	const struct bfs_bleaf *l = buf;
	if (!l->h.count || l->h.count > BFS_BT_MAX) return;
	if (ROOM(r->k, r->leaf)) r->leaf.v[r->leaf.n++] = (struct bfs_ptr){l->h.self, l->h.term, l->h.txn};
	for (u32 i = 0; i < l->h.count; i++)
		if (ROOM(r->k, r->rec)) r->rec.v[r->rec.n++] = l->r[i];
}

static void tree(struct rp *r, struct bfs_ptr p, u32 level)
{
	u64 buf[BFS_PAGE / 8];
	const struct bfs_bnode *n = (const void *)buf;
	if (!take(r, p, level ? BFS_PK_BNODE : BFS_PK_BLEAF, buf)) return;
	if (!level) leaf_records(r, buf);
	else if (n->h.aux == level)
		for (u32 i = 0; i < n->h.count && i < BFS_BT_MAX; i++) tree(r, n->e[i].p, level - 1);
}

static int by_key(const void *p, const void *q)
{
	const struct bfs_rec *a = p, *b = q;
	int c = key_cmp(&a->k, &b->k);
	return c ? c : a->x != b->x ? (a->x < b->x ? -1 : 1) : a->y != b->y ? (a->y < b->y ? -1 : 1) : 0;
}

size_t rp_find(struct rp *r, struct bfs_key k)
{
	size_t lo = 0, hi = r->rec.n;
	while (lo < hi) {
		size_t m = (lo + hi) / 2;
		if (key_cmp(&r->rec.v[m].k, &k) < 0) lo = m + 1;
		else hi = m;
	}
	return lo;
}

/* ---- pages out of reach -------------------------------------------------------------------------- */
static void strays(struct rp *r)
{
	u64 buf[BFS_PAGE / 8];
	const struct bfs_phead *h = (const void *)buf;
	if (!r->map_ok || !r->log_ok) return;
	for (u32 p = 1; p < r->k->sb.meta_pages && !r->k->err; p++) {
		if (!fk_get(r->mapbits, p) || fk_get(r->logged, p) || fk_get(r->seen, p) || !intact(r, p, buf)) continue;
		if (h->kind != BFS_PK_OBJ && h->kind != BFS_PK_HASH && h->kind != BFS_PK_BLEAF) continue;
		fk_set(r->seen, p);
		if (h->kind == BFS_PK_OBJ) stray_objects(r, (const void *)buf);
		else if (h->kind == BFS_PK_HASH) bucket(r, p, (const void *)buf);
		else leaf_records(r, buf);
	}
}

/* ---- all ------------------------------------------------------------------------------------------ */
static u64 *bits(struct rp *r)
{
	u64 *b = calloc(r->k->sb.meta_pages / 64 + 1, 8);
	if (!b) r->k->err = -ENOMEM;
	return b;
}

int rp_read(struct rp *r)
{
	struct ck *k = r->k;
	const struct bfs_super *sb = &k->sb;
	const struct bfs_root *o = &r->old;
	r->seen = bits(r), r->mapbits = bits(r), r->logged = bits(r), r->kept = bits(r);
	if (k->err || !rp_room(r, 2 * BFS_OBJS)) return k->err;
	fk_set(r->seen, r->base.root.page);
	r->log_ok = true;
	r->map_ok = table(r, o->map, rx_height(fk_up(sb->meta_pages, BFS_MAP_BITS)), 0, fk_up(sb->meta_pages, BFS_MAP_BITS), BFS_PK_MAP, leaf_map);
	u64 logs = sb->meta_pages / (BFS_LOG_MAX / 2) + 4, regions = fk_up((sb->max_size_bytes - sb->data_off) / BFS_GRANULE, sb->region_granules);
	if (!table(r, o->log, rx_height(logs), 0, logs, BFS_PK_LOG, leaf_log)) r->log_ok = false;
	table(r, o->obj, rx_height(sb->inodes / BFS_OBJS), 0, sb->inodes / BFS_OBJS, BFS_PK_OBJ, leaf_obj);
	table(r, o->hash, rx_height(sb->hash_buckets), 0, sb->hash_buckets, BFS_PK_HASH, leaf_hash);
	if (o->bt.page && o->bt_height <= 12) tree(r, o->bt, o->bt_height);
	table(r, o->region, rx_height(regions), 0, regions, BFS_PK_REGION, NULL);
	table(r, o->stamp, rx_height(fk_up(sb->inodes, BFS_STAMPS)), 0, fk_up(sb->inodes, BFS_STAMPS), BFS_PK_STAMP, NULL);
	strays(r);
	fk_sort(r->rec.v, r->rec.n, sizeof *r->rec.v, by_key);
	size_t n = 0;
	for (size_t i = 0; i < r->rec.n; i++) /* two of one key: neither is believed more, the first is kept to be checked */
		if (!n || key_cmp(&r->rec.v[n - 1].k, &r->rec.v[i].k)) r->rec.v[n++] = r->rec.v[i];
	r->rec.n = n;
	return k->err;
}

void rp_free(struct rp *r)
{
	free(r->seen), free(r->mapbits), free(r->logged), free(r->kept);
	free(r->s), free(r->ent.v), free(r->rec.v), free(r->leaf.v), free(r->piece.v), free(r->want.v), free(r->run.v), free(r->row.v);
	free(r->order);
}

/* ---- paths for messages ------------------------------------------------------------------------------ */
const char *rp_name(struct rp *r, const struct rent *e, char *buf, size_t size)
{
	size_t at = size - 1;
	buf[at] = 0;
	for (int depth = 0; depth < 64; depth++) {
		char part[4 * 256 + 16];
		u8 name[256];
		size_t n = 0;
		if (e->made) memcpy(name, e->text, e->len);
		else if (!fk_rd(r->k, e->name, name, e->len)) return "?";
		if (e->kind == BFS_EK_KEY) n = (size_t)snprintf(part, sizeof part, "%02x/%02x/", name[0], name[1]);
		for (u32 j = 0; j < e->len; j++)
			if (e->kind == BFS_EK_KEY) n += (size_t)snprintf(part + n, sizeof part - n, "%02x", name[j]);
			else if (name[j] < 0x20 || name[j] == '\\' || name[j] >= 0x7f) n += (size_t)snprintf(part + n, sizeof part - n, "\\x%02x", name[j]);
			else part[n++] = (char)name[j];
		if (n + 5 > at) {
			if (at > 3) memcpy(buf + (at -= 3), "...", 3);
			return buf + at;
		}
		memcpy(buf + (at -= n), part, n);
		buf[--at] = '/';
		if (e->dir == BFS_ROOT_INO) break;
		struct rslot *d = rp_ino(r, e->dir);
		const struct rent *up = d && d->first ? &r->ent.v[d->first - 1] : NULL;
		if (!up) { /* its directory isn't there any more */
			n = (size_t)snprintf(part, sizeof part, "<inode %llu>", (ull)e->dir);
			if (n < at) memcpy(buf + (at -= n), part, n);
			break;
		}
		e = up;
	}
	return buf + at;
}
