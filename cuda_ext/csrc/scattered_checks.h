// What the ops demand of a vector that comes as several tensors.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "op_checks.h"
#include "scattered.h"

namespace mqgrad {

using Tensors = std::vector<Tensor>;
using Offsets = std::vector<int64_t>;

// Each tensor lies in the vector from its offset on. `beside` is what is written from them, or read for them.
inline void check_pieces(const Tensors& tensors, const Offsets& offsets, const Tensor& beside) {
  constexpr int64_t kFar = int64_t{1} << 56;
  STD_TORCH_CHECK(tensors.size() == offsets.size(), "mqgrad: ", tensors.size(), " tensors, but ", offsets.size(),
                  " offsets");
  int64_t end = -kFar;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_input(tensors[i], 1);
    STD_TORCH_CHECK(same_device(tensors[i], beside), "mqgrad: x must be on the device of the payload");
    STD_TORCH_CHECK(end <= offsets[i] && offsets[i] <= kFar, "mqgrad: tensor ", i, " cannot begin at ", offsets[i],
                    ", but from ", end, " to ", kFar);
    end = offsets[i] + tensors[i].numel();
    check_apart(beside, "payload", tensors[i], "x");
  }
}

inline Scattered read_from(const Tensors& tensors, const Offsets& offsets) {
  std::vector<Piece> pieces;
  pieces.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (t.numel() == 0) continue;  // it may have no memory
    pieces.push_back({const_cast<void*>(t.const_data_ptr()), t.scalar_type(), offsets[i], offsets[i] + t.numel()});
  }
  return Scattered(std::move(pieces));
}

inline Scattered written_to(const Tensors& tensors, const Offsets& offsets) {
  std::vector<std::pair<const char*, const char*>> extents;
  for (const Tensor& t : tensors) {
    const char* begin = static_cast<const char*>(t.mutable_data_ptr());
    if (t.numel() > 0) extents.emplace_back(begin, begin + extent(t));
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i) {
    STD_TORCH_CHECK(extents[i - 1].second <= extents[i].first, "mqgrad: tensors that are written must not share memory");
  }
  return read_from(tensors, offsets);
}

// On CUDA, whose kernels read and write one tensor.
inline const Tensor& only_piece(const Tensors& tensors, const Offsets& offsets, int64_t numel) {
  STD_TORCH_CHECK(tensors.size() == 1 && offsets[0] == 0 && tensors[0].numel() == numel,
                  "mqgrad: on CUDA a vector must be one tensor");
  return tensors[0];
}

// The residual of a vector that is read.
inline float* checked_residual(const std::optional<Tensor>& residual, int64_t numel, const Tensor& payload,
                               const Tensors& tensors) {
  if (!residual.has_value()) return nullptr;
  for (const Tensor& t : tensors) check_apart(*residual, "residual", t, "x");
  return checked_residual(residual, numel, payload);
}

}  // namespace mqgrad
