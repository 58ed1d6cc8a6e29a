/* Space of a directory pool, and room ahead of writers that the daemon doesn't see.
 *
 * What a process stores through the kernel's passthrough takes pages of the tmpfs without a word, and is
 * ENOSPC when there are none: nobody can evict first.  So room is kept empty ahead of them:
 *   - at its open such a writer is promised what its file is expected to get (bfs_promise).  The sum of
 *     all promises stays empty, by eviction before the open is answered;
 *   - beyond it, a margin: what the cores can store until somebody looks again, if any of the files may outgrow
 *     what was expected; else a small one;
 *   - who watches (bfs_watch_room) looks at the tmpfs and the files every millisecond or as long as it takes to
 *     use up what is empty beyond that, evicts, and gives a file that has outgrown its promise another one;
 *   - who can't be promised that much has its stores come through the daemon, which takes nothing of the promises.
 *
 * Why a promise holds, whoever is late.  Let `promised` be the sum of what files are promised and haven't got, `taking` of
 * what stores of the daemon are about to take.  Then empty >= promised + taking was true when each of them began, and stays
 * so:
 *   - who adds to one of the sums adds first, then reads both, then asks the tmpfs, and takes his part back if it isn't
 *     empty (hold, bk_take).  So of two that come at a time at least one sees the other;
 *   - a store into a promise takes as much from what is empty as from what is promised.  The sum is lowered later, by who
 *     looks at the file: too much is kept until then, never too little;
 *   - a store of the daemon takes no more than it has added, and is refused (-ENOSPC) if that isn't empty: who serves it
 *     tries again (bfs_room_may_come);
 *   - what else takes pages has them already: the metadata were allocated by mkfs, and eviction, seals and truncation only give
 *     back;
 *   - what a promised file gives back it may not take again for that promise (bk_gave_back);
 *   - a file that was closed, and may still be mapped, keeps what is left of its promise up to its size until it is settled.
 * What can break it takes pages that were promised to nobody, and unseen:
 *   - a file that outgrows its promise.  A margin stands for it: who is not sure to get no more than is expected has
 *     a promise only if the cores can store for LATE_LEAST_NS without a look, at the rate of CORE_RATE, and find room;
 *     who was sure, and outgrows it, has an eighth of the pool at most;
 *   - a store into a hole by a shared mapping of a file that has no promise (it was refused, or is mostly
 *     holes);
 *   - somebody else's files in the pool's tmpfs (root's).
 * docs/zero-copy.md says it for users. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "backing.h"
#include "file.h"

#define CORE_RATE 2500u      /* granules that one core stores in a millisecond: 10 GB/s, memcpy into huge pages */
#define SURE_NS 1600000ull   /* of all cores are kept empty beyond what is promised, in any case */
#define EVICT_RATE 1000u     /* that eviction gives back in one of CPU time at least, where a promise needs eviction */
#define PAUSE_NS 20000000ull /* nothing could go: until the next attempt */
#define LOOK_NS 1000000ull
#define LOOK_MOST_NS 50000000ull
#define LATE_LEAST_NS 100000000ull /* on a machine that is busy with other things */

int bk_space(struct bfs *b, u64 *total, u64 *empty)
{
	struct statvfs s;
	if (fstatvfs(b->back->dir, &s)) {
		int rc = -errno;
		return bfs_fail(b, rc, "the pool's tmpfs can't be asked for its space: %s", strerror(-rc));
	}
	u64 unit = s.f_frsize / BFS_GRANULE ? s.f_frsize / BFS_GRANULE : 1, all = (u64)s.f_blocks * unit, meta = b->back->meta_granules;
	*total = all > meta ? all - meta : 0;
	*empty = (u64)s.f_bfree * unit;
	if (*empty > *total) *empty = *total;
	return 0;
}

/* ---- eviction ---------------------------------------------------------------------------------- */
static u64 cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

/* One transaction.  How many objects went, or a negative errno. */
static int evict(struct bfs *b, u64 granules)
{
	enum { REMEMBERED_NS = 20000000 };
	struct back *k = b->back;
	struct txn *t;
	u64 begun = cpu_ns(), sum;
	int rc = op_begin(b, &t), n;
	if (rc) return rc;
	sum = t->root->evicted_granules;
	n = ev_make_room(t, granules);
	sum = t->root->evicted_granules - sum;
	if ((rc = op_end(b, t, n < 0 ? n : 0))) return rc;
	lk(b, &k->room.mx);
	k->room.evicted += sum, k->room.cpu_ns += cpu_ns() - begun;
	if (k->room.cpu_ns > REMEMBERED_NS) k->room.evicted /= 2, k->room.cpu_ns /= 2;
	unlk(b, &k->room.mx);
	return n;
}

