// The CUDA kernels of width 16's ops: on the current stream, with no memory but torch's own.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "bfloat16_ops.h"
#include "cuda_bfloat16.h"
#include "cuda_device.h"

namespace mqgrad {
namespace {

struct Cuda {
  static Tensor new_output(const Tensor& like, int64_t numel, ScalarType dtype) {
    return torch::stable::new_empty(like, {numel}, dtype);
  }

  static void encode(const Bfloat16Arguments& arguments, const Tensor& payload) {
    const OnDevice device(payload);
    check_status(
        cuda::encode_bfloat16(arguments, static_cast<uint8_t*>(payload.mutable_data_ptr()), device.stream()));
  }

  static void decode(const Tensor& payload, bool add, const Tensor& out) {
    const OnDevice device(payload);
    check_status(cuda::decode_bfloat16(static_cast<const uint8_t*>(payload.const_data_ptr()), out.numel(), add,
                                       static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cuda>::encode));
  m.impl("reduce_encode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cuda>::reduce_encode));
  m.impl("decode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cuda>::decode));
  m.impl("decode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cuda>::decode_into));
  m.impl("decode_bfloat16_add_", TORCH_BOX(&Bfloat16Ops<Cuda>::decode_add_));
}

}  // namespace mqgrad
