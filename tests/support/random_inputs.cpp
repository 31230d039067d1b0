// Stands in for libFuzzer with any compiler: feeds inputs from a generator to fuzz_kernels.cpp and prints how many, and
// the instruction set of the kernels.
#include <cstdlib>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "instruction_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  const int inputs = argc > 1 ? std::atoi(argv[1]) : 5000;
  std::mt19937_64 generator(1);
  std::vector<uint8_t> data(60000);
  for (int i = 0; i < inputs; ++i) {
    const size_t size = generator() % data.size();
    for (size_t k = 0; k + 8 <= size; k += 8) {
      const uint64_t word = generator();
      std::memcpy(&data[k], &word, 8);
    }
    LLVMFuzzerTestOneInput(data.data(), size);
  }
  std::printf("%d inputs, %s\n", inputs, instruction_set());
}
