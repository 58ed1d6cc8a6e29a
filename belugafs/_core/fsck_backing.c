/* Backing files of a directory pool against its objects: each has the other, with the size that the
 * object says; content against the sums it was sealed with. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "backing.h"
#include "fsck.h"

int fk_backing_stat(struct ck *k, u64 ino, struct stat *st)
{
	char name[BK_NAME];
	bk_name(name, ino);
	return fstatat(k->data_fd, name, st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

int fk_backing_open(struct ck *k, u64 ino)
{
	char name[BK_NAME];
	bk_name(name, ino);
	int fd = openat(k->data_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

bool fk_backing_read(int fd, u64 off, void *dst, size_t n)
{
	u8 *d = dst;
	while (n) {
		ssize_t m = pread(fd, d, n, (off_t)off);
		if (m < 0 && errno == EINTR) continue;
		if (m < 0) return false;
		if (!m) memset(d, 0, n), m = (ssize_t)n;
		d += m, off += (u64)m, n -= (size_t)m;
	}
	return true;
}

/* Files that no object has, by has(): each is told to f with the directory that it is in. */
int fk_backing_extra(struct ck *k, bool (*has)(void *arg, u64 ino), void (*f)(void *arg, int dir, const char *name), void *arg)
{
	char sub[4], want[BK_NAME];
	for (u32 i = 0; i < 256; i++) {
		snprintf(sub, sizeof sub, "%02x", i);
		int fd = openat(k->data_fd, sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		DIR *d = fd < 0 ? NULL : fdopendir(fd);
		struct dirent *e;
		if (fd >= 0 && !d) {
			close(fd);
			return -ENOMEM;
		}
		while (d && (e = readdir(d))) {
			u32 slot, gen;
			if (e->d_name[0] == '.') continue;
			if (sscanf(e->d_name, "%8x.%8x", &slot, &gen) == 2) {
				bk_name(want, INO(slot, gen));
				if (!strcmp(strchr(want, '/') + 1, e->d_name) && !strncmp(want, sub, 2) && has(arg, INO(slot, gen))) continue;
			}
			f(arg, fd, e->d_name);
		}
		if (d) closedir(d);
	}
	return 0;
}

/* ---- checking ------------------------------------------------------------------------------- */
static bool has_object(void *arg, u64 ino)
{
	const struct oi *o = fk_oi_ino(arg, ino);
	return o && o->fmt == S_IFREG >> 12;
}

static void leftover(void *arg, int dir, const char *name)
{
	struct ck *k = arg;
	struct stat st;
	u64 bytes = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) ? 0 : (u64)st.st_blocks * 512;
	fk_note(k, "backing-leftover", "backing file %s (%llu bytes in use) has no object; it goes at the next attach after a crash, or with fsck.belugafs -y", name, (ull)bytes);
}

void fk_check_backing(struct ck *k)
{
	if (k->data_fd < 0) {
		fk_note(k, "backing-unseen", "the backing files weren't looked at: this is the metadata alone");
		return;
	}
	for (size_t at = 0; at < k->oi.n; at++) {
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		struct oi *i = &k->oi.v[at];
		struct bfs_obj o;
		struct stat st;
		if (!i->used || i->fmt != S_IFREG >> 12 || !fk_obj_again(k, slot, &o)) continue;
		int rc = fk_backing_stat(k, ob_ino(&o), &st);
		if (!rc) k->r->used_granules += ((u64)st.st_blocks * 512 + BFS_GRANULE - 1) / BFS_GRANULE;
		if (rc) fk_bad(k, "backing-missing", "%s: its backing file can't be found (%s)", PATH(k, ob_ino(&o)), strerror(-rc));
		else if (!S_ISREG(st.st_mode)) fk_bad(k, "backing-type", "%s: its backing file isn't a regular file", PATH(k, ob_ino(&o)));
		else if (o.state == BFS_ST_SEALED && !(o.flags & BFS_OF_UNVERIFIED) && (u64)st.st_size != o.size)
			fk_bad(k, "backing-size", "%s: its backing file has %llu bytes, it says %llu", PATH(k, ob_ino(&o)), (ull)st.st_size, (ull)o.size);
	}
	int rc = fk_backing_extra(k, has_object, leftover, k);
	if (rc && !k->err) k->err = rc;
}

static void check_file(struct ck *k, const struct bfs_obj *o, u8 *buf)
{
	u64 cb = k->sb.chunk_bytes, wrong = 0, first = 0, want;
	struct fk_sums s = {.o = *o};
	int fd = fk_backing_open(k, ob_ino(o));
	if (fd < 0) return; /* told */
	for (u64 c = 0; c < o->nsums && !k->err; c++) {
		u64 off = c * cb, n = o->size - off < cb ? o->size - off : cb;
		if (fk_sum_at(k, &s, c, &want) && !want) continue; /* was a hole */
		bool ok = fk_backing_read(fd, off, buf, n);
		u64 got = ok ? bfs_sum(buf, n) : 0;
		k->r->bytes_checked += n;
		if ((!ok || !fk_sum_at(k, &s, c, &want) || (got ? got : 1) != want) && !wrong++) first = off;
	}
	close(fd);
	if (!wrong) return;
	k->r->blocks_bad++;
	fk_bad(k, "data", "%s: %llu of %u chunks have another content than was sealed, the first at byte %llu", PATH(k, ob_ino(o)), (ull)wrong, o->nsums, (ull)first);
}

void fk_check_backing_data(struct ck *k)
{
	u8 *buf = malloc(k->sb.chunk_bytes);
	if (!buf) k->err = -ENOMEM;
	for (size_t at = 0; at < k->oi.n && !k->err && k->data_fd >= 0; at++) {
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		struct oi *i = &k->oi.v[at];
		struct bfs_obj o;
		if (at % 1024 == 0) fk_progress(k, "checking data", at, k->oi.n);
		if (!i->used || i->fmt != S_IFREG >> 12 || !fk_obj_again(k, slot, &o) || o.slot != slot) continue;
		if (o.state != BFS_ST_SEALED || !o.nsums || o.flags & BFS_OF_UNVERIFIED || o.size >> 62 || o.nsums != fk_up(o.size, k->sb.chunk_bytes)) continue;
		check_file(k, &o, buf);
	}
	free(buf);
}
