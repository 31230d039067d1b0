// Decode on CUDA: a warp per piece, Note [Piece] in cuda_piece.h.
#include "cuda_kernels.h"
#include "cuda_lane_codes.h"

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
__global__ void __launch_bounds__(kWarps* kLanes) decode_buckets(Payloads payload, Layout layout, int64_t per_bucket,
                                                                 float* out) {
  const auto [bucket, first, length] = place_of_warp(layout, per_bucket);
  if (length == 0) return;
  float values[kPerLane] = {};
  if constexpr (ADD) load_piece(out + first, length, values);
  const auto take = [&](int i, float value) { values[i] = ADD ? values[i] + value : value; };
  if (length == kPiece && payload.are_aligned()) {
    for_each_value<BITS, true>(payload, 0, bucket, first, length, take);
  } else {
    for_each_value<BITS, false>(payload, 0, bucket, first, length, take);
  }
  store_piece(values, length, out + first);
}

// Blocks a multiprocessor, as many as nothing spills for, or as it has room for: a warp waits for little at a time, and often.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kMeanBlocks = 4;
#else
constexpr int kMeanBlocks = 5;
#endif

// The same of the mean of several payloads.
template <int BITS>
__global__ void __launch_bounds__(kWarps* kLanes, kMeanBlocks)
    decode_means(Payloads payloads, Layout layout, int64_t per_bucket, float* out) {
  const auto [bucket, first, length] = place_of_warp(layout, per_bucket);
  if (length == 0) return;
  float mean[kPerLane];
  load_mean<BITS>(payloads, bucket, first, length, mean);
  store_piece(mean, length, out + first);
}

// For buckets of any size.
template <bool ADD>
__global__ void __launch_bounds__(kPerBlock) decode_any(const uint8_t* scales, const uint8_t* packed, Layout layout,
                                                        float* out) {
  const int64_t i = element_of_thread();
  if (i >= layout.numel) return;
  const uint32_t code = load_code(packed, i, layout.bits);
  const float value = value_of_any(layout.bits, code, load_scale(scales, i / layout.bucket_size));
  out[i] = ADD ? out[i] + value : value;
}

__global__ void __launch_bounds__(kPerBlock) divide(float* values, int64_t numel, float divisor) {
  const int64_t i = element_of_thread();
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
  return launch(stream, blocks_for(layout.numel, kPerBlock), dim3(kLanes, kWarps), divide, out, layout.numel,
                static_cast<float>(payloads.count));
}

}  // namespace

cudaError_t decode(const uint8_t* payload, const Layout& layout, bool add, float* out, cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  const dim3 threads(kLanes, kWarps);
  if (!has_pieces(layout)) {
    return launch(stream, blocks_for(layout.numel, kPerBlock), threads, add ? decode_any<true> : decode_any<false>, payload,
                  payload + layout.scale_bytes(), layout, out);
  }
  const Payloads one{payload, 1, layout.payload_bytes(), layout.scale_bytes()};
  const int64_t per_bucket = blocks_for(layout.bucket_size, kPiece);
  const int64_t blocks = blocks_for(layout.buckets() * per_bucket, kWarps);
  cudaError_t status = cudaSuccess;
  with_width(layout.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    const auto kernel = add ? decode_buckets<kBits, true> : decode_buckets<kBits, false>;
    status = launch(stream, blocks, threads, kernel, one, layout, per_bucket, out);
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
