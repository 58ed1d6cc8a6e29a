/* The type Pool: one pool, attached as one host.  Lifetime, the protocol's steps, capacity.
 *
 * A pool may be used by any number of threads.  `users` counts those inside the core; close()
 * refuses new ones, waits until they are out, and then detaches.  The mapping lives on while a
 * memoryview of it does.  A child made by fork must not be a second writer in its parent's
 * name, so every call there fails, and its copy is dropped without touching the pool.
 */
#include "_native.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

bool pool_enter(PoolObject *p)
{
	if (!p->b || p->closing) {
		PyObject *e = PyObject_CallFunction(native_CoreError, "is", EBADF, "the pool is closed");
		if (e) PyErr_SetObject(native_CoreError, e);
		Py_XDECREF(e);
		return false;
	}
	if (p->fork_count != native_fork_count) {
		PyErr_SetString(PyExc_RuntimeError, "this pool was attached by the parent process: attach it again after a fork");
		return false;
	}
	p->users++;
	return true;
}

/* ---- attach and close -------------------------------------------------------------- */

/* One of the words, by its place; -1: ValueError is set. */
static int choice(const char *what, const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (!strcmp(value, words[i])) return i;
	PyErr_Format(PyExc_ValueError, "%s cannot be %.100s", what, value);
	return -1;
}

static int parse_identity(struct bfs_opts *o, const Py_buffer *host, const Py_buffer *boot)
{
	if (host->len != sizeof(o->uuid)) {
		PyErr_SetString(PyExc_ValueError, "host_uuid must be 16 bytes");
		return -1;
	}
	memcpy(o->uuid, host->buf, sizeof(o->uuid));
	u64 words[2];
	if (boot->len != sizeof(words)) {
		PyErr_SetString(PyExc_ValueError, "boot_id must be 16 bytes");
		return -1;
	}
	memcpy(words, boot->buf, sizeof(words));
	o->boot = words[0] ^ words[1];
	return 0;
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"fd", "size_bytes", "host_uuid", "boot_id", "readonly", "slot", "evict",
		"verify", "coherence", "publish_close", "follower", "high_permille", "low_permille", "suspect_s", "reap_after_s", "data_fd", "local_dir", NULL};
	static const char *const evict_words[] = {"lru", "none", "all", NULL};
	static const char *const verify_words[] = {"first", "always", "off", NULL};
	static const char *const coherence_words[] = {"coherent", "incoherent", NULL};
	struct bfs_opts o = {.slot = -1};
	Py_buffer host = {0}, boot = {0};
	const char *evict = "lru", *verify = "first", *coherence = "coherent";
	struct name local = {0};
	int fd, data_fd = -1, readonly = 0, publish_close = 0, follower = 0, i;
	double suspect_s = 0;
	u64 size;
	PoolObject *p = NULL;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "iO&|$y*y*pisssppO&O&dO&iO&:Pool", names, &fd, native_conv_u64, &size,
		    &host, &boot, &readonly, &o.slot, &evict, &verify, &coherence, &publish_close, &follower,
		    native_conv_u32, &o.high_permille, native_conv_u32, &o.low_permille, &suspect_s,
		    native_conv_u32, &o.reap_after_s, &data_fd, native_conv_name, &local))
		goto fail;
	if (parse_identity(&o, &host, &boot) < 0) goto fail;
	if ((i = choice("evict", evict, evict_words)) < 0) goto fail;
	o.evict_none = i == 1;
	o.evict_all = i == 2;
	if ((o.verify = choice("verify", verify, verify_words)) < 0) goto fail;
	if ((i = choice("coherence", coherence, coherence_words)) < 0) goto fail;
	if (!(suspect_s >= 0 && suspect_s <= 86400)) {
		PyErr_SetString(PyExc_ValueError, "suspect_s must be between 0 and 86400");
		goto fail;
	}
	if (o.high_permille > 1000 || o.low_permille > o.high_permille) {
		PyErr_SetString(PyExc_ValueError, "watermarks must be low <= high <= 1000 permille");
		goto fail;
	}
	if (o.slot < -1 || o.slot >= (int)BFS_HOSTS_MAX) {
		PyErr_Format(PyExc_ValueError, "slot must be -1 or below %d", (int)BFS_HOSTS_MAX);
		goto fail;
	}
	o.suspect_ns = (u64)(suspect_s * 1e9);
	o.directory = data_fd >= 0, o.data_fd = data_fd;
	o.readonly = readonly;
	o.publish_close = publish_close;
	o.follower = follower;

	p = (PoolObject *)type->tp_alloc(type, 0);
	if (!p) goto fail;
	p->fork_count = native_fork_count;
	p->fd = -1;
	if (local.owner) {
		o.local = local.p;
		o.pool_fd = p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		if (p->fd < 0) {
			PyErr_SetFromErrno(PyExc_OSError);
			goto fail;
		}
	}
	p->map = native_map(fd, size, readonly, i == 0);
	if (!p->map) goto fail;
	struct bfs *b = NULL;
	struct bfs_super sb;
	int format_rc, rc = 0;
	Py_BEGIN_ALLOW_THREADS
	format_rc = bfs_read_super(&p->map->mem, size, &sb);
	if (format_rc == 0) rc = bfs_attach(&p->map->mem, &o, &b);
	Py_END_ALLOW_THREADS
	if (format_rc < 0 || rc < 0) {
		native_raise(format_rc < 0 ? native_PoolFormatError : native_CoreError, format_rc < 0 ? format_rc : rc);
		goto fail;
	}
	p->b = b;
	p->map->view_off = sb.data_off < size ? sb.data_off : size;
	u64 room = (size - p->map->view_off) / BFS_GRANULE;
	p->map->view_len = (sb.data_granules < room ? sb.data_granules : room) * BFS_GRANULE;
	PyBuffer_Release(&host);
	PyBuffer_Release(&boot);
	NAME_FREE(local);
	return (PyObject *)p;
