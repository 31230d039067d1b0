// The ops of the rotated codes: tensors, checks, schemas.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "new_output.h"
#include "rotation_checks.h"
#include "scattered_checks.h"

namespace mqgrad {
namespace {

template <typename F>
void parallel_buckets(const RotationLayout& layout, const F& f) {
  constexpr int64_t kGrain = 16384;  // elements: below this a thread costs more than it saves
  torch::stable::parallel_for(0, layout.buckets(), std::max<int64_t>(1, kGrain / layout.bucket_size), f);
}

// The seed, and then whole buckets by f(first, behind the last, payload).
template <typename F>
void write_payload(const RotationLayout& layout, uint64_t seed, const Tensor& payload, const F& f) {
  check_payload(payload, layout.payload_bytes());
  uint8_t* bytes = written_bytes(payload);
  store_seed(bytes, seed);
  parallel_buckets(layout, [&](int64_t begin, int64_t end) { f(begin, end, bytes); });
}

void encode_rotated_into(const Tensor& payload, const Tensors& x, const Offsets& offsets,
                         const std::optional<Tensor>& residual, int64_t numel, int64_t bits, int64_t bucket_size,
                         bool unbiased, int64_t seed, double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_pieces(x, offsets, payload);
  const RotatedArguments arguments{nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                                   checked_residual(residual, numel, payload, x), alpha, beta};
  const Scattered vector = read_from(x, offsets);
  write_payload(layout, arguments.seed, payload, [&](int64_t begin, int64_t end, uint8_t* bytes) {
    vector.read(begin * bucket_size, std::min(end * bucket_size, numel), bucket_size,
                [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
                  RotatedArguments part = arguments;
                  part.x = data;
                  part.dtype = dtype;
                  part.x_begin = from;
                  encode_rotated_buckets(part, from / bucket_size, ceil_divide(to, bucket_size), bytes);
                });
  });
}

void reduce_encode_rotated_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                                int64_t numel, int64_t bits, int64_t bucket_size, bool unbiased, int64_t seed,
                                double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  const int64_t gap = checked_gap(payloads, layout.payload_bytes());
  check_written_payload(payload, layout.payload_bytes(), payloads, residual);
  const RotatedArguments arguments{nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                                   checked_residual(residual, numel, payloads), alpha, beta,
                                   static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap};
  write_payload(layout, arguments.seed, payload, [&](int64_t begin, int64_t end, uint8_t* bytes) {
    encode_rotated_buckets(arguments, begin, end, bytes);
  });
}

void run_decode(const Tensor& payload, const RotationLayout& layout, bool add, const Scattered& vector) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  const int64_t size = layout.bucket_size;
  parallel_buckets(layout, [&](int64_t begin, int64_t end) {
    vector.write(begin * size, std::min(end * size, layout.numel), size, [&](float* out, int64_t from, int64_t to) {
      decode_rotated_buckets(bytes, layout, from / size, ceil_divide(to, size), add, out);
    });
  });
}

void decode_rotated_into(const Tensors& out, const Offsets& offsets, const Tensor& payload, int64_t numel, int64_t bits,
                         int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_pieces(out, offsets, payload);
  run_decode(payload, layout, false, written_to(out, offsets));
}

void decode_rotated_mean_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                              int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  const int64_t stride = layout.payload_bytes() + checked_gap(payloads, layout.payload_bytes());
  check_pieces(out, offsets, payloads);
  const Scattered vector = written_to(out, offsets);
  const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
  const int64_t size = bucket_size;
  parallel_buckets(layout, [&](int64_t begin, int64_t end) {
    vector.write(begin * size, std::min(end * size, numel), size, [&](float* values, int64_t from, int64_t to) {
      decode_rotated_means(bytes, payloads.size(0), stride, layout, from / size, ceil_divide(to, size), values);
    });
  });
}

Tensor decode_rotated(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());  // before numel is allocated
  Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, written_to({out}, {0}));
  return out;
}

void decode_rotated_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(payload, checked_rotation_layout(accumulator.numel(), bits, bucket_size), true,
             written_to({accumulator}, {0}));
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def(
      "encode_rotated_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool unbiased, int seed, float alpha, float beta) -> ()");
  m.def(
      "reduce_encode_rotated_into(Tensor(a!) payload, Tensor payloads, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool unbiased, int seed, float alpha, float beta) -> ()");
  m.def("decode_rotated(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def(
      "decode_rotated_into(Tensor(a!)[] out, int[] offsets, Tensor payload, int numel, int bits, int bucket_size) -> ()");
  m.def(
      "decode_rotated_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int bits, "
      "int bucket_size) -> ()");
  m.def("decode_rotated_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated_into", TORCH_BOX(&encode_rotated_into));
  m.impl("reduce_encode_rotated_into", TORCH_BOX(&reduce_encode_rotated_into));
  m.impl("decode_rotated", TORCH_BOX(&decode_rotated));
  m.impl("decode_rotated_into", TORCH_BOX(&decode_rotated_into));
  m.impl("decode_rotated_mean_into", TORCH_BOX(&decode_rotated_mean_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&decode_rotated_add_));
}

}  // namespace mqgrad
