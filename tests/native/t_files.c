/* Files of the core, alone, by two hosts, by threads.
 *
 *   t_files [test] */
#include "t_pool.h"
#include "file.h"

/* ---- one thing each ------------------------------------------------------------------------ */
static void t_basic(void)
{
	u8 buf[20000], got[20001];
	u64 ino, fh, fh2;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(1, 0, buf, sizeof buf);
	fh = create(1, "f", O_RDWR | O_EXCL, &ino);
	a = attr(ino);
	CHECK(a.state == BFS_ST_NEW && a.cls == BFS_CLS_BLOCK && !a.size && a.owner == 1, "new: state %u cls %u", a.state, a.cls);
	write_(fh, 0, buf, 5000);
	CHECK(attr(ino).size == 5000, "size at once");
	IS(bfs_read(b, fh, 0, got, sizeof got), 5000);
	CHECK(!memcmp(got, buf, 5000), "read back");
	IS(bfs_read(b, fh, 4990, got, 100), 10);
	IS(bfs_read(b, fh, 5000, got, 100), 0);
	write_(fh, 9000, buf + 9000, 1000); /* over a gap */
	IS(bfs_read(b, fh, 4900, got, 4200), 4200);
	for (int i = 100; i < 4100; i++) CHECK(!got[i], "gap isn't zero at %d", i);
	CHECK(!memcmp(got, buf + 4900, 100) && !memcmp(got + 4100, buf + 9000, 100), "around the gap");
	CHECK(there(1, "f"), "own host sees it");
	close_(fh);
	a = attr(ino);
	CHECK(a.state == BFS_ST_SEALED && a.cls == BFS_CLS_BLOCK && a.size == 10000 && a.version == 1 && a.granules == 3 && !a.owner, "sealed: state %u cls %u size %llu v %u g %llu", a.state, a.cls,
	      (unsigned long long)a.size, a.version, (unsigned long long)a.granules);
	IS(bfs_write(b, fh, 0, buf, 1), -EBADF);
	IS(bfs_release(b, fh), -EBADF);

	/* reopening for writing alone changes nothing, writing does */
	fh = open_(ino, O_RDWR);
	OK(bfs_flush(b, fh, false));
	CHECK(attr(ino).version == 1 && attr(ino).cls == BFS_CLS_BLOCK, "opened only");
	fh2 = open_(ino, O_RDONLY);
	write_(fh, 100, buf + 7000, 50);
	a = attr(ino);
	CHECK(a.state == BFS_ST_DIRTY && a.cls == BFS_CLS_ORDINARY, "dirty: state %u cls %u", a.state, a.cls);
	IS(bfs_read(b, fh2, 100, got, 50), 50);
	CHECK(!memcmp(got, buf + 7000, 50), "other descriptor sees it");
	IS(bfs_write(b, fh2, 0, buf, 1), -EBADF);
	close_(fh);
	a = attr(ino);
	CHECK(a.state == BFS_ST_SEALED && a.version == 2 && a.granules == 3, "sealed again: v %u g %llu", a.version, (unsigned long long)a.granules);
	IS(bfs_read(b, fh2, 0, got, 10000), 10000);
	memcpy(buf + 100, buf + 7000, 50);
	memset(buf + 5000, 0, 4000);
	CHECK(!memcmp(got, buf, 10000), "content after the second seal");
	OK(bfs_release(b, fh2));

	/* append, truncate at open, truncate by name */
	fh = open_(ino, O_WRONLY | O_APPEND);
	write_(fh, 3, "abc", 3);
	CHECK(attr(ino).size == 10003, "append");
	IS(bfs_read(b, fh, 0, got, 1), -EBADF);
	close_(fh);
	a.size = 4097;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE, &a, 0, &a));
	CHECK(a.size == 4097 && a.state == BFS_ST_SEALED && a.granules == 2, "truncate: %llu state %u g %llu", (unsigned long long)a.size, a.state, (unsigned long long)a.granules);
	a.size = 9000;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE, &a, 0, &a));
	fh = open_(ino, O_RDONLY);
	IS(bfs_read(b, fh, 0, got, sizeof got), 9000);
	CHECK(!memcmp(got, buf, 4097), "what was kept");
	for (int i = 4097; i < 9000; i++) CHECK(!got[i], "old byte %d came back", i);
	OK(bfs_release(b, fh));
	fh = open_(ino, O_WRONLY | O_TRUNC);
	CHECK(!attr(ino).size, "O_TRUNC");
	close_(fh);
	CHECK(!attr(ino).granules, "O_TRUNC keeps %llu granules", (unsigned long long)attr(ino).granules);

	/* create what exists */
	IS(bfs_create(b, 1, N("f"), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh), -EEXIST);
	OK(bfs_create(b, 1, N("f"), 0644, 0, 0, O_WRONLY, &a, &fh));
	CHECK(a.ino == ino, "same file");
	close_(fh);
	OK(bfs_mkdir(b, 1, N("d"), 0755, 0, 0, &a));
	IS(bfs_create(b, 1, N("d"), 0644, 0, 0, O_WRONLY, &a, &fh), -EISDIR);
	IS(bfs_open(b, a.ino, O_RDONLY, &fh), -EISDIR);

	/* times: utimes before close wins, a later write wins */
	fh = create(1, "t", O_WRONLY, &ino);
	write_(fh, 0, buf, 10);
	a.mtime_ns = 1234567890123456789ll;
	OK(bfs_setattr(b, ino, BFS_SET_MTIME, &a, fh, &a));
	CHECK(a.mtime_ns == 1234567890123456789ll, "utimes on an open file: %lld", (long long)a.mtime_ns);
	close_(fh);
	CHECK(attr(ino).mtime_ns == 1234567890123456789ll, "the seal has changed the mtime");
	fh = open_(ino, O_WRONLY);
	write_(fh, 0, buf, 10);
	CHECK(attr(ino).mtime_ns > 1234567890123456789ll, "mtime of a write");
	close_(fh);
	CHECK(attr(ino).mtime_ns > 1234567890123456789ll, "mtime after the seal");
	check_space();
	drop_pool();
}

static void t_unlink(void)
{
	u8 buf[9000], got[9000];
	u64 ino, fh, rd_, used;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(3, 0, buf, sizeof buf);
	for (int sealed = 0; sealed < 2; sealed++) {
		used = st().used_granules;
		fh = create(1, "f", O_RDWR, &ino);
		write_(fh, 0, buf, sizeof buf);
		if (sealed) OK(bfs_flush(b, fh, false));
		rd_ = open_(ino, O_RDONLY);
		OK(bfs_unlink(b, 1, N("f")));
		CHECK(!there(1, "f"), "unlinked");
		CHECK(attr(ino).nlink == 0, "nlink");
		IS(bfs_read(b, rd_, 0, got, sizeof got), sizeof got);
		CHECK(!memcmp(got, buf, sizeof got), "unlinked data");
		write_(fh, 100, "zz", 2); /* still a file */
		IS(bfs_read(b, rd_, 100, got, 2), 2);
		CHECK(!memcmp(got, "zz", 2), "write after unlink");
		OK(bfs_flush(b, fh, false));
		CHECK(st().norphans == 1, "orphan");
		OK(bfs_release(b, fh));
		CHECK(st().norphans == 1, "orphan while a reader is there");
		OK(bfs_release(b, rd_));
		CHECK(st().norphans == 0, "orphan freed");
		IS(bfs_getattr(b, ino, &a), -ESTALE);
		CHECK(st().used_granules == used, "space comes back: %llu", (unsigned long long)st().used_granules);
		check_space();
	}
	/* the same, ended by a crash */
	fh = create(1, "g", O_RDWR, &ino);
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_unlink(b, 1, N("g")));
	OK(bfs_tick(b));
	detach(false);
	attach();
	CHECK(st().norphans == 0 && st().nunsealed == 0, "orphans after a crash");
	check_space();
	drop_pool();
}

static void t_crash(void)
{
	u8 buf[100000], got[100000];
	u64 n1, n2, n3, n4, n5, n6, fh;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(5, 0, buf, sizeof buf);
	fh = create(1, "new", O_RDWR, &n1);
	write_(fh, 0, buf, 5000);
	fh = create(1, "synced", O_RDWR, &n2);
	write_(fh, 0, buf, 50000);
	OK(bfs_fsync(b, fh));
	fh = create(1, "sync+write", O_RDWR, &n3);
	write_(fh, 0, buf, 5000);
	OK(bfs_fsync(b, fh));
	write_(fh, 5000, buf + 5000, 30000);
	write_(fh, 10, buf, 10);
	n4 = put(1, "sealed", 5, 70000);
	n5 = put(1, "dirty", 5, 70000);
	fh = open_(n5, O_RDWR);
	write_(fh, 1000, buf, 100);
	write_(fh, 69000, buf, 2000);
	fh = create(1, "closed+fork", O_RDWR, &n6); /* a duplicate goes on after the first close */
	write_(fh, 0, buf, 100);
	OK(bfs_flush(b, fh, false));
	write_(fh, 100, buf + 100, 100);
	CHECK(attr(n6).cls == BFS_CLS_BLOCK && attr(n6).state == BFS_ST_DIRTY, "class of a first writing that goes on: %u", attr(n6).cls);
	for (int crash = 0; crash < 2; crash++) {
		detach(crash); /* first a crash, then nothing is open: a clean one */
		attach();
		CHECK(!there(1, "new"), "never closed");
		IS(bfs_getattr(b, n1, &a), -ESTALE);
		a = attr(n2);
		CHECK(a.size == 50000 && a.state == BFS_ST_SEALED && !(a.flags & BFS_OF_UNVERIFIED), "synced");
		check_block(n2, 5, 50000);
		a = attr(n3);
		CHECK(a.size == 35000 && a.state == BFS_ST_SEALED && a.flags & BFS_OF_UNVERIFIED, "sync+write: size %llu flags %u", (unsigned long long)a.size, a.flags);
		fh = open_(n3, O_RDONLY);
		IS(bfs_read(b, fh, 0, got, sizeof got), 35000);
		CHECK(!memcmp(got + 20, buf + 20, 34980) && !memcmp(got + 10, buf, 10), "sync+write: content");
		OK(bfs_release(b, fh));
		check_block(n4, 5, 70000);
		a = attr(n5);
		CHECK(a.size == 71000 && a.state == BFS_ST_SEALED && a.flags & BFS_OF_UNVERIFIED, "dirty: size %llu flags %u", (unsigned long long)a.size, a.flags);
		fh = open_(n5, O_RDONLY);
		IS(bfs_read(b, fh, 0, got, sizeof got), 71000);
		CHECK(!memcmp(got, buf, 1000) && !memcmp(got + 1000, buf, 100) && !memcmp(got + 1100, buf + 1100, 67900) && !memcmp(got + 69000, buf, 2000), "dirty: content");
		OK(bfs_release(b, fh));
		CHECK(attr(n6).size == 200 && attr(n6).flags & BFS_OF_UNVERIFIED, "closed+fork");
		CHECK(st().nunsealed == 0, "unsealed");
		check_space();
	}
	/* written anew from the start it is verified again */
	fh = open_(n5, O_WRONLY | O_TRUNC);
	write_(fh, 0, buf, 1000);
	close_(fh);
	CHECK(!(attr(n5).flags & BFS_OF_UNVERIFIED), "unverified for ever");
	check_block(n5, 5, 1000);
	drop_pool();
}

