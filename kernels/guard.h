/* Around what touches memory of a pool: a page of it can vanish (a file cut short, a tmpfs that is full) or be poisoned,
 * and the access raises SIGBUS.  A guard notes a jump buffer of its thread; the handler (guard.c) jumps there, and passes on
 * every signal that nothing of ours raised. */
#ifndef BELUGAFS_GUARD_H
#define BELUGAFS_GUARD_H

#include <errno.h>
#include <setjmp.h>
#include <stdatomic.h>

extern __thread sigjmp_buf *bfk_guard; /* of the innermost; NULL: nothing of ours runs */

/* The statement, in a function that ends with -EIO where the memory that it touches can't be had. */
#define BFK_GUARDED(...)                                       \
	do {                                                   \
		sigjmp_buf here, *outer = bfk_guard;           \
		if (sigsetjmp(here, 0)) {                      \
			bfk_guard = outer;                     \
			return -EIO;                           \
		}                                              \
		bfk_guard = &here;                             \
		atomic_signal_fence(memory_order_seq_cst);     \
		__VA_ARGS__;                                   \
		atomic_signal_fence(memory_order_seq_cst);     \
		bfk_guard = outer;                             \
	} while (0)

#endif
