/* fsck: objects and the names that lead to them: slots, entries, listings, links, blobs of
 * extended attributes, and the paths that messages show. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "fsck.h"

#define DEPTH 64 /* of a path that is shown */

/* ---- objects ---------------------------------------------------------------------------------- */
struct oi *fk_oi_at(struct ck *k, u32 slot)
{
	u32 want = slot / BFS_OBJS;
	size_t lo = 0, hi = k->leaf.n;
	if (want < hi && k->leaf.v[want].index == want) return &k->oi.v[(size_t)want * BFS_OBJS + slot % BFS_OBJS];
	while (lo < hi) {
		size_t m = (lo + hi) / 2;
		if (k->leaf.v[m].index == want) return &k->oi.v[m * BFS_OBJS + slot % BFS_OBJS];
		if (k->leaf.v[m].index < want) lo = m + 1;
		else hi = m;
	}
	return NULL;
}

struct oi *fk_oi_ino(struct ck *k, u64 ino)
{
	struct oi *o = fk_oi_at(k, INO_SLOT(ino));
	return o && o->used && o->gen == INO_GEN(ino) ? o : NULL;
}

/* the object again, from its page; false when it can't be read any more */
bool fk_obj_again(struct ck *k, u32 slot, struct bfs_obj *o)
{
	u32 want = slot / BFS_OBJS;
	size_t lo = 0, hi = k->leaf.n;
	while (lo < hi) {
		size_t m = (lo + hi) / 2;
		if (k->leaf.v[m].index == want) return fk_rd(k, fk_page_off(k, k->leaf.v[m].page) + offsetof(struct bfs_objs, o) + sizeof *o * (slot % BFS_OBJS), o, sizeof *o);
		if (k->leaf.v[m].index < want) lo = m + 1;
		else hi = m;
	}
	return false;
}

static bool fmt_known(u32 mode)
{
	return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) || S_ISCHR(mode) || S_ISBLK(mode) || S_ISFIFO(mode) || S_ISSOCK(mode);
}

/* A list of extended attributes, as docs/format.md has it: in order of name, without gaps. */
bool fk_xattrs_ok(const u8 *list, u32 len)
{
	const u8 *last = NULL;
	u32 nlast = 0;
	for (u32 at = 0; at < len;) {
		if (len - at < 4) return false;
		u32 n = list[at], m = (u32)list[at + 2] | (u32)list[at + 3] << 8;
		const u8 *name = list + at + 4;
		if (!n || list[at + 1] || 4 + n + m > len - at || memchr(name, 0, n)) return false;
		int c = last ? memcmp(last, name, nlast < n ? nlast : n) : -1;
		if (c > 0 || (!c && nlast >= n)) return false;
		last = name, nlast = n;
		at += 4 + n + m;
	}
	return true;
}

