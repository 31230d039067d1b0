// bfloat16 on raw device pointers, launched on a stream as the kernels of cuda_kernels.h; same bytes as the CPU's.
#pragma once

#include <cuda_runtime.h>

#include "bfloat16.h"

namespace mqgrad::cuda {

// `payload` must be 8-byte aligned, as a fresh tensor is; those that a mean is taken of may be unaligned.
cudaError_t encode_bfloat16(const Bfloat16Arguments& arguments, uint8_t* payload, cudaStream_t stream);

// `payload` may be unaligned; `add` adds to `out` instead of overwriting it.
cudaError_t decode_bfloat16(const uint8_t* payload, int64_t numel, bool add, float* out, cudaStream_t stream);

// The mean of `count` payloads, one behind the other.
cudaError_t decode_bfloat16_mean(const uint8_t* payloads, int64_t count, int64_t numel, float* out, cudaStream_t stream);

}  // namespace mqgrad::cuda
