/* The superblock, making a pool, joining and leaving it. */
#include "backing.h"
#include "lease.h"

#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)

u64 sp_csum(const struct bfs_super *s) { return bfs_xxh(s, offsetof(struct bfs_super, csum), 0); }

static u64 up(u64 x, u64 a) { return (x + a - 1) / a * a; }
static u64 clamp(u64 x, u64 lo, u64 hi) { return x < lo ? lo : x > hi ? hi : x; }

/* ---- geometry: docs/format.md, "Geometry" -------------------------------------------- */
static void geometry(struct bfs_super *s, const struct bfs_mkfs_params *p, u64 size)
{
	if (p->directory) size = p->data_bytes; /* so many files fit into it */
	s->size_bytes = size;
	s->max_size_bytes = p->max_size_bytes > size ? p->max_size_bytes : size;
	s->nhosts = p->nhosts ? p->nhosts : BFS_HOSTS_MAX;
	u64 max = s->max_size_bytes;
	/* one object per 64 KiB; small pools get up to 32768, for about 8 % of their size */
	u64 inodes = max >> 16;
	if (inodes < 32768) inodes = clamp(size / (12 << 10), inodes, 32768);
	s->inodes = (u32)up(clamp(p->inodes ? p->inodes : inodes, 32, 1u << 31), BFS_OBJS);
	s->hash_buckets = (u32)clamp((u64)s->inodes * 5 / 64, 8, 1u << 31);
	s->ring_entries = p->ring_entries ? (u32)up(p->ring_entries, 8) : (u32)clamp(s->inodes / 8, 64, 4096);
	s->rows = p->rows ? p->rows : (u32)clamp(s->inodes / 64, 64, 8192);
	s->host_off = 2 * BFS_PAGE;
	s->host_stride = (u32)up(BFS_L_COUNT * BFS_LINE + 8ull * s->ring_entries + 2ull * sizeof(struct bfs_row) * s->rows, BFS_PAGE);
	s->rpc_off = s->host_off + (u64)s->host_stride * s->nhosts;
	s->rpc_stride = size >= 64 * MIB ? BFS_PAGE : 0;
	s->meta_off = s->rpc_off + (u64)s->rpc_stride * s->nhosts * s->nhosts;
	u64 regions = max / (64 * MIB) + 64;
	u64 full = s->inodes / BFS_OBJS + s->hash_buckets + s->hash_buckets / 4 + (u64)s->inodes * 5 / 2 / 66 + s->inodes / BFS_STAMPS + regions;
	full += full / 200 + 64;
	s->meta_pages = p->meta_pages ? p->meta_pages : (u32)(full + full * 35 / 100 + 512);
	if (p->directory) { /* the smallest data range that there can be, unused */
		s->data_off = s->meta_off + (u64)s->meta_pages * BFS_PAGE;
		s->size_bytes = s->max_size_bytes = size = s->data_off + 16 * BFS_GRANULE;
	}
	u64 align = p->directory ? BFS_PAGE : p->align_bytes ? p->align_bytes : size >= 64 * MIB ? 2 * MIB : BFS_PAGE;
	s->data_off = up(s->meta_off + (u64)s->meta_pages * BFS_PAGE, align);
	s->data_granules = size > s->data_off ? (size - s->data_off) / BFS_GRANULE : 0;
	u64 rg = BFS_REGION_GRANULES_MAX;
	while (rg > 64 && rg * 16 > s->data_granules) rg /= 2;
	s->region_granules = p->region_granules ? p->region_granules : (u32)rg;
	s->chunk_bytes = p->chunk_bytes ? p->chunk_bytes : 256 << 10;
}

static bool pow2(u64 x) { return x && !(x & (x - 1)); }

