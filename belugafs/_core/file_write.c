/* Writing files.
 *
 * Which bytes of an extent mean anything: those below the file's size.  Granules are
 * granted as they are, with whatever a former owner left in them; so a store that grows
 * the file over a gap zeroes the gap, and a store that covers a granule in part brings
 * the rest of it along.  Hence every mapped byte below `size` has been written by this
 * file, at any moment (a crash in between shows the old size, which is in the row).
 *
 * Stores that change neither map nor size hold the lock shared, so that parallel pwrites
 * go on in parallel. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include "backing.h"
#include "file.h"

#define COW_UNIT 16u    /* granules copied at once, so that small rewrites don't shred the file */

/* ---- stores ------------------------------------------------------------------------------------------------ */
int fl_put_bytes(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len)
{
	if (b->back) return bk_write(b, in, off, src, len);
	for (int i = mp_at(in, off / BFS_GRANULE); len; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 skip = off - e->file_granule * BFS_GRANULE;
		size_t n = min64(len, (u64)e->len * BFS_GRANULE - skip);
		u8 *d = (u8 *)al_mem(b, e->addr) + skip;
		if (src ? b->m->ops->copy_in(b->m, d, src, n) : b->m->ops->zero(b->m, d, n)) return fl_medium(b, in, e->addr + skip / BFS_GRANULE, granules(skip % BFS_GRANULE + n), -EIO);
		fl_stored(in, off, off + n);
		if (src) src += n;
		off += n, len -= n;
	}
	return 0;
}

/* Data of one chunk and its sum: read once where it goes to one place. */
static int put_chunk(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len, u64 *sum)
{
	int i = b->back ? 0 : mp_at(in, off / BFS_GRANULE);
	const struct bfs_extent *e = b->back ? NULL : &in->ext[i];
	u64 skip = e ? off - e->file_granule * BFS_GRANULE : 0, s;
	if (!e || !b->m->ops->copy_in_sum || skip + len > (u64)e->len * BFS_GRANULE) {
		*sum = fl_sum(src, len);
		return fl_put_bytes(b, in, off, src, len);
	}
	if (b->m->ops->copy_in_sum(b->m, (u8 *)al_mem(b, e->addr) + skip, src, len, &s)) return fl_medium(b, in, e->addr + skip / BFS_GRANULE, granules(len), -EIO);
	fl_stored(in, off, off + len);
	*sum = s ? s : 1;
	return 0;
}

/* The outcome is unknown, or the tree isn't what this inode took it for. */
bool fl_again(struct bfs_inode *in, int rc, int *tries)
{
	if (rc != -EAGAIN) return false;
	in->reload = true;
	return ++*tries < 5;
}

/* A chunk that is changed in part gets a new sum: over what was right before. */
int fl_check_chunk(struct bfs *b, struct bfs_inode *in, u64 c)
{
	u8 x;
	if (!fl_covered(b, in, c)) return 0;
	fl_vtag(b, in);
	return fl_read_chunk(b, in, c, c * b->sb.chunk_bytes, &x, 1);
}
int fl_check_partly(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	u64 cb = b->sb.chunk_bytes, size = atomic_load(&in->size);
	int rc = 0;
	for (u64 c = off / cb, last = (end - 1) / cb; c <= last && !rc; c = c < last ? last : c + 1) /* those between are changed whole */
		if (off > c * cb || end < min64((c + 1) * cb, size)) rc = fl_check_chunk(b, in, c);
	return rc;
}

/* [off, end) becomes overlay, in a file that is unsealed.  What a first and a last granule
 * have outside of it comes along; `more` is welcome behind it. */
