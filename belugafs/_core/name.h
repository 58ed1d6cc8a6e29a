/* What name.c, name_syn.c, name_make.c, name_move.c and name_list.c share. */
#ifndef BELUGAFS_NAME_H
#define BELUGAFS_NAME_H

#include "internal.h"

/* name.c -------------------------------------------------------------------------- */
int nm_ok(const void *name, size_t len);                                /* 0, -ENAMETOOLONG, -EINVAL */
const struct bfs_obj *nm_dir(struct view *v, u64 dir, int *rc);         /* as a directory that real names live in; NULL */
bool nm_hidden(struct view *v, const struct ht_entry *e);               /* publish=close: not shown before its seal */
int nm_seen(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e); /* what this host sees under a name */
/* any name in any directory; for a synthesised directory e is made up, with cookie 0 */
int nm_look(struct view *v, u64 dir, const void *name, size_t len, struct ht_entry *e);
struct bfs_rec nm_list_rec(const struct ht_entry *e);                   /* of the listing */
void nm_set_nlink(struct txn *t, struct bfs_obj *o, int by);
int nm_dir_changed(struct txn *t, u64 dir, int entries, int subdirs);   /* counts by so many; times */
/* back references */
int nm_ref_add(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie, u64 hash);
int nm_ref_del(struct txn *t, struct bfs_obj *o, u64 dir, u64 cookie);
int nm_unhook(struct txn *t, const struct ht_entry *e, struct bfs_obj *o); /* the three parts of an entry go; nlink is the caller's */

/* name_keys.c ----------------------------------------------------------------------- */
enum { NM_KEYS_MAX = 1024 }; /* at a time */
struct nm_key { const u8 *key; u64 hash, ino, cookie; int rc; };
/* Keys of len bytes each: their hashes, and rc -EEXIST of those that are there already, or that stand before in k; what has an
 * rc stays as it is.  0, or why none could be looked up. */
int nm_keys_look(struct view *v, u64 ns, struct nm_key *k, u32 n, u32 len);
/* Those that have an ino, of a fresh object without a name, are entered; type: mode >> 12 of the objects. */
int nm_keys_add(struct txn *t, u64 ns, u8 type, struct nm_key *k, u32 n, u32 len);

/* name_make.c ----------------------------------------------------------------------- */
int nm_dir_empty(struct view *v, u64 ino); /* 0, -ENOTEMPTY, -EIO */

/* name_move.c ----------------------------------------------------------------------- */
void nm_finished(struct txn *t, struct bfs_obj *o); /* o is a dirty object */

/* name_list.c ----------------------------------------------------------------------- */
void nm_dirent(struct bfs_dirent *d, u64 ino, u64 cookie, u8 type, const void *name, size_t len);

/* name_syn.c ------------------------------------------------------------------------ */
struct syn {
	u32 slot;  /* of the namespace */
	u32 level; /* 1: first byte, 2: both */
	u8 k[2];
};
static inline bool is_syn(u64 ino) { return ino >> 63; }
static inline u64 syn_ino(u32 slot, u32 level, u8 k0, u8 k1) { return 1ull << 63 | (u64)level << 60 | (u64)k0 << 52 | (u64)k1 << 44 | slot; }
int syn_unhex(const u8 *s, size_t n, u8 *out); /* bytes; -1 */
size_t syn_hex(const u8 *s, size_t n, char *out);
int syn_has(struct view *v, u32 slot, u32 level, u8 k0, u8 k1); /* a key has the prefix: 0, -ENOENT */
const struct bfs_obj *syn_get(struct view *v, u64 ino, struct syn *y, int *rc); /* the namespace, if the prefix has a key */
int syn_list(struct view *v, const struct syn *y, u64 after, struct bfs_dirent *out, int max);
int syn_rmdir(struct view *v, u64 dir, const void *name, size_t len); /* 1: not a prefix */

#endif
