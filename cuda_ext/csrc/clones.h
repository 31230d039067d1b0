// MQ_CLONES compiles a function once for the baseline and once for AVX2, chosen when the library loads. Neither has
// fused multiply-add, so both give the same bytes. Elsewhere (other processors, other C libraries) it does nothing.
#pragma once

#include <cstdint>  // defines __GLIBC__ where there is one; the choice needs its loader

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define MQ_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MQ_CLONES
#endif
