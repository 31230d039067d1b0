// The ops of MQGrad's quantizer on CUDA tensors: on the current stream, with no memory but torch's own.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda_device.h"
#include "cuda_kernels.h"
#include "op_checks.h"

namespace mqgrad {
namespace {

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
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