fail:
	NAME_FREE(local);
	if (p && p->fd >= 0) close(p->fd);
	if (p) p->fd = -1;
	Py_XDECREF(p);
	if (host.obj) PyBuffer_Release(&host);
	if (boot.obj) PyBuffer_Release(&boot);
	return NULL;
}

static int detach(PoolObject *p, bool clean)
{
	struct bfs *b = p->b;
	int rc;
	p->b = NULL;
	Py_BEGIN_ALLOW_THREADS rc = bfs_detach(b, clean && p->fork_count == native_fork_count && !bfs_check_same(b));
	Py_END_ALLOW_THREADS
	if (p->fd >= 0) close(p->fd);
	p->fd = -1;
	return rc;
}

static PyObject *pool_close(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"clean", NULL};
	int clean = 1;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "|p:close", names, &clean)) return NULL;
	if (!p->b || p->closing) Py_RETURN_NONE;
	p->closing = true;
	while (p->users) {
		Py_BEGIN_ALLOW_THREADS usleep(500);
		Py_END_ALLOW_THREADS
	}
	int rc = detach(p, clean);
	Py_CLEAR(p->map);
	return native_none(rc);
}

static void pool_dealloc(PyObject *o)
{
	PoolObject *p = (PoolObject *)o;
	if (p->b) {
		/* Not closed: as if the process had died.  What was closed or synced is in the pool. */
		PyObject *type, *value, *traceback;
		PyErr_Fetch(&type, &value, &traceback);
		if (p->fork_count == native_fork_count && PyErr_ResourceWarning(NULL, 1, "a pool was not closed") < 0)
			PyErr_WriteUnraisable(NULL);
		PyErr_Restore(type, value, traceback);
		bfs_detach(p->b, false);
		if (p->fd >= 0) close(p->fd);
	}
	Py_XDECREF(p->map);
	Py_TYPE(o)->tp_free(o);
}

static PyObject *pool_enter_context(PyObject *p, PyObject *Py_UNUSED(none)) { return Py_NewRef(p); }

static PyObject *pool_exit_context(PyObject *p, PyObject *Py_UNUSED(args))
{
	return PyObject_CallMethod(p, "close", NULL);
}

/* ---- protocol steps ---------------------------------------------------------------- */

