// Floats as their bits, and what host and device code of this folder have in common.
//
// The headers that include this one hold the mathematics of one element, for the CPU and for CUDA. cuda_ext/reference*.py
// computes the same bytes with torch tensors; a change here is a change there. Compile without contraction
// (-ffp-contract=off, nvcc -fmad=false): a fused multiply-add changes bytes.
#pragma once

#ifdef __FAST_MATH__
#error "ranks must compute the same bytes: -ffast-math reorders and approximates"
#endif

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define MQ_INLINE __host__ __device__ __forceinline__
#else
#define MQ_INLINE inline __attribute__((always_inline))
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are little-endian");

namespace mqgrad {

MQ_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

constexpr uint32_t kSignBit = 0x80000000u;

MQ_INLINE uint32_t abs_bits(float x) {
  return float_bits(x) & ~kSignBit;
}

MQ_INLINE float float_from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Note [Non-finite]
//
// As integers, the bit patterns of |x| are ordered like the floats, with infinity and then NaN on top. So an integer
// maximum finds a non-finite element where std::max would drop a NaN.
constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

MQ_INLINE bool is_finite(float x) {
  return abs_bits(x) < kInfinityBits;
}

}  // namespace mqgrad
