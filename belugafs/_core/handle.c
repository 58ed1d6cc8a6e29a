/* Handles: open and release. */
#include <fcntl.h>
#include "backing.h"
#include "file.h"

#define HPER 4096u /* handles of a chunk */

/* An id is never 0 and never used again for another open: generation << 32 | index + 1. */
struct bfs_handle *hd_get(struct bfs *b, u64 fh)
{
	u32 i = (u32)fh - 1;
	if (i >= HPER * 256u) return NULL;
	struct bfs_handle *c = atomic_load_explicit(&b->hchunk[i / HPER], memory_order_acquire);
	return c && atomic_load_explicit(&c[i % HPER].id, memory_order_acquire) == fh ? &c[i % HPER] : NULL;
}

int hd_new(struct bfs *b, struct bfs_inode *in, int flags, u64 *fh)
{
	int rc = 0;
	lk(b, &b->ilock);
	u32 i = b->handle_free ? b->handle_free - 1 : b->nhandles;
	struct bfs_handle *c = i < HPER * 256u ? atomic_load(&b->hchunk[i / HPER]) : NULL;
	if (i >= HPER * 256u) {
		rc = bfs_fail(b, -ENFILE, "%u files are open", i);
	} else if (!c) {
		if ((c = xalloc(b, HPER * sizeof *c))) atomic_store_explicit(&b->hchunk[i / HPER], c, memory_order_release);
		else rc = -ENOMEM;
	}
	if (!rc) {
		struct bfs_handle *h = &c[i % HPER];
		if (b->handle_free) b->handle_free = h->next_free;
		else b->nhandles++;
		u64 gen = (atomic_load(&h->id) >> 32) + 1;
		h->in = in, h->flags = flags, h->user[0] = h->user[1] = 0;
		*fh = gen << 32 | (i + 1);
		atomic_store_explicit(&h->id, *fh, memory_order_release);
	}
	unlk(b, &b->ilock);
	return rc;
}

u64 *bfs_handle_user(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	return h ? h->user : NULL;
}

int bfs_open(struct bfs *b, u64 ino, int flags, u64 *fh)
{
	struct bfs_inode *in;
	bool w = hd_writes(flags), trunc = flags & O_TRUNC;
	int rc = in_get(b, ino, w || trunc, &in);
	if (rc) return rc;
	if (trunc && !(rc = in_lock(b, in, true))) {
		rc = fl_set_size(b, in, 0, false);
		in_unlock(b, in);
	}
	if (!rc) rc = hd_new(b, in, trunc && !w ? flags | O_RDWR : flags, fh); /* O_RDONLY | O_TRUNC reads, too */
	if (rc) {
		in_put(b, in, w || trunc);
		return rc;
	}
	bfs_touch(b, ino);
	if ((flags & O_ACCMODE) != O_WRONLY && !trunc) atomic_fetch_add_explicit(&b->hits, 1, memory_order_relaxed);
	return 0;
}

int bfs_release(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	bool w = hd_writes(h->flags);
	u64 id = fh;
	/* who takes the id away is the one that releases */
	if (!atomic_compare_exchange_strong(&h->id, &id, fh & ~0xffffffffull)) return -EBADF;
	lk(b, &b->ilock);
	if (w && !(h->flags & H_CLOSED)) in->nclosed++;
	h->in = NULL;
	h->next_free = b->handle_free;
	b->handle_free = (u32)fh;
	unlk(b, &b->ilock);
	bfs_touch(b, in->ino); /* in use until now; and a candidate again, if eviction found it open */
	if (w && b->back) bk_released(b, in);
	if (w) in_put_closed(b, in);
	else in_put(b, in, false);
	return 0;
}
