#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "sched.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define FIBER_OUT(fake, stack, size) __sanitizer_start_switch_fiber(fake, stack, size)
#define FIBER_IN(fake, stack, size) __sanitizer_finish_switch_fiber(fake, stack, size)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define FIBER_OUT(fake, stack, size) ((void)0)
#define FIBER_IN(fake, stack, size) ((void)0)
#define UNPOISON(p, n) ((void)0)
#endif

static struct sched *the; /* coroutines and the wrapped pthread calls find it here */

/* ---- the switch itself ------------------------------------------------------------ */
#if defined(__x86_64__)
void co_swap(void **save, void *load);
void co_start(void);
__asm__(".text\n.p2align 4\n.globl co_swap\n.type co_swap,@function\nco_swap:\n"
	"pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
	"movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
	"popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size co_swap,.-co_swap\n"
	".p2align 4\n.globl co_start\n.type co_start,@function\nco_start:\n"
	"callq co_body\nud2\n.size co_start,.-co_start\n");
static void co_prepare(struct co *c)
{
	u64 *sp = (u64 *)(c->stack + CO_STACK - 64); /* 16-byte aligned */
	*--sp = 0, *--sp = 0;
	*--sp = (u64)co_start;
	for (int i = 0; i < 6; i++) *--sp = 0;
	c->sp = sp;
}
#else
#include <ucontext.h>
static void co_swap(void **save, void *load)
{
	ucontext_t me, *to = load;
	*save = &me; /* lives on the stack that is left */
	swapcontext(&me, to);
}
void co_body(void);
static void co_prepare(struct co *c)
{
	ucontext_t *u = (ucontext_t *)(c->stack + CO_STACK - sizeof(ucontext_t) - 64);
	getcontext(u);
	u->uc_stack.ss_sp = c->stack;
	u->uc_stack.ss_size = CO_STACK - sizeof(ucontext_t) - 128;
	u->uc_link = NULL;
	makecontext(u, co_body, 0);
	c->sp = u;
}
#endif

static void to_main(struct co *c, bool last)
{
	FIBER_OUT(last ? NULL : &c->fake, the->main_stack, the->main_size);
	co_swap(&c->sp, the->sp);
	FIBER_IN(c->fake, NULL, NULL);
	(void)last;
}
void co_body(void)
{
	struct co *c = the->cur;
	FIBER_IN(NULL, &the->main_stack, &the->main_size);
	c->fn(c->arg);
	c->state = CO_DONE;
	to_main(c, true);
	abort();
}
static void resume(struct sched *q, struct co *c)
{
	q->cur = c;
	FIBER_OUT(&q->fake, c->stack, CO_STACK);
	co_swap(&q->sp, c->sp);
	FIBER_IN(q->fake, NULL, NULL);
	q->cur = NULL;
}

