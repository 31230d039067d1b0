// How a warp loads, packs, unpacks and stores its piece of a tensor.
#pragma once

#include "cuda_warp.h"
#include "payload.h"

namespace mqgrad::cuda {

// Note [Piece]
//
// A warp handles a piece of up to 512 consecutive elements, in registers. A lane holds four quads of consecutive
// elements, so that a warp's loads and stores of four floats a lane are contiguous:
//
//     quad 0: lane 0 has elements 0..3, lane 1 has 4..7, ... lane 31 has 124..127
//     quad 1: lane 0 has elements 128..131, ...
//
// Codes are written through shared memory, a byte each, where a lane picks up the groups of eight that the bit stream is
// made of; how they are read is in cuda_lane_codes.h. A piece begins at a multiple of 32 elements from the start of the
// codes, hence at a multiple of four bytes.
constexpr int kQuads = 4;
constexpr int kPerLane = 4 * kQuads;
constexpr int kPiece = kLanes * kPerLane;

union PieceCodes {
  uint8_t bytes[kPiece];
  uint32_t quads[kPiece / 4];
  uint64_t groups[kPiece / 8];
};

// First element of a lane's quad, counted from the piece's.
__device__ __forceinline__ int quad_start(int quad) {
  return (quad * kLanes + static_cast<int>(threadIdx.x)) * 4;
}

__device__ __forceinline__ uint32_t& quad_codes(PieceCodes& codes, int quad) {
  return codes.quads[quad * kLanes + threadIdx.x];
}

__device__ __forceinline__ int clamp_length(int64_t n) {
  return static_cast<int>(n < 0 ? 0 : n < kPiece ? n : kPiece);
}

// What four elements move in: one word of 8 bytes, or one or two of 16.
template <typename T>
using QuadWord = std::conditional_t<sizeof(T) == 2, uint2, uint4>;

template <typename T>
__device__ __forceinline__ bool holds_quads(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % sizeof(QuadWord<T>) == 0;
}

template <typename T>
struct QuadWords {
  static constexpr int kCount = 4 * sizeof(T) / sizeof(QuadWord<T>);
  QuadWord<T> words[kCount];
};

template <typename T>
__device__ __forceinline__ void load_quad(const T* from, QuadWords<T>& to) {
#pragma unroll
  for (int w = 0; w < QuadWords<T>::kCount; ++w) to.words[w] = reinterpret_cast<const QuadWord<T>*>(from)[w];
}

template <typename T>
__device__ __forceinline__ void convert_quad(const QuadWords<T>& quad, float* to) {
  T values[4];
  std::memcpy(values, quad.words, sizeof(values));
#pragma unroll
  for (int k = 0; k < 4; ++k) to[k] = static_cast<float>(values[k]);
}

// A lane's elements of a piece of `length` elements as fp32, zeros beyond it. Of a whole piece nothing is converted before
// all of it is asked for: to convert is to wait.
template <typename T>
__device__ __forceinline__ void load_piece(const T* piece, int length, float* values) {
  const bool quads = holds_quads(piece);
  QuadWords<T> quad[kQuads];
  if (quads && length == kPiece) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) load_quad(piece + quad_start(q), quad[q]);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) convert_quad(quad[q], values + 4 * q);
    return;
  }
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int at = quad_start(q);
    if (quads && at + 4 <= length) {
      load_quad(piece + at, quad[q]);
      convert_quad(quad[q], values + 4 * q);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) values[4 * q + k] = at + k < length ? static_cast<float>(piece[at + k]) : 0.0f;
    }
  }
}

__device__ __forceinline__ void load_piece(const void* x, ScalarType dtype, int64_t first, int length, float* values) {
  with_type(x, dtype, [=](const auto* data) { load_piece(data + first, length, values); });
}

__device__ __forceinline__ void store_piece(const float* values, int length, float* piece) {
  const bool quads = holds_quads(piece);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int at = quad_start(q);
    if (quads && at + 4 <= length) {
      const float* v = values + 4 * q;
      // Named, because nvcc 13.0 takes a plain assignment apart into four stores.
      __stcg(reinterpret_cast<float4*>(piece + at), make_float4(v[0], v[1], v[2], v[3]));
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (at + k < length) piece[at + k] = values[4 * q + k];
      }
    }
  }
}

// The bytes of one group, in shared memory at a multiple of BITS; the widest units which that allows.
template <int BITS>
using GroupUnit = std::conditional_t<BITS % 4 == 0, uint32_t, std::conditional_t<BITS % 2 == 0, uint16_t, uint8_t>>;

template <int BITS>
constexpr int kWords = kPiece * BITS / 32;  // of a whole piece's codes

// From one byte a code in shared memory to the bit stream at `out`, 4-byte aligned. Codes beyond `length` must be 0 up
// to the next multiple of eight.
template <int BITS>
__device__ __forceinline__ void pack_piece(PieceCodes& codes, int length, uint8_t* out) {
  using Unit = GroupUnit<BITS>;
  const int lane = static_cast<int>(threadIdx.x);
  __syncwarp();
  uint64_t groups[2] = {codes.groups[lane], codes.groups[lane + kLanes]};
  __syncwarp();
#pragma unroll
  for (int g = 0; g < 2; ++g) {
    pack8<BITS>(groups[g]);
    Unit* units = reinterpret_cast<Unit*>(codes.bytes + (lane + g * kLanes) * BITS);
#pragma unroll
    for (int u = 0; u < BITS / static_cast<int>(sizeof(Unit)); ++u) {
      units[u] = static_cast<Unit>(groups[g] >> (8 * sizeof(Unit) * u));
    }
  }
  __syncwarp();
  const int bytes = static_cast<int>((static_cast<unsigned>(length) * BITS + 7) / 8);
  uint32_t* words = reinterpret_cast<uint32_t*>(out);
#pragma unroll
  for (int first = 0; first < kWords<BITS>; first += kLanes) {
    if (first + lane < bytes / 4) words[first + lane] = codes.quads[first + lane];
  }
  if (length == kPiece) return;
  const int rest = bytes / 4 * 4 + lane;
  if (rest < bytes) out[rest] = codes.bytes[rest];
}

// A division takes some ten instructions; the inverse of a power of two is exact.
__device__ __forceinline__ void divide_piece(float* values, int64_t divisor) {
  const float number = static_cast<float>(divisor), inverse = 1.0f / number;
  const bool is_exact = (divisor & (divisor - 1)) == 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) values[i] = is_exact ? values[i] * inverse : values[i] / number;
}

}  // namespace mqgrad::cuda
