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

  // Of parts of a vector, on the CPU alone; see checked_parts. Device::decode_part(payload, layout, add, vector, start) writes
  // the elements of a vector from `start` on.
  static void decode_parts_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                                int64_t stride, int64_t bits, int64_t bucket_size) {
    const auto layout = CHECKED(numel, bits, bucket_size);
    const Parts parts = checked_parts(payloads, layout.payload_bytes(), numel, stride, bucket_size);
    check_pieces(out, offsets, payloads);
    const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
    const Scattered vector = written_to(out, offsets);
    for (int64_t part = 0; part < parts.count; ++part) {
      Device::decode_part(bytes + part * parts.bytes_to_next, layout, false, vector, part * stride);
    }
  }
};

}  // namespace mqgrad
