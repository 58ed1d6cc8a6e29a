/* Transactions: every change comes through op_begin and op_end, alone or in a batch. */
#include "lead.h"
#include "backing.h"
#include "evict.h"

static int txn_start(struct bfs *b, struct txn **out, enum pg_use use)
{
	int rc = 0;
	struct txn *t = xalloc(b, sizeof *t);
	if (!t) return -ENOMEM;
	const struct bfs_root *old = pg_get(b, b->conf.root, BFS_PK_ROOT, &rc);
	if (!old) {
		xfree(b, t);
		return rc;
	}
	t->b = b, t->term = b->term, t->txn = b->conf.txn + 1;
	t->rootp = b->conf.root;
	t->use = use > PG_FREEING ? use : PG_FREEING; /* whatever it is going to be: an unlink has to begin in a full pool */
	t->root = pg_cow(t, &t->rootp, BFS_PK_ROOT);
	t->use = use;
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
	if (!written) {
		pg_abort(t);
		if (b->back) bk_txn_dropped(b);
	} else pg_confirmed(t); /* after a stand-down: the grant is empty, nothing comes back */
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

/* Somebody who may hold pages now will let them go soon: not a host that is silent. */
static bool readers_go_on(struct bfs *b)
{
	struct bfs_snap low = ld_lowest_reader(b, b->conf);
	if (snap_cmp(&low, &b->conf)) return true;
	for (u32 s = 0; s < b->sb.nhosts; s++)
		if (s != b->slot && b->peer[s].live) return true;
	return false;
}

/* Before a transaction starts there should be pages for an ordinary one.  Those that wait in
 * the log come first; then another chunk; and when all that is left is pinned by readers,
 * those are given time to go on (they need no lock of ours), so that a slow one costs a
 * writer a moment, not an error. */
static void refill(struct bfs *b)
{
	enum { STEP_NS = 100000, STEP_MOST_NS = 10000000, MOST_NS = 2000000000 };
	u64 step = STEP_NS;
	u32 low = 2 * pg_reserve(b), enough = pg_enough(b);
	for (u64 waited = 0; atomic_load(&b->leader) && b->nfree < low;) {
		int rc = 0, got = 0;
		const struct bfs_root *r = pg_get(b, b->conf.root, BFS_PK_ROOT, &rc);
		if (!r) return;
		u32 waiting = r->pages_log;
		/* in need always: when nothing commits any more, nothing else would bring the next attempt */
		if (waiting >= 8 && (waited || b->nfree < enough || b->conf.txn > b->reuse_tried + 2)) {
			struct txn *t;
			if (txn_start(b, &t, PG_DUTY)) return;
			if ((got = pg_reuse(t)) > 0) got = txn_commit(b, t) ? 0 : got;
			else txn_drop(b, t, false), b->reuse_tried = b->conf.txn;
		}
		/* what a commit of ours freed, rewriting the log, is no gain to wait for */
		if (got > 16 && b->nfree >= low) return;
		if (!ld_more_pages(b)) continue;
		if (got > 16) continue;
		if (b->nfree >= enough || waiting < 4 * pg_reserve(b) || waited >= MOST_NS || !readers_go_on(b)) return;
		b->m->ops->pause(b->m, step);
		waited += step;
		if (step < STEP_MOST_NS) step *= 2;
	}
}

/* All pages are in use, and nobody holds those that were given back: blocks that may go, go for them. */
static void evict_for_pages(struct bfs *b)
{
	enum { ROUNDS = 64, AT_ONCE = 4 };
	for (u32 i = 0; i < ROUNDS && atomic_load(&b->leader) && b->nfree < pg_enough(b); i++) {
		struct txn *t;
		const struct bfs_root *r = ld_conf_root(b);
		/* many wait: a reader holds them, and would hold more */
		if (b->o.evict_none || !r || r->pages_log >= 4 * pg_reserve(b) || txn_start(b, &t, PG_FREEING)) return;
		if (ev_evict_some(t, AT_ONCE) <= 0) {
			txn_drop(b, t, false);
			return;
		}
		if (txn_commit(b, t)) return;
		refill(b);
	}
}

static int begin(struct bfs *b, struct txn **out, bool room)
{
	if (atomic_load_explicit(&b->batch_tid, memory_order_relaxed) == self()) {
		*out = b->txn;
		return b->txn->poison ? b->txn->poison : 0;
	}
	lk(b, &b->wlock);
	bfs_errmsg_clear();
	int rc = lead(b);
	if (!rc) refill(b);
	if (!rc && room) evict_for_pages(b);
	if (!rc) rc = atomic_load(&b->leader) ? txn_start(b, out, PG_ANY) : -EAGAIN;
	if (rc == -EAGAIN && atomic_load(&b->leader)) ld_stand_down(b);
	if (rc) unlk(b, &b->wlock);
	return rc;
}

int op_begin(struct bfs *b, struct txn **out) { return begin(b, out, false); }
int op_begin_room(struct bfs *b, struct txn **out) { return begin(b, out, true); }

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
	int rc = op_begin_room(b, &t);
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
