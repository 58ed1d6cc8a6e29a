/* Open files.  The handle that the kernel gets is the core's.
 *
 * Files are opened with direct_io where the kernel lets such files be mapped (Linux 6.6): reads are answered from the
 * pool's own pages by one writev, writes come in requests as large as the caller's, and nothing is kept twice.
 * Elsewhere through the page cache, as over pyfuse3.  Files of a directory pool have passthrough, where the
 * kernel has it (passthrough.c).
 *
 * FLUSH seals, so it is only left out for descriptors that can't write. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "server.h"

#define CACHE_S 1u
#define GETVERSION 0x80087601u /* FS_IOC_GETVERSION of 64-bit programs */
#define GETVERSION32 0x80047601u

/* Where a write goes is the kernel's decision, also with O_APPEND, which fcntl may set and clear while a file is open. */
static int flags_of(u32 flags) { return (int)flags & ~O_APPEND; }

static bool writes(u32 flags) { return (flags & O_ACCMODE) != O_RDONLY; }
static bool syncs(const struct ds_req *r, u32 flags) { return flags & O_DSYNC || ds_config_of(r->d)->sync; }

/* Stores that can't be left to the kernel:
 *   - with O_APPEND it opens the backing file that way, and goes on appending when fcntl has taken the flag away;
 *   - a synchronous one promises what only the core keeps;
 *   - set-user-id and set-group-id would stay;
 *   - without a promise of room it has to be made as it is taken. */
static bool comes_here(struct ds_req *r, u64 ino, u64 fh, u32 flags)
{
	struct bfs_attr a;
	if (!writes(flags)) return false;
	return flags & O_APPEND || syncs(r, flags) || bfs_getattr(r->b, ino, &a) || a.mode & (S_ISUID | S_ISGID) || bfs_promise(r->b, fh);
}

/* The rest of a reply to an open. */
static int opened(struct ds_req *r, u64 ino, u32 flags, bool created, struct fp_open_out *o)
{
	struct ds_pt *p = ds_passthrough(r->d);
	int32_t id = 0;
	int rc = p ? ds_pt_open(p, ino, o->fh, writes(flags), &id) : 0;
	if (rc) {
		bfs_release(r->b, o->fh);
		return rc;
	}
	o->open_flags = !created && !writes(flags) && !(flags & O_TRUNC) ? FP_O_NOFLUSH : 0;
	if (id) o->backing_id = id, o->open_flags |= FP_O_PASSTHROUGH | (comes_here(r, ino, o->fh, flags) ? FP_O_DIRECT_IO : 0);
	else if (ds_allows_mmap(r->d)) o->open_flags |= FP_O_DIRECT_IO | FP_O_PARALLEL_DIRECT_WRITES;
	return 0;
}

static int release(struct ds_req *r, u64 ino, u64 fh, u32 flags)
{
	struct ds_pt *p = ds_passthrough(r->d);
	if (p) ds_pt_release(p, ino, writes(flags));
	return bfs_release(r->b, fh);
}

static void note_writer(struct ds_req *r, u64 fh)
{
	u64 *user = bfs_handle_user(r->b, fh);
	if (user) ds_opener(r->in->pid, user);
}

int ds_open(struct ds_req *r)
{
	const struct fp_open_in *x = ds_arg(r, sizeof *x);
	struct fp_open_out o = {0};
	if (!x) return -EINVAL;
	if (x->flags & O_TRUNC && x->open_flags & FP_OPEN_KILL_SUIDGID) {
		int rc = ds_drop_privileges(r->b, r->in->nodeid);
		if (rc) return rc;
	}
	int rc = bfs_open(r->b, r->in->nodeid, flags_of(x->flags), &o.fh);
	if (rc) return rc;
	if (x->flags & (O_ACCMODE | O_TRUNC)) note_writer(r, o.fh);
	if ((rc = opened(r, r->in->nodeid, x->flags, false, &o))) return rc;
	if ((rc = ds_reply(r, &o, sizeof o))) release(r, r->in->nodeid, o.fh, x->flags);
	return rc;
}

