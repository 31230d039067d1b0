// The sparse code on the CPU: find the largest magnitudes of a vector, write them down, and read them back.
#include "sparse.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "clones.h"
#include "kernels.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kBlock = 8192;  // elements that one thread handles at a time
constexpr int64_t kGroup = 16;
constexpr int64_t kSamples = 16384;

struct Kept {
  int64_t index;
  float value;
};

template <typename F>
void for_blocks(int64_t n, const F& f) {  // f(block, first element, length), in parallel
  torch::stable::parallel_for(0, (n + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) f(b, b * kBlock, std::min(kBlock, n - b * kBlock));
  });
}

MQ_CLONES uint32_t max_key(const float* v, int64_t n) {
  uint32_t max = 0;
  for (int64_t i = 0; i < n; ++i) max = std::max(max, abs_bits(v[i]));
  return max;
}

MQ_CLONES void add(const float* x, const float* residual, int64_t n, float* v) {
  for (int64_t i = 0; i < n; ++i) v[i] = x[i] + residual[i];
}

// Offsets of the elements whose key is at least `lowest`. Where few are, most groups hold none.
MQ_CLONES int64_t offsets_from(const float* v, int64_t n, uint32_t lowest, uint32_t* offsets) {
  int64_t found = 0;
  for (int64_t at = 0; at < n; at += kGroup) {
    const int64_t end = std::min(at + kGroup, n);
    uint32_t max = 0;
    if (end == at + kGroup) {
      for (int64_t i = 0; i < kGroup; ++i) max = std::max(max, abs_bits(v[at + i]));
      if (max < lowest) continue;
    }
    for (int64_t i = at; i < end; ++i) {
      offsets[found] = static_cast<uint32_t>(i);
      found += abs_bits(v[i]) >= lowest;
    }
  }
  return found;
}

// x[first .. first + n) as floats, in `scratch` where they are not.
const float* block_of_x(const SparseArguments& a, int64_t first, int64_t n, float* scratch) {
  if (a.dtype == ScalarType::Float) return static_cast<const float*>(a.x) + first;
  load_floats(a.x, a.dtype, first, n, scratch);
  return scratch;
}

// What is coded, v = x, or x + alpha * residual, a block at a time: computed anew in each pass, which is cheaper than
// memory for all of it.
class Vector {
 public:
  explicit Vector(const SparseArguments& a) : a_(a) {}

  // v[first .. first + n), in `scratch` where it has to be computed.
  const float* block(int64_t first, int64_t n, float* scratch) const {
    const float* x = block_of_x(a_, first, n, scratch);
    if (!a_.residual) return x;
    const float* residual = a_.residual + first;
    if (a_.alpha == 1) {  // the float sum is the double sum, rounded: 53 >= 2 * 24 + 2
      add(x, residual, n, scratch);
    } else {
      for (int64_t i = 0; i < n; ++i) scratch[i] = compensated(x[i], residual[i], a_.alpha);
    }
    return scratch;
  }

  float at(int64_t index) const {
    float scratch;
    return *block(index, 1, &scratch);
  }

  int64_t numel() const { return a_.layout.numel; }

 private:
  const SparseArguments& a_;
};

uint32_t top_key(const Vector& vector) {
  std::vector<uint32_t> keys((vector.numel() + kBlock - 1) / kBlock);
  for_blocks(vector.numel(), [&](int64_t b, int64_t first, int64_t n) {
    float scratch[kBlock];
    keys[b] = max_key(vector.block(first, n, scratch), n);
  });
  return *std::max_element(keys.begin(), keys.end());
}

