// As much of CUDA as the kernels in cuda_ext/csrc use, on the CPU and one thread at a time, so that their bytes can be
// compared with those of the CPU kernels on a machine without a GPU. Found instead of CUDA's own cuda_runtime.h.
//
// A thread of a block is a fiber: it runs until a barrier, of its warp (32 threads in a row) or of its block, and goes
// on when all threads of it are there. Some launches take threads in order, others the last one first, so that what lacks a
// barrier comes out wrong in one of them. Blocks run one after another, so that __shared__ is static memory; it is left
// dirty by the block before. A launch fails where threads come to different barriers, or some return and others wait,
// which is stricter than CUDA is, and where a vector (uint2, uint4, float4) is not at a multiple of its size. What this
// cannot show: races that shuffles and the like hide, which wait for one another here and need not on a GPU, other
// misaligned words, memory spaces, speed.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
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

namespace emulation {

inline bool misaligned;  // whether the launch has accessed a vector that is

template <typename T>
T& assign(T& to, const T& from) {
  uintptr_t addresses = reinterpret_cast<uintptr_t>(&to) | reinterpret_cast<uintptr_t>(&from);
  asm("" : "+r"(addresses));  // the compiler believes the type
  misaligned |= addresses % sizeof(T) != 0;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(T));
  return to;
}

}  // namespace emulation

struct alignas(8) uint2 {
  uint32_t x, y;
  uint2& operator=(const uint2& from) { return emulation::assign(*this, from); }
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
  uint4& operator=(const uint4& from) { return emulation::assign(*this, from); }
};
struct alignas(16) float4 {
  float x, y, z, w;
  float4& operator=(const float4& from) { return emulation::assign(*this, from); }
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline void __stcg(float4* to, float4 value) { *to = value; }

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719
};
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
  jmp_buf at;  // where it goes on
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  dim3 index;
  State state;
  int line;  // of the source, with the barrier at which it waits
};

inline std::vector<Thread> threads;  // kept from launch to launch
inline size_t current;
inline uint32_t launches;
inline jmp_buf scheduler;
inline void (*run_kernel)(void*);
inline void* kernel_call;
inline uint64_t exchanged[1024];  // one slot a thread, for what warps exchange

// Back to the scheduler. Unlike swapcontext, setjmp and longjmp make no system call.
inline void stop(State state, int line) {
  threads[current].state = state;
  threads[current].line = line;
  if (_setjmp(threads[current].at) == 0) _longjmp(scheduler, 1);
}

inline void wait(State barrier, int line) { stop(barrier, line); }

inline void thread_main() {
  for (;;) {
    stop(State::kReturned, 0);
    run_kernel(kernel_call);
  }
}

inline void resume(size_t thread) {
  current = thread;
  threadIdx = threads[thread].index;
  if (_setjmp(scheduler) == 0) _longjmp(threads[thread].at, 1);
}

inline void start_fiber(size_t thread) {
  current = thread;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = threads[thread].stack.get();
  start.uc_stack.ss_size = kStackBytes;
  makecontext(&start, thread_main, 0);
  if (_setjmp(scheduler) == 0) setcontext(&start);
}

inline void ready_threads(size_t count) {
  if (threads.size() < count) {
    threads = std::vector<Thread>(count);
    for (size_t t = 0; t < count; ++t) start_fiber(t);
  }
  for (size_t t = 0; t < count; ++t) {
    const unsigned i = static_cast<unsigned>(t);
    threads[t].index = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y));
    threads[t].state = State::kReady;
  }
}

// Whether the threads [begin, end) all wait at the same barrier, of this kind; if so, they become ready.
inline bool release(size_t begin, size_t end, State barrier) {
  for (size_t t = begin; t < end; ++t) {
    if (threads[t].state != barrier || threads[t].line != threads[begin].line) return false;
  }
  for (size_t t = begin; t < end; ++t) threads[t].state = State::kReady;
  return true;
}

