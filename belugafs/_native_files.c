/* Methods of Pool on names, attributes and open files. */
#include "_native.h"
#include <fcntl.h>
#include <sys/stat.h>

#define READDIR_MAX 4096

/* The calls that every look-up or open makes take their arguments without a tuple. */
static bool nargs_are(const char *name, Py_ssize_t n, Py_ssize_t least, Py_ssize_t most)
{
	if (n >= least && n <= most) return true;
	PyErr_Format(PyExc_TypeError, "%s() takes %zd to %zd positional arguments (%zd given)", name, least, most, n);
	return false;
}

static PyObject *attr_or_error(int rc, const struct bfs_attr *a)
{
	return rc < 0 ? native_raise(native_CoreError, rc) : native_attr(a);
}

/* ---- names ------------------------------------------------------------------------- */

static PyObject *pool_lookup(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 dir;
	struct name name;
	struct bfs_attr a;
	int rc;
	if (!nargs_are("lookup", n, 2, 2) || !native_conv_u64(args[0], &dir) || !native_name(args[1], &name)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_lookup(b, dir, name.p, name.len, &a));
		pool_leave(p);
		result = attr_or_error(rc, &a);
	}
	NAME_FREE(name);
	return result;
}

static PyObject *pool_getattr(PoolObject *p, PyObject *arg)
{
	u64 ino;
	struct bfs_attr a;
	int rc;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_getattr(b, ino, &a));
	pool_leave(p);
	return attr_or_error(rc, &a);
}

static bool conv_time(PyObject *o, i64 *t)
{
	long long v = PyLong_AsLongLong(o);
	if (v == -1 && PyErr_Occurred()) return false;
	*t = v;
	return true;
}

static PyObject *pool_setattr(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"ino", "mode", "uid", "gid", "size", "atime_ns", "mtime_ns", "ctime_ns", "fh", NULL};
	struct bfs_attr in = {0}, out;
	u64 ino, fh = 0;
	u32 mask = 0;
	int rc;
	PyObject *mode = Py_None, *uid = Py_None, *gid = Py_None, *size = Py_None, *atime = Py_None, *mtime = Py_None, *ctime = Py_None;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|$OOOOOOOO&:setattr", names, native_conv_u64, &ino, &mode, &uid,
		    &gid, &size, &atime, &mtime, &ctime, native_conv_u64, &fh))
		return NULL;
#define SET(o, bit, expr)                        \
	if ((o) != Py_None) {                    \
		if (!(expr)) return NULL;        \
		mask |= (bit);                   \
	}
	SET(mode, BFS_SET_MODE, native_conv_u32(mode, &in.mode))
	SET(uid, BFS_SET_UID, native_conv_u32(uid, &in.uid))
	SET(gid, BFS_SET_GID, native_conv_u32(gid, &in.gid))
	SET(size, BFS_SET_SIZE, native_conv_u64(size, &in.size))
	SET(atime, BFS_SET_ATIME, conv_time(atime, &in.atime_ns))
	SET(mtime, BFS_SET_MTIME, conv_time(mtime, &in.mtime_ns))
	SET(ctime, BFS_SET_CTIME, conv_time(ctime, &in.ctime_ns))
#undef SET
	if (!pool_enter(p)) return NULL;
	CORE(p, rc, bfs_setattr(b, ino, mask, &in, fh, &out));
	pool_leave(p);
	return attr_or_error(rc, &out);
}

static PyObject *pool_mkdir(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "name", "mode", "uid", "gid", NULL};
	u64 dir;
	u32 mode = 0755, uid = 0, gid = 0;
	struct name name = {0};
	struct bfs_attr a;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&|O&O&O&:mkdir", names, native_conv_u64, &dir, native_conv_name, &name,
		    native_conv_u32, &mode, native_conv_u32, &uid, native_conv_u32, &gid))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_mkdir(b, dir, name.p, name.len, mode, uid, gid, &a));
		pool_leave(p);
		result = attr_or_error(rc, &a);
	}
	NAME_FREE(name);
	return result;
}

static PyObject *pool_mknod(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "name", "mode", "rdev", "uid", "gid", NULL};
	u64 dir;
	u32 mode, rdev = 0, uid = 0, gid = 0;
	struct name name = {0};
	struct bfs_attr a;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&O&|O&O&O&:mknod", names, native_conv_u64, &dir, native_conv_name, &name,
		    native_conv_u32, &mode, native_conv_u32, &rdev, native_conv_u32, &uid, native_conv_u32, &gid))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_mknod(b, dir, name.p, name.len, mode, rdev, uid, gid, &a));
		pool_leave(p);
		result = attr_or_error(rc, &a);
	}
	NAME_FREE(name);
	return result;
}

