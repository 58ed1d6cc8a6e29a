/* Space of the core: the allocator, how full a pool gets, eviction, pins, emptied directories.
 *
 *   t_space [test] */
#include "t_pool.h"

/* ---- the allocator alone ------------------------------------------------------------------------------ */
static void t_alloc(void)
{
	enum { L = 600 };
	static struct extent live[L];
	static u8 owner[40000];
	struct rng r = {seed * 991 + 17};
	int ops = env("OPS", 20000), nlive = 0;
	u64 left_over = 0;
	make_pool_rg(100, 256, 512);
	u64 total = b->sb.data_granules;
	CHECK(total < sizeof owner, "model too small");
	memset(owner, 0, sizeof owner); /* 1 live, 2 quarantine */
	for (int op = 0; op < ops; op++) {
		struct txn *t;
		struct extent e[16], was[L];
		static u8 copy[sizeof owner];
		int n_was = nlive, steps = 1 + (int)below(&r, 6);
		bool abort_ = !below(&r, 6), reclaimed = false;
		memcpy(was, live, sizeof was);
		memcpy(copy, owner, sizeof copy);
		OK(op_begin(b, &t));
		for (int s = 0; s < steps; s++) {
			int what = (int)below(&r, 10);
			if (what < 5 && nlive + 16 < L) {
				u64 n = below(&r, 3) ? below(&r, 40) + 1 : below(&r, 10) ? below(&r, 700) + 1 : below(&r, 2000) + 1;
				int max = below(&r, 2) ? 1 : 16, k = al_alloc(t, n, 4711, e, max);
				if (k == -ENOSPC) {
					u64 fr = total - t->root->granules_used - t->root->granules_quar, run = 0, best = 0;
					if (max > 1 && n <= 16) CHECK(fr < n, "%llu of %llu free, no room for %llu", (unsigned long long)fr, (unsigned long long)total, (unsigned long long)n);
					for (u64 i = 0; i < total; i++) run = owner[i] ? 0 : run + 1, best = run > best ? run : best;
					if (n <= 512) CHECK(best < n, "a run of %llu, no room for %llu", (unsigned long long)best, (unsigned long long)n);
					continue;
				}
				CHECK(k > 0, "alloc: %s", text(k));
				u64 sum = 0;
				for (int i = 0; i < k; i++) {
					sum += e[i].len;
					for (u64 g = BFS_GIDX(e[i].addr); g < BFS_GIDX(e[i].addr) + e[i].len; g++) {
						CHECK(g < total && !owner[g], "granule %llu given twice (%u)", (unsigned long long)g, owner[g]);
						owner[g] = 1;
					}
					live[nlive++] = e[i];
				}
				CHECK(sum == n, "asked %llu, got %llu", (unsigned long long)n, (unsigned long long)sum);
			} else if (what < 9 && nlive) {
				int k = (int)below(&r, (u32)nlive);
				struct extent x = live[k];
				if (what == 8) {
					u32 more = below(&r, 50) + 1, got = al_grow(t, x.addr, x.len, 1, more, 4711);
					CHECK(got <= more, "grew by %u of %u", got, more);
					for (u32 g = 0; g < got; g++) {
						CHECK(!owner[BFS_GIDX(x.addr) + x.len + g], "grew into something");
						owner[BFS_GIDX(x.addr) + x.len + g] = 1;
					}
					live[k].len += got;
					continue;
				}
				u32 from = x.len > 2 && nlive + 2 < L && !below(&r, 4) ? below(&r, x.len) : 0, len = from ? below(&r, x.len - from) + 1 : x.len;
				bool quar = below(&r, 2);
				OK(quar ? al_free(t, x.addr + from, len) : al_unwind(t, x.addr + from, len));
				memset(owner + BFS_GIDX(x.addr) + from, quar ? 2 : 0, len);
				live[k] = live[--nlive];
				if (from) live[nlive++] = (struct extent){x.addr, from};
				if (from + len < x.len) live[nlive++] = (struct extent){x.addr + from + len, x.len - from - len};
			} else if (what == 9 && !reclaimed) {
				int got = al_reclaim(t);
				CHECK(got >= 0, "reclaim: %s", text(got));
				reclaimed = true;
				if (!got) continue;
				/* what this transaction has freed itself isn't among it: ask the records */
				struct bfs_rec rec[64];
				struct bfs_key k = KEY(BFS_T(BFS_T_QUAR, 0), 0, 0);
				int n;
				u64 gone = 0;
				for (u64 g = 0; g < total; g++) owner[g] = owner[g] == 2 ? 3 : owner[g];
				while ((n = bt_range(tview(t), k, rec, 64)) > 0)
					for (int i = 0; i < n; i++) {
						memset(owner + BFS_GIDX(rec[i].k.c), 2, rec[i].x);
						k.b = rec[i].k.b, k.c = rec[i].k.c + 1;
					}
				for (u64 g = 0; g < total; g++)
					if (owner[g] == 3) owner[g] = 0, gone++;
				CHECK(gone == (u64)got, "reclaimed %d, records say %llu", got, (unsigned long long)gone);
			}
		}
		IS(op_end(b, t, abort_ ? -ECANCELED : 0), abort_ ? -ECANCELED : 0);
		if (abort_) {
			memcpy(live, was, sizeof live);
			memcpy(owner, copy, sizeof owner);
			nlive = n_was;
		}
		if (!below(&r, 20)) OK(bfs_apply_scan(b));
		if (!below(&r, 200)) {
			u64 x[4] = {0}, run = 0, best = 0;
			for (u64 i = 0; i < total; i++) x[owner[i]]++, run = owner[i] ? 0 : run + 1, best = run > best ? run : best;
			check_space();
			struct bfs_stat s = st();
			CHECK(s.used_granules == x[1] && s.quarantined_granules == x[2], "used %llu/%llu, quarantine %llu/%llu", (unsigned long long)s.used_granules, (unsigned long long)x[1], (unsigned long long)s.quarantined_granules, (unsigned long long)x[2]);
			if (best > 512) best = 512;
			CHECK(s.largest_free_granules == best, "largest %llu, is %llu", (unsigned long long)s.largest_free_granules, (unsigned long long)best);
		}
		if (!below(&r, 500)) { /* leadership given up and taken again: nothing in memory is trusted */
			detach(false);
			attach();
		}
		left_over = (u64)nlive;
	}
	/* all back, in one go, and everything is one run again */
	struct txn *t;
	OK(op_begin(b, &t));
	for (int i = 0; i < nlive; i++) OK(al_free(t, live[i].addr, live[i].len));
	OK(op_end(b, t, 0));
	for (int i = 0; i < 30; i++) OK(bfs_tick(b));
	CHECK(st().used_granules == 0 && st().quarantined_granules == 0, "not empty: %llu, %llu", (unsigned long long)st().used_granules, (unsigned long long)st().quarantined_granules);
	CHECK(st().largest_free_granules == 512, "largest %llu", (unsigned long long)st().largest_free_granules);
	(void)left_over;
	drop_pool();
}