static void one_obj(struct ck *k, u32 slot, const struct bfs_obj *o, struct oi *i)
{
	const struct bfs_root *r = &k->root;
	bool reg = S_ISREG(o->mode);
	if (slot == 0 || slot >= r->slot_virgin) {
		if (o->mode) fk_bad(k, "obj-virgin", "object slot %u is in use, expected none from %u on", slot, r->slot_virgin);
		return;
	}
	if (o->slot != slot) {
		fk_bad(k, "obj-slot", "object slot %u says that it is slot %u", slot, o->slot);
		return;
	}
	i->gen = o->gen, i->next_free = o->next_free;
	if (!o->mode) {
		k->nfreeslots++;
		if (o->state || o->nlink || o->cookie || o->blob.page || o->granules) fk_bad(k, "obj-free", "object slot %u is free and not empty (state %u, %u links)", slot, o->state, o->nlink);
		return;
	}
	i->used = 1, i->fmt = (u16)(o->mode >> 12), i->cls = o->cls, i->state = o->state, i->owner = o->owner, i->flags = o->flags;
	k->nused++;
	k->r->objects++;
	if (!fmt_known(o->mode) || o->mode >> 16) fk_bad(k, "obj-mode", "object slot %u: mode 0%o isn't one of a file", slot, o->mode);
	if (o->state < BFS_ST_SEALED || o->state > BFS_ST_ABANDONED || (!reg && o->state != BFS_ST_SEALED)) fk_bad(k, "obj-state", "object slot %u (mode 0%o): state %u", slot, o->mode, o->state);
	if (reg ? o->cls != BFS_CLS_BLOCK && o->cls != BFS_CLS_ORDINARY : o->cls != BFS_CLS_NONE) fk_bad(k, "obj-class", "object slot %u (mode 0%o): class %u", slot, o->mode, o->cls);
	if (o->owner > k->sb.nhosts || !o->owner != (o->state == BFS_ST_SEALED)) fk_bad(k, "obj-owner", "object slot %u: state %u with owner %u", slot, o->state, o->owner);
	if (o->flags & ~(BFS_OF_NSBLOCK | BFS_OF_NOSUM | BFS_OF_UNVERIFIED | BFS_OF_PINNED | BFS_OF_PINNED_SOFT | BFS_OF_EMPTIED | BFS_OF_FORMING | BFS_OF_PUBLISHED) || ((o->flags & (BFS_OF_NSBLOCK | BFS_OF_EMPTIED)) && !S_ISDIR(o->mode)) || ((o->flags & BFS_OF_FORMING) && !reg) ||
	    ((o->flags & BFS_OF_PINNED) && (o->flags & BFS_OF_PINNED_SOFT)) || ((o->flags & (BFS_OF_PINNED | BFS_OF_PINNED_SOFT)) && !reg && !S_ISDIR(o->mode)) || ((o->flags & BFS_OF_EMPTIED) && o->u.d.entries))
		fk_bad(k, "obj-flags", "object slot %u (mode 0%o): flags 0x%x", slot, o->mode, o->flags);
	if (o->next_free) fk_bad(k, "obj-free", "object slot %u is in use and links to free slot %u", slot, o->next_free);
	if (o->size >> 63) fk_bad(k, "obj-size", "object slot %u: size %llu", slot, (ull)o->size);
	if (o->cookie >= r->next_cookie) fk_bad(k, "cookie", "object slot %u: cookie %llu, expected below %llu", slot, (ull)o->cookie, (ull)r->next_cookie);
	if (S_ISLNK(o->mode) && (!o->size || o->size > BFS_SYMLINK_MAX || o->blob_len != o->size || !o->blob.page != (o->size <= BFS_INLINE_LINK)))
		fk_bad(k, "symlink", "object slot %u: symbolic link of %llu bytes, %u in the blob page %u", slot, (ull)o->size, o->blob_len, o->blob.page);
	if (reg) {
		k->nreg++;
		if (!o->nlink) k->norphans++;
		if (o->state != BFS_ST_SEALED) k->nunsealed++;
		else if (o->cls == BFS_CLS_BLOCK) k->nblocks++;
		else k->nordinary++;
		if (o->cls == BFS_CLS_BLOCK && (o->state == BFS_ST_SEALED || o->state == BFS_ST_ABANDONED) && o->nlink == 1) k->blocks_granules += o->granules;
	}
	/* blob: extended attributes or a long target */
	u64 got = 0, n = 0;
	for (struct bfs_ptr p = o->blob; p.page; n++) {
		u64 buf[BFS_PAGE / 8];
		const struct bfs_blob *b = (const void *)buf;
		if (!fk_page(k, p, BFS_PK_BLOB, "blob of object", slot, buf)) return;
		if (b->h.aux > BFS_BLOB_BYTES || (b->next.page && b->h.aux != BFS_BLOB_BYTES)) fk_bad(k, "blob", "blob of object %u, page %u: %u bytes", slot, p.page, b->h.aux);
		if (k->blob || (k->blob = malloc(BFS_XATTR_MAX)))
			if (b->h.aux <= BFS_BLOB_BYTES && got + b->h.aux <= BFS_XATTR_MAX) memcpy(k->blob + got, b->data, b->h.aux);
		got += b->h.aux;
		p = b->next;
	}
	if (got && !k->blob) k->err = -ENOMEM;
	if (o->blob.page ? got != o->blob_len || !got || got > BFS_XATTR_MAX : o->blob_len && !S_ISLNK(o->mode))
		fk_bad(k, "blob", "blob of object %u: expected %u bytes, found %llu", slot, o->blob_len, (ull)got);
	else if (o->blob.page && !S_ISLNK(o->mode) && k->blob && !fk_xattrs_ok(k->blob, (u32)got))
		fk_bad(k, "blob", "object slot %u: its list of extended attributes is damaged", slot);
	/* sums */
	if (!reg) return;
	u32 leaves = (u32)fk_up(o->nsums, BFS_SUMS);
	if (o->nsums > BFS_INLINE_SUMS) {
		if (o->sums_height != rx_height(leaves)) fk_bad(k, "sums", "object slot %u: %u sums, expected a table of height %u, found %u", slot, o->nsums, rx_height(leaves), o->sums_height);
		else fk_walk_table(k, o->v.sums, leaves, BFS_PK_SUMS, "sums of object", fk_leaf_none, NULL);
	} else if (o->sums_height) {
		fk_bad(k, "sums", "object slot %u: %u sums in the object and a table of height %u", slot, o->nsums, o->sums_height);
	}
	/* what is sealed is covered by sums whole, or said not to be */
	u64 want = fk_up(o->size, k->sb.chunk_bytes);
	if (o->nsums && o->nsums != want && !(o->flags & BFS_OF_UNVERIFIED)) fk_bad(k, "sums", "object slot %u: size %llu needs %llu sums, found %u", slot, (ull)o->size, (ull)want, o->nsums);
	if (!o->nsums && want && o->state == BFS_ST_SEALED && !(o->flags & (BFS_OF_UNVERIFIED | BFS_OF_NOSUM))) fk_bad(k, "sums", "object slot %u: sealed, size %llu, and without sums", slot, (ull)o->size);
	/* mapping */
	if (o->u.f.inl_addr || o->u.f.inl_len) {
		if (!ROOM(k, k->map)) return;
		k->map.v[k->map.n++] = (struct map){o->u.f.inl_addr, 0, o->u.f.inl_len, slot, 0};
		i->mapped += o->u.f.inl_len;
		i->end[0] = o->u.f.inl_len;
	}
}

