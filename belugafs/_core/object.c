/* Object slots: reading, copy on write, allocation, freeing, and the counters of the
 * root that depend on them.
 *
 * A slot is never taken back: it is free (mode 0) or holds an object of its present
 * generation.  The generation goes up when the slot is freed, so an inode number that
 * somebody kept finds nothing (ESTALE) rather than another object.  31 bits of it are
 * used: bit 63 of an inode number marks synthesised directories (name.c). */
#include <sys/stat.h>
#include "backing.h"

#define GEN_MASK 0x7fffffffu

const struct bfs_obj *ob_slot(struct view *v, u32 slot, int *rc)
{
	*rc = 0;
	if (slot - 1 >= v->b->sb.inodes - 1) return NULL;
	const struct bfs_objs *p = rx_get(v->b, v->root->obj, v->b->h_obj, slot / BFS_OBJS, BFS_PK_OBJ, rc);
	return p ? &p->o[slot % BFS_OBJS] : NULL;
}

const struct bfs_obj *ob_get(struct view *v, u64 ino, int *rc)
{
	const struct bfs_obj *o = ob_slot(v, INO_SLOT(ino), rc);
	if (!o || !o->mode || o->gen != INO_GEN(ino)) {
		if (!*rc) *rc = -ESTALE;
		return NULL;
	}
	if (o->slot != INO_SLOT(ino)) {
		*rc = bfs_fail(v->b, -EIO, "object slot %u says that it is slot %u; run fsck.belugafs -n", INO_SLOT(ino), o->slot);
		return NULL;
	}
	return o;
}

static struct bfs_obj *cow_slot(struct txn *t, u32 slot)
{
	if (slot - 1 >= t->b->sb.inodes - 1) {
		txn_fail(t, bfs_fail(t->b, -EIO, "object slot %u of %u", slot, t->b->sb.inodes));
		return NULL;
	}
	struct bfs_objs *p = rx_cow(t, &t->root->obj, t->b->h_obj, slot / BFS_OBJS, BFS_PK_OBJ);
	return p ? &p->o[slot % BFS_OBJS] : NULL;
}

struct bfs_obj *ob_cow(struct txn *t, u64 ino)
{
	int rc = 0;
	if (t->poison) return NULL;
	if (!ob_get(tview(t), ino, &rc)) {
		if (rc != -ESTALE) txn_fail(t, rc);
		return NULL;
	}
	return cow_slot(t, INO_SLOT(ino));
}

void ob_count(struct txn *t, const struct bfs_obj *o, int sign)
{
	struct bfs_root *r = t->root;
	u64 one = (u64)(i64)sign;
	r->slots_used += (u32)sign;
	if (!S_ISREG(o->mode)) return;
	if (!o->nlink) r->norphans += one;
	if (o->state != BFS_ST_SEALED) r->nunsealed += one;
	else if (o->cls == BFS_CLS_BLOCK) r->nblocks += one;
	else r->nordinary += one;
	if (o->cls == BFS_CLS_BLOCK && (o->state == BFS_ST_SEALED || o->state == BFS_ST_ABANDONED) && o->nlink == 1) r->blocks_granules += one * o->granules;
}

void ob_less(struct txn *t, struct bfs_obj *o, u64 gone)
{
	ob_count(t, o, -1);
	o->granules -= gone < o->granules ? gone : o->granules;
	ob_count(t, o, 1);
}

