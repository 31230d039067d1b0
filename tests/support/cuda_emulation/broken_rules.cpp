// Kernels that break rules of CUDA, and some that do not, for the test of the emulation itself.
#include <cuda_runtime.h>

#include <map>
#include <string>

namespace {

__global__ void all_meet(int) {
  __syncthreads();
  if (threadIdx.x < 32) __syncwarp();
  __syncthreads();
}

__global__ void two_places(int odd) {
  if (static_cast<int>(threadIdx.x % 2) == odd) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void one_more(int thread) {
  for (int i = 0; i <= (static_cast<int>(threadIdx.x) == thread ? 1 : 0); ++i) __syncthreads();
}

__global__ void some_return(int threads) {
  if (static_cast<int>(threadIdx.x) < threads) return;
  __syncthreads();
}

__global__ void half_a_warp(int lanes) {
  if (static_cast<int>(threadIdx.x % 32) < lanes) __reduce_add_sync(0xffffffffu, 1);
}

int word, seen;

__global__ void no_barrier(int reader) {
  if (static_cast<int>(threadIdx.x) == reader) seen = word;
  if (static_cast<int>(threadIdx.x) == 63 - reader) word = 1;
}

alignas(16) unsigned char bytes[64];

__global__ void load_vector(int at) {
  uint4 vector;
  vector = *reinterpret_cast<const uint4*>(bytes + at);
}

__global__ void store_vector(int at) {
  const float4 vector = {};
  *reinterpret_cast<float4*>(bytes + at) = vector;
}

}  // namespace

extern "C" cudaError_t run(const char* kernel, int64_t argument) {
  static const std::map<std::string, void (*)(int)> kernels = {{"all_meet", all_meet},
                                                               {"two_places", two_places},
                                                               {"one_more", one_more},
                                                               {"some_return", some_return},
                                                               {"half_a_warp", half_a_warp},
                                                               {"load_vector", load_vector},
                                                               {"store_vector", store_vector}};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(64);
  return cudaLaunchKernelEx(&config, kernels.at(kernel), static_cast<int>(argument));
}

// What one thread reads of what another writes, without a barrier.
extern "C" int read_without_barrier(int reader) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(64);
  word = 0;
  cudaLaunchKernelEx(&config, no_barrier, reader);
  return seen;
}
