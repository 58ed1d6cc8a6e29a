#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "mem_sim.h"

#define LINE(x) ((size_t)(x) * BFS_LINE)
#define ALL (~0ull)

/* ---- reporting ---------------------------------------------------------------- */
static const char *const verb_name[] = {"store", "inval", "flush", "fence", "dirty", "copy_in", "copy_out", "zero", "pause", "lock", "--"};

static void show(const struct sim_event *e, FILE *f)
{
	fprintf(f, "  %8llu  h%d  %-8s", (unsigned long long)e->step, e->host, e->verb == SV_NOTE && e->note ? e->note : verb_name[e->verb]);
	if (e->verb == SV_NOTE) fprintf(f, " %u %u", e->a, e->b);
	else if (e->verb <= SV_ZERO && e->verb != SV_FENCE) fprintf(f, " line %u +%u (page at 0x%x)", e->a, e->b, e->a / 64 * 4096);
	if (e->verb == SV_STORE && e->b == 1) fprintf(f, " %llx %llx %llx", (unsigned long long)e->w0, (unsigned long long)e->w1, (unsigned long long)e->w2);
	fputc('\n', f);
}
static void event(struct sim *s, int host, int verb, const char *note, u32 a, u32 b)
{
	struct sim_event *e = &s->ev[s->nev++ & (SIM_TRACE - 1)];
	*e = (struct sim_event){s->step, 0, 0, 0, a, b, (u16)verb, (int16_t)host, note};
	if (s->trace) show(e, stderr);
}
void sim_note(struct sim *s, int host, const char *note, u32 a, u32 b) { event(s, host, SV_NOTE, note, a, b); }
void sim_dump(struct sim *s, FILE *f, u32 last)
{
	u64 n = s->nev < SIM_TRACE ? s->nev : SIM_TRACE;
	if (last < n) n = last;
	for (u64 i = s->nev - n; i < s->nev; i++) show(&s->ev[i & (SIM_TRACE - 1)], f);
}
void sim_fail(struct sim *s, const char *fmt, ...)
{
	va_list ap;
	if (s->failed) return; /* the first one is the one to look at */
	s->failed = true;
	va_start(ap, fmt);
	vsnprintf(s->what, sizeof s->what, fmt, ap);
	va_end(ap);
	sim_note(s, -1, "VIOLATION", 0, 0);
}

/* ---- lines ---------------------------------------------------------------------- */
static bool span(struct sim_host *h, const void *p, size_t len, u32 *first, u32 *n)
{
	size_t o = (size_t)((const u8 *)p - h->cache);
	if ((const u8 *)p < h->cache || o > h->s->size || len > h->s->size - o) {
		sim_fail(h->s, "h%d: address outside of the pool", h->id);
		return false;
	}
	*first = (u32)(o / BFS_LINE);
	*n = len ? (u32)((o + len - 1) / BFS_LINE) - *first + 1 : 0;
	return *n != 0;
}
static void touch(struct sim_host *h, u32 line) { h->touched[line / 64] = 1; }

/* Rule 3.1: no two hosts ever write the same line.  A line that one host still has
 * in its cache or queue, written, is not another one's to write. */
static void own(struct sim_host *h, u32 line)
{
	struct sim *s = h->s;
	if (s->busy[line] == h->id + 1) return;
	if (s->busy[line] && !(s->shared_line && s->shared_line(s, line)))
		sim_fail(s, "h%d writes line %u (page at 0x%x) while h%d's stores to it are still on their way", h->id, line, line / 64 * 4096, s->busy[line] - 1);
	s->busy[line] = (u8)(h->id + 1);
}
static void disown(struct sim_host *h, u32 line)
{
	if (!h->flag[line] && h->s->busy[line] == h->id + 1) h->s->busy[line] = 0;
}
static void ann_drop(struct sim_host *h, u32 line)
{
	u32 last = h->ann[--h->nann];
	h->ann[h->apos[line]] = last;
	h->apos[last] = h->apos[line];
	h->flag[line] &= (u8)~SF_ANN;
	disown(h, line);
}
static void changed(struct sim *s, u32 line)
{
	s->touched[line / 64] = 1;
	s->hot[s->nhot++ % SIM_HOT] = line;
}
static bool line_dirty(struct sim_host *h, u32 line) { return memcmp(h->cache + LINE(line), h->clean + LINE(line), BFS_LINE) != 0; }

