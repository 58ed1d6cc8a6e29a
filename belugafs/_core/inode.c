/* Objects that are open on this host: table, handles, hazards, and the map of a file.
 *
 * Who reads data announces it first: an open inode stands in the table with its extents,
 * a reader without an open stands in a hazard slot.  Then he checks that the newest root
 * this host has applied still gives the object these extents (rule 16).  bfs_apply_scan
 * takes the newest root, passes a fence and reads table and slots: who isn't in them yet
 * will check against that root or a newer one.  Both sides go through ilock, or through a
 * full fence on either side.
 *
 * Locks: inode.lock -> wlock -> ilock.  Under wlock nobody waits for an inode's lock;
 * what eviction and unlink need of an inode (is it open?) is under ilock.  Readers of a
 * file hold its lock shared, so its map and size stand still; the map is changed under
 * lock and ilock, so a scan may read it under ilock alone. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "file.h"

#define HPER 4096u /* handles of a chunk */

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

/* ---- the map -------------------------------------------------------------------------- */
int mp_at(const struct bfs_inode *in, u64 g)
{
	int lo = 0, hi = in->next_ext;
	while (lo < hi) {
		int m = (lo + hi) / 2;
		if (in->ext[m].file_granule + in->ext[m].len <= g) lo = m + 1;
		else hi = m;
	}
	return lo;
}

bool mp_is_overlay(const struct bfs_inode *in, u64 fg, u64 end)
{
	for (int i = mp_at(in, fg); fg < end; i++) {
		if (i == in->next_ext || in->ext[i].file_granule > fg || !in->ext[i].overlay || !in->ext[i].addr) return false;
		fg = in->ext[i].file_granule + in->ext[i].len;
	}
	return true;
}

static bool map_room(struct bfs *b, struct bfs_inode *in, int more)
{
	if (in->next_ext + more <= in->ext_cap) return true;
	int cap = in->ext_cap ? 2 * in->ext_cap : 8;
	while (cap < in->next_ext + more) cap *= 2;
	struct bfs_extent *n = xalloc(b, (size_t)cap * sizeof *n);
	if (!n) return false;
	if (in->next_ext) memcpy(n, in->ext, (size_t)in->next_ext * sizeof *n);
	xfree(b, in->ext);
	in->ext = n, in->ext_cap = cap;
	return true;
}

static int map_set(struct bfs *b, struct bfs_inode *in, u64 fg, u64 len, u64 addr, u32 overlay)
{
	u64 end = fg + len;
	if (!len) return 0;
	if (!map_room(b, in, 2)) return -ENOMEM;
	int i = mp_at(in, fg), j = i;
	struct bfs_extent add[3];
	int n = 0;
	while (j < in->next_ext && in->ext[j].file_granule < end) j++;
	if (i < j && in->ext[i].file_granule < fg) { /* left part of the first */
		add[n] = in->ext[i];
		add[n++].len = (u32)(fg - in->ext[i].file_granule);
	}
	if (addr || overlay) add[n++] = (struct bfs_extent){fg, addr, (u32)len, overlay};
	if (i < j && in->ext[j - 1].file_granule + in->ext[j - 1].len > end) { /* right part of the last */
		struct bfs_extent e = in->ext[j - 1];
		u32 cut = (u32)(end - e.file_granule);
		e.file_granule = end, e.len -= cut;
		if (e.addr) e.addr += cut;
		add[n++] = e;
	}
	memmove(in->ext + i + n, in->ext + j, (size_t)(in->next_ext - j) * sizeof *in->ext);
	memcpy(in->ext + i, add, (size_t)n * sizeof *add);
	in->next_ext += n - (j - i);
	return 0;
}

int mp_set(struct bfs *b, struct bfs_inode *in, u64 fg, u64 len, u64 addr, u32 overlay)
{
	lk(b, &b->ilock);
	int rc = map_set(b, in, fg, len, addr, overlay);
	unlk(b, &b->ilock);
	return rc;
}

