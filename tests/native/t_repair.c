/* Repair by bfs_fsck_run.
 *
 *   corpus   each damage of t_damage.h: what the check says, how the repair ends, what is there
 *            afterwards; one line each, which has to be that of t_repair.expected
 *   random   one byte of the metadata is changed: checking neither crashes nor hangs, an attachment
 *            shows no byte that wasn't stored, and the repaired pool is clean and misses no more
 *            than what one page can hold
 *   wild     many bytes at once, with checksums made good again: no crash, no hang, and what is called
 *            repaired is clean
 *   shapes   pools of many hash seeds, of every number of free slots down to none, with and without something
 *            called lost+found: each page of names is damaged in turn, and no file may be lost
 *   killed   the repair is cut off behind a store, or in the middle of one, or its host crashes, and any
 *            part of what wasn't fenced is lost; another repair ends with what an undisturbed one
 *            ends with
 *
 *   t_repair [--rounds N] [--kills N] [--seed S] [--expected FILE] [--write]   (make the file anew)
 *   t_repair --one NAME    one damage of the corpus, with all that is said
 *   t_repair --again ROUND,SEED    one of the wild ones, as it was told */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/wait.h>
#include "t_damage.h"

/* ---- what a pool holds ------------------------------------------------------------------------ */
struct item {
	char *path;
	u64 sum, attrs; /* attrs 0: none */
	u32 mode, nlink;
	bool there; /* met in another listing */
};
struct listing {
	struct item *v;
	u32 n, cap, errors;
};

static void note_item(struct listing *l, const char *path, u32 mode, u32 nlink, u64 sum, u64 attrs)
{
	if (l->n == l->cap) CHECK((l->v = realloc(l->v, (l->cap = l->cap ? 2 * l->cap : 256) * sizeof *l->v)));
	l->v[l->n++] = (struct item){strdup(path), sum, attrs, mode, nlink, false};
}

/* content and attributes; false: it can't be read */
static bool sum_of(struct bfs *b, const struct bfs_attr *a, u64 *sum, u64 *attrs)
{
	static u8 buf[256 << 10];
	char names[1024];
	ssize_t n = 0;
	u64 h = a->size;
	if (S_ISREG(a->mode)) {
		u64 fh;
		if (bfs_open(b, a->ino, O_RDONLY, &fh)) return false;
		n = bfs_read(b, fh, 0, buf, sizeof buf);
		bfs_release(b, fh);
		if (n != (ssize_t)(a->size < sizeof buf ? a->size : sizeof buf)) return false;
	} else if (S_ISLNK(a->mode)) {
		if ((n = bfs_readlink(b, a->ino, buf, sizeof buf)) < 0) return false;
	}
	*sum = bfs_xxh(buf, (size_t)n, h);
	*attrs = 0;
	ssize_t m = bfs_listxattr(b, a->ino, names, sizeof names);
	if (m < 0) return false;
	for (char *x = names; x < names + m; x += strlen(x) + 1) {
		if (!strncmp(x, "user.beluga.", 12)) continue;
		if ((n = bfs_getxattr(b, a->ino, x, buf, sizeof buf)) < 0) return false;
		*attrs = bfs_xxh(buf, (size_t)n, bfs_xxh(x, strlen(x), *attrs));
	}
	return true;
}

static bool tell; /* what can't be read */
static void walk(struct bfs *b, u64 dir, const char *path, int depth, struct listing *l)
{
	struct bfs_dirent e[64];
	int n;
	for (u64 after = 0; (n = bfs_readdir(b, dir, after, e, 64)) > 0; after = e[n - 1].cookie)
		for (int i = 0; i < n; i++) {
			struct bfs_attr a;
			char p[2048];
			u64 sum, attrs;
			snprintf(p, sizeof p, "%s/%.*s", path, e[i].len, e[i].name);
			if (bfs_lookup(b, dir, e[i].name, e[i].len, &a) || !sum_of(b, &a, &sum, &attrs)) {
				if (tell) printf("  %s: %s\n", p, bfs_errmsg());
				l->errors++;
				continue;
			}
			note_item(l, p, a.mode, S_ISDIR(a.mode) ? 0 : a.nlink, S_ISDIR(a.mode) ? 0 : sum, attrs);
			if (S_ISDIR(a.mode) && depth < 8) walk(b, a.ino, p, depth + 1, l);
		}
	if (n < 0) l->errors++;
}

static int by_path(const void *p, const void *q) { return strcmp(((const struct item *)p)->path, ((const struct item *)q)->path); }

