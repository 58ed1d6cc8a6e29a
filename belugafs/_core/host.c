/* This host among the others: what it has applied and still holds, heartbeat and suspicion,
 * the timer, the dead, attaching and leaving.  Rules 16, 18 to 23 of docs/protocol.md. */
#include "lead.h"
#include "lease.h"

struct held {
	struct bfs *b;
	u64 a[BFS_HELD_LINES * 6];
	u32 n;
	bool all;
};
static int hold(void *arg, u64 addr, u32 len)
{
	struct held *h = arg;
	(void)len; /* an extent is named by its first granule; parts of one are freed with it or stay */
	for (u32 i = 0; i < h->n; i++)
		if (h->a[i] == addr) return 0;
	if (h->n == BFS_HELD_LINES * 6) h->all = true;
	else h->a[h->n++] = addr;
	return 0;
}

int bfs_apply_scan(struct bfs *b)
{
	struct held *h = xalloc(b, sizeof *h);
	if (!h) return -ENOMEM;
	lk(b, &b->slock);
	h->b = b;
	if (BFS_MUT(MUT_SCAN_BEFORE_APPLY)) {
		if (in_held(b, hold, h)) h->all = true;
		mm_fence(b->m);
	}
	/* Readers check their hazard against ld_newest(): that is set, a fence passes, and only
	 * then are the hazards read; who announced later sees this root. */
	struct bfs_snap s = ld_newest(b);
	BFS_STEP(BFS_SAYS);
	if (!BFS_MUT(MUT_SCAN_NO_FENCE)) mm_fence(b->m);
	if (!BFS_MUT(MUT_SCAN_BEFORE_APPLY) && in_held(b, hold, h)) h->all = true;
	u64 scan = atomic_fetch_add(&b->scan, 1) + 1;
	u32 lines = (h->n + 5) / 6;
	for (u32 i = 0; i < lines; i++) {
		u64 w[7] = {BFS_MUT(MUT_HELD_NO_SCAN_NUMBER) ? 0 : scan};
		for (u32 k = 0; k < 6 && i * 6 + k < h->n; k++) w[1 + k] = h->a[i * 6 + k];
		ld_put(b, BFS_L_HELD + i, w, 7);
	}
	mm_fence(b->m);
	b->applied = s;
	ld_put(b, BFS_L_APPLIED, (u64[]){s.term, s.txn, scan, lines, h->all}, 5);
	mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_APPLIED), BFS_LINE);
	unlk(b, &b->slock);
	xfree(b, h);
	return 0;
}

int ld_quar_limit(struct bfs *b, struct bfs_snap *lowest)
{
	const struct bfs_root *root = ld_conf_root(b);
	u32 cap = b->sb.nhosts * BFS_HELD_LINES * 6 + 1;
	if (!b->held && !(b->held = xalloc(b, cap * sizeof *b->held))) return -ENOMEM;
	b->nheld = 0;
	*lowest = b->conf;
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line id, ap, l;
		int ok = ld_line_retry(b, s, BFS_L_IDENT, &id, false);
		if (ok == 0 || (ok > 0 && id.w[4] != BFS_MNT_LIVE)) continue;
		if (ok > 0 && root && root->host[s].state >= BFS_HOST_DEAD && root->host[s].incarnation == id.w[3]) continue;
		if (BFS_MUT(MUT_SUSPECT_HOLD_IGNORED) && s != b->slot && !b->peer[s].live) continue;
		bool good = false, own = s == b->slot;
		if (own) lk(b, &b->slock); /* another thread may scan: no look at half a list of our own */
		for (int tries = 0; tries < 4 && !good; tries++) {
			u32 n0 = b->nheld;
			if (ld_line(b, s, BFS_L_APPLIED, &ap) <= 0 || ap.w[4] || ap.w[3] > BFS_HELD_LINES) continue;
			good = true;
			for (u32 i = 0; i < ap.w[3] && good; i++) {
				good = ld_line(b, s, BFS_L_HELD + i, &l) > 0 && (BFS_MUT(MUT_HELD_NO_SCAN_NUMBER) || l.w[0] == ap.w[2]);
				for (u32 k = 1; k < 7 && good; k++)
					if (l.w[k]) b->held[b->nheld++] = l.w[k];
			}
			if (!good) b->nheld = n0;
		}
		if (own) unlk(b, &b->slock);
		struct bfs_snap a = {good ? (u32)ap.w[0] : 0, good ? ap.w[1] : 0, {0}};
		if (snap_cmp(&a, lowest) < 0) *lowest = a;
	}
	return 0;
}

