/* Mutants: in builds with BFS_MUTANTS each numbered step of the protocol can be
 * left out, to show that the simulator notices.  Elsewhere BFS_MUT() is 0 and the
 * compiler removes it. */
#ifndef BELUGAFS_MUTANT_H
#define BELUGAFS_MUTANT_H
#ifdef BFS_MUTANTS
extern int bfs_mutant;
#define BFS_MUT(n) (bfs_mutant == (n))
#else
#define BFS_MUT(n) 0
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
	MUT_COUNT
};
#endif
