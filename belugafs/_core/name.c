/* Directories and entries: everything that is done by name.
 *
 * An entry is three things that change together: the hashed entry (look-up), a listing
 * record under its cookie (readdir), and a back reference in the object (seal, eviction).
 * nm_add, unhook and the exchange in bfs_rename are the only places that touch them.
 *
 * A file in its first writing has a private entry (owner = host + 1); the same name may
 * be published by somebody else meanwhile.  Its own host sees the private one, all others
 * the published one.
 *
 * Below a block namespace are two levels of directories that nobody stores: an inode
 * number with bit 63 stands for a prefix of keys, and exists while a key has it. */
#include <sys/stat.h>
#include "internal.h"

/* ---- synthesised directories ---------------------------------------------------------- */
struct syn {
	u32 slot;  /* of the namespace */
	u32 level; /* 1: first byte, 2: both */
	u8 k[2];
};
static inline bool is_syn(u64 ino) { return ino >> 63; }
static inline u64 syn_ino(u32 slot, u32 level, u8 k0, u8 k1) { return 1ull << 63 | (u64)level << 60 | (u64)k0 << 52 | (u64)k1 << 44 | slot; }

static int unhex(const u8 *s, size_t n, u8 *out)
{
	if (n % 2 || n / 2 > BFS_KEY_MAX) return -1;
	for (size_t i = 0; i < n; i++) {
		int c = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10 : -1;
		if (c < 0) return -1;
		out[i / 2] = (u8)(i % 2 ? out[i / 2] | c : c << 4);
	}
	return (int)(n / 2);
}

static size_t hex(const u8 *s, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++) out[2 * i] = "0123456789abcdef"[s[i] >> 4], out[2 * i + 1] = "0123456789abcdef"[s[i] & 15];
	return 2 * n;
}

/* first key of the namespace that is >= the prefix; -ENOENT */
static int key_from(struct view *v, u32 slot, u64 prefix, struct bfs_rec *r)
{
	u64 a = BFS_T(BFS_T_KEYS, slot);
	int rc = bt_seek(v, KEY(a, prefix, 0), r);
	return rc ? rc : r->k.a == a ? 0 : -ENOENT;
}

static int prefix_has(struct view *v, u32 slot, u32 level, u8 k0, u8 k1)
{
	struct bfs_rec r;
	u64 p = (u64)k0 << 56 | (level == 2 ? (u64)k1 << 48 : 0);
	int rc = key_from(v, slot, p, &r), shift = level == 2 ? 48 : 56;
	return rc ? rc : r.k.b >> shift == p >> shift ? 0 : -ENOENT;
}

/* The namespace behind a synthesised number, if the prefix has a key. */
static const struct bfs_obj *syn_get(struct view *v, u64 ino, struct syn *y, int *rc)
{
	*y = (struct syn){(u32)ino, ino >> 60 & 3, {(u8)(ino >> 52), (u8)(ino >> 44)}};
	const struct bfs_obj *o = ob_slot(v, y->slot, rc);
	if (*rc) return NULL;
	if (!o || !S_ISDIR(o->mode) || !(o->flags & BFS_OF_NSBLOCK) || y->level < 1 || y->level > 2 || ino != syn_ino(y->slot, y->level, y->k[0], y->k[1])) *rc = -ESTALE;
	else if ((*rc = prefix_has(v, y->slot, y->level, y->k[0], y->k[1])) == -ENOENT) *rc = -ESTALE; /* the kernel looks again */
	return *rc ? NULL : o;
}

static int attr_of(struct view *v, u64 ino, struct bfs_attr *a)
{
	int rc = 0;
	struct syn y;
	const struct bfs_obj *o = is_syn(ino) ? syn_get(v, ino, &y, &rc) : ob_get(v, ino, &rc);
	if (!o) return rc;
	ob_attr(o, a);
	if (is_syn(ino)) a->ino = ino, a->flags = 0;
	return 0;
}

/* ---- looking up --------------------------------------------------------------------------- */
static int name_ok(const void *name, size_t len)
{
	const u8 *s = name;
	if (len > BFS_NAME_MAX) return -ENAMETOOLONG;
	if (!len || memchr(s, '/', len) || memchr(s, 0, len)) return -EINVAL;
	return s[0] == '.' && (len == 1 || (len == 2 && s[1] == '.')) ? -EINVAL : 0;
}

