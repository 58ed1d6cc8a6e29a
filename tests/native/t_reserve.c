/* Blocks that are reserved, filled in place and committed: what is there afterwards, and what becomes of the rest. */
#include "t_pool.h"

enum { KLEN = 32 };
static struct rng r;
static u64 ns;
static const u64 chunk = 256 << 10;

static void key_of(u64 k, u8 *key)
{
	for (int i = 0; i < KLEN / 8; i++) {
		u64 w = bfs_xxh(&k, 8, (u64)i);
		memcpy(key + 8 * i, &w, 8);
	}
}
static void fill(u8 *p, u64 k, u64 n)
{
	for (u64 i = 0; i < n; i++) p[i] = (u8)((k + 1) * 0x9E3779B97F4A7C15ull >> (8 * (i % 7)) ^ i >> 3);
}
static bool is(u64 k, u64 n)
{
	static u8 got[4 << 20], want[4 << 20];
	u8 key[KLEN];
	key_of(k, key);
	ssize_t rc = bfs_block_get(b, ns, key, KLEN, got, sizeof got);
	if (rc == -ENOENT) return false;
	CHECK(rc == (ssize_t)n, "block %llu: %s, %llu expected", (unsigned long long)k, text(rc), (unsigned long long)n);
	fill(want, k, n);
	CHECK(!memcmp(got, want, n), "block %llu has other bytes", (unsigned long long)k);
	return true;
}
static struct bfs_commit with(u32 index, u64 k, u64 filled, const u64 *sums)
{
	static u8 keys[4096][KLEN];
	static u32 at;
	u8 *key = keys[at++ % 4096];
	key_of(k, key);
	return (struct bfs_commit){.index = index, .key = key, .klen = KLEN, .filled_bytes = filled, .sums = sums};
}
static void start(u64 mib, u32 inodes)
{
	make_pool_rg(mib, inodes, 1024);
	OK(bfs_ns_create(b, "n", &ns));
}
static u64 used(void)
{
	struct bfs_stat s;
	OK(bfs_statfs(b, &s));
	return s.used_granules;
}

static void t_basic(void)
{
	u64 fh, off[20], sums[16], g = 600;
	struct bfs_commit c[20];
	start(64, 0);
	u64 before = used();
	OK(bfs_reserve_blocks(b, ns, 20, g * BFS_GRANULE, &fh, off));
	CHECK(used() == before + 20 * g, "%llu granules", (unsigned long long)(used() - before));
	memset(mem.base + off[0], 0xee, g * BFS_GRANULE); /* what is behind the filled part mustn't be seen */
	for (u64 i = 0; i < 10; i++) {
		u64 filled = i == 3 ? 0 : g * BFS_GRANULE - i * 5000 - (i > 0);
		fill(mem.base + off[i], i, filled);
		for (u64 k = 0, at = 0; at < filled; k++, at += chunk) sums[k] = fl_sum(mem.base + off[i] + at, filled - at < chunk ? filled - at : chunk);
		c[0] = with((u32)i, i, filled, i % 2 ? sums : NULL);
		OK(bfs_commit_blocks(b, fh, c, 1));
		OK(c[0].rc);
		CHECK(is(i, filled), "block %llu isn't there", (unsigned long long)i);
	}
	/* again, one too many, none such, too much, a key that exists, twice in a call, an impossible key */
	c[0] = with(3, 99, 5, NULL), c[1] = with(20, 99, 5, NULL), c[2] = with(11, 99, g * BFS_GRANULE + 1, NULL), c[3] = with(11, 5, 5, NULL);
	c[4] = with(12, 100, 5, NULL), c[5] = with(12, 101, 5, NULL), c[6] = with(13, 102, 5, NULL), c[7] = with(14, 100, 5, NULL);
	c[6].klen = 1;
	OK(bfs_commit_blocks(b, fh, c, 8));
	IS(c[0].rc, -EINVAL); IS(c[1].rc, -EINVAL); IS(c[2].rc, -EINVAL); IS(c[3].rc, -EEXIST);
	OK(c[4].rc); IS(c[5].rc, -EINVAL); IS(c[6].rc, -EINVAL); IS(c[7].rc, -EEXIST);
	/* that room is still reserved, and may become another one's */
	fill(mem.base + off[11], 11, 77);
	c[0] = with(11, 11, 77, NULL);
	OK(bfs_commit_blocks(b, fh, c, 1));
	OK(c[0].rc);
	CHECK(is(11, 77), "gone");
	OK(bfs_release(b, fh));
	IS(bfs_commit_blocks(b, fh, c, 1), -EBADF);
	settle();
	u64 left = 2; /* blocks 11 and 12 are a granule each */
	for (u64 i = 0; i < 10; i++) left += i == 3 ? 0 : (g * BFS_GRANULE - i * 5000 - (i > 0) + BFS_GRANULE - 1) / BFS_GRANULE;
	CHECK(used() == before + left, "%llu granules are in use, %llu should be", (unsigned long long)(used() - before), (unsigned long long)left);
	detach(true);
	attach();
	for (u64 i = 0; i < 10; i++) CHECK(is(i, i == 3 ? 0 : g * BFS_GRANULE - i * 5000 - (i > 0)), "block %llu isn't there after a remount", (unsigned long long)i);
	drop_pool();
}

