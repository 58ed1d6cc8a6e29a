/* Mutants: in builds with BFS_MUTANTS each numbered step of the protocol can be
 * left out, to show that the simulator notices.  Elsewhere BFS_MUT() is 0 and the
 * compiler removes it. */
#ifndef BELUGAFS_MUTANT_H
#define BELUGAFS_MUTANT_H
#ifdef BFS_MUTANTS
extern int bfs_mutant;
#define BFS_MUT(n) (bfs_mutant == (n))
/* where a test puts something between two steps of a reader */
extern void (*bfs_between)(void);
#define BFS_BETWEEN() do { if (bfs_between) bfs_between(); } while (0)
/* Of an announcement and the look that follows it: what processors there are don't show each fence between the two that is
 * missing, where a lock happens to be one.  So a test counts fences. */
enum { BFS_SAYS = 1, BFS_LOOKS = 2 };
extern void (*bfs_step)(int step);
#define BFS_STEP(n) do { if (bfs_step) bfs_step(n); } while (0)
#else
#define BFS_MUT(n) 0
#define BFS_BETWEEN() do {} while (0)
#define BFS_STEP(n) do {} while (0)
#endif
enum bfs_mutant_id {
	BFS_MUT_NONE = 0,
	MUT_TERM_NOT_UNIQUE,        /* rule 1: t = highest + 1 */
	MUT_ROOTS_BEFORE_CLAIM,     /* rule 2 */
	MUT_ROOTS_STALE,            /* rule 2: roots read without invalidate */
	MUT_CLAIM_NO_FENCE,         /* step 2: no pool fence after the claim */
	MUT_NO_PREPUBLISH_CHECK,    /* step 4 */
	MUT_NO_FIRST_PUBLICATION,   /* step 5 / rule 10 */
	MUT_FIRST_UNCONFIRMED,      /* step 6: claims not read after the first publication */
	MUT_CLAIMS_STALE,           /* rule 3: claims read without invalidate */
	MUT_NO_ACK_CHECK,           /* rule 3: no claim check before the acknowledgement */
	MUT_ROOT_NO_FENCE,          /* step 11: no pool fence after the root */
	MUT_ONE_ROOT_LINE,          /* rule 5 */
	MUT_ROOT_CLEARED,           /* rule 6: registration clears the root lines */
	MUT_ACK_ADOPTED,            /* rule 7: adopted state acknowledged before it is confirmed */
	MUT_READER_NO_CLAIMS,       /* rule 8 */
	MUT_NO_GRANT,               /* rule 9: grants not written down */
	MUT_IGNORE_GRANTS,          /* rule 9: other slots' grants not respected */
	MUT_GRANT_UNCONFIRMED,      /* rule 9: no claim check after the grant */
	MUT_STAND_DOWN_NO_FLUSH,    /* step 13 */
	MUT_PAGES_NO_FLUSH,         /* step 10 */
	MUT_PIN_NO_FENCE,           /* step 15 */
	MUT_PIN_NO_VALIDATE,        /* rule 13 */
	MUT_PIN_SCAN_STALE,         /* step 14: pins read without invalidate */
	MUT_NO_PIN_SCAN,            /* step 14 */
	MUT_REUSE_UNCONFIRMED,      /* step 14: freed pages reused before f is confirmed */
	MUT_SUSPECT_PIN_IGNORED,    /* rule 14 */
	MUT_NO_PAGE_INVAL,          /* rule 15 */
	MUT_HEADER_INVAL_ONLY,      /* rule 15 */
	MUT_INVAL_BEFORE_ROOT,      /* rule 15 */
	MUT_HAZARD_NO_CHECK,        /* rule 16 */
	MUT_HAZARD_OLD_SNAPSHOT,    /* rule 16: checked against the snapshot of the look-up */
	MUT_SCAN_BEFORE_APPLY,      /* rule 16 */
	MUT_DATA_NO_INVAL,          /* rule 17: reader doesn't invalidate the extent */
	MUT_DATA_NO_FLUSH,          /* rule 17: seal without flush */
	MUT_SUSPECT_HOLD_IGNORED,   /* rule 18 */
	MUT_NO_LEASE_LOST,          /* rule 19 */
	MUT_DEAD_GRANTS_REUSED,     /* rule 20 */
	MUT_KILLED_NOT_FLUSHED,     /* rule 21 */
	MUT_COPY_NOT_FLUSHED,       /* rule 21, for copies that weren't put in place */
	MUT_REREGISTER_IS_DEATH,    /* rule 22 */
	MUT_HELD_NO_SCAN_NUMBER,    /* rule 23 */
	MUT_SLOT_NO_SPLITTER,       /* rule 24 */
	MUT_QUAR_NOT_WAITED,        /* freed extents reused at once */
	MUT_ROW_BEFORE_ACK,         /* host row used before the create is acknowledged */
	MUT_ROW_ONE_COPY,           /* closed row overwritten in place */
	MUT_NO_PAGE_CHECK,          /* page checksum and tag not checked */
	MUT_NO_SUM_CHECK,           /* block checksum not checked */
	MUT_MAP_BIT_EARLY,          /* map bit cleared when the page is freed */
	MUT_ONE_CLAIM_LINE,         /* claim overwritten in place: while it is torn, the former one is missing */
	MUT_ONE_GRANT_LINE,         /* same for the grant */
	MUT_FIRST_LINE_OLD,         /* the first line of a pair isn't read again when the second is torn */
	MUT_NO_DATA_GRANT,          /* a block is put into regions that aren't in the grant line */
	MUT_DATA_GRANT_IGNORED,     /* a new leader allocates in the regions of another one's grant */
	MUT_READER_NOT_CHECKED,     /* a reader of a process reads the snapshot that it found, without looking again */
	MUT_LEASE_NOT_CHECKED,      /* a lease isn't checked against the newest root */
	MUT_PROCESS_LEASES_IGNORED, /* a scan doesn't read the lease files */
	MUT_PROCESS_READERS_IGNORED,/* nor their snapshots */
	MUT_LEASES_NOT_TAKEN_OVER,  /* a daemon that starts doesn't look for processes that live */
	MUT_STRANGERS_IGNORED,      /* nor for those whose leases are elsewhere */
	MUT_DETACHED_CLEAN,         /* a host that detaches says that nobody reads as this host, though one does */
	MUT_PIN_LINE_OLD,           /* a restarted host stores its first pin over the newest of its predecessor's */
	MUT_LEASE_NO_FENCE,         /* no fence between a lease and its check */
	MUT_RESERVATIONS_NOT_KEPT,  /* a daemon that starts gives back what processes that live have reserved */
	MUT_RESERVATION_NOT_NOTED,  /* a reservation isn't in the lease file before its process hears of it */
	MUT_RESERVATION_OF_DEAD,    /* what a dead process has reserved stays reserved */
	MUT_COMMIT_NOT_REPEATED,    /* a commit that is asked again isn't told from one of a block that was never reserved */
	MUT_READER_NO_FENCE,        /* nor between the announcement of a snapshot and the second look */
	MUT_GET_NOT_CHECKED,        /* a copying read of a process isn't checked against the newest root */
	MUT_LEASES_HIGH_OLD,        /* a process doesn't say how many of its entries are used */
	MUT_LEASED_EVICTED,         /* eviction doesn't look at leases */
	MUT_LEASE_WORDS_BELIEVED,   /* what stands in a lease file isn't checked */
	MUT_DEAD_PROCESS_KEPT,      /* the lock of a dead process isn't tried */
	MUT_CHILD_KEEPS_CONNECTION, /* a child of fork keeps its parent's descriptors */
	MUT_HOST_FILE_ONE_COPY,     /* the root in the host file is stored over in place */
	MUT_SCAN_NO_FENCE,          /* no fence between a root that is told and the look at what is held */
	MUT_LOWEST_NO_FENCE,        /* nor before the look at who reads */
	MUT_GET_NO_FENCE,           /* nor between the entries of a copying read and its check */
	MUT_RELEASED_EARLY,         /* P3: an entry is cleared before its data was read */
	MUT_COUNT
};
#endif
