/* Blocks of pieces: which stores, which threads, checksums beside the copy.
 *
 * A job is cut into parts of one checksum unit each.  A part walks the pieces that lie in it in steps
 * of STEP bytes: copy, then feed the checksum, which finds the step in the first-level cache.  So
 * memory is read once.  The checksum is of what was read, and what was stored was read a moment
 * before: a writer that changes it in between makes the block fail its verification, which is a miss. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#include "bfk.h"

#define BFK_LOAD(T, address) (*(const T *)(uintptr_t)(address))
#define BFK_STORE(T, address, value) (*(T *)(uintptr_t)(address) = (value))
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "transfer.h" /* the structs */
#pragma GCC diagnostic pop

enum { STEP = 8 << 10, PART = 256 << 10, AHEAD = 512, THREADS_MAX = 8, THREAD_BYTES = 8 << 20, LINE = 64 };

/* ---- which stores ------------------------------------------------------------------ */
/* Plain stores first read every line that they fill; around the cache they don't: 1.35 times memcpy
 * at 2.5 MiB between buffers that lie in no cache.  Half of a usual second-level cache: what is
 * smaller may well be in it, and be wanted there. */
static _Atomic uint64_t stream_min = 1 << 20;

uint64_t bfk_stream_min(void) { return atomic_load(&stream_min); }
void bfk_set_stream_min(uint64_t nbytes) { atomic_store(&stream_min, nbytes); }

/* ---- the cache --------------------------------------------------------------------- */
#if defined(__x86_64__)
__attribute__((target("clflushopt"))) static void drop_opt(uintptr_t a, uintptr_t end)
{
	for (; a < end; a += LINE) _mm_clflushopt((void *)a);
}
static void drop(uint64_t address, uint64_t nbytes)
{
	static atomic_int opt = -1; /* leaf 7, EBX bit 23 */
	uintptr_t a = address & ~(uintptr_t)(LINE - 1), end = address + nbytes;
	if (atomic_load_explicit(&opt, memory_order_relaxed) < 0) {
		unsigned r[4] = {0};
		atomic_store(&opt, __get_cpuid_count(7, 0, &r[0], &r[1], &r[2], &r[3]) && (r[1] >> 23 & 1));
	}
	if (atomic_load_explicit(&opt, memory_order_relaxed)) drop_opt(a, end);
	else
		for (; a < end; a += LINE) _mm_clflush((void *)a);
	_mm_mfence();
}
static void drain(void) { _mm_sfence(); }
#elif defined(__aarch64__)
static void drop(uint64_t address, uint64_t nbytes)
{
	for (uintptr_t a = address & ~(uintptr_t)(LINE - 1); a < address + nbytes; a += LINE)
		__asm__ volatile("dc civac, %0" ::"r"(a) : "memory");
	__asm__ volatile("dsb sy" ::: "memory");
}
static void drain(void) {}
#else
#error "no cache maintenance known for this machine"
#endif

/* ---- jobs -------------------------------------------------------------------------- */
struct copying {
	const struct bfk_loops *loops;
	const struct bfk_block *blocks;
	uint64_t sum_bytes, unit, units_max; /* of the largest block; smaller ones have parts of nothing */
	unsigned flags;
};

static void touch(uint64_t address)
{
	for (unsigned i = 0; i < AHEAD; i += LINE) __builtin_prefetch((const void *)(uintptr_t)(address + i));
}

/* Lines of a piece that were stored plainly, since the piece has only a part of them. */
static void write_back_ends(uint64_t start, uint64_t end)
{
	if (start % LINE) drop(start, 1);
	if (end % LINE && end > start) drop(end - 1, 1);
}

/* The piece that holds pool address `at`. */
static size_t find_piece(const struct bfk_block *block, uint64_t at)
{
	size_t low = 0, high = block->npieces;
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;
		if (block->pieces[middle].pool <= at) low = middle;
		else high = middle;
	}
	return low;
}

