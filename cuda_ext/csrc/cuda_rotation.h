// The rotated codes on raw device pointers, launched on a stream as the kernels of cuda_kernels.h; same bytes as the CPU's.
#pragma once

#include <cuda_runtime.h>

#include "rotation_kernels.h"

namespace mqgrad::cuda {

// Bytes of device memory that each needs besides its arguments, 4-byte aligned. None for buckets of up to 4096.
int64_t rotation_workspace_bytes(const RotationLayout& layout);

// `payload` must be 4-byte aligned, as a fresh tensor is; its seed is written, too.
cudaError_t encode_rotated(const void* x, torch::headeronly::ScalarType dtype, const RotationLayout& layout,
                           bool unbiased, uint64_t seed, uint8_t* payload, void* workspace, cudaStream_t stream);

// `payload` may be unaligned; `add` adds to `out` instead of overwriting it.
cudaError_t decode_rotated(const uint8_t* payload, const RotationLayout& layout, bool add, float* out, void* workspace,
                           cudaStream_t stream);

}  // namespace mqgrad::cuda
