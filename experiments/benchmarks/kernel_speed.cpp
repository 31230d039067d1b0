// Times one thread that encodes (buckets of 512: stochastic rounding, and as the hook does) and decodes and adds 64 MiB of
// fp32, beside libc's memmove and a read of the same floats. In every round each runs once. The argument is the number of
// rounds; printed are the instruction set of the kernels and all seconds, as JSON. kernel_speed.py builds and runs it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>

#include "instruction_set.h"
#include "kernels.h"
#include "prefetch.h"
#include "rotation_kernels.h"
#include "torch_library.h"

using namespace mqgrad;

namespace {

constexpr int64_t kNumel = int64_t{64} << 18;
constexpr int kWidths[] = {2, 4, 8};
constexpr int kRotatedWidths[] = {1, 2, 3};  // by the hook, which rounds to nearest at 4 and 8 bits
constexpr auto kFloat = torch::headeronly::ScalarType::Float;

struct Timed {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;
};

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// With many sums, so that additions do not wait for each other, and reading ahead as encode does.
MQ_CLONES float sum(const float* x, int64_t n) {
  float sums[64] = {};
  for (int64_t at = 0; at < n; at += 64) {
    prefetch_after(x + at, 4 * 64);
    for (int64_t i = 0; i < 64; ++i) sums[i] += x[at + i];
  }
  return std::accumulate(sums, sums + 64, 0.0f);
}

// "name": [seconds, ...]
void print(const Timed& timed) {
  std::printf("\"%s\": [", timed.name.c_str());
  for (size_t i = 0; i < timed.seconds.size(); ++i) std::printf("%s%.9f", i ? ", " : "", timed.seconds[i]);
  std::printf("]");
}

// Aligned as torch's; never freed.
uint8_t* new_payload(int64_t bytes) {
  return static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 25;
  const std::vector<float> x = heavy_tailed(kNumel);
  std::vector<float> copied(kNumel, 1.0f), sums(kNumel, 1.0f);
  volatile float total = 0;
  std::vector<Timed> all;
  all.push_back({"copy", [&] { std::memmove(copied.data(), x.data(), 4 * kNumel); }, {}});
  all.push_back({"read", [&] { total = sum(x.data(), kNumel); }, {}});
  for (int bits : kWidths) {
    const Layout layout{kNumel, bits, 512};
    uint8_t* payload = new_payload(layout.payload_bytes());
    const EncodeArguments arguments{x.data(), kFloat, layout, true, 7, nullptr, nullptr, 0, 0};
    const int64_t units = layout.buckets() / buckets_per_unit(layout);
    const std::string width = std::to_string(bits);
    all.push_back({"encode " + width, [=] { encode_units(arguments, 0, units, payload); }, {}});
    const auto decode_add = [=, &sums] { decode_range(payload, layout, 0, kNumel, true, sums.data()); };
    all.push_back({"decode-add " + width, decode_add, {}});
  }
  std::vector<float> owed(kNumel, 0.0f);
  for (int bits : kRotatedWidths) {
    const RotationLayout layout{kNumel, bits, 512};
    uint8_t* payload = new_payload(layout.payload_bytes());
    store_seed(payload, 7);
    const RotatedArguments arguments{x.data(), kFloat, layout, true, 7, owed.data(), 0.5, 1};
    const std::string width = std::to_string(bits);
    const auto encode = [=] { encode_rotated_buckets(arguments, 0, layout.buckets(), payload); };
    all.push_back({"hook encode " + width, encode, {}});
    const auto decode_add = [=, &sums] { decode_rotated_buckets(payload, layout, 0, layout.buckets(), true, sums.data()); };
    all.push_back({"hook decode-add " + width, decode_add, {}});
  }
  for (int bits : {4, 8}) {
    const Layout layout{kNumel, bits, 512};
    uint8_t* payload = new_payload(layout.payload_bytes());
    const EncodeArguments arguments{x.data(), kFloat, layout, false, 7, nullptr, owed.data(), 1, 1};
    const int64_t units = layout.buckets() / buckets_per_unit(layout);
    all.push_back({"hook encode " + std::to_string(bits), [=] { encode_units(arguments, 0, units, payload); }, {}});
  }
  for (int round = 0; round < rounds + 1; ++round) {
    for (Timed& timed : all) {
      const double seconds = seconds_of(timed.run);
      if (round > 0) timed.seconds.push_back(seconds);  // the first warms up
    }
  }
  std::printf("{\"instruction_set\": \"%s\", \"bytes\": %lld, \"seconds\": {", instruction_set(),
              static_cast<long long>(4 * kNumel));
  for (size_t i = 0; i < all.size(); ++i) {
    std::printf("%s", i ? ", " : "");
    print(all[i]);
  }
  std::printf("}}\n");
}
