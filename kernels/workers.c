/* Threads that take parts of jobs.
 *
 * A job lies on its caller's stack.  The caller takes parts itself, so a job is never slower than
 * without threads by more than the wake-up, and a machine whose other processors are busy loses
 * nothing.  All fields of a job but `next` change under `lock`.  A job is in the list while it may
 * have parts left; its caller returns only when no worker is inside it (`inside` is 0), and has
 * then taken it out of the list itself.  The lock orders what the workers wrote before the return.
 *
 * Workers are never ended: they sleep.  A child of fork() has none of them, and starts its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include "bfk.h"

#define WORKERS_MAX 63

struct job {
	int (*run)(void *arg, uint64_t part);
	void *arg;
	uint64_t parts;
	_Atomic uint64_t next;
	atomic_int rc;
	unsigned inside, room; /* workers inside; how many more may come in */
	pthread_cond_t idle;
	struct job *later;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static struct job *jobs;
static unsigned nworkers;

static void take_parts(struct job *job)
{
	for (;;) {
		uint64_t part = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
		if (part >= job->parts) return;
		int rc = bfk_guarded(job->run, job->arg, part), none = 0;
		if (rc) {
			atomic_compare_exchange_strong(&job->rc, &none, rc);
			atomic_store(&job->next, job->parts);
			return;
		}
	}
}

static struct job *find_job(void)
{
	for (struct job *job = jobs; job; job = job->later)
		if (job->room && atomic_load_explicit(&job->next, memory_order_relaxed) < job->parts) return job;
	return NULL;
}

static void *worker(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct job *job = find_job();
		if (!job) {
			pthread_cond_wait(&wanted, &lock);
			continue;
		}
		job->room--, job->inside++;
		pthread_mutex_unlock(&lock);
		take_parts(job);
		pthread_mutex_lock(&lock);
		if (--job->inside == 0) pthread_cond_signal(&job->idle);
	}
	return NULL;
}

/* Holding the lock across fork() keeps the list whole; a job under way in another thread of the
 * parent has no thread in the child, so the list is emptied there. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&wanted, NULL);
	jobs = NULL;
	nworkers = 0;
}
static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

/* With the lock held.  That fewer threads can be had than wanted is no error. */
static void start_workers(unsigned want)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_once(&once, watch_forks);
	if (want > WORKERS_MAX) want = WORKERS_MAX;
	if (nworkers >= want || pthread_attr_init(&attr)) return;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	sigfillset(&all); /* signals are the program's; those of a faulting copy come all the same */
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGSEGV);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (pthread_t thread; nworkers < want && !pthread_create(&thread, &attr, worker, NULL);) nworkers++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
}

int bfk_workers_run(int (*run)(void *arg, uint64_t part), void *arg, uint64_t parts, unsigned threads)
{
	struct job job = {.run = run, .arg = arg, .parts = parts, .idle = PTHREAD_COND_INITIALIZER};
	if (threads > parts) threads = (unsigned)parts;
	if (threads <= 1) {
		take_parts(&job);
		return atomic_load(&job.rc);
	}
	job.room = threads - 1;
	pthread_mutex_lock(&lock);
	start_workers(threads - 1);
	struct job **end = &jobs;
	while (*end) end = &(*end)->later;
	*end = &job;
	if (threads == 2) pthread_cond_signal(&wanted);
	else pthread_cond_broadcast(&wanted);
	pthread_mutex_unlock(&lock);

	take_parts(&job);

	pthread_mutex_lock(&lock);
	for (struct job **at = &jobs; *at; at = &(*at)->later)
		if (*at == &job) {
			*at = job.later;
			break;
		}
	while (job.inside) pthread_cond_wait(&job.idle, &lock);
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&job.idle);
	return atomic_load(&job.rc);
}
