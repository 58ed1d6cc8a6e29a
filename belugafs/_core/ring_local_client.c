/* A process's rings to the daemons of its host, one after the other.  A ring is a memfd that the client makes and
 * that can't be cut; it serves one daemon: the next daemon gets another one, so no line ever has two writers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include "core.h"
#include "internal.h"
#include "ring_local.h"

enum { SLOTS = 128, AREA = 4 << 20, SPIN_NS = 30000, FULL_NS = 20000, FULL_MOST_NS = 1000000 };

struct end { /* one ring */
	struct rg_chan c;
	struct bfs_mem m;
	int fd, bell;
	_Atomic(int) alive;
	_Atomic(u32) death;
	u32 users; /* under rg_client.lock */
	bool old;  /* to be freed with its last user */
};
struct rg_client {
	pthread_mutex_t lock;
	struct rg_client_opts o;
	struct end *cur, *prev; /* prev: where a reply may still be found */
	u64 generation, id;
	_Atomic(u64) number; /* of the next request: counts on from ring to ring */
	struct rg_client_stats past;
	unsigned long forks;
};

static _Atomic(unsigned long) forks;
static void forked(void) { forks++; }
static void count_forks(void) { pthread_atfork(NULL, NULL, forked); }

static int wrong_process(struct rg_client *c)
{
	return c->forks == forks ? 0 : rg_error(-EXDEV, "this ring was made before fork(); a child process connects by itself");
}

/* ---- how it sleeps and wakes ------------------------------------------------------------------- */
static bool on_sleep(void *ctx, u32 slot, u32 seen, u64 ns)
{
	struct end *e = ctx;
	return rg_futex_wait(e->m.base + e->c.at.rep_line + (u64)slot * BFS_LINE, seen, ns);
}

static void on_bell(void *ctx)
{
	struct end *e = ctx;
	u64 one = 1;
	if (write(e->bell, &one, sizeof one) < 0) return; /* EAGAIN: it has rung 2^64 times without being read */
}

static bool on_gone(void *ctx)
{
	struct end *e = ctx;
	struct pollfd p = {.fd = e->alive};
	if (p.fd < 0) return false;
	p.events = (short)e->death;
	return poll(&p, 1, 0) > 0;
}

/* ---- rings ----------------------------------------------------------------------------------------- */
static void free_end(struct end *e)
{
	rg_chan_close(&e->c);
	munmap(e->m.base, e->m.size);
	close(e->fd);
	close(e->bell);
	if (e->alive >= 0) close(e->alive);
	free(e);
}

