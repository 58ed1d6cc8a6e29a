/* The type Room, and those methods of Client that change a pool.
 *
 * A Room is a reservation.  A buffer of one of its pieces is what writable views and arrays keep, each its own.  As long
 * as there is one of a piece that isn't committed, the reservation isn't released, whatever its user says; of one that is,
 * its extent stays held: so nothing can be stored into another block's bytes by an array of this one's.
 */
#include "_native_client.h"

enum { OPEN = 0, ASKED = 1, DONE = 2 };
struct piece { u32 buffers, kept; u8 state; };

typedef struct {
	PyObject_HEAD
	ClientObject *client;
	u64 id;
	struct bfc_new *block;
	struct piece *piece;
	int n;
	u32 open, kept;  /* buffers of pieces that aren't done; pieces that are held */
	bool dropped;    /* by its user */
	bool released;   /* the daemon was told */
	bool over;       /* nothing of it is left */
} RoomObject;

typedef struct {
	PyObject_HEAD
	RoomObject *room;
	int i;
} RoomBufferObject;

static PyTypeObject room_type, room_buffer_type;

/* ---- the connection ------------------------------------------------------------------------- */
static bool interrupted(void)
{
	PyGILState_STATE s = PyGILState_Ensure();
	bool yes = PyErr_CheckSignals() < 0;
	PyGILState_Release(s);
	return yes;
}

void native_client_made(ClientObject *p) { p->c->interrupted = interrupted; }

PyObject *native_client_raise(int rc) { return PyErr_Occurred() ? NULL : native_raise(PyExc_OSError, rc); }

static int in_this_process(void *arg, bfc *c, int ring_fd, int bell_fd, int got[2])
{
	int rc = native_ring_server_take(((ClientObject *)arg)->server, c->lease_fd, ring_fd, bell_fd, &got[0]);
	got[1] = -1;
	return rc;
}

static PyObject *client_serve_by(ClientObject *p, PyObject *server)
{
	if (!PyObject_TypeCheck(server, &native_RingServerType)) return PyErr_Format(PyExc_TypeError, "a RingServer is needed");
	if (!native_client_enter(p)) return NULL;
	if (!p->server) {
		p->server = Py_NewRef(server);
		p->c->hand_over_arg = p, p->c->hand_over = in_this_process;
	}
	native_client_leave(p);
	Py_RETURN_NONE;
}

static PyObject *client_patience(ClientObject *p, PyObject *arg)
{
	double s = PyFloat_AsDouble(arg);
	if (s == -1 && PyErr_Occurred()) return NULL;
	if (!(s >= 0 && s <= 1e9)) return PyErr_Format(PyExc_ValueError, "a number of seconds from 0 on is needed");
	if (!native_client_enter(p)) return NULL;
	bfc_patience(p->c, (u64)(s * 1e9) + 1);
	native_client_leave(p);
	Py_RETURN_NONE;
}

static PyObject *client_namespace_create(ClientObject *p, PyObject *arg)
{
	struct name name;
	u64 ns = 0;
	int rc;
	PyObject *result = NULL;
	if (!native_name(arg, &name)) return NULL;
	if (native_client_enter(p)) {
		CLIENT(p, rc, bfc_namespace_create(c, name.p, &ns));
		result = rc < 0 ? native_client_raise(rc) : PyLong_FromUnsignedLongLong(ns);
		native_client_leave(p);
	}
	NAME_FREE(name);
	return result;
}

/* ---- requests on keys ------------------------------------------------------------------------------ */
static PyObject *errors_of(const int32_t *error, int n)
{
	PyObject *list = PyList_New(n);
	for (int i = 0; list && i < n; i++) {
		PyObject *e = PyLong_FromLong(-(long)error[i]);
		if (e) PyList_SET_ITEM(list, i, e);
		else Py_CLEAR(list);
	}
	return list;
}

/* A request on each of some keys: pinned by `how`, or deleted (`how` NULL).  Takes the keys' buffer. */
static PyObject *on_keys(ClientObject *p, u64 ns, Py_buffer *keys, u32 key_bytes, const u32 *how)
{
	PyObject *result = NULL;
	int32_t *error = NULL;
	int rc, n = how && *how > BFC_PIN_SOFT ? (PyErr_SetString(PyExc_ValueError, "how is 0, 1 or 2"), -1) : native_whole_keys(keys, key_bytes);
	if (n >= 0 && !(error = PyMem_Calloc((size_t)n + 1, sizeof *error))) PyErr_NoMemory();
	if (error && native_client_enter(p)) {
		CLIENT(p, rc, how ? bfc_pin(c, ns, keys->buf, key_bytes, n, (enum bfc_pin_how)*how, error) : bfc_delete(c, ns, keys->buf, key_bytes, n, error));
		result = rc < 0 ? native_client_raise(rc) : errors_of(error, n);
		native_client_leave(p);
	}
	PyMem_Free(error);
	PyBuffer_Release(keys);
	return result;
}

