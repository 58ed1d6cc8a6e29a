/* Closing: what a close, a last release, a killed writer and the timer make of a file. */
#include "backing.h"
#include "file.h"

/* ---- small things ---------------------------------------------------------------------- */
static void sealing(struct bfs *b, struct bfs_inode *in, int by)
{
	lk(b, &b->ilock);
	in->sealing += (u32)by;
	unlk(b, &b->ilock);
}

static void defer(struct bfs *b, struct bfs_inode *in, bool on)
{
	lk(b, &b->ilock);
	bool was = in->deferred;
	in->deferred = on;
	unlk(b, &b->ilock);
	if (was != on) atomic_fetch_add(&b->nwriting, on ? 1u : -1u);
}

/* ---- names of a first writing go ------------------------------------------------------------- */
int sl_drop_names(struct txn *t, u64 ino)
{
	struct ht_entry e;
	int rc = 0;
	for (u32 n = 0; n <= BFS_LINK_MAX; n++) {
		const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
		if (!o) return n && rc == -ESTALE ? 0 : rc; /* with the last name it is freed, or becomes an orphan */
		if (!o->nlink) return 0;
		if ((rc = ht_by_cookie(tview(t), o->hash, o->parent, o->cookie, &e)) || (rc = nm_remove(t, &e))) return rc == -ENOENT ? -EIO : rc;
	}
	return -EIO;
}

static int drop_named(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	for (int tries = 0; tries < 5; tries++) {
		if ((rc = op_begin(b, &t))) return rc;
		if ((rc = op_end(b, t, sl_drop_names(t, in->ino))) != -EAGAIN) break;
	}
	in_batch_mark(b, in);
	return rc;
}

/* ---- closing -------------------------------------------------------------------------------------- */
/* 1: has no name any more, its data dies with the last descriptor */
static int unlinked(struct bfs *b, struct bfs_inode *in, bool strict)
{
	struct rd r;
	struct txn *t;
	int rc = 0;
	bool batch = strict || in_batch(b);
	if ((rc = batch ? op_begin(b, &t) : rd_begin(b, &r))) return rc;
	const struct bfs_obj *o = ob_get(batch ? tview(t) : &r.v, in->ino, &rc);
	if (o) rc = !o->nlink;
	if (rc == -ESTALE) {
		in->gone = true;
		rc = 1;
	}
	if (batch) op_end(b, t, 0);
	else rd_end(&r);
	return rc;
}

/* A seal in doubt is settled by whoever leads.  A host that can't, since another one does, learns from what
 * it adopts: a root that is adopted is in all that come later, and the version that the seal
 * makes, or a later one, is there only if it happened.  Not knowing it, this host would go on showing
 * what others have long replaced.  The extents are new to it: announced, then checked (rule 16).  Under the lock. */
static void learn(struct bfs *b, struct bfs_inode *in)
{
	struct rd r;
	int rc;
	if (!in->frozen || in->sealing || in->reload || rd_begin(b, &r)) return;
	const struct bfs_obj *o = ob_get(&r.v, in->ino, &rc);
	bool known = o && o->owner != b->slot + 1 && o->version > in->version && !in_reload(&r.v, in);
	rd_end(&r);
	if (!known) return;
	defer(b, in, false);
	atomic_store(&in->checked, false);
	in_check(b, in);
}

void sl_learn(struct bfs *b, struct bfs_inode *in)
{
	if (in_batch(b) || in_lock(b, in, true)) return;
	learn(b, in);
	in_unlock(b, in);
}

static int seal_once(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	if ((rc = op_begin_room(b, &t))) return rc;
	sealing(b, in, 1);
	rc = sl_seal(t, in);
	bool before = rc == 1; /* it had happened, and the answer was lost */
	if (before) rc = in_reload(tview(t), in);
	rc = op_end(b, t, rc);
	if (!rc && !before) {
		sl_done(b, in);
		in_batch_mark(b, in);
	}
	if (rc == -EAGAIN) in->frozen = true; /* before: see announced() */
	sealing(b, in, -1);
	return rc;
}

