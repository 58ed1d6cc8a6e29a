/* The type DirectServer: the direct transport (belugafs/_direct) on an attached Pool; and what the other one uses of it.
 *
 * Its threads run without the GIL; they take it only for what Python answers: the directory .beluga, and the log. */
#include "_native.h"
#include "_direct/server.h"

typedef struct {
	PyObject_HEAD
	PoolObject *pool;  /* in use (pool_enter) while d is there */
	struct ds *d;
	PyObject *control, *log, *still_open;
} ServerObject;

/* ---- callbacks, from threads of the server ----------------------------------------------------- */
static int on_control(void *ctx, u32 opcode, u64 nodeid, u32 uid, const u8 *arg, size_t len, u8 *out, size_t cap)
{
	ServerObject *s = ctx;
	int rc = -EIO;
	PyGILState_STATE g = PyGILState_Ensure();
	PyObject *x = PyObject_CallFunction(s->control, "IKIy#", opcode, (unsigned long long)nodeid, uid, (const char *)arg, (Py_ssize_t)len);
	if (x && PyLong_Check(x)) {
		rc = (int)PyLong_AsLong(x);
	} else if (x && PyBytes_Check(x)) {
		size_t n = (size_t)PyBytes_GET_SIZE(x);
		if (n <= cap) memcpy(out, PyBytes_AS_STRING(x), n), rc = (int)n;
	} else if (x) {
		PyErr_Format(PyExc_TypeError, "control answered with a %.100s", Py_TYPE(x)->tp_name);
	}
	if (PyErr_Occurred()) PyErr_WriteUnraisable(s->control), rc = -EIO;
	Py_XDECREF(x);
	PyGILState_Release(g);
	return rc;
}

static bool on_still_open(void *ctx, const u64 opener[2], u64 ino)
{
	ServerObject *s = ctx;
	PyGILState_STATE g = PyGILState_Ensure();
	PyObject *x = PyObject_CallFunction(s->still_open, "KKK", (unsigned long long)opener[0], (unsigned long long)opener[1], (unsigned long long)ino);
	int yes = x ? PyObject_IsTrue(x) : -1;
	if (yes < 0) PyErr_WriteUnraisable(s->still_open);
	Py_XDECREF(x);
	PyGILState_Release(g);
	return yes > 0;
}

static void on_log(void *ctx, int level, const char *text)
{
	ServerObject *s = ctx;
	PyGILState_STATE g = PyGILState_Ensure();
	PyObject *t = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
	PyObject *x = t ? PyObject_CallFunction(s->log, "iO", level, t) : NULL;
	if (!x) PyErr_WriteUnraisable(s->log);
	Py_XDECREF(t);
	Py_XDECREF(x);
	PyGILState_Release(g);
}

/* ---- the type ---------------------------------------------------------------------------------------- */
static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"pool", "fd", "control", "log", "max_pages", "threads", "still_open", "passthrough", "sync", "spin_us", NULL};
	struct ds_config c = {.control = on_control, .log = on_log, .passthrough = -1};
	PyObject *control, *log, *still_open = Py_None;
	PoolObject *pool;
	int rc, sync = 0;
	u32 spin_us = 0;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O!iOO|$O&O&OipO&:DirectServer", names, &native_PoolType, &pool, &c.fd, &control, &log, native_conv_u32, &c.max_pages, native_conv_u32, &c.threads, &still_open, &c.passthrough, &sync, native_conv_u32, &spin_us))
		return NULL;
	if (!PyCallable_Check(control) || !PyCallable_Check(log) || (still_open != Py_None && !PyCallable_Check(still_open))) {
		PyErr_SetString(PyExc_TypeError, "control, log and still_open must be callable");
		return NULL;
	}
	if (c.max_pages < 1 || c.max_pages > 65535) {
		PyErr_SetString(PyExc_ValueError, "max_pages must be between 1 and 65535");
		return NULL;
	}
	if (spin_us > 1000) {
		PyErr_SetString(PyExc_ValueError, "spin_us must be between 0 and 1000");
		return NULL;
	}
	if (!pool_enter(pool)) return NULL;
	ServerObject *s = (ServerObject *)type->tp_alloc(type, 0);
	if (!s) {
		pool_leave(pool);
		return NULL;
	}
	s->pool = (PoolObject *)Py_NewRef((PyObject *)pool);
	s->control = Py_NewRef(control), s->log = Py_NewRef(log), s->still_open = Py_NewRef(still_open);
	c.sync = sync, c.spin_ns = spin_us * 1000;
	c.ctx = s, c.still_open = still_open != Py_None ? on_still_open : NULL;
	struct ds *d = NULL;
	Py_BEGIN_ALLOW_THREADS
	rc = ds_start(pool->b, &c, &d);
	Py_END_ALLOW_THREADS
	s->d = d;
	if (!rc) return (PyObject *)s;
	pool_leave(pool);
	Py_DECREF(s);
	errno = -rc;
	return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *server_stop(ServerObject *s, PyObject *unused)
{
	(void)unused;
	if (s->d) {
		Py_BEGIN_ALLOW_THREADS
		ds_stop(s->d);
		Py_END_ALLOW_THREADS
	}
	Py_RETURN_NONE;
}

