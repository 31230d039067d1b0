// What the kernels call of torch's library, which programs that run them by themselves are not linked with.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>

// Two parts, one after the other.
extern "C" AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t, ParallelFunc f, void* context) {
  const int64_t middle = begin + (end - begin) / 2;
  if (begin < middle) f(begin, middle, context);
  if (middle < end) f(middle, end, context);
  return 0;
}

// By it torch 2.14's own headers decide how to report a call that failed.
extern "C" uint64_t aoti_torch_abi_version() { return 0; }
