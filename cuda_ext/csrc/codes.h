// Loops over the elements of one scale bucket, or of a part of it, compiled for several instruction sets.
#pragma once

#include "rounding.h"

namespace mqgrad {

constexpr int64_t kBlock = 64;  // elements; loops of a fixed length compile to vector code without a remainder

// Of |v|, as its bits: Note [Non-finite].
uint32_t max_abs_bits(const float* v, int64_t n);

struct MagnitudeSums {
  uint64_t sum = 0;
  uint64_t squares = 0;
};

// Of up to kMagnitudes elements.
MagnitudeSums magnitude_sums(const float* lifted, int64_t n, const Grid& grid);

// Grids go by reference: the fields of one that was just computed, passed in one register, would be stored apart and
// loaded together, which stalls.

// The three below write whole blocks of codes, whatever n is. They are bound by arithmetic, and max_abs_bits by memory. So
// they also find max_abs_bits of n elements of the next bucket, and return it: whole blocks from `next` on, or nullptr.
uint32_t nearest_codes(const float* lifted, const float* next, int64_t n, const Grid& grid, uint8_t* codes);
uint32_t sign_codes(const float* v, const float* next, int64_t n, uint8_t* codes);

// Of the elements from `first` on, an even one, of the bucket.
uint32_t stochastic_codes(const float* lifted, const float* next, int64_t n, const Grid& grid, Stream stream,
                          int64_t first, uint8_t* codes);

// v <- x + alpha * residual. Returns max_abs_bits of v, which saves a pass.
uint32_t compensate(const float* x, const float* residual, int64_t n, float alpha, float* v);

// nearest_codes and keep_errors in one pass, which spares it to read codes back.
void nearest_codes_with_feedback(const float* lifted, const float* x, int64_t n, const Grid& grid, int bits, float scale,
                                 float beta, float* residual, uint8_t* codes);

// The new residual, from the codes that were sent.
void keep_errors(int bits, const float* x, const uint8_t* codes, int64_t n, float scale, float beta, float* residual);

}  // namespace mqgrad
