// The Hadamard transform of one bucket on the CPU; Note [Rotation] in rotation.h.
#pragma once

#include <cstdint>

namespace mqgrad {

// out <- H v for n = 2^k elements, 8 or more, transposed as the note says; v is overwritten.
void transform(float* v, int64_t n, float* out);

// out <- n times the inverse of transform of codewords of a width. Exact, whatever the order of additions.
void transform_codewords_back(int bits, const int8_t* words, int64_t n, float* out);

}  // namespace mqgrad