void fk_leaf_obj(struct ck *k, u64 index, u32 pg, void *buf, void *arg)
{
	const struct bfs_objs *p = buf;
	(void)arg;
	if (!ROOM(k, k->leaf)) return;
	for (u32 i = 0; i < BFS_OBJS; i++) {
		if (!ROOM(k, k->oi)) return;
		memset(&k->oi.v[k->oi.n++], 0, sizeof *k->oi.v);
	}
	k->leaf.v[k->leaf.n++] = (struct leafref){(u32)index, pg};
	for (u32 i = 0; i < BFS_OBJS; i++) {
		u64 slot = index * BFS_OBJS + i;
		if (slot < k->sb.inodes) one_obj(k, (u32)slot, &p->o[i], &k->oi.v[k->oi.n - BFS_OBJS + i]);
		else if (p->o[i].mode) fk_bad(k, "obj-virgin", "object slot %llu is in use, the pool has %u", (ull)slot, k->sb.inodes);
	}
}

/* ---- entries ------------------------------------------------------------------------------------ */
static inline u64 e64(u32 lo, u32 hi) { return (u64)hi << 32 | lo; }

static u64 key_prefix(const u8 *key, u32 len) { return len < 2 ? 0 : (u64)key[0] << 56 | (u64)key[1] << 48; }

