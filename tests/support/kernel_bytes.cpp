// Prints a digest of what each kernel writes, for all widths, types and sizes: equal for every instruction set and
// processor, but for the signs of NaNs in decoded floats, which are left out.
#include <cmath>
#include <cstdio>
#include <string>

#include "bfloat16.h"
#include "checksum.h"
#include "figures.h"
#include "instruction_set.h"
#include "kernels.h"
#include "reduce.h"
#include "rotation_kernels.h"
#include "sparse.h"
#include "torch_library.h"

using namespace mqgrad;
using torch::headeronly::ScalarType;

namespace {

using Bytes = std::vector<uint8_t>;
using Floats = std::vector<float>;

constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16};
constexpr const char* kTypeNames[] = {"float32", "float64", "float16", "bfloat16"};
constexpr int64_t kNumel = 10007;
constexpr int64_t kPayloads = 3;  // of a mean

class Digest {
 public:
  void add(const Bytes& bytes) {
    for (uint8_t byte : bytes) sum_ = mix64(sum_ + byte + 1);
  }
  void add(const Floats& values) {
    for (float value : values) sum_ = mix64(sum_ + (std::isnan(value) ? kNanBits : float_bits(value)) + 1);
  }
  void print(const std::string& name) const {
    std::printf("%016llx %s\n", static_cast<unsigned long long>(sum_), name.c_str());
  }

 private:
  uint64_t sum_ = 0;
};

// Bytes that are numbers of the type, not all of them finite, some tiny, an early part zero.
Bytes input_of(int type, int64_t n, bool special) {
  const Floats x = heavy_tailed(n);
  Bytes bytes(n * (type == 0 ? 4 : type == 1 ? 8 : 2));
  for (int64_t i = 0; i < n; ++i) {
    float value = i / 512 == 1 ? 0 : i / 512 == 2 ? x[i] * 1e-38f : x[i];
    if (special && i % 3001 == 3000) value = float_from_bits(i % 2 ? kInfinityBits : kNanBits);
    const double wide = value;
    const uint16_t narrow = bfloat16_bits(value);  // as a half it is another number
    if (type == 0) std::memcpy(&bytes[4 * i], &value, 4);
    if (type == 1) std::memcpy(&bytes[8 * i], &wide, 8);
    if (type > 1) std::memcpy(&bytes[2 * i], &narrow, 2);
  }
  return bytes;
}

// Bytes as from anyone: scales of any size, not all of them finite.
Bytes hostile(int64_t n) {
  Bytes bytes(n);
  for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(mix64(~i));
  return bytes;
}

Floats residual_of(int64_t n) {
  Floats residual = heavy_tailed(n);
  for (float& r : residual) r *= 0.3f;
  return residual;
}

std::string text(const char* kernel, int type, bool feedback, const std::string& more) {
  return std::string(kernel) + " " + kTypeNames[type] + (feedback ? " feedback " : " ") + more;
}

// Encodes x, decodes it both ways, and encodes the mean of a few payloads, each with feedback or without; decodes and
// averages payloads of random bytes as well. `Encode` is
// called with (x, or nullptr; payloads, or nullptr; residual, or nullptr; where to write), `Decode` with (payload,
// add, out).
template <typename Encode, typename Decode>
Digest digest_of(const Bytes& x, int64_t numel, int64_t payload_bytes, bool feedback, const Encode& encode,
                 const Decode& decode) {
  Digest digest;
  Floats residual = residual_of(numel), out(numel, 1.0f);
  float* owed = feedback ? residual.data() : nullptr;
  Bytes payload(payload_bytes), payloads, mean(payload_bytes);
  for (int64_t k = 0; k < kPayloads; ++k) {
    encode(x.data(), nullptr, owed, payload.data());
    payloads.insert(payloads.end(), payload.begin(), payload.end());
  }
  digest.add(payloads);
  digest.add(residual);
  decode(payload.data(), true, out.data());
  digest.add(out);
  decode(payload.data(), false, out.data());
  digest.add(out);
  encode(nullptr, payloads.data(), owed, mean.data());
  digest.add(mean);
  digest.add(residual);
  payloads = hostile(kPayloads * payload_bytes);
  decode(payloads.data(), true, out.data());
  digest.add(out);
  encode(nullptr, payloads.data(), owed, mean.data());
  digest.add(mean);
  digest.add(residual);
  return digest;
}

