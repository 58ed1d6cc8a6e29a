/* fsck: data space.  Extents against owners, quarantine and the regions' bits; the root's
 * counters; the rows of files being written; content against the sums it was sealed with. */
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "fsck.h"

/* ---- space ---------------------------------------------------------------------------------------------- */
bool fk_extent_ok(struct ck *k, u64 addr, u64 len)
{
	return addr && BFS_GDEV(addr) == 0 && len && len <= k->sb.data_granules && BFS_GIDX(addr) <= k->sb.data_granules - len;
}

static int by_run(const void *p, const void *q)
{
	const struct run *a = p, *b = q;
	return a->addr != b->addr ? (a->addr < b->addr ? -1 : 1) : 0;
}
static int by_map(const void *p, const void *q)
{
	const struct map *a = *(struct map *const *)p, *b = *(struct map *const *)q;
	return a->addr != b->addr ? (a->addr < b->addr ? -1 : 1) : 0;
}

struct region_walk {
	size_t at;   /* first run that may reach into the region */
	u64 next;    /* region expected next */
};

/* Bits of one region against the runs; buf NULL: the region has no page, all bits are 0. */
static void one_region(struct ck *k, u64 index, u32 pg, const struct bfs_region *g, struct region_walk *w)
{
	u64 want[BFS_REGION_GRANULES_MAX / 64] = {0};
	u64 from = index * k->sb.region_granules, to = from + k->sb.region_granules, n = 0, used;
	if (to > k->sb.data_granules) to = k->sb.data_granules;
	while (w->at < k->run.n && BFS_GIDX(k->run.v[w->at].addr) + k->run.v[w->at].len <= from) w->at++;
	for (size_t j = w->at; j < k->run.n && BFS_GIDX(k->run.v[j].addr) < to; j++) {
		u64 a = BFS_GIDX(k->run.v[j].addr), e = a + k->run.v[j].len;
		for (u64 x = a < from ? from : a; x < e && x < to; x++, n++) fk_set(want, x - from);
	}
	used = n;
	u64 lost = 0, leaked = 0, first = 0;
	for (u64 x = 0; x < to - from; x++) {
		bool is = g && fk_get(g->bits, x), should = fk_get(want, x);
		if (is == should) continue;
		if (!lost && !leaked) first = from + x;
		if (should) lost++;
		else leaked++;
	}
	if (lost) fk_bad(k, "region-clear", "region %llu (page %u): %llu granules are in use and marked free, the first mismatch at granule %llu", (ull)index, pg, (ull)lost, (ull)first);
	if (leaked) fk_bad(k, "region-leak", "region %llu (page %u): %llu granules are marked and nobody's, the first mismatch at granule %llu", (ull)index, pg, (ull)leaked, (ull)first);
	if (g && g->h.aux != to - from - used && !lost && !leaked) fk_bad(k, "region-count", "region %llu (page %u): %llu granules free, it says %u", (ull)index, pg, (ull)(to - from - used), g->h.aux);
	if (g && !g->h.count != !used && !lost && !leaked) fk_bad(k, "region-class", "region %llu (page %u): %llu granules in use, size class %d", (ull)index, pg, (ull)used, g->h.count - 1);
}

static void leaf_region(struct ck *k, u64 index, u32 pg, void *buf, void *arg)
{
	struct region_walk *w = arg;
	for (; w->next < index; w->next++) one_region(k, w->next, 0, NULL, w);
	one_region(k, index, pg, buf, w);
	w->next = index + 1;
}

