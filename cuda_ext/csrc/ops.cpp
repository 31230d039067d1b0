// The ops: tensors, checks, schemas. The Python wrappers in cuda_ext/ops.py check first and say more; the checks here
// guard the memory when torch.ops.mqgrad is called directly.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 32768;  // elements: below this a thread costs more than it saves

int64_t ceil_divide(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

template <typename F>
void parallel_chunks(int64_t numel, const F& f) {
  torch::stable::parallel_for(0, ceil_divide(numel, kChunk), kGrain / kChunk, f);
}

Layout checked_layout(int64_t numel, int64_t bits, int64_t bucket_size) {
  STD_TORCH_CHECK(numel >= 0, "mqgrad: numel must not be negative, got ", numel);
  STD_TORCH_CHECK(bits >= 1 && bits <= 8, "mqgrad: bits must be in 1..8, got ", bits);
  STD_TORCH_CHECK(bucket_size >= 1, "mqgrad: bucket_size must be positive, got ", bucket_size);
  // A bucket never holds more than the tensor; the random numbers do not depend on bucket_size.
  return {numel, static_cast<int>(bits), std::min(bucket_size, std::max<int64_t>(numel, 1))};
}

void check_input(const Tensor& x, int64_t dimensions) {
  const ScalarType type = x.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
                      type == ScalarType::BFloat16,
                  "mqgrad: x must be float32, float64, float16 or bfloat16");
  STD_TORCH_CHECK(x.dim() == dimensions, "mqgrad: x must have ", dimensions, " dimensions, got ", x.dim());
  STD_TORCH_CHECK(x.is_contiguous(), "mqgrad: x must be contiguous");
}

void check_floats(const Tensor& t, int64_t numel, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float && t.is_cpu() && t.dim() == 1 && t.is_contiguous(), "mqgrad: ",
                  name, " must be a contiguous 1-D float32 tensor on the CPU");
  STD_TORCH_CHECK(t.numel() == numel, "mqgrad: ", name, " must have ", numel, " elements, got ", t.numel());
}

void check_payload(const Tensor& payload, int64_t bytes) {
  STD_TORCH_CHECK(payload.scalar_type() == ScalarType::Byte && payload.dim() == 1 && payload.is_contiguous(),
                  "mqgrad: payload must be a contiguous 1-D uint8 tensor");
  STD_TORCH_CHECK(payload.numel() == bytes, "mqgrad: payload must have ", bytes, " bytes, got ", payload.numel());
}

const int64_t* checked_ids(const std::optional<Tensor>& ids, int64_t buckets) {
  if (!ids.has_value()) return nullptr;
  STD_TORCH_CHECK(ids->scalar_type() == ScalarType::Long && ids->is_cpu() && ids->dim() == 1 && ids->is_contiguous(),
                  "mqgrad: bucket_ids must be a contiguous 1-D int64 tensor on the CPU");
  STD_TORCH_CHECK(ids->numel() == buckets, "mqgrad: bucket_ids must have ", buckets, " elements, got ", ids->numel());
  return static_cast<const int64_t*>(ids->const_data_ptr());
}

Tensor run_encode(const Tensor& x, const EncodeArguments& arguments) {
  const Layout& layout = arguments.layout;
  Tensor payload = torch::stable::new_empty(x, {layout.payload_bytes()}, ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  const int64_t per_unit = buckets_per_unit(layout);
  const int64_t grain = std::max<int64_t>(1, kGrain / (per_unit * layout.bucket_size));
  torch::stable::parallel_for(
      0, ceil_divide(layout.buckets(), per_unit), grain,
      [&](int64_t begin, int64_t end) { encode_units(arguments, begin, end, bytes); });
  return payload;
}

Tensor encode(const Tensor& x, int64_t bits, int64_t bucket_size, bool stochastic, int64_t seed,
              const std::optional<Tensor>& bucket_ids) {
  check_input(x, 1);
  const Layout layout = checked_layout(x.numel(), bits, bucket_size);
  return run_encode(x, {x.const_data_ptr(), x.scalar_type(), layout, stochastic, static_cast<uint64_t>(seed),
                        checked_ids(bucket_ids, layout.buckets()), nullptr, 0, 0});
}

Tensor encode_with_feedback(const Tensor& x, const Tensor& residual, int64_t bits, int64_t bucket_size,
                            bool stochastic, int64_t seed, double alpha, double beta,
                            const std::optional<Tensor>& bucket_ids) {
  check_input(x, 1);
  check_floats(residual, x.numel(), "residual");
  const Layout layout = checked_layout(x.numel(), bits, bucket_size);
  return run_encode(x, {x.const_data_ptr(), x.scalar_type(), layout, stochastic, static_cast<uint64_t>(seed),
                        checked_ids(bucket_ids, layout.buckets()), static_cast<float*>(residual.mutable_data_ptr()),
                        alpha, beta});
}

void run_decode(const Tensor& payload, const Layout& layout, bool add, const Tensor& out) {
  check_payload(payload, layout.payload_bytes());
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
    decode_chunks(bytes, layout, begin, end, add, values);
  });
}

Tensor decode(const Tensor& payload, int64_t numel, int64_t bits, int64_t bucket_size) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  check_payload(payload, layout.payload_bytes());
  Tensor out = torch::stable::new_empty(payload, {numel}, ScalarType::Float);
  run_decode(payload, layout, false, out);
  return out;
}

void decode_add_(const Tensor& accumulator, const Tensor& payload, int64_t bits, int64_t bucket_size) {
  check_floats(accumulator, accumulator.numel(), "accumulator");
  run_decode(payload, checked_layout(accumulator.numel(), bits, bucket_size), true, accumulator);
}

// The payload's statistics, copied to where they are aligned: minimums, then ranges.
std::vector<float> column_statistics(const uint8_t* bytes, int64_t columns) {
  std::vector<float> statistics(2 * columns);
  std::memcpy(statistics.data(), bytes, 8 * columns);
  return statistics;
}

int64_t minmax_bytes(Matrix shape, int64_t bits) {
  const Layout codes = checked_layout(shape.rows * shape.columns, bits, 1);
  return codes.numel == 0 ? 0 : 8 * shape.columns + codes.payload_bytes() - codes.scale_bytes();
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
  m.def("decode(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
  m.def("encode_minmax(Tensor x, int bits) -> Tensor");
  m.def("decode_minmax(Tensor payload, int rows, int columns, int bits) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode", TORCH_BOX(&encode));
  m.impl("encode_with_feedback", TORCH_BOX(&encode_with_feedback));
  m.impl("decode", TORCH_BOX(&decode));
  m.impl("decode_add_", TORCH_BOX(&decode_add_));
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