void uniform(int type, int bits, int64_t bucket_size, bool stochastic, bool feedback) {
  const Layout layout{kNumel, bits, bucket_size};
  const int64_t per_unit = buckets_per_unit(layout), units = (layout.buckets() + per_unit - 1) / per_unit;
  const auto encode = [&](const uint8_t* x, const uint8_t* payloads, float* residual, uint8_t* payload) {
    EncodeArguments arguments{x, kTypes[type], layout, stochastic, 7, nullptr, residual, 0.7, 0.9};
    arguments.payloads = payloads;
    arguments.count = payloads ? kPayloads : 0;
    encode_units(arguments, 0, units, payload);
  };
  const auto decode = [&](const uint8_t* payload, bool add, float* out) {
    decode_range(payload, layout, 0, kNumel, add, out);
  };
  digest_of(input_of(type, kNumel, true), kNumel, layout.payload_bytes(), feedback, encode, decode)
      .print(text(stochastic ? "stochastic" : "nearest", type, feedback,
                  std::to_string(bits) + " bits in buckets of " + std::to_string(bucket_size)));
}

void bfloat16(int type, bool feedback) {
  const auto encode = [&](const uint8_t* x, const uint8_t* payloads, float* residual, uint8_t* payload) {
    Bfloat16Arguments arguments{x, kTypes[type], kNumel, residual, 0.7, 0.9, payloads, payloads ? kPayloads : 0};
    encode_bfloat16_range(arguments, 0, kNumel, payload);
  };
  const auto decode = [&](const uint8_t* payload, bool add, float* out) {
    decode_bfloat16_range(payload, 0, kNumel, add, out);
  };
  digest_of(input_of(type, kNumel, true), kNumel, 2 * kNumel, feedback, encode, decode)
      .print(text("bfloat16", type, feedback, ""));
}

void rotated(int type, int bits, int64_t bucket_size, bool unbiased, bool feedback) {
  const RotationLayout layout{std::max(kNumel, bucket_size + 9), bits, bucket_size};
  const auto encode = [&](const uint8_t* x, const uint8_t* payloads, float* residual, uint8_t* payload) {
    RotatedArguments arguments{x, kTypes[type], layout, unbiased, 7, residual, 0.7, 0.9, payloads, payloads ? kPayloads : 0};
    std::memcpy(payload, &arguments.seed, kSeedBytes);
    encode_rotated_buckets(arguments, 0, layout.buckets(), payload);
  };
  const auto decode = [&](const uint8_t* payload, bool add, float* out) {
    decode_rotated_buckets(payload, layout, 0, layout.buckets(), add, out);
  };
  const bool special = bucket_size < kNumel;
  digest_of(input_of(type, layout.numel, special), layout.numel, layout.payload_bytes(), feedback, encode, decode)
      .print(text(unbiased ? "rotated, unbiased" : "rotated", type, feedback,
                  std::to_string(bits) + " bits in buckets of " + std::to_string(bucket_size)));
}

void sparse(int type, int64_t elements_per_bit, bool feedback, bool special) {
  const SparseLayout layout = sparse_layout(100003, elements_per_bit);
  Bytes x = input_of(type, layout.numel, special);
  const Scattered vector({{x.data(), kTypes[type], 0, layout.numel}});
  Floats residual = residual_of(layout.numel), out(layout.numel, 1.0f), mean(layout.numel);
  Bytes payload(layout.payload_bytes());
  encode_sparse(vector, {layout, feedback ? residual.data() : nullptr, 0.7, 0.9}, payload.data());
  decode_add_sparse(payload.data(), layout, out.data());
  decode_sparse_mean(payload.data(), 1, 0, layout, Scattered({{mean.data(), kTypes[0], 0, layout.numel}}));
  Digest digest;
  digest.add(mean);
  digest.add(payload);
  digest.add(residual);
  digest.add(out);
  digest.print(text(special ? "sparse, not finite" : "sparse", type, feedback,
                    std::to_string(elements_per_bit) + " elements per bit"));
}

