/* x86-64 with AVX2. */
#if defined(__x86_64__)
#pragma GCC target("avx2")
#include <immintrin.h>
#define LOOPS bfk_loops_avx2
#define LOOPS_NAME "avx2"
#define XXH_VECTOR 2 /* XXH_AVX2, which has no name before xxhash.h */
#define VEC __m256i
#define VLOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define VSTREAM(p, v) _mm256_stream_si256((__m256i *)(p), (v))
#include "copy_body.h"
#endif
