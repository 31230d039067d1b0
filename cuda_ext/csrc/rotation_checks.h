// What the ops of the rotated codes demand of their arguments, on the CPU and on CUDA.
#pragma once

#include "op_checks.h"
#include "rotation_kernels.h"

namespace mqgrad {

inline RotationLayout checked_rotation_layout(int64_t numel, int64_t bits, int64_t bucket_size) {
  STD_TORCH_CHECK(numel >= 0 && numel <= int64_t{1} << 56, "mqgrad: numel must be in 0..2^56, got ", numel);
  STD_TORCH_CHECK(bits >= 1 && bits <= kMaxRotationBits, "mqgrad: bits must be in 1..4, got ", bits);
  STD_TORCH_CHECK(bucket_size >= 8 && bucket_size <= kMaxRotationBucket && (bucket_size & (bucket_size - 1)) == 0,
                  "mqgrad: bucket_size must be a power of two in 8..65536, got ", bucket_size);
  return {numel, static_cast<int>(bits), bucket_size};
}

}  // namespace mqgrad
