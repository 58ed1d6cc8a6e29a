/* Index arithmetic and copy loops of the transfer kernels: ONE source for GPU and CPU.
 *
 * nvcc and NVRTC (CuPy's RawModule) compile it into transfer.cu; gcc compiles it into
 * transfer_cpu.c, where the tests hold it against a numpy reference for random geometries.
 * So nothing here may include a header (NVRTC has none), synchronise threads, or rely on how
 * many run at once: a warp's lanes are independent of each other, and running them one after
 * the other is the same.
 *
 * Two sides: the *engine* (pages of its KV cache, scattered) and the *pool* (blocks, each of
 * them contiguous).  gather-write copies engine to pool, scatter-read pool to engine.  All
 * addresses are 64-bit integers of memory that the one who copies can reach.
 */
#ifndef BFK_TRANSFER_H
#define BFK_TRANSFER_H

typedef unsigned int bfk_u32;
typedef unsigned long long bfk_u64;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define BFK_FN static __device__ __forceinline__
typedef uint4 bfk_v16;
typedef unsigned long long bfk_v8;
typedef unsigned int bfk_v4;
typedef unsigned short bfk_v2;
typedef unsigned char bfk_v1;
/* Touched once: evict first, so that a copy leaves the model's data in L2. */
#define BFK_LOAD(T, address) __ldcs((const T *)(address))
#define BFK_STORE(T, address, value) __stcs((T *)(address), (value))
#else
#define BFK_FN static inline
typedef struct { bfk_u64 low, high; } bfk_v16;
typedef bfk_u64 bfk_v8;
typedef bfk_u32 bfk_v4;
typedef unsigned short bfk_v2;
typedef unsigned char bfk_v1;
/* transfer_cpu.c counts accesses, and refuses those that a GPU would fault on. */
#ifndef BFK_LOAD
#error "on a CPU the includer defines BFK_LOAD and BFK_STORE"
#endif
#endif

/* A piece: nbytes that are contiguous on both sides. */
struct bfk_piece {
	bfk_u64 engine, pool;
	bfk_u64 nbytes;
};

/* A part: what one (layer, K or V) puts into a block.  Of page p it is `rows` rows of
 * `row_bytes`, `row_pitch` apart, the first at engine + p * page_stride.  In the block those rows lie
 * one behind the other, from pool_offset on; those of a block's next page pool_page_stride further. */
struct bfk_part {
	bfk_u64 engine, page_stride, row_pitch;
	bfk_u64 pool_offset, pool_page_stride;
	bfk_u32 rows, row_bytes;
};

/* Lane `lane` of `lanes` copies its share of n units.  Four loads are in flight before the
 * first store: the latency of a load over PCIe is what a copy waits for. */
#define BFK_COPY_UNITS(T)                                                              \
	{                                                                              \
		bfk_u64 i = lane, step = lanes;                                        \
		for (; i + 3 * step < n; i += 4 * step) {                              \
			T a = BFK_LOAD(T, src + i * sizeof(T));                        \
			T b = BFK_LOAD(T, src + (i + step) * sizeof(T));               \
			T c = BFK_LOAD(T, src + (i + 2 * step) * sizeof(T));           \
			T d = BFK_LOAD(T, src + (i + 3 * step) * sizeof(T));           \
			BFK_STORE(T, dst + i * sizeof(T), a);                          \
			BFK_STORE(T, dst + (i + step) * sizeof(T), b);                 \
			BFK_STORE(T, dst + (i + 2 * step) * sizeof(T), c);             \
			BFK_STORE(T, dst + (i + 3 * step) * sizeof(T), d);             \
		}                                                                      \
		for (; i < n; i += step) {                                             \
			T a = BFK_LOAD(T, src + i * sizeof(T));                        \
			BFK_STORE(T, dst + i * sizeof(T), a);                          \
		}                                                                      \
	}

BFK_FN void bfk_units16(bfk_u64 dst, bfk_u64 src, bfk_u64 n, bfk_u32 lane, bfk_u32 lanes) BFK_COPY_UNITS(bfk_v16)
BFK_FN void bfk_units8(bfk_u64 dst, bfk_u64 src, bfk_u64 n, bfk_u32 lane, bfk_u32 lanes) BFK_COPY_UNITS(bfk_v8)
BFK_FN void bfk_units4(bfk_u64 dst, bfk_u64 src, bfk_u64 n, bfk_u32 lane, bfk_u32 lanes) BFK_COPY_UNITS(bfk_v4)
BFK_FN void bfk_units2(bfk_u64 dst, bfk_u64 src, bfk_u64 n, bfk_u32 lane, bfk_u32 lanes) BFK_COPY_UNITS(bfk_v2)
BFK_FN void bfk_units1(bfk_u64 dst, bfk_u64 src, bfk_u64 n, bfk_u32 lane, bfk_u32 lanes) BFK_COPY_UNITS(bfk_v1)

/* Bytes of the widest access for two addresses whose difference is `apart` modulo 16. */
#ifndef BFK_UNIT
#define BFK_UNIT(apart) ((apart) == 0 ? 16 : (apart) & 1 ? 1 : (apart) & 2 ? 2 : (apart) & 4 ? 4 : 8)
#endif

