// The ops of the uniform codes on tensors, for any device: what they demand of their arguments, and what runs then.
#pragma once

#include <optional>

#include "decode_ops.h"
#include "kernels.h"

namespace mqgrad {

// Device::encode(arguments, x, offsets, payload) takes the elements of x, Device::reduce_encode(arguments, payload) those of
// the arguments' payloads, to payloads of the right size.
template <typename Device>
struct UniformOps : DecodeOps<Device, checked_layout> {
  static void encode_into(const Tensor& payload, const Tensors& x, const Offsets& offsets,
                          const std::optional<Tensor>& residual, int64_t numel, int64_t bits, int64_t bucket_size,
                          bool stochastic, int64_t seed, double alpha, double beta,
                          const std::optional<Tensor>& bucket_ids) {
    const Layout layout = checked_layout(numel, bits, bucket_size);
    check_payload(payload, layout.payload_bytes());
    check_pieces(x, offsets, payload);
    check_apart(payload, "payload", bucket_ids, "bucket_ids");
    Device::encode({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
                    checked_ids(bucket_ids, layout.buckets(), payload, residual),
                    checked_residual(residual, numel, payload, x), alpha, beta},
                   x, offsets, payload);
  }

  static void reduce_encode_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                                 int64_t numel, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed,
                                 double alpha, double beta, const std::optional<Tensor>& bucket_ids) {
    const Layout layout = checked_layout(numel, bits, bucket_size);
    const int64_t gap = checked_gap(payloads, layout.payload_bytes());
    check_written_payload(payload, layout.payload_bytes(), payloads, residual, bucket_ids);
    Device::reduce_encode({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
                           checked_ids(bucket_ids, layout.buckets(), payloads, residual),
                           checked_residual(residual, numel, payloads), alpha, beta,
                           static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
                          payload);
  }
};

}  // namespace mqgrad
