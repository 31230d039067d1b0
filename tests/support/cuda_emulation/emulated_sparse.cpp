// The entry points of cuda_sparse.h.
#include "cuda_sparse_decode.cu"
#include "cuda_sparse_encode.cu"
#include "cuda_sparse_select.cu"
#include "entry_points.h"

using namespace mqgrad;

extern "C" {

cudaError_t emulated_sparse_encode(const void* x, int64_t dtype, int64_t numel, int64_t elements_per_bit,
                                   float* residual, double alpha, double beta, uint8_t* payload) {
  const SparseArguments arguments{sparse_layout(numel, elements_per_bit), residual, alpha, beta, x,
                                  static_cast<cuda::ScalarType>(dtype)};
  std::vector<uint64_t> workspace = dirty_memory(cuda::sparse_encode_workspace_bytes(arguments.layout));
  return cuda::encode_sparse(arguments, payload, workspace.data(), nullptr);
}

cudaError_t emulated_sparse_decode_add(const uint8_t* payload, int64_t numel, int64_t elements_per_bit, float* out) {
  const SparseLayout layout = sparse_layout(numel, elements_per_bit);
  std::vector<uint64_t> workspace = dirty_memory(cuda::sparse_decode_workspace_bytes(layout));
  return cuda::decode_add_sparse(payload, layout, out, workspace.data(), nullptr);
}

}  // extern "C"
