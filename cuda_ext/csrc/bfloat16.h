// bfloat16 as a code of fp32: the mathematics of one element, and the kernels on raw pointers.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

#include "float_bits.h"

namespace mqgrad {

// Note [bfloat16]
//
// A payload at width 16: the upper half of the fp32 value, rounded to nearest, halves to even; little-endian, no scales.
// Every NaN becomes the one below, where torch leaves another one where it converts vectors.
constexpr uint16_t kBfloat16Nan = 0x7fc0;

MQ_INLINE uint16_t bfloat16_bits(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>(abs_bits(x) > kInfinityBits ? kBfloat16Nan : rounded);
}

MQ_INLINE float bfloat16_value(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

struct Bfloat16Arguments {
  const void* x;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  int64_t numel;
  float* residual;  // or nullptr: no feedback
  double alpha;
  double beta;

  // In place of x: the mean of `count` payloads of numel elements, with a gap of some bytes (on CUDA none) between them.
  const uint8_t* payloads = nullptr;
  int64_t count = 0;
  int64_t gap = 0;

  int64_t x_begin = 0;  // the element that x points at; what is encoded of x lies from there on (on CUDA 0)
};

// Elements [begin, end), whose bytes begin at payload[2 * begin]. A caller may split the range in any way.
void encode_bfloat16_range(const Bfloat16Arguments& arguments, int64_t begin, int64_t end, uint8_t* payload);

// Elements [begin, end) to out[0] and on. `add` adds to `out` instead of overwriting it.
void decode_bfloat16_range(const uint8_t* payload, int64_t begin, int64_t end, bool add, float* out);

// The same of the mean of `count` payloads, each `stride` bytes behind the one before.
void decode_bfloat16_means(const uint8_t* payloads, int64_t count, int64_t stride, int64_t begin, int64_t end, float* out);

}  // namespace mqgrad
