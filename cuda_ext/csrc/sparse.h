// The sparse code on raw pointers; Note [Sparse payload] in sparse_math.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "sparse_math.h"

namespace mqgrad {

struct SparseArguments {
  const void* x;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  SparseLayout layout;
  float* residual;  // or nullptr: no feedback
  double alpha;
  double beta;
};

// Selects and keeps errors with all of torch's threads, and writes the few entries with one; the bytes do not depend on how
// many. `payload` need not be initialised.
void encode_sparse(const SparseArguments& arguments, uint8_t* payload);

// Adds to `out`, with one thread: an entry's place depends on those before it.
void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out);

}  // namespace mqgrad