static void t_killed(void)
{
	u8 buf[9000];
	u64 ino, fh, rd_;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(7, 0, buf, sizeof buf);
	fh = create(1, "f", O_RDWR, &ino);
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	a = attr(ino);
	CHECK(a.state == BFS_ST_ABANDONED && a.size == sizeof buf && a.granules == 3, "abandoned: state %u size %llu g %llu", a.state, (unsigned long long)a.size, (unsigned long long)a.granules);
	check_block(ino, 7, sizeof buf);
	detach(false);
	attach();
	CHECK(attr(ino).state == BFS_ST_ABANDONED, "abandoned stays so");
	check_block(ino, 7, sizeof buf);
	/* who opens it for reading keeps O_EXCL out, else the name is free */
	rd_ = open_(ino, O_RDONLY);
	IS(bfs_create(b, 1, N("f"), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh), -EEXIST);
	OK(bfs_release(b, rd_));
	OK(bfs_create(b, 1, N("f"), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
	CHECK(a.ino != ino, "replaced");
	ino = a.ino;
	write_(fh, 0, buf, 100);
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	/* somebody takes it up again */
	fh = open_(ino, O_WRONLY);
	write_(fh, 100, buf + 100, 100);
	CHECK(attr(ino).state == BFS_ST_NEW, "taken up: state %u", attr(ino).state);
	close_(fh);
	CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).size == 200, "and sealed");
	check_block(ino, 7, 200);
	/* a kill in a later writing seals as usual */
	fh = open_(ino, O_WRONLY);
	write_(fh, 200, buf + 200, 100);
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).size == 300, "killed in a rewriting");
	/* first to go */
	u64 old = put(1, "old", 8, 100000);
	fh = create(1, "tmp", O_RDWR, &ino);
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	u64 freed;
	OK(bfs_evict(b, 1, &freed));
	CHECK(!there(1, "tmp") && there(1, "old"), "abandoned first");
	check_block(old, 8, 100000);
	/* what was synced is kept; written on after that, it is a journal or a log, and no block */
	fh = create(1, "synced", O_RDWR, &ino);
	write_(fh, 0, buf, 5000);
	OK(bfs_fsync(b, fh));
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).cls == BFS_CLS_BLOCK, "synced, killed: state %u cls %u", attr(ino).state, attr(ino).cls);
	check_block(ino, 7, 5000);
	for (int how = 0; how < 3; how++) { /* closed, killed, crashed */
		fh = create(1, how == 0 ? "j0" : how == 1 ? "j1" : "j2", O_RDWR, &ino);
		write_(fh, 0, buf, 5000);
		OK(bfs_fsync(b, fh));
		write_(fh, 5000, buf + 5000, 1000);
		if (how == 2) {
			detach(false);
			attach();
		} else {
			OK(bfs_flush(b, fh, how == 1));
			OK(bfs_release(b, fh));
		}
		CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).cls == BFS_CLS_ORDINARY, "journal %d: state %u cls %u", how, attr(ino).state, attr(ino).cls);
		check_block(ino, 7, 6000);
	}
	check_space();
	detach(true);
	/* publish=close */
	opts.publish_close = true;
	attach();
	fh = create(1, "p", O_RDWR, &ino);
	write_(fh, 0, buf, sizeof buf);
	CHECK(!there(1, "p"), "hidden until close");
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	IS(bfs_getattr(b, ino, &a), -ESTALE);
	fh = create(1, "p", O_RDWR, &ino); /* synced or not: never seen before its close */
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_fsync(b, fh));
	OK(bfs_flush(b, fh, true));
	OK(bfs_release(b, fh));
	IS(bfs_getattr(b, ino, &a), -ESTALE);
	ino = put(1, "p", 9, 5000);
	CHECK(there(1, "p"), "shown after close");
	check_space();
	drop_pool();
}

/* What makes a block: written in one go, or put together in several openings that only add, before
 * it gets another name. */
static void t_class(void)
{
	u8 buf[16384];
	u64 ino, fh, freed;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(3, 0, buf, sizeof buf);
	enum { ADDS, SHARES, EMPTIES, OVERWRITES, CUTS, SYNCS, HOWS };
	for (int how = 0; how < HOWS; how++) {
		u8 cls = how < OVERWRITES ? BFS_CLS_BLOCK : BFS_CLS_ORDINARY;
		u64 cut = how == SHARES ? 5000 : 4096; /* where two openings meet: inside a page, or not */
		fh = create(1, "tmp", O_RDWR, &ino);
		write_(fh, 8192, buf + 8192, 4096); /* a hole before it */
		close_(fh);
		CHECK(attr(ino).cls == BFS_CLS_BLOCK, "written once");
		if (how == EMPTIES) {
			fh = open_(ino, O_RDWR | O_TRUNC);
			write_(fh, 8192, buf + 8192, 4096);
			close_(fh);
		}
		fh = open_(ino, O_RDWR);
		write_(fh, 0, buf, cut);
		close_(fh);
		fh = open_(ino, O_RDWR);
		write_(fh, 12288, buf + 12288, 4096);
		if (how == OVERWRITES) write_(fh, 9000, buf + 9000, 100);
		if (how == CUTS) {
			OK(bfs_setattr(b, ino, BFS_SET_SIZE, &(struct bfs_attr){.size = 10000}, fh, &a));
			write_(fh, 10000, buf + 10000, 6384);
		}
		if (how == SYNCS) {
			OK(bfs_fsync(b, fh));
			write_(fh, 4096, buf + 4096, 4096);
		}
		close_(fh);
		if (how != SYNCS) {
			fh = open_(ino, O_RDWR);
			write_(fh, cut, buf + cut, 8192 - cut);
			close_(fh);
		}
		CHECK(attr(ino).cls == BFS_CLS_ORDINARY, "several openings");
		OK(bfs_rename(b, 1, N("tmp"), 1, N("f"), 0));
		CHECK(attr(ino).cls == cls, "how %d: class %u once it is renamed", how, attr(ino).cls);
		detach(how & 1);
		attach();
		CHECK(attr(ino).cls == cls, "how %d: class %u after a remount", how, attr(ino).cls);
		check_block(ino, 3, sizeof buf);
		/* it has its name now: written again, whatever is written, it is ordinary */
		fh = open_(ino, O_WRONLY);
		write_(fh, 16384, buf, 10);
		close_(fh);
		OK(bfs_rename(b, 1, N("f"), 1, N("g"), 0));
		CHECK(attr(ino).cls == BFS_CLS_ORDINARY, "written again: class %u", attr(ino).cls);
	}
	/* another name instead of a rename; with two names it stays, with one it goes */
	ino = put(1, "t", 3, sizeof buf);
	OK(bfs_link(b, ino, 1, N("l"), &a));
	CHECK(a.cls == BFS_CLS_BLOCK && a.nlink == 2, "linked: class %u, %u names", a.cls, a.nlink);
	OK(bfs_evict(b, 1, &freed));
	CHECK(!freed && there(1, "t") && there(1, "l"), "evicted with two names");
	OK(bfs_unlink(b, 1, N("t")));
	OK(bfs_evict(b, 1, &freed));
	CHECK(freed && !there(1, "l"), "one name: a block");
	fh = create(1, "t", O_RDWR, &ino);
	write_(fh, 0, buf, 4096);
	close_(fh);
	fh = open_(ino, O_WRONLY);
	write_(fh, 4096, buf + 4096, 4096);
	close_(fh);
	OK(bfs_link(b, ino, 1, N("l"), &a));
	CHECK(a.cls == BFS_CLS_BLOCK, "put together, then linked: class %u", a.cls);
	check_space();
	drop_pool();
}

static void t_sparse(void)
{
	u8 buf[5000], got[10000];
	u64 ino, fh, tib = 1ull << 40;
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(11, 0, buf, sizeof buf);
	fh = create(1, "s", O_RDWR, &ino);
	a.size = tib;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE, &a, fh, &a));
	CHECK(a.size == tib && !a.granules, "1 TiB of hole");
	write_(fh, tib - 5000, buf, 5000);
	write_(fh, tib / 2 + 100, buf, 3000);
	IS(bfs_read(b, fh, tib / 2, got, 10000), 10000);
	for (int i = 0; i < 10000; i++) CHECK(got[i] == (i >= 100 && i < 3100 ? buf[i - 100] : 0), "byte %d", i);
	close_(fh);
	CHECK(attr(ino).granules == 3, "%llu granules", (unsigned long long)attr(ino).granules);
	detach(true);
	attach();
	fh = open_(ino, O_RDWR);
	IS(bfs_read(b, fh, tib - 5000, got, 10000), 5000);
	CHECK(!memcmp(got, buf, 5000), "end of 1 TiB");
	IS(bfs_read(b, fh, 0, got, 10000), 10000);
	for (int i = 0; i < 10000; i++) CHECK(!got[i], "hole");
	write_(fh, 12345678, buf, 100);
	close_(fh);
	CHECK(attr(ino).granules == 4, "%llu granules", (unsigned long long)attr(ino).granules);
	fh = open_(ino, O_RDONLY);
	IS(bfs_read(b, fh, tib / 2 + 100, got, 3000), 3000);
	CHECK(!memcmp(got, buf, 3000), "middle after the reseal");
	OK(bfs_release(b, fh));
	a.size = 100;
	OK(bfs_setattr(b, ino, BFS_SET_SIZE, &a, 0, &a));
	CHECK(!a.granules, "truncated");
	fh = open_(ino, O_RDWR);
	IS(bfs_write(b, fh, 1ull << 50, buf, 1), -EFBIG);
	close_(fh);
	printf("   %llu of %llu metadata pages\n", (unsigned long long)st().meta_pages_used, (unsigned long long)st().meta_pages);
	drop_pool();
}

static void t_corrupt(void)
{
	u64 ino, fh;
	u8 *buf = malloc(1 << 20);
	struct bfs_extent e[4];
	make_pool(64, 0);
	for (int verify = BFS_VERIFY_FIRST; verify <= BFS_VERIFY_OFF; verify++) {
		opts.verify = verify;
		detach(true);
		attach();
		char name[16];
		snprintf(name, sizeof name, "c%d", verify);
		ino = put(1, name, 13, 700000);
		detach(true);
		attach();
		IS(bfs_extents(b, ino, e, 4), 1);
		u8 *p = mem.base + b->sb.data_off + BFS_GIDX(e[0].addr) * BFS_GRANULE;
		p[300001] ^= 4;
		u64 before = st().corrupt;
		fh = open_(ino, O_RDONLY);
		IS(bfs_read(b, fh, 0, buf, 1000), 1000);
		IS(bfs_read(b, fh, 300000, buf, 1000), verify == BFS_VERIFY_OFF ? 1000 : -EIO);
		IS(bfs_read(b, fh, 0, buf, 700000), verify == BFS_VERIFY_OFF ? 700000 : -EIO);
		CHECK(st().corrupt == before + (verify != BFS_VERIFY_OFF), "counted once, however often it is read");
		IS(bfs_read(b, fh, 600000, buf, 1000), 1000);
		IS(fl_read_ino(b, ino, 300000, buf, 10), verify == BFS_VERIFY_OFF ? 10 : -EIO);
		IS(fl_read_ino(b, ino, 600000, buf, 10), 10);
		OK(bfs_release(b, fh));
		if (verify != BFS_VERIFY_OFF) { /* a rewrite of a part doesn't bless the rest of the chunk */
			fh = open_(ino, O_RDWR);
			IS(bfs_write(b, fh, 300500, "x", 1), -EIO);
			close_(fh);
		}
		p[300001] ^= 4;
		check_block(ino, 13, 700000);
		/* verified once: damage that comes later is seen by `always` only */
		p[300001] ^= 4;
		fh = open_(ino, O_RDONLY);
		IS(bfs_read(b, fh, 300000, buf, 1000), verify == BFS_VERIFY_ALWAYS ? -EIO : 1000);
		OK(bfs_release(b, fh));
		p[300001] ^= 4;
	}
	free(buf);
	drop_pool();
}

/* A granule that answers with an error: EIO, listed as bad, never used again. */
static const u8 *sick;
static int sick_out(struct bfs_mem *m, void *d, const void *p, size_t n)
{
	const u8 *from = p;
	return from < sick + 4096 && sick < from + n ? -EIO : bfs_ops_coherent.copy_out(m, d, p, n);
}
static void t_bad(void)
{
	struct bfs_mem_ops ops = bfs_ops_coherent;
	struct bfs_extent e[64];
	struct bfs_attr a;
	u8 *buf = malloc(1 << 20);
	u64 ino, fh;
	char name[32];
	make_pool(64, 0);
	ops.copy_out = sick_out;
	mem.ops = &ops;
	mem.coherent = true;
	ino = put(1, "f", 1, 800000);
	IS(bfs_extents(b, ino, e, 4), 1);
	u64 addr = e[0].addr + 70;
	sick = mem.base + b->sb.data_off + BFS_GIDX(addr) * BFS_GRANULE;
	fh = open_(ino, O_RDONLY);
	IS(bfs_read(b, fh, 280000, buf, 20000), -EIO);
	IS(bfs_read(b, fh, 0, buf, 800000), -EIO);
	IS(bfs_read(b, fh, 600000, buf, 20000), 20000);
	OK(bfs_tick(b));
	fl_tick(b);
	CHECK(st().bad_granules == 1, "%llu bad", (unsigned long long)st().bad_granules);
	check_space();
	OK(bfs_release(b, fh));
	OK(bfs_unlink(b, 1, N("f")));
	for (int i = 0; i < 3; i++) settle();
	CHECK(st().bad_granules == 1 && st().used_granules == 0 && st().quarantined_granules == 0, "freed: %llu used, %llu waiting", (unsigned long long)st().used_granules, (unsigned long long)st().quarantined_granules);
	check_space();
	for (int i = 0;; i++) {
		snprintf(name, sizeof name, "x%d", i);
		OK(bfs_create(b, 1, N(name), 0644, 0, 0, O_WRONLY, &a, &fh));
		ssize_t k = bfs_write(b, fh, 0, buf, 700000);
		CHECK(k == 700000, "write: %s", text(k));
		close_(fh);
		int n = bfs_extents(b, a.ino, e, 64);
		for (int j = 0; j < n; j++) CHECK(addr < e[j].addr || addr >= e[j].addr + e[j].len, "given away again");
		if (st().evicted_blocks > 100) break;
	}
	check_space();
	detach(true);
	attach();
	CHECK(st().bad_granules == 1, "after a mount");
	sick = NULL;
	mem.ops = &bfs_ops_coherent;
	free(buf);
	drop_pool();
}

