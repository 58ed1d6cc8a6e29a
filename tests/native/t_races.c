/* Races of two hosts, each interleaving of a kind tried in turn: one host's call is interrupted at
 * each of its accesses to the pool, there another host's calls run, whole or until that host falls
 * over at one of its stores (the line half in the pool, or all of it), and then the first goes on.
 * What the simulator draws at random, and meets once in a million runs, is met here for certain.
 *
 * `killed`: a process is killed at each of its accesses, and starts again in the same boot: what it stored and
 * nobody has written back yet is in the machine's cache, and must be in the pool before its space is given away.
 *
 * `doubt`: a call on a file loses the lead at each of its accesses.
 *
 * `torn`: the second of two lines used in turn is half written each time it is looked at, and the first has been
 * stored over since it was read: what a reader adopts, and what of it the leader leaves alone.
 *
 * Else a store is in the pool at once: what a cache keeps back there is the simulator's matter.
 *
 *   t_races [claim|scan|held|killed|doubt|torn]...
 *   t_races --mutants              in builds with BFS_MUTANTS: each that is named below is noticed */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lead.h"

#define SIZE (4ull << 20)
#define HOSTS 3
#define N(s) (s), strlen(s)
enum { HALF, WHOLE, MANNERS };

/* ---- hosts and their accesses ------------------------------------------------------------ */
struct host {
	struct bfs_mem mem;
	struct bfs *b;
	u64 steps, stores;
	u64 call_at; /* before this step `call` runs, once */
	void (*call)(void);
	u64 die_at;  /* at this store the host falls over */
	int manner;
	jmp_buf out;
	u8 *arena; /* a host that fell over leaves its memory as it was */
	size_t used;
};
#define ARENA (32u << 20)
static struct host host[HOSTS];
static u8 *pool, *image;
static u8 soiled[SIZE / 4096];
static u64 clock_ns, runs;
/* of each line, for `killed`: written by a host, and not in the pool for certain */
enum { CLEAN, DIRTY, FLUSHED };
static u8 cached[SIZE / BFS_LINE];
static u32 flushed[SIZE / BFS_LINE], nflushed;

