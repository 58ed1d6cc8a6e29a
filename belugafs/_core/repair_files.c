/* Repair: which objects stay.
 *
 * A field that follows from others is set right; one that doesn't, and is impossible, costs
 * the object.  A file whose mapping or space has come into doubt stays if all of its content,
 * holes too, has the checksums that it was sealed with, and goes otherwise: it could show
 * foreign bytes.  A rewriting that can't be trusted falls back to the content before it. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "repair.h"

/* that an object of this type may have; both kinds of pin together can't be */
static u8 flags_of(const struct bfs_obj *o)
{
	u8 may = BFS_OF_NOSUM | BFS_OF_UNVERIFIED | BFS_OF_PUBLISHED;
	if (S_ISDIR(o->mode)) may |= BFS_OF_NSBLOCK | BFS_OF_EMPTIED;
	if (S_ISREG(o->mode)) may |= BFS_OF_FORMING;
	if (S_ISDIR(o->mode) || S_ISREG(o->mode)) may |= BFS_OF_PINNED | BFS_OF_PINNED_SOFT;
	if (o->flags & BFS_OF_PINNED) may &= (u8)~BFS_OF_PINNED_SOFT;
	return o->flags & may;
}

void rp_drop(struct rp *r, struct rslot *s, const char *why)
{
	(void)r;
	if (!s->drop) s->drop = why;
}

bool rp_promised(struct rp *r, const struct rslot *s)
{
	struct ck *k = r->k;
	for (u32 h = 0; h < k->sb.nhosts && !r->rows_read; h++)
		for (u32 n = 0; n < k->sb.rows; n++) {
			struct bfs_row c[2];
			u64 at;
			u32 torn;
			const struct bfs_row *w = rp_row(k, h, n, c, &at, &torn);
			if (!w || (w->state != BFS_ROW_CLOSED && w->state != BFS_ROW_DIRTY) || w->nsums > BFS_INLINE_SUMS) continue;
			struct rslot *x = rp_ino(r, w->ino);
			if (x && x->o.state == BFS_ST_NEW && x->o.owner == h + 1 && x->o.version == w->version && ROOM(k, r->row)) r->row.v[r->row.n++] = *w;
		}
	r->rows_read = true;
	for (size_t i = 0; i < r->row.n; i++)
		if (r->row.v[i].ino == ob_ino(&s->o)) return s->o.state == BFS_ST_NEW;
	return false;
}

/* ---- fields -------------------------------------------------------------------------------- */
static bool fmt_known(u32 mode)
{
	return !(mode >> 16) && (S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) || S_ISCHR(mode) || S_ISBLK(mode) || S_ISFIFO(mode) || S_ISSOCK(mode));
}

/* Pages that hang on an object have one place each, like all others. */
static bool take(struct rp *r, struct bfs_ptr p, int kind, void *buf)
{
	if (!rp_page(r, p, kind, buf) || fk_get(r->seen, p.page)) return false;
	fk_set(r->seen, p.page);
	return true;
}

static bool blob_whole(struct rp *r, const struct bfs_obj *o)
{
	u64 buf[BFS_PAGE / 8], got = 0;
	const struct bfs_blob *b = (const void *)buf;
	u8 *all = malloc(BFS_XATTR_MAX);
	bool ok = all;
	if (!all) r->k->err = -ENOMEM;
	for (struct bfs_ptr p = o->blob; p.page && ok; p = b->next) {
		ok = take(r, p, BFS_PK_BLOB, buf) && b->h.aux && b->h.aux <= BFS_BLOB_BYTES && (!b->next.page || b->h.aux == BFS_BLOB_BYTES) && got + b->h.aux <= BFS_XATTR_MAX;
		if (ok) memcpy(all + got, b->data, b->h.aux), got += b->h.aux;
	}
	ok = ok && got == o->blob_len && (S_ISLNK(o->mode) || fk_xattrs_ok(all, (u32)got));
	free(all);
	return ok;
}

