// Stands in for libFuzzer with any compiler: gives fuzz_kernels.cpp the inputs that the arguments name, each a file, a
// folder of files, or how many to draw from a generator. Prints how many they were, and the instruction set of the kernels.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "instruction_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string running;  // which input, for whoever finds the program dead
int inputs = 0;

void run(const std::string& name, const uint8_t* data, size_t size) {
  running = "input: " + name + "\n";
  LLVMFuzzerTestOneInput(data, size);
  ++inputs;
}

#ifdef MQGRAD_GUARD_PAGES  // else the sanitizers' own handlers say more
void name_input(int signal) {
  (void)!write(STDERR_FILENO, running.data(), running.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}
#endif

void run_random(int count) {
  std::mt19937_64 generator(1);
  std::vector<uint8_t> data(60000);
  for (int i = 0; i < count; ++i) {
    const size_t size = generator() % data.size();
    for (size_t k = 0; k + 8 <= size; k += 8) {
      const uint64_t word = generator();
      std::memcpy(&data[k], &word, 8);
    }
    run("random, number " + std::to_string(i), data.data(), size);
  }
}

void run_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  run(path.string(), reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

void run_argument(const char* argument) {
  char* end;
  const long count = std::strtol(argument, &end, 10);
  if (*end == '\0') return run_random(static_cast<int>(count));
  if (!std::filesystem::is_directory(argument)) return run_file(argument);
  for (const auto& entry : std::filesystem::directory_iterator(argument)) run_file(entry.path());
}

}  // namespace

int main(int argc, char** argv) {
#ifdef MQGRAD_GUARD_PAGES
  for (int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, name_input);
#endif
  for (int i = 1; i < argc; ++i) run_argument(argv[i]);
  std::printf("%d inputs, %s\n", inputs, instruction_set());
}