static int prepare_once(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, u64 more, bool creator)
{
	u64 size = atomic_load(&in->size), lo = off / BFS_GRANULE, hi = off < end ? granules(end) : lo;
	struct want w = {.fg = lo, .end = hi, .more = more, .creator = creator};
	struct gap g[GAPS];
	u8 *old = NULL;
	int rc = 0, ng;
	/* where there is room (fallocate), no more is asked for */
	if (off < end && (in->state == BFS_ST_SEALED || in->base_end > lo) && !mp_is_overlay(in, lo, hi)) {
		u64 base_end = in->state == BFS_ST_SEALED ? granules(size) : min64(in->base_end, granules(size));
		while (w.fg % COW_UNIT && ov_is_base(in, w.fg - 1)) w.fg--;
		while (w.end % COW_UNIT && w.end < base_end && ov_is_base(in, w.end)) w.end++;
		if ((rc = fl_check_partly(b, in, off, end))) return rc;
	}
	u64 head = w.fg * BFS_GRANULE, hn = 0, tn = 0; /* bytes from head, bytes behind end */
	if (off < end && head < off && head < size && !mp_is_overlay(in, w.fg, w.fg + 1)) hn = min64(off, size) - head;
	if (off < end && end < w.end * BFS_GRANULE && end < size && !mp_is_overlay(in, w.end - 1, w.end)) tn = min64(w.end * BFS_GRANULE, size) - end;
	if (hn + tn && !(old = xalloc(b, hn + tn))) return -ENOMEM;
	if (hn) rc = fl_read_range(b, in, head, old, hn);
	if (!rc && tn) rc = fl_read_range(b, in, end, old + hn, tn);
	while (!rc && ((ng = ov_gaps(in, &w, g, GAPS, 16ull * b->sb.region_granules)) > 0 || in_sealed(in))) {
		rc = ov_grant(b, in, &w, g, ng);
	}
	if (!rc) rc = ov_row_dirty(b, in);
	if (!rc && hn) rc = fl_put_bytes(b, in, head, old, hn);
	if (!rc && tn) rc = fl_put_bytes(b, in, end, old + hn, tn);
	xfree(b, old);
	return rc;
}

/* Anew each time: when the outcome of a grant is in doubt, size and content may be another
 * host's by the time that they are known.  The caller, too, asks for the size after this. */
int fl_prepare(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, u64 more, bool creator)
{
	int rc, tries = 0;
	if (b->back) return bk_prepare(b, in, off, end, creator);
	while (fl_again(in, rc = prepare_once(b, in, off, end, more, creator), &tries))
		if ((rc = sl_settle(b, in))) break;
	return rc;
}

/* sums noted while writing; under the lock, shared or not */
void fl_sums_drop(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	for (u64 c = off / b->sb.chunk_bytes; c < in->wsum_cap && c * b->sb.chunk_bytes < end; c++) __atomic_store_n(&in->wsum[c], 0, __ATOMIC_RELAXED);
}

static bool sums_room(struct bfs *b, struct bfs_inode *in, u64 last)
{
	if (last > 65536 || in->flags & BFS_OF_NOSUM) return false;
	if (last <= in->wsum_cap) return true;
	u32 cap = (u32)max64(last, 2ull * in->wsum_cap);
	u64 *n = xalloc(b, cap * sizeof *n);
	if (!n) return false;
	if (in->wsum_cap) memcpy(n, in->wsum, in->wsum_cap * sizeof *n);
	xfree(b, in->wsum);
	in->wsum = n, in->wsum_cap = cap;
	return true;
}

/* Chunk by chunk, so that the sum of one that is written whole is made while it is in the
 * cache.  size: of the file behind this store. */
static int put_summed(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len, u64 size)
{
	u32 cb = b->sb.chunk_bytes;
	while (len) {
		u64 c = off / cb, from = c * cb;
		size_t n = min64(len, from + cb - off);
		bool whole = off == from && off + n == min64(from + cb, size) && sums_room(b, in, c + 1);
		u64 sum = 0;
		int rc = whole ? put_chunk(b, in, off, src, n, &sum) : fl_put_bytes(b, in, off, src, n);
		if (rc) return rc;
		if (whole) in->wsum[c] = sum;
		off += n, src += n, len -= n;
	}
	return 0;
}

