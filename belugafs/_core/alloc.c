/* Where data lives: regions, extents, quarantine, bad granules.
 *
 * The bitmap page of a region is the truth, and so are the OWN, QUAR and BAD records: a
 * granule whose bit is set is in exactly one of them.  What is in memory (struct region)
 * only says where to look: it is made from the page the first time a region is met in a
 * term, corrected with every change, and forgotten when a transaction is dropped.  Any
 * number in it that is used is checked against the page first.
 *
 * Placement.  A region holds extents of one size class, so that what is freed in it fits
 * what comes next; it takes another class when it is empty.  Classes: exact up to 8
 * granules, then 8 to a doubling.  An extent may lie across the border of two neighbours
 * of its class, so that the end of a region isn't lost when the size doesn't divide it.
 * No extent is longer than a region: docs/format.md, held lists.
 *
 * Everything here runs under wlock, inside a transaction, except al_largest. */
#include "internal.h"

#define NCLASS 96
#define NIL UINT32_MAX
#define EMPTY 1u /* k of a region; 0 = not known, class + 2 */
#define NONE UINT64_MAX
#define NOLIST 255u

struct region {
	u16 k;
	u16 free;       /* granules */
	u16 run;        /* no free run is longer (upper bound) */
	u16 head, tail; /* free granules at either end */
	u8 list;        /* in lists[list], NOLIST */
	bool touched;   /* changed by the running transaction */
	u32 next, prev;
};

struct al {
	u32 n, rg;
	u32 term;    /* that this is about: another one starts from nothing */
	u32 unknown; /* regions; all below cursor are known */
	u32 cursor;
	u32 nempty;
	u32 most; /* no known run is longer (upper bound) */
	u32 ntouched;
	struct { u32 first, last; } lists[NCLASS + 1]; /* [0] empty regions, [c + 1] class c with room */
	u32 recent[NCLASS]; /* region of the last allocation */
	u32 *touched;
	struct region *r;
	u8 *shut;  /* regions that another host's grant is about: they count as full */
	u64 runs[4 * BFS_HOSTS_MAX];
	int nruns;
};

static inline u32 class_of(u32 n)
{
	if (n <= 8) return n - 1;
	u32 e = 31 - (u32)__builtin_clz(n);
	return 8 * (e - 3) + (n >> (e - 3) & 7) + 7;
}
static inline u32 class_min(u32 c) { return c < 8 ? c + 1 : (8 + (c - 7) % 8) << ((c - 7) / 8); }

static inline u32 rlen(struct bfs *b, struct al *al, u32 i)
{
	u64 left = b->sb.data_granules - (u64)i * al->rg;
	return left < al->rg ? (u32)left : al->rg;
}

/* ---- bitmaps ---------------------------------------------------------------------- */
/* first position >= pos whose bit is `one`; len when there is none */
static u32 seek_bit(const u64 *w, u32 pos, u32 len, bool one)
{
	while (pos < len) {
		u64 x = (one ? w[pos / 64] : ~w[pos / 64]) >> (pos % 64);
		if (x) {
			pos += (u32)__builtin_ctzll(x);
			return pos < len ? pos : len;
		}
		pos = (pos | 63) + 1;
	}
	return len;
}

/* First run of n free granules.  NIL: there is none, and *longest says how long the longest is. */
static u32 find_run(const u64 *w, u32 len, u32 n, u32 *longest)
{
	*longest = 0;
	for (u32 p = seek_bit(w, 0, len, false); p < len;) {
		u32 e = seek_bit(w, p, len, true);
		if (e - p >= n) return p;
		if (e - p > *longest) *longest = e - p;
		p = seek_bit(w, e, len, false);
	}
	return NIL;
}

static u32 back_free(const u64 *w, u32 pos) /* free granules right before pos */
{
	u32 n = 0;
	while (n < pos) {
		u32 p = pos - n;
		if (p % 64 == 0 && !w[p / 64 - 1]) n += 64;
		else if (!(w[(p - 1) / 64] >> ((p - 1) % 64) & 1)) n++;
		else break;
	}
	return n;
}

/* ---- what is known of the regions --------------------------------------------------- */
static void unlist(struct al *al, u32 i)
{
	struct region *r = &al->r[i];
	if (r->list == NOLIST) return;
	if (r->prev != NIL) al->r[r->prev].next = r->next;
	else al->lists[r->list].first = r->next;
	if (r->next != NIL) al->r[r->next].prev = r->prev;
	else al->lists[r->list].last = r->prev;
	if (!r->list) al->nempty--;
	r->list = NOLIST;
}

