#include "scattered.h"

namespace mqgrad {

// The first piece that ends behind an element.
std::vector<Piece>::const_iterator Scattered::first_behind(int64_t element) const {
  return std::partition_point(pieces_.begin(), pieces_.end(), [=](const Piece& piece) { return piece.end <= element; });
}

const Piece* Scattered::piece_of(int64_t element) const {
  const auto piece = first_behind(element);
  return piece != pieces_.end() && piece->begin <= element ? &*piece : nullptr;
}

void Scattered::gather(int64_t from, int64_t to, float* values) const {
  std::fill(values, values + (to - from), 0.0f);
  for (auto piece = first_behind(from); piece != pieces_.end() && piece->begin < to; ++piece) {
    const int64_t first = std::max(from, piece->begin), last = std::min(to, piece->end);
    load_floats(piece->data, piece->dtype, first - piece->begin, last - first, values + (first - from));
  }
}

void Scattered::scatter(int64_t from, int64_t to, const float* values) const {
  for (auto piece = first_behind(from); piece != pieces_.end() && piece->begin < to; ++piece) {
    const int64_t first = std::max(from, piece->begin), last = std::min(to, piece->end);
    store_floats(values + (first - from), piece->dtype, first - piece->begin, last - first, piece->data);
  }
}

}  // namespace mqgrad
