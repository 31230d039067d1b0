// Rotated buckets of 512 elements on CUDA, a warp each: Note [Rotated pieces]. Also with feedback, and of means.
#include "cuda_rotation_piece.h"

#include "feedback.h"

#ifndef MQ_MAX_PIECE_BLOCKS
#define MQ_MAX_PIECE_BLOCKS 8192  // beyond 33 M elements a warp has several buckets, for which it prepares once
#endif

namespace mqgrad::cuda {
namespace {

constexpr int kKeptSigns = 32;  // payloads whose signs a block keeps

// What a block prepares for payloads that it decodes.
template <int BITS>
struct DecodingTables {
  float words[1 << BITS];
  uint16_t signs[kKeptSigns][kLanes];
};

// To be called by all threads of the block.
template <int BITS>
__device__ __forceinline__ void prepare_words(DecodingTables<BITS>& tables) {
  if (threadIdx.y == 0 && threadIdx.x < 1 << BITS) {
    tables.words[threadIdx.x] = codeword<BITS>(static_cast<uint8_t>(threadIdx.x));
  }
  __syncthreads();
}

// The same, of several payloads.
template <int BITS>
__device__ __forceinline__ void prepare(const uint8_t* payloads, int64_t count, int64_t payload_bytes,
                                        PieceRoom& room, DecodingTables<BITS>& tables) {
  for (int p = static_cast<int>(threadIdx.y); p < kKeptSigns && p < count; p += kWarps) {
    const uint64_t seed = load_seed(payloads + p * payload_bytes);
    tables.signs[p][threadIdx.x] = static_cast<uint16_t>(lane_signs(seed, room.codes));
  }
  prepare_words(tables);
}

// With what the kernel was compiled for, so that what depends on it needs no division.
template <int BITS>
__device__ __forceinline__ RotationLayout of_pieces(const RotationLayout& layout) {
  return {layout.numel, BITS, kPiece};
}

// Calls f(bucket, its first element, its number of elements) for the buckets of a warp.
template <typename F>
__device__ __forceinline__ void for_pieces(const RotationLayout& layout, const F& f) {
  const int64_t buckets = layout.buckets(), warps = static_cast<int64_t>(gridDim.x) * kWarps;
#pragma unroll 1
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y; k < buckets; k += warps) {
    f(k, k * kPiece, clamp_length(layout.numel - k * kPiece));
  }
}

// What a payload says of a bucket, by rows.
template <int BITS>
__device__ __forceinline__ void decode_piece(const uint8_t* payload, const RotationLayout& layout, int64_t k,
                                             uint32_t signs, const float* words, PieceRoom& room, float* v) {
  const float scale = load_scale(payload + kSeedBytes, k);
  load_codewords<BITS>(payload + layout.codes_at() + k * layout.bucket_bytes(), words, v);
  rotate_back(v, scale, signs, room);
}

// The mean of what payloads say of a bucket, by rows. Sums start from +0, as a tensor of zeros would.
template <int BITS>
__device__ __forceinline__ void decode_mean(const uint8_t* payloads, int64_t count, int64_t payload_bytes,
                                            const RotationLayout& layout, int64_t k, const DecodingTables<BITS>& tables,
                                            PieceRoom& room, float* mean) {
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) mean[j] = 0;
#pragma unroll 1
  for (int64_t p = 0; p < count; ++p) {
    const uint8_t* payload = payloads + p * payload_bytes;
    const uint32_t signs = p < kKeptSigns ? tables.signs[p][threadIdx.x] : lane_signs(load_seed(payload), room.codes);
    float v[kPerLane];
    decode_piece<BITS>(payload, layout, k, signs, tables.words, room, v);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) mean[j] += v[j];
  }
  divide_piece(mean, count);
}

