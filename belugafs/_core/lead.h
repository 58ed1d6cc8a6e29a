/* What lead.c, line.c, pin.c, txn.c and host.c share among themselves. */
#ifndef BELUGAFS_LEAD_H
#define BELUGAFS_LEAD_H

#include "internal.h"

static inline struct bfs_snap snap_of(const struct bfs_line *l)
{
	return (struct bfs_snap){(u32)l->w[0], l->w[1], {(u32)l->w[2], (u32)l->w[3], l->w[4]}};
}

static inline int snap_cmp(const struct bfs_snap *p, const struct bfs_snap *q) { return tag_cmp(p->term, p->txn, q->term, q->txn); }

/* line.c */
extern const u32 ld_claim_at[2];
int ld_newer_of(struct bfs *b, u32 slot, const u32 at[2], u32 order, struct bfs_line *out, int *which, bool stale);
int ld_line_retry(struct bfs *b, u32 slot, u32 index, struct bfs_line *l, bool stale);
/* both lines of a pair; ok: 1 valid, 0 absent, -1 damaged, each */
void ld_pair(struct bfs *b, u32 slot, u32 at0, u32 at1, struct bfs_line l[2], int ok[2], bool stale);
int ld_read_roots(struct bfs *b, struct bfs_snap *best, bool stale);
/* The highest of those that were published before: as fresh as ld_roots, with one fence for all lines where memory is coherent: a
 * line that is stored over meanwhile holds a later one, or is torn, and then read again. */
int ld_roots_now(struct bfs *b, struct bfs_snap *best);
int ld_get_grant(struct bfs *b, u32 slot, struct bfs_line *l, int *which);
void ld_put_grant(struct bfs *b, u64 chunks);
u64 ld_claims(struct bfs *b, bool own);
/* pin.c */
void ld_set_snap(struct bfs *b, struct bfs_snap s);
struct bfs_snap ld_lowest_reader(struct bfs *b, struct bfs_snap s);
void ld_put_pin(struct bfs *b, struct bfs_snap lo, struct bfs_snap hi);
bool ld_fenced(struct bfs *b, const struct bfs_root *root, u32 slot, int least);
const struct bfs_root *ld_conf_root(struct bfs *b);
int ld_refresh(struct bfs *b);
/* lead.c */
void ld_publish(struct bfs *b, const struct bfs_snap *s);
void ld_stand_down(struct bfs *b);
int ld_check_features(struct bfs *b, struct bfs_ptr rootp);
int ld_claim(struct bfs *b);

#endif
