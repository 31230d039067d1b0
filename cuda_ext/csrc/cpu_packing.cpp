// Codes to bit stream and back.
#include <cstring>
#include <type_traits>

#include "clones.h"
#include "kernels.h"
#include "payload.h"

namespace mqgrad {
namespace {

// Widths 2 and 4: the codes of one byte of the stream are bytes of one integer, in loops that compilers turn into vector
// code. (Of width 8 they would make calls of memcpy, which are slower here than groups.)
template <int BITS>
using ByteCodes = std::conditional_t<BITS == 2, uint32_t, uint16_t>;

template <int BITS>
MQ_INLINE void pack_bytes(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  constexpr int64_t kPerByte = 8 / BITS;
  const int64_t bytes = n / kPerByte;
  for (int64_t i = 0; i < bytes; ++i) {
    ByteCodes<BITS> merged;
    std::memcpy(&merged, codes + i * kPerByte, kPerByte);
    for (int shift = 8 - BITS; shift < 4 * kPerByte; shift *= 2) merged |= merged >> shift;
    out[i] = static_cast<uint8_t>(merged);
  }
}

template <int BITS>
MQ_INLINE void unpack_bytes(const uint8_t* __restrict packed, int64_t n, uint8_t* __restrict codes) {
  constexpr int64_t kPerByte = 8 / BITS;
  constexpr auto kMask = static_cast<ByteCodes<BITS>>(((1 << BITS) - 1) * 0x0101010101010101ull);
  const int64_t bytes = n / kPerByte;
  for (int64_t i = 0; i < bytes; ++i) {
    ByteCodes<BITS> spread = packed[i];
    for (int shift = (8 - BITS) * kPerByte / 2; shift >= 8 - BITS; shift /= 2) spread |= spread << shift;
    spread &= kMask;
    std::memcpy(codes + i * kPerByte, &spread, kPerByte);
  }
}

// Width 1: as pairs, which are codes of width 2. Loops over the 64-bit integers that eight codes are do not become vector
// code.
constexpr int64_t kPairs = 256;

MQ_INLINE void pack_bits(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  uint8_t pairs[kPairs];
  for (int64_t at = 0; at < n; at += 2 * kPairs) {
    const int64_t count = n - at < 2 * kPairs ? (n - at) / 2 : kPairs;
    for (int64_t i = 0; i < count; ++i) {
      uint16_t two;
      std::memcpy(&two, codes + at + 2 * i, 2);
      pairs[i] = static_cast<uint8_t>(two | two >> 7);
    }
    pack_bytes<2>(pairs, count, out + at / 8);
  }
}

MQ_INLINE void unpack_bits(const uint8_t* __restrict packed, int64_t n, uint8_t* __restrict codes) {
  uint8_t pairs[kPairs];
  for (int64_t at = 0; at < n; at += 2 * kPairs) {
    const int64_t count = n - at < 2 * kPairs ? (n - at) / 2 : kPairs;
    unpack_bytes<2>(packed + at / 8, count, pairs);
    for (int64_t i = 0; i < count; ++i) {
      const auto two = static_cast<uint16_t>((pairs[i] | pairs[i] << 7) & 0x0101);
      std::memcpy(codes + at + 2 * i, &two, 2);
    }
  }
}

using Groups = uint64_t __attribute__((vector_size(32)));  // of eight codes each; one AVX2 register
constexpr int64_t kGroups = 4;

// Groups of 3, 5, 6 or 7 bytes move as 8, where the next group overwrites, or the mask drops, what is too much: copies
// of 3 to 7 bytes take several instructions and stall the load that follows. So the last of kGroups needs 8 bytes.
template <int BITS>
MQ_INLINE bool groups_fit(int64_t n) {
  return n * BITS >= 8 * (BITS * (kGroups - 1) + 8);
}

template <int BITS>
MQ_INLINE int64_t pack_groups(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  int64_t at = 0;
  for (; groups_fit<BITS>(n - at); at += 8 * kGroups) {
    Groups groups;
    std::memcpy(&groups, codes + at, sizeof(groups));
    pack8<BITS>(groups);
    for (int k = 0; k < kGroups; ++k) {
      const uint64_t group = groups[k];
      std::memcpy(out + at / 8 * BITS + k * BITS, &group, 8);
    }
  }
  return at;
}

template <int BITS>
MQ_INLINE int64_t unpack_groups(const uint8_t* __restrict packed, int64_t n, uint8_t* __restrict codes) {
  int64_t at = 0;
  for (; groups_fit<BITS>(n - at); at += 8 * kGroups) {
    Groups groups;
    for (int k = 0; k < kGroups; ++k) {
      uint64_t group;
      std::memcpy(&group, packed + at / 8 * BITS + k * BITS, 8);
      groups[k] = group;
    }
    unpack8<BITS>(groups);
    std::memcpy(codes + at, &groups, sizeof(groups));
  }
  return at;
}

template <int BITS>
MQ_INLINE void pack_width(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  int64_t at = n / 8 * 8;
  if constexpr (BITS == 1) {
    pack_bits(codes, at, out);
  } else if constexpr (BITS == 2 || BITS == 4) {
    pack_bytes<BITS>(codes, at, out);
  } else {
    at = pack_groups<BITS>(codes, n, out);
  }
  for (; at < n; at += 8) {
    const int64_t count = n - at < 8 ? n - at : 8;
    uint64_t group = 0;
    std::memcpy(&group, codes + at, count);
    pack8<BITS>(group);
    std::memcpy(out + at / 8 * BITS, &group, (count * BITS + 7) / 8);
  }
}

template <int BITS>
MQ_INLINE void unpack_width(const uint8_t* __restrict packed, int64_t n, uint8_t* __restrict codes) {
  int64_t at = n / 8 * 8;
  if constexpr (BITS == 1) {
    unpack_bits(packed, at, codes);
  } else if constexpr (BITS == 2 || BITS == 4) {
    unpack_bytes<BITS>(packed, at, codes);
  } else {
    at = unpack_groups<BITS>(packed, n, codes);
  }
  for (; at < n; at += 8) {
    const int64_t count = n - at < 8 ? n - at : 8;
    uint64_t group = 0;
    std::memcpy(&group, packed + at / 8 * BITS, (count * BITS + 7) / 8);
    unpack8<BITS>(group);
    std::memcpy(codes + at, &group, count);
  }
}

}  // namespace

MQ_CLONES void pack(int bits, const uint8_t* codes, int64_t n, uint8_t* out) {
  switch (bits) {
    case 1: return pack_width<1>(codes, n, out);
    case 2: return pack_width<2>(codes, n, out);
    case 3: return pack_width<3>(codes, n, out);
    case 4: return pack_width<4>(codes, n, out);
    case 5: return pack_width<5>(codes, n, out);
    case 6: return pack_width<6>(codes, n, out);
    case 7: return pack_width<7>(codes, n, out);
    default: return pack_width<8>(codes, n, out);
  }
}

MQ_CLONES void unpack(int bits, const uint8_t* packed, int64_t n, uint8_t* codes) {
  switch (bits) {
    case 1: return unpack_width<1>(packed, n, codes);
    case 2: return unpack_width<2>(packed, n, codes);
    case 3: return unpack_width<3>(packed, n, codes);
    case 4: return unpack_width<4>(packed, n, codes);
    case 5: return unpack_width<5>(packed, n, codes);
    case 6: return unpack_width<6>(packed, n, codes);
    case 7: return unpack_width<7>(packed, n, codes);
    default: return unpack_width<8>(packed, n, codes);
  }
}

}  // namespace mqgrad
