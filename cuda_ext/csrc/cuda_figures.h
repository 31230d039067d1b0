// A gradient's figures on CUDA, Note [Sketch] in figures.h: launched on a stream, never waited for, nothing allocated.
#pragma once

#include <cuda_runtime.h>

#include "figures.h"
#include "kernels.h"

namespace mqgrad::cuda {

// Bytes of device memory that `figures` needs, 8-byte aligned. `layout`: of the elements and buckets; its bits mean nothing.
int64_t figures_workspace_bytes(const Layout& layout);

// ||x||^2, the peak energy and the sketch, 2 + kSketch numbers. The same in every call, but for rounding those of the CPU.
cudaError_t figures(const void* x, torch::headeronly::ScalarType dtype, const Layout& layout, uint64_t key, double* row,
                    void* workspace, cudaStream_t stream);

}  // namespace mqgrad::cuda