/* ---- room and holes ------------------------------------------------------------------------------- */
#define KEEP FALLOC_FL_KEEP_SIZE
#define PUNCH (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
#define ZERO FALLOC_FL_ZERO_RANGE

static void check_bytes(u64 fh, const u8 *want, size_t n, const char *what)
{
	u8 *got = malloc(n + 1);
	IS(bfs_read(b, fh, 0, got, n + 1), n);
	for (size_t i = 0; i < n; i++) CHECK(got[i] == want[i], "%s: byte %zu of %zu is %02x, not %02x", what, i, n, got[i], want[i]);
	free(got);
}

/* leaves bytes of others in all of the pool's free space */
static void litter(void)
{
	u64 d = mkdir_("litter"), ino, fh = create(d, "f", O_WRONLY, &ino);
	static u8 buf[1 << 20];
	memset(buf, 0xee, sizeof buf);
	bool none = b->o.evict_none;
	b->o.evict_none = true;
	for (u64 off = 0;; off += sizeof buf) {
		ssize_t n = bfs_write(b, fh, off, buf, sizeof buf);
		if (n == -ENOSPC) break;
		IS(n, sizeof buf);
	}
	b->o.evict_none = none;
	close_(fh);
	OK(bfs_unlink(b, d, N("f")));
	for (int i = 0; i < 4; i++) settle();
	CHECK(!st().quarantined_granules, "litter stays");
}

/* a file in each state in which it can be written; its handle, 20,000 bytes of pattern 7 */
enum { NEW, SYNCED, SEALED, DIRTY, ABANDONED, STATES };
static u64 in_state(int state, u64 dir, u64 *ino)
{
	u8 buf[20000];
	pattern(7, 0, buf, sizeof buf);
	u64 fh = create(dir, "f", O_RDWR, ino);
	write_(fh, 0, buf, sizeof buf);
	if (state == SYNCED) OK(bfs_fsync(b, fh));
	if (state < SEALED) return fh;
	OK(bfs_flush(b, fh, state == ABANDONED));
	OK(bfs_release(b, fh));
	fh = open_(*ino, O_RDWR);
	if (state == DIRTY) write_(fh, 9000, buf + 9000, 10);
	return fh;
}

static void t_room(void)
{
	static u8 want[300000], got[300000];
	u64 ino, fh, ro;
	struct bfs_attr a;
	make_pool(64, 0);
	litter();
	/* what isn't asked for rightly */
	fh = create(1, "f", O_RDWR, &ino);
	OK(bfs_open(b, ino, O_RDONLY, &ro));
	IS(bfs_fallocate(b, 0, 0, 0, 1), -EBADF);
	IS(bfs_fallocate(b, ro, 0, 0, 1), -EBADF);
	IS(bfs_fallocate(b, fh, 0, 0, 0), -EINVAL);
	IS(bfs_fallocate(b, fh, 0, 1ull << 63, 1), -EINVAL);
	IS(bfs_fallocate(b, fh, 0, 1, 1ull << 63), -EINVAL);
	IS(bfs_fallocate(b, fh, FALLOC_FL_PUNCH_HOLE, 0, 1), -EOPNOTSUPP);
	IS(bfs_fallocate(b, fh, PUNCH | ZERO, 0, 1), -EOPNOTSUPP);
	IS(bfs_fallocate(b, fh, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
	IS(bfs_fallocate(b, fh, FALLOC_FL_INSERT_RANGE, 0, 4096), -EOPNOTSUPP);
	IS(bfs_fallocate(b, fh, 0x4000, 0, 1), -EOPNOTSUPP);
	IS(bfs_fallocate(b, fh, 0, SIZE_MAX_BYTES, 1), -EFBIG);
	IS(bfs_fallocate(b, fh, KEEP, 1, SIZE_MAX_BYTES), -EFBIG);
	IS(bfs_fallocate(b, fh, 0, 0, 1 << 30), -ENOSPC);
	CHECK(!attr(ino).size && !attr(ino).granules && !st().used_granules, "of a call that fails something stays");
	OK(bfs_batch_begin(b));
	IS(bfs_fallocate(b, fh, 0, 0, 4096), -EBUSY);
	IS(bfs_fallocate(b, fh, PUNCH, 0, 4096), -EBUSY);
	OK(bfs_batch_abort(b));
	OK(bfs_release(b, ro));
	close_(fh);
	OK(bfs_unlink(b, 1, N("f")));

	for (int state = 0; state < STATES; state++) {
		char name[] = {'d', (char)('0' + state), 0};
		u64 d = mkdir_(name); /* that no other file has told its size */
		fh = in_state(state, d, &ino);
		memset(want, 0, sizeof want);
		pattern(7, 0, want, 20000);
		/* behind the end: seen by st_blocks and nobody else */
		OK(bfs_fallocate(b, fh, KEEP, 50000, 40000));
		a = attr(ino);
		CHECK(a.size == 20000 && a.granules >= 5 + 10, "state %d: size %llu, %llu granules", state, (unsigned long long)a.size, (unsigned long long)a.granules);
		check_bytes(fh, want, 20000, "kept size");
		IS(bfs_seek(b, fh, 0, SEEK_HOLE), 20000);
		IS(bfs_seek(b, fh, 20000, SEEK_DATA), -ENXIO);
		/* the file grows into it */
		write_(fh, 60000, "x", 1);
		want[60000] = 'x';
		check_bytes(fh, want, 60001, "grown over room");
		IS(bfs_seek(b, fh, 20000, SEEK_HOLE), 20480);
		IS(bfs_seek(b, fh, 20480, SEEK_DATA), 49152);
		IS(bfs_seek(b, fh, 49152, SEEK_HOLE), 60001);
		OK(bfs_setattr(b, ino, BFS_SET_SIZE, &(struct bfs_attr){.size = 85000}, fh, &a));
		check_bytes(fh, want, 85000, "truncated up over room");
		/* with its size, over hole and all */
		OK(bfs_fallocate(b, fh, 0, 30000, 100000));
		CHECK(attr(ino).size == 130000, "size %llu", (unsigned long long)attr(ino).size);
		check_bytes(fh, want, 130000, "grown by room");
		IS(bfs_seek(b, fh, 20480, SEEK_DATA), 28672);
		IS(bfs_seek(b, fh, 28672, SEEK_HOLE), 130000);
		/* zeros, inside, over the hole, over the end */
		OK(bfs_fallocate(b, fh, ZERO | KEEP, 100, 9000));
		memset(want + 100, 0, 9000);
		check_bytes(fh, want, 130000, "zero range");
		OK(bfs_fallocate(b, fh, ZERO, 19990, 20000));
		memset(want + 19990, 0, 10);
		OK(bfs_fallocate(b, fh, ZERO, 59000, 100000));
		want[60000] = 0;
		CHECK(attr(ino).size == 159000, "size %llu", (unsigned long long)attr(ino).size);
		OK(bfs_fallocate(b, fh, ZERO | KEEP, 150000, 50000));
		check_bytes(fh, want, 159000, "zero range over the end");
		OK(bfs_fallocate(b, fh, KEEP, 3, 1)); /* is there already */
		/* holes: whole granules go, the rest is zeros */
		u64 before = attr(ino).granules;
		OK(bfs_fallocate(b, fh, PUNCH, 10000, 100000));
		memset(want + 10000, 0, 100000);
		a = attr(ino); /* the base granule that is hidden stays until the seal */
		CHECK(a.size == 159000 && a.granules == before - 23 + (state == SEALED), "state %d: %llu granules, %llu before", state, (unsigned long long)a.granules, (unsigned long long)before);
		IS(bfs_seek(b, fh, 0, SEEK_HOLE), 12288);
		IS(bfs_seek(b, fh, 12288, SEEK_DATA), 106496);
		check_bytes(fh, want, 159000, "punched");
		before = a.granules;
		OK(bfs_fallocate(b, fh, PUNCH, 10000, 90000));
		OK(bfs_fallocate(b, fh, PUNCH, 12288 + 5, 3000)); /* nothing is there */
		CHECK(attr(ino).granules == before, "punched again");
		memset(want + 9200, 'y', 50);
		write_(fh, 9200, want + 9200, 50);
		OK(bfs_fallocate(b, fh, PUNCH, 9210, 10)); /* inside of a granule */
		memset(want + 9210, 0, 10);
		check_bytes(fh, want, 159000, "punched a few bytes");
		OK(bfs_fallocate(b, fh, PUNCH, 150000, 9000)); /* to the end, and so the granule that it is in */
		CHECK(attr(ino).granules == before - 2, "the end of the file: %llu", (unsigned long long)attr(ino).granules);
		OK(bfs_fallocate(b, fh, PUNCH, 160000, 1 << 20)); /* room behind the end */
		CHECK(attr(ino).size == 159000, "size of a punched file");
		check_bytes(fh, want, 159000, "punched at the end");
		close_(fh);
		a = attr(ino);
		CHECK(a.state == BFS_ST_SEALED && a.size == 159000 && a.granules == 3 + 11, "state %d: %u, %llu granules sealed", state, a.state, (unsigned long long)a.granules);
		detach(true);
		attach();
		fh = open_(ino, O_RDWR);
		check_bytes(fh, want, 159000, "sealed");
		IS(bfs_read(b, fh, 0, got, 1), 1);
		/* of what is sealed: hidden at once, freed by the seal */
		OK(bfs_fallocate(b, fh, PUNCH, 0, 159000));
		IS(bfs_seek(b, fh, 0, SEEK_DATA), -ENXIO);
		IS(bfs_seek(b, fh, 0, SEEK_HOLE), 0);
		IS(bfs_seek(b, fh, 159000, SEEK_HOLE), -ENXIO);
		IS(bfs_seek(b, fh, 0, SEEK_SET), -EINVAL);
		memset(want, 0, 159000);
		check_bytes(fh, want, 159000, "all hole");
		write_(fh, 5000, "z", 1);
		want[5000] = 'z';
		check_bytes(fh, want, 159000, "written into a hole over what was sealed");
		close_(fh);
		CHECK(attr(ino).granules == 1, "%llu granules", (unsigned long long)attr(ino).granules);
		detach(true);
		attach();
		fh = open_(ino, O_RDONLY);
		check_bytes(fh, want, 159000, "sealed again");
		OK(bfs_release(b, fh));
		OK(bfs_unlink(b, d, N("f")));
		for (int i = 0; i < 3; i++) settle();
		CHECK(!st().used_granules && !st().quarantined_granules, "state %d: %llu left", state, (unsigned long long)st().used_granules);
		check_space();
	}
	drop_pool();
}

/* A file that is allocated first and then written is what one is that is only written; what changes
 * what was sealed makes it ordinary. */
static void t_room_class(void)
{
	u8 buf[40000];
	u64 ino, fh;
	make_pool(64, 0);
	pattern(3, 0, buf, sizeof buf);
	fh = create(1, "f", O_RDWR, &ino);
	OK(bfs_fallocate(b, fh, 0, 0, 40000));
	write_(fh, 0, buf, 20000);
	close_(fh);
	CHECK(attr(ino).cls == BFS_CLS_BLOCK && attr(ino).size == 40000, "class %u", attr(ino).cls);
	fh = open_(ino, O_RDWR);
	OK(bfs_fallocate(b, fh, KEEP, 10000, 50000));
	OK(bfs_fallocate(b, fh, PUNCH, 24576, 4096)); /* zeros were nothing */
	OK(bfs_fallocate(b, fh, ZERO, 20000, 5000));
	write_(fh, 20000, buf + 20000, 20000);
	close_(fh);
	CHECK(attr(ino).cls == BFS_CLS_ORDINARY, "class %u", attr(ino).cls);
	OK(bfs_rename(b, 1, N("f"), 1, N("g"), 0));
	CHECK(attr(ino).cls == BFS_CLS_BLOCK, "put together: class %u", attr(ino).cls);
	check_block(ino, 3, 40000);
	for (int how = 0; how < 2; how++) {
		fh = create(1, "t", O_RDWR, &ino);
		write_(fh, 0, buf, 40000);
		close_(fh);
		fh = open_(ino, O_RDWR);
		OK(bfs_fallocate(b, fh, how ? PUNCH : ZERO, 30000, 5));
		close_(fh);
		OK(bfs_rename(b, 1, N("t"), 1, N("u"), 0));
		CHECK(attr(ino).cls == BFS_CLS_ORDINARY, "how %d: class %u", how, attr(ino).cls);
		OK(bfs_unlink(b, 1, N("u")));
	}
	/* times change, the content doesn't: nothing is unsealed */
	ino = put(1, "s", 3, 5000);
	u64 version = attr(ino).version;
	i64 was = attr(ino).mtime_ns;
	fh = open_(ino, O_RDWR);
	OK(bfs_fallocate(b, fh, PUNCH, 8192, 100000));
	CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).mtime_ns > was, "unsealed for nothing");
	close_(fh);
	CHECK(attr(ino).version == version, "sealed for nothing");
	check_space();
	drop_pool();
}

