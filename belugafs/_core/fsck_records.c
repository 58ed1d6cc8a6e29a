/* fsck: the ordered records.  Their tree, and of each record its fields and whether what it
 * speaks of is there; extents and owners are kept for fsck_space.c. */
#include <sys/stat.h>
#include "fsck.h"

/* ---- ordered records ------------------------------------------------------------------------------- */
const char *fk_rec_name(u32 kind)
{
	static const char *const n[] = {"?", "LIST", "KEYS", "EXT", "OWN", "QUAR", "OPEN", "ORPHAN", "LINK", "BAD"};
	return kind < sizeof n / sizeof *n ? n[kind] : "?";
}

static void run_add(struct ck *k, struct run x)
{
	if (!fk_extent_ok(k, x.addr, x.len)) {
		fk_bad(k, "extent-range", "%s record: granule address %llx length %u, the pool has %llu granules", fk_rec_name(x.kind), (ull)x.addr, x.len, (ull)k->sb.data_granules);
		return;
	}
	if (ROOM(k, k->run)) k->run.v[k->run.n++] = x;
}

static void one_rec(struct ck *k, const struct bfs_rec *r)
{
	u32 kind = (u32)(r->k.a >> 56);
	u64 low = r->k.a & ~(0xffull << 56);
	struct oi *o;
	struct ent *e;
	bool slot_rec = kind == BFS_T_LIST || kind == BFS_T_KEYS || kind == BFS_T_EXT || kind == BFS_T_LINK;
	bool host_rec = kind == BFS_T_OPEN || kind == BFS_T_ORPHAN;
	if (slot_rec ? low >= k->sb.inodes : host_rec ? low >= k->sb.nhosts : low != 0) {
		fk_bad(k, kind >= BFS_T_LIST && kind <= BFS_T_BAD ? "rec-fields" : "rec-kind", "record of kind %u with low part %llu", kind, (ull)low);
		return;
	}
	u32 slot = (u32)low;
	switch (kind) {
	case BFS_T_LIST:
	case BFS_T_KEYS: {
		u64 cookie = kind == BFS_T_LIST ? r->k.b : r->k.c;
		e = fk_entry(k, slot, cookie);
		if (kind == BFS_T_LIST && r->k.c) fk_bad(k, "rec-fields", "LIST record of %s, cookie %llu: third key word %llu", PATH(k, fk_ino_of(k, slot)), (ull)cookie, (ull)r->k.c);
		if (!e) fk_bad(k, "list-entry", "%s: listed entry with cookie %llu (inode %llu) isn't in the hash table", PATH(k, fk_ino_of(k, slot)), (ull)cookie, (ull)r->y);
		else if (e->hash != r->x || e->ino != r->y || e->kind != (kind == BFS_T_KEYS ? BFS_EK_KEY : BFS_EK_NAME) || (kind == BFS_T_KEYS && e->prefix != r->k.b))
			fk_bad(k, "list-differs", "%s: listing of cookie %llu says inode %llu hash %llx, its entry says inode %llu hash %llx kind %u", PATH(k, fk_ino_of(k, slot)), (ull)cookie, (ull)r->y, (ull)r->x, (ull)e->ino, (ull)e->hash, e->kind);
		else if (e->listed++) e->listed = 2, fk_bad(k, "list-twice", "%s: entry with cookie %llu is listed twice", PATH(k, fk_ino_of(k, slot)), (ull)cookie);
		break;
	}
	case BFS_T_EXT: {
		u32 len = (u32)r->y, ov = r->k.c == 1, hole = r->y >> 32 & 1;
		if (r->k.c > 1 || r->y >> 33 || !len || (hole ? !ov || r->x : !r->x) || r->k.b > (1ull << 51) || r->k.b + len > (1ull << 51)) {
			fk_bad(k, "rec-fields", "EXT record of slot %u at file granule %llu: overlay %llu, address %llx, length word %llx", slot, (ull)r->k.b, (ull)r->k.c, (ull)r->x, (ull)r->y);
			break;
		}
		k->r->extents++;
		if (!(o = fk_oi_at(k, slot)) || !o->used || o->fmt != S_IFREG >> 12) {
			fk_bad(k, "ext-owner", "EXT record at file granule %llu belongs to slot %u, which is no file", (ull)r->k.b, slot);
			break;
		}
		o->next_ext[ov]++;
		if (r->k.b < o->end[ov]) fk_bad(k, "ext-overlap", "%s: %s extents overlap at file granule %llu", PATH(k, fk_ino_of(k, slot)), ov ? "overlay" : "base", (ull)r->k.b);
		if (r->k.b + len > o->end[ov]) o->end[ov] = r->k.b + len;
		if (hole) break;
		if (len > k->sb.region_granules) fk_bad(k, "extent-long", "%s: extent of %u granules at file granule %llu, at most %u", PATH(k, fk_ino_of(k, slot)), len, (ull)r->k.b, k->sb.region_granules);
		o->mapped += len;
		if (ROOM(k, k->map)) k->map.v[k->map.n++] = (struct map){r->x, r->k.b, len, slot, (u8)ov};
		break;
	}
	case BFS_T_OWN: {
		u32 host = r->x >> 32 & 0xff, st = r->x >> 40 & 0xff;
		if (r->k.c || r->x >> 48 || st > BFS_OWN_GRANT || host >= k->sb.nhosts) fk_bad(k, "rec-fields", "OWN record of address %llx: %llx", (ull)r->k.b, (ull)r->x);
		run_add(k, (struct run){r->k.b, r->y, (u32)r->x, BFS_T_OWN, (u8)host, (u8)st});
		break;
	}
	case BFS_T_QUAR:
		if (r->x >> 32 || tag_cmp((u32)r->y, r->k.b, k->top.root.term, k->top.root.txn) > 0 || r->y >> 32)
			fk_bad(k, "rec-fields", "QUAR record of address %llx: length %llu, freed at (%llu, %llu), root is (%u, %llu)", (ull)r->k.c, (ull)r->x, (ull)r->y, (ull)r->k.b, k->top.root.term, (ull)k->top.root.txn);
		run_add(k, (struct run){r->k.c, 0, (u32)r->x, BFS_T_QUAR, 0, 0});
		break;
	case BFS_T_BAD:
		if (r->k.c || r->x >> 32) fk_bad(k, "rec-fields", "BAD record of address %llx: length %llu", (ull)r->k.b, (ull)r->x);
		run_add(k, (struct run){r->k.b, r->y, (u32)r->x, BFS_T_BAD, 0, 0});
		break;
	case BFS_T_OPEN:
	case BFS_T_ORPHAN: {
		struct bfs_obj ob;
		o = fk_oi_ino(k, r->x);
		if (r->k.c || INO_SLOT(r->x) != r->k.b) fk_bad(k, "rec-fields", "%s record of host %u, slot %llu: inode %llu", fk_rec_name(kind), slot, (ull)r->k.b, (ull)r->x);
		if (!o || !fk_obj_again(k, INO_SLOT(r->x), &ob)) {
			fk_bad(k, "rec-object", "%s record of host %u: object %llu doesn't exist", fk_rec_name(kind), slot, (ull)r->x);
			break;
		}
		if (kind == BFS_T_ORPHAN) {
			o->orphan = 1;
			if (ob.nlink) fk_bad(k, "orphan-linked", "%s: listed as orphan of host %u, and has %u links", PATH(k, r->x), slot, ob.nlink);
			else fk_note(k, "orphan", "inode %llu: deleted while open on host %u; goes at the next attach of that host", (ull)r->x, slot);
			break;
		}
		o->open = 1;
		if (fk_directory(k) && o->state == BFS_ST_SEALED && o->flags & BFS_OF_UNVERIFIED && ob.version == (u32)r->y) {
			fk_note(k, "unsettled", "%s: was open for writing, or mapped so, past its close; verified once nobody has it any more", PATH(k, r->x));
			break;
		}
		if ((o->state != BFS_ST_NEW && o->state != BFS_ST_DIRTY) || o->owner != slot + 1 || ob.version != (u32)r->y)
			fk_bad(k, "open-differs", "%s: listed as being written by host %u, version %llu; the object says state %u, owner %d, version %u", PATH(k, r->x), slot, (ull)r->y, o->state, o->owner - 1, ob.version);
		break;
	}
	case BFS_T_LINK:
		e = fk_entry(k, INO_SLOT(r->k.b), r->k.c);
		o = fk_oi_at(k, slot);
		if (!o || !o->used) {
			fk_bad(k, "link-object", "LINK record of slot %u, which is free", slot);
			break;
		}
		o->links++;
		if (!e || e->dir != r->k.b) fk_bad(k, "link-entry", "inode %llu: its link in directory %llu, cookie %llu, isn't in the hash table", (ull)fk_ino_of(k, slot), (ull)r->k.b, (ull)r->k.c);
		else if (e->hash != r->x || e->ino != fk_ino_of(k, slot)) fk_bad(k, "link-differs", "inode %llu: its link in directory %llu, cookie %llu, is the entry of inode %llu", (ull)fk_ino_of(k, slot), (ull)r->k.b, (ull)r->k.c, (ull)e->ino);
		else if (e->linked++) e->linked = 2, fk_bad(k, "link-twice", "%s: entry with cookie %llu is linked twice", PATH(k, e->ino), (ull)e->cookie);
		break;
	default:
		fk_bad(k, "rec-kind", "record of unknown kind %u", kind);
	}
}

