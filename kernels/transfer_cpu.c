/* transfer.h on the CPU: the twin of the GPU's kernels, and page tables to pieces.
 *
 * The twin is for tests: it runs the workers and lanes of a grid one after the other, and refuses
 * an access that isn't aligned to its size, on which a GPU faults and an x86 doesn't. */
#include <errno.h>
#include <string.h>
#include "bfk.h"

static __thread uint64_t wide, narrow, crooked;

#define BFK_COUNT(T, address) \
	((address) % sizeof(T) ? (void)crooked++ : sizeof(T) == 16 ? (void)wide++ : (void)narrow++)
/* By memcpy: what is wrong is counted, not undefined. */
#define BFK_LOAD(T, address) ({ T v_; BFK_COUNT(T, address); memcpy(&v_, (const void *)(uintptr_t)(address), sizeof v_); v_; })
#define BFK_STORE(T, address, value) \
	({ T v_ = (value); if ((address) % sizeof(T)) crooked++; memcpy((void *)(uintptr_t)(address), &v_, sizeof v_); })
#include "transfer.h"

static void begin(void) { wide = narrow = crooked = 0; }
static int end(uint64_t *wide_out, uint64_t *narrow_out)
{
	*wide_out = wide, *narrow_out = narrow;
	return crooked ? -EFAULT : 0;
}

int bfk_twin_pieces(const struct bfk_piece *pieces, uint64_t npieces, uint64_t tiles, uint64_t tile_bytes,
		    int to_pool, uint64_t workers, uint32_t lanes, uint64_t *wide_out, uint64_t *narrow_out)
{
	begin();
	for (uint64_t worker = 0; worker < workers; worker++)
		for (uint32_t lane = 0; lane < lanes; lane++)
			bfk_run_pieces(pieces, npieces, tiles, tile_bytes, to_pool, worker, workers, lane, lanes);
	return end(wide_out, narrow_out);
}

int bfk_twin_paged(const struct bfk_part *parts, uint32_t nparts, const uint32_t *pages, uint32_t pages_per_block,
		   const uint64_t *blocks, uint64_t nblocks, uint32_t rows_max, uint32_t tiles_max,
		   uint64_t tile_bytes, int to_pool, uint64_t workers, uint32_t lanes, uint64_t *wide_out,
		   uint64_t *narrow_out)
{
	begin();
	for (uint64_t worker = 0; worker < workers; worker++)
		for (uint32_t lane = 0; lane < lanes; lane++)
			bfk_run_paged(parts, nparts, pages, pages_per_block, (const bfk_u64 *)blocks, nblocks,
				      rows_max, tiles_max, tile_bytes, to_pool, worker, workers, lane, lanes);
	return end(wide_out, narrow_out);
}

int64_t bfk_expand(const struct bfk_part *parts, uint32_t nparts, const uint32_t *pages, uint32_t pages_per_block,
		   uint64_t npages, const uint64_t *blocks, uint64_t nblocks, struct bfk_piece *pieces,
		   uint64_t *counts, uint64_t *bad)
{
	for (uint64_t i = 0; i < nblocks * pages_per_block; i++)
		if (pages[i] >= npages) {
			*bad = i;
			return -EINVAL;
		}
	struct bfk_piece *out = pieces;
	for (uint64_t block = 0; block < nblocks; block++) {
		struct bfk_piece *first = out;
		for (uint32_t p = 0; p < nparts; p++)
			for (uint32_t page = 0; page < pages_per_block; page++)
				for (uint32_t row = 0; row < parts[p].rows; row++) {
					struct bfk_piece piece = bfk_locate(&parts[p], pages, pages_per_block,
									    (const bfk_u64 *)blocks, block, page, row);
					if (out > first && out[-1].engine + out[-1].nbytes == piece.engine &&
					    out[-1].pool + out[-1].nbytes == piece.pool)
						out[-1].nbytes += piece.nbytes;
					else
						*out++ = piece;
				}
		counts[block] = (uint64_t)(out - first);
	}
	return out - pieces;
}
