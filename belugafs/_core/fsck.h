/* What fsck's files share.  Who owns what:
 *   fsck.c          entry point, findings, reading; superblocks, host slots, choice of the root
 *   fsck_pages.c    pages and tables of pages, page map, page log
 *   fsck_names.c    objects, entries, listings, links, blobs; paths for messages
 *   fsck_records.c  the ordered records
 *   fsck_backing.c  backing files of a directory pool
 *   fsck_space.c    extents, owners, regions, quarantine, counters, rows, content
 * Nobody else includes this: fsck shares nothing with the code that it checks. */
#ifndef BELUGAFS_FSCK_H
#define BELUGAFS_FSCK_H

#include "internal.h"

#define CODES 160u /* different ones that are counted */

typedef unsigned long long ull;

struct ent { /* an entry as met in the hash table */
	u64 dir, cookie, ino, hash, prefix;
	u32 page;
	u16 off;
	u8 kind, owner, type, len;
	u8 listed, linked;
};
struct map { /* a mapped piece of a file */
	u64 addr, fgran;
	u32 len, slot;
	u8 overlay;
};
struct run { /* granules that are not free */
	u64 addr, ino;
	u32 len;
	u8 kind, host, st;
};
struct oi { /* what is kept of an object */
	u64 mapped;  /* granules found in its mapping */
	u64 end[2];  /* end of the last extent: base, overlay */
	u64 nent;    /* entries found in it */
	u32 gen, links, nsub, next_ext[2], map_at, next_free;
	u16 fmt;     /* mode >> 12, 0 = free */
	u8 cls, state, owner, flags;
	u8 used, open, orphan, color, free_seen, shared;
};
struct leafref {
	u32 index, page;
};
#define VEC(T) struct { T *v; size_t n, cap; }
/* room for one more; false: out of memory, then and from then on */
#define ROOM(k, vec) ((vec).v = fk_grow(k, (vec).v, (vec).n, &(vec).cap, sizeof *(vec).v), (vec).n < (vec).cap && !(k)->err)

struct ck {
	struct bfs_mem *m;
	struct bfs_super sb;
	bfs_fsck_cb cb;
	void *arg;
	struct bfs_fsck_result *r;
	int err; /* -ENOMEM, -EINTR */
	struct { const char *code; u64 n; } seen[CODES];
	u32 nseen;

	struct bfs_snap top;
	struct bfs_root root;
	u64 grants[BFS_HOSTS_MAX];
	u8 mount[BFS_HOSTS_MAX];
	bool have_root;      /* the root page of the state verifies, and this version knows its features */
	u64 in_lines, in_tree, in_rows; /* problems of these */
	bool (*progress)(void *arg, const char *what, u64 done, u64 total);

	int data_fd;         /* of the backing files of a directory pool, -1: they aren't there to be looked at */

	u64 *visited, *mapbits, *logged; /* by page */
	u64 nlogged;
	VEC(struct ent) ent;
	VEC(struct map) map;
	VEC(struct run) run;
	VEC(struct leafref) leaf;
	VEC(struct oi) oi;
	u8 *blob; /* room for one */
	struct bfs_key last;
	bool any;
	u64 nreg, nblocks, nordinary, nunsealed, norphans, blocks_granules, nused, nfreeslots;
};

static inline bool fk_get(const u64 *b, u64 i) { return b[i / 64] >> (i % 64) & 1; }
static inline void fk_set(u64 *b, u64 i) { b[i / 64] |= 1ull << (i % 64); }
static inline u64 fk_page_off(struct ck *k, u32 page) { return k->sb.meta_off + (u64)page * BFS_PAGE; }
static inline u64 fk_up(u64 a, u64 b) { return a / b + (a % b != 0); }

