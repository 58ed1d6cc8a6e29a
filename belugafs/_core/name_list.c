/* Listing directories.  A cookie is an entry's for ever, so a listing is stable while others write. */
#include <sys/stat.h>
#include "name.h"

/* ---- listing ------------------------------------------------------------------------------------------- */
void nm_dirent(struct bfs_dirent *d, u64 ino, u64 cookie, u8 type, const void *name, size_t len)
{
	d->ino = ino, d->cookie = cookie, d->type = type, d->len = (u8)len;
	memcpy(d->name, name, len);
	d->name[len] = 0;
}

/* 1: shown to this host */
static int listed(struct view *v, const struct ht_entry *e)
{
	struct ht_entry x;
	u8 me = (u8)(v->b->slot + 1);
	if (e->owner) return e->owner == me && !nm_hidden(v, e);
	if (!v->root->nunsealed) return 1; /* nothing private anywhere */
	int rc = ht_find_owner(v, e->dir, e->kind, e->name, e->len, me, &x);
	return rc == -ENOENT ? 1 : rc ? rc : nm_hidden(v, &x);
}

/* The records of one directory (or of one prefix of keys) are in the order of their cookies. */
static int list_entries(struct view *v, u64 dir, const struct syn *y, u64 after, struct bfs_dirent *out, int max)
{
	struct ht_entry e;
	struct bfs_rec r[64];
	char name[2 * BFS_KEY_MAX];
	u64 prefix = y ? (u64)y->k[0] << 56 | (u64)y->k[1] << 48 : 0;
	int n = 0;
	while (n < max) {
		struct bfs_key k = y ? KEY(BFS_T(BFS_T_KEYS, y->slot), prefix, after + 1) : KEY(BFS_T(BFS_T_LIST, INO_SLOT(dir)), after + 1, 0);
		int want = max - n < 64 ? max - n : 64, m = bt_range(v, k, r, want);
		if (m < 0) return m;
		for (int i = 0; i < m; i++) {
			if (y && r[i].k.b != prefix) return n;
			after = y ? r[i].k.c : r[i].k.b;
			int rc = ht_by_cookie(v, r[i].x, dir, after, &e);
			if (rc) return rc == -ENOENT ? bfs_fail(v->b, -EIO, "listing of directory %llu: entry %llu isn't there; run fsck.belugafs -n", (unsigned long long)dir, (unsigned long long)after) : rc;
			if ((rc = listed(v, &e)) < 0) return rc;
			if (!rc) continue;
			if (y && e.len > BFS_KEY_MAX) return -EIO;
			nm_dirent(&out[n++], e.ino, after, e.type, y ? name : (char *)e.name, y ? syn_hex(e.name, e.len, name) : e.len);
		}
		if (m < want) break;
	}
	return n;
}

int bfs_readdir(struct bfs *b, u64 dir, u64 after, struct bfs_dirent *out, int max)
{
	struct rd r;
	struct syn y = {INO_SLOT(dir), 0, {0, 0}};
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = is_syn(dir) ? syn_get(&r.v, dir, &y, &rc) : ob_get(&r.v, dir, &rc);
	if (o && !S_ISDIR(o->mode)) rc = -ENOTDIR;
	else if (o && (o->flags & BFS_OF_NSBLOCK)) rc = y.level < 2 ? syn_list(&r.v, &y, after, out, max) : list_entries(&r.v, ob_ino(o), &y, after, out, max);
	else if (o) rc = list_entries(&r.v, dir, NULL, after, out, max);
	rd_end(&r);
	return rc;
}