/* ---- loading ------------------------------------------------------------------------------ */
struct list { struct bfs_extent *e; int n, cap; };
static int list_add(struct bfs *b, struct list *l, struct bfs_extent e)
{
	if (l->n == l->cap) {
		int cap = l->cap ? 2 * l->cap : 16;
		struct bfs_extent *n = xalloc(b, (size_t)cap * sizeof *n);
		if (!n) return -ENOMEM;
		if (l->n) memcpy(n, l->e, (size_t)l->n * sizeof *n);
		xfree(b, l->e);
		l->e = n, l->cap = cap;
	}
	l->e[l->n++] = e;
	return 0;
}

/* An extent as a record has it: inside the pool, in order, not over another one. */
static int list_rec(struct bfs *b, u64 ino, struct list *l, const struct bfs_rec *r)
{
	struct bfs_extent e = {r->k.b, r->x, (u32)r->y, (u32)r->k.c};
	bool hole = e.overlay && !e.addr && r->y >> 32;
	bool ok = e.len && r->k.c <= 1 && e.file_granule + e.len <= granules(SIZE_MAX_BYTES);
	if (ok && !hole) ok = e.addr && e.len <= b->sb.region_granules && al_mem(b, e.addr) && al_mem(b, e.addr + e.len - 1);
	if (ok && l->n) ok = l->e[l->n - 1].file_granule + l->e[l->n - 1].len <= e.file_granule;
	if (!ok) return bfs_fail(b, -EIO, "object %llu: extent at file granule %llu (address %llx, length %u) is impossible; run fsck.belugafs -n", (unsigned long long)ino, (unsigned long long)e.file_granule, (unsigned long long)e.addr, e.len);
	return list_add(b, l, e);
}

/* base without what the overlay covers, and the overlay */
static int resolve(struct bfs *b, const struct list *base, const struct list *over, struct list *out)
{
	int rc = 0, o = 0;
	for (int i = 0; i < base->n && !rc; i++) {
		struct bfs_extent e = base->e[i];
		while (e.len && !rc) {
			while (o < over->n && over->e[o].file_granule <= e.file_granule && !rc) rc = list_add(b, out, over->e[o++]);
			u64 hid = out->n && out->e[out->n - 1].overlay ? out->e[out->n - 1].file_granule + out->e[out->n - 1].len : 0;
			if (rc) break;
			if (hid > e.file_granule) { /* covered from its start */
				u64 cut = min64(hid - e.file_granule, e.len);
				e.file_granule += cut, e.addr += cut, e.len -= (u32)cut;
				continue;
			}
			u64 stop = o < over->n ? over->e[o].file_granule : UINT64_MAX;
			struct bfs_extent p = e;
			p.len = (u32)min64(e.len, stop - e.file_granule);
			rc = list_add(b, out, p);
			e.file_granule += p.len, e.addr += p.len, e.len -= p.len;
		}
	}
	while (o < over->n && !rc) rc = list_add(b, out, over->e[o++]);
	return rc;
}

static int load_sums(struct bfs *b, const struct bfs_obj *o, struct bfs_inode *in)
{
	int rc = 0;
	xfree(b, in->sums);
	in->sums = NULL, in->nsums = 0;
	if (!o->nsums || o->flags & BFS_OF_UNVERIFIED) return 0;
	if (o->nsums > granules(SIZE_MAX_BYTES) || o->nsums != (o->size + b->sb.chunk_bytes - 1) / b->sb.chunk_bytes)
		return bfs_fail(b, -EIO, "object %llu: %u checksums for %llu bytes; run fsck.belugafs -n", (unsigned long long)in->ino, o->nsums, (unsigned long long)o->size);
	if (!(in->sums = xalloc(b, (size_t)o->nsums * sizeof *in->sums))) return -ENOMEM;
	in->nsums = o->nsums;
	if (o->nsums <= BFS_INLINE_SUMS) {
		memcpy(in->sums, o->v.sum, (size_t)o->nsums * sizeof *in->sums);
		return 0;
	}
	/* a leaf that is missing is all zero: nothing but holes (docs/format.md, 12) */
	for (u32 i = 0; i < o->nsums; i += BFS_SUMS) {
		const struct bfs_sums *p = rx_get(b, o->v.sums, o->sums_height, i / BFS_SUMS, BFS_PK_SUMS, &rc);
		if (rc) return rc;
		if (p) memcpy(in->sums + i, p->s, (o->nsums - i < BFS_SUMS ? o->nsums - i : BFS_SUMS) * sizeof *in->sums);
	}
	return 0;
}