/* dir as a directory that real names live in */
static const struct bfs_obj *dir_get(struct view *v, u64 dir, int *rc)
{
	const struct bfs_obj *o = is_syn(dir) ? NULL : ob_get(v, dir, rc);
	if (is_syn(dir)) *rc = bfs_fail(v->b, -EPERM, "only blocks live inside a block namespace");
	if (!o) return NULL;
	if (!S_ISDIR(o->mode)) *rc = -ENOTDIR;
	else if (o->flags & BFS_OF_NSBLOCK) *rc = bfs_fail(v->b, -EPERM, "only blocks live inside a block namespace");
	return *rc ? NULL : o;
}

/* publish=close: a private entry is hidden from its own host too, until it is sealed */
static bool hidden(struct view *v, const struct ht_entry *e)
{
	int rc = 0;
	if (!e->owner || !v->b->o.publish_close) return false;
	const struct bfs_obj *o = ob_get(v, e->ino, &rc);
	return !o || o->state != BFS_ST_SEALED;
}

/* what this host sees under a name */
static int seen(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e)
{
	int rc = ht_find(v, dir, BFS_EK_NAME, name, len, e);
	return !rc && hidden(v, e) ? ht_find_owner(v, dir, BFS_EK_NAME, name, len, 0, e) : rc;
}

/* Any name in any directory.  For a synthesised directory e is made up, with cookie 0. */
static int look(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e)
{
	int rc = name_ok(name, len);
	u8 key[BFS_KEY_MAX];
	if (rc) return rc;
	struct syn y = {INO_SLOT(dir), 0, {0, 0}};
	const struct bfs_obj *o = is_syn(dir) ? syn_get(v, dir, &y, &rc) : ob_get(v, dir, &rc);
	if (!o) return rc;
	if (!S_ISDIR(o->mode)) return -ENOTDIR;
	if (!(o->flags & BFS_OF_NSBLOCK)) return seen(v, dir, name, len, e);
	int n = unhex(name, len, key);
	if (y.level == 2) return n >= 2 && !memcmp(key, y.k, 2) ? ht_find(v, ob_ino(o), BFS_EK_KEY, key, (size_t)n, e) : -ENOENT;
	if (n != 1) return -ENOENT;
	*e = (struct ht_entry){.dir = dir, .type = S_IFDIR >> 12};
	e->ino = y.level ? syn_ino(y.slot, 2, y.k[0], key[0]) : syn_ino(y.slot, 1, key[0], 0);
	return y.level ? prefix_has(v, y.slot, 2, y.k[0], key[0]) : prefix_has(v, y.slot, 1, key[0], 0);
}

int bfs_lookup(struct bfs *b, u64 dir, const void *name, size_t len, struct bfs_attr *a)
{
	struct rd r;
	struct ht_entry e;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = look(&r.v, dir, name, len, &e);
	if (!rc && (rc = attr_of(&r.v, e.ino, a)) == -ESTALE && !is_syn(e.ino))
		rc = bfs_fail(b, -EIO, "entry of directory %llu leads to object %llu, which is gone; run fsck.belugafs -n", (unsigned long long)dir, (unsigned long long)e.ino);
	rd_end(&r);
	if (!rc && S_ISREG(a->mode)) in_overlay_attr(b, a);
	return rc;
}

int bfs_getattr(struct bfs *b, u64 ino, struct bfs_attr *a)
{
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = attr_of(&r.v, ino, a);
	rd_end(&r);
	if (!rc && S_ISREG(a->mode)) in_overlay_attr(b, a);
	return rc;
}

int bfs_parent(struct bfs *b, u64 ino, u64 *dir)
{
	struct rd r;
	struct syn y;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = is_syn(ino) ? syn_get(&r.v, ino, &y, &rc) : ob_get(&r.v, ino, &rc);
	if (o && is_syn(ino)) *dir = y.level == 2 ? syn_ino(y.slot, 1, y.k[0], 0) : ob_ino(o);
	else if (o && !S_ISDIR(o->mode)) rc = -ENOTDIR;
	else if (o) *dir = ino == BFS_ROOT_INO ? ino : o->parent;
	rd_end(&r);
	return rc;
}