#define STEP(name)                                                                  \
	static PyObject *pool_##name(PoolObject *p, PyObject *Py_UNUSED(none))      \
	{                                                                           \
		int rc;                                                             \
		if (!pool_enter(p)) return NULL;                                    \
		CORE(p, rc, bfs_##name(b));                                         \
		pool_leave(p);                                                      \
		return rc < 0 ? native_none(rc) : PyLong_FromLong(rc);              \
	}
STEP(claim)
STEP(refresh)
STEP(tick)
STEP(apply_scan)
STEP(reclaim)
STEP(headroom)
STEP(settle)

static PyObject *pool_is_leader(PoolObject *p, PyObject *Py_UNUSED(none))
{
	if (!pool_enter(p)) return NULL;
	int rc;
	CORE(p, rc, bfs_is_leader(b));
	pool_leave(p);
	return PyBool_FromLong(rc > 0);
}

static PyObject *pool_declare_dead(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"slot", "fenced", NULL};
	u32 slot;
	int fenced = 0, rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|p:declare_dead", names, native_conv_u32, &slot, &fenced)) return NULL;
	if (!pool_enter(p)) return NULL;
	CORE(p, rc, bfs_declare_dead(b, slot, fenced));
	pool_leave(p);
	return native_none(rc);
}

/* ---- capacity ----------------------------------------------------------------------- */

static PyObject *stat_dict(const struct bfs_stat *s)
{
	PyObject *d = PyDict_New();
	if (!d) return NULL;
#define NUM(f) native_put(d, #f, PyLong_FromUnsignedLongLong(s->f))
	if (NUM(data_granules) && NUM(used_granules) && NUM(quarantined_granules) && NUM(bad_granules) &&
	    NUM(largest_free_granules) && NUM(block_granules) && NUM(inodes) && NUM(inodes_used) &&
	    NUM(meta_pages) && NUM(meta_pages_used) && NUM(meta_pages_waiting) && NUM(nblocks) &&
	    NUM(nordinary) && NUM(nunsealed) && NUM(norphans) && NUM(open_files) && NUM(open_for_write) &&
	    NUM(evicted_blocks) && NUM(evicted_granules) && NUM(reaped_dirs) && NUM(seals) && NUM(seal_deferred) && NUM(creates) &&
	    NUM(unlinks) && NUM(corrupt) && NUM(hits) && NUM(misses) && NUM(backing_lost) && NUM(backing_swept) && NUM(promises) && NUM(promises_refused) && NUM(term) && NUM(txn) && NUM(txns) &&
	    NUM(pages_written) && NUM(bytes_written_meta) && NUM(touches_lost) && NUM(slot) && NUM(leader_slot) &&
	    native_put(d, "is_leader", PyBool_FromLong(s->is_leader)) &&
	    native_put(d, "uuid", PyBytes_FromStringAndSize((const char *)s->uuid, sizeof(s->uuid))) &&
	    native_put(d, "label", PyBytes_FromStringAndSize((const char *)s->label, sizeof(s->label))))
		return d;
#undef NUM
	Py_DECREF(d);
	return NULL;
}

static PyObject *pool_statfs(PoolObject *p, PyObject *Py_UNUSED(none))
{
	struct bfs_stat s = {0};
	int rc;
	if (!pool_enter(p)) return NULL;
	CORE(p, rc, bfs_statfs(b, &s));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : stat_dict(&s);
}

static PyObject *pool_evictable(PoolObject *p, PyObject *args)
{
	u32 slot, slots;
	u64 granules = 0;
	int rc;
	if (!PyArg_ParseTuple(args, "O&O&:evictable", native_conv_u32, &slot, native_conv_u32, &slots) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_evictable(b, &slot, slots, &granules));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : Py_BuildValue("KI", (unsigned long long)granules, slot);
}

static PyObject *pool_evict(PoolObject *p, PyObject *arg)
{
	u64 granules, freed = 0;
	int rc;
	if (!native_conv_u64(arg, &granules) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_evict(b, granules, &freed));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : PyLong_FromUnsignedLongLong(freed);
}

static PyObject *pool_touch(PoolObject *p, PyObject *arg)
{
	u64 ino;
	if (!native_conv_u64(arg, &ino) || !pool_enter(p)) return NULL;
	struct bfs *b = p->b;
	Py_BEGIN_ALLOW_THREADS bfs_touch(b, ino);
	Py_END_ALLOW_THREADS
	pool_leave(p);
	Py_RETURN_NONE;
}

