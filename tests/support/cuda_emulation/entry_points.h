// What the entry points for ctypes share: pointers to host memory, no stream, whole numbers of 64 bits, and the status.
#pragma once

#include <cstdint>
#include <vector>

namespace {

// Memory that must not be taken for zeros.
std::vector<uint64_t> dirty_memory(int64_t bytes) {
  return std::vector<uint64_t>((bytes + 7) / 8, 0xa5a5a5a5a5a5a5a5ull);
}

}  // namespace
