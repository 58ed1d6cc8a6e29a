/* Coroutines: one thread, switched at the verbs of the simulated memory, so that
 * a run follows from its seed. */
#ifndef BELUGAFS_SCHED_H
#define BELUGAFS_SCHED_H

#include "mem_sim.h"

#define CO_MAX 16
#define CO_STACK (192u << 10)

enum { CO_NONE, CO_READY, CO_SLEEP, CO_WAIT, CO_DONE };
struct co {
	void *sp;
	u8 *stack;
	void *fake; /* AddressSanitizer's */
	void (*fn)(void *);
	void *arg;
	int host, state;
	u64 wake_ns;  /* CO_SLEEP */
	u64 until;    /* step before which it isn't scheduled */
	u32 lazy;     /* of 1000 switches away from it: it gets no CPU for up to lazy_max steps */
	u32 lazy_max;
	void *self;   /* what pthread_self() says in it */
};
struct sched {
	struct sim *s;
	struct co co[CO_MAX];
	struct co *cur; /* NULL: the caller of sched_run() */
	void *sp, *fake;
	const void *main_stack;
	size_t main_size;
	u64 limit; /* steps: more is an endless loop */
	/* what the world does at s->deadline (kills, pauses); sets the next one */
	void (*fate)(struct sched *q);
	void *world;
};

void sched_init(struct sched *q, struct sim *s);
void sched_reset(struct sched *q, u64 limit);
void sched_destroy(struct sched *q);
struct co *sched_spawn(struct sched *q, int host, void (*fn)(void *), void *arg);
void sched_yield_now(struct sched *q); /* of a coroutine: somebody else goes on */
void sched_sleep(struct sched *q, u64 ns);
void sched_wait(struct sched *q); /* until somebody unlocks something */
void sched_kill_host(struct sched *q, int host); /* its coroutines never go on */
void sched_pause_host(struct sched *q, int host, u64 steps);
void sched_pause_one(struct sched *q, int host, u64 steps); /* one coroutine of it: a thread that gets no CPU */
bool sched_runs(struct sched *q, int host);
/* until all are done, the run failed, or steps ran out */
void sched_run(struct sched *q);

#endif
