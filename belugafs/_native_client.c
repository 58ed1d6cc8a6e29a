/* The types Client and Lease: a pool as a process reads it that isn't attached (include/belugafs.h).
 *
 * A Lease is one block.  It is given back when it was released and no buffer of it is left: a buffer is what views and
 * arrays keep, each its own.  So an array that outlives the release keeps its bytes, and nothing else does.
 * The connection closes when it was closed and its last lease is given back.
 */
#include "_native_client.h"

typedef struct {
	PyObject_HEAD
	ClientObject *client;
	struct bfc_block block;
	const void *addr; /* stays, to be told */
	u32 buffers;
	bool released;    /* by its user */
	bool given;       /* back */
} LeaseObject;

typedef struct { /* what views and arrays refer to */
	PyObject_HEAD
	LeaseObject *lease;
} BufferObject;

static PyTypeObject lease_type, buffer_type;

/* ---- connection -------------------------------------------------------------------------------- */
void native_client_close_if_done(ClientObject *p)
{
	if (!p->c || !p->closing || p->calls || p->leases) return;
	bfc *c = p->c;
	p->c = NULL;
	Py_BEGIN_ALLOW_THREADS bfc_close(c);
	Py_END_ALLOW_THREADS
}

bool native_client_enter(ClientObject *p)
{
	if (p->fork_count != native_fork_count) {
		PyErr_SetString(PyExc_RuntimeError, "this pool was connected by the parent process: connect again after a fork");
		return false;
	}
	if (!p->c || p->closing) {
		PyObject *e = PyObject_CallFunction(PyExc_OSError, "is", EBADF, "the pool is closed");
		if (e) PyErr_SetObject(PyExc_OSError, e);
		Py_XDECREF(e);
		return false;
	}
	p->calls++;
	return true;
}
void native_client_leave(ClientObject *p)
{
	p->calls--;
	native_client_close_if_done(p);
}
#define client_enter native_client_enter
#define client_leave native_client_leave
#define close_if_done native_client_close_if_done

static PyObject *made(PyTypeObject *type, bfc *c)
{
	ClientObject *p = (ClientObject *)type->tp_alloc(type, 0);
	if (!p) {
		bfc_close(c);
		return NULL;
	}
	p->c = c, p->fork_count = native_fork_count;
	native_client_made(p);
	return (PyObject *)p;
}

static PyObject *client_connect(PyObject *type, PyObject *arg)
{
	struct name path;
	bfc *c = NULL;
	int rc;
	if (!native_name(arg, &path)) return NULL;
	Py_BEGIN_ALLOW_THREADS rc = bfc_connect(path.p, &c);
	Py_END_ALLOW_THREADS
	NAME_FREE(path);
	return rc < 0 ? native_raise(PyExc_OSError, rc) : made((PyTypeObject *)type, c);
}

static PyObject *client_open(PyObject *type, PyObject *args)
{
	int pool, host, lease, rc;
	bfc *c = NULL;
	if (!PyArg_ParseTuple(args, "iii:open", &pool, &host, &lease)) return NULL;
	Py_BEGIN_ALLOW_THREADS rc = bfc_open(pool, host, lease, &c);
	Py_END_ALLOW_THREADS
	return rc < 0 ? native_raise(PyExc_OSError, rc) : made((PyTypeObject *)type, c);
}

static PyObject *client_close(ClientObject *p, PyObject *Py_UNUSED(none))
{
	p->closing = true;
	close_if_done(p);
	Py_RETURN_NONE;
}

static void client_dealloc(PyObject *o)
{
	ClientObject *p = (ClientObject *)o;
	if (p->c) bfc_close(p->c);
	Py_XDECREF(p->server);
	Py_TYPE(o)->tp_free(o);
}

