/* The loops of one instruction set.  The includer has chosen the target (a pragma, so that no
 * file needs flags of its own) and defines
 *
 *   LOOPS, LOOPS_NAME   the struct bfk_loops to define, and its name
 *   XXH_VECTOR          what XXH3 is compiled for; its results don't depend on it
 *   VEC, VLOAD, VSTREAM vector type; unaligned load, aligned non-temporal store; without VEC,
 *                       non-temporal stores are plain ones
 *
 * Plain copies are libc's: its memcpy has been measured at least as fast for every size from 2 KiB
 * on, whatever loop stood here.  What it can't do is store around the cache for sizes below its own
 * limit, which depends on the machine's caches, not on who reads the data next.
 */
#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>
#include <string.h>
#include "bfk.h"

static void loops_copy(void *dst, const void *src, size_t n) { memcpy(dst, src, n); }

#ifdef VEC
#define STREAMS true
static void loops_stream(void *dst, const void *src, size_t n)
{
	enum { LINE = 64, AHEAD = 512, PER_LINE = LINE / sizeof(VEC) };
	char *d = dst;
	const char *s = src;
	size_t head = -(uintptr_t)d & (LINE - 1);
	if (head > n) head = n;
	memcpy(d, s, head);
	d += head, s += head, n -= head;
	for (; n >= 2 * LINE; d += 2 * LINE, s += 2 * LINE, n -= 2 * LINE) {
		VEC v[2 * PER_LINE];
		/* may point behind the source: a prefetch doesn't fault */
		_mm_prefetch((const char *)((uintptr_t)s + AHEAD), _MM_HINT_T0);
		_mm_prefetch((const char *)((uintptr_t)s + AHEAD + LINE), _MM_HINT_T0);
#pragma GCC unroll 8
		for (unsigned i = 0; i < 2 * PER_LINE; i++) v[i] = VLOAD(s + i * sizeof(VEC));
#pragma GCC unroll 8
		for (unsigned i = 0; i < 2 * PER_LINE; i++) VSTREAM(d + i * sizeof(VEC), v[i]);
	}
	for (; n >= LINE; d += LINE, s += LINE, n -= LINE)
		for (unsigned i = 0; i < PER_LINE; i++) VSTREAM(d + i * sizeof(VEC), VLOAD(s + i * sizeof(VEC)));
	memcpy(d, s, n);
}
#else
#define STREAMS false
static void loops_stream(void *dst, const void *src, size_t n) { memcpy(dst, src, n); }
#endif

static uint64_t loops_sum(const void *p, size_t n) { return XXH3_64bits(p, n); }
static uint64_t loops_sum_seeded(const void *p, size_t n, uint64_t seed) { return XXH3_64bits_withSeed(p, n, seed); }
_Static_assert(sizeof(XXH3_state_t) <= BFK_SUM_STATE, "room for a checksum's state");
static void loops_sum_begin(void *state) { XXH3_64bits_reset(state); }
static void loops_sum_add(void *state, const void *p, size_t n) { XXH3_64bits_update(state, p, n); }
static uint64_t loops_sum_end(void *state) { return XXH3_64bits_digest(state); }

const struct bfk_loops LOOPS = {
	.name = LOOPS_NAME, .copy = loops_copy, .stream = loops_stream, .streams = STREAMS, .sum = loops_sum, .sum_seeded = loops_sum_seeded,
	.sum_begin = loops_sum_begin, .sum_add = loops_sum_add, .sum_end = loops_sum_end,
};