/* hi: first key that is not below this subtree, NULL = none */
void fk_tree(struct ck *k, struct bfs_ptr p, u32 level, const struct bfs_key *lo, const struct bfs_key *hi)
{
	u64 buf[BFS_PAGE / 8];
	if (!fk_page(k, p, level ? BFS_PK_BNODE : BFS_PK_BLEAF, level ? "records, level" : "records, leaf of level", level, buf)) return;
	const struct bfs_bleaf *l = (const void *)buf;
	const struct bfs_bnode *n = (const void *)buf;
	if (l->h.count > BFS_BT_MAX || (level && (!l->h.count || l->h.aux != level))) {
		fk_bad(k, level && l->h.count <= BFS_BT_MAX && l->h.count ? "table-level" : "page-count", "records: page %u of level %u: %u of them, level %u", p.page, level, l->h.count, l->h.aux);
		return;
	}
	for (u32 i = 0; i < l->h.count; i++) {
		const struct bfs_key *x = level ? &n->e[i].k : &l->r[i].k;
		if ((lo && key_cmp(x, lo) < 0) || (hi && key_cmp(x, hi) >= 0)) fk_bad(k, "rec-bounds", "records: page %u: key %u (%llx, %llx, %llx) is outside of its node's bounds", p.page, i, (ull)x->a, (ull)x->b, (ull)x->c);
		if (level) {
			const struct bfs_key *next = i + 1 < l->h.count ? &n->e[i + 1].k : hi;
			if (i + 1 < l->h.count && key_cmp(x, next) >= 0) fk_bad(k, "rec-order", "records: page %u: key %u isn't below the next one", p.page, i);
			fk_tree(k, n->e[i].p, level - 1, x, next);
		} else {
			if (k->any && key_cmp(x, &k->last) <= 0) fk_bad(k, "rec-order", "records: page %u: key %u (%llx, %llx, %llx) isn't above the one before it", p.page, i, (ull)x->a, (ull)x->b, (ull)x->c);
			k->last = *x, k->any = true;
			one_rec(k, &l->r[i]);
		}
	}
}
