// The CUDA kernels on raw device pointers: launched on a stream, never waited for, nothing allocated, so that a CUDA
// graph can capture them. The CPU computes the same bytes.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

namespace mqgrad::cuda {

// Bytes of device memory that `encode` needs besides its arguments, 8-byte aligned. None for the usual bucket sizes.
int64_t encode_workspace_bytes(const Layout& layout, bool stochastic);

// `payload` must be 4-byte aligned, as a fresh tensor is.
cudaError_t encode(const EncodeArguments& arguments, uint8_t* payload, void* workspace, cudaStream_t stream);

// `payload` may be unaligned; `add` adds to `out` instead of overwriting it.
cudaError_t decode(const uint8_t* payload, const Layout& layout, bool add, float* out, cudaStream_t stream);

// The mean of `count` payloads, one behind the other.
cudaError_t decode_mean(const uint8_t* payloads, int64_t count, const Layout& layout, float* out, cudaStream_t stream);

// MQGrad's quantizer; `payload` must be 4-byte aligned here, but not in decode_minmax.
cudaError_t encode_minmax(const void* x, torch::headeronly::ScalarType dtype, Matrix shape, int bits,
                          uint8_t* payload, cudaStream_t stream);
cudaError_t decode_minmax(const uint8_t* payload, Matrix shape, int bits, float* out, cudaStream_t stream);

}  // namespace mqgrad::cuda