static PyObject *client_delete(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	if (!PyArg_ParseTuple(args, "O&y*O&:delete", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	return on_keys(p, ns, &keys, key_bytes, NULL);
}

static PyObject *client_pin(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes, how;
	Py_buffer keys = {0};
	if (!PyArg_ParseTuple(args, "O&y*O&O&:pin", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes, native_conv_u32, &how)) return NULL;
	return on_keys(p, ns, &keys, key_bytes, &how);
}

static PyObject *client_put(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0}, *data = NULL;
	PyObject *list, *seq = NULL, *result = NULL;
	const void **at = NULL;
	size_t *size = NULL;
	int32_t *error = NULL;
	int rc, have = 0;
	if (!PyArg_ParseTuple(args, "O&y*O&O:put", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes, &list)) return NULL;
	int n = native_whole_keys(&keys, key_bytes);
	if (n < 0 || !(seq = PySequence_Fast(list, "a sequence of data is needed"))) goto out;
	if (PySequence_Fast_GET_SIZE(seq) != n) {
		PyErr_Format(PyExc_ValueError, "%d keys, and data of %zd blocks", n, PySequence_Fast_GET_SIZE(seq));
		goto out;
	}
	data = PyMem_Calloc((size_t)n + 1, sizeof *data), at = PyMem_Calloc((size_t)n + 1, sizeof *at), size = PyMem_Calloc((size_t)n + 1, sizeof *size), error = PyMem_Calloc((size_t)n + 1, sizeof *error);
	if (!data || !at || !size || !error) {
		PyErr_NoMemory();
		goto out;
	}
	for (; have < n; have++) {
		if (PyObject_GetBuffer(PySequence_Fast_GET_ITEM(seq, have), &data[have], PyBUF_SIMPLE)) goto out;
		at[have] = data[have].buf, size[have] = (size_t)data[have].len;
	}
	if (native_client_enter(p)) {
		CLIENT(p, rc, bfc_put(c, ns, keys.buf, key_bytes, n, at, size, error));
		result = rc < 0 ? native_client_raise(rc) : errors_of(error, n);
		native_client_leave(p);
	}
out:
	while (have--) PyBuffer_Release(&data[have]);
	PyMem_Free(data);
	PyMem_Free(at);
	PyMem_Free(size);
	PyMem_Free(error);
	Py_XDECREF(seq);
	PyBuffer_Release(&keys);
	return result;
}

/* ---- rooms --------------------------------------------------------------------------------------------- */
static PyObject *client_reserve(ClientObject *p, PyObject *args)
{
	u64 ns, size, id = 0;
	u32 n;
	int rc;
	if (!PyArg_ParseTuple(args, "O&O&O&:reserve", native_conv_u64, &ns, native_conv_u32, &n, native_conv_u64, &size)) return NULL;
	if (n < 1 || n > BFS_RESERVE_MAX) return PyErr_Format(PyExc_ValueError, "%u blocks; 1 to %u can be reserved at a time", n, BFS_RESERVE_MAX);
	struct bfc_new *block = PyMem_Calloc(n, sizeof *block);
	struct piece *piece = PyMem_Calloc(n, sizeof *piece);
	RoomObject *r = block && piece ? PyObject_New(RoomObject, &room_type) : NULL;
	if (!r || !native_client_enter(p)) {
		if (!r && !PyErr_Occurred()) PyErr_NoMemory();
		PyMem_Free(block);
		PyMem_Free(piece);
		if (r) PyObject_Free(r);
		return NULL;
	}
	r->client = (ClientObject *)Py_NewRef(p);
	r->block = block, r->piece = piece, r->n = (int)n, r->open = r->kept = 0, r->dropped = r->released = r->over = false;
	for (u32 i = 0; i < n; i++) piece[i].kept = CL_NO_LEASE;
	CLIENT(p, rc, bfc_reserve(c, ns, (int)n, size, block, &id));
	r->id = id;
	if (rc < 0) {
		native_client_raise(rc);
		r->dropped = r->released = r->over = true;
		Py_CLEAR(r);
	} else {
		p->leases++;
	}
	native_client_leave(p);
	return (PyObject *)r;
}

/* Once its user is done with it: what no buffer keeps is given back. */
static void settle(RoomObject *r)
{
	ClientObject *p = r->client;
	int rc;
	if (r->over || !r->dropped || p->fork_count != native_fork_count) return;
	if (!r->released && !r->open) {
		r->released = true;
		p->calls++; /* closed or not: it stays open for this */
		if (p->c) CLIENT(p, rc, bfc_drop(c, r->id));
		(void)rc;
		p->calls--;
	}
	if (!r->released || r->kept) return;
	r->over = true, p->leases--;
	native_client_close_if_done(p);
}

static bool room_index(RoomObject *r, PyObject *arg, int *i)
{
	long x = PyLong_AsLong(arg);
	if (x == -1 && PyErr_Occurred()) return false;
	if (x < 0 || x >= r->n) return PyErr_SetString(PyExc_IndexError, "no such block in this reservation"), false;
	*i = (int)x;
	return true;
}

static PyObject *room_buffer(RoomObject *r, PyObject *arg)
{
	int i;
	if (!room_index(r, arg, &i)) return NULL;
	const char *why = r->client->fork_count != native_fork_count ? "reserved by the parent process" : r->dropped ? "the reservation is closed" : r->piece[i].state != OPEN ? "the block is committed" : NULL;
	if (why) return PyErr_SetString(PyExc_ValueError, why), NULL;
	RoomBufferObject *f = PyObject_New(RoomBufferObject, &room_buffer_type);
	if (!f) return NULL;
	f->room = (RoomObject *)Py_NewRef(r);
	f->i = i;
	r->piece[i].buffers++, r->open++;
	return (PyObject *)f;
}

static PyObject *room_address(RoomObject *r, PyObject *arg)
{
	int i;
	return room_index(r, arg, &i) ? PyLong_FromVoidPtr(r->block[i].addr) : NULL;
}

/* commit(keys, key_bytes, indexes, filled): a list of errnos */
static PyObject *room_commit(RoomObject *r, PyObject *args)
{
	ClientObject *p = r->client;
	u32 key_bytes;
	Py_buffer keys = {0};
	PyObject *indexes, *filled, *is = NULL, *fs = NULL, *result = NULL;
	struct bfc_new *block = NULL;
	int32_t *error = NULL;
	int rc, asked = 0, m = 0;
	if (!PyArg_ParseTuple(args, "y*O&OO:commit", &keys, native_conv_u32, &key_bytes, &indexes, &filled)) return NULL;
	int n = native_whole_keys(&keys, key_bytes);
	u8 *sent = NULL;
	if (n < 0 || !(is = PySequence_Fast(indexes, "a sequence of indexes is needed")) || !(fs = PySequence_Fast(filled, "a sequence of sizes is needed"))) goto out;
	if (PySequence_Fast_GET_SIZE(is) != n || PySequence_Fast_GET_SIZE(fs) != n) {
		PyErr_SetString(PyExc_ValueError, "an index and a size for each key are needed");
		goto out;
	}
	if (r->dropped) {
		PyErr_SetString(PyExc_ValueError, "the reservation is closed");
		goto out;
	}
	block = PyMem_Calloc((size_t)n + 1, sizeof *block), error = PyMem_Calloc((size_t)n + 1, sizeof *error), sent = PyMem_Calloc((size_t)n + 1, (size_t)key_bytes);
	if (!block || !error || !sent) {
		PyErr_NoMemory();
		goto out;
	}
	if (!native_client_enter(p)) goto out;
	for (; asked < n; asked++) {
		int i;
		u64 size;
		if (!room_index(r, PySequence_Fast_GET_ITEM(is, asked), &i) || !native_conv_u64(PySequence_Fast_GET_ITEM(fs, asked), &size)) break;
		if (size > r->block[i].size_bytes) {
			PyErr_Format(PyExc_ValueError, "%llu bytes filled of %llu", (unsigned long long)size, (unsigned long long)r->block[i].size_bytes);
			break;
		}
		struct piece *x = &r->piece[i];
		error[asked] = x->state != OPEN ? -EINVAL : 0;
		/* before anybody else can have, and lose, what an array of ours can still store into */
		if (!error[asked] && x->buffers && (x->kept = cl_keep(p->c, r->block[i].addr, r->block[i].size_bytes)) == CL_NO_LEASE) error[asked] = -ENOBUFS;
		if (error[asked]) continue;
		x->state = ASKED;
		memcpy(sent + (size_t)m * key_bytes, (const u8 *)keys.buf + (size_t)asked * key_bytes, key_bytes);
		block[m] = r->block[i];
		block[m++].filled_bytes = size;
	}
	rc = 0;
	if (asked == n) CLIENT(p, rc, bfc_commit(c, r->id, sent, key_bytes, m, block));
	for (int k = 0, at = 0; k < m; k++, at++) {
		while (error[at]) at++;
		struct piece *x = &r->piece[block[k].index];
		bool done = asked == n && rc >= 0 && !block[k].error;
		error[at] = block[k].error;
		x->state = done ? DONE : OPEN;
		if (done) r->open -= x->buffers;
		if (x->kept == CL_NO_LEASE) continue;
		if (done && x->buffers) r->kept++;
		else cl_unkeep(p->c, x->kept), x->kept = CL_NO_LEASE;
	}
	if (asked == n) result = rc < 0 ? native_client_raise(rc) : errors_of(error, n);
	native_client_leave(p);
out:
	PyMem_Free(block);
	PyMem_Free(error);
	PyMem_Free(sent);
	Py_XDECREF(is);
	Py_XDECREF(fs);
	PyBuffer_Release(&keys);
	return result;
}

/* How many of its blocks are still used by buffers. */
static PyObject *room_drop(RoomObject *r, PyObject *Py_UNUSED(none))
{
	long used = 0;
	r->dropped = true;
	settle(r);
	for (int i = 0; i < r->n; i++) used += r->piece[i].buffers != 0;
	return PyLong_FromLong(used);
}

static void room_dealloc(PyObject *o)
{
	RoomObject *r = (RoomObject *)o;
	r->dropped = true;
	settle(r);
	Py_DECREF(r->client);
	PyMem_Free(r->block);
	PyMem_Free(r->piece);
	PyObject_Free(o);
}

static PyObject *room_get_dropped(RoomObject *r, void *Py_UNUSED(x)) { return PyBool_FromLong(r->dropped); }
static PyMethodDef room_methods[] = {
	{"buffer", (PyCFunction)room_buffer, METH_O, NULL}, {"address", (PyCFunction)room_address, METH_O, NULL},
	{"commit", (PyCFunction)room_commit, METH_VARARGS, NULL}, {"drop", (PyCFunction)room_drop, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
static PyGetSetDef room_getset[] = {{"dropped", (getter)room_get_dropped, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyTypeObject room_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.Room",
	.tp_basicsize = sizeof(RoomObject),
	.tp_dealloc = room_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_methods = room_methods,
	.tp_getset = room_getset,
};

static void room_buffer_dealloc(PyObject *o)
{
	RoomObject *r = ((RoomBufferObject *)o)->room;
	struct piece *x = &r->piece[((RoomBufferObject *)o)->i];
	x->buffers--;
	if (x->state != DONE) r->open--;
	else if (!x->buffers && x->kept != CL_NO_LEASE) {
		if (r->client->c && r->client->fork_count == native_fork_count) cl_unkeep(r->client->c, x->kept);
		x->kept = CL_NO_LEASE, r->kept--;
	}
	settle(r);
	Py_DECREF(r);
	PyObject_Free(o);
}
static int room_buffer_get(PyObject *o, Py_buffer *view, int flags)
{
	RoomObject *r = ((RoomBufferObject *)o)->room;
	struct bfc_new *k = &r->block[((RoomBufferObject *)o)->i];
	if (r->client->fork_count != native_fork_count) {
		PyErr_SetString(PyExc_BufferError, "reserved by the parent process");
		return -1;
	}
	return PyBuffer_FillInfo(view, o, k->addr, (Py_ssize_t)k->size_bytes, 0, flags);
}
static PyBufferProcs room_buffer_procs = {.bf_getbuffer = room_buffer_get};
static PyTypeObject room_buffer_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.RoomBuffer",
	.tp_basicsize = sizeof(RoomBufferObject),
	.tp_dealloc = room_buffer_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_as_buffer = &room_buffer_procs,
};

PyMethodDef native_write_methods[] = {
	{"serve_by", (PyCFunction)client_serve_by, METH_O, NULL},
	{"patience", (PyCFunction)client_patience, METH_O, NULL},
	{"namespace_create", (PyCFunction)client_namespace_create, METH_O, NULL},
	{"put", (PyCFunction)client_put, METH_VARARGS, NULL},
	{"delete", (PyCFunction)client_delete, METH_VARARGS, NULL},
	{"pin", (PyCFunction)client_pin, METH_VARARGS, NULL},
	{"reserve", (PyCFunction)client_reserve, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

int native_init_write(PyObject *m)
{
	if (PyType_Ready(&room_type) < 0 || PyType_Ready(&room_buffer_type) < 0) return -1;
	return PyModule_AddType(m, &room_type);
}