void fk_leaf_hash(struct ck *k, u64 index, u32 pg, void *buf, void *arg)
{
	struct bfs_bucket *b = buf;
	(void)arg;
	for (bool again = true; again;) {
		u64 tile[BFS_BUCKET_HEAP / 4 / 64 + 1] = {0};
		u32 sum = 0;
		if (b->h.count > BFS_BUCKET_MAX || b->h.aux > BFS_BUCKET_HEAP) {
			fk_bad(k, "page-count", "bucket %llu, page %u: %u entries in %u bytes", (ull)index, pg, b->h.count, b->h.aux);
			return;
		}
		for (u32 i = 0; i < b->h.count; i++) {
			u32 off = b->off[i];
			const struct bfs_ent *e = (const void *)(b->heap + off);
			if (off % 4 || off + sizeof *e > b->h.aux || off + sizeof *e + e->len > b->h.aux) {
				fk_bad(k, "entry-place", "bucket %llu, page %u: entry %u lies at %u of %u bytes", (ull)index, pg, i, off, b->h.aux);
				continue;
			}
			u32 size = (u32)(sizeof *e + e->len + 3) & ~3u;
			bool over = off + size > b->h.aux;
			for (u32 w = off / 4; w < (off + size) / 4 && !over; w++) {
				over = fk_get(tile, w);
				fk_set(tile, w);
			}
			if (over) fk_bad(k, "entry-place", "bucket %llu, page %u: entry %u overlaps another", (ull)index, pg, i);
			sum += size;
			const u8 *name = (const u8 *)(e + 1);
			struct ent x = {
				.dir = e64(e->dir_lo, e->dir_hi), .ino = e64(e->ino_lo, e->ino_hi), .cookie = e64(e->cookie_lo, e->cookie_hi),
				.prefix = e->kind == BFS_EK_KEY ? key_prefix(name, e->len) : 0, .page = pg, .off = (u16)off, .kind = e->kind, .owner = e->owner, .type = e->type, .len = e->len,
			};
			u64 seed = k->sb.hash_seed ^ (x.dir * 0x9E3779B97F4A7C15ull) ^ (u64)x.kind << 62;
			x.hash = XXH3_64bits_withSeed(name, x.len, seed);
			u64 home = (u64)(((unsigned __int128)(x.hash << 16) * k->sb.hash_buckets) >> 64);
			if (home != index || b->fp[i] != (u16)(x.hash >> 48)) fk_bad(k, "entry-hash", "bucket %llu, page %u: entry %u (cookie %llu of directory %llu) belongs into bucket %llu", (ull)index, pg, i, (ull)x.cookie, (ull)x.dir, (ull)home);
			bool dots = x.len <= 2 && name[0] == '.' && (x.len == 1 || name[1] == '.');
			if (x.kind > BFS_EK_KEY || !x.len || (x.kind == BFS_EK_KEY && (x.len < 2 || x.len > BFS_KEY_MAX)) || (x.kind == BFS_EK_NAME && (dots || memchr(name, 0, x.len) || memchr(name, '/', x.len))))
				fk_bad(k, "entry-name", "bucket %llu, page %u: entry %u (cookie %llu of directory %llu): kind %u with a name of %u bytes that can't be one", (ull)index, pg, i, (ull)x.cookie, (ull)x.dir, x.kind, x.len);
			if (!x.cookie || x.cookie >= k->root.next_cookie) fk_bad(k, "cookie", "bucket %llu, page %u: entry %u has cookie %llu, expected 1 to %llu", (ull)index, pg, i, (ull)x.cookie, (ull)k->root.next_cookie - 1);
			if (x.owner > k->sb.nhosts) fk_bad(k, "entry-owner", "bucket %llu, page %u: entry %u is private to host %u of %u", (ull)index, pg, i, x.owner - 1, k->sb.nhosts);
			if (!ROOM(k, k->ent)) return;
			k->ent.v[k->ent.n++] = x;
			k->r->entries++;
		}
		if (sum != b->h.aux) fk_bad(k, "entry-place", "bucket %llu, page %u: entries take %u bytes, the page says %u", (ull)index, pg, sum, b->h.aux);
		struct bfs_ptr next = b->more;
		again = next.page && fk_page(k, next, BFS_PK_HASH, "overflow of bucket", index, buf);
		pg = next.page;
	}
}

int fk_by_cookie(const void *p, const void *q)
{
	const struct ent *a = p, *b = q;
	u32 s = INO_SLOT(a->dir), t = INO_SLOT(b->dir);
	if (s != t) return s < t ? -1 : 1;
	return a->cookie != b->cookie ? (a->cookie < b->cookie ? -1 : 1) : 0;
}
static int by_name_hash(const void *p, const void *q)
{
	const struct ent *a = *(struct ent *const *)p, *b = *(struct ent *const *)q;
	if (a->dir != b->dir) return a->dir < b->dir ? -1 : 1;
	if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
	if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
	return a->owner != b->owner ? (a->owner < b->owner ? -1 : 1) : 0;
}

struct ent *fk_entry(struct ck *k, u32 dir_slot, u64 cookie)
{
	struct ent x = {.dir = dir_slot, .cookie = cookie};
	return k->ent.n ? bsearch(&x, k->ent.v, k->ent.n, sizeof x, fk_by_cookie) : NULL;
}

static bool name_of(struct ck *k, const struct ent *e, u8 *name)
{
	return fk_rd(k, fk_page_off(k, e->page) + offsetof(struct bfs_bucket, heap) + e->off + sizeof(struct bfs_ent), name, e->len);
}