/* nlink is 0 until nm_add: what is allocated counts as an orphan so long. */
struct bfs_obj *ob_alloc(struct txn *t, u32 mode, u32 uid, u32 gid, int *rc)
{
	struct bfs *b = t->b;
	struct bfs_root *r = t->root;
	struct bfs_obj *o;
	*rc = 0;
	if (t->poison) return *rc = t->poison, NULL;
	/* slots are out: blocks go, least recently used first; a slot needs no quarantine, since
	 * its next object has another number */
	if (r->slot_virgin >= b->sb.inodes && !r->free_head && !b->o.evict_none) ev_make_slots(t);
	if (t->poison) return *rc = t->poison, NULL;
	if (r->slot_virgin < b->sb.inodes) {
		if (!(o = cow_slot(t, r->slot_virgin))) return *rc = t->poison, NULL;
		o->slot = r->slot_virgin++;
	} else if (r->free_head) {
		u32 slot = r->free_head;
		if (!(o = cow_slot(t, slot))) return *rc = t->poison, NULL;
		if (o->mode || o->slot != slot) {
			*rc = txn_fail(t, bfs_fail(b, -EIO, "list of free slots leads to slot %u, which is in use; run fsck.belugafs -n", slot));
			return NULL;
		}
		r->free_head = o->next_free;
		if (!r->free_head) r->free_tail = 0;
		o->next_free = 0;
	} else {
		*rc = bfs_fail(b, -ENOSPC, "all %u object slots are in use (mkfs --inodes)", b->sb.inodes - 1);
		return NULL;
	}
	i64 now = (i64)now_ns(b);
	o->mode = mode, o->uid = uid, o->gid = gid;
	o->atime_ns = o->mtime_ns = o->ctime_ns = o->btime_ns = now;
	o->state = BFS_ST_SEALED;
	o->cls = S_ISREG(mode) ? BFS_CLS_ORDINARY : BFS_CLS_NONE;
	r->creates++;
	ob_count(t, o, 1);
	if (b->back && S_ISREG(mode) && (*rc = bk_create(b, ob_ino(o)))) return txn_fail(t, *rc), NULL;
	return o;
}

/* ---- checksums by chunk ------------------------------------------------------------ */
static inline u32 sums_height(u32 n) { return rx_height((n + BFS_SUMS - 1) / BFS_SUMS); }
static int sums_check(struct bfs *b, const struct bfs_obj *o)
{
	if (o->nsums <= BFS_INLINE_SUMS || o->sums_height == sums_height(o->nsums)) return 0;
	return bfs_fail(b, -EIO, "object %u: table of %u checksums has height %u", o->slot, o->nsums, o->sums_height);
}

static int sums_free(struct txn *t, struct bfs_obj *o)
{
	int rc = sums_check(t->b, o);
	if (rc) return txn_fail(t, rc);
	if (o->nsums > BFS_INLINE_SUMS && rx_free_all(t, &o->v.sums, o->sums_height, BFS_PK_SUMS)) return t->poison;
	memset(&o->v, 0, sizeof o->v);
	o->nsums = o->sums_height = 0;
	return 0;
}

/* An extent that no snapshot shows and no other host may read goes back at once.  The
 * host's own dirty lines of it must not: written back later they would land in the next
 * owner's block (rule 21). */
static int drop_extent(struct txn *t, bool unwind, u64 addr, u32 len)
{
	if (!unwind) return al_free(t, addr, len);
	void *p = al_mem(t->b, addr);
	if (p && len && al_mem(t->b, addr + len - 1)) {
		mm_fence(t->b->m);
		mm_flush(t->b->m, p, (size_t)len * BFS_GRANULE);
		mm_fence(t->b->m);
	}
	return al_unwind(t, addr, len);
}

static int free_data(struct txn *t, struct bfs_obj *o)
{
	/* Not in a batch: a later call of it could store into the extent before the transaction
	 * commits, and a crash would then bring back a synced file with foreign bytes. */
	bool own_new = o->state == BFS_ST_NEW && o->owner == t->b->slot + 1 && !atomic_load(&t->b->batch_tid);
	struct bfs_rec r[32];
	int n, rc = 0;
	if (o->u.f.inl_addr && o->u.f.inl_len && (rc = al_free(t, o->u.f.inl_addr, o->u.f.inl_len))) return rc;
	while ((n = bt_range(tview(t), KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0), r, 32)) > 0)
		for (int i = 0; i < n; i++) {
			if (r[i].x && (rc = drop_extent(t, own_new && r[i].k.c, r[i].x, (u32)r[i].y))) return rc;
			if ((rc = bt_del(t, r[i].k))) return rc;
		}
	return n;
}