static void fetch(struct sim_host *h, u32 line)
{
	if (h->flag[line]) return; /* own stores first */
	if (line_dirty(h, line)) {
		sim_fail(h->s, "h%d: line %u (page at 0x%x) was stored without dirty()", h->id, line, line / 64 * 4096);
		return;
	}
	touch(h, line);
	memcpy(h->cache + LINE(line), h->s->pool + LINE(line), BFS_LINE);
	memcpy(h->clean + LINE(line), h->s->pool + LINE(line), BFS_LINE);
}
static void fetch_range(struct sim_host *h, u32 line, u32 n)
{
	for (u32 i = 0; i < n; i++) fetch(h, line + i);
}

/* The line goes out as a whole, or with part of its new words; a write-back
 * carries its other words as this host knew them. */
static void write_back(struct sim_host *h, u32 line, bool torn)
{
	u64 *c = (u64 *)(h->cache + LINE(line)), *k = (u64 *)(h->clean + LINE(line));
	u64 pick = torn ? rnd(&h->s->rng) : ALL;
	for (int i = 0; i < 8; i++)
		if (pick >> i & 1) k[i] = c[i];
	touch(h, line);
	memcpy(h->s->pool + LINE(line), k, BFS_LINE);
	changed(h->s, line);
	h->s->moved++;
	if (torn) h->s->torn++;
}

static const u64 word_mask[8] = {0xffull, 0xff00ull, 0xff0000ull, 0xff000000ull, 0xff00000000ull, 0xff0000000000ull, 0xff000000000000ull, 0xff00000000000000ull};
static void put(u8 *dst, const u8 *src, u64 mask)
{
	if (mask == ALL) {
		memcpy(dst, src, BFS_LINE);
		return;
	}
	for (int w = 0; w < 8; w++) {
		if (!(mask & word_mask[w])) continue;
		if ((mask & word_mask[w]) == word_mask[w]) memcpy(dst + 8 * w, src + 8 * w, 8);
		else
			for (int i = 8 * w; i < 8 * w + 8; i++)
				if (mask >> i & 1) dst[i] = src[i];
	}
}
static struct sim_wc *queue(struct sim_host *h, u32 line)
{
	own(h, line);
	touch(h, line);
	if (h->flag[line] & SF_Q) return &h->q[h->qpos[line]];
	if (h->nq == h->qcap) {
		h->qcap = h->qcap ? 2 * h->qcap : 1024;
		h->q = realloc(h->q, h->qcap * sizeof *h->q);
	}
	h->flag[line] |= SF_Q;
	h->qpos[line] = h->nq;
	struct sim_wc *e = &h->q[h->nq++];
	e->line = line;
	e->mask = 0;
	return e;
}
static void drain(struct sim_host *h, u32 at, bool torn)
{
	struct sim_wc *e = &h->q[at];
	u32 line = e->line;
	u64 m = e->mask;
	if (torn) {
		u64 pick = rnd(&h->s->rng);
		for (int w = 0; w < 8; w++)
			if (!(pick >> w & 1)) m &= ~word_mask[w];
		h->s->torn++;
	}
	if (m) {
		put(h->s->pool + LINE(line), e->data, m);
		changed(h->s, line);
	}
	e->mask &= ~m;
	if (e->mask) return;
	h->flag[line] &= (u8)~SF_Q;
	disown(h, line);
	*e = h->q[--h->nq];
	if (at < h->nq) h->qpos[e->line] = at;
}
/* CLWB, CLFLUSHOPT: what the line holds now is in the pool by the next fence */
static void flush_line(struct sim_host *h, u32 line, bool stays)
{
	/* an announced line counts as stored: a store of what a stale copy holds makes a dirty line too */
	bool ann = h->flag[line] & SF_ANN;
	if (!ann && line_dirty(h, line)) sim_fail(h->s, "h%d: line %u (page at 0x%x) was stored without dirty()", h->id, line, line / 64 * 4096);
	if (ann) {
		struct sim_wc *e = queue(h, line);
		memcpy(e->data, h->cache + LINE(line), BFS_LINE);
		memcpy(h->clean + LINE(line), e->data, BFS_LINE);
		e->mask = ALL;
		if (!stays) ann_drop(h, line);
	}
}

