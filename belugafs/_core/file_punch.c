/* Holes: making them (FALLOC_FL_PUNCH_HOLE), and finding them (SEEK_DATA, SEEK_HOLE).
 *
 * Whole granules of the overlay go back to the free ones at once: nobody but this host ever saw
 * them.  Where there is base below them, a record of the overlay hides it from this host; others
 * read it until the seal, which frees it.  Of a granule that is punched in part the
 * rest stays, and the part is zeros; so is all of a base granule's copy that it takes.
 *
 * One transaction: a crash leaves each byte old, or zero. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>
#include "backing.h"
#include "file.h"

static bool mapped(const struct bfs_inode *in, u64 fg, u64 end)
{
	for (int i = mp_at(in, fg); i < in->next_ext && in->ext[i].file_granule < end; i++)
		if (in->ext[i].addr) return true;
	return false;
}

/* Granules [lo, hi) become a hole, in a file that is unsealed. */
static int cut_out(struct bfs *b, struct bfs_inode *in, u64 lo, u64 hi, bool creator)
{
	struct txn *t;
	bool un;
	u64 base_end = in->state == BFS_ST_DIRTY ? min64(hi, in->base_end) : 0, gone = 0;
	int rc;
	fl_flush_overlay(b, in); /* rule 21 */
	if ((rc = op_begin(b, &t))) return rc;
	struct bfs_obj *o = ov_writable(t, in, creator, &un, &rc);
	if (!o) return op_end(b, t, rc);
	for (int i = mp_at(in, lo); i < in->next_ext && in->ext[i].file_granule < hi; i++) {
		const struct bfs_extent *e = &in->ext[i];
		if (e->overlay && e->addr) gone += min64(hi, e->file_granule + e->len) - max64(lo, e->file_granule);
	}
	ov_drop(t, in, lo, hi);
	if (base_end > lo && !t->poison) {
		struct bfs_rec r = ov_rec(in->ino, lo, 0, base_end - lo);
		if ((rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	ob_less(t, o, gone);
	if ((rc = op_end(b, t, 0))) return rc;
	atomic_fetch_sub(&in->granules, min64(gone, atomic_load(&in->granules)));
	rc = mp_set(b, in, lo, hi - lo, 0, 0);
	if (!rc && base_end > lo) rc = mp_set(b, in, lo, base_end - lo, 0, 1);
	if (rc) in->reload = true;
	return rc;
}

/* [off, end); where the file ends in the range, so does the hole, with the granule. */
int fl_punch(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator)
{
	u64 size = atomic_load(&in->size), stop = min64(end, size), lo = granules(off), hi = end / BFS_GRANULE;
	if (end >= size) hi = max64(hi, granules(size));
	bool whole = lo < hi;
	u64 head = whole ? min64(lo * BFS_GRANULE, stop) : stop, tail = whole ? hi * BFS_GRANULE : stop; /* [off, head) and [tail, stop) are zeroed */
	u64 edge[2] = {off < head ? off / BFS_GRANULE : UINT64_MAX, tail < stop || (!whole && off < head) ? (stop - 1) / BFS_GRANULE : UINT64_MAX};
	bool any = whole && mapped(in, lo, hi);
	for (int i = 0; i < 2; i++) any |= edge[i] != UINT64_MAX && mapped(in, edge[i], edge[i] + 1);
	if (!any) return fl_only_times(b, in);
	struct before s = {0};
	struct want w = {.creator = creator};
	int rc = fl_remember(b, in, &s);
	if (rc) return rc;
	/* a chunk that is changed in part gets a new sum: over what was right before */
	if (off < stop) rc = fl_check_partly(b, in, off, stop);
	for (int i = 0; i < 2 && !rc; i++)
		if (edge[i] != UINT64_MAX && ov_is_base(in, edge[i])) rc = fl_room(b, in, edge[i], edge[i] + 1, false, creator);
	if (!rc && in_sealed(in)) rc = ov_grant(b, in, &w, NULL, 0);
	if (!rc) rc = ov_row_dirty(b, in);
	bool over = !rc && fl_adding(in) ? fl_overwrites(b, in, off, end) : in->overwrote;
	if (!rc && off < stop) fl_sums_drop(b, in, off, stop); /* before it can have happened */
	if (!rc && whole && mapped(in, lo, hi) && (rc = cut_out(b, in, lo, hi, creator)) == -EAGAIN) in->overwrote = over, in->dirty = true;
	if (rc && rc != -EAGAIN) fl_put_back(b, in, &s);
	xfree(b, s.ext);
	if (rc) return rc;
	in->overwrote = over;
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	if (off < head) rc = fl_zero_gap(b, in, off, head, creator);
	return !rc && tail < stop ? fl_zero_gap(b, in, tail, stop, creator) : rc;
}

/* ---- finding ---------------------------------------------------------------------------------------- */
static i64 seek_locked(struct bfs *b, struct bfs_inode *in, u64 off, int whence)
{
	u64 size = atomic_load(&in->size);
	if (off >= size) return -ENXIO;
	if (b->back) return bk_seek(b, in, off, whence == SEEK_DATA);
	for (int i = mp_at(in, off / BFS_GRANULE); i < in->next_ext; i++) {
		u64 from = in->ext[i].file_granule * BFS_GRANULE;
		if (!in->ext[i].addr) continue;
		if (from >= size) break; /* room behind the end */
		if (whence == SEEK_DATA) return (i64)max64(off, from);
		if (from > off) break;
		off = from + (u64)in->ext[i].len * BFS_GRANULE;
	}
	return whence == SEEK_DATA ? -ENXIO : (i64)min64(off, size);
}

i64 bfs_seek(struct bfs *b, u64 fh, u64 off, int whence)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	if (whence != SEEK_DATA && whence != SEEK_HOLE) return -EINVAL;
	struct bfs_inode *in = h->in;
	i64 at = in_lock(b, in, in->reload);
	if (at) return at;
	if (!in->reload || !(at = sl_settle(b, in)) || in->gone) at = in->foreign ? bk_refresh(b, in) : 0, at = at ? at : seek_locked(b, in, off, whence);
	in_unlock(b, in);
	return at;
}
