/* Reservations of the processes that use the pool in place as this host: whose each one is, from the request to the last
 * commit, whichever daemon serves them.
 *
 * A reservation is a file without a name (reserve.c), which a crash of the daemon would give back.  So that one of a
 * process that lives isn't, the daemon writes it into the process's lease file before the process hears of it; the
 * next daemon reads all lease files before it recovers, and keeps what stands there.  What doesn't stand there nobody has heard of, or it
 * was given back: it goes.  A process that ends takes its lease file with it, and the next tick, or the next daemon,
 * gives back what it had; by then none of its threads can store any more, as the lock ends after its memory.
 *
 * Lock: rv.mx, before all others of the core.  It is held while a reservation is made, committed or released, so that
 * none ends under a commit. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "file.h"
#include "lease.h"

struct reservation {
	u64 client, fh, ino, number, ns; /* fh 0: not open (yet) */
	u32 granules, count, entry;
	u64 counted; /* granules, in b->rv */
};

static struct reservation *add(struct bfs *b, const struct reservation *r)
{
	if (b->rv.n == b->rv.cap) {
		u32 cap = b->rv.cap ? 2 * b->rv.cap : 64;
		struct reservation *a = realloc(b->rv.a, cap * sizeof *a);
		if (!a) return NULL;
		b->rv.a = a, b->rv.cap = cap;
	}
	b->rv.a[b->rv.n] = *r;
	return &b->rv.a[b->rv.n++];
}

static struct reservation *find(struct bfs *b, u64 client, u64 number)
{
	for (u32 i = 0; i < b->rv.n; i++)
		if (b->rv.a[i].client == client && b->rv.a[i].number == number) return &b->rv.a[i];
	return NULL;
}

/* For who asks how much there is: without rv.mx, which a commit of many blocks holds for long. */
static void count(struct bfs *b, struct reservation *r)
{
	struct bfs_handle *h = r->fh ? hd_get(b, r->fh) : NULL;
	u64 now = h ? atomic_load(&h->in->granules) : 0;
	atomic_fetch_add(&b->rv.granules, now - r->counted);
	r->counted = now;
}

/* Given back: first in the tree, so that what stands in the lease file is never less than what there is. */
static void drop(struct bfs *b, struct reservation *r)
{
	u64 fh = r->fh;
	r->fh = 0;
	count(b, r);
	if (fh) bfs_release(b, fh);
	BFS_BETWEEN();
	ls_res_put(b, r->client, r->entry, &(struct bfs_lres){0});
	*r = b->rv.a[atomic_fetch_sub(&b->rv.n, 1) - 1];
}

/* ---- from one daemon to the next ------------------------------------------------------------------------- */
/* What a lease file says is a process's word, if it is broken or hostile: it has to be a first writing without a name
 * of this host, and nobody else's. */
static bool sound(struct bfs *b, struct view *v, const struct reservation *r)
{
	struct bfs_rec rec;
	int rc = 0;
	if (!r->granules || r->granules > b->sb.region_granules || !r->count || r->count > BFS_RESERVE_MAX || !r->number || r->ino >> 63) return false;
	const struct bfs_obj *o = ob_get(v, r->ino, &rc);
	if (!o || !S_ISREG(o->mode) || o->state != BFS_ST_NEW || o->owner != b->slot + 1 || o->nlink) return false;
	return !bt_get(v, KEY(BFS_T(BFS_T_ORPHAN, b->slot), INO_SLOT(r->ino), 0), &rec) && rec.x == r->ino && !rv_keeps(b, r->ino);
}

struct noted { struct bfs *b; int rc; };
static void note(void *arg, u64 client, u32 entry, const struct bfs_lres *r)
{
	struct noted *x = arg;
	if (!add(x->b, &(struct reservation){.client = client, .ino = r->ino, .number = r->number, .ns = r->ns, .granules = r->granules, .count = r->count, .entry = entry})) x->rc = -ENOMEM;
}

int rv_load(struct bfs *b)
{
	struct noted x = {b, 0};
	struct rd r;
	b->rv.n = 0;
	if (!b->share || BFS_MUT(MUT_RESERVATIONS_NOT_KEPT)) return 0;
	ls_reap(b);
	ls_res_each(b, note, &x);
	u32 n = b->rv.n;
	if (x.rc || !n || (x.rc = rd_begin(b, &r))) return x.rc;
	b->rv.n = 0;
	for (u32 i = 0; i < n; i++) {
		struct reservation one = b->rv.a[i];
		if (sound(b, &r.v, &one)) b->rv.a[b->rv.n++] = one;
		else ls_res_put(b, one.client, one.entry, &(struct bfs_lres){0});
	}
	rd_end(&r);
	return 0;
}

bool rv_keeps(struct bfs *b, u64 ino)
{
	for (u32 i = 0; i < b->rv.n; i++)
		if (b->rv.a[i].ino == ino) return true;
	return false;
}

static int open_one(struct bfs *b, struct view *v, struct reservation *r)
{
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, r->ino, &rc);
	struct bfs_inode *in = o ? in_alloc(b, r->ino) : NULL;
	if (!in) return rc ? rc : -ENOMEM;
	if ((rc = in_load(v, o, in))) {
		in_destroy(b, in);
		return rc;
	}
	in->created_here = true;
	in->piece = r->granules, in->npieces = r->count, in->piece_ns = r->ns;
	fl_stored(in, 0, (u64)r->count * r->granules * BFS_GRANULE);
	in_insert_new(b, in);
	if ((rc = hd_new(b, in, O_RDWR | H_CREATOR, &r->fh))) in_put(b, in, true);
	else count(b, r);
	return rc;
}

