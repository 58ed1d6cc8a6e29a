/* Reading files: bytes of the map, the sums over them, and which of them are known to be right.
 *
 * A read verifies the chunks that it touches, as the mount's `verify` says.  What was verified
 * is a bit a chunk, of one (generation, version). */
#include <fcntl.h>
#include <sys/stat.h>
#include "backing.h"
#include "file.h"

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
int fl_medium(struct bfs *b, struct bfs_inode *in, u64 addr, u64 len, int rc)
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

/* A block counts once for each of its contents, however often it is asked for: the kernel alone
 * asks for a page of it eight times over. */
static void count_corrupt(struct bfs *b, const struct bfs_inode *in)
{
	if (atomic_exchange_explicit(&b->ctag[INO_SLOT(in->ino)], vtag_of(in), memory_order_relaxed) != vtag_of(in))
		atomic_fetch_add_explicit(&b->corrupt, 1, memory_order_relaxed);
}

static void vbit_set(struct bfs *b, u64 idx, bool on)
{
	if (on) __atomic_fetch_or(&b->verified[idx / 8], (u8)(1u << idx % 8), __ATOMIC_RELEASE);
	else __atomic_fetch_and(&b->verified[idx / 8], (u8)~(1u << idx % 8), __ATOMIC_RELEASE);
}

void fl_vtag(struct bfs *b, const struct bfs_inode *in)
{
	_Atomic(u32) *tag = &b->vtag[INO_SLOT(in->ino)];
	if (b->back) return;
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
	u64 bit = b->back ? 0 : vbit_of(b, in, c);
	if (b->back) bk_know(b, in, c, true);
	if (!bit) return;
	vbit_set(b, bit - 1, true);
	/* somebody has turned to another version meanwhile: not for that one */
	if (atomic_load_explicit(&b->vtag[INO_SLOT(in->ino)], memory_order_acquire) != vtag_of(in)) vbit_set(b, bit - 1, false);
}

/* ---- reading ---------------------------------------------------------------------------------- */
int fl_copy(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len)
{
	u8 *d = dst;
	if (b->back) return bk_read(b, in, off, dst, len);
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
			return fl_medium(b, in, e->addr + skip / BFS_GRANULE, granules(skip % BFS_GRANULE + n), -EIO);
		d += n, off += n, len -= n;
	}
	return 0;
}

