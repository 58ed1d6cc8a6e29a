/* Reading and writing files.
 *
 * A file that is written has an overlay: extents granted to this host, in the tree before
 * anything is stored in them, seen by nobody else until the seal makes them the base.  A
 * store goes into the overlay in place; what lies in base is copied first, in granules.
 *
 * Which bytes of an extent mean anything: those below the file's size.  Granules are
 * granted as they are, with whatever a former owner left in them; so a store that grows
 * the file over a gap zeroes the gap, and a store that covers a granule in part brings
 * the rest of it along.  Hence every mapped byte below `size` has been written by this
 * file, at any moment (a crash in between shows the old size, which is in the row).
 *
 * Stores that change neither map nor size hold the lock shared, so that parallel pwrites
 * go on in parallel. */
#include <fcntl.h>
#include <sys/stat.h>
#include "file.h"

#define COW_UNIT 16u    /* granules copied at once, so that small rewrites don't shred the file */
#define GAPS 32         /* of one transaction */
#define EXTENTS 64      /* likewise */

/* ---- small things ---------------------------------------------------------------------- */
u8 *fl_bounce(struct bfs *b)
{
	u8 *p = atomic_exchange(&b->bounce, NULL);
	return p ? p : xalloc(b, b->sb.chunk_bytes);
}
void fl_bounce_end(struct bfs *b, u8 *p)
{
	if (p) xfree(b, atomic_exchange(&b->bounce, p));
}

/* An error of the medium: which granule, for the list of bad ones. */
static int medium(struct bfs *b, struct bfs_inode *in, u64 addr, u64 len, int rc)
{
	u8 buf[BFS_GRANULE];
	for (u64 a = addr; a < addr + len; a++) {
		if (!b->m->ops->copy_out(b->m, buf, al_mem(b, a), BFS_GRANULE)) continue;
		lk(b, &b->ilock);
		u32 i = 0;
		while (i < b->nbadq && b->badq[i][0] != a) i++;
		if (i == b->nbadq && i < 64) b->badq[i][0] = a, b->badq[i][1] = in->ino, b->nbadq++;
		unlk(b, &b->ilock);
		return bfs_fail(b, rc, "object %llu: the memory at pool offset %llu answers with an error", (unsigned long long)in->ino, (unsigned long long)((u8 *)al_mem(b, a) - b->m->base));
	}
	return bfs_fail(b, rc, "object %llu: the pool's memory at offset %llu answered with an error", (unsigned long long)in->ino, (unsigned long long)((u8 *)al_mem(b, addr) - b->m->base));
}

static void raise_to(_Atomic(u64) *p, u64 v)
{
	u64 x = atomic_load_explicit(p, memory_order_relaxed);
	while (v > x && !atomic_compare_exchange_weak(p, &x, v)) {}
}
void fl_stored(struct bfs_inode *in, u64 off, u64 end)
{
	raise_to(&in->dirty_nlo, ~off);
	raise_to(&in->dirty_hi, end);
}

/* Data that this host stored since the last flush is in the pool behind the fence. */
void fl_flush_overlay(struct bfs *b, struct bfs_inode *in)
{
	u64 lo = ~atomic_load(&in->dirty_nlo), hi = atomic_load(&in->dirty_hi);
	mm_fence(b->m);
	if (hi > lo && !b->m->coherent && !BFS_MUT(MUT_DATA_NO_FLUSH))
		for (int i = mp_at(in, lo / BFS_GRANULE); i < in->next_ext && in->ext[i].file_granule * BFS_GRANULE < hi; i++)
			if (in->ext[i].addr && in->ext[i].overlay) mm_flush(b->m, al_mem(b, in->ext[i].addr), (u64)in->ext[i].len * BFS_GRANULE);
	mm_fence(b->m);
	atomic_store(&in->dirty_nlo, 0);
	atomic_store(&in->dirty_hi, 0);
}

/* ---- what was verified on this host -------------------------------------------------------- */
/* A bit stands for a chunk of one (generation, version), which vtag names; bits that another
 * one left are cleared before it is put there. */
static u32 vtag_of(const struct bfs_inode *in) { return (u32)(((u64)INO_GEN(in->ino) << 32 | in->version) * 0x9E3779B97F4A7C15ull >> 32) | 1; }

static void vbit_set(struct bfs *b, u64 idx, bool on)
{
	if (on) __atomic_fetch_or(&b->verified[idx / 8], (u8)(1u << idx % 8), __ATOMIC_RELEASE);
	else __atomic_fetch_and(&b->verified[idx / 8], (u8)~(1u << idx % 8), __ATOMIC_RELEASE);
}

void fl_vtag(struct bfs *b, const struct bfs_inode *in)
{
	_Atomic(u32) *tag = &b->vtag[INO_SLOT(in->ino)];
	if (atomic_load_explicit(tag, memory_order_acquire) == vtag_of(in)) return;
	for (int i = 0; i < in->next_ext; i++) {
		u64 g = BFS_GIDX(in->ext[i].addr), end = g + in->ext[i].len;
		if (!in->ext[i].addr || in->ext[i].overlay) continue;
		for (; g < end; g++) {
			if (g % 8 == 0 && end - g >= 8) __atomic_store_n(&b->verified[g / 8], 0, __ATOMIC_RELEASE), g += 7;
			else vbit_set(b, g, false);
		}
	}
	atomic_store_explicit(tag, vtag_of(in), memory_order_release);
}

/* granule whose bit stands for chunk c: its first one in base; 0 = none (bit 0 is granule 0: + 1) */
static u64 vbit_of(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	u64 g = c * (b->sb.chunk_bytes / BFS_GRANULE), end = g + b->sb.chunk_bytes / BFS_GRANULE;
	for (int i = mp_at(in, g); i < in->next_ext && in->ext[i].file_granule < end; i++)
		if (in->ext[i].addr && !in->ext[i].overlay)
			return BFS_GIDX(in->ext[i].addr) + (g > in->ext[i].file_granule ? g - in->ext[i].file_granule : 0) + 1;
	return 0;
}

