/* fallocate(2): room that is promised, and zeros.  Holes: file_punch.c.
 *
 * Room is overlay, in place: a store into it asks for nothing more, neither space nor a transaction,
 * so it can't fail for want of either.  Hence base in the range is copied, as a store would do it (the
 * seal gives the former extents back), and so is the granule that the file ends in when the room
 * goes on behind it, since a store there zeroes the rest of that granule.
 *
 * A hole below the size is zeros in the moment in which the tree knows of its extents, whatever
 * the file's state is (want.fill); behind the size they hold anything until the file grows over them.
 *
 * A call that fails has changed nothing: what it was granted goes back, and a file that it has
 * unsealed is sealed as it was. */
#define _GNU_SOURCE
#include <fcntl.h>
#include "backing.h"
#include "file.h"

/* ---- as it was ---------------------------------------------------------------------------------- */
int fl_remember(struct bfs *b, const struct bfs_inode *in, struct before *s)
{
	*s = (struct before){.n = in->next_ext, .granules = atomic_load(&in->granules), .state = in->state, .cls = in->cls, .rowst = in->rowst, .dirty = in->dirty, .lives_on = in->lives_on};
	if (!s->n) return 0;
	if (!(s->ext = xalloc(b, (size_t)s->n * sizeof *s->ext))) return -ENOMEM;
	memcpy(s->ext, in->ext, (size_t)s->n * sizeof *s->ext);
	return 0;
}

static int undo(struct txn *t, struct bfs_inode *in, const struct before *s)
{
	int rc = 0;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
	if (!c) return rc;
	if (c->version != in->version || c->owner != in->as) return -ESTALE;
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o) return t->poison ? t->poison : -ESTALE;
	bool sealed = s->state == BFS_ST_SEALED && o->state == BFS_ST_DIRTY;
	u64 gone = sealed ? 0 : ov_drop_new(t, in, s->ext, s->n);
	if (sealed ? sl_obj_to_base(t, o, in->as) : ov_drop_scratch(t, o)) return t->poison;
	ob_count(t, o, -1);
	o->granules -= min64(gone, o->granules);
	if (sealed) o->cls = s->cls;
	if (s->state == BFS_ST_ABANDONED && o->state == BFS_ST_NEW) {
		o->state = BFS_ST_ABANDONED;
		if ((rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, t->b->slot), o->slot, 0))) && rc != -ENOENT) txn_fail(t, rc);
	}
	ob_count(t, o, 1);
	return t->poison ? t->poison : in_reload(tview(t), in);
}

void fl_put_back(struct bfs *b, struct bfs_inode *in, const struct before *s)
{
	struct txn *t;
	int rc = 0;
	if (in->reload || in->gone) return; /* the outcome is unknown: asked again, from what is true then */
	if (atomic_load(&in->granules) != s->granules || in->state != s->state) {
		fl_flush_overlay(b, in); /* rule 21 */
		if (!(rc = op_begin(b, &t))) rc = op_end(b, t, undo(t, in, s));
		if (rc) {
			in->reload = true; /* more room than was asked for, with the same bytes */
			return;
		}
	}
	in->dirty = s->dirty, in->lives_on = s->lives_on;
	if (s->rowst == BFS_ROW_CLOSED && in->rowst == BFS_ROW_DIRTY) { /* what was promised is as it was */
		fl_flush_overlay(b, in);
		rw_put(b, in, BFS_ROW_CLOSED);
	}
}

/* ---- room ------------------------------------------------------------------------------------------ */
int fl_room(struct bfs *b, struct bfs_inode *in, u64 fg, u64 end, bool holes, bool creator)
{
	struct want w = {.fg = fg, .end = end, .holes = holes, .creator = creator, .fill = true};
	struct gap g[GAPS];
	u64 most = 16ull * b->sb.region_granules;
	int rc = 0, ng;
	while (!rc && (ng = ov_gaps(in, &w, g, GAPS, most)) > 0) {
		rc = ov_grant(b, in, &w, g, ng);
		if (rc == -ENOSPC && most > EXTENTS) rc = 0, most = max64(most / 8, EXTENTS); /* in pieces it may fit */
	}
	return rc;
}

/* What can't be had, even if all that eviction may take went, is refused before anything goes. */
static int could_fit(struct bfs *b, struct bfs_inode *in, u64 fg, u64 end, bool holes)
{
	struct want w = {.fg = fg, .end = end, .holes = holes};
	struct gap g[GAPS];
	struct rd r;
	u64 need = 0, room;
	int rc, n;
	while ((n = ov_gaps(in, &w, g, GAPS, UINT64_MAX)) > 0) {
		for (int i = 0; i < n; i++) need += g[i].len;
		w.fg = g[n - 1].fg + g[n - 1].len;
	}
	if (!need) return 0;
	if ((rc = rd_begin(b, &r))) return rc;
	room = b->sb.data_granules - r.v.root->granules_bad;
	if (!b->o.evict_all || b->o.evict_none) {
		u64 used = r.v.root->granules_used, go = b->o.evict_none ? 0 : r.v.root->blocks_granules;
		room -= min64(room, used > go ? used - go : 0);
	}
	rd_end(&r);
	if (need <= room) return 0;
	return bfs_fail(b, -ENOSPC, "room for %llu granules is asked for, and %llu can be had at most", (unsigned long long)need, (unsigned long long)room);
}

