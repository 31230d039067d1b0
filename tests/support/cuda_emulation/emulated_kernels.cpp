// The entry points of cuda_kernels.h.
#include "cuda_decode.cu"
#include "cuda_encode.cu"
#include "cuda_encode_any.cu"
#include "cuda_minmax.cu"
#include "entry_points.h"

using namespace mqgrad;

namespace {

Layout layout_of(int64_t numel, int64_t bits, int64_t bucket_size) {
  return {numel, static_cast<int>(bits), bucket_size < numel ? bucket_size : numel};
}

cudaError_t run_encode(const EncodeArguments& arguments, uint8_t* payload) {
  std::vector<uint64_t> workspace =
      dirty_memory(cuda::encode_workspace_bytes(arguments.layout, arguments.stochastic));
  return cuda::encode(arguments, payload, workspace.data(), nullptr);
}

}  // namespace

extern "C" {

cudaError_t emulated_encode(const void* x, int64_t dtype, int64_t numel, int64_t bits, int64_t bucket_size,
                            bool stochastic, uint64_t seed, const int64_t* bucket_ids, float* residual, double alpha,
                            double beta, uint8_t* payload) {
  const auto type = static_cast<cuda::ScalarType>(dtype);
  return run_encode({x, type, layout_of(numel, bits, bucket_size), stochastic, seed, bucket_ids, residual, alpha, beta},
                    payload);
}

cudaError_t emulated_reduce_encode(const uint8_t* payloads, int64_t count, int64_t numel, int64_t bits,
                                   int64_t bucket_size, bool stochastic, uint64_t seed, float* residual, double alpha,
                                   double beta, uint8_t* payload) {
  return run_encode({nullptr, cuda::ScalarType::Float, layout_of(numel, bits, bucket_size), stochastic, seed, nullptr,
                     residual, alpha, beta, payloads, count},
                    payload);
}

cudaError_t emulated_decode(const uint8_t* payload, int64_t numel, int64_t bits, int64_t bucket_size, bool add,
                            float* out) {
  return cuda::decode(payload, layout_of(numel, bits, bucket_size), add, out, nullptr);
}

cudaError_t emulated_decode_mean(const uint8_t* payloads, int64_t count, int64_t numel, int64_t bits,
                                 int64_t bucket_size, float* out) {
  return cuda::decode_mean(payloads, count, layout_of(numel, bits, bucket_size), out, nullptr);
}

cudaError_t emulated_encode_minmax(const void* x, int64_t dtype, int64_t rows, int64_t columns, int64_t bits,
                                   uint8_t* payload) {
  const auto type = static_cast<cuda::ScalarType>(dtype);
  return cuda::encode_minmax(x, type, {rows, columns}, static_cast<int>(bits), payload, nullptr);
}

cudaError_t emulated_decode_minmax(const uint8_t* payload, int64_t rows, int64_t columns, int64_t bits, float* out) {
  return cuda::decode_minmax(payload, {rows, columns}, static_cast<int>(bits), out, nullptr);
}

}  // extern "C"
