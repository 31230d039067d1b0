// The mean of several vectors, as a collective takes it of payloads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mqgrad {

// v <- v / divisor
void divide(float* v, int64_t n, float divisor);

// The mean of `count` vectors of n elements, of which add(k) adds the k-th to `mean`. Sums start from +0, as a tensor of
// zeros would.
template <typename Add>
void mean_of(int64_t count, int64_t n, float* mean, const Add& add) {
  std::fill_n(mean, n, 0.0f);
  for (int64_t k = 0; k < count; ++k) add(k);
  divide(mean, n, static_cast<float>(count));
}

}  // namespace mqgrad
