/* Sealing: a file that was written becomes what other hosts see; rows; what a crash left.
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
#include <stdlib.h>
#include <sys/stat.h>
#include "file.h"

/* ---- rows ------------------------------------------------------------------------------ */
static u64 row_seed(struct bfs *b, const struct bfs_row *at) { return b->sb.incarnation ^ (u64)((const u8 *)at - b->m->base); }

static void row_store(struct bfs *b, u32 i, struct bfs_row *r)
{
	r->seq = ++b->rowseq[i];
	/* in turn: a copy that is torn by a crash leaves the one before it */
	struct bfs_row *at = host_row(b, b->slot, i) + (BFS_MUT(MUT_ROW_ONE_COPY) ? 0 : r->seq & 1);
	r->csum = bfs_xxh(&r->ino, sizeof *r - 8, row_seed(b, at));
	if (!r->csum) r->csum = 1;
	mm_store(b->m, at, r, sizeof *r);
	mm_pool_fence(b->m, at, sizeof *r);
}

int rw_put(struct bfs *b, struct bfs_inode *in, u8 state)
{
	struct bfs_row r = {.ino = in->ino, .version = in->version, .size = atomic_load(&in->size), .mtime_ns = atomic_load(&in->wtime), .state = state};
	if (in->row < 0) {
		lk(b, &b->ilock);
		for (u32 k = 0; k < b->sb.rows && in->row < 0; k++) {
			u32 i = (b->row_hint + k) % b->sb.rows;
			if (!b->rows_used[i]) b->rows_used[i] = 1, in->row = (int)i, b->row_hint = i + 1;
		}
		unlk(b, &b->ilock);
		if (in->row < 0) return bfs_fail(b, -ENFILE, "%u files are being written; the table of this host is full", b->sb.rows);
	}
	if (state == BFS_ROW_CLOSED && in->new_sums && in->nnew_sums && in->nnew_sums <= BFS_INLINE_SUMS) {
		r.nsums = in->nnew_sums;
		memcpy(r.sum, in->new_sums, in->nnew_sums * sizeof *r.sum);
	}
	/* The size of a file that is written on covers nothing that isn't in the pool. */
	if (state == BFS_ROW_DIRTY) fl_flush_overlay(b, in);
	in->rowst = state;
	row_store(b, (u32)in->row, &r);
	return 0;
}

void rw_clear(struct bfs *b, struct bfs_inode *in)
{
	struct bfs_row r = {.ino = in->ino, .state = BFS_ROW_FREE};
	in->rowst = BFS_ROW_FREE;
	if (in->row < 0) return;
	u32 i = (u32)in->row;
	in->row = -1;
	row_store(b, i, &r);
	lk(b, &b->ilock);
	b->rows_used[i] = 0;
	unlk(b, &b->ilock);
}

/* The newer valid copy of a row; false: none says anything. */
static bool row_load(struct bfs *b, u32 slot, u32 i, struct bfs_row *out)
{
	bool any = false;
	memset(out, 0, sizeof *out);
	for (int c = 0; c < 2; c++) {
		struct bfs_row r, *at = host_row(b, slot, i) + c;
		mm_load(b->m, &r, at, sizeof r);
		u64 sum = bfs_xxh(&r.ino, sizeof r - 8, row_seed(b, at));
		if (!r.csum || r.csum != (sum ? sum : 1) || r.nsums > BFS_INLINE_SUMS) continue;
		if (!any || r.seq > out->seq) *out = r;
		any = true;
	}
	return any;
}

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

