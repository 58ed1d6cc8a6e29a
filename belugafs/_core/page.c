/* Metadata pages: validated reads, copy on write, freeing, reuse.
 *
 * A page is written once between its birth (term, txn) and its reuse.  Pages come
 * from the leader's confirmed grant; the map bit of a page is set by the transaction
 * that bears it, and cleared only when step 14 of docs/protocol.md has shown that no
 * snapshot in use contains it.  So a clear bit in a confirmed root means: no host
 * reads it, none ever will until it is born again; whoever holds it in his grant may
 * write it.
 */
#include "internal.h"

/* Free pages that aren't for everybody: the last of them only for lead duties (what a commit writes down, reuse, which
 * makes others free), those above for what gives pages back too.  Else a pool that is full could stay so.
 * Pages that are born, or reused, may each lie in another page of the map. */
static u32 for_duties(const struct bfs *b) { return 16 + 2 * (b->sb.meta_pages / BFS_MAP_BITS); }
u32 pg_reserve(const struct bfs *b) { return for_duties(b) + (b->sb.meta_pages < 512 ? 16 : 32) + 2 * (b->sb.meta_pages / BFS_MAP_BITS); }

u32 pg_enough(const struct bfs *b) { return pg_reserve(b) + 24; }

bool pg_few(const struct txn *t) { return t->b->nfree <= pg_enough(t->b); }

static u32 kept(const struct txn *t) { return t->use == PG_DUTY ? 0 : t->use == PG_FREEING ? for_duties(t->b) : pg_reserve(t->b); }

static inline u64 tag64(u32 term, u64 txn) { return (u64)term * 0x9E3779B97F4A7C15ull ^ txn; }

static const char *kind_name(int k)
{
	switch (k) {
	case BFS_PK_ROOT: return "root";
	case BFS_PK_RADIX: return "radix";
	case BFS_PK_OBJ: return "objects";
	case BFS_PK_HASH: return "bucket";
	case BFS_PK_BLEAF: return "records";
	case BFS_PK_BNODE: return "record index";
	case BFS_PK_MAP: return "page map";
	case BFS_PK_LOG: return "page log";
	case BFS_PK_REGION: return "region";
	case BFS_PK_STAMP: return "stamps";
	case BFS_PK_BLOB: return "blob";
	case BFS_PK_SUMS: return "checksums";
	}
	return "unknown";
}

u64 pg_csum(struct bfs *b, const void *page)
{
	/* around the csum field: header before it, body after it */
	const u8 *p = page;
	return bfs_xxh(p + 32, BFS_PAGE - 32, b->sb.incarnation ^ bfs_xxh(p, 24, b->sb.incarnation));
}

/* Everything later code relies on without looking again. */
static const char *bounds(struct bfs *b, const void *page)
{
	const struct bfs_phead *h = page;
	switch (h->kind) {
	case BFS_PK_ROOT:
		return ((const struct bfs_root *)page)->bt_height > 12 ? "height" : NULL;
	case BFS_PK_RADIX:
		return h->aux < 1 || h->aux > 5 ? "level" : NULL;
	case BFS_PK_BLEAF:
		return h->count > BFS_BT_MAX ? "count" : NULL;
	case BFS_PK_BNODE:
		return h->count < 1 || h->count > BFS_BT_MAX ? "count" : NULL;
	case BFS_PK_LOG:
		return h->count > BFS_LOG_MAX ? "count" : NULL;
	case BFS_PK_REGION:
		return h->aux > b->sb.region_granules ? "free count" : NULL;
	case BFS_PK_BLOB:
		return h->aux > BFS_BLOB_BYTES ? "length" : NULL;
	case BFS_PK_HASH: {
		const struct bfs_bucket *k = page;
		if (h->count > BFS_BUCKET_MAX || h->aux > BFS_BUCKET_HEAP) return "count";
		for (u32 i = 0; i < h->count; i++) {
			if (k->off[i] % 4 || k->off[i] + sizeof(struct bfs_ent) > h->aux) return "entry offset";
			const struct bfs_ent *e = (const void *)(k->heap + k->off[i]);
			if (k->off[i] + sizeof *e + e->len > h->aux) return "entry length";
		}
		return NULL;
	}
	}
	return NULL;
}