int in_load(struct view *v, const struct bfs_obj *o, struct bfs_inode *in)
{
	struct bfs *b = v->b;
	struct list base = {0}, over = {0}, out = {0};
	struct bfs_rec r[32];
	struct bfs_key k = KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0);
	/* a file that another host writes is here what it was when it was sealed last */
	bool mine = !o->owner || o->owner == in->as;
	int n, rc = 0;
	in->base_end = 0;
	if (o->u.f.inl_addr) {
		r[0] = (struct bfs_rec){.k = k, .x = o->u.f.inl_addr, .y = o->u.f.inl_len};
		rc = list_rec(b, in->ino, &base, r);
	}
	while (!rc && (n = bt_range(v, k, r, 32)) != 0) {
		if (n < 0) rc = n;
		for (int i = 0; i < n && !rc; i++) {
			if (r[i].k.c ? mine && r[i].k.b < SCRATCH_FG : 1) rc = list_rec(b, in->ino, r[i].k.c ? &over : &base, &r[i]);
			k.b = r[i].k.b, k.c = r[i].k.c + 1;
		}
	}
	if (base.n) in->base_end = base.e[base.n - 1].file_granule + base.e[base.n - 1].len;
	if (!rc) rc = resolve(b, &base, &over, &out);
	xfree(b, base.e);
	xfree(b, over.e);
	if (!rc) rc = load_sums(b, o, in);
	if (rc) {
		xfree(b, out.e);
		return rc;
	}
	lk(b, &b->ilock);
	struct bfs_extent *old = in->ext;
	in->ext = out.e, in->next_ext = out.n, in->ext_cap = out.cap;
	in->state = mine ? o->state : BFS_ST_SEALED;
	in->cls = o->cls, in->version = o->version, in->flags = o->flags;
	unlk(b, &b->ilock);
	xfree(b, old);
	in->base_size = o->size;
	atomic_store(&in->size, o->size);
	atomic_store(&in->granules, o->granules);
	atomic_store(&in->tree_mtime, o->mtime_ns);
	atomic_store(&in->wtime, 0);
	if (!b->m->coherent) {
		xfree(b, in->seen);
		in->seen = xalloc(b, (o->size / b->sb.chunk_bytes / 64 + 1) * 8);
		if (!in->seen) return -ENOMEM;
	}
	return 0;
}

