/* Snapshots: what this host has adopted, who reads it, what it tells the others of that.
 * Steps 15 to 17 of docs/protocol.md; readers take no lock: they read the seqlock over `snap`
 * and write their own slot.  wlock serialises adopting. */
#include "client.h"
#include "lead.h"
#include "lease.h"

#ifdef BFS_MUTANTS
void (*bfs_between)(void);
void (*bfs_step)(int);
#endif

static struct bfs_lhost *lhost(struct bfs *b) { return b->lhost ? b->lhost : &b->own; }

/* Two copies in turn, so that who dies in here leaves the other one to readers: nobody waits for him.  A copy is
 * overwritten only after seq has left it, which readers of it look at again. */
void ld_set_snap(struct bfs *b, struct bfs_snap s)
{
	struct bfs_lhost *h = lhost(b);
	u64 q = __atomic_load_n(&h->seq, __ATOMIC_RELAXED) + 1;
	struct bfs_lsnap *p = &h->snap[(q - BFS_MUT(MUT_HOST_FILE_ONE_COPY)) % 2];
	b->past[s.txn % 64].txn = s.txn, b->past[s.txn % 64].term = s.term;
	atomic_thread_fence(memory_order_release);
	__atomic_store_n(&p->term, s.term, __ATOMIC_RELAXED);
	__atomic_store_n(&p->txn, s.txn, __ATOMIC_RELAXED);
	BFS_BETWEEN();
	__atomic_store_n(&p->root_page, s.root.page, __ATOMIC_RELAXED);
	__atomic_store_n(&p->root_term, s.root.term, __ATOMIC_RELAXED);
	__atomic_store_n(&p->root_txn, s.root.txn, __ATOMIC_RELAXED);
	__atomic_store_n(&h->seq, q, __ATOMIC_SEQ_CST);
}

struct bfs_snap ld_newest(struct bfs *b)
{
	struct bfs_lhost *h = lhost(b);
	struct bfs_snap s;
	for (;;) {
		u64 q = __atomic_load_n(&h->seq, __ATOMIC_SEQ_CST);
		const struct bfs_lsnap *p = &h->snap[q % 2];
		s.term = __atomic_load_n(&p->term, __ATOMIC_RELAXED);
		s.txn = __atomic_load_n(&p->txn, __ATOMIC_RELAXED);
		s.root.page = __atomic_load_n(&p->root_page, __ATOMIC_RELAXED);
		s.root.term = __atomic_load_n(&p->root_term, __ATOMIC_RELAXED);
		s.root.txn = __atomic_load_n(&p->root_txn, __ATOMIC_RELAXED);
		atomic_thread_fence(memory_order_acquire);
		if (q == __atomic_load_n(&h->seq, __ATOMIC_RELAXED)) return s;
	}
}

/* slots of the process's readers: in its lease file, if it has one */
static u32 nreaders(struct bfs *b) { return b->client ? BFS_LOCAL_READERS : BFS_READERS; }
static inline _Atomic(u64) *reader(struct bfs *b, u32 i) { return b->client ? cl_reader(b, i) : &b->readers[i]; }

/* A reader announces its snapshot and looks again: who frees pages after publishing a newer
 * snapshot either sees the announcement or the reader sees the newer snapshot (rule 13
 * among the threads and processes of one machine, where atomics do work). */
int rd_begin(struct bfs *b, struct rd *r)
{
	static __thread u32 hint;
	int rc = 0;
	r->v = (struct view){b, NULL, NULL}; /* rd_end below needs it */
	for (u32 n = 0, most = nreaders(b);; n++) {
		u32 i = (hint + n) % most;
		u64 none = 0;
		if (atomic_load_explicit(reader(b, i), memory_order_relaxed) || !atomic_compare_exchange_strong(reader(b, i), &none, 1)) {
			if (n && n % most == 0) b->m->ops->pause(b->m, 10000);
			continue;
		}
		r->slot = (int)(hint = i);
		break;
	}
	for (;;) {
		r->s = ld_newest(b);
		BFS_BETWEEN();
		if (BFS_MUT(MUT_READER_NO_FENCE)) atomic_store_explicit(reader(b, (u32)r->slot), r->s.txn + 1, memory_order_relaxed);
		else atomic_store(reader(b, (u32)r->slot), r->s.txn + 1);
		if (BFS_MUT(MUT_READER_NOT_CHECKED)) break;
		struct bfs_snap again = ld_newest(b);
		if (again.txn == r->s.txn && again.term == r->s.term) break;
	}
	const struct bfs_root *root = pg_get(b, r->s.root, BFS_PK_ROOT, &rc);
	if (!root) {
		rd_end(r);
		return rc;
	}
	r->v = (struct view){b, root, NULL};
	return 0;
}

void rd_end(struct rd *r)
{
	struct bfs *b = r->v.b;
	if (b) atomic_store_explicit(reader(b, (u32)r->slot), 0, memory_order_release);
}

