/* Full check of a pool that nobody has attached: reads only.
 *
 * Shares nothing with the code it checks but format.h and the checksums: it follows
 * pointers in copies that it made itself, so a pool that changes under it, or whose
 * bytes somebody chose, can neither crash nor hang it.  What bounds it: every page is
 * visited once (a bitmap), recursion ends at heights from the geometry, and memory
 * grows with the pages that are there, never with a number that a page states.
 *
 * Two kinds of finding.  A problem is something that no order of crashes leaves behind.
 * A note is what a crash may leave and the next attach clears: a torn line, a file in its
 * first writing, an orphan, a granted extent.
 *
 * Codes are stable: tests and scripts know them.  docs/fsck-codes.md lists them. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "fsck.h"

#define PER_CODE 1000u /* findings told in full, by code; all are counted */

/* ---- findings ----------------------------------------------------------------------- */
static void tell(struct ck *k, int severity, const char *code, const char *fmt, va_list ap)
{
	char text[1024];
	u32 i = 0;
	if (severity == 1) k->r->problems++;
	while (i < k->nseen && strcmp(k->seen[i].code, code)) i++;
	if (i == k->nseen && i < CODES) k->seen[k->nseen++].code = code;
	if (i < CODES && k->seen[i].n++ >= PER_CODE) return;
	if (!k->cb) return;
	vsnprintf(text, sizeof text, fmt, ap);
	k->cb(k->arg, severity, code, text);
}

void fk_bad(struct ck *k, const char *code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	tell(k, 1, code, fmt, ap);
	va_end(ap);
}

void fk_note(struct ck *k, const char *code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	tell(k, 0, code, fmt, ap);
	va_end(ap);
}

void fk_did(struct ck *k, const char *code, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	tell(k, 2, code, fmt, ap);
	va_end(ap);
}

void fk_leftover(struct ck *k)
{
	for (u32 i = 0; i < k->nseen; i++)
		if (k->seen[i].n > PER_CODE && k->cb) {
			char text[128];
			snprintf(text, sizeof text, "%llu more of these", (ull)(k->seen[i].n - PER_CODE));
			k->cb(k->arg, 0, k->seen[i].code, text);
		}
}

/* ---- memory and reading --------------------------------------------------------------- */
void *fk_grow(struct ck *k, void *v, size_t n, size_t *cap, size_t el)
{
	if (n < *cap || k->err) return v;
	size_t c = *cap ? *cap * 2 : 256;
	void *w = realloc(v, c * el);
	if (!w) {
		k->err = -ENOMEM;
		return v;
	}
	*cap = c;
	return w;
}

void fk_sort(void *v, size_t n, size_t el, int (*cmp)(const void *, const void *))
{
	if (n > 1) qsort(v, n, el, cmp);
}

static u64 *bits(struct ck *k, u64 n)
{
	u64 *b = calloc(n / 64 + 1, 8);
	if (!b) k->err = -ENOMEM;
	return b;
}

/* A private copy of pool bytes; zeros and false when they can't be read. */
bool fk_rd(struct ck *k, u64 off, void *dst, size_t n)
{
	if (off <= k->m->size && n <= k->m->size - off) {
		const u8 *p = k->m->base + off;
		if (!k->m->coherent) {
			mm_inval(k->m, p, n);
			mm_fence(k->m);
		}
		if (!bfs_guarded_copy(dst, p, n, false)) return true;
	}
	memset(dst, 0, n);
	fk_bad(k, "read-error", "pool offset 0x%llx: %zu bytes can't be read (memory error, or the pool is shorter than it says)", (ull)off, n);
	return false;
}

static bool pow2(u64 x) { return x && !(x & (x - 1)); }

/* ---- superblock -------------------------------------------------------------------------- */
static const char *super_fault(const struct bfs_super *s, u64 size)
{
	u64 end = 2 * BFS_PAGE;
	if (memcmp(s->magic, BFS_MAGIC, 8)) return "magic";
	if (s->version_major != BFS_VERSION_MAJOR) return "version";
	if (s->csum != bfs_xxh(s, sizeof *s - 8, 0)) return "checksum";
	if (s->nhosts < 1 || s->nhosts > BFS_HOSTS_MAX) return "nhosts";
	if (s->size_bytes > size) return "size_bytes (the pool is shorter)";
	if (s->max_size_bytes < s->size_bytes || s->max_size_bytes >> 62) return "max_size_bytes";
	size = s->size_bytes;
	if (s->host_off % BFS_LINE || s->host_off < end || s->host_off > size) return "host_off";
	if (s->host_stride % BFS_LINE || (u64)BFS_L_COUNT * BFS_LINE + 8ull * s->ring_entries + 256ull * s->rows > s->host_stride) return "host_stride";
	end = s->host_off + (u64)s->nhosts * s->host_stride;
	if (end > size) return "host_stride";
	if (s->rpc_stride && (s->rpc_off < end || s->rpc_off > size)) return "rpc_off";
	if (s->rpc_stride) end = s->rpc_off + (u64)s->nhosts * s->nhosts * s->rpc_stride;
	if (s->meta_off % BFS_PAGE || s->meta_off < end || s->meta_off > size) return "meta_off";
	if (s->meta_pages < 2 || (u64)s->meta_pages * BFS_PAGE > size - s->meta_off) return "meta_pages";
	end = s->meta_off + (u64)s->meta_pages * BFS_PAGE;
	if (s->data_off % BFS_GRANULE || s->data_off < end || s->data_off > size) return "data_off";
	if (s->data_granules > (size - s->data_off) / BFS_GRANULE) return "data_granules";
	if (s->inodes < BFS_OBJS || s->inodes % BFS_OBJS) return "inodes";
	if (!s->hash_buckets) return "hash_buckets";
	if (!pow2(s->region_granules) || s->region_granules > BFS_REGION_GRANULES_MAX || s->region_granules < 16) return "region_granules";
	if (!pow2(s->chunk_bytes) || s->chunk_bytes < BFS_GRANULE || s->chunk_bytes > 1u << 26) return "chunk_bytes";
	return NULL;
}

