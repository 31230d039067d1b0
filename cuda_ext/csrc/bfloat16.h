// bfloat16 as a code of fp32, on raw pointers. Note [bfloat16] in quantize_math.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace mqgrad {

struct Bfloat16Arguments {
  const void* x;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  int64_t numel;
  float* residual;  // or nullptr: no feedback
  double alpha;
  double beta;

  // In place of x: the mean of `count` payloads of numel elements, one behind the other.
  const uint8_t* payloads = nullptr;
  int64_t count = 0;
};

// Elements [begin, end), whose bytes begin at payload[2 * begin]. A caller may split the range in any way.
void encode_bfloat16_range(const Bfloat16Arguments& arguments, int64_t begin, int64_t end, uint8_t* payload);

// Elements [begin, end) to out[begin] and on. `add` adds to `out` instead of overwriting it.
void decode_bfloat16_range(const uint8_t* payload, int64_t begin, int64_t end, bool add, float* out);

}  // namespace mqgrad
