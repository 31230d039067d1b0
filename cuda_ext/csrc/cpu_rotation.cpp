// Randomly rotated buckets on the CPU: the transform, the codes, and the ops.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <vector>

#include "clones.h"
#include "op_checks.h"
#include "rotation.h"

namespace mqgrad {
namespace {

constexpr int64_t kSeedBytes = 8;
constexpr int64_t kMaxBucket = 65536;

struct RotationLayout {
  int64_t numel;
  int bits;
  int64_t bucket_size;

  int64_t buckets() const { return ceil_divide(numel, bucket_size); }
  int64_t bucket_bytes() const { return bucket_size / 8 * bits; }
  int64_t codes_at() const { return kSeedBytes + 4 * buckets(); }
  int64_t payload_bytes() const { return codes_at() + buckets() * bucket_bytes(); }
};

RotationLayout rotation_layout(int64_t numel, int64_t bits, int64_t bucket_size) {
  STD_TORCH_CHECK(numel >= 0, "mqgrad: numel must not be negative, got ", numel);
  STD_TORCH_CHECK(bits >= 1 && bits <= kMaxRotationBits, "mqgrad: bits must be in 1..4, got ", bits);
  STD_TORCH_CHECK(bucket_size >= 8 && bucket_size <= kMaxBucket && (bucket_size & (bucket_size - 1)) == 0,
                  "mqgrad: bucket_size must be a power of two in 8..65536, got ", bucket_size);
  return {numel, static_cast<int>(bits), bucket_size};
}

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
    look_up(codes_.data(), size, table_, abs_bits(scale) < kInfinityBits ? scale : float_from_bits(kNanBits), y_.data());
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

int64_t grain(const RotationLayout& layout) {
  return std::max<int64_t>(1, 16384 / layout.bucket_size);
}

Tensor encode_rotated(const Tensor& x, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed) {
  check_input(x, 1);
  const RotationLayout layout = rotation_layout(x.numel(), bits, bucket_size);
  Tensor payload = torch::stable::new_empty(x, {layout.payload_bytes()}, ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  std::memcpy(bytes, &seed, kSeedBytes);
  const void* data = x.const_data_ptr();
  const ScalarType dtype = x.scalar_type();
  torch::stable::parallel_for(0, layout.buckets(), grain(layout), [&](int64_t begin, int64_t end) {
    Rotation rotation(layout, static_cast<uint64_t>(seed));
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k * bucket_size;
      const float scale = rotation.encode(data, dtype, first, std::min(bucket_size, layout.numel - first), unbiased,
                                          bytes + layout.codes_at() + k * layout.bucket_bytes());
      std::memcpy(bytes + kSeedBytes + 4 * k, &scale, 4);
    }
  });
  return payload;
}

void run_decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensor& out) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  uint64_t seed;
  std::memcpy(&seed, bytes, kSeedBytes);
  torch::stable::parallel_for(0, layout.buckets(), grain(layout), [&](int64_t begin, int64_t end) {
    Rotation rotation(layout, seed);
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = k * layout.bucket_size;
      float scale;
      std::memcpy(&scale, bytes + kSeedBytes + 4 * k, 4);
      rotation.decode(bytes + layout.codes_at() + k * layout.bucket_bytes(), scale,
                      std::min(layout.bucket_size, layout.numel - first), add, values + first);
    }
  });
}

Tensor decode_rotated(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = rotation_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());
  Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, out);
  return out;
}

void decode_rotated_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(payload, rotation_layout(accumulator.numel(), bits, bucket_size), true, accumulator);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("encode_rotated(Tensor x, int bits, int bucket_size, bool unbiased, int seed) -> Tensor");
  m.def("decode_rotated(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_rotated_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated", TORCH_BOX(&encode_rotated));
  m.impl("decode_rotated", TORCH_BOX(&decode_rotated));
  m.impl("decode_rotated_add_", TORCH_BOX(&decode_rotated_add_));
}

}  // namespace mqgrad
