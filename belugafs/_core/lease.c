/* Processes of this host that read the pool in place: the host file, which tells them what this host has
 * applied, and their lease files, which tell this host what they read and hold.
 *
 * Both outlive the daemon.  The one that comes next takes them over before its own lines in the pool say less than
 * its predecessor's, so to the other hosts nothing has happened.  A process is dead when its lock can be had:
 * then its lease file goes, and with it all that it held.  docs/protocol.md, "Readers in other processes of a host";
 * docs/format.md, 19.
 *
 * A lease file is written by somebody who is trusted with reading, and with nothing else: each word is
 * loaded once and checked, and behind a guard, for the file may be cut. */
#define _GNU_SOURCE
#include "lease.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_BYTES sizeof(struct bfs_lhost)
#define LEASE_BYTES sizeof(struct bfs_llease)

struct process {
	struct bfs_llease *f;
	int fd;        /* a description of our own: to try the lock */
	char name[32]; /* in the directory; "" : none */
	u64 touched;   /* position in its ring */
	u64 id;        /* in this daemon */
	u32 pid, uid;
	i64 made_ns;
};

struct share {
	pthread_mutex_t mx; /* the table */
	int dir_fd, host_fd, pool_fd; /* dir_fd -1: files without a name */
	char *path;
	pid_t pid;
	struct process p[BFS_LOCAL_CLIENTS];
	u32 n;
	u64 ids; /* given so far */
};

/* ---- files ------------------------------------------------------------------------------- */
static int again(int fd, int flags) /* another open file description */
{
	char path[40];
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int n = open(path, flags | O_CLOEXEC);
	return n < 0 ? -errno : n;
}

static void hex(const u8 *p, char *s)
{
	for (int i = 0; i < 16; i++) sprintf(s + 2 * i, "%02x", p[i]);
}

/* Room for all of it: a store into a hole on a full tmpfs would be a SIGBUS. */
static int fill(int fd, size_t bytes)
{
	int rc = posix_fallocate(fd, 0, (off_t)bytes);
	return rc ? -rc : 0;
}

static int nameless(const char *what, size_t bytes)
{
	int fd = memfd_create(what, MFD_CLOEXEC), rc = fd < 0 ? -errno : fill(fd, bytes);
	if (rc && fd >= 0) close(fd);
	return rc ? rc : fd;
}

static off_t lock_at(u32 slot, u64 id) { return (off_t)((1ull << 62) + ((u64)slot << 40) + (id & ((1ull << 40) - 1))); }

/* Does a process have this range of the pool locked? */
static bool locked(int pool_fd, off_t from, off_t len)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = len};
	return len > 0 && !fcntl(pool_fd, F_OFD_GETLK, &l) && l.l_type != F_UNLCK;
}

