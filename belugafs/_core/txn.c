/* Transactions: every change comes through op_begin and op_end, alone or in a batch. */
#include "lead.h"

static int txn_start(struct bfs *b, struct txn **out, bool internal)
{
	int rc = 0;
	struct txn *t = xalloc(b, sizeof *t);
	if (!t) return -ENOMEM;
	const struct bfs_root *old = pg_get(b, b->conf.root, BFS_PK_ROOT, &rc);
	if (!old) {
		xfree(b, t);
		return rc;
	}
	t->b = b, t->term = b->term, t->txn = b->conf.txn + 1, t->internal = internal;
	t->rootp = b->conf.root;
	t->internal = true; /* its own page may be of the reserve: an unlink has to begin in a full pool */
	t->root = pg_cow(t, &t->rootp, BFS_PK_ROOT);
	t->internal = internal;
	if (!t->root) {
		rc = t->poison;
		pg_abort(t);
		xfree(b, t);
		return rc;
	}
	t->root_set = true;
	t->changed = false;
	t->v = (struct view){b, t->root, t};
	b->txn = t;
	*out = t;
	return 0;
}

static void txn_drop(struct bfs *b, struct txn *t, bool written)
{
	b->txn = NULL;
	if (!written) pg_abort(t);
	else pg_confirmed(t); /* after a stand-down: the grant is empty, nothing comes back */
	fl_txn_end(b, written && atomic_load(&b->leader)); /* not after a stand-down: unknown */
	xfree(b, t);
}

static int txn_commit(struct bfs *b, struct txn *t)
{
	u32 waiting = t->root->pages_log;
	if (waiting >= 2 * BFS_LOG_MAX && b->conf.txn > b->reuse_tried + 8) {
		int got = pg_reuse(t);
		if (got == 0) b->reuse_tried = b->conf.txn;
	}
	t->root->time_ns = (i64)now_ns(b);
	int rc = t->poison ? t->poison : pg_finish(t);
	if (rc) {
		txn_drop(b, t, false);
		if (rc == -EAGAIN) ld_stand_down(b);
		return rc;
	}
	/* 11, 12 */
	struct bfs_snap s = {t->term, t->txn, t->rootp};
	ld_publish(b, &s);
	if (!BFS_MUT(MUT_NO_ACK_CHECK) && ld_claims(b, false) > b->term) {
		struct bfs_snap best;
		ld_stand_down(b);
		txn_drop(b, t, true);
		if (BFS_MUT(MUT_ACK_ADOPTED) && !ld_read_roots(b, &best, false) && !snap_cmp(&best, &s)) return 0;
		return bfs_fail(b, -EAGAIN, "leadership was lost during the change; it is unknown whether it happened");
	}
	b->conf = s;
	ld_set_snap(b, s); /* before the open files hear of it: what they look up then is in it */
	txn_drop(b, t, true);
	atomic_fetch_add_explicit(&b->txns, 1, memory_order_relaxed);
	return 0;
}

static u64 self(void) { return (u64)(uintptr_t)pthread_self(); }

static int lead(struct bfs *b)
{
	struct bfs_snap best;
	int rc;
	if (atomic_load(&b->leader)) return 0;
	if (b->o.readonly) return bfs_fail(b, -EROFS, "the pool is attached read-only");
	if ((rc = ld_read_roots(b, &best, false))) return rc;
	u32 who = best.term % b->sb.nhosts;
	if (who != b->slot && b->peer[who].live) return bfs_fail(b, -EBUSY, "host slot %u leads; ask it", who);
	return ld_claim(b);
}

/* Before a transaction starts there should be pages for an ordinary one.  Those that wait in
 * the log come first; then another chunk; and when all that is left is pinned by readers,
 * those are given time to go on (they need no lock of ours), so that a slow one costs a
 * writer a moment, not an error. */
static void refill(struct bfs *b)
{
	enum { STEP_NS = 100000, STEP_MOST_NS = 10000000, MOST_NS = 2000000000 };
	u64 step = STEP_NS;
	/* above the reserve that only lead duties may take (page.c), in the smallest pool too */
	u32 low = b->sb.meta_pages / 16 < 48 ? 48 : b->sb.meta_pages / 16 < 96 ? b->sb.meta_pages / 16 : 96;
	for (u64 waited = 0; atomic_load(&b->leader) && b->nfree < low;) {
		int rc = 0, got = 0;
		const struct bfs_root *r = pg_get(b, b->conf.root, BFS_PK_ROOT, &rc);
		if (!r) return;
		u32 waiting = r->pages_log;
		if (waiting >= 8 && (waited || b->conf.txn > b->reuse_tried + 2)) {
			struct txn *t;
			if (txn_start(b, &t, true)) return;
			if ((got = pg_reuse(t)) > 0) got = txn_commit(b, t) ? 0 : got;
			else txn_drop(b, t, false), b->reuse_tried = b->conf.txn;
		}
		/* what a commit of ours freed, rewriting the log, is no gain to wait for */
		if (got > 16 && b->nfree >= low) return;
		if (!ld_more_pages(b)) continue;
		if (got > 16) continue;
		if (b->nfree >= low / 2 || waiting < 2 * low || waited >= MOST_NS) return;
		b->m->ops->pause(b->m, step);
		waited += step;
		if (step < STEP_MOST_NS) step *= 2;
	}
}

int op_begin(struct bfs *b, struct txn **out)
{
	if (atomic_load_explicit(&b->batch_tid, memory_order_relaxed) == self()) {
		*out = b->txn;
		return b->txn->poison ? b->txn->poison : 0;
	}
	lk(b, &b->wlock);
	bfs_errmsg_clear();
	int rc = lead(b);
	if (!rc) refill(b);
	if (!rc) rc = atomic_load(&b->leader) ? txn_start(b, out, false) : -EAGAIN;
	if (rc == -EAGAIN && atomic_load(&b->leader)) ld_stand_down(b);
	if (rc) unlk(b, &b->wlock);
	return rc;
}

int op_end(struct bfs *b, struct txn *t, int rc)
{
	if (atomic_load_explicit(&b->batch_tid, memory_order_relaxed) == self()) return t->poison ? t->poison : rc;
	if (t->poison) rc = t->poison;
	if (rc < 0 || !t->changed) {
		txn_drop(b, t, false);
		if (rc == -EAGAIN) ld_stand_down(b);
	} else {
		int c = txn_commit(b, t);
		if (c) rc = c;
	}
	unlk(b, &b->wlock);
	return rc;
}

int bfs_batch_begin(struct bfs *b)
{
	struct txn *t;
	if (atomic_load(&b->batch_tid) == self()) return bfs_fail(b, -EINVAL, "a batch is open already");
	int rc = op_begin(b, &t);
	if (!rc) atomic_store(&b->batch_tid, self());
	return rc;
}

int bfs_batch_commit(struct bfs *b)
{
	if (atomic_load(&b->batch_tid) != self()) return bfs_fail(b, -EINVAL, "no batch is open");
	atomic_store(&b->batch_tid, 0);
	return op_end(b, b->txn, 0);
}

int bfs_batch_abort(struct bfs *b)
{
	if (atomic_load(&b->batch_tid) != self()) return bfs_fail(b, -EINVAL, "no batch is open");
	atomic_store(&b->batch_tid, 0);
	op_end(b, b->txn, -ECANCELED);
	return 0;
}
