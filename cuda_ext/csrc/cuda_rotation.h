// The rotated codes on raw device pointers, launched on a stream as the kernels of cuda_kernels.h; same bytes as the CPU's.
#pragma once

#include <cuda_runtime.h>

#include "rotation_kernels.h"

namespace mqgrad::cuda {

// Bytes of device memory that each needs besides its arguments, 4-byte aligned. None for buckets of up to 4096.
int64_t rotation_workspace_bytes(const RotationLayout& layout);

constexpr int64_t kPieceBucket = 512;

// Whether a bucket is held in registers: only then may there be a residual or payloads among the arguments of
// encode_rotated, and only then is there decode_rotated_mean.
MQ_INLINE bool is_piece(const RotationLayout& layout) {
  return layout.bucket_size == kPieceBucket;
}

// `payload` must be 4-byte aligned, as a fresh tensor is; its seed is written, too.
cudaError_t encode_rotated(const RotatedArguments& arguments, uint8_t* payload, void* workspace, cudaStream_t stream);
cudaError_t encode_rotated_pieces(const RotatedArguments& arguments, uint8_t* payload, cudaStream_t stream);

// `payload` may be unaligned; `add` adds to `out` instead of overwriting it.
cudaError_t decode_rotated(const uint8_t* payload, const RotationLayout& layout, bool add, float* out, void* workspace,
                           cudaStream_t stream);
cudaError_t decode_rotated_pieces(const uint8_t* payload, const RotationLayout& layout, bool add, float* out,
                                  cudaStream_t stream);

// The mean of `count` payloads, one behind the other.
cudaError_t decode_rotated_mean(const uint8_t* payloads, int64_t count, const RotationLayout& layout, float* out,
                                cudaStream_t stream);

}  // namespace mqgrad::cuda
