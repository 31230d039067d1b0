// The ops of MQGrad's quantizer: schemas, and what runs on CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "new_output.h"
#include "op_checks.h"
#include "parallel.h"

namespace mqgrad {
namespace {

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

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("encode_minmax(Tensor x, int bits) -> Tensor");
  m.def("decode_minmax(Tensor payload, int rows, int columns, int bits) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_minmax", TORCH_BOX(&encode_minmax));
  m.impl("decode_minmax", TORCH_BOX(&decode_minmax));
}

}  // namespace mqgrad
