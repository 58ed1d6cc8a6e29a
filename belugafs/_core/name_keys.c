/* Many keys of one block namespace, entered by one transaction.
 *
 * Each is what nm_add makes of one: hashed entry, listing record, back reference.  But the tree's pages are met in their
 * own order, not in that of the keys: a page that several keys share is copied once and found in the cache by the
 * second, and pages that follow each other in a table follow each other here.  The namespace is changed once. */
#include "name.h"

enum { LOOKS = 32, SEEN = 2 * NM_KEYS_MAX };

/* A stable order by 16 bits: exact enough for buckets, and exact for the first two bytes of a key. */
static void order_by(const u16 *v, u32 n, u16 *order)
{
	u16 half[NM_KEYS_MAX];
	for (u32 shift = 0; shift < 16; shift += 8) {
		u32 at[257] = {0};
		const u16 *from = shift ? half : NULL;
		u16 *to = shift ? order : half;
		for (u32 i = 0; i < n; i++) at[(v[i] >> shift & 255) + 1]++;
		for (u32 i = 0; i < 256; i++) at[i + 1] += at[i];
		for (u32 i = 0; i < n; i++) {
			u16 x = from ? from[i] : (u16)i;
			to[at[v[x] >> shift & 255]++] = x;
		}
	}
}

static void order_by_bucket(const struct nm_key *k, u32 n, u16 *order)
{
	u16 v[NM_KEYS_MAX] = {0};
	for (u32 i = 0; i < n; i++) v[i] = (u16)(k[i].hash >> 32); /* the highest bits of those that choose the bucket */
	order_by(v, n, order);
}

/* The second of two that are the same is told that the key is there. */
static void mark_twins(struct nm_key *k, u32 n, u32 len)
{
	u16 seen[SEEN] = {0}; /* index + 1 */
	for (u32 i = 0; i < n; i++) {
		if (k[i].rc) continue;
		u32 at = (u32)k[i].hash % SEEN;
		for (; seen[at]; at = (at + 1) % SEEN)
			if (k[seen[at] - 1].hash == k[i].hash && !memcmp(k[seen[at] - 1].key, k[i].key, len)) break;
		if (seen[at]) k[i].rc = -EEXIST;
		else seen[at] = (u16)(i + 1);
	}
}

int nm_keys_look(struct view *v, u64 ns, struct nm_key *k, u32 n, u32 len)
{
	u16 order[NM_KEYS_MAX];
	u8 keys[LOOKS * BFS_KEY_MAX];
	u64 ino[LOOKS];
	for (u32 i = 0; i < n; i++) k[i].hash = ht_hash(v->b, ns, BFS_EK_KEY, k[i].key, len);
	order_by_bucket(k, n, order);
	for (u32 at = 0; at < n; at += LOOKS) {
		u32 m = n - at < LOOKS ? n - at : LOOKS;
		for (u32 i = 0; i < m; i++) memcpy(keys + (size_t)i * len, k[order[at + i]].key, len);
		int rc = ht_find_many(v, ns, BFS_EK_KEY, keys, len, (int)m, ino);
		if (rc < 0) return rc;
		for (u32 i = 0; i < m; i++)
			if (ino[i] && !k[order[at + i]].rc) k[order[at + i]].rc = -EEXIST;
	}
	mark_twins(k, n, len);
	return 0;
}

int nm_keys_add(struct txn *t, u64 ns, u8 type, struct nm_key *k, u32 n, u32 len)
{
	u16 order[NM_KEYS_MAX], prefix[NM_KEYS_MAX] = {0};
	u32 slot = INO_SLOT(ns), added = 0;
	int rc = 0;
	for (u32 i = 0; i < n; i++) {
		if (!k[i].ino) continue;
		struct bfs_obj *o = ob_cow(t, k[i].ino);
		if (!o) return txn_fail(t, -ESTALE);
		k[i].cookie = t->root->next_cookie++;
		o->parent = ns, o->cookie = k[i].cookie, o->hash = k[i].hash;
		nm_set_nlink(t, o, 1);
		added++;
	}
	order_by_bucket(k, n, order);
	for (u32 i = 0; i < n && !rc; i++) {
		const struct nm_key *x = &k[order[i]];
		if (x->ino) rc = ht_insert(t, x->hash, ns, BFS_EK_KEY, x->key, len, x->ino, x->cookie, type, 0);
	}
	for (u32 i = 0; i < n; i++) prefix[i] = (u16)(k[i].key[0] << 8 | k[i].key[1]);
	order_by(prefix, n, order); /* and by cookies, which count on with i */
	for (u32 i = 0; i < n && !rc; i++) {
		const struct nm_key *x = &k[order[i]];
		struct bfs_rec r = {.k = KEY(BFS_T(BFS_T_KEYS, slot), nm_keyb(x->key, len), x->cookie), .x = x->hash, .y = x->ino};
		if (x->ino) rc = bt_put(t, &r);
	}
	if (!rc && added) rc = nm_dir_changed(t, ns, (int)added, 0);
	return rc ? txn_fail(t, rc) : 0;
}
