// What the ops demand of their tensors, on the CPU and on CUDA. Most of the Python wrappers in cuda_ext check first and
// say more; these checks guard the memory when torch.ops.mqgrad is called directly.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels.h"

namespace mqgrad {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline int64_t ceil_divide(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

inline Layout checked_layout(int64_t numel, int64_t bits, int64_t bucket_size) {
  STD_TORCH_CHECK(numel >= 0, "mqgrad: numel must not be negative, got ", numel);
  STD_TORCH_CHECK(bits >= 1 && bits <= 8, "mqgrad: bits must be in 1..8, got ", bits);
  STD_TORCH_CHECK(bucket_size >= 1, "mqgrad: bucket_size must be positive, got ", bucket_size);
  STD_TORCH_CHECK(Layout({numel, static_cast<int>(bits), bucket_size}).is_valid(),
                  "mqgrad: numel must be at most 2^56, got ", numel);
  // A bucket never holds more than the tensor; the random numbers do not depend on bucket_size.
  return {numel, static_cast<int>(bits), std::min(bucket_size, std::max<int64_t>(numel, 1))};
}

inline void check_input(const Tensor& x, int64_t dimensions) {
  const ScalarType type = x.scalar_type();
  STD_TORCH_CHECK(type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half ||
                      type == ScalarType::BFloat16,
                  "mqgrad: x must be float32, float64, float16 or bfloat16");
  STD_TORCH_CHECK(x.dim() == dimensions, "mqgrad: x must have ", dimensions, " dimensions, got ", x.dim());
  STD_TORCH_CHECK(x.is_contiguous(), "mqgrad: x must be contiguous");
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() == b.is_cpu() && a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index();
}

// From the first to the last element.
inline int64_t extent(const Tensor& t) {
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  return (last + 1) * static_cast<int64_t>(t.element_size());
}

// Kernels read and write at once, on several threads.
inline void check_apart(const Tensor& written, const char* name, const std::optional<Tensor>& read,
                        const char* read_name) {
  if (!read.has_value() || written.numel() == 0 || read->numel() == 0) return;
  const auto begin = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()); };
  const auto end = [&](const Tensor& t) { return begin(t) + static_cast<uintptr_t>(extent(t)); };
  STD_TORCH_CHECK(end(written) <= begin(*read) || end(*read) <= begin(written), "mqgrad: ", name,
                  " must not share memory with ", read_name);
}

// Of a tensor that is written. `beside`: the one that is read meanwhile, whose device it must share.
inline void check_floats(const Tensor& t, int64_t numel, const Tensor& beside, const char* name) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Float && t.dim() == 1 && t.is_contiguous(), "mqgrad: ", name,
                  " must be a contiguous 1-D float32 tensor");
  STD_TORCH_CHECK(same_device(t, beside), "mqgrad: ", name, " must be on the device of the other tensors");
  STD_TORCH_CHECK(t.numel() == numel, "mqgrad: ", name, " must have ", numel, " elements, got ", t.numel());
  check_apart(t, name, beside, "the input");
}

inline float* checked_residual(const std::optional<Tensor>& residual, int64_t numel, const Tensor& beside) {
  if (!residual.has_value()) return nullptr;
  check_floats(*residual, numel, beside, "residual");
  return static_cast<float*>(residual->mutable_data_ptr());
}

inline void check_payload(const Tensor& payload, int64_t bytes) {
  STD_TORCH_CHECK(payload.scalar_type() == ScalarType::Byte && payload.dim() == 1 && payload.is_contiguous(),
                  "mqgrad: payload must be a contiguous 1-D uint8 tensor");
  STD_TORCH_CHECK(payload.numel() == bytes, "mqgrad: payload must have ", bytes, " bytes, got ", payload.numel());
}