static int run_part(void *arg, uint64_t part)
{
	struct copying *c = arg;
	const struct bfk_block *block = &c->blocks[part / c->units_max];
	uint64_t unit = part % c->units_max, start = unit * c->unit;
	if (start >= block->nbytes) return 0;
	uint64_t n_bytes = block->nbytes - start < c->unit ? block->nbytes - start : c->unit;
	uint64_t first = block->pool + start, at = first, end = first + n_bytes;
	bool to_pool = c->flags & BFK_TO_POOL, stream = c->flags & BFK_STREAM, sum = c->sum_bytes;
	if (c->flags & BFK_FRESH && !to_pool) drop(first, n_bytes);

	_Alignas(64) char state[BFK_SUM_STATE];
	void (*copy)(void *, const void *, size_t) = stream ? c->loops->stream : c->loops->copy;
	if (sum) c->loops->sum_begin(state);
	for (size_t i = find_piece(block, at); at < end; i++) {
		const struct bfk_piece *piece = &block->pieces[i];
		uint64_t skip = at - piece->pool, left = piece->nbytes - skip;
		uint64_t engine = piece->engine + skip;
		if (left > end - at) left = end - at;
		/* The processor's own prefetch stops at a page; the next piece's first lines and its
		 * address translation would be waited for. */
		if (i + 1 < block->npieces) touch(to_pool ? piece[1].engine : piece[1].pool);
		uint64_t from = at;
		while (left) {
			/* Steps end where a line of the destination does: half lines can't go around the cache. */
			uint64_t n = STEP - (to_pool ? at : engine) % LINE;
			if (!sum || n > left) n = left;
			void *pool = (void *)(uintptr_t)at, *side = (void *)(uintptr_t)engine;
			copy(to_pool ? pool : side, to_pool ? side : pool, n);
			if (sum) c->loops->sum_add(state, to_pool ? side : pool, n);
			at += n, engine += n, left -= n;
		}
		if (stream && to_pool && c->loops->streams) write_back_ends(from, at);
	}
	if (stream) drain();
	if (stream && to_pool && !c->loops->streams) drop(first, n_bytes);
	if (sum) {
		uint64_t value = c->loops->sum_end(state);
		block->sums[unit] = value ? value : 1;
	}
	return 0;
}

static unsigned worth(uint64_t nbytes)
{
	cpu_set_t set;
	unsigned processors = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
	uint64_t n = nbytes / THREAD_BYTES;
	if (n > processors) n = processors;
	return n > THREADS_MAX ? THREADS_MAX : n ? (unsigned)n : 1;
}

int bfk_move(const struct bfk_block *blocks, size_t nblocks, uint64_t sum_bytes, unsigned flags, unsigned threads)
{
	if (sum_bytes % LINE || (flags & BFK_STREAM && flags & BFK_CACHED)) return -EINVAL;
	struct copying c = {.loops = bfk_loops(), .blocks = blocks,
			    .sum_bytes = sum_bytes, .unit = sum_bytes ? sum_bytes : PART, .flags = flags};
	uint64_t total = 0;
	for (size_t b = 0; b < nblocks; b++) {
		uint64_t at = blocks[b].pool;
		for (uint64_t i = 0; i < blocks[b].npieces; i++) {
			if (blocks[b].pieces[i].pool != at) return -EINVAL;
			at += blocks[b].pieces[i].nbytes;
		}
		if (at - blocks[b].pool != blocks[b].nbytes || (sum_bytes && !blocks[b].sums)) return -EINVAL;
		total += blocks[b].nbytes;
		uint64_t units = (blocks[b].nbytes + c.unit - 1) / c.unit;
		if (units > c.units_max) c.units_max = units;
	}
	if (!(flags & (BFK_STREAM | BFK_CACHED)) && c.loops->streams && total >= bfk_stream_min()) c.flags |= BFK_STREAM;
	return bfk_workers_run(run_part, &c, nblocks * c.units_max, threads ? threads : worth(total));
}

struct summing {
	const struct bfk_loops *loops;
	const char *p;
	uint64_t nbytes, unit, *sums;
};

static int sum_part(void *arg, uint64_t part)
{
	struct summing *s = arg;
	uint64_t at = part * s->unit, n = s->nbytes - at < s->unit ? s->nbytes - at : s->unit;
	uint64_t value = s->loops->sum(s->p + at, n);
	s->sums[part] = value ? value : 1;
	return 0;
}

int bfk_sum(const void *p, uint64_t nbytes, uint64_t sum_bytes, uint64_t *sums)
{
	if (!sum_bytes) return -EINVAL;
	struct summing s = {.loops = bfk_loops(), .p = p, .nbytes = nbytes, .unit = sum_bytes, .sums = sums};
	return bfk_workers_run(sum_part, &s, (nbytes + sum_bytes - 1) / sum_bytes, worth(nbytes));
}

void bfk_copy(void *dst, const void *src, size_t n, bool stream)
{
	const struct bfk_loops *loops = bfk_loops();
	(stream ? loops->stream : loops->copy)(dst, src, n);
	if (stream) drain();
}

void bfk_copy_string(void *dst, const void *src, size_t n)
{
#if defined(__x86_64__)
	__asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(n)::"memory");
#else
	memcpy(dst, src, n);
#endif
}