/* ---- how full a pool gets --------------------------------------------------------------------------------- */
struct fill { u64 payload, files, extents, pieces; };
static struct fill measure(u64 dir)
{
	static struct bfs_dirent d[256];
	struct bfs_extent e[64];
	struct fill x = {0};
	u64 after = 0;
	int n;
	while ((n = bfs_readdir(b, dir, after, d, 256)) > 0)
		for (int i = 0; i < n; i++) {
			after = d[i].cookie;
			int k = bfs_extents(b, d[i].ino, e, 64);
			if (k < 0) continue;
			x.payload += attr(d[i].ino).size, x.files++, x.extents += (u64)k, x.pieces += k > 1;
		}
	CHECK(n == 0, "readdir: %s", text(n));
	return x;
}

static int put_sized(u64 dir, u32 i, size_t n)
{
	struct bfs_attr a;
	char name[32];
	u64 fh;
	snprintf(name, sizeof name, "b%u", i);
	int rc = bfs_create(b, dir, N(name), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh);
	if (rc) return rc;
	static u8 *zero;
	if (!zero) zero = calloc(1, 80 << 20);
	memcpy(zero, &i, 4), memcpy(zero + n - 4, &i, 4);
	ssize_t k = bfs_write(b, fh, 0, zero, n);
	memset(zero + n - 4, 0, 4);
	if (k < 0) rc = (int)k;
	else CHECK(k == (ssize_t)n, "short write");
	if (rc) bfs_unlink(b, dir, N(name));
	OK(bfs_flush(b, fh, false));
	OK(bfs_release(b, fh));
	return rc;
}

