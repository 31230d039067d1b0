// The kernels on raw pointers. Each works on a range of its parallel dimension and writes bytes of its own only, so a
// caller may split the range in any way and gets the same result.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

#include "float_bits.h"

namespace mqgrad {

constexpr int64_t kChunk = 2048;  // elements handled at a time: a multiple of 8, small enough for the L1 cache

struct Layout {
  int64_t numel;
  int bits;
  int64_t bucket_size;  // elements

  // Whether its sizes are defined and fit 64 bits.
  bool is_valid() const {
    return 0 <= numel && numel <= int64_t{1} << 56 && 1 <= bits && bits <= 8 && bucket_size >= 1;
  }
  MQ_INLINE int64_t buckets() const { return numel / bucket_size + (numel % bucket_size != 0); }
  MQ_INLINE int64_t scale_bytes() const { return 4 * buckets(); }
  MQ_INLINE int64_t payload_bytes() const { return scale_bytes() + numel / 8 * bits + (numel % 8 * bits + 7) / 8; }
};

struct EncodeArguments {
  const void* x;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  Layout layout;
  bool stochastic;
  uint64_t seed;
  const int64_t* bucket_ids;  // or nullptr: 0, 1, 2, ...
  float* residual;            // or nullptr: no feedback
  double alpha;
  double beta;

  // In place of x: the mean of `count` payloads of the same layout, with a gap of some bytes (on CUDA none) between them.
  const uint8_t* payloads = nullptr;
  int64_t count = 0;
  int64_t gap = 0;

  int64_t x_begin = 0;  // the element that x points at; what is encoded of x lies from there on (on CUDA 0)
};

// A unit is the fewest buckets whose codes end on a byte, so that no two units write to the same byte.
int64_t buckets_per_unit(const Layout& layout);
void encode_units(const EncodeArguments& arguments, int64_t begin, int64_t end, uint8_t* payload);

// Elements [begin, end) to out[0] and on; begin is a multiple of 8. `add` adds to `out` instead of overwriting it.
void decode_range(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out);

// n elements of any supported type from x[first] on, as fp32 in `out`.
void load_floats(const void* x, torch::headeronly::ScalarType dtype, int64_t first, int64_t n, float* out);

// n values to elements of any supported type, from out[first] on.
void store_floats(const float* values, torch::headeronly::ScalarType dtype, int64_t first, int64_t n, void* out);

// Of one element of a supported type.
int64_t bytes_of(torch::headeronly::ScalarType dtype);

// The same, without a copy of what is fp32 already: `room` is for what is not.
inline const float* as_floats(const void* x, torch::headeronly::ScalarType dtype, int64_t first, int64_t n,
                              float* room) {
  if (dtype == torch::headeronly::ScalarType::Float) return static_cast<const float*>(x) + first;
  load_floats(x, dtype, first, n, room);
  return room;
}

// Note [Payload] in payload.h. Neither touches anything beyond n codes and their bytes.
void pack(int bits, const uint8_t* codes, int64_t n, uint8_t* out);
void unpack(int bits, const uint8_t* packed, int64_t n, uint8_t* codes);

struct Matrix {
  int64_t rows;
  int64_t columns;
};

// MQGrad's quantizer. The statistics run over columns, the codes over chunks of row-major elements.
void minmax_columns(const void* x, torch::headeronly::ScalarType dtype, Matrix shape, int64_t begin, int64_t end,
                    float* minimums, float* ranges);
void encode_minmax_chunks(const void* x, torch::headeronly::ScalarType dtype, Matrix shape, int bits, int64_t begin,
                          int64_t end, const float* minimums, const float* ranges, uint8_t* packed);
void decode_minmax_chunks(const uint8_t* packed, Matrix shape, int bits, int64_t begin, int64_t end,
                          const float* minimums, const float* ranges, float* out);

}  // namespace mqgrad
