/* Hosts, their work, what befalls them, and the oracle.
 *
 * The oracle.  Every content that is ever written has a number, and every 64-byte line
 * of it says which number and which line it is, so a read proves by itself what it got.
 * A place (name or key) is a register.  Each change of it is an event with the interval
 * of the call and what the caller was told.  A value is right where it is read, if some
 * event that didn't fail produced it and no acknowledged event that began after that
 * one's end is known to the reader: acknowledged before the reader's own last sign of
 * being up to date (sync).  At the end, to a host that joined after everything, sync is
 * infinite: what was acknowledged and not replaced must be there.
 *
 *   EV_DURABLE   told "safe" (fsync, or close whose seal is deferred), visible some time
 *   EV_UNKNOWN   told "ask again", or died in the call
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "world.h"

#define NEVER (~0ull)
#define KLEN 16

static struct world *W;
struct shape {
	struct bfs_mkfs_params p;
	u32 big; /* granules of a large file */
	bool made;
	int hosts;
	struct sim s;
	u64 dir[W_DIRS], ns;
};
/* Small pools: a run must cost a millisecond.  One has few pages, one little data. */
static struct shape shapes[] = {
	{.p = {.size_bytes = 2200 << 10, .inodes = 64, .rows = 8, .ring_entries = 16, .region_granules = 16, .chunk_bytes = 4096, .meta_pages = 420, .align_bytes = 4096}, .big = 6},
	{.p = {.size_bytes = 1850 << 10, .inodes = 64, .rows = 8, .ring_entries = 64, .region_granules = 16, .chunk_bytes = 4096, .meta_pages = 380, .align_bytes = 4096}, .big = 3},
	{.p = {.size_bytes = 2800 << 10, .inodes = 128, .rows = 16, .ring_entries = 32, .region_granules = 64, .chunk_bytes = 8192, .meta_pages = 520, .align_bytes = 4096}, .big = 13},
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))
static struct shape made[SHAPES][W_HOSTS + 1][2]; /* [1]: more slots, for the splitter */

static struct sim *S(void) { return W->s; }
static u32 draw(u32 n) { return rnd_n(&W->s->rng, n); }
static bool chance(u32 permille) { return rnd_p(&W->s->rng, permille); }

/* ---- contents ----------------------------------------------------------------------- */
static void line_of(u32 w, u32 line, u64 *out)
{
	u64 x = ((u64)w << 32 | line) * 0x9e3779b97f4a7c15ull;
	out[0] = (u64)w << 32 | line;
	for (int i = 1; i < 8; i++) {
		x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
		out[i] = x;
	}
}
static void fill(u32 w, u8 *buf, u32 off, u32 len) /* off: multiple of 64 */
{
	for (u32 o = 0; o < len; o += 64) {
		u64 l[8];
		line_of(w, (off + o) / 64, l);
		memcpy(buf + o, l, len - o < 64 ? len - o : 64);
	}
}
static u32 line_write(const u8 *buf, u32 line, u32 n) /* which content this line is of, 0 = none */
{
	u64 l[8], h;
	if (n < 8) return ~0u; /* too short to say */
	memcpy(&h, buf, 8);
	u32 w = (u32)(h >> 32);
	if ((u32)h != line || !w || w >= W->nwr) return 0;
	line_of(w, line, l);
	return memcmp(buf, l, n) ? 0 : w;
}
/* what a crash may leave of a line: each word zero, or of some content's line in that place */
static bool in_words(const u8 *buf, u32 line, u32 n)
{
	u32 ok = 0, all = n / 8;
	for (u32 i = 0; i < all; i++) ok |= (u32)!memcmp(buf + 8 * i, "\0\0\0\0\0\0\0", 8) << i;
	for (u32 w = 1; w < W->nwr && ok != (1u << all) - 1; w++) {
		u64 l[8];
		line_of(w, line, l);
		for (u32 i = 0; i < all; i++) ok |= (u32)!memcmp(buf + 8 * i, &l[i], 8) << i;
	}
	return ok == (1u << all) - 1;
}
/* the content of n bytes, 0 = not one content; mixed: each line is some content's, or what a crash left */
static u32 content(const u8 *buf, u32 n, bool *mixed)
{
	u32 w = 0;
	*mixed = true;
	bool one = true;
	for (u32 o = 0; o < n; o += 64) {
		u32 k = n - o < 64 ? n - o : 64, x = line_write(buf + o, o / 64, k);
		if (x == ~0u) {
			u64 l[8];
			if (!w) continue;
			line_of(w, o / 64, l);
			if (memcmp(l, buf + o, k)) one = false;
			continue;
		}
		if (!x) {
			if (!in_words(buf + o, o / 64, k)) *mixed = false;
			one = false;
		} else if (!w) w = x;
		else if (x != w) one = false;
	}
	return one ? w : 0;
}

/* ---- places ---------------------------------------------------------------------------- */
static int kind_of(u32 p) { return p < W_KEYS ? PL_KEY : p < W_KEYS + W_FILES ? PL_FILE : p < W_KEYS + W_FILES + W_REW ? PL_REW : PL_DIR; }
static u32 place_of(int kind, u32 i) { return kind == PL_KEY ? i : kind == PL_FILE ? W_KEYS + i : kind == PL_REW ? W_KEYS + W_FILES + i : W_KEYS + W_FILES + W_REW + i; }
static u32 some_file(void) { return place_of(PL_FILE, draw(W_DIRS) * W_NAMES + draw(W->sc.names)); }
static u64 dir_of(u32 p) { return kind_of(p) == PL_FILE ? W->dir[(p - W_KEYS) / W_NAMES] : W->dir[0]; }
static const char *name_of(u32 p) /* stays: coroutines keep it across their calls */
{
	static char name[W_PLACES][8];
	if (!name[p][0]) {
		switch (kind_of(p)) {
		case PL_KEY: snprintf(name[p], 8, "key%u", p % 100); break;
		case PL_FILE: snprintf(name[p], 8, "f%u", (p - W_KEYS) % W_NAMES); break;
		case PL_REW: snprintf(name[p], 8, "r%u", (p - W_KEYS - W_FILES) % 100); break;
		default: snprintf(name[p], 8, "m%u", (p - W_KEYS - W_FILES - W_REW) % 100);
		}
	}
	return name[p];
}
static const char *where(u32 p)
{
	static char buf[4][32];
	static u32 k;
	char *s = buf[k++ & 3];
	if (kind_of(p) == PL_FILE) snprintf(s, 32, "d%u/%s", (p - W_KEYS) / W_NAMES, name_of(p));
	else snprintf(s, 32, "%s", name_of(p));
	return s;
}
static void key_of(u32 p, u8 *key)
{
	u64 a = (p % 3 + 1) * 0x9e3779b97f4a7c15ull, b = (p + 1) * 0xbf58476d1ce4e5b9ull; /* some share their first bytes */
	memcpy(key, &a, 8);
	memcpy(key + 8, &b, 8);
}

