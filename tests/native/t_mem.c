/* The simulated memory does what it says: each rule as a litmus program of two
 * hosts, run over many seeds.  "seen": an outcome that the rule allows must come up;
 * "never": one that it excludes must not. */
#include <pthread.h>
#include <stdlib.h>
#include "sim/sched.h"

static struct sim S;
static struct sched Q;
static int bad;

#define AT(host, off) (S.h[host].m.base + (off))
#define X 0u
#define Y 4096u
#define Z 8192u
static volatile u64 *word(int h, u32 off) { return (volatile u64 *)AT(h, off); }
static struct bfs_mem *M(int h) { return &S.h[h].m; }
static void store(int h, u32 off, u64 v) { mm_store(M(h), AT(h, off), &v, 8); }
static void plain(int h, u32 off, u64 v)
{
	mm_dirty(M(h), AT(h, off), 8);
	*word(h, off) = v;
}
static u64 fresh(int h, u32 off)
{
	mm_inval(M(h), AT(h, off), 8);
	mm_fence(M(h));
	return *word(h, off);
}
static void flush(int h, u32 off) { mm_flush(M(h), AT(h, off), 8); }
static void fence(int h) { mm_fence(M(h)); }

static u64 R[4];
static int V; /* variant of the program */
typedef int (*judge_fn)(void);
enum { NEVER, SEEN };
static struct sim_cfg base = {.p_switch = 300, .p_event = 200, .p_torn = 300, .p_cached = 500, .p_early = 450};

static bool all_shared(struct sim *s, u32 line) { return (void)s, (void)line, true; }
static void run1(u64 seed, const struct sim_cfg *cfg, void (*f0)(void *), void (*f1)(void *))
{
	sim_reset(&S, seed, cfg);
	sched_reset(&Q, 100000);
	memset(R, 0, sizeof R);
	sched_spawn(&Q, 0, f0, NULL);
	if (f1) sched_spawn(&Q, 1, f1, NULL);
	sched_run(&Q);
}
static void litmus(const char *name, int variant, const struct sim_cfg *cfg, void (*f0)(void *), void (*f1)(void *), judge_fn judge, int want)
{
	u32 hits = 0, failed = 0;
	const u32 n = 4000;
	V = variant;
	for (u32 seed = 1; seed <= n; seed++) {
		run1(seed, cfg, f0, f1);
		if (S.failed && !failed++) printf("    %s\n", S.what);
		hits += judge() != 0;
	}
	bool ok = !failed && (want == SEEN ? hits != 0 : hits == 0);
	printf("%s %-66s %s, %u of %u\n", ok ? "ok  " : "FAIL", name, want == SEEN ? "seen" : "never", hits, n);
	bad += !ok;
}
static void check(const char *name, bool ok)
{
	printf("%s %s\n", ok ? "ok  " : "FAIL", name);
	bad += !ok;
}

/* ---- store buffering: each stores its own, then reads the other's ------------------ */
static void sb(int me, u32 mine, u32 other)
{
	store(me, mine, 1);
	if (V) fence(me);
	R[me] = fresh(me, other);
}
static void sb0(void *a) { (void)a, sb(0, X, Y); }
static void sb1(void *a) { (void)a, sb(1, Y, X); }
static int both_zero(void) { return R[0] == 0 && R[1] == 0; }
static int one_sees(void) { return R[0] == 1 || R[1] == 1; }

