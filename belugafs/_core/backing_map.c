/* Writers that the daemon doesn't see.
 *
 * A process that has a file open through the kernel's passthrough, or mapped that way, stores into
 * the backing file without a word, and a mapping goes on after the close.  So:
 *   - before such a writer gets at the file, the object is unsealed (unless it is NEW), and what is
 *     known of its sums no longer counts: it is `foreign` from then on;
 *   - a close seals a first writing without sums, and leaves a rewriting DIRTY with its row CLOSED;
 *     the object stays in the table, and listed as open in the tree;
 *   - once a read lease on the file is granted, nobody has it open for writing or mapped that way.
 *     The sums are made under that lease, which a new writer waits for.  A rewriting that changed
 *     nothing is what it was before.
 * A lease is tried at the last release, which the kernel may send before it has let go of the backing file, and then by
 * bfs_settle. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include "backing.h"
#include "file.h"
#include "name.h"

/* ---- the lease -------------------------------------------------------------------------------- */
bool bk_alone(struct bfs *b, struct bfs_inode *in)
{
	bk_close_writing(in);
	int fd = bk_fd(b, in);
	/* who opens it for writing meanwhile waits; the signal that tells us is one that is ignored by default */
	return fd >= 0 && !fcntl(fd, F_SETSIG, SIGURG) && !fcntl(fd, F_SETLEASE, F_RDLCK);
}
void bk_alone_end(struct bfs_inode *in) { fcntl(in->rfd, F_SETLEASE, F_UNLCK); }

/* ---- the list of them ---------------------------------------------------------------------------- */
static void list(struct bfs *b, struct bfs_inode *in, bool on)
{
	lk(b, &b->ilock);
	struct back *k = b->back;
	if (on && !in->wat) {
		in->wnext = k->writers, in->wat = &k->writers;
		if (k->writers) k->writers->wat = &in->wnext;
		k->writers = in, k->nwriters++;
	} else if (!on && in->wat) {
		if (k->look == in) k->look = in->wnext;
		if (k->settle == in) k->settle = in->wnext;
		*in->wat = in->wnext;
		if (in->wnext) in->wnext->wat = in->wat;
		in->wnext = NULL, in->wat = NULL, k->nwriters--;
	}
	unlk(b, &b->ilock);
	if (!on) bk_unpromise(b, in);
}

void bk_set_settling(struct bfs *b, struct bfs_inode *in, bool on)
{
	lk(b, &b->ilock);
	bool was = in->settling;
	in->settling = on;
	if (on && !was) in->settling_ns = b->m->ops->mono_ns(b->m);
	unlk(b, &b->ilock);
	if (was != on) atomic_fetch_add(&b->nwriting, on ? 1u : -1u);
}

void bk_closed(struct bfs *b, struct bfs_inode *in)
{
	bk_set_settling(b, in, true);
	lk(b, &b->ilock);
	in->settling_ns = b->m->ops->mono_ns(b->m);
	unlk(b, &b->ilock);
}

static void become(struct bfs *b, struct bfs_inode *in, bool foreign)
{
	in->foreign = foreign;
	list(b, in, foreign);
	if (foreign) return;
	in->foreign_creator = in->reopened = false;
	bk_mark_drop(b, in);
	lk(b, &b->ilock);
	in->named = false;
	unlk(b, &b->ilock);
}

void bk_forget(struct bfs *b, struct bfs_inode *in)
{
	list(b, in, false);
	bk_mark_drop(b, in);
	bk_close(in);
}

int bk_keep(struct bfs *b, u64 ino)
{
	struct bfs_inode *in = in_alloc(b, ino);
	struct rd r;
	int rc = in ? rd_begin(b, &r) : -ENOMEM;
	if (rc) {
		in_destroy(b, in);
		return rc;
	}
	const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
	if (o) rc = in_load(&r.v, o, in);
	rd_end(&r);
	struct bk_stat s;
	if (!rc && !(rc = bk_stat(b, in, &s))) {
		in->fmtime_ns = s.mtime_ns;
		in_keep(b, in);
		become(b, in, true);
		bk_set_settling(b, in, true);
		return 0;
	}
	in_destroy(b, in);
	return rc == -ESTALE ? 0 : rc;
}