/* ---- events ------------------------------------------------------------------------------ */
static u32 ev_new(struct hostw *h, u32 place, int type, u32 w)
{
	if (W->nev >= W_EVENTS) return 0;
	u32 i = W->nev++;
	W->ev[i] = (struct ev){(u8)place, (u8)type, EV_PENDING, (u8)h->id, (u16)w, W->head[place], S()->step, NEVER};
	W->head[place] = (u16)i;
	if (h->nflight < 32) h->flight[h->nflight++] = (u16)i;
	return i;
}
static void ev_close(struct hostw *h, u32 i, int state, u64 t1)
{
	if (!i) return;
	struct ev *e = &W->ev[i];
	e->state = (u8)state;
	e->t1 = t1;
	for (u32 k = 0; k < h->nflight; k++)
		if (h->flight[k] == i) h->flight[k] = h->flight[--h->nflight];
	if (state == EV_ACK) {
		W->acks++;
		if (e->t0 > h->sync) h->sync = e->t0;
	}
	sim_note(S(), h->id, state == EV_ACK ? "ack" : state == EV_FAIL ? "failed" : state == EV_UNKNOWN ? "unknown" : "durable", e->place, e->write);
}
static void ev_done(struct hostw *h, u32 i, int rc)
{
	ev_close(h, i, !rc ? EV_ACK : rc == -EAGAIN || rc == -EIO ? EV_UNKNOWN : EV_FAIL, S()->step);
}
static u32 wr_new(struct hostw *h, u32 place, u32 size)
{
	if (W->nwr >= W_WRITES) return 0;
	W->wr[W->nwr] = (struct wr){(u8)place, (u8)h->id, size, S()->step};
	return W->nwr++;
}
static bool yields(const struct ev *e, u32 w)
{
	if (e->state == EV_FAIL) return false;
	switch (e->type) {
	case EV_SET: return e->write == w;
	case EV_IN: return w && W->wr[w].t0 < e->t1 && (!e->write || e->write == w);
	default: return w == 0;
	}
}
/* Is another event certain to have come behind e, and known to who is up to date as of sync? */
static bool replaced(const struct ev *e, u32 place, u64 t1, u64 sync)
{
	for (u32 i = W->head[place]; i; i = W->ev[i].next) {
		const struct ev *n = &W->ev[i];
		if (n == e || n->t0 <= t1) continue;
		if (n->state == EV_ACK && n->t1 < sync) return true;
		if (n->state == EV_DURABLE && sync == NEVER) {
			/* it is there in the end, unless somebody else took the name first, or its host
			 * can't come back over damaged pages to bring it */
			bool sure = !(W->damaged && W->sc.corrupt_meta);
			for (u32 k = W->head[place]; k; k = W->ev[k].next)
				if (&W->ev[k] != n && W->ev[k].state != EV_FAIL && W->ev[k].t1 > n->t0) sure = false;
			if (sure) return true;
		}
	}
	return false;
}
static bool legal(u32 place, u32 w, u64 sync)
{
	if (!w && W->sc.evict && kind_of(place) != PL_DIR) return true; /* evicted */
	if (!w && !replaced(NULL, place, 0, sync)) return true;         /* never there */
	for (u32 i = W->head[place]; i; i = W->ev[i].next)
		if (yields(&W->ev[i], w) && !replaced(&W->ev[i], place, W->ev[i].t1, sync)) return true;
	return false;
}
static void explain(u32 place, char *out, size_t n)
{
	static const char *const st[] = {"pending", "ack", "unknown", "failed", "durable"}, *const ty[] = {"set", "clear", "in", "out"};
	size_t o = 0;
	u32 list[8], k = 0;
	for (u32 i = W->head[place]; i && k < 8; i = W->ev[i].next)
		if (W->ev[i].state != EV_FAIL) list[k++] = i;
	while (k-- && o + 60 < n) {
		const struct ev *e = &W->ev[list[k]];
		o += (size_t)snprintf(out + o, n - o, "; h%d %s %u [%llu,%lld] %s", e->host, ty[e->type], e->write, (unsigned long long)e->t0, (long long)e->t1, st[e->state]);
	}
}
static void judge(struct hostw *h, u32 place, u32 w, u64 sync, const char *how)
{
	char hist[330] = "";
	if (!w && h->marked) return; /* declared dead: it may read nothing any more */
	if (legal(place, w, sync)) return;
	explain(place, hist, sizeof hist);
	sim_fail(S(), "h%d %s %s: content %u%s%s", h->id, how, where(place), w, w ? "" : " (absent)", hist);
}

/* ---- errors that may be answered ------------------------------------------------------------- */
static bool allowed(int rc)
{
	switch (rc) {
	case 0: case -EAGAIN: case -EBUSY: case -ENOENT: case -EEXIST: case -ENOSPC: case -ESTALE: case -ENOTEMPTY: case -EROFS: case -EISDIR: case -ENOTDIR: return true;
	case -EIO: return W->damaged;
	default: return rc > 0;
	}
}
static void expect(struct hostw *h, int rc, const char *call)
{
	W->ops++;
	if (rc < 0) sim_note(S(), h->id, call, (u32)-rc, 0);
	if (!allowed(rc)) sim_fail(S(), "h%d: %s says %d (%s)", h->id, call, rc, bfs_errmsg());
}
static void look_at_snap(struct hostw *h)
{
	struct bfs_snap s = ld_newest(h->b);
	if (tag_cmp(s.term, s.txn, h->seen_term, h->seen_txn) < 0)
		sim_fail(S(), "h%d: its state went back from (%u, %llu) to (%u, %llu)", h->id, h->seen_term, (unsigned long long)h->seen_txn, s.term, (unsigned long long)s.txn);
	h->seen_term = s.term, h->seen_txn = s.txn;
}

/* ---- what a writer does ------------------------------------------------------------------------ */
static u32 some_size(void)
{
	u32 g = chance(W->sc.size_big) ? 1 + draw(shapes[W->sc.shape].big) : 1 + draw(2);
	u32 n = g * 4096 - (chance(500) ? 0 : draw(4000));
	return n < 8 ? 8 : n;
}
static void nap(struct hostw *h, u32 ns)
{
	(void)h;
	sched_sleep(&W->q, draw(ns));
}

