/* Processes that store in place: what they have reserved is theirs until they commit it, drop it or end, whichever
 * daemon serves them.
 *
 *   t_write [name]
 *   t_write --mutants    in builds with BFS_MUTANTS: each step left out in turn is noticed */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include "t_client.h"
#include "ring.h"

static pthread_mutex_t server_mx = PTHREAD_MUTEX_INITIALIZER; /* it isn't ended while a ring is given to it */
static struct rg_server *server;

static int here(void *arg, bfc *c, int ring_fd, int bell_fd, int got[2])
{
	int rc = -ECONNREFUSED;
	(void)arg;
	pthread_mutex_lock(&server_mx);
	if (server) {
		u64 owner = bfs_client_of(b, c->lease_fd);
		CHECK(owner, "this daemon doesn't know the lease file");
		got[0] = dup(pool_fd), got[1] = -1;
		rc = rg_server_add_for(server, ring_fd, bell_fd, -1, owner, NULL);
	}
	pthread_mutex_unlock(&server_mx);
	return rc;
}
static void serve(void)
{
	pthread_mutex_lock(&server_mx);
	OK(rg_server_start(&(struct rg_server_opts){.ctx = b}, &server));
	pthread_mutex_unlock(&server_mx);
}
static void serve_no_more(void)
{
	pthread_mutex_lock(&server_mx);
	struct rg_server *s = server;
	server = NULL;
	pthread_mutex_unlock(&server_mx);
	rg_server_stop(s);
}
static void start(u64 mib)
{
	make(mib);
	serve();
}
static void daemon_dies(bool clean)
{
	serve_no_more();
	OK(bfs_detach(b, clean));
	b = NULL;
}
static void daemon_comes(void)
{
	attach();
	serve();
}
static void finish(void)
{
	for (int i = 0; i < 3; i++) OK(bfs_tick(b));
	IS(st().quarantined_granules, 0);
	IS(st().norphans, 0);
	serve_no_more();
	detach(true); /* fsck */
	drop();
}
static bfc *writer(void)
{
	bfc *c = join();
	c->hand_over = here, c->patience_ns = 5000000000ull;
	return c;
}
static u64 used(void) { return st().used_granules; }
static u64 reserved(u64 *granules)
{
	u64 n, g;
	bfs_reservations(b, &n, granules ? granules : &g);
	return n;
}
static void fill_room(struct bfc_new *r, u64 k) { pattern(k, 0, r->addr, r->filled_bytes); }
/* Everything that may be used again is, several times over. */
static u64 others = 1000000;
static void fill(void)
{
	for (int i = 0; i < 80; i++) put_block(others++, BLOCK);
	CHECK(st().evicted_blocks > 20, "the pool isn't full");
}
/* block k: filled bytes of its pattern, then zeros up to size */
static void delete_block(u64 k) { OK(bfs_block_delete(b, ns, key_of(k), KEY_BYTES)); }
static void is_there(u64 k, u64 filled, u64 size)
{
	static u8 got[2 << 20];
	IS(bfs_block_get(b, ns, key_of(k), KEY_BYTES, got, sizeof got), size);
	CHECK(is_block(got, k, filled), "block %llu has other bytes", (unsigned long long)k);
	for (u64 i = filled; i < size; i++) CHECK(!got[i], "block %llu: old bytes behind what was filled, at %llu", (unsigned long long)k, (unsigned long long)i);
}