static void die(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "t_races: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, " (last error: %s)\n", bfs_errmsg());
	va_end(ap);
	exit(1);
}
static struct host *of(struct bfs_mem *m) { return m->priv; }
static void step(struct bfs_mem *m)
{
	struct host *h = of(m);
	if (++h->steps != h->call_at || !h->call) return;
	void (*f)(void) = h->call;
	h->call = NULL;
	f();
}
static void soil(const void *p, size_t n)
{
	size_t a = (size_t)((const u8 *)p - pool);
	if (n) memset(soiled + a / 4096, 1, (a + n - 1) / 4096 - a / 4096 + 1);
}
static void in_cache(const void *p, size_t n, u8 from, u8 to)
{
	size_t a = (size_t)((const u8 *)p - pool);
	for (size_t l = a / BFS_LINE; n && l <= (a + n - 1) / BFS_LINE; l++) {
		if (cached[l] != from && to != DIRTY) continue;
		cached[l] = to;
		if (to == FLUSHED && nflushed < sizeof flushed / sizeof *flushed) flushed[nflushed++] = (u32)l;
	}
}
static void m_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	struct host *h = of(m);
	step(m);
	soil(d, n);
	in_cache(d, n, CLEAN, DIRTY);
	if (++h->stores == h->die_at) {
		memcpy(d, s, h->manner == HALF ? n / 2 : n);
		longjmp(h->out, 1);
	}
	memcpy(d, s, n);
}
static void m_inval(struct bfs_mem *m, const void *p, size_t n) { (void)p, (void)n, step(m); }
static void m_flush(struct bfs_mem *m, const void *p, size_t n) { step(m), in_cache(p, n, DIRTY, FLUSHED); }
static void m_fence(struct bfs_mem *m)
{
	step(m);
	for (; nflushed; nflushed--)
		if (cached[flushed[nflushed - 1]] == FLUSHED) cached[flushed[nflushed - 1]] = CLEAN;
}
static void m_dirty(struct bfs_mem *m, void *p, size_t n) { (void)m, soil(p, n); }
static int m_in(struct bfs_mem *m, void *d, const void *s, size_t n) { return step(m), soil(d, n), in_cache(d, n, CLEAN, DIRTY), memcpy(d, s, n), 0; }
static int m_out(struct bfs_mem *m, void *d, const void *s, size_t n) { return step(m), memcpy(d, s, n), 0; }
static int m_zero(struct bfs_mem *m, void *d, size_t n) { return step(m), soil(d, n), in_cache(d, n, CLEAN, DIRTY), memset(d, 0, n), 0; }
static u64 m_now(struct bfs_mem *m) { return (void)m, 1700000000000000000ull + (clock_ns += 1000); }
static u64 m_mono(struct bfs_mem *m) { return (void)m, clock_ns += 1000; }
static u64 m_rand(struct bfs_mem *m) { return of(m)->steps * 0x9E3779B97F4A7C15ull + 1; }
static void m_pause(struct bfs_mem *m, u64 ns) { (void)m, clock_ns += ns; }
static void *m_alloc(struct bfs_mem *m, size_t n)
{
	struct host *h = of(m);
	void *p = h->arena + h->used;
	h->used += (n + 63) & ~(size_t)63;
	if (h->used > ARENA) die("the arena is too small");
	return memset(p, 0, n);
}
static void m_free(struct bfs_mem *m, void *p) { (void)m, (void)p; }
static const struct bfs_mem_ops ops = {
	.name = "interrupted", .store = m_store, .inval = m_inval, .flush = m_flush, .fence = m_fence, .dirty = m_dirty,
	.copy_in = m_in, .copy_out = m_out, .zero = m_zero,
	.now_ns = m_now, .mono_ns = m_mono, .rand64 = m_rand, .pause = m_pause, .alloc = m_alloc, .free = m_free,
};

static void must(int rc, const char *what)
{
	if (rc < 0) die("%s: %s", what, strerror(-rc));
}
static int try_attach(int i, bool follower)
{
	struct bfs_opts o = {.uuid = {1 + (u64)i}, .boot = 1, .slot = i, .follower = follower, .evict_none = true};
	host[i].b = NULL;
	return bfs_attach(&host[i].mem, &o, &host[i].b);
}
static void attach(int i, bool follower) { must(try_attach(i, follower), "attach"); }
/* the pool as the image has it, nobody attached */
static void restart(void)
{
	for (size_t i = 0; i < sizeof soiled; i++)
		if (soiled[i]) memcpy(pool + i * 4096, image + i * 4096, 4096), soiled[i] = 0;
	for (int i = 0; i < HOSTS; i++) {
		struct host *h = &host[i];
		h->mem = (struct bfs_mem){.ops = &ops, .base = pool, .size = SIZE, .priv = h};
		h->b = NULL, h->steps = h->stores = h->call_at = h->die_at = 0, h->call = NULL, h->used = 0;
	}
	memset(cached, 0, sizeof cached);
	nflushed = 0;
	clock_ns = 0;
	runs++;
}
static void new_pool(void)
{
	struct bfs_mkfs_params p = {.size_bytes = SIZE, .inodes = 512, .nhosts = 4, .incarnation = 0x1234567, .uuid = {9}};
	memset(pool, 0, SIZE), memset(image, 0, SIZE);
	restart();
	must(bfs_mkfs(&host[0].mem, &p, NULL), "mkfs");
}
static void keep_image(void)
{
	memcpy(image, pool, SIZE);
	memset(soiled, 0, sizeof soiled);
}

