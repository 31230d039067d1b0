// The codebook over one rotated bucket, in loops that compilers turn into vector code.
#include "rotation_codes.h"

#include "clones.h"
#include "rotation.h"

namespace mqgrad {
namespace {

// Eight terms at a distance of m, added as the last three levels of a binary tree.
template <class Term>
MQ_INLINE float sum_eight(const Term& term, int64_t j, int64_t m) {
  return ((term(j) + term(j + 4 * m)) + (term(j + 2 * m) + term(j + 6 * m))) +
         ((term(j + m) + term(j + 5 * m)) + (term(j + 3 * m) + term(j + 7 * m)));
}

// Over a binary tree: the second half is added to the first until one is left.
MQ_INLINE float sum_of(float* sums, int64_t m) {
  const auto sum = [=](int64_t i) MQ_ALWAYS_INLINE { return sums[i]; };
  for (; m >= 8; m /= 8) {
    for (int64_t j = 0; j < m / 8; ++j) sums[j] = sum_eight(sum, j, m / 8);
  }
  for (m /= 2; m > 0; m /= 2) {
    for (int64_t j = 0; j < m; ++j) sums[j] += sums[j + m];
  }
  return sums[0];
}

MQ_CLONES float sum_of_magnitudes(const float* __restrict y, int64_t size, float* __restrict sums) {
  return with_usual_size(size, [=](int64_t n) MQ_ALWAYS_INLINE {
    const auto magnitude = [=](int64_t i) MQ_ALWAYS_INLINE { return float_from_bits(abs_bits(y[i])); };
    for (int64_t j = 0; j < n / 8; ++j) sums[j] = sum_eight(magnitude, j, n / 8);
    return sum_of(sums, n / 8);
  });
}

// With u = y * inverse and its codewords c: <u, c>, and |u|^2 or |c|^2.
struct Products {
  float product;
  float squares;
};

// The terms of an eighth of the elements at a time, so that sums of eight are of what is in registers.
template <int BITS, bool UNBIASED>
MQ_INLINE Products look_up_nearest(const float* __restrict y, float inverse, int64_t n, uint8_t* __restrict codes,
                                   float* __restrict sums) {
  constexpr int64_t kBlock = 64;  // elements; a loop that writes bytes and floats does not become vector code
  const int64_t m = n / 8;
  for (int64_t at = 0; at < m; at += kBlock) {
    const int64_t count = m - at < kBlock ? m - at : kBlock;
    int32_t wide[8][kBlock];
    for (int64_t j = 0; j < count; ++j) {
      float products[8], squares[8];
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        const float u = y[at + j + k * m] * inverse;
        const Codeword nearest = nearest_codeword<BITS>(u);
        wide[k][j] = nearest.code;
        products[k] = u * nearest.word;
        squares[k] = UNBIASED ? u * u : nearest.word * nearest.word;
      }
      sums[at + j] = sum_eight([&](int64_t k) MQ_ALWAYS_INLINE { return products[k]; }, 0, 1);
      sums[m + at + j] = sum_eight([&](int64_t k) MQ_ALWAYS_INLINE { return squares[k]; }, 0, 1);
    }
    for (int k = 0; k < 8; ++k) {
      for (int64_t j = 0; j < count; ++j) codes[at + j + k * m] = static_cast<uint8_t>(wide[k][j]);
    }
  }
  return {sum_of(sums, m), sum_of(sums + m, m)};
}

template <int BITS>
MQ_INLINE Products look_up_nearest(const float* y, float inverse, bool unbiased, int64_t n, uint8_t* codes, float* sums) {
  return with_usual_size(n, [=](int64_t size) MQ_ALWAYS_INLINE {
    return unbiased ? look_up_nearest<BITS, true>(y, inverse, size, codes, sums)
                    : look_up_nearest<BITS, false>(y, inverse, size, codes, sums);
  });
}

MQ_CLONES Products nearest_codewords(int bits, const float* y, float inverse, bool unbiased, int64_t n, uint8_t* codes,
                                     float* sums) {
  switch (bits) {
    case 1: return look_up_nearest<1>(y, inverse, unbiased, n, codes, sums);
    case 2: return look_up_nearest<2>(y, inverse, unbiased, n, codes, sums);
    case 3: return look_up_nearest<3>(y, inverse, unbiased, n, codes, sums);
    default: return look_up_nearest<4>(y, inverse, unbiased, n, codes, sums);
  }
}

RotatedUnit unit_of(int bits, float magnitudes, int64_t n) {
  switch (bits) {
    case 1: return rotated_unit<1>(magnitudes, n);
    case 2: return rotated_unit<2>(magnitudes, n);
    case 3: return rotated_unit<3>(magnitudes, n);
    default: return rotated_unit<4>(magnitudes, n);
  }
}

template <int BITS>
MQ_INLINE void look_up(const uint8_t* __restrict codes, int64_t n, int16_t* __restrict words) {
  for (int64_t i = 0; i < n; ++i) words[i] = codeword<BITS>(codes[i]);
}

}  // namespace

float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* sums) {
  const RotatedUnit unit = unit_of(bits, sum_of_magnitudes(y, n, sums), n);
  const Products products = nearest_codewords(bits, y, unit.inverse, unbiased, n, codes, sums);
  return rotated_scale(unit, unbiased, products.product, products.squares, n);
}

MQ_CLONES void look_up_codewords(int bits, const uint8_t* codes, int64_t n, int16_t* words) {
  switch (bits) {
    case 1: return look_up<1>(codes, n, words);
    case 2: return look_up<2>(codes, n, words);
    case 3: return look_up<3>(codes, n, words);
    default: return look_up<4>(codes, n, words);
  }
}

}  // namespace mqgrad
