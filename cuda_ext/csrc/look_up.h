// Values of codes, looked up in vectors.
#pragma once

#include "code_values.h"

namespace mqgrad {

// Note [Looking up values]
//
// Up to four bits, the values of all codes fit one register, or two of eight lanes, in which one instruction looks up a
// vector of codes. These need not be unpacked: each lane takes the word of the stream that its code is in and shifts
// the code to the lowest bits, where the instruction looks. What is left above chooses among copies of the table.
constexpr int kTable = 16;         // values
constexpr int64_t kLookedUp = 16;  // codes at a time: whole bytes, whatever the width

struct Table {
  Table(const Levels& levels, float scale) : bits(levels.bits) {
    uint8_t codes[kTable];
    for (int c = 0; c < kTable; ++c) codes[c] = static_cast<uint8_t>(c & ((1 << bits) - 1));
    for_each_value(levels, codes, kTable, scale, [&](int64_t c, float value) { values[c] = value; });
  }

  int bits;
  float values[kTable];
};

// Whether this processor has instructions for it.
bool can_look_up(int bits);

// Values of n codes, a multiple of kLookedUp, from the byte `packed` on.
void look_up(const Table& table, const uint8_t* packed, int64_t n, bool add, float* out);

}  // namespace mqgrad
