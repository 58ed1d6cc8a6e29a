/* The daemon's side for the processes of its host: service threads, each with rings of its own.
 *
 * A ring is served by one thread for all its life, so requests of a ring are done in their order and nothing is
 * shared between threads but the list of rings.  A thread polls its rings as long as there is work and some
 * microseconds after it; then it says so in each ring, looks once more, and sleeps in epoll_wait: for bells, for
 * the death of clients, for changes of its list. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include "core.h"
#include "internal.h"
#include "ring_local.h"

enum { THREADS_MAX = 64, RINGS_MAX = 4096, TURN = 64, LOOKS = 32, SPIN_NS = 50000, SPIN_LEAST_NS = 2000, EVENTS_NS = 1000000, EVENTS = 32 };
enum { EV_KICK, EV_BELL, EV_DEATH };

struct ring {
	struct rg_port p;
	struct bfs_mem m;
	int bell, alive;
	u64 id, bad_seen, refused_seen;
	_Atomic(u32) remove;
	bool died, left, in; /* in: of the thread's array */
	struct ring *next;   /* under rg_server.lock */
};
struct worker {
	struct rg_server *s;
	pthread_t thread;
	bool runs;
	int ep, kick;
	struct ring **live; /* of this thread alone */
	u32 nlive, cap;
	_Atomic(bool) changed;
	struct rg_buffers buf;
	u64 spin_ns;
	_Atomic(u64) requests, refused, bad_lines, wakes, sleeps, spins, bells;
};
struct rg_server {
	struct rg_server_opts o;
	pthread_mutex_t lock;
	struct ring *rings;
	u64 nrings, rings_ever, clients_died, epoch;
	_Atomic(bool) stop;
	u32 nworkers;
	struct worker w[THREADS_MAX];
};

/* of a worker's own counters: nobody else writes them */
static void add_to(_Atomic(u64) *x, u64 n) { atomic_store_explicit(x, atomic_load_explicit(x, memory_order_relaxed) + n, memory_order_relaxed); }
static void kick(struct worker *w)
{
	u64 one = 1;
	if (write(w->kick, &one, sizeof one) < 0) return;
}

static void *reply_word(struct ring *r, u32 slot) { return r->m.base + r->p.at.rep_line + (u64)slot * BFS_LINE; }

struct turn { struct worker *w; struct ring *r; };
static void on_wake(void *ctx, u32 slot)
{
	struct turn *t = ctx;
	add_to(&t->w->bells, 1);
	rg_futex_wake(reply_word(t->r, slot));
}

static int on_exec(void *ctx, struct rg_job *j)
{
	struct worker *w = ctx;
	add_to(&w->requests, 1); /* who has its reply finds it counted */
	return w->s->o.exec(w->s->o.ctx, j);
}

static int serve(struct worker *w, struct ring *r, bool doze)
{
	struct turn t = {w, r};
	int n = (doze ? rg_port_doze : rg_port_serve)(&r->p, &w->buf, TURN, on_exec, w, on_wake, &t);
	if (r->p.refused != r->refused_seen) add_to(&w->refused, r->p.refused - r->refused_seen), r->refused_seen = r->p.refused;
	/* the same one is met at every look */
	if (r->p.bad_lines != r->bad_seen) add_to(&w->bad_lines, 1), r->bad_seen = r->p.bad_lines;
	return n;
}

/* ---- the list of rings ------------------------------------------------------------------------ */
static void free_ring(struct ring *r)
{
	munmap(r->m.base, r->m.size);
	close(r->bell);
	if (r->alive >= 0) close(r->alive);
	free(r);
}

/* Tells whoever waits in it that nobody will answer any more. */
static void end_ring(struct ring *r)
{
	struct rg_state s;
	rg_port_close(&r->p);
	rg_get(&r->m, &s, r->m.base + RG_L_CLIENT * BFS_LINE);
	for (u32 i = 0; i < r->p.head.slots; i++)
		if (s.asleep[i / 64] >> i % 64 & 1) rg_futex_wake(reply_word(r, i));
}

static void drop_ring(struct worker *w, struct ring *r)
{
	struct rg_server *s = w->s;
	epoll_ctl(w->ep, EPOLL_CTL_DEL, r->bell, NULL);
	if (r->alive >= 0) epoll_ctl(w->ep, EPOLL_CTL_DEL, r->alive, NULL);
	pthread_mutex_lock(&s->lock);
	for (struct ring **x = &s->rings; *x; x = &(*x)->next)
		if (*x == r) {
			*x = r->next;
			break;
		}
	s->nrings--;
	s->clients_died += r->died;
	pthread_mutex_unlock(&s->lock);
	if (!r->died) end_ring(r);
	if (s->o.gone) s->o.gone(s->o.gone_ctx, r->id, r->died);
	free_ring(r);
}

