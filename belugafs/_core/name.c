/* Directories and entries: everything that is done by name.
 *
 * An entry is three things that change together: the hashed entry (look-up), a listing
 * record under its cookie (readdir), and a back reference in the object (seal, eviction).
 * nm_add, nm_unhook and the exchange of name_move.c are the only places that touch them.
 *
 * A file in its first writing has a private entry (owner = host + 1); the same name may
 * be published by somebody else meanwhile.  Its own host sees the private one, all others
 * the published one. */
#include <sys/stat.h>
#include "name.h"

/* ---- looking up --------------------------------------------------------------------------- */
int nm_ok(const void *name, size_t len)
{
	const u8 *s = name;
	if (len > BFS_NAME_MAX) return -ENAMETOOLONG;
	if (!len || memchr(s, '/', len) || memchr(s, 0, len)) return -EINVAL;
	return s[0] == '.' && (len == 1 || (len == 2 && s[1] == '.')) ? -EINVAL : 0;
}

/* dir as a directory that real names live in */
const struct bfs_obj *nm_dir(struct view *v, u64 dir, int *rc)
{
	const struct bfs_obj *o = is_syn(dir) ? NULL : ob_get(v, dir, rc);
	if (is_syn(dir)) *rc = bfs_fail(v->b, -EPERM, "only blocks live inside a block namespace");
	if (!o) return NULL;
	if (!S_ISDIR(o->mode)) *rc = -ENOTDIR;
	else if (o->flags & BFS_OF_NSBLOCK) *rc = bfs_fail(v->b, -EPERM, "only blocks live inside a block namespace");
	return *rc ? NULL : o;
}

/* publish=close: a private entry is hidden from its own host too, until it is sealed */
bool nm_hidden(struct view *v, const struct ht_entry *e)
{
	int rc = 0;
	if (!e->owner || !v->b->o.publish_close) return false;
	const struct bfs_obj *o = ob_get(v, e->ino, &rc);
	return !o || o->state != BFS_ST_SEALED;
}

/* what this host sees under a name */
int nm_seen(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e)
{
	int rc = ht_find(v, dir, BFS_EK_NAME, name, len, e);
	return !rc && nm_hidden(v, e) ? ht_find_owner(v, dir, BFS_EK_NAME, name, len, 0, e) : rc;
}

/* Any name in any directory.  For a synthesised directory e is made up, with cookie 0. */
int nm_look(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e)
{
	int rc = nm_ok(name, len);
	u8 key[BFS_KEY_MAX];
	if (rc) return rc;
	struct syn y = {INO_SLOT(dir), 0, {0, 0}};
	const struct bfs_obj *o = is_syn(dir) ? syn_get(v, dir, &y, &rc) : ob_get(v, dir, &rc);
	if (!o) return rc;
	if (!S_ISDIR(o->mode)) return -ENOTDIR;
	if (!(o->flags & BFS_OF_NSBLOCK)) return nm_seen(v, dir, name, len, e);
	int n = syn_unhex(name, len, key);
	if (y.level == 2) return n >= 2 && !memcmp(key, y.k, 2) ? ht_find(v, ob_ino(o), BFS_EK_KEY, key, (size_t)n, e) : -ENOENT;
	if (n != 1) return -ENOENT;
	*e = (struct ht_entry){.dir = dir, .type = S_IFDIR >> 12};
	e->ino = y.level ? syn_ino(y.slot, 2, y.k[0], key[0]) : syn_ino(y.slot, 1, key[0], 0);
	return y.level ? syn_has(v, y.slot, 2, y.k[0], key[0]) : syn_has(v, y.slot, 1, key[0], 0);
}

static int nm_attr(struct view *v, u64 ino, struct bfs_attr *a)
{
	int rc = 0;
	struct syn y;
	const struct bfs_obj *o = is_syn(ino) ? syn_get(v, ino, &y, &rc) : ob_get(v, ino, &rc);
	if (!o) return rc;
	ob_attr(o, a);
	if (is_syn(ino)) a->ino = ino, a->flags = 0;
	return 0;
}

