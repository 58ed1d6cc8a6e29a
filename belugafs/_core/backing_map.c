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
 * A lease is tried at the last release and at each tick. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include "backing.h"
#include "file.h"

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
	struct bfs_inode **p = &b->back->writers;
	while (*p && *p != in) p = &(*p)->wnext;
	if (on && !*p) in->wnext = b->back->writers, b->back->writers = in;
	if (!on && *p) *p = in->wnext;
	unlk(b, &b->ilock);
}

void bk_set_settling(struct bfs *b, struct bfs_inode *in, bool on)
{
	lk(b, &b->ilock);
	bool was = in->settling;
	in->settling = on;
	unlk(b, &b->ilock);
	if (was != on) atomic_fetch_add(&b->nwriting, on ? 1u : -1u);
}

static void become(struct bfs *b, struct bfs_inode *in, bool foreign)
{
	in->foreign = foreign;
	list(b, in, foreign);
	if (!foreign) in->foreign_creator = in->reopened = false;
}

void bk_forget(struct bfs *b, struct bfs_inode *in)
{
	if (in->foreign) list(b, in, false);
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

/* ---- room ahead of them ---------------------------------------------------------------------------- */
/* What a file may well get: as the last block of its directory, or the large ones of the pool; one that is written
 * again, what it has. */
static u64 guess(struct bfs *b, const struct bfs_inode *in)
{
	enum { LEAST = 1024 };
	struct rd r;
	int rc = 0;
	u64 n = 0;
	if (rd_begin(b, &r)) return LEAST;
	const struct bfs_obj *o = ob_get(&r.v, in->ino, &rc);
	const struct bfs_obj *d = o && o->parent && !(o->parent >> 63) ? ob_get(&r.v, o->parent, &rc) : NULL;
	if (d && S_ISDIR(d->mode)) n = d->u.d.guess;
	rd_end(&r);
	return max64(max64(n, atomic_load(&b->back->guess)), LEAST);
}

/* What a writer may need before the next look: up to what is expected, and beyond that as much again as there is
 * (of a large one a part).  One that doesn't grow needs little. */
static u64 may_need(struct bfs_inode *in)
{
	enum { IDLE = 64, STEP = 1024, AGAIN = 16384 };
	struct stat st;
	if (!in->writers || in->rfd < 0 || fstat(in->rfd, &st)) return 0;
	u64 have = (u64)st.st_blocks * 512 / BFS_GRANULE, before = in->had;
	in->had = have;
	if (have < in->expect) return in->expect - have;
	return have > before ? max64(max64(min64(have, AGAIN), have / 4), STEP) : IDLE;
}

int bfs_headroom(struct bfs *b)
{
	enum { LOOKED_AT = 1024, ROUNDS = 64 };
	u64 total, empty, want = 0, all, high, low;
	u32 n = 0;
	int rc;
	if (!b->back || b->o.readonly || in_batch(b)) return 0;
	lk(b, &b->ilock);
	for (struct bfs_inode *in = b->back->writers; in && n < LOOKED_AT; in = in->wnext, n++) want += may_need(in);
	unlk(b, &b->ilock);
	if ((rc = bk_space(b, &total, &empty))) return rc;
	high = total * (1000 - b->o.high_permille) / 1000, low = total * (1000 - b->o.low_permille) / 1000;
	all = want, want = max64(min64(want, total / 4 * 3), high);
	for (int i = 0; i < ROUNDS && empty < want && !b->o.evict_none; i++) {
		struct txn *t;
		if ((rc = op_begin(b, &t))) return rc;
		int gone = ev_make_room(t, max64(want, low) - empty);
		if ((rc = op_end(b, t, gone < 0 ? gone : 0)) || (rc = bk_space(b, &total, &empty))) return rc;
		if (!gone) break;
	}
	atomic_store(&b->back->is_short, empty < all);
	return 0;
}

bool bfs_is_short(struct bfs *b) { return b->back && atomic_load(&b->back->is_short); }

/* ---- from then on ------------------------------------------------------------------------------------- */
static int expose(struct bfs *b, struct bfs_inode *in, bool creator)
{
	struct bk_stat s;
	int rc = sl_settle(b, in);
	if (rc) return rc;
	/* the class is what it was until something is known to have changed */
	if ((rc = bk_prepare(b, in, 0, 0, true)) || (rc = bk_stat(b, in, &s))) return rc;
	fl_sums_drop(b, in, 0, UINT64_MAX);
	in->fmtime_ns = s.mtime_ns;
	in->foreign_creator = creator;
	in->expect = s.size ? 0 : guess(b, in), in->had = s.granules;
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

int bfs_backing_fd(struct bfs *b, u64 fh, bool write)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	if (!b->back) return bfs_fail(b, -EOPNOTSUPP, "a flat pool has no backing files");
	struct bfs_inode *in = h->in;
	bool creator = (h->flags & H_CREATOR) && in->created_here;
	if (write && !hd_writes(h->flags)) return -EBADF;
	int rc = in_lock(b, in, write);
	if (rc) return rc;
	if (write) {
		hd_touch(b, h);
		if (in->foreign && in->state == BFS_ST_SEALED && bk_settle(b, in, 1)) { /* still mapped: written by whom, nobody knows */
			in->reopened |= !creator;
		}
	}
	/* before the sums no longer count: who opens it for writing reads it, too */
	if ((!write || !in->foreign) && !in->reload) rc = verified(b, in);
	if (!rc && write && !in->foreign) rc = expose(b, in, creator);
	if (!rc) rc = bk_fd(b, in);
	in_unlock(b, in);
	if (rc >= 0 && write) bfs_headroom(b); /* what it can't do, the first store finds out */
	return rc;
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
	bk_set_settling(b, in, true);
	return 1;
}

void bk_released(struct bfs *b, struct bfs_inode *in)
{
	lk(b, &b->ilock);
	bool last = in->writers == 1;
	unlk(b, &b->ilock);
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
	if (in->lives_on || in->reopened) o->flags &= (u8)~BFS_OF_FORMING;
	o->size = s.size, o->granules = s.granules;
	if (atomic_load(&in->wtime)) o->mtime_ns = o->ctime_ns = atomic_load(&in->wtime);
	if (!in->unverified) o->flags &= (u8)~BFS_OF_UNVERIFIED;
	ob_count(t, o, 1);
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
	if (!same && !added_only(b, in, nold)) in->overwrote = true;
	if ((rc = op_begin(b, &t))) return rc;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
	if (!c || !c->nlink) return op_end(b, t, rc); /* goes with the last release */
	if (same) {
		rc = op_end(b, t, sl_back_to_base(t, in->ino, in->as));
		if (rc) return rc;
		in_set_state(b, in, BFS_ST_SEALED);
		in->dirty = false;
	} else {
		struct bfs_obj *o = in->foreign_creator ? NULL : ob_cow(t, in->ino);
		if (o) ob_count(t, o, -1), o->cls = BFS_CLS_ORDINARY, ob_count(t, o, 1), in->cls = o->cls;
		rc = op_end(b, t, t->poison ? t->poison : sl_seal(t, in));
		if (rc) return rc;
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
