// The sparse code on raw pointers; Note [Sparse payload] in sparse_math.h.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include "scattered.h"
#include "sparse_math.h"

namespace mqgrad {

struct SparseArguments {
  SparseLayout layout;
  float* residual;  // or nullptr: no feedback
  double alpha;
  double beta;

  // On CUDA. The CPU's kernels take a vector that is scattered.
  const void* x = nullptr;
  torch::headeronly::ScalarType dtype = torch::headeronly::ScalarType::Float;  // or Double, Half, BFloat16
};

// Selects and keeps errors with all of torch's threads, and writes the few entries with one; the bytes do not depend on how
// many. `payload` need not be initialised.
void encode_sparse(const Scattered& x, const SparseArguments& arguments, uint8_t* payload);

// Decodes a payload from its first element to its last, with one thread: an entry's place depends on those before it.
class SparseReader {
 public:
  SparseReader(const uint8_t* payload, const SparseLayout& layout);

  // Adds the elements from where the last call ended up to `end` to out[0] and on.
  void add_until(int64_t end, float* out);

 private:
  void add_entries(int64_t end, float* out);

  SparseLayout layout_;
  bool is_nan_ = false;
  const uint8_t* high_ = nullptr;
  const uint8_t* entries_ = nullptr;
  int64_t entry_bytes_ = 0;
  float values_[1 << kValueBits];  // of each code of sign and level

  int64_t begin_ = 0;    // of what the next call adds
  int64_t entry_ = 0;    // the next one
  uint64_t ones_ = 0;    // those left of the high parts read last, whose first bit is at ones_at_
  int64_t ones_at_ = 0;
  int64_t high_at_ = 0;  // what has not been read of them
  int64_t last_ = -1;    // the largest index so far
};

// Adds a payload to `out`.
void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out);

// The mean of payloads that are `stride` bytes apart, a block at a time, whose sum stays in the cache.
void decode_sparse_mean(const uint8_t* payloads, int64_t count, int64_t stride, const SparseLayout& layout,
                        const Scattered& out);

}  // namespace mqgrad
