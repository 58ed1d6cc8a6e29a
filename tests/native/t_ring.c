/* The request ring among processes of one host: many threads and processes, a full ring, slow, stopped and killed
 * servers, clients killed at each of their steps, garbage in all that a client can write, sleeping and waking, and
 * the operations on a pool.
 *
 * Environment: as t_pool.h; SCALE=n makes the long ones n times longer. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "ring.h"
#include "t_pool.h"

#define MS 1000000ull
#define SECOND 1000000000ull
enum { OP_COUNT = 50, OP_SLOW = 51, OP_SUM = 52, OP_CRASH = 53 };
enum { NUMBERS = 1 << 20 };

static _Atomic(u8) *counts; /* by number: how often it was done; shared with processes that are forked */
#define DONE(number) counts[(number) % NUMBERS]
static _Atomic(u64) *again_seen, *block_on;

static int exec(void *ctx, struct rg_job *j)
{
	u64 sum = 0;
	switch (j->op) {
	case OP_SLOW:
		for (u64 n = 0; n < j->arg && !*block_on; n += MS) usleep(1000);
		while (*block_on) usleep(1000);
		j->slow = true;
		/* fall through */
	case OP_COUNT:
		if (j->again) ++*again_seen;
		DONE(j->number)++;
		j->result = j->number;
		return 0;
	case OP_SUM: /* payload forth and back */
		for (u32 i = 0; i < j->in_len; i++) sum += j->in[i];
		if (j->in_len > j->out_cap) return -EBADMSG;
		for (u32 i = 0; i < j->in_len; i++) j->out[i] = (u8)(j->in[i] ^ 0x5a);
		j->out_len = j->in_len;
		j->result = sum + j->arg;
		return sum % 7 == 3 ? rg_error(-EDOM, "sum %llu", (unsigned long long)sum) : 0;
	case OP_CRASH:
		if (DONE(j->number)++) return 0;
		raise(SIGKILL);
		return 0;
	}
	return rg_core_exec(ctx, j);
}

static _Atomic(u64) gone, gone_dead; /* rings that servers have let go of */
static void on_gone(void *ctx, u64 ring, bool died)
{
	(void)ctx, (void)ring;
	gone++;
	gone_dead += died;
}

static struct rg_server *serve(u32 threads, i64 spin_ns)
{
	struct rg_server *s;
	OK(rg_server_start(&(struct rg_server_opts){.threads = threads, .spin_ns = spin_ns, .exec = exec, .ctx = b, .gone = on_gone}, &s));
	return s;
}

static u64 join(struct rg_server *s, struct rg_client *c, int alive)
{
	int ring, bell;
	u64 id;
	OK(rg_client_fds(c, &ring, &bell, NULL));
	OK(rg_server_add(s, ring, bell, alive, &id));
	return id;
}

static struct rg_client *client(struct rg_client_opts o)
{
	struct rg_client *c;
	OK(rg_client_new(&o, &c));
	return c;
}

static struct rg_server_stats stats(struct rg_server *s)
{
	struct rg_server_stats x;
	rg_server_stats(s, &x);
	return x;
}

static void until(struct rg_server *s, u64 rings)
{
	double t = now() + 20;
	for (; stats(s).rings != rings; usleep(500)) CHECK(now() < t, "%llu rings, expected %llu", (unsigned long long)stats(s).rings, (unsigned long long)rings);
}

static int ask(struct rg_client *c, u16 op, u64 arg, u64 number, u64 timeout_ns, struct rg_call *out)
{
	struct rg_call k = {.op = op, .arg = arg, .number = number};
	int rc = rg_call(c, &k, timeout_ns);
	if (out) *out = k;
	return rc;
}

/* ---- opening ------------------------------------------------------------------------------------- */
static void t_open(void)
{
	struct rg_server *s = serve(1, 0);
	struct rg_client *c = client((struct rg_client_opts){.slots = 8});
	int ring, bell;
	u64 id;
	OK(rg_client_fds(c, &ring, &bell, NULL));
	/* a copy that can be cut */
	struct stat st_;
	OK(fstat(ring, &st_));
	int fd = memfd_create("cut", MFD_ALLOW_SEALING);
	u8 *page = malloc((size_t)st_.st_size);
	CHECK(pread(ring, page, (size_t)st_.st_size, 0) == st_.st_size, "read");
	CHECK(pwrite(fd, page, (size_t)st_.st_size, 0) == st_.st_size, "write");
	IS(rg_server_add(s, fd, bell, -1, &id), -EPERM);
	IS(rg_server_add(s, bell, bell, -1, &id), -EPERM);
	OK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	int huge = memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB), ends[2];
	if (huge < 0) printf("  no huge pages here: a ring of them isn't tried\n");
	else {
		OK(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK));
		IS(rg_server_add(s, huge, bell, -1, &id), -EPERM);
		close(huge);
	}
	CHECK(!pipe(ends), "pipe");
	IS(rg_server_add(s, fd, 9999, -1, &id), -EPERM); /* bells are eventfds, and nothing else is waited for */
	IS(rg_server_add(s, fd, fd, -1, &id), -EPERM);
	IS(rg_server_add(s, fd, ends[0], -1, &id), -EPERM);
	IS(rg_server_add(s, fd, bell, 9999, &id), -EBADF);
	close(ends[0]), close(ends[1]);
	OK(rg_server_add(s, fd, bell, -1, &id));
	OK(rg_server_remove(s, id));
	until(s, 0);
	IS(rg_server_remove(s, id), -ENOENT);
	for (int i = 0; i < 200; i++) { /* added and removed, or left, between two looks of its thread */
		struct rg_client *brief = client((struct rg_client_opts){.slots = 8});
		id = join(s, brief, -1);
		if (i % 3 == 1) usleep((u32)i);
		if (i % 2) rg_server_remove(s, id);
		rg_client_free(brief);
	}
	until(s, 0);
	/* as many as there may be, of one file: it is the descriptors that run out first, mostly */
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	int n = 0, rc = 0;
	while (n < 5000 && !(rc = rg_server_add(s, fd, bell, -1, NULL))) n++;
	CHECK((rc == -EUSERS && n == 4096) || (rc == -EMFILE && files.rlim_cur < 4200), "%d rings, then %s", n, text(rc));
	rg_server_stop(s);
	s = serve(1, 0);
	struct rg_head h, good;
	memcpy(&good, page, sizeof good);
	for (int i = 0; i < 10; i++) {
		h = good;
		int want = -EUCLEAN;
		if (i == 0) h.magic[3] ^= 1;
		if (i == 1) h.version = 2, want = -EPROTONOSUPPORT;
		if (i == 2) h.slots = 512;
		if (i == 3) h.slots = 7;
		if (i == 4) h.slots = 0;
		if (i == 5) h.req_bytes = 1u << 31;
		if (i == 6) h.rep_bytes += 8;
		if (i == 7) h.size_bytes += 4096;
		if (i == 8) h.rep_bytes += 1 << 20; /* more than there is */
		rg_seal(&h, h.nonce, RG_L_HEAD);
		if (i == 9) h.csum ^= 1;
		CHECK(pwrite(fd, &h, sizeof h, 0) == sizeof h, "write");
		IS(rg_server_add(s, fd, bell, -1, &id), want);
		CHECK(*bfs_errmsg(), "no text");
	}
	IS(rg_client_new(&(struct rg_client_opts){.slots = 3}, &c), -EUCLEAN);
	close(fd);
	free(page);
	rg_server_stop(s);
	rg_client_free(c);
}

