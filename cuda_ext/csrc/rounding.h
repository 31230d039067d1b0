// From elements to codes: the scale of a bucket, and rounding to nearest or at random.
#pragma once

#include "levels.h"
#include "random_words.h"

namespace mqgrad {

// Note [Scale]
//
// Stochastic rounding needs scale = max|x|: anything less would bias what it clips. Nearest rounding may clip:
//
//   b = 1     mean|x|, the least-squares magnitude for a sign (1-bit SGD, signSGD)
//   b = 2..4  min(max|x|, k_b * sum x^2 / sum |x|), but max|x| where b = 4 and the other is less than half of it
//   b >= 5    max|x|
//
// sum x^2 / sum |x| is the mean of |x| weighted by |x|: adding zeros to a bucket does not move it, so a sparse bucket
// (rows of an embedding that were not used) keeps its large elements. With the plain mean in its place, NMSE at
// b = 2, 3, 4 is the same on a Gaussian, but 0.81, 0.72, 0.65 instead of 0.18, 0.05, 0.01 on a Gaussian with 90 %
// zeros.
//
// k_b is the geometric mean of the best values for Gaussian and for Laplace data (0.977 and 1.000, 1.558 and 1.743,
// 1.974 and 2.410), but at least 1, so that the scale of a constant bucket is its constant. From five bits on there is
// nothing to win by clipping in buckets of a few hundred (Gaussian, 512: 0.0036 clipped, 0.0040 not) and much to lose
// on heavy tails (Student t with 3 degrees of freedom, 8 bits: 0.046 clipped, 0.0005 not). At four bits there is where
// few elements are most of a bucket: gradients of an LSTM's first iterations had NMSE 0.13 and have 0.04, Gaussian
// ones and those of the other workloads are the same, Laplace 0.029 in place of 0.028.
//
// Both sums are taken over the integers m_i = round(2^11 |x_i| / max), which makes them exact and independent of the
// order of summation, and exactly n 2^11 and n 2^22 in a constant bucket. Squares of 22 bits, so that those of 512
// elements sum up in 32 bits.
constexpr float kMagnitudeOne = 2048.0f;
constexpr int64_t kMagnitudes = 512;
constexpr double kLeastClip = 0.5;  // of four bits

MQ_INLINE double clip_factor(int bits) {  // k_b, for b = 2..4
  return bits == 2 ? 1.0 : bits == 3 ? 1.6479 : 2.1810;
}

// Note [Fixed point]
//
// One multiplication and one addition put x on a grid of integers, [-top, top] standing for [-scale, scale]:
//
//   z = (x * lift) * factor + offset        factor = top / (scale * lift), offset = 2^23 + top
//
// The functions below take x * lift, which is x but for the tiniest buckets, so that loops need not multiply by it.
//
// Between 2^23 and 2^24 neighbouring floats are one apart. So the addition rounds to an integer (halves to even), and
// the low bits of z as an integer are that integer plus top: no conversion, nothing below zero.
//
// The ends are exact: scale * factor is off by at most top * 2^-23 < 1/2, which rounds away, so that |x| = scale gives
// 0 or 2 top. `lift` is a power of two and therefore exact; it is 1 unless the scale is so small that top / scale
// would overflow.
struct Grid {
  float lift;
  float factor;
  float offset;
};

MQ_INLINE Grid make_grid(float top, float scale) {
  const float lift = scale < 0x1p-96f ? 0x1p64f : 1.0f;
  return {lift, top / (scale * lift), 8388608.0f + top};
}

// For Note [Scale]: |x| from 0 to 2^11, with magnitude_grid's factor; 2^23 alone leaves the low 16 bits to the integer.
MQ_INLINE Grid magnitude_grid(float max) {
  return make_grid(kMagnitudeOne, max);
}

MQ_INLINE uint32_t magnitude(float lifted, Grid grid) {
  return float_bits(float_from_bits(abs_bits(lifted)) * grid.factor + 8388608.0f) & 0xffffu;
}

MQ_INLINE float nearest_scale(int bits, int64_t count, uint64_t sum, uint64_t sum_of_squares, float max) {
  const double one = kMagnitudeOne;
  const double ratio = bits == 1
      ? static_cast<double>(sum) / (static_cast<double>(count) * one)
      : clip_factor(bits) * (static_cast<double>(sum_of_squares) / (static_cast<double>(sum) * one));
  const bool clips = ratio < 1.0 && (bits < 4 || ratio >= kLeastClip);
  return static_cast<float>((clips ? ratio : 1.0) * static_cast<double>(max));
}

// Nearest level, Note [Fixed point] with one unit per level; what lies beyond the scale is clipped.
// Needs b >= 2 and a finite scale > 0.
MQ_INLINE Grid nearest_grid(int bits, float scale) {
  return make_grid(static_cast<float>(level_count(bits)), scale);
}

// The grid's offset plus the level, a float whose lowest byte is the code.
MQ_INLINE float nearest_integer(float lifted, Grid grid) {
  constexpr float kLow = 8388608.0f;
  const float high = grid.offset + (grid.offset - kLow);
  float z = lifted * grid.factor + grid.offset;
  z = z < kLow ? kLow : z;
  return z > high ? high : z;
}

MQ_INLINE uint8_t nearest_code(float lifted, Grid grid) {
  return static_cast<uint8_t>(float_bits(nearest_integer(lifted, grid)));
}

MQ_INLINE uint8_t sign_code(float x) {
  return x < 0 ? 0 : 1;
}

// Note [Stochastic rounding]
//
// QSGD (Alistarh et al. 2017, eq. 3.1) in fixed point: 2^15 units per level, then a uniform dither in [0, 2^15) is
// added and the fraction dropped, which rounds up with a probability of the fraction. At b = 1 the two levels are 2^15
// units apart, too, and P(+) = (1 + x / scale) / 2. A level that is hit exactly stays.
//
// The bias is that of rounding to the grid: at most 2^-16 of the distance between levels, in both directions alike, plus
// 2^-23 of the scale. The exponent of z begins at bit 23, so that the byte from bit 15 on is the code.
// Needs scale = max|x|, finite and > 0.
constexpr int kDitherBits = 15;

MQ_INLINE Grid stochastic_grid(int bits, float scale) {
  constexpr float kUnits = 1 << kDitherBits;
  return make_grid(bits == 1 ? kUnits / 2 : kUnits * static_cast<float>(level_count(bits)), scale);
}

MQ_INLINE uint8_t stochastic_code(float lifted, Grid grid, uint32_t dither) {
  return static_cast<uint8_t>((float_bits(lifted * grid.factor + grid.offset) + dither) >> kDitherBits);
}

MQ_INLINE uint32_t dither_from_half(uint16_t half) {
  return half >> (16 - kDitherBits);
}

MQ_INLINE uint32_t random_dither(Stream stream, uint64_t element) {
  const uint32_t word = random_word(stream, static_cast<uint32_t>(element / 2));
  return dither_from_half(static_cast<uint16_t>(word >> (16 * (element % 2))));
}

}  // namespace mqgrad