/* size of the file last sealed in a directory: what the next one is likely to get */
static void set_guess(struct txn *t, const struct bfs_obj *o, u64 size)
{
	int rc = 0;
	const struct bfs_obj *d = o->parent && !(o->parent >> 63) ? ob_get(tview(t), o->parent, &rc) : NULL;
	if (!d || !S_ISDIR(d->mode) || d->flags & BFS_OF_NSBLOCK || o->cls != BFS_CLS_BLOCK || d->u.d.guess == granules(size)) return;
	struct bfs_obj *w = ob_cow(t, o->parent);
	if (w) w->u.d.guess = (u32)granules(size);
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
	if ((rc = merge(t, o, in, granules(size)))) return rc;
	if (in->unverified) o->flags |= BFS_OF_UNVERIFIED;
	else o->flags &= (u8)~BFS_OF_UNVERIFIED;
	if ((rc = set_sums(t, o, in->new_sums, in->nnew_sums))) return rc;
	if (w && !(o->mtime_ns != atomic_load(&in->tree_mtime) && o->ctime_ns >= w)) o->mtime_ns = w; /* see in_overlay_attr */
	if (w > o->ctime_ns) o->ctime_ns = w;
	o->size = size;
	o->version++;
	o->state = BFS_ST_SEALED, o->owner = 0;
	o->flags |= BFS_OF_PUBLISHED;
	ob_count(t, o, 1);
	if ((rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, in->as - 1), o->slot, 0))) && rc != -ENOENT) return txn_fail(t, rc);
	set_guess(t, o, size);
	t->root->seals++;
	if (o->cls == BFS_CLS_BLOCK) ev_admit(b, o->slot, false);
	in->seal_mtime = o->mtime_ns;
	in->seal_flags = o->flags;
	return t->poison;
}