/* ---- payload of all sizes, positions that wrap around ------------------------------------------------ */
static void sums(struct rg_client *c, struct rng *r, u32 calls, u32 most)
{
	u8 *in = malloc(most), *out = malloc(most);
	for (u32 n = 0; n < calls; n++) {
		u32 len = n < 8 ? (u32[]){0, 1, RG_SMALL - 1, RG_SMALL, RG_SMALL + 1, RG_CHUNK, most, 64}[n] : below(r, n % 16 ? 2000 : most);
		u64 sum = 0;
		for (u32 i = 0; i < len; i++) in[i] = (u8)rnd(r), sum += in[i];
		struct rg_call k = {.op = OP_SUM, .arg = n, .payload = in, .len = len, .reply = out, .reply_cap = len};
		OK(rg_call(c, &k, 20 * SECOND));
		IS(k.status, sum % 7 == 3 ? -EDOM : 0);
		CHECK(k.result == sum + n, "sum");
		IS(k.reply_len, len);
		for (u32 i = 0; i < len; i++) CHECK(out[i] == (in[i] ^ 0x5a), "byte %u of %u", i, len);
		char text[32];
		snprintf(text, sizeof text, "sum %llu", (unsigned long long)sum);
		CHECK(!strcmp(k.text, k.status ? text : ""), "text: %s", k.text);
	}
	free(in), free(out);
}

static void t_sizes(void)
{
	struct rng r = {seed + 1};
	struct rg_server *s = serve(1, 0);
	for (int i = 0; i < 4; i++) {
		/* i == 1: positions through 2^64, 2: through 2^32 */
		struct rg_client *c = client((struct rg_client_opts){.slots = i == 3 ? 1 : 4, .start = i == 1 ? 0ull - 50 : i == 2 ? (1ull << 32) - 50 : 0});
		join(s, c, -1);
		sums(c, &r, 300, 1000000);
		struct rg_call k = {.op = OP_SUM, .len = (4 << 20) + 1, .payload = &r};
		IS(rg_call(c, &k, SECOND), -EMSGSIZE);
		k = (struct rg_call){.op = OP_SUM, .reply_cap = 1 << 20, .reply = &r};
		IS(rg_call(c, &k, SECOND), -EMSGSIZE);
		OK(ask(c, 4711, 0, 0, SECOND, &k));
		IS(k.status, -EOPNOTSUPP);
		CHECK(strstr(k.text, "4711"), "%s", k.text);
		rg_client_free(c);
	}
	until(s, 0);
	rg_server_stop(s);
}

/* ---- many threads, on few slots, on one and on several service threads ------------------------------------ */
struct asker { pthread_t t; struct rg_client *c; u32 calls; u64 first; struct rng r; };
static void *asker(void *arg)
{
	struct asker *a = arg;
	for (u32 i = 0; i < a->calls; i++) {
		struct rg_call k;
		u64 n = a->first + i;
		k = (struct rg_call){.op = OP_COUNT, .number = n};
		OK(rg_call(a->c, &k, 60 * SECOND));
		CHECK(!k.status && k.result == n && DONE(n) == 1, "number %llu: done %u times", (unsigned long long)n, DONE(n));
		if (i % 64 == 0) sums(a->c, &a->r, 1, 100000);
	}
	return NULL;
}

static void t_threads(void)
{
	enum { T = 6 };
	u32 calls = 1500 * (u32)env("SCALE", 1);
	for (u32 round = 0; round < 6; round++) {
		i64 spin = round % 2 ? -1 : 20000;
		struct rg_server *s = serve(round < 4 ? 1 : 3, spin);
		struct rg_client *c[2];
		struct asker a[T];
		memset((void *)counts, 0, NUMBERS);
		for (int i = 0; i < 2; i++) c[i] = client((struct rg_client_opts){.slots = round & 2 ? 2 : 64, .spin_ns = spin, .req_bytes = 1 << 20}), join(s, c[i], -1);
		for (u32 i = 0; i < T; i++) {
			a[i] = (struct asker){.c = c[i % 2], .calls = calls, .first = 1 + i * calls, .r = {seed + i + 1}};
			CHECK(!pthread_create(&a[i].t, NULL, asker, &a[i]), "thread");
		}
		for (u32 i = 0; i < T; i++) pthread_join(a[i].t, NULL);
		for (u32 n = 1; n <= T * calls; n++) CHECK(DONE(n) == 1, "number %u: %u times", n, DONE(n));
		struct rg_server_stats x = stats(s);
		CHECK(x.requests >= T * calls && !x.refused && !x.bad_lines, "%llu requests", (unsigned long long)x.requests);
		struct rg_client_stats y;
		u64 missed = 0, sleeps = 0;
		for (int i = 0; i < 2; i++) rg_client_stats(c[i], &y), missed += y.missed, sleeps += y.sleeps, rg_client_free(c[i]);
		/* a wake-up that is lost costs 10 ms and is counted; on a loaded machine some are only late */
		CHECK(missed <= 5 + sleeps / 20, "%llu of %llu sleeps ended by looking again", (unsigned long long)missed, (unsigned long long)sleeps);
		rg_server_stop(s);
	}
}