/* ---- two hosts that take the lead from each other ------------------------------------------- */
/* What each acknowledged, by name; a name that isn't may be there or not. */
static bool acked[26];
static const char *script; /* d make a directory, c claim, r the process is killed and starts again */
static void make(struct host *h, char c)
{
	struct bfs_attr a;
	if (bfs_mkdir(h->b, 1, &c, 1, 0755, 0, 0, &a) == 0) acked[c - 'a'] = true;
}
static void play(void)
{
	struct host *h = &host[0];
	if (setjmp(h->out)) return;
	char c = 'd';
	for (const char *s = script; *s; s++)
		if (*s == 'd') make(h, c++);
		else if (*s == 'c') bfs_claim(h->b);
		else if (try_attach(0, false)) return;
}
/* host 0 leads, or has lost the lead to host 1 before */
static void before(bool led)
{
	restart();
	memset(acked, 0, sizeof acked);
	attach(0, false);
	attach(1, true);
	make(&host[0], 'a');
	if (led) {
		must(bfs_claim(host[1].b), "claim");
		make(&host[1], 'b');
		must(bfs_claim(host[0].b), "claim");
	}
	make(&host[0], 'c');
	for (int i = 0; i < 2; i++) host[i].steps = host[i].stores = 0;
}
static void afterwards(u64 at, u64 store, int manner)
{
	attach(2, false);
	for (int i = 0; i < 26; i++) {
		struct bfs_attr a;
		char c = (char)('a' + i);
		int rc = bfs_lookup(host[2].b, 1, &c, 1, &a);
		if (rc && (rc != -ENOENT || acked[i]))
			die("claim: directory %c is gone (%s): host 1 interrupted at step %llu, script %s, host 0 fell over at store %llu, %s", c, strerror(-rc), (unsigned long long)at, script, (unsigned long long)store, manner == HALF ? "half" : "whole");
	}
}
static void taking_over(void)
{
	bfs_claim(host[1].b);
	make(&host[1], 'z');
}
static void t_claim(void)
{
	static const char *const scripts[] = {"d", "c", "dc", "ddc", "dcd", "cd", "cdd", "r", "dcr", "dcdr"};
	new_pool();
	keep_image();
	for (int led = 0; led < 2; led++)
		for (u32 k = 0; k < sizeof scripts / sizeof *scripts; k++) {
			script = scripts[k];
			before(led);
			taking_over();
			u64 steps = host[1].steps;
			for (u64 at = 1; at <= steps; at++)
				for (u64 store = 0, stores = 0; store <= stores; store++)
					for (int manner = 0; manner < MANNERS; manner++) {
						before(led);
						host[1].call_at = at, host[1].call = play;
						host[0].die_at = store, host[0].manner = manner;
						taking_over();
						if (!store) {
							stores = host[0].stores;
							if (host[0].b) make(&host[0], 'x'); /* all are alive */
							make(&host[1], 'y');
						}
						afterwards(at, store, manner);
						if (!store) break;
					}
		}
}

