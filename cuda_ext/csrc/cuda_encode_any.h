// Encode for bucket sizes that cuda_encode.cu does not hold in registers: very large ones, and those whose codes do
// not begin on a multiple of four bytes. It reads the input two or three times.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

namespace mqgrad::cuda {

int64_t any_workspace_bytes(const Layout& layout, bool stochastic);
cudaError_t encode_any(const EncodeArguments& arguments, uint8_t* payload, void* workspace, cudaStream_t stream);

// The largest magnitude of each bucket, as its bits: Note [Non-finite].
cudaError_t find_maxima(const EncodeArguments& arguments, uint32_t* max_bits, cudaStream_t stream);

}  // namespace mqgrad::cuda