int in_reload(struct view *v, struct bfs_inode *in)
{
	struct bfs *b = v->b;
	int rc = 0;
	u64 size = atomic_load(&in->size);
	i64 wtime = atomic_load(&in->wtime);
	bool sealed = in->state == BFS_ST_SEALED && in->rowst == BFS_ROW_FREE;
	const struct bfs_obj *o = ob_get(v, in->ino, &rc);
	if (o && sealed && v->t && !in_batch(b) && o->state == BFS_ST_DIRTY && o->owner == b->slot + 1) {
		/* Unsealed by a transaction in doubt, whose caller was told that it failed: what it put into
		 * the overlay (grants, a shorter end) isn't what anybody wrote. */
		if ((rc = sl_back_to_base(v->t, in->ino, o->owner))) return rc;
		o = ob_get(v, in->ino, &rc);
	}
	if (rc == -ESTALE) {
		in->gone = true;
		in->reload = false;
		in->frozen = false;
		in_set_state(b, in, BFS_ST_SEALED);
		return 0;
	}
	if (!o || (rc = in_load(v, o, in))) return rc;
	if (o->state != BFS_ST_SEALED && o->owner == b->slot + 1) {
		atomic_store(&in->size, size);
		atomic_store(&in->wtime, wtime);
	} else {
		in->dirty = false;
		rw_clear(b, in);
	}
	in->reload = false;
	in->frozen = false;
	if (in->state == BFS_ST_SEALED) in->wsum_cap = 0;
	return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */
static u32 bucket(struct bfs *b, u64 ino) { return (u32)((ino * 0x9E3779B97F4A7C15ull) >> 40) & (b->ihash_size - 1); }

struct bfs_inode *in_find(struct bfs *b, u64 ino)
{
	if (!b->ihash) return NULL;
	for (struct bfs_inode *in = b->ihash[bucket(b, ino)]; in; in = in->next)
		if (in->ino == ino && !in->stale) return in;
	return NULL;
}

static void insert(struct bfs *b, struct bfs_inode *in)
{
	struct bfs_inode **p = &b->ihash[bucket(b, in->ino)];
	in->next = *p;
	*p = in;
}

static void removed(struct bfs *b, struct bfs_inode *in)
{
	for (struct bfs_inode **p = &b->ihash[bucket(b, in->ino)]; *p; p = &(*p)->next)
		if (*p == in) {
			*p = in->next;
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
		in->wanted = true;
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
 * those with a seal under way or in doubt. */
static struct bfs_inode *present(struct bfs *b, u64 ino, u32 version)
{
	struct bfs_inode *x = in_find(b, ino);
	if (!x || x->gone || x->sealing || x->frozen || x->reload || x->state != BFS_ST_SEALED || x->version >= version) return x;
	x->stale = true; /* sealed by another host: who has it open keeps what he has */
	return NULL;
}

/* A reference to what is in the table; else fresh, if given, goes into it.  *out NULL: nothing there. */
static int join_table(struct bfs *b, u64 ino, u32 version, bool write, struct bfs_inode *fresh, struct bfs_inode **out)
{
	lk(b, &b->ilock);
	struct bfs_inode *x = evicting(b, ino) ? NULL : present(b, ino, version);
	int rc = evicting(b, ino) || (x && x->dying) ? -ENOENT : 0;
	if (!rc && !x && fresh) insert(b, x = fresh);
	if (!rc && x) x->opens++, x->writers += write, x->uses++;
	unlk(b, &b->ilock);
	if (!rc && x && write) atomic_fetch_add(&b->nwriting, 1);
	*out = rc ? NULL : x;
	return rc;
}

static void drop_ref(struct bfs *b, struct bfs_inode *in, bool write) /* ilock is held, and given back */
{
	in->writers -= write;
	bool last = !--in->opens && !in->deferred && !in->orphan_wait;
	if (last) removed(b, in);
	unlk(b, &b->ilock);
	if (write) atomic_fetch_sub(&b->nwriting, 1);
	if (last) in_destroy(b, in);
}

/* May this host open o? */
static int may_open(struct bfs *b, const struct bfs_obj *o, bool write)
{
	bool mine = o->owner == b->slot + 1;
	if (S_ISDIR(o->mode)) return -EISDIR;
	if (S_ISLNK(o->mode)) return -ELOOP;
	if (!S_ISREG(o->mode)) return -ENXIO;
	if ((o->state == BFS_ST_NEW || o->state == BFS_ST_ABANDONED) && !mine) return -ENOENT; /* private */
	if (write && o->owner && !mine) return bfs_fail(b, -EBUSY, "host slot %u is writing this file", o->owner - 1u);
	return 0;
}

/* The other half of rule 16: in the table, thus announced; is it still so in the newest root? */
static int check(struct bfs *b, struct bfs_inode *in)
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
	if (in->sealing || in->state != BFS_ST_SEALED) rc = 0;
	else if (o && (o->version != in->version || may_open(b, o, false))) rc = -ESTALE;
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
	for (int tries = 0; tries < 8; tries++) {
		if ((rc = rd_begin(b, &r))) return rc;
		in = *out = NULL;
		const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
		if (o) rc = may_open(b, o, write);
		if (!rc) rc = join_table(b, ino, o->version, write, NULL, out);
		if (!rc && !*out) {
			if (!(in = in_alloc(b, ino))) rc = -ENOMEM;
			if (!rc) rc = in_load(&r.v, o, in);
			/* unsealed ones stand in the table, unless this look is an old one or a crash left them */
			if (!rc && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY)) rc = tries < 7 ? -ESTALE : bfs_fail(b, -EBUSY, "object %llu was being written when this host crashed, and isn't recovered yet", (unsigned long long)ino);
			if (!rc) rc = join_table(b, ino, o->version, write, in, out);
			if (*out != in) in_destroy(b, in);
		}
		rd_end(&r);
		if (rc == -ESTALE && in) continue;
		if (rc) return rc;
		if (!(rc = check(b, *out))) return 0;
		lk(b, &b->ilock);
		drop_ref(b, *out, write);
		if (rc != -ESTALE) return rc;
	}
	return rc;
}

/* The last one finishes what a close didn't, while it still has its reference, so that an
 * open which comes meanwhile finds the inode and not a half-done tree.  It goes only if
 * nothing came in that time: no other open, and no unlink, which leaves a file that it
 * finds in the table to whoever releases it last (wanted). */
void in_put(struct bfs *b, struct bfs_inode *in, bool write)
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
			drop_ref(b, in, write);
			return;
		}
		unlk(b, &b->ilock);
	}
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

