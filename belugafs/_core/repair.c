/* Repair of a pool that nobody has attached.  docs/fsck-codes.md has the argument why it may be
 * cut off at any instant; the order that it rests on is in bfs_fsck_run, and nowhere else:
 *
 *   1. a claim, above all terms, so that no page tag is used twice
 *   2. pages of the repaired tree, where nothing that verifies lies; the root page behind a fence
 *   3. one root line: from here on the pool is repaired
 *   4. root lines that would count more than that one, or are damaged, are cleared
 *   5. rows, the other damaged lines, the damaged copy of the superblock */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "repair.h"

#define SCANNED 8 /* root pages without a line that are looked at */

struct job {
	struct bfs_mem *m;
	const struct bfs_fsck_how *how;
	struct bfs_fsck_result *r;
	struct ck *k; /* what the check has found; its messages go out */
	struct bfs_line (*line)[BFS_L_COUNT];
	signed char (*state)[BFS_L_COUNT]; /* as bfs_line_check */
	bool said_no;
};

static bool ask(struct job *j, bool loses, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static bool ask(struct job *j, bool loses, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!j->how->ask || j->how->ask(j->how->arg, loses, text)) return true;
	j->said_no = true;
	return false;
}

static struct ck *check_new(struct job *j, bool loud)
{
	static struct bfs_fsck_result nobody;
	struct ck *k = calloc(1, sizeof *k);
	if (!k) return NULL;
	k->data_fd = j->how->directory ? j->how->data_fd : -1;
	k->m = j->m, k->arg = j->how->arg, k->r = loud ? j->r : &nobody;
	if (loud) k->cb = j->how->cb, k->progress = j->how->progress;
	else memset(&nobody, 0, sizeof nobody);
	return k;
}

static void check_free(struct ck *k)
{
	if (k) fk_done(k);
	free(k);
}

/* ---- registers ---------------------------------------------------------------------------- */
static u64 line_off(struct ck *k, u32 slot, u32 index) { return k->sb.host_off + (u64)slot * k->sb.host_stride + (u64)index * BFS_LINE; }

static int read_lines(struct job *j)
{
	struct ck *k = j->k;
	j->line = calloc(k->sb.nhosts, sizeof *j->line);
	j->state = calloc(k->sb.nhosts, sizeof *j->state);
	if (!j->line || !j->state) return -ENOMEM;
	for (u32 s = 0; s < k->sb.nhosts; s++) {
		if (!fk_rd(k, line_off(k, s, 0), j->line[s], sizeof j->line[s])) return -EIO;
		for (u32 i = 0; i < BFS_L_COUNT; i++) j->state[s][i] = (signed char)bfs_line_check(&j->line[s][i], k->sb.incarnation, s, i);
	}
	return 0;
}

static void store(struct job *j, u64 off, const void *src, size_t n)
{
	mm_store(j->m, j->m->base + off, src, n);
	mm_pool_fence(j->m, j->m->base + off, n);
}

static void put_line(struct job *j, u32 slot, u32 index, const u64 *w, u32 n)
{
	struct bfs_line l;
	memset(&l, 0, sizeof l);
	memcpy(l.w, w, n * sizeof *w);
	bfs_line_seal(&l, j->k->sb.incarnation, slot, index);
	store(j, line_off(j->k, slot, index), &l, sizeof l);
}

static void clear_line(struct job *j, u32 slot, u32 index)
{
	static const struct bfs_line none;
	store(j, line_off(j->k, slot, index), &none, sizeof none);
}

static struct bfs_snap snap_of(const struct bfs_line *l) { return (struct bfs_snap){(u32)l->w[0], l->w[1], {(u32)l->w[2], (u32)l->w[3], l->w[4]}}; }

/* A host that is registered may be alive, unless it is of this machine: the caller has the lock. */
static int refuse_live(struct job *j)
{
	for (u32 s = 0; s < j->k->sb.nhosts; s++) {
		const u64 *w = j->line[s][BFS_L_IDENT].w;
		if (j->state[s][BFS_L_IDENT] <= 0 || w[4] != BFS_MNT_LIVE || j->how->gone >> s & 1) continue;
		if ((w[0] == j->how->uuid[0] && w[1] == j->how->uuid[1]) || w[2] == j->how->boot) continue;
		return bfs_fail(NULL, -EBUSY, "host slot %u is in use by host %016llx%016llx, registered at %llu (seconds since 1970): unmount the pool there; if that host is gone for good, say so with --gone %u", s, (ull)w[0], (ull)w[1], (ull)w[6], s);
	}
	return 0;
}

