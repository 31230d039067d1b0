// The entry points of cuda_rotation.h.
#define MQ_MAX_PIECE_BLOCKS 1  // so that warps have several buckets
#include "cuda_rotation_decode.cu"
#include "cuda_rotation_encode.cu"
#include "cuda_rotation_piece.cu"
#include "entry_points.h"

using namespace mqgrad;

extern "C" {

cudaError_t emulated_encode_rotated(const void* x, int64_t dtype, int64_t numel, int64_t bits, int64_t bucket_size,
                                    bool unbiased, uint64_t seed, float* residual, double alpha, double beta,
                                    const uint8_t* payloads, int64_t count, uint8_t* payload) {
  const RotationLayout layout{numel, static_cast<int>(bits), bucket_size};
  std::vector<uint64_t> workspace = dirty_memory(cuda::rotation_workspace_bytes(layout));
  return cuda::encode_rotated({x, static_cast<cuda::ScalarType>(dtype), layout, unbiased, seed, residual, alpha, beta,
                               payloads, count},
                              payload, workspace.data(), nullptr);
}

cudaError_t emulated_decode_rotated(const uint8_t* payload, int64_t numel, int64_t bits, int64_t bucket_size, bool add,
                                    float* out) {
  const RotationLayout layout{numel, static_cast<int>(bits), bucket_size};
  std::vector<uint64_t> workspace = dirty_memory(cuda::rotation_workspace_bytes(layout));
  return cuda::decode_rotated(payload, layout, add, out, workspace.data(), nullptr);
}

cudaError_t emulated_decode_rotated_mean(const uint8_t* payloads, int64_t count, int64_t numel, int64_t bits,
                                         float* out) {
  return cuda::decode_rotated_mean(payloads, count, {numel, static_cast<int>(bits), 512}, out, nullptr);
}

}  // extern "C"
