/* The module belugafs._native: errors, arguments, attributes, mappings of pools, and the calls
 * that need no attached pool.  _native.pyi says what each one does. */
#include "_native.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>

#define HUGE_BYTES (2u << 20)

PyObject *native_CoreError, *native_PoolFormatError;
unsigned long native_fork_count;
static PyTypeObject *attr_type;

/* ---- errors and arguments --------------------------------------------------------- */

PyObject *native_raise(PyObject *cls, int rc)
{
	const char *text = bfs_errmsg();
	if (!text || !*text) text = strerror(-rc);
	PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
	if (!message) return NULL;
	PyObject *e = PyObject_CallFunction(cls, "iN", -rc, message);
	if (e) {
		PyErr_SetObject(cls, e);
		Py_DECREF(e);
	}
	return NULL;
}

int native_conv_u64(PyObject *o, void *out)
{
	if (!PyLong_Check(o)) {
		PyErr_Format(PyExc_TypeError, "an int is needed, not %.100s", Py_TYPE(o)->tp_name);
		return 0;
	}
	unsigned long long v = PyLong_AsUnsignedLongLong(o); /* OverflowError if negative or too large */
	if (v == (unsigned long long)-1 && PyErr_Occurred()) return 0;
	*(u64 *)out = v;
	return 1;
}

int native_conv_u32(PyObject *o, void *out)
{
	u64 v;
	if (!native_conv_u64(o, &v)) return 0;
	if (v > UINT32_MAX) {
		PyErr_SetString(PyExc_OverflowError, "the number does not fit into 32 bits");
		return 0;
	}
	*(u32 *)out = (u32)v;
	return 1;
}

int native_name(PyObject *o, struct name *n)
{
	n->owner = NULL;
	if (PyBytes_Check(o)) {
		n->owner = Py_NewRef(o);
	} else if (PyUnicode_Check(o)) {
		n->owner = PyUnicode_EncodeFSDefault(o);
		if (!n->owner) return 0;
	} else {
		PyErr_Format(PyExc_TypeError, "a name is bytes or str, not %.100s", Py_TYPE(o)->tp_name);
		return 0;
	}
	n->p = PyBytes_AS_STRING(n->owner);
	n->len = (size_t)PyBytes_GET_SIZE(n->owner);
	if (memchr(n->p, 0, n->len)) {
		PyErr_SetString(PyExc_ValueError, "a name has no null byte");
		Py_CLEAR(n->owner);
		return 0;
	}
	return 1;
}

int native_conv_name(PyObject *o, void *out)
{
	struct name *n = out;
	if (!o) { /* a later argument failed */
		Py_CLEAR(n->owner);
		return 1;
	}
	return native_name(o, n) ? Py_CLEANUP_SUPPORTED : 0;
}

bool native_put(PyObject *d, const char *key, PyObject *v)
{
	if (!v) return false;
	int rc = PyDict_SetItemString(d, key, v);
	Py_DECREF(v);
	return rc == 0;
}

/* ---- attributes ------------------------------------------------------------------- */

static PyStructSequence_Field attr_fields[] = {
	{"ino", NULL}, {"size", NULL}, {"granules", NULL}, {"atime_ns", NULL}, {"mtime_ns", NULL},
	{"ctime_ns", NULL}, {"btime_ns", NULL}, {"mode", NULL}, {"nlink", NULL}, {"uid", NULL},
	{"gid", NULL}, {"rdev", NULL}, {"version", NULL}, {"cls", NULL}, {"state", NULL},
	{"owner", NULL}, {"flags", NULL}, {NULL, NULL},
};
static PyStructSequence_Desc attr_desc = {
	"belugafs._native.Attr", "Attributes of one object (struct bfs_attr).", attr_fields, 17,
};

PyObject *native_attr(const struct bfs_attr *a)
{
	PyObject *o = PyStructSequence_New(attr_type);
	if (!o) return NULL;
	int i = 0;
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLongLong(a->ino));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLongLong(a->size));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLongLong(a->granules));
	PyStructSequence_SetItem(o, i++, PyLong_FromLongLong(a->atime_ns));
	PyStructSequence_SetItem(o, i++, PyLong_FromLongLong(a->mtime_ns));
	PyStructSequence_SetItem(o, i++, PyLong_FromLongLong(a->ctime_ns));
	PyStructSequence_SetItem(o, i++, PyLong_FromLongLong(a->btime_ns));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->mode));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->nlink));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->uid));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->gid));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->rdev));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->version));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->cls));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->state));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->owner));
	PyStructSequence_SetItem(o, i++, PyLong_FromUnsignedLong(a->flags));
	if (PyErr_Occurred()) Py_CLEAR(o);
	return o;
}