/* the longest extent that may start in i */
static u32 fit(struct al *al, u32 i, bool any)
{
	struct region *r = &al->r[i];
	u32 run = r->run;
	if (i + 1 < al->n && r->tail && al->r[i + 1].k && (any || al->r[i + 1].k == r->k)) {
		u32 x = (u32)r->tail + al->r[i + 1].head;
		if (x > run) run = x;
	}
	return run < al->rg ? run : al->rg;
}

static void relist(struct al *al, u32 i)
{
	struct region *r = &al->r[i];
	u32 want = !r->k ? NOLIST : r->k == EMPTY ? 0 : fit(al, i, false) >= class_min(r->k - 2u) ? r->k - 1u : NOLIST;
	if (want == r->list) return;
	unlist(al, i);
	if (want == NOLIST) return;
	r->list = (u8)want, r->next = NIL, r->prev = al->lists[want].last;
	if (r->prev != NIL) al->r[r->prev].next = i;
	else al->lists[want].first = i;
	al->lists[want].last = i;
	if (!want) al->nempty++;
}

static void relist_both(struct al *al, u32 i)
{
	relist(al, i);
	if (i) relist(al, i - 1);
	u32 f = fit(al, i, true), g = i ? fit(al, i - 1, true) : 0;
	if (f < g) f = g;
	if (f > al->most) al->most = f;
}

static void measure(struct bfs *b, struct al *al, u32 i, const struct bfs_region *p)
{
	struct region *r = &al->r[i];
	u32 len = rlen(b, al, i);
	r->k = p && p->h.count ? (u16)(p->h.count + 1) : EMPTY;
	if (r->k > NCLASS + 1) r->k = NCLASS + 1; /* untrusted; it only decides where to look */
	r->free = r->k == EMPTY ? (u16)len : (u16)p->h.aux;
	r->head = r->k == EMPTY ? (u16)len : (u16)seek_bit(p->bits, 0, len, true);
	r->tail = r->k == EMPTY ? (u16)len : (u16)back_free(p->bits, len);
	r->run = r->free;
	if (al->shut[i]) {
		if (r->k == EMPTY) r->k = 2;
		r->free = r->head = r->tail = r->run = 0;
	}
}

static const struct bfs_region *page_of(struct txn *t, u32 i, int *rc)
{
	return rx_get(t->b, t->root->region, t->b->h_region, i, BFS_PK_REGION, rc);
}

/* Reads up to `max` regions that aren't known yet.  1: there were some, 0: all are known. */
static int explore(struct txn *t, u32 max)
{
	struct al *al = t->b->al;
	int rc = 0;
	if (!al->unknown) return 0;
	for (; al->cursor < al->n && max; al->cursor++) {
		u32 i = al->cursor;
		if (al->r[i].k) continue;
		const struct bfs_region *p = page_of(t, i, &rc);
		if (rc) return txn_fail(t, rc);
		measure(t->b, al, i, p);
		al->unknown--;
		relist_both(al, i);
		max--;
	}
	return 1;
}

static void reset(struct al *al, u32 term)
{
	memset(al->r, 0, al->n * sizeof *al->r);
	for (u32 i = 0; i < al->n; i++) al->r[i].list = NOLIST;
	for (u32 i = 0; i <= NCLASS; i++) al->lists[i].first = al->lists[i].last = NIL;
	for (u32 i = 0; i < NCLASS; i++) al->recent[i] = NIL;
	al->term = term, al->unknown = al->n, al->cursor = al->nempty = al->most = al->ntouched = 0;
}

/* A leader of before may be asleep in the middle of storing a block.  Nobody adds to what is
 * read here: who does looks at the claims before he stores, and finds this term. */
static void shut(struct bfs *b, struct al *al)
{
	u64 runs[4 * BFS_HOSTS_MAX];
	int n = ld_data_grants(b, runs);
	if (n == al->nruns && !memcmp(runs, al->runs, (size_t)n * sizeof *runs)) return;
	memset(al->shut, 0, al->n);
	for (int k = 0; k < n; k++)
		for (u64 i = (u32)runs[k]; i < (u32)runs[k] + (runs[k] >> 32) && i < al->n; i++) al->shut[i] = 1;
	memcpy(al->runs, runs, (size_t)n * sizeof *runs);
	al->nruns = n;
	u32 m = al->ntouched; /* still to be forgotten should this transaction be dropped */
	reset(al, al->term);
	for (u32 k = 0; k < m; k++) al->r[al->touched[k]].touched = true;
	al->ntouched = m;
}

