// The CUDA kernels of the rotated codes' ops: on the current stream, with no memory but torch's own.
#include <torch/csrc/stable/library.h>

#include "cuda_device.h"
#include "cuda_rotation.h"
#include "rotation_ops.h"

namespace mqgrad {
namespace {

Tensor new_workspace(const Tensor& like, const RotationLayout& layout) {
  return torch::stable::new_empty(like, {cuda::rotation_workspace_bytes(layout)}, ScalarType::Byte);
}

void check_fused(bool is_fused, const RotationLayout& layout) {
  STD_TORCH_CHECK(!is_fused || cuda::is_piece(layout), "mqgrad: on CUDA several steps at once take buckets of ",
                  cuda::kPieceBucket, ", got ", layout.bucket_size);
}

struct Cuda {
  static void encode(RotatedArguments arguments, const Tensors& tensors, const Offsets& offsets, const Tensor& payload) {
    const Tensor& x = only_piece(tensors, offsets, arguments.layout.numel);
    arguments.x = x.const_data_ptr();
    arguments.dtype = x.scalar_type();
    reduce_encode(arguments, payload);
  }

  static void reduce_encode(const RotatedArguments& arguments, const Tensor& payload) {
    check_fused(arguments.residual || arguments.payloads, arguments.layout);
    const OnDevice device(payload);
    const Tensor workspace = new_workspace(payload, arguments.layout);
    write_aligned(payload, 4, device.stream(), [&](uint8_t* bytes) {
      return cuda::encode_rotated(arguments, bytes, workspace.mutable_data_ptr(), device.stream());
    });
  }

  static void decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensors& tensors,
                     const Offsets& offsets) {
    const Tensor& out = only_piece(tensors, offsets, layout.numel);
    check_floats(out, layout.numel, payload, "out");
    const OnDevice device(payload);
    const Tensor workspace = new_workspace(payload, layout);
    check_status(cuda::decode_rotated(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add,
                                      static_cast<float*>(out.mutable_data_ptr()), workspace.mutable_data_ptr(),
                                      device.stream()));
  }

  static void decode_mean(const Tensor& payloads, int64_t /* stride: there are no gaps */, const RotationLayout& layout,
                          const Tensors& tensors, const Offsets& offsets) {
    check_fused(true, layout);
    const Tensor& out = only_piece(tensors, offsets, layout.numel);
    check_floats(out, layout.numel, payloads, "out");
    const OnDevice device(payloads);
    check_status(cuda::decode_rotated_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0),
                                           layout, static_cast<float*>(out.mutable_data_ptr()), device.stream()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("encode_rotated_into", TORCH_BOX(&RotatedOps<Cuda>::encode_into));
  m.impl("reduce_encode_rotated_into", TORCH_BOX(&RotatedOps<Cuda>::reduce_encode_into));
  m.impl("decode_rotated", TORCH_BOX(&RotatedOps<Cuda>::decode));
  m.impl("decode_rotated_into", TORCH_BOX(&RotatedOps<Cuda>::decode_into));
  m.impl("decode_rotated_mean_into", TORCH_BOX(&RotatedOps<Cuda>::decode_mean_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&RotatedOps<Cuda>::decode_add_));
}

}  // namespace mqgrad
