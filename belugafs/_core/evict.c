/* Recency and eviction.
 *
 * Nobody writes on the path of a reader but this: a word of his host's touch ring, which
 * forgets when it is full.  The leader drains the rings into stamps: seconds of the last
 * use, by object slot, in memory, and now and then in the tree (a table of its own, so
 * that a million touches cost a few pages).  In memory a stamp has a number behind the
 * seconds, in the order in which uses were learnt of, so that a second in which a whole
 * pool was written has an order too.
 *
 * A stamp that the tree doesn't have (sealed after the last store, then a crash) is the
 * time the object was made.  A stamp that is too old costs a block, never more.
 *
 * Only blocks go: sealed, or abandoned, with a name, not pinned, not open here.  Readers
 * elsewhere keep what they hold: the extents of an evicted object are in quarantine.
 *
 * mx protects what is in memory; it is taken last (under wlock, never the other way).  The
 * list of candidates is the transaction's, under wlock. */
#include <stdlib.h>
#include <sys/stat.h>
#include "internal.h"

#define NOT UINT64_MAX /* not a candidate; looked at again when there is no other */
#define PER_TXN 128u   /* objects evicted by one transaction: bounds its pages */

struct ev {
	pthread_mutex_t mx;
	u32 nchunks;
	u64 **chunk; /* BFS_STAMPS each: seconds << 32 | order; 0 = not known */
	u8 *dirty;   /* chunk differs from the tree */
	u32 order;
	u32 term;    /* in which the chunks were loaded */
	u32 store_at;
	_Atomic(u64) pos; /* of the own ring */
	u64 seen[BFS_HOSTS_MAX];
	bool met[BFS_HOSTS_MAX];
	bool asked; /* ask_again() was done since run() began: the open ones must not come round for ever */
	struct cand { u64 stamp; u32 slot; } *cand;
	u32 ncand, at, cand_cap;
};

static u32 seconds(struct bfs *b) { return (u32)(now_ns(b) / 1000000000ull); }

/* ---- the own ring: any thread of this host ------------------------------------------------ */
void bfs_touch(struct bfs *b, u64 ino)
{
	struct ev *ev = b->ev;
	u32 slot = INO_SLOT(ino);
	if (b->o.readonly || !slot || slot >= b->sb.inodes || ino >> 63) return;
	u64 p = atomic_fetch_add_explicit(&ev->pos, 1, memory_order_acq_rel), e = slot | (u64)seconds(b) << 32;
	u64 *at = host_ring(b, b->slot) + p % b->sb.ring_entries;
	if (b->m->coherent) __atomic_store_n(at, e, __ATOMIC_RELAXED);
	else mm_store(b->m, at, &e, sizeof e);
}

u64 ev_pos(struct bfs *b) { return b->ev ? atomic_load_explicit(&((struct ev *)b->ev)->pos, memory_order_acquire) : 0; }

/* ---- stamps, under mx ------------------------------------------------------------------------ */
static u64 *stamp(struct bfs *b, struct view *v, u32 slot)
{
	struct ev *ev = b->ev;
	u32 c = slot / BFS_STAMPS;
	int rc = 0;
	if (ev->chunk[c]) return &ev->chunk[c][slot % BFS_STAMPS];
	const struct bfs_stamps *p = rx_get(b, v->root->stamp, b->h_stamp, c, BFS_PK_STAMP, &rc);
	u64 *n = rc ? NULL : xalloc(b, BFS_STAMPS * sizeof *n);
	if (!n) return NULL;
	for (u32 i = 0; p && i < BFS_STAMPS; i++) n[i] = (u64)p->s[i] << 32;
	ev->chunk[c] = n;
	return &n[slot % BFS_STAMPS];
}