/* Another host may have led since the term before: nothing of it is known. */
static struct al *begin(struct txn *t)
{
	struct al *al = t->b->al;
	if (al->term != t->term) {
		reset(al, t->term);
		shut(t->b, al);
	}
	return al;
}

void al_txn_end(struct bfs *b, bool committed)
{
	struct al *al = b->al;
	for (u32 k = 0; al && k < al->ntouched; k++) {
		u32 i = al->touched[k];
		al->r[i].touched = false;
		if (committed) continue;
		unlist(al, i);
		al->r[i].k = 0;
		al->unknown++;
		if (i < al->cursor) al->cursor = i;
		if (i) relist(al, i - 1);
	}
	if (al) al->ntouched = 0;
}

/* ---- bits ------------------------------------------------------------------------------ */
static int set_bits(struct txn *t, u64 idx, u32 n, bool on, u32 cls)
{
	struct bfs *b = t->b;
	struct al *al = begin(t);
	while (n) {
		u32 i = (u32)(idx / al->rg), at = (u32)(idx % al->rg), len = rlen(b, al, i), m = len - at < n ? len - at : n;
		struct bfs_region *p = rx_cow(t, &t->root->region, b->h_region, i, BFS_PK_REGION);
		if (!p) return t->poison;
		struct region *r = &al->r[i];
		if (!p->h.count && on) p->h.aux = len; /* new page, or an empty region */
		if (seek_bit(p->bits, at, at + m, on) < at + m || (on ? p->h.aux < m : p->h.aux + m > len || !p->h.count))
			return txn_fail(t, bfs_fail(b, -EIO, "region %u: granules %u to %u are %s already (%u free); run fsck.belugafs -n", i, at, at + m - 1, on ? "in use" : "free", p->h.aux));
		for (u32 k = at; k < at + m;) {
			u32 e = (k | 63) + 1 < at + m ? (k | 63) + 1 : at + m;
			u64 mask = (e - k == 64 ? ~0ull : (1ull << (e - k)) - 1) << (k % 64);
			if (on) p->bits[k / 64] |= mask;
			else p->bits[k / 64] &= ~mask;
			k = e;
		}
		p->h.aux += on ? -m : m;
		if (on && !p->h.count) p->h.count = (u16)(cls + 1);
		if (!on && p->h.aux == len) p->h.count = 0; /* empty: free for any class */
		if (!r->touched) r->touched = true, al->touched[al->ntouched++] = i;
		if (!r->k) {
			measure(b, al, i, p);
			al->unknown--;
		} else {
			u32 run = r->run;
			measure(b, al, i, p);
			if (on) {
				if (run < r->run) r->run = (u16)run;
			} else if (r->k != EMPTY && !al->shut[i]) {
				u32 lo = back_free(p->bits, at), hi = seek_bit(p->bits, at, len, true);
				r->run = (u16)(run > hi - at + lo ? run : hi - at + lo);
			}
		}
		relist_both(al, i);
		idx += m, n -= m;
	}
	return 0;
}

/* ---- records ---------------------------------------------------------------------------- */
static u64 addr_of(u64 idx) { return BFS_GADDR(0, idx); }
static struct bfs_rec own_rec(u64 addr, u32 len, u64 y, u32 host, u32 st)
{
	return (struct bfs_rec){.k = KEY(BFS_T(BFS_T_OWN, 0), addr, 0), .x = len | (u64)host << 32 | (u64)st << 40, .y = y};
}

static int bad_addr(struct txn *t, u64 addr, u32 len)
{
	return txn_fail(t, bfs_fail(t->b, -EIO, "extent %llx+%u: not where the records say that it is; run fsck.belugafs -n", (unsigned long long)addr, len));
}

/* A record of kind that spans `at` becomes two. */
static int split(struct txn *t, u64 kind, u64 at)
{
	struct bfs_rec r, s;
	int rc = bt_seek_last(tview(t), KEY(BFS_T(kind, 0), at, 0), &r);
	if (rc) return rc == -ENOENT ? 0 : txn_fail(t, rc);
	if (r.k.a != BFS_T(kind, 0) || r.k.b >= at || r.k.b + (u32)r.x <= at) return 0;
	s = r;
	s.k.b = at;
	s.x = (r.x & ~0xffffffffull) | (u32)(r.k.b + (u32)r.x - at);
	r.x = (r.x & ~0xffffffffull) | (u32)(at - r.k.b);
	if ((rc = bt_put(t, &r)) || (rc = bt_put(t, &s))) return txn_fail(t, rc);
	return 0;
}

