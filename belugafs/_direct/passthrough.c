/* Passthrough (Linux 6.9): the kernel sends reads, writes and mappings of an open file to the backing file itself.
 *
 * A backing file is registered once an inode, by the core's O_RDONLY descriptor: the kernel opens it again
 * with the flags of each user's open.  The kernel's rules, which an open that breaks one of them pays with EIO:
 *   - all opens of an inode that are there at a time have the same backing id, or all have none;
 *   - no KEEP_CACHE, no writeback cache.
 * So there is a table of the inodes that are open, with what their first open decided.  An entry goes with the
 * last RELEASE, which the kernel sends after it has let go of the backing file.
 *
 * Passthrough together with DIRECT_IO: reads and writes come here, mappings go to the backing file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "server.h"

struct backing_map { int32_t fd; uint32_t flags; uint64_t padding; };
#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

struct file { u64 ino; u32 opens; int32_t id; struct file *next; }; /* id 0: none of the opens has passthrough */

struct ds_pt {
	struct bfs *b;
	int fd;             /* of /dev/fuse */
	pthread_t keeper;   /* of room ahead of writers */
	pthread_t settler;  /* of what they have closed */
	_Atomic(u64) looked_ns; /* for the last write that came here */
	pthread_mutex_t mx; /* of what follows */
	struct file **bucket;
	u64 mask, n, nids, nwriters; /* nwriters: opens of files with an id */
	pthread_cond_t wake, closed;
	bool was_closed;    /* a writer, since the settler has looked */
	bool stop;
};

/* ---- ids -------------------------------------------------------------------------------------- */
static int id_open(int fuse, int fd)
{
	struct backing_map m = {.fd = fd};
	int id = ioctl(fuse, BACKING_OPEN, &m);
	return id > 0 ? id : id < 0 ? -errno : -EINVAL;
}

static void id_close(int fuse, int32_t id)
{
	uint32_t x = (uint32_t)id;
	ioctl(fuse, BACKING_CLOSE, &x);
}

/* ---- the table --------------------------------------------------------------------------------- */
static struct file **slot_of(struct ds_pt *p, u64 ino)
{
	u64 h = ino * 0x9e3779b97f4a7c15ull;
	return &p->bucket[(h ^ h >> 32) & p->mask];
}

static struct file **find(struct ds_pt *p, u64 ino)
{
	struct file **at = slot_of(p, ino);
	while (*at && (*at)->ino != ino) at = &(*at)->next;
	return at;
}

static void grow(struct ds_pt *p)
{
	u64 old = p->mask + 1;
	struct file **was = p->bucket, **new = calloc(2 * old, sizeof *new);
	if (!new) return; /* longer chains, then */
	p->bucket = new, p->mask = 2 * old - 1;
	for (u64 i = 0; i < old; i++)
		for (struct file *f = was[i], *next; f; f = next) {
			next = f->next;
			struct file **at = slot_of(p, f->ino);
			f->next = *at, *at = f;
		}
	free(was);
}

/* the first open; id 0: without */
static int enter(struct ds_pt *p, u64 ino, int32_t id)
{
	struct file *f = malloc(sizeof *f);
	if (!f) return -ENOMEM;
	if (p->n > p->mask) grow(p);
	struct file **at = slot_of(p, ino);
	*f = (struct file){.ino = ino, .opens = 1, .id = id, .next = *at};
	*at = f;
	p->n++, p->nids += id != 0;
	return 0;
}

/* 1: joined, *id is that of the others; 0: the first, which decides */
static int join(struct ds_pt *p, u64 ino, int32_t *id)
{
	struct file *f = *find(p, ino);
	if (!f) return 0;
	f->opens++;
	*id = f->id;
	return 1;
}

/* ---- an open ------------------------------------------------------------------------------------ */
static bool is_plain(struct ds_pt *p, u64 ino)
{
	int32_t id = 0;
	pthread_mutex_lock(&p->mx);
	struct file *f = *find(p, ino);
	bool plain = f && !f->id && join(p, ino, &id);
	pthread_mutex_unlock(&p->mx);
	return plain;
}

int ds_pt_open(struct ds_pt *p, u64 ino, u64 fh, bool write, int32_t *id)
{
	*id = 0;
	if (is_plain(p, ino)) return 0;
	int fd = bfs_backing_fd(p->b, fh, write), rc = 0;
	pthread_mutex_lock(&p->mx);
	if (join(p, ino, id)) {
		/* Damaged, and others have it open as it was before: a mapping couldn't be told. */
		if (fd < 0 && *id) (*find(p, ino))->opens--, rc = fd;
	} else {
		if (fd >= 0 && (*id = id_open(p->fd, fd)) < 0) fd = *id, *id = 0;
		if (fd == -ENOENT || fd == -ESTALE) rc = fd;
		/* else what is wrong is said where it matters: a read of what is damaged, a store without room */
		else if ((rc = enter(p, ino, *id)) && *id) id_close(p->fd, *id);
	}
	if (!rc && *id && write && !p->nwriters++) pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->mx);
	return rc;
}

void ds_pt_release(struct ds_pt *p, u64 ino, bool write)
{
	pthread_mutex_lock(&p->mx);
	struct file **at = find(p, ino), *f = *at;
	if (f && f->id && write) {
		p->nwriters--, p->was_closed = true;
		pthread_cond_signal(&p->closed);
	}
	if (f && !--f->opens) {
		*at = f->next;
		p->n--, p->nids -= f->id != 0;
		if (f->id) id_close(p->fd, f->id);
		free(f);
	}
	pthread_mutex_unlock(&p->mx);
}

