/* What _native_client.c (types Client and Lease) and _native_write.c (type Room, and what of Client changes a pool) share. */
#ifndef BELUGAFS_NATIVE_CLIENT_H
#define BELUGAFS_NATIVE_CLIENT_H

#include "_native.h"
#include "client.h"

typedef struct {
	PyObject_HEAD
	bfc *c;        /* NULL: closed */
	u32 calls;     /* under way; with the GIL */
	u32 leases;    /* not given back yet; rooms, too */
	bool closing;
	PyObject *server; /* the RingServer of this process that serves it; NULL: a daemon does */
	unsigned long fork_count;
} ClientObject;

bool native_client_enter(ClientObject *p); /* false: an exception is set */
void native_client_leave(ClientObject *p);
void native_client_close_if_done(ClientObject *p);
int native_whole_keys(const Py_buffer *keys, u32 key_bytes); /* how many; -1: an exception is set */
/* Raises OSError, unless waiting was broken off by an exception of a signal handler. */
PyObject *native_client_raise(int rc);
#define CLIENT(p, rc, expr)                         \
	do {                                        \
		bfc *c = (p)->c;                    \
		Py_BEGIN_ALLOW_THREADS              \
		(rc) = (expr);                      \
		Py_END_ALLOW_THREADS                \
	} while (0)

/* _native_write.c */
extern PyMethodDef native_write_methods[];
void native_client_made(ClientObject *p);
int native_init_write(PyObject *m);
/* _native_ring.c: the ring of the process whose lease file this is; without the GIL.  *pool_fd: to write by, the caller's */
int native_ring_server_take(PyObject *server, int lease_fd, int ring_fd, int bell_fd, int *pool_fd);
extern PyTypeObject native_RingServerType;

#endif
