// MQGrad's own quantizer (Cui et al. 2018): the statistics of a column, and one element.
#pragma once

#include "float_bits.h"

namespace mqgrad {

struct ColumnStatistics {
  float minimum;
  float range;
};

// Of a column between `low` and `high`; max_bits is the largest |x|, as bits.
MQ_INLINE ColumnStatistics statistics_of(float low, float high, uint32_t max_bits) {
  const float range = high - low;
  if (max_bits >= kInfinityBits || !is_finite(range)) return {0.0f, float_from_bits(kNanBits)};
  return {low + 0.0f, range + 0.0f};  // which of -0 and 0 is smaller depends on the order
}

// S = 2^b cells between the column's minimum and maximum, decoded at their midpoints. S is a power of two, so dividing
// before multiplying by it changes nothing but avoids an overflow.
MQ_INLINE int32_t minmax_code(float x, float minimum, float range, float cells) {
  const float y = (x - minimum) / (range + 1e-6f) * cells;
  const float low = y > 0 ? y : 0;  // also NaN, in a column whose range is NaN
  return static_cast<int32_t>(low < cells - 1 ? low : cells - 1);
}

MQ_INLINE float minmax_value(int32_t code, float minimum, float range, float cells) {
  return minimum + range / cells * (static_cast<float>(code) + 0.5f);
}

}  // namespace mqgrad