/* next record of kind that starts in [addr, end) */
static int next_in(struct txn *t, u64 kind, u64 addr, u64 end, struct bfs_rec *r)
{
	int rc = bt_seek(tview(t), KEY(BFS_T(kind, 0), addr, 0), r);
	if (!rc && (r->k.a != BFS_T(kind, 0) || r->k.b >= end)) rc = -ENOENT;
	return rc == -ENOENT ? rc : rc ? txn_fail(t, rc) : 0;
}

/* What is owned in [addr, addr + len) goes into quarantine, or back at once.  Bad granules
 * in it aren't owned: they only lose the object that they were part of. */
static int give(struct txn *t, u64 addr, u32 len, bool quar)
{
	u64 end = addr + len, at = addr;
	struct bfs_rec r;
	int rc;
	if (t->poison) return t->poison;
	if (!len || !al_mem(t->b, addr) || !al_mem(t->b, end - 1)) return bad_addr(t, addr, len);
	if (split(t, BFS_T_OWN, addr) || split(t, BFS_T_OWN, end)) return t->poison;
	while (at < end) {
		rc = next_in(t, BFS_T_OWN, at, end, &r);
		u64 stop = rc ? end : r.k.b;
		if (rc && rc != -ENOENT) return rc;
		while (at < stop) { /* no owner: bad, or the records are wrong */
			struct bfs_rec x;
			int c = bt_seek_last(tview(t), KEY(BFS_T(BFS_T_BAD, 0), at, 0), &x);
			if (c || x.k.a != BFS_T(BFS_T_BAD, 0) || x.k.b + (u32)x.x <= at) return bad_addr(t, at, (u32)(stop - at));
			at = x.k.b + (u32)x.x < stop ? x.k.b + (u32)x.x : stop;
			x.y = 0;
			if ((c = bt_put(t, &x))) return txn_fail(t, c);
		}
		if (rc) break;
		u32 n = (u32)r.x;
		if ((rc = bt_del(t, r.k))) return txn_fail(t, rc);
		t->root->granules_used -= n;
		if (quar) {
			struct bfs_rec q = {.k = KEY(BFS_T(BFS_T_QUAR, 0), t->txn, r.k.b), .x = n, .y = t->term};
			if ((rc = bt_put(t, &q))) return txn_fail(t, rc);
			t->root->granules_quar += n;
		} else if (set_bits(t, BFS_GIDX(r.k.b), n, false, 0)) {
			return t->poison;
		}
		at = r.k.b + n;
	}
	return t->poison;
}

int al_free(struct txn *t, u64 addr, u32 len) { return give(t, addr, len, !BFS_MUT(MUT_QUAR_NOT_WAITED)); }
int al_unwind(struct txn *t, u64 addr, u32 len) { return give(t, addr, len, false); }

int al_own(struct txn *t, u64 addr, u32 len, u64 ino, int st)
{
	u64 end = addr + len, at = addr;
	struct bfs_rec r;
	int rc;
	if (t->poison) return t->poison;
	if (!len || !al_mem(t->b, addr) || !al_mem(t->b, end - 1)) return bad_addr(t, addr, len);
	struct bfs_rec *whole = bt_edit(t, KEY(BFS_T(BFS_T_OWN, 0), addr, 0));
	if (t->poison) return t->poison;
	if (whole && (u32)whole->x == len) { /* the usual case: as it was granted */
		*whole = own_rec(addr, len, ino, t->b->slot, (u32)st);
		return 0;
	}
	if (split(t, BFS_T_OWN, addr) || split(t, BFS_T_OWN, end)) return t->poison;
	for (; !(rc = next_in(t, BFS_T_OWN, at, end, &r)); at = r.k.b + (u32)r.x) {
		r = own_rec(r.k.b, (u32)r.x, ino, t->b->slot, (u32)st);
		if ((rc = bt_put(t, &r))) return txn_fail(t, rc);
	}
	return rc == -ENOENT ? 0 : rc;
}