static PyObject *pool_extents(PoolObject *p, PyObject *args, PyObject *kw)
{
	static char *names[] = {"ino", "max", NULL};
	u64 ino;
	u32 max = 1024;
	int rc;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|O&:extents", names, native_conv_u64, &ino, native_conv_u32, &max)) return NULL;
	if (max == 0 || max > 1u << 20) {
		PyErr_SetString(PyExc_ValueError, "max must be between 1 and 1048576");
		return NULL;
	}
	if (!pool_enter(p)) return NULL;
	struct bfs_extent *e = PyMem_Calloc(max, sizeof(*e));
	PyObject *list = NULL;
	if (!e) {
		PyErr_NoMemory();
		goto out;
	}
	CORE(p, rc, bfs_extents(b, ino, e, (int)max));
	if (rc < 0) {
		native_raise(native_CoreError, rc);
		goto out;
	}
	list = PyList_New(rc);
	for (int i = 0; list && i < rc; i++) {
		PyObject *t = Py_BuildValue("(KKIO)", (unsigned long long)e[i].file_granule, (unsigned long long)e[i].addr,
			(unsigned)e[i].len, e[i].overlay ? Py_True : Py_False);
		if (t) PyList_SET_ITEM(list, i, t);
		else Py_CLEAR(list);
	}
out:
	PyMem_Free(e);
	pool_leave(p);
	return list;
}

/* Descriptors for a process that reads in place, and which there are. */
static PyObject *pool_client_new(PoolObject *p, PyObject *args)
{
	u32 pid, uid;
	int fds[3], rc;
	if (!PyArg_ParseTuple(args, "O&O&:client_new", native_conv_u32, &pid, native_conv_u32, &uid) || !pool_enter(p)) return NULL;
	CORE(p, rc, bfs_client_new(b, pid, uid, fds));
	pool_leave(p);
	return rc < 0 ? native_none(rc) : Py_BuildValue("(iii)", fds[0], fds[1], fds[2]);
}

/* Another open file description of the pool's file, for a process that is going to write. */
static PyObject *pool_descriptor(PoolObject *p, PyObject *Py_UNUSED(none))
{
	char path[40];
	if (!pool_enter(p)) return NULL;
	snprintf(path, sizeof path, "/proc/self/fd/%d", p->fd);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	pool_leave(p);
	return fd < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(fd);
}

static PyObject *pool_reservations(PoolObject *p, PyObject *Py_UNUSED(none))
{
	u64 n = 0, granules = 0;
	if (!pool_enter(p)) return NULL;
	Py_BEGIN_ALLOW_THREADS bfs_reservations(p->b, &n, &granules);
	Py_END_ALLOW_THREADS
	pool_leave(p);
	return Py_BuildValue("(KK)", (unsigned long long)n, (unsigned long long)granules);
}

static PyObject *pool_clients(PoolObject *p, PyObject *Py_UNUSED(none))
{
	static const int most = BFS_LOCAL_CLIENTS;
	int rc;
	if (!pool_enter(p)) return NULL;
	struct bfs_client *who = PyMem_Calloc((size_t)most, sizeof *who);
	PyObject *list = NULL;
	if (!who) {
		PyErr_NoMemory();
	} else {
		CORE(p, rc, bfs_clients(b, who, most));
		list = rc < 0 ? native_raise(native_CoreError, rc) : PyList_New(rc);
		for (int i = 0; list && i < rc; i++) {
			PyObject *d = Py_BuildValue("{sIsIsIsKsL}", "pid", who[i].pid, "uid", who[i].uid, "leases", who[i].leases,
				"granules", (unsigned long long)who[i].granules, "since_ns", (long long)who[i].made_ns);
			if (d) PyList_SET_ITEM(list, i, d);
			else Py_CLEAR(list);
		}
	}
	PyMem_Free(who);
	pool_leave(p);
	return list;
}

static PyObject *pool_local_error(PoolObject *p, void *Py_UNUSED(closure))
{
	if (!pool_enter(p)) return NULL;
	int rc = bfs_local_error(p->b);
	pool_leave(p);
	return PyLong_FromLong(-rc);
}