void fk_check_space(struct ck *k)
{
	u64 sum[BFS_T_BAD + 1] = {0}, granted = 0, nregions = fk_up(k->sb.data_granules, k->sb.region_granules);
	u64 most = fk_up((k->sb.max_size_bytes - k->sb.data_off) / BFS_GRANULE, k->sb.region_granules); /* room to grow */
	fk_sort(k->run.v, k->run.n, sizeof *k->run.v, by_run);
	for (size_t j = 0; j < k->run.n; j++) {
		const struct run *x = &k->run.v[j], *before = j ? x - 1 : NULL;
		sum[x->kind] += x->len;
		if (x->kind == BFS_T_OWN && x->st == BFS_OWN_GRANT) granted += x->len;
		if (before && before->addr + before->len > x->addr)
			fk_bad(k, "space-overlap", "%s record of address %llx (%u granules) overlaps the %s record of %llx", fk_rec_name(before->kind), (ull)before->addr, before->len, fk_rec_name(x->kind), (ull)x->addr);
		if (x->kind == BFS_T_OWN && !fk_oi_ino(k, x->ino)) fk_bad(k, "own-object", "address %llx (%u granules) belongs to object %llu, which doesn't exist", (ull)x->addr, x->len, (ull)x->ino);
	}
	/* what overlaps was told: from here on each granule has one owner, the first */
	u64 end = 0;
	size_t m = 0;
	for (size_t j = 0; j < k->run.n; j++) {
		struct run x = k->run.v[j];
		u64 e = x.addr + x.len;
		if (e <= end) continue;
		if (x.addr < end) x.addr = end, x.len = (u32)(e - end);
		end = e;
		k->run.v[m++] = x;
	}
	k->run.n = m;
	k->r->used_granules = sum[BFS_T_OWN];
	k->r->quarantined_granules = sum[BFS_T_QUAR];
	k->r->granted_granules = granted;
	if (granted) fk_note(k, "granted", "%llu granules are granted to hosts and not sealed", (ull)granted);

	struct region_walk w = {0};
	fk_table(k, k->root.region, rx_height(most), 0, nregions, BFS_PK_REGION, "region", leaf_region, &w);
	for (; w.next < nregions && w.at < k->run.n; w.next++) one_region(k, w.next, 0, NULL, &w);

	/* mappings against owned space, both by address */
	struct map **p = malloc((k->map.n + 1) * sizeof *p);
	size_t n = 0, at = 0;
	end = 0;
	if (!p) {
		k->err = -ENOMEM;
		return;
	}
	for (size_t j = 0; j < k->map.n; j++) {
		struct map *x = &k->map.v[j];
		if (fk_extent_ok(k, x->addr, x->len)) p[n++] = x;
		else fk_bad(k, "extent-range", "%s: extent at granule address %llx, length %u, the pool has %llu granules", PATH(k, fk_ino_of(k, x->slot)), (ull)x->addr, x->len, (ull)k->sb.data_granules);
	}
	fk_sort(p, n, sizeof *p, by_map);
	u64 covered = 0; /* of the current run */
	for (size_t j = 0; j < n; j++) {
		u64 a = p[j]->addr, e = a + p[j]->len, ino = fk_ino_of(k, p[j]->slot);
		struct oi *o = fk_oi_at(k, p[j]->slot);
		if (a < end && o) o->shared = 1; /* content is read once for each granule, at most */
		if (a < end) fk_bad(k, "extent-overlap", "%s: extent at granule address %llx, length %u, overlaps that of %s", PATH(k, ino), (ull)a, p[j]->len, PATH(k, fk_ino_of(k, p[j - 1]->slot)));
		if (a < end) a = end;
		if (e > end) end = e;
		while (a < e) {
			while (at < k->run.n && k->run.v[at].addr + k->run.v[at].len <= a) {
				const struct run *x = &k->run.v[at++];
				if (x->kind == BFS_T_OWN && x->st == BFS_OWN_OBJ && covered < x->len) fk_bad(k, "own-unused", "address %llx: %llu of %u granules belong to %s and aren't mapped by it", (ull)x->addr, (ull)(x->len - covered), x->len, PATH(k, x->ino));
				covered = 0;
			}
			const struct run *x = at < k->run.n ? &k->run.v[at] : NULL;
			u64 to = x && x->addr <= a ? (x->addr + x->len < e ? x->addr + x->len : e) : x && x->addr < e ? x->addr : e;
			if (!x || x->addr > a) fk_bad(k, "extent-free", "%s: %llu granules from address %llx are mapped and belong to nobody", PATH(k, ino), (ull)(to - a), (ull)a);
			else if (x->kind != BFS_T_OWN && x->kind != BFS_T_BAD) fk_bad(k, "extent-quar", "%s: %llu granules from address %llx are mapped and in quarantine", PATH(k, ino), (ull)(to - a), (ull)a);
			else if (x->ino != ino) fk_bad(k, "own-differs", "%s: %llu granules from address %llx are mapped, and belong to %s", PATH(k, ino), (ull)(to - a), (ull)a, PATH(k, x->ino));
			else if (x->kind == BFS_T_OWN && (x->st == BFS_OWN_GRANT) != p[j]->overlay) fk_bad(k, "own-state", "%s: address %llx is %s, and mapped by the %s", PATH(k, ino), (ull)a, x->st == BFS_OWN_GRANT ? "granted" : "sealed", p[j]->overlay ? "overlay" : "base");
			if (x && x->addr <= a) covered += to - a;
			a = to;
		}
	}
	for (; at < k->run.n; at++, covered = 0) {
		const struct run *x = &k->run.v[at];
		if (x->kind == BFS_T_OWN && x->st == BFS_OWN_OBJ && covered < x->len) fk_bad(k, "own-unused", "address %llx: %llu of %u granules belong to %s and aren't mapped by it", (ull)x->addr, (ull)(x->len - covered), x->len, PATH(k, x->ino));
	}
	free(p);

	const struct bfs_root *r = &k->root;
	if (r->granules_used != sum[BFS_T_OWN] || r->granules_quar != sum[BFS_T_QUAR] || r->granules_bad != sum[BFS_T_BAD])
		fk_bad(k, "count-granules", "granules owned, in quarantine, bad: %llu, %llu, %llu found, the root says %llu, %llu, %llu", (ull)sum[BFS_T_OWN], (ull)sum[BFS_T_QUAR], (ull)sum[BFS_T_BAD], (ull)r->granules_used, (ull)r->granules_quar, (ull)r->granules_bad);
}

