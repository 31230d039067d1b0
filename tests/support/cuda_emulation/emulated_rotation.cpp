// The entry points of cuda_rotation.h.
#include "cuda_rotation_decode.cu"
#include "cuda_rotation_encode.cu"
#include "entry_points.h"

using namespace mqgrad;

extern "C" {

cudaError_t emulated_encode_rotated(const void* x, int64_t dtype, int64_t numel, int64_t bits, int64_t bucket_size,
                                    bool unbiased, uint64_t seed, uint8_t* payload) {
  const RotationLayout layout{numel, static_cast<int>(bits), bucket_size};
  std::vector<uint64_t> workspace = dirty_memory(cuda::rotation_workspace_bytes(layout));
  return cuda::encode_rotated(x, static_cast<cuda::ScalarType>(dtype), layout, unbiased, seed, payload,
                              workspace.data(), nullptr);
}

cudaError_t emulated_decode_rotated(const uint8_t* payload, int64_t numel, int64_t bits, int64_t bucket_size, bool add,
                                    float* out) {
  const RotationLayout layout{numel, static_cast<int>(bits), bucket_size};
  std::vector<uint64_t> workspace = dirty_memory(cuda::rotation_workspace_bytes(layout));
  return cuda::decode_rotated(payload, layout, add, out, workspace.data(), nullptr);
}

}  // extern "C"
