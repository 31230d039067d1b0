// Prints a hash of what the loops over a rotated bucket write, for buckets of all sizes: equal for every instruction set
// that they are compiled for.
#include <cstdio>
#include <vector>

#include "hadamard.h"
#include "rotation.h"
#include "rotation_codes.h"

using namespace mqgrad;

namespace {

uint64_t hash(uint64_t seed, const void* bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) seed = mix64(seed + static_cast<const uint8_t*>(bytes)[i] + 1);
  return seed;
}

// Cubes of uniform numbers: many small, few large.
std::vector<float> numbers(int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) {
    const float u = static_cast<float>(mix64(i) >> 40) * 0x1p-23f - 1.0f;
    values[i] = u * u * u;
  }
  return values;
}

uint64_t hash_of(int64_t n, int bits, bool unbiased) {
  std::vector<float> x = numbers(n), y(n), words(n), looked_up(n);
  std::vector<uint8_t> codes(n);
  std::vector<double> sums(n / 8);
  transform(x.data(), n, y.data());
  const float scale = choose_codewords(bits, unbiased, y.data(), n, codes.data(), words.data(), sums.data());
  uint64_t sum = hash(hash(hash(0, y.data(), 4 * n), codes.data(), n), &scale, 4);
  look_up_codewords(bits, codes.data(), n, scale, looked_up.data());
  scale_codewords(words.data(), n, scale, y.data());
  if (std::memcmp(looked_up.data(), y.data(), 4 * n) != 0) std::printf("codes and codewords differ\n");
  transform_back(y.data(), n, x.data());
  return hash(sum, x.data(), 4 * n);
}

}  // namespace

int main() {
  for (int64_t n = 8; n <= 65536; n *= 2) {
    for (int bits = 1; bits <= kMaxRotationBits; ++bits) {
      const unsigned long long sum = hash_of(n, bits, bits % 2 == 0);
      std::printf("%d bits in buckets of %d: %016llx\n", bits, static_cast<int>(n), sum);
    }
  }
}
