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

// Calls f(i, value of code i).
template <typename F>
MQ_INLINE void for_each_value(const Levels& levels, const uint8_t* codes, int64_t n, float scale, const F& f) {
  if (levels.bits == 1) {
    for (int64_t i = 0; i < n; ++i) f(i, sign_value(codes[i], scale));
  } else {
    const int32_t s = levels.count;
    const Reciprocal r = levels.inverse;
    for (int64_t i = 0; i < n; ++i) f(i, level_value(codes[i], s, r, scale));
  }
}

}  // namespace mqgrad
