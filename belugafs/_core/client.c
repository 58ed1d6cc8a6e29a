/* A process of a host that reads the pool in place: connected by descriptors, it looks up and leases without asking
 * anybody.  All that it reads goes by the core's own readers, on a struct bfs whose root is the one in the host file,
 * whose readers and hazards are in the process's lease file, and whose pool is mapped read-only.
 *
 * docs/protocol.md, "Readers in other processes of a host". */
#define _GNU_SOURCE
#include "client.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <stdlib.h>
#include "file.h"
#include "lead.h"
#include "name.h"

#define HUGE_BYTES (2ull << 20)

const char *bfc_error(void) { return bfs_errmsg(); }

/* ---- children ------------------------------------------------------------------------------- */
/* What a child inherits of a connection would keep its parent's leases after its death, and let it read what it has
 * no lease for.  So it has none: the files aren't mapped in it (MADV_DONTFORK), and their descriptors close. */
static pthread_mutex_t all_mx = PTHREAD_MUTEX_INITIALIZER;
static struct bfc *all;

static void before_fork(void) { pthread_mutex_lock(&all_mx); }
static void in_parent(void) { pthread_mutex_unlock(&all_mx); }
static void in_child(void)
{
	for (struct bfc *c = all; c; c = c->next) {
		atomic_store(&c->forked, true);
		if (BFS_MUT(MUT_CHILD_KEEPS_CONNECTION)) continue;
		if (c->pool_fd >= 0) close(c->pool_fd);
		if (c->lease_fd >= 0) close(c->lease_fd);
		c->pool_fd = c->lease_fd = -1;
		cl_ring_forked(c);
	}
	pthread_mutex_unlock(&all_mx);
}
static void watch_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }

