/* Processes of a host that read its pool in place: leases and snapshots of theirs are respected by the daemon, by the
 * next one, by other hosts, and end with the process.
 *
 * The pool is a file without a name; a daemon is a struct bfs, a process is a connection of this one, or a child.
 *
 *   t_lease [name]
 *   t_lease --mutants    in builds with BFS_MUTANTS: each step left out in turn is noticed */
#define _GNU_SOURCE
#include "t_client.h"

/* Everything that may be used again is: as many blocks as fit, each as large as those of the tests. */
static u64 fill_from = 1000000, last_filled;
static void fill(void)
{
	static u8 buf[BLOCK];
	for (int rounds = 0; rounds < 4; rounds++) {
		bool full = false;
		OK(bfs_tick(b));
		for (int i = 0; i < 2000 && !full; i++, fill_from++) {
			pattern(fill_from, 0, buf, BLOCK);
			int rc = bfs_block_put(b, ns, key_of(fill_from), KEY_BYTES, buf, BLOCK);
			CHECK(!rc || rc == -ENOSPC, "put: %s", text(rc));
			full = rc != 0;
			if (!rc) last_filled = fill_from;
		}
		CHECK(full, "the pool isn't full");
	}
}
static void delete_block(u64 k) { OK(bfs_block_delete(b, ns, key_of(k), KEY_BYTES)); }
static void without_eviction(void)
{
	detach(true);
	opts.evict_none = other.evict_none = true;
	attach();
}

/* ---- one process --------------------------------------------------------------------------------- */
static void t_basic(void)
{
	struct bfc_block x[8];
	u8 present[8], *keys, *buf = malloc(BLOCK);
	u64 ino, here;
	make(16);
	for (u64 k = 0; k < 5; k++) put_block(k, BLOCK);
	bfc *c = join();
	keys = keys_of(0, 8);
	OK(bfc_namespace(c, "ns", &here));
	IS(here, ns);
	IS(bfc_namespace(c, "none", &here), -ENOENT);
	IS(bfc_match(c, ns, keys, KEY_BYTES, 8), 5);
	IS(bfc_match(c, ns, keys + 5 * KEY_BYTES, KEY_BYTES, 3), 0);
	IS(bfc_exists(c, ns, keys, KEY_BYTES, 8, present), 5);
	CHECK(present[4] == 1 && present[5] == 0, "present");
	IS(bfc_lease(c, ns, keys, KEY_BYTES, 8, x), 5);
	for (int i = 0; i < 5; i++) {
		struct bfs_extent e;
		CHECK(!x[i].error && x[i].size_bytes == BLOCK && x[i].flags == BFC_VERIFIED && is_block(x[i].addr, (u64)i, BLOCK), "block %d", i);
		/* it is the pool's memory, not a copy */
		IS(bfs_extents(b, x[i].inode, &e, 1), 1);
		IS((u8 *)al_mem(b, e.addr) - mem.base, (const u8 *)x[i].addr - c->mem.base);
		*(u8 *)al_mem(b, e.addr) ^= 1;
		CHECK(!is_block(x[i].addr, (u64)i, BLOCK), "a copy");
		*(u8 *)al_mem(b, e.addr) ^= 1;
	}
	for (int i = 5; i < 8; i++) IS(x[i].error, -ENOENT);
	struct bfs_client who[4];
	IS(bfs_clients(b, who, 4), 1);
	CHECK(who[0].leases == 5 && who[0].granules == 5 * BLOCK / 4096 && who[0].pid == (u32)getpid(), "who");
	OK(bfc_release(c, x, 8));
	OK(bfc_release(c, x, 8));
	IS(bfs_clients(b, who, 4), 1);
	IS(who[0].leases, 0);
	IS(bfc_get(c, ns, key_of(3), KEY_BYTES, buf, BLOCK), BLOCK);
	CHECK(is_block(buf, 3, BLOCK), "get");
	IS(bfc_get(c, ns, key_of(3), KEY_BYTES, buf, 10), -ERANGE);
	IS(bfc_get(c, ns, key_of(9), KEY_BYTES, buf, BLOCK), -ENOENT);

	/* files with names, and what can't be leased */
	u64 dir = mkdir_("dir"), fh;
	u64 file = put(dir, "file", 77, BLOCK), empty = put(dir, "empty", 1, 0);
	OK(bfc_lookup(c, "dir/file", &ino));
	IS(ino, file);
	IS(bfc_lookup(c, "dir/none", &ino), -ENOENT);
	fh = create(dir, "new", O_WRONLY, &ino);
	write_(fh, 0, buf, 4096);
	u64 what[] = {file, empty, dir, ino, file + (1ull << 32)};
	IS(bfc_lookup(c, "dir/new", &ino), -ENOENT); /* nobody else's yet */
	IS(bfc_lease_inodes(c, what, 5, x), 2);
	CHECK(is_block(x[0].addr, 77, BLOCK) && x[1].size_bytes == 0 && !x[1].addr, "file");
	IS(x[2].error, -EISDIR);
	IS(x[3].error, -ENOENT);
	IS(x[4].error, -ENOENT);
	OK(bfc_release(c, x, 5));
	close_(fh);

	/* damaged: found by who hasn't checked it */
	bfc *d = join();
	struct bfs_extent e;
	struct bfc_block y = leased(d, 2);
	OK(bfs_extents(b, y.inode, &e, 1) == 1 ? 0 : -1);
	OK(bfc_release(d, &y, 1));
	bfc *f = join();
	((u8 *)al_mem(b, e.addr))[BLOCK - 1] ^= 1;
	IS(lease_one(f, 2, &y), 0);
	IS(y.error, -EIO);
	CHECK(strstr(bfc_error(), "checksum"), "%s", bfc_error());
	IS(bfs_clients(b, who, 4), 3);
	CHECK(!who[0].leases && !who[1].leases && !who[2].leases, "a lease of a damaged block");
	((u8 *)al_mem(b, e.addr))[BLOCK - 1] ^= 1;
	bfc_close(c);
	bfc_close(d);
	bfc_close(f);
	OK(bfs_tick(b));
	IS(bfs_clients(b, who, 4), 0);
	free(keys);
	free(buf);
	drop();
}

