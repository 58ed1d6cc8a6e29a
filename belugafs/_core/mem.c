/* The verbs on real memory, guarded copies, checksums. */
#define _GNU_SOURCE
#include "mem.h"
#include <sys/mman.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>
#include "bfk.h"
#include "guard.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Lines and keys inline; a page is long enough for wide registers to be worth the call. */
u64 bfs_xxh(const void *p, size_t n, u64 seed) { return n < 1024 ? XXH3_64bits_withSeed(p, n, seed) : bfk_loops()->sum_seeded(p, n, seed); }
u64 bfs_sum(const void *p, size_t n) { return bfk_loops()->sum(p, n); }

void bfs_line_seal(struct bfs_line *l, u64 incarnation, u32 slot, u32 index)
{
	l->csum = bfs_xxh(l->w, sizeof l->w, incarnation ^ ((u64)slot << 8 | index));
	if (!l->csum) l->csum = 1; /* 0 is what a line that was never written has */
}

int bfs_line_check(const struct bfs_line *l, u64 incarnation, u32 slot, u32 index)
{
	if (!(l->csum | l->w[0] | l->w[1] | l->w[2] | l->w[3] | l->w[4] | l->w[5] | l->w[6])) return 0;
	struct bfs_line c = *l;
	bfs_line_seal(&c, incarnation, slot, index);
	return c.csum == l->csum ? 1 : -1;
}

void mm_load(struct bfs_mem *m, void *dst, const void *src, size_t n)
{
	mm_inval(m, src, n);
	mm_fence(m);
	memcpy(dst, src, n);
}

void mm_pool_fence(struct bfs_mem *m, const void *p, size_t n)
{
	mm_fence(m);
	mm_flush(m, p, n);
	mm_fence(m);
}

/* ---- guarded copies ------------------------------------------------------------ */
void bfs_guard_install(void) { bfk_guard_install(); }

#if defined(__x86_64__)
static void nt_copy(void *dst, const void *src, size_t n)
{
	u8 *d = dst;
	const u8 *s = src;
	size_t head = -(uintptr_t)d & 15;
	if (head > n) head = n;
	memcpy(d, s, head);
	if (head) _mm_clflush(d);
	d += head, s += head, n -= head;
	for (; n >= 64; d += 64, s += 64, n -= 64) {
		__m128i a = _mm_loadu_si128((const void *)s), b = _mm_loadu_si128((const void *)(s + 16));
		__m128i c = _mm_loadu_si128((const void *)(s + 32)), e = _mm_loadu_si128((const void *)(s + 48));
		_mm_stream_si128((void *)d, a);
		_mm_stream_si128((void *)(d + 16), b);
		_mm_stream_si128((void *)(d + 32), c);
		_mm_stream_si128((void *)(d + 48), e);
	}
	memcpy(d, s, n);
	if (n) { /* d is 16-byte aligned only: the tail may lie in two lines */
		_mm_clflush(d);
		_mm_clflush(d + n - 1);
	}
}
#define HAVE_NT 1
#else
#define HAVE_NT 0
static void nt_copy(void *dst, const void *src, size_t n) { memcpy(dst, src, n); }
#endif

int bfs_guarded_copy(void *dst, const void *src, size_t n, bool nontemporal)
{
	BFK_GUARDED(if (nontemporal) nt_copy(dst, src, n); else memcpy(dst, src, n));
	return 0;
}

int bfs_guarded_zero(void *dst, size_t n)
{
	BFK_GUARDED(memset(dst, 0, n));
	return 0;
}

int bfs_guarded_words(u64 *dst, const u64 *src, size_t n)
{
	BFK_GUARDED(for (size_t i = 0; i < n; i++) dst[i] = __atomic_load_n(src + i, __ATOMIC_ACQUIRE));
	return 0;
}

int bfs_guarded_sum(const void *p, size_t n, u64 *sum)
{
	BFK_GUARDED(*sum = bfs_sum(p, n));
	return 0;
}

int bfs_guarded_probe(const void *p, size_t n)
{
	const volatile u8 *q = p;
	BFK_GUARDED(for (size_t i = 0; i < n; i += BFS_GRANULE - (uintptr_t)(q + i) % BFS_GRANULE) (void)q[i]);
	return 0;
}

/* In steps that the first-level cache holds, so that memory is read once.  The sum is of what was
 * read, and what was stored was read a moment before: a caller that changes it in between gets a
 * block that fails its verification, which is a miss. */
static u64 copy_sum(u8 *d, const u8 *s, size_t n, bool nontemporal)
{
	enum { STEP = 8 << 10 };
	const struct bfk_loops *loops = bfk_loops();
	_Alignas(64) u8 state[BFK_SUM_STATE];
	loops->sum_begin(state);
	for (size_t at = 0, m; at < n; at += m) {
		m = STEP - (uintptr_t)(d + at) % BFS_LINE; /* half lines can't go around the cache */
		if (m > n - at) m = n - at;
		if (nontemporal) nt_copy(d + at, s + at, m);
		else loops->stream(d + at, s + at, m);
		loops->sum_add(state, s + at, m);
	}
	return loops->sum_end(state);
}

int bfs_guarded_copy_sum(void *dst, const void *src, size_t n, bool nontemporal, u64 *sum)
{
	BFK_GUARDED(*sum = copy_sum(dst, src, n, nontemporal));
	return 0;
}

/* ---- host environment shared by both real memories -------------------------------- */
static u64 clock_ns(clockid_t c)
{
	struct timespec t;
	clock_gettime(c, &t);
	return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}