// Whether all threads have returned; tells where they are if not.
inline bool all_returned(size_t count) {
  size_t t = 0;
  while (t < count && threads[t].state == State::kReturned) ++t;
  if (t == count) return true;
  size_t other = 0;
  while (threads[other].state == threads[t].state && threads[other].line == threads[t].line) ++other;
  std::fprintf(stderr, "cuda_emulation: block %u: thread %zu waits at line %d, thread %zu at line %d (0: has returned)\n",
               blockIdx.x, t, threads[t].line, other, threads[other].line);
  return false;
}

inline bool run_block() {
  const size_t count = blockDim.x * blockDim.y * blockDim.z;
  const bool last_first = launches * 0x9e3779b9u >> 31;  // about every other launch
  ready_threads(count);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t i = 0; i < count; ++i) {
      const size_t t = last_first ? count - 1 - i : i;
      if (threads[t].state == State::kReady) resume(t);
    }
    for (size_t w = 0; w < count; w += kWarp) goes_on |= release(w, w + kWarp, State::kAtWarpBarrier);
    goes_on |= release(0, count, State::kAtBlockBarrier);
  }
  const bool done = all_returned(count);
  if (!done) threads.clear();  // their fibers are in the middle of a kernel
  return done;
}

// All lanes have written before one reads, and have read before one writes again.
template <typename F>
auto exchange(uint64_t value, int line, const F& read) {
  exchanged[current] = value;
  wait(State::kAtWarpBarrier, line);
  const auto result = read(exchanged + current / kWarp * kWarp, static_cast<int>(current % kWarp));
  wait(State::kAtWarpBarrier, line);
  return result;
}

template <typename F>
uint32_t over_warp(uint32_t value, int line, const F& combine) {
  return exchange(value, line, [&](const uint64_t* of_lane, int) {
    uint32_t all = static_cast<uint32_t>(of_lane[0]);
    for (int lane = 1; lane < kWarp; ++lane) all = combine(all, static_cast<uint32_t>(of_lane[lane]));
    return all;
  });
}

}  // namespace emulation

// `line` is that of the call.
inline void __syncthreads(int line = __builtin_LINE()) { emulation::wait(emulation::State::kAtBlockBarrier, line); }
inline void __syncwarp(int line = __builtin_LINE()) { emulation::wait(emulation::State::kAtWarpBarrier, line); }

inline uint32_t __reduce_max_sync(unsigned, uint32_t value, int line = __builtin_LINE()) {
  return emulation::over_warp(value, line, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}

inline uint32_t __reduce_add_sync(unsigned, uint32_t value, int line = __builtin_LINE()) {
  return emulation::over_warp(value, line, [](uint32_t a, uint32_t b) { return a + b; });
}

inline uint32_t __ballot_sync(unsigned, bool value, int line = __builtin_LINE()) {
  return emulation::over_warp(static_cast<uint32_t>(value) << emulation::current % emulation::kWarp, line,
                              [](uint32_t a, uint32_t b) { return a | b; });
}

inline int64_t __shfl_up_sync(unsigned, int64_t value, int lanes, int line = __builtin_LINE()) {
  return emulation::exchange(static_cast<uint64_t>(value), line, [=](const uint64_t* of_lane, int lane) {
    return static_cast<int64_t>(of_lane[lane >= lanes ? lane - lanes : lane]);
  });
}

inline float __shfl_xor_sync(unsigned, float value, int lanes, int line = __builtin_LINE()) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t others = emulation::exchange(bits, line, [=](const uint64_t* of_lane, int lane) {
    return static_cast<uint32_t>(of_lane[lane ^ lanes]);
  });
  std::memcpy(&value, &others, sizeof(value));
  return value;
}

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// A nibble of the selector for each byte of the result, from the eight of both words.
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) chosen |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
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
  emulation::misaligned = false;
  ++emulation::launches;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    if (!emulation::run_block()) return cudaErrorLaunchFailure;
  }
  return emulation::misaligned ? cudaErrorMisalignedAddress : cudaSuccess;
}
