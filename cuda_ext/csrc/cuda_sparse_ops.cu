// The CUDA kernels of the sparse code's ops: on the current stream, with no memory but torch's own.
#include <torch/csrc/stable/library.h>

#include "cuda_device.h"
#include "cuda_sparse.h"
#include "sparse_ops.h"

namespace mqgrad {
namespace {

Tensor new_workspace(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {bytes}, ScalarType::Byte);
}

struct Cuda {
  static void encode(SparseArguments arguments, const Tensors& tensors, const Offsets& offsets, const Tensor& payload) {
    const Tensor& x = only_piece(tensors, offsets, arguments.layout.numel);
    arguments.x = x.const_data_ptr();
    arguments.dtype = x.scalar_type();
    const OnDevice device(payload);
    const Tensor workspace = new_workspace(payload, cuda::sparse_encode_workspace_bytes(arguments.layout));
    check_status(cuda::encode_sparse(arguments, static_cast<uint8_t*>(payload.mutable_data_ptr()),
                                     workspace.mutable_data_ptr(), device.stream()));
  }

  static void decode_add(const Tensor& payload, const SparseLayout& layout, const Tensor& out) {
    const OnDevice device(payload);
    const Tensor workspace = new_workspace(payload, cuda::sparse_decode_workspace_bytes(layout));
    check_status(cuda::decode_add_sparse(static_cast<const uint8_t*>(payload.const_data_ptr()), layout,
                                         static_cast<float*>(out.mutable_data_ptr()), workspace.mutable_data_ptr(),
                                         device.stream()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CUDA, m) {
  m.impl("sparse_encode_into", TORCH_BOX(&SparseOps<Cuda>::encode_into));
  m.impl("sparse_decode", TORCH_BOX(&SparseOps<Cuda>::decode));
  m.impl("sparse_decode_add_", TORCH_BOX(&SparseOps<Cuda>::decode_add_));
}

}  // namespace mqgrad