static const void *validate(struct bfs *b, struct bfs_ptr p, int kind, int *rc)
{
	const struct bfs_phead *h = pg_addr(b, p.page);
	/* Rule 15: this host may have lines of the page's former life in its cache, and a
	 * prefetch may have brought any of them in; the root that names the page is adopted,
	 * so what the pool has now is what it was born with. */
	if (!BFS_MUT(MUT_NO_PAGE_INVAL) && !BFS_MUT(MUT_INVAL_BEFORE_ROOT)) {
		mm_inval(b->m, h, BFS_MUT(MUT_HEADER_INVAL_ONLY) ? BFS_LINE : BFS_PAGE);
		mm_fence(b->m);
	}
	if (!BFS_MUT(MUT_NO_PAGE_CHECK)) {
		const char *what = NULL;
		if (h->self != p.page) what = "page number";
		else if (h->term != p.term || h->txn != p.txn) what = "tag";
		else if (h->kind != kind) what = "kind";
		else if (h->csum != pg_csum(b, h)) what = "checksum";
		else what = bounds(b, h);
		if (what) {
			*rc = bfs_fail(b, -EIO, "metadata page %u (%s, offset %llu): bad %s: expected page %u tag (%u, %llu), found page %u tag (%u, %llu) kind 0x%x; run fsck.belugafs -n on the unmounted pool",
				       p.page, kind_name(kind), (unsigned long long)(b->sb.meta_off + (u64)p.page * BFS_PAGE), what, p.page, p.term,
				       (unsigned long long)p.txn, h->self, h->term, (unsigned long long)h->txn, h->kind);
			return NULL;
		}
	}
	atomic_store_explicit(&b->valid[p.page], tag64(p.term, p.txn), memory_order_release);
	return h;
}

const void *pg_get(struct bfs *b, struct bfs_ptr p, int kind, int *rc)
{
	if (__builtin_expect(p.page - 1 >= b->sb.meta_pages - 1, 0)) {
		*rc = bfs_fail(b, -EIO, "pointer to metadata page %u of %u (%s)", p.page, b->sb.meta_pages, kind_name(kind));
		return NULL;
	}
	if (__builtin_expect(atomic_load_explicit(&b->valid[p.page], memory_order_acquire) != tag64(p.term, p.txn), 0))
		return validate(b, p, kind, rc);
	const struct bfs_phead *h = pg_addr(b, p.page);
	if (__builtin_expect(h->kind != kind, 0)) {
		*rc = bfs_fail(b, -EIO, "metadata page %u: expected kind %s, found 0x%x", p.page, kind_name(kind), h->kind);
		return NULL;
	}
	return h;
}

/* ---- birth ---------------------------------------------------------------------- */
static bool grow(struct bfs *b, void *arr, u32 *cap, u32 need, size_t el)
{
	void **a = arr;
	if (need <= *cap) return true;
	u32 c = *cap ? *cap * 2 : 64;
	while (c < need) c *= 2;
	void *n = xalloc(b, (size_t)c * el);
	if (!n) return false;
	if (*a) memcpy(n, *a, (size_t)*cap * el);
	xfree(b, *a);
	*a = n, *cap = c;
	return true;
}

static void *born(struct txn *t, struct bfs_ptr *p, int kind, const void *from)
{
	struct bfs *b = t->b;
	if (t->poison) return NULL;
	while (b->nfree <= kept(t)) {
		int rc = ld_more_pages(b);
		if (rc) {
			t->poison = rc == -ENOSPC ? bfs_fail(b, -ENOSPC, "no free metadata pages (%u of %u in use); make the pool with more --inodes", t->root_set ? t->root->pages_used : 0, b->sb.meta_pages) : rc;
			return NULL;
		}
	}
	if (!grow(b, &t->born, &t->born_cap, t->nborn + 1, sizeof *t->born)) {
		t->poison = -ENOMEM;
		return NULL;
	}
	u32 page = b->freep[--b->nfree];
	struct bfs_phead *h = pg_addr(b, page);
	mm_dirty(b->m, h, BFS_PAGE);
	if (from) {
		memcpy(h, from, BFS_PAGE);
	} else {
		memset(h, 0, BFS_PAGE);
		h->kind = (u16)kind;
	}
	h->self = page, h->term = t->term, h->txn = t->txn, h->csum = 0;
	atomic_store_explicit(&b->valid[page], tag64(t->term, t->txn), memory_order_release);
	t->born[t->nborn++] = page;
	t->changed = true;
	*p = (struct bfs_ptr){page, t->term, t->txn};
	return h;
}

