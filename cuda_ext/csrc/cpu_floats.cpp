// fp32 from elements of other types, and back.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>
#include <stdexcept>

#include "bfloat16.h"
#include "clones.h"
#include "kernels.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

MQ_CLONES void from_double(const double* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}

MQ_CLONES void from_half(const c10::Half* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = c10::detail::fp16_ieee_to_fp32_value(x[i].x);
}

MQ_CLONES void from_bfloat16(const c10::BFloat16* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bfloat16_value(x[i].x);
}

MQ_CLONES void to_double(const float* x, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i];
}

MQ_CLONES void to_half(const float* x, int64_t n, c10::Half* out) {
  for (int64_t i = 0; i < n; ++i) out[i].x = c10::detail::fp16_ieee_from_fp32_value(x[i]);
}

MQ_CLONES void to_bfloat16(const float* x, int64_t n, c10::BFloat16* out) {
  for (int64_t i = 0; i < n; ++i) out[i].x = bfloat16_bits(x[i]);
}

[[noreturn]] void refuse_type() {
  throw std::invalid_argument("mqgrad: elements must be float32, float64, float16 or bfloat16");
}

}  // namespace

int64_t bytes_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return 4;
    case ScalarType::Double: return 8;
    case ScalarType::Half: return 2;
    case ScalarType::BFloat16: return 2;
    default: refuse_type();
  }
}

void load_floats(const void* x, ScalarType dtype, int64_t first, int64_t n, float* out) {
  switch (dtype) {
    case ScalarType::Float:
      std::memcpy(out, static_cast<const float*>(x) + first, 4 * n);
      return;
    case ScalarType::Double: return from_double(static_cast<const double*>(x) + first, n, out);
    case ScalarType::Half: return from_half(static_cast<const c10::Half*>(x) + first, n, out);
    case ScalarType::BFloat16: return from_bfloat16(static_cast<const c10::BFloat16*>(x) + first, n, out);
    default: refuse_type();
  }
}

void store_floats(const float* values, ScalarType dtype, int64_t first, int64_t n, void* out) {
  switch (dtype) {
    case ScalarType::Float:
      std::memcpy(static_cast<float*>(out) + first, values, 4 * n);
      return;
    case ScalarType::Double: return to_double(values, n, static_cast<double*>(out) + first);
    case ScalarType::Half: return to_half(values, n, static_cast<c10::Half*>(out) + first);
    case ScalarType::BFloat16: return to_bfloat16(values, n, static_cast<c10::BFloat16*>(out) + first);
    default: refuse_type();
  }
}

}  // namespace mqgrad
