/* Random jobs for the CPU copies and the GPU's code on the CPU.  Every side is an allocation of
 * its own, of exactly the bytes that may be touched, so that AddressSanitizer sees one byte more.
 *
 *   t_copies            everything
 *   t_copies threads    threads alone (ThreadSanitizer)
 *   t_copies crooked    differently aligned addresses alone */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bfk.h"

#define BFK_LOAD(T, address) (*(const T *)(uintptr_t)(address))
#define BFK_STORE(T, address, value) (*(T *)(uintptr_t)(address) = (value))
#pragma GCC diagnostic ignored "-Wunused-function"
#include "transfer.h"

#define CHECK(x)                                                                       \
	do {                                                                           \
		if (!(x)) {                                                            \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);        \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static __thread uint64_t seed = 1;
static uint64_t below(uint64_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}
static uint64_t address(const void *p) { return (uintptr_t)p; }
static char *random_bytes(size_t n)
{
	char *p = malloc(n ? n : 1);
	for (size_t i = 0; i < n; i++) p[i] = (char)below(256);
	return p;
}

enum { PIECES = 40, UNIT = 4096 };

struct job {
	size_t nbytes, npieces;
	char *pool, *side[PIECES];
	struct bfk_piece piece[PIECES];
};

static void make(struct job *j, size_t longest)
{
	size_t lengths[PIECES], at = 0;
	j->npieces = 1 + below(PIECES);
	j->nbytes = 0;
	for (size_t i = 0; i < j->npieces; i++) j->nbytes += lengths[i] = below(longest);
	j->pool = random_bytes(j->nbytes);
	for (size_t i = 0; i < j->npieces; at += lengths[i++]) {
		j->side[i] = random_bytes(lengths[i]);
		j->piece[i] = (struct bfk_piece){address(j->side[i]), address(j->pool + at), lengths[i]};
	}
}
static bool same(const struct job *j)
{
	for (size_t i = 0; i < j->npieces; i++)
		if (memcmp(j->side[i], (void *)(uintptr_t)j->piece[i].pool, j->piece[i].nbytes)) return false;
	return true;
}
static void drop(struct job *j)
{
	for (size_t i = 0; i < j->npieces; i++) free(j->side[i]);
	free(j->pool);
}

/* gather, and scatter into other contents, by every instruction set and both kinds of stores */
static void copies(size_t longest, unsigned threads)
{
	struct job j;
	make(&j, longest);
	size_t nsums = (j.nbytes + UNIT - 1) / UNIT;
	uint64_t *sums = malloc(8 * nsums + 1), *alone = malloc(8 * nsums + 1);
	struct bfk_block block = {address(j.pool), j.nbytes, j.piece, j.npieces, sums};
	unsigned kind = below(2) ? BFK_STREAM : BFK_CACHED;
	uint64_t unit = below(2) ? UNIT : 0;
	CHECK(!bfk_move(&block, 1, unit, BFK_TO_POOL | kind, threads));
	CHECK(same(&j));
	CHECK(!bfk_sum(j.pool, j.nbytes, UNIT, alone));
	if (unit) CHECK(!memcmp(sums, alone, 8 * nsums));
	for (size_t i = 0; i < j.nbytes; i++) j.pool[i] ^= 0x55;
	if (j.nbytes) CHECK(!same(&j));
	CHECK(!bfk_move(&block, 1, unit, kind | (below(2) ? BFK_FRESH : 0), threads));
	CHECK(same(&j));
	CHECK(bfk_move(&block, 1, 100, 0, 1) == -EINVAL);
	block.nbytes++;
	CHECK(bfk_move(&block, 1, 0, 0, 1) == -EINVAL);
	free(sums), free(alone);
	drop(&j);
}

static void device_list(void)
{
	struct job j;
	uint64_t wide, narrow, tile = 16 * (1 + below(40)), longest = 0;
	make(&j, 3000);
	for (size_t i = 0; i < j.npieces; i++)
		if (j.piece[i].nbytes > longest) longest = j.piece[i].nbytes;
	CHECK(!bfk_twin_pieces(j.piece, j.npieces, (longest + tile - 1) / tile, tile, 1, 1 + below(9), below(2) ? 32 : 3, &wide, &narrow));
	CHECK(same(&j));
	drop(&j);
}

/* a cache of rows that lie apart, two pages to a block, expanded and run by the device's code */
static void device_paged(void)
{
	uint32_t rows = 1 + (uint32_t)below(5), row = 1 + (uint32_t)below(300), pitch = row + (uint32_t)below(20);
	uint32_t npages = 4, ids[4] = {2, 0, 3, 1};
	size_t page = (size_t)(rows - 1) * pitch + row, block_bytes = 2ul * rows * row;
	char *engine = random_bytes(page * npages), *pool = random_bytes(2 * block_bytes), *want = random_bytes(2 * block_bytes);
	struct bfk_part part = {address(engine), page, pitch, 0, (uint64_t)rows * row, rows, row};
	uint64_t blocks[2] = {address(pool), address(pool) + block_bytes}, counts[2], bad, wide, narrow;
	struct bfk_piece pieces[20];
	for (uint32_t p = 0; p < 4; p++)
		for (uint32_t r = 0; r < rows; r++) memcpy(want + (p * rows + r) * (size_t)row, engine + ids[p] * page + r * pitch, row);
	CHECK(!bfk_twin_paged(&part, 1, ids, 2, blocks, 2, rows, (row + 63) / 64, 64, 1, 3, 32, &wide, &narrow));
	CHECK(!memcmp(pool, want, 2 * block_bytes));
	int64_t n = bfk_expand(&part, 1, ids, 2, npages, blocks, 2, pieces, counts, &bad);
	CHECK(n > 0 && (uint64_t)n == counts[0] + counts[1]);
	memset(pool, 0, 2 * block_bytes);
	struct bfk_block list[2] = {{blocks[0], block_bytes, pieces, counts[0], NULL}, {blocks[1], block_bytes, pieces + counts[0], counts[1], NULL}};
	CHECK(!bfk_move(list, 2, 0, BFK_TO_POOL, 2));
	CHECK(!memcmp(pool, want, 2 * block_bytes));
	ids[3] = npages;
	CHECK(bfk_expand(&part, 1, ids, 2, npages, blocks, 2, pieces, counts, &bad) == -EINVAL && bad == 3);
	free(engine), free(pool), free(want);
}

static void crooked(void)
{
	char *from = random_bytes(256), to[256];
	uint64_t wide, narrow;
	for (size_t shift = 0; shift < 32; shift++) {
		struct bfk_piece piece = {address(from + shift), address(to), 200};
		CHECK(!bfk_twin_pieces(&piece, 1, 4, 64, 1, 2, 32, &wide, &narrow));
		CHECK(!memcmp(from + shift, to, 200));
	}
	free(from);
}

static void *many(void *arg)
{
	seed = (uint64_t)(uintptr_t)arg;
	for (int i = 0; i < 60; i++) copies(40000, 4);
	return NULL;
}

/* several callers with jobs of several threads each */
static void threads(void)
{
	pthread_t thread[3];
	for (uintptr_t i = 0; i < 3; i++) CHECK(!pthread_create(&thread[i], NULL, many, (void *)(i + 1)));
	for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";
	if (!*only || !strcmp(only, "crooked")) crooked();
	if (!*only)
		for (const char *const *isa = bfk_isas(); *isa; isa++) {
			CHECK(!bfk_set_isa(*isa));
			for (int i = 0; i < 150; i++) copies(i % 2 ? 300 : 9000, 1 + i % 3);
			printf("%s: ok\n", *isa);
		}
	if (!*only)
		for (int i = 0; i < 200; i++) device_list(), device_paged();
	if (!*only || !strcmp(only, "threads")) threads();
	printf("kernels: ok\n");
	return 0;
}
