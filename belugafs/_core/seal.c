/* Sealing: a file that was written becomes what other hosts see (closing: seal_close.c; rows:
 * row.c; what a crash left: seal_recover.c).
 *
 * The order that makes a close a promise:
 *   1. the data is flushed, and a fence passes;
 *   2. the row says CLOSED, with size and (when they fit) sums, and is fenced: from here
 *      on the file survives this process, and whoever recovers the slot seals it;
 *   3. the seal, one transaction: overlay becomes base, sums, size, names, version + 1;
 *   4. after its acknowledgement the row is cleared.
 * Between 3 and 4 the row is void, since its version is no longer the tree's: a crash there
 * is harmless.  A row is not written before the transaction that made the object (or
 * unsealed it) is acknowledged: the next leader might not know that object, and give its
 * slot to another one.
 *
 * A seal names (object, generation, version): where the tree has the next version already,
 * it happened, and it isn't done twice.  Between -EAGAIN and knowing, the data is frozen. */
#include "backing.h"
#include "file.h"

/* ---- what is true now --------------------------------------------------------------------- */
int sl_settle(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	if (in->stale) return bfs_fail(b, -ESTALE, "object %llu: another host has sealed a newer version; open it again", (unsigned long long)in->ino);
	if (in->gone) return -ESTALE;
	if (!in->reload && !in->frozen) return 0;
	/* As leader, on a confirmed state: whatever was in doubt is in it, or never will be. */
	if ((rc = op_begin(b, &t))) return rc;
	rc = op_end(b, t, in_reload(tview(t), in));
	if (rc == -EAGAIN) in->reload = true;
	return rc ? rc : in->gone ? -ESTALE : 0;
}

/* ---- the seal ------------------------------------------------------------------------------- */
struct recs { struct bfs_rec *r; int n, cap; };

static int add_rec(struct txn *t, struct recs *l, u64 fg, u64 addr, u64 len)
{
	if (l->n == l->cap) {
		int cap = l->cap ? 2 * l->cap : 32;
		struct bfs_rec *n = xalloc(t->b, (size_t)cap * sizeof *n);
		if (!n) return txn_fail(t, -ENOMEM);
		if (l->n) memcpy(n, l->r, (size_t)l->n * sizeof *n);
		xfree(t->b, l->r);
		l->r = n, l->cap = cap;
	}
	l->r[l->n++] = (struct bfs_rec){.k = KEY(0, fg, 0), .x = addr, .y = len};
	return 0;
}
static inline u64 rec_end(const struct bfs_rec *r) { return r->k.b + (u32)r->y; }

static int read_recs(struct txn *t, const struct bfs_obj *o, struct recs *base, struct recs *over)
{
	struct bfs_rec r[32];
	struct bfs_key k = KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0);
	int n, rc = 0;
	if (o->u.f.inl_addr) rc = add_rec(t, base, 0, o->u.f.inl_addr, o->u.f.inl_len);
	while (!rc && (n = bt_range(tview(t), k, r, 32)) != 0) {
		if (n < 0) return txn_fail(t, n);
		for (int i = 0; i < n && !rc; i++) {
			rc = add_rec(t, r[i].k.c ? over : base, r[i].k.b, r[i].x, (u32)r[i].y);
			k.b = r[i].k.b, k.c = r[i].k.c + 1;
		}
	}
	return rc;
}

/* Base and overlay become one, `end` granules long.  What the overlay hides others may
 * still read: quarantine.  What the overlay has behind the end nobody else ever saw, and
 * the host's stores into it were flushed: back at once. */
