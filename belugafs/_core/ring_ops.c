/* What can be asked by a ring, done by the core.  Formats of payloads: docs/ring.md. */
#include "ring.h"

#include <errno.h>
#include <string.h>
#include "internal.h"

#define GROUP 256 /* keys of one transaction */
#define GROUP_BYTES (16ull << 20) /* and of its data: nobody else writes meanwhile */

struct batch { /* a request on keys, checked */
	struct rg_keys h;
	const u8 *keys, *lens, *data;
	u64 ns;
	int32_t *status; /* in j->out */
};

static int parse(struct rg_job *j, struct batch *x)
{
	memset(x, 0, sizeof *x);
	if (j->in_len < sizeof x->h) return rg_error(-EBADMSG, "a request on keys without its head");
	memcpy(&x->h, j->in, sizeof x->h);
	u64 n = x->h.count, keys = n * x->h.key_bytes, lens = j->op == RG_OP_PUT ? 4 * n : 0, at = sizeof x->h;
	if (x->h.key_bytes < 2 || x->h.key_bytes > BFS_KEY_MAX) return rg_error(-EINVAL, "keys of %u bytes; keys have 2 to %u", x->h.key_bytes, BFS_KEY_MAX);
	if (keys + lens > j->in_len - at) return rg_error(-EBADMSG, "%llu keys don't fit into a request of %u bytes", (unsigned long long)n, j->in_len);
	if (4 * n > j->out_cap) return rg_error(-EBADMSG, "room for the reply is %u bytes; %llu keys have %llu", j->out_cap, (unsigned long long)n, (unsigned long long)(4 * n));
	x->lens = j->in + at, x->keys = x->lens + lens, x->data = x->keys + keys;
	x->ns = j->arg;
	x->status = (int32_t *)(void *)j->out;
	u64 left = j->in_len - at - keys - lens, want = 0;
	for (u64 i = 0; i < n && lens; i++) {
		u32 len;
		memcpy(&len, x->lens + 4 * i, 4);
		want += len;
	}
	if (want != left) return rg_error(-EBADMSG, "%llu bytes of data in a request that has %llu", (unsigned long long)want, (unsigned long long)left);
	return 0;
}

static u32 len_of(const struct batch *x, u32 i)
{
	u32 len;
	if (x->lens == x->keys) return 0;
	memcpy(&len, x->lens + 4 * (size_t)i, 4);
	return len;
}

static int pin(struct bfs *b, u64 ns, const void *key, size_t klen, u32 how)
{
	struct ht_entry e;
	struct rd r;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	rc = ht_find(&r.v, ns, BFS_EK_KEY, key, klen, &e);
	rd_end(&r);
	if (rc) return rc;
	rc = how ? bfs_setxattr(b, e.ino, "user.beluga.pin", how == 1 ? "hard" : "soft", 4, 0) : bfs_removexattr(b, e.ino, "user.beluga.pin");
	return rc == -ESTALE ? -ENOENT : rc == -ENODATA && !how ? 0 : rc; /* what isn't pinned is as it was to be */
}

static int one(struct bfs *b, const struct batch *x, u16 op, u32 i, const u8 *data)
{
	const u8 *key = x->keys + (size_t)i * x->h.key_bytes;
	bfs_errmsg_clear(); /* in a batch the core doesn't */
	switch (op) {
	case RG_OP_PUT: return bfs_block_put(b, x->ns, key, x->h.key_bytes, data, len_of(x, i));
	case RG_OP_DELETE: return bfs_block_delete(b, x->ns, key, x->h.key_bytes);
	case RG_OP_PIN: return pin(b, x->ns, key, x->h.key_bytes, x->h.how);
	default: return pin(b, x->ns, key, x->h.key_bytes, 0);
	}
}

/* What one key means for itself; anything else is about the pool, and an attempt alone may go better: it makes room. */
static bool own_matter(int rc) { return !rc || rc == -EEXIST || rc == -ENOENT || rc == -EFBIG || rc == -EINVAL || rc == -ENOTDIR; }