static void do_put(struct hostw *h, u32 place)
{
	u8 key[KLEN];
	u32 n = some_size(), w = wr_new(h, place, n);
	if (!w) return;
	key_of(place, key);
	fill(w, h->buf[0], 0, n);
	u32 e = ev_new(h, place, EV_SET, w);
	sim_note(S(), h->id, "block_put", place, w);
	int rc = bfs_block_put(h->b, W->ns, key, KLEN, h->buf[0], n);
	expect(h, rc, "block_put");
	ev_done(h, e, rc);
}
static void do_del(struct hostw *h, u32 place)
{
	u8 key[KLEN];
	key_of(place, key);
	u32 e = ev_new(h, place, EV_CLEAR, 0);
	sim_note(S(), h->id, "block_delete", place, 0);
	int rc = bfs_block_delete(h->b, W->ns, key, KLEN);
	expect(h, rc, "block_delete");
	ev_done(h, e, rc);
}
static int flush_until(struct hostw *h, u64 fh, u64 ino, u32 e)
{
	int rc = -EAGAIN;
	for (int i = 0; i < 4 && (rc == -EAGAIN || rc == -EBUSY) && !h->stop; i++) {
		if (i) nap(h, (u32)W->sc.suspect_ns);
		rc = bfs_flush(h->b, fh, false);
		expect(h, rc, "flush");
	}
	if (rc == -EAGAIN || rc == -EBUSY || rc == -EIO) { /* the row says closed: it may be sealed yet */
		ev_close(h, e, EV_UNKNOWN, NEVER);
	} else if (rc == -ESTALE) { /* sealed, and gone again, or replaced */
		ev_close(h, e, EV_UNKNOWN, S()->step);
	} else if (rc) {
		ev_close(h, e, EV_FAIL, S()->step);
	} else {
		struct bfs_attr a;
		int g = bfs_getattr(h->b, ino, &a);
		if (!g && a.state == BFS_ST_SEALED) ev_close(h, e, EV_ACK, S()->step);
		else ev_close(h, e, EV_DURABLE, NEVER);
	}
	return rc;
}
static int do_unlink(struct hostw *h, u32 place);
/* [from, to) of the file is to be zeros: no content, and nothing that a former owner of its granules left. */
static void check_zeros(struct hostw *h, u64 fh, u32 from, u32 to, const char *call)
{
	ssize_t n = from < to ? bfs_read(h->b, fh, from, h->audit, to - from) : 0;
	if (n < 0) {
		expect(h, (int)n, "read of zeros");
		return;
	}
	for (ssize_t i = 0; i < n; i++)
		if (h->audit[i] && !W->damaged) sim_fail(S(), "h%d: byte %zd behind %s is %02x", h->id, from + i, call, h->audit[i]);
	if (n != to - from) sim_fail(S(), "h%d: %zd of %u bytes behind %s", h->id, n, to - from, call);
}
/* Room for the n bytes that are going to be written into a new file.  true: it is promised. */
static bool do_room(struct hostw *h, u64 fh, u32 n)
{
	u32 how = draw(5);
	sim_note(S(), h->id, "fallocate", how, n);
	int rc = how == 0 ? bfs_reserve(h->b, fh, n) : bfs_fallocate(h->b, fh, how < 3 ? FALLOC_FL_KEEP_SIZE : how == 3 ? 0 : FALLOC_FL_ZERO_RANGE, 0, n);
	expect(h, rc, "fallocate");
	if (!rc && how > 2) check_zeros(h, fh, 0, n, "fallocate");
	return !rc;
}
/* A part becomes a hole, or zeros, and is written again.  rc of a write that fails. */
static int do_hole(struct hostw *h, u64 fh, u32 n)
{
	bool punch = chance(600);
	u32 from = draw(n / 64 + 1) * 64, to = chance(300) ? n : from + (draw(n - from + 1) & ~7u); /* what a crash leaves is told word by word */
	if (chance(300)) from &= ~4095u;
	if (to <= from) return 0;
	sim_note(S(), h->id, punch ? "punch" : "zero", from, to);
	int rc = bfs_fallocate(h->b, fh, FALLOC_FL_KEEP_SIZE | (punch ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE), from, to - from);
	expect(h, rc, "punch or zero");
	if (!rc) check_zeros(h, fh, from, to, punch ? "punch" : "zero");
	for (u32 o = from; o < to;) {
		ssize_t r = bfs_write(h->b, fh, o, h->buf[0] + o, to - o);
		if (r <= 0) return r ? (int)r : -EIO;
		o += (u32)r;
	}
	i64 at = bfs_seek(h->b, fh, 0, SEEK_HOLE);
	if (at < 0 && at != -ENXIO) expect(h, (int)at, "seek");
	return 0;
}
static void do_file(struct hostw *h, u32 place)
{
	struct bfs_attr a;
	u64 fh;
	u32 n = some_size();
	if (kind_of(place) == PL_REW) n &= ~7u; /* what is written over in part is told word by word */
	u32 w = wr_new(h, place, n);
	if (!w) return;
	u32 e = ev_new(h, place, EV_SET, w);
	const char *nm = name_of(place);
	sim_note(S(), h->id, "create", place, w);
	bool nameless = chance(150), named = !nameless;
	int rc = nameless ? bfs_tmpfile(h->b, dir_of(place), 0644, 0, 0, O_RDWR, &a, &fh) : bfs_create(h->b, dir_of(place), nm, strlen(nm), 0644, 0, 0, O_RDWR | O_CREAT | O_EXCL, &a, &fh);
	expect(h, rc, "create");
	if (rc) {
		ev_close(h, e, EV_FAIL, S()->step); /* private until the seal, so nobody's business */
		return;
	}
	bool room = chance(250) && do_room(h, fh, n);
	fill(w, h->buf[0], 0, n);
	u32 cut = n > 128 && chance(400) ? draw(n / 64) * 64 : 0;
	bool back = cut && chance(300);
	for (int part = 0; part < 2 && rc >= 0; part++) {
		bool first = (part == 0) != back;
		u32 from = first ? 0 : cut, to = first && cut ? cut : n;
		if (!cut && part) break;
		for (u32 o = from; o < to && rc >= 0;) {
			ssize_t r = bfs_write(h->b, fh, o, h->buf[0] + o, to - o);
			if (r <= 0) rc = r ? (int)r : -EIO;
			else o += (u32)r;
		}
	}
	expect(h, rc, "write");
	if (room && rc == -ENOSPC) sim_fail(S(), "h%d: no room in %s where it was promised", h->id, where(place));
	if (rc > 0) rc = 0;
	if (!rc && chance(150)) {
		rc = do_hole(h, fh, n);
		expect(h, rc, "write into a hole");
	}
	bool killed = rc < 0 || chance(W->sc.killed_p);
	if (nameless && killed) { /* goes as it has come */
		expect(h, bfs_flush(h->b, fh, true), "flush of a killed writer");
		ev_close(h, e, EV_FAIL, S()->step);
		expect(h, bfs_release(h->b, fh), "release");
		return;
	}
	if (nameless) {
		if (chance(W->sc.fsync_p)) expect(h, bfs_fsync(h->b, fh), "fsync");
		sim_note(S(), h->id, "link", place, w);
		rc = bfs_link(h->b, a.ino, dir_of(place), nm, strlen(nm), &a);
		expect(h, rc, "link");
		named = !rc;
		if (rc) { /* it has that name or not; if it has, the close seals it */
			ev_close(h, e, rc == -EAGAIN ? EV_UNKNOWN : EV_FAIL, rc == -EAGAIN ? NEVER : S()->step);
			expect(h, bfs_flush(h->b, fh, false), "flush");
		}
	}
	if (!killed && named && chance(W->sc.fsync_p)) {
		int f = bfs_fsync(h->b, fh);
		expect(h, f, "fsync");
		if (!f) {
			W->ev[e].state = EV_DURABLE; /* and still in flight */
			sim_note(S(), h->id, "durable", place, w);
		}
	}
	if (killed) {
		W->left++; /* also when this host dies in the next call */
		expect(h, bfs_flush(h->b, fh, true), "flush of a killed writer");
		ev_close(h, e, EV_FAIL, S()->step);
		expect(h, bfs_release(h->b, fh), "release");
		if (chance(700) && !do_unlink(h, place)) W->left--;
		return;
	}
	if (named) {
		sim_note(S(), h->id, "flush", place, w);
		flush_until(h, fh, a.ino, e);
	}
	expect(h, bfs_release(h->b, fh), "release");
}
static bool published(struct hostw *h, u32 place, struct bfs_attr *a)
{
	const char *nm = name_of(place);
	int rc = bfs_lookup(h->b, dir_of(place), nm, strlen(nm), a);
	expect(h, rc, "lookup");
	return !rc && !(a->owner && a->state != BFS_ST_DIRTY);
}
static void do_rewrite(struct hostw *h, u32 place)
{
	struct bfs_attr a;
	u64 fh;
	if (!published(h, place, &a)) {
		do_file(h, place);
		return;
	}
	u32 n = (u32)a.size + (chance(200) ? draw(3000) & ~7u : 0);
	if (n > W_SIZE_MAX || n < 8) return;
	bool whole = chance(600);
	u32 w = wr_new(h, place, n), e = w ? ev_new(h, place, EV_SET, w) : 0; /* from here on another host may delete it */
	int rc = bfs_open(h->b, a.ino, O_RDWR | (whole ? O_TRUNC : 0), &fh);
	expect(h, rc, "open for writing");
	if (rc) { /* truncated or not */
		ev_close(h, e, EV_FAIL, S()->step);
		if (whole && rc != -EBUSY && rc != -ENOENT && rc != -ESTALE) W->mixed[place] = true, W->mixes[place]++;
		return;
	}
	if (w) {
		sim_note(S(), h->id, "rewrite", place, w);
		fill(w, h->buf[0], 0, n);
		u32 o = 0;
		rc = 0;
		if (chance(200)) expect(h, bfs_fallocate(h->b, fh, FALLOC_FL_KEEP_SIZE, 0, n), "fallocate"); /* changes nothing of the content */
		while (o < n && rc >= 0) {
			ssize_t r = bfs_write(h->b, fh, o, h->buf[0] + o, n - o);
			if (r <= 0) rc = r ? (int)r : -EIO;
			else o += (u32)r;
		}
		expect(h, rc, "write");
		if (rc >= 0 && chance(250) && (rc = do_hole(h, fh, n))) expect(h, rc, "write into a hole");
		/* What was written over may have been longer by then, or nothing was.  Another host may also
		 * have sealed a longer file in between, over which this write was done anew: only what is
		 * there when the close is through says, and only while nobody else has begun to. */
		bool was = W->mixed[place];
		u32 mine = ++W->mixes[place];
		W->mixed[place] = true;
		if (rc < 0 && !o && !whole) {
			ev_close(h, e, EV_FAIL, S()->step);
		} else if (rc < 0) { /* in part: some state between */
			bfs_flush(h->b, fh, false);
			ev_close(h, e, EV_UNKNOWN, NEVER);
		} else {
			sim_note(S(), h->id, "flush", place, w);
			flush_until(h, fh, a.ino, e);
			if (!bfs_getattr(h->b, a.ino, &a) && a.size == n && a.state == BFS_ST_SEALED && W->mixes[place] == mine) W->mixed[place] = was;
		}
	}
	expect(h, bfs_release(h->b, fh), "release");
}
/* A private entry may go, or the published one: then it is not known which. */
static int do_unlink(struct hostw *h, u32 place)
{
	struct bfs_attr a;
	const char *nm = name_of(place);
	bool pub = published(h, place, &a);
	u32 e = ev_new(h, place, EV_CLEAR, 0);
	sim_note(S(), h->id, "unlink", place, pub);
	int rc = bfs_unlink(h->b, dir_of(place), nm, strlen(nm));
	expect(h, rc, "unlink");
	if (!pub && !rc) ev_close(h, e, EV_UNKNOWN, S()->step);
	else ev_done(h, e, rc);
	return rc;
}
static void do_rename(struct hostw *h, u32 p, u32 q)
{
	struct bfs_attr a;
	if (p == q || !published(h, p, &a)) return;
	if (!published(h, q, &a) && a.owner && chance(900)) return;
	const char *n1 = name_of(p), *n2 = name_of(q);
	u32 f = chance(300) ? BFS_RENAME_NOREPLACE : 0;
	u32 e1 = ev_new(h, p, EV_OUT, 0), e2 = ev_new(h, q, EV_IN, 0);
	sim_note(S(), h->id, "rename", p, q);
	int rc = bfs_rename(h->b, dir_of(p), n1, strlen(n1), dir_of(q), n2, strlen(n2), f);
	expect(h, rc, "rename");
	ev_done(h, e1, rc);
	ev_done(h, e2, rc);
}
static void do_dir(struct hostw *h, u32 place)
{
	struct bfs_attr a;
	const char *nm = name_of(place);
	bool rm = chance(500);
	u32 w = rm ? 0 : wr_new(h, place, 0);
	u32 e = ev_new(h, place, rm ? EV_CLEAR : EV_SET, w);
	sim_note(S(), h->id, rm ? "rmdir" : "mkdir", place, w);
	int rc = rm ? bfs_rmdir(h->b, W->dir[0], nm, strlen(nm)) : bfs_mkdir(h->b, W->dir[0], nm, strlen(nm), 0755 | (w & 0), w, 0, &a);
	expect(h, rc, rm ? "rmdir" : "mkdir");
	ev_done(h, e, rc);
}
/* Several changes in one transaction: all or none. */
static void do_batch(struct hostw *h)
{
	u32 e[16], n = 0;
	bool used[W_PLACES] = {0};
	int rc = bfs_batch_begin(h->b);
	expect(h, rc, "batch_begin");
	if (rc) return;
	sim_note(S(), h->id, "batch", 0, 0);
	for (u32 i = 0, k = 1 + draw(5); i < k; i++) {
		u32 p = some_file(), q = some_file(), m = place_of(PL_DIR, draw(W_MK));
		struct bfs_attr a;
		const char *np = name_of(p), *nq = name_of(q), *nm = name_of(m);
		switch (draw(3)) {
		case 0:
			if (used[p] || used[q] || p == q || !published(h, p, &a)) break;
			if (!published(h, q, &a) && a.owner) break;
			used[p] = used[q] = true;
			e[n++] = ev_new(h, p, EV_OUT, 0), e[n++] = ev_new(h, q, EV_IN, 0);
			rc = bfs_rename(h->b, dir_of(p), np, strlen(np), dir_of(q), nq, strlen(nq), 0);
			expect(h, rc, "rename in a batch");
			if (rc) n -= 2, ev_close(h, e[n], rc == -EAGAIN ? EV_UNKNOWN : EV_FAIL, S()->step), ev_close(h, e[n + 1], rc == -EAGAIN ? EV_UNKNOWN : EV_FAIL, S()->step);
			break;
		case 1:
			if (used[p] || !published(h, p, &a)) break;
			used[p] = true;
			e[n++] = ev_new(h, p, EV_CLEAR, 0);
			rc = bfs_unlink(h->b, dir_of(p), np, strlen(np));
			expect(h, rc, "unlink in a batch");
			if (rc) n--, ev_close(h, e[n], rc == -EAGAIN ? EV_UNKNOWN : EV_FAIL, S()->step);
			break;
		default: {
			if (used[m]) break;
			used[m] = true;
			u32 w = wr_new(h, m, 0);
			e[n++] = ev_new(h, m, EV_SET, w);
			rc = bfs_mkdir(h->b, W->dir[0], nm, strlen(nm), 0755, w, 0, &a);
			expect(h, rc, "mkdir in a batch");
			if (rc) n--, ev_close(h, e[n], rc == -EAGAIN ? EV_UNKNOWN : EV_FAIL, S()->step);
		}
		}
	}
	if (chance(100)) {
		rc = bfs_batch_abort(h->b);
		expect(h, rc, "batch_abort");
		for (u32 i = 0; i < n; i++) ev_close(h, e[i], EV_FAIL, S()->step);
		return;
	}
	rc = bfs_batch_commit(h->b);
	expect(h, rc, "batch_commit");
	for (u32 i = 0; i < n; i++) ev_done(h, e[i], rc);
}
static void do_claim(struct hostw *h)
{
	u64 t = S()->step;
	bool was = bfs_is_leader(h->b);
	sim_note(S(), h->id, "claim", 0, 0);
	h->claiming = !was;
	int rc = bfs_claim(h->b);
	h->claiming = false;
	expect(h, rc, "claim");
	if (!rc && !was && t > h->sync) h->sync = t;
}

