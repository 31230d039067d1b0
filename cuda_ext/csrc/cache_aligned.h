// Vectors that begin where a cache line does: a register of 64 bytes that lies across two lines takes two accesses.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "prefetch.h"

namespace mqgrad {

template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{kCacheLine};

  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const CacheLineAllocator&) const { return true; }
  bool operator!=(const CacheLineAllocator&) const { return false; }
};

template <typename T>
using CacheAligned = std::vector<T, CacheLineAllocator<T>>;

}  // namespace mqgrad