/* Sizes change, and what is used again is anybody's guess: regions don't empty by themselves. */
static void t_frag(void)
{
	enum { LIVE = 4000 };
	static u64 ino[LIVE];
	static const size_t sizes[] = {2560 << 10, 1 << 20, 3400 << 10, 640 << 10, 0, 5 << 20, 2560 << 10};
	struct rng r = {seed * 31 + 7};
	u32 n = 0;
	make_pool((u32)env("MIB", 768), 16384);
	u64 dir = mkdir_("d"), total = b->sb.data_granules * BFS_GRANULE;
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		u64 sum = 0;
		u32 many = 0;
		double t0 = now();
		while (sum < total * 3 / 2) {
			size_t len = sizes[s] ? sizes[s] : (64u << 10) + below(&r, 3 << 20); /* 0: any */
			int rc = put_sized(dir, n, len);
			CHECK(!rc, "put of %zu: %s", len, text(rc));
			struct bfs_attr a;
			char name[32];
			snprintf(name, sizeof name, "b%u", n);
			OK(bfs_lookup(b, dir, N(name), &a));
			ino[n++ % LIVE] = a.ino;
			for (int k = 0; k < 6; k++) bfs_touch(b, ino[below(&r, n < LIVE ? n : LIVE)]);
			if (!below(&r, 16)) OK(bfs_tick(b));
			sum += len, many++;
		}
		struct fill x = measure(dir);
		printf("   %7zu bytes: %.2f %%, %llu files, %llu in pieces, %.0f us a put\n", sizes[s], 100.0 * (double)x.payload / (double)total, (unsigned long long)x.files, (unsigned long long)x.pieces, 1e6 * (now() - t0) / many);
		CHECK(x.payload >= total / 100 * 90, "less than 90 %%");
		check_space();
	}
	drop_pool();
}

static void t_capacity(void)
{
	u32 mib = (u32)env("MIB", 768), n = 0;
	make_pool(mib, 8192);
	u64 dir = mkdir_("d"), total = b->sb.data_granules * BFS_GRANULE;
	detach(true);
	opts.evict_none = true;
	attach();
	int rc;
	while (!(rc = put_sized(dir, n, 2560 << 10))) n++;
	IS(rc, -ENOSPC);
	struct fill x = measure(dir);
	printf("   2.5 MiB blocks: %.2f %% of %llu MiB, %llu of %llu in pieces, regions of %u granules\n", 100.0 * (double)x.payload / (double)total, (unsigned long long)(total >> 20), (unsigned long long)x.pieces, (unsigned long long)x.files, b->sb.region_granules);
	CHECK(x.payload >= total / 100 * 95, "less than 95 %%");
	check_space();
	CHECK(st().nunsealed == 0 && st().norphans == 0, "left over after ENOSPC");
	detach(true);
	opts.evict_none = false;
	attach();
	static const size_t sizes[] = {1 << 20, 3400 << 10, 640 << 10, 5 << 20, 2560 << 10, 20000};
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		u32 many = (u32)(total * 3 / 2 / sizes[s]);
		if (many > 3000) many = 3000;
		double t0 = now();
		for (u32 i = 0; i < many; i++) {
			rc = put_sized(dir, n++, sizes[s]);
			CHECK(!rc, "put %u of %u of %zu: %s", i, many, sizes[s], text(rc));
			if (!below(&(struct rng){n * 77 + 5}, 16)) OK(bfs_tick(b));
		}
		x = measure(dir);
		printf("   then %7zu bytes: %.2f %%, %llu files, %llu in pieces, largest run %llu, %.0f us a put\n", sizes[s], 100.0 * (double)x.payload / (double)total, (unsigned long long)x.files, (unsigned long long)x.pieces,
		       (unsigned long long)st().largest_free_granules, 1e6 * (now() - t0) / many);
		if (sizes[s] > 100000) CHECK(x.payload >= total / 100 * 90, "less than 90 %%");
		check_space();
	}
	drop_pool();
}

