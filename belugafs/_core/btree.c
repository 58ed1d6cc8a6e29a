/* Ordered records: one B+tree of 40-byte records, copy on write, no sibling links (a
 * snapshot has none to follow; ranges walk a path).
 *
 * An inner entry's key is a lower bound of what is below it.  Inner nodes split on the
 * way down, so an insertion never has to come back up; a page that runs low is merged
 * with a neighbour when both fit into three quarters of a page. */
#include "internal.h"

#define MAX BFS_BT_MAX

static inline u32 cnt(const struct bfs_phead *h) { return h->count < MAX ? h->count : MAX; }

/* first record >= k */
static u32 lower(const struct bfs_bleaf *l, const struct bfs_key *k)
{
	u32 lo = 0, hi = cnt(&l->h);
	while (lo < hi) {
		u32 m = (lo + hi) / 2;
		if (key_cmp(&l->r[m].k, k) < 0) lo = m + 1;
		else hi = m;
	}
	return lo;
}

/* last child whose key <= k, else the first */
static u32 child(const struct bfs_bnode *n, const struct bfs_key *k)
{
	u32 lo = 0, hi = cnt(&n->h);
	while (lo + 1 < hi) {
		u32 m = (lo + hi) / 2;
		if (key_cmp(&n->e[m].k, k) <= 0) lo = m;
		else hi = m;
	}
	return lo;
}

static const struct bfs_bleaf *find_leaf(struct view *v, const struct bfs_key *k, int *rc)
{
	struct bfs_ptr p = v->root->bt;
	for (u32 l = v->root->bt_height; l; l--) {
		const struct bfs_bnode *n = pg_get(v->b, p, BFS_PK_BNODE, rc);
		if (!n) return NULL;
		p = n->e[child(n, k)].p;
	}
	return p.page ? pg_get(v->b, p, BFS_PK_BLEAF, rc) : NULL;
}

int bt_get(struct view *v, struct bfs_key k, struct bfs_rec *r)
{
	int rc = 0;
	const struct bfs_bleaf *l = find_leaf(v, &k, &rc);
	if (!l) return rc ? rc : -ENOENT;
	u32 i = lower(l, &k);
	if (i == cnt(&l->h) || key_cmp(&l->r[i].k, &k)) return -ENOENT;
	*r = l->r[i];
	return 0;
}

/* Walks records >= k in order until f says stop (non-zero). */
static int walk(struct view *v, struct bfs_ptr p, u32 level, const struct bfs_key *k, int (*f)(void *, const struct bfs_rec *), void *arg)
{
	int rc = 0;
	if (!p.page) return 0;
	if (!level) {
		const struct bfs_bleaf *l = pg_get(v->b, p, BFS_PK_BLEAF, &rc);
		if (!l) return rc;
		for (u32 i = lower(l, k); i < cnt(&l->h); i++)
			if ((rc = f(arg, &l->r[i]))) return rc;
		return 0;
	}
	const struct bfs_bnode *n = pg_get(v->b, p, BFS_PK_BNODE, &rc);
	if (!n) return rc;
	for (u32 i = child(n, k); i < cnt(&n->h); i++)
		if ((rc = walk(v, n->e[i].p, level - 1, k, f, arg))) return rc;
	return 0;
}

struct range {
	struct bfs_rec *r;
	int n, max;
	u64 a;
	bool any;
};
static int collect(void *arg, const struct bfs_rec *r)
{
	struct range *x = arg;
	if (!x->any && r->k.a != x->a) return 1;
	x->r[x->n++] = *r;
	return x->n == x->max;
}

int bt_range(struct view *v, struct bfs_key k, struct bfs_rec *r, int max)
{
	struct range x = {r, 0, max, k.a, false};
	int rc = max > 0 ? walk(v, v->root->bt, v->root->bt_height, &k, collect, &x) : 0;
	return rc < 0 ? rc : x.n;
}

