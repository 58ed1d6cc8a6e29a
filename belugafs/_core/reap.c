/* Directories that eviction has emptied.
 *
 * An engine makes directories by the thousand for its blocks, and never removes one.  When slots
 * get scarce, those that eviction took the last entry from go, before any more blocks do.
 *
 * They are told from directories that somebody made and wants by a flag, which a directory gets
 * when an eviction takes its last entry, and loses when anything is made in it or something of it
 * is set by hand (mode, owner, times, attributes, name).  What is more, a directory stays that
 * lies in the root, is pinned, or has extended attributes; that is open; and that a path led to or
 * that a name was looked up in, in the last reap_after_s seconds.  The kernel asks for a name again
 * after one second (at once, when it knows such a directory from a listing only), so whoever makes
 * a file by its path has been seen before he gets there: makedirs and create find the directory
 * there, or make it anew, and nothing comes between them.  The time is as short as that allows:
 * somebody who walks through all directories for ever keeps those that he comes by within it.
 *
 * They are found by looking through the slots, since a record of them would have to be kept in
 * step; not again before it is known that there is something to find.
 *
 * Blocks that each have a directory of their own can come and go faster than that: the slots would
 * be full of directories too young to go, and all blocks be evicted for the slots of more.  So
 * those emptied last stand in a ring in memory, too.  When it is full, a quarter of the slots, and
 * when nothing else is left, the first in it go although they are young: those that nobody has
 * come by since they were emptied.  The others have their time in any case, and then ENOSPC is the
 * answer.  What is at stake is the second for which the kernel may know the name from before. */
#include <sys/stat.h>
#include "evict.h"

static void young_put(struct ev *ev, struct young y) { ev->young[(ev->young_at + ev->nyoung++) % ev->young_cap] = y; }

int ev_emptied(struct txn *t, u64 dir)
{
	struct ev *ev = t->b->ev;
	int rc = 0;
	const struct bfs_obj *d = ob_get(tview(t), dir, &rc);
	if (!d || !S_ISDIR(d->mode)) return rc && rc != -ESTALE ? rc : -EIO;
	if (d->u.d.entries || dir == BFS_ROOT_INO || d->parent == BFS_ROOT_INO) return 0;
	struct bfs_obj *o = ob_cow(t, dir);
	if (!o) return t->poison ? t->poison : -EIO;
	o->flags |= BFS_OF_EMPTIED;
	u32 due = ev_seconds(t->b) + t->b->o.reap_after_s + 1;
	if (due < ev->reap_s) ev->reap_s = due;
	lk(t->b, &ev->mx);
	u64 *p = ev_at(t->b, tview(t), o->slot);
	if (p) {
		if (ev->nyoung == ev->young_cap) ev->young_at = (ev->young_at + 1) % ev->young_cap, ev->nyoung--;
		young_put(ev, (struct young){dir, *p & ~EV_BITS});
	}
	unlk(t->b, &ev->mx);
	return 0;
}

bool ev_dir_seen(struct bfs *b, const struct bfs_attr *a)
{
	if (!S_ISDIR(a->mode) || !(a->flags & BFS_OF_EMPTIED) || b->o.readonly) return false;
	if (!atomic_load(&b->leader)) {
		bfs_touch(b, a->ino);
		return false;
	}
	/* Between two transactions, so that none is under way that has looked at the stamp before; and
	 * not through the ring, which forgets when it is full. */
	bool batch = in_batch(b);
	if (!batch) lk(b, &b->wlock);
	ev_admit(b, INO_SLOT(a->ino), false);
	if (!batch) unlk(b, &b->wlock);
	return !batch;
}

/* ---- open directories ------------------------------------------------------------------------ */
static u32 held_at(const struct ev *ev, u64 ino) /* under mx; nheld: isn't */
{
	u32 i = 0;
	while (i < ev->nheld && ev->held[i].ino != ino) i++;
	return i;
}

int bfs_opendir(struct bfs *b, u64 ino)
{
	struct ev *ev = b->ev;
	struct bfs_attr a;
	int rc = 0;
	if (ino >> 63) return bfs_getattr(b, ino, &a);
	lk(b, &ev->mx);
	u32 i = held_at(ev, ino);
	if (i == ev->nheld && i == ev->held_cap) {
		u32 cap = ev->held_cap ? 2 * ev->held_cap : 16;
		void *n = xalloc(b, cap * sizeof *ev->held), *old = ev->held;
		if (n && old) memcpy(n, old, ev->nheld * sizeof *ev->held);
		if (n) ev->held = n, ev->held_cap = cap;
		else rc = -ENOMEM;
		if (n) xfree(b, old);
	}
	if (!rc && i == ev->nheld) ev->held[ev->nheld++].ino = ino, ev->held[i].opens = 0;
	if (!rc) ev->held[i].opens++;
	unlk(b, &ev->mx);
	if (rc) return rc;
	/* then: is it there, and no transaction under way that takes it away? */
	if (!(rc = bfs_getattr(b, ino, &a)) && !S_ISDIR(a.mode)) rc = -ENOTDIR;
	if (rc) bfs_releasedir(b, ino);
	return rc;
}

void bfs_releasedir(struct bfs *b, u64 ino)
{
	struct ev *ev = b->ev;
	lk(b, &ev->mx);
	u32 i = held_at(ev, ino);
	if (i < ev->nheld && !--ev->held[i].opens) ev->held[i] = ev->held[--ev->nheld];
	unlk(b, &ev->mx);
}

/* ---- reaping ------------------------------------------------------------------------------------ */
static bool unwanted(const struct bfs_obj *o)
{
	if (!S_ISDIR(o->mode) || !(o->flags & BFS_OF_EMPTIED) || o->flags & (BFS_OF_PINNED | BFS_OF_PINNED_SOFT | BFS_OF_NSBLOCK)) return false;
	return !o->u.d.entries && !o->blob_len && o->parent && o->parent != BFS_ROOT_INO;
}