int bfs_reserve(struct bfs *b, u64 fh, u64 bytes)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || !hd_writes(h->flags)) return -EBADF;
	struct bfs_inode *in = h->in;
	bool creator = (h->flags & H_CREATOR) && in->created_here;
	int rc, tries = 0;
	if (bytes > SIZE_MAX_BYTES) return -EFBIG;
	if ((rc = in_lock(b, in, true))) return rc;
	rc = sl_settle(b, in);
	if (b->back) rc = rc || !bytes ? rc : bk_allocate(b, in, FALLOC_FL_KEEP_SIZE, 0, bytes, creator);
	while (!rc && !b->back) {
		struct before s = {0};
		rc = could_fit(b, in, 0, granules(bytes), true);
		if (!rc) rc = fl_remember(b, in, &s);
		if (!rc && (rc = fl_room(b, in, 0, granules(bytes), true, creator)) && rc != -EAGAIN) fl_put_back(b, in, &s);
		if (!rc) in->dirty |= atomic_load(&in->granules) != s.granules;
		xfree(b, s.ext);
		if (!fl_again(in, rc, &tries)) break;
		rc = sl_settle(b, in);
	}
	in_unlock(b, in);
	return rc;
}

/* ---- allocating, zeros ----------------------------------------------------------------------------- */
int fl_allocated(struct bfs *b, struct bfs_inode *in, const struct before *s, bool changed, u64 size)
{
	bool grows = size > atomic_load(&in->size);
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	if (!changed && !grows && s->rowst != BFS_ROW_DIRTY && in->rowst == BFS_ROW_DIRTY) {
		/* Not a byte has changed: what was sealed or synced is whole, also over a crash.  Chunks that
		 * were holes have sums now. */
		in->dirty = s->dirty, in->lives_on = s->lives_on, in->nnew_sums = 0;
		fl_flush_overlay(b, in);
		return rw_put(b, in, BFS_ROW_CLOSED);
	}
	if (!grows) return 0;
	atomic_store(&in->size, size);
	return in->rowst == BFS_ROW_DIRTY ? rw_put(b, in, BFS_ROW_DIRTY) : 0;
}

/* [off, end); with FALLOC_FL_ZERO_RANGE in mode all of it that is below the size becomes zeros. */
static int allocate_once(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 end, bool creator)
{
	bool zero = mode & FALLOC_FL_ZERO_RANGE, keep = mode & FALLOC_FL_KEEP_SIZE;
	u64 size = atomic_load(&in->size), last = size / BFS_GRANULE;
	struct before s = {0};
	int rc = could_fit(b, in, off / BFS_GRANULE, granules(end), false);
	if (rc || (rc = fl_remember(b, in, &s))) return rc;
	/* The last chunk gets a new sum when there is room behind the end: over what was right before. */
	if (size && end > size) rc = fl_check_chunk(b, in, (size - 1) / b->sb.chunk_bytes);
	if (!rc && end > size && size % BFS_GRANULE && ov_is_base(in, last)) rc = fl_room(b, in, last, last + 1, false, creator);
	if (!rc) rc = fl_room(b, in, off / BFS_GRANULE, granules(end), false, creator);
	if (!rc) rc = ov_row_dirty(b, in);
	bool over = !rc && zero && fl_adding(in) ? fl_overwrites(b, in, off, end) : in->overwrote;
	u64 from = zero ? min64(off, size) : size, to = keep ? min64(end, size) : end;
	bool changed = false;
	if (!rc && from < to) {
		changed = zero;
		rc = fl_zero_gap(b, in, from, to, creator);
	}
	if (rc && rc != -EAGAIN && !changed) fl_put_back(b, in, &s);
	xfree(b, s.ext);
	if (rc) return rc;
	in->overwrote = over;
	return fl_allocated(b, in, &s, changed, keep ? size : max64(end, size));
}

int bfs_fallocate(struct bfs *b, u64 fh, int mode, u64 off, u64 len)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	int rc, tries = 0, what = mode & ~FALLOC_FL_KEEP_SIZE;
	if (!len || len > INT64_MAX || off > INT64_MAX) return -EINVAL;
	if ((what && what != FALLOC_FL_PUNCH_HOLE && what != FALLOC_FL_ZERO_RANGE) || mode == FALLOC_FL_PUNCH_HOLE) return -EOPNOTSUPP;
	if (!hd_writes(h->flags)) return -EBADF;
	if (off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off) return -EFBIG;
	/* Inside a batch nothing is granted; and what a hole gives back could be stored into by a later call of
	 * it, before the transaction that frees it is known to have happened. */
	if (in_batch(b)) return bfs_fail(b, -EBUSY, "inside a batch no space is allocated or given back");
	hd_touch(b, h);
	if ((rc = in_lock(b, in, true))) return rc;
	bool creator = (h->flags & H_CREATOR) && in->created_here;
	rc = sl_settle(b, in);
	if (!rc && b->back) rc = what == FALLOC_FL_PUNCH_HOLE ? bk_punch(b, in, off, off + len, creator) : bk_allocate(b, in, mode, off, off + len, creator);
	while (!rc && !b->back && fl_again(in, rc = what == FALLOC_FL_PUNCH_HOLE ? fl_punch(b, in, off, off + len, creator) : allocate_once(b, in, mode, off, off + len, creator), &tries))
		rc = sl_settle(b, in);
	in_unlock(b, in);
	return rc;
}