/* ---- eviction ----------------------------------------------------------------------------------------------- */
static void t_evict(void)
{
	char name[32];
	u64 ino[40], fh, freed;
	u8 c;
	make_pool(64, 0);
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "b%d", i);
		ino[i] = put(1, name, (u64)i, 100000);
	}
	/* written in order; 3 and 5 are read, 7 is open, 9 is pinned, 11 rewritten (ordinary) */
	for (int i = 3; i <= 5; i += 2) {
		fh = open_(ino[i], O_RDONLY);
		IS(bfs_read(b, fh, 0, &c, 1), 1);
		OK(bfs_release(b, fh));
	}
	u64 held = open_(ino[7], O_RDONLY);
	struct txn *t;
	OK(op_begin(b, &t));
	struct bfs_obj *o = ob_cow(t, ino[9]);
	o->flags |= BFS_OF_PINNED;
	OK(op_end(b, t, 0));
	fh = open_(ino[11], O_WRONLY);
	write_(fh, 0, "x", 1);
	close_(fh);
	struct bfs_attr a;
	OK(bfs_link(b, ino[13], 1, N("hard"), &a));
	OK(bfs_evict(b, 25 * 12, &freed));
	CHECK(freed == 25 * 12, "freed %llu", (unsigned long long)freed);
	CHECK(st().evicted_blocks == 12 && st().evicted_granules == 300, "counters");
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "b%d", i);
		bool stays = i == 3 || i == 5 || i == 7 || i == 9 || i == 11 || i == 13 || i >= 18;
		CHECK(there(1, name) == stays, "%s is %s", name, stays ? "gone" : "there");
	}
	check_block(ino[7], 7, 100000);
	OK(bfs_release(b, held));
	/* recency outlives the mount; what is closed is a candidate again */
	fh = open_(ino[20], O_RDONLY);
	OK(bfs_release(b, fh));
	OK(bfs_evict(b, 1ull << 40, &freed));
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "b%d", i);
		bool stays = i == 9 || i == 11 || i == 13;
		CHECK(there(1, name) == stays, "%s is %s", name, stays ? "gone" : "there");
	}
	CHECK(st().block_granules == 25, "in blocks %llu", (unsigned long long)st().block_granules); /* the pinned one */
	check_space();
	drop_pool();
}

/* Everything open: ENOSPC, nothing left behind; room again after the closes. */
static void t_full(void)
{
	static u64 fh[2000];
	u32 n = 0;
	char name[32];
	u8 *buf = malloc(1 << 20);
	struct bfs_attr a;
	u64 w;
	make_pool(96, 4096);
	for (;; n++) {
		snprintf(name, sizeof name, "f%u", n);
		OK(bfs_create(b, 1, N(name), 0644, 0, 0, O_WRONLY, &a, &w));
		pattern(n, 0, buf, 200000);
		ssize_t k = bfs_write(b, w, 0, buf, 200000);
		if (k == -ENOSPC) break;
		IS(k, 200000);
		close_(w);
		fh[n] = open_(a.ino, O_RDONLY);
	}
	CHECK(n > 100, "%u only", n);
	OK(bfs_unlink(b, 1, N(name)));
	OK(bfs_flush(b, w, false));
	OK(bfs_release(b, w));
	CHECK(!there(1, name), "failed one is there");
	for (u32 i = 0; i < n; i++) {
		u8 got[1000], want[1000];
		IS(bfs_read(b, fh[i], 150000, got, 1000), 1000);
		pattern(i, 150000, want, 1000);
		CHECK(!memcmp(got, want, 1000), "reader %u", i);
	}
	/* one is unlinked while it is open: its space is held until the close */
	OK(bfs_unlink(b, 1, N("f5")));
	OK(bfs_tick(b));
	IS(bfs_create(b, 1, N("x"), 0644, 0, 0, O_WRONLY, &a, &w), 0);
	IS(bfs_write(b, w, 0, buf, 200000), -ENOSPC);
	OK(bfs_release(b, fh[5]));
	IS(bfs_write(b, w, 0, buf, 200000), 200000);
	close_(w);
	for (u32 i = 0; i < n; i++)
		if (i != 5) OK(bfs_release(b, fh[i]));
	for (u32 i = 0; i < 50; i++) {
		snprintf(name, sizeof name, "g%u", i);
		put(1, name, i, 200000);
	}
	check_space();
	free(buf);
	drop_pool();
}

