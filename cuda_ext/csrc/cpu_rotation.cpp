// Randomly rotated buckets on the CPU: the transform and the codes.
#include <algorithm>
#include <cmath>
#include <vector>

#include "clones.h"
#include "kernels.h"
#include "rotation_kernels.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

// Two stages of butterflies at distances h and 2h at once, in place.
MQ_INLINE void transform_twice(float* v, int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; i += 4 * h) {
    float* __restrict a = v + i;
    float* __restrict b = a + h;
    float* __restrict c = b + h;
    float* __restrict d = c + h;
    for (int64_t j = 0; j < h; ++j) {
      const float ab = a[j] + b[j], a_b = a[j] - b[j], cd = c[j] + d[j], c_d = c[j] - d[j];
      a[j] = ab + cd;
      b[j] = a_b + c_d;
      c[j] = ab - cd;
      d[j] = a_b - c_d;
    }
  }
}

MQ_INLINE void transform_once(float* v, int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; i += 2 * h) {
    float* __restrict a = v + i;
    float* __restrict b = a + h;
    for (int64_t j = 0; j < h; ++j) {
      const float sum = a[j] + b[j];
      b[j] = a[j] - b[j];
      a[j] = sum;
    }
  }
}

MQ_INLINE void transform_columns(float* v, int64_t n, int64_t columns) {
  int64_t h = columns;
  for (; 4 * h <= n; h *= 4) transform_twice(v, n, h);
  if (2 * h <= n) transform_once(v, n, h);
}

// Rows are shorter than a vector. So one stage takes neighbours and parts sums from differences, which makes the last bit of
// the index the first one: after all stages of a row, the matrix is transposed as well.
MQ_INLINE void neighbours_once(const float* __restrict v, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const float a = v[2 * i], b = v[2 * i + 1];
    out[i] = a + b;
    out[i + n / 2] = a - b;
  }
}

MQ_INLINE void neighbours_twice(const float* __restrict v, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n / 4; ++i) {
    const float a = v[4 * i], b = v[4 * i + 1], c = v[4 * i + 2], d = v[4 * i + 3];
    const float ab = a + b, a_b = a - b, cd = c + d, c_d = c - d;
    out[i] = ab + cd;
    out[i + n / 4] = a_b + c_d;
    out[i + n / 2] = ab - cd;
    out[i + 3 * (n / 4)] = a_b - c_d;
  }
}

// The same stages backwards: the transpose is undone.
MQ_INLINE void halves_once(const float* __restrict v, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const float a = v[i], b = v[i + n / 2];
    out[2 * i] = a + b;
    out[2 * i + 1] = a - b;
  }
}

MQ_INLINE void halves_twice(const float* __restrict v, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n / 4; ++i) {
    const float a = v[i], b = v[i + n / 4], c = v[i + n / 2], d = v[i + 3 * (n / 4)];
    const float ac = a + c, a_c = a - c, bd = b + d, b_d = b - d;
    out[4 * i] = ac + bd;
    out[4 * i + 1] = ac - bd;
    out[4 * i + 2] = a_c + b_d;
    out[4 * i + 3] = a_c - b_d;
  }
}

// v <- H (factors * v), transposed; the result is in v, `other` is of the same size. Eight elements have rows of eight.
MQ_CLONES void rotate(float* __restrict v, const float* __restrict factors, int64_t n, float* __restrict other) {
  for (int64_t i = 0; i < n; ++i) v[i] *= factors[i];
  transform_columns(v, n, kRotationColumns);
  neighbours_twice(v, n, other);
  n < kRotationColumns ? neighbours_once(other, n, v) : neighbours_twice(other, n, v);
}

// The inverse of rotate, where the factors' squares are 1 / n.
MQ_CLONES void rotate_back(float* __restrict v, const float* __restrict factors, int64_t n, float* __restrict other) {
  n < kRotationColumns ? halves_once(v, n, other) : halves_twice(v, n, other);
  halves_twice(other, n, v);
  transform_columns(v, n, kRotationColumns);
  for (int64_t i = 0; i < n; ++i) v[i] *= factors[i];
}

// Eight terms at a distance of m, added as the last three levels of a binary tree.
template <class Term>
MQ_INLINE double sum_eight(const Term& term, int64_t j, int64_t m) {
  return ((term(j) + term(j + 4 * m)) + (term(j + 2 * m) + term(j + 6 * m))) +
         ((term(j + m) + term(j + 5 * m)) + (term(j + 3 * m) + term(j + 7 * m)));
}

