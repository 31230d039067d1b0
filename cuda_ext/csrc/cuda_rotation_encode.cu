// Encodes randomly rotated buckets on CUDA, Note [Rotated buckets] in cuda_rotation_bucket.h.
#include "cuda_piece.h"  // GroupUnit
#include "cuda_rotation.h"
#include "cuda_rotation_bucket.h"
#include "payload.h"

namespace mqgrad::cuda {
namespace {

struct Scale {
  float inverse_unit;
  float scale;
};

template <int BITS>
__device__ __forceinline__ Scale scale_of(const RotatedBucket& bucket, bool unbiased) {
  const float magnitudes = sum_over_tree(bucket, [](float y) { return float_from_bits(abs_bits(y)); });
  const RotatedUnit unit = rotated_unit<BITS>(magnitudes, bucket.size);
  const float product = sum_over_tree(bucket, [=](float y) {
    const float u = y * unit.inverse;
    return u * nearest_codeword<BITS>(u).word;
  });
  const float squares = sum_over_tree(bucket, [=](float y) {
    const float u = y * unit.inverse;
    const float term = unbiased ? u : nearest_codeword<BITS>(u).word;
    return term * term;
  });
  return {unit.inverse, rotated_scale(unit, unbiased, product, squares, bucket.size)};
}

// Eight codes a thread; their bytes begin at a multiple of the unit's size.
template <int BITS>
__device__ __forceinline__ void store_codes(const RotatedBucket& bucket, float inverse_unit, uint8_t* packed) {
  using Unit = GroupUnit<BITS>;
#pragma unroll 1
  for (int group = bucket.thread; group < bucket.size / 8; group += bucket.threads) {
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float u = bucket.at_position(8 * group + i) * inverse_unit;
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
                          uint8_t* payload, float* workspace) {
  const Stream stream = random_stream(seed, 0);
  if (blockIdx.x == 0 && threadIdx.x == 0) store_seed(payload, seed);
  for_buckets<SHARED>(layout, workspace, [&](const RotatedBucket& bucket, int64_t k) {
    const int64_t first = k * layout.bucket_size, length = elements_in(layout, k);
    for (int i = bucket.thread; i < bucket.size; i += bucket.threads) {
      bucket[i] = (i < length ? load_float(x, dtype, first + i) : 0.0f) * random_sign(stream, static_cast<uint32_t>(i));
    }
    bucket.sync();
    transform_rows_bits(bucket);
    transform_columns_bits(bucket);
    const Scale scale = scale_of<BITS>(bucket, unbiased);
    if (length == 0) return;
    store_codes<BITS>(bucket, scale.inverse_unit, payload + layout.codes_at() + k * layout.bucket_bytes());
    if (bucket.thread == 0) reinterpret_cast<float*>(payload + kSeedBytes)[k] = scale.scale;
  });
}

}  // namespace

int64_t rotation_workspace_bytes(const RotationLayout& layout) {
  return is_shared(layout) ? 0 : blocks_of(layout) * padded(layout.bucket_size) * static_cast<int64_t>(sizeof(float));
}

cudaError_t encode_rotated(const RotatedArguments& a, uint8_t* payload, void* workspace, cudaStream_t stream) {
  if (is_piece(a.layout)) return encode_rotated_pieces(a, payload, stream);
  const int64_t blocks = blocks_of(a.layout) > 0 ? blocks_of(a.layout) : 1;  // an empty tensor has a seed, too
  return with_kernel(a.layout, [&](auto bits, auto shared) {
    return launch(stream, blocks, dim3(kRotationThreads),
                  encode_rotated_kernel<decltype(bits)::value, decltype(shared)::value>, a.x, a.dtype, a.layout,
                  a.unbiased, a.seed, payload, static_cast<float*>(workspace));
  });
}

}  // namespace mqgrad::cuda
