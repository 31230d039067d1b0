// Codes to bit stream and back, and input types to fp32.
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <stdexcept>

#include "clones.h"
#include "kernels.h"
#include "quantize_math.h"

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

using Groups = uint64_t __attribute__((vector_size(32)));  // of eight codes each; one AVX2 register
constexpr int64_t kGroups = 4;

// The bytes of a group in memory. Groups of 3, 5, 6 or 7 bytes move as 8, where the next group overwrites, or the mask
// drops, what is too much: copies of 3 to 7 bytes take several instructions and stall the load that follows.
template <int BITS>
struct GroupBytes {
  using type = uint64_t;
};
template <>
struct GroupBytes<1> {
  using type = uint8_t;
};
template <>
struct GroupBytes<2> {
  using type = uint16_t;
};
template <>
struct GroupBytes<4> {
  using type = uint32_t;
};

// Whether the last of kGroups groups has all its bytes to move.
template <int BITS>
MQ_INLINE bool groups_fit(int64_t n) {
  constexpr int64_t kSize = sizeof(typename GroupBytes<BITS>::type);
  return n * BITS >= 8 * (BITS * (kGroups - 1) + kSize);
}

template <int BITS>
MQ_INLINE void pack_width(const uint8_t* __restrict codes, int64_t n, uint8_t* __restrict out) {
  using Bytes = typename GroupBytes<BITS>::type;
  for (; groups_fit<BITS>(n); n -= 8 * kGroups, codes += 8 * kGroups, out += BITS * kGroups) {
    Groups groups;
    std::memcpy(&groups, codes, sizeof(groups));
    pack8<BITS>(groups);
    for (int k = 0; k < kGroups; ++k) {
      const Bytes bytes = static_cast<Bytes>(groups[k]);
      std::memcpy(out + k * BITS, &bytes, sizeof(Bytes));
    }
  }
  for (; n > 0; n -= 8, codes += 8, out += BITS) {
    const int64_t count = n < 8 ? n : 8;
    uint64_t group = 0;
    std::memcpy(&group, codes, count);
    pack8<BITS>(group);
    std::memcpy(out, &group, (count * BITS + 7) / 8);
  }
}

template <int BITS>
MQ_INLINE void unpack_width(const uint8_t* __restrict packed, int64_t n, uint8_t* __restrict codes) {
  using Bytes = typename GroupBytes<BITS>::type;
  for (; groups_fit<BITS>(n); n -= 8 * kGroups, codes += 8 * kGroups, packed += BITS * kGroups) {
    Groups groups;
    for (int k = 0; k < kGroups; ++k) {
      Bytes bytes;
      std::memcpy(&bytes, packed + k * BITS, sizeof(Bytes));
      groups[k] = bytes;
    }
    unpack8<BITS>(groups);
    std::memcpy(codes, &groups, sizeof(groups));
  }
  for (; n > 0; n -= 8, codes += 8, packed += BITS) {
    const int64_t count = n < 8 ? n : 8;
    uint64_t group = 0;
    std::memcpy(&group, packed, (count * BITS + 7) / 8);
    unpack8<BITS>(group);
    std::memcpy(codes, &group, count);
  }
}

MQ_CLONES void from_double(const double* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i]);
}

MQ_CLONES void from_half(const c10::Half* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = c10::detail::fp16_ieee_to_fp32_value(x[i].x);
}

MQ_CLONES void from_bfloat16(const c10::BFloat16* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = float_from_bits(static_cast<uint32_t>(x[i].x) << 16);
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

void load_floats(const void* x, ScalarType dtype, int64_t first, int64_t n, float* out) {
  switch (dtype) {
    case ScalarType::Float:
      std::memcpy(out, static_cast<const float*>(x) + first, 4 * n);
      return;
    case ScalarType::Double:
      return from_double(static_cast<const double*>(x) + first, n, out);
    case ScalarType::Half:
      return from_half(static_cast<const c10::Half*>(x) + first, n, out);
    case ScalarType::BFloat16:
      return from_bfloat16(static_cast<const c10::BFloat16*>(x) + first, n, out);
    default:
      throw std::invalid_argument("mqgrad: x must be float32, float64, float16 or bfloat16");
  }
}

}  // namespace mqgrad