/* false: the pool can't be attached */
static bool take(struct bfs_mem *m, bool readonly, struct listing *l)
{
	struct bfs_opts o = opts;
	struct bfs *b;
	*l = (struct listing){0};
	o.readonly = readonly;
	if (bfs_attach(m, &o, &b)) return false;
	walk(b, BFS_ROOT_INO, "", 0, l);
	CHECK(!bfs_detach(b, true) || readonly || l->errors);
	if (l->n) qsort(l->v, l->n, sizeof *l->v, by_path);
	return true;
}

static void drop(struct listing *l)
{
	for (u32 i = 0; i < l->n; i++) free(l->v[i].path);
	free(l->v);
	*l = (struct listing){0};
}

/* Everything in `now` is in `good` with the same content; what is in lost+found is something that was
 * there.  NULL, or the path that isn't so.  Marks what of `good` is there; found: how many are in lost+found. */
static struct listing *older; /* what it was before the crash is right as well */
static const char *foreign(struct listing *good, const struct listing *now, u32 *found)
{
	*found = 0;
	for (u32 i = 0; i < good->n; i++) good->v[i].there = false;
	for (u32 i = 0; i < now->n; i++) {
		struct item *x = &now->v[i], *g = bsearch(x, good->v, good->n, sizeof *x, by_path);
		if (older && (!g || g->sum != x->sum)) {
			struct item *o = bsearch(x, older->v, older->n, sizeof *x, by_path);
			if (o && o->sum == x->sum && o->mode == x->mode) {
				if (g) g->there = true;
				continue;
			}
		}
		if (!g && (!strncmp(x->path, "/lost+found", 11) || !strncmp(x->path, "/ns#", 4))) {
			bool any = S_ISDIR(x->mode); /* under another name */
			*found += strcmp(x->path, "/lost+found") != 0;
			for (u32 j = 0; j < good->n && !any; j++) any = good->v[j].sum == x->sum && good->v[j].mode == x->mode;
			if (!any) return x->path;
			continue;
		}
		bool remade = g && S_ISDIR(g->mode) && x->mode == (S_IFDIR | 0700); /* what its mode was is lost */
		if (!g || g->sum != x->sum || (g->mode != x->mode && !remade) || (x->attrs && x->attrs != g->attrs)) return x->path;
		g->there = true;
	}
	return NULL;
}

static bool same(const struct listing *a, const struct listing *b)
{
	if (a->n != b->n || a->errors != b->errors) return false;
	for (u32 i = 0; i < a->n; i++)
		if (strcmp(a->v[i].path, b->v[i].path) || a->v[i].sum != b->v[i].sum || a->v[i].attrs != b->v[i].attrs || a->v[i].mode != b->v[i].mode || a->v[i].nlink != b->v[i].nlink) return false;
	return true;
}

/* ---- repairing ------------------------------------------------------------------------------------- */
struct said {
	struct found f;    /* of the check */
	char did[4096];    /* codes of what was done */
	bool loud;
};
static void hear(void *arg, int severity, const char *code, const char *text)
{
	struct said *s = arg;
	if (s->loud) printf("%s %s: %s\n", severity == 2 ? "repair " : severity ? "problem" : "note   ", code, text);
	if (severity == 2) note_code(s->did, sizeof s->did, code);
	else finding(&s->f, severity, code, text);
}

/* as fsck(8) ends */
static int repair(struct bfs_mem *m, bool data, struct said *s, struct bfs_fsck_result *r)
{
	struct bfs_fsck_how how = {.data = data, .repair = true, .uuid = {1, 2}, .boot = 7, .cb = hear, .arg = s};
	struct bfs_fsck_result local;
	bool loud = s->loud;
	memset(s, 0, sizeof *s);
	s->loud = loud;
	if (!r) r = &local;
	int rc = bfs_fsck_run(m, &how, r);
	return rc < 0 ? 8 : rc ? 4 : r->problems ? 1 : 0;
}

/* Nothing here takes long: what does is a loop without end. */
static char doing[160];
static void late(int sig)
{
	(void)sig;
	ssize_t n = write(2, doing, strlen(doing));
	n += write(2, ": took more than 20 s\n", 22);
	_exit(n ? 3 : 4);
}
static void start(const char *what)
{
	snprintf(doing, sizeof doing, "%s", what);
	alarm(20);
}

static int wrongs;
static void wrong(const char *what, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void wrong(const char *what, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "t_repair: %s: ", what);
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	wrongs++;
}

