/* Look-up, attributes, names, extended attributes, statfs.  What is cached in the kernel and for how long is
 * docs/mount.md's; it is the same for both transports. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include "server.h"

#define CACHE_S 1u
#define SECTORS (BFS_GRANULE / 512)
#define PIN "user.beluga.pin"
#define COMPUTED "user.beluga."
#define NS 1000000000ll
#define STATX_BASIC 0x7ffu
#define STATX_BTIME_BIT 0x800u

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

/* ---- attributes ---------------------------------------------------------------------------- */
static i64 floor_s(i64 ns) { return ns >= 0 ? ns / NS : -((-(ns + 1)) / NS) - 1; }
static void split(i64 ns, u64 *s, u32 *rest)
{
	i64 sec = floor_s(ns);
	*s = (u64)sec, *rest = (u32)(ns - sec * NS);
}

void ds_attr(const struct bfs_attr *a, struct fp_attr *o)
{
	*o = (struct fp_attr){
		.ino = a->ino, .size = a->size, .blocks = a->granules * SECTORS, .mode = a->mode, .nlink = a->nlink, .uid = a->uid, .gid = a->gid, .rdev = a->rdev, .blksize = DS_BLKSIZE,
	};
	split(a->atime_ns, &o->atime, &o->atime_ns);
	split(a->mtime_ns, &o->mtime, &o->mtime_ns);
	split(a->ctime_ns, &o->ctime, &o->ctime_ns);
}

void ds_entry(const struct bfs_attr *a, u32 valid_s, struct fp_entry_out *o)
{
	*o = (struct fp_entry_out){.nodeid = a->ino, .generation = a->ino >> 32, .entry_valid_s = valid_s, .attr_valid_s = valid_s};
	ds_attr(a, &o->attr);
}

static int entry(struct ds_req *r, int rc, const struct bfs_attr *a)
{
	struct fp_entry_out e;
	if (rc) return rc;
	ds_entry(a, CACHE_S, &e);
	return ds_reply(r, &e, sizeof e);
}

static int attributes(struct ds_req *r, int rc, const struct bfs_attr *a)
{
	struct fp_attr_out o = {.valid_s = CACHE_S};
	if (rc) return rc;
	ds_attr(a, &o.attr);
	return ds_reply(r, &o, sizeof o);
}

int ds_lookup(struct ds_req *r)
{
	struct bfs_attr a;
	size_t n;
	const char *name = ds_name(r, &n);
	u64 ino = r->in->nodeid;
	int rc = 0;
	if (!name) return -EINVAL;
	if (!strcmp(name, ".") || !strcmp(name, "..")) { /* somebody comes by a file handle (name_to_handle_at) */
		if (n == 2) rc = bfs_parent(r->b, ino, &ino);
		if (!rc) rc = bfs_getattr(r->b, ino, &a);
	} else {
		rc = bfs_lookup(r->b, ino, name, n, &a);
	}
	return entry(r, rc, &a);
}

int ds_getattr(struct ds_req *r)
{
	struct bfs_attr a;
	int rc = bfs_getattr(r->b, r->in->nodeid, &a);
	return attributes(r, rc, &a);
}

static struct fp_statx_time stx(i64 ns)
{
	i64 s = floor_s(ns);
	return (struct fp_statx_time){.s = s, .ns = (u32)(ns - s * NS)};
}

int ds_statx(struct ds_req *r)
{
	struct bfs_attr a;
	int rc = bfs_getattr(r->b, r->in->nodeid, &a);
	if (rc) return rc;
	struct fp_statx_out o = {.valid_s = CACHE_S, .stat = {
		.mask = STATX_BASIC | STATX_BTIME_BIT, .blksize = DS_BLKSIZE, .nlink = a.nlink, .uid = a.uid, .gid = a.gid, .mode = (u16)a.mode, .ino = a.ino, .size = a.size, .blocks = a.granules * SECTORS,
		.atime = stx(a.atime_ns), .btime = stx(a.btime_ns), .ctime = stx(a.ctime_ns), .mtime = stx(a.mtime_ns),
		/* the kernel's encoding of a device in 32 bits */
		.rdev_major = a.rdev >> 8 & 0xfff, .rdev_minor = (a.rdev & 0xff) | (a.rdev >> 12 & 0xfff00),
	}};
	return ds_reply(r, &o, sizeof o);
}

/* The mode without set-user-id and set-group-id goes into in and mask, if it has one of them; a directory keeps them. */
static int without_privileges(struct bfs *b, u64 ino, struct bfs_attr *in, u32 *mask)
{
	struct bfs_attr a;
	int rc = bfs_getattr(b, ino, &a);
	if (rc) return rc;
	u32 drop = S_ISUID | (a.mode & S_IXGRP ? S_ISGID : 0);
	if (!S_ISDIR(a.mode) && a.mode & drop) *mask |= BFS_SET_MODE, in->mode = a.mode & 07777 & ~drop;
	return 0;
}

int ds_drop_privileges(struct bfs *b, u64 ino)
{
	struct bfs_attr in = {0}, out;
	u32 mask = 0;
	int rc = without_privileges(b, ino, &in, &mask);
	return rc || !mask ? rc : bfs_setattr(b, ino, mask, &in, 0, &out);
}

