// Encode and decode on the CPU: bucket by bucket, in chunks that stay in the L1 cache.
#include <algorithm>
#include <numeric>
#include <vector>

#include "clones.h"
#include "kernels.h"
#include "quantize_math.h"

namespace mqgrad {
namespace {

MQ_CLONES uint32_t max_abs_bits(const float* v, int64_t n) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, abs_bits(v[i]));
  return max;
}

struct MagnitudeSums {
  uint64_t sum;
  uint64_t squares;
};

MQ_CLONES MagnitudeSums magnitude_sums(const float* v, int64_t n, Grid grid) {
  MagnitudeSums total{0, 0};
  for (int64_t at = 0; at < n; at += kChunk) {  // short enough for sums of 15 bits in 32
    const int64_t end = std::min(at + kChunk, n);
    uint32_t sum = 0, low = 0, high = 0;
    for (int64_t i = at; i < end; ++i) {
      const uint32_t m = magnitude(v[i], grid);
      sum += m;
      low += m * m & 0xffffu;  // of a square of at most 2^30
      high += m * m >> 16;
    }
    total.sum += sum;
    total.squares += (static_cast<uint64_t>(high) << 16) + low;
  }
  return total;
}

MQ_CLONES void nearest_codes(const float* v, int64_t n, Grid grid, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = nearest_code(v[i], grid);
}

MQ_CLONES void sign_codes(const float* v, int64_t n, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = sign_code(v[i]);
}

MQ_CLONES void random_words(Stream stream, uint32_t first, int64_t n, uint32_t* words) {
  for (int64_t i = 0; i < n; ++i) words[i] = random_word(stream, first + static_cast<uint32_t>(i));
}

MQ_CLONES void stochastic_codes(const float* v, const uint16_t* halves, int64_t n, Grid grid, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = stochastic_code(v[i], grid, dither_from_half(halves[i]));
}

MQ_CLONES void level_values(const uint8_t* codes, int64_t n, int32_t s, float scale, float* out) {
  const Reciprocal r = reciprocal(s);
  for (int64_t i = 0; i < n; ++i) out[i] = level_value(codes[i], s, r, scale);
}

MQ_CLONES void add_level_values(const uint8_t* codes, int64_t n, int32_t s, float scale, float* out) {
  const Reciprocal r = reciprocal(s);
  for (int64_t i = 0; i < n; ++i) out[i] += level_value(codes[i], s, r, scale);
}

MQ_CLONES void sign_values(const uint8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = sign_value(codes[i], scale);
}

MQ_CLONES void add_sign_values(const uint8_t* codes, int64_t n, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] += sign_value(codes[i], scale);
}

