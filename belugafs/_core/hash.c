/* Entries by (directory, kind, name): hashed buckets of one page, with overflow pages.
 * The whole name is compared; the hash is only a hint. */
#include "internal.h"
#include <xxhash.h>

u64 ht_hash(struct bfs *b, u64 dir, int kind, const void *name, size_t len)
{
	u64 seed = b->sb.hash_seed ^ (dir * 0x9E3779B97F4A7C15ull) ^ (u64)(unsigned)kind << 62;
	return XXH3_64bits_withSeed(name, len, seed);
}

static inline u64 bucket_of(struct bfs *b, u64 hash) { return (u64)(((unsigned __int128)(hash << 16) * b->sb.hash_buckets) >> 64); }
static inline u16 fp_of(u64 hash) { return (u16)(hash >> 48); }

static inline u64 e64(u32 lo, u32 hi) { return (u64)hi << 32 | lo; }
static inline const struct bfs_ent *ent(const struct bfs_bucket *k, u32 i)
{
	/* offsets were checked when the page was met; the mask keeps a page that somebody
	 * damages under us inside its bounds */
	u32 off = k->off[i];
	if (off > BFS_BUCKET_HEAP - sizeof(struct bfs_ent) - 256) {
		const struct bfs_ent *e = (const void *)(k->heap + (off < BFS_BUCKET_HEAP - sizeof *e ? off : 0));
		return off + sizeof *e + e->len <= BFS_BUCKET_HEAP ? e : (const void *)k->heap;
	}
	return (const void *)(k->heap + off);
}

static void out(const struct bfs_ent *e, u64 hash, struct ht_entry *r)
{
	r->dir = e64(e->dir_lo, e->dir_hi);
	r->ino = e64(e->ino_lo, e->ino_hi);
	r->cookie = e64(e->cookie_lo, e->cookie_hi);
	r->hash = hash;
	r->kind = e->kind, r->owner = e->owner, r->type = e->type, r->len = e->len;
	memcpy(r->name, e + 1, e->len);
	r->name[e->len] = 0;
}

/* A chain that was damaged into a circle ends here, and not never. */
static const struct bfs_bucket *next(struct bfs *b, const struct bfs_bucket *k, u32 *hops, int *rc)
{
	if (!k->more.page) return NULL;
	if (++*hops < b->sb.meta_pages) return pg_get(b, k->more, BFS_PK_HASH, rc);
	*rc = bfs_fail(b, -EIO, "bucket page %u is in a circle; run fsck.belugafs -n", k->h.self);
	return NULL;
}

static inline bool same(const struct bfs_ent *e, u64 dir, int kind, const void *name, size_t len)
{
	return e->len == len && e64(e->dir_lo, e->dir_hi) == dir && e->kind == kind && !memcmp(e + 1, name, len);
}

static const struct bfs_bucket *head(struct view *v, u64 hash, int *rc)
{
	return rx_get(v->b, v->root->hash, v->b->h_hash, bucket_of(v->b, hash), BFS_PK_HASH, rc);
}

int ht_find(struct view *v, u64 dir, int kind, const void *name, size_t len, struct ht_entry *r)
{
	u64 hash = ht_hash(v->b, dir, kind, name, len);
	u16 fp = fp_of(hash);
	u8 me = (u8)(v->b->slot + 1);
	int rc = 0, found = 0;
	u32 hops = 0;
	for (const struct bfs_bucket *k = head(v, hash, &rc); k && !rc; k = next(v->b, k, &hops, &rc))
		for (u32 i = 0; i < k->h.count && i < BFS_BUCKET_MAX; i++) {
			if (k->fp[i] != fp) continue;
			const struct bfs_ent *e = ent(k, i);
			if (!same(e, dir, kind, name, len) || (e->owner && e->owner != me)) continue;
			if (!found || e->owner == me) out(e, hash, r);
			found = 1;
			if (e->owner == me) return 0;
		}
	return rc ? rc : found ? 0 : -ENOENT;
}

int ht_find_owner(struct view *v, u64 dir, int kind, const void *name, size_t len, u8 owner, struct ht_entry *r)
{
	u64 hash = ht_hash(v->b, dir, kind, name, len);
	int rc = 0;
	u32 hops = 0;
	for (const struct bfs_bucket *k = head(v, hash, &rc); k && !rc; k = next(v->b, k, &hops, &rc))
		for (u32 i = 0; i < k->h.count && i < BFS_BUCKET_MAX; i++) {
			const struct bfs_ent *e;
			if (k->fp[i] != fp_of(hash) || !same(e = ent(k, i), dir, kind, name, len) || e->owner != owner) continue;
			out(e, hash, r);
			return 0;
		}
	return rc ? rc : -ENOENT;
}