/* ---- message passing ------------------------------------------------------------------ */
enum { MP_GOOD, MP_NO_FLUSH, MP_NO_FENCE, MP_NO_INVAL, MP_EARLY_INVAL, MP_PLAIN_FLAG, MP_NT };
static void mp0(void *a)
{
	(void)a;
	if (V == MP_NT) store(0, X, 7);
	else plain(0, X, 7);
	if (V != MP_NO_FLUSH && V != MP_NT) flush(0, X);
	if (V != MP_NO_FENCE) fence(0);
	if (V == MP_PLAIN_FLAG) plain(0, Y, 1), flush(0, Y);
	else store(0, Y, 1);
	fence(0);
}
static void mp1(void *a)
{
	(void)a;
	R[2] = *word(1, X); /* so that an old line is there */
	if (V == MP_EARLY_INVAL) (void)fresh(1, X);
	for (int i = 0; i < 50 && fresh(1, Y) != 1; i++) {}
	if (*word(1, Y) != 1) return;
	R[0] = 1;
	R[1] = V == MP_NO_INVAL || V == MP_EARLY_INVAL ? *word(1, X) : fresh(1, X);
}
static int mp_stale(void) { return R[0] == 1 && R[1] != 7; }
static int mp_right(void) { return R[0] == 1 && R[1] == 7; }

/* ---- tearing ----------------------------------------------------------------------------- */
static void tear0(void *a)
{
	u64 v[8];
	(void)a;
	for (u64 k = 1; k < 6; k++) {
		for (int i = 0; i < 8; i++) v[i] = k;
		if (V) {
			mm_dirty(M(0), AT(0, X), 64);
			memcpy(AT(0, X), v, 64);
			mm_flush(M(0), AT(0, X), 64);
		} else mm_store(M(0), AT(0, X), v, 64);
		fence(0);
	}
}
static void tear1(void *a)
{
	(void)a;
	for (int i = 0; i < 10; i++) {
		mm_inval(M(1), AT(1, X), 64);
		fence(1);
		for (int w = 1; w < 8; w++)
			if (word(1, X)[w] != word(1, X)[0]) R[0] = 1;
	}
}
static int torn(void) { return R[0] == 1; }

/* ---- a page of two lines, read while it is written ------------------------------------------ */
static void half0(void *a)
{
	(void)a;
	plain(0, X, 1), plain(0, X + 64, 1);
	mm_flush(M(0), AT(0, X), 128);
	fence(0);
}
static void half1(void *a)
{
	(void)a;
	for (int i = 0; i < 4; i++) {
		mm_inval(M(1), AT(1, X), 128);
		fence(1);
		R[0] |= *word(1, X) != *word(1, X + 64);
	}
}

/* ---- false sharing: neighbours in one line --------------------------------------------------- */
static void fs0(void *a) { (void)a, plain(0, X, 1), flush(0, X), fence(0); }
static void fs1(void *a) { (void)a, plain(1, X + 8, 1), flush(1, X), fence(1); }
static int lost_update(void) { return ((u64 *)S.pool)[0] != 1 || ((u64 *)S.pool)[1] != 1; }

/* ---- own stores, copies ------------------------------------------------------------------------- */
static void own0(void *a)
{
	(void)a;
	for (u64 i = 1; i < 10; i++) {
		store(0, X, i), R[0] |= *word(0, X) != i;
		plain(0, Y, i), R[0] |= *word(0, Y) != i;
		flush(0, Y), R[0] |= *word(0, Y) != i;
		mm_inval(M(0), AT(0, X), 8), R[0] |= *word(0, X) != i;
		if (i & 1) fence(0);
		R[0] |= *word(0, X) != i || *word(0, Y) != i;
	}
}
static int own_wrong(void) { return R[0] != 0; }
static u8 buf[2][4096];
static void cp0(void *a)
{
	(void)a;
	memset(buf[0], 1, sizeof buf[0]);
	M(0)->ops->copy_in(M(0), AT(0, X), buf[0], sizeof buf[0]);
	if (V) mm_flush(M(0), AT(0, X), 4096), fence(0);
	store(0, Y, 1), fence(0);
}
static void cp1(void *a)
{
	(void)a;
	mm_inval(M(1), AT(1, X), 4096);
	fence(1);
	M(1)->ops->copy_out(M(1), buf[1], AT(1, X), 4096);
	R[0] = buf[1][0] != buf[1][4095]; /* in the middle of it */
	if (fresh(1, Y) != 1) return;
	mm_inval(M(1), AT(1, X), 4096);
	fence(1);
	M(1)->ops->copy_out(M(1), buf[1], AT(1, X), 4096);
	for (int i = 0; i < 4096; i++) R[1] |= buf[1][i] != 1;
}
static int cp_mixed(void) { return R[0] != 0; }
static int cp_wrong(void) { return R[1] != 0; }

