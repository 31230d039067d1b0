// The entry points of cuda_sparse.h for ctypes: pointers to host memory, no stream.
#include "cuda_sparse_decode.cu"
#include "cuda_sparse_encode.cu"
#include "cuda_sparse_select.cu"

using namespace mqgrad;

namespace {

std::vector<uint64_t> dirty_memory(int64_t bytes) {
  return std::vector<uint64_t>((bytes + 7) / 8, 0xa5a5a5a5a5a5a5a5ull);
}

}  // namespace

extern "C" {

void emulated_sparse_encode(const void* x, int dtype, int64_t numel, int64_t elements_per_bit, float* residual,
                            double alpha, double beta, uint8_t* payload) {
  const SparseArguments arguments{x, static_cast<cuda::ScalarType>(dtype), sparse_layout(numel, elements_per_bit),
                                  residual, alpha, beta};
  std::vector<uint64_t> workspace = dirty_memory(cuda::sparse_encode_workspace_bytes(arguments.layout));
  cuda::encode_sparse(arguments, payload, workspace.data(), nullptr);
}

void emulated_sparse_decode_add(const uint8_t* payload, int64_t numel, int64_t elements_per_bit, float* out) {
  const SparseLayout layout = sparse_layout(numel, elements_per_bit);
  std::vector<uint64_t> workspace = dirty_memory(cuda::sparse_decode_workspace_bytes(layout));
  cuda::decode_add_sparse(payload, layout, out, workspace.data(), nullptr);
}

}  // extern "C"
