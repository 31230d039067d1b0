// What the CUDA kernels share: a warp's sums and maxima, and how kernels are launched.
#pragma once

#include <cuda_runtime.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <type_traits>

#include "kernels.h"

namespace mqgrad::cuda {

using torch::headeronly::ScalarType;

constexpr int kLanes = 32;
constexpr int kWarps = 8;       // a block, where nothing else is said
constexpr int kMaxWarps = 16;

MQ_INLINE int64_t blocks_for(int64_t n, int64_t per_block) {
  return n / per_block + (n % per_block != 0);
}

constexpr int kPerBlock = kWarps * kLanes;  // elements, where each thread has one

__device__ __forceinline__ int64_t element_of_thread() {
  return static_cast<int64_t>(blockIdx.x) * kPerBlock + threadIdx.y * kLanes + threadIdx.x;
}

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, value, apart);
    value = other > value ? other : value;
  }
  return value;
#else
  return __reduce_max_sync(0xffffffffu, value);
#endif
}

__device__ __forceinline__ uint32_t warp_sum(uint32_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  for (int apart = kLanes / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
#else
  return __reduce_add_sync(0xffffffffu, value);
#endif
}

// Calls f with the width as a constant.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // f runs wherever the caller does
#endif
template <typename F>
MQ_INLINE void with_width(int bits, const F& f) {
  switch (bits) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
    case 7: return f(std::integral_constant<int, 7>());
    default: return f(std::integral_constant<int, 8>());
  }
}

// Calls f with x as a pointer to its type.
template <typename F>
__device__ __forceinline__ auto with_type(const void* x, ScalarType dtype, const F& f) {
  switch (dtype) {
    case ScalarType::Double: return f(static_cast<const double*>(x));
    case ScalarType::Half: return f(static_cast<const c10::Half*>(x));
    case ScalarType::BFloat16: return f(static_cast<const c10::BFloat16*>(x));
    default: return f(static_cast<const float*>(x));
  }
}

__device__ __forceinline__ float load_float(const void* x, ScalarType dtype, int64_t i) {
  return with_type(x, dtype, [=](const auto* values) { return static_cast<float>(values[i]); });
}

// A warp is a row of threads: threadIdx.x is the lane.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(cudaStream_t stream, int64_t blocks, dim3 threads, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = threads;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace mqgrad::cuda