static bool sums_whole(struct rp *r, struct bfs_ptr p, u32 level, u64 base, u64 n)
{
	u64 buf[BFS_PAGE / 8], step = 1;
	const struct bfs_radix *x = (const void *)buf;
	if (!p.page) return true;
	if (!take(r, p, level ? BFS_PK_RADIX : BFS_PK_SUMS, buf)) return false;
	if (!level) return true;
	if (x->h.aux != level) return false;
	for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
	for (u32 i = 0; i < BFS_RADIX_FAN; i++) {
		if (base + i * step < n ? !sums_whole(r, x->child[i], level - 1, base + i * step, n) : x->child[i].page != 0) return false;
	}
	return true;
}

static void to_base(struct rp *r, struct rslot *s, const char *why)
{
	if (s->o.state == BFS_ST_SEALED || s->drop) return;
	if (s->o.state != BFS_ST_DIRTY) {
		rp_drop(r, s, why);
		return;
	}
	s->o.state = BFS_ST_SEALED, s->o.owner = 0;
	s->doubt = 1; /* how many of the granules were the base's isn't known */
	r->mended++;
	fk_did(r->k, "rewriting-dropped", "inode %llu: what was written since its last seal is dropped: %s", (ull)ob_ino(&s->o), why);
}

#define MEND(field, value) do { if (o->field != (value)) o->field = (value), r->mended++; } while (0)
static void fields(struct rp *r, struct rslot *s)
{
	struct bfs_obj *o = &s->o;
	bool reg = S_ISREG(o->mode);
	if (!fmt_known(o->mode)) return rp_drop(r, s, "its type is impossible");
	if (o->gen >> 31) return rp_drop(r, s, "its generation is impossible");
	MEND(next_free, 0);
	MEND(flags, flags_of(o));
	if (!reg) {
		MEND(state, BFS_ST_SEALED);
		MEND(owner, 0);
		MEND(cls, BFS_CLS_NONE);
		if (!S_ISLNK(o->mode) && o->size >> 63) o->size = 0, r->mended++;
		if (o->granules) o->granules = 0, r->mended++;
	} else {
		if (o->state < BFS_ST_SEALED || o->state > BFS_ST_ABANDONED) return rp_drop(r, s, "its state is impossible");
		if (o->cls != BFS_CLS_BLOCK) MEND(cls, BFS_CLS_ORDINARY);
		if (o->size >> 62) return rp_drop(r, s, "its size is impossible");
		if (o->state == BFS_ST_SEALED) MEND(owner, 0);
		else if (!o->owner || o->owner > r->k->sb.nhosts) to_base(r, s, "it isn't known who writes it");
		if (s->drop) return;
	}
	if (S_ISLNK(o->mode) && (!o->size || o->size > BFS_SYMLINK_MAX || o->blob_len != o->size || !o->blob.page != (o->size <= BFS_INLINE_LINK)))
		return rp_drop(r, s, "the length of its target is impossible");
	if (o->blob.page && !blob_whole(r, o)) {
		if (S_ISLNK(o->mode)) return rp_drop(r, s, "its target is damaged");
		o->blob = (struct bfs_ptr){0}, o->blob_len = 0;
		r->dropped++;
		fk_did(r->k, "attributes-dropped", "inode %llu: its extended attributes are damaged, and dropped", (ull)ob_ino(o));
	} else if (!o->blob.page) {
		if (o->blob.term || o->blob.txn) o->blob = (struct bfs_ptr){0}, r->mended++;
		if (!S_ISLNK(o->mode)) MEND(blob_len, 0);
	}
	if (!reg) return;
	u64 want = fk_up(o->size, r->k->sb.chunk_bytes), leaves = fk_up(o->nsums, BFS_SUMS);
	if (o->nsums > BFS_INLINE_SUMS) {
		if (!sums_whole(r, o->v.sums, rx_height(leaves), 0, leaves)) return rp_drop(r, s, "its checksums are damaged");
		MEND(sums_height, rx_height(leaves));
	} else {
		MEND(sums_height, 0);
	}
	if (o->nsums && o->nsums != want && !(o->flags & BFS_OF_UNVERIFIED)) return rp_drop(r, s, "the number of its checksums doesn't fit its size");
	if (!o->nsums && want && o->state == BFS_ST_SEALED && !(o->flags & (BFS_OF_UNVERIFIED | BFS_OF_NOSUM))) return rp_drop(r, s, "it has no checksums");
}