/* ---- what a reader does -------------------------------------------------------------------------- */
static void check_read(struct hostw *h, u32 place, const u8 *buf, ssize_t n, const struct bfs_attr *a, u64 sync, const char *how)
{
	bool mixed;
	u32 w = content(buf, (u32)n, &mixed);
	W->hits++;
	bool mine = a && a->state != BFS_ST_SEALED && a->owner && a->owner == h->b->slot + 1; /* seen here only */
	if (mine && a->state != BFS_ST_DIRTY && w) return;
	if (w && W->wr[w].size == (u32)n) {
		judge(h, place, w, sync, how);
		return;
	}
	if (a) { /* this host's own unfinished writing, or what a crash left of one */
		struct bfs_attr b;
		bool own = (a->state != BFS_ST_SEALED && a->owner) || (a->flags & BFS_OF_UNVERIFIED);
		if (!own && !bfs_getattr(h->b, a->ino, &b)) own = (b.state != BFS_ST_SEALED && b.owner) || (b.flags & BFS_OF_UNVERIFIED);
		if (own && (mixed || W->damaged)) return;
		if (W->mixed[place] && mixed) return;
	}
	sim_fail(S(), "h%d %s %s: wrong bytes (%zd of content %u, which has %u; first word %llx)", h->id, how, where(place), n, w, w ? W->wr[w].size : 0,
		 n >= 8 ? (unsigned long long)*(const u64 *)buf : 0);
}
static bool rd_error(struct hostw *h, ssize_t rc, const char *call)
{
	if (rc >= 0) return false;
	expect(h, (int)rc, call);
	return true;
}
static void read_key(struct hostw *h, u32 place, u8 *buf)
{
	u8 key[KLEN];
	u64 sync = h->sync;
	key_of(place, key);
	ssize_t n = bfs_block_get(h->b, W->ns, key, KLEN, buf, W_SIZE_MAX);
	W->reads++;
	if (n == -ENOENT) judge(h, place, 0, sync, "looks for");
	else if (!rd_error(h, n, "block_get")) check_read(h, place, buf, n, NULL, sync, "gets");
}
static void read_file(struct hostw *h, u32 place, u8 *buf)
{
	struct bfs_attr a;
	u64 fh, sync = h->sync;
	const char *nm = name_of(place);
	int rc = bfs_lookup(h->b, dir_of(place), nm, strlen(nm), &a);
	W->reads++;
	if (rc == -ENOENT) {
		judge(h, place, 0, sync, "looks for");
		return;
	}
	if (rd_error(h, rc, "lookup")) return;
	if (kind_of(place) == PL_DIR) {
		if (!S_ISDIR(a.mode)) sim_fail(S(), "h%d: %s isn't a directory", h->id, nm);
		judge(h, place, a.uid, sync, "finds");
		return;
	}
	rc = bfs_open(h->b, a.ino, O_RDONLY, &fh);
	if (rd_error(h, rc, "open")) return;
	u32 again = W->sc.busy_readers ? 1 + draw(4) : draw(2);
	for (u32 i = 0; i <= again; i++) {
		ssize_t n = bfs_read(h->b, fh, 0, buf, W_SIZE_MAX);
		if (rd_error(h, n, "read")) break;
		/* later reads of an open file show what it was or what became of it */
		check_read(h, place, buf, n, &a, i ? 0 : sync, i ? "reads again" : "reads");
		if (i < again) nap(h, 40000);
	}
	expect(h, bfs_release(h->b, fh), "release");
}
static void list_dir(struct hostw *h, u32 d)
{
	struct bfs_dirent de[6];
	u64 after = 0;
	for (int round = 0; round < 8; round++) {
		int n = bfs_readdir(h->b, W->dir[d], after, de, 6);
		if (rd_error(h, n, "readdir") || !n) return;
		for (int i = 0; i < n; i++) {
			if (de[i].cookie <= after) sim_fail(S(), "h%d: readdir goes back", h->id);
			after = de[i].cookie;
			if (de[i].len > 4 || !strchr("frmdb", de[i].name[0])) sim_fail(S(), "h%d: readdir shows a name that nobody made", h->id);
		}
	}
}
/* Several files open at once: what is held spans several lines. */
struct held { u64 fh; struct bfs_attr a; u32 place; };
#define HOLD 20
static void hold_one(struct hostw *h, struct held *l, u32 *n, u8 *buf)
{
	struct bfs_attr a;
	u64 fh;
	u32 i = *n ? draw(*n) : 0;
	if (*n == HOLD || (*n && chance(120))) {
		expect(h, bfs_release(h->b, l[i].fh), "release");
		l[i] = l[--*n];
		return;
	}
	if (*n && chance(400)) {
		ssize_t k = bfs_read(h->b, l[i].fh, 0, buf, W_SIZE_MAX);
		if (!rd_error(h, k, "read")) check_read(h, l[i].place, buf, k, &l[i].a, 0, "reads again");
		return;
	}
	u32 p = some_file();
	const char *nm = name_of(p);
	if (rd_error(h, bfs_lookup(h->b, dir_of(p), nm, strlen(nm), &a), "lookup") || rd_error(h, bfs_open(h->b, a.ino, O_RDONLY, &fh), "open")) return;
	l[(*n)++] = (struct held){fh, a, p};
}
static void reader(void *arg)
{
	struct hostw *h = arg;
	struct held l[HOLD];
	u32 n = 0;
	u8 *buf = h->buf[1];
	while (!h->stop) {
		u32 r = draw(100);
		look_at_snap(h);
		if (W->sc.holder && r & 1) hold_one(h, l, &n, buf);
		else if (r < 40) read_key(h, place_of(PL_KEY, draw(W->sc.keys)), buf);
		else if (r < 75) read_file(h, some_file(), buf);
		else if (r < 85) read_file(h, place_of(PL_REW, draw(W_REW)), buf);
		else if (r < 90) read_file(h, place_of(PL_DIR, draw(W_MK)), buf);
		else if (r < 95) list_dir(h, draw(W_DIRS));
		else {
			u8 keys[W_KEYS * KLEN], there[W_KEYS];
			for (u32 i = 0; i < W_KEYS; i++) key_of(i, keys + i * KLEN);
			expect(h, bfs_block_exists(h->b, W->ns, keys, KLEN, W_KEYS, there), "block_exists");
		}
		/* who waits for readers in a pool whose pages are all read waits for seconds: a long run's are lazier */
		nap(h, S()->step > 300000 ? 1000000 : W->sc.busy_readers ? 1000 : 20000);
	}
	while (n) expect(h, bfs_release(h->b, l[--n].fh), "release");
	h->others--;
}
static void timer(void *arg)
{
	struct hostw *h = arg;
	while (!h->stop) {
		expect(h, bfs_tick(h->b), "tick");
		look_at_snap(h);
		nap(h, (u32)W->sc.tick_ns * 2);
	}
	h->others--;
}

