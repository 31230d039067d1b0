// The codebook over one rotated bucket; Note [Rotation] in rotation.h.
#pragma once

#include <cstdint>

namespace mqgrad {

// Codes of y, n = 2^k elements, 8 or more; returns the scale. It is 0 for zeros, NaN where y is not finite. `words` has room
// for n, and `sums` for n / 4.
float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* words, float* sums);

void look_up_codewords(int bits, const uint8_t* codes, int64_t n, int8_t* words);

}  // namespace mqgrad
