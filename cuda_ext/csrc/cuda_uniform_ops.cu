// The CUDA kernels of the uniform codes' ops: on the current stream, without waiting for it, with no memory but torch's own.
#include <torch/csrc/stable/library.h>

#include "cuda_device.h"
#include "cuda_kernels.h"
#include "uniform_ops.h"

namespace mqgrad {
namespace {

struct Cuda {
  static void encode(EncodeArguments arguments, const Tensors& tensors, const Offsets& offsets, const Tensor& payload) {
    const Tensor& x = only_piece(tensors, offsets, arguments.layout.numel);
    arguments.x = x.const_data_ptr();
    arguments.dtype = x.scalar_type();
    reduce_encode(arguments, payload);
  }

  static void reduce_encode(const EncodeArguments& arguments, const Tensor& payload) {
    const OnDevice device(payload);
    const int64_t workspace_bytes = cuda::encode_workspace_bytes(arguments.layout, arguments.stochastic);
    const Tensor workspace = torch::stable::new_empty(payload, {workspace_bytes}, ScalarType::Byte);
    write_aligned(payload, 4, device.stream(), [&](uint8_t* bytes) {
      return cuda::encode(arguments, bytes, workspace.mutable_data_ptr(), device.stream());
    });
  }

  static void decode(const Tensor& payload, const Layout& layout, bool add, const Tensors& tensors,
                     const Offsets& offsets) {
    const Tensor& out = only_piece(tensors, offsets, layout.numel);
    check_floats(out, layout.numel, payload, "out");
    const OnDevice device(payload);
    check_status(cuda::decode(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add,
                              static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }

  static void decode_mean(const Tensor& payloads, int64_t /* stride: there are no gaps */, const Layout& layout,
                          const Tensors& tensors, const Offsets& offsets) {
    const Tensor& out = only_piece(tensors, offsets, layout.numel);
    check_floats(out, layout.numel, payloads, "out");
    const OnDevice device(payloads);
    check_status(cuda::decode_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), layout,
                                   static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_into", TORCH_BOX(&UniformOps<Cuda>::encode_into));
  m.impl("reduce_encode_into", TORCH_BOX(&UniformOps<Cuda>::reduce_encode_into));
  m.impl("decode", TORCH_BOX(&UniformOps<Cuda>::decode));
  m.impl("decode_into", TORCH_BOX(&UniformOps<Cuda>::decode_into));
  m.impl("decode_mean_into", TORCH_BOX(&UniformOps<Cuda>::decode_mean_into));
  m.impl("decode_add_", TORCH_BOX(&UniformOps<Cuda>::decode_add_));
}

}  // namespace mqgrad