/* After the acknowledgement (in a batch: at once, see in_batch_mark): memory as the tree. */
static void done(struct bfs *b, struct bfs_inode *in)
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
	atomic_store(&in->granules, gran);
	atomic_store(&in->tree_mtime, in->seal_mtime);
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
static int make_sums(struct bfs *b, struct bfs_inode *in, bool bad)
{
	u64 size = atomic_load(&in->size), cb = b->sb.chunk_bytes, n = (size + cb - 1) / cb, last = UINT64_MAX;
	bool was_bad = in->state == BFS_ST_DIRTY && in->flags & BFS_OF_UNVERIFIED, base = false;
	int rc = 0;
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
static void compact(struct bfs *b, struct bfs_inode *in)
{
	u64 size = atomic_load(&in->size), end = granules(size), at = 0;
	int n = 0, rc = 0;
	struct extent e;
	struct txn *t;
	if (in->scratch || in->state != BFS_ST_NEW || in->cls != BFS_CLS_BLOCK || in_batch(b) || end > b->sb.region_granules) return;
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

static void sealing(struct bfs *b, struct bfs_inode *in, int by)
{
	lk(b, &b->ilock);
	in->sealing += (u32)by;
	unlk(b, &b->ilock);
}

static void defer(struct bfs *b, struct bfs_inode *in, bool on)
{
	lk(b, &b->ilock);
	bool was = in->deferred;
	in->deferred = on;
	unlk(b, &b->ilock);
	if (was != on) atomic_fetch_add(&b->nwriting, on ? 1u : -1u);
}

/* ---- names of a first writing go ------------------------------------------------------------- */
static int drop_names(struct txn *t, u64 ino)
{
	struct ht_entry e;
	int rc = 0;
	for (u32 n = 0; n <= BFS_LINK_MAX; n++) {
		const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
		if (!o) return n && rc == -ESTALE ? 0 : rc; /* with the last name it is freed, or becomes an orphan */
		if (!o->nlink) return 0;
		if ((rc = ht_by_cookie(tview(t), o->hash, o->parent, o->cookie, &e)) || (rc = nm_remove(t, &e))) return rc == -ENOENT ? -EIO : rc;
	}
	return -EIO;
}

static int drop_named(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	for (int tries = 0; tries < 5; tries++) {
		if ((rc = op_begin(b, &t))) return rc;
		if ((rc = op_end(b, t, drop_names(t, in->ino))) != -EAGAIN) break;
	}
	in_batch_mark(b, in);
	return rc;
}

/* ---- closing -------------------------------------------------------------------------------------- */
/* 1: has no name any more, its data dies with the last descriptor */
static int unlinked(struct bfs *b, struct bfs_inode *in, bool strict)
{
	struct rd r;
	struct txn *t;
	int rc = 0;
	bool batch = strict || in_batch(b);
	if ((rc = batch ? op_begin(b, &t) : rd_begin(b, &r))) return rc;
	const struct bfs_obj *o = ob_get(batch ? tview(t) : &r.v, in->ino, &rc);
	if (o) rc = !o->nlink;
	if (rc == -ESTALE) {
		in->gone = true;
		rc = 1;
	}
	if (batch) op_end(b, t, 0);
	else rd_end(&r);
	return rc;
}

static int seal_once(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	if ((rc = op_begin(b, &t))) return rc;
	sealing(b, in, 1);
	rc = sl_seal(t, in);
	bool before = rc == 1; /* it had happened, and the answer was lost */
	if (before) rc = in_reload(tview(t), in);
	rc = op_end(b, t, rc);
	if (!rc && !before) {
		done(b, in);
		in_batch_mark(b, in);
	}
	if (rc == -EAGAIN) in->frozen = true; /* before: see announced() */
	sealing(b, in, -1);
	return rc;
}

static int flush(struct bfs *b, struct bfs_inode *in, bool wait)
{
	int rc = sl_settle(b, in);
	if ((rc == -EAGAIN || rc == -EBUSY) && in->deferred) return 0; /* still promised by the row */
	if (rc) return in->gone || in->stale ? 0 : rc;
	if (in->state != BFS_ST_NEW && in->state != BFS_ST_DIRTY) {
		defer(b, in, false);
		return 0;
	}
	if (in->lost) {
		if (!(rc = drop_named(b, in))) defer(b, in, false);
		return rc == -EAGAIN || rc == -EBUSY ? 0 : rc;
	}
	if (in->killed) return sl_abandon(b, in);
	if ((rc = unlinked(b, in, false))) return rc < 0 ? rc : 0;
	fl_flush_overlay(b, in);
	compact(b, in);
	if ((rc = sl_settle(b, in)) || (rc = make_sums(b, in, false))) return rc;
	u64 limit = b->o.seal_timeout_ns ? b->o.seal_timeout_ns : 2 * b->o.suspect_ns + 5000000000ull, begun = b->m->ops->mono_ns(b->m), nap = 1000000;
	if (!in_batch(b) && (rc = rw_put(b, in, BFS_ROW_CLOSED)) && rc != -ENFILE) return rc; /* without a row only the seal is a promise */
	for (;;) {
		rc = seal_once(b, in);
		if ((rc != -EAGAIN && rc != -EBUSY) || in_batch(b) || !wait || b->m->ops->mono_ns(b->m) - begun > limit) break;
		b->m->ops->pause(b->m, nap);
		if (nap < 64000000) nap *= 2;
	}
	in->scratch = 0; /* what is written from now on isn't in the copy */
	if (!rc) {
		rw_clear(b, in);
		in->frozen = false;
		defer(b, in, false);
	} else if (rc == -EEXIST) {
		/* first seal wins; the data of the second goes with its descriptors */
		rw_clear(b, in);
		in->lost = true; /* never sealed later: it was said that it isn't there */
		defer(b, in, drop_named(b, in) != 0);
		bfs_fail(b, rc, "another host has published a file of that name meanwhile");
	} else if ((rc == -EAGAIN || rc == -EBUSY || rc == -ENOSPC) && in->rowst == BFS_ROW_CLOSED) {
		/* The row keeps the promise of close(2); fl_tick, the next close, or whoever
		 * recovers this slot makes the seal. */
		if (!in->deferred) atomic_fetch_add(&b->seal_deferred, 1);
		defer(b, in, true);
		rc = 0;
	}
	return rc;
}

int sl_flush(struct bfs *b, struct bfs_inode *in) { return flush(b, in, true); }

/* The file stays on its own host, as POSIX has it, and is the first that eviction takes; no
 * other host ever sees it.  With publish=close it was never seen, and goes at once. */
int sl_abandon(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc = sl_settle(b, in);
	u64 size = atomic_load(&in->size), end = granules(size), gone = 0;
	in->killed = true;
	if (rc) return in->gone || in->stale ? 0 : rc;
	if (in->state != BFS_ST_NEW || (rc = unlinked(b, in, false))) return rc < 0 ? rc : 0;
	/* Rule 21: the dead process's lines are in the machine's cache.  They are brought out
	 * before anything of its extents goes back. */
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in);
	if (b->o.publish_close) {
		rc = drop_named(b, in);
		if (!rc) rw_clear(b, in);
		return rc;
	}
	for (int tries = 0; tries < 5; tries++) {
		if ((rc = op_begin(b, &t))) return rc;
		const struct bfs_obj *c = ob_get(tview(t), in->ino, &rc);
		struct bfs_obj *o = c && c->state == BFS_ST_NEW && c->version == in->version ? ob_cow(t, in->ino) : NULL;
		if (!o) return op_end(b, t, rc ? rc : t->poison ? t->poison : -ESTALE);
		gone = 0;
		for (int i = mp_at(in, end); i < in->next_ext; i++) gone += in->ext[i].file_granule + in->ext[i].len - max64(end, in->ext[i].file_granule);
		ob_count(t, o, -1);
		if (gone) ov_drop(t, in, end, granules(SIZE_MAX_BYTES));
		o->state = BFS_ST_ABANDONED;
		o->size = size;
		o->granules -= min64(gone, o->granules);
		if (atomic_load(&in->wtime)) o->mtime_ns = atomic_load(&in->wtime);
		ob_count(t, o, 1);
		if ((rc = bt_del(t, KEY(BFS_T(BFS_T_OPEN, b->slot), o->slot, 0))) && rc != -ENOENT) txn_fail(t, rc);
		ev_admit(b, o->slot, true);
		if ((rc = op_end(b, t, 0)) != -EAGAIN) break;
	}
	if (rc) {
		in->reload |= rc == -EAGAIN;
		return rc;
	}
	if (gone) mp_set(b, in, end, granules(SIZE_MAX_BYTES) - end, 0, 0);
	atomic_fetch_sub(&in->granules, gone);
	in_set_state(b, in, BFS_ST_ABANDONED);
	in_batch_mark(b, in);
	in->created_here = false;
	in->dirty = false;
	rw_clear(b, in);
	return 0;
}

void sl_free_orphan(struct bfs *b, struct bfs_inode *in)
{
	struct txn *t;
	int rc;
	lk(b, &b->ilock);
	bool busy = in->opens > 1;
	if (!busy) in->dying = true;
	unlk(b, &b->ilock);
	if (busy) return;
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in); /* rule 21 */
	rc = op_begin(b, &t);
	if (!rc) {
		const struct bfs_obj *o = ob_get(tview(t), in->ino, &rc);
		if (o && !o->nlink) rc = nm_free_orphan(t, b->slot, in->ino);
		else if (o) rc = -ECANCELED;
		rc = op_end(b, t, rc);
	}
	bool later = rc && rc != -ESTALE && rc != -ENOENT && rc != -ECANCELED, linked = rc == -ECANCELED;
	lk(b, &b->ilock);
	if (later && !in->orphan_wait) b->orphans_waiting++;
	if (!later && in->orphan_wait) b->orphans_waiting--;
	in->orphan_wait = later;
	if (linked) in->dying = false;
	else if (!later) in->gone = true;
	unlk(b, &b->ilock);
	if (!later && !linked) rw_clear(b, in);
}