int bt_seek(struct view *v, struct bfs_key k, struct bfs_rec *r)
{
	struct range x = {r, 0, 1, k.a, true};
	int rc = walk(v, v->root->bt, v->root->bt_height, &k, collect, &x);
	return rc < 0 ? rc : x.n ? 0 : -ENOENT;
}

static int seek_last(struct view *v, struct bfs_ptr p, u32 level, const struct bfs_key *k, struct bfs_rec *r)
{
	int rc = 0;
	if (!p.page) return -ENOENT;
	if (!level) {
		const struct bfs_bleaf *l = pg_get(v->b, p, BFS_PK_BLEAF, &rc);
		if (!l) return rc;
		u32 i = lower(l, k);
		if (i < cnt(&l->h) && !key_cmp(&l->r[i].k, k)) i++;
		if (!i) return -ENOENT;
		*r = l->r[i - 1];
		return 0;
	}
	const struct bfs_bnode *n = pg_get(v->b, p, BFS_PK_BNODE, &rc);
	if (!n) return rc;
	for (u32 i = child(n, k) + 1; i-- > 0;) {
		rc = seek_last(v, n->e[i].p, level - 1, k, r);
		if (rc != -ENOENT) return rc;
	}
	return -ENOENT;
}

int bt_seek_last(struct view *v, struct bfs_key k, struct bfs_rec *r) { return seek_last(v, v->root->bt, v->root->bt_height, &k, r); }

/* ---- insertion -------------------------------------------------------------------- */
/* Child i of the dirty node n is full: its upper part moves into a new child i + 1. */
static bool split(struct txn *t, struct bfs_bnode *n, u32 i, bool at_end)
{
	bool leaf = n->h.aux == 1;
	void *lp = pg_cow(t, &n->e[i].p, leaf ? BFS_PK_BLEAF : BFS_PK_BNODE);
	struct bfs_ptr np = {0};
	void *rp = lp ? pg_new(t, &np, leaf ? BFS_PK_BLEAF : BFS_PK_BNODE) : NULL;
	if (!rp) return false;
	struct bfs_phead *l = lp, *r = rp;
	/* ascending insertions (cookies, slots) would leave half-empty pages behind them */
	u32 keep = at_end ? MAX - 1 : MAX / 2;
	struct bfs_key sep;
	if (leaf) {
		struct bfs_bleaf *a = lp, *c = rp;
		memcpy(c->r, a->r + keep, (MAX - keep) * sizeof *c->r);
		memset(a->r + keep, 0, (MAX - keep) * sizeof *a->r);
		sep = c->r[0].k;
	} else {
		struct bfs_bnode *a = lp, *c = rp;
		memcpy(c->e, a->e + keep, (MAX - keep) * sizeof *c->e);
		memset(a->e + keep, 0, (MAX - keep) * sizeof *a->e);
		sep = c->e[0].k;
		r->aux = l->aux;
	}
	l->count = (u16)keep;
	r->count = (u16)(MAX - keep);
	memmove(&n->e[i + 2], &n->e[i + 1], (n->h.count - i - 1) * sizeof *n->e);
	n->e[i + 1].k = sep;
	n->e[i + 1].p = np;
	n->h.count++;
	return true;
}

static bool full(struct txn *t, struct bfs_ptr p, bool leaf, bool *is)
{
	int rc = 0;
	const struct bfs_phead *h = pg_get(t->b, p, leaf ? BFS_PK_BLEAF : BFS_PK_BNODE, &rc);
	if (!h) return t->poison = rc, false;
	*is = h->count >= MAX;
	return true;
}

static bool past_end(struct txn *t, struct bfs_ptr p, bool leaf, const struct bfs_key *k)
{
	int rc = 0;
	if (leaf) {
		const struct bfs_bleaf *l = pg_get(t->b, p, BFS_PK_BLEAF, &rc);
		return l && l->h.count && key_cmp(&l->r[cnt(&l->h) - 1].k, k) < 0;
	}
	const struct bfs_bnode *n = pg_get(t->b, p, BFS_PK_BNODE, &rc);
	return n && n->h.count && key_cmp(&n->e[cnt(&n->h) - 1].k, k) < 0;
}

