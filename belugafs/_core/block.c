/* Native blocks: (namespace, raw key) -> one immutable object, for engines that bring
 * hashes instead of names.
 *
 * A put is one transaction: space, data, sums, object, entry.  The data is in the pool
 * before the root that names it is published, so nobody ever finds a key whose bytes
 * aren't there.  A get reads as a file is read (fl_read_ino): the extents are announced and
 * checked against the newest root first.  A miss is always legal, wrong bytes never. */
#include <sys/stat.h>
#include "backing.h"
#include "block.h"
#include "client.h"

#define EXTENTS_MAX 64 /* of one block; put asks the allocator for no more */
#define KEY_MIN 2u     /* the two prefix levels of the path are made of them */

bool bl_key_ok(size_t klen) { return klen >= KEY_MIN && klen <= BFS_KEY_MAX; }
int bl_bad_key(struct bfs *b, size_t klen) { return bfs_fail(b, -EINVAL, "key of %zu bytes; keys have %u to %u", klen, KEY_MIN, BFS_KEY_MAX); }

const struct bfs_obj *bl_ns(struct view *v, u64 ns, int *rc)
{
	const struct bfs_obj *o = ns >> 63 ? NULL : ob_get(v, ns, rc);
	if (ns >> 63) *rc = -EINVAL;
	if (!o) return NULL;
	if (S_ISDIR(o->mode) && (o->flags & BFS_OF_NSBLOCK)) return o;
	*rc = S_ISDIR(o->mode) ? bfs_fail(v->b, -EINVAL, "directory %llu isn't a block namespace", (unsigned long long)ns) : -ENOTDIR;
	return NULL;
}

int bfs_ns_create(struct bfs *b, const char *name, u64 *ns)
{
	struct bfs_attr a;
	struct rd r;
	size_t len = strlen(name);
	int rc = bfs_lookup(b, BFS_ROOT_INO, name, len, &a);
	if (rc == -ENOENT) { /* as the root directory: the core knows no caller */
		struct bfs_attr root;
		struct txn *t;
		if ((rc = bfs_getattr(b, BFS_ROOT_INO, &root)) || (rc = op_begin_room(b, &t))) return rc;
		rc = nm_mkdir(t, BFS_ROOT_INO, name, len, root.mode & 0777, root.uid, root.gid, BFS_OF_NSBLOCK, ns);
		rc = op_end(b, t, rc);
		if (rc != -EEXIST) return rc;
		if ((rc = bfs_lookup(b, BFS_ROOT_INO, name, len, &a))) return rc;
	}
	if (rc || (rc = rd_begin(b, &r))) return rc;
	if (bl_ns(&r.v, a.ino, &rc)) *ns = a.ino;
	else rc = bfs_fail(b, -EEXIST, "/%s exists and isn't a block namespace", name);
	rd_end(&r);
	return rc;
}

/* ---- put ---------------------------------------------------------------------------------- */
static int unalloc(struct txn *t, const struct extent *e, int n, int rc)
{
	int c = 0;
	for (int i = 0; i < n && !c; i++) c = al_unwind(t, e[i].addr, e[i].len);
	return c ? txn_fail(t, c) : rc;
}

static int store(struct bfs *b, const struct extent *e, int n, const u8 *data, size_t len)
{
	for (int i = 0; i < n; i++) {
		size_t room = (size_t)e[i].len * BFS_GRANULE, m = len < room ? len : room;
		u8 *p = al_mem(b, e[i].addr);
		if (!p) return bfs_fail(b, -EIO, "extent at 0x%llx isn't in the pool", (unsigned long long)e[i].addr);
		int bad = b->m->ops->copy_in(b->m, p, data, m);
		if (!BFS_MUT(MUT_DATA_NO_FLUSH)) { /* also what a failed copy stored: it must not be written back later */
			mm_fence(b->m);
			mm_flush(b->m, p, m);
			mm_fence(b->m);
		}
		if (bad) return bfs_fail(b, -EIO, "pool memory at offset %llu can't be written", (unsigned long long)(p - b->m->base));
		data += m, len -= m;
	}
	mm_fence(b->m);
	return 0;
}

