// The mathematics of one element, one random number and one group of eight codes, for host and device.
// cuda_ext/reference.py computes the same bytes with torch tensors; a change here is a change there.
//
// Compile without contraction (-ffp-contract=off, nvcc -fmad=false): a fused multiply-add changes bytes.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define MQ_INLINE __host__ __device__ __forceinline__
#else
#define MQ_INLINE inline __attribute__((always_inline))
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are little-endian");

namespace mqgrad {

// Note [Payload]
//
//   | scale 0 | scale 1 | ... | scale B-1 | codes                      |
//   | 4 bytes, fp32 each                  | ceil(numel * bits / 8)     |
//
// The codes are one little-endian bit stream over the whole tensor: code i is bits [i*b, (i+1)*b). Eight codes
// always fill exactly b bytes, whatever b is. With b = 3, byte by byte, most significant bit on the left:
//
//     byte 2            byte 1            byte 0
//   | 7 7 7 6 6 6 5 5 | 5 4 4 4 3 3 3 2 | 2 2 1 1 1 0 0 0 |     (digit = index of the code)
//
// Bits after the last code are zero.

// Note [Levels]
//
// s = 2^(b-1) - 1 levels on each side of zero (s = 1 at b = 1, which has no zero). A code is q + s with q in
// [-s, s]; at b = 1 it is the sign. The value is (q / s) * scale, with a true division, so that q = s gives the
// scale itself and constant buckets come back exactly. For b >= 2 the code 2^b - 1 is never written; a payload that
// holds it anyway decodes it as s.
MQ_INLINE int32_t level_count(int bits) {
  return bits == 1 ? 1 : (1 << (bits - 1)) - 1;
}

MQ_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

MQ_INLINE uint32_t abs_bits(float x) {
  return float_bits(x) & 0x7fffffffu;
}

MQ_INLINE float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
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

MQ_INLINE float level_value(int32_t code, int32_t s, Reciprocal r, float scale) {
  const int32_t q = (code < 2 * s ? code : 2 * s) - s;
  const float y = static_cast<float>(q);
  return (y * r.high + y * r.low) * scale;
}

MQ_INLINE float sign_value(int32_t code, float scale) {
  return static_cast<float>(2 * code - 1) * scale;
}

// Note [Scale]
//
// Stochastic rounding needs scale = max|x|: anything less would bias what it clips. Nearest rounding may clip:
//
//   b = 1     mean|x|, the least-squares magnitude for a sign (1-bit SGD, signSGD)
//   b = 2..4  min(max|x|, k_b * sum x^2 / sum |x|)
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
// on heavy tails (Student t with 3 degrees of freedom, 8 bits: 0.046 clipped, 0.0005 not).
//
// Both sums are taken over the integers m_i = round(2^11 |x_i| / max), which makes them exact and independent of the
// order of summation, and exactly n 2^11 and n 2^22 in a constant bucket. Squares of 22 bits, so that those of 512
// elements sum up in 32 bits.
constexpr float kMagnitudeOne = 2048.0f;
constexpr int64_t kMagnitudes = 512;

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
  return static_cast<float>((ratio < 1.0 ? ratio : 1.0) * static_cast<double>(max));
}

// Note [Non-finite]
//
// As integers, the bit patterns of |x| are ordered like the floats, with infinity and then NaN on top. So an integer
// maximum finds a non-finite element where std::max would drop a NaN.
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

MQ_INLINE void store_scale(uint8_t* payload, int64_t bucket, float scale) {
  std::memcpy(payload + 4 * bucket, &scale, 4);
}

MQ_INLINE float load_scale(const uint8_t* payload, int64_t bucket) {
  float scale;  // a payload may be an unaligned slice of a larger message
  std::memcpy(&scale, payload + 4 * bucket, 4);
  return abs_bits(scale) < kInfinityBits ? scale : float_from_bits(kNanBits);
}

// Nearest level, Note [Fixed point] with one unit per level; what lies beyond the scale is clipped.
// Needs b >= 2 and a finite scale > 0.
MQ_INLINE Grid nearest_grid(int bits, float scale) {
  return make_grid(static_cast<float>(level_count(bits)), scale);
}

MQ_INLINE uint8_t nearest_code(float lifted, Grid grid) {
  constexpr float kLow = 8388608.0f;
  const float high = grid.offset + (grid.offset - kLow);
  float z = lifted * grid.factor + grid.offset;
  z = z < kLow ? kLow : z;
  z = z > high ? high : z;
  return static_cast<uint8_t>(float_bits(z));
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

// Note [Random numbers]
//
// The dither of element i of bucket k is a pure function of (seed, bucket_ids[k], i): never of a state, a thread or the
// other elements. Seed and bucket give a 64-bit key (the finalizer of SplitMix64, twice). Its halves are the start and
// the odd stride of a sequence of 32-bit states, one per two elements; in SplitMix (Steele, Lea and Flood 2014), too,
// every stream has a stride of its own. Over all keys, two states of a sequence are as good as independent, which makes
// the variance of a sum of roundings right; one round of shifts and multiplication (the first of Wellons'
// hash-prospector) hides that neighbouring states differ by a constant. The low half of word i / 2 serves an even i, the
// high half an odd one, in memory order: as 16-bit lanes, the words are the dithers of consecutive elements.
MQ_INLINE uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

MQ_INLINE uint32_t mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  return x ^ (x >> 15);
}