int al_bad(struct txn *t, u64 addr, u64 ino)
{
	struct bfs_rec r;
	int rc;
	if (t->poison) return t->poison;
	if (!al_mem(t->b, addr)) return bad_addr(t, addr, 1);
	if (split(t, BFS_T_OWN, addr) || split(t, BFS_T_OWN, addr + 1)) return t->poison;
	rc = next_in(t, BFS_T_OWN, addr, addr + 1, &r);
	if (rc == -ENOENT || (!rc && r.y != ino)) return 0; /* freed meanwhile, or known */
	if (rc || (rc = bt_del(t, r.k))) return txn_fail(t, rc);
	t->root->granules_used--, t->root->granules_bad++;
	r = (struct bfs_rec){.k = KEY(BFS_T(BFS_T_BAD, 0), addr, 0), .x = 1, .y = ino};
	return (rc = bt_put(t, &r)) ? txn_fail(t, rc) : 0;
}

/* ---- choosing ------------------------------------------------------------------------------- */
static u64 start_in(struct txn *t, u32 i, u32 n, bool any)
{
	struct al *al = t->b->al;
	struct region *r = &al->r[i];
	int rc = 0;
	if (r->run >= n) {
		if (r->k == EMPTY) return (u64)i * al->rg;
		const struct bfs_region *p = page_of(t, i, &rc);
		if (!p) return txn_fail(t, rc ? rc : -EIO), NONE;
		u32 longest, at = find_run(p->bits, rlen(t->b, al, i), n, &longest);
		if (at != NIL) return (u64)i * al->rg + at;
		r->run = (u16)longest;
		relist(al, i);
	}
	if (fit(al, i, any) >= n && r->tail && i + 1 < al->n && (u32)r->tail + al->r[i + 1].head >= n) return (u64)(i + 1) * al->rg - r->tail;
	return NONE;
}

static u64 start_in_list(struct txn *t, u32 list, u32 n)
{
	struct al *al = t->b->al;
	for (u32 i = al->lists[list].first; i != NIL && !t->poison;) {
		u32 nx = al->r[i].next;
		u64 s = start_in(t, i, n, false);
		if (s != NONE) return s;
		i = nx;
	}
	return NONE;
}

/* an empty region, taken from the end of its predecessor where that one has the class */
static u64 start_empty(struct txn *t, u32 n, u32 c)
{
	struct al *al = t->b->al;
	u32 l = al->recent[c];
	if (l != NIL && l + 1 < al->n && al->r[l].k == c + 2 && al->r[l + 1].k == EMPTY && al->r[l].tail + rlen(t->b, al, l + 1) >= n)
		return (u64)(l + 1) * al->rg - (al->r[l].tail < n ? al->r[l].tail : n);
	for (u32 i = al->lists[0].first; i != NIL; i = al->r[i].next) {
		u32 before = i && al->r[i - 1].k == c + 2 ? al->r[i - 1].tail : 0;
		if (before + rlen(t->b, al, i) >= n) return (u64)i * al->rg - (before < n ? before : n);
	}
	return NONE;
}

static u64 start_class(struct txn *t, u32 n, u32 c)
{
	struct al *al = t->b->al;
	for (;;) {
		u64 s = start_in_list(t, c + 1, n);
		/* Small extents share where empty regions are scarce: a region for each of many
		 * sizes would pin a small pool. */
		if (s == NONE && n <= al->rg / 64 && !al->unknown && al->nempty * 8 < al->n)
			for (u32 k = 0; k < NCLASS && class_min(k) <= al->rg / 64 && s == NONE; k++)
				if (k != c) s = start_in_list(t, k + 1, n);
		if (s == NONE) s = start_empty(t, n, c);
		if (s != NONE || t->poison || explore(t, 1024) <= 0) return s;
	}
}

/* The shortest run that is long enough, wherever it is. */
static u64 start_any(struct txn *t, u32 n)
{
	struct al *al = t->b->al;
	while (explore(t, UINT32_MAX) > 0 && !t->poison) {}
	while (!t->poison && al->most >= n) {
		u32 best = NIL, len = UINT32_MAX;
		for (u32 i = 0; i < al->n && len > n; i++) {
			u32 f = fit(al, i, true);
			if (f >= n && f < len) best = i, len = f;
		}
		if (best == NIL) {
			al->most = n - 1;
			break;
		}
		u64 s = start_in(t, best, n, true);
		if (s != NONE) return s;
	}
	return NONE;
}

