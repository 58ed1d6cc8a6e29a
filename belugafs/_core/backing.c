/* Backing files: names, descriptors, bytes, space. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "backing.h"
#include "file.h"

#define DIRS 256u

/* ---- names -------------------------------------------------------------------------------- */
/* Slot and generation: no two objects ever have the same, so a file is never taken for another
 * one's, and is never used again. */
void bk_name(char *name, u64 ino)
{
	snprintf(name, BK_NAME, "%02x/%08x.%08x", INO_SLOT(ino) % DIRS, INO_SLOT(ino), INO_GEN(ino));
}

static int failed(struct bfs *b, u64 ino, const char *what)
{
	int rc = -errno;
	char name[BK_NAME];
	bk_name(name, ino);
	return bfs_fail(b, rc, "backing file data/%s can't be %s: %s", name, what, strerror(-rc));
}

int bk_create(struct bfs *b, u64 ino)
{
	char name[BK_NAME], sub[4];
	bk_name(name, ino);
	for (int tries = 0; tries < 4; tries++) {
		int fd = openat(b->back->dir, name, O_CREAT | O_EXCL | O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd >= 0) {
			close(fd);
			return 0;
		}
		if (errno == ENOENT) {
			snprintf(sub, sizeof sub, "%02x", INO_SLOT(ino) % DIRS);
			if (mkdirat(b->back->dir, sub, 0700) && errno != EEXIST) break;
		} else if (errno != EEXIST || unlinkat(b->back->dir, name, 0)) {
			break;
		}
	}
	return failed(b, ino, "made");
}

/* ---- what goes with a transaction -------------------------------------------------------------- */
/* Not before it is acknowledged: until then a crash brings the object back. */
int bk_drop(struct txn *t, u64 ino)
{
	struct back *k = t->b->back;
	if (k->ndrop == k->drop_cap) {
		u32 cap = k->drop_cap ? 2 * k->drop_cap : 64;
		u64 *n = xalloc(t->b, cap * sizeof *n);
		if (!n) return txn_fail(t, -ENOMEM);
		if (k->ndrop) memcpy(n, k->drop, k->ndrop * sizeof *n);
		xfree(t->b, k->drop);
		k->drop = n, k->drop_cap = cap;
	}
	k->drop[k->ndrop++] = ino;
	return 0;
}

void bk_txn_end(struct bfs *b, bool committed)
{
	struct back *k = b->back;
	char name[BK_NAME];
	for (u32 i = 0; i < k->ndrop && committed; i++) {
		bk_name(name, k->drop[i]);
		unlinkat(k->dir, name, 0); /* one that can't be removed is found at the next attach */
	}
	k->ndrop = 0;
}

/* ---- descriptors ------------------------------------------------------------------------------------ */
static int keep_fd(_Atomic(int) *at, int fd) /* two threads may have opened it */
{
	int none = -1;
	if (atomic_compare_exchange_strong(at, &none, fd)) return fd;
	close(fd);
	return none;
}

static int missing(struct bfs *b, struct bfs_inode *in)
{
	struct rd r;
	int rc = rd_begin(b, &r);
	char name[BK_NAME];
	if (rc) return rc;
	bool there = ob_get(&r.v, in->ino, &rc);
	rd_end(&r);
	if (!there) return rc;
	atomic_fetch_add_explicit(&b->back->lost, 1, memory_order_relaxed);
	bk_name(name, in->ino);
	return bfs_fail(b, -ENOENT, "object %llu: its backing file data/%s is gone; fsck.belugafs -y forgets it", (unsigned long long)in->ino, name);
}

static int open_fd(struct bfs *b, struct bfs_inode *in, _Atomic(int) *at, int flags)
{
	int fd = atomic_load_explicit(at, memory_order_acquire);
	char name[BK_NAME];
	if (fd >= 0) return fd;
	bk_name(name, in->ino);
	fd = openat(b->back->dir, name, flags | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0) return keep_fd(at, fd);
	if (errno == ENOENT) return missing(b, in);
	return failed(b, in->ino, "opened");
}

