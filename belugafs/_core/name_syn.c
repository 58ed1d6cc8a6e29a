/* Synthesised directories.
 *
 * Below a block namespace are two levels of directories that nobody stores: an inode
 * number with bit 63 stands for a prefix of keys, and exists while a key has it. */
#include <sys/stat.h>
#include "name.h"

int syn_unhex(const u8 *s, size_t n, u8 *out)
{
	if (n % 2 || n / 2 > BFS_KEY_MAX) return -1;
	for (size_t i = 0; i < n; i++) {
		int c = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10 : -1;
		if (c < 0) return -1;
		out[i / 2] = (u8)(i % 2 ? out[i / 2] | c : c << 4);
	}
	return (int)(n / 2);
}

size_t syn_hex(const u8 *s, size_t n, char *out)
{
	for (size_t i = 0; i < n; i++) out[2 * i] = "0123456789abcdef"[s[i] >> 4], out[2 * i + 1] = "0123456789abcdef"[s[i] & 15];
	return 2 * n;
}

/* first key of the namespace that is >= the prefix; -ENOENT */
static int syn_key_from(struct view *v, u32 slot, u64 prefix, struct bfs_rec *r)
{
	u64 a = BFS_T(BFS_T_KEYS, slot);
	int rc = bt_seek(v, KEY(a, prefix, 0), r);
	return rc ? rc : r->k.a == a ? 0 : -ENOENT;
}

int syn_has(struct view *v, u32 slot, u32 level, u8 k0, u8 k1)
{
	struct bfs_rec r;
	u64 p = (u64)k0 << 56 | (level == 2 ? (u64)k1 << 48 : 0);
	int rc = syn_key_from(v, slot, p, &r), shift = level == 2 ? 48 : 56;
	return rc ? rc : r.k.b >> shift == p >> shift ? 0 : -ENOENT;
}

/* The namespace behind a synthesised number, if the prefix has a key. */
const struct bfs_obj *syn_get(struct view *v, u64 ino, struct syn *y, int *rc)
{
	*y = (struct syn){(u32)ino, ino >> 60 & 3, {(u8)(ino >> 52), (u8)(ino >> 44)}};
	const struct bfs_obj *o = ob_slot(v, y->slot, rc);
	if (*rc) return NULL;
	if (!o || !S_ISDIR(o->mode) || !(o->flags & BFS_OF_NSBLOCK) || y->level < 1 || y->level > 2 || ino != syn_ino(y->slot, y->level, y->k[0], y->k[1])) *rc = -ESTALE;
	else if ((*rc = syn_has(v, y->slot, y->level, y->k[0], y->k[1])) == -ENOENT) *rc = -ESTALE; /* the kernel looks again */
	return *rc ? NULL : o;
}

/* A prefix is gone with its last key, so rm -r, which has just removed that, is told that
 * its rmdir succeeded.  1: not a prefix. */
int syn_rmdir(struct view *v, u64 dir, const void *name, size_t len)
{
	int rc = 0;
	u8 k;
	u32 level = is_syn(dir) ? (u32)(dir >> 60 & 3) + 1 : 1;
	const struct bfs_obj *o = is_syn(dir) ? ob_slot(v, INO_SLOT(dir), &rc) : ob_get(v, dir, &rc);
	if (rc || !o || !S_ISDIR(o->mode) || !(o->flags & BFS_OF_NSBLOCK) || level > 2 || len != 2 || syn_unhex(name, 2, &k) != 1) return 1;
	rc = level == 2 ? syn_has(v, o->slot, 2, (u8)(dir >> 52), k) : syn_has(v, o->slot, 1, k, 0);
	return rc == -ENOENT ? 0 : rc ? rc : -ENOTEMPTY;
}

/* prefixes under a namespace or under its first level; cookie = byte + 1 */
int syn_list(struct view *v, const struct syn *y, u64 after, struct bfs_dirent *out, int max)
{
	struct bfs_rec r;
	char name[2];
	u64 base = y->level ? (u64)y->k[0] << 56 : 0;
	int n = 0, rc = 0, shift = y->level ? 48 : 56;
	for (u64 c = after; c < 256 && n < max; n++) {
		if ((rc = syn_key_from(v, y->slot, base | c << shift, &r)) || (y->level && r.k.b >> 56 != y->k[0])) break;
		u8 byte = (u8)(r.k.b >> shift);
		syn_hex(&byte, 1, name);
		nm_dirent(&out[n], y->level ? syn_ino(y->slot, 2, y->k[0], byte) : syn_ino(y->slot, 1, byte, 0), byte + 1u, S_IFDIR >> 12, name, 2);
		c = byte + 1u;
	}
	return rc && rc != -ENOENT ? rc : n;
}