static PyObject *pool_symlink(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "name", "target", "uid", "gid", NULL};
	u64 dir;
	u32 uid = 0, gid = 0;
	struct name name = {0}, target = {0};
	struct bfs_attr a;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&O&|O&O&:symlink", names, native_conv_u64, &dir, native_conv_name, &name,
		    native_conv_name, &target, native_conv_u32, &uid, native_conv_u32, &gid))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_symlink(b, dir, name.p, name.len, target.p, target.len, uid, gid, &a));
		pool_leave(p);
		result = attr_or_error(rc, &a);
	}
	NAME_FREE(name);
	NAME_FREE(target);
	return result;
}

static PyObject *pool_readlink(PoolObject *p, PyObject *arg)
{
	u64 ino;
	char buf[BFS_SYMLINK_MAX + 1];
	ssize_t n;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	CORE(p, n, bfs_readlink(b, ino, buf, sizeof(buf)));
	pool_leave(p);
	return n < 0 ? native_raise(native_CoreError, (int)n) : PyBytes_FromStringAndSize(buf, n);
}

#define REMOVE(call)                                                                                        \
	static PyObject *pool_##call(PoolObject *p, PyObject *const *args, Py_ssize_t n)                    \
	{                                                                                                   \
		u64 dir;                                                                                    \
		struct name name;                                                                           \
		int rc;                                                                                     \
		if (!nargs_are(#call, n, 2, 2) || !native_conv_u64(args[0], &dir) || !native_name(args[1], &name)) return NULL; \
		PyObject *result = NULL;                                                                    \
		if (pool_enter(p)) {                                                                        \
			CORE(p, rc, bfs_##call(b, dir, name.p, name.len));                                  \
			pool_leave(p);                                                                      \
			result = native_none(rc);                                                           \
		}                                                                                           \
		NAME_FREE(name);                                                                            \
		return result;                                                                              \
	}
REMOVE(unlink)
REMOVE(rmdir)

static PyObject *pool_rename(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "name", "dir2", "name2", "flags", NULL};
	u64 dir, dir2;
	u32 flags = 0;
	struct name name = {0}, name2 = {0};
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&O&O&|O&:rename", names, native_conv_u64, &dir, native_conv_name, &name,
		    native_conv_u64, &dir2, native_conv_name, &name2, native_conv_u32, &flags))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_rename(b, dir, name.p, name.len, dir2, name2.p, name2.len, flags));
		pool_leave(p);
		result = native_none(rc);
	}
	NAME_FREE(name);
	NAME_FREE(name2);
	return result;
}

static PyObject *pool_link(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 ino, dir;
	struct name name;
	struct bfs_attr a;
	int rc;
	if (!nargs_are("link", n, 3, 3) || !native_conv_u64(args[0], &ino) || !native_conv_u64(args[1], &dir) ||
	    !native_name(args[2], &name))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_link(b, ino, dir, name.p, name.len, &a));
		pool_leave(p);
		result = attr_or_error(rc, &a);
	}
	NAME_FREE(name);
	return result;
}

/* With attributes: an entry whose object is gone by then (evicted, removed) is left out. */
static int list_some(struct bfs *b, u64 dir, u64 after, struct bfs_dirent *e, struct bfs_attr *a, int max)
{
	for (;;) {
		int n = bfs_readdir(b, dir, after, e, max), kept = 0;
		if (n <= 0 || !a) return n;
		after = e[n - 1].cookie;
		for (int i = 0; i < n; i++) {
			int rc = bfs_peekattr(b, e[i].ino, &a[kept]);
			if (rc == -ENOENT || rc == -ESTALE) continue;
			if (rc < 0) return rc;
			if (kept != i) e[kept] = e[i];
			kept++;
		}
		if (kept) return kept;
	}
}

static PyObject *dirent_tuple(const struct bfs_dirent *e, const struct bfs_attr *a)
{
	PyObject *name = PyBytes_FromStringAndSize(e->name, e->len);
	if (!name) return NULL;
	if (a) return Py_BuildValue("(NKN)", name, (unsigned long long)e->cookie, native_attr(a));
	return Py_BuildValue("(NKKi)", name, (unsigned long long)e->cookie, (unsigned long long)e->ino, (int)e->type);
}

