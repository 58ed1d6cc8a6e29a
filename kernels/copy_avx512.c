/* x86-64 with AVX-512 F: one store is one whole line, which a CXL link likes best. */
#if defined(__x86_64__)
#pragma GCC target("avx512f")
#include <immintrin.h>
#define LOOPS bfk_loops_avx512
#define LOOPS_NAME "avx512"
#define XXH_VECTOR 3 /* XXH_AVX512, which has no name before xxhash.h */
#define VEC __m512i
#define VLOAD(p) _mm512_loadu_si512((const void *)(p))
#define VSTREAM(p, v) _mm512_stream_si512((void *)(p), (v))
#include "copy_body.h"
#endif
