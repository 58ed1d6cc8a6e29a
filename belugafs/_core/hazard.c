/* What this host reads, announced before it is read: hazard slots, and the list of all that is held.
 *
 * Who reads data announces it first: an open inode stands in the table with its extents,
 * a reader without an open stands in a hazard slot.  Then he checks that the newest root
 * this host has applied still gives the object these extents (rule 16).  bfs_apply_scan
 * takes the newest root, passes a fence and reads table and slots: who isn't in them yet
 * will check against that root or a newer one.  Both sides go through ilock, or through a
 * full fence on either side. */
#include <stdlib.h>
#include <sys/stat.h>
#include "client.h"
#include "file.h"
#include "lease.h"

#define NHAZ (sizeof ((struct bfs *)0)->hazard / sizeof ((struct bfs *)0)->hazard[0])

int in_still_has(struct view *v, u64 ino, u32 version, const struct bfs_extent *e, int n)
{
	int rc = 0;
	struct bfs_rec r;
	const struct bfs_obj *o = ob_get(v, ino, &rc);
	if (!o) return rc;
	if (!S_ISREG(o->mode) || (o->state != BFS_ST_SEALED && o->state != BFS_ST_DIRTY) || o->version != version) return -ESTALE;
	if (o->u.f.inl_addr) return n == 1 && e[0].addr == o->u.f.inl_addr && e[0].len == o->u.f.inl_len ? 0 : -ESTALE;
	for (int i = 0; i < n; i++)
		if ((rc = bt_get(v, KEY(BFS_T(BFS_T_EXT, o->slot), e[i].file_granule, 0), &r)) || r.x != e[i].addr || (u32)r.y != e[i].len) return rc && rc != -ENOENT ? rc : -ESTALE;
	return 0;
}

int in_hazard(struct bfs *b, u64 ino, u32 version, const struct bfs_extent *e, int n)
{
	static __thread u32 hint;
	struct rd r;
	u32 s;
	int rc;
	if (n < 1 || n > 64) return -EINVAL;
	if (b->client) return cl_hazard(b, ino, version, e, n);
	for (u32 k = 0;; k++) {
		int none = 0;
		s = (hint + k) % NHAZ;
		if (!atomic_load_explicit(&b->hazard[s].busy, memory_order_relaxed) && atomic_compare_exchange_strong(&b->hazard[s].busy, &none, 1)) break;
		if (k && k % NHAZ == 0) b->m->ops->pause(b->m, 10000);
	}
	hint = s;
	for (int i = 0; i < n; i++) atomic_store_explicit(&b->hazard[s].w[i], HELD_WORD(e[i].addr, e[i].len), memory_order_relaxed);
	atomic_store(&b->hazard[s].n, n);
	mm_fence(b->m);
	if (BFS_MUT(MUT_HAZARD_NO_CHECK) || BFS_MUT(MUT_HAZARD_OLD_SNAPSHOT)) return (int)s;
	if (!(rc = rd_begin(b, &r))) {
		rc = in_still_has(&r.v, ino, version, e, n);
		rd_end(&r);
	}
	if (!rc) return (int)s;
	in_hazard_end(b, (int)s);
	return rc;
}

void in_hazard_end(struct bfs *b, int slot)
{
	if (b->client) {
		cl_hazard_end(b, slot);
		return;
	}
	atomic_store_explicit(&b->hazard[slot].n, 0, memory_order_release);
	atomic_store_explicit(&b->hazard[slot].busy, 0, memory_order_release);
}

static int by_addr(const void *p, const void *q)
{
	u64 x = HELD_ADDR(*(const u64 *)p), y = HELD_ADDR(*(const u64 *)q);
	return x < y ? -1 : x > y;
}

/* Joins what is at most `gap` granules apart. */
static u32 join(u64 *w, u32 n, u64 gap)
{
	u32 m = 0;
	for (u32 i = 1; i < n; i++) {
		u64 a = HELD_ADDR(w[m]), end = a + HELD_LEN(w[m]), x = HELD_ADDR(w[i]), xe = x + HELD_LEN(w[i]);
		if (xe < end) xe = end;
		if (BFS_GDEV(a) == BFS_GDEV(x) && x <= end + gap && xe - a <= 0x10000) w[m] = HELD_WORD(a, xe - a);
		else w[++m] = w[i];
	}
	return n ? m + 1 : 0;
}

/* Every announced extent; the caller's n counts. */
static int announced(struct bfs *b, int (*f)(void *arg, u64 addr, u32 len), void *arg)
{
	int rc = 0;
	lk(b, &b->ilock);
	for (u32 i = 0; i < b->ihash_size; i++)
		for (struct bfs_inode *in = b->ihash[i]; in; in = in->next)
			for (int k = 0; k < in->next_ext && !rc; k++) {
				const struct bfs_extent *e = &in->ext[k];
				/* own extents that aren't published are freed by nobody else; a seal in doubt may be, and what was
				 * abandoned may be evicted by whoever leads */
				if (e->addr && (!e->overlay || in->sealing || in->frozen || in->reload || in->gone || in->state == BFS_ST_ABANDONED)) rc = f(arg, HELD_WORD(e->addr, e->len), e->len);
			}
	unlk(b, &b->ilock);
	for (u32 s = 0; s < NHAZ; s++)
		for (int i = 0, n = atomic_load(&b->hazard[s].n); i < n && !rc; i++) {
			u64 w = atomic_load_explicit(&b->hazard[s].w[i], memory_order_relaxed);
			rc = f(arg, w, HELD_LEN(w));
		}
	return rc ? rc : ls_held(b, f, arg);
}

struct words { u64 *w; u32 n, cap; };
static int collect(void *arg, u64 addr, u32 len)
{
	struct words *l = arg;
	(void)len;
	if (l->n < l->cap) l->w[l->n] = addr;
	l->n++;
	return 0;
}

/* The list in the pool is short.  Where more is open, what lies between two held extents is
 * said to be held too: that only keeps it from being reused. */
int in_held(struct bfs *b, int (*add)(void *arg, u64 addr, u32 len), void *arg)
{
	struct words l = {NULL, 0, 256};
	int rc = 0;
	do { /* more may have come while there was no lock */
		xfree(b, l.w);
		l.cap = l.n > l.cap ? l.n + l.n / 4 : l.cap, l.n = 0;
		if (!(l.w = xalloc(b, l.cap * sizeof *l.w))) return announced(b, add, arg);
		announced(b, collect, &l);
	} while (l.n > l.cap);
	u32 n = l.n;
	if (n > 1) qsort(l.w, n, sizeof *l.w, by_addr);
	n = join(l.w, n, 0);
	for (u64 gap = 1; n > BFS_HELD_LINES * 6 && gap <= 0x10000; gap *= 4) n = join(l.w, n, gap);
	for (u32 i = 0; i < n && !rc; i++) rc = add(arg, l.w[i], HELD_LEN(l.w[i]));
	xfree(b, l.w);
	return rc;
}