/* ---- what moves by itself ---------------------------------------------------------- */
static void happen(struct sim *s)
{
	struct sim_host *h = &s->h[rnd_n(&s->rng, (u32)s->nhosts)];
	u64 r = rnd(&s->rng);
	int n = 1 + (int)(r >> 8 & 3);
	if (r >> 11 & 1) n *= 16;
	switch (r & 3) {
	case 0: /* write-combining buffers and write-backs on their way */
		for (; n && h->nq; n--) drain(h, rnd_n(&s->rng, h->nq), rnd_p(&s->rng, s->cfg.p_torn)), s->moved++;
		break;
	case 1: /* evictions of dirty lines */
		for (; n && h->nann; n--) {
			u32 line = h->ann[rnd_n(&s->rng, h->nann)];
			bool torn = rnd_p(&s->rng, s->cfg.p_torn);
			if (h->flag[line] & SF_Q) continue;
			write_back(h, line, torn);
			if (!h->process && !torn) ann_drop(h, line); /* nobody stores there any more */
		}
		break;
	default: /* prefetches, evictions of clean lines */
		if (!s->nhot || s->cfg.no_prefetch) break;
		for (; n; n--) {
			u32 k = s->nhot < SIM_HOT ? s->nhot : SIM_HOT, line = s->hot[rnd_n(&s->rng, k)];
			if (n >= 16) { /* a stream: half a page around it */
				u32 a = (line & ~31u);
				fetch_range(h, a, a + 32 <= s->nlines ? 32 : s->nlines - a);
				n -= 15;
			} else fetch(h, line);
			s->fetched++;
		}
	}
}
static void verb(struct sim_host *h, int v, u32 a, u32 b, bool may_switch)
{
	struct sim *s = h->s;
	u64 r = rnd(&s->rng);
	s->step++;
	s->now_ns += 20 + (r & 127);
	event(s, h->id, v, NULL, a, b);
	if (s->quiet_mem) return;
	if (s->failed) { /* this run is over */
		if (s->point) s->point(s, h->id, true);
		return;
	}
	if ((u32)(r >> 16 & 0xffff) * 1000 >> 16 < s->cfg.p_event) happen(s);
	if (may_switch && ((u32)(r >> 32 & 0xffff) * 1000 >> 16 < s->cfg.p_switch || s->step >= s->deadline) && s->point) s->point(s, h->id, false);
}

