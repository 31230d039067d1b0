// From the elements of a scale bucket to their codes, and to the new residual.
#include "codes.h"

#include "blocks.h"
#include "clones.h"
#include "code_values.h"
#include "feedback.h"

namespace mqgrad {

MQ_CLONES uint32_t max_abs_bits(const float* v, int64_t n) {
  Maximum maximum;
  for_each_block(v, n, [&](const float* block, int64_t) MQ_ALWAYS_INLINE { maximum.include(block); });
  return maximum.bits();
}

MQ_CLONES MagnitudeSums magnitude_sums(const float* lifted, int64_t n, const Grid& grid) {
  uint32_t sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t m = magnitude(lifted[i], grid);
    sum += m;
    squares += m * m;
  }
  return {sum, squares};
}

MQ_CLONES uint32_t nearest_codes(const float* lifted, const float* next, int64_t n, const Grid& grid,
                                 uint8_t* __restrict codes) {
  return for_each_block_with_next(lifted, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = nearest_code(block[i], grid);
  });
}

MQ_CLONES uint32_t sign_codes(const float* v, const float* next, int64_t n, uint8_t* __restrict codes) {
  return for_each_block_with_next(v, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = sign_code(block[i]);
  });
}

// Prefetching x and the residual, 1 to 16 KiB ahead, made it slower.
MQ_CLONES uint32_t compensate(const float* x, const float* residual, int64_t n, float alpha, float* __restrict v) {
  int32_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    v[i] = compensated(x[i], residual[i], alpha);
    const auto bits = static_cast<int32_t>(abs_bits(v[i]));
    max = max < bits ? bits : max;
  }
  return static_cast<uint32_t>(max);
}

MQ_CLONES void nearest_codes_with_feedback(const float* __restrict lifted, const float* __restrict x, int64_t n,
                                           const Grid& grid, int bits, float scale, float beta,
                                           float* __restrict residual, uint8_t* __restrict codes) {
  const Reciprocal r = reciprocal(level_count(bits));
  for (int64_t i = 0; i < n; ++i) {
    const float integer = nearest_integer(lifted[i], grid);
    codes[i] = static_cast<uint8_t>(float_bits(integer));
    const float sent = value_of_level(integer - grid.offset, r, scale);
    residual[i] = next_residual(x[i], residual[i], sent, beta);
  }
}

MQ_CLONES void keep_errors(int bits, const float* __restrict x, const uint8_t* __restrict codes, int64_t n, float scale,
                           float beta, float* __restrict residual) {
  for_each_value(Levels(bits), codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE {
    residual[i] = next_residual(x[i], residual[i], value, beta);
  });
}

}  // namespace mqgrad