/* ---- entries ------------------------------------------------------------------------------- */
static struct bfs_rec list_rec(const struct ht_entry *e)
{
	u32 slot = INO_SLOT(e->dir);
	return (struct bfs_rec){
		.k = e->kind == BFS_EK_KEY ? KEY(BFS_T(BFS_T_KEYS, slot), nm_keyb(e->name, e->len), e->cookie) : KEY(BFS_T(BFS_T_LIST, slot), e->cookie, 0),
		.x = e->hash, .y = e->ino,
	};
}

static void set_nlink(struct txn *t, struct bfs_obj *o, int by)
{
	ob_count(t, o, -1);
	o->nlink += (u32)by;
	ob_count(t, o, 1);
}

static int dir_changed(struct txn *t, u64 dir, int entries, int subdirs)
{
	struct bfs_obj *d = ob_cow(t, dir);
	if (!d) return txn_fail(t, -EIO);
	d->u.d.entries += (u64)(i64)entries;
	d->u.d.subdirs += (u32)subdirs;
	d->nlink += (u32)subdirs;
	d->mtime_ns = d->ctime_ns = (i64)now_ns(t->b);
	return 0;
}

/* back references: the first in the object (cookie 0: none), the others as records */
static int ref_add(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie, u64 hash)
{
	if (!o->cookie) {
		o->parent = dir, o->cookie = cookie, o->hash = hash;
		return 0;
	}
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_LINK, o->slot), dir, cookie), .x = hash};
	return bt_put(t, &r);
}

static int ref_del(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie)
{
	struct bfs_rec r;
	int n;
	if (o->cookie != cookie || o->parent != dir) return bt_del(t, KEY(BFS_T(BFS_T_LINK, o->slot), dir, cookie));
	o->parent = o->cookie = o->hash = 0;
	if (o->nlink < 2 || S_ISDIR(o->mode)) return 0;
	if ((n = bt_range(tview(t), KEY(BFS_T(BFS_T_LINK, o->slot), 0, 0), &r, 1)) <= 0) return n;
	o->parent = r.k.b, o->cookie = r.k.c, o->hash = r.x;
	return bt_del(t, r.k);
}

int nm_add(struct txn *t, u64 dir, int kind, const void *name, size_t len, struct bfs_obj *o, u8 owner, u64 *cookie)
{
	struct ht_entry e = {.dir = dir, .ino = ob_ino(o), .cookie = t->root->next_cookie++, .kind = (u8)kind, .owner = owner, .type = (u8)(o->mode >> 12), .len = (u8)len};
	bool sub = S_ISDIR(o->mode);
	int rc;
	memcpy(e.name, name, len);
	e.hash = ht_hash(t->b, dir, kind, name, len);
	struct bfs_rec r = list_rec(&e);
	if ((rc = ht_insert(t, e.hash, dir, kind, name, len, e.ino, e.cookie, e.type, owner)) || (rc = bt_put(t, &r)) ||
	    (rc = ref_add(t, o, dir, e.cookie, e.hash)) || (rc = dir_changed(t, dir, 1, sub)))
		return txn_fail(t, rc);
	set_nlink(t, o, sub ? 2 : 1);
	if (cookie) *cookie = e.cookie;
	return 0;
}

/* The three parts of an entry go; the object's nlink is the caller's. */
static int unhook(struct txn *t, const struct ht_entry *e, struct bfs_obj *o)
{
	int rc;
	if ((rc = ht_remove(t, e->hash, e->dir, e->cookie)) || (rc = bt_del(t, list_rec(e).k)) || (rc = ref_del(t, o, e->dir, e->cookie)) ||
	    (rc = dir_changed(t, e->dir, -1, S_ISDIR(o->mode) ? -1 : 0)))
		return txn_fail(t, rc == -ENOENT ? bfs_fail(t->b, -EIO, "entry %llu of directory %llu has lost a part; run fsck.belugafs -n", (unsigned long long)e->cookie, (unsigned long long)e->dir) : rc);
	return 0;
}

