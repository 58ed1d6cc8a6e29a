/* Recency: when each object was used last.
 *
 * Nobody writes on the path of a reader but this: a word of his host's touch ring, which
 * forgets when it is full.  The leader drains the rings into stamps: seconds of the last
 * use, by object slot, in memory, and now and then in the tree (a table of its own, so
 * that a million touches cost a few pages).  What is made or sealed has been used then.
 *
 * A stamp that the tree doesn't have (sealed after the last store, then a crash) is the
 * time the object was made.  A stamp that is too old costs a block, never more.
 *
 * mx protects what is in memory; it is taken last (under wlock, never the other way). */
#include "client.h"
#include "evict.h"
#include "lease.h"
#include <stdlib.h>

/* ---- the own ring: any thread of this host ------------------------------------------------ */
void bfs_touch(struct bfs *b, u64 ino)
{
	struct ev *ev = b->ev;
	u32 slot = INO_SLOT(ino);
	if (b->client) {
		cl_touches(b, &ino, 1);
		return;
	}
	if (b->o.readonly || !slot || slot >= b->sb.inodes || ino >> 63) return;
	u64 p = atomic_fetch_add_explicit(&ev->pos, 1, memory_order_acq_rel), e = slot | (u64)ev_seconds(b) << 32;
	u64 *at = host_ring(b, b->slot) + p % b->sb.ring_entries;
	if (b->m->coherent) __atomic_store_n(at, e, __ATOMIC_RELAXED);
	else mm_store(b->m, at, &e, sizeof e);
}

u64 ev_pos(struct bfs *b) { return b->ev ? atomic_load_explicit(&((struct ev *)b->ev)->pos, memory_order_acquire) : 0; }

/* ---- stamps, under mx ------------------------------------------------------------------------ */
u64 *ev_at(struct bfs *b, struct view *v, u32 slot)
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
void ev_new_term(struct bfs *b, struct view *v, u32 term)
{
	struct ev *ev = b->ev;
	if (ev->term == term) return;
	ev->term = term;
	for (u32 c = 0; c < ev->nchunks; c++) {
		int rc = 0;
		if (!ev->chunk[c]) continue;
		const struct bfs_stamps *p = rx_get(b, v->root->stamp, b->h_stamp, c, BFS_PK_STAMP, &rc);
		for (u32 i = 0; p && i < BFS_STAMPS; i++)
			if (ev->chunk[c][i] >> 32 < p->s[i]) ev->chunk[c][i] = (u64)p->s[i] << 32;
	}
	atomic_store(&ev->recheck, true);
}

static void used(struct bfs *b, struct view *v, u32 slot, u32 s)
{
	struct ev *ev = b->ev;
	u64 *p = slot && slot < b->sb.inodes ? ev_at(b, v, slot) : NULL, x = (u64)s << 32 | (u64)(++ev->order << 2);
	int rc = 0;
	if (!p) return;
	if ((*p & ~EV_BITS) == EV_ABANDONED) { /* who looks into it doesn't save it */
		const struct bfs_obj *o = ob_slot(v, slot, &rc);
		if (o && o->mode && o->state == BFS_ST_ABANDONED) {
			x = EV_ABANDONED;
			if (*p & EV_SKIP) ev->abandoned = true; /* it was open, and perhaps isn't now */
		}
	} else if ((*p & ~EV_BITS) > x) {
		x = *p & ~EV_BITS;
	}
	*p = x; /* a candidate again, if it was none */
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
		used(b, &r.v, slot, ev_seconds(b));
	} else {
		u64 *p = ev_at(b, &r.v, slot);
		if (p) *p = EV_ABANDONED;
		ev->abandoned = true;
		ev->dirty[slot / BFS_STAMPS] = 1;
	}
	unlk(b, &ev->mx);
	rd_end(&r);
}

void ev_admit_many(struct bfs *b, const u64 *inodes, u32 n)
{
	struct ev *ev = b->ev;
	struct rd r;
	if (rd_begin(b, &r)) return;
	lk(b, &ev->mx);
	drain(b, &r.v, b->slot, ev_pos(b)); /* as in ev_admit */
	for (u32 i = 0, s = ev_seconds(b); i < n; i++)
		if (inodes[i]) used(b, &r.v, INO_SLOT(inodes[i]), s);
	unlk(b, &ev->mx);
	rd_end(&r);
}