/* Very small blocks are evicted more slowly than a large file is written. */
static bool evicts_slowly(struct bfs *b)
{
	struct back *k = b->back;
	lk(b, &k->room.mx);
	bool slow = k->room.evicted * 1000000 < EVICT_RATE * k->room.cpu_ns;
	unlk(b, &k->room.mx);
	return slow;
}

int bk_room(struct bfs *b, u64 want, u32 round)
{
	enum { ROUNDS = 256 };
	u64 total, empty, slack = 16ull << (round < 10 ? round : 10);
	int rc = bk_space(b, &total, &empty);
	if (rc) return rc;
	if (!round && empty >= want) return 0; /* somebody else has made it */
	/* what can't be had, even if all that may go went, costs nobody anything */
	bool could = want <= total;
	struct rd r;
	if (could && !b->o.evict_all && !(rc = rd_begin(b, &r))) {
		could = empty + r.v.root->blocks_granules >= want;
		rd_end(&r);
	}
	if (rc) return rc;
	for (u32 i = 0; i < ROUNDS && could && !b->o.evict_none && !in_batch(b); i++) {
		int n = evict(b, (empty < want ? want - empty : 0) + slack);
		if (n < 0) return n;
		if ((rc = bk_space(b, &total, &empty))) return rc;
		if (!n) break; /* nothing is left that can go */
		if (empty >= want) return 0;
	}
	if (empty >= want && round < 64) return 0; /* the kernel counts in batches: what it says is about right */
	if (in_batch(b)) return bfs_fail(b, -ENOSPC, "no room for %llu granules inside a batch (space comes back with a commit)", (unsigned long long)want);
	return bfs_fail(b, -ENOSPC, "no room for %llu granules: %llu of %llu are in use, by files that are open, mapped, pinned or never evicted",
			(unsigned long long)want, (unsigned long long)(total - empty), (unsigned long long)total);
}

/* ---- what a file may get ------------------------------------------------------------------------- */
/* As is expected of its place, or the large ones of the pool. */
static u64 guess(struct bfs *b, const struct bfs_inode *in, bool *unsure)
{
	enum { LEAST = 256 };
	struct rd r;
	u64 n;
	*unsure = true;
	if (rd_begin(b, &r)) return LEAST;
	n = gs_expected(&r.v, in->ino, true);
	rd_end(&r);
	*unsure = !n;
	return max64(max64(n, atomic_load(&b->back->guess)), LEAST);
}

static void set_promise(struct bfs *b, struct bfs_inode *in, bool granted, u64 n) /* under ilock */
{
	struct back *k = b->back;
	if (granted && !in->granted) in->grown_ns = b->m->ops->mono_ns(b->m);
	atomic_fetch_add(&k->room.promised, n - in->promise);
	if (granted != in->granted) {
		atomic_fetch_add(&k->room.holders, granted ? 1u : -1u);
		if (in->unsure) atomic_fetch_add(&k->room.unsure, granted ? 1u : -1u);
	}
	in->promise = n, in->granted = granted;
}

static void set_unsure(struct bfs *b, struct bfs_inode *in) /* under ilock; of one that is granted */
{
	if (!in->unsure) atomic_fetch_add(&b->back->room.unsure, 1);
	in->unsure = true;
}

void bk_expect(struct bfs *b, struct bfs_inode *in, const struct bk_stat *s)
{
	bool unsure = false;
	u64 n = max64(granules(s->size), guess(b, in, &unsure)); /* one that is written again: its holes, at least */
	lk(b, &b->ilock);
	set_promise(b, in, false, 0);
	in->expect = max64(n, s->granules), in->had = s->granules, in->unsure = unsure, in->outgrown = false;
	unlk(b, &b->ilock);
}

void bk_unpromise(struct bfs *b, struct bfs_inode *in)
{
	lk(b, &b->ilock);
	set_promise(b, in, false, 0);
	unlk(b, &b->ilock);
}