MQ_CLONES void compensate(const float* x, const float* residual, int64_t n, double alpha, float* v) {
  if (alpha == 1) {  // a sum rounded to double and then to float is the float sum: 53 >= 2 * 24 + 2
    for (int64_t i = 0; i < n; ++i) v[i] = x[i] + residual[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) v[i] = compensated(x[i], residual[i], alpha);
}

MQ_CLONES void update_residual(const float* x, const float* sent, int64_t n, double beta, float* residual) {
  for (int64_t i = 0; i < n; ++i) residual[i] = next_residual(x[i], residual[i], sent[i], beta);
}

float bucket_scale(const float* v, int64_t n, int bits, bool stochastic) {
  const uint32_t max_bits = max_abs_bits(v, n);
  if (max_bits >= kInfinityBits) return float_from_bits(kNanBits);
  const float max = float_from_bits(max_bits);
  if (stochastic || bits > 4 || max == 0) return max;
  const MagnitudeSums sums = magnitude_sums(v, n, magnitude_grid(max));
  return nearest_scale(bits, n, sums.sum, sums.squares, max);
}

// Codes of elements [first, first + n) of one bucket, v pointing at the first; n is at most kChunk.
void segment_codes(const EncodeArguments& a, const float* v, int64_t n, float scale, int64_t bucket, int64_t first,
                   uint8_t* codes) {
  const int bits = a.layout.bits;
  if (!(scale > 0)) {  // all zero, or not finite: the codes of zero
    std::memset(codes, level_count(bits), n);
  } else if (a.stochastic) {
    uint32_t words[kChunk / 2 + 1];
    const Stream stream = random_stream(a.seed, static_cast<uint64_t>(a.bucket_ids ? a.bucket_ids[bucket] : bucket));
    random_words(stream, static_cast<uint32_t>(first / 2), n / 2 + 1, words);
    stochastic_codes(v, reinterpret_cast<const uint16_t*>(words) + first % 2, n, stochastic_grid(bits, scale), codes);
  } else if (bits == 1) {
    sign_codes(v, n, codes);
  } else {
    nearest_codes(v, n, nearest_grid(bits, scale), codes);
  }
}

void segment_values(int bits, const uint8_t* codes, int64_t n, float scale, float* out) {
  bits == 1 ? sign_values(codes, n, scale, out) : level_values(codes, n, level_count(bits), scale, out);
}

void add_segment_values(int bits, const uint8_t* codes, int64_t n, float scale, float* out) {
  bits == 1 ? add_sign_values(codes, n, scale, out) : add_level_values(codes, n, level_count(bits), scale, out);
}

// Calls f(bucket, first element within the bucket, offset from begin, length) for each piece of a bucket in the range.
template <typename F>
void for_each_segment(int64_t begin, int64_t end, int64_t bucket_size, const F& f) {
  for (int64_t at = begin; at < end;) {
    const int64_t bucket = at / bucket_size;
    const int64_t first = at - bucket * bucket_size;
    const int64_t length = std::min(bucket_size - first, end - at);
    f(bucket, first, at - begin, length);
    at += length;
  }
}

// What one unit is encoded from: x as fp32, and v = x, or x + alpha * residual with feedback.
class UnitInput {
 public:
  explicit UnitInput(const EncodeArguments& a) : a_(a) {}

  void load(int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    if (a_.dtype == torch::headeronly::ScalarType::Float) {
      x = static_cast<const float*>(a_.x) + begin;
    } else {
      converted_.resize(std::max<size_t>(converted_.size(), n));
      load_floats(a_.x, a_.dtype, begin, n, converted_.data());
      x = converted_.data();
    }
    v = x;
    if (!a_.residual) return;
    compensated_.resize(std::max<size_t>(compensated_.size(), n));
    compensate(x, a_.residual + begin, n, a_.alpha, compensated_.data());
    v = compensated_.data();
  }

  const float* x = nullptr;
  const float* v = nullptr;

 private:
  const EncodeArguments& a_;
  std::vector<float> converted_;
  std::vector<float> compensated_;
};

void keep_error(const EncodeArguments& a, const float* x, const uint8_t* codes, int64_t n, float scale,
                float* residual) {
  if (abs_bits(scale) >= kInfinityBits) return;  // nothing of this bucket arrives: keep what was owed
  float sent[kChunk];
  segment_values(a.layout.bits, codes, n, scale, sent);
  update_residual(x, sent, n, a.beta, residual);
}

void encode_unit(const EncodeArguments& a, int64_t begin, int64_t end, UnitInput& input, uint8_t* payload) {
  const Layout& layout = a.layout;
  input.load(begin, end);
  for_each_segment(begin, end, layout.bucket_size, [&](int64_t bucket, int64_t, int64_t offset, int64_t n) {
    store_scale(payload, bucket, bucket_scale(input.v + offset, n, layout.bits, a.stochastic));
  });
  uint8_t codes[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, end);
    for_each_segment(at, chunk_end, layout.bucket_size,
                     [&](int64_t bucket, int64_t first, int64_t offset, int64_t n) {
                       const int64_t i = at - begin + offset;
                       const float scale = load_scale(payload, bucket);
                       segment_codes(a, input.v + i, n, scale, bucket, first, codes + offset);
                       if (a.residual) keep_error(a, input.x + i, codes + offset, n, scale, a.residual + begin + i);
                     });
    pack(layout.bits, codes, chunk_end - at, payload + layout.scale_bytes() + at / 8 * layout.bits);
  }
}

}  // namespace

int64_t buckets_per_unit(const Layout& layout) {
  return 8 / std::gcd(layout.bucket_size, int64_t{8});
}

void encode_units(const EncodeArguments& arguments, int64_t begin, int64_t end, uint8_t* payload) {
  const Layout& layout = arguments.layout;
  const int64_t unit = buckets_per_unit(layout) * layout.bucket_size;
  UnitInput input(arguments);
  for (int64_t at = begin * unit; at < std::min(end * unit, layout.numel); at += unit) {
    encode_unit(arguments, at, std::min(at + unit, layout.numel), input, payload);
  }
}

void decode_chunks(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  uint8_t codes[kChunk];
  for (int64_t at = begin * kChunk; at < std::min(end * kChunk, layout.numel); at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, layout.numel);
    unpack(layout.bits, payload + layout.scale_bytes() + at / 8 * layout.bits, chunk_end - at, codes);
    for_each_segment(at, chunk_end, layout.bucket_size, [&](int64_t bucket, int64_t, int64_t offset, int64_t n) {
      const auto values = add ? add_segment_values : segment_values;
      values(layout.bits, codes + offset, n, load_scale(payload, bucket), out + at + offset);
    });
  }
}

}  // namespace mqgrad
