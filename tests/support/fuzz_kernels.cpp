// Runs the CPU kernels on bytes from anywhere. Every buffer has exactly the size that the checks of op_checks.h demand:
// touching a byte behind it ends the program (exact_array.h).
//
// `make fuzz` links this to libFuzzer, and `make sanitize`, as the second part of `make fuzz`, to run_inputs.cpp.
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "bfloat16.h"
#include "checksum.h"
#include "figures.h"
#include "fuzz_input.h"
#include "kernels.h"
#include "rotation_kernels.h"
#include "scattered.h"
#include "sparse.h"
#include "torch_library.h"

using namespace mqgrad;
using torch::headeronly::ScalarType;

namespace {

using Bytes = ExactArray<uint8_t>;

constexpr int64_t kMaxElements = 6000;  // a few chunks
constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16};
constexpr int64_t kTypeBytes[] = {4, 8, 2, 2};

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// Small ones, those of whole blocks (whose encoder looks at the next bucket while it codes one), and all others.
int64_t take_bucket_size(Input& input) {
  switch (input.take_in(0, 2)) {
    case 0:
      return input.take_in(1, 70);
    case 1:
      return 64 * input.take_in(1, 4);
    default:
      return input.take_in(1, kMaxElements);
  }
}

Layout take_layout(Input& input) {
  const int64_t numel = input.take_in(0, kMaxElements);
  const int bits = static_cast<int>(input.take_in(1, 8));
  return {numel, bits, std::min(take_bucket_size(input), std::max<int64_t>(numel, 1))};
}

// Sizes of layouts as large and as wrong as they come: refused, or computed without overflow.
void fuzz_sizes(Input& input) {
  const Layout layout{input.take<int64_t>(), input.take<int8_t>(), input.take<int64_t>()};
  if (layout.is_valid()) require(layout.payload_bytes() >= layout.scale_bytes(), "sizes do not overflow");
}

void fuzz_decode(Input& input) {
  const Layout layout = take_layout(input);
  const bool add = input.take_in(0, 1);
  const Bytes payload = input.take_bytes(layout.payload_bytes());
  const ExactArray<float> out(layout.numel);
  const int64_t middle = input.take_in(0, layout.numel) / 8 * 8;
  decode_range(payload.get(), layout, 0, middle, add, out.get());
  decode_range(payload.get(), layout, middle, layout.numel, add, out.get() + middle);
  for (int64_t i = 0; i < layout.numel; ++i) {
    float scale;
    std::memcpy(&scale, payload.get() + 4 * (i / layout.bucket_size), 4);
    require(std::isfinite(scale) ? std::fabs(out[i]) <= std::fabs(scale) : std::isnan(out[i]), "|value| <= scale");
  }
}

// What is encoded, in two pieces of memory, each of which ends where its elements do.
class Vector {
 public:
  // The second one begins with element `first`.
  Vector(Input& input, int type, int64_t first, int64_t numel)
      : first_(std::min(first, numel)), front_(input.take_bytes(first_ * kTypeBytes[type], kTypeBytes[type])),
        back_(input.take_bytes((numel - first_) * kTypeBytes[type], kTypeBytes[type])) {}

  template <typename Arguments>
  Arguments front(Arguments arguments) const {
    arguments.x = front_.get();
    return arguments;
  }

  template <typename Arguments>
  Arguments back(Arguments arguments) const {
    arguments.x = back_.get();
    arguments.x_begin = first_;
    return arguments;
  }

 private:
  const int64_t first_;
  const Bytes front_, back_;
};

void fuzz_encode(Input& input, bool from_payloads) {
  const Layout layout = take_layout(input);
  const int type = static_cast<int>(input.take_in(0, 3));
  EncodeArguments arguments{nullptr, kTypes[type], layout, input.take_in(0, 1) != 0, input.take<uint64_t>(),
                            nullptr, nullptr,      1.0,    input.take_in(0, 1) ? 1.0 : 0.9};
  const int64_t count = input.take_in(1, 3), gap = input.take_in(0, 9);
  const bool feedback = input.take_in(0, 1);
  const int64_t per_unit = buckets_per_unit(layout), units = (layout.buckets() + per_unit - 1) / per_unit;
  const int64_t middle = input.take_in(0, units);
  const int64_t first = std::min(middle * per_unit * layout.bucket_size, layout.numel);
  const Vector x(input, type, first, from_payloads ? 0 : layout.numel);
  const Bytes payloads = input.take_bytes(from_payloads ? count * (layout.payload_bytes() + gap) - gap : 0);
  const auto residual = input.take_array<float>(layout.numel);
  if (feedback) arguments.residual = residual.get();
  if (from_payloads) {
    arguments.payloads = payloads.get();
    arguments.count = count;
    arguments.gap = gap;
  }
  const Bytes payload = input.take_room(layout.payload_bytes());
  const auto ids = input.take_array<int64_t>(layout.buckets());
  if (input.take_in(0, 1)) arguments.bucket_ids = ids.get();
  encode_units(x.front(arguments), 0, middle, payload.get());
  encode_units(x.back(arguments), middle, units, payload.get());
}