/* Under ilock: closed.  A mapping reaches no further than its end. */
static void keep_to_size(struct bfs *b, struct bfs_inode *in, u64 size, u64 have)
{
	set_promise(b, in, false, min64(in->promise, size > have ? size - have : 0));
}

void bk_unpromise_rest(struct bfs *b, struct bfs_inode *in)
{
	struct stat st;
	lk(b, &b->ilock);
	if (in->rfd < 0 || fstat(in->rfd, &st)) set_promise(b, in, false, 0);
	else keep_to_size(b, in, granules((u64)st.st_size), (u64)st.st_blocks * 512 / BFS_GRANULE);
	unlk(b, &b->ilock);
}

/* Is it so large, in a pool of that size, that a hole says little about what will be in it? */
static bool is_mostly_holes(u64 expect, u64 have, u64 total) { return expect > have && expect - have > total / 8 * 3; }

/* Under ilock.  One that is larger than expected, and still growing, will grow by a part of what it has. */
static void look_at(struct bfs *b, struct bfs_inode *in, u64 total)
{
	enum { STEP = 1024, STEP_MOST = 16384 };
	struct stat st;
	if ((!in->granted && !in->promise) || in->rfd < 0 || fstat(in->rfd, &st)) return;
	u64 have = (u64)st.st_blocks * 512 / BFS_GRANULE, size = granules((u64)st.st_size);
	bool grown = have > in->had;
	in->had = have;
	if (!in->granted) {
		keep_to_size(b, in, size, have);
		return;
	}
	if (grown) in->grown_ns = b->m->ops->mono_ns(b->m);
	if (grown && size > in->expect && !is_mostly_holes(size, have, total)) in->expect = size, set_unsure(b, in);
	if (grown && have > in->expect) in->expect = have + max64(min64(have / 4, STEP_MOST), STEP), in->outgrown = true, set_unsure(b, in);
	set_promise(b, in, true, have < in->expect && (grown || !in->outgrown) ? in->expect - have : 0);
}

u64 bk_had(const struct bfs_inode *in)
{
	struct stat st;
	return (!in->granted && !in->promise) || in->rfd < 0 || fstat(in->rfd, &st) ? 0 : (u64)st.st_blocks * 512 / BFS_GRANULE;
}

/* What it gave back may be somebody else's by now. */
void bk_gave_back(struct bfs *b, struct bfs_inode *in, u64 had)
{
	u64 have = had ? bk_had(in) : 0;
	if (have >= had) return;
	lk(b, &b->ilock);
	in->expect = max64(have, in->expect - min64(in->expect, had - have));
	in->had = min64(in->had, have);
	unlk(b, &b->ilock);
}

void bk_written(struct bfs *b, struct bfs_inode *in)
{
	struct stat st;
	lk(b, &b->ilock);
	if (in->granted && in->rfd >= 0 && !fstat(in->rfd, &st)) {
		in->had = (u64)st.st_blocks * 512 / BFS_GRANULE;
		set_promise(b, in, true, in->expect > in->had && !in->outgrown ? in->expect - in->had : 0);
	}
	unlk(b, &b->ilock);
}

/* ---- what is kept empty ------------------------------------------------------------------------------ */
static u64 rate_of(u32 writers)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return min64(n > 0 ? (u64)n : 1, writers) * CORE_RATE;
}

/* What may be stored until somebody has looked, and evicted: twice as long as that took of late, or longer. */
static u64 margin(struct bfs *b)
{
	struct back *k = b->back;
	u64 ns = max64(2 * atomic_load(&k->room.late_ns), LATE_LEAST_NS);
	return (rate_of(atomic_load(&k->room.holders)) * (SURE_NS / 1000) + rate_of(atomic_load(&k->room.unsure)) * (ns / 1000)) / 1000;
}

static bool nothing_goes(struct bfs *b, u64 pause_ns)
{
	u64 then = atomic_load(&b->back->room.nothing_ns);
	return b->o.evict_none || (then && b->m->ops->mono_ns(b->m) - then < pause_ns);
}

/* Evicts until want granules are empty; *empty as it is then.  least: of an eviction.  pause_ns: no try so soon after one
 * that found nothing. */
