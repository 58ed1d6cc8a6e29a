/* Names that move or are added: rename, exchange, hard links. */
#include <sys/stat.h>
#include "backing.h"
#include "name.h"

/* ---- renaming ----------------------------------------------------------------------------------- */
/* Files that are written for the first time here are sealed before they get another name. */
static int seal_first(struct bfs *b, u64 ino)
{
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
	bool force = o && o->state == BFS_ST_NEW && o->owner == b->slot + 1;
	bool forming = b->back && o && o->flags & BFS_OF_FORMING && (o->state == BFS_ST_DIRTY || o->cls != BFS_CLS_BLOCK);
	rd_end(&r);
	if (forming) bk_finish(b, ino);
	return force ? sl_force(b, ino) : rc == -ESTALE ? 0 : rc; /* what a batch has just made isn't in the snapshot */
}

static int seal_named(struct bfs *b, u64 dir, const void *name, size_t len)
{
	struct rd r;
	struct ht_entry e;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = nm_look(&r.v, dir, name, len, &e);
	rd_end(&r);
	return !rc && (e.owner || (b->back && e.type == S_IFREG >> 12)) ? seal_first(b, e.ino) : 0; /* other errors are the transaction's to find */
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

/* A file that gets another name is finished.  Was it put together in several openings, each of
 * which only added to it, and had no other name so far, then it is a block like one that was
 * written in one go.  Who writes over what was sealed (a database), or has synced it and goes
 * on (a journal, a log), loses the flag, and stays ordinary. */
void nm_finished(struct txn *t, struct bfs_obj *o)
{
	if (!(o->flags & BFS_OF_FORMING) || o->state != BFS_ST_SEALED) return;
	ob_count(t, o, -1);
	o->cls = BFS_CLS_BLOCK;
	o->flags &= (u8)~BFS_OF_FORMING;
	ob_count(t, o, 1);
}

static void named_again(struct txn *t, struct bfs_obj *o)
{
	if (o->flags & BFS_OF_FORMING && !(t->b->back && bk_named_early(t, o))) nm_finished(t, o);
}

/* Both names stay where they are, with their cookies; what they lead to changes places. */
static int exchange(struct txn *t, const struct ht_entry *p, const struct ht_entry *q)
{
	struct bfs_obj *o = ob_cow(t, p->ino), *w = ob_cow(t, q->ino);
	int rc = 0, od = o ? S_ISDIR(o->mode) : 0, wd = w ? S_ISDIR(w->mode) : 0;
	if (!o || !w) return txn_fail(t, -EIO);
	struct bfs_rec r = nm_list_rec(p), s = nm_list_rec(q);
	r.y = q->ino, s.y = p->ino;
	/* a free inline reference is filled from the records: take both away, then give both */
	if ((rc = nm_ref_del(t, o, p->dir, p->cookie)) || (rc = nm_ref_del(t, w, q->dir, q->cookie)) || (rc = nm_ref_add(t, o, q->dir, q->cookie, q->hash)) ||
	    (rc = nm_ref_add(t, w, p->dir, p->cookie, p->hash)) || (rc = bt_put(t, &r)) || (rc = bt_put(t, &s)) ||
	    (rc = ht_set(t, p->hash, p->dir, p->cookie, q->ino, q->type, 0)) || (rc = ht_set(t, q->hash, q->dir, q->cookie, p->ino, p->type, 0)) ||
	    (rc = nm_dir_changed(t, p->dir, 0, wd - od)) || (rc = nm_dir_changed(t, q->dir, 0, od - wd)))
		return txn_fail(t, rc == -ENOENT ? -EIO : rc);
	named_again(t, o);
	named_again(t, w);
	o->ctime_ns = w->ctime_ns = (i64)now_ns(t->b);
	ev_pins_changed(t->b);
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
	if ((rc = nm_unhook(t, e, o)) || (rc = nm_add(t, dir2, BFS_EK_NAME, name2, len2, o, e->owner, NULL))) return rc;
	nm_set_nlink(t, o, S_ISDIR(o->mode) ? -2 : -1);
	if (S_ISDIR(o->mode)) {
		o->flags &= (u8)~BFS_OF_EMPTIED;
		ev_pins_changed(t->b);
	} else {
		named_again(t, o);
		ev_regrade(t->b, o->slot);
	}
	o->ctime_ns = (i64)now_ns(t->b);
	return 0;
}

/* gone: two objects that have lost a name, 0: none */
static int rename_in(struct txn *t, u64 dir, const void *name, size_t len, u64 dir2, const void *name2, size_t len2, u32 flags, u64 *gone)
{
	struct view *v = tview(t);
	struct ht_entry e, old[2];
	int rc = 0, nold = 0;
	if (!nm_dir(v, dir, &rc) || !nm_dir(v, dir2, &rc)) return rc;
	if ((rc = nm_seen(v, dir, name, len, &e))) return rc;
	rc = nm_seen(v, dir2, name2, len2, &old[0]);
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
		if (d2 && (rc = nm_dir_empty(v, old[i].ino))) return rc;
		gone[i] = old[i].ino;
	}
	return replace(t, &e, dir2, name2, len2, old, nold);
}

