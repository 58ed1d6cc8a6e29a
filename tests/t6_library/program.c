/* What an engine in C does: it uses the public header alone.  Prints what test_c_library.py compares. */
#include <belugafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEY_BYTES 32

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const char *what, int rc)
{
	fprintf(stderr, "%s: %d: %s\n", what, rc, bfc_error());
	return 1;
}

/* Blocks stored in place, then one that is copied, then one that is deleted. */
static int store(bfc *pool, int n, unsigned char *keys)
{
	uint64_t ns = 0, reservation = 0;
	const size_t size = 300000;
	struct bfc_new *room = (struct bfc_new *)calloc((size_t)n, sizeof *room);
	int32_t *error = (int32_t *)calloc((size_t)n, sizeof *error);
	const void **data = (const void **)calloc((size_t)n, sizeof *data);
	size_t *sizes = (size_t *)calloc((size_t)n, sizeof *sizes);
	int rc;
	if ((rc = bfc_namespace_create(pool, "made", &ns))) return fail("namespace_create", rc);
	if ((rc = bfc_reserve(pool, ns, n, size, room, &reservation))) return fail("reserve", rc);
	for (int i = 0; i < n; i++) {
		memset(room[i].addr, 'a' + i, size);
		if (i == 1) room[i].filled_bytes = 5;                    /* then zeros */
		if (i == 2) room[i].size_bytes = room[i].filled_bytes = 7; /* a smaller block */
	}
	printf("committed %d\n", bfc_commit(pool, reservation, keys, KEY_BYTES, n - 1, room));
	rc = bfc_commit(pool, reservation, keys, KEY_BYTES, 1, room + n - 1);
	printf("again %d %d\n", rc, room[n - 1].error);
	if ((rc = bfc_drop(pool, reservation))) return fail("drop", rc);
	for (int i = 0; i < n; i++) data[i] = "some bytes", sizes[i] = 4 + (size_t)i;
	printf("put %d", bfc_put(pool, ns, keys, KEY_BYTES, n, data, sizes, error));
	for (int i = 0; i < n; i++) printf(" %d", error[i]);
	printf("\npinned %d\n", bfc_pin(pool, ns, keys, KEY_BYTES, n, BFC_PIN_HARD, error));
	printf("unpinned %d\n", bfc_pin(pool, ns, keys, KEY_BYTES, n, BFC_UNPIN, error));
	printf("deleted %d\n", bfc_delete(pool, ns, keys, KEY_BYTES, 1, error));
	free(room);
	free(error);
	free(data);
	free(sizes);
	return 0;
}

/* program SOCKET NAMESPACE COUNT: keys are the numbers from 0, eight bytes big endian, four times */
int main(int argc, char **argv)
{
	bfc *pool = NULL;
	uint64_t ns = 0, inode = 0;
	int n = argc > 3 ? atoi(argv[3]) : 0, rc;
	if (argc != 4 || n < 1) return 2;
	unsigned char *keys = (unsigned char *)malloc((size_t)n * KEY_BYTES), *present = (unsigned char *)malloc((size_t)n);
	struct bfc_block *block = (struct bfc_block *)calloc((size_t)n, sizeof *block);
	for (int i = 0; i < n; i++)
		for (int k = 0; k < KEY_BYTES; k++) keys[i * KEY_BYTES + k] = (unsigned char)((uint64_t)i >> (56 - k % 8 * 8));
	if ((rc = bfc_connect(argv[1], &pool))) return fail("connect", rc);
	if ((rc = bfc_namespace(pool, argv[2], &ns))) return fail("namespace", rc);
	if ((rc = bfc_lookup(pool, argv[2], &inode)) || inode != ns) return fail("lookup", rc);
	printf("match %d\n", bfc_match(pool, ns, keys, KEY_BYTES, n));
	printf("exists %d\n", bfc_exists(pool, ns, keys, KEY_BYTES, n, present));
	if ((rc = bfc_lease(pool, ns, keys, KEY_BYTES, n, block)) < 0) return fail("lease", rc);
	printf("leased %d\n", rc);
	for (int i = 0; i < n; i++) {
		uint64_t sum = 0;
		for (size_t k = 0; !block[i].error && k < block[i].size_bytes; k++) sum = sum * 31 + ((const unsigned char *)block[i].addr)[k];
		printf("block %d %d %llu %u %llu\n", i, block[i].error, (unsigned long long)block[i].size_bytes, block[i].flags & BFC_VERIFIED, (unsigned long long)sum);
	}
	if ((rc = bfc_release(pool, block, n))) return fail("release", rc);
	printf("get %zd\n", bfc_get(pool, ns, keys, KEY_BYTES, NULL, 0));
	printf("again %d\n", bfc_get(pool, ns, keys + (size_t)(n - 1) * KEY_BYTES, KEY_BYTES, NULL, 0) < 0);
	if (store(pool, n, keys)) return 1;
	double t0 = now();
	for (int i = 0; i < 100; i++) bfc_exists(pool, ns, keys, KEY_BYTES, n, present);
	fprintf(stderr, "%.0f look-ups a second\n", 100.0 * n / (now() - t0));
	bfc_close(pool);
	free(keys);
	free(present);
	free(block);
	return 0;
}