/* ---- paths for messages ------------------------------------------------------------------------- */
/* Written from the back; a name that can't be found is shown as its inode number. */
const char *fk_path_ino(struct ck *k, u64 ino, char *buf, size_t size)
{
	size_t at = size - 1;
	buf[at] = 0;
	for (int depth = 0; ino != BFS_ROOT_INO; depth++) {
		char part[4 * 256 + 16];
		size_t n = 0;
		struct bfs_obj o;
		struct oi *i = fk_oi_ino(k, ino);
		struct ent *e = NULL;
		u8 name[256];
		if (i && depth < DEPTH && fk_obj_again(k, INO_SLOT(ino), &o) && o.cookie) e = fk_entry(k, INO_SLOT(o.parent), o.cookie);
		if (!e || !name_of(k, e, name)) {
			n = (size_t)snprintf(part, sizeof part, "<inode %llu>", (ull)ino);
		} else {
			if (e->kind == BFS_EK_KEY && e->len >= 2) n = (size_t)snprintf(part, sizeof part, "%02x/%02x/", name[0], name[1]);
			for (u32 j = 0; j < e->len; j++)
				if (e->kind == BFS_EK_KEY) n += (size_t)snprintf(part + n, sizeof part - n, "%02x", name[j]);
				else if (name[j] < 0x20 || name[j] == '\\' || name[j] >= 0x7f) n += (size_t)snprintf(part + n, sizeof part - n, "\\x%02x", name[j]);
				else part[n++] = (char)name[j];
		}
		if (n + 5 > at) { /* too long: the end of the path is what tells most */
			if (at > 3) memcpy(buf + (at -= 3), "...", 3);
			return buf + at;
		}
		memcpy(buf + (at -= n), part, n);
		buf[--at] = '/';
		if (!e) return buf + at + 1;
		ino = o.parent;
	}
	if (!buf[at]) buf[--at] = '/';
	return buf + at;
}

u64 fk_ino_of(struct ck *k, u32 slot)
{
	struct oi *o = fk_oi_at(k, slot);
	return o ? INO(slot, o->gen) : slot;
}