/* Page tables for a range of the mapping, so that no store has to fault its pages in. */
static PyObject *pool_prefault(PoolObject *p, PyObject *args)
{
	u64 off, len;
	int rc = 0;
	if (!PyArg_ParseTuple(args, "O&O&:prefault", native_conv_u64, &off, native_conv_u64, &len) || !pool_enter(p)) return NULL;
	u64 page = (u64)sysconf(_SC_PAGESIZE), size = p->map->mem.size;
	if (off % page || off > size) {
		pool_leave(p);
		PyErr_SetString(PyExc_ValueError, "the offset must be a multiple of the page size, inside the pool");
		return NULL;
	}
	if (len > size - off) len = size - off;
	u8 *at = p->map->mem.base + off;
	int advice = p->map->mem.readonly ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
	Py_BEGIN_ALLOW_THREADS
	if (len && madvise(at, len, advice)) rc = -errno;
	Py_END_ALLOW_THREADS
	pool_leave(p);
	return PyBool_FromLong(rc == 0); /* EINVAL: a kernel before 5.14 */
}

/* ---- the type ------------------------------------------------------------------------ */

static PyObject *pool_get_buffer(PoolObject *p, void *Py_UNUSED(closure))
{
	if (!pool_enter(p)) return NULL;
	PyObject *view = PyMemoryView_FromObject((PyObject *)p->map);
	pool_leave(p);
	return view;
}

static PyObject *pool_get_closed(PoolObject *p, void *Py_UNUSED(closure)) { return PyBool_FromLong(!p->b || p->closing); }

static PyGetSetDef native_pool_getset[] = {
	{"buffer", (getter)pool_get_buffer, NULL, "The data range, read-only; valid as long as it is held.", NULL},
	{"closed", (getter)pool_get_closed, NULL, NULL, NULL},
	{"local_error", (getter)pool_local_error, NULL, NULL, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

#define NOARGS(name) {#name, (PyCFunction)pool_##name, METH_NOARGS, NULL}
#define KEYWORDS(name) {#name, (PyCFunction)(void (*)(void))pool_##name, METH_VARARGS | METH_KEYWORDS, NULL}
static PyMethodDef native_pool_methods[] = {
	KEYWORDS(close),
	{"__enter__", pool_enter_context, METH_NOARGS, NULL},
	{"__exit__", pool_exit_context, METH_VARARGS, NULL},
	NOARGS(claim),
	NOARGS(refresh),
	NOARGS(tick),
	NOARGS(apply_scan),
	NOARGS(reclaim),
	NOARGS(headroom),
	NOARGS(settle),
	NOARGS(is_leader),
	KEYWORDS(declare_dead),
	NOARGS(statfs),
	{"evict", (PyCFunction)pool_evict, METH_O, NULL},
	{"evictable", (PyCFunction)(void (*)(void))pool_evictable, METH_VARARGS, NULL},
	{"touch", (PyCFunction)pool_touch, METH_O, NULL},
	KEYWORDS(extents),
	{"client_new", (PyCFunction)pool_client_new, METH_VARARGS, NULL},
	NOARGS(clients),
	NOARGS(descriptor),
	NOARGS(reservations),
	{"prefault", (PyCFunction)pool_prefault, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

PyTypeObject native_PoolType = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native.Pool",
	.tp_basicsize = sizeof(PoolObject),
	.tp_dealloc = pool_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_doc = "A pool, attached as one host.",
	.tp_getset = native_pool_getset,
	.tp_new = pool_new,
};

/* Methods of the type come from three tables, one per file. */
int native_init_pool(void)
{
	static PyMethodDef *const tables[] = {native_pool_methods, native_file_methods, native_block_methods};
	if (PyType_Ready(&native_PoolType) < 0) return -1;
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (PyMethodDef *m = tables[i]; m->ml_name; m++) {
			PyObject *f = PyDescr_NewMethod(&native_PoolType, m);
			if (!f) return -1;
			int rc = PyDict_SetItemString(native_PoolType.tp_dict, m->ml_name, f);
			Py_DECREF(f);
			if (rc < 0) return -1;
		}
	PyType_Modified(&native_PoolType);
	return 0;
}