/* a host that is being declared dead, one at a time */
static struct grave { struct hostw *by, *of; bool fenced; } grave;

/* ---- lives ----------------------------------------------------------------------------------------- */
static struct bfs_opts opts(struct hostw *h, bool follower)
{
	return (struct bfs_opts){
		.uuid = {h->uuid[0], h->uuid[1]}, .boot = h->boot, .slot = W->sc.splitter ? -1 : h->id, .follower = follower, .evict_none = !W->sc.evict,
		.verify = W->sc.corrupt_data ? BFS_VERIFY_ALWAYS : BFS_VERIFY_FIRST, .suspect_ns = W->sc.suspect_ns, .publish_close = W->sc.publish_close,
		.seal_timeout_ns = 4 * W->sc.suspect_ns,
	};
}
/* A splitter may leave a slot to nobody; then the operator gives one that nobody has or is taking. */
static int given(struct hostw *h)
{
	const struct bfs_super *sb = (const void *)W->s->image;
	for (int i = 0; i <= W->sc.hosts; i++)
		if (i != h->id && W->h[i].joining) return -1;
	for (u32 s = 0; s < sb->nhosts; s++) {
		const struct bfs_line *l = (const void *)(W->s->pool + sb->host_off + (u64)s * sb->host_stride);
		/* to the same host again, if it fell over before it had it */
		if (!l[BFS_L_IDENT].w[0] && (!W->given[s] || W->given[s] == h->id + 1)) {
			W->given[s] = (u8)(h->id + 1);
			return (int)s;
		}
	}
	return -1;
}
static bool join(struct hostw *h, bool follower)
{
	struct bfs_opts o = opts(h, follower);
	for (int i = 0; i < 12; i++) {
		sim_note(S(), h->id, "attach", follower, 0);
		h->joining = true;
		h->marked = grave.of == h; /* or it is about to be */
		int rc = bfs_attach(&W->s->h[h->id].m, &o, &h->b);
		h->joining = false;
		h->joined = rc;
		if (rc == -EUSERS) o.slot = given(h);
		if (!rc) {
			h->up = true;
			h->sync = 0;
			h->seen_term = 0, h->seen_txn = 0;
			sim_note(S(), h->id, "is slot", h->b->slot, 0);
			return true;
		}
		h->b = NULL;
		if (rc != -EUSERS) expect(h, rc, "attach");
		nap(h, (u32)W->sc.suspect_ns);
		if (i > 2) o.follower = chance(500);
	}
	return false;
}
static void leave(struct hostw *h, bool clean)
{
	h->stop = true;
	while (h->others) nap(h, 5000);
	sim_note(S(), h->id, "detach", clean, 0);
	struct bfs *b = h->b;
	int rc = bfs_detach(b, clean);
	h->b = NULL;
	h->up = false;
	expect(h, rc, "detach");
}
static void act(struct hostw *h)
{
	const struct scen *c = &W->sc;
	const u32 w[] = {c->a_put, c->a_del, c->a_file, c->a_rewrite, c->a_unlink, c->a_rename, c->a_mkdir, c->a_evict, c->a_claim, c->a_refresh, c->a_scan, c->a_reclaim, c->a_batch, c->a_idle};
	const u32 k = sizeof w / sizeof *w;
	u32 sum = 0, i = 0;
	u64 freed;
	for (u32 j = 0; j < k; j++) sum += w[j];
	u32 r = draw(sum);
	while (r >= w[i]) r -= w[i++];
	if ((i < 8 || i == 12) && chance(c->claim_before) && !bfs_is_leader(h->b)) do_claim(h);
	switch (i) {
	case 0: do_put(h, place_of(PL_KEY, draw(W->sc.keys))); break;
	case 1: do_del(h, place_of(PL_KEY, draw(W->sc.keys))); break;
	case 2: do_file(h, some_file()); break;
	case 3: do_rewrite(h, place_of(PL_REW, draw(W_REW))); break;
	case 4: do_unlink(h, chance(150) ? place_of(PL_REW, draw(W_REW)) : some_file()); break;
	case 5: do_rename(h, some_file(), some_file()); break;
	case 6: do_dir(h, place_of(PL_DIR, draw(W_MK))); break;
	case 7: if (c->evict) expect(h, bfs_evict(h->b, 1 + draw(8), &freed), "evict"); break;
	case 8: do_claim(h); break;
	case 9: expect(h, bfs_refresh(h->b), "refresh"); break;
	case 10: expect(h, bfs_apply_scan(h->b), "apply_scan"); break;
	case 11: expect(h, bfs_reclaim(h->b), "reclaim"); break;
	case 12: do_batch(h); break;
	default: nap(h, 30000);
	}
	look_at_snap(h);
}
static void life(void *arg)
{
	struct hostw *h = arg;
	h->stop = false;
	h->others = 0;
	h->nflight = 0;
	W->q.cur->lazy = W->sc.lazy_writer, W->q.cur->lazy_max = W->sc.lazy_max;
	if (!join(h, chance(W->sc.follower_p))) return;
	h->others = 2;
	struct co *r = sched_spawn(&W->q, h->id, reader, h), *t = sched_spawn(&W->q, h->id, timer, h);
	if (r) r->lazy = W->sc.lazy_reader, r->lazy_max = W->sc.lazy_max;
	if (t) t->lazy = W->sc.lazy_timer, t->lazy_max = W->sc.lazy_max;
	u32 n = W->sc.actions / 2 + draw(W->sc.actions + 1);
	h->acting = true;
	for (u32 i = 0; i < n && !W->duel.over; i++) {
		act(h);
		if (chance(300)) nap(h, 10000);
		if (chance(W->sc.a_reattach) || (h->marked && chance(200))) break;
	}
	h->acting = false;
	for (u32 i = 0; W->sc.linger && i < 200; i++) {
		bool any = false;
		for (int k = 0; k < W->sc.hosts; k++) any |= W->h[k].acting && k != h->id;
		if (!any) break;
		nap(h, 40000);
	}
	leave(h, chance(900));
}

