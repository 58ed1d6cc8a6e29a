/* What a process changes in a pool that it uses in place: asked of the daemon by a ring (docs/ring.md), but for the bytes of
 * new blocks, which it stores itself where the daemon has reserved room for them (reserve_client.c).
 *
 * The ring is made with the first such call.  A daemon that ends is followed to the next one, within c->patience_ns; what has no
 * answer then is asked again, with its number, and not done twice.
 *
 * The pool is mapped twice: to read, and, from the first reservation on, to write.  So what only reads can't change anything by
 * mistake. */
#define _GNU_SOURCE
#include "client.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "file.h"
#include "ring.h"

enum { SLICE_NS = 250000000, PAUSE_NS = 2000000, PAUSE_MOST_NS = 100000000 };
enum { REQ_BYTES = 4 << 20, REP_BYTES = 1 << 20, KEYS_AT_ONCE = 16384 };
#define SMALL_BYTES (64u << 10) /* blocks up to here are sent to the daemon, which copies them: one round trip in place of three */

/* ---- the ring -------------------------------------------------------------------------------- */
void cl_ring_forked(bfc *c)
{
	if (c->ring) rg_client_forked(c->ring);
}

void cl_ring_close(bfc *c, bool forked)
{
	if (c->ring) rg_client_free(c->ring);
	c->ring = NULL;
	if (forked) c->room = NULL; /* not mapped there */
}

static int connect_ring(bfc *c, u64 lost) /* under ring_mx */
{
	int ring, bell, got[2] = {-1, -1}, rc = 0;
	u64 generation;
	if (atomic_load(&c->served) > lost) return 0; /* another thread has */
	if (!c->hand_over) return bfs_fail(NULL, -EOPNOTSUPP, "this connection can't change the pool: it was made without a daemon's socket");
	if (!c->ring) {
		struct rg_client *made;
		if ((rc = rg_client_new(&(struct rg_client_opts){.req_bytes = REQ_BYTES, .rep_bytes = REP_BYTES}, &made))) return rc;
		__atomic_store_n(&c->ring, made, __ATOMIC_RELEASE);
	} else if ((rc = rg_client_renew(c->ring, lost))) {
		return rc;
	}
	if ((rc = rg_client_fds(c->ring, &ring, &bell, &generation))) return rc;
	atomic_store(&c->made, generation);
	if ((rc = c->hand_over(c->hand_over_arg, c, ring, bell, got))) return rc;
	if (!c->room && !(c->room = cl_map(got[0], c->mem.size, PROT_READ | PROT_WRITE))) rc = bfs_fail(NULL, -ENOMEM, "the pool can't be mapped for writing: %s", strerror(errno));
	if (!rc && got[1] >= 0) rc = rg_client_daemon(c->ring, got[1]);
	close(got[0]);
	if (got[1] >= 0) close(got[1]);
	if (!rc) cl_ahead(c, true, c->room, 0); /* who asks for a ring is about to store */
	if (!rc) atomic_store(&c->served, generation);
	return rc;
}

static bool may_come(int rc) { return rc == -ECONNREFUSED || rc == -ENOENT || rc == -ECONNRESET || rc == -EPIPE || rc == -ETIMEDOUT || rc == -EAGAIN; }

static int reconnect(bfc *c, u64 lost, u64 deadline)
{
	struct bfs_mem *m = &c->mem;
	for (u64 pause = PAUSE_NS;; pause = pause < PAUSE_MOST_NS ? 2 * pause : pause) {
		pthread_mutex_lock(&c->ring_mx);
		int rc = connect_ring(c, lost);
		pthread_mutex_unlock(&c->ring_mx);
		if (!rc || !may_come(rc)) return rc;
		if (m->ops->mono_ns(m) + pause >= deadline) return bfs_fail(NULL, -ENOTCONN, "there is no daemon of this pool to ask; mount it: %s", strerror(-rc));
		if (c->interrupted && c->interrupted()) return -EINTR;
		m->ops->pause(m, pause);
	}
}

