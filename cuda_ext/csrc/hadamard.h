// The Hadamard transform of one bucket on the CPU; Note [Rotation] in rotation.h.
#pragma once

#include <cstdint>

namespace mqgrad {

// out <- H v for n = 2^k elements, 8 or more, transposed as the note says; v is overwritten.
void transform(float* v, int64_t n, float* out);

// out <- n times the inverse of transform of codewords. Exact, whatever the order of additions; as integers only where
// fits_16_bits says so.
void transform_codewords_back(const int16_t* words, int64_t n, float* out);
void transform_codewords_back(const int16_t* words, int64_t n, int16_t* out);

bool fits_16_bits(int bits, int64_t n);

}  // namespace mqgrad