int nm_drop_link(struct txn *t, u64 ino)
{
	struct bfs *b = t->b;
	struct bfs_obj *o = ob_cow(t, ino);
	u32 one = o && S_ISDIR(o->mode) ? 2 : 1;
	if (!o || o->nlink < one) return txn_fail(t, bfs_fail(b, -EIO, "object %llu: link count is wrong; run fsck.belugafs -n", (unsigned long long)ino));
	set_nlink(t, o, -(int)one);
	o->ctime_ns = (i64)now_ns(b);
	if (o->nlink) return 0;
	/* Open here, or being written by another host: the last release there frees it. */
	bool theirs = o->owner && o->owner != b->slot + 1 && (o->state == BFS_ST_NEW || o->state == BFS_ST_DIRTY);
	if (S_ISREG(o->mode) && (theirs || !in_evict_begin(b, ino))) {
		struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_ORPHAN, theirs ? o->owner - 1u : b->slot), o->slot, 0), .x = ino};
		return bt_put(t, &r);
	}
	return ob_free(t, ino);
}

int nm_free_orphan(struct txn *t, u32 host, u64 ino)
{
	int rc = bt_del(t, KEY(BFS_T(BFS_T_ORPHAN, host), INO_SLOT(ino), 0));
	return rc ? rc : ob_free(t, ino);
}

int nm_remove(struct txn *t, const struct ht_entry *e)
{
	bool was = t->internal;
	t->internal = true; /* what gives pages back may use the reserve: a full pool can be emptied */
	struct bfs_obj *o = ob_cow(t, e->ino);
	int rc = o ? unhook(t, e, o) : txn_fail(t, bfs_fail(t->b, -EIO, "entry leads to object %llu, which is gone; run fsck.belugafs -n", (unsigned long long)e->ino));
	if (!rc) rc = nm_drop_link(t, e->ino);
	t->internal = was;
	return rc;
}

static int publish_one(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie, u64 hash, bool check)
{
	struct ht_entry e, x;
	int rc = ht_by_cookie(tview(t), hash, dir, cookie, &e);
	if (rc || !e.owner) return rc == -ENOENT ? -EIO : rc;
	if (!check) {
		rc = ht_set(t, hash, dir, cookie, ob_ino(o), e.type, 0);
		return rc ? rc : dir_changed(t, dir, 0, 0); /* for the others it is new */
	}
	rc = ht_find_owner(tview(t), dir, e.kind, e.name, e.len, 0, &x);
	return rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
}

int nm_publish(struct txn *t, struct bfs_obj *o)
{
	for (int check = 1; check >= 0; check--) { /* all names first, then the first change */
		u64 dir = 0, cookie = 0;
		int n, rc = o->cookie ? publish_one(t, o, o->parent, o->cookie, o->hash, check) : 0;
		struct bfs_rec r[16];
		while (!rc && o->nlink > 1 && (n = bt_range(tview(t), KEY(BFS_T(BFS_T_LINK, o->slot), dir, cookie), r, 16)) != 0) {
			if (n < 0) rc = n;
			for (int i = 0; i < n && !rc; i++) rc = publish_one(t, o, r[i].k.b, r[i].k.c, r[i].x, check);
			if (n > 0) dir = r[n - 1].k.b, cookie = r[n - 1].k.c + 1;
		}
		if (rc) return check ? rc : txn_fail(t, rc);
	}
	return 0;
}

/* ---- making ---------------------------------------------------------------------------------- */
/* Checks, object, entry.  NULL: *rc; -EEXIST sets *ino. */
static struct bfs_obj *make(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 owner, u64 *ino, int *rc)
{
	struct ht_entry e;
	const struct bfs_obj *d;
	if ((*rc = name_ok(name, len)) || !(d = dir_get(tview(t), dir, rc))) return NULL;
	*rc = ht_find(tview(t), dir, BFS_EK_NAME, name, len, &e);
	if (*rc != -ENOENT) {
		if (!*rc) *rc = -EEXIST, *ino = e.ino;
		return NULL;
	}
	if (d->mode & S_ISGID) { /* as on every local filesystem: group of the directory */
		gid = d->gid;
		if (S_ISDIR(mode)) mode |= S_ISGID;
	}
	struct bfs_obj *o = ob_alloc(t, mode, uid, gid, rc);
	if (!o) return NULL;
	if (owner) {
		ob_count(t, o, -1);
		o->state = BFS_ST_NEW, o->cls = BFS_CLS_BLOCK, o->owner = owner;
		ob_count(t, o, 1);
	}
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
	int rc = op_begin(b, &t);
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
	rc = look(tview(t), dir, name, len, &e);
	if (!rc && e.type == S_IFDIR >> 12) rc = -EISDIR;
	if (!rc && !(rc = nm_remove(t, &e))) t->root->unlinks++;
	return op_end(b, t, rc);
}

