/* Repair: which names stay.
 *
 * A name stands in three places: the entry, the listing, the link that the object keeps.  It
 * stays when the entry and one of the other two agree; the third is made again.  What stays
 * without a name goes to lost+found if it is worth it: a directory with something in it, or a
 * file whose content has the checksums that it was sealed with, or that was synced or closed and has
 * still to be sealed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "repair.h"

#define NAME(r, e) rp_name(r, e, (char[1024]){0}, 1024)

static bool is_dir(const struct rslot *s) { return s && S_ISDIR(s->o.mode); }

/* ---- what agrees -------------------------------------------------------------------------- */
static const struct bfs_rec *rec(struct rp *r, struct bfs_key k)
{
	size_t i = rp_find(r, k);
	return i < r->rec.n && !key_cmp(&r->rec.v[i].k, &k) ? &r->rec.v[i] : NULL;
}

static void compare(struct rp *r, struct rent *e)
{
	const struct rslot *s = rp_slot(r, INO_SLOT(e->ino));
	u32 dir = INO_SLOT(e->dir);
	const struct bfs_rec *l = rec(r, e->kind == BFS_EK_KEY ? KEY(BFS_T(BFS_T_KEYS, dir), e->prefix, e->cookie) : KEY(BFS_T(BFS_T_LIST, dir), e->cookie, 0));
	e->listed = l && l->x == e->hash && l->y == e->ino;
	if (s && s->used && s->o.gen == INO_GEN(e->ino)) {
		e->linked = s->o.parent == e->dir && s->o.cookie == e->cookie && s->o.hash == e->hash;
		if (!e->linked && !S_ISDIR(s->o.mode)) {
			l = rec(r, KEY(BFS_T(BFS_T_LINK, INO_SLOT(e->ino)), e->dir, e->cookie));
			e->linked = l && l->x == e->hash;
		}
	}
}

static void drop_name(struct rp *r, struct rent *e, const char *why)
{
	e->keep = 0;
	r->dropped++;
	fk_did(r->k, "name-dropped", "%s: %s", NAME(r, e), why);
}

static void dir_object(struct rp *r, struct rslot *s, u32 slot, u32 gen, u32 mode)
{
	i64 now = r->old.time_ns;
	memset(s, 0, sizeof *s);
	s->used = s->read = 1;
	s->o = (struct bfs_obj){.slot = slot, .gen = gen, .mode = S_IFDIR | mode, .nlink = 2, .state = BFS_ST_SEALED, .atime_ns = now, .mtime_ns = now, .ctime_ns = now, .btime_ns = now};
}

/* A directory whose object is lost, and whose name and content aren't: its name and its listing
 * agree on which object it was, and what is in it says the same.  What it was like isn't known;
 * nobody but the owner of the directory above gets into it until somebody says otherwise. */
static void remake(struct rp *r)
{
	for (size_t i = 0; i < r->ent.n; i++) {
		const struct rent *e = &r->ent.v[i];
		u32 slot = INO_SLOT(e->ino), gen = INO_GEN(e->ino);
		if (e->type != S_IFDIR >> 12 || !e->listed || e->kind != BFS_EK_NAME || slot < 2 || slot >= r->k->sb.inodes || gen >> 31) continue;
		struct rslot *s = rp_slot(r, slot);
		if (s && (s->used ? !s->drop || s->o.gen != gen : s->read)) continue;
		const struct rent *in = NULL;
		for (size_t j = 0; j < r->ent.n && !in; j++)
			if (r->ent.v[j].dir == e->ino && (r->ent.v[j].listed || r->ent.v[j].linked)) in = &r->ent.v[j];
		if (!in || !rp_room(r, slot / BFS_OBJS * BFS_OBJS + BFS_OBJS)) continue;
		const struct rslot *d = rp_ino(r, e->dir);
		s = &r->s[slot];
		u32 next = s->free_next;
		bool read = s->read;
		dir_object(r, s, slot, gen, 0700);
		s->read = read, s->free_next = next;
		if (d) s->o.uid = d->o.uid, s->o.gid = d->o.gid;
		if (in->kind == BFS_EK_KEY) s->o.flags = BFS_OF_NSBLOCK;
		s->o.parent = e->dir, s->o.cookie = e->cookie, s->o.hash = e->hash;
		s->first = (u32)i + 1;
		r->dropped++; /* its mode, owner, times and attributes */
		fk_did(r->k, "dir-made", "%s: the directory was damaged: it is made again, with mode 700, and keeps what is in it", NAME(r, e));
	}
}