/* ---- from then on ------------------------------------------------------------------------------------- */
/* Is it one of which has to be known whether it was only added to? */
static bool is_forming(const struct bfs_inode *in) { return in->flags & BFS_OF_FORMING && !in->overwrote; }

static int expose(struct bfs *b, struct bfs_inode *in, bool creator)
{
	struct bk_stat s;
	int rc = sl_settle(b, in);
	if (rc) return rc;
	if (is_forming(in) && in->state != BFS_ST_NEW && in->state != BFS_ST_ABANDONED) bk_mark(b, in);
	/* the class is what it was until something is known to have changed */
	if ((rc = bk_prepare(b, in, 0, 0, true)) || (rc = bk_stat(b, in, &s))) return rc;
	fl_sums_drop(b, in, 0, UINT64_MAX);
	in->fmtime_ns = s.mtime_ns;
	in->foreign_creator = creator;
	bk_expect(b, in, &s);
	become(b, in, true);
	return 0;
}

/* Who reads past the core isn't told of damage: so all of it is checked before, as the mount's `verify` says. */
static int verified(struct bfs *b, struct bfs_inode *in)
{
	u64 cb = b->sb.chunk_bytes, size = atomic_load(&in->size);
	u8 *bounce = NULL;
	int rc = 0;
	for (u64 c = 0; c < in->nsums && in->state == BFS_ST_SEALED && !rc; c++) {
		if (!fl_covered(b, in, c) || (b->o.verify == BFS_VERIFY_FIRST && bk_known(b, in, c))) continue;
		if (!bounce && !(bounce = fl_bounce(b))) return -ENOMEM;
		rc = fl_read_chunk(b, in, c, c * cb, bounce, min64(cb, size - c * cb));
	}
	fl_bounce_end(b, bounce);
	return rc;
}

/* Just after a close the kernel has it open for a moment yet; who has it mapped is waited for as long, once (or `again`).
 * A release that comes meanwhile needs the lock, and a thread of the server: so one waits at a time.  Ends locked. */
static void settled_soon(struct bfs *b, struct bfs_inode *in, bool again)
{
	enum { STEP_NS = 200000, MOMENT_NS = 50000000 };
	struct back *k = b->back;
	for (bool mine = false, wait = true; wait;) {
		lk(b, &b->ilock);
		u32 own = in->pending;
		unlk(b, &b->ilock);
		bool done = bk_settle(b, in, own) != -EAGAIN;
		lk(b, &b->ilock);
		wait = !done && !in_batch(b) && (again || !in->reopened) && in->writers <= in->nclosed + in->pending && b->m->ops->mono_ns(b->m) - in->settling_ns < MOMENT_NS;
		unlk(b, &b->ilock);
		if (wait && !mine) wait = mine = !atomic_exchange(&k->waits, true);
		if (wait) {
			in_unlock(b, in);
			b->m->ops->pause(b->m, STEP_NS);
			in_lock(b, in, true);
		} else if (mine) {
			atomic_store(&k->waits, false);
		}
	}
}

/* What unseen writers have done so far is found out while it is there to be seen. */
void bk_looked_at(struct bfs *b, struct bfs_inode *in)
{
	if (in->mark && !in->overwrote && !bk_mark_holds(b, in)) in->overwrote = true;
}

/* Before it is written again by somebody else: who has stored so far?  If that isn't known, what it holds now must stay. */
static void reopen(struct bfs *b, struct bfs_inode *in)
{
	bool sealed = in->state == BFS_ST_SEALED;
	settled_soon(b, in, false);
	if (!in->foreign) return;
	in->reopened = true;
	if (in->named) in->overwrote = true; /* a name ends it */
	bk_looked_at(b, in);
	if (is_forming(in) && (sealed || in->mark) && !bk_refresh(b, in)) bk_mark(b, in);
}

