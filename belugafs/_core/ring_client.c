/* The asking side of one ring.  What it knows of its requests is in its own memory; of the ring it writes the
 * request lines, the requests' payload and its own line, and reads the rest as if anybody could have written it. */
#include "ring.h"

#include <errno.h>
#include <string.h>
#include "internal.h"

enum { NAP_MOST_NS = 10000000, PAUSE_NS = 1000, PAUSE_MOST_NS = 200000, SPIN_LEAST_NS = 2000, LOOKS = 32 };

static void *line_at(struct rg_chan *c, u64 i) { return c->m->base + i * BFS_LINE; }
static u64 req_line(struct rg_chan *c, u64 pos) { return RG_LINES_OFF / BFS_LINE + (pos & (c->head.slots - 1)); }
static u64 rep_line(struct rg_chan *c, u32 slot) { return c->at.rep_line / BFS_LINE + slot; }

static void say(struct rg_chan *c, u64 state)
{
	struct rg_state s = {.state = state};
	memcpy(s.asleep, c->asleep, sizeof s.asleep);
	rg_put(c->m, line_at(c, RG_L_CLIENT), &s);
}

int rg_chan_init(struct rg_chan *c, struct bfs_mem *m, const struct rg_head *want, const struct rg_waker *w, u64 spin_ns)
{
	struct rg_head h = *want;
	memset(c, 0, sizeof *c);
	memcpy(h.magic, RG_MAGIC, sizeof h.magic);
	h.version = RG_VERSION;
	c->m = m;
	c->at = rg_shape(h.slots, h.req_bytes, h.rep_bytes);
	h.size_bytes = c->at.size;
	rg_seal(&h, h.nonce, RG_L_HEAD);
	c->head = h;
	if (w) c->w = *w;
	c->next = h.start;
	c->number = 1;
	c->spin_ns = c->spin_most_ns = spin_ns;
	for (u32 i = 0; i < h.slots; i++) c->free[i] = (u16)(h.slots - 1 - i);
	c->nfree = h.slots;
	c->req_map = m->ops->alloc(m, h.req_bytes / RG_CHUNK + 1);
	c->rep_map = m->ops->alloc(m, h.rep_bytes / RG_CHUNK + 1);
	if (!c->req_map || !c->rep_map) {
		if (c->req_map) m->ops->free(m, c->req_map);
		if (c->rep_map) m->ops->free(m, c->rep_map);
		return -ENOMEM;
	}
	pthread_mutex_init(&c->lock, NULL);
	say(c, RG_OPEN);
	rg_put(m, line_at(c, RG_L_HEAD), &h);
	mm_pool_fence(m, m->base, RG_LINES_OFF);
	/* its own mistakes, such as a number of slots that isn't allowed, are found where the server's look is */
	int rc = rg_read_head(m, &h, &c->at);
	if (rc) rg_chan_close(c);
	return rc;
}

void rg_chan_close(struct rg_chan *c)
{
	say(c, RG_CLOSED);
	mm_pool_fence(c->m, line_at(c, RG_L_CLIENT), BFS_LINE);
	if (c->w.bell) c->w.bell(c->w.ctx);
	c->m->ops->free(c->m, c->req_map);
	c->m->ops->free(c->m, c->rep_map);
	pthread_mutex_destroy(&c->lock);
}

/* ---- room -------------------------------------------------------------------------------------- */
static u32 small_len(u32 slots) { return (slots * RG_SMALL + 4095u) & ~4095u; }

/* first run of n bytes in an area of `area` bytes; ~0: none */
static u32 take_run(u8 *map, u32 area, u32 n)
{
	u32 want = (n + RG_CHUNK - 1) / RG_CHUNK, total = area / RG_CHUNK, run = 0;
	for (u32 i = 0; i < total; i++) {
		run = map[i] ? 0 : run + 1;
		if (run < want) continue;
		memset(map + i + 1 - want, 1, want);
		return (i + 1 - want) * RG_CHUNK;
	}
	return ~0u;
}

static void put_run(struct rg_chan *c, u8 *map, u32 off, u32 n)
{
	u32 small = small_len(c->head.slots);
	if (off < small) return;
	memset(map + (off - small) / RG_CHUNK, 0, (n + RG_CHUNK - 1) / RG_CHUNK);
}