/* ---- handles ---------------------------------------------------------------------------------- */
/* An id is never 0 and never used again for another open: generation << 32 | index + 1. */
struct bfs_handle *hd_get(struct bfs *b, u64 fh)
{
	u32 i = (u32)fh - 1;
	if (i >= HPER * 256u) return NULL;
	struct bfs_handle *c = atomic_load_explicit(&b->hchunk[i / HPER], memory_order_acquire);
	return c && atomic_load_explicit(&c[i % HPER].id, memory_order_acquire) == fh ? &c[i % HPER] : NULL;
}

int hd_new(struct bfs *b, struct bfs_inode *in, int flags, u64 *fh)
{
	int rc = 0;
	lk(b, &b->ilock);
	u32 i = b->handle_free ? b->handle_free - 1 : b->nhandles;
	struct bfs_handle *c = i < HPER * 256u ? atomic_load(&b->hchunk[i / HPER]) : NULL;
	if (i >= HPER * 256u) {
		rc = bfs_fail(b, -ENFILE, "%u files are open", i);
	} else if (!c) {
		if ((c = xalloc(b, HPER * sizeof *c))) atomic_store_explicit(&b->hchunk[i / HPER], c, memory_order_release);
		else rc = -ENOMEM;
	}
	if (!rc) {
		struct bfs_handle *h = &c[i % HPER];
		if (b->handle_free) b->handle_free = h->next_free;
		else b->nhandles++;
		u64 gen = (atomic_load(&h->id) >> 32) + 1;
		h->in = in, h->flags = flags;
		*fh = gen << 32 | (i + 1);
		atomic_store_explicit(&h->id, *fh, memory_order_release);
	}
	unlk(b, &b->ilock);
	return rc;
}

int bfs_open(struct bfs *b, u64 ino, int flags, u64 *fh)
{
	struct bfs_inode *in;
	bool w = hd_writes(flags), trunc = flags & O_TRUNC;
	int rc = in_get(b, ino, w || trunc, &in);
	if (rc) return rc;
	if (trunc && !(rc = in_lock(b, in, true))) {
		rc = fl_set_size(b, in, 0, false);
		in_unlock(b, in);
	}
	if (!rc) rc = hd_new(b, in, w || trunc ? flags | (w ? 0 : O_WRONLY) : flags, fh);
	if (rc) in_put(b, in, w || trunc);
	else bfs_touch(b, ino);
	return rc;
}

