// The code of widths below one bit: which elements are kept, how many, and what is written about each.
// cuda_ext/reference_sparse.py computes the same bytes with torch tensors; a change here is a change there.
#pragma once

#include "float_bits.h"

namespace mqgrad {

// Note [Sparse payload]
//
//   | floor | top | high parts             | entries                              |
//   | 4 B   | 4 B | ceil(high_bits / 8)    | ceil(count * entry_bits / 8)         |
//
// The `count` largest magnitudes of the whole vector are kept, in the order of their indices. Indices are Elias-Fano coded:
// the low `low_bits` bits of each stand in its entry, and what is left of index i, the high part h_i, as a one at
// position h_i + i of the bit string "high parts". With low_bits = floor(log2(numel / count)) that takes about
// log2(numel / count) + 2 bits an index, whatever the indices are, so that the length of a payload depends on numel and
// the width alone. An entry is
//
//     | low bits of the index | sign | level, 3 bits |        (least significant bit on the right)
//
// Fewer ones than `count`: the other entries are zero and mean nothing. Bit strings are little-endian, unused bits zero.
//
// A payload is not to be trusted. Ones beyond the first `count`, entries whose index is not above all before it, and
// indices from numel on are ignored.
constexpr int kLevelBits = 3;
constexpr int kValueBits = kLevelBits + 1;
constexpr int64_t kSparseHeaderBytes = 8;

// The smallest and the largest kept magnitude, as keys: Note [Sparse levels].
struct SparseHeader {
  uint32_t floor;
  uint32_t top;
};

// Of bytes from anywhere: no sign bits, floor <= top.
MQ_INLINE SparseHeader load_sparse_header(const uint8_t* payload) {
  uint32_t keys[2];
  std::memcpy(keys, payload, kSparseHeaderBytes);
  const uint32_t floor = keys[0] & 0x7fffffffu, top = keys[1] & 0x7fffffffu;
  return {floor < top ? floor : top, top};
}

// What has a top that is not finite decodes to NaN.
MQ_INLINE void store_sparse_header(SparseHeader header, uint8_t* payload) {
  const bool finite = header.top < kInfinityBits;
  const uint32_t keys[2] = {finite ? header.floor : kNanBits, finite ? header.top : kNanBits};
  std::memcpy(payload, keys, kSparseHeaderBytes);
}

struct SparseLayout {
  int64_t numel;
  int64_t count;  // entries
  int low_bits;

  MQ_INLINE int64_t high_bits() const { return count + ((numel - 1) >> low_bits); }
  MQ_INLINE int64_t high_bytes() const { return (high_bits() + 7) / 8; }
  MQ_INLINE int entry_bits() const { return low_bits + kValueBits; }
  MQ_INLINE int64_t payload_bytes() const {
    return numel == 0 ? 0 : kSparseHeaderBytes + high_bytes() + (count * entry_bits() + 7) / 8;
  }
};

MQ_INLINE SparseLayout sparse_layout_of(int64_t numel, int64_t count) {
  int low_bits = 0;
  while ((numel / count) >> (low_bits + 1)) ++low_bits;
  return {numel, count, low_bits};
}

// As many entries as numel / elements_per_bit bits hold, but at least one. At 64 elements a bit that is one in 2^10, or the
// only one of fewer than 2^13: low_bits is at most 12, entry_bits 16.
MQ_INLINE SparseLayout sparse_layout(int64_t numel, int64_t elements_per_bit) {
  if (numel == 0) return {0, 0, 0};
  const int64_t budget = numel / (8 * elements_per_bit);
  int64_t low = 1, high = numel / 2 > 1 ? numel / 2 : 1;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (sparse_layout_of(numel, middle).payload_bytes() <= budget) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return sparse_layout_of(numel, low);
}

// Note [Sparse levels]
//
// A magnitude is one of eight levels between the smallest kept one, `floor`, and the largest, `top`. They are evenly
// spaced in the bit pattern of the float ("key"), which is close to its logarithm: no arithmetic on floats, hence the same
// bytes anywhere. A level lies in the middle of its range of keys, but at most 2^22 above the lowest, which is a factor of
// 1.5 at most: an element is never sent as twice itself or more, so that every kept one shrinks what is left out, however
// wide the range (the code is contractive).
//
// Eight levels describe a few octaves well, or many badly. The range is cut off below the top where that errs least: what is
// dropped costs its square, and what is kept, at levels h / 16 octaves apart, (h / 16 * ln 2)^2 / 12 of its square. Sums
// are over counts of half octaves, whose squares fall by a factor of 2 each; 12 octaves is the most.
constexpr uint32_t kHalfOctave = 1u << 22;  // in keys
constexpr int kHalfOctaves = 24;
constexpr double kLevelError = 1.0 / 6394;  // (ln 2 / 16)^2 / 12

MQ_INLINE uint32_t key_below(uint32_t top, int half_octaves) {
  const uint32_t range = static_cast<uint32_t>(half_octaves) * kHalfOctave;
  return top > range ? top - range + 1 : 1;
}

MQ_INLINE uint32_t lowest_key(uint32_t top) {
  return key_below(top, kHalfOctaves);
}

// The lowest key worth keeping, of counts[j] keys that are j to j + 1 half octaves below the top.
MQ_INLINE uint32_t best_floor(const int64_t* counts, uint32_t top) {
  double dropped = 0, square = 1;
  for (int j = 0; j < kHalfOctaves; ++j, square /= 2) dropped += static_cast<double>(counts[j]) * square;
  double kept = 0, least = 0;
  int best = 0;
  square = 1;
  for (int h = 1; h <= kHalfOctaves; ++h, square /= 2) {
    const double energy = static_cast<double>(counts[h - 1]) * square;
    kept += energy;
    dropped -= energy;
    const double error = dropped + kept * (static_cast<double>(h * h) * kLevelError);
    if (best == 0 || error < least) {
      least = error;
      best = h;
    }
  }
  return key_below(top, best);
}

MQ_INLINE uint64_t key_range(SparseHeader header) {
  return static_cast<uint64_t>(header.top) - header.floor + 1;
}

// The lowest key of a level.
MQ_INLINE uint32_t sparse_lowest(uint32_t level, SparseHeader header) {
  return header.floor + static_cast<uint32_t>((level * key_range(header) + (1 << kLevelBits) - 1) >> kLevelBits);
}

// The level of a key from floor to top.
MQ_INLINE uint32_t sparse_level(uint32_t key, SparseHeader header) {
  uint32_t level = 0;
  for (uint32_t l = 1; l < 1 << kLevelBits; ++l) level += key >= sparse_lowest(l, header) ? 1 : 0;
  return level;
}

MQ_INLINE float sparse_magnitude(uint32_t level, SparseHeader header) {
  const uint64_t to_middle = (2 * level + 1) * key_range(header) >> (kLevelBits + 1);
  const uint32_t middle = header.floor + static_cast<uint32_t>(to_middle);
  const uint32_t limit = sparse_lowest(level, header) + kHalfOctave;
  return float_from_bits(middle < limit ? middle : limit);
}

// Sign and level of a kept value, the low bits of its entry.
MQ_INLINE uint32_t sparse_code(float value, SparseHeader header) {
  return float_bits(value) >> 31 << kLevelBits | sparse_level(abs_bits(value), header);
}

MQ_INLINE float sparse_value(uint32_t code, SparseHeader header) {
  const float magnitude = sparse_magnitude(code & ((1u << kLevelBits) - 1), header);
  return float_from_bits(float_bits(magnitude) | (code >> kLevelBits & 1) << 31);
}

}  // namespace mqgrad