PyObject *native_super(const struct bfs_super *sb)
{
	PyObject *d = PyDict_New();
	if (!d) return NULL;
#define NUM(f) native_put(d, #f, PyLong_FromUnsignedLongLong(sb->f))
#define RAW(f) native_put(d, #f, PyBytes_FromStringAndSize((const char *)sb->f, sizeof(sb->f)))
	if (NUM(version_major) && NUM(version_minor) && NUM(compat) && NUM(ro_compat) && NUM(incompat) &&
	    RAW(uuid) && RAW(label) && NUM(incarnation) && NUM(size_bytes) && NUM(max_size_bytes) &&
	    NUM(created_s) && NUM(map_bytes) && NUM(nhosts) && NUM(host_off) && NUM(host_stride) &&
	    NUM(ring_entries) && NUM(rows) && NUM(meta_off) && NUM(meta_pages) && NUM(inodes) &&
	    NUM(hash_buckets) && NUM(region_granules) && NUM(data_off) && NUM(data_granules) &&
	    NUM(chunk_bytes))
		return d;
#undef NUM
#undef RAW
	Py_DECREF(d);
	return NULL;
}

/* ---- mappings ---------------------------------------------------------------------- */

/* An address that is a multiple of 2 MiB lets a tmpfs with huge pages use them. */
static void *map_aligned(int fd, size_t size, int prot)
{
	void *p = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED || size < HUGE_BYTES || (uintptr_t)p % HUGE_BYTES == 0) return p;
	char *room = mmap(NULL, size + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED) return p;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (size + page - 1) / page * page;
	char *want = (char *)(((uintptr_t)room + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);
	void *q = mmap(want, size, prot, MAP_SHARED | MAP_FIXED, fd, 0);
	if (q == MAP_FAILED) {
		munmap(room, size + HUGE_BYTES);
		return p;
	}
	munmap(p, size);
	if (want > room) munmap(room, (size_t)(want - room));
	if (room + size + HUGE_BYTES > want + len) munmap(want + len, (size_t)(room + size + HUGE_BYTES - want - len));
	return q;
}

MapObject *native_map(int fd, u64 size, bool readonly, bool coherent)
{
	if (size == 0 || size > PY_SSIZE_T_MAX) {
		PyErr_SetString(PyExc_ValueError, "size_bytes must be above 0 and fit into the address space");
		return NULL;
	}
	MapObject *m = PyObject_New(MapObject, &native_MapType);
	if (!m) return NULL;
	memset(&m->mem, 0, sizeof(m->mem));
	m->view_off = m->view_len = 0;
	int prot = readonly ? PROT_READ : PROT_READ | PROT_WRITE, err = 0;
	void *p;
	Py_BEGIN_ALLOW_THREADS
	p = map_aligned(fd, size, prot);
	if (p == MAP_FAILED) err = errno;
	else madvise(p, size, MADV_HUGEPAGE); /* a wish: EINVAL where there are none */
	Py_END_ALLOW_THREADS
	if (p == MAP_FAILED) {
		Py_DECREF(m);
		errno = err;
		PyErr_SetFromErrno(PyExc_OSError);
		return NULL;
	}
	m->mem.ops = coherent ? &bfs_ops_coherent : &bfs_ops_incoherent;
	m->mem.base = p;
	m->mem.size = size;
	m->mem.coherent = coherent;
	m->mem.readonly = readonly;
	return m;
}

static void map_dealloc(PyObject *o)
{
	MapObject *m = (MapObject *)o;
	if (m->mem.base) munmap(m->mem.base, m->mem.size);
	PyObject_Free(o);
}

static int map_getbuffer(PyObject *o, Py_buffer *view, int flags)
{
	MapObject *m = (MapObject *)o;
	return PyBuffer_FillInfo(view, o, m->mem.base + m->view_off, (Py_ssize_t)m->view_len, 1, flags);
}

static PyBufferProcs map_buffer = {.bf_getbuffer = map_getbuffer};
PyTypeObject native_MapType = {
	PyVarObject_HEAD_INIT(NULL, 0)
	.tp_name = "belugafs._native._Map",
	.tp_basicsize = sizeof(MapObject),
	.tp_dealloc = map_dealloc,
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.tp_as_buffer = &map_buffer,
};

