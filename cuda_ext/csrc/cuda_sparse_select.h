// Which elements the sparse code sends, on CUDA: a threshold, found on the device.
#pragma once

#include "cuda_warp.h"
#include "feedback.h"
#include "sparse.h"

namespace mqgrad::cuda {

// Note [Radix select]
//
// The `count`-th largest key is found digit by digit: 11 bits, 10 and 10. A pass over the vector counts the keys that share
// the digits found so far by their next one, and one block picks the digit. On the way, the keys above the threshold are
// counted by half octaves below the top, for best_floor. Zeros are not counted: the last bin takes what is left.
constexpr int kDigits = 3;
constexpr int kBins = 2048;

struct Selection {  // zeros at the start
  unsigned long long bins[kDigits][kBins];
  unsigned long long half_octaves[kHalfOctaves];
  int64_t ties;         // how many with exactly the threshold are kept; before that is known, how many are still to be found
  uint32_t threshold;   // or the digits found so far
  uint32_t top;         // largest key; where it is not finite, nothing else here means anything
  uint32_t below_top;   // how far the smallest kept key above the threshold is below the top
};

__device__ __forceinline__ float value_at(const SparseArguments& a, int64_t i) {
  const float x = load_float(a.x, a.dtype, i);
  return a.residual ? compensated(x, a.residual[i], a.alpha) : x;
}

// How many values a thread asks for before it waits for the first.
constexpr int kValuesAtOnce = 4;

// Calls f(value) for the values from `begin` on that are `stride` apart, below `end`.
template <typename F>
__device__ __forceinline__ void for_values(const SparseArguments& a, int64_t begin, int64_t end, int64_t stride,
                                           const F& f) {
  for (; begin + (kValuesAtOnce - 1) * stride < end; begin += kValuesAtOnce * stride) {
    float values[kValuesAtOnce];
#pragma unroll
    for (int k = 0; k < kValuesAtOnce; ++k) values[k] = value_at(a, begin + k * stride);
#pragma unroll
    for (int k = 0; k < kValuesAtOnce; ++k) f(values[k]);
  }
  for (; begin < end; begin += stride) f(value_at(a, begin));
}

// Threshold, ties and top, in memory that is zero.
cudaError_t select_largest(const SparseArguments& arguments, Selection* selection, cudaStream_t stream);

}  // namespace mqgrad::cuda
