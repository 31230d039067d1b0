// The Hadamard transform of one bucket: butterflies of columns, then of rows, which are transposed in registers.
//
// All versions add and subtract the same pairs of floats in the same order, whatever the length of a vector. Codewords are
// transformed back as integers of 16 bits where those are exact, of which a register holds twice as many.
#include "hadamard.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "clones.h"
#include "rotation.h"

namespace mqgrad {
namespace {

constexpr int64_t C = kRotationColumns;

template <typename T, int LANES>
using Vector = typename VectorOf<T, LANES>::type;

template <typename T, int LANES>
MQ_INLINE void load(const T* from, Vector<T, LANES>& to) {
  std::memcpy(&to, from, sizeof(to));
}

// Each step has an instruction: all at once, g++ converts element by element.
template <int LANES>
MQ_INLINE void load(const int16_t* from, Vector<float, LANES>& to) {
  Vector<int16_t, LANES> integers;
  std::memcpy(&integers, from, sizeof(integers));
  to = __builtin_convertvector(__builtin_convertvector(integers, Vector<int32_t, LANES>), Vector<float, LANES>);
}

template <int LANES>
MQ_INLINE void load(const int16_t* from, Vector<int16_t, LANES>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <typename T, int LANES>
MQ_INLINE void store(const Vector<T, LANES>& from, T* to) {
  std::memcpy(to, &from, sizeof(from));
}

// The butterflies of COUNT vectors, neighbours first.
template <typename T, int LANES, int COUNT>
MQ_INLINE void butterflies(Vector<T, LANES>* v) {
#pragma GCC unroll 16
  for (int distance = 1; distance < COUNT; distance *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) {
      if (i & distance) continue;
      const Vector<T, LANES> a = v[i], b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
}

// Stages at distances h, 2h, ..., RADIX / 2 * h, in place; h is a multiple of LANES.
template <typename T, int LANES, int RADIX>
MQ_INLINE void transform_pass(T* v, int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; i += RADIX * h) {
    for (int64_t j = i; j < i + h; j += LANES) {
      Vector<T, LANES> rows[RADIX];
#pragma GCC unroll 16
      for (int k = 0; k < RADIX; ++k) load<T, LANES>(v + j + k * h, rows[k]);
      butterflies<T, LANES, RADIX>(rows);
#pragma GCC unroll 16
      for (int k = 0; k < RADIX; ++k) store<T, LANES>(rows[k], v + j + k * h);
    }
  }
}

// All stages from distance h on.
template <typename T, int LANES>
MQ_INLINE void transform_columns(T* v, int64_t n, int64_t h) {
  for (; 8 * h <= n; h *= 8) transform_pass<T, LANES, 8>(v, n, h);
  if (4 * h <= n) {
    transform_pass<T, LANES, 4>(v, n, h);
  } else if (2 * h <= n) {
    transform_pass<T, LANES, 2>(v, n, h);
  }
}

// Lane l of two vectors by turns, from the lower or the upper half of each 128 bits: one instruction, and so is what follows.
template <typename T, int LANES, bool UPPER>
constexpr int interleaved_lane(int l) {
  constexpr int kGroup = 16 / sizeof(T);
  return l % 2 * LANES + l / kGroup * kGroup + UPPER * kGroup / 2 + l % kGroup / 2;
}

// Lane l of what a step of a transposition keeps: blocks of DISTANCE lanes of two vectors, of a the low and of b the high ones.
template <int LANES, int DISTANCE, bool HIGH>
constexpr int exchanged_lane(int l) {
  if (HIGH) return l & DISTANCE ? LANES + l : l + DISTANCE;
  return l & DISTANCE ? LANES + l - DISTANCE : l;
}

#if defined(__clang__) || __GNUC__ >= 12
#define MQ_SHUFFLE(a, b, lanes) __builtin_shufflevector(a, b, lanes...)
#else
#define MQ_SHUFFLE(a, b, lanes) Vector<T, LANES>{(lanes < LANES ? a[lanes % LANES] : b[lanes % LANES])...}
#endif

template <typename T, int LANES, int... L>
MQ_INLINE void interleave(const Vector<T, LANES>& a, const Vector<T, LANES>& b, Vector<T, LANES>* both,
                          std::integer_sequence<int, L...>) {
  both[0] = MQ_SHUFFLE(a, b, (interleaved_lane<T, LANES, false>(L)));
  both[1] = MQ_SHUFFLE(a, b, (interleaved_lane<T, LANES, true>(L)));
}

template <typename T, int LANES, int DISTANCE, int... L>
MQ_INLINE void exchange(Vector<T, LANES>& a, Vector<T, LANES>& b, std::integer_sequence<int, L...>) {
  const Vector<T, LANES> low = MQ_SHUFFLE(a, b, (exchanged_lane<LANES, DISTANCE, false>(L)));
  b = MQ_SHUFFLE(a, b, (exchanged_lane<LANES, DISTANCE, true>(L)));
  a = low;
}

// Square blocks of as many vectors as elements are in 128 bits, each in its place. Its elements are numbered by the bits of
// row and column; to interleave the first half of the rows with the second moves a bit from one end to the other.
template <typename T, int LANES>
MQ_INLINE void transpose_blocks(Vector<T, LANES>* v) {
  constexpr int kGroup = 16 / sizeof(T);
#pragma GCC unroll 4
  for (int block = 0; block < LANES; block += kGroup) {
#pragma GCC unroll 4
    for (int bit = 1; bit < kGroup; bit *= 2) {
      Vector<T, LANES> rows[kGroup];
#pragma GCC unroll 4
      for (int i = 0; i < kGroup / 2; ++i) {
        interleave<T, LANES>(v[block + i], v[block + i + kGroup / 2], rows + 2 * i, std::make_integer_sequence<int, LANES>());
      }
#pragma GCC unroll 8
      for (int i = 0; i < kGroup; ++i) v[block + i] = rows[i];
    }
  }
}

template <typename T, int LANES, int DISTANCE>
MQ_INLINE void exchange_blocks(Vector<T, LANES>* v) {
  if constexpr (DISTANCE < LANES) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & DISTANCE) continue;
      exchange<T, LANES, DISTANCE>(v[i], v[i + DISTANCE], std::make_integer_sequence<int, LANES>());
    }
    exchange_blocks<T, LANES, 2 * DISTANCE>(v);
  }
}

