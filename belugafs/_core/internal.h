/* What the core's files share.  Who owns what:
 *   super.c  superblock, mkfs, attach, detach          (host slots, splitter)
 *   line.c   registers, error texts; lead.c terms, claims, roots, grants; txn.c transactions;
 *   pin.c    snapshots, readers, pins; host.c applied/held, heartbeat, timer   (lead.h)
 *   page.c   metadata pages: validated reads, copy on write, free, reuse
 *   radix.c hash.c btree.c   tables in the tree
 *   object.c slots; name.c look-ups and entries, name_make.c name_move.c name_list.c what is done by
 *   name, name_syn.c prefix directories of block namespaces   name_keys.c many of these at once (name.h); xattr.c; block.c native blocks
 *   alloc.c  regions, extents, quarantine, watermarks; recency.c touch rings, stamps; evict.c who goes
 *   next; reap.c directories that eviction emptied     (evict.h)
 *   lease.c  processes of this host that read in place, as the daemon sees them (lease.h); client.c one of
 *   these processes, client_connect.c, client_write.c, client_populate.c (client.h)
 *   reserve.c reserve_commit.c room for blocks that others store into; reserve_client.c whose it is, across daemons
 *   inode.c  objects that are open on this host; map.c their maps; handle.c; hazard.c what is being read
 *   file.c create and close, file_read.c, file_overlay.c, file_write.c, file_size.c; row.c;
 *   seal.c, seal_close.c, seal_recover.c               (file.h)
 *   backing*.c directory pools: content in backing files                      (backing.h)
 *   fsck*.c (fsck.h); repair*.c (repair.h)
 * Lock order: wlock -> inode.lock is NOT allowed to be reversed: see struct bfs_inode.
 */
#ifndef BELUGAFS_INTERNAL_H
#define BELUGAFS_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include "core.h"
#include "mutant.h"

struct bfs_snap { /* a published state */
	u32 term;
	u64 txn;
	struct bfs_ptr root; /* page and the tag it was born with */
};
static inline int tag_cmp(u32 t1, u64 x1, u32 t2, u64 x2)
{
	return t1 != t2 ? (t1 < t2 ? -1 : 1) : x1 != x2 ? (x1 < x2 ? -1 : 1) : 0;
}

/* A view of the tree: a snapshot (t == NULL) or the running transaction. */
struct view {
	struct bfs *b;
	const struct bfs_root *root;
	struct txn *t;
};

/* Which of the last free pages: none of the reserve; what gives pages back; a leader's duties, reuse among them. */
enum pg_use { PG_ANY, PG_FREEING, PG_DUTY };

struct txn {
	struct bfs *b;
	u32 term;
	u64 txn;               /* tag of the pages born here */
	struct bfs_root *root; /* working copy, already a page of the grant */
	struct bfs_ptr rootp;
	u32 *born;             /* pages allocated here */
	u32 nborn, born_cap, born_mapped;
	bool root_set;
	struct bfs_logent *dead; /* pages of the former state that this one drops */
	u32 ndead, dead_cap, dead_logged;
	u32 *cleared;          /* map bits cleared here: pages usable once confirmed */
	u32 ncleared, cleared_cap;
	u64 *undo_bits;        /* reserved for alloc.c: nothing of the pool's state lives in memory only */
	int poison;            /* first error after which only an abort is right (-ENOSPC, -EIO) */
	bool changed;          /* something was written beside the root */
	enum pg_use use;       /* which free pages it may take */
	u64 keep;              /* a directory that an entry is being made in: not reaped */
	u32 direct;            /* runs of bfs.dgrant that this transaction stores data in */
	struct view v;         /* this transaction as a view */
};
static inline struct view *tview(struct txn *t) { return &t->v; }

