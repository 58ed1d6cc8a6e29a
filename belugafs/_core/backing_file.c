/* An open object over its backing file: writing in place, sums, the seal, what a crash left.
 *
 * There is no overlay: what is written is the file.  Hence the order that a crash goes by:
 *   - an object is unsealed, acknowledged, and its row says DIRTY, before its file is changed;
 *   - the row says CLOSED after the last store, as in a flat pool;
 *   - recovery takes the file as it is, with the size that it has.  Where the row doesn't say
 *     CLOSED, or the file was changed after it did, the content is kept and marked unverified. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include "backing.h"
#include "file.h"

/* ---- what others than the daemon have written ------------------------------------------------ */
int bk_refresh(struct bfs *b, struct bfs_inode *in)
{
	struct bk_stat s;
	int rc = in->foreign ? bk_stat(b, in, &s) : 0;
	if (rc || !in->foreign) return rc;
	atomic_store(&in->size, s.size);
	atomic_store(&in->granules, s.granules);
	if (s.mtime_ns != in->fmtime_ns) {
		in->fmtime_ns = s.mtime_ns;
		atomic_store(&in->wtime, s.mtime_ns);
	}
	return 0;
}

/* ---- writing --------------------------------------------------------------------------------------- */
/* Sealed, but nobody vouches for the content yet: to write it takes no more. */
static bool open_anyway(const struct bfs_inode *in) { return in->foreign && in->state == BFS_ST_SEALED; }

static int unseal(struct bfs *b, struct bfs_inode *in, bool creator)
{
	struct txn *t;
	bool un = false;
	int rc;
	if (!in_sealed(in) || open_anyway(in)) return 0;
	/* its bytes change at once, the tree with the batch: a crash in between would look like damage */
	if (in_batch(b)) return bfs_fail(b, -EBUSY, "a sealed file can't be written inside a batch");
	if ((rc = op_begin(b, &t))) return rc;
	struct bfs_obj *o = ov_writable(t, in, creator, &un, &rc);
	u8 cls = o ? o->cls : 0;
	if ((rc = op_end(b, t, o ? 0 : rc))) return rc;
	return un ? ov_unsealed(b, in, cls) : 0;
}

static int unseal_again(struct bfs *b, struct bfs_inode *in, bool creator)
{
	int rc, tries = 0;
	while (fl_again(in, rc = unseal(b, in, creator), &tries))
		if ((rc = sl_settle(b, in))) break;
	return rc ? rc : ov_row_dirty(b, in);
}

/* What is sealed says nothing about these chunks any more. */
static void sums_gone(struct bfs *b, struct bfs_inode *in, u64 from, u64 end)
{
	for (u64 c = from / b->sb.chunk_bytes; c < in->nsums && c * b->sb.chunk_bytes < end; c++) in->sums[c] = 0;
}

int bk_prepare(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator)
{
	int rc = off < end ? fl_check_partly(b, in, off, end) : 0;
	if (rc || (rc = unseal_again(b, in, creator))) return rc;
	sums_gone(b, in, off, end);
	return 0;
}

bool bk_in_place(struct bfs *b, const struct bfs_inode *in, u64 off, u64 end)
{
	for (u64 c = off / b->sb.chunk_bytes; c < in->nsums && c * b->sb.chunk_bytes < end; c++)
		if (in->sums[c]) return false;
	return true;
}

bool bk_overwrites(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	u8 old[BFS_GRANULE];
	end = min64(end, atomic_load(&in->size));
	if (in->state == BFS_ST_DIRTY) end = min64(end, in->base_size);
	while (off < end) {
		i64 at = bk_seek(b, in, off, true);
		if (at < 0) return at != -ENXIO;
		off = max64(off, (u64)at);
		u64 n = off < end ? min64(end - off, sizeof old) : 0;
		if (n && fl_read_range(b, in, off, old, n)) return true;
		for (u64 i = 0; i < n; i++)
			if (old[i]) return true;
		off += n;
	}
	return false;
}

