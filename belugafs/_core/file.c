/* A file's way from create to close: creating, fsync, flush.  What is between them is in
 * file_read.c, file_write.c (with file_overlay.c) and file_size.c; what a close does, in seal_close.c. */
#include <fcntl.h>
#include "backing.h"
#include "file.h"

/* ---- creating ------------------------------------------------------------------------------------------------- */
int fl_new(struct txn *t, u64 ino, const struct extent *e, int n, int flags, u64 *fh)
{
	struct bfs *b = t->b;
	struct bfs_inode *in = in_alloc(b, ino);
	struct bfs_obj *o = ob_cow(t, ino);
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_OPEN, b->slot), INO_SLOT(ino), 0), .x = ino};
	int rc = in && o ? 0 : -ENOMEM;
	if (!rc && b->back && (rc = bk_fd(b, in)) > 0) rc = 0;
	if (!rc) r.y = o->version, rc = bt_put(t, &r);
	u64 fg = 0;
	for (int i = 0; i < n && !rc; i++) {
		r = ov_rec(ino, fg, e[i].addr, e[i].len);
		if (!(rc = al_own(t, e[i].addr, e[i].len, ino, BFS_OWN_GRANT)) && !(rc = bt_put(t, &r))) rc = mp_set(b, in, fg, e[i].len, e[i].addr, 1);
		fg += e[i].len;
	}
	if (rc) {
		in_destroy(b, in);
		return txn_fail(t, rc);
	}
	ob_count(t, o, -1);
	o->granules += fg, o->u.f.nextents += (u32)n;
	ob_count(t, o, 1);
	in->state = BFS_ST_NEW, in->cls = o->cls, in->version = o->version, in->flags = o->flags;
	in->created_here = true;
	atomic_store(&in->granules, fg);
	/* in the table before the object can be seen: an unlink finds it open */
	in_insert_new(b, in);
	in_batch_mark(b, in);
	if ((rc = hd_new(b, in, flags | H_CREATOR, fh))) {
		in->gone = true;
		in_put(b, in, true);
		return txn_fail(t, rc);
	}
	if (BFS_MUT(MUT_ROW_BEFORE_ACK)) rw_put(b, in, BFS_ROW_CLOSED);
	return 0;
}

/* A first writing that was given up and that nobody has open stands in nobody's way. */
static int replace_abandoned(struct txn *t, u64 dir, const void *name, size_t len, u64 ino)
{
	struct ht_entry e;
	int rc = 0;
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (!o) return rc;
	if (o->state != BFS_ST_ABANDONED || o->owner != t->b->slot + 1 || in_is_open(t->b, ino)) return -EEXIST;
	if ((rc = ht_find_owner(tview(t), dir, BFS_EK_NAME, name, len, (u8)(t->b->slot + 1), &e))) return rc;
	return e.ino == ino ? nm_remove(t, &e) : -EEXIST;
}

int bfs_create(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, int flags, struct bfs_attr *a, u64 *fh)
{
	struct txn *t;
	u64 ino = 0, made = 0;
	i64 made_ns = 0;
	int rc;
	if (b->o.readonly) return -EROFS;
	for (int tries = 0; tries < 8; tries++) {
		bool there = false;
		int c = 0;
		*fh = 0;
		if ((rc = op_begin_room(b, &t))) return rc;
		rc = nm_create(t, dir, name, len, mode, uid, gid, (u8)(b->slot + 1), &ino);
		/* Asked again after an unknown outcome: did this call make it?  A history that doesn't know
		 * of it gives the same inode number to somebody else's file. */
		const struct bfs_obj *was = rc == -EEXIST && ino == made ? ob_get(tview(t), ino, &c) : NULL;
		bool mine = was && was->state == BFS_ST_NEW && was->owner == b->slot + 1 && was->btime_ns == made_ns;
		if (mine) there = true;
		else if (rc == -EEXIST && (flags & O_EXCL) && !(rc = replace_abandoned(t, dir, name, len, ino)))
			rc = nm_create(t, dir, name, len, mode, uid, gid, (u8)(b->slot + 1), &ino);
		else if (rc == -EEXIST && !(flags & O_EXCL)) there = true;
		if (!rc) {
			if (!(rc = fl_new(t, ino, NULL, 0, hd_writes(flags) ? flags : flags | O_RDWR, fh))) {
				const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
				if (o && a) ob_attr(o, a);
				if (o) made_ns = o->btime_ns;
			}
		}
		rc = op_end(b, t, rc);
		if (!rc) return 0;
		if (*fh) { /* not made, or not known */
			struct bfs_handle *h = hd_get(b, *fh);
			h->in->gone = true;
			bfs_release(b, *fh);
			*fh = 0;
			made = rc == -EAGAIN ? ino : 0;
		}
		if (there) {
			if ((rc = bfs_open(b, ino, flags & ~(O_CREAT | O_EXCL), fh)) == -ENOENT || rc == -ESTALE) continue; /* gone in between */
			if (!rc && mine) {
				struct bfs_handle *h = hd_get(b, *fh);
				h->in->created_here = true, h->flags |= H_CREATOR;
			}
			if (!rc && a) rc = bfs_getattr(b, ino, a);
			return rc;
		}
		if (rc != -EAGAIN) return rc;
	}
	return rc;
}

