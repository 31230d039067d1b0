// The CUDA kernels of width 16's ops: on the current stream, with no memory but torch's own.
#include <torch/csrc/stable/library.h>

#include "bfloat16_ops.h"
#include "cuda_bfloat16.h"
#include "cuda_device.h"

namespace mqgrad {
namespace {

struct Cuda {
  static void encode(Bfloat16Arguments arguments, const Tensors& tensors, const Offsets& offsets,
                     const Tensor& payload) {
    const Tensor& x = only_piece(tensors, offsets, arguments.numel);
    arguments.x = x.const_data_ptr();
    arguments.dtype = x.scalar_type();
    reduce_encode(arguments, payload);
  }

  static void reduce_encode(const Bfloat16Arguments& arguments, const Tensor& payload) {
    const OnDevice device(payload);
    write_aligned(payload, 8, device.stream(),
                  [&](uint8_t* bytes) { return cuda::encode_bfloat16(arguments, bytes, device.stream()); });
  }

  static void decode(const Tensor& payload, int64_t numel, bool add, const Tensors& tensors, const Offsets& offsets) {
    const Tensor& out = only_piece(tensors, offsets, numel);
    check_floats(out, numel, payload, "out");
    const OnDevice device(payload);
    check_status(cuda::decode_bfloat16(static_cast<const uint8_t*>(payload.const_data_ptr()), numel, add,
                                       static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }

  static void decode_mean(const Tensor& payloads, int64_t /* stride: there are no gaps */, int64_t numel,
                          const Tensors& tensors, const Offsets& offsets) {
    const Tensor& out = only_piece(tensors, offsets, numel);
    check_floats(out, numel, payloads, "out");
    const OnDevice device(payloads);
    check_status(cuda::decode_bfloat16_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0),
                                            numel, static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cuda>::encode_into));
  m.impl("reduce_encode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cuda>::reduce_encode_into));
  m.impl("decode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cuda>::decode));
  m.impl("decode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cuda>::decode_into));
  m.impl("decode_bfloat16_mean_into", TORCH_BOX(&Bfloat16Ops<Cuda>::decode_mean_into));
  m.impl("decode_bfloat16_add_", TORCH_BOX(&Bfloat16Ops<Cuda>::decode_add_));
}

}  // namespace mqgrad