/* Another host may have led: its stamps are in the tree, the own ones only add to them. */
static void new_term(struct bfs *b, struct view *v, u32 term)
{
	struct ev *ev = b->ev;
	if (ev->term == term) return;
	ev->term = term;
	for (u32 c = 0; c < ev->nchunks; c++) {
		int rc = 0;
		if (!ev->chunk[c]) continue;
		const struct bfs_stamps *p = rx_get(b, v->root->stamp, b->h_stamp, c, BFS_PK_STAMP, &rc);
		for (u32 i = 0; p && i < BFS_STAMPS; i++)
			if (ev->chunk[c][i] != NOT && ev->chunk[c][i] >> 32 < p->s[i]) ev->chunk[c][i] = (u64)p->s[i] << 32;
	}
}

static void used(struct bfs *b, struct view *v, u32 slot, u32 s)
{
	struct ev *ev = b->ev;
	u64 *p = slot && slot < b->sb.inodes ? stamp(b, v, slot) : NULL, x = (u64)s << 32 | ++ev->order;
	if (!p || (*p != NOT && *p > x)) return;
	*p = x;
	ev->dirty[slot / BFS_STAMPS] = 1;
}

static void drain(struct bfs *b, struct view *v, u32 slot, u64 pos);

void ev_admit(struct bfs *b, u32 slot, bool abandoned)
{
	struct ev *ev = b->ev;
	struct rd r;
	if (rd_begin(b, &r)) return;
	lk(b, &ev->mx);
	/* touches that still lie in the own ring came before this: they are numbered first */
	drain(b, &r.v, b->slot, ev_pos(b));
	if (!abandoned) {
		used(b, &r.v, slot, seconds(b));
	} else {
		u64 *p = stamp(b, &r.v, slot);
		if (p) *p = 1;
		ev->dirty[slot / BFS_STAMPS] = 1;
	}
	unlk(b, &ev->mx);
	rd_end(&r);
}

u32 ev_stamp(struct bfs *b, u32 slot)
{
	struct ev *ev = b->ev;
	struct rd r;
	u32 s = 0;
	if (slot >= b->sb.inodes || rd_begin(b, &r)) return 0;
	lk(b, &ev->mx);
	u64 *p = stamp(b, &r.v, slot);
	if (p && *p != NOT) s = (u32)(*p >> 32);
	unlk(b, &ev->mx);
	rd_end(&r);
	return s;
}

/* ---- rings -> stamps --------------------------------------------------------------------------- */
static void drain(struct bfs *b, struct view *v, u32 slot, u64 pos)
{
	struct ev *ev = b->ev;
	u32 n = b->sb.ring_entries;
	u64 *ring = host_ring(b, slot), from = ev->seen[slot];
	if (pos < from) from = pos > n ? pos - n : 0; /* it was attached anew */
	if (pos - from > n) {
		atomic_fetch_add_explicit(&b->touches_lost, pos - from - n, memory_order_relaxed);
		from = pos - n;
	}
	while (from < pos) {
		u64 e[64];
		u32 at = (u32)(from % n), m = n - at < 64 ? n - at : 64;
		if (m > pos - from) m = (u32)(pos - from);
		mm_inval(b->m, ring + at, m * sizeof *e);
		mm_fence(b->m);
		for (u32 i = 0; i < m; i++) e[i] = __atomic_load_n(ring + at + i, __ATOMIC_RELAXED);
		for (u32 i = 0; i < m; i++) used(b, v, (u32)e[i], (u32)(e[i] >> 32)); /* whatever is torn or old: a hint */
		from += m;
	}
	ev->seen[slot] = pos;
}

int ev_drain(struct bfs *b)
{
	struct ev *ev = b->ev;
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	lk(b, &ev->mx);
	new_term(b, &r.v, r.s.term);
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line l;
		if (s == b->slot) drain(b, &r.v, s, ev_pos(b));
		else if (ld_line(b, s, BFS_L_HEART, &l) > 0) {
			if (!ev->met[s]) ev->seen[s] = l.w[2], ev->met[s] = true; /* what was before, the leader of then has seen */
			drain(b, &r.v, s, l.w[2]);
		}
	}
	unlk(b, &ev->mx);
	rd_end(&r);
	return 0;
}