int ob_free(struct txn *t, u64 ino)
{
	struct bfs_obj *o = ob_cow(t, ino);
	int rc = 0;
	if (!o) return txn_fail(t, -ESTALE);
	if (S_ISREG(o->mode)) {
		if ((rc = free_data(t, o))) return txn_fail(t, rc);
		if ((rc = sums_free(t, o))) return rc;
		if (t->b->back && bk_drop(t, ino)) return t->poison;
		if (o->owner || t->b->back) { /* in a directory pool also while others may store into it */
			struct bfs_rec r;
			struct bfs_key k = KEY(BFS_T(BFS_T_OPEN, o->owner ? o->owner - 1u : t->b->slot), o->slot, 0);
			rc = bt_get(tview(t), k, &r);
			if (!rc && r.x == ino) rc = bt_del(t, k);
			if (rc && rc != -ENOENT) return txn_fail(t, rc);
		}
	}
	blob_free(t, &o->blob);
	if (t->poison) return t->poison;
	ob_count(t, o, -1);

	u32 slot = o->slot, gen = (o->gen + 1) & GEN_MASK;
	ev_forget(t->b, slot);
	memset(o, 0, sizeof *o);
	o->slot = slot, o->gen = gen;
	if (t->root->free_tail) {
		struct bfs_obj *last = cow_slot(t, t->root->free_tail);
		if (!last) return t->poison;
		last->next_free = slot;
	} else {
		t->root->free_head = slot;
	}
	t->root->free_tail = slot;
	return t->poison;
}

void ob_attr(const struct bfs_obj *o, struct bfs_attr *a)
{
	*a = (struct bfs_attr){
		.ino = ob_ino(o), .size = o->size, .granules = o->granules, .atime_ns = o->atime_ns, .mtime_ns = o->mtime_ns,
		.ctime_ns = o->ctime_ns, .btime_ns = o->btime_ns, .mode = o->mode, .nlink = o->nlink, .uid = o->uid, .gid = o->gid,
		.rdev = o->rdev, .version = o->version, .cls = o->cls, .state = o->state, .owner = o->owner, .flags = o->flags,
	};
	if (S_ISDIR(o->mode)) {
		a->size = BFS_PAGE;
		/* 1 = unknown: find(1) would take 2 for "no subdirectories", and never see the synthesised ones */
		if (o->flags & BFS_OF_NSBLOCK) a->nlink = 1;
	}
}

int ob_sums_get(struct bfs *b, const struct bfs_obj *o, u32 first, u32 n, u64 *s)
{
	int rc = sums_check(b, o);
	if (rc) return rc;
	if (first > o->nsums || n > o->nsums - first) return -EINVAL;
	if (o->nsums <= BFS_INLINE_SUMS) {
		memcpy(s, o->v.sum + first, (size_t)n * sizeof *s);
		return 0;
	}
	for (u32 i = first, end = first + n; i < end;) {
		u32 at = i % BFS_SUMS, m = BFS_SUMS - at < end - i ? BFS_SUMS - at : end - i;
		const struct bfs_sums *p = rx_get(b, o->v.sums, o->sums_height, i / BFS_SUMS, BFS_PK_SUMS, &rc);
		if (rc) return rc;
		if (p) memcpy(s + (i - first), p->s + at, (size_t)m * sizeof *s);
		else memset(s + (i - first), 0, (size_t)m * sizeof *s); /* nothing but holes */
		i += m;
	}
	return 0;
}

int ob_sums_set(struct txn *t, struct bfs_obj *o, const u64 *s, u32 n)
{
	if (sums_free(t, o)) return t->poison;
	o->nsums = n;
	if (n <= BFS_INLINE_SUMS) {
		if (n) memcpy(o->v.sum, s, (size_t)n * sizeof *s); /* an empty one has none */
		return t->poison;
	}
	o->sums_height = sums_height(n);
	for (u32 i = 0; i < n; i += BFS_SUMS) {
		u64 any = 0;
		for (u32 j = i; j < n && j < i + BFS_SUMS && !any; j++) any = s[j];
		if (!any) continue;
		struct bfs_sums *p = rx_cow(t, &o->v.sums, o->sums_height, i / BFS_SUMS, BFS_PK_SUMS);
		if (!p) return t->poison;
		memcpy(p->s, s + i, (n - i < BFS_SUMS ? n - i : BFS_SUMS) * sizeof *s);
	}
	return t->poison;
}