static int make_empty(struct bfs *b, u64 want, u64 least, u64 pause_ns, u64 *empty)
{
	enum { ROUNDS = 256 };
	u64 total;
	int rc = 0, gone = 1;
	for (int i = 0; i < ROUNDS && *empty < want && gone && !nothing_goes(b, pause_ns); i++) {
		gone = evict(b, max64(want - *empty, least));
		if (gone < 0) return gone;
		if ((rc = bk_space(b, &total, empty))) return rc;
	}
	if (!gone) atomic_store(&b->back->room.nothing_ns, b->m->ops->mono_ns(b->m));
	return 0;
}

/* ---- what the daemon stores --------------------------------------------------------------------------- */
enum { HUGE_MORE = 2 * 511 }; /* in a hole below the size it gets huge pages: what is left of two of them */

/* No more than that is taken by a store to [off, end): its holes. */
static u64 holes(struct bfs *b, struct bfs_inode *in, u64 off, u64 end)
{
	enum { PIECES = 64 };
	struct stat st;
	int fd = bk_fd(b, in);
	u64 n = 0, at = off;
	if (fd < 0 || fstat(fd, &st)) return granules(end) - off / BFS_GRANULE + HUGE_MORE;
	if (off >= in->room_from && end <= in->room_end) return 0;
	for (int i = 0; at < end; i++) {
		off_t hole = lseek(fd, (off_t)at, SEEK_HOLE), data;
		if (hole < 0) hole = (off_t)at; /* behind the end */
		if ((u64)hole >= end) break;
		data = i < PIECES ? lseek(fd, hole, SEEK_DATA) : -1;
		at = data < 0 ? end : min64((u64)data, end);
		n += granules(at) - (u64)hole / BFS_GRANULE;
	}
	return n && off < (u64)st.st_size ? n + HUGE_MORE : n;
}

int bk_take(struct bfs *b, struct bfs_inode *in, u64 off, u64 len, u64 *n)
{
	enum { SLACK = 256 };
	struct back *k = b->back;
	u64 need, total, empty;
	int rc;
	*n = len ? granules(off + len) - off / BFS_GRANULE + HUGE_MORE : 0;
	atomic_fetch_add(&k->room.taking, *n);
	if (!*n || !atomic_load(&k->room.promised)) return 0;
	need = in ? holes(b, in, off, off + len) : granules(len);
	atomic_fetch_sub(&k->room.taking, *n - need);
	if (!(*n = need)) return 0;
	need = atomic_load(&k->room.promised) + atomic_load(&k->room.taking);
	if (!(rc = bk_space(b, &total, &empty)) && empty < need && !in_batch(b)) rc = make_empty(b, need, SLACK, LOOK_NS, &empty);
	if (!rc && empty < need && atomic_load(&k->room.promised)) rc = bfs_fail(b, -ENOSPC, "no room for %llu granules: %llu are empty, and %llu of them are kept for files that are being written", (unsigned long long)*n, (unsigned long long)empty, (unsigned long long)atomic_load(&k->room.promised));
	if (rc) bk_took(b, *n), *n = 0;
	return rc;
}

void bk_took(struct bfs *b, u64 n) { atomic_fetch_sub(&b->back->room.taking, n); }

/* ---- who watches ---------------------------------------------------------------------------------------- */

static int look(struct bfs *b, u64 *spare)
{
	enum { LOOKED_AT = 128, SLACK = 256 };
	struct back *k = b->back;
	u64 total, empty, want, m;
	int rc = bk_space(b, &total, &empty);
	if (rc) return rc;
	u64 high = total * (1000 - b->o.high_permille) / 1000, low = total * (1000 - b->o.low_permille) / 1000;
	lk(b, &b->ilock);
	for (u32 n = min64(k->nwriters, LOOKED_AT); n && k->writers; n--) {
		struct bfs_inode *in = k->look ? k->look : k->writers;
		look_at(b, in, total);
		k->look = in->wnext;
	}
	unlk(b, &b->ilock);
	if ((rc = bk_space(b, &total, &empty))) return rc; /* what they have stored is no longer promised, and no longer empty */
	m = margin(b);
	want = atomic_load(&k->room.holders) ? min64(atomic_load(&k->room.promised) + atomic_load(&k->room.taking) + min64(m, total / 8), total / 4 * 3) : 0;
	if (empty < high) want = max64(want, low);
	if (empty < want && (rc = make_empty(b, want, SLACK, PAUSE_NS, &empty))) return rc;
	*spare = empty > want ? empty - want : 0;
	return 0;
}

int bfs_headroom(struct bfs *b)
{
	u64 spare;
	return !b->back || b->o.readonly || in_batch(b) ? 0 : look(b, &spare);
}

