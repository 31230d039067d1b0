// The threshold of the sparse code on CUDA, Note [Radix select] in cuda_sparse_select.h.
#include "cuda_sparse_select.h"

#include "cuda_scan.h"

namespace mqgrad::cuda {
namespace {

constexpr int kCountThreads = 256;
constexpr int64_t kCountBlocks = 1024;
constexpr int64_t kLeastPerBlock = 4096;

MQ_INLINE constexpr int digit_shift(int digit) {
  return digit == 0 ? 20 : digit == 1 ? 10 : 0;
}

MQ_INLINE constexpr int digit_end(int digit) {  // the bit above it
  return digit == 0 ? 31 : digit == 1 ? 20 : 10;
}

template <int DIGIT>
__global__ void __launch_bounds__(kCountThreads) count_keys(SparseArguments a, Selection* selection) {
  __shared__ uint32_t bins[kBins];
  __shared__ uint32_t half_octaves[kHalfOctaves];
  constexpr int kEnd = digit_end(DIGIT), kBeforeEnd = digit_end(DIGIT > 0 ? DIGIT - 1 : 0);
  const uint32_t top = selection->top, found = selection->threshold, lowest = lowest_key(top);
  if (DIGIT > 0 && top >= kInfinityBits) return;  // during the first pass it still grows
  for (int bin = threadIdx.x; bin < kBins; bin += kCountThreads) bins[bin] = 0;
  if (threadIdx.x < kHalfOctaves) half_octaves[threadIdx.x] = 0;
  __syncthreads();
  uint32_t max = 0;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kCountThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kCountThreads + threadIdx.x;
  for_values(a, first, a.layout.numel, threads, [&](float value) {
    const uint32_t key = abs_bits(value);
    max = key > max ? key : max;
    if (key == 0 || key >> kBeforeEnd != found >> kBeforeEnd) return;
    if (key >> kEnd == found >> kEnd) {
      atomicAdd(&bins[key >> digit_shift(DIGIT) & ((1u << (kEnd - digit_shift(DIGIT))) - 1)], 1u);
    } else if (key > found && key >= lowest) {
      atomicAdd(&half_octaves[(top - key) / kHalfOctave], 1u);
    }
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kCountThreads) {
    if (bins[bin]) atomicAdd(&selection->bins[DIGIT][bin], static_cast<unsigned long long>(bins[bin]));
  }
  if (DIGIT == 0) {
    max = warp_max(max);
    if (threadIdx.x % kLanes == 0) atomicMax(&selection->top, max);
  } else if (threadIdx.x < kHalfOctaves && half_octaves[threadIdx.x]) {
    atomicAdd(&selection->half_octaves[threadIdx.x], static_cast<unsigned long long>(half_octaves[threadIdx.x]));
  }
}

// One block, two bins a thread, from the largest down.
template <int DIGIT>
__global__ void __launch_bounds__(kScanThreads) choose_digit(Selection* selection, int64_t count) {
  static_assert(kBins == 2 * kScanThreads, "two bins a thread");
  const unsigned long long* bins = selection->bins[DIGIT];
  const int64_t wanted = DIGIT == 0 ? count : selection->ties;
  const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
  const int64_t first = static_cast<int64_t>(bins[bin]), second = static_cast<int64_t>(bins[bin - 1]);
  int64_t all;
  const int64_t above = of_threads_before<Plus>(first + second, all);
  if (above >= wanted) return;
  const bool is_first = above + first >= wanted;
  if (!is_first && above + first + second < wanted && bin > 1) return;
  selection->ties = wanted - above - (is_first ? 0 : first);
  selection->threshold |= static_cast<uint32_t>(is_first ? bin : bin - 1) << digit_shift(DIGIT);
}

// Leaves out what the levels of the code would serve badly, Note [Sparse levels]. One block.
__global__ void __launch_bounds__(kCountThreads) raise_to_floor(Selection* selection) {
  __shared__ int64_t counts[kHalfOctaves];
  const uint32_t top = selection->top, threshold = selection->threshold, lowest = lowest_key(top);
  const int64_t ties = selection->ties;
  if (top >= kInfinityBits) return;
  if (threadIdx.x < kHalfOctaves) counts[threadIdx.x] = static_cast<int64_t>(selection->half_octaves[threadIdx.x]);
  __syncthreads();
  constexpr uint32_t kLastBins = 1u << digit_end(kDigits - 1);
  for (uint32_t bin = threadIdx.x; bin < kLastBins; bin += kCountThreads) {
    const uint32_t key = (threshold & ~(kLastBins - 1)) | bin;
    if (key < threshold || key < lowest || key > top) continue;
    const unsigned long long count =
        key == threshold ? static_cast<unsigned long long>(ties) : selection->bins[kDigits - 1][bin];
    if (count == 0) continue;  // as nearly all are, and adding to one counter they would wait for one another
    atomicAdd(reinterpret_cast<unsigned long long*>(&counts[(top - key) / kHalfOctave]), count);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint32_t floor = best_floor(counts, top);
  if (floor <= threshold) return;
  selection->threshold = floor - 1;
  selection->ties = 0;
}

template <int DIGIT>
cudaError_t find_digit(const SparseArguments& a, Selection* selection, cudaStream_t stream) {
  const int64_t blocks = blocks_for(a.layout.numel, kLeastPerBlock);
  const cudaError_t status = launch(stream, blocks < kCountBlocks ? blocks : kCountBlocks, dim3(kCountThreads),
                                    count_keys<DIGIT>, a, selection);
  if (status != cudaSuccess) return status;
  return launch(stream, 1, dim3(kScanThreads), choose_digit<DIGIT>, selection, a.layout.count);
}

}  // namespace

cudaError_t select_largest(const SparseArguments& a, Selection* selection, cudaStream_t stream) {
  cudaError_t status = find_digit<0>(a, selection, stream);
  if (status == cudaSuccess) status = find_digit<1>(a, selection, stream);
  if (status == cudaSuccess) status = find_digit<2>(a, selection, stream);
  if (status != cudaSuccess) return status;
  return launch(stream, 1, dim3(kCountThreads), raise_to_floor, selection);
}

}  // namespace mqgrad::cuda