/* ---- choice of the state ----------------------------------------------------------------------- */
static bool root_ok(struct ck *k, struct bfs_ptr p, struct bfs_root *out)
{
	u64 buf[BFS_PAGE / 8];
	const struct bfs_root *r = (const void *)buf;
	if (p.page < 1 || p.page >= k->sb.meta_pages || bfs_guarded_copy(buf, k->m->base + fk_page_off(k, p.page), BFS_PAGE, false)) return false;
	if (r->h.self != p.page || r->h.kind != BFS_PK_ROOT || r->h.term != p.term || r->h.txn != p.txn || r->bt_height > 12 || (r->bt_height && !r->bt.page)) return false;
	if (r->h.csum != bfs_xxh((u8 *)buf + 32, BFS_PAGE - 32, k->sb.incarnation ^ bfs_xxh(buf, 24, k->sb.incarnation))) return false;
	memcpy(out, buf, sizeof *out);
	return true;
}

static int newest_first(const void *p, const void *q)
{
	const struct bfs_snap *a = p, *b = q;
	int c = tag_cmp(b->term, b->txn, a->term, a->txn);
	return c ? c : tag_cmp(b->root.term, b->root.txn, a->root.term, a->root.txn);
}

/* The newest state whose root page verifies.  Where both root lines of a slot are damaged, or none
 * is left, root pages are looked for themselves: of those the newest whose whole tree is sound.
 * 1: it is the one that the lines name, 0: another one, negative: none. */
static int choose(struct job *j, struct bfs_snap *base, struct bfs_root *root)
{
	struct ck *k = j->k;
	struct bfs_snap line[2 * BFS_HOSTS_MAX], scan[SCANNED];
	int n = 0, ns = 0, found = -1;
	u32 hurt = 0; /* slots whose newest root may be lost */
	for (u32 s = 0; s < k->sb.nhosts; s++) {
		if (j->state[s][BFS_L_ROOT_A] < 0 && j->state[s][BFS_L_ROOT_B] < 0) hurt |= 1u << s;
		for (u32 i = BFS_L_ROOT_A; i <= BFS_L_ROOT_B; i++)
			if (j->state[s][i] > 0) line[n++] = snap_of(&j->line[s][i]);
	}
	fk_sort(line, (size_t)n, sizeof *line, newest_first);
	for (int i = 0; i < n && found < 0; i++)
		if (tag_cmp(line[i].root.term, line[i].root.txn, line[i].term, line[i].txn) <= 0 && root_ok(k, line[i].root, root)) found = i;
	if (found >= 0) *base = line[found];
	bool newest = found >= 0 && !tag_cmp(line[found].term, line[found].txn, line[0].term, line[0].txn);
	if (found >= 0 && !hurt) return newest;
	for (u32 p = 1; p < k->sb.meta_pages; p++) {
		struct bfs_phead h;
		struct bfs_root x;
		if (!fk_rd(k, fk_page_off(k, p), &h, sizeof h)) return -EIO;
		if (h.kind != BFS_PK_ROOT || h.self != p || (found >= 0 && (!(hurt >> (h.term % k->sb.nhosts) & 1) || tag_cmp(h.term, h.txn, base->term, base->txn) <= 0))) continue;
		struct bfs_snap y = {h.term, h.txn, {p, h.term, h.txn}};
		if (!root_ok(k, y.root, &x) || x.incompat & ~BFS_INCOMPAT_KNOWN) continue;
		if (ns < SCANNED) scan[ns++] = y;
		else if (newest_first(&y, &scan[ns - 1]) < 0) scan[ns - 1] = y;
		fk_sort(scan, (size_t)ns, sizeof *scan, newest_first);
	}
	for (int i = 0; i < ns; i++) {
		struct ck *c = check_new(j, false);
		if (!c) return -ENOMEM;
		c->sb = k->sb, c->top = scan[i];
		fk_check_state(c, false);
		bool sound = !c->err && !c->in_tree;
		check_free(c);
		if (!sound) continue;
		*base = scan[i];
		return root_ok(k, base->root, root) ? 0 : -EIO;
	}
	if (found >= 0) return newest;
	if (!ns) return bfs_fail(NULL, -EUCLEAN, "no root page of any state is left: nothing in the pool can be found. Make it anew with mkfs.belugafs");
	*base = scan[0];
	return root_ok(k, base->root, root) ? 0 : -EIO;
}