int bfs_release(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	bool w = hd_writes(h->flags);
	u64 id = fh;
	/* who takes the id away is the one that releases */
	if (!atomic_compare_exchange_strong(&h->id, &id, fh & ~0xffffffffull)) return -EBADF;
	lk(b, &b->ilock);
	if (h->flags & H_CLOSED) in->nclosed--;
	h->in = NULL;
	h->next_free = b->handle_free;
	b->handle_free = (u32)fh;
	unlk(b, &b->ilock);
	if (!w) bfs_touch(b, in->ino); /* in use until now; and a candidate again, if eviction found it open */
	in_put(b, in, w);
	return 0;
}

/* ---- hazards ------------------------------------------------------------------------------------- */
#define NHAZ (sizeof ((struct bfs *)0)->hazard / sizeof ((struct bfs *)0)->hazard[0])

static int still_has(struct view *v, u64 ino, u32 version, const struct bfs_extent *e, int n)
{
	int rc = 0;
	struct bfs_rec r;
	const struct bfs_obj *o = ob_get(v, ino, &rc);
	if (!o) return rc;
	if (!S_ISREG(o->mode) || (o->state != BFS_ST_SEALED && o->state != BFS_ST_DIRTY) || o->version != version) return -ESTALE;
	if (o->u.f.inl_addr) return n == 1 && e[0].addr == o->u.f.inl_addr && e[0].len == o->u.f.inl_len ? 0 : -ESTALE;
	for (int i = 0; i < n; i++)
		if ((rc = bt_get(v, KEY(BFS_T(BFS_T_EXT, o->slot), e[i].file_granule, 0), &r)) || r.x != e[i].addr || (u32)r.y != e[i].len) return rc && rc != -ENOENT ? rc : -ESTALE;
	return 0;
}

int in_hazard(struct bfs *b, u64 ino, u32 version, const struct bfs_extent *e, int n)
{
	static __thread u32 hint;
	struct rd r;
	u32 s;
	int rc;
	if (n < 1 || n > 64) return -EINVAL;
	for (u32 k = 0;; k++) {
		int none = 0;
		s = (hint + k) % NHAZ;
		if (!atomic_load_explicit(&b->hazard[s].busy, memory_order_relaxed) && atomic_compare_exchange_strong(&b->hazard[s].busy, &none, 1)) break;
		if (k && k % NHAZ == 0) b->m->ops->pause(b->m, 10000);
	}
	hint = s;
	for (int i = 0; i < n; i++) atomic_store_explicit(&b->hazard[s].w[i], HELD_WORD(e[i].addr, e[i].len), memory_order_relaxed);
	atomic_store(&b->hazard[s].n, n);
	mm_fence(b->m);
	if (BFS_MUT(MUT_HAZARD_NO_CHECK) || BFS_MUT(MUT_HAZARD_OLD_SNAPSHOT)) return (int)s;
	if (!(rc = rd_begin(b, &r))) {
		rc = still_has(&r.v, ino, version, e, n);
		rd_end(&r);
	}
	if (!rc) return (int)s;
	in_hazard_end(b, (int)s);
	return rc;
}

void in_hazard_end(struct bfs *b, int slot)
{
	atomic_store_explicit(&b->hazard[slot].n, 0, memory_order_release);
	atomic_store_explicit(&b->hazard[slot].busy, 0, memory_order_release);
}

static int by_addr(const void *p, const void *q)
{
	u64 x = HELD_ADDR(*(const u64 *)p), y = HELD_ADDR(*(const u64 *)q);
	return x < y ? -1 : x > y;
}

/* Joins what is at most `gap` granules apart. */
static u32 join(u64 *w, u32 n, u64 gap)
{
	u32 m = 0;
	for (u32 i = 1; i < n; i++) {
		u64 a = HELD_ADDR(w[m]), end = a + HELD_LEN(w[m]), x = HELD_ADDR(w[i]), xe = x + HELD_LEN(w[i]);
		if (xe < end) xe = end;
		if (BFS_GDEV(a) == BFS_GDEV(x) && x <= end + gap && xe - a <= 0x10000) w[m] = HELD_WORD(a, xe - a);
		else w[++m] = w[i];
	}
	return n ? m + 1 : 0;
}