void bk_finish(struct bfs *b, u64 ino)
{
	if (in_batch(b)) return;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ino);
	if (in && (!in->wat || in->dying || in->gone)) in = NULL;
	if (in) in->opens++, in->uses++;
	unlk(b, &b->ilock);
	if (!in) return;
	if (!in_lock(b, in, true)) {
		if (in->foreign && is_forming(in)) settled_soon(b, in, true);
		in_unlock(b, in);
	}
	in_put(b, in, false);
}

/* That it is settled stands in the tree first: it is no longer listed as open. */
bool bk_named_early(struct txn *t, const struct bfs_obj *o)
{
	struct bfs *b = t->b;
	struct bfs_rec r;
	if (bt_get(tview(t), KEY(BFS_T(BFS_T_OPEN, b->slot), o->slot, 0), &r)) return false;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ob_ino(o));
	bool early = in && in->wat && (o->state == BFS_ST_DIRTY || (o->state == BFS_ST_SEALED && in->reopened));
	if (early && in->writers <= in->nclosed) in->named = true; /* one that is still written is no block by that name */
	unlk(b, &b->ilock);
	return early;
}

static void pend(struct bfs *b, struct bfs_inode *in, int by)
{
	lk(b, &b->ilock);
	in->pending += (u32)by;
	unlk(b, &b->ilock);
}

int bfs_backing_fd(struct bfs *b, u64 fh, bool write)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	if (!b->back) return bfs_fail(b, -EOPNOTSUPP, "a flat pool has no backing files");
	struct bfs_inode *in = h->in;
	bool creator = (h->flags & H_CREATOR) && in->created_here;
	if (write && !hd_writes(h->flags)) return -EBADF;
	if (write) pend(b, in, 1);
	int rc = in_lock(b, in, write);
	if (rc) {
		if (write) pend(b, in, -1);
		return rc;
	}
	if (write) {
		hd_touch(b, h);
		if (in->foreign && in->state != BFS_ST_NEW && !creator) reopen(b, in);
	}
	/* before the sums no longer count: who opens it for writing reads it, too */
	if ((!write || !in->foreign) && !in->reload) rc = verified(b, in);
	if (!rc && write && !in->foreign) rc = expose(b, in, creator);
	if (!rc) rc = bk_fd(b, in);
	if (write) pend(b, in, -1);
	in_unlock(b, in);
	return rc;
}

void bk_emptied(struct bfs *b, struct bfs_inode *in)
{
	if (in->mark) bk_mark(b, in);
}

/* ---- closing --------------------------------------------------------------------------------------------- */
int bk_flush(struct bfs *b, struct bfs_inode *in)
{
	int rc;
	if (!in->foreign) return bk_trim(b, in);
	if ((rc = bk_refresh(b, in))) return rc;
	if (in->synced && (in->sync_size != atomic_load(&in->size) || in->sync_ns != in->fmtime_ns)) in->lives_on = true;
	if (in->state == BFS_ST_NEW) return 0;
	if (in->state == BFS_ST_DIRTY && in->rowst != BFS_ROW_CLOSED && (rc = rw_put(b, in, BFS_ROW_CLOSED)) && rc != -ENFILE) return rc;
	bk_closed(b, in);
	return 1;
}

void bk_released(struct bfs *b, struct bfs_inode *in)
{
	lk(b, &b->ilock);
	bool last = in->writers == 1;
	unlk(b, &b->ilock);
	if (last) bk_unpromise_rest(b, in);
	if (!last || (!in->foreign && in->wfd < 0) || in_lock(b, in, true)) return;
	bk_close_writing(in);
	if (in->foreign) bk_settle(b, in, 1);
	in_unlock(b, in);
}