/* ---- files that are open while they are deleted ------------------------------------------------ */
#define FILES 8
#define BYTES 12288u
static u8 buf[BYTES], got[BYTES];
static u64 ino[FILES], fh[FILES];
static void content(u32 i) { memset(buf, 'A' + (int)i, sizeof buf); }
static void name(char *s, char kind, u32 i) { sprintf(s, "%c%u", kind, i); }
static void put(struct host *h, char kind, u32 i)
{
	struct bfs_attr a;
	u64 f;
	char s[16];
	name(s, kind, i);
	content(kind == 'f' ? i : 20);
	must(bfs_create(h->b, 1, N(s), 0644, 0, 0, O_RDWR, &a, &f), "create");
	if (bfs_write(h->b, f, 0, buf, sizeof buf) != (ssize_t)sizeof buf) die("write");
	must(bfs_flush(h->b, f, false), "close");
	must(bfs_release(h->b, f), "release");
	if (kind == 'f') ino[i] = a.ino;
}
static void files_pool(void)
{
	new_pool();
	attach(0, false);
	for (u32 i = 0; i < FILES; i++) put(&host[0], 'f', i), put(&host[0], 'g', i); /* no two neighbours */
	must(bfs_detach(host[0].b, true), "detach");
	keep_image();
}
static void open_file(u32 i) { must(bfs_open(host[1].b, ino[i], O_RDONLY, &fh[i]), "open"); }
static void unlink_file(u32 i)
{
	char s[16];
	name(s, 'f', i);
	must(bfs_unlink(host[0].b, 1, N(s)), "unlink");
}
/* All free space is written over; then the open files are read. */
static void write_over(const char *what, u64 at)
{
	struct host *h = &host[0];
	struct bfs_attr a;
	u64 f;
	content(21);
	must(bfs_create(h->b, 1, N("all"), 0644, 0, 0, O_RDWR, &a, &f), "create");
	for (u64 off = 0; bfs_write(h->b, f, off, buf, 4096) == 4096; off += 4096) {}
	for (u32 i = 0; i < FILES; i++) {
		if (!fh[i]) continue;
		content(i);
		if (bfs_read(host[1].b, fh[i], 0, got, sizeof got) != (ssize_t)sizeof got || memcmp(got, buf, sizeof buf))
			die("%s: file %u is open and was given away; interrupted at step %llu", what, i, (unsigned long long)at);
	}
}
static void begin(void)
{
	restart();
	memset(fh, 0, sizeof fh);
	attach(0, false);
	attach(1, true);
}
static void give_back(void)
{
	for (int i = 0; i < 2; i++) {
		must(bfs_apply_scan(host[0].b), "scan");
		must(bfs_reclaim(host[0].b), "reclaim");
	}
}

/* While a host is looking what it holds, a thread of its own opens a file, which another host
 * deletes, and the first hears of it. */
static void open_and_delete(void)
{
	open_file(0);
	unlink_file(0);
	must(bfs_refresh(host[1].b), "refresh");
}
static void t_scan(void)
{
	files_pool();
	for (u64 at = 1, steps = 1; at <= steps; at++) {
		begin();
		host[1].steps = 0, host[1].call_at = at, host[1].call = open_and_delete;
		must(bfs_apply_scan(host[1].b), "scan");
		if (at == 1) steps = host[1].steps;
		if (!fh[0]) break;
		give_back();
		write_over("scan", at);
	}
}

/* The list of what a host holds changes while the leader reads it. */
static void close_one(void)
{
	must(bfs_release(host[1].b, fh[0]), "release");
	fh[0] = 0;
	must(bfs_apply_scan(host[1].b), "scan");
}
static void t_held(void)
{
	files_pool();
	for (u64 at = 1, steps = 1; at <= steps; at++) {
		begin();
		for (u32 i = 0; i < FILES; i++) open_file(i);
		for (u32 i = 0; i < FILES; i++) unlink_file(i);
		must(bfs_refresh(host[1].b), "refresh");
		must(bfs_apply_scan(host[1].b), "scan");
		must(bfs_apply_scan(host[0].b), "scan");
		host[0].steps = 0, host[0].call_at = at, host[0].call = close_one;
		must(bfs_reclaim(host[0].b), "reclaim");
		if (at == 1) steps = host[0].steps;
		if (fh[0]) break;
		write_over("held", at);
	}
}

/* ---- killed ------------------------------------------------------------------------------------- */
static void killed(void) { longjmp(host[0].out, 1); }