std::vector<Kept> collect(const Vector& vector, uint32_t lowest) {
  std::vector<std::vector<Kept>> parts((vector.numel() + kBlock - 1) / kBlock);
  for_blocks(vector.numel(), [&](int64_t b, int64_t first, int64_t n) {
    float scratch[kBlock];
    uint32_t offsets[kBlock];
    const float* v = vector.block(first, n, scratch);
    const int64_t found = offsets_from(v, n, lowest, offsets);
    parts[b].reserve(found);
    for (int64_t i = 0; i < found; ++i) parts[b].push_back({first + offsets[i], v[offsets[i]]});
  });
  std::vector<Kept> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

uint32_t nth_largest(std::vector<uint32_t>& keys, int64_t n) {
  std::nth_element(keys.begin(), keys.begin() + n, keys.end(), std::greater<>());
  return keys[n];
}

// A key below which the `count` largest hardly ever reach, from a sample. It saves time and does not show in the result.
uint32_t sampled_bound(const Vector& vector, const SparseLayout& layout, uint32_t lowest) {
  if (layout.numel < 4 * kSamples) return lowest;
  const int64_t stride = layout.numel / kSamples | 1;  // odd: not in step with the rows of a matrix
  std::vector<uint32_t> keys;
  for (int64_t i = 0; i < layout.numel; i += stride) keys.push_back(abs_bits(vector.at(i)));
  const double expected = static_cast<double>(layout.count) / layout.numel * keys.size();
  const int64_t rank = static_cast<int64_t>(expected + 5 * std::sqrt(expected)) + 8;
  if (rank >= static_cast<int64_t>(keys.size())) return lowest;
  return std::max(nth_largest(keys, rank), lowest);
}

// The `count` largest magnitudes from `lowest` on, by index; of equal ones, the first.
std::vector<Kept> largest(const Vector& vector, const SparseLayout& layout, uint32_t lowest) {
  const uint32_t bound = sampled_bound(vector, layout, lowest);
  std::vector<Kept> found = collect(vector, bound);
  const auto count = static_cast<size_t>(layout.count);
  if (found.size() < count && bound > lowest) found = collect(vector, lowest);
  if (found.size() <= count) return found;
  std::vector<uint32_t> keys;
  keys.reserve(found.size());
  for (const Kept& kept : found) keys.push_back(abs_bits(kept.value));
  const uint32_t threshold = nth_largest(keys, layout.count - 1);
  int64_t ties = layout.count - std::count_if(keys.begin(), keys.end(), [=](uint32_t key) { return key > threshold; });
  found.erase(std::remove_if(found.begin(), found.end(),
                             [&](const Kept& kept) {
                               const uint32_t key = abs_bits(kept.value);
                               return key < threshold || (key == threshold && ties-- <= 0);
                             }),
              found.end());
  return found;
}

void or_bits(uint8_t* base, int64_t bit, uint64_t value) {  // value << (bit % 8) must fit 64 bits
  value <<= bit % 8;
  for (uint8_t* byte = base + bit / 8; value; ++byte, value >>= 8) *byte |= static_cast<uint8_t>(value);
}

uint64_t read_bits(const uint8_t* base, int64_t bytes, int64_t bit, int count) {
  uint64_t word = 0;
  std::memcpy(&word, base + bit / 8, std::min<int64_t>(8, bytes - bit / 8));
  return word >> (bit % 8) & ((uint64_t{1} << count) - 1);
}

void store_header(uint8_t* payload, uint32_t floor, uint32_t top) {
  std::memcpy(payload, &floor, 4);
  std::memcpy(payload + 4, &top, 4);
}

// Writes the entries, and replaces each kept value by the one that is sent.
void write_entries(const SparseLayout& layout, std::vector<Kept>& kept, uint32_t floor, uint32_t top,
                   uint8_t* payload) {
  uint8_t* high = payload + kSparseHeaderBytes;
  uint8_t* entries = high + layout.high_bytes();
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto index = static_cast<uint64_t>(kept[i].index);
    const uint32_t negative = float_bits(kept[i].value) >> 31;
    const uint32_t level = sparse_level(abs_bits(kept[i].value), floor, top);
    const uint64_t low = index & ((uint64_t{1} << layout.low_bits) - 1);
    or_bits(high, static_cast<int64_t>((index >> layout.low_bits) + i), 1);
    or_bits(entries, static_cast<int64_t>(i) * layout.entry_bits(),
            low << kValueBits | negative << kLevelBits | level);
    kept[i].value = with_sign(sparse_magnitude(level, floor, top), negative);
  }
}

