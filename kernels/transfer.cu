/* The GPU's entry points; what they do is in transfer.h.
 *
 * A warp is a worker: 32 lanes with 16 bytes each are 512 bytes an access, and 2 KiB in flight.
 * Names tell a profiler the direction.  What a kernel wrote to the pool is visible to others
 * once its stream has passed it: an event or a synchronisation, not a fence in here.
 */
#include "transfer.h"

#define BFK_WARP 32u
#define BFK_WORKER ((blockIdx.x * (bfk_u64)blockDim.x + threadIdx.x) / BFK_WARP)
#define BFK_WORKERS ((gridDim.x * (bfk_u64)blockDim.x) / BFK_WARP)
#define BFK_LANE (threadIdx.x % BFK_WARP)

#define BFK_PIECES(name, to_pool)                                                                        \
	extern "C" __global__ void name(const bfk_piece *pieces, bfk_u64 npieces, bfk_u64 tiles,         \
					bfk_u64 tile_bytes)                                              \
	{                                                                                                \
		bfk_run_pieces(pieces, npieces, tiles, tile_bytes, to_pool, BFK_WORKER, BFK_WORKERS,     \
			       BFK_LANE, BFK_WARP);                                                      \
	}

#define BFK_PAGED(name, to_pool)                                                                         \
	extern "C" __global__ void name(const bfk_part *parts, bfk_u32 nparts, const bfk_u32 *pages,     \
					bfk_u32 pages_per_block, const bfk_u64 *blocks, bfk_u64 nblocks, \
					bfk_u32 rows_max, bfk_u32 tiles_max, bfk_u64 tile_bytes)         \
	{                                                                                                \
		bfk_run_paged(parts, nparts, pages, pages_per_block, blocks, nblocks, rows_max,          \
			      tiles_max, tile_bytes, to_pool, BFK_WORKER, BFK_WORKERS, BFK_LANE,         \
			      BFK_WARP);                                                                 \
	}

BFK_PIECES(bfk_gather_write_pieces, 1)
BFK_PIECES(bfk_scatter_read_pieces, 0)
BFK_PAGED(bfk_gather_write_paged, 1)
BFK_PAGED(bfk_scatter_read_paged, 0)
