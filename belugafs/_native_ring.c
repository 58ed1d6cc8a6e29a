/* Request rings: the types RingServer (a daemon's, on an attached Pool) and RingClient (a process's).  belugafs/_ring.py is
 * what others use of the latter.  Service threads never take the GIL, and a call waits without it. */
#include <fcntl.h>
#include "_native_client.h"
#include "ring.h"

typedef struct {
	PyObject_HEAD
	PoolObject *pool; /* in use (pool_enter) while s is there; NULL: a server without a pool */
	struct rg_server *s;
	pthread_mutex_t mx; /* it isn't stopped while a ring is given to it without the GIL */
	unsigned long fork_count;
} RingServerObject;

typedef struct {
	PyObject_HEAD
	struct rg_client *c;
	u32 users; /* calls in it right now; the last one frees it when it is closed */
	bool closed;
} RingClientObject;

static i64 spin_of(PyObject *spin_us) /* -2: an exception is set */
{
	if (spin_us == Py_None) return 0;
	double us = PyFloat_AsDouble(spin_us);
	if (us == -1 && PyErr_Occurred()) return -2;
	if (!(us >= 0 && us <= 1e6)) {
		PyErr_SetString(PyExc_ValueError, "spin_us must be between 0 and 1,000,000");
		return -2;
	}
	return us < 0.001 ? -1 : (i64)(us * 1000);
}

/* ---- the server ---------------------------------------------------------------------------------- */
static PyObject *ring_server_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"pool", "threads", "spin_us", NULL};
	struct rg_server_opts o = {.threads = 1};
	PyObject *pool, *spin = Py_None;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|$O&O:RingServer", names, &pool, native_conv_u32, &o.threads, &spin)) return NULL;
	if (pool != Py_None && !PyObject_TypeCheck(pool, &native_PoolType)) {
		PyErr_Format(PyExc_TypeError, "pool is a Pool or None, not %.100s", Py_TYPE(pool)->tp_name);
		return NULL;
	}
	if (o.threads < 1 || o.threads > 64) {
		PyErr_SetString(PyExc_ValueError, "threads must be between 1 and 64");
		return NULL;
	}
	if ((o.spin_ns = spin_of(spin)) == -2) return NULL;
	PoolObject *p = pool == Py_None ? NULL : (PoolObject *)pool;
	if (p && !pool_enter(p)) return NULL;
	RingServerObject *s = (RingServerObject *)type->tp_alloc(type, 0);
	if (s) {
		pthread_mutex_init(&s->mx, NULL);
		s->pool = (PoolObject *)Py_XNewRef((PyObject *)p);
		s->fork_count = native_fork_count;
		o.ctx = p ? p->b : NULL;
		Py_BEGIN_ALLOW_THREADS
		rc = rg_server_start(&o, &s->s);
		Py_END_ALLOW_THREADS
		if (!rc) return (PyObject *)s;
		s->s = NULL;
		Py_DECREF(s);
		native_raise(native_CoreError, rc);
	}
	if (p) pool_leave(p);
	return NULL;
}

static PyObject *ring_server_stop(RingServerObject *s, PyObject *Py_UNUSED(none))
{
	struct rg_server *it;
	Py_BEGIN_ALLOW_THREADS
	pthread_mutex_lock(&s->mx);
	Py_END_ALLOW_THREADS
	it = s->s;
	s->s = NULL;
	pthread_mutex_unlock(&s->mx);
	if (!it) Py_RETURN_NONE;
	if (s->fork_count == native_fork_count) { /* a child has no service threads, and the rings are its parent's */
		Py_BEGIN_ALLOW_THREADS
		rg_server_stop(it);
		Py_END_ALLOW_THREADS
	}
	if (s->pool) pool_leave(s->pool);
	Py_RETURN_NONE;
}

static struct rg_server *server_of(RingServerObject *s)
{
	if (s->s && s->fork_count == native_fork_count) return s->s;
	PyErr_SetString(PyExc_ValueError, s->s ? "the ring server belongs to the parent process" : "the ring server is stopped");
	return NULL;
}

