// The ops of width 16: schemas, and the CPU's kernels.
#include "bfloat16_ops.h"

#include <torch/csrc/stable/library.h>

#include "new_output.h"

namespace mqgrad {
namespace {

constexpr int64_t kGrain = 32768;  // elements: below this a thread costs more than it saves

struct Cpu {
  static Tensor new_output(const Tensor& like, int64_t numel, ScalarType dtype) {
    return mqgrad::new_output(like, numel, dtype);
  }

  static void encode(const Bfloat16Arguments& arguments, const Tensor& payload) {
    uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
    torch::stable::parallel_for(0, arguments.numel, kGrain, [&](int64_t begin, int64_t end) {
      encode_bfloat16_range(arguments, begin, end, bytes);
    });
  }

  static void decode(const Tensor& payload, bool add, const Tensor& out) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
    float* values = static_cast<float*>(out.mutable_data_ptr());
    torch::stable::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
      decode_bfloat16_range(bytes, begin, end, add, values);
    });
  }
};

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
  m.impl("encode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cpu>::encode));
  m.impl("reduce_encode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cpu>::reduce_encode));
  m.impl("decode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cpu>::decode));
  m.impl("decode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cpu>::decode_into));
  m.impl("decode_bfloat16_add_", TORCH_BOX(&Bfloat16Ops<Cpu>::decode_add_));
}

}  // namespace mqgrad