static u32 worker_of(struct rg_server *s, u64 id) { return (u32)(id % s->nworkers); }

/* What was added and what is to go, since the last time. */
static void relist(struct worker *w)
{
	struct rg_server *s = w->s;
	u32 n = 0;
	for (u32 i = 0; i < w->nlive; i++) {
		struct ring *r = w->live[i];
		if (r->died || r->left || r->remove) drop_ring(w, r);
		else w->live[n++] = r;
	}
	w->nlive = n;
	pthread_mutex_lock(&s->lock);
	for (struct ring *r = s->rings; r; r = r->next) {
		if (r->in || worker_of(s, r->id) != (u32)(w - s->w)) continue;
		if (w->nlive == w->cap) {
			struct ring **x = realloc(w->live, (2 * (size_t)w->cap + 16) * sizeof *x);
			if (!x) break;
			w->live = x, w->cap = 2 * w->cap + 16;
		}
		if (rg_buffers_fit(&r->m, &w->buf, &r->p)) r->left = true; /* no memory: its client is told that nobody serves it */
		r->in = true;
		w->live[w->nlive++] = r;
		/* its bell may have rung before: what it asked for is seen by polling, that it closed only here */
		if (rg_port_left(&r->p)) r->left = true;
		if (r->left || r->remove) atomic_store(&w->changed, true);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- events ---------------------------------------------------------------------------------------- */
static void events(struct worker *w, int timeout_ms)
{
	struct epoll_event ev[EVENTS];
	int n = epoll_wait(w->ep, ev, EVENTS, timeout_ms);
	for (int i = 0; i < n; i++) {
		u64 id = ev[i].data.u64 >> 2, kind = ev[i].data.u64 & 3;
		if (kind == EV_KICK) continue; /* edge-triggered, as bells are: nothing of a client's is read */
		for (u32 k = 0; k < w->nlive; k++) {
			struct ring *r = w->live[k];
			if (r->id != id) continue;
			if (kind == EV_DEATH) r->died = true;
			else if (rg_port_left(&r->p)) r->left = true;
			if (r->died || r->left) atomic_store(&w->changed, true);
		}
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct rg_server *s = w->s;
	const u64 most = s->o.spin_ns < 0 ? 0 : (u64)s->o.spin_ns;
	u64 idle = 0, looked = 0, spins = 0; /* idle: since when there was nothing */
	w->spin_ns = most;
	for (u32 looks = 1; !atomic_load_explicit(&s->stop, memory_order_relaxed); looks++) {
		/* again until nothing changes: what relist itself finds to be of no use isn't served */
		while (atomic_load_explicit(&w->changed, memory_order_relaxed) && atomic_exchange(&w->changed, false)) relist(w);
		int n = 0;
		bool tired = !most;
		for (u32 i = 0; i < w->nlive; i++) n += serve(w, w->live[i], false);
		if (n) idle = 0;
		if (looks % LOOKS == 0) {
			u64 now = bfs_ops_coherent.mono_ns(NULL);
			if (now - looked >= EVENTS_NS) { /* a death is noticed when there is work, too */
				looked = now;
				events(w, 0);
			}
			if (!n && !idle) idle = now;
			else if (!n) tired = now - idle >= w->spin_ns;
		}
		if (n) continue;
		spins++;
		if (!tired) {
			rg_relax();
			continue;
		}
		for (u32 i = 0; i < w->nlive; i++) n += serve(w, w->live[i], true);
		add_to(&w->spins, spins);
		spins = 0;
		u64 slept = bfs_ops_coherent.mono_ns(NULL);
		if (!n && !atomic_load(&w->changed) && !atomic_load(&s->stop)) {
			add_to(&w->sleeps, 1);
			events(w, -1);
			add_to(&w->wakes, 1);
		}
		for (u32 i = 0; i < w->nlive; i++) rg_port_awake(&w->live[i]->p);
		/* adaptive: what comes soon after it went to sleep was worth polling for, what comes late wasn't */
		u64 spin = bfs_ops_coherent.mono_ns(NULL) - slept < most ? w->spin_ns * 2 : w->spin_ns / 2;
		w->spin_ns = spin > most ? most : spin < SPIN_LEAST_NS ? SPIN_LEAST_NS : spin;
		idle = 0;
	}
	for (u32 i = 0; i < w->nlive; i++) end_ring(w->live[i]);
	return NULL;
}

/* ---- from outside -------------------------------------------------------------------------------------- */
static void free_server(struct rg_server *s)
{
	for (u32 i = 0; i < s->nworkers; i++) {
		struct worker *w = &s->w[i];
		if (w->ep >= 0) close(w->ep);
		if (w->kick >= 0) close(w->kick);
		free(w->live);
		rg_buffers_free(&(struct bfs_mem){.ops = &bfs_ops_coherent}, &w->buf);
	}
	for (struct ring *r = s->rings, *next; r; r = next) {
		next = r->next;
		if (!r->in) end_ring(r);
		free_ring(r);
	}
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void rg_server_stop(struct rg_server *s)
{
	atomic_store(&s->stop, true);
	for (u32 i = 0; i < s->nworkers; i++) kick(&s->w[i]);
	for (u32 i = 0; i < s->nworkers; i++)
		if (s->w[i].runs) pthread_join(s->w[i].thread, NULL);
	free_server(s);
}

static int start_worker(struct rg_server *s, struct worker *w)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.u64 = EV_KICK};
	w->s = s;
	w->ep = w->kick = -1;
	if ((w->ep = epoll_create1(EPOLL_CLOEXEC)) < 0 || (w->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || epoll_ctl(w->ep, EPOLL_CTL_ADD, w->kick, &ev)) return -errno;
	int rc = pthread_create(&w->thread, NULL, work, w);
	w->runs = !rc;
	return -rc;
}

int rg_server_start(const struct rg_server_opts *o, struct rg_server **out)
{
	struct rg_server *s = calloc(1, sizeof *s);
	sigset_t all, old;
	int rc = 0;
	if (!s) return -ENOMEM;
	bfs_guard_install();
	s->o = *o;
	if (!s->o.threads) s->o.threads = 1;
	if (!s->o.exec) s->o.exec = rg_core_exec;
	if (!s->o.spin_ns) s->o.spin_ns = rg_only_cpu() ? -1 : SPIN_NS;
	if (s->o.threads > THREADS_MAX) {
		rc = rg_error(-EINVAL, "%u service threads; at most %u", s->o.threads, THREADS_MAX);
		free(s);
		return rc;
	}
	pthread_mutex_init(&s->lock, NULL);
	if (getrandom(&s->epoch, sizeof s->epoch, 0) != sizeof s->epoch) s->epoch = (u64)getpid() << 32 | 1;
	sigfillset(&all); /* signals are for the program's own threads; faults are the one's who made them */
	sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	s->nworkers = s->o.threads; /* before the first one looks */
	for (u32 i = 0; i < s->nworkers; i++) s->w[i].ep = s->w[i].kick = -1;
	for (u32 i = 0; i < s->nworkers && !rc; i++) rc = start_worker(s, &s->w[i]);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		rg_server_stop(s);
		return rg_error(rc, "service threads can't be started: %s", strerror(-rc));
	}
	*out = s;
	return 0;
}

static int map_ring(struct ring *r, int fd)
{
	struct stat st;
	struct statfs fs;
	int seals = fcntl(fd, F_GET_SEALS);
	/* what can be cut would be a bus error at any time: copies are guarded, polling isn't */
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) return rg_error(-EPERM, "a request ring is a memfd that is sealed against shrinking");
	/* and a page of a huge one that is punched out may not come again */
	if (fstatfs(fd, &fs) || fs.f_type != TMPFS_MAGIC) return rg_error(-EPERM, "a request ring is a memfd of ordinary pages");
	if (fstat(fd, &st)) return rg_error(-errno, "request ring: %s", strerror(errno));
	if (st.st_size < (off_t)RG_LINES_OFF || (u64)st.st_size > rg_shape(RG_SLOTS_MAX, RG_AREA_MAX, RG_AREA_MAX).size) return rg_error(-EUCLEAN, "request ring: a file of %lld bytes is none", (long long)st.st_size);
	void *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) return rg_error(-errno, "request ring: it can't be mapped: %s", strerror(errno));
	r->m = (struct bfs_mem){.ops = &bfs_ops_coherent, .base = p, .size = (u64)st.st_size, .coherent = true};
	return 0;
}

