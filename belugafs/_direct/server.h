/* The direct transport: a server of the FUSE protocol on /dev/fuse itself, one thin layer over the core.
 *   server.c    threads, replies, INIT
 *   device.c    requests come from /dev/fuse
 *   names.c     look-up, attributes, names, extended attributes, statfs
 *   listing.c   directories
 *   files.c     open files
 *   passthrough.c  which of them have passthrough: backing ids
 *   opener.c    who opened a file for writing, and whether it is being killed
 * Nothing here knows of Python: what the daemon answers itself (the directory .beluga) and says (its log) goes
 * through two callbacks. */
#ifndef BELUGAFS_DIRECT_SERVER_H
#define BELUGAFS_DIRECT_SERVER_H

#include <pthread.h>
#include "core.h"
#include "proto.h"

#define DS_BUFFER_LEAST (128u << 10) /* of a thread; the kernel wants 8 KiB, an xattr 64 KiB */
#define DS_THREADS_MAX 64
#define DS_BLKSIZE (256u << 10)      /* one chunk of checksums: programs that buffer by st_blksize then write whole chunks */

struct ds;
struct ds_req { /* one request, while it is served */
	struct ds *d;
	struct bfs *b;
	const struct fp_in *in;
	int from;        /* the descriptor on which it came, and the reply goes */
	const u8 *arg;   /* behind the header */
	size_t arg_len;
	u8 *out;         /* room for a reply, DS_OUT bytes at least */
	size_t out_cap;
	bool replied;
};

/* What the daemon answers itself; > 0: bytes of the reply's body in out, 0: done, negative errno. */
typedef int ds_control(void *ctx, u32 opcode, u64 nodeid, u32 uid, const u8 *arg, size_t len, u8 *out, size_t cap);
/* With publish=close: has the process that opened this file still a descriptor of it? */
typedef bool ds_still_open(void *ctx, const u64 opener[2], u64 ino);
typedef void ds_log(void *ctx, int level, const char *text); /* level of Python's logging */

struct ds_config {
	int fd;             /* of /dev/fuse, mounted; stays the caller's */
	u32 max_pages;      /* of a request, as far as the kernel lets */
	u32 threads;        /* that wait for requests at a time */
	int passthrough;    /* directory pools: a regular file of the pool's tmpfs, to try passthrough with; -1: without */
	u32 spin_ns;        /* how long to look for the next request before sleeping, where they come quickly; 0: not at all */
	bool sync;          /* each write is one of a descriptor opened with O_SYNC */
	ds_control *control;
	ds_still_open *still_open; /* NULL: not publish=close */
	ds_log *log;
	void *ctx;
};

struct ds_info { /* what was agreed on */
	u32 kernel_minor, max_write, threads;
	u64 offered, flags;
	u64 requests;
	u64 backing_ids; /* open ones */
	int passthrough; /* 0: files have it, else the errno with which it was refused */
	int end; /* errno with which reading ended: ENODEV = unmounted, 0 = stopped, -1 = still going */
};

/* Answers INIT, starts the threads.  0 or negative errno (-EPROTO: kernel too old). */
int ds_start(struct bfs *b, const struct ds_config *c, struct ds **out);
int ds_ended_fd(struct ds *d);              /* eventfd, readable once no thread serves any more */
void ds_info(struct ds *d, struct ds_info *out);
void ds_stop(struct ds *d);                 /* requests under way are finished, no more are read; returns when all threads are out */
void ds_free(struct ds *d);                 /* after ds_stop */

/* ---- for the handlers ------------------------------------------------------------------------ */
typedef int ds_handler(struct ds_req *r);   /* 0 and nothing replied: empty reply; negative errno: that */
int ds_reply(struct ds_req *r, const void *body, size_t len);
int ds_replyv(struct ds_req *r, const struct iovec *body, int n); /* negative errno of the kernel; -EFAULT: nothing was replied */
bool ds_allows_mmap(const struct ds *d);    /* of files opened with direct_io */
size_t ds_room(const struct ds *d);         /* of the request buffer, behind the headers of a write */
const struct ds_config *ds_config_of(const struct ds *d);
struct ds_pt *ds_passthrough(const struct ds *d); /* NULL: without */

/* Arguments; NULL: too short, which the kernel never sends. */
static inline const void *ds_arg(struct ds_req *r, size_t n)
{
	const u8 *p = r->arg;
	if (r->arg_len < n) return NULL;
	r->arg += n, r->arg_len -= n;
	return p;
}
/* The next string, without its 0; NULL: there is none. */
const char *ds_name(struct ds_req *r, size_t *len);

#define DS_CONTROL_NAME ".beluga"
static inline bool ds_is_control(u64 ino) { return !(u32)ino; } /* slot 0 is never an object's */

void ds_attr(const struct bfs_attr *a, struct fp_attr *out);
void ds_entry(const struct bfs_attr *a, u32 valid_s, struct fp_entry_out *out);

ds_handler ds_lookup, ds_getattr, ds_setattr, ds_statx, ds_readlink, ds_symlink, ds_mknod, ds_mkdir, ds_unlink, ds_rmdir, ds_rename, ds_rename2, ds_link,
	ds_statfs, ds_setxattr, ds_getxattr, ds_listxattr, ds_removexattr;
ds_handler ds_opendir, ds_readdir, ds_readdirplus, ds_releasedir;
ds_handler ds_open, ds_create, ds_tmpfile, ds_read, ds_write, ds_flush, ds_fsync, ds_release, ds_fallocate, ds_lseek, ds_ioctl;
int ds_drop_privileges(struct bfs *b, u64 ino); /* set-user-id and set-group-id go, but for a directory's */

/* passthrough.c */
/* After INIT; probe: a file of the pool's tmpfs.  Negative errno: it doesn't work here. */
int ds_pt_start(struct bfs *b, int fuse, int probe, struct ds_pt **out);
void ds_pt_free(struct ds_pt *p);
/* An open of a regular file by the core's handle fh; write: it may store.  *id: the backing id for the reply, 0: without
 * passthrough.  0: counted until ds_pt_release; negative errno: the open fails. */
int ds_pt_open(struct ds_pt *p, u64 ino, u64 fh, bool write, int32_t *id);
void ds_pt_release(struct ds_pt *p, u64 ino, bool write); /* before the handle goes: what was unlinked is given back with it */
void ds_pt_headroom(struct ds_pt *p); /* bfs_headroom, not more often than is of use */
u64 ds_pt_ids(struct ds_pt *p);

/* opener.c: words for bfs_handle_user */
#define DS_HIDDEN (1ull << 63) /* in the first: a first writing under publish=close goes on */
void ds_opener(u32 thread_id, u64 out[2]);
bool ds_is_killed(const u64 opener[2]);

#endif