void figures(int type, int64_t bucket_size, bool special) {
  Figures figures;
  const Bytes x = input_of(type, kNumel, special);
  add_figures(x.data(), kTypes[type], 0, kNumel, bucket_size, 7, figures);
  Floats values(figures.sketch, figures.sketch + kSketch);
  values.push_back(static_cast<float>(figures.norm_sq));
  values.push_back(static_cast<float>(figures.peak_energy));
  Digest digest;
  digest.add(values);
  digest.print(text(special ? "figures, not finite" : "figures", type, false, "buckets of " + std::to_string(bucket_size)));
}

void quotients(float divisor) {
  const Bytes x = input_of(0, kNumel, true);
  Floats values(kNumel);
  std::memcpy(values.data(), x.data(), x.size());
  divide(values.data(), kNumel, divisor);
  Digest digest;
  digest.add(values);
  digest.print(text("quotients", 0, false, std::to_string(divisor)));
}

void checksums(int64_t offset) {
  const Bytes bytes = hostile(kNumel + offset);
  Digest digest;
  for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{99}, kNumel}) {
    const uint64_t sum = checksum(bytes.data() + offset, n, 7);
    Bytes written(kChecksumBytes);
    std::memcpy(written.data(), &sum, kChecksumBytes);
    digest.add(written);
  }
  digest.print("checksums " + std::to_string(offset));
}

void minmax(int type, int bits) {
  const Matrix shape{80, 77};
  const int64_t numel = shape.rows * shape.columns, chunks = (numel + kChunk - 1) / kChunk;
  const Bytes x = input_of(type, numel, true);
  Floats minimums(shape.columns), ranges(shape.columns), out(numel);
  Bytes packed((numel * bits + 7) / 8);
  minmax_columns(x.data(), kTypes[type], shape, 0, shape.columns, minimums.data(), ranges.data());
  encode_minmax_chunks(x.data(), kTypes[type], shape, bits, 0, chunks, minimums.data(), ranges.data(), packed.data());
  decode_minmax_chunks(packed.data(), shape, bits, 0, chunks, minimums.data(), ranges.data(), out.data());
  Digest digest;
  digest.add(minimums);
  digest.add(ranges);
  digest.add(packed);
  digest.add(out);
  digest.print(text("min-max", type, false, std::to_string(bits) + " bits"));
}

}  // namespace

int main() {
  std::printf("%s\n", instruction_set());
  for (float divisor : {1.0f, 2.0f, 3.0f, 4.0f, 8192.0f}) quotients(divisor);
  for (int64_t offset : {0, 3}) checksums(offset);
  for (int type = 0; type < 4; ++type) {
    for (int64_t bucket_size : {3, 512, 4096, 20000}) {
      for (bool special : {false, true}) figures(type, bucket_size, special);
    }
  }
  for (int k = 0; k < 8; ++k) {  // every type with feedback and without
    const int type = k / 2;
    const bool feedback = k % 2;
    bfloat16(type, feedback);
    for (int bits = 1; bits <= 8; ++bits) {
      for (int64_t bucket_size : {int64_t{512}, int64_t{100}, int64_t{9}, kNumel}) {
        uniform(type, bits, bucket_size, false, feedback);
        uniform(type, bits, bucket_size, true, feedback);
      }
      if (!feedback) minmax(type, bits);
    }
    for (int64_t elements_per_bit : {1, 2, 8, 64}) {
      sparse(type, elements_per_bit, feedback, false);
      sparse(type, elements_per_bit, feedback, true);
    }
    for (int bits = 1; bits <= kMaxRotationBits; ++bits) {
      rotated(type, bits, 512, k % 2 == 0, feedback);
    }
  }
  for (int64_t n = 8; n <= 65536; n *= 2) {
    for (int bits = 1; bits <= kMaxRotationBits; ++bits) rotated(0, bits, n, bits % 2 == 0, true);
  }
}