/* seen: what somebody comes by here: the directory that was found, or the one in which nothing was */
static int lookup(struct bfs *b, u64 dir, const void *name, size_t len, struct bfs_attr *a, struct bfs_attr *seen)
{
	struct rd r;
	struct ht_entry e;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = nm_look(&r.v, dir, name, len, &e);
	int c = rc == -ENOENT ? nm_attr(&r.v, dir, seen) : 0;
	if (c) rc = c;
	if (!rc && (rc = nm_attr(&r.v, e.ino, a)) == -ESTALE && !is_syn(e.ino))
		rc = bfs_fail(b, -EIO, "entry of directory %llu leads to object %llu, which is gone; run fsck.belugafs -n", (unsigned long long)dir, (unsigned long long)e.ino);
	rd_end(&r);
	if (!rc && S_ISREG(a->mode)) in_overlay_attr(b, a);
	if (!rc) *seen = *a;
	return rc;
}

/* A look-up that found nothing is a miss, unless the name is made at once: then it was the first half of a
 * create or a rename, which a kernel sends as two requests. */
#define MADE_AT_ONCE_NS 5000000u
static void missed(struct bfs *b, u64 dir, const void *name, size_t len)
{
	u64 h = ht_hash(b, dir, BFS_EK_NAME, name, len), i = h >> 20 & 255;
	atomic_fetch_add_explicit(&b->misses, 1, memory_order_relaxed);
	atomic_store_explicit(&b->missed[i].hash, h, memory_order_relaxed);
	atomic_store_explicit(&b->missed[i].at_ns, b->m->ops->mono_ns(b->m), memory_order_relaxed);
}
static void made(struct bfs *b, u64 h)
{
	u64 i = h >> 20 & 255;
	if (atomic_load_explicit(&b->missed[i].hash, memory_order_relaxed) != h) return;
	u64 at = atomic_exchange_explicit(&b->missed[i].at_ns, 0, memory_order_relaxed);
	if (at && b->m->ops->mono_ns(b->m) - at < MADE_AT_ONCE_NS) atomic_fetch_sub_explicit(&b->misses, 1, memory_order_relaxed);
}

int bfs_lookup(struct bfs *b, u64 dir, const void *name, size_t len, struct bfs_attr *a)
{
	struct bfs_attr seen;
	int rc = lookup(b, dir, name, len, a, &seen);
	if ((!rc || rc == -ENOENT) && ev_dir_seen(b, &seen)) rc = lookup(b, dir, name, len, a, &seen);
	if (rc == -ENOENT) missed(b, dir, name, len);
	return rc;
}

int bfs_peekattr(struct bfs *b, u64 ino, struct bfs_attr *a)
{
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = nm_attr(&r.v, ino, a);
	rd_end(&r);
	if (!rc && S_ISREG(a->mode)) in_overlay_attr(b, a);
	return rc;
}

int bfs_getattr(struct bfs *b, u64 ino, struct bfs_attr *a)
{
	int rc = bfs_peekattr(b, ino, a);
	return !rc && ev_dir_seen(b, a) ? bfs_peekattr(b, ino, a) : rc;
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
struct bfs_rec nm_list_rec(const struct ht_entry *e)
{
	u32 slot = INO_SLOT(e->dir);
	return (struct bfs_rec){
		.k = e->kind == BFS_EK_KEY ? KEY(BFS_T(BFS_T_KEYS, slot), nm_keyb(e->name, e->len), e->cookie) : KEY(BFS_T(BFS_T_LIST, slot), e->cookie, 0),
		.x = e->hash, .y = e->ino,
	};
}

void nm_set_nlink(struct txn *t, struct bfs_obj *o, int by)
{
	ob_count(t, o, -1);
	o->nlink += (u32)by;
	ob_count(t, o, 1);
}

int nm_dir_changed(struct txn *t, u64 dir, int entries, int subdirs)
{
	struct bfs_obj *d = ob_cow(t, dir);
	if (!d) return txn_fail(t, -EIO);
	d->u.d.entries += (u64)(i64)entries;
	if (entries > 0) d->flags &= (u8)~BFS_OF_EMPTIED;
	d->u.d.subdirs += (u32)subdirs;
	d->nlink += (u32)subdirs;
	d->mtime_ns = d->ctime_ns = (i64)now_ns(t->b);
	return 0;
}

/* back references: the first in the object (cookie 0: none), the others as records */
int nm_ref_add(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie, u64 hash)
{
	if (!o->cookie) {
		o->parent = dir, o->cookie = cookie, o->hash = hash;
		return 0;
	}
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_LINK, o->slot), dir, cookie), .x = hash};
	return bt_put(t, &r);
}