/* ---- publishing ----------------------------------------------------------------------------------- */
/* Above everything that the lines say, in a term of the slot that published last. */
static int new_term(struct job *j, const struct bfs_snap *base, u32 *slot, u32 *term, u64 *txn)
{
	u32 n = j->k->sb.nhosts;
	*slot = base->term % n;
	for (int pass = 0; pass < 2; pass++) { /* lines that leave no room above them are cleared: nobody else's counts */
		u64 high = base->term;
		u64 x = base->txn;
		for (u32 s = 0; s < n && !pass; s++)
			for (u32 i = 0; i < BFS_L_HELD; i++) {
				const u64 *w = j->line[s][i].w;
				bool root = i == BFS_L_ROOT_A || i == BFS_L_ROOT_B;
				if (j->state[s][i] <= 0 || (!root && i != BFS_L_CLAIM && i != BFS_L_CLAIM_B)) continue;
				if (w[0] > high) high = w[0];
				if (root && w[1] > x && !(w[1] >> 62)) x = w[1];
			}
		u64 t = high / n * n + *slot;
		if (t <= high) t += n;
		if (t > UINT32_MAX) continue;
		*term = (u32)t, *txn = x + 1;
		return 0;
	}
	return bfs_fail(NULL, -EOVERFLOW, "terms are used up; make the pool anew");
}

/* Into the line of the slot that doesn't hold the state that is repaired. */
static void publish(struct job *j, const struct bfs_snap *base, u32 slot, const struct bfs_snap *s)
{
	u32 at = BFS_L_ROOT_A;
	for (u32 i = BFS_L_ROOT_A; i <= BFS_L_ROOT_B; i++) {
		struct bfs_snap x = snap_of(&j->line[slot][i]);
		if (j->state[slot][i] > 0 && !newest_first(&x, base)) at = i == BFS_L_ROOT_A ? BFS_L_ROOT_B : BFS_L_ROOT_A;
	}
	put_line(j, slot, at, (u64[]){s->term, s->txn, s->root.page, s->root.term, s->root.txn}, 5);
	j->state[slot][at] = 1;
	/* from here on this state counts, but for lines that were above it already */
	for (u32 t = 0; t < j->k->sb.nhosts; t++)
		for (u32 i = BFS_L_ROOT_A; i <= BFS_L_ROOT_B; i++) {
			if (t == slot && i == at) continue;
			struct bfs_snap x = snap_of(&j->line[t][i]);
			bool twin = false;
			for (u32 u = 0; u < j->k->sb.nhosts && j->state[t][i] > 0; u++)
				for (u32 v = BFS_L_ROOT_A; v <= BFS_L_ROOT_B; v++) {
					struct bfs_snap y = snap_of(&j->line[u][v]);
					twin |= j->state[u][v] > 0 && !tag_cmp(x.term, x.txn, y.term, y.txn) && memcmp(&x.root, &y.root, sizeof x.root);
				}
			if (j->state[t][i] < 0 || (j->state[t][i] > 0 && (twin || tag_cmp(x.term, x.txn, s->term, s->txn) > 0))) clear_line(j, t, i), j->state[t][i] = 0;
		}
	/* claims without room above them */
	for (u32 t = 0; t < j->k->sb.nhosts; t++)
		for (int i = 0; i < 2; i++) {
			u32 c = i ? BFS_L_CLAIM_B : BFS_L_CLAIM;
			if (j->state[t][c] > 0 && j->line[t][c].w[0] > UINT32_MAX - 2 * BFS_HOSTS_MAX) clear_line(j, t, c), j->state[t][c] = 0;
		}
}

