// bfloat16 on the CPU: conversion, error feedback and the mean of payloads, each in one pass.
#include <algorithm>

#include "bfloat16.h"
#include "clones.h"
#include "feedback.h"
#include "kernels.h"
#include "reduce.h"

namespace mqgrad {
namespace {

// A payload may begin at any byte.
MQ_INLINE void store(uint8_t* payload, int64_t i, uint16_t bits) {
  std::memcpy(payload + 2 * i, &bits, 2);
}

MQ_INLINE float load(const uint8_t* payload, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, payload + 2 * i, 2);
  return bfloat16_value(bits);
}

MQ_CLONES void convert(const float* __restrict x, int64_t n, uint8_t* __restrict payload) {
  for (int64_t i = 0; i < n; ++i) store(payload, i, bfloat16_bits(x[i]));
}

MQ_CLONES void convert_with_feedback(const float* __restrict x, float* __restrict residual, int64_t n, float alpha,
                                     float beta, uint8_t* __restrict payload) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = bfloat16_bits(compensated(x[i], residual[i], alpha));
    residual[i] = next_residual(x[i], residual[i], bfloat16_value(bits), beta);
    store(payload, i, bits);
  }
}

MQ_CLONES void write_values(const uint8_t* __restrict payload, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = load(payload, i);
}

MQ_CLONES void add_values(const uint8_t* __restrict payload, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] += load(payload, i);
}

void mean_of_payloads(const uint8_t* payloads, int64_t count, int64_t stride, int64_t begin, int64_t n, float* mean) {
  mean_of(count, n, mean, [&](int64_t k) { add_values(payloads + k * stride + 2 * begin, n, mean); });
}

// Elements [begin, begin + n) as fp32, in `room` where they are not that already.
const float* input_floats(const Bfloat16Arguments& a, int64_t begin, int64_t n, float* room) {
  if (!a.payloads) return as_floats(a.x, a.dtype, begin - a.x_begin, n, room);
  mean_of_payloads(a.payloads, a.count, 2 * a.numel + a.gap, begin, n, room);
  return room;
}

}  // namespace

void encode_bfloat16_range(const Bfloat16Arguments& a, int64_t begin, int64_t end, uint8_t* payload) {
  float room[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t n = std::min(kChunk, end - at);
    const float* x = input_floats(a, at, n, room);
    if (a.residual) {
      convert_with_feedback(x, a.residual + at, n, a.alpha, a.beta, payload + 2 * at);
    } else {
      convert(x, n, payload + 2 * at);
    }
  }
}

void decode_bfloat16_range(const uint8_t* payload, int64_t begin, int64_t end, bool add, float* out) {
  const auto values = add ? add_values : write_values;
  values(payload + 2 * begin, end - begin, out);
}

void decode_bfloat16_means(const uint8_t* payloads, int64_t count, int64_t stride, int64_t begin, int64_t end, float* out) {
  for (int64_t at = begin; at < end; at += kChunk) {
    mean_of_payloads(payloads, count, stride, at, std::min(kChunk, end - at), out + (at - begin));
  }
}

}  // namespace mqgrad
