/* Requests from /dev/fuse.
 *
 * A thread that sleeps in read(2) is woken by an interrupt to its processor, which takes longer than to serve a
 * look-up.  So one thread at a time looks for the next request without sleeping, for spin_ns, where requests
 * have come that quickly of late; else, and afterwards, it sleeps in read(2) like the others.  The price is at most
 * spin_ns of a processor for each request that has come quickly behind the one before.  It must not be the processor
 * that whoever is going to ask needs: nobody looks where those who serve, and he, have all of them.
 *
 * O_NONBLOCK is of an open file, not of a call: the look goes through a second one of the same connection
 * (FUSE_DEV_IOC_CLONE), a thread's own.  A reply has to take the way on which its request came. */
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include "device.h"

enum { LUCK_FIRST = 2, LUCK_MOST = 8, COST_OF_NONE = 2 };

uint64_t ds_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void ds_port_open(struct ds_port *p, int fd, struct ds_pace *pace)
{
	uint32_t of = (uint32_t)fd;
	*p = (struct ds_port){.pace = pace, .fd = fd, .quick = -1};
	if (!pace->spin_ns) return;
	p->quick = open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (p->quick < 0 || !ioctl(p->quick, FP_IOC_CLONE, &of)) return;
	close(p->quick); /* without it, every request is waited for */
	p->quick = -1;
}

void ds_port_close(struct ds_port *p)
{
	if (p->busy) atomic_fetch_sub_explicit(&p->pace->busy, 1, memory_order_relaxed);
	if (p->quick >= 0) close(p->quick);
}

/* How long after the last reply came the next request: whoever asks one thing after the other is who waits. */
static bool came_quickly(const struct ds_pace *pace, uint64_t now)
{
	uint64_t last = atomic_load_explicit(&pace->replied_ns, memory_order_relaxed);
	return last && (int64_t)(now - last) < (int64_t)(2 * pace->spin_ns); /* having slept is part of it */
}

static bool has_processor(const struct ds_pace *pace)
{
	return atomic_load_explicit(&pace->busy, memory_order_relaxed) + 2 <= pace->processors;
}

/* -1 and EAGAIN: none has come. */
static ssize_t look(struct ds_port *p, void *buf, size_t len, const _Atomic(bool) *stop)
{
	struct ds_pace *pace = p->pace;
	uint64_t end = ds_now_ns() + pace->spin_ns;
	ssize_t n;
	do n = read(p->quick, buf, len);
	while (n < 0 && errno == EAGAIN && has_processor(pace) && !atomic_load_explicit(stop, memory_order_relaxed) && ds_now_ns() < end);
	return n;
}

static ssize_t next(struct ds_port *p, void *buf, size_t len, const _Atomic(bool) *stop, int *from)
{
	struct ds_pace *pace = p->pace;
	int luck = atomic_load_explicit(&pace->luck, memory_order_relaxed);
	if (p->quick >= 0 && luck > 0 && has_processor(pace) && !atomic_exchange_explicit(&pace->looking, true, memory_order_acquire)) {
		ssize_t n = look(p, buf, len, stop);
		bool none = n < 0 && errno == EAGAIN;
		/* several threads may count at a time, and lose a count: it is only a guess */
		luck = none ? luck - COST_OF_NONE : luck < LUCK_MOST ? luck + 1 : luck;
		atomic_store_explicit(&pace->luck, luck, memory_order_relaxed);
		atomic_store_explicit(&pace->looking, false, memory_order_release);
		*from = p->quick;
		if (!none) return n;
	}
	*from = p->fd;
	ssize_t n = read(p->fd, buf, len);
	if (n > 0 && p->quick >= 0 && luck <= 0 && came_quickly(pace, ds_now_ns())) atomic_store_explicit(&pace->luck, LUCK_FIRST, memory_order_relaxed);
	return n;
}

ssize_t ds_port_read(struct ds_port *p, void *buf, size_t len, const _Atomic(bool) *stop, int *from)
{
	if (p->busy) atomic_fetch_sub_explicit(&p->pace->busy, 1, memory_order_relaxed);
	ssize_t n = next(p, buf, len, stop, from);
	p->busy = n > 0;
	if (p->busy) atomic_fetch_add_explicit(&p->pace->busy, 1, memory_order_relaxed);
	return n;
}

void ds_replied(struct ds_pace *pace)
{
	if (pace->spin_ns) atomic_store_explicit(&pace->replied_ns, ds_now_ns(), memory_order_relaxed);
}