static void t_basic(void)
{
	enum { N = 20 };
	struct bfc_new r[N], again;
	struct bfc_block x;
	u64 id, other_ns, g;
	int32_t error[N];
	start(16);
	u64 before = used();
	bfc *c = writer();
	OK(bfc_namespace_create(c, "more", &other_ns));
	OK(bfc_namespace_create(c, "more", &ns));
	IS(ns, other_ns);
	IS(bfc_namespace_create(c, "a/b", &ns), -EINVAL);
	OK(bfc_reserve(c, ns, N, BLOCK, r, &id));
	IS(reserved(&g), 1);
	IS(g, N * BLOCK / 4096);
	for (int i = 0; i < N; i++) memset(r[i].addr, 0xee, BLOCK); /* what is behind the filled part mustn't be seen */
	for (u32 i = 0; i < N; i++) {
		if (i % 3 == 1) r[i].filled_bytes = BLOCK - 5000 * (i + 1) - i;
		if (i == 3) r[i].size_bytes = r[i].filled_bytes = 777;
		if (i == 6) r[i].filled_bytes = 0;
		fill_room(&r[i], i);
	}
	u8 *keys = keys_of(0, N);
	IS(bfc_commit(c, id, keys, KEY_BYTES, 10, r), 10);
	for (u64 i = 0; i < 10; i++) is_there(i, r[i].filled_bytes, r[i].size_bytes);
	/* they are read in place by others, and by this one */
	bfc *d = join();
	x = leased(d, 0);
	CHECK(x.flags == BFC_VERIFIED, "not verified");
	OK(bfc_release(d, &x, 1));
	/* what is there, what was committed, what was never reserved */
	again = r[12];
	IS(bfc_commit(c, id, keys, KEY_BYTES, 1, &again), 0);
	IS(again.error, -EEXIST);
	again = r[2];
	IS(bfc_commit(c, id, keys + 15 * KEY_BYTES, KEY_BYTES, 1, &again), 0);
	IS(again.error, -EINVAL);
	again = r[12], again.filled_bytes = BLOCK + 1;
	IS(bfc_commit(c, id, keys + 15 * KEY_BYTES, KEY_BYTES, 1, &again), 0);
	IS(again.error, -EINVAL);
	IS(bfc_commit(c, id + 99, keys + 15 * KEY_BYTES, KEY_BYTES, 1, &r[12]), -ENOENT);
	IS(bfc_reserve(c, ns, 0, BLOCK, r, &id), -EINVAL);
	IS(bfc_reserve(c, ns, 1, 1ull << 40, &again, &g), -EFBIG);
	IS(bfc_reserve(c, 1, 1, BLOCK, &again, &g), -EINVAL);
	IS(reserved(NULL), 1);
	/* block 12's room has survived that */
	fill_room(&r[12], 12);
	IS(bfc_commit(c, id, keys + 12 * KEY_BYTES, KEY_BYTES, 1, &r[12]), 1);
	is_there(12, r[12].filled_bytes, BLOCK);
	OK(bfc_drop(c, id));
	OK(bfc_drop(c, id));
	IS(reserved(NULL), 0);
	IS(bfc_commit(c, id, keys + 13 * KEY_BYTES, KEY_BYTES, 1, &r[13]), -ENOENT);
	/* a second one gets a number, and a place in the lease file, of its own */
	u64 a, z;
	OK(bfc_reserve(c, ns, 1, 4096, &r[0], &a));
	OK(bfc_reserve(c, ns, 1, 4096, &r[1], &z));
	CHECK(a != z && a != id && r[0].addr != r[1].addr, "numbers");
	OK(bfc_drop(c, a));
	OK(bfc_drop(c, z));
	/* copies, of all sizes */
	const void *data[6];
	size_t size[6] = {100, 0, 70000, 70000, 200000, 5};
	for (int i = 0; i < 6; i++) pattern(100 + (u64)i, 0, (void *)(data[i] = malloc(size[i] + 1)), size[i]);
	u8 *more = keys_of(100, 6);
	IS(bfc_put(c, ns, more, KEY_BYTES, 6, data, size, error), 6);
	IS(bfc_put(c, ns, more, KEY_BYTES, 6, data, size, error), 0);
	for (int i = 0; i < 6; i++) IS(error[i], -EEXIST);
	for (int i = 0; i < 6; i++) is_there(100 + (u64)i, size[i], size[i]), free((void *)data[i]);
	IS(bfc_pin(c, ns, more, KEY_BYTES, 6, BFC_PIN_HARD, error), 6);
	char how[16] = "";
	u64 ino;
	OK(bfc_lease(c, ns, more + 2 * KEY_BYTES, KEY_BYTES, 1, &x) == 1 ? 0 : -1);
	ino = x.inode;
	OK(bfc_release(c, &x, 1));
	IS(bfs_getxattr(b, ino, "user.beluga.pin", how, sizeof how), 4);
	CHECK(!memcmp(how, "hard", 4), "%s", how);
	IS(bfc_pin(c, ns, more, KEY_BYTES, 6, BFC_UNPIN, error), 6);
	IS(bfc_delete(c, ns, more, KEY_BYTES, 6, error), 6);
	IS(bfc_delete(c, ns, more, KEY_BYTES, 6, error), 0);
	IS(error[5], -ENOENT);
	IS(bfc_delete(c, ns, keys, KEY_BYTES, N, error), 11);
	free(keys);
	free(more);
	bfc_close(c);
	bfc_close(d);
	for (int i = 0; i < 4; i++) OK(bfs_tick(b));
	IS(used(), before);
	finish();
}