/* ---- mkfs, peek, fsck ---------------------------------------------------------------- */

static PyObject *native_mkfs(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kw)
{
	static char *names[] = {"fd", "size_bytes", "uuid", "max_size_bytes", "inodes", "hosts", "label",
		"page_bytes", "meta_pages", "region_granules", "chunk_bytes", "rows", "ring_entries",
		"align_bytes", "directory_bytes", NULL};
	int fd;
	Py_buffer uuid = {0}, label = {0};
	struct bfs_mkfs_params p = {.nhosts = 16, .map_bytes = 4096};
	struct bfs_super sb;
	PyObject *result = NULL;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "iO&|$y*O&O&O&y*O&O&O&O&O&O&O&O&:mkfs", names, &fd,
		    native_conv_u64, &p.size_bytes, &uuid, native_conv_u64, &p.max_size_bytes,
		    native_conv_u32, &p.inodes, native_conv_u32, &p.nhosts, &label,
		    native_conv_u32, &p.map_bytes, native_conv_u32, &p.meta_pages,
		    native_conv_u32, &p.region_granules, native_conv_u32, &p.chunk_bytes,
		    native_conv_u32, &p.rows, native_conv_u32, &p.ring_entries, native_conv_u32, &p.align_bytes,
		    native_conv_u64, &p.data_bytes))
		goto out;
	if (uuid.len != sizeof(p.uuid)) {
		/* absent, too: an identity is never left to chance in here */
		PyErr_SetString(PyExc_ValueError, "uuid must be 16 bytes");
		goto out;
	}
	memcpy(p.uuid, uuid.buf, sizeof(p.uuid));
	p.directory = p.data_bytes != 0;
	if (label.len > (Py_ssize_t)sizeof(p.label)) {
		PyErr_Format(PyExc_ValueError, "label must be at most %d bytes", (int)sizeof(p.label));
		goto out;
	}
	if (label.len) memcpy(p.label, label.buf, (size_t)label.len);
	if (getrandom(&p.incarnation, sizeof(p.incarnation), 0) != sizeof(p.incarnation)) {
		PyErr_SetFromErrno(PyExc_OSError);
		goto out;
	}
	MapObject *m = native_map(fd, p.size_bytes, false, true);
	if (!m) goto out;
	int rc;
	bfs_errmsg_clear();
	Py_BEGIN_ALLOW_THREADS rc = bfs_mkfs(&m->mem, &p, &sb);
	Py_END_ALLOW_THREADS
	result = rc < 0 ? native_raise(native_CoreError, rc) : native_super(&sb);
	Py_DECREF(m);
out:
	if (uuid.obj) PyBuffer_Release(&uuid);
	if (label.obj) PyBuffer_Release(&label);
	return result;
}

/* Bytes of the file of metadata of a directory pool. */
static PyObject *native_directory_bytes(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kw)
{
	static char *names[] = {"data_bytes", "inodes", "hosts", NULL};
	struct bfs_mkfs_params p = {.nhosts = 1, .directory = true};
	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|$O&O&:directory_bytes", names, native_conv_u64, &p.data_bytes,
		    native_conv_u32, &p.inodes, native_conv_u32, &p.nhosts))
		return NULL;
	bfs_errmsg_clear();
	u64 n = bfs_directory_bytes(&p);
	return n ? PyLong_FromUnsignedLongLong(n) : native_raise(native_CoreError, -EINVAL);
}

static PyObject *native_peek(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kw)
{
	static char *names[] = {"fd", "size_bytes", NULL};
	int fd, rc;
	u64 size;
	struct bfs_super sb;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "iO&:peek", names, &fd, native_conv_u64, &size)) return NULL;
	MapObject *m = native_map(fd, size, true, true);
	if (!m) return NULL;
	bfs_errmsg_clear();
	Py_BEGIN_ALLOW_THREADS rc = bfs_read_super(&m->mem, size, &sb);
	Py_END_ALLOW_THREADS
	Py_DECREF(m);
	return rc < 0 ? native_raise(native_PoolFormatError, rc) : native_super(&sb);
}

struct fsck_arg {
	PyObject *callback, *ask, *progress;
	PyThreadState *ts; /* of the caller, while it is in the core */
	bool failed;       /* a callback raised: its exception is set, the rest is not reported */
};

static void fsck_report(void *arg, int severity, const char *code, const char *text)
{
	struct fsck_arg *f = arg;
	if (f->failed) return;
	PyEval_RestoreThread(f->ts);
	PyObject *t = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
	PyObject *r = t ? PyObject_CallFunction(f->callback, "isN", severity, code, t) : NULL;
	if (!r) f->failed = true;
	Py_XDECREF(r);
	f->ts = PyEval_SaveThread();
}

