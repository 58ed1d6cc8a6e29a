/* Repair: what follows from the objects, names and extents that stay.  Records of listings,
 * links, owners and files being written; space; counters of the root; the list of free slots. */
#include <stdlib.h>
#include <sys/stat.h>
#include "repair.h"

static void want(struct rp *r, struct bfs_key k, u64 x, u64 y)
{
	if (ROOM(r->k, r->want)) r->want.v[r->want.n++] = (struct bfs_rec){k, x, y};
}

static int by_key(const void *p, const void *q) { return key_cmp(&((const struct bfs_rec *)p)->k, &((const struct bfs_rec *)q)->k); }

static int by_run(const void *p, const void *q)
{
	const struct run *a = p, *b = q;
	return a->addr != b->addr ? (a->addr < b->addr ? -1 : 1) : 0;
}

static void run(struct rp *r, u64 addr, u64 len, u8 kind)
{
	if (ROOM(r->k, r->run)) r->run.v[r->run.n++] = (struct run){addr, 0, (u32)len, kind, 0, 0};
}

/* first piece that ends behind addr */
static size_t piece_at(struct rp *r, u64 addr)
{
	size_t lo = 0, hi = r->piece.n;
	while (lo < hi) {
		size_t m = (lo + hi) / 2;
		if (r->piece.v[m].addr + r->piece.v[m].len <= addr) lo = m + 1;
		else hi = m;
	}
	return lo;
}

/* ---- space --------------------------------------------------------------------------------- */
/* Bad granules stay bad, and say whose they are. */
static void bad(struct rp *r)
{
	u64 end = 0;
	for (size_t i = rp_find(r, KEY(BFS_T(BFS_T_BAD, 0), 0, 0)); i < r->rec.n && r->rec.v[i].k.a == BFS_T(BFS_T_BAD, 0); i++) {
		const struct bfs_rec *e = &r->rec.v[i];
		if (e->k.c || e->x >> 32 || !fk_extent_ok(r->k, e->k.b, e->x) || e->k.b < end) continue;
		for (u64 at = e->k.b, stop = at + e->x; at < stop;) {
			size_t p = piece_at(r, at);
			const struct piece *x = p < r->piece.n ? &r->piece.v[p] : NULL;
			bool in = x && x->addr <= at;
			u64 to = in ? x->addr + x->len : x && x->addr < stop ? x->addr : stop;
			if (to > stop) to = stop;
			want(r, KEY(BFS_T(BFS_T_BAD, 0), at, 0), to - at, in ? ob_ino(&r->s[x->slot].o) : 0);
			run(r, at, to - at, BFS_T_BAD);
			r->root.granules_bad += to - at;
			at = to;
		}
		end = e->k.b + e->x;
	}
}

/* [addr, end) is mapped, all of it by this object, and none of it is bad */
static bool covered(struct rp *r, u64 addr, u64 end, u64 ino, bool ov, size_t nbad)
{
	for (size_t i = 0; i < nbad; i++)
		if (r->run.v[i].addr < end && r->run.v[i].addr + r->run.v[i].len > addr) return false;
	for (size_t p = piece_at(r, addr); addr < end; p++) {
		const struct piece *x = p < r->piece.n ? &r->piece.v[p] : NULL;
		if (!x || x->addr > addr || x->ov != ov || ob_ino(&r->s[x->slot].o) != ino) return false;
		addr = x->addr + x->len;
	}
	return true;
}

static void own(struct rp *r, u64 addr, u64 len, u64 x, u64 ino)
{
	want(r, KEY(BFS_T(BFS_T_OWN, 0), addr, 0), x, ino);
	run(r, addr, len, BFS_T_OWN);
	r->root.granules_used += len;
}

