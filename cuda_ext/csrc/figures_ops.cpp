// The op that takes the figures of gradients: schema, and what runs on CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "figures_ops.h"
#include "parallel.h"
#include "random_words.h"

namespace mqgrad {
namespace {

constexpr int64_t kPart = 1 << 18;  // elements that one thread takes at a time, about

struct Part {
  int64_t gradient;
  int64_t begin;
  int64_t end;
};

// They do not depend on the threads, nor does a sum of theirs.
std::vector<Part> parts_of(const Gradients& gradients, int64_t bucket_size) {
  std::vector<Part> parts;
  for (size_t k = 0; k < gradients.size(); ++k) {
    const int64_t numel = gradients[k].numel(), unit = std::lcm(bucket_in(gradients[k], bucket_size), kSketch);
    const int64_t step = std::max<int64_t>(kPart / unit, 1) * unit;
    for (int64_t at = 0; at < numel; at += step) {
      parts.push_back({static_cast<int64_t>(k), at, std::min(at + step, numel)});
    }
  }
  return parts;
}

Tensor gradient_figures(Gradients gradients, std::vector<int64_t> keys, int64_t bucket_size, int64_t seed) {
  check_gradients(gradients, keys, bucket_size);
  int64_t total = 0;
  for (const Tensor& gradient : gradients) total += gradient.numel();
  const std::vector<Part> parts = parts_of(gradients, bucket_size);
  std::vector<Figures> of_parts(parts.size());
  const auto count = static_cast<int64_t>(parts.size());
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, total / std::max<int64_t>(1, count)));
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [k, from, to] = parts[i];
      const Tensor& gradient = gradients[k];
      const uint64_t key = random_key(static_cast<uint64_t>(seed), static_cast<uint64_t>(keys[k]));
      add_figures(gradient.const_data_ptr(), gradient.scalar_type(), from, to, bucket_in(gradient, bucket_size), key,
                  of_parts[i]);
    }
  });
  std::vector<Figures> sums(gradients.size());
  for (size_t i = 0; i < parts.size(); ++i) sums[parts[i].gradient].add(of_parts[i]);
  const Tensor out = new_figures(gradients);
  double* row = static_cast<double*>(out.mutable_data_ptr());
  for (const Figures& figures : sums) {
    row[0] = figures.norm_sq;
    row[1] = figures.peak_energy;
    std::copy(figures.sketch, figures.sketch + kSketch, row + 2);
    row += kFigureColumns;
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("gradient_figures(Tensor[] gradients, int[] keys, int bucket_size, int seed) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("gradient_figures", TORCH_BOX(&gradient_figures));
}

}  // namespace mqgrad