/* first pass: what can be said of an entry by itself */
static void judge(struct rp *r)
{
	for (size_t i = 0; i < r->ent.n; i++) {
		struct rent *e = &r->ent.v[i];
		struct rslot *s = rp_ino(r, e->ino);
		if (e->linked && is_dir(s) && !s->first && e->ino != BFS_ROOT_INO) s->first = (u32)i + 1; /* for paths */
	}
	for (size_t i = 0; i < r->ent.n; i++) {
		struct rent *e = &r->ent.v[i];
		struct rslot *d = rp_ino(r, e->dir), *s = rp_ino(r, e->ino), *gone = rp_slot(r, INO_SLOT(e->ino));
		if (gone && gone->used && gone->drop && gone->o.gen == INO_GEN(e->ino)) {
			if (!gone->said++) fk_did(r->k, "file-dropped", "%s: %s", NAME(r, e), gone->drop);
		} else if (!s) {
			drop_name(r, e, "what it leads to doesn't exist any more");
		} else if (!is_dir(d)) {
			e->keep = 0; /* told with the object, which may have other names */
		} else if ((e->kind == BFS_EK_KEY) != !!(d->o.flags & BFS_OF_NSBLOCK) || (e->kind == BFS_EK_KEY && !S_ISREG(s->o.mode))) {
			drop_name(r, e, "it can't be in this directory");
		} else if (e->ino == BFS_ROOT_INO) {
			drop_name(r, e, "it leads to the root directory");
		} else if (!e->linked && !e->listed) {
			drop_name(r, e, "neither the listing of its directory nor what it leads to knows it");
		} else {
			u8 owner = s->o.state == BFS_ST_NEW || s->o.state == BFS_ST_ABANDONED ? s->o.owner : 0;
			e->keep = 1;
			if (e->owner != owner) e->owner = owner, r->mended++;
			if (e->type != s->o.mode >> 12) e->type = (u8)(s->o.mode >> 12), r->mended++;
		}
	}
}

/* ---- what is there twice ---------------------------------------------------------------------- */
static struct rp *cur; /* for qsort */
static int better(const struct rent *a, const struct rent *b)
{
	int x = a->linked * 2 + a->listed, y = b->linked * 2 + b->listed;
	return x != y ? y - x : a->cookie != b->cookie ? (a->cookie < b->cookie ? -1 : 1) : a->ino != b->ino ? (a->ino < b->ino ? -1 : 1) : 0;
}
static int by_name(const void *p, const void *q)
{
	const struct rent *a = &cur->ent.v[*(const u32 *)p], *b = &cur->ent.v[*(const u32 *)q];
	if (a->dir != b->dir) return a->dir < b->dir ? -1 : 1;
	if (a->hash != b->hash) return a->hash < b->hash ? -1 : 1;
	if (a->kind != b->kind || a->owner != b->owner || a->len != b->len) return a->kind != b->kind ? a->kind - b->kind : a->owner != b->owner ? a->owner - b->owner : a->len - b->len;
	return better(a, b);
}
static int by_cookie(const void *p, const void *q)
{
	const struct rent *a = &cur->ent.v[*(const u32 *)p], *b = &cur->ent.v[*(const u32 *)q];
	if (a->dir != b->dir) return a->dir < b->dir ? -1 : 1;
	return a->cookie != b->cookie ? (a->cookie < b->cookie ? -1 : 1) : better(a, b);
}