/* ---- the verbs ------------------------------------------------------------------------ */
static void nt_store(struct sim_host *h, u8 *dst, const u8 *src, size_t len)
{
	while (len) {
		u32 line = (u32)((dst - h->cache) / BFS_LINE), o = (u32)((dst - h->cache) % BFS_LINE);
		u32 n = BFS_LINE - o < len ? BFS_LINE - o : (u32)len;
		if (h->flag[line] & SF_ANN) flush_line(h, line, true); /* older plain stores go out with it */
		struct sim_wc *e = queue(h, line);
		memmove(e->data + o, src, n);
		e->mask |= (n == BFS_LINE ? ALL : (1ull << n) - 1) << o;
		memcpy(dst, e->data + o, n);
		memcpy(h->clean + LINE(line) + o, e->data + o, n);
		dst += n, src += n, len -= n;
	}
}
static void s_store(struct bfs_mem *m, void *dst, const void *src, size_t len)
{
	struct sim_host *h = m->priv;
	u32 a, n;
	if (!span(h, dst, len, &a, &n)) return;
	verb(h, SV_STORE, a, n, true);
	if (len == BFS_LINE) { /* for the trace: registers are lines */
		struct sim_event *e = &h->s->ev[(h->s->nev - 1) & (SIM_TRACE - 1)];
		const u64 *w = src;
		if (e->verb == SV_STORE && e->host == h->id) e->w0 = w[0], e->w1 = w[1], e->w2 = w[2];
		if (h->s->trace) fprintf(stderr, "                     = %llx %llx %llx\n", (unsigned long long)w[0], (unsigned long long)w[1], (unsigned long long)w[2]);
	}
	nt_store(h, dst, src, len);
}
static void s_dirty(struct bfs_mem *m, void *p, size_t len)
{
	struct sim_host *h = m->priv;
	u32 a, n;
	if (!span(h, p, len, &a, &n)) return;
	verb(h, SV_DIRTY, a, n, false);
	for (u32 i = a; i < a + n; i++) {
		if (h->flag[i] & SF_ANN) continue;
		own(h, i);
		touch(h, i);
		h->flag[i] |= SF_ANN;
		h->apos[i] = h->nann;
		h->ann[h->nann++] = i;
	}
}
static void s_flush(struct bfs_mem *m, const void *p, size_t len)
{
	struct sim_host *h = m->priv;
	u32 a, n;
	if (!span(h, p, len, &a, &n)) return;
	verb(h, SV_FLUSH, a, n, true);
	for (u32 i = a; i < a + n; i++) flush_line(h, i, false);
}
static void s_inval(struct bfs_mem *m, const void *p, size_t len)
{
	struct sim_host *h = m->priv;
	struct sim *s = h->s;
	u32 a, n;
	if (!span(h, p, len, &a, &n)) return;
	verb(h, SV_INVAL, a, n, true);
	bool now = rnd_p(&s->rng, s->cfg.p_early), mixed = !now && rnd_p(&s->rng, 200);
	for (u32 i = a; i < a + n; i++) {
		flush_line(h, i, true); /* another thread may be storing there */
		/* between the inval and the fence the line may come in at any time */
		if (now || (mixed && (rnd(&s->rng) & 1))) fetch(h, i);
	}
	if (h->ninv == h->invcap) {
		h->invcap = h->invcap ? 2 * h->invcap : 64;
		h->inv = realloc(h->inv, h->invcap * sizeof *h->inv);
	}
	h->inv[h->ninv++] = (struct sim_range){a, now ? 0 : n};
	if (now) { /* lines whose own stores are still queued come in at the fence after all */
		for (u32 i = a; i < a + n; i++)
			if (h->flag[i] & SF_Q) {
				h->inv[h->ninv - 1].n = n;
				break;
			}
	}
}
static void s_fence(struct bfs_mem *m)
{
	struct sim_host *h = m->priv;
	struct sim *s = h->s;
	verb(h, SV_FENCE, h->nq, h->ninv, true);
	if (!s->cfg.weak_fence) {
		if (h->nq && !s->quiet_mem && rnd_p(&s->rng, 250)) { /* others see some of it first */
			for (u32 k = rnd_n(&s->rng, h->nq + 1); k && h->nq; k--) drain(h, rnd_n(&s->rng, h->nq), rnd_p(&s->rng, s->cfg.p_torn));
			if (s->point) s->point(s, h->id, false);
		}
		while (h->nq) drain(h, h->nq - 1, false);
	}
	for (u32 i = 0; i < h->ninv; i++) fetch_range(h, h->inv[i].line, h->inv[i].n);
	h->ninv = 0;
}

/* Copies are not atomic: others run in the middle of them. */
static size_t piece(struct sim *s, size_t left)
{
	if (left <= 256) return left;
	u64 r = rnd(&s->rng);
	size_t n = r & 7 ? left : (size_t)((r >> 8) % left) / BFS_LINE * BFS_LINE;
	return n ? n : left;
}
static int copy_in(struct bfs_mem *m, u8 *dst, const u8 *src, size_t len, int v)
{
	struct sim_host *h = m->priv;
	struct sim *s = h->s;
	u32 a, n;
	static const u8 zeros[4096];
	if (!span(h, dst, len, &a, &n)) return len ? -5 : 0;
	bool cached = rnd_p(&s->rng, s->cfg.p_cached);
	while (len) {
		size_t k = piece(s, len);
		if (!src && k > sizeof zeros) k = sizeof zeros;
		span(h, dst, k, &a, &n);
		verb(h, v, a, n, true);
		if (cached) {
			m->ops->dirty(m, dst, k);
			memcpy(dst, src ? src : zeros, k);
		} else nt_store(h, dst, src ? src : zeros, k);
		dst += k, len -= k;
		if (src) src += k;
	}
	return 0;
}
static int s_copy_in(struct bfs_mem *m, void *dst, const void *src, size_t len) { return copy_in(m, dst, src, len, SV_IN); }
static int s_zero(struct bfs_mem *m, void *dst, size_t len) { return copy_in(m, dst, NULL, len, SV_ZERO); }
static int s_copy_out(struct bfs_mem *m, void *dst, const void *src, size_t len)
{
	struct sim_host *h = m->priv;
	u32 a, n;
	if (!span(h, src, len, &a, &n)) return len ? -5 : 0;
	while (len) {
		size_t k = piece(h->s, len);
		span(h, src, k, &a, &n);
		verb(h, SV_OUT, a, n, true);
		memcpy(dst, src, k);
		dst = (u8 *)dst + k, src = (const u8 *)src + k, len -= k;
	}
	return 0;
}