static int dir_empty(struct view *v, u64 ino)
{
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, ino, &rc);
	return o ? o->u.d.entries ? -ENOTEMPTY : 0 : rc == -ESTALE ? -EIO : rc;
}

/* A prefix is gone with its last key, so rm -r, which has just removed that, is told that
 * its rmdir succeeded.  1: not a prefix. */
static int rmdir_prefix(struct view *v, u64 dir, const void *name, size_t len)
{
	int rc = 0;
	u8 k;
	u32 level = is_syn(dir) ? (u32)(dir >> 60 & 3) + 1 : 1;
	const struct bfs_obj *o = is_syn(dir) ? ob_slot(v, INO_SLOT(dir), &rc) : ob_get(v, dir, &rc);
	if (rc || !o || !S_ISDIR(o->mode) || !(o->flags & BFS_OF_NSBLOCK) || level > 2 || len != 2 || unhex(name, 2, &k) != 1) return 1;
	rc = level == 2 ? prefix_has(v, o->slot, 2, (u8)(dir >> 52), k) : prefix_has(v, o->slot, 1, k, 0);
	return rc == -ENOENT ? 0 : rc ? rc : -ENOTEMPTY;
}

int bfs_rmdir(struct bfs *b, u64 dir, const void *name, size_t len)
{
	struct txn *t;
	struct ht_entry e;
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if ((rc = rmdir_prefix(tview(t), dir, name, len)) <= 0) return op_end(b, t, rc);
	rc = look(tview(t), dir, name, len, &e);
	if (!rc) rc = e.type != S_IFDIR >> 12 ? -ENOTDIR : dir_empty(tview(t), e.ino);
	if (!rc) rc = nm_remove(t, &e);
	return op_end(b, t, rc);
}

/* ---- renaming ----------------------------------------------------------------------------------- */
/* Files that are written for the first time here are sealed before they get another name. */
static int seal_first(struct bfs *b, u64 ino)
{
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
	bool force = o && o->state == BFS_ST_NEW && o->owner == b->slot + 1;
	rd_end(&r);
	return force ? sl_force(b, ino) : rc == -ESTALE ? 0 : rc; /* what a batch has just made isn't in the snapshot */
}

static int seal_named(struct bfs *b, u64 dir, const void *name, size_t len)
{
	struct rd r;
	struct ht_entry e;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = look(&r.v, dir, name, len, &e);
	rd_end(&r);
	return !rc && e.owner ? seal_first(b, e.ino) : 0; /* other errors are the transaction's to find */
}

/* 1: dir lies in a's subtree or is a */
static int within(struct view *v, u64 a, u64 dir)
{
	int rc = 0;
	for (u32 n = 0; n < v->b->sb.inodes; n++) {
		if (dir == a) return 1;
		if (dir == BFS_ROOT_INO) return 0;
		const struct bfs_obj *o = ob_get(v, dir, &rc);
		if (!o) return rc;
		dir = o->parent;
	}
	return bfs_fail(v->b, -EIO, "directory %llu isn't below the root; run fsck.belugafs -n", (unsigned long long)dir);
}

static int may_move(struct view *v, const struct ht_entry *e, u64 to)
{
	int rc = 0;
	if (e->type != S_IFDIR >> 12) return 0;
	const struct bfs_obj *o = ob_get(v, e->ino, &rc);
	if (!o) return rc == -ESTALE ? -EIO : rc;
	if ((o->flags & BFS_OF_NSBLOCK) && to != BFS_ROOT_INO) return bfs_fail(v->b, -EXDEV, "a block namespace stays at the root");
	rc = within(v, e->ino, to);
	return rc > 0 ? -EINVAL : rc;
}