/* ---- coroutines of one host ------------------------------------------------------------------------ */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static int inside, readers;
static void lock0(void *a)
{
	(void)a;
	for (int i = 0; i < 5; i++) {
		M(0)->ops->lock(M(0), &mu);
		R[0] |= inside++ != 0;
		fence(0), fence(0);
		inside--;
		M(0)->ops->unlock(M(0), &mu);
		pthread_rwlock_rdlock(&rw);
		readers++;
		fence(0);
		readers--;
		pthread_rwlock_unlock(&rw);
		pthread_rwlock_wrlock(&rw);
		R[0] |= readers != 0;
		fence(0);
		pthread_rwlock_unlock(&rw);
	}
}
static u64 woke[2];
static void sleep0(void *a) { (void)a, M(0)->ops->pause(M(0), 5000000), woke[0] = S.now_ns; }
static void sleep1(void *a)
{
	(void)a;
	for (int i = 0; i < 10; i++) fence(1);
	woke[1] = S.now_ns;
}

/* ---- what befalls hosts ------------------------------------------------------------------------------- */
static void dying(void *a)
{
	(void)a;
	plain(0, X, 5);
	store(0, Y, 6);
	if (V) flush(0, X), fence(0);
	plain(0, X, 9);
}
static void fates(void)
{
	u32 n = 3000, kept = 0, lost = 0, late = 0, some = 0, acked = 0;
	V = 0;
	for (u32 seed = 1; seed <= n; seed++) {
		run1(seed, &base, dying, NULL);
		sim_kill_process(&S, 0);
		late += *(u64 *)S.pool != 9;
		sim_settle(&S, 0);
		kept += *(u64 *)S.pool == 9 && *(u64 *)(S.pool + Y) == 6;
		run1(seed, &base, dying, NULL);
		sim_crash(&S, 0);
		lost += *(u64 *)S.pool == 0;
		some += *(u64 *)(S.pool + Y) == 6;
		if (memcmp(S.h[0].cache, S.pool, S.size)) bad++;
	}
	V = 1;
	for (u32 seed = 1; seed <= n; seed++) {
		run1(seed, &base, dying, NULL);
		sim_crash(&S, 0);
		acked += *(u64 *)S.pool >= 5 && *(u64 *)(S.pool + Y) == 6;
	}
	check("a dead process's dirty lines go out later", kept == n && late > n / 4);
	check("a crashed host's lines are lost, or not", lost > n / 20 && lost < n && some > n / 20 && some < n);
	check("what was fenced survives a crash", acked == n);
}
static void scold0(void *a) { (void)a, plain(0, X, 1), fence(0), fence(0); }
static void scold1(void *a) { (void)a, plain(1, X, 2), fence(1), fence(1); }
static void mute0(void *a) { (void)a, *word(0, X) = 1, flush(0, X), fence(0); }
static void faults(void)
{
	u32 two = 0, mute = 0;
	S.shared_line = NULL;
	for (u32 seed = 1; seed <= 200; seed++) {
		run1(seed, &base, scold0, scold1);
		two += S.failed;
		run1(seed, &base, mute0, NULL);
		mute += S.failed;
	}
	S.shared_line = all_shared;
	check("two hosts that write one line are found", two > 50);
	check("a plain store without dirty() is found", mute == 200);
}
static u64 digest(void)
{
	u64 d = S.step * 31 + S.nev;
	for (u64 i = 0; i < S.nev && i < SIM_TRACE; i++) d = d * 1099511628211ull ^ (S.ev[i].a + S.ev[i].verb * 7u + (u32)S.ev[i].host);
	for (u64 i = 0; i < S.size; i += 8) d = d * 31 + *(u64 *)(S.pool + i);
	return d;
}

