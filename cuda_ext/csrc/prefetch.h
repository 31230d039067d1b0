// Memory that a pass will come to.
#pragma once

#include <cstdint>

namespace mqgrad {

// Note [Reading ahead]
//
// Hardware prefetchers stop at the end of a page, and the first access to the next page waits until its address has been
// translated: on pages of 4 KiB, in a virtual machine, up to a third of the time that coding takes. So lines are asked for
// 8 KiB before a pass comes to them, and one line of each page 64 KiB before. Beyond the end that is in vain, never a
// fault.
constexpr int64_t kCacheLine = 64;  // bytes
constexpr int64_t kPage = 4096;
constexpr int64_t kLinesAhead = 2 * kPage;
constexpr int64_t kPagesAhead = 16 * kPage;

// For each piece of a pass in turn, of `bytes` that are a divisor of a page.
inline __attribute__((always_inline)) void prefetch_after(const void* piece, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(piece);
  for (int64_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(reinterpret_cast<const void*>(at + kLinesAhead + i));
  if (at % kPage < static_cast<uintptr_t>(bytes)) __builtin_prefetch(reinterpret_cast<const void*>(at + kPagesAhead));
}

// The pages only, for a piece of any length.
inline void prefetch_pages_after(const void* piece, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(piece);
  for (int64_t i = 0; i < bytes; i += kPage) __builtin_prefetch(reinterpret_cast<const void*>(at + kPagesAhead + i));
}

}  // namespace mqgrad