/* The daemon ends, by whatever way, with reservations half filled; the pool is filled by others; the process goes on. */
static void t_restart(void)
{
	for (int clean = 0; clean < 2; clean++) {
		struct bfc_new r[4], more[3];
		u64 id, id2, gone, g;
		start(8);
		u64 before = used();
		bfc *c = writer(), *d = writer();
		OK(bfc_reserve(c, ns, 4, BLOCK, r, &id));
		OK(bfc_reserve(c, ns, 3, 70000, more, &id2));
		struct bfc_new lost[8];
		OK(bfc_reserve(d, ns, 8, 70000, lost, &gone));
		for (u32 i = 0; i < 4; i++) fill_room(&r[i], i);
		u8 *keys = keys_of(0, 10);
		IS(bfc_commit(c, id, keys, KEY_BYTES, 1, r), 1);
		for (int round = 0; round < 3; round++) {
			daemon_dies(clean);
			/* nobody is there, and it stores on */
			fill_room(&r[2], 2);
			if (!round) bfc_close(d); /* what this one had goes with it */
			daemon_comes();
			IS(reserved(&g), 2);
			IS(g, 3 * (BLOCK / 4096) + 3 * 18);
			IS(st().norphans, 2);
			fill(); /* as many blocks as fit, again and again */
			for (u32 i = 1; i < 4; i++) CHECK(is_block(r[i].addr, i, BLOCK), "somebody else's bytes in reserved room");
		}
		for (u32 i = 0; i < 3; i++) fill_room(&more[i], 5 + i);
		IS(bfc_commit(c, id, keys + KEY_BYTES, KEY_BYTES, 3, r + 1), 3);
		IS(bfc_commit(c, id2, keys + 5 * KEY_BYTES, KEY_BYTES, 2, more), 2);
		for (u64 i = 1; i < 4; i++) is_there(i, BLOCK, BLOCK);
		for (u64 i = 5; i < 7; i++) is_there(i, 70000, 70000);
		/* dropped while nobody is there to be told */
		daemon_dies(clean);
		OK(bfc_drop(c, id));
		daemon_comes();
		IS(reserved(NULL), 2);
		OK(bfc_drop(c, id2));
		OK(bfc_drop(c, id));
		IS(reserved(NULL), 0);
		for (u64 k = 0; k < others; k++) {
			if (k == 10) k = 1000000;
			int rc = bfs_block_delete(b, ns, key_of(k), KEY_BYTES);
			CHECK(!rc || rc == -ENOENT, "delete: %s", text(rc));
		}
		for (int i = 0; i < 4; i++) OK(bfs_tick(b));
		IS(used(), before);
		free(keys);
		bfc_close(c);
		finish();
	}
}

/* What was asked of a daemon that died before it answered is asked of the next one, and isn't done twice. */
static void t_again(void)
{
	struct bfs_commit k[3];
	u64 off[3], same[3], g;
	start(8);
	bfc *c = writer();
	u64 me = bfs_client_of(b, c->lease_fd);
	CHECK(me && !bfs_client_of(b, pool_fd), "whose lease file is it?");
	OK(rv_reserve(b, me, 55, false, ns, 3, BLOCK, off));
	daemon_dies(false);
	daemon_comes();
	me = bfs_client_of(b, c->lease_fd);
	OK(rv_reserve(b, me, 55, true, ns, 3, BLOCK, same));
	CHECK(!memcmp(off, same, sizeof off), "another place");
	IS(rv_reserve(b, me, 55, true, ns, 2, BLOCK, same), -EEXIST);
	IS(rv_reserve(b, me, 55, false, ns, 3, BLOCK, same), -EEXIST);
	IS(reserved(&g), 1);
	IS(g, 3 * BLOCK / 4096);
	IS(rv_reserve(b, me + 99, 55, false, ns, 3, BLOCK, same), -EPERM);
	u8 *keys = keys_of(0, 3);
	for (u32 i = 0; i < 3; i++) {
		pattern(i, 0, mem.base + off[i], BLOCK);
		k[i] = (struct bfs_commit){.index = i, .key = keys + i * KEY_BYTES, .klen = KEY_BYTES, .filled_bytes = BLOCK};
	}
	OK(rv_commit(b, me, 55, false, k, 2));
	daemon_dies(false);
	daemon_comes();
	me = bfs_client_of(b, c->lease_fd);
	OK(rv_commit(b, me, 55, true, k, 3));
	for (u32 i = 0; i < 3; i++) OK(k[i].rc);
	OK(rv_commit(b, me, 55, false, k, 1));
	IS(k[0].rc, -EINVAL); /* not asked before, as far as it knows */
	k[0].index = 3;
	OK(rv_commit(b, me, 55, true, k, 1));
	IS(k[0].rc, -EINVAL); /* never reserved */
	for (u64 i = 0; i < 3; i++) is_there(i, BLOCK, BLOCK);
	IS(rv_commit(b, me, 56, true, k, 1), -ENOENT);
	OK(rv_release(b, me, 55));
	OK(rv_release(b, me, 55));
	free(keys);
	bfc_close(c);
	finish();
}

