/* The request ring between two hosts whose caches aren't coherent, on simulated memory: client threads on host 0,
 * the server on host 1, each run from one seed.  A request is taken whole and once, its reply whole and by the one
 * who asked; nothing waits for ever; a ring made over another one is not confused by it; and where fences don't
 * reach the pool, bytes may be late, never wrong.
 *
 *   t_ring_sim             SEEDS runs (environment; default 3000)
 *   t_ring_sim --mutants   each step left out in turn has to be noticed */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include "core.h"
#include "ring.h"
#include "sim/sched.h"
#ifdef BFS_MUTANTS
#include "internal.h"
int bfs_mutant;
#endif

enum { SLOTS = 4, AREA = 8192, THREADS = 3, CALLS = 24, NUMBERS = 4096, OP = 77 };

static struct sim S;
static struct sched Q;
static struct rg_chan C;
static struct rg_port P;
static struct rg_buffers B;
static u8 done[NUMBERS];
static bool naps, give_up; /* this run: sleep and wake; time-outs */
static u32 finished, nthreads, spins;
static bool stop, bell, woken[RG_SLOTS_MAX];
static u64 life, next_number;

static u8 byte_of(u64 number, u32 i) { return (u8)((number * 0x9e3779b97f4a7c15ull + life * 77) >> (i % 8 * 8)) ^ (u8)(i / 8); }
static u8 back_of(u64 number, u32 i) { return (u8)(byte_of(number, i) + 101); } /* of the reply */
static u32 len_of(u64 number, u32 salt)
{
	u64 x = (number + salt) * 0xd1b54a32d192ed03ull;
	x ^= x >> 31;
	u32 n = (u32)(x >> 40);
	return x & 3 ? n % 200 : x & 4 ? n % 1200 : n % 3000;
}

/* ---- sleeping ------------------------------------------------------------------------------------- */
static bool on_sleep(void *ctx, u32 slot, u32 seen, u64 ns)
{
	(void)ctx, (void)seen, (void)ns;
	while (!woken[slot] && !S.failed) {
		S.step++;
		sched_wait(&Q);
	}
	woken[slot] = false;
	return true;
}
static void on_bell(void *ctx)
{
	(void)ctx;
	bell = true;
	S.woken(&S);
}
static void on_wake(void *ctx, u32 slot)
{
	(void)ctx;
	woken[slot] = true;
	S.woken(&S);
}

/* ---- the two sides ----------------------------------------------------------------------------------- */
static int exec(void *ctx, struct rg_job *j)
{
	(void)ctx;
	if (j->op != OP || j->number >= NUMBERS || j->arg != j->number * 7 + life) {
		sim_fail(&S, "a request that nobody made: op %u, number %llu", j->op, (unsigned long long)j->number);
		return -EIO;
	}
	if (done[j->number]++) sim_fail(&S, "request %llu is done twice", (unsigned long long)j->number);
	if (j->in_len != len_of(j->number, 1)) sim_fail(&S, "request %llu has %u bytes", (unsigned long long)j->number, j->in_len);
	for (u32 i = 0; i < j->in_len && !S.failed; i++)
		if (j->in[i] != byte_of(j->number, i)) sim_fail(&S, "request %llu: byte %u of %u is wrong", (unsigned long long)j->number, i, j->in_len);
	j->out_len = len_of(j->number, 2);
	for (u32 i = 0; i < j->out_len; i++) j->out[i] = back_of(j->number, i);
	j->result = j->number * 3;
	if (j->number % 5 == 0) {
		j->out_len = 0;
		return rg_error(-EEXIST, "text of %llu", (unsigned long long)j->number);
	}
	return 0;
}

static void check_reply(struct rg_call *k, const u8 *reply)
{
	char text[64];
	int want = k->number % 5 ? 0 : -EEXIST;
	snprintf(text, sizeof text, "text of %llu", (unsigned long long)k->number);
	if (k->status != want || k->result != k->number * 3) sim_fail(&S, "reply to %llu: status %d, result %llu", (unsigned long long)k->number, k->status, (unsigned long long)k->result);
	if (!want && k->reply_len != len_of(k->number, 2)) sim_fail(&S, "reply to %llu: %u bytes", (unsigned long long)k->number, k->reply_len);
	for (u32 i = 0; i < k->reply_len && !S.failed; i++)
		if (reply[i] != back_of(k->number, i)) sim_fail(&S, "reply to %llu: byte %u is wrong", (unsigned long long)k->number, i);
	if (want && strcmp(k->text, text)) sim_fail(&S, "reply to %llu: text \"%s\"", (unsigned long long)k->number, k->text);
	if (done[k->number] != 1) sim_fail(&S, "reply to %llu, which was done %u times", (unsigned long long)k->number, done[k->number]);
}

