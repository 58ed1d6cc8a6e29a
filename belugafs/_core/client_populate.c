/* Page tables ahead of use.  The first touch of a page by a process is a fault, and to store into it one for each page, which
 * takes several times what storing into it takes.  So what is leased or reserved for the first time is mapped ahead, in large
 * pieces, by a thread that begins where its user begins and is faster.
 *
 * MADV_POPULATE_READ, for what is to be written, too: the kernel maps the neighbours of a page that is read along with it, and pages
 * of shared memory that are mapped writable are writable then.  Only what somebody asked for is touched: other pages of a pool
 * may not have been allocated yet.  It is a matter of speed alone; nobody waits for it. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "client.h"
#include "file.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

enum { WINDOW = CL_WINDOW, RANGES = 1024, STEP = 1 << 20 };

struct range { u64 from, to; bool write; }; /* windows */
struct cl_ahead {
	bfc *c;
	pthread_mutex_t mx;
	pthread_cond_t more;
	pthread_t thread;
	bool stop, runs;
	_Atomic(bool) useless; /* the kernel doesn't know how */
	struct range q[RANGES];
	u32 first, n;
	u64 nwords;
	_Atomic(u64) *done[2]; /* bit per window: asked for, of the mapping to read and of that to write */
};

static u64 bits(u64 from, u64 to, u64 word) /* of one word */
{
	u64 lo = from > word * 64 ? from - word * 64 : 0, hi = to - word * 64;
	return (hi >= 64 ? ~0ull : (1ull << hi) - 1) & ~0ull << lo;
}

static void *run(void *arg)
{
	struct cl_ahead *a = arg;
	bfc *c = a->c;
	pthread_mutex_lock(&a->mx);
	while (!a->stop) {
		if (!a->n) {
			pthread_cond_wait(&a->more, &a->mx);
			continue;
		}
		struct range r = a->q[a->first];
		u8 *base = r.write ? c->room : c->mem.base;
		u64 step = min64(r.to - r.from, STEP / WINDOW), off = r.from * WINDOW, end = min64((r.from + step) * WINDOW, c->mem.size);
		if ((a->q[a->first].from += step) == r.to) a->first = (a->first + 1) % RANGES, a->n--;
		pthread_mutex_unlock(&a->mx);
		bool unknown = end > off && madvise(base + off, end - off, MADV_POPULATE_READ) && errno == EINVAL;
		pthread_mutex_lock(&a->mx);
		if (!unknown) continue;
		a->useless = true;
		a->n = 0;
	}
	pthread_mutex_unlock(&a->mx);
	return NULL;
}

static struct cl_ahead *start(bfc *c) /* under c->mx */
{
	struct cl_ahead *a = calloc(1, sizeof *a);
	sigset_t all, old;
	if (!a) return NULL;
	a->c = c;
	pthread_mutex_init(&a->mx, NULL);
	pthread_cond_init(&a->more, NULL);
	a->nwords = c->mem.size / WINDOW / 64 + 1;
	for (int i = 0; i < 2; i++) a->done[i] = calloc(a->nwords, sizeof *a->done[i]);
	sigfillset(&all); /* signals are for the program's own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	a->runs = a->done[0] && a->done[1] && !pthread_create(&a->thread, NULL, run, a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	a->useless = !a->runs;
	__atomic_store_n(&c->ahead, a, __ATOMIC_RELEASE);
	return a;
}

void cl_ahead(bfc *c, bool write, const void *at, u64 len)
{
	struct cl_ahead *a = __atomic_load_n(&c->ahead, __ATOMIC_ACQUIRE);
	u8 *base = write ? c->room : c->mem.base;
	u64 off = (u64)((const u8 *)at - base), from = off / WINDOW, to = (off + len + WINDOW - 1) / WINDOW, news = 0;
	if (off + len > c->mem.size) return;
	if (!a) {
		pthread_mutex_lock(&c->mx);
		a = c->ahead ? c->ahead : start(c);
		pthread_mutex_unlock(&c->mx);
	}
	if (!a || !len) return;
	for (u64 w = from / 64; w <= (to - 1) / 64 && !atomic_load_explicit(&a->useless, memory_order_relaxed); w++) {
		u64 want = bits(from, to, w);
		if ((atomic_load_explicit(&a->done[write][w], memory_order_relaxed) & want) != want) news |= want & ~atomic_fetch_or_explicit(&a->done[write][w], want, memory_order_relaxed);
	}
	if (!news) return;
	pthread_mutex_lock(&a->mx);
	struct range *last = a->n ? &a->q[(a->first + a->n - 1) % RANGES] : NULL;
	if (last && last->write == write && last->from <= from && from <= last->to) {
		if (to > last->to) last->to = to;
	} else if (a->n < RANGES) { /* else it is mapped when it is touched */
		a->q[(a->first + a->n++) % RANGES] = (struct range){from, to, write};
	}
	if (a->n == 1) pthread_cond_signal(&a->more);
	pthread_mutex_unlock(&a->mx);
}

void cl_ahead_stop(bfc *c)
{
	struct cl_ahead *a = c->ahead;
	if (!a) return;
	if (!atomic_load(&c->forked)) { /* a child has no such thread, and may have its lock as it was at the fork */
		pthread_mutex_lock(&a->mx);
		a->stop = true;
		pthread_cond_signal(&a->more);
		pthread_mutex_unlock(&a->mx);
		if (a->runs) pthread_join(a->thread, NULL);
	}
	free((void *)a->done[0]);
	free((void *)a->done[1]);
	free(a);
	c->ahead = NULL;
}