struct Stream {
  uint32_t start;
  uint32_t stride;
};

MQ_INLINE Stream random_stream(uint64_t seed, uint64_t bucket) {
  const uint64_t key = mix64(mix64(seed + 0x9e3779b97f4a7c15ull) + bucket);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32) | 1};
}

// Of elements 2 * index and 2 * index + 1.
MQ_INLINE uint32_t random_word(Stream stream, uint32_t index) {
  return mix32(stream.start + index * stream.stride);
}

MQ_INLINE uint32_t dither_from_half(uint16_t half) {
  return half >> (16 - kDitherBits);
}

MQ_INLINE uint32_t random_dither(Stream stream, uint64_t element) {
  const uint32_t word = random_word(stream, static_cast<uint32_t>(element / 2));
  return dither_from_half(static_cast<uint16_t>(word >> (16 * (element % 2))));
}

// Note [Feedback]
//
// ECQ-SGD (Wu et al. 2018): v = x + alpha h is sent as Q(v), and h' = beta h + (x - Q(v)). Not (v - Q(v)), which forgets
// what rounding to v lost: x - Q(v) and the sum are each off by half a unit in their own last place, so that with
// alpha = beta = 1 what is sent plus what is kept equals what came in to about the last bit of h', however small it is
// beside x.
MQ_INLINE float compensated(float x, float residual, float alpha) {
  return x + alpha * residual;
}

MQ_INLINE float next_residual(float x, float residual, float sent, float beta) {
  return beta * residual + (x - sent);
}

// Note [bfloat16]
//
// A payload at width 16: the upper half of the fp32 value, rounded to nearest, halves to even; little-endian, no scales.
// Every NaN becomes the one below, where torch leaves another one where it converts vectors.
constexpr uint16_t kBfloat16Nan = 0x7fc0;

MQ_INLINE uint16_t bfloat16_bits(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(abs_bits(x) > kInfinityBits ? kBfloat16Nan : rounded);
}

MQ_INLINE float bfloat16_value(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// MQGrad (Cui et al. 2018): S = 2^b cells between the column's minimum and maximum, decoded at their midpoints.
// S is a power of two, so dividing before multiplying by it changes nothing but avoids an overflow.
MQ_INLINE int32_t minmax_code(float x, float minimum, float range, float cells) {
  const float y = (x - minimum) / (range + 1e-6f) * cells;
  const float low = y > 0 ? y : 0;  // also NaN, in a column whose range is NaN
  return static_cast<int32_t>(low < cells - 1 ? low : cells - 1);
}

MQ_INLINE float minmax_value(int32_t code, float minimum, float range, float cells) {
  return minimum + range / cells * (static_cast<float>(code) + 0.5f);
}

// Eight codes, one per byte, to the low 8 * BITS bits, in place: pairs merge, then fours, then all. T is uint64_t, or a
// vector of them for several groups of eight at once.
template <int BITS, typename T>
MQ_INLINE void pack8(T& codes) {
  codes = (codes & 0x00ff00ff00ff00ffull) | ((codes & 0xff00ff00ff00ff00ull) >> (8 - BITS));
  codes = (codes & 0x0000ffff0000ffffull) | ((codes & 0xffff0000ffff0000ull) >> (16 - 2 * BITS));
  codes = (codes & 0x00000000ffffffffull) | ((codes >> 32) << (4 * BITS));
}

// The inverse of pack8, the same three steps backwards.
template <int BITS, typename T>
MQ_INLINE void unpack8(T& packed) {
  constexpr uint64_t kOne = (1ull << BITS) - 1;
  constexpr uint64_t kTwo = (1ull << (2 * BITS)) - 1;
  constexpr uint64_t kFour = (1ull << (4 * BITS)) - 1;
  constexpr uint64_t kLanes = 0x0001000100010001ull;
  packed = (packed & kFour) | (((packed >> (4 * BITS)) & kFour) << 32);
  packed = (packed & kTwo * 0x100000001ull) | ((packed & (kTwo << (2 * BITS)) * 0x100000001ull) << (16 - 2 * BITS));
  packed = (packed & kOne * kLanes) | ((packed & (kOne << BITS) * kLanes) << (8 - BITS));
}

}  // namespace mqgrad