static int put_in(struct txn **tp, u64 ns, const void *key, size_t klen, const u8 *data, size_t len, const u64 *sums, u32 nsums, u64 *ino)
{
	struct bfs *b = (*tp)->b;
	struct ht_entry old;
	struct extent e[EXTENTS_MAX];
	u64 granules = (len + BFS_GRANULE - 1) / BFS_GRANULE, at = 0;
	int rc = 0, n = granules && !b->back ? al_alloc_room(b, tp, granules, 0, e, EXTENTS_MAX) : 0;
	struct txn *t = *tp; /* to make room it may have been committed and begun anew: nothing was checked before */
	if (n < 0) return n;
	const struct bfs_obj *d = bl_ns(tview(t), ns, &rc);
	if (!d) return unalloc(t, e, n, rc);
	if ((rc = ht_find(tview(t), ns, BFS_EK_KEY, key, klen, &old)) != -ENOENT) return unalloc(t, e, n, rc ? rc : -EEXIST);
	struct bfs_obj *o = ob_alloc(t, S_IFREG | (d->mode & 0666), d->uid, d->gid, &rc);
	if (!o) return unalloc(t, e, n, rc);
	*ino = ob_ino(o);
	/* this extent is free to everybody else until the transaction is confirmed */
	if (b->back ? (rc = bk_put(b, *ino, data, len)) : (rc = ld_data_grant(t, e, n)) || (rc = store(b, e, n, data, len))) return txn_fail(t, rc);

	ob_count(t, o, -1);
	o->cls = BFS_CLS_BLOCK, o->size = len, o->granules = granules;
	o->version = 1, o->flags = BFS_OF_PUBLISHED;
	ob_count(t, o, 1);
	if (b->back) n = 0;
	if (n == 1) o->u.f.inl_addr = e[0].addr, o->u.f.inl_len = e[0].len;
	else o->u.f.nextents = (u32)n;
	for (int i = 0; i < n && !rc; at += e[i++].len) {
		struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_EXT, o->slot), at, 0), .x = e[i].addr, .y = e[i].len};
		if (!(rc = al_own(t, e[i].addr, e[i].len, *ino, BFS_OWN_OBJ)) && n > 1) rc = bt_put(t, &r);
	}
	if (rc || (rc = ob_sums_set(t, o, sums, nsums)) || (rc = nm_add(t, ns, BFS_EK_KEY, key, klen, o, 0, NULL))) return txn_fail(t, rc);
	t->root->seals++;
	return 0;
}

int bfs_block_put(struct bfs *b, u64 ns, const void *key, size_t klen, const void *data, size_t len)
{
	struct txn *t;
	struct rd r;
	struct ht_entry old;
	u64 few[BFS_INLINE_SUMS], *sums = few, ino = 0;
	u32 chunk = b->sb.chunk_bytes;
	u64 nsums = (len + chunk - 1) / chunk;
	if (!bl_key_ok(klen)) return bl_bad_key(b, klen);
	if (!b->back && len / BFS_GRANULE >= b->sb.data_granules) return bfs_fail(b, -EFBIG, "block of %zu bytes, pool of %llu", len, (unsigned long long)b->sb.data_granules * BFS_GRANULE);
	/* what is there is the usual case of an engine that stores without asking: no sums, no lock */
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	if (bl_ns(&r.v, ns, &rc) && !(rc = ht_find(&r.v, ns, BFS_EK_KEY, key, klen, &old))) rc = -EEXIST;
	rd_end(&r);
	if (rc != -ENOENT) return rc;
	if (nsums > BFS_INLINE_SUMS && !(sums = xalloc(b, nsums * sizeof *sums))) return -ENOMEM;
	for (u64 i = 0, off = 0; i < nsums; i++, off += chunk) sums[i] = fl_sum((const u8 *)data + off, len - off < chunk ? len - off : chunk);
	for (u32 round = 0;;) {
		u64 taking = 0;
		if (b->back && (rc = bk_take(b, NULL, 0, len, &taking))) break;
		if (!(rc = op_begin_room(b, &t))) {
			rc = put_in(&t, ns, key, klen, data, len, sums, (u32)nsums, &ino);
			if (t) rc = op_end(b, t, rc);
		}
		if (b->back) bk_took(b, taking);
		if (rc != -ENOSPC || !b->back || in_batch(b) || (rc = bk_room(b, len / BFS_GRANULE + 2, round++))) break;
	}
	if (sums != few) xfree(b, sums);
	if (!rc) ev_admit(b, INO_SLOT(ino), false);
	return rc;
}

/* ---- get ------------------------------------------------------------------------------------- */
static int find(struct bfs *b, u64 ns, const void *key, size_t klen, u64 *ino, u64 *size)
{
	struct rd r;
	struct ht_entry e;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	if (bl_ns(&r.v, ns, &rc) && !(rc = ht_find(&r.v, ns, BFS_EK_KEY, key, klen, &e))) {
		const struct bfs_obj *o = ob_get(&r.v, e.ino, &rc);
		if (o) *ino = e.ino, *size = o->size;
		else if (rc == -ESTALE) rc = bfs_fail(b, -EIO, "a key leads to object %llu, which is gone; run fsck.belugafs -n", (unsigned long long)e.ino);
	}
	rd_end(&r);
	return rc;
}