int sl_last(struct bfs *b, struct bfs_inode *in, bool strict)
{
	int rc;
	if (in->gone || in->stale || in->deferred) return 0;
	if ((rc = in_lock(b, in, true))) return rc;
	rc = unlinked(b, in, strict);
	if (rc < 0 && strict) { /* no lead now: fl_tick looks again */
		lk(b, &b->ilock);
		if (!in->orphan_wait) b->orphans_waiting++;
		in->orphan_wait = true;
		unlk(b, &b->ilock);
	}
	if (in->gone) rw_clear(b, in);
	else if (rc > 0) sl_free_orphan(b, in);
	else if (!rc && in->state != BFS_ST_SEALED) rc = in->killed ? sl_abandon(b, in) : in->state == BFS_ST_ABANDONED ? 0 : sl_flush(b, in);
	in_unlock(b, in);
	return rc;
}

int sl_force(struct bfs *b, u64 ino)
{
	struct bfs_inode *in;
	lk(b, &b->ilock);
	if ((in = in_find(b, ino))) in->opens++, in->uses++;
	unlk(b, &b->ilock);
	if (!in) return bfs_fail(b, -EBUSY, "object %llu was being written when this host crashed, and isn't recovered yet", (unsigned long long)ino);
	int rc = in_lock(b, in, true);
	if (!rc) {
		rc = sl_flush(b, in);
		/* a rename that goes on before the seal would move a name that others don't see */
		if (!rc && in->deferred) rc = bfs_fail(b, -EBUSY, "the file can't be sealed now; it is tried again");
		in_unlock(b, in);
	}
	in_put(b, in, false);
	return rc;
}

