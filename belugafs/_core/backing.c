/* Backing files: names, descriptors, bytes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
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

static bool list_ino(struct bfs *b, u64 **list, u32 *n, u32 *cap, u64 ino)
{
	if (*n == *cap) {
		u32 c = *cap ? 2 * *cap : 64;
		u64 *l = xalloc(b, c * sizeof *l);
		if (!l) return false;
		if (*n) memcpy(l, *list, *n * sizeof *l);
		xfree(b, *list);
		*list = l, *cap = c;
	}
	(*list)[(*n)++] = ino;
	return true;
}

int bk_create(struct bfs *b, u64 ino)
{
	struct back *k = b->back;
	char name[BK_NAME], sub[4];
	bk_name(name, ino);
	if (!list_ino(b, &k->made, &k->nmade, &k->made_cap, ino)) return -ENOMEM;
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
	return list_ino(t->b, &k->drop, &k->ndrop, &k->drop_cap, ino) ? 0 : txn_fail(t, -ENOMEM);
}

/* One that can't be removed is found at the next attach. */
static void remove_all(struct back *k, const u64 *ino, u32 n)
{
	char name[BK_NAME];
	for (u32 i = 0; i < n; i++) {
		bk_name(name, ino[i]);
		unlinkat(k->dir, name, 0);
	}
}

void bk_txn_dropped(struct bfs *b) { remove_all(b->back, b->back->made, b->back->nmade); }

void bk_txn_end(struct bfs *b, bool committed)
{
	struct back *k = b->back;
	if (committed) remove_all(k, k->drop, k->ndrop);
	k->ndrop = k->nmade = 0;
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

static int write_all(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len)
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

int bk_write(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len)
{
	u64 n;
	int rc = bk_take(b, in, off, len, &n);
	if (rc) return rc;
	rc = write_all(b, in, off, src, len);
	bk_took(b, n);
	return rc;
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
	in->room_end = min64(in->room_end, size);
	u64 had = bk_had(in);
	bk_longer(b, in, size);
	/* to split a huge page at the new end may take a page */
	for (u32 round = 0; ftruncate(fd, (off_t)size);) {
		if (errno == EINTR) continue;
		if (errno != ENOSPC) return failed(b, in->ino, "truncated");
		if ((rc = bk_room(b, 1, round++))) return rc;
	}
	bk_gave_back(b, in, had);
	return 0;
}

int bk_trim(struct bfs *b, struct bfs_inode *in)
{
	struct bk_stat s;
	int rc = bk_stat(b, in, &s);
	if (rc || (!s.over && s.granules <= granules(s.size))) return rc;
	int fd = writing_fd(b, in);
	if (fd < 0) return fd;
	in->room_end = min64(in->room_end, s.size);
	return ftruncate(fd, (off_t)s.size) && errno != EINTR && errno != ENOSPC ? failed(b, in->ino, "truncated") : 0;
}

int bk_fallocate(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 len)
{
	int fd = writing_fd(b, in), rc = 0;
	struct bk_stat s;
	if (fd < 0) return fd;
	bool punch = mode & FALLOC_FL_PUNCH_HOLE;
	u64 n = 0, had = punch ? bk_had(in) : 0;
	if (punch) in->room_end = 0;
	else if ((rc = bk_take(b, in, off, len, &n))) return rc;
	for (u32 round = 0; !rc && fallocate(fd, mode, (off_t)off, (off_t)len);) {
		if (errno == EINTR) continue;
		if (errno == EOPNOTSUPP || errno == EFBIG) rc = -errno;
		else if (errno != ENOSPC) rc = failed(b, in->ino, "allocated");
		/* a part of it may be there already */
		else if (!(rc = bk_stat(b, in, &s))) rc = bk_room(b, max64(granules(len) - min64(granules(len), s.granules), 1), round++);
	}
	bk_took(b, n);
	bk_gave_back(b, in, had);
	if (rc || punch) return rc;
	if (off <= in->room_end && off + len >= in->room_from) in->room_from = min64(in->room_from, off), in->room_end = max64(in->room_end, off + len);
	else in->room_from = off, in->room_end = off + len;
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
	pthread_mutex_init(&k->room.mx, NULL);
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
	pthread_mutex_destroy(&k->room.mx);
	xfree(b, (void *)k->known);
	xfree(b, k->drop);
	xfree(b, k->made);
	xfree(b, k);
	b->back = NULL;
}
