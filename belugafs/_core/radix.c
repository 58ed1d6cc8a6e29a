/* Radix tables: index -> leaf page, fan-out 254, a fixed height per table (geometry). */
#include "internal.h"

#define F ((u64)BFS_RADIX_FAN)

u32 rx_height(u64 nleaves)
{
	u32 h = 0;
	for (u64 n = 1; n < nleaves; n *= F) h++;
	return h;
}

/* constants, so that the divisions are multiplications */
static inline u32 digit(u64 i, u32 level)
{
	switch (level) {
	case 1: return (u32)(i % F);
	case 2: return (u32)(i / F % F);
	case 3: return (u32)(i / (F * F) % F);
	case 4: return (u32)(i / (F * F * F) % F);
	default: return (u32)(i / (F * F * F * F) % F);
	}
}

const void *rx_get(struct bfs *b, struct bfs_ptr p, u32 height, u64 index, int kind, int *rc)
{
	for (u32 l = height; l; l--) {
		if (!p.page) return NULL;
		const struct bfs_radix *n = pg_get(b, p, BFS_PK_RADIX, rc);
		if (!n) return NULL;
		p = n->child[digit(index, l)];
	}
	return p.page ? pg_get(b, p, kind, rc) : NULL;
}

static void *cow_or_new(struct txn *t, struct bfs_ptr *p, int kind) { return p->page ? pg_cow(t, p, kind) : pg_new(t, p, kind); }

void *rx_cow(struct txn *t, struct bfs_ptr *p, u32 height, u64 index, int kind)
{
	for (u32 l = height; l; l--) {
		struct bfs_radix *n = cow_or_new(t, p, BFS_PK_RADIX);
		if (!n) return NULL;
		n->h.aux = l;
		p = &n->child[digit(index, l)];
	}
	return cow_or_new(t, p, kind);
}

int rx_drop(struct txn *t, struct bfs_ptr *p, u32 height, u64 index, int kind)
{
	(void)kind;
	for (u32 l = height; l; l--) {
		if (!p->page) return 0;
		struct bfs_radix *n = pg_cow(t, p, BFS_PK_RADIX);
		if (!n) return t->poison;
		p = &n->child[digit(index, l)];
	}
	pg_free(t, p);
	return t->poison;
}

int rx_free_all(struct txn *t, struct bfs_ptr *p, u32 height, int kind)
{
	if (!p->page) return 0;
	if (height) {
		int rc = 0;
		const struct bfs_radix *n = pg_get(t->b, *p, BFS_PK_RADIX, &rc);
		if (!n) return t->poison = rc;
		for (u32 i = 0; i < BFS_RADIX_FAN; i++) {
			struct bfs_ptr c = n->child[i];
			if (c.page && rx_free_all(t, &c, height - 1, kind)) return t->poison;
		}
	}
	pg_free(t, p);
	return t->poison;
}
