/* Tables of the tree, below names and files: B+tree, buckets, radix, page reuse, attach,
 * against plain models; every so often the pool is left uncleanly and joined again. */
#include "../../belugafs/_core/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, bfs_errmsg()); exit(1); } } while (0)

static u64 seed = 1;
static u64 rnd(void)
{
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return seed;
}

#define NK 4096
static struct { bool on; u64 x; } model[NK];
static struct { bool on; u64 ino, hash, cookie; u8 owner; } hmodel[NK];

static struct bfs_mem mem;
static struct bfs_opts opts = {.uuid = {1, 2}, .slot = -1};

static struct bfs_key key_of(u32 i) { return KEY(BFS_T(0x70 + i % 3, i / 1000), (u64)i * 7, i % 5); }

static void check_model(struct bfs *b)
{
	struct rd r;
	struct bfs_rec rec, got[64];
	CHECK(!rd_begin(b, &r));
	int n = 0;
	for (u32 i = 0; i < NK; i++) {
		int rc = bt_get(&r.v, key_of(i), &rec);
		CHECK(rc == (model[i].on ? 0 : -ENOENT));
		if (model[i].on) { CHECK(rec.x == model[i].x && rec.y == ~model[i].x); n++; }
		char name[300];
		int len = snprintf(name, sizeof name, "%0*u", (int)(i % 200 + 6), i);
		struct ht_entry e;
		rc = ht_find(&r.v, 77, BFS_EK_NAME, name, (size_t)len, &e);
		CHECK(rc == (hmodel[i].on && (!hmodel[i].owner || hmodel[i].owner == b->slot + 1) ? 0 : -ENOENT));
		if (!rc) CHECK(e.ino == hmodel[i].ino && e.cookie == hmodel[i].cookie && e.len == len && !memcmp(e.name, name, (size_t)len));
		if (hmodel[i].on) CHECK(!ht_by_cookie(&r.v, hmodel[i].hash, 77, hmodel[i].cookie, &e) && e.owner == hmodel[i].owner);
	}
	/* ordered walk sees each record once */
	int seen = 0;
	struct bfs_key k = KEY(BFS_T(0x70, 0), 0, 0), last = {0, 0, 0};
	while (!bt_seek(&r.v, k, &rec)) {
		if (rec.k.a >> 56 > 0x72) break;
		CHECK(!seen || key_cmp(&last, &rec.k) < 0);
		last = k = rec.k, k.c++, seen++;
		struct bfs_rec back;
		CHECK(!bt_seek_last(&r.v, rec.k, &back) && !key_cmp(&back.k, &rec.k));
	}
	CHECK(seen == n);
	int m = bt_range(&r.v, KEY(BFS_T(0x71, 1), 0, 0), got, 64);
	for (int i = 0; i < m; i++) CHECK(got[i].k.a == BFS_T(0x71, 1) && (!i || key_cmp(&got[i - 1].k, &got[i].k) < 0));
	rd_end(&r);
}