int main(void)
{
	if (sim_init(&S, 2, 65536)) return 2;
	S.shared_line = all_shared;
	sched_init(&Q, &S);
	sim_image(&S);
	struct sim_cfg whole = base, weak = base, still = base;
	whole.p_torn = 0;
	weak.weak_fence = true;
	still.no_prefetch = true;

	litmus("store buffering, fence between: both read the old value", 1, &base, sb0, sb1, both_zero, NEVER);
	litmus("store buffering, no fence between", 0, &base, sb0, sb1, both_zero, SEEN);
	litmus("store buffering: one of them sees the other", 1, &base, sb0, sb1, one_sees, SEEN);
	litmus("message passing: the flag is seen, the data is old", MP_GOOD, &base, mp0, mp1, mp_stale, NEVER);
	litmus("message passing: the data is right", MP_GOOD, &base, mp0, mp1, mp_right, SEEN);
	litmus("message passing by ntstore", MP_NT, &base, mp0, mp1, mp_stale, NEVER);
	litmus("message passing, flag by plain store and flush", MP_PLAIN_FLAG, &base, mp0, mp1, mp_stale, NEVER);
	litmus("message passing, data not flushed", MP_NO_FLUSH, &base, mp0, mp1, mp_stale, SEEN);
	litmus("message passing, no fence between data and flag", MP_NO_FENCE, &base, mp0, mp1, mp_stale, SEEN);
	litmus("message passing, reader doesn't invalidate", MP_NO_INVAL, &base, mp0, mp1, mp_stale, SEEN);
	litmus("message passing, reader's data prefetched all the same", MP_NO_INVAL, &base, mp0, mp1, mp_right, SEEN);
	litmus("message passing, reader invalidates before it sees the flag", MP_EARLY_INVAL, &still, mp0, mp1, mp_stale, SEEN);
	litmus("message passing, fences that don't reach the pool", MP_GOOD, &weak, mp0, mp1, mp_stale, SEEN);
	litmus("an ntstore of a line is seen in part", 0, &base, tear0, tear1, torn, SEEN);
	litmus("a written-back line is seen in part", 1, &base, tear0, tear1, torn, SEEN);
	litmus("lines are whole when nothing tears", 0, &whole, tear0, tear1, torn, NEVER);
	litmus("two lines are seen at different times", 0, &whole, half0, half1, torn, SEEN);
	litmus("neighbours in one line: an update is lost", 0, &base, fs0, fs1, lost_update, SEEN);
	litmus("a host doesn't see its own stores", 0, &base, own0, NULL, own_wrong, NEVER);
	litmus("a copy is seen half done", 1, &base, cp0, cp1, cp_mixed, SEEN);
	litmus("copy, flush, fence, flag: wrong bytes", 1, &base, cp0, cp1, cp_wrong, NEVER);
	litmus("copy, flag: wrong bytes", 0, &base, cp0, cp1, cp_wrong, SEEN);
	litmus("locks exclude, across switches", 0, &base, lock0, NULL, own_wrong, NEVER);
	V = 0;
	for (u32 seed = 1; seed < 200; seed++) {
		sim_reset(&S, seed, &base);
		sched_reset(&Q, 100000);
		memset(R, 0, sizeof R);
		for (int i = 0; i < 3; i++) sched_spawn(&Q, 0, lock0, NULL);
		sched_run(&Q);
		if (R[0] || S.failed) bad++, printf("FAIL locks, seed %u: %s\n", seed, S.failed ? S.what : "two inside");
	}
	run1(1, &base, sleep0, sleep1);
	/* a sleep counts a twentieth, as a verb counts twenty times (mem_sim.c) */
	check("time passes while a host sleeps", woke[0] >= 5000000 / 20 && woke[1] < 5000000 / 20);
	fates();
	faults();
	run1(77, &base, cp0, cp1);
	u64 d = digest();
	run1(78, &base, cp0, cp1);
	bool other = digest() != d;
	run1(77, &base, cp0, cp1);
	check("a seed gives one run", digest() == d && other);
	sched_destroy(&Q);
	sim_destroy(&S);
	if (bad) printf("%d failed\n", bad);
	return bad != 0;
}