/* Both names stay where they are, with their cookies; what they lead to changes places. */
static int exchange(struct txn *t, const struct ht_entry *p, const struct ht_entry *q)
{
	struct bfs_obj *o = ob_cow(t, p->ino), *w = ob_cow(t, q->ino);
	int rc = 0, od = o ? S_ISDIR(o->mode) : 0, wd = w ? S_ISDIR(w->mode) : 0;
	if (!o || !w) return txn_fail(t, -EIO);
	struct bfs_rec r = list_rec(p), s = list_rec(q);
	r.y = q->ino, s.y = p->ino;
	/* a free inline reference is filled from the records: take both away, then give both */
	if ((rc = ref_del(t, o, p->dir, p->cookie)) || (rc = ref_del(t, w, q->dir, q->cookie)) || (rc = ref_add(t, o, q->dir, q->cookie, q->hash)) ||
	    (rc = ref_add(t, w, p->dir, p->cookie, p->hash)) || (rc = bt_put(t, &r)) || (rc = bt_put(t, &s)) ||
	    (rc = ht_set(t, p->hash, p->dir, p->cookie, q->ino, q->type, 0)) || (rc = ht_set(t, q->hash, q->dir, q->cookie, p->ino, p->type, 0)) ||
	    (rc = dir_changed(t, p->dir, 0, wd - od)) || (rc = dir_changed(t, q->dir, 0, od - wd)))
		return txn_fail(t, rc == -ENOENT ? -EIO : rc);
	o->ctime_ns = w->ctime_ns = (i64)now_ns(t->b);
	return 0;
}

static int replace(struct txn *t, const struct ht_entry *e, u64 dir2, const void *name2, size_t len2, const struct ht_entry *old, int nold)
{
	int rc;
	for (int i = 0; i < nold; i++) {
		if ((rc = nm_remove(t, &old[i]))) return rc;
		if (old[i].type != S_IFDIR >> 12) t->root->unlinks++;
	}
	struct bfs_obj *o = ob_cow(t, e->ino);
	if (!o) return txn_fail(t, -EIO);
	if ((rc = unhook(t, e, o)) || (rc = nm_add(t, dir2, BFS_EK_NAME, name2, len2, o, e->owner, NULL))) return rc;
	set_nlink(t, o, S_ISDIR(o->mode) ? -2 : -1);
	o->ctime_ns = (i64)now_ns(t->b);
	return 0;
}

static int rename_in(struct txn *t, u64 dir, const void *name, size_t len, u64 dir2, const void *name2, size_t len2, u32 flags)
{
	struct view *v = tview(t);
	struct ht_entry e, old[2];
	int rc = 0, nold = 0;
	if (!dir_get(v, dir, &rc) || !dir_get(v, dir2, &rc)) return rc;
	if ((rc = seen(v, dir, name, len, &e))) return rc;
	rc = seen(v, dir2, name2, len2, &old[0]);
	if (!rc) nold = 1;
	else if (rc != -ENOENT) return rc;
	if (nold && (flags & BFS_RENAME_NOREPLACE)) return -EEXIST;
	if (!nold && (flags & BFS_RENAME_EXCHANGE)) return -ENOENT;
	if (nold && old[0].ino == e.ino) return 0;
	if ((rc = may_move(v, &e, dir2))) return rc;
	if (flags & BFS_RENAME_EXCHANGE) {
		if ((rc = may_move(v, &old[0], dir))) return rc;
		if (e.owner || old[0].owner) return bfs_fail(t->b, -EBUSY, "a file in its first writing can't change places");
		return exchange(t, &e, &old[0]);
	}
	/* what a private entry hides goes with it */
	if (nold && old[0].owner) {
		rc = ht_find_owner(v, dir2, BFS_EK_NAME, name2, len2, 0, &old[1]);
		if (!rc) nold = 2;
		else if (rc != -ENOENT) return rc;
		if (nold == 2 && old[1].ino == e.ino) nold = 1;
	}
	for (int i = 0; i < nold; i++) {
		bool d = e.type == S_IFDIR >> 12, d2 = old[i].type == S_IFDIR >> 12;
		if (d && !d2) return -ENOTDIR;
		if (!d && d2) return -EISDIR;
		if (d2 && (rc = dir_empty(v, old[i].ino))) return rc;
	}
	return replace(t, &e, dir2, name2, len2, old, nold);
}

