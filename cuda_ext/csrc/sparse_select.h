// Which elements the sparse code sends, and the passes over a vector that it shares with error feedback.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <vector>

#include "sparse.h"

namespace mqgrad {

struct Kept {  // of one range of kSparseRange elements, ascending
  std::vector<uint32_t> offsets;
  std::vector<float> values;
};

struct Selection {
  uint32_t top;  // largest key; where it is not finite, nothing is kept
  std::vector<Kept> ranges;
};

// The largest magnitudes of v = x, or of x + alpha * residual, as many as the levels of the code serve well.
Selection select_largest(const Scattered& x, const SparseArguments& arguments);

constexpr int64_t kSparseRange = 65536;  // elements of a unit of parallel work
constexpr int64_t kSparseBlock = 2048;   // elements handled at a time, in the L1 cache

template <typename F>
void for_ranges(int64_t numel, const F& f) {  // f(range, begin, end), in parallel
  torch::stable::parallel_for(0, (numel + kSparseRange - 1) / kSparseRange, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r, r * kSparseRange, std::min(numel, (r + 1) * kSparseRange));
  });
}

}  // namespace mqgrad