int bk_fd(struct bfs *b, struct bfs_inode *in) { return open_fd(b, in, &in->rfd, O_RDONLY); }
static int writing_fd(struct bfs *b, struct bfs_inode *in) { return open_fd(b, in, &in->wfd, O_RDWR); }

void bk_close_writing(struct bfs_inode *in)
{
	int fd = atomic_exchange(&in->wfd, -1);
	if (fd >= 0) close(fd);
}
void bk_close(struct bfs_inode *in)
{
	int fd = atomic_exchange(&in->rfd, -1);
	if (fd >= 0) close(fd);
	bk_close_writing(in);
}

int bk_stat(struct bfs *b, struct bfs_inode *in, struct bk_stat *s)
{
	struct stat st;
	int fd = bk_fd(b, in);
	if (fd < 0) return fd;
	if (fstat(fd, &st)) return failed(b, in->ino, "looked at");
	/* who writes without us isn't stopped at the largest size there is: what is behind it goes with the seal */
	s->over = (u64)st.st_size > SIZE_MAX_BYTES;
	s->size = min64((u64)st.st_size, SIZE_MAX_BYTES), s->granules = ((u64)st.st_blocks * 512 + BFS_GRANULE - 1) / BFS_GRANULE;
	s->mtime_ns = (i64)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	return 0;
}

/* ---- bytes -------------------------------------------------------------------------------------------- */
int bk_read(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len)
{
	int fd = bk_fd(b, in);
	u8 *d = dst;
	if (fd < 0) return fd;
	while (len) {
		ssize_t n = pread(fd, d, len, (off_t)off);
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) { /* poisoned memory: EIO */
			int rc = failed(b, in->ino, "read");
			return rc == -EHWPOISON ? -EIO : rc;
		}
		if (!n) { /* cut short behind our back, or not written that far: checksums tell */
			memset(d, 0, len);
			break;
		}
		d += n, off += (u64)n, len -= (size_t)n;
	}
	return 0;
}

int bk_write(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len)
{
	static const u8 zeros[64 << 10];
	int fd = writing_fd(b, in), rc;
	u32 round = 0;
	if (fd < 0) return fd;
	while (len) {
		size_t m = src || len < sizeof zeros ? len : sizeof zeros;
		ssize_t n = pwrite(fd, src ? src : zeros, m, (off_t)off);
		if (n < 0 && errno == EINTR) continue;
		if (n < 0 && errno == ENOSPC) {
			if ((rc = bk_room(b, granules(len) + 1, round++))) return rc;
			continue;
		}
		if (n < 0) return failed(b, in->ino, "written");
		if (src) src += n;
		off += (u64)n, len -= (size_t)n;
	}
	return 0;
}

int bk_put(struct bfs *b, u64 ino, const void *data, size_t len)
{
	char name[BK_NAME];
	const u8 *src = data;
	int rc = 0;
	bk_name(name, ino);
	int fd = openat(b->back->dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0) return failed(b, ino, "opened");
	for (u64 off = 0; off < len && !rc;) {
		ssize_t n = pwrite(fd, src + off, len - off, (off_t)off);
		if (n >= 0) off += (u64)n;
		else if (errno != EINTR) rc = failed(b, ino, "written");
	}
	close(fd);
	return rc;
}

int bk_truncate(struct bfs *b, struct bfs_inode *in, u64 size)
{
	int fd = writing_fd(b, in), rc;
	if (fd < 0) return fd;
	/* to split a huge page at the new end may take a page */
	for (u32 round = 0; ftruncate(fd, (off_t)size);) {
		if (errno == EINTR) continue;
		if (errno != ENOSPC) return failed(b, in->ino, "truncated");
		if ((rc = bk_room(b, 1, round++))) return rc;
	}
	return 0;
}

