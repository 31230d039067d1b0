// From payloads to values on the CPU, in chunks that stay in the L1 cache.
#include <algorithm>

#include "clones.h"
#include "code_values.h"
#include "kernels.h"
#include "look_up.h"
#include "payload.h"
#include "prefetch.h"

namespace mqgrad {
namespace {

MQ_CLONES void write_values(const Levels& levels, const uint8_t* __restrict codes, int64_t n, float scale,
                            float* __restrict out) {
  for_each_value(levels, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE { out[i] = value; });
}

MQ_CLONES void add_values(const Levels& levels, const uint8_t* __restrict codes, int64_t n, float scale,
                          float* __restrict out) {
  for_each_value(levels, codes, n, scale, [&](int64_t i, float value) MQ_ALWAYS_INLINE { out[i] += value; });
}

// Calls f(i, n, bucket) for each stretch [i, i + n) of [begin, end) that lies within one bucket.
template <typename F>
MQ_INLINE void for_each_stretch(const Layout& layout, int64_t begin, int64_t end, const F& f) {
  int64_t bucket = begin / layout.bucket_size;
  for (int64_t i = begin; i < end; ++bucket) {
    const int64_t n = std::min((bucket + 1) * layout.bucket_size, end) - i;
    f(i, n, bucket);
    i += n;
  }
}

void decode_in_chunks(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  const auto values = add ? add_values : write_values;
  const Levels levels(layout.bits);
  uint8_t unpacked[kChunk];
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, end);
    const uint8_t* codes = payload + layout.scale_bytes() + at / 8 * layout.bits;
    // To ask for all lines gains a fifth where memory is far away, and costs a tenth where a cache has it.
    prefetch_pages_after(out + (at - begin), 4 * (chunk_end - at));
    if (layout.bits < 8) {
      unpack(layout.bits, codes, chunk_end - at, unpacked);
      codes = unpacked;
    }
    for_each_stretch(layout, at, chunk_end, [&](int64_t i, int64_t n, int64_t bucket) {
      values(levels, codes + (i - at), n, load_scale(payload, bucket), out + (i - begin));
    });
  }
}

// [begin, end) are multiples of kLookedUp, as the bucket size is.
void decode_looked_up(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  const Levels levels(layout.bits);
  for_each_stretch(layout, begin, end, [&](int64_t i, int64_t n, int64_t bucket) {
    prefetch_pages_after(out + (i - begin), 4 * n);
    const Table table(levels, load_scale(payload, bucket));
    look_up(table, payload + layout.scale_bytes() + i / 8 * layout.bits, n, add, out + (i - begin));
  });
}

int64_t round_down(int64_t i) {
  return i / kLookedUp * kLookedUp;
}

}  // namespace

void decode_range(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  int64_t first = end, last = end;  // of what is looked up
  if (can_look_up(layout.bits) && layout.bucket_size % kLookedUp == 0) {
    first = std::min(round_down(begin + kLookedUp - 1), end);
    last = std::max(round_down(end), first);
  }
  decode_in_chunks(payload, layout, begin, first, add, out);
  decode_looked_up(payload, layout, first, last, add, out + (first - begin));
  decode_in_chunks(payload, layout, last, end, add, out + (last - begin));
}

}  // namespace mqgrad