/* What a callback raised is a "no": nothing is changed after it. */
static bool fsck_ask(void *arg, bool loses, const char *question)
{
	struct fsck_arg *f = arg;
	if (f->failed) return false;
	if (f->ask == Py_None) return true;
	PyEval_RestoreThread(f->ts);
	PyObject *r = PyObject_CallFunction(f->ask, "Os", loses ? Py_True : Py_False, question);
	int yes = r ? PyObject_IsTrue(r) : -1;
	if (yes < 0) f->failed = true;
	Py_XDECREF(r);
	f->ts = PyEval_SaveThread();
	return yes > 0;
}

static bool fsck_progress(void *arg, const char *what, u64 done, u64 total)
{
	struct fsck_arg *f = arg;
	if (f->failed) return false;
	PyEval_RestoreThread(f->ts);
	PyObject *r = f->progress == Py_None ? Py_NewRef(Py_None) : PyObject_CallFunction(f->progress, "sKK", what, (unsigned long long)done, (unsigned long long)total);
	if (!r || PyErr_CheckSignals() < 0) f->failed = true;
	Py_XDECREF(r);
	f->ts = PyEval_SaveThread();
	return !f->failed;
}

static PyObject *native_fsck(PyObject *Py_UNUSED(self), PyObject *args, PyObject *kw)
{
	static char *names[] = {"fd", "size_bytes", "data", "callback", "repair", "host_uuid", "boot_id", "gone", "ask", "progress", "data_fd", NULL};
	int fd, data, repair = 0, data_fd = -1, rc;
	u64 size;
	unsigned int gone = 0;
	struct fsck_arg f = {.ask = Py_None, .progress = Py_None};
	struct bfs_fsck_result r = {0};
	Py_buffer host = {0}, boot = {0};
	if (!PyArg_ParseTupleAndKeywords(args, kw, "iO&pO|$py*y*IOOi:fsck", names, &fd, native_conv_u64, &size, &data, &f.callback, &repair, &host, &boot, &gone, &f.ask, &f.progress, &data_fd))
		return NULL;
	struct bfs_fsck_how how = {.data = data, .repair = repair, .gone = gone, .directory = data_fd >= 0, .data_fd = data_fd, .cb = fsck_report, .ask = fsck_ask, .progress = fsck_progress, .arg = &f};
	u64 words[2] = {0};
	bool good = (!host.buf || host.len == sizeof how.uuid) && (!boot.buf || boot.len == sizeof words);
	if (good && host.buf) memcpy(how.uuid, host.buf, sizeof how.uuid);
	if (good && boot.buf) memcpy(words, boot.buf, sizeof words);
	how.boot = words[0] ^ words[1];
	if (host.buf) PyBuffer_Release(&host);
	if (boot.buf) PyBuffer_Release(&boot);
	if (!good) {
		PyErr_SetString(PyExc_ValueError, "host_uuid and boot_id must be 16 bytes");
		return NULL;
	}
	/* a repair flushes what it stores: the pool may be one that other hosts map */
	MapObject *m = native_map(fd, size, !repair, !repair);
	if (!m) return NULL;
	f.ts = PyEval_SaveThread();
	rc = bfs_fsck_run(&m->mem, &how, &r);
	PyEval_RestoreThread(f.ts);
	Py_DECREF(m);
	if (f.failed) return NULL;
	if (rc < 0) return native_raise(native_CoreError, rc);
	PyObject *d = PyDict_New();
	if (!d) return NULL;
#define NUM(n) native_put(d, #n, PyLong_FromUnsignedLongLong(r.n))
	if (NUM(pages) && NUM(objects) && NUM(entries) && NUM(extents) && NUM(blocks) && NUM(blocks_bad) &&
	    NUM(bytes_checked) && NUM(used_granules) && NUM(quarantined_granules) && NUM(granted_granules) && NUM(problems) &&
	    NUM(left) && NUM(dropped) && NUM(put_back) && NUM(changed))
		return d;
#undef NUM
	Py_DECREF(d);
	return NULL;
}

/* ---- module -------------------------------------------------------------------------- */

