/* What the files on open inodes share: inode.c map.c handle.c, file*.c, seal*.c row.c. */
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
/* counted reference; 0, -ENOENT, -ESTALE, ... */
int in_get(struct bfs *b, u64 ino, bool write, struct bfs_inode **out);
void in_put(struct bfs *b, struct bfs_inode *in, bool write);
void in_put_closed(struct bfs *b, struct bfs_inode *in); /* a writer, counted in nclosed until then */
/* just made by this host, inside the transaction that makes it: in the table, counted */
int in_insert_new(struct bfs *b, struct bfs_inode *in);
void in_keep(struct bfs *b, struct bfs_inode *in); /* in the table, with no reference: whoever puts it there keeps it there */
void in_batch_mark(struct bfs *b, struct bfs_inode *in);
void in_set_state(struct bfs *b, struct bfs_inode *in, u8 state);
static inline bool in_sealed(const struct bfs_inode *in) { return in->state == BFS_ST_SEALED || in->state == BFS_ST_ABANDONED; }

/* handle.c ------------------------------------------------------------------------ */
int hd_new(struct bfs *b, struct bfs_inode *in, int flags, u64 *fh);
struct bfs_handle *hd_get(struct bfs *b, u64 fh); /* NULL: -EBADF */
static inline bool hd_writes(int flags) { return (flags & 3) != 0; } /* O_WRONLY, O_RDWR */
void hd_touch(struct bfs *b, struct bfs_handle *h); /* written again since its close */

/* map.c ----------------------------------------------------------------------------- */
/* first piece that ends behind granule g */
int mp_at(const struct bfs_inode *in, u64 g);
/* [fg, fg + len) is at addr (0 with overlay: hole over base; 0 without: nothing) */
int mp_set(struct bfs *b, struct bfs_inode *in, u64 fg, u64 len, u64 addr, u32 overlay);
void mp_drop_pieces(struct bfs *b, struct bfs_inode *in, const u64 *bits, u64 from, u64 to); /* of a reservation: those from `from` up to `to` whose bit is set */
bool mp_is_overlay(const struct bfs_inode *in, u64 fg, u64 end); /* all of it is data of the overlay */
/* state, map and sums as the view has them; size and times as sealed */
int in_load(struct view *v, const struct bfs_obj *o, struct bfs_inode *in);
/* under lock: the tree again; what isn't sealed keeps its size.  v: the newest */
int in_reload(struct view *v, struct bfs_inode *in);
int in_check(struct bfs *b, struct bfs_inode *in);   /* announced; is it still so in the newest root? */

/* file_read.c --------------------------------------------------------------------- */
int fl_medium(struct bfs *b, struct bfs_inode *in, u64 addr, u64 len, int rc); /* rc, with a text; the granule is noted as bad */
/* does the sum of the sealed base say something about chunk c as this host sees it? */
bool fl_covered(struct bfs *b, const struct bfs_inode *in, u64 c);
int fl_read_chunk(struct bfs *b, struct bfs_inode *in, u64 c, u64 off, u8 *dst, size_t len); /* [off, off + len) of chunk c, verified */
int fl_read_range(struct bfs *b, struct bfs_inode *in, u64 off, u8 *dst, size_t len);
/* bytes [off, off + len) below size as this host sees them; no checks of sums */
int fl_copy(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len);
/* sum of chunk c of `size` bytes: 0 = all hole */
int fl_chunk_sum(struct bfs *b, struct bfs_inode *in, u64 c, u64 size, u8 *bounce, u64 *sum);
void fl_stored(struct bfs_inode *in, u64 off, u64 end);
void fl_flush_overlay(struct bfs *b, struct bfs_inode *in);
void fl_verified(struct bfs *b, const struct bfs_inode *in, u64 c); /* sets the bit of a chunk */
bool fl_all_known(struct bfs *b, struct bfs_inode *in);              /* one extent, read in place */
int fl_check_in_place(struct bfs *b, struct bfs_inode *in);
void fl_vtag(struct bfs *b, const struct bfs_inode *in);            /* bits of another version go */
u8 *fl_bounce(struct bfs *b);                                       /* chunk_bytes; NULL */
void fl_bounce_end(struct bfs *b, u8 *p);

/* file_overlay.c ------------------------------------------------------------------ */
#define GAPS 32    /* of one transaction */
#define EXTENTS 64
struct want {
	u64 fg, end;  /* granules that are to be overlay */
	u64 more;     /* granules behind end that would be welcome */
	bool holes;   /* what is mapped is good as it is (reserve) */
	bool creator;
	bool fill;    /* the caller doesn't store into all of it: what is below the size is there at once */
};
struct gap { u64 fg, len; };
/* record of a piece of the overlay; addr 0: hole over base */
static inline struct bfs_rec ov_rec(u64 ino, u64 fg, u64 addr, u64 len)
{
	return (struct bfs_rec){.k = KEY(BFS_T(BFS_T_EXT, INO_SLOT(ino)), fg, 1), .x = addr, .y = len | (addr ? 0 : 1ull << 32)};
}
int ov_drop_scratch(struct txn *t, struct bfs_obj *o);              /* copies that were never put in place */
u64 ov_drop_new(struct txn *t, struct bfs_inode *in, const struct bfs_extent *old, int n); /* in->ext is the newer one; granules */
int ov_drop(struct txn *t, struct bfs_inode *in, u64 fg, u64 end);  /* overlay records of [fg, end) go, data back at once */
/* the object of a file that this transaction is going to change; unsealed if it isn't yet */
struct bfs_obj *ov_writable(struct txn *t, struct bfs_inode *in, bool creator, bool *unsealed, int *rc);
int ov_unsealed(struct bfs *b, struct bfs_inode *in, u8 cls);       /* after its acknowledgement */
int ov_row_dirty(struct bfs *b, struct bfs_inode *in);              /* before the first store after a seal or sync */
bool ov_is_base(const struct bfs_inode *in, u64 g);                 /* this granule is what was sealed */
int ov_gaps(const struct bfs_inode *in, const struct want *w, struct gap *g, int max, u64 most); /* what w lacks; count */
int ov_grant(struct bfs *b, struct bfs_inode *in, const struct want *w, const struct gap *g, int ng);