int ev_store(struct txn *t)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	lk(b, &ev->mx);
	new_term(b, tview(t), t->term);
	for (u32 k = 0, n = 0; k < ev->nchunks && n < 64 && !t->poison; k++) {
		u32 c = ev->store_at = (ev->store_at + 1) % ev->nchunks;
		if (!ev->dirty[c] || !ev->chunk[c]) continue;
		struct bfs_stamps *p = rx_cow(t, &t->root->stamp, b->h_stamp, c, BFS_PK_STAMP);
		for (u32 i = 0; p && i < BFS_STAMPS; i++)
			if (ev->chunk[c][i] && ev->chunk[c][i] != NOT) p->s[i] = (u32)(ev->chunk[c][i] >> 32);
		ev->dirty[c] = 0; /* should the transaction be dropped, they are older by one round */
		n++;
	}
	unlk(b, &ev->mx);
	return t->poison;
}

/* ---- who goes next -------------------------------------------------------------------------------- */
static bool evictable(const struct bfs_obj *o)
{
	return S_ISREG(o->mode) && o->cls == BFS_CLS_BLOCK && (o->state == BFS_ST_SEALED || o->state == BFS_ST_ABANDONED) && o->nlink == 1 && !(o->flags & BFS_OF_PINNED);
}

static int by_stamp(const void *p, const void *q)
{
	const struct cand *x = p, *y = q;
	return x->stamp < y->stamp ? -1 : x->stamp > y->stamp ? 1 : x->slot < y->slot ? -1 : 1;
}

static void sift(struct cand *h, u32 n, u32 i) /* largest on top */
{
	for (;;) {
		u32 l = 2 * i + 1, m = i;
		if (l < n && h[l].stamp > h[m].stamp) m = l;
		if (l + 1 < n && h[l + 1].stamp > h[m].stamp) m = l + 1;
		if (m == i) return;
		struct cand x = h[i];
		h[i] = h[m], h[m] = x, i = m;
	}
}

/* The oldest cand_cap slots, oldest first. */
static u32 fill(struct txn *t)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	u32 n = 0, end = t->root->slot_virgin < b->sb.inodes ? t->root->slot_virgin : b->sb.inodes;
	int rc = 0;
	for (u32 slot = 2; slot < end; slot++) {
		u64 *p = stamp(b, tview(t), slot);
		if (!p || *p == NOT) continue;
		if (!*p) {
			const struct bfs_obj *o = ob_slot(tview(t), slot, &rc);
			*p = !o || !o->mode || !evictable(o) ? NOT : o->state == BFS_ST_ABANDONED ? 1 : (u64)(o->btime_ns > 0 ? o->btime_ns / 1000000000 : 0) << 32 | 1;
			if (*p == NOT) continue;
		}
		if (n < ev->cand_cap) {
			ev->cand[n++] = (struct cand){*p, slot};
			if (n == ev->cand_cap)
				for (u32 i = n / 2; i-- > 0;) sift(ev->cand, n, i);
		} else if (*p < ev->cand[0].stamp) {
			ev->cand[0] = (struct cand){*p, slot};
			sift(ev->cand, n, 0);
		}
	}
	qsort(ev->cand, n, sizeof *ev->cand, by_stamp);
	ev->ncand = n, ev->at = 0;
	return n;
}

/* Those that were no candidates are asked again: unpinned, closed, sealed since. */
static void ask_again(struct bfs *b)
{
	struct ev *ev = b->ev;
	for (u32 c = 0; c < ev->nchunks; c++)
		for (u32 i = 0; ev->chunk[c] && i < BFS_STAMPS; i++)
			if (ev->chunk[c][i] == NOT) ev->chunk[c][i] = 0;
}

