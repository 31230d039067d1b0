// The sparse code on raw device pointers, launched on a stream as the kernels of cuda_kernels.h; same bytes as the CPU's.
#pragma once

#include <cuda_runtime.h>

#include "sparse.h"

namespace mqgrad::cuda {

// Bytes of device memory that each needs besides its arguments, 8-byte aligned.
int64_t sparse_encode_workspace_bytes(const SparseLayout& layout);
int64_t sparse_decode_workspace_bytes(const SparseLayout& layout);

// `payload` may be unaligned.
cudaError_t encode_sparse(const SparseArguments& arguments, uint8_t* payload, void* workspace, cudaStream_t stream);

// Adds to `out`. `payload` may be unaligned.
cudaError_t decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out, void* workspace,
                              cudaStream_t stream);

}  // namespace mqgrad::cuda