static int call(bfc *c, struct rg_call *k, u64 patience_ns)
{
	struct bfs_mem *m = &c->mem;
	u64 now, deadline = m->ops->mono_ns(m) + patience_ns;
	int rc = 0;
	for (;;) {
		u64 served = atomic_load(&c->served);
		if (!served || served != atomic_load(&c->made)) { /* one that nobody has got yet isn't asked */
			if ((rc = reconnect(c, served, deadline))) return rc;
			continue;
		}
		now = m->ops->mono_ns(m);
		rc = rg_call(__atomic_load_n(&c->ring, __ATOMIC_ACQUIRE), k, deadline > now + SLICE_NS ? SLICE_NS : deadline > now ? deadline - now : 1);
		if (rc == -ENOTCONN) {
			if ((rc = reconnect(c, served, deadline))) return rc;
		} else if (rc == -ETIMEDOUT && m->ops->mono_ns(m) < deadline) {
			if (c->interrupted && c->interrupted()) return -EINTR;
		} else {
			return rc;
		}
	}
}

static void drop_later(bfc *c, u64 reservation)
{
	pthread_mutex_lock(&c->ring_mx);
	if (c->ndrops == c->drops_cap) {
		u32 cap = c->drops_cap ? 2 * c->drops_cap : 16;
		u64 *d = realloc(c->drops, cap * sizeof *d);
		if (d) c->drops = d, c->drops_cap = cap;
	}
	if (c->ndrops < c->drops_cap) c->drops[c->ndrops++] = reservation; /* else it ends with the process */
	pthread_mutex_unlock(&c->ring_mx);
}

static int drop_now(bfc *c, u64 reservation, u64 patience_ns)
{
	struct rg_call k = {.op = RG_OP_RELEASE, .arg = reservation};
	int rc = call(c, &k, patience_ns);
	return rc ? rc : k.status;
}

static void do_drops(bfc *c)
{
	for (;;) {
		pthread_mutex_lock(&c->ring_mx);
		u64 one = c->ndrops ? c->drops[--c->ndrops] : 0;
		pthread_mutex_unlock(&c->ring_mx);
		if (!one) return;
		if (drop_now(c, one, SLICE_NS)) return drop_later(c, one);
	}
}

/* An answer, or an error with its text; a refused request is one, too. */
static int ask(bfc *c, struct rg_call *k)
{
	if (__atomic_load_n(&c->ndrops, __ATOMIC_RELAXED)) do_drops(c);
	int rc = call(c, k, c->patience_ns);
	if (!rc && k->status < 0) return bfs_fail(NULL, k->status, "%s", *k->text ? k->text : strerror(-k->status));
	return rc;
}

void bfc_patience(bfc *c, uint64_t ns) { c->patience_ns = ns; }

/* ---- names ------------------------------------------------------------------------------------- */
int bfc_namespace_create(bfc *c, const char *name, uint64_t *ns)
{
	struct rg_call k = {.op = RG_OP_NS_CREATE, .payload = name, .len = (u32)strlen(name)};
	int rc = cl_enter(c);
	if (!rc && (strchr(name, '/') || !*name || k.len > BFS_NAME_MAX)) rc = bfs_fail(NULL, -EINVAL, "a namespace is a name in the root directory, of 1 to %u bytes", BFS_NAME_MAX);
	if (!rc && !(rc = ask(c, &k))) *ns = k.result;
	return rc;
}

/* ---- reserving ---------------------------------------------------------------------------------- */
int bfc_reserve(bfc *c, uint64_t ns, int n, uint64_t size_bytes, struct bfc_new *block, uint64_t *reservation)
{
	struct rg_room x = {.size_bytes = size_bytes, .count = (u32)n};
	struct rg_call k = {.op = RG_OP_RESERVE, .arg = ns, .payload = &x, .len = sizeof x, .reply_cap = 8u * (u32)n + RG_TEXT};
	int rc = cl_enter(c);
	if (rc) return rc;
	if (n < 1 || n > (int)BFS_RESERVE_MAX) return bfs_fail(NULL, -EINVAL, "%d blocks; 1 to %u can be reserved at a time", n, BFS_RESERVE_MAX);
	u64 *off = malloc(k.reply_cap);
	if (!off) return -ENOMEM;
	k.reply = off;
	if (!(rc = ask(c, &k)) && k.reply_len != 8u * (u32)n) rc = bfs_fail(NULL, -EBADMSG, "a reply of %u bytes for %d blocks", k.reply_len, n);
	for (int i = 0; i < n && !rc; i++) {
		if (off[i] < c->b.sb.data_off || off[i] % BFS_GRANULE || off[i] + size_bytes > c->mem.size) rc = bfs_fail(NULL, -EBADMSG, "block %d is said to be outside the pool", i);
		block[i] = (struct bfc_new){.addr = c->room + off[i], .size_bytes = size_bytes, .filled_bytes = size_bytes, .index = (u32)i};
		cl_ahead(c, true, block[i].addr, rc ? 0 : size_bytes);
	}
	/* it may have been made, or is still to be */
	if (rc && !k.status && k.number) drop_later(c, k.number);
	else if (!rc) *reservation = k.result;
	free(off);
	return rc;
}