/* nbytes from src to dst, by all lanes together.  The widest unit that both addresses can be
 * brought to: 16 bytes where they agree modulo 16, which is every cache that a framework
 * allocated; what lies before the first and after the last whole unit goes byte by byte. */
BFK_FN void bfk_copy_span(bfk_u64 dst, bfk_u64 src, bfk_u64 nbytes, bfk_u32 lane, bfk_u32 lanes)
{
	bfk_u64 apart = (dst ^ src) & 15;
	bfk_u32 unit = BFK_UNIT(apart);
	bfk_u64 head = (0 - dst) & (unit - 1);
	if (head > nbytes) head = nbytes;
	bfk_u64 units = (nbytes - head) / unit;
	bfk_u64 tail = nbytes - head - units * unit;
	bfk_units1(dst, src, head, lane, lanes);
	dst += head, src += head;
	if (unit == 16) bfk_units16(dst, src, units, lane, lanes);
	else if (unit == 8) bfk_units8(dst, src, units, lane, lanes);
	else if (unit == 4) bfk_units4(dst, src, units, lane, lanes);
	else if (unit == 2) bfk_units2(dst, src, units, lane, lanes);
	else bfk_units1(dst, src, units, lane, lanes);
	bfk_units1(dst + units * unit, src + units * unit, tail, lane, lanes);
}

/* Tile `tile` of a contiguous range of nbytes; 0 bytes when it is past the end. */
BFK_FN bfk_u64 bfk_tile(bfk_u64 nbytes, bfk_u64 tile, bfk_u64 tile_bytes, bfk_u64 *start)
{
	*start = tile * tile_bytes;
	if (*start >= nbytes) return 0;
	return nbytes - *start < tile_bytes ? nbytes - *start : tile_bytes;
}

/* Where row `row` of part `part` of page `page` of block `block` lies on both sides.  `pages`
 * holds pages_per_block page numbers for each block, `blocks` the pool address of each. */
BFK_FN struct bfk_piece bfk_locate(const struct bfk_part *part, const bfk_u32 *pages, bfk_u32 pages_per_block,
				   const bfk_u64 *blocks, bfk_u64 block, bfk_u32 page, bfk_u32 row)
{
	struct bfk_piece piece;
	bfk_u64 number = pages[block * pages_per_block + page];
	piece.engine = part->engine + number * part->page_stride + row * part->row_pitch;
	piece.pool = blocks[block] + part->pool_offset + page * part->pool_page_stride + (bfk_u64)row * part->row_bytes;
	piece.nbytes = part->row_bytes;
	return piece;
}

/* Work is cut into items, of one tile each; the `workers` (warps) take them in turn.  Items are
 * numbered so that the pool is written and read in order. */

/* A list: `tiles` is the number of tiles of its longest piece. */
BFK_FN void bfk_run_pieces(const struct bfk_piece *pieces, bfk_u64 npieces, bfk_u64 tiles, bfk_u64 tile_bytes,
			   int to_pool, bfk_u64 worker, bfk_u64 workers, bfk_u32 lane, bfk_u32 lanes)
{
	for (bfk_u64 item = worker; item < npieces * tiles; item += workers) {
		const struct bfk_piece *piece = &pieces[item / tiles];
		bfk_u64 at, n = bfk_tile(piece->nbytes, item % tiles, tile_bytes, &at);
		bfk_u64 engine = piece->engine + at, pool = piece->pool + at;
		if (n) bfk_copy_span(to_pool ? pool : engine, to_pool ? engine : pool, n, lane, lanes);
	}
}

/* Blocks of a paged cache: rows_max rows and tiles_max tiles a row, of the parts that have most. */
BFK_FN void bfk_run_paged(const struct bfk_part *parts, bfk_u32 nparts, const bfk_u32 *pages, bfk_u32 pages_per_block,
			  const bfk_u64 *blocks, bfk_u64 nblocks, bfk_u32 rows_max, bfk_u32 tiles_max,
			  bfk_u64 tile_bytes, int to_pool, bfk_u64 worker, bfk_u64 workers, bfk_u32 lane,
			  bfk_u32 lanes)
{
	bfk_u64 items = nblocks * nparts * pages_per_block * rows_max * tiles_max;
	for (bfk_u64 item = worker; item < items; item += workers) {
		bfk_u64 rest = item;
		bfk_u32 tile = (bfk_u32)(rest % tiles_max);
		rest /= tiles_max;
		bfk_u32 row = (bfk_u32)(rest % rows_max);
		rest /= rows_max;
		bfk_u32 page = (bfk_u32)(rest % pages_per_block);
		rest /= pages_per_block;
		const struct bfk_part *part = &parts[rest % nparts];
		if (row >= part->rows) continue;
		struct bfk_piece piece = bfk_locate(part, pages, pages_per_block, blocks, rest / nparts, page, row);
		bfk_u64 at, n = bfk_tile(piece.nbytes, tile, tile_bytes, &at);
		bfk_u64 engine = piece.engine + at, pool = piece.pool + at;
		if (n) bfk_copy_span(to_pool ? pool : engine, to_pool ? engine : pool, n, lane, lanes);
	}
}

#endif