/* A commit of more than one transaction takes: keys that are there, that come twice, of two lengths, blocks of no bytes. */
static void t_together(void)
{
	enum { N = 2500 };
	static u64 off[N];
	static u8 keys[N][40], got[8192], want_bytes[8192];
	static struct bfs_commit c[N];
	u64 fh, stored = 0;
	start(256, 8192);
	for (u64 i = 0; i < N; i++) {
		key_of(i, keys[i]), key_of(i + N, keys[i] + 8);
		if (i % 50 == 7) memcpy(keys[i], keys[i - 7], sizeof keys[i]); /* twice */
		if (i % 50 == 9) OK(bfs_block_put(b, ns, keys[i], i / 100 % 2 ? 20 : 40, "there", 5));
	}
	OK(bfs_reserve_blocks(b, ns, N, 8000, &fh, off));
	for (u32 i = 0; i < N; i++) {
		u64 filled = i % 11 == 3 ? 0 : i % 11 == 4 ? 100 : 8000;
		memset(mem.base + off[i], 0xee, 8192); /* a former owner's */
		fill(mem.base + off[i], i, filled);
		c[i] = (struct bfs_commit){.index = i, .key = keys[i], .klen = i / 100 % 2 ? 20 : 40, .filled_bytes = filled};
	}
	c[N - 1].index = 0; /* twice in one call */
	OK(bfs_commit_blocks(b, fh, c, N));
	for (u32 i = 0; i < N; i++) {
		int want = i == N - 1 ? -EINVAL : i % 50 == 7 || i % 50 == 9 ? -EEXIST : 0;
		IS(c[i].rc, want);
		stored += !want;
		IS(bfs_block_get(b, ns, c[i].key, c[i].klen, got, sizeof got), i % 50 == 9 ? 5 : i == N - 1 ? -ENOENT : (i64)c[i % 50 == 7 ? i - 7 : i].filled_bytes);
		fill(want_bytes, i, c[i].filled_bytes);
		CHECK(want || !memcmp(got, want_bytes, c[i].filled_bytes), "block %u", i);
		if (want || c[i].filled_bytes % BFS_GRANULE == 0) continue;
		for (u64 k = c[i].filled_bytes; k % BFS_GRANULE; k++) CHECK(!mem.base[off[i] + k], "old bytes behind block %u", i);
	}
	struct bfs_stat now;
	OK(bfs_statfs(b, &now));
	IS(now.nblocks, stored + N / 50);
	/* what wasn't committed is still reserved, and can be */
	for (u32 i = 0; i < N; i++)
		if (i % 50 == 9) c[0] = (struct bfs_commit){.index = i, .key = "another key", .klen = 11, .filled_bytes = 10};
	OK(bfs_commit_blocks(b, fh, c, 1));
	IS(c[0].rc, 0);
	OK(bfs_release(b, fh));
	detach(true);
	attach();
	drop_pool();
}