/* Bucket pages in which (dir, cookie) lies: pointer path for changing it. */
struct place {
	struct bfs_bucket *k; /* dirty */
	struct bfs_ptr *ref;  /* what points to it */
	u32 i;
};

static inline bool is(const struct bfs_ent *e, u64 dir, u64 cookie) { return e64(e->cookie_lo, e->cookie_hi) == cookie && e64(e->dir_lo, e->dir_hi) == dir; }

int ht_by_cookie(struct view *v, u64 hash, u64 dir, u64 cookie, struct ht_entry *r)
{
	int rc = 0;
	u32 hops = 0;
	for (const struct bfs_bucket *k = head(v, hash, &rc); k && !rc; k = next(v->b, k, &hops, &rc))
		for (u32 i = 0; i < k->h.count && i < BFS_BUCKET_MAX; i++) {
			if (k->fp[i] != fp_of(hash)) continue;
			const struct bfs_ent *e = ent(k, i);
			if (is(e, dir, cookie)) {
				out(e, hash, r);
				return 0;
			}
		}
	return rc ? rc : -ENOENT;
}

static int locate(struct txn *t, u64 hash, u64 dir, u64 cookie, struct place *pl)
{
	struct bfs *b = t->b;
	struct ht_entry x;
	int rc = ht_by_cookie(tview(t), hash, dir, cookie, &x);
	if (rc) return rc == -ENOENT ? rc : (t->poison = rc);
	struct bfs_bucket *k = rx_cow(t, &t->root->hash, b->h_hash, bucket_of(b, hash), BFS_PK_HASH);
	pl->ref = NULL;
	for (; k; k = pg_cow(t, pl->ref, BFS_PK_HASH)) {
		for (u32 i = 0; i < k->h.count; i++)
			if (k->fp[i] == fp_of(hash) && is(ent(k, i), dir, cookie)) {
				pl->k = k, pl->i = i;
				return 0;
			}
		pl->ref = &k->more;
		if (!k->more.page) return t->poison = -EIO;
	}
	return t->poison;
}

static inline u32 ent_size(u32 len) { return (u32)(sizeof(struct bfs_ent) + len + 3) & ~3u; }

int ht_insert(struct txn *t, u64 hash, u64 dir, int kind, const void *name, size_t len, u64 ino, u64 cookie, u8 type, u8 owner)
{
	struct bfs *b = t->b;
	u32 need = ent_size((u32)len);
	struct bfs_bucket *k = rx_cow(t, &t->root->hash, b->h_hash, bucket_of(b, hash), BFS_PK_HASH);
	for (u32 hops = 0; k && (k->h.count == BFS_BUCKET_MAX || k->h.aux + need > BFS_BUCKET_HEAP);) {
		if (++hops == b->sb.meta_pages) return txn_fail(t, bfs_fail(b, -EIO, "bucket page %u is in a circle; run fsck.belugafs -n", k->h.self));
		k = k->more.page ? pg_cow(t, &k->more, BFS_PK_HASH) : pg_new(t, &k->more, BFS_PK_HASH);
	}
	if (!k) return t->poison;
	struct bfs_ent *e = (void *)(k->heap + k->h.aux);
	*e = (struct bfs_ent){(u32)dir, (u32)(dir >> 32), (u32)ino, (u32)(ino >> 32), (u32)cookie, (u32)(cookie >> 32), (u8)kind, owner, type, (u8)len};
	memset(e + 1, 0, need - sizeof *e);
	memcpy(e + 1, name, len);
	k->fp[k->h.count] = fp_of(hash);
	k->off[k->h.count++] = (u16)k->h.aux;
	k->h.aux += need;
	return 0;
}

int ht_remove(struct txn *t, u64 hash, u64 dir, u64 cookie)
{
	struct place pl;
	int rc = locate(t, hash, dir, cookie, &pl);
	if (rc) return rc;
	struct bfs_bucket *k = pl.k;
	u32 off = k->off[pl.i], size = ent_size(ent(k, pl.i)->len);
	memmove(k->heap + off, k->heap + off + size, k->h.aux - off - size);
	memset(k->heap + k->h.aux - size, 0, size);
	k->h.aux -= size;
	k->h.count--;
	k->off[pl.i] = k->off[k->h.count], k->fp[pl.i] = k->fp[k->h.count];
	k->off[k->h.count] = 0, k->fp[k->h.count] = 0;
	for (u32 i = 0; i < k->h.count; i++)
		if (k->off[i] > off) k->off[i] = (u16)(k->off[i] - size);
	if (!k->h.count && pl.ref) { /* empty overflow page: unlink it */
		struct bfs_ptr gone = *pl.ref, more = k->more;
		pg_free(t, &gone);
		*pl.ref = more;
	}
	return t->poison;
}

