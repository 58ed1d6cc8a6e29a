/* What a file holds when a writer comes to it whose stores nobody sees.
 *
 * A file that is put together in several openings is a block in the end if each of them only added to it
 * (BFS_OF_FORMING).  Stores that come through the core are looked at one by one (bk_overwrites); of the others only
 * what they have made of the file can be seen.  So before such a writer gets at it, the places of its data are
 * noted, with a sum of each: maximal runs of bytes that are split where at least GAP bytes are zero.  Afterwards all of it must
 * be there as it was.  What was zero may be anything: as with stores that are seen, zeros were nothing.
 *
 * Holes of the backing file wouldn't do: it has none within a page, or a huge page, of which a part was written.
 *
 * A note is small: at most RUNS to a chunk (then the gaps that split are larger ones), none for a file with more than
 * FILE_MOST of data, and NOTES_MOST for all files together.  Without one the sums of whole chunks tell, for
 * which a hole that was filled is a change (backing_map.c). */
#include "backing.h"
#include "file.h"

enum { GAP = 16, RUNS = 64 };
#define FILE_MOST (64ull << 20)
#define NOTES_MOST (64ull << 20)

struct run { u64 off, sum; u32 len; };
struct bk_mark { u64 size; u32 n, cap; struct run run[]; };

static u64 bytes_of(u32 cap) { return sizeof(struct bk_mark) + (u64)cap * sizeof(struct run); }

void bk_mark_drop(struct bfs *b, struct bfs_inode *in)
{
	if (!in->mark) return;
	atomic_fetch_sub(&b->back->noted, bytes_of(in->mark->cap));
	xfree(b, in->mark);
	in->mark = NULL;
}

static struct bk_mark *resized(struct bfs *b, struct bk_mark *m, u32 cap)
{
	struct bk_mark *n = NULL;
	u64 more = bytes_of(cap) - (m ? bytes_of(m->cap) : 0);
	if (atomic_fetch_add(&b->back->noted, more) + more <= NOTES_MOST) n = xalloc(b, bytes_of(cap));
	if (!n) {
		atomic_fetch_sub(&b->back->noted, more);
		return NULL;
	}
	if (m) memcpy(n, m, bytes_of(min64(m->n, cap)));
	n->cap = cap;
	xfree(b, m);
	return n;
}

/* Runs of p[0, n) that are split by at least `gap` zeros; at most max of them.  -1: there are more. */
static int runs_of(const u8 *p, u64 n, u32 gap, u64 off, struct run *out, int max)
{
	u64 from = 0, to = 0; /* of the run so far */
	int k = 0;
	for (u64 i = 0; i < n; i += 8) {
		u64 w = 0, m = min64(n - i, 8);
		memcpy(&w, p + i, m);
		if (!w) continue;
		u64 first = i + (u64)__builtin_ctzll(w) / 8, end = i + 8 - (u64)__builtin_clzll(w) / 8;
		if (to && first - to >= gap) {
			if (k == max) return -1;
			out[k++] = (struct run){.off = off + from, .len = (u32)(to - from), .sum = fl_sum(p + from, to - from)};
			from = first;
		} else if (!to) {
			from = first;
		}
		to = end;
	}
	if (!to) return 0;
	if (k == max) return -1;
	out[k++] = (struct run){.off = off + from, .len = (u32)(to - from), .sum = fl_sum(p + from, to - from)};
	return k;
}

void bk_mark(struct bfs *b, struct bfs_inode *in)
{
	struct run run[RUNS];
	u64 cb = b->sb.chunk_bytes, size = atomic_load(&in->size);
	bk_mark_drop(b, in);
	if (min64(size, atomic_load(&in->granules) * BFS_GRANULE) > FILE_MOST) return;
	struct bk_mark *m = resized(b, NULL, 8), *more;
	u8 *bounce = fl_bounce(b);
	bool ok = m && bounce;
	for (u64 off = 0; ok && off < size; off += cb) {
		i64 data = bk_seek(b, in, off, true);
		if (data == -ENXIO || data >= (i64)size) break;
		if (data < 0) ok = false;
		off = ok ? (u64)data / cb * cb : off;
		u64 n = min64(cb, size - off);
		int k = -1;
		if (ok) ok = !bk_read(b, in, off, bounce, n);
		for (u32 gap = GAP; ok && k < 0; gap *= 2) k = runs_of(bounce, n, gap, off, run, RUNS);
		if (ok && m->n + (u32)k > m->cap) {
			if ((more = resized(b, m, 2 * m->cap + (u32)k))) m = more;
			else ok = false;
		}
		if (!ok) break;
		memcpy(m->run + m->n, run, (size_t)k * sizeof *run);
		m->n += (u32)k;
	}
	fl_bounce_end(b, bounce);
	in->mark = m;
	if (m) m->size = size;
	if (!ok) bk_mark_drop(b, in);
	else if ((more = resized(b, m, m->n))) in->mark = more;
}

bool bk_mark_holds(struct bfs *b, struct bfs_inode *in)
{
	const struct bk_mark *m = in->mark;
	u8 *bounce = fl_bounce(b);
	bool holds = bounce && atomic_load(&in->size) >= m->size;
	for (u32 i = 0; holds && i < m->n; i++) { /* no run is longer than a chunk */
		const struct run *r = &m->run[i];
		holds = !bk_read(b, in, r->off, bounce, r->len) && fl_sum(bounce, r->len) == r->sum;
	}
	fl_bounce_end(b, bounce);
	return holds;
}
