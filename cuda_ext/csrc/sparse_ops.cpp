// The ops of the sparse code: schemas, and the CPU's kernels.
#include "sparse_ops.h"

#include <torch/csrc/stable/library.h>

namespace mqgrad {
namespace {

struct Cpu {
  static void encode(const SparseArguments& arguments, const Tensors& x, const Offsets& offsets, const Tensor& payload) {
    encode_sparse(read_from(x, offsets), arguments, static_cast<uint8_t*>(payload.mutable_data_ptr()));
  }

  static void decode_add(const Tensor& payload, const SparseLayout& layout, const Tensor& out) {
    decode_add_sparse(static_cast<const uint8_t*>(payload.const_data_ptr()), layout,
                      static_cast<float*>(out.mutable_data_ptr()));
  }
};

// On the CPU alone, as what follows: elsewhere payloads are added one after another.
void decode_mean_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel,
                      int64_t elements_per_bit) {
  const SparseLayout layout = checked_sparse_layout(numel, elements_per_bit);
  const int64_t stride = layout.payload_bytes() + checked_gap(payloads, layout.payload_bytes());
  check_pieces(out, offsets, payloads);
  decode_sparse_mean(static_cast<const uint8_t*>(payloads.const_data_ptr()), payloads.size(0), stride, layout,
                     written_to(out, offsets));
}

// Of parts of a vector; see checked_parts.
void encode_parts_into(const Tensor& payloads, const Tensors& x, const Offsets& offsets,
                       const std::optional<Tensor>& residual, int64_t numel, int64_t stride, int64_t elements_per_bit,
                       double alpha, double beta) {
  const SparseLayout layout = checked_sparse_layout(numel, elements_per_bit);
  const Parts parts = checked_parts(payloads, layout.payload_bytes(), numel, stride, 1);
  check_pieces(x, offsets, payloads);
  float* owed = checked_residual(residual, parts.span, payloads, x);
  uint8_t* bytes = static_cast<uint8_t*>(payloads.mutable_data_ptr());
  const Scattered vector = read_from(x, offsets);
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t start = part * stride;
    encode_sparse(vector.from(start), {layout, owed ? owed + start : nullptr, alpha, beta},
                  bytes + part * parts.bytes_to_next);
  }
}

void decode_parts_into(const Tensors& out, const Offsets& offsets, const Tensor& payloads, int64_t numel, int64_t stride,
                       int64_t elements_per_bit) {
  const SparseLayout layout = checked_sparse_layout(numel, elements_per_bit);
  const Parts parts = checked_parts(payloads, layout.payload_bytes(), numel, stride, 1);
  check_pieces(out, offsets, payloads);
  const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
  const Scattered vector = written_to(out, offsets);
  for (int64_t part = 0; part < parts.count; ++part) {
    decode_sparse_mean(bytes + part * parts.bytes_to_next, 1, 0, layout, vector.from(part * stride));
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def(
      "sparse_encode_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, "
      "int elements_per_bit, float alpha, float beta) -> ()");
  m.def("sparse_decode(Tensor payload, int numel, int elements_per_bit) -> Tensor");
  m.def("sparse_decode_add_(Tensor(a!) accumulator, Tensor payload, int elements_per_bit) -> ()");
  m.def(
      "sparse_decode_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int elements_per_bit) -> "
      "()");
  m.def(
      "sparse_encode_parts_into(Tensor(a!) payloads, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, "
      "int stride, int elements_per_bit, float alpha, float beta) -> ()");
  m.def(
      "sparse_decode_parts_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int stride, "
      "int elements_per_bit) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("sparse_encode_into", TORCH_BOX(&SparseOps<Cpu>::encode_into));
  m.impl("sparse_decode", TORCH_BOX(&SparseOps<Cpu>::decode));
  m.impl("sparse_decode_add_", TORCH_BOX(&SparseOps<Cpu>::decode_add_));
  m.impl("sparse_decode_mean_into", TORCH_BOX(&decode_mean_into));
  m.impl("sparse_encode_parts_into", TORCH_BOX(&encode_parts_into));
  m.impl("sparse_decode_parts_into", TORCH_BOX(&decode_parts_into));
}

}  // namespace mqgrad
