// What the ops of the sparse code demand of their arguments, on the CPU and on CUDA.
#pragma once

#include "op_checks.h"
#include "sparse.h"

namespace mqgrad {

inline SparseLayout checked_sparse_layout(int64_t numel, int64_t elements_per_bit) {
  STD_TORCH_CHECK(numel >= 0 && numel < (int64_t{1} << 40), "mqgrad: numel must be in 0..2^40, got ", numel);
  STD_TORCH_CHECK(elements_per_bit >= 1 && elements_per_bit <= 64, "mqgrad: elements_per_bit must be in 1..64, got ",
                  elements_per_bit);
  return sparse_layout(numel, elements_per_bit);
}

}  // namespace mqgrad
