// Encode and decode rotated buckets on the CPU: one at a time, from the input to the new residual in the cache.
#include <algorithm>
#include <vector>

#include "cache_aligned.h"
#include "clones.h"
#include "feedback.h"
#include "hadamard.h"
#include "kernels.h"
#include "payload.h"
#include "prefetch.h"
#include "reduce.h"
#include "rotation_codes.h"
#include "rotation_kernels.h"

namespace mqgrad {
namespace {

MQ_CLONES void apply(const float* x, const float* __restrict signs, int64_t n, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) v[i] = x[i] * signs[i];
}

MQ_CLONES void apply_compensated(const float* x, const float* residual, float alpha, const float* __restrict signs,
                                 int64_t n, float* __restrict v) {
  for (int64_t i = 0; i < n; ++i) v[i] = compensated(x[i], residual[i], alpha) * signs[i];
}

// Codes of one bucket, rotated back step by step, but for signs and scale.
class CodesBack {
 public:
  CodesBack(int bits, int64_t n)
      : bits_(bits), n_(n), as_integers_(fits_16_bits(bits, n)), words_(n), integers_(as_integers_ ? n : 0),
        floats_(as_integers_ ? 0 : n) {}

  void look_up(const uint8_t* codes) { look_up_codewords(bits_, codes, n_, words_.data()); }

  void transform() {
    as_integers_ ? transform_codewords_back(words_.data(), n_, integers_.data())
                 : transform_codewords_back(words_.data(), n_, floats_.data());
  }

  // Calls f(i, element) for the first n elements.
  template <typename F>
  MQ_INLINE void for_each(int64_t n, const F& f) const {
    as_integers_ ? for_each_of(integers_.data(), n, f) : for_each_of(floats_.data(), n, f);
  }

 private:
  template <typename T, typename F>
  static MQ_INLINE void for_each_of(const T* __restrict elements, int64_t n, const F& f) {
    for (int64_t i = 0; i < n; ++i) f(i, static_cast<float>(elements[i]));
  }

  const int bits_;
  const int64_t n_;
  const bool as_integers_;
  CacheAligned<int16_t> words_, integers_;
  CacheAligned<float> floats_;
};

MQ_CLONES void write_values(const CodesBack& back, float scale, const float* __restrict signs, int64_t n,
                            float* __restrict out) {
  back.for_each(n, [=](int64_t i, float y) MQ_ALWAYS_INLINE { out[i] = y * scale * signs[i]; });
}

MQ_CLONES void add_values(const CodesBack& back, float scale, const float* __restrict signs, int64_t n,
                          float* __restrict out) {
  back.for_each(n, [=](int64_t i, float y) MQ_ALWAYS_INLINE { out[i] += y * scale * signs[i]; });
}

MQ_CLONES void keep_errors(const float* __restrict x, const CodesBack& back, float scale, const float* __restrict signs,
                           int64_t n, float beta, float* __restrict residual) {
  back.for_each(n, [=](int64_t i, float y) MQ_ALWAYS_INLINE {
    residual[i] = next_residual(x[i], residual[i], y * scale * signs[i], beta);
  });
}

// random_sign of elements 0 to n - 1, of which 32 share a word.
MQ_CLONES void draw_signs(Stream stream, int64_t n, float* __restrict signs) {
  for (int64_t at = 0; at < n; at += 32) {
    const uint32_t word = random_word(stream, static_cast<uint32_t>(at / 32));
    const int64_t count = n - at < 32 ? n - at : 32;
    for (int64_t i = 0; i < count; ++i) signs[at + i] = sign_of_bit(word >> i);
  }
}

CacheAligned<float> random_signs(uint64_t seed, int64_t n) {
  CacheAligned<float> signs(n);
  draw_signs(random_stream(seed, 0), n, signs.data());
  return signs;
}

// What lies between a payload and values, of one bucket.
struct DecodingRoom {
  DecodingRoom(int bits, int64_t n) : codes(n), back(bits, n) {}
  CacheAligned<uint8_t> codes;
  CodesBack back;
};

// Decodes buckets of one payload.
class Decoder {
 public:
  Decoder(const uint8_t* payload, const RotationLayout& layout, DecodingRoom& room)
      : payload_(payload), layout_(layout), signs_(random_signs(load_seed(payload), layout.bucket_size)),
        room_(room) {}

  // `ahead` is where the caller's next bucket goes.
  void decode(int64_t bucket, bool add, int64_t n, float* out, GradualPrefetch ahead = {}) {
    const int64_t size = layout_.bucket_size;
    unpack(layout_.bits, payload_ + layout_.codes_at() + bucket * layout_.bucket_bytes(), size, room_.codes.data());
    ahead.next_part();
    room_.back.look_up(room_.codes.data());
    ahead.next_part();
    room_.back.transform();
    ahead.next_part();
    const float scale = load_scale(payload_ + kSeedBytes, bucket);
    (add ? add_values : write_values)(room_.back, scale, signs_.data(), n, out);
  }