static PyObject *list_directory(PoolObject *p, PyObject *args, PyObject *kw, bool plus)
{
	static char *names[] = {"dir", "after", "max", NULL};
	u64 dir, after = 0;
	u32 max = 256;
	int rc = 0;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|O&O&", names, native_conv_u64, &dir, native_conv_u64, &after, native_conv_u32, &max))
		return NULL;
	if (max == 0 || max > READDIR_MAX) {
		PyErr_Format(PyExc_ValueError, "max must be between 1 and %d", READDIR_MAX);
		return NULL;
	}
	if (!pool_enter(p)) return NULL;
	struct bfs_dirent *e = PyMem_Malloc(max * sizeof(*e));
	struct bfs_attr *a = plus ? PyMem_Malloc(max * sizeof(*a)) : NULL;
	PyObject *list = NULL;
	if (!e || (plus && !a)) {
		PyErr_NoMemory();
		goto out;
	}
	CORE(p, rc, list_some(b, dir, after, e, a, (int)max));
	if (rc < 0) {
		native_raise(native_CoreError, rc);
		goto out;
	}
	list = PyList_New(rc);
	for (int i = 0; list && i < rc; i++) {
		PyObject *t = dirent_tuple(&e[i], a ? &a[i] : NULL);
		if (t) PyList_SET_ITEM(list, i, t);
		else Py_CLEAR(list);
	}
out:
	PyMem_Free(e);
	PyMem_Free(a);
	pool_leave(p);
	return list;
}

static PyObject *pool_readdir(PoolObject *p, PyObject *args, PyObject *kw) { return list_directory(p, args, kw, false); }
static PyObject *pool_readdirplus(PoolObject *p, PyObject *args, PyObject *kw) { return list_directory(p, args, kw, true); }

static PyObject *pool_parent(PoolObject *p, PyObject *arg)
{
	u64 ino, dir = 0;
	int rc;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_parent(b, ino, &dir));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : PyLong_FromUnsignedLongLong(dir);
}

static PyObject *pool_opendir(PoolObject *p, PyObject *arg)
{
	u64 ino;
	int rc;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_opendir(b, ino));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_releasedir(PoolObject *p, PyObject *arg)
{
	u64 ino;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	bfs_releasedir(p->b, ino);
	pool_leave(p);
	Py_RETURN_NONE;
}

/* ---- extended attributes -------------------------------------------------------------- */

static PyObject *pool_setxattr(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"ino", "name", "value", "flags", NULL};
	u64 ino;
	struct name name = {0};
	Py_buffer value = {0};
	int flags = 0, rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&y*|i:setxattr", names, native_conv_u64, &ino, native_conv_name, &name, &value, &flags))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_setxattr(b, ino, name.p, value.buf, (size_t)value.len, flags));
		pool_leave(p);
		result = native_none(rc);
	}
	PyBuffer_Release(&value);
	NAME_FREE(name);
	return result;
}

/* name NULL: list */
static PyObject *read_xattr(PoolObject *p, u64 ino, const char *name)
{
	if (!pool_enter(p)) return NULL;
	PyObject *result = NULL;
	char *buf = PyMem_Malloc(BFS_XATTR_MAX);
	ssize_t n;
	if (!buf) {
		PyErr_NoMemory();
	} else {
		CORE(p, n, name ? bfs_getxattr(b, ino, name, buf, BFS_XATTR_MAX) : bfs_listxattr(b, ino, buf, BFS_XATTR_MAX));
		result = n < 0 ? native_raise(native_CoreError, (int)n) : PyBytes_FromStringAndSize(buf, n);
	}
	PyMem_Free(buf);
	pool_leave(p);
	return result;
}

static PyObject *pool_getxattr(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 ino;
	struct name name;
	if (!nargs_are("getxattr", n, 2, 2) || !native_conv_u64(args[0], &ino) || !native_name(args[1], &name)) return NULL;
	PyObject *result = read_xattr(p, ino, name.p);
	NAME_FREE(name);
	return result;
}

static PyObject *pool_listxattr(PoolObject *p, PyObject *arg)
{
	u64 ino;
	if (!native_conv_u64(arg, &ino)) return NULL;
	PyObject *joined = read_xattr(p, ino, NULL);
	if (!joined) return NULL;
	PyObject *list = PyList_New(0);
	const char *at = PyBytes_AS_STRING(joined), *end = at + PyBytes_GET_SIZE(joined);
	while (list && at < end) {
		size_t len = strnlen(at, (size_t)(end - at));
		PyObject *name = PyBytes_FromStringAndSize(at, (Py_ssize_t)len);
		if (!name || PyList_Append(list, name) < 0) Py_CLEAR(list);
		Py_XDECREF(name);
		at += len + 1;
	}
	Py_DECREF(joined);
	return list;
}