/* ---- what was put off ---------------------------------------------------------------------------- */
void fl_tick(struct bfs *b)
{
	struct bfs_inode *work[64];
	u64 bad[64][2];
	struct txn *t;
	int n = 0;
	u32 nbad = 0;
	if (b->o.readonly) return;
	lk(b, &b->ilock);
	if (atomic_load(&b->nwriting) || b->orphans_waiting)
		for (u32 i = 0; i < b->ihash_size && n < 64; i++)
			for (struct bfs_inode *in = b->ihash[i]; in && n < 64; in = in->next)
				if ((in->deferred || in->orphan_wait) && !in->stale) in->opens++, in->uses++, work[n++] = in;
	if (b->nbadq && atomic_load(&b->leader)) {
		memcpy(bad, b->badq, sizeof bad);
		nbad = b->nbadq, b->nbadq = 0;
	}
	unlk(b, &b->ilock);
	for (int i = 0; i < n; i++) {
		struct bfs_inode *in = work[i];
		if (!in_lock(b, in, true)) {
			if (in->orphan_wait) sl_free_orphan(b, in);
			else flush(b, in, false);
			in_unlock(b, in);
		}
		in_put(b, in, false);
	}
	if (!nbad || op_begin(b, &t)) return;
	for (u32 i = 0; i < nbad && !t->poison; i++) al_bad(t, bad[i][0], bad[i][1]);
	op_end(b, t, 0);
}

/* ---- after a crash --------------------------------------------------------------------------------- */
static int by_ino(const void *p, const void *q)
{
	const struct bfs_row *x = p, *y = q;
	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static int load_rows(struct bfs *b, u32 slot, struct bfs_row **out, u32 *n)
{
	struct bfs_row *l = xalloc(b, b->sb.rows * sizeof *l);
	if (!l) return -ENOMEM;
	*n = 0;
	for (u32 i = 0; i < b->sb.rows; i++) {
		bool any = row_load(b, slot, i, &l[*n]);
		if (slot == b->slot) b->rowseq[i] = l[*n].seq, b->rows_used[i] = 0;
		if (any && l[*n].state != BFS_ROW_FREE) (*n)++;
	}
	qsort(l, *n, sizeof *l, by_ino);
	*out = l;
	return 0;
}

/* The overlay goes, the base was never anything else. */
static int back_to_base(struct txn *t, struct bfs_obj *o, u8 as)
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
	return o ? back_to_base(t, o, as) : t->poison ? t->poison : -ESTALE;
}

static int recover_one(struct txn *t, u32 slot, u64 ino, const struct bfs_row *row)
{
	struct bfs *b = t->b;
	u8 as = (u8)(slot + 1);
	int rc = 0;
	struct bfs_key k = KEY(BFS_T(BFS_T_OPEN, slot), INO_SLOT(ino), 0);
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (rc && rc != -ESTALE) return rc;
	if (!o || o->owner != as || (o->state != BFS_ST_NEW && o->state != BFS_ST_DIRTY)) return bt_del(t, k);
	if (!o->nlink) return 0; /* an orphan: freed as such */
	if (row && (row->version != o->version || (row->state != BFS_ROW_CLOSED && row->state != BFS_ROW_DIRTY) || row->size > SIZE_MAX_BYTES)) row = NULL;
	struct bfs_inode *in = in_alloc(b, ino);
	if (!in) return -ENOMEM;
	in->as = as;
	if ((rc = in_load(tview(t), o, in))) goto out;
	if (slot == b->slot) { /* Rule 21: what the dead process stored is in this machine's cache */
		fl_stored(in, 0, SIZE_MAX_BYTES);
		if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in);
	} else {
		for (int i = 0; i < in->next_ext; i++)
			if (in->ext[i].addr) mm_inval(b->m, al_mem(b, in->ext[i].addr), (u64)in->ext[i].len * BFS_GRANULE);
		mm_fence(b->m);
	}
	if (!row) {
		struct bfs_obj *w = o->state == BFS_ST_DIRTY ? ob_cow(t, ino) : NULL;
		if (w) rc = back_to_base(t, w, as);
		else rc = t->poison ? t->poison : drop_names(t, ino);
		goto out;
	}
	atomic_store(&in->size, row->size);
	atomic_store(&in->wtime, row->mtime_ns);
	rc = make_sums(b, in, row->state == BFS_ROW_DIRTY);
	if (rc == -EIO) rc = make_sums(b, in, true); /* unreadable: said when it is read */
	if (!rc && row->nsums && in->nnew_sums == row->nsums) memcpy(in->new_sums, row->sum, row->nsums * sizeof *row->sum); /* as it was closed */
	if (!rc) rc = sl_seal(t, in);
	if (rc == -EEXIST) rc = drop_names(t, ino); /* somebody else was first */