/* ---- pins -------------------------------------------------------------------------------------------------- */
#define PIN "user.beluga.pin"
static void pin(u64 ino, const char *what) { OK(bfs_setxattr(b, ino, PIN, what, strlen(what), 0)); }

/* Unpinned ones first, then soft ones, hard ones never; also where a whole region is emptied for
 * blocks of another size; and what is made meanwhile goes before a soft one. */
/* A reader keeps all pages until there are too few for anybody; when it goes on, they are there at once, though nothing
 * has been committed since they were looked for. */
static void t_reader(void)
{
	struct rd r;
	u64 ns, k = 0;
	u8 key[8], block[4096] = {0};
	int rc = 0;
	make_pool(8, 0);
	OK(bfs_ns_create(b, "ns", &ns));
	OK(rd_begin(b, &r));
	while (!rc) {
		memcpy(key, &k, sizeof k), k++;
		if (!(rc = bfs_block_put(b, ns, key, sizeof key, block, sizeof block))) rc = bfs_block_delete(b, ns, key, sizeof key);
	}
	IS(rc, -ENOSPC);
	rd_end(&r);
	memcpy(key, &k, sizeof k);
	OK(bfs_block_put(b, ns, key, sizeof key, block, sizeof block));
	drop_pool();
}

static void t_pins(void)
{
	u64 dir[3], freed, ino;
	char name[32];
	make_pool_rg(64, 2048, 256);
	dir[0] = mkdir_("free"), dir[1] = mkdir_("soft"), dir[2] = mkdir_("hard");
	pin(dir[1], "soft"), pin(dir[2], "hard");
	for (int i = 0; i < 150; i++) {
		snprintf(name, sizeof name, "b%d", i);
		put(dir[i % 3], name, (u64)i, 100000);
	}
	IS(bfs_setxattr(b, dir[0], PIN, "firm", 4, 0), -EINVAL);
	OK(bfs_evict(b, 25 * 50, &freed));
	CHECK(freed == 25 * 50 && !there(dir[0], "b0") && !there(dir[0], "b147") && there(dir[1], "b1") && there(dir[2], "b2"), "unpinned first");
	OK(bfs_evict(b, 25, &freed));
	CHECK(freed == 25 && !there(dir[1], "b1") && there(dir[1], "b4"), "then soft ones, oldest first");
	ino = put(dir[0], "new", 7, 100000);
	OK(bfs_evict(b, 25, &freed));
	CHECK(freed == 25 && !there(dir[0], "new") && there(dir[1], "b4"), "new ones before soft ones");
	IS(bfs_getxattr(b, ino, PIN, NULL, 0), -ESTALE);
	detach(true), attach();
	OK(bfs_evict(b, 1ull << 40, &freed));
	for (int i = 0; i < 150; i++) {
		snprintf(name, sizeof name, "b%d", i);
		CHECK(there(dir[i % 3], name) == (i % 3 == 2), "%s", name);
	}
	/* other sizes, in a pool that is full of both kinds */
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "s%d", i);
		put(dir[1], name, (u64)i, 65536);
	}
	for (int i = 0; i < 900; i++) {
		snprintf(name, sizeof name, "f%d", i);
		put(dir[0], name, (u64)i, 65536);
	}
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof name, "large%d", i);
		put(dir[0], name, (u64)i, 1000000);
	}
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "s%d", i);
		CHECK(there(dir[1], name), "%s was pinned", name);
	}
	OK(bfs_removexattr(b, dir[2], PIN));
	OK(bfs_evict(b, 1ull << 40, &freed));
	CHECK(!there(dir[2], "b2") && !st().nblocks, "%llu blocks left", (unsigned long long)st().nblocks);
	check_space();
	drop_pool();
}