/* Zeros in [from, to) as far as something is mapped there. */
int fl_zero_gap(struct bfs *b, struct bfs_inode *in, u64 from, u64 to, bool creator)
{
	int rc;
	fl_sums_drop(b, in, from ? from - 1 : 0, to);
	if (b->back) return 0; /* the backing file has zeros there */
	if (from % BFS_GRANULE) {
		u64 stop = min64(to, (from / BFS_GRANULE + 1) * BFS_GRANULE);
		int i = mp_at(in, from / BFS_GRANULE);
		if (i < in->next_ext && in->ext[i].file_granule <= from / BFS_GRANULE && in->ext[i].addr) {
			if (!in->ext[i].overlay && (rc = fl_prepare(b, in, from, stop, 0, creator))) return rc;
			if ((rc = fl_put_bytes(b, in, from, NULL, stop - from))) return rc;
		}
		from = stop;
	}
	for (int i = mp_at(in, from / BFS_GRANULE); from < to && i < in->next_ext; i++) {
		struct bfs_extent e = in->ext[i];
		u64 lo = max64(from, e.file_granule * BFS_GRANULE), hi = min64(to, (e.file_granule + e.len) * BFS_GRANULE);
		if (lo >= to) break;
		if (e.addr && e.overlay && (rc = fl_put_bytes(b, in, lo, NULL, hi - lo))) return rc;
		from = hi;
	}
	return 0;
}

/* ---- writing --------------------------------------------------------------------------------------------- */
/* As much as the last one of its directory, at first (what is known above isn't taken: it would be room that
 * small files hold for nothing); then a quarter of what it has: that much stands in df while it is written. */
static u64 growth(struct bfs *b, struct bfs_inode *in, u64 need)
{
	struct rd r;
	u64 have = atomic_load(&in->granules), n;
	if (have) return min64(max64(have / 4, COW_UNIT), b->sb.region_granules);
	if (rd_begin(b, &r)) return 0;
	n = gs_expected(&r.v, in->ino, false);
	rd_end(&r);
	return n > need ? min64(n - need, 4ull * b->sb.region_granules) : 0;
}

void hd_touch(struct bfs *b, struct bfs_handle *h)
{
	if (!(__atomic_load_n(&h->flags, __ATOMIC_RELAXED) & H_CLOSED)) return;
	lk(b, &b->ilock);
	if (h->flags & H_CLOSED) {
		__atomic_store_n(&h->flags, h->flags & ~H_CLOSED, __ATOMIC_RELAXED);
		h->in->nclosed--;
	}
	unlk(b, &b->ilock);
}

/* Could the next store still be one that only adds?  See BFS_OF_FORMING. */
bool fl_adding(const struct bfs_inode *in) { return in->flags & BFS_OF_FORMING && !in->overwrote && in->state != BFS_ST_NEW; }

/* Does a store to [off, end) change what was sealed, or does it only add to it?  Zeros were nothing. */
bool fl_overwrites(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	u8 old[BFS_GRANULE];
	if (b->back) return bk_overwrites(b, in, off, end);
	end = min64(end, atomic_load(&in->size));
	if (in->state == BFS_ST_DIRTY) end = min64(end, in->base_size);
	for (int i = off < end ? mp_at(in, off / BFS_GRANULE) : in->next_ext; i < in->next_ext; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 from = max64(off, e->file_granule * BFS_GRANULE), to = min64(end, (e->file_granule + e->len) * BFS_GRANULE), n;
		if (e->file_granule * BFS_GRANULE >= end) break;
		for (; e->addr && from < to; from += n) {
			n = min64(to - from, sizeof old);
			if (fl_read_range(b, in, from, old, n)) return true; /* unreadable: not for the store to say */
			for (u64 k = 0; k < n; k++)
				if (old[k]) return true;
		}
	}
	return false;
}

/* Each granule answers: one of a sparse pool gets its page, one that is poisoned says so. */
static bool answers(struct bfs *b, struct bfs_inode *in, u64 off, size_t len)
{
	for (int i = mp_at(in, off / BFS_GRANULE); len; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 skip = off - e->file_granule * BFS_GRANULE;
		size_t n = min64(len, (u64)e->len * BFS_GRANULE - skip);
		if (bfs_guarded_probe((const u8 *)al_mem(b, e->addr) + skip, n)) return false;
		off += n, len -= n;
	}
	return true;
}

