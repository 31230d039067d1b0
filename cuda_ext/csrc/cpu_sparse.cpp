// The sparse code on the CPU: find the largest magnitudes of a vector, write them down, and read them back.
#include "sparse_select.h"

#include <algorithm>
#include <array>

#include "clones.h"
#include "feedback.h"
#include "kernels.h"
#include "reduce.h"

namespace mqgrad {
namespace {

// Appends to a little-endian bit string.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* at) : at_(at) {}

  void put(uint64_t value, int bits) {  // at most 32
    word_ |= value << fill_;
    fill_ += bits;
    if (fill_ < 32) return;
    std::memcpy(at_, &word_, 4);
    at_ += 4;
    word_ >>= 32;
    fill_ -= 32;
  }

  void finish() {
    for (; fill_ > 0; fill_ -= 8, word_ >>= 8) *at_++ = static_cast<uint8_t>(word_);
  }

 private:
  uint8_t* at_;
  uint64_t word_ = 0;
  int fill_ = 0;
};

constexpr int64_t kWordBits = 56;  // that can be read at once, from any bit on

uint64_t read_bits(const uint8_t* base, int64_t bytes, int64_t bit, int count) {
  uint64_t word = 0;
  const int64_t left = bytes - bit / 8;
  if (left >= 8) {
    std::memcpy(&word, base + bit / 8, 8);  // of a known size: one load
  } else {
    std::memcpy(&word, base + bit / 8, left);
  }
  return word >> (bit % 8) & ((uint64_t{1} << count) - 1);
}

// What each code of sign and level stands for.
using CodeValues = std::array<float, 1 << kValueBits>;

CodeValues code_values(SparseHeader header) {
  CodeValues values;
  for (uint32_t code = 0; code < values.size(); ++code) values[code] = sparse_value(code, header);
  return values;
}

uint32_t smallest_key(const Selection& selection) {
  uint32_t smallest = selection.top;
  for (const Kept& range : selection.ranges) {
    for (float value : range.values) smallest = std::min(smallest, abs_bits(value));
  }
  return smallest;
}

void write_high_parts(const SparseLayout& layout, const std::vector<Kept>& ranges, uint8_t* high) {
  uint64_t first = 0, entry = 0;
  for (const Kept& range : ranges) {
    for (uint32_t offset : range.offsets) {
      const uint64_t bit = ((first + offset) >> layout.low_bits) + entry++;
      high[bit / 8] |= static_cast<uint8_t>(1u << bit % 8);
    }
    first += kSparseRange;
  }
}

// Replaces each kept value by the one that is sent.
void write_entries(const SparseLayout& layout, SparseHeader header, std::vector<Kept>& ranges, uint8_t* entries) {
  const CodeValues values = code_values(header);
  BitWriter writer(entries);
  const uint32_t low_mask = (1u << layout.low_bits) - 1;  // the start of a range has no low bits
  for (Kept& range : ranges) {
    for (size_t i = 0; i < range.values.size(); ++i) {
      const uint32_t code = sparse_code(range.values[i], header);
      writer.put((range.offsets[i] & low_mask) << kValueBits | code, layout.entry_bits());
      range.values[i] = values[code];
    }
  }
  writer.finish();
}

// residual <- beta * residual + x, of which the old values remain in `before`.
MQ_CLONES void accumulate(const float* __restrict x, int64_t n, float beta, float* __restrict residual,
                          float* __restrict before) {
  for (int64_t i = 0; i < n; ++i) {
    before[i] = residual[i];
    residual[i] = next_residual(x[i], before[i], 0.0f, beta);
  }
}

void keep_error(const Scattered& vector, const SparseArguments& a, const std::vector<Kept>& sent) {
  for_ranges(a.layout.numel, [&](int64_t r, int64_t begin, int64_t end) {
    const std::vector<uint32_t>& offsets = sent[r].offsets;
    float scratch[kSparseBlock], before[kSparseBlock];
    size_t next = 0;
    for (int64_t first = begin; first < end; first += kSparseBlock) {
      const int64_t n = std::min(kSparseBlock, end - first), skipped = first - begin;
      const float* x = vector.floats(first, n, scratch);
      accumulate(x, n, a.beta, a.residual + first, before);
      for (; next < offsets.size() && offsets[next] < skipped + n; ++next) {
        const int64_t i = offsets[next] - skipped;
        a.residual[first + i] = next_residual(x[i], before[i], sent[r].values[next], a.beta);
      }
    }
  });
}

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

SparseReader::SparseReader(const uint8_t* payload, const SparseLayout& layout) : layout_(layout) {
  if (layout.numel == 0) return;
  const SparseHeader header = load_sparse_header(payload);
  is_nan_ = header.top >= kInfinityBits;
  const CodeValues values = code_values(header);
  std::copy(values.begin(), values.end(), values_);
  high_ = payload + kSparseHeaderBytes;
  entries_ = high_ + layout.high_bytes();
  entry_bytes_ = payload + layout.payload_bytes() - entries_;
}

void SparseReader::add_until(int64_t end, float* out) {
  if (is_nan_) {
    for (int64_t i = begin_; i < end; ++i) out[i - begin_] += float_from_bits(kNanBits);
  } else {
    add_entries(end, out);
  }
  begin_ = end;
}

void SparseReader::add_entries(int64_t end, float* out) {
  const int entry_bits = layout_.entry_bits();
  for (; entry_ < layout_.count; ++entry_, ones_ &= ones_ - 1) {
    for (; ones_ == 0; high_at_ += kWordBits) {
      const int64_t left = layout_.high_bits() - high_at_;
      if (left <= 0) return;
      ones_at_ = high_at_;
      ones_ = read_bits(high_, layout_.high_bytes(), high_at_, static_cast<int>(std::min(kWordBits, left)));
    }
    const int64_t part = ones_at_ + __builtin_ctzll(ones_) - entry_;
    const uint64_t word = read_bits(entries_, entry_bytes_, entry_ * entry_bits, entry_bits);
    const int64_t index = part << layout_.low_bits | static_cast<int64_t>(word >> kValueBits);
    if (index >= end) return;  // it is the next call's, which reads it again
    if (index > last_) out[index - begin_] += values_[word & ((1 << kValueBits) - 1)];
    last_ = std::max(last_, index);
  }
}

}  // namespace