int bfc_drop(bfc *c, uint64_t reservation)
{
	int rc = cl_enter(c);
	if (rc == -EOWNERDEAD) return rc;
	if ((rc = drop_now(c, reservation, SLICE_NS))) drop_later(c, reservation);
	return 0;
}

static int check_keys(int n, size_t key_bytes)
{
	return n < 0 || key_bytes < 2 || key_bytes > BFS_KEY_MAX ? bfs_fail(NULL, -EINVAL, "%d keys of %zu bytes; keys have 2 to %u", n, key_bytes, BFS_KEY_MAX) : 0;
}

/* ---- committing ------------------------------------------------------------------------------------- */
static u32 chunks(const bfc *c, u64 bytes) { return (u32)((bytes + c->b.sb.chunk_bytes - 1) / c->b.sb.chunk_bytes); }

/* Zeros behind what was stored, and checksums of all of it.  data: is stored on the way, in one pass; NULL: it was. */
static int finish(bfc *c, struct bfc_new *k, const u8 *data, u64 *sums)
{
	u64 chunk = c->b.sb.chunk_bytes;
	u8 *p = k->addr;
	if (p < c->room || p + k->size_bytes > c->room + c->mem.size || k->filled_bytes > k->size_bytes)
		return bfs_fail(NULL, -EINVAL, "block %u: %llu bytes filled of %llu", k->index, (unsigned long long)k->filled_bytes, (unsigned long long)k->size_bytes);
	/* to the end of the granule: this process has its lines, the daemon would have to fetch them */
	u64 end = granules(k->size_bytes) * BFS_GRANULE;
	if (end > k->filled_bytes && bfs_guarded_zero(p + k->filled_bytes, end - k->filled_bytes)) return bfs_fail(NULL, -EIO, "pool memory can't be written");
	for (u64 off = 0; off < k->size_bytes; off += chunk, sums++) {
		u64 m = min64(k->size_bytes - off, chunk);
		/* a page that is read first is mapped with its neighbours, writable; one that is stored into, alone */
		for (u64 at = off; data && at < off + m; at += CL_WINDOW)
			if (bfs_guarded_probe(p + at, 1)) return bfs_fail(NULL, -EIO, "pool memory can't be used");
		if (data ? bfs_guarded_copy_sum(p + off, data + off, m, false, sums) : bfs_guarded_sum(p + off, m, sums)) return bfs_fail(NULL, -EIO, "pool memory can't be used");
		if (!*sums) *sums = 1;
	}
	return 0;
}

/* One request's share; how many of n it took. */
static int commit_some(bfc *c, u64 reservation, const u8 *keys, u32 key_bytes, int n, struct bfc_new *block, const void *const *data)
{
	u64 len = sizeof(struct rg_keys), nsums = 0;
	int took = 0, sent = 0, rc = 0;
	for (; took < n && took < KEYS_AT_ONCE; took++) {
		u64 more = sizeof(struct rg_fill) + key_bytes + 8ull * chunks(c, block[took].size_bytes);
		if (took && len + more > REQ_BYTES) break;
		len += more;
	}
	if (len > REQ_BYTES) return bfs_fail(NULL, -EFBIG, "a block of %llu bytes has more checksums than fit into a request", (unsigned long long)block[0].size_bytes);
	u8 *payload = malloc(len);
	u64 *sums = malloc((len + 8) & ~7ull);
	int32_t *status = malloc(4u * (u32)took + RG_TEXT);
	if (!payload || !sums || !status) {
		rc = -ENOMEM;
		goto out;
	}
	struct rg_fill *fill = (struct rg_fill *)(void *)(payload + sizeof(struct rg_keys));
	for (int i = 0; i < took; i++) {
		if ((block[i].error = finish(c, &block[i], data ? data[i] : NULL, sums + nsums))) continue;
		fill[sent] = (struct rg_fill){.index = block[i].index, .nsums = chunks(c, block[i].size_bytes), .filled_bytes = block[i].size_bytes};
		nsums += fill[sent++].nsums;
	}
	struct rg_keys h = {.count = (u32)sent, .key_bytes = key_bytes, .how = RG_ZEROED};
	u8 *at = (u8 *)(fill + sent);
	memcpy(payload, &h, sizeof h);
	memcpy(at, sums, 8 * nsums);
	at += 8 * nsums;
	for (int i = 0; i < took; i++)
		if (!block[i].error) memcpy(at, keys + (size_t)i * key_bytes, key_bytes), at += key_bytes;
	mm_fence(&c->mem); /* what was stored, before anybody hears of it */
	struct rg_call k = {.op = RG_OP_COMMIT, .arg = reservation, .payload = payload, .len = (u32)(at - payload), .reply = status, .reply_cap = 4u * (u32)sent + RG_TEXT};
	rc = sent ? ask(c, &k) : 0;
	if (sent && k.reply_len == 4u * (u32)sent) rc = 0; /* each has a status, whatever the request's is */
	for (int i = 0, s = 0; i < took && !rc; i++)
		if (!block[i].error) block[i].error = status[s++];
out:
	free(payload);
	free(sums);
	free(status);
	return rc ? rc : took;
}

