/* The overlay: room for what is written, in the tree before anything is stored in it.
 *
 * A file that is written has an overlay: extents granted to this host, in the tree before
 * anything is stored in them, seen by nobody else until the seal makes them the base.  A
 * store goes into the overlay in place; what lies in base is copied first, in granules
 * (file_write.c). */
#include "file.h"

/* ---- the overlay in the tree ----------------------------------------------------------------------- */
/* Pieces of the overlay are its records, one to one: the map says which records there are. */
static int ov_cut(struct txn *t, struct bfs_inode *in, u64 fg, u64 end, bool data)
{
	int rc = 0;
	for (int i = mp_at(in, fg); i < in->next_ext && in->ext[i].file_granule < end && !rc; i++) {
		struct bfs_extent e = in->ext[i];
		u64 lo = max64(fg, e.file_granule), hi = min64(end, e.file_granule + e.len);
		if (!e.overlay || (e.addr && !data)) continue;
		struct bfs_rec l = ov_rec(in->ino, e.file_granule, e.addr, lo - e.file_granule);
		struct bfs_rec r = ov_rec(in->ino, hi, e.addr ? e.addr + (hi - e.file_granule) : 0, e.file_granule + e.len - hi);
		if (e.addr) rc = al_unwind(t, e.addr + (lo - e.file_granule), (u32)(hi - lo));
		if (!rc) rc = lo > e.file_granule ? bt_put(t, &l) : bt_del(t, l.k);
		if (!rc && hi < e.file_granule + e.len) rc = bt_put(t, &r);
	}
	return rc ? txn_fail(t, rc) : 0;
}
int ov_drop(struct txn *t, struct bfs_inode *in, u64 fg, u64 end) { return ov_cut(t, in, fg, end, true); }

/* Records of copies that were never put in place: they go, and their data comes back. */
int ov_drop_scratch(struct txn *t, struct bfs_obj *o)
{
	struct bfs_rec r[16];
	u64 gone = 0;
	int n, rc = 0;
	while (!rc && (n = bt_range(tview(t), KEY(BFS_T(BFS_T_EXT, o->slot), SCRATCH_FG, 0), r, 16)) != 0) {
		if (n < 0) rc = n;
		for (int i = 0; i < n && !rc; i++) {
			if (r[i].x && !(rc = al_unwind(t, r[i].x, (u32)r[i].y))) gone += (u32)r[i].y;
			if (!rc) rc = bt_del(t, r[i].k);
		}
	}
	if (rc) return txn_fail(t, rc);
	if (gone) ob_less(t, o, gone);
	return 0;
}

/* The object of a file that this transaction is going to change; unsealed if it isn't yet. */
struct bfs_obj *ov_writable(struct txn *t, struct bfs_inode *in, bool creator, bool *unsealed, int *rc)
{
	struct bfs *b = t->b;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, rc);
	if (!c) return NULL;
	if (c->owner && c->owner != b->slot + 1) *rc = bfs_fail(b, -EBUSY, "host slot %u is writing this file", c->owner - 1u);
	else if ((*rc = nm_elsewhere(tview(t), c)) > 0) *rc = bfs_fail(b, -ESTALE, "the file has been deleted, and is open on another host");
	else if (!*rc && (c->version != in->version || (c->state == BFS_ST_SEALED) != (in->state == BFS_ST_SEALED))) *rc = -EAGAIN; /* sealed meanwhile: read again */
	if (*rc) return NULL;
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o) return *rc = t->poison ? t->poison : -ESTALE, NULL;
	*unsealed = o->state == BFS_ST_SEALED || o->state == BFS_ST_ABANDONED;
	if (!*unsealed) return o;
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_OPEN, b->slot), o->slot, 0), .x = in->ino, .y = o->version};
	ob_count(t, o, -1);
	/* An abandoned first writing that somebody takes up again is one that goes on. */
	o->state = o->state == BFS_ST_ABANDONED ? BFS_ST_NEW : BFS_ST_DIRTY;
	o->owner = (u8)(b->slot + 1);
	/* Written again: ordinary, unless it is still the first writing of who made it (a
	 * duplicate of the descriptor was closed in between). */
	if (!creator && o->state == BFS_ST_DIRTY) o->cls = BFS_CLS_ORDINARY;
	ob_count(t, o, 1);
	if ((*rc = bt_put(t, &r))) return txn_fail(t, *rc), NULL;
	return o;
}