static int make_end(struct rg_client *c, struct end **out)
{
	struct rg_head h = {.slots = c->o.slots, .client = c->id, .start = c->o.start, .req_bytes = c->o.req_bytes, .rep_bytes = c->o.rep_bytes};
	struct rg_shape s = rg_shape(h.slots, h.req_bytes, h.rep_bytes);
	struct end *e = calloc(1, sizeof *e);
	if (!e) return -ENOMEM;
	e->fd = e->bell = e->alive = -1;
	int rc;
	if (getrandom(&h.nonce, sizeof h.nonce, 0) != sizeof h.nonce) goto failed;
	if ((e->fd = memfd_create("belugafs-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING)) < 0 || ftruncate(e->fd, (off_t)s.size)) goto failed;
	if (fcntl(e->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) || (e->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) goto failed;
	void *p = mmap(NULL, s.size, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	if (p == MAP_FAILED) goto failed;
	e->m = (struct bfs_mem){.ops = &bfs_ops_coherent, .base = p, .size = s.size, .coherent = true};
	madvise(p, s.rep_line + (s.req_pay - s.rep_line), 23 /* MADV_POPULATE_WRITE: lines; costs a fault each where there is none */);
	struct rg_waker w = {.sleep = on_sleep, .bell = on_bell, .gone = on_gone, .ctx = e};
	rc = rg_chan_init(&e->c, &e->m, &h, &w, c->o.spin_ns < 0 ? 0 : (u64)c->o.spin_ns);
	if (rc) {
		munmap(p, s.size);
		goto out;
	}
	*out = e;
	return 0;
failed:
	rc = -errno;
	rg_error(rc, "a request ring can't be made: %s", strerror(-rc));
out:
	if (e->fd >= 0) close(e->fd);
	if (e->bell >= 0) close(e->bell);
	free(e);
	return rc;
}

int rg_client_new(const struct rg_client_opts *o, struct rg_client **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, count_forks);
	bfs_guard_install();
	struct rg_client *c = calloc(1, sizeof *c);
	if (!c) return -ENOMEM;
	if (o) c->o = *o;
	if (!c->o.slots) c->o.slots = SLOTS;
	if (!c->o.req_bytes) c->o.req_bytes = AREA;
	if (!c->o.rep_bytes) c->o.rep_bytes = AREA / 4;
	if (!c->o.spin_ns) c->o.spin_ns = rg_only_cpu() ? -1 : SPIN_NS;
	if (!c->o.start) c->o.start = 1;
	c->forks = forks, c->number = 1;
	pthread_mutex_init(&c->lock, NULL);
	int rc = getrandom(&c->id, sizeof c->id, 0) == sizeof c->id ? make_end(c, &c->cur) : -errno;
	if (rc) {
		free(c);
		return rc;
	}
	c->generation = 1;
	*out = c;
	return 0;
}

static void count(struct rg_client_stats *s, struct rg_chan *c)
{
	rg_lock(c->m, &c->lock);
	s->calls += c->calls, s->sleeps += c->sleeps;
	rg_unlock(c->m, &c->lock);
	s->bells += __atomic_load_n(&c->bells, __ATOMIC_RELAXED), s->missed += __atomic_load_n(&c->missed, __ATOMIC_RELAXED);
}

static void retire(struct rg_client *c, struct end *e) /* under lock */
{
	count(&c->past, &e->c);
	e->old = true;
	if (!e->users) free_end(e);
}

void rg_client_forked(struct rg_client *c)
{
	for (int i = 0; i < 2; i++) {
		struct end *e = i ? c->prev : c->cur;
		if (!e) continue;
		close(e->fd), close(e->bell);
		if (e->alive >= 0) close(e->alive);
		e->fd = e->bell = e->alive = -1;
	}
}

void rg_client_free(struct rg_client *c)
{
	if (c->forks != forks) { /* the parent's ring goes on: nothing is written into it */
		for (int i = 0; i < 2; i++) {
			struct end *e = i ? c->prev : c->cur;
			if (!e) continue;
			munmap(e->m.base, e->m.size);
			if (e->fd >= 0) close(e->fd), close(e->bell);
			if (e->alive >= 0) close(e->alive);
		}
		return;
	}
	if (c->prev) free_end(c->prev);
	free_end(c->cur);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int rg_client_fds(struct rg_client *c, int *ring, int *bell, u64 *generation)
{
	int rc = wrong_process(c);
	if (rc) return rc;
	pthread_mutex_lock(&c->lock);
	*ring = c->cur->fd, *bell = c->cur->bell;
	if (generation) *generation = c->generation;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

int rg_client_daemon(struct rg_client *c, int alive_fd)
{
	int fd = -1, rc = wrong_process(c);
	if (rc) return rc;
	if (alive_fd >= 0 && (fd = fcntl(alive_fd, F_DUPFD_CLOEXEC, 3)) < 0) return rg_error(-errno, "the daemon's descriptor: %s", strerror(errno));
	pthread_mutex_lock(&c->lock);
	struct end *e = c->cur;
	int was = e->alive;
	if (fd >= 0) e->death = rg_death(fd);
	if (was >= 0 && fd >= 0) dup3(fd, was, O_CLOEXEC), close(fd); /* the number stays: a waiter may be looking at it */
	else e->alive = fd >= 0 ? fd : was;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

int rg_client_renew(struct rg_client *c, u64 generation)
{
	struct end *e = NULL;
	int rc = wrong_process(c);
	if (rc) return rc;
	pthread_mutex_lock(&c->lock);
	if (generation == c->generation) {
		rc = make_end(c, &e);
		if (!rc) {
			if (c->prev) retire(c, c->prev);
			c->prev = c->cur;
			c->cur = e;
			c->generation++;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

struct rg_chan *rg_client_chan(struct rg_client *c) { return &c->cur->c; }

void rg_client_stats(struct rg_client *c, struct rg_client_stats *s)
{
	pthread_mutex_lock(&c->lock);
	*s = c->past;
	if (c->prev) count(s, &c->prev->c);
	count(s, &c->cur->c);
	s->generation = c->generation;
	s->spin_ns = __atomic_load_n(&c->cur->c.spin_ns, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&c->lock);
}

/* ---- asking ---------------------------------------------------------------------------------------------- */
static void leave(struct rg_client *c, struct end *e)
{
	pthread_mutex_lock(&c->lock);
	if (!--e->users && e->old) free_end(e);
	pthread_mutex_unlock(&c->lock);
}

/* Asked before, of the daemon before this one, and answered by it: 1. */
static int answered(struct end *e, struct rg_call *k)
{
	if (!e || !rg_find(&e->c, k)) return 0;
	int rc = rg_take(&e->c, k);
	if (!rc) rg_leave(&e->c, k);
	return rc;
}

int rg_call(struct rg_client *c, struct rg_call *k, u64 timeout_ns)
{
	int rc = wrong_process(c);
	if (rc) return rc;
	u64 deadline = timeout_ns ? bfs_ops_coherent.mono_ns(NULL) + timeout_ns : 0, pause = FULL_NS;
	bool again = k->number != 0, asked = false;
	pthread_mutex_lock(&c->lock);
	struct end *e = c->cur;
	e->users++;
	rc = again ? answered(c->prev, k) : 0;
	pthread_mutex_unlock(&c->lock);
	if (rc) goto out;
	if (again && !(asked = rg_find(&e->c, k))) k->flags |= RG_AGAIN;
	if (!again) k->number = c->number++;
	while (!asked) {
		if (!(rc = rg_submit(&e->c, k))) break;
		if (rc == -EAGAIN && rg_gone(&e->c)) rc = rg_error(-ENOTCONN, "the daemon has ended, and the request was not asked: connect to the next one");
		if (rc != -EAGAIN) goto not_asked;
		u64 now = bfs_ops_coherent.mono_ns(NULL);
		if (deadline && now >= deadline) { /* never asked: there is nothing unknown */
			rc = rg_error(-ETIMEDOUT, "the request ring was full all the time; the request was not asked");
			goto not_asked;
		}
		bfs_ops_coherent.pause(NULL, pause);
		if (pause < FULL_MOST_NS) pause *= 2;
	}
	rg_kick(&e->c);
	rc = rg_wait(&e->c, k, deadline);
	if (rc == 0 || rc == -ENOTCONN) rg_leave(&e->c, k);
	if (rc == 0) rc = rg_error(-ETIMEDOUT, "no answer in time; it is unknown whether request %llu was done: ask again with its number", (unsigned long long)k->number);
	else if (rc == -ENOTCONN) rg_error(rc, "the daemon has ended; it is unknown whether request %llu was done: connect to the next one, and ask again with its number", (unsigned long long)k->number);
out:
	leave(c, e);
	return rc == 1 ? 0 : rc;
not_asked:
	if (!again) k->number = 0;
	goto out;
}
