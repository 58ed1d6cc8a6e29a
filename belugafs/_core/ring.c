/* Layout, lines and heads of request rings: docs/ring.md. */
#include "ring.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core.h"
#include "internal.h"

int rg_error(int rc, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	return bfs_fail(NULL, rc, "%s", text);
}

void rg_lock(struct bfs_mem *m, pthread_mutex_t *x)
{
	if (m->ops->lock) m->ops->lock(m, x);
	else pthread_mutex_lock(x);
}

void rg_unlock(struct bfs_mem *m, pthread_mutex_t *x)
{
	if (m->ops->unlock) m->ops->unlock(m, x);
	else pthread_mutex_unlock(x);
}

struct rg_shape rg_shape(u32 slots, u32 req_bytes, u32 rep_bytes)
{
	struct rg_shape s;
	u64 lines = ((u64)slots * BFS_LINE + 4095) & ~4095ull, small = ((u64)slots * RG_SMALL + 4095) & ~4095ull;
	s.rep_line = RG_LINES_OFF + lines;
	s.req_pay = s.rep_line + lines;
	s.req_len = small + req_bytes;
	s.rep_pay = s.req_pay + s.req_len;
	s.rep_len = small + rep_bytes;
	s.size = s.rep_pay + s.rep_len;
	return s;
}

u64 rg_sum(const void *p, size_t n, u64 seed)
{
	u64 h = bfs_xxh(p, n, seed);
	return h ? h : 1;
}

void rg_seal(void *line, u64 nonce, u64 index)
{
	u64 *w = line;
	w[7] = rg_sum(w, 56, (BFS_MUT(RG_MUT_NO_NONCE) ? 0 : nonce) ^ index);
}

bool rg_valid(const void *line, u64 nonce, u64 index)
{
	const u64 *w = line;
	return w[7] == rg_sum(w, 56, (BFS_MUT(RG_MUT_NO_NONCE) ? 0 : nonce) ^ index);
}

/* The first word goes last, and is read first: on coherent memory a reader that sees it has the others.
 * Elsewhere the line may be torn, which its checksum tells. */
void rg_put(struct bfs_mem *m, void *line, const void *src)
{
	u64 *d = line;
	const u64 *s = src;
	if (!m->coherent) {
		mm_store(m, line, src, BFS_LINE);
		return;
	}
	for (int i = 1; i < 8; i++) __atomic_store_n(d + i, s[i], __ATOMIC_RELAXED);
	__atomic_store_n(d, s[0], __ATOMIC_RELEASE);
}

void rg_get(struct bfs_mem *m, void *dst, const void *line)
{
	u64 *d = dst;
	const u64 *s = line;
	if (!m->coherent) {
		mm_load(m, dst, line, BFS_LINE);
		return;
	}
	d[0] = __atomic_load_n(s, __ATOMIC_ACQUIRE);
	for (int i = 1; i < 8; i++) d[i] = __atomic_load_n(s + i, __ATOMIC_RELAXED);
}

int rg_read_head(struct bfs_mem *m, struct rg_head *h, struct rg_shape *s)
{
	if (m->size < RG_LINES_OFF) return rg_error(-EUCLEAN, "request ring: %llu bytes are no ring", (unsigned long long)m->size);
	rg_get(m, h, m->base + RG_L_HEAD * BFS_LINE);
	if (memcmp(h->magic, RG_MAGIC, sizeof h->magic)) return rg_error(-EUCLEAN, "request ring: its magic number isn't there");
	if (h->version != RG_VERSION) return rg_error(-EPROTONOSUPPORT, "request ring of version %u; this daemon knows %u: use the client library of its version", h->version, RG_VERSION);
	if (!rg_valid(h, h->nonce, RG_L_HEAD)) return rg_error(-EUCLEAN, "request ring: the checksum of its head is wrong");
	if (!h->slots || h->slots > RG_SLOTS_MAX || h->slots & (h->slots - 1)) return rg_error(-EUCLEAN, "request ring: %u slots; a power of two up to %u is expected", h->slots, RG_SLOTS_MAX);
	if (h->req_bytes % RG_CHUNK || h->req_bytes > RG_AREA_MAX || h->rep_bytes % RG_CHUNK || h->rep_bytes > RG_AREA_MAX)
		return rg_error(-EUCLEAN, "request ring: areas of %u and %u bytes; multiples of %u up to %u are expected", h->req_bytes, h->rep_bytes, RG_CHUNK, RG_AREA_MAX);
	*s = rg_shape(h->slots, h->req_bytes, h->rep_bytes);
	if (h->size_bytes != s->size || m->size < s->size)
		return rg_error(-EUCLEAN, "request ring: %llu bytes by its geometry, %llu by its head, %llu are mapped", (unsigned long long)s->size, (unsigned long long)h->size_bytes, (unsigned long long)m->size);
	return 0;
}
