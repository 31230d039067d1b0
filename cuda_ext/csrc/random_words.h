// Random numbers that are a function of where they are used.
#pragma once

#include "float_bits.h"

namespace mqgrad {

// Note [Random numbers]
//
// The dither of element i of bucket k is a pure function of (seed, bucket_ids[k], i): never of a state, a thread or the
// other elements. Seed and bucket give a 64-bit key (the finalizer of SplitMix64, twice). Its halves are the start and
// the odd stride of a sequence of 32-bit states, one per two elements; in SplitMix (Steele, Lea and Flood 2014), too,
// every stream has a stride of its own. Over all keys, two states of a sequence are as good as independent, which makes
// the variance of a sum of roundings right; one round of shifts and multiplication (the first of Wellons'
// hash-prospector) hides that neighbouring states differ by a constant. The low half of word i / 2 serves an even i, the
// high half an odd one, in memory order: as 16-bit lanes, the words are the dithers of consecutive elements.
//
// Elements of one bucket that are 2^28 and more apart have correlated dithers: their states share low bits. A codec's
// buckets have 2^16 at most.
MQ_INLINE uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <typename Word>  // uint32_t, or a vector of them
MQ_INLINE void mix_in_place(Word& x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x ^= x >> 15;
}

MQ_INLINE uint32_t mix32(uint32_t x) {
  mix_in_place(x);
  return x;
}

struct Stream {
  uint32_t start;
  uint32_t stride;
};

MQ_INLINE uint64_t random_key(uint64_t seed, uint64_t bucket) {
  return mix64(mix64(seed + 0x9e3779b97f4a7c15ull) + bucket);
}

MQ_INLINE Stream random_stream(uint64_t seed, uint64_t bucket) {
  const uint64_t key = random_key(seed, bucket);
  return {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32) | 1};
}

// Of elements 2 * index and 2 * index + 1.
MQ_INLINE uint32_t random_word(Stream stream, uint32_t index) {
  return mix32(stream.start + index * stream.stride);
}

}  // namespace mqgrad