/* A repaired pool is one like any other: it can be written to, and be emptied, and its figures stay right. */
static void use(struct bfs_mem *m, const char *what)
{
	struct bfs *b;
	struct bfs_attr a;
	if (bfs_attach(m, &opts, &b)) return wrong(what, "attach of the repaired pool: %s", bfs_errmsg());
	file(b, 1, "made afterwards", 30000, 77);
	for (int i = 0; i < 20; i++) {
		char name[32];
		int n = snprintf(name, sizeof name, "link%d", i);
		if (bfs_symlink(b, 1, name, (size_t)n, "x", 1, 0, 0, &a)) wrong(what, "symlink in the repaired pool: %s", bfs_errmsg());
	}
	struct bfs_dirent e[64];
	int n;
	for (u64 after = 0; (n = bfs_readdir(b, 1, after, e, 64)) > 0; after = e[n - 1].cookie)
		for (int i = 0; i < n; i++) {
			if (e[i].type == S_IFDIR >> 12) continue;
			if (bfs_unlink(b, 1, e[i].name, e[i].len)) wrong(what, "unlink of %s: %s", e[i].name, bfs_errmsg());
		}
	CHECK(!bfs_detach(b, true));
	struct found *f = fsck(m, true);
	if (f->n) wrong(what, "after use the repaired pool isn't clean:\n%s", f->text);
}

