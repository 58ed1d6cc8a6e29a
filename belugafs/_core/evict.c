/* Eviction: who goes next, and how.
 *
 * Blocks go: sealed, or abandoned (these first), with a name, not pinned, not open here; with
 * `evict=all` ordinary files too.  Readers elsewhere keep what they hold: the extents of an
 * evicted object are in quarantine.
 *
 * Pins are flags of an object, or of a directory above it; of several the strongest counts.  A
 * hard one keeps it for ever, a soft one until nothing unpinned is left.  Who is looked at and
 * can't go has a bit in his stamp until he is used again, or a pin changes; so a pool full of
 * pinned blocks is looked through once, not at each allocation.
 *
 * The list of candidates is the transaction's, under wlock. */
#include <stdlib.h>
#include <sys/stat.h>
#include "evict.h"
#include "lease.h"

#define PER_TXN 128u       /* objects evicted by one transaction: bounds its pages */
#define NAMES_MAX 16u      /* of an ordinary file that goes, for the same reason */
#define ASK_NS 1000000000ull
#define LEASED_NS 5000000ull

/* ---- who goes next -------------------------------------------------------------------------------- */
enum { PIN_NONE = 0, PIN_SOFT = 1, PIN_HARD = 2 };

static u8 pin_of(const struct bfs_obj *o) { return o->flags & BFS_OF_PINNED ? PIN_HARD : o->flags & BFS_OF_PINNED_SOFT ? PIN_SOFT : PIN_NONE; }

/* The strongest pin of a directory and of those above it.  Remembered for the run: most files
 * share their directory with many. */
static u8 pin_above(struct view *v, struct pins *known, u64 dir)
{
	const u32 mask = sizeof known->at / sizeof *known->at - 1;
	u64 first = dir;
	u8 pin = PIN_NONE;
	for (u32 n = 0; dir && n < v->b->sb.inodes && pin < PIN_HARD; n++) {
		int rc = 0;
		u32 i = (u32)((dir * 0x9E3779B97F4A7C15ull) >> 40) & mask;
		if (known->at[i].dir == dir) {
			if (known->at[i].pin > pin) pin = known->at[i].pin;
			break;
		}
		const struct bfs_obj *d = ob_get(v, dir, &rc);
		if (!d) break;
		if (pin_of(d) > pin) pin = pin_of(d);
		if (dir == BFS_ROOT_INO) break;
		dir = d->parent;
	}
	u32 i = (u32)((first * 0x9E3779B97F4A7C15ull) >> 40) & mask;
	known->at[i].dir = first, known->at[i].pin = pin;
	return pin;
}

/* May it go at all?  *soft: only when nothing else is left. */
static bool evictable(struct view *v, struct pins *known, const struct bfs_obj *o, bool *soft)
{
	struct bfs_rec r[NAMES_MAX];
	bool block = o->cls == BFS_CLS_BLOCK && o->nlink == 1;
	*soft = false;
	if (!S_ISREG(o->mode) || (o->state != BFS_ST_SEALED && o->state != BFS_ST_ABANDONED)) return false;
	if (!block && !(v->b->o.evict_all && o->nlink && o->nlink <= NAMES_MAX)) return false;
	u8 pin = pin_of(o), p = pin < PIN_HARD ? pin_above(v, known, o->parent) : PIN_HARD;
	if (p > pin) pin = p;
	int n = o->nlink > 1 && pin < PIN_HARD ? bt_range(v, KEY(BFS_T(BFS_T_LINK, o->slot), 0, 0), r, NAMES_MAX) : 0;
	for (int i = 0; i < n && pin < PIN_HARD; i++)
		if ((p = pin_above(v, known, r[i].k.b)) > pin) pin = p;
	*soft = pin == PIN_SOFT;
	return n >= 0 && pin < PIN_HARD;
}

void ev_pins_changed(struct bfs *b) { atomic_store(&((struct ev *)b->ev)->recheck, true); }

static int by_key(const void *p, const void *q)
{
	const struct cand *x = p, *y = q;
	return x->key < y->key ? -1 : x->key > y->key ? 1 : x->slot < y->slot ? -1 : 1;
}

static void sift(struct cand *h, u32 n, u32 i) /* largest on top */
{
	for (;;) {
		u32 l = 2 * i + 1, m = i;
		if (l < n && h[l].key > h[m].key) m = l;
		if (l + 1 < n && h[l + 1].key > h[m].key) m = l + 1;
		if (m == i) return;
		struct cand x = h[i];
		h[i] = h[m], h[m] = x, i = m;
	}
}