static void twice(struct rp *r)
{
	u32 *v = malloc((r->ent.n + 1) * sizeof *v), n = 0;
	if (!v) {
		r->k->err = -ENOMEM;
		return;
	}
	cur = r;
	for (u32 i = 0; i < r->ent.n; i++)
		if (r->ent.v[i].keep) v[n++] = i;
	fk_sort(v, n, sizeof *v, by_name);
	for (u32 i = 1, at = 0; i < n; i++) {
		struct rent *a = &r->ent.v[v[at]], *b = &r->ent.v[v[i]];
		u8 x[256], y[256];
		if (a->dir == b->dir && a->hash == b->hash && a->kind == b->kind && a->owner == b->owner && a->len == b->len && fk_rd(r->k, a->name, x, a->len) && fk_rd(r->k, b->name, y, b->len) && !memcmp(x, y, a->len)) drop_name(r, b, "another object has the same name");
		else at = i;
	}
	fk_sort(v, n, sizeof *v, by_cookie);
	for (u32 i = 1, at = 0; i < n; i++) {
		struct rent *a = &r->ent.v[v[at]], *b = &r->ent.v[v[i]];
		if (!a->keep || !b->keep || a->dir != b->dir || a->cookie != b->cookie) {
			if (b->keep || !a->keep) at = i;
			continue;
		}
		drop_name(r, b, "another name has its place in the listing");
	}
	free(v);
	/* one name a directory: the one that it knows, else the first */
	for (int pass = 0; pass < 2; pass++)
		for (u32 i = 0; i < r->ent.n; i++) {
			struct rent *e = &r->ent.v[i];
			struct rslot *s = e->keep ? rp_ino(r, e->ino) : NULL;
			if (!is_dir(s)) continue;
			if (!pass) {
				if (s->first && !r->ent.v[s->first - 1].keep) s->first = 0;
				if (!s->first || (e->linked && !r->ent.v[s->first - 1].linked)) s->first = i + 1;
			} else if (s->first != i + 1) {
				drop_name(r, e, "a directory has one name only");
			}
		}
}

/* ---- directories in a circle -------------------------------------------------------------------- */
static void circles(struct rp *r)
{
	enum { NEW, UNDER, DONE };
	for (u32 i = 1; i < r->nslots; i++) {
		for (int pass = 0; pass < 2; pass++)
			for (u32 at = i; at;) {
				struct rslot *s = &r->s[at];
				if (!s->used || s->drop || !S_ISDIR(s->o.mode) || s->color == DONE) break;
				if (!pass && s->color == UNDER) {
					drop_name(r, &r->ent.v[s->first - 1], "the directory contains itself");
					s->first = 0;
					break;
				}
				s->color = pass ? DONE : UNDER;
				if (at == BFS_ROOT_INO || !s->first || !r->ent.v[s->first - 1].keep) break;
				at = INO_SLOT(r->ent.v[s->first - 1].dir);
			}
	}
}

/* ---- without a name --------------------------------------------------------------------------------- */
static u64 name_hash(struct rp *r, u64 dir, const void *name, size_t n)
{
	return XXH3_64bits_withSeed(name, n, r->k->sb.hash_seed ^ (dir * 0x9E3779B97F4A7C15ull) ^ (u64)BFS_EK_NAME << 62);
}

static bool taken(struct rp *r, u64 dir, u64 hash, const char *name, size_t n)
{
	for (size_t i = 0; i < r->ent.n; i++) {
		const struct rent *x = &r->ent.v[i];
		u8 buf[256];
		if (!x->keep || x->dir != dir || x->hash != hash || x->len != n) continue;
		if (x->made ? !memcmp(x->text, name, n) : fk_rd(r->k, x->name, buf, x->len) && !memcmp(buf, name, n)) return true;
	}
	return false;
}