/* ---- mapping --------------------------------------------------------------------------------- */
static void put(struct rp *r, struct rslot *s, u64 fgran, u64 addr, u32 len, u8 ov)
{
	if (ROOM(r->k, r->piece)) r->piece.v[r->piece.n++] = (struct piece){addr, fgran, len, rp_slot_of(r, s), ov};
}

static bool rec_sound(struct rp *r, const struct bfs_rec *e)
{
	u32 len = (u32)e->y, hole = e->y >> 32 & 1;
	if (e->k.c > 1 || e->y >> 33 || !len || e->k.b > 1ull << 51 || e->k.b + len > 1ull << 51) return false;
	if (hole) return e->k.c == 1 && !e->x;
	return len <= r->k->sb.region_granules && fk_extent_ok(r->k, e->x, len);
}

/* In a directory pool: the backing file instead of extents. */
static void backing(struct rp *r, struct rslot *s)
{
	struct bfs_obj *o = &s->o;
	struct stat st;
	int rc = fk_backing_stat(r->k, ob_ino(o), &st);
	if (rc || !S_ISREG(st.st_mode)) return rp_drop(r, s, "its backing file is gone");
	if (o->state == BFS_ST_SEALED && o->size != (u64)st.st_size && !(o->flags & BFS_OF_UNVERIFIED)) return rp_drop(r, s, "its backing file has another size");
	if (o->state == BFS_ST_SEALED && o->flags & BFS_OF_UNVERIFIED) MEND(size, (u64)st.st_size);
	MEND(u.f.inl_addr, 0);
	MEND(u.f.inl_len, 0);
	MEND(u.f.nextents, 0);
}

static void mapping(struct rp *r, struct rslot *s)
{
	struct bfs_obj *o = &s->o;
	if (fk_directory(r->k)) return backing(r, s);
	u64 kind = BFS_T(BFS_T_EXT, rp_slot_of(r, s)), end[2] = {0}, mapped[2] = {0};
	u32 n[2] = {0};
	bool bad[2] = {false, false};
	size_t from = rp_find(r, KEY(kind, 0, 0)), i;
	if (o->u.f.inl_addr || o->u.f.inl_len) {
		if (o->u.f.inl_len > r->k->sb.region_granules || !fk_extent_ok(r->k, o->u.f.inl_addr, o->u.f.inl_len)) bad[0] = true;
		mapped[0] = end[0] = o->u.f.inl_len;
	}
	for (i = from; i < r->rec.n && r->rec.v[i].k.a == kind; i++) {
		const struct bfs_rec *e = &r->rec.v[i];
		u32 ov = e->k.c == 1;
		if (!rec_sound(r, e) || e->k.b < end[ov]) bad[ov] = true;
		end[ov] = e->k.b + (u32)e->y;
		n[ov]++;
		if (!(e->y >> 32 & 1)) mapped[ov] += (u32)e->y;
	}
	if (o->u.f.inl_addr && n[0]) bad[0] = true;
	if (o->state != BFS_ST_SEALED && (bad[1] || o->granules != mapped[0] + mapped[1])) to_base(r, s, "the record of where it lies is damaged");
	if ((o->state == BFS_ST_NEW || o->state == BFS_ST_ABANDONED) && (n[0] || mapped[0])) rp_drop(r, s, "it has a sealed content and was never sealed");
	if (bad[0]) rp_drop(r, s, "the record of where it lies is damaged");
	if (s->drop) return;
	if (o->state == BFS_ST_SEALED) {
		if (n[1] || o->granules != mapped[0] || o->u.f.nextents != n[0]) s->doubt = 1;
		MEND(granules, mapped[0]);
		MEND(u.f.nextents, n[0]);
	}
	if (o->u.f.inl_addr) put(r, s, 0, o->u.f.inl_addr, o->u.f.inl_len, 0);
	for (i = from; i < r->rec.n && r->rec.v[i].k.a == kind; i++) {
		const struct bfs_rec *e = &r->rec.v[i];
		if (e->x && (o->state != BFS_ST_SEALED || !e->k.c)) put(r, s, e->k.b, e->x, (u32)e->y, e->k.c == 1);
	}
}

/* ---- content ------------------------------------------------------------------------------------ */
struct reader {
	u64 buf[BFS_PAGE / 8];
	u64 have; /* leaf in buf + 1 */
	u8 data[64 << 10];
};