static int merge(struct txn *t, struct bfs_obj *o, struct bfs_inode *in, u64 end)
{
	struct recs base = {0}, over = {0}, out = {0};
	u64 slot = BFS_T(BFS_T_EXT, o->slot), gran = 0;
	int rc = read_recs(t, o, &base, &over), k = 0;
	u64 scratch = in->scratch;
	for (int i = 0; i < over.n && !rc; i++) {
		struct bfs_rec *r = &over.r[i];
		bool copy = r->k.b >= SCRATCH_FG;
		u64 keep = copy ? (scratch == r->x ? min64(end, (u32)r->y) : 0) : scratch && r->x ? 0 : r->k.b < end ? min64(end - r->k.b, (u32)r->y) : 0;
		if ((rc = bt_del(t, KEY(slot, r->k.b, 1)))) break;
		/* what the copy replaces is read here until the seal is known to have happened */
		if (r->x && keep < (u32)r->y) rc = scratch && !copy ? al_free(t, r->x, (u32)r->y) : al_unwind(t, r->x + keep, (u32)(r->y - keep));
		if (!rc && r->x && keep) rc = al_own(t, r->x, (u32)keep, ob_ino(o), BFS_OWN_OBJ);
		r->y = keep;
		if (copy) r->k.b = 0;
	}
	if (!rc && scratch && over.n > 1) over.r[0] = over.r[over.n - 1], over.n = 1; /* the copy stands for all of it */
	for (int i = 0; i < base.n && !rc; i++) {
		u64 fg = base.r[i].k.b, stop = rec_end(&base.r[i]), at = fg;
		bool whole = true;
		while (at < stop && !rc) {
			while (k < over.n && (!over.r[k].y || rec_end(&over.r[k]) <= at)) { /* before it */
				if (over.r[k].y && over.r[k].x) rc = add_rec(t, &out, over.r[k].k.b, over.r[k].x, over.r[k].y);
				k++;
			}
			bool hid = (k < over.n && over.r[k].k.b <= at) || at >= end;
			u64 to = at >= end ? stop : hid ? rec_end(&over.r[k]) : k < over.n ? over.r[k].k.b : stop;
			if (to > stop) to = stop;
			if (!hid && to > end) to = end;
			whole &= !hid && at == fg && to == stop;
			if (rc) break;
			if (hid) rc = al_free(t, base.r[i].x + (at - fg), (u32)(to - at));
			else rc = add_rec(t, &out, at, base.r[i].x + (at - fg), to - at);
			at = to;
		}
		if (!whole && !o->u.f.inl_addr && !rc) rc = bt_del(t, KEY(slot, fg, 0));
	}
	for (; k < over.n && !rc; k++)
		if (over.r[k].y && over.r[k].x) rc = add_rec(t, &out, over.r[k].k.b, over.r[k].x, over.r[k].y);
	bool one = out.n == 1 && !out.r[0].k.b, was_inline = o->u.f.inl_addr != 0;
	for (int i = 0, j = 0; i < out.n && !rc; i++) {
		struct bfs_rec r = out.r[i];
		gran += r.y;
		r.k.a = slot;
		while (j < base.n && base.r[j].k.b < r.k.b) j++;
		bool there = !was_inline && j < base.n && base.r[j].k.b == r.k.b && base.r[j].y == r.y && base.r[j].x == r.x;
		if (one && there) rc = bt_del(t, r.k);
		else if (!one && !there) rc = bt_put(t, &r);
	}
	o->u.f.inl_addr = one ? out.r[0].x : 0;
	o->u.f.inl_len = one ? (u32)out.r[0].y : 0;
	o->u.f.nextents = one ? 0 : (u32)out.n;
	o->granules = gran;
	xfree(t->b, in->new_ext);
	in->nnew_ext = out.n;
	in->new_ext = out.n ? xalloc(t->b, (size_t)out.n * sizeof *in->new_ext) : NULL;
	if (out.n && !in->new_ext) rc = -ENOMEM;
	for (int i = 0; i < out.n && !rc; i++) in->new_ext[i] = (struct bfs_extent){out.r[i].k.b, out.r[i].x, (u32)out.r[i].y, 0};
	xfree(t->b, base.r);
	xfree(t->b, over.r);
	xfree(t->b, out.r);
	return rc ? txn_fail(t, rc == -ENOENT ? -EIO : rc) : 0;
}

static inline bool zeros(const u64 *s, u32 n)
{
	while (n && !s[n - 1]) n--;
	return !n;
}

/* Sums of the object; a leaf with nothing but holes isn't stored, one that hasn't changed
 * isn't written again. */