int bk_resize(struct bfs *b, struct bfs_inode *in, u64 size, bool creator)
{
	u64 old = atomic_load(&in->size);
	int rc = unseal_again(b, in, creator);
	if (rc) return rc;
	sums_gone(b, in, min64(size, old), max64(size, old));
	return bk_truncate(b, in, size);
}

/* ---- room, zeros, holes -------------------------------------------------------------------------------- */
/* Room first: it changes no byte, so a call that finds none has changed nothing. */
int bk_allocate(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 end, bool creator)
{
	bool zero = mode & FALLOC_FL_ZERO_RANGE, keep = mode & FALLOC_FL_KEEP_SIZE, over = in->overwrote;
	struct before s = {.dirty = in->dirty, .lives_on = in->lives_on, .rowst = in->rowst};
	int rc = bk_refresh(b, in);
	u64 size = atomic_load(&in->size), stop = zero ? min64(end, size) : off;
	if (rc || (rc = bk_fallocate(b, in, FALLOC_FL_KEEP_SIZE, off, end - off))) return rc;
	if ((rc = off < stop ? bk_prepare(b, in, off, stop, creator) : bk_prepare(b, in, 0, 0, creator))) return rc;
	if (off < stop && fl_adding(in)) over = bk_overwrites(b, in, off, stop);
	if (off < stop && (rc = bk_write(b, in, off, NULL, stop - off))) return rc;
	if (off < stop) fl_sums_drop(b, in, off, stop);
	if (!keep && end > size) {
		if (size) fl_sums_drop(b, in, size - 1, end);
		sums_gone(b, in, size, end);
		if ((rc = bk_truncate(b, in, end))) return rc;
	}
	in->overwrote = over;
	return fl_allocated(b, in, &s, off < stop, keep ? size : max64(end, size));
}

int bk_punch(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator)
{
	int rc = bk_refresh(b, in);
	u64 size = atomic_load(&in->size), stop = min64(end, size);
	if (rc) return rc;
	if (!bk_has_data(b, in, off, end - off)) return fl_only_times(b, in);
	if ((rc = off < stop ? bk_prepare(b, in, off, stop, creator) : bk_prepare(b, in, 0, 0, creator))) return rc;
	bool over = off < stop && fl_adding(in) ? bk_overwrites(b, in, off, stop) : in->overwrote;
	if ((rc = bk_fallocate(b, in, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, end - off))) return rc;
	in->overwrote = over;
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	if (off < stop) fl_sums_drop(b, in, off, stop);
	return 0;
}

/* ---- sums -------------------------------------------------------------------------------------------- */
bool bk_has_data(struct bfs *b, struct bfs_inode *in, u64 off, u64 len)
{
	i64 at = bk_seek(b, in, off, true);
	return at < 0 ? at != -ENXIO : (u64)at < off + len;
}

int bk_make_sums(struct bfs *b, struct bfs_inode *in, bool bad)
{
	u64 size = atomic_load(&in->size), cb = b->sb.chunk_bytes, n = (size + cb - 1) / cb;
	bool was_bad = in->state == BFS_ST_DIRTY && in->flags & BFS_OF_UNVERIFIED;
	int rc = 0;
	xfree(b, in->new_sums);
	in->new_sums = NULL, in->nnew_sums = 0;
	/* what nobody knows to be right stays so, unless all of it was written since */
	for (u64 c = 0; was_bad && c < n && !bad; c++) bad = c >= in->wsum_cap || !in->wsum[c];
	in->unverified = bad || in->foreign;
	if (!n || in->unverified || in->flags & BFS_OF_NOSUM) return 0;
	u64 *s = xalloc(b, n * sizeof *s);
	u8 *bounce = fl_bounce(b);
	i64 data = -1; /* the next of it */
	if (!s || !bounce) rc = -ENOMEM;
	for (u64 c = 0; c < n && !rc; c++) {
		u64 off = c * cb, end = min64(off + cb, size);
		bool keep = !was_bad && c < in->nsums && in->sums[c] && (size == in->base_size || off + cb <= min64(size, in->base_size));
		if (keep) s[c] = in->sums[c];
		else if (c < in->wsum_cap && in->wsum[c]) s[c] = in->wsum[c];
		else {
			if (data < (i64)off && (data = bk_seek(b, in, off, true)) < 0) rc = data == -ENXIO ? 0 : (int)data, data = INT64_MAX;
			if (!rc && data < (i64)end && !(rc = bk_read(b, in, off, bounce, end - off))) s[c] = fl_sum(bounce, end - off);
		}
	}
	fl_bounce_end(b, bounce);
	if (rc) {
		xfree(b, s);
		return rc;
	}
	in->new_sums = s, in->nnew_sums = (u32)n;
	return 0;
}