static u8 pay[THREADS][3200], reply[THREADS][3200]; /* the stacks of coroutines are small */
static void client(void *arg)
{
	u32 me = (u32)(uintptr_t)arg;
	struct bfs_mem *m = C.m;
	for (u32 n = 0; n < CALLS && !S.failed; n++) {
		struct rg_call k = {.op = OP, .number = next_number++, .payload = pay[me], .reply = reply[me], .reply_cap = 3000};
		int rc;
		k.arg = k.number * 7 + life, k.len = len_of(k.number, 1);
		for (u32 i = 0; i < k.len; i++) pay[me][i] = byte_of(k.number, i);
		while ((rc = rg_submit(&C, &k)) == -EAGAIN && !S.failed) m->ops->pause(m, 20000);
		if (rc) sim_fail(&S, "submit: %d", rc);
		rg_kick(&C);
		bool short_one = give_up && rnd_n(&S.rng, 3) == 0;
		rc = rg_wait(&C, &k, short_one ? m->ops->mono_ns(m) + rnd_n(&S.rng, 6000) : 0);
		while (rc == 0 && !S.failed) { /* not there: asked for again now, later, or never */
			u32 how = rnd_n(&S.rng, 3);
			rg_leave(&C, &k);
			if (how == 0) break;
			if (how == 1) m->ops->pause(m, 40000);
			if (!rg_find(&C, &k)) break; /* somebody has seen that it was answered */
			rc = rg_wait(&C, &k, 0);
		}
		if (rc == 1) check_reply(&k, reply[me]);
		else if (rc) sim_fail(&S, "wait for %llu: %d", (unsigned long long)k.number, rc);
	}
	if (++finished == nthreads) {
		stop = true;
		on_bell(NULL);
	}
}

static void server(void *arg)
{
	struct bfs_mem *m = arg;
	u32 idle = 0;
	if (rg_port_open(&P, m, 5, 6) || rg_buffers_fit(m, &B, &P)) {
		sim_fail(&S, "the ring can't be opened: %s", bfs_errmsg());
		return;
	}
	while (!stop && !S.failed) {
		if (rg_port_serve(&P, &B, 1 + rnd_n(&S.rng, 3), exec, NULL, naps ? on_wake : NULL, NULL)) {
			idle = 0;
			continue;
		}
		if (!naps) m->ops->pause(m, 1000);
		if (!naps || idle++ < spins) continue;
		if (!rg_port_doze(&P, &B, 2, exec, NULL, on_wake, NULL)) {
			while (!bell && !stop && !S.failed) {
				S.step++;
				sched_wait(&Q);
			}
			bell = false;
		}
		rg_port_awake(&P);
		idle = 0;
	}
	rg_buffers_free(m, &B);
	memset(&B, 0, sizeof B);
}

static void killed(struct sched *q)
{
	sched_kill_host(q, 0);
	sim_kill_process(&S, 0);
	S.deadline = ~0ull;
	stop = true;
	on_bell(NULL);
}

static void one_life(u64 start, bool dies)
{
	struct rg_head h = {.slots = SLOTS, .req_bytes = AREA, .rep_bytes = AREA, .start = start, .client = 9, .nonce = rnd(&S.rng)};
	struct rg_waker w = {.sleep = naps ? on_sleep : NULL, .bell = naps ? on_bell : NULL};
	memset(done, 0, sizeof done);
	memset(woken, 0, sizeof woken);
	memset(&B, 0, sizeof B);
	next_number = 1, finished = 0, stop = bell = false;
	S.h[0].process = true;
	S.quiet_mem = true; /* the server is told of it only then */
	if (rg_chan_init(&C, &S.h[0].m, &h, &w, rnd_n(&S.rng, 2) * rnd_n(&S.rng, 4000))) sim_fail(&S, "init: %s", bfs_errmsg());
	sim_settle(&S, 0); /* where fences don't reach the pool as well: it is told by other means, and late */
	S.quiet_mem = false;
	for (u32 i = 0; i < nthreads; i++) sched_spawn(&Q, 0, client, (void *)(uintptr_t)i);
	sched_spawn(&Q, 1, server, &S.h[1].m);
	if (dies) S.deadline = S.step + 50 + rnd_n(&S.rng, 3000), Q.fate = killed;
	sched_run(&Q);
	S.deadline = ~0ull, Q.fate = NULL;
	if (!S.failed && !S.cfg.weak_fence && (P.late || C.late))
		sim_fail(&S, "payload behind its line: %llu requests', %llu replies'", (unsigned long long)P.late, (unsigned long long)C.late);
}