/* Times that the pool can't hold (before 1677, after 2262) become the nearest, as on every filesystem. */
static i64 join(u64 s, u32 ns)
{
	i64 t;
	if (__builtin_mul_overflow((i64)s, NS, &t) || __builtin_add_overflow(t, (i64)ns, &t)) return (i64)s < 0 ? -INT64_MAX : INT64_MAX;
	return t;
}

int ds_setattr(struct ds_req *r)
{
	const struct fp_setattr_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr in = {0}, out;
	u64 ino = r->in->nodeid;
	u32 mask = 0;
	struct timespec t;
	if (!x) return -EINVAL;
	clock_gettime(CLOCK_REALTIME, &t);
	i64 now = join((u64)t.tv_sec, (u32)t.tv_nsec);
	if (x->valid & FP_SET_MODE) mask |= BFS_SET_MODE, in.mode = x->mode & 07777;
	if (x->valid & FP_SET_UID) mask |= BFS_SET_UID, in.uid = x->uid;
	if (x->valid & FP_SET_GID) mask |= BFS_SET_GID, in.gid = x->gid;
	if (x->valid & FP_SET_SIZE) mask |= BFS_SET_SIZE, in.size = x->size;
	if (x->valid & (FP_SET_ATIME | FP_SET_ATIME_NOW)) mask |= BFS_SET_ATIME, in.atime_ns = x->valid & FP_SET_ATIME_NOW ? now : join(x->atime, x->atime_ns);
	if (x->valid & (FP_SET_MTIME | FP_SET_MTIME_NOW)) mask |= BFS_SET_MTIME, in.mtime_ns = x->valid & FP_SET_MTIME_NOW ? now : join(x->mtime, x->mtime_ns);
	if (x->valid & FP_SET_CTIME) mask |= BFS_SET_CTIME, in.ctime_ns = join(x->ctime, x->ctime_ns);
	/* The kernel leaves it to us to take set-user-id away, when another owner comes and when it says so. */
	if (!(mask & BFS_SET_MODE) && (mask & (BFS_SET_UID | BFS_SET_GID) || x->valid & FP_SET_KILL_SUIDGID)) {
		int rc = without_privileges(r->b, ino, &in, &mask);
		if (rc) return rc;
	}
	int rc = bfs_setattr(r->b, ino, mask, &in, x->valid & FP_SET_FH ? x->fh : 0, &out);
	return attributes(r, rc, &out);
}

/* ---- names ----------------------------------------------------------------------------------------- */
/* the next name; -EPERM: that of the daemon's directory, which nobody makes, moves or removes */
static int taken(struct ds_req *r, u64 dir, const char **name, size_t *n)
{
	*name = ds_name(r, n);
	if (!*name) return -EINVAL;
	return ds_is_control(dir) || (dir == BFS_ROOT_INO && !strcmp(*name, DS_CONTROL_NAME)) ? -EPERM : 0;
}

int ds_readlink(struct ds_req *r)
{
	char buf[BFS_SYMLINK_MAX + 1];
	ssize_t n = bfs_readlink(r->b, r->in->nodeid, buf, sizeof buf);
	return n < 0 ? (int)n : ds_reply(r, buf, (size_t)n);
}

int ds_symlink(struct ds_req *r)
{
	struct bfs_attr a;
	const char *name;
	size_t n, m;
	int rc = taken(r, r->in->nodeid, &name, &n);
	const char *target = rc ? NULL : ds_name(r, &m);
	if (!rc) rc = target ? bfs_symlink(r->b, r->in->nodeid, name, n, target, m, r->in->uid, r->in->gid, &a) : -EINVAL;
	return entry(r, rc, &a);
}

int ds_mknod(struct ds_req *r)
{
	const struct fp_mknod_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr a;
	const char *name;
	size_t n;
	int rc = x ? taken(r, r->in->nodeid, &name, &n) : -EINVAL;
	if (!rc) rc = bfs_mknod(r->b, r->in->nodeid, name, n, x->mode, x->rdev, r->in->uid, r->in->gid, &a);
	return entry(r, rc, &a);
}

int ds_mkdir(struct ds_req *r)
{
	const struct fp_mkdir_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr a;
	const char *name;
	size_t n;
	int rc = x ? taken(r, r->in->nodeid, &name, &n) : -EINVAL;
	if (!rc) rc = bfs_mkdir(r->b, r->in->nodeid, name, n, x->mode, r->in->uid, r->in->gid, &a);
	return entry(r, rc, &a);
}

int ds_unlink(struct ds_req *r)
{
	const char *name;
	size_t n;
	int rc = taken(r, r->in->nodeid, &name, &n);
	return rc ? rc : bfs_unlink(r->b, r->in->nodeid, name, n);
}

int ds_rmdir(struct ds_req *r)
{
	const char *name;
	size_t n;
	int rc = taken(r, r->in->nodeid, &name, &n);
	return rc ? rc : bfs_rmdir(r->b, r->in->nodeid, name, n);
}

