/* Objects that are open on this host: locks and table.  Their maps are in map.c, handles in handle.c;
 * what is announced of them before it is read, in hazard.c.
 *
 * Locks: inode.lock -> wlock -> ilock.  Under wlock nobody waits for an inode's lock;
 * what eviction and unlink need of an inode (is it open?) is under ilock. */
#include <fcntl.h>
#include <sys/stat.h>
#include "backing.h"
#include "file.h"

/* ---- locks -------------------------------------------------------------------------- */
int in_lock(struct bfs *b, struct bfs_inode *in, bool excl)
{
	if (b->m->ops->lock) { /* a simulated host is one thread: one lock for both */
		b->m->ops->lock(b->m, &in->mx);
		return 0;
	}
	if (!in_batch(b)) return excl ? pthread_rwlock_wrlock(&in->lock) : pthread_rwlock_rdlock(&in->lock);
	/* this thread has wlock: who has the lock may be waiting for it */
	if (excl ? pthread_rwlock_trywrlock(&in->lock) : pthread_rwlock_tryrdlock(&in->lock)) return bfs_fail(b, -EBUSY, "the file is in use by another thread; it can't be waited for inside a batch");
	return 0;
}

void in_unlock(struct bfs *b, struct bfs_inode *in)
{
	if (b->m->ops->unlock) b->m->ops->unlock(b->m, &in->mx);
	else pthread_rwlock_unlock(&in->lock);
}

struct bfs_inode *in_alloc(struct bfs *b, u64 ino)
{
	struct bfs_inode *in = xalloc(b, sizeof *in);
	pthread_rwlockattr_t a;
	if (!in) return NULL;
	in->rfd = in->wfd = -1;
	in->ino = ino, in->row = -1, in->as = (u8)(b->slot + 1);
	pthread_rwlockattr_init(&a);
#ifdef __GLIBC__
	/* a seal isn't starved by a stream of readers; nobody takes the lock twice */
	pthread_rwlockattr_setkind_np(&a, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
	pthread_rwlock_init(&in->lock, &a);
	pthread_rwlockattr_destroy(&a);
	pthread_mutex_init(&in->mx, NULL);
	return in;
}

void in_destroy(struct bfs *b, struct bfs_inode *in)
{
	if (!in) return;
	if (b->back) bk_forget(b, in);
	pthread_rwlock_destroy(&in->lock);
	pthread_mutex_destroy(&in->mx);
	xfree(b, in->ext);
	xfree(b, in->sums);
	xfree(b, in->wsum);
	xfree(b, in->seen);
	xfree(b, in->new_sums);
	xfree(b, in->new_ext);
	xfree(b, in);
}

/* ---- the table ------------------------------------------------------------------------------- */
static u32 bucket(struct bfs *b, u64 ino) { return (u32)((ino * 0x9E3779B97F4A7C15ull) >> 40) & (b->ihash_size - 1); } /* of at most 2^24 */

struct bfs_inode *in_find(struct bfs *b, u64 ino)
{
	if (!b->ihash) return NULL;
	for (struct bfs_inode *in = b->ihash[bucket(b, ino)]; in; in = in->next)
		if (in->ino == ino && !in->stale) return in;
	return NULL;
}

static void link_in(struct bfs *b, struct bfs_inode *in)
{
	struct bfs_inode **p = &b->ihash[bucket(b, in->ino)];
	in->next = *p;
	*p = in;
}

/* ilock is held.  Hundreds of thousands of files may be open: the chains stay short. */
static void insert(struct bfs *b, struct bfs_inode *in)
{
	u32 old = b->ihash_size;
	struct bfs_inode **was = b->ihash, **n;
	if (b->nihash >= old && old < 1u << 22 && (n = xalloc(b, 2 * (size_t)old * sizeof *n))) {
		b->ihash = n, b->ihash_size = 2 * old;
		for (u32 i = 0; i < old; i++)
			while (was[i]) {
				struct bfs_inode *x = was[i];
				was[i] = x->next;
				link_in(b, x);
			}
		xfree(b, was);
	}
	link_in(b, in);
	b->nihash++;
}

static void removed(struct bfs *b, struct bfs_inode *in)
{
	for (struct bfs_inode **p = &b->ihash[bucket(b, in->ino)]; *p; p = &(*p)->next)
		if (*p == in) {
			*p = in->next;
			b->nihash--;
			break;
		}
	if (in->in_batch) b->nbatch--;
}

bool in_is_open(struct bfs *b, u64 ino)
{
	lk(b, &b->ilock);
	bool open = in_find(b, ino) != NULL;
	unlk(b, &b->ilock);
	return open;
}

static u32 ev_bucket(struct bfs *b, u64 ino) { return (u32)((ino * 0x9E3779B97F4A7C15ull) >> 36) & (b->evicting_cap - 1); }

static bool evicting(struct bfs *b, u64 ino)
{
	if (!b->nevicting) return false;
	for (u32 i = ev_bucket(b, ino); b->evicting[i]; i = (i + 1) & (b->evicting_cap - 1))
		if (b->evicting[i] == ino) return true;
	return false;
}

static void ev_add(struct bfs *b, u64 ino)
{
	u32 i = ev_bucket(b, ino);
	while (b->evicting[i] && b->evicting[i] != ino) i = (i + 1) & (b->evicting_cap - 1);
	b->nevicting += !b->evicting[i];
	b->evicting[i] = ino;
}

bool in_evict_begin(struct bfs *b, u64 ino)
{
	bool ok = true;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ino);
	if (in) {
		in->wanted = in->skipped = true;
		ok = false;
	} else if (b->ihash) {
		if (2 * b->nevicting >= b->evicting_cap) {
			u32 cap = b->evicting_cap ? 2 * b->evicting_cap : 64, old = b->evicting_cap;
			u64 *n = xalloc(b, cap * sizeof *n), *was = b->evicting;
			if (n) {
				b->evicting = n, b->evicting_cap = cap, b->nevicting = 0;
				for (u32 i = 0; i < old; i++)
					if (was[i]) ev_add(b, was[i]);
				xfree(b, was);
			} else {
				ok = false;
			}
		}
		if (ok) ev_add(b, ino);
	}
	unlk(b, &b->ilock);
	return ok;
}