/* Who is told that a store was taken, and whether he was; then the inode is held, since he may close the file. */
struct early { void (*taken)(void *arg); void *arg; bool told; };

static int write_locked(struct bfs *b, struct bfs_inode *in, bool creator, u64 off, const u8 *buf, size_t len, struct early *e)
{
	u64 end = off + len, size = atomic_load(&in->size);
	bool seq = off == size && end > size && !b->back;
	if (fl_adding(in)) in->overwrote = fl_overwrites(b, in, off, end);
	int rc = fl_prepare(b, in, off, end, seq ? growth(b, in, granules(len)) : 0, creator);
	if (rc) return rc;
	size = atomic_load(&in->size);
	if (off > size && (rc = fl_zero_gap(b, in, size, off, creator))) return rc;
	fl_sums_drop(b, in, off, end);
	if (end > size && size % b->sb.chunk_bytes) fl_sums_drop(b, in, size - 1, size);
	if (e && !b->back && in->state == BFS_ST_NEW && answers(b, in, off, len)) {
		lk(b, &b->ilock);
		in->opens++, in->uses++;
		unlk(b, &b->ilock);
		if (end > size) atomic_store(&in->size, end); /* who asks for the size doesn't wait for the lock */
		e->told = true;
		e->taken(e->arg);
	}
	if ((rc = put_summed(b, in, off, buf, len, max64(size, end)))) {
		fl_sums_drop(b, in, off, end); /* they are of a file that has become longer */
		if (e && e->told) atomic_store(&in->size, size), in->killed = true, in->late = rc;
		if (b->back && end > size) bk_truncate(b, in, size); /* the part that found room */
		return rc;
	}
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	if (end > size) atomic_store(&in->size, end);
	/* a row that says dirty says how long the file is, too */
	return end > size && in->rowst == BFS_ROW_DIRTY ? rw_put(b, in, BFS_ROW_DIRTY) : 0;
}

static ssize_t store(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len, struct early *e)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || !hd_writes(h->flags)) return -EBADF;
	struct bfs_inode *in = h->in;
	bool append = h->flags & O_APPEND;
	int rc;
	if (!len) return 0;
	if (len > INT64_MAX || (!append && (off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off))) return -EFBIG;
	hd_touch(b, h);
	if ((rc = in_lock(b, in, false))) return rc;
	/* In place: nothing but bytes changes. */
	if (!append && in->dirty && !fl_adding(in) && !in->gone && !in->reload && !in->frozen && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY) && in->rowst != BFS_ROW_CLOSED &&
	    off + len <= atomic_load(&in->size) && (b->back ? bk_in_place(b, in, off, off + len) : mp_is_overlay(in, off / BFS_GRANULE, granules(off + len)))) {
		fl_sums_drop(b, in, off, off + len);
		if (!(rc = fl_put_bytes(b, in, off, buf, len))) atomic_store(&in->wtime, (i64)now_ns(b));
		in_unlock(b, in);
		return rc ? rc : (ssize_t)len;
	}
	in_unlock(b, in);
	if ((rc = in_lock(b, in, true))) return rc;
	if (!(rc = sl_settle(b, in))) {
		if (in->foreign) rc = bk_refresh(b, in);
		if (append) off = atomic_load(&in->size);
		if (!rc) rc = off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off ? -EFBIG : write_locked(b, in, (h->flags & H_CREATOR) && in->created_here, off, buf, len, e);
	}
	bool last = false;
	if (e && e->told) { /* before whoever waits for the lock can see that it was held, but for the last */
		lk(b, &b->ilock);
		if (!(last = in->opens == 1)) in->opens--;
		unlk(b, &b->ilock);
	}
	in_unlock(b, in);
	if (last) in_put(b, in, false);
	return rc ? rc : (ssize_t)len;
}

ssize_t bfs_write(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len) { return store(b, fh, off, buf, len, NULL); }

ssize_t bfs_write_early(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len, void (*taken)(void *arg), void *arg)
{
	struct early e = {.taken = taken, .arg = arg};
	return store(b, fh, off, buf, len, taken ? &e : NULL);
}