static int commit(bfc *c, u64 reservation, const void *keys, size_t key_bytes, int n, struct bfc_new *block, const void *const *data)
{
	int rc = cl_enter(c), stored = 0;
	if (rc || (rc = check_keys(n, key_bytes))) return rc;
	if (n && !c->room) return bfs_fail(NULL, -ENOENT, "there is no reservation %llu", (unsigned long long)reservation);
	for (int at = 0; at < n && rc >= 0; at += rc) rc = commit_some(c, reservation, (const u8 *)keys + (size_t)at * key_bytes, (u32)key_bytes, n - at, block + at, data ? data + at : NULL);
	for (int i = 0; i < n && rc >= 0; i++) stored += !block[i].error;
	return rc < 0 ? rc : stored;
}

int bfc_commit(bfc *c, uint64_t reservation, const void *keys, size_t key_bytes, int n, struct bfc_new *block) { return commit(c, reservation, keys, key_bytes, n, block, NULL); }

/* ---- requests on keys --------------------------------------------------------------------------------- */
/* Is it about each of the keys, and not about the request? */
static bool of_keys(int status) { return !status || status == -EEXIST || status == -ENOENT || status == -ENOSPC || status == -EFBIG; }

/* Keys [0, n) in one request; data NULL: none */
static int request(bfc *c, u16 op, u64 ns, const u8 *keys, u32 key_bytes, int n, u32 how, const void *const *data, const size_t *size, int32_t *error)
{
	struct rg_keys h = {.count = (u32)n, .key_bytes = key_bytes, .how = how};
	u64 len = sizeof h + (u64)n * key_bytes, at = sizeof h;
	for (int i = 0; i < n && data; i++) len += 4 + size[i];
	u8 *payload = malloc(len);
	int32_t *status = malloc(4u * (u32)n + RG_TEXT);
	int rc = payload && status ? 0 : -ENOMEM;
	if (!rc) {
		memcpy(payload, &h, sizeof h);
		for (int i = 0; i < n && data; i++, at += 4) memcpy(payload + at, &(u32){(u32)size[i]}, 4);
		memcpy(payload + at, keys, (size_t)n * key_bytes);
		at += (u64)n * key_bytes;
		for (int i = 0; i < n && data; at += size[i++]) memcpy(payload + at, data[i], size[i]);
		struct rg_call k = {.op = op, .arg = ns, .payload = payload, .len = (u32)len, .reply = status, .reply_cap = 4u * (u32)n + RG_TEXT};
		rc = ask(c, &k);
		if (k.reply_len == 4u * (u32)n && of_keys(k.status)) rc = 0;
		for (int i = 0; i < n && !rc; i++) error[i] = status[i];
	}
	free(payload);
	free(status);
	return rc;
}

static int on_keys(bfc *c, u16 op, u64 ns, const void *keys, size_t key_bytes, int n, u32 how, int32_t *error)
{
	int rc = cl_enter(c), done = 0;
	if (rc || (rc = check_keys(n, key_bytes))) return rc;
	for (int at = 0, m; at < n && !rc; at += m) {
		m = n - at < KEYS_AT_ONCE ? n - at : KEYS_AT_ONCE;
		rc = request(c, op, ns, (const u8 *)keys + (size_t)at * key_bytes, (u32)key_bytes, m, how, NULL, NULL, error + at);
	}
	for (int i = 0; i < n && !rc; i++) done += !error[i];
	return rc ? rc : done;
}

