// What a lane reads of payloads: its codes of a piece, and the values that they stand for.
#pragma once

#include "cuda_piece.h"
#include "levels.h"
#include "payload.h"

namespace mqgrad::cuda {

// Note [Lane codes]
//
// The codes of a lane's quad, Note [Piece], are 4 * BITS bits in a row of the bit stream, in two of its words at the most.
// The lane takes them from there itself: codes are read without shared memory, and those of several payloads at once.
struct LaneCodes {
  uint32_t quads[kQuads];  // four codes each, the first in the lowest bits; what is above the last means nothing
};

template <int BITS>
constexpr bool kInOneWord = 32 % (4 * BITS) == 0;

// Of a piece that is whole and at a multiple of four bytes.
template <int BITS>
__device__ __forceinline__ uint32_t load_whole_quad(const uint8_t* in, int quad) {
  const unsigned bit = threadIdx.x * 4 * BITS, shift = bit % 32;  // from the quad of the first lane on, in a word's first bit
  const uint32_t* words = reinterpret_cast<const uint32_t*>(in) + quad * 4 * BITS + bit / 32;
  if constexpr (kInOneWord<BITS>) return words[0] >> shift;
  const uint32_t second = shift + 4 * BITS > 32 ? words[1] : 0;
  return static_cast<uint32_t>((static_cast<uint64_t>(second) << 32 | words[0]) >> shift);
}

// Of any `bytes` bytes; codes beyond them are 0.
template <int BITS>
__device__ __forceinline__ uint32_t load_quad_of_bytes(const uint8_t* in, int bytes, int quad) {
  const int bit = quad_start(quad) * BITS;
  uint32_t word = 0;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if (bit / 8 + b < bytes) word |= static_cast<uint32_t>(in[bit / 8 + b]) << (8 * b);
  }
  return word >> bit % 8;
}

// A lane's codes of the piece whose bytes begin at `in`. WHOLE: as load_whole_quad needs it. Else only the bytes of
// `length` codes are touched.
template <int BITS, bool WHOLE>
__device__ __forceinline__ LaneCodes load_lane_codes(const uint8_t* in, int length) {
  LaneCodes codes;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    codes.quads[q] = WHOLE ? load_whole_quad<BITS>(in, q) : load_quad_of_bytes<BITS>(in, (length * BITS + 7) / 8, q);
  }
  return codes;
}

// The value of a code as level_value and sign_value have it. A code in the low bits of 2^23 is 2^23 + code: no conversion.
template <int BITS>
__device__ __forceinline__ float value_of_code(uint32_t code, float scale) {
  if constexpr (BITS == 1) return float_from_bits(float_bits(scale) ^ (code ^ 1) << 31);
  constexpr int32_t s = (1 << (BITS - 1)) - 1;
  constexpr float kLow = 8388608.0f;
  const float level = float_from_bits(0x4b000000u | code) - (kLow + static_cast<float>(s));
  const float q = level < static_cast<float>(s) ? level : static_cast<float>(s);
  return BITS == 2 ? q * scale : value_of_level(q, reciprocal(s), scale);
}

// Calls f(i, value) for a lane's 16 elements.
template <int BITS, typename F>
__device__ __forceinline__ void for_each_value(const LaneCodes& codes, float scale, const F& f) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    f(i, value_of_code<BITS>(codes.quads[i / 4] >> (i % 4 * BITS) & ((1u << BITS) - 1), scale));
  }
}

// load_scale in one load, from a payload at a multiple of four bytes.
__device__ __forceinline__ float load_aligned_scale(const uint8_t* payload, int64_t bucket) {
  const float scale = reinterpret_cast<const float*>(payload)[bucket];
  return is_finite(scale) ? scale : float_from_bits(kNanBits);
}

// Of one layout, one behind the other.
struct Payloads {
  const uint8_t* bytes;
  int64_t count;
  int64_t payload_bytes;
  int64_t scale_bytes;

  // Whether all begin at multiples of four bytes, and their scales and codes with them.
  __device__ __forceinline__ bool are_aligned() const {
    return (reinterpret_cast<uintptr_t>(bytes) | static_cast<uintptr_t>(count > 1 ? payload_bytes : 0)) % 4 == 0;
  }
};

// Calls f(i, value) for a lane's elements of a payload's piece that begins at element `first` of a bucket.
template <int BITS, bool WHOLE, typename F>
__device__ __forceinline__ void for_each_value(const Payloads& payloads, int64_t p, int64_t bucket, int64_t first,
                                               int length, const F& f) {
  const uint8_t* payload = payloads.bytes + p * payloads.payload_bytes;
  const float scale = WHOLE ? load_aligned_scale(payload, bucket) : load_scale(payload, bucket);
  const uint8_t* piece = payload + payloads.scale_bytes + (first >> 3) * BITS;
  for_each_value<BITS>(load_lane_codes<BITS, WHOLE>(piece, length), scale, f);
}

// How many payloads are read before the first is waited for. What more registers cost is more than what it gains where
// a quad lies in two words.
template <int BITS>
constexpr int kPayloadsAtOnce = kInOneWord<BITS> ? 2 : 1;

// The mean of the payloads' pieces; zeros beyond `length`. Sums start from +0, as a tensor of zeros would.
template <int BITS>
__device__ __forceinline__ void load_mean(const Payloads& payloads, int64_t bucket, int64_t first, int length,
                                          float* mean) {
  const auto add = [&](int i, float value) { mean[i] += value; };
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean[i] = 0;
  if (length == kPiece && payloads.are_aligned()) {
#pragma unroll kPayloadsAtOnce<BITS>
    for (int64_t p = 0; p < payloads.count; ++p) for_each_value<BITS, true>(payloads, p, bucket, first, length, add);
  } else {
#pragma unroll 1
    for (int64_t p = 0; p < payloads.count; ++p) for_each_value<BITS, false>(payloads, p, bucket, first, length, add);
  }
  divide_piece(mean, payloads.count);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) mean[i] = quad_start(i / 4) + i % 4 < length ? mean[i] : 0.0f;
}

// For buckets of any size: code i of the bit stream, and its value. To choose among constant widths for each element makes
// ptxas spill.
__device__ __forceinline__ uint32_t load_code(const uint8_t* packed, int64_t i, int bits) {
  const int64_t bit = i * bits;
  const int shift = static_cast<int>(bit % 8);
  uint32_t bytes = packed[bit / 8];
  if (shift + bits > 8) bytes |= static_cast<uint32_t>(packed[bit / 8 + 1]) << 8;
  return bytes >> shift & ((1u << bits) - 1);
}

__device__ __forceinline__ float value_of_any(int bits, uint32_t code, float scale) {
  const int32_t s = level_count(bits), signed_code = static_cast<int32_t>(code);
  return bits == 1 ? sign_value(signed_code, scale) : level_value(signed_code, s, reciprocal(s), scale);
}

}  // namespace mqgrad::cuda
