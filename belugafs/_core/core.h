/* Public interface of the belugafs core: names, files, blocks, capacity, on one
 * mapped pool, as one host.  Synchronous; every call may be made from any thread.
 * One writer mutex inside; readers take none.  Calls return 0 (or a count) or a
 * negative errno.  The text of the last error of this thread is bfs_errmsg().
 *
 * pyfuse3, the direct transport and the request ring are thin layers over this.
 */
#ifndef BELUGAFS_CORE_H
#define BELUGAFS_CORE_H

#include <sys/types.h>
#include <sys/uio.h>
#include "mem.h"

struct bfs;

const char *bfs_errmsg(void); /* "" when nothing set one since bfs_errmsg_clear() */
void bfs_errmsg_clear(void);    /* before a call whose text is wanted */

/* ---- making and opening pools ------------------------------------------------ */
struct bfs_mkfs_params {
	u64 size_bytes;     /* of the mapping */
	u64 max_size_bytes; /* 0 = size_bytes */
	u32 inodes;         /* 0 = default from the size */
	u32 nhosts;         /* 0 = 16 */
	u32 rows;           /* open-for-write table per host, 0 = default */
	u32 ring_entries;   /* touch ring per host, 0 = default */
	u32 region_granules;/* 0 = default; power of two, at most 16384 */
	u32 chunk_bytes;    /* 0 = 256 KiB */
	u32 meta_pages;     /* 0 = default from the inodes */
	u32 align_bytes;    /* of the data range, 0 = 2 MiB (pools under 64 MiB: 4096) */
	u32 map_bytes;      /* mapping granularity, recorded only */
	u8 uuid[16];
	u8 label[64];
	u64 incarnation;    /* random */
	/* The metadata of a directory pool: no data range, one host. data_bytes: of its tmpfs, for the defaults */
	bool directory;
	u64 data_bytes;
};
/* size_bytes that the metadata of such a directory pool takes; 0: impossible, bfs_errmsg() says why */
u64 bfs_directory_bytes(const struct bfs_mkfs_params *p);
int bfs_mkfs(struct bfs_mem *m, const struct bfs_mkfs_params *p, struct bfs_super *out);
/* reads and checks both superblock copies; size_bytes = what is really there */
int bfs_read_super(struct bfs_mem *m, u64 size_bytes, struct bfs_super *out);

enum { BFS_VERIFY_FIRST = 0, BFS_VERIFY_ALWAYS = 1, BFS_VERIFY_OFF = 2 };
struct bfs_opts {
	u64 uuid[2];       /* of this host (machine id and name) */
	u64 boot;          /* of this boot: another one means that the old host is gone for good */
	int slot;          /* -1: the one with this uuid, else the first free one (splitter) */
	bool readonly;     /* no registration, no store at all */
	bool follower;     /* don't claim the lead at attach (simulator, several hosts) */
	bool evict_none;   /* full pool answers ENOSPC */
	bool evict_all;    /* ordinary files go too */
	u32 reap_after_s;  /* a directory that eviction emptied isn't removed before it was unused so long; 0 = 2 */
	int verify;
	u64 suspect_ns;    /* a host whose heartbeat stood still so long is suspected; 0 = 1 s */
	u32 high_permille, low_permille; /* watermarks of data space, 0 = 970 / 950 */
	bool publish_close;/* hide a file until its first close */
	bool directory;    /* a directory pool: */
	int data_fd;       /* a descriptor of its directory of backing files; the core takes a copy */
	/* Where the processes of this machine that read the pool in place as this host have their files (lease.c): a directory, made
	 * at need; "": without a name, gone with this process; NULL: there are none.  With pool_fd: of the mapping. */
	const char *local;
	int pool_fd;
	u64 seal_timeout_ns; /* close waits so long for its seal, then puts it off; 0 = 2 * suspect_ns + 5 s */
};
int bfs_attach(struct bfs_mem *m, const struct bfs_opts *o, struct bfs **out);
/* seals what is closed, drops what isn't, gives the lead back; clean = false: process death
 * (memory is released, the pool isn't touched) */
int bfs_detach(struct bfs *b, bool clean);
/* 0, or -ESTALE if somebody has made another pool in the same place. Whoever serves users asks
 * before each call: nothing of the other one is taken for this one's, or written over. */