/* A daemon is killed at each of its stores and fences while it reserves, commits and releases for a process that lives. */
static struct { u32 step, stage; } *progress;
static u32 kill_at;
static void step(void)
{
	if (++progress->step == kill_at) _exit(0);
}
static void step_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	step();
	bfs_ops_coherent.store(m, d, s, n);
}
static void step_fence(struct bfs_mem *m)
{
	step();
	bfs_ops_coherent.fence(m);
}
static void fill_and_commit(u64 me, const u64 *off, const u8 *keys, bool again)
{
	struct bfs_commit k[3];
	for (u32 i = 0; i < 3; i++) {
		if (off[i]) pattern(i, 0, mem.base + off[i], BLOCK);
		k[i] = (struct bfs_commit){.index = i, .key = keys + i * KEY_BYTES, .klen = KEY_BYTES, .filled_bytes = BLOCK};
	}
	OK(rv_commit(b, me, 55, again, k, 3));
	for (u32 i = 0; i < 3; i++) OK(k[i].rc);
}
static bool daemon_until(u32 at, int lease_fd, const u8 *keys) /* true: it did all of it */
{
	int how;
	kill_at = at, progress->step = progress->stage = 0;
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		struct bfs_mem_ops ops = bfs_ops_coherent;
		u64 off[3], me;
		attach();
		me = bfs_client_of(b, lease_fd);
		ops.store = step_store, ops.fence = step_fence, mem.ops = &ops;
#ifdef BFS_MUTANTS
		bfs_between = step;
#endif
		OK(rv_reserve(b, me, 55, false, ns, 3, BLOCK, off));
		progress->stage = 1;
		fill_and_commit(me, off, keys, false);
		progress->stage = 2;
		OK(rv_release(b, me, 55));
		progress->stage = 3;
		_exit(7);
	}
	IS(waitpid(pid, &how, 0), pid);
	CHECK(WIFEXITED(how) && (WEXITSTATUS(how) == 0 || WEXITSTATUS(how) == 7), "the daemon: status %x at %u", how, at);
	return WEXITSTATUS(how) == 7;
}
static void t_steps(void)
{
	u8 *keys = keys_of(0, 3);
	progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	make(8);
	u64 before = used(), off[3], steps = 0, kept = 0;
	bfc *c = join();
	char path[64]; /* a child has no connection: it finds the lease file by another descriptor, which doesn't keep its lock */
	snprintf(path, sizeof path, "/proc/self/fd/%d", c->lease_fd);
	int lease = open(path, O_RDONLY);
	detach(true);
	/* some of the thousand; STRIDE=1 all of them */
	u32 stride = (u32)env("STRIDE", 4), at = 1 + (u32)seed % stride;
	for (bool all = false; !all; steps++, at += stride) {
		all = daemon_until(at, lease, keys);
		attach();
		u64 me = bfs_client_of(b, c->lease_fd), n = reserved(NULL);
		CHECK(n <= 1 && st().norphans == n, "%llu reservations, %llu orphans", (unsigned long long)n, (unsigned long long)st().norphans);
		if (progress->stage == 1) IS(n, 1);
		if (progress->stage == 3) IS(n, 0);
		kept += n;
		if (n || progress->stage < 2) { /* asked again: by a process that has no answer, or goes on */
			OK(rv_reserve(b, me, 55, true, ns, 3, BLOCK, off));
			IS(reserved(NULL), 1);
			fill_and_commit(me, off, keys, true);
			OK(rv_release(b, me, 55));
		}
		IS(reserved(NULL), 0);
		for (u64 i = 0; i < 3; i++) is_there(i, BLOCK, BLOCK), delete_block(i);
		for (int i = 0; i < 4; i++) OK(bfs_tick(b));
		IS(used(), before);
		detach(true);
	}
	printf("   %llu steps, %llu with a reservation that was there afterwards\n", (unsigned long long)steps, (unsigned long long)kept);
	CHECK(steps > 20 && kept > 5 && kept < steps, "the test tests nothing");
	close(lease);
	free(keys);
	munmap(progress, 4096);
	bfc_close(c);
	attach();
	OK(bfs_tick(b));
	IS(reserved(NULL), 0);
	detach(true);
	drop();
}

static pid_t child(int n)
{
	int fd[3], told[2];
	char word;
	OK(bfs_client_new(b, 0, 0, fd));
	u64 me = bfs_client_of(b, fd[2]), off[8];
	fflush(stdout);
	CHECK(!pipe(told), "pipe");
	for (int i = 0; i < n; i++) OK(rv_reserve(b, me, 100 + (u64)i, false, ns, 2, BLOCK, off));
	pid_t pid = fork();
	if (!pid) { /* it maps its room, and stores until its end */
		bfc *c;
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody */
		for (int i = 3; i < 100; i++) /* it is no part of the daemon */
			if (i != told[1] && i != fd[0] && i != fd[1] && i != fd[2] && i != pool_fd) close(i);
		OK(bfc_open(fd[0], fd[1], fd[2], &c));
		volatile u8 *room = cl_map(pool_fd, mem.size, PROT_READ | PROT_WRITE);
		CHECK(write(told[1], "x", 1) == 1, "write");
		for (u32 i = 0;; i++) room[off[i % 2] + i % BLOCK] = 0x77;
	}
	for (int i = 0; i < 3; i++) close(fd[i]);
	CHECK(read(told[0], &word, 1) == 1, "read");
	close(told[0]);
	close(told[1]);
	return pid;
}
static void end(pid_t pid)
{
	int how;
	OK(kill(pid, SIGKILL));
	IS(waitpid(pid, &how, 0), pid);
}