/* ---- look-ups ------------------------------------------------------------------------------------ */
static PyObject *number(ClientObject *p, PyObject *arg, int (*f)(bfc *c, const char *name, u64 *out))
{
	struct name name;
	u64 n = 0;
	int rc;
	PyObject *result = NULL;
	if (!native_name(arg, &name)) return NULL;
	if (client_enter(p)) {
		CLIENT(p, rc, f(c, name.p, &n));
		client_leave(p);
		result = rc < 0 ? native_raise(PyExc_OSError, rc) : PyLong_FromUnsignedLongLong(n);
	}
	NAME_FREE(name);
	return result;
}
static PyObject *client_namespace(ClientObject *p, PyObject *arg) { return number(p, arg, bfc_namespace); }
static PyObject *client_lookup(ClientObject *p, PyObject *arg) { return number(p, arg, bfc_lookup); }

static PyObject *client_getxattr(ClientObject *p, PyObject *args)
{
	u64 ino;
	struct name name = {0};
	PyObject *result = NULL;
	ssize_t n;
	if (!PyArg_ParseTuple(args, "O&O&:getxattr", native_conv_u64, &ino, native_conv_name, &name)) return NULL;
	if (client_enter(p)) {
		result = PyBytes_FromStringAndSize(NULL, BFS_XATTR_MAX);
		if (result) {
			CLIENT(p, n, bfc_getxattr(c, ino, name.p, PyBytes_AS_STRING(result), BFS_XATTR_MAX));
			if (n < 0) {
				Py_CLEAR(result);
				native_raise(PyExc_OSError, (int)n);
			} else {
				_PyBytes_Resize(&result, n);
			}
		}
		client_leave(p);
	}
	NAME_FREE(name);
	return result;
}

int native_whole_keys(const Py_buffer *keys, u32 key_bytes)
{
	if (key_bytes < 2 || key_bytes > BFS_KEY_MAX) {
		PyErr_Format(PyExc_ValueError, "a key has 2 to %d bytes, not %u", (int)BFS_KEY_MAX, key_bytes);
		return -1;
	}
	if (keys->len % key_bytes || keys->len / key_bytes > INT_MAX) {
		PyErr_Format(PyExc_ValueError, "%zd bytes aren't a whole number of keys of %u bytes", keys->len, key_bytes);
		return -1;
	}
	return (int)(keys->len / key_bytes);
}

static PyObject *client_match(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	PyObject *result = NULL;
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*O&:match", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	int n = native_whole_keys(&keys, key_bytes);
	if (n >= 0 && client_enter(p)) {
		CLIENT(p, rc, bfc_match(c, ns, keys.buf, key_bytes, n));
		client_leave(p);
		result = rc < 0 ? native_raise(PyExc_OSError, rc) : PyLong_FromLong(rc);
	}
	PyBuffer_Release(&keys);
	return result;
}

static PyObject *client_exists(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	PyObject *result = NULL;
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*O&:exists", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	int n = native_whole_keys(&keys, key_bytes);
	if (n >= 0 && client_enter(p)) {
		if ((result = PyBytes_FromStringAndSize(NULL, n))) {
			u8 *present = (u8 *)PyBytes_AS_STRING(result);
			CLIENT(p, rc, bfc_exists(c, ns, keys.buf, key_bytes, n, present));
			if (rc < 0) {
				Py_CLEAR(result);
				native_raise(PyExc_OSError, rc);
			}
		}
		client_leave(p);
	}
	PyBuffer_Release(&keys);
	return result;
}

static PyObject *client_get(ClientObject *p, PyObject *args)
{
	u64 ns;
	Py_buffer key = {0};
	PyObject *result = NULL;
	ssize_t n = -ERANGE;
	if (!PyArg_ParseTuple(args, "O&y*:get", native_conv_u64, &ns, &key)) return NULL;
	if (client_enter(p)) {
		/* it may have been replaced by a larger one between the two calls */
		for (int tries = 0; n == -ERANGE && tries < 8; tries++) {
			Py_CLEAR(result);
			CLIENT(p, n, bfc_get(c, ns, key.buf, (size_t)key.len, NULL, 0));
			if (n < 0 || !(result = PyBytes_FromStringAndSize(NULL, n)) || !n) break;
			char *to = PyBytes_AS_STRING(result);
			size_t room = (size_t)n;
			CLIENT(p, n, bfc_get(c, ns, key.buf, (size_t)key.len, to, room));
		}
		if (n < 0) {
			Py_CLEAR(result);
			native_raise(PyExc_OSError, (int)n);
		} else if (result && n != PyBytes_GET_SIZE(result)) {
			_PyBytes_Resize(&result, n);
		}
		client_leave(p);
	}
	PyBuffer_Release(&key);
	return result;
}

