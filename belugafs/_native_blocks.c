/* Methods of Pool on native blocks (namespace, raw key) and on batches. */
#include "_native.h"

static PyObject *pool_ns_create(PoolObject *p, PyObject *arg)
{
	struct name name;
	u64 ns = 0;
	int rc;
	if (!native_name(arg, &name)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_ns_create(b, name.p, &ns));
		pool_leave(p);
		result = rc < 0 ? native_none(rc) : PyLong_FromUnsignedLongLong(ns);
	}
	NAME_FREE(name);
	return result;
}

static PyObject *pool_block_put(PoolObject *p, PyObject *args)
{
	u64 ns;
	Py_buffer key = {0}, data = {0};
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*y*:block_put", native_conv_u64, &ns, &key, &data)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_block_put(b, ns, key.buf, (size_t)key.len, data.buf, (size_t)data.len));
		pool_leave(p);
		result = native_none(rc);
	}
	PyBuffer_Release(&key);
	PyBuffer_Release(&data);
	return result;
}

/* Into a buffer: the number of bytes copied. */
static PyObject *pool_block_get(PoolObject *p, PyObject *args)
{
	u64 ns;
	Py_buffer key = {0}, to = {0};
	ssize_t n = 0;
	if (!PyArg_ParseTuple(args, "O&y*w*:block_get", native_conv_u64, &ns, &key, &to)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, n, bfs_block_get(b, ns, key.buf, (size_t)key.len, to.buf, (size_t)to.len));
		pool_leave(p);
		result = n < 0 ? native_raise(native_CoreError, (int)n) : PyLong_FromSsize_t(n);
	}
	PyBuffer_Release(&key);
	PyBuffer_Release(&to);
	return result;
}

static PyObject *pool_block_delete(PoolObject *p, PyObject *args)
{
	u64 ns;
	Py_buffer key = {0};
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*:block_delete", native_conv_u64, &ns, &key)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_block_delete(b, ns, key.buf, (size_t)key.len));
		pool_leave(p);
		result = native_none(rc);
	}
	PyBuffer_Release(&key);
	return result;
}

/* keys one after the other, each key_bytes long; the number of keys or -1 */
static int count_keys(const Py_buffer *keys, u32 key_bytes)
{
	if (key_bytes == 0 || key_bytes > BFS_KEY_MAX) {
		PyErr_Format(PyExc_ValueError, "key_bytes must be between 1 and %d", (int)BFS_KEY_MAX);
		return -1;
	}
	if (keys->len % key_bytes || keys->len / key_bytes > INT_MAX) {
		PyErr_SetString(PyExc_ValueError, "keys must be a whole number of keys, at most 2**31 - 1");
		return -1;
	}
	return (int)(keys->len / key_bytes);
}

static PyObject *pool_block_exists(PoolObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*O&:block_exists", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	PyObject *result = NULL;
	int n = count_keys(&keys, key_bytes);
	if (n >= 0 && pool_enter(p)) {
		result = PyBytes_FromStringAndSize(NULL, n);
		if (result) {
			u8 *present = (u8 *)PyBytes_AS_STRING(result);
			memset(present, 0, (size_t)n);
			CORE(p, rc, bfs_block_exists(b, ns, keys.buf, key_bytes, n, present));
			if (rc < 0) {
				Py_CLEAR(result);
				native_raise(native_CoreError, rc);
			}
		}
		pool_leave(p);
	}
	PyBuffer_Release(&keys);
	return result;
}

static PyObject *pool_block_match(PoolObject *p, PyObject *args)
{
	u64 ns;
	u32 key_bytes;
	Py_buffer keys = {0};
	int rc;
	if (!PyArg_ParseTuple(args, "O&y*O&:block_match", native_conv_u64, &ns, &keys, native_conv_u32, &key_bytes)) return NULL;
	PyObject *result = NULL;
	int n = count_keys(&keys, key_bytes);
	if (n >= 0 && pool_enter(p)) {
		CORE(p, rc, bfs_block_match(b, ns, keys.buf, key_bytes, n));
		pool_leave(p);
		result = rc < 0 ? native_none(rc) : PyLong_FromLong(rc);
	}
	PyBuffer_Release(&keys);
	return result;
}

#define BATCH(name)                                                            \
	static PyObject *pool_##name(PoolObject *p, PyObject *Py_UNUSED(none)) \
	{                                                                      \
		int rc;                                                        \
		if (!pool_enter(p)) return NULL;                               \
		CORE(p, rc, bfs_##name(b));                                    \
		pool_leave(p);                                                 \
		return native_none(rc);                                        \
	}
BATCH(batch_begin)
BATCH(batch_commit)
BATCH(batch_abort)

PyMethodDef native_block_methods[] = {
	{"ns_create", (PyCFunction)pool_ns_create, METH_O, NULL},
	{"block_put", (PyCFunction)pool_block_put, METH_VARARGS, NULL},
	{"block_get", (PyCFunction)pool_block_get, METH_VARARGS, NULL},
	{"block_delete", (PyCFunction)pool_block_delete, METH_VARARGS, NULL},
	{"block_exists", (PyCFunction)pool_block_exists, METH_VARARGS, NULL},
	{"block_match", (PyCFunction)pool_block_match, METH_VARARGS, NULL},
	{"batch_begin", (PyCFunction)pool_batch_begin, METH_NOARGS, NULL},
	{"batch_commit", (PyCFunction)pool_batch_commit, METH_NOARGS, NULL},
	{"batch_abort", (PyCFunction)pool_batch_abort, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};