/* The oldest block that may go; NULL: none. */
static const struct bfs_obj *next_victim(struct txn *t, bool take)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	const struct bfs_obj *o = NULL;
	int rc = 0;
	lk(b, &ev->mx);
	new_term(b, tview(t), t->term);
	for (int round = 0; !o && round < 3;) {
		if (ev->at == ev->ncand && !fill(t)) {
			if (round++ || ev->asked) break;
			ev->asked = true;
			ask_again(b);
			continue;
		}
		struct cand c = ev->cand[ev->at];
		u64 *p = stamp(b, tview(t), c.slot);
		ev->at++;
		if (!p || *p != c.stamp) continue; /* used since */
		o = ob_slot(tview(t), c.slot, &rc);
		if (!o || !o->mode || !evictable(o)) *p = NOT, o = NULL;
		else if (!take) ev->at--;
		else *p = NOT;
	}
	unlk(b, &ev->mx);
	return o;
}

static u64 evict(struct txn *t, u64 ino)
{
	struct bfs *b = t->b;
	struct ht_entry e;
	int rc = 0;
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (!o || !in_evict_begin(b, ino)) return 0;
	u64 n = o->granules;
	if ((rc = ht_by_cookie(tview(t), o->hash, o->parent, o->cookie, &e)) || e.ino != ino || (rc = nm_remove(t, &e))) {
		txn_fail(t, rc && rc != -ENOENT ? rc : bfs_fail(b, -EIO, "object %llu: its entry is gone; run fsck.belugafs -n", (unsigned long long)ino));
		return 0;
	}
	t->root->evicted_blocks++;
	t->root->evicted_granules += n;
	return n + 1; /* an empty one is a success too */
}

/* Until `granules` are freed, or `objects` have gone. */
static u64 run(struct txn *t, u64 granules, u32 objects, u32 *count)
{
	const struct bfs_obj *o;
	u64 sum = 0;
	*count = 0;
	ev_drain(t->b);
	((struct ev *)t->b->ev)->asked = false;
	while (!t->poison && sum < granules && *count < objects && (o = next_victim(t, true))) {
		u64 n = evict(t, ob_ino(o));
		if (n) sum += n - 1, ++*count;
	}
	return sum;
}

int ev_make_room(struct txn *t, u64 granules)
{
	u32 n;
	run(t, granules, PER_TXN, &n);
	return t->poison ? t->poison : (int)n;
}

int ev_make_slots(struct txn *t, u32 want)
{
	u32 n;
	run(t, UINT64_MAX, want < PER_TXN ? want : PER_TXN, &n);
	return t->poison ? t->poison : (int)n;
}

/* ---- one region ------------------------------------------------------------------------------------- */
/* 0 and the newest stamp of what lies in [lo, hi); -1: something in it can't go. */
static int oldness(struct txn *t, u64 lo, u64 hi, u64 *newest, u64 *ino, u32 max, u32 *n)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	struct bfs_rec r;
	u64 at = lo;
	int rc = bt_seek_last(tview(t), KEY(BFS_T(BFS_T_OWN, 0), lo, 0), &r);
	if (!rc && r.k.a == BFS_T(BFS_T_OWN, 0) && r.k.b + (u32)r.x > lo) at = r.k.b;
	*newest = 0, *n = 0;
	for (;; at = r.k.b + 1) {
		rc = bt_seek(tview(t), KEY(BFS_T(BFS_T_OWN, 0), at, 0), &r);
		if (rc || r.k.a != BFS_T(BFS_T_OWN, 0) || r.k.b >= hi) break;
		const struct bfs_obj *o = ob_get(tview(t), r.y, &rc);
		if (!o || !evictable(o) || in_is_open(b, r.y)) return -1;
		if (*n && ino[*n - 1] == r.y) continue;
		if (*n == max) return -1;
		ino[(*n)++] = r.y;
		lk(b, &ev->mx);
		u64 *p = stamp(b, tview(t), o->slot);
		if (p && *p != NOT && *p > *newest) *newest = *p;
		unlk(b, &ev->mx);
	}
	return *n ? 0 : -1;
}