void fl_verified(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	u64 bit = vbit_of(b, in, c);
	if (!bit) return;
	vbit_set(b, bit - 1, true);
	/* somebody has turned to another version meanwhile: not for that one */
	if (atomic_load_explicit(&b->vtag[INO_SLOT(in->ino)], memory_order_acquire) != vtag_of(in)) vbit_set(b, bit - 1, false);
}

/* ---- reading ---------------------------------------------------------------------------------- */
int fl_copy(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len)
{
	u8 *d = dst;
	for (int i = mp_at(in, off / BFS_GRANULE); len; i++) {
		const struct bfs_extent *e = i < in->next_ext ? &in->ext[i] : NULL;
		u64 from = e ? e->file_granule * BFS_GRANULE : UINT64_MAX, to = e ? from + (u64)e->len * BFS_GRANULE : UINT64_MAX;
		if (from > off) { /* hole before it */
			size_t z = min64(len, from - off);
			memset(d, 0, z);
			d += z, off += z, len -= z;
			if (!len) break;
		}
		size_t n = min64(len, to - off);
		u64 skip = off - from;
		if (!e->addr) memset(d, 0, n);
		else if (b->m->ops->copy_out(b->m, d, (u8 *)al_mem(b, e->addr) + skip, n))
			return medium(b, in, e->addr + skip / BFS_GRANULE, granules(skip % BFS_GRANULE + n), -EIO);
		d += n, off += n, len -= n;
	}
	return 0;
}

int fl_chunk_sum(struct bfs *b, struct bfs_inode *in, u64 c, u64 size, u8 *bounce, u64 *sum)
{
	u64 off = c * b->sb.chunk_bytes, len = min64(b->sb.chunk_bytes, size - off), g = off / BFS_GRANULE;
	bool any = false;
	for (int i = mp_at(in, g); i < in->next_ext && in->ext[i].file_granule < g + granules(len); i++) any |= in->ext[i].addr != 0;
	int rc = any ? fl_copy(b, in, off, bounce, len) : 0;
	*sum = any && !rc ? fl_sum(bounce, len) : 0;
	return rc;
}

/* Rule 17: lines of an extent that this host had before the extent was the file's.  Once per
 * chunk and open; what was verified before was read after an invalidation, and hasn't changed. */
static void fresh(struct bfs *b, struct bfs_inode *in, u64 c, bool again)
{
	u64 *w = in->seen ? &in->seen[c / 64] : NULL, bit = 1ull << c % 64, g = c * (b->sb.chunk_bytes / BFS_GRANULE), end = g + b->sb.chunk_bytes / BFS_GRANULE;
	if (b->m->coherent || BFS_MUT(MUT_DATA_NO_INVAL)) return;
	if (c > in->base_size / b->sb.chunk_bytes) w = NULL;
	if (w && !again && __atomic_load_n(w, __ATOMIC_ACQUIRE) & bit) return;
	for (int i = mp_at(in, g); i < in->next_ext && in->ext[i].file_granule < end; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 lo = max64(g, e->file_granule), hi = min64(end, e->file_granule + e->len);
		if (e->addr && !e->overlay) mm_inval(b->m, al_mem(b, e->addr + (lo - e->file_granule)), (hi - lo) * BFS_GRANULE);
	}
	mm_fence(b->m);
	if (w) __atomic_fetch_or(w, bit, __ATOMIC_RELEASE);
}

/* Does the sum of the sealed base say something about chunk c as this host sees it? */
static bool covered(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	u64 g = c * (b->sb.chunk_bytes / BFS_GRANULE), end = g + b->sb.chunk_bytes / BFS_GRANULE, size = atomic_load(&in->size);
	if (b->o.verify == BFS_VERIFY_OFF || BFS_MUT(MUT_NO_SUM_CHECK) || c >= in->nsums || !in->sums[c]) return false;
	if (in->state == BFS_ST_SEALED) return true;
	if (size != in->base_size && (c + 1) * b->sb.chunk_bytes > min64(size, in->base_size)) return false;
	for (int i = mp_at(in, g); i < in->next_ext && in->ext[i].file_granule < end; i++)
		if (in->ext[i].overlay) return false;
	return true;
}

/* Bytes [off, off + len) of chunk c, verified as the mount wants it. */
static int read_chunk(struct bfs *b, struct bfs_inode *in, u64 c, u64 off, u8 *dst, size_t len)
{
	u64 from = c * b->sb.chunk_bytes, size = in->state == BFS_ST_SEALED ? atomic_load(&in->size) : max64(in->base_size, atomic_load(&in->size));
	u64 whole = min64(b->sb.chunk_bytes, size - from), bit = 0, sum;
	bool check = covered(b, in, c), known = false;
	if (check) {
		bit = vbit_of(b, in, c);
		known = bit && __atomic_load_n(&b->verified[(bit - 1) / 8], __ATOMIC_ACQUIRE) >> (bit - 1) % 8 & 1;
		if (known && b->o.verify == BFS_VERIFY_FIRST) check = false;
	}
	if (!known || b->o.verify == BFS_VERIFY_ALWAYS) fresh(b, in, c, b->o.verify == BFS_VERIFY_ALWAYS);
	if (!check) return fl_copy(b, in, off, dst, len);
	u8 *buf = len == whole ? dst : fl_bounce(b);
	if (!buf) return -ENOMEM;
	int rc = fl_copy(b, in, from, buf, whole);
	if (!rc && (sum = fl_sum(buf, whole)) != in->sums[c]) {
		atomic_fetch_add_explicit(&b->corrupt, 1, memory_order_relaxed);
		rc = bfs_fail(b, -EIO, "object %llu: checksum of bytes %llu to %llu is wrong: expected %016llx, found %016llx; the file is damaged", (unsigned long long)in->ino,
			      (unsigned long long)from, (unsigned long long)(from + whole - 1), (unsigned long long)in->sums[c], (unsigned long long)sum);
	}
	if (!rc) fl_verified(b, in, c);
	if (!rc && buf != dst) memcpy(dst, buf + (off - from), len);
	if (buf != dst) fl_bounce_end(b, buf);
	return rc;
}

