// The ops of the rotated codes: tensors, checks, schemas.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "rotation_checks.h"

namespace mqgrad {
namespace {

template <typename F>
void parallel_buckets(const RotationLayout& layout, const F& f) {
  constexpr int64_t kGrain = 16384;  // elements: below this a thread costs more than it saves
  torch::stable::parallel_for(0, layout.buckets(), std::max<int64_t>(1, kGrain / layout.bucket_size), f);
}

// A new payload on the device of `like`.
Tensor run_encode(const RotatedArguments& arguments, const Tensor& like) {
  Tensor payload = torch::stable::new_empty(like, {arguments.layout.payload_bytes()}, ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  store_seed(bytes, arguments.seed);
  parallel_buckets(arguments.layout, [&](int64_t begin, int64_t end) {
    encode_rotated_buckets(arguments, begin, end, bytes);
  });
  return payload;
}

Tensor encode_rotated(const Tensor& x, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed) {
  check_input(x, 1);
  const RotationLayout layout = checked_rotation_layout(x.numel(), bits, bucket_size);
  return run_encode({x.const_data_ptr(), x.scalar_type(), layout, unbiased, static_cast<uint64_t>(seed)}, x);
}

Tensor encode_rotated_with_feedback(const Tensor& x, const Tensor& residual, int64_t bits, int64_t bucket_size,
                                    bool unbiased, int64_t seed, double alpha, double beta) {
  check_input(x, 1);
  const RotationLayout layout = checked_rotation_layout(x.numel(), bits, bucket_size);
  return run_encode({x.const_data_ptr(), x.scalar_type(), layout, unbiased, static_cast<uint64_t>(seed),
                     checked_residual(residual, layout.numel, x), alpha, beta},
                    x);
}

Tensor reduce_encode_rotated(const Tensor& payloads, const std::optional<Tensor>& residual, int64_t numel, int64_t bits,
                             int64_t bucket_size, bool unbiased, int64_t seed, double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  const int64_t gap = checked_gap(payloads, layout.payload_bytes());
  return run_encode({nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                     checked_residual(residual, numel, payloads), alpha, beta,
                     static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
                    payloads);
}

void run_decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensor& out) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  parallel_buckets(layout, [&](int64_t begin, int64_t end) {
    decode_rotated_buckets(bytes, layout, begin, end, add, values);
  });
}

Tensor decode_rotated(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());  // before numel is allocated
  Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, out);
  return out;
}

void decode_rotated_into(const Tensor& out, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(out, out.numel(), payload, "out");
  run_decode(payload, checked_rotation_layout(out.numel(), bits, bucket_size), false, out);
}

void decode_rotated_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(payload, checked_rotation_layout(accumulator.numel(), bits, bucket_size), true, accumulator);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("encode_rotated(Tensor x, int bits, int bucket_size, bool unbiased, int seed) -> Tensor");
  m.def(
      "encode_rotated_with_feedback(Tensor x, Tensor(a!) residual, int bits, int bucket_size, bool unbiased, int seed, "
      "float alpha, float beta) -> Tensor");
  m.def(
      "reduce_encode_rotated(Tensor payloads, Tensor(a!)? residual, int numel, int bits, int bucket_size, "
      "bool unbiased, int seed, float alpha, float beta) -> Tensor");
  m.def("decode_rotated(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_rotated_into(Tensor(a!) out, Tensor payload, int bits, int bucket_size) -> ()");
  m.def("decode_rotated_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated", TORCH_BOX(&encode_rotated));
  m.impl("encode_rotated_with_feedback", TORCH_BOX(&encode_rotated_with_feedback));
  m.impl("reduce_encode_rotated", TORCH_BOX(&reduce_encode_rotated));
  m.impl("decode_rotated", TORCH_BOX(&decode_rotated));
  m.impl("decode_rotated_into", TORCH_BOX(&decode_rotated_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&decode_rotated_add_));
}

}  // namespace mqgrad