static u32 longest_run(struct txn *t)
{
	struct al *al = t->b->al;
	u32 most = 0;
	for (u32 i = 0; i < al->n; i++) {
		u32 f = fit(al, i, true);
		if (f > most) most = f;
	}
	return most;
}

static int take(struct txn *t, u64 idx, u32 n, u64 ino, struct extent *e)
{
	struct al *al = t->b->al;
	u32 c = class_of(n);
	struct bfs_rec r = own_rec(addr_of(idx), n, ino, t->b->slot, BFS_OWN_GRANT);
	int rc;
	if (set_bits(t, idx, n, true, c)) return t->poison;
	if ((rc = bt_put(t, &r))) return txn_fail(t, rc);
	t->root->granules_used += n;
	al->recent[c] = (u32)((idx + n - 1) / al->rg);
	*e = (struct extent){addr_of(idx), n};
	return 0;
}

enum { HOW_CLASS = 1, HOW_ANY = 2, HOW_SPLIT = 4, HOW_ALL = 7 };

static inline u64 free_granules(struct txn *t)
{
	const struct bfs_root *r = t->root;
	u64 gone = r->granules_used + r->granules_quar + r->granules_bad;
	return gone < t->b->sb.data_granules ? t->b->sb.data_granules - gone : 0;
}

static int try(struct txn *t, u64 n, u64 ino, struct extent *e, int max, int how)
{
	struct al *al = begin(t);
	int count = 0;
	if (t->poison) return t->poison;
	if (!n) return 0;
	if (n > free_granules(t) || n > (u64)max * al->rg) return -ENOSPC;
	for (u64 left = n; left && count < max && !t->poison;) {
		u32 m = left < al->rg ? (u32)left : al->rg;
		u64 s = how & HOW_CLASS ? start_class(t, m, class_of(m)) : NONE;
		if (s == NONE && how & HOW_ANY) s = start_any(t, m);
		/* In parts, the longest run first.  A bound that is too high is corrected by looking. */
		while (s == NONE && how & HOW_SPLIT && !t->poison) {
			u32 most = longest_run(t);
			if (!most) break;
			if (most < m) m = most;
			s = start_any(t, m);
		}
		if (s == NONE || take(t, s, m, ino, &e[count])) break;
		count++, left -= m;
		if (!left) return count;
	}
	for (int i = 0; i < count && !t->poison; i++) al_unwind(t, e[i].addr, e[i].len);
	return t->poison ? t->poison : -ENOSPC;
}

int al_alloc(struct txn *t, u64 n, u64 ino, struct extent *e, int max) { return try(t, n, ino, e, max, HOW_ALL); }

u32 al_grow(struct txn *t, u64 addr, u32 len, u32 least, u32 more, u64 ino)
{
	struct al *al = begin(t);
	struct bfs_rec r;
	int rc = 0;
	u64 end = BFS_GIDX(addr) + len;
	if (t->poison || len >= al->rg || end >= t->b->sb.data_granules || end % al->rg == 0) return 0;
	u32 i = (u32)(end / al->rg), at = (u32)(end % al->rg);
	const struct bfs_region *p = page_of(t, i, &rc);
	if (!p || al->shut[i]) return 0;
	u32 hi = at + (more < al->rg - len ? more : al->rg - len), stop = rlen(t->b, al, i);
	u32 m = seek_bit(p->bits, at, hi < stop ? hi : stop, true) - at;
	if (!m || m < least) return 0;
	rc = bt_seek_last(tview(t), KEY(BFS_T(BFS_T_OWN, 0), BFS_GADDR(0, end - 1), 0), &r);
	if (rc || r.k.a != BFS_T(BFS_T_OWN, 0) || r.k.b + (u32)r.x != addr + len || r.y != ino || r.x >> 40 != BFS_OWN_GRANT) return 0;
	if (set_bits(t, end, m, true, class_of(m))) return 0;
	r.x += m;
	if ((rc = bt_put(t, &r))) return txn_fail(t, rc), 0;
	t->root->granules_used += m;
	return m;
}

