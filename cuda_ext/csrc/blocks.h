// Passes over the elements of a bucket, block by block.
#pragma once

#include "codes.h"
#include "prefetch.h"

namespace mqgrad {

// The largest |v| of blocks.
class Maximum {
 public:
  MQ_INLINE void include(const float* block) {
    prefetch_after(block, 4 * kBlock);
    for (int64_t at = 0; at < kBlock; at += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const auto bits = static_cast<int32_t>(abs_bits(block[at + i]));
        lanes_[i] = lanes_[i] < bits ? bits : lanes_[i];
      }
    }
  }

  MQ_INLINE uint32_t bits() const {
    int32_t max = 0;
    for (int64_t i = 0; i < kLanes; ++i) max = max < lanes_[i] ? lanes_[i] : max;
    return static_cast<uint32_t>(max);
  }

 private:
  static constexpr int64_t kLanes = 16;  // few, so that loops that do more keep them in registers
  int32_t lanes_[kLanes] = {};           // compared as signed: AVX2 has no other comparison
};

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

// The same, and max_abs_bits of as many elements from `next` on, whole blocks, or 0 where that is nullptr.
template <typename F>
MQ_INLINE uint32_t for_each_block_with_next(const float* v, const float* next, int64_t n, const F& f) {
  if (!next) {
    for_each_block(v, n, f);
    return 0;
  }
  Maximum maximum;
  for (int64_t at = 0; at < n; at += kBlock) {
    maximum.include(next + at);
    f(v + at, at);
  }
  return maximum.bits();
}

}  // namespace mqgrad
