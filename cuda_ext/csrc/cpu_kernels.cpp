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
constexpr int64_t kCacheLine = 16;   // elements

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

MQ_CLONES uint32_t max_abs_bits(const float* v, int64_t n) {
  int32_t max[kBlock] = {};  // compared as signed: AVX2 has no other comparison
  for_each_block(v, n, [&](const float* block, int64_t) {
    for (int64_t i = 0; i < kBlock; i += kCacheLine) __builtin_prefetch(block + i + kPrefetch);
    for (int64_t i = 0; i < kBlock; ++i) {
      const auto bits = static_cast<int32_t>(abs_bits(block[i]));
      max[i] = max[i] < bits ? bits : max[i];
    }
  });
  int32_t result = 0;
  for (int64_t i = 0; i < kBlock; ++i) result = result < max[i] ? max[i] : result;
  return static_cast<uint32_t>(result);
}

struct MagnitudeSums {
  uint64_t sum = 0;
  uint64_t squares = 0;
};

// Of up to kMagnitudes elements.
MQ_CLONES MagnitudeSums magnitude_sums(const float* lifted, int64_t n, const Grid& grid) {
  uint32_t sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t m = magnitude(lifted[i], grid);
    sum += m;
    squares += m * m;
  }
  return {sum, squares};
}

// Grids go by reference: the fields of one that was just computed, passed in one register, would be stored apart and
// loaded together, which stalls.

// The three below write whole blocks of codes, whatever n is.

MQ_CLONES void nearest_codes(const float* v, int64_t n, const Grid& grid, uint8_t* __restrict codes) {
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
MQ_CLONES void stochastic_codes(const float* v, int64_t n, const Grid& grid, Stream stream, int64_t first,
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

// Returns max_abs_bits of v, which saves a pass. Prefetching x and the residual, 1 to 16 KiB ahead, made it slower.
MQ_CLONES uint32_t compensate(const float* x, const float* residual, int64_t n, float alpha, float* __restrict v) {
  int32_t max = 0;
  for (int64_t i = 0; i < n; ++i) {
    v[i] = compensated(x[i], residual[i], alpha);
    const auto bits = static_cast<int32_t>(abs_bits(v[i]));
    max = max < bits ? bits : max;
  }
  return static_cast<uint32_t>(max);
}

MQ_CLONES void keep_errors(int bits, const float* __restrict x, const uint8_t* __restrict codes, int64_t n, float scale,
                           float beta, float* __restrict residual) {
  for_each_value(bits, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE {
    residual[i] = next_residual(x[i], residual[i], value, beta);
  });
}

// The elements times the grid's lift, in `room` if that is not 1.
const float* lift(const float* v, int64_t n, const Grid& grid, float* room) {
  if (grid.lift == 1) return v;
  for (int64_t i = 0; i < n; ++i) room[i] = v[i] * grid.lift;
  return room;
}

float bucket_scale(const float* v, uint32_t max_bits, int64_t n, int bits, bool stochastic) {
  if (max_bits >= kInfinityBits) return float_from_bits(kNanBits);
  const float max = float_from_bits(max_bits);
  if (stochastic || bits > 4 || max == 0) return max;
  const Grid grid = magnitude_grid(max);
  MagnitudeSums total;
  float lifted[kMagnitudes];
  for (int64_t at = 0; at < n; at += kMagnitudes) {
    const int64_t count = std::min(kMagnitudes, n - at);
    const MagnitudeSums sums = magnitude_sums(lift(v + at, count, grid, lifted), count, grid);
    total.sum += sums.sum;
    total.squares += sums.squares;
  }
  return nearest_scale(bits, n, total.sum, total.squares, max);
}

// Codes of elements [first, first + n) of one bucket, v pointing at the first; up to kBlock - 1 more are overwritten.
void segment_codes(const EncodeArguments& a, const float* v, int64_t n, float scale, int64_t bucket, int64_t first,
                   uint8_t* codes) {
  const int bits = a.layout.bits;
  float lifted[kChunk];
  if (!(scale > 0)) {  // all zero, or not finite: the codes of zero
    std::memset(codes, level_count(bits), n);
  } else if (a.stochastic) {
    const Stream stream = random_stream(a.seed, static_cast<uint64_t>(a.bucket_ids ? a.bucket_ids[bucket] : bucket));
    const Grid grid = stochastic_grid(bits, scale);
    stochastic_codes(lift(v, n, grid, lifted), n, grid, stream, first, codes);
  } else if (bits == 1) {
    sign_codes(v, n, codes);
  } else {
    const Grid grid = nearest_grid(bits, scale);
    nearest_codes(lift(v, n, grid, lifted), n, grid, codes);
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
    if (a_.residual) {
      max_bits = compensate(x, a_.residual + begin, n, a_.alpha, room(compensated_, n));
      v = compensated_.data();
    } else {
      max_bits = max_abs_bits(x, n);
      v = x;
    }
  }

  const float* x = nullptr;
  const float* v = nullptr;
  uint32_t max_bits = 0;  // of |v|

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
  const float scale = bucket_scale(input.v, input.max_bits, size, a.layout.bits, a.stochastic);
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
