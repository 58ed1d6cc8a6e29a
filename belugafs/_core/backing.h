/* Directory pools: one backing file per regular file, in the directory data/ of the pool's tmpfs.
 *
 *   backing.c       the files themselves: names, descriptors, bytes, space; what goes with a transaction;
 *                   leftovers of a crash
 *   backing_file.c  an open object over its backing file: writing, sums, the seal, recovery
 *   backing_map.c   writers that the daemon doesn't see (passthrough, mappings): unverified until they are
 *                   known to be gone; room ahead of them
 *
 * A file's content lies in its backing file and is changed in place: no extents, no overlay, no
 * grants.  b->back is NULL for a flat pool. */
#ifndef BELUGAFS_BACKING_H
#define BELUGAFS_BACKING_H

#include "internal.h"

struct back {
	int dir;                 /* data/ */
	u64 meta_granules;       /* of the tmpfs, taken by the metadata */
	u64 *drop;               /* objects that the running transaction frees; under wlock */
	u32 ndrop, drop_cap;
	_Atomic(u64) *known;     /* chunks that were verified on this host: hash of (inode, version, chunk) */
	u64 known_mask;
	_Atomic(u64) guess;      /* granules of the large ones of the blocks sealed of late */
	_Atomic(u64) lost;       /* objects found without their file */
	u64 swept;               /* files without an object, removed at attach */
	struct bfs_inode *writers; /* foreign ones, by wnext; under ilock */
	_Atomic(bool) is_short;  /* of what the writers may need, at the last look */
	u64 asked_ns;            /* nothing could be evicted then; under wlock */
};

struct bk_stat { u64 size, granules; i64 mtime_ns; bool over; /* than a file may be */ };

/* backing.c ---------------------------------------------------------------------------- */
#define BK_NAME 32
void bk_name(char *name, u64 ino); /* below data/: "xx/slot.generation" */
int bk_attach(struct bfs *b);
void bk_detach(struct bfs *b);
int bk_create(struct bfs *b, u64 ino); /* empty; what a dropped transaction left under that name goes first */
/* the content of a native block, before the transaction that makes it ends; -ENOSPC: bk_room is the caller's */
int bk_put(struct bfs *b, u64 ino, const void *data, size_t len);
int bk_drop(struct txn *t, u64 ino);   /* goes when the transaction is acknowledged */
void bk_txn_end(struct bfs *b, bool committed);
int bk_sweep(struct bfs *b);           /* files without an object go; how many.  Nobody else is attached */
/* The reading descriptor of an inode, opened at need.  -ESTALE: the object is gone too; -ENOENT: only
 * the file, which is counted. */
int bk_fd(struct bfs *b, struct bfs_inode *in);
void bk_close(struct bfs_inode *in);          /* both descriptors */
void bk_close_writing(struct bfs_inode *in);
int bk_stat(struct bfs *b, struct bfs_inode *in, struct bk_stat *s);
int bk_read(struct bfs *b, struct bfs_inode *in, u64 off, void *dst, size_t len); /* zeros where nothing is */
/* in place, with eviction where there is no room; src NULL: zeros */
int bk_write(struct bfs *b, struct bfs_inode *in, u64 off, const u8 *src, size_t len);
int bk_truncate(struct bfs *b, struct bfs_inode *in, u64 size);
/* Gives back what is allocated behind the end.  Not under the own lease (bk_alone): it opens the file for writing. */
int bk_trim(struct bfs *b, struct bfs_inode *in);
int bk_fallocate(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 len); /* mode as of fallocate(2) */
/* first data (hole) at or behind off: its offset, or -ENXIO */
i64 bk_seek(struct bfs *b, struct bfs_inode *in, u64 off, bool data);
int bk_space(struct bfs *b, u64 *total, u64 *empty); /* granules for files: of the tmpfs without the metadata */
/* Evicts until `want` granules are empty.  round > 0: the last call wasn't enough, evict more.
 * -ENOSPC: nothing more can go. */
int bk_room(struct bfs *b, u64 want, u32 round);
/* chunks that were verified */
bool bk_known(struct bfs *b, const struct bfs_inode *in, u64 c);
void bk_know(struct bfs *b, const struct bfs_inode *in, u64 c, bool on);

/* backing_file.c ------------------------------------------------------------------------- */
int bk_refresh(struct bfs *b, struct bfs_inode *in); /* size and time of a file that others than the daemon write */
int bk_prepare(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator); /* as fl_prepare */
bool bk_in_place(struct bfs *b, const struct bfs_inode *in, u64 off, u64 end); /* nothing but bytes would change */
bool bk_overwrites(struct bfs *b, struct bfs_inode *in, u64 off, u64 end);
int bk_resize(struct bfs *b, struct bfs_inode *in, u64 size, bool creator);
/* fallocate(2) without and with FALLOC_FL_ZERO_RANGE; FALLOC_FL_PUNCH_HOLE */
int bk_allocate(struct bfs *b, struct bfs_inode *in, int mode, u64 off, u64 end, bool creator);
int bk_punch(struct bfs *b, struct bfs_inode *in, u64 off, u64 end, bool creator);
bool bk_has_data(struct bfs *b, struct bfs_inode *in, u64 off, u64 len);
int bk_make_sums(struct bfs *b, struct bfs_inode *in, bool bad); /* as sl_make_sums */
int bk_seal(struct txn *t, struct bfs_inode *in, struct bfs_obj *o); /* what merging extents is elsewhere */
/* 1: sealed, and still written by somebody: bk_keep after the acknowledgement */
int bk_recover(struct txn *t, struct bfs_inode *in, const struct bfs_obj *o, const struct bfs_row *row);

/* backing_map.c ----------------------------------------------------------------------------- */
int bk_settle(struct bfs *b, struct bfs_inode *in, u32 own); /* under lock; own: writers that don't count */
int bk_flush(struct bfs *b, struct bfs_inode *in);           /* a close: 1: all of it was done here */
void bk_released(struct bfs *b, struct bfs_inode *in);       /* a writing handle is about to go; not locked */
void bk_forget(struct bfs *b, struct bfs_inode *in);         /* it is being destroyed */
void bk_set_settling(struct bfs *b, struct bfs_inode *in, bool on);
int bk_keep(struct bfs *b, u64 ino); /* recovery: still mapped by somebody, goes on waiting */
/* Nobody has the file open for writing, or mapped that way, and who is going to waits until the end. */
bool bk_alone(struct bfs *b, struct bfs_inode *in);
void bk_alone_end(struct bfs_inode *in);
int bk_settled(struct txn *t, struct bfs_inode *in); /* the sums that were made go to a sealed object */
#endif