// Over a binary tree: the second half is added to the first until one is left. `sums` has room for n / 8.
MQ_CLONES double dot(const float* __restrict a, const float* __restrict b, int64_t n, double* __restrict sums) {
  const auto product = [=](int64_t i) MQ_ALWAYS_INLINE { return static_cast<double>(a[i]) * static_cast<double>(b[i]); };
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

template <int BITS>
MQ_INLINE void nearest_words(const float* __restrict y, int64_t n, float inverse, int32_t* __restrict codes,
                             float* __restrict words) {
  for (int64_t i = 0; i < n; ++i) {
    const Codeword nearest = nearest_codeword<BITS>(y[i] * inverse);
    codes[i] = nearest.code;
    words[i] = nearest.word;
  }
}

MQ_CLONES void choose_words(int bits, const float* y, int64_t n, float inverse, int32_t* codes, float* words) {
  switch (bits) {
    case 1: return nearest_words<1>(y, n, inverse, codes, words);
    case 2: return nearest_words<2>(y, n, inverse, codes, words);
    case 3: return nearest_words<3>(y, n, inverse, codes, words);
    default: return nearest_words<4>(y, n, inverse, codes, words);
  }
}

MQ_CLONES void narrow(const int32_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(codes[i]);
}

template <int BITS>
void fill_table(float* table) {
  for (int code = 0; code < 1 << BITS; ++code) table[code] = codeword<BITS>(static_cast<uint8_t>(code));
}

void codeword_table(int bits, float* table) {
  switch (bits) {
    case 1: return fill_table<1>(table);
    case 2: return fill_table<2>(table);
    case 3: return fill_table<3>(table);
    default: return fill_table<4>(table);
  }
}

MQ_CLONES void look_up(const uint8_t* __restrict codes, int64_t n, const float* table, float scale,
                       float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = table[codes[i]] * scale;
}

// Buffers and constants of one thread.
class Rotation {
 public:
  Rotation(const RotationLayout& layout, uint64_t seed)
      : layout_(layout), factors_(layout.bucket_size), v_(layout.bucket_size), other_(layout.bucket_size),
        sums_(layout.bucket_size / 8), indices_(layout.bucket_size), codes_(layout.bucket_size) {
    const Stream stream = random_stream(seed, 0);
    const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.bucket_size)));
    for (int64_t i = 0; i < layout.bucket_size; ++i) {
      factors_[i] = random_sign(stream, static_cast<uint32_t>(i)) * norm;
    }
    codeword_table(layout.bits, table_);
  }

  // n elements from x[first] on, fewer than a bucket at the end; returns the scale.
  float encode(const void* x, ScalarType dtype, int64_t first, int64_t n, bool unbiased, uint8_t* packed) {
    load_floats(x, dtype, first, n, v_.data());
    std::fill(v_.begin() + n, v_.end(), 0.0f);
    rotate(v_.data(), factors_.data(), layout_.bucket_size, other_.data());
    const float scale = quantize(unbiased);
    pack(layout_.bits, codes_.data(), layout_.bucket_size, packed);
    return scale;
  }

  void decode(const uint8_t* packed, float scale, int64_t n, bool add, float* out) {
    const int64_t size = layout_.bucket_size;
    unpack(layout_.bits, packed, size, codes_.data());
    look_up(codes_.data(), size, table_, scale, v_.data());
    rotate_back(v_.data(), factors_.data(), size, other_.data());
    for (int64_t i = 0; i < n; ++i) out[i] = add ? out[i] + v_[i] : v_[i];
  }

 private:
  // The codes of v, and their scale: 0 for zeros, NaN where v is not finite.
  float quantize(bool unbiased) {
    const int64_t size = layout_.bucket_size;
    const float* y = v_.data();
    float* words = other_.data();
    const double norm_sq = dot(y, y, size, sums_.data());
    const float sigma = static_cast<float>(std::sqrt(norm_sq / static_cast<double>(size)));
    const bool usable = sigma > 0 && abs_bits(sigma) < kInfinityBits;
    choose_words(layout_.bits, y, size, usable ? 1.0f / sigma : 0.0f, indices_.data(), words);
    narrow(indices_.data(), size, codes_.data());
    if (!usable) return sigma > 0 || sigma != sigma ? float_from_bits(kNanBits) : 0.0f;
    const double product = dot(y, words, size, sums_.data());
    return static_cast<float>(unbiased ? norm_sq / product : product / dot(words, words, size, sums_.data()));
  }

  const RotationLayout layout_;
  std::vector<float> factors_, v_, other_;
  std::vector<double> sums_;
  std::vector<int32_t> indices_;
  std::vector<uint8_t> codes_;
  float table_[1 << kMaxRotationBits];
};

}  // namespace

void encode_rotated_buckets(const void* x, ScalarType dtype, const RotationLayout& layout, bool unbiased, uint64_t seed,
                            int64_t begin, int64_t end, uint8_t* payload) {
  Rotation rotation(layout, seed);
  for (int64_t k = begin; k < end; ++k) {
    const int64_t first = k * layout.bucket_size;
    const float scale = rotation.encode(x, dtype, first, std::min(layout.bucket_size, layout.numel - first), unbiased,
                                        payload + layout.codes_at() + k * layout.bucket_bytes());
    store_scale(payload + kSeedBytes, k, scale);
  }
}

void decode_rotated_buckets(const uint8_t* payload, const RotationLayout& layout, int64_t begin, int64_t end, bool add,
                            float* out) {
  uint64_t seed;
  std::memcpy(&seed, payload, kSeedBytes);
  Rotation rotation(layout, seed);
  for (int64_t k = begin; k < end; ++k) {
    const int64_t first = k * layout.bucket_size;
    rotation.decode(payload + layout.codes_at() + k * layout.bucket_bytes(), load_scale(payload + kSeedBytes, k),
                    std::min(layout.bucket_size, layout.numel - first), add, out + first);
  }
}

}  // namespace mqgrad
