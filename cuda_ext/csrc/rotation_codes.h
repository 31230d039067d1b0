// The codebook over one rotated bucket; Note [Rotation] in rotation.h.
#pragma once

#include <cstdint>

namespace mqgrad {

// Codes of y, n = 2^k elements, 8 or more, and their codewords; returns the scale. It is 0 for zeros, NaN where y is not
// finite. `sums` has room for n / 8.
float choose_codewords(int bits, bool unbiased, const float* y, int64_t n, uint8_t* codes, float* words, double* sums);

// y <- scale * codeword
void scale_codewords(const float* words, int64_t n, float scale, float* y);
void look_up_codewords(int bits, const uint8_t* codes, int64_t n, float scale, float* y);

}  // namespace mqgrad
