/* The request ring: how a process asks the daemon for a change of the pool without a system call.
 * docs/ring.md says what is where and why it is right; belugafs/_ring_format.py is the twin of the layout.
 *
 *   ring.c         layout, lines, opening
 *   ring_client.c  the asking side: submit, take, wait; on any memory
 *   ring_server.c  the answering side of one ring: serve; on any memory
 *   ring_ops.c     the table of operations on the core
 *   ring_local_client.c  among processes of one host: rings as memfds, one daemon after the other
 *   ring_local_server.c  service threads, bells, the death of clients
 *   ring_measure.c       how fast it is
 *
 * One side never writes a line of the other's, and no atomic read-modify-write is done on what both see: the
 * verbs of mem.h are all that it needs of the memory, which may be coherent, incoherent or simulated. */
#ifndef BELUGAFS_RING_H
#define BELUGAFS_RING_H

#include <pthread.h>
#include <sys/types.h>
#include "mem.h"

/* ---- layout ------------------------------------------------------------------------------ */
#define RG_MAGIC "BELURING"
#define RG_VERSION 1u
#define RG_SLOTS_MAX 256u
#define RG_SMALL 1024u           /* room for payload that each slot has of its own, in either direction */
#define RG_CHUNK 4096u           /* unit of the two areas for larger payload */
#define RG_AREA_MAX (64u << 20)  /* of either area */
#define RG_LINES_OFF 4096u       /* first request line; the lines before it are: */
enum {
	RG_L_HEAD = 0,   /* client, once */
	RG_L_CLIENT = 2, /* client: rg_state */
	RG_L_SERVER = 4, /* server: rg_mark */
	RG_L_SLEEP = 6,  /* server: w0 1 = ring the bell, it polls no more */
};
enum { RG_OPEN = 1, RG_CLOSED = 2 }; /* rg_state.state, rg_mark.state */

struct rg_head { /* writer: client, before the server has the ring */
	char magic[8];
	u32 version;
	u32 slots;     /* power of two, 1 .. RG_SLOTS_MAX; as many request lines */
	u64 nonce;     /* random: seed of every checksum in this ring, so that no other ring's line is taken for one of its */
	u64 client;    /* random: who asks; the same in the ring that follows this one */
	u64 start;     /* position of the first request */
	u32 req_bytes; /* area for requests' payload above RG_SMALL, multiple of RG_CHUNK */
	u32 rep_bytes; /* same for replies */
	u64 size_bytes;
	u64 csum;
};
struct rg_state { /* writer: client.  No checksum: its words stand for themselves */
	u64 state;
	u64 asleep[RG_SLOTS_MAX / 64]; /* bit = slot whose waiter sleeps and has to be woken */
	u64 pad[3];
};
struct rg_mark { /* writer: server; when it begins and when it ends */
	u64 state;
	u64 epoch;   /* random, of this server */
	u64 pid;
	u64 pad[4];
	u64 csum;
};
struct rg_req { /* writer: client; at line position % slots */
	u64 pos;     /* counts on, modulo 2^64 */
	u16 op;
	u16 flags;   /* RG_AGAIN */
	u32 slot;    /* of the reply */
	u64 number;  /* of the request: the same when it is asked again */
	u32 off, len;         /* payload, from the start of the requests' payload */
	u32 rep_off, rep_cap; /* room for the reply's, from the start of the replies' payload */
	u64 arg;
	u64 psum;    /* XXH3_64 of the payload, seed nonce ^ number; 0: len is 0 */
	u64 csum;    /* XXH3_64 of the 56 bytes before it, seed nonce ^ number of the line in the ring; never 0 */
};
struct rg_rep { /* writer: server; at line slot */
	u64 pos;     /* of the request that it answers */
	int32_t status;  /* 0 or negative errno */
	u32 text_len;/* of the message, behind the payload */
	u64 result;
	u64 number;
	u32 len;     /* payload */
	u32 pad0;
	u64 pad1;
	u64 psum;    /* XXH3_64 of the payload, seed nonce ^ pos, xor that of the text, seed ~nonce ^ pos; of nothing: 0 */
	u64 csum;
};
static_assert(sizeof(struct rg_head) == 64 && sizeof(struct rg_state) == 64 && sizeof(struct rg_mark) == 64, "lines");
static_assert(sizeof(struct rg_req) == 64 && sizeof(struct rg_rep) == 64, "lines");
enum { RG_AGAIN = 1 }; /* asked before, of this server or another one: it may have been done */