static void free_slot(struct rg_chan *c, u32 i)
{
	struct rg_slot *s = &c->slot[i];
	put_run(c, c->req_map, s->off, s->len);
	put_run(c, c->rep_map, s->rep_off, s->rep_cap);
	s->state = RG_S_FREE;
	c->free[c->nfree++] = (u16)i;
	if (c->asleep[i / 64] >> i % 64 & 1) { /* here, not later: the slot may be another thread's by then */
		c->asleep[i / 64] &= ~(1ull << i % 64);
		say(c, RG_OPEN);
	}
}

/* Slots that nobody waits for, whose reply has come: only then the server is done with their room. */
static void reap(struct rg_chan *c)
{
	struct rg_rep r;
	for (u32 i = 0; i < c->head.slots; i++) {
		struct rg_slot *s = &c->slot[i];
		if (s->state != RG_S_LEFT) continue;
		rg_get(c->m, &r, line_at(c, rep_line(c, i)));
		if ((r.pos == s->pos && rg_valid(&r, c->head.nonce, rep_line(c, i))) || BFS_MUT(RG_MUT_SLOT_EARLY)) free_slot(c, i);
	}
}

static int room(struct rg_chan *c, const struct rg_call *k, u32 slot)
{
	struct rg_slot *s = &c->slot[slot];
	u32 small = small_len(c->head.slots), cap = k->reply_cap + RG_TEXT;
	s->off = s->rep_off = slot * RG_SMALL;
	s->len = k->len, s->rep_cap = cap;
	if (k->len > RG_SMALL && (s->off = take_run(c->req_map, c->head.req_bytes, k->len)) == ~0u) return -EAGAIN;
	if (k->len > RG_SMALL) s->off += small;
	if (cap > RG_SMALL && (s->rep_off = take_run(c->rep_map, c->head.rep_bytes, cap)) == ~0u) {
		put_run(c, c->req_map, s->off, s->len);
		return -EAGAIN;
	}
	if (cap > RG_SMALL) s->rep_off += small;
	return 0;
}

/* ---- asking --------------------------------------------------------------------------------------- */
int rg_submit(struct rg_chan *c, struct rg_call *k)
{
	struct bfs_mem *m = c->m;
	u32 most = c->head.req_bytes > RG_SMALL ? c->head.req_bytes : RG_SMALL, rep_most = c->head.rep_bytes > RG_SMALL ? c->head.rep_bytes : RG_SMALL;
	if (k->len > most || k->reply_cap > rep_most - RG_TEXT)
		return rg_error(-EMSGSIZE, "a request of %u bytes, a reply of %u: this ring takes %u and %u; ask in parts", k->len, k->reply_cap, most, rep_most - RG_TEXT);
	rg_lock(m, &c->lock);
	if (!c->nfree) reap(c);
	if (!c->nfree) {
		rg_unlock(m, &c->lock);
		return -EAGAIN;
	}
	u32 i = c->free[--c->nfree];
	struct rg_slot *s = &c->slot[i];
	int rc = room(c, k, i);
	if (rc) {
		c->free[c->nfree++] = (u16)i;
		reap(c); /* more room, perhaps: the caller comes again */
		rg_unlock(m, &c->lock);
		return rc;
	}
	if (!k->number) k->number = c->number++;
	s->state = RG_S_BUSY, s->number = k->number;
	u8 *pay = m->base + c->at.req_pay + s->off;
	bool more = k->len > RG_SMALL; /* a long copy holds up nobody */
	u64 sum = 0;
	if (more) rg_unlock(m, &c->lock);
	if (k->len && !(rc = m->ops->copy_in(m, pay, k->payload, k->len))) sum = rg_sum(k->payload, k->len, c->head.nonce ^ k->number);
	if (more) rg_lock(m, &c->lock);
	if (rc) {
		free_slot(c, i);
		rg_unlock(m, &c->lock);
		return rg_error(rc, "the request's payload can't be copied into the ring");
	}
	if (k->len && !m->coherent) { /* in the pool before a line says that it is */
		if (!BFS_MUT(RG_MUT_REQ_PAY_NO_FENCE)) mm_fence(m);
		if (!BFS_MUT(RG_MUT_REQ_PAY_NO_FLUSH)) mm_flush(m, pay, k->len);
		if (!BFS_MUT(RG_MUT_REQ_PAY_NO_FENCE)) mm_fence(m);
	}
	s->pos = c->next++;
	struct rg_req r = {.pos = s->pos, .op = k->op, .flags = k->flags, .slot = i, .number = k->number, .off = s->off, .len = k->len,
		.rep_off = s->rep_off, .rep_cap = s->rep_cap, .arg = k->arg, .psum = sum};
	u64 at = req_line(c, s->pos);
	rg_seal(&r, c->head.nonce, at);
	rg_put(m, line_at(c, at), &r);
	c->calls++;
	k->slot = i, k->pos = s->pos;
	rg_unlock(m, &c->lock);
	return 0;
}

