/* A process that reads a pool in place as a host whose daemon is another process: what the core's readers need of it,
 * and its calls (include/belugafs.h), in the steps that tests put something between. */
#ifndef BELUGAFS_CLIENT_H
#define BELUGAFS_CLIENT_H

#include "../include/belugafs.h"
#include "internal.h"

/* Gives the two descriptors of a ring to a daemon; got: a descriptor of the pool to write by, and one that tells of the daemon's
 * death or -1; both the caller's.  -ECONNREFUSED, -ENOENT: there is none now. */
typedef int cl_hand_over(void *arg, bfc *c, int ring_fd, int bell_fd, int got[2]);
int cl_by_socket(void *arg, bfc *c, int ring_fd, int bell_fd, int got[2]);

struct bfc {
	struct bfs b; /* client mode: read-only, lhost and readers are in the files below */
	struct bfs_mem mem;
	struct bfs_llease *f;
	int pool_fd, lease_fd; /* kept open for their locks */
	u32 host_slot;
	_Atomic(bool) forked;  /* this is a child: nothing is mapped */
	pthread_mutex_t mx;    /* the stack of free entries */
	u32 *free_entry, nfree, high;
	u64 *registered;       /* of each entry: this host's registration when it was leased */
	u32 *runs[64];         /* entries of reads that copy, under way: count, entries */
	struct bfc *next;      /* all of this process */
	struct cl_ahead *ahead; /* maps what was leased and reserved (client_populate.c); NULL: nothing was, yet */

	/* writing (client_write.c) */
	pthread_mutex_t ring_mx; /* connecting; the list of drops */
	struct rg_client *ring;  /* NULL: nothing was asked yet */
	_Atomic(u64) made, served; /* generations of the ring: the newest one, and the newest that a daemon has */
	u8 *room;                /* the pool once more, writable; NULL: not yet */
	u64 patience_ns;
	cl_hand_over *hand_over; /* NULL: nobody to ask */
	void *hand_over_arg;
	char *socket;            /* cl_by_socket's */
	bool (*interrupted)(void); /* asked now and then while it waits; may be NULL */
	u64 *drops;              /* reservations that a daemon is to be told of */
	u32 ndrops, drops_cap;
};

/* for pin.c, hazard.c, recency.c: b is a client's */
_Atomic(u64) *cl_reader(struct bfs *b, u32 i);
int cl_hazard(struct bfs *b, u64 ino, u32 version, const struct bfs_extent *e, int n);
void cl_hazard_end(struct bfs *b, int slot);
void cl_touches(struct bfs *b, const u64 *inodes, int n); /* the last one first; 0: none */

/* A lease in three steps.  inode 0: block[i].error says why there is none. */
#define CL_GROUP 256
struct cl_group {
	int n;
	struct bfc_block *block;
	struct bfs_extent ext[CL_GROUP];
	u32 entry[CL_GROUP];
	struct bfs_snap seen; /* snapshot in which the extents were looked up */
	struct rd r;          /* pinned until cl_check is done */
};
#define CL_PATIENCE_NS 30000000000ull
#define CL_NO_LEASE UINT32_MAX
int cl_find(bfc *c, u64 ns, const void *keys, size_t klen, const u64 *inodes, struct cl_group *g); /* rd_begin is done, unless it fails */
void cl_announce(bfc *c, struct cl_group *g);
/* An extent whose room this process may still be storing into, though it was committed: kept from other uses.  An entry, or CL_NO_LEASE */
u32 cl_keep(bfc *c, const void *addr, u64 size_bytes);
void cl_unkeep(bfc *c, u32 entry);
enum { CL_WINDOW = 64 << 10 }; /* what the kernel maps when a page of it is read for the first time */
/* [at, at + len) of the pool, as it is mapped to read or to write, will be used soon: page tables.  len 0: something will be. */
void cl_ahead(bfc *c, bool write, const void *at, u64 len);
void cl_ahead_stop(bfc *c);
void cl_ring_forked(bfc *c); /* in a child */
void cl_ring_close(bfc *c, bool forked);
int cl_enter(bfc *c);
void *cl_map(int fd, size_t bytes, int prot);
int cl_check(bfc *c, struct cl_group *g); /* and sums; how many were leased.  -ESTALE: some have to be looked up again (theirs is that error) */

#endif
