/* A libcudart for tests: registrations are kept in a table and checked as CUDA does, an error stays
 * until it is asked for, copies are memcpy.  VERSION decides the shape of the batch call. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, TWICE = 712, NOT_THERE = 713, MAX = 64 };
static struct { uintptr_t at; size_t n; unsigned flags; } table[MAX];
static int last, fail_code;
static int bad(int code) { return last = code; }

void fake_fail_next(int code) { fail_code = code; }
int fake_last(void) { return last; }
int fake_count(void) { int n = 0; for (int i = 0; i < MAX; i++) n += table[i].n != 0; return n; }
size_t fake_longest(void) { size_t n = 0; for (int i = 0; i < MAX; i++) if (table[i].n > n) n = table[i].n; return n; }
unsigned fake_flags(void) { for (int i = 0; i < MAX; i++) if (table[i].n) return table[i].flags; return 0; }

int cudaGetLastError(void) { int code = last; last = 0; return code; }
const char *cudaGetErrorName(int code) { return code == NO_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorOther"; }
const char *cudaGetErrorString(int code) { return code == NO_MEMORY ? "out of memory" : "other"; }
int cudaRuntimeGetVersion(int *v) { *v = VERSION; return OK; }
int cudaGetDeviceCount(int *n) { *n = 1; return OK; }
int cudaHostRegister(void *p, size_t n, unsigned flags)
{
	uintptr_t at = (uintptr_t)p;
	if (fail_code) { int code = fail_code; fail_code = 0; return bad(code); }
	if (!n || n >= (size_t)512 << 30) return bad(NO_MEMORY);
	for (int i = 0; i < MAX; i++)
		if (table[i].n && at < table[i].at + table[i].n && table[i].at < at + n) return bad(TWICE);
	for (int i = 0; i < MAX; i++)
		if (!table[i].n) { table[i].at = at, table[i].n = n, table[i].flags = flags; return OK; }
	return bad(NO_MEMORY);
}
int cudaHostUnregister(void *p)
{
	for (int i = 0; i < MAX; i++)
		if (table[i].n && table[i].at == (uintptr_t)p) { table[i].n = 0; return OK; }
	return bad(NOT_THERE);
}
int cudaHostGetDevicePointer(void **device, void *p, unsigned flags)
{
	for (int i = 0; i < MAX; i++)
		if (table[i].n && (uintptr_t)p - table[i].at < table[i].n && !flags) { *device = p; return OK; }
	return bad(INVALID);
}
int cudaMemcpyAsync(void *d, const void *s, size_t n, int kind, void *stream)
{
	if (kind != 4 || !stream) return bad(INVALID);
	memcpy(d, s, n);
	return OK;
}
struct location { int type, id; };
struct attributes { int order; struct location src, dst; unsigned flags; };
int cudaMemcpyBatchAsync(void **d, void **s, size_t *n, size_t count, struct attributes *a, size_t *first, size_t attrs,
#if VERSION < 13000
			 size_t *failed,
#endif
			 void *stream)
{
#if VERSION < 13000
	*failed = SIZE_MAX;
#endif
	if (attrs != 1 || first[0] || a->order != 1 || a->flags || (uintptr_t)stream < 3) return bad(INVALID);
	for (size_t i = 0; i < count; i++) memcpy(d[i], s[i], n[i]);
	return OK;
}