struct rg_shape { u64 rep_line, req_pay, rep_pay, req_len, rep_len, size; }; /* offsets, and lengths of the payload ranges */
struct rg_shape rg_shape(u32 slots, u32 req_bytes, u32 rep_bytes);
u64 rg_sum(const void *p, size_t n, u64 seed);         /* never 0 */
void rg_seal(void *line, u64 nonce, u64 index);        /* the last word of a line */
bool rg_valid(const void *line, u64 nonce, u64 index);
/* Checks the head of what is mapped, and copies it. */
int rg_read_head(struct bfs_mem *m, struct rg_head *h, struct rg_shape *s);

/* One line: words in any order, the first one last; a copy of what is there.  Torn or late: rg_valid says so. */
void rg_put(struct bfs_mem *m, void *line, const void *src);
void rg_get(struct bfs_mem *m, void *dst, const void *line);
static inline u64 rg_peek(struct bfs_mem *m, const void *line) /* its first word, fresh */
{
	u64 w;
	if (m->coherent) return __atomic_load_n((const u64 *)line, __ATOMIC_ACQUIRE);
	mm_load(m, &w, line, sizeof w);
	return w;
}
/* What was put before is seen by the other side before what is read after it. */
static inline void rg_fence(struct bfs_mem *m) { mm_fence(m); }
static inline void rg_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}
void rg_lock(struct bfs_mem *m, pthread_mutex_t *x);
void rg_unlock(struct bfs_mem *m, pthread_mutex_t *x);
int rg_error(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* sets bfs_errmsg() */

/* ---- operations ------------------------------------------------------------------------------ */
enum {
	RG_OP_PING = 1,      /* payload comes back, result = arg */
	RG_OP_NS_CREATE = 2, /* payload: name; result: the namespace */
	/* arg: namespace; payload: rg_keys and what docs/ring.md says; reply: i32 for each key, 0 or negative errno;
	 * result: how many were 0 */
	RG_OP_PUT = 3,
	RG_OP_DELETE = 4,
	RG_OP_PIN = 5,       /* rg_keys.how: 1 hard, 2 soft */
	RG_OP_UNPIN = 6,
	/* of a client that has a lease file.  Payload: rg_room; arg: namespace; reply: u64 for each block, where it is in the pool; result: the
	 * reservation, which is the request's number */
	RG_OP_RESERVE = 7,
	RG_OP_COMMIT = 8,    /* arg: reservation; payload: rg_keys, rg_fill for each, their sums, the keys; reply: as of the others on keys */
	RG_OP_RELEASE = 9,   /* arg: reservation; what wasn't committed is free again */
};
struct rg_room { u64 size_bytes; u32 count, pad; };
struct rg_fill { u32 index, nsums; u64 filled_bytes; }; /* nsums 0: the server makes them */
static_assert(sizeof(struct rg_room) == 16 && sizeof(struct rg_fill) == 16, "reservations");
struct rg_keys { u32 count, key_bytes, how, pad; };
enum { RG_ZEROED = 1 }; /* how of RG_OP_COMMIT: what is behind the filled bytes of each block, in their last granule, is zero */
static_assert(sizeof(struct rg_keys) == 16, "keys");

struct rg_job { /* a request while it is served; nothing in it changes meanwhile, whatever the client writes */
	u16 op;
	bool again;
	u64 client, number, arg;
	u64 owner; /* whose ring it is, as far as whoever handed it over said; 0: nobody's */
	const u8 *in;
	u32 in_len;
	u8 *out;
	u32 out_cap, out_len;
	u64 result;
	bool slow; /* it took long enough for others to be told of their replies before */
};
typedef int rg_exec(void *ctx, struct rg_job *j); /* 0 or negative errno, with bfs_errmsg() */
struct bfs;
int rg_core_exec(void *bfs_ctx, struct rg_job *j); /* ctx: struct bfs *, NULL: only RG_OP_PING */

/* ---- the answering side of one ring ------------------------------------------------------------ */
struct rg_buffers { u8 *in, *out; u64 in_cap, out_cap; }; /* of the thread that serves */
struct rg_port {
	struct bfs_mem *m;
	struct rg_head head;
	struct rg_shape at;
	u64 next;      /* position that it waits for */
	u64 owner;     /* rg_job.owner */
	u64 late_ns;   /* since when a payload isn't what its line says */
	u64 served, refused, bad_lines;
	u64 late;      /* looks at payload that wasn't there though its line was: the fences are there so that it is 0 */
	u32 woken[RG_SLOTS_MAX]; /* slots answered since the client's line was last looked at */
	u32 nwoken;
	struct rg_mark mark;
};
int rg_port_open(struct rg_port *p, struct bfs_mem *m, u64 epoch, u64 pid);
void rg_port_close(struct rg_port *p); /* says CLOSED */
/* Up to max requests that are there; how many.  wake(ctx, slot) is called for those who sleep. */
typedef void rg_wake(void *ctx, u32 slot);
int rg_port_serve(struct rg_port *p, struct rg_buffers *b, u32 max, rg_exec *exec, void *ctx, rg_wake *wake, void *wake_ctx);
/* Asks for the bell, and serves once more: only where that found nothing may it stop polling.  Then, or not, rg_port_awake. */
int rg_port_doze(struct rg_port *p, struct rg_buffers *b, u32 max, rg_exec *exec, void *ctx, rg_wake *wake, void *wake_ctx);
void rg_port_awake(struct rg_port *p);
bool rg_port_left(struct rg_port *p); /* the client has closed the ring */
int rg_buffers_fit(struct bfs_mem *m, struct rg_buffers *b, const struct rg_port *p);
void rg_buffers_free(struct bfs_mem *m, struct rg_buffers *b);

/* ---- the asking side --------------------------------------------------------------------------------- */
#define RG_TEXT 256u
struct rg_call {
	/* what is asked; number 0: a new one */
	u16 op, flags;
	u32 len, reply_cap;
	u64 arg, number;
	const void *payload;
	void *reply;
	/* what came */
	int32_t status;
	u32 reply_len;
	u64 result;
	char text[RG_TEXT];
	/* where it is */
	u32 slot;
	u64 pos;
};
/* How a client sleeps; NULL in a field: it can't, and polls with pauses. */
struct rg_waker {
	/* unless the low half of the reply line's first word isn't `seen` any more; false: the time is over */
	bool (*sleep)(void *ctx, u32 slot, u32 seen, u64 ns);
	void (*bell)(void *ctx);  /* the server is to look at this ring */
	bool (*gone)(void *ctx);  /* the server is dead */
	void *ctx;
};
struct rg_slot { u64 pos, number; u32 off, len, rep_off, rep_cap; u8 state; };
struct rg_chan { /* a client's end of one ring */
	struct bfs_mem *m;
	struct rg_head head;
	struct rg_shape at;
	struct rg_waker w;
	pthread_mutex_t lock;
	u64 next, number;
	struct rg_slot slot[RG_SLOTS_MAX];
	u16 free[RG_SLOTS_MAX];
	u32 nfree;
	u8 *req_map, *rep_map; /* a byte per RG_CHUNK in use */
	u64 asleep[RG_SLOTS_MAX / 64]; /* as in the client's line */
	u64 spin_ns, spin_most_ns;
	u64 calls, sleeps, bells, missed; /* missed: replies found by looking again after a sleep, not by being woken */
	u64 late; /* as in rg_port */
};
enum { RG_S_FREE = 0, RG_S_BUSY = 1, RG_S_LEFT = 2 }; /* LEFT: nobody waits for it any more */
/* Makes a ring in m, of rg_shape(...).size, over whatever is there; before the server has it. */
int rg_chan_init(struct rg_chan *c, struct bfs_mem *m, const struct rg_head *want, const struct rg_waker *w, u64 spin_ns);
void rg_chan_close(struct rg_chan *c); /* says CLOSED, and frees what it has beside m */
/* 0; -EAGAIN: no slot or no room now; -EMSGSIZE: never.  Not seen by a sleeping server until rg_kick. */
int rg_submit(struct rg_chan *c, struct rg_call *k);
void rg_kick(struct rg_chan *c);
int rg_take(struct rg_chan *c, struct rg_call *k);  /* 1: it is there (status has the outcome); 0: not yet; -EBADMSG */
void rg_leave(struct rg_chan *c, struct rg_call *k);/* its slot is free once the reply comes */
bool rg_find(struct rg_chan *c, struct rg_call *k); /* by number: one that was left; it is waited for again */
/* 1, 0: deadline (0 = none) is over, -ENOTCONN: the server is gone and this one has no answer; -EBADMSG */
int rg_wait(struct rg_chan *c, struct rg_call *k, u64 deadline_ns);
bool rg_gone(struct rg_chan *c);

/* ---- among processes of one host ---------------------------------------------------------------------- */
struct rg_client; /* a process's: one ring after the other, as daemons come and go.  Any thread may call. */
struct rg_client_opts { u32 slots, req_bytes, rep_bytes; i64 spin_ns; u64 start; }; /* 0: defaults; spin_ns < 0: never */
int rg_client_new(const struct rg_client_opts *o, struct rg_client **out);
/* Descriptors of the present ring for rg_server_add, still the client's; its generation.  -EXDEV: made before a fork */
int rg_client_fds(struct rg_client *c, int *ring, int *bell, u64 *generation);
/* A descriptor that is readable or hung up once the daemon is dead (pidfd, socket); -1: none.  The client takes a copy. */
int rg_client_daemon(struct rg_client *c, int alive_fd);
/* A new ring for the next daemon, unless `generation` isn't the present one any more. */
int rg_client_renew(struct rg_client *c, u64 generation);
/* Asks and waits.  0: there is an outcome (k->status); -ETIMEDOUT, -ENOTCONN: unknown; asked again with k->number it isn't done
 * twice (docs/ring.md); -EMSGSIZE, -EXDEV, -EBADMSG.  timeout_ns 0: for ever. */
int rg_call(struct rg_client *c, struct rg_call *k, u64 timeout_ns);
struct rg_client_stats { u64 calls, sleeps, bells, missed, generation, spin_ns; };
void rg_client_stats(struct rg_client *c, struct rg_client_stats *s);
struct rg_chan *rg_client_chan(struct rg_client *c); /* the present ring, for callers that submit by themselves */
void rg_client_forked(struct rg_client *c); /* in a child, at once: it keeps nothing open that tells of the parent's life */
void rg_client_free(struct rg_client *c);
/* Pings of len bytes: one at a time (ns: what each took), or in_flight of them at a time (ns may be NULL). */
int rg_measure(struct rg_client *c, u32 calls, u32 in_flight, u32 len, u32 *ns, u64 *total_ns);

struct rg_server;
struct rg_server_opts {
	u32 threads;   /* 0 = 1 */
	i64 spin_ns;   /* most that an idle thread polls before it sleeps; 0: default, < 0: not at all */
	rg_exec *exec; /* NULL: rg_core_exec */
	void *ctx;     /* its, struct bfs * */
	void (*gone)(void *gone_ctx, u64 ring, bool died); /* a ring is no longer served, but for those of a server that stops; from a service thread.  May be NULL */
	void *gone_ctx;
};
int rg_server_start(const struct rg_server_opts *o, struct rg_server **out);
/* Serves a client's ring from now on; takes copies of the descriptors.  alive_fd as above, of the client; -1: none.
 * -EPERM: the file could be cut, the bell is none; -EUSERS: there are 4096; -EUCLEAN, -EPROTONOSUPPORT: no ring of this version */
int rg_server_add(struct rg_server *s, int ring_fd, int bell_fd, int alive_fd, u64 *ring);
int rg_server_add_for(struct rg_server *s, int ring_fd, int bell_fd, int alive_fd, u64 owner, u64 *ring); /* owner: bfs_client_of */
int rg_server_remove(struct rg_server *s, u64 ring); /* -ENOENT */
struct rg_server_stats { u64 requests, refused, bad_lines, wakes, sleeps, spins, bells, rings, rings_ever, clients_died; };
void rg_server_stats(struct rg_server *s, struct rg_server_stats *out);
void rg_server_stop(struct rg_server *s); /* requests under way are finished; clients are told */

/* ---- steps that can be left out, to show that their tests notice (BFS_MUTANTS) ------------------------------ */
enum rg_mutant {
	RG_MUT_FIRST = 1000,
	RG_MUT_REQ_PAY_NO_FLUSH = RG_MUT_FIRST, /* the payload isn't flushed before its line */
	RG_MUT_REQ_PAY_NO_FENCE,   /* flushed, and not fenced */
	RG_MUT_REQ_PAY_NO_INVAL,   /* the server reads what its cache has */
	RG_MUT_REQ_NO_CSUM,        /* torn request lines are taken */
	RG_MUT_REQ_NO_POS,         /* so are those of the lap before */
	RG_MUT_REQ_NO_PSUM,        /* payload isn't compared with its sum */
	RG_MUT_REQ_PEEK_STALE,     /* the server polls its own cache */
	RG_MUT_REP_PAY_NO_FLUSH,
	RG_MUT_REP_PAY_NO_FENCE,
	RG_MUT_REP_PAY_NO_INVAL,
	RG_MUT_REP_NO_CSUM,
	RG_MUT_REP_NO_POS,
	RG_MUT_REP_NO_PSUM,
	RG_MUT_REP_PEEK_STALE,
	RG_MUT_CLIENT_NAP_NO_FENCE, /* client: flag, no fence, look, sleep */
	RG_MUT_CLIENT_NAP_NO_LOOK,  /* flag, sleep */
	RG_MUT_SERVER_NAP_NO_FENCE,
	RG_MUT_SERVER_NAP_NO_LOOK,
	RG_MUT_WAKE_NO_FENCE,       /* server: reply, no fence, is somebody asleep? */
	RG_MUT_BELL_NO_FENCE,       /* client: request, no fence, is it asleep? */
	RG_MUT_NO_NONCE,            /* lines of the ring that was here before are taken */
	RG_MUT_SLOT_EARLY,          /* a slot that was left is used again before its reply came */
	RG_MUT_END
};

#endif
