// Encode and decode on the CPU: bucket by bucket, in chunks that stay in the L1 cache.
#include <algorithm>
#include <numeric>
#include <vector>

#include "clones.h"
#include "kernels.h"
#include "quantize_math.h"

namespace mqgrad {
namespace {

constexpr int64_t kBlock = 64;       // elements; loops of a fixed length compile to vector code without a remainder
constexpr int64_t kPrefetch = 1024;  // elements ahead: what the hardware prefetcher leaves out at ends of pages

// Calls f(pointer to kBlock elements, offset) for n elements, the last block padded with zeros.
template <typename F>
MQ_INLINE void for_each_block(const float* v, int64_t n, const F& f) {
  int64_t at = 0;
  for (; at + kBlock <= n; at += kBlock) f(v + at, at);
  if (at == n) return;
  float padded[kBlock] = {};
  std::memcpy(padded, v + at, 4 * (n - at));
  f(padded, at);
}

// One AVX2 register. Of wider vectors, GCC compiles comparisons badly where they do not fit a register.
using Lanes = int32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;
constexpr int kRows = kBlock / kLanes;  // of a block

MQ_INLINE int64_t sum_lanes(const Lanes& lanes) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

MQ_CLONES uint32_t max_abs_bits(const float* v, int64_t n) {
  Lanes max[kRows] = {};  // several, to be independent of each other
  for_each_block(v, n, [&](const float* block, int64_t) {
    for (int k = 0; k < kRows; ++k) {
      if (k % 2 == 0) __builtin_prefetch(block + kLanes * k + kPrefetch);  // a cache line
      Lanes x;
      std::memcpy(&x, block + kLanes * k, sizeof(x));
      x &= 0x7fffffff;
      max[k] = max[k] > x ? max[k] : x;
    }
  });
  for (int k = 1; k < kRows; ++k) max[0] = max[0] > max[k] ? max[0] : max[k];
  int32_t result = 0;
  for (int i = 0; i < kLanes; ++i) result = std::max<int32_t>(result, max[0][i]);
  return static_cast<uint32_t>(result);
}

struct MagnitudeSums {
  int64_t sum = 0;
  int64_t squares = 0;
};

// n is at most kChunk, so that sums of 16 bits fit lanes of 32.
MQ_CLONES MagnitudeSums magnitude_sums(const float* v, int64_t n, Grid grid) {
  Lanes sum = {}, low = {}, high = {};
  for_each_block(v, n, [&](const float* block, int64_t) {
    int32_t m[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) m[i] = static_cast<int32_t>(magnitude(block[i], grid));
    Lanes rows[kRows];
    std::memcpy(rows, m, sizeof(rows));
    for (int k = 0; k < kRows; ++k) {
      const Lanes square = rows[k] * rows[k];  // at most 2^30
      sum += rows[k];
      low += square & 0xffff;
      high += square >> 16;
    }
  });
  return {sum_lanes(sum), (sum_lanes(high) << 16) + sum_lanes(low)};
}

// The three below write whole blocks of codes, whatever n is.

MQ_CLONES void nearest_codes(const float* v, int64_t n, Grid grid, uint8_t* __restrict codes) {
  for_each_block(v, n, [&](const float* block, int64_t at) {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = nearest_code(block[i], grid);
  });
}

MQ_CLONES void sign_codes(const float* v, int64_t n, uint8_t* __restrict codes) {
  for_each_block(v, n, [&](const float* block, int64_t at) {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = sign_code(block[i]);
  });
}

// `first` is even.
MQ_CLONES void stochastic_codes(const float* v, int64_t n, Grid grid, Stream stream, int64_t first,
                                uint8_t* __restrict codes) {
  constexpr int64_t kWords = kBlock / 2;
  const uint32_t start = stream.start + static_cast<uint32_t>(first / 2) * stream.stride;
  uint32_t steps[kWords];
  for (uint32_t k = 0; k < kWords; ++k) steps[k] = k * stream.stride;
  for_each_block(v, n, [&](const float* block, int64_t at) {
    const uint32_t base = start + static_cast<uint32_t>(at / 2) * stream.stride;
    uint32_t words[kWords];
    for (int64_t k = 0; k < kWords; ++k) words[k] = mix32(base + steps[k]);
    uint16_t halves[kBlock];
    std::memcpy(halves, words, sizeof(words));
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = stochastic_code(block[i], grid, dither_from_half(halves[i]));
  });
}

// How decoding and error feedback use the values: f(i, value of code i).
template <typename F>
MQ_INLINE void for_each_value(int bits, const uint8_t* codes, int64_t n, float scale, const F& f) {
  if (bits == 1) {
    for (int64_t i = 0; i < n; ++i) f(i, sign_value(codes[i], scale));
  } else {
    const int32_t s = level_count(bits);
    const Reciprocal r = reciprocal(s);
    for (int64_t i = 0; i < n; ++i) f(i, level_value(codes[i], s, r, scale));
  }
}

MQ_CLONES void write_values(int bits, const uint8_t* __restrict codes, int64_t n, float scale, float* __restrict out) {
  for_each_value(bits, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE { out[i] = value; });
}

MQ_CLONES void add_values(int bits, const uint8_t* __restrict codes, int64_t n, float scale, float* __restrict out) {
  for_each_value(bits, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE { out[i] += value; });
}

MQ_CLONES void divide(float* v, int64_t n, float divisor) {
  for (int64_t i = 0; i < n; ++i) v[i] /= divisor;
}

MQ_CLONES void compensate(const float* x, const float* residual, int64_t n, double alpha, float* __restrict v) {
  if (alpha == 1) {  // a sum rounded to double and then to float is the float sum: 53 >= 2 * 24 + 2
    for (int64_t i = 0; i < n; ++i) v[i] = x[i] + residual[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) v[i] = compensated(x[i], residual[i], alpha);
}

MQ_CLONES void keep_errors(int bits, const float* __restrict x, const uint8_t* __restrict codes, int64_t n, float scale,
                           double beta, float* __restrict residual) {
  for_each_value(bits, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE {
    residual[i] = next_residual(x[i], residual[i], value, beta);
  });
}

float bucket_scale(const float* v, int64_t n, int bits, bool stochastic) {
  const uint32_t max_bits = max_abs_bits(v, n);
  if (max_bits >= kInfinityBits) return float_from_bits(kNanBits);
  const float max = float_from_bits(max_bits);
  if (stochastic || bits > 4 || max == 0) return max;
  MagnitudeSums total;
  for (int64_t at = 0; at < n; at += kChunk) {
    const MagnitudeSums sums = magnitude_sums(v + at, std::min(kChunk, n - at), magnitude_grid(max));
    total.sum += sums.sum;
    total.squares += sums.squares;
  }
  return nearest_scale(bits, n, total.sum, total.squares, max);
}

// Codes of elements [first, first + n) of one bucket, v pointing at the first; up to kBlock - 1 more are overwritten.
void segment_codes(const EncodeArguments& a, const float* v, int64_t n, float scale, int64_t bucket, int64_t first,
                   uint8_t* codes) {
  const int bits = a.layout.bits;
  if (!(scale > 0)) {  // all zero, or not finite: the codes of zero
    std::memset(codes, level_count(bits), n);
  } else if (a.stochastic) {
    const Stream stream = random_stream(a.seed, static_cast<uint64_t>(a.bucket_ids ? a.bucket_ids[bucket] : bucket));
    stochastic_codes(v, n, stochastic_grid(bits, scale), stream, first, codes);
  } else if (bits == 1) {
    sign_codes(v, n, codes);
  } else {
    nearest_codes(v, n, nearest_grid(bits, scale), codes);
  }
}

// What one bucket is encoded from: x as fp32, and v = x, or x + alpha * residual with feedback.
class BucketInput {
 public:
  explicit BucketInput(const EncodeArguments& a) : a_(a) {}

  void load(int64_t begin, int64_t n) {
    if (a_.payloads) {
      x = mean_of_payloads(begin, n);
    } else if (a_.dtype == torch::headeronly::ScalarType::Float) {
      x = static_cast<const float*>(a_.x) + begin;
    } else {
      load_floats(a_.x, a_.dtype, begin, n, room(loaded_, n));
      x = loaded_.data();
    }
    v = x;
    if (!a_.residual) return;
    compensate(x, a_.residual + begin, n, a_.alpha, room(compensated_, n));
    v = compensated_.data();
  }

  const float* x = nullptr;
  const float* v = nullptr;

 private:
  static float* room(std::vector<float>& buffer, int64_t n) {
    buffer.resize(std::max<size_t>(buffer.size(), n));
    return buffer.data();
  }

  // The sums begin where a byte does, up to seven elements early. They start from +0, as a tensor of zeros would.
  const float* mean_of_payloads(int64_t begin, int64_t n) {
    const int64_t early = begin % 8;
    float* sums = room(loaded_, early + n);
    std::fill(sums, sums + early + n, 0.0f);
    for (int64_t k = 0; k < a_.count; ++k) {
      decode_range(a_.payloads + k * a_.layout.payload_bytes(), a_.layout, begin - early, begin + n, true, sums);
    }
    divide(sums, early + n, static_cast<float>(a_.count));
    return sums + early;
  }

  const EncodeArguments& a_;
  std::vector<float> loaded_;
  std::vector<float> compensated_;
};

// Collects codes and packs them chunk by chunk, the first one to the first bits of `out`.
class Packer {
 public:
  Packer(int bits, uint8_t* out) : bits_(bits), out_(out) {}

  // Room for kChunk codes.
  uint8_t* next() { return codes_ + count_; }

  void advance(int64_t n) {
    count_ += n;
    if (count_ < kChunk) return;
    const int64_t whole = count_ / 8 * 8;
    write(whole);
    std::memcpy(codes_, codes_ + whole, 8);
    count_ -= whole;
  }

  void finish() { write(count_); }

 private:
  void write(int64_t n) {
    pack(bits_, codes_, n, out_);
    out_ += n / 8 * bits_;
  }

  const int bits_;
  uint8_t* out_;
  int64_t count_ = 0;
  uint8_t codes_[2 * kChunk + kBlock];
};

void encode_bucket(const EncodeArguments& a, int64_t bucket, BucketInput& input, Packer& packer, uint8_t* payload) {
  const int64_t begin = bucket * a.layout.bucket_size;
  const int64_t size = std::min(a.layout.bucket_size, a.layout.numel - begin);
  input.load(begin, size);
  const float scale = bucket_scale(input.v, size, a.layout.bits, a.stochastic);
  store_scale(payload, bucket, scale);
  for (int64_t at = 0; at < size; at += kChunk) {
    const int64_t n = std::min(kChunk, size - at);
    segment_codes(a, input.v + at, n, scale, bucket, at, packer.next());
    if (a.residual && abs_bits(scale) < kInfinityBits) {  // else nothing of this bucket arrives: keep what was owed
      keep_errors(a.layout.bits, input.x + at, packer.next(), n, scale, a.beta, a.residual + begin + at);
    }
    packer.advance(n);
  }
}

}  // namespace

int64_t buckets_per_unit(const Layout& layout) {
  return 8 / std::gcd(layout.bucket_size, int64_t{8});
}

void encode_units(const EncodeArguments& arguments, int64_t begin, int64_t end, uint8_t* payload) {
  const Layout& layout = arguments.layout;
  const int64_t per_unit = buckets_per_unit(layout);
  const int64_t first = begin * per_unit;
  BucketInput input(arguments);
  Packer packer(layout.bits, payload + layout.scale_bytes() + first * layout.bucket_size / 8 * layout.bits);
  for (int64_t bucket = first; bucket < std::min(end * per_unit, layout.buckets()); ++bucket) {
    encode_bucket(arguments, bucket, input, packer, payload);
  }
  packer.finish();
}

void decode_range(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  const auto values = add ? add_values : write_values;
  uint8_t codes[kChunk];
  int64_t bucket = begin / layout.bucket_size;
  int64_t bucket_end = (bucket + 1) * layout.bucket_size;
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, end);
    unpack(layout.bits, payload + layout.scale_bytes() + at / 8 * layout.bits, chunk_end - at, codes);
    for (int64_t i = at; i < chunk_end;) {
      const int64_t n = std::min(bucket_end, chunk_end) - i;
      values(layout.bits, codes + (i - at), n, load_scale(payload, bucket), out + (i - begin));
      i += n;
      if (i < bucket_end) continue;
      bucket += 1;
      bucket_end += layout.bucket_size;
    }
  }
}

}  // namespace mqgrad