u32 al_alloc_run(struct txn *t, u64 addr, u32 n, u32 count, u64 ino, struct extent *e)
{
	struct bfs *b = t->b;
	struct al *al = begin(t);
	int rc = 0;
	u64 idx = BFS_GIDX(addr), room = free_granules(t), high = b->sb.data_granules * b->o.high_permille / 1000;
	if (t->poison || idx >= b->sb.data_granules || idx % al->rg == 0) return 0;
	/* above the high mark each allocation has others go */
	if (!b->o.evict_none) room = t->root->granules_used < high && high - t->root->granules_used < room ? high - t->root->granules_used : t->root->granules_used < high ? room : 0;
	u32 i = (u32)(idx / al->rg), at = (u32)(idx % al->rg), end = rlen(b, al, i);
	const struct bfs_region *p = page_of(t, i, &rc);
	if (!p || al->shut[i] || !al->r[i].k) return 0;
	u64 want = (u64)n * count < room ? (u64)n * count : room;
	u32 m = (seek_bit(p->bits, at, at + want < end ? at + (u32)want : end, true) - at) / n, c = class_of(n);
	if (!m || al->r[i].k != c + 2) return 0;
	if (set_bits(t, idx, m * n, true, c)) return 0;
	for (u32 k = 0; k < m; k++) {
		struct bfs_rec r = own_rec(addr + (u64)k * n, n, ino, b->slot, BFS_OWN_GRANT);
		if ((rc = bt_put(t, &r))) return txn_fail(t, rc), 0;
		e[k] = (struct extent){addr + (u64)k * n, n};
	}
	t->root->granules_used += (u64)m * n;
	al->recent[c] = i;
	return m;
}

/* ---- quarantine -------------------------------------------------------------------------------- */
/* A held list names extents by address and length (see in_held): parts of one are freed apart. */
static bool held(struct bfs *b, u64 addr, u32 len)
{
	for (u32 i = 0; i < b->nheld; i++) {
		u64 a = HELD_ADDR(b->held[i]);
		if (a < addr + len && addr < a + HELD_LEN(b->held[i])) return true;
	}
	return false;
}

/* An extent freed in f may still be read by who looked it up before f.  A slot that says
 * "applied N >= f, scanned, these are held" has no reader that doesn't stand in the list:
 * who announced himself later checked against N or newer, and found it gone (rule 16).
 * ld_quar_limit has read all slots after f was confirmed, since f is in conf or older. */
int al_reclaim(struct txn *t)
{
	struct bfs *b = t->b;
	struct bfs_snap low;
	struct bfs_rec r[64];
	u64 back = 0, txn = 0, addr = 0;
	int n, rc;
	if (t->poison) return t->poison;
	if (begin(t)->nruns) shut(b, b->al); /* opened again? */
	if ((rc = ld_quar_limit(b, &low))) return rc;
	for (u32 seen = 0; seen < 8192;) {
		if ((n = bt_range(tview(t), KEY(BFS_T(BFS_T_QUAR, 0), txn, addr), r, 64)) <= 0) {
			if (n < 0) return txn_fail(t, n);
			break;
		}
		for (int i = 0; i < n; i++, seen++) {
			u32 len = (u32)r[i].x;
			txn = r[i].k.b, addr = r[i].k.c + 1;
			/* in the order of txn, and a later term never has a smaller one */
			if (tag_cmp((u32)r[i].y, txn, low.term, low.txn) > 0) return (int)back;
			if (!len || !al_mem(b, r[i].k.c) || !al_mem(b, r[i].k.c + len - 1)) return bad_addr(t, r[i].k.c, len);
			if (held(b, r[i].k.c, len)) continue;
			if ((rc = bt_del(t, r[i].k))) return txn_fail(t, rc);
			if (set_bits(t, BFS_GIDX(r[i].k.c), len, false, 0)) return t->poison;
			t->root->granules_quar -= len;
			back += len;
		}
	}
	return back < INT32_MAX ? (int)back : INT32_MAX;
}

/* ---- with eviction ---------------------------------------------------------------------------------- */
/* Blocks of another size than before find room by emptying regions rather than by filling
 * odd holes, once the pool is nearly full: holes filled with what doesn't fit them would
 * keep their regions from ever being emptied. */
static int try_room(struct txn *t, u64 n, u64 ino, struct extent *e, int max, bool last)
{
	int rc = try(t, n, ino, e, max, HOW_CLASS);
	bool roomy = free_granules(t) + t->root->granules_quar > t->b->sb.data_granules / 1000 * (1000 - t->b->o.low_permille) || t->b->o.evict_none;
	if (rc == -ENOSPC && (roomy || last)) rc = try(t, n, ino, e, max, HOW_CLASS | HOW_ANY);
	return rc == -ENOSPC && last ? try(t, n, ino, e, max, HOW_ALL) : rc;
}