static void put_at(u64 f, u64 granule, u32 n)
{
	if (bfs_write(host[0].b, f, granule * BFS_GRANULE, buf, n * BFS_GRANULE) != (ssize_t)(n * BFS_GRANULE)) die("write");
}
static u64 making(const char *s, u64 *f)
{
	struct bfs_attr a;
	must(bfs_create(host[0].b, 1, N(s), 0644, 0, 0, O_RDWR, &a, f), "create");
	return a.ino;
}
static void close_file(u64 f)
{
	must(bfs_flush(host[0].b, f, false), "close");
	must(bfs_release(host[0].b, f), "release");
}
/* whatever stores into data: pieces, a rewriting, holes, room, a file without a name */
static void writer(void)
{
	struct bfs *b = host[0].b;
	struct bfs_attr a;
	u64 f, g, h;
	making("pieces", &f);
	making("other", &g);
	put_at(f, 2, 1), put_at(g, 0, 2), put_at(f, 0, 1), put_at(g, 2, 1), put_at(f, 1, 1);
	close_file(f), close_file(g);
	must(bfs_open(b, ino[0], O_RDWR, &f), "open");
	if (bfs_write(b, f, 5000, buf, 100) != 100 || bfs_write(b, f, 2 * BFS_GRANULE, buf, 3000) != 3000) die("write");
	must(bfs_fsync(b, f), "fsync");
	put_at(f, 4, 1);
	must(bfs_fallocate(b, f, FALLOC_FL_ZERO_RANGE, 100, 6000), "zero range");
	must(bfs_fallocate(b, f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 6000), "hole");
	close_file(f);
	making("orphan", &h);
	put_at(h, 1, 1);
	must(bfs_unlink(b, 1, N("orphan")), "unlink");
	put_at(h, 0, 2);
	close_file(h);
	must(bfs_open(b, ino[1], O_RDWR, &f), "open");
	a.size = 5000;
	must(bfs_setattr(b, ino[1], BFS_SET_SIZE, &a, f, &a), "truncate");
	put_at(f, 1, 2);
	must(bfs_unlink(b, 1, N("f1")), "unlink");
	close_file(f);
}

static void t_killed(void)
{
	struct bfs_super sb;
	files_pool();
	memcpy(&sb, pool, sizeof sb);
	for (u64 at = 1, steps = 1; at <= steps; at++) {
		restart();
		attach(0, false);
		content(3);
		host[0].steps = 0;
		if (at < steps || at == 1) host[0].call_at = at > 1 ? at : 0, host[0].call = killed;
		if (!setjmp(host[0].out)) writer();
		if (at == 1) steps = host[0].steps;
		host[0].call = NULL, host[0].call_at = 0;
		attach(0, false);
		for (size_t l = sb.data_off / BFS_LINE; l < sizeof cached; l++)
			if (cached[l]) die("killed at access %llu: data at 0x%zx is still in the cache of a host that has started again", (unsigned long long)at, l * BFS_LINE);
		must(bfs_detach(host[0].b, true), "detach");
	}
}

/* ---- in doubt ------------------------------------------------------------------------------------- */
/* A call loses the lead at each of its accesses, so that it isn't known whether its transaction has happened.
 * What the file holds in the end is what it held, or what the call makes of it; and others can read it. */
