/* Simulated incoherent memory: one pool, and per host a private cache that is
 * only as fresh as its last fetch and only as visible as its last write-back.
 *
 * pool[] is the truth.  Every host reads and writes its own cache[] by plain
 * pointers (bfs_mem.base); clean[] is what a line held when it was last in step
 * with the pool.  A line announced by dirty() is dirty until it is flushed.  Nothing
 * moves between the two except at a verb, and there a random number decides:
 *
 *   dirty lines go to the pool by themselves, whole or torn into 8-byte words;
 *     a write-back stores the whole line, so stale neighbours go with it;
 *   clean lines are fetched again by themselves, near what changed lately;
 *   ntstores and flushes wait in a queue without order, which drains at a fence
 *     or earlier, line by line, whole or torn;
 *   an invalidated line is fetched somewhere between the inval and the fence.
 *
 * A dead process leaves its dirty lines and its queue to the machine, a crashed
 * host loses them, perhaps after some went out.  Everything follows from one seed.
 */
#ifndef BELUGAFS_MEM_SIM_H
#define BELUGAFS_MEM_SIM_H

#include <stdio.h>
#include <string.h>
#include "mem.h"

#define SIM_HOSTS 4
#define SIM_POOL_MAX (4u << 20)
#define SIM_LINES_MAX (SIM_POOL_MAX / BFS_LINE)
#define SIM_PAGES_MAX (SIM_POOL_MAX / 4096)
#define SIM_TRACE 4096 /* events kept, power of two */
#define SIM_HOT 64

struct rng { u64 s; };
static inline u64 rnd(struct rng *r)
{
	u64 z = (r->s += 0x9e3779b97f4a7c15ull);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}
static inline u32 rnd_n(struct rng *r, u32 n) { return (u32)(((rnd(r) >> 32) * n) >> 32); } /* 0 .. n-1 */
static inline bool rnd_p(struct rng *r, u32 permille) { return rnd_n(r, 1000) < permille; }

enum sim_verb { SV_STORE, SV_INVAL, SV_FLUSH, SV_FENCE, SV_DIRTY, SV_IN, SV_OUT, SV_ZERO, SV_PAUSE, SV_LOCK, SV_NOTE };

/* Probabilities of one run, in 1/1000 per verb where not said otherwise. */
struct sim_cfg {
	u32 p_switch;    /* another coroutine goes on */
	u32 p_event;     /* something moves in some host's cache by itself */
	u32 p_torn;      /* of what moves: in part only */
	u32 p_cached;    /* copy_in by plain stores, of the copies */
	u32 p_early;     /* an invalidated range is fetched at once and not at the fence */
	bool weak_fence; /* fences don't reach the pool: a broken machine */
	bool no_prefetch;
};

struct sim_wc { /* a line on its way to the pool */
	u32 line;
	u64 mask; /* bytes that are stored */
	u8 data[BFS_LINE];
};

struct sim_range { u32 line, n; };

struct sim_block { struct sim_block *next, *prev; size_t len; };

struct sim_host {
	struct sim *s;
	int id;
	struct bfs_mem m;
	u8 *cache, *clean;
	u8 *flag;          /* per line: SF_* */
	u32 *apos, *qpos;  /* per line: place in ann[] and q[] */
	u32 *ann;          /* lines announced by dirty() */
	u32 nann;
	struct sim_wc *q;
	u32 nq, qcap;
	struct sim_range *inv; /* invalidated, to be fetched by the fence */
	u32 ninv, invcap;
	bool process;      /* a process is alive here: announced lines stay announced */
	i64 skew_ns;
	struct sim_block heap;
	u8 touched[SIM_PAGES_MAX]; /* pages of cache[] that differ from the image */
};
enum { SF_ANN = 1, SF_Q = 2 };

struct sim_event { u64 step, w0, w1, w2; u32 a, b; u16 verb; int16_t host; const char *note; };

struct sim {
	struct sim_cfg cfg;
	struct rng rng;
	u8 *pool, *image;
	u64 size;
	u32 nlines;
	int nhosts;
	struct sim_host h[SIM_HOSTS];
	u8 *busy; /* per line: host + 1 with the line announced or queued */
	u8 touched[SIM_PAGES_MAX];
	u32 hot[SIM_HOT];
	u32 nhot;
	u64 step, now_ns;
	/* lines that several hosts may store: the splitter's.  NULL = none */
	bool (*shared_line)(struct sim *s, u32 line);
	/* called at verbs, by p_switch and when step reaches deadline; may run others meanwhile.
	 * block: nothing to do before somebody else did something. */
	void (*point)(struct sim *s, int host, bool block);
	void (*sleep)(struct sim *s, int host, u64 ns);
	void (*woken)(struct sim *s); /* a lock was given back */
	u64 deadline;
	bool failed;
	char what[400];
	struct sim_event ev[SIM_TRACE];
	u64 nev;
	bool trace; /* print events as they come */
	bool quiet_mem; /* no effects of their own and no switches: set-up and final check */
	u64 moved, torn, fetched; /* counters: what moved by itself */
	struct bfs_mem god;
	struct sim_block god_heap;
};

/* Pools of one size; image = the content that every run starts from. */
int sim_init(struct sim *s, int nhosts, u64 size);
void sim_image(struct sim *s); /* what is in pool[] now is the image */
void sim_reset(struct sim *s, u64 seed, const struct sim_cfg *cfg);
void sim_destroy(struct sim *s);

void sim_kill_process(struct sim *s, int host); /* heap freed, cache and queue stay */
void sim_crash(struct sim *s, int host);        /* cache and queue lost, perhaps after a part went out */
void sim_settle(struct sim *s, int host);       /* queue and dirty lines go out: the machine idles */
void sim_corrupt(struct sim *s, u64 off, u64 len); /* media damage in the pool */
/* a look from outside: plain memory on pool[] itself, no scheduling */
struct bfs_mem *sim_god(struct sim *s);

void sim_fail(struct sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_note(struct sim *s, int host, const char *note, u32 a, u32 b);
void sim_dump(struct sim *s, FILE *f, u32 last);

extern const struct bfs_mem_ops bfs_ops_sim;

#endif
