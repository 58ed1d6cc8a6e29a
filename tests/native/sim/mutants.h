/* The mutants, what bends the runs towards each, and which can't be seen here.
 *
 * A bias changes how often things happen, never what is right: every run of every
 * bias passes when nothing is left out (make sim runs them too). */

static void all_reading(struct scen *c) /* small pool, quick reuse, readers that fall asleep */
{
	c->evict = false, c->corrupt_data = c->corrupt_meta = false;
	c->shape = 1;
	c->busy_readers = true;
	c->actions = 24;
	c->a_put = 20, c->a_del = 20, c->a_file = 3, c->a_unlink = 3, c->a_rewrite = 0, c->a_rename = 1, c->a_mkdir = 0, c->a_batch = 0, c->a_claim = 1, c->a_scan = 3, c->a_reclaim = 5, c->a_refresh = 5;
	c->a_idle = 2;
	c->mem.p_event = 400, c->mem.no_prefetch = false; /* what changed is seen by those who read on */
	c->tick_ns = 8000;
	c->w_kill = c->w_crash = c->w_dead = 0;
}
static void sleepy_threads(struct scen *c) /* threads of a host lose the CPU in the middle of a read */
{
	all_reading(c);
	c->hosts = 2;
	c->mean_fate = 0;
	c->keys = 2;
	c->lazy_reader = 40, c->lazy_timer = 15, c->lazy_max = 3000;
	c->mem.p_switch = 300;
	c->claim_before = 50;
	c->size_big = 100;
}
static void sleepy_scan(struct scen *c) /* the scan is slow, and others of its host go on */
{
	sleepy_threads(c);
	c->actions = 24;
	c->keys = 2, c->a_file = c->a_unlink = c->a_rename = 0, c->size_big = 0;
	c->lazy_reader = 60, c->lazy_timer = 150, c->lazy_max = 2500;
	c->a_refresh = 40, c->a_scan = 0, c->a_idle = 0, c->tick_ns = 4000;
}
static void declared_dead(struct scen *c)
{
	all_reading(c);
	c->mean_fate = 300, c->fates = 60;
	c->w_pause = 10, c->w_nap = 5, c->w_dead = 20, c->pause_max = 6000, c->w_fenced = 0;
}
static void many_held(struct scen *c) /* more than a line of them, here and there, coming and going */
{
	all_reading(c);
	c->hosts = 2;
	c->holder = c->linger = true;
	c->names = W_NAMES, c->keys = W_KEYS;
	c->actions = 90, c->shape = 0, c->suspect_ns = 1000000;
	c->a_put = 30, c->a_del = 6, c->a_file = 40, c->a_unlink = 14, c->a_rename = 8, c->killed_p = 0, c->fsync_p = 0, c->a_claim = 0, c->claim_before = 0;
	c->size_big = 0;
	c->mean_fate = 0;
	c->lazy_reader = 5, c->lazy_timer = 150, c->lazy_max = 800, c->mem.p_switch = 400;
	c->a_scan = 10;
}
static void torn_rows(struct scen *c)
{
	c->evict = false, c->corrupt_data = c->corrupt_meta = false;
	c->a_put = c->a_del = c->a_rewrite = c->a_unlink = c->a_rename = c->a_mkdir = c->a_batch = c->a_evict = 0, c->a_claim = 1, c->a_file = 20;
	c->fsync_p = 1000, c->killed_p = 0;
	c->mean_fate = 400, c->fates = 40, c->w_crash = 30, c->w_kill = 0, c->w_pause = 0, c->w_nap = 0, c->w_dead = 0;
	c->mem.p_torn = 800, c->mem.p_event = 400;
	c->actions = 20;
}
static void claims_only(struct scen *c) /* two hosts that take the lead from each other, and fall over */
{
	c->hosts = 2;
	c->evict = c->corrupt_data = c->corrupt_meta = c->splitter = false;
	c->a_put = c->a_del = c->a_file = c->a_rewrite = c->a_unlink = c->a_rename = c->a_batch = c->a_evict = c->a_scan = c->a_reclaim = c->a_refresh = c->a_idle = 0;
	c->a_mkdir = 10, c->a_claim = 10;
	c->claim_before = 700;
	c->actions = 60;
	c->suspect_ns = 5000;
	c->mem.p_torn = 800, c->mem.p_event = 400, c->mem.no_prefetch = true;
	c->mem.p_switch = 30;
	c->mean_fate = 120, c->fates = 150;
	c->w_kill = 3, c->w_crash = 10, c->w_pause = 20, c->w_nap = 0, c->w_dead = 0, c->pause_max = 150;
	c->a_reattach = 150;
	c->tick_ns = 40000;
}
static void duels(struct scen *c) /* a leader restarts while another host is in the middle of taking over */
{
	claims_only(c);
	c->duel = true;
	c->follower_p = 200;
	c->mean_fate = 150, c->fates = 300;
}
static void bad_media(struct scen *c)
{
	c->corrupt_data = c->corrupt_meta = true;
}

static void (*const biases[])(struct scen *) = {all_reading, sleepy_threads, sleepy_scan, declared_dead, many_held, torn_rows, claims_only, duels, bad_media};