void in_evict_end(struct bfs *b)
{
	lk(b, &b->ilock);
	if (b->nevicting) memset(b->evicting, 0, b->evicting_cap * sizeof *b->evicting);
	b->nevicting = 0;
	unlk(b, &b->ilock);
}

void in_set_state(struct bfs *b, struct bfs_inode *in, u8 state)
{
	lk(b, &b->ilock);
	in->state = state;
	unlk(b, &b->ilock);
}

/* An inode of the table that stands for o.  Own unsealed ones are ahead of the tree, as are
 * those with a seal under way or in doubt.  Only a file whose create got lost with the lead isn't: its
 * number is another host's file in the history that counts, and whoever makes it hasn't heard yet. */
static struct bfs_inode *present(struct bfs *b, u64 ino, const struct bfs_obj *o)
{
	struct bfs_inode *x = in_find(b, ino);
	if (!x || x->sealing || x->frozen || x->reload) return x;
	if (x->state == BFS_ST_NEW ? o->owner == b->slot + 1 : x->gone || x->state != BFS_ST_SEALED || x->version >= o->version) return x;
	x->stale = true; /* sealed by another host: who has it open keeps what he has */
	return NULL;
}

/* A reference to what is in the table; else fresh, if given, goes into it.  *out NULL: nothing there. */
static int join_table(struct bfs *b, u64 ino, const struct bfs_obj *o, bool write, struct bfs_inode *fresh, struct bfs_inode **out)
{
	lk(b, &b->ilock);
	struct bfs_inode *x = evicting(b, ino) ? NULL : present(b, ino, o);
	int rc = evicting(b, ino) || (x && x->dying) ? -ENOENT : 0;
	if (!rc && !x && fresh) insert(b, x = fresh);
	if (!rc && x) x->opens++, x->writers += write, x->uses++;
	unlk(b, &b->ilock);
	if (!rc && x && write) atomic_fetch_add(&b->nwriting, 1);
	*out = rc ? NULL : x;
	return rc;
}

static void drop_ref(struct bfs *b, struct bfs_inode *in, bool write, bool closed) /* ilock is held, and given back */
{
	in->writers -= write, in->nclosed -= closed;
	bool last = !--in->opens && !in->deferred && !in->orphan_wait && !in->settling, skipped = last && in->skipped;
	if (last) removed(b, in);
	unlk(b, &b->ilock);
	if (write) atomic_fetch_sub(&b->nwriting, 1);
	if (skipped) ev_regrade(b, INO_SLOT(in->ino)); /* also one that eviction has looked at since the release began */
	if (last) in_destroy(b, in);
}

/* May this host open o? */
static int may_open(struct view *v, const struct bfs_obj *o, bool write)
{
	struct bfs *b = v->b;
	int rc;
	bool mine = o->owner == b->slot + 1;
	if (S_ISDIR(o->mode)) return -EISDIR;
	if (S_ISLNK(o->mode)) return -ELOOP;
	if (!S_ISREG(o->mode)) return -ENXIO;
	if ((o->state == BFS_ST_NEW || o->state == BFS_ST_ABANDONED) && !mine) return -ENOENT; /* private */
	if (write && o->owner && !mine) return bfs_fail(b, -EBUSY, "host slot %u is writing this file", o->owner - 1u);
	return write && (rc = nm_elsewhere(v, o)) ? (rc > 0 ? -ENOENT : rc) : 0;
}

