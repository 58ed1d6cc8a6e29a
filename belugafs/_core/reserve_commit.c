/* Committing reserved blocks: each piece becomes an object of its own, under its key, many in one transaction.
 *
 * What a transaction copies of the tree is most of its cost, so a share of the request is done step by step rather than
 * block by block: all keys are looked up, all objects made, all entries made in the order in which they lie in the
 * tree, all pieces taken out of the reservation. */
#include <sys/stat.h>
#include "block.h"
#include "name.h"
#include "reserve.h"

enum { DONE_BEFORE = 1, PAGES_EACH = 3, PAGES_BESIDE = 64 };

struct share { /* of a request; one for the whole call */
	struct nm_key key[RS_AT_ONCE];
	const u64 *sums[RS_AT_ONCE];
	u64 *made[RS_AT_ONCE]; /* those that are the share's to free */
	u64 addr[RS_AT_ONCE], ino[RS_AT_ONCE];
	u64 seen[BFS_RESERVE_MAX / 64], gone[BFS_RESERVE_MAX / 64]; /* by index */
};
static_assert((int)RS_AT_ONCE <= (int)NM_KEYS_MAX, "keys of a share");

static bool bit(const u64 *w, u32 i) { return w[i / 64] >> i % 64 & 1; }
static void set_bit(u64 *w, u32 i) { w[i / 64] |= 1ull << i % 64; }

/* ---- before the transaction --------------------------------------------------------------------------------------- */
/* Nothing of a former owner is behind what was filled; all of it is in the pool. */
static int settle(struct bfs *b, struct bfs_inode *in, const struct bfs_commit *c, u8 *p)
{
	static const u8 zeros[BFS_GRANULE];
	u64 tail = c->zeroed ? 0 : granules(c->filled_bytes) * BFS_GRANULE - c->filled_bytes;
	int bad = tail ? b->m->ops->copy_in(b->m, p + c->filled_bytes, zeros, tail) : 0;
	if (!b->m->coherent) {
		mm_fence(b->m);
		mm_flush(b->m, p, (u64)in->piece * BFS_GRANULE);
	}
	return bad ? bfs_fail(b, -EIO, "pool memory at offset %llu can't be written", (unsigned long long)(p - b->m->base)) : 0;
}

static u64 *make_sums(struct bfs *b, const u8 *p, u64 len, u64 n, int *rc)
{
	u64 *sums = xalloc(b, n * sizeof *sums);
	u8 *bounce = fl_bounce(b);
	*rc = sums && bounce ? 0 : -ENOMEM;
	for (u64 i = 0, off = 0; off < len && !*rc; i++, off += b->sb.chunk_bytes) {
		u64 m = min64(len - off, b->sb.chunk_bytes);
		if (b->m->ops->copy_out(b->m, bounce, p + off, m)) *rc = bfs_fail(b, -EIO, "pool memory at offset %llu can't be read", (unsigned long long)(p + off - b->m->base));
		else sums[i] = fl_sum(bounce, m);
	}
	fl_bounce_end(b, bounce);
	if (!*rc) return sums;
	xfree(b, sums);
	return NULL;
}

/* What is asked for is checked, and put in order. */
static int prepare(struct bfs *b, struct bfs_inode *in, const struct bfs_commit *c, struct share *s, u32 k)
{
	u64 at = c->index < BFS_RESERVE_MAX ? rs_at(in, c->index) : 0, n = (c->filled_bytes + b->sb.chunk_bytes - 1) / b->sb.chunk_bytes;
	bool given = c->sums != NULL;
	int rc;
	s->made[k] = NULL, s->sums[k] = c->sums, s->addr[k] = at;
	s->key[k] = (struct nm_key){.key = c->key};
	if (!bl_key_ok(c->klen)) return bl_bad_key(b, c->klen);
	if (!at && c->repeated && c->index < in->npieces && !BFS_MUT(MUT_COMMIT_NOT_REPEATED)) return DONE_BEFORE;
	if (!at) return bfs_fail(b, -EINVAL, "block %u isn't reserved here, or was committed", c->index);
	if (c->filled_bytes > (u64)in->piece * BFS_GRANULE) return bfs_fail(b, -EINVAL, "block %u: %llu bytes filled of %llu", c->index, (unsigned long long)c->filled_bytes, (unsigned long long)in->piece * BFS_GRANULE);
	/* the second would be of a piece that is gone by then */
	if (bit(s->seen, c->index)) return bfs_fail(b, -EINVAL, "block %u twice in one call", c->index);
	if ((rc = settle(b, in, c, al_mem(b, at)))) return rc;
	for (u64 i = 0; i < n && given; i++) given = c->sums[i] != 0; /* 0 would be a hole */
	if (!given && n && !(s->sums[k] = s->made[k] = make_sums(b, al_mem(b, at), c->filled_bytes, n, &rc))) return rc;
	set_bit(s->seen, c->index);
	return 0;
}