bool ld_lease_ok(struct bfs *b)
{
	struct bfs_snap best;
	int rc = 0;
	if (BFS_MUT(MUT_NO_LEASE_LOST)) return true;
	if (ld_roots_now(b, &best)) return false;
	/* the page may be one this host never met, and may be freed under us: pg_get's checks
	 * make that an error, and an error means that the lease isn't proven */
	const struct bfs_root *r = pg_get(b, best.root, BFS_PK_ROOT, &rc);
	return r && !(r->host[b->slot].state >= BFS_HOST_DEAD && r->host[b->slot].incarnation == b->incarnation);
}

/* ---- heartbeat, suspicion, the timer ---------------------------------------------------------------- */
void ld_beat(struct bfs *b)
{
	static const u64 s_ns = 1000000000ull;
	u64 now = b->m->ops->mono_ns(b->m);
	struct bfs_line l;
	if (!b->o.readonly) {
		b->peer[b->slot].heart++;
		ld_put(b, BFS_L_HEART, (u64[]){b->peer[b->slot].heart, now_ns(b) / s_ns, ev_pos(b)}, 3);
		mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_HEART), BFS_LINE);
	}
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		if (s == b->slot) continue;
		if (ld_line(b, s, BFS_L_IDENT, &l) <= 0 || l.w[4] != BFS_MNT_LIVE) {
			b->peer[s].live = false;
			continue;
		}
		if (ld_line(b, s, BFS_L_HEART, &l) > 0 && (l.w[0] != b->peer[s].heart || !b->peer[s].since_ns)) {
			b->peer[s].heart = l.w[0];
			b->peer[s].since_ns = now;
			b->peer[s].live = true;
		} else if (now - b->peer[s].since_ns > b->o.suspect_ns) {
			b->peer[s].live = false; /* suspected: leadership may move, nothing of it is taken */
		}
	}
}

int bfs_reclaim(struct bfs *b)
{
	struct txn *t;
	if (!atomic_load(&b->leader)) return 0;
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if (t->root->granules_quar) rc = al_reclaim(t);
	if (!rc && !t->poison && t->root->pages_log > BFS_LOG_MAX) pg_reuse(t);
	return op_end(b, t, rc < 0 ? rc : 0);
}

/* Something may wait for what other processes have held at the last scan: they say nothing when they give it back. */
static bool released(struct bfs *b)
{
	struct rd r;
	if (!atomic_load_explicit(&b->nclients, memory_order_relaxed) || rd_begin(b, &r)) return false;
	bool waits = r.v.root->granules_quar != 0;
	rd_end(&r);
	return waits;
}

int bfs_tick(struct bfs *b)
{
	static const u64 STAMPS_EVERY_NS = 5000000000ull;
	int rc = 0;
	ls_reap(b);
	bool died = atomic_exchange(&b->rescan, false);
	ld_beat(b);
	lk(b, &b->wlock);
	/* A leader without work would not notice that another one has taken over, and would show
	 * its last state for ever. */
	if (atomic_load(&b->leader) && ld_claims(b, false) > b->term) ld_stand_down(b);
	if (!atomic_load(&b->leader)) rc = ld_refresh(b);
	unlk(b, &b->wlock);
	struct bfs_snap s = ld_newest(b);
	lk(b, &b->slock); /* a store into a full pool scans too */
	bool behind = snap_cmp(&s, &b->applied) != 0;
	unlk(b, &b->slock);
	if (!b->o.readonly && s.root.page && (behind || died || released(b))) rc = bfs_apply_scan(b);
	if (atomic_load(&b->leader)) {
		ev_drain(b);
		rc = bfs_reclaim(b);
		/* recency is worth little, and so is written seldom: what a crash loses of it are the
		 * last seconds */
		u64 now = b->m->ops->mono_ns(b->m);
		if (!rc && now - b->stamps_ns > STAMPS_EVERY_NS) {
			struct txn *t;
			b->stamps_ns = now;
			if (!(rc = op_begin(b, &t))) rc = op_end(b, t, ev_store(t));
		}
		if (!rc) rc = ev_tick(b);
		if (!rc) rc = bfs_headroom(b);
	}
	if (!atomic_load(&b->leader)) ev_pass_on(b);
	fl_tick(b);
	rv_tick(b);
	return rc == -EAGAIN || rc == -EBUSY || rc == -ENOSPC ? 0 : rc; /* the next tick tries again */
}

int bfs_declare_dead(struct bfs *b, u32 slot, bool is_fenced)
{
	struct txn *t;
	struct bfs_line id;
	if (slot >= b->sb.nhosts || slot == b->slot) return bfs_fail(b, -EINVAL, "host slot %u can't be declared dead by slot %u", slot, b->slot);
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if (ld_line(b, slot, BFS_L_IDENT, &id) <= 0) return op_end(b, t, bfs_fail(b, -ENOENT, "no host is registered in slot %u", slot));
	struct bfs_hostrow *h = &t->root->host[slot];
	h->uuid[0] = id.w[0], h->uuid[1] = id.w[1], h->boot = id.w[2], h->incarnation = id.w[3];
	h->state = is_fenced ? BFS_HOST_FENCED : BFS_HOST_DEAD;
	h->since_s = now_ns(b) / 1000000000ull;
	t->changed = true;
	rc = op_end(b, t, 0);
	/* fenced: what it had closed is sealed on its behalf, the rest of its grants comes back */
	return rc || !is_fenced ? rc : sl_recover_slot(b, slot);
}

