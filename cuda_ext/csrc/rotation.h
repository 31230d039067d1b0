// Codes of randomly rotated buckets: the mathematics of one bucket. reference_rotation.py computes the same bytes.
#pragma once

#include "random_words.h"

namespace mqgrad {

// Note [Rotation]
//
//   | seed    | scale 0 | ... | scale B-1 | codes of whole buckets            |
//   | 8 bytes | 4 bytes, fp32 each        | B * bucket_size * bits / 8 bytes  |
//
// A bucket x of n = 2^k elements, the last one padded with zeros, is coded as y = H D x: D is a diagonal of random signs,
// H a Hadamard matrix. Each y_i is then nearly Gaussian whatever x was, so the best scalar codebook is known beforehand
// (Lloyd-Max for a Gaussian, rounded to integers). With u = y / unit, so large that the codebook fits, and c_i the codeword
// nearest to u_i, what is decoded is scale * D H c:
//
//   contractive   scale = unit / n * <u, c> / |c|^2    the least error (the biased form of DRIVE)
//   unbiased      scale = unit / n * |u|^2 / <u, c>    E <decode(encode(x)), x> = |x|^2 over the random rotations (EDEN)
//
// Over all rotations E decode(encode(x)) is then x. H D are few of them: that holds where many elements count, not where two
// or three of a bucket do.
//
// Vargaftik et al., DRIVE (NeurIPS 2021) and EDEN (ICML 2022). They take the unit from the norm. From the sum of magnitudes
// it costs one addition an element, and no square of a gradient leaves the range of fp32.
//
// H takes D x as a matrix of n / C rows of C = min(n, 16), transforms its columns, transposes it, and transforms the columns
// again; butterflies begin at distance 1. Sums run over a binary tree. All of it in fp32 and in a defined order, so that all
// implementations agree. H c needs none: it is a vector of integers below 2^24, exact in any order, also in 16 bits if n
// times the largest codeword fits (exact_in_16_bits).
constexpr int64_t kRotationColumns = 16;

constexpr int kMaxRotationBits = 4;

// Non-negative codewords, ascending; the others are their negatives.
struct Codebook {
  int32_t words[8];
  float mean;  // of |u| where the codebook fits best
};

// The Lloyd-Max quantizer of a standard Gaussian (Max 1960), as the integers below 64 that lose the least by rounding: 0, 0.04
// and 0.2 % of the error at 2, 3 and 4 bits. A function's result, since device code cannot refer to an array of the host's:
// where loops are unrolled, the words become constants.
template <int BITS>
MQ_INLINE constexpr Codebook codebook() {
  static_assert(1 <= BITS && BITS <= kMaxRotationBits, "there is no codebook");
  if (BITS == 1) return {{1}, 1.0f};
  if (BITS == 2) return {{3, 10}, 5.2828f};
  if (BITS == 3) return {{7, 22, 39, 62}, 23.036f};
  return {{3, 9, 15, 21, 28, 36, 46, 61}, 17.809f};
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
  float word = static_cast<float>(book.words[0]);
  for (int i = 0; i + 1 < kCount; ++i) {
    const bool above = size > static_cast<float>(book.words[i] + book.words[i + 1]) * 0.5f;
    index += above ? 1 : 0;
    word = above ? static_cast<float>(book.words[i + 1]) : word;
  }
  const uint32_t negative = u < 0 ? ~0u : 0u;  // which neither -0 nor a NaN is
  const uint32_t mirrored = negative & (2 * kCount - 1);
  return {(kCount + index) ^ static_cast<int32_t>(mirrored), float_from_bits(float_bits(word) ^ (negative & kSignBit))};
}

// Without a table or branches, so that loops become vector code, of bytes.
template <int BITS>
MQ_INLINE int8_t codeword(uint8_t code) {
  constexpr int kCount = 1 << (BITS - 1);
  constexpr Codebook book = codebook<BITS>();
  const auto negative = static_cast<uint8_t>(code < kCount ? 0xff : 0);
  const auto index = static_cast<uint8_t>((code ^ negative) & (kCount - 1));
  auto word = static_cast<uint8_t>(book.words[0]);
  for (int i = 1; i < kCount; ++i) {
    const auto step = static_cast<uint8_t>(book.words[i] - book.words[i - 1]);
    const auto reached = static_cast<uint8_t>(-static_cast<uint8_t>(index >= i));
    word = static_cast<uint8_t>(word + (reached & step));
  }
  return static_cast<int8_t>((word ^ negative) - negative);
}

template <int BITS>
MQ_INLINE constexpr bool exact_in_16_bits(int64_t n) {
  return n * codebook<BITS>().words[(1 << (BITS - 1)) - 1] < 32768;
}

// How large the elements of a rotated bucket are.
struct RotatedUnit {
  float unit;
  bool usable;    // finite, and so is its inverse
  float inverse;  // what the elements are multiplied by before they are looked up in the codebook
};

template <int BITS>
MQ_INLINE RotatedUnit rotated_unit(float sum_of_magnitudes, int64_t n) {
  const float unit = sum_of_magnitudes / (codebook<BITS>().mean * static_cast<float>(n));
  const float inverse = 1.0f / unit;
  const bool usable = is_finite(unit) && is_finite(inverse);
  return {unit, usable, usable ? inverse : 0.0f};
}

// Of a bucket with <u, c> and with |u|^2 or, if it is not to be unbiased, |c|^2. 0 for zeros, NaN where y is not finite.
MQ_INLINE float rotated_scale(const RotatedUnit& of, bool unbiased, float product, float squares, int64_t n) {
  if (!of.usable) return is_finite(of.unit) ? 0.0f : float_from_bits(kNanBits);
  return of.unit * (unbiased ? squares / product : product / squares) / static_cast<float>(n);
}

// -1 where the lowest bit is set, else 1.
MQ_INLINE float sign_of_bit(uint32_t word) {
  return float_from_bits(0x3f800000u | word << 31);
}

// An element of D, the same in all buckets of a payload: one bit of a word that 32 elements share.
MQ_INLINE float random_sign(Stream stream, uint32_t element) {
  return sign_of_bit(random_word(stream, element >> 5) >> (element & 31));
}

}  // namespace mqgrad