static int renamed(struct ds_req *r, u64 newdir, u32 flags)
{
	const char *from, *to;
	size_t n, m;
	int rc = taken(r, r->in->nodeid, &from, &n);
	if (!rc) rc = taken(r, newdir, &to, &m);
	return rc ? rc : bfs_rename(r->b, r->in->nodeid, from, n, newdir, to, m, flags);
}

int ds_rename(struct ds_req *r)
{
	const struct fp_rename_in *x = ds_arg(r, sizeof *x);
	return x ? renamed(r, x->newdir, 0) : -EINVAL;
}

int ds_rename2(struct ds_req *r)
{
	const struct fp_rename2_in *x = ds_arg(r, sizeof *x);
	return x ? renamed(r, x->newdir, x->flags) : -EINVAL;
}

int ds_link(struct ds_req *r)
{
	const struct fp_link_in *x = ds_arg(r, sizeof *x);
	struct bfs_attr a;
	const char *name;
	size_t n;
	int rc = x ? taken(r, r->in->nodeid, &name, &n) : -EINVAL;
	if (!rc) rc = ds_is_control(x->ino) ? -EPERM : bfs_link(r->b, x->ino, r->in->nodeid, name, n, &a);
	return entry(r, rc, &a);
}

/* ---- the whole ----------------------------------------------------------------------------------------- */
int ds_statfs(struct ds_req *r)
{
	struct bfs_stat s;
	int rc = bfs_statfs(r->b, &s);
	if (!rc && s.quarantined_granules && s.is_leader) {
		/* What was freed a moment ago, and nobody reads: df shows it as soon as it is asked. */
		if (!bfs_apply_scan(r->b)) bfs_reclaim(r->b);
		rc = bfs_statfs(r->b, &s);
	}
	if (rc) return rc;
	u64 usable = s.data_granules - s.bad_granules, free = usable > s.used_granules ? usable - s.used_granules : 0;
	struct fp_statfs_out o = {
		.bsize = BFS_GRANULE, .frsize = BFS_GRANULE, .blocks = usable, .bfree = free,
		/* freed, but somebody still reads it: free, and not to be had at this moment */
		.bavail = free > s.quarantined_granules ? free - s.quarantined_granules : 0, .files = s.inodes, .ffree = s.inodes - s.inodes_used, .namelen = BFS_NAME_MAX,
	};
	return ds_reply(r, &o, sizeof o);
}

/* ---- extended attributes --------------------------------------------------------------------------------- */
/* security.* and POSIX ACLs would be promises that nobody here keeps. */
static int settable(const char *name) { return starts(name, "security.") || starts(name, "system.") ? -EOPNOTSUPP : 0; }

/* a value as asked for: how long it is, or itself */
static int value(struct ds_req *r, const void *v, ssize_t n, u32 room)
{
	struct fp_getxattr_out o = {.size = (u32)n};
	if (n < 0) return (int)n;
	if (!room) return ds_reply(r, &o, sizeof o);
	return (size_t)n > room ? -ERANGE : ds_reply(r, v, (size_t)n);
}

int ds_getxattr(struct ds_req *r)
{
	const struct fp_getxattr_in *x = ds_arg(r, sizeof *x);
	size_t n;
	const char *name = x ? ds_name(r, &n) : NULL;
	if (!name) return -EINVAL;
	if (starts(name, "security.")) return -ENODATA;
	return value(r, r->out, bfs_getxattr(r->b, r->in->nodeid, name, r->out, r->out_cap), x->size);
}

int ds_setxattr(struct ds_req *r)
{
	const struct fp_setxattr_in *x = ds_arg(r, sizeof *x);
	size_t n;
	const char *name = x ? ds_name(r, &n) : NULL;
	const void *v = name ? ds_arg(r, x->size) : NULL;
	if (!v) return -EINVAL;
	int rc = settable(name);
	return rc ? rc : bfs_setxattr(r->b, r->in->nodeid, name, v, x->size, (int)x->flags);
}

int ds_removexattr(struct ds_req *r)
{
	size_t n;
	const char *name = ds_name(r, &n);
	if (!name) return -EINVAL;
	int rc = settable(name);
	return rc ? rc : bfs_removexattr(r->b, r->in->nodeid, name);
}

int ds_listxattr(struct ds_req *r)
{
	const struct fp_getxattr_in *x = ds_arg(r, sizeof *x);
	if (!x) return -EINVAL;
	char *list = (char *)r->out, *to = list;
	ssize_t n = bfs_listxattr(r->b, r->in->nodeid, list, r->out_cap);
	for (char *p = list; n > 0 && p < list + n;) {
		size_t len = strlen(p) + 1;
		/* What the core computes (user.beluga.state, ...) cannot be set, so a copy with all that is listed
		 * would fail over it: it is there for those who ask by name. */
		bool hidden = (starts(p, COMPUTED) && strcmp(p, PIN)) || (r->in->uid && starts(p, "trusted."));
		if (!hidden) memmove(to, p, len), to += len;
		p += len;
	}
	return value(r, list, n < 0 ? n : to - list, x->size);
}