int ht_set(struct txn *t, u64 hash, u64 dir, u64 cookie, u64 ino, u8 type, u8 owner)
{
	struct place pl;
	int rc = locate(t, hash, dir, cookie, &pl);
	if (rc) return rc;
	struct bfs_ent *e = (void *)(uintptr_t)ent(pl.k, pl.i);
	e->ino_lo = (u32)ino, e->ino_hi = (u32)(ino >> 32);
	e->type = type, e->owner = owner;
	return 0;
}

/* Batched look-up.  A single one is three dependent cache misses (radix leaf node, bucket
 * head, entry); done for a group at a time with prefetches in between they overlap. */
int ht_find_many(struct view *v, u64 dir, int kind, const void *keys, size_t klen, int n, u64 *ino)
{
	enum { G = 32 };
	struct bfs *b = v->b;
	const u8 *kb = keys;
	int hits = 0, rc = 0;
	u8 me = (u8)(b->slot + 1);
	for (int g = 0; g < n; g += G) {
		int m = n - g < G ? n - g : G;
		u64 hash[G];
		const struct bfs_bucket *k[G];
		struct bfs_ptr p[G];
		for (int i = 0; i < m; i++) hash[i] = ht_hash(b, dir, kind, kb + (size_t)(g + i) * klen, klen);
		if (b->h_hash) { /* down to the last inner node, then its pointer, then the page */
			const struct bfs_ptr *slot[G];
			for (int i = 0; i < m; i++) {
				u64 idx = bucket_of(b, hash[i]);
				struct bfs_ptr q = v->root->hash;
				slot[i] = NULL;
				u64 div = 1;
				for (u32 l = 1; l < b->h_hash; l++) div *= BFS_RADIX_FAN;
				for (u32 l = b->h_hash; l; l--, div /= BFS_RADIX_FAN) {
					const struct bfs_radix *node = q.page ? pg_get(b, q, BFS_PK_RADIX, &rc) : NULL;
					if (rc) return rc;
					if (!node) break;
					const struct bfs_ptr *c = &node->child[idx / div % BFS_RADIX_FAN];
					if (l == 1) {
						slot[i] = c;
						__builtin_prefetch(c);
					} else {
						q = *c;
					}
				}
			}
			for (int i = 0; i < m; i++) {
				p[i] = slot[i] ? *slot[i] : (struct bfs_ptr){0};
				if (p[i].page - 1 < b->sb.meta_pages - 1) {
					const u8 *pg = pg_addr(b, p[i].page);
					__builtin_prefetch(&b->valid[p[i].page]);
					for (u32 off = 0; off < offsetof(struct bfs_bucket, off) + 80; off += BFS_LINE) __builtin_prefetch(pg + off);
				}
			}
		} else {
			for (int i = 0; i < m; i++) p[i] = v->root->hash;
		}
		for (int i = 0; i < m; i++) {
			k[i] = p[i].page ? pg_get(b, p[i], BFS_PK_HASH, &rc) : NULL;
			if (rc) return rc;
			if (!k[i]) continue;
			u16 fp = fp_of(hash[i]);
			for (u32 j = 0; j < k[i]->h.count && j < BFS_BUCKET_MAX; j++)
				if (k[i]->fp[j] == fp) {
					const u8 *e = (const void *)ent(k[i], j);
					__builtin_prefetch(e);
					__builtin_prefetch(e + sizeof(struct bfs_ent) + klen - 1);
				}
		}
		for (int i = 0; i < m; i++) {
			const u8 *key = kb + (size_t)(g + i) * klen;
			u16 fp = fp_of(hash[i]);
			u32 hops = 0;
			ino[g + i] = 0;
			for (const struct bfs_bucket *q = k[i]; q && !ino[g + i]; q = next(b, q, &hops, &rc))
				for (u32 j = 0; j < q->h.count && j < BFS_BUCKET_MAX; j++) {
					const struct bfs_ent *e;
					if (q->fp[j] != fp || !same(e = ent(q, j), dir, kind, key, klen) || (e->owner && e->owner != me)) continue;
					ino[g + i] = e64(e->ino_lo, e->ino_hi);
					hits++;
					break;
				}
			if (rc) return rc;
		}
	}
	return hits;
}