static int repair_tree(struct job *j, struct rp *r, const struct bfs_snap *base, const struct bfs_root *root, bool named)
{
	struct ck *k = j->k;
	u32 slot;
	u64 before = k->r->bytes_checked;
	r->k = k, r->base = *base, r->old = r->root = *root, r->content = j->how->data;
	if (root->incompat & ~BFS_INCOMPAT_KNOWN) return bfs_fail(NULL, -EPROTONOSUPPORT, "the pool uses features 0x%llx that this version doesn't know; use a newer belugafs", (ull)root->incompat);
	if (!named) fk_did(k, "state-chosen", "the newest state can't be read: the one of term %u, transaction %llu is taken", base->term, (ull)base->txn);
	fk_progress(k, "reading", 0, 4);
	int rc = rp_read(r);
	if (rc) return rc;
	fk_progress(k, "deciding", 1, 4);
	rp_files(r);
	if (!k->err) rp_names(r);
	if (!k->err) rp_records(r);
	k->r->bytes_checked = before; /* what was read twice is counted once */
	if (k->err) return k->err;
	if ((rc = new_term(j, base, &slot, &r->term, &r->txn))) return rc;
	if (!ask(j, r->dropped || !named, "Write the repaired tree (%llu dropped, %llu put into lost+found)", (ull)r->dropped, (ull)r->put_back)) {
		fk_did(k, "not-done", "the tree stays as it is: the answer was no");
		return 1;
	}
	fk_progress(k, "writing", 2, 4);
	if (k->err) return k->err;
	u32 claim = j->state[slot][BFS_L_CLAIM] > 0 && (j->state[slot][BFS_L_CLAIM_B] <= 0 || j->line[slot][BFS_L_CLAIM].w[0] > j->line[slot][BFS_L_CLAIM_B].w[0]) ? BFS_L_CLAIM_B : BFS_L_CLAIM;
	put_line(j, slot, claim, (u64[]){r->term}, 1);
	j->state[slot][claim] = 0; /* whole now, and not to be cleared */
	struct bfs_snap s = {r->term, r->txn, {0}};
	if ((rc = rp_write(r, &s.root))) {
		if (rc == -ENOSPC) return bfs_fail(NULL, rc, "%u metadata pages are not enough to write the repaired tree beside the damaged one; mount the pool with -o ro, copy what is readable, and make it anew", k->sb.meta_pages);
		return bfs_fail(NULL, rc, rc == -EIO ? "the pool can't be written (bus error)" : rc == -EINTR ? "stopped, nothing was changed" : "out of memory");
	}
	publish(j, base, slot, &s);
	k->progress = NULL; /* from here on there is nothing to stop */
	fk_did(k, "tree-written", "the repaired tree: %u pages, %llu of them new", r->nkept, (ull)r->written);
	j->r->dropped = r->dropped, j->r->put_back = r->put_back, j->r->changed++;
	return 0;
}

/* ---- rows, lines, superblock ------------------------------------------------------------------------- */
/* the object of a row, in the state that the pool has now */
static bool row_object(struct job *j, struct rp *r, u64 ino, struct bfs_obj *o)
{
	if (r) {
		struct rslot *s = rp_ino(r, ino);
		if (s) *o = s->o;
		return s;
	}
	return fk_oi_ino(j->k, ino) && fk_obj_again(j->k, INO_SLOT(ino), o);
}

const struct bfs_row *rp_row(struct ck *k, u32 slot, u32 n, struct bfs_row c[2], u64 *at, u32 *torn)
{
	static const struct bfs_row none;
	const struct bfs_row *w = NULL;
	u64 off = k->sb.host_off + (u64)slot * k->sb.host_stride + BFS_L_COUNT * BFS_LINE + 8ull * k->sb.ring_entries + 256ull * n;
	*at = off, *torn = 0;
	if (!fk_rd(k, off, c, 2 * sizeof *c)) return NULL;
	for (u32 i = 0; i < 2; i++) {
		if (!memcmp(&c[i], &none, sizeof none)) continue;
		u64 sum = bfs_xxh((const u8 *)&c[i] + 8, sizeof c[i] - 8, k->sb.incarnation ^ (off + sizeof c[i] * i));
		if (c[i].csum != (sum ? sum : 1)) *torn |= 1u << i;
		else if (!w || c[i].seq > w->seq) w = &c[i];
	}
	return w && w->state != BFS_ROW_FREE ? w : NULL;
}