/* Notes in the stamp what the object is, as far as eviction cares.  Under mx. */
static bool grade(struct txn *t, u32 slot, u64 *p)
{
	int rc = 0;
	bool soft;
	struct ev *ev = t->b->ev;
	const struct bfs_obj *o = ob_slot(tview(t), slot, &rc);
	if (!o || !o->mode || !evictable(tview(t), &ev->pins, o, &soft)) {
		*p |= EV_SKIP;
		return false;
	}
	if (o->state == BFS_ST_ABANDONED) *p = EV_ABANDONED;
	else if (!(*p & ~EV_BITS)) *p = (u64)(o->btime_ns > 0 ? o->btime_ns / 1000000000 : 0) << 32 | EV_ABANDONED;
	*p = soft ? *p | EV_SOFT : *p & ~EV_SOFT;
	return true;
}

/* The cand_cap slots that go first, in order.  An object is looked at only when its stamp brings it
 * among them: what is pinned soft goes behind all others then. */
static u32 fill(struct txn *t)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	u32 n = 0, end = t->root->slot_virgin < b->sb.inodes ? t->root->slot_virgin : b->sb.inodes;
	for (u32 slot = 2; slot < end; slot++) {
		u64 *p = ev_at(b, tview(t), slot);
		if (!p || *p & EV_SKIP || (n == ev->cand_cap && ev_key(*p) >= ev->cand[0].key) || !grade(t, slot, p)) continue;
		if (n < ev->cand_cap) {
			ev->cand[n++] = (struct cand){ev_key(*p), slot};
			if (n == ev->cand_cap)
				for (u32 i = n / 2; i-- > 0;) sift(ev->cand, n, i);
		} else if (ev_key(*p) < ev->cand[0].key) {
			ev->cand[0] = (struct cand){ev_key(*p), slot};
			sift(ev->cand, n, 0);
		}
	}
	qsort(ev->cand, n, sizeof *ev->cand, by_key);
	ev->ncand = n, ev->at = 0, ev->filled = ev->order, ev->abandoned = false;
	return n;
}

/* Those that were no candidates are asked again: unpinned, closed, sealed since. */
static void ask_again(struct bfs *b)
{
	struct ev *ev = b->ev;
	for (u32 c = 0; c < ev->nchunks; c++)
		for (u32 i = 0; ev->chunk[c] && i < BFS_STAMPS; i++) ev->chunk[c][i] &= ~EV_BITS;
	ev->ncand = ev->at = 0;
	ev->asked_ns = b->m->ops->mono_ns(b->m);
}

/* A run of evictions begins.  What the pins are is found out anew. */
static void begin(struct bfs *b)
{
	struct ev *ev = b->ev;
	ev_drain(b);
	ev->asked = false;
	memset(&ev->pins, 0, sizeof ev->pins);
	/* of so many leases a list at each store into a full pool would cost more than the store; an old one costs space at most */
	u64 now = atomic_load_explicit(&b->nclients, memory_order_relaxed) ? b->m->ops->mono_ns(b->m) : 0;
	if (now && ev->leased_ns && now - ev->leased_ns < LEASED_NS) return;
	free(ev->leased);
	ev->leased = ls_inodes(b, &ev->nleased), ev->leased_ns = now;
}

/* The one that goes next; NULL: none may. */
static const struct bfs_obj *next_victim(struct txn *t, bool take)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	const struct bfs_obj *o = NULL;
	int rc = 0;
	lk(b, &ev->mx);
	ev_new_term(b, tview(t), t->term);
	if (atomic_exchange(&ev->recheck, false)) {
		memset(&ev->pins, 0, sizeof ev->pins);
		ask_again(b);
	}
	while (!o) {
		/* what was made or used since goes before those that are pinned soft, what was abandoned since before all */
		if (ev->at < ev->ncand && ((ev->cand[ev->at].key >> 63 && ev->filled != ev->order) || (ev->abandoned && ev->cand[ev->at].key > ev_key(EV_ABANDONED)))) ev->at = ev->ncand;
		if (ev->at == ev->ncand && !fill(t)) {
			/* a full pool that nothing can leave isn't looked through at each attempt */
			if (ev->asked || b->m->ops->mono_ns(b->m) - ev->asked_ns < ASK_NS) break;
			ev->asked = true;
			ask_again(b);
			continue;
		}
		struct cand c = ev->cand[ev->at];
		u64 *p = ev_at(b, tview(t), c.slot);
		ev->at++;
		if (!p || *p & EV_SKIP || ev_key(*p) != c.key) continue; /* used since */
		if (!grade(t, c.slot, p) || ev_key(*p) != c.key) continue; /* pinned since */
		o = ob_slot(tview(t), c.slot, &rc);
		if (!take) ev->at--;
		else *p |= EV_SKIP;
	}
	unlk(b, &ev->mx);
	return o;
}

int ev_remove(struct txn *t, const struct ht_entry *e)
{
	enum pg_use was = t->use;
	if (was < PG_FREEING) t->use = PG_FREEING;
	int rc = nm_remove(t, e);
	if (!rc) rc = ev_emptied(t, e->dir);
	t->use = was;
	return rc;
}