static u64 env_now(struct bfs_mem *m) { (void)m; return clock_ns(CLOCK_REALTIME); }
static u64 env_mono(struct bfs_mem *m) { (void)m; return clock_ns(CLOCK_MONOTONIC); }
static u64 env_rand(struct bfs_mem *m)
{
	u64 r;
	(void)m;
	if (getrandom(&r, sizeof r, 0) != sizeof r) r = clock_ns(CLOCK_MONOTONIC) * 0x9E3779B97F4A7C15ull;
	return r;
}
static void env_pause(struct bfs_mem *m, u64 ns)
{
	struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
	(void)m;
	nanosleep(&t, NULL);
}
/* What is looked up at random in a large table misses the processor's own tables for each page of it. */
static void *env_alloc(struct bfs_mem *m, size_t n)
{
	enum { LARGE = 4 << 20, PAGE = 2 << 20 };
	(void)m;
	u8 *p = calloc(1, n ? n : 1);
	u8 *from = (u8 *)(((uintptr_t)p + PAGE - 1) / PAGE * PAGE);
	if (p && n >= LARGE) madvise(from, (size_t)(p + n - from) / PAGE * PAGE, MADV_HUGEPAGE); /* a wish */
	return p;
}
static void env_free(struct bfs_mem *m, void *p) { (void)m; free(p); }

/* ---- coherent: one host, or hardware coherence.  A fence is a full fence, since the
 * protocol's claim/root exchange needs store-load order. -------------------------------- */
static void co_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	(void)m;
	memcpy(d, s, n);
}
static void co_none(struct bfs_mem *m, const void *p, size_t n) { (void)m, (void)p, (void)n; }
static void co_fence(struct bfs_mem *m)
{
	(void)m;
	atomic_thread_fence(memory_order_seq_cst);
}
static int co_in(struct bfs_mem *m, void *d, const void *s, size_t n) { (void)m; return bfs_guarded_copy(d, s, n, false); }
static int co_out(struct bfs_mem *m, void *d, const void *s, size_t n) { (void)m; return bfs_guarded_copy(d, s, n, false); }
static int co_zero(struct bfs_mem *m, void *d, size_t n) { (void)m; return bfs_guarded_zero(d, n); }
/* Around the cache, too: who stores a block isn't who reads it next, and plain stores first read every line
 * that they fill. */
static int co_in_sum(struct bfs_mem *m, void *d, const void *s, size_t n, u64 *sum) { (void)m; return bfs_guarded_copy_sum(d, s, n, false, sum); }

const struct bfs_mem_ops bfs_ops_coherent = {
	.name = "coherent", .store = co_store, .inval = co_none, .flush = co_none, .fence = co_fence,
	.copy_in = co_in, .copy_out = co_out, .zero = co_zero, .copy_in_sum = co_in_sum,
	.now_ns = env_now, .mono_ns = env_mono, .rand64 = env_rand, .pause = env_pause, .alloc = env_alloc, .free = env_free,
};

/* ---- incoherent: CXL 2.0 pool.  CLFLUSHOPT writes back and invalidates; CLWB alone would
 * leave the line in the cache, so a later plain load could be stale.  aarch64: DC CIVAC. ---- */
#if defined(__x86_64__)
__attribute__((target("clflushopt"))) static void line_flush_opt(uintptr_t a, uintptr_t e)
{
	for (; a < e; a += BFS_LINE) _mm_clflushopt((void *)a);
}
#endif
static void line_flush(const void *p, size_t n)
{
	uintptr_t a = (uintptr_t)p & ~(uintptr_t)(BFS_LINE - 1), e = (uintptr_t)p + n;
#if defined(__x86_64__)
	/* leaf 7, EBX bit 23; before it there is only the serialising CLFLUSH */
	static int opt = -1;
	if (opt < 0) {
		unsigned r[4] = {0};
		opt = __get_cpuid_count(7, 0, &r[0], &r[1], &r[2], &r[3]) && (r[1] >> 23 & 1);
	}
	if (opt) {
		line_flush_opt(a, e);
		return;
	}
#endif
	for (; a < e; a += BFS_LINE) {
#if defined(__x86_64__)
		_mm_clflush((void *)a);
#elif defined(__aarch64__)
		__asm__ volatile("dc civac, %0" ::"r"(a) : "memory");
#else
#error "no cache maintenance known for this machine"
#endif
	}
}
static void in_fence(struct bfs_mem *m)
{
	(void)m;
#if defined(__x86_64__)
	_mm_mfence();
#elif defined(__aarch64__)
	__asm__ volatile("dsb sy" ::: "memory");
#endif
}
static void in_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	(void)m;
#if HAVE_NT
	nt_copy(d, s, n);
#else
	memcpy(d, s, n);
	line_flush(d, n);
#endif
}
static void in_line(struct bfs_mem *m, const void *p, size_t n)
{
	(void)m;
	line_flush(p, n);
}
static int in_copy_in(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	(void)m;
	return bfs_guarded_copy(d, s, n, true);
}

static int in_copy_in_sum(struct bfs_mem *m, void *d, const void *s, size_t n, u64 *sum)
{
	(void)m;
	return bfs_guarded_copy_sum(d, s, n, true, sum);
}

const struct bfs_mem_ops bfs_ops_incoherent = {
	.name = "incoherent", .store = in_store, .inval = in_line, .flush = in_line, .fence = in_fence,
	.copy_in = in_copy_in, .copy_out = co_out, .zero = co_zero, .copy_in_sum = in_copy_in_sum,
	.now_ns = env_now, .mono_ns = env_mono, .rand64 = env_rand, .pause = env_pause, .alloc = env_alloc, .free = env_free,
};