/* Unlinked while it is leased: its space isn't used again before the release. */
static void t_held(void)
{
	make(8);
	without_eviction();
	put_block(1, BLOCK);
	bfc *c = join();
	struct bfc_block x = leased(c, 1), y;
	delete_block(1);
	IS(lease_one(c, 1, &y), 0);
	IS(y.error, -ENOENT);
	fill();
	CHECK(is_block(x.addr, 1, BLOCK), "another block's bytes under a lease");
	CHECK(st().quarantined_granules == BLOCK / 4096, "quarantine");
	OK(bfc_release(c, &x, 1));
	OK(bfs_tick(b));
	OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	bfc_close(c);
	drop();
}

/* Eviction passes over what is leased. */
static void t_evict(void)
{
	make(8);
	put_block(1, BLOCK);
	bfc *c = join();
	struct bfc_block x = leased(c, 1);
	for (u64 k = 100; k < 200; k++) put_block(k, BLOCK);
	u8 present;
	IS(bfs_block_exists(b, ns, key_of(1), KEY_BYTES, 1, &present), 1);
	IS(bfs_block_exists(b, ns, key_of(101), KEY_BYTES, 1, &present), 0);
	CHECK(is_block(x.addr, 1, BLOCK), "evicted under a lease");
	OK(bfc_release(c, &x, 1));
	/* a use by a process is one: read again and again, it stays; then it goes as the others do */
	for (u64 k = 200; k < 300; k++) {
		put_block(k, BLOCK);
		x = leased(c, 1);
		OK(bfc_release(c, &x, 1));
	}
	for (u64 k = 300; k < 400; k++) put_block(k, BLOCK);
	IS(bfs_block_exists(b, ns, key_of(1), KEY_BYTES, 1, &present), 0);
	bfc_close(c);
	drop();
}

/* The daemon does everything between two steps of a lease: after the look-up, or after the announcement. */
static void t_steps(void)
{
	for (int after = 0; after < 2; after++) {
		struct bfc_block x;
		struct cl_group *g = malloc(sizeof *g);
		make(8);
		without_eviction();
		put_block(1, BLOCK);
		bfc *c = join();
		u8 *key = keys_of(1, 1);
		g->n = 1, g->block = &x;
		OK(cl_find(c, ns, key, KEY_BYTES, NULL, g));
		if (after) cl_announce(c, g);
		delete_block(1);
		/* its pages are pinned by the look-up; its extent is announced, or isn't */
		for (int i = 0; i < 3; i++) OK(bfs_tick(b));
		IS(st().quarantined_granules, after ? BLOCK / 4096 : 0);
		fill();
		if (!after) cl_announce(c, g);
		int rc = cl_check(c, g);
		CHECK(rc == -ESTALE || (rc == 1 && is_block(x.addr, 1, BLOCK)), "%s, and another block's bytes", text(rc));
		IS(rc, -ESTALE);
		IS(lease_one(c, 1, &x), 0);
		IS(x.error, -ENOENT);
		OK(bfs_tick(b));
		bfc_close(c);
		free(key);
		free(g);
		drop();
	}
}

/* The pages of a snapshot that a process reads aren't used again. */
static int walk(struct view *v)
{
	u8 present = 0;
	int rc = 0, n = 0;
	u64 ino;
	for (u64 k = 0; k < 40 && rc >= 0; k++) n += rc = ht_find_many(v, ns, BFS_EK_KEY, key_of(k), KEY_BYTES, 1, &ino);
	(void)present;
	return rc < 0 ? rc : n;
}
static void churn(int n) /* transactions, so many that every free page comes round, or until there is none */
{
	static u64 k = 5000000;
	u8 buf[4096] = {0};
	int rc = 0;
	double t0 = now();
	for (int i = 0; i < n && !rc && now() - t0 < 1; i++, k++)
		if (!(rc = bfs_block_put(b, ns, key_of(k), KEY_BYTES, buf, sizeof buf))) rc = bfs_block_delete(b, ns, key_of(k), KEY_BYTES);
	CHECK(!rc || rc == -ENOSPC, "%s", text(rc));
}
static void t_reader(void)
{
	struct rd r;
	make(8);
	for (u64 k = 0; k < 40; k++) put_block(k, 4096);
	bfc *c = join();
	OK(rd_begin(&c->b, &r));
	IS(walk(&r.v), 40);
	for (u64 k = 0; k < 20; k++) delete_block(k);
	churn(600);
	memset((void *)c->b.valid, 0, c->b.sb.meta_pages * sizeof *c->b.valid); /* look at the pages themselves */
	IS(walk(&r.v), 40);
	rd_end(&r);
	OK(rd_begin(&c->b, &r));
	IS(walk(&r.v), 20);
	rd_end(&r);
	bfc_close(c);
	drop();
}

#ifdef BFS_MUTANTS
/* ... also when everything happens between the look at the newest snapshot and its announcement. */
static void all_between(void)
{
	bfs_between = NULL;
	for (u64 k = 0; k < 20; k++) delete_block(k);
	churn(600);
}
static void t_between(void)
{
	struct rd r;
	make(8);
	for (u64 k = 0; k < 40; k++) put_block(k, 4096);
	bfc *c = join();
	bfs_between = all_between;
	OK(rd_begin(&c->b, &r));
	IS(walk(&r.v), 20);
	rd_end(&r);
	bfc_close(c);
	drop();
}