/* ---- attach ------------------------------------------------------------------------------------------- */
int ld_attach(struct bfs *b)
{
	struct bfs_line l[2], g;
	b->root_line = b->pin_line = 1;
	if (b->o.readonly) return ld_refresh(b);
	/* 6. A process of this host that died may have left its lines dirty in the cache. */
	mm_fence(b->m);
	mm_flush(b->m, host_line(b, b->slot, 0), BFS_L_COUNT * BFS_LINE);
	mm_fence(b->m);
	int v0 = ld_line(b, b->slot, BFS_L_ROOT_A, &l[0]), v1 = ld_line(b, b->slot, BFS_L_ROOT_B, &l[1]);
	struct bfs_snap s0 = snap_of(&l[0]), s1 = snap_of(&l[1]);
	if (v0 > 0 && (v1 <= 0 || snap_cmp(&s0, &s1) > 0)) b->root_line = 0;
	/* The newest own pin may be of what readers of other processes use: the next pin goes into
	 * the other line, and covers less only after this host has no reader of before. */
	struct bfs_snap p0, p1;
	v0 = ld_line(b, b->slot, BFS_L_PIN_A, &l[0]), v1 = ld_line(b, b->slot, BFS_L_PIN_B, &l[1]);
	p0 = (struct bfs_snap){(u32)l[0].w[2], l[0].w[3], {0}}, p1 = (struct bfs_snap){(u32)l[1].w[2], l[1].w[3], {0}};
	if (v0 > 0 && (v1 <= 0 || snap_cmp(&p0, &p1) > 0 || (!snap_cmp(&p0, &p1) && tag_cmp((u32)l[0].w[0], l[0].w[1], (u32)l[1].w[0], l[1].w[1]) > 0))) b->pin_line = 0;
	if (BFS_MUT(MUT_PIN_LINE_OLD)) b->pin_line ^= 1;
	if (BFS_MUT(MUT_ROOT_CLEARED))
		for (u32 k = 0; k < 2; k++) {
			struct bfs_line z = {{0}, 0};
			mm_store(b->m, host_line(b, b->slot, BFS_L_ROOT_A + k), &z, sizeof z);
		}
	ld_newer_of(b, b->slot, ld_claim_at, 0, &g, &b->claim_line, false);
	int ok = ld_get_grant(b, b->slot, &g, &b->grant_line);
	b->grant_seq = ok > 0 ? g.w[2] : 0;
	if (ok) {
		/* what the dead process wrote into its grant is flushed before it is given back */
		b->grant = ok > 0 ? g.w[0] : ~0ull;
		for (int i = 3; i < 7 && ok > 0 && !BFS_MUT(MUT_KILLED_NOT_FLUSHED); i++) {
			u64 from = (u64)(u32)g.w[i] * b->sb.region_granules, len = (g.w[i] >> 32) * b->sb.region_granules;
			if (from >= b->sb.data_granules) continue;
			if (len > b->sb.data_granules - from) len = b->sb.data_granules - from;
			mm_flush(b->m, al_mem(b, BFS_GADDR(0, from)), len * BFS_GRANULE); /* rule 21 */
		}
		b->term = (u32)g.w[1];
		ld_stand_down(b);
	}
	if (ld_line(b, b->slot, BFS_L_HEART, &g) > 0) b->peer[b->slot].heart = g.w[0];
	if (ld_line(b, b->slot, BFS_L_APPLIED, &g) > 0) atomic_store(&b->scan, g.w[2]);
	ld_beat(b);
	if (b->o.follower) {
		int rc = -EAGAIN;
		for (int i = 0; i < 100 && rc == -EAGAIN; i++)
			if ((rc = ld_refresh(b)) == -EAGAIN) b->m->ops->pause(b->m, 1000000);
		return rc;
	}
	lk(b, &b->wlock);
	int rc = ld_claim(b);
	unlk(b, &b->wlock);
	return rc;
}

void ld_detach(struct bfs *b, bool clean)
{
	if (clean && !b->o.readonly) {
		lk(b, &b->wlock);
		ld_stand_down(b);
		/* no reader is left: the pins go */
		for (u32 k = 0; k < 2 && !ls_live(b); k++) ld_put_pin(b, (struct bfs_snap){0}, (struct bfs_snap){0});
		mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_PIN_A), 2 * BFS_LINE);
		unlk(b, &b->wlock);
	}
	xfree(b, b->held);
}