int al_alloc_room(struct bfs *b, struct txn **tp, u64 n, u64 ino, struct extent *e, int max)
{
	struct txn *t = *tp;
	bool batch = in_batch(b), more = !b->o.evict_none;
	u64 before, total = b->sb.data_granules, high = total * b->o.high_permille / 1000, low = total * b->o.low_permille / 1000;
	int rc = try_room(t, n, ino, e, max, batch);
	if (rc >= 0) {
		u64 used = t->root->granules_used, over = used - low;
		/* above the high mark: a little with each allocation, until the low one is reached */
		if (used > high && more && !t->poison) ev_make_room(t, over < 2 * n ? over : 2 * n);
		return t->poison ? t->poison : rc;
	}
	if (rc != -ENOSPC) return rc;
	if (batch) return bfs_fail(b, -ENOSPC, "no room for %llu granules inside a batch (space comes back with a commit)", (unsigned long long)n);
	if (n > total) more = false;
	for (int idle = 0, round = 0; idle < 6 && round < 256; round++) {
		u64 empty = free_granules(t), quar = t->root->granules_quar;
		if (!more && !quar) break;
		/* what is in quarantine comes back first, unless it was seen not to */
		if (more && (idle > 1 || empty + quar < n || !quar)) {
			int got = empty + (idle ? 0 : quar) >= n ? ev_empty_region(t, n < BFS_REGION_GRANULES_MAX ? (u32)n : BFS_REGION_GRANULES_MAX)
							       : ev_make_room(t, n - empty - (idle ? 0 : quar));
			if (t->poison) return t->poison;
			if (got <= 0) more = false;
		}
		rc = op_end(b, t, 0);
		*tp = NULL;
		if (rc) return rc;
		if (idle) b->m->ops->pause(b->m, 1000000ull << idle); /* others have to apply it first */
		bfs_apply_scan(b);
		if ((rc = op_begin(b, &t))) return rc;
		*tp = t;
		before = t->root->granules_quar;
		rc = al_reclaim(t);
		if (rc < 0) return rc;
		if ((rc = try_room(t, n, ino, e, max, false)) != -ENOSPC) return rc;
		idle = t->root->granules_quar < before ? 0 : idle + 1;
	}
	rc = try_room(t, n, ino, e, max, true);
	return rc == -ENOSPC ? bfs_fail(b, -ENOSPC, "no room for %llu granules: %llu of %llu are in use, %llu wait for readers", (unsigned long long)n,
					(unsigned long long)t->root->granules_used, (unsigned long long)total, (unsigned long long)t->root->granules_quar)
			     : rc;
}

/* ---- the rest ------------------------------------------------------------------------------------------ */
/* For statfs.  Exact up to 4096 regions; in larger pools the search ends at the first empty
 * one, or says what it found in 4096 that aren't. */
u64 al_largest(struct view *v)
{
	struct bfs *b = v->b;
	struct al *al = b->al;
	u64 most = 0, tail = 0;
	int rc = 0;
	for (u32 i = 0, read = 0; i < al->n && read < 4096 && most < al->rg; i++) {
		const struct bfs_region *p = rx_get(b, v->root->region, b->h_region, i, BFS_PK_REGION, &rc);
		u32 len = rlen(b, al, i), run = len, head = len, end = len;
		if (rc) break;
		if (p && p->h.count) {
			read++;
			find_run(p->bits, len, NIL, &run);
			head = seek_bit(p->bits, 0, len, true), end = back_free(p->bits, len);
		}
		if (run > most) most = run;
		if (tail + head > most) most = tail + head;
		tail = end == len ? tail + len : end;
	}
	return most < al->rg ? most : al->rg;
}

int al_attach(struct bfs *b)
{
	struct al *al = b->al = xalloc(b, sizeof *al);
	if (!al) return -ENOMEM;
	al->n = (u32)b->nregions, al->rg = b->sb.region_granules;
	al->r = xalloc(b, al->n * sizeof *al->r);
	al->shut = xalloc(b, al->n);
	al->touched = xalloc(b, al->n * sizeof *al->touched);
	if (!al->r || !al->touched || !al->shut) return -ENOMEM;
	reset(al, 0);
	return 0;
}

void al_detach(struct bfs *b)
{
	struct al *al = b->al;
	if (!al) return;
	xfree(b, al->r);
	xfree(b, al->touched);
	xfree(b, al->shut);
	xfree(b, al);
	b->al = NULL;
}
