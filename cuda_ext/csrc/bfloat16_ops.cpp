// The ops of width 16: tensors, checks, schemas.
#include <torch/csrc/stable/library.h>

#include "bfloat16.h"
#include "new_output.h"
#include "op_checks.h"

namespace mqgrad {
namespace {

constexpr int64_t kGrain = 32768;  // elements: below this a thread costs more than it saves

int64_t checked_bytes(int64_t numel) {
  STD_TORCH_CHECK(numel >= 0 && numel <= int64_t{1} << 56, "mqgrad: numel must be in 0..2^56, got ", numel);
  return 2 * numel;
}

Tensor run_encode(const Bfloat16Arguments& arguments, const Tensor& like) {
  const Tensor payload = new_output(like, checked_bytes(arguments.numel), ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  torch::stable::parallel_for(0, arguments.numel, kGrain, [&](int64_t begin, int64_t end) {
    encode_bfloat16_range(arguments, begin, end, bytes);
  });
  return payload;
}

Tensor encode_bfloat16(const Tensor& x, const std::optional<Tensor>& residual, double alpha, double beta) {
  check_input(x, 1);
  return run_encode({x.const_data_ptr(), x.scalar_type(), x.numel(), checked_residual(residual, x.numel(), x), alpha,
                     beta},
                    x);
}

Tensor reduce_encode_bfloat16(const Tensor& payloads, const std::optional<Tensor>& residual, int64_t numel,
                              double alpha, double beta) {
  check_payloads(payloads, checked_bytes(numel));
  return run_encode({nullptr, ScalarType::Float, numel, checked_residual(residual, numel, payloads), alpha, beta,
                     static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0)},
                    payloads);
}

void run_decode(const Tensor& out, const Tensor& payload, bool add) {
  check_payload(payload, checked_bytes(out.numel()));
  const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
  float* values = static_cast<float*>(out.mutable_data_ptr());
  torch::stable::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    decode_bfloat16_range(bytes, begin, end, add, values);
  });
}

Tensor decode_bfloat16(const Tensor& payload, int64_t numel) {
  check_payload(payload, checked_bytes(numel));  // before numel is allocated
  const Tensor out = new_output(payload, numel, ScalarType::Float);
  run_decode(out, payload, false);
  return out;
}

void decode_bfloat16_into(const Tensor& out, const Tensor& payload) {
  check_floats(out, out.numel(), payload, "out");
  run_decode(out, payload, false);
}

void decode_bfloat16_add_(const Tensor& accumulator, const Tensor& payload) {
  check_floats(accumulator, accumulator.numel(), payload, "accumulator");
  run_decode(accumulator, payload, true);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("encode_bfloat16(Tensor x, Tensor(a!)? residual, float alpha, float beta) -> Tensor");
  m.def(
      "reduce_encode_bfloat16(Tensor payloads, Tensor(a!)? residual, int numel, float alpha, float beta) -> Tensor");
  m.def("decode_bfloat16(Tensor payload, int numel) -> Tensor");
  m.def("decode_bfloat16_into(Tensor(a!) out, Tensor payload) -> ()");
  m.def("decode_bfloat16_add_(Tensor(a!) accumulator, Tensor payload) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_bfloat16", TORCH_BOX(&encode_bfloat16));
  m.impl("reduce_encode_bfloat16", TORCH_BOX(&reduce_encode_bfloat16));
  m.impl("decode_bfloat16", TORCH_BOX(&decode_bfloat16));
  m.impl("decode_bfloat16_into", TORCH_BOX(&decode_bfloat16_into));
  m.impl("decode_bfloat16_add_", TORCH_BOX(&decode_bfloat16_add_));
}

}  // namespace mqgrad