static int made(struct ds_req *r, int rc, const struct bfs_attr *a, u64 fh, u32 flags)
{
	struct { struct fp_entry_out e; struct fp_open_out o; } out = {.o = {.fh = fh}};
	u64 *user;
	if (rc) return rc;
	note_writer(r, fh);
	if (ds_config_of(r->d)->still_open && (user = bfs_handle_user(r->b, fh)) && user[0]) user[0] |= DS_HIDDEN;
	/* With publish=close only the descriptors of a new file reach it: its name isn't cached. */
	ds_entry(a, ds_config_of(r->d)->still_open ? 0 : CACHE_S, &out.e);
	if ((rc = opened(r, a->ino, flags, true, &out.o))) return rc;
	if ((rc = ds_reply(r, &out, sizeof out))) release(r, a->ino, fh, flags);
	return rc;
}

int ds_create(struct ds_req *r)
{
	const struct fp_create_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr a;
	size_t n;
	const char *name = x ? ds_name(r, &n) : NULL;
	u64 fh, dir = r->in->nodeid;
	if (!name) return -EINVAL;
	if (dir == BFS_ROOT_INO && !strcmp(name, DS_CONTROL_NAME)) return -EPERM;
	int rc = bfs_create(r->b, dir, name, n, x->mode, r->in->uid, r->in->gid, flags_of(x->flags), &a, &fh);
	return made(r, rc, &a, fh, x->flags);
}

/* O_TMPFILE: a file without a name, which link may give one */
int ds_tmpfile(struct ds_req *r)
{
	const struct fp_create_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr a;
	u64 fh;
	if (!x) return -EINVAL;
	int rc = bfs_tmpfile(r->b, r->in->nodeid, x->mode, r->in->uid, r->in->gid, flags_of(x->flags), &a, &fh);
	return made(r, rc, &a, fh, x->flags);
}

/* ---- content -------------------------------------------------------------------------------- */
struct to_kernel { struct ds_req *r; int rc; };
static ssize_t pieces(void *arg, const struct iovec *v, int n)
{
	struct to_kernel *k = arg;
	return k->rc = ds_replyv(k->r, v, n);
}

int ds_read(struct ds_req *r)
{
	const struct fp_read_in *x = ds_arg(r, sizeof *x);
	struct to_kernel k = {.r = r};
	if (!x) return -EINVAL;
	u64 fh = x->fh, off = x->offset;
	size_t size = x->size;
	/* the copy that may be needed goes where the request was */
	u8 *buf = (u8 *)(uintptr_t)(x + 1);
	ssize_t rc = bfs_read_pieces(r->b, fh, off, size, buf, ds_room(r->d), pieces, &k);
	if (rc == -EFAULT && k.rc) return -EIO; /* the memory answers with an error */
	if (rc != -EOVERFLOW) return (int)rc;
	if (!(buf = malloc(size))) return -ENOMEM;
	rc = bfs_read(r->b, fh, off, buf, size);
	if (rc > 0) rc = ds_reply(r, buf, (size_t)rc);
	free(buf);
	return (int)rc;
}

/* The kernel tells of a last close after close(2) has returned, so what an unlinked file held may come back in a moment,
 * and what was closed can be evicted then. */
