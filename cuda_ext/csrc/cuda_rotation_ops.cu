// The ops of the rotated codes on CUDA tensors, as those of cuda_ops.cu.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda_device.h"
#include "cuda_rotation.h"
#include "rotation_checks.h"
#include "scattered_checks.h"

namespace mqgrad {
namespace {

Tensor new_workspace(const Tensor& like, const RotationLayout& layout) {
  return torch::stable::new_empty(like, {cuda::rotation_workspace_bytes(layout)}, ScalarType::Byte);
}

void check_fused(bool is_fused, const RotationLayout& layout) {
  STD_TORCH_CHECK(!is_fused || cuda::is_piece(layout), "mqgrad: on CUDA several steps at once take buckets of ",
                  cuda::kPieceBucket, ", got ", layout.bucket_size);
}

void run_encode(const RotatedArguments& arguments, const Tensor& payload) {
  const RotationLayout& layout = arguments.layout;
  check_payload(payload, layout.payload_bytes());
  check_fused(arguments.residual || arguments.payloads, layout);
  const OnDevice device(payload);
  const Tensor workspace = new_workspace(payload, layout);
  write_aligned(payload, 4, device.stream(), [&](uint8_t* bytes) {
    return cuda::encode_rotated(arguments, bytes, workspace.mutable_data_ptr(), device.stream());
  });
}

void encode_rotated_into(const Tensor& payload, const Tensors& tensors, const Offsets& offsets,
                         const std::optional<Tensor>& residual, int64_t numel, int64_t bits, int64_t bucket_size,
                         bool unbiased, int64_t seed, double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_pieces(tensors, offsets, payload);
  const Tensor& x = only_piece(tensors, offsets, numel);
  run_encode({x.const_data_ptr(), x.scalar_type(), layout, unbiased, static_cast<uint64_t>(seed),
              checked_residual(residual, numel, payload, tensors), alpha, beta},
             payload);
}

void reduce_encode_rotated_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                                int64_t numel, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed,
                                double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  checked_gap(payloads, layout.payload_bytes());
  check_written_payload(payload, layout.payload_bytes(), payloads, residual);
  run_encode({nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
              checked_residual(residual, numel, payloads), alpha, beta,
              static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0)},
             payload);
}

void run_decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensor& out) {
  check_payload(payload, layout.payload_bytes());
  const OnDevice device(payload);
  const Tensor workspace = new_workspace(payload, layout);
  check_status(cuda::decode_rotated(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add,
                                    static_cast<float*>(out.mutable_data_ptr()), workspace.mutable_data_ptr(),
                                    device.stream()));
}

Tensor decode_rotated(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());  // before numel is allocated
  const Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, out);
  return out;
}

void decode_rotated_into(const Tensors& tensors, const Offsets& offsets, const Tensor& payload, int64_t numel,
                         int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_pieces(tensors, offsets, payload);
  const Tensor& out = only_piece(tensors, offsets, numel);
  check_floats(out, numel, payload, "out");
  run_decode(payload, layout, false, out);
}

void decode_rotated_mean_into(const Tensors& tensors, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                              int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_fused(true, layout);
  checked_gap(payloads, layout.payload_bytes());
  check_pieces(tensors, offsets, payloads);
  const Tensor& out = only_piece(tensors, offsets, numel);
  check_floats(out, numel, payloads, "out");
  const OnDevice device(payloads);
  check_status(cuda::decode_rotated_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), layout,
                                         static_cast<float*>(out.mutable_data_ptr()), device.stream()));
}

void decode_rotated_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(payload, checked_rotation_layout(accumulator.numel(), bits, bucket_size), true, accumulator);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_rotated_into", TORCH_BOX(&encode_rotated_into));
  m.impl("reduce_encode_rotated_into", TORCH_BOX(&reduce_encode_rotated_into));
  m.impl("decode_rotated", TORCH_BOX(&decode_rotated));
  m.impl("decode_rotated_into", TORCH_BOX(&decode_rotated_into));
  m.impl("decode_rotated_mean_into", TORCH_BOX(&decode_rotated_mean_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&decode_rotated_add_));
}

}  // namespace mqgrad