ssize_t bfs_block_get(struct bfs *b, u64 ns, const void *key, size_t klen, void *buf, size_t len)
{
	u64 ino = 0, size = 0;
	ssize_t rc = -ESTALE;
	if (!bl_key_ok(klen)) return bl_bad_key(b, klen);
	/* gone between the look-up and the hazard: look again */
	for (int tries = 0; rc == -ESTALE && tries < 4; tries++) {
		rc = find(b, ns, key, klen, &ino, &size);
		if (rc || !len) break;
		if (len < size) return bfs_fail(b, -ERANGE, "block of %llu bytes, buffer of %zu", (unsigned long long)size, len);
		rc = fl_read_ino(b, ino, 0, buf, size);
	}
	if (rc == -ESTALE) rc = -ENOENT;
	if (rc >= 0 && len && (u64)rc != size) rc = bfs_fail(b, -EIO, "block %llu: %zd bytes of %llu", (unsigned long long)ino, rc, (unsigned long long)size);
	if (len && (rc >= 0 || rc == -ENOENT)) atomic_fetch_add_explicit(rc >= 0 ? &b->hits : &b->misses, 1, memory_order_relaxed);
	if (rc < 0) return rc;
	if (len) bfs_touch(b, ino);
	return (ssize_t)size;
}

int bfs_block_delete(struct bfs *b, u64 ns, const void *key, size_t klen)
{
	struct txn *t;
	struct ht_entry e;
	if (!bl_key_ok(klen)) return bl_bad_key(b, klen);
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if (bl_ns(tview(t), ns, &rc) && !(rc = ht_find(tview(t), ns, BFS_EK_KEY, key, klen, &e)) && !(rc = nm_remove(t, &e))) t->root->unlinks++;
	return op_end(b, t, rc);
}

/* ---- batches of keys ------------------------------------------------------------------------------ */
int bfs_block_exists(struct bfs *b, u64 ns, const void *keys, size_t klen, int n, u8 *present)
{
	enum { GROUP = 256 };
	struct rd r;
	u64 ino[GROUP];
	int found = 0;
	if (!bl_key_ok(klen) || n < 0) return bl_bad_key(b, klen);
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	if (bl_ns(&r.v, ns, &rc))
		for (int i = 0; i < n && rc >= 0; i += GROUP) {
			int m = n - i < GROUP ? n - i : GROUP;
			rc = ht_find_many(&r.v, ns, BFS_EK_KEY, (const u8 *)keys + (size_t)i * klen, klen, m, ino);
			for (int j = 0; j < m && rc >= 0; j++) present[i + j] = ino[j] != 0;
			found += rc > 0 ? rc : 0;
		}
	rd_end(&r);
	if (rc < 0) return rc;
	atomic_fetch_add_explicit(&b->hits, (u64)found, memory_order_relaxed);
	atomic_fetch_add_explicit(&b->misses, (u64)(n - found), memory_order_relaxed);
	return found;
}

int bfs_block_match(struct bfs *b, u64 ns, const void *keys, size_t klen, int n)
{
	enum { GROUP = 128, FEW = 1024 };
	struct rd r;
	u64 few[FEW], *ino = few;
	int len = 0, rc;
	if (!bl_key_ok(klen) || n < 0) return bl_bad_key(b, klen);
	if (n > FEW && !(ino = xalloc(b, (size_t)n * sizeof *ino))) return -ENOMEM;
	if (!(rc = rd_begin(b, &r))) {
		if (bl_ns(&r.v, ns, &rc))
			while (len < n && rc >= 0) {
				int from = len, m = n - len < GROUP ? n - len : GROUP;
				rc = ht_find_many(&r.v, ns, BFS_EK_KEY, (const u8 *)keys + (size_t)len * klen, klen, m, ino + len);
				while (rc >= 0 && len < from + m && ino[len]) len++;
				if (len < from + m) break;
			}
		rd_end(&r);
	}
	if (rc >= 0) {
		/* the tail of a chain goes before its root */
		if (b->client) cl_touches(b, ino, len);
		else for (int i = len; i-- > 0;) bfs_touch(b, ino[i]);
		atomic_fetch_add_explicit(&b->hits, (u64)len, memory_order_relaxed);
		atomic_fetch_add_explicit(&b->misses, (u64)(n - len), memory_order_relaxed);
	}
	if (ino != few) xfree(b, ino);
	return rc < 0 ? rc : len;
}