/* Second from which on o may go; UINT32_MAX: it stays. */
static u32 due(struct txn *t, const struct bfs_obj *o)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	if (!unwanted(o)) return UINT32_MAX;
	lk(b, &ev->mx);
	u64 *p = ev_at(b, tview(t), o->slot), last = p ? *p >> 32 : UINT32_MAX;
	if (held_at(ev, ob_ino(o)) < ev->nheld) last = ev_seconds(b);
	unlk(b, &ev->mx);
	u64 made = o->mtime_ns > 0 ? (u64)o->mtime_ns / 1000000000u : 0;
	if (made > last) last = made;
	last += b->o.reap_after_s + 1; /* seconds are cut off */
	return last < UINT32_MAX ? (u32)last : UINT32_MAX;
}

static int reap(struct txn *t, u64 ino)
{
	struct ht_entry e;
	int rc = 0;
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (!o) return txn_fail(t, rc);
	if ((rc = ht_by_cookie(tview(t), o->hash, o->parent, o->cookie, &e)) || e.ino != ino)
		return txn_fail(t, rc && rc != -ENOENT ? rc : bfs_fail(t->b, -EIO, "directory %llu: its entry is gone; run fsck.belugafs -n", (unsigned long long)ino));
	if ((rc = ev_remove(t, &e))) return txn_fail(t, rc);
	atomic_fetch_add_explicit(&t->b->reaped, 1, memory_order_relaxed);
	return 0;
}

int ev_reap(struct txn *t, u32 want)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	u32 now = ev_seconds(b), n = 0, next = UINT32_MAX, end = t->root->slot_virgin < b->sb.inodes ? t->root->slot_virgin : b->sb.inodes;
	if (now < ev->reap_s || end < 3) return 0;
	ev_drain(b);
	ev->reap_s = UINT32_MAX; /* what is emptied on the way (a parent) lowers it */
	for (u32 k = 2; k < end && n < want && !t->poison && !(n && pg_few(t)); k++) {
		u32 slot = ev->reap_at = ev->reap_at + 1 < end && ev->reap_at > 1 ? ev->reap_at + 1 : 2;
		int rc = 0;
		const struct bfs_obj *o = ob_slot(tview(t), slot, &rc);
		u32 at = o ? due(t, o) : UINT32_MAX;
		if (rc) return txn_fail(t, rc);
		if (at > now || ob_ino(o) == t->keep) {
			if (at < next) next = at;
			continue;
		}
		if (reap(t, ob_ino(o))) return t->poison;
		n++;
	}
	if (n == want || (n && pg_few(t))) ev->reap_s = 0; /* not all was looked at: there may be more */
	else if (n && now + 1 < ev->reap_s) ev->reap_s = now + 1; /* if this transaction isn't committed */
	if (next < ev->reap_s) ev->reap_s = next;
	return t->poison ? t->poison : (int)n;
}

/* Before their time, those that nobody has come by since. */
static int reap_young(struct txn *t, u32 want)
{
	struct bfs *b = t->b;
	struct ev *ev = b->ev;
	u32 n = 0, now = ev_seconds(b);
	for (u32 left = ev->nyoung; left && n < want && !t->poison && !(n && pg_few(t)); left--) {
		struct young y = ev->young[ev->young_at];
		int rc = 0;
		ev->young_at = (ev->young_at + 1) % ev->young_cap, ev->nyoung--;
		const struct bfs_obj *o = ob_get(tview(t), y.ino, &rc);
		if (!o && rc != -ESTALE) return txn_fail(t, rc);
		if (!o || !unwanted(o)) continue;
		lk(b, &ev->mx);
		u64 *p = ev_at(b, tview(t), o->slot), stamp = p ? *p & ~EV_BITS : y.stamp;
		bool stays = held_at(ev, y.ino) < ev->nheld || (stamp != y.stamp && (stamp >> 32) + b->o.reap_after_s + 1 > now);
		if (stays || y.ino == t->keep) young_put(ev, y);
		unlk(b, &ev->mx);
		if (stays || y.ino == t->keep) continue;
		if (reap(t, y.ino)) return t->poison;
		n++;
	}
	return t->poison ? t->poison : (int)n;
}

int ev_make_slots(struct txn *t)
{
	enum { AT_ONCE = 16 };
	struct ev *ev = t->b->ev;
	/* of what would rather stay, no more than a thousandth of all */
	u32 some = t->b->sb.inodes / 1024, few = some < 1 ? 1 : some < AT_ONCE ? some : AT_ONCE;
	ev_drain(t->b);
	int n = ev_reap(t, AT_ONCE);
	if (!n && ev->nyoung == ev->young_cap) n = reap_young(t, few);
	if (!n) n = ev_evict_some(t, few);
	if (!n) n = reap_young(t, few);
	return t->poison ? t->poison : n;
}

/* Ahead of need, so that what is made next finds a slot: while fewer than 1 of SCARCE are free. */
int ev_tick(struct bfs *b)
{
	enum { SCARCE = 16, AT_ONCE = 256 };
	struct txn *t;
	struct rd r;
	int rc;
	if (b->o.evict_none || b->o.readonly) return 0;
	if ((rc = rd_begin(b, &r))) return rc;
	bool scarce = b->sb.inodes - r.v.root->slots_used < b->sb.inodes / SCARCE;
	rd_end(&r);
	if (!scarce || (rc = op_begin(b, &t))) return rc;
	rc = ev_reap(t, AT_ONCE);
	return op_end(b, t, rc < 0 ? rc : 0);
}