/* ---- an idle ring costs nothing ------------------------------------------------------------------------------- */
static double cpu(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void t_idle(void)
{
	struct rg_server *s = serve(2, 0);
	struct rg_client *c[8];
	for (int i = 0; i < 8; i++) {
		c[i] = client((struct rg_client_opts){0});
		join(s, c[i], -1);
		OK(ask(c[i], OP_COUNT, 0, 0, 20 * SECOND, NULL));
	}
	usleep(100000);
	struct rg_server_stats x = stats(s), y;
	double t = cpu();
	usleep(500000);
	y = stats(s);
	CHECK(cpu() - t < 0.05 && x.spins == y.spins && x.wakes == y.wakes, "%.3f s of CPU time, %llu spins, %llu wake-ups", cpu() - t, (unsigned long long)(y.spins - x.spins), (unsigned long long)(y.wakes - x.wakes));
	for (int i = 0; i < 8; i++) {
		OK(ask(c[i], OP_COUNT, 0, 0, 20 * SECOND, NULL));
		rg_client_free(c[i]);
	}
	until(s, 0);
	rg_server_stop(s);
}

/* ---- time-outs: unknown, ask again with the number ------------------------------------------------------------------ */
static void t_slow(void)
{
	struct rg_server *s = serve(1, 0);
	struct rg_client *c = client((struct rg_client_opts){.slots = 4});
	struct rg_call k[5];
	memset((void *)counts, 0, NUMBERS);
	*block_on = 1;
	*again_seen = 0;
	/* nobody serves it yet */
	IS(ask(c, OP_COUNT, 0, 0, 20 * MS, &k[4]), -ETIMEDOUT);
	u64 n4 = k[4].number;
	join(s, c, -1);
	OK(ask(c, OP_COUNT, 0, n4, 20 * SECOND, &k[4]));
	for (int i = 0; i < 4; i++) {
		IS(ask(c, OP_SLOW, 0, 0, 20 * MS, &k[i]), -ETIMEDOUT);
		CHECK(k[i].number && strstr(bfs_errmsg(), "ask again"), "%s", bfs_errmsg());
	}
	/* all slots are taken by what nobody waits for */
	IS(ask(c, OP_COUNT, 0, 0, 20 * MS, &k[4]), -ETIMEDOUT);
	CHECK(strstr(bfs_errmsg(), "not asked") && !k[4].number, "%s", bfs_errmsg());
	IS(ask(c, OP_SLOW, 0, k[1].number, 20 * MS, NULL), -ETIMEDOUT);
	*block_on = 0;
	for (int i = 0; i < 3; i++) {
		struct rg_call x;
		OK(ask(c, OP_SLOW, 0, k[i].number, 20 * SECOND, &x));
		CHECK(!x.status && x.result == k[i].number && DONE(k[i].number) == 1, "done %u times", DONE(k[i].number));
	}
	/* the fourth is never asked for again: its slot comes back all the same */
	for (int i = 0; i < 100; i++) OK(ask(c, OP_COUNT, 0, 0, 20 * SECOND, NULL));
	CHECK(!*again_seen, "asked twice");
	rg_client_free(c);
	rg_server_stop(s);
}

/* A reply that is there isn't held back by the next request, which takes long. */
static void *wait_long(void *arg);
static bool held(void)
{
	struct rg_server *s = serve(1, 0);
	struct rg_client *c = client((struct rg_client_opts){.spin_ns = -1});
	struct rg_call k[2] = {{.op = RG_OP_PING, .payload = c}, {.op = OP_SLOW, .arg = 200 * MS, .payload = c}};
	struct rg_client_stats y;
	pthread_t t[2];
	for (int i = 0; i < 2; i++) {
		pthread_create(&t[i], NULL, wait_long, &k[i]);
		usleep(30000);
	}
	join(s, c, -1); /* it finds both */
	pthread_join(t[0], NULL);
	rg_client_stats(c, &y);
	OK(k[0].status);
	pthread_join(t[1], NULL);
	OK(k[1].status);
	rg_client_free(c);
	rg_server_stop(s);
	return y.missed;
}

static void t_held(void)
{
	/* a waiter looks by itself every 10 ms: on a loaded machine that may come before it is woken, not each time */
	int n = 1;
	*block_on = 0;
	while (held()) CHECK(n++ < 8, "it is never woken in time");
}

/* ---- the server stops, or is killed, while clients wait --------------------------------------------------------------- */
static void *wait_long(void *arg)
{
	struct rg_call *k = arg;
	struct rg_client *c = (void *)k->payload;
	k->payload = NULL;
	int rc = rg_call(c, k, 30 * SECOND);
	k->status = rc;
	return NULL;
}

static void t_stop(void)
{
	for (int round = 0; round < 4; round++) {
		i64 spin = round % 2 ? -1 : 50000000; /* asleep, polling */
		struct rg_server *s = serve(1, 0);
		struct rg_client *c = client((struct rg_client_opts){.slots = 4, .spin_ns = spin});
		struct rg_call k[3] = {0};
		pthread_t t[3];
		u64 gen;
		int ring, bell;
		memset((void *)counts, 0, NUMBERS);
		*block_on = 0;
		*again_seen = 0;
		join(s, c, -1);
		k[0] = (struct rg_call){.op = OP_SLOW, .arg = 100 * MS, .payload = c};
		for (int i = 1; i < 3; i++) k[i] = (struct rg_call){.op = OP_COUNT, .payload = c};
		for (int i = 0; i < 3; i++) {
			pthread_create(&t[i], NULL, wait_long, &k[i]);
			usleep(20000);
		}
		double t0 = now();
		rg_server_stop(s); /* the first one, under way, is finished; the turn that it is in may hold the others */
		for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
		CHECK(now() - t0 < 5, "%.1f s", now() - t0);
		CHECK(k[0].status == 0 || k[0].status == -ENOTCONN, "%s", text(k[0].status));
		/* before somebody else serves: at once, and nothing was asked */
		IS(ask(c, OP_COUNT, 0, 0, 5 * SECOND, NULL), -ENOTCONN);
		OK(rg_client_fds(c, &ring, &bell, &gen));
		OK(rg_client_renew(c, gen));
		OK(rg_client_renew(c, gen)); /* another thread's: nothing */
		s = serve(1, 0);
		join(s, c, -1);
		for (int i = 0; i < 3; i++) {
			struct rg_call x = {.op = i ? OP_COUNT : OP_SLOW, .number = k[i].number};
			if (!k[i].status) continue;
			OK(rg_call(c, &x, 20 * SECOND));
			CHECK(x.result == k[i].number, "another one's reply");
		}
		for (int i = 0; i < 3; i++) CHECK(DONE(k[i].number) == 1, "number %llu: %u times", (unsigned long long)k[i].number, DONE(k[i].number));
		rg_client_free(c);
		rg_server_stop(s);
	}
}

/* Of a process of its own: serves the ring until it is killed. */
static pid_t server_process(struct rg_client *c, int *alive)
{
	int ring, bell, ready[2];
	char x = 0;
	OK(rg_client_fds(c, &ring, &bell, NULL));
	CHECK(!pipe(ready), "pipe");
	pid_t pid = fork();
	if (!pid) {
		struct rg_server *s = serve(1, 0);
		u64 id;
		if (rg_server_add(s, ring, bell, -1, &id)) _exit(1);
		if (write(ready[1], &x, 1) < 0) _exit(1);
		for (;;) pause();
	}
	CHECK(read(ready[0], &x, 1) == 1, "the server didn't start");
	close(ready[0]), close(ready[1]);
	*alive = (int)syscall(SYS_pidfd_open, pid, 0);
	CHECK(*alive >= 0, "pidfd");
	return pid;
}

static void t_killed(void)
{
	struct rg_client *c = client((struct rg_client_opts){0});
	memset((void *)counts, 0, NUMBERS);
	*again_seen = 0;
	u64 crashed = 0;
	for (int round = 0; round < 4; round++) {
		int alive, status;
		pid_t pid = server_process(c, &alive);
		OK(rg_client_daemon(c, alive));
		if (crashed) { /* asked again of the next one */
			struct rg_call k;
			OK(ask(c, OP_CRASH, 0, crashed, 20 * SECOND, &k));
			CHECK(k.flags & RG_AGAIN, "it isn't told that it was asked before");
		}
		for (int i = 0; i < 200; i++) OK(ask(c, OP_COUNT, 0, 0, 20 * SECOND, NULL));
		struct rg_call k;
		u64 n = NUMBERS - 10 - (u64)round;
		double t = now();
		k = (struct rg_call){.op = OP_CRASH, .number = n};
		IS(rg_call(c, &k, 30 * SECOND), -ENOTCONN); /* a new number of the caller's own */
		CHECK(now() - t < 5, "%.1f s", now() - t);
		CHECK(strstr(bfs_errmsg(), "unknown"), "%s", bfs_errmsg());
		crashed = n;
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "status %d", status);
		close(alive);
		u64 gen;
		int ring, bell;
		OK(rg_client_fds(c, &ring, &bell, &gen));
		OK(rg_client_renew(c, gen));
	}
	/* answered by the one before, after its client had given up: the answer is still there for the next */
	struct rg_server *s = serve(1, 0);
	join(s, c, -1);
	OK(rg_client_daemon(c, -1));
	struct rg_call k;
	*block_on = 1;
	*again_seen = 0;
	IS(ask(c, OP_SLOW, 0, 0, 20 * MS, &k), -ETIMEDOUT);
	*block_on = 0;
	rg_server_stop(s);
	IS(DONE(k.number), 1);
	u64 gen;
	int ring, bell;
	OK(rg_client_fds(c, &ring, &bell, &gen));
	OK(rg_client_renew(c, gen));
	OK(ask(c, OP_SLOW, 0, k.number, SECOND, &k)); /* nobody serves the new one */
	CHECK(DONE(k.number) == 1 && k.result == k.number, "%u times", DONE(k.number));
	rg_client_free(c);
}

