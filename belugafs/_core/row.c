/* Rows: what this host promises of the files that it writes, in its own slot (docs/format.md, 14). */
#include <stdlib.h>
#include "file.h"

static u64 row_seed(struct bfs *b, const struct bfs_row *at) { return b->sb.incarnation ^ (u64)((const u8 *)at - b->m->base); }

void rw_store(struct bfs *b, u32 i, struct bfs_row *r)
{
	r->seq = ++b->rowseq[i];
	/* in turn: a copy that is torn by a crash leaves the one before it */
	struct bfs_row *at = host_row(b, b->slot, i) + (BFS_MUT(MUT_ROW_ONE_COPY) ? 0 : r->seq & 1);
	r->csum = bfs_xxh(&r->ino, sizeof *r - 8, row_seed(b, at));
	if (!r->csum) r->csum = 1;
	mm_store(b->m, at, r, sizeof *r);
	mm_pool_fence(b->m, at, sizeof *r);
}

int rw_put(struct bfs *b, struct bfs_inode *in, u8 state)
{
	struct bfs_row r = {.ino = in->ino, .version = in->version, .size = atomic_load(&in->size), .mtime_ns = atomic_load(&in->wtime), .state = state};
	if (in->row < 0) {
		lk(b, &b->ilock);
		for (u32 k = 0; k < b->sb.rows && in->row < 0; k++) {
			u32 i = (b->row_hint + k) % b->sb.rows;
			if (!b->rows_used[i]) b->rows_used[i] = 1, in->row = (int)i, b->row_hint = i + 1;
		}
		unlk(b, &b->ilock);
		if (in->row < 0) return bfs_fail(b, -ENFILE, "%u files are being written; the table of this host is full", b->sb.rows);
	}
	if (state == BFS_ROW_CLOSED && in->new_sums && in->nnew_sums && in->nnew_sums <= BFS_INLINE_SUMS) {
		r.nsums = in->nnew_sums;
		memcpy(r.sum, in->new_sums, in->nnew_sums * sizeof *r.sum);
	}
	/* The size of a file that is written on covers nothing that isn't in the pool. */
	if (state == BFS_ROW_DIRTY) fl_flush_overlay(b, in);
	in->rowst = state;
	rw_store(b, (u32)in->row, &r);
	return 0;
}

void rw_clear(struct bfs *b, struct bfs_inode *in)
{
	struct bfs_row r = {.ino = in->ino, .state = BFS_ROW_FREE};
	in->rowst = BFS_ROW_FREE;
	if (in->row < 0) return;
	u32 i = (u32)in->row;
	in->row = -1;
	rw_store(b, i, &r);
	lk(b, &b->ilock);
	b->rows_used[i] = 0;
	unlk(b, &b->ilock);
}

/* The newer valid copy of a row; false: none says anything. */
bool rw_load(struct bfs *b, u32 slot, u32 i, struct bfs_row *out)
{
	bool any = false;
	memset(out, 0, sizeof *out);
	for (int c = 0; c < 2; c++) {
		struct bfs_row r, *at = host_row(b, slot, i) + c;
		mm_load(b->m, &r, at, sizeof r);
		u64 sum = bfs_xxh(&r.ino, sizeof r - 8, row_seed(b, at));
		if (!r.csum || r.csum != (sum ? sum : 1) || r.nsums > BFS_INLINE_SUMS) continue;
		if (!any || r.seq > out->seq) *out = r;
		any = true;
	}
	return any;
}

int rw_by_ino(const void *p, const void *q)
{
	const struct bfs_row *x = p, *y = q;
	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

int rw_load_all(struct bfs *b, u32 slot, struct bfs_row **out, u32 *n)
{
	struct bfs_row *l = xalloc(b, b->sb.rows * sizeof *l);
	if (!l) return -ENOMEM;
	*n = 0;
	for (u32 i = 0; i < b->sb.rows; i++) {
		bool any = rw_load(b, slot, i, &l[*n]);
		if (slot == b->slot) b->rowseq[i] = l[*n].seq, b->rows_used[i] = 0;
		if (any && l[*n].state != BFS_ROW_FREE) (*n)++;
	}
	qsort(l, *n, sizeof *l, rw_by_ino);
	*out = l;
	return 0;
}
