// The rotated codes on raw pointers; Note [Rotation] in rotation.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "rotation.h"

namespace mqgrad {

constexpr int64_t kSeedBytes = 8;
constexpr int64_t kMaxRotationBucket = 65536;

struct RotationLayout {
  int64_t numel;
  int bits;
  int64_t bucket_size;  // a power of two, 8 or more

  MQ_INLINE int64_t buckets() const { return numel / bucket_size + (numel % bucket_size != 0); }
  MQ_INLINE int64_t bucket_bytes() const { return bucket_size / 8 * bits; }
  MQ_INLINE int64_t codes_at() const { return kSeedBytes + 4 * buckets(); }
  MQ_INLINE int64_t payload_bytes() const { return codes_at() + buckets() * bucket_bytes(); }
};

// Scales and codes of buckets [begin, end); the seed at the front of the payload is the caller's to write.
void encode_rotated_buckets(const void* x, torch::headeronly::ScalarType dtype, const RotationLayout& layout,
                            bool unbiased, uint64_t seed, int64_t begin, int64_t end, uint8_t* payload);

// `add` adds to `out`, which is that of bucket 0, instead of overwriting it.
void decode_rotated_buckets(const uint8_t* payload, const RotationLayout& layout, int64_t begin, int64_t end, bool add,
                            float* out);

}  // namespace mqgrad
