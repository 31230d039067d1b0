// The entry points of cuda_kernels.h for ctypes: pointers to host memory, no stream.
#include "cuda_encode.cu"
#include "cuda_encode_any.cu"
#include "cuda_decode.cu"
#include "cuda_minmax.cu"

using namespace mqgrad;

extern "C" {

void emulated_encode(const void* x, int dtype, int64_t numel, int bits, int64_t bucket_size, bool stochastic,
                     uint64_t seed, const int64_t* bucket_ids, float* residual, double alpha, double beta,
                     uint8_t* payload) {
  const Layout layout{numel, bits, bucket_size < numel ? bucket_size : numel};
  const EncodeArguments arguments{x, static_cast<cuda::ScalarType>(dtype), layout, stochastic, seed, bucket_ids,
                                  residual, alpha, beta};
  std::vector<uint64_t> workspace((cuda::encode_workspace_bytes(layout, stochastic) + 7) / 8, 0xa5a5a5a5a5a5a5a5ull);
  cuda::encode(arguments, payload, workspace.data(), nullptr);
}

void emulated_reduce_encode(const uint8_t* payloads, int64_t count, int64_t numel, int bits, int64_t bucket_size,
                            bool stochastic, uint64_t seed, float* residual, double alpha, double beta,
                            uint8_t* payload) {
  const Layout layout{numel, bits, bucket_size < numel ? bucket_size : numel};
  const EncodeArguments arguments{nullptr, cuda::ScalarType::Float, layout, stochastic, seed, nullptr,
                                  residual, alpha, beta, payloads, count};
  std::vector<uint64_t> workspace((cuda::encode_workspace_bytes(layout, stochastic) + 7) / 8, 0xa5a5a5a5a5a5a5a5ull);
  cuda::encode(arguments, payload, workspace.data(), nullptr);
}

void emulated_decode(const uint8_t* payload, int64_t numel, int bits, int64_t bucket_size, bool add, float* out) {
  cuda::decode(payload, {numel, bits, bucket_size < numel ? bucket_size : numel}, add, out, nullptr);
}

void emulated_encode_minmax(const void* x, int dtype, int64_t rows, int64_t columns, int bits, uint8_t* payload) {
  cuda::encode_minmax(x, static_cast<cuda::ScalarType>(dtype), {rows, columns}, bits, payload, nullptr);
}

void emulated_decode_minmax(const uint8_t* payload, int64_t rows, int64_t columns, int bits, float* out) {
  cuda::decode_minmax(payload, {rows, columns}, bits, out, nullptr);
}

}  // extern "C"