int fl_chunk_sum(struct bfs *b, struct bfs_inode *in, u64 c, u64 size, u8 *bounce, u64 *sum)
{
	u64 off = c * b->sb.chunk_bytes, len = min64(b->sb.chunk_bytes, size - off), g = off / BFS_GRANULE;
	bool any = b->back && bk_has_data(b, in, off, len);
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
static bool has_sum(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	u64 g = c * (b->sb.chunk_bytes / BFS_GRANULE), end = g + b->sb.chunk_bytes / BFS_GRANULE, size = atomic_load(&in->size);
	if (BFS_MUT(MUT_NO_SUM_CHECK) || c >= in->nsums || !in->sums[c] || in->foreign) return false;
	if (in->state == BFS_ST_SEALED) return true;
	if (size != in->base_size && (c + 1) * b->sb.chunk_bytes > min64(size, in->base_size)) return false;
	for (int i = mp_at(in, g); i < in->next_ext && in->ext[i].file_granule < end; i++)
		if (in->ext[i].overlay) return false;
	return true;
}

bool fl_covered(struct bfs *b, const struct bfs_inode *in, u64 c)
{
	return b->o.verify != BFS_VERIFY_OFF && has_sum(b, in, c);
}

/* Bytes [off, off + len) of chunk c, verified as the mount wants it. */
int fl_read_chunk(struct bfs *b, struct bfs_inode *in, u64 c, u64 off, u8 *dst, size_t len)
{
	u64 from = c * b->sb.chunk_bytes, size = in->state == BFS_ST_SEALED ? atomic_load(&in->size) : max64(in->base_size, atomic_load(&in->size));
	u64 whole = min64(b->sb.chunk_bytes, size - from), bit = 0, sum;
	bool check = fl_covered(b, in, c), known = false;
	if (check) {
		bit = b->back ? 0 : vbit_of(b, in, c);
		known = b->back ? bk_known(b, in, c) : bit && __atomic_load_n(&b->verified[(bit - 1) / 8], __ATOMIC_ACQUIRE) >> (bit - 1) % 8 & 1;
		if (known && b->o.verify == BFS_VERIFY_FIRST) check = false;
	}
	if (!known || b->o.verify == BFS_VERIFY_ALWAYS) fresh(b, in, c, b->o.verify == BFS_VERIFY_ALWAYS);
	if (!check) return fl_copy(b, in, off, dst, len);
	u8 *buf = len == whole ? dst : fl_bounce(b);
	if (!buf) return -ENOMEM;
	int rc = fl_copy(b, in, from, buf, whole);
	if (!rc && (sum = fl_sum(buf, whole)) != in->sums[c]) {
		count_corrupt(b, in);
		rc = bfs_fail(b, -EIO, "object %llu: checksum of bytes %llu to %llu is wrong: expected %016llx, found %016llx; the file is damaged", (unsigned long long)in->ino,
			      (unsigned long long)from, (unsigned long long)(from + whole - 1), (unsigned long long)in->sums[c], (unsigned long long)sum);
	}
	if (!rc) fl_verified(b, in, c);
	if (!rc && buf != dst) memcpy(dst, buf + (off - from), len);
	if (buf != dst) fl_bounce_end(b, buf);
	return rc;
}

int fl_read_range(struct bfs *b, struct bfs_inode *in, u64 off, u8 *dst, size_t len)
{
	if (in->nsums) fl_vtag(b, in);
	while (len) {
		u64 c = off / b->sb.chunk_bytes;
		size_t n = min64(len, (c + 1) * b->sb.chunk_bytes - off);
		int rc = fl_read_chunk(b, in, c, off, dst, n);
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

static int still_ours(struct bfs *b, const struct bfs_inode *in, u64 begun_ns)
{
	/* Rule 19: a host that was declared dead has no hold on what it read, and what looks damaged
	 * may be somebody else's.  Hosts that share coherent memory are on one machine: there only one that slept can have missed it. */
	bool own = in->state == BFS_ST_NEW && !in->frozen && !in->gone; /* nobody else can have freed it */
	if (!own && !b->o.readonly && (!b->m->coherent || b->m->ops->mono_ns(b->m) - begun_ns > b->o.suspect_ns / 4) && !lease_ok(b))
		return bfs_fail(b, -ESTALE, "this host has been declared dead while it was reading; attach it again");
	return 0;
}

static ssize_t read_locked(struct bfs *b, struct bfs_inode *in, u64 off, void *buf, size_t len)
{
	u64 size = atomic_load(&in->size), begun = b->m->ops->mono_ns(b->m);
	if (off >= size || !len) return 0;
	if (len > size - off) len = size - off;
	if (len > INT64_MAX) len = INT64_MAX;
	int rc = fl_read_range(b, in, off, buf, len);
	if (rc && rc != -EIO) return rc;
	int lost = still_ours(b, in, begun);
	if (lost) return lost;
	return rc ? rc : (ssize_t)len;
}

/* For reading: the inode, locked and settled. */
static int lock_read(struct bfs *b, u64 fh, struct bfs_inode **out)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h || (h->flags & O_ACCMODE) == O_WRONLY) return -EBADF;
	struct bfs_inode *in = h->in;
	int rc = in_lock(b, in, in->reload);
	if (rc) return rc;
	if (in->reload && (rc = sl_settle(b, in)) && !in->gone) {
		in_unlock(b, in);
		return rc;
	}
	if (in->foreign) bk_refresh(b, in);
	*out = in;
	return 0;
}

ssize_t bfs_read(struct bfs *b, u64 fh, u64 off, void *buf, size_t len)
{
	struct bfs_inode *in;
	ssize_t n = lock_read(b, fh, &in);
	if (n) return n;
	n = read_locked(b, in, off, buf, len);
	in_unlock(b, in);
	return n;
}

/* ---- reading in place ------------------------------------------------------------------------- */
#define PIECES 200
#define ZEROS (64u << 10)

/* Checks the chunks of [off, end) that weren't checked before, through a buffer that stays in the cache. */
static int verify_range(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	u8 *bounce = NULL;
	int rc = 0;
	if (in->nsums) fl_vtag(b, in);
	for (u64 c = off / b->sb.chunk_bytes; c * b->sb.chunk_bytes < end && !rc; c++) {
		u64 bit = fl_covered(b, in, c) ? vbit_of(b, in, c) : 0, from = c * b->sb.chunk_bytes;
		if (!bit || __atomic_load_n(&b->verified[(bit - 1) / 8], __ATOMIC_ACQUIRE) >> (bit - 1) % 8 & 1) continue;
		u64 size = in->state == BFS_ST_SEALED ? atomic_load(&in->size) : max64(in->base_size, atomic_load(&in->size));
		if (!bounce && !(bounce = fl_bounce(b))) return -ENOMEM;
		/* all of it, so that it is compared in the buffer and noted as checked */
		rc = fl_read_chunk(b, in, c, from, bounce, min64(b->sb.chunk_bytes, size - from));
	}
	fl_bounce_end(b, bounce);
	return rc;
}

/* For a file that is read in place: are all chunks known to be right, as opts.verify asks? */
bool fl_all_known(struct bfs *b, struct bfs_inode *in)
{
	if (b->o.verify == BFS_VERIFY_OFF || !in->next_ext) return true;
	if (b->o.verify == BFS_VERIFY_ALWAYS) return false;
	fl_vtag(b, in);
	for (u64 c = 0; c < in->nsums; c++) {
		u64 bit = vbit_of(b, in, c);
		if (!bit || !(__atomic_load_n(&b->verified[(bit - 1) / 8], __ATOMIC_ACQUIRE) >> (bit - 1) % 8 & 1)) return false;
	}
	return true;
}

/* Compares the chunks of a sealed file in one extent that aren't, where they lie.  -EIO: one is damaged. */
int fl_check_in_place(struct bfs *b, struct bfs_inode *in)
{
	fl_vtag(b, in);
	for (u64 c = 0; c < in->nsums; c++) {
		u64 bit = vbit_of(b, in, c), from = c * b->sb.chunk_bytes, len = min64(b->sb.chunk_bytes, in->base_size - from), sum;
		if (!bit || !fl_covered(b, in, c)) continue;
		if (b->o.verify == BFS_VERIFY_FIRST && __atomic_load_n(&b->verified[(bit - 1) / 8], __ATOMIC_ACQUIRE) >> (bit - 1) % 8 & 1) continue;
		fresh(b, in, c, true);
		if (bfs_guarded_sum((u8 *)al_mem(b, in->ext[0].addr) + from, len, &sum)) return bfs_fail(b, -EIO, "object %llu: the pool's memory at offset %llu answered with an error", (unsigned long long)in->ino, (unsigned long long)((u8 *)al_mem(b, in->ext[0].addr) - b->m->base + from));
		if (!sum) sum = 1;
		if (sum != in->sums[c]) {
			count_corrupt(b, in);
			return bfs_fail(b, -EIO, "object %llu: checksum of bytes %llu to %llu is wrong: expected %016llx, found %016llx; the file is damaged", (unsigned long long)in->ino,
					(unsigned long long)from, (unsigned long long)(from + len - 1), (unsigned long long)in->sums[c], (unsigned long long)sum);
		}
		fl_verified(b, in, c);
	}
	return 0;
}

/* where bytes [off, off + len) lie; how many pieces, or max + 1 */
static int pieces(struct bfs *b, const struct bfs_inode *in, u64 off, u64 len, struct iovec *v, int max)
{
	static const u8 zeros[ZEROS];
	int n = 0;
	for (int i = mp_at(in, off / BFS_GRANULE); len; n++) {
		const struct bfs_extent *e = i < in->next_ext ? &in->ext[i] : NULL;
		u64 from = e ? e->file_granule * BFS_GRANULE : UINT64_MAX, to = e ? from + (u64)e->len * BFS_GRANULE : UINT64_MAX, take;
		if (n == max) return max + 1;
		if (from > off || !e->addr) { /* a hole */
			take = min64(min64(len, (from > off ? from : to) - off), ZEROS);
			v[n] = (struct iovec){(void *)(uintptr_t)zeros, take};
		} else {
			take = min64(len, to - off);
			v[n] = (struct iovec){(u8 *)al_mem(b, e->addr) + (off - from), take};
		}
		off += take, len -= take;
		if (off >= to) i++;
	}
	return n;
}

ssize_t bfs_read_pieces(struct bfs *b, u64 fh, u64 off, size_t len, void *buf, size_t buf_len, bfs_sink *sink, void *arg)
{
	struct bfs_inode *in;
	struct iovec v[PIECES];
	u64 begun = b->m->ops->mono_ns(b->m);
	ssize_t rc = lock_read(b, fh, &in);
	if (rc) return rc;
	u64 size = atomic_load(&in->size);
	if (off >= size || !len) {
		in_unlock(b, in);
		return 0;
	}
	if (len > size - off) len = size - off;
	int n = PIECES + 1;
	if (b->m->coherent && !b->back && b->o.verify != BFS_VERIFY_ALWAYS) n = pieces(b, in, off, len, v, PIECES);
	if (n > PIECES) {
		if (len > buf_len) rc = -EOVERFLOW;
		else if ((rc = read_locked(b, in, off, buf, len)) > 0) v[0] = (struct iovec){buf, (size_t)rc}, rc = 0, n = 1;
	} else if (!(rc = verify_range(b, in, off, off + len))) {
		rc = still_ours(b, in, begun);
	} else if (rc == -EIO) {
		int lost = still_ours(b, in, begun);
		if (lost) rc = lost;
	}
	if (!rc) rc = sink(arg, v, n);
	in_unlock(b, in);
	return rc;
}

/* f on a published object as it is now, without opening it; what is written here, or lies in many
 * pieces, through the table. */
typedef ssize_t ino_fn(struct bfs *b, struct bfs_inode *in, void *arg);
static ssize_t on_ino(struct bfs *b, u64 ino, ino_fn *f, void *arg)
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
		if (!rc && b->back && (rc = bk_fd(b, in)) > 0) rc = 0;
		if (!rc && in->next_ext > 64) rc = -EBUSY;
		if (!rc && in->next_ext && (s = in_hazard(b, ino, in->version, in->ext, in->next_ext)) < 0) rc = s;
		n = rc ? rc : f(b, in, arg);
		if (s >= 0) in_hazard_end(b, s);
		if (rc != -ESTALE) break;
	}
	in_destroy(b, in);
	if (n == -EBUSY && !b->client) {
		int rc = in_get(b, ino, false, &in);
		if (rc) return rc;
		if (!(rc = in_lock(b, in, false))) {
			if (in->foreign) bk_refresh(b, in);
			n = f(b, in, arg);
			in_unlock(b, in);
		} else {
			n = rc;
		}
		in_put(b, in, false);
	}
	return n;
}

