// One rotated bucket on CUDA: where its elements are, who works on them, its transform and its sums.
#pragma once

#include "cuda_rotation_parts.h"

namespace mqgrad::cuda {

// Note [Rotated buckets]
//
// A bucket of n elements, other than 512 (Note [Rotated pieces]), is a matrix of n / C rows of C = min(n, 16), Note
// [Rotation], in shared memory, or, from 8192 elements on, in global memory. It has a thread per row, up to all threads of
// the block; a block holds as many buckets as its shared memory and its threads do. Four stages of butterflies are done at
// once, on 16 elements in registers. The matrix is never transposed: element (row, column) stands at row * C + column, and
// has position column * n / C + row in the payload.
//
// An element is added after each 32, so that threads that are 16 elements apart read from different banks.
constexpr int kRotationThreads = 256;
constexpr int kSharedElements = 16 * kRotationThreads;

MQ_INLINE constexpr int64_t padded(int64_t i) {
  return i + (i >> 5);
}

struct RotatedBucket {
  float* memory;   // of the block
  float* sums;     // one for each row of the block
  int base;        // of the bucket's first element in `memory`
  int size;        // n
  int thread;      // of those of the bucket
  int threads;

  __device__ __forceinline__ RotatedBucket(float* memory, float* sums, int size)
      : memory(memory), sums(sums), size(size) {
    threads = rows() < kRotationThreads ? rows() : kRotationThreads;
    const int slot = static_cast<int>(threadIdx.x) / threads;
    thread = static_cast<int>(threadIdx.x) - slot * threads;
    base = slot * size;
    this->sums += slot * rows();
  }

  __device__ __forceinline__ int columns() const { return size < kRotationColumns ? size : kRotationColumns; }
  __device__ __forceinline__ int rows() const { return size / columns(); }
  __device__ __forceinline__ float& operator[](int i) const { return memory[padded(base + i)]; }
  __device__ __forceinline__ float& at_position(int p) const {
    return (*this)[(p & (rows() - 1)) * columns() + p / rows()];
  }

