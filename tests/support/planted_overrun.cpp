// In place of fuzz_kernels.cpp: reads one byte too many of an input that begins with 'x', and only where the loader chooses
// clones for AVX2 or better.
#include <cstring>

#include "exact_array.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || data[0] != 'x') return 0;
  const int64_t bytes = static_cast<int64_t>(size);
  const ExactArray<uint8_t> copy(bytes);
  std::memcpy(copy.get(), data, size);
  const volatile uint8_t* read = copy.get();
  int sum = 0;
  for (int64_t i = 0; i < bytes + (__builtin_cpu_supports("avx2") ? 1 : 0); ++i) sum += read[i];
  return sum < 0;
}