/* Lowest snapshot that any thread of this host's processes may be reading, at most `s`. */
struct bfs_snap ld_lowest_reader(struct bfs *b, struct bfs_snap s)
{
	u64 low = s.txn;
	for (u32 i = 0; i < BFS_READERS; i++) {
		u64 x = atomic_load(&b->readers[i]);
		if (x > 1 && x - 1 < low) low = x - 1;
		/* x == 1: about to announce, it will look at snap again */
	}
	low = ls_lowest(b, low);
	if (low == s.txn) return s;
	/* the txn alone tells which: this host's snapshots have rising numbers.  A term that is
	 * no longer known: 0, which is lower, which only pins more. */
	u32 term = b->past[low % 64].txn == low ? b->past[low % 64].term : 0;
	return (struct bfs_snap){term, low, {0}};
}

/* ---- pins ------------------------------------------------------------------------------ */
void ld_put_pin(struct bfs *b, struct bfs_snap lo, struct bfs_snap hi)
{
	b->pin_line ^= 1;
	ld_put(b, BFS_L_PIN_A + (u32)b->pin_line, (u64[]){lo.term, lo.txn, hi.term, hi.txn}, 4);
}

bool ld_fenced(struct bfs *b, const struct bfs_root *root, u32 slot, int least)
{
	/* the mark in the tree is about one registration: the one it names */
	struct bfs_line l;
	if (!root || (int)root->host[slot].state < least) return false;
	return ld_line(b, slot, BFS_L_IDENT, &l) > 0 && l.w[3] == root->host[slot].incarnation;
}

const struct bfs_root *ld_conf_root(struct bfs *b)
{
	int rc;
	return b->conf.root.page ? pg_get(b, b->conf.root, BFS_PK_ROOT, &rc) : NULL;
}

int ld_pins(struct bfs *b, struct pin *p)
{
	int n = 0;
	struct bfs_snap lo = ld_lowest_reader(b, b->conf);
	const struct bfs_root *root = ld_conf_root(b);
	p[n++] = (struct pin){lo.term, lo.txn, b->conf.term, b->conf.txn};
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		if (s == b->slot || ld_fenced(b, root, s, BFS_HOST_FENCED)) continue;
		if (BFS_MUT(MUT_SUSPECT_PIN_IGNORED) && !b->peer[s].live) continue;
		struct bfs_line l[2];
		int ok[2];
		ld_pair(b, s, BFS_L_PIN_A, BFS_L_PIN_B, l, ok, BFS_MUT(MUT_PIN_SCAN_STALE));
		if (ok[0] < 0 && ok[1] < 0) p[n++] = (struct pin){0, 0, UINT32_MAX, UINT64_MAX}; /* not known: all is in use */
		for (u32 k = 0; k < 2; k++)
			if (ok[k] > 0 && l[k].w[3]) p[n++] = (struct pin){(u32)l[k].w[0], l[k].w[1], (u32)l[k].w[2], l[k].w[3]};
	}
	return n;
}

/* ---- followers: steps 15 to 17 ------------------------------------------------------------------ */
int ld_refresh(struct bfs *b)
{
	struct bfs_snap best, again, cur = ld_newest(b);
	if (BFS_MUT(MUT_INVAL_BEFORE_ROOT)) {
		mm_inval(b->m, pg_addr(b, 0), (u64)b->sb.meta_pages * BFS_PAGE);
		mm_fence(b->m);
	}
	int rc = ld_read_roots(b, &best, false);
	if (rc || !snap_cmp(&best, &cur)) return rc;
	if (!b->o.readonly) {
		ld_put_pin(b, ld_lowest_reader(b, cur.root.page ? cur : best), best);
		BFS_STEP(BFS_SAYS);
		if (!BFS_MUT(MUT_PIN_NO_FENCE)) mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_PIN_A), 2 * BFS_LINE);
	}
	if (!BFS_MUT(MUT_PIN_NO_VALIDATE)) {
		if (!b->o.readonly) BFS_STEP(BFS_LOOKS);
		if ((rc = ld_read_roots(b, &again, false))) return rc;
		u64 c = BFS_MUT(MUT_READER_NO_CLAIMS) ? 0 : ld_claims(b, true);
		if (snap_cmp(&again, &best) || c > best.term) {
			/* back on the pin that covers what this host has */
			if (!b->o.readonly && cur.root.page) ld_put_pin(b, ld_lowest_reader(b, cur), cur);
			return -EAGAIN;
		}
	}
	if ((rc = ld_check_features(b, best.root))) return rc;
	ld_set_snap(b, best);
	return 0;
}

int bfs_refresh(struct bfs *b)
{
	lk(b, &b->wlock);
	int rc = atomic_load(&b->leader) ? 0 : ld_refresh(b);
	unlk(b, &b->wlock);
	return rc;
}
