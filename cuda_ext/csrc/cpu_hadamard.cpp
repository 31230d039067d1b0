// The Hadamard transform of one bucket: butterflies of columns, then of rows, which are transposed in registers.
//
// All versions add and subtract the same pairs in the same order, whatever the length of a vector.
#include "hadamard.h"

#include <algorithm>
#include <utility>

#include "clones.h"
#include "rotation.h"

namespace mqgrad {
namespace {

constexpr int64_t C = kRotationColumns;

// LANES neighbouring floats: what a register holds, if the target has registers of that size.
template <int LANES>
struct VectorOf {
  typedef float type __attribute__((vector_size(4 * LANES)));  // g++ ignores the attribute in an alias
};
template <int LANES>
using Vector = typename VectorOf<LANES>::type;

template <int LANES>
MQ_INLINE void load(const float* from, Vector<LANES>& to) {
  std::memcpy(&to, from, sizeof(to));
}

template <int LANES>
MQ_INLINE void store(const Vector<LANES>& from, float* to) {
  std::memcpy(to, &from, sizeof(from));
}

// The butterflies of COUNT vectors: neighbours first, or those farthest apart.
template <int LANES, int COUNT, bool DESCENDING>
MQ_INLINE void butterflies(Vector<LANES>* v) {
#pragma GCC unroll 16
  for (int stage = 1; stage < COUNT; stage *= 2) {
    const int distance = DESCENDING ? COUNT / 2 / stage : stage;
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; ++i) {
      if (i & distance) continue;
      const Vector<LANES> a = v[i], b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
}

// Stages at distances h, 2h, ..., RADIX / 2 * h, in place; h is a multiple of LANES.
template <int LANES, int RADIX>
MQ_INLINE void transform_pass(float* v, int64_t n, int64_t h) {
  for (int64_t i = 0; i < n; i += RADIX * h) {
    for (int64_t j = i; j < i + h; j += LANES) {
      Vector<LANES> rows[RADIX];
#pragma GCC unroll 16
      for (int k = 0; k < RADIX; ++k) load<LANES>(v + j + k * h, rows[k]);
      butterflies<LANES, RADIX, false>(rows);
#pragma GCC unroll 16
      for (int k = 0; k < RADIX; ++k) store<LANES>(rows[k], v + j + k * h);
    }
  }
}

// All stages from distance h on.
template <int LANES>
MQ_INLINE void transform_columns(float* v, int64_t n, int64_t h) {
  for (; 8 * h <= n; h *= 8) transform_pass<LANES, 8>(v, n, h);
  if (4 * h <= n) {
    transform_pass<LANES, 4>(v, n, h);
  } else if (2 * h <= n) {
    transform_pass<LANES, 2>(v, n, h);
  }
}

// Lane l of what a step of a transposition keeps: blocks of DISTANCE lanes of two vectors, of a the low and of b the high ones.
template <int LANES, int DISTANCE, bool HIGH>
constexpr int exchanged_lane(int l) {
  if (HIGH) return l & DISTANCE ? LANES + l : l + DISTANCE;
  return l & DISTANCE ? LANES + l - DISTANCE : l;
}

template <int LANES, int DISTANCE, int... L>
MQ_INLINE void exchange(Vector<LANES>& a, Vector<LANES>& b, std::integer_sequence<int, L...>) {
#if defined(__clang__) || __GNUC__ >= 12
  const Vector<LANES> low = __builtin_shufflevector(a, b, exchanged_lane<LANES, DISTANCE, false>(L)...);
  b = __builtin_shufflevector(a, b, exchanged_lane<LANES, DISTANCE, true>(L)...);
  a = low;
#else
  const Vector<LANES> from_a = a, from_b = b;
  a = Vector<LANES>{(L & DISTANCE ? from_b[L - DISTANCE] : from_a[L])...};
  b = Vector<LANES>{(L & DISTANCE ? from_b[L] : from_a[L + DISTANCE])...};
#endif
}

template <int LANES, int DISTANCE>
MQ_INLINE void transpose_steps(Vector<LANES>* v) {
  if constexpr (DISTANCE < LANES) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & DISTANCE) continue;
      exchange<LANES, DISTANCE>(v[i], v[i + DISTANCE], std::make_integer_sequence<int, LANES>());
    }
    transpose_steps<LANES, 2 * DISTANCE>(v);
  }
}