/* ---- counters of the root --------------------------------------------------------------- */
void fk_check_counts(struct ck *k)
{
	const struct bfs_root *r = &k->root;
#define COUNT(name, field, found) \
	if (r->field != (found)) fk_bad(k, "count-" name, #field ": %llu found, the root says %llu", (ull)(found), (ull)r->field)
	COUNT("slots", slots_used, k->nused);
	COUNT("blocks", nblocks, k->nblocks);
	COUNT("ordinary", nordinary, k->nordinary);
	COUNT("unsealed", nunsealed, k->nunsealed);
	COUNT("orphans", norphans, k->norphans);
	COUNT("evictable", blocks_granules, k->blocks_granules);
#undef COUNT
	for (u32 s = 0; s < BFS_HOSTS_MAX; s++)
		if (r->host[s].state > BFS_HOST_FENCED) fk_bad(k, "host-row", "host slot %u: state %u in the tree", s, r->host[s].state);
}

/* ---- rows of files open for writing -------------------------------------------------------------------------- */
void fk_check_rows(struct ck *k)
{
	for (u32 s = 0; s < k->sb.nhosts; s++)
		for (u32 n = 0; n < k->sb.rows; n++) {
			u64 off = k->sb.host_off + (u64)s * k->sb.host_stride + BFS_L_COUNT * BFS_LINE + 8ull * k->sb.ring_entries + 256ull * n;
			struct bfs_row c[2], *w = NULL;
			int bad_copies = 0;
			if (!fk_rd(k, off, c, sizeof c)) continue;
			for (int i = 0; i < 2; i++) {
				static const struct bfs_row none;
				if (!memcmp(&c[i], &none, sizeof none)) continue;
				u64 sum = bfs_xxh((u8 *)&c[i] + 8, sizeof c[i] - 8, k->sb.incarnation ^ (off + sizeof c[i] * (u64)i));
				if (c[i].csum != (sum ? sum : 1)) bad_copies++;
				else if (!w || c[i].seq > w->seq) w = &c[i];
			}
			if (bad_copies == 2) fk_bad(k, "row-damaged", "host slot %u, row %u: both copies are damaged", s, n);
			else if (bad_copies) fk_note(k, "row-torn", "host slot %u, row %u: one copy is torn or damaged", s, n);
			if (!w || w->state == BFS_ROW_FREE) continue;
			struct bfs_obj o;
			struct oi *i = fk_oi_ino(k, w->ino);
			if (w->state > BFS_ROW_CLOSED || w->nsums > BFS_INLINE_SUMS) {
				fk_bad(k, "row-damaged", "host slot %u, row %u: state %u with %u sums", s, n, w->state, w->nsums);
			} else if (!i || !fk_obj_again(k, INO_SLOT(w->ino), &o) || o.version != w->version || (i->state != BFS_ST_NEW && i->state != BFS_ST_DIRTY)) {
				fk_note(k, "row-void", "host slot %u, row %u: inode %llu version %u is gone or sealed already", s, n, (ull)w->ino, w->version);
			} else {
				if (i->owner != s + 1) fk_bad(k, "row-owner", "host slot %u, row %u: %s is being written by host %d", s, n, PATH(k, w->ino), i->owner - 1);
				fk_note(k, "row", "host slot %u, row %u: %s, %s, %llu bytes", s, n, PATH(k, w->ino), w->state == BFS_ROW_CLOSED ? "closed, to be sealed" : w->state == BFS_ROW_NEW ? "never synced" : "written since its seal", (ull)w->size);
			}
		}
}

/* ---- content ---------------------------------------------------------------------------------------------------- */
bool fk_sum_at(struct ck *k, struct fk_sums *s, u64 chunk, u64 *out)
{
	if (s->o.nsums <= BFS_INLINE_SUMS) {
		*out = s->o.v.sum[chunk];
		return true;
	}
	u64 leaf = chunk / BFS_SUMS;
	if (s->have != leaf + 1) {
		struct bfs_ptr p = s->o.v.sums;
		u32 level = rx_height(fk_up(s->o.nsums, BFS_SUMS));
		s->have = 0;
		for (;; level--) {
			if (!p.page) { /* nothing but holes */
				memset(s->buf, 0, sizeof s->buf);
				break;
			}
			if (p.page >= k->sb.meta_pages || !fk_rd(k, fk_page_off(k, p.page), s->buf, BFS_PAGE)) return false;
			if (!level) break;
			u64 step = 1;
			for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
			p = ((const struct bfs_radix *)s->buf)->child[leaf / step % BFS_RADIX_FAN];
		}
		s->have = leaf + 1;
	}
	*out = ((const struct bfs_sums *)s->buf)->s[chunk % BFS_SUMS];
	return true;
}

static int by_place(const void *p, const void *q)
{
	const struct map *a = p, *b = q;
	if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
	if (a->overlay != b->overlay) return a->overlay < b->overlay ? -1 : 1;
	return a->fgran != b->fgran ? (a->fgran < b->fgran ? -1 : 1) : 0;
}

static u64 zero_sum(u64 len)
{
	static const u8 zeros[BFS_GRANULE];
	XXH3_state_t *h = XXH3_createState();
	if (!h) return 0;
	XXH3_64bits_reset(h);
	for (u64 m; len; len -= m) {
		m = len < sizeof zeros ? len : sizeof zeros;
		XXH3_64bits_update(h, zeros, m);
	}
	u64 sum = XXH3_64bits_digest(h);
	XXH3_freeState(h);
	return sum ? sum : 1;
}

/* Chunks that no data lies in, and whose sums say that there was some. */
static u64 empty_chunks(struct ck *k, struct fk_sums *s, const struct map *x, size_t n, u64 *first)
{
	u64 per = k->sb.chunk_bytes / BFS_GRANULE, wrong = 0, want;
	size_t j = 0;
	for (u64 c = 0; c < s->o.nsums && !k->err; c++) {
		u64 left = s->o.size - c * k->sb.chunk_bytes;
		while (j < n && x[j].fgran + x[j].len <= c * per) j++;
		if ((j < n && x[j].fgran < (c + 1) * per) || !fk_sum_at(k, s, c, &want) || !want) continue;
		if (want != zero_sum(left < k->sb.chunk_bytes ? left : k->sb.chunk_bytes) && !wrong++) *first = c;
	}
	return wrong;
}

/* Each chunk once; n extents of the base, in order. */
static void check_content(struct ck *k, struct fk_sums *s, const struct map *x, size_t n, u8 *buf, size_t size)
{
	static const u8 zeros[BFS_GRANULE];
	u64 ino = ob_ino(&s->o), per = k->sb.chunk_bytes / BFS_GRANULE, done = 0, wrong = 0, first = 0;
	XXH3_state_t *h = XXH3_createState();
	if (!h) {
		k->err = -ENOMEM;
		return;
	}
	for (size_t j = 0; j < n; j++) {
		u64 c = x[j].fgran / per, last = (x[j].fgran + x[j].len - 1) / per;
		if (c < done) c = done;
		for (; c <= last && c < s->o.nsums && !k->err; c++) {
			u64 at = c * k->sb.chunk_bytes, end = at + k->sb.chunk_bytes < s->o.size ? at + k->sb.chunk_bytes : s->o.size, want;
			size_t e = j;
			XXH3_64bits_reset(h);
			bool ok = true;
			while (at < end) {
				while (e < n && (x[e].fgran + x[e].len) * BFS_GRANULE <= at) e++;
				u64 lo = e < n ? x[e].fgran * BFS_GRANULE : end, m;
				if (lo > at) { /* hole */
					m = lo < end ? lo - at : end - at;
					if (m > sizeof zeros) m = sizeof zeros;
					XXH3_64bits_update(h, zeros, m);
				} else {
					m = (x[e].fgran + x[e].len) * BFS_GRANULE - at;
					if (m > end - at) m = end - at;
					if (m > size) m = size;
					if (!fk_rd(k, k->sb.data_off + BFS_GIDX(x[e].addr) * BFS_GRANULE + (at - lo), buf, m)) ok = false;
					XXH3_64bits_update(h, buf, m);
					k->r->bytes_checked += m;
				}
				at += m;
			}
			u64 got = XXH3_64bits_digest(h);
			if (!ok || !fk_sum_at(k, s, c, &want) || (got ? got : 1) != want) {
				if (!wrong++) first = c;
			}
		}
		if (last + 1 > done) done = last + 1;
	}
	XXH3_freeState(h);
	if (!wrong) wrong = empty_chunks(k, s, x, n, &first);
	if (wrong) {
		k->r->blocks_bad++;
		fk_bad(k, "data", "%s: %llu of %u chunks have another content than was sealed, the first at byte %llu", PATH(k, ino), (ull)wrong, s->o.nsums, (ull)first * k->sb.chunk_bytes);
	}
}

static bool has_sums(const struct bfs_obj *o) { return S_ISREG(o->mode) && o->nsums && o->state != BFS_ST_NEW && !(o->flags & BFS_OF_UNVERIFIED) && !(o->size >> 62); }

void fk_check_data(struct ck *k)
{
	enum { SIZE = 256 << 10 };
	u8 *buf = malloc(SIZE);
	struct fk_sums *s = malloc(sizeof *s);
	if (!buf || !s) k->err = -ENOMEM;
	fk_sort(k->map.v, k->map.n, sizeof *k->map.v, by_place);
	for (size_t i = 0; i < k->map.n && !k->err;) {
		size_t n = 0;
		fk_progress(k, "checking data", i, k->map.n);
		bool sound = true;
		u64 end = 0;
		u32 slot = k->map.v[i].slot;
		for (; i + n < k->map.n && k->map.v[i + n].slot == slot && !k->map.v[i + n].overlay; n++) {
			const struct map *x = &k->map.v[i + n];
			sound &= fk_extent_ok(k, x->addr, x->len) && x->fgran >= end && x->fgran < 1ull << 51;
			end = x->fgran + x->len;
		}
		s->have = 0;
		struct oi *oi = fk_oi_at(k, slot);
		if (n && sound && oi && !oi->shared && fk_obj_again(k, slot, &s->o) && s->o.slot == slot && has_sums(&s->o))
			check_content(k, s, k->map.v + i, n, buf, SIZE);
		for (i += n; i < k->map.n && k->map.v[i].slot == slot; i++) {} /* the overlay is nobody's yet */
	}
	for (size_t at = 0; at < k->oi.n && !k->err; at++) { /* all hole */
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		const struct oi *i = &k->oi.v[at];
		s->have = 0;
		if (i->used && !i->mapped && !i->shared && i->fmt == S_IFREG >> 12 && fk_obj_again(k, slot, &s->o) && s->o.slot == slot && has_sums(&s->o) && s->o.nsums == fk_up(s->o.size, k->sb.chunk_bytes))
			check_content(k, s, NULL, 0, buf, SIZE);
	}
	free(s);
	free(buf);
}