/* ---- nobody is left ------------------------------------------------------------------------------------------ */
/* A sealed file gets the sums of what it holds. */
int bk_settled(struct txn *t, struct bfs_inode *in)
{
	struct bfs *b = t->b;
	struct bk_stat s;
	int rc = 0;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
	if (!c) return rc;
	if (!c->nlink) return 0; /* goes with the last release */
	if (c->version != in->version || c->state != BFS_ST_SEALED) return -ESTALE;
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o || (rc = bk_stat(b, in, &s))) return txn_fail(t, rc ? rc : t->poison ? t->poison : -ESTALE);
	ob_count(t, o, -1);
	if (in->lives_on || (in->reopened && atomic_load(&in->wtime))) o->cls = BFS_CLS_ORDINARY;
	if (in->lives_on || in->overwrote) o->flags &= (u8)~BFS_OF_FORMING;
	o->size = s.size, o->granules = s.granules;
	if (atomic_load(&in->wtime)) o->mtime_ns = o->ctime_ns = atomic_load(&in->wtime);
	if (!in->unverified) o->flags &= (u8)~BFS_OF_UNVERIFIED;
	ob_count(t, o, 1);
	if (in->named) nm_finished(t, o);
	if (ob_sums_set(t, o, in->new_sums, in->nnew_sums)) return t->poison;
	if ((rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, in->as - 1), o->slot, 0))) && rc != -ENOENT) return txn_fail(t, rc);
	in->seal_flags = o->flags;
	in->cls = o->cls;
	return t->poison;
}

static int settle_sealed(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc = bk_make_sums(b, in, false);
	if (rc == -EIO) rc = bk_make_sums(b, in, true);
	if (in->reopened && !(in->mark && bk_mark_holds(b, in))) in->overwrote = true; /* for all that is known */
	if (rc || (rc = op_begin(b, &t)) || (rc = op_end(b, t, bk_settled(t, in)))) return rc;
	xfree(b, in->sums);
	in->sums = in->new_sums, in->nsums = in->nnew_sums;
	in->new_sums = NULL, in->nnew_sums = 0;
	in->flags = in->seal_flags, in->unverified = false;
	in->base_size = atomic_load(&in->size);
	in->dirty = false;
	atomic_store(&in->wtime, 0);
	return 0;
}

/* Does the old content still stand in the new one, as far as the old sums tell? */
static bool added_only(struct bfs *b, struct bfs_inode *in, u32 nold)
{
	u64 cb = b->sb.chunk_bytes, size = atomic_load(&in->size);
	if (size < in->base_size || !in->nnew_sums) return false;
	for (u32 c = 0; c < nold; c++) {
		u64 end = min64((c + 1) * cb, in->base_size), sum = in->new_sums[c];
		if (end < (c + 1) * cb && end < size && in->sums[c]) {
			u8 *bounce = fl_bounce(b);
			if (!bounce || bk_read(b, in, c * cb, bounce, end - c * cb)) sum = 0;
			else sum = fl_sum(bounce, end - c * cb);
			fl_bounce_end(b, bounce);
		}
		if (in->sums[c] && sum != in->sums[c]) return false;
	}
	return true;
}

/* It has got another name while nobody knew yet whether it was only added to. */
static void name_again(struct txn *t, struct bfs_inode *in)
{
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o) return;
	nm_finished(t, o);
	in->seal_flags = o->flags, in->cls = o->cls;
}

