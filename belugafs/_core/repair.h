/* What the files of the repair share.  Who owns what:
 *   repair.c        entry point, choice of the state, order of what is written, registers and rows
 *   repair_read.c   everything that verifies in the damaged tree: objects, entries, records
 *   repair_files.c  which objects stay: their fields, their mapping, their content
 *   repair_names.c  which names stay; directories; lost+found
 *   repair_records.c   what follows from them: records, space, counters, free slots
 *   repair_write.c  pages of the repaired tree
 * Of fsck it uses reading, findings and memory (fsck.h), not what the checks have concluded. */
#ifndef BELUGAFS_REPAIR_H
#define BELUGAFS_REPAIR_H

#include "fsck.h"

struct rslot { /* an object, as it is going to be written */
	struct bfs_obj o;
	const char *drop; /* why it can't stay, NULL: it stays */
	u64 nent;
	u64 mapped;       /* granules of its pieces that stay */
	u32 links, subdirs, nrec;
	u32 first;        /* 1 + index of the entry that is its first link, 0: none */
	u32 free_next;    /* next in the list of free slots, while that is read */
	u8 used, read, free_seen, said;
	u8 doubt;         /* stays only if its content has the checksums that it was sealed with */
	u8 color;
};
struct rent { /* an entry of the hash table */
	u64 dir, cookie, ino, hash, prefix, name; /* name: its offset in the pool */
	u32 bucket;       /* it was found in */
	u8 kind, owner, type, len;
	u8 listed, linked, keep, made, moved;
	u8 text[40];      /* of an entry that the repair makes (made) */
};
struct piece { /* of a file, in the data space */
	u64 addr, fgran;
	u32 len, slot;
	u8 ov;
};

struct rp {
	struct ck *k;
	struct bfs_snap base; /* the state that is repaired */
	struct bfs_root old, root;
	bool content;         /* check all data */
	bool map_ok, log_ok;
	u64 *seen;            /* pages of the base that verify: not written over */
	u64 *mapbits, *logged;
	u64 *kept;            /* pages of the repaired tree */
	u32 nslots;
	struct rslot *s;
	VEC(struct rent) ent;
	VEC(struct bfs_rec) rec;   /* as found, in order */
	VEC(struct bfs_ptr) leaf;  /* pages of records as found */
	VEC(struct piece) piece;   /* of what stays, in order of address */
	VEC(struct bfs_rec) want;  /* records of the repaired tree */
	u32 max_gen;
	u64 dropped, put_back, mended;
	u32 lost_found;       /* slot of that directory, 0: not there yet, that of the root directory: there can't be one */
	/* writing */
	u32 term;
	u64 txn;
	u32 cursor, pass;
	u64 written;          /* pages */
	u32 nkept;            /* pages of the repaired tree */
	VEC(struct run) run;  /* granules that aren't free, in order */
	size_t run_at;
	u32 *order, norder;   /* entries that stay, by bucket */
	bool lost_found_made;
	VEC(struct bfs_row) row; /* of files in their first writing that were closed or synced */
	bool rows_read;
};

static inline bool rp_after(const struct rp *r, u32 term, u64 txn) { return tag_cmp(term, txn, r->base.root.term, r->base.root.txn) > 0; }
static inline struct rslot *rp_slot(struct rp *r, u32 slot) { return slot < r->nslots ? &r->s[slot] : NULL; }
static inline struct rslot *rp_ino(struct rp *r, u64 ino)
{
	struct rslot *s = rp_slot(r, INO_SLOT(ino));
	return s && s->used && !s->drop && s->o.gen == INO_GEN(ino) ? s : NULL;
}
static inline u32 rp_slot_of(const struct rp *r, const struct rslot *s) { return (u32)(s - r->s); }

/* repair.c --------------------------------------------------------------------------------- */
/* What the row says, of its two copies, that of the other one that isn't torn counts; NULL: nothing.  torn: bit per copy. */
const struct bfs_row *rp_row(struct ck *k, u32 slot, u32 n, struct bfs_row c[2], u64 *at, u32 *torn);

/* repair_read.c -------------------------------------------------------------------------- */
/* A copy of the page that p names, if it is what p says and verifies. */
bool rp_page(struct rp *r, struct bfs_ptr p, int kind, void *buf);
int rp_read(struct rp *r);
bool rp_room(struct rp *r, u32 slots); /* r->s[slots - 1] can be written; moves r->s */
void rp_free(struct rp *r);
size_t rp_find(struct rp *r, struct bfs_key k); /* index of the first record >= k */
const char *rp_name(struct rp *r, const struct rent *e, char *buf, size_t size); /* path, for messages */

/* repair_files.c -------------------------------------------------------------------------- */
void rp_files(struct rp *r);
/* the whole content, holes too, has the sums that it was sealed with; false: it hasn't, or has none */
bool rp_verifies(struct rp *r, struct rslot *s);
/* in its first writing, but closed or synced: the next attach seals it by its row */
bool rp_promised(struct rp *r, const struct rslot *s);
void rp_drop(struct rp *r, struct rslot *s, const char *why);
void rp_sift(struct rp *r); /* forgets the pieces of what has been dropped since */

/* repair_names.c -------------------------------------------------------------------------- */
void rp_names(struct rp *r);

/* repair_records.c ------------------------------------------------------------------------ */
void rp_records(struct rp *r); /* records, counters, free slots */

/* repair_write.c -------------------------------------------------------------------------- */
/* All pages but those that stay as they are, the root page last; a state that no root line names yet. */
int rp_write(struct rp *r, struct bfs_ptr *root);

#endif