/* Gives it this name, or where that is taken `name.1`, `name.2` ...; false: out of memory. */
static bool make_name(struct rp *r, u64 dir, const char *name, struct rslot *s)
{
	struct rent e = {.dir = dir, .ino = ob_ino(&s->o), .cookie = r->root.next_cookie, .kind = BFS_EK_NAME, .owner = s->o.state == BFS_ST_NEW ? s->o.owner : 0, .type = (u8)(s->o.mode >> 12), .keep = 1, .made = 1, .linked = 1, .listed = 1};
	for (u32 n = 0;; n++) { /* ends: there are fewer entries than numbers */
		char text[256] = "";
		e.len = (u8)(n ? snprintf(text, sizeof text, "%s.%u", name, n) : snprintf(text, sizeof text, "%s", name));
		e.hash = name_hash(r, dir, text, e.len);
		if ((dir == BFS_ROOT_INO || !r->lost_found_made) && taken(r, dir, e.hash, text, e.len)) continue;
		memcpy(e.text, text, sizeof e.text);
		break;
	}
	e.bucket = (u32)(((unsigned __int128)(e.hash << 16) * r->k->sb.hash_buckets) >> 64);
	if (!ROOM(r->k, r->ent)) return false;
	r->ent.v[r->ent.n++] = e;
	r->root.next_cookie++;
	s->o.parent = dir, s->o.cookie = e.cookie, s->o.hash = e.hash;
	s->first = (u32)r->ent.n;
	return true;
}

/* Slot of the directory lost+found, made when it isn't there.  It is the root directory where there can't be one:
 * something else has the name, or the pool has no slot for one more object.  0: out of memory */
static u32 lost_found(struct rp *r)
{
	static const char name[] = "lost+found";
	u64 hash = name_hash(r, BFS_ROOT_INO, name, sizeof name - 1);
	u32 at = 2;
	if (r->lost_found) return r->lost_found;
	for (size_t i = 0; i < r->ent.n; i++) {
		const struct rent *e = &r->ent.v[i];
		u8 buf[256];
		if (!e->keep || e->dir != BFS_ROOT_INO || e->hash != hash || e->len != sizeof name - 1 || !fk_rd(r->k, e->name, buf, e->len) || memcmp(buf, name, e->len)) continue;
		struct rslot *s = rp_ino(r, e->ino);
		return r->lost_found = is_dir(s) && !(s->o.flags & BFS_OF_NSBLOCK) ? INO_SLOT(e->ino) : BFS_ROOT_INO;
	}
	while (at < r->nslots && r->s[at].used) at++;
	if (at == r->nslots && at == r->k->sb.inodes) return r->lost_found = BFS_ROOT_INO;
	if (!rp_room(r, at + 1)) return 0;
	struct rslot *s = &r->s[at];
	dir_object(r, s, at, s->read && !(s->o.gen >> 31) ? s->o.gen : (r->max_gen + 1) & 0x7fffffff, 0700);
	if (!make_name(r, BFS_ROOT_INO, name, s)) return 0;
	r->lost_found_made = true;
	return r->lost_found = at;
}

static void nameless(struct rp *r)
{
	for (size_t i = 0; i < r->ent.n; i++) {
		struct rslot *d = rp_ino(r, r->ent.v[i].dir), *s = rp_ino(r, r->ent.v[i].ino);
		if (r->ent.v[i].keep && d && s) d->nent++, s->links++;
	}
	u32 slots = r->nslots;
	for (u32 i = 2; i < slots && !r->k->err; i++) {
		struct rslot *s = &r->s[i];
		char name[32];
		bool file;
		if (!s->used || s->drop || s->links || i == r->lost_found) continue;
		file = S_ISREG(s->o.mode);
		if (S_ISDIR(s->o.mode) ? !s->nent : !file || !(s->o.state == BFS_ST_SEALED ? s->o.size && rp_verifies(r, s) : rp_promised(r, s))) {
			rp_drop(r, s, S_ISDIR(s->o.mode) ? "it has lost its name, and is empty" : !file ? "it has lost its name" : "it has lost its name, and its content can't be verified");
			continue;
		}
		bool space = s->o.flags & BFS_OF_NSBLOCK; /* a namespace of blocks lies in the root directory */
		u32 lf = space ? BFS_ROOT_INO : lost_found(r);
		s = &r->s[i];
		snprintf(name, sizeof name, space ? "ns#%llu" : "#%llu", (ull)ob_ino(&s->o));
		/* It has to get one: names below a directory that goes would leave their files without any. */
		if (!lf || !make_name(r, ob_ino(&r->s[lf].o), name, s)) return;
		s->links++;
		r->put_back++;
		fk_did(r->k, "lost-found", "inode %llu has lost its name: it is %s now", (ull)ob_ino(&s->o), NAME(r, &r->ent.v[r->ent.n - 1]));
	}
}

