/* fsck: metadata pages.  Each page that the tree names is copied and checked once; the
 * tables of pages; the map of used pages and the log of freed ones against what was met. */
#include "fsck.h"

/* ---- pages ------------------------------------------------------------------------------------ */
/* Copies and checks the page that p names.  False: told, or met before. */
bool fk_page(struct ck *k, struct bfs_ptr p, int kind, const char *what, u64 index, void *buf)
{
	struct bfs_phead *h = buf;
	if (p.page < 1 || p.page >= k->sb.meta_pages) {
		fk_bad(k, "page-range", "%s %llu: pointer to page %u, expected 1 to %u", what, (ull)index, p.page, k->sb.meta_pages - 1);
		return false;
	}
	if (fk_get(k->visited, p.page)) {
		fk_bad(k, "page-twice", "%s %llu: page %u is in use elsewhere in the tree", what, (ull)index, p.page);
		return false;
	}
	fk_set(k->visited, p.page);
	if (!fk_rd(k, fk_page_off(k, p.page), buf, BFS_PAGE)) return false;
	if (k->r->pages++ % 512 == 0) fk_progress(k, "checking metadata", k->r->pages, k->root.pages_used > k->r->pages ? k->root.pages_used : k->r->pages);
	if (k->err) return false;
	if (h->self != p.page || h->term != p.term || h->txn != p.txn) {
		fk_bad(k, "page-tag", "%s %llu: page %u at 0x%llx: expected tag (%u, %llu), found page %u tag (%u, %llu)", what, (ull)index, p.page, (ull)fk_page_off(k, p.page), p.term, (ull)p.txn, h->self, h->term, (ull)h->txn);
		return false;
	}
	if (h->kind != kind) {
		fk_bad(k, "page-kind", "%s %llu: page %u: expected kind 0x%x, found 0x%x", what, (ull)index, p.page, kind, h->kind);
		return false;
	}
	u64 c = bfs_xxh((u8 *)buf + 32, BFS_PAGE - 32, k->sb.incarnation ^ bfs_xxh(buf, 24, k->sb.incarnation));
	if (h->csum != c) {
		fk_bad(k, "page-csum", "%s %llu: page %u at 0x%llx: expected checksum %016llx, found %016llx", what, (ull)index, p.page, (ull)fk_page_off(k, p.page), (ull)c, (ull)h->csum);
		return false;
	}
	if (tag_cmp(p.term, p.txn, k->top.root.term, k->top.root.txn) > 0)
		fk_bad(k, "page-future", "%s %llu: page %u was born at (%u, %llu), after its root (%u, %llu)", what, (ull)index, p.page, p.term, (ull)p.txn, k->top.root.term, (ull)k->top.root.txn);
	return true;
}

void fk_table(struct ck *k, struct bfs_ptr p, u32 level, u64 base, u64 nleaves, int kind, const char *what, fk_leaf_fn *f, void *arg)
{
	u64 buf[BFS_PAGE / 8];
	if (!p.page) {
		if (p.term || p.txn) fk_bad(k, "ptr-empty", "%s %llu: empty pointer with tag (%u, %llu)", what, (ull)base, p.term, (ull)p.txn);
		return;
	}
	if (!level) {
		if (fk_page(k, p, kind, what, base, buf)) f(k, base, p.page, buf, arg);
		return;
	}
	const struct bfs_radix *n = (const void *)buf;
	if (!fk_page(k, p, BFS_PK_RADIX, what, base, buf)) return;
	if (n->h.aux != level) {
		fk_bad(k, "table-level", "%s %llu: table page %u: expected level %u, found %u", what, (ull)base, p.page, level, n->h.aux);
		return;
	}
	u64 step = 1;
	for (u32 l = 1; l < level; l++) step *= BFS_RADIX_FAN;
	for (u32 i = 0; i < BFS_RADIX_FAN; i++) {
		if (!n->child[i].page) continue;
		if (base + i * step >= nleaves) fk_bad(k, "table-end", "%s: table page %u has a child for index %llu, expected none from %llu on", what, p.page, (ull)(base + i * step), (ull)nleaves);
		else fk_table(k, n->child[i], level - 1, base + i * step, nleaves, kind, what, f, arg);
	}
}