int bfs_check_same(struct bfs *b);

/* ---- protocol steps, called by the daemon's timer and by the simulator --------- */
int bfs_claim(struct bfs *b);         /* become leader; -EBUSY: somebody else claims */
int bfs_is_leader(struct bfs *b);
int bfs_refresh(struct bfs *b);       /* follower: adopt the newest root, if any */
int bfs_tick(struct bfs *b);          /* heartbeat, refresh or lead duties (applied, scan, stamps, reclaim) */
int bfs_apply_scan(struct bfs *b);    /* say applied N, held ... */
int bfs_reclaim(struct bfs *b);       /* leader: give quarantined extents and pages back */
int bfs_declare_dead(struct bfs *b, u32 slot, bool fenced);

/* ---- names -------------------------------------------------------------------- */
#define BFS_ROOT_INO 1ull
struct bfs_attr {
	u64 ino, size, granules;
	i64 atime_ns, mtime_ns, ctime_ns, btime_ns;
	u32 mode, nlink, uid, gid, rdev, version;
	u8 cls, state, owner, flags;
};
struct bfs_dirent {
	u64 ino, cookie;
	u8 type; /* mode >> 12 */
	u8 len;
	char name[256];
};
enum {
	BFS_SET_MODE = 1, BFS_SET_UID = 2, BFS_SET_GID = 4, BFS_SET_SIZE = 8, BFS_SET_ATIME = 16,
	BFS_SET_MTIME = 32, BFS_SET_CTIME = 64,
};
enum { BFS_RENAME_NOREPLACE = 1, BFS_RENAME_EXCHANGE = 2 };

int bfs_lookup(struct bfs *b, u64 dir, const void *name, size_t len, struct bfs_attr *a);
int bfs_getattr(struct bfs *b, u64 ino, struct bfs_attr *a);
int bfs_peekattr(struct bfs *b, u64 ino, struct bfs_attr *a); /* for a listing: it is no use of a directory */
/* fh 0 or an open handle (truncate through a descriptor) */
int bfs_setattr(struct bfs *b, u64 ino, u32 mask, const struct bfs_attr *in, u64 fh, struct bfs_attr *out);
int bfs_mkdir(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, struct bfs_attr *a);
int bfs_mknod(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 rdev, u32 uid, u32 gid, struct bfs_attr *a);
int bfs_symlink(struct bfs *b, u64 dir, const void *name, size_t len, const void *target, size_t tlen, u32 uid, u32 gid, struct bfs_attr *a);
ssize_t bfs_readlink(struct bfs *b, u64 ino, void *buf, size_t len);
int bfs_unlink(struct bfs *b, u64 dir, const void *name, size_t len);
int bfs_rmdir(struct bfs *b, u64 dir, const void *name, size_t len);
int bfs_rename(struct bfs *b, u64 dir, const void *name, size_t len, u64 dir2, const void *name2, size_t len2, u32 flags);
int bfs_link(struct bfs *b, u64 ino, u64 dir, const void *name, size_t len, struct bfs_attr *a);
/* entries with cookie > after, in cookie order; returns how many were put into out (0 = end).
 * "." and ".." are not listed. */
int bfs_readdir(struct bfs *b, u64 dir, u64 after, struct bfs_dirent *out, int max);
int bfs_parent(struct bfs *b, u64 ino, u64 *dir); /* of a directory */
/* Between the two a directory isn't reaped, should eviction empty it. */
int bfs_opendir(struct bfs *b, u64 ino);
void bfs_releasedir(struct bfs *b, u64 ino);

int bfs_setxattr(struct bfs *b, u64 ino, const char *name, const void *val, size_t len, int flags);
ssize_t bfs_getxattr(struct bfs *b, u64 ino, const char *name, void *buf, size_t len); /* len 0: size wanted */
ssize_t bfs_listxattr(struct bfs *b, u64 ino, char *buf, size_t len);
int bfs_removexattr(struct bfs *b, u64 ino, const char *name);