/* ---- fate --------------------------------------------------------------------------------------------- */
static void dies(struct hostw *h, bool crash)
{
	sim_note(S(), h->id, crash ? "HOST CRASH" : "PROCESS KILLED", 0, 0);
	sched_kill_host(&W->q, h->id);
	if (crash) sim_crash(S(), h->id), h->boot++;
	else sim_kill_process(S(), h->id);
	while (h->nflight) {
		u32 i = h->flight[h->nflight - 1];
		/* a content may be in a closed row, and sealed by who comes after */
		if (W->ev[i].state == EV_DURABLE) ev_close(h, i, EV_DURABLE, NEVER);
		else ev_close(h, i, EV_UNKNOWN, W->ev[i].type == EV_SET && kind_of(W->ev[i].place) != PL_DIR ? NEVER : S()->step);
	}
	h->b = NULL;
	h->up = h->joining = h->acting = h->claiming = false;
	h->others = 0;
	if (grave.of && grave.by == h) grave.of = NULL;
}
static void born_again(struct hostw *h)
{
	sim_note(S(), h->id, "RESTART", 0, 0);
	S()->h[h->id].process = true;
	h->lives++;
	sched_spawn(&W->q, h->id, life, h);
}
static void bury(void *arg)
{
	struct grave *g = arg;
	struct bfs *b = g->by->b;
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line l;
		if (ld_line(b, s, BFS_L_IDENT, &l) <= 0 || l.w[0] != g->of->uuid[0] || s == b->slot) continue;
		sim_note(S(), g->by->id, "declare_dead", s, g->fenced);
		g->of->marked = true;
		int rc = bfs_declare_dead(b, s, g->fenced);
		expect(g->by, rc, "declare_dead");
	}
	g->of = NULL;
	g->by->others--;
}
/* One host stops in the middle of something; another one goes on, falls over, comes back, and stops
 * in the middle of something; then the first goes on alone. */
static void duel(struct sched *q)
{
	struct sim *s = q->s;
	int one = W->duel.one, two = (one + 1) % W->sc.hosts;
	u32 wait = 300;
	switch (W->duel.phase) {
	case 0: /* best where it takes the lead */
		if (!W->duel.polls) W->duel.polls = 2000, W->duel.one = (int)draw((u32)W->sc.hosts);
		if (!W->h[W->duel.one].claiming && --W->duel.polls) {
			s->deadline = s->step + 1 + draw(80);
			return;
		}
		W->duel.polls = 0;
		W->duel.blows = draw(4);
		sched_pause_host(q, W->duel.one, 5000);
		sim_note(s, W->duel.one, "STOP", 0, 0);
		break;
	case 1:
		if (!W->duel.blows) break;
		if (!sched_runs(q, two)) {
			born_again(&W->h[two]);
			if (!--W->duel.blows) break;
		} else {
			dies(&W->h[two], chance(600));
			wait = 5;
		}
		W->duel.phase--;
		break;
	case 2: /* best where a line of its is half in the pool */
		if (!W->duel.torn) W->duel.torn = s->torn + 1 + draw(8), W->duel.polls = 400;
		if (s->torn < W->duel.torn && --W->duel.polls) {
			s->deadline = s->step + 1;
			return;
		}
		W->duel.torn = 0, W->duel.polls = 0;
		sched_pause_host(q, two, 5000);
		sched_pause_host(q, one, 0);
		sim_note(s, one, "GO ON", 0, 0);
		break;
	default:
		if (chance(500) && sched_runs(q, two)) dies(&W->h[two], true);
		else sched_pause_host(q, two, 0);
		if (!sched_runs(q, one)) born_again(&W->h[one]);
		W->duel.phase = -1;
		W->duel.over = chance(400); /* before the next change hides what was lost */
		wait = 2 * W->sc.mean_fate;
	}
	W->duel.phase++;
	s->deadline = s->step + 1 + draw(wait);
}
static void fate(struct sched *q)
{
	struct sim *s = q->s;
	const struct scen *c = &W->sc;
	u32 sum = c->w_kill + c->w_crash + c->w_pause + c->w_nap + c->w_dead + c->w_restart, r = draw(sum ? sum : 1);
	struct hostw *h = &W->h[draw((u32)c->hosts)], *o = &W->h[draw((u32)c->hosts)];
	s->deadline = s->step + 1 + draw(2 * c->mean_fate);
	if (W->fates++ > c->fates) { /* let it come to an end */
		s->deadline = NEVER;
		return;
	}
	if (c->duel) {
		if (W->duel.over) s->deadline = NEVER;
		else duel(q);
		return;
	}
	if (!sched_runs(q, h->id)) { /* down */
		if (r % 3 && grave.of != h) born_again(h);
		return;
	}
	if (r < c->w_kill) dies(h, false);
	else if ((r -= c->w_kill) < c->w_crash) dies(h, true);
	else if ((r -= c->w_crash) < c->w_pause) {
		u32 n = 1 + draw(c->pause_max);
		sim_note(s, h->id, "PAUSE", n, 0);
		sched_pause_host(q, h->id, n);
	} else if ((r -= c->w_pause) < c->w_nap) {
		u32 n = 1 + draw(c->pause_max);
		sim_note(s, h->id, "NAP", n, 0);
		sched_pause_one(q, h->id, n);
	} else if ((r -= c->w_nap) < c->w_dead && o != h && o->up && !o->stop && !grave.of) {
		bool down = chance(c->w_fenced);
		if (down && sched_runs(q, h->id)) dies(h, true);
		else if (!down) sched_pause_host(q, h->id, 1 + draw(c->pause_max));
		grave = (struct grave){o, h, down};
		/* the mark is about this registration: no other one comes before it is made */
		o->others++;
		sched_spawn(q, o->id, bury, &grave);
	}
}