out:
	in_destroy(b, in);
	return rc;
}

/* A batch of records of this kind, those with slot numbers from *from on. */
static int some(struct bfs *b, u64 kind, u32 slot, u64 *from, u64 *ino, int max)
{
	struct rd r;
	struct bfs_rec rec[64];
	int rc = rd_begin(b, &r), n;
	if (rc) return rc;
	n = bt_range(&r.v, KEY(BFS_T(kind, slot), *from, 0), rec, max);
	rd_end(&r);
	for (int i = 0; i < n; i++) ino[i] = rec[i].x, *from = rec[i].k.b + 1;
	return n;
}

/* Also for who attaches as a follower: rows go on with their numbers, or a new row would
 * be older than what it replaces. */
int sl_pending(struct bfs *b)
{
	struct bfs_row *rows = NULL;
	u32 nrows = 0;
	u64 ino[64], from = 0;
	int n, rc = load_rows(b, b->slot, &rows, &nrows);
	xfree(b, rows);
	if (rc || nrows) return rc ? rc : 1;
	if ((n = some(b, BFS_T_OPEN, b->slot, &from, ino, 64)) != 0) return n < 0 ? n : 1;
	from = 0;
	n = some(b, BFS_T_ORPHAN, b->slot, &from, ino, 64);
	return n < 0 ? n : n > 0;
}

int sl_recover_slot(struct bfs *b, u32 slot)
{
	struct bfs_row *rows = NULL;
	u32 nrows = 0;
	u64 ino[64], from = 0;
	struct txn *t;
	int n, rc = load_rows(b, slot, &rows, &nrows);
	while (!rc && (n = some(b, BFS_T_OPEN, slot, &from, ino, 64)) != 0) {
		if (n < 0) rc = n;
		for (int i = 0; i < n && !rc; i++) {
			struct bfs_row key = {.ino = ino[i]}, *row = nrows ? bsearch(&key, rows, nrows, sizeof *rows, by_ino) : NULL;
			/* several rows of one file: the newest process's, as far as any of them fits */
			while (row && row > rows && row[-1].ino == row->ino) row--;
			for (struct bfs_row *x = row; x && x < rows + nrows && x->ino == ino[i]; x++)
				if (x->version > row->version || (x->version == row->version && x->mtime_ns > row->mtime_ns)) row = x;
			for (int tries = 0; tries < 5; tries++) {
				if ((rc = op_begin(b, &t))) break;
				if ((rc = op_end(b, t, recover_one(t, slot, ino[i], row))) != -EAGAIN) break;
			}
		}
	}
	xfree(b, rows);
	from = 0;
	while (!rc && (n = some(b, BFS_T_ORPHAN, slot, &from, ino, 64)) != 0) {
		if (n < 0) rc = n;
		if (n > 0 && !(rc = op_begin(b, &t))) {
			for (int i = 0; i < n && !rc; i++) rc = nm_free_orphan(t, slot, ino[i]);
			rc = op_end(b, t, rc);
		}
	}
	if (rc || slot != b->slot) return rc;
	/* all of it is in the tree: no row says anything any more */
	for (u32 i = 0; i < b->sb.rows; i++) {
		struct bfs_row r = {.state = BFS_ROW_FREE}, now;
		if (row_load(b, slot, i, &now) && now.state != BFS_ROW_FREE) row_store(b, i, &r);
	}
	return 0;
}

/* At attach, and at a clean detach for what is still open then. */
int sl_recover(struct bfs *b)
{
	if (b->o.readonly) return 0;
	for (u32 i = 0; i < b->ihash_size; i++)
		while (b->ihash[i]) {
			struct bfs_inode *in = b->ihash[i];
			fl_flush_overlay(b, in);
			b->ihash[i] = in->next;
			in_destroy(b, in);
		}
	for (u32 i = 0; i < b->nhandles; i++) { /* ids of open handles lose their index */
		struct bfs_handle *h = &atomic_load(&b->hchunk[i / 4096])[i % 4096];
		atomic_store(&h->id, atomic_load(&h->id) & ~0xffffffffull);
		h->in = NULL;
	}
	atomic_store(&b->nwriting, 0);
	b->nbatch = 0;
	return sl_recover_slot(b, b->slot);
}
