// How decoding and error feedback turn codes into values.
#pragma once

#include "levels.h"

namespace mqgrad {

// Calls f(i, value of code i).
template <typename F>
MQ_INLINE void for_each_value(int bits, const uint8_t* codes, int64_t n, float scale, const F& f) {
  if (bits == 1) {
    for (int64_t i = 0; i < n; ++i) f(i, sign_value(codes[i], scale));
  } else {
    const int32_t s = level_count(bits);
    const Reciprocal r = reciprocal(s);
    for (int64_t i = 0; i < n; ++i) f(i, level_value(codes[i], s, r, scale));
  }
}

}  // namespace mqgrad
