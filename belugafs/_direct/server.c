/* Threads that take requests, call the handler, and write the reply.
 *
 * `threads` of them wait for a request at a time (device.c); the kernel gives a request to one of them, and that one
 * serves it to its end: no queue, no hand-over.  A call of the core may wait (a seal whose leader is
 * silent); so a watcher adds a thread when all have been busy with one request for WAIT_NS, and such
 * threads end when enough wait again.
 *
 * The end comes from the kernel (unmounted: ENODEV, aborted: ECONNABORTED), or from ds_stop, which
 * interrupts the threads in read(2) by a signal until all have seen it. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "device.h"
#include "server.h"

#define PAGE 4096u
/* What a file is written by goes into requests no larger than this: while the data of one is copied into the pool, and is
 * in the cache from the kernel's copy, that of the next comes (ds_write).  Larger ones cost more processor time, not less. */
#define WRITE_BYTES (1u << 20)
#define OUT_BYTES (1u << 20) /* listings, attributes */
#define WAIT_NS 50000000ull
#define LOG_ERROR 40
#define LOG_WARNING 30
#define LOG_INFO 20

struct ds {
	struct bfs *b;
	struct ds_config c;
	u32 kernel_minor, max_write;
	u64 offered, flags;
	int ended_fd, watch_fd;
	_Atomic(u64) requests;
	struct ds_pace pace;
	_Atomic(int) end;      /* -1: still going */
	_Atomic(bool) stop;
	pthread_mutex_t mx;    /* of what follows */
	u32 live;              /* threads */
	struct {
		pthread_t id;
		_Atomic(u64) busy_ns; /* since when, 0: in read(2) */
		enum { FREE, RUNNING, OUT } state; /* OUT: to be joined */
	} t[DS_THREADS_MAX];
	pthread_t watcher;
	char last_error[256];
	struct ds_pt *pt;      /* NULL: no passthrough */
	int pt_error;
};

