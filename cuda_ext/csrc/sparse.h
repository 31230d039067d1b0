// The sparse code on raw pointers; Note [Sparse payload] in sparse_math.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "scattered.h"
#include "sparse_math.h"

namespace mqgrad {

struct SparseArguments {
  SparseLayout layout;
  float* residual;  // or nullptr: no feedback
  double alpha;
  double beta;

  // On CUDA. The CPU's kernels take a vector that is scattered.
  const void* x = nullptr;
  torch::headeronly::ScalarType dtype = torch::headeronly::ScalarType::Float;  // or Double, Half, BFloat16
};

// Selects and keeps errors with all of torch's threads, and writes the few entries with one; the bytes do not depend on how
// many. `payload` need not be initialised.
void encode_sparse(const Scattered& x, const SparseArguments& arguments, uint8_t* payload);

// Adds a payload to `out`.
void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out);

// The mean of payloads that are `stride` bytes apart, a block at a time, whose sum stays in the cache.
void decode_sparse_mean(const uint8_t* payloads, int64_t count, int64_t stride, const SparseLayout& layout,
                        const Scattered& out);

}  // namespace mqgrad
