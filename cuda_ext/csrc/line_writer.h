// Writes past the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "prefetch.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define MQ_STREAM 1
#endif

namespace mqgrad {

// With AVX2, where arithmetic bounds encoding, streaming made it a tenth slower.
inline bool streaming_pays() {
#ifdef MQ_STREAM
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

// Whole cache lines, if streaming_pays(). What is written so is not read before, nor in a cache for the next reader.
#ifdef MQ_STREAM
__attribute__((target("avx512f"))) inline void stream_lines(const uint8_t* from, int64_t bytes, uint8_t* to) {
  for (int64_t i = 0; i < bytes; i += kCacheLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
}
#else
inline void stream_lines(const uint8_t* from, int64_t bytes, uint8_t* to) {
  std::memcpy(to, from, bytes);
}
#endif

// Writes bytes in their order, whole cache lines with stream_lines. Other writers may share the first and the last line.
class LineWriter {
 public:
  explicit LineWriter(uint8_t* out) : out_(out), room_(kCacheLine - reinterpret_cast<uintptr_t>(out) % kCacheLine) {}

  void write(const uint8_t* from, int64_t n) {
    if (begun_ > 0 || room_ < kCacheLine) {
      const int64_t first = std::min(n, room_ - begun_);
      begin_line(from, first);
      if (begun_ < room_) return;
      std::memcpy(out_, line_, begun_);
      out_ += begun_;
      begun_ = 0;
      room_ = kCacheLine;
      from += first;
      n -= first;
    }
    const int64_t whole = n / kCacheLine * kCacheLine;
    stream_lines(from, whole, out_);
    out_ += whole;
    begin_line(from + whole, n - whole);
  }

  void finish() {
    std::memcpy(out_, line_, begun_);
#ifdef MQ_STREAM
    _mm_sfence();  // other threads see streamed bytes no later than what is written after
#endif
  }

 private:
  void begin_line(const uint8_t* from, int64_t n) {
    std::memcpy(line_ + begun_, from, n);
    begun_ += n;
  }

  uint8_t* out_;
  int64_t room_;       // bytes from out_ to the end of its line
  int64_t begun_ = 0;  // of them, how many are in line_
  uint8_t line_[kCacheLine];
};

}  // namespace mqgrad
