// The ops of the rotated codes: schemas, and the CPU's kernels.
#include "rotation_ops.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "parallel.h"

namespace mqgrad {
namespace {

template <typename F>
void parallel_buckets(const RotationLayout& layout, const F& f) {
  torch::stable::parallel_for(0, layout.buckets(), std::max<int64_t>(1, kRotatedGrain / layout.bucket_size), f);
}

// Where its scales and codes go by.
uint8_t* begin_payload(const RotatedArguments& arguments, const Tensor& payload) {
  uint8_t* bytes = written_bytes(payload);
  store_seed(bytes, arguments.seed);
  return bytes;
}

struct Cpu {
  static void encode(const RotatedArguments& arguments, const Tensors& x, const Offsets& offsets, const Tensor& payload) {
    uint8_t* bytes = begin_payload(arguments, payload);
    const Scattered vector = read_from(x, offsets);
    const int64_t numel = arguments.layout.numel, size = arguments.layout.bucket_size;
    parallel_buckets(arguments.layout, [&](int64_t begin, int64_t end) {
      vector.read(begin * size, std::min(end * size, numel), size,
                  [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
                    RotatedArguments part = arguments;
                    part.x = data;
                    part.dtype = dtype;
                    part.x_begin = from;
                    encode_rotated_buckets(part, from / size, ceil_divide(to, size), bytes);
                  });
    });
  }

  static void reduce_encode(const RotatedArguments& arguments, const Tensor& payload) {
    uint8_t* bytes = begin_payload(arguments, payload);
    parallel_buckets(arguments.layout,
                     [&](int64_t begin, int64_t end) { encode_rotated_buckets(arguments, begin, end, bytes); });
  }

  static void decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensors& out,
                     const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
    write_buckets(layout, out, offsets, [&](float* values, int64_t begin, int64_t end) {
      decode_rotated_buckets(bytes, layout, begin, end, add, values);
    });
  }

  static void decode_mean(const Tensor& payloads, int64_t stride, const RotationLayout& layout, const Tensors& out,
                          const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
    write_buckets(layout, out, offsets, [&](float* values, int64_t begin, int64_t end) {
      decode_rotated_means(bytes, payloads.size(0), stride, layout, begin, end, values);
    });
  }

 private:
  // f(where the first bucket goes, the first, behind the last) writes whole buckets.
  template <typename F>
  static void write_buckets(const RotationLayout& layout, const Tensors& out, const Offsets& offsets, const F& f) {
    const Scattered vector = written_to(out, offsets);
    const int64_t size = layout.bucket_size;
    parallel_buckets(layout, [&](int64_t begin, int64_t end) {
      vector.write(begin * size, std::min(end * size, layout.numel), size, [&](float* values, int64_t from, int64_t to) {
        f(values, from / size, ceil_divide(to, size));
      });
    });
  }
};

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def(
      "encode_rotated_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool unbiased, int seed, float alpha, float beta) -> ()");
  m.def(
      "reduce_encode_rotated_into(Tensor(a!) payload, Tensor payloads, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool unbiased, int seed, float alpha, float beta) -> ()");
  m.def("decode_rotated(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def(
      "decode_rotated_into(Tensor(a!)[] out, int[] offsets, Tensor payload, int numel, int bits, int bucket_size) -> ()");
  m.def(
      "decode_rotated_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int bits, "
      "int bucket_size) -> ()");
  m.def("decode_rotated_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::encode_into));
  m.impl("reduce_encode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::reduce_encode_into));
  m.impl("decode_rotated", TORCH_BOX(&RotatedOps<Cpu>::decode));
  m.impl("decode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::decode_into));
  m.impl("decode_rotated_mean_into", TORCH_BOX(&RotatedOps<Cpu>::decode_mean_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&RotatedOps<Cpu>::decode_add_));
}

}  // namespace mqgrad