/* fsck.c ------------------------------------------------------------------------------ */
__attribute__((format(printf, 3, 4))) void fk_bad(struct ck *k, const char *code, const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void fk_note(struct ck *k, const char *code, const char *fmt, ...);
/* a repair has changed, or is about to change, this; severity 2 */
__attribute__((format(printf, 3, 4))) void fk_did(struct ck *k, const char *code, const char *fmt, ...);
void *fk_grow(struct ck *k, void *v, size_t n, size_t *cap, size_t el); /* by ROOM */
void fk_sort(void *v, size_t n, size_t el, int (*cmp)(const void *, const void *));
/* a private copy of pool bytes; zeros and false when they can't be read */
bool fk_rd(struct ck *k, u64 off, void *dst, size_t n);

/* Everything, with the superblock and registers; or the tree of a state that the caller has chosen (k->sb, k->top). */
void fk_check(struct ck *k, bool data);
void fk_check_state(struct ck *k, bool data);
void fk_leftover(struct ck *k); /* tells how many more there were of each code */
void fk_done(struct ck *k); /* releases what k holds, not k */
static inline void fk_progress(struct ck *k, const char *what, u64 done, u64 total)
{
	if (k->progress && !k->err && !k->progress(k->arg, what, done, total)) k->err = -EINTR;
}

/* fsck_pages.c ------------------------------------------------------------------------ */
/* copies and checks the page that p names; false: told, or met before */
bool fk_page(struct ck *k, struct bfs_ptr p, int kind, const char *what, u64 index, void *buf);
typedef void fk_leaf_fn(struct ck *k, u64 index, u32 page, void *buf, void *arg);
void fk_table(struct ck *k, struct bfs_ptr p, u32 level, u64 base, u64 nleaves, int kind, const char *what, fk_leaf_fn *f, void *arg);
void fk_walk_table(struct ck *k, struct bfs_ptr p, u64 nleaves, int kind, const char *what, fk_leaf_fn *f, void *arg);
fk_leaf_fn fk_leaf_map, fk_leaf_log, fk_leaf_none;
void fk_check_pages(struct ck *k);

/* fsck_names.c ------------------------------------------------------------------------ */
fk_leaf_fn fk_leaf_obj, fk_leaf_hash;
bool fk_xattrs_ok(const u8 *list, u32 len);
struct oi *fk_oi_at(struct ck *k, u32 slot);
struct oi *fk_oi_ino(struct ck *k, u64 ino); /* NULL too when another generation is there */
/* the object again, from its page; false when it can't be read any more */
bool fk_obj_again(struct ck *k, u32 slot, struct bfs_obj *o);
u64 fk_ino_of(struct ck *k, u32 slot);
int fk_by_cookie(const void *p, const void *q); /* the order of ent when fk_entry looks */
struct ent *fk_entry(struct ck *k, u32 dir_slot, u64 cookie);
const char *fk_path_ino(struct ck *k, u64 ino, char *buf, size_t size);
#define PATH(k, ino) fk_path_ino(k, ino, (char[1024]){0}, 1024)
void fk_check_objects(struct ck *k);
void fk_check_dirs(struct ck *k);
void fk_check_free_slots(struct ck *k);

/* fsck_records.c ---------------------------------------------------------------------- */
const char *fk_rec_name(u32 kind);
/* hi: first key that is not below this subtree, NULL = none */
void fk_tree(struct ck *k, struct bfs_ptr p, u32 level, const struct bfs_key *lo, const struct bfs_key *hi);

/* fsck_space.c ------------------------------------------------------------------------ */
bool fk_extent_ok(struct ck *k, u64 addr, u64 len);
void fk_check_space(struct ck *k);
void fk_check_counts(struct ck *k);
void fk_check_rows(struct ck *k);
void fk_check_data(struct ck *k);

/* sums of an object; the table was checked page by page before: here it is followed again, within bounds only */
struct fk_sums {
	struct bfs_obj o;
	u64 buf[BFS_PAGE / 8];
	u64 have; /* index of the leaf in buf + 1 */
	bool ok;
};
bool fk_sum_at(struct ck *k, struct fk_sums *s, u64 chunk, u64 *out);

/* fsck_backing.c ---------------------------------------------------------------------- */
struct stat;
static inline bool fk_directory(const struct ck *k) { return k->sb.incompat & BFS_INCOMPAT_DIRECTORY; }
void fk_check_backing(struct ck *k);
void fk_check_backing_data(struct ck *k);
int fk_backing_stat(struct ck *k, u64 ino, struct stat *st);     /* 0, -ENOENT, ... */
int fk_backing_open(struct ck *k, u64 ino);
bool fk_backing_read(int fd, u64 off, void *dst, size_t n);      /* zeros behind the end */
int fk_backing_extra(struct ck *k, bool (*has)(void *arg, u64 ino), void (*f)(void *arg, int dir, const char *name), void *arg);

#endif