/* A process that is killed: the daemon gives back what it had at the next tick, or when the room is needed; the next
 * daemon does, if there was none. */
static void t_killed(void)
{
	start(8);
	u64 before = used(), off[16];
	pid_t pid = child(3);
	IS(reserved(NULL), 3);
	OK(bfs_tick(b));
	IS(reserved(NULL), 3);
	end(pid);
	OK(bfs_tick(b));
	IS(reserved(NULL), 0);
	IS(used(), before);
	/* at once, where it is needed */
	pid = child(5);
	bfc *c = writer();
	u64 me = bfs_client_of(b, c->lease_fd);
	IS(rv_reserve(b, me, 1, false, ns, 8, BLOCK, off), -ENOSPC);
	end(pid);
	OK(rv_reserve(b, me, 2, false, ns, 8, BLOCK, off));
	OK(rv_release(b, me, 2));
	/* without a daemon */
	pid = child(3);
	daemon_dies(false);
	daemon_comes();
	IS(reserved(NULL), 3);
	daemon_dies(false);
	end(pid);
	daemon_comes();
	IS(reserved(NULL), 0);
	IS(used(), before);
	/* between the end of one daemon that ends in order, and the next */
	pid = child(3);
	daemon_dies(true);
	end(pid);
	daemon_comes();
	IS(reserved(NULL), 0);
	IS(used(), before);
	bfc_close(c);
	finish();
}

/* What a lease file says of reservations is looked at before it is believed. */
static void t_garbage(void)
{
	struct rng r = {seed + 77};
	struct bfc_new room[2];
	u64 id, off[2], fh, mine, g;
	struct bfs_attr a;
	start(8);
	bfc *c = writer(), *d = writer();
	OK(bfc_reserve(c, ns, 2, BLOCK, room, &id));
	fill_room(&room[0], 0);
	mine = c->f->res[0].ino;
	IS(c->f->res[0].number, id);
	IS(c->f->res[0].granules, BLOCK / 4096);
	OK(bfs_create(b, 1, N("file"), 0644, 0, 0, O_RDWR, &a, &fh));
	/* the same again; a file's, a directory's, nobody's; impossible sizes; noise */
	struct bfs_lres *bad = d->f->res, like = c->f->res[0];
	for (int i = 1; i < 12; i++) bad[i] = like, bad[i].number = (u64)i;
	for (int i = 1; i < 3; i++) c->f->res[i] = bad[i], bad[i].ino = 0;
	bad[3].ino = a.ino, bad[4].ino = 1, bad[5].ino = mine + (1ull << 32), bad[6].granules = 0, bad[7].granules = 1u << 30, bad[8].count = 0, bad[9].count = 1u << 30, bad[10].ino = ~0ull, bad[11].number = 0;
	for (u32 i = 100; i < BFS_LOCAL_RESERVATIONS; i++)
		for (u32 k = 0; k < 4; k++) ((u64 *)(void *)&bad[i])[k] = rnd(&r);
	daemon_dies(false);
	daemon_comes();
	IS(reserved(&g), 1);
	IS(g, 2 * BLOCK / 4096);
	for (u32 i = 1; i < BFS_LOCAL_RESERVATIONS; i++) CHECK(!bad[i].ino && !c->f->res[i].ino, "entry %u is still there", i);
	IS(bfs_lookup(b, 1, N("file"), &a), -ENOENT); /* as after any crash */
	bfc_close(d);
	OK(bfs_tick(b));
	u8 *keys = keys_of(0, 2);
	IS(bfc_commit(c, id, keys, KEY_BYTES, 1, room), 1);
	is_there(0, BLOCK, BLOCK);
	/* a file that is cut: no reservation of its process outlives this daemon, and that is all */
	bfc *e = writer();
	u64 me = bfs_client_of(b, e->lease_fd);
	CHECK(!ftruncate(e->lease_fd, 4096), "cut");
	IS(rv_reserve(b, me, 7, false, ns, 2, BLOCK, off), -ESTALE);
	OK(bfs_tick(b));
	IS(reserved(NULL), 1);
	munmap(e->f, sizeof *e->f), e->f = NULL;
	bfc_close(e);
	OK(bfc_drop(c, id));
	free(keys);
	bfc_close(c);
	finish();
}

