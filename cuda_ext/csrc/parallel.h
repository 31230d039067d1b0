// How the CPU's ops divide their elements among threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "kernels.h"

namespace mqgrad {

// Elements: below this a thread costs more than it saves.
constexpr int64_t kGrain = 32768;
constexpr int64_t kRotatedGrain = 16384;

// Calls f(first, behind the last) with chunks of kChunk elements.
template <typename F>
void parallel_chunks(int64_t numel, const F& f) {
  torch::stable::parallel_for(0, numel / kChunk + (numel % kChunk != 0), kGrain / kChunk, f);
}

}  // namespace mqgrad
