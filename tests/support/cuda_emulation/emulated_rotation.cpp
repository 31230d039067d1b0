// The entry points of cuda_rotation.h for ctypes: pointers to host memory, no stream.
#include "cuda_rotation_decode.cu"
#include "cuda_rotation_encode.cu"

using namespace mqgrad;

namespace {

std::vector<float> workspace_for(const RotationLayout& layout) {
  return std::vector<float>(cuda::rotation_workspace_bytes(layout) / 4, 171.0f);
}

}  // namespace

extern "C" {

void emulated_encode_rotated(const void* x, int dtype, int64_t numel, int bits, int64_t bucket_size, bool unbiased,
                             uint64_t seed, uint8_t* payload) {
  const RotationLayout layout{numel, bits, bucket_size};
  std::vector<float> workspace = workspace_for(layout);
  cuda::encode_rotated(x, static_cast<cuda::ScalarType>(dtype), layout, unbiased, seed, payload, workspace.data(),
                       nullptr);
}

void emulated_decode_rotated(const uint8_t* payload, int64_t numel, int bits, int64_t bucket_size, bool add,
                             float* out) {
  const RotationLayout layout{numel, bits, bucket_size};
  std::vector<float> workspace = workspace_for(layout);
  cuda::decode_rotated(payload, layout, add, out, workspace.data(), nullptr);
}

}  // extern "C"