/* ---- what is said twice must agree ------------------------------------------------------------------- */
void fk_check_objects(struct ck *k)
{
	for (size_t at = 0; at < k->oi.n; at++) {
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		struct oi *i = &k->oi.v[at];
		struct bfs_obj o;
		if (!i->used || !fk_obj_again(k, slot, &o)) continue;
		u64 ino = INO(slot, i->gen);
		if (o.cookie) {
			struct ent *e = fk_entry(k, INO_SLOT(o.parent), o.cookie);
			i->links++;
			if (!e || e->dir != o.parent) fk_bad(k, "link-entry", "inode %llu: its link in directory %llu, cookie %llu, isn't in the hash table", (ull)ino, (ull)o.parent, (ull)o.cookie);
			else if (e->hash != o.hash || e->ino != ino) fk_bad(k, "link-differs", "inode %llu: its link in directory %llu, cookie %llu, is the entry of inode %llu", (ull)ino, (ull)o.parent, (ull)o.cookie, (ull)e->ino);
			else if (e->linked++) e->linked = 2, fk_bad(k, "link-twice", "%s: entry with cookie %llu is linked twice", PATH(k, ino), (ull)e->cookie);
		} else if (ino != BFS_ROOT_INO && o.nlink) {
			fk_bad(k, "link-entry", "inode %llu has %u links and no entry", (ull)ino, o.nlink);
		}
	}
	/* entries: two of one name; each listed and linked; directory and object exist */
	struct ent **p = malloc((k->ent.n + 1) * sizeof *p);
	if (!p) {
		k->err = -ENOMEM;
		return;
	}
	for (size_t j = 0; j < k->ent.n; j++) p[j] = &k->ent.v[j];
	fk_sort(p, k->ent.n, sizeof *p, by_name_hash);
	for (size_t j = 1; j < k->ent.n; j++) {
		u8 a[256], b[256];
		if (!by_name_hash(&p[j - 1], &p[j]) && p[j]->len == p[j - 1]->len && name_of(k, p[j], a) && name_of(k, p[j - 1], b) && !memcmp(a, b, p[j]->len))
			fk_bad(k, "entry-twice", "directory %s: one name stands for inodes %llu and %llu", PATH(k, p[j]->dir), (ull)p[j - 1]->ino, (ull)p[j]->ino);
	}
	free(p);
	for (size_t j = 0; j < k->ent.n; j++) {
		struct ent *e = &k->ent.v[j];
		struct oi *d = fk_oi_ino(k, e->dir), *o = fk_oi_ino(k, e->ino);
		if (j && !fk_by_cookie(e, e - 1)) fk_bad(k, "cookie-twice", "directory %s: cookie %llu is used twice", PATH(k, e->dir), (ull)e->cookie);
		if (!d || d->fmt != S_IFDIR >> 12) fk_bad(k, "entry-dir", "entry with cookie %llu lies in directory %llu, which doesn't exist", (ull)e->cookie, (ull)e->dir);
		else if (!(d->flags & BFS_OF_NSBLOCK) != (e->kind == BFS_EK_NAME)) fk_bad(k, "entry-kind", "directory %s: entry with cookie %llu is of kind %u", PATH(k, e->dir), (ull)e->cookie, e->kind);
		if (d) d->nent++;
		if (!o) fk_bad(k, "entry-object", "directory %s: entry with cookie %llu leads to inode %llu, which doesn't exist", PATH(k, e->dir), (ull)e->cookie, (ull)e->ino);
		else if (o->fmt != e->type) fk_bad(k, "entry-type", "directory %s: entry with cookie %llu says type %u, its object says %u", PATH(k, e->dir), (ull)e->cookie, e->type, o->fmt);
		else if (!e->owner != (o->state != BFS_ST_NEW && o->state != BFS_ST_ABANDONED) || (e->owner && e->owner != o->owner))
			fk_bad(k, "entry-owner", "%s: entry is private to %d, its object is in state %u of owner %d", PATH(k, e->ino), e->owner - 1, o->state, o->owner - 1);
		if (d && e->type == S_IFDIR >> 12) d->nsub++;
		if (!e->listed) fk_bad(k, "entry-unlisted", "directory %s: entry with cookie %llu (inode %llu) isn't in the listing", PATH(k, e->dir), (ull)e->cookie, (ull)e->ino);
		if (!e->linked) fk_bad(k, "entry-unlinked", "directory %s: entry with cookie %llu isn't among the links of inode %llu", PATH(k, e->dir), (ull)e->cookie, (ull)e->ino);
	}
	for (size_t at = 0; at < k->oi.n; at++) {
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		struct oi *i = &k->oi.v[at];
		struct bfs_obj o;
		if (!i->used || !fk_obj_again(k, slot, &o)) continue;
		u64 ino = INO(slot, i->gen);
		if (i->fmt == S_IFDIR >> 12) {
			u32 want = ino == BFS_ROOT_INO ? 0 : 1;
			if (i->links != want) fk_bad(k, "dir-links", "directory %s: expected %u entries that lead to it, found %u", PATH(k, ino), want, i->links);
			if (o.nlink != 2 + i->nsub || o.u.d.subdirs != i->nsub) fk_bad(k, "nlink", "directory %s: %u subdirectories found, it says %u and %u links", PATH(k, ino), i->nsub, o.u.d.subdirs, o.nlink);
			if (o.u.d.entries != i->nent) fk_bad(k, "dir-entries", "directory %s: %llu entries found, it says %llu", PATH(k, ino), (ull)i->nent, (ull)o.u.d.entries);
			continue;
		}
		if (o.nlink != i->links) fk_bad(k, "nlink", "%s: %u entries found, it says %u links", PATH(k, ino), i->links, o.nlink);
		if (!o.nlink && !i->orphan) fk_bad(k, "orphan-lost", "inode %llu has no link and isn't listed as an orphan", (ull)ino);
		if (i->fmt != S_IFREG >> 12) continue;
		bool writing = o.state == BFS_ST_NEW || o.state == BFS_ST_DIRTY;
		if (writing && !i->open) fk_bad(k, "open-lost", "%s: in state %u of host %d, and not listed as such", PATH(k, ino), o.state, o.owner - 1);
		if (writing) fk_note(k, "unsealed", "%s: %s by host %d", PATH(k, ino), o.state == BFS_ST_NEW ? "in its first writing" : "being written again", o.owner - 1);
		if (o.state == BFS_ST_ABANDONED) fk_note(k, "abandoned", "%s: its writer on host %d was killed", PATH(k, ino), o.owner - 1);
		if (fk_directory(k)) { /* no extents, and st_blocks may have grown by what a mapping read of a hole */
			if (i->mapped || o.u.f.nextents) fk_bad(k, "ext-directory", "%s: has extents, in a directory pool", PATH(k, ino));
		} else if (o.granules != i->mapped) fk_bad(k, "granules", "%s: %llu granules mapped, it says %llu", PATH(k, ino), (ull)i->mapped, (ull)o.granules);
		if (o.state == BFS_ST_SEALED && o.u.f.nextents != i->next_ext[0] + i->next_ext[1]) fk_bad(k, "nextents", "%s: %u extent records found, it says %u", PATH(k, ino), i->next_ext[0] + i->next_ext[1], o.u.f.nextents);
		if (o.u.f.inl_addr && i->next_ext[0]) fk_bad(k, "ext-inline", "%s: has an inline extent and %u records", PATH(k, ino), i->next_ext[0]);
		if (o.state == BFS_ST_SEALED && i->next_ext[1]) fk_bad(k, "ext-state", "%s: sealed, with %u extents of an overlay", PATH(k, ino), i->next_ext[1]);
		if ((o.state == BFS_ST_NEW) && (i->next_ext[0] || o.u.f.inl_addr)) fk_bad(k, "ext-state", "%s: in its first writing, with extents of a base", PATH(k, ino));
		if (o.state == BFS_ST_SEALED && o.cls == BFS_CLS_BLOCK) k->r->blocks++;
	}
}

