// The values that codes stand for.
#pragma once

#include "float_bits.h"

namespace mqgrad {

// Note [Levels]
//
// s = 2^(b-1) - 1 levels on each side of zero (s = 1 at b = 1, which has no zero). A code is q + s with q in
// [-s, s]; at b = 1 it is the sign. The value is (q / s) * scale, with a true division, so that q = s gives the
// scale itself and constant buckets come back exactly. For b >= 2 the code 2^b - 1 is never written; a payload that
// holds it anyway decodes it as s.
MQ_INLINE int32_t level_count(int bits) {
  return bits == 1 ? 1 : (1 << (bits - 1)) - 1;
}

// Note [Reciprocal]
//
// q / s as two products and a sum, faster than the division and equal to it: `high` is 1 / s cut to 16 bits, so that
// q * high is exact; q * low carries the rest with an error below 2^-38 of the quotient, while no q / s with s < 128
// lies within 2^-32 of where rounding changes.
struct Reciprocal {
  float high;
  float low;
};

MQ_INLINE Reciprocal reciprocal(int32_t s) {
  const double exact = 1.0 / s;
  const float high = float_from_bits(abs_bits(static_cast<float>(exact)) & 0xffffff00u);
  return {high, static_cast<float>(exact - high)};
}

// Of level q, an integer from -s to s, with the reciprocal of s.
MQ_INLINE float value_of_level(float q, Reciprocal r, float scale) {
  return (q * r.high + q * r.low) * scale;
}

MQ_INLINE float level_value(int32_t code, int32_t s, Reciprocal r, float scale) {
  const int32_t q = (code < 2 * s ? code : 2 * s) - s;
  return value_of_level(static_cast<float>(q), r, scale);
}

MQ_INLINE float sign_value(int32_t code, float scale) {
  return static_cast<float>(2 * code - 1) * scale;
}

}  // namespace mqgrad
