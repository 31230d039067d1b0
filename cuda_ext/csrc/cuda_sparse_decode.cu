// Decodes the sparse code on CUDA, Note [Sparse payload] in sparse_math.h:
//
// 1. Count the ones of every 2048 bits of the high parts, a warp each, and scan the counts: the number of a one's entry.
// 2. Find the largest index in them, and scan those: what an index must be above to count.
// 3. Add the values of the indices that count; they are all different.
#include "cuda_scan.h"
#include "cuda_sparse.h"

namespace mqgrad::cuda {
namespace {

constexpr int kLaneBits = 64;
constexpr int kUnitBits = kLanes * kLaneBits;
constexpr int64_t kNanBlocks = 1024;

int64_t decode_units(const SparseLayout& layout) {
  return blocks_for(layout.high_bits(), kUnitBits);
}

// `count` bytes, up to 8, of which those from `bytes` on are zero.
__device__ __forceinline__ uint64_t load_bytes(const uint8_t* base, int64_t bytes, int64_t at, int count) {
  uint64_t word = 0;
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (b < count && at + b < bytes) word |= static_cast<uint64_t>(base[at + b]) << (8 * b);
  }
  return word;
}

struct LaneOnes {
  int64_t at;  // of the first bit
  uint64_t ones;
};

__device__ __forceinline__ LaneOnes lane_ones(const uint8_t* payload, const SparseLayout& layout, int64_t unit) {
  const int64_t at = unit * kUnitBits + threadIdx.x * kLaneBits, left = layout.high_bits() - at;
  if (left <= 0) return {at, 0};
  const uint64_t ones = load_bytes(payload + kSparseHeaderBytes, layout.high_bytes(), at / 8, 8);
  return {at, left < kLaneBits ? ones & ((uint64_t{1} << left) - 1) : ones};
}

// Calls f(index, sign and level) for a lane's entries, of which `entry` is the first.
template <typename F>
__device__ __forceinline__ void for_entries(const uint8_t* payload, const SparseLayout& layout, const LaneOnes& lane,
                                            int64_t entry, const F& f) {
  const uint8_t* entries = payload + kSparseHeaderBytes + layout.high_bytes();
  const int64_t bytes = layout.payload_bytes() - kSparseHeaderBytes - layout.high_bytes();
  const int bits = layout.entry_bits();
  for (uint64_t ones = lane.ones; ones && entry < layout.count; ones &= ones - 1, ++entry) {
    const int64_t part = lane.at + __ffsll(static_cast<long long>(ones)) - 1 - entry, bit = entry * bits;
    const uint64_t word = load_bytes(entries, bytes, bit / 8, (bits + 14) / 8) >> (bit % 8);
    const uint32_t value = static_cast<uint32_t>(word & ((uint64_t{1} << bits) - 1));
    f(part << layout.low_bits | static_cast<int64_t>(value >> kValueBits), value & ((1u << kValueBits) - 1));
  }
}

__global__ void __launch_bounds__(kWarps* kLanes) count_ones(const uint8_t* payload, SparseLayout layout,
                                                             int64_t units, int64_t* counts) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (unit >= units) return;
  const uint32_t count = warp_sum(__popcll(lane_ones(payload, layout, unit).ones));
  if (threadIdx.x == 0) counts[unit] = count;
}

// What a lane needs to know of the lanes and units before it.
__device__ __forceinline__ int64_t first_entry(const LaneOnes& lane, const int64_t* counts, int64_t unit) {
  return counts[unit] + of_lanes_before<Plus>(__popcll(lane.ones));
}

__device__ __forceinline__ int64_t lane_top(const uint8_t* payload, const SparseLayout& layout, const LaneOnes& lane,
                                            int64_t entry) {
  int64_t top = Larger::kNothing;
  for_entries(payload, layout, lane, entry, [&](int64_t index, uint32_t) { top = index > top ? index : top; });
  return top;
}

__global__ void __launch_bounds__(kWarps* kLanes) find_tops(const uint8_t* payload, SparseLayout layout, int64_t units,
                                                            const int64_t* counts, int64_t* tops) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (unit >= units) return;
  const LaneOnes lane = lane_ones(payload, layout, unit);
  const int64_t top = lane_top(payload, layout, lane, first_entry(lane, counts, unit));
  const int64_t before = of_lanes_before<Larger>(top);
  if (threadIdx.x == kLanes - 1) tops[unit] = Larger()(before, top);
}

__global__ void __launch_bounds__(kWarps* kLanes) add_values(const uint8_t* payload, SparseLayout layout,
                                                             int64_t units, const int64_t* counts,
                                                             const int64_t* tops, float* out) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (unit >= units) return;
  const SparseHeader header = load_sparse_header(payload);
  if (header.top >= kInfinityBits) return;
  const LaneOnes lane = lane_ones(payload, layout, unit);
  const int64_t entry = first_entry(lane, counts, unit);
  int64_t last = Larger()(tops[unit], of_lanes_before<Larger>(lane_top(payload, layout, lane, entry)));
  for_entries(payload, layout, lane, entry, [&](int64_t index, uint32_t code) {
    if (index > last && index < layout.numel) out[index] += sparse_value(code, header);
    last = Larger()(last, index);
  });
}

// Where the top is not finite: the whole vector.
__global__ void __launch_bounds__(kWarps* kLanes) add_nan(const uint8_t* payload, int64_t numel, float* out) {
  if (load_sparse_header(payload).top < kInfinityBits) return;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y) * kLanes + threadIdx.x;
  for (int64_t i = first; i < numel; i += static_cast<int64_t>(gridDim.x) * kWarps * kLanes) {
    out[i] += float_from_bits(kNanBits);
  }
}

}  // namespace

int64_t sparse_decode_workspace_bytes(const SparseLayout& layout) {
  return layout.numel == 0 ? 0 : 2 * decode_units(layout) * static_cast<int64_t>(sizeof(int64_t));
}

cudaError_t decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out, void* workspace,
                              cudaStream_t stream) {
  if (layout.numel == 0) return cudaSuccess;
  const dim3 threads(kLanes, kWarps);
  const int64_t units = decode_units(layout), blocks = blocks_for(units, kWarps);
  const int64_t nan_blocks = blocks_for(layout.numel, kWarps * kLanes);
  int64_t* const counts = static_cast<int64_t*>(workspace);
  int64_t* const tops = counts + units;
  cudaError_t status = launch(stream, blocks, threads, count_ones, payload, layout, units, counts);
  if (status != cudaSuccess) return status;
  status = launch(stream, 1, dim3(kScanThreads), scan<Plus>, counts, units);
  if (status != cudaSuccess) return status;
  status = launch(stream, blocks, threads, find_tops, payload, layout, units, counts, tops);
  if (status != cudaSuccess) return status;
  status = launch(stream, 1, dim3(kScanThreads), scan<Larger>, tops, units);
  if (status != cudaSuccess) return status;
  status = launch(stream, blocks, threads, add_values, payload, layout, units, counts, tops, out);
  if (status != cudaSuccess) return status;
  return launch(stream, nan_blocks < kNanBlocks ? nan_blocks : kNanBlocks, threads, add_nan, payload, layout.numel, out);
}

}  // namespace mqgrad::cuda
