/* Which loops: the best that this processor has, unless a test chooses others. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include "bfk.h"

static const struct bfk_loops *available[4];
static const char *names[4];
static _Atomic(const struct bfk_loops *) chosen;

__attribute__((constructor)) static void look(void)
{
	unsigned n = 0;
#if defined(__x86_64__)
	__builtin_cpu_init(); /* asks the processor, and whether the system saves the registers */
	if (__builtin_cpu_supports("avx512f")) available[n++] = &bfk_loops_avx512;
	if (__builtin_cpu_supports("avx2")) available[n++] = &bfk_loops_avx2;
#endif
	available[n++] = &bfk_loops_portable;
	for (unsigned i = 0; i < n; i++) names[i] = available[i]->name;
	atomic_store(&chosen, available[0]);
}

const struct bfk_loops *bfk_loops(void) { return atomic_load_explicit(&chosen, memory_order_relaxed); }
const char *const *bfk_isas(void) { return names; }
const char *bfk_isa(void) { return bfk_loops()->name; }
int bfk_set_isa(const char *name)
{
	for (unsigned i = 0; available[i]; i++)
		if (!strcmp(available[i]->name, name)) {
			atomic_store(&chosen, available[i]);
			return 0;
		}
	return -EINVAL;
}
