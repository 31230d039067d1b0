// The code of widths below one bit: which elements are kept, how many, and what is written about each.
// cuda_ext/reference_sparse.py computes the same bytes with torch tensors; a change here is a change there.
#pragma once

#include "quantize_math.h"

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

// As many entries as numel / elements_per_bit bits hold, but at least one.
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
// Elements more than 12 octaves below the top are not kept: eight levels do not describe them.
constexpr uint32_t kKeyRange = 12u << 23;
constexpr uint32_t kHalfOctave = 1u << 22;

MQ_INLINE uint32_t lowest_key(uint32_t top) {
  return top > kKeyRange ? top - kKeyRange : 1;
}

MQ_INLINE uint32_t sparse_level(uint32_t key, uint32_t floor, uint32_t top) {
  const uint64_t range = static_cast<uint64_t>(top) - floor + 1;
  return static_cast<uint32_t>((static_cast<uint64_t>(key - floor) << kLevelBits) / range);
}

// Needs floor <= top.
MQ_INLINE float sparse_magnitude(uint32_t level, uint32_t floor, uint32_t top) {
  const uint64_t range = static_cast<uint64_t>(top) - floor + 1;
  const uint32_t middle = floor + static_cast<uint32_t>(((2 * level + 1) * range) >> (kLevelBits + 1));
  const uint32_t lowest = floor + static_cast<uint32_t>((level * range + (1 << kLevelBits) - 1) >> kLevelBits);
  return float_from_bits(middle < lowest + kHalfOctave ? middle : lowest + kHalfOctave);
}

MQ_INLINE float with_sign(float magnitude, uint32_t negative) {
  return float_from_bits(float_bits(magnitude) | negative << 31);
}

}  // namespace mqgrad
