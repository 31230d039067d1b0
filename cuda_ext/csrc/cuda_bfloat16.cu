// bfloat16 on CUDA: conversion, error feedback and the mean of payloads, each in one pass. A warp has the elements of
// Note [Piece] in cuda_piece.h.
#include "cuda_bfloat16.h"
#include "cuda_piece.h"
#include "feedback.h"

namespace mqgrad::cuda {
namespace {

__device__ __forceinline__ int64_t first_of_warp() {
  return (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kPiece;
}

// A lane's codes of the piece whose bytes begin at `payload`, aligned or not; zeros beyond `length`. Of a whole piece
// nothing is converted before all of it is asked for.
__device__ __forceinline__ void load_codes(const uint8_t* payload, int length, uint16_t* codes) {
  if (length == kPiece && reinterpret_cast<uintptr_t>(payload) % sizeof(uint2) == 0) {
    uint2 quads[kQuads];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quads[q] = reinterpret_cast<const uint2*>(payload)[quad_start(q) / 4];
    std::memcpy(codes, quads, sizeof(quads));
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int at = quad_start(i / 4) + i % 4;
    codes[i] = at < length ? static_cast<uint16_t>(payload[2 * at] | payload[2 * at + 1] << 8) : 0;
  }
}

// `payload` is 8-byte aligned.
__device__ __forceinline__ void store_codes(const uint16_t* codes, int length, uint8_t* payload) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int at = quad_start(q);
    if (at + 4 <= length) {
      uint2 quad;
      std::memcpy(&quad, codes + 4 * q, sizeof(quad));
      reinterpret_cast<uint2*>(payload)[at / 4] = quad;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (at + k < length) reinterpret_cast<uint16_t*>(payload)[at + k] = codes[4 * q + k];
      }
    }
  }
}

// Of `count` payloads of numel elements. Sums start from +0, as a tensor of zeros would.
__device__ __forceinline__ void load_mean(const uint8_t* payloads, int64_t count, int64_t numel, int64_t first, int length,
                                          float* mean) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean[i] = 0;
#pragma unroll 1
  for (int64_t p = 0; p < count; ++p) {
    uint16_t codes[kPerLane];
    load_codes(payloads + 2 * (p * numel + first), length, codes);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) mean[i] += bfloat16_value(codes[i]);
  }
  divide_piece(mean, count);
}

// REDUCE: of the mean of payloads.
template <bool FEEDBACK, bool REDUCE>
__global__ void __launch_bounds__(kWarps* kLanes) encode_bfloat16_pieces(Bfloat16Arguments a, uint8_t* payload) {
  const int64_t first = first_of_warp();
  const int length = clamp_length(a.numel - first);
  if (length == 0) return;

  float x[kPerLane];
  uint16_t codes[kPerLane];
  if constexpr (REDUCE) {
    load_mean(a.payloads, a.count, a.numel, first, length, x);
  } else {
    load_piece(a.x, a.dtype, first, length, x);
  }
  if constexpr (FEEDBACK) {
    float residual[kPerLane];
    load_piece(a.residual + first, length, residual);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      codes[i] = bfloat16_bits(compensated(x[i], residual[i], a.alpha));
      residual[i] = next_residual(x[i], residual[i], bfloat16_value(codes[i]), a.beta);
    }
    store_piece(residual, length, a.residual + first);
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) codes[i] = bfloat16_bits(x[i]);
  }
  store_codes(codes, length, payload + 2 * first);
}

template <bool ADD>
__global__ void __launch_bounds__(kWarps* kLanes) decode_bfloat16_pieces(const uint8_t* payload, int64_t numel,
                                                                         float* out) {
  const int64_t first = first_of_warp();
  const int length = clamp_length(numel - first);
  if (length == 0) return;

  float values[kPerLane];
  uint16_t codes[kPerLane];
  if constexpr (ADD) load_piece(out + first, length, values);
  load_codes(payload + 2 * first, length, codes);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const float value = bfloat16_value(codes[i]);
    values[i] = ADD ? values[i] + value : value;
  }
  store_piece(values, length, out + first);
}

__global__ void __launch_bounds__(kWarps* kLanes) decode_bfloat16_mean_pieces(const uint8_t* payloads, int64_t count,
                                                                              int64_t numel, float* out) {
  const int64_t first = first_of_warp();
  const int length = clamp_length(numel - first);
  if (length == 0) return;
  float mean[kPerLane];
  load_mean(payloads, count, numel, first, length, mean);
  store_piece(mean, length, out + first);
}

}  // namespace

cudaError_t encode_bfloat16(const Bfloat16Arguments& a, uint8_t* payload, cudaStream_t stream) {
  if (a.numel == 0) return cudaSuccess;
  const auto of_tensor = a.residual ? encode_bfloat16_pieces<true, false> : encode_bfloat16_pieces<false, false>;
  const auto of_payloads = a.residual ? encode_bfloat16_pieces<true, true> : encode_bfloat16_pieces<false, true>;
  return launch(stream, blocks_for(a.numel, kWarps * kPiece), dim3(kLanes, kWarps),
                a.payloads ? of_payloads : of_tensor, a, payload);
}

cudaError_t decode_bfloat16(const uint8_t* payload, int64_t numel, bool add, float* out, cudaStream_t stream) {
  if (numel == 0) return cudaSuccess;
  const auto kernel = add ? decode_bfloat16_pieces<true> : decode_bfloat16_pieces<false>;
  return launch(stream, blocks_for(numel, kWarps * kPiece), dim3(kLanes, kWarps), kernel, payload, numel, out);
}

cudaError_t decode_bfloat16_mean(const uint8_t* payloads, int64_t count, int64_t numel, float* out,
                                 cudaStream_t stream) {
  if (numel == 0) return cudaSuccess;
  return launch(stream, blocks_for(numel, kWarps * kPiece), dim3(kLanes, kWarps), decode_bfloat16_mean_pieces, payloads,
                count, numel, out);
}

}  // namespace mqgrad::cuda