/* ---- the end: does everything come back? --------------------------------------------------------------- */
static void come_back(void *arg)
{
	struct hostw *h = arg;
	h->stop = false;
	h->others = 0;
	h->late = false;
	if (!join(h, false)) {
		/* What a host that died was reading is kept for it until it registers again: all
		 * pages of a small pool may be. */
		if (h->wait_for_others && h->joined == -ENOSPC) h->late = true;
		else if (!W->damaged) sim_fail(S(), "h%d can't join in the end: %s", h->id, bfs_errmsg());
		return;
	}
	for (int i = 0; i < 2; i++) expect(h, bfs_tick(h->b), "tick");
	leave(h, true);
}
static void audit_dir(struct hostw *h, u32 d, u8 *found)
{
	struct bfs_dirent de[16];
	u64 after = 0;
	int n;
	while ((n = bfs_readdir(h->b, W->dir[d], after, de, 16)) > 0)
		for (int i = 0; i < n; i++) {
			u32 p;
			after = de[i].cookie;
			for (p = W_KEYS; p < W_PLACES; p++)
				if (dir_of(p) == W->dir[d] && strlen(name_of(p)) == de[i].len && !memcmp(name_of(p), de[i].name, de[i].len)) break;
			if (p < W_PLACES) {
				if (found[p]++) sim_fail(S(), "in the end %s is listed twice", where(p));
			} else if (d || !strchr("db", de[i].name[0])) sim_fail(S(), "in the end there is %.*s, which nobody made", de[i].len, de[i].name);
		}
	expect(h, n, "readdir");
}
static void on_problem(void *arg, int severity, const char *code, const char *text)
{
	(void)arg;
	if (severity && !W->damaged) sim_fail(S(), "fsck: %s: %s", code, text);
}
static void unsealed(struct hostw *h, const struct bfs_stat *st)
{
	struct rd r;
	int rc = rd_begin(h->b, &r);
	for (u32 s = 2; !rc && s < h->b->sb.inodes; s++) {
		const struct bfs_obj *o = ob_slot(&r.v, s, &rc);
		if (!o || !o->mode || (o->state == BFS_ST_SEALED && o->nlink)) continue;
		sim_fail(S(), "in the end %llu files are unsealed, %llu orphans: slot %u state %u owner %u nlink %u version %u size %llu", (unsigned long long)st->nunsealed, (unsigned long long)st->norphans, s,
			 o->state, o->owner, o->nlink, o->version, (unsigned long long)o->size);
	}
	if (!rc) rd_end(&r);
}
/* A host that fell over while it stored its registration: nobody can tell whose that slot is, or whether
 * somebody reads there, so what is in quarantine stays there, and is told, until fsck settles it. */
static bool half_registered(struct hostw *h)
{
	struct bfs_line l;
	for (u32 s = 0; s < h->b->sb.nhosts; s++)
		if (ld_line(h->b, s, BFS_L_IDENT, &l) < 0) return true;
	return false;
}
static void audit(void *arg)
{
	struct hostw *h = arg;
	struct sim *s = S();
	u8 found[W_PLACES] = {0}, seen[W_WRITES] = {0};
	int rc = -EAGAIN;
	h->stop = false;
	h->others = 0;
	bool ok = join(h, true);
	if (!ok && W->sc.splitter) { /* no slot is left; the others are gone, so one of them */
		h->uuid[0] = W->h[0].uuid[0], h->boot = W->h[0].boot + 1;
		ok = join(h, true);
	}
	if (!ok) {
		if (!W->damaged) sim_fail(s, "nobody can join in the end: %s", bfs_errmsg());
		return;
	}
	for (int i = 0; i < 20 && rc; i++) {
		if ((rc = bfs_claim(h->b))) s->now_ns += W->sc.suspect_ns;
		expect(h, rc, "claim");
	}
	if (rc) {
		if (!W->damaged) sim_fail(s, "nobody can lead in the end: %d, %s", rc, bfs_errmsg());
		return;
	}
	for (int i = 0; i < 5; i++) {
		s->now_ns += W->sc.suspect_ns;
		expect(h, bfs_tick(h->b), "tick");
	}
	for (u32 d = 0; d < W_DIRS; d++) audit_dir(h, d, found);
	for (u32 p = 0; p < W_PLACES && !s->failed; p++) {
		struct bfs_attr a;
		ssize_t n;
		bool mixed = false;
		u32 w = 0;
		memset(&a, 0, sizeof a);
		if (kind_of(p) == PL_KEY) {
			u8 key[KLEN];
			key_of(p, key);
			n = bfs_block_get(h->b, W->ns, key, KLEN, h->audit, W_SIZE_MAX);
		} else {
			u64 fh;
			const char *nm = name_of(p);
			n = bfs_lookup(h->b, dir_of(p), nm, strlen(nm), &a);
			if (!W->damaged && (n == 0) != (found[p] != 0)) sim_fail(s, "in the end %s is %s but look-up says %zd", where(p), found[p] ? "listed" : "not listed", n);
			if (!n && kind_of(p) == PL_DIR) w = a.uid;
			else if (!n && !(n = bfs_open(h->b, a.ino, O_RDONLY, &fh))) {
				n = bfs_read(h->b, fh, 0, h->audit, W_SIZE_MAX);
				bfs_release(h->b, fh);
			}
		}
		if (n < 0 && n != -ENOENT) {
			expect(h, (int)n, "the last read");
			if (n == -ESTALE && !W->damaged) sim_fail(s, "in the end %s is stale", where(p));
			continue;
		}
		if (n >= 0 && kind_of(p) != PL_DIR) {
			w = content(h->audit, (u32)n, &mixed);
			if (!w || W->wr[w].size != (u32)n) {
				if ((mixed || W->damaged) && (a.flags & BFS_OF_UNVERIFIED)) continue;
				if (mixed && W->mixed[p]) continue;
				sim_fail(s, "in the end %s: wrong bytes (%zd of content %u, which has %u)", where(p), n, w, w ? W->wr[w].size : 0);
				continue;
			}
		}
		if (w && seen[w]++) sim_fail(s, "in the end content %u is in two places, %s is one", w, where(p));
		judge(h, p, w, NEVER, "in the end finds");
	}
	struct bfs_stat st;
	if (!bfs_statfs(h->b, &st) && !W->damaged) {
		if (st.quarantined_granules && !half_registered(h)) sim_fail(s, "in the end %llu granules are still quarantined", (unsigned long long)st.quarantined_granules);
		/* what a killed writer left is kept for its host */
		if ((st.nunsealed && !W->left) || st.norphans) unsealed(h, &st);
	}
	leave(h, true);
}
static void run_quiet(void (*fn)(void *), struct hostw *h)
{
	S()->deadline = NEVER;
	S()->h[h->id].process = true;
	sched_spawn(&W->q, h->id, fn, h);
	W->q.limit = S()->step + 3000000;
	sched_run(&W->q);
}