/* What has room is written without an ENOSPC, in a pool in which there isn't a granule left. */
static void t_promise(void)
{
	static u8 want[600000], buf[20000];
	struct rng r = {seed * 31 + 7};
	u64 ino, ino2, fh, fh2;
	for (int state = 0; state < STATES; state++)
		for (int how = 0; how < 4; how++) {
			make_pool(16, 0);
			opts.evict_none = true;
			detach(true);
			attach();
			fh = in_state(state, 1, &ino);
			memset(want, 0, sizeof want);
			pattern(7, 0, want, 20000);
			/* from the start, with its size or not; behind the end; a granule amid what is there */
			u64 size = how == 1 ? 600000 : 20000, from = how == 2 ? 30000 : how == 3 ? 8192 : 0, to = how == 3 ? 12288 : 600000;
			OK(bfs_fallocate(b, fh, how == 1 ? 0 : KEEP, from, to - from));
			if (state == SYNCED) OK(bfs_fsync(b, fh));
			fh2 = create(1, "full", O_WRONLY, &ino2);
			for (u64 n = 1 << 20, off = 0; n >= 4096;) {
				static u8 big[1 << 20];
				ssize_t k = bfs_write(b, fh2, off, big, n);
				if (k == -ENOSPC) n /= 2;
				else off += n;
			}
			IS(bfs_fallocate(b, fh2, KEEP, 1ull << 40, 1), -ENOSPC);
			for (int i = 0; i < 200; i++) {
				u64 n = 1 + below(&r, how == 3 ? 4000 : sizeof buf - 1), off = from + below(&r, (u32)(to - from - n));
				pattern(rnd(&r), 0, buf, n);
				write_(fh, off, buf, n);
				memcpy(want + off, buf, n);
				if (off + n > size) size = off + n;
				if (i % 50 == 7) OK(bfs_fsync(b, fh));
			}
			check_bytes(fh, want, size, "written into room");
			OK(bfs_unlink(b, 1, N("full")));
			close_(fh2);
			close_(fh);
			for (int i = 0; i < 3; i++) settle();
			CHECK(attr(ino).state == BFS_ST_SEALED, "state %u", attr(ino).state);
			fh = open_(ino, O_RDONLY);
			check_bytes(fh, want, size, "sealed");
			OK(bfs_release(b, fh));
			check_space();
			drop_pool();
		}
}

/* A pool without room but for single granules here and there; what else is in it could be evicted, but is open. */
enum { SINGLES = 300, BIGS = 64 };
static u64 held[BIGS + SINGLES];
static int nheld;
static void fill_but_singles(void)
{
	static u8 buf[1 << 20];
	char name[32];
	struct bfs_attr a;
	u64 fh;
	nheld = 0;
	b->o.evict_none = true;
	for (u64 i = 0, n = 1; n >= 1 && i < SINGLES + BIGS; i++) {
		snprintf(name, sizeof name, "h%llu", (unsigned long long)i);
		if (i >= SINGLES) n = n == 1 ? 1 << 20 : n;
		OK(bfs_create(b, 1, N(name), 0644, 0, 0, O_WRONLY, &a, &fh));
		while (n && bfs_write(b, fh, 0, buf, n) == -ENOSPC) n /= 2;
		close_(fh);
		held[nheld++] = open_(a.ino, O_RDONLY);
	}
	b->o.evict_none = false;
	CHECK(st().used_granules == st().data_granules, "not full");
	for (int i = 0; i < SINGLES; i += 2) {
		snprintf(name, sizeof name, "h%d", i);
		OK(bfs_unlink(b, 1, N(name)));
		OK(bfs_release(b, held[i]));
	}
	for (int i = 0; i < 4; i++) settle();
	CHECK(st().used_granules == st().data_granules - SINGLES / 2 && !st().quarantined_granules, "%llu in use", (unsigned long long)st().used_granules);
}
static void let_go(void)
{
	for (int i = 0; i < nheld; i++)
		if (i >= SINGLES || i & 1) OK(bfs_release(b, held[i]));
}

/* A call that fails in its middle leaves the file as it was: bytes, places, state, promise. */
static void t_put_back(void)
{
	enum { HOLES = STATES, HOWS = 4 };
	u64 ino, fh;
	u8 want[20000];
	for (int state = 0; state <= HOLES; state++)
		for (int how = 0; how < HOWS; how++) {
			make_pool_rg(16, 2048, 64);
			pattern(7, 0, want, sizeof want);
			fh = in_state(state == HOLES ? SEALED : state, 1, &ino);
			if (state == HOLES) { /* over what was sealed */
				OK(bfs_fallocate(b, fh, PUNCH, 4096, 8192));
				memset(want + 4096, 0, 8192);
			}
			fill_but_singles();
			struct bfs_stat s = st();
			struct bfs_attr a = attr(ino);
			struct bfs_inode *in = hd_get(b, fh)->in;
			u8 rowst = in->rowst;
			struct bfs_extent e[64], e2[64];
			int ne = bfs_extents(b, ino, e, 64);
			u64 asked = (SINGLES / 2 + 20) * 4096;
			u64 txns = s.txns;
			IS(how == 0 ? bfs_fallocate(b, fh, KEEP, 0, asked) : how == 1 ? bfs_fallocate(b, fh, ZERO, 3, asked) : how == 2 ? bfs_reserve(b, fh, asked) : bfs_fallocate(b, fh, 0, 1 << 20, asked), -ENOSPC);
			struct bfs_attr c = attr(ino);
			CHECK(st().txns > txns + 1, "nothing was granted, so nothing was put back");
			CHECK(st().used_granules == s.used_granules && c.granules == a.granules, "state %d how %d: %llu granules in use, %llu before; of the file %llu, %llu", state, how, (unsigned long long)st().used_granules,
			      (unsigned long long)s.used_granules, (unsigned long long)c.granules, (unsigned long long)a.granules);
			CHECK(c.state == a.state && c.cls == a.cls && c.size == a.size && c.version == a.version && c.mtime_ns == a.mtime_ns && c.owner == a.owner && c.flags == a.flags && in->rowst == rowst,
			      "state %d how %d: state %u class %u size %llu row %u", state, how, c.state, c.cls, (unsigned long long)c.size, in->rowst);
			IS(bfs_extents(b, ino, e2, 64), ne);
			for (int i = 0; i < ne; i++) CHECK(e[i].file_granule == e2[i].file_granule && e[i].addr == e2[i].addr && e[i].len == e2[i].len, "state %d how %d: extent %d", state, how, i);
			check_bytes(fh, want, sizeof want, "after a call that failed");
			check_space();
			fsck();
			/* nor does one that can't ever be met take anything, or evict anything */
			IS(bfs_fallocate(b, fh, KEEP, 0, 64 << 20), -ENOSPC);
			CHECK(!st().evicted_blocks && st().used_granules == s.used_granules, "evicted for nothing");
			if (how & 1) { /* and goes on as if nothing had been */
				let_go();
				write_(fh, 5000, "hello", 5);
				memcpy(want + 5000, "hello", 5);
				check_bytes(fh, want, sizeof want, "written then");
				close_(fh);
			} else {
				detach(false);
				attach();
				if (state == NEW) {
					IS(bfs_getattr(b, ino, &a), -ESTALE);
					drop_pool();
					continue;
				}
				CHECK(state == DIRTY || state == HOLES || !(attr(ino).flags & BFS_OF_UNVERIFIED), "state %d: no longer promised", state);
			}
			fh = open_(ino, O_RDONLY);
			check_bytes(fh, want, sizeof want, "in the end");
			OK(bfs_release(b, fh));
			check_space();
			drop_pool();
		}
	/* what does fit is had granule by granule */
	make_pool_rg(16, 2048, 64);
	fh = create(1, "f", O_RDWR, &ino);
	fill_but_singles();
	OK(bfs_fallocate(b, fh, 0, 0, SINGLES / 2 * 4096 - 5));
	CHECK(attr(ino).granules == SINGLES / 2, "%llu granules", (unsigned long long)attr(ino).granules);
	let_go();
	close_(fh);
	check_space();
	drop_pool();
}

/* What was synced is no longer promised once a part of it is gone; what got room is as it was. */
static void t_room_crash(void)
{
	static const struct { int mode; u64 off, len, size; } hows[] = {
		{PUNCH, 4096, 8192, 20000}, {PUNCH, 100, 50, 20000}, {ZERO, 5000, 1, 20000}, {0, 0, 30000, 30000}, {KEEP, 50000, 5000, 20000}, {PUNCH, 20480, 1 << 20, 20000},
	};
	u8 want[30000];
	u64 ino, fh;
	for (size_t how = 0; how < sizeof hows / sizeof *hows; how++)
		for (int closed = 0; closed < 3; closed++) { /* synced; sealed; sealed, written and synced */
			make_pool(64, 0);
			litter();
			memset(want, 0, sizeof want);
			pattern(7, 0, want, 20000);
			fh = in_state(closed == 0 ? SYNCED : closed == 1 ? SEALED : DIRTY, 1, &ino);
			if (closed == 2) OK(bfs_fsync(b, fh));
			OK(bfs_fallocate(b, fh, hows[how].mode, hows[how].off, hows[how].len));
			if (hows[how].mode == PUNCH || hows[how].mode == ZERO)
				for (u64 i = hows[how].off; i < hows[how].off + hows[how].len && i < 20000; i++) want[i] = 0;
			bool nothing = hows[how].off == 20480, room = hows[how].mode == KEEP;
			detach(false);
			attach();
			struct bfs_attr a = attr(ino);
			CHECK(a.state == BFS_ST_SEALED && a.size == hows[how].size, "how %zu: state %u size %llu", how, a.state, (unsigned long long)a.size);
			CHECK(!(a.flags & BFS_OF_UNVERIFIED) == (room || (nothing && closed == 1)), "how %zu, %d: flags %x", how, closed, a.flags);
			fh = open_(ino, O_RDONLY);
			check_bytes(fh, want, hows[how].size, "after a crash");
			OK(bfs_release(b, fh));
			check_space();
			drop_pool();
		}
}

