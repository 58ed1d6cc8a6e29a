/* belugafs.kernels._copy: the CPU copies of kernels/bfk.h for Python.
 *
 * Lists are buffers of 64-bit words (numpy arrays), since a list of a thousand pieces as Python
 * objects would cost more than the copy.  Their shapes are checked here; the addresses in them are the
 * caller's (belugafs/kernels/layout.py makes them from buffers that it knows the bounds of).  All
 * copying runs without the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include "bfk.h"

/* The GPU's source, for CuPy: the very file that this module was compiled with. */
__asm__(".pushsection .rodata\n"
	"bfk_source_h: .incbin \"kernels/transfer.h\"\nbfk_source_h_end:\n"
	"bfk_source_cu: .incbin \"kernels/transfer.cu\"\nbfk_source_cu_end:\n"
	".popsection\n");
extern const char bfk_source_h[], bfk_source_h_end[], bfk_source_cu[], bfk_source_cu_end[];

enum { PIECE_WORDS = 3, PART_WORDS = 6, BLOCK_WORDS = 3 };

static PyObject *fail(int rc, const char *what)
{
	if (rc == -EIO) what = "memory failed during a copy: the pool lost a page, or it is poisoned";
	PyObject *args = rc == -EINVAL ? NULL : Py_BuildValue("(is)", -rc, what);
	if (rc == -EINVAL) PyErr_SetString(PyExc_ValueError, what);
	else if (args) PyErr_SetObject(PyExc_OSError, args);
	Py_XDECREF(args);
	return NULL;
}

/* A contiguous buffer of rows of `words` words; *rows is their number. */
static bool table(PyObject *o, Py_buffer *view, size_t words, size_t word_bytes, size_t *rows, const char *name, bool writable)
{
	if (PyObject_GetBuffer(o, view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0) return false;
	if ((size_t)view->len % (words * word_bytes) || (uintptr_t)view->buf % word_bytes) {
		PyErr_Format(PyExc_ValueError, "%s: rows of %zu words of %zu bytes, not %zd bytes", name, words, word_bytes, view->len);
		PyBuffer_Release(view);
		return false;
	}
	*rows = (size_t)view->len / (words * word_bytes);
	return true;
}

static PyObject *m_move(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"blocks", "pieces", "flags", "sum_bytes", "sums", "threads", NULL};
	PyObject *blocks_o, *pieces_o, *sums_o = Py_None, *result = NULL;
	unsigned flags = 0, threads = 0;
	unsigned long long sum_bytes = 0;
	Py_buffer blocks = {0}, pieces = {0}, sums = {0};
	size_t nblocks = 0, npieces = 0, nsums = 0, piece = 0, sum = 0;
	struct bfk_block *list = NULL;
	(void)self;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|$IKOI:move", names, &blocks_o, &pieces_o, &flags, &sum_bytes, &sums_o, &threads))
		return NULL;
	if (!table(blocks_o, &blocks, BLOCK_WORDS, 8, &nblocks, "blocks", false)) goto out;
	if (!table(pieces_o, &pieces, PIECE_WORDS, 8, &npieces, "pieces", false)) goto out;
	if (sums_o != Py_None && !table(sums_o, &sums, 1, 8, &nsums, "sums", true)) goto out;
	if (!(list = PyMem_Calloc(nblocks ? nblocks : 1, sizeof *list))) {
		PyErr_NoMemory();
		goto out;
	}
	const uint64_t *words = blocks.buf;
	for (size_t i = 0; i < nblocks; i++, words += BLOCK_WORDS) {
		size_t units = sum_bytes ? words[1] / sum_bytes + (words[1] % sum_bytes != 0) : 0;
		if (words[2] > npieces - piece || units > nsums - sum) {
			PyErr_Format(PyExc_ValueError, "block %zu: not enough %s for it", i, units > nsums - sum ? "sums" : "pieces");
			goto out;
		}
		list[i] = (struct bfk_block){words[0], words[1], (const void *)((const uint64_t *)pieces.buf + piece * PIECE_WORDS),
					     words[2], sum_bytes ? (uint64_t *)sums.buf + sum : NULL};
		piece += words[2], sum += units;
	}
	int rc;
	Py_BEGIN_ALLOW_THREADS
	rc = bfk_move(list, nblocks, sum_bytes, flags, threads);
	Py_END_ALLOW_THREADS
	result = rc ? fail(rc, "pieces must make up their blocks in order and without gaps, sum_bytes be a multiple of 64") : Py_NewRef(Py_None);
out:
	PyMem_Free(list);
	if (blocks.obj) PyBuffer_Release(&blocks);
	if (pieces.obj) PyBuffer_Release(&pieces);
	if (sums.obj) PyBuffer_Release(&sums);
	return result;
}

