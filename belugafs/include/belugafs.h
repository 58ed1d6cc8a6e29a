/* belugafs for C and C++: blocks of a mounted pool, looked up, read and stored in place.
 *
 *     bfc *pool;
 *     uint64_t ns;
 *     bfc_connect(socket, &pool);                            `library_socket` in .beluga/config of the mount
 *     bfc_namespace(pool, "llama-3-8b", &ns);
 *     int n = bfc_match(pool, ns, keys, 32, 938);            longest prefix that is there
 *     struct bfc_block *block = calloc(n, sizeof *block);
 *     bfc_lease(pool, ns, keys, 32, n, block);               block[i].addr: the pool's own memory
 *     ...
 *     bfc_release(pool, block, n);
 *     bfc_close(pool);
 *
 *     struct bfc_new *room = calloc(m, sizeof *room);
 *     uint64_t reservation;
 *     bfc_reserve(pool, ns, m, bytes, room, &reservation);
 *     ...                                                    fill room[i].addr
 *     bfc_commit(pool, reservation, keys + n * 32, 32, m, room);
 *     bfc_drop(pool, reservation);                           what wasn't committed is free again
 *
 * Look-ups and leases take no lock and ask nobody: they read the pool's metadata.  What changes the pool is asked of the
 * daemon by a ring in shared memory; the first such call connects it, and maps the pool for writing.  Every call may be made from any
 * thread.  Calls return 0 or a count, or a negative errno; bfc_error() has the text for this thread's last one.
 *
 * A process that was made by fork() has no connection: every call fails with -EOWNERDEAD there, and the pool isn't
 * mapped in it.  It connects by itself.
 */
#ifndef BELUGAFS_LIBRARY_H
#define BELUGAFS_LIBRARY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BFC_API __attribute__((visibility("default")))

typedef struct bfc bfc; /* a pool, as this process reads it */

/* socket: of the mount's daemon.  -EACCES: it doesn't give descriptors to this user (-o library=). */
BFC_API int bfc_connect(const char *socket, bfc **out);
/* By descriptors that came another way; they are the library's from now on, also after an error.  The pool and the
 * host file are open for reading, the lease file for both; each is this process's alone. */
BFC_API int bfc_open(int pool_fd, int host_fd, int lease_fd, bfc **out);
/* Gives all leases back; what addr of them showed may be another block's afterwards.  No other call may be running. */
BFC_API void bfc_close(bfc *c);
BFC_API const char *bfc_error(void);

/* ---- looking up -------------------------------------------------------------------------------- */
BFC_API int bfc_namespace(bfc *c, const char *name, uint64_t *ns); /* a block namespace of the root directory */
/* Inode of a path below the root, without a slash before it.  Only what other hosts see too: a file that is
 * being written for the first time isn't there. */
BFC_API int bfc_lookup(bfc *c, const char *path, uint64_t *inode);
/* Value of an extended attribute; len 0: its size.  -ENODATA, -ERANGE. */
BFC_API ssize_t bfc_getxattr(bfc *c, uint64_t inode, const char *name, void *value, size_t len);
/* n keys of key_bytes (2 to 64) one after the other.  Length of the longest prefix that is there.  It counts as a use. */
BFC_API int bfc_match(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n);
/* present[i] = 1 or 0; how many are there */
BFC_API int bfc_exists(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, uint8_t *present);
/* Copies a block; its size, also when len is 0.  -ENOENT, -ERANGE: larger than len, -EIO: it is damaged. */
BFC_API ssize_t bfc_get(bfc *c, uint64_t ns, const void *key, size_t key_bytes, void *buf, size_t len);

/* ---- leases -------------------------------------------------------------------------------------- */
#define BFC_VERIFIED 1u /* its checksums were compared, now or by this process before; without it: it has none */

struct bfc_block {
	const void *addr;    /* of its bytes, 4096-aligned; NULL: not leased, or empty */
	uint64_t size_bytes;
	uint64_t inode;
	int32_t error;       /* 0, or a negative errno: -ENOENT, -EIO damaged, -EBUSY being written, -EXDEV not in one piece
			      * (bfc_get has it), -ENOBUFS this process holds too many */
	uint32_t flags;
	uint32_t lease;      /* for bfc_release */
	uint32_t version;
};