static PyObject *server_close(ServerObject *s, PyObject *unused)
{
	struct ds *d = s->d;
	(void)unused;
	if (!d) Py_RETURN_NONE;
	s->d = NULL;
	Py_BEGIN_ALLOW_THREADS
	ds_stop(d);
	ds_free(d);
	Py_END_ALLOW_THREADS
	pool_leave(s->pool);
	Py_RETURN_NONE;
}

static PyObject *server_info(ServerObject *s, PyObject *unused)
{
	struct ds_info i;
	(void)unused;
	if (!s->d) {
		PyErr_SetString(PyExc_ValueError, "the server is closed");
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS
	ds_info(s->d, &i);
	Py_END_ALLOW_THREADS
	return Py_BuildValue("{sIsIsIsKsKsKsKsisN}", "kernel_minor", i.kernel_minor, "request_bytes", i.max_write, "threads", i.threads, "offered", (unsigned long long)i.offered, "flags",
		(unsigned long long)i.flags, "requests", (unsigned long long)i.requests, "backing_ids", (unsigned long long)i.backing_ids, "passthrough", i.passthrough, "end", i.end < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(i.end));
}

static PyObject *server_fileno(ServerObject *s, PyObject *unused)
{
	(void)unused;
	if (s->d) return PyLong_FromLong(ds_ended_fd(s->d));
	PyErr_SetString(PyExc_ValueError, "the server is closed");
	return NULL;
}

static void server_dealloc(ServerObject *s)
{
	Py_XDECREF(server_close(s, NULL));
	Py_XDECREF(s->pool);
	Py_XDECREF(s->control);
	Py_XDECREF(s->log);
	Py_XDECREF(s->still_open);
	Py_TYPE(s)->tp_free((PyObject *)s);
}

/* ---- who opened a file: for the other transport, too -------------------------------------------------- */
PyObject *native_opener_of(PyObject *Py_UNUSED(self), PyObject *thread_id)
{
	u64 opener[2];
	u32 id;
	if (!native_conv_u32(thread_id, &id)) return NULL;
	Py_BEGIN_ALLOW_THREADS
	ds_opener(id, opener);
	Py_END_ALLOW_THREADS
	if (!opener[0]) Py_RETURN_NONE;
	return Py_BuildValue("KK", (unsigned long long)opener[0], (unsigned long long)opener[1]);
}

PyObject *native_is_killed(PyObject *Py_UNUSED(self), PyObject *args)
{
	u64 opener[2];
	bool killed;
	if (!PyArg_ParseTuple(args, "O&O&:is_killed", native_conv_u64, &opener[0], native_conv_u64, &opener[1])) return NULL;
	Py_BEGIN_ALLOW_THREADS
	killed = ds_is_killed(opener);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(killed);
}

static PyMethodDef methods[] = {
	{"stop", (PyCFunction)server_stop, METH_NOARGS, NULL},
	{"close", (PyCFunction)server_close, METH_NOARGS, NULL},
	{"info", (PyCFunction)server_info, METH_NOARGS, NULL},
	{"fileno", (PyCFunction)server_fileno, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

PyTypeObject native_DirectServerType = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.DirectServer",
	.tp_basicsize = sizeof(ServerObject),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = server_new,
	.tp_dealloc = (destructor)server_dealloc,
	.tp_methods = methods,
};