/* Requests that no client of ours would make: an answer for each, and nothing is left of them. */
static void t_requests(void)
{
	enum { IN = 4096, OUT = 600 };
	struct rng r = {seed + 5};
	u8 *in = malloc(IN), *out;
	u64 done[10] = {0}, refused = 0;
	start(8);
	u64 before = used();
	bfc *c = writer();
	u64 me = bfs_client_of(b, c->lease_fd);
	for (int step = env("OPS", 20000); step; step--) {
		struct rg_job j = {.op = (u16)(RG_OP_RESERVE + below(&r, 3)), .again = below(&r, 4) == 0, .owner = below(&r, 20) ? me : below(&r, 3), .number = 1 + below(&r, 40), .in = in, .out_cap = below(&r, 8) ? OUT : below(&r, OUT)};
		out = malloc(j.out_cap + 1), j.out = out; /* exactly what it may write to */
		for (int i = 0; i < IN; i++) in[i] = (u8)rnd(&r);
		j.arg = below(&r, 10) ? (j.op == RG_OP_RESERVE ? ns : 1 + below(&r, 40)) : rnd(&r);
		if (j.op == RG_OP_RESERVE) {
			struct rg_room x = {.size_bytes = 1 + below(&r, 70000), .count = 1 + below(&r, 5)};
			if (!below(&r, 8)) x.size_bytes = rnd(&r);
			if (!below(&r, 8)) x.count = (u32)rnd(&r);
			memcpy(in, &x, sizeof x);
			j.in_len = below(&r, 10) ? sizeof x : below(&r, IN);
		} else if (j.op == RG_OP_COMMIT) {
			struct rg_keys h = {.count = below(&r, 7), .key_bytes = below(&r, 8) ? KEY_BYTES : below(&r, 70)};
			u32 sums = 0;
			for (u32 i = 0; i < h.count; i++) {
				struct rg_fill f = {.index = below(&r, 6), .filled_bytes = below(&r, 70000)};
				f.nsums = below(&r, 3) ? 1 : below(&r, 10) ? 0 : (u32)rnd(&r) % 4;
				if (!below(&r, 20)) f.index = (u32)rnd(&r);
				if (!below(&r, 20)) f.filled_bytes = rnd(&r);
				sums += f.nsums;
				memcpy(in + sizeof h + i * sizeof f, &f, sizeof f);
			}
			if (!below(&r, 10)) h.count = (u32)rnd(&r);
			memcpy(in, &h, sizeof h);
			u64 len = sizeof h + (u64)(h.count % 8) * (sizeof(struct rg_fill) + h.key_bytes) + 8 * sums;
			j.in_len = below(&r, 8) && len <= IN ? (u32)len : below(&r, IN);
		} else {
			j.in_len = below(&r, 3) ? 0 : below(&r, IN);
			if (below(&r, 3)) j.arg = 1 + below(&r, 40);
		}
		int rc = rg_core_exec(b, &j);
		CHECK(rc <= 0 && rc > -4096 && j.out_len <= j.out_cap, "%s, %u bytes of %u", text(rc), j.out_len, j.out_cap);
		if (rc) refused++;
		else done[j.op]++;
		free(out);
		if (!below(&r, 50)) OK(bfs_tick(b));
	}
	printf("   %llu reservations, %llu commits, %llu releases; %llu refused\n", (unsigned long long)done[RG_OP_RESERVE], (unsigned long long)done[RG_OP_COMMIT], (unsigned long long)done[RG_OP_RELEASE], (unsigned long long)refused);
	CHECK(done[RG_OP_RESERVE] > 50 && done[RG_OP_COMMIT] > 50, "the test tests nothing");
	free(in);
	bfc_close(c);
	OK(bfs_tick(b));
	IS(reserved(NULL), 0);
	/* what was committed has whatever checksum it was given */
	u64 freed = 1;
	while (freed) OK(bfs_evict(b, 1 << 20, &freed));
	for (int i = 0; i < 4; i++) OK(bfs_tick(b));
	IS(used(), before);
	finish();
}