int bfs_watch_room(struct bfs *b, u64 late_ns, u64 *nap_ns)
{
	*nap_ns = LOOK_MOST_NS;
	if (!b->back || b->o.readonly) return 0;
	u64 spare = 0, begun = b->m->ops->mono_ns(b->m), rate = rate_of(max64(atomic_load(&b->back->room.holders), 1));
	int rc = look(b, &spare);
	u64 late = late_ns + LOOK_NS + b->m->ops->mono_ns(b->m) - begun, was = atomic_load(&b->back->room.late_ns);
	/* the worst, forgotten over some seconds of looks at a full pool */
	atomic_store(&b->back->room.late_ns, late > was ? late : was - was / 1024);
	*nap_ns = min64(LOOK_NS + spare * 1000000 / rate, LOOK_MOST_NS);
	return rc;
}

/* Nobody else's promise is broken: there is room for all of them, and the margin, before this one gets his. */
static bool hold(struct bfs *b)
{
	enum { SLACK = 256 };
	u64 total, empty, m = margin(b), want = atomic_load(&b->back->room.promised) + atomic_load(&b->back->room.taking) + m;
	if (bk_space(b, &total, &empty)) return false;
	if (empty >= want) return true;
	if (want > total / 4 * 3 || m > total / 8 || evicts_slowly(b)) return false;
	if (make_empty(b, want + SLACK, 0, PAUSE_NS, &empty)) return false;
	return empty >= want && !evicts_slowly(b);
}

int bfs_promise(struct bfs *b, u64 fh)
{
	struct bfs_handle *h = hd_get(b, fh);
	struct bk_stat s;
	u64 total, empty;
	if (!h) return -EBADF;
	struct bfs_inode *in = h->in;
	if (!b->back || !hd_writes(h->flags)) return -EINVAL;
	int rc = in_lock(b, in, true);
	if (rc) return rc;
	if (!(rc = bk_stat(b, in, &s)) && !(rc = bk_space(b, &total, &empty)) && !in->granted) {
		lk(b, &b->ilock);
		u64 had = in->promise, n = in->expect > s.granules && !is_mostly_holes(in->expect, s.granules, total) ? in->expect - s.granules : 0;
		in->had = s.granules;
		set_promise(b, in, true, n);
		unlk(b, &b->ilock);
		bool held = hold(b);
		if (!held) {
			lk(b, &b->ilock);
			set_promise(b, in, false, min64(in->promise, had)); /* what a mapping of it was */
			unlk(b, &b->ilock);
			rc = -ENOSPC;
		}
		atomic_fetch_add_explicit(held ? &b->back->room.granted : &b->back->room.refused, 1, memory_order_relaxed);
	}
	in_unlock(b, in);
	return rc;
}

void bk_longer(struct bfs *b, struct bfs_inode *in, u64 size)
{
	u64 total, empty, n = granules(size);
	if (!in->granted || bk_space(b, &total, &empty)) return;
	lk(b, &b->ilock);
	u64 have = in->had;
	bool more = in->granted && n > in->expect && !is_mostly_holes(n, have, total);
	if (more) set_promise(b, in, true, in->promise + (n - in->expect)), in->expect = n;
	unlk(b, &b->ilock);
	if (!more || hold(b)) return;
	lk(b, &b->ilock);
	if (in->granted) set_unsure(b, in);
	unlk(b, &b->ilock);
}

bool bfs_room_may_come(struct bfs *b)
{
	enum { LOOKED_AT = 1024, MAPPED_NS = 300000000, GROWS_NS = 1000000000 };
	u32 n = 0;
	bool may = false;
	if (!b->back) return false;
	u64 now = b->m->ops->mono_ns(b->m);
	lk(b, &b->ilock);
	/* Who was still had after that long is mapped.  Who hasn't been asked for since may only have been waiting for a
	 * processor.  Who has room of his own, and uses it, will be closed, and can be evicted then. */
	for (struct bfs_inode *in = b->back->writers; in && !may && n < LOOKED_AT; in = in->wnext, n++)
		may = in->writers ? in->writers == in->nclosed || (in->granted && now - in->grown_ns < GROWS_NS) : in->settling && (in->refused_ns < in->settling_ns || in->refused_ns - in->settling_ns < MAPPED_NS);
	unlk(b, &b->ilock);
	return may;
}