/* ... or between the look-up of a read that copies and its announcement. */
static int steps_left;
static void refill_at_step(void)
{
	if (--steps_left) return;
	bfs_between = NULL;
	delete_block(1);
	for (int i = 0; i < 3; i++) OK(bfs_tick(b));
	fill();
}
static void t_get(void)
{
	make(8);
	opts.verify = BFS_VERIFY_OFF; /* a checksum would notice, too */
	without_eviction();
	put_block(1, BLOCK);
	bfc *c = join();
	u8 *buf = malloc(BLOCK), *key = keys_of(1, 1);
	steps_left = 3, bfs_between = refill_at_step; /* after its two look-ups: key, extents */
	ssize_t n = bfc_get(c, ns, key, KEY_BYTES, buf, BLOCK);
	CHECK(!bfs_between, "nothing came between");
	CHECK(n == -ENOENT, "%zd", n);
	bfc_close(c);
	free(buf);
	free(key);
	drop();
}

/* ... or between its check and its copy: what is copied is held until it was. */
static void t_get_held(void)
{
	make(8);
	opts.verify = BFS_VERIFY_OFF;
	without_eviction();
	put_block(1, BLOCK);
	bfc *c = join();
	u8 *buf = malloc(BLOCK), *key = keys_of(1, 1);
	steps_left = 5, bfs_between = refill_at_step; /* two look-ups, the announcement, the check */
	ssize_t n = bfc_get(c, ns, key, KEY_BYTES, buf, BLOCK);
	CHECK(!bfs_between, "nothing came between");
	CHECK(n == BLOCK && is_block(buf, 1, BLOCK), "%zd, or another block's bytes", n);
	for (int i = 0; i < 3; i++) OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	bfc_close(c);
	free(buf);
	free(key);
	drop();
}

/* Between what one says and the look at what the other has said there is a full fence, on either side. */
static struct bfs_mem_ops traced;
static bool fenced;
static u32 looks;
static void fence_traced(struct bfs_mem *m)
{
	fenced = true;
	bfs_ops_coherent.fence(m);
}
static void step_traced(int step)
{
	if (step == BFS_SAYS) {
		fenced = false;
		return;
	}
	CHECK(fenced, "no fence before the look");
	looks++;
}
static void t_fences(void)
{
	struct bfs_snap low;
	u8 *buf = malloc(BLOCK);
	make(8);
	put_block(1, BLOCK);
	bfc *c = join();
	traced = bfs_ops_coherent, traced.fence = fence_traced;
	mem.ops = c->mem.ops = &traced, bfs_step = step_traced;
	looks = 0;
	OK(bfs_apply_scan(b));
	IS(looks, 1);
	low = ld_lowest_reader(b, ld_newest(b));
	IS(low.txn, ld_newest(b).txn);
	IS(looks, 2);
	IS(bfc_get(c, ns, key_of(1), KEY_BYTES, buf, BLOCK), BLOCK);
	IS(looks, 3);
	/* a host that follows pins the root that it is about to read: the other one leads from its first change on */
	struct bfs *two;
	u64 more;
	OK(bfs_attach(&mem, &other, &two));
	IS(bfs_block_put(b, ns, key_of(2), KEY_BYTES, buf, BLOCK), -EAGAIN);
	OK(bfs_ns_create(two, "more", &more));
	looks = 0;
	OK(bfs_refresh(b));
	CHECK(looks, "nothing was pinned");
	OK(bfs_detach(two, true));
	mem.ops = c->mem.ops = &bfs_ops_coherent, bfs_step = NULL;
	bfc_close(c);
	free(buf);
	drop();
}

/* A daemon that dies while it tells of a root has told of none: the one before is whole. */
static struct bfs_snap told;
static bfc *listener;
static void listen_now(void)
{
	struct bfs_snap s = ld_newest(&listener->b);
	CHECK(s.txn == told.txn && s.root.page == told.root.page && s.root.txn == told.root.txn && s.root.term == told.root.term, "half a root: %llu of page %u", (unsigned long long)s.txn, s.root.page);
	bfs_between = NULL;
}
static void t_half(void)
{
	make(8);
	listener = join();
	struct bfs_snap next = told = ld_newest(b);
	next.txn++, next.root.page++, next.root.txn++;
	bfs_between = listen_now;
	ld_set_snap(b, next);
	CHECK(!bfs_between, "nothing came between");
	told = next;
	listen_now();
	told.txn--, told.root.page--, told.root.txn--;
	ld_set_snap(b, told);
	bfc_close(listener);
	drop();
}
#endif

/* ---- the daemon goes ------------------------------------------------------------------------------- */
static void restart(bool clean)
{
	OK(bfs_detach(b, clean));
	attach();
}

static void t_restart(void)
{
	for (int clean = 0; clean < 2; clean++) {
		struct bfs_client who[2];
		struct rd r;
		make(8);
		without_eviction();
		for (u64 k = 0; k < 40; k++) put_block(k, 4096);
		put_block(100, BLOCK);
		bfc *c = join(), *d = join();
		struct bfc_block x = leased(c, 100), y;
		OK(rd_begin(&d->b, &r));
		/* what the dead one did last and told nobody: the tree is ahead of the host file */
		struct bfs_snap before = ld_newest(b);
		delete_block(100);
		if (!clean) ld_set_snap(b, before);
		restart(clean);
		IS(bfs_clients(b, who, 2), 2);
		CHECK(who[0].leases + who[1].leases == 1, "leases");
		for (u64 k = 0; k < 20; k++) delete_block(k);
		fill();
		churn(300);
		CHECK(is_block(x.addr, 100, BLOCK), "another block's bytes under a lease");
		memset((void *)d->b.valid, 0, d->b.sb.meta_pages * sizeof *d->b.valid);
		IS(walk(&r.v), 40);
		rd_end(&r);
		/* the process goes on with the new daemon */
		IS(lease_one(c, 100, &y), 0);
		y = leased(d, last_filled); /* a block of the new daemon */
		OK(bfc_release(d, &y, 1));
		OK(bfc_release(c, &x, 1));
		for (int i = 0; i < 3; i++) OK(bfs_tick(b));
		IS(st().quarantined_granules, 0);
		bfc_close(c);
		bfc_close(d);
		drop();
	}
}