static int set_sums(struct txn *t, struct bfs_obj *o, const u64 *s, u32 n)
{
	u32 h = rx_height((n + BFS_SUMS - 1) / BFS_SUMS), old = o->nsums;
	int rc = 0;
	bool same = old > BFS_INLINE_SUMS && n > BFS_INLINE_SUMS && o->sums_height == h;
	if (!same) {
		if (old > BFS_INLINE_SUMS && rx_free_all(t, &o->v.sums, o->sums_height, BFS_PK_SUMS)) return t->poison;
		memset(&o->v, 0, sizeof o->v);
		old = 0;
	}
	o->nsums = n, o->sums_height = n > BFS_INLINE_SUMS ? h : 0;
	if (n <= BFS_INLINE_SUMS) {
		if (n) memcpy(o->v.sum, s, n * sizeof *s);
		return 0;
	}
	for (u32 i = 0; i < (n > old ? n : old); i += BFS_SUMS) {
		u32 m = i < n ? (n - i < BFS_SUMS ? n - i : BFS_SUMS) : 0;
		const struct bfs_sums *p = same ? rx_get(t->b, o->v.sums, h, i / BFS_SUMS, BFS_PK_SUMS, &rc) : NULL;
		if (rc) return txn_fail(t, rc);
		if (p && !memcmp(p->s, s + i, m * sizeof *s) && zeros(p->s + m, BFS_SUMS - m)) continue;
		if (zeros(s + i, m)) {
			if (p && rx_drop(t, &o->v.sums, h, i / BFS_SUMS, BFS_PK_SUMS)) return t->poison;
			continue;
		}
		struct bfs_sums *w = rx_cow(t, &o->v.sums, h, i / BFS_SUMS, BFS_PK_SUMS);
		if (!w) return t->poison;
		memset(w->s, 0, sizeof w->s);
		memcpy(w->s, s + i, m * sizeof *s);
	}
	return t->poison;
}

/* in->size, wtime, new_sums say what it is to be.  -EEXIST: somebody else has published
 * the name; nothing is changed.  1: it has happened before. */
int sl_seal(struct txn *t, struct bfs_inode *in)
{
	struct bfs *b = t->b;
	u64 size = atomic_load(&in->size);
	i64 w = atomic_load(&in->wtime);
	int rc = 0;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
	if (!c) return rc;
	if (c->state == BFS_ST_SEALED && c->version == in->version + 1) return 1;
	if (c->version != in->version || c->owner != in->as || (c->state != BFS_ST_NEW && c->state != BFS_ST_DIRTY)) return bfs_fail(b, -ESTALE, "object %llu isn't what was to be sealed", (unsigned long long)in->ino);
	struct bfs_obj *o = ob_cow(t, in->ino);
	if (!o) return t->poison ? t->poison : -ESTALE;
	bool first = o->state == BFS_ST_NEW;
	if (first && (rc = nm_publish(t, o))) return rc;
	ob_count(t, o, -1);
	if ((rc = b->back ? bk_seal(t, in, o) : merge(t, o, in, granules(size)))) return rc;
	if (in->unverified) o->flags |= BFS_OF_UNVERIFIED;
	else o->flags &= (u8)~BFS_OF_UNVERIFIED;
	if ((rc = set_sums(t, o, in->new_sums, in->nnew_sums))) return rc;
	if (w) o->mtime_ns = w;
	if (w > o->ctime_ns) o->ctime_ns = w;
	o->size = size;
	o->version++;
	o->state = BFS_ST_SEALED, o->owner = 0;
	/* Synced, then written on: a journal or a log, which its writer counts on. */
	if (in->lives_on) o->cls = BFS_CLS_ORDINARY;
	if (in->lives_on || in->overwrote) o->flags &= (u8)~BFS_OF_FORMING;
	o->flags |= BFS_OF_PUBLISHED;
	ob_count(t, o, 1);
	if (!in->foreign && (rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, in->as - 1), o->slot, 0))) && rc != -ENOENT) return txn_fail(t, rc);
	gs_learn(t, o, size);
	t->root->seals++;
	ev_admit(b, o->slot, false);
	in->seal_flags = o->flags;
	return t->poison;
}