/* ---- what follows ------------------------------------------------------------------------------------ */
static void follow(struct rp *r)
{
	for (u32 i = 1; i < r->nslots; i++) {
		struct rslot *s = &r->s[i];
		s->links = s->subdirs = 0, s->nent = 0;
		if (!S_ISDIR(s->o.mode)) s->first = 0;
	}
	for (size_t i = 0; i < r->ent.n; i++) {
		struct rent *e = &r->ent.v[i];
		struct rslot *d = rp_ino(r, e->dir), *s = rp_ino(r, e->ino);
		if (e->keep && (!d || !s)) e->keep = 0;
		if (!e->keep) continue;
		d->nent++, s->links++;
		if (S_ISDIR(s->o.mode)) d->subdirs++, s->first = (u32)i + 1;
		else if (!s->first || (s->o.parent == e->dir && s->o.cookie == e->cookie && s->o.hash == e->hash)) s->first = (u32)i + 1;
	}
	for (u32 i = 1; i < r->nslots; i++) {
		struct rslot *s = &r->s[i];
		struct bfs_obj *o = &s->o, was = *o;
		if (!s->used || s->drop) continue;
		const struct rent *e = s->first ? &r->ent.v[s->first - 1] : NULL;
		if (e) o->parent = e->dir, o->cookie = e->cookie, o->hash = e->hash;
		else o->parent = BFS_ROOT_INO, o->cookie = 0, o->hash = 0; /* the root directory */
		o->nlink = S_ISDIR(o->mode) ? 2 + s->subdirs : s->links;
		if (S_ISDIR(o->mode)) o->u.d.entries = s->nent, o->u.d.subdirs = s->subdirs;
		if (S_ISDIR(o->mode) && s->nent) o->flags &= (u8)~BFS_OF_EMPTIED;
		if (memcmp(o, &was, sizeof was)) r->mended++;
	}
}

void rp_names(struct rp *r)
{
	struct rslot *top;
	for (size_t i = 0; i < r->ent.n; i++) compare(r, &r->ent.v[i]);
	remake(r);
	top = &r->s[BFS_ROOT_INO];
	u64 next = r->old.next_cookie >= 16 && !(r->old.next_cookie >> 62) ? r->old.next_cookie : 16;
	for (size_t i = 0; i < r->ent.n; i++)
		if (r->ent.v[i].cookie >= next) next = r->ent.v[i].cookie + 1;
	for (u32 i = 1; i < r->nslots; i++) /* a cookie without its entry isn't given out again either */
		if (r->s[i].used && !(r->s[i].o.cookie >> 62) && r->s[i].o.cookie >= next) next = r->s[i].o.cookie + 1;
	r->root.next_cookie = next;
	if (!top->used || top->drop || !S_ISDIR(top->o.mode) || top->o.gen) {
		dir_object(r, top, BFS_ROOT_INO, 0, 0755);
		fk_did(r->k, "root-dir-made", "the root directory was damaged: it is made again, with mode 755, owned by root");
	}
	top->first = 0;
	judge(r);
	twice(r);
	circles(r);
	nameless(r);
	for (u32 i = 1; i < r->nslots; i++) {
		struct rslot *s = &r->s[i];
		if (!s->used || !s->drop) continue;
		r->dropped++;
		if (!s->said) fk_did(r->k, "file-dropped", "inode %llu (mode 0%o): %s", (ull)INO(i, s->o.gen), s->o.mode, s->drop);
	}
	follow(r);
}