/* No daemon at all: look-ups and leases go on; another host leads, and takes nothing of what they read. */
static void t_alone(void)
{
	for (int clean = 0; clean < 2; clean++) {
		struct bfs_client who[2];
		make(8);
		without_eviction();
		put_block(1, BLOCK);
		put_block(2, BLOCK);
		bfc *c = join();
		struct bfc_block x = leased(c, 1), y;
		OK(bfs_detach(b, clean));
		struct bfs_opts own = opts;
		opts = other;
		attach();
		delete_block(1);
		delete_block(2);
		for (u64 k = 10; k < 30; k++) put_block(k, 4096);
		fill();
		churn(300);
		CHECK(is_block(x.addr, 1, BLOCK), "another block's bytes under a lease");
		y = leased(c, 2); /* in the state that its host had */
		OK(bfc_release(c, &y, 1));
		OK(bfc_release(c, &x, 1));
		detach(false);
		opts = own;
		attach();
		IS(bfs_clients(b, who, 2), 1);
		IS(lease_one(c, 1, &y), 0);
		bfc_close(c);
		detach(true);
		/* both slots in order */
		opts = other;
		attach();
		drop();
		opts = own;
	}
}

/* Declared dead: what was leased under that registration is lost, and whoever gives it back is told. */
static void t_dead(void)
{
	make(8);
	put_block(1, BLOCK);
	put_block(2, BLOCK);
	bfc *c = join();
	struct bfc_block x = leased(c, 1), y = leased(c, 2), z;
	OK(bfs_detach(b, false));
	struct bfs_opts own = opts;
	opts = other;
	attach();
	OK(bfc_release(c, &y, 1));
	OK(bfc_check(c));
	OK(bfs_declare_dead(b, 0, false));
	IS(bfc_check(c), -ESTALE);
	CHECK(strstr(bfc_error(), "still in use"), "%s", bfc_error());
	IS(bfc_release(c, &x, 1), -ESTALE);
	CHECK(strstr(bfc_error(), "declared dead"), "%s", bfc_error());
	IS(x.lease, CL_NO_LEASE);
	OK(bfc_check(c)); /* nothing is held any more */
	y = leased(c, 2);
	detach(false);
	/* it registers again: what it leases from now on is sound, what it leased before isn't */
	opts = own;
	attach();
	z = leased(c, 2);
	OK(bfc_release(c, &z, 1));
	IS(bfc_release(c, &y, 1), -ESTALE);
	bfc_close(c);
	detach(true);
	opts = other;
	attach();
	drop();
	opts = own;
}

/* The first pin of a daemon doesn't replace the newest of its predecessor's: it is torn for a moment. */
static struct bfs_mem_ops watched;
static u64 must_cover, watch_off;
static int watched_stores;
static void watch_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	struct bfs_line *line = (struct bfs_line *)(m->base + watch_off);
	for (int i = 0; i < 2; i++) {
		const struct bfs_line *that = line + BFS_L_PIN_A + !i;
		if (d != line + BFS_L_PIN_A + i || watched_stores++) continue;
		CHECK(bfs_line_check(that, 0x1234567, 0, BFS_L_PIN_A + !i) > 0 && that->w[1] <= must_cover && must_cover <= that->w[3],
		      "snapshot %llu isn't pinned while the first pin is being stored; the other line has %llu to %llu", (unsigned long long)must_cover, (unsigned long long)that->w[1], (unsigned long long)that->w[3]);
	}
	bfs_ops_coherent.store(m, d, s, n);
}
static void t_pins(void)
{
	for (int odd = 0; odd < 2; odd++) {
		make(8);
		bfc *c = join();
		for (u64 k = 0; k < 20 + (u64)odd; k++) put_block(k, 4096);
		must_cover = ld_newest(b).txn;
		watch_off = (u64)((u8 *)host_line(b, 0, 0) - mem.base);
		OK(bfs_detach(b, false));
		watched = bfs_ops_coherent, watched.store = watch_store, watched_stores = 0;
		mem.ops = &watched;
		attach();
		CHECK(watched_stores, "no pin was stored");
		mem.ops = &bfs_ops_coherent;
		bfc_close(c);
		drop();
	}
}

/* Leases that are kept in another directory: nobody attaches as that host before they end. */
static void t_strangers(void)
{
	make(8);
	char moved[80];
	put_block(1, BLOCK);
	bfc *c = join();
	struct bfc_block x = leased(c, 1);
	struct bfs_client who[2];
	OK(bfs_detach(b, false));
	b = NULL;
	snprintf(moved, sizeof moved, "%s.moved", base);
	OK(rename(base, moved));
	IS(bfs_attach(&mem, &opts, &b), -EBUSY);
	CHECK(strstr(bfs_errmsg(), "read this pool in place"), "%s", bfs_errmsg());
	opts.local = "";
	IS(bfs_attach(&mem, &opts, &b), -EBUSY);
	opts.local = "/proc/none";
	IS(bfs_attach(&mem, &opts, &b), -EBUSY);
	struct bfs_opts own = opts;
	opts = other;
	opts.local = "/proc/none"; /* nothing can be shared there, and nobody has to be found */
	attach();
	CHECK(bfs_local_error(b) < 0, "a directory in /proc");
	detach(false);
	CHECK(is_block(x.addr, 1, BLOCK), "block");
	opts = own, opts.local = moved;
	attach();
	IS(bfs_clients(b, who, 2), 1);
	bfc_close(c);
	OK(bfs_detach(b, false));
	opts.local = base;
	attach();
	char sub[160];
	snprintf(sub, sizeof sub, "rm -rf %s", moved);
	CHECK(!system(sub), "rm");
	drop();
}