static int read_range(struct bfs *b, struct bfs_inode *in, u64 off, u8 *dst, size_t len)
{
	if (in->nsums) fl_vtag(b, in);
	while (len) {
		u64 c = off / b->sb.chunk_bytes;
		size_t n = min64(len, (c + 1) * b->sb.chunk_bytes - off);
		int rc = read_chunk(b, in, c, off, dst, n);
		if (rc) return rc;
		off += n, dst += n, len -= n;
	}
	return 0;
}

/* A root page that is freed while it is looked at proves nothing either way: look again. */
static bool lease_ok(struct bfs *b)
{
	for (int i = 0; i < 5; i++)
		if (ld_lease_ok(b)) return true;
	return false;
}

static ssize_t read_locked(struct bfs *b, struct bfs_inode *in, u64 off, void *buf, size_t len)
{
	u64 size = atomic_load(&in->size), begun = b->m->ops->mono_ns(b->m);
	if (off >= size || !len) return 0;
	if (len > size - off) len = size - off;
	if (len > INT64_MAX) len = INT64_MAX;
	int rc = read_range(b, in, off, buf, len);
	if (rc && rc != -EIO) return rc;
	/* Rule 19: a host that was declared dead has no hold on what it read, and what looks damaged
	 * may be somebody else's.  Hosts that share coherent memory are on one machine: there only one that slept can have missed it. */
	bool own = in->state == BFS_ST_NEW && !in->frozen && !in->gone; /* nobody else can have freed it */
	if (!own && !b->o.readonly && (!b->m->coherent || b->m->ops->mono_ns(b->m) - begun > b->o.suspect_ns / 4) && !lease_ok(b))
		return bfs_fail(b, -ESTALE, "this host has been declared dead while it was reading; attach it again");
	return rc ? rc : (ssize_t)len;
}

ssize_t bfs_read(struct bfs *b, u64 fh, u64 off, void *buf, size_t len)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || (h->flags & O_ACCMODE) == O_WRONLY) return -EBADF;
	struct bfs_inode *in = h->in;
	ssize_t n = in_lock(b, in, in->reload);
	if (n) return n;
	if (in->reload && (n = sl_settle(b, in)) && !in->gone) {
		in_unlock(b, in);
		return n;
	}
	n = read_locked(b, in, off, buf, len);
	in_unlock(b, in);
	return n;
}

ssize_t fl_read_ino(struct bfs *b, u64 ino, u64 off, void *buf, size_t len)
{
	struct bfs_inode *in = in_alloc(b, ino);
	struct rd r;
	ssize_t n = -ENOMEM;
	for (int tries = 0; in && tries < 4; tries++) {
		int rc, s = -1;
		if ((rc = rd_begin(b, &r))) {
			n = rc;
			break;
		}
		const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
		if (o && (!S_ISREG(o->mode) || (o->state != BFS_ST_SEALED && o->state != BFS_ST_DIRTY) || (o->owner == b->slot + 1))) rc = -EBUSY;
		if (!rc) rc = in_load(&r.v, o, in);
		rd_end(&r);
		if (!rc && in->next_ext > 64) rc = -EBUSY;
		if (!rc && in->next_ext && (s = in_hazard(b, ino, in->version, in->ext, in->next_ext)) < 0) rc = s;
		n = rc ? rc : read_locked(b, in, off, buf, len);
		if (s >= 0) in_hazard_end(b, s);
		if (rc != -ESTALE) break;
	}
	in_destroy(b, in);
	if (n == -EBUSY) { /* many extents, or written here: through the table */
		int rc = in_get(b, ino, false, &in);
		if (rc) return rc;
		if (!(rc = in_lock(b, in, false))) {
			n = read_locked(b, in, off, buf, len);
			in_unlock(b, in);
		} else {
			n = rc;
		}
		in_put(b, in, false);
	}
	return n;
}

/* ---- the overlay in the tree ----------------------------------------------------------------------- */
static struct bfs_rec ext_rec(u64 ino, u64 fg, u64 addr, u64 len)
{
	return (struct bfs_rec){.k = KEY(BFS_T(BFS_T_EXT, INO_SLOT(ino)), fg, 1), .x = addr, .y = len | (addr ? 0 : 1ull << 32)};
}

