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
#include "reduce.h"
#include "scattered_checks.h"

namespace mqgrad {
namespace {

constexpr int64_t kGrain = 32768;  // elements: below this a thread costs more than it saves

template <typename F>
void parallel_chunks(int64_t numel, const F& f) {
  torch::stable::parallel_for(0, ceil_divide(numel, kChunk), kGrain / kChunk, f);
}

template <typename F>
void parallel_units(const Layout& layout, const F& f) {
  const int64_t per_unit = buckets_per_unit(layout);
  const int64_t grain = std::max<int64_t>(1, kGrain / (per_unit * layout.bucket_size));
  torch::stable::parallel_for(0, ceil_divide(layout.buckets(), per_unit), grain, f);
}

// Of `vector`, where the arguments have an x.
void run_encode(const EncodeArguments& arguments, const Scattered& vector, const Tensor& payload) {
  const Layout& layout = arguments.layout;
  check_payload(payload, layout.payload_bytes());
  uint8_t* bytes = written_bytes(payload);
  const int64_t unit = buckets_per_unit(layout) * layout.bucket_size;
  parallel_units(layout, [&](int64_t begin, int64_t end) {
    vector.read(begin * unit, std::min(end * unit, layout.numel), unit,
                [&](const void* x, ScalarType dtype, int64_t from, int64_t to) {
                  EncodeArguments part = arguments;
                  part.x = x;
                  part.dtype = dtype;
                  part.x_begin = from;
                  encode_units(part, from / unit, ceil_divide(to, unit), bytes);
                });
  });
}

void encode_into(const Tensor& payload, const Tensors& x, const Offsets& offsets, const std::optional<Tensor>& residual,
                 int64_t numel, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed, double alpha,
                 double beta, const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  check_pieces(x, offsets, payload);
  check_apart(payload, "payload", bucket_ids, "bucket_ids");
  run_encode({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
              checked_ids(bucket_ids, layout.buckets(), payload, residual),
              checked_residual(residual, numel, payload, x), alpha, beta},
             read_from(x, offsets), payload);
}

void reduce_encode_into(const Tensor& payload, const Tensor& payloads, const std::optional<Tensor>& residual,
                        int64_t numel, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed, double alpha,
                        double beta, const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  const int64_t gap = checked_gap(payloads, layout.payload_bytes());
  check_written_payload(payload, layout.payload_bytes(), payloads, residual, bucket_ids);
  const EncodeArguments arguments{nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
                                  checked_ids(bucket_ids, layout.buckets(), payloads, residual),
                                  checked_residual(residual, numel, payloads), alpha, beta,
                                  static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap};
  uint8_t* bytes = written_bytes(payload);
  parallel_units(layout, [&](int64_t begin, int64_t end) { encode_units(arguments, begin, end, bytes); });
}

void run_decode(const Scattered& vector, const Tensor& payload, const Layout& layout, bool add) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
    vector.write(begin * kChunk, std::min(end * kChunk, layout.numel), 8, [&](float* out, int64_t from, int64_t to) {
      decode_range(bytes, layout, from, to, add, out);
    });
  });
}

void decode_into(const Tensors& out, const Offsets& offsets, const Tensor& payload, int64_t numel, int64_t bits,
                 int64_t bucket_size) {
  check_pieces(out, offsets, payload);
  run_decode(written_to(out, offsets), payload, checked_layout(numel, bits, bucket_size), false);
}

Tensor decode(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  check_payload(payload, checked_layout(numel, bits, bucket_size).payload_bytes());  // before numel is allocated
  const Tensor out = new_output(payload, numel, ScalarType::Float);
  decode_into({out}, {0}, payload, numel, bits, bucket_size);
  return out;
}

// A chunk at a time, whose sum stays in the cache.
void decode_mean_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel, int64_t bits,
                      int64_t bucket_size) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  const int64_t stride = layout.payload_bytes() + checked_gap(payloads, layout.payload_bytes());
  check_pieces(out, offsets, payloads);
  const Scattered vector = written_to(out, offsets);
  const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
  const auto mean = [&](float* values, int64_t from, int64_t to) {
    mean_of(payloads.size(0), to - from, values,
            [&](int64_t k) { decode_range(bytes + k * stride, layout, from, to, true, values); });
  };
  parallel_chunks(numel, [&](int64_t begin, int64_t end) {
    vector.write(begin * kChunk, std::min(end * kChunk, numel), 8, [&](float* values, int64_t from, int64_t to) {
      for (int64_t at = from; at < to; at += kChunk) mean(values + (at - from), at, std::min(at + kChunk, to));
    });
  });
}

void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  const int64_t numel = accumulator.numel();
  check_floats(accumulator, numel, payload, "accumulator");
  run_decode(written_to({accumulator}, {0}), payload, checked_layout(numel, bits, bucket_size), true);
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
  uint8_t* bytes = written_bytes(payload);
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
      "encode_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool stochastic, int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def(
      "reduce_encode_into(Tensor(a!) payload, Tensor payloads, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool stochastic, int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def("decode(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_into(Tensor(a!)[] out, int[] offsets, Tensor payload, int numel, int bits, int bucket_size) -> ()");
  m.def(
      "decode_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int bits, int bucket_size) -> ()");
  m.def("decode_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
  m.def("encode_minmax(Tensor x, int bits) -> Tensor");
  m.def("decode_minmax(Tensor payload, int rows, int columns, int bits) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_into", TORCH_BOX(&encode_into));
  m.impl("reduce_encode_into", TORCH_BOX(&reduce_encode_into));
  m.impl("decode", TORCH_BOX(&decode));
  m.impl("decode_into", TORCH_BOX(&decode_into));
  m.impl("decode_mean_into", TORCH_BOX(&decode_mean_into));
  m.impl("decode_add_", TORCH_BOX(&decode_add_));
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