/* ---- a client dies at each of its steps --------------------------------------------------------------------------------- */
/* The client's code over verbs that count: as on incoherent memory each of its stores is one, and at the n-th it dies. */
static int die_at = -1;
static void step(void)
{
	if (die_at >= 0 && die_at-- == 0) raise(SIGKILL);
}
static void k_store(struct bfs_mem *m, void *d, const void *s, size_t n)
{
	(void)m;
	step();
	memcpy(d, s, n / 2);
	step(); /* half of it */
	memcpy((u8 *)d + n / 2, (const u8 *)s + n / 2, n - n / 2);
	step();
}
static void k_none(struct bfs_mem *m, const void *p, size_t n) { (void)m, (void)p, (void)n, step(); }
static void k_fence(struct bfs_mem *m) { (void)m, step(), atomic_thread_fence(memory_order_seq_cst); }
static int k_in(struct bfs_mem *m, void *d, const void *s, size_t n) { return k_store(m, d, s, n), 0; }

static void k_bell(void *fd)
{
	u64 one = 1;
	step();
	if (write((int)(intptr_t)fd, &one, 8) < 0) abort();
	step();
}
static bool k_sleep(void *ctx, u32 slot, u32 seen, u64 ns)
{
	(void)ctx, (void)slot, (void)seen, (void)ns;
	step();
	usleep(200);
	return true;
}

static int dying_client(int ring, int bell, int n)
{
	static struct rg_chan c;
	static u8 pay[3000];
	struct bfs_mem_ops ops = bfs_ops_coherent;
	ops.store = k_store, ops.inval = ops.flush = k_none, ops.fence = k_fence, ops.copy_in = k_in;
	struct stat s;
	fstat(ring, &s);
	struct bfs_mem m = {.ops = &ops, .size = (u64)s.st_size, .base = mmap(NULL, (size_t)s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0)};
	struct rg_waker w = {.sleep = k_sleep, .bell = k_bell, .ctx = (void *)(intptr_t)bell};
	struct rg_head h;
	memcpy(&h, m.base, sizeof h);
	if (rg_chan_init(&c, &m, &h, &w, 0)) return 1; /* as it was made */
	die_at = n;
	for (u32 i = 0; i < 3; i++) {
		struct rg_call k = {.op = i == 1 ? OP_SUM : OP_COUNT, .payload = pay, .len = i == 1 ? 3000 : 0, .reply = pay, .reply_cap = 3000};
		if (rg_submit(&c, &k)) return 2;
		rg_kick(&c);
		if (i == 2) rg_leave(&c, &k);
		else if (rg_wait(&c, &k, 0) != 1) return 3;
	}
	rg_chan_close(&c);
	return 0;
}