static void say(struct ds *d, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(struct ds *d, int level, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	d->c.log(d->c.ctx, level, text);
}

bool ds_allows_mmap(const struct ds *d) { return d->flags & FP_I_DIRECT_IO_ALLOW_MMAP; }
const struct ds_config *ds_config_of(const struct ds *d) { return &d->c; }
struct ds_pt *ds_passthrough(const struct ds *d) { return d->pt; }
size_t ds_room(const struct ds *d) { return d->max_write > DS_BUFFER_LEAST ? d->max_write : DS_BUFFER_LEAST; }

/* ---- replies ------------------------------------------------------------------------------------ */
static int put(const struct ds_req *r, struct iovec *v, int n)
{
	int rc = 0;
	while (writev(r->from, v, n) < 0) {
		if (errno == EINTR) continue;
		/* the caller was killed meanwhile, or the mount is gone: nobody waits for this reply */
		if (errno != ENOENT && errno != ENODEV && errno != ECONNABORTED) rc = -errno;
		break;
	}
	ds_replied(&r->d->pace);
	return rc;
}

int ds_replyv(struct ds_req *r, const struct iovec *body, int n)
{
	struct iovec v[256];
	struct fp_out h = {.unique = r->in->unique, .len = sizeof h};
	if (n > 255) return -EINVAL;
	for (int i = 0; i < n; i++) h.len += (u32)body[i].iov_len, v[i + 1] = body[i];
	v[0] = (struct iovec){&h, sizeof h};
	int rc = put(r, v, n + 1);
	if (!rc) r->replied = true;
	return rc;
}

int ds_reply(struct ds_req *r, const void *body, size_t len)
{
	struct iovec v = {(void *)(uintptr_t)body, len};
	return ds_replyv(r, &v, 1);
}

static void reply_error(struct ds_req *r, int rc)
{
	struct fp_out h = {.unique = r->in->unique, .len = sizeof h, .error = rc};
	struct iovec v = {&h, sizeof h};
	if ((rc = put(r, &v, 1))) say(r->d, LOG_ERROR, "the reply to a request was refused: %s", strerror(-rc));
}

const char *ds_name(struct ds_req *r, size_t *len)
{
	const char *p = (const char *)r->arg;
	const char *end = r->arg_len ? memchr(p, 0, r->arg_len) : NULL;
	if (!end) return NULL;
	*len = (size_t)(end - p);
	r->arg += *len + 1, r->arg_len -= *len + 1;
	return p;
}

/* ---- one request ------------------------------------------------------------------------------------ */
static int h_nothing(struct ds_req *r) { (void)r; return 0; }

static const struct op { const char *name; ds_handler *f; } ops[FP_OPS] = {
	[FP_LOOKUP] = {"lookup", ds_lookup}, [FP_GETATTR] = {"getattr", ds_getattr}, [FP_SETATTR] = {"setattr", ds_setattr}, [FP_READLINK] = {"readlink", ds_readlink},
	[FP_SYMLINK] = {"symlink", ds_symlink}, [FP_MKNOD] = {"mknod", ds_mknod}, [FP_MKDIR] = {"mkdir", ds_mkdir}, [FP_UNLINK] = {"unlink", ds_unlink},
	[FP_RMDIR] = {"rmdir", ds_rmdir}, [FP_RENAME] = {"rename", ds_rename}, [FP_LINK] = {"link", ds_link}, [FP_OPEN] = {"open", ds_open}, [FP_READ] = {"read", ds_read},
	[FP_WRITE] = {"write", ds_write}, [FP_STATFS] = {"statfs", ds_statfs}, [FP_RELEASE] = {"release", ds_release}, [FP_FSYNC] = {"fsync", ds_fsync},
	[FP_SETXATTR] = {"setxattr", ds_setxattr}, [FP_GETXATTR] = {"getxattr", ds_getxattr}, [FP_LISTXATTR] = {"listxattr", ds_listxattr},
	[FP_REMOVEXATTR] = {"removexattr", ds_removexattr}, [FP_FLUSH] = {"flush", ds_flush}, [FP_OPENDIR] = {"opendir", ds_opendir}, [FP_READDIR] = {"readdir", ds_readdir},
	[FP_RELEASEDIR] = {"releasedir", ds_releasedir}, [FP_CREATE] = {"create", ds_create}, [FP_IOCTL] = {"ioctl", ds_ioctl}, [FP_FALLOCATE] = {"fallocate", ds_fallocate},
	[FP_READDIRPLUS] = {"readdirplus", ds_readdirplus}, [FP_RENAME2] = {"rename", ds_rename2}, [FP_LSEEK] = {"lseek", ds_lseek}, [FP_TMPFILE] = {"tmpfile", ds_tmpfile},
	[FP_STATX] = {"statx", ds_statx}, [FP_DESTROY] = {"destroy", h_nothing},
	/* names are in the pool when the call that made them returns */
	[FP_FSYNCDIR] = {"fsyncdir", h_nothing},
};

static bool makes_name(u32 op)
{
	return op == FP_SYMLINK || op == FP_MKNOD || op == FP_MKDIR || op == FP_UNLINK || op == FP_RMDIR || op == FP_RENAME || op == FP_RENAME2 || op == FP_LINK || op == FP_CREATE;
}

/* Is it about the directory .beluga, which the daemon answers for? */
static bool to_daemon(const struct fp_in *in, const u8 *arg, size_t len)
{
	if (ds_is_control(in->nodeid)) return true;
	return in->nodeid == BFS_ROOT_INO && in->opcode == FP_LOOKUP && len == sizeof DS_CONTROL_NAME && !memcmp(arg, DS_CONTROL_NAME, len);
}

static int dispatch(struct ds_req *r)
{
	const struct fp_in *in = r->in;
	struct ds *d = r->d;
	if (to_daemon(in, r->arg, r->arg_len)) {
		if (makes_name(in->opcode)) return -EPERM;
		int n = d->c.control(d->c.ctx, in->opcode, in->nodeid, in->uid, r->arg, r->arg_len, r->out, r->out_cap);
		return n <= 0 ? n : ds_reply(r, r->out, (size_t)n);
	}
	ds_handler *f = in->opcode < FP_OPS ? ops[in->opcode].f : NULL;
	if (!f) return -ENOSYS;
	bfs_errmsg_clear();
	int rc = bfs_check_same(r->b);
	return rc ? rc : f(r);
}

/* The core's errno goes to the caller as it is, but for one that means something else to it. */
static int told(struct ds *d, u32 op, int rc)
{
	const char *name = op < FP_OPS && ops[op].name ? ops[op].name : "a request", *text = bfs_errmsg();
	bool lost = rc == -ENOENT && *text; /* no ordinary miss: its backing file is gone */
	if (rc != -EIO && rc != -EAGAIN && !lost) return rc;
	if (!*text) text = strerror(-rc);
	/* Whoever reads a damaged block asks for each of its pages, and then tries again. */
	pthread_mutex_lock(&d->mx);
	bool again = !strncmp(text, d->last_error, sizeof d->last_error - 1);
	if (!again) snprintf(d->last_error, sizeof d->last_error, "%s", text);
	pthread_mutex_unlock(&d->mx);
	if (!again) say(d, rc == -EAGAIN ? LOG_WARNING : LOG_ERROR, "%s: %s", name, text);
	if (lost) return rc;
	/* EAGAIN comes from a host that lost the lead; to the caller it would say that a descriptor would block */
	return -EIO;
}

static void serve(struct ds *d, int from, const u8 *buf, size_t n, u8 *out)
{
	const struct fp_in *in = (const void *)buf;
	if (n < sizeof *in || in->len != n || (size_t)in->ext_words * 8 > n - sizeof *in) {
		say(d, LOG_ERROR, "a request of %zu bytes can't be understood", n);
		return;
	}
	if (in->opcode == FP_FORGET || in->opcode == FP_BATCH_FORGET) return; /* nothing is held for an inode that the kernel knows */
	if (in->opcode == FP_INTERRUPT) return; /* what is asked is answered soon: nothing here waits for another caller */
	struct ds_req r = {.d = d, .b = d->b, .in = in, .from = from, .arg = buf + sizeof *in, .arg_len = n - sizeof *in - (size_t)in->ext_words * 8, .out = out, .out_cap = OUT_BYTES};
	int rc = dispatch(&r);
	if (rc && r.replied) say(d, LOG_ERROR, "request %u answered, and failed: %s", in->opcode, strerror(-rc));
	else if (!r.replied) reply_error(&r, rc ? told(d, in->opcode, rc) : 0);
}

static int wake_signal(void) { return SIGRTMIN + 3; }

/* ---- threads -------------------------------------------------------------------------------------------- */
struct memory { u8 *map, *buf, *out; size_t map_len, buf_len; };

/* Data of a write is aligned to a page, behind its two headers. */
static bool memory(struct ds *d, struct memory *m)
{
	size_t head = sizeof(struct fp_in) + sizeof(struct fp_write_in), data = ds_room(d);
	m->map_len = PAGE + data + PAGE + OUT_BYTES;
	m->map = mmap(NULL, m->map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->map == MAP_FAILED) return false;
	m->buf = m->map + PAGE - head, m->buf_len = head + data;
	m->out = m->map + PAGE + data + PAGE;
	return true;
}

struct birth { struct ds *d; u32 i; struct memory m; };

static void over(struct ds *d, int end)
{
	int none = -1;
	atomic_compare_exchange_strong(&d->end, &none, end);
}

static void *loop(void *arg)
{
	struct birth *p = arg;
	struct ds *d = p->d;
	struct memory m = p->m;
	u32 i = p->i;
	struct ds_port port;
	bool surplus = false;
	sigset_t mask;
	free(p);
	sigfillset(&mask); /* those of the process are the main thread's; those of a fault can't be anybody else's */
	sigdelset(&mask, wake_signal()), sigdelset(&mask, SIGBUS), sigdelset(&mask, SIGSEGV), sigdelset(&mask, SIGFPE), sigdelset(&mask, SIGILL);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	ds_port_open(&port, d->c.fd, &d->pace);
	while (!surplus && !atomic_load(&d->stop)) {
		int from;
		ssize_t n = ds_port_read(&port, m.buf, m.buf_len, &d->stop, &from);
		if (n < 0) {
			/* ENOENT: the request was interrupted while it was being read */
			if (errno == EINTR || errno == EAGAIN || errno == ENOENT) continue;
			over(d, errno);
			break;
		}
		atomic_store_explicit(&d->t[i].busy_ns, ds_now_ns(), memory_order_relaxed);
		atomic_fetch_add_explicit(&d->requests, 1, memory_order_relaxed);
		serve(d, from, m.buf, (size_t)n, m.out);
		atomic_store_explicit(&d->t[i].busy_ns, 0, memory_order_relaxed);
		if (i >= d->c.threads) { /* added by the watcher: is it still needed? */
			u32 waiting = 0;
			pthread_mutex_lock(&d->mx);
			for (u32 k = 0; k < DS_THREADS_MAX; k++) waiting += d->t[k].state == RUNNING && !atomic_load_explicit(&d->t[k].busy_ns, memory_order_relaxed);
			surplus = waiting > d->c.threads;
			pthread_mutex_unlock(&d->mx);
		}
	}
	ds_port_close(&port);
	munmap(m.map, m.map_len);
	pthread_mutex_lock(&d->mx);
	d->t[i].state = OUT;
	bool last = !--d->live;
	pthread_mutex_unlock(&d->mx);
	if (last) {
		u64 one = 1;
		over(d, 0);
		(void)!write(d->ended_fd, &one, sizeof one);
	}
	return NULL;
}

static int spawn(struct ds *d) /* under mx */
{
	u32 i = 0;
	while (i < DS_THREADS_MAX && d->t[i].state == RUNNING) i++;
	if (i == DS_THREADS_MAX || atomic_load(&d->stop)) return -EAGAIN;
	if (d->t[i].state == OUT) pthread_join(d->t[i].id, NULL);
	d->t[i].state = FREE;
	struct birth *p = malloc(sizeof *p);
	if (!p) return -ENOMEM;
	*p = (struct birth){.d = d, .i = i};
	atomic_store(&d->t[i].busy_ns, 0);
	int rc = memory(d, &p->m) ? -pthread_create(&d->t[i].id, NULL, loop, p) : -ENOMEM;
	if (rc) {
		if (p->m.map && p->m.map != MAP_FAILED) munmap(p->m.map, p->m.map_len);
		free(p);
		return rc;
	}
	d->t[i].state = RUNNING, d->live++;
	return 0;
}

/* Adds a thread when none waits and none is going to soon. */
static void *watch(void *arg)
{
	struct ds *d = arg;
	while (!atomic_load(&d->stop) && atomic_load(&d->end) < 0) {
		struct timespec t = {0, WAIT_NS / 2};
		nanosleep(&t, NULL);
		u64 now = ds_now_ns();
		bool stuck = true;
		pthread_mutex_lock(&d->mx);
		for (u32 i = 0; i < DS_THREADS_MAX && stuck; i++) {
			u64 since = atomic_load_explicit(&d->t[i].busy_ns, memory_order_relaxed);
			if (d->t[i].state == RUNNING && (!since || now - since < WAIT_NS)) stuck = false;
		}
		if (stuck && d->live) spawn(d);
		pthread_mutex_unlock(&d->mx);
	}
	return NULL;
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */
static void on_signal(int sig) { (void)sig; }

static int agree(struct ds *d, const u8 *buf, size_t n)
{
	const struct fp_in *in = (const void *)buf;
	const struct fp_init_in *x = (const void *)(in + 1);
	struct ds_req r = {.d = d, .in = in, .from = d->c.fd};
	if (n < sizeof *in + 16 || in->opcode != FP_INIT) return -EPROTO;
	if (x->major != FP_MAJOR || x->minor < FP_MINOR_LEAST) {
		reply_error(&r, -EPROTO);
		return -EPROTO;
	}
	d->kernel_minor = x->minor;
	d->offered = x->flags;
	if (d->offered & FP_I_INIT_EXT && n >= sizeof *in + sizeof *x) d->offered |= (u64)x->flags2 << 32;
	u64 want = FP_I_ASYNC_READ | FP_I_ATOMIC_O_TRUNC | FP_I_EXPORT_SUPPORT | FP_I_BIG_WRITES | FP_I_AUTO_INVAL_DATA | FP_I_DO_READDIRPLUS | FP_I_READDIRPLUS_AUTO | FP_I_ASYNC_DIO |
		   FP_I_PARALLEL_DIROPS | FP_I_ABORT_ERROR | FP_I_MAX_PAGES | FP_I_CACHE_SYMLINKS | FP_I_HANDLE_KILLPRIV_V2 | FP_I_INIT_EXT | FP_I_DIRECT_IO_ALLOW_MMAP;
	if (d->c.passthrough >= 0) want |= FP_I_PASSTHROUGH;
	d->flags = d->offered & want;
	u32 pages = d->flags & FP_I_MAX_PAGES ? d->c.max_pages : 32;
	d->max_write = pages * PAGE;
	struct fp_init_out out = {
		.major = FP_MAJOR, .minor = x->minor < FP_MINOR ? x->minor : FP_MINOR, .max_readahead = x->max_readahead, .flags = (u32)d->flags, .flags2 = (u32)(d->flags >> 32),
		.max_background = 64, .congestion_threshold = 48, .max_write = d->max_write < WRITE_BYTES ? d->max_write : WRITE_BYTES, .time_gran = 1, .max_pages = (u16)pages,
		/* how many filesystems may lie on top of each other, this one not counted: a tmpfs, and nothing below */
		.max_stack_depth = d->flags & FP_I_PASSTHROUGH ? 1 : 0,
	};
	int rc = ds_reply(&r, &out, sizeof out);
	if (!rc && d->c.passthrough >= 0) d->pt_error = d->flags & FP_I_PASSTHROUGH ? -ds_pt_start(d->b, d->c.fd, d->c.passthrough, &d->pt) : ENOSYS;
	return rc;
}

int ds_start(struct bfs *b, const struct ds_config *c, struct ds **out)
{
	u8 buf[8192] __attribute__((aligned(8)));
	struct sigaction sa = {.sa_handler = on_signal};
	struct ds *d = calloc(1, sizeof *d);
	if (!d) return -ENOMEM;
	d->b = b, d->c = *c, d->pace.spin_ns = c->spin_ns, d->pace.processors = get_nprocs();
	if (!d->c.threads) d->c.threads = 1;
	if (d->c.threads > DS_THREADS_MAX / 2) d->c.threads = DS_THREADS_MAX / 2;
	if (!d->c.max_pages) d->c.max_pages = 32;
	atomic_store(&d->end, -1);
	pthread_mutex_init(&d->mx, NULL);
	d->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int rc = d->ended_fd < 0 ? -errno : 0;
	ssize_t n = 0;
	while (!rc && (n = read(c->fd, buf, sizeof buf)) < 0)
		if (errno != EINTR) rc = -errno;
	if (!rc) rc = agree(d, buf, (size_t)n);
	sigemptyset(&sa.sa_mask);
	if (!rc && sigaction(wake_signal(), &sa, NULL)) rc = -errno;
	if (rc) {
		if (d->ended_fd >= 0) close(d->ended_fd);
		if (d->pt) ds_pt_free(d->pt);
		free(d);
		return rc;
	}
	pthread_mutex_lock(&d->mx);
	for (u32 i = 0; i < d->c.threads && !rc; i++) rc = spawn(d);
	pthread_mutex_unlock(&d->mx);
	if (!rc) rc = -pthread_create(&d->watcher, NULL, watch, d);
	if (rc) {
		d->watcher = pthread_self();
		ds_stop(d);
		ds_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

int ds_ended_fd(struct ds *d) { return d->ended_fd; }

void ds_info(struct ds *d, struct ds_info *o)
{
	pthread_mutex_lock(&d->mx);
	*o = (struct ds_info){.kernel_minor = d->kernel_minor, .max_write = d->max_write, .threads = d->live, .offered = d->offered, .flags = d->flags, .requests = atomic_load(&d->requests), .end = atomic_load(&d->end),
		.backing_ids = d->pt ? ds_pt_ids(d->pt) : 0, .passthrough = d->pt ? 0 : d->pt_error ? d->pt_error : ENOTSUP};
	pthread_mutex_unlock(&d->mx);
}

void ds_stop(struct ds *d)
{
	atomic_store(&d->stop, true);
	if (!pthread_equal(d->watcher, pthread_self())) pthread_join(d->watcher, NULL);
	d->watcher = pthread_self();
	for (;;) { /* a signal that comes just before read(2) is lost: again */
		u32 left = 0;
		pthread_mutex_lock(&d->mx);
		for (u32 i = 0; i < DS_THREADS_MAX; i++)
			if (d->t[i].state == RUNNING) left++, pthread_kill(d->t[i].id, wake_signal());
		pthread_mutex_unlock(&d->mx);
		if (!left) break;
		struct timespec t = {0, 2000000};
		nanosleep(&t, NULL);
	}
	for (u32 i = 0; i < DS_THREADS_MAX; i++)
		if (d->t[i].state == OUT) pthread_join(d->t[i].id, NULL), d->t[i].state = FREE;
}

void ds_free(struct ds *d)
{
	close(d->ended_fd);
	if (d->pt) ds_pt_free(d->pt);
	pthread_mutex_destroy(&d->mx);
	free(d);
}