static int open_dir(struct bfs *b, struct share *sh)
{
	char id[33];
	struct stat st;
	hex(b->sb.uuid, id);
	if (asprintf(&sh->path, "%s/%s.%u", b->o.local, id, b->slot) < 0) return sh->path = NULL, -ENOMEM;
	if ((mkdir(b->o.local, 0755) && errno != EEXIST) || (mkdir(sh->path, 0700) && errno != EEXIST))
		return bfs_fail(b, -errno, "%s can't be made: %s", sh->path, strerror(errno));
	sh->dir_fd = open(sh->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (sh->dir_fd < 0 || fstat(sh->dir_fd, &st)) return bfs_fail(b, -errno, "%s can't be opened: %s", sh->path, strerror(errno));
	/* in a directory that everybody may write to, somebody else may have made it */
	if (st.st_uid != geteuid() || st.st_mode & 077) return bfs_fail(b, -EPERM, "%s isn't this user's alone; remove it", sh->path);
	return 0;
}

static int open_host(struct bfs *b, struct share *sh)
{
	struct stat st, at;
	int rc;
	if (sh->dir_fd < 0) return (sh->host_fd = nameless("belugafs-host", HOST_BYTES)) < 0 ? sh->host_fd : 0;
	for (int tries = 0; tries < 8; tries++) {
		sh->host_fd = openat(sh->dir_fd, "host", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (sh->host_fd < 0) return bfs_fail(b, -errno, "%s/host can't be opened: %s", sh->path, strerror(errno));
		if (flock(sh->host_fd, LOCK_EX | LOCK_NB)) return bfs_fail(b, -EBUSY, "host slot %u is attached by another process: %s/host is locked", b->slot, sh->path);
		if (!fstat(sh->host_fd, &st) && !fstatat(sh->dir_fd, "host", &at, AT_SYMLINK_NOFOLLOW) && st.st_ino == at.st_ino) { /* who had it before may have removed it */
			if ((rc = fill(sh->host_fd, HOST_BYTES))) return bfs_fail(b, rc, "no room for %s/host: %s", sh->path, strerror(-rc));
			return 0;
		}
		close(sh->host_fd);
	}
	return -EAGAIN;
}

static bool ours(struct bfs *b, const struct bfs_lhost *h)
{
	return h->magic == BFS_LOCAL_HOST_MAGIC && h->version == BFS_LOCAL_VERSION && h->bytes == HOST_BYTES && h->slot == b->slot &&
	       h->incarnation == b->sb.incarnation && !memcmp(h->uuid, b->sb.uuid, 16) && h->boot == b->o.boot;
}

/* A lease file that lives: into the table.  1: a dead one's, removed. */
static int take_over(struct bfs *b, struct share *sh, const char *name)
{
	struct stat st;
	int fd = openat(sh->dir_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0) return bfs_fail(b, -errno, "%s/%s can't be opened: %s", sh->path, name, strerror(errno));
	if (!flock(fd, LOCK_EX | LOCK_NB)) {
		unlinkat(sh->dir_fd, name, 0);
		close(fd);
		return 1;
	}
	struct bfs_llease *f = MAP_FAILED;
	if (!fstat(fd, &st) && (size_t)st.st_size == LEASE_BYTES && strlen(name) < sizeof sh->p[0].name && sh->n < BFS_LOCAL_CLIENTS) f = mmap(NULL, LEASE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	u64 head[4];
	if (f == MAP_FAILED || bfs_guarded_words(head, (const u64 *)f, 4) || head[0] != BFS_LOCAL_LEASE_MAGIC || head[1] != (BFS_LOCAL_VERSION | (u64)LEASE_BYTES << 32)) {
		if (f != MAP_FAILED) munmap(f, LEASE_BYTES);
		close(fd);
		return bfs_fail(b, -EBUSY, "a process that reads this pool in place has a lease file that this version doesn't know, %s/%s: end that process (fuser %s/%s)", sh->path, name, sh->path, name);
	}
	struct process *p = &sh->p[sh->n++];
	*p = (struct process){.f = f, .fd = fd, .pid = f->pid, .uid = f->uid, .made_ns = (i64)f->made_ns, .id = ++sh->ids};
	strcpy(p->name, name);
	if (bfs_guarded_words(&p->touched, &f->touch_pos, 1)) p->touched = 0;
	return 0;
}

static int scan_dir(struct bfs *b, struct share *sh)
{
	int fd = openat(sh->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) return bfs_fail(b, -errno, "%s can't be read: %s", sh->path, strerror(errno));
	for (struct dirent *e; rc >= 0 && (e = readdir(d));) {
		if (!strncmp(e->d_name, "lease.", 6)) rc = take_over(b, sh, e->d_name);
		else if (!strncmp(e->d_name, "new.", 4)) unlinkat(sh->dir_fd, e->d_name, 0); /* never given to anybody */
	}
	closedir(d);
	return rc < 0 ? rc : 0;
}

static void drop(struct share *sh)
{
	if (!sh) return;
	for (u32 i = 0; i < sh->n; i++) {
		munmap(sh->p[i].f, LEASE_BYTES);
		close(sh->p[i].fd);
	}
	if (sh->host_fd >= 0) close(sh->host_fd);
	if (sh->dir_fd >= 0) close(sh->dir_fd);
	free(sh->path);
	free(sh);
}

/* ---- attach, detach ------------------------------------------------------------------------- */
/* Processes of this slot that don't use this host file: what they hold isn't known. */
static int strangers(struct bfs *b, u64 id, u32 known)
{
	off_t first = lock_at(b->slot, 0), own = lock_at(b->slot, id), end = first + (1ll << 40);
	bool there = id ? locked(b->o.pool_fd, first, own - first) || locked(b->o.pool_fd, own + 1, end - own - 1) || (!known && locked(b->o.pool_fd, own, 1))
			: locked(b->o.pool_fd, first, end - first);
	if (!there || BFS_MUT(MUT_STRANGERS_IGNORED)) return 0;
	return bfs_fail(b, -EBUSY, "processes still read this pool in place that began under another mount as this host, and their leases aren't in %s: end them, or mount with the directory of then (run_dir=), or as another host (host=NAME)",
			b->o.local && *b->o.local ? b->o.local : "this process");
}

int ls_attach(struct bfs *b)
{
	struct share *sh;
	struct bfs_lhost *h = MAP_FAILED;
	int rc = 0;
	b->local_error = -EOPNOTSUPP;
	if (!b->o.local || b->o.readonly || b->back) return 0;
	if (!(sh = calloc(1, sizeof *sh))) return -ENOMEM;
	sh->dir_fd = sh->host_fd = -1, sh->pool_fd = b->o.pool_fd, sh->pid = getpid();
	pthread_mutex_init(&sh->mx, NULL);
	if (*b->o.local) rc = open_dir(b, sh);
	if (!rc) rc = open_host(b, sh);
	if (!rc && (h = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, sh->host_fd, 0)) == MAP_FAILED) rc = -errno;
	bool known = !rc && ours(b, h);
	if (!rc && sh->dir_fd >= 0 && !BFS_MUT(MUT_LEASES_NOT_TAKEN_OVER)) rc = scan_dir(b, sh);
	if (rc && rc != -EBUSY) {
		/* a pool works without; but nobody may be left who relies on it */
		b->local_error = rc;
		if (h != MAP_FAILED) munmap(h, HOST_BYTES);
		drop(sh);
		return strangers(b, 0, 0);
	}
	if (!rc) rc = strangers(b, known ? h->id : 0, sh->n);
	if (!rc && sh->n && !known) rc = bfs_fail(b, -EBUSY, "%s/host isn't what the processes that read this pool use: end them", sh->path);
	if (rc) {
		if (h != MAP_FAILED) munmap(h, HOST_BYTES);
		drop(sh);
		return rc;
	}
	if (!sh->n) { /* nobody is left who uses it */
		u64 seq = known ? h->seq : 0;
		u32 epoch = known ? h->epoch : 0;
		memset(h, 0, HOST_BYTES);
		h->seq = seq, h->epoch = epoch;
		do h->id = b->m->ops->rand64(b->m);
		while (!h->id);
		h->magic = BFS_LOCAL_HOST_MAGIC, h->version = BFS_LOCAL_VERSION, h->bytes = HOST_BYTES;
		memcpy(h->uuid, b->sb.uuid, 16);
		h->incarnation = b->sb.incarnation, h->slot = b->slot, h->boot = b->o.boot;
	}
	__atomic_store_n(&h->epoch, h->epoch + 1, __ATOMIC_RELAXED);
	madvise(h, HOST_BYTES, MADV_DONTFORK); /* a child would keep the lock */
	b->share = sh, b->lhost = h, b->local_error = 0;
	atomic_store(&b->nclients, sh->n);
	/* terms that the processes' snapshots have: of the last one it is known */
	struct bfs_snap s = ld_newest(b);
	if (s.root.page) b->past[s.txn % 64].txn = s.txn, b->past[s.txn % 64].term = s.term;
	return 0;
}

void ls_publish(struct bfs *b)
{
	struct bfs_lhost *h = b->share ? b->lhost : NULL;
	if (!h) return;
	__atomic_store_n(&h->registration, b->incarnation, __ATOMIC_RELAXED);
	__atomic_store_n(&h->pid, (u32)getpid(), __ATOMIC_RELAXED);
	__atomic_store_n(&h->verify, (u32)b->o.verify, __ATOMIC_RELAXED);
	__atomic_store_n(&h->suspect_ns, b->o.suspect_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&h->pool_bytes, b->m->size, __ATOMIC_RELAXED);
	__atomic_store_n(&h->coherent, b->m->coherent, __ATOMIC_RELEASE);
}

int bfs_local_error(struct bfs *b) { return b->share ? 0 : b->local_error; }

static bool dead(const struct process *p) { return !BFS_MUT(MUT_DEAD_PROCESS_KEPT) && !flock(p->fd, LOCK_EX | LOCK_NB); }

int ls_reap(struct bfs *b)
{
	struct share *sh = b->share;
	int n = 0;
	if (!sh || !atomic_load_explicit(&b->nclients, memory_order_relaxed)) return 0;
	lk(b, &sh->mx);
	for (u32 i = 0; i < sh->n;) {
		struct process *p = &sh->p[i];
		if (!dead(p)) {
			i++;
			continue;
		}
		if (*p->name) unlinkat(sh->dir_fd, p->name, 0);
		munmap(p->f, LEASE_BYTES);
		close(p->fd);
		*p = sh->p[--sh->n];
		n++;
	}
	atomic_store(&b->nclients, sh->n);
	if (n) atomic_store(&b->rescan, true), atomic_store(&b->rv.died, true);
	unlk(b, &sh->mx);
	return n;
}

bool ls_live(struct bfs *b)
{
	ls_reap(b);
	return !BFS_MUT(MUT_DETACHED_CLEAN) && atomic_load(&b->nclients);
}

void ls_detach(struct bfs *b, bool clean)
{
	struct share *sh = b->share;
	if (!sh) return;
	bool own = sh->pid == getpid(); /* no child's business, in which it isn't mapped either */
	if (own && clean) ls_reap(b);
	if (own && clean && !sh->n && sh->dir_fd >= 0) {
		unlinkat(sh->dir_fd, "host", 0);
		rmdir(sh->path);
	}
	if (own) munmap(b->lhost, HOST_BYTES);
	b->lhost = NULL, b->share = NULL;
	atomic_store(&b->nclients, 0);
	drop(sh);
}

/* ---- one more --------------------------------------------------------------------------------- */
/* Made under a name that no scan takes for a lease, locked, and renamed: nobody finds it without its lock. */
static int make_lease(struct bfs *b, struct share *sh, struct process *p, int *fd)
{
	char temp[32];
	int rc;
	u64 r = b->m->ops->rand64(b->m);
	if (sh->dir_fd < 0) {
		if ((*fd = nameless("belugafs-lease", LEASE_BYTES)) < 0) return *fd;
	} else {
		snprintf(temp, sizeof temp, "new.%016llx", (unsigned long long)r);
		if ((*fd = openat(sh->dir_fd, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) < 0) return -errno;
		if ((rc = fill(*fd, LEASE_BYTES))) goto fail;
	}
	if ((p->fd = again(*fd, O_RDWR)) < 0) {
		rc = p->fd;
		goto fail;
	}
	/* not *fd: a mapping would keep its lock */
	p->f = mmap(NULL, LEASE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	rc = p->f == MAP_FAILED ? -errno : flock(*fd, LOCK_EX | LOCK_NB) ? -errno : 0;
	if (!rc) {
		struct bfs_llease *f = p->f;
		f->version = BFS_LOCAL_VERSION, f->bytes = LEASE_BYTES;
		memcpy(f->uuid, b->sb.uuid, 16);
		f->incarnation = b->sb.incarnation, f->host_id = b->lhost->id, f->pid = p->pid, f->uid = p->uid, f->made_ns = (u64)p->made_ns;
		f->magic = BFS_LOCAL_LEASE_MAGIC;
		if (sh->dir_fd < 0) return 0;
		snprintf(p->name, sizeof p->name, "lease.%016llx", (unsigned long long)r);
		if (!renameat(sh->dir_fd, temp, sh->dir_fd, p->name)) return 0;
		rc = -errno;
	}
	if (p->f != MAP_FAILED) munmap(p->f, LEASE_BYTES);
	close(p->fd);
fail:
	if (sh->dir_fd >= 0) unlinkat(sh->dir_fd, temp, 0);
	close(*fd);
	return rc;
}

int bfs_client_new(struct bfs *b, u32 pid, u32 uid, int fds[3])
{
	struct share *sh = b->share;
	struct process p = {.pid = pid, .uid = uid, .made_ns = (i64)now_ns(b)};
	if (!sh) return bfs_fail(b, -EOPNOTSUPP, "this pool can't be read in place here");
	struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = lock_at(b->slot, b->lhost->id), .l_len = 1};
	int rc = 0;
	fds[0] = fds[1] = fds[2] = -1;
	ls_reap(b);
	lk(b, &sh->mx);
	if (sh->n == BFS_LOCAL_CLIENTS) rc = bfs_fail(b, -EUSERS, "%u processes read this pool in place already", sh->n);
	else if ((fds[0] = again(sh->pool_fd, O_RDONLY)) < 0) rc = fds[0];
	else if (fcntl(fds[0], F_OFD_SETLK, &l)) rc = -errno;
	else if ((fds[1] = again(sh->host_fd, O_RDONLY)) < 0) rc = fds[1];
	else if (!(rc = make_lease(b, sh, &p, &fds[2]))) {
		p.id = ++sh->ids;
		sh->p[sh->n++] = p;
		atomic_store(&b->nclients, sh->n);
	} else {
		fds[2] = -1;
	}
	unlk(b, &sh->mx);
	for (int i = 0; rc && i < 2; i++)
		if (fds[i] >= 0) close(fds[i]);
	return rc;
}

/* ---- what they have reserved ------------------------------------------------------------------------- */
u64 bfs_client_of(struct bfs *b, int lease_fd)
{
	struct share *sh = b->share;
	struct stat want, st;
	u64 id = 0;
	if (!sh || fstat(lease_fd, &want)) return 0;
	lk(b, &sh->mx);
	for (u32 i = 0; i < sh->n && !id; i++)
		if (!fstat(sh->p[i].fd, &st) && st.st_ino == want.st_ino && st.st_dev == want.st_dev) id = sh->p[i].id;
	unlk(b, &sh->mx);
	return id;
}

static struct process *by_id(struct share *sh, u64 id)
{
	for (u32 i = 0; sh && i < sh->n; i++)
		if (sh->p[i].id == id) return &sh->p[i];
	return NULL;
}

bool ls_knows(struct bfs *b, u64 client)
{
	struct share *sh = b->share;
	if (!sh || !client) return false;
	lk(b, &sh->mx);
	bool known = by_id(sh, client) != NULL;
	unlk(b, &sh->mx);
	return known;
}

/* A process may have cut its file: then it has no reservation that outlives this daemon, and no other harm is done. */
int ls_res_put(struct bfs *b, u64 client, u32 entry, const struct bfs_lres *r)
{
	struct share *sh = b->share;
	const u64 none = 0;
	if (!sh) return -ESTALE;
	lk(b, &sh->mx);
	struct process *p = by_id(sh, client);
	struct bfs_lres *to = p ? &p->f->res[entry] : NULL;
	int rc = to ? bfs_guarded_copy(&to->ino, &none, 8, false) : -ESTALE;
	mm_fence(b->m); /* the daemon may be killed between any two stores: who reads it next finds the whole of it, or none */
	if (!rc && r->ino) rc = bfs_guarded_copy(&to->number, &r->number, sizeof *r - 8, false);
	mm_fence(b->m);
	if (!rc && r->ino) rc = bfs_guarded_copy(&to->ino, &r->ino, 8, false);
	unlk(b, &sh->mx);
	return rc;
}

void ls_res_each(struct bfs *b, ls_res_fn *f, void *arg)
{
	enum { PART = 64, WORDS = sizeof(struct bfs_lres) / 8 };
	struct share *sh = b->share;
	struct bfs_lres r[PART];
	if (!sh) return;
	lk(b, &sh->mx);
	for (u32 i = 0; i < sh->n; i++)
		for (u32 at = 0; at < BFS_LOCAL_RESERVATIONS; at += PART) {
			if (bfs_guarded_words((u64 *)(void *)r, (const u64 *)(const void *)&sh->p[i].f->res[at], PART * WORDS)) break;
			for (u32 k = 0; k < PART; k++)
				if (r[k].ino) f(arg, sh->p[i].id, at + k, &r[k]);
		}
	unlk(b, &sh->mx);
}

/* ---- what they read and hold ----------------------------------------------------------------------- */
u64 ls_lowest(struct bfs *b, u64 low)
{
	struct share *sh = b->share;
	u64 w[BFS_LOCAL_READERS * 8];
	if (!sh || BFS_MUT(MUT_PROCESS_READERS_IGNORED)) return low;
	BFS_STEP(BFS_SAYS);
	if (!BFS_MUT(MUT_LOWEST_NO_FENCE)) mm_fence(b->m); /* behind what they look at: the root that was set, or adopted, before this */
	if (!atomic_load(&b->nclients)) return low;
	lk(b, &sh->mx);
	BFS_STEP(BFS_LOOKS);
	for (u32 i = 0; i < sh->n; i++) {
		if (bfs_guarded_words(w, &sh->p[i].f->reader[0].txn, BFS_LOCAL_READERS * 8)) continue; /* it has cut its file: its loss */
		for (u32 k = 0; k < BFS_LOCAL_READERS; k++)
			if (w[k * 8] > 1 && w[k * 8] - 1 < low) low = w[k * 8] - 1;
	}
	unlk(b, &sh->mx);
	return low;
}

static bool sound(struct bfs *b, u64 word)
{
	u64 a = HELD_ADDR(word);
	if (BFS_MUT(MUT_LEASE_WORDS_BELIEVED)) return word;
	return word && BFS_GDEV(a) == 0 && BFS_GIDX(a) < b->sb.data_granules && HELD_LEN(word) <= b->sb.data_granules - BFS_GIDX(a);
}

/* f(arg, process, ino, word) of all that is held */
typedef int held_fn(void *arg, const struct process *p, u64 ino, u64 word);
static int each(struct bfs *b, held_fn *f, void *arg)
{
	enum { PART = 256 };
	struct share *sh = b->share;
	u64 w[2 * PART], high;
	int rc = 0;
	if (!sh || !atomic_load(&b->nclients)) return 0;
	lk(b, &sh->mx);
	BFS_STEP(BFS_LOOKS);
	for (u32 i = 0; i < sh->n && !rc; i++) {
		const struct process *p = &sh->p[i];
		if (bfs_guarded_words(&high, (const u64 *)&p->f->high, 1)) continue;
		u32 n = (u32)high < BFS_LOCAL_LEASES ? (u32)high : BFS_LOCAL_LEASES;
		for (u32 at = 0; at < n && !rc; at += PART) {
			u32 m = n - at < PART ? n - at : PART;
			if (bfs_guarded_words(w, &p->f->held[at].ino, 2 * m)) break;
			for (u32 k = 0; k < m && !rc; k++)
				if (sound(b, w[2 * k + 1])) rc = f(arg, p, w[2 * k], w[2 * k + 1]);
		}
	}
	unlk(b, &sh->mx);
	return rc;
}

struct adder { int (*f)(void *arg, u64 addr, u32 len); void *arg; };
static int add_word(void *arg, const struct process *p, u64 ino, u64 word)
{
	struct adder *a = arg;
	(void)p, (void)ino;
	return a->f(a->arg, word, HELD_LEN(word));
}
int ls_held(struct bfs *b, int (*f)(void *arg, u64 addr, u32 len), void *arg)
{
	if (BFS_MUT(MUT_PROCESS_LEASES_IGNORED)) return 0;
	if (atomic_load_explicit(&b->nclients, memory_order_relaxed)) ls_reap(b);
	return each(b, add_word, &(struct adder){f, arg});
}

struct inodes { u64 *a; u32 n, cap; };
static int add_ino(void *arg, const struct process *p, u64 ino, u64 word)
{
	struct inodes *l = arg;
	(void)p, (void)word;
	if (l->n + 1 >= l->cap) {
		u32 cap = l->cap ? 2 * l->cap : 1024;
		u64 *a = realloc(l->a, cap * sizeof *a);
		if (!a) return 0; /* they aren't passed over: no harm but to speed */
		l->a = a, l->cap = cap;
	}
	l->a[l->n++] = ino;
	return 0;
}
static int by_number(const void *p, const void *q)
{
	u64 x = *(const u64 *)p, y = *(const u64 *)q;
	return x < y ? -1 : x > y;
}
u64 *ls_inodes(struct bfs *b, u32 *n)
{
	struct inodes l = {NULL, 0, 0};
	ls_reap(b);
	if (!BFS_MUT(MUT_LEASED_EVICTED)) each(b, add_ino, &l);
	if (l.n > 1) qsort(l.a, l.n, sizeof *l.a, by_number);
	*n = l.n;
	return l.a;
}
bool ls_has(const u64 *inodes, u32 n, u64 ino) { return n && bsearch(&ino, inodes, n, sizeof ino, by_number); }

void ls_touches(struct bfs *b, void (*f)(void *arg, u32 slot, u32 seconds), void *arg)
{
	struct share *sh = b->share;
	u64 w[64], pos;
	if (!sh || !atomic_load_explicit(&b->nclients, memory_order_relaxed)) return;
	lk(b, &sh->mx);
	for (u32 i = 0; i < sh->n; i++) {
		struct process *p = &sh->p[i];
		if (bfs_guarded_words(&pos, &p->f->touch_pos, 1)) continue;
		u64 from = pos - p->touched > BFS_LOCAL_TOUCHES ? pos - BFS_LOCAL_TOUCHES : p->touched;
		p->touched = pos;
		while (from != pos) {
			u32 at = (u32)(from % BFS_LOCAL_TOUCHES), m = BFS_LOCAL_TOUCHES - at < 64 ? BFS_LOCAL_TOUCHES - at : 64;
			if (m > pos - from) m = (u32)(pos - from);
			if (bfs_guarded_words(w, &p->f->touch[at], m)) break;
			for (u32 k = 0; k < m; k++) f(arg, (u32)w[k], (u32)(w[k] >> 32));
			from += m;
		}
	}
	unlk(b, &sh->mx);
}

struct tally { const struct share *sh; struct bfs_client *out; int max; };
static int count(void *arg, const struct process *p, u64 ino, u64 word)
{
	struct tally *t = arg;
	int i = (int)(p - t->sh->p);
	(void)ino;
	if (i < t->max) t->out[i].leases++, t->out[i].granules += HELD_LEN(word);
	return 0;
}
int bfs_clients(struct bfs *b, struct bfs_client *out, int max)
{
	struct share *sh = b->share;
	int n = 0;
	if (!sh) return 0;
	ls_reap(b);
	lk(b, &sh->mx);
	for (; n < (int)sh->n && n < max; n++) out[n] = (struct bfs_client){.pid = sh->p[n].pid, .uid = sh->p[n].uid, .made_ns = sh->p[n].made_ns};
	unlk(b, &sh->mx);
	each(b, count, &(struct tally){sh, out, n}); /* one that went or came meanwhile: a moment's picture */
	return n;
}
