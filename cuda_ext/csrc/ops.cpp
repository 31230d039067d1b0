// The ops: schemas for all devices, and what runs on CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels.h"
#include "new_output.h"
#include "op_checks.h"

namespace mqgrad {
namespace {

constexpr int64_t kGrain = 32768;  // elements: below this a thread costs more than it saves

template <typename F>
void parallel_chunks(int64_t numel, const F& f) {
  torch::stable::parallel_for(0, ceil_divide(numel, kChunk), kGrain / kChunk, f);
}

void run_encode(const EncodeArguments& arguments, const Tensor& payload) {
  const Layout& layout = arguments.layout;
  check_payload(payload, layout.payload_bytes());
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  const int64_t per_unit = buckets_per_unit(layout);
  const int64_t grain = std::max<int64_t>(1, kGrain / (per_unit * layout.bucket_size));
  torch::stable::parallel_for(
      0, ceil_divide(layout.buckets(), per_unit), grain,
      [&](int64_t begin, int64_t end) { encode_units(arguments, begin, end, bytes); });
}

Tensor new_payload(const Tensor& like, const Layout& layout) {
  return new_output(like, layout.payload_bytes(), ScalarType::Byte);
}

void encode_into(const Tensor& payload, const Tensor& x, const std::optional<Tensor>& residual, int64_t bits,
                 int64_t bucket_size, bool stochastic, int64_t seed, double alpha, double beta,
                 const std::optional<Tensor>& bucket_ids) {
  check_input(x, 1);
  STD_TORCH_CHECK(same_device(payload, x), "mqgrad: payload must be on the device of x");
  check_apart(payload, "payload", x, "x");
  check_apart(payload, "payload", residual, "residual");
  check_apart(payload, "payload", bucket_ids, "bucket_ids");
  const Layout layout = checked_layout(x.numel(), bits, bucket_size);
  run_encode({x.const_data_ptr(), x.scalar_type(), layout, stochastic, static_cast<uint64_t>(seed),
              checked_ids(bucket_ids, layout.buckets(), x, residual), checked_residual(residual, layout.numel, x), alpha,
              beta},
             payload);
}

Tensor encode_with_feedback(const Tensor& x, const Tensor& residual, int64_t bits, int64_t bucket_size,
                            bool stochastic, int64_t seed, double alpha, double beta,
                            const std::optional<Tensor>& bucket_ids) {
  const Tensor payload = new_payload(x, checked_layout(x.numel(), bits, bucket_size));
  encode_into(payload, x, residual, bits, bucket_size, stochastic, seed, alpha, beta, bucket_ids);
  return payload;
}

Tensor encode(const Tensor& x, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed,
              const std::optional<Tensor>& bucket_ids) {
  const Tensor payload = new_payload(x, checked_layout(x.numel(), bits, bucket_size));
  encode_into(payload, x, std::nullopt, bits, bucket_size, stochastic, seed, 0, 0, bucket_ids);
  return payload;
}

Tensor reduce_encode(const Tensor& payloads, const std::optional<Tensor>& residual, int64_t numel, int64_t bits,
                     int64_t bucket_size, bool stochastic, int64_t seed, double alpha, double beta,
                     const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  const int64_t gap = checked_gap(payloads, layout.payload_bytes());
  const Tensor payload = new_payload(payloads, layout);
  run_encode({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
              checked_ids(bucket_ids, layout.buckets(), payloads, residual), checked_residual(residual, numel, payloads),
              alpha, beta, static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
             payload);
  return payload;
}

void run_decode(const Tensor& out, const Tensor& payload, int64_t bits, int64_t bucket_size, bool add) {
  const Layout layout = checked_layout(out.numel(), bits, bucket_size);
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kChunk;
    decode_range(bytes, layout, first, std::min(end * kChunk, layout.numel), add, values + first);
  });
}

Tensor decode(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  check_payload(payload, checked_layout(numel, bits, bucket_size).payload_bytes());  // before numel is allocated
  const Tensor out = new_output(payload, numel, ScalarType::Float);
  run_decode(out, payload, bits, bucket_size, false);
  return out;
}

void decode_into(const Tensor& out, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(out, out.numel(), payload, "out");
  run_decode(out, payload, bits, bucket_size, false);
}

void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(accumulator, payload, bits, bucket_size, true);
}

