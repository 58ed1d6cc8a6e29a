/* The map of an open file: which of its granules are where, as this host sees them; sums and state
 * beside it, as the tree has them.
 *
 * Readers of a file hold its lock shared, so its map and size stand still; the map is changed
 * under lock and ilock, so a scan may read it under ilock alone. */
#include "file.h"

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

void mp_drop_pieces(struct bfs *b, struct bfs_inode *in, const u64 *bits, u64 from, u64 to)
{
	lk(b, &b->ilock);
	int i = mp_at(in, from * in->piece), n = i;
	for (; i < in->next_ext && in->ext[i].file_granule < to * in->piece; i++) {
		u64 piece = in->ext[i].file_granule / in->piece;
		if (!(bits[piece / 64] >> piece % 64 & 1)) in->ext[n++] = in->ext[i];
	}
	memmove(in->ext + n, in->ext + i, (size_t)(in->next_ext - i) * sizeof *in->ext);
	in->next_ext -= i - n;
	unlk(b, &b->ilock);
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
	if (b->back && o->state != BFS_ST_SEALED) return 0; /* written in place: they say nothing any more */
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
	atomic_store(&in->wtime, 0);
	if (!b->m->coherent) {
		xfree(b, in->seen);
		in->seen = xalloc(b, (o->size / b->sb.chunk_bytes / 64 + 1) * 8);
		if (!in->seen) return -ENOMEM;
	}
	return 0;
}

/* Extents that a transaction in doubt was granted, if it has happened, hold what a former owner left: nobody has stored
 * into them, since who asked for them was told that it isn't known.  Those that this host knew stay. */
static int drop_unstored(struct txn *t, struct bfs_inode *in, const struct bfs_extent *old, int n)
{
	u64 gone = ov_drop_new(t, in, old, n);
	if (!gone) return t->poison;
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o) return t->poison ? t->poison : -ESTALE;
	ob_less(t, o, gone);
	return t->poison ? t->poison : in_load(tview(t), o, in);
}

int in_reload(struct view *v, struct bfs_inode *in)
{
	struct bfs_extent *old = NULL;
	int nold = in->next_ext;
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
		if (in->state != BFS_ST_SEALED) in->nsums = 0; /* who has it open keeps what was written, the sums are of before */
		in_set_state(b, in, BFS_ST_SEALED);
		return 0;
	}
	if (!o) return rc;
	bool unsealed = in->reload && v->t && !b->back && o->state != BFS_ST_SEALED && o->owner == b->slot + 1 && in->state != BFS_ST_SEALED && o->version == in->version;
	if (unsealed && nold) {
		if (!(old = xalloc(b, (size_t)nold * sizeof *old))) return -ENOMEM;
		memcpy(old, in->ext, (size_t)nold * sizeof *old);
	}
	if (!(rc = in_load(v, o, in)) && unsealed && (rc = drop_unstored(v->t, in, old, nold))) { /* what was known is known next time, too */
		lk(b, &b->ilock);
		struct bfs_extent *loaded = in->ext;
		in->ext = old, in->next_ext = in->ext_cap = nold, old = loaded;
		unlk(b, &b->ilock);
	}
	xfree(b, old);
	if (rc || !(o = ob_get(v, in->ino, &rc))) return rc ? rc : -ESTALE;
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