int bk_trim(struct bfs *b, struct bfs_inode *in)
{
	struct bk_stat s;
	int rc = bk_stat(b, in, &s);
	if (rc || (!s.over && s.granules <= granules(s.size))) return rc;
	int fd = writing_fd(b, in);
	if (fd < 0) return fd;
	return ftruncate(fd, (off_t)s.size) && errno != EINTR && errno != ENOSPC ? failed(b, in->ino, "truncated") : 0;
}

int bk_fallocate(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 len)
{
	int fd = writing_fd(b, in), rc;
	struct bk_stat s;
	if (fd < 0) return fd;
	for (u32 round = 0; fallocate(fd, mode, (off_t)off, (off_t)len);) {
		if (errno == EINTR) continue;
		if (errno == EOPNOTSUPP || errno == EFBIG) return -errno;
		if (errno != ENOSPC) return failed(b, in->ino, "allocated");
		/* a part of it may be there already */
		if ((rc = bk_stat(b, in, &s)) || (rc = bk_room(b, max64(granules(len) - min64(granules(len), s.granules), 1), round++))) return rc;
	}
	return 0;
}

i64 bk_seek(struct bfs *b, struct bfs_inode *in, u64 off, bool data)
{
	int fd = bk_fd(b, in);
	if (fd < 0) return fd;
	off_t at = lseek(fd, (off_t)off, data ? SEEK_DATA : SEEK_HOLE);
	if (at >= 0) return at;
	return errno == ENXIO ? -ENXIO : failed(b, in->ino, "searched");
}

/* ---- space ------------------------------------------------------------------------------------------------ */
int bk_space(struct bfs *b, u64 *total, u64 *empty)
{
	struct statvfs s;
	if (fstatvfs(b->back->dir, &s)) {
		int rc = -errno;
		return bfs_fail(b, rc, "the pool's tmpfs can't be asked for its space: %s", strerror(-rc));
	}
	u64 unit = s.f_frsize / BFS_GRANULE ? s.f_frsize / BFS_GRANULE : 1, all = (u64)s.f_blocks * unit, meta = b->back->meta_granules;
	*total = all > meta ? all - meta : 0;
	*empty = (u64)s.f_bfree * unit;
	if (*empty > *total) *empty = *total;
	return 0;
}

int bk_room(struct bfs *b, u64 want, u32 round)
{
	enum { ROUNDS = 256 };
	u64 total, empty, slack = 16ull << (round < 10 ? round : 10);
	int rc = bk_space(b, &total, &empty);
	if (rc) return rc;
	if (!round && empty >= want) return 0; /* somebody else has made it */
	/* what can't be had, even if all that may go went, costs nobody anything */
	bool could = want <= total;
	struct rd r;
	if (could && !b->o.evict_all && !(rc = rd_begin(b, &r))) {
		could = empty + r.v.root->blocks_granules >= want;
		rd_end(&r);
	}
	if (rc) return rc;
	for (u32 i = 0; i < ROUNDS && could && !b->o.evict_none && !in_batch(b); i++) {
		struct txn *t;
		if ((rc = op_begin(b, &t))) return rc;
		int n = ev_make_room(t, (empty < want ? want - empty : 0) + slack);
		if ((rc = op_end(b, t, n < 0 ? n : 0))) return rc;
		if ((rc = bk_space(b, &total, &empty))) return rc;
		if (!n) break; /* nothing is left that can go */
		if (empty >= want) return 0;
	}
	if (empty >= want && round < 64) return 0; /* the kernel counts in batches: what it says is about right */
	if (in_batch(b)) return bfs_fail(b, -ENOSPC, "no room for %llu granules inside a batch (space comes back with a commit)", (unsigned long long)want);
	return bfs_fail(b, -ENOSPC, "no room for %llu granules: %llu of %llu are in use, by files that are open, mapped, pinned or never evicted",
			(unsigned long long)want, (unsigned long long)(total - empty), (unsigned long long)total);
}

