// Device and stream of the CUDA ops, and what they make of a launch that failed.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/shim_utils.h>

namespace mqgrad {

// Makes the tensor's device the current one and knows its current stream.
class OnDevice {
 public:
  explicit OnDevice(const torch::stable::Tensor& tensor) : guard_(tensor.get_device_index()) {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
    stream_ = static_cast<cudaStream_t>(stream);
  }

  cudaStream_t stream() const { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  cudaStream_t stream_;
};

inline void check_status(cudaError_t status) {
  if (status != cudaSuccess) cudaGetLastError();  // or the next launch of torch's would be blamed for it
  STD_TORCH_CHECK(status == cudaSuccess, "mqgrad: CUDA launch failed: ", cudaGetErrorString(status));
}

// Calls write(bytes), which needs an address at a multiple of `alignment`: with the payload's own bytes, or with those of
// another tensor, which are copied there.
template <typename F>
void write_aligned(const torch::stable::Tensor& payload, uintptr_t alignment, cudaStream_t stream, const F& write) {
  uint8_t* bytes = static_cast<uint8_t*>(payload.mutable_data_ptr());
  if (reinterpret_cast<uintptr_t>(bytes) % alignment == 0) return check_status(write(bytes));
  const torch::stable::Tensor aligned = torch::stable::new_empty(payload, {payload.numel()});
  uint8_t* aligned_bytes = static_cast<uint8_t*>(aligned.mutable_data_ptr());
  check_status(write(aligned_bytes));
  check_status(cudaMemcpyAsync(bytes, aligned_bytes, payload.numel(), cudaMemcpyDeviceToDevice, stream));
}

}  // namespace mqgrad