/* O_TMPFILE.  An outcome that is unknown leaves an orphan that nobody has open, if anything: the next try frees it. */
int bfs_tmpfile(struct bfs *b, u64 dir, u32 mode, u32 uid, u32 gid, int flags, struct bfs_attr *a, u64 *fh)
{
	struct txn *t;
	u64 ino = 0, made = 0;
	i64 made_ns = 0;
	int rc = 0;
	if (b->o.readonly) return -EROFS;
	if (!hd_writes(flags)) return -EINVAL;
	for (int tries = 0; tries < 8; tries++) {
		struct bfs_rec r;
		int c = 0;
		*fh = 0;
		if ((rc = op_begin_room(b, &t))) return rc;
		const struct bfs_obj *o = made ? ob_get(tview(t), made, &c) : NULL;
		if (o && o->state == BFS_ST_NEW && o->btime_ns == made_ns && !bt_get(tview(t), KEY(BFS_T(BFS_T_ORPHAN, b->slot), INO_SLOT(made), 0), &r) && r.x == made) rc = nm_free_orphan(t, b->slot, made);
		if (!rc) rc = nm_nameless(t, dir, mode, uid, gid, &ino);
		if (!rc && !(rc = fl_new(t, ino, NULL, 0, flags & ~O_EXCL, fh)) && (o = ob_get(tview(t), ino, &rc))) {
			made_ns = o->btime_ns;
			if (a) ob_attr(o, a);
			hd_get(b, *fh)->in->nameless = !(flags & O_EXCL);
		}
		if (!(rc = op_end(b, t, rc))) return 0;
		if (*fh) { /* not made, or not known */
			hd_get(b, *fh)->in->gone = true;
			bfs_release(b, *fh);
			*fh = 0;
		}
		if (rc != -EAGAIN) return rc;
		made = ino;
	}
	return rc;
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */
/* What became of stores whose callers had been answered: said once, under the lock. */
static int late(struct bfs_inode *in, int rc)
{
	if (!rc) rc = in->late;
	in->late = 0;
	return rc;
}

int bfs_fsync(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	int rc = in_lock(b, in, true);
	if (rc) return rc;
	if (!(rc = sl_settle(b, in)) && !(rc = bk_refresh(b, in)) && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY) && in->rowst != BFS_ROW_CLOSED) {
		fl_flush_overlay(b, in);
		rc = in_batch(b) ? bfs_fail(b, -EBUSY, "nothing is durable before the batch is") : rw_put(b, in, BFS_ROW_CLOSED);
		if (rc == -ENFILE) rc = sl_flush(b, in); /* no row is left: sealed is as good */
		if (!rc) in->synced = true;
		if (!rc && in->foreign) in->sync_ns = in->fmtime_ns, in->sync_size = atomic_load(&in->size);
	}
	rc = late(in, rc);
	in_unlock(b, in);
	return rc;
}

int bfs_flush(struct bfs *b, u64 fh, bool killed)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	if (!hd_writes(h->flags)) return 0;
	int rc = in_lock(b, in, true);
	if (rc) return rc;
	lk(b, &b->ilock);
	if (!(h->flags & H_CLOSED)) {
		__atomic_store_n(&h->flags, h->flags | H_CLOSED, __ATOMIC_RELAXED);
		in->nclosed++;
	}
	bool others = in->writers > in->nclosed;
	unlk(b, &b->ilock);
	if (b->back && !others) bk_written(b, in);
	/* What was synced was promised, and may be what others need to put right what the dead one
	 * left (a database's journal).  With publish=close nobody ever sees a file that wasn't closed. */
	bool promised = in->synced && !b->o.publish_close;
	if (killed && !promised && in->state == BFS_ST_NEW && in->created_here && (h->flags & H_CREATOR)) rc = sl_abandon(b, in);
	else if (!others) rc = sl_flush(b, in);
	else if (in->foreign) rc = bk_refresh(b, in); /* goes on being written, seen by nobody here */
	else if (!(rc = sl_settle(b, in)) && in->rowst != BFS_ROW_CLOSED && in->state != BFS_ST_SEALED && !in_batch(b)) {
		/* somebody else is writing it: closed as far as this one goes, sealed by the last */
		fl_flush_overlay(b, in);
		rc = rw_put(b, in, BFS_ROW_CLOSED);
		if (rc == -ENFILE) rc = 0;
	}
	rc = late(in, rc);
	in_unlock(b, in);
	return rc;
}