static void t_clients_die(void)
{
	struct rg_server *s = serve(1, 100000);
	struct rg_client *good = client((struct rg_client_opts){0});
	join(s, good, -1);
	struct rg_server_stats before = stats(s);
	u64 died = 0;
	int n = 0;
	for (bool all = false; !all; n++) {
		struct rg_client *c = client((struct rg_client_opts){.slots = 2, .req_bytes = 8192, .rep_bytes = 8192});
		int ring, bell, status, by_socket = n % 2, pair[2] = {-1, -1};
		OK(rg_client_fds(c, &ring, &bell, NULL));
		if (by_socket) CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "socketpair");
		int go[2];
		CHECK(!pipe(go), "pipe");
		pid_t pid = fork();
		if (!pid) {
			char x;
			if (pair[0] >= 0) close(pair[0]);
			close(go[1]);
			if (read(go[0], &x, 1) != 1) _exit(9);
			_exit(dying_client(ring, bell, n));
		}
		close(go[0]);
		int alive = by_socket ? pair[0] : (int)syscall(SYS_pidfd_open, pid, 0);
		if (by_socket) close(pair[1]);
		join(s, c, alive);
		CHECK(write(go[1], "", 1) == 1, "go");
		close(go[1]);
		OK(ask(good, OP_COUNT, 0, 0, 20 * SECOND, NULL));
		CHECK(waitpid(pid, &status, 0) == pid, "wait");
		all = WIFEXITED(status);
		if (all) IS(WEXITSTATUS(status), 0);
		else IS(WTERMSIG(status), SIGKILL);
		died += !all;
		until(s, 1); /* noticed */
		close(alive);
		OK(ask(good, OP_COUNT, 0, 0, 20 * SECOND, NULL));
		rg_client_free(c);
		CHECK(n < 5000, "it never gets to its end");
	}
	struct rg_server_stats x = stats(s);
	/* who dies when it has just closed the ring has left */
	CHECK(x.clients_died - before.clients_died + 10 >= died, "%llu deaths of %llu noticed", (unsigned long long)(x.clients_died - before.clients_died), (unsigned long long)died);
	CHECK(died > 40, "only %llu steps", (unsigned long long)died);
	printf("  died at each of %llu steps\n", (unsigned long long)died);
	rg_client_free(good);
	rg_server_stop(s);
}

/* ---- many processes at a time, some of them killed in the middle ------------------------------------------------------------- */
static void t_processes(void)
{
	enum { P = 6 };
	struct rng r = {seed + 17};
	gone = 0;
	gone_dead = 0;
	struct rg_server *s = serve(2, 0);
	for (int round = 0; round < 3 * env("SCALE", 1); round++) {
		pid_t pid[P];
		bool kill_it[P];
		for (int i = 0; i < P; i++) {
			int say[2], go[2], fds[2], ring, bell, alive;
			CHECK(!pipe(say) && !pipe(go), "pipe");
			rnd(&r);
			if (!(pid[i] = fork())) { /* a ring is made by the process that asks */
				char x;
				struct rg_client *c = client((struct rg_client_opts){.slots = 4});
				OK(rg_client_fds(c, &fds[0], &fds[1], NULL));
				if (write(say[1], fds, sizeof fds) != sizeof fds || read(go[0], &x, 1) != 1) _exit(1);
				sums(c, &r, 400, 5000);
				rg_client_free(c);
				_exit(0);
			}
			kill_it[i] = i % 2;
			CHECK(read(say[0], fds, sizeof fds) == sizeof fds, "its descriptors");
			alive = (int)syscall(SYS_pidfd_open, pid[i], 0);
			ring = (int)syscall(SYS_pidfd_getfd, alive, fds[0], 0), bell = (int)syscall(SYS_pidfd_getfd, alive, fds[1], 0);
			CHECK(ring >= 0 && bell >= 0, "pidfd_getfd: %s", strerror(errno));
			OK(rg_server_add(s, ring, bell, alive, NULL));
			CHECK(write(go[1], "", 1) == 1, "go");
			close(ring), close(bell), close(alive), close(say[0]), close(say[1]), close(go[0]), close(go[1]);
		}
		for (int i = 0; i < P; i++)
			if (kill_it[i]) usleep(below(&r, 3000)), kill(pid[i], SIGKILL);
		for (int i = 0, status; i < P; i++) {
			CHECK(waitpid(pid[i], &status, 0) == pid[i], "wait");
			if (!kill_it[i]) CHECK(status == 0, "status %d", status);
		}
		until(s, 0);
	}
	struct rg_server_stats x = stats(s);
	CHECK(!x.refused && !x.bad_lines, "%llu refused", (unsigned long long)x.refused);
	rg_server_stop(s);
	CHECK(gone == x.rings_ever && gone_dead == x.clients_died && gone_dead, "%llu told of %llu", (unsigned long long)gone, (unsigned long long)x.rings_ever);
}

/* ---- as between hosts: lines flushed and read around the cache, both sides poll -------------------------------------------- */
static struct { struct rg_chan c; struct rg_port p; struct bfs_mem m; _Atomic(bool) stop; } far;
static void *far_server(void *arg)
{
	struct rg_buffers buf = {0};
	(void)arg;
	OK(rg_port_open(&far.p, &far.m, 1, 1));
	OK(rg_buffers_fit(&far.m, &buf, &far.p));
	while (!far.stop) rg_port_serve(&far.p, &buf, 16, exec, NULL, NULL, NULL);
	rg_port_close(&far.p);
	rg_buffers_free(&far.m, &buf);
	return NULL;
}