/* Either the server sees the request when it looks again before it sleeps, or this sees its flag. */
void rg_kick(struct rg_chan *c)
{
	if (!c->w.bell) return;
	if (!BFS_MUT(RG_MUT_BELL_NO_FENCE)) rg_fence(c->m);
	if (!rg_peek(c->m, line_at(c, RG_L_SLEEP))) return;
	__atomic_fetch_add(&c->bells, 1, __ATOMIC_RELAXED);
	c->w.bell(c->w.ctx);
}

int rg_take(struct rg_chan *c, struct rg_call *k)
{
	struct bfs_mem *m = c->m;
	struct rg_slot *s = &c->slot[k->slot];
	struct rg_rep r;
	u64 at = rep_line(c, k->slot);
	if (BFS_MUT(RG_MUT_REP_PEEK_STALE)) {
		memcpy(&r, line_at(c, at), sizeof r);
	} else if (m->coherent) {
		if (rg_peek(m, line_at(c, at)) != k->pos) return 0;
		rg_get(m, &r, line_at(c, at));
	} else {
		rg_get(m, &r, line_at(c, at));
	}
	/* another position: the reply before.  A wrong sum: torn, or not this ring's */
	if (r.pos != k->pos && !BFS_MUT(RG_MUT_REP_NO_POS)) return 0;
	if (!rg_valid(&r, c->head.nonce, at) && !BFS_MUT(RG_MUT_REP_NO_CSUM)) return 0;
	u64 all = (u64)r.len + r.text_len;
	int rc = 1;
	if (all > s->rep_cap) {
		rc = rg_error(-EBADMSG, "the daemon's reply has %llu bytes in room for %u", (unsigned long long)all, s->rep_cap);
	} else if (all) {
		u8 *pay = m->base + c->at.rep_pay + s->rep_off, text[RG_TEXT];
		u32 n = r.len < k->reply_cap ? r.len : k->reply_cap, t = r.text_len < RG_TEXT ? r.text_len : RG_TEXT - 1;
		if (!m->coherent && !BFS_MUT(RG_MUT_REP_PAY_NO_INVAL)) {
			mm_inval(m, pay, all);
			mm_fence(m);
		}
		if ((n && m->ops->copy_out(m, k->reply, pay, n)) || (t && m->ops->copy_out(m, text, pay + r.len, t))) {
			t = 0;
			rc = rg_error(-EBADMSG, "the daemon's reply can't be read");
		} else if (r.len > n) {
			rc = rg_error(-EBADMSG, "the daemon's reply has %u bytes, and there was room for %u", r.len, n);
		} else {
			/* the sum of both, as two: they are in two places now */
			u64 sum = (n ? rg_sum(k->reply, n, c->head.nonce ^ r.pos) : 0) ^ (t ? rg_sum(text, t, ~c->head.nonce ^ r.pos) : 0);
			if (sum != r.psum && !BFS_MUT(RG_MUT_REP_NO_PSUM)) {
				if (!m->coherent) { /* it may be on its way */
					__atomic_fetch_add(&c->late, 1, __ATOMIC_RELAXED);
					return 0;
				}
				rc = rg_error(-EBADMSG, "the checksum of the daemon's reply is wrong");
			}
		}
		memcpy(k->text, text, t);
		k->text[t] = 0;
	} else {
		k->text[0] = 0;
	}
	k->status = r.status, k->result = r.result, k->reply_len = rc == 1 ? r.len : 0;
	rg_lock(m, &c->lock);
	free_slot(c, k->slot);
	rg_unlock(m, &c->lock);
	return rc;
}