/* Every directory hangs on the root directory. */
void fk_check_dirs(struct ck *k)
{
	enum { NEW, UNDER, GOOD, LOST };
	struct oi *top = fk_oi_ino(k, BFS_ROOT_INO);
	if (!top || top->fmt != S_IFDIR >> 12) {
		fk_bad(k, "root-dir", "the root directory (inode 1) doesn't exist");
		return;
	}
	top->color = GOOD;
	for (size_t at = 0; at < k->oi.n; at++) {
		struct oi *i = &k->oi.v[at];
		u32 slot = k->leaf.v[at / BFS_OBJS].index * BFS_OBJS + (u32)(at % BFS_OBJS);
		if (!i->used || i->fmt != S_IFDIR >> 12 || i->color) continue;
		u8 end = LOST;
		for (int pass = 0; pass < 2; pass++) {
			struct oi *d = i;
			u64 ino = INO(slot, i->gen);
			struct bfs_obj o;
			while (d && d->fmt == S_IFDIR >> 12 && d->color == (pass ? UNDER : NEW)) {
				d->color = pass ? end : UNDER;
				if (!fk_obj_again(k, INO_SLOT(ino), &o)) break;
				ino = o.parent;
				d = fk_oi_ino(k, ino);
			}
			if (!pass) end = d && d->color == GOOD ? GOOD : LOST;
		}
		if (end == LOST) fk_bad(k, "dir-lost", "directory %llu doesn't hang on the root directory", (ull)INO(slot, i->gen));
	}
}

void fk_check_free_slots(struct ck *k)
{
	const struct bfs_root *r = &k->root;
	u64 n = 0;
	u32 last = 0, s = r->free_head;
	while (s) {
		struct oi *o = s < r->slot_virgin ? fk_oi_at(k, s) : NULL;
		if (!o || o->used || o->free_seen) {
			fk_bad(k, "free-list", "list of free slots: slot %u behind slot %u is %s", s, last, !o ? "no slot that was ever used" : o->used ? "in use" : "in the list twice");
			return;
		}
		o->free_seen = 1;
		last = s, s = o->next_free, n++;
	}
	if (last != r->free_tail) fk_bad(k, "free-list", "list of free slots ends with slot %u, the root says %u", last, r->free_tail);
	if (k->nused + k->nfreeslots + 1 != r->slot_virgin) fk_bad(k, "obj-missing", "%llu object slots are in use and %llu free, expected %u together", (ull)k->nused, (ull)k->nfreeslots, r->slot_virgin - 1);
	if (n != k->nfreeslots) fk_bad(k, "free-list", "%llu slots are free, %llu of them are in the list", (ull)k->nfreeslots, (ull)n);
	if (r->slot_virgin < 2 || r->slot_virgin > k->sb.inodes) fk_bad(k, "free-list", "first slot never used: %u of %u", r->slot_virgin, k->sb.inodes);
}
