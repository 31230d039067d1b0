// What controllers want to know of a gradient, in one pass over it.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace mqgrad {

// Note [Sketch]
//
// A count sketch (Charikar et al. 2002) with a place for every 256th element: place j holds the sum of s x over the elements
// x whose number is j modulo 256, with random signs s. The inner product of two sketches has the expectation of that of the
// gradients, and a standard error of about the product of their norms / 16. The sign of element i is bit i % 64 of the word
// i / 64 of SplitMix64 (Steele, Lea and Flood 2014) begun at random_key(seed, key): 1 is minus. So ranks have the same signs,
// and parameters signs of their own.
constexpr int64_t kSketch = 256;

struct Figures {
  double norm_sq = 0;
  double peak_energy = 0;  // sum of n max|x|^2 over buckets of n elements
  float sketch[kSketch] = {};

  void add(const Figures& other);
};

// Adds those of elements [begin, end) of x: `begin` is a multiple of kSketch and of bucket_size, `end` is, too, or that of x.
void add_figures(const void* x, torch::headeronly::ScalarType dtype, int64_t begin, int64_t end, int64_t bucket_size,
                 uint64_t key, Figures& figures);

}  // namespace mqgrad