static bool may_come_back(struct bfs *b, int tries, u64 *since_ns)
{
	enum { TRIES = 5 };
	const u64 most_ns = 10000000000ull; /* a store that takes longer is worse than one that fails */
	struct timespec t, nap = {0, 1000000};
	struct bfs_stat s;
	clock_gettime(CLOCK_MONOTONIC, &t);
	u64 now = (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
	if (!tries) *since_ns = now;
	if (now - *since_ns > most_ns || (!bfs_room_may_come(b) && (tries >= TRIES || bfs_statfs(b, &s) || !s.norphans))) return false;
	nanosleep(&nap, NULL);
	return true;
}

struct answer { struct ds_req *r; u32 size; };
static void taken(void *arg)
{
	const struct answer *a = arg;
	struct fp_write_out o = {.size = a->size};
	ds_reply(a->r, &o, sizeof o); /* if it is refused, the caller is gone */
}

/* Large stores are answered when nothing can fail any more but the memory: the caller's next request is on its way
 * while the data is copied. */
int ds_write(struct ds_req *r)
{
	enum { EARLY_BYTES = 64 << 10 };
	const struct fp_write_in *x = ds_arg(r, sizeof *x);
	const void *data = x ? ds_arg(r, x->size) : NULL;
	if (!data) return -EINVAL;
	if (x->write_flags & FP_WRITE_KILL_SUIDGID) {
		int rc = ds_drop_privileges(r->b, r->in->nodeid);
		if (rc) return rc;
	}
	if (ds_passthrough(r->d)) ds_pt_headroom(ds_passthrough(r->d)); /* what this one takes, others counted on */
	struct answer a = {r, x->size};
	bool early = x->size >= EARLY_BYTES && !syncs(r, x->flags);
	ssize_t n;
	u64 since_ns = 0;
	for (int tries = 0; (n = bfs_write_early(r->b, x->fh, x->offset, data, x->size, early ? taken : NULL, &a)) == -ENOSPC && may_come_back(r->b, tries, &since_ns); tries++) ;
	if (r->replied) return 0; /* what went wrong then, the next flush or fsync says */
	struct fp_write_out o = {.size = (u32)n};
	/* of a file with direct_io the kernel doesn't ask for it */
	int rc = n > 0 && syncs(r, x->flags) ? bfs_fsync(r->b, x->fh) : 0;
	return n < 0 ? (int)n : rc ? rc : ds_reply(r, &o, sizeof o);
}

int ds_flush(struct ds_req *r)
{
	const struct fp_flush_in *x = ds_arg(r, sizeof *x);
	u64 *user = x ? bfs_handle_user(r->b, x->fh) : NULL;
	if (!user) return -EBADF;
	u64 first = __atomic_load_n(&user[0], __ATOMIC_RELAXED), opener[2] = {first & ~DS_HIDDEN, user[1]};
	bool killed = ds_is_killed(opener);
	if (first & DS_HIDDEN) {
		const struct ds_config *c = ds_config_of(r->d);
		/* a duplicate's, or a child's: its writer hasn't closed it */
		if (!killed && c->still_open(c->ctx, opener, r->in->nodeid)) return 0;
		__atomic_store_n(&user[0], opener[0], __ATOMIC_RELAXED);
	}
	return bfs_flush(r->b, x->fh, killed);
}

int ds_fsync(struct ds_req *r)
{
	const struct fp_fsync_in *x = ds_arg(r, sizeof *x);
	return x ? bfs_fsync(r->b, x->fh) : -EINVAL;
}

int ds_release(struct ds_req *r)
{
	const struct fp_release_in *x = ds_arg(r, sizeof *x);
	return x ? release(r, r->in->nodeid, x->fh, x->flags) : -EINVAL;
}

int ds_fallocate(struct ds_req *r)
{
	const struct fp_fallocate_in *x = ds_arg(r, sizeof *x);
	u64 since_ns = 0;
	int rc = -EINVAL;
	for (int tries = 0; x && (rc = bfs_fallocate(r->b, x->fh, (int)x->mode, x->offset, x->length)) == -ENOSPC && may_come_back(r->b, tries, &since_ns); tries++) ;
	return rc;
}

int ds_lseek(struct ds_req *r)
{
	const struct fp_lseek_in *x = ds_arg(r, sizeof *x);
	if (!x) return -EINVAL;
	i64 at = bfs_seek(r->b, x->fh, x->offset, (int)x->whence);
	struct fp_lseek_out o = {.offset = (u64)at};
	return at < 0 ? (int)at : ds_reply(r, &o, sizeof o);
}

/* The generation of an inode, which with its number is never used twice; else nothing that a descriptor could ask. */
int ds_ioctl(struct ds_req *r)
{
	const struct fp_ioctl_in *x = ds_arg(r, sizeof *x);
	struct { struct fp_ioctl_out o; u64 v; } out = {.v = r->in->nodeid >> 32};
	if (!x) return -EINVAL;
	if (x->cmd != GETVERSION && x->cmd != GETVERSION32) return -ENOTTY;
	size_t n = x->cmd == GETVERSION ? 8 : 4;
	return x->out_size < n ? -EINVAL : ds_reply(r, &out, sizeof out.o + n);
}
