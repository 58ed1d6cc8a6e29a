/* CPU copies between an engine's memory and a pool: C interface of kernels/.
 *
 * Nothing here allocates, takes a lock on the copying path, or knows of pools: addresses are the
 * caller's, who has checked them and holds what they point to (a lease, a reservation).
 *
 *   loops.c       dispatch by cpuid; with copy_*.c also compiled into the core, for files' data
 *   copy.c        blocks of pieces; checksums
 *   copy_*.c      the loops for one instruction set, from copy_body.h
 *   workers.c     threads that wait for parts of a job
 *   guard.c       SIGBUS on the pool becomes -EIO
 *   transfer_cpu.c  the GPU's code on the CPU, for tests; page tables to pieces
 */
#ifndef BFK_H
#define BFK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same as in transfer.h, which says what they are. */
struct bfk_piece;
struct bfk_part;

/* A block: nbytes of the pool from `pool` on, and the pieces that it consists of, in the order of
 * the pool and without gaps.  With sums: one word for each started sum_bytes of the block. */
struct bfk_block {
	uint64_t pool, nbytes;
	const struct bfk_piece *pieces;
	uint64_t npieces;
	uint64_t *sums;
};

enum {
	BFK_TO_POOL = 1,  /* gather: engine to pool.  Without: scatter. */
	BFK_STREAM = 2,   /* non-temporal stores; to the pool: what they can't cover is written back, all is in memory on return */
	BFK_CACHED = 4,   /* plain stores.  Without either, the size decides: bfk_stream_min() */
	BFK_FRESH = 8,    /* the pool's lines are dropped from the cache before they are read (incoherent pools) */
};

/* Copies all blocks, by `threads` threads (0: as many as the size is worth).  sum_bytes: unit of
 * the checksums (multiple of 64; the pool's chunk_bytes), or 0 for none.  The checksum is XXH3 of
 * 64 bits, seed 0, with 0 stored as 1, as the pool stores it.  Returns 0; -EINVAL when pieces
 * don't make up their block; -EIO when memory failed (with bfk_guard_install()): some was copied. */
int bfk_move(const struct bfk_block *blocks, size_t nblocks, uint64_t sum_bytes, unsigned flags, unsigned threads);

/* Checksums alone, of what is in place: verification of a view. */
int bfk_sum(const void *p, uint64_t nbytes, uint64_t sum_bytes, uint64_t *sums);

/* One plain copy by one thread with the loops in use; for measuring beside memcpy. */
void bfk_copy(void *dst, const void *src, size_t n, bool stream);
/* `rep movsb` on x86-64, memcpy elsewhere: another candidate for the best memcpy of a machine. */
void bfk_copy_string(void *dst, const void *src, size_t n);

/* Instruction sets that this processor has, best first, ended by NULL; the one in use; choosing
 * another (tests): 0, or -EINVAL when the processor lacks it. */
const char *const *bfk_isas(void);
const char *bfk_isa(void);
int bfk_set_isa(const char *name);

/* Jobs of at least this many bytes use non-temporal stores, if neither flag says. */
uint64_t bfk_stream_min(void);
void bfk_set_stream_min(uint64_t nbytes);

/* From then on a SIGBUS or SIGSEGV inside a copy of this library makes the call return -EIO;
 * others go to the handler that was there before. */
void bfk_guard_install(void);

/* Expands blocks of a paged cache into pieces, in the order of the pool, adjacent ones merged.
 * Returns their number, at most nblocks * pages_per_block * sum of rows; counts[b] is that of
 * block b.  -EINVAL: a page number is not below npages; *bad is its index. */
int64_t bfk_expand(const struct bfk_part *parts, uint32_t nparts, const uint32_t *pages, uint32_t pages_per_block,
		   uint64_t npages, const uint64_t *blocks, uint64_t nblocks, struct bfk_piece *pieces,
		   uint64_t *counts, uint64_t *bad);

/* The GPU's kernels on the CPU: a grid of `workers` warps of `lanes`, one after the other.  Returns
 * 0, or -EFAULT when an access was not aligned to its size, which faults on a GPU; *wide and
 * *narrow count loads of 16 bytes and of fewer. */
int bfk_twin_pieces(const struct bfk_piece *pieces, uint64_t npieces, uint64_t tiles, uint64_t tile_bytes,
		    int to_pool, uint64_t workers, uint32_t lanes, uint64_t *wide, uint64_t *narrow);
int bfk_twin_paged(const struct bfk_part *parts, uint32_t nparts, const uint32_t *pages, uint32_t pages_per_block,
		   const uint64_t *blocks, uint64_t nblocks, uint32_t rows_max, uint32_t tiles_max,
		   uint64_t tile_bytes, int to_pool, uint64_t workers, uint32_t lanes, uint64_t *wide,
		   uint64_t *narrow);

/* ---- between the files of this library ---- */

/* One instruction set.  A checksum is fed while what it covers is in the first-level cache. */
struct bfk_loops {
	const char *name;
	void (*copy)(void *dst, const void *src, size_t n);
	/* Whole lines of dst around the cache, weakly ordered (a fence is the caller's); what lies before
	 * and behind them plainly.  Without `streams`: all of it plainly. */
	void (*stream)(void *dst, const void *src, size_t n);
	bool streams;
	uint64_t (*sum)(const void *p, size_t n);
	uint64_t (*sum_seeded)(const void *p, size_t n, uint64_t seed);
	void (*sum_begin)(void *state);
	void (*sum_add)(void *state, const void *p, size_t n);
	uint64_t (*sum_end)(void *state);
};
#define BFK_SUM_STATE 640 /* bytes, aligned to 64 */
extern const struct bfk_loops bfk_loops_portable;
#if defined(__x86_64__)
extern const struct bfk_loops bfk_loops_avx2, bfk_loops_avx512;
#endif
const struct bfk_loops *bfk_loops(void);

/* Calls run(arg, part) for every part below `parts`, by up to `threads` threads, this one among
 * them; returns when all are done: 0 or the first error. */
int bfk_workers_run(int (*run)(void *arg, uint64_t part), void *arg, uint64_t parts, unsigned threads);

/* run(arg, part) with SIGBUS turned into -EIO. */
int bfk_guarded(int (*run)(void *arg, uint64_t part), void *arg, uint64_t part);

#endif