static bool check_super(struct ck *k)
{
	struct bfs_super c[2];
	const char *f[2];
	for (int i = 0; i < 2; i++) f[i] = fk_rd(k, i ? BFS_SB_OFF_B : BFS_SB_OFF_A, &c[i], sizeof c[i]) ? super_fault(&c[i], k->m->size) : "bytes";
	if (f[0] && f[1]) {
		fk_bad(k, "super", "no valid superblock: copy A has a bad %s, copy B a bad %s; this is no belugafs pool of version %u, or mkfs is needed", f[0], f[1], BFS_VERSION_MAJOR);
		return false;
	}
	for (int i = 0; i < 2; i++)
		if (f[i]) fk_bad(k, "super-copy", "superblock copy %c has a bad %s; the other copy is good", 'A' + i, f[i]);
	if (!f[0] && !f[1] && memcmp(&c[0], &c[1], sizeof c[0])) fk_bad(k, "super-differs", "the two superblocks are valid and differ; copy A counts");
	k->sb = c[f[0] ? 1 : 0];
	if (k->sb.incompat & ~BFS_INCOMPAT_KNOWN) {
		fk_bad(k, "features", "the pool was made with features 0x%llx that this version doesn't know", (ull)k->sb.incompat);
		return false;
	}
	return true;
}

/* ---- host slots ----------------------------------------------------------------------------- */
static const char *line_name(u32 i)
{
	static const char *const n[] = {"ident", "claim", "root A", "root B", "grant", "pin A", "pin B", "applied", "heart", "splitter X", "splitter Y"};
	return i < sizeof n / sizeof *n ? n[i] : i < BFS_L_HELD ? "reserved" : "held";
}

static void check_hosts(struct ck *k)
{
	struct bfs_line l[BFS_L_COUNT];
	bool any = false;
	for (u32 s = 0; s < k->sb.nhosts; s++) {
		int st[BFS_L_COUNT];
		if (!fk_rd(k, k->sb.host_off + (u64)s * k->sb.host_stride, l, sizeof l)) continue;
		for (u32 i = 0; i < BFS_L_COUNT; i++)
			if ((st[i] = bfs_line_check(&l[i], k->sb.incarnation, s, i)) < 0) fk_note(k, "line-torn", "host slot %u: line %u (%s) is torn or damaged; it counts as absent", s, i, line_name(i));
		if (st[BFS_L_ROOT_A] < 0 && st[BFS_L_ROOT_B] < 0)
			fk_bad(k, "root-lines", "host slot %u: both root lines are damaged; the newest state may have been there", s);
		for (u32 i = BFS_L_ROOT_A; i <= BFS_L_ROOT_B; i++) {
			if (st[i] <= 0) continue;
			struct bfs_snap x = {(u32)l[i].w[0], l[i].w[1], {(u32)l[i].w[2], (u32)l[i].w[3], l[i].w[4]}};
			int c = tag_cmp(x.term, x.txn, k->top.term, k->top.txn);
			if (any && !c && memcmp(&x.root, &k->top.root, sizeof x.root))
				fk_bad(k, "root-twice", "host slot %u: root line %c publishes (%u, %llu) as page %u, another line as page %u", s, 'A' + (int)(i - BFS_L_ROOT_A), x.term, (ull)x.txn, x.root.page, k->top.root.page);
			if (!any || c > 0) k->top = x;
			any = true;
		}
		if (st[BFS_L_IDENT] > 0) k->mount[s] = (u8)l[BFS_L_IDENT].w[4];
		for (int i = 0; i < 2; i++) {
			u32 c = i ? BFS_L_CLAIM_B : BFS_L_CLAIM;
			if (st[c] > 0 && l[c].w[0] > UINT32_MAX - 2 * BFS_HOSTS_MAX) fk_bad(k, "terms", "host slot %u: line %u (claim) has term %llu, which leaves none above it: nobody can take the lead", s, c, (ull)l[c].w[0]);
		}
		u64 seq = 0;
		for (int i = 0; i < 2; i++) {
			u32 g = i ? BFS_L_GRANT_B : BFS_L_GRANT;
			if (st[g] > 0 && l[g].w[2] >= seq) seq = l[g].w[2], k->grants[s] = l[g].w[0];
		}
		if (k->mount[s] == BFS_MNT_LIVE) fk_note(k, "host-live", "host slot %u was not detached: attached now, or its host crashed", s);
	}
	if (!any) fk_bad(k, "root-none", "no host slot has a valid root line; the pool has no state");
}