/* file_write.c -------------------------------------------------------------------- */
int fl_put_bytes(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len); /* into the overlay; src NULL: zeros */
bool fl_again(struct bfs_inode *in, int rc, int *tries);            /* the outcome is unknown: settle, and ask again */
/* [off, end) becomes overlay, in a file that is unsealed by it; more granules are welcome behind it */
int fl_prepare(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, u64 more, bool creator);
int fl_check_chunk(struct bfs *b, struct bfs_inode *in, u64 c);      /* is it what was sealed? */
int fl_check_partly(struct bfs *b, struct bfs_inode *in, u64 off, u64 end); /* those that a store to [off, end) changes in part */
bool fl_adding(const struct bfs_inode *in);                         /* could the next store still be one that only adds? */
bool fl_overwrites(struct bfs *b, struct bfs_inode *in, u64 off, u64 end);
void fl_sums_drop(struct bfs *b, struct bfs_inode *in, u64 off, u64 end); /* noted while writing */
int fl_zero_gap(struct bfs *b, struct bfs_inode *in, u64 from, u64 to, bool creator);

/* file_alloc.c, file_punch.c ------------------------------------------------------ */
struct before { /* a call that allocates, so that one that fails leaves it */
	struct bfs_extent *ext;
	int n;
	u64 granules;
	u8 state, cls, rowst;
	bool dirty, lives_on;
};
int fl_remember(struct bfs *b, const struct bfs_inode *in, struct before *s); /* s->ext is the caller's to free */
void fl_put_back(struct bfs *b, struct bfs_inode *in, const struct before *s); /* under lock; not after -EAGAIN */
/* a call that allocates has done its part; changed: bytes of the file; size: what it has now */
int fl_allocated(struct bfs *b, struct bfs_inode *in, const struct before *s, bool changed, u64 size);
/* granules [fg, end) become overlay with what they hold; holes: base is good as it is */
int fl_room(struct bfs *b, struct bfs_inode *in, u64 fg, u64 end, bool holes, bool creator);
int fl_punch(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator);

/* file_size.c --------------------------------------------------------------------- */
int fl_only_times(struct bfs *b, struct bfs_inode *in); /* under lock: nothing else changes */
int fl_set_size(struct bfs *b, struct bfs_inode *in, u64 size, bool creator); /* under lock */

/* row.c --------------------------------------------------------------------------- */
int rw_put(struct bfs *b, struct bfs_inode *in, u8 state); /* row of a file, taken at need; -ENOSPC: none is left */
void rw_clear(struct bfs *b, struct bfs_inode *in);
void rw_store(struct bfs *b, u32 i, struct bfs_row *r);                  /* own row i; fenced */
bool rw_load(struct bfs *b, u32 slot, u32 i, struct bfs_row *out);       /* newer valid copy; false: none says anything */
int rw_load_all(struct bfs *b, u32 slot, struct bfs_row **out, u32 *n);  /* those that aren't free, by inode */
int rw_by_ino(const void *p, const void *q);                             /* order of two struct bfs_row */

/* seal.c -------------------------------------------------------------------------- */
/* under lock: after -EAGAIN, batches dropped, seals in doubt: what is true now.  -ESTALE: gone */
int sl_settle(struct bfs *b, struct bfs_inode *in);
void sl_learn(struct bfs *b, struct bfs_inode *in); /* a seal in doubt: did it happen, as far as this host has heard? */
int sl_back_to_base(struct txn *t, u64 ino, u8 as); /* an unsealed object: its overlay goes, sealed as it was */
int sl_obj_to_base(struct txn *t, struct bfs_obj *o, u8 as);
int sl_make_sums(struct bfs *b, struct bfs_inode *in, bool bad); /* of the seal to come; bad: the content is what a crash left */
void sl_compact(struct bfs *b, struct bfs_inode *in);      /* a first writing in pieces is copied into one extent, if there is one */
void sl_done(struct bfs *b, struct bfs_inode *in);         /* after the acknowledgement: memory as the tree */

/* seal_close.c -------------------------------------------------------------------- */
int sl_drop_names(struct txn *t, u64 ino);                 /* of a first writing */
int sl_flush(struct bfs *b, struct bfs_inode *in);         /* under lock: closes and seals what isn't */
int sl_abandon(struct bfs *b, struct bfs_inode *in);       /* under lock: its writer was killed in the middle of the first writing */
/* last release, opens is still 1; not locked.  strict: a transaction under way may be taking its last name */
int sl_last(struct bfs *b, struct bfs_inode *in, bool strict);
void sl_free_orphan(struct bfs *b, struct bfs_inode *in);
#endif