/* All names of an object go, and with them the object. */
static u64 evict(struct txn *t, u64 ino)
{
	struct bfs *b = t->b;
	struct ht_entry e;
	int rc = 0;
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	/* leased: nothing would be free.  Who leases it from now on holds its extents in quarantine. */
	if (!o || ls_has(((struct ev *)b->ev)->leased, ((struct ev *)b->ev)->nleased, ino) || !in_evict_begin(b, ino)) return 0;
	u64 n = o->granules;
	for (u32 left = o->nlink; left && !t->poison; left--) {
		if (!(o = ob_get(tview(t), ino, &rc))) rc = -EIO;
		else if (!(rc = ht_by_cookie(tview(t), o->hash, o->parent, o->cookie, &e)) && e.ino != ino) rc = -ENOENT;
		if (!rc) rc = ev_remove(t, &e);
		if (rc) txn_fail(t, rc != -ENOENT ? rc : bfs_fail(b, -EIO, "object %llu: its entry is gone; run fsck.belugafs -n", (unsigned long long)ino));
	}
	if (t->poison) return 0;
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
	begin(t->b);
	while (!t->poison && sum < granules && *count < objects && !(*count && pg_few(t)) && (o = next_victim(t, true))) {
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

int ev_evict_some(struct txn *t, u32 objects)
{
	u32 n;
	run(t, UINT64_MAX, objects < PER_TXN ? objects : PER_TXN, &n);
	return t->poison ? t->poison : (int)n;
}

/* ---- one region ------------------------------------------------------------------------------------- */
/* 0 and the latest key of what lies in [lo, hi); -1: something in it can't go. */
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
		bool soft;
		if (!o || !evictable(tview(t), &ev->pins, o, &soft) || ls_has(ev->leased, ev->nleased, r.y) || in_is_open(b, r.y)) return -1;
		if (*n && ino[*n - 1] == r.y) continue;
		if (*n == max) return -1;
		ino[(*n)++] = r.y;
		lk(b, &ev->mx);
		u64 *p = ev_at(b, tview(t), o->slot), key = p ? ev_key(soft ? *p | EV_SOFT : *p & ~EV_SOFT) : 0;
		if (key > *newest) *newest = key;
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
	begin(b);
	/* where the oldest blocks are; with those that are pinned soft only when there are no others, and as long as
	 * there are abandoned files with nothing but such */
	if (!(o = next_victim(t, false))) return t->poison;
	bool soft_too = ev->cand[ev->at].key >> 63, dead_only = ev->cand[ev->at].key <= ev_key(EV_ABANDONED);
	for (u32 k = ev->at; k < ev->ncand && ntried < 16 && !t->poison; k++) {
		int rc = 0;
		struct bfs_rec r;
		bool soft;
		if (!(o = ob_slot(tview(t), ev->cand[k].slot, &rc)) || !o->mode || !evictable(tview(t), &ev->pins, o, &soft)) continue;
		u64 addr = o->u.f.inl_addr;
		if (!addr && bt_range(tview(t), KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0), &r, 1) == 1) addr = r.x;
		if (!addr || !al_mem(b, addr)) continue;
		u64 reg = BFS_GIDX(addr) / rg;
		u32 i = 0;
		while (i < ntried && tried[i] != reg) i++;
		if (i < ntried) continue;
		tried[ntried++] = reg;
		if (oldness(t, BFS_GADDR(0, reg * rg), BFS_GADDR(0, (reg + 1) * rg), &newest, ino, PER_TXN, &n) || newest >= least || (newest >> 63 && !soft_too) || (newest > ev_key(EV_ABANDONED) && dead_only)) continue;
		least = newest, best_n = n;
		memcpy(best, ino, n * sizeof *ino);
	}
	if (!best_n) { /* no region can be emptied in one go: the oldest, wherever they are */
		u32 cnt;
		return run(t, want, PER_TXN, &cnt), t->poison ? t->poison : (int)cnt;
	}
	for (u32 i = 0; i < best_n && !t->poison && !(i && pg_few(t)); i++) {
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

int bfs_evictable(struct bfs *b, u32 *slot, u32 slots, u64 *granules)
{
	struct rd r;
	struct pins known = {0};
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	u32 nleased, at = *slot, end = r.v.root->slot_virgin < b->sb.inodes ? r.v.root->slot_virgin : b->sb.inodes;
	u64 *leased = ls_inodes(b, &nleased);
	for (*granules = 0; at < end && slots && !rc; at++, slots--) {
		bool soft;
		const struct bfs_obj *o = ob_slot(&r.v, at, &rc);
		if (o && o->mode && o->granules && evictable(&r.v, &known, o, &soft) && !ls_has(leased, nleased, ob_ino(o)) && !in_is_open(b, ob_ino(o))) *granules += o->granules;
	}
	*slot = at < end ? at : 0;
	free(leased);
	rd_end(&r);
	return rc;
}