/* Records that fit stay as they are, so that their pages can; the rest is made from the mapping. */
static void owners(struct rp *r)
{
	size_t nbad = r->run.n, first = r->run.n;
	u64 end = 0;
	for (size_t i = rp_find(r, KEY(BFS_T(BFS_T_OWN, 0), 0, 0)); i < r->rec.n && r->rec.v[i].k.a == BFS_T(BFS_T_OWN, 0); i++) {
		const struct bfs_rec *e = &r->rec.v[i];
		u64 len = (u32)e->x, st = e->x >> 40 & 0xff;
		if (e->k.c || e->x >> 48 || st > BFS_OWN_GRANT || (e->x >> 32 & 0xff) >= r->k->sb.nhosts || e->k.b < end || !fk_extent_ok(r->k, e->k.b, len)) continue;
		if (!rp_ino(r, e->y) || !covered(r, e->k.b, e->k.b + len, e->y, st == BFS_OWN_GRANT, nbad)) continue;
		own(r, e->k.b, len, e->x, e->y);
		end = e->k.b + len;
	}
	size_t at = first, last = r->run.n, b = 0;
	for (size_t i = 0; i < r->piece.n; i++) {
		const struct piece *p = &r->piece.v[i];
		const struct bfs_obj *o = &r->s[p->slot].o;
		for (u64 cur = p->addr, stop = p->addr + p->len; cur < stop;) {
			u64 to = stop;
			while (at < last && r->run.v[at].addr + r->run.v[at].len <= cur) at++;
			while (b < nbad && r->run.v[b].addr + r->run.v[b].len <= cur) b++;
			const struct run *x = at < last ? &r->run.v[at] : NULL, *y = b < nbad ? &r->run.v[b] : NULL;
			if (x && x->addr <= cur) to = x->addr + x->len;
			else if (y && y->addr <= cur) to = y->addr + y->len;
			else {
				if (x && x->addr < to) to = x->addr;
				if (y && y->addr < to) to = y->addr;
				own(r, cur, to - cur, (to - cur) | (u64)(p->ov ? o->owner - 1u : 0u) << 32 | (u64)(p->ov ? BFS_OWN_GRANT : BFS_OWN_OBJ) << 40, ob_ino(o));
			}
			cur = to;
		}
	}
}

/* What waits goes on waiting, unless somebody has it. */
static void quarantine(struct rp *r)
{
	size_t n = r->run.n;
	fk_sort(r->run.v, n, sizeof *r->run.v, by_run);
	for (size_t i = rp_find(r, KEY(BFS_T(BFS_T_QUAR, 0), 0, 0)); i < r->rec.n && r->rec.v[i].k.a == BFS_T(BFS_T_QUAR, 0); i++) {
		const struct bfs_rec *e = &r->rec.v[i];
		if (e->x >> 32 || e->y >> 32 || rp_after(r, (u32)e->y, e->k.b) || !fk_extent_ok(r->k, e->k.c, e->x)) continue;
		want(r, e->k, e->x, e->y);
		run(r, e->k.c, e->x, BFS_T_QUAR);
	}
	fk_sort(r->run.v, r->run.n, sizeof *r->run.v, by_run);
	/* of two that overlap a record of the quarantine goes: only such records can */
	size_t m = 0;
	for (size_t i = 0; i < r->run.n; i++) {
		struct run *x = &r->run.v[i], *before = m ? &r->run.v[m - 1] : NULL;
		if (before && before->addr + before->len > x->addr) {
			if (x->kind == BFS_T_QUAR) continue;
			while (m && r->run.v[m - 1].addr + r->run.v[m - 1].len > x->addr && r->run.v[m - 1].kind == BFS_T_QUAR) m--;
		}
		r->run.v[m++] = *x;
	}
	r->run.n = m;
	size_t w = 0;
	for (size_t i = 0; i < r->want.n; i++) {
		const struct bfs_rec *e = &r->want.v[i];
		if (e->k.a == BFS_T(BFS_T_QUAR, 0)) {
			size_t lo = 0, hi = r->run.n;
			while (lo < hi) {
				size_t mid = (lo + hi) / 2;
				if (r->run.v[mid].addr < e->k.c) lo = mid + 1;
				else hi = mid;
			}
			if (lo == r->run.n || r->run.v[lo].addr != e->k.c || r->run.v[lo].kind != BFS_T_QUAR || r->run.v[lo].len != e->x || r->run.v[lo].host) continue;
			r->run.v[lo].host = 1; /* one record for it */
			r->root.granules_quar += e->x;
		}
		r->want.v[w++] = *e;
	}
	r->want.n = w;
}

