// The entry points of cuda_bfloat16.h.
#include "cuda_bfloat16.cu"

using namespace mqgrad;

extern "C" {

cudaError_t emulated_encode_bfloat16(const void* x, int64_t dtype, int64_t numel, float* residual, double alpha,
                                     double beta, uint8_t* payload) {
  const auto type = static_cast<cuda::ScalarType>(dtype);
  return cuda::encode_bfloat16({x, type, numel, residual, alpha, beta}, payload, nullptr);
}

cudaError_t emulated_reduce_encode_bfloat16(const uint8_t* payloads, int64_t count, int64_t numel, float* residual,
                                            double alpha, double beta, uint8_t* payload) {
  return cuda::encode_bfloat16({nullptr, cuda::ScalarType::Float, numel, residual, alpha, beta, payloads, count},
                               payload, nullptr);
}

cudaError_t emulated_decode_bfloat16(const uint8_t* payload, int64_t numel, bool add, float* out) {
  return cuda::decode_bfloat16(payload, numel, add, out, nullptr);
}

cudaError_t emulated_decode_bfloat16_mean(const uint8_t* payloads, int64_t count, int64_t numel, float* out) {
  return cuda::decode_bfloat16_mean(payloads, count, numel, out, nullptr);
}

}  // extern "C"
