/* Directory pools: one backing file per regular file, in the directory data/ of the pool's tmpfs.
 *
 *   backing.c       the files themselves: names, descriptors, bytes; what goes with a transaction;
 *                   leftovers of a crash
 *   backing_room.c  space of the tmpfs: eviction for a write, promises to writers that the daemon doesn't see
 *   backing_file.c  an open object over its backing file: writing, sums, the seal, recovery
 *   backing_mark.c  what a file held before such a writer came
 *   backing_map.c   writers that the daemon doesn't see (passthrough, mappings): unverified until they are
 *                   known to be gone
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
	u64 *made;               /* objects that it makes; under wlock */
	u32 nmade, made_cap;
	_Atomic(u64) *known;     /* chunks that were verified on this host: hash of (inode, version, chunk) */
	u64 known_mask;
	_Atomic(u64) guess;      /* granules of the large ones of the blocks sealed of late */
	_Atomic(u64) lost;       /* objects found without their file */
	u64 swept;               /* files without an object, removed at attach */
	struct bfs_inode *writers; /* foreign ones, by wnext; under ilock */
	u32 nwriters;
	_Atomic(u64) noted;      /* bytes of what backing_mark.c has noted */
	struct bfs_inode *look, *settle; /* the one of them that the next look, or bfs_settle, goes on with; under ilock */
	_Atomic(bool) waits;     /* somebody does, for the kernel to give up what was closed */
	struct {                 /* backing_room.c */
		_Atomic(u64) promised; /* granules that all writers may get yet; under ilock to change */
		_Atomic(u64) taking;   /* that stores of the daemon are about to take */
		_Atomic(u32) holders, unsure; /* of a promise, and of those who may outgrow it; under ilock to change */
		_Atomic(u64) granted, refused; /* since the attach */
		_Atomic(u64) late_ns;  /* for so long nobody has looked, of late */
		_Atomic(u64) nothing_ns; /* nothing could be evicted then */
		pthread_mutex_t mx;    /* of what follows: what eviction has done of late */
		u64 evicted, cpu_ns;
	} room;
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
void bk_txn_dropped(struct bfs *b);    /* the running transaction never was: what it has made goes */
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
/* chunks that were verified */
bool bk_known(struct bfs *b, const struct bfs_inode *in, u64 c);
void bk_know(struct bfs *b, const struct bfs_inode *in, u64 c, bool on);

/* backing_room.c ------------------------------------------------------------------------- */
int bk_space(struct bfs *b, u64 *total, u64 *empty); /* granules for files: of the tmpfs without the metadata */
/* Evicts until `want` granules are empty.  round > 0: the last call wasn't enough, evict more.
 * -ENOSPC: nothing more can go. */
int bk_room(struct bfs *b, u64 want, u32 round);
void bk_expect(struct bfs *b, struct bfs_inode *in, const struct bk_stat *s); /* it becomes one that is written unseen: how much may it get? */
void bk_written(struct bfs *b, struct bfs_inode *in); /* closed: what it has got isn't promised any more; the rest by the last release */
void bk_unpromise(struct bfs *b, struct bfs_inode *in);
void bk_unpromise_rest(struct bfs *b, struct bfs_inode *in); /* closed by all, and perhaps mapped */
/* Around what may give back pages of it, and before it becomes longer: what it is promised follows. */
u64 bk_had(const struct bfs_inode *in);
void bk_gave_back(struct bfs *b, struct bfs_inode *in, u64 had);
void bk_longer(struct bfs *b, struct bfs_inode *in, u64 size);
/* Around a store to [off, off + len) by the core (in NULL: of a new file): it takes nothing of what others are promised.
 * *n: what bk_took is given.  -ENOSPC: after eviction all that is empty is promised. */
int bk_take(struct bfs *b, struct bfs_inode *in, u64 off, u64 len, u64 *n);
void bk_took(struct bfs *b, u64 n);

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

/* backing_mark.c ---------------------------------------------------------------------------- */
void bk_mark(struct bfs *b, struct bfs_inode *in);       /* under lock: notes what it holds now, if that is of a size to be noted */
bool bk_mark_holds(struct bfs *b, struct bfs_inode *in); /* is all of that there?  A mark must be */
void bk_mark_drop(struct bfs *b, struct bfs_inode *in);

/* backing_map.c ----------------------------------------------------------------------------- */
int bk_settle(struct bfs *b, struct bfs_inode *in, u32 own); /* under lock; own: writers that don't count */
int bk_flush(struct bfs *b, struct bfs_inode *in);           /* a close: 1: all of it was done here */
void bk_released(struct bfs *b, struct bfs_inode *in);       /* a writing handle is about to go; not locked */
void bk_forget(struct bfs *b, struct bfs_inode *in);         /* it is being destroyed */
void bk_set_settling(struct bfs *b, struct bfs_inode *in, bool on);
void bk_emptied(struct bfs *b, struct bfs_inode *in);        /* it is begun anew */
void bk_looked_at(struct bfs *b, struct bfs_inode *in); /* before it is cut */
void bk_closed(struct bfs *b, struct bfs_inode *in);         /* settling, from now on */
void bk_finish(struct bfs *b, u64 ino);                      /* it is about to get another name: not locked */
/* It gets another name.  Is it too early to tell whether it was only ever added to?  Then the name is remembered until it is settled. */
bool bk_named_early(struct txn *t, const struct bfs_obj *o);
int bk_keep(struct bfs *b, u64 ino); /* recovery: still mapped by somebody, goes on waiting */
/* Nobody has the file open for writing, or mapped that way, and who is going to waits until the end. */
bool bk_alone(struct bfs *b, struct bfs_inode *in);
void bk_alone_end(struct bfs_inode *in);
int bk_settled(struct txn *t, struct bfs_inode *in); /* the sums that were made go to a sealed object */
#endif