/* ---- free slots ------------------------------------------------------------------------------ */
static void free_slots(struct rp *r)
{
	u32 virgin = 2, was = r->old.slot_virgin, tail = 0;
	for (u32 i = 2; i < r->nslots; i++)
		if (r->s[i].used || (r->s[i].read && (r->s[i].o.gen || r->s[i].free_next))) virgin = i + 1;
	/* slots of a lost page are free ones; a number that can't be right isn't believed */
	if (was > virgin && was <= r->k->sb.inodes && was - virgin <= 4 * BFS_OBJS) virgin = was;
	if (virgin > r->nslots) virgin = r->nslots;
	r->root.slot_virgin = virgin;
	if (r->s[0].o.mode) memset(&r->s[0].o, 0, sizeof r->s[0].o), r->mended++; /* slot 0 is never used */
	for (u32 i = 1; i < r->nslots; i++) {
		struct rslot *s = &r->s[i];
		if (s->used && !s->drop) continue;
		u32 gen = s->used ? (s->o.gen + 1) & 0x7fffffff : s->read ? s->o.gen & 0x7fffffff : (r->max_gen + 1) & 0x7fffffff;
		if (i >= virgin && s->read && !s->used) continue; /* never used: as it is */
		memset(&s->o, 0, sizeof s->o);
		if (i >= virgin) continue;
		s->o.slot = i, s->o.gen = gen;
	}
	r->root.free_head = r->root.free_tail = 0;
	u32 rest = r->old.free_head, next = 2;
	for (;;) {
		u32 i = 0;
		if (rest) { /* in the order that they had */
			i = rest, rest = 0;
			struct rslot *s = i < virgin ? &r->s[i] : NULL;
			if (!s || !s->read || s->free_seen) continue;
			if (s->used && i != r->lost_found) continue; /* dropped: its turn comes below */
			s->free_seen = 1;
			rest = s->free_next;
			if (s->used) continue;
		} else {
			while (next < virgin && ((r->s[next].used && !r->s[next].drop) || r->s[next].free_seen)) next++;
			if (next >= virgin) break;
			i = next++;
			r->s[i].free_seen = 1;
		}
		if (tail) r->s[tail].o.next_free = i;
		else r->root.free_head = i;
		tail = i;
	}
	r->root.free_tail = tail;
}

/* ---- all --------------------------------------------------------------------------------------- */
void rp_records(struct rp *r)
{
	struct bfs_root *n = &r->root;
	struct txn count = {.root = n}; /* the rule of what counts as what is object.c's */
	u64 cookie = n->next_cookie;
	*n = r->old;
	n->next_cookie = cookie;
	n->map = n->log = n->obj = n->hash = n->bt = n->region = n->stamp = (struct bfs_ptr){0};
	n->bt_height = n->log_head = n->slots_used = n->pages_used = n->pages_log = 0;
	n->granules_used = n->granules_quar = n->granules_bad = 0;
	n->nblocks = n->nordinary = n->nunsealed = n->norphans = n->blocks_granules = 0;
	for (u32 i = 0; i < BFS_HOSTS_MAX; i++)
		if (n->host[i].state > BFS_HOST_FENCED) n->host[i].state = n->host[i].incarnation ? BFS_HOST_ALIVE : BFS_HOST_NONE, r->mended++;
	rp_sift(r);
	for (size_t i = 0; i < r->ent.n; i++) {
		const struct rent *e = &r->ent.v[i];
		const struct rslot *s = e->keep ? rp_ino(r, e->ino) : NULL;
		if (!s) continue;
		if (e->kind == BFS_EK_KEY) want(r, KEY(BFS_T(BFS_T_KEYS, INO_SLOT(e->dir)), e->prefix, e->cookie), e->hash, e->ino);
		else want(r, KEY(BFS_T(BFS_T_LIST, INO_SLOT(e->dir)), e->cookie, 0), e->hash, e->ino);
		if (s->first != i + 1) want(r, KEY(BFS_T(BFS_T_LINK, INO_SLOT(e->ino)), e->dir, e->cookie), e->hash, 0);
	}
	for (u32 i = 1; i < r->nslots; i++) {
		struct rslot *s = &r->s[i];
		const struct bfs_obj *o = &s->o;
		if (!s->used || s->drop) continue;
		ob_count(&count, o, 1);
		if (!S_ISREG(o->mode)) continue;
		size_t at = rp_find(r, KEY(BFS_T(BFS_T_OPEN, 0), i, 0)); /* directory pools: not settled yet */
		bool waits = fk_directory(r->k) && o->state == BFS_ST_SEALED && o->flags & BFS_OF_UNVERIFIED && at < r->rec.n && r->rec.v[at].k.a == BFS_T(BFS_T_OPEN, 0) && r->rec.v[at].k.b == i;
		if (waits) want(r, KEY(BFS_T(BFS_T_OPEN, 0), i, 0), ob_ino(o), o->version);
		if (o->state == BFS_ST_NEW || o->state == BFS_ST_DIRTY) want(r, KEY(BFS_T(BFS_T_OPEN, o->owner - 1u), i, 0), ob_ino(o), o->version);
		u64 kind = BFS_T(BFS_T_EXT, i);
		for (size_t j = rp_find(r, KEY(kind, 0, 0)); j < r->rec.n && r->rec.v[j].k.a == kind; j++)
			if (o->state != BFS_ST_SEALED || !r->rec.v[j].k.c) want(r, r->rec.v[j].k, r->rec.v[j].x, r->rec.v[j].y);
	}
	bad(r);
	owners(r);
	quarantine(r);
	fk_sort(r->want.v, r->want.n, sizeof *r->want.v, by_key);
	free_slots(r);
}