int rv_open(struct bfs *b)
{
	struct rd r;
	int rc = 0;
	for (u32 i = 0; i < b->rv.n && !rc; i++) {
		if ((rc = rd_begin(b, &r))) break;
		rc = open_one(b, &r.v, &b->rv.a[i]);
		rd_end(&r);
	}
	return rc;
}

void rv_detach(struct bfs *b)
{
	free(b->rv.a);
	b->rv.a = NULL, b->rv.cap = 0;
	atomic_store(&b->rv.n, 0);
	atomic_store(&b->rv.granules, 0);
}

/* ---- those of the dead ------------------------------------------------------------------------------------- */
static u32 drop_dead(struct bfs *b) /* rv.mx is held */
{
	u32 n = 0;
	if (!atomic_exchange(&b->rv.died, false) || BFS_MUT(MUT_RESERVATION_OF_DEAD)) return 0;
	for (u32 i = 0; i < b->rv.n;) {
		if (ls_knows(b, b->rv.a[i].client)) i++;
		else drop(b, &b->rv.a[i]), n++;
	}
	return n;
}

void rv_tick(struct bfs *b)
{
	if (!atomic_load_explicit(&b->rv.died, memory_order_relaxed) || pthread_mutex_trylock(&b->rv.mx)) return; /* the next tick, then */
	drop_dead(b);
	pthread_mutex_unlock(&b->rv.mx);
}

void bfs_reservations(struct bfs *b, u64 *n, u64 *granules) { *n = atomic_load(&b->rv.n), *granules = atomic_load(&b->rv.granules); }

/* ---- requests ---------------------------------------------------------------------------------------------------- */
static int none(struct bfs *b, u64 number) { return bfs_fail(b, -ENOENT, "there is no reservation %llu: it was given back, or was another mount's", (unsigned long long)number); }

/* A place in the lease file that none of its other reservations has. */
static int free_entry(struct bfs *b, u64 client)
{
	u8 used[BFS_LOCAL_RESERVATIONS] = {0};
	for (u32 i = 0; i < b->rv.n; i++)
		if (b->rv.a[i].client == client) used[b->rv.a[i].entry] = 1;
	for (u32 i = 0; i < BFS_LOCAL_RESERVATIONS; i++)
		if (!used[i]) return (int)i;
	return bfs_fail(b, -ENOBUFS, "this process has %u reservations already", BFS_LOCAL_RESERVATIONS);
}

static int reserve(struct bfs *b, struct reservation *r, u64 size_bytes, u64 *off)
{
	int entry = free_entry(b, r->client), rc = 0;
	if (entry < 0) return entry;
	if (!ls_knows(b, r->client)) return bfs_fail(b, -EPERM, "only a process with a lease file can reserve: this ring came without one");
	for (int tries = 0; tries < 2; tries++) {
		rc = bfs_reserve_blocks(b, r->ns, r->count, size_bytes, &r->fh, off);
		/* what the dead had would be there at the next tick */
		if (rc != -ENOSPC || !(ls_reap(b), drop_dead(b))) break;
	}
	if (rc) return rc;
	r->ino = hd_get(b, r->fh)->in->ino, r->granules = (u32)granules(size_bytes), r->entry = (u32)entry;
	struct bfs_lres l = {.ino = r->ino, .number = r->number, .ns = r->ns, .granules = r->granules, .count = r->count};
	BFS_BETWEEN();
	if (!add(b, r)) rc = -ENOMEM;
	else if (!BFS_MUT(MUT_RESERVATION_NOT_NOTED) && ls_res_put(b, r->client, r->entry, &l)) rc = bfs_fail(b, -ESTALE, "the lease file of this process can't be written to: connect again"), b->rv.n--;
	BFS_BETWEEN();
	if (rc) bfs_release(b, r->fh);
	else count(b, find(b, r->client, r->number));
	return rc;
}

int rv_reserve(struct bfs *b, u64 client, u64 number, bool again, u64 ns, u32 n, u64 size_bytes, u64 *off)
{
	int rc = 0;
	pthread_mutex_lock(&b->rv.mx);
	struct reservation *r = find(b, client, number);
	if (!r) {
		rc = reserve(b, &(struct reservation){.client = client, .number = number, .ns = ns, .count = n}, size_bytes, off);
	} else if (!again || r->count != n || r->granules != granules(size_bytes)) {
		rc = bfs_fail(b, -EEXIST, "reservation %llu is there already", (unsigned long long)number);
	} else { /* the answer got lost */
		rc = rs_places(b, r->fh, off);
	}
	pthread_mutex_unlock(&b->rv.mx);
	return rc;
}

int rv_commit(struct bfs *b, u64 client, u64 number, bool again, struct bfs_commit *c, u32 n)
{
	pthread_mutex_lock(&b->rv.mx);
	struct reservation *r = find(b, client, number);
	int rc = r ? -EAGAIN : none(b, number);
	for (int tries = 0; rc == -EAGAIN && tries < 5; tries++, again = true) {
		for (u32 i = 0; i < n; i++) c[i].repeated = again;
		rc = bfs_commit_blocks(b, r->fh, c, n);
	}
	if (r) count(b, r);
	pthread_mutex_unlock(&b->rv.mx);
	return rc;
}

int rv_release(struct bfs *b, u64 client, u64 number)
{
	pthread_mutex_lock(&b->rv.mx);
	struct reservation *r = find(b, client, number);
	if (r) drop(b, r);
	pthread_mutex_unlock(&b->rv.mx);
	return 0;
}