int bt_put(struct txn *t, const struct bfs_rec *r)
{
	struct bfs_root *root = t->root;
	bool is;
	if (t->poison) return t->poison;
	if (!root->bt.page) {
		struct bfs_bleaf *l = pg_new(t, &root->bt, BFS_PK_BLEAF);
		if (!l) return t->poison;
		l->r[0] = *r, l->h.count = 1;
		root->bt_height = 0;
		return 0;
	}
	if (!full(t, root->bt, !root->bt_height, &is)) return t->poison;
	if (is) { /* a new root above */
		struct bfs_ptr np = {0};
		struct bfs_bnode *n = pg_new(t, &np, BFS_PK_BNODE);
		if (!n) return t->poison;
		int rc = 0;
		n->h.aux = root->bt_height + 1, n->h.count = 1;
		n->e[0].p = root->bt;
		const void *c = pg_get(t->b, root->bt, root->bt_height ? BFS_PK_BNODE : BFS_PK_BLEAF, &rc);
		n->e[0].k = root->bt_height ? ((const struct bfs_bnode *)c)->e[0].k : ((const struct bfs_bleaf *)c)->r[0].k;
		bool end = past_end(t, root->bt, !root->bt_height, &r->k);
		root->bt = np;
		root->bt_height++;
		if (!split(t, n, 0, end)) return t->poison;
	}
	struct bfs_ptr *p = &root->bt;
	for (u32 l = root->bt_height; l; l--) {
		struct bfs_bnode *n = pg_cow(t, p, BFS_PK_BNODE);
		if (!n) return t->poison;
		u32 i = child(n, &r->k);
		if (!full(t, n->e[i].p, l == 1, &is)) return t->poison;
		if (is) {
			if (!split(t, n, i, past_end(t, n->e[i].p, l == 1, &r->k))) return t->poison;
			i = child(n, &r->k);
		}
		if (key_cmp(&r->k, &n->e[i].k) < 0) n->e[i].k = r->k;
		p = &n->e[i].p;
	}
	struct bfs_bleaf *l = pg_cow(t, p, BFS_PK_BLEAF);
	if (!l) return t->poison;
	u32 i = lower(l, &r->k);
	if (i < l->h.count && !key_cmp(&l->r[i].k, &r->k)) {
		l->r[i] = *r;
		return 0;
	}
	memmove(&l->r[i + 1], &l->r[i], (l->h.count - i) * sizeof *l->r);
	l->r[i] = *r;
	l->h.count++;
	return 0;
}

struct bfs_rec *bt_edit(struct txn *t, struct bfs_key k)
{
	struct bfs_ptr *p = &t->root->bt;
	if (t->poison || !p->page) return NULL;
	for (u32 l = t->root->bt_height; l; l--) {
		struct bfs_bnode *n = pg_cow(t, p, BFS_PK_BNODE);
		if (!n) return NULL;
		p = &n->e[child(n, &k)].p;
	}
	struct bfs_bleaf *l = pg_cow(t, p, BFS_PK_BLEAF);
	u32 i = l ? lower(l, &k) : 0;
	return l && i < l->h.count && !key_cmp(&l->r[i].k, &k) ? &l->r[i] : NULL;
}

