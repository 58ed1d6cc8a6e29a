/* What a crash left: rows, unsealed objects and orphans of a host slot become what was promised. */
#include <stdlib.h>
#include "backing.h"
#include "file.h"

/* Rule 21: what the dead process stored is in this machine's cache, and has to be in the pool before the extents can be
 * anybody else's.  By the records, not by the map: that leaves out copies that were never put in place. */
static int flush_stored(struct view *v, const struct bfs_obj *o)
{
	struct bfs *b = v->b;
	struct bfs_rec r[32];
	struct bfs_key k = KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0);
	int n;
	if (b->m->coherent || BFS_MUT(MUT_KILLED_NOT_FLUSHED)) return 0;
	mm_fence(b->m);
	while ((n = bt_range(v, k, r, 32)) > 0)
		for (int i = 0; i < n; i++) {
			if (r[i].k.c && r[i].x && !(BFS_MUT(MUT_COPY_NOT_FLUSHED) && r[i].k.b >= SCRATCH_FG)) mm_flush(b->m, al_mem(b, r[i].x), (u64)(u32)r[i].y * BFS_GRANULE);
			k.b = r[i].k.b, k.c = r[i].k.c + 1;
		}
	mm_fence(b->m);
	return n;
}

static int recover_one(struct txn *t, u32 slot, u64 ino, const struct bfs_row *row)
{
	struct bfs *b = t->b;
	u8 as = (u8)(slot + 1);
	int rc = 0;
	struct bfs_key k = KEY(BFS_T(BFS_T_OPEN, slot), INO_SLOT(ino), 0);
	const struct bfs_obj *o = ob_get(tview(t), ino, &rc);
	if (rc && rc != -ESTALE) return rc;
	bool waits = b->back && o && o->state == BFS_ST_SEALED && o->flags & BFS_OF_UNVERIFIED;
	if (!o || (!waits && (o->owner != as || (o->state != BFS_ST_NEW && o->state != BFS_ST_DIRTY)))) return bt_del(t, k);
	if (slot == b->slot && (rc = flush_stored(tview(t), o))) return rc;
	if (!o->nlink) return 0; /* an orphan: freed as such */
	if (row && (row->version != o->version || (row->state != BFS_ROW_CLOSED && row->state != BFS_ROW_DIRTY) || row->size > SIZE_MAX_BYTES)) row = NULL;
	struct bfs_inode *in = in_alloc(b, ino);
	if (!in) return -ENOMEM;
	in->as = as;
	if ((rc = in_load(tview(t), o, in))) goto out;
	if (b->back) {
		rc = bk_recover(t, in, o, row);
		goto out;
	}
	if (slot != b->slot) {
		for (int i = 0; i < in->next_ext; i++)
			if (in->ext[i].addr) mm_inval(b->m, al_mem(b, in->ext[i].addr), (u64)in->ext[i].len * BFS_GRANULE);
		mm_fence(b->m);
	}
	if (!row) {
		struct bfs_obj *w = o->state == BFS_ST_DIRTY ? ob_cow(t, ino) : NULL;
		if (w) rc = sl_obj_to_base(t, w, as);
		else rc = t->poison ? t->poison : sl_drop_names(t, ino);
		goto out;
	}
	atomic_store(&in->size, row->size);
	atomic_store(&in->wtime, row->mtime_ns);
	in->overwrote = o->state == BFS_ST_DIRTY; /* for all that is known */
	in->lives_on = row->state == BFS_ROW_DIRTY && o->state == BFS_ST_NEW;
	rc = sl_make_sums(b, in, row->state == BFS_ROW_DIRTY);
	if (rc == -EIO) rc = sl_make_sums(b, in, true); /* unreadable: said when it is read */
	if (!rc && row->nsums && in->nnew_sums == row->nsums) memcpy(in->new_sums, row->sum, row->nsums * sizeof *row->sum); /* as it was closed */
	if (!rc) rc = sl_seal(t, in);
	if (rc == -EEXIST) rc = sl_drop_names(t, ino); /* somebody else was first */
out:
	in_destroy(b, in);
	return rc;
}

