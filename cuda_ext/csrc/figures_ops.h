// What the ops that take figures of gradients share, whatever device they are on.
#pragma once

#include <algorithm>
#include <vector>

#include "figures.h"
#include "op_checks.h"

namespace mqgrad {

constexpr int64_t kFigureColumns = 2 + kSketch;

using Gradients = std::vector<Tensor>;

inline void check_gradients(const Gradients& gradients, const std::vector<int64_t>& keys, int64_t bucket_size) {
  STD_TORCH_CHECK(!gradients.empty() && gradients.size() == keys.size(), "mqgrad: ", gradients.size(),
                  " gradients, but ", keys.size(), " keys");
  STD_TORCH_CHECK(bucket_size >= 1, "mqgrad: bucket_size must be positive, got ", bucket_size);
  for (const Tensor& gradient : gradients) {
    check_input(gradient, 1);
    STD_TORCH_CHECK(same_device(gradient, gradients[0]), "mqgrad: gradients must all be on one device");
  }
}

// A bucket never holds more than the gradient.
inline int64_t bucket_in(const Tensor& gradient, int64_t bucket_size) {
  return std::min(bucket_size, std::max<int64_t>(gradient.numel(), 1));
}

inline Tensor new_figures(const Gradients& gradients) {
  const auto rows = static_cast<int64_t>(gradients.size());
  return torch::stable::new_empty(gradients[0], {rows, kFigureColumns}, ScalarType::Double);
}

}  // namespace mqgrad
