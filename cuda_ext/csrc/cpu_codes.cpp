// From the elements of a scale bucket to their codes, and to the new residual.
#include "codes.h"

#include "clones.h"
#include "code_values.h"
#include "feedback.h"
#include "prefetch.h"

namespace mqgrad {
namespace {

// The largest |v| of blocks.
class Maximum {
 public:
  MQ_INLINE void include(const float* block) {
    prefetch_after(block, 4 * kBlock);
    for (int64_t i = 0; i < kBlock; ++i) {
      const auto bits = static_cast<int32_t>(abs_bits(block[i]));
      lanes_[i] = lanes_[i] < bits ? bits : lanes_[i];
    }
  }

  MQ_INLINE uint32_t bits() const {
    int32_t max = 0;
    for (int64_t i = 0; i < kBlock; ++i) max = max < lanes_[i] ? lanes_[i] : max;
    return static_cast<uint32_t>(max);
  }

 private:
  int32_t lanes_[kBlock] = {};  // compared as signed: AVX2 has no other comparison
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

}  // namespace

MQ_CLONES uint32_t max_abs_bits(const float* v, int64_t n) {
  Maximum maximum;
  for_each_block(v, n, [&](const float* block, int64_t) MQ_ALWAYS_INLINE { maximum.include(block); });
  return maximum.bits();
}

MQ_CLONES MagnitudeSums magnitude_sums(const float* lifted, int64_t n, const Grid& grid) {
  uint32_t sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t m = magnitude(lifted[i], grid);
    sum += m;
    squares += m * m;
  }
  return {sum, squares};
}

MQ_CLONES uint32_t nearest_codes(const float* lifted, const float* next, int64_t n, const Grid& grid,
                                 uint8_t* __restrict codes) {
  return for_each_block_with_next(lifted, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = nearest_code(block[i], grid);
  });
}

MQ_CLONES uint32_t sign_codes(const float* v, const float* next, int64_t n, uint8_t* __restrict codes) {
  return for_each_block_with_next(v, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = sign_code(block[i]);
  });
}

MQ_CLONES uint32_t stochastic_codes(const float* lifted, const float* next, int64_t n, const Grid& grid, Stream stream,
                                    int64_t first, uint8_t* __restrict codes) {
  constexpr int64_t kWords = kBlock / 2;
  const uint32_t start = stream.start + static_cast<uint32_t>(first / 2) * stream.stride;
  uint32_t steps[kWords];
  for (uint32_t k = 0; k < kWords; ++k) steps[k] = k * stream.stride;
  return for_each_block_with_next(lifted, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    const uint32_t base = start + static_cast<uint32_t>(at / 2) * stream.stride;
    uint32_t words[kWords];
    for (int64_t k = 0; k < kWords; ++k) words[k] = mix32(base + steps[k]);
    uint16_t halves[kBlock];
    std::memcpy(halves, words, sizeof(words));
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = stochastic_code(block[i], grid, dither_from_half(halves[i]));
  });
}

// Prefetching x and the residual, 1 to 16 KiB ahead, made it slower.
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

}  // namespace mqgrad