static const char *geometry_bad(const struct bfs_super *s)
{
	if (s->nhosts < 1 || s->nhosts > BFS_HOSTS_MAX) return "number of host slots";
	if (s->inodes < 32 || s->inodes > 1u << 31) return "number of inodes";
	if (s->meta_pages < 128) return "number of metadata pages";
	if (!s->hash_buckets) return "number of buckets";
	if (!pow2(s->region_granules) || s->region_granules > BFS_REGION_GRANULES_MAX || s->region_granules < 16) return "region size";
	if (!pow2(s->chunk_bytes) || s->chunk_bytes < BFS_GRANULE) return "chunk size";
	if (s->host_stride < BFS_L_COUNT * BFS_LINE + 8ull * s->ring_entries + 2ull * sizeof(struct bfs_row) * s->rows || s->host_stride % BFS_LINE) return "size of a host slot";
	if (s->host_off < 2 * BFS_PAGE || s->host_off % BFS_PAGE || s->rpc_off < s->host_off + (u64)s->host_stride * s->nhosts) return "place of the host slots";
	if (s->meta_off < s->rpc_off + (u64)s->rpc_stride * s->nhosts * s->nhosts || s->meta_off % BFS_PAGE) return "place of the metadata";
	if (s->data_off < s->meta_off + (u64)s->meta_pages * BFS_PAGE || s->data_off % BFS_GRANULE || s->data_off > s->size_bytes) return "place of the data";
	if (s->data_granules < 16 || s->data_granules > (s->size_bytes - s->data_off) / BFS_GRANULE) return "size of the data";
	if (s->size_bytes > s->max_size_bytes) return "maximum size";
	return NULL;
}

int sp_check(const struct bfs_super *s, u64 size_bytes)
{
	bool any = false;
	for (size_t i = 0; i < sizeof *s && !any; i++) any = ((const u8 *)s)[i];
	if (!any) return bfs_fail(NULL, -ENODATA, "not a belugafs pool: the superblock is all zeros; make one with mkfs.belugafs");
	if (memcmp(s->magic, BFS_MAGIC, 8)) return bfs_fail(NULL, -EMEDIUMTYPE, "not a belugafs pool: offset 0 has no BELUGAFS magic (another filesystem or file?)");
	if (s->version_major > BFS_VERSION_MAJOR)
		return bfs_fail(NULL, -EPROTONOSUPPORT, "pool format version %u.%u is newer than this belugafs knows (%u.%u); use a newer belugafs", s->version_major, s->version_minor, BFS_VERSION_MAJOR, BFS_VERSION_MINOR);
	if (s->csum != sp_csum(s)) return bfs_fail(NULL, -EUCLEAN, "superblock damaged: checksum expected %016llx, found %016llx", (unsigned long long)sp_csum(s), (unsigned long long)s->csum);
	if (s->incompat & ~BFS_INCOMPAT_KNOWN) return bfs_fail(NULL, -EPROTONOSUPPORT, "the pool uses features 0x%llx that this belugafs doesn't know; use a newer one", (unsigned long long)s->incompat);
	const char *bad = geometry_bad(s);
	if (bad) return bfs_fail(NULL, -EUCLEAN, "superblock damaged: impossible %s", bad);
	if (s->size_bytes > size_bytes)
		return bfs_fail(NULL, -ENOSPC, "the pool is truncated: its superblock says %llu bytes, the file or device has %llu", (unsigned long long)s->size_bytes, (unsigned long long)size_bytes);
	return 0;
}

int bfs_read_super(struct bfs_mem *m, u64 size_bytes, struct bfs_super *out)
{
	int rc = 0;
	if (size_bytes < 2 * BFS_PAGE) return bfs_fail(NULL, -EMEDIUMTYPE, "not a belugafs pool: only %llu bytes long", (unsigned long long)size_bytes);
	for (int copy = 0; copy < 2; copy++) {
		mm_inval(m, m->base + copy * BFS_PAGE, BFS_PAGE);
		mm_fence(m);
		if (bfs_guarded_copy(out, m->base + copy * BFS_PAGE, sizeof *out, false)) return bfs_fail(NULL, -EIO, "the superblock can't be read (bus error)");
		int r = sp_check(out, size_bytes);
		if (!r) return 0;
		if (!copy || rc == -ENODATA || rc == -EMEDIUMTYPE) rc = r; /* the first copy's complaint, unless it isn't there at all */
		if (r == -ENOSPC || r == -EPROTONOSUPPORT) return r;
	}
	return rc;
}

int bfs_check_same(struct bfs *b)
{
	struct bfs_mem *m = b->m;
	struct { u8 before[offsetof(struct bfs_super, uuid)], uuid[16]; u64 incarnation; } h;
	static_assert(sizeof h == offsetof(struct bfs_super, incarnation) + 8, "head of the superblock");
	for (int copy = 0; copy < 2; copy++) { /* one of them may be damaged; mkfs zeroes both first */
		mm_inval(m, m->base + copy * BFS_PAGE, sizeof h);
		if (!bfs_guarded_copy(&h, m->base + copy * BFS_PAGE, sizeof h, false) && h.incarnation == b->sb.incarnation && !memcmp(h.uuid, b->sb.uuid, sizeof h.uuid)) return 0;
	}
	return bfs_fail(b, -ESTALE, "the pool isn't the one that was attached any more: it was made anew (mkfs) or cut; unmount it");
}