 private:
  const uint8_t* payload_;
  const RotationLayout layout_;
  const CacheAligned<float> signs_;
  DecodingRoom& room_;
};

// Of payloads, each `stride` bytes behind the one before. Each has signs of its own, so that they are rotated back before
// they are added: with the same seed in all, the sum could be taken of codewords.
class MeanDecoder {
 public:
  MeanDecoder(const uint8_t* payloads, int64_t count, int64_t stride, const RotationLayout& layout)
      : room_(layout.bits, count ? layout.bucket_size : 0) {
    decoders_.reserve(static_cast<size_t>(count));
    for (int64_t k = 0; k < count; ++k) decoders_.emplace_back(payloads + k * stride, layout, room_);
  }

  void decode(int64_t bucket, int64_t n, float* mean) {
    mean_of(static_cast<int64_t>(decoders_.size()), n, mean,
            [&](int64_t k) { decoders_[k].decode(bucket, true, n, mean); });
  }

 private:
  DecodingRoom room_;
  std::vector<Decoder> decoders_;
};

// Encodes buckets of one vector, or of the mean of payloads.
class Encoder {
 public:
  Encoder(const RotatedArguments& a, uint8_t* payload)
      : a_(a), payload_(payload), size_(a.layout.bucket_size), signs_(random_signs(a.seed, size_)), loaded_(size_),
        v_(size_), other_(size_), codes_(size_), back_(a.layout.bits, size_), sums_(size_ / 4),
        mean_(a.payloads, a.count, a.layout.payload_bytes() + a.gap, a.layout) {}

  void encode(int64_t bucket) {
    const int64_t begin = bucket * size_;
    const int64_t n = std::min(size_, a_.layout.numel - begin);
    float* residual = a_.residual ? a_.residual + begin : nullptr;
    const float* x = load(bucket, begin, n);
    const int parts = residual ? 6 : 4;  // as often as it is asked for: in rotate, here, and in keep
    next_ = NextBucket(x == loaded_.data() ? nullptr : x, residual, n, parts);
    rotate(x, residual, n);
    const float scale = choose_codewords(a_.layout.bits, a_.unbiased, other_.data(), size_, codes_.data(), sums_.data());
    next_.ask();
    store_scale(payload_ + kSeedBytes, bucket, scale);
    pack(a_.layout.bits, codes_.data(), size_, payload_ + a_.layout.codes_at() + bucket * a_.layout.bucket_bytes());
    next_.ask();
    if (residual && is_finite(scale)) keep(x, scale, n, residual);
  }

 private:
  const float* load(int64_t bucket, int64_t begin, int64_t n) {
    if (!a_.payloads) return as_floats(a_.x, a_.dtype, begin - a_.x_begin, n, loaded_.data());
    mean_.decode(bucket, n, loaded_.data());
    return loaded_.data();
  }

  // What is coded, rotated, to other_.
  void rotate(const float* x, const float* residual, int64_t n) {
    if (residual) {
      apply_compensated(x, residual, static_cast<float>(a_.alpha), signs_.data(), n, v_.data());
    } else {
      apply(x, signs_.data(), n, v_.data());
    }
    std::fill(v_.begin() + n, v_.end(), 0.0f);
    next_.ask();
    transform(v_.data(), size_, other_.data());
    next_.ask();
  }

  void keep(const float* x, float scale, int64_t n, float* residual) {
    back_.look_up(codes_.data());
    next_.ask();
    back_.transform();
    next_.ask();
    keep_errors(x, back_, scale, signs_.data(), n, static_cast<float>(a_.beta), residual);
  }

  const RotatedArguments& a_;
  uint8_t* const payload_;
  const int64_t size_;
  const CacheAligned<float> signs_;
  CacheAligned<float> loaded_, v_, other_;
  CacheAligned<uint8_t> codes_;
  CodesBack back_;
  CacheAligned<float> sums_;
  NextBucket next_;
  MeanDecoder mean_;
};

}  // namespace

void encode_rotated_buckets(const RotatedArguments& arguments, int64_t begin, int64_t end, uint8_t* payload) {
  Encoder encoder(arguments, payload);
  for (int64_t bucket = begin; bucket < end; ++bucket) encoder.encode(bucket);
}

void decode_rotated_buckets(const uint8_t* payload, const RotationLayout& layout, int64_t begin, int64_t end, bool add,
                            float* out) {
  DecodingRoom room(layout.bits, layout.bucket_size);
  Decoder decoder(payload, layout, room);
  for (int64_t bucket = begin; bucket < end; ++bucket, out += layout.bucket_size) {
    const int64_t n = std::min(layout.bucket_size, layout.numel - bucket * layout.bucket_size);
    decoder.decode(bucket, add, n, out, GradualPrefetch(out, n, 3));
  }
}

void decode_rotated_means(const uint8_t* payloads, int64_t count, int64_t stride, const RotationLayout& layout,
                          int64_t begin, int64_t end, float* out) {
  MeanDecoder decoder(payloads, count, stride, layout);
  for (int64_t bucket = begin; bucket < end; ++bucket, out += layout.bucket_size) {
    decoder.decode(bucket, std::min(layout.bucket_size, layout.numel - bucket * layout.bucket_size), out);
  }
}

}  // namespace mqgrad