/* ---- errors ------------------------------------------------------------------- */
/* sets bfs_errmsg() and returns rc (negative errno) */
int bfs_fail(struct bfs *b, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

int sp_check(const struct bfs_super *s, u64 size_bytes); /* super.c: one copy; bfs_errmsg() says what is wrong */
u64 sp_csum(const struct bfs_super *s);
void sp_heights(struct bfs *b); /* what follows from b->sb */

/* ---- page.c --------------------------------------------------------------------- */
/* NULL: *rc (negative errno) says why.  A returned page has been checked (tag, own number,
 * kind, checksum, counts within bounds) the first time this host met this (page, tag). */
u64 pg_csum(struct bfs *b, const void *page);
const void *pg_get(struct bfs *b, struct bfs_ptr p, int kind, int *rc);
/* Mutable page in place of *p; *p must lie in a dirty page or in the working root. NULL: t->poison. */
void *pg_cow(struct txn *t, struct bfs_ptr *p, int kind);
void *pg_new(struct txn *t, struct bfs_ptr *p, int kind); /* zeroed body */
void pg_free(struct txn *t, struct bfs_ptr *p);           /* and clears *p */
int pg_finish(struct txn *t);                             /* map bits, log, checksums, flush, fence */
void pg_abort(struct txn *t);
void pg_confirmed(struct txn *t);
int pg_reuse(struct txn *t);                              /* step 14: log -> map bits */
int pg_fill(struct bfs *b, u64 chunks, bool add);         /* free pages of the confirmed root in these chunks -> memory */
int pg_count_free(struct bfs *b, u32 chunk);
u32 pg_reserve(const struct bfs *b);
u32 pg_enough(const struct bfs *b); /* the reserve, and what an ordinary transaction takes */
/* A transaction that frees many things at a time ends here, and another one goes on: free pages are few. */
bool pg_few(const struct txn *t);
int pg_attach(struct bfs *b);
void pg_detach(struct bfs *b);


/* ---- lead.c ------------------------------------------------------------------------ */
/* Snapshot for reading.  rd_begin pins in this process; the pages stay until rd_end. */
struct rd {
	struct view v;
	struct bfs_snap s;
	int slot;
};
int rd_begin(struct bfs *b, struct rd *r);
void rd_end(struct rd *r);

/* Every change: op_begin takes the writer mutex, makes sure of the lead and starts a
 * transaction, or joins the batch of this thread.  op_end(rc < 0): nothing happened.
 * An operation checks everything before its first change; an error after that sets
 * t->poison (pg_*, bt_*, ... do it themselves) and the whole transaction is dropped.
 * op_end(0) commits (unless in a batch): returns 0 once acknowledged; -EAGAIN when
 * leadership was lost: unknown whether it happened, ask again. */
/* one or two pins a slot, as ranges; the own slot's from memory.  Fresh. */
struct pin { u32 t1; u64 x1; u32 t2; u64 x2; };
int ld_pins(struct bfs *b, struct pin *p); /* at most 2 * BFS_HOSTS_MAX + 1; count */
int ld_more_pages(struct bfs *b);          /* another chunk, confirmed; -ENOSPC, -EAGAIN */
/* lowest (term, txn) that every slot which counts has applied; fills b->held with the held words
 * of all slots.  Fresh. */
int ld_quar_limit(struct bfs *b, struct bfs_snap *lowest);
/* Before data is stored into extents that only this transaction knows: puts their regions into the
 * own grant line.  0; -EAGAIN: the lead is lost, nothing may be stored. */
struct extent;
int ld_data_grant(struct txn *t, const struct extent *e, int n);
/* runs of regions in other slots' grants (first | count << 32), fresh; at most 4 * BFS_HOSTS_MAX; count */
int ld_data_grants(struct bfs *b, u64 *runs);
bool ld_lease_ok(struct bfs *b);           /* newest root, read fresh: this registration isn't declared dead (rule 19) */
int ld_line(struct bfs *b, u32 slot, u32 index, struct bfs_line *l); /* fresh; 1 valid, 0 absent, -1 damaged */
void ld_put(struct bfs *b, u32 index, const u64 *w, u32 n);          /* own line, by mm_store; not fenced */
int ld_roots(struct bfs *b, struct bfs_snap *best);                   /* highest valid root, fresh; -EIO */
void ld_beat(struct bfs *b);
int ld_attach(struct bfs *b);
void ld_detach(struct bfs *b, bool clean);
struct bfs_snap ld_newest(struct bfs *b);  /* newest applied snapshot of this host */
int op_begin(struct bfs *b, struct txn **t);
int op_begin_room(struct bfs *b, struct txn **t); /* for what makes something: where no page is free, blocks go first */
int op_end(struct bfs *b, struct txn *t, int rc);

/* ---- radix.c ------------------------------------------------------------------------- */
u32 rx_height(u64 nleaves); /* 0: the pointer is the leaf itself */
/* absent: NULL and *rc == 0 */
const void *rx_get(struct bfs *b, struct bfs_ptr root, u32 height, u64 index, int kind, int *rc);
void *rx_cow(struct txn *t, struct bfs_ptr *root, u32 height, u64 index, int kind); /* made when absent */
int rx_drop(struct txn *t, struct bfs_ptr *root, u32 height, u64 index, int kind);  /* leaf freed, pointer cleared */
int rx_free_all(struct txn *t, struct bfs_ptr *root, u32 height, int kind);

/* ---- hash.c ---------------------------------------------------------------------------- */
struct ht_entry {
	u64 dir, ino, cookie, hash;
	u8 kind, owner, type, len;
	u8 name[256];
};
u64 ht_hash(struct bfs *b, u64 dir, int kind, const void *name, size_t len);
/* 0 found, -ENOENT, -EIO.  Entries private to another host are skipped; own private ones win. */
int ht_find(struct view *v, u64 dir, int kind, const void *name, size_t len, struct ht_entry *e);
/* the published one only (owner == 0) or exactly that owner's */
int ht_find_owner(struct view *v, u64 dir, int kind, const void *name, size_t len, u8 owner, struct ht_entry *e);
int ht_by_cookie(struct view *v, u64 hash, u64 dir, u64 cookie, struct ht_entry *e);
/* n keys of klen bytes one after the other: ino[i] = 0 when absent; returns the number present */
int ht_find_many(struct view *v, u64 dir, int kind, const void *keys, size_t klen, int n, u64 *ino);
int ht_insert(struct txn *t, u64 hash, u64 dir, int kind, const void *name, size_t len, u64 ino, u64 cookie, u8 type, u8 owner);
int ht_remove(struct txn *t, u64 hash, u64 dir, u64 cookie);
int ht_set(struct txn *t, u64 hash, u64 dir, u64 cookie, u64 ino, u8 type, u8 owner); /* in place */

/* ---- btree.c ----------------------------------------------------------------------------- */
static inline int key_cmp(const struct bfs_key *p, const struct bfs_key *q)
{
	if (p->a != q->a) return p->a < q->a ? -1 : 1;
	if (p->b != q->b) return p->b < q->b ? -1 : 1;
	if (p->c != q->c) return p->c < q->c ? -1 : 1;
	return 0;
}
static inline struct bfs_key KEY(u64 a, u64 b, u64 c) { return (struct bfs_key){a, b, c}; }
int bt_get(struct view *v, struct bfs_key k, struct bfs_rec *r);      /* 0, -ENOENT, -EIO */
int bt_seek(struct view *v, struct bfs_key k, struct bfs_rec *r);     /* first record >= k; -ENOENT at the end */
int bt_seek_last(struct view *v, struct bfs_key k, struct bfs_rec *r);/* last record <= k */
/* up to max records >= k with the same a, in order; returns the count */
int bt_range(struct view *v, struct bfs_key k, struct bfs_rec *r, int max);
int bt_put(struct txn *t, const struct bfs_rec *r);                   /* insert or replace */
int bt_del(struct txn *t, struct bfs_key k);                          /* 0, -ENOENT */
int bt_del_range(struct txn *t, struct bfs_key k, struct bfs_key end); /* those in [k, end); how many */
struct bfs_rec *bt_edit(struct txn *t, struct bfs_key k);             /* x and y may be changed, until the tree is; NULL: there is none, or t->poison */

/* ---- object.c ------------------------------------------------------------------------------ */
#define INO(slot, gen) ((u64)(gen) << 32 | (slot))
#define INO_SLOT(ino) ((u32)(ino))
#define INO_GEN(ino) ((u32)((ino) >> 32))
/* NULL and *rc: -ESTALE (slot has another generation or is free), -EIO */
const struct bfs_obj *ob_get(struct view *v, u64 ino, int *rc);
struct bfs_obj *ob_cow(struct txn *t, u64 ino);               /* NULL: t->poison or -ESTALE in *rc */
struct bfs_obj *ob_alloc(struct txn *t, u32 mode, u32 uid, u32 gid, int *rc); /* -ENOSPC when slots are out */
int ob_free(struct txn *t, u64 ino);                          /* data, xattrs, sums, slot; entries must be gone */
void ob_attr(const struct bfs_obj *o, struct bfs_attr *a);
static inline u64 ob_ino(const struct bfs_obj *o) { return INO(o->slot, o->gen); }
const struct bfs_obj *ob_slot(struct view *v, u32 slot, int *rc); /* as it is, free ones too; NULL and *rc 0: never used */
/* All counters of the root that are functions of an object (slots_used, nblocks, nordinary, nunsealed, norphans,
 * blocks_granules): sign -1 before a change of cls, state, nlink or granules, +1 after it; nobody else touches them.
 * Regular files only: state SEALED counts as nblocks or nordinary by class, any other as nunsealed; nlink 0 as
 * norphans beside that; blocks_granules = class block, SEALED or ABANDONED, with one name. */
void ob_count(struct txn *t, const struct bfs_obj *o, int sign);
void ob_less(struct txn *t, struct bfs_obj *o, u64 gone); /* granules; the counters go with it */
int ob_sums_get(struct bfs *b, const struct bfs_obj *o, u32 first, u32 n, u64 *s); /* -EINVAL beyond nsums */
int ob_sums_set(struct txn *t, struct bfs_obj *o, const u64 *s, u32 n);            /* replaces all; inline or radix */
static inline int txn_fail(struct txn *t, int rc) { return t->poison ? t->poison : (t->poison = rc); } /* error after a first change */

/* ---- name.c --------------------------------------------------------------------------------- */
/* Drops one link of an object; when none is left it is freed, or becomes an orphan while it is open here. */
int nm_drop_link(struct txn *t, u64 ino);
/* Removes the entry (hash + listing + link record) and drops the link. */
int nm_remove(struct txn *t, const struct ht_entry *e);
/* Adds entry + listing + back reference; o is a dirty object, nlink is raised.  owner as in bfs_ent. */
int nm_add(struct txn *t, u64 dir, int kind, const void *name, size_t len, struct bfs_obj *o, u8 owner, u64 *cookie);
/* every entry of o: makes it published (owner 0); -EEXIST: a published one of that name is there */
int nm_publish(struct txn *t, struct bfs_obj *o);
/* New regular file: checks, ob_alloc, nm_add.  owner 0: empty, sealed, ordinary; else NEW, class block, private
 * (the OPEN record is the caller's).  -EEXIST: *ino is the one there. */
int nm_create(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 owner, u64 *ino);
/* New regular file without a name, an orphan of this host in its first writing (the OPEN record is the caller's). */
int nm_nameless(struct txn *t, u64 dir, u32 mode, u32 uid, u32 gid, u64 *ino);
int nm_mkdir(struct txn *t, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, u8 flags, u64 *ino); /* flags: BFS_OF_NSBLOCK */
/* 1: has lost its names, and is open on another host, which gives its space away when it is closed there: nobody else
 * stores into it.  0: it isn't so. */
int nm_elsewhere(struct view *v, const struct bfs_obj *o);
/* The last release of an orphan of that host: its record and the object. */
int nm_free_orphan(struct txn *t, u32 host, u64 ino);
static inline u64 nm_keyb(const u8 *key, size_t klen) { return klen < 2 ? 0 : (u64)key[0] << 56 | (u64)key[1] << 48; } /* b of BFS_T_KEYS */
int fl_truncate(struct bfs *b, u64 ino, u64 fh, u64 size); /* file_size.c: setattr of the size */

/* ---- xattr.c --------------------------------------------------------------------------------- */
int blob_write(struct txn *t, struct bfs_ptr *p, const void *data, u32 len); /* replaces */
int blob_read(struct bfs *b, struct bfs_ptr p, void *data, u32 len);
void blob_free(struct txn *t, struct bfs_ptr *p);

/* ---- alloc.c --------------------------------------------------------------------------------- */
struct extent { u64 addr; u32 len; };
/* Up to max extents that together hold n granules (as few as possible), recorded as granted to
 * this host for ino.  Returns the count or -ENOSPC (nothing allocated; not poisoned). */
int al_alloc(struct txn *t, u64 n, u64 ino, struct extent *e, int max);
/* Part of an extent that others may still read: quarantine; it comes back by al_reclaim. */
int al_free(struct txn *t, u64 addr, u32 len);
/* Granted, never published, own stores flushed: back at once. */
int al_unwind(struct txn *t, u64 addr, u32 len);
int al_own(struct txn *t, u64 addr, u32 len, u64 ino, int st); /* change of state or owner */
/* Gives quarantined extents back that every slot has applied and nobody holds. */
int al_reclaim(struct txn *t);
u64 al_largest(struct view *v);
int al_attach(struct bfs *b);
void al_detach(struct bfs *b);
/* al_alloc, then with eviction, commits and scans in between: *t is another transaction afterwards (NULL when
 * none could be begun), so it comes first, and what was read before is read again.  In a batch: -ENOSPC. */
int al_alloc_room(struct bfs *b, struct txn **t, u64 n, u64 ino, struct extent *e, int max);
/* Free granules right behind an extent granted to ino are added to it: how many, least to more of them, or 0. */
/* Up to count extents of n granules each, one behind the other from addr on, in a region that has their class: e[]; how many
 * there is room for.  Nothing goes for them.  0 also with t->poison. */
u32 al_alloc_run(struct txn *t, u64 addr, u32 n, u32 count, u64 ino, struct extent *e);
u32 al_grow(struct txn *t, u64 addr, u32 len, u32 least, u32 more, u64 ino);
int al_bad(struct txn *t, u64 addr, u64 ino); /* a granule of ino that answered with an error: never used again */
void al_txn_end(struct bfs *b, bool committed); /* by fl_txn_end */
/* word of a held line: the extent's address and its length, since parts of an extent are freed apart */
#define HELD_WORD(addr, len) ((addr) | (u64)((len) - 1) << 40)
#define HELD_ADDR(w) ((w) & ~(0xffffull << 40))
#define HELD_LEN(w) ((u32)((w) >> 40 & 0xffff) + 1)


/* ---- recency.c, evict.c, reap.c (evict.h) -------------------------------------------------------- */
int ev_make_room(struct txn *t, u64 granules); /* evicts; freed extents need a commit and a scan before use */
void ev_pass_on(struct bfs *b);                /* what processes that read in place have used -> own touch ring */
int ev_drain(struct bfs *b);                   /* touch rings -> stamps in memory */
int ev_store(struct txn *t);                   /* stamps -> tree, a part of them */
bool ev_unstored(struct bfs *b);               /* there are more */
int ev_attach(struct bfs *b);
void ev_detach(struct bfs *b);
u32 ev_stamp(struct bfs *b, u32 slot);
int ev_empty_region(struct txn *t, u32 n);     /* evicts all of one region (room for n in one piece); granules, 0: none can be */
int ev_make_slots(struct txn *t);              /* directories that eviction emptied go for their slots, else blocks: as few as are needed; how many */
void ev_admit(struct bfs *b, u32 slot, bool abandoned); /* counts as used now; abandoned: first to go */
void ev_admit_many(struct bfs *b, const u64 *inodes, u32 n); /* the same of blocks that were made together; 0: none */
void ev_forget(struct bfs *b, u32 slot);       /* the object is gone: what comes next has its own recency */
void ev_pins_changed(struct bfs *b);           /* or a directory has moved, below another pin */
/* a path leads through it, or it is listed: not reaped soon.  true: it was one that might have been, look again */
bool ev_dir_seen(struct bfs *b, const struct bfs_attr *a);
void ev_regrade(struct bfs *b, u32 slot);      /* the file has moved, below another pin */
int ev_tick(struct bfs *b);                    /* leader: directories that eviction emptied go when slots get scarce; no lock held */
u64 ev_pos(struct bfs *b);                     /* of the own touch ring: w2 of the heartbeat */

/* ---- inode.c: objects open on this host ---------------------------------------------------------- */
/* A file that is open here.  Several may exist for one object: a version sealed by another host leaves those who
 * have the older one open with what they have (stale). */
struct bfs_inode {
	u64 ino;
	struct bfs_inode *next; /* hash chain; under ilock */
	u32 opens, writers;     /* under ilock */
	/* Order: lock before wlock (a write may need a transaction) before ilock; code that holds wlock never waits
	 * for lock.  in_lock/in_unlock, not the field: the simulator has a mutex in its place. */
	pthread_rwlock_t lock;
	pthread_mutex_t mx;
	u8 state, cls;          /* as in bfs_obj, as this host sees it; under lock, and ilock to change */
	u8 rowst;               /* what the row says */
	u8 flags;               /* of the object */
	_Atomic(bool) gone;     /* object no longer in the tree: cached extents only */
	_Atomic(bool) checked;  /* against the newest root, after it stood in the table (rule 16) */
	bool stale;             /* under ilock: not found any more */
	bool dying;             /* under ilock: being freed */
	bool created_here;      /* first writing goes on */
	bool synced;            /* fsync(2) has promised what is written now */
	bool overwrote;         /* what was sealed once is no longer what it was */
	bool lives_on;          /* and it was written on afterwards: no block, whoever wrote */
	bool dirty;             /* stores since the last seal or sync */
	_Atomic(bool) frozen;   /* a seal has left and isn't known to have happened or not */
	_Atomic(bool) deferred; /* closed, to be sealed by fl_tick */
	bool lost;              /* another host has published the name: the own ones go, as soon as they can */
	_Atomic(bool) reload;   /* the tree is read again before anything else (unknown outcome, dropped batch) */
	bool wanted;            /* under ilock: somebody would have freed it, and leaves that to the last release */
	bool skipped;           /* under ilock: eviction has found it in use */
	bool in_batch;          /* under ilock: changed by the running batch */
	_Atomic(bool) orphan_wait; /* freeing an orphan has failed, to be done by fl_tick */
	u32 uses;               /* under ilock: references ever taken */
	u32 sealing;            /* under ilock: version may be ahead in the tree */
	u32 version;
	int row;                /* index in the host's table, -1 none */
	_Atomic(u64) size, granules;
	_Atomic(i64) wtime;     /* last write, 0: none since the load */
	struct bfs_extent *ext; /* what this host reads: sorted, no overlaps; overlay pieces are one to one with the
				 * overlay's records (addr 0: hole that hides base).  Under lock, and ilock to change. */
	int next_ext, ext_cap;  /* count */
	u64 base_end;           /* granules: no base record goes further */
	u64 base_size;          /* of the sealed object */
	u64 *sums;              /* of the sealed base */
	u32 nsums;
	u64 *wsum;              /* of chunks written whole since, 0 = not known */
	u32 wsum_cap;
	u64 *seen;              /* chunks invalidated since the open (incoherent memory only) */
	u64 *new_sums;          /* of the seal under way */
	u32 nnew_sums;
	u32 nclosed;            /* under ilock: writers that have flushed and not written since */
	_Atomic(u64) dirty_nlo, dirty_hi; /* bytes stored and not flushed: from ~nlo to hi */
	struct bfs_extent *new_ext; /* map as the seal under way makes it */
	int nnew_ext;
	u8 seal_flags;
	bool unverified;        /* this seal can't vouch for the content */
	bool killed;            /* its writer was, or data that was taken is lost: never sealed */
	int late;               /* error of a store whose caller had been answered: for the next flush or fsync */
	bool nameless;          /* under ilock: made without a name, and may get one */
	u32 piece, npieces;     /* a reservation: granules of each of its blocks, and how many (reserve.c) */
	u64 piece_ns;           /* and their namespace */
	u8 as;                  /* owner + 1 whose overlay is seen: this host, or one that is recovered */
	/* directory pools (backing.h) */
	_Atomic(int) rfd, wfd;  /* of the backing file, -1: not open */
	bool foreign;           /* others than the daemon may be storing into it */
	bool foreign_creator;   /* only who made it */
	bool reopened;          /* again, before it was known who has stored; nobody waits for that any more */
	bool named;             /* under ilock: has got another name meanwhile */
	u32 pending;            /* under ilock: writers that haven't got at it yet */
	struct bk_mark *mark;   /* what must still be there for it to be one that was only added to; under lock */
	bool settling;          /* under ilock: stays in the table until they are gone */
	u64 settling_ns;        /* since then */
	u64 refused_ns;         /* when it was last found that somebody has it still */
	u64 room_from, room_end; /* bytes between them have their pages: fallocate; under lock */
	i64 fmtime_ns, sync_ns; /* of the backing file as last seen; at the last fsync */
	u64 sync_size;          /* at the last fsync */
	struct bfs_inode *wnext, **wat; /* under ilock: list of foreign ones; what points to this one, NULL: isn't in it */
	u64 expect, had;        /* granules that it may get; that it had at the last look.  This and the rest under ilock */
	u64 promise;            /* that are kept empty for it */
	u64 grown_ns;           /* when it was last seen to have got some */
	bool granted;           /* stores don't pass by the daemon, and are watched */
	bool unsure;            /* that this is all: nothing is known of its directory, or it has outgrown what was */
	bool outgrown;
	u64 scratch;            /* extent that a compacted copy is in, 0 none */
};
struct bfs_handle { _Atomic(u64) id; struct bfs_inode *in; int flags; u32 next_free; u64 user[2]; };

/* reserve_client.c: reservations of the processes that read and write in place as this host. */
int rv_load(struct bfs *b);             /* before a recovery: those of processes that live, as their lease files have them */
bool rv_keeps(struct bfs *b, u64 ino);   /* is this orphan one of them? */
int rs_places(struct bfs *b, u64 fh, u64 *off); /* reserve.c: where its pieces are, as bfs_reserve_blocks said; 0: committed */
int rv_open(struct bfs *b);              /* after it */
void rv_tick(struct bfs *b);             /* those of the dead are given back; no lock held */
void rv_detach(struct bfs *b);
/* One more; off as of bfs_reserve_blocks.  number: the process's name for it; again: it may be there already. */
int rv_reserve(struct bfs *b, u64 client, u64 number, bool again, u64 ns, u32 n, u64 size_bytes, u64 *off);
int rv_commit(struct bfs *b, u64 client, u64 number, bool again, struct bfs_commit *c, u32 n);
int rv_release(struct bfs *b, u64 client, u64 number); /* what isn't committed is free again; 0 also if there is none */

struct bfs_inode *in_find(struct bfs *b, u64 ino);             /* not counted; under ilock */
bool in_is_open(struct bfs *b, u64 ino);
bool in_time_set(struct bfs *b, u64 ino);
void in_time_row(struct bfs *b, u64 ino);
int in_attach(struct bfs *b);
void in_detach(struct bfs *b);
void in_overlay_attr(struct bfs *b, struct bfs_attr *a);       /* size and times of open files */
/* every extent that this process holds (open or being read), as few as possible: for apply_scan; addr is a HELD_WORD */
int in_held(struct bfs *b, int (*add)(void *arg, u64 addr, u32 len), void *arg);
/* Eviction: false when open here; otherwise opens of ino fail with -ENOENT until the end. */
bool in_evict_begin(struct bfs *b, u64 ino);
void in_evict_end(struct bfs *b);
void in_unlinked(struct bfs *b, u64 ino); /* an acknowledged transaction has taken a name: of one that nobody has open, and that isn't settled, nothing is waited for */
u64 gs_expected(struct view *v, u64 ino, bool above);           /* guess.c: granules that a new file is likely to get; 0: nothing is known.  above: by directories above its own */
void gs_learn(struct txn *t, const struct bfs_obj *o, u64 size); /* a block is sealed; a failure is the transaction's */
int sl_seal(struct txn *t, struct bfs_inode *in);              /* seal.c: inside a transaction */
int sl_recover(struct bfs *b);                                 /* own rows and unsealed objects after a crash */
int sl_pending(struct bfs *b);                                 /* 1: a crash left something in the own slot; rows are read */
int sl_recover_slot(struct bfs *b, u32 slot);                  /* of a host that is fenced or was booted anew: on its behalf */
int sl_force(struct bfs *b, u64 ino);                          /* rename and link of a file being written */
/* A file made without a name is about to get one: counted until sl_named, which seals it unless that has failed. */
struct bfs_inode *sl_nameless(struct bfs *b, u64 ino);         /* NULL: isn't one */
int sl_named(struct bfs *b, struct bfs_inode *in, int rc);
/* Reader without an open: announces the extents (at most 64) of a published object, then checks against the newest
 * applied root that they are its (rule 16).  Slot for in_hazard_end, or -ESTALE: look the name up again. */
int in_hazard(struct bfs *b, u64 ino, u32 version, const struct bfs_extent *e, int n);
void in_hazard_end(struct bfs *b, int slot);
int in_still_has(struct view *v, u64 ino, u32 version, const struct bfs_extent *e, int n); /* 0, -ESTALE */
/* Bytes of a published object without opening it (block_get): hazard, checksums and all, as bfs_read. */
ssize_t fl_read_ino(struct bfs *b, u64 ino, u64 off, void *buf, size_t len);
static inline u64 fl_sum(const void *p, size_t n) { u64 h = bfs_sum(p, n); return h ? h : 1; } /* of a chunk */
/* In the transaction that makes a NEW object: OPEN record, overlay of the n extents granted to it, open inode and
 * handle.  After op_end the handle is used or, when that failed, released like any other. */
int fl_new(struct txn *t, u64 ino, const struct extent *e, int n, int flags, u64 *fh);
/* txn.c calls it under wlock for every transaction that ends; unknown counts as not committed */
void fl_txn_end(struct bfs *b, bool committed);
void fl_tick(struct bfs *b);                                   /* deferred seals, orphans, bad granules; no lock held */
static inline bool in_batch(struct bfs *b);

/* ---- the host's attachment ------------------------------------------------------------------------ */
#define BFS_READERS 256
struct back;
struct bfs {
	struct bfs_mem *m;
	struct bfs_super sb;
	struct back *back; /* a directory pool's backing files; NULL: a flat pool */
	struct bfs_opts o;
	u32 slot;
	u64 incarnation; /* of this registration */
	u32 h_map, h_log, h_obj, h_hash, h_region, h_stamp; /* radix heights */
	u32 log_cap;
	u64 nregions;

	pthread_mutex_t wlock; /* the one writer */
	struct txn *txn;       /* open transaction, under wlock */
	_Atomic(u64) batch_tid;/* thread that holds a batch, 0 none */

	/* leadership, under wlock except as noted */
	_Atomic(int) leader;
	u32 term;
	u64 grant;              /* chunks held, 0 = none */
	struct bfs_snap conf;   /* newest confirmed root of own term */
	struct bfs_snap first;  /* first publication of this term */
	int root_line, pin_line;/* written last */
	int claim_line, grant_line;
	u64 grant_seq;          /* count of writes of the grant lines */
	u64 dgrant[4];          /* runs of data regions that may be written before their transaction is confirmed */
	u32 dgrant_next;

	/* what this host has applied, for its readers: in the host file, or in own when there is none (lease.c) */
	struct bfs_lhost *lhost, own;
	struct share *share;    /* host file and lease files; NULL: no other process reads as this host */
	struct bfc *client;     /* this one only reads, as a process of a host that another one is (client.c) */
	_Atomic(u32) nclients;
	int local_error;
	_Atomic(bool) rescan;   /* one of them has gone since the last scan */
	struct { pthread_mutex_t mx; struct reservation *a; _Atomic(u32) n; u32 cap; _Atomic(bool) died; _Atomic(u64) granules; } rv; /* what they have reserved (reserve_client.c) */
	_Atomic(u64) readers[BFS_READERS]; /* 0 free; else txn of the snapshot in use + 1 (see pin.c) */
	struct { u64 txn; u32 term; } past[64]; /* terms of the snapshots of late, by txn % 64 */
	u64 stamps_ns;          /* recency was last written into the tree */
	u64 reuse_tried;        /* conf.txn at the last scan that freed nothing */
	u64 *held;              /* held addresses of all slots as last read, 0-terminated */
	u32 nheld;
	pthread_mutex_t slock;  /* one apply_scan at a time, and what it stores into the registers */

	/* page.c */
	_Atomic(u64) *valid; /* tag this host last validated, by page */
	u32 *freep;          /* stack of usable pages of the grant */
	u32 nfree, free_cap;

	/* inode.c */
	pthread_mutex_t ilock;
	struct bfs_inode **ihash;
	u32 ihash_size, nihash;
	_Atomic(struct bfs_handle *) hchunk[256]; /* 4096 handles each, never moved */
	u32 nhandles, handle_free;
	u32 nbatch;          /* inodes with in_batch */
	struct { _Atomic(int) busy; _Atomic(int) n; _Atomic(u64) w[64]; } hazard[64]; /* HELD_WORDs being read without an open */
	u64 badq[64][2];     /* granules that answered with an error, their inode; for fl_tick */
	u32 nbadq;
	u32 orphans_waiting; /* about; under ilock */
	u32 row_hint;
	u32 tick_at;         /* bucket that fl_tick goes on with */
	u32 *rowseq;         /* of the row's newer copy */
	_Atomic(u8 *) bounce;/* chunk_bytes, whoever takes it */
	u64 *evicting;       /* hash set of what the running transaction frees; under ilock */
	u32 nevicting, evicting_cap;
	_Atomic(u32) nwriting; /* inodes whose size or times aren't the tree's */
	u8 *rows_used;

	/* alloc.c / evict.c */
	void *al;
	void *ev;
	_Atomic(u64) scan; /* number of the last scan */
	struct bfs_snap applied;

	/* other hosts as this one sees them (suspicion), host.c */
	struct { u64 heart, since_ns; _Atomic(bool) live; } peer[BFS_HOSTS_MAX];

	u8 *verified;      /* bit per granule: chunk starting there was verified */
	_Atomic(u32) *vtag;/* by slot: (gen, version) the bits belong to */
	_Atomic(u32) *ctag;/* by slot: (gen, version) that was counted as corrupt */

	/* counters (relaxed) */
	struct { _Atomic(u64) hash, at_ns; } missed[256]; /* names that weren't there, of late: name.c */
	_Atomic(u64) hits, misses, corrupt, reaped, seal_deferred, txns, pages_written, touches_lost;
	pthread_t ticker;
};

static inline void *pg_addr(struct bfs *b, u32 page) { return b->m->base + b->sb.meta_off + (u64)page * BFS_PAGE; }
static inline void *al_mem(struct bfs *b, u64 addr)
{
	u64 i = BFS_GIDX(addr);
	if (BFS_GDEV(addr) != 0 || i >= b->sb.data_granules) return NULL;
	return b->m->base + b->sb.data_off + i * BFS_GRANULE;
}
static inline struct bfs_line *host_line(struct bfs *b, u32 slot, u32 i)
{
	return (struct bfs_line *)(b->m->base + b->sb.host_off + (u64)slot * b->sb.host_stride) + i;
}
static inline u64 *host_ring(struct bfs *b, u32 slot) { return (u64 *)((u8 *)host_line(b, slot, 0) + BFS_L_COUNT * BFS_LINE); }
static inline struct bfs_row *host_row(struct bfs *b, u32 slot, u32 row) /* two copies at [0] and [1] */
{
	return (struct bfs_row *)((u8 *)host_ring(b, slot) + (u64)b->sb.ring_entries * 8) + 2 * (u64)row;
}
static inline u64 now_ns(struct bfs *b) { return b->m->ops->now_ns(b->m); }
static inline void *xalloc(struct bfs *b, size_t n) { return b->m->ops->alloc(b->m, n); }
static inline void xfree(struct bfs *b, void *p) { if (p) b->m->ops->free(b->m, p); }
void lk(struct bfs *b, pthread_mutex_t *x);
void unlk(struct bfs *b, pthread_mutex_t *x);
static inline bool in_batch(struct bfs *b) { return atomic_load_explicit(&b->batch_tid, memory_order_relaxed) == (u64)(uintptr_t)pthread_self(); } /* of this thread */

#endif
