// A vector that lies in several pieces of memory, as the gradients of a DDP bucket do: kernels read and write it where it
// is, but for what no piece holds as they need it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace mqgrad {

struct Piece {
  void* data;
  torch::headeronly::ScalarType dtype;  // Float, Double, Half or BFloat16
  int64_t begin;  // the element of the vector that lies first in `data`; may be before the vector
  int64_t end;    // behind the last one; may be behind the vector

  void* at(int64_t element) const { return static_cast<char*>(data) + (element - begin) * bytes_of(dtype); }
};

class Scattered {
 public:
  // Pieces in the order in which they lie in the vector; between and behind them it is zero.
  explicit Scattered(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}

  // What lies from an element on.
  Scattered from(int64_t element) const {
    std::vector<Piece> pieces = pieces_;
    for (Piece& piece : pieces) {
      piece.begin -= element;
      piece.end -= element;
    }
    return Scattered(std::move(pieces));
  }

  // Calls f(x, dtype, from, to) for ranges that together are [begin, end): x holds their elements. All of them but the last
  // one have a multiple of `unit`.
  template <typename F>
  void read(int64_t begin, int64_t end, int64_t unit, const F& f) const {
    std::vector<float> room;
    for (int64_t from = begin, to; from < end; from = to) {
      const Piece* piece = piece_of(from);
      to = piece ? whole_units(from, std::min(piece->end, end), end, unit) : from;
      if (to > from) {
        f(piece->at(from), piece->dtype, from, to);
        continue;
      }
      to = std::min(end, from + room_for(unit));
      room.resize(to - from);
      gather(from, to, room.data());
      f(room.data(), torch::headeronly::ScalarType::Float, from, to);
    }
  }

  // n elements from `first` on as fp32, without a copy where one piece holds them so: `room` is for the others.
  const float* floats(int64_t first, int64_t n, float* room) const {
    const Piece* piece = piece_of(first);
    if (piece && first + n <= piece->end) return as_floats(piece->at(first), piece->dtype, 0, n, room);
    gather(first, first + n, room);
    return room;
  }

  // Calls f(out, from, to) as `read` does; what f writes to `out` becomes these elements. What is zero is left out.
  template <typename F>
  void write(int64_t begin, int64_t end, int64_t unit, const F& f) const {
    std::vector<float> room;
    for (int64_t from = begin, to; from < end; from = to) {
      const Piece* piece = piece_of(from);
      const bool is_float = piece && piece->dtype == torch::headeronly::ScalarType::Float;
      to = is_float ? whole_units(from, std::min(piece->end, end), end, unit) : from;
      if (to > from) {
        f(static_cast<float*>(piece->at(from)), from, to);
        continue;
      }
      to = std::min(end, from + room_for(unit));
      room.resize(to - from);
      f(room.data(), from, to);
      scatter(from, to, room.data());
    }
  }

 private:
  // Elements that are gathered at a time: they stay in the cache, and what kernels set up for them costs little.
  static int64_t room_for(int64_t unit) { return std::max(unit, 4 * kChunk / unit * unit); }

  static int64_t whole_units(int64_t from, int64_t to, int64_t end, int64_t unit) {
    return to == end ? end : from + (to - from) / unit * unit;
  }

  std::vector<Piece>::const_iterator first_behind(int64_t element) const;
  const Piece* piece_of(int64_t element) const;
  void gather(int64_t from, int64_t to, float* values) const;
  void scatter(int64_t from, int64_t to, const float* values) const;

  std::vector<Piece> pieces_;
};

}  // namespace mqgrad