static PyObject *client_get_into(ClientObject *p, PyObject *args)
{
	u64 ns;
	Py_buffer key = {0}, to = {0};
	PyObject *result = NULL;
	ssize_t n;
	if (!PyArg_ParseTuple(args, "O&y*w*:get_into", native_conv_u64, &ns, &key, &to)) {
		if (key.obj) PyBuffer_Release(&key);
		return NULL;
	}
	if (client_enter(p)) {
		CLIENT(p, n, bfc_get(c, ns, key.buf, (size_t)key.len, to.buf, (size_t)to.len));
		if (n > to.len) n = bfs_fail(NULL, -ERANGE, "block of %zd bytes, buffer of %zd", n, to.len); /* an empty one only asks for the size */
		result = n < 0 ? native_raise(PyExc_OSError, (int)n) : PyLong_FromSsize_t(n);
		client_leave(p);
	}
	PyBuffer_Release(&key);
	PyBuffer_Release(&to);
	return result;
}

/* ---- leases ---------------------------------------------------------------------------------------- */
static PyObject *list_of(ClientObject *p, struct bfc_block *block, int n)
{
	PyObject *list = PyList_New(n);
	for (int i = 0; list && i < n; i++) {
		LeaseObject *l = PyObject_New(LeaseObject, &lease_type);
		if (!l) {
			Py_CLEAR(list); /* those that are in it give theirs back */
			bfc_release(p->c, block + i, n - i);
			break;
		}
		l->client = (ClientObject *)Py_NewRef(p);
		l->block = block[i], l->addr = block[i].addr;
		l->buffers = 0, l->released = false;
		l->given = block[i].error || block[i].lease == CL_NO_LEASE;
		p->leases += !l->given;
		PyList_SET_ITEM(list, i, (PyObject *)l);
	}
	return list;
}

static PyObject *leased(ClientObject *p, u64 ns, const void *keys, u32 key_bytes, const u64 *inodes, int n)
{
	int rc;
	PyObject *result = NULL;
	struct bfc_block *block = PyMem_Calloc(n ? (size_t)n : 1, sizeof *block);
	if (!block) return PyErr_NoMemory();
	if (client_enter(p)) {
		CLIENT(p, rc, inodes ? bfc_lease_inodes(c, inodes, n, block) : bfc_lease(c, ns, keys, key_bytes, n, block));
		result = rc < 0 ? native_raise(PyExc_OSError, rc) : list_of(p, block, n);
		client_leave(p);
	}
	PyMem_Free(block);
	return result;
}

