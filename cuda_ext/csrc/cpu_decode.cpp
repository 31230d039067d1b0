// From payloads to values on the CPU, in chunks that stay in the L1 cache.
#include <algorithm>

#include "clones.h"
#include "code_values.h"
#include "kernels.h"
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

}  // namespace

void decode_range(const uint8_t* payload, const Layout& layout, int64_t begin, int64_t end, bool add, float* out) {
  const auto values = add ? add_values : write_values;
  const Levels levels(layout.bits);
  uint8_t unpacked[kChunk];
  int64_t bucket = begin / layout.bucket_size;
  int64_t bucket_end = (bucket + 1) * layout.bucket_size;
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t chunk_end = std::min(at + kChunk, end);
    const uint8_t* codes = payload + layout.scale_bytes() + at / 8 * layout.bits;
    // To ask for all lines gains a fifth where memory is far away, and costs a tenth where a cache has it.
    prefetch_pages_after(out + (at - begin), 4 * (chunk_end - at));
    if (layout.bits < 8) {
      unpack(layout.bits, codes, chunk_end - at, unpacked);
      codes = unpacked;
    }
    for (int64_t i = at; i < chunk_end;) {
      const int64_t n = std::min(bucket_end, chunk_end) - i;
      values(levels, codes + (i - at), n, load_scale(payload, bucket), out + (i - begin));
      i += n;
      if (i < bucket_end) continue;
      bucket += 1;
      bucket_end += layout.bucket_size;
    }
  }
}

}  // namespace mqgrad