/* ---- the host's surroundings -------------------------------------------------------------- */
static u64 s_now(struct bfs_mem *m)
{
	struct sim_host *h = m->priv;
	return 1700000000000000000ull + h->s->now_ns + (u64)h->skew_ns;
}
static u64 s_mono(struct bfs_mem *m)
{
	struct sim_host *h = m->priv;
	return 1000000000ull * (u64)(h->id + 1) + h->s->now_ns;
}
static u64 s_rand(struct bfs_mem *m) { return rnd(&((struct sim_host *)m->priv)->s->rng); }
static void s_pause(struct bfs_mem *m, u64 ns)
{
	struct sim_host *h = m->priv;
	verb(h, SV_PAUSE, (u32)(ns / 1000), 0, false);
	ns = ns / 20 + 1; /* a verb takes 20 times as long as a real one */
	if (h->s->sleep && !h->s->quiet_mem) h->s->sleep(h->s, h->id, ns);
	else h->s->now_ns += ns;
}
static void *heap_get(struct sim_block *head, size_t len)
{
	struct sim_block *b = calloc(1, sizeof *b + 8 + len);
	if (!b) return NULL;
	b->len = len;
	b->next = head->next, b->prev = head;
	head->next->prev = b;
	head->next = b;
	return (u8 *)b + sizeof *b + 8;
}
static void heap_put(void *p)
{
	if (!p) return;
	struct sim_block *b = (void *)((u8 *)p - sizeof *b - 8);
	b->prev->next = b->next;
	b->next->prev = b->prev;
	free(b);
}
static void heap_drop(struct sim_block *head)
{
	while (head->next != head) heap_put((u8 *)head->next + sizeof *head + 8);
}
static void *s_alloc(struct bfs_mem *m, size_t len) { return heap_get(&((struct sim_host *)m->priv)->heap, len); }
static void s_free(struct bfs_mem *m, void *p)
{
	(void)m;
	heap_put(p);
}
static void s_lock(struct bfs_mem *m, void *mutex)
{
	struct sim_host *h = m->priv;
	while (pthread_mutex_trylock(mutex)) {
		verb(h, SV_LOCK, 0, 0, false);
		if (h->s->failed && !h->s->point) return;
		if (h->s->point) h->s->point(h->s, h->id, true);
	}
}
static void s_unlock(struct bfs_mem *m, void *mutex)
{
	struct sim_host *h = m->priv;
	pthread_mutex_unlock(mutex);
	if (h->s->woken) h->s->woken(h->s);
}
const struct bfs_mem_ops bfs_ops_sim = {
	.name = "simulated", .store = s_store, .inval = s_inval, .flush = s_flush, .fence = s_fence, .dirty = s_dirty,
	.copy_in = s_copy_in, .copy_out = s_copy_out, .zero = s_zero, .now_ns = s_now, .mono_ns = s_mono, .rand64 = s_rand,
	.pause = s_pause, .alloc = s_alloc, .free = s_free, .lock = s_lock, .unlock = s_unlock,
};