static const struct mutant mutants[] = {
	{MUT_TERM_NOT_UNIQUE, "term-not-unique", NULL, NULL},
	{MUT_ROOTS_BEFORE_CLAIM, "roots-before-claim", NULL, NULL},
	{MUT_ROOTS_STALE, "roots-stale", NULL, NULL},
	{MUT_CLAIM_NO_FENCE, "claim-no-fence", NULL, NULL},
	{MUT_NO_PREPUBLISH_CHECK, "no-prepublish-check", NULL, "seen by t_races, which stops the two claims where they have to be stopped; without the second look at the first line, too"},
	{MUT_NO_FIRST_PUBLICATION, "no-first-publication", NULL, NULL},
	{MUT_FIRST_UNCONFIRMED, "first-unconfirmed", NULL, NULL},
	{MUT_CLAIMS_STALE, "claims-stale", NULL, NULL},
	{MUT_NO_ACK_CHECK, "no-ack-check", NULL, NULL},
	{MUT_ROOT_NO_FENCE, "root-no-fence", NULL, NULL},
	{MUT_ONE_ROOT_LINE, "one-root-line", NULL, NULL},
	{MUT_ROOT_CLEARED, "root-cleared", NULL, NULL},
	{MUT_ACK_ADOPTED, "ack-adopted", NULL, NULL},
	{MUT_READER_NO_CLAIMS, "reader-no-claims", NULL, NULL},
	{MUT_NO_GRANT, "no-grant", NULL, NULL},
	{MUT_IGNORE_GRANTS, "ignore-grants", NULL, NULL},
	{MUT_GRANT_UNCONFIRMED, "grant-unconfirmed", NULL, NULL},
	{MUT_STAND_DOWN_NO_FLUSH, "stand-down-no-flush", NULL, NULL},
	{MUT_PAGES_NO_FLUSH, "pages-no-flush", NULL, NULL},
	{MUT_PIN_NO_FENCE, "pin-no-fence", NULL, "each fresh read that follows fences as well: seen in 1 of 10,000 to 40,000 runs of former schedules, not in 60,000 of this one"},
	{MUT_PIN_NO_VALIDATE, "pin-no-validate", NULL, NULL},
	{MUT_PIN_SCAN_STALE, "pin-scan-stale", NULL, NULL},
	{MUT_NO_PIN_SCAN, "no-pin-scan", NULL, NULL},
	{MUT_REUSE_UNCONFIRMED, "reuse-unconfirmed", NULL, NULL},
	{MUT_SUSPECT_PIN_IGNORED, "suspect-pin-ignored", NULL, NULL},
	{MUT_NO_PAGE_INVAL, "no-page-inval", NULL, NULL},
	{MUT_HEADER_INVAL_ONLY, "header-inval-only", NULL, NULL},
	{MUT_INVAL_BEFORE_ROOT, "inval-before-root", NULL, NULL},
	{MUT_HAZARD_NO_CHECK, "hazard-no-check", sleepy_threads, NULL},
	{MUT_HAZARD_OLD_SNAPSHOT, "hazard-old-snapshot", sleepy_threads, NULL},
	{MUT_SCAN_BEFORE_APPLY, "scan-before-apply", NULL, "seen by t_races, which opens a file at each step of the scan"},
	{MUT_DATA_NO_INVAL, "data-no-inval", NULL, NULL},
	{MUT_DATA_NO_FLUSH, "data-no-flush", NULL, NULL},
	{MUT_SUSPECT_HOLD_IGNORED, "suspect-hold-ignored", NULL, NULL},
	{MUT_NO_LEASE_LOST, "no-lease-lost", declared_dead, NULL},
	{MUT_DEAD_GRANTS_REUSED, "dead-grants-reused", NULL, NULL},
	{MUT_KILLED_NOT_FLUSHED, "killed-not-flushed", NULL, NULL},
	{MUT_COPY_NOT_FLUSHED, "copy-not-flushed", NULL, "seen by t_races, which kills a writer at each of its accesses"},
	{MUT_REREGISTER_IS_DEATH, "reregister-is-death", NULL, "holds outlive a daemon where other processes have them: t_lease, leases-not-taken-over"},
	{MUT_HELD_NO_SCAN_NUMBER, "held-no-scan-number", NULL, "seen by t_races, which changes the list at each step of its reading"},
	{MUT_SLOT_NO_SPLITTER, "slot-no-splitter", NULL, NULL},
	{MUT_QUAR_NOT_WAITED, "quar-not-waited", NULL, NULL},
	{MUT_ROW_BEFORE_ACK, "row-before-ack", NULL, NULL},
	{MUT_ROW_ONE_COPY, "row-one-copy", torn_rows, NULL},
	{MUT_NO_PAGE_CHECK, "no-page-check", bad_media, NULL},
	{MUT_NO_SUM_CHECK, "no-sum-check", NULL, NULL},
	{MUT_MAP_BIT_EARLY, "map-bit-early", NULL, NULL},
	{MUT_ONE_CLAIM_LINE, "one-claim-line", NULL, "seen by t_races, which restarts a leader at each step of the other one's claim"},
	{MUT_ONE_GRANT_LINE, "one-grant-line", NULL, NULL},
	{MUT_FIRST_LINE_OLD, "first-line-old", NULL, "seen by t_races, in which the second line of a pair is torn each time"},
	{MUT_NO_DATA_GRANT, "no-data-grant", NULL, NULL},
	{MUT_DATA_GRANT_IGNORED, "data-grant-ignored", NULL, NULL},
};
