/* What recency.c, evict.c and reap.c share. */
#ifndef BELUGAFS_EVICT_H
#define BELUGAFS_EVICT_H

#include "internal.h"

/* A stamp in memory: seconds << 32 | order << 2 | bits; 0 = not known.  The order numbers the uses as
 * they were learnt of, so that a second in which a whole pool was written has an order too. */
#define EV_SKIP 1ull      /* was no candidate when it was looked at (open, pinned, ordinary): not looked at again before a use */
#define EV_SOFT 2ull      /* pinned soft: behind everything that isn't pinned */
#define EV_BITS 3ull
#define EV_ABANDONED 4ull /* the first to go */
/* the order in which they go */
static inline u64 ev_key(u64 stamp) { return (stamp & EV_SOFT ? 1ull << 63 : 0) | stamp >> 2; }

struct pins { /* what is pinned from a directory on, as far as known in one run */
	struct { u64 dir; u8 pin; } at[256];
};

struct ev {
	pthread_mutex_t mx;
	u32 nchunks;
	u64 **chunk; /* BFS_STAMPS each */
	u8 *dirty;   /* chunk differs from the tree */
	u32 order;
	u32 term;    /* in which the chunks were loaded */
	u32 store_at;
	_Atomic(u64) pos; /* of the own ring */
	u64 seen[BFS_HOSTS_MAX];
	bool met[BFS_HOSTS_MAX];

	/* evict.c, under wlock */
	bool asked; /* ask_again() was done since the run began: the open ones must not come round for ever */
	u64 asked_ns;
	_Atomic(bool) recheck; /* a pin has changed, or a directory has moved: what the bits say is old */
	struct cand { u64 key; u32 slot; } *cand;
	u32 ncand, at, cand_cap;
	u32 filled; /* order when the candidates were chosen */
	bool abandoned; /* since then there is another file that goes first; under mx */
	struct pins pins;
	u64 *leased; /* objects that processes hold, as the run began: sorted */
	u32 nleased;
	u64 leased_ns; /* when; 0: there was no such process */

	/* reap.c, under wlock */
	u32 reap_at; /* slot that the search goes on with */
	u32 reap_s;  /* before this second a search finds nothing */
	struct { u64 ino; u32 opens; } *held; /* open directories; under mx */
	u32 nheld, held_cap;
	struct young { u64 ino, stamp; } *young; /* directories that were emptied last, in that order: a ring; stamp: of then */
	u32 young_at, nyoung, young_cap;
};

/* recency.c, under mx */
u64 *ev_at(struct bfs *b, struct view *v, u32 slot); /* stamp of a slot; NULL */
void ev_new_term(struct bfs *b, struct view *v, u32 term);
static inline u32 ev_seconds(struct bfs *b) { return (u32)(now_ns(b) / 1000000000ull); }

/* reap.c; ev_evict_some: evict.c */
int ev_reap(struct txn *t, u32 want);        /* directories that eviction has emptied go; how many */
int ev_evict_some(struct txn *t, u32 objects); /* so many go; how many */
int ev_remove(struct txn *t, const struct ht_entry *e); /* a name, for room's sake */
int ev_emptied(struct txn *t, u64 dir);      /* an eviction has taken an entry of dir: notes it when that was the last */
#endif
