// How scales and codes lie in a payload.
#pragma once

#include "float_bits.h"

namespace mqgrad {

// Note [Payload]
//
//   | scale 0 | scale 1 | ... | scale B-1 | codes                      |
//   | 4 bytes, fp32 each                  | ceil(numel * bits / 8)     |
//
// The codes are one little-endian bit stream over the whole tensor: code i is bits [i*b, (i+1)*b). Eight codes
// always fill exactly b bytes, whatever b is. With b = 3, byte by byte, most significant bit on the left:
//
//     byte 2            byte 1            byte 0
//   | 7 7 7 6 6 6 5 5 | 5 4 4 4 3 3 3 2 | 2 2 1 1 1 0 0 0 |     (digit = index of the code)
//
// Bits after the last code are zero.

MQ_INLINE void store_scale(uint8_t* payload, int64_t bucket, float scale) {
  std::memcpy(payload + 4 * bucket, &scale, 4);
}

MQ_INLINE float load_scale(const uint8_t* payload, int64_t bucket) {
  float scale;  // a payload may be an unaligned slice of a larger message
  std::memcpy(&scale, payload + 4 * bucket, 4);
  return is_finite(scale) ? scale : float_from_bits(kNanBits);
}

// Eight codes, one per byte, to the low 8 * BITS bits, in place: pairs merge, then fours, then all. T is uint64_t, or a
// vector of them for several groups of eight at once.
template <int BITS, typename T>
MQ_INLINE void pack8(T& codes) {
  codes = (codes & 0x00ff00ff00ff00ffull) | ((codes & 0xff00ff00ff00ff00ull) >> (8 - BITS));
  codes = (codes & 0x0000ffff0000ffffull) | ((codes & 0xffff0000ffff0000ull) >> (16 - 2 * BITS));
  codes = (codes & 0x00000000ffffffffull) | ((codes >> 32) << (4 * BITS));
}

// The inverse of pack8, the same three steps backwards.
template <int BITS, typename T>
MQ_INLINE void unpack8(T& packed) {
  constexpr uint64_t kOne = (1ull << BITS) - 1;
  constexpr uint64_t kTwo = (1ull << (2 * BITS)) - 1;
  constexpr uint64_t kFour = (1ull << (4 * BITS)) - 1;
  constexpr uint64_t kLanes = 0x0001000100010001ull;
  packed = (packed & kFour) | (((packed >> (4 * BITS)) & kFour) << 32);
  packed = (packed & kTwo * 0x100000001ull) | ((packed & (kTwo << (2 * BITS)) * 0x100000001ull) << (16 - 2 * BITS));
  packed = (packed & kOne * kLanes) | ((packed & (kOne << BITS) * kLanes) << (8 - BITS));
}

}  // namespace mqgrad
