/* Leadership and publication: terms, grants, roots.  The steps are numbered as in
 * docs/protocol.md; each fence, fresh read and check below is one that a counterexample exists
 * for.  All of it runs under wlock. */
#include "lead.h"

void ld_publish(struct bfs *b, const struct bfs_snap *s)
{
	/* The pin of what is published goes with it: should this host lose the lead now, its
	 * readers' pages are still announced.  The fence brings both lines into the pool, and
	 * readers of this host use the root only after the claims were read behind it. */
	ld_put_pin(b, ld_lowest_reader(b, ld_newest(b)), *s);
	if (!BFS_MUT(MUT_ONE_ROOT_LINE)) b->root_line ^= 1;
	ld_put(b, BFS_L_ROOT_A + (u32)b->root_line, (u64[]){s->term, s->txn, s->root.page, s->root.term, s->root.txn}, 5);
	if (!BFS_MUT(MUT_ROOT_NO_FENCE)) mm_pool_fence(b->m, host_line(b, b->slot, 0), BFS_LINE * 16);
}

/* Step 13.  What was written is flushed before the grant is given back: a dirty line that
 * is written back later would land in somebody else's page. */
void ld_stand_down(struct bfs *b)
{
	u32 per = BFS_CHUNK_PAGES(b->sb.meta_pages);
	atomic_store(&b->leader, 0);
	if (b->grant && !BFS_MUT(MUT_STAND_DOWN_NO_FLUSH)) {
		mm_fence(b->m);
		for (u32 c = 0; c < 64 && c * per < b->sb.meta_pages; c++) /* all of them after a torn grant line */
			if ((b->grant >> c & 1) && c * per < b->sb.meta_pages) mm_flush(b->m, pg_addr(b, c * per), (u64)(c * per + per > b->sb.meta_pages ? b->sb.meta_pages - c * per : per) * BFS_PAGE);
		mm_fence(b->m);
	}
	b->grant = 0;
	b->nfree = 0;
	memset(b->dgrant, 0, sizeof b->dgrant); /* data is flushed where it is stored */
	ld_put_grant(b, 0);
}

int ld_check_features(struct bfs *b, struct bfs_ptr rootp)
{
	int rc = 0;
	const struct bfs_root *r = pg_get(b, rootp, BFS_PK_ROOT, &rc);
	if (!r) return rc;
	if (r->incompat & ~BFS_INCOMPAT_KNOWN)
		return bfs_fail(b, -EOPNOTSUPP, "the pool uses features 0x%llx that this version doesn't know; use a newer belugafs", (unsigned long long)(r->incompat & ~BFS_INCOMPAT_KNOWN));
	return 0;
}

int ld_claim(struct bfs *b)
{
	struct bfs_snap best;
	int rc = ld_read_roots(b, &best, false);
	if (rc) return rc;
	if (b->o.readonly) return bfs_fail(b, -EROFS, "read-only");
	/* 1. a number of its own, above all that was seen */
	u64 high = ld_claims(b, true), n = b->sb.nhosts;
	if (best.term > high) high = best.term;
	u64 t = high / n * n + b->slot;
	if (t <= high) t += n;
	if (BFS_MUT(MUT_TERM_NOT_UNIQUE)) t = high + 1;
	if (t > UINT32_MAX) return bfs_fail(b, -EOVERFLOW, "terms are used up; make the pool anew");
	struct bfs_snap early = best;
	b->term = (u32)t;
	/* 2. */
	if (!BFS_MUT(MUT_ONE_CLAIM_LINE)) b->claim_line ^= 1;
	ld_put(b, ld_claim_at[b->claim_line], (u64[]){t}, 1);
	if (!BFS_MUT(MUT_CLAIM_NO_FENCE)) mm_pool_fence(b->m, host_line(b, b->slot, ld_claim_at[b->claim_line]), BFS_LINE);
	/* 3. */
	rc = ld_read_roots(b, &best, BFS_MUT(MUT_ROOTS_STALE));
	if (BFS_MUT(MUT_ROOTS_BEFORE_CLAIM)) best = early;
	if (rc) return rc;
	/* 4. */
	if (!BFS_MUT(MUT_NO_PREPUBLISH_CHECK) && ld_claims(b, false) > t) return bfs_fail(b, -EBUSY, "another host claims the lead");
	/* The adopted root's page may have lived before in this host's cache: pg_get validates
	 * it by its tag.  Nothing can free it: no other leader is confirmed above it unless it
	 * claimed higher, and then step 6 stands down before anything of it is used. */
	if ((rc = ld_check_features(b, best.root))) return ld_claims(b, false) > t ? bfs_fail(b, -EBUSY, "another host claims the lead") : rc;
	/* 5. the adopted tree itself, unchanged */
	struct bfs_snap s = {(u32)t, best.txn + 1, best.root};
	if (!BFS_MUT(MUT_NO_FIRST_PUBLICATION)) {
		ld_publish(b, &s);
		/* 6. */
		if (!BFS_MUT(MUT_FIRST_UNCONFIRMED) && ld_claims(b, false) > t) {
			ld_stand_down(b);
			return bfs_fail(b, -EBUSY, "another host claims the lead");
		}
	}
	b->conf = b->first = s;
	b->grant = 0;
	b->nfree = 0;
	b->reuse_tried = 0;
	ld_set_snap(b, s);
	atomic_store(&b->leader, 1);
	return 0;
}

