// Stochastic rounding on the CPU: as a loop over elements, and in vectors where that is faster.
#include <utility>

#include "blocks.h"
#include "clones.h"
#include "codes.h"

namespace mqgrad {
namespace {

// Note [Stochastic codes in vectors]
//
// Where compilers turn the loop over elements into vector code, much of its time goes into 16-bit halves of random
// words that become 32 bits long, and 32-bit sums that become codes of 8: across a whole register, both take several
// instructions. Within 128 bits one does. So four vectors are coded at a time as follows, and the order of what comes
// out is put right at the end, where there is the least of it:
//
//   words   of two vectors' elements, drawn in the order in which their halves meet these elements
//   spread  the lower, or the upper, four halves of each 128 bits. A half is twice a dither, plus a bit from which
//           nothing is carried. Above it stands what cancels the exponent of z (Note [Fixed point])
//   sums    2 z + spread: byte 2 is the code, byte 3 is zero
//   codes   byte 2 of four sums, each of another vector, in one word; then bytes and words are put in order
#ifdef MQ_VERSIONS

// Of one register, if the target has registers of 4 * LANES bytes.
template <int LANES>
using Floats = typename VectorOf<float, LANES>::type;
template <int LANES>
using Words = typename VectorOf<uint32_t, LANES>::type;
template <int LANES>
using Halves = typename VectorOf<uint16_t, 2 * LANES>::type;
template <int LANES>
using Bytes = typename VectorOf<uint8_t, 4 * LANES>::type;

constexpr uint32_t kIntegerBits = 0x4b000000u;  // of 2^23, to which z adds an integer

// Which of the words of two vectors' elements comes where: two for the first and two for the second, by turns.
constexpr int word_in_lane(int lane, int lanes) {
  return lane / 4 * 2 + lane % 2 + (lane % 4 < 2 ? 0 : lanes / 2);
}

template <int LANES>
MQ_INLINE void double_integers(const float* lifted, const Grid& grid, Words<LANES>& sums) {
  Floats<LANES> x;
  std::memcpy(&x, lifted, sizeof(x));
  const auto z = reinterpret_cast<Words<LANES>>(x * grid.factor + grid.offset);
  sums = z + z;
}

template <int LANES, bool UPPER, int... I>  // I: 0, 1, ...
MQ_INLINE void add_halves(const Words<LANES>& words, Words<LANES>& sums, std::integer_sequence<int, I...>) {
  const auto halves = reinterpret_cast<Halves<LANES>>(words);
  static_assert(kDitherBits == 15);
  const Halves<LANES> above = Halves<LANES>{} + static_cast<uint16_t>(-(2 * kIntegerBits) >> 16);
  sums += reinterpret_cast<Words<LANES>>(
      __builtin_shufflevector(halves, above, (I / 8 * 8 + UPPER * 4 + I % 8 / 2 + I % 2 * 2 * LANES)...));
}

template <int LANES, int... I>
MQ_INLINE void order_bytes(Words<LANES>& words, std::integer_sequence<int, I...>) {
  const auto bytes = reinterpret_cast<Bytes<LANES>>(words);
  words = reinterpret_cast<Words<LANES>>(
      __builtin_shufflevector(bytes, bytes, (I / 16 * 16 + I % 4 * 4 + I / 4 % 2 * 2 + I / 8 % 2)...));
}

template <int LANES, int... I>
MQ_INLINE void order_words(Words<LANES>& words, std::integer_sequence<int, I...>) {
  words = __builtin_shufflevector(words, words, (I % (LANES / 4) * 4 + I / (LANES / 4))...);
}

template <int LANES>
MQ_INLINE void store_codes(const Words<LANES>* sums, uint8_t* codes) {
  constexpr uint32_t kHigh = 0xffff0000u;
  Words<LANES> words = sums[0] >> 16 | (sums[1] & kHigh) | (sums[2] >> 16 | (sums[3] & kHigh)) << 8;
  order_bytes<LANES>(words, std::make_integer_sequence<int, 4 * LANES>());
  order_words<LANES>(words, std::make_integer_sequence<int, LANES>());
  std::memcpy(codes, &words, sizeof(words));
}

template <int LANES>
MQ_INLINE void round_vectors(const float* lifted, const Grid& grid, const Words<LANES>* words, uint8_t* codes) {
  Words<LANES> sums[4];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    double_integers<LANES>(lifted + 2 * i * LANES, grid, sums[2 * i]);
    double_integers<LANES>(lifted + (2 * i + 1) * LANES, grid, sums[2 * i + 1]);
    add_halves<LANES, false>(words[i], sums[2 * i], std::make_integer_sequence<int, 2 * LANES>());
    add_halves<LANES, true>(words[i], sums[2 * i + 1], std::make_integer_sequence<int, 2 * LANES>());
  }
  store_codes<LANES>(sums, codes);
}

template <int LANES>
MQ_INLINE uint32_t stochastic_codes_in(const float* lifted, const float* next, int64_t n, const Grid& grid,
                                       Stream stream, int64_t first, uint8_t* __restrict codes) {
  Words<LANES> states[2];
  const uint32_t start = stream.start + static_cast<uint32_t>(first / 2) * stream.stride;
  for (int i = 0; i < LANES; ++i) states[0][i] = start + word_in_lane(i, LANES) * stream.stride;
  states[1] = states[0] + LANES * stream.stride;
  return for_each_block_with_next(lifted, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    for (int64_t i = 0; i < kBlock; i += 4 * LANES) {
      Words<LANES> words[] = {states[0], states[1]};
      for (int k = 0; k < 2; ++k) {
        mix_in_place(words[k]);
        states[k] += 2 * LANES * stream.stride;
      }
      round_vectors<LANES>(block + i, grid, words, codes + at + i);
    }
  });
}

