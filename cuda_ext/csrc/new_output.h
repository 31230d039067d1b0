// Where an op's result goes.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace mqgrad {

// From 32 MiB on glibc maps a block anew each time and unmaps it when it is freed, and the first write to each page of
// 4 KiB costs more than coding what goes there. Smaller blocks may lie in the heap, which the hint would outlive.
constexpr int64_t kAlwaysMapped = int64_t{32} << 20;

// Only a hint, for whole pages of 2 MiB; the memory behaves the same without it.
inline void advise_huge_pages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < kAlwaysMapped) return;
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Of a payload that is written as a whole, wherever it comes from.
inline uint8_t* written_bytes(const torch::stable::Tensor& payload) {
  advise_huge_pages(payload.mutable_data_ptr(), payload.numel());
  return static_cast<uint8_t*>(payload.mutable_data_ptr());
}

// An uninitialized vector of fp32 on the device of `like`.
inline torch::stable::Tensor new_floats(const torch::stable::Tensor& like, int64_t numel) {
  torch::stable::Tensor out = torch::stable::new_empty(like, {numel}, torch::headeronly::ScalarType::Float);
  if (out.is_cpu()) advise_huge_pages(out.mutable_data_ptr(), 4 * numel);
  return out;
}

}  // namespace mqgrad
