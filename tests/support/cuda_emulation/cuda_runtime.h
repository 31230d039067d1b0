// As much of CUDA as the kernels in cuda_ext/csrc use, on the CPU and one thread at a time, so that their bytes can be
// compared with those of the CPU kernels on a machine without a GPU. Found instead of CUDA's own cuda_runtime.h.
//
// A thread of a block is a fiber: it runs until a barrier, of its warp (32 threads in a row) or of its block, and goes
// on when all threads of it that have not returned are there. Blocks run one after another, so that __shared__ is static
// memory; it is left dirty by the block before. What this cannot show: data races, memory spaces, speed.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __host__
#define __device__
#define __global__ static
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline void __stcg(float4* to, float4 value) { *to = value; }

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };
using cudaStream_t = void*;

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace emulation {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kReturned };

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  dim3 index;
  State state;
};

inline std::vector<Thread> threads;
inline size_t current;
inline ucontext_t scheduler;
inline void (*run_kernel)(void*);
inline void* kernel_call;
inline uint64_t exchanged[1024];  // one slot a thread, for what warps exchange

inline void thread_main() {
  run_kernel(kernel_call);
  threads[current].state = State::kReturned;
  swapcontext(&threads[current].context, &scheduler);
}

inline void wait(State barrier) {
  threads[current].state = barrier;
  swapcontext(&threads[current].context, &scheduler);
}

inline void resume(size_t thread) {
  current = thread;
  threadIdx = threads[thread].index;
  swapcontext(&scheduler, &threads[thread].context);
}

// Whether the threads [begin, end) that have not returned all wait at `barrier`; if so, they become ready.
inline bool release(size_t begin, size_t end, State barrier) {
  bool any = false;
  for (size_t t = begin; t < end; ++t) {
    if (threads[t].state != State::kReturned && threads[t].state != barrier) return false;
    any = any || threads[t].state == barrier;
  }
  for (size_t t = begin; any && t < end; ++t) {
    if (threads[t].state == barrier) threads[t].state = State::kReady;
  }
  return any;
}

inline void start_threads(size_t count) {
  if (threads.size() < count) threads = std::vector<Thread>(count);  // and kept: launches differ in their blocks
  for (size_t t = 0; t < count; ++t) {
    Thread& thread = threads[t];
    const unsigned i = static_cast<unsigned>(t);
    thread.index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
    thread.state = State::kReady;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.context, thread_main, 0);
  }
}

inline void run_block() {
  const size_t count = blockDim.x * blockDim.y * blockDim.z;
  start_threads(count);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t t = 0; t < count; ++t) {
      if (threads[t].state == State::kReady) resume(t);
    }
    for (size_t w = 0; w < count; w += kWarp) goes_on |= release(w, w + kWarp, State::kAtWarpBarrier);
    goes_on |= release(0, count, State::kAtBlockBarrier);
  }
  for (size_t t = 0; t < count; ++t) {
    if (threads[t].state == State::kReturned) continue;
    std::fprintf(stderr, "cuda_emulation: threads wait at different barriers\n");
    std::abort();
  }
}

template <typename F>
uint32_t over_warp(uint32_t value, const F& combine) {
  exchanged[current] = value;
  wait(State::kAtWarpBarrier);
  uint32_t all = static_cast<uint32_t>(exchanged[current / kWarp * kWarp]);
  for (size_t lane = 1; lane < kWarp; ++lane) {
    all = combine(all, static_cast<uint32_t>(exchanged[current / kWarp * kWarp + lane]));
  }
  wait(State::kAtWarpBarrier);
  return all;
}

}  // namespace emulation

inline void __syncthreads() { emulation::wait(emulation::State::kAtBlockBarrier); }
inline void __syncwarp() { emulation::wait(emulation::State::kAtWarpBarrier); }

inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  return emulation::over_warp(value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

inline uint32_t __reduce_add_sync(unsigned, uint32_t value) {
  return emulation::over_warp(value, [](uint32_t a, uint32_t b) { return a + b; });
}

inline uint32_t __ballot_sync(unsigned, bool value) {
  return emulation::over_warp(static_cast<uint32_t>(value) << emulation::current % emulation::kWarp,
                              [](uint32_t a, uint32_t b) { return a | b; });
}

inline int64_t __shfl_up_sync(unsigned, int64_t value, unsigned lanes) {
  emulation::exchanged[emulation::current] = static_cast<uint64_t>(value);
  emulation::wait(emulation::State::kAtWarpBarrier);
  const bool inside = emulation::current % emulation::kWarp >= lanes;
  const uint64_t other = emulation::exchanged[emulation::current - (inside ? lanes : 0)];
  emulation::wait(emulation::State::kAtWarpBarrier);
  return static_cast<int64_t>(other);
}

inline int __popc(uint32_t value) { return __builtin_popcount(value); }
inline int __popcll(uint64_t value) { return __builtin_popcountll(value); }
inline int __ffsll(long long value) { return __builtin_ffsll(value); }

inline void atomicMax(uint32_t* to, uint32_t value) { *to = value > *to ? value : *to; }
inline void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }

inline void atomicAdd(uint32_t* to, uint32_t value) { *to += value; }
inline void atomicOr(uint32_t* to, uint32_t value) { *to |= value; }

enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  auto call = [&] { kernel(arguments...); };
  emulation::kernel_call = &call;
  emulation::run_kernel = [](void* c) { (*static_cast<decltype(call)*>(c))(); };
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) emulation::run_block();
  return cudaSuccess;
}