static PyObject *ring_server_add(RingServerObject *s, PyObject *args, PyObject *kw)
{
	static char *names[] = {"ring_fd", "bell_fd", "alive_fd", "lease_fd", NULL};
	struct rg_server *it = server_of(s);
	int ring, bell, alive = -1, lease = -1;
	u64 id = 0, owner = 0;
	if (!it || !PyArg_ParseTupleAndKeywords(args, kw, "ii|ii:add", names, &ring, &bell, &alive, &lease)) return NULL;
	bfs_errmsg_clear();
	if (lease >= 0 && (!s->pool || !(owner = bfs_client_of(s->pool->b, lease)))) return native_raise(native_CoreError, bfs_fail(NULL, -ESTALE, "this mount doesn't know the lease file of this process: connect again"));
	int rc = rg_server_add_for(it, ring, bell, alive, owner, &id);
	return rc ? native_raise(native_CoreError, rc) : PyLong_FromUnsignedLongLong(id);
}

int native_ring_server_take(PyObject *server, int lease_fd, int ring_fd, int bell_fd, int *pool_fd)
{
	RingServerObject *s = (RingServerObject *)server;
	char path[40];
	pthread_mutex_lock(&s->mx);
	u64 owner = s->s && s->pool ? bfs_client_of(s->pool->b, lease_fd) : 0;
	int rc = owner ? 0 : -ENOTCONN;
	if (!rc) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", s->pool->fd);
		if ((*pool_fd = open(path, O_RDWR | O_CLOEXEC)) < 0) rc = -errno;
		else if ((rc = rg_server_add_for(s->s, ring_fd, bell_fd, -1, owner, NULL))) close(*pool_fd);
	}
	pthread_mutex_unlock(&s->mx);
	return rc;
}

static PyObject *ring_server_remove(RingServerObject *s, PyObject *arg)
{
	struct rg_server *it = server_of(s);
	u64 id;
	if (!it || !native_conv_u64(arg, &id)) return NULL;
	return native_none(rg_server_remove(it, id));
}

static PyObject *ring_server_stats(RingServerObject *s, PyObject *Py_UNUSED(none))
{
	struct rg_server *it = server_of(s);
	struct rg_server_stats x;
	if (!it) return NULL;
	rg_server_stats(it, &x);
	PyObject *d = PyDict_New();
#define NUM(f) native_put(d, #f, PyLong_FromUnsignedLongLong(x.f))
	if (d && NUM(requests) && NUM(refused) && NUM(bad_lines) && NUM(wakes) && NUM(sleeps) && NUM(spins) && NUM(bells) && NUM(rings) && NUM(rings_ever) && NUM(clients_died)) return d;
#undef NUM
	Py_XDECREF(d);
	return NULL;
}

static void ring_server_dealloc(RingServerObject *s)
{
	PyObject *none = ring_server_stop(s, NULL);
	Py_XDECREF(none);
	Py_XDECREF(s->pool);
	Py_TYPE(s)->tp_free((PyObject *)s);
}

static PyMethodDef ring_server_methods[] = {
	{"add", (PyCFunction)(void (*)(void))ring_server_add, METH_VARARGS | METH_KEYWORDS, NULL},
	{"remove", (PyCFunction)ring_server_remove, METH_O, NULL},
	{"stats", (PyCFunction)ring_server_stats, METH_NOARGS, NULL},
	{"stop", (PyCFunction)ring_server_stop, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

PyTypeObject native_RingServerType = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.RingServer",
	.tp_basicsize = sizeof(RingServerObject),
	.tp_dealloc = (destructor)ring_server_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "Serves request rings, by threads without the GIL.",
	.tp_methods = ring_server_methods,
	.tp_new = ring_server_new,
};

/* ---- the client ------------------------------------------------------------------------------------ */
static PyObject *ring_client_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"slots", "request_bytes", "reply_bytes", "spin_us", "start", NULL};
	struct rg_client_opts o = {0};
	PyObject *spin = Py_None;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "|$O&O&O&OO&:RingClient", names, native_conv_u32, &o.slots, native_conv_u32, &o.req_bytes, native_conv_u32, &o.rep_bytes, &spin, native_conv_u64, &o.start)) return NULL;
	if ((o.spin_ns = spin_of(spin)) == -2) return NULL;
	RingClientObject *c = (RingClientObject *)type->tp_alloc(type, 0);
	if (!c) return NULL;
	bfs_errmsg_clear();
	int rc = rg_client_new(&o, &c->c);
	if (!rc) return (PyObject *)c;
	c->c = NULL;
	Py_DECREF(c);
	return native_raise(native_CoreError, rc);
}