static PyObject *m_copy(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"dst", "src", "flags", "sum_bytes", "sums", "threads", NULL};
	PyObject *sums_o = Py_None, *result = NULL;
	Py_buffer dst = {0}, src = {0}, sums = {0};
	unsigned flags = 0, threads = 0;
	unsigned long long sum_bytes = 0;
	size_t nsums = 0;
	(void)self;
	if (!PyArg_ParseTupleAndKeywords(args, kw, "w*y*|$IKOI:copy", names, &dst, &src, &flags, &sum_bytes, &sums_o, &threads)) return NULL;
	if (dst.len != src.len) {
		PyErr_Format(PyExc_ValueError, "%zd bytes don't fit %zd bytes: both sides must have one size", src.len, dst.len);
		goto out;
	}
	if (sums_o != Py_None && !table(sums_o, &sums, 1, 8, &nsums, "sums", true)) goto out;
	if (sum_bytes && nsums < (uint64_t)src.len / sum_bytes + ((uint64_t)src.len % sum_bytes != 0)) {
		PyErr_SetString(PyExc_ValueError, "sums: one word for each started sum_bytes");
		goto out;
	}
	bool to_pool = flags & BFK_TO_POOL;
	uint64_t pool = (uintptr_t)(to_pool ? dst.buf : src.buf), engine = (uintptr_t)(to_pool ? src.buf : dst.buf);
	uint64_t piece[PIECE_WORDS] = {engine, pool, (uint64_t)src.len};
	struct bfk_block block = {pool, (uint64_t)src.len, (const void *)piece, 1, sums.buf};
	int rc;
	Py_BEGIN_ALLOW_THREADS
	rc = bfk_move(&block, 1, sum_bytes, flags, threads);
	Py_END_ALLOW_THREADS
	result = rc ? fail(rc, "sum_bytes must be a multiple of 64, and of STREAM and CACHED at most one be set") : Py_NewRef(Py_None);
out:
	PyBuffer_Release(&dst);
	PyBuffer_Release(&src);
	if (sums.obj) PyBuffer_Release(&sums);
	return result;
}

static PyObject *m_sum(PyObject *self, PyObject *args)
{
	Py_buffer p, sums = {0};
	PyObject *sums_o, *result = NULL;
	unsigned long long sum_bytes;
	size_t nsums;
	(void)self;
	if (!PyArg_ParseTuple(args, "y*KO:sum_chunks", &p, &sum_bytes, &sums_o)) return NULL;
	if (!table(sums_o, &sums, 1, 8, &nsums, "sums", true)) goto out;
	if (!sum_bytes || nsums < (uint64_t)p.len / sum_bytes + ((uint64_t)p.len % sum_bytes != 0)) {
		PyErr_SetString(PyExc_ValueError, "sums: one word for each started sum_bytes, which isn't 0");
		goto out;
	}
	int rc;
	Py_BEGIN_ALLOW_THREADS
	rc = bfk_sum(p.buf, (uint64_t)p.len, sum_bytes, sums.buf);
	Py_END_ALLOW_THREADS
	result = rc ? fail(rc, "checksum") : Py_NewRef(Py_None);
out:
	PyBuffer_Release(&p);
	if (sums.obj) PyBuffer_Release(&sums);
	return result;
}