// Of a payload that is written while others are read.
inline void check_written_payload(const Tensor& payload, int64_t bytes, const Tensor& payloads,
                                  const std::optional<Tensor>& residual,
                                  const std::optional<Tensor>& bucket_ids = std::nullopt) {
  check_payload(payload, bytes);
  STD_TORCH_CHECK(same_device(payload, payloads), "mqgrad: payload must be on the device of payloads");
  check_apart(payload, "payload", payloads, "payloads");
  check_apart(payload, "payload", residual, "residual");
  check_apart(payload, "payload", bucket_ids, "bucket_ids");
}

// Returns the bytes between one and the next: on the CPU payloads may be parts of the rows of a tensor.
inline int64_t checked_gap(const Tensor& payloads, int64_t bytes) {
  STD_TORCH_CHECK(payloads.scalar_type() == ScalarType::Byte && payloads.dim() == 2,
                  "mqgrad: payloads must be a 2-D uint8 tensor");
  STD_TORCH_CHECK(payloads.size(0) >= 1, "mqgrad: payloads must have at least one row");
  STD_TORCH_CHECK(payloads.size(1) == bytes, "mqgrad: payloads must have rows of ", bytes, " bytes, got ",
                  payloads.size(1));
  if (payloads.is_contiguous()) return 0;
  STD_TORCH_CHECK(payloads.is_cpu() && payloads.stride(1) == 1 && payloads.stride(0) >= bytes,
                  "mqgrad: payloads must have contiguous rows, one behind the other, on CUDA without gaps");
  return payloads.stride(0) - bytes;
}

// R parts of a vector, each `stride` elements behind the one before, and their payloads [R, P].
struct Parts {
  int64_t count;
  int64_t span;           // elements from the first part to the last
  int64_t bytes_to_next;  // from one payload to the next
};

// `bytes` and `numel` are of a part. Of empty payloads, of which there may be any number, nothing is to be done.
inline Parts checked_parts(const Tensor& payloads, int64_t bytes, int64_t numel, int64_t stride, int64_t bucket_size) {
  const int64_t bytes_to_next = bytes + checked_gap(payloads, bytes);
  const int64_t count = payloads.size(0);
  STD_TORCH_CHECK(stride >= numel && stride % bucket_size == 0, "mqgrad: stride must be a multiple of ", bucket_size,
                  " and at least ", numel, ", got ", stride);
  STD_TORCH_CHECK(stride <= (int64_t{1} << 56) / count, "mqgrad: ", count, " parts of ", stride,
                  " elements are more than 2^56");
  return {bytes == 0 ? 0 : count, (count - 1) * stride + numel, bytes_to_next};
}

inline const int64_t* checked_ids(const std::optional<Tensor>& ids, int64_t buckets, const Tensor& beside,
                                  const std::optional<Tensor>& residual) {
  if (!ids.has_value()) return nullptr;
  STD_TORCH_CHECK(ids->scalar_type() == ScalarType::Long && ids->dim() == 1 && ids->is_contiguous(),
                  "mqgrad: bucket_ids must be a contiguous 1-D int64 tensor");
  STD_TORCH_CHECK(same_device(*ids, beside), "mqgrad: bucket_ids must be on the device of x");
  STD_TORCH_CHECK(ids->numel() == buckets, "mqgrad: bucket_ids must have ", buckets, " elements, got ", ids->numel());
  if (residual.has_value()) check_apart(*residual, "residual", ids, "bucket_ids");
  return static_cast<const int64_t*>(ids->const_data_ptr());
}

// Neither rows nor columns are negative.
inline int64_t minmax_bytes(Matrix shape, int64_t bits) {
  STD_TORCH_CHECK(shape.columns == 0 || shape.rows <= (int64_t{1} << 56) / shape.columns,
                  "mqgrad: rows * columns must be at most 2^56, got ", shape.rows, " * ", shape.columns);
  const Layout codes = checked_layout(shape.rows * shape.columns, bits, 1);
  return codes.numel == 0 ? 0 : 8 * shape.columns + codes.payload_bytes() - codes.scale_bytes();
}

}  // namespace mqgrad