/* ---- the process goes -------------------------------------------------------------------------------- */
/* f in a child, with a connection that the parent has no part of; a byte comes when it is done, then it waits to be killed */
static pid_t child(void (*f)(bfc *c), int *done)
{
	int fd[3], p[2];
	char byte;
	OK(pipe(p));
	fflush(stdout);
	OK(bfs_client_new(b, 0, 0, fd));
	pid_t pid = fork();
	if (!pid) {
		bfc *c;
		for (int i = 3; i < 100; i++) /* it is no part of the daemon */
			if (i != p[1] && i != fd[0] && i != fd[1] && i != fd[2]) close(i);
		OK(bfc_open(fd[0], fd[1], fd[2], &c));
		f(c);
		IS(write(p[1], "x", 1), 1);
		for (;;) pause();
	}
	for (int i = 0; i < 3; i++) close(fd[i]);
	close(p[1]);
	IS(read(p[0], &byte, 1), 1);
	if (done) *done = p[0];
	else close(p[0]);
	return pid;
}
static void end(pid_t pid)
{
	int how;
	kill(pid, SIGKILL);
	IS(waitpid(pid, &how, 0), pid);
}
static void lease_1(bfc *c) { leased(c, 1); }
static void read_on(bfc *c)
{
	struct rd r;
	OK(rd_begin(&c->b, &r));
}

static void t_killed(void)
{
	struct bfs_client who[4];
	make(8);
	without_eviction();
	put_block(1, BLOCK);
	pid_t one = child(lease_1, NULL), two = child(read_on, NULL);
	IS(bfs_clients(b, who, 4), 2);
	u64 low = ld_newest(b).txn;
	delete_block(1);
	fill();
	IS(st().quarantined_granules, BLOCK / 4096);
	CHECK(ls_lowest(b, UINT64_MAX) == low, "the snapshot of a process that lives");
	end(one);
	IS(bfs_clients(b, who, 4), 1); /* whoever notices it first */
	OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	end(two);
	OK(bfs_tick(b));
	CHECK(ls_lowest(b, UINT64_MAX) == UINT64_MAX, "the snapshot of a dead process");
	IS(bfs_clients(b, who, 4), 0);
	/* while no daemon runs */
	one = child(read_on, NULL);
	OK(bfs_detach(b, true));
	end(one);
	attach();
	IS(bfs_clients(b, who, 4), 0);
	drop();
}

/* A child of a process has no connection, and keeps none of its parent's. */
static void t_fork(void)
{
	struct bfs_client who[2];
	int how;
	make(8);
	put_block(1, BLOCK);
	bfc *c = join();
	struct bfc_block x = leased(c, 1);
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		struct bfc_block y;
		u8 present;
		IS(lease_one(c, 1, &y), -EOWNERDEAD);
		IS(bfc_exists(c, ns, key_of(1), KEY_BYTES, 1, &present), -EOWNERDEAD);
		IS(bfc_release(c, &x, 1), -EOWNERDEAD);
		bfc_close(c);
		for (;;) pause();
	}
	pid_t other_pid = fork();
	if (!other_pid)
		for (;;) pause(); /* knows nothing of it */
	usleep(100000);
	CHECK(is_block(x.addr, 1, BLOCK), "block");
	IS(bfs_clients(b, who, 2), 1);
	IS(who[0].leases, 1);
	bfc_close(c);
	OK(bfs_tick(b));
	int left = bfs_clients(b, who, 2);
	CHECK(waitpid(pid, &how, WNOHANG) == 0 && waitpid(other_pid, &how, WNOHANG) == 0, "a child has ended");
	end(pid);
	end(other_pid);
	IS(left, 0); /* though the children live */
	drop();
}

/* ---- what a process may do wrong ------------------------------------------------------------------------ */
static void t_full(void)
{
	make(16);
	put_block(1, 4096);
	bfc *c = join();
	int n = BFS_LOCAL_LEASES + 10, m = 0;
	struct bfc_block *x = calloc((size_t)n, sizeof *x), y;
	u8 *keys = malloc((size_t)n * KEY_BYTES);
	for (int i = 0; i < n; i++) memcpy(keys + (size_t)i * KEY_BYTES, key_of(1), KEY_BYTES);
	IS(bfc_lease(c, ns, keys, KEY_BYTES, n, x), BFS_LOCAL_LEASES);
	for (int i = 0; i < n; i++) m += x[i].error == -ENOBUFS;
	IS(m, 10);
	IS(bfc_get(c, ns, keys, KEY_BYTES, keys, 4096), -ENOBUFS);
	OK(bfs_tick(b));
	OK(bfc_release(c, x, n));
	for (int i = 0; i < n; i++) memcpy(keys + (size_t)i * KEY_BYTES, key_of(1), KEY_BYTES);
	IS(lease_one(c, 1, &y), 1);
	OK(bfc_release(c, &y, 1));
	IS(bfc_lease(c, ns, keys, KEY_BYTES, BFS_LOCAL_LEASES, x), BFS_LOCAL_LEASES);
	bfc_close(c);
	free(x);
	free(keys);
	drop();
}