/* The other half of rule 16: in the table, thus announced; is it still so in the newest root? */
int in_check(struct bfs *b, struct bfs_inode *in)
{
	struct rd r;
	int rc;
	if (atomic_load(&in->checked)) return 0;
	mm_fence(b->m);
	if (BFS_MUT(MUT_HAZARD_NO_CHECK) || BFS_MUT(MUT_HAZARD_OLD_SNAPSHOT)) return 0;
	if ((rc = rd_begin(b, &r))) return rc;
	const struct bfs_obj *o = ob_get(&r.v, in->ino, &rc);
	lk(b, &b->ilock);
	/* what this host has made of it since is right by itself */
	if (in->sealing || !in_sealed(in)) rc = 0;
	else if (o && (o->version != in->version || may_open(&r.v, o, false))) rc = -ESTALE;
	if (rc) in->stale = true;
	else atomic_store(&in->checked, true);
	unlk(b, &b->ilock);
	rd_end(&r);
	return rc;
}

int in_get(struct bfs *b, u64 ino, bool write, struct bfs_inode **out)
{
	struct bfs_inode *in;
	struct rd r;
	int rc;
	if (write && b->o.readonly) return -EROFS;
	if (b->client) return -EOPNOTSUPP; /* it has no table of open files */
	for (int tries = 0; tries < 8; tries++) {
		if ((rc = rd_begin(b, &r))) return rc;
		in = *out = NULL;
		const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
		if (o) rc = may_open(&r.v, o, write);
		if (!rc) rc = join_table(b, ino, o, write, NULL, out);
		if (!rc && !*out) {
			if (!(in = in_alloc(b, ino))) rc = -ENOMEM;
			if (!rc) rc = in_load(&r.v, o, in);
			/* unsealed ones stand in the table, unless this look is an old one or a crash left them */
			if (!rc && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY)) rc = tries < 7 ? -ESTALE : bfs_fail(b, -EBUSY, "object %llu was being written when this host crashed, and isn't recovered yet", (unsigned long long)ino);
			if (!rc && b->back && (rc = bk_fd(b, in)) > 0) rc = 0; /* a miss is told at the open */
			if (!rc) rc = join_table(b, ino, o, write, in, out);
			if (*out != in) in_destroy(b, in);
		}
		rd_end(&r);
		if (rc == -ESTALE && in) continue;
		if (rc) return rc;
		if ((*out)->frozen) sl_learn(b, *out);
		if (!(rc = in_check(b, *out))) return 0;
		lk(b, &b->ilock);
		drop_ref(b, *out, write, false);
		if (rc != -ESTALE) return rc;
	}
	return rc;
}

/* The last one finishes what a close didn't, while it still has its reference, so that an
 * open which comes meanwhile finds the inode and not a half-done tree.  It goes only if
 * nothing came in that time: no other open, and no unlink, which leaves a file that it
 * finds in the table to whoever releases it last (wanted). */
static void put(struct bfs *b, struct bfs_inode *in, bool write, bool closed)
{
	for (;;) {
		lk(b, &b->ilock);
		bool last = in->opens == 1 && !in->dying, wanted = in->wanted;
		u32 uses = in->uses;
		if (last) in->wanted = false;
		unlk(b, &b->ilock);
		if (last) sl_last(b, in, wanted);
		lk(b, &b->ilock);
		if (!last || (in->uses == uses && !in->wanted)) {
			drop_ref(b, in, write, closed);
			return;
		}
		unlk(b, &b->ilock);
	}
}
void in_put(struct bfs *b, struct bfs_inode *in, bool write) { put(b, in, write, false); }
void in_put_closed(struct bfs *b, struct bfs_inode *in) { put(b, in, true, true); }

void in_unlinked(struct bfs *b, u64 ino)
{
	if (!b->back || !ino || in_batch(b)) return;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ino);
	if (in && (in->opens || !in->settling || in->dying)) in = NULL;
	if (in) in->opens++, in->uses++;
	unlk(b, &b->ilock);
	if (in) in_put(b, in, false);
}

int in_insert_new(struct bfs *b, struct bfs_inode *in)
{
	lk(b, &b->ilock);
	in->opens = in->writers = 1;
	atomic_store(&in->checked, true);
	insert(b, in);
	unlk(b, &b->ilock);
	atomic_fetch_add(&b->nwriting, 1);
	return 0;
}

