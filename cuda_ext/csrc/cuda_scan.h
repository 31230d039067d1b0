// Prefix sums and prefix maxima over the lanes of a warp, the threads of a block, and a vector.
#pragma once

#include "cuda_warp.h"

namespace mqgrad::cuda {

struct Plus {
  static constexpr int64_t kNothing = 0;
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

struct Larger {
  static constexpr int64_t kNothing = -1;
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; }
};

// The values of the lanes before this one, combined.
template <typename Combine>
__device__ __forceinline__ int64_t of_lanes_before(int64_t value) {
  const Combine combine;
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int apart = 1; apart < kLanes; apart *= 2) {
    const int64_t other = __shfl_up_sync(0xffffffffu, value, apart);
    value = lane >= apart ? combine(value, other) : value;
  }
  const int64_t before = __shfl_up_sync(0xffffffffu, value, 1);
  return lane > 0 ? before : Combine::kNothing;
}

constexpr int kScanThreads = 1024;
constexpr int kScanValues = 4;  // that a thread takes at a time

// The values of the threads before this one, combined, of a block of kScanThreads in a row; `all` is that of all of them.
template <typename Combine>
__device__ __forceinline__ int64_t of_threads_before(int64_t value, int64_t& all) {
  __shared__ int64_t of_thread[kScanThreads];
  const Combine combine;
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // of_thread may still be read from the last call
  of_thread[thread] = value;
  __syncthreads();
  for (int apart = 1; apart < kScanThreads; apart *= 2) {
    const int64_t other = thread >= apart ? of_thread[thread - apart] : Combine::kNothing;
    __syncthreads();
    of_thread[thread] = combine(of_thread[thread], other);
    __syncthreads();
  }
  all = of_thread[kScanThreads - 1];
  return thread > 0 ? of_thread[thread - 1] : Combine::kNothing;
}

// Replaces each of n values by those before it, combined. A block for each vector of n, one behind the other.
template <typename Combine>
__global__ void __launch_bounds__(kScanThreads) scan(int64_t* values, int64_t n) {
  const Combine combine;
  values += blockIdx.x * n;
  int64_t before_all = Combine::kNothing;
  for (int64_t first = 0; first < n; first += kScanThreads * kScanValues) {
    const int64_t begin = first + threadIdx.x * kScanValues;
    int64_t own = Combine::kNothing, all;
    for (int64_t i = begin; i < begin + kScanValues && i < n; ++i) own = combine(own, values[i]);
    int64_t before = combine(before_all, of_threads_before<Combine>(own, all));
    for (int64_t i = begin; i < begin + kScanValues && i < n; ++i) {
      const int64_t value = values[i];
      values[i] = before;
      before = combine(before, value);
    }
    before_all = combine(before_all, all);
  }
}

}  // namespace mqgrad::cuda
