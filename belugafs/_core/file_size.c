/* The size of a file: truncate, ftruncate, O_TRUNC. */
#include "backing.h"
#include "file.h"

static int shrink(struct bfs *b, struct bfs_inode *in, u64 size, bool creator)
{
	u64 g = granules(size), end = in->next_ext ? in->ext[in->next_ext - 1].file_granule + in->ext[in->next_ext - 1].len : 0;
	u64 base_end = in->state == BFS_ST_SEALED ? end : in->base_end;
	struct txn *t;
	bool un = false;
	int rc;
	if (base_end > end) end = base_end;
	if (g >= end && !in_sealed(in)) return 0;
	/* Rule 21: what this host stored there isn't written back later into somebody else's data. */
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in);
	/* The row's size first: a crash in between finds the file short, with all of its bytes. */
	u64 old = atomic_load(&in->size);
	bool row = in->rowst != BFS_ROW_FREE;
	if (row) {
		atomic_store(&in->size, size);
		if ((rc = rw_put(b, in, BFS_ROW_DIRTY))) goto undo;
	}
	if ((rc = op_begin(b, &t))) goto undo;
	struct bfs_obj *o = ov_writable(t, in, creator, &un, &rc);
	if (!o) {
		rc = op_end(b, t, rc);
		goto undo;
	}
	u8 cls = o->cls;
	u64 gone = 0;
	for (int i = mp_at(in, g); i < in->next_ext; i++)
		if (in->ext[i].overlay && in->ext[i].addr) gone += in->ext[i].file_granule + in->ext[i].len - max64(g, in->ext[i].file_granule);
	if (g < end) ov_drop(t, in, g, end);
	if (g < base_end && o->state == BFS_ST_DIRTY && !t->poison) { /* base that must not come back when the file grows again */
		struct bfs_rec r = ov_rec(in->ino, g, 0, base_end - g);
		if ((rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	ob_less(t, o, gone);
	rc = op_end(b, t, 0);
	if (rc == -EAGAIN && !un) {
		/* It may have happened: what was cut off can't be promised any more.  If it hasn't, the file is short all
		 * the same, and has room behind its end.  (A file that was sealed goes back to that: in_reload.) */
		atomic_store(&in->size, size);
		in->dirty = true;
		return rc;
	}
	if (rc) goto undo;
	atomic_fetch_sub(&in->granules, min64(gone, atomic_load(&in->granules)));
	if (un) { /* the first row of it says the new size, too */
		atomic_store(&in->size, size);
		rc = ov_unsealed(b, in, cls);
		in->base_size = old;
		if (rc) return rc;
	}
	if (g < end) rc = mp_set(b, in, g, end - g, 0, 0);
	if (!rc && g < base_end && in->state == BFS_ST_DIRTY) rc = mp_set(b, in, g, base_end - g, 0, 1);
	if (rc) in->reload = true;
	return rc;
undo:
	if (row) {
		atomic_store(&in->size, old);
		rw_put(b, in, BFS_ROW_DIRTY);
	}
	return rc;
}

/* To the size that it has: no more than its times change. */
int fl_only_times(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	if (!in_sealed(in)) { /* the tree's ctime is older */
		in->dirty = true;
		atomic_store(&in->wtime, (i64)now_ns(b));
		return ov_row_dirty(b, in);
	}
	if ((rc = op_begin(b, &t))) return rc;
	struct bfs_obj *o = ob_get(tview(t), in->ino, &rc) ? ob_cow(t, in->ino) : NULL;
	if (o) o->mtime_ns = o->ctime_ns = (i64)now_ns(b);
	return op_end(b, t, o || rc ? rc : t->poison);
}

int fl_set_size(struct bfs *b, struct bfs_inode *in, u64 size, bool creator)
{
	int rc = sl_settle(b, in), tries = 0;
	if (!rc && in->foreign) rc = bk_refresh(b, in);
	u64 old = atomic_load(&in->size);
	if (size > SIZE_MAX_BYTES) return -EFBIG;
	if (rc || size == old) return rc ? rc : fl_only_times(b, in);
	/* Cut short is overwritten; emptied is begun anew (a temporary file of a fixed name). */
	bool shorter = size < old;
	in->overwrote |= size && shorter && in->state != BFS_ST_NEW;
	if (b->back && shorter) bk_looked_at(b, in);
	if (shorter) fl_sums_drop(b, in, size ? size - 1 : 0, old); /* before it can have happened */
	while (fl_again(in, rc = b->back ? bk_resize(b, in, size, creator) : shorter ? shrink(b, in, size, creator) : fl_prepare(b, in, old, old, 0, creator), &tries)) {
		if ((rc = sl_settle(b, in))) return rc;
		old = atomic_load(&in->size);
	}
	if (size > old) old = atomic_load(&in->size);
	if (!rc) rc = ov_row_dirty(b, in);
	if (!rc && size > old) rc = fl_zero_gap(b, in, old, size, creator);
	if (rc) return rc;
	fl_sums_drop(b, in, min64(size, old) ? min64(size, old) - 1 : 0, max64(size, old));
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	atomic_store(&in->size, size);
	if (b->back && !size) bk_emptied(b, in);
	return in->rowst == BFS_ROW_DIRTY ? rw_put(b, in, BFS_ROW_DIRTY) : 0;
}

int fl_truncate(struct bfs *b, u64 ino, u64 fh, u64 size)
{
	struct bfs_handle *h = fh ? hd_get(b, fh) : NULL;
	struct bfs_inode *in = h ? h->in : NULL;
	int rc = 0;
	if (fh && (!h || !hd_writes(h->flags) || in->ino != ino)) return -EBADF;
	if (h) hd_touch(b, h);
	else if ((rc = in_get(b, ino, true, &in))) return rc;
	if (!(rc = in_lock(b, in, true))) {
		rc = fl_set_size(b, in, size, h && (h->flags & H_CREATOR) && in->created_here);
		if (!rc && !h) { /* truncate(2): closed at once, unless somebody else is writing */
			lk(b, &b->ilock);
			bool alone = in->writers - in->nclosed <= 1;
			unlk(b, &b->ilock);
			if (alone) rc = sl_flush(b, in);
		}
		in_unlock(b, in);
	}
	if (!h) in_put(b, in, true);
	return rc;
}