int bfs_rename(struct bfs *b, u64 dir, const void *name, size_t len, u64 dir2, const void *name2, size_t len2, u32 flags)
{
	struct txn *t;
	u64 gone[2] = {0};
	int rc;
	if ((rc = nm_ok(name, len)) || (rc = nm_ok(name2, len2))) return rc;
	if (flags & ~(u32)(BFS_RENAME_NOREPLACE | BFS_RENAME_EXCHANGE) || flags == (BFS_RENAME_NOREPLACE | BFS_RENAME_EXCHANGE)) return -EINVAL;
	if (is_syn(dir) || is_syn(dir2)) return bfs_fail(b, -EXDEV, "blocks don't leave or enter a block namespace by rename"); /* mv copies */
	if ((rc = seal_named(b, dir, name, len))) return rc;
	if ((flags & BFS_RENAME_EXCHANGE) && (rc = seal_named(b, dir2, name2, len2))) return rc;
	if ((rc = op_begin_room(b, &t))) return rc;
	rc = rename_in(t, dir, name, len, dir2, name2, len2, flags, gone);
	if (!(rc = op_end(b, t, rc))) in_unlinked(b, gone[0]), in_unlinked(b, gone[1]);
	return rc;
}

/* ---- hard links ------------------------------------------------------------------------------------ */
/* nameless: may be one without a name, that gets its first, as private as that of any other first writing */
static int link_in(struct txn *t, u64 ino, u64 dir, const void *name, size_t len, bool nameless, struct bfs_attr *a)
{
	struct view *v = tview(t);
	struct ht_entry e, own;
	int rc = nm_ok(name, len);
	if (rc || !nm_dir(v, dir, &rc)) return rc;
	const struct bfs_obj *c = ob_get(v, ino, &rc);
	if (!c) return rc;
	if (S_ISDIR(c->mode)) return -EPERM;
	if ((!c->nlink && !nameless) || (c->state == BFS_ST_NEW && c->owner != t->b->slot + 1)) return -ENOENT;
	if (c->nlink >= BFS_LINK_MAX) return -EMLINK;
	if (!(rc = ht_find(v, dir, BFS_EK_NAME, name, len, &e))) return -EEXIST;
	if (rc != -ENOENT) return rc;
	if (!c->nlink) own = (struct ht_entry){.kind = BFS_EK_NAME, .owner = c->owner};
	else if ((rc = ht_by_cookie(v, c->hash, c->parent, c->cookie, &own))) return rc == -ENOENT ? -EIO : rc;
	if (own.kind == BFS_EK_KEY) return bfs_fail(t->b, -EPERM, "a block has one name");
	struct bfs_obj *o = ob_cow(t, ino);
	if (!o) return t->poison;
	if (!o->nlink && (rc = bt_del(t, KEY(BFS_T(BFS_T_ORPHAN, t->b->slot), o->slot, 0)))) return txn_fail(t, rc == -ENOENT ? -EIO : rc);
	named_again(t, o); /* with several names it isn't evicted, whatever its class */
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
	struct bfs_inode *in = sl_nameless(b, ino);
	int rc = in ? 0 : seal_first(b, ino);
	if (!rc && !(rc = op_begin_room(b, &t))) rc = op_end(b, t, link_in(t, ino, dir, name, len, in, a ? a : &tmp));
	if (in) rc = sl_named(b, in, rc);
	if (!rc && in && a && !in_batch(b)) {
		/* sealed by now; what others have made of it since isn't this call's matter */
		if (!bfs_getattr(b, ino, &tmp)) *a = tmp;
		return 0;
	}
	if (!rc && a && S_ISREG(a->mode)) in_overlay_attr(b, a);
	return rc;
}
