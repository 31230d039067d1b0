// The ops on CUDA tensors: on the current stream, without waiting for it, and with no memory but torch's own.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>

#include "cuda_device.h"
#include "cuda_kernels.h"
#include "scattered_checks.h"

namespace mqgrad {
namespace {

void run_encode(const EncodeArguments& arguments, const Tensor& payload) {
  const Layout& layout = arguments.layout;
  check_payload(payload, layout.payload_bytes());
  const OnDevice device(payload);
  const int64_t workspace_bytes = cuda::encode_workspace_bytes(layout, arguments.stochastic);
  const Tensor workspace = torch::stable::new_empty(payload, {workspace_bytes}, ScalarType::Byte);
  write_aligned(payload, 4, device.stream(), [&](uint8_t* bytes) {
    return cuda::encode(arguments, bytes, workspace.mutable_data_ptr(), device.stream());
  });
}

void encode_into(const Tensor& payload, const Tensors& tensors, const Offsets& offsets,
                 const std::optional<Tensor>& residual, int64_t numel, int64_t bits, int64_t bucket_size, bool stochastic,
                 int64_t seed, double alpha, double beta, const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  check_pieces(tensors, offsets, payload);
  const Tensor& x = only_piece(tensors, offsets, numel);
  check_apart(payload, "payload", bucket_ids, "bucket_ids");
  run_encode({x.const_data_ptr(), x.scalar_type(), layout, stochastic, static_cast<uint64_t>(seed),
              checked_ids(bucket_ids, layout.buckets(), x, residual), checked_residual(residual, numel, payload, tensors),
              alpha, beta},
             payload);
}

void reduce_encode_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                        int64_t numel, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed, double alpha,
                        double beta, const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  checked_gap(payloads, layout.payload_bytes());
  check_written_payload(payload, layout.payload_bytes(), payloads, residual, bucket_ids);
  run_encode({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
              checked_ids(bucket_ids, layout.buckets(), payloads, residual), checked_residual(residual, numel, payloads),
              alpha, beta, static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0)},
             payload);
}

void run_decode(const Tensor& out, const Tensor& payload, int64_t bits, int64_t bucket_size, bool add) {
  const Layout layout = checked_layout(out.numel(), bits, bucket_size);
  check_payload(payload, layout.payload_bytes());
  const OnDevice device(payload);
  check_status(cuda::decode(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add,
                            static_cast<float*>(out.mutable_data_ptr()), device.stream()));
}

Tensor decode(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  check_payload(payload, checked_layout(numel, bits, bucket_size).payload_bytes());  // before numel is allocated
  const Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(out, payload, bits, bucket_size, false);
  return out;
}

void decode_into(const Tensors& tensors, const Offsets& offsets, const Tensor& payload, int64_t numel, int64_t bits,
                 int64_t bucket_size) {
  check_pieces(tensors, offsets, payload);
  const Tensor& out = only_piece(tensors, offsets, numel);
  check_floats(out, numel, payload, "out");
  run_decode(out, payload, bits, bucket_size, false);
}

void decode_mean_into(const Tensors& tensors, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                      int64_t bits, int64_t bucket_size) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  checked_gap(payloads, layout.payload_bytes());
  check_pieces(tensors, offsets, payloads);
  const Tensor& out = only_piece(tensors, offsets, numel);
  check_floats(out, numel, payloads, "out");
  const OnDevice device(payloads);
  check_status(cuda::decode_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), layout,
                                 static_cast<float*>(out.mutable_data_ptr()), device.stream()));
}

void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(accumulator, payload, bits, bucket_size, true);
}

Tensor encode_minmax(const Tensor& x, int64_t bits) {
  check_input(x, 2);
  const OnDevice device(x);
  const Matrix shape{x.size(0), x.size(1)};
  Tensor payload = torch::stable::new_empty(x, {minmax_bytes(shape, bits)}, ScalarType::Byte);
  check_status(cuda::encode_minmax(x.const_data_ptr(), x.scalar_type(), shape, static_cast<int>(bits),
                                   static_cast<uint8_t*>(payload.mutable_data_ptr()), device.stream()));
  return payload;
}

Tensor decode_minmax(const Tensor& payload, int64_t rows, int64_t columns, int64_t bits) {
  STD_TORCH_CHECK(rows >= 0 && columns >= 0, "mqgrad: rows and columns must not be negative, got ", rows, ", ", columns);
  const Matrix shape{rows, columns};
  check_payload(payload, minmax_bytes(shape, bits));
  const OnDevice device(payload);
  Tensor out = torch::stable::new_empty(payload, {rows, columns}, ScalarType::Float);
  check_status(cuda::decode_minmax(static_cast<const uint8_t*>(payload.const_data_ptr()), shape,
                                   static_cast<int>(bits), static_cast<float*>(out.mutable_data_ptr()),
                                   device.stream()));
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_into", TORCH_BOX(&encode_into));
  m.impl("reduce_encode_into", TORCH_BOX(&reduce_encode_into));
  m.impl("decode", TORCH_BOX(&decode));
  m.impl("decode_into", TORCH_BOX(&decode_into));
  m.impl("decode_mean_into", TORCH_BOX(&decode_mean_into));
  m.impl("decode_add_", TORCH_BOX(&decode_add_));
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