/* After the acknowledgement (in a batch: at once, see in_batch_mark): memory as the tree. */
void sl_done(struct bfs *b, struct bfs_inode *in)
{
	u64 size = atomic_load(&in->size);
	bool first = in->state == BFS_ST_NEW;
	lk(b, &b->ilock);
	struct bfs_extent *old = in->ext;
	u64 gran = 0;
	in->ext = in->new_ext, in->next_ext = in->ext_cap = in->nnew_ext;
	in->new_ext = NULL, in->nnew_ext = 0;
	for (int i = 0; i < in->next_ext; i++) gran += in->ext[i].len;
	in->base_end = in->next_ext ? in->ext[in->next_ext - 1].file_granule + in->ext[in->next_ext - 1].len : 0;
	in->state = BFS_ST_SEALED;
	in->version++;
	unlk(b, &b->ilock);
	xfree(b, old);
	xfree(b, in->sums);
	in->sums = in->new_sums, in->nsums = in->nnew_sums;
	in->new_sums = NULL, in->nnew_sums = 0;
	in->flags = in->seal_flags, in->unverified = false;
	in->base_size = size;
	if (!b->back) atomic_store(&in->granules, gran);
	atomic_store(&in->wtime, 0);
	in->dirty = false;
	in->scratch = 0;
	xfree(b, in->wsum);
	in->wsum = NULL, in->wsum_cap = 0;
	xfree(b, in->seen); /* all of it is this host's, or was fresh when it was read */
	in->seen = b->m->coherent ? NULL : xalloc(b, (size / b->sb.chunk_bytes / 64 + 1) * 8);
	if (in->nsums) fl_vtag(b, in);
	for (u32 c = 0; first && c < in->nsums; c++) /* the sums are of what this host has just stored */
		if (in->sums[c]) fl_verified(b, in, c);
}

/* Sums of the chunks that changed; the others keep theirs.  bad: the content is what a crash left. */
int sl_make_sums(struct bfs *b, struct bfs_inode *in, bool bad)
{
	u64 size = atomic_load(&in->size), cb = b->sb.chunk_bytes, n = (size + cb - 1) / cb, last = UINT64_MAX;
	bool was_bad = in->state == BFS_ST_DIRTY && in->flags & BFS_OF_UNVERIFIED, base = false;
	int rc = 0;
	if (b->back) return bk_make_sums(b, in, bad);
	xfree(b, in->new_sums);
	in->new_sums = NULL, in->nnew_sums = 0;
	for (int i = 0; i < in->next_ext; i++) base |= !in->ext[i].overlay;
	/* a sum made now of what nobody knows to be right would bless it */
	in->unverified = bad || (was_bad && base);
	if (!n || in->unverified || in->flags & BFS_OF_NOSUM) return 0;
	u64 *s = xalloc(b, n * sizeof *s);
	u8 *bounce = fl_bounce(b);
	if (!s || !bounce) rc = -ENOMEM;
	for (int i = 0; i < in->next_ext && !rc; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 from = e->file_granule * BFS_GRANULE / cb, to = min64(n, ((e->file_granule + e->len) * BFS_GRANULE + cb - 1) / cb);
		for (u64 c = last == UINT64_MAX || from > last ? from : last + 1; c < to && !rc; last = c++) {
			u64 g = c * (cb / BFS_GRANULE), end = g + cb / BFS_GRANULE;
			bool keep = !was_bad && c < in->nsums && (size == in->base_size || (c + 1) * cb <= min64(size, in->base_size));
			for (int k = mp_at(in, g); keep && k < in->next_ext && in->ext[k].file_granule < end; k++) keep = !in->ext[k].overlay;
			if (keep) s[c] = in->sums[c];
			else if (c < in->wsum_cap && in->wsum[c]) s[c] = in->wsum[c];
			else rc = fl_chunk_sum(b, in, c, size, bounce, &s[c]);
		}
	}
	fl_bounce_end(b, bounce);
	if (rc) {
		xfree(b, s);
		return rc;
	}
	in->new_sums = s, in->nnew_sums = (u32)n;
	return 0;
}

