/* What inode.c, file.c and seal.c share: the open inode from the inside. */
#ifndef BELUGAFS_FILE_H
#define BELUGAFS_FILE_H

#include "internal.h"

#define H_CREATOR (1 << 30) /* in a handle's flags: made the file */
#define H_CLOSED (1 << 29)  /* flushed and not written since */
#define SCRATCH_FG (1ull << 40) /* file granule of the overlay record that a compacted copy is in: beyond any size */
#define SIZE_MAX_BYTES (1ull << 43) /* granules fit 31 bits */

static inline u64 granules(u64 bytes) { return (bytes + BFS_GRANULE - 1) / BFS_GRANULE; }
static inline u64 min64(u64 p, u64 q) { return p < q ? p : q; }
static inline u64 max64(u64 p, u64 q) { return p > q ? p : q; }

/* inode.c ------------------------------------------------------------------------- */
/* -EBUSY: only for who holds wlock (a batch) and would have to wait */
int in_lock(struct bfs *b, struct bfs_inode *in, bool excl);
void in_unlock(struct bfs *b, struct bfs_inode *in);
struct bfs_inode *in_alloc(struct bfs *b, u64 ino);
void in_destroy(struct bfs *b, struct bfs_inode *in); /* not in the table */
/* state, map and sums as the view has them; size and times as sealed */
int in_load(struct view *v, const struct bfs_obj *o, struct bfs_inode *in);
/* under lock: the tree again; what isn't sealed keeps its size.  v: the newest */
int in_reload(struct view *v, struct bfs_inode *in);
/* counted reference; 0, -ENOENT, -ESTALE, ... */
int in_get(struct bfs *b, u64 ino, bool write, struct bfs_inode **out);
void in_put(struct bfs *b, struct bfs_inode *in, bool write);
/* just made by this host, inside the transaction that makes it: in the table, counted */
int in_insert_new(struct bfs *b, struct bfs_inode *in);
void in_batch_mark(struct bfs *b, struct bfs_inode *in);
int hd_new(struct bfs *b, struct bfs_inode *in, int flags, u64 *fh);
struct bfs_handle *hd_get(struct bfs *b, u64 fh); /* NULL: -EBADF */
static inline bool hd_writes(int flags) { return (flags & 3) != 0; } /* O_WRONLY, O_RDWR */

/* the map: first piece that ends behind granule g */
int mp_at(const struct bfs_inode *in, u64 g);
/* [fg, fg + len) is at addr (0 with overlay: hole over base; 0 without: nothing) */
int mp_set(struct bfs *b, struct bfs_inode *in, u64 fg, u64 len, u64 addr, u32 overlay);
bool mp_is_overlay(const struct bfs_inode *in, u64 fg, u64 end); /* all of it is data of the overlay */

void in_set_state(struct bfs *b, struct bfs_inode *in, u8 state);

/* file.c -------------------------------------------------------------------------- */
/* bytes [off, off + len) below size as this host sees them; no checks of sums */
int fl_copy(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len);
/* sum of chunk c of `size` bytes: 0 = all hole */
int fl_chunk_sum(struct bfs *b, struct bfs_inode *in, u64 c, u64 size, u8 *bounce, u64 *sum);
void fl_stored(struct bfs_inode *in, u64 off, u64 end);
void fl_flush_overlay(struct bfs *b, struct bfs_inode *in);
void fl_verified(struct bfs *b, const struct bfs_inode *in, u64 c); /* sets the bit of a chunk */
void fl_vtag(struct bfs *b, const struct bfs_inode *in);            /* bits of another version go */
u8 *fl_bounce(struct bfs *b);                                       /* chunk_bytes; NULL */
void fl_bounce_end(struct bfs *b, u8 *p);
int ov_drop_scratch(struct txn *t, struct bfs_obj *o);              /* copies that were never put in place */
int ov_drop(struct txn *t, struct bfs_inode *in, u64 fg, u64 end);  /* overlay records of [fg, end) go, data back at once */
int fl_set_size(struct bfs *b, struct bfs_inode *in, u64 size, bool creator); /* under lock */

/* seal.c -------------------------------------------------------------------------- */
int rw_put(struct bfs *b, struct bfs_inode *in, u8 state); /* row of a file, taken at need; -ENOSPC: none is left */
void rw_clear(struct bfs *b, struct bfs_inode *in);
/* under lock: after -EAGAIN, batches dropped, seals in doubt: what is true now.  -ESTALE: gone */
int sl_settle(struct bfs *b, struct bfs_inode *in);
int sl_back_to_base(struct txn *t, u64 ino, u8 as); /* an unsealed object: its overlay goes, sealed as it was */
int sl_flush(struct bfs *b, struct bfs_inode *in);         /* under lock: closes and seals what isn't */
int sl_abandon(struct bfs *b, struct bfs_inode *in);       /* under lock: its writer was killed in the middle of the first writing */
/* last release, opens is still 1; not locked.  strict: a transaction under way may be taking its last name */
int sl_last(struct bfs *b, struct bfs_inode *in, bool strict);
void sl_free_orphan(struct bfs *b, struct bfs_inode *in);
#endif
