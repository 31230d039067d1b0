// Encodes on the CPU: bucket by bucket, in chunks that stay in the L1 cache.
#include <algorithm>
#include <numeric>
#include <vector>

#include "codes.h"
#include "kernels.h"
#include "payload.h"
#include "prefetch.h"
#include "reduce.h"

namespace mqgrad {
namespace {

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
// Returns max_abs_bits of n elements of the next bucket, if there is a `next`.
uint32_t segment_codes(const EncodeArguments& a, const float* v, const float* next, int64_t n, float scale,
                       int64_t bucket, int64_t first, uint8_t* codes) {
  const int bits = a.layout.bits;
  float lifted[kChunk];
  if (!(scale > 0)) {  // all zero, or not finite: the codes of zero
    std::memset(codes, level_count(bits), n);
    return next ? max_abs_bits(next, n) : 0;
  }
  if (a.stochastic) {
    const Stream stream = random_stream(a.seed, static_cast<uint64_t>(a.bucket_ids ? a.bucket_ids[bucket] : bucket));
    const Grid grid = stochastic_grid(bits, scale);
    return stochastic_codes(lift(v, n, grid, lifted), next, n, grid, stream, first, codes);
  }
  if (bits == 1) return sign_codes(v, next, n, codes);
  const Grid grid = nearest_grid(bits, scale);
  return nearest_codes(lift(v, n, grid, lifted), next, n, grid, codes);
}

// Codes of such a segment, and what it keeps, in one pass where there is one for that. In a bucket whose scale is not
// finite nothing arrives: what was owed stays.
void segment_codes_with_feedback(const EncodeArguments& a, const float* x, const float* v, int64_t n, float scale,
                                 int64_t bucket, int64_t first, float* residual, uint8_t* codes) {
  const int bits = a.layout.bits;
  const float beta = static_cast<float>(a.beta);
  if (!a.stochastic && bits > 1 && scale > 0) {
    float lifted[kChunk];
    const Grid grid = nearest_grid(bits, scale);
    nearest_codes_with_feedback(lift(v, n, grid, lifted), x, n, grid, bits, scale, beta, residual, codes);
    return;
  }
  segment_codes(a, v, nullptr, n, scale, bucket, first, codes);
  if (is_finite(scale)) keep_errors(bits, x, codes, n, scale, beta, residual);
}

// What one bucket is encoded from: x as fp32, and v = x, or x + alpha * residual with feedback.
class BucketInput {
 public:
  // For buckets up to `end`.
  BucketInput(const EncodeArguments& a, int64_t end)
      : a_(a), end_(std::min(a.layout.numel, end * a.layout.bucket_size)), reads_ahead_(is_floats(a) && !a.residual && a.layout.bucket_size % kBlock == 0) {}

  void load(int64_t begin, int64_t n) {
    if (a_.payloads) {
      x = mean_of_payloads(begin, n);
    } else if (is_floats(a_)) {
      x = static_cast<const float*>(a_.x) + (begin - a_.x_begin);
    } else {
      load_floats(a_.x, a_.dtype, begin - a_.x_begin, n, room(loaded_, n));
      x = loaded_.data();
    }
    if (a_.residual) {
      max_bits = compensate(x, a_.residual + begin, n, a_.alpha, room(compensated_, n));
      v = compensated_.data();
    } else {
      max_bits = x == next ? next_max_bits : max_abs_bits(x, n);
      v = x;
    }
    const bool next_is_whole = end_ - begin - n >= a_.layout.bucket_size;
    next = reads_ahead_ && next_is_whole ? x + n : nullptr;
    next_max_bits = 0;
  }

  // With feedback, whose passes read what is in the cache, but for the first.
  NextBucket behind(int64_t begin, int64_t n) const {
    if (!a_.residual) return {};
    return {is_floats(a_) ? x : nullptr, a_.residual + begin, n, 3};
  }

  const float* x = nullptr;
  const float* v = nullptr;
  uint32_t max_bits = 0;  // of |v|

  // The bucket behind this one, if its maximum is found while this one is coded, and that of what has been seen of it.
  const float* next = nullptr;
  uint32_t next_max_bits = 0;

 private:
  static bool is_floats(const EncodeArguments& a) {
    return !a.payloads && a.dtype == torch::headeronly::ScalarType::Float;
  }

  static float* room(std::vector<float>& buffer, int64_t n) {
    buffer.resize(std::max<size_t>(buffer.size(), n));
    return buffer.data();
  }

  // The sums begin where a byte does, up to seven elements early.
  const float* mean_of_payloads(int64_t begin, int64_t n) {
    const int64_t early = begin % 8;
    float* sums = room(loaded_, early + n);
    mean_of(a_.count, early + n, sums, [&](int64_t k) {
      const uint8_t* payload = a_.payloads + k * (a_.layout.payload_bytes() + a_.gap);
      decode_range(payload, a_.layout, begin - early, begin + n, true, sums);
    });
    return sums + early;
  }

  const EncodeArguments& a_;
  const int64_t end_;  // element
  const bool reads_ahead_;
  std::vector<float> loaded_;
  std::vector<float> compensated_;
};

// Collects codes and packs them chunk by chunk, the first one to the first bits of `out`. Whole blocks of 8-bit codes
// need no packing: they are written where they belong.
class Packer {
 public:
  Packer(int bits, uint8_t* out) : bits_(bits), out_(out) {}

  // Room for n codes, up to kChunk, and for the rest of their block.
  uint8_t* next(int64_t n) {
    prefetch_output(out_ + count_ / 8 * bits_, n / 8 * bits_);
    in_place_ = bits_ == 8 && count_ == 0 && n % kBlock == 0;
    return in_place_ ? out_ : codes_ + count_;
  }

  // Past the n codes.
  void advance(int64_t n) {
    if (in_place_) {
      out_ += n;
      return;
    }
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
  bool in_place_ = false;
  uint8_t codes_[2 * kChunk + kBlock];
};

void encode_bucket(const EncodeArguments& a, int64_t bucket, BucketInput& input, Packer& packer, uint8_t* payload) {
  const int64_t begin = bucket * a.layout.bucket_size;
  const int64_t size = std::min(a.layout.bucket_size, a.layout.numel - begin);
  input.load(begin, size);
  NextBucket behind = input.behind(begin, size);
  behind.ask();
  const float scale = bucket_scale(input.v, input.max_bits, size, a.layout.bits, a.stochastic);
  store_scale(payload, bucket, scale);
  behind.ask();
  for (int64_t at = 0; at < size; at += kChunk) {
    const int64_t n = std::min(kChunk, size - at);
    uint8_t* codes = packer.next(n);
    const float* v = input.v + at;
    if (a.residual) {
      segment_codes_with_feedback(a, input.x + at, v, n, scale, bucket, at, a.residual + begin + at, codes);
      behind.ask();
    } else {
      const uint32_t next_max = segment_codes(a, v, input.next ? input.next + at : nullptr, n, scale, bucket, at, codes);
      input.next_max_bits = std::max(input.next_max_bits, next_max);
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
  const int64_t first = begin * per_unit, last = std::min(end * per_unit, layout.buckets());
  BucketInput input(arguments, last);
  Packer packer(layout.bits, payload + layout.scale_bytes() + first * layout.bucket_size / 8 * layout.bits);
  for (int64_t bucket = first; bucket < last; ++bucket) {
    encode_bucket(arguments, bucket, input, packer, payload);
  }
  packer.finish();
}

}  // namespace mqgrad