#define MOST 28672u
struct text { u8 b[MOST]; u32 n; };
static struct text was, will;
static void take_lead(int i) { must(bfs_tick(host[i].b), "tick"), must(bfs_claim(host[i].b), "claim"); }
static void lead_is_lost(void) { taking_over(); }
static void text_of(struct text *t, u32 from, u32 n, u8 c)
{
	if (from > t->n) memset(t->b + t->n, 0, from - t->n);
	memset(t->b + from, c, n);
	if (from + n > t->n) t->n = from + n;
}
static void put_text(u64 f, u32 from, u32 n, u8 c)
{
	memset(got, c, sizeof got);
	for (u32 o = 0; o < n;) {
		ssize_t r = bfs_write(host[0].b, f, from + o, got, n - o < sizeof got ? n - o : sizeof got);
		if (r <= 0) die("write");
		o += (u32)r;
	}
	text_of(&was, from, n, c);
}
static const char *const doubts[] = {"empty", "cut", "cut at a granule", "longer", "hole", "unaligned hole", "zeros", "store", "append", "room", "reserve", "O_TRUNC"};
/* 0: done as it will be; else the outcome isn't known, or it has failed */
static int in_doubt(u32 k, u64 i, u64 f)
{
	struct bfs *b = host[0].b;
	struct bfs_attr a;
	u64 g;
	int rc;
	will = was;
	memset(buf, 'w', sizeof buf);
	switch (k) {
	case 0: case 1: case 2:
		a.size = k ? k == 1 ? 5000 : 4096 : 0;
		will.n = (u32)a.size;
		return bfs_setattr(b, i, BFS_SET_SIZE, &a, f, &a);
	case 3:
		a.size = 22000;
		text_of(&will, will.n, 22000 - will.n, 0);
		return bfs_setattr(b, i, BFS_SET_SIZE, &a, f, &a);
	case 4: case 5:
		g = k == 4 ? 4096 : 3000;
		memset(will.b + g, 0, 4096);
		return bfs_fallocate(b, f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, g, 4096);
	case 6:
		memset(will.b + 1000, 0, 7000);
		return bfs_fallocate(b, f, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 1000, 7000);
	case 7: case 8:
		g = k == 7 ? 2000 : will.n;
		text_of(&will, (u32)g, 6000, 'w');
		return (rc = (int)bfs_write(b, f, g, buf, 6000)) < 0 ? rc : rc != 6000;
	case 9: return bfs_fallocate(b, f, FALLOC_FL_KEEP_SIZE, 0, 24000);
	case 10: return bfs_reserve(b, f, 24000);
	default:
		will.n = 0;
		if (!(rc = bfs_open(b, i, O_RDWR | O_TRUNC, &g))) must(bfs_release(b, g), "release");
		return rc;
	}
}
/* What the call makes of it; or, where it didn't say that it did, each byte of that or of what was there. */
static bool is_right(int rc, const u8 *p, ssize_t n)
{
	if (n < 0 || ((u32)n != will.n && (!rc || (u32)n != was.n))) return false;
	for (u32 i = 0; i < (u32)n; i++)
		if ((i >= will.n || p[i] != will.b[i]) && (!rc || i >= was.n || p[i] != was.b[i])) return false;
	return true;
}
/* before: a sealed file; one that is written again; a new one; one that has a hole; a new one that has one */
static bool doubt(u32 prepared, u32 k, bool keeps, u64 at)
{
	static u8 all[MOST + 1];
	struct bfs_attr a;
	char what[80];
	u64 f, i = ino[0];
	snprintf(what, sizeof what, "%s, prepared %u, step %llu", doubts[k], prepared, (unsigned long long)at);
	restart();
	attach(0, false);
	attach(1, true);
	content(0);
	was.n = sizeof buf, memcpy(was.b, buf, sizeof buf);
	if (prepared == 2 || prepared == 4) {
		was.n = 0;
		i = making("new", &f);
		put_text(f, prepared == 2 ? 0 : 9000, 6000, 'n');
	} else {
		must(bfs_open(host[0].b, i, O_RDWR, &f), "open");
	}
	if (prepared == 1) put_text(f, 0, 15000, 'r');
	if (prepared == 3) {
		put_text(f, 20000, 100, 'h');
		must(bfs_fallocate(host[0].b, f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), "hole");
		memset(was.b + 4096, 0, 4096);
	}
	must(bfs_refresh(host[1].b), "refresh");
	host[0].steps = 0, host[0].call_at = at, host[0].call = lead_is_lost;
	host[0].b->peer[1].live = keeps; /* else the call takes the lead back by itself */
	int rc = in_doubt(k, i, f);
	bool interrupted = !host[0].call;
	host[0].call = NULL;
	if (rc && rc != -EAGAIN && rc != -EBUSY) die("%s: %s", what, strerror(-rc));
	take_lead(0);
	ssize_t n = bfs_read(host[0].b, f, 0, all, sizeof all);
	if (!is_right(rc, all, n)) die("%s: the call says %d, the writer reads %zd", what, rc, n);
	must(bfs_flush(host[0].b, f, false), "close");
	must(bfs_release(host[0].b, f), "release");
	attach(2, false);
	must(bfs_open(host[2].b, i, O_RDONLY, &f), "open by another host");
	memset(&a, 0, sizeof a);
	n = bfs_read(host[2].b, f, 0, all, sizeof all);
	if (!is_right(rc, all, n)) die("%s: the call says %d, another host reads %zd", what, rc, n);
	return interrupted;
}
static void t_doubt(void)
{
	u64 f;
	files_pool();
	attach(0, false); /* all that is free has held something */
	content(25);
	making("junk", &f);
	for (u64 off = 0; bfs_write(host[0].b, f, off, buf, 4096) == 4096; off += 4096) {}
	close_file(f);
	must(bfs_unlink(host[0].b, 1, N("junk")), "unlink");
	give_back();
	must(bfs_detach(host[0].b, true), "detach");
	keep_image();
	for (u32 prepared = 0; prepared < 5; prepared++)
		for (u32 k = 0; k < sizeof doubts / sizeof *doubts; k++)
			for (int keeps = 0; keeps < 2; keeps++)
				for (u64 at = 1; doubt(prepared, k, keeps, at); at++) {}
}

