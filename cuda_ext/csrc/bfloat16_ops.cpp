// The ops of width 16: schemas, and the CPU's kernels.
#include "bfloat16_ops.h"

#include <torch/csrc/stable/library.h>

#include "parallel.h"

namespace mqgrad {
namespace {

struct Cpu {
  static void encode(const Bfloat16Arguments& arguments, const Tensors& x, const Offsets& offsets,
                     const Tensor& payload) {
    uint8_t* bytes = written_bytes(payload);
    const Scattered vector = read_from(x, offsets);
    torch::stable::parallel_for(0, arguments.numel, kGrain, [&](int64_t begin, int64_t end) {
      vector.read(begin, end, 1, [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
        Bfloat16Arguments part = arguments;
        part.x = data;
        part.dtype = dtype;
        part.x_begin = from;
        encode_bfloat16_range(part, from, to, bytes);
      });
    });
  }

  static void reduce_encode(const Bfloat16Arguments& arguments, const Tensor& payload) {
    uint8_t* bytes = written_bytes(payload);
    torch::stable::parallel_for(0, arguments.numel, kGrain, [&](int64_t begin, int64_t end) {
      encode_bfloat16_range(arguments, begin, end, bytes);
    });
  }

  static void decode(const Tensor& payload, int64_t numel, bool add, const Tensors& out, const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
    const Scattered vector = written_to(out, offsets);
    torch::stable::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
      vector.write(begin, end, 1, [&](float* values, int64_t from, int64_t to) {
        decode_bfloat16_range(bytes, from, to, add, values);
      });
    });
  }

  static void decode_mean(const Tensor& payloads, int64_t stride, int64_t numel, const Tensors& out,
                          const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
    const Scattered vector = written_to(out, offsets);
    torch::stable::parallel_for(0, numel, kGrain, [&](int64_t begin, int64_t end) {
      vector.write(begin, end, 1, [&](float* values, int64_t from, int64_t to) {
        decode_bfloat16_means(bytes, payloads.size(0), stride, from, to, values);
      });
    });
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def(
      "encode_bfloat16_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, "
      "float alpha, float beta) -> ()");
  m.def(
      "reduce_encode_bfloat16_into(Tensor(a!) payload, Tensor payloads, Tensor(b!)? residual, int numel, float alpha, "
      "float beta) -> ()");
  m.def("decode_bfloat16(Tensor payload, int numel) -> Tensor");
  m.def("decode_bfloat16_into(Tensor(a!)[] out, int[] offsets, Tensor payload, int numel) -> ()");
  m.def("decode_bfloat16_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel) -> ()");
  m.def("decode_bfloat16_add_(Tensor(a!) accumulator, Tensor payload) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cpu>::encode_into));
  m.impl("reduce_encode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cpu>::reduce_encode_into));
  m.impl("decode_bfloat16", TORCH_BOX(&Bfloat16Ops<Cpu>::decode));
  m.impl("decode_bfloat16_into", TORCH_BOX(&Bfloat16Ops<Cpu>::decode_into));
  m.impl("decode_bfloat16_mean_into", TORCH_BOX(&Bfloat16Ops<Cpu>::decode_mean_into));
  m.impl("decode_bfloat16_add_", TORCH_BOX(&Bfloat16Ops<Cpu>::decode_add_));
}

}  // namespace mqgrad