/* Ordinary files, with all of their names, and in the order of use among the blocks. */
static void t_all(void)
{
	u64 ino[4], freed, d;
	struct bfs_attr a;
	make_pool(64, 0);
	detach(true);
	opts.evict_all = true;
	attach();
	d = mkdir_("dir");
	for (int i = 0; i < 4; i++) ino[i] = put(1, (char[]){(char)('a' + i), 0}, (u64)i, 100000);
	OK(bfs_link(b, ino[1], d, N("other"), &a));
	OK(bfs_link(b, ino[2], d, N("pinned"), &a));
	pin(ino[2], "hard");
	for (int i = 0; i < 20; i++) OK(bfs_link(b, ino[3], d, N(((char[]){'l', (char)('a' + i), 0})), &a));
	OK(bfs_evict(b, 25, &freed));
	CHECK(freed == 25 && !there(1, "a") && there(1, "b"), "the oldest");
	OK(bfs_evict(b, 1ull << 40, &freed));
	CHECK(freed == 25 && !there(1, "b") && !there(d, "other"), "both names");
	CHECK(there(1, "c") && there(d, "pinned") && there(1, "d"), "pinned, and one with many names");
	check_space();
	drop_pool();
}

/* ---- directories that eviction emptied ----------------------------------------------------------------------- */
static void t_reap(void)
{
	char name[32];
	u64 engine, freed, n = 0;
	struct bfs_attr a;
	make_pool(64, 256);
	detach(true);
	opts.reap_after_s = 1;
	attach();
	engine = mkdir_("engine");
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "d%d", i);
		OK(bfs_mkdir(b, engine, N(name), 0755, 0, 0, &a));
		put(a.ino, "block", (u64)i, 1000);
		if (i == 7) OK(bfs_unlink(b, a.ino, N("block"))); /* empty by hand */
	}
	OK(bfs_evict(b, 1ull << 40, &freed));
	usleep(2100000);
	OK(bfs_lookup(b, engine, N("d9"), &a)); /* somebody comes by */
	for (int rc = 0; !rc; n++) {
		snprintf(name, sizeof name, "f%llu", (unsigned long long)n);
		rc = bfs_mknod(b, 1, N(name), S_IFREG | 0644, 0, 0, 0, &a);
		if (rc) IS(rc, -ENOSPC);
	}
	CHECK(there(engine, "d7"), "made by hand, and emptied by hand");
	CHECK(st().reaped_dirs == 38, "%llu reaped", (unsigned long long)st().reaped_dirs);
	CHECK(st().inodes_used == st().inodes, "slots");
	OK(bfs_lookup(b, engine, N("d9"), &a));
	OK(bfs_unlink(b, 1, N("f0")));
	put(a.ino, "block", 1, 1000);
	check_space();
	drop_pool();
}

/* Blocks that each have a directory of their own, faster than any directory is due; then ordinary
 * files, which take all that can be had.  The ring of young directories goes round several times. */
static void t_young(void)
{
	char name[32];
	u64 engine, left = 0;
	struct bfs_attr a;
	make_pool(64, 256);
	engine = mkdir_("engine");
	for (int i = 0; i < 2000; i++) {
		snprintf(name, sizeof name, "d%d", i);
		OK(bfs_mkdir(b, engine, N(name), 0755, 0, 0, &a));
		put(a.ino, "block", (u64)i, 1000);
		CHECK(i < 200 || st().nblocks > 80, "%llu blocks after %d", (unsigned long long)st().nblocks, i);
	}
	for (u64 n = 0;; n++) {
		snprintf(name, sizeof name, "f%llu", (unsigned long long)n);
		int rc = bfs_mknod(b, 1, N(name), S_IFREG | 0644, 0, 0, 0, &a);
		if (!rc) continue;
		IS(rc, -ENOSPC);
		left = n;
		break;
	}
	CHECK(left == st().inodes - 2 && !st().nblocks, "%llu files", (unsigned long long)left);
	check_space();
	drop_pool();
}

static const struct test tests[] = {
	{"young", t_young, false},
	{"evict", t_evict, false}, {"pins", t_pins, false}, {"all", t_all, false}, {"reap", t_reap, false}, {"full", t_full, false}, {"reader", t_reader, false},
	{"alloc", t_alloc, true}, {"capacity", t_capacity, false}, {"frag", t_frag, true},
};

int main(int argc, char **argv) { return run_tests(tests, sizeof tests / sizeof *tests, argc, argv); }