static bool sum_at(struct rp *r, const struct bfs_obj *o, struct reader *x, u64 chunk, u64 *out)
{
	if (o->nsums <= BFS_INLINE_SUMS) {
		*out = o->v.sum[chunk];
		return true;
	}
	u64 leaf = chunk / BFS_SUMS;
	if (x->have != leaf + 1) {
		struct bfs_ptr p = o->v.sums;
		for (u32 level = o->sums_height; level && p.page; level--) {
			u64 step = 1;
			if (!rp_page(r, p, BFS_PK_RADIX, x->buf)) return false;
			for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
			p = ((const struct bfs_radix *)x->buf)->child[leaf / step % BFS_RADIX_FAN];
		}
		if (!p.page) memset(x->buf, 0, sizeof x->buf);
		else if (!rp_page(r, p, BFS_PK_SUMS, x->buf)) return false;
		x->have = leaf + 1;
	}
	*out = ((const struct bfs_sums *)x->buf)->s[chunk % BFS_SUMS];
	return true;
}

/* base pieces in order of the file: granule of it -> place, or how far the hole goes */
static u64 where(struct rp *r, const struct rslot *s, u64 g, u64 *addr)
{
	const struct bfs_obj *o = &s->o;
	u64 kind = BFS_T(BFS_T_EXT, rp_slot_of(r, s)), next = ~0ull;
	*addr = 0;
	if (o->u.f.inl_addr && g < o->u.f.inl_len) {
		*addr = o->u.f.inl_addr + g;
		return o->u.f.inl_len - g;
	}
	size_t i = rp_find(r, KEY(kind, g + 1, 0));
	for (size_t j = i; j-- > 0 && r->rec.v[j].k.a == kind && i - j < 3;) { /* base and overlay take turns */
		const struct bfs_rec *e = &r->rec.v[j];
		if (e->k.c) continue;
		if (g < e->k.b + (u32)e->y) {
			*addr = e->x + (g - e->k.b);
			return e->k.b + (u32)e->y - g;
		}
		break;
	}
	for (; i < r->rec.n && r->rec.v[i].k.a == kind; i++)
		if (!r->rec.v[i].k.c) {
			next = r->rec.v[i].k.b;
			break;
		}
	return next == ~0ull ? next : next - g;
}

static bool backing_verifies(struct rp *r, struct rslot *s)
{
	const struct bfs_obj *o = &s->o;
	u64 chunk = r->k->sb.chunk_bytes, want;
	if (o->nsums != fk_up(o->size, chunk) || o->flags & BFS_OF_UNVERIFIED) return false;
	struct reader *x = malloc(sizeof *x);
	u8 *buf = malloc(chunk);
	int fd = fk_backing_open(r->k, ob_ino(o));
	bool ok = x && buf && fd >= 0;
	if (!x || !buf) r->k->err = -ENOMEM;
	if (x) x->have = 0;
	for (u64 c = 0; c < o->nsums && ok; c++) {
		u64 n = o->size - c * chunk < chunk ? o->size - c * chunk : chunk;
		ok = sum_at(r, o, x, c, &want) && (!want || fk_backing_read(fd, c * chunk, buf, n));
		u64 got = ok && want ? bfs_sum(buf, n) : 0;
		ok = ok && (!want || (got ? got : 1) == want);
		r->k->r->bytes_checked += n;
	}
	if (fd >= 0) close(fd);
	free(buf);
	free(x);
	return ok;
}