void rg_leave(struct rg_chan *c, struct rg_call *k)
{
	rg_lock(c->m, &c->lock);
	c->slot[k->slot].state = RG_S_LEFT;
	rg_unlock(c->m, &c->lock);
}

bool rg_find(struct rg_chan *c, struct rg_call *k)
{
	bool found = false;
	rg_lock(c->m, &c->lock);
	for (u32 i = 0; i < c->head.slots && !found; i++) {
		struct rg_slot *s = &c->slot[i];
		if (s->state != RG_S_LEFT || s->number != k->number) continue;
		s->state = RG_S_BUSY;
		k->slot = i, k->pos = s->pos;
		found = true;
	}
	rg_unlock(c->m, &c->lock);
	return found;
}

/* ---- waiting ------------------------------------------------------------------------------------------ */
static void nap(struct rg_chan *c, u32 slot, bool on)
{
	rg_lock(c->m, &c->lock);
	if (on) c->asleep[slot / 64] |= 1ull << slot % 64, c->sleeps++;
	else c->asleep[slot / 64] &= ~(1ull << slot % 64);
	say(c, RG_OPEN);
	rg_unlock(c->m, &c->lock);
}

bool rg_gone(struct rg_chan *c)
{
	struct rg_mark k;
	if (c->w.gone && c->w.gone(c->w.ctx)) return true;
	rg_get(c->m, &k, line_at(c, RG_L_SERVER));
	return k.state == RG_CLOSED && rg_valid(&k, c->head.nonce, RG_L_SERVER);
}

/* Adaptive: what was answered while polling lets the next one poll longer, a sleep shortens it. */
static void learn(struct rg_chan *c, u64 spin, bool answered)
{
	u64 to = answered ? spin * 2 : spin / 2;
	if (to > c->spin_most_ns) to = c->spin_most_ns;
	if (to < SPIN_LEAST_NS) to = SPIN_LEAST_NS;
	if (to != spin) __atomic_store_n(&c->spin_ns, to, __ATOMIC_RELAXED);
}

int rg_wait(struct rg_chan *c, struct rg_call *k, u64 deadline)
{
	struct bfs_mem *m = c->m;
	const void *line = line_at(c, rep_line(c, k->slot));
	u64 spin = c->spin_most_ns ? __atomic_load_n(&c->spin_ns, __ATOMIC_RELAXED) : 0, start = 0, pause = PAUSE_NS;
	int rc;
	for (u32 looks = 0;; looks++) {
		if ((rc = rg_take(c, k))) {
			if (start) learn(c, spin, true); /* not for what came at the first looks */
			return rc;
		}
		if (!spin) break;
		if (looks % LOOKS == LOOKS - 1) {
			u64 now = m->ops->mono_ns(m);
			if (!start) start = now;
			if (now - start >= spin || (deadline && now >= deadline)) break;
		}
		rg_relax();
	}
	if (spin) learn(c, spin, false);
	for (;;) {
		u64 now = m->ops->mono_ns(m), left = deadline ? deadline > now ? deadline - now : 0 : ~0ull;
		bool woken = true;
		/* it may have answered just before: a last look comes behind */
		if (rg_gone(c)) return (rc = rg_take(c, k)) ? rc : -ENOTCONN;
		if (!left) return 0;
		if (c->w.sleep) {
			u32 seen = (u32)rg_peek(m, line);
			nap(c, k->slot, true);
			if (!BFS_MUT(RG_MUT_CLIENT_NAP_NO_FENCE)) rg_fence(m);
			rc = BFS_MUT(RG_MUT_CLIENT_NAP_NO_LOOK) ? 0 : rg_take(c, k);
			if (!rc) woken = c->w.sleep(c->w.ctx, k->slot, seen, left < NAP_MOST_NS ? left : NAP_MOST_NS);
			if (rc) return rc;
			nap(c, k->slot, false);
		} else {
			m->ops->pause(m, left < pause ? left : pause);
			if (pause < PAUSE_MOST_NS) pause *= 2;
		}
		if ((rc = rg_take(c, k))) {
			if (!woken) __atomic_fetch_add(&c->missed, 1, __ATOMIC_RELAXED);
			return rc;
		}
	}
}