void ev_forget(struct bfs *b, u32 slot)
{
	struct ev *ev = b->ev;
	u32 c = slot / BFS_STAMPS;
	lk(b, &ev->mx);
	if (ev->chunk[c] && ev->chunk[c][slot % BFS_STAMPS]) ev->chunk[c][slot % BFS_STAMPS] = 0, ev->dirty[c] = 1;
	unlk(b, &ev->mx);
}

void ev_regrade(struct bfs *b, u32 slot)
{
	struct ev *ev = b->ev;
	u32 c = slot / BFS_STAMPS;
	lk(b, &ev->mx);
	if (ev->chunk[c]) ev->chunk[c][slot % BFS_STAMPS] &= ~EV_BITS;
	unlk(b, &ev->mx);
}

u32 ev_stamp(struct bfs *b, u32 slot)
{
	struct ev *ev = b->ev;
	struct rd r;
	u32 s = 0;
	if (slot >= b->sb.inodes || rd_begin(b, &r)) return 0;
	lk(b, &ev->mx);
	u64 *p = ev_at(b, &r.v, slot);
	if (p) s = (u32)(*p >> 32);
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

struct use { struct bfs *b; struct view *v; };
static void used_in_place(void *arg, u32 slot, u32 seconds)
{
	struct use *u = arg;
	u32 now = ev_seconds(u->b);
	used(u->b, u->v, slot, seconds < now ? seconds : now);
}
static void touch_in_place(void *arg, u32 slot, u32 seconds)
{
	(void)seconds;
	bfs_touch(arg, INO(slot, 0));
}

/* What other processes of this host have used goes into its ring, for whoever leads. */
void ev_pass_on(struct bfs *b)
{
	if (!b->o.readonly) ls_touches(b, touch_in_place, b);
}

int ev_drain(struct bfs *b)
{
	struct ev *ev = b->ev;
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	lk(b, &ev->mx);
	ev_new_term(b, &r.v, r.s.term);
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line l;
		if (s == b->slot) {
			drain(b, &r.v, s, ev_pos(b));
			ls_touches(b, used_in_place, &(struct use){b, &r.v});
		} else if (ld_line(b, s, BFS_L_HEART, &l) > 0) {
			if (!ev->met[s]) ev->seen[s] = l.w[2], ev->met[s] = true; /* what was before, the leader of then has seen */
			drain(b, &r.v, s, l.w[2]);
		}
	}
	unlk(b, &ev->mx);
	rd_end(&r);
	return 0;
}

bool ev_unstored(struct bfs *b)
{
	struct ev *ev = b->ev;
	bool any = false;
	lk(b, &ev->mx);
	for (u32 c = 0; c < ev->nchunks && !any; c++) any = ev->dirty[c] && ev->chunk[c];
	unlk(b, &ev->mx);
	return any;
}

/* 64 pages at most, so that a transaction isn't all recency: those that it didn't come to are the next one's. */
int ev_store(struct txn *t)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	lk(b, &ev->mx);
	ev_new_term(b, tview(t), t->term);
	for (u32 k = 0, n = 0; k < ev->nchunks && n < 64 && !t->poison; k++) {
		u32 c = ev->store_at = (ev->store_at + 1) % ev->nchunks;
		if (!ev->dirty[c] || !ev->chunk[c]) continue;
		struct bfs_stamps *p = rx_cow(t, &t->root->stamp, b->h_stamp, c, BFS_PK_STAMP);
		for (u32 i = 0; p && i < BFS_STAMPS; i++)
			p->s[i] = (u32)(ev->chunk[c][i] >> 32);
		ev->dirty[c] = 0; /* should the transaction be dropped, they are older by one round */
		n++;
	}
	unlk(b, &ev->mx);
	return t->poison;
}

/* ---- attach ------------------------------------------------------------------------------------ */
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
	ev->young_cap = b->sb.inodes / 4 < 16 ? 16 : b->sb.inodes / 4 > 65536 ? 65536 : b->sb.inodes / 4;
	ev->young = xalloc(b, ev->young_cap * sizeof *ev->young);
	return ev->chunk && ev->dirty && ev->cand && ev->young ? 0 : -ENOMEM;
}

void ev_detach(struct bfs *b)
{
	struct ev *ev = b->ev;
	if (!ev) return;
	for (u32 c = 0; ev->chunk && c < ev->nchunks; c++) xfree(b, ev->chunk[c]);
	xfree(b, ev->chunk);
	xfree(b, ev->dirty);
	xfree(b, ev->cand);
	xfree(b, ev->held);
	xfree(b, ev->young);
	free(ev->leased);
	xfree(b, ev);
	b->ev = NULL;
}
