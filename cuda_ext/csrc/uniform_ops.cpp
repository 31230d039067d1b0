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
    const Layout& layout = arguments.layout;
    uint8_t* bytes = written_bytes(payload);
    const Scattered vector = read_from(x, offsets);
    const int64_t unit = buckets_per_unit(layout) * layout.bucket_size;
    parallel_units(layout, [&](int64_t begin, int64_t end) {
      vector.read(begin * unit, std::min(end * unit, layout.numel), unit,
                  [&](const void* data, ScalarType dtype, int64_t from, int64_t to) {
                    EncodeArguments part = arguments;
                    part.x = data;
                    part.dtype = dtype;
                    part.x_begin = from;
                    encode_units(part, from / unit, ceil_divide(to, unit), bytes);
                  });
    });
  }

  static void reduce_encode(const EncodeArguments& arguments, const Tensor& payload) {
    uint8_t* bytes = written_bytes(payload);
    parallel_units(arguments.layout,
                   [&](int64_t begin, int64_t end) { encode_units(arguments, begin, end, bytes); });
  }

  static void decode(const Tensor& payload, const Layout& layout, bool add, const Tensors& out, const Offsets& offsets) {
    const uint8_t* bytes = static_cast<const uint8_t*>(payload.const_data_ptr());
    const Scattered vector = written_to(out, offsets);
    parallel_chunks(layout.numel, [&](int64_t begin, int64_t end) {
      vector.write(begin * kChunk, std::min(end * kChunk, layout.numel), 8, [&](float* values, int64_t from, int64_t to) {
        decode_range(bytes, layout, from, to, add, values);
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
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("encode_into", TORCH_BOX(&UniformOps<Cpu>::encode_into));
  m.impl("reduce_encode_into", TORCH_BOX(&UniformOps<Cpu>::reduce_encode_into));
  m.impl("decode", TORCH_BOX(&UniformOps<Cpu>::decode));
  m.impl("decode_into", TORCH_BOX(&UniformOps<Cpu>::decode_into));
  m.impl("decode_mean_into", TORCH_BOX(&UniformOps<Cpu>::decode_mean_into));
  m.impl("decode_add_", TORCH_BOX(&UniformOps<Cpu>::decode_add_));
}

}  // namespace mqgrad
