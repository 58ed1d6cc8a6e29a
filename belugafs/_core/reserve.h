/* What reserve.c and reserve_commit.c share: reservations, as files without a name whose pieces are blocks to come. */
#ifndef BELUGAFS_RESERVE_H
#define BELUGAFS_RESERVE_H

#include "file.h"

enum { RS_AT_ONCE = 1024 }; /* pieces of one transaction: what it copies of the tree is shared by many, and it lasts a few ms */

static inline u64 rs_granule(const struct bfs_inode *in, u32 index) { return (u64)index * in->piece; }
u64 rs_at(const struct bfs_inode *in, u32 index);         /* where a piece is; 0: it was committed */
struct bfs_inode *rs_find(struct bfs *b, u64 fh);         /* NULL: -EBADF, with a text */
#endif