// LANES vectors.
template <typename T, int LANES>
MQ_INLINE void transpose_vectors(Vector<T, LANES>* v) {
  transpose_blocks<T, LANES>(v);
  exchange_blocks<T, LANES, 16 / sizeof(T)>(v);
}

// C vectors: LANES rows of C elements, to C columns of LANES elements.
template <typename T, int LANES>
MQ_INLINE void load_columns(const T* rows, Vector<T, LANES>* columns) {
#pragma GCC unroll 4
  for (int part = 0; part < C / LANES; ++part) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) load<T, LANES>(rows + i * C + part * LANES, columns[part * LANES + i]);
    transpose_vectors<T, LANES>(columns + part * LANES);
  }
}

template <typename T, int LANES>
MQ_INLINE void store_rows(Vector<T, LANES>* columns, T* rows) {
#pragma GCC unroll 4
  for (int part = 0; part < C / LANES; ++part) {
    transpose_vectors<T, LANES>(columns + part * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) store<T, LANES>(columns[part * LANES + i], rows + i * C + part * LANES);
  }
}

// H along rows of C elements, and the transpose of it all.
template <int LANES>
MQ_INLINE void transform_rows(const float* v, int64_t num_rows, float* out) {
  for (int64_t row = 0; row < num_rows; row += LANES) {
    Vector<float, LANES> columns[C];
    load_columns<float, LANES>(v + row * C, columns);
    butterflies<float, LANES, C>(columns);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) store<float, LANES>(columns[c], out + c * num_rows + row);
  }
}

template <typename T, int LANES>
MQ_INLINE void transform_rows_back(const int16_t* words, int64_t num_rows, T* out) {
  for (int64_t row = 0; row < num_rows; row += LANES) {
    Vector<T, LANES> columns[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) load<LANES>(words + c * num_rows + row, columns[c]);
    butterflies<T, LANES, C>(columns);
    store_rows<T, LANES>(columns, out + row * C);
  }
}