/* ---- deletion ---------------------------------------------------------------------- */
/* Child i of the dirty node n ran low: drop it when empty, else merge it into a neighbour. */
static void mend(struct txn *t, struct bfs_bnode *n, u32 i)
{
	bool leaf = n->h.aux == 1;
	int kind = leaf ? BFS_PK_BLEAF : BFS_PK_BNODE, rc = 0;
	const struct bfs_phead *c = pg_get(t->b, n->e[i].p, kind, &rc);
	if (!c) { t->poison = rc; return; }
	u32 gone = i;
	if (c->count) {
		if (n->h.count < 2 || c->count > MAX / 3) return;
		u32 left = i ? i - 1 : 0;
		const struct bfs_phead *a = pg_get(t->b, n->e[left].p, kind, &rc), *z = a ? pg_get(t->b, n->e[left + 1].p, kind, &rc) : NULL;
		if (!z) { t->poison = rc; return; }
		if (a->count + z->count > MAX * 3 / 4) return;
		void *x = pg_cow(t, &n->e[left].p, kind);
		if (!x) return;
		u32 m = ((struct bfs_phead *)x)->count;
		if (leaf) memcpy(&((struct bfs_bleaf *)x)->r[m], ((const struct bfs_bleaf *)z)->r, z->count * sizeof(struct bfs_rec));
		else memcpy(&((struct bfs_bnode *)x)->e[m], ((const struct bfs_bnode *)z)->e, z->count * sizeof n->e[0]);
		((struct bfs_phead *)x)->count = (u16)(m + z->count);
		gone = left + 1;
	}
	pg_free(t, &n->e[gone].p);
	memmove(&n->e[gone], &n->e[gone + 1], (n->h.count - gone - 1) * sizeof *n->e);
	n->h.count--;
	memset(&n->e[n->h.count], 0, sizeof *n->e);
}

/* The records in [k, end) of one leaf; how many they were. */
static u32 del(struct txn *t, struct bfs_ptr *p, u32 level, const struct bfs_key *k, const struct bfs_key *end)
{
	if (!level) {
		struct bfs_bleaf *l = pg_cow(t, p, BFS_PK_BLEAF);
		if (!l) return 0;
		u32 i = lower(l, k), j = lower(l, end), n = j - i;
		memmove(&l->r[i], &l->r[j], (l->h.count - j) * sizeof *l->r);
		l->h.count -= (u16)n;
		memset(&l->r[l->h.count], 0, n * sizeof *l->r);
		return n;
	}
	struct bfs_bnode *n = pg_cow(t, p, BFS_PK_BNODE);
	if (!n) return 0;
	u32 i = child(n, k), gone = del(t, &n->e[i].p, level - 1, k, end);
	if (!t->poison) mend(t, n, i);
	return gone;
}

/* A root that has one child, or none, or no record. */
static int shrink(struct txn *t)
{
	struct bfs_root *root = t->root;
	int rc = 0;
	while (!t->poison && root->bt_height) {
		const struct bfs_bnode *n = pg_get(t->b, root->bt, BFS_PK_BNODE, &rc);
		if (!n) return t->poison = rc;
		if (n->h.count > 1) break;
		struct bfs_ptr down = n->h.count ? n->e[0].p : (struct bfs_ptr){0};
		pg_free(t, &root->bt);
		root->bt = down;
		root->bt_height = down.page ? root->bt_height - 1 : 0;
	}
	if (!t->poison && !root->bt_height && root->bt.page) {
		const struct bfs_bleaf *l = pg_get(t->b, root->bt, BFS_PK_BLEAF, &rc);
		if (!l) return t->poison = rc;
		if (!l->h.count) pg_free(t, &root->bt);
	}
	return t->poison;
}

int bt_del(struct txn *t, struct bfs_key k)
{
	struct bfs_rec r;
	struct bfs_key end = KEY(k.a, k.b, k.c + 1); /* no record's c is the largest number */
	int rc = t->poison ? t->poison : bt_get(tview(t), k, &r);
	if (rc) return rc == -ENOENT ? rc : (t->poison = rc);
	del(t, &t->root->bt, t->root->bt_height, &k, &end);
	return shrink(t);
}

int bt_del_range(struct txn *t, struct bfs_key k, struct bfs_key end)
{
	struct bfs_rec r;
	int rc, n = 0;
	while (!(rc = t->poison ? t->poison : bt_seek(tview(t), k, &r)) && key_cmp(&r.k, &end) < 0) {
		n += (int)del(t, &t->root->bt, t->root->bt_height, &r.k, &end);
		if (shrink(t)) break;
	}
	if (rc && rc != -ENOENT) t->poison = rc;
	return t->poison ? t->poison : n;
}
