// Encode on CUDA where a few warps hold a whole scale bucket in registers: the input is read once.
#include "cuda_encode_any.h"
#include "cuda_kernels.h"
#include "cuda_lane_codes.h"
#include "feedback.h"
#include "rounding.h"

namespace mqgrad::cuda {
namespace {

// The warps that share a bucket are the rows of a slice of the block: threadIdx.z is the bucket's slice, threadIdx.y the
// warp within it.
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.z * blockDim.y + threadIdx.y);
}

// Combines one number of every warp of the bucket. All threads of the block must call it.
template <typename F>
__device__ __forceinline__ uint64_t across_warps(uint64_t value, const F& combine) {
  if (blockDim.y == 1) return value;
  __shared__ uint64_t of_warp[kMaxWarps];
  __syncthreads();  // of_warp may still be read from the last call
  of_warp[warp_index()] = value;
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < static_cast<int>(blockDim.y); ++w) {
    value = w == static_cast<int>(threadIdx.y) ? value : combine(value, of_warp[threadIdx.z * blockDim.y + w]);
  }
  return value;
}

__device__ __forceinline__ uint32_t bucket_max_bits(const float* v) {
  uint32_t doubled = 0;  // without the sign: the unit that shifts is not the one that compares
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) doubled = float_bits(v[i]) * 2 > doubled ? float_bits(v[i]) * 2 : doubled;
  const auto larger = [](uint64_t a, uint64_t b) { return a > b ? a : b; };
  return static_cast<uint32_t>(across_warps(warp_max(doubled / 2), larger));
}

// Note [Scale] for nearest rounding.
__device__ __forceinline__ float bucket_nearest_scale(const float* v, int bits, int64_t count, float max) {
  const Grid grid = magnitude_grid(max);
  static_assert(kPiece <= kMagnitudes, "the squares of a warp must sum up in 32 bits");
  uint32_t sum = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const uint32_t m = magnitude(v[i] * grid.lift, grid);
    sum += m;
    squares += m * m;
  }
  const auto plus = [](uint64_t a, uint64_t b) { return a + b; };
  return nearest_scale(bits, count, across_warps(warp_sum(sum), plus), across_warps(warp_sum(squares), plus), max);
}

__device__ __forceinline__ float bucket_scale(const float* v, int bits, int64_t count, bool stochastic) {
  const uint32_t max_bits = bucket_max_bits(v);
  const float max = float_from_bits(max_bits);
  float scale = max;
  if (!stochastic && bits <= 4) {  // in every bucket, usable or not: the block's threads must stay together
    const float clipped = bucket_nearest_scale(v, bits, count, max);
    scale = max > 0 ? clipped : max;
  }
  return max_bits < kInfinityBits ? scale : float_from_bits(kNanBits);
}

// A byte of each, the first one lowest.
template <int BYTE>
__device__ __forceinline__ uint32_t join_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  constexpr unsigned kOfTwo = BYTE | (BYTE + 4) << 4;
  return __byte_perm(__byte_perm(a, b, kOfTwo), __byte_perm(c, d, kOfTwo), 0x5410);
}

// Twice what stochastic_code shifts, so that the code is byte 2. The half counts whole: of twice an integer the lowest bit
// carries nothing over.
__device__ __forceinline__ uint32_t dithered(float v, Grid grid, uint32_t half) {
  return float_bits(v * grid.lift * grid.factor + grid.offset) * 2 + half;
}

// `offset`: of the piece within its bucket.
template <int BITS>
__device__ __forceinline__ void stochastic_piece(const float* v, Stream stream, Grid grid, uint32_t offset,
                                                 PieceCodes& codes) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const uint32_t word = (offset + quad_start(q)) / 2;
    const uint32_t first = random_word(stream, word), second = random_word(stream, word + 1);
    const float* quad = v + 4 * q;
    quad_codes(codes, q) = join_bytes<2>(dithered(quad[0], grid, first & 0xffffu), dithered(quad[1], grid, first >> 16),
                                         dithered(quad[2], grid, second & 0xffffu), dithered(quad[3], grid, second >> 16));
  }
}

template <int BITS>
__device__ __forceinline__ void nearest_piece(const float* v, Grid grid, PieceCodes& codes) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const auto code = [&](int k) -> uint32_t {  // in the lowest byte
      return BITS == 1 ? sign_code(v[4 * q + k]) : float_bits(nearest_integer(v[4 * q + k] * grid.lift, grid));
    };
    quad_codes(codes, q) = join_bytes<0>(code(0), code(1), code(2), code(3));
  }
}

__device__ __forceinline__ void fill_piece(uint32_t code, PieceCodes& codes) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) quad_codes(codes, q) = code * 0x01010101u;
}

