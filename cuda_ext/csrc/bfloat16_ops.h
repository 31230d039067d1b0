// The ops of width 16 on tensors, for any device: what they demand of their arguments, and what runs then.
#pragma once

#include "bfloat16.h"
#include "op_checks.h"

namespace mqgrad {

inline int64_t bfloat16_bytes(int64_t numel) {
  STD_TORCH_CHECK(numel >= 0 && numel <= int64_t{1} << 56, "mqgrad: numel must be in 0..2^56, got ", numel);
  return 2 * numel;
}

// Device::new_output(like, numel, dtype) is what a result is written to; Device::encode(arguments, payload) and
// Device::decode(payload, add, out) run the kernels, on tensors of the right sizes.
template <typename Device>
struct Bfloat16Ops {
  static Tensor encode(const Tensor& x, const std::optional<Tensor>& residual, double alpha, double beta) {
    check_input(x, 1);
    return run_encode({x.const_data_ptr(), x.scalar_type(), x.numel(), checked_residual(residual, x.numel(), x), alpha,
                       beta},
                      x);
  }

  static Tensor reduce_encode(const Tensor& payloads, const std::optional<Tensor>& residual, int64_t numel,
                              double alpha, double beta) {
    const int64_t gap = checked_gap(payloads, bfloat16_bytes(numel));
    return run_encode({nullptr, ScalarType::Float, numel, checked_residual(residual, numel, payloads), alpha, beta,
                       static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), gap},
                      payloads);
  }

  static Tensor decode(const Tensor& payload, int64_t numel) {
    check_payload(payload, bfloat16_bytes(numel));  // before numel is allocated
    const Tensor out = Device::new_output(payload, numel, ScalarType::Float);
    run_decode(out, payload, false);
    return out;
  }

  static void decode_into(const Tensor& out, const Tensor& payload) {
    check_floats(out, out.numel(), payload, "out");
    run_decode(out, payload, false);
  }

  static void decode_add_(const Tensor& accumulator, const Tensor& payload) {
    check_floats(accumulator, accumulator.numel(), payload, "accumulator");
    run_decode(accumulator, payload, true);
  }

 private:
  static Tensor run_encode(const Bfloat16Arguments& arguments, const Tensor& like) {
    const Tensor payload = Device::new_output(like, bfloat16_bytes(arguments.numel), ScalarType::Byte);
    Device::encode(arguments, payload);
    return payload;
  }

  static void run_decode(const Tensor& out, const Tensor& payload, bool add) {
    check_payload(payload, bfloat16_bytes(out.numel()));
    Device::decode(payload, add, out);
  }
};

}  // namespace mqgrad
