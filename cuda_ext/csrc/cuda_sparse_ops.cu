// The ops of the sparse code on CUDA tensors, as those of cuda_ops.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda_device.h"
#include "cuda_sparse.h"
#include "sparse_checks.h"

namespace mqgrad {
namespace {

Tensor run_encode(const Tensor& x, const SparseArguments& arguments) {
  const OnDevice device(x);
  const Tensor payload = torch::stable::new_empty(x, {arguments.layout.payload_bytes()}, ScalarType::Byte);
  const Tensor workspace =
      torch::stable::new_empty(x, {cuda::sparse_encode_workspace_bytes(arguments.layout)}, ScalarType::Byte);
  check_status(cuda::encode_sparse(arguments, static_cast<uint8_t*>(payload.mutable_data_ptr()),
                                   workspace.mutable_data_ptr(), device.stream()));
  return payload;
}

Tensor sparse_encode(const Tensor& x, int64_t elements_per_bit) {
  check_input(x, 1);
  return run_encode(x, {x.const_data_ptr(), x.scalar_type(), checked_sparse_layout(x.numel(), elements_per_bit),
                        nullptr, 0, 0});
}

Tensor sparse_encode_with_feedback(const Tensor& x, const Tensor& residual, int64_t elements_per_bit, double alpha,
                                   double beta) {
  check_input(x, 1);
  check_floats(residual, x.numel(), x, "residual");
  return run_encode(x, {x.const_data_ptr(), x.scalar_type(), checked_sparse_layout(x.numel(), elements_per_bit),
                        static_cast<float*>(residual.mutable_data_ptr()), alpha, beta});
}

void add_to(const Tensor& out, const Tensor& payload, int64_t elements_per_bit) {
  const SparseLayout layout = checked_sparse_layout(out.numel(), elements_per_bit);
  check_payload(payload, layout.payload_bytes());
  const OnDevice device(payload);
  const Tensor workspace =
      torch::stable::new_empty(payload, {cuda::sparse_decode_workspace_bytes(layout)}, ScalarType::Byte);
  check_status(cuda::decode_add_sparse(static_cast<const uint8_t*>(payload.const_data_ptr()), layout,
                                       static_cast<float*>(out.mutable_data_ptr()), workspace.mutable_data_ptr(),
                                       device.stream()));
}

Tensor sparse_decode(const Tensor& payload, int64_t numel, int64_t elements_per_bit) {
  check_payload(payload, checked_sparse_layout(numel, elements_per_bit).payload_bytes());
  const OnDevice device(payload);
  const Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  check_status(cudaMemsetAsync(out.mutable_data_ptr(), 0, 4 * numel, device.stream()));
  add_to(out, payload, elements_per_bit);
  return out;
}

void sparse_decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t elements_per_bit) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  add_to(accumulator, payload, elements_per_bit);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("sparse_encode", TORCH_BOX(&sparse_encode));
  m.impl("sparse_encode_with_feedback", TORCH_BOX(&sparse_encode_with_feedback));
  m.impl("sparse_decode", TORCH_BOX(&sparse_decode));
  m.impl("sparse_decode_add_", TORCH_BOX(&sparse_decode_add_));
}

}  // namespace mqgrad