/* ---- what befalls hosts ------------------------------------------------------------------- */
void sim_kill_process(struct sim *s, int host)
{
	struct sim_host *h = &s->h[host];
	h->process = false;
	h->ninv = 0;
	heap_drop(&h->heap);
}
void sim_settle(struct sim *s, int host)
{
	struct sim_host *h = &s->h[host];
	while (h->nq) drain(h, h->nq - 1, false);
	for (u32 i = h->nann; i-- > 0;) {
		u32 line = h->ann[i];
		write_back(h, line, false);
		if (!h->process) ann_drop(h, line);
	}
}
void sim_crash(struct sim *s, int host)
{
	struct sim_host *h = &s->h[host];
	sim_kill_process(s, host);
	u32 keep = rnd_n(&s->rng, 4); /* 0: nothing more went out */
	for (u32 i = h->nq; keep && i-- > 0;)
		if (rnd_n(&s->rng, 4) < keep) drain(h, i, rnd_p(&s->rng, s->cfg.p_torn));
	for (u32 i = 0; keep && i < h->nann; i++)
		if (rnd_n(&s->rng, 4) < keep && !(h->flag[h->ann[i]] & SF_Q)) write_back(h, h->ann[i], rnd_p(&s->rng, s->cfg.p_torn));
	while (h->nq) {
		u32 line = h->q[--h->nq].line;
		h->flag[line] &= (u8)~SF_Q;
		disown(h, line);
	}
	while (h->nann) ann_drop(h, h->ann[h->nann - 1]);
	for (u32 p = 0; p < s->size / 4096; p++) {
		if (!h->touched[p] && !s->touched[p]) continue;
		memcpy(h->cache + 4096ul * p, s->pool + 4096ul * p, 4096);
		memcpy(h->clean + 4096ul * p, s->pool + 4096ul * p, 4096);
		h->touched[p] = 1;
	}
}
void sim_corrupt(struct sim *s, u64 off, u64 len)
{
	for (u64 i = off; i < off + len && i < s->size; i++) {
		s->pool[i] ^= (u8)(1 + rnd_n(&s->rng, 255));
		changed(s, (u32)(i / BFS_LINE));
	}
}

/* ---- a look from outside --------------------------------------------------------------------- */
static void g_store(struct bfs_mem *m, void *dst, const void *src, size_t len)
{
	struct sim *s = m->priv;
	memmove(dst, src, len);
	for (u32 p = (u32)((u8 *)dst - s->pool) / 4096; p <= ((u8 *)dst - s->pool + len) / 4096 && p < SIM_PAGES_MAX; p++) s->touched[p] = 1;
}
static void g_none(struct bfs_mem *m, const void *p, size_t len) { (void)m, (void)p, (void)len; }
static void g_dirty(struct bfs_mem *m, void *p, size_t len)
{
	struct sim *s = m->priv;
	if (len) memset(&s->touched[((u8 *)p - s->pool) / 4096], 1, (((u8 *)p - s->pool) % 4096 + len + 4095) / 4096);
}
static void g_fence(struct bfs_mem *m) { (void)m; }
static int g_in(struct bfs_mem *m, void *d, const void *src, size_t n) { return g_store(m, d, src, n), 0; }
static int g_out(struct bfs_mem *m, void *d, const void *src, size_t n) { return (void)m, memcpy(d, src, n), 0; }
static int g_zero(struct bfs_mem *m, void *d, size_t n) { return g_dirty(m, d, n), memset(d, 0, n), 0; }
static u64 g_now(struct bfs_mem *m) { return 1700000000000000000ull + ((struct sim *)m->priv)->now_ns; }
static u64 g_rand(struct bfs_mem *m) { return rnd(&((struct sim *)m->priv)->rng); }
static void g_pause(struct bfs_mem *m, u64 ns) { ((struct sim *)m->priv)->now_ns += ns; }
static void *g_alloc(struct bfs_mem *m, size_t len) { return heap_get(&((struct sim *)m->priv)->god_heap, len); }
static void g_lock(struct bfs_mem *m, void *x) { (void)m, pthread_mutex_lock(x); }
static void g_unlock(struct bfs_mem *m, void *x) { (void)m, pthread_mutex_unlock(x); }
static const struct bfs_mem_ops ops_god = {
	.name = "outside", .store = g_store, .inval = g_none, .flush = g_none, .fence = g_fence, .dirty = g_dirty, .copy_in = g_in,
	.copy_out = g_out, .zero = g_zero, .now_ns = g_now, .mono_ns = g_now, .rand64 = g_rand, .pause = g_pause, .alloc = g_alloc,
	.free = s_free, .lock = g_lock, .unlock = g_unlock,
};
struct bfs_mem *sim_god(struct sim *s) { return &s->god; }