static bool run(u64 seed, bool show)
{
	struct rng r = {seed * 31};
	struct sim_cfg cfg = {.p_switch = 100 + rnd_n(&r, 400), .p_event = rnd_n(&r, 300), .p_torn = 300, .p_cached = 500, .p_early = 100 + rnd_n(&r, 500)};
	cfg.no_prefetch = rnd_n(&r, 3) == 0;
	cfg.weak_fence = rnd_n(&r, 5) == 0;
	if (cfg.weak_fence) cfg.p_event = 200 + rnd_n(&r, 300); /* nothing else would bring it there */
	naps = !cfg.weak_fence && rnd_n(&r, 3);
	give_up = !naps && rnd_n(&r, 2);
	nthreads = 1 + rnd_n(&r, THREADS);
	spins = rnd_n(&r, 4);
	bool two = rnd_n(&r, 2);
	u64 start = rnd_n(&r, 2) ? 1 : 0ull - rnd_n(&r, 20); /* positions that wrap around */
	sim_reset(&S, seed, &cfg);
	S.trace = false;
	sched_reset(&Q, 400000);
	life = seed;
	one_life(start, two);
	if (two && !S.failed) {
		life++;
		one_life(start, false);
	}
	if (S.failed && show) {
		printf("seed %llu: %s\n", (unsigned long long)seed, S.what);
		sim_dump(&S, stdout, 60);
	}
	return !S.failed;
}

#ifdef BFS_MUTANTS
static const char *const names[] = {
	"request's payload isn't flushed", "request's payload isn't fenced", "request's payload isn't read fresh", "request's checksum isn't checked",
	"request's position isn't checked", "request's payload isn't checked", "server polls its own cache", "reply's payload isn't flushed",
	"reply's payload isn't fenced", "reply's payload isn't read fresh", "reply's checksum isn't checked", "reply's position isn't checked",
	"reply's payload isn't checked", "client polls its own cache", "client sleeps without a fence", "client sleeps without a last look",
	"server sleeps without a fence", "server sleeps without a last look", "server looks for sleepers without a fence",
	"client looks for the bell without a fence", "checksums don't know their ring", "a slot is used again early",
};
_Static_assert(sizeof names / sizeof *names == RG_MUT_END - RG_MUT_FIRST, "a name for each");

static int mutants(u64 seeds)
{
	int bad = 0;
	for (int m = RG_MUT_FIRST; m < RG_MUT_END; m++) {
		u64 seed = 1;
		bfs_mutant = m;
		while (seed <= seeds && run(seed, false)) seed++;
		bfs_mutant = 0;
		bool noticed = seed <= seeds;
		printf("%s %-46s seed %llu: %s\n", noticed ? "ok  " : "FAIL", names[m - RG_MUT_FIRST], (unsigned long long)seed, noticed ? S.what : "not noticed");
		if (noticed && !run(seed, true)) printf("FAIL   the same seed fails with nothing left out\n"), bad++;
		bad += !noticed;
	}
	printf("%d of %d not noticed\n", bad, RG_MUT_END - RG_MUT_FIRST);
	return bad != 0;
}
#endif

int main(int argc, char **argv)
{
	u64 seeds = getenv("SEEDS") ? strtoull(getenv("SEEDS"), NULL, 10) : 3000;
	u64 size = (rg_shape(SLOTS, AREA, AREA).size + 4095) & ~4095ull, bad = 0;
	if (sim_init(&S, 2, size)) return 2;
	sim_image(&S);
	sched_init(&Q, &S);
	if (argc == 2 && !strcmp(argv[1], "--mutants")) {
#ifdef BFS_MUTANTS
		return mutants(seeds);
#else
		fprintf(stderr, "built without mutants\n");
		return 2;
#endif
	}
	if (argc == 2) return !run(strtoull(argv[1], NULL, 10), true);
	for (u64 seed = 1; seed <= seeds && bad < 3; seed++) bad += !run(seed, true);
	printf("t_ring_sim: %llu seeds, %llu failed\n", (unsigned long long)seeds, (unsigned long long)bad);
	sched_destroy(&Q);
	sim_destroy(&S);
	return bad != 0;
}
