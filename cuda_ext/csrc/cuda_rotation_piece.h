// A rotated bucket of one piece, 512 elements, in the registers of a warp.
#pragma once

#include "cuda_piece.h"
#include "cuda_rotation.h"
#include "cuda_rotation_parts.h"

namespace mqgrad::cuda {

// Note [Rotated pieces]
//
// A bucket is a matrix of 32 rows of 16 columns, Note [Rotation], of which a lane has 16 elements in one of two orders:
//
//     by rows     lane l has column l % 16 of the rows 16 * (l / 16) + j, j = 0..15: as elements are loaded and stored
//     by columns  lane l has row l: as sums are taken, and codes packed and unpacked
//
// All four stages of the columns are done in registers, and four of the five of the rows; the fifth takes what the lane
// 16 further on has. From one order to the other the matrix goes through shared memory, where a row is 17 elements long:
// so no two lanes are at the same bank.
constexpr int kMatrixColumns = static_cast<int>(kRotationColumns);
constexpr int kMatrixStride = kMatrixColumns + 1;
static_assert(kPiece == kPieceBucket, "a piece must be a bucket");
static_assert(kPiece == kLanes * kMatrixColumns && kPerLane == kMatrixColumns, "a lane must have a row, or half a column");

union PieceRoom {
  float matrix[kLanes * kMatrixStride];
  PieceCodes codes;
};

__device__ __forceinline__ int first_row() {
  return static_cast<int>(threadIdx.x) / kMatrixColumns * kMatrixColumns;
}

__device__ __forceinline__ int lane_column() {
  return static_cast<int>(threadIdx.x) % kMatrixColumns;
}

// Of the bucket, that a lane's j-th is by rows.
__device__ __forceinline__ int element_by_rows(int j) {
  return (first_row() + j) * kMatrixColumns + lane_column();
}

// Of a lane's elements by rows, a bit each. Two of them share a word of the stream, of which the bucket has sixteen.
__device__ __forceinline__ uint32_t lane_signs(uint64_t seed, PieceCodes& room) {
  const Stream stream = random_stream(seed, 0);
  __syncwarp();  // the room may still be read
  if (threadIdx.x < kPiece / 32) room.quads[threadIdx.x] = random_word(stream, threadIdx.x);
  __syncwarp();
  uint32_t signs = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; j += 2) {
    const uint32_t word = room.quads[(first_row() + j) / 2] >> lane_column();
    signs |= ((word & 1) | (word >> kMatrixColumns & 1) << 1) << j;
  }
  return signs;
}

// Or the compiler would spread them over sixteen registers for the whole loop, a sign bit each.
__device__ __forceinline__ void keep_in_one_register(uint32_t& signs) {
  asm volatile("" : "+r"(signs));
}

__device__ __forceinline__ float with_sign(float v, uint32_t signs, int j) {
  return float_from_bits(float_bits(v) ^ (signs << (31 - j) & kSignBit));
}

template <typename T>
__device__ __forceinline__ void load_by_rows(const T* piece, int length, float* v) {
  if (length == kPiece) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) v[j] = static_cast<float>(piece[element_by_rows(j)]);
    return;
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = element_by_rows(j);
    v[j] = i < length ? static_cast<float>(piece[i]) : 0.0f;
  }
}

__device__ __forceinline__ void store_by_rows(const float* v, int length, float* piece) {
  if (length == kPiece) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) piece[element_by_rows(j)] = v[j];
    return;
  }
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    if (element_by_rows(j) < length) piece[element_by_rows(j)] = v[j];
  }
}

__device__ __forceinline__ void rows_to_columns(float* v, PieceRoom& room) {
  __syncwarp();  // the room may still be read
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) room.matrix[(first_row() + j) * kMatrixStride + lane_column()] = v[j];
  __syncwarp();
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) v[c] = room.matrix[static_cast<int>(threadIdx.x) * kMatrixStride + c];
}

__device__ __forceinline__ void columns_to_rows(float* v, PieceRoom& room) {
  __syncwarp();  // the room may still be read
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) room.matrix[static_cast<int>(threadIdx.x) * kMatrixStride + c] = v[c];
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) v[j] = room.matrix[(first_row() + j) * kMatrixStride + lane_column()];
}

