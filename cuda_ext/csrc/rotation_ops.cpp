// The ops of the rotated codes: tensors, checks, schemas.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>

#include "rotation_checks.h"

namespace mqgrad {
namespace {

int64_t grain(const RotationLayout& layout) {
  return std::max<int64_t>(1, 16384 / layout.bucket_size);
}

Tensor encode_rotated(const Tensor& x, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed) {
  check_input(x, 1);
  const RotationLayout layout = checked_rotation_layout(x.numel(), bits, bucket_size);
  Tensor payload = torch::stable::new_empty(x, {layout.payload_bytes()}, ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  std::memcpy(bytes, &seed, kSeedBytes);
  const void* data = x.const_data_ptr();
  const ScalarType dtype = x.scalar_type();
  torch::stable::parallel_for(0, layout.buckets(), grain(layout), [&](int64_t begin, int64_t end) {
    encode_rotated_buckets(data, dtype, layout, unbiased, static_cast<uint64_t>(seed), begin, end, bytes);
  });
  return payload;
}

void run_decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensor& out) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  torch::stable::parallel_for(0, layout.buckets(), grain(layout), [&](int64_t begin, int64_t end) {
    decode_rotated_buckets(bytes, layout, begin, end, add, values);
  });
}

Tensor decode_rotated(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());
  Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, out);
  return out;
}

void decode_rotated_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(payload, checked_rotation_layout(accumulator.numel(), bits, bucket_size), true, accumulator);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("encode_rotated(Tensor x, int bits, int bucket_size, bool unbiased, int seed) -> Tensor");
  m.def("decode_rotated(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_rotated_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated", TORCH_BOX(&encode_rotated));
  m.impl("decode_rotated", TORCH_BOX(&decode_rotated));
  m.impl("decode_rotated_add_", TORCH_BOX(&decode_rotated_add_));
}

}  // namespace mqgrad
