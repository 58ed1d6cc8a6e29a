/* The verbs on real memory: copies at every alignment, with every set of loops that this processor
 * has, touch what they are asked to and nothing else; the sum made beside a copy is that of the
 * bytes; memory that isn't there is an error and not a signal. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include "bfk.h"
#include "mem.h"

enum { ROOM = 300 << 10, EDGE = 256 };
static int bad;
static u8 *src, *dst, *want;

static void fail(const char *what, const char *isa, const char *memory, size_t n, size_t from, size_t to)
{
	bad++;
	printf("FAIL %s: %s, %s, %zu bytes from +%zu to +%zu\n", what, isa, memory, n, from, to);
}

static u64 next(u64 *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static void one(const struct bfs_mem_ops *ops, size_t n, size_t from, size_t to)
{
	struct bfs_mem m = {.ops = ops, .base = dst, .size = ROOM};
	u64 sum = 0, right = XXH3_64bits(src + from, n);
	for (int summed = 0; summed < 2; summed++) {
		memset(dst, 0xEE, n + to + EDGE);
		memset(want, 0xEE, n + to + EDGE);
		memcpy(want + to, src + from, n);
		int rc = summed ? ops->copy_in_sum(&m, dst + to, src + from, n, &sum) : ops->copy_in(&m, dst + to, src + from, n);
		ops->fence(&m);
		if (rc || memcmp(dst, want, n + to + EDGE)) fail(summed ? "copy with sum" : "copy", bfk_isa(), ops->name, n, from, to);
	}
	/* an older pool was made with other registers */
	bool same = bfs_xxh(src + from, n, n * 77 + 1) == XXH3_64bits_withSeed(src + from, n, n * 77 + 1);
	if (sum != right || bfs_sum(src + from, n) != right || !same) fail("sum", bfk_isa(), ops->name, n, from, to);
}

static void missing(const struct bfs_mem_ops *ops)
{
	long page = sysconf(_SC_PAGESIZE);
	int fd = memfd_create("t_verbs", MFD_CLOEXEC);
	u64 sum;
	if (fd < 0 || ftruncate(fd, page)) exit(2);
	u8 *p = mmap(NULL, 64 * (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct bfs_mem m = {.ops = ops, .base = p, .size = 64 * (size_t)page};
	if (ops->copy_in_sum(&m, p, src, 64 * (size_t)page, &sum) != -EIO || ops->copy_in(&m, p, src, 64 * (size_t)page) != -EIO || ops->zero(&m, p, 64 * (size_t)page) != -EIO ||
	    ops->copy_out(&m, dst, p, 64 * (size_t)page) != -EIO || bfs_guarded_sum(p, 64 * (size_t)page, &sum) != -EIO)
		bad++, printf("FAIL a file that is too short: %s, %s\n", bfk_isa(), ops->name);
	if (ops->copy_in_sum(&m, p, src, (size_t)page, &sum) || sum != XXH3_64bits(src, (size_t)page)) bad++, printf("FAIL a copy after the fault: %s, %s\n", bfk_isa(), ops->name);
	munmap(p, 64 * (size_t)page);
	close(fd);
}

int main(void)
{
	const struct bfs_mem_ops *memories[] = {&bfs_ops_coherent, &bfs_ops_incoherent};
	u64 x = 0x9E3779B97F4A7C15ull, runs = 0;
	bfs_guard_install();
	src = aligned_alloc(4096, ROOM), dst = aligned_alloc(4096, ROOM), want = aligned_alloc(4096, ROOM);
	if (!src || !dst || !want) return 2;
	for (size_t i = 0; i < ROOM; i++) src[i] = (u8)next(&x);
	for (const char *const *isa = bfk_isas(); *isa; isa++) {
		if (bfk_set_isa(*isa)) return 2;
		for (int k = 0; k < 2; k++) {
			for (size_t n = 0; n < 600; n += n < 200 ? 1 : 37)
				for (size_t at = 0; at < 64; at += 7) one(memories[k], n, at, (at * 5) % 64), runs++;
			for (int i = 0; i < 300; i++, runs++) {
				size_t n = next(&x) % (ROOM - 4096), from = next(&x) % 256, to = i % 3 ? next(&x) % 256 : 0;
				one(memories[k], i % 5 ? n : 256 << 10, from, to);
			}
			missing(memories[k]);
		}
	}
	printf("%llu copies, %d failed\n", (unsigned long long)runs, bad);
	free(src), free(dst), free(want);
	return bad != 0;
}