static void t_refused(void)
{
	u64 fh, off[4], dir;
	struct bfs_attr a;
	start(64, 0);
	OK(bfs_mkdir(b, 1, N("d"), 0755, 0, 0, &a));
	dir = a.ino;
	IS(bfs_reserve_blocks(b, dir, 1, 4096, &fh, off), -EINVAL);
	IS(bfs_reserve_blocks(b, ns, 0, 4096, &fh, off), -EINVAL);
	IS(bfs_reserve_blocks(b, ns, BFS_RESERVE_MAX + 1, 4096, &fh, off), -EINVAL);
	IS(bfs_reserve_blocks(b, ns, 1, 0, &fh, off), -EFBIG);
	IS(bfs_reserve_blocks(b, ns, 1, 1ull << 40, &fh, off), -EFBIG);
	OK(bfs_batch_begin(b));
	IS(bfs_reserve_blocks(b, ns, 1, 4096, &fh, off), -EBUSY);
	OK(bfs_batch_abort(b));
	IS(bfs_commit_blocks(b, 12345, NULL, 0), -EBADF);
	OK(bfs_create(b, 1, N("f"), 0644, 0, 0, O_RDWR, &a, &fh));
	struct bfs_commit c = with(0, 1, 1, NULL);
	IS(bfs_commit_blocks(b, fh, &c, 1), -EBADF);
	OK(bfs_release(b, fh));
	drop_pool();
}

/* Blocks go for it, and where none may there is no room, and nothing is kept. */
static void t_full(void)
{
	u64 fh[64], off[8], n = 0;
	struct bfs_commit c[8];
	start(64, 0);
	for (u64 k = 0; k < 400; k += 8) {
		OK(bfs_reserve_blocks(b, ns, 8, 1 << 20, &fh[0], off));
		for (u32 i = 0; i < 8; i++) fill(mem.base + off[i], k + i, 1 << 20), c[i] = with(i, k + i, 1 << 20, NULL);
		OK(bfs_commit_blocks(b, fh[0], c, 8));
		for (u32 i = 0; i < 8; i++) OK(c[i].rc);
		OK(bfs_release(b, fh[0]));
	}
	for (u64 k = 0; k < 400; k++) n += is(k, 1 << 20);
	CHECK(n > 40 && n < 64, "%llu blocks are left", (unsigned long long)n);
	CHECK(is(399, 1 << 20), "the newest is gone");
	u64 most = 0;
	int rc = 0;
	while (!(rc = bfs_reserve_blocks(b, ns, 4, 1 << 20, &fh[most], off))) most++;
	IS(rc, -ENOSPC);
	CHECK(most > 10, "%llu times", (unsigned long long)most);
	while (most) OK(bfs_release(b, fh[--most]));
	settle();
	OK(bfs_reserve_blocks(b, ns, 8, 1 << 20, &fh[0], off));
	OK(bfs_release(b, fh[0]));
	drop_pool();
}

/* A process that ends: what was committed is there, the rest is free. */
static void t_crash(void)
{
	for (int clean = 0; clean < 2; clean++) {
		u64 fh, off[30];
		struct bfs_commit c[10];
		start(64, 0);
		u64 before = used();
		OK(bfs_reserve_blocks(b, ns, 30, 300000, &fh, off));
		for (u32 i = 0; i < 10; i++) fill(mem.base + off[3 * i], i, 200000), c[i] = with(3 * i, i, 200000, NULL);
		OK(bfs_commit_blocks(b, fh, c, 10));
		detach(clean);
		attach();
		settle();
		for (u32 i = 0; i < 10; i++) CHECK(is(i, 200000), "block %u isn't there", i);
		CHECK(used() == before + 10 * 49, "%llu granules", (unsigned long long)(used() - before));
		drop_pool();
	}
}

