// What the CUDA kernels of rotated buckets of any size share.
#pragma once

#include "cuda_warp.h"
#include "rotation_kernels.h"

namespace mqgrad::cuda {

// Butterflies of neighbours, then at distance 2, 4, ...
template <int COUNT>
__device__ __forceinline__ void butterflies(float* v) {
#pragma unroll
  for (int distance = 1; distance < COUNT; distance *= 2) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i & distance) continue;
      const float a = v[i], b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
}

// Calls launch_with(width), the width as a constant, and returns what it says.
template <typename F>
cudaError_t with_rotated_width(int bits, const F& launch_with) {
  cudaError_t status = cudaSuccess;
  with_width(bits, [&](auto width) {
    if constexpr (decltype(width)::value <= kMaxRotationBits) status = launch_with(width);
  });
  return status;
}

}  // namespace mqgrad::cuda