/* What is damaged isn't blessed by room beside it, or by a hole in the same chunk. */
static void t_room_corrupt(void)
{
	struct bfs_extent e[4];
	u64 ino, fh;
	make_pool(64, 0);
	for (int how = 0; how < 4; how++) {
		char name[16];
		snprintf(name, sizeof name, "c%d", how);
		ino = put(1, name, 13, how == 3 ? 16385 : 16384);
		detach(true);
		attach();
		IS(bfs_extents(b, ino, e, 4), 1);
		u8 *p = mem.base + b->sb.data_off + BFS_GIDX(e[0].addr) * BFS_GRANULE;
		p[13001] ^= 4;
		fh = open_(ino, O_RDWR);
		IS(how == 0 ? bfs_fallocate(b, fh, KEEP, 16384, 4096) : how == 1 ? bfs_fallocate(b, fh, PUNCH, 0, 4096) : how == 2 ? bfs_fallocate(b, fh, ZERO, 1, 1) : bfs_fallocate(b, fh, 0, 0, 30000), -EIO);
		CHECK(attr(ino).state == BFS_ST_SEALED && attr(ino).cls == BFS_CLS_BLOCK, "how %d: state %u", how, attr(ino).state);
		close_(fh);
		p[13001] ^= 4;
		check_block(ino, 13, how == 3 ? 16385 : 16384);
	}
	/* a file that is being written: what was granted and not filled goes back at once */
	ino = put(1, "d", 13, 600000);
	detach(true);
	attach();
	IS(bfs_extents(b, ino, e, 4), 1);
	u8 *p = mem.base + b->sb.data_off + BFS_GIDX(e[0].addr) * BFS_GRANULE, first[10];
	fh = open_(ino, O_RDWR);
	pattern(13, 0, first, sizeof first);
	write_(fh, 0, first, sizeof first);
	p[300000] ^= 4;
	u64 used = st().used_granules, has = attr(ino).granules;
	IS(bfs_fallocate(b, fh, 0, 200000, 1000000), -EIO);
	CHECK(st().used_granules == used && attr(ino).granules == has && attr(ino).size == 600000, "%llu granules in use, %llu before", (unsigned long long)st().used_granules, (unsigned long long)used);
	check_space();
	p[300000] ^= 4;
	close_(fh);
	check_block(ino, 13, 600000);
	drop_pool();
}

static void t_tmpfile(void)
{
	u8 buf[9000];
	struct bfs_attr a;
	u64 ino, fh, fh2, used;
	make_pool(64, 0);
	pattern(5, 0, buf, sizeof buf);
	u64 d = mkdir_("d");
	used = st().used_granules;
	IS(bfs_tmpfile(b, d, 0600, 0, 0, O_RDONLY, &a, &fh), -EINVAL);
	IS(bfs_tmpfile(b, INO(40, 0), 0600, 0, 0, O_RDWR, &a, &fh), -ESTALE);
	/* never named: gone with the last handle, or with the process */
	for (int how = 0; how < 4; how++) {
		OK(bfs_tmpfile(b, d, 0600, 3, 4, O_RDWR, &a, &fh));
		ino = a.ino;
		CHECK(!a.nlink && a.uid == 3 && a.gid == 4 && a.mode == (S_IFREG | 0600) && a.state == BFS_ST_NEW, "mode %o, %u links", a.mode, a.nlink);
		write_(fh, 0, buf, sizeof buf);
		if (how & 1) OK(bfs_fsync(b, fh));
		fsck();
		CHECK(st().norphans == 1, "orphan");
		OK(bfs_flush(b, fh, how == 2));
		check_bytes(fh, buf, sizeof buf, "closed once");
		if (how < 2) {
			detach(false);
			attach();
		} else {
			OK(bfs_release(b, fh));
		}
		IS(bfs_getattr(b, ino, &a), -ESTALE);
		CHECK(!st().norphans && !st().nunsealed && st().used_granules == used, "how %d: left over", how);
		check_space();
	}
	/* named: sealed at once; then a file like any other */
	for (int close = 0; close < 2; close++) {
		opts.publish_close = close;
		detach(true);
		attach();
		OK(bfs_tmpfile(b, d, 0600, 0, 0, O_RDWR, &a, &fh));
		ino = a.ino;
		write_(fh, 0, buf, sizeof buf);
		OK(bfs_link(b, ino, d, N("n"), &a));
		CHECK(a.nlink == 1 && a.state == BFS_ST_SEALED && a.cls == BFS_CLS_BLOCK && a.size == sizeof buf, "named: %u links, state %u class %u", a.nlink, a.state, a.cls);
		CHECK(there(d, "n") && !st().norphans, "named");
		OK(bfs_link(b, ino, 1, N("m"), &a));
		CHECK(a.nlink == 2, "a second name");
		write_(fh, 1000, buf + 1000, 10);
		close_(fh);
		check_block(ino, 5, sizeof buf);
		detach(false);
		attach();
		check_block(ino, 5, sizeof buf);
		OK(bfs_unlink(b, d, N("n")));
		OK(bfs_unlink(b, 1, N("m")));
		for (int i = 0; i < 3; i++) settle();
	}
	/* the name is taken: another one will do; named once, it has lost its chance when that name goes */
	OK(bfs_tmpfile(b, d, 0600, 0, 0, O_RDWR, &a, &fh));
	ino = a.ino;
	put(d, "taken", 1, 10);
	IS(bfs_link(b, ino, d, N("taken"), &a), -EEXIST);
	OK(bfs_link(b, ino, d, N("free"), &a));
	OK(bfs_unlink(b, d, N("free")));
	IS(bfs_link(b, ino, d, N("again"), &a), -ENOENT);
	close_(fh);
	IS(bfs_link(b, ino, d, N("again"), &a), -ESTALE);
	/* O_EXCL: never; nor one that had a name, and lost it */
	OK(bfs_tmpfile(b, d, 0600, 0, 0, O_RDWR | O_EXCL, &a, &fh));
	IS(bfs_link(b, a.ino, d, N("x"), &a), -ENOENT);
	close_(fh);
	opts.publish_close = false;
	detach(true);
	attach();
	fh = create(d, "y", O_RDWR, &ino);
	OK(bfs_unlink(b, d, N("y")));
	IS(bfs_link(b, ino, d, N("z"), &a), -ENOENT);
	close_(fh);
	/* in a batch that is dropped */
	OK(bfs_tmpfile(b, d, 0600, 0, 0, O_RDWR, &a, &fh));
	ino = a.ino;
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_batch_begin(b));
	OK(bfs_link(b, ino, d, N("b"), &a));
	OK(bfs_batch_abort(b));
	CHECK(!there(d, "b") && st().norphans == 1, "a batch that was dropped");
	check_bytes(fh, buf, sizeof buf, "after that");
	OK(bfs_batch_begin(b));
	OK(bfs_link(b, ino, d, N("b"), &a));
	OK(bfs_batch_commit(b));
	CHECK(there(d, "b") && !st().norphans && attr(ino).state == BFS_ST_SEALED, "a batch: state %u", attr(ino).state);
	close_(fh);
	check_block(ino, 5, sizeof buf);
	/* all slots are taken: evicted */
	for (u32 i = 0; i < b->sb.inodes + 10; i++) {
		char name[16];
		snprintf(name, sizeof name, "s%u", i);
		OK(bfs_create(b, 1, N(name), 0600, 0, 0, O_RDWR, &a, &fh2));
		close_(fh2);
	}
	OK(bfs_tmpfile(b, d, 0600, 0, 0, O_RDWR, &a, &fh));
	close_(fh);
	CHECK(!st().norphans && !st().nunsealed, "left over");
	check_space();
	drop_pool();
}

/* ---- batches ------------------------------------------------------------------------------------ */
static void t_batch(void)
{
	u64 ino, ino2, fh, fh2;
	u8 buf[5000], got[5000];
	struct bfs_attr a;
	make_pool(64, 0);
	pattern(17, 0, buf, sizeof buf);
	fh = create(1, "f", O_RDWR, &ino);
	write_(fh, 0, buf, sizeof buf);
	OK(bfs_batch_begin(b));
	fh2 = create(1, "g", O_RDWR, &ino2);
	IS(bfs_write(b, fh2, 0, buf, 10), -EBUSY); /* no room granted yet */
	OK(bfs_flush(b, fh, false));
	CHECK(attr(ino).state == BFS_ST_NEW, "sealed outside of the batch already");
	OK(bfs_batch_abort(b));
	CHECK(!there(1, "g"), "aborted create");
	IS(bfs_write(b, fh2, 0, buf, 10), -ESTALE);
	OK(bfs_release(b, fh2));
	CHECK(attr(ino).state == BFS_ST_NEW && attr(ino).size == 5000, "aborted seal: state %u size %llu", attr(ino).state, (unsigned long long)attr(ino).size);
	IS(bfs_read(b, fh, 0, got, sizeof got), 5000);
	CHECK(!memcmp(buf, got, sizeof got), "content after the abort");
	write_(fh, 5000, buf, 100);
	CHECK(attr(ino).state == BFS_ST_NEW, "still new");
	OK(bfs_batch_begin(b));
	fh2 = create(1, "h", O_RDWR, &ino2);
	OK(bfs_rename(b, 1, N("f"), 1, N("f2"), 0));
	OK(bfs_flush(b, fh2, false));
	OK(bfs_batch_commit(b));
	CHECK(there(1, "f2") && there(1, "h") && attr(ino).state == BFS_ST_SEALED && attr(ino2).state == BFS_ST_SEALED, "committed");
	CHECK(attr(ino).size == 5100, "size");
	close_(fh);
	close_(fh2);
	OK(bfs_lookup(b, 1, N("h"), &a));
	check_space();
	drop_pool();
}

/* ---- random operations against a model ------------------------------------------------------------- */
#define MSIZE (3u << 20)
struct mfile {
	bool exists; /* has a name */
	bool sealed, promised, dirty; /* once; synced or closed; written since */
	u64 ino, fh[3];
	int flags[3];
	size_t size;
	u8 *data;
	char name[16];
};

static void m_check(struct mfile *f, u64 fh, struct rng *r)
{
	static u8 *got;
	if (!got) got = malloc(MSIZE + 10);
	u64 off = below(r, 3) ? 0 : below(r, (u32)f->size + 10);
	size_t n = below(r, 3) ? MSIZE : below(r, 300000), want = off >= f->size ? 0 : f->size - off < n ? f->size - off : n;
	ssize_t k = bfs_read(b, fh, off, got, n);
	CHECK(k == (ssize_t)want, "%s: read of %zu at %llu of %zu: %s", f->name, n, (unsigned long long)off, f->size, text(k));
	for (size_t i = 0; i < want; i++) CHECK(got[i] == f->data[off + i], "%s (ino %llx): byte %llu of %zu is %02x, not %02x", f->name, (unsigned long long)f->ino, (unsigned long long)(off + i), f->size, got[i], f->data[off + i]);
}

static void m_size(struct mfile *f, size_t n)
{
	if (n < f->size) memset(f->data + n, 0, f->size - n);
	f->size = n;
}

static void m_closed(struct mfile *f)
{
	bool w = false;
	for (int i = 0; i < 3; i++) w |= f->fh[i] && (f->flags[i] & O_ACCMODE) != O_RDONLY;
	f->promised = true, f->dirty = false;
	if (!w) f->sealed = true;
}