/* ---- files ---------------------------------------------------------------------- */
/* flags: O_ACCMODE, O_TRUNC, O_EXCL, O_APPEND of open(2) */
int bfs_create(struct bfs *b, u64 dir, const void *name, size_t len, u32 mode, u32 uid, u32 gid, int flags, struct bfs_attr *a, u64 *fh);
/* O_TMPFILE: a file without a name, gone with its last handle; without O_EXCL in flags bfs_link may give it one, which
 * seals it.  -EINVAL: not for writing */
int bfs_tmpfile(struct bfs *b, u64 dir, u32 mode, u32 uid, u32 gid, int flags, struct bfs_attr *a, u64 *fh);
int bfs_open(struct bfs *b, u64 ino, int flags, u64 *fh);
ssize_t bfs_read(struct bfs *b, u64 fh, u64 off, void *buf, size_t len);
/* As bfs_read, without a copy: sink gets the pieces where they lie in the pool, holes as zeros, once, and hands them
 * on (writev); what it returns, is returned.  While it runs the bytes can't change or go: it must not call the core.
 * Where that can't be (incoherent memory, verify=always, very many pieces) the pieces are a copy.  A piece may answer
 * with a bus error: sink has to hand it to a system call that says EFAULT then.  -EOVERFLOW: more than buf_len bytes
 * would have to be copied; len 0 or nothing to read: sink isn't called, 0. */
typedef ssize_t bfs_sink(void *arg, const struct iovec *iov, int n);
ssize_t bfs_read_pieces(struct bfs *b, u64 fh, u64 off, size_t len, void *buf, size_t buf_len, bfs_sink *sink, void *arg);
ssize_t bfs_write(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len);
/* The same, which calls taken(arg) once all that can be wanting is there (space, rights, size, the memory itself), before
 * the data is copied: the caller of the store may go on while that is done.  Who reads the file waits for it.  If the
 * memory fails after that, the file is never sealed, and the next flush or fsync answers -EIO.  Not called where
 * that can't be said ahead; then the result alone counts. */
ssize_t bfs_write_early(struct bfs *b, u64 fh, u64 off, const void *buf, size_t len, void (*taken)(void *arg), void *arg);
int bfs_reserve(struct bfs *b, u64 fh, u64 size_bytes); /* room, contiguous where possible */
/* fallocate(2): mode 0 or FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE with or without it, FALLOC_FL_PUNCH_HOLE with it.
 * What has room can be stored into without -ENOSPC until the file is sealed.  One that fails leaves the file as it was. */
int bfs_fallocate(struct bfs *b, u64 fh, int mode, u64 off, u64 len);
i64 bfs_seek(struct bfs *b, u64 fh, u64 off, int whence); /* SEEK_DATA, SEEK_HOLE; room that was never written is data */
int bfs_flush(struct bfs *b, u64 fh, bool killed);      /* close(2): seals; killed: abandons a first writing */
int bfs_fsync(struct bfs *b, u64 fh);
int bfs_release(struct bfs *b, u64 fh);
u64 *bfs_handle_user(struct bfs *b, u64 fh); /* two words of an open handle for whoever serves it, 0 at open; NULL: no such handle */
/* Directory pools: an O_RDONLY descriptor of the open file's backing file, kept until its last release; also
 * what passthrough is registered from.  write: the caller is going to let somebody store into the file without
 * the core (passthrough, a mapping); the handle must be one for writing.  Until nobody can any more the object
 * isn't verified; its size and times are the backing file's.  All of a sealed file is checked first, as
 * opts.verify says: -EIO, some of it is damaged; bfs_read has what isn't. -EOPNOTSUPP: a flat pool. */
int bfs_backing_fd(struct bfs *b, u64 fh, bool write);
/* Finishes those that are closed and that nobody stores into any more; bfs_tick does, too.  How many of them still wait. */
u32 bfs_settle(struct bfs *b);
/* Room ahead of them (backing_room.c).  The handle is about to store without the core: 0: what the file is expected to get
 * will be there, and is kept empty until it is closed; -ENOSPC: no promise, its writes should pass by bfs_write, which
 * evicts as they come. */
int bfs_promise(struct bfs *b, u64 fh);
/* Evicts ahead of those who outgrow what was expected; bfs_tick does, too. */
int bfs_headroom(struct bfs *b);
/* The same for whoever does nothing else: late_ns: how long after the moment that was asked for it comes; *nap_ns: when
 * to come again. */