static int flush(struct bfs *b, struct bfs_inode *in, bool wait)
{
	int rc = sl_settle(b, in);
	if ((rc == -EAGAIN || rc == -EBUSY || rc == -ENOSPC) && in->deferred) return learn(b, in), 0; /* still promised by the row */
	if (rc) return in->gone || in->stale ? 0 : rc;
	if (in->state != BFS_ST_NEW && in->state != BFS_ST_DIRTY) {
		defer(b, in, false);
		return 0;
	}
	if (in->lost) {
		if (!(rc = drop_named(b, in))) defer(b, in, false);
		return rc == -EAGAIN || rc == -EBUSY ? 0 : rc;
	}
	if (in->killed) return sl_abandon(b, in);
	if ((rc = unlinked(b, in, false))) return rc < 0 ? rc : 0;
	if (b->back && (rc = bk_flush(b, in))) return rc < 0 ? rc : 0;
	fl_flush_overlay(b, in);
	sl_compact(b, in);
	if ((rc = sl_settle(b, in)) || (rc = sl_make_sums(b, in, false))) return rc;
	u64 limit = b->o.seal_timeout_ns ? b->o.seal_timeout_ns : 2 * b->o.suspect_ns + 5000000000ull, begun = b->m->ops->mono_ns(b->m), nap = 1000000;
	if (!in_batch(b) && (rc = rw_put(b, in, BFS_ROW_CLOSED)) && rc != -ENFILE) return rc; /* without a row only the seal is a promise */
	for (;;) {
		rc = seal_once(b, in);
		if ((rc != -EAGAIN && rc != -EBUSY) || in_batch(b) || !wait || b->m->ops->mono_ns(b->m) - begun > limit) break;
		b->m->ops->pause(b->m, nap);
		if (nap < 64000000) nap *= 2;
	}
	in->scratch = 0; /* what is written from now on isn't in the copy */
	if (!rc) {
		rw_clear(b, in);
		in->frozen = false;
		defer(b, in, false);
		if (in->foreign) bk_closed(b, in);
	} else if (rc == -EEXIST) {
		/* first seal wins; the data of the second goes with its descriptors */
		rw_clear(b, in);
		in->lost = true; /* never sealed later: it was said that it isn't there */
		defer(b, in, drop_named(b, in) != 0);
		bfs_fail(b, rc, "another host has published a file of that name meanwhile");
	} else if ((rc == -EAGAIN || rc == -EBUSY || rc == -ENOSPC) && in->rowst == BFS_ROW_CLOSED) {
		/* The row keeps the promise of close(2); fl_tick, the next close, or whoever
		 * recovers this slot makes the seal. */
		if (!in->deferred) atomic_fetch_add(&b->seal_deferred, 1);
		defer(b, in, true);
		rc = 0;
	}
	return rc;
}

int sl_flush(struct bfs *b, struct bfs_inode *in) { return flush(b, in, true); }

/* The file stays on its own host, as POSIX has it, and is the first that eviction takes; no
 * other host ever sees it.  With publish=close it was never seen, and goes at once. */
static int abandon(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc = sl_settle(b, in);
	in->killed = true;
	if (rc) return in->gone || in->stale ? 0 : rc;
	if (b->back && (rc = bk_refresh(b, in))) return rc;
	u64 size = atomic_load(&in->size), end = granules(size), gone = 0;
	if (in->state != BFS_ST_NEW || (rc = unlinked(b, in, false))) return rc < 0 ? rc : 0;
	/* Rule 21: the dead process's lines are in the machine's cache.  They are brought out
	 * before anything of its extents goes back. */
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in);
	if (b->o.publish_close) {
		rc = drop_named(b, in);
		if (!rc) rw_clear(b, in);
		return rc;
	}
	for (int tries = 0; tries < 5; tries++) {
		if ((rc = op_begin(b, &t))) return rc;
		const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
		struct bfs_obj *o = c && c->state == BFS_ST_NEW && c->version == in->version ? ob_cow(t, in->ino) : NULL;
		if (!o) return op_end(b, t, rc ? rc : t->poison ? t->poison : -ESTALE);
		gone = 0;
		for (int i = mp_at(in, end); i < in->next_ext; i++) gone += in->ext[i].file_granule + in->ext[i].len - max64(end, in->ext[i].file_granule);
		ob_count(t, o, -1);
		if (gone) ov_drop(t, in, end, granules(SIZE_MAX_BYTES));
		o->state = BFS_ST_ABANDONED;
		o->size = size;
		o->granules -= min64(gone, o->granules);
		struct bk_stat s;
		if (b->back && !bk_stat(b, in, &s)) o->granules = s.granules;
		if (atomic_load(&in->wtime)) o->mtime_ns = atomic_load(&in->wtime);
		ob_count(t, o, 1);
		if ((rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, b->slot), o->slot, 0))) && rc != -ENOENT) txn_fail(t, rc);
		ev_admit(b, o->slot, true);
		if ((rc = op_end(b, t, 0)) != -EAGAIN) break;
	}
	if (rc) {
		in->reload |= rc == -EAGAIN;
		return rc;
	}
	if (gone) mp_set(b, in, end, granules(SIZE_MAX_BYTES) - end, 0, 0);
	atomic_fetch_sub(&in->granules, gone);
	in_set_state(b, in, BFS_ST_ABANDONED);
	in_batch_mark(b, in);
	in->created_here = false;
	in->dirty = false;
	rw_clear(b, in);
	return 0;
}

int sl_abandon(struct bfs *b, struct bfs_inode *in)
{
	sealing(b, in, 1); /* from the moment that the tree says so, any leader may evict it: see announced() */
	int rc = abandon(b, in);
	sealing(b, in, -1);
	return rc;
}