// `payload_bytes`: of each of a.payloads.
template <int BITS, bool FEEDBACK, bool REDUCE>
__global__ void __launch_bounds__(kWarps * kLanes, FEEDBACK || REDUCE ? 2 : 3)
    encode_pieces(RotatedArguments a, int64_t payload_bytes, uint8_t* payload) {
  __shared__ PieceRoom rooms[kWarps];
  __shared__ DecodingTables<REDUCE ? BITS : 1> tables;
  PieceRoom& room = rooms[threadIdx.y];
  const RotationLayout layout = of_pieces<BITS>(a.layout);
  if constexpr (REDUCE) prepare(a.payloads, a.count, payload_bytes, room, tables);
  if (blockIdx.x == 0 && threadIdx.y == 0 && threadIdx.x == 0) store_seed(payload, a.seed);
  const float alpha = static_cast<float>(a.alpha), beta = static_cast<float>(a.beta);
  uint32_t signs = lane_signs(a.seed, room.codes);
  for_pieces(layout, [&](int64_t k, int64_t first, int length) {
    float v[kPerLane], x[kPerLane], residual[kPerLane];
    keep_in_one_register(signs);
    if constexpr (REDUCE) {
      decode_mean<BITS>(a.payloads, a.count, payload_bytes, layout, k, tables, room, v);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) v[j] = element_by_rows(j) < length ? v[j] : 0.0f;
    } else {
      with_type(a.x, a.dtype, [&](const auto* values) { load_by_rows(values + first, length, v); });
    }
    if constexpr (FEEDBACK) {
      load_by_rows(a.residual + first, length, residual);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        x[j] = v[j];
        v[j] = compensated(x[j], residual[j], alpha);
      }
    }
    rotate(v, signs, room);
    const float scale = choose_codewords<BITS>(v, a.unbiased, room.codes);  // the same in all lanes
    if (threadIdx.x == 0) reinterpret_cast<float*>(payload + kSeedBytes)[k] = scale;
    pack_piece<BITS>(room.codes, kPiece, payload + layout.codes_at() + k * layout.bucket_bytes());
    if constexpr (FEEDBACK) {
      if (!is_finite(scale)) return;  // nothing of this bucket arrives: keep what was owed
      rotate_back(v, scale, signs, room);
      load_by_rows(a.residual + first, length, residual);  // again: registers are scarcer than the cache is slow
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) residual[j] = next_residual(x[j], residual[j], v[j], beta);
      store_by_rows(residual, length, a.residual + first);
    }
  });
}

template <int BITS, bool ADD>
__global__ void __launch_bounds__(kWarps * kLanes, 2)
    decode_pieces(const uint8_t* payload, RotationLayout of_any, float* out) {
  __shared__ PieceRoom rooms[kWarps];
  __shared__ DecodingTables<BITS> tables;
  PieceRoom& room = rooms[threadIdx.y];
  const RotationLayout layout = of_pieces<BITS>(of_any);
  prepare_words(tables);
  uint32_t signs = lane_signs(load_seed(payload), room.codes);
  for_pieces(layout, [&](int64_t k, int64_t first, int length) {
    float v[kPerLane];
    keep_in_one_register(signs);
    decode_piece<BITS>(payload, layout, k, signs, tables.words, room, v);
    if constexpr (ADD) {
      float sum[kPerLane];
      load_by_rows(out + first, length, sum);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) v[j] = sum[j] + v[j];
    }
    store_by_rows(v, length, out + first);
  });
}

template <int BITS>
__global__ void __launch_bounds__(kWarps * kLanes, 2)
    decode_mean_pieces(const uint8_t* payloads, int64_t count, int64_t payload_bytes, RotationLayout of_any, float* out) {
  __shared__ PieceRoom rooms[kWarps];
  __shared__ DecodingTables<BITS> tables;
  PieceRoom& room = rooms[threadIdx.y];
  const RotationLayout layout = of_pieces<BITS>(of_any);
  prepare(payloads, count, payload_bytes, room, tables);
  for_pieces(layout, [&](int64_t k, int64_t first, int length) {
    float mean[kPerLane];
    decode_mean<BITS>(payloads, count, payload_bytes, layout, k, tables, room, mean);
    store_by_rows(mean, length, out + first);
  });
}

int64_t blocks_of_pieces(const RotationLayout& layout) {
  const int64_t blocks = blocks_for(layout.buckets(), kWarps);
  return blocks < 1 ? 1 : blocks < MQ_MAX_PIECE_BLOCKS ? blocks : MQ_MAX_PIECE_BLOCKS;  // an empty tensor has a seed, too
}

}  // namespace

cudaError_t encode_rotated_pieces(const RotatedArguments& a, uint8_t* payload, cudaStream_t stream) {
  return with_rotated_width(a.layout.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value;
    const auto of_tensor = a.residual ? encode_pieces<kBits, true, false> : encode_pieces<kBits, false, false>;
    const auto of_payloads = a.residual ? encode_pieces<kBits, true, true> : encode_pieces<kBits, false, true>;
    return launch(stream, blocks_of_pieces(a.layout), dim3(kLanes, kWarps), a.payloads ? of_payloads : of_tensor, a,
                  a.layout.payload_bytes(), payload);
  });
}

cudaError_t decode_rotated_pieces(const uint8_t* payload, const RotationLayout& layout, bool add, float* out,
                                  cudaStream_t stream) {
  return with_rotated_width(layout.bits, [&](auto width) {
    constexpr int kBits = decltype(width)::value;
    return launch(stream, blocks_of_pieces(layout), dim3(kLanes, kWarps),
                  add ? decode_pieces<kBits, true> : decode_pieces<kBits, false>, payload, layout, out);
  });
}

cudaError_t decode_rotated_mean(const uint8_t* payloads, int64_t count, const RotationLayout& layout, float* out,
                                cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  return with_rotated_width(layout.bits, [&](auto width) {
    return launch(stream, blocks_of_pieces(layout), dim3(kLanes, kWarps), decode_mean_pieces<decltype(width)::value>,
                  payloads, count, layout.payload_bytes(), layout, out);
  });
}

}  // namespace mqgrad::cuda