/* ---- one run ---------------------------------------------------------------------------------------------- */
static bool shared_line(struct sim *s, u32 line)
{
	(void)s;
	const struct bfs_super *sb = (const void *)W->s->image;
	u64 o = (u64)line * BFS_LINE - sb->host_off;
	if (o >= (u64)sb->host_stride * sb->nhosts) return false;
	u64 l = o % sb->host_stride / BFS_LINE;
	/* two that meet in a splitter may both write more of the slot before one of them sees that it lost */
	return l == BFS_L_SPLIT_X || l == BFS_L_SPLIT_Y;
}
/* Makes the pool, with its directories, once for all runs of this shape. */
static struct shape *shape_get(int which, int hosts, bool splitter)
{
	struct shape *k = &made[which][hosts][splitter];
	struct bfs_opts o = {.uuid = {99, 99}, .boot = 1, .slot = 0, .evict_none = true, .suspect_ns = 1000};
	struct bfs_attr a;
	struct bfs *b;
	int rc;
	if (k->made) return k;
#ifdef BFS_MUTANTS
	int mutant = bfs_mutant; /* they are about the runs */
	bfs_mutant = 0;
#endif
	*k = shapes[which];
	k->p.nhosts = splitter ? 6 : (u32)hosts + 1;
	k->p.size_bytes = k->p.size_bytes / 4096 * 4096 + (u64)k->p.nhosts * 16384;
	k->p.incarnation = 0x1122334455667788ull;
	k->hosts = hosts;
	if (sim_init(&k->s, hosts + 1, k->p.size_bytes)) abort();
	k->s.rng.s = 42;
	W->s = W->q.s = &k->s;
	sched_reset(&W->q, 0);
	struct bfs_super sb;
	if ((rc = bfs_mkfs(sim_god(&k->s), &k->p, &sb)) || (rc = bfs_attach(sim_god(&k->s), &o, &b))) {
		fprintf(stderr, "mkfs or first attach: %d, %s\n", rc, bfs_errmsg());
		abort();
	}
	k->dir[0] = BFS_ROOT_INO;
	for (u32 d = 1; d < W_DIRS; d++) {
		char nm[4];
		snprintf(nm, sizeof nm, "d%u", d);
		if ((rc = bfs_mkdir(b, BFS_ROOT_INO, nm, 2, 0755, 0, 0, &a))) abort();
		k->dir[d] = a.ino;
	}
	if ((rc = bfs_ns_create(b, "blk", &k->ns)) || (rc = bfs_detach(b, true))) {
		fprintf(stderr, "namespace: %d, %s\n", rc, bfs_errmsg());
		abort();
	}
	/* the slot that the maker had is free again for the hosts of the runs */
	memset(k->s.pool + sb.host_off + BFS_L_IDENT * BFS_LINE, 0, BFS_LINE);
	memset(k->s.pool + sb.host_off + BFS_L_SPLIT_X * BFS_LINE, 0, 2 * BFS_LINE);
	sim_image(&k->s);
	k->s.shared_line = shared_line;
	k->made = true;
#ifdef BFS_MUTANTS
	bfs_mutant = mutant;
#endif
	return k;
}
static void corrupt(void)
{
	const struct bfs_super *sb = (const void *)W->s->image;
	W->damaged = true;
	u32 n = 1 + draw(6);
	for (u32 i = 0; i < n; i++) {
		if (W->sc.corrupt_meta && chance(600)) sim_corrupt(S(), sb->meta_off + (u64)(1 + draw(sb->meta_pages - 1)) * 4096 + draw(4096 / 8) * 8, 1 + draw(16));
		else sim_corrupt(S(), sb->data_off + (u64)draw((u32)sb->data_granules) * 4096 + draw(4096 / 8) * 8, 1 + draw(64));
	}
	sim_note(S(), -1, "MEDIA DAMAGE", n, 0);
}
bool world_run(const struct scen *sc, bool trace)
{
	static bool init;
	if (!W) W = calloc(1, sizeof *W);
	if (!init) sched_init(&W->q, NULL), init = true;
	struct shape *k = shape_get(sc->shape, sc->hosts, sc->splitter);
	struct sim *s = W->s = &k->s;
	W->q.s = s;
	W->sc = *sc;
	s->trace = trace;
	sim_reset(s, sc->seed, &sc->mem);
	sched_reset(&W->q, 2000000);
	memcpy(W->dir, k->dir, sizeof W->dir);
	W->ns = k->ns;
	W->nwr = W->nev = 1;
	W->damaged = false;
	W->left = 0;
	W->fates = 0;
	memset(&W->duel, 0, sizeof W->duel);
	grave.of = NULL;
	memset(W->given, 0, sizeof W->given);
	memset(W->mixed, 0, sizeof W->mixed);
	W->ops = W->acks = W->reads = W->hits = 0;
	memset(W->head, 0, sizeof W->head);
	for (int i = 0; i <= sc->hosts; i++) {
		struct hostw *h = &W->h[i];
		h->w = W, h->id = i;
		h->uuid[0] = 0x1000 + (u64)i, h->uuid[1] = sc->seed;
		h->boot = 1 + (u64)i * 100;
		h->b = NULL, h->up = h->joining = h->acting = h->claiming = false, h->lives = 0, h->nflight = 0, h->others = 0;
		if (i < sc->hosts) sched_spawn(&W->q, i, life, h);
	}
	W->q.fate = fate;
	s->deadline = sc->mean_fate ? 1 + draw(2 * sc->mean_fate) : NEVER;
	sched_run(&W->q);
	if ((sc->corrupt_data || sc->corrupt_meta) && !s->failed) {
		/* what a host has validated may be damaged without its knowing: all start anew */
		for (int i = 0; i < sc->hosts; i++) dies(&W->h[i], true);
		corrupt();
		for (int i = 0; i < sc->hosts; i++) born_again(&W->h[i]);
		s->deadline = NEVER;
		W->q.limit = s->step + 2000000;
		sched_run(&W->q);
	}
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < sc->hosts && !s->failed; i++) {
			if (round && !W->h[i].late) continue;
			W->h[i].wait_for_others = !round;
			run_quiet(come_back, &W->h[i]);
			if (sched_runs(&W->q, i)) sim_fail(s, "h%d hangs in the end", i);
		}
	if (!s->failed) {
		for (int i = 0; i < sc->hosts; i++) sim_settle(s, i);
		s->quiet_mem = true;
		run_quiet(audit, &W->h[sc->hosts]);
		sim_settle(s, sc->hosts);
		struct bfs_fsck_result r;
		if (!s->failed) {
			int rc = bfs_fsck(sim_god(s), true, on_problem, NULL, &r);
			if (rc && !W->damaged) sim_fail(s, "fsck says %d", rc);
		}
	}
	return !s->failed;
}
const char *world_what(void) { return W->s->what; }
struct world *world_last(void) { return W; }
void world_dump(FILE *f, u32 steps)
{
	if (W && W->s) sim_dump(W->s, f, steps);
}
void world_free(void)
{
	for (int i = 0; i < SHAPES; i++)
		for (int h = 0; h <= W_HOSTS; h++)
			for (int k = 0; k < 2; k++)
				if (made[i][h][k].made) sim_destroy(&made[i][h][k].s);
	if (W) sched_destroy(&W->q);
	free(W);
	W = NULL;
}

/* ---- what kind of run ---------------------------------------------------------------------------------------- */
void scen_draw(struct scen *c, u64 seed, int hosts)
{
	struct rng r = {seed * 0x2545f4914f6cdd1dull + 7};
#define N(n) rnd_n(&r, n)
#define P(p) rnd_p(&r, p)
	static const u32 sw[] = {20, 60, 150, 400, 700}, evp[] = {0, 20, 100, 400};
	memset(c, 0, sizeof *c);
	c->seed = seed;
	c->hosts = hosts;
	c->shape = (int)N(SHAPES);
	c->actions = 4 + N(24);
	c->mem = (struct sim_cfg){.p_switch = sw[N(5)], .p_event = evp[N(4)], .p_torn = P(500) ? 300 : 50, .p_cached = P(300) ? 1000 : 400, .p_early = N(900), .no_prefetch = P(150)};
	c->suspect_ns = P(500) ? 30000 : P(500) ? 150000 : 1000000;
	c->tick_ns = P(500) ? 8000 : 40000;
	c->evict = P(400);
	c->publish_close = P(200);
	c->busy_readers = P(400);
	c->holder = P(200);
	c->linger = P(300);
	c->keys = P(800) ? W_KEYS : 2;
	c->names = P(800) ? 4 : 1 + N(W_NAMES);
	c->splitter = P(120);
	c->corrupt_data = P(60);
	c->corrupt_meta = c->corrupt_data && P(400);
	c->mean_fate = P(200) ? 0 : 200 + N(4000);
	c->w_kill = N(10), c->w_crash = N(10), c->w_pause = N(30), c->w_nap = N(30), c->w_dead = N(6), c->w_fenced = 500, c->w_restart = 1;
	c->fates = 24;
	c->pause_max = P(500) ? 500 : 6000;
	c->follower_p = 700;
	c->lazy_writer = P(100) ? 10 : 0;
	c->lazy_reader = P(200) ? 20 : 0, c->lazy_timer = P(200) ? 20 : 0, c->lazy_max = P(500) ? 300 : 3000;
	c->a_put = 4 + N(12), c->a_del = N(8), c->a_file = 2 + N(10), c->a_rewrite = N(5), c->a_unlink = N(6), c->a_rename = N(6), c->a_mkdir = N(4);
	c->a_evict = c->evict ? N(4) : 0, c->a_claim = 1 + N(4), c->a_refresh = N(4), c->a_scan = N(3), c->a_reclaim = N(3), c->a_batch = N(4), c->a_idle = N(6);
	c->a_reattach = P(300) ? 60 : 0;
	c->claim_before = P(300) ? 0 : N(600);
	c->fsync_p = P(500) ? 0 : N(600), c->killed_p = P(500) ? 0 : N(200), c->size_big = N(300);
#undef N
#undef P
}