int bfc_delete(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, int32_t *error) { return on_keys(c, RG_OP_DELETE, ns, keys, key_bytes, n, 0, error); }
int bfc_pin(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, enum bfc_pin_how how, int32_t *error)
{
	return on_keys(c, how == BFC_UNPIN ? RG_OP_UNPIN : RG_OP_PIN, ns, keys, key_bytes, n, how, error);
}

/* ---- copies -------------------------------------------------------------------------------------------- */
/* Blocks of one size, into room that was reserved for them. */
static int put_in_room(bfc *c, u64 ns, const u8 *keys, size_t key_bytes, int n, const void *const *data, size_t size, int32_t *error)
{
	struct bfc_new *block = calloc((size_t)n, sizeof *block);
	u64 reservation;
	int rc = block ? bfc_reserve(c, ns, n, size, block, &reservation) : -ENOMEM;
	if (!rc) {
		rc = commit(c, reservation, keys, key_bytes, n, block, data);
		for (int i = 0; i < n && rc >= 0; i++) error[i] = block[i].error;
		char keep[RG_TEXT];
		strncpy(keep, bfs_errmsg(), sizeof keep - 1), keep[sizeof keep - 1] = 0;
		drop_now(c, reservation, SLICE_NS) ? drop_later(c, reservation) : (void)0;
		if (rc < 0) bfs_fail(NULL, rc, "%s", keep);
	}
	free(block);
	return rc < 0 ? rc : 0;
}

int bfc_put(bfc *c, uint64_t ns, const void *keys, size_t key_bytes, int n, const void *const *data, const size_t *size_bytes, int32_t *error)
{
	const u8 *key = keys;
	int rc = cl_enter(c), stored = 0, m;
	if (rc || (rc = check_keys(n, key_bytes))) return rc;
	/* nothing is evicted for what is there already */
	u8 *present = malloc((size_t)n + 1);
	if (!present) return -ENOMEM;
	if ((rc = bfs_block_exists(&c->b, ns, keys, key_bytes, n, present)) > 0) rc = 0;
	for (int at = 0; at < n && !rc; at += m) {
		if (present[at]) {
			error[at] = -EEXIST, m = 1;
			continue;
		}
		bool small = size_bytes[at] <= SMALL_BYTES;
		u64 len = sizeof(struct rg_keys);
		for (m = 0; at + m < n && m < 4096; m++) {
			size_t size = size_bytes[at + m];
			if (present[at + m]) break;
			if (small ? size > SMALL_BYTES || (m && len + 4 + key_bytes + size > REQ_BYTES) : size != size_bytes[at]) break;
			/* room that is reserved isn't evicted: no more of it at a time than a part of the pool */
			if (!small && m && (u64)(m + 1) * size > c->b.sb.data_granules * BFS_GRANULE / 16) break;
			len += 4 + key_bytes + size;
		}
		for (int i = 0, some = m; i < m && !rc;) {
			const u8 *k = key + (size_t)(at + i) * key_bytes;
			if (small) rc = request(c, RG_OP_PUT, ns, k, (u32)key_bytes, some, 0, data + at + i, size_bytes + at + i, error + at + i);
			else rc = put_in_room(c, ns, k, key_bytes, some, data + at + i, size_bytes[at], error + at + i);
			if (rc == -ENOSPC && some > 1) { /* one by one, then: they may make room for each other */
				some = 1, rc = 0;
				continue;
			}
			/* larger than a region of the pool: in pieces, by the daemon */
			if (rc == -EFBIG && !small && len <= REQ_BYTES) rc = request(c, RG_OP_PUT, ns, k, (u32)key_bytes, some, 0, data + at + i, size_bytes + at + i, error + at + i);
			/* what doesn't fit doesn't keep others from being stored */
			for (int x = 0; x < some && (rc == -ENOSPC || rc == -EFBIG); x++) error[at + i + x] = rc;
			if (rc == -ENOSPC || rc == -EFBIG) rc = 0;
			i += some;
		}
	}
	free(present);
	for (int i = 0; i < n && !rc; i++) stored += !error[i];
	return rc ? rc : stored;
}
