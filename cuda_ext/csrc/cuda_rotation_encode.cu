// Encodes randomly rotated buckets on CUDA, Note [Rotated buckets] in cuda_rotation_bucket.h.
#include "cuda_piece.h"  // GroupUnit
#include "cuda_rotation.h"
#include "cuda_rotation_bucket.h"
#include "payload.h"

namespace mqgrad::cuda {
namespace {

struct Scale {
  float inverse_sigma;
  float scale;
};

template <int BITS>
__device__ __forceinline__ Scale scale_of(const RotatedBucket& bucket, bool unbiased) {
  const double norm_sq =
      sum_over_tree(bucket, [](float y) { return static_cast<double>(y) * static_cast<double>(y); });
  const Spread spread = spread_of(norm_sq, bucket.size);
  const double product = sum_over_tree(bucket, [=](float y) {
    return static_cast<double>(y) * static_cast<double>(nearest_codeword<BITS>(y * spread.inverse).word);
  });
  double words_sq = 0;
  if (!unbiased) {
    words_sq = sum_over_tree(bucket, [=](float y) {
      const double word = nearest_codeword<BITS>(y * spread.inverse).word;
      return word * word;
    });
  }
  return {spread.inverse, rotated_scale(spread, unbiased, norm_sq, product, words_sq)};
}

// Eight codes a thread; their bytes begin at a multiple of the unit's size.
template <int BITS>
__device__ __forceinline__ void store_codes(const RotatedBucket& bucket, float inverse_sigma, uint8_t* packed) {
  using Unit = GroupUnit<BITS>;
#pragma unroll 1
  for (int group = bucket.thread; group < bucket.size / 8; group += bucket.threads) {
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float u = bucket.at_position(8 * group + i) * inverse_sigma;
      codes |= static_cast<uint64_t>(nearest_codeword<BITS>(u).code) << (8 * i);
    }
    pack8<BITS>(codes);
    Unit* units = reinterpret_cast<Unit*>(packed + group * BITS);
#pragma unroll
    for (int u = 0; u < BITS / static_cast<int>(sizeof(Unit)); ++u) {
      units[u] = static_cast<Unit>(codes >> (8 * sizeof(Unit) * u));
    }
  }
}

template <int BITS, bool SHARED>
__global__ void __launch_bounds__(kRotationThreads, 2)  // two blocks a multiprocessor: else ptxas spills
    encode_rotated_kernel(const void* x, ScalarType dtype, RotationLayout layout, bool unbiased, uint64_t seed,
                          float norm, uint8_t* payload, float* workspace) {
  const Stream stream = random_stream(seed, 0);
  if (blockIdx.x == 0 && threadIdx.x == 0) store_seed(payload, seed);
  for_buckets<SHARED>(layout, workspace, [&](const RotatedBucket& bucket, int64_t k) {
    const int64_t first = k * layout.bucket_size, length = elements_in(layout, k);
    for (int i = bucket.thread; i < bucket.size; i += bucket.threads) {
      bucket[i] = (i < length ? load_float(x, dtype, first + i) : 0.0f) * random_factor(stream, static_cast<uint32_t>(i), norm);
    }
    bucket.sync();
    transform_rows_bits(bucket);
    transform_columns_bits<false>(bucket);
    const Scale scale = scale_of<BITS>(bucket, unbiased);
    if (length == 0) return;
    store_codes<BITS>(bucket, scale.inverse_sigma, payload + layout.codes_at() + k * layout.bucket_bytes());
    if (bucket.thread == 0) reinterpret_cast<float*>(payload + kSeedBytes)[k] = scale.scale;
  });
}

}  // namespace

int64_t rotation_workspace_bytes(const RotationLayout& layout) {
  return is_shared(layout) ? 0 : blocks_of(layout) * padded(layout.bucket_size) * static_cast<int64_t>(sizeof(float));
}

cudaError_t encode_rotated(const void* x, ScalarType dtype, const RotationLayout& layout, bool unbiased, uint64_t seed,
                           uint8_t* payload, void* workspace, cudaStream_t stream) {
  const int64_t blocks = blocks_of(layout) > 0 ? blocks_of(layout) : 1;  // an empty tensor has a seed, too
  cudaError_t status = cudaSuccess;
  with_kernel(layout, [&](auto bits, auto shared) {
    status = launch(stream, blocks, dim3(kRotationThreads),
                    encode_rotated_kernel<decltype(bits)::value, decltype(shared)::value>, x, dtype, layout, unbiased,
                    seed, rotation_norm(layout.bucket_size), payload, static_cast<float*>(workspace));
  });
  return status;
}

}  // namespace mqgrad::cuda