/* Reservations and commits by two processes' threads beside eviction and readers; the daemon dies now and then. */
static _Atomic(bool) stop;
static _Atomic(u64) commits;
static void *writing(void *arg)
{
	bfc *c = arg;
	struct rng r = {(u64)(uintptr_t)arg | 1};
	while (!atomic_load(&stop)) {
		struct bfc_new room[6];
		u8 keys[6 * KEY_BYTES];
		u64 id, size = 4096 + below(&r, 100000), k[6];
		int n = 1 + (int)below(&r, 6), rc = bfc_reserve(c, ns, n, size, room, &id);
		CHECK(!rc || rc == -ENOSPC, "reserve: %s", text(rc));
		if (rc) continue;
		for (int i = 0; i < n; i++) {
			k[i] = below(&r, 400);
			/* of one size each, so that who finds it knows what it is */
			room[i].size_bytes = 4096 + k[i] * 11 % (size - 4095), room[i].filled_bytes = room[i].size_bytes;
			fill_room(&room[i], k[i]);
			memcpy(keys + i * KEY_BYTES, key_of(k[i]), KEY_BYTES);
		}
		rc = bfc_commit(c, id, keys, KEY_BYTES, n, room);
		CHECK(rc >= 0, "commit: %s", text(rc));
		for (int i = 0; i < n; i++) CHECK(!room[i].error || room[i].error == -EEXIST || room[i].error == -EINVAL || room[i].error == -ENOSPC, "commit: %s", text(room[i].error));
		commits += (u64)rc;
		OK(bfc_drop(c, id));
	}
	return NULL;
}
static void t_threads(void)
{
	enum { WRITERS = 3 };
	pthread_t t[WRITERS];
	bfc *c[2];
	struct rng r = {seed};
	start(8);
	for (int i = 0; i < 2; i++) c[i] = writer(), c[i]->patience_ns = 60000000000ull;
	bfc *reader = join();
	u64 seen = 0, rounds = 0;
	double until = now() + env("MS", 1500) / 1000.0;
	atomic_store(&stop, false);
	for (int i = 0; i < WRITERS; i++) OK(pthread_create(&t[i], NULL, writing, c[i % 2]));
	while (now() < until) {
		for (int i = 0; i < 30; i++) {
			struct bfc_block x;
			u64 k = below(&r, 400);
			if (lease_one(reader, k, &x) == 1) {
				CHECK(is_block(x.addr, k, x.size_bytes), "block %llu has other bytes", (unsigned long long)k);
				OK(bfc_release(reader, &x, 1));
				seen++;
			}
			OK(bfs_tick(b));
			usleep(1000);
		}
		daemon_dies(rounds++ % 2);
		daemon_comes();
	}
	atomic_store(&stop, true);
	for (int i = 0; i < WRITERS; i++) OK(pthread_join(t[i], NULL));
	printf("   %llu commits, %llu blocks read, %llu daemons\n", (unsigned long long)commits, (unsigned long long)seen, (unsigned long long)rounds);
	CHECK(commits > 100 && seen > 20 && rounds > 2, "the test tests nothing");
	IS(reserved(NULL), 0);
	bfc_close(c[0]);
	bfc_close(c[1]);
	bfc_close(reader);
	finish();
}

/* A child of fork has nothing of its parent's, and keeps nothing of it alive. */
static void t_fork(void)
{
	struct bfc_new room[2];
	u64 id;
	int how;
	start(8);
	bfc *c = writer();
	OK(bfc_reserve(c, ns, 2, BLOCK, room, &id));
	fflush(stdout);
	pid_t pid = fork();
	if (!pid) {
		bool ok = bfc_reserve(c, ns, 2, BLOCK, room, &id) == -EOWNERDEAD && bfc_drop(c, id) == -EOWNERDEAD && bfc_commit(c, id, "aa", 2, 1, room) == -EOWNERDEAD;
		bfc_close(c);
		_exit(!ok);
	}
	IS(waitpid(pid, &how, 0), pid);
	IS(how, 0);
	OK(bfs_tick(b));
	IS(reserved(NULL), 1);
	fill_room(room, 0);
	IS(bfc_commit(c, id, key_of(0), KEY_BYTES, 1, room), 1);
	bfc_close(c);
	OK(bfs_tick(b));
	IS(reserved(NULL), 0);
	finish();
}

/* No daemon: told so after the time that the caller has. */
static void t_alone(void)
{
	struct bfc_new room[2];
	u64 id;
	start(8);
	bfc *c = writer();
	OK(bfc_reserve(c, ns, 2, BLOCK, room, &id));
	bfc_patience(c, 50000000);
	daemon_dies(false);
	fill_room(room, 0);
	IS(bfc_commit(c, id, key_of(0), KEY_BYTES, 1, room), -ENOTCONN);
	CHECK(strstr(bfc_error(), "mount it"), "%s", bfc_error());
	daemon_comes();
	IS(bfc_commit(c, id, key_of(0), KEY_BYTES, 1, room), 1);
	OK(bfc_drop(c, id));
	is_there(0, BLOCK, BLOCK);
	c->hand_over = NULL;
	bfc *d = join();
	IS(bfc_reserve(d, ns, 2, BLOCK, room, &id), -EOPNOTSUPP);
	bfc_close(d);
	bfc_close(c);
	finish();
}

