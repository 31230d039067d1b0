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

MQ_CLONES float sum_of_magnitudes(const float* __restrict y, int64_t n, float* __restrict sums) {
  const auto magnitude = [=](int64_t i) MQ_ALWAYS_INLINE { return float_from_bits(abs_bits(y[i])); };
  for (int64_t j = 0; j < n / 8; ++j) sums[j] = sum_eight(magnitude, j, n / 8);
  return sum_of(sums, n / 8);
}

// With u = y * inverse: <u, words> and |u|^2, or |words|^2.
struct Products {
  float product;
  float squares;
};

MQ_CLONES Products products_of(const float* __restrict y, float inverse, const float* __restrict words, bool unbiased,
                               int64_t n, float* __restrict sums) {
  const auto product = [=](int64_t i) MQ_ALWAYS_INLINE { return y[i] * inverse * words[i]; };
  const auto square = [=](int64_t i) MQ_ALWAYS_INLINE { return (y[i] * inverse) * (y[i] * inverse); };
  const auto word_square = [=](int64_t i) MQ_ALWAYS_INLINE { return words[i] * words[i]; };
  const int64_t m = n / 8;
  for (int64_t j = 0; j < m; ++j) sums[j] = sum_eight(product, j, m);
  if (unbiased) {
    for (int64_t j = 0; j < m; ++j) sums[m + j] = sum_eight(square, j, m);
  } else {
    for (int64_t j = 0; j < m; ++j) sums[m + j] = sum_eight(word_square, j, m);
  }
  return {sum_of(sums, m), sum_of(sums + m, m)};
}

template <int BITS>
MQ_INLINE void nearest(const float* __restrict y, int64_t n, float inverse, uint8_t* __restrict codes,
                       float* __restrict words) {
  constexpr int64_t kBlock = 64;  // elements; a loop that writes bytes and floats does not become vector code
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t count = n - at < kBlock ? n - at : kBlock;
    int32_t wide[kBlock];
    for (int64_t i = 0; i < count; ++i) {
      const Codeword codeword = nearest_codeword<BITS>(y[at + i] * inverse);
      wide[i] = codeword.code;
      words[at + i] = codeword.word;
    }
    for (int64_t i = 0; i < count; ++i) codes[at + i] = static_cast<uint8_t>(wide[i]);
  }
}

MQ_CLONES void nearest_codewords(int bits, const float* y, int64_t n, float inverse, uint8_t* codes, float* words) {
  switch (bits) {
    case 1: return nearest<1>(y, n, inverse, codes, words);
    case 2: return nearest<2>(y, n, inverse, codes, words);
    case 3: return nearest<3>(y, n, inverse, codes, words);
    default: return nearest<4>(y, n, inverse, codes, words);
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
MQ_INLINE void look_up(const uint8_t* __restrict codes, int64_t n, int8_t* __restrict words) {
  for (int64_t i = 0; i < n; ++i) words[i] = codeword<BITS>(codes[i]);
}

}  // namespace

float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* words, float* sums) {
  const RotatedUnit unit = unit_of(bits, sum_of_magnitudes(y, n, sums), n);
  nearest_codewords(bits, y, n, unit.inverse, codes, words);
  const Products products = products_of(y, unit.inverse, words, unbiased, n, sums);
  return rotated_scale(unit, unbiased, products.product, products.squares, n);
}

MQ_CLONES void look_up_codewords(int bits, const uint8_t* codes, int64_t n, int8_t* words) {
  switch (bits) {
    case 1: return look_up<1>(codes, n, words);
    case 2: return look_up<2>(codes, n, words);
    case 3: return look_up<3>(codes, n, words);
    default: return look_up<4>(codes, n, words);
  }
}

}  // namespace mqgrad
