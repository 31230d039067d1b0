// The rotated codes on raw pointers; Note [Rotation] in rotation.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "rotation.h"

namespace mqgrad {

constexpr int64_t kSeedBytes = 8;
constexpr int64_t kMaxRotationBucket = 65536;

MQ_INLINE void store_seed(uint8_t* payload, uint64_t seed) {
  std::memcpy(payload, &seed, kSeedBytes);
}

MQ_INLINE uint64_t load_seed(const uint8_t* payload) {
  uint64_t seed;
  std::memcpy(&seed, payload, kSeedBytes);
  return seed;
}

struct RotationLayout {
  int64_t numel;
  int bits;
  int64_t bucket_size;  // a power of two, 8 or more

  MQ_INLINE int64_t buckets() const { return numel / bucket_size + (numel % bucket_size != 0); }
  MQ_INLINE int64_t bucket_bytes() const { return bucket_size / 8 * bits; }
  MQ_INLINE int64_t codes_at() const { return kSeedBytes + 4 * buckets(); }
  MQ_INLINE int64_t payload_bytes() const { return codes_at() + buckets() * bucket_bytes(); }
};

struct RotatedArguments {
  const void* x;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  RotationLayout layout;
  bool unbiased;
  uint64_t seed;
  float* residual = nullptr;  // none: no feedback
  double alpha = 0;
  double beta = 0;

  // In place of x: the mean of `count` payloads of the same layout, with a gap of some bytes (on CUDA none) between them.
  const uint8_t* payloads = nullptr;
  int64_t count = 0;
  int64_t gap = 0;

  int64_t x_begin = 0;  // the element that x points at; what is encoded of x lies from there on (on CUDA 0)
};

// Scales and codes of buckets [begin, end); the seed at the front of the payload is the caller's to write.
void encode_rotated_buckets(const RotatedArguments& arguments, int64_t begin, int64_t end, uint8_t* payload);

// `out` is that of bucket `begin`; `add` adds to it instead of overwriting it.
void decode_rotated_buckets(const uint8_t* payload, const RotationLayout& layout, int64_t begin, int64_t end, bool add,
                            float* out);

// The same of the mean of `count` payloads, each `stride` bytes behind the one before.
void decode_rotated_means(const uint8_t* payloads, int64_t count, int64_t stride, const RotationLayout& layout,
                          int64_t begin, int64_t end, float* out);

}  // namespace mqgrad