/* ---- torn ---------------------------------------------------------------------------------------- */
static u64 second_at, second_store, known; /* known: what the leader had acknowledged before the reader's pin */
static void publish_then_again(void)
{
	make(&host[0], 'd');
	known = host[1].stores ? 0 : ld_newest(host[0].b).txn;
	host[0].stores = 0, host[0].die_at = second_store;
	host[1].call_at = second_at, host[1].call = play;
}
/* The reader's refresh, in which the leader publishes at step `at`, and at step `then` until it falls over. */
static int refreshing(bool odd, u64 at, u64 then, u64 store)
{
	restart();
	attach(0, false);
	attach(1, true);
	if (odd) make(&host[0], 'x');
	make(&host[0], 'y');
	script = "dd";
	known = 0, second_at = then, second_store = store;
	host[1].steps = host[1].stores = 0, host[1].call_at = at, host[1].call = publish_then_again;
	host[0].manner = HALF, host[0].stores = 0;
	return bfs_refresh(host[1].b);
}
/* The second look at the roots says that what is pinned was the newest when it was. */
static void adopting(void)
{
	new_pool();
	keep_image();
	for (int odd = 0; odd < 2; odd++) {
		must(refreshing(odd, 0, 0, 0), "refresh");
		u64 steps = host[1].steps;
		for (u64 i = 1; i < steps; i++)
			for (u64 j = i + 1; j <= steps; j++) {
				refreshing(odd, i, j, 0);
				u64 stores = host[0].stores;
				for (u64 store = 1; store <= stores; store++)
					if (!refreshing(odd, i, j, store) && ld_newest(host[1].b).txn < known)
						die("torn: a root was adopted that wasn't the newest when it was pinned: steps %llu and %llu, store %llu", (unsigned long long)i, (unsigned long long)j, (unsigned long long)store);
			}
	}
}

/* Host 1 reads in snapshot USED, which was pinned before the leader looks, and goes on to newer ones
 * meanwhile.  Each of its pins covers the one in use. */