/* ---- the seal ----------------------------------------------------------------------------------------------- */
int bk_seal(struct txn *t, struct bfs_inode *in, struct bfs_obj *o)
{
	struct bfs *b = t->b;
	struct bk_stat s;
	int rc = bk_stat(b, in, &s);
	if (rc) return txn_fail(t, rc);
	o->granules = s.granules;
	atomic_store(&in->granules, s.granules);
	/* of the large ones of late: one that was cut short by ENOSPC must not make the next ones small */
	u64 guess = atomic_load(&b->back->guess);
	if (o->cls == BFS_CLS_BLOCK) atomic_store(&b->back->guess, max64(s.granules, guess - guess / 16));
	xfree(b, in->new_ext);
	in->new_ext = NULL, in->nnew_ext = 0;
	if (!in->foreign) return 0;
	/* listed as open until nobody can write it any more */
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_OPEN, in->as - 1), o->slot, 0), .x = in->ino, .y = o->version + 1};
	return (rc = bt_put(t, &r)) ? txn_fail(t, rc) : 0;
}

/* ---- what a crash left --------------------------------------------------------------------------------------- */
int bk_recover(struct txn *t, struct bfs_inode *in, const struct bfs_obj *o, const struct bfs_row *row)
{
	struct bfs *b = t->b;
	struct bk_stat s;
	bool dirty = o->state == BFS_ST_DIRTY, waits = o->state == BFS_ST_SEALED;
	int rc = bk_stat(b, in, &s);
	if (rc == -ENOENT || rc == -ESTALE || (!row && !dirty && !waits)) { /* no content, or one that nobody was promised */
		if (waits && (rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, b->slot), o->slot, 0)))) return rc;
		return sl_drop_names(t, in->ino);
	}
	if (rc || (rc = bk_trim(b, in))) return rc;
	bool bad = !waits && (!row || row->state != BFS_ROW_CLOSED || (row->mtime_ns && s.mtime_ns > row->mtime_ns));
	bool alone = bk_alone(b, in);
	in->foreign = !alone, in->fmtime_ns = s.mtime_ns;
	atomic_store(&in->size, s.size);
	atomic_store(&in->wtime, bad || !row ? s.mtime_ns : row->mtime_ns);
	in->overwrote = dirty;
	in->lives_on = row && row->state == BFS_ROW_DIRTY && o->state == BFS_ST_NEW;
	in->nsums = 0; /* of what there was before it was written */
	rc = waits && !alone ? 0 : bk_make_sums(b, in, bad);
	if (rc == -EIO) rc = bk_make_sums(b, in, true); /* unreadable: said when it is read */
	if (!rc && !bad && row && row->nsums && in->nnew_sums == row->nsums && s.size == row->size) memcpy(in->new_sums, row->sum, row->nsums * sizeof *row->sum);
	if (!rc && !waits) rc = sl_seal(t, in);
	else if (!rc && alone) rc = bk_settled(t, in);
	if (rc == -EEXIST) rc = sl_drop_names(t, in->ino);
	if (alone) bk_alone_end(in);
	return rc ? rc : !alone; /* bk_keep */
}
