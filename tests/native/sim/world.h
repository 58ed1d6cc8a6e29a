/* What runs on the simulated memory: hosts with a writer, a reader and a timer each,
 * the same C core under them, and an oracle that knows what was promised to whom. */
#ifndef BELUGAFS_WORLD_H
#define BELUGAFS_WORLD_H

#include "sched.h"
#include "internal.h"

#define W_HOSTS 3
#define W_KEYS 10
#define W_DIRS 3
#define W_NAMES 8
#define W_FILES (W_DIRS * W_NAMES)
#define W_REW 2
#define W_MK 2
#define W_PLACES (W_KEYS + W_FILES + W_REW + W_MK)
#define W_WRITES 1024
#define W_EVENTS 4096
#define W_SIZE_MAX 65536

enum place_kind { PL_KEY, PL_FILE, PL_REW, PL_DIR };

/* One run.  Everything is drawn from the seed, then bent by a mutant's bias. */
struct scen {
	u64 seed;
	int hosts, shape;
	u32 actions; /* of each writer, in each life */
	struct sim_cfg mem;
	u64 suspect_ns, tick_ns;
	bool splitter, evict, corrupt_data, corrupt_meta, batches, publish_close, busy_readers;
	u32 mean_fate; /* steps between blows of fate, 0 = none */
	u32 fates; /* at most */
	u32 w_kill, w_crash, w_pause, w_nap, w_dead, w_fenced, w_restart;
	u32 pause_max;
	u32 keys, names; /* in use: keys, names in a directory */
	u32 lazy_writer, lazy_reader, lazy_timer, lazy_max; /* see struct co */
	/* weights of a writer's actions */
	u32 a_put, a_del, a_file, a_rewrite, a_unlink, a_rename, a_mkdir, a_evict, a_claim, a_refresh, a_scan, a_reclaim, a_batch, a_idle, a_reattach;
	u32 follower_p;   /* of 1000 attaches: doesn't take the lead at once */
	bool duel;        /* blows of fate come as duel() below them says */
	bool holder;      /* readers keep several files open */
	bool linger;      /* a host whose work is done reads on while others work */
	u32 claim_before; /* of 1000 changes: take the lead first */
	u32 fsync_p, killed_p, size_big;
};
struct bias; /* main.c */

enum ev_state { EV_PENDING, EV_ACK, EV_UNKNOWN, EV_FAIL, EV_DURABLE };
enum ev_type { EV_SET, EV_CLEAR, EV_IN, EV_OUT };
struct ev {
	u8 place, type, state, host;
	u16 write;
	u16 next; /* of this place */
	u64 t0, t1;
};
struct wr {
	u8 place, host;
	u32 size;
	u64 t0;
};

struct hostw {
	struct world *w;
	int id;
	struct bfs *b;
	u64 uuid[2], boot;
	bool up, stop, joining;
	bool acting, claiming;
	bool late, wait_for_others; /* see come_back() */
	int joined;   /* what attach said */
	bool marked;  /* somebody declares this registration dead */
	int others;   /* coroutines beside the writer */
	u32 lives;
	u64 sync;     /* whatever was acknowledged before it is seen here */
	u16 flight[32];
	u32 nflight;
	u32 seen_term;
	u64 seen_txn;
	u8 buf[2][W_SIZE_MAX];
	u8 audit[W_SIZE_MAX];
};
struct world {
	struct sim *s;
	struct sched q;
	struct scen sc;
	struct hostw h[W_HOSTS + 1];
	u64 dir[W_DIRS], ns;
	struct wr wr[W_WRITES];
	u32 nwr;
	struct ev ev[W_EVENTS];
	u32 nev;
	u16 head[W_PLACES];
	u32 left;     /* first writings that were abandoned and not unlinked */
	bool damaged; /* media damage was done: EIO is right now */
	u32 fates;
	struct { int phase, one; u32 blows, polls; u64 torn; bool over; } duel;
	bool mixed[W_PLACES];      /* was written over in part: the sum says that it is as written, no more */
	u32 mixes[W_PLACES];       /* how often that was said */
	u8 given[BFS_HOSTS_MAX]; /* slots that the operator gave away */
	u64 ops, acks, reads, hits; /* of this run */
};

void scen_draw(struct scen *sc, u64 seed, int hosts);
/* true: nothing wrong */
bool world_run(const struct scen *sc, bool trace);
const char *world_what(void); /* of the last run: what was wrong */
struct world *world_last(void);
void world_dump(FILE *f, u32 steps);
void world_free(void);

#endif
