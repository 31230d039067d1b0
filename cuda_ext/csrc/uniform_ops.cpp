// The ops of the uniform codes: schemas, and the CPU's kernels.
#include "uniform_ops.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "parallel.h"
#include "reduce.h"

namespace mqgrad {
namespace {

template <typename F>
void parallel_units(const Layout& layout, const F& f) {
  const int64_t per_unit = buckets_per_unit(layout);
  const int64_t grain = std::max<int64_t>(1, kGrain / (per_unit * layout.bucket_size));
  torch::stable::parallel_for(0, ceil_divide(layout.buckets(), per_unit), grain, f);
}

struct Cpu {
  static void encode(const EncodeArguments& arguments, const Tensors& x, const Offsets& offsets, const Tensor& payload) {
    encode_part(arguments, read_from(x, offsets), 0, written_bytes(payload));
  }

  // The elements of a vector from `start` on.
  static void encode_part(const EncodeArguments& arguments, const Scattered& vector, int64_t start, uint8_t* payload) {
    const Layout& layout = arguments.layout;
    const int64_t unit = buckets_per_unit(layout) * layout.bucket_size;
    parallel_units(layout, [&](int64_t begin, int64_t end) {
      vector.read(start + begin * unit, start + std::min(end * unit, layout.numel), unit,
                  [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
                    EncodeArguments part = arguments;
                    part.x = data;
                    part.dtype = dtype;
                    part.x_begin = from - start;
                    encode_units(part, part.x_begin / unit, ceil_divide(to - start, unit), payload);
                  });
    });
  }

  static void reduce_encode(const EncodeArguments& arguments, const Tensor& payload) {
    uint8_t* bytes = written_bytes(payload);
    parallel_units(arguments.layout,
                   [&](int64_t begin, int64_t end) { encode_units(arguments, begin, end, bytes); });
  }

  static void decode(const Tensor& payload, const Layout& layout, bool add, const Tensors& out, const Offsets& offsets) {
    decode_part(static_cast<const uint8_t*>(payload.const_data_ptr()), layout, add, written_to(out, offsets), 0);
  }

  // To the elements of a vector from `start` on.
  static void decode_part(const uint8_t* payload, const Layout& layout, bool add, const Scattered& vector, int64_t start) {
    parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
      vector.write(start + begin * kChunk, start + std::min(end * kChunk, layout.numel), 8,
                   [&](float* values, int64_t from, int64_t to) {
                     decode_range(payload, layout, from - start, to - start, add, values);
                   });
    });
  }

  // A chunk at a time, whose sum stays in the cache.
  static void decode_mean(const Tensor& payloads, int64_t stride, const Layout& layout, const Tensors& out,
                          const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payloads.const_data_ptr());
    const Scattered vector = written_to(out, offsets);
    const auto mean = [&](float* values, int64_t from, int64_t to) {
      mean_of(payloads.size(0), to - from, values,
              [&](int64_t k) { decode_range(bytes + k * stride, layout, from, to, true, values); });
    };
    parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
      vector.write(begin * kChunk, std::min(end * kChunk, layout.numel), 8, [&](float* values, int64_t from, int64_t to) {
        for (int64_t at = from; at < to; at += kChunk) mean(values + (at - from), at, std::min(at + kChunk, to));
      });
    });
  }
};

// Of parts of a vector, on the CPU alone; see checked_parts.
void encode_parts_into(const Tensor& payloads, const Tensors& x, const Offsets& offsets,
                       const std::optional<Tensor>& residual, int64_t numel, int64_t stride, int64_t bits,
                       int64_t bucket_size, bool stochastic, int64_t seed, double alpha, double beta,
                       const std::optional<Tensor>& bucket_ids) {
  const Layout layout = checked_layout(numel, bits, bucket_size);
  const Parts parts = checked_parts(payloads, layout.payload_bytes(), numel, stride, bucket_size);
  check_pieces(x, offsets, payloads);
  check_apart(payloads, "payloads", bucket_ids, "bucket_ids");
  float* owed = checked_residual(residual, parts.span, payloads, x);
  const int64_t buckets = (payloads.size(0) - 1) * (stride / bucket_size) + layout.buckets();
  const int64_t* ids = checked_ids(bucket_ids, buckets, payloads, residual);
  uint8_t* bytes = written_bytes(payloads);
  const Scattered vector = read_from(x, offsets);
  for (int64_t part = 0; part < parts.count; ++part) {
    const int64_t start = part * stride;
    Cpu::encode_part({nullptr, ScalarType::Float, layout, stochastic, static_cast<uint64_t>(seed),
                      ids ? ids + start / bucket_size : nullptr, owed ? owed + start : nullptr, alpha, beta},
                     vector, start, bytes + part * parts.bytes_to_next);
  }
}

}  // namespace

STABLE_TORCH_LIBRARY(mqgrad, m) {
  m.def(
      "encode_into(Tensor(a!) payload, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool stochastic, int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def(
      "reduce_encode_into(Tensor(a!) payload, Tensor payloads, Tensor(b!)? residual, int numel, int bits, "
      "int bucket_size, bool stochastic, int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def("decode(Tensor payload, int numel, int bits, int bucket_size) -> Tensor");
  m.def("decode_into(Tensor(a!)[] out, int[] offsets, Tensor payload, int numel, int bits, int bucket_size) -> ()");
  m.def(
      "decode_mean_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int bits, int bucket_size) -> ()");
  m.def("decode_add_(Tensor(a!) accumulator, Tensor payload, int bits, int bucket_size) -> ()");
  m.def(
      "encode_parts_into(Tensor(a!) payloads, Tensor[] x, int[] offsets, Tensor(b!)? residual, int numel, int stride, "
      "int bits, int bucket_size, bool stochastic, int seed, float alpha, float beta, Tensor? bucket_ids=None) -> ()");
  m.def(
      "decode_parts_into(Tensor(a!)[] out, int[] offsets, Tensor payloads, int numel, int stride, int bits, "
      "int bucket_size) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_into", TORCH_BOX(&UniformOps<Cpu>::encode_into));
  m.impl("reduce_encode_into", TORCH_BOX(&UniformOps<Cpu>::reduce_encode_into));
  m.impl("decode", TORCH_BOX(&UniformOps<Cpu>::decode));
  m.impl("decode_into", TORCH_BOX(&UniformOps<Cpu>::decode_into));
  m.impl("decode_mean_into", TORCH_BOX(&UniformOps<Cpu>::decode_mean_into));
  m.impl("decode_add_", TORCH_BOX(&UniformOps<Cpu>::decode_add_));
  m.impl("encode_parts_into", TORCH_BOX(&encode_parts_into));
  m.impl("decode_parts_into", TORCH_BOX(&UniformOps<Cpu>::decode_parts_into));
}

}  // namespace mqgrad