static void scribble(bfc *c)
{
	struct rng r = {seed * 77 + 5};
	u64 *w = (u64 *)c->f;
	for (size_t i = 8; i < sizeof *c->f / 8; i++) w[i] = rnd(&r) & (below(&r, 2) ? ~0ull : 0xffff00000000ffffull);
}
static void cut(bfc *c) { OK(ftruncate(c->lease_fd, 4096)); }
static void t_garbage(void)
{
	make(16);
	pid_t one = child(scribble, NULL), two = child(cut, NULL);
	for (u64 k = 0; k < 100; k++) put_block(k, BLOCK);
	for (u64 k = 90; k < 100; k++) delete_block(k);
	churn(50);
	OK(bfs_detach(b, false));
	CHECK(bfs_attach(&mem, &opts, &b) == -EBUSY, "a lease file that was cut isn't taken for a sound one");
	end(two);
	attach();
	churn(50);
	end(one);
	for (int i = 0; i < 3; i++) OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	drop();
}

/* ---- all at once -------------------------------------------------------------------------------------------- */
#define SHARED 64
#define SMALL (64u << 10)
static _Atomic(bool) stop;
static _Atomic(u64) seen_blocks, refused_blocks;

static void reading(bfc *c, struct rng *r)
{
	struct bfc_block x[16];
	u8 keys[16 * KEY_BYTES];
	u64 which[16];
	for (int i = 0; i < 16; i++) {
		which[i] = below(r, SHARED);
		memcpy(keys + i * KEY_BYTES, key_of(which[i]), KEY_BYTES);
	}
	int n = bfc_lease(c, ns, keys, KEY_BYTES, 16, x);
	CHECK(n >= 0, "lease: %s", text(n));
	if (below(r, 4) == 0) usleep(below(r, 2000));
	for (int i = 0; i < 16; i++) {
		if (x[i].error) {
			CHECK(x[i].error == -ENOENT, "block %llu: %s", (unsigned long long)which[i], text(x[i].error));
			continue;
		}
		CHECK(is_block(x[i].addr, which[i], SMALL), "block %llu has another one's bytes", (unsigned long long)which[i]);
	}
	OK(bfc_release(c, x, 16));
	atomic_fetch_add(&seen_blocks, (u64)n);
	atomic_fetch_add(&refused_blocks, 16 - (u64)n);
	n = bfc_match(c, ns, keys, KEY_BYTES, 16);
	CHECK(n >= 0, "match: %s", text(n));
}
static void *reader_thread(void *arg)
{
	struct rng r = {(u64)(uintptr_t)arg * 99991 + 1};
	while (!atomic_load(&stop)) reading(*(bfc **)&((void **)arg)[0], &r);
	return NULL;
}
static void *writer_thread(void *arg)
{
	struct rng r = {(u64)(uintptr_t)arg + 12345};
	static __thread u8 buf[SMALL];
	while (!atomic_load(&stop)) {
		u64 k = below(&r, SHARED);
		pattern(k, 0, buf, SMALL);
		int rc = below(&r, 3) ? bfs_block_put(b, ns, key_of(k), KEY_BYTES, buf, SMALL) : bfs_block_delete(b, ns, key_of(k), KEY_BYTES);
		CHECK(!rc || rc == -EEXIST || rc == -ENOENT || rc == -ENOSPC, "write: %s", text(rc));
	}
	return NULL;
}
static void *tick_thread(void *arg)
{
	while (!atomic_load(&stop)) {
		OK(bfs_tick(b));
		usleep(2000);
	}
	return arg;
}
static void t_threads(void)
{
	enum { PROCESSES = 2, READERS = 2, WRITERS = 2 };
	pthread_t t[READERS + WRITERS + 1];
	pid_t pid[PROCESSES];
	int fd[PROCESSES][3], how;
	void *arg[READERS];
	u32 ms = (u32)env("MS", 1500);
	make(8);
	/* a third of what the keys would take: eviction goes on all the time */
	u64 blocks = (st().data_granules - st().used_granules) * 4096 / SMALL;
	for (u64 k = SHARED + 1000; blocks > SHARED / 3; k++, blocks--) {
		char name[32];
		snprintf(name, sizeof name, "%llu", (unsigned long long)k);
		u64 fh = create(1, name, O_WRONLY, NULL);
		static u8 buf[SMALL];
		write_(fh, 0, buf, SMALL);
		OK(bfs_fsync(b, fh));
		write_(fh, 0, buf, 1); /* written on: no block, not evicted */
		close_(fh);
	}
	fflush(stdout);
	for (int i = 0; i < PROCESSES; i++) {
		OK(bfs_client_new(b, 0, 0, fd[i]));
		if ((pid[i] = fork())) continue;
		bfc *c;
		struct rng r = {(u64)i * 7919 + 3};
		OK(bfc_open(fd[i][0], fd[i][1], fd[i][2], &c));
		double until = now() + ms / 1000.0;
		while (now() < until) reading(c, &r);
		_exit(0);
	}
	for (int i = 0; i < PROCESSES; i++)
		for (int k = 0; k < 3; k++) close(fd[i][k]);
	atomic_store(&stop, false);
	bfc *c = join();
	for (int i = 0; i < READERS; i++) {
		arg[i] = c;
		OK(pthread_create(&t[i], NULL, reader_thread, &arg[i]));
	}
	for (int i = 0; i < WRITERS; i++) OK(pthread_create(&t[READERS + i], NULL, writer_thread, (void *)(uintptr_t)(i + 1)));
	OK(pthread_create(&t[READERS + WRITERS], NULL, tick_thread, NULL));
	/* on a machine that has other work, until there was something to be seen */
	usleep(ms * 1000);
	for (double until = now() + 60; now() < until && (seen_blocks <= 100 || refused_blocks <= 100 || !st().evicted_blocks);) usleep(100000);
	atomic_store(&stop, true);
	for (int i = 0; i < READERS + WRITERS + 1; i++) OK(pthread_join(t[i], NULL));
	for (int i = 0; i < PROCESSES; i++) {
		IS(waitpid(pid[i], &how, 0), pid[i]);
		CHECK(WIFEXITED(how) && !WEXITSTATUS(how), "process %d: status %x", i, how);
	}
	printf("   %llu blocks read under a lease, %llu not there, %llu evicted\n", (unsigned long long)seen_blocks, (unsigned long long)refused_blocks, (unsigned long long)st().evicted_blocks);
	CHECK(seen_blocks > 100 && refused_blocks > 100 && st().evicted_blocks > 0, "the test tests nothing");
	bfc_close(c);
	for (int i = 0; i < 3; i++) OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	drop();
}