/* ---- the transaction ------------------------------------------------------------------------------------------ */
/* How many of n there are pages for.  A leader takes more of them before it does with less: where others live no more than half
 * of all, since they would miss them should it stop here. */
static u32 fitting(struct txn *t, u32 n)
{
	struct bfs *b = t->b;
	u32 beside = pg_enough(b) + PAGES_BESIDE;
	int rc = 0, most = 64;
	for (u32 i = 0; i < b->sb.nhosts; i++)
		if (i != b->slot && b->peer[i].live) most = 32;
	while (b->nfree < beside + PAGES_EACH * n && __builtin_popcountll(b->grant) < most && !(rc = ld_more_pages(b))) {}
	if (rc == -EAGAIN) txn_fail(t, rc);
	u32 fit = b->nfree > beside ? (b->nfree - beside) / PAGES_EACH : 0;
	return fit < 1 ? 1 : fit < n ? fit : n;
}

/* The object of one of them.  Without a name so far: slots may be made for the next one, by evicting what has a name. */
static int make_object(struct txn *t, const struct bfs_obj *d, const struct bfs_commit *c, struct share *s, u32 k)
{
	struct bfs *b = t->b;
	u32 keep = (u32)granules(c->filled_bytes), nsums = (u32)((c->filled_bytes + b->sb.chunk_bytes - 1) / b->sb.chunk_bytes);
	int rc = 0;
	struct bfs_obj *o = ob_alloc(t, S_IFREG | (d->mode & 0666), d->uid, d->gid, &rc);
	if (!o) return txn_fail(t, rc);
	ob_count(t, o, -1);
	o->cls = BFS_CLS_BLOCK, o->size = c->filled_bytes, o->granules = keep;
	o->version = 1, o->flags = BFS_OF_PUBLISHED;
	if (keep) o->u.f.inl_addr = s->addr[k], o->u.f.inl_len = keep;
	ob_count(t, o, 1);
	s->ino[k] = s->key[k].ino = ob_ino(o);
	t->root->seals++;
	return ob_sums_set(t, o, s->sums[k], nsums) ? t->poison : 0;
}

/* Its piece is the reservation's no more.  Records of neighbours go together. */
static int take_pieces(struct txn *t, struct bfs_inode *in, const struct bfs_commit *c, struct share *s, u32 n)
{
	u64 a = BFS_T(BFS_T_EXT, INO_SLOT(in->ino));
	for (u32 i = 0, end; i < n && !t->poison; i = end) {
		end = i + 1;
		if (!s->ino[i]) continue;
		while (end < n && s->ino[end] && c[end].index == c[end - 1].index + 1) end++;
		int gone = bt_del_range(t, KEY(a, rs_granule(in, c[i].index), 1), KEY(a, rs_granule(in, c[end - 1].index), 2));
		if (gone != (int)(end - i)) return txn_fail(t, gone < 0 ? gone : bfs_fail(t->b, -EIO, "reservation %llu: records of its pieces are missing; run fsck.belugafs -n", (unsigned long long)in->ino));
		for (u32 k = i; k < end && !t->poison; k++) {
			u32 keep = (u32)granules(c[k].filled_bytes);
			if (keep < in->piece && al_unwind(t, s->addr[k] + keep, in->piece - keep)) return t->poison;
			if (keep && al_own(t, s->addr[k], keep, s->ino[k], BFS_OWN_OBJ)) return t->poison;
		}
	}
	return t->poison;
}