/* After the acknowledgement: the row, before the first store into what was promised. */
int ov_unsealed(struct bfs *b, struct bfs_inode *in, u8 cls)
{
	lk(b, &b->ilock);
	in->state = in->state == BFS_ST_ABANDONED ? BFS_ST_NEW : BFS_ST_DIRTY, in->cls = cls;
	unlk(b, &b->ilock);
	in->base_size = atomic_load(&in->size);
	in->base_end = 0;
	if (in->state == BFS_ST_DIRTY && in->next_ext) in->base_end = in->ext[in->next_ext - 1].file_granule + in->ext[in->next_ext - 1].len;
	in_batch_mark(b, in);
	if (in->state == BFS_ST_NEW) return 0;
	in->dirty = true;
	return rw_put(b, in, BFS_ROW_DIRTY);
}

/* The first store after a seal or sync is announced in the row: what it promised no longer holds. */
int ov_row_dirty(struct bfs *b, struct bfs_inode *in)
{
	if (in->rowst != BFS_ROW_CLOSED) return 0;
	in->lives_on |= in->synced;
	return rw_put(b, in, BFS_ROW_DIRTY);
}

/* Data of the overlay that wasn't in the map `old` goes; what it took the place of, a hole over the base, comes
 * back.  A piece is new from its start, or from where it was when it has grown. */
u64 ov_drop_new(struct txn *t, struct bfs_inode *in, const struct bfs_extent *old, int n)
{
	u64 gone = 0;
	for (int i = 0, k = 0; i < in->next_ext && !t->poison; i++) {
		struct bfs_extent e = in->ext[i];
		u64 at = e.file_granule, end = at + e.len;
		if (!e.overlay || !e.addr) continue;
		while (k < n && old[k].file_granule + old[k].len <= at) k++;
		if (k < n && old[k].file_granule <= at && old[k].overlay && old[k].addr) at = old[k].file_granule + old[k].len;
		if (at >= end) continue;
		ov_drop(t, in, at, end);
		gone += end - at;
		for (int j = k; j < n && old[j].file_granule < end && !t->poison; j++) {
			u64 lo = max64(at, old[j].file_granule), hi = min64(end, old[j].file_granule + old[j].len);
			struct bfs_rec r = ov_rec(in->ino, lo, 0, hi - lo);
			if (lo < hi && old[j].overlay && !old[j].addr && bt_put(t, &r)) txn_fail(t, -EIO);
		}
	}
	return gone;
}

/* ---- making room for a store ------------------------------------------------------------------------- */
bool ov_is_base(const struct bfs_inode *in, u64 g)
{
	int i = mp_at(in, g);
	return i < in->next_ext && in->ext[i].file_granule <= g && in->ext[i].addr && !in->ext[i].overlay;
}

int ov_gaps(const struct bfs_inode *in, const struct want *w, struct gap *g, int max, u64 most)
{
	int n = 0;
	u64 at = w->fg, sum = 0;
	for (int i = mp_at(in, at); at < w->end && n < max && sum < most; i++) {
		const struct bfs_extent *e = i < in->next_ext && in->ext[i].file_granule < w->end ? &in->ext[i] : NULL;
		bool need = !e || !e->addr || (!e->overlay && !w->holes);
		u64 to = e ? e->file_granule + e->len : w->end, stop = e && !need ? e->file_granule : to;
		if (stop > w->end) stop = w->end;
		if (stop > at) { /* neighbouring pieces that are needed are one gap */
			u64 len = min64(stop - at, most - sum);
			if (n && g[n - 1].fg + g[n - 1].len == at) g[n - 1].len += len;
			else g[n++] = (struct gap){at, len};
			sum += len;
			at = stop;
		}
		if (!need) at = max64(at, to);
	}
	return n;
}