void *pg_new(struct txn *t, struct bfs_ptr *p, int kind) { return born(t, p, kind, NULL); }

static void dead(struct txn *t, struct bfs_logent e)
{
	if (!grow(t->b, &t->dead, &t->dead_cap, t->ndead + 1, sizeof *t->dead)) {
		t->poison = -ENOMEM;
		return;
	}
	t->dead[t->ndead++] = e;
	if (BFS_MUT(MUT_REUSE_UNCONFIRMED) && t->b->nfree < t->b->free_cap) t->b->freep[t->b->nfree++] = e.page;
}

static inline bool born_here(struct txn *t, struct bfs_ptr p) { return p.term == t->term && p.txn == t->txn; }

void *pg_cow(struct txn *t, struct bfs_ptr *p, int kind)
{
	int rc = 0;
	struct bfs_ptr old = *p;
	if (t->poison) return NULL;
	const void *src = pg_get(t->b, old, kind, &rc);
	if (!src) {
		t->poison = rc;
		return NULL;
	}
	if (born_here(t, old)) return (void *)(uintptr_t)src;
	void *n = born(t, p, kind, src);
	if (n) dead(t, (struct bfs_logent){.page = old.page, .bterm = old.term, .btxn = old.txn, .fterm = t->term, .ftxn = t->txn});
	return n;
}

void pg_free(struct txn *t, struct bfs_ptr *p)
{
	if (!p->page) return;
	if (born_here(t, *p)) {
		for (u32 i = t->nborn; i-- > t->born_mapped;)
			if (t->born[i] == p->page) {
				t->born[i] = t->born[--t->nborn];
				t->b->freep[t->b->nfree++] = p->page;
				atomic_store_explicit(&t->b->valid[p->page], 0, memory_order_release);
				break;
			}
	} else {
		dead(t, (struct bfs_logent){.page = p->page, .bterm = p->term, .btxn = p->txn, .fterm = t->term, .ftxn = t->txn});
		t->changed = true;
	}
	*p = (struct bfs_ptr){0};
}

static struct bfs_map *map_of(struct txn *t, u32 page)
{
	return rx_cow(t, &t->root->map, t->b->h_map, page / BFS_MAP_BITS, BFS_PK_MAP);
}

static void map_set(struct txn *t, u32 page, bool on)
{
	struct bfs_map *m = map_of(t, page);
	if (!m) return;
	u64 bit = 1ull << (page % BFS_MAP_BITS % 64), *w = &m->bits[page % BFS_MAP_BITS / 64];
	if (!!(*w & bit) == on) {
		t->poison = bfs_fail(t->b, -EIO, "page map: page %u is %s already", page, on ? "in use" : "free");
		return;
	}
	*w ^= bit;
	t->root->pages_used += on ? 1u : -1u;
}

/* Puts the dead pages into the log; a log page that is copied for that dies itself and
 * goes into it too, once, since its copy is mutable from then on. */
static void log_dead(struct txn *t)
{
	struct bfs_root *r = t->root;
	struct bfs_log *l = rx_cow(t, &r->log, t->b->h_log, r->log_head, BFS_PK_LOG);
	for (u32 tries = 0; l && l->h.count == BFS_LOG_MAX; tries++) {
		int rc = 0;
		const struct bfs_log *x = NULL;
		do { /* next index whose page is absent */
			r->log_head = (r->log_head + 1) % t->b->log_cap;
			x = rx_get(t->b, r->log, t->b->h_log, r->log_head, BFS_PK_LOG, &rc);
		} while (x && !rc && ++tries < t->b->log_cap);
		if (x || rc) {
			t->poison = rc ? rc : bfs_fail(t->b, -ENOSPC, "too many metadata pages wait for readers");
			return;
		}
		l = rx_cow(t, &r->log, t->b->h_log, r->log_head, BFS_PK_LOG);
	}
	while (l && t->dead_logged < t->ndead && l->h.count < BFS_LOG_MAX) {
		l->e[l->h.count++] = t->dead[t->dead_logged++];
		r->pages_log++;
	}
}

