/* The pool's memory and the coherence verbs.  All other code reaches the pool
 * through this header, so the same protocol runs on three kinds of memory:
 * coherent (one host), incoherent (CXL 2.0 pool) and simulated (tests/native/sim).
 *
 *   store  write through the cache:  mm_store()  lines of registers, data
 *   load   fresh read:               mm_load(), mm_fresh() + plain reads
 *   flush  write dirty lines back:   mm_flush()
 *   fence  everything flushed and stored before is in the pool, and no later
 *          load passes it (MFENCE, not SFENCE): mm_fence()
 *
 * Plain stores through a pointer are allowed for metadata pages that no root
 * reaches yet; they must be announced with mm_dirty() first (a no-op outside
 * the simulator) and flushed before the root is published.
 */
#ifndef BELUGAFS_MEM_H
#define BELUGAFS_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include "format.h"

struct bfs_mem;

struct bfs_mem_ops {
	const char *name;
	/* one 64-byte line (or any range) written around the cache; not fenced */
	void (*store)(struct bfs_mem *m, void *dst, const void *src, size_t len);
	/* lines of the range are dropped from this host's cache; plain loads after the
	 * next fence see the pool.  Dirty lines of the range are written back first. */
	void (*inval)(struct bfs_mem *m, const void *p, size_t len);
	void (*flush)(struct bfs_mem *m, const void *p, size_t len);
	void (*fence)(struct bfs_mem *m);
	void (*dirty)(struct bfs_mem *m, void *p, size_t len); /* may be NULL */
	/* copies of file data; 0 or -EIO (SIGBUS, poison) */
	int (*copy_in)(struct bfs_mem *m, void *dst_pool, const void *src, size_t len);
	int (*copy_out)(struct bfs_mem *m, void *dst, const void *src_pool, size_t len);
	int (*zero)(struct bfs_mem *m, void *dst_pool, size_t len);
	/* copy_in that reads its source once for the checksum of the same bytes, bfs_sum's; may be NULL */
	int (*copy_in_sum)(struct bfs_mem *m, void *dst_pool, const void *src, size_t len, u64 *sum);
	/* host environment, so that a simulator can own time and scheduling */
	u64 (*now_ns)(struct bfs_mem *m);              /* CLOCK_REALTIME */
	u64 (*mono_ns)(struct bfs_mem *m);             /* CLOCK_MONOTONIC */
	u64 (*rand64)(struct bfs_mem *m);
	void (*pause)(struct bfs_mem *m, u64 ns);      /* sleep */
	void *(*alloc)(struct bfs_mem *m, size_t len); /* zeroed; NULL when out of memory */
	void (*free)(struct bfs_mem *m, void *p);
	void (*lock)(struct bfs_mem *m, void *mutex);  /* pthread_mutex_t; NULL = pthread's */
	void (*unlock)(struct bfs_mem *m, void *mutex);
	/* the medium was about to be used after an error that may not go on (simulator: host is dead) */
};

struct bfs_mem {
	const struct bfs_mem_ops *ops;
	u8 *base;
	u64 size;
	bool coherent; /* verbs are compiler and CPU fences only */
	bool readonly;
	void *priv;
};

extern const struct bfs_mem_ops bfs_ops_coherent;
extern const struct bfs_mem_ops bfs_ops_incoherent;

static inline void mm_store(struct bfs_mem *m, void *d, const void *s, size_t n) { m->ops->store(m, d, s, n); }
static inline void mm_flush(struct bfs_mem *m, const void *p, size_t n) { if (!m->coherent) m->ops->flush(m, p, n); }
static inline void mm_inval(struct bfs_mem *m, const void *p, size_t n) { if (!m->coherent) m->ops->inval(m, p, n); }
static inline void mm_dirty(struct bfs_mem *m, void *p, size_t n) { if (!m->coherent && m->ops->dirty) m->ops->dirty(m, p, n); }
static inline void mm_fence(struct bfs_mem *m) { m->ops->fence(m); }
/* fresh read: invalidate, fence, copy */
void mm_load(struct bfs_mem *m, void *dst, const void *src, size_t n);
/* fence, flush, fence: own line is in the pool and later loads don't pass it */
void mm_pool_fence(struct bfs_mem *m, const void *p, size_t n);

/* Copies that turn SIGBUS and SIGSEGV on the pool into -EIO.  The handler is
 * installed by bfs_guard_install() and chains to the former one. */
int bfs_guarded_copy(void *dst, const void *src, size_t n, bool nontemporal);
int bfs_guarded_zero(void *dst, size_t n);
int bfs_guarded_words(u64 *dst, const u64 *src, size_t n); /* each loaded whole */
int bfs_guarded_sum(const void *p, size_t n, u64 *sum);
int bfs_guarded_copy_sum(void *dst, const void *src, size_t n, bool nontemporal, u64 *sum);
int bfs_guarded_probe(const void *p, size_t n); /* a byte of each page can be loaded */
void bfs_guard_install(void);

/* checksummed lines and pages */
u64 bfs_xxh(const void *p, size_t n, u64 seed);
u64 bfs_sum(const void *p, size_t n); /* bfs_xxh(p, n, 0), as fast as this processor can: for data */
void bfs_line_seal(struct bfs_line *l, u64 incarnation, u32 slot, u32 index);
/* 1 valid, 0 absent (all zero), -1 damaged or torn */
int bfs_line_check(const struct bfs_line *l, u64 incarnation, u32 slot, u32 index);

#endif