/* Some of them, in one transaction; c[i].rc of each, *done: how many have one now.  s is from c[0] on. */
static int commit_some(struct bfs *b, struct bfs_inode *in, struct bfs_commit *c, u32 n, struct share *s, u32 *done)
{
	struct txn *t;
	u32 made = 0;
	bool un;
	int rc = op_begin_room(b, &t);
	if (rc) return rc;
	n = fitting(t, n);
	for (u32 i = 1; i < n; i++)
		if (c[i].klen != c[0].klen) n = i; /* keys of one length at a time */
	u32 klen = (u32)c[0].klen;
	const struct bfs_obj *d = t->poison ? NULL : bl_ns(tview(t), in->piece_ns, &rc);
	struct bfs_obj *o = d ? ov_writable(t, in, true, &un, &rc) : NULL;
	if (!o) return op_end(b, t, rc);
	for (u32 i = 0; i < n; i++) s->key[i].rc = c[i].rc, s->key[i].ino = s->ino[i] = 0;
	if (bl_key_ok(klen) && (rc = nm_keys_look(tview(t), in->piece_ns, s->key, n, klen))) return op_end(b, t, rc);
	u8 type = 0;
	for (u32 i = 0; i < n && !t->poison; i++) {
		if (s->key[i].rc) continue;
		/* slots that are out may have been made: the namespace is where it is now */
		if ((d = bl_ns(tview(t), in->piece_ns, &rc))) made += !make_object(t, d, &c[i], s, i);
		else txn_fail(t, rc);
		type = S_IFREG >> 12;
	}
	if (made && !t->poison && !nm_keys_add(t, in->piece_ns, type, s->key, n, klen) && !take_pieces(t, in, c, s, n) && (o = ob_cow(t, in->ino))) {
		ob_less(t, o, (u64)made * in->piece);
		o->u.f.nextents -= made;
	}
	rc = op_end(b, t, 0);
	if (rc == -EAGAIN) atomic_store(&in->reload, true); /* it may have happened */
	if (rc) return *done = 0, rc;
	u32 low = UINT32_MAX, high = 0;
	for (u32 i = 0; i < n; i++) {
		c[i].rc = s->key[i].rc;
		if (!s->ino[i]) continue;
		set_bit(s->gone, c[i].index);
		if (c[i].index < low) low = c[i].index;
		if (c[i].index > high) high = c[i].index;
	}
	if (made) {
		mp_drop_pieces(b, in, s->gone, low, (u64)high + 1);
		atomic_fetch_sub(&in->granules, (u64)made * in->piece);
		ev_admit_many(b, s->ino, n);
	}
	*done = n;
	return 0;
}

static void next(struct share *s, u32 did, u32 left)
{
	memmove(s->key, s->key + did, left * sizeof *s->key);
	memmove(s->sums, s->sums + did, left * sizeof *s->sums);
	memmove(s->addr, s->addr + did, left * sizeof *s->addr);
}

int bfs_commit_blocks(struct bfs *b, u64 fh, struct bfs_commit *c, u32 n)
{
	struct bfs_inode *in = rs_find(b, fh);
	if (!in) return -EBADF;
	if (in_batch(b)) return bfs_fail(b, -EBUSY, "inside a batch nothing can be committed"); /* the map would be ahead of the tree */
	struct share *s = xalloc(b, sizeof *s);
	int rc = s ? in_lock(b, in, true) : -ENOMEM;
	if (rc) {
		xfree(b, s);
		return rc;
	}
	for (u32 at = 0; at < n && !rc;) {
		u32 m = n - at < RS_AT_ONCE ? n - at : RS_AT_ONCE, share = m, i = 0;
		for (u32 k = 0; k < m; k++) c[at + k].rc = prepare(b, in, &c[at + k], s, k);
		mm_fence(b->m);
		while (i < m && !rc) {
			u32 did = 0;
			rc = commit_some(b, in, c + at + i, share < m - i ? share : m - i, s, &did);
			i += did;
			if (did && i < m) next(s, did, m - i);
			if (rc == -ENOSPC && share > 1) share /= 4, share += !share, rc = 0;
		}
		for (u32 k = 0; k < m; k++) xfree(b, s->made[k]);
		for (u32 k = i; k < m && rc; k++)
			if (!c[at + k].rc) c[at + k].rc = rc;
		at += m;
	}
	in_unlock(b, in);
	xfree(b, s);
	for (u32 i = 0; i < n; i++)
		if (c[i].rc == DONE_BEFORE) c[i].rc = 0;
	return rc;
}