/* The beginning of a page; the rest comes by itself then. */
static void fetch(const void *page)
{
	for (u32 off = 0; off < 1024; off += BFS_LINE) __builtin_prefetch((const u8 *)page + off);
}

int pg_finish(struct txn *t)
{
	struct bfs *b = t->b;
	t->use = PG_DUTY; /* what the user asked for is done; this is the bookkeeping */
	while (!t->poison && (t->born_mapped < t->nborn || t->dead_logged < t->ndead)) {
		if (t->born_mapped < t->nborn) map_set(t, t->born[t->born_mapped++], true);
		else log_dead(t);
	}
	if (BFS_MUT(MUT_MAP_BIT_EARLY))
		for (u32 i = 0; i < t->ndead && !t->poison; i++) {
			map_set(t, t->dead[i].page, false);
			if (grow(b, &t->cleared, &t->cleared_cap, t->ncleared + 1, sizeof *t->cleared)) t->cleared[t->ncleared++] = t->dead[i].page;
		}
	if (t->poison) return t->poison;
	mm_fence(b->m);
	for (u32 i = 0; i < t->nborn; i++) {
		struct bfs_phead *h = pg_addr(b, t->born[i]);
		if (i + 1 < t->nborn) fetch(pg_addr(b, t->born[i + 1]));
		h->csum = pg_csum(b, h);
		if (!BFS_MUT(MUT_PAGES_NO_FLUSH)) mm_flush(b->m, h, BFS_PAGE);
	}
	mm_fence(b->m); /* step 10: whole pages are in the pool before a root names them */
	atomic_fetch_add_explicit(&b->pages_written, t->nborn, memory_order_relaxed);
	return 0;
}

static void drop(struct txn *t)
{
	xfree(t->b, t->born);
	xfree(t->b, t->dead);
	xfree(t->b, t->cleared);
	t->born = NULL, t->dead = NULL, t->cleared = NULL;
}

void pg_abort(struct txn *t)
{
	for (u32 i = 0; i < t->nborn; i++) { /* never published: still the grant's */
		atomic_store_explicit(&t->b->valid[t->born[i]], 0, memory_order_release);
		t->b->freep[t->b->nfree++] = t->born[i];
	}
	drop(t);
}

void pg_confirmed(struct txn *t)
{
	struct bfs *b = t->b;
	u32 per = BFS_CHUNK_PAGES(b->sb.meta_pages);
	for (u32 i = 0; i < t->ncleared; i++) /* free in the confirmed root now */
		if (b->grant >> (t->cleared[i] / per) & 1) b->freep[b->nfree++] = t->cleared[i];
	drop(t);
}

/* ---- reuse: step 14 ------------------------------------------------------------------ */
static bool pinned(const struct bfs_logent *e, const struct pin *p, int n)
{
	for (int i = 0; i < n; i++) /* b <= s < f for an s in [1, 2] */
		if (tag_cmp(e->bterm, e->btxn, p[i].t2, p[i].x2) <= 0 && tag_cmp(e->fterm, e->ftxn, p[i].t1, p[i].x1) > 0) return true;
	return false;
}

