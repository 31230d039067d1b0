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

// Both use all of torch's threads; the bytes do not depend on how many. `payload` need not be initialised.
void encode_sparse(const SparseArguments& arguments, uint8_t* payload);

// Adds to `out`.
void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out);

}  // namespace mqgrad