void keep_error(const SparseArguments& a, const std::vector<Kept>& sent) {
  std::vector<float> owed;  // computed before the residuals are overwritten
  owed.reserve(sent.size());
  for (const Kept& s : sent) {
    float scratch;
    const float x = *block_of_x(a, s.index, 1, &scratch);
    owed.push_back(next_residual(x, a.residual[s.index], s.value, a.beta));
  }
  for_blocks(a.layout.numel, [&](int64_t, int64_t first, int64_t n) {
    float* residual = a.residual + first;
    float scratch[kBlock];
    const float* x = block_of_x(a, first, n, scratch);
    if (a.beta == 1) return add(x, residual, n, residual);
    for (int64_t i = 0; i < n; ++i) residual[i] = next_residual(x[i], residual[i], 0.0f, a.beta);
  });
  for (size_t i = 0; i < sent.size(); ++i) a.residual[sent[i].index] = owed[i];
}

}  // namespace

void encode_sparse(const SparseArguments& arguments, uint8_t* payload) {
  const SparseLayout& layout = arguments.layout;
  std::memset(payload, 0, layout.payload_bytes());
  if (layout.numel == 0) return;
  const Vector vector(arguments);
  const uint32_t top = top_key(vector);
  if (top >= kInfinityBits) return store_header(payload, kNanBits, kNanBits);  // and what is owed stays owed
  std::vector<Kept> kept;
  if (top > 0) {
    kept = largest(vector, layout, lowest_key(top));
    uint32_t floor = top;
    for (const Kept& k : kept) floor = std::min(floor, abs_bits(k.value));
    store_header(payload, floor, top);
    write_entries(layout, kept, floor, top, payload);
  }
  if (arguments.residual) keep_error(arguments, kept);
}

void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out) {
  if (layout.numel == 0) return;
  uint32_t floor, top;
  std::memcpy(&floor, payload, 4);
  std::memcpy(&top, payload + 4, 4);
  top &= 0x7fffffffu;
  floor = std::min(floor & 0x7fffffffu, top);
  if (top >= kInfinityBits) {
    for (int64_t i = 0; i < layout.numel; ++i) out[i] += float_from_bits(kNanBits);
    return;
  }
  float magnitudes[1 << kLevelBits];
  for (uint32_t level = 0; level < 1 << kLevelBits; ++level) magnitudes[level] = sparse_magnitude(level, floor, top);

  const uint8_t* high = payload + kSparseHeaderBytes;
  const uint8_t* entries = high + layout.high_bytes();
  const int64_t entry_bytes = payload + layout.payload_bytes() - entries;
  int64_t entry = 0, last = -1;
  for (int64_t at = 0; at < layout.high_bits(); at += 56) {
    const int bits = static_cast<int>(std::min<int64_t>(56, layout.high_bits() - at));
    uint64_t ones = read_bits(high, layout.high_bytes(), at, bits);
    for (; ones && entry < layout.count; ones &= ones - 1, ++entry) {
      const int64_t part = at + __builtin_ctzll(ones) - entry;
      const uint64_t bits_of_entry = read_bits(entries, entry_bytes, entry * layout.entry_bits(), layout.entry_bits());
      const int64_t index = part << layout.low_bits | static_cast<int64_t>(bits_of_entry >> kValueBits);
      if (index > last && index < layout.numel) {
        out[index] += with_sign(magnitudes[bits_of_entry & ((1 << kLevelBits) - 1)], bits_of_entry >> kLevelBits & 1);
      }
      last = std::max(last, index);
    }
  }
}

}  // namespace mqgrad
