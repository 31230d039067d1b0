// The codebook over one rotated bucket; Note [Rotation] in rotation.h.
#pragma once

#include <cstdint>

namespace mqgrad {

// Codes of y, n = 2^k elements, 8 or more; returns the scale. It is 0 for zeros, NaN where y is not finite. `sums` has room
// for n / 4.
float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* sums);

void look_up_codewords(int bits, const uint8_t* codes, int64_t n, int16_t* words);

}  // namespace mqgrad