int nm_ref_del(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie)
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
	struct bfs_rec r = nm_list_rec(&e);
	if ((rc = ht_insert(t, e.hash, dir, kind, name, len, e.ino, e.cookie, e.type, owner)) || (rc = bt_put(t, &r)) ||
	    (rc = nm_ref_add(t, o, dir, e.cookie, e.hash)) || (rc = nm_dir_changed(t, dir, 1, sub)))
		return txn_fail(t, rc);
	nm_set_nlink(t, o, sub ? 2 : 1);
	if (cookie) *cookie = e.cookie;
	if (kind == BFS_EK_NAME) made(t->b, e.hash);
	return 0;
}

/* The three parts of an entry go; the object's nlink is the caller's. */
int nm_unhook(struct txn *t, const struct ht_entry *e, struct bfs_obj *o)
{
	int rc;
	if ((rc = ht_remove(t, e->hash, e->dir, e->cookie)) || (rc = bt_del(t, nm_list_rec(e).k)) || (rc = nm_ref_del(t, o, e->dir, e->cookie)) ||
	    (rc = nm_dir_changed(t, e->dir, -1, S_ISDIR(o->mode) ? -1 : 0)))
		return txn_fail(t, rc == -ENOENT ? bfs_fail(t->b, -EIO, "entry %llu of directory %llu has lost a part; run fsck.belugafs -n", (unsigned long long)e->cookie, (unsigned long long)e->dir) : rc);
	return 0;
}

int nm_drop_link(struct txn *t, u64 ino)
{
	struct bfs *b = t->b;
	struct bfs_obj *o = ob_cow(t, ino);
	u32 one = o && S_ISDIR(o->mode) ? 2 : 1;
	if (!o || o->nlink < one) return txn_fail(t, bfs_fail(b, -EIO, "object %llu: link count is wrong; run fsck.belugafs -n", (unsigned long long)ino));
	nm_set_nlink(t, o, -(int)one);
	o->ctime_ns = (i64)now_ns(b);
	if (o->nlink == 1) ev_regrade(b, o->slot); /* one name again: eviction may look at it again */
	if (o->nlink) return 0;
	/* Open here, or being written by another host: the last release there frees it. */
	bool theirs = o->owner && o->owner != b->slot + 1 && (o->state == BFS_ST_NEW || o->state == BFS_ST_DIRTY);
	if (S_ISREG(o->mode) && (theirs || !in_evict_begin(b, ino))) {
		struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_ORPHAN, theirs ? o->owner - 1u : b->slot), o->slot, 0), .x = ino};
		return bt_put(t, &r);
	}
	return ob_free(t, ino);
}

int nm_elsewhere(struct view *v, const struct bfs_obj *o)
{
	struct bfs_rec r;
	if (o->nlink) return 0;
	int rc = bt_get(v, KEY(BFS_T(BFS_T_ORPHAN, v->b->slot), o->slot, 0), &r);
	return rc == -ENOENT || (!rc && r.x != ob_ino(o)) ? 1 : rc;
}

int nm_free_orphan(struct txn *t, u32 host, u64 ino)
{
	int rc = bt_del(t, KEY(BFS_T(BFS_T_ORPHAN, host), INO_SLOT(ino), 0));
	return rc ? rc : ob_free(t, ino);
}

int nm_remove(struct txn *t, const struct ht_entry *e)
{
	enum pg_use was = t->use;
	if (was < PG_FREEING) t->use = PG_FREEING; /* a full pool can be emptied */
	struct bfs_obj *o = ob_cow(t, e->ino);
	int rc = o ? nm_unhook(t, e, o) : txn_fail(t, bfs_fail(t->b, -EIO, "entry leads to object %llu, which is gone; run fsck.belugafs -n", (unsigned long long)e->ino));
	if (!rc) rc = nm_drop_link(t, e->ino);
	t->use = was;
	return rc;
}

static int publish_one(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie, u64 hash, bool check)
{
	struct ht_entry e, x;
	int rc = ht_by_cookie(tview(t), hash, dir, cookie, &e);
	if (rc || !e.owner) return rc == -ENOENT ? -EIO : rc;
	if (!check) {
		rc = ht_set(t, hash, dir, cookie, ob_ino(o), e.type, 0);
		/* the directory's times are those of the create, unless nobody could see the name so far */
		return rc || !t->b->o.publish_close ? rc : nm_dir_changed(t, dir, 0, 0);
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
