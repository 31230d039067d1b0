// Decodes randomly rotated buckets on CUDA, Note [Rotated buckets] in cuda_rotation_bucket.h.
#include "cuda_rotation.h"
#include "cuda_rotation_bucket.h"
#include "payload.h"

namespace mqgrad::cuda {
namespace {

template <int BITS>
__device__ __forceinline__ void load_codes(const uint8_t* packed, const float* words, const RotatedBucket& bucket) {
#pragma unroll 1
  for (int group = bucket.thread; group < bucket.size / 8; group += bucket.threads) {
    uint64_t codes = 0;
#pragma unroll
    for (int b = 0; b < BITS; ++b) codes |= static_cast<uint64_t>(packed[group * BITS + b]) << (8 * b);
    unpack8<BITS>(codes);
#pragma unroll
    for (int i = 0; i < 8; ++i) bucket.at_position(8 * group + i) = words[codes >> (8 * i) & 0xff];
  }
}

template <int BITS, bool SHARED>
__global__ void __launch_bounds__(kRotationThreads)
    decode_rotated_kernel(const uint8_t* payload, RotationLayout layout, bool add, float* out,
                          float* workspace) {
  __shared__ float words[1 << BITS];
  if (threadIdx.x < 1 << BITS) words[threadIdx.x] = codeword<BITS>(static_cast<uint8_t>(threadIdx.x));
  __syncthreads();
  const Stream stream = random_stream(load_seed(payload), 0);
  for_buckets<SHARED>(layout, workspace, [&](const RotatedBucket& bucket, int64_t k) {
    const int64_t first = k * layout.bucket_size, length = elements_in(layout, k);
    if (length > 0) load_codes<BITS>(payload + layout.codes_at() + k * layout.bucket_bytes(), words, bucket);
    bucket.sync();
    transform_columns_bits(bucket);
    transform_rows_bits(bucket);
    if (length == 0) return;
    const float scale = load_scale(payload + kSeedBytes, k);
    for (int i = bucket.thread; i < length; i += bucket.threads) {
      const float value = bucket[i] * scale * random_sign(stream, static_cast<uint32_t>(i));
      out[first + i] = add ? out[first + i] + value : value;
    }
  });
}

}  // namespace

cudaError_t decode_rotated(const uint8_t* payload, const RotationLayout& layout, bool add, float* out, void* workspace,
                           cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  if (is_piece(layout)) return decode_rotated_pieces(payload, layout, add, out, stream);
  return with_kernel(layout, [&](auto bits, auto shared) {
    return launch(stream, blocks_of(layout), dim3(kRotationThreads),
                  decode_rotated_kernel<decltype(bits)::value, decltype(shared)::value>, payload, layout, add, out,
                  static_cast<float*>(workspace));
  });
}

}  // namespace mqgrad::cuda