/* Every announced extent; the caller's n counts. */
static int announced(struct bfs *b, int (*f)(void *arg, u64 addr, u32 len), void *arg)
{
	int rc = 0;
	lk(b, &b->ilock);
	for (u32 i = 0; i < b->ihash_size; i++)
		for (struct bfs_inode *in = b->ihash[i]; in; in = in->next)
			for (int k = 0; k < in->next_ext && !rc; k++) {
				const struct bfs_extent *e = &in->ext[k];
				/* own extents that aren't published are freed by nobody else; a seal in doubt may be */
				if (e->addr && (!e->overlay || in->sealing || in->frozen || in->reload || in->gone)) rc = f(arg, HELD_WORD(e->addr, e->len), e->len);
			}
	unlk(b, &b->ilock);
	for (u32 s = 0; s < NHAZ; s++)
		for (int i = 0, n = atomic_load(&b->hazard[s].n); i < n && !rc; i++) {
			u64 w = atomic_load_explicit(&b->hazard[s].w[i], memory_order_relaxed);
			rc = f(arg, w, HELD_LEN(w));
		}
	return rc;
}

struct words { u64 *w; u32 n, cap; };
static int collect(void *arg, u64 addr, u32 len)
{
	struct words *l = arg;
	(void)len;
	if (l->n < l->cap) l->w[l->n] = addr;
	l->n++;
	return 0;
}

/* The list in the pool is short.  Where more is open, what lies between two held extents is
 * said to be held too: that only keeps it from being reused. */
int in_held(struct bfs *b, int (*add)(void *arg, u64 addr, u32 len), void *arg)
{
	struct words l = {NULL, 0, 256};
	int rc = 0;
	do { /* more may have come while there was no lock */
		xfree(b, l.w);
		l.cap = l.n > l.cap ? l.n + l.n / 4 : l.cap, l.n = 0;
		if (!(l.w = xalloc(b, l.cap * sizeof *l.w))) return announced(b, add, arg);
		announced(b, collect, &l);
	} while (l.n > l.cap);
	u32 n = l.n;
	if (n > 1) qsort(l.w, n, sizeof *l.w, by_addr);
	n = join(l.w, n, 0);
	for (u64 gap = 1; n > BFS_HELD_LINES * 6 && gap <= 0x10000; gap *= 4) n = join(l.w, n, gap);
	for (u32 i = 0; i < n && !rc; i++) rc = add(arg, l.w[i], HELD_LEN(l.w[i]));
	xfree(b, l.w);
	return rc;
}

/* ---- attributes, places ------------------------------------------------------------------------------ */
/* Size and times of a file that is being written here are the inode's.  utimes(2) goes to
 * the tree: it counts where it came after the last write (cp -p, tar). */
void in_overlay_attr(struct bfs *b, struct bfs_attr *a)
{
	if ((a->state != BFS_ST_NEW && a->state != BFS_ST_DIRTY) || !atomic_load_explicit(&b->nwriting, memory_order_acquire)) return;
	lk(b, &b->ilock);
	struct bfs_inode *in = in_find(b, a->ino);
	if (in && !in->gone && (a->state == BFS_ST_NEW || a->state == BFS_ST_DIRTY) && a->owner == b->slot + 1) {
		i64 w = atomic_load(&in->wtime);
		a->size = atomic_load(&in->size);
		if (w && !(a->mtime_ns != atomic_load(&in->tree_mtime) && a->ctime_ns >= w)) a->mtime_ns = w;
		if (w > a->ctime_ns) a->ctime_ns = w;
	}
	unlk(b, &b->ilock);
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
	b->ihash = NULL, b->ihash_size = 0, b->evicting = NULL;
}
