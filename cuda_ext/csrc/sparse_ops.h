// The ops of the sparse code on tensors, for any device: what they demand of their arguments, and what runs then.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "scattered_checks.h"
#include "sparse.h"

namespace mqgrad {

inline SparseLayout checked_sparse_layout(int64_t numel, int64_t elements_per_bit) {
  STD_TORCH_CHECK(numel >= 0 && numel < (int64_t{1} << 40), "mqgrad: numel must be in 0..2^40, got ", numel);
  STD_TORCH_CHECK(elements_per_bit >= 1 && elements_per_bit <= 64, "mqgrad: elements_per_bit must be in 1..64, got ",
                  elements_per_bit);
  return sparse_layout(numel, elements_per_bit);
}

// Device::encode(arguments, x, offsets, payload) and Device::decode_add(payload, layout, out) run the kernels, on tensors
// of the right sizes.
template <typename Device>
struct SparseOps {
  static void encode_into(const Tensor& payload, const Tensors& x, const Offsets& offsets,
                          const std::optional<Tensor>& residual, int64_t numel, int64_t elements_per_bit, double alpha,
                          double beta) {
    const SparseLayout layout = checked_sparse_layout(numel, elements_per_bit);
    check_payload(payload, layout.payload_bytes());
    check_pieces(x, offsets, payload);
    Device::encode({layout, checked_residual(residual, numel, payload, x), alpha, beta}, x, offsets, payload);
  }

  static Tensor decode(const Tensor& payload, int64_t numel, int64_t elements_per_bit) {
    check_payload(payload, checked_sparse_layout(numel, elements_per_bit).payload_bytes());  // before numel is allocated
    const Tensor out = torch::stable::new_zeros(payload, {numel}, ScalarType::Float);
    add_to(out, payload, elements_per_bit);
    return out;
  }

  static void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t elements_per_bit) {
    check_floats(accumulator, accumulator.numel(), payload, "accumulator");
    add_to(accumulator, payload, elements_per_bit);
  }

 private:
  static void add_to(const Tensor& out, const Tensor& payload, int64_t elements_per_bit) {
    const SparseLayout layout = checked_sparse_layout(out.numel(), elements_per_bit);
    check_payload(payload, layout.payload_bytes());
    Device::decode_add(payload, layout, out);
  }
};

}  // namespace mqgrad