struct piece { u64 fg, addr; u32 len; };

/* What the file has where new extents come goes into them, and is in the pool. */
static int take_along(struct bfs *b, struct bfs_inode *in, const struct piece *p, int n)
{
	u64 size = atomic_load(&in->size);
	u8 *bounce = fl_bounce(b);
	int rc = bounce ? 0 : -ENOMEM;
	for (int i = 0; i < n && !rc; i++) {
		u64 off = p[i].fg * BFS_GRANULE, end = min64(off + (u64)p[i].len * BFS_GRANULE, size);
		u8 *d = al_mem(b, p[i].addr);
		for (u64 at = off, m; at < end && !rc; at += m) {
			m = min64(end - at, b->sb.chunk_bytes);
			/* fresh and verified: should the write end here, this is what the seal signs */
			if ((rc = fl_read_range(b, in, at, bounce, m))) break;
			if (b->m->ops->copy_in(b->m, d + (at - off), bounce, m)) rc = fl_medium(b, in, p[i].addr, p[i].len, -EIO);
		}
		if (end > off) {
			mm_fence(b->m);
			mm_flush(b->m, d, end - off);
		}
	}
	mm_fence(b->m);
	fl_bounce_end(b, bounce);
	return rc;
}

/* Holes of the overlay give way to the pieces.  Neighbours at once: ov_cut goes by the map,
 * which knows nothing of what an earlier cut has made of the same hole. */
static void cut_holes(struct txn *t, struct bfs_inode *in, const struct piece *p, int n)
{
	for (int i = 0, j; i < n && !t->poison; i = j) {
		u64 end = p[i].fg + p[i].len;
		for (j = i + 1; j < n && p[j].fg == end; j++) end += p[j].len;
		ov_cut(t, in, p[i].fg, end, false);
	}
}

