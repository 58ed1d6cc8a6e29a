/* Room for native blocks that somebody else stores into: reserved, filled in place, committed under its keys (reserve_commit.c).
 *
 * A reservation is a file without a name in its first writing, whose blocks are pieces of its overlay, each in one
 * extent.  So whatever holds for files that are being written holds here: the extents are in the tree, and acknowledged,
 * before anybody stores into them, other leaders keep out of them, a crash gives them back, fsck knows whose they are.
 * A commit is a transaction that gives pieces to objects of their own, each under its key.  What was stored is in the pool
 * before that (rule 21: also what is given back, or it would be written over the next owner's bytes later).
 *
 * Flat pools only: in a directory pool a block is a file of its own. */
#include <fcntl.h>
#include "block.h"
#include "reserve.h"

u64 rs_at(const struct bfs_inode *in, u32 index)
{
	u64 fg = rs_granule(in, index);
	int i = mp_at(in, fg);
	return i < in->next_ext && in->ext[i].file_granule == fg && in->ext[i].len == in->piece && in->ext[i].overlay ? in->ext[i].addr : 0;
}

struct bfs_inode *rs_find(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (h && h->in->piece) return h->in;
	bfs_fail(b, -EBADF, "no such reservation");
	return NULL;
}

/* ---- reserving ------------------------------------------------------------------------------------------ */
/* One transaction's share of the pieces from *at on.  Neighbours are taken in one go where there is room. */
static int grant(struct bfs *b, struct bfs_inode *in, u32 n, u32 *at, struct extent *got)
{
	struct txn *t;
	struct bfs_obj *o = NULL;
	u64 txn = 0;
	bool un;
	u32 k = 0;
	int rc = op_begin_room(b, &t);
	if (rc) return rc;
	while (*at + k < n && k < RS_AT_ONCE && !(k && pg_few(t))) {
		u32 want = n - *at - k < RS_AT_ONCE - k ? n - *at - k : RS_AT_ONCE - k;
		struct extent *e = got + k;
		u32 m = k ? al_alloc_run(t, e[-1].addr + e[-1].len, in->piece, want, in->ino, e) : 0;
		if (!m) {
			if ((rc = al_alloc_room(b, &t, in->piece, in->ino, e, 1)) < 0) return t ? op_end(b, t, rc) : rc;
			/* to make room it may have been committed, and begun anew */
			if ((!o || t->txn != txn) && !(o = ov_writable(t, in, true, &un, &rc))) {
				al_unwind(t, e->addr, e->len);
				return op_end(b, t, rc);
			}
			txn = t->txn;
			m = 1;
		}
		for (u32 i = 0; i < m; i++) {
			struct bfs_rec r = ov_rec(in->ino, rs_granule(in, *at + k + i), e[i].addr, e[i].len);
			if ((rc = bt_put(t, &r))) return op_end(b, t, txn_fail(t, rc));
		}
		ob_count(t, o, -1);
		o->granules += (u64)m * in->piece, o->u.f.nextents += m;
		ob_count(t, o, 1);
		k += m;
	}
	if ((rc = op_end(b, t, 0))) return rc;
	for (u32 i = 0; i < k && !rc; i++) rc = mp_set(b, in, rs_granule(in, *at + i), in->piece, got[i].addr, 1);
	atomic_fetch_add(&in->granules, (u64)k * in->piece);
	*at += k;
	return rc;
}

int bfs_reserve_blocks(struct bfs *b, u64 ns, u32 n, u64 size_bytes, u64 *fh, u64 *off)
{
	struct rd r;
	u64 g = granules(size_bytes);
	u32 at = 0;
	int rc;
	if (b->back) return bfs_fail(b, -EOPNOTSUPP, "blocks can't be filled in place in a directory pool: there each is a file of its own");
	if (in_batch(b)) return bfs_fail(b, -EBUSY, "inside a batch nothing can be reserved");
	if (!n || n > BFS_RESERVE_MAX) return bfs_fail(b, -EINVAL, "%u blocks; 1 to %u can be reserved at a time", n, BFS_RESERVE_MAX);
	if (!g || g > b->sb.region_granules) return bfs_fail(b, -EFBIG, "block of %llu bytes; 1 to %llu can be reserved", (unsigned long long)size_bytes, (unsigned long long)b->sb.region_granules * BFS_GRANULE);
	if ((rc = rd_begin(b, &r))) return rc;
	bl_ns(&r.v, ns, &rc);
	rd_end(&r);
	if (rc || (rc = bfs_tmpfile(b, BFS_ROOT_INO, 0600, 0, 0, O_RDWR | O_EXCL, NULL, fh))) return rc;
	struct extent *got = xalloc(b, RS_AT_ONCE * sizeof *got);
	struct bfs_inode *in = hd_get(b, *fh)->in;
	rc = got ? in_lock(b, in, true) : -ENOMEM;
	if (!rc) {
		in->piece = (u32)g, in->npieces = n, in->piece_ns = ns;
		fl_stored(in, 0, (u64)n * g * BFS_GRANULE); /* by others, at any time from now on */
		while (!rc && at < n) rc = grant(b, in, n, &at, got);
		for (u32 i = 0; i < n && !rc; i++) off[i] = (u64)((u8 *)al_mem(b, rs_at(in, i)) - b->m->base);
		in_unlock(b, in);
	}
	xfree(b, got);
	if (rc) bfs_release(b, *fh), *fh = 0;
	return rc;
}

int rs_places(struct bfs *b, u64 fh, u64 *off)
{
	struct bfs_inode *in = rs_find(b, fh);
	int rc = in ? in_lock(b, in, false) : -EBADF;
	if (rc) return rc;
	for (u32 i = 0; i < in->npieces; i++) {
		u64 at = rs_at(in, i);
		off[i] = at ? (u64)((u8 *)al_mem(b, at) - b->m->base) : 0;
	}
	in_unlock(b, in);
	return 0;
}