/* Reservations, commits, deletes, evictions and crashes by chance, beside a table of what should be there. */
static void t_model(void)
{
	enum { KEYS = 300, OPEN = 6, EACH = 12 };
	static u64 size[KEYS];
	struct { u64 fh, off[EACH], size; u32 n; bool used[EACH]; } o[OPEN] = {0};
	r.s = seed * 0x9E3779B97F4A7C15ull + 1;
	start(48, 0);
	memset(size, 0, sizeof size);
	u64 hits = 0, commits = 0, lost = 0;
	for (int step = env("OPS", 2000); step; step--) {
		u32 w = below(&r, 100), i = below(&r, OPEN);
		u64 k = below(&r, KEYS);
		u8 key[KLEN];
		key_of(k, key);
		if (w < 20) {
			if (o[i].n) OK(bfs_release(b, o[i].fh));
			o[i].n = 1 + below(&r, EACH), o[i].size = 1 + below(&r, below(&r, 4) ? 70000 : 900000);
			memset(o[i].used, 0, sizeof o[i].used);
			int rc = bfs_reserve_blocks(b, ns, o[i].n, o[i].size, &o[i].fh, o[i].off);
			CHECK(!rc || rc == -ENOSPC, "reserve: %s", text(rc));
			if (rc) o[i].n = 0;
			for (u32 x = 0; x < o[i].n; x++) memset(mem.base + o[i].off[x], 0xa5, o[i].size);
		} else if (w < 60) {
			struct bfs_commit c[EACH];
			u64 ks[EACH], sums[EACH][8];
			u32 n = 0;
			if (!o[i].n) continue;
			for (u32 x = 0; x < o[i].n; x++) {
				if (below(&r, 2)) continue;
				ks[n] = below(&r, KEYS);
				u64 filled = below(&r, 3) ? o[i].size : below(&r, (u32)o[i].size + 1);
				if (!o[i].used[x]) fill(mem.base + o[i].off[x], ks[n], filled);
				for (u64 q = 0, at = 0; at < filled; q++, at += chunk) sums[n][q] = fl_sum(mem.base + o[i].off[x] + at, filled - at < chunk ? filled - at : chunk);
				c[n] = with(x, ks[n], filled, below(&r, 2) ? sums[n] : NULL);
				n++;
			}
			OK(bfs_commit_blocks(b, o[i].fh, c, n));
			for (u32 x = 0; x < n; x++) {
				if (o[i].used[c[x].index]) {
					IS(c[x].rc, -EINVAL);
				} else if (c[x].rc) {
					IS(c[x].rc, -EEXIST);
				} else {
					o[i].used[c[x].index] = true;
					size[ks[x]] = c[x].filled_bytes + 1;
					commits++;
				}
			}
		} else if (w < 75) {
			int rc = bfs_block_delete(b, ns, key, KLEN);
			CHECK(rc == -ENOENT || (!rc && size[k]), "delete: %s", text(rc));
			size[k] = 0;
		} else if (w < 97) {
			bool there = size[k] ? is(k, size[k] - 1) : bfs_block_get(b, ns, key, KLEN, NULL, 0) != -ENOENT;
			CHECK(!there || size[k], "block %llu should not be there", (unsigned long long)k);
			if (size[k] && !there) size[k] = 0, lost++;
			hits += there;
		} else if (w < 99) {
			OK(bfs_tick(b));
		} else {
			detach(below(&r, 2));
			attach();
			memset(o, 0, sizeof o);
		}
	}
	for (u32 i = 0; i < OPEN; i++)
		if (o[i].n) OK(bfs_release(b, o[i].fh));
	settle();
	CHECK(hits && commits > 50, "%llu hits, %llu commits", (unsigned long long)hits, (unsigned long long)commits);
	printf("   %llu commits, %llu hits, %llu were evicted\n", (unsigned long long)commits, (unsigned long long)hits, (unsigned long long)lost);
	drop_pool();
}

static void t_bench(void)
{
	enum { N = 938 };
	static u64 off[4096], sums[16];
	static struct bfs_commit c[4096];
	start(512, 200000);
	for (int round = 0; round < 6; round++) {
		u64 fh;
		double t0 = now();
		OK(bfs_reserve_blocks(b, ns, N, 4096, &fh, off));
		double t1 = now();
		for (u32 i = 0; i < N; i++) memset(mem.base + off[i], 7, 4096), c[i] = with(i, (u64)round * N + i, 4096, sums);
		sums[0] = fl_sum(mem.base + off[0], 4096);
		double t2 = now();
		OK(bfs_commit_blocks(b, fh, c, N));
		double t3 = now();
		OK(bfs_release(b, fh));
		printf("   reserve %.2f us, commit %.2f us a block\n", (t1 - t0) * 1e6 / N, (t3 - t2) * 1e6 / N);
	}
	drop_pool();
}

static const struct test tests[] = {
	{"basic", t_basic, false}, {"together", t_together, false}, {"refused", t_refused, false}, {"full", t_full, false}, {"crash", t_crash, false}, {"model", t_model, true}, {"bench", t_bench, false},
};
int main(int argc, char **argv) { return run_tests(tests, sizeof tests / sizeof *tests, argc, argv); }