/* ---- mkfs ------------------------------------------------------------------------------ */
struct maker {
	struct bfs_mem *m;
	struct bfs_super *s;
	u32 next;
	u32 term;
};

static void *make(struct maker *k, struct bfs_ptr *p, int kind)
{
	struct bfs_phead *h = (void *)(k->m->base + k->s->meta_off + (u64)k->next * BFS_PAGE);
	mm_dirty(k->m, h, BFS_PAGE);
	memset(h, 0, BFS_PAGE);
	h->kind = (u16)kind, h->self = k->next, h->term = k->term, h->txn = 1;
	*p = (struct bfs_ptr){k->next++, k->term, 1};
	return h;
}

static void *make_leaf(struct maker *k, struct bfs_ptr *p, u32 height, int kind) /* index 0 */
{
	for (u32 l = height; l; l--) {
		struct bfs_radix *n = make(k, p, BFS_PK_RADIX);
		n->h.aux = l;
		p = &n->child[0];
	}
	return make(k, p, kind);
}

u64 bfs_directory_bytes(const struct bfs_mkfs_params *p)
{
	struct bfs_super s;
	memset(&s, 0, sizeof s);
	geometry(&s, p, p->data_bytes);
	const char *bad = geometry_bad(&s);
	if (!bad && s.size_bytes < p->data_bytes) return s.size_bytes;
	bfs_fail(NULL, -EINVAL, "a directory pool of %llu bytes with %u inodes is not possible (%s): take a larger --size or fewer --inodes", (unsigned long long)p->data_bytes, s.inodes, bad ? bad : "all of it would be metadata");
	return 0;
}

int bfs_mkfs(struct bfs_mem *m, const struct bfs_mkfs_params *p, struct bfs_super *out)
{
	struct bfs_super s;
	memset(&s, 0, sizeof s);
	memcpy(s.magic, BFS_MAGIC, 8);
	s.version_major = BFS_VERSION_MAJOR, s.version_minor = BFS_VERSION_MINOR;
	if (p->directory) s.incompat = BFS_INCOMPAT_DIRECTORY;
	memcpy(s.uuid, p->uuid, 16);
	memcpy(s.label, p->label, 64);
	s.incarnation = p->incarnation ? p->incarnation : m->ops->rand64(m);
	s.hash_seed = m->ops->rand64(m);
	s.created_s = m->ops->now_ns(m) / 1000000000ull;
	s.map_bytes = p->map_bytes ? p->map_bytes : BFS_PAGE;
	u64 size = (p->size_bytes < m->size ? p->size_bytes : m->size) / BFS_PAGE * BFS_PAGE;
	geometry(&s, p, size);
	if (p->directory && s.size_bytes > size) return bfs_fail(NULL, -EINVAL, "the metadata takes %llu bytes, the file has %llu", (unsigned long long)s.size_bytes, (unsigned long long)size);
	size = s.size_bytes;
	const char *bad = geometry_bad(&s);
	if (bad)
		return bfs_fail(NULL, -EINVAL, "a pool of %llu bytes with %u inodes is not possible (%s): take a larger --size or fewer --inodes", (unsigned long long)size, s.inodes, bad);
	memcpy(s.dev[0].uuid, s.uuid, 16);
	s.dev[0].size_bytes = size, s.dev[0].data_granules = s.data_granules;
	s.csum = sp_csum(&s);

	/* The old superblocks go first and the new ones come last: an mkfs that is killed leaves
	 * no pool. */
	mm_dirty(m, m->base, 2 * BFS_PAGE);
	if (bfs_guarded_zero(m->base, 2 * BFS_PAGE)) return bfs_fail(NULL, -EIO, "the pool can't be written (bus error): is there room for a file of its size?");
	mm_pool_fence(m, m->base, 2 * BFS_PAGE);
	u64 head = s.meta_off - s.host_off;
	mm_dirty(m, m->base + s.host_off, head);
	mm_dirty(m, m->base + s.meta_off, 64 * BFS_PAGE);
	if (bfs_guarded_zero(m->base + s.host_off, head) || bfs_guarded_zero(m->base + s.meta_off, 64 * BFS_PAGE))
		return bfs_fail(NULL, -EIO, "the pool can't be written (bus error): is there room for a file of its size?");
	mm_pool_fence(m, m->base + s.host_off, head);

	struct maker k = {m, &s, 1, s.nhosts}; /* term nhosts: slot 0's by number */
	struct bfs_ptr rp;
	struct bfs_root *r = make(&k, &rp, BFS_PK_ROOT);
	r->time_ns = (i64)m->ops->now_ns(m);
	r->incompat = s.incompat;
	r->next_cookie = 16; /* below: "." and ".." of the adapters */
	r->slot_virgin = 2, r->slots_used = 1;
	struct bfs_objs *o = make_leaf(&k, &r->obj, rx_height(s.inodes / BFS_OBJS), BFS_PK_OBJ);
	for (u32 i = 0; i < BFS_OBJS; i++) o->o[i].slot = i;
	struct bfs_obj *d = &o->o[1];
	d->mode = S_IFDIR | 0755, d->nlink = 2;
	d->uid = geteuid(), d->gid = getegid(); /* who makes the pool may write in it */
	d->atime_ns = d->mtime_ns = d->ctime_ns = d->btime_ns = r->time_ns;
	d->state = BFS_ST_SEALED;
	d->parent = BFS_ROOT_INO;
	struct bfs_map *map = make_leaf(&k, &r->map, rx_height(up(s.meta_pages, BFS_MAP_BITS) / BFS_MAP_BITS), BFS_PK_MAP);
	map->bits[0] = (1ull << k.next) - 2; /* pages 1 .. next-1 */
	r->pages_used = k.next - 1;
	struct bfs fake = {.m = m, .sb = s};
	for (u32 i = 1; i < k.next; i++) {
		struct bfs_phead *h = pg_addr(&fake, i);
		h->csum = pg_csum(&fake, h);
	}
	/* all that was zeroed: a line that stays dirty in this cache would come back later, over
	 * a page that somebody else has written */
	mm_pool_fence(m, pg_addr(&fake, 0), 64 * BFS_PAGE);
	ld_put(&fake, BFS_L_CLAIM, (u64[]){k.term}, 1);
	ld_put(&fake, BFS_L_ROOT_A, (u64[]){k.term, 1, rp.page, rp.term, rp.txn}, 5);
	mm_pool_fence(m, host_line(&fake, 0, 0), BFS_LINE * 16);
	for (int c = 1; c >= 0; c--) {
		mm_store(m, m->base + c * BFS_PAGE, &s, sizeof s);
		mm_pool_fence(m, m->base + c * BFS_PAGE, BFS_PAGE);
	}
	if (out) *out = s;
	return 0;
}