int ev_empty_region(struct txn *t, u32 want)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	u32 rg = b->sb.region_granules, ntried = 0, n, best_n = 0;
	u64 ino[PER_TXN], best[PER_TXN], tried[16], newest, least = UINT64_MAX, sum = 0;
	const struct bfs_obj *o;
	(void)want; /* at most a region: whole regions change their class, and are one run */
	ev_drain(b);
	/* where the oldest blocks are */
	((struct ev *)b->ev)->asked = false;
	if (!(o = next_victim(t, false))) return t->poison;
	for (u32 k = ev->at; k < ev->ncand && ntried < 16 && !t->poison; k++) {
		int rc = 0;
		struct bfs_rec r;
		if (!(o = ob_slot(tview(t), ev->cand[k].slot, &rc)) || !o->mode || !evictable(o)) continue;
		u64 addr = o->u.f.inl_addr;
		if (!addr && bt_range(tview(t), KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0), &r, 1) == 1) addr = r.x;
		if (!addr || !al_mem(b, addr)) continue;
		u64 reg = BFS_GIDX(addr) / rg;
		u32 i = 0;
		while (i < ntried && tried[i] != reg) i++;
		if (i < ntried) continue;
		tried[ntried++] = reg;
		if (oldness(t, BFS_GADDR(0, reg * rg), BFS_GADDR(0, (reg + 1) * rg), &newest, ino, PER_TXN, &n) || newest >= least) continue;
		least = newest, best_n = n;
		memcpy(best, ino, n * sizeof *ino);
	}
	if (!best_n) { /* no region can be emptied in one go: the oldest, wherever they are */
		u32 cnt;
		return run(t, want, PER_TXN, &cnt), t->poison ? t->poison : (int)cnt;
	}
	for (u32 i = 0; i < best_n && !t->poison; i++) {
		u64 g = evict(t, best[i]);
		if (g) sum += g - 1;
	}
	return t->poison ? t->poison : (int)(sum < INT32_MAX ? sum : INT32_MAX);
}

int bfs_evict(struct bfs *b, u64 granules, u64 *freed)
{
	struct txn *t;
	u64 sum = 0;
	u32 n = 1;
	int rc = 0;
	while (n && sum < granules && !(rc = op_begin(b, &t))) {
		u64 g = run(t, granules - sum, PER_TXN, &n);
		if ((rc = op_end(b, t, 0))) break;
		sum += g;
		if (in_batch(b)) break;
	}
	if (freed) *freed = sum;
	if (!rc && sum && !in_batch(b) && !(rc = bfs_apply_scan(b))) rc = bfs_reclaim(b);
	return rc == -EBUSY ? 0 : rc;
}

int ev_attach(struct bfs *b)
{
	struct ev *ev = b->ev = xalloc(b, sizeof *ev);
	if (!ev) return -ENOMEM;
	pthread_mutex_init(&ev->mx, NULL);
	ev->nchunks = b->sb.inodes / BFS_STAMPS + 1;
	ev->chunk = xalloc(b, ev->nchunks * sizeof *ev->chunk);
	ev->dirty = xalloc(b, ev->nchunks);
	ev->cand_cap = b->sb.inodes / 32 < 64 ? 64 : b->sb.inodes / 32 > 8192 ? 8192 : b->sb.inodes / 32;
	ev->cand = xalloc(b, ev->cand_cap * sizeof *ev->cand);
	return ev->chunk && ev->dirty && ev->cand ? 0 : -ENOMEM;
}

void ev_detach(struct bfs *b)
{
	struct ev *ev = b->ev;
	if (!ev) return;
	for (u32 c = 0; ev->chunk && c < ev->nchunks; c++) xfree(b, ev->chunk[c]);
	xfree(b, ev->chunk);
	xfree(b, ev->dirty);
	xfree(b, ev->cand);
	xfree(b, ev);
	b->ev = NULL;
}