/* A batch of records of this kind, those with slot numbers from *from on. */
static int some(struct bfs *b, u64 kind, u32 slot, u64 *from, u64 *ino, int max)
{
	struct rd r;
	struct bfs_rec rec[64];
	int rc = rd_begin(b, &r), n;
	if (rc) return rc;
	n = bt_range(&r.v, KEY(BFS_T(kind, slot), *from, 0), rec, max);
	rd_end(&r);
	for (int i = 0; i < n; i++) ino[i] = rec[i].x, *from = rec[i].k.b + 1;
	return n;
}

/* Also for who attaches as a follower: rows go on with their numbers, or a new row would
 * be older than what it replaces. */
int sl_pending(struct bfs *b)
{
	struct bfs_row *rows = NULL;
	u32 nrows = 0;
	u64 ino[64], from = 0;
	int n, rc = rw_load_all(b, b->slot, &rows, &nrows);
	xfree(b, rows);
	if (rc || nrows) return rc ? rc : 1;
	if ((n = some(b, BFS_T_OPEN, b->slot, &from, ino, 64)) != 0) return n < 0 ? n : 1;
	from = 0;
	n = some(b, BFS_T_ORPHAN, b->slot, &from, ino, 64);
	return n < 0 ? n : n > 0;
}

int sl_recover_slot(struct bfs *b, u32 slot)
{
	struct bfs_row *rows = NULL;
	u32 nrows = 0;
	u64 ino[64], from = 0;
	struct txn *t;
	int n, rc = rw_load_all(b, slot, &rows, &nrows);
	while (!rc && (n = some(b, BFS_T_OPEN, slot, &from, ino, 64)) != 0) {
		if (n < 0) rc = n;
		for (int i = 0; i < n && !rc; i++) {
			struct bfs_row key = {.ino = ino[i]}, *row = nrows ? bsearch(&key, rows, nrows, sizeof *rows, rw_by_ino) : NULL;
			/* several rows of one file: the newest process's, as far as any of them fits */
			while (row && row > rows && row[-1].ino == row->ino) row--;
			for (struct bfs_row *x = row; x && x < rows + nrows && x->ino == ino[i]; x++)
				if (x->version > row->version || (x->version == row->version && x->mtime_ns > row->mtime_ns)) row = x;
			for (int tries = 0; tries < 5; tries++) {
				if ((rc = op_begin(b, &t))) break;
				if ((rc = op_end(b, t, recover_one(t, slot, ino[i], row))) != -EAGAIN) break;
			}
			if (rc > 0) rc = bk_keep(b, ino[i]);
		}
	}
	xfree(b, rows);
	from = 0;
	while (!rc && (n = some(b, BFS_T_ORPHAN, slot, &from, ino, 64)) != 0) {
		if (n < 0) rc = n;
		if (n > 0 && !(rc = op_begin(b, &t))) {
			for (int i = 0; i < n && !rc; i++)
				if (slot != b->slot || !rv_keeps(b, ino[i])) rc = nm_free_orphan(t, slot, ino[i]);
			rc = op_end(b, t, rc);
		}
	}
	if (rc || slot != b->slot) return rc;
	/* all of it is in the tree: no row says anything any more */
	for (u32 i = 0; i < b->sb.rows; i++) {
		struct bfs_row r = {.state = BFS_ROW_FREE}, now;
		if (rw_load(b, slot, i, &now) && now.state != BFS_ROW_FREE) rw_store(b, i, &r);
	}
	return 0;
}

/* At attach, and at a clean detach for what is still open then. */
int sl_recover(struct bfs *b)
{
	if (b->o.readonly) return 0;
	for (u32 i = 0; i < b->ihash_size; i++)
		while (b->ihash[i]) {
			struct bfs_inode *in = b->ihash[i];
			fl_flush_overlay(b, in);
			b->ihash[i] = in->next, b->nihash--;
			in_destroy(b, in);
		}
	for (u32 i = 0; i < b->nhandles; i++) { /* ids of open handles lose their index */
		struct bfs_handle *h = &atomic_load(&b->hchunk[i / 4096])[i % 4096];
		atomic_store(&h->id, atomic_load(&h->id) & ~0xffffffffull);
		h->in = NULL;
	}
	atomic_store(&b->nwriting, 0);
	b->nbatch = 0;
	int rc = rv_load(b);
	return rc ? rc : sl_recover_slot(b, b->slot);
}