struct read_arg { u64 off; void *buf; size_t len; };
static ssize_t read_one(struct bfs *b, struct bfs_inode *in, void *arg)
{
	struct read_arg *a = arg;
	return read_locked(b, in, a->off, a->buf, a->len);
}

ssize_t fl_read_ino(struct bfs *b, u64 ino, u64 off, void *buf, size_t len)
{
	return on_ino(b, ino, read_one, &(struct read_arg){off, buf, len});
}

/* ---- checking on request ---------------------------------------------------------------------------- */
/* Chunk by chunk through a buffer that stays in the cache, so that a bus error is an answer. */
static ssize_t verify_one(struct bfs *b, struct bfs_inode *in, void *arg)
{
	struct bfs_verify *v = arg;
	u64 size = in->state == BFS_ST_SEALED ? atomic_load(&in->size) : max64(in->base_size, atomic_load(&in->size)), chunk = b->sb.chunk_bytes, sum;
	u8 *bounce = fl_bounce(b);
	int rc = 0;
	if (!bounce) return -ENOMEM;
	if (in->nsums) fl_vtag(b, in);
	struct bfs_verify n = *v;
	for (u64 c = v->next / chunk; (n.next = c * chunk) < size && n.checked_bytes + n.unchecked_bytes < v->max_bytes; c++) {
		u64 whole = min64(chunk, size - n.next), bit;
		if (!has_sum(b, in, c)) {
			/* sums of a sealed file that are 0 stand for holes: nothing is there to be checked */
			if (in->state != BFS_ST_SEALED || c >= in->nsums) n.unchecked_bytes += whole;
			continue;
		}
		fresh(b, in, c, true);
		rc = fl_chunk_sum(b, in, c, size, bounce, &sum);
		if (rc && rc != -EIO) break;
		n.checked_bytes += whole;
		bit = b->back ? 0 : vbit_of(b, in, c);
		if (!rc && sum == in->sums[c]) {
			fl_verified(b, in, c);
			continue;
		}
		rc = 0;
		if (bit) vbit_set(b, bit - 1, false); /* the next read is told */
		if (b->back) bk_know(b, in, c, false);
		if (!n.bad_chunks++) n.bad_off = n.next, n.bad_bytes = whole;
	}
	fl_bounce_end(b, bounce);
	if (rc) return rc;
	/* as in read_locked: what looks damaged may be somebody else's by now */
	if (n.bad_chunks > v->bad_chunks && !b->o.readonly && !lease_ok(b))
		return bfs_fail(b, -ESTALE, "this host has been declared dead while it was reading; attach it again");
	if (n.bad_chunks > v->bad_chunks) count_corrupt(b, in);
	n.done = n.next >= size;
	*v = n;
	return 0;
}

int bfs_verify(struct bfs *b, u64 ino, u64 from, u64 max_bytes, struct bfs_verify *v)
{
	*v = (struct bfs_verify){.next = from / b->sb.chunk_bytes * b->sb.chunk_bytes, .max_bytes = max_bytes};
	return (int)on_ino(b, ino, verify_one, v);
}