/* ---- who goes on -------------------------------------------------------------------- */
void sched_init(struct sched *q, struct sim *s)
{
	memset(q, 0, sizeof *q);
	q->s = s;
	for (int i = 0; i < CO_MAX; i++) {
		/* a page that faults below each stack */
		u8 *p = mmap(NULL, CO_STACK + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED) abort();
		mprotect(p, 4096, PROT_NONE);
		q->co[i].stack = p + 4096;
		q->co[i].self = &q->co[i];
	}
	the = q;
}
void sched_destroy(struct sched *q)
{
	for (int i = 0; i < CO_MAX; i++) munmap(q->co[i].stack - 4096, CO_STACK + 4096);
	the = NULL;
}
static void point(struct sim *s, int host, bool block)
{
	struct co *c = the->cur;
	(void)host;
	if (c && c->lazy && !block && rnd_p(&s->rng, c->lazy)) c->until = s->step + 1 + rnd_n(&s->rng, c->lazy_max);
	if (block) sched_wait(the);
	else sched_yield_now(the);
}
static void unlocked(void)
{
	for (int i = 0; the && i < CO_MAX; i++)
		if (the->co[i].state == CO_WAIT) the->co[i].state = CO_READY;
}
static void woken(struct sim *s)
{
	(void)s;
	unlocked();
}
static void sleep_ns(struct sim *s, int host, u64 ns)
{
	(void)s, (void)host;
	sched_sleep(the, ns);
}
void sched_reset(struct sched *q, u64 limit)
{
	the = q;
	q->limit = limit;
	q->fate = NULL;
	for (int i = 0; i < CO_MAX; i++) {
		q->co[i].state = CO_NONE;
		UNPOISON(q->co[i].stack, CO_STACK);
	}
	q->s->point = point;
	q->s->sleep = sleep_ns;
	q->s->woken = woken;
}
struct co *sched_spawn(struct sched *q, int host, void (*fn)(void *), void *arg)
{
	for (int i = 0; i < CO_MAX; i++) {
		struct co *c = &q->co[i];
		if (c->state != CO_NONE && c->state != CO_DONE) continue;
		if (c == q->cur) continue;
		UNPOISON(c->stack, CO_STACK);
		c->fake = NULL;
		c->fn = fn;
		c->arg = arg;
		c->host = host;
		c->state = CO_READY;
		c->until = 0;
		c->lazy = 0;
		co_prepare(c);
		return c;
	}
	sim_fail(q->s, "out of coroutines");
	return NULL;
}
void sched_yield_now(struct sched *q)
{
	if (q->cur) to_main(q->cur, false);
}
void sched_wait(struct sched *q)
{
	if (!q->cur) return;
	q->cur->state = CO_WAIT;
	to_main(q->cur, false);
}
void sched_sleep(struct sched *q, u64 ns)
{
	if (!q->cur) {
		q->s->now_ns += ns;
		return;
	}
	q->s->step++; /* who does nothing but sleep must not keep paused ones from going on */
	q->cur->state = CO_SLEEP;
	q->cur->wake_ns = q->s->now_ns + ns;
	to_main(q->cur, false);
}
void sched_kill_host(struct sched *q, int host)
{
	for (int i = 0; i < CO_MAX; i++)
		if (q->co[i].host == host && q->co[i].state != CO_DONE) q->co[i].state = CO_NONE;
}
void sched_pause_host(struct sched *q, int host, u64 steps)
{
	for (int i = 0; i < CO_MAX; i++)
		if (q->co[i].host == host) q->co[i].until = q->s->step + steps;
}
void sched_pause_one(struct sched *q, int host, u64 steps)
{
	u32 k = rnd_n(&q->s->rng, CO_MAX);
	for (int i = 0; i < CO_MAX; i++) {
		struct co *c = &q->co[(i + k) % CO_MAX];
		if (c->host != host || c->state == CO_NONE || c->state == CO_DONE) continue;
		c->until = q->s->step + steps;
		return;
	}
}
bool sched_runs(struct sched *q, int host)
{
	for (int i = 0; i < CO_MAX; i++)
		if (q->co[i].host == host && q->co[i].state != CO_NONE && q->co[i].state != CO_DONE) return true;
	return false;
}
void sched_run(struct sched *q)
{
	struct sim *s = q->s;
	while (!s->failed) {
		struct co *ready[CO_MAX];
		u32 n = 0, live = 0;
		u64 wake = ~0ull, until = ~0ull;
		if (s->step >= s->deadline && q->fate) {
			q->fate(q);
			continue;
		}
		for (int i = 0; i < CO_MAX; i++) {
			struct co *c = &q->co[i];
			if (c->state == CO_NONE || c->state == CO_DONE) continue;
			live++;
			if (c->state == CO_WAIT) continue;
			if (c->until > s->step) {
				if (c->until < until) until = c->until;
				continue;
			}
			if (c->state == CO_SLEEP && c->wake_ns > s->now_ns) {
				if (c->wake_ns < wake) wake = c->wake_ns;
				continue;
			}
			ready[n++] = c;
		}
		if (!live) return;
		if (s->step > q->limit) {
			sim_fail(s, "no end after %llu steps", (unsigned long long)q->limit);
			return;
		}
		if (!n) { /* time passes */
			if (wake != ~0ull) s->now_ns = wake;
			else if (until != ~0ull) s->step = until;
			else sim_fail(s, "deadlock: all wait for locks");
			continue;
		}
		struct co *c = ready[n > 1 ? rnd_n(&s->rng, n) : 0];
		c->state = CO_READY;
		resume(q, c);
	}
}

/* ---- what the core may call besides the verbs ------------------------------------------ */
/* Linked with --wrap: each coroutine is a thread of its own to the core, and a lock
 * that another coroutine holds is waited for by letting that one go on. */
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t *l);
pthread_t __real_pthread_self(void);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l);
pthread_t __wrap_pthread_self(void);

static bool waiting(void)
{
	if (!the || !the->cur) return false;
	the->s->step++;
	sched_wait(the);
	return true;
}
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	while (the && the->cur && pthread_mutex_trylock(m)) waiting();
	return the && the->cur ? 0 : __real_pthread_mutex_lock(m);
}
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
	while (the && the->cur && pthread_rwlock_tryrdlock(l)) waiting();
	return the && the->cur ? 0 : __real_pthread_rwlock_rdlock(l);
}
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
	while (the && the->cur && pthread_rwlock_trywrlock(l)) waiting();
	return the && the->cur ? 0 : __real_pthread_rwlock_wrlock(l);
}
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	unlocked();
	return __real_pthread_mutex_unlock(m);
}
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l)
{
	unlocked();
	return __real_pthread_rwlock_unlock(l);
}
pthread_t __wrap_pthread_self(void) { return the && the->cur ? (pthread_t)the->cur->self : __real_pthread_self(); }