/* ---- set-up --------------------------------------------------------------------------------- */
static void *pages(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}
int sim_init(struct sim *s, int nhosts, u64 size)
{
	memset(s, 0, sizeof *s);
	if (size > SIM_POOL_MAX || size % 4096 || nhosts > SIM_HOSTS) return -1;
	s->size = size;
	s->nlines = (u32)(size / BFS_LINE);
	s->nhosts = nhosts;
	s->pool = pages(size);
	s->image = pages(size);
	s->busy = pages(s->nlines);
	if (!s->pool || !s->image || !s->busy) return -1;
	s->god = (struct bfs_mem){.ops = &ops_god, .base = s->pool, .size = size, .priv = s};
	s->god_heap.next = s->god_heap.prev = &s->god_heap;
	for (int i = 0; i < nhosts; i++) {
		struct sim_host *h = &s->h[i];
		h->s = s;
		h->id = i;
		h->cache = pages(size);
		h->clean = pages(size);
		h->flag = pages(s->nlines);
		h->apos = pages(4ul * s->nlines);
		h->qpos = pages(4ul * s->nlines);
		h->ann = pages(4ul * s->nlines);
		if (!h->cache || !h->clean || !h->flag || !h->apos || !h->qpos || !h->ann) return -1;
		h->heap.next = h->heap.prev = &h->heap;
		h->m = (struct bfs_mem){.ops = &bfs_ops_sim, .base = h->cache, .size = size, .priv = h};
	}
	return 0;
}
void sim_image(struct sim *s)
{
	memcpy(s->image, s->pool, s->size);
	memset(s->touched, 0, sizeof s->touched);
	for (int i = 0; i < s->nhosts; i++) {
		memcpy(s->h[i].cache, s->image, s->size);
		memcpy(s->h[i].clean, s->image, s->size);
		memset(s->h[i].touched, 0, sizeof s->h[i].touched);
	}
}
static void restore(u8 *to, const u8 *from, u8 *touched, u64 size, u8 *also)
{
	for (u32 p = 0; p < size / 4096; p++) {
		if (!touched[p]) continue;
		memcpy(to + 4096ul * p, from + 4096ul * p, 4096);
		if (also) memcpy(also + 4096ul * p, from + 4096ul * p, 4096);
		touched[p] = 0;
	}
}
void sim_reset(struct sim *s, u64 seed, const struct sim_cfg *cfg)
{
	s->rng.s = seed * 0x9e3779b97f4a7c15ull + 0x123456789abcdefull;
	s->cfg = *cfg;
	s->step = s->now_ns = s->nev = 0;
	s->nhot = 0;
	s->deadline = ~0ull;
	s->failed = false;
	s->quiet_mem = false;
	restore(s->pool, s->image, s->touched, s->size, NULL);
	heap_drop(&s->god_heap);
	for (int i = 0; i < s->nhosts; i++) {
		struct sim_host *h = &s->h[i];
		heap_drop(&h->heap);
		while (h->nq) h->flag[h->q[--h->nq].line] = 0;
		while (h->nann) h->flag[h->ann[--h->nann]] = 0;
		h->ninv = 0;
		restore(h->cache, s->image, h->touched, s->size, h->clean);
		h->process = true;
		h->skew_ns = (i64)rnd_n(&s->rng, 3000000) - 1500000;
	}
	memset(s->busy, 0, s->nlines);
}
void sim_destroy(struct sim *s)
{
	heap_drop(&s->god_heap);
	munmap(s->pool, s->size);
	munmap(s->image, s->size);
	munmap(s->busy, s->nlines);
	for (int i = 0; i < s->nhosts; i++) {
		struct sim_host *h = &s->h[i];
		heap_drop(&h->heap);
		munmap(h->cache, s->size);
		munmap(h->clean, s->size);
		munmap(h->flag, s->nlines);
		munmap(h->apos, 4ul * s->nlines);
		munmap(h->qpos, 4ul * s->nlines);
		munmap(h->ann, 4ul * s->nlines);
		free(h->q);
		free(h->inv);
	}
}