void fuzz_minmax(Input& input) {
  const Matrix shape{input.take_in(1, 80), input.take_in(1, 60)};
  const int bits = static_cast<int>(input.take_in(1, 8));
  const int type = static_cast<int>(input.take_in(0, 3));
  const Layout codes{shape.rows * shape.columns, bits, 1};
  const Bytes x = input.take_bytes(codes.numel * kTypeBytes[type], kTypeBytes[type]);
  const auto minimums = input.take_array<float>(shape.columns);
  const auto ranges = input.take_array<float>(shape.columns);
  const Bytes packed = input.take_bytes(codes.payload_bytes() - codes.scale_bytes());
  const ExactArray<float> out(codes.numel);
  const int64_t chunks = (codes.numel + kChunk - 1) / kChunk;
  decode_minmax_chunks(packed.get(), shape, bits, 0, chunks, minimums.get(), ranges.get(), out.get());
  minmax_columns(x.get(), kTypes[type], shape, 0, shape.columns, minimums.get(), ranges.get());
  encode_minmax_chunks(x.get(), kTypes[type], shape, bits, 0, chunks, minimums.get(), ranges.get(), packed.get());
}

// Whether all of out is NaN, or all of it finite.
bool is_finite_or_nan(const float* out, int64_t n) {
  const bool expected = n > 0 && std::isfinite(out[0]);
  return std::all_of(out, out + n, [=](float y) { return expected ? std::isfinite(y) : std::isnan(y); });
}

SparseLayout take_sparse_layout(Input& input) {
  const int64_t numel = input.take_in(0, 1) ? input.take_in(0, kMaxElements) : input.take_in(60000, 80000);
  return sparse_layout(numel, input.take_in(1, 64));
}

void fuzz_sparse_decode(Input& input) {
  const SparseLayout layout = take_sparse_layout(input);
  const Bytes payload = input.take_bytes(layout.payload_bytes());
  const ExactArray<float> out(layout.numel);
  decode_add_sparse(payload.get(), layout, out.get());
  require(is_finite_or_nan(out.get(), layout.numel), "a sparse payload decodes to numbers, or to NaN throughout");
  const ExactArray<float> mean(layout.numel), gappy(layout.numel);
  decode_sparse_mean(payload.get(), 1, 0, layout, Scattered({{mean.get(), kTypes[0], 0, layout.numel}}));
  const int64_t cut = input.take_in(0, layout.numel);  // both pieces lie in `gappy`, with a gap between them
  const Piece first{gappy.get(), kTypes[0], 0, cut};
  const Piece second{gappy.get() + cut, kTypes[0], cut + 3, std::max(cut + 3, layout.numel)};
  decode_sparse_mean(payload.get(), 2, 0, layout, Scattered({first, second}));
  require(layout.numel == 0 || std::memcmp(out.get(), mean.get(), 4 * layout.numel) == 0,
          "a sparse payload decodes to the same a block at a time");
}

void fuzz_sparse_encode(Input& input) {
  const SparseLayout layout = take_sparse_layout(input);
  const int type = static_cast<int>(input.take_in(0, 3));
  const bool feedback = input.take_in(0, 1);
  const double coefficient = input.take_in(0, 1) ? 1.0 : 0.9;
  const Bytes x = input.take_bytes(layout.numel * kTypeBytes[type], kTypeBytes[type]);
  const auto residual = input.take_array<float>(layout.numel);
  const Bytes payload(layout.payload_bytes());
  const Scattered vector({{x.get(), kTypes[type], 0, layout.numel}});
  encode_sparse(vector, {layout, feedback ? residual.get() : nullptr, coefficient, coefficient}, payload.get());
  const ExactArray<float> out(layout.numel);
  decode_add_sparse(payload.get(), layout, out.get());
  require(is_finite_or_nan(out.get(), layout.numel), "what was encoded decodes to numbers, or to NaN throughout");
}