/* ---- corpus --------------------------------------------------------------------------------------------- */
static void append(char *s, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void append(char *s, size_t size, const char *fmt, ...)
{
	size_t n = strlen(s);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(s + n, size - n, fmt, ap);
	va_end(ap);
}

/* long names of digits are shown by their length */
static const char *brief(const char *path, char *buf, size_t size)
{
	snprintf(buf, size, "%.30s%s", path, strlen(path) > 30 ? "..." : "");
	return buf;
}

struct pool {
	u8 *image;
	struct listing before; /* as the next attachment of its host shows it */
};
static struct pool pools[2]; /* whole, and crashed */
static struct listing populated; /* before anything was deleted: what is left where the newest root is lost */

static void one_line(u8 *work, int i, bool loud, char *out, size_t size)
{
	struct env e;
	static struct said s;
	struct bfs_fsck_result r;
	struct listing now;
	u32 found;
	struct pool *p = &pools[breaks[i].crashed];
	struct listing *before = &p->before;
	older = breaks[i].crashed ? &pools[0].before : NULL;
	start(breaks[i].name);
	memcpy(work, p->image, SIZE);
	open_env(&e, work);
	breaks[i].f(&e);
	close_env(&e);
	if (take(&e.m, true, &now)) drop(&now); /* whatever it shows: neither a crash nor a hang */
	s.loud = loud;
	int code = repair(&e.m, breaks[i].data, &s, &r);
	*out = 0;
	append(out, size, "%s | %s| exit %d | %s", breaks[i].name, s.f.codes, code, s.did);
	if (code == 8) {
		append(out, size, "| %.40s", bfs_errmsg());
		return;
	}
	if (code == 4) wrong(breaks[i].name, "%llu problems are left", (unsigned long long)r.left);
	struct found *f = fsck(&e.m, breaks[i].data);
	if (f->n) wrong(breaks[i].name, "not clean after the repair:\n%s", f->text);
	if (!take(&e.m, false, &now)) return wrong(breaks[i].name, "attach of the repaired pool: %s", bfs_errmsg());
	const char *bad = foreign(before, &now, &found);
	if (bad) wrong(breaks[i].name, "%s has another content than it ever had", bad);
	if (now.errors) wrong(breaks[i].name, "%u things can't be read after the repair", now.errors);
	u32 lost = 0;
	append(out, size, "| ");
	for (u32 j = 0; j < before->n; j++) lost += !before->v[j].there;
	if (lost) append(out, size, "lost %u:", lost);
	for (u32 j = 0, shown = 0; j < before->n && shown < 4; j++) {
		char buf[64];
		if (!before->v[j].there) append(out, size, " %s", brief(before->v[j].path, buf, sizeof buf)), shown++;
	}
	if (found) append(out, size, "%s%u in lost+found", lost ? "; " : "", found);
	if (!lost && !found) append(out, size, "all there");
	drop(&now);
	use(&e.m, breaks[i].name);
}

static void corpus(u8 *work, const char *path, bool write_it)
{
	int n = (int)(sizeof breaks / sizeof *breaks), differ = 0, repaired = 0;
	FILE *f = fopen(path, write_it ? "w" : "r");
	if (!f) return wrong(path, "can't be opened");
	if (write_it) fprintf(f, "# damage | what the check says | how the repair ends | what it did | what is there afterwards\n");
	char line[2048], want[2048];
	if (!write_it) CHECK(fgets(want, sizeof want, f));
	for (int i = 0; i < n; i++) {
		one_line(work, i, false, line, sizeof line);
		repaired += strstr(line, "| exit 1 |") != NULL;
		if (write_it) {
			fprintf(f, "%s\n", line);
			continue;
		}
		if (!fgets(want, sizeof want, f)) *want = 0;
		want[strcspn(want, "\n")] = 0;
		if (strcmp(line, want)) differ++, wrong("corpus", "expected %s\n              found %s", want, line);
	}
	fclose(f);
	printf("t_repair: %d damaged pools, %d repaired, %d not as expected\n", n, repaired, differ);
}

/* ---- random ------------------------------------------------------------------------------------------------ */
static u8 *pages_in_use(const u8 *good, u8 *work, const struct bfs_super *sb)
{
	u8 *used = calloc(1, sb->meta_pages);
	memcpy(work, good, SIZE);
	for (u32 p = 1; p < sb->meta_pages; p++) {
		struct bfs_mem m = mem_of(work, SIZE);
		work[sb->meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
		used[p] = fsck(&m, false)->n > 0;
		work[sb->meta_off + (u64)p * BFS_PAGE + 40] ^= 1;
	}
	return used;
}

static u64 change_byte(u8 *work, const struct bfs_super *sb, const u8 *used)
{
	u64 where = rnd() % 16, off;
	if (where == 0) off = rnd() % 8192;
	else if (where < 3) off = sb->host_off + rnd() % (sb->meta_off - sb->host_off);
	else if (where == 3) off = sb->host_off + rnd() % sb->nhosts * sb->host_stride + rnd() % (13 * BFS_LINE); /* registers in use */
	else {
		u32 page;
		do page = 1 + (u32)(rnd() % (sb->meta_pages - 1)); while (!used[page]);
		off = sb->meta_off + (u64)page * BFS_PAGE + rnd() % BFS_PAGE;
	}
	u8 old = work[off];
	do work[off] = (u8)rnd(); while (work[off] == old);
	return off;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void random_bytes(const u8 *good, u8 *work, struct listing *before, const struct bfs_super *sb, const u8 *used, u64 rounds)
{
	u64 told = 0, lost_all = 0, found_all = 0, first_seed = seed;
	double t0 = seconds(), worst = 0;
	u32 most = 0;
	static struct said s;
	for (u64 i = 0; i < rounds; i++) {
		struct bfs_mem m = mem_of(work, SIZE);
		struct listing now;
		struct bfs_fsck_result r;
		char what[80];
		u32 found, lost = 0;
		memcpy(work, good, SIZE);
		u64 off = change_byte(work, sb, used);
		snprintf(what, sizeof what, "byte 0x%llx, round %llu of seed %llu", (unsigned long long)off, (unsigned long long)i, (unsigned long long)first_seed);
		start(what);
		double t = seconds();
		told += fsck(&m, false)->n > 0;
		if (take(&m, true, &now)) {
			const char *bad = foreign(before, &now, &found);
			if (bad) wrong(what, "the damaged pool shows %s as it never was", bad);
			drop(&now);
		}
		int code = repair(&m, i % 4 == 0, &s, &r);
		t = seconds() - t;
		if (t > worst) worst = t;
		if (code > 1) wrong(what, "the repair ends with %d (%s)", code, bfs_errmsg());
		struct found *f = fsck(&m, true);
		if (f->n) wrong(what, "not clean after the repair:\n%s", f->text);
		if (!take(&m, false, &now)) {
			wrong(what, "attach of the repaired pool: %s", bfs_errmsg());
			continue;
		}
		const char *bad = foreign(before, &now, &found);
		if (bad) wrong(what, "the repaired pool shows %s as it never was", bad);
		if (now.errors) wrong(what, "%u things can't be read after the repair", now.errors);
		for (u32 j = 0; j < before->n; j++) lost += !before->v[j].there;
		/* a bucket holds 64 entries, a page of objects 16; a directory in lost+found has its content with it */
		if (lost > found + BFS_BUCKET_MAX) wrong(what, "%u of %u are lost by one byte", lost, before->n);
		if (lost > most) most = lost;
		lost_all += lost, found_all += found;
		drop(&now);
		if (i % 8 == 0) use(&m, what);
		f = fsck(&m, false);
		if (f->n) wrong(what, "not clean after use:\n%s", f->text);
	}
	printf("t_repair: %llu pools with one byte changed, %llu told; of %u names at most %u lost by one, %.2f on average, %.2f put into lost+found; slowest %.3f s; seed %llu; %.1f s\n", (unsigned long long)rounds,
	       (unsigned long long)told, before->n, most, (double)lost_all / (double)rounds, (double)found_all / (double)rounds, worst, (unsigned long long)first_seed, seconds() - t0);
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */
#define SHAPE_SIZE (2u << 20)
static u32 shape_files;
/* a directory with another in it, and files in both until `spare` slots are left */
static void make_shape(struct bfs_mem *m, u64 i)
{
	struct bfs_mkfs_params p = {.size_bytes = SHAPE_SIZE, .inodes = i % 3 ? 64 : 128, .nhosts = 2, .rows = 8, .ring_entries = 64, .region_granules = 64, .chunk_bytes = 4096, .meta_pages = 160, .incarnation = 0x1000 + i * 0x9E37};
	u32 spare = (u32)(i / 3 % 4) + (i % 3 == 2 ? 0 : 62 * !(i % 3)), used = 2;
	struct bfs *b;
	struct bfs_attr d, e, a;
	u64 fh;
	char name[32];
	memset(m->base, 0, m->size);
	CHECK(!bfs_mkfs(m, &p, NULL));
	CHECK(!bfs_attach(m, &opts, &b));
	CHECK(!bfs_mkdir(b, 1, "d", 1, 0755, 0, 0, &d) && !bfs_mkdir(b, d.ino, "e", 1, 0755, 0, 0, &e));
	used += 2;
	if (i / 12 % 3 == 1) {
		CHECK(!bfs_mkdir(b, 1, "lost+found", 10, 0700, 0, 0, &a));
		used++;
	}
	if (i / 12 % 3 == 2) file(b, 1, "lost+found", 100, 1), used++;
	for (shape_files = 0; used + spare < p.inodes; used++) {
		snprintf(name, sizeof name, "file%u", ++shape_files);
		file(b, used % 5 ? d.ino : used % 3 ? e.ino : 1, name, 1000 + used, used + 100);
	}
	if (i / 3 % 4 && i % 2) { /* as after a crash */
		CHECK(!bfs_create(b, 1, "synced", 6, 0644, 0, 0, O_WRONLY | O_EXCL, &a, &fh));
		CHECK(bfs_write(b, fh, 0, name, sizeof name) == sizeof name && !bfs_fsync(b, fh));
		CHECK(!bfs_detach(b, false));
	} else {
		CHECK(!bfs_detach(b, true));
	}
}

static void shapes(u64 rounds)
{
	u8 *good = malloc(SHAPE_SIZE), *work = malloc(SHAPE_SIZE);
	u64 damaged = 0, back = 0;
	double t0 = seconds();
	static struct said s;
	for (u64 i = 0; i < rounds; i++) {
		struct bfs_super sb;
		struct listing before, now;
		struct bfs_mem m = mem_of(good, SHAPE_SIZE);
		make_shape(&m, i);
		memcpy(&sb, good, sizeof sb);
		memcpy(work, good, SHAPE_SIZE);
		m = mem_of(work, SHAPE_SIZE);
		CHECK(take(&m, false, &before) && !before.errors);
		for (u32 p = 1; p < sb.meta_pages; p++) {
			u64 off = sb.meta_off + (u64)p * BFS_PAGE;
			char what[80];
			struct bfs_fsck_result r;
			if (((struct bfs_phead *)(good + off))->kind != BFS_PK_HASH) continue;
			memcpy(work, good, SHAPE_SIZE);
			work[off + 2000] ^= 1;
			m = mem_of(work, SHAPE_SIZE);
			if (!fsck(&m, false)->n) continue; /* not of this state */
			snprintf(what, sizeof what, "shape %llu, page %u", (unsigned long long)i, p);
			start(what);
			int code = repair(&m, false, &s, &r);
			if (code != 1) wrong(what, "the repair ends with %d, %llu are left (%s)", code, (unsigned long long)r.left, bfs_errmsg());
			struct found *f = fsck(&m, true);
			if (f->n) wrong(what, "not clean after the repair:\n%s", f->text);
			if (!take(&m, false, &now)) {
				wrong(what, "attach of the repaired pool: %s", bfs_errmsg());
				continue;
			}
			for (u32 j = 0; j < before.n; j++) {
				bool there = S_ISDIR(before.v[j].mode);
				for (u32 k = 0; k < now.n && !there; k++) there = now.v[k].mode == before.v[j].mode && now.v[k].sum == before.v[j].sum;
				if (!there) wrong(what, "%s is lost, though its content verifies", before.v[j].path);
			}
			damaged++, back += r.put_back;
			if (now.errors) wrong(what, "%u things can't be read after the repair", now.errors);
			drop(&now);
		}
		drop(&before);
	}
	free(good), free(work);
	if (!damaged || !back) wrong("shapes", "nothing was damaged");
	printf("t_repair: %llu pages of names damaged in %llu pools, %llu files and directories put back; %.1f s\n", (unsigned long long)damaged, (unsigned long long)rounds, (unsigned long long)back, seconds() - t0);
}

/* ---- wild ---------------------------------------------------------------------------------------------------- */
static void wild_bytes(u8 *work, const struct bfs_super *sb, const u8 *used, u64 rounds)
{
	u64 code[9] = {0}, first_seed = seed;
	double t0 = seconds(), worst = 0;
	static struct said s;
	for (u64 i = 0; i < rounds; i++) {
		struct bfs_mem m = mem_of(work, SIZE);
		char what[80];
		memcpy(work, pools[i % 2].image, SIZE);
		snprintf(what, sizeof what, "wild, --again %llu,%llx", (unsigned long long)i, (unsigned long long)seed);
		start(what);
		wild(work, sb, used);
		double t = seconds();
		int rc = repair(&m, i % 4 == 0, &s, NULL);
		t = seconds() - t;
		if (t > worst) worst = t;
		code[rc]++;
		if (rc == 4) wrong(what, "problems are left: %s, found: %s", fsck(&m, true)->codes, s.f.codes);
		if (rc > 1) continue;
		struct found *f = fsck(&m, true);
		if (f->n && i % 4 == 0) wrong(what, "not clean after the repair:\n%s", f->text);
		struct listing now;
		if (take(&m, false, &now)) {
			if (now.errors && i % 4 == 0) wrong(what, "%u things can't be read after the repair", now.errors);
			drop(&now);
		}
		if (worst > 20) return wrong(what, "took %.1f s", worst);
	}
	printf("t_repair: %llu pools with wild damage: %llu clean, %llu repaired, %llu not, %llu can't be; slowest %.3f s; seed %llu; %.1f s\n", (unsigned long long)rounds, (unsigned long long)code[0], (unsigned long long)code[1],
	       (unsigned long long)code[4], (unsigned long long)code[8], worst, (unsigned long long)first_seed, seconds() - t0);
}

/* ---- killed --------------------------------------------------------------------------------------------------- */
/* The process dies behind its left-th store, or has stored only the first words of it. */
static u64 stores, left;
static bool torn;
static void count(void *dst, const void *src, size_t n)
{
	stores++;
	if (!left || --left) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(dst, src, torn ? n / 16 * 8 : n);
	_exit(0);
}
static void k_store(struct bfs_mem *m, void *d, const void *s, size_t n) { (void)m, count(d, s, n); }
static int k_in(struct bfs_mem *m, void *d, const void *s, size_t n) { (void)m, count(d, s, n); return 0; }

/* The host crashes: what was stored and not fenced since may have arrived, line by line, or not. */
static u8 *durable; /* the pool; the process works on a copy of its own */
static u8 *in_flight; /* by line: 1 stored, 2 flushed or stored around the cache */
static u32 flying[SIZE / BFS_LINE], nflying; /* those lines */
static void c_line(struct bfs_mem *m, const void *p, size_t n, u8 to)
{
	size_t a = (size_t)((const u8 *)p - m->base) / BFS_LINE, e = ((size_t)((const u8 *)p - m->base) + n + BFS_LINE - 1) / BFS_LINE;
	for (; a < e; a++) {
		if (to != 1 && !in_flight[a]) continue;
		if (!in_flight[a]) flying[nflying++] = (u32)a;
		in_flight[a] = to;
	}
}
static void c_arrive(struct bfs_mem *m, size_t line) { memcpy(durable + line * BFS_LINE, m->base + line * BFS_LINE, BFS_LINE); }
static void c_step(struct bfs_mem *m)
{
	stores++;
	if (!left || --left) return;
	for (u32 i = 0; i < nflying; i++)
		if (rnd() % 2) c_arrive(m, flying[i]);
	_exit(0);
}
static void c_store(struct bfs_mem *m, void *d, const void *s, size_t n) { memcpy(d, s, n), c_line(m, d, n, 1), c_line(m, d, n, 2), c_step(m); }
static int c_in(struct bfs_mem *m, void *d, const void *s, size_t n) { memcpy(d, s, n), c_line(m, d, n, 1), c_step(m); return 0; }
static void c_flush(struct bfs_mem *m, const void *p, size_t n) { c_line(m, p, n, 2), c_step(m); }
static void c_fence(struct bfs_mem *m)
{
	u32 n = 0;
	for (u32 i = 0; i < nflying; i++) {
		if (in_flight[flying[i]] == 2) c_arrive(m, flying[i]), in_flight[flying[i]] = 0;
		else flying[n++] = flying[i];
	}
	nflying = n;
	c_step(m);
}
static void c_none(struct bfs_mem *m, const void *p, size_t n) { (void)m, (void)p, (void)n; }
static void crash_ops(struct bfs_mem *m)
{
	ops.store = c_store, ops.copy_in = c_in, ops.flush = c_flush, ops.fence = c_fence, ops.inval = c_none;
	m->coherent = false;
}

static void killed(u8 *work, const struct bfs_super *sb, const u8 *used, u64 rounds)
{
	u8 *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), *image = malloc(SIZE);
	u64 done = 0, first_seed = seed, over = 0;
	double t0 = seconds();
	static struct said s;
	u8 *copy = malloc(SIZE);
	in_flight = calloc(1, SIZE / BFS_LINE);
	CHECK(shared != MAP_FAILED && image && copy && in_flight);
	for (u64 i = 0; done < rounds && i < 20 * rounds + 100; i++) {
		struct listing want, now;
		struct bfs_mem m;
		char what[120];
		u32 found;
		/* a damage of the corpus, or one byte, or both */
		int d = (int)(rnd() % (sizeof breaks / sizeof *breaks));
		struct listing *before = &pools[breaks[d].crashed].before;
		older = breaks[d].crashed ? &pools[0].before : &populated;
		start("a repair that is to be killed");
		memcpy(image, pools[breaks[d].crashed].image, SIZE);
		if (rnd() % 4) {
			struct env e;
			open_env(&e, image);
			breaks[d].f(&e);
			close_env(&e);
		}
		if (rnd() % 2) change_byte(image, sb, used);
		memcpy(work, image, SIZE);
		m = mem_of(work, SIZE);
		bool host = rnd() % 2;
		durable = copy;
		if (host) crash_ops(&m);
		else ops.store = k_store, ops.copy_in = k_in;
		stores = left = 0;
		memset(in_flight, 0, SIZE / BFS_LINE), nflying = 0;
		if (repair(&m, true, &s, NULL) != 1) continue; /* nothing to repair, or nothing that can be */
		u64 total = stores;
		if (host && memchr(in_flight, 1, SIZE / BFS_LINE)) wrong(breaks[d].name, "something was stored and not flushed");
		if (host && memchr(in_flight, 2, SIZE / BFS_LINE)) wrong(breaks[d].name, "something was flushed and not fenced");
		ops = bfs_ops_coherent;
		m = mem_of(work, SIZE);
		if (!total) continue;
		if (!take(&m, false, &want)) {
			wrong(breaks[d].name, "attach of the repaired pool: %s", bfs_errmsg());
			continue;
		}
		for (int k = 0; k < 4 && done < rounds; k++, done++) {
			bool twice = rnd() % 4 == 0;
			memcpy(shared, image, SIZE);
			for (int cut = 0; cut < 1 + twice; cut++) {
				left = 1 + rnd() % total, torn = rnd() % 2;
				snprintf(what, sizeof what, "%s, %s at store %llu of %llu, round %llu of seed %llu", breaks[d].name, host ? "crashed" : "killed", (unsigned long long)left, (unsigned long long)total, (unsigned long long)i, (unsigned long long)first_seed);
				durable = shared;
				pid_t pid = fork();
				CHECK(pid >= 0);
				if (!pid) {
					seed ^= left * 0x9E3779B97F4A7C15ull; /* of what arrives; the parent's goes on as it was */
					if (host) memcpy(work, shared, SIZE), memset(in_flight, 0, SIZE / BFS_LINE), nflying = 0;
					m = mem_of(host ? work : shared, SIZE);
					if (host) crash_ops(&m);
					else ops.store = k_store, ops.copy_in = k_in;
					repair(&m, true, &s, NULL);
					_exit(1);
				}
				int status;
				CHECK(waitpid(pid, &status, 0) == pid);
				if (!WIFEXITED(status)) wrong(what, "the repair ended with signal %d", WTERMSIG(status));
				over += WIFEXITED(status) && WEXITSTATUS(status);
			}
			left = 0;
			m = mem_of(shared, SIZE);
			int code = repair(&m, true, &s, NULL);
			if (code > 1) wrong(what, "the next repair ends with %d (%s)", code, bfs_errmsg());
			struct found *f = fsck(&m, true);
			if (f->n) wrong(what, "not clean after the next repair:\n%s", f->text);
			if (!take(&m, false, &now)) {
				wrong(what, "attach: %s", bfs_errmsg());
				continue;
			}
			if (!same(&want, &now)) wrong(what, "%u names, %u after an undisturbed repair", now.n, want.n);
			if (foreign(before, &now, &found)) wrong(what, "something has a content that it never had");
			drop(&now);
		}
		drop(&want);
	}
	munmap(shared, SIZE);
	free(image), free(copy), free(in_flight);
	if (done < rounds) wrong("killed", "only %llu repairs had something to do", (unsigned long long)done);
	printf("t_repair: %llu repairs killed, %llu of them were done before; seed %llu; %.1f s\n", (unsigned long long)done, (unsigned long long)over, (unsigned long long)first_seed, seconds() - t0);
}

int main(int argc, char **argv)
{
#ifdef __SANITIZE_ADDRESS__
	u64 rounds = 300, kills = 40;
#else
	u64 rounds = 2000, kills = 200;
#endif
	const char *path = "t_repair.expected", *one = NULL, *again = "";
	bool write_it = false;
	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && !strcmp(argv[i], "--rounds")) rounds = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--kills")) kills = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && !strcmp(argv[i], "--expected")) path = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--one")) one = argv[++i];
		else if (i + 1 < argc && !strcmp(argv[i], "--again")) again = argv[++i];
		else if (!strcmp(argv[i], "--write")) write_it = true;
		else return fprintf(stderr, "usage: t_repair [--rounds N] [--kills N] [--seed S] [--expected FILE] [--write] | --one NAME | --again ROUND,SEED\n"), 2;
	}
	u8 *work = malloc(SIZE);
	struct bfs_super sb;
	signal(SIGALRM, late);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 0; i < 2; i++) {
		pools[i].image = malloc(SIZE);
		struct bfs_mem m = mem_of(pools[i].image, SIZE);
		if (i) memcpy(pools[i].image, pools[0].image, SIZE), crash(&m);
		else make(&m);
		memcpy(work, pools[i].image, SIZE);
		m = mem_of(work, SIZE);
		CHECK(take(&m, false, &pools[i].before) && !pools[i].before.errors);
	}
	struct bfs_mem first = mem_of(work, SIZE);
	CHECK(!bfs_detach(begin(&first), true));
	first = mem_of(work, SIZE);
	CHECK(take(&first, false, &populated) && !populated.errors);
	const u8 *good = pools[0].image;
	memcpy(&sb, good, sizeof sb);
	if (one) {
		char line[2048];
		for (int i = 0; i < (int)(sizeof breaks / sizeof *breaks); i++)
			if (!strcmp(breaks[i].name, one)) one_line(work, i, true, line, sizeof line), puts(line);
		return wrongs != 0;
	}
	u8 *used = pages_in_use(good, work, &sb);
	if (*again) { /* one of wild_bytes, with all that is said */
		static struct said s = {.loud = true};
		struct bfs_mem m = mem_of(work, SIZE);
		unsigned round;
		unsigned long long x;
		CHECK(sscanf(again, "%u,%llx", &round, &x) == 2);
		memcpy(work, pools[round % 2].image, SIZE);
		seed = x;
		wild(work, &sb, used);
		printf("exit %d\n", repair(&m, round % 4 == 0, &s, NULL));
		printf("%s", fsck(&m, true)->text);
		struct listing now;
		tell = true;
		take(&m, false, &now);
		return 0;
	}
	corpus(work, path, write_it);
	older = NULL;
	random_bytes(good, work, &pools[0].before, &sb, used, rounds);
	wild_bytes(work, &sb, used, rounds / 2);
	shapes(rounds / 10);
	killed(work, &sb, used, kills);
	drop(&populated);
	for (int i = 0; i < 2; i++) drop(&pools[i].before), free(pools[i].image);
	free(used), free(work);
	return wrongs != 0;
}
