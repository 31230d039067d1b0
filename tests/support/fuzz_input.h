// What a fuzzed kernel is given, taken from the bytes of an input.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "exact_array.h"

// Takes an input apart; zeros come after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename T>
  T take() {
    T value{};
    fill(&value, sizeof(T));
    return value;
  }

  // In [low, high].
  int64_t take_in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(take<uint32_t>()) % (high - low + 1);
  }

  template <typename T>
  ExactArray<T> take_array(int64_t count) {
    ExactArray<T> values(count);
    fill(values.get(), count * sizeof(T));
    return values;
  }

  // Room for bytes that begin at a multiple of `unit`.
  ExactArray<uint8_t> take_room(int64_t count, int64_t unit = 1) {
    return ExactArray<uint8_t>(count, unit * take_in(0, 7));
  }

  ExactArray<uint8_t> take_bytes(int64_t count, int64_t unit = 1) {
    ExactArray<uint8_t> bytes = take_room(count, unit);
    fill(bytes.get(), count);
    return bytes;
  }

 private:
  void fill(void* target, size_t bytes) {
    const size_t count = std::min(bytes, size_);
    if (count == 0) return;
    std::memcpy(target, data_, count);
    data_ += count;
    size_ -= count;
  }

  const uint8_t* data_;
  size_t size_;
};