void encode_sparse(const Scattered& x, const SparseArguments& arguments, uint8_t* payload) {
  const SparseLayout& layout = arguments.layout;
  if (layout.numel == 0) return;
  std::memset(payload, 0, layout.payload_bytes());
  Selection selection = select_largest(x, arguments);
  const uint32_t top = selection.top;
  if (top >= kInfinityBits) return store_sparse_header({top, top}, payload);  // and what is owed stays owed
  if (top > 0) {
    const SparseHeader header{smallest_key(selection), top};
    store_sparse_header(header, payload);
    uint8_t* high = payload + kSparseHeaderBytes;
    write_high_parts(layout, selection.ranges, high);
    write_entries(layout, header, selection.ranges, high + layout.high_bytes());
  }
  if (arguments.residual) keep_error(x, arguments, selection.ranges);
}

void decode_add_sparse(const uint8_t* payload, const SparseLayout& layout, float* out) {
  SparseReader(payload, layout).add_until(layout.numel, out);
}

void decode_sparse_mean(const uint8_t* payloads, int64_t count, int64_t stride, const SparseLayout& layout,
                        const Scattered& out) {
  if (layout.numel == 0) return;
  std::vector<SparseReader> readers;
  readers.reserve(count);
  for (int64_t k = 0; k < count; ++k) readers.emplace_back(payloads + k * stride, layout);
  out.write(0, layout.numel, 1, [&](float* values, int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at += kSparseBlock) {
      const int64_t end = std::min(at + kSparseBlock, to);
      float* block = values + (at - from);
      mean_of(count, end - at, block, [&](int64_t k) { readers[k].add_until(end, block); });
    }
  });
}

}  // namespace mqgrad