/* ---- joining: host slots, rule 24 ----------------------------------------------------------- */
static int take_slot(struct bfs *b)
{
	struct bfs_line l, y;
	/* IDENT is stored over itself: a crash in the middle of it must not cost the slot, with the
	 * rows and the grant in it.  Torn, it still has this host's number, unless that was the
	 * first time: then nothing is in the slot, and it is lost.  What the splitter's line says
	 * doesn't count: who came too late stores into it as well. */
	for (int torn = 0; torn < 2; torn++)
		for (u32 s = 0; s < b->sb.nhosts; s++) {
			int ok = ld_line(b, s, BFS_L_IDENT, &l);
			if ((torn ? ok < 0 : ok > 0) && l.w[0] == b->o.uuid[0] && l.w[1] == b->o.uuid[1]) return (int)s;
		}
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		/* A splitter (Lamport): whoever writes X, finds Y unset, sets it and still finds
		 * his own X, is alone.  Two that meet may both lose; then the slot stays unused
		 * until the operator gives it away by number. */
		if (ld_line(b, s, BFS_L_IDENT, &l) != 0) continue;
		b->slot = s;
		ld_put(b, BFS_L_SPLIT_X, b->o.uuid, 2);
		mm_pool_fence(b->m, host_line(b, s, BFS_L_SPLIT_X), BFS_LINE);
		if (!BFS_MUT(MUT_SLOT_NO_SPLITTER)) {
			if (ld_line(b, s, BFS_L_SPLIT_Y, &y) != 0) continue;
			ld_put(b, BFS_L_SPLIT_Y, (u64[]){1}, 1);
			mm_pool_fence(b->m, host_line(b, s, BFS_L_SPLIT_Y), BFS_LINE);
		}
		if (ld_line(b, s, BFS_L_SPLIT_X, &l) > 0 && l.w[0] == b->o.uuid[0] && l.w[1] == b->o.uuid[1]) return (int)s;
	}
	return bfs_fail(b, -EUSERS, "all %u host slots of the pool are taken; give this host one by number (slot=N)", b->sb.nhosts);
}

