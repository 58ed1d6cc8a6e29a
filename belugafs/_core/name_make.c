/* Making and removing by name; attributes. */
#include <sys/stat.h>
#include "name.h"

/* ---- making ---------------------------------------------------------------------------------- */
/* An object that dir is going to have; with an owner one in its first writing there. */
static struct bfs_obj *fresh(struct txn *t, u64 dir, const struct bfs_obj *d, u32 mode, u32 uid, u32 gid, u8 owner, int *rc)
{
	if (d->mode & S_ISGID) { /* as on every local filesystem: group of the directory */
		gid = d->gid;
		if (S_ISDIR(mode)) mode |= S_ISGID;
	}
	t->keep = dir; /* should slots be out */
	struct bfs_obj *o = ob_alloc(t, mode, uid, gid, rc);
	t->keep = 0;
	if (!o || !owner) return o;
	ob_count(t, o, -1);
	o->state = BFS_ST_NEW, o->cls = BFS_CLS_BLOCK, o->owner = owner, o->flags |= BFS_OF_FORMING;
	ob_count(t, o, 1);
	return o;
}

/* Checks, object, entry.  NULL: *rc; -EEXIST sets *ino. */
static struct bfs_obj *make(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 owner, u64 *ino, int *rc)
{
	struct ht_entry e;
	const struct bfs_obj *d;
	if ((*rc = nm_ok(name, len)) || !(d = nm_dir(tview(t), dir, rc))) return NULL;
	*rc = ht_find(tview(t), dir, BFS_EK_NAME, name, len, &e);
	if (*rc != -ENOENT) {
		if (!*rc) *rc = -EEXIST, *ino = e.ino;
		return NULL;
	}
	struct bfs_obj *o = fresh(t, dir, d, mode, uid, gid, owner, rc);
	if (!o) return NULL;
	if ((*rc = nm_add(t, dir, BFS_EK_NAME, name, len, o, owner, NULL))) return NULL;
	*ino = ob_ino(o);
	return o;
}

int nm_create(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 owner, u64 *ino)
{
	int rc;
	make(t, dir, name, len, S_IFREG | (mode & 07777), uid, gid, owner, ino, &rc);
	return rc;
}

/* An orphan from the beginning: what becomes of one that has lost its names becomes of it. */
int nm_nameless(struct txn *t, u64 dir, u32 mode, u32 uid, u32 gid, u64 *ino)
{
	int rc = 0;
	const struct bfs_obj *d = nm_dir(tview(t), dir, &rc), *o = d ? fresh(t, dir, d, S_IFREG | (mode & 07777), uid, gid, (u8)(t->b->slot + 1), &rc) : NULL;
	if (!o) return rc;
	*ino = ob_ino(o);
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_ORPHAN, t->b->slot), o->slot, 0), .x = *ino};
	return (rc = bt_put(t, &r)) ? txn_fail(t, rc) : 0;
}

int nm_mkdir(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 flags, u64 *ino)
{
	int rc;
	struct bfs_obj *o = make(t, dir, name, len, S_IFDIR | (mode & 07777), uid, gid, 0, ino, &rc);
	if (o) o->flags = flags;
	return rc;
}

static int make_op(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 rdev, u32 uid, u32 gid, const void *target, size_t tlen, struct bfs_attr *a)
{
	struct txn *t;
	u64 ino;
	int rc = op_begin_room(b, &t);
	if (rc) return rc;
	struct bfs_obj *o = make(t, dir, name, len, mode, uid, gid, 0, &ino, &rc);
	if (o) {
		o->rdev = rdev;
		if (tlen > BFS_INLINE_LINK) rc = blob_write(t, &o->blob, target, (u32)tlen);
		else if (tlen) memcpy(o->v.link, target, tlen);
		o->size = o->blob_len = (u32)tlen;
		if (a) ob_attr(o, a);
	}
	return op_end(b, t, rc);
}

int bfs_mkdir(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, struct bfs_attr *a)
{
	return make_op(b, dir, name, len, S_IFDIR | (mode & 07777), 0, uid, gid, NULL, 0, a);
}

int bfs_mknod(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 rdev, u32 uid, u32 gid, struct bfs_attr *a)
{
	if (!(mode & S_IFMT)) mode |= S_IFREG;
	if (S_ISDIR(mode)) return -EPERM;
	if (!S_ISREG(mode) && !S_ISFIFO(mode) && !S_ISSOCK(mode) && !S_ISCHR(mode) && !S_ISBLK(mode)) return -EINVAL;
	return make_op(b, dir, name, len, mode & (S_IFMT | 07777), S_ISCHR(mode) || S_ISBLK(mode) ? rdev : 0, uid, gid, NULL, 0, a);
}