int main(int argc, char **argv)
{
	u64 size = 64ull << 20;
	int rounds = argc > 2 ? atoi(argv[2]) : 3000;
	if (argc > 1) seed = strtoull(argv[1], NULL, 0);
	printf("t_tree seed %llu\n", (unsigned long long)seed);
	mem = (struct bfs_mem){&bfs_ops_coherent, mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), size, true, false, NULL};
	struct bfs_mkfs_params p = {.size_bytes = size, .inodes = 4096, .meta_pages = 2400};
	struct bfs_super sb;
	CHECK(!bfs_mkfs(&mem, &p, &sb));
	struct bfs *b;
	CHECK(!bfs_attach(&mem, &opts, &b));
	u64 cookie = 100;
	for (int round = 0; round < rounds; round++) {
		struct txn *t;
		bool fail = rnd() % 10 == 0;
		int changes = (int)(rnd() % (rnd() % 50 ? 20 : 400));
		typeof(model[0]) *undo = malloc(sizeof model);
		typeof(hmodel[0]) *hundo = malloc(sizeof hmodel);
		memcpy(undo, model, sizeof model);
		memcpy(hundo, hmodel, sizeof hmodel);
		CHECK(!op_begin(b, &t));
		for (int c = 0; c < changes; c++) {
			u32 i = (u32)(rnd() % NK);
			if (rnd() % 2) {
				if (rnd() % 100 < (round / 300 % 2 ? 30u : 60u)) {
					model[i].on = true, model[i].x = rnd();
					struct bfs_rec rec = {key_of(i), model[i].x, ~model[i].x};
					CHECK(!bt_put(t, &rec));
				} else {
					CHECK(bt_del(t, key_of(i)) == (model[i].on ? 0 : -ENOENT));
					model[i].on = false;
				}
			} else {
				char name[300];
				int len = snprintf(name, sizeof name, "%0*u", (int)(i % 200 + 6), i);
				if (!hmodel[i].on) {
					hmodel[i].hash = ht_hash(b, 77, BFS_EK_NAME, name, (size_t)len);
					hmodel[i].ino = rnd(), hmodel[i].cookie = cookie++, hmodel[i].on = true, hmodel[i].owner = (u8)(rnd() % 3);
					CHECK(!ht_insert(t, hmodel[i].hash, 77, BFS_EK_NAME, name, (size_t)len, hmodel[i].ino, hmodel[i].cookie, 8, hmodel[i].owner));
				} else if (rnd() % 3 == 0) {
					hmodel[i].ino = rnd(), hmodel[i].owner = 0;
					CHECK(!ht_set(t, hmodel[i].hash, 77, hmodel[i].cookie, hmodel[i].ino, 4, 0));
				} else {
					CHECK(!ht_remove(t, hmodel[i].hash, 77, hmodel[i].cookie));
					hmodel[i].on = false;
				}
			}
		}
		if (fail) {
			CHECK(op_end(b, t, -ECANCELED) == -ECANCELED);
			memcpy(model, undo, sizeof model);
			memcpy(hmodel, hundo, sizeof hmodel);
		} else {
			CHECK(!op_end(b, t, 0));
		}
		free(undo), free(hundo);
		if (round % 250 == 0) check_model(b);
		if (round % 500 == 499) {
			CHECK(!bfs_detach(b, rnd() % 2));
			CHECK(!bfs_attach(&mem, &opts, &b));
			check_model(b);
		}
	}
	check_model(b);
	/* nothing leaks: delete all, and the pages in use are those of an empty pool again */
	struct txn *t;
	for (u32 i = 0; i < NK; i += 64) {
		CHECK(!op_begin(b, &t));
		for (u32 j = i; j < i + 64; j++) {
			if (model[j].on) CHECK(!bt_del(t, key_of(j)));
			if (hmodel[j].on) CHECK(!ht_remove(t, hmodel[j].hash, 77, hmodel[j].cookie));
			model[j].on = hmodel[j].on = false;
		}
		CHECK(!op_end(b, t, 0));
	}
	check_model(b);
	struct bfs_stat st;
	CHECK(!bfs_statfs(b, &st));
	printf("term %llu txn %llu pages used %llu waiting %llu of %llu, written %llu in %llu txns\n", (unsigned long long)st.term, (unsigned long long)st.txn,
	       (unsigned long long)st.meta_pages_used, (unsigned long long)st.meta_pages_waiting, (unsigned long long)st.meta_pages, (unsigned long long)st.pages_written, (unsigned long long)st.txns);
	CHECK(st.meta_pages_used - st.meta_pages_waiting < 4 + 2 + b->sb.hash_buckets + 20);
	CHECK(!bfs_detach(b, true));
	munmap(mem.base, size);
	printf("1 passed, 0 failed\n");
	return 0;
}
