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

// Transforms the columns of a matrix of `rows` rows, a power of two.
MQ_CLONES void transform_columns(float* v, int64_t rows, int64_t columns) {
  for (int64_t h = columns; h < rows * columns; h *= 2) {
    for (int64_t i = 0; i < rows * columns; i += 2 * h) {
      float* __restrict a = v + i;
      float* __restrict b = v + i + h;
      for (int64_t j = 0; j < h; ++j) {
        const float sum = a[j] + b[j];
        b[j] = a[j] - b[j];
        a[j] = sum;
      }
    }
  }
}

void transpose(const float* v, int64_t rows, int64_t columns, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[j * rows + i] = v[i * columns + j];
  }
}

// Sum over a binary tree: the second half is added to the first until one is left. Overwrites v.
MQ_CLONES double tree_sum(double* v, int64_t n) {
  for (int64_t half = n / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

MQ_CLONES void multiply(const float* a, const float* b, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<double>(a[i]) * static_cast<double>(b[i]);
}

MQ_CLONES void scale_floats(float* v, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) v[i] *= factor;
}

MQ_CLONES void multiply_floats(float* v, const float* factors, int64_t n) {
  for (int64_t i = 0; i < n; ++i) v[i] *= factors[i];
}

template <int BITS>
MQ_INLINE void nearest_words(const float* __restrict y, int64_t n, float inverse, uint8_t* __restrict codes,
                             float* __restrict words) {
  for (int64_t i = 0; i < n; ++i) {
    const Codeword nearest = nearest_codeword<BITS>(y[i] * inverse);
    codes[i] = static_cast<uint8_t>(nearest.code);
    words[i] = nearest.word;
  }
}

MQ_CLONES void choose_words(int bits, const float* y, int64_t n, float inverse, uint8_t* codes, float* words) {
  switch (bits) {
    case 1: return nearest_words<1>(y, n, inverse, codes, words);
    case 2: return nearest_words<2>(y, n, inverse, codes, words);
    case 3: return nearest_words<3>(y, n, inverse, codes, words);
    default: return nearest_words<4>(y, n, inverse, codes, words);
  }
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
      : layout_(layout), signs_(layout.bucket_size), x_(layout.bucket_size), y_(layout.bucket_size),
        words_(layout.bucket_size), products_(layout.bucket_size), codes_(layout.bucket_size),
        columns_(std::min(kRotationColumns, layout.bucket_size)), rows_(layout.bucket_size / columns_),
        normalise_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.bucket_size)))) {
    const Stream stream = random_stream(seed, 0);
    for (int64_t i = 0; i < layout.bucket_size; ++i) signs_[i] = random_sign(stream, static_cast<uint32_t>(i));
    codeword_table(layout.bits, table_);
  }

  // n elements from x[first] on, fewer than a bucket at the end; returns the scale.
  float encode(const void* x, ScalarType dtype, int64_t first, int64_t n, bool unbiased, uint8_t* packed) {
    const int64_t size = layout_.bucket_size;
    load_floats(x, dtype, first, n, x_.data());
    std::fill(x_.begin() + n, x_.end(), 0.0f);
    multiply_floats(x_.data(), signs_.data(), size);
    transform_columns(x_.data(), rows_, columns_);
    transpose(x_.data(), rows_, columns_, y_.data());
    transform_columns(y_.data(), columns_, rows_);
    scale_floats(y_.data(), size, normalise_);
    const float scale = quantize(unbiased);
    pack(layout_.bits, codes_.data(), size, packed);
    return scale;
  }

  void decode(const uint8_t* packed, float scale, int64_t n, bool add, float* out) {
    const int64_t size = layout_.bucket_size;
    unpack(layout_.bits, packed, size, codes_.data());
    look_up(codes_.data(), size, table_, scale, y_.data());
    transform_columns(y_.data(), columns_, rows_);
    transpose(y_.data(), columns_, rows_, x_.data());
    transform_columns(x_.data(), rows_, columns_);
    scale_floats(x_.data(), size, normalise_);
    multiply_floats(x_.data(), signs_.data(), size);
    for (int64_t i = 0; i < n; ++i) out[i] = add ? out[i] + x_[i] : x_[i];
  }

 private:
  // The codes of y, and their scale: 0 for zeros, NaN where y is not finite.
  float quantize(bool unbiased) {
    const int64_t size = layout_.bucket_size;
    const double norm_sq = dot(y_, y_);
    const float sigma = static_cast<float>(std::sqrt(norm_sq / static_cast<double>(size)));
    const bool usable = sigma > 0 && abs_bits(sigma) < kInfinityBits;
    choose_words(layout_.bits, y_.data(), size, usable ? 1.0f / sigma : 0.0f, codes_.data(), words_.data());
    if (!usable) return sigma > 0 || sigma != sigma ? float_from_bits(kNanBits) : 0.0f;
    const double product = dot(y_, words_);
    return static_cast<float>(unbiased ? norm_sq / product : product / dot(words_, words_));
  }

  double dot(const std::vector<float>& a, const std::vector<float>& b) {
    multiply(a.data(), b.data(), layout_.bucket_size, products_.data());
    return tree_sum(products_.data(), layout_.bucket_size);
  }

  const RotationLayout layout_;
  std::vector<float> signs_, x_, y_, words_;
  std::vector<double> products_;
  std::vector<uint8_t> codes_;
  float table_[1 << kMaxRotationBits];
  const int64_t columns_, rows_;
  const float normalise_;
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
