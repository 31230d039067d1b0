// Finds the largest magnitudes of a vector in one pass over it, and nearly always no second one:
//
// 1. A sample says above which magnitude a little more than `count` elements should lie.
// 2. One pass finds the maximum and collects all elements from that bound on.
// 3. A histogram of what was collected gives the exact threshold; of equal magnitudes the first are kept.
// 4. What the levels of the code would serve badly is dropped, Note [Sparse levels].
#include <cmath>
#include <functional>

#include "clones.h"
#include "feedback.h"
#include "kernels.h"
#include "sparse_select.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define MQ_COMPRESS 1
#endif

namespace mqgrad {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kLanes = 16;  // what the collecting pass may write beyond the last element
constexpr int64_t kFewestSamples = 4096;  // one of 64 elements, from this many to the most: what they cost, and what is
constexpr int64_t kMostSamples = 32768;   // collected in vain with fewer, are about as long
constexpr uint32_t kBins = 4096;

// Writes offset and value of the elements whose key is at least `lowest`; raises `top` to the largest key.
MQ_CLONES int64_t collect_portable(const float* v, int64_t n, uint32_t lowest, uint32_t* offsets, float* values,
                                   uint32_t& top) {
  int64_t found = 0;
  for (int64_t at = 0; at < n; at += kLanes) {
    const int64_t end = std::min(at + kLanes, n);
    uint32_t max = 0;
    for (int64_t i = at; i < end; ++i) max = std::max(max, abs_bits(v[i]));
    if (max < lowest) continue;  // where few are kept, most groups hold none
    top = std::max(top, max);
    for (int64_t i = at; i < end; ++i) {
      offsets[found] = static_cast<uint32_t>(i);
      values[found] = v[i];
      found += abs_bits(v[i]) >= lowest;
    }
  }
  return found;
}

#ifdef MQ_COMPRESS
__attribute__((target("avx512f"))) int64_t collect_avx512(const float* v, int64_t n, uint32_t lowest,
                                                          uint32_t* offsets, float* values, uint32_t& top) {
  const __m512i bound = _mm512_set1_epi32(static_cast<int>(lowest));
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i offset = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512i max = _mm512_set1_epi32(static_cast<int>(top));
  int64_t found = 0;
  for (int64_t at = 0; at < n; at += kLanes) {
    const __mmask16 inside = n - at >= kLanes ? 0xffff : static_cast<__mmask16>((1u << (n - at)) - 1);
    const __m512i bits = _mm512_maskz_loadu_epi32(inside, v + at);
    const __m512i keys = _mm512_and_si512(bits, magnitude);
    const __mmask16 kept = _mm512_mask_cmpge_epu32_mask(inside, keys, bound);
    max = _mm512_max_epu32(max, keys);
    _mm512_storeu_si512(offsets + found, _mm512_maskz_compress_epi32(kept, offset));
    _mm512_storeu_si512(values + found, _mm512_maskz_compress_epi32(kept, bits));
    found += __builtin_popcount(kept);
    offset = _mm512_add_epi32(offset, _mm512_set1_epi32(static_cast<int>(kLanes)));
  }
  top = _mm512_reduce_max_epu32(max);
  return found;
}
#endif

using Collect = int64_t (*)(const float*, int64_t, uint32_t, uint32_t*, float*, uint32_t&);

Collect best_collect() {
#ifdef MQ_COMPRESS
  if (__builtin_cpu_supports("avx512f")) return collect_avx512;
#endif
  return collect_portable;
}

MQ_CLONES void compensate(const float* x, const float* residual, int64_t n, float alpha, float* v) {
  for (int64_t i = 0; i < n; ++i) v[i] = compensated(x[i], residual[i], alpha);
}

// v = x, or x + alpha * residual, computed anew in each pass, which is cheaper than memory for all of it.
class Vector {
 public:
  Vector(const Scattered& x, const SparseArguments& a) : x_(x), a_(a) {}

  // v[first .. first + n), in `scratch` where it has to be computed.
  const float* block(int64_t first, int64_t n, float* scratch) const {
    const float* x = x_.floats(first, n, scratch);
    if (!a_.residual) return x;
    compensate(x, a_.residual + first, n, a_.alpha, scratch);
    return scratch;
  }

  // Of every stride-th element.
  std::vector<uint32_t> keys(int64_t stride) const {
    std::vector<float> values, owed;
    values.reserve(a_.layout.numel / stride + 1);
    if (a_.residual) owed.reserve(values.capacity());
    int64_t i = 0;
    x_.read(0, a_.layout.numel, 1, [&](const void* x, ScalarType dtype, int64_t from, int64_t to) {
      float scratch;
      for (; i < to; i += stride) {
        values.push_back(*as_floats(x, dtype, i - from, 1, &scratch));
        if (a_.residual) owed.push_back(a_.residual[i]);
      }
    });
    if (a_.residual) compensate(values.data(), owed.data(), static_cast<int64_t>(values.size()), a_.alpha, values.data());
    std::vector<uint32_t> keys(values.size());
    for (size_t k = 0; k < keys.size(); ++k) keys[k] = abs_bits(values[k]);
    return keys;
  }

