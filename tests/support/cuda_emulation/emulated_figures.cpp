// The entry points of cuda_figures.h.
#include "cuda_encode_any.cu"
#include "cuda_figures.cu"
#include "entry_points.h"

using namespace mqgrad;

extern "C" {

cudaError_t emulated_figures(const void* x, int64_t dtype, int64_t numel, int64_t bucket_size, uint64_t seed, uint64_t key,
                             double* row) {
  const Layout layout{numel, 8, bucket_size};
  std::vector<uint64_t> workspace = dirty_memory(cuda::figures_workspace_bytes(layout));
  return cuda::figures(x, static_cast<cuda::ScalarType>(dtype), layout, random_key(seed, key), row, workspace.data(),
                       nullptr);
}

}  // extern "C"