int pg_reuse(struct txn *t)
{
	struct bfs *b = t->b;
	struct pin pins[2 * BFS_HOSTS_MAX + 1];
	int rc = 0, np = BFS_MUT(MUT_NO_PIN_SCAN) ? 0 : ld_pins(b, pins), got = 0;
	u32 start = (t->root->log_head + 1) % b->log_cap, left = t->root->pages_log;
	/* The scan comes after conf was confirmed, and every entry read here was freed at or
	 * before conf: readers that pin later pin conf or newer (rule 13), so what is not
	 * pinned now never is again. */
	for (u32 k = 0; k < b->log_cap && left && !t->poison; k++) {
		u32 i = (start + k) % b->log_cap;
		if (i == t->root->log_head && b->nfree > pg_reserve(b) * 2) break; /* being filled: only in need */
		const struct bfs_log *l = rx_get(b, t->root->log, b->h_log, i, BFS_PK_LOG, &rc);
		if (rc) return t->poison = rc;
		if (!l || (l->h.term == t->term && l->h.txn == t->txn)) continue;
		u32 n = l->h.count, blocked = 0;
		left -= n < left ? n : left;
		for (u32 j = 0; j < n; j++) {
			if (tag_cmp(l->e[j].fterm, l->e[j].ftxn, b->conf.term, b->conf.txn) > 0) return t->poison = bfs_fail(b, -EIO, "page log: page %u freed in the future", l->e[j].page);
			blocked += pinned(&l->e[j], pins, np);
		}
		if (blocked > n / 2 || n == 0) continue;
		for (u32 j = 0; j < n && !t->poison; j++) {
			struct bfs_logent e = l->e[j];
			if (e.page - 1 >= b->sb.meta_pages - 1) return t->poison = bfs_fail(b, -EIO, "page log: page %u of %u", e.page, b->sb.meta_pages);
			if (pinned(&e, pins, np)) {
				dead(t, e);
				continue;
			}
			map_set(t, e.page, false);
			if (!grow(b, &t->cleared, &t->cleared_cap, t->ncleared + 1, sizeof *t->cleared)) return t->poison = -ENOMEM;
			t->cleared[t->ncleared++] = e.page;
			got++;
		}
		t->root->pages_log -= n;
		if (rx_drop(t, &t->root->log, b->h_log, i, BFS_PK_LOG)) return t->poison;
		/* more than this transaction frees, or the log would only grow */
		if (got >= 512 && (u32)got >= 2 * t->ndead) break;
	}
	return t->poison ? t->poison : got;
}

/* ---- the grant's free pages ------------------------------------------------------------ */
static int scan_chunk(struct bfs *b, u32 chunk, u32 *out)
{
	u32 per = BFS_CHUNK_PAGES(b->sb.meta_pages), from = chunk * per, to = from + per, n = 0;
	int rc = 0;
	const struct bfs_root *r = pg_get(b, b->conf.root, BFS_PK_ROOT, &rc);
	if (!r) return rc;
	if (from == 0) from = 1;
	if (to > b->sb.meta_pages) to = b->sb.meta_pages;
	for (u32 p = from; p < to;) { /* a word of the map at a time */
		const struct bfs_map *m = rx_get(b, r->map, b->h_map, p / BFS_MAP_BITS, BFS_PK_MAP, &rc);
		if (rc) return rc;
		u32 bit = p % BFS_MAP_BITS, end = p + 64 - bit % 64;
		u64 free = ~((m ? m->bits[bit / 64] : 0) >> (bit % 64));
		if (end > to) end = to;
		if (end - p < 64) free &= (1ull << (end - p)) - 1;
		if (!out) n += (u32)__builtin_popcountll(free);
		else
			for (; free; free &= free - 1) out[n++] = p + (u32)__builtin_ctzll(free);
		p = end;
	}
	return (int)n;
}

int pg_count_free(struct bfs *b, u32 chunk) { return scan_chunk(b, chunk, NULL); }

int pg_fill(struct bfs *b, u64 chunks, bool add)
{
	if (!add) b->nfree = 0;
	for (u32 c = 0; c < 64; c++) {
		if (!(chunks >> c & 1)) continue;
		int n = scan_chunk(b, c, b->freep + b->nfree);
		if (n < 0) return n;
		b->nfree += (u32)n;
	}
	return 0;
}

int pg_attach(struct bfs *b)
{
	b->valid = xalloc(b, (size_t)b->sb.meta_pages * sizeof *b->valid);
	b->free_cap = b->sb.meta_pages;
	b->freep = xalloc(b, (size_t)b->free_cap * sizeof *b->freep);
	return b->valid && b->freep ? 0 : -ENOMEM;
}

void pg_detach(struct bfs *b)
{
	xfree(b, (void *)b->valid);
	xfree(b, b->freep);
}
