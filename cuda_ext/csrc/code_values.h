// How decoding and error feedback turn codes into values.
#pragma once

#include "levels.h"

namespace mqgrad {

// Those of one width: made once for many buckets, as a reciprocal takes a division.
struct Levels {
  explicit Levels(int bits) : bits(bits), count(level_count(bits)), inverse(reciprocal(count)) {}

  int bits;
  int32_t count;
  Reciprocal inverse;
};

// A block of levels in bytes, of which a register holds four times as many as of floats.
constexpr int64_t kLevelBlock = 64;

MQ_INLINE void levels_of_block(const uint8_t* codes, int32_t s, int8_t* q) {
  const auto top = static_cast<uint8_t>(2 * s), middle = static_cast<uint8_t>(s);
  for (int64_t i = 0; i < kLevelBlock; ++i) q[i] = static_cast<int8_t>((codes[i] < top ? codes[i] : top) - middle);
}

// Calls f(i, value of code i).
template <typename F>
MQ_INLINE void for_each_value(const Levels& levels, const uint8_t* codes, int64_t n, float scale, const F& f) {
  if (levels.bits == 1) {
    for (int64_t i = 0; i < n; ++i) f(i, sign_value(codes[i], scale));
  } else {
    const int32_t s = levels.count;
    const Reciprocal r = levels.inverse;
    int64_t at = 0;
    for (; at + kLevelBlock <= n; at += kLevelBlock) {
      int8_t q[kLevelBlock];
      levels_of_block(codes + at, s, q);
      for (int64_t i = 0; i < kLevelBlock; ++i) f(at + i, value_of_level(q[i], r, scale));
    }
    for (; at < n; ++at) f(at, level_value(codes[at], s, r, scale));
  }
}

}  // namespace mqgrad