static void t_model(void)
{
	enum { F = 12 };
	static struct mfile f[F];
	struct rng r = {seed * 77777 + 3};
	static u8 buf[400000];
	int ops = env("OPS", 6000), verbose = env("VERBOSE", 0);
	make_pool_rg(96, 0, 256);
	opts.verify = (int)(seed % 2);
	for (int i = 0; i < F; i++) {
		memset(&f[i], 0, sizeof f[i]);
		f[i].data = calloc(1, MSIZE + 1);
		snprintf(f[i].name, sizeof f[i].name, "m%d", i);
	}
	for (int op = 0; op < ops; op++) {
		struct mfile *m = &f[below(&r, F)];
		int what = (int)below(&r, 100), h = (int)below(&r, 3);
		u64 fh = m->fh[h];
		bool w = fh && (m->flags[h] & O_ACCMODE) != O_RDONLY, rd_ = fh && (m->flags[h] & O_ACCMODE) != O_WRONLY, any = m->fh[0] || m->fh[1] || m->fh[2];
		if (verbose) printf("%d: %s what %d h %d fh %llx size %zu\n", op, m->name, what, h, (unsigned long long)fh, m->size);
		if (!m->exists && !any) {
			struct bfs_attr a;
			m->flags[0] = (int[]){O_RDWR, O_WRONLY}[below(&r, 2)] | (below(&r, 4) ? 0 : O_APPEND);
			OK(bfs_create(b, 1, N(m->name), 0644, 0, 0, m->flags[0] | O_EXCL, &a, &m->fh[0]));
			m->ino = a.ino, m->exists = true, m->sealed = m->promised = m->dirty = false;
			m_size(m, 0);
		} else if (what < 30 && w) {
			size_t n = below(&r, 4) ? below(&r, 9000) + 1 : below(&r, sizeof buf) + 1;
			u64 off = below(&r, 3) ? (below(&r, 2) ? m->size : below(&r, (u32)m->size + 1)) : below(&r, MSIZE);
			if (m->flags[h] & O_APPEND) off = m->size;
			if (off + n > MSIZE) continue;
			pattern(rnd(&r), 0, buf, n);
			if (off > m->size) memset(m->data + m->size, 0, off - m->size);
			write_(fh, m->flags[h] & O_APPEND ? 7 : off, buf, n);
			memcpy(m->data + off, buf, n);
			if (off + n > m->size) m->size = off + n;
			m->dirty = true, m->sealed = m->sealed && 1;
		} else if (what < 50 && rd_) {
			m_check(m, fh, &r);
			if (below(&r, 3)) continue;
			/* hole, data, hole ... to the end; what is called a hole is zeros */
			for (u64 at = below(&r, (u32)m->size + 1), to; at < m->size; at = to) {
				i64 data = bfs_seek(b, fh, at, SEEK_DATA);
				to = data == -ENXIO ? m->size : (u64)data;
				CHECK(to >= at && to <= m->size, "SEEK_DATA from %llu: %lld", (unsigned long long)at, (long long)data);
				for (u64 i = at; i < to; i++) CHECK(!m->data[i], "%s: byte %llu of a hole", m->name, (unsigned long long)i);
				if (to == m->size) break;
				IS(bfs_seek(b, fh, to, SEEK_DATA), to);
				at = to, to = (u64)bfs_seek(b, fh, at, SEEK_HOLE);
				CHECK(to > at && to <= m->size && (to == m->size || to % 4096 == 0), "SEEK_HOLE from %llu: %lld", (unsigned long long)at, (long long)to);
			}
		} else if (what < 56 && w) {
			size_t n = below(&r, 3) ? below(&r, (u32)m->size + 1) : below(&r, MSIZE);
			struct bfs_attr a = {.size = n};
			OK(bfs_setattr(b, m->ino, BFS_SET_SIZE, &a, fh, &a));
			CHECK(a.size == n, "size after truncate");
			m_size(m, n);
			m->dirty = true;
		} else if (what < 58 && m->exists) { /* truncate(2) */
			size_t n = below(&r, MSIZE);
			struct bfs_attr a = {.size = n};
			bool others = false;
			for (int i = 0; i < 3; i++) others |= m->fh[i] && (m->flags[i] & O_ACCMODE) != O_RDONLY;
			OK(bfs_setattr(b, m->ino, BFS_SET_SIZE, &a, 0, &a));
			m_size(m, n);
			m->dirty = true;
			if (!others) m_closed(m);
		} else if (what < 63 && w) {
			OK(bfs_fsync(b, fh));
			m->promised = true;
		} else if (what < 66 && w) {
			static const int modes[] = {0, KEEP, PUNCH, PUNCH, ZERO, ZERO | KEEP};
			int mode = modes[below(&r, 6)];
			u64 off = below(&r, 2) ? below(&r, MSIZE - 1) : below(&r, (u32)m->size + 1), n = 1 + (below(&r, 3) ? below(&r, 20000) : below(&r, MSIZE)), end;
			if (!below(&r, 4)) {
				OK(bfs_reserve(b, fh, below(&r, MSIZE)));
				continue;
			}
			if (!below(&r, 3)) off &= ~4095ull, n = (n + 4095) & ~4095ull;
			if (off + n > MSIZE) n = MSIZE - off;
			if (!n) continue;
			end = off + n;
			OK(bfs_fallocate(b, fh, mode, off, n));
			if (mode & (FALLOC_FL_PUNCH_HOLE | ZERO) && off < m->size) memset(m->data + off, 0, (end < m->size ? end : m->size) - off);
			if (!(mode & KEEP) && end > m->size) memset(m->data + m->size, 0, end - m->size), m->size = end;
			m->dirty = true;
		} else if (what < 75 && fh) { /* close */
			OK(bfs_flush(b, fh, false));
			if (below(&r, 8)) {
				OK(bfs_release(b, fh));
				m->fh[h] = 0;
			}
			if (w) m_closed(m);
		} else if (what < 88 && !fh && m->exists) {
			m->flags[h] = (int[]){O_RDWR, O_WRONLY, O_RDONLY}[below(&r, 3)] | (below(&r, 6) ? 0 : O_APPEND);
			bool trunc = (m->flags[h] & O_ACCMODE) != O_RDONLY && !below(&r, 8);
			m->fh[h] = open_(m->ino, m->flags[h] | (trunc ? O_TRUNC : 0));
			if (trunc) m_size(m, 0), m->dirty = true;
		} else if (what < 90 && m->exists) {
			OK(bfs_unlink(b, 1, N(m->name)));
			m->exists = false;
		} else if (what < 92 && m->exists) {
			char to[16];
			snprintf(to, sizeof to, "r%d", op);
			OK(bfs_rename(b, 1, N(m->name), 1, N(to), 0));
			memcpy(m->name, to, sizeof to);
			m->promised = m->sealed = true; /* forces the seal */
			m->dirty = false;
		} else if (what < 94) {
			OK(bfs_tick(b));
		} else if (what == 94 || what == 95) {
			struct bfs_attr a = m->exists ? attr(m->ino) : (struct bfs_attr){.size = m->size};
			CHECK(a.size == m->size, "%s: size %llu, model %zu", m->name, (unsigned long long)a.size, m->size);
		} else if (what == 96) {
			check_space();
			fsck(); /* between two calls a pool in use has nothing to hide either */
		} else if (what == 97 && !below(&r, 6)) { /* crash or clean end */
			detach(below(&r, 2));
			attach();
			check_space();
			for (int i = 0; i < F; i++) {
				memset(f[i].fh, 0, sizeof f[i].fh);
				bool kept = f[i].exists && (f[i].sealed || f[i].promised);
				CHECK(there(1, f[i].name) == kept, "%s after the crash: %s", f[i].name, kept ? "gone" : "there");
				f[i].exists = kept;
				if (!kept) {
					m_size(&f[i], 0);
					continue;
				}
				struct bfs_attr a = attr(f[i].ino);
				CHECK(a.state == BFS_ST_SEALED && a.size == f[i].size, "%s: state %u size %llu, model %zu", f[i].name, a.state, (unsigned long long)a.size, f[i].size);
				f[i].sealed = true, f[i].dirty = false;
				u64 x = open_(f[i].ino, O_RDONLY);
				m_check(&f[i], x, &r);
				OK(bfs_release(b, x));
			}
		}
	}
	for (int i = 0; i < F; i++) {
		for (int h = 0; h < 3; h++)
			if (f[i].fh[h]) close_(f[i].fh[h]);
		free(f[i].data);
	}
	CHECK(!st().nunsealed && !st().norphans && !st().open_files, "left over");
	check_space();
	drop_pool();
}

/* Readers without an open: what they have announced isn't reused. */
static void t_hazard(void)
{
	struct bfs_extent e[4];
	u64 ino, freed, quar;
	int h;
	make_pool(64, 0);
	ino = put(1, "f", 1, 500000);
	u32 version = attr(ino).version;
	IS(bfs_extents(b, ino, e, 4), 1);
	e[0].overlay = 0;
	h = in_hazard(b, ino, version, e, 1);
	CHECK(h >= 0, "hazard: %s", text(h));
	OK(bfs_evict(b, 1, &freed));
	for (int i = 0; i < 5; i++) OK(bfs_tick(b));
	quar = st().quarantined_granules;
	CHECK(quar == 123, "quarantine %llu", (unsigned long long)quar);
	in_hazard_end(b, h);
	for (int i = 0; i < 5; i++) settle();
	CHECK(st().quarantined_granules == 0, "still %llu in quarantine", (unsigned long long)st().quarantined_granules);
	IS(in_hazard(b, ino, version, e, 1), -ESTALE);
	/* a part of a held extent is freed: held too */
	ino = put(1, "g", 2, 500000);
	u64 rd_ = open_(ino, O_RDONLY), w = open_(ino, O_WRONLY);
	IS(bfs_extents(b, ino, e, 4), 1);
	version = attr(ino).version;
	h = in_hazard(b, ino, version, e, 1);
	CHECK(h >= 0, "hazard: %s", text(h));
	write_(w, 200000, "y", 1);
	close_(w);
	for (int i = 0; i < 5; i++) settle();
	CHECK(st().quarantined_granules > 0, "a part of what is held came back");
	IS(in_hazard(b, ino, version, e, 1), -ESTALE);
	in_hazard_end(b, h);
	for (int i = 0; i < 5; i++) settle();
	CHECK(st().quarantined_granules == 0, "still %llu in quarantine", (unsigned long long)st().quarantined_granules);
	OK(bfs_release(b, rd_));
	check_space();
	drop_pool();
}

/* many held extents: the list in the pool is short */
static void t_held(void)
{
	static u64 fh[1500];
	char name[32];
	struct bfs_attr a;
	make_pool(128, 4096);
	for (u32 i = 0; i < 3000; i++) {
		snprintf(name, sizeof name, "f%u", i);
		u64 ino = put(1, name, i, 8000);
		if (i % 2) fh[i / 2] = open_(ino, O_RDONLY);
	}
	for (u32 i = 0; i < 3000; i += 2) {
		snprintf(name, sizeof name, "f%u", i);
		OK(bfs_unlink(b, 1, N(name)));
	}
	put(1, "big", 1, 4 << 20);
	OK(bfs_unlink(b, 1, N("big")));
	for (int i = 0; i < 10; i++) settle();
	CHECK(st().quarantined_granules < 3000 + 1024, "nothing comes back: %llu", (unsigned long long)st().quarantined_granules);
	for (u32 i = 0; i < 1500; i++) {
		u8 got[8000], want[8000];
		IS(bfs_read(b, fh[i], 0, got, 8000), 8000);
		pattern(2 * i + 1, 0, want, 8000);
		CHECK(!memcmp(got, want, 8000), "reader %u", i);
		OK(bfs_release(b, fh[i]));
	}
	for (int i = 0; i < 10; i++) settle();
	CHECK(st().quarantined_granules == 0, "still %llu", (unsigned long long)st().quarantined_granules);
	OK(bfs_lookup(b, 1, N("f1"), &a));
	drop_pool();
}