/* 0: is as it should be, bit per copy that should be cleared */
static u32 row_fault(struct job *j, struct rp *r, u32 slot, const struct bfs_row *w, u32 torn)
{
	if (!w) return torn;
	struct bfs_obj o;
	if (w->state > BFS_ROW_CLOSED || w->nsums > BFS_INLINE_SUMS) return 3;
	if (!row_object(j, r, w->ino, &o) || o.version != w->version || (o.state != BFS_ST_NEW && o.state != BFS_ST_DIRTY) || o.owner != slot + 1) return 3;
	return torn;
}

static u64 rows(struct job *j, struct rp *r, bool write)
{
	static const struct bfs_row none;
	struct ck *k = j->k;
	u64 n = 0;
	for (u32 s = 0; s < k->sb.nhosts; s++)
		for (u32 i = 0; i < k->sb.rows; i++) {
			struct bfs_row c[2];
			u64 off;
			u32 torn;
			const struct bfs_row *w = rp_row(k, s, i, c, &off, &torn);
			u32 bad = row_fault(j, r, s, w, torn);
			n += bad != 0;
			if (!bad || !write) continue;
			j->r->changed++;
			/* the older copy first: the newer alone says what both did */
			u32 old = c[0].seq > c[1].seq;
			for (u32 x = 0; x < 2; x++)
				if (bad >> (x ^ old) & 1) store(j, off + sizeof c[0] * (x ^ old), &none, sizeof none);
			fk_did(k, "row-cleared", "host slot %u, row %u: it was damaged, or of a file that isn't being written", s, i);
		}
	return n;
}

/* Something of this slot's host is unfinished, and only that host can tell: it finds its slot by IDENT. */
static bool unfinished(struct job *j, struct rp *r, u32 slot)
{
	struct ck *k = j->k;
	for (size_t i = 0; r && i < r->nslots; i++)
		if (r->s[i].used && !r->s[i].drop && r->s[i].o.owner == slot + 1) return true;
	for (size_t i = 0; !r && i < k->oi.n; i++)
		if (k->oi.v[i].used && (k->oi.v[i].owner == slot + 1 || k->oi.v[i].orphan)) return true;
	return false;
}

static u64 lines(struct job *j, struct rp *r, bool write)
{
	u64 n = 0;
	for (u32 s = 0; s < j->k->sb.nhosts; s++)
		for (u32 i = 0; i < BFS_L_COUNT; i++) {
			if (j->state[s][i] >= 0 || (i == BFS_L_IDENT && unfinished(j, r, s))) continue;
			n++;
			if (!write) continue;
			j->r->changed++;
			if (i == BFS_L_IDENT) { /* the slot is free again: the splitter starts from nothing */
				clear_line(j, s, BFS_L_SPLIT_Y);
				clear_line(j, s, BFS_L_SPLIT_X);
			}
			clear_line(j, s, i);
			fk_did(j->k, "line-cleared", "host slot %u: damaged line %u", s, i);
		}
	return n;
}

static void superblock(struct job *j)
{
	struct bfs_super c[2];
	for (u32 i = 0; i < 2; i++)
		if (!fk_rd(j->k, i ? BFS_SB_OFF_B : BFS_SB_OFF_A, &c[i], sizeof c[i])) return;
	for (u32 i = 0; i < 2; i++)
		if (memcmp(&c[i], &j->k->sb, sizeof c[i]) && ask(j, false, "Write superblock copy %c anew from the other one", 'A' + (int)i)) {
			store(j, i ? BFS_SB_OFF_B : BFS_SB_OFF_A, &j->k->sb, sizeof j->k->sb);
			j->r->changed++;
			fk_did(j->k, "super-copied", "superblock copy %c is written anew from the other one", 'A' + (int)i);
		}
}

