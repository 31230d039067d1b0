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

struct Cpu {
  static void encode(const RotatedArguments& arguments, const Tensors& x, const Offsets& offsets, const Tensor& payload) {
    encode_part(arguments, read_from(x, offsets), 0, written_bytes(payload));
  }

  // The elements of a vector from `start` on.
  static void encode_part(const RotatedArguments& arguments, const Scattered& vector, int64_t start, uint8_t* payload) {
    store_seed(payload, arguments.seed);
    const int64_t numel = arguments.layout.numel, size = arguments.layout.bucket_size;
    parallel_buckets(arguments.layout, [&](int64_t begin, int64_t end) {
      vector.read(start + begin * size, start + std::min(end * size, numel), size,
                  [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
                    RotatedArguments part = arguments;
                    part.x = data;
                    part.dtype = dtype;
                    part.x_begin = from - start;
                    encode_rotated_buckets(part, part.x_begin / size, ceil_divide(to - start, size), payload);
                  });
    });
  }

  static void reduce_encode(const RotatedArguments& arguments, const Tensor& payload) {
    uint8_t* bytes = written_bytes(payload);
    store_seed(bytes, arguments.seed);
    parallel_buckets(arguments.layout,
                     [&](int64_t begin, int64_t end) { encode_rotated_buckets(arguments, begin, end, bytes); });
  }

  static void decode(const Tensor& payload, const RotationLayout& layout, bool add, const Tensors& out,
                     const Offsets& offsets) {
    decode_part(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add, written_to(out, offsets), 0);
  }

  // To the elements of a vector from `start` on.
  static void decode_part(const uint8_t* payload, const RotationLayout& layout, bool add, const Scattered& vector,
                          int64_t start) {
    write_buckets(layout, vector, start, [&](float* values, int64_t begin, int64_t end) {
      decode_rotated_buckets(payload, layout, begin, end, add, values);
    });
  }

  static void decode_mean(const Tensor& payloads, int64_t stride, const RotationLayout& layout, const Tensors& out,
                          const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
    write_buckets(layout, written_to(out, offsets), 0, [&](float* values, int64_t begin, int64_t end) {
      decode_rotated_means(bytes, payloads.size(0), stride, layout, begin, end, values);
    });
  }

 private:
  // f(where the first bucket goes, the first, behind the last) writes whole buckets.
  template <typename F>
  static void write_buckets(const RotationLayout& layout, const Scattered& vector, int64_t start, const F& f) {
    const int64_t size = layout.bucket_size;
    parallel_buckets(layout, [&](int64_t begin, int64_t end) {
      vector.write(start + begin * size, start + std::min(end * size, layout.numel), size,
                   [&](float* values, int64_t from, int64_t to) {
                     f(values, (from - start) / size, ceil_divide(to - start, size));
                   });
    });
  }
};

// Of parts of a vector, on the CPU alone; see checked_parts.
void encode_rotated_parts_into(const Tensor& payloads, const Tensors& x, const Offsets& offsets,
                               const std::optional<Tensor>& residual, int64_t numel, int64_t stride, int64_t bits,
                               int64_t bucket_size, bool unbiased, int64_t seed, double alpha, double beta) {
  const RotationLayout layout = checked_rotation_layout(numel, bits, bucket_size);
  const Parts parts = checked_parts(payloads, layout.payload_bytes(), numel, stride, bucket_size);
  check_pieces(x, offsets, payloads);
  float* owed = checked_residual(residual, parts.span, payloads, x);
  uint8_t* bytes = written_bytes(payloads);
  const Scattered vector = read_from(x, offsets);
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t start = part * stride;
    Cpu::encode_part({nullptr, ScalarType::Float, layout, unbiased, static_cast<uint64_t>(seed),
                      owed ? owed + start : nullptr, alpha, beta},
                     vector, start, bytes + part * parts.bytes_to_next);
  }
}

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
  m.def(
      "encode_rotated_parts_into(Tensor(a!) payloads, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, "
      "int stride, int bits, int bucket_size, bool unbiased, int seed, float alpha, float beta) -> ()");
  m.def(
      "decode_rotated_parts_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int stride, int bits, "
      "int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::encode_into));
  m.impl("reduce_encode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::reduce_encode_into));
  m.impl("decode_rotated", TORCH_BOX(&RotatedOps<Cpu>::decode));
  m.impl("decode_rotated_into", TORCH_BOX(&RotatedOps<Cpu>::decode_into));
  m.impl("decode_rotated_mean_into", TORCH_BOX(&RotatedOps<Cpu>::decode_mean_into));
  m.impl("decode_rotated_add_", TORCH_BOX(&RotatedOps<Cpu>::decode_add_));
  m.impl("encode_rotated_parts_into", TORCH_BOX(&encode_rotated_parts_into));
  m.impl("decode_rotated_parts_into", TORCH_BOX(&RotatedOps<Cpu>::decode_parts_into));
}

}  // namespace mqgrad