void fk_walk_table(struct ck *k, struct bfs_ptr p, u64 nleaves, int kind, const char *what, fk_leaf_fn *f, void *arg)
{
	fk_table(k, p, rx_height(nleaves), 0, nleaves, kind, what, f, arg);
}

void fk_leaf_map(struct ck *k, u64 index, u32 pg, void *buf, void *arg)
{
	const struct bfs_map *m = buf;
	(void)arg;
	for (u32 i = 0; i < BFS_MAP_BITS; i++) {
		u64 p = index * BFS_MAP_BITS + i;
		if (!(m->bits[i / 64] >> (i % 64) & 1)) continue;
		if (p < k->sb.meta_pages) {
			fk_set(k->mapbits, p);
			continue;
		}
		fk_bad(k, "map-end", "page map, page %u: bit of page %llu is set, the pool has %u pages", pg, (ull)p, k->sb.meta_pages);
		return;
	}
}

void fk_leaf_log(struct ck *k, u64 index, u32 pg, void *buf, void *arg)
{
	const struct bfs_log *l = buf;
	(void)arg;
	if (l->h.count > BFS_LOG_MAX) {
		fk_bad(k, "page-count", "page log %llu, page %u: expected at most %u entries, found %u", (ull)index, pg, BFS_LOG_MAX, l->h.count);
		return;
	}
	for (u32 i = 0; i < l->h.count; i++) {
		const struct bfs_logent *e = &l->e[i];
		k->nlogged++;
		if (e->page < 1 || e->page >= k->sb.meta_pages) {
			fk_bad(k, "log-range", "page log %llu entry %u: page %u, expected 1 to %u", (ull)index, i, e->page, k->sb.meta_pages - 1);
			continue;
		}
		if (fk_get(k->logged, e->page)) fk_bad(k, "log-twice", "page log %llu entry %u: page %u is in the log twice", (ull)index, i, e->page);
		fk_set(k->logged, e->page);
		if (tag_cmp(e->bterm, e->btxn, e->fterm, e->ftxn) >= 0 || tag_cmp(e->fterm, e->ftxn, k->top.root.term, k->top.root.txn) > 0)
			fk_bad(k, "log-tag", "page log %llu entry %u: page %u born at (%u, %llu), freed at (%u, %llu), root is (%u, %llu)", (ull)index, i, e->page, e->bterm, (ull)e->btxn, e->fterm, (ull)e->ftxn, k->top.root.term, (ull)k->top.root.txn);
	}
}

void fk_leaf_none(struct ck *k, u64 index, u32 pg, void *buf, void *arg) { (void)k, (void)index, (void)pg, (void)buf, (void)arg; }

/* ---- map and log against the pages met ------------------------------------------------ */
void fk_check_pages(struct ck *k)
{
	const struct bfs_root *r = &k->root;
	u64 used = 0, per = BFS_CHUNK_PAGES(k->sb.meta_pages), all = 0;
	for (u32 s = 0; s < k->sb.nhosts; s++) all |= k->grants[s];
	for (u64 p = 1; p < k->sb.meta_pages; p++) {
		bool bit = fk_get(k->mapbits, p), reach = fk_get(k->visited, p), log = fk_get(k->logged, p);
		used += bit;
		if (reach && log) fk_bad(k, "log-live", "page %llu is in use, and in the log of freed pages", (ull)p);
		if (reach && !bit) fk_bad(k, "map-clear", "page %llu is in use, and marked free", (ull)p);
		if (log && !bit) fk_bad(k, "map-clear", "page %llu waits in the log, and is marked free", (ull)p);
		if (bit && !reach && !log) {
			if (all >> (p / per) & 1) fk_note(k, "page-granted", "page %llu is marked, unused and in a grant", (ull)p);
			else fk_bad(k, "page-leak", "page %llu is marked in use and nobody's", (ull)p);
		}
	}
	if (fk_get(k->mapbits, 0)) used++;
	if (r->pages_used != used || r->pages_log != k->nlogged) fk_bad(k, "count-pages", "pages marked, in the log: %llu, %llu found, the root says %u, %u", (ull)used, (ull)k->nlogged, r->pages_used, r->pages_log);
}
