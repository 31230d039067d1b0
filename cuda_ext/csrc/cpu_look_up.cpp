// Note [Looking up values] in look_up.h.
#include "look_up.h"

#include <type_traits>

#include "clones.h"

namespace mqgrad {
namespace {

#ifdef MQ_VERSIONS

// Of one register, if the target has registers of 4 * LANES bytes.
template <int LANES>
using Floats = typename VectorOf<float, LANES>::type;
template <int LANES>
using Words = typename VectorOf<uint32_t, LANES>::type;

// Of sixteen codes, the first eight are in the word at the first byte, from its lowest bit on, the second eight in
// the word at byte kSecondAt, from bit kSecondShift on. No word has a byte beyond the sixteen.
template <int BITS>
using Word = std::conditional_t<BITS == 1, uint16_t, uint32_t>;
template <int BITS>
constexpr int kSecondAt = BITS <= 2 ? 0 : 2 * BITS - 4;
template <int BITS>
constexpr int kSecondShift = 8 * BITS - 8 * kSecondAt<BITS>;

template <int BITS>
MQ_INLINE Word<BITS> word_at(const uint8_t* packed) {
  Word<BITS> word;
  std::memcpy(&word, packed, sizeof(word));
  return word;
}

// These two are functions of their targets as a whole: in what is inlined into such a function, g++ 12 makes a vector
// of equal words one by one.
template <int BITS, bool ADD>
MQ_VERSION("arch=x86-64-v4") void look_up_in_16(const float* values, const uint8_t* packed, int64_t n, float* out) {
  Floats<16> table;
  std::memcpy(&table, values, sizeof(table));
  Words<16> shifts, words;
  for (int i = 0; i < 16; ++i) shifts[i] = i % 8 * BITS + i / 8 * kSecondShift<BITS>;
  for (int64_t at = 0; at < n; at += kLookedUp, packed += kLookedUp / 8 * BITS) {
    if constexpr (kSecondAt<BITS> == 0) {
      words = Words<16>{} + word_at<BITS>(packed);
    } else {
      const Words<8> first = Words<8>{} + word_at<BITS>(packed);
      const Words<8> second = Words<8>{} + word_at<BITS>(packed + kSecondAt<BITS>);
      words = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    }
    Floats<16> found = __builtin_shuffle(table, words >> shifts);
    if constexpr (ADD) {
      Floats<16> sums;
      std::memcpy(&sums, out + at, sizeof(sums));
      found += sums;
    }
    std::memcpy(out + at, &found, sizeof(found));
  }
}

template <int BITS, bool ADD>
MQ_VERSION("avx2") void look_up_in_8(const float* values, const uint8_t* packed, int64_t n, float* out) {
  Floats<8> low, high;
  std::memcpy(&low, values, sizeof(low));
  std::memcpy(&high, values + 8, sizeof(high));
  const Words<8> shifts = Words<8>{0, 1, 2, 3, 4, 5, 6, 7} * BITS;
  const Words<8> second_shifts = shifts + kSecondShift<BITS>;
  const auto look_up = [&](const Words<8>& codes, float* to) MQ_ALWAYS_INLINE {
    Floats<8> found = BITS == 4 ? __builtin_shuffle(low, high, codes) : __builtin_shuffle(low, codes);
    if constexpr (ADD) {
      Floats<8> sums;
      std::memcpy(&sums, to, sizeof(sums));
      found += sums;
    }
    std::memcpy(to, &found, sizeof(found));
  };
  for (int64_t at = 0; at < n; at += kLookedUp, packed += kLookedUp / 8 * BITS) {
    const Words<8> first = Words<8>{} + word_at<BITS>(packed);
    const Words<8> second = Words<8>{} + word_at<BITS>(packed + kSecondAt<BITS>);
    look_up(first >> shifts, out + at);
    look_up(second >> second_shifts, out + at + 8);
  }
}

// Calls f(width, whether to add), both as constants.
template <typename F>
MQ_INLINE void with_constants(int bits, bool add, const F& f) {
  const auto with_width = [&](auto adds) {
    switch (bits) {
      case 1: return f(std::integral_constant<int, 1>(), adds);
      case 2: return f(std::integral_constant<int, 2>(), adds);
      case 3: return f(std::integral_constant<int, 3>(), adds);
      default: return f(std::integral_constant<int, 4>(), adds);
    }
  };
  add ? with_width(std::true_type()) : with_width(std::false_type());
}

MQ_VERSION("arch=x86-64-v4") void values_of(const Table& table, const uint8_t* packed, int64_t n, bool add,
                                            float* out) {
  with_constants(table.bits, add, [&](auto bits, auto adds) {
    look_up_in_16<decltype(bits)::value, decltype(adds)::value>(table.values, packed, n, out);
  });
}

MQ_VERSION("avx2") void values_of(const Table& table, const uint8_t* packed, int64_t n, bool add, float* out) {
  with_constants(table.bits, add, [&](auto bits, auto adds) {
    look_up_in_8<decltype(bits)::value, decltype(adds)::value>(table.values, packed, n, out);
  });
}

MQ_VERSION("arch=x86-64-v4") bool has_look_up() { return true; }
MQ_VERSION("avx2") bool has_look_up() { return true; }

#endif

MQ_VERSION("default") bool has_look_up() { return false; }
MQ_VERSION("default") void values_of(const Table&, const uint8_t*, int64_t, bool, float*) {}

}  // namespace

bool can_look_up(int bits) {
  return bits <= 4 && has_look_up();
}

void look_up(const Table& table, const uint8_t* packed, int64_t n, bool add, float* out) {
  values_of(table, packed, n, add, out);
}

}  // namespace mqgrad