/* expand(parts, pages, pages_per_block, npages, blocks, pieces, counts) -> number of pieces */
static PyObject *m_expand(PyObject *self, PyObject *args)
{
	PyObject *o[5], *result = NULL;
	unsigned per_block;
	unsigned long long npages;
	Py_buffer v[5] = {0};
	size_t nparts, nids, nblocks, room, ncounts, need = 0;
	(void)self;
	if (!PyArg_ParseTuple(args, "OOIKOOO:expand", &o[0], &o[1], &per_block, &npages, &o[2], &o[3], &o[4])) return NULL;
	if (!table(o[0], &v[0], PART_WORDS, 8, &nparts, "parts", false) || !table(o[1], &v[1], 1, 4, &nids, "pages", false) ||
	    !table(o[2], &v[2], 1, 8, &nblocks, "blocks", false) || !table(o[3], &v[3], PIECE_WORDS, 8, &room, "pieces", true) ||
	    !table(o[4], &v[4], 1, 8, &ncounts, "counts", true))
		goto out;
	const uint32_t *halves = v[0].buf;
	for (size_t i = 0; i < nparts; i++) need += halves[(i + 1) * 2 * PART_WORDS - 2]; /* rows */
	if (!per_block || nids != nblocks * per_block || ncounts < nblocks || room < need * nids) {
		PyErr_SetString(PyExc_ValueError, "expand: tables of sizes that don't fit each other");
		goto out;
	}
	uint64_t bad = 0;
	int64_t n;
	Py_BEGIN_ALLOW_THREADS
	n = bfk_expand(v[0].buf, (uint32_t)nparts, v[1].buf, per_block, npages, v[2].buf, nblocks, v[3].buf, v[4].buf, &bad);
	Py_END_ALLOW_THREADS
	if (n < 0)
		PyErr_Format(PyExc_IndexError, "page %u (entry %llu) is not in the cache, which has %llu pages",
			     ((const uint32_t *)v[1].buf)[bad], (unsigned long long)bad, npages);
	else result = PyLong_FromLongLong(n);
out:
	for (int i = 0; i < 5; i++)
		if (v[i].obj) PyBuffer_Release(&v[i]);
	return result;
}

static PyObject *counted(int rc, uint64_t wide, uint64_t narrow)
{
	if (rc) return fail(rc, "an access is not aligned to its size: a GPU would fault");
	return Py_BuildValue("(KK)", (unsigned long long)wide, (unsigned long long)narrow);
}

/* Addresses, as a kernel gets them: twin_pieces(pieces, npieces, tiles, tile_bytes, to_pool, workers, lanes) */
static PyObject *m_twin_pieces(PyObject *self, PyObject *args)
{
	unsigned long long pieces, npieces, tiles, tile_bytes, workers;
	int to_pool;
	unsigned lanes;
	uint64_t wide, narrow;
	(void)self;
	if (!PyArg_ParseTuple(args, "KKKKpKI:twin_pieces", &pieces, &npieces, &tiles, &tile_bytes, &to_pool, &workers, &lanes)) return NULL;
	int rc = bfk_twin_pieces((const void *)(uintptr_t)pieces, npieces, tiles, tile_bytes, to_pool, workers, lanes, &wide, &narrow);
	return counted(rc, wide, narrow);
}

/* twin_paged(parts, nparts, pages, pages_per_block, blocks, nblocks, rows_max, tiles_max, tile_bytes, to_pool, workers, lanes) */
static PyObject *m_twin_paged(PyObject *self, PyObject *args)
{
	unsigned long long parts, pages, blocks, nblocks, tile_bytes, workers;
	unsigned nparts, per_block, rows_max, tiles_max, lanes;
	int to_pool;
	uint64_t wide, narrow;
	(void)self;
	if (!PyArg_ParseTuple(args, "KIKIKKIIKpKI:twin_paged", &parts, &nparts, &pages, &per_block, &blocks, &nblocks, &rows_max, &tiles_max,
			      &tile_bytes, &to_pool, &workers, &lanes))
		return NULL;
	int rc = bfk_twin_paged((const void *)(uintptr_t)parts, nparts, (const void *)(uintptr_t)pages, per_block,
				(const void *)(uintptr_t)blocks, nblocks, rows_max, tiles_max, tile_bytes, to_pool, workers, lanes, &wide, &narrow);
	return counted(rc, wide, narrow);
}