  // Waits for the threads of the bucket; all threads of the block must call it.
  __device__ __forceinline__ void sync() const {
    if (threads <= kLanes) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};

// The stages of the bits [bit, bit + STAGES) of an element's index.
template <int STAGES>
__device__ __forceinline__ void transform_stages(const RotatedBucket& bucket, int bit) {
  constexpr int kCount = 1 << STAGES;
#pragma unroll 1
  for (int set = bucket.thread; set < bucket.size >> STAGES; set += bucket.threads) {
    const int low = set & ((1 << bit) - 1);
    const int first = ((set - low) << STAGES) + low;
    float v[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) v[i] = bucket[first + (i << bit)];
    butterflies<kCount>(v);
#pragma unroll
    for (int i = 0; i < kCount; ++i) bucket[first + (i << bit)] = v[i];
  }
  bucket.sync();
}

__device__ __forceinline__ void transform_bits(const RotatedBucket& bucket, int bit, int stages) {
  switch (stages) {
    case 1: return transform_stages<1>(bucket, bit);
    case 2: return transform_stages<2>(bucket, bit);
    case 3: return transform_stages<3>(bucket, bit);
    default: return transform_stages<4>(bucket, bit);
  }
}

// The columns of the matrix: the bits of the row, ascending.
__device__ __forceinline__ void transform_rows_bits(const RotatedBucket& bucket) {
#pragma unroll 1
  for (int bit = 4; 1 << bit < bucket.size; bit += 4) {
    int stages = 1;
    while (stages < 4 && 1 << (bit + stages) < bucket.size) ++stages;
    transform_bits(bucket, bit, stages);
  }
}

// The rows of the matrix: the bits of the column.
__device__ __forceinline__ void transform_columns_bits(const RotatedBucket& bucket) {
  transform_bits(bucket, 0, bucket.size < kRotationColumns ? 3 : 4);
}

// Over a binary tree of the positions: the second half is added to the first until one is left. First the columns of a
// row, then the rows.
template <typename Term>
__device__ __forceinline__ float sum_over_tree(const RotatedBucket& bucket, const Term& term) {
  constexpr int kColumns = static_cast<int>(kRotationColumns);
  bucket.sync();  // the sums may still be read from the last call
#pragma unroll 1
  for (int row = bucket.thread; row < bucket.rows(); row += bucket.threads) {
    float terms[kColumns];
    const int first = row * bucket.columns();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) terms[c] = c < bucket.columns() ? term(bucket[first + c]) : 0;
    if (bucket.columns() == kColumns) {
#pragma unroll
      for (int c = 0; c < kColumns / 2; ++c) terms[c] += terms[c + kColumns / 2];
    }
#pragma unroll
    for (int half = kColumns / 4; half > 0; half /= 2) {
#pragma unroll
      for (int c = 0; c < half; ++c) terms[c] += terms[c + half];
    }
    bucket.sums[row] = terms[0];
  }
  bucket.sync();
#pragma unroll 1
  for (int half = bucket.rows() / 2; half > 0; half /= 2) {
    for (int row = bucket.thread; row < half; row += bucket.threads) bucket.sums[row] += bucket.sums[row + half];
    bucket.sync();
  }
  return bucket.sums[0];
}

constexpr int64_t kMaxRotationBlocks = 512;  // where buckets are in global memory: what bounds the workspace
constexpr int kMaxRotationRows = static_cast<int>(kMaxRotationBucket / kRotationColumns);

MQ_INLINE bool is_shared(const RotationLayout& layout) {
  return layout.bucket_size <= kSharedElements;
}

MQ_INLINE int64_t buckets_per_block(const RotationLayout& layout) {
  const int64_t threads = layout.bucket_size < kRotationColumns ? 1 : layout.bucket_size / kRotationColumns;
  return threads < kRotationThreads ? kRotationThreads / threads : 1;
}

inline int64_t blocks_of(const RotationLayout& layout) {
  const int64_t blocks = blocks_for(layout.buckets(), buckets_per_block(layout));
  return is_shared(layout) || blocks < kMaxRotationBlocks ? blocks : kMaxRotationBlocks;
}

// Calls f(bucket, index of the bucket) for the buckets of a block in turn, also for those beyond the last one.
template <bool SHARED, typename F>
__device__ __forceinline__ void for_buckets(const RotationLayout& layout, float* workspace, const F& f) {
  __shared__ float of_block[SHARED ? padded(kSharedElements) : 1];
  __shared__ float sums[SHARED ? kRotationThreads : kMaxRotationRows];
  const int size = static_cast<int>(layout.bucket_size);
  float* const memory = SHARED ? of_block : workspace + static_cast<int64_t>(blockIdx.x) * padded(size);
  const RotatedBucket bucket(memory, sums, size);
  const int64_t per_block = buckets_per_block(layout);
#pragma unroll 1
  for (int64_t first = blockIdx.x * per_block; first < layout.buckets(); first += gridDim.x * per_block) {
    f(bucket, first + threadIdx.x / bucket.threads);
    bucket.sync();  // the next bucket goes to the same place
  }
}

// Elements that are there of those that the bucket has room for.
__device__ __forceinline__ int64_t elements_in(const RotationLayout& layout, int64_t k) {
  const int64_t left = layout.numel - k * layout.bucket_size;
  return left < 0 ? 0 : left < layout.bucket_size ? left : layout.bucket_size;
}

// As with_rotated_width, with whether buckets are in shared memory as another constant.
template <typename F>
cudaError_t with_kernel(const RotationLayout& layout, const F& launch_with) {
  return with_rotated_width(layout.bits, [&](auto width) {
    return is_shared(layout) ? launch_with(width, std::true_type()) : launch_with(width, std::false_type());
  });
}

}  // namespace mqgrad::cuda