static void put_ident(struct bfs *b, u64 state)
{
	ld_put(b, BFS_L_IDENT, (u64[]){b->o.uuid[0], b->o.uuid[1], b->o.boot, b->incarnation, state, BFS_INCOMPAT_KNOWN, now_ns(b) / 1000000000ull}, 7);
	mm_pool_fence(b->m, host_line(b, b->slot, BFS_L_IDENT), BFS_LINE);
}

static void release(struct bfs *b, bool clean)
{
	rv_detach(b);
	in_detach(b);
	bk_detach(b);
	ev_detach(b);
	al_detach(b);
	ld_detach(b, clean);
	ls_detach(b, clean);
	pg_detach(b);
	xfree(b, b->verified);
	xfree(b, (void *)b->vtag);
	xfree(b, (void *)b->ctag);
	xfree(b, b);
}

static int give_up(struct bfs *b, bool clean, int rc)
{
	char keep[512]; /* releasing may have something to say, too */
	memcpy(keep, bfs_errmsg(), sizeof keep);
	release(b, clean);
	return *keep ? bfs_fail(NULL, rc, "%s", keep) : rc;
}

void sp_heights(struct bfs *b)
{
	const struct bfs_super *s = &b->sb;
	b->h_map = rx_height(up(s->meta_pages, BFS_MAP_BITS) / BFS_MAP_BITS);
	u64 logs = (s->meta_pages / (BFS_LOG_MAX / 2)) + 4;
	b->h_log = rx_height(logs);
	b->log_cap = (u32)logs;
	b->h_obj = rx_height(s->inodes / BFS_OBJS);
	b->h_hash = rx_height(s->hash_buckets);
	u64 max_granules = (s->max_size_bytes - s->data_off) / BFS_GRANULE;
	b->nregions = up(s->data_granules, s->region_granules) / s->region_granules;
	b->h_region = rx_height(up(max_granules, s->region_granules) / s->region_granules);
	b->h_stamp = rx_height(up(s->inodes, BFS_STAMPS) / BFS_STAMPS);
}

int bfs_attach(struct bfs_mem *m, const struct bfs_opts *o, struct bfs **out)
{
	struct bfs_super sb;
	int rc = bfs_read_super(m, m->size, &sb);
	if (rc) return rc;
	struct bfs *b = m->ops->alloc(m, sizeof *b);
	if (!b) return -ENOMEM;
	b->m = m, b->sb = sb, b->o = *o;
	if (!b->o.suspect_ns) b->o.suspect_ns = 1000000000ull;
	if (!b->o.high_permille) b->o.high_permille = 970;
	if (!b->o.low_permille) b->o.low_permille = 950;
	if (!b->o.reap_after_s) b->o.reap_after_s = 2;
	sp_heights(b);
	pthread_mutex_init(&b->wlock, NULL);
	pthread_mutex_init(&b->ilock, NULL);
	pthread_mutex_init(&b->slock, NULL);
	pthread_mutex_init(&b->rv.mx, NULL);
	b->verified = xalloc(b, sb.data_granules / 8 + 1);
	b->vtag = xalloc(b, (size_t)sb.inodes * sizeof *b->vtag);
	b->ctag = xalloc(b, (size_t)sb.inodes * sizeof *b->ctag);
	if (sb.incompat & BFS_INCOMPAT_DIRECTORY) b->o.slot = 0; /* one host: this machine, by whatever name */
	if (!b->verified || !b->vtag || !b->ctag || (rc = bk_attach(b)) || (rc = pg_attach(b)) || (rc = al_attach(b)) || (rc = ev_attach(b)) || (rc = in_attach(b)))
		return give_up(b, false, rc ? rc : -ENOMEM);
	bool joined = false, crashed = false;
	if (!o->readonly) {
		if (b->o.slot >= (int)sb.nhosts) rc = bfs_fail(b, -EINVAL, "host slot %d: the pool has %u", b->o.slot, sb.nhosts);
		else if ((rc = b->o.slot >= 0 ? b->o.slot : take_slot(b)) >= 0) {
			struct bfs_line was;
			b->slot = (u32)rc;
			if ((rc = ls_attach(b))) return give_up(b, false, rc); /* nothing is stored before */
			int ok = ld_line(b, b->slot, BFS_L_IDENT, &was);
			crashed = ok < 0 || (ok > 0 && was.w[4] == BFS_MNT_LIVE);
			b->incarnation = m->ops->rand64(m) | 1;
			put_ident(b, BFS_MNT_LIVE);
			ls_publish(b);
			rc = 0, joined = true;
		}
	}
	if (!rc) rc = ld_attach(b);
	/* What a crash left in the own slot is done before anything new: later its rows and records
	 * could not be told from those of this process.  It takes the lead. */
	if (!rc && !o->readonly && !atomic_load(&b->leader) && (rc = sl_pending(b)) > 0)
		for (int i = 0; i < 8 && (rc = bfs_claim(b)) == -EBUSY; i++) m->ops->pause(m, b->o.suspect_ns / 4 + m->ops->rand64(m) % b->o.suspect_ns);
	if (!rc && atomic_load(&b->leader)) rc = sl_recover(b);
	if (!rc && atomic_load(&b->leader)) rc = rv_open(b);
	if (!rc && b->back && crashed && atomic_load(&b->leader) && (rc = bk_sweep(b)) > 0) rc = 0;
	if (!rc && !o->readonly) rc = bfs_apply_scan(b);
	if (rc) return give_up(b, joined, rc); /* without a slot of its own it writes nothing */
	*out = b;
	return 0;
}

