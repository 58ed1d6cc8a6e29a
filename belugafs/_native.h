/* What the files of the extension module belugafs._native share.
 *
 *   _native.c        module, errors, arguments, the mapping of a pool; mkfs, peek, fsck
 *   _native_pool.c   the type Pool: attach, close, protocol steps, capacity
 *   _native_files.c  its methods on names and files
 *   _native_blocks.c its methods on native blocks and batches
 *   _native_client.c the types Client and Lease: reading in place without being attached
 *   _native_write.c  the type Room, and what of Client changes a pool
 *   _native_direct.c the type DirectServer: the direct transport on a Pool
 *   _native_ring.c   the types RingServer and RingClient: request rings
 *
 * Every call of the core runs without the GIL.  What is counted below (users of a pool, of a
 * mapping) changes only with the GIL held.
 */
#ifndef BELUGAFS_NATIVE_H
#define BELUGAFS_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include "core.h"

/* A mapping of a pool, unmapped when nobody refers to it any more: neither a Pool nor a
 * memoryview of its data.  Its buffer is the data range, read-only. */
typedef struct {
	PyObject_HEAD
	struct bfs_mem mem;
	u64 view_off, view_len;
} MapObject;

typedef struct {
	PyObject_HEAD
	struct bfs *b; /* NULL: closed */
	MapObject *map;
	u32 users;     /* calls in the core right now */
	bool closing;
	int fd;        /* of the pool: descriptors for other processes are made of it; -1 */
	unsigned long fork_count; /* of the process that attached it */
} PoolObject;

extern PyObject *native_CoreError, *native_PoolFormatError;
extern PyTypeObject native_MapType, native_PoolType, native_DirectServerType;
extern unsigned long native_fork_count;
extern PyMethodDef native_file_methods[], native_block_methods[];

/* Raises CoreError (or cls) from a negative errno and the core's message; returns NULL. */
PyObject *native_raise(PyObject *cls, int rc);

/* bytes-like key or value of PyArg_Parse formats: checked conversions ("O&") */
int native_conv_u64(PyObject *o, void *u64_out);
int native_conv_u32(PyObject *o, void *u32_out);

/* A name: bytes as they are, str by the filesystem encoding (surrogateescape).  NAME_FREE. */
struct name {
	PyObject *owner;
	const char *p;
	size_t len;
};
int native_name(PyObject *o, struct name *n);
int native_conv_name(PyObject *o, void *name_out); /* "O&", cleans up after itself */
#define NAME_FREE(n) Py_XDECREF((n).owner)

PyObject *native_attr(const struct bfs_attr *a);
PyObject *native_super(const struct bfs_super *sb);
int native_init_pool(void);
int native_init_ring(PyObject *module);
int native_init_client(PyObject *m);
PyObject *native_opener_of(PyObject *self, PyObject *thread_id), *native_is_killed(PyObject *self, PyObject *args);

/* Maps the descriptor; NULL: OSError is set. */
MapObject *native_map(int fd, u64 size, bool readonly, bool coherent);
/* Puts number v into dict d; false: an exception is set.  v is consumed. */
bool native_put(PyObject *d, const char *key, PyObject *v);

/* False: an exception is set (closed, or forked).  Each true answer needs pool_leave(). */
bool pool_enter(PoolObject *p);
static inline void pool_leave(PoolObject *p) { p->users--; }

/* rc = expression of the core, without the GIL; expr sees b */
#define CORE(p, rc, expr)                           \
	do {                                        \
		struct bfs *b = (p)->b;             \
		bfs_errmsg_clear();                 \
		Py_BEGIN_ALLOW_THREADS              \
		(rc) = bfs_check_same(b);           \
		if (!(rc)) (rc) = (expr);           \
		Py_END_ALLOW_THREADS                \
	} while (0)

static inline PyObject *native_none(int rc)
{
	if (rc < 0) return native_raise(native_CoreError, rc);
	Py_RETURN_NONE;
}

#endif
