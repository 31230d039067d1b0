// What programs that run the kernels by themselves share.
#pragma once

#include <cstdint>
#include <vector>

#include "clones.h"
#include "random_words.h"

#ifdef MQ_VERSIONS
__attribute__((target("default"))) inline const char* instruction_set() { return "baseline"; }
__attribute__((target("avx2"))) inline const char* instruction_set() { return "AVX2"; }
__attribute__((target("arch=x86-64-v4"))) inline const char* instruction_set() { return "AVX-512"; }
#elif defined(__aarch64__)
inline const char* instruction_set() { return "AArch64"; }
#else
inline const char* instruction_set() { return "one version"; }
#endif

namespace mqgrad {

// Cubes of uniform numbers: many small, few large.
inline std::vector<float> heavy_tailed(int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    const float u = static_cast<float>(mix64(i) >> 40) * 0x1p-23f - 1.0f;
    values[i] = u * u * u;
  }
  return values;
}

}  // namespace mqgrad