/* ---- backing files without an object ------------------------------------------------------------------------- */
struct extra { struct job *j; struct rp *r; u64 n; bool remove; };
static bool stays(void *arg, u64 ino)
{
	struct extra *x = arg;
	struct rslot *s = x->r ? rp_ino(x->r, ino) : NULL;
	if (x->r) return s && S_ISREG(s->o.mode);
	const struct oi *o = fk_oi_ino(x->j->k, ino);
	return o && o->fmt == S_IFREG >> 12;
}
static void extra(void *arg, int dir, const char *name)
{
	struct extra *x = arg;
	x->n++;
	if (!x->remove || unlinkat(dir, name, 0)) return;
	x->j->r->changed++;
	fk_did(x->j->k, "backing-removed", "backing file %s, which no object has", name);
}

static int backing(struct job *j, struct rp *r)
{
	struct extra x = {j, r, 0, false};
	if (!fk_directory(j->k)) return 0;
	int rc = fk_backing_extra(j->k, stays, extra, &x);
	if (rc || !x.n || !ask(j, false, "Remove %llu backing files without an object", (ull)x.n)) return rc;
	x.remove = true;
	return fk_backing_extra(j->k, stays, extra, &x);
}

/* ---- all ---------------------------------------------------------------------------------------------------- */
static int repair(struct job *j)
{
	struct ck *k = j->k;
	struct bfs_snap base;
	struct bfs_root root;
	struct rp r = {0};
	if (!k->sb.nhosts) return bfs_fail(NULL, -EUCLEAN, "both superblocks are damaged, and nothing else says where things lie. If there is a copy of the first 8 KiB of this pool, put it back; else make the pool anew with mkfs.belugafs");
	if (k->sb.incompat & ~BFS_INCOMPAT_KNOWN) return bfs_fail(NULL, -EPROTONOSUPPORT, "the pool was made with features that this version doesn't know; use a newer belugafs");
	int rc = read_lines(j), named;
	if (!rc) rc = refuse_live(j);
	if (!rc && fk_directory(k) && k->data_fd < 0) rc = bfs_fail(NULL, -EISDIR, "this is the metadata of a directory pool; name the directory that it lies in");
	if (!rc && !j->r->problems) rc = backing(j, NULL);
	if (rc || !j->r->problems) return rc;
	if ((named = choose(j, &base, &root)) < 0) return named;
	/* for registers too: the state is published again, in a line that is whole, then the others go */
	bool tree = k->in_tree || k->in_lines || !named || !k->have_root;
	if (tree) rc = repair_tree(j, &r, &base, &root, named);
	struct rp *now = tree && !rc ? &r : NULL;
	if (rc >= 0 && (!tree || now)) {
		u64 n = rows(j, now, false);
		if (n && ask(j, false, "Clear %llu damaged or void rows of the tables of files being written", (ull)n)) rows(j, now, true);
		if ((n = lines(j, now, false)) && ask(j, false, "Clear %llu damaged lines of host slots", (ull)n)) lines(j, now, true);
	}
	if (rc >= 0 && (!tree || now) && k->have_root) {
		int c = backing(j, now);
		if (c) rc = c;
	}
	if (rc >= 0) superblock(j);
	rp_free(&r);
	return rc < 0 ? rc : 0;
}

int bfs_fsck_run(struct bfs_mem *m, const struct bfs_fsck_how *how, struct bfs_fsck_result *result)
{
	struct bfs_fsck_result local;
	struct job j = {.m = m, .how = how, .r = result ? result : &local};
	bfs_guard_install();
	bfs_errmsg_clear();
	memset(j.r, 0, sizeof *j.r);
	if (!(j.k = check_new(&j, true))) return -ENOMEM;
	fk_check(j.k, how->data);
	int rc = j.k->err;
	if (!rc && how->repair) rc = repair(&j);
	fk_leftover(j.k);
	j.r->left = j.r->problems;
	if (!rc && how->repair && j.r->problems) {
		struct ck *c = check_new(&j, false);
		if (c) {
			fk_check(c, how->data);
			rc = c->err;
			j.r->left = c->r->problems;
		}
		check_free(c);
	}
	check_free(j.k);
	free(j.line), free(j.state);
	return rc ? rc : j.r->left > INT_MAX ? INT_MAX : (int)j.r->left;
}