int bfs_rename(struct bfs *b, u64 dir, const void *name, size_t len, u64 dir2, const void *name2, size_t len2, u32 flags)
{
	struct txn *t;
	int rc;
	if ((rc = name_ok(name, len)) || (rc = name_ok(name2, len2))) return rc;
	if (flags & ~(u32)(BFS_RENAME_NOREPLACE | BFS_RENAME_EXCHANGE) || flags == (BFS_RENAME_NOREPLACE | BFS_RENAME_EXCHANGE)) return -EINVAL;
	if (is_syn(dir) || is_syn(dir2)) return bfs_fail(b, -EXDEV, "blocks don't leave or enter a block namespace by rename"); /* mv copies */
	if ((rc = seal_named(b, dir, name, len))) return rc;
	if ((flags & BFS_RENAME_EXCHANGE) && (rc = seal_named(b, dir2, name2, len2))) return rc;
	if ((rc = op_begin(b, &t))) return rc;
	rc = rename_in(t, dir, name, len, dir2, name2, len2, flags);
	return op_end(b, t, rc);
}

/* ---- hard links ------------------------------------------------------------------------------------ */
static int link_in(struct txn *t, u64 ino, u64 dir, const void *name, size_t len, struct bfs_attr *a)
{
	struct view *v = tview(t);
	struct ht_entry e, own;
	int rc = name_ok(name, len);
	if (rc || !dir_get(v, dir, &rc)) return rc;
	const struct bfs_obj *c = ob_get(v, ino, &rc);
	if (!c) return rc;
	if (S_ISDIR(c->mode)) return -EPERM;
	if (!c->nlink || (c->state == BFS_ST_NEW && c->owner != t->b->slot + 1)) return -ENOENT;
	if (c->nlink >= BFS_LINK_MAX) return -EMLINK;
	if (!(rc = ht_find(v, dir, BFS_EK_NAME, name, len, &e))) return -EEXIST;
	if (rc != -ENOENT) return rc;
	if ((rc = ht_by_cookie(v, c->hash, c->parent, c->cookie, &own))) return rc == -ENOENT ? -EIO : rc;
	if (own.kind == BFS_EK_KEY) return bfs_fail(t->b, -EPERM, "a block has one name");
	struct bfs_obj *o = ob_cow(t, ino);
	if (!o) return t->poison;
	if (o->cls == BFS_CLS_BLOCK) { /* linked: no longer a block that may go at any time */
		ob_count(t, o, -1);
		o->cls = BFS_CLS_ORDINARY;
		ob_count(t, o, 1);
	}
	if ((rc = nm_add(t, dir, BFS_EK_NAME, name, len, o, own.owner, NULL))) return rc;
	o->ctime_ns = (i64)now_ns(t->b);
	ob_attr(o, a);
	return 0;
}

int bfs_link(struct bfs *b, u64 ino, u64 dir, const void *name, size_t len, struct bfs_attr *a)
{
	struct txn *t;
	struct bfs_attr tmp;
	if (is_syn(ino)) return -EPERM;
	int rc = seal_first(b, ino);
	if (rc || (rc = op_begin(b, &t))) return rc;
	rc = op_end(b, t, link_in(t, ino, dir, name, len, a ? a : &tmp));
	if (!rc && a && S_ISREG(a->mode)) in_overlay_attr(b, a);
	return rc;
}

/* ---- attributes -------------------------------------------------------------------------------------- */
int bfs_setattr(struct bfs *b, u64 ino, u32 mask, const struct bfs_attr *in, u64 fh, struct bfs_attr *out)
{
	struct txn *t;
	int rc = 0;
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
		if (mask & BFS_SET_MTIME) o->mtime_ns = in->mtime_ns;
		o->ctime_ns = mask & BFS_SET_CTIME ? in->ctime_ns : (i64)now_ns(b);
		if (out) ob_attr(o, out);
	} else if (!rc) {
		rc = t->poison;
	}
	rc = op_end(b, t, rc);
	if (!rc && out && S_ISREG(out->mode)) in_overlay_attr(b, out);
	return rc;
}