// The stages of the bits of the row, ascending, by rows.
__device__ __forceinline__ void transform_rows(float* v) {
  butterflies<kPerLane>(v);
  const float sign = threadIdx.x < kLanes / 2 ? 1.0f : -1.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const float other = __shfl_xor_sync(0xffffffffu, v[j], kLanes / 2);
    v[j] = __fmaf_rn(v[j], sign, other);  // a + b or a - b, as the product is exact
  }
}

// From x, by rows, to y = H D x, by columns.
__device__ __forceinline__ void rotate(float* v, uint32_t signs, PieceRoom& room) {
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) v[j] = with_sign(v[j], signs, j);
  transform_rows(v);
  rows_to_columns(v, room);
  butterflies<kPerLane>(v);
}

// From codewords c, by columns, to scale * D H c, by rows. The order of the stages is free, as c are whole numbers.
__device__ __forceinline__ void rotate_back(float* v, float scale, uint32_t signs, PieceRoom& room) {
  butterflies<kPerLane>(v);
  columns_to_rows(v, room);
  transform_rows(v);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) v[j] *= with_sign(scale, signs, j);
}

// Adds the second half to the first until one is left.
template <int COUNT>
__device__ __forceinline__ void fold(float* terms) {
  if constexpr (COUNT > 1) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) terms[i] += terms[i + COUNT / 2];
    fold<COUNT / 2>(terms);
  }
}

// Over the tree of positions, Note [Rotation], of a term for each element by columns: first those of a row, then the rows.
__device__ __forceinline__ float sum_over_positions(float* terms) {
  fold<kPerLane>(terms);
  float sum = terms[0];
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  return sum;
}

// BITS bits of a little-endian bit stream from `bit` on, read as words of the type, which may be two.
template <int BITS, typename Word>
__device__ __forceinline__ uint32_t load_bits(const uint8_t* in, int bit) {
  constexpr int kWordBits = 8 * sizeof(Word);
  const Word* words = reinterpret_cast<const Word*>(in) + static_cast<unsigned>(bit) / kWordBits;
  const unsigned shift = static_cast<unsigned>(bit) % kWordBits;
  uint32_t bits = static_cast<uint32_t>(words[0]) >> shift;
  if (kWordBits % BITS != 0 && shift + BITS > kWordBits) bits |= static_cast<uint32_t>(words[1]) << (kWordBits - shift);
  return bits & ((1u << BITS) - 1);
}

// By columns: in the place of y its codewords, a code a byte in the room, and the bucket's scale.
template <int BITS>
__device__ __forceinline__ float choose_codewords(float* y, bool unbiased, PieceCodes& codes) {
  float products[kPerLane], squares[kPerLane];
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) products[c] = float_from_bits(abs_bits(y[c]));
  const RotatedUnit unit = rotated_unit<BITS>(sum_over_positions(products), kPiece);
  __syncwarp();  // the room may still be read
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) {
    const float u = y[c] * unit.inverse;
    const Codeword nearest = nearest_codeword<BITS>(u);
    const float term = unbiased ? u : nearest.word;
    products[c] = u * nearest.word;
    squares[c] = term * term;
    codes.bytes[c * kLanes + threadIdx.x] = static_cast<uint8_t>(nearest.code);
    y[c] = nearest.word;
  }
  return rotated_scale(unit, unbiased, sum_over_positions(products), sum_over_positions(squares), kPiece);
}

// By columns, from the codes of a bucket, read as words of the type. `table`: the codewords of all codes, in shared memory.
// The codes of a lane are 32 apart: what the warp reads at a time lies together.
template <int BITS, typename Word>
__device__ __forceinline__ void load_codewords_as(const uint8_t* packed, const float* table, float* v) {
#pragma unroll
  for (int c = 0; c < kPerLane; ++c) {
    v[c] = table[load_bits<BITS, Word>(packed + c * kLanes * BITS / 8, static_cast<int>(threadIdx.x) * BITS)];
  }
}

template <int BITS>
__device__ __forceinline__ void load_codewords(const uint8_t* packed, const float* table, float* v) {
  if (reinterpret_cast<uintptr_t>(packed) % sizeof(uint32_t) == 0) {
    load_codewords_as<BITS, uint32_t>(packed, table, v);
  } else {
    load_codewords_as<BITS, uint8_t>(packed, table, v);
  }
}

}  // namespace mqgrad::cuda