/* Keys [i, end) in one transaction, or, where that doesn't work out, each in its own. */
static int group(struct bfs *b, struct batch *x, u16 op, u32 i, u32 end, const u8 *data, char *text)
{
	int rc = end - i > 1 ? bfs_batch_begin(b) : -ENOSPC;
	const u8 *d = data;
	if (rc && rc != -ENOSPC) return rc;
	if (!rc) {
		for (u32 k = i; k < end && !rc; d += len_of(x, k++)) {
			int s = one(b, x, op, k, d);
			x->status[k] = s;
			if (s && !*text) strncpy(text, bfs_errmsg(), RG_TEXT - 1);
			if (!own_matter(s)) rc = s;
		}
		if (!rc) rc = bfs_batch_commit(b);
		else bfs_batch_abort(b);
		if (!rc || rc == -EAGAIN || rc == -EROFS) return rc; /* EAGAIN: it may have happened */
		*text = 0;
	}
	d = data;
	for (u32 k = i; k < end; d += len_of(x, k++)) {
		x->status[k] = one(b, x, op, k, d);
		if (x->status[k] && !*text) strncpy(text, bfs_errmsg(), RG_TEXT - 1);
		if (x->status[k] == -EAGAIN) return -EAGAIN;
	}
	return 0;
}

static int on_keys(struct bfs *b, struct rg_job *j)
{
	struct batch x;
	char text[RG_TEXT] = "";
	int rc = parse(j, &x);
	if (rc) return rc;
	if (j->op == RG_OP_PIN && x.h.how != 1 && x.h.how != 2) return rg_error(-EINVAL, "a pin is hard (1) or soft (2), not %u", x.h.how);
	const u8 *data = x.data;
	for (u32 i = 0, end; i < x.h.count && !rc; i = end) {
		u64 bytes = len_of(&x, i);
		for (end = i + 1; end < x.h.count && end - i < GROUP && bytes + len_of(&x, end) <= GROUP_BYTES; end++) bytes += len_of(&x, end);
		rc = group(b, &x, j->op, i, end, data, text);
		for (u32 k = i; k < end && rc; k++) x.status[k] = rc;
		for (u32 k = end; k < x.h.count && rc; k++) x.status[k] = -ECANCELED; /* not tried */
		data += bytes;
	}
	bool same = x.h.count;
	for (u32 k = 0; k < x.h.count; k++) j->result += !x.status[k], same &= x.status[k] == x.status[0];
	j->out_len = 4 * x.h.count;
	/* one reason for all of them is the request's, with a message */
	if (!rc && same) rc = x.status[0];
	if (rc) return *text ? rg_error(rc, "%s", text) : rc;
	return 0;
}

/* ---- reservations ------------------------------------------------------------------------------------ */
static int reserve(struct bfs *b, struct rg_job *j)
{
	struct rg_room x;
	if (j->in_len != sizeof x) return rg_error(-EBADMSG, "a reservation of %u bytes of payload", j->in_len);
	memcpy(&x, j->in, sizeof x);
	if (x.count > BFS_RESERVE_MAX) return rg_error(-EINVAL, "%u blocks; 1 to %u can be reserved at a time", x.count, BFS_RESERVE_MAX);
	if (8ull * x.count > j->out_cap) return rg_error(-EBADMSG, "room for the reply is %u bytes; %u blocks have %llu", j->out_cap, x.count, 8ull * x.count);
	int rc = rv_reserve(b, j->owner, j->number, j->again, j->arg, x.count, x.size_bytes, (u64 *)(void *)j->out);
	if (!rc) j->out_len = 8 * x.count, j->result = j->number;
	return rc;
}