/* ---- listing ------------------------------------------------------------------------------------------- */
static void dirent(struct bfs_dirent *d, u64 ino, u64 cookie, u8 type, const void *name, size_t len)
{
	d->ino = ino, d->cookie = cookie, d->type = type, d->len = (u8)len;
	memcpy(d->name, name, len);
	d->name[len] = 0;
}

/* 1: shown to this host */
static int listed(struct view *v, const struct ht_entry *e)
{
	struct ht_entry x;
	u8 me = (u8)(v->b->slot + 1);
	if (e->owner) return e->owner == me && !hidden(v, e);
	if (!v->root->nunsealed) return 1; /* nothing private anywhere */
	int rc = ht_find_owner(v, e->dir, e->kind, e->name, e->len, me, &x);
	return rc == -ENOENT ? 1 : rc ? rc : hidden(v, &x);
}

/* prefixes under a namespace or under its first level; cookie = byte + 1 */
static int list_prefixes(struct view *v, const struct syn *y, u64 after, struct bfs_dirent *out, int max)
{
	struct bfs_rec r;
	char name[2];
	u64 base = y->level ? (u64)y->k[0] << 56 : 0;
	int n = 0, rc = 0, shift = y->level ? 48 : 56;
	for (u64 c = after; c < 256 && n < max; n++) {
		if ((rc = key_from(v, y->slot, base | c << shift, &r)) || (y->level && r.k.b >> 56 != y->k[0])) break;
		u8 byte = (u8)(r.k.b >> shift);
		hex(&byte, 1, name);
		dirent(&out[n], y->level ? syn_ino(y->slot, 2, y->k[0], byte) : syn_ino(y->slot, 1, byte, 0), byte + 1u, S_IFDIR >> 12, name, 2);
		c = byte + 1u;
	}
	return rc && rc != -ENOENT ? rc : n;
}

/* The records of one directory (or of one prefix of keys) are in the order of their cookies. */
static int list_entries(struct view *v, u64 dir, const struct syn *y, u64 after, struct bfs_dirent *out, int max)
{
	struct ht_entry e;
	struct bfs_rec r[64];
	char name[2 * BFS_KEY_MAX];
	u64 prefix = y ? (u64)y->k[0] << 56 | (u64)y->k[1] << 48 : 0;
	int n = 0;
	while (n < max) {
		struct bfs_key k = y ? KEY(BFS_T(BFS_T_KEYS, y->slot), prefix, after + 1) : KEY(BFS_T(BFS_T_LIST, INO_SLOT(dir)), after + 1, 0);
		int want = max - n < 64 ? max - n : 64, m = bt_range(v, k, r, want);
		if (m < 0) return m;
		for (int i = 0; i < m; i++) {
			if (y && r[i].k.b != prefix) return n;
			after = y ? r[i].k.c : r[i].k.b;
			int rc = ht_by_cookie(v, r[i].x, dir, after, &e);
			if (rc) return rc == -ENOENT ? bfs_fail(v->b, -EIO, "listing of directory %llu: entry %llu isn't there; run fsck.belugafs -n", (unsigned long long)dir, (unsigned long long)after) : rc;
			if ((rc = listed(v, &e)) < 0) return rc;
			if (!rc) continue;
			if (y && e.len > BFS_KEY_MAX) return -EIO;
			dirent(&out[n++], e.ino, after, e.type, y ? name : (char *)e.name, y ? hex(e.name, e.len, name) : e.len);
		}
		if (m < want) break;
	}
	return n;
}

int bfs_readdir(struct bfs *b, u64 dir, u64 after, struct bfs_dirent *out, int max)
{
	struct rd r;
	struct syn y = {INO_SLOT(dir), 0, {0, 0}};
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = is_syn(dir) ? syn_get(&r.v, dir, &y, &rc) : ob_get(&r.v, dir, &rc);
	if (o && !S_ISDIR(o->mode)) rc = -ENOTDIR;
	else if (o && (o->flags & BFS_OF_NSBLOCK)) rc = y.level < 2 ? list_prefixes(&r.v, &y, after, out, max) : list_entries(&r.v, ob_ino(o), &y, after, out, max);
	else if (o) rc = list_entries(&r.v, dir, NULL, after, out, max);
	rd_end(&r);
	return rc;
}
