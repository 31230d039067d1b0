// Decode on CUDA: a warp per piece, Note [Piece] in cuda_piece.h.
#include "cuda_kernels.h"
#include "cuda_piece.h"

namespace mqgrad::cuda {
namespace {

// The piece of a bucket that a warp handles.
struct Place {
  int64_t bucket;
  int64_t first;  // element
  int length;     // 0 beyond the end
};

// Of buckets of `per_bucket` pieces each.
__device__ __forceinline__ Place place_of_warp(const Layout& layout, int64_t per_bucket) {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const int64_t bucket = per_bucket == 1 ? piece : piece / per_bucket;
  const int64_t offset = (piece - bucket * per_bucket) * kPiece;
  const int64_t first = bucket * layout.bucket_size + offset;
  const int64_t left = layout.numel - first;
  return {bucket, first, clamp_length(left < layout.bucket_size - offset ? left : layout.bucket_size - offset)};
}

// Pieces of buckets: one scale a piece.
template <int BITS, bool ADD>
__global__ void __launch_bounds__(kWarps* kLanes) decode_buckets(const uint8_t* scales, const uint8_t* packed,
                                                                 Layout layout, int64_t per_bucket, float* out) {
  __shared__ PieceCodes codes_of_warp[kWarps];
  PieceCodes& codes = codes_of_warp[threadIdx.y];
  const auto [bucket, first, length] = place_of_warp(layout, per_bucket);
  if (length == 0) return;

  float values[kPerLane];
  if constexpr (ADD) load_piece(out + first, length, values);
  const float scale = load_scale(scales, bucket);
  unpack_piece<BITS>(packed + (first >> 3) * BITS, length, codes);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const uint32_t quad = quad_codes(codes, q);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float value = code_value(BITS, quad >> (8 * k) & 0xffu, scale);
      values[4 * q + k] = ADD ? values[4 * q + k] + value : value;
    }
  }
  store_piece(values, length, out + first);
}

// The same of the mean of several payloads.
template <int BITS>
__global__ void __launch_bounds__(kWarps* kLanes) decode_means(Payloads payloads, Layout layout, int64_t per_bucket,
                                                               float* out) {
  __shared__ PieceCodes codes_of_warp[kWarps];
  const auto [bucket, first, length] = place_of_warp(layout, per_bucket);
  if (length == 0) return;
  float mean[kPerLane];
  load_mean<BITS>(payloads, bucket, first, length, codes_of_warp[threadIdx.y], mean);
  store_piece(mean, length, out + first);
}

// Pieces of the tensor, for buckets of any size: a scale is looked up for every element.
template <bool ADD>
__global__ void __launch_bounds__(kWarps* kLanes) decode_any(const uint8_t* scales, const uint8_t* packed,
                                                             Layout layout, float* out) {
  __shared__ PieceCodes codes_of_warp[kWarps];
  PieceCodes& codes = codes_of_warp[threadIdx.y];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kPiece;
  const int length = clamp_length(layout.numel - first);
  if (length == 0) return;
  with_width(layout.bits, [&](auto bits) {
    unpack_piece<decltype(bits)::value>(packed + first / 8 * layout.bits, length, codes);
  });
  for (int at = static_cast<int>(threadIdx.x); at < length; at += kLanes) {
    const int64_t i = first + at;
    const float value = code_value(layout.bits, codes.bytes[at], load_scale(scales, i / layout.bucket_size));
    out[i] = ADD ? out[i] + value : value;
  }
}

__global__ void __launch_bounds__(kWarps* kLanes) divide(float* values, int64_t numel, float divisor) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kLanes + threadIdx.x;
  if (i < numel) values[i] /= divisor;
}

// Whether a piece of 512 elements, or of all of a bucket, has one scale and begins with a byte.
bool has_pieces(const Layout& layout) {
  return layout.buckets() <= 1 || layout.bucket_size % 32 == 0;
}

// For buckets of any size: each payload in turn is added to zeros.
cudaError_t decode_mean_of_any(const Payloads& payloads, const Layout& layout, float* out, cudaStream_t stream) {
  cudaError_t status = cudaMemsetAsync(out, 0, layout.numel * sizeof(float), stream);
  for (int64_t p = 0; p < payloads.count && status == cudaSuccess; ++p) {
    status = decode(payloads.bytes + p * payloads.payload_bytes, layout, true, out, stream);
  }
  if (status != cudaSuccess) return status;
  return launch(stream, blocks_for(layout.numel, kWarps * kLanes), dim3(kLanes, kWarps), divide, out, layout.numel,
                static_cast<float>(payloads.count));
}

}  // namespace

cudaError_t decode(const uint8_t* payload, const Layout& layout, bool add, float* out, cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  const dim3 threads(kLanes, kWarps);
  const uint8_t* packed = payload + layout.scale_bytes();
  if (!has_pieces(layout)) {
    const int64_t blocks = blocks_for(layout.numel, kWarps * kPiece);
    return launch(stream, blocks, threads, add ? decode_any<true> : decode_any<false>, payload, packed, layout, out);
  }
  const int64_t per_bucket = blocks_for(layout.bucket_size, kPiece);
  const int64_t blocks = blocks_for(layout.buckets() * per_bucket, kWarps);
  cudaError_t status = cudaSuccess;
  with_width(layout.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    const auto kernel = add ? decode_buckets<kBits, true> : decode_buckets<kBits, false>;
    status = launch(stream, blocks, threads, kernel, payload, packed, layout, per_bucket, out);
  });
  return status;
}

cudaError_t decode_mean(const uint8_t* bytes, int64_t count, const Layout& layout, float* out, cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  const Payloads payloads{bytes, count, layout.payload_bytes(), layout.scale_bytes()};
  if (!has_pieces(layout)) return decode_mean_of_any(payloads, layout, out, stream);
  const int64_t per_bucket = blocks_for(layout.bucket_size, kPiece);
  const int64_t blocks = blocks_for(layout.buckets() * per_bucket, kWarps);
  cudaError_t status = cudaSuccess;
  with_width(layout.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    status = launch(stream, blocks, dim3(kLanes, kWarps), decode_means<kBits>, payloads, layout, per_bucket, out);
  });
  return status;
}

}  // namespace mqgrad::cuda