/* ---- room ahead of writers ------------------------------------------------------------------------- */
static u64 now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

void ds_pt_headroom(struct ds_pt *p)
{
	enum { EVERY_NS = 1000000 };
	u64 now = now_ns(), last = atomic_load(&p->looked_ns);
	if (now - last < EVERY_NS || !atomic_compare_exchange_strong(&p->looked_ns, &last, now)) return;
	bfs_headroom(p->b); /* what it can't do, a store finds out */
}

/* Whatever else runs on this machine, most of all the writers: the room that is kept for them is in proportion to how
 * late this thread comes.  What the core asks for goes by what is empty. */
static void *keep_room(void *arg)
{
	struct ds_pt *p = arg;
	u64 nap = 0, begun = 0;
	setpriority(PRIO_PROCESS, (id_t)gettid(), -20); /* root only, as passthrough is */
	pthread_mutex_lock(&p->mx);
	while (!p->stop) {
		if (!p->nwriters) {
			pthread_cond_wait(&p->wake, &p->mx);
			nap = begun = 0;
			continue;
		}
		pthread_mutex_unlock(&p->mx);
		u64 due = begun + nap, now = now_ns();
		bfs_watch_room(p->b, begun && now > due ? now - due : 0, &nap);
		begun = now_ns();
		pthread_mutex_lock(&p->mx);
		u64 until = begun + nap;
		struct timespec t = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
		while (!p->stop && p->nwriters && pthread_cond_timedwait(&p->wake, &p->mx, &t) != ETIMEDOUT) ;
	}
	pthread_mutex_unlock(&p->mx);
	return NULL;
}

/* ---- what was closed -------------------------------------------------------------------------------- */
/* Often the kernel still has the backing file open when it says that the last one has closed: tried again after 1 ms, 2 ms,
 * and so on, until all are finished. */
static void *settle(void *arg)
{
	enum { NAP_NS = 1000000, NAP_MOST_NS = 100000000 };
	struct ds_pt *p = arg;
	u64 nap = 0; /* 0: nothing waits */
	pthread_mutex_lock(&p->mx);
	while (!p->stop) {
		if (p->was_closed) p->was_closed = false, nap = NAP_NS;
		if (!nap) {
			pthread_cond_wait(&p->closed, &p->mx);
			continue;
		}
		u64 until = now_ns() + nap;
		struct timespec t = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
		while (!p->stop && pthread_cond_timedwait(&p->closed, &p->mx, &t) != ETIMEDOUT) ;
		if (p->stop) break;
		pthread_mutex_unlock(&p->mx);
		nap = bfs_settle(p->b) ? nap < NAP_MOST_NS / 2 ? 2 * nap : NAP_MOST_NS : 0;
		pthread_mutex_lock(&p->mx);
	}
	pthread_mutex_unlock(&p->mx);
	return NULL;
}

/* ---- begin and end ------------------------------------------------------------------------------- */
int ds_pt_start(struct bfs *b, int fuse, int probe, struct ds_pt **out)
{
	enum { BUCKETS = 1024 };
	sigset_t all, before;
	pthread_condattr_t monotonic;
	int id = id_open(fuse, probe), rc;
	if (id < 0) return id;
	id_close(fuse, id);
	struct ds_pt *p = calloc(1, sizeof *p);
	if (p) p->bucket = calloc(BUCKETS, sizeof *p->bucket);
	if (!p || !p->bucket) {
		free(p);
		return -ENOMEM;
	}
	p->b = b, p->fd = fuse, p->mask = BUCKETS - 1;
	pthread_mutex_init(&p->mx, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &monotonic);
	pthread_cond_init(&p->closed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigfillset(&all);
	sigdelset(&all, SIGBUS), sigdelset(&all, SIGSEGV), sigdelset(&all, SIGFPE), sigdelset(&all, SIGILL);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&p->keeper, NULL, keep_room, p);
	if (!rc && (rc = -pthread_create(&p->settler, NULL, settle, p))) {
		pthread_mutex_lock(&p->mx);
		p->stop = true;
		pthread_cond_signal(&p->wake);
		pthread_mutex_unlock(&p->mx);
		pthread_join(p->keeper, NULL);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		free(p->bucket);
		free(p);
		return rc;
	}
	*out = p;
	return 0;
}

u64 ds_pt_ids(struct ds_pt *p)
{
	pthread_mutex_lock(&p->mx);
	u64 n = p->nids;
	pthread_mutex_unlock(&p->mx);
	return n;
}

/* The ids go with the connection. */
void ds_pt_free(struct ds_pt *p)
{
	pthread_mutex_lock(&p->mx);
	p->stop = true;
	pthread_cond_signal(&p->wake);
	pthread_cond_signal(&p->closed);
	pthread_mutex_unlock(&p->mx);
	pthread_join(p->keeper, NULL);
	pthread_join(p->settler, NULL);
	for (u64 i = 0; i <= p->mask; i++)
		for (struct file *f = p->bucket[i], *next; f; f = next) next = f->next, free(f);
	free(p->bucket);
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->closed);
	pthread_mutex_destroy(&p->mx);
	free(p);
}