/* From far behind the end to their place. */
static int put_in_place(struct bfs *b, struct bfs_inode *in, const struct want *w, const struct piece *p, int n)
{
	struct txn *t;
	bool un;
	int rc = op_begin(b, &t);
	if (rc) return rc;
	if (!ov_writable(t, in, w->creator, &un, &rc)) return op_end(b, t, rc);
	cut_holes(t, in, p, n);
	for (int i = 0; i < n && !t->poison; i++) {
		struct bfs_rec r = ov_rec(in->ino, p[i].fg, p[i].addr, p[i].len);
		if ((rc = bt_del(t, KEY(r.k.a, SCRATCH_FG + p[i].fg, 1))) || (rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	return op_end(b, t, 0);
}

/* Grants for the gaps, in one transaction.  The extents are in the tree, and acknowledged,
 * before the caller stores into them: another leader keeps out of them from then on.
 *
 * Where they come into a content that a crash has to leave (sealed, or synced), or one that the caller
 * won't store over (fill), they stand far behind the end at first, where recovery drops them; that content is copied into them, and a
 * second transaction puts them in place.  So whatever the overlay shows was stored: the old
 * bytes, or newer ones, never what a former owner of these granules left in them. */
int ov_grant(struct bfs *b, struct bfs_inode *in, const struct want *w, const struct gap *g, int ng)
{
	struct extent e[EXTENTS];
	struct piece rec[EXTENTS + GAPS];
	struct txn *t;
	u64 n = 0, more = 0;
	bool un = false, was = false;
	int rc, ne = 0, nr = 0;
	bool promised = in->state == BFS_ST_SEALED || in->state == BFS_ST_DIRTY || in->rowst != BFS_ROW_FREE;
	bool two = (promised || w->fill) && ng && g[0].fg < granules(atomic_load(&in->size));
	if (in_batch(b) && ng) return bfs_fail(b, -EBUSY, "inside a batch data goes only where room was reserved before it");
	for (int i = 0; i < ng; i++) n += g[i].len;
	if (ng && (rc = ov_row_dirty(b, in))) return rc;
	if ((rc = op_begin_room(b, &t))) return rc;
	u64 total = b->sb.data_granules, used = t->root->granules_used;
	if (ng == 1 && g[0].fg + g[0].len == w->end && used + w->more + n < total - total / 16) more = w->more;
	for (int i = more ? mp_at(in, w->end) : 0; more && i < in->next_ext; i++) /* not over what is mapped there */
		if (in->ext[i].addr) {
			more = min64(more, max64(in->ext[i].file_granule, w->end) - w->end);
			break;
		}
	u64 grown = 0;
	const struct bfs_extent *last = ng == 1 && in->next_ext && !two ? &in->ext[in->next_ext - 1] : NULL;
	struct bfs_obj *o = NULL;
	if (last && last->overlay && last->addr && last->file_granule + last->len == g[0].fg) {
		if (!(o = ov_writable(t, in, w->creator, &un, &rc))) return op_end(b, t, rc);
		grown = al_grow(t, last->addr, last->len, (u32)n, (u32)min64(n + more, UINT32_MAX), in->ino);
		if (grown) {
			struct bfs_rec r = ov_rec(in->ino, last->file_granule, last->addr, last->len + grown);
			if ((rc = bt_put(t, &r))) txn_fail(t, rc);
		}
	}
	if (!grown && n) {
		u32 rg = b->sb.region_granules; /* comfort is worth neither pieces nor an eviction */
		ne = more && (n + more + rg - 1) / rg <= EXTENTS ? al_alloc(t, n + more, in->ino, e, (int)((n + more + rg - 1) / rg)) : -ENOSPC;
		if (ne == -ENOSPC) ne = al_alloc_room(b, &t, n, in->ino, e, EXTENTS);
		if (ne < 0) return t ? op_end(b, t, ne) : ne;
	}
	/* may be another transaction by now */
	was = un;
	o = ov_writable(t, in, w->creator, &un, &rc);
	un |= was;
	for (int i = 0; !o && i < ne && !t->poison; i++) al_unwind(t, e[i].addr, e[i].len);
	if (!o) return op_end(b, t, rc);
	u8 cls = o->cls;
	u64 got = grown, at = 0;
	for (int i = 0, k = 0; i < ne; i++) {
		got += e[i].len;
		while (e[i].len) { /* the last gap takes what there is more */
			u64 m = k < ng - 1 ? min64(e[i].len, g[k].len - at) : e[i].len;
			rec[nr].fg = g[k].fg + at, rec[nr].addr = e[i].addr, rec[nr++].len = (u32)m;
			e[i].addr += m, e[i].len -= (u32)m, at += m;
			if (k < ng - 1 && at == g[k].len) k++, at = 0;
		}
	}
	if (two) ov_drop_scratch(t, o); /* of one that failed */
	if (!two) cut_holes(t, in, rec, nr); /* also to what is more */
	for (int i = 0; i < nr && !t->poison; i++) {
		struct bfs_rec r = ov_rec(in->ino, rec[i].fg + (two ? SCRATCH_FG : 0), rec[i].addr, rec[i].len);
		if ((rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	ob_count(t, o, -1);
	o->granules += got;
	o->u.f.nextents += (u32)nr; /* recounted at the seal */
	ob_count(t, o, 1);
	if ((rc = op_end(b, t, 0))) return rc;
	atomic_fetch_add(&in->granules, got);
	if (un && (rc = ov_unsealed(b, in, cls))) return rc;
	if (two && ((rc = take_along(b, in, rec, nr)) || (rc = put_in_place(b, in, w, rec, nr)))) return rc;
	if (grown) {
		lk(b, &b->ilock);
		in->ext[in->next_ext - 1].len += (u32)grown;
		unlk(b, &b->ilock);
	}
	for (int i = 0; i < nr && !rc; i++) rc = mp_set(b, in, rec[i].fg, rec[i].len, rec[i].addr, 1);
	if (rc) in->reload = true;
	return rc;
}