static PyObject *client_lease(ClientObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	if (!PyArg_ParseTuple(args, "O&y*O&:lease", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	int n = native_whole_keys(&keys, key_bytes);
	PyObject *result = n < 0 ? NULL : leased(p, ns, keys.buf, key_bytes, NULL, n);
	PyBuffer_Release(&keys);
	return result;
}

static PyObject *client_lease_inodes(ClientObject *p, PyObject *arg)
{
	PyObject *seq = PySequence_Fast(arg, "a sequence of inode numbers is needed"), *result = NULL;
	if (!seq) return NULL;
	Py_ssize_t n = PySequence_Fast_GET_SIZE(seq);
	u64 *inodes = PyMem_Calloc(n ? (size_t)n : 1, sizeof *inodes);
	bool ok = inodes && n < INT_MAX;
	for (Py_ssize_t i = 0; ok && i < n; i++) ok = native_conv_u64(PySequence_Fast_GET_ITEM(seq, i), &inodes[i]);
	if (ok) result = leased(p, 0, NULL, 0, inodes, (int)n);
	else if (!PyErr_Occurred()) PyErr_NoMemory();
	PyMem_Free(inodes);
	Py_DECREF(seq);
	return result;
}

/* Those of a list that no buffer uses, at once; the others as soon as that is so.  How many wait; -ESTALE: LeaseLost. */
static PyObject *client_release(ClientObject *p, PyObject *list)
{
	if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "a list of leases is needed");
	Py_ssize_t n = PyList_GET_SIZE(list);
	struct bfc_block *block = PyMem_Calloc(n ? (size_t)n : 1, sizeof *block);
	int m = 0, waiting = 0, rc = 0;
	if (!block) return PyErr_NoMemory();
	for (Py_ssize_t i = 0; i < n; i++) {
		LeaseObject *l = (LeaseObject *)PyList_GET_ITEM(list, i);
		if (!Py_IS_TYPE((PyObject *)l, &lease_type) || l->client != p) continue;
		l->released = true;
		waiting += !l->given && l->buffers;
		if (l->given || l->buffers) continue;
		block[m++] = l->block;
		l->given = true, p->leases--;
	}
	if (m && p->c && p->fork_count == native_fork_count) rc = bfc_release(p->c, block, m);
	PyMem_Free(block);
	close_if_done(p);
	return rc < 0 ? native_raise(PyExc_OSError, rc) : PyLong_FromLong(waiting);
}

static PyObject *client_check(ClientObject *p, PyObject *Py_UNUSED(none))
{
	int rc;
	if (!client_enter(p)) return NULL;
	CLIENT(p, rc, bfc_check(c));
	client_leave(p);
	return rc < 0 ? native_raise(PyExc_OSError, rc) : Py_NewRef(Py_None);
}

static void give_back(LeaseObject *l)
{
	ClientObject *p = l->client;
	if (l->given) return;
	l->given = true, p->leases--;
	if (p->c && p->fork_count == native_fork_count) bfc_release(p->c, &l->block, 1);
	close_if_done(p);
}

static void lease_dealloc(PyObject *o)
{
	LeaseObject *l = (LeaseObject *)o;
	give_back(l);
	Py_DECREF(l->client);
	PyObject_Free(o);
}

static PyObject *lease_buffer(LeaseObject *l, PyObject *Py_UNUSED(none))
{
	if (l->block.error || l->released || l->client->fork_count != native_fork_count) {
		PyErr_SetString(PyExc_ValueError, l->block.error ? "this block isn't leased" : l->released ? "the lease is closed" : "leased by the parent process");
		return NULL;
	}
	BufferObject *f = PyObject_New(BufferObject, &buffer_type);
	if (!f) return NULL;
	f->lease = (LeaseObject *)Py_NewRef(l);
	l->buffers++;
	return (PyObject *)f;
}

static PyObject *lease_address(LeaseObject *l, void *Py_UNUSED(x)) { return PyLong_FromVoidPtr((void *)l->addr); }
static PyObject *lease_size(LeaseObject *l, void *Py_UNUSED(x)) { return PyLong_FromUnsignedLongLong(l->block.size_bytes); }
static PyObject *lease_inode(LeaseObject *l, void *Py_UNUSED(x)) { return PyLong_FromUnsignedLongLong(l->block.inode); }
static PyObject *lease_error(LeaseObject *l, void *Py_UNUSED(x)) { return PyLong_FromLong(-l->block.error); }
static PyObject *lease_verified(LeaseObject *l, void *Py_UNUSED(x)) { return PyBool_FromLong(l->block.flags & BFC_VERIFIED); }
static PyObject *lease_released(LeaseObject *l, void *Py_UNUSED(x)) { return PyBool_FromLong(l->released); }

static PyMethodDef lease_methods[] = {{"buffer", (PyCFunction)lease_buffer, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef lease_getset[] = {
	{"address", (getter)lease_address, NULL, NULL, NULL}, {"size", (getter)lease_size, NULL, NULL, NULL},
	{"inode", (getter)lease_inode, NULL, NULL, NULL}, {"error", (getter)lease_error, NULL, NULL, NULL},
	{"verified", (getter)lease_verified, NULL, NULL, NULL}, {"released", (getter)lease_released, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
static PyTypeObject lease_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.Lease",
	.tp_basicsize = sizeof(LeaseObject),
	.tp_dealloc = lease_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_methods = lease_methods,
	.tp_getset = lease_getset,
};

static void buffer_dealloc(PyObject *o)
{
	LeaseObject *l = ((BufferObject *)o)->lease;
	if (!--l->buffers && l->released) give_back(l);
	Py_DECREF(l);
	PyObject_Free(o);
}
static int buffer_get(PyObject *o, Py_buffer *view, int flags)
{
	LeaseObject *l = ((BufferObject *)o)->lease;
	if (l->client->fork_count != native_fork_count) {
		PyErr_SetString(PyExc_BufferError, "leased by the parent process");
		return -1;
	}
	return PyBuffer_FillInfo(view, o, (void *)(l->addr ? l->addr : ""), (Py_ssize_t)l->block.size_bytes, 1, flags);
}
static PyBufferProcs buffer_procs = {.bf_getbuffer = buffer_get};
static PyTypeObject buffer_type = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.LeaseBuffer",
	.tp_basicsize = sizeof(BufferObject),
	.tp_dealloc = buffer_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_as_buffer = &buffer_procs,
};

/* ---- the type ------------------------------------------------------------------------------------------ */
static PyObject *client_get_closed(ClientObject *p, void *Py_UNUSED(x)) { return PyBool_FromLong(!p->c || p->closing); }
static PyObject *client_get_leases(ClientObject *p, void *Py_UNUSED(x)) { return PyLong_FromUnsignedLong(p->leases); }
static PyObject *client_get_span(ClientObject *p, void *Py_UNUSED(x))
{
	if (!client_enter(p)) return NULL;
	PyObject *t = Py_BuildValue("(NK)", PyLong_FromVoidPtr(p->c->mem.base), (unsigned long long)p->c->mem.size);
	client_leave(p);
	return t;
}

static PyMethodDef client_methods[] = { /* the others: native_write_methods */
	{"connect", client_connect, METH_O | METH_CLASS, NULL},
	{"open", client_open, METH_VARARGS | METH_CLASS, NULL},
	{"close", (PyCFunction)client_close, METH_NOARGS, NULL},
	{"namespace", (PyCFunction)client_namespace, METH_O, NULL},
	{"lookup", (PyCFunction)client_lookup, METH_O, NULL},
	{"getxattr", (PyCFunction)client_getxattr, METH_VARARGS, NULL},
	{"match", (PyCFunction)client_match, METH_VARARGS, NULL},
	{"exists", (PyCFunction)client_exists, METH_VARARGS, NULL},
	{"get_into", (PyCFunction)client_get_into, METH_VARARGS, NULL}, {"get", (PyCFunction)client_get, METH_VARARGS, NULL},
	{"lease", (PyCFunction)client_lease, METH_VARARGS, NULL},
	{"lease_inodes", (PyCFunction)client_lease_inodes, METH_O, NULL},
	{"release", (PyCFunction)client_release, METH_O, NULL},
	{"check", (PyCFunction)client_check, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
static PyGetSetDef client_getset[] = {
	{"closed", (getter)client_get_closed, NULL, NULL, NULL}, {"leases", (getter)client_get_leases, NULL, NULL, NULL},
	{"span", (getter)client_get_span, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL},
};
PyTypeObject native_ClientType = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.Client",
	.tp_basicsize = sizeof(ClientObject),
	.tp_dealloc = client_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_methods = client_methods,
	.tp_getset = client_getset,
};

int native_init_client(PyObject *m)
{
	if (PyType_Ready(&native_ClientType) < 0) return -1;
	for (PyMethodDef *m_ = native_write_methods; m_->ml_name; m_++) {
		PyObject *d = PyDescr_NewMethod(&native_ClientType, m_);
		int bad = d ? PyDict_SetItemString(native_ClientType.tp_dict, m_->ml_name, d) : -1;
		Py_XDECREF(d);
		if (bad) return -1;
	}
	if (native_init_write(m) < 0 || PyType_Ready(&lease_type) < 0 || PyType_Ready(&buffer_type) < 0 || PyModule_AddType(m, &native_ClientType) < 0) return -1;
	return PyModule_AddType(m, &lease_type);
}