bool rp_verifies(struct rp *r, struct rslot *s)
{
	if (fk_directory(r->k)) return s->o.state != BFS_ST_NEW && s->o.state != BFS_ST_ABANDONED && backing_verifies(r, s);
	static const u8 zeros[BFS_GRANULE];
	const struct bfs_obj *o = &s->o;
	struct ck *k = r->k;
	u64 chunk = k->sb.chunk_bytes;
	if (!o->size && o->state != BFS_ST_NEW) { /* nothing to verify, but space may say that there was something */
		u64 kind = BFS_T(BFS_T_EXT, rp_slot_of(r, s));
		size_t i = rp_find(r, KEY(kind, 0, 0));
		return !o->u.f.inl_len && (i == r->rec.n || r->rec.v[i].k.a != kind);
	}
	if (!o->nsums || o->flags & BFS_OF_UNVERIFIED || o->state == BFS_ST_NEW || o->state == BFS_ST_ABANDONED || o->nsums != fk_up(o->size, chunk)) return false;
	struct reader *x = malloc(sizeof *x);
	XXH3_state_t *h = XXH3_createState();
	bool ok = x && h;
	if (!ok) k->err = -ENOMEM;
	if (x) x->have = 0;
	for (u64 c = 0; c < o->nsums && ok; c++) {
		u64 at = c * chunk, end = at + chunk < o->size ? at + chunk : o->size, want, mapped = 0;
		if (!(ok = sum_at(r, o, x, c, &want))) break;
		XXH3_64bits_reset(h);
		while (at < end && ok) {
			u64 addr, run = where(r, s, at / BFS_GRANULE, &addr), in = at % BFS_GRANULE, m = end - at;
			if (run < (m + in + BFS_GRANULE - 1) / BFS_GRANULE) m = run * BFS_GRANULE - in;
			if (addr) {
				if (m > sizeof x->data) m = sizeof x->data;
				const u8 *p = k->m->base + k->sb.data_off + BFS_GIDX(addr) * BFS_GRANULE + in;
				ok = !k->m->ops->copy_out(k->m, x->data, p, m);
				XXH3_64bits_update(h, x->data, m);
				k->r->bytes_checked += m;
				mapped++;
			} else {
				if (!want && !mapped && at == c * chunk && m == end - at) break; /* all of it is a hole */
				if (m > sizeof zeros) m = sizeof zeros;
				XXH3_64bits_update(h, zeros, m);
			}
			at += m;
		}
		if (!mapped) ok = ok && !want;
		else if (ok) {
			u64 got = XXH3_64bits_digest(h);
			ok = (got ? got : 1) == want;
		}
	}
	if (h) XXH3_freeState(h);
	free(x);
	return ok;
}

/* ---- space ---------------------------------------------------------------------------------------- */
static int by_addr(const void *p, const void *q)
{
	const struct piece *a = p, *b = q;
	if (a->addr != b->addr) return a->addr < b->addr ? -1 : 1;
	return a->slot != b->slot ? (a->slot < b->slot ? -1 : 1) : a->ov - b->ov;
}

static void doubt(struct rp *r, const struct piece *p, const char *why)
{
	struct rslot *s = &r->s[p->slot];
	if (p->ov) to_base(r, s, why);
	else s->doubt = 1;
}

/* The owner that the records name for a granule. */
static u64 owner_of(struct rp *r, u64 addr)
{
	for (u64 kind = BFS_T_OWN; kind <= BFS_T_BAD; kind += BFS_T_BAD - BFS_T_OWN) {
		size_t i = rp_find(r, KEY(BFS_T(kind, 0), addr + 1, 0));
		if (!i) continue;
		const struct bfs_rec *e = &r->rec.v[i - 1];
		if (e->k.a == BFS_T(kind, 0) && addr < e->k.b + (u32)e->x) return e->y;
	}
	return 0;
}

static bool owned(struct rp *r, const struct piece *p)
{
	u64 at = p->addr, end = p->addr + p->len, ino = ob_ino(&r->s[p->slot].o);
	while (at < end) {
		size_t i = rp_find(r, KEY(BFS_T(BFS_T_OWN, 0), at + 1, 0));
		const struct bfs_rec *e = i ? &r->rec.v[i - 1] : NULL;
		if (e && e->k.a == BFS_T(BFS_T_OWN, 0) && at < e->k.b + (u32)e->x) {
			if (e->y != ino || e->k.c || e->x >> 48 || (u32)(e->x >> 32 & 0xff) >= r->k->sb.nhosts || (e->x >> 40 & 0xff) != (p->ov ? BFS_OWN_GRANT : BFS_OWN_OBJ)) return false;
			at = e->k.b + (u32)e->x;
			continue;
		}
		if (owner_of(r, at) != ino) return false;
		at++;
	}
	return true;
}

/* drops pieces of what goes, and overlays of what fell back */
void rp_sift(struct rp *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->piece.n; i++) {
		const struct rslot *s = &r->s[r->piece.v[i].slot];
		if (!s->drop && (!r->piece.v[i].ov || s->o.state != BFS_ST_SEALED)) r->piece.v[n++] = r->piece.v[i];
	}
	r->piece.n = n;
}