/* Looked at, not judged. */
/* Figures are told at any time: nobody who asks for them waits for a reservation, a commit or another change under way. */
static void *ask_figures(void *arg)
{
	struct bfs_client who[4];
	u64 *got = arg;
	struct bfs_stat s;
	OK(bfs_statfs(b, &s));
	got[0] = (u64)bfs_clients(b, who, 4);
	got[1] = reserved(&got[2]);
	return NULL;
}
static void t_figures(void)
{
	struct bfc_new r[5];
	u64 id, got[3];
	pthread_t t;
	start(16);
	bfc *c = writer();
	OK(bfc_reserve(c, ns, 5, BLOCK, r, &id));
	u8 *keys = keys_of(0, 5);
	for (u32 i = 0; i < 5; i++) fill_room(&r[i], i);
	IS(bfc_commit(c, id, keys, KEY_BYTES, 2, r), 2);
	pthread_mutex_lock(&b->rv.mx); /* as while one is made or committed, */
	pthread_mutex_lock(&b->wlock); /* or anything else is changed */
	OK(pthread_create(&t, NULL, ask_figures, got));
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	OK(-pthread_timedjoin_np(t, NULL, &until));
	pthread_mutex_unlock(&b->wlock);
	pthread_mutex_unlock(&b->rv.mx);
	IS(got[0], 1);
	IS(got[1], 1);
	IS(got[2], 3 * BLOCK / 4096);
	/* the next daemon counts what it takes over */
	daemon_dies(false);
	daemon_comes();
	u64 g;
	IS(reserved(&g), 1);
	IS(g, 3 * BLOCK / 4096);
	IS(bfc_commit(c, id, keys + 2 * KEY_BYTES, KEY_BYTES, 3, r + 2), 3);
	IS(reserved(&g), 1);
	IS(g, 0);
	OK(bfc_drop(c, id));
	IS(reserved(&g), 0);
	IS(g, 0);
	free(keys);
	bfc_close(c);
	finish();
}

static void t_speed(void)
{
	enum { N = 938, ROUNDS = 30 };
	static struct bfc_new r[N];
	double t0, reserve = 1e9, commit = 1e9, drop_ = 1e9;
	start(256);
	bfc *c = writer();
	u64 id;
	madvise(mem.base, mem.size, MADV_POPULATE_WRITE); /* as mkfs and the daemon do */
	for (int i = 0; i < ROUNDS; i++) {
		u8 *keys = keys_of(5000 + (u64)i * N, N);
		t0 = now();
		OK(bfc_reserve(c, ns, N, 4096, r, &id));
		if (now() - t0 < reserve) reserve = now() - t0;
		for (int k = 0; k < N; k++) memset(r[k].addr, k, 4096);
		t0 = now();
		IS(bfc_commit(c, id, keys, KEY_BYTES, N, r), N);
		if (now() - t0 < commit) commit = now() - t0;
		t0 = now();
		OK(bfc_drop(c, id));
		if (now() - t0 < drop_) drop_ = now() - t0;
		free(keys);
	}
	printf("   938 blocks of 4 KiB: reserve %.0f us, commit %.0f us with checksums, drop %.0f us: %.0f k/s\n", reserve * 1e6, commit * 1e6, drop_ * 1e6, N / (reserve + commit + drop_) / 1e3);
	bfc_close(c);
	finish();
}

static const struct test tests[] = {
	{"basic", t_basic, false}, {"restart", t_restart, false}, {"again", t_again, false}, {"steps", t_steps, false}, {"killed", t_killed, false}, {"garbage", t_garbage, false}, {"requests", t_requests, true},
	{"threads", t_threads, false}, {"fork", t_fork, false}, {"alone", t_alone, false}, {"figures", t_figures, false}, {"speed", t_speed, false},
};

#ifdef BFS_MUTANTS
int bfs_mutant;
static const struct { int id; const char *name, *test; } mutants[] = {
	{MUT_RESERVATIONS_NOT_KEPT, "reservations-not-kept", "restart"},
	{MUT_RESERVATION_NOT_NOTED, "reservation-not-noted", "restart"},
	{MUT_RESERVATION_OF_DEAD, "reservation-of-dead", "killed"},
	{MUT_COMMIT_NOT_REPEATED, "commit-not-repeated", "again"},
	{MUT_COMMIT_NOT_REPEATED, "commit-not-repeated", "steps"},
	{MUT_RESERVATION_NOT_NOTED, "reservation-not-noted", "steps"},
};
#include "t_mutants.h"
#endif

int main(int argc, char **argv)
{
#ifdef BFS_MUTANTS
	if (argc == 2 && !strcmp(argv[1], "--mutants")) return run_mutants("t_write");
	bfs_mutant = env("MUTANT", 0);
#endif
	return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
