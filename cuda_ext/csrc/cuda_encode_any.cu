#include "cuda_encode_any.h"

#include "cuda_lane_codes.h"
#include "feedback.h"
#include "rounding.h"

namespace mqgrad::cuda {
namespace {

constexpr int kStrip = 8192;  // elements of one bucket that a warp reduces: what a lane sums stays within 32 bits

// Note [Scale]: integers, so that the order in which the strips arrive does not matter.
struct Sums {
  unsigned long long magnitudes;
  unsigned long long squares;
};

bool needs_sums(int bits, bool stochastic) {
  return !stochastic && bits <= 4;
}

__device__ float mean_of_payloads(const EncodeArguments& a, int64_t i) {
  const Layout& layout = a.layout;
  float sum = 0;
  for (int64_t p = 0; p < a.count; ++p) {
    const uint8_t* payload = a.payloads + p * layout.payload_bytes();
    const uint32_t code = load_code(payload + layout.scale_bytes(), i, layout.bits);
    sum += value_of_any(layout.bits, code, load_scale(payload, i / layout.bucket_size));
  }
  return sum / static_cast<float>(a.count);
}

__device__ __forceinline__ float input(const EncodeArguments& a, int64_t i) {
  return a.payloads ? mean_of_payloads(a, i) : load_float(a.x, a.dtype, i);
}

__device__ __forceinline__ float input_value(const EncodeArguments& a, int64_t i) {
  const float x = input(a, i);
  return a.residual ? compensated(x, a.residual[i], a.alpha) : x;
}

struct Strip {
  int64_t bucket;
  int64_t begin;
  int64_t end;
};

__device__ __forceinline__ Strip warp_strip(const Layout& layout) {
  const int64_t strip = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const int64_t per_bucket = blocks_for(layout.bucket_size, kStrip);
  const int64_t bucket = strip / per_bucket;
  const int64_t bucket_begin = bucket * layout.bucket_size;
  const int64_t bucket_end = bucket_begin + layout.bucket_size;
  const int64_t begin = bucket_begin + (strip - bucket * per_bucket) * kStrip;
  int64_t end = begin + kStrip < bucket_end ? begin + kStrip : bucket_end;
  end = end < layout.numel ? end : layout.numel;
  return {bucket, begin, end};
}

int64_t blocks_of_strips(const Layout& layout) {
  return blocks_for(layout.buckets() * blocks_for(layout.bucket_size, kStrip), kWarps);
}

// `max_bits`, one per bucket, must be zero before.
__global__ void __launch_bounds__(kWarps* kLanes) reduce_max(EncodeArguments a, uint32_t* max_bits) {
  const Strip strip = warp_strip(a.layout);
  if (strip.begin >= strip.end) return;
  uint32_t max = 0;
  for (int64_t i = strip.begin + threadIdx.x; i < strip.end; i += kLanes) {
    const uint32_t bits = abs_bits(input_value(a, i));
    max = bits > max ? bits : max;
  }
  max = warp_max(max);
  if (threadIdx.x == 0) atomicMax(max_bits + strip.bucket, max);
}

__global__ void __launch_bounds__(kWarps* kLanes) reduce_sums(EncodeArguments a, const uint32_t* max_bits, Sums* sums) {
  const Strip strip = warp_strip(a.layout);
  if (strip.begin >= strip.end) return;
  const Grid grid = magnitude_grid(float_from_bits(max_bits[strip.bucket]));
  static_assert(kStrip / kLanes <= kMagnitudes, "the squares of a lane must sum up in 32 bits");
  uint32_t sum = 0, squares_of_lane = 0;
  for (int64_t i = strip.begin + threadIdx.x; i < strip.end; i += kLanes) {
    const uint32_t m = magnitude(input_value(a, i) * grid.lift, grid);
    sum += m;
    squares_of_lane += m * m;
  }
  sum = warp_sum(sum);
  const unsigned long long high = warp_sum(squares_of_lane >> 16);
  const unsigned long long squares = (high << 16) + warp_sum(squares_of_lane & 0xffffu);
  if (threadIdx.x != 0) return;
  atomicAdd(&sums[strip.bucket].magnitudes, static_cast<unsigned long long>(sum));
  atomicAdd(&sums[strip.bucket].squares, squares);
}

// Turns the maxima at the head of the payload into scales. `sums` may be nullptr.
__global__ void finish_scales(Layout layout, const Sums* sums, float* scales) {
  const int64_t bucket = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kLanes + threadIdx.x;
  if (bucket >= layout.buckets()) return;
  const float max = scales[bucket];
  if (!is_finite(max)) {
    scales[bucket] = float_from_bits(kNanBits);
  } else if (sums && max > 0) {
    const int64_t left = layout.numel - bucket * layout.bucket_size;
    scales[bucket] = nearest_scale(layout.bits, left < layout.bucket_size ? left : layout.bucket_size,
                                   sums[bucket].magnitudes, sums[bucket].squares, max);
  }
}

struct Bucket {
  int64_t end;  // first element of the next
  int64_t begin;
  float scale;
  Grid grid;
  Stream stream;
};

__device__ __forceinline__ Bucket bucket_of(const EncodeArguments& a, const float* scales, int64_t i) {
  const int64_t bucket = i / a.layout.bucket_size;
  const int bits = a.layout.bits;
  const float scale = scales[bucket];
  const uint64_t id = static_cast<uint64_t>(a.bucket_ids ? a.bucket_ids[bucket] : bucket);
  return {(bucket + 1) * a.layout.bucket_size, bucket * a.layout.bucket_size, scale,
          a.stochastic ? stochastic_grid(bits, scale) : nearest_grid(bits, scale), random_stream(a.seed, id)};
}

__device__ __forceinline__ uint32_t code_of(const EncodeArguments& a, const Bucket& bucket, float v, int64_t i) {
  if (!(bucket.scale > 0)) return level_count(a.layout.bits);  // all zero, or not finite: the code of zero
  if (a.layout.bits == 1 && !a.stochastic) return sign_code(v);
  v *= bucket.grid.lift;
  if (a.stochastic) return stochastic_code(v, bucket.grid, random_dither(bucket.stream, i - bucket.begin));
  return nearest_code(v, bucket.grid);
}

__device__ __forceinline__ void keep_error(const EncodeArguments& a, uint32_t code, float scale, int64_t i) {
  if (!is_finite(scale)) return;  // nothing of this bucket arrives: keep what was owed
  const float sent = value_of_any(a.layout.bits, code, scale);
  a.residual[i] = next_residual(input(a, i), a.residual[i], sent, a.beta);
}

__global__ void __launch_bounds__(kWarps* kLanes) encode_pieces(EncodeArguments a, const float* scales,
                                                                uint8_t* packed) {
  __shared__ PieceCodes codes_of_warp[kWarps];
  PieceCodes& codes = codes_of_warp[threadIdx.y];
  const Layout& layout = a.layout;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kPiece;
  const int length = clamp_length(layout.numel - first);
  if (length == 0) return;
  for (int q = 0; q < kQuads; ++q) {
    uint32_t quad = 0;
    const int at = quad_start(q);
    Bucket bucket = {};
    for (int k = 0; k < 4 && at + k < length; ++k) {
      const int64_t i = first + at + k;
      if (i >= bucket.end) bucket = bucket_of(a, scales, i);
      const uint32_t code = code_of(a, bucket, input_value(a, i), i);
      if (a.residual) keep_error(a, code, bucket.scale, i);
      quad |= code << (8 * k);
    }
    quad_codes(codes, q) = quad;
  }
  with_width(layout.bits, [&](auto bits) {
    pack_piece<decltype(bits)::value>(codes, length, packed + first / 8 * layout.bits);
  });
}

}  // namespace

int64_t any_workspace_bytes(const Layout& layout, bool stochastic) {
  return needs_sums(layout.bits, stochastic) ? layout.buckets() * static_cast<int64_t>(sizeof(Sums)) : 0;
}

cudaError_t find_maxima(const EncodeArguments& a, uint32_t* max_bits, cudaStream_t stream) {
  const cudaError_t status = cudaMemsetAsync(max_bits, 0, a.layout.scale_bytes(), stream);
  if (status != cudaSuccess) return status;
  return launch(stream, blocks_of_strips(a.layout), dim3(kLanes, kWarps), reduce_max, a, max_bits);
}

cudaError_t encode_any(const EncodeArguments& a, uint8_t* payload, void* workspace, cudaStream_t stream) {
  const Layout& layout = a.layout;
  const dim3 threads(kLanes, kWarps);
  Sums* sums = needs_sums(layout.bits, a.stochastic) ? static_cast<Sums*>(workspace) : nullptr;
  uint32_t* max_bits = reinterpret_cast<uint32_t*>(payload);
  cudaError_t status = find_maxima(a, max_bits, stream);
  if (status == cudaSuccess && sums) {
    status = cudaMemsetAsync(sums, 0, any_workspace_bytes(layout, a.stochastic), stream);
    if (status == cudaSuccess) {
      status = launch(stream, blocks_of_strips(layout), threads, reduce_sums, a, max_bits, sums);
    }
  }
  if (status != cudaSuccess) return status;
  float* scales = reinterpret_cast<float*>(payload);
  status = launch(stream, blocks_for(layout.buckets(), kWarps * kLanes), threads, finish_scales, layout, sums, scales);
  if (status != cudaSuccess) return status;
  return launch(stream, blocks_for(layout.numel, kWarps * kPiece), threads, encode_pieces, a, scales,
                payload + layout.scale_bytes());
}

}  // namespace mqgrad::cuda