static PyObject *pool_removexattr(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 ino;
	struct name name;
	int rc;
	if (!nargs_are("removexattr", n, 2, 2) || !native_conv_u64(args[0], &ino) || !native_name(args[1], &name)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_removexattr(b, ino, name.p));
		pool_leave(p);
		result = native_none(rc);
	}
	NAME_FREE(name);
	return result;
}

/* ---- files ------------------------------------------------------------------------------ */

static PyObject *pool_create(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "name", "mode", "uid", "gid", "flags", NULL};
	u64 dir, fh = 0;
	u32 mode = 0644, uid = 0, gid = 0, flags = 0;
	struct name name = {0};
	struct bfs_attr a;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&|O&O&O&O&:create", names, native_conv_u64, &dir, native_conv_name, &name,
		    native_conv_u32, &mode, native_conv_u32, &uid, native_conv_u32, &gid, native_conv_u32, &flags))
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, rc, bfs_create(b, dir, name.p, name.len, mode, uid, gid, (int)flags, &a, &fh));
		pool_leave(p);
		if (rc < 0) native_raise(native_CoreError, rc);
		else result = Py_BuildValue("(NK)", native_attr(&a), (unsigned long long)fh);
	}
	NAME_FREE(name);
	return result;
}

static PyObject *pool_tmpfile(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dir", "mode", "uid", "gid", "flags", NULL};
	u64 dir, fh = 0;
	u32 mode = 0644, uid = 0, gid = 0, flags = O_RDWR;
	struct bfs_attr a;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|O&O&O&O&:tmpfile", names, native_conv_u64, &dir, native_conv_u32, &mode, native_conv_u32, &uid,
		    native_conv_u32, &gid, native_conv_u32, &flags) ||
	    !pool_enter(p))
		return NULL;
	CORE(p, rc, bfs_tmpfile(b, dir, mode, uid, gid, (int)flags, &a, &fh));
	pool_leave(p);
	return rc < 0 ? native_raise(native_CoreError, rc) : Py_BuildValue("(NK)", native_attr(&a), (unsigned long long)fh);
}

static PyObject *pool_open(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 ino, fh = 0;
	u32 flags = 0;
	int rc;
	if (!nargs_are("open", n, 1, 2) || !native_conv_u64(args[0], &ino) || (n > 1 && !native_conv_u32(args[1], &flags)) ||
	    !pool_enter(p))
		return NULL;
	CORE(p, rc, bfs_open(b, ino, (int)flags, &fh));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : PyLong_FromUnsignedLongLong(fh);
}

static PyObject *pool_read(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 fh, off, len;
	ssize_t got;
	if (!nargs_are("read", n, 3, 3) || !native_conv_u64(args[0], &fh) || !native_conv_u64(args[1], &off) ||
	    !native_conv_u64(args[2], &len))
		return NULL;
	if (len > PY_SSIZE_T_MAX) {
		PyErr_SetString(PyExc_OverflowError, "more bytes than an object can have");
		return NULL;
	}
	PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
	if (!result) return NULL;
	if (!pool_enter(p)) {
		Py_DECREF(result);
		return NULL;
	}
	/* Nobody else has seen the object: it may be filled without the GIL. */
	char *to = PyBytes_AS_STRING(result);
	CORE(p, got, bfs_read(b, fh, off, to, (size_t)len));
	pool_leave(p);
	if (got < 0) {
		Py_DECREF(result);
		return native_raise(native_CoreError, (int)got);
	}
	if ((u64)got < len) _PyBytes_Resize(&result, got); /* NULL and MemoryError on failure */
	return result;
}

static PyObject *pool_read_into(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"fh", "off", "buffer", NULL};
	u64 fh, off;
	Py_buffer to = {0};
	ssize_t got = 0;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&O&w*:read_into", names, native_conv_u64, &fh, native_conv_u64, &off, &to)) return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, got, bfs_read(b, fh, off, to.buf, (size_t)to.len));
		pool_leave(p);
		result = got < 0 ? native_raise(native_CoreError, (int)got) : PyLong_FromSsize_t(got);
	}
	PyBuffer_Release(&to);
	return result;
}

static PyObject *pool_write(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 fh, off;
	Py_buffer from;
	ssize_t put = 0;
	if (!nargs_are("write", n, 3, 3) || !native_conv_u64(args[0], &fh) || !native_conv_u64(args[1], &off) ||
	    PyObject_GetBuffer(args[2], &from, PyBUF_SIMPLE) < 0)
		return NULL;
	PyObject *result = NULL;
	if (pool_enter(p)) {
		CORE(p, put, bfs_write(b, fh, off, from.buf, (size_t)from.len));
		pool_leave(p);
		result = put < 0 ? native_raise(native_CoreError, (int)put) : PyLong_FromSsize_t(put);
	}
	PyBuffer_Release(&from);
	return result;
}