int bfs_watch_room(struct bfs *b, u64 late_ns, u64 *nap_ns);
/* Has -ENOSPC met a moment in which files were just closed and aren't given up yet, or are being written with promised room? */
bool bfs_room_may_come(struct bfs *b);
/* Compares a regular file with its checksums, from offset `from` (rounded down to a chunk) on, about max_bytes of
 * it; whatever opts.verify says, and without a use: recency stays.  What is damaged is no error of the call. */
struct bfs_verify {
	u64 next;            /* where to go on, unless done */
	u64 checked_bytes;
	u64 unchecked_bytes; /* being written, not covered, made without checksums */
	u64 bad_chunks;      /* wrong, or unreadable; the block is counted as corrupt, and they are not read until they are checked again */
	u64 bad_off, bad_bytes; /* the first of them */
	u64 max_bytes;
	bool done;
};
int bfs_verify(struct bfs *b, u64 ino, u64 from, u64 max_bytes, struct bfs_verify *v);

/* ---- native blocks: (namespace, raw key) ------------------------------------------ */
/* directory under the root that becomes a namespace; existing one: checked */
int bfs_ns_create(struct bfs *b, const char *name, u64 *ns);
int bfs_block_put(struct bfs *b, u64 ns, const void *key, size_t klen, const void *data, size_t len);
ssize_t bfs_block_get(struct bfs *b, u64 ns, const void *key, size_t klen, void *buf, size_t len);
int bfs_block_delete(struct bfs *b, u64 ns, const void *key, size_t klen);
/* keys of klen bytes one after the other; present[i] = 1 or 0; returns the number present */
int bfs_block_exists(struct bfs *b, u64 ns, const void *keys, size_t klen, int n, u8 *present);
/* length of the longest present prefix */
int bfs_block_match(struct bfs *b, u64 ns, const void *keys, size_t klen, int n);

/* ---- native blocks that are filled in place (reserve.c; flat pools) ------------------ */
#define BFS_RESERVE_MAX 65536u
/* Room for n blocks of up to size_bytes of a namespace, each in one piece: off[i] is where in the pool, in bytes.  It holds
 * what its former owners left.  The handle fh is released by bfs_release, and what isn't committed goes with it, or with a
 * crash.  -ENOSPC, -EFBIG, -EOPNOTSUPP (directory pool) */
int bfs_reserve_blocks(struct bfs *b, u64 ns, u32 n, u64 size_bytes, u64 *fh, u64 *off);
struct bfs_commit {
	u32 index;          /* of the block in its reservation */
	u32 klen;
	const void *key;
	u64 filled_bytes;   /* from its start; what is behind them is given back, and reads as nothing */
	const u64 *sums;    /* XXH3 of each chunk of them (bfs_geometry), nowhere 0; NULL: they are made now */
	bool zeroed;        /* what is behind them in their last granule is zero already */
	bool repeated;      /* asked before, perhaps in vain: a block that was committed already is none to complain about */
	int rc;             /* out: 0, -EEXIST (the room stays reserved), ... */
};
/* 0: each rc says what became of that block.  An error: those whose rc is the same weren't committed; after -EAGAIN that
 * isn't known. */
int bfs_commit_blocks(struct bfs *b, u64 fh, struct bfs_commit *c, u32 n);

/* ---- batches ------------------------------------------------------------------------ */
/* Calls of this thread between begin and commit are one transaction: all or nothing.
 * A call that fails for its own reason (EEXIST ...) doesn't end the batch.  Calls that only
 * read see the state before the batch. */
int bfs_batch_begin(struct bfs *b);
int bfs_batch_commit(struct bfs *b);
int bfs_batch_abort(struct bfs *b);

