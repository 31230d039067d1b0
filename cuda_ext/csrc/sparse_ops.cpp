// The ops of the sparse code: schemas, and the CPU's kernels.
#include "sparse_ops.h"

#include <torch/csrc/stable/library.h>

namespace mqgrad {
namespace {

struct Cpu {
  static void encode(const SparseArguments& arguments, const Tensor& payload) {
    encode_sparse(arguments, static_cast<uint8_t*>(payload.mutable_data_ptr()));
  }

  static void decode_add(const Tensor& payload, const SparseLayout& layout, const Tensor& out) {
    decode_add_sparse(static_cast<const uint8_t*>(payload.const_data_ptr()), layout,
                      static_cast<float*>(out.mutable_data_ptr()));
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def(
      "sparse_encode(Tensor x, int elements_per_bit, Tensor(a!)? residual=None, float alpha=1, float beta=1) -> "
      "Tensor");
  m.def("sparse_decode(Tensor payload, int numel, int elements_per_bit) -> Tensor");
  m.def("sparse_decode_add_(Tensor(a!) accumulator, Tensor payload, int elements_per_bit) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("sparse_encode", TORCH_BOX(&SparseOps<Cpu>::encode));
  m.impl("sparse_decode", TORCH_BOX(&SparseOps<Cpu>::decode));
  m.impl("sparse_decode_add_", TORCH_BOX(&SparseOps<Cpu>::decode_add_));
}

}  // namespace mqgrad
