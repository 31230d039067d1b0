// A gradient's figures on the CPU.
#include "figures.h"

#include <algorithm>
#include <cstring>

#include "clones.h"
#include "kernels.h"
#include "random_words.h"

namespace mqgrad {
namespace {

constexpr int64_t kWord = 64;  // elements whose signs are one word

// Of n elements from `first` on, both multiples of kWord.
MQ_CLONES void add_to_sketch(const float* x, int64_t first, int64_t n, uint64_t key, float* sketch) {
  constexpr int64_t kHalf = kWord / 2;  // 32-bit lanes
  for (int64_t at = 0; at < n; at += kHalf) {
    const int64_t element = first + at;
    const uint64_t word = mix64(key + static_cast<uint64_t>(element / kWord) * 0x9e3779b97f4a7c15ull);
    const auto signs = static_cast<uint32_t>(word >> (element % kWord));
    float* sums = sketch + element % kSketch;
    for (int64_t j = 0; j < kHalf; ++j) sums[j] += float_from_bits(float_bits(x[at + j]) ^ (signs >> j << 31));
  }
}

struct Sizes {
  double norm_sq;
  uint32_t max_bits;  // of |x|, as integers: Note [Non-finite]
};

MQ_CLONES Sizes sizes_of(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  double squares[kLanes] = {};
  int32_t maxima[kLanes] = {};
  const auto include = [&](float value, int64_t lane) MQ_ALWAYS_INLINE {
    squares[lane] += static_cast<double>(value) * value;  // in fp32 those of 1e20 and of 1e-23 are none
    maxima[lane] = std::max(maxima[lane], static_cast<int32_t>(abs_bits(value)));
  };
  int64_t at = 0;
  for (; at + kLanes <= n; at += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) include(x[at + i], i);
  }
  for (int64_t i = 0; at + i < n; ++i) include(x[at + i], i);
  Sizes sizes{0, 0};
  for (int64_t i = 0; i < kLanes; ++i) {
    sizes.norm_sq += squares[i];
    sizes.max_bits = std::max(sizes.max_bits, static_cast<uint32_t>(maxima[i]));
  }
  return sizes;
}

void sketch_chunk(const float* x, int64_t first, int64_t n, uint64_t key, float* sketch) {
  const int64_t whole = n / kWord * kWord;
  add_to_sketch(x, first, whole, key, sketch);
  if (whole == n) return;
  float padded[kWord] = {};
  std::memcpy(padded, x + whole, 4 * (n - whole));
  add_to_sketch(padded, first + whole, kWord, key, sketch);
}

}  // namespace

void Figures::add(const Figures& other) {
  norm_sq += other.norm_sq;
  peak_energy += other.peak_energy;
  for (int64_t j = 0; j < kSketch; ++j) sketch[j] += other.sketch[j];
}

void add_figures(const void* x, torch::headeronly::ScalarType dtype, int64_t begin, int64_t end, int64_t bucket_size,
                 uint64_t key, Figures& figures) {
  float room[kChunk];
  uint32_t max_bits = 0;  // of the bucket, which may go on in the next chunk
  for (int64_t at = begin, chunk_end; at < end; at = chunk_end) {
    chunk_end = std::min(at + kChunk, end);
    const float* values = as_floats(x, dtype, at, chunk_end - at, room);
    sketch_chunk(values, at, chunk_end - at, key, figures.sketch);
    for (int64_t from = at, to; from < chunk_end; from = to) {
      const int64_t bucket = from / bucket_size * bucket_size;
      to = std::min(chunk_end, bucket + bucket_size);
      const Sizes sizes = sizes_of(values + (from - at), to - from);
      figures.norm_sq += sizes.norm_sq;
      max_bits = std::max(max_bits, sizes.max_bits);
      if (to != end && to != bucket + bucket_size) continue;
      const double peak = float_from_bits(max_bits);
      figures.peak_energy += static_cast<double>(to - bucket) * peak * peak;
      max_bits = 0;
    }
  }
}

}  // namespace mqgrad