static int commit(struct bfs *b, struct rg_job *j)
{
	struct rg_keys h;
	if (j->in_len < sizeof h) return rg_error(-EBADMSG, "a request on keys without its head");
	memcpy(&h, j->in, sizeof h);
	u64 n = h.count, left = j->in_len - sizeof h, nsums = 0;
	if (n > BFS_RESERVE_MAX || n * (sizeof(struct rg_fill) + h.key_bytes) > left || 4 * n > j->out_cap) return rg_error(-EBADMSG, "%llu blocks don't fit into a request of %u bytes, or a reply of %u", (unsigned long long)n, j->in_len, j->out_cap);
	const u8 *fills = j->in + sizeof h, *sums = fills + n * sizeof(struct rg_fill);
	left -= n * (sizeof(struct rg_fill) + h.key_bytes);
	struct bfs_commit *c = n ? b->m->ops->alloc(b->m, n * sizeof *c) : NULL;
	if (!n || !c) return n ? -ENOMEM : 0;
	int rc = 0, bad = 0;
	for (u64 i = 0; i < n && !rc; i++) {
		struct rg_fill f;
		memcpy(&f, fills + i * sizeof f, sizeof f);
		u64 whole = (f.filled_bytes + b->sb.chunk_bytes - 1) / b->sb.chunk_bytes;
		if (f.nsums && f.nsums != whole) rc = rg_error(-EBADMSG, "%u checksums for a block of %llu chunks", f.nsums, (unsigned long long)whole);
		c[i] = (struct bfs_commit){.rc = -ECANCELED, .index = f.index, .klen = h.key_bytes, .zeroed = h.how & RG_ZEROED, .filled_bytes = f.filled_bytes, .sums = f.nsums ? (const u64 *)(const void *)(sums + 8 * nsums) : NULL};
		nsums += f.nsums;
	}
	if (!rc && nsums * 8 != left) rc = rg_error(-EBADMSG, "%llu checksums in a request that has room for %llu bytes of them", (unsigned long long)nsums, (unsigned long long)left);
	for (u64 i = 0; i < n && !rc; i++) c[i].key = sums + 8 * nsums + i * h.key_bytes;
	if (!rc) {
		if ((rc = rv_commit(b, j->owner, j->arg, j->again, c, (u32)n)) && rc != -ENOENT) bad = rc, rc = 0; /* the statuses say so, too */
		for (u64 i = 0; i < n && !rc; i++) {
			int32_t s = c[i].rc;
			memcpy(j->out + 4 * i, &s, 4);
			j->result += !s;
		}
		if (!rc) j->out_len = (u32)(4 * n), rc = bad;
	}
	b->m->ops->free(b->m, c);
	return rc;
}

int rg_core_exec(void *ctx, struct rg_job *j)
{
	struct bfs *b = ctx;
	char name[BFS_NAME_MAX + 1];
	int rc;
	if (j->op == RG_OP_PING) {
		if (j->in_len > j->out_cap) return rg_error(-EBADMSG, "room for the reply is %u bytes, the request has %u", j->out_cap, j->in_len);
		memcpy(j->out, j->in, j->in_len);
		j->out_len = j->in_len, j->result = j->arg;
		return 0;
	}
	j->slow = true;
	if (j->op < RG_OP_NS_CREATE || j->op > RG_OP_RELEASE) return rg_error(-EOPNOTSUPP, "this daemon knows no operation %u", j->op);
	if (!b) return rg_error(-ENODEV, "no pool is served here");
	if ((rc = bfs_check_same(b))) return rc;
	if (j->op == RG_OP_RESERVE) return reserve(b, j);
	if (j->op == RG_OP_COMMIT) return commit(b, j);
	if (j->op == RG_OP_RELEASE) return rv_release(b, j->owner, j->arg);
	if (j->op != RG_OP_NS_CREATE) return on_keys(b, j);
	if (!j->in_len || j->in_len > BFS_NAME_MAX || memchr(j->in, 0, j->in_len)) return rg_error(-EINVAL, "a namespace has a name of 1 to %u bytes without a zero", BFS_NAME_MAX);
	memcpy(name, j->in, j->in_len);
	name[j->in_len] = 0;
	return bfs_ns_create(b, name, &j->result);
}
