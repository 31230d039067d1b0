// A sum that tells whether bytes arrived as they were sent.
#pragma once

#include <cstdint>

namespace mqgrad {

// Note [Checksum]
//
// random_key(salt, n) + the sum of (2 i + 1) w_i, modulo 2^64, over the little-endian 32-bit words w_i of n bytes, the last
// one padded with zeros. As in Fletcher's (1982) words are weighted by their places; odd weights have inverses modulo
// 2^64. So it sees every change of one word, two words that have changed places, and of other changes all but one in 2^64.
// Who forges bytes can forge it, too.
constexpr int64_t kChecksumBytes = 8;  // little-endian

uint64_t checksum(const uint8_t* bytes, int64_t n, uint64_t salt);

}  // namespace mqgrad
