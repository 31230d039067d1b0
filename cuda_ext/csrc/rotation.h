// Codes of randomly rotated buckets: the mathematics of one bucket. reference_rotation.py computes the same bytes.
#pragma once

#include <cmath>

#include "random_words.h"

namespace mqgrad {

// Note [Rotation]
//
//   | seed    | scale 0 | ... | scale B-1 | codes of whole buckets            |
//   | 8 bytes | 4 bytes, fp32 each        | B * bucket_size * bits / 8 bytes  |
//
// A bucket x of n = 2^k elements, the last one padded with zeros, is coded as y = H D x / sqrt(n): D is a diagonal of
// random signs, H a Hadamard matrix. Each y_i is then nearly Gaussian with variance |x|^2 / n whatever x was, so the
// best scalar codebook is known beforehand (Lloyd-Max for a Gaussian). With c_i the codeword nearest to y_i / sigma:
//
//   contractive   scale = <y, c> / |c|^2    the least error (the biased form of DRIVE)
//   unbiased      scale = |y|^2 / <y, c>    E decode(encode(x)) = x over the random rotations (EDEN)
//
// Vargaftik et al., DRIVE (NeurIPS 2021) and EDEN (ICML 2022).
//
// H takes D x / sqrt(n) as a matrix of n / C rows of C = min(n, 16), transforms its columns, transposes it, and transforms the
// columns again; butterflies begin at distance 1, but those that decoding begins with at the largest distance. Sums run over
// a binary tree in double. All of it in a defined order, so that all implementations agree.
constexpr int64_t kRotationColumns = 16;

constexpr int kMaxRotationBits = 4;

// Non-negative codewords, ascending; the others are their negatives.
struct Codebook {
  float words[8];
};

// The Lloyd-Max quantizer of a standard Gaussian. A function's result, since device code cannot refer to an array of the
// host's: where loops are unrolled, the words become constants.
template <int BITS>
MQ_INLINE constexpr Codebook codebook() {
  static_assert(1 <= BITS && BITS <= kMaxRotationBits, "there is no codebook");
  if (BITS == 1) return {{0.797884561f}};
  if (BITS == 2) return {{0.452780035f, 1.510417608f}};
  if (BITS == 3) return {{0.245094179f, 0.756005281f, 1.343909279f, 2.151945705f}};
  return {{0.128395030f, 0.388048299f, 0.656759119f, 0.942340456f, 1.256231197f, 1.618046386f, 2.069017227f,
           2.732589571f}};
}

struct Codeword {
  int32_t code;
  float word;
};

// The codeword nearest to u. Codes ascend with the value: the negative codewords take the lower half. Signs are set as
// bits, here and below: of choices between negated values compilers make vector code that is several times slower.
template <int BITS>
MQ_INLINE Codeword nearest_codeword(float u) {
  constexpr int kCount = 1 << (BITS - 1);
  constexpr Codebook book = codebook<BITS>();
  const float size = float_from_bits(abs_bits(u));
  int32_t index = 0;
  float word = book.words[0];
  for (int i = 0; i + 1 < kCount; ++i) {
    const bool above = size > (book.words[i] + book.words[i + 1]) * 0.5f;
    index += above ? 1 : 0;
    word = above ? book.words[i + 1] : word;
  }
  const uint32_t negative = u < 0 ? ~0u : 0u;  // which neither -0 nor a NaN is
  const uint32_t mirrored = negative & (2 * kCount - 1);
  return {(kCount + index) ^ static_cast<int32_t>(mirrored), float_from_bits(float_bits(word) ^ (negative & kSignBit))};
}

// Without a table or branches, so that loops become vector code.
template <int BITS>
MQ_INLINE float codeword(uint8_t code) {
  constexpr int kCount = 1 << (BITS - 1);
  constexpr Codebook book = codebook<BITS>();
  const float place = static_cast<float>(code) - (kCount - 0.5f);  // +-(index + 1/2)
  const float size = float_from_bits(abs_bits(place));
  float word = book.words[0];
  for (int i = 1; i < kCount; ++i) word = size > static_cast<float>(i) ? book.words[i] : word;
  return float_from_bits(float_bits(word) | (float_bits(place) & kSignBit));
}

// How large the elements of a rotated bucket are.
struct Spread {
  float sigma;    // root mean square
  bool usable;    // not zero, and finite
  float inverse;  // what the elements are multiplied by before they are looked up in the codebook
};

MQ_INLINE Spread spread_of(double norm_sq, int64_t n) {
  const float sigma = static_cast<float>(std::sqrt(norm_sq / static_cast<double>(n)));
  const bool usable = sigma > 0 && is_finite(sigma);
  return {sigma, usable, usable ? 1.0f / sigma : 0.0f};
}

// Of a bucket with |y|^2, <y, c> and |c|^2, the last of which the unbiased scale does not need. 0 for zeros, NaN where y
// is not finite.
MQ_INLINE float rotated_scale(const Spread& spread, bool unbiased, double norm_sq, double product, double words_sq) {
  if (!spread.usable) return spread.sigma == 0 ? 0.0f : float_from_bits(kNanBits);
  return static_cast<float>(unbiased ? norm_sq / product : product / words_sq);
}

// 1 / sqrt(n)
MQ_INLINE float rotation_norm(int64_t n) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
}

// An element of D / sqrt(n). Its sign, the same in all buckets of a payload, is one bit of a word that 32 elements share.
MQ_INLINE float random_factor(Stream stream, uint32_t element, float norm) {
  const bool negative = (random_word(stream, element >> 5) >> (element & 31)) & 1;
  return negative ? -norm : norm;
}

}  // namespace mqgrad
