// The ops of the rotated codes on tensors, for any device: what they demand of their arguments, and what runs then.
#pragma once

#include <optional>

#include "decode_ops.h"
#include "rotation_kernels.h"

namespace mqgrad {

inline RotationLayout checked_rotation_layout(int64_t numel, int64_t bits, int64_t bucket_size) {
  STD_TORCH_CHECK(numel >= 0 && numel <= int64_t{1} << 56, "mqgrad: numel must be in 0..2^56, got ", numel);
  STD_TORCH_CHECK(bits >= 1 && bits <= kMaxRotationBits, "mqgrad: bits must be in 1..4, got ", bits);
  STD_TORCH_CHECK(bucket_size >= 8 && bucket_size <= kMaxRotationBucket && (bucket_size & (bucket_size - 1)) == 0,
                  "mqgrad: bucket_size must be a power of two in 8..65536, got ", bucket_size);
  return {numel, static_cast<int>(bits), bucket_size};
}

// Device::encode(arguments, x, offsets, payload) takes the elements of x, Device::reduce_encode(arguments, payload) those of
// the arguments' payloads, to payloads of the right size.
template <typename Device>
struct RotatedOps : DecodeOps<Device, checked_rotation_layout> {
  static void encode_into(const Tensor& payload, const Tensors& x, const Offsets& offsets,
                          const std::optional<Tensor>& residual, int64_t numel, int64_t bits, int64_t bucket_size,
                          bool unbiased, int64_t seed, double alpha, double beta) {
    const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
    check_payload(payload, layout.payload_bytes());
    check_pieces(x, offsets, payload);
    Device::encode({nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                    checked_residual(residual, numel, payload, x), alpha, beta},
                   x, offsets, payload);
  }

  static void reduce_encode_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                                 int64_t numel, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed,
                                 double alpha, double beta) {
    const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
    const int64_t gap = checked_gap(payloads, layout.payload_bytes());
    check_written_payload(payload, layout.payload_bytes(), payloads, residual);
    Device::reduce_encode({nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                           checked_residual(residual, numel, payloads), alpha, beta,
                           static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
                          payload);
  }
};

}  // namespace mqgrad
