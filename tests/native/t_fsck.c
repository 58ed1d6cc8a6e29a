/* bfs_fsck against damage.
 *
 *   break    one thing is broken in a good pool, with the checksum made good again: exactly
 *            the expected code has to be told
 *   random   bytes anywhere in superblocks, host slots and metadata: never a crash, a hang or a
 *            read outside (run it under AddressSanitizer), and what hits a page that is in
 *            use is told.  Half of the pages get a good checksum again, so that the damage
 *            reaches the checks behind it
 *
 *   t_fsck [--rounds N] [--seed S]
 *   t_fsck --make FILE        writes the pool of the test, for tests in Python; its listing goes to stdout
 *   t_fsck --check FILE       fsck of a file: prints findings
 */
#include "t_damage.h"

/* "a b (c) *": a and b told, c perhaps; with * anything else too */
static bool as_expected(const char *want, const char *got)
{
	char w[4200], *save = NULL, list[4200] = " ";
	bool any = false;
	snprintf(w, sizeof w, "%s", want);
	for (char *p = strtok_r(w, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
		char x[64];
		if (!strcmp(p, "*")) {
			any = true;
			continue;
		}
		bool maybe = *p == '(';
		if (maybe) p[strlen(p) - 1] = 0, p++;
		snprintf(x, sizeof x, "%s ", p);
		const char *at = strstr(got, x);
		while (at && at != got && at[-1] != ' ') at = strstr(at + 1, x);
		if (!at && !maybe) return false;
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s", x);
	}
	if (any) return *got;
	snprintf(w, sizeof w, "%s", got);
	for (char *p = strtok_r(w, " ", &save); p; p = strtok_r(NULL, " ", &save)) {
		char x[64];
		snprintf(x, sizeof x, " %s ", p);
		if (!strstr(list, x)) return false;
	}
	return true;
}

static int break_all(const u8 *good, const u8 *crashed, u8 *work)
{
	int failed = 0, n = (int)(sizeof breaks / sizeof *breaks);
	for (int i = 0; i < n; i++) {
		struct env e;
		memcpy(work, breaks[i].crashed ? crashed : good, SIZE);
		open_env(&e, work);
		breaks[i].f(&e);
		close_env(&e);
		struct found *f = fsck(&e.m, breaks[i].data);
		if (as_expected(breaks[i].codes, f->codes)) continue;
		failed++;
		fprintf(stderr, "%s: expected %s, found %s\n%s", breaks[i].name, *breaks[i].codes ? breaks[i].codes : "nothing", *f->codes ? f->codes : "nothing", f->text);
	}
	printf("t_fsck: %d things broken one by one, %d not told as expected\n", n, failed);
	return failed;
}

/* ---- random damage ---------------------------------------------------------------------------------------------- */
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int random_damage(const u8 *good, u8 *work, u64 rounds)
{
	struct bfs_super sb;
	u64 told = 0, missed = 0, pages = 0, first_seed = seed;
	double worst = 0, t0 = now();
	memcpy(&sb, good, sizeof sb);
	/* which pages are in use: those whose damage is told */
	u8 *used = calloc(1, sb.meta_pages);
	memcpy(work, good, SIZE);
	for (u32 p = 1; p < sb.meta_pages; p++) {
		struct bfs_mem m = mem_of(work, SIZE);
		work[sb.meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
		used[p] = fsck(&m, false)->n > 0;
		pages += used[p];
		work[sb.meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
	}
	for (u64 i = 0; i < rounds; i++) {
		struct bfs_mem m = mem_of(work, SIZE);
		u64 s = seed;
		memcpy(work, good, SIZE);
		bool must = wild(work, &sb, used);
		double t = now();
		struct found *f = fsck(&m, i % 4 == 0);
		t = now() - t;
		if (t > worst) worst = t;
		told += f->n > 0;
		/* several damages may hide each other: one alone has to be told */
		if (must && !f->n) {
			missed++;
			fprintf(stderr, "damage of a page in use wasn't told; seed %llu\n", (unsigned long long)s);
		}
		if (worst > 20) {
			fprintf(stderr, "seed %llu took %.1f s\n", (unsigned long long)s, worst);
			return 1;
		}
	}
	printf("t_fsck: %llu pools with random damage (%llu of %u pages in use), %llu told, %llu missed; slowest %.3f s; seed %llu; %.0f/s\n", (unsigned long long)rounds, (unsigned long long)pages, sb.meta_pages,
	       (unsigned long long)told, (unsigned long long)missed, worst, (unsigned long long)first_seed, (double)rounds / (now() - t0));
	free(used);
	return missed != 0;
}

/* ---- a short pool, and one that can't be read -------------------------------------------------------------------------- */
static int unreadable(const u8 *good)
{
	char path[] = "/tmp/t_fsck.XXXXXX";
	int fd = mkstemp(path), failed = 0;
	CHECK(fd >= 0 && write(fd, good, SIZE) == (ssize_t)SIZE);
	u8 *p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	struct bfs_mem m = mem_of(p, SIZE);
	/* read-only mapping */
	struct found *f = fsck(&m, true);
	if (f->n) failed++, fprintf(stderr, "read-only mapping:\n%s", f->text);
	/* truncated under the mapping: SIGBUS, not a crash */
	CHECK(!ftruncate(fd, 1 << 20));
	f = fsck(&m, true);
	if (!strstr(f->codes, "read-error")) failed++, fprintf(stderr, "truncated under the mapping: found %s\n", f->codes);
	m.size = 1 << 20;
	f = fsck(&m, true);
	if (strcmp(f->codes, "super ")) failed++, fprintf(stderr, "short pool: found %s\n", f->codes);
	m.size = 100;
	f = fsck(&m, true);
	if (!strstr(f->codes, "super ")) failed++, fprintf(stderr, "tiny pool: found %s\n", f->codes);
	munmap(p, SIZE);
	unlink(path);
	close(fd);
	return failed;
}

/* ---- for tests in Python --------------------------------------------------------------------------------------------------- */
static void list(struct bfs *b, u64 dir, const char *path)
{
	static u8 buf[1 << 20];
	struct bfs_dirent e[64];
	int n;
	for (u64 after = 0; (n = bfs_readdir(b, dir, after, e, 64)) > 0; after = e[n - 1].cookie)
		for (int i = 0; i < n; i++) {
			struct bfs_attr a;
			char p[1024];
			snprintf(p, sizeof p, "%s/%.*s", path, e[i].len, e[i].name);
			CHECK(!bfs_lookup(b, dir, e[i].name, e[i].len, &a));
			u64 sum = 0;
			if (S_ISREG(a.mode)) {
				u64 fh;
				CHECK(!bfs_open(b, a.ino, O_RDONLY, &fh));
				CHECK(bfs_read(b, fh, 0, buf, sizeof buf) == (ssize_t)a.size);
				sum = bfs_xxh(buf, a.size, 0);
				CHECK(!bfs_release(b, fh));
			}
			printf("%s %llu %o %u %llu %016llx\n", p, (unsigned long long)a.ino, a.mode, a.nlink, (unsigned long long)a.size, (unsigned long long)sum);
			if (S_ISDIR(a.mode)) list(b, a.ino, p);
		}
	CHECK(!n);
}

static int to_file(const char *path, u8 *pool)
{
	struct bfs_mem m = mem_of(pool, SIZE);
	struct bfs_opts o = opts;
	struct bfs *b;
	FILE *f = fopen(path, "w");
	CHECK(f && fwrite(pool, 1, SIZE, f) == SIZE && !fclose(f));
	o.readonly = true;
	CHECK(!bfs_attach(&m, &o, &b));
	list(b, BFS_ROOT_INO, "");
	CHECK(!bfs_detach(b, true));
	return 0;
}

static void print_finding(void *arg, int severity, const char *code, const char *text)
{
	(void)arg;
	printf("%s %s: %s\n", severity ? "problem" : "note", code, text);
}

static int check_file(const char *path)
{
	struct stat st;
	struct bfs_fsck_result r;
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && !fstat(fd, &st));
	u8 *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(p != MAP_FAILED);
	struct bfs_mem m = mem_of(p, (size_t)st.st_size);
	int n = bfs_fsck(&m, true, print_finding, NULL, &r);
	printf("%llu pages, %llu objects, %llu entries, %llu extents, %llu blocks, %llu bad, %llu bytes checked, %d problems\n", (unsigned long long)r.pages, (unsigned long long)r.objects, (unsigned long long)r.entries,
	       (unsigned long long)r.extents, (unsigned long long)r.blocks, (unsigned long long)r.blocks_bad, (unsigned long long)r.bytes_checked, n);
	return n != 0;
}

int main(int argc, char **argv)
{
#ifdef __SANITIZE_ADDRESS__
	u64 rounds = 1500;
#else
	u64 rounds = 4000;
#endif
	const char *out = NULL;
	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && !strcmp(argv[i], "--rounds")) rounds = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--make")) out = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--check")) return check_file(argv[++i]);
		else return fprintf(stderr, "usage: t_fsck [--rounds N] [--seed S] | --make FILE | --check FILE\n"), 2;
	}
	u8 *good = malloc(SIZE), *work = malloc(SIZE);
	struct bfs_mem m = mem_of(good, SIZE);
	make(&m);
	if (out) return to_file(out, good);
	u8 *crashed = malloc(SIZE);
	memcpy(crashed, good, SIZE);
	m = mem_of(crashed, SIZE);
	crash(&m);
	int failed = break_all(good, crashed, work);
	free(crashed);
	failed += unreadable(good);
	failed += random_damage(good, work, rounds);
	free(good);
	free(work);
	return failed != 0;
}