static bool client_enter(RingClientObject *c)
{
	if (c->c && !c->closed) return c->users++, true;
	PyErr_SetString(PyExc_ValueError, "the ring is closed");
	return false;
}

static void client_leave(RingClientObject *c)
{
	if (--c->users || !c->closed || !c->c) return;
	rg_client_free(c->c);
	c->c = NULL;
}

static PyObject *ring_client_close(RingClientObject *c, PyObject *Py_UNUSED(none))
{
	c->closed = true;
	c->users++;
	client_leave(c);
	Py_RETURN_NONE;
}

static PyObject *ring_client_fds(RingClientObject *c, PyObject *Py_UNUSED(none))
{
	int ring, bell;
	u64 generation;
	if (!client_enter(c)) return NULL;
	bfs_errmsg_clear();
	int rc = rg_client_fds(c->c, &ring, &bell, &generation);
	client_leave(c);
	return rc ? native_raise(native_CoreError, rc) : Py_BuildValue("iiK", ring, bell, (unsigned long long)generation);
}

static PyObject *ring_client_daemon(RingClientObject *c, PyObject *arg)
{
	int fd = (int)PyLong_AsLong(arg);
	if ((fd == -1 && PyErr_Occurred()) || !client_enter(c)) return NULL;
	bfs_errmsg_clear();
	int rc = rg_client_daemon(c->c, fd);
	client_leave(c);
	return native_none(rc);
}

static PyObject *ring_client_renew(RingClientObject *c, PyObject *arg)
{
	u64 generation;
	if (!native_conv_u64(arg, &generation) || !client_enter(c)) return NULL;
	bfs_errmsg_clear();
	int rc = rg_client_renew(c->c, generation);
	client_leave(c);
	return native_none(rc);
}

/* (error, status, result, reply, text, number): error is 0 or the errno with which the call ended without an outcome.
 * It waits in slices, so that a signal handler of Python's runs in between: asked again by its number, a request goes on. */
static PyObject *ring_client_call(RingClientObject *c, PyObject *args)
{
	enum { SLICE_NS = 250000000 };
	Py_buffer payload = {0};
	struct rg_call k = {0};
	double timeout_s;
	PyObject *reply = NULL, *result = NULL;
	int rc = -ETIMEDOUT;
	u32 op;
	if (!PyArg_ParseTuple(args, "O&O&y*O&O&d:call", native_conv_u32, &op, native_conv_u64, &k.arg, &payload, native_conv_u32, &k.reply_cap, native_conv_u64, &k.number, &timeout_s)) return NULL;
	if (op > UINT16_MAX || payload.len > UINT32_MAX || !(timeout_s > 0)) {
		PyErr_SetString(PyExc_ValueError, "an operation has 16 bits, a payload less than 4 GiB, a time-out is above 0");
		goto out;
	}
	if (!(reply = PyBytes_FromStringAndSize(NULL, k.reply_cap)) || !client_enter(c)) goto out;
	k.op = (u16)op, k.payload = payload.buf, k.len = (u32)payload.len, k.reply = PyBytes_AS_STRING(reply);
	u64 left = timeout_s < 1e9 ? (u64)(timeout_s * 1e9) + 1 : 1000000000000000000ull;
	bool signalled = false;
	for (;;) {
		u64 now = left < SLICE_NS ? left : SLICE_NS;
		bfs_errmsg_clear();
		Py_BEGIN_ALLOW_THREADS
		rc = rg_call(c->c, &k, now);
		Py_END_ALLOW_THREADS
		left -= now;
		if (rc != -ETIMEDOUT || !left) break;
		if (PyErr_CheckSignals() < 0) {
			signalled = true;
			break;
		}
	}
	const char *text = rc ? bfs_errmsg() : k.text;
	if (!signalled) {
		PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
		if (words && !_PyBytes_Resize(&reply, rc ? 0 : (Py_ssize_t)k.reply_len))
			result = Py_BuildValue("iiKONK", -rc, (int)k.status, (unsigned long long)k.result, reply, words, (unsigned long long)k.number);
		else Py_XDECREF(words);
	}
	client_leave(c);
out:
	Py_XDECREF(reply);
	PyBuffer_Release(&payload);
	return result;
}