/* Lines of the pool are stored over while others read them: torn, they have a wrong checksum, which is what it is for. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:co_store\nrace:mm_load\n"; }

/* One announces a lease and looks at the newest root, one sets a root and looks at the leases: one of them sees the other. */
static _Atomic(int) ready;
static struct { bfc *c; struct cl_group *g; _Atomic(u64) saw; } litmus;
static void meet(int round)
{
	atomic_fetch_add(&ready, 1);
	while (atomic_load_explicit(&ready, memory_order_relaxed) < 2 * round) {}
}
static void *announcing(void *arg)
{
	int rounds = *(int *)arg;
	for (int i = 1; i <= rounds; i++) {
		struct cl_group *g = litmus.g;
		meet(2 * i - 1);
		cl_announce(litmus.c, g);
		u64 txn = ld_newest(&litmus.c->b).txn;
		atomic_store(&litmus.saw, txn);
		meet(2 * i);
		bfc_release(litmus.c, &(struct bfc_block){.lease = g->entry[0]}, 1);
	}
	return NULL;
}
static int found;
static int find_any(void *arg, u64 addr, u32 len)
{
	(void)arg, (void)addr, (void)len;
	found++;
	return 0;
}
static void t_litmus(void)
{
	int rounds = env("LITMUS", 3000), missed = 0;
	struct bfc_block x;
	pthread_t t;
	make(8);
	put_block(1, 4096);
	litmus.c = join(), litmus.g = malloc(sizeof *litmus.g);
	litmus.g->n = 1, litmus.g->block = &x;
	OK(cl_find(litmus.c, ns, key_of(1), KEY_BYTES, NULL, litmus.g));
	rd_end(&litmus.g->r);
	atomic_store(&ready, 0);
	OK(pthread_create(&t, NULL, announcing, &rounds));
	struct bfs_snap s = ld_newest(b), old = s;
	u64 *word = NULL;
	for (int i = 1; i <= rounds; i++) {
		s.txn++;
		word = &litmus.c->f->held[0].word;
		meet(2 * i - 1);
		for (int k = 0; k < i % 400; k++) __asm__ volatile("" ::: "memory");
		ld_set_snap(b, s);
		mm_fence(b->m);
		u64 w = __atomic_load_n(word, __ATOMIC_ACQUIRE);
		meet(2 * i);
		missed += !w && atomic_load(&litmus.saw) < s.txn;
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE)) {}
	}
	OK(pthread_join(t, NULL));
	IS(missed, 0);
	found = 0;
	OK(ls_held(b, find_any, NULL));
	IS(found, 0);
	ld_set_snap(b, old);
	bfc_close(litmus.c);
	free(litmus.g);
	drop();
}

/* The same of snapshots: one announces what it reads and looks again, one sets a root and looks at who reads.
 * (That the daemon passes a fence before it looks can't be seen here: the lock of its table is one, too, on this
 * processor; and so is what stands between the entries of a read that copies and its check, a snapshot's announcement: "fences".) */
#ifdef BFS_MUTANTS
/* stores that both sides make before the ones that matter: these wait behind them */
static struct { _Alignas(64) volatile u64 w; } stalled[24];
static void stall(void)
{
	for (u32 i = 0; i < sizeof stalled / sizeof *stalled; i++) stalled[i].w = i;
}
#endif
static void *reading_on(void *arg)
{
	int rounds = *(int *)arg;
	for (int i = 1; i <= rounds; i++) {
		struct rd r;
		meet(2 * i - 1);
		OK(rd_begin(&litmus.c->b, &r));
		IS(r.slot, 0);
		atomic_store(&litmus.saw, r.s.txn);
		meet(2 * i);
		rd_end(&r);
	}
	return NULL;
}
static void t_litmus_reader(void)
{
	int rounds = env("LITMUS", 3000), missed = 0;
	pthread_t t;
	make(8);
	litmus.c = join();
	atomic_store(&ready, 0);
#ifdef BFS_MUTANTS
	bfs_between = stall;
#endif
	OK(pthread_create(&t, NULL, reading_on, &rounds));
	struct bfs_snap s = ld_newest(b), old = s;
	for (int i = 1; i <= rounds; i++) {
		s.txn++;
		meet(2 * i - 1);
		for (int k = 0; k < i % 400; k++) __asm__ volatile("" ::: "memory");
		ld_set_snap(b, s);
		mm_fence(b->m);
		u64 slot = __atomic_load_n(&litmus.c->f->reader[0].txn, __ATOMIC_ACQUIRE);
		meet(2 * i);
		u64 saw = atomic_load(&litmus.saw);
		missed += saw < s.txn && (slot < 2 || slot - 1 > saw);
	}
	OK(pthread_join(t, NULL));
#ifdef BFS_MUTANTS
	bfs_between = NULL;
#endif
	IS(missed, 0);
	ld_set_snap(b, old);
	bfc_close(litmus.c);
	drop();
}