#define PINS 3
#define USED 1000
static void pin(u64 lo, u64 hi)
{
	struct bfs *b = host[1].b;
	ld_put_pin(b, (struct bfs_snap){1, lo, {0}}, (struct bfs_snap){1, hi, {0}});
	mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_PIN_A), 2 * BFS_LINE);
}
static void pin_on(void)
{
	if (setjmp(host[1].out)) return;
	for (u64 k = 1; k <= PINS; k++) pin(USED, USED + k);
}
static bool sees_pin(bool odd, u64 at, u64 store)
{
	struct pin p[2 * BFS_HOSTS_MAX + 1];
	bool there = false;
	restart();
	attach(0, false);
	attach(1, true);
	for (int k = 0; k <= odd; k++) pin(900, 900);
	pin(USED, USED);
	host[1].stores = 0, host[1].die_at = store, host[1].manner = HALF;
	host[0].steps = 0, host[0].call_at = at, host[0].call = pin_on;
	int n = ld_pins(host[0].b, p);
	for (int k = 0; k < n; k++) there |= p[k].x1 <= USED && USED <= p[k].x2;
	return there;
}
static void looking_at_pins(void)
{
	sees_pin(false, 0, 0);
	u64 steps = host[0].steps;
	for (u64 at = 1; at <= steps; at++)
		for (int odd = 0; odd < 2; odd++)
			for (u64 store = 0; store <= PINS; store++)
				if (!sees_pin(odd, at, store)) die("torn: the leader doesn't see a pin: at step %llu, store %llu", (unsigned long long)at, (unsigned long long)store);
}
static void t_torn(void)
{
	adopting();
	looking_at_pins();
}

/* ---- mutants ------------------------------------------------------------------------------------- */
static const struct { const char *name; void (*f)(void); } tests[] = {{"claim", t_claim}, {"scan", t_scan}, {"held", t_held}, {"killed", t_killed}, {"doubt", t_doubt}, {"torn", t_torn}};
#define TESTS (sizeof tests / sizeof *tests)
static bool wanted(const char *name, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name)) return true;
	return argc < 2;
}
#ifdef BFS_MUTANTS
int bfs_mutant;
static const struct { int id; const char *name, *test; } mutants[] = {
#define M(x, test) {x, #x, test}
	M(MUT_NO_PREPUBLISH_CHECK, "claim"), M(MUT_ONE_CLAIM_LINE, "claim"), M(MUT_ONE_ROOT_LINE, "claim"), M(MUT_ROOTS_BEFORE_CLAIM, "claim"),
	M(MUT_SCAN_BEFORE_APPLY, "scan"), M(MUT_HELD_NO_SCAN_NUMBER, "held"),
	M(MUT_KILLED_NOT_FLUSHED, "killed"), M(MUT_COPY_NOT_FLUSHED, "killed"),
	M(MUT_FIRST_LINE_OLD, "torn"),
#undef M
};
static int run_mutants(void)
{
	int survived = 0;
	for (u32 i = 0; i < sizeof mutants / sizeof *mutants; i++) {
		fflush(NULL);
		pid_t pid = fork();
		if (!pid) {
			if (!freopen("/dev/null", "w", stderr)) _exit(9);
			bfs_mutant = mutants[i].id;
			for (u32 k = 0; k < TESTS; k++)
				if (!strcmp(tests[k].name, mutants[i].test)) tests[k].f();
			_exit(0);
		}
		int status = 0;
		waitpid(pid, &status, 0);
		bool noticed = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 1);
		printf("t_races: %-26s %s\n", mutants[i].name, noticed ? "noticed" : "NOT NOTICED");
		survived += !noticed;
	}
	return survived != 0;
}
#endif

int main(int argc, char **argv)
{
	pool = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	image = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < HOSTS; i++) host[i].arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (pool == MAP_FAILED || image == MAP_FAILED || host[HOSTS - 1].arena == MAP_FAILED) die("no memory");
#ifdef BFS_MUTANTS
	if (argc == 2 && !strcmp(argv[1], "--mutants")) return run_mutants();
#endif
	for (u32 k = 0; k < TESTS; k++) {
		if (!wanted(tests[k].name, argc, argv)) continue;
		struct timespec t0, t1;
		u64 first = runs;
		clock_gettime(CLOCK_MONOTONIC, &t0);
		tests[k].f();
		clock_gettime(CLOCK_MONOTONIC, &t1);
		printf("t_races: %-6s %7llu interleavings, %.1f s\n", tests[k].name, (unsigned long long)(runs - first), (double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9);
	}
	return 0;
}