/* ---- two hosts, one memory ------------------------------------------------------------------------ */
static void t_hosts(void)
{
	struct bfs *A, *B;
	struct bfs_opts ob;
	struct bfs_attr a;
	u64 fa, fb, fc, ino, ino2;
	static u8 buf[600000], got[600001];
	make_pool(64, 0);
	detach(true);
	opts.suspect_ns = 50000000;
	attach();
	A = b;
	ob = opts;
	ob.uuid[0] = 2, ob.follower = true;
	OK(bfs_attach(&mem, &ob, &B));
	CHECK(A->slot != B->slot && bfs_is_leader(A) && !bfs_is_leader(B), "slots");
	pattern(1, 0, buf, sizeof buf);
	OK(bfs_create(A, 1, N("f"), 0644, 0, 0, O_RDWR, &a, &fa));
	ino = a.ino;
	IS(bfs_write(A, fa, 0, buf, 500000), 500000);
	OK(bfs_tick(B));
	IS(bfs_lookup(B, 1, N("f"), &a), -ENOENT);
	IS(bfs_open(B, ino, O_RDONLY, &fb), -ENOENT);
	OK(bfs_flush(A, fa, false));
	OK(bfs_tick(B));
	OK(bfs_lookup(B, 1, N("f"), &a));
	CHECK(a.size == 500000 && a.state == BFS_ST_SEALED, "sealed for the other host");
	OK(bfs_open(B, ino, O_RDONLY, &fb));
	IS(bfs_read(B, fb, 0, got, sizeof got), 500000);
	CHECK(!memcmp(got, buf, 500000), "content on the other host");
	/* rewritten on A: B's descriptor keeps version 1, even when the leader wants the space */
	IS(bfs_write(A, fa, 100000, buf + 7, 300000), 300000);
	OK(bfs_tick(B));
	OK(bfs_lookup(B, 1, N("f"), &a));
	CHECK(a.size == 500000 && a.version == 1, "B sees what is sealed");
	IS(bfs_open(B, ino, O_WRONLY, &fc), -EBUSY);
	OK(bfs_flush(A, fa, false));
	for (int i = 0; i < 4; i++) {
		OK(bfs_tick(A));
		OK(bfs_apply_scan(A));
		OK(bfs_tick(B));
		OK(bfs_apply_scan(B));
	}
	struct bfs_stat s;
	OK(bfs_statfs(A, &s));
	CHECK(s.quarantined_granules > 0, "B's extent came back");
	u64 x;
	OK(bfs_create(A, 1, N("other"), 0644, 0, 0, O_RDWR, &a, &x));
	for (int i = 0; i < 40; i++) IS(bfs_write(A, x, (u64)i * 600000, buf, 600000), 600000);
	OK(bfs_flush(A, x, false));
	OK(bfs_release(A, x));
	IS(bfs_read(B, fb, 0, got, sizeof got), 500000);
	CHECK(!memcmp(got, buf, 500000), "B keeps what it has");
	OK(bfs_tick(B));
	OK(bfs_open(B, ino, O_RDONLY, &fc));
	IS(bfs_read(B, fc, 0, got, sizeof got), 500000);
	CHECK(!memcmp(got, buf, 100000) && !memcmp(got + 100000, buf + 7, 300000) && !memcmp(got + 400000, buf + 400000, 100000), "a new open has the new version");
	IS(bfs_read(B, fb, 100000, got, 1000), 1000);
	CHECK(!memcmp(got, buf + 100000, 1000), "the old one still the old");
	OK(bfs_release(B, fb));
	/* unlinked by A while B reads */
	OK(bfs_unlink(A, 1, N("f")));
	OK(bfs_release(A, fa));
	for (int i = 0; i < 4; i++) {
		OK(bfs_tick(A));
		OK(bfs_apply_scan(A));
		OK(bfs_tick(B));
		OK(bfs_apply_scan(B));
	}
	IS(bfs_read(B, fc, 0, got, sizeof got), 500000);
	CHECK(!memcmp(got + 100000, buf + 7, 300000), "unlinked elsewhere");
	IS(bfs_open(B, ino, O_RDONLY, &x), -ESTALE);
	OK(bfs_release(B, fc));
	for (int i = 0; i < 4; i++) {
		OK(bfs_apply_scan(B));
		OK(bfs_apply_scan(A));
		OK(bfs_tick(A));
	}
	OK(bfs_statfs(A, &s));
	CHECK(s.quarantined_granules == 0, "%llu still in quarantine", (unsigned long long)s.quarantined_granules);
	/* A is writing, falls silent; B takes the lead; A's file stays A's */
	OK(bfs_create(A, 1, N("g"), 0644, 0, 0, O_RDWR, &a, &fa));
	ino2 = a.ino;
	IS(bfs_write(A, fa, 0, buf, 100000), 100000);
	OK(bfs_tick(B));
	IS(bfs_create(B, 1, N("g"), 0644, 0, 0, O_RDWR, &a, &fb), -EBUSY); /* A leads */
	for (int i = 0; i < 20; i++) usleep(10000), bfs_tick(B);
	OK(bfs_create(B, 1, N("g"), 0644, 0, 0, O_RDWR, &a, &fb)); /* suspected: B leads; first writings are private */
	CHECK(a.ino != ino2 && bfs_is_leader(B), "B leads");
	IS(bfs_write(B, fb, 0, buf + 3, 200000), 200000);
	OK(bfs_flush(B, fb, false));
	OK(bfs_release(B, fb));
	/* A wakes up: its close finds the name taken */
	for (int i = 0; i < 20; i++) usleep(10000), bfs_tick(A);
	IS(bfs_write(A, fa, 100000, buf, 50), 50);
	IS(bfs_flush(A, fa, false), -EEXIST);
	OK(bfs_release(A, fa));
	OK(bfs_lookup(A, 1, N("g"), &a));
	CHECK(a.size == 200000, "first seal wins");
	b = A;
	CHECK(st().nunsealed == 0 && st().norphans == 0, "left over");
	check_space();
	int rc = bfs_detach(B, true);
	CHECK(!rc || rc == -EAGAIN, "detach of who has lost the lead: %s", text(rc));
	drop_pool();
}

static void leads(struct bfs *x) /* who has lost the lead learns it by his tick */
{
	OK(bfs_tick(x));
	OK(bfs_claim(x));
}
static void settle_both(struct bfs *A, struct bfs *B)
{
	for (int i = 0; i < 4; i++) {
		OK(bfs_apply_scan(B));
		OK(bfs_tick(B));
		OK(bfs_apply_scan(A));
		OK(bfs_tick(A));
	}
}

/* What a killed writer left on A goes first, whoever leads; who reads it on A, opened before it was given up, after that, or
 * after B has evicted it, by an old look, never reads what came to its place. */
static void t_abandoned_elsewhere(void)
{
	struct bfs *A, *B;
	struct bfs_opts ob;
	struct bfs_attr a;
	static u8 buf[40000], other[40000], got[40000];
	pattern(1, 0, buf, sizeof buf);
	pattern(2, 0, other, sizeof other);
	for (int when = 0; when < 3; when++) {
		u64 fa, r = 0, x, freed;
		make_pool(64, 0);
		A = b;
		ob = opts;
		ob.uuid[0] = 2, ob.follower = true;
		OK(bfs_create(A, 1, N("f"), 0644, 0, 0, O_RDWR, &a, &fa));
		u64 ino = a.ino;
		IS(bfs_write(A, fa, 0, buf, sizeof buf), (ssize_t)sizeof buf);
		if (when == 0) OK(bfs_open(A, ino, O_RDONLY, &r));
		OK(bfs_flush(A, fa, true));
		OK(bfs_release(A, fa));
		if (when == 1) OK(bfs_open(A, ino, O_RDONLY, &r));
		OK(bfs_attach(&mem, &ob, &B));
		leads(B);
		OK(bfs_evict(B, 1, &freed));
		CHECK(freed == 10, "%llu granules were evicted", (unsigned long long)freed);
		if (when == 2) OK(bfs_open(A, ino, O_RDONLY, &r));
		settle_both(A, B);
		leads(B);
		OK(bfs_create(B, 1, N("all"), 0644, 0, 0, O_RDWR, &a, &x));
		for (u64 off = 0; bfs_write(B, x, off, other, sizeof other) == (ssize_t)sizeof other; off += sizeof other) {}
		ssize_t n = bfs_read(A, r, 0, got, sizeof got);
		CHECK(n == -ESTALE || (n == (ssize_t)sizeof buf && !memcmp(got, buf, sizeof buf)), "when %d: %s, or another file's bytes", when, text(n));
		OK(bfs_release(A, r));
		OK(bfs_flush(B, x, false));
		OK(bfs_release(B, x));
		settle_both(A, B);
		b = B;
		OK(bfs_detach(A, true));
		check_space();
		drop_pool();
	}
}

/* A file that is open on A, and has lost its names there, is A's: another host that still knows it, by an open file or an
 * old look, stores nothing into it, for A gives its space away when it closes. */
static void t_orphans(void)
{
	struct bfs *A, *B;
	struct bfs_opts ob;
	struct bfs_attr a;
	u64 fa, fb, ino;
	static u8 buf[40000], got[40000];
	pattern(1, 0, buf, sizeof buf);
	for (int when = 0; when < 4; when++) /* B opens: before the unlink; after it, with an old look; with a new one; and has written */
		for (int how = 0; how < 6; how++) {
			int rc;
			u64 x;
			make_pool(64, 0);
			A = b;
			ob = opts;
			ob.uuid[0] = 2, ob.follower = true;
			OK(bfs_create(A, 1, N("f"), 0644, 0, 0, O_RDWR, &a, &fa));
			ino = a.ino, fb = 0;
			IS(bfs_write(A, fa, 0, buf, sizeof buf), (ssize_t)sizeof buf);
			OK(bfs_flush(A, fa, false));
			OK(bfs_attach(&mem, &ob, &B));
			if (when == 0 || when == 3) OK(bfs_open(B, ino, O_RDWR, &fb));
			if (when == 3) {
				leads(B);
				IS(bfs_write(B, fb, 0, buf + 1, 5000), 5000);
				leads(A);
			}
			OK(bfs_unlink(A, 1, N("f")));
			if (when == 2) OK(bfs_refresh(B));
			rc = fb ? 0 : bfs_open(B, ino, O_RDWR | (how == 5 ? O_TRUNC : 0), &fb);
			CHECK(when == 1 ? rc == (how == 5 ? -EBUSY : 0) : when == 2 ? rc == -ENOENT : !rc, "opened: %s", text(rc));
			leads(B);
			if (!rc) {
				a.size = 100;
				rc = how == 0 ? (int)bfs_write(B, fb, 0, buf, 100) : how == 1 ? (int)bfs_write(B, fb, sizeof buf, buf, 100) : how == 2 ? bfs_fallocate(B, fb, 0, 0, sizeof buf)
				     : how == 3 ? bfs_fallocate(B, fb, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192) : how == 4 ? bfs_setattr(B, ino, BFS_SET_SIZE, &a, fb, &a) : (int)bfs_write(B, fb, 50000, buf, 100);
				if (when == 3) CHECK(rc >= 0, "who was writing when the name went goes on: %s", text(rc));
				else CHECK(rc == -ESTALE, "when %d, how %d: stored into what is another host's: %s", when, how, text(rc));
			}
			/* A closes, and its space is another file's */
			leads(A);
			IS(bfs_read(A, fa, 0, got, sizeof got), (ssize_t)sizeof buf);
			CHECK(when == 3 || !memcmp(got, buf, sizeof buf), "A reads what it has");
			OK(bfs_flush(A, fa, false));
			OK(bfs_release(A, fa));
			settle_both(A, B);
			leads(A);
			OK(bfs_create(A, 1, N("all"), 0644, 0, 0, O_RDWR, &a, &x));
			for (u64 off = 0; bfs_write(A, x, off, buf, sizeof buf) == (ssize_t)sizeof buf; off += sizeof buf) {}
			if (fb) {
				bfs_write(B, fb, 0, got, 5000);
				bfs_flush(B, fb, false);
				OK(bfs_release(B, fb));
			}
			for (u64 off = 0; bfs_read(A, x, off, got, sizeof got) == (ssize_t)sizeof got; off += sizeof got) CHECK(!memcmp(got, buf, sizeof got), "when %d, how %d: another file's bytes have changed", when, how);
			leads(A);
			OK(bfs_unlink(A, 1, N("all")));
			OK(bfs_release(A, x));
			settle_both(A, B);
			if (when == 3) { /* its last close is B's to do, once it leads */
				leads(B);
				OK(bfs_tick(B));
				leads(A);
				settle_both(A, B);
			}
			b = A;
			CHECK(st().nunsealed == 0 && st().norphans == 0, "when %d, how %d: %llu unsealed, %llu orphans left", when, how, (unsigned long long)st().nunsealed, (unsigned long long)st().norphans);
			check_space();
			rc = bfs_detach(B, true);
			CHECK(!rc, "detach of who has lost the lead: %s", text(rc));
			drop_pool();
		}
}

/* A host dies with a closed and an open file; it is fenced, and the leader does what is left. */
static void t_dead(void)
{
	struct bfs *A, *B;
	struct bfs_opts ob;
	struct bfs_attr a;
	u64 fh, fh2, fh3;
	static u8 buf[100000];
	make_pool(64, 0);
	A = b;
	u32 slot = A->slot;
	pattern(1, 0, buf, sizeof buf);
	OK(bfs_create(A, 1, N("synced"), 0644, 0, 0, O_RDWR, &a, &fh));
	IS(bfs_write(A, fh, 0, buf, 50000), 50000);
	OK(bfs_fsync(A, fh));
	OK(bfs_create(A, 1, N("open"), 0644, 0, 0, O_RDWR, &a, &fh2));
	IS(bfs_write(A, fh2, 0, buf, 50000), 50000);
	OK(bfs_create(A, 1, N("gone"), 0644, 0, 0, O_RDWR, &a, &fh3));
	IS(bfs_write(A, fh3, 0, buf, 50000), 50000);
	OK(bfs_unlink(A, 1, N("gone")));
	OK(bfs_detach(A, false));
	ob = opts;
	ob.uuid[0] = 2;
	OK(bfs_attach(&mem, &ob, &B));
	b = B;
	CHECK(!there(1, "synced") && st().nunsealed == 3, "not seen before it is fenced");
	OK(bfs_declare_dead(B, slot, true));
	OK(sl_recover_slot(B, slot));
	CHECK(there(1, "synced") && !there(1, "open") && st().nunsealed == 0 && st().norphans == 0, "recovered: %llu unsealed", (unsigned long long)st().nunsealed);
	OK(bfs_lookup(B, 1, N("synced"), &a));
	check_block(a.ino, 1, 50000);
	check_space();
	opts = ob;
	drop_pool();
}