/* Nothing else: to wait for a file of this daemon's own mount would be to wait for itself. */
static bool is_eventfd(int fd)
{
	char path[64], to[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, to, sizeof to - 1);
	if (n < 0) return false;
	to[n] = 0;
	return !strcmp(to, "anon_inode:[eventfd]");
}

int rg_server_add(struct rg_server *s, int ring_fd, int bell_fd, int alive_fd, u64 *id) { return rg_server_add_for(s, ring_fd, bell_fd, alive_fd, 0, id); }

int rg_server_add_for(struct rg_server *s, int ring_fd, int bell_fd, int alive_fd, u64 owner, u64 *id)
{
	struct ring *r = calloc(1, sizeof *r);
	if (!r) return -ENOMEM;
	r->bell = r->alive = -1;
	int rc = map_ring(r, ring_fd);
	if (rc) goto failed;
	if ((rc = rg_port_open(&r->p, &r->m, s->epoch, (u64)getpid()))) goto failed;
	r->p.owner = owner;
	if (!is_eventfd(bell_fd)) {
		rc = rg_error(-EPERM, "request ring: its bell isn't an eventfd");
		goto failed;
	}
	if ((r->bell = fcntl(bell_fd, F_DUPFD_CLOEXEC, 3)) < 0 || (alive_fd >= 0 && (r->alive = fcntl(alive_fd, F_DUPFD_CLOEXEC, 3)) < 0)) {
		rg_error(rc = -errno, "request ring: its bell or its client's descriptor: %s", strerror(errno));
		goto failed;
	}
	pthread_mutex_lock(&s->lock);
	if (s->nrings >= RINGS_MAX) {
		pthread_mutex_unlock(&s->lock);
		rc = rg_error(-EUSERS, "%u request rings are served already; close some", RINGS_MAX);
		goto failed;
	}
	r->id = ++s->rings_ever;
	struct worker *w = &s->w[worker_of(s, r->id)];
	struct epoll_event bell = {.events = EPOLLIN | EPOLLET, .data.u64 = r->id << 2 | EV_BELL}, death = {.events = rg_death(r->alive), .data.u64 = r->id << 2 | EV_DEATH};
	if (epoll_ctl(w->ep, EPOLL_CTL_ADD, r->bell, &bell) || (r->alive >= 0 && epoll_ctl(w->ep, EPOLL_CTL_ADD, r->alive, &death))) {
		rc = -errno;
		epoll_ctl(w->ep, EPOLL_CTL_DEL, r->bell, NULL);
		pthread_mutex_unlock(&s->lock);
		rg_error(rc, "request ring: its bell, or its client's descriptor, can't be waited for: %s", strerror(-rc));
		goto failed;
	}
	r->next = s->rings;
	s->rings = r;
	s->nrings++;
	if (id) *id = r->id;
	pthread_mutex_unlock(&s->lock);
	atomic_store(&w->changed, true);
	kick(w);
	return 0;
failed:
	if (r->m.base) munmap(r->m.base, r->m.size);
	if (r->bell >= 0) close(r->bell);
	if (r->alive >= 0) close(r->alive);
	free(r);
	return rc;
}

int rg_server_remove(struct rg_server *s, u64 id)
{
	int rc = -ENOENT;
	pthread_mutex_lock(&s->lock);
	for (struct ring *r = s->rings; r; r = r->next)
		if (r->id == id) atomic_store(&r->remove, 1), rc = 0;
	pthread_mutex_unlock(&s->lock);
	struct worker *w = &s->w[worker_of(s, id)];
	if (rc) return rg_error(rc, "no ring %llu is served", (unsigned long long)id);
	atomic_store(&w->changed, true);
	kick(w);
	return 0;
}

void rg_server_stats(struct rg_server *s, struct rg_server_stats *o)
{
	memset(o, 0, sizeof *o);
	for (u32 i = 0; i < s->nworkers; i++) {
		struct worker *w = &s->w[i];
		o->requests += w->requests, o->refused += w->refused, o->bad_lines += w->bad_lines, o->wakes += w->wakes;
		o->sleeps += w->sleeps, o->spins += w->spins, o->bells += w->bells;
	}
	pthread_mutex_lock(&s->lock);
	o->rings = s->nrings, o->rings_ever = s->rings_ever, o->clients_died = s->clients_died;
	pthread_mutex_unlock(&s->lock);
}