MQ_VERSION("arch=x86-64-v4") uint32_t codes_of(const float* lifted, const float* next, int64_t n, const Grid& grid,
                                               Stream stream, int64_t first, uint8_t* codes) {
  return stochastic_codes_in<16>(lifted, next, n, grid, stream, first, codes);
}

MQ_VERSION("avx2") uint32_t codes_of(const float* lifted, const float* next, int64_t n, const Grid& grid, Stream stream,
                                     int64_t first, uint8_t* codes) {
  return stochastic_codes_in<8>(lifted, next, n, grid, stream, first, codes);
}

MQ_VERSION("default")
#else
MQ_CLONES
#endif
uint32_t codes_of(const float* lifted, const float* next, int64_t n, const Grid& grid, Stream stream, int64_t first,
                  uint8_t* __restrict codes) {
  constexpr int64_t kWords = kBlock / 2;
  const uint32_t start = stream.start + static_cast<uint32_t>(first / 2) * stream.stride;
  uint32_t steps[kWords];
  for (uint32_t k = 0; k < kWords; ++k) steps[k] = k * stream.stride;
  return for_each_block_with_next(lifted, next, n, [&](const float* block, int64_t at) MQ_ALWAYS_INLINE {
    const uint32_t base = start + static_cast<uint32_t>(at / 2) * stream.stride;
    uint32_t words[kWords];
    for (int64_t k = 0; k < kWords; ++k) words[k] = mix32(base + steps[k]);
    uint16_t halves[kBlock];
    std::memcpy(halves, words, sizeof(words));
    for (int64_t i = 0; i < kBlock; ++i) codes[at + i] = stochastic_code(block[i], grid, dither_from_half(halves[i]));
  });
}

}  // namespace

uint32_t stochastic_codes(const float* lifted, const float* next, int64_t n, const Grid& grid, Stream stream,
                          int64_t first, uint8_t* codes) {
  return codes_of(lifted, next, n, grid, stream, first, codes);
}

}  // namespace mqgrad