 private:
  const Scattered& x_;
  const SparseArguments& a_;
};

// Elements whose key is at least `lowest` > 0, and the largest key of all.
Selection collect(const Vector& vector, const SparseLayout& layout, uint32_t lowest) {
  const int64_t numel = layout.numel;
  const Collect collect_block = best_collect();
  std::vector<Kept> ranges((numel + kSparseRange - 1) / kSparseRange);
  std::vector<uint32_t> tops(ranges.size());
  for_ranges(numel, [&](int64_t r, int64_t begin, int64_t end) {
    float scratch[kSparseBlock], values[kSparseBlock + kLanes];
    uint32_t offsets[kSparseBlock + kLanes];
    const int64_t expected = 2 * layout.count / static_cast<int64_t>(ranges.size());
    ranges[r].offsets.reserve(expected);
    ranges[r].values.reserve(expected);
    for (int64_t first = begin; first < end; first += kSparseBlock) {
      const int64_t n = std::min(kSparseBlock, end - first);
      const int64_t found = collect_block(vector.block(first, n, scratch), n, lowest, offsets, values, tops[r]);
      for (int64_t i = 0; i < found; ++i) offsets[i] += static_cast<uint32_t>(first - begin);
      ranges[r].offsets.insert(ranges[r].offsets.end(), offsets, offsets + found);
      ranges[r].values.insert(ranges[r].values.end(), values, values + found);
    }
  });
  return {*std::max_element(tops.begin(), tops.end()), std::move(ranges)};
}

uint32_t nth_largest(std::vector<uint32_t>& keys, int64_t n) {
  std::nth_element(keys.begin(), keys.begin() + n, keys.end(), std::greater<>());
  return keys[n];
}

// A key below which the `count` largest hardly ever reach, from a sample. It saves time and does not show in the result.
uint32_t sampled_bound(const Vector& vector, const SparseLayout& layout) {
  if (layout.numel < 4 * kFewestSamples) return 1;
  const int64_t samples = std::clamp(layout.numel / 64, kFewestSamples, kMostSamples);
  const int64_t stride = layout.numel / samples | 1;  // odd: not in step with the rows of a matrix
  std::vector<uint32_t> keys = vector.keys(stride);
  const double expected = static_cast<double>(layout.count) / layout.numel * keys.size();
  const int64_t rank = static_cast<int64_t>(expected + 5 * std::sqrt(expected)) + 8;
  if (rank >= static_cast<int64_t>(keys.size())) return 1;
  return std::max(nth_largest(keys, rank), 1u);
}

int64_t size_of(const std::vector<Kept>& ranges) {
  int64_t size = 0;
  for (const Kept& range : ranges) size += range.values.size();
  return size;
}

struct Threshold {
  uint32_t key;
  int64_t ties;  // how many with exactly this key are kept
};

// Of `count` elements among more candidates, whose keys are from `lowest` to the top.
Threshold threshold_of(const Selection& found, int64_t count, uint32_t lowest) {
  int shift = 0;
  while ((found.top - lowest) >> shift >= kBins) ++shift;
  std::vector<int64_t> bins(kBins);
  for (const Kept& range : found.ranges) {
    for (float value : range.values) ++bins[(abs_bits(value) - lowest) >> shift];
  }
  uint32_t bin = (found.top - lowest) >> shift;
  for (; bins[bin] < count; --bin) count -= bins[bin];
  std::vector<uint32_t> keys;  // of the bin in which the last one lies
  for (const Kept& range : found.ranges) {
    for (float value : range.values) {
      if ((abs_bits(value) - lowest) >> shift == bin) keys.push_back(abs_bits(value));
    }
  }
  const uint32_t key = nth_largest(keys, count - 1);
  return {key, count - std::count_if(keys.begin(), keys.end(), [=](uint32_t other) { return other > key; })};
}

void keep_from(Threshold threshold, std::vector<Kept>& ranges) {
  for (Kept& range : ranges) {
    size_t n = 0;
    for (size_t i = 0; i < range.values.size(); ++i) {
      const uint32_t key = abs_bits(range.values[i]);
      range.offsets[n] = range.offsets[i];
      range.values[n] = range.values[i];
      n += key == threshold.key ? threshold.ties-- > 0 : key > threshold.key;
    }
    range.offsets.resize(n);
    range.values.resize(n);
  }
}

uint32_t floor_of(const Selection& found) {
  int64_t counts[kHalfOctaves] = {};
  for (const Kept& range : found.ranges) {
    for (float value : range.values) ++counts[(found.top - abs_bits(value)) / kHalfOctave];
  }
  return best_floor(counts, found.top);
}

}  // namespace

Selection select_largest(const Scattered& x, const SparseArguments& arguments) {
  const Vector vector(x, arguments);
  const SparseLayout& layout = arguments.layout;
  const int64_t count = layout.count;
  uint32_t bound = sampled_bound(vector, layout);
  Selection found = collect(vector, layout, bound);
  if (found.top >= kInfinityBits || found.top == 0) return found;
  const uint32_t lowest = lowest_key(found.top);
  if (bound > lowest && size_of(found.ranges) < count) found = collect(vector, layout, bound = lowest);
  Threshold threshold{0, 0};
  if (size_of(found.ranges) > count) threshold = threshold_of(found, count, bound);
  if (threshold.key < lowest) threshold = {lowest - 1, 0};
  keep_from(threshold, found.ranges);
  const uint32_t floor = floor_of(found);
  if (floor > lowest) keep_from({floor - 1, 0}, found.ranges);
  return found;
}

}  // namespace mqgrad