static int settle_dirty(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	u32 nold = in->nsums;
	int rc;
	in->nsums = 0; /* nothing of it is kept without a look */
	rc = bk_make_sums(b, in, false);
	in->nsums = nold;
	if (rc) return rc;
	bool sums = nold && !in->unverified && nold == in->nnew_sums;
	bool same = !atomic_load(&in->wtime) && atomic_load(&in->size) == in->base_size && (!in->base_size || (sums && !memcmp(in->sums, in->new_sums, nold * sizeof *in->sums)));
	if (!same && !(in->mark ? bk_mark_holds(b, in) : added_only(b, in, nold))) in->overwrote = true;
	if ((rc = op_begin(b, &t))) return rc;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
	if (!c || !c->nlink) return op_end(b, t, rc); /* goes with the last release */
	if (same) {
		rc = sl_back_to_base(t, in->ino, in->as);
		if (!rc && in->named) name_again(t, in);
		if ((rc = op_end(b, t, rc))) return rc;
		in_set_state(b, in, BFS_ST_SEALED);
		in->dirty = false;
		if (in->named) in->flags = in->seal_flags;
	} else {
		struct bfs_obj *o = in->foreign_creator ? NULL : ob_cow(t, in->ino);
		if (o) ob_count(t, o, -1), o->cls = BFS_CLS_ORDINARY, ob_count(t, o, 1), in->cls = o->cls;
		rc = t->poison ? t->poison : sl_seal(t, in);
		if (!rc && in->named) name_again(t, in);
		if ((rc = op_end(b, t, rc))) return rc;
		sl_done(b, in);
	}
	rw_clear(b, in);
	return 0;
}

int bk_settle(struct bfs *b, struct bfs_inode *in, u32 own)
{
	int rc = 0;
	lk(b, &b->ilock);
	bool busy = in->writers > own;
	unlk(b, &b->ilock);
	if (in->foreign && !in->gone && !in->stale && (rc = sl_settle(b, in)) && !in->gone) return rc;
	if (in->foreign && !in->gone && !in->stale) {
		if (busy || in->state == BFS_ST_NEW || bk_trim(b, in) || !bk_alone(b, in)) {
			bk_set_settling(b, in, true);
			lk(b, &b->ilock);
			in->refused_ns = b->m->ops->mono_ns(b->m);
			unlk(b, &b->ilock);
			return -EAGAIN;
		}
		if (!(rc = bk_refresh(b, in))) {
			fl_sums_drop(b, in, 0, UINT64_MAX);
			in->foreign = false; /* still in the list: the sums are made and kept as of any file */
			rc = in->state == BFS_ST_SEALED ? settle_sealed(b, in) : in->state == BFS_ST_DIRTY ? settle_dirty(b, in) : 0;
		}
		bk_alone_end(in);
		if (rc == -EAGAIN) in->reload = true;
		in->foreign = rc != 0;
		if (rc && rc != -ESTALE) {
			bk_set_settling(b, in, true);
			return rc;
		}
	}
	become(b, in, false);
	bk_set_settling(b, in, false);
	ev_regrade(b, INO_SLOT(in->ino)); /* eviction may have found it in use */
	return 0;
}

/* One after the other: who waits for it to be his turn is nobody's, and can be evicted as soon as he is settled. */
u32 bfs_settle(struct bfs *b)
{
	struct back *k = b->back;
	u32 left = 0, n;
	if (!k || b->o.readonly || in_batch(b)) return 0;
	lk(b, &b->ilock);
	n = k->nwriters;
	unlk(b, &b->ilock);
	for (u32 i = 0; i < n; i++) {
		lk(b, &b->ilock);
		struct bfs_inode *in = k->settle ? k->settle : k->writers;
		if (in) k->settle = in->wnext;
		bool ours = in && in->settling && !in->writers && !in->stale && !in->dying;
		if (ours) in->opens++, in->uses++;
		else left += in && in->writers && in->writers == in->nclosed; /* the kernel is about to give it up */
		unlk(b, &b->ilock);
		if (!in) break;
		if (!ours) continue;
		if (!in_lock(b, in, true)) {
			if (in->settling) bk_settle(b, in, 0);
			left += in->settling;
			in_unlock(b, in);
		}
		in_put(b, in, false);
	}
	return left;
}
