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
//
// Lines are asked for into the second cache (locality 2): the first has room for a dozen or two under way, and a pass
// that computes does not make up for what it waits for one. On an AMD EPYC (Zen 4) stochastic encode does 24 to 26 GB/s
// at 1 to 8 bits with that, 16 to 18 with lines asked for into the first.
constexpr int64_t kCacheLine = 64;  // bytes
constexpr int64_t kPage = 4096;
constexpr int64_t kLinesAhead = 2 * kPage;
constexpr int64_t kPagesAhead = 16 * kPage;
constexpr int64_t kOutputAhead = kPage / 4;

// For each piece of a pass in turn, of `bytes` that are a divisor of a page.
inline __attribute__((always_inline)) void prefetch_after(const void* piece, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(piece);
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + kLinesAhead + i), 0, 2);
  }
  if (at % kPage < static_cast<uintptr_t>(bytes)) __builtin_prefetch(reinterpret_cast<const void*>(at + kPagesAhead));
}

// For each piece in turn of what a pass writes, what lies a little behind it: stores, too, wait for lines and for addresses
// of pages.
inline void prefetch_output(const void* piece, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(piece);
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + kOutputAhead + i), 1, 2);
  }
  if (at % kPage < static_cast<uintptr_t>(bytes)) __builtin_prefetch(reinterpret_cast<const void*>(at + kPagesAhead), 1);
}

// The pages only, for a piece of any length.
inline void prefetch_pages_after(const void* piece, int64_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(piece);
  for (int64_t i = 0; i < bytes; i += kPage) __builtin_prefetch(reinterpret_cast<const void*>(at + kPagesAhead + i));
}

// What lies behind a piece of memory, as much again, asked for in parts between the passes over the piece: passes over what
// is in the cache leave memory idle, and a core has room for about a dozen lines under way. Of a piece of more than 8 KiB
// nothing, as that would displace what the passes work on. Beyond the end it is in vain.
class GradualPrefetch {
 public:
  GradualPrefetch() = default;
  GradualPrefetch(const float* piece, int64_t n, int parts)
      : at_(reinterpret_cast<uintptr_t>(piece + n)), part_(4 * n > kLargest ? 0 : (4 * n + parts - 1) / parts) {}

  void next_part() {
    for (const uintptr_t end = at_ + static_cast<uintptr_t>(part_); at_ < end; at_ += kCacheLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(at_));
    }
  }

 private:
  static constexpr int64_t kLargest = 2 * kPage;
  uintptr_t at_ = 0;
  int64_t part_ = 0;
};

// The same of what coding n elements needs: the elements, if they are read where they are, and what is owed of them.
class NextBucket {
 public:
  NextBucket() = default;
  NextBucket(const float* x, const float* residual, int64_t n, int parts)
      : x_(x, x ? n : 0, parts), residual_(residual, residual ? n : 0, parts) {}

  void ask() {
    x_.next_part();
    residual_.next_part();
  }

 private:
  GradualPrefetch x_, residual_;
};

}  // namespace mqgrad