/* Of two that verify and share granules one can stay: the one that the records name. */
static void untangle(struct rp *r)
{
	for (bool again = true; again;) {
		const struct piece *before = NULL;
		again = false;
		rp_sift(r);
		for (size_t i = 0; i < r->piece.n && !again; i++) {
			const struct piece *p = &r->piece.v[i];
			if (before && before->addr + before->len > p->addr) {
				const struct piece *loser = owner_of(r, p->addr) == ob_ino(&r->s[p->slot].o) ? before : p;
				struct rslot *s = &r->s[loser->slot];
				if (loser->ov) to_base(r, s, "another file has the same space");
				if (!loser->ov || s->o.state != BFS_ST_SEALED) rp_drop(r, s, "another file has the same space");
				again = true;
			}
			before = p;
		}
	}
}

void rp_files(struct rp *r)
{
	struct ck *k = r->k;
	for (u32 i = 1; i < r->nslots && !k->err; i++) {
		struct rslot *s = &r->s[i];
		if (!s->used || s->drop) continue;
		if (!s->o.nlink && i != BFS_ROOT_INO && !S_ISDIR(s->o.mode) && !s->o.cookie) rp_drop(r, s, "it was deleted while it was open");
		if (!s->drop) fields(r, s);
		if (!s->drop && S_ISREG(s->o.mode)) mapping(r, s);
		if (s->used && !s->drop && S_ISREG(s->o.mode) && s->doubt && s->o.state != BFS_ST_SEALED && s->o.state != BFS_ST_DIRTY) rp_drop(r, s, "it is found by chance and was never sealed");
	}
	rp_sift(r);
	fk_sort(r->piece.v, r->piece.n, sizeof *r->piece.v, by_addr);
	u64 end = 0;
	size_t holder = 0;
	for (size_t i = 0; i < r->piece.n; i++) {
		const struct piece *p = &r->piece.v[i];
		if (p->addr < end) {
			doubt(r, p, "another file has the same space");
			doubt(r, &r->piece.v[holder], "another file has the same space");
		}
		if (!owned(r, p)) doubt(r, p, "its space isn't recorded as its own");
		if (p->addr + p->len > end) end = p->addr + p->len, holder = i;
	}
	for (size_t i = 0; i < r->rec.n; i++) { /* mapped, and in quarantine */
		const struct bfs_rec *e = &r->rec.v[i];
		if (e->k.a != BFS_T(BFS_T_QUAR, 0) || !fk_extent_ok(k, e->k.c, e->x)) continue;
		size_t lo = 0, hi = r->piece.n;
		while (lo < hi) {
			size_t m = (lo + hi) / 2;
			if (r->piece.v[m].addr + r->piece.v[m].len <= e->k.c) lo = m + 1;
			else hi = m;
		}
		for (; lo < r->piece.n && r->piece.v[lo].addr < e->k.c + e->x; lo++) doubt(r, &r->piece.v[lo], "its space waits to be free");
	}
	for (u32 i = 1; i < r->nslots && !k->err; i++) {
		struct rslot *s = &r->s[i];
		if (!s->used || s->drop || !S_ISREG(s->o.mode)) continue;
		bool sums = s->o.nsums && !(s->o.flags & BFS_OF_UNVERIFIED) && (s->o.state == BFS_ST_SEALED || s->o.state == BFS_ST_DIRTY);
		if ((s->doubt || (r->content && sums)) && !rp_verifies(r, s)) rp_drop(r, s, "its content isn't what was sealed");
		if (s->o.state == BFS_ST_SEALED && !fk_directory(k)) { /* fell back: the overlay isn't counted any more */
			u64 kind = BFS_T(BFS_T_EXT, i), mapped = s->o.u.f.inl_len;
			u32 n = 0;
			for (size_t j = rp_find(r, KEY(kind, 0, 0)); j < r->rec.n && r->rec.v[j].k.a == kind; j++)
				if (!r->rec.v[j].k.c) n++, mapped += (u32)r->rec.v[j].y;
			s->o.granules = mapped, s->o.u.f.nextents = n;
		}
	}
	untangle(r);
}