int bfs_detach(struct bfs *b, bool clean)
{
	struct txn *t;
	int rc = 0;
	bfs_batch_abort(b); /* one that this thread has left open holds what the steps below take */
	if (clean && !b->o.readonly) {
		if (atomic_load(&b->leader)) {
			sl_recover(b); /* what is still open is closed by the caller or is dropped like after a crash */
			ev_drain(b);
			bfs_apply_scan(b);
			bfs_reclaim(b);
			do {
				if (!(rc = op_begin(b, &t))) rc = op_end(b, t, ev_store(t));
			} while (!rc && ev_unstored(b));
			if (rc == -EAGAIN || rc == -EBUSY) rc = 0; /* somebody else leads: he keeps the recency */
		}
	}
	/* with a process that still reads as this host it stays registered, and its pins and held lines count */
	if (clean && !b->o.readonly && !ls_live(b)) put_ident(b, BFS_MNT_CLEAN);
	release(b, clean);
	return rc;
}

/* ---- figures ----------------------------------------------------------------------------------- */
int bfs_statfs(struct bfs *b, struct bfs_stat *s)
{
	struct rd r;
	memset(s, 0, sizeof *s);
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_root *t = r.v.root;
	s->data_granules = b->sb.data_granules;
	s->used_granules = t->granules_used, s->quarantined_granules = t->granules_quar, s->bad_granules = t->granules_bad;
	s->largest_free_granules = al_largest(&r.v);
	s->block_granules = t->blocks_granules;
	s->inodes = b->sb.inodes - 1, s->inodes_used = t->slots_used;
	s->meta_pages = b->sb.meta_pages - 1, s->meta_pages_used = t->pages_used, s->meta_pages_waiting = t->pages_log;
	s->nblocks = t->nblocks, s->nordinary = t->nordinary, s->nunsealed = t->nunsealed, s->norphans = t->norphans;
	s->evicted_blocks = t->evicted_blocks, s->evicted_granules = t->evicted_granules;
	s->seals = t->seals, s->creates = t->creates, s->unlinks = t->unlinks;
	s->term = r.s.term, s->txn = r.s.txn;
	s->leader_slot = r.s.term % b->sb.nhosts;
	rd_end(&r);
	if (b->back) {
		u64 total, empty;
		if ((rc = bk_space(b, &total, &empty))) return rc;
		s->data_granules = total, s->used_granules = total - empty, s->largest_free_granules = empty;
		s->backing_lost = b->back->lost, s->backing_swept = b->back->swept;
		s->promises = b->back->room.granted, s->promises_refused = b->back->room.refused;
	}
	s->slot = b->slot;
	s->is_leader = atomic_load(&b->leader);
	s->seal_deferred = b->seal_deferred, s->corrupt = b->corrupt, s->hits = b->hits, s->misses = b->misses, s->reaped_dirs = b->reaped;
	s->txns = b->txns, s->pages_written = b->pages_written, s->touches_lost = b->touches_lost;
	s->bytes_written_meta = s->pages_written * BFS_PAGE;
	memcpy(s->uuid, b->sb.uuid, 16);
	memcpy(s->label, b->sb.label, 64);
	lk(b, &b->ilock);
	for (u32 i = 0; i < b->ihash_size; i++)
		for (struct bfs_inode *in = b->ihash[i]; in; in = in->next) s->open_files += in->opens, s->open_for_write += in->writers;
	unlk(b, &b->ilock);
	return 0;
}
