/* Processes of this host that read the pool in place, as the host's daemon sees them (lease.c). */
#ifndef BELUGAFS_LEASE_H
#define BELUGAFS_LEASE_H

#include "internal.h"

/* Before this host's lines in the pool say less than its predecessor's: host file, leases of processes that
 * live.  -EBUSY: another one is attached as this host, or processes live whose leases are elsewhere. */
int ls_attach(struct bfs *b);
void ls_publish(struct bfs *b); /* after it, and once the registration is known: what processes have to know */
void ls_detach(struct bfs *b, bool clean);
bool ls_live(struct bfs *b);    /* does a process still read or hold something as this host? */

/* None of them takes a lock but the table's own, which is taken last. */
u64 ls_lowest(struct bfs *b, u64 txn); /* lowest snapshot that a process reads, at most txn */
/* every extent that a process holds; addr is a HELD_WORD */
int ls_held(struct bfs *b, int (*f)(void *arg, u64 addr, u32 len), void *arg);
/* Which objects are leased, for a run of evictions: sorted, 0-terminated; NULL: none.  The caller's to free. */
u64 *ls_inodes(struct bfs *b, u32 *n);
bool ls_has(const u64 *inodes, u32 n, u64 ino);
/* touches since the last call */
void ls_touches(struct bfs *b, void (*f)(void *arg, u32 slot, u32 seconds), void *arg);
int ls_reap(struct bfs *b); /* those that have died: how many */

/* Reservations of processes (reserve_client.c), as their lease files have them.  A process has a number, not 0 and
 * not used again, that this daemon gave it. */
bool ls_knows(struct bfs *b, u64 client);
int ls_res_put(struct bfs *b, u64 client, u32 entry, const struct bfs_lres *r); /* r->ino 0: none.  -ESTALE: it is gone */
typedef void ls_res_fn(void *arg, u64 client, u32 entry, const struct bfs_lres *r);
void ls_res_each(struct bfs *b, ls_res_fn *f, void *arg);

#endif