RotationLayout take_rotation_layout(Input& input) {
  const int64_t bucket_size = int64_t{8} << input.take_in(0, 13);  // as large as they come
  const int64_t numel = input.take_in(0, std::max(kMaxElements, bucket_size + 70));
  return {numel, static_cast<int>(input.take_in(1, kMaxRotationBits)), bucket_size};
}

void fuzz_rotation_decode(Input& input) {
  const RotationLayout layout = take_rotation_layout(input);
  const bool add = input.take_in(0, 1);
  const Bytes payload = input.take_bytes(layout.payload_bytes());
  const ExactArray<float> out(layout.numel);
  const int64_t middle = input.take_in(0, layout.buckets());
  decode_rotated_buckets(payload.get(), layout, 0, middle, add, out.get());
  decode_rotated_buckets(payload.get(), layout, middle, layout.buckets(), add, out.get());
}

void fuzz_rotation_encode(Input& input, bool from_payloads) {
  const RotationLayout layout = take_rotation_layout(input);
  const int type = static_cast<int>(input.take_in(0, 3));
  RotatedArguments arguments{nullptr, kTypes[type], layout, input.take_in(0, 1) != 0, input.take<uint64_t>()};
  arguments.alpha = input.take_in(0, 1) ? 1.0 : 0.7;
  arguments.beta = input.take_in(0, 1) ? 1.0 : 0.9;
  const int64_t count = input.take_in(1, 3), gap = input.take_in(0, 9);
  const bool feedback = input.take_in(0, 1);
  const int64_t middle = input.take_in(0, layout.buckets());
  const Vector x(input, type, middle * layout.bucket_size, from_payloads ? 0 : layout.numel);
  const Bytes payloads = input.take_bytes(from_payloads ? count * (layout.payload_bytes() + gap) - gap : 0);
  const auto residual = input.take_array<float>(layout.numel);
  const ExactArray<float> before(layout.numel);
  std::copy_n(residual.get(), layout.numel, before.get());
  if (feedback) arguments.residual = residual.get();
  if (from_payloads) {
    arguments.payloads = payloads.get();
    arguments.count = count;
    arguments.gap = gap;
  }
  const Bytes payload(layout.payload_bytes());
  encode_rotated_buckets(x.front(arguments), 0, middle, payload.get());
  encode_rotated_buckets(x.back(arguments), middle, layout.buckets(), payload.get());
  if (from_payloads) {
    const int64_t stride = layout.payload_bytes() + gap;
    const ExactArray<float> mean(layout.numel);
    decode_rotated_means(payloads.get(), count, stride, layout, 0, middle, mean.get());
    decode_rotated_means(payloads.get(), count, stride, layout, middle, layout.buckets(),
                         mean.get() + std::min(middle * layout.bucket_size, layout.numel));
  }
  for (int64_t i = 0; i < layout.numel; ++i) {
    require(!std::isfinite(before[i]) || std::isfinite(residual[i]), "a finite residual stays finite");
  }
}

void fuzz_bfloat16(Input& input) {
  const int64_t numel = input.take_in(0, kMaxElements);
  const int type = static_cast<int>(input.take_in(0, 3));
  const int64_t count = input.take_in(0, 3), gap = input.take_in(0, 9);
  const bool feedback = input.take_in(0, 1);
  const int64_t middle = input.take_in(0, numel);
  const Vector x(input, type, middle, count ? 0 : numel);
  const Bytes payloads = input.take_bytes(count ? count * (2 * numel + gap) - gap : 0);
  const auto residual = input.take_array<float>(numel);
  Bfloat16Arguments arguments{nullptr, kTypes[type], numel, feedback ? residual.get() : nullptr, 1.0, 0.9};
  if (count) {
    arguments.payloads = payloads.get();
    arguments.count = count;
    arguments.gap = gap;
  }
  const Bytes payload(2 * numel);
  const Bytes received = input.take_bytes(2 * numel);
  const ExactArray<float> out(numel);
  encode_bfloat16_range(x.front(arguments), 0, middle, payload.get());
  encode_bfloat16_range(x.back(arguments), middle, numel, payload.get());
  decode_bfloat16_range(received.get(), 0, middle, true, out.get());
  decode_bfloat16_range(received.get(), middle, numel, false, out.get());
  decode_bfloat16_means(payloads.get(), count, 2 * numel + gap, 0, count ? middle : 0, out.get());
}