/* Pieces of the overlay are its records, one to one: the map says which records there are. */
static int ov_cut(struct txn *t, struct bfs_inode *in, u64 fg, u64 end, bool data)
{
	int rc = 0;
	for (int i = mp_at(in, fg); i < in->next_ext && in->ext[i].file_granule < end && !rc; i++) {
		struct bfs_extent e = in->ext[i];
		u64 lo = max64(fg, e.file_granule), hi = min64(end, e.file_granule + e.len);
		if (!e.overlay || (e.addr && !data)) continue;
		struct bfs_rec l = ext_rec(in->ino, e.file_granule, e.addr, lo - e.file_granule);
		struct bfs_rec r = ext_rec(in->ino, hi, e.addr ? e.addr + (hi - e.file_granule) : 0, e.file_granule + e.len - hi);
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
	if (!gone) return 0;
	ob_count(t, o, -1);
	o->granules -= min64(gone, o->granules);
	ob_count(t, o, 1);
	return 0;
}

/* The object of a file that this transaction is going to change; unsealed if it isn't yet. */
static struct bfs_obj *writable(struct txn *t, struct bfs_inode *in, bool creator, bool *unsealed, int *rc)
{
	struct bfs *b = t->b;
	const struct bfs_obj *c = ob_get(tview(t), in->ino, rc);
	if (!c) return NULL;
	if (c->owner && c->owner != b->slot + 1) *rc = bfs_fail(b, -EBUSY, "host slot %u is writing this file", c->owner - 1u);
	else if (c->version != in->version || (c->state == BFS_ST_SEALED) != (in->state == BFS_ST_SEALED)) *rc = -EAGAIN; /* sealed meanwhile: read again */
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
static int unsealed_here(struct bfs *b, struct bfs_inode *in, u8 cls)
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
static int row_dirty(struct bfs *b, struct bfs_inode *in)
{
	if (in->rowst != BFS_ROW_CLOSED) return 0;
	return rw_put(b, in, BFS_ROW_DIRTY);
}

static inline bool sealed(const struct bfs_inode *in) { return in->state == BFS_ST_SEALED || in->state == BFS_ST_ABANDONED; }

/* ---- making room for a store ------------------------------------------------------------------------- */
struct want {
	u64 fg, end;  /* granules that are to be overlay */
	u64 more;     /* granules behind end that would be welcome */
	bool holes;   /* what is mapped is good as it is (reserve) */
	bool creator;
};

struct gap { u64 fg, len; };

static int gaps(const struct bfs_inode *in, const struct want *w, struct gap *g, int max, u64 most)
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
			if ((rc = read_range(b, in, at, bounce, m))) break;
			if (b->m->ops->copy_in(b->m, d + (at - off), bounce, m)) rc = medium(b, in, p[i].addr, p[i].len, -EIO);
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
	if (!writable(t, in, w->creator, &un, &rc)) return op_end(b, t, rc);
	cut_holes(t, in, p, n);
	for (int i = 0; i < n && !t->poison; i++) {
		struct bfs_rec r = ext_rec(in->ino, p[i].fg, p[i].addr, p[i].len);
		if ((rc = bt_del(t, KEY(r.k.a, SCRATCH_FG + p[i].fg, 1))) || (rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	return op_end(b, t, 0);
}

/* Grants for the gaps, in one transaction.  The extents are in the tree, and acknowledged,
 * before the caller stores into them: another leader keeps out of them from then on.
 *
 * Where they come into a content that a crash has to leave (sealed, or synced), they stand far
 * behind the end at first, where recovery drops them; that content is copied into them, and a
 * second transaction puts them in place.  So whatever the overlay shows was stored: the old
 * bytes, or newer ones, never what a former owner of these granules left in them. */
static int grant(struct bfs *b, struct bfs_inode *in, const struct want *w, const struct gap *g, int ng)
{
	struct extent e[EXTENTS];
	struct piece rec[EXTENTS + GAPS];
	struct txn *t;
	u64 n = 0, more = 0;
	bool un = false, was = false;
	int rc, ne = 0, nr = 0;
	bool promised = in->state == BFS_ST_SEALED || in->state == BFS_ST_DIRTY || in->rowst != BFS_ROW_FREE;
	bool two = promised && ng && g[0].fg < granules(atomic_load(&in->size));
	if (in_batch(b) && ng) return bfs_fail(b, -EBUSY, "inside a batch data goes only where room was reserved before it");
	for (int i = 0; i < ng; i++) n += g[i].len;
	if (ng && (rc = row_dirty(b, in))) return rc;
	if ((rc = op_begin(b, &t))) return rc;
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
		if (!(o = writable(t, in, w->creator, &un, &rc))) return op_end(b, t, rc);
		grown = al_grow(t, last->addr, last->len, (u32)n, (u32)min64(n + more, UINT32_MAX), in->ino);
		if (grown) {
			struct bfs_rec r = ext_rec(in->ino, last->file_granule, last->addr, last->len + grown);
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
	o = writable(t, in, w->creator, &un, &rc);
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
		struct bfs_rec r = ext_rec(in->ino, rec[i].fg + (two ? SCRATCH_FG : 0), rec[i].addr, rec[i].len);
		if ((rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	ob_count(t, o, -1);
	o->granules += got;
	o->u.f.nextents += (u32)nr; /* recounted at the seal */
	ob_count(t, o, 1);
	if ((rc = op_end(b, t, 0))) return rc;
	atomic_fetch_add(&in->granules, got);
	if (un && (rc = unsealed_here(b, in, cls))) return rc;
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

static int put_bytes(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len)
{
	for (int i = mp_at(in, off / BFS_GRANULE); len; i++) {
		const struct bfs_extent *e = &in->ext[i];
		u64 skip = off - e->file_granule * BFS_GRANULE;
		size_t n = min64(len, (u64)e->len * BFS_GRANULE - skip);
		u8 *d = (u8 *)al_mem(b, e->addr) + skip;
		if (src ? b->m->ops->copy_in(b->m, d, src, n) : b->m->ops->zero(b->m, d, n)) return medium(b, in, e->addr + skip / BFS_GRANULE, granules(skip % BFS_GRANULE + n), -EIO);
		fl_stored(in, off, off + n);
		if (src) src += n;
		off += n, len -= n;
	}
	return 0;
}

/* The outcome is unknown, or the tree isn't what this inode took it for. */
static bool again(struct bfs_inode *in, int rc, int *tries)
{
	if (rc != -EAGAIN) return false;
	in->reload = true;
	return ++*tries < 5;
}

static bool is_base(const struct bfs_inode *in, u64 g)
{
	int i = mp_at(in, g);
	return i < in->next_ext && in->ext[i].file_granule <= g && in->ext[i].addr && !in->ext[i].overlay;
}

/* [off, end) becomes overlay, in a file that is unsealed.  What a first and a last granule
 * have outside of it comes along; `more` is welcome behind it. */
static int prepare_once(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, u64 more, bool creator)
{
	u64 size = atomic_load(&in->size), lo = off / BFS_GRANULE, hi = off < end ? granules(end) : lo;
	struct want w = {lo, hi, more, false, creator};
	struct gap g[GAPS];
	u8 *old = NULL;
	int rc = 0, ng;
	if (off < end && (in->state == BFS_ST_SEALED || in->base_end > lo)) {
		u64 base_end = in->state == BFS_ST_SEALED ? granules(size) : min64(in->base_end, granules(size));
		while (w.fg % COW_UNIT && is_base(in, w.fg - 1)) w.fg--;
		while (w.end % COW_UNIT && w.end < base_end && is_base(in, w.end)) w.end++;
		/* A chunk that is changed in part gets a new sum: over what was right before. */
		if (in->nsums) fl_vtag(b, in);
		for (u64 c = off / b->sb.chunk_bytes; c <= (end - 1) / b->sb.chunk_bytes; c++)
			if (covered(b, in, c) && (off > c * b->sb.chunk_bytes || end < min64((c + 1) * b->sb.chunk_bytes, size))) {
				u8 x;
				if ((rc = read_chunk(b, in, c, c * b->sb.chunk_bytes, &x, 1))) return rc;
			}
	}
	u64 head = w.fg * BFS_GRANULE, hn = 0, tn = 0; /* bytes from head, bytes behind end */
	if (off < end && head < off && head < size && !mp_is_overlay(in, w.fg, w.fg + 1)) hn = min64(off, size) - head;
	if (off < end && end < w.end * BFS_GRANULE && end < size && !mp_is_overlay(in, w.end - 1, w.end)) tn = min64(w.end * BFS_GRANULE, size) - end;
	if (hn + tn && !(old = xalloc(b, hn + tn))) return -ENOMEM;
	if (hn) rc = read_range(b, in, head, old, hn);
	if (!rc && tn) rc = read_range(b, in, end, old + hn, tn);
	while (!rc && ((ng = gaps(in, &w, g, GAPS, 16ull * b->sb.region_granules)) > 0 || sealed(in))) {
		rc = grant(b, in, &w, g, ng);
	}
	if (!rc) rc = row_dirty(b, in);
	if (!rc && hn) rc = put_bytes(b, in, head, old, hn);
	if (!rc && tn) rc = put_bytes(b, in, end, old + hn, tn);
	xfree(b, old);
	return rc;
}

/* Anew each time: when the outcome of a grant is in doubt, size and content may be another
 * host's by the time that they are known.  The caller, too, asks for the size after this. */
static int prepare(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, u64 more, bool creator)
{
	int rc, tries = 0;
	while (again(in, rc = prepare_once(b, in, off, end, more, creator), &tries))
		if ((rc = sl_settle(b, in))) break;
	return rc;
}

/* sums noted while writing; under the lock, shared or not */
static void sums_drop(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	for (u64 c = off / b->sb.chunk_bytes; c < in->wsum_cap && c * b->sb.chunk_bytes < end; c++) __atomic_store_n(&in->wsum[c], 0, __ATOMIC_RELAXED);
}

static bool sums_room(struct bfs *b, struct bfs_inode *in, u64 last)
{
	if (last > 65536 || in->flags & BFS_OF_NOSUM) return false;
	if (last <= in->wsum_cap) return true;
	u32 cap = (u32)max64(last, 2ull * in->wsum_cap);
	u64 *n = xalloc(b, cap * sizeof *n);
	if (!n) return false;
	if (in->wsum_cap) memcpy(n, in->wsum, in->wsum_cap * sizeof *n);
	xfree(b, in->wsum);
	in->wsum = n, in->wsum_cap = cap;
	return true;
}

/* Chunk by chunk, so that the sum of one that is written whole is made while it is in the
 * cache.  size: of the file behind this store. */
static int put_summed(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len, u64 size)
{
	u32 cb = b->sb.chunk_bytes;
	while (len) {
		u64 c = off / cb, from = c * cb;
		size_t n = min64(len, from + cb - off);
		bool whole = off == from && off + n == min64(from + cb, size) && sums_room(b, in, c + 1);
		u64 sum = whole ? fl_sum(src, n) : 0;
		int rc = put_bytes(b, in, off, src, n);
		if (rc) return rc;
		if (whole) in->wsum[c] = sum;
		off += n, src += n, len -= n;
	}
	return 0;
}

/* Zeros in [from, to) as far as something is mapped there. */
static int zero_gap(struct bfs *b, struct bfs_inode *in, u64 from, u64 to, bool creator)
{
	int rc;
	sums_drop(b, in, from ? from - 1 : 0, to);
	if (from % BFS_GRANULE) {
		u64 stop = min64(to, (from / BFS_GRANULE + 1) * BFS_GRANULE);
		int i = mp_at(in, from / BFS_GRANULE);
		if (i < in->next_ext && in->ext[i].file_granule <= from / BFS_GRANULE && in->ext[i].addr) {
			if (!in->ext[i].overlay && (rc = prepare(b, in, from, stop, 0, creator))) return rc;
			if ((rc = put_bytes(b, in, from, NULL, stop - from))) return rc;
		}
		from = stop;
	}
	for (int i = mp_at(in, from / BFS_GRANULE); from < to && i < in->next_ext; i++) {
		struct bfs_extent e = in->ext[i];
		u64 lo = max64(from, e.file_granule * BFS_GRANULE), hi = min64(to, (e.file_granule + e.len) * BFS_GRANULE);
		if (lo >= to) break;
		if (e.addr && e.overlay && (rc = put_bytes(b, in, lo, NULL, hi - lo))) return rc;
		from = hi;
	}
	return 0;
}

/* ---- writing --------------------------------------------------------------------------------------------- */
/* What a file is likely to get: what the last one of its directory had, else as much again as it has. */
static u64 growth(struct bfs *b, struct bfs_inode *in, u64 need)
{
	struct rd r;
	int rc = 0;
	u64 have = atomic_load(&in->granules), n = 0;
	if (have) return min64(max64(have, COW_UNIT), b->sb.region_granules);
	if (rd_begin(b, &r)) return 0;
	const struct bfs_obj *o = ob_get(&r.v, in->ino, &rc);
	const struct bfs_obj *d = o && o->parent && !(o->parent >> 63) ? ob_get(&r.v, o->parent, &rc) : NULL;
	if (d && S_ISDIR(d->mode)) n = d->u.d.guess;
	rd_end(&r);
	return n > need ? min64(n - need, 4ull * b->sb.region_granules) : 0;
}

static void touch_handle(struct bfs *b, struct bfs_handle *h)
{
	if (!(__atomic_load_n(&h->flags, __ATOMIC_RELAXED) & H_CLOSED)) return;
	lk(b, &b->ilock);
	if (h->flags & H_CLOSED) {
		__atomic_store_n(&h->flags, h->flags & ~H_CLOSED, __ATOMIC_RELAXED);
		h->in->nclosed--;
	}
	unlk(b, &b->ilock);
}

static int write_locked(struct bfs *b, struct bfs_inode *in, bool creator, u64 off, const u8 *buf, size_t len)
{
	u64 end = off + len, size = atomic_load(&in->size);
	bool seq = off == size && end > size;
	int rc = prepare(b, in, off, end, seq ? growth(b, in, granules(len)) : 0, creator);
	if (rc) return rc;
	size = atomic_load(&in->size);
	if (off > size && (rc = zero_gap(b, in, size, off, creator))) return rc;
	sums_drop(b, in, off, end);
	if (end > size && size % b->sb.chunk_bytes) sums_drop(b, in, size - 1, size);
	if ((rc = put_summed(b, in, off, buf, len, max64(size, end)))) return rc;
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	if (end > size) atomic_store(&in->size, end);
	/* a row that says dirty says how long the file is, too */
	return end > size && in->rowst == BFS_ROW_DIRTY ? rw_put(b, in, BFS_ROW_DIRTY) : 0;
}

ssize_t bfs_write(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || !hd_writes(h->flags)) return -EBADF;
	struct bfs_inode *in = h->in;
	bool append = h->flags & O_APPEND;
	int rc;
	if (!len) return 0;
	if (len > INT64_MAX || (!append && (off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off))) return -EFBIG;
	touch_handle(b, h);
	if ((rc = in_lock(b, in, false))) return rc;
	/* In place: nothing but bytes changes. */
	if (!append && in->dirty && !in->gone && !in->reload && !in->frozen && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY) && in->rowst != BFS_ROW_CLOSED &&
	    off + len <= atomic_load(&in->size) && mp_is_overlay(in, off / BFS_GRANULE, granules(off + len))) {
		sums_drop(b, in, off, off + len);
		if (!(rc = put_bytes(b, in, off, buf, len))) atomic_store(&in->wtime, (i64)now_ns(b));
		in_unlock(b, in);
		return rc ? rc : (ssize_t)len;
	}
	in_unlock(b, in);
	if ((rc = in_lock(b, in, true))) return rc;
	if (!(rc = sl_settle(b, in))) {
		if (append) off = atomic_load(&in->size);
		rc = off > SIZE_MAX_BYTES || len > SIZE_MAX_BYTES - off ? -EFBIG : write_locked(b, in, (h->flags & H_CREATOR) && in->created_here, off, buf, len);
	}
	in_unlock(b, in);
	return rc ? rc : (ssize_t)len;
}

int bfs_reserve(struct bfs *b, u64 fh, u64 bytes)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || !hd_writes(h->flags)) return -EBADF;
	struct bfs_inode *in = h->in;
	struct want w = {0, granules(bytes), 0, true, (h->flags & H_CREATOR) && in->created_here};
	struct gap g[GAPS];
	int rc, ng, tries = 0;
	if (bytes > SIZE_MAX_BYTES) return -EFBIG;
	if ((rc = in_lock(b, in, true))) return rc;
	rc = sl_settle(b, in);
	while (!rc && (ng = gaps(in, &w, g, GAPS, 16ull * b->sb.region_granules)) > 0) {
		u64 size = atomic_load(&in->size);
		if (!(rc = grant(b, in, &w, g, ng)) && !(rc = row_dirty(b, in)))
			for (int i = 0; i < ng && !rc; i++) { /* what was a hole below the size is zeros */
				u64 lo = g[i].fg * BFS_GRANULE, hi = min64((g[i].fg + g[i].len) * BFS_GRANULE, size);
				if (lo < hi) rc = put_bytes(b, in, lo, NULL, hi - lo);
				if (lo < hi) in->dirty = true, sums_drop(b, in, lo, hi);
			}
		if (again(in, rc, &tries)) rc = sl_settle(b, in);
	}
	in_unlock(b, in);
	return rc;
}

/* ---- size -------------------------------------------------------------------------------------------------- */
static int shrink(struct bfs *b, struct bfs_inode *in, u64 size, bool creator)
{
	u64 g = granules(size), end = in->next_ext ? in->ext[in->next_ext - 1].file_granule + in->ext[in->next_ext - 1].len : 0;
	u64 base_end = in->state == BFS_ST_SEALED ? end : in->base_end;
	struct txn *t;
	bool un = false;
	int rc;
	if (base_end > end) end = base_end;
	if (g >= end && !sealed(in)) return 0;
	/* Rule 21: what this host stored there isn't written back later into somebody else's data. */
	if (!BFS_MUT(MUT_KILLED_NOT_FLUSHED)) fl_flush_overlay(b, in);
	/* The row's size first: a crash in between finds the file short, with all of its bytes. */
	u64 old = atomic_load(&in->size);
	bool row = in->rowst != BFS_ROW_FREE;
	if (row) {
		atomic_store(&in->size, size);
		if ((rc = rw_put(b, in, BFS_ROW_DIRTY))) goto undo;
	}
	if ((rc = op_begin(b, &t))) goto undo;
	struct bfs_obj *o = writable(t, in, creator, &un, &rc);
	if (!o) {
		rc = op_end(b, t, rc);
		goto undo;
	}
	u8 cls = o->cls;
	u64 gone = 0;
	for (int i = mp_at(in, g); i < in->next_ext; i++)
		if (in->ext[i].overlay && in->ext[i].addr) gone += in->ext[i].file_granule + in->ext[i].len - max64(g, in->ext[i].file_granule);
	if (g < end) ov_drop(t, in, g, end);
	if (g < base_end && o->state == BFS_ST_DIRTY && !t->poison) { /* base that must not come back when the file grows again */
		struct bfs_rec r = ext_rec(in->ino, g, 0, base_end - g);
		if ((rc = bt_put(t, &r))) txn_fail(t, rc);
	}
	ob_count(t, o, -1);
	o->granules -= min64(gone, o->granules);
	ob_count(t, o, 1);
	if ((rc = op_end(b, t, 0))) goto undo;
	atomic_fetch_sub(&in->granules, min64(gone, atomic_load(&in->granules)));
	if (un) { /* the first row of it says the new size, too */
		atomic_store(&in->size, size);
		rc = unsealed_here(b, in, cls);
		in->base_size = old;
		if (rc) return rc;
	}
	if (g < end) rc = mp_set(b, in, g, end - g, 0, 0);
	if (!rc && g < base_end && in->state == BFS_ST_DIRTY) rc = mp_set(b, in, g, base_end - g, 0, 1);
	if (rc) in->reload = true;
	return rc;
undo:
	if (row) {
		atomic_store(&in->size, old);
		rw_put(b, in, BFS_ROW_DIRTY);
	}
	return rc;
}

int fl_set_size(struct bfs *b, struct bfs_inode *in, u64 size, bool creator)
{
	int rc = sl_settle(b, in), tries = 0;
	u64 old = atomic_load(&in->size);
	if (size > SIZE_MAX_BYTES) return -EFBIG;
	if (rc || size == old) return rc;
	while (again(in, rc = size < old ? shrink(b, in, size, creator) : prepare(b, in, old, old, 0, creator), &tries)) {
		if ((rc = sl_settle(b, in))) return rc;
		old = atomic_load(&in->size);
	}
	if (size > old) old = atomic_load(&in->size);
	if (!rc) rc = row_dirty(b, in);
	if (!rc && size > old) rc = zero_gap(b, in, old, size, creator);
	if (rc) return rc;
	sums_drop(b, in, min64(size, old) ? min64(size, old) - 1 : 0, max64(size, old));
	in->dirty = true;
	atomic_store(&in->wtime, (i64)now_ns(b));
	atomic_store(&in->size, size);
	return in->rowst == BFS_ROW_DIRTY ? rw_put(b, in, BFS_ROW_DIRTY) : 0;
}

int fl_truncate(struct bfs *b, u64 ino, u64 fh, u64 size)
{
	struct bfs_handle *h = fh ? hd_get(b, fh) : NULL;
	struct bfs_inode *in = h ? h->in : NULL;
	int rc = 0;
	if (fh && (!h || !hd_writes(h->flags) || in->ino != ino)) return -EBADF;
	if (h) touch_handle(b, h);
	else if ((rc = in_get(b, ino, true, &in))) return rc;
	if (!(rc = in_lock(b, in, true))) {
		rc = fl_set_size(b, in, size, h && (h->flags & H_CREATOR) && in->created_here);
		if (!rc && !h) { /* truncate(2): closed at once, unless somebody else is writing */
			lk(b, &b->ilock);
			bool alone = in->writers - in->nclosed <= 1;
			unlk(b, &b->ilock);
			if (alone) rc = sl_flush(b, in);
		}
		in_unlock(b, in);
	}
	if (!h) in_put(b, in, true);
	return rc;
}

/* ---- creating ------------------------------------------------------------------------------------------------- */
int fl_new(struct txn *t, u64 ino, const struct extent *e, int n, int flags, u64 *fh)
{
	struct bfs *b = t->b;
	struct bfs_inode *in = in_alloc(b, ino);
	struct bfs_obj *o = ob_cow(t, ino);
	struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_OPEN, b->slot), INO_SLOT(ino), 0), .x = ino};
	int rc = in && o ? 0 : -ENOMEM;
	if (!rc) r.y = o->version, rc = bt_put(t, &r);
	u64 fg = 0;
	for (int i = 0; i < n && !rc; i++) {
		r = ext_rec(ino, fg, e[i].addr, e[i].len);
		if (!(rc = al_own(t, e[i].addr, e[i].len, ino, BFS_OWN_GRANT)) && !(rc = bt_put(t, &r))) rc = mp_set(b, in, fg, e[i].len, e[i].addr, 1);
		fg += e[i].len;
	}
	if (rc) {
		in_destroy(b, in);
		return txn_fail(t, rc);
	}
	ob_count(t, o, -1);
	o->granules += fg, o->u.f.nextents += (u32)n;
	ob_count(t, o, 1);
	in->state = BFS_ST_NEW, in->cls = o->cls, in->version = o->version, in->flags = o->flags;
	in->created_here = true;
	atomic_store(&in->granules, fg);
	atomic_store(&in->tree_mtime, o->mtime_ns);
	/* in the table before the object can be seen: an unlink finds it open */
	in_insert_new(b, in);
	in_batch_mark(b, in);
	if ((rc = hd_new(b, in, flags | H_CREATOR, fh))) {
		in->gone = true;
		in_put(b, in, true);
		return txn_fail(t, rc);
	}
	if (BFS_MUT(MUT_ROW_BEFORE_ACK)) rw_put(b, in, BFS_ROW_CLOSED);
	return 0;
}

/* A first writing that was given up and that nobody has open stands in nobody's way. */
static int replace_abandoned(struct txn *t, u64 dir, const void *name, size_t len, u64 ino)
{
	struct ht_entry e;
	int rc = 0;
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (!o) return rc;
	if (o->state != BFS_ST_ABANDONED || o->owner != t->b->slot + 1 || in_is_open(t->b, ino)) return -EEXIST;
	if ((rc = ht_find_owner(tview(t), dir, BFS_EK_NAME, name, len, (u8)(t->b->slot + 1), &e))) return rc;
	return e.ino == ino ? nm_remove(t, &e) : -EEXIST;
}

int bfs_create(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, int flags, struct bfs_attr *a, u64 *fh)
{
	struct txn *t;
	u64 ino = 0, made = 0;
	i64 made_ns = 0;
	int rc, slots = 0;
	if (b->o.readonly) return -EROFS;
	for (int tries = 0; tries < 8; tries++) {
		bool there = false;
		int c = 0;
		*fh = 0;
		if ((rc = op_begin(b, &t))) return rc;
		rc = nm_create(t, dir, name, len, mode, uid, gid, (u8)(b->slot + 1), &ino);
		/* Asked again after an unknown outcome: did this call make it?  A history that doesn't know
		 * of it gives the same inode number to somebody else's file. */
		const struct bfs_obj *was = rc == -EEXIST && ino == made ? ob_get(tview(t), ino, &c) : NULL;
		bool mine = was && was->state == BFS_ST_NEW && was->owner == b->slot + 1 && was->btime_ns == made_ns;
		if (mine) there = true;
		else if (rc == -EEXIST && (flags & O_EXCL) && !(rc = replace_abandoned(t, dir, name, len, ino)))
			rc = nm_create(t, dir, name, len, mode, uid, gid, (u8)(b->slot + 1), &ino);
		else if (rc == -EEXIST && !(flags & O_EXCL)) there = true;
		if (rc == -ENOSPC && !t->poison && !slots++ && !b->o.evict_none && t->root->slot_virgin >= b->sb.inodes && ev_make_slots(t, 64) > 0) {
			if ((rc = op_end(b, t, 0)) && rc != -EAGAIN) return rc;
			continue;
		}
		if (!rc) {
			if (!(rc = fl_new(t, ino, NULL, 0, hd_writes(flags) ? flags : flags | O_RDWR, fh))) {
				const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
				if (o && a) ob_attr(o, a);
				if (o) made_ns = o->btime_ns;
			}
		}
		rc = op_end(b, t, rc);
		if (!rc) return 0;
		if (*fh) { /* not made, or not known */
			struct bfs_handle *h = hd_get(b, *fh);
			h->in->gone = true;
			bfs_release(b, *fh);
			*fh = 0;
			made = rc == -EAGAIN ? ino : 0;
		}
		if (there) {
			if ((rc = bfs_open(b, ino, flags & ~(O_CREAT | O_EXCL), fh)) == -ENOENT || rc == -ESTALE) continue; /* gone in between */
			if (!rc && mine) {
				struct bfs_handle *h = hd_get(b, *fh);
				h->in->created_here = true, h->flags |= H_CREATOR;
			}
			if (!rc && a) rc = bfs_getattr(b, ino, a);
			return rc;
		}
		if (rc != -EAGAIN) return rc;
	}
	return rc;
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */
int bfs_fsync(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	int rc = in_lock(b, in, true);
	if (rc) return rc;
	if (!(rc = sl_settle(b, in)) && (in->state == BFS_ST_NEW || in->state == BFS_ST_DIRTY) && in->rowst != BFS_ROW_CLOSED) {
		fl_flush_overlay(b, in);
		rc = in_batch(b) ? bfs_fail(b, -EBUSY, "nothing is durable before the batch is") : rw_put(b, in, BFS_ROW_CLOSED);
		if (rc == -ENFILE) rc = sl_flush(b, in); /* no row is left: sealed is as good */
	}
	in_unlock(b, in);
	return rc;
}

int bfs_flush(struct bfs *b, u64 fh, bool killed)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	if (!hd_writes(h->flags)) return 0;
	int rc = in_lock(b, in, true);
	if (rc) return rc;
	lk(b, &b->ilock);
	if (!(h->flags & H_CLOSED)) {
		__atomic_store_n(&h->flags, h->flags | H_CLOSED, __ATOMIC_RELAXED);
		in->nclosed++;
	}
	bool others = in->writers > in->nclosed;
	unlk(b, &b->ilock);
	if (killed && in->state == BFS_ST_NEW && in->created_here && (h->flags & H_CREATOR)) rc = sl_abandon(b, in);
	else if (!others) rc = sl_flush(b, in);
	else if (!(rc = sl_settle(b, in)) && in->rowst != BFS_ROW_CLOSED && in->state != BFS_ST_SEALED && !in_batch(b)) {
		/* somebody else is writing it: closed as far as this one goes, sealed by the last */
		fl_flush_overlay(b, in);
		rc = rw_put(b, in, BFS_ROW_CLOSED);
		if (rc == -ENFILE) rc = 0;
	}
	in_unlock(b, in);
	return rc;
}