// The bits after the last code are zero.
__device__ __forceinline__ void clear_beyond(int length, PieceCodes& codes) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int valid = length - quad_start(q);
    if (valid < 4) quad_codes(codes, q) &= valid > 0 ? (1u << (8 * valid)) - 1 : 0;
  }
}

// One bucket of up to kMaxWarps pieces by blockDim.y warps. REDUCE: of the mean of payloads.
template <int BITS, bool FEEDBACK, bool REDUCE>
__global__ void __launch_bounds__(kMaxWarps * kLanes, 1)
    encode_buckets(EncodeArguments a, int64_t payload_bytes, int64_t scale_bytes, uint8_t* payload) {
  __shared__ PieceCodes codes_of_warp[kMaxWarps];
  PieceCodes& codes = codes_of_warp[warp_index()];
  const Layout& layout = a.layout;
  const int64_t bucket = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  const int offset = static_cast<int>(threadIdx.y) * kPiece;
  const int64_t first = bucket * layout.bucket_size + offset;
  const int64_t left = layout.numel - bucket * layout.bucket_size;
  const int64_t count = left < layout.bucket_size ? left : layout.bucket_size;
  const int length = clamp_length(count - offset);

  // Asked for before the elements are, so as not to be waited for after them.
  const int64_t id = a.stochastic && a.bucket_ids && length > 0 ? a.bucket_ids[bucket] : bucket;

  float v[kPerLane] = {}, x[kPerLane], residual[kPerLane];
  if constexpr (REDUCE) {
    const Payloads payloads{a.payloads, a.count, payload_bytes, scale_bytes};
    if (length > 0) load_mean<BITS>(payloads, bucket, first, length, v);
  } else {
    load_piece(a.x, a.dtype, first, length, v);
  }
  if constexpr (FEEDBACK) {
    load_piece(a.residual + first, length, residual);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      x[i] = v[i];
      v[i] = compensated(x[i], residual[i], a.alpha);
    }
  }

  const float scale = bucket_scale(v, BITS, count, a.stochastic);  // the last that needs the whole block
  if (length == 0) return;
  if (threadIdx.x == 0 && threadIdx.y == 0) reinterpret_cast<float*>(payload)[bucket] = scale;
  if (!(scale > 0)) {  // all zero, or not finite: the codes of zero
    fill_piece(level_count(BITS), codes);
  } else if (a.stochastic) {
    const Stream stream = random_stream(a.seed, static_cast<uint64_t>(id));
    stochastic_piece<BITS>(v, stream, stochastic_grid(BITS, scale), offset, codes);
  } else {
    nearest_piece<BITS>(v, nearest_grid(BITS, scale), codes);
  }

  if constexpr (FEEDBACK) {
    if (is_finite(scale)) {  // else nothing of this bucket arrives: keep what was owed
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const uint32_t quad = quad_codes(codes, q);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int i = 4 * q + k;
          residual[i] = next_residual(x[i], residual[i], value_of_code<BITS>(quad >> (8 * k) & 0xffu, scale), a.beta);
        }
      }
      store_piece(residual, length, a.residual + first);
    }
  }
  if (length < kPiece) clear_beyond(length, codes);
  pack_piece<BITS>(codes, length, payload + scale_bytes + (first >> 3) * BITS);
}

bool fits_in_registers(const Layout& layout) {
  const bool aligned = layout.buckets() == 1 || layout.bucket_size % 32 == 0;
  return aligned && layout.bucket_size <= kMaxWarps * kPiece;
}

}  // namespace

int64_t encode_workspace_bytes(const Layout& layout, bool stochastic) {
  return fits_in_registers(layout) ? 0 : any_workspace_bytes(layout, stochastic);
}

cudaError_t encode(const EncodeArguments& a, uint8_t* payload, void* workspace, cudaStream_t stream) {
  if (a.layout.numel == 0) return cudaSuccess;
  if (!fits_in_registers(a.layout)) return encode_any(a, payload, workspace, stream);
  const unsigned warps = static_cast<unsigned>(blocks_for(a.layout.bucket_size, kPiece));
  const dim3 threads(kLanes, warps, warps < kWarps ? kWarps / warps : 1);
  const int64_t blocks = blocks_for(a.layout.buckets(), threads.z);
  const int64_t payload_bytes = a.layout.payload_bytes(), scale_bytes = a.layout.scale_bytes();
  cudaError_t status = cudaSuccess;
  with_width(a.layout.bits, [&](auto bits) {
    constexpr int kBits = decltype(bits)::value;
    const auto of_tensor = a.residual ? encode_buckets<kBits, true, false> : encode_buckets<kBits, false, false>;
    const auto of_payloads = a.residual ? encode_buckets<kBits, true, true> : encode_buckets<kBits, false, true>;
    status = launch(stream, blocks, threads, a.payloads ? of_payloads : of_tensor, a, payload_bytes, scale_bytes,
                    payload);
  });
  return status;
}

}  // namespace mqgrad::cuda
