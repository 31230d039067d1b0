// Checksums on the CPU: Note [Checksum] in checksum.h.
#include "checksum.h"

#include <cstring>

#include "clones.h"
#include "random_words.h"

namespace mqgrad {
namespace {

// Bytes may begin anywhere.
MQ_CLONES uint64_t weighted_sum(const uint8_t* bytes, int64_t words) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * i, 4);
    sum += static_cast<uint64_t>(word) * static_cast<uint32_t>(2 * i + 1);
  }
  return sum;
}

}  // namespace

uint64_t checksum(const uint8_t* bytes, int64_t n, uint64_t salt) {
  const int64_t words = n / 4;
  uint32_t last = 0;
  if (n % 4) std::memcpy(&last, bytes + 4 * words, n % 4);
  const uint64_t start = random_key(salt, static_cast<uint64_t>(n));
  return mix64(start + weighted_sum(bytes, words) + static_cast<uint64_t>(last) * static_cast<uint32_t>(2 * words + 1));
}

}  // namespace mqgrad
