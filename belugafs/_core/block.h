/* What block.c and reserve.c share: keys and namespaces. */
#ifndef BELUGAFS_BLOCK_H
#define BELUGAFS_BLOCK_H

#include "internal.h"

bool bl_key_ok(size_t klen);
int bl_bad_key(struct bfs *b, size_t klen); /* -EINVAL, with a text */
/* the directory of a block namespace; NULL: *rc says why not */
const struct bfs_obj *bl_ns(struct view *v, u64 ns, int *rc);
#endif
