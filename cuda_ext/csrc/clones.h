// MQ_CLONES compiles a function for the baseline, for AVX2 and for AVX-512 (x86-64-v4; g++ knows it from 12 on), chosen
// when the library loads. Where the attribute does not exist, on other processors, with other C libraries or with clang, it
// does nothing. setup.py forbids contraction to fused multiply-adds, so all versions give the same bytes. AArch64 needs
// none for its 128-bit vectors: they are in its baseline.
#pragma once

#include <cstdint>  // defines __GLIBC__ where there is one; the choice needs its loader

#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12
#define MQ_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#define MQ_VERSIONS  // functions may be written once per target, with the attribute `target`; the choice is the same
#elif defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 9
#define MQ_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MQ_CLONES
#endif

#ifdef MQ_VERSIONS
#define MQ_VERSION(target_name) __attribute__((target(target_name)))
#else
#define MQ_VERSION(target_name)
#endif

// LANES neighbouring elements: what a register holds, if the target has registers of that size.
template <typename T, int LANES>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * LANES)));  // g++ ignores the attribute in an alias
};

#define MQ_ALWAYS_INLINE __attribute__((always_inline))  // of lambdas: what is not inlined is not part of the clone

// Calls f(n), and knows n where it is the default size of a scale bucket: loops of a fixed length have no remainder.
template <typename F>
inline __attribute__((always_inline)) auto with_usual_size(int64_t n, const F& f) {
  constexpr int64_t kUsual = 512;
  return n == kUsual ? f(kUsual) : f(n);
}