/* ---- capacity ------------------------------------------------------------------------ */
struct bfs_stat {
	u64 data_granules, used_granules, quarantined_granules, bad_granules, largest_free_granules, block_granules; /* block_granules: of blocks, pinned and open ones too */
	u64 inodes, inodes_used, meta_pages, meta_pages_used, meta_pages_waiting;
	u64 nblocks, nordinary, nunsealed, norphans, open_files, open_for_write;
	u64 evicted_blocks, evicted_granules, reaped_dirs, seals, seal_deferred, creates, unlinks, corrupt;
	u64 hits, misses; /* since the attach: opens for reading and keys found; look-ups of names and keys that found nothing */
	u64 backing_lost, backing_swept; /* directory pools, since the attach: objects without their file; files without an object, removed */
	u64 promises, promises_refused; /* bfs_promise, since the attach */
	u64 term, txn, txns, pages_written, bytes_written_meta, touches_lost;
	u32 slot, leader_slot;
	int is_leader;
	u8 uuid[16];
	u8 label[64];
};
int bfs_statfs(struct bfs *b, struct bfs_stat *s);
int bfs_evict(struct bfs *b, u64 granules, u64 *freed); /* least recently used blocks first */
/* What bfs_evict could free: of so many slots from *slot on.  *slot: where to go on; 0: that was all */
int bfs_evictable(struct bfs *b, u32 *slot, u32 slots, u64 *granules);
void bfs_touch(struct bfs *b, u64 ino);
/* place of a file's data: up to max extents of (file granule, granule address, length) */
struct bfs_extent { u64 file_granule, addr; u32 len; u32 overlay; };
int bfs_extents(struct bfs *b, u64 ino, struct bfs_extent *e, int max);

/* ---- processes of this host that read in place ------------------------------------------- */
int bfs_local_error(struct bfs *b); /* 0: there may be some; else why not */
/* Descriptors for one more (client.h): the pool and the host file to read, its own lease file; each an open file
 * description that nobody else has.  The caller gives them away and closes its own: a process lives as long as its last
 * one is open somewhere.  pid, uid: for status. */
int bfs_client_new(struct bfs *b, u32 pid, u32 uid, int fds[3]);
struct bfs_client { u32 pid, uid, leases; u64 granules; i64 made_ns; };
int bfs_clients(struct bfs *b, struct bfs_client *out, int max); /* how many */
/* Number of the process whose lease file this is, for rg_server_add_for; 0: none of this host's. */
u64 bfs_client_of(struct bfs *b, int lease_fd);
void bfs_reservations(struct bfs *b, u64 *n, u64 *granules); /* of all of them */

/* ---- checking --------------------------------------------------------------------------- */
/* Reports through cb: severity 0 note, 1 problem, 2 repair; code is a stable short name.  Returns
 * the number of problems or a negative errno.  data: check block checksums too. */
typedef void (*bfs_fsck_cb)(void *arg, int severity, const char *code, const char *text);
struct bfs_fsck_result {
	u64 pages, objects, entries, extents, blocks, blocks_bad, bytes_checked, used_granules, quarantined_granules, granted_granules, problems;
	u64 left;     /* of a repair: problems that are still there */
	u64 dropped;  /* objects, names, attributes that are gone */
	u64 put_back; /* into lost+found */
	u64 changed;  /* steps of a repair that were done */
};
int bfs_fsck(struct bfs_mem *m, bool data, bfs_fsck_cb cb, void *arg, struct bfs_fsck_result *r);

struct bfs_fsck_how {
	bool data;
	bool repair;      /* the caller has the pool for itself on this machine (lock) */
	u64 uuid[2];      /* of this host, */
	u64 boot;         /* and of this boot: what is registered with either is known not to be attached */
	bool directory;   /* a directory pool, */
	int data_fd;      /* its directory of backing files */
	u32 gone;         /* bits of host slots that are said to be gone */
	bfs_fsck_cb cb;
	/* true: do it; loses: something won't be there afterwards.  NULL: always do it */
	bool (*ask)(void *arg, bool loses, const char *question);
	/* now and then; false: stop (-EINTR), possible until the repaired state is published.  NULL: none */
	bool (*progress)(void *arg, const char *what, u64 done, u64 total);
	void *arg;
};
/* As bfs_fsck, and repairs.  0: nothing was wrong, or nothing is any more (r->problems tells which); > 0: problems
 * that are left; -EBUSY: a host is registered that may be alive, -EUCLEAN: no superblock, -EPROTONOSUPPORT: made by
 * a newer version, -ENOSPC: not enough free metadata pages; bfs_errmsg() says more.  Cut off at any instant it leaves
 * the pool as it was or repaired. */
int bfs_fsck_run(struct bfs_mem *m, const struct bfs_fsck_how *how, struct bfs_fsck_result *r);

#endif
