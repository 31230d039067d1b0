// The ops of width 16 on tensors, for any device: what they demand of their arguments, and what runs then.
#pragma once

#include "bfloat16.h"
#include "new_output.h"
#include "scattered_checks.h"

namespace mqgrad {

inline int64_t bfloat16_bytes(int64_t numel) {
  STD_TORCH_CHECK(numel >= 0 && numel <= int64_t{1} << 56, "mqgrad: numel must be in 0..2^56, got ", numel);
  return 2 * numel;
}

// Device::encode(arguments, x, offsets, payload) takes the elements of x, Device::reduce_encode(arguments, payload) those of
// the arguments' payloads; Device::decode(payload, numel, add, out, offsets) and Device::decode_mean(payloads, stride,
// numel, out, offsets), whose payloads are `stride` bytes apart, write them: on tensors of the right sizes.
template <typename Device>
struct Bfloat16Ops {
  static void encode_into(const Tensor& payload, const Tensors& x, const Offsets& offsets,
                          const std::optional<Tensor>& residual, int64_t numel, double alpha, double beta) {
    check_payload(payload, bfloat16_bytes(numel));
    check_pieces(x, offsets, payload);
    Device::encode({nullptr, ScalarType::Float, numel, checked_residual(residual, numel, payload, x), alpha, beta}, x,
                   offsets, payload);
  }

  static void reduce_encode_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                                 int64_t numel, double alpha, double beta) {
    const int64_t gap = checked_gap(payloads, bfloat16_bytes(numel));
    check_written_payload(payload, bfloat16_bytes(numel), payloads, residual);
    Device::reduce_encode({nullptr, ScalarType::Float, numel, checked_residual(residual, numel, payloads), alpha, beta,
                           static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
                          payload);
  }

  static Tensor decode(const Tensor& payload, int64_t numel) {
    check_payload(payload, bfloat16_bytes(numel));  // before numel is allocated
    const Tensor out = new_floats(payload, numel);
    Device::decode(payload, numel, false, {out}, {0});
    return out;
  }

  static void decode_into(const Tensors& out, const Offsets& offsets, const Tensor& payload, int64_t numel) {
    check_payload(payload, bfloat16_bytes(numel));
    check_pieces(out, offsets, payload);
    Device::decode(payload, numel, false, out, offsets);
  }

  static void decode_mean_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel) {
    const int64_t stride = bfloat16_bytes(numel) + checked_gap(payloads, bfloat16_bytes(numel));
    check_pieces(out, offsets, payloads);
    Device::decode_mean(payloads, stride, numel, out, offsets);
  }

  static void decode_add_(const Tensor& accumulator, const Tensor& payload) {
    const int64_t numel = accumulator.numel();
    check_floats(accumulator, numel, payload, "accumulator");
    check_payload(payload, bfloat16_bytes(numel));
    Device::decode(payload, numel, true, {accumulator}, {0});
  }
};

}  // namespace mqgrad
