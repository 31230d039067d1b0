// MQGrad's per-column min-max quantizer on CUDA.
#include "cuda_kernels.h"
#include "cuda_lane_codes.h"
#include "minmax_math.h"

namespace mqgrad::cuda {
namespace {

constexpr int kRows = 16;  // that a block reads at a time, of kLanes columns

struct Extremes {
  float low;
  float high;
  uint32_t max_bits;
};

__device__ __forceinline__ Extremes wider(const Extremes& a, const Extremes& b) {
  return {b.low < a.low ? b.low : a.low, b.high > a.high ? b.high : a.high,
          b.max_bits > a.max_bits ? b.max_bits : a.max_bits};
}

__global__ void __launch_bounds__(kRows* kLanes) find_statistics(const void* x, ScalarType dtype, Matrix shape,
                                                                 float* minimums, float* ranges) {
  __shared__ Extremes extremes_of[kRows][kLanes];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  Extremes extremes = {float_from_bits(kInfinityBits), -float_from_bits(kInfinityBits), 0};
  for (int64_t row = threadIdx.y; column < shape.columns && row < shape.rows; row += kRows) {
    const float value = load_float(x, dtype, row * shape.columns + column);
    extremes = wider(extremes, {value, value, abs_bits(value)});
  }
  extremes_of[threadIdx.y][threadIdx.x] = extremes;
  __syncthreads();
  if (threadIdx.y != 0 || column >= shape.columns) return;
  for (int row = 1; row < kRows; ++row) extremes = wider(extremes, extremes_of[row][threadIdx.x]);
  const ColumnStatistics statistics = statistics_of(extremes.low, extremes.high, extremes.max_bits);
  minimums[column] = statistics.minimum;
  ranges[column] = statistics.range;
}

__global__ void __launch_bounds__(kWarps* kLanes) encode_minmax_pieces(const void* x, ScalarType dtype, Matrix shape,
                                                                       int bits, uint8_t* payload) {
  __shared__ PieceCodes codes_of_warp[kWarps];
  PieceCodes& codes = codes_of_warp[threadIdx.y];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kPiece;
  const int length = clamp_length(shape.rows * shape.columns - first);
  if (length == 0) return;
  const float* minimums = reinterpret_cast<const float*>(payload);
  const float* ranges = minimums + shape.columns;
  const float cells = static_cast<float>(1 << bits);
  for (int at = static_cast<int>(threadIdx.x); at < kPiece; at += kLanes) {
    const int64_t i = first + at;
    const int64_t column = i % shape.columns;
    codes.bytes[at] = at < length
        ? static_cast<uint8_t>(minmax_code(load_float(x, dtype, i), minimums[column], ranges[column], cells))
        : 0;
  }
  with_width(bits, [&](auto width) {
    pack_piece<decltype(width)::value>(codes, length, payload + 8 * shape.columns + first / 8 * bits);
  });
}

__device__ __forceinline__ float unaligned_float(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, 4);
  return value;
}

__global__ void __launch_bounds__(kPerBlock) decode_minmax_codes(const uint8_t* payload, Matrix shape, int bits,
                                                                 float* out) {
  const int64_t i = element_of_thread();
  if (i >= shape.rows * shape.columns) return;
  const int64_t column = i % shape.columns;
  const float minimum = unaligned_float(payload + 4 * column);
  const float range = unaligned_float(payload + 4 * (shape.columns + column));
  const uint32_t code = load_code(payload + 8 * shape.columns, i, bits);
  out[i] = minmax_value(static_cast<int32_t>(code), minimum, range, static_cast<float>(1 << bits));
}

}  // namespace

cudaError_t encode_minmax(const void* x, ScalarType dtype, Matrix shape, int bits, uint8_t* payload,
                          cudaStream_t stream) {
  const int64_t numel = shape.rows * shape.columns;
  if (numel == 0) return cudaSuccess;
  float* minimums = reinterpret_cast<float*>(payload);
  const cudaError_t status = launch(stream, blocks_for(shape.columns, kLanes), dim3(kLanes, kRows), find_statistics,
                                    x, dtype, shape, minimums, minimums + shape.columns);
  if (status != cudaSuccess) return status;
  return launch(stream, blocks_for(numel, kWarps * kPiece), dim3(kLanes, kWarps), encode_minmax_pieces, x, dtype,
                shape, bits, payload);
}

cudaError_t decode_minmax(const uint8_t* payload, Matrix shape, int bits, float* out, cudaStream_t stream) {
  const int64_t numel = shape.rows * shape.columns;
  if (numel == 0) return cudaSuccess;
  return launch(stream, blocks_for(numel, kPerBlock), dim3(kLanes, kWarps), decode_minmax_codes, payload, shape, bits,
                out);
}

}  // namespace mqgrad::cuda