/* A first writing that came in pieces is copied into one extent, if there is one.  The copy
 * stands in the overlay, far behind the end, until the seal puts it in place: a crash before
 * that trims it like everything behind the end. */
void sl_compact(struct bfs *b, struct bfs_inode *in)
{
	u64 size = atomic_load(&in->size), end = granules(size), at = 0;
	int n = 0, rc = 0;
	struct extent e;
	struct txn *t;
	if (b->back || in->scratch || in->state != BFS_ST_NEW || in->cls != BFS_CLS_BLOCK || in_batch(b) || end > b->sb.region_granules) return;
	for (; n < in->next_ext && at < end; n++) {
		if (in->ext[n].file_granule != at || !in->ext[n].addr) return; /* holes stay holes */
		at += in->ext[n].len;
	}
	if (n < 2 || at < end || op_begin(b, &t)) return;
	if (t->root->granules_used + end > b->sb.data_granules / 16 * 15 || al_alloc(t, end, in->ino, &e, 1) != 1) {
		op_end(b, t, -ECANCELED);
		return;
	}
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_EXT, INO_SLOT(in->ino)), SCRATCH_FG, 1), .x = e.addr, .y = e.len};
	struct bfs_obj *o = ob_get(tview(t), in->ino, &rc) ? ob_cow(t, in->ino) : NULL;
	if (!o || o->version != in->version || o->state != BFS_ST_NEW) rc = -ESTALE;
	if (!rc) rc = ov_drop_scratch(t, o); /* of a seal that failed */
	if (!rc && !(rc = bt_put(t, &r))) {
		ob_count(t, o, -1);
		o->granules += e.len;
		ob_count(t, o, 1);
	}
	if (rc) txn_fail(t, rc);
	if ((rc = op_end(b, t, rc))) {
		if (rc == -EAGAIN) in->reload = true;
		return;
	}
	u8 *bounce = fl_bounce(b), *dst = al_mem(b, e.addr);
	rc = bounce ? 0 : -ENOMEM;
	for (u64 off = 0; off < size && !rc; off += b->sb.chunk_bytes) {
		u64 m = min64(b->sb.chunk_bytes, size - off);
		if (!(rc = fl_copy(b, in, off, bounce, m))) rc = b->m->ops->copy_in(b->m, dst + off, bounce, m);
	}
	fl_bounce_end(b, bounce);
	mm_fence(b->m);
	if (!b->m->coherent && !BFS_MUT(MUT_DATA_NO_FLUSH)) mm_flush(b->m, dst, (u64)e.len * BFS_GRANULE);
	mm_fence(b->m);
	if (!rc) in->scratch = e.addr; /* otherwise it is behind the end, and goes at the seal */
}

/* The overlay goes, the base was never anything else. */
int sl_obj_to_base(struct txn *t, struct bfs_obj *o, u8 as)
{
	struct recs base = {0}, over = {0};
	u64 gone = 0;
	int rc = read_recs(t, o, &base, &over);
	for (int i = 0; i < over.n && !rc; i++) {
		if (over.r[i].x) rc = al_unwind(t, over.r[i].x, (u32)over.r[i].y), gone += over.r[i].y;
		if (!rc) rc = bt_del(t, KEY(BFS_T(BFS_T_EXT, o->slot), over.r[i].k.b, 1));
	}
	xfree(t->b, base.r);
	xfree(t->b, over.r);
	ob_count(t, o, -1);
	o->state = BFS_ST_SEALED, o->owner = 0;
	o->granules -= min64(gone, o->granules);
	o->u.f.nextents = o->u.f.inl_addr ? 0 : (u32)base.n;
	ob_count(t, o, 1);
	if (!rc && (rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, as - 1), o->slot, 0))) == -ENOENT) rc = 0;
	return rc ? txn_fail(t, rc) : 0;
}

int sl_back_to_base(struct txn *t, u64 ino, u8 as)
{
	struct bfs_obj *o = ob_cow(t, ino);
	return o ? sl_obj_to_base(t, o, as) : t->poison ? t->poison : -ESTALE;
}
