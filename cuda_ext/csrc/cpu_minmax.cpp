// MQGrad's per-column min-max quantizer on the CPU.
#include <algorithm>
#include <vector>

#include "clones.h"
#include "kernels.h"
#include "minmax_math.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

MQ_CLONES void extend(const float* row, int64_t n, float* low, float* high, uint32_t* max_bits) {
  for (int64_t i = 0; i < n; ++i) {
    low[i] = row[i] < low[i] ? row[i] : low[i];
    high[i] = row[i] > high[i] ? row[i] : high[i];
    max_bits[i] = std::max(max_bits[i], abs_bits(row[i]));
  }
}

MQ_CLONES void row_codes(const float* x, int64_t n, const float* minimums, const float* ranges, float cells,
                         uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<uint8_t>(minmax_code(x[i], minimums[i], ranges[i], cells));
  }
}

MQ_CLONES void row_values(const uint8_t* codes, int64_t n, const float* minimums, const float* ranges, float cells,
                          float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = minmax_value(codes[i], minimums[i], ranges[i], cells);
}

// Calls f(column, offset from begin, length) for each piece of a row in the range of row-major elements.
template <typename F>
void for_each_row_piece(int64_t begin, int64_t end, int64_t columns, const F& f) {
  for (int64_t at = begin; at < end;) {
    const int64_t column = at % columns;
    const int64_t length = std::min(columns - column, end - at);
    f(column, at - begin, length);
    at += length;
  }
}

}  // namespace

void minmax_columns(const void* x, ScalarType dtype, Matrix shape, int64_t begin, int64_t end, float* minimums,
                    float* ranges) {
  const int64_t n = end - begin;
  std::vector<float> room(n);
  std::vector<float> low(n, float_from_bits(kInfinityBits));
  std::vector<float> high(n, -float_from_bits(kInfinityBits));
  std::vector<uint32_t> max_bits(n, 0);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const float* row = as_floats(x, dtype, r * shape.columns + begin, n, room.data());
    extend(row, n, low.data(), high.data(), max_bits.data());
  }
  for (int64_t i = 0; i < n; ++i) {
    const ColumnStatistics statistics = statistics_of(low[i], high[i], max_bits[i]);
    minimums[begin + i] = statistics.minimum;
    ranges[begin + i] = statistics.range;
  }
}

void encode_minmax_chunks(const void* x, ScalarType dtype, Matrix shape, int bits, int64_t begin, int64_t end,
                          const float* minimums, const float* ranges, uint8_t* packed) {
  const int64_t numel = shape.rows * shape.columns;
  const float cells = static_cast<float>(1 << bits);
  float room[kChunk];
  uint8_t codes[kChunk];
  for (int64_t at = begin * kChunk; at < std::min(end * kChunk, numel); at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, numel);
    const float* values = as_floats(x, dtype, at, chunk_end - at, room);
    for_each_row_piece(at, chunk_end, shape.columns, [&](int64_t column, int64_t offset, int64_t n) {
      row_codes(values + offset, n, minimums + column, ranges + column, cells, codes + offset);
    });
    pack(bits, codes, chunk_end - at, packed + at / 8 * bits);
  }
}

void decode_minmax_chunks(const uint8_t* packed, Matrix shape, int bits, int64_t begin, int64_t end,
                          const float* minimums, const float* ranges, float* out) {
  const int64_t numel = shape.rows * shape.columns;
  const float cells = static_cast<float>(1 << bits);
  uint8_t codes[kChunk];
  for (int64_t at = begin * kChunk; at < std::min(end * kChunk, numel); at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, numel);
    unpack(bits, packed + at / 8 * bits, chunk_end - at, codes);
    for_each_row_piece(at, chunk_end, shape.columns, [&](int64_t column, int64_t offset, int64_t n) {
      row_values(codes + offset, n, minimums + column, ranges + column, cells, out + at + offset);
    });
  }
}

}  // namespace mqgrad