// The payload's statistics, copied to where they are aligned: minimums, then ranges.
std::vector<float> column_statistics(const uint8_t* bytes, int64_t columns) {
  std::vector<float> statistics(2 * columns);
  std::memcpy(statistics.data(), bytes, 8 * columns);
  return statistics;
}

Tensor encode_minmax(const Tensor& x, int64_t bits) {
  check_input(x, 2);
  const Matrix shape{x.size(0), x.size(1)};
  Tensor payload = torch::stable::new_empty(x, {minmax_bytes(shape, bits)}, ScalarType::Byte);
  if (x.numel() == 0) return payload;
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  float* minimums = reinterpret_cast<float*>(bytes);  // a fresh tensor is aligned
  float* ranges = minimums + shape.columns;
  const void* data = x.const_data_ptr();
  const ScalarType dtype = x.scalar_type();
  torch::stable::parallel_for(
      0, shape.columns, std::max<int64_t>(16, kGrain / shape.rows),
      [&](int64_t begin, int64_t end) { minmax_columns(data, dtype, shape, begin, end, minimums, ranges); });
  parallel_chunks(x.numel(), [&](int64_t begin, int64_t end) {
    encode_minmax_chunks(data, dtype, shape, static_cast<int>(bits), begin, end, minimums, ranges,
                         bytes + 8 * shape.columns);
  });
  return payload;
}

Tensor decode_minmax(const Tensor& payload, int64_t rows, int64_t columns, int64_t bits) {
  STD_TORCH_CHECK(rows >= 0 && columns >= 0, "mqgrad: rows and columns must not be negative, got ", rows, ", ", columns);
  const Matrix shape{rows, columns};
  check_payload(payload, minmax_bytes(shape, bits));
  Tensor out = torch::stable::new_empty(payload, {rows, columns}, ScalarType::Float);
  if (out.numel() == 0) return out;
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  const std::vector<float> statistics = column_statistics(bytes, columns);
  float* values = static_cast<float*>(out.mutable_data_ptr());
  parallel_chunks(out.numel(), [&](int64_t begin, int64_t end) {
    decode_minmax_chunks(bytes + 8 * columns, shape, static_cast<int>(bits), begin, end, statistics.data(),
                         statistics.data() + columns, values);
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY(mqgrad, m) {
  m.def(
      "encode(Tensor x, int bits, int bucket_size, bool stochastic, int seed, Tensor? bucket_ids=None) -> Tensor");
  m.def(
      "encode_with_feedback(Tensor x, Tensor(a!) residual, int bits, int bucket_size, bool stochastic, int seed, "
      "float alpha, float beta, Tensor? bucket_ids=None) -> Tensor");
  m.def(
      "encode_into(Tensor(a!) payload, Tensor x, Tensor(b!)? residual, int bits, int bucket_size, bool stochastic, "
      "int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def(
      "reduce_encode(Tensor payloads, Tensor(a!)? residual, int numel, int bits, int bucket_size, bool stochastic, "
      "int seed, float alpha, float beta, Tensor? bucket_ids=None) -> Tensor");
  m.def("decode(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_into(Tensor(a!) out, Tensor payload, int bits, int bucket_size) -> ()");
  m.def("decode_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
  m.def("encode_minmax(Tensor x, int bits) -> Tensor");
  m.def("decode_minmax(Tensor payload, int rows, int columns, int bits) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("encode_with_feedback", TORCH_BOX(&encode_with_feedback));
  m.impl("encode_into", TORCH_BOX(&encode_into));
  m.impl("reduce_encode", TORCH_BOX(&reduce_encode));
  m.impl("decode", TORCH_BOX(&decode));
  m.impl("decode_into", TORCH_BOX(&decode_into));
  m.impl("decode_add_", TORCH_BOX(&decode_add_));
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
