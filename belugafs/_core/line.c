/* The registers of the host slots: checksummed lines, read fresh, written around the cache.
 * And what every file here needs: error texts, locks. */
#include "lead.h"

#include <stdarg.h>
#include <stdio.h>

static __thread char errmsg[512];
const char *bfs_errmsg(void) { return errmsg; }
void bfs_errmsg_clear(void) { errmsg[0] = 0; }

int bfs_fail(struct bfs *b, int rc, const char *fmt, ...)
{
	va_list ap;
	(void)b;
	va_start(ap, fmt);
	vsnprintf(errmsg, sizeof errmsg, fmt, ap);
	va_end(ap);
	return rc;
}

void lk(struct bfs *b, pthread_mutex_t *x)
{
	if (b->m->ops->lock) b->m->ops->lock(b->m, x);
	else pthread_mutex_lock(x);
}

void unlk(struct bfs *b, pthread_mutex_t *x)
{
	if (b->m->ops->unlock) b->m->ops->unlock(b->m, x);
	else pthread_mutex_unlock(x);
}

/* ---- lines ----------------------------------------------------------------------- */
void ld_put(struct bfs *b, u32 index, const u64 *w, u32 n)
{
	struct bfs_line l;
	memset(&l, 0, sizeof l);
	memcpy(l.w, w, n * sizeof *w);
	bfs_line_seal(&l, b->sb.incarnation, b->slot, index);
	mm_store(b->m, host_line(b, b->slot, index), &l, sizeof l);
}

static int line(struct bfs *b, u32 slot, u32 index, struct bfs_line *l, bool stale)
{
	if (stale) memcpy(l, host_line(b, slot, index), sizeof *l);
	else mm_load(b->m, l, host_line(b, slot, index), sizeof *l);
	return bfs_line_check(l, b->sb.incarnation, slot, index);
}

int ld_line(struct bfs *b, u32 slot, u32 index, struct bfs_line *l) { return line(b, slot, index, l, false); }

/* A line that is being written may be read half old, half new: read again.  One that
 * stays bad was never fenced by its writer, who therefore has not gone on to the step
 * behind that fence: it counts as not written. */
int ld_line_retry(struct bfs *b, u32 slot, u32 index, struct bfs_line *l, bool stale)
{
	int ok = line(b, slot, index, l, stale);
	for (int i = 0; ok < 0 && i < 3; i++) ok = line(b, slot, index, l, false);
	return ok;
}

/* Two lines that are written in turn.  While one is being stored the other holds what counts, as it is
 * then: it is read behind the one that is torn.  Read before, it may have been stored over since, and
 * both of what it held and of what it got are missing.  Both are torn where the writer went on from one to the other
 * between the looks: only what stays so is damage. */
void ld_pair(struct bfs *b, u32 slot, u32 at0, u32 at1, struct bfs_line l[2], int ok[2], bool stale)
{
	bool old = BFS_MUT(MUT_FIRST_LINE_OLD) || BFS_MUT(MUT_NO_PREPUBLISH_CHECK);
	for (int tries = 0; tries < 16; tries++) {
		if (!old || !tries || ok[0] < 0) ok[0] = line(b, slot, at0, &l[0], stale && !tries);
		ok[1] = line(b, slot, at1, &l[1], stale && !tries);
		if (ok[0] >= 0 && ok[1] >= 0) return;
		if (tries < 3) continue;
		if (ok[1] < 0 && !old) ok[0] = line(b, slot, at0, &l[0], false);
		if (ok[0] >= 0 || ok[1] >= 0) return;
	}
}

int ld_read_roots(struct bfs *b, struct bfs_snap *best, bool stale)
{
	memset(best, 0, sizeof *best);
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		int bad = 0;
		struct bfs_line l[2];
		int ok[2];
		ld_pair(b, s, BFS_L_ROOT_A, BFS_L_ROOT_B, l, ok, stale);
		for (u32 k = 0; k < 2; k++) {
			bad += ok[k] < 0;
			if (ok[k] <= 0) continue;
			struct bfs_snap x = snap_of(&l[k]);
			if (snap_cmp(best, &x) < 0) *best = x;
		}
		if (bad == 2) /* acknowledged state may be gone: nobody may take over */
			return bfs_fail(b, -EIO, "host slot %u: both root lines are damaged; run fsck.belugafs", s);
	}
	return best->root.page ? 0 : bfs_fail(b, -EIO, "no valid root in any host slot; the pool is damaged");
}

int ld_roots_now(struct bfs *b, struct bfs_snap *best)
{
	mm_fence(b->m);
	return ld_read_roots(b, best, b->m->coherent);
}

int ld_roots(struct bfs *b, struct bfs_snap *best) { return ld_read_roots(b, best, false); }

/* A claim, like a grant, must not be missing while the next one is being stored over it:
 * a leader that was asleep would find nothing above its own term, or take pages that are
 * in use.  So there are two lines, used in turn; one that is torn was not fenced, so its
 * writer hasn't gone on and the other line is what holds.  1 valid, 0 absent, -1 damaged. */
const u32 ld_claim_at[2] = {BFS_L_CLAIM, BFS_L_CLAIM_B};
static const u32 grant_at[2] = {BFS_L_GRANT, BFS_L_GRANT_B};
int ld_newer_of(struct bfs *b, u32 slot, const u32 at[2], u32 order, struct bfs_line *out, int *which, bool stale)
{
	struct bfs_line l[2];
	int ok[2];
	ld_pair(b, slot, at[0], at[1], l, ok, stale);
	int k = ok[1] > 0 && (ok[0] <= 0 || l[1].w[order] > l[0].w[order]);
	*out = l[k];
	if (which) *which = k;
	return ok[k] > 0 ? 1 : ok[0] < 0 || ok[1] < 0 ? -1 : 0;
}

int ld_get_grant(struct bfs *b, u32 slot, struct bfs_line *l, int *which) { return ld_newer_of(b, slot, grant_at, 2, l, which, false); }
void ld_put_grant(struct bfs *b, u64 chunks)
{
	if (!BFS_MUT(MUT_ONE_GRANT_LINE)) b->grant_line ^= 1;
	ld_put(b, grant_at[b->grant_line], (u64[]){chunks, b->term, ++b->grant_seq, b->dgrant[0], b->dgrant[1], b->dgrant[2], b->dgrant[3]}, 7);
	mm_pool_fence(b->m, host_line(b, b->slot, grant_at[b->grant_line]), BFS_LINE);
}

/* Highest claim of any slot but own, fresh. */
u64 ld_claims(struct bfs *b, bool own)
{
	u64 high = 0;
	bool stale = BFS_MUT(MUT_CLAIMS_STALE);
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line l;
		if (s == b->slot && !own) continue;
		if (ld_newer_of(b, s, ld_claim_at, 0, &l, NULL, stale) > 0 && l.w[0] > high) high = l.w[0];
	}
	return high;
}