static void t_incoherent(void)
{
	struct rg_head h = {.slots = 8, .req_bytes = 65536, .rep_bytes = 65536, .nonce = 77, .start = 1};
	struct rng r = {seed + 5};
	static u8 in[20000], out[20000];
	u64 size = rg_shape(8, 65536, 65536).size;
	pthread_t t;
	far.m = (struct bfs_mem){.ops = &bfs_ops_incoherent, .size = size, .base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
	OK(rg_chan_init(&far.c, &far.m, &h, NULL, 20000));
	pthread_create(&t, NULL, far_server, NULL);
	for (u32 n = 0; n < 1500; n++) {
		u32 len = n % 8 ? below(&r, 300) : below(&r, 20000);
		u64 sum = 0;
		for (u32 i = 0; i < len; i++) in[i] = (u8)rnd(&r), sum += in[i];
		struct rg_call k = {.op = OP_SUM, .arg = n, .payload = in, .len = len, .reply = out, .reply_cap = len};
		OK(rg_submit(&far.c, &k));
		rg_kick(&far.c);
		IS(rg_wait(&far.c, &k, far.m.ops->mono_ns(&far.m) + 20 * SECOND), 1);
		CHECK(k.result == sum + n && k.reply_len == len, "sum");
		for (u32 i = 0; i < len; i++) CHECK(out[i] == (in[i] ^ 0x5a), "byte %u of %u", i, len);
	}
	CHECK(!far.p.late && !far.c.late, "payload behind its line");
	far.stop = true;
	pthread_join(t, NULL);
	/* the server has said that it ends */
	struct rg_call k = {.op = OP_SUM};
	OK(rg_submit(&far.c, &k));
	IS(rg_wait(&far.c, &k, 0), -ENOTCONN);
	rg_chan_close(&far.c);
	munmap(far.m.base, size);
}

/* ---- garbage ------------------------------------------------------------------------------------------------------------------- */
static void t_garbage(void)
{
	struct rng r = {seed + 3};
	make_pool(32, 4000);
	u64 ns;
	OK(bfs_ns_create(b, "n", &ns));
	struct rg_server *s = serve(1, 0);
	struct rg_client *good = client((struct rg_client_opts){.slots = 8}), *bad = client((struct rg_client_opts){.slots = 4, .req_bytes = 16384, .rep_bytes = 8192});
	int ring, bell;
	u64 rounds = 15000 * (u64)env("SCALE", 1), pos = 1, one = 1, answered = 0;
	join(s, good, -1);
	join(s, bad, -1);
	OK(rg_client_fds(bad, &ring, &bell, NULL));
	struct rg_shape at = rg_shape(4, 16384, 8192);
	u8 *m = mmap(NULL, at.size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
	struct rg_head h;
	memcpy(&h, m, sizeof h);
	for (u64 n = 0; n < rounds; n++) {
		struct rg_req q = {.pos = pos, .op = (u16)below(&r, 9), .flags = (u16)rnd(&r), .slot = below(&r, 6), .number = rnd(&r), .arg = below(&r, 2) ? ns : below(&r, 2) ? below(&r, 3) : rnd(&r)};
		u32 how = below(&r, 8), line = RG_LINES_OFF + (u32)(pos % 4) * 64;
		static const u32 edges[] = {0, 1, 15, 16, 17, 1024, 4095, 4096, 20479, 20480, 20481, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff0};
		q.off = how & 1 ? edges[below(&r, 15)] : below(&r, 20480), q.len = how & 2 ? edges[below(&r, 15)] : below(&r, 3000);
		q.rep_off = how & 4 ? edges[below(&r, 15)] : below(&r, 12000), q.rep_cap = how & 1 ? edges[below(&r, 15)] : below(&r, 3000);
		for (int i = 0; i < 4; i++) m[at.req_pay + below(&r, (u32)at.req_len)] = (u8)rnd(&r);
		if (below(&r, 2) && (u64)q.off + q.len <= at.req_len) { /* a sum that is right, over keys that make no sense */
			struct rg_keys k = {below(&r, 3) ? below(&r, 100) : (u32)rnd(&r), below(&r, 70), below(&r, 4), 0};
			if (below(&r, 2) && q.len >= sizeof k) { /* keys that fit, with data that may */
				k.key_bytes = 2 + below(&r, 63);
				k.count = (u32)((q.len - sizeof k) / (k.key_bytes + (q.op == RG_OP_PUT ? 4 : 0)));
				if (q.op == RG_OP_PUT && k.count) k.count = 1 + below(&r, k.count), memset(m + at.req_pay + q.off + sizeof k, 0, 4 * (size_t)k.count);
				u32 left = q.len - (u32)sizeof k - k.count * (k.key_bytes + 4);
				if (q.op == RG_OP_PUT && k.count) memcpy(m + at.req_pay + q.off + sizeof k, &left, 4);
				q.rep_off = 0, q.rep_cap = 10000;
			}
			if (q.len >= sizeof k) memcpy(m + at.req_pay + q.off, &k, sizeof k);
			q.psum = rg_sum(m + at.req_pay + q.off, q.len, h.nonce ^ q.number);
		}
		rg_seal(&q, h.nonce, line / 64);
		if (below(&r, 4) == 0) { /* anything, anywhere that the client writes: what is overwritten, too */
			u64 x = rnd(&r), to = below(&r, 3) ? RG_LINES_OFF + below(&r, 32) * 8 : RG_L_CLIENT * 64 + 8 + below(&r, 7) * 8;
			__atomic_store_n((u64 *)(m + to), x, __ATOMIC_RELAXED);
			if (below(&r, 50) == 0) __atomic_store_n((u64 *)(m + below(&r, 8) * 8), x, __ATOMIC_RELAXED); /* the head */
		}
		struct bfs_mem mem_ = {.ops = &bfs_ops_coherent, .coherent = true};
		rg_put(&mem_, m + line, &q);
		if (write(bell, &one, 8) < 0) abort();
		/* one that is taken moves it on; where it is answered shows that */
		if (q.slot < 4) {
			double t = now() + 10;
			for (; __atomic_load_n((u64 *)(m + at.rep_line + q.slot * 64), __ATOMIC_ACQUIRE) != pos; sched_yield()) CHECK(now() < t, "request %llu isn't answered", (unsigned long long)pos);
			answered++;
		} else usleep(200);
		pos++;
		if (n % 256 == 0) OK(ask(good, OP_COUNT, 0, 0, 20 * SECOND, NULL));
		if (q.slot >= 4) { /* nowhere to answer: wait until the next one is */
			struct rg_req p = {.pos = pos, .op = RG_OP_PING, .rep_cap = 64};
			rg_seal(&p, h.nonce, RG_LINES_OFF / 64 + pos % 4);
			rg_put(&mem_, m + RG_LINES_OFF + pos % 4 * 64, &p);
			if (write(bell, &one, 8) < 0) abort();
			double t = now() + 10;
			for (; __atomic_load_n((u64 *)(m + at.rep_line), __ATOMIC_ACQUIRE) != pos; sched_yield()) CHECK(now() < t, "ping %llu isn't answered", (unsigned long long)pos);
			pos++;
		}
	}
	struct rg_server_stats x = stats(s);
	CHECK(x.refused > rounds / 10, "%llu refused", (unsigned long long)x.refused);
	/* and a line whose sum is wrong keeps nobody awake */
	struct rg_req q = {.pos = pos};
	struct bfs_mem mem_ = {.ops = &bfs_ops_coherent, .coherent = true};
	rg_put(&mem_, m + RG_LINES_OFF + pos % 4 * 64, &q);
	if (write(bell, &one, 8) < 0) abort();
	usleep(100000);
	double t = cpu();
	usleep(300000);
	CHECK(cpu() - t < 0.05, "%.3f s of CPU time", cpu() - t);
	CHECK(stats(s).bad_lines, "not counted");
	printf("  %llu answered, %llu refused, %llu blocks made\n", (unsigned long long)answered, (unsigned long long)x.refused, (unsigned long long)st().creates + st().seals);
	CHECK(st().seals > 100, "no request made sense");
	munmap(m, at.size);
	rg_client_free(good), rg_client_free(bad);
	rg_server_stop(s);
	drop_pool();
}

/* ---- after fork -------------------------------------------------------------------------------------------------------------------- */
static void t_fork(void)
{
	struct rg_server *s = serve(1, 0);
	struct rg_client *c = client((struct rg_client_opts){0});
	int status, x;
	join(s, c, -1);
	OK(ask(c, OP_COUNT, 0, 0, 20 * SECOND, NULL));
	pid_t pid = fork();
	if (!pid) {
		bool ok = ask(c, OP_COUNT, 0, 0, SECOND, NULL) == -EXDEV && rg_client_fds(c, &x, &x, NULL) == -EXDEV && rg_client_renew(c, 1) == -EXDEV;
		rg_client_free(c); /* of its copy: the parent's goes on */
		_exit(!ok);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %d", status);
	OK(ask(c, OP_COUNT, 0, 0, 20 * SECOND, NULL));
	rg_client_free(c);
	rg_server_stop(s);
}

/* ---- the operations on a pool -------------------------------------------------------------------------------------------------------- */
#define KLEN 32
static void key_of(u64 n, u8 *k) { memset(k, 0, KLEN), memcpy(k, &(u64){n * 0x9e3779b97f4a7c15ull}, 8), memcpy(k + 8, &n, 8); }

static int keys_call(struct rg_client *c, u16 op, u64 ns, u64 first, u32 n, u32 len, u32 how, int32_t *st_, struct rg_call *out)
{
	size_t size = sizeof(struct rg_keys) + (size_t)n * (KLEN + 4 + len), at = sizeof(struct rg_keys);
	u8 *p = malloc(size);
	struct rg_keys h = {n, KLEN, how, 0};
	memcpy(p, &h, sizeof h);
	if (op == RG_OP_PUT)
		for (u32 i = 0; i < n; i++, at += 4) memcpy(p + at, &len, 4);
	for (u32 i = 0; i < n; i++, at += KLEN) key_of(first + i, p + at);
	if (op == RG_OP_PUT)
		for (u32 i = 0; i < n; i++, at += len) pattern(first + i, 0, p + at, len);
	struct rg_call k = {.op = op, .arg = ns, .payload = p, .len = (u32)at, .reply = st_, .reply_cap = 4 * n};
	int rc = rg_call(c, &k, 60 * SECOND);
	free(p);
	if (out) *out = k;
	return rc ? rc : k.status;
}

static void have(u64 ns, u64 n, u32 len)
{
	u8 k[KLEN], *p = malloc(len + 1), *q = malloc(len + 1);
	key_of(n, k);
	pattern(n, 0, q, len);
	IS(bfs_block_get(b, ns, k, KLEN, p, len), len);
	CHECK(!memcmp(p, q, len), "block %llu", (unsigned long long)n);
	free(p), free(q);
}

static void t_core(void)
{
	make_pool(64, 20000);
	struct rg_server *s = serve(1, 0);
	struct rg_client *c = client((struct rg_client_opts){0});
	join(s, c, -1);
	struct rg_call k = {.op = RG_OP_NS_CREATE, .payload = "model", .len = 5};
	OK(rg_call(c, &k, 20 * SECOND));
	OK(k.status);
	u64 ns = k.result, again;
	OK(bfs_ns_create(b, "model", &again));
	IS(again, ns);
	k = (struct rg_call){.op = RG_OP_NS_CREATE, .payload = "a\0b", .len = 3};
	OK(rg_call(c, &k, 20 * SECOND));
	IS(k.status, -EINVAL);
	static int32_t st_[4096];
	OK(keys_call(c, RG_OP_PUT, ns, 1, 1, 70000, 0, st_, &k));
	have(ns, 1, 70000);
	IS(keys_call(c, RG_OP_PUT, ns, 1, 1, 70000, 0, st_, &k), -EEXIST);
	IS(st_[0], -EEXIST);
	struct bfs_stat x = st();
	OK(keys_call(c, RG_OP_PUT, ns, 1, 2000, 500, 0, st_, &k)); /* the first is there already, with other bytes */
	IS(st_[0], -EEXIST);
	for (int i = 1; i < 2000; i++) IS(st_[i], 0);
	IS(k.result, 1999);
	CHECK(st().txns - x.txns < 40, "%llu transactions", (unsigned long long)(st().txns - x.txns));
	for (u64 i = 2; i < 2001; i += 97) have(ns, i, 500);
	have(ns, 1, 70000);
	OK(keys_call(c, RG_OP_PIN, ns, 1990, 20, 0, 1, st_, &k)); /* 1990 to 2000 are there */
	for (int i = 0; i < 20; i++) IS(st_[i], i <= 10 ? 0 : -ENOENT);
	IS(keys_call(c, RG_OP_PIN, ns, 1, 1, 0, 3, st_, &k), -EINVAL);
	OK(keys_call(c, RG_OP_DELETE, ns, 1001, 4000, 0, 0, st_, &k));
	for (int i = 0; i < 4000; i++) IS(st_[i], i < 1000 ? 0 : -ENOENT);
	IS(k.result, 1000);
	OK(keys_call(c, RG_OP_PUT, ns, 1990, 11, 500, 0, st_, &k));
	OK(keys_call(c, RG_OP_PIN, ns, 1990, 11, 0, 2, st_, &k));
	OK(keys_call(c, RG_OP_UNPIN, ns, 1990, 11, 0, 0, st_, &k));
	OK(keys_call(c, RG_OP_UNPIN, ns, 1990, 11, 0, 0, st_, &k));
	IS(k.result, 11);
	IS(keys_call(c, RG_OP_DELETE, BFS_ROOT_INO, 1, 1, 0, 0, st_, &k), -EINVAL);
	CHECK(strstr(k.text, "namespace"), "%s", k.text);
	/* more than the pool holds, in batches: it evicts as it goes */
	for (u64 n = 10000; n < 10000 + 1600; n += 16) {
		OK(keys_call(c, RG_OP_PUT, ns, n, 16, 100000, 0, st_, &k));
		for (int i = 0; i < 16; i++) IS(st_[i], 0);
		OK(bfs_tick(b));
	}
	CHECK(st().evicted_blocks, "nothing was evicted");
	have(ns, 11599, 100000);
	IS(keys_call(c, RG_OP_PUT, ns, 5, 1, 4 << 20, 0, st_, &k), -EMSGSIZE);
	rg_client_free(c);
	rg_server_stop(s);
	drop_pool();
}

/* Clients put and delete while their daemon is killed, and ask the next one again: nothing is lost, fsck finds nothing. */
static void t_core_killed(void)
{
	make_pool(32, 8000);
	detach(true);
	/* the pool is this process's mapping: the daemon is forked, and has it shared */
	u8 *shared = mmap(NULL, mem.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memcpy(shared, mem.base, mem.size);
	munmap(mem.base, mem.size);
	mem.base = shared;
	struct rg_client *c = client((struct rg_client_opts){0});
	struct rng r = {seed + 9};
	u64 ns = 0, number = 0, first = 1;
	static int32_t st_[64];
	for (int round = 0; round < 12; round++) {
		int ring, bell, status, ready[2];
		u64 gen;
		char x;
		OK(rg_client_fds(c, &ring, &bell, &gen));
		CHECK(!pipe(ready), "pipe");
		pid_t pid = fork();
		if (!pid) {
			attach();
			struct rg_server *s = serve(1, 0);
			u64 id;
			if (rg_server_add(s, ring, bell, -1, &id) || write(ready[1], "", 1) < 0) _exit(1);
			for (;;) pause();
		}
		close(ready[1]);
		CHECK(read(ready[0], &x, 1) == 1, "the daemon didn't start");
		close(ready[0]);
		int alive = (int)syscall(SYS_pidfd_open, pid, 0);
		OK(rg_client_daemon(c, alive));
		if (!ns) {
			struct rg_call k = {.op = RG_OP_NS_CREATE, .payload = "m", .len = 1};
			OK(rg_call(c, &k, 20 * SECOND));
			ns = k.result;
		}
		if (fork() == 0) usleep(1000 + below(&r, 30000)), kill(pid, SIGKILL), _exit(0);
		rnd(&r);
		for (int rc = 0; rc != -ENOTCONN;) { /* put 32 blocks of 6,000 bytes; the 16 oldest of 64 go */
			size_t at = 16;
			static u8 p[16 + 32 * (4 + KLEN + 6000)];
			*(struct rg_keys *)p = (struct rg_keys){32, KLEN, 0, 0};
			for (u32 i = 0; i < 32; i++, at += 4) memcpy(p + at, &(u32){6000}, 4);
			for (u32 i = 0; i < 32; i++, at += KLEN) key_of(first + i, p + at);
			for (u32 i = 0; i < 32; i++, at += 6000) pattern(first + i, 0, p + at, 6000);
			struct rg_call k = {.op = RG_OP_PUT, .arg = ns, .number = number, .payload = p, .len = (u32)at, .reply = st_, .reply_cap = 128};
			rc = rg_call(c, &k, 20 * SECOND);
			number = rc ? k.number : 0; /* unknown: asked again */
			if (rc) continue;
			CHECK(!k.status || k.status == -EEXIST, "%s: %s", text(k.status), k.text); /* all of them are there already */
			for (int i = 0; i < 32; i++) CHECK(!st_[i] || st_[i] == -EEXIST, "%s", text(st_[i]));
			first += 32;
			if (first > 200) rc = keys_call(c, RG_OP_DELETE, ns, first - 200, 32, 0, 0, st_, NULL);
		}
		CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status), "status %d", status);
		while (waitpid(-1, NULL, 0) > 0) {}
		close(alive);
		OK(rg_client_renew(c, gen));
		attach();
		for (u64 n = first > 160 ? first - 160 : 1; n < first; n++) have(ns, n, 6000); /* what was acknowledged */
		detach(true);
	}
	printf("  %llu blocks\n", (unsigned long long)first);
	rg_client_free(c);
	munmap(mem.base, mem.size);
}

static const struct { const char *name; void (*f)(void); } tests[] = {
	{"open", t_open}, {"sizes", t_sizes}, {"threads", t_threads}, {"idle", t_idle}, {"slow", t_slow}, {"held", t_held}, {"stop", t_stop},
	{"killed", t_killed}, {"clients-die", t_clients_die}, {"processes", t_processes}, {"incoherent", t_incoherent}, {"garbage", t_garbage}, {"fork", t_fork}, {"core", t_core}, {"core-killed", t_core_killed},
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	seed = (u64)env("SEED", 1);
	counts = mmap(NULL, NUMBERS + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	again_seen = (void *)(counts + NUMBERS), block_on = again_seen + 1;
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		bool wanted = argc < 2;
		for (int k = 1; k < argc; k++) wanted |= !strcmp(argv[k], tests[i].name);
		if (!wanted) continue;
		double t = now();
		tests[i].f();
		printf("t_ring: %-12s %.1f s\n", tests[i].name, now() - t);
	}
	return 0;
}
