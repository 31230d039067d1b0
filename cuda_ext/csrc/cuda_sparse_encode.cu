// Encodes the sparse code on CUDA:
//
// 1. Find the threshold, Note [Radix select] in cuda_sparse_select.h.
// 2. Count what is kept of every 4096 elements, a warp each, and scan the counts: where their entries go.
// 3. Write the entries, and keep the error.
//
// Entries begin anywhere in a word, so that they are written with atomics to words that are zero, and copied.
#include "cuda_scan.h"
#include "cuda_sparse.h"
#include "cuda_sparse_select.h"

namespace mqgrad::cuda {
namespace {

constexpr int64_t kUnit = 4096;  // elements of a warp

// Of a unit; scanned, of the units before it.
struct Counts {
  int64_t* above;  // keys above the threshold
  int64_t* equal;  // keys that are the threshold, kept or not
};

struct Workspace {
  Selection* selection;
  int64_t units;
  Counts counts;
  uint32_t* words;  // the payload
};

int64_t words_of(const SparseLayout& layout) {
  return blocks_for(layout.payload_bytes(), 4);
}

Workspace divide(void* memory, const SparseLayout& layout) {
  const int64_t units = blocks_for(layout.numel, kUnit);
  Selection* const selection = static_cast<Selection*>(memory);
  int64_t* const counts = reinterpret_cast<int64_t*>(selection + 1);
  return {selection, units, {counts, counts + units}, reinterpret_cast<uint32_t*>(counts + 2 * units)};
}

__global__ void __launch_bounds__(kWarps* kLanes) count_kept(SparseArguments a, Selection* selection, int64_t units,
                                                             Counts counts) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const uint32_t top = selection->top, threshold = selection->threshold;
  if (unit >= units) return;
  const int64_t end = (unit + 1) * kUnit < a.layout.numel ? (unit + 1) * kUnit : a.layout.numel;
  uint32_t above = 0, equal = 0, below_top = 0;
  for_values(a, unit * kUnit + threadIdx.x, end, kLanes, [&](float value) {
    const uint32_t key = abs_bits(value);
    above += key > threshold ? 1 : 0;
    equal += key == threshold ? 1 : 0;
    if (key > threshold && top - key > below_top) below_top = top - key;
  });
  above = warp_sum(above);
  equal = warp_sum(equal);
  below_top = warp_max(below_top);
  if (threadIdx.x != 0) return;
  counts.above[unit] = above;
  counts.equal[unit] = equal;
  if (below_top > 0) atomicMax(&selection->below_top, below_top);
}

__device__ __forceinline__ void put_bits(uint32_t* words, int64_t bit, uint32_t bits) {
  const uint64_t shifted = static_cast<uint64_t>(bits) << (bit % 32);
  atomicOr(words + bit / 32, static_cast<uint32_t>(shifted));
  if (shifted >> 32) atomicOr(words + bit / 32 + 1, static_cast<uint32_t>(shifted >> 32));
}

// Returns the value that is sent.
__device__ __forceinline__ float write_entry(const SparseLayout& layout, int64_t i, float value, int64_t entry,
                                             SparseHeader header, uint32_t* words) {
  const uint32_t code = sparse_code(value, header);
  const uint32_t low = static_cast<uint32_t>(i & ((int64_t{1} << layout.low_bits) - 1));
  put_bits(words, 8 * kSparseHeaderBytes + (i >> layout.low_bits) + entry, 1);
  put_bits(words, 8 * (kSparseHeaderBytes + layout.high_bytes()) + entry * layout.entry_bits(),
           low << kValueBits | code);
  return sparse_value(code, header);
}

__global__ void __launch_bounds__(kWarps* kLanes) write_entries(SparseArguments a, const Selection* selection,
                                                                int64_t units, Counts counts, uint32_t* words) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (unit >= units) return;
  const uint32_t top = selection->top, threshold = selection->threshold;
  const int64_t ties = selection->ties;
  const SparseHeader header{ties > 0 ? threshold : top - selection->below_top, top};
  if (unit == 0 && threadIdx.x == 0) store_sparse_header(header, reinterpret_cast<uint8_t*>(words));
  if (top >= kInfinityBits) return;  // and what is owed stays owed

  const uint32_t lanes_before = (1u << threadIdx.x) - 1;
  const int64_t end = (unit + 1) * kUnit < a.layout.numel ? (unit + 1) * kUnit : a.layout.numel;
  int64_t tie = counts.equal[unit];
  int64_t entry = counts.above[unit] + (tie < ties ? tie : ties);
  const auto visit = [&](int64_t i, float value) {
    const uint32_t key = abs_bits(value);
    const bool is_tie = i < end && key == threshold;
    const uint32_t tied = __ballot_sync(0xffffffffu, is_tie);
    const bool is_kept = key > threshold || (is_tie && tie + __popc(tied & lanes_before) < ties);
    const uint32_t kept = __ballot_sync(0xffffffffu, is_kept);
    float sent = 0;
    if (is_kept) {
      sent = write_entry(a.layout, i, value, entry + __popc(kept & lanes_before), header, words);
    }
    if (a.residual && i < end) {
      a.residual[i] = next_residual(load_float(a.x, a.dtype, i), a.residual[i], sent, a.beta);
    }
    tie += __popc(tied);
    entry += __popc(kept);
  };
  for (int64_t first = unit * kUnit; first < end; first += kValuesAtOnce * kLanes) {
    const int64_t i = first + threadIdx.x;
    float values[kValuesAtOnce];
#pragma unroll
    for (int k = 0; k < kValuesAtOnce; ++k) values[k] = i + k * kLanes < end ? value_at(a, i + k * kLanes) : 0.0f;
#pragma unroll
    for (int k = 0; k < kValuesAtOnce; ++k) visit(i + k * kLanes, values[k]);
  }
}

}  // namespace

int64_t sparse_encode_workspace_bytes(const SparseLayout& layout) {
  if (layout.numel == 0) return 0;
  const int64_t counts = 2 * blocks_for(layout.numel, kUnit) * static_cast<int64_t>(sizeof(int64_t));
  return static_cast<int64_t>(sizeof(Selection)) + counts + 4 * words_of(layout);
}

cudaError_t encode_sparse(const SparseArguments& a, uint8_t* payload, void* memory, cudaStream_t stream) {
  if (a.layout.numel == 0) return cudaSuccess;
  const Workspace work = divide(memory, a.layout);
  const dim3 threads(kLanes, kWarps);
  const int64_t blocks = blocks_for(work.units, kWarps);
  cudaError_t status = cudaMemsetAsync(memory, 0, sparse_encode_workspace_bytes(a.layout), stream);
  if (status == cudaSuccess) status = select_largest(a, work.selection, stream);
  if (status != cudaSuccess) return status;
  status = launch(stream, blocks, threads, count_kept, a, work.selection, work.units, work.counts);
  if (status != cudaSuccess) return status;
  status = launch(stream, 2, dim3(kScanThreads), scan<Plus>, work.counts.above, work.units);
  if (status != cudaSuccess) return status;
  status = launch(stream, blocks, threads, write_entries, a, work.selection, work.units, work.counts, work.words);
  if (status != cudaSuccess) return status;
  return cudaMemcpyAsync(payload, work.words, a.layout.payload_bytes(), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace mqgrad::cuda