/* ------------------------------------------------------------------------------------------------------------------ */
static void check_tree(struct ck *k, bool data)
{
	u64 buf[BFS_PAGE / 8];
	struct bfs_root *r = &k->root;
	if (tag_cmp(k->top.root.term, k->top.root.txn, k->top.term, k->top.txn) > 0)
		fk_bad(k, "root-tag", "root line (%u, %llu) names page %u of (%u, %llu), which is later", k->top.term, (ull)k->top.txn, k->top.root.page, k->top.root.term, (ull)k->top.root.txn);
	if (!fk_page(k, k->top.root, BFS_PK_ROOT, "root of transaction", k->top.txn, buf)) {
		fk_bad(k, "root-page", "the root page %u of the newest state (%u, %llu) is damaged", k->top.root.page, k->top.term, (ull)k->top.txn);
		return;
	}
	memcpy(r, buf, sizeof *r);
	if (r->incompat & ~BFS_INCOMPAT_KNOWN) {
		fk_bad(k, "features", "the pool uses features 0x%llx that this version doesn't know", (ull)r->incompat);
		return;
	}
	if (r->bt_height > 12 || (r->bt_height && !r->bt.page)) {
		fk_bad(k, "root-page", "root page %u: height %u of the records", k->top.root.page, r->bt_height);
		return;
	}
	k->have_root = true;
	if (!r->next_cookie || r->next_cookie >> 63) fk_bad(k, "cookie", "root page %u: next cookie %llu", k->top.root.page, (ull)r->next_cookie);

	fk_walk_table(k, r->map, fk_up(k->sb.meta_pages, BFS_MAP_BITS), BFS_PK_MAP, "page map", fk_leaf_map, NULL);
	fk_walk_table(k, r->log, k->sb.meta_pages / (BFS_LOG_MAX / 2) + 4, BFS_PK_LOG, "page log", fk_leaf_log, NULL);
	fk_walk_table(k, r->obj, fk_up(k->sb.inodes, BFS_OBJS), BFS_PK_OBJ, "objects", fk_leaf_obj, NULL);
	fk_walk_table(k, r->hash, k->sb.hash_buckets, BFS_PK_HASH, "bucket", fk_leaf_hash, NULL);
	fk_walk_table(k, r->stamp, fk_up(k->sb.inodes, BFS_STAMPS), BFS_PK_STAMP, "stamps", fk_leaf_none, NULL);
	fk_sort(k->ent.v, k->ent.n, sizeof *k->ent.v, fk_by_cookie);
	if (r->bt.page) fk_tree(k, r->bt, r->bt_height, NULL, NULL);
	if (k->err) return;
	fk_check_objects(k);
	fk_check_dirs(k);
	fk_check_free_slots(k);
	fk_check_space(k);
	if (fk_directory(k)) fk_check_backing(k);
	fk_check_pages(k);
	fk_check_counts(k);
	u64 before = k->r->problems;
	fk_check_rows(k);
	k->in_rows = k->r->problems - before;
	if (data && !k->err && fk_directory(k)) fk_check_backing_data(k);
	else if (data && !k->err) fk_check_data(k);
}

void fk_check_state(struct ck *k, bool data)
{
	k->visited = bits(k, k->sb.meta_pages);
	k->mapbits = bits(k, k->sb.meta_pages);
	k->logged = bits(k, k->sb.meta_pages);
	if (k->err) return;
	u64 before = k->r->problems;
	if (k->top.root.page || k->top.txn) check_tree(k, data);
	k->in_tree = k->r->problems - before - k->in_rows;
}

void fk_check(struct ck *k, bool data)
{
	if (!check_super(k)) return;
	u64 before = k->r->problems;
	check_hosts(k);
	k->in_lines = k->r->problems - before;
	fk_check_state(k, data);
}

void fk_done(struct ck *k)
{
	free(k->visited), free(k->mapbits), free(k->logged);
	free(k->ent.v), free(k->map.v), free(k->run.v), free(k->leaf.v), free(k->oi.v), free(k->blob);
}

int bfs_fsck(struct bfs_mem *m, bool data, bfs_fsck_cb cb, void *arg, struct bfs_fsck_result *result)
{
	struct bfs_fsck_result local;
	struct ck *k = calloc(1, sizeof *k);
	if (!k) return -ENOMEM;
	bfs_guard_install();
	k->data_fd = -1;
	k->m = m, k->cb = cb, k->arg = arg, k->r = result ? result : &local;
	memset(k->r, 0, sizeof *k->r);
	fk_check(k, data);
	fk_leftover(k);
	u64 n = k->r->problems;
	int rc = k->err ? k->err : n > INT_MAX ? INT_MAX : (int)n;
	fk_done(k);
	free(k);
	return rc;
}