// Of bytes one of which has changed, at any address.
void fuzz_checksum(Input& input) {
  const int64_t n = input.take_in(0, kMaxElements);
  const uint64_t salt = input.take<uint64_t>();
  const Bytes bytes = input.take_bytes(n);
  const uint64_t before = checksum(bytes.get(), n, salt);
  const uint8_t mask = input.take<uint8_t>();
  if (n) bytes[input.take_in(0, n - 1)] ^= mask;
  require((checksum(bytes.get(), n, salt) != before) == (n && mask), "a change is seen, and no other");
}

// Of a gradient as a whole, and as two parts: the largest elements of buckets are the same.
void fuzz_figures(Input& input) {
  const int type = static_cast<int>(input.take_in(0, 3));
  const int64_t n = input.take_in(0, kMaxElements), bucket_size = input.take_in(1, kMaxElements + 1);
  const uint64_t key = input.take<uint64_t>();
  const Bytes x = input.take_bytes(n * kTypeBytes[type], kTypeBytes[type]);
  const int64_t unit = std::lcm(bucket_size, kSketch), middle = n / unit / 2 * unit;
  Figures whole, parts;
  add_figures(x.get(), kTypes[type], 0, n, bucket_size, key, whole);
  add_figures(x.get(), kTypes[type], 0, middle, bucket_size, key, parts);
  add_figures(x.get(), kTypes[type], middle, n, bucket_size, key, parts);
  require(std::isnan(whole.peak_energy) || whole.peak_energy == parts.peak_energy, "buckets are those of the whole");
}

// Every element of a range is read once, and written once: where it lies, or zero where nothing does.
void fuzz_scattered(Input& input) {
  std::vector<Bytes> memory;
  std::vector<Piece> pieces;
  int64_t behind = -input.take_in(0, 40);  // the last piece
  const int64_t count = input.take_in(0, 4), unit = input.take_in(1, 3) == 1 ? 1 : 8 * input.take_in(1, 64);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = behind + input.take_in(0, 1) * input.take_in(0, 600), n = input.take_in(0, kMaxElements / 2);
    const int type = static_cast<int>(input.take_in(0, 3));
    memory.push_back(input.take_bytes(n * kTypeBytes[type], kTypeBytes[type]));
    pieces.push_back({memory.back().get(), kTypes[type], begin, behind = begin + n});
  }
  const int64_t numel = input.take_in(0, 2 * kMaxElements);
  std::vector<float> expected(numel);
  for (const Piece& piece : pieces) {
    const int64_t first = std::max<int64_t>(piece.begin, 0), last = std::min(piece.end, numel);
    if (first < last) load_floats(piece.data, piece.dtype, first - piece.begin, last - first, expected.data() + first);
  }
  const Scattered vector(pieces);
  const int64_t begin = input.take_in(0, numel / unit) * unit;
  int64_t at = begin;
  vector.read(begin, numel, unit, [&](const void* x, ScalarType dtype, int64_t from, int64_t to) {
    const ExactArray<float> values(to - from);
    load_floats(x, dtype, 0, to - from, values.get());
    require(from == at && from % unit == 0 && from < to, "ranges of whole units, one behind the other");
    require(std::memcmp(values.get(), expected.data() + from, 4 * (to - from)) == 0, "what is read is what lies there");
    at = to;
  });
  require(at == std::max(begin, numel), "everything is read");
  vector.write(begin, numel, unit, [&](float* out, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) out[i - from] = static_cast<float>(i % 128);
  });
  for (const Piece& piece : pieces) {
    for (int64_t i = std::max(piece.begin, begin); i < std::min(piece.end, numel); ++i) {
      float value;
      load_floats(piece.data, piece.dtype, i - piece.begin, 1, &value);
      require(value == static_cast<float>(i % 128), "what is written lies where it belongs");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  switch (input.take_in(0, 14)) {
    case 0: fuzz_sizes(input); break;
    case 1: fuzz_minmax(input); break;
    case 2: fuzz_encode(input, false); break;
    case 3: fuzz_encode(input, true); break;
    case 4: fuzz_sparse_encode(input); break;
    case 5: fuzz_sparse_decode(input); break;
    case 6: fuzz_rotation_encode(input, false); break;
    case 7: fuzz_rotation_encode(input, true); break;
    case 8: fuzz_rotation_decode(input); break;
    case 9: fuzz_bfloat16(input); break;
    case 10: fuzz_checksum(input); break;
    case 11: fuzz_scattered(input); break;
    case 12: fuzz_figures(input); break;
    default: fuzz_decode(input); break;
  }
  return 0;
}
