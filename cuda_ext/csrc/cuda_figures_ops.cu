// The op that takes the figures of gradients, on CUDA tensors: on the current stream, without waiting for it, one gradient
// after another in the same memory.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda_device.h"
#include "cuda_figures.h"
#include "figures_ops.h"
#include "random_words.h"

namespace mqgrad {
namespace {

Layout layout_of(const Tensor& gradient, int64_t bucket_size) {
  return {gradient.numel(), 8, bucket_in(gradient, bucket_size)};
}

Tensor new_workspace(const Gradients& gradients, int64_t bucket_size) {
  int64_t bytes = 0;
  for (const Tensor& gradient : gradients) {
    bytes = std::max(bytes, cuda::figures_workspace_bytes(layout_of(gradient, bucket_size)));
  }
  return torch::stable::new_empty(gradients[0], {bytes}, ScalarType::Byte);
}

Tensor gradient_figures(Gradients gradients, std::vector<int64_t> keys, int64_t bucket_size, int64_t seed) {
  check_gradients(gradients, keys, bucket_size);
  const OnDevice device(gradients[0]);
  const Tensor workspace = new_workspace(gradients, bucket_size), out = new_figures(gradients);
  double* row = static_cast<double*>(out.mutable_data_ptr());
  for (size_t k = 0; k < gradients.size(); ++k, row += kFigureColumns) {
    const Tensor& gradient = gradients[k];
    const uint64_t key = random_key(static_cast<uint64_t>(seed), static_cast<uint64_t>(keys[k]));
    check_status(cuda::figures(gradient.const_data_ptr(), gradient.scalar_type(), layout_of(gradient, bucket_size), key,
                               row, workspace.mutable_data_ptr(), device.stream()));
  }
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("gradient_figures", TORCH_BOX(&gradient_figures));
}

}  // namespace mqgrad
