// What the decode ops of the uniform and the rotated codes demand of their arguments, for any device.
#pragma once

#include "new_output.h"
#include "scattered_checks.h"

namespace mqgrad {

// Device::decode(payload, layout, add, out, offsets) and Device::decode_mean(payloads, stride, layout, out, offsets), whose
// payloads are `stride` bytes apart, write tensors of the right sizes. CHECKED makes a layout of numel, bits and bucket_size.
template <typename Device, auto CHECKED>
struct DecodeOps {
  static Tensor decode(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
    const auto layout = CHECKED(numel, bits, bucket_size);
    check_payload(payload, layout.payload_bytes());  // before numel is allocated
    const Tensor out = new_floats(payload, numel);
    Device::decode(payload, layout, false, {out}, {0});
    return out;
  }

  static void decode_into(const Tensors& out, const Offsets& offsets, const Tensor& payload, int64_t numel, int64_t bits,
                          int64_t bucket_size) {
    const auto layout = CHECKED(numel, bits, bucket_size);
    check_payload(payload, layout.payload_bytes());
    check_pieces(out, offsets, payload);
    Device::decode(payload, layout, false, out, offsets);
  }

  static void decode_mean_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                               int64_t bits, int64_t bucket_size) {
    const auto layout = CHECKED(numel, bits, bucket_size);
    const int64_t stride = layout.payload_bytes() + checked_gap(payloads, layout.payload_bytes());
    check_pieces(out, offsets, payloads);
    Device::decode_mean(payloads, stride, layout, out, offsets);
  }

  static void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
    const auto layout = CHECKED(accumulator.numel(), bits, bucket_size);
    check_floats(accumulator, layout.numel, payload, "accumulator");
    check_payload(payload, layout.payload_bytes());
    Device::decode(payload, layout, true, {accumulator}, {0});
  }
};

}  // namespace mqgrad