void in_keep(struct bfs *b, struct bfs_inode *in)
{
	lk(b, &b->ilock);
	atomic_store(&in->checked, true);
	insert(b, in);
	unlk(b, &b->ilock);
}

void in_batch_mark(struct bfs *b, struct bfs_inode *in)
{
	if (!in_batch(b)) return;
	lk(b, &b->ilock);
	if (!in->in_batch) in->in_batch = true, b->nbatch++;
	unlk(b, &b->ilock);
}

void fl_txn_end(struct bfs *b, bool committed)
{
	al_txn_end(b, committed);
	if (b->back) bk_txn_end(b, committed);
	if (!committed && b->nevicting) ev_pins_changed(b); /* they are there again */
	in_evict_end(b);
	lk(b, &b->ilock);
	for (u32 i = 0; b->nbatch && i < b->ihash_size; i++)
		for (struct bfs_inode *in = b->ihash[i]; in; in = in->next)
			if (in->in_batch) {
				in->in_batch = false, b->nbatch--;
				if (!committed) __atomic_store_n(&in->reload, true, __ATOMIC_RELEASE);
			}
	unlk(b, &b->ilock);
}

/* ---- attributes, places ------------------------------------------------------------------------------ */
/* Size and times of a file that is being written here are the inode's.  utimes(2) goes to
 * the tree, and takes the time of the last write away (bfs_setattr). */
void in_overlay_attr(struct bfs *b, struct bfs_attr *a)
{
	bool writing = a->state == BFS_ST_NEW || a->state == BFS_ST_DIRTY;
	if ((!writing && !b->back) || !atomic_load_explicit(&b->nwriting, memory_order_acquire)) return;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, a->ino);
	if (in && b->back && !in->gone && in->rfd >= 0 && (writing || in->foreign)) {
		struct bk_stat s;
		bk_refresh(b, in);
		if (!bk_stat(b, in, &s)) a->granules = s.granules;
	}
	if (in && !in->gone && (writing ? a->owner == b->slot + 1 : in->foreign)) {
		i64 w = atomic_load(&in->wtime);
		a->size = atomic_load(&in->size);
		if (w) a->mtime_ns = w;
		if (w > a->ctime_ns) a->ctime_ns = w;
	}
	unlk(b, &b->ilock);
}

/* utimes(2), in its transaction: what was written so far doesn't change the mtime any more.
 * true: something has been. */
bool in_time_set(struct bfs *b, u64 ino)
{
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, ino);
	if (in && in->foreign) bk_refresh(b, in);
	bool written = in && atomic_exchange(&in->wtime, 0);
	unlk(b, &b->ilock);
	return written;
}

/* Behind it: nor may the row say so after a crash. */
void in_time_row(struct bfs *b, u64 ino)
{
	struct bfs_inode *in;
	if (in_batch(b) || in_get(b, ino, false, &in)) return;
	if (!in_lock(b, in, true)) {
		if (in->rowst != BFS_ROW_FREE) rw_put(b, in, in->rowst);
		in_unlock(b, in);
	}
	in_put(b, in, false);
}

int bfs_extents(struct bfs *b, u64 ino, struct bfs_extent *e, int max)
{
	struct bfs_inode *in;
	int n = 0, rc = in_get(b, ino, false, &in);
	if (rc) return rc;
	if (!(rc = in_lock(b, in, false))) {
		for (int i = 0; i < in->next_ext && n < max; i++)
			if (in->ext[i].addr) e[n++] = in->ext[i];
		in_unlock(b, in);
	}
	in_put(b, in, false);
	return rc ? rc : n;
}

int in_attach(struct bfs *b)
{
	b->ihash_size = 1024;
	b->ihash = xalloc(b, b->ihash_size * sizeof *b->ihash);
	b->rows_used = xalloc(b, b->sb.rows);
	b->rowseq = xalloc(b, b->sb.rows * sizeof *b->rowseq);
	return b->ihash && b->rows_used && b->rowseq ? 0 : -ENOMEM;
}

void in_detach(struct bfs *b)
{
	for (u32 i = 0; b->ihash && i < b->ihash_size; i++)
		while (b->ihash[i]) {
			struct bfs_inode *in = b->ihash[i];
			b->ihash[i] = in->next;
			in_destroy(b, in);
		}
	for (u32 i = 0; i < 256; i++) xfree(b, atomic_load(&b->hchunk[i]));
	xfree(b, atomic_load(&b->bounce));
	xfree(b, b->ihash);
	xfree(b, b->rows_used);
	xfree(b, b->rowseq);
	xfree(b, b->evicting);
	b->ihash = NULL, b->ihash_size = b->nihash = 0, b->evicting = NULL;
}
