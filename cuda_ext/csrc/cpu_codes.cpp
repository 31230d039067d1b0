// From the elements of a scale bucket to their codes, and to the new residual.
#include "codes.h"

#include "clones.h"
#include "code_values.h"
#include "feedback.h"

namespace mqgrad {
namespace {

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

}  // namespace

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

MQ_CLONES MagnitudeSums magnitude_sums(const float* lifted, int64_t n, const Grid& grid) {
  uint32_t sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t m = magnitude(lifted[i], grid);
    sum += m;
    squares += m * m;
  }
  return {sum, squares};
}

MQ_CLONES void nearest_codes(const float* lifted, int64_t n, const Grid& grid, uint8_t* __restrict codes) {
  for_each_block(lifted, n, [&](const float* block, int64_t at) {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = nearest_code(block[i], grid);
  });
}

MQ_CLONES void sign_codes(const float* v, int64_t n, uint8_t* __restrict codes) {
  for_each_block(v, n, [&](const float* block, int64_t at) {
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = sign_code(block[i]);
  });
}

MQ_CLONES void stochastic_codes(const float* lifted, int64_t n, const Grid& grid, Stream stream, int64_t first,
                                uint8_t* __restrict codes) {
  constexpr int64_t kWords = kBlock / 2;
  const uint32_t start = stream.start + static_cast<uint32_t>(first / 2) * stream.stride;
  uint32_t steps[kWords];
  for (uint32_t k = 0; k < kWords; ++k) steps[k] = k * stream.stride;
  for_each_block(lifted, n, [&](const float* block, int64_t at) {
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