static PyObject *pool_reserve(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 fh, size;
	int rc;
	if (!nargs_are("reserve", n, 2, 2) || !native_conv_u64(args[0], &fh) || !native_conv_u64(args[1], &size) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_reserve(b, fh, size));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_fallocate(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 fh, off, len;
	u32 mode;
	int rc;
	if (!nargs_are("fallocate", n, 4, 4) || !native_conv_u64(args[0], &fh) || !native_conv_u32(args[1], &mode) || !native_conv_u64(args[2], &off) ||
	    !native_conv_u64(args[3], &len) || !pool_enter(p))
		return NULL;
	CORE(p, rc, bfs_fallocate(b, fh, (int)mode, off, len));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_seek(PoolObject *p, PyObject *const *args, Py_ssize_t n)
{
	u64 fh, off;
	u32 whence;
	i64 at;
	if (!nargs_are("seek", n, 3, 3) || !native_conv_u64(args[0], &fh) || !native_conv_u64(args[1], &off) || !native_conv_u32(args[2], &whence) || !pool_enter(p)) return NULL;
	CORE(p, at, bfs_seek(b, fh, off, (int)whence));
	pool_leave(p);
	return at < 0 ? native_raise(native_CoreError, (int)at) : PyLong_FromLongLong(at);
}

static PyObject *pool_flush(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"fh", "killed", NULL};
	u64 fh;
	int killed = 0, rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|p:flush", names, native_conv_u64, &fh, &killed) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_flush(b, fh, killed));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_fsync(PoolObject *p, PyObject *arg)
{
	u64 fh;
	int rc;
	if (!native_conv_u64(arg, &fh) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_fsync(b, fh));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_backing_fd(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"fh", "write", NULL};
	u64 fh;
	int write = 0, rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|p:backing_fd", names, native_conv_u64, &fh, &write) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_backing_fd(b, fh, write));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : PyLong_FromLong(rc);
}

static PyObject *pool_promise(PoolObject *p, PyObject *arg)
{
	u64 fh;
	int rc;
	if (!native_conv_u64(arg, &fh) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_promise(b, fh));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_release(PoolObject *p, PyObject *arg)
{
	u64 fh;
	int rc;
	if (!native_conv_u64(arg, &fh) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_release(b, fh));
	pool_leave(p);
	return native_none(rc);
}

static PyObject *pool_verify(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"ino", "off", "max_bytes", NULL};
	u64 ino, off = 0, max = UINT64_MAX;
	struct bfs_verify v;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|O&O&:verify", names, native_conv_u64, &ino, native_conv_u64, &off, native_conv_u64, &max) ||
	    !pool_enter(p))
		return NULL;
	CORE(p, rc, bfs_verify(b, ino, off, max, &v));
	pool_leave(p);
	if (rc < 0) return native_none(rc);
	return Py_BuildValue("{sOsKsKsKsKsKsK}", "done", v.done ? Py_True : Py_False, "next", (unsigned long long)v.next, "checked_bytes", (unsigned long long)v.checked_bytes,
			     "unchecked_bytes", (unsigned long long)v.unchecked_bytes, "bad_chunks", (unsigned long long)v.bad_chunks,
			     "bad_off", (unsigned long long)v.bad_off, "bad_bytes", (unsigned long long)v.bad_bytes);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))pool_##name, METH_FASTCALL, NULL}
#define ONE(name) {#name, (PyCFunction)pool_##name, METH_O, NULL}
#define KEYWORDS(name) {#name, (PyCFunction)(void (*)(void))pool_##name, METH_VARARGS | METH_KEYWORDS, NULL}
PyMethodDef native_file_methods[] = {
	FAST(lookup), ONE(getattr), KEYWORDS(setattr), KEYWORDS(mkdir), KEYWORDS(mknod), KEYWORDS(symlink),
	ONE(readlink), FAST(unlink), FAST(rmdir), KEYWORDS(rename), FAST(link), KEYWORDS(readdir),
	KEYWORDS(readdirplus), ONE(parent), ONE(opendir), ONE(releasedir), KEYWORDS(setxattr), FAST(getxattr), ONE(listxattr), FAST(removexattr),
	KEYWORDS(create), KEYWORDS(tmpfile), FAST(open), FAST(read), KEYWORDS(read_into), FAST(write), FAST(reserve), FAST(fallocate), FAST(seek), KEYWORDS(flush),
	ONE(fsync), ONE(release), KEYWORDS(verify), KEYWORDS(backing_fd), ONE(promise),
	{NULL, NULL, 0, NULL},
};