void sl_free_orphan(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	lk(b, &b->ilock);
	bool busy = in->opens > 1;
	if (!busy) in->dying = true;
	unlk(b, &b->ilock);
	if (busy) return;
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in); /* rule 21 */
	rc = op_begin(b, &t);
	if (!rc) {
		const struct bfs_obj *o = ob_get(tview(t), in->ino, &rc);
		if (o && !o->nlink) rc = nm_free_orphan(t, b->slot, in->ino);
		else if (o) rc = -ECANCELED;
		rc = op_end(b, t, rc);
	}
	bool later = rc && rc != -ESTALE && rc != -ENOENT && rc != -ECANCELED, linked = rc == -ECANCELED;
	lk(b, &b->ilock);
	if (later && !in->orphan_wait) b->orphans_waiting++;
	if (!later && in->orphan_wait) b->orphans_waiting--;
	in->orphan_wait = later;
	if (linked) in->dying = false;
	else if (!later) in->gone = true;
	unlk(b, &b->ilock);
	if (later || linked) return;
	rw_clear(b, in);
	if (in->settling) bk_settle(b, in, 0); /* nothing is: who has it mapped keeps its pages, we don't */
}

int sl_last(struct bfs *b, struct bfs_inode *in, bool strict)
{
	int rc;
	if (in->gone || in->stale || in->deferred) return 0;
	if ((rc = in_lock(b, in, true))) return rc;
	rc = unlinked(b, in, strict);
	if (rc < 0 && strict) { /* no lead now: fl_tick looks again */
		lk(b, &b->ilock);
		if (!in->orphan_wait) b->orphans_waiting++;
		in->orphan_wait = true;
		unlk(b, &b->ilock);
	}
	if (in->gone) rw_clear(b, in);
	else if (rc > 0) sl_free_orphan(b, in);
	else if (!rc && in->state != BFS_ST_SEALED) rc = in->killed ? sl_abandon(b, in) : in->state == BFS_ST_ABANDONED ? 0 : sl_flush(b, in);
	in_unlock(b, in);
	return rc;
}

int sl_force(struct bfs *b, u64 ino)
{
	struct bfs_inode *in;
	lk(b, &b->ilock);
	if ((in = in_find(b, ino))) in->opens++, in->uses++;
	unlk(b, &b->ilock);
	if (!in) return bfs_fail(b, -EBUSY, "object %llu was being written when this host crashed, and isn't recovered yet", (unsigned long long)ino);
	int rc = in_lock(b, in, true);
	if (!rc) {
		rc = sl_flush(b, in);
		/* a rename that goes on before the seal would move a name that others don't see */
		if (!rc && in->deferred) rc = bfs_fail(b, -EBUSY, "the file can't be sealed now; it is tried again");
		in_unlock(b, in);
	}
	in_put(b, in, false);
	return rc;
}

struct bfs_inode *sl_nameless(struct bfs *b, u64 ino)
{
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ino);
	if (in && (!in->nameless || in->dying || in->gone)) in = NULL;
	if (in) in->opens++, in->uses++;
	unlk(b, &b->ilock);
	return in;
}

/* It is finished, as one that is renamed; its names are published by the seal. */
int sl_named(struct bfs *b, struct bfs_inode *in, int rc)
{
	if (!rc) {
		in_batch_mark(b, in);
		if (!(rc = in_lock(b, in, true))) {
			rc = sl_flush(b, in);
			if (rc == -EEXIST && !in->deferred) in->lost = false; /* it has lost that name, and may get another one */
			in_unlock(b, in);
		}
		if (rc != -EEXIST) rc = 0; /* it has its name; the next close tries again, and says why it can't */
		lk(b, &b->ilock);
		if (!rc && !in->in_batch) in->nameless = false;
		unlk(b, &b->ilock);
	}
	in_put(b, in, false);
	return rc;
}

/* ---- what was put off ---------------------------------------------------------------------------- */
void fl_tick(struct bfs *b)
{
	struct bfs_inode *work[64];
	u64 bad[64][2];
	struct txn *t;
	int n = 0;
	u32 nbad = 0;
	if (b->o.readonly) return;
	lk(b, &b->ilock);
	if (atomic_load(&b->nwriting) || b->orphans_waiting)
		for (u32 k = 0; k < b->ihash_size && n < 64; k++)
			for (struct bfs_inode *in = b->ihash[b->tick_at = (b->tick_at + 1) % b->ihash_size]; in && n < 64; in = in->next)
				if ((in->deferred || in->orphan_wait) && !in->stale) in->opens++, in->uses++, work[n++] = in;
	if (b->nbadq && atomic_load(&b->leader)) {
		memcpy(bad, b->badq, sizeof bad);
		nbad = b->nbadq, b->nbadq = 0;
	}
	unlk(b, &b->ilock);
	for (int i = 0; i < n; i++) {
		struct bfs_inode *in = work[i];
		if (!in_lock(b, in, true)) {
			if (in->orphan_wait) sl_free_orphan(b, in);
			else if (in->deferred) flush(b, in, false);
			in_unlock(b, in);
		}
		in_put(b, in, false);
	}
	bfs_settle(b);
	if (!nbad || op_begin(b, &t)) return;
	for (u32 i = 0; i < nbad && !t->poison; i++) al_bad(t, bad[i][0], bad[i][1]);
	op_end(b, t, 0);
}