// Four rows or more.
template <int LANES>
MQ_INLINE void transform_lanes(float* v, int64_t size, float* out) {
  with_usual_size(size, [=](int64_t n) MQ_ALWAYS_INLINE {
    transform_columns<float, LANES>(v, n, C);
    n < LANES * C ? transform_rows<4>(v, n / C, out) : transform_rows<LANES>(v, n / C, out);
  });
}

// Four rows or more, eight as integers.
template <typename T, int LANES>
MQ_INLINE void transform_lanes_back(const int16_t* words, int64_t size, T* out) {
  with_usual_size(size, [=](int64_t n) MQ_ALWAYS_INLINE {
    constexpr int kFewest = std::is_same_v<T, float> ? 4 : 8;
    n < LANES * C ? transform_rows_back<T, kFewest>(words, n / C, out) : transform_rows_back<T, LANES>(words, n / C, out);
    transform_columns<T, LANES>(out, n, C);
  });
}

#ifdef MQ_VERSIONS
MQ_VERSION("arch=x86-64-v4") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<16>(v, n, out); }
MQ_VERSION("avx2") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<8>(v, n, out); }
MQ_VERSION("arch=x86-64-v4") void transform_many_rows_back(const int16_t* words, int64_t n, float* out) {
  transform_lanes_back<float, 16>(words, n, out);
}
MQ_VERSION("avx2") void transform_many_rows_back(const int16_t* words, int64_t n, float* out) {
  transform_lanes_back<float, 8>(words, n, out);
}
MQ_VERSION("arch=x86-64-v4") void transform_integers_back(const int16_t* words, int64_t n, int16_t* out) {
  transform_lanes_back<int16_t, 16>(words, n, out);
}
MQ_VERSION("avx2") void transform_integers_back(const int16_t* words, int64_t n, int16_t* out) {
  transform_lanes_back<int16_t, 16>(words, n, out);
}
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
MQ_VERSION("default") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<kLanes>(v, n, out); }
MQ_VERSION("default") void transform_many_rows_back(const int16_t* words, int64_t n, float* out) {
  transform_lanes_back<float, kLanes>(words, n, out);
}
MQ_VERSION("default") void transform_integers_back(const int16_t* words, int64_t n, int16_t* out) {
  transform_lanes_back<int16_t, 8>(words, n, out);
}

// Fewer than four rows. One lane is enough.
void transpose(const float* v, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = v[r * columns + c];
  }
}

// For fewer than four rows.
void transform_few_rows_back(const int16_t* words, int64_t n, float* out) {
  const int64_t columns = std::min(n, C), rows = n / columns;
  float v[4 * C];
  std::copy_n(words, n, v);
  transform_columns<float, 1>(v, n, rows);
  transpose(v, columns, rows, out);
  transform_columns<float, 1>(out, n, columns);
}

bool is_exact_in_16_bits(int bits, int64_t n) {
  switch (bits) {
    case 1: return exact_in_16_bits<1>(n);
    case 2: return exact_in_16_bits<2>(n);
    case 3: return exact_in_16_bits<3>(n);
    default: return exact_in_16_bits<4>(n);
  }
}

}  // namespace

void transform(float* v, int64_t n, float* out) {
  if (n >= 4 * C) return transform_many_rows(v, n, out);
  const int64_t columns = std::min(n, C), rows = n / columns;
  transform_columns<float, 1>(v, n, columns);
  transpose(v, rows, columns, out);
  transform_columns<float, 1>(out, n, rows);
}

bool fits_16_bits(int bits, int64_t n) {
  return n >= 8 * C && is_exact_in_16_bits(bits, n);
}

void transform_codewords_back(const int16_t* words, int64_t n, int16_t* out) {
  transform_integers_back(words, n, out);
}

void transform_codewords_back(const int16_t* words, int64_t n, float* out) {
  n < 4 * C ? transform_few_rows_back(words, n, out) : transform_many_rows_back(words, n, out);
}

}  // namespace mqgrad