/* plain_copy(dst, src, how): 0 libc's memcpy, 1 rep movsb, 2 our loops, 3 those around the cache */
static PyObject *m_plain_copy(PyObject *self, PyObject *args)
{
	Py_buffer dst, src;
	int how;
	(void)self;
	if (!PyArg_ParseTuple(args, "w*y*i:plain_copy", &dst, &src, &how)) return NULL;
	size_t n = (size_t)(dst.len < src.len ? dst.len : src.len);
	Py_BEGIN_ALLOW_THREADS
	if (how == 0) memcpy(dst.buf, src.buf, n);
	else if (how == 1) bfk_copy_string(dst.buf, src.buf, n);
	else bfk_copy(dst.buf, src.buf, n, how == 3);
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&dst);
	PyBuffer_Release(&src);
	Py_RETURN_NONE;
}

static PyObject *m_isas(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
	PyObject *list = PyList_New(0);
	for (const char *const *name = bfk_isas(); list && *name; name++) {
		PyObject *s = PyUnicode_FromString(*name);
		if (!s || PyList_Append(list, s) < 0) Py_CLEAR(list);
		Py_XDECREF(s);
	}
	return list;
}

static PyObject *m_isa(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
	return PyUnicode_FromString(bfk_isa());
}

static PyObject *m_set_isa(PyObject *self, PyObject *arg)
{
	(void)self;
	const char *name = PyUnicode_AsUTF8(arg);
	if (!name) return NULL;
	if (bfk_set_isa(name)) return PyErr_Format(PyExc_ValueError, "%s: this processor has no such loops; see isas()", name);
	Py_RETURN_NONE;
}

static PyObject *m_stream_min(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
	return PyLong_FromUnsignedLongLong(bfk_stream_min());
}

static PyObject *m_set_stream_min(PyObject *self, PyObject *arg)
{
	(void)self;
	unsigned long long n = PyLong_AsUnsignedLongLong(arg);
	if (PyErr_Occurred()) return NULL;
	bfk_set_stream_min(n);
	Py_RETURN_NONE;
}

static PyObject *m_guard_install(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
	bfk_guard_install();
	Py_RETURN_NONE;
}

static PyObject *m_cuda_source(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
	return Py_BuildValue("(s#s#)", bfk_source_h, (Py_ssize_t)(bfk_source_h_end - bfk_source_h), bfk_source_cu,
			     (Py_ssize_t)(bfk_source_cu_end - bfk_source_cu));
}

static PyMethodDef methods[] = {
	{"move", (PyCFunction)(void (*)(void))m_move, METH_VARARGS | METH_KEYWORDS, NULL},
	{"copy", (PyCFunction)(void (*)(void))m_copy, METH_VARARGS | METH_KEYWORDS, NULL},
	{"sum_chunks", m_sum, METH_VARARGS, NULL},
	{"expand", m_expand, METH_VARARGS, NULL},
	{"twin_pieces", m_twin_pieces, METH_VARARGS, NULL},
	{"twin_paged", m_twin_paged, METH_VARARGS, NULL},
	{"plain_copy", m_plain_copy, METH_VARARGS, NULL},
	{"isas", m_isas, METH_NOARGS, NULL},
	{"isa", m_isa, METH_NOARGS, NULL},
	{"set_isa", m_set_isa, METH_O, NULL},
	{"stream_min", m_stream_min, METH_NOARGS, NULL},
	{"set_stream_min", m_set_stream_min, METH_O, NULL},
	{"guard_install", m_guard_install, METH_NOARGS, NULL},
	{"cuda_source", m_cuda_source, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_copy", "CPU copies between an engine's memory and a pool.", -1, methods,
				    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__copy(void)
{
	PyObject *m = PyModule_Create(&module);
	if (m && (PyModule_AddIntConstant(m, "TO_POOL", BFK_TO_POOL) || PyModule_AddIntConstant(m, "STREAM", BFK_STREAM) ||
		  PyModule_AddIntConstant(m, "CACHED", BFK_CACHED) || PyModule_AddIntConstant(m, "FRESH", BFK_FRESH)))
		Py_CLEAR(m);
	return m;
}
