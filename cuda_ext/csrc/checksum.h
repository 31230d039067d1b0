// A sum that tells whether bytes arrived as they were sent.
#pragma once

#include <cstdint>

namespace mqgrad {

// Note [Checksum]
//
// mix64 of random_key(salt, n) + the sum of (2 i + 1 mod 2^32) w_i, modulo 2^64, over the little-endian 32-bit words w_i of
// n bytes, the last one padded with zeros. As in Fletcher's (1982) words are weighted by their places; odd weights have
// inverses modulo 2^64, and mix64 is one-to-one. So it sees every change of one word or of two side by side that are one
// unaligned word, and up to 8 GiB every two words that have changed places. Of other changes it misses those whose
// weighted sum is 0: by chance, one in 2^34 of two words, one in 2^54 of 128 KiB. Who forges bytes can forge it, too.
constexpr int64_t kChecksumBytes = 8;  // little-endian

uint64_t checksum(const uint8_t* bytes, int64_t n, uint64_t salt);

}  // namespace mqgrad