// C vectors: LANES rows of C floats, to C columns of LANES floats.
template <int LANES>
MQ_INLINE void load_columns(const float* rows, Vector<LANES>* columns) {
#pragma GCC unroll 4
  for (int part = 0; part < C / LANES; ++part) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) load<LANES>(rows + i * C + part * LANES, columns[part * LANES + i]);
    transpose_steps<LANES, 1>(columns + part * LANES);
  }
}

template <int LANES>
MQ_INLINE void store_rows(Vector<LANES>* columns, float* rows) {
#pragma GCC unroll 4
  for (int part = 0; part < C / LANES; ++part) {
    transpose_steps<LANES, 1>(columns + part * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) store<LANES>(columns[part * LANES + i], rows + i * C + part * LANES);
  }
}

// H along rows of C floats, and the transpose of it all.
template <int LANES>
MQ_INLINE void transform_rows(const float* v, int64_t num_rows, float* out) {
  for (int64_t row = 0; row < num_rows; row += LANES) {
    Vector<LANES> columns[C];
    load_columns<LANES>(v + row * C, columns);
    butterflies<LANES, C, false>(columns);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) store<LANES>(columns[c], out + c * num_rows + row);
  }
}

template <int LANES>
MQ_INLINE void transform_rows_back(const float* v, int64_t num_rows, float* out) {
  for (int64_t row = 0; row < num_rows; row += LANES) {
    Vector<LANES> columns[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) load<LANES>(v + c * num_rows + row, columns[c]);
    butterflies<LANES, C, true>(columns);
    store_rows<LANES>(columns, out + row * C);
  }
}

// Four rows or more.
template <int LANES>
MQ_INLINE void transform_lanes(float* v, int64_t n, float* out) {
  transform_columns<LANES>(v, n, C);
  n < LANES * C ? transform_rows<4>(v, n / C, out) : transform_rows<LANES>(v, n / C, out);
}

template <int LANES>
MQ_INLINE void transform_lanes_back(float* v, int64_t n, float* out) {
  n < LANES * C ? transform_rows_back<4>(v, n / C, out) : transform_rows_back<LANES>(v, n / C, out);
  transform_columns<LANES>(out, n, C);
}

#ifdef MQ_VERSIONS
#define MQ_VERSION(target_name) __attribute__((target(target_name)))
MQ_VERSION("arch=x86-64-v4") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<16>(v, n, out); }
MQ_VERSION("avx2") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<8>(v, n, out); }
MQ_VERSION("arch=x86-64-v4") void transform_many_rows_back(float* v, int64_t n, float* out) {
  transform_lanes_back<16>(v, n, out);
}
MQ_VERSION("avx2") void transform_many_rows_back(float* v, int64_t n, float* out) { transform_lanes_back<8>(v, n, out); }
#else
#define MQ_VERSION(target_name)
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
MQ_VERSION("default") void transform_many_rows(float* v, int64_t n, float* out) { transform_lanes<kLanes>(v, n, out); }
MQ_VERSION("default") void transform_many_rows_back(float* v, int64_t n, float* out) {
  transform_lanes_back<kLanes>(v, n, out);
}

// Fewer than four rows. One lane is enough.
void transpose(const float* v, int64_t rows, int64_t columns, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = v[r * columns + c];
  }
}

void transform_descending(float* v, int64_t n, int64_t h) {
  for (int64_t distance = n / 2; distance >= h; distance /= 2) transform_pass<1, 2>(v, n, distance);
}

}  // namespace

void transform(float* v, int64_t n, float* out) {
  if (n >= 4 * C) return transform_many_rows(v, n, out);
  const int64_t columns = std::min(n, C), rows = n / columns;
  transform_columns<1>(v, n, columns);
  transpose(v, rows, columns, out);
  transform_columns<1>(out, n, rows);
}

void transform_back(float* v, int64_t n, float* out) {
  if (n >= 4 * C) return transform_many_rows_back(v, n, out);
  const int64_t columns = std::min(n, C), rows = n / columns;
  transform_descending(v, n, rows);
  transpose(v, columns, rows, out);
  transform_columns<1>(out, n, columns);
}

}  // namespace mqgrad