static void enlist(struct bfc *c)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&all_mx);
	c->next = all, all = c;
	pthread_mutex_unlock(&all_mx);
}
static void strike(struct bfc *c)
{
	pthread_mutex_lock(&all_mx);
	for (struct bfc **p = &all; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	pthread_mutex_unlock(&all_mx);
}

int cl_enter(bfc *c)
{
	bfs_errmsg_clear();
	if (atomic_load_explicit(&c->forked, memory_order_relaxed)) return bfs_fail(NULL, -EOWNERDEAD, "this pool was connected by the parent process: connect again after a fork");
	return bfs_check_same(&c->b);
}

/* ---- opening ---------------------------------------------------------------------------------- */
void *cl_map(int fd, size_t bytes, int prot)
{
	void *p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) return NULL;
	if (bytes >= HUGE_BYTES && (uintptr_t)p % HUGE_BYTES) { /* where huge pages fit */
		char *room = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (room != MAP_FAILED) {
			size_t whole = (bytes + 4095) / 4096 * 4096;
			char *want = (char *)(((uintptr_t)room + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES), *q = mmap(want, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0);
			if (q == MAP_FAILED) {
				munmap(room, bytes + HUGE_BYTES);
			} else {
				munmap(p, bytes);
				if (want > room) munmap(room, (size_t)(want - room));
				munmap(want + whole, (size_t)(room + bytes + HUGE_BYTES - want - whole));
				p = q;
			}
		}
	}
	madvise(p, bytes, MADV_DONTFORK);
	madvise(p, bytes, MADV_HUGEPAGE); /* a wish */
	return p;
}

static int open_files(struct bfc *c, int host_fd)
{
	struct stat st;
	struct bfs *b = &c->b;
	if (fstat(host_fd, &st) || (size_t)st.st_size != sizeof *b->lhost || !(b->lhost = cl_map(host_fd, sizeof *b->lhost, PROT_READ)))
		return bfs_fail(NULL, -EINVAL, "the host file can't be mapped");
	if (fstat(c->lease_fd, &st) || (size_t)st.st_size != sizeof *c->f || !(c->f = cl_map(c->lease_fd, sizeof *c->f, PROT_READ | PROT_WRITE)))
		return bfs_fail(NULL, -EINVAL, "the lease file can't be mapped");
	const struct bfs_lhost *h = b->lhost;
	if (h->magic != BFS_LOCAL_HOST_MAGIC || h->version != BFS_LOCAL_VERSION || c->f->magic != BFS_LOCAL_LEASE_MAGIC || c->f->version != BFS_LOCAL_VERSION)
		return bfs_fail(NULL, -EPROTONOSUPPORT, "the daemon's files are of version %u, this library knows %u: mount the pool with the same version", h->version, BFS_LOCAL_VERSION);
	if (c->f->host_id != h->id || c->f->incarnation != h->incarnation) return bfs_fail(NULL, -EINVAL, "lease file and host file don't belong together");
	c->mem.size = h->pool_bytes;
	c->mem.coherent = h->coherent;
	c->mem.ops = h->coherent ? &bfs_ops_coherent : &bfs_ops_incoherent;
	c->mem.readonly = true;
	if (fstat(c->pool_fd, &st) || (S_ISREG(st.st_mode) && (u64)st.st_size < c->mem.size) || !(c->mem.base = cl_map(c->pool_fd, c->mem.size, PROT_READ)))
		return bfs_fail(NULL, -EINVAL, "the pool can't be mapped: %s", strerror(errno));
	int rc = bfs_read_super(&c->mem, c->mem.size, &b->sb);
	if (rc) return rc;
	if (memcmp(b->sb.uuid, h->uuid, 16) || b->sb.incarnation != h->incarnation) return bfs_fail(NULL, -ESTALE, "the pool was made anew since it was mounted");
	if (b->sb.incompat & BFS_INCOMPAT_DIRECTORY) return bfs_fail(NULL, -EOPNOTSUPP, "a directory pool can't be read in place by the library: map the files of its mount");
	return 0;
}

static int prepare(struct bfc *c)
{
	struct bfs *b = &c->b;
	b->m = &c->mem, b->client = c;
	b->o.readonly = true, b->o.publish_close = true, b->o.verify = (int)b->lhost->verify, b->o.suspect_ns = b->lhost->suspect_ns;
	/* no host's number: it sees what others see, and writes no line */
	c->host_slot = b->lhost->slot;
	b->slot = BFS_HOSTS_MAX + 1;
	sp_heights(b);
	pthread_mutex_init(&b->wlock, NULL);
	pthread_mutex_init(&b->ilock, NULL);
	pthread_mutex_init(&b->slock, NULL);
	pthread_mutex_init(&c->mx, NULL);
	pthread_mutex_init(&c->ring_mx, NULL);
	c->patience_ns = CL_PATIENCE_NS;
	b->verified = xalloc(b, b->sb.data_granules / 8 + 1);
	b->vtag = xalloc(b, (size_t)b->sb.inodes * sizeof *b->vtag);
	b->ctag = xalloc(b, (size_t)b->sb.inodes * sizeof *b->ctag);
	b->valid = xalloc(b, (size_t)b->sb.meta_pages * sizeof *b->valid);
	c->free_entry = xalloc(b, BFS_LOCAL_LEASES * sizeof *c->free_entry);
	c->registered = xalloc(b, BFS_LOCAL_LEASES * sizeof *c->registered);
	return b->verified && b->vtag && b->ctag && b->valid && c->free_entry && c->registered ? 0 : -ENOMEM;
}

void bfc_close(bfc *c)
{
	if (!c) return;
	struct bfs *b = &c->b;
	strike(c);
	cl_ahead_stop(c);
	cl_ring_close(c, atomic_load(&c->forked));
	if (!atomic_load(&c->forked)) {
		if (c->room) munmap(c->room, c->mem.size);
		if (c->f)
			for (u32 i = 0; i < c->high; i++) __atomic_store_n(&c->f->held[i].word, 0, __ATOMIC_RELEASE);
		if (c->mem.base) munmap(c->mem.base, c->mem.size);
		if (c->f) munmap(c->f, sizeof *c->f);
		if (b->lhost) munmap(b->lhost, sizeof *b->lhost);
	}
	if (c->lease_fd >= 0) close(c->lease_fd); /* the daemon sees it here */
	if (c->pool_fd >= 0) close(c->pool_fd);
	free(b->verified);
	free((void *)b->vtag);
	free((void *)b->ctag);
	free((void *)b->valid);
	free(atomic_load(&b->bounce));
	free(c->free_entry);
	free(c->registered);
	free(c->socket);
	free(c->drops);
	free(c);
}

int bfc_open(int pool_fd, int host_fd, int lease_fd, bfc **out)
{
	struct bfc *c = calloc(1, sizeof *c);
	int rc = c ? 0 : -ENOMEM;
	bfs_errmsg_clear();
	bfs_guard_install();
	if (!c) {
		close(pool_fd);
		close(lease_fd);
	} else {
		c->pool_fd = pool_fd, c->lease_fd = lease_fd;
		fcntl(pool_fd, F_SETFD, FD_CLOEXEC);
		fcntl(lease_fd, F_SETFD, FD_CLOEXEC);
		enlist(c);
		if (!(rc = open_files(c, host_fd))) rc = prepare(c);
		if (rc) bfc_close(c);
		else *out = c;
	}
	close(host_fd);
	return rc;
}

/* ---- what this process reads and holds --------------------------------------------------------- */
static bfc *of(struct bfs *b) { return b->client; }

_Atomic(u64) *cl_reader(struct bfs *b, u32 i) { return (_Atomic(u64) *)&of(b)->f->reader[i].txn; }

void cl_touches(struct bfs *b, const u64 *inodes, int n)
{
	struct bfs_llease *f = of(b)->f;
	u64 seconds = now_ns(b) / 1000000000ull << 32, at;
	if (n <= 0) return;
	/* one place for all of them; who drains them meanwhile gets some old ones: a hint */
	at = __atomic_fetch_add(&f->touch_pos, (u64)n, __ATOMIC_ACQ_REL);
	for (int i = n; i-- > 0; at++) __atomic_store_n(&f->touch[at % BFS_LOCAL_TOUCHES], INO_SLOT(inodes[i]) | seconds, __ATOMIC_RELAXED);
}

/* n entries, or as many as there are */
static u32 take(bfc *c, u32 *entry, u32 n)
{
	u32 got = 0;
	pthread_mutex_lock(&c->mx);
	while (got < n && c->nfree) entry[got++] = c->free_entry[--c->nfree];
	while (got < n && c->high < BFS_LOCAL_LEASES) entry[got++] = c->high++;
	/* before anything stands in them: a scan looks no further */
	if (!BFS_MUT(MUT_LEASES_HIGH_OLD)) __atomic_store_n(&c->f->high, c->high, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&c->mx);
	return got;
}
static void give(bfc *c, const u32 *entry, u32 n)
{
	for (u32 i = 0; i < n; i++) __atomic_store_n(&c->f->held[entry[i]].word, 0, __ATOMIC_RELEASE); /* behind all reads of it */
	pthread_mutex_lock(&c->mx);
	for (u32 i = 0; i < n; i++) c->free_entry[c->nfree++] = entry[i];
	pthread_mutex_unlock(&c->mx);
}
static void hold(bfc *c, u32 entry, u64 ino, const struct bfs_extent *e)
{
	struct bfs_lheld *h = &c->f->held[entry];
	__atomic_store_n(&c->registered[entry], __atomic_load_n(&c->b.lhost->registration, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	__atomic_store_n(&h->ino, ino, __ATOMIC_RELAXED);
	__atomic_store_n(&h->word, HELD_WORD(e->addr, e->len), __ATOMIC_RELEASE);
}

u32 cl_keep(bfc *c, const void *addr, u64 size_bytes)
{
	u32 entry;
	struct bfs_extent e = {.addr = ((u64)((const u8 *)addr - c->room) - c->b.sb.data_off) / BFS_GRANULE + 1, .len = (u32)granules(size_bytes)};
	if (!take(c, &entry, 1)) return CL_NO_LEASE;
	hold(c, entry, 0, &e);
	return entry;
}

void cl_unkeep(bfc *c, u32 entry) { give(c, &entry, 1); }

/* For reads of the core that copy. */
int cl_hazard(struct bfs *b, u64 ino, u32 version, const struct bfs_extent *e, int n)
{
	bfc *c = of(b);
	struct rd r;
	u32 *entry = malloc(((size_t)n + 1) * sizeof *entry);
	int rc, s;
	BFS_BETWEEN();
	if (!entry) return -ENOMEM;
	entry[0] = (u32)n;
	u32 got = take(c, entry + 1, (u32)n);
	if (got < (u32)n) {
		give(c, entry + 1, got);
		free(entry);
		return bfs_fail(b, -ENOBUFS, "this process holds %u extents of the pool already", BFS_LOCAL_LEASES);
	}
	for (int i = 0; i < n; i++) hold(c, entry[1 + i], ino, &e[i]);
	BFS_STEP(BFS_SAYS);
	if (!BFS_MUT(MUT_GET_NO_FENCE)) mm_fence(b->m);
	BFS_STEP(BFS_LOOKS);
	if (!(rc = rd_begin(b, &r))) {
		if (!BFS_MUT(MUT_GET_NOT_CHECKED)) rc = in_still_has(&r.v, ino, version, e, n);
		rd_end(&r);
	}
	for (int i = 0; i < n && BFS_MUT(MUT_RELEASED_EARLY); i++) __atomic_store_n(&c->f->held[entry[1 + i]].word, 0, __ATOMIC_RELEASE);
	BFS_BETWEEN();
	while (!rc) {
		pthread_mutex_lock(&c->mx);
		for (s = 0; s < 64 && c->runs[s]; s++) {}
		if (s < 64) c->runs[s] = entry;
		pthread_mutex_unlock(&c->mx);
		if (s < 64) return s;
		b->m->ops->pause(b->m, 10000); /* 64 threads are at it */
	}
	give(c, entry + 1, (u32)n);
	free(entry);
	return rc;
}

void cl_hazard_end(struct bfs *b, int slot)
{
	bfc *c = of(b);
	pthread_mutex_lock(&c->mx);
	u32 *entry = c->runs[slot];
	c->runs[slot] = NULL;
	pthread_mutex_unlock(&c->mx);
	give(c, entry + 1, entry[0]);
	free(entry);
}

/* ---- looking up ------------------------------------------------------------------------------------ */
int bfc_lookup(bfc *c, const char *path, u64 *inode)
{
	struct rd r;
	struct ht_entry e = {.ino = BFS_ROOT_INO};
	int rc = cl_enter(c);
	if (rc || (rc = rd_begin(&c->b, &r))) return rc;
	while (!rc && *path) {
		size_t n = strcspn(path, "/");
		if (n) rc = nm_look(&r.v, e.ino, path, n, &e);
		path += n + (path[n] == '/');
	}
	rd_end(&r);
	if (!rc) *inode = e.ino;
	return rc;
}

int bfc_namespace(bfc *c, const char *name, u64 *ns)
{
	struct rd r;
	int rc;
	if (strchr(name, '/') || !*name) return bfs_fail(NULL, -EINVAL, "a namespace is a name in the root directory");
	if ((rc = bfc_lookup(c, name, ns))) return rc == -ENOENT ? bfs_fail(NULL, rc, "there is no namespace %s", name) : rc;
	if ((rc = rd_begin(&c->b, &r))) return rc;
	const struct bfs_obj *o = ob_get(&r.v, *ns, &rc);
	if (o && !(S_ISDIR(o->mode) && o->flags & BFS_OF_NSBLOCK)) rc = bfs_fail(NULL, -ENOTDIR, "/%s isn't a block namespace", name);
	rd_end(&r);
	return rc;
}

ssize_t bfc_getxattr(bfc *c, u64 inode, const char *name, void *value, size_t len)
{
	int rc = cl_enter(c);
	return rc ? rc : bfs_getxattr(&c->b, inode, name, value, len);
}

int bfc_match(bfc *c, u64 ns, const void *keys, size_t klen, int n)
{
	int rc = cl_enter(c);
	return rc ? rc : bfs_block_match(&c->b, ns, keys, klen, n);
}

int bfc_exists(bfc *c, u64 ns, const void *keys, size_t klen, int n, u8 *present)
{
	int rc = cl_enter(c);
	return rc ? rc : bfs_block_exists(&c->b, ns, keys, klen, n, present);
}

ssize_t bfc_get(bfc *c, u64 ns, const void *key, size_t klen, void *buf, size_t len)
{
	int rc = cl_enter(c);
	return rc ? rc : bfs_block_get(&c->b, ns, key, klen, buf, len);
}

/* ---- leases ------------------------------------------------------------------------------------------ */
static int refuse(struct bfc_block *k, int rc)
{
	k->addr = NULL, k->size_bytes = 0, k->error = rc, k->flags = 0, k->lease = CL_NO_LEASE;
	return rc;
}

/* Where an object's bytes lie: one extent from its beginning to its end, or none. */
static int place(struct view *v, u64 ino, struct bfc_block *k, struct bfs_extent *e)
{
	struct bfs *b = v->b;
	struct bfs_rec r[2];
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, ino, &rc);
	*e = (struct bfs_extent){0};
	if (!o) return refuse(k, rc == -ESTALE ? -ENOENT : rc);
	if (!S_ISREG(o->mode)) return refuse(k, S_ISDIR(o->mode) ? -EISDIR : -EINVAL);
	if (o->state == BFS_ST_NEW || o->state == BFS_ST_ABANDONED) return refuse(k, -ENOENT); /* private to who writes it */
	if (o->state != BFS_ST_SEALED) return refuse(k, -EBUSY);
	*k = (struct bfc_block){.size_bytes = o->size, .inode = ino, .version = o->version, .lease = CL_NO_LEASE};
	if (!o->size) return 0;
	if (o->u.f.inl_addr) {
		*e = (struct bfs_extent){0, o->u.f.inl_addr, o->u.f.inl_len, 0};
	} else {
		int n = bt_range(v, KEY(BFS_T(BFS_T_EXT, o->slot), 0, 0), r, 2);
		if (n < 0) return refuse(k, n);
		if (n == 1 && !r[0].k.b) *e = (struct bfs_extent){0, r[0].x, (u32)r[0].y, 0};
	}
	if (!e->addr || (u64)e->len * BFS_GRANULE < o->size) return refuse(k, -EXDEV);
	if (e->len > 0x10000 || !al_mem(b, e->addr) || !al_mem(b, e->addr + e->len - 1))
		return refuse(k, bfs_fail(b, -EIO, "object %llu: its extent (address %llx, length %u) is impossible; run fsck.belugafs -n", (unsigned long long)ino, (unsigned long long)e->addr, e->len));
	return 0;
}

int cl_find(bfc *c, u64 ns, const void *keys, size_t klen, const u64 *inodes, struct cl_group *g)
{
	u64 found[CL_GROUP];
	struct bfs *b = &c->b;
	int rc = rd_begin(b, &g->r);
	if (rc) return rc;
	g->seen = g->r.s;
	if (!inodes) {
		const struct bfs_obj *o = ns >> 63 ? NULL : ob_get(&g->r.v, ns, &rc);
		if (!rc && !(o && S_ISDIR(o->mode) && o->flags & BFS_OF_NSBLOCK)) rc = -ENOTDIR;
		if (!rc && (rc = ht_find_many(&g->r.v, ns, BFS_EK_KEY, keys, klen, g->n, found)) >= 0) rc = 0;
		inodes = found;
	}
	if (rc) {
		rd_end(&g->r);
		return rc;
	}
	for (int i = 0; i < g->n; i++) {
		g->entry[i] = CL_NO_LEASE;
		g->block[i].inode = 0;
		if (!inodes[i] || inodes[i] >> 63) refuse(&g->block[i], inodes[i] ? -EISDIR : -ENOENT);
		else if (!place(&g->r.v, inodes[i], &g->block[i], &g->ext[i])) continue;
		g->ext[i].addr = 0;
	}
	return 0;
}

void cl_announce(bfc *c, struct cl_group *g)
{
	u32 entry[CL_GROUP], want = 0, got;
	for (int i = 0; i < g->n; i++) want += g->ext[i].addr != 0;
	got = take(c, entry, want);
	for (int i = 0; i < g->n; i++) {
		if (!g->ext[i].addr) continue;
		if (!got) {
			refuse(&g->block[i], bfs_fail(NULL, -ENOBUFS, "this process holds %u extents of the pool already", BFS_LOCAL_LEASES));
			g->ext[i].addr = 0;
			continue;
		}
		g->entry[i] = entry[--got];
		hold(c, g->entry[i], g->block[i].inode, &g->ext[i]);
	}
	if (!BFS_MUT(MUT_LEASE_NO_FENCE)) mm_fence(c->b.m);
}

/* What its checksums are compared by.  1: some chunks are to be, with sums that are the caller's to free. */
static int load_sums(struct bfs *b, struct view *v, const struct bfc_block *k, struct bfs_extent *e, struct bfs_inode *in)
{
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, k->inode, &rc);
	if (!o) return rc;
	memset(in, 0, sizeof *in);
	in->ino = k->inode, in->version = k->version, in->state = BFS_ST_SEALED;
	in->ext = e, in->next_ext = e->addr ? 1 : 0;
	in->base_size = k->size_bytes;
	atomic_store_explicit(&in->size, k->size_bytes, memory_order_relaxed);
	if (!o->nsums || o->flags & BFS_OF_UNVERIFIED) return 0;
	if (o->nsums != (o->size + b->sb.chunk_bytes - 1) / b->sb.chunk_bytes) return bfs_fail(b, -EIO, "object %llu: %u checksums for %llu bytes; run fsck.belugafs -n", (unsigned long long)k->inode, o->nsums, (unsigned long long)o->size);
	in->nsums = o->nsums;
	if (fl_all_known(b, in)) return 0;
	if (!(in->sums = xalloc(b, (size_t)o->nsums * sizeof *in->sums))) return -ENOMEM;
	if (!(rc = ob_sums_get(b, o, 0, o->nsums, in->sums))) return 1;
	xfree(b, in->sums);
	return rc;
}

int cl_check(bfc *c, struct cl_group *g)
{
	struct bfs *b = &c->b;
	struct bfs_snap now = ld_newest(b);
	struct bfs_inode *todo = NULL;
	u32 drop[CL_GROUP], ndrop = 0;
	int at[CL_GROUP], ntodo = 0, leased = 0, again = 0;
	bool fresh = false, same = !snap_cmp(&now, &g->seen) || BFS_MUT(MUT_LEASE_NOT_CHECKED);
	int rc = 0;
	u64 used[CL_GROUP] = {0};
	if (!same) {
		rd_end(&g->r);
		rc = rd_begin(b, &g->r);
	}
	for (int i = 0; i < g->n; i++) {
		struct bfc_block *k = &g->block[i];
		struct bfs_inode in;
		if (k->error) continue;
		int bad = rc;
		if (!bad && !same && g->ext[i].addr) bad = in_still_has(&g->r.v, k->inode, k->version, &g->ext[i], 1);
		if (!bad && (bad = load_sums(b, &g->r.v, k, &g->ext[i], &in)) > 0) {
			if (!todo && !(todo = xalloc(b, (size_t)g->n * sizeof *todo))) {
				xfree(b, in.sums);
				bad = -ENOMEM;
			} else {
				at[ntodo] = i, todo[ntodo++] = in, bad = 0;
			}
		}
		if (bad) {
			again += bad == -ESTALE;
			if (g->entry[i] != CL_NO_LEASE) drop[ndrop++] = g->entry[i];
			g->entry[i] = CL_NO_LEASE;
			refuse(k, bad);
			continue;
		}
		k->addr = g->ext[i].addr ? al_mem(b, g->ext[i].addr) : NULL;
		k->lease = g->entry[i];
		if (BFS_MUT(MUT_RELEASED_EARLY) && k->addr) __atomic_store_n(&c->f->held[k->lease].word, 0, __ATOMIC_RELEASE);
		k->flags = in.nsums && b->o.verify != BFS_VERIFY_OFF ? BFC_VERIFIED : 0;
		/* what was checked was read fresh (rule 17), and hasn't changed since */
		if (!k->flags && k->addr && !b->m->coherent) mm_inval(b->m, k->addr, k->size_bytes), fresh = true;
		if (k->addr) cl_ahead(c, false, k->addr, k->size_bytes);
		leased++;
	}
	if (!rc) rd_end(&g->r);
	if (fresh) mm_fence(b->m);
	/* what takes time, with no snapshot held; the extents are */
	for (int t = 0; t < ntodo; t++) {
		struct bfc_block *k = &g->block[at[t]];
		int bad = fl_check_in_place(b, &todo[t]);
		xfree(b, todo[t].sums);
		if (!bad) continue;
		if (k->lease != CL_NO_LEASE) drop[ndrop++] = k->lease;
		refuse(k, bad);
		leased--;
	}
	xfree(b, todo);
	if (ndrop) give(c, drop, ndrop);
	int nused = 0;
	for (int i = 0; i < g->n; i++)
		if (!g->block[i].error) used[nused++] = g->block[i].inode;
	cl_touches(b, used, nused);
	return rc ? rc : again ? -ESTALE : leased;
}

/* Was this host declared dead since?  Then what it held was given away (rule 19). */
static int lapsed(bfc *c, const u64 *registered, int n)
{
	struct bfs *b = &c->b;
	struct bfs_snap best;
	if (BFS_MUT(MUT_NO_LEASE_LOST)) return 0;
	for (int tries = 0; tries < 5; tries++) {
		int rc = 0;
		if (ld_roots_now(b, &best)) continue;
		/* it may be freed while it is looked at: then that is an error, and says nothing */
		const struct bfs_root *r = pg_get(b, best.root, BFS_PK_ROOT, &rc);
		if (!r) continue;
		const struct bfs_hostrow *h = &r->host[c->host_slot];
		for (int i = 0; i < n; i++)
			if (h->state >= BFS_HOST_DEAD && h->incarnation == registered[i]) return -ESTALE;
		return 0;
	}
	return -ESTALE;
}

int bfc_release(bfc *c, struct bfc_block *block, int n)
{
	u32 entry[CL_GROUP];
	u64 registered[CL_GROUP];
	int rc = cl_enter(c);
	if (rc == -EOWNERDEAD) return rc;
	rc = 0;
	for (int at = 0; at < n;) {
		int m = 0;
		for (; at < n && m < CL_GROUP; at++) {
			if (block[at].error || block[at].lease >= BFS_LOCAL_LEASES) continue;
			/* those that follow one another were mostly leased under the same registration */
			u64 of = c->registered[block[at].lease];
			entry[m] = block[at].lease, registered[m++] = of;
			block[at].addr = NULL, block[at].lease = CL_NO_LEASE;
		}
		if (!m) break;
		if (!rc && lapsed(c, registered, m)) rc = bfs_fail(NULL, -ESTALE, "this host has been declared dead since these blocks were leased: what was read of them may be another block's");
		give(c, entry, (u32)m);
	}
	return rc;
}

static int gone(const char *what) { return bfs_fail(NULL, -ENODEV, "the pool is gone: %s", what); }

int bfc_check(bfc *c)
{
	u64 registered[CL_GROUP];
	struct stat st;
	int n = 0, rc = cl_enter(c);
	if (rc == -ESTALE) return gone("it was made anew or cut since it was connected to");
	if (rc) return rc;
	if (!fstat(c->pool_fd, &st) && S_ISREG(st.st_mode) && (u64)st.st_size < c->mem.size) return gone("its file was cut");
	u32 high = __atomic_load_n(&c->f->high, __ATOMIC_ACQUIRE);
	for (u32 i = 0; i < high && i < BFS_LOCAL_LEASES && !rc; i++) {
		if (!__atomic_load_n(&c->f->held[i].word, __ATOMIC_ACQUIRE)) continue;
		u64 of = __atomic_load_n(&c->registered[i], __ATOMIC_RELAXED);
		if (n && registered[n - 1] == of) continue;
		if (n == CL_GROUP) rc = lapsed(c, registered, n), n = 0;
		registered[n++] = of;
	}
	if (!rc && n) rc = lapsed(c, registered, n);
	return rc ? bfs_fail(NULL, rc, "this host has been declared dead since blocks were leased that are still in use: what was read of them may be another block's") : 0;
}

/* Those of a group that have changed since they were looked up: one by one, again. */
static int retry(bfc *c, u64 ns, const u8 *keys, size_t klen, const u64 *inodes, struct bfc_block *block, int n, struct cl_group *g)
{
	for (int i = 0; i < n; i++) {
		for (int tries = 0; tries < 4 && block[i].error == -ESTALE; tries++) {
			g->n = 1, g->block = block + i;
			int rc = cl_find(c, ns, keys + (size_t)i * klen, klen, inodes ? inodes + i : NULL, g);
			if (rc) return rc;
			cl_announce(c, g);
			cl_check(c, g);
		}
		if (block[i].error == -ESTALE) refuse(&block[i], -ENOENT);
	}
	return 0;
}

static int lease(bfc *c, u64 ns, const u8 *keys, size_t klen, const u64 *inodes, int n, struct bfc_block *block)
{
	int leased = 0, rc = cl_enter(c);
	if (rc) return rc;
	if (n < 0 || (!inodes && (klen < 2 || klen > BFS_KEY_MAX))) return bfs_fail(NULL, -EINVAL, "%d keys of %zu bytes; keys have 2 to %u", n, klen, BFS_KEY_MAX);
	struct cl_group *g = malloc(sizeof *g);
	if (!g) return -ENOMEM;
	for (int i = 0; i < n; i++) refuse(&block[i], -ECANCELED);
	/* the end of a chain first: its beginning is used last, and goes last */
	for (int end = n, m; end > 0 && rc >= 0; end -= m) {
		int from = end > CL_GROUP ? end - CL_GROUP : 0;
		const u64 *some = inodes ? inodes + from : NULL;
		g->n = m = end - from, g->block = block + from;
		if ((rc = cl_find(c, ns, keys + (size_t)from * klen, klen, some, g))) break;
		cl_announce(c, g);
		if ((rc = cl_check(c, g)) == -ESTALE) rc = retry(c, ns, keys + (size_t)from * klen, klen, some, block + from, m, g);
	}
	free(g);
	for (int i = 0; i < n; i++) leased += !block[i].error;
	if (rc < 0) { /* none */
		bfc_release(c, block, n);
		for (int i = 0; i < n; i++) refuse(&block[i], rc);
		return rc;
	}
	atomic_fetch_add_explicit(&c->b.hits, (u64)leased, memory_order_relaxed);
	return leased;
}

int bfc_lease(bfc *c, u64 ns, const void *keys, size_t klen, int n, struct bfc_block *block) { return lease(c, ns, keys, klen, NULL, n, block); }
int bfc_lease_inodes(bfc *c, const u64 *inodes, int n, struct bfc_block *block) { return lease(c, 0, (const u8 *)"", 0, inodes, n, block); }
