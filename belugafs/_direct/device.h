/* Requests from /dev/fuse, without sleeping where they come one after the other. */
#ifndef BELUGAFS_DIRECT_DEVICE_H
#define BELUGAFS_DIRECT_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include "proto.h"

/* Of a connection. */
struct ds_pace {
	uint64_t spin_ns;             /* how long to look for a request before sleeping; 0: not at all */
	_Atomic(uint64_t) replied_ns; /* the last time */
	_Atomic(int) luck;       /* > 0: the next request will come quickly */
	_Atomic(bool) looking;   /* one thread does */
	_Atomic(int) busy;       /* threads with a request */
	int processors;          /* that there are for all */
};
struct ds_port { /* of a thread */
	struct ds_pace *pace;
	int fd;    /* the connection's, where a read waits */
	int quick; /* one where it doesn't; -1: there is none */
	bool busy;
};

uint64_t ds_now_ns(void);
void ds_port_open(struct ds_port *p, int fd, struct ds_pace *pace);
void ds_port_close(struct ds_port *p);
/* As read(2) of /dev/fuse does, until the next call the thread serves what came; EAGAIN where *stop was set.  *from: where the reply goes. */
ssize_t ds_port_read(struct ds_port *p, void *buf, size_t len, const _Atomic(bool) *stop, int *from);
void ds_replied(struct ds_pace *pace);

#endif