/* ---- threads -------------------------------------------------------------------------------------------------- */
static u64 tdir;
static _Atomic(int) stop, evicting;
static _Atomic(u64) wrote, read_, missed, full;
enum { KEYS = 64 };

static void *worker(void *arg)
{
	struct rng r = {(u64)(uintptr_t)arg * 7919 + seed};
	u8 *buf = malloc(1 << 20), *want = malloc(1 << 20);
	int ops = env("OPS", 500);
	for (int i = 0; i < ops; i++) {
		u32 key = below(&r, KEYS);
		char name[32], tmp[64];
		struct bfs_attr a;
		u64 fh;
		size_t n = 4096 + key * 6000;
		snprintf(name, sizeof name, "k%u", key);
		switch (below(&r, 8)) {
		case 0: case 1: { /* tmp and rename, as the engines do */
			snprintf(tmp, sizeof tmp, "%s.%llu.%d.tmp", name, (unsigned long long)(uintptr_t)arg, i);
			OK(bfs_create(b, tdir, N(tmp), 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
			pattern(key, 0, buf, n);
			ssize_t k = 0;
			for (size_t o = 0; o < n && k >= 0; o += 65536) k = bfs_write(b, fh, o, buf + o, n - o < 65536 ? n - o : 65536);
			if (k == -ENOSPC) {
				atomic_fetch_add(&full, 1);
				OK(bfs_unlink(b, tdir, N(tmp)));
			} else {
				CHECK(k > 0, "write: %s", text(k));
				OK(bfs_rename(b, tdir, N(tmp), tdir, N(name), 0));
			}
			OK(bfs_flush(b, fh, false));
			OK(bfs_release(b, fh));
			atomic_fetch_add(&wrote, 1);
			break;
		}
		case 2: case 3: case 4: case 5: {
			int rc = bfs_lookup(b, tdir, N(name), &a);
			if (!rc) rc = bfs_open(b, a.ino, O_RDONLY, &fh);
			if (rc) {
				CHECK(rc == -ENOENT || rc == -ESTALE, "open: %s", text(rc));
				atomic_fetch_add(&missed, 1);
				break;
			}
			u64 off = below(&r, 3) ? 0 : below(&r, (u32)n);
			ssize_t k = bfs_read(b, fh, off, buf, 1 << 20);
			CHECK(k == (ssize_t)(n - off), "read of key %u at %llu: %s, not %zu", key, (unsigned long long)off, text(k), n - off);
			pattern(key, off, want, n - off);
			CHECK(!memcmp(buf, want, n - off), "key %u has other bytes", key);
			OK(bfs_release(b, fh));
			atomic_fetch_add(&read_, 1);
			break;
		}
		case 6: { /* without an open */
			if (bfs_lookup(b, tdir, N(name), &a)) break;
			ssize_t k = fl_read_ino(b, a.ino, 0, buf, 1 << 20);
			if (k == -ESTALE || k == -ENOENT) break;
			CHECK(k == (ssize_t)n, "read of key %u: %s", key, text(k));
			pattern(key, 0, want, n);
			CHECK(!memcmp(buf, want, n), "key %u has other bytes", key);
			atomic_fetch_add(&read_, 1);
			break;
		}
		default: {
			int rc = bfs_unlink(b, tdir, N(name));
			CHECK(!rc || rc == -ENOENT, "unlink: %s", text(rc));
		}
		}
	}
	free(buf);
	free(want);
	return NULL;
}

/* one file that all write, each his own part; then all read it */
static u64 shared_ino;
static void *pwriter(void *arg)
{
	u32 me = (u32)(uintptr_t)arg;
	u64 fh = open_(shared_ino, O_RDWR);
	u8 buf[10000], got[10000];
	for (u32 i = 0; i < 40; i++) {
		u64 off = (u64)(i * 8 + me) * sizeof buf;
		pattern(me, off, buf, sizeof buf);
		write_(fh, off, buf, sizeof buf);
		IS(bfs_read(b, fh, off, got, sizeof got), sizeof got);
		CHECK(!memcmp(buf, got, sizeof buf), "own part %u/%u", me, i);
		if (i % 16 == 7) OK(bfs_fsync(b, fh));
	}
	close_(fh);
	return NULL;
}

static void *ticker(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		struct bfs_stat s;
		u64 f;
		OK(bfs_tick(b));
		OK(bfs_statfs(b, &s));
		if (atomic_load(&evicting)) OK(bfs_evict(b, 20, &f));
		usleep(2000);
	}
	return NULL;
}

static void t_threads(void)
{
	pthread_t th[8], tk;
	make_pool_rg(48, 2048, 256);
	tdir = mkdir_("d");
	atomic_store(&stop, 0);
	atomic_store(&evicting, 1);
	pthread_create(&tk, NULL, ticker, NULL);
	for (int i = 0; i < 8; i++) pthread_create(&th[i], NULL, worker, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < 8; i++) pthread_join(th[i], NULL);
	atomic_store(&evicting, 0);
	u64 fh = create(1, "shared", O_RDWR, &shared_ino);
	for (int i = 0; i < 8; i++) pthread_create(&th[i], NULL, pwriter, (void *)(uintptr_t)i);
	for (int i = 0; i < 8; i++) pthread_join(th[i], NULL);
	close_(fh);
	CHECK(attr(shared_ino).state == BFS_ST_SEALED, "state %u", attr(shared_ino).state);
	fh = open_(shared_ino, O_RDONLY);
	for (u32 i = 0; i < 320; i++) {
		u8 got[10000], want[10000];
		IS(bfs_read(b, fh, i * sizeof got, got, sizeof got), sizeof got);
		pattern(i % 8, i * sizeof got, want, sizeof want);
		CHECK(!memcmp(got, want, sizeof got), "part %u", i);
	}
	OK(bfs_release(b, fh));
	atomic_store(&stop, 1);
	pthread_join(tk, NULL);
	CHECK(!st().nunsealed && !st().norphans && !st().open_files, "left over: %llu %llu %llu", (unsigned long long)st().nunsealed, (unsigned long long)st().norphans, (unsigned long long)st().open_files);
	check_space();
	printf("   %llu written, %llu read, %llu missed, %llu full, %llu evicted\n", (unsigned long long)wrote, (unsigned long long)read_, (unsigned long long)missed, (unsigned long long)full, (unsigned long long)st().evicted_blocks);
	drop_pool();
}

/* ---- stores that are answered before the data is copied ------------------------------------------ */
static struct bfs_mem_ops failing;
static int (*sound)(struct bfs_mem *m, void *dst, const void *src, size_t len, u64 *sum);
static int copies; /* that still succeed */
static int fails(struct bfs_mem *m, void *dst, const void *src, size_t len, u64 *sum) { return copies-- > 0 ? sound(m, dst, src, len, sum) : -EIO; }

struct told { u64 ino, size, fh; u32 times; };
static void told(void *arg)
{
	struct told *t = arg;
	t->times++;
	if (t->ino) CHECK(attr(t->ino).size == t->size, "size of who asks now: %llu", (unsigned long long)attr(t->ino).size);
	if (t->fh) OK(bfs_release(b, t->fh)); /* a last reference without a close before it */
}

static void t_early(void)
{
	enum { LEN = 700000 };
	u8 *buf = malloc(LEN);
	struct told t = {0};
	struct bfs_attr a;
	u64 ino, fh;
	make_pool(64, 0);
	pattern(3, 0, buf, LEN);

	fh = create(1, "f", O_RDWR, &ino);
	for (u64 off = 0; off < LEN; off += LEN / 2) {
		t = (struct told){.ino = ino, .size = off + LEN / 2};
		IS(bfs_write_early(b, fh, off, buf + off, LEN / 2, told, &t), LEN / 2);
		CHECK(t.times == (b->back ? 0 : 1), "told %u times", t.times);
	}
	close_(fh);
	CHECK(attr(ino).state == BFS_ST_SEALED, "sealed");
	check_block(ino, 3, LEN);
	/* what was sealed once may have to be as it was: nothing is said ahead */
	t = (struct told){0};
	fh = open_(ino, O_RDWR);
	IS(bfs_write_early(b, fh, 0, buf, LEN, told, &t), LEN);
	CHECK(!t.times, "a rewrite was told of ahead");
	close_(fh);
	IS(bfs_write_early(b, fh, 0, buf, LEN, told, &t), -EBADF);
	if (!b->back) {
		t.fh = create(1, "let go", O_RDWR, &ino);
		IS(bfs_write_early(b, t.fh, 0, buf, LEN, told, &t), LEN);
		CHECK(attr(ino).state == BFS_ST_SEALED, "sealed by who came last");
		check_block(ino, 3, LEN);
	}
	detach(true);
	attach();
	for (int good = 0; good < 3 && !opts.directory; good++) { /* the memory fails behind the answer */
		char name[16];
		failing = *mem.ops, sound = failing.copy_in_sum, failing.copy_in_sum = fails, copies = good;
		snprintf(name, sizeof name, "lost%d", good);
		fh = create(1, name, O_RDWR, &ino);
		write_(fh, 0, buf, 100);
		const struct bfs_mem_ops *was = mem.ops;
		mem.ops = &failing;
		t = (struct told){0};
		long n = bfs_write_early(b, fh, 262144, buf, 3 * 262144 / 2 + 50, told, &t);
		mem.ops = was;
		IS(n, good < 2 ? -EIO : 3 * 262144 / 2 + 50); /* two chunks, the second up to the end of the file */
		CHECK(t.times == 1, "told");
		IS(bfs_flush(b, fh, false), n < 0 ? -EIO : 0);
		OK(bfs_flush(b, fh, false)); /* said once */
		OK(bfs_release(b, fh));
		a = attr(ino);
		CHECK(a.state == (n < 0 ? BFS_ST_ABANDONED : BFS_ST_SEALED), "state %u", a.state);
		if (n < 0) CHECK(a.size == 100, "size %llu", (unsigned long long)a.size);
		detach(false);
		attach();
		CHECK(attr(ino).state == a.state, "stays so");
	}
	if (!opts.directory) { /* and before it: nobody is told */
		fh = create(1, "dead", O_RDWR, &ino);
		OK(bfs_reserve(b, fh, LEN));
		struct bfs_extent *e = &hd_get(b, fh)->in->ext[0];
		u8 *data = al_mem(b, e->addr);
		size_t len = (size_t)e->len * BFS_GRANULE;
		t = (struct told){0};
		OK(mprotect(data, len, PROT_NONE));
		long n = bfs_write_early(b, fh, 0, buf, LEN, told, &t);
		OK(mprotect(data, len, PROT_READ | PROT_WRITE));
		IS(n, -EIO);
		CHECK(!t.times, "told of memory that isn't there");
		close_(fh);
		CHECK(attr(ino).size == 0, "size");
	}
	free(buf);
	drop_pool();
}

static const struct test tests[] = {
	{"early", t_early, false},
	{"basic", t_basic, false}, {"unlink", t_unlink, false}, {"crash", t_crash, false}, {"killed", t_killed, false}, {"class", t_class, false}, {"sparse", t_sparse, false},
	{"corrupt", t_corrupt, false}, {"bad", t_bad, false}, {"room", t_room, false}, {"room-class", t_room_class, false},
	{"promise", t_promise, true}, {"put-back", t_put_back, false}, {"room-crash", t_room_crash, false}, {"room-corrupt", t_room_corrupt, false}, {"tmpfile", t_tmpfile, false}, {"batch", t_batch, false}, {"hazard", t_hazard, false}, {"held", t_held, false},
	{"hosts", t_hosts, false}, {"orphans", t_orphans, false}, {"abandoned-elsewhere", t_abandoned_elsewhere, false}, {"dead", t_dead, false}, {"model", t_model, true}, {"threads", t_threads, true},
};

int main(int argc, char **argv) { return run_tests(tests, sizeof tests / sizeof *tests, argc, argv); }