static PyObject *ring_client_stats(RingClientObject *c, PyObject *Py_UNUSED(none))
{
	struct rg_client_stats x;
	if (!client_enter(c)) return NULL;
	rg_client_stats(c->c, &x);
	client_leave(c);
	return Py_BuildValue("{sKsKsKsKsKsK}", "calls", (unsigned long long)x.calls, "sleeps", (unsigned long long)x.sleeps, "bells", (unsigned long long)x.bells,
		"missed", (unsigned long long)x.missed, "generation", (unsigned long long)x.generation, "spin_ns", (unsigned long long)x.spin_ns);
}

static PyObject *ring_client_measure(RingClientObject *c, PyObject *args)
{
	u32 calls, in_flight, len;
	u64 total = 0;
	if (!PyArg_ParseTuple(args, "O&O&O&:measure", native_conv_u32, &calls, native_conv_u32, &in_flight, native_conv_u32, &len)) return NULL;
	if (calls < 1 || calls > 100000000 || in_flight < 1 || in_flight > RG_SLOTS_MAX) {
		PyErr_SetString(PyExc_ValueError, "calls must be between 1 and 100,000,000, in_flight between 1 and 256");
		return NULL;
	}
	PyObject *ns = PyBytes_FromStringAndSize(NULL, in_flight > 1 ? 0 : 4 * (Py_ssize_t)calls);
	if (!ns || !client_enter(c)) {
		Py_XDECREF(ns);
		return NULL;
	}
	int rc;
	bfs_errmsg_clear();
	Py_BEGIN_ALLOW_THREADS
	rc = rg_measure(c->c, calls, in_flight, len, (u32 *)(void *)PyBytes_AS_STRING(ns), &total);
	Py_END_ALLOW_THREADS
	client_leave(c);
	if (!rc) return Py_BuildValue("NK", ns, (unsigned long long)total);
	Py_DECREF(ns);
	return native_raise(native_CoreError, rc);
}

static void ring_client_dealloc(RingClientObject *c)
{
	if (c->c) rg_client_free(c->c);
	Py_TYPE(c)->tp_free((PyObject *)c);
}

static PyMethodDef ring_client_methods[] = {
	{"fds", (PyCFunction)ring_client_fds, METH_NOARGS, NULL},
	{"daemon", (PyCFunction)ring_client_daemon, METH_O, NULL},
	{"renew", (PyCFunction)ring_client_renew, METH_O, NULL},
	{"call", (PyCFunction)ring_client_call, METH_VARARGS, NULL},
	{"stats", (PyCFunction)ring_client_stats, METH_NOARGS, NULL},
	{"measure", (PyCFunction)ring_client_measure, METH_VARARGS, NULL},
	{"close", (PyCFunction)ring_client_close, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyTypeObject ring_client_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.RingClient",
	.tp_basicsize = sizeof(RingClientObject),
	.tp_dealloc = (destructor)ring_client_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "A process's request ring.",
	.tp_methods = ring_client_methods,
	.tp_new = ring_client_new,
};

int native_init_ring(PyObject *m) { return PyModule_AddType(m, &native_RingServerType) < 0 || PyModule_AddType(m, &ring_client_type) < 0 ? -1 : 0; }