int bfs_claim(struct bfs *b)
{
	lk(b, &b->wlock);
	int rc = atomic_load(&b->leader) ? 0 : ld_claim(b);
	unlk(b, &b->wlock);
	return rc;
}

int bfs_is_leader(struct bfs *b) { return atomic_load(&b->leader); }

/* ---- pages for the leader: steps 7 to 9 ------------------------------------------------------ */
int ld_more_pages(struct bfs *b)
{
	const struct bfs_root *root = ld_conf_root(b);
	u64 others = 0;
	if (!atomic_load(&b->leader)) return -EAGAIN;
	for (u32 s = 0; s < b->sb.nhosts; s++) {
		struct bfs_line l;
		if (s == b->slot) continue;
		int ok = ld_get_grant(b, s, &l, NULL);
		if (ok > 0 && l.w[0] && !ld_fenced(b, root, s, BFS_MUT(MUT_DEAD_GRANTS_REUSED) ? BFS_HOST_DEAD : BFS_HOST_FENCED)) others |= l.w[0];
	}
	if (BFS_MUT(MUT_IGNORE_GRANTS)) others = 0;
	int best = -1, most = 0, enough = (int)BFS_CHUNK_PAGES(b->sb.meta_pages) / 2;
	for (u32 c = 0; c < 64 && most < enough; c++) {
		if ((b->grant | others) >> c & 1) continue;
		int n = pg_count_free(b, c);
		if (n < 0) return n;
		if (n > most) most = n, best = (int)c;
	}
	if (best < 0) return -ENOSPC;
	u64 g = b->grant | 1ull << best;
	if (!BFS_MUT(MUT_NO_GRANT)) {
		ld_put_grant(b, g);
	}
	if (!BFS_MUT(MUT_GRANT_UNCONFIRMED) && ld_claims(b, false) > b->term) return -EAGAIN; /* op_end stands down */
	b->grant = g;
	return pg_fill(b, 1ull << best, true);
}

/* ---- regions for blocks -----------------------------------------------------------------
 * A block is stored before the transaction that allocates it is confirmed, so a leader that
 * was overtaken in its sleep would store into what the next one has given away: the check of
 * the claims and the store are not one step.  As with pages, it says beforehand where it
 * stores, makes sure that nobody claimed, and the next leader keeps out of there.  What only
 * earlier transactions stored in is given up as needed: they were flushed before they were
 * published. */
int ld_data_grant(struct txn *t, const struct extent *e, int n)
{
	struct bfs *b = t->b;
	u32 rg = b->sb.region_granules;
	bool changed = false;
	if (BFS_MUT(MUT_NO_DATA_GRANT)) return 0;
	for (int i = 0; i < n; i++) {
		u32 first = (u32)(BFS_GIDX(e[i].addr) / rg), last = (u32)((BFS_GIDX(e[i].addr) + e[i].len - 1) / rg), k;
		for (k = 0; k < 4; k++)
			if (b->dgrant[k] >> 32 && (u32)b->dgrant[k] <= first && last < (u32)b->dgrant[k] + (b->dgrant[k] >> 32)) break;
		if (k == 4) {
			for (u32 j = 0; j < 4 && k == 4; j++, b->dgrant_next = (b->dgrant_next + 1) % 4)
				if (!(t->direct >> b->dgrant_next & 1)) k = b->dgrant_next;
			if (k == 4) { /* all are in use: one run covers more */
				k = b->dgrant_next;
				u32 a = (u32)b->dgrant[k], z = a + (u32)(b->dgrant[k] >> 32) - 1;
				if (a < first) first = a;
				if (z > last) last = z;
			}
			b->dgrant[k] = first | (u64)(last - first + 1) << 32;
			changed = true;
		}
		t->direct |= 1u << k;
	}
	if (!changed) return 0;
	ld_put_grant(b, b->grant);
	return ld_claims(b, false) > b->term ? txn_fail(t, -EAGAIN) : 0;
}

int ld_data_grants(struct bfs *b, u64 *runs)
{
	const struct bfs_root *root = ld_conf_root(b);
	int n = 0;
	for (u32 s = 0; s < b->sb.nhosts && !BFS_MUT(MUT_DATA_GRANT_IGNORED); s++) {
		struct bfs_line l;
		if (s == b->slot || ld_get_grant(b, s, &l, NULL) <= 0 || ld_fenced(b, root, s, BFS_MUT(MUT_DEAD_GRANTS_REUSED) ? BFS_HOST_DEAD : BFS_HOST_FENCED)) continue;
		for (int i = 3; i < 7; i++)
			if (l.w[i] >> 32) runs[n++] = l.w[i];
	}
	return n;
}