static PyMethodDef module_methods[] = {
	{"mkfs", (PyCFunction)(void (*)(void))native_mkfs, METH_VARARGS | METH_KEYWORDS, NULL},
	{"directory_bytes", (PyCFunction)(void (*)(void))native_directory_bytes, METH_VARARGS | METH_KEYWORDS, NULL},
	{"opener_of", native_opener_of, METH_O, NULL},
	{"is_killed", native_is_killed, METH_VARARGS, NULL},
	{"peek", (PyCFunction)(void (*)(void))native_peek, METH_VARARGS | METH_KEYWORDS, NULL},
	{"fsck", (PyCFunction)(void (*)(void))native_fsck, METH_VARARGS | METH_KEYWORDS, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT, "belugafs._native", "The belugafs core, for Python.", -1, module_methods,
	NULL, NULL, NULL, NULL,
};

static void in_forked_child(void) { native_fork_count++; }

static int init_constants(PyObject *m)
{
	static const struct { const char *name; long value; } numbers[] = {
		{"ROOT_INO", BFS_ROOT_INO}, {"GRANULE_BYTES", BFS_GRANULE}, {"NAME_MAX", BFS_NAME_MAX},
		{"KEY_MAX", BFS_KEY_MAX}, {"HOSTS_MAX", BFS_HOSTS_MAX}, {"VERSION_MAJOR", BFS_VERSION_MAJOR},
		{"VERSION_MINOR", BFS_VERSION_MINOR},
		{"CLS_NONE", BFS_CLS_NONE}, {"CLS_BLOCK", BFS_CLS_BLOCK}, {"CLS_ORDINARY", BFS_CLS_ORDINARY},
		{"ST_FREE", BFS_ST_FREE}, {"ST_SEALED", BFS_ST_SEALED}, {"ST_NEW", BFS_ST_NEW},
		{"ST_DIRTY", BFS_ST_DIRTY}, {"ST_ABANDONED", BFS_ST_ABANDONED},
		{"OF_NSBLOCK", BFS_OF_NSBLOCK}, {"OF_NOSUM", BFS_OF_NOSUM}, {"OF_UNVERIFIED", BFS_OF_UNVERIFIED},
		{"OF_PINNED", BFS_OF_PINNED}, {"OF_PUBLISHED", BFS_OF_PUBLISHED},
		{"OF_PINNED_SOFT", BFS_OF_PINNED_SOFT}, {"OF_EMPTIED", BFS_OF_EMPTIED},
		{"SET_MODE", BFS_SET_MODE}, {"SET_UID", BFS_SET_UID}, {"SET_GID", BFS_SET_GID},
		{"SET_SIZE", BFS_SET_SIZE}, {"SET_ATIME", BFS_SET_ATIME}, {"SET_MTIME", BFS_SET_MTIME},
		{"SET_CTIME", BFS_SET_CTIME}, {"RENAME_NOREPLACE", BFS_RENAME_NOREPLACE},
		{"RENAME_EXCHANGE", BFS_RENAME_EXCHANGE},
	};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (PyModule_AddIntConstant(m, numbers[i].name, numbers[i].value) < 0) return -1;
	return 0;
}

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
	if (PyType_Ready(&native_MapType) < 0 || native_init_pool() < 0) return NULL;
	PyObject *m = PyModule_Create(&module_def);
	if (!m) return NULL;
	attr_type = PyStructSequence_NewType(&attr_desc);
	native_CoreError = PyErr_NewExceptionWithDoc("belugafs._native.CoreError",
		"A call of the core failed: errno and the core's own message.", PyExc_OSError, NULL);
	if (!native_CoreError) goto fail;
	native_PoolFormatError = PyErr_NewExceptionWithDoc("belugafs._native.PoolFormatError",
		"No pool that this version can use; the text says what was expected and what was found.",
		native_CoreError, NULL);
	if (!attr_type || !native_PoolFormatError || PyModule_AddObjectRef(m, "Attr", (PyObject *)attr_type) < 0 ||
	    PyModule_AddObjectRef(m, "CoreError", native_CoreError) < 0 ||
	    PyModule_AddObjectRef(m, "PoolFormatError", native_PoolFormatError) < 0 ||
	    PyModule_AddType(m, &native_PoolType) < 0 || PyModule_AddType(m, &native_DirectServerType) < 0 ||
	    native_init_ring(m) < 0 || native_init_client(m) < 0 || init_constants(m) < 0)
		goto fail;
	if (pthread_atfork(NULL, NULL, in_forked_child) != 0) {
		PyErr_NoMemory();
		goto fail;
	}
	bfs_guard_install();
	return m;
fail:
	Py_DECREF(m);
	return NULL;
}
