// A gradient's figures on CUDA:
//
// 1. Find the largest magnitude of each bucket.
// 2. Of every 65536 elements, a block each, take the sum of squares, in fp64, and the sketch, that of a thread in fp32.
// 3. Add them up in one block, in fp64 and in a fixed order.
#include "cuda_figures.h"

#include "cuda_encode_any.h"
#include "cuda_warp.h"
#include "random_words.h"

namespace mqgrad::cuda {
namespace {

constexpr int kThreads = static_cast<int>(kSketch);  // a thread has a place of the sketch
constexpr int64_t kPart = 65536;
constexpr int kSignsOfWord = 64;
static_assert(kPart % kSketch == 0 && kSketch % kSignsOfWord == 0, "a thread must keep its place, and its bit of a word");

struct PartFigures {
  double norm_sq;
  float sketch[kSketch];
};

int64_t parts_of(const Layout& layout) {
  return blocks_for(layout.numel, kPart);
}

// Over the threads of the block, all of which must call it.
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double of_thread[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // of_thread may still be read from the last call
  of_thread[thread] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) of_thread[thread] += of_thread[thread + half];
    __syncthreads();
  }
  return of_thread[0];
}

__global__ void __launch_bounds__(kThreads) sketch_parts(const void* x, ScalarType dtype, int64_t numel, uint64_t key,
                                                         PartFigures* parts) {
  PartFigures& part = parts[blockIdx.x];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPart;
  const int64_t end = begin + kPart < numel ? begin + kPart : numel;
  const uint32_t place = threadIdx.x;
  float sum = 0;
  double squares = 0;
  for (int64_t i = begin + place; i < end; i += kThreads) {
    const float value = load_float(x, dtype, i);
    const uint64_t word = mix64(key + static_cast<uint64_t>(i / kSignsOfWord) * 0x9e3779b97f4a7c15ull);
    sum += float_from_bits(float_bits(value) ^ static_cast<uint32_t>(word >> (place % kSignsOfWord)) << 31);
    squares += static_cast<double>(value) * value;
  }
  part.sketch[place] = sum;
  const double all = block_sum(squares);
  if (place == 0) part.norm_sq = all;
}

__device__ __forceinline__ double peak_energy(const Layout& layout, const uint32_t* max_bits, int64_t bucket) {
  const int64_t left = layout.numel - bucket * layout.bucket_size;
  const double peak = float_from_bits(max_bits[bucket]);
  return static_cast<double>(left < layout.bucket_size ? left : layout.bucket_size) * peak * peak;
}

__global__ void __launch_bounds__(kThreads) add_parts(const PartFigures* parts, int64_t count, const uint32_t* max_bits,
                                                      Layout layout, double* row) {
  const int thread = static_cast<int>(threadIdx.x);
  double sketch = 0, norm_sq = 0, peaks = 0;
  for (int64_t p = 0; p < count; ++p) sketch += parts[p].sketch[thread];
  for (int64_t p = thread; p < count; p += kThreads) norm_sq += parts[p].norm_sq;
  for (int64_t b = thread; b < layout.buckets(); b += kThreads) peaks += peak_energy(layout, max_bits, b);
  row[2 + thread] = sketch;
  norm_sq = block_sum(norm_sq);
  peaks = block_sum(peaks);
  if (thread != 0) return;
  row[0] = norm_sq;
  row[1] = peaks;
}

}  // namespace

int64_t figures_workspace_bytes(const Layout& layout) {
  return parts_of(layout) * static_cast<int64_t>(sizeof(PartFigures)) + layout.scale_bytes();
}

cudaError_t figures(const void* x, ScalarType dtype, const Layout& layout, uint64_t key, double* row, void* workspace,
                    cudaStream_t stream) {
  const int64_t count = parts_of(layout);
  PartFigures* const parts = static_cast<PartFigures*>(workspace);
  uint32_t* const max_bits = reinterpret_cast<uint32_t*>(parts + count);
  if (count > 0) {
    const EncodeArguments plain{x, dtype, layout, false, 0, nullptr, nullptr, 0.0, 0.0};  // neither seed nor feedback
    cudaError_t status = find_maxima(plain, max_bits, stream);
    if (status != cudaSuccess) return status;
    status = launch(stream, count, dim3(kThreads), sketch_parts, x, dtype, layout.numel, key, parts);
    if (status != cudaSuccess) return status;
  }
  return launch(stream, 1, dim3(kThreads), add_parts, parts, count, max_bits, layout, row);
}

}  // namespace mqgrad::cuda