int bfs_symlink(struct bfs *b, u64 dir, const void *name, size_t len, const void *target, size_t tlen, u32 uid, u32 gid, struct bfs_attr *a)
{
	if (!tlen) return -ENOENT;
	if (tlen > BFS_SYMLINK_MAX) return -ENAMETOOLONG;
	if (memchr(target, 0, tlen)) return -EINVAL;
	return make_op(b, dir, name, len, S_IFLNK | 0777, 0, uid, gid, target, tlen, a);
}

ssize_t bfs_readlink(struct bfs *b, u64 ino, void *buf, size_t len)
{
	struct rd r;
	u8 target[BFS_SYMLINK_MAX];
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
	u32 n = 0;
	if (o && !S_ISLNK(o->mode)) rc = -EINVAL;
	else if (o && (o->size > sizeof target || o->size != o->blob_len)) rc = bfs_fail(b, -EIO, "symbolic link %llu: length %llu", (unsigned long long)ino, (unsigned long long)o->size);
	if (o && !rc) {
		n = o->blob_len;
		if (n > BFS_INLINE_LINK) rc = blob_read(b, o->blob, target, n);
		else memcpy(target, o->v.link, n);
	}
	rd_end(&r);
	if (rc) return rc;
	if (n > len) n = (u32)len;
	memcpy(buf, target, n);
	return n;
}

/* ---- removing ---------------------------------------------------------------------------------- */
int bfs_unlink(struct bfs *b, u64 dir, const void *name, size_t len)
{
	struct txn *t;
	struct ht_entry e;
	int rc = op_begin(b, &t);
	if (rc) return rc;
	rc = nm_look(tview(t), dir, name, len, &e);
	if (!rc && e.type == S_IFDIR >> 12) rc = -EISDIR;
	if (!rc && !(rc = nm_remove(t, &e))) t->root->unlinks++;
	if (!(rc = op_end(b, t, rc))) in_unlinked(b, e.ino);
	return rc;
}

int nm_dir_empty(struct view *v, u64 ino)
{
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, ino, &rc);
	return o ? o->u.d.entries ? -ENOTEMPTY : 0 : rc == -ESTALE ? -EIO : rc;
}

int bfs_rmdir(struct bfs *b, u64 dir, const void *name, size_t len)
{
	struct txn *t;
	struct ht_entry e;
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if ((rc = syn_rmdir(tview(t), dir, name, len)) <= 0) return op_end(b, t, rc);
	rc = nm_look(tview(t), dir, name, len, &e);
	if (!rc) rc = e.type != S_IFDIR >> 12 ? -ENOTDIR : nm_dir_empty(tview(t), e.ino);
	if (!rc) rc = nm_remove(t, &e);
	return op_end(b, t, rc);
}

/* ---- attributes -------------------------------------------------------------------------------------- */
int bfs_setattr(struct bfs *b, u64 ino, u32 mask, const struct bfs_attr *in, u64 fh, struct bfs_attr *out)
{
	struct txn *t;
	int rc = 0;
	bool written = false;
	if (is_syn(ino)) return bfs_fail(b, -EPERM, "this directory is made up from the keys below it");
	if (mask & BFS_SET_SIZE) {
		struct bfs_attr a;
		if ((rc = bfs_getattr(b, ino, &a))) return rc;
		if (!S_ISREG(a.mode)) return S_ISDIR(a.mode) ? -EISDIR : -EINVAL;
		if ((rc = fl_truncate(b, ino, fh, in->size))) return rc;
		mask &= ~(u32)BFS_SET_SIZE;
	}
	if (!mask) return out ? bfs_getattr(b, ino, out) : 0;
	if ((rc = op_begin(b, &t))) return rc;
	struct bfs_obj *o = ob_get(tview(t), ino, &rc) ? ob_cow(t, ino) : NULL;
	if (o) {
		if (mask & BFS_SET_MODE) o->mode = (o->mode & S_IFMT) | (in->mode & 07777);
		if (mask & BFS_SET_UID) o->uid = in->uid;
		if (mask & BFS_SET_GID) o->gid = in->gid;
		if (mask & BFS_SET_ATIME) o->atime_ns = in->atime_ns;
		if (mask & BFS_SET_MTIME) o->mtime_ns = in->mtime_ns, written = in_time_set(b, ino);
		o->ctime_ns = mask & BFS_SET_CTIME ? in->ctime_ns : (i64)now_ns(b);
		o->flags &= (u8)~BFS_OF_EMPTIED;
		if (out) ob_attr(o, out);
	} else if (!rc) {
		rc = t->poison;
	}
	rc = op_end(b, t, rc);
	if (!rc && written) in_time_row(b, ino);
	if (!rc && out && S_ISREG(out->mode)) in_overlay_attr(b, out);
	return rc;
}