/* Looked at, not judged. */
static void t_speed(void)
{
	enum { N = 938, MANY = 20000, ROUNDS = 200 };
	make(1024);
	u8 *keys = keys_of(0, MANY), *absent = keys_of(1 << 30, MANY), *present = malloc(MANY);
	struct bfc_block *x = calloc(N, sizeof *x);
	OK(bfs_batch_begin(b));
	for (u64 k = 0; k < MANY; k++) {
		put_block(k, 4096);
		if (k % 100 == 99) {
			OK(bfs_batch_commit(b));
			OK(bfs_batch_begin(b));
		}
	}
	OK(bfs_batch_commit(b));
	bfc *c = join();
	double t0, match = 1e9, none = 1e9, lease = 1e9, release = 1e9, many = 1e9, first;
	t0 = now();
	IS(bfc_lease(c, ns, keys, KEY_BYTES, N, x), N);
	first = now() - t0;
	OK(bfc_release(c, x, N));
	for (int i = 0; i < ROUNDS; i++) {
		t0 = now();
		IS(bfc_match(c, ns, keys, KEY_BYTES, N), N);
		if (now() - t0 < match) match = now() - t0;
		t0 = now();
		IS(bfc_exists(c, ns, absent, KEY_BYTES, N, present), 0);
		if (now() - t0 < none) none = now() - t0;
		t0 = now();
		IS(bfc_lease(c, ns, keys, KEY_BYTES, N, x), N);
		if (now() - t0 < lease) lease = now() - t0;
		t0 = now();
		OK(bfc_release(c, x, N));
		if (now() - t0 < release) release = now() - t0;
		t0 = now();
		IS(bfc_exists(c, ns, keys, KEY_BYTES, MANY, present), MANY);
		if (now() - t0 < many) many = now() - t0;
	}
	printf("   938 keys: match %.0f us, absent %.0f us, lease %.0f us (at first %.0f us), release %.0f us; look-ups %.1f M/s\n", match * 1e6, none * 1e6, lease * 1e6, first * 1e6, release * 1e6, MANY / many / 1e6);
	bfc_close(c);
	free(keys);
	free(absent);
	free(present);
	free(x);
	drop();
}

/* ---- mutants --------------------------------------------------------------------------------------------------- */
static const struct test tests[] = {
	{"basic", t_basic, false}, {"held", t_held, false}, {"evict", t_evict, false}, {"steps", t_steps, false}, {"reader", t_reader, false},
	{"restart", t_restart, false}, {"alone", t_alone, false}, {"dead", t_dead, false}, {"pins", t_pins, false}, {"strangers", t_strangers, false}, {"killed", t_killed, false},
	{"fork", t_fork, false}, {"full", t_full, false}, {"garbage", t_garbage, false}, {"threads", t_threads, false}, {"litmus", t_litmus, false},
	{"litmus-reader", t_litmus_reader, false},
	{"speed", t_speed, false},
#ifdef BFS_MUTANTS
	{"between", t_between, false}, {"get", t_get, false}, {"get-held", t_get_held, false}, {"fences", t_fences, false}, {"half", t_half, false},
#endif
};

#ifdef BFS_MUTANTS
int bfs_mutant;
static const struct { int id; const char *name, *test; } mutants[] = {
	{MUT_READER_NOT_CHECKED, "reader-not-checked", "between"},
	{MUT_LEASE_NOT_CHECKED, "lease-not-checked", "steps"},
	{MUT_LEASE_NO_FENCE, "lease-no-fence", "litmus"},
	{MUT_READER_NO_FENCE, "reader-no-fence", "litmus-reader"},
	{MUT_GET_NOT_CHECKED, "get-not-checked", "get"},
	{MUT_LEASES_HIGH_OLD, "leases-high-old", "held"},
	{MUT_LEASED_EVICTED, "leased-evicted", "evict"},
	{MUT_LEASE_WORDS_BELIEVED, "lease-words-believed", "garbage"},
	{MUT_DEAD_PROCESS_KEPT, "dead-process-kept", "killed"},
	{MUT_CHILD_KEEPS_CONNECTION, "child-keeps-connection", "fork"},
	{MUT_HOST_FILE_ONE_COPY, "host-file-one-copy", "half"},
	{MUT_PROCESS_LEASES_IGNORED, "process-leases-ignored", "held"},
	{MUT_PROCESS_READERS_IGNORED, "process-readers-ignored", "reader"},
	{MUT_LEASES_NOT_TAKEN_OVER, "leases-not-taken-over", "restart"},
	{MUT_STRANGERS_IGNORED, "strangers-ignored", "strangers"},
	{MUT_DETACHED_CLEAN, "detached-clean", "alone"},
	{MUT_PIN_LINE_OLD, "pin-line-old", "pins"},
	{MUT_NO_LEASE_LOST, "no-lease-lost", "dead"},
	{MUT_SCAN_NO_FENCE, "scan-no-fence", "fences"},
	{MUT_LOWEST_NO_FENCE, "lowest-no-fence", "fences"},
	{MUT_GET_NO_FENCE, "get-no-fence", "fences"},
	{MUT_PIN_NO_FENCE, "pin-no-fence", "fences"},
	{MUT_RELEASED_EARLY, "released-early", "held"},
	{MUT_RELEASED_EARLY, "released-early", "get-held"},
};
#include "t_mutants.h"
#endif

int main(int argc, char **argv)
{
#ifdef BFS_MUTANTS
	if (argc == 2 && !strcmp(argv[1], "--mutants")) return run_mutants("t_lease");
	bfs_mutant = env("MUTANT", 0);
#endif
	return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