/* Leases what is there: the bytes stay as they are until bfc_release, whatever is unlinked or evicted meanwhile, and
 * whether the daemon lives or not.  How many of n were leased; block[i].error says about the others.  Blocks that this
 * process hasn't met are compared with their checksums here, as the pool was mounted (-o verify=). */
BFC_API int bfc_lease(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, struct bfc_block *block);
BFC_API int bfc_lease_inodes(bfc *c, const uint64_t *inodes, int n, struct bfc_block *block);
/* Blocks that weren't leased are passed over; released twice is once.  -ESTALE: this host was declared dead meanwhile, and
 * what was read of them may have been somebody else's: to be thrown away. */
BFC_API int bfc_release(bfc *c, struct bfc_block *block, int n);
/* Does all that is leased still stand?  -ESTALE: this host was declared dead since some of it was leased, which bfc_release will
 * say too.  -ENODEV: the pool is gone (cut, or made anew): nothing in it can be relied on.  Cheap: for a timer. */
BFC_API int bfc_check(bfc *c);

/* ---- storing, deleting, pinning ----------------------------------------------------------------- */
/* They wait for the daemon, also for the next one if it has died: up to 30 s, or as bfc_patience says.  -ENOTCONN: there
 * was none, -ETIMEDOUT: it didn't answer; in both cases some of what was asked for may have been done.  -EACCES, -EROFS. */
BFC_API void bfc_patience(bfc *c, uint64_t ns);

/* A block namespace of the root directory: made, if there is none. */
BFC_API int bfc_namespace_create(bfc *c, const char *name, uint64_t *ns);

struct bfc_new { /* room for one block */
	void *addr;            /* in the pool, writable, 4096-aligned.  What it holds at first is what former owners left */
	uint64_t size_bytes;   /* of the block that it becomes: as reserved; may be made smaller before the commit */
	uint64_t filled_bytes; /* so much of it, from its start, was stored by the caller; the rest of the block becomes zeros.
				* bfc_reserve sets it to size_bytes */
	int32_t error;         /* of the commit: 0 stored; -EEXIST: a block with this key is there, and the room stays reserved ... */
	uint32_t index;        /* in the reservation */
};
/* Room for n blocks (1 to 65536), each in one piece.  It is this process's until it is committed or dropped, or the process ends; also
 * while no daemon runs, and when another one has come.  0; -ENOSPC: all that is there is in use, -EFBIG: larger than a region of the
 * pool, -EINVAL. */
BFC_API int bfc_reserve(bfc *c, uint64_t ns, int n, uint64_t size_bytes, struct bfc_new *block, uint64_t *reservation);
/* n of its blocks, which become visible to everybody: block[i] with the i-th of the keys.  How many were stored; block[i].error says about
 * the others.  Their checksums are made here.  Nobody may store into addr from now on. */
BFC_API int bfc_commit(bfc *c, uint64_t reservation, const void *keys, size_t key_bytes, int n, struct bfc_new *block);
/* Ends the reservation.  Its addresses are other blocks' afterwards, but for those that were committed.  While no daemon runs, it
 * is told to the next one. */
BFC_API int bfc_drop(bfc *c, uint64_t reservation);

/* Copies n blocks into the pool.  How many were stored; error[i]: 0, -EEXIST: it was there, -ENOSPC, -EFBIG ... */
BFC_API int bfc_put(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, const void *const *data, const size_t *size_bytes, int32_t *error);
/* How many were deleted; error[i]: 0, -ENOENT ... */
BFC_API int bfc_delete(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, int32_t *error);
enum bfc_pin_how { BFC_UNPIN = 0, BFC_PIN_HARD = 1, BFC_PIN_SOFT = 2 }; /* hard: never evicted; soft: when nothing else is left */
BFC_API int bfc_pin(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, enum bfc_pin_how how, int32_t *error);

#ifdef __cplusplus
}
#endif
#endif
