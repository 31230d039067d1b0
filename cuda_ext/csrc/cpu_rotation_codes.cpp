// The codebook over one rotated bucket, in loops that compilers turn into vector code.
#include "rotation_codes.h"

#include "clones.h"
#include "rotation.h"

namespace mqgrad {
namespace {

// Eight terms at a distance of m, added as the last three levels of a binary tree.
template <class Term>
MQ_INLINE double sum_eight(const Term& term, int64_t j, int64_t m) {
  return ((term(j) + term(j + 4 * m)) + (term(j + 2 * m) + term(j + 6 * m))) +
         ((term(j + m) + term(j + 5 * m)) + (term(j + 3 * m) + term(j + 7 * m)));
}

// Over a binary tree: the second half is added to the first until one is left. `sums` has room for n / 8.
template <class Product>
MQ_INLINE double sum_of(const Product& product, int64_t n, double* __restrict sums) {
  const auto sum = [=](int64_t i) MQ_ALWAYS_INLINE { return sums[i]; };
  int64_t m = n / 8;
  for (int64_t j = 0; j < m; ++j) sums[j] = sum_eight(product, j, m);
  for (; m >= 8; m /= 8) {
    for (int64_t j = 0; j < m / 8; ++j) sums[j] = sum_eight(sum, j, m / 8);
  }
  for (m /= 2; m > 0; m /= 2) {
    for (int64_t j = 0; j < m; ++j) sums[j] += sums[j + m];
  }
  return sums[0];
}

MQ_CLONES double dot(const float* __restrict a, const float* __restrict b, int64_t n, double* __restrict sums) {
  const auto product = [=](int64_t i) MQ_ALWAYS_INLINE { return static_cast<double>(a[i]) * static_cast<double>(b[i]); };
  return sum_of(product, n, sums);
}

// dot(v, v): most of that is the conversion to double.
MQ_CLONES double sum_of_squares(const float* __restrict v, int64_t n, double* __restrict sums) {
  const auto square = [=](int64_t i) MQ_ALWAYS_INLINE {
    const auto value = static_cast<double>(v[i]);
    return value * value;
  };
  return sum_of(square, n, sums);
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

template <int BITS>
MQ_INLINE void look_up(const uint8_t* __restrict codes, int64_t n, float scale, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = codeword<BITS>(codes[i]) * scale;
}

}  // namespace

float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* words, double* sums) {
  const double norm_sq = sum_of_squares(y, n, sums);
  const Spread spread = spread_of(norm_sq, n);
  nearest_codewords(bits, y, n, spread.inverse, codes, words);
  const double product = dot(y, words, n, sums);
  const double words_sq = unbiased ? 0 : sum_of_squares(words, n, sums);
  return rotated_scale(spread, unbiased, norm_sq, product, words_sq);
}

MQ_CLONES void scale_codewords(const float* __restrict words, int64_t n, float scale, float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = words[i] * scale;
}

MQ_CLONES void look_up_codewords(int bits, const uint8_t* codes, int64_t n, float scale, float* y) {
  switch (bits) {
    case 1: return look_up<1>(codes, n, scale, y);
    case 2: return look_up<2>(codes, n, scale, y);
    case 3: return look_up<3>(codes, n, scale, y);
    default: return look_up<4>(codes, n, scale, y);
  }
}

}  // namespace mqgrad