/* ---- chunks that were verified ------------------------------------------------------------------------------- */
/* A tag in a table: what another chunk has pushed out is verified again. */
static u64 tag_of(const struct bfs_inode *in, u64 c)
{
	u64 w[3] = {in->ino, in->version, c}, h = bfs_xxh(w, sizeof w, 0);
	return h ? h : 1;
}
bool bk_known(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	u64 h = tag_of(in, c);
	return atomic_load_explicit(&b->back->known[h & b->back->known_mask], memory_order_acquire) == h;
}
void bk_know(struct bfs *b, const struct bfs_inode *in, u64 c, bool on)
{
	u64 h = tag_of(in, c);
	_Atomic(u64) *at = &b->back->known[h & b->back->known_mask];
	if (on) atomic_store_explicit(at, h, memory_order_release);
	else atomic_compare_exchange_strong(at, &h, 0);
}

/* ---- leftovers of a crash ---------------------------------------------------------------------------------------- */
/* An object is made with its file and freed before it, so a crash leaves files without an object:
 * of a create that wasn't acknowledged, of an unlink that was. */
static int sweep_dir(struct view *v, int fd)
{
	DIR *d = fdopendir(fd);
	struct dirent *e;
	int n = 0;
	if (!d) {
		int rc = -errno;
		close(fd);
		return rc;
	}
	while ((e = readdir(d))) {
		u32 slot, gen;
		int end = 0, rc = 0;
		if (e->d_name[0] == '.') continue;
		if (sscanf(e->d_name, "%8x.%8x%n", &slot, &gen, &end) == 2 && !e->d_name[end] && end == 17) {
			const struct bfs_obj *o = ob_get(v, INO(slot, gen), &rc);
			if ((o && S_ISREG(o->mode)) || (rc && rc != -ESTALE)) continue; /* what can't be read keeps its file */
		}
		if (!unlinkat(fd, e->d_name, 0)) n++;
	}
	closedir(d);
	return n;
}

int bk_sweep(struct bfs *b)
{
	struct rd r;
	char sub[4];
	int rc = rd_begin(b, &r), n = 0;
	if (rc) return rc;
	for (u32 i = 0; i < DIRS; i++) {
		snprintf(sub, sizeof sub, "%02x", i);
		int fd = openat(b->back->dir, sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
		if (fd >= 0 && (rc = sweep_dir(&r.v, fd)) > 0) n += rc;
	}
	rd_end(&r);
	b->back->swept += (u64)n;
	return n;
}

/* ---- attach --------------------------------------------------------------------------------------------------------- */
int bk_attach(struct bfs *b)
{
	if (!(b->sb.incompat & BFS_INCOMPAT_DIRECTORY)) {
		if (!b->o.directory) return 0;
		return bfs_fail(b, -EINVAL, "the file meta is a flat pool, not the metadata of a directory pool");
	}
	if (!b->o.directory) return bfs_fail(b, -EISDIR, "this is the metadata of a directory pool; name the directory that it lies in");
	struct back *k = b->back = xalloc(b, sizeof *k);
	if (!k) return -ENOMEM;
	if ((k->dir = fcntl(b->o.data_fd, F_DUPFD_CLOEXEC, 3)) < 0) {
		int rc = -errno;
		return bfs_fail(b, rc, "the directory data of the pool can't be used: %s", strerror(-rc));
	}
	k->meta_granules = granules(b->sb.size_bytes);
	u64 total, empty, n = 4096;
	int rc = bk_space(b, &total, &empty);
	while (n < 1u << 26 && n < total * BFS_GRANULE / b->sb.chunk_bytes * 2) n *= 2;
	k->known = xalloc(b, n * sizeof *k->known);
	k->known_mask = n - 1;
	return rc ? rc : k->known ? 0 : -ENOMEM;
}

void bk_detach(struct bfs *b)
{
	struct back *k = b->back;
	if (!k) return;
	if (k->dir > 0) close(k->dir);
	xfree(b, (void *)k->known);
	xfree(b, k->drop);
	xfree(b, k);
	b->back = NULL;
}
