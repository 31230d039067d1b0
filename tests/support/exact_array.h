// Arrays that end where they say. AddressSanitizer sees what instrumented code touches behind them, but it keeps loops
// from becoming vector code; with MQGRAD_GUARD_PAGES the page behind an array may not be touched, which stops any code.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#ifdef MQGRAD_GUARD_PAGES
#include <sys/mman.h>
#include <unistd.h>
#endif

// Zeros at first. A slice of a tensor may begin at any multiple of its elements: so do these, `offset` elements behind
// the beginning of an allocation; between guard pages the end is fixed, and the beginning is where the length puts it.
template <typename T>
class ExactArray {
 public:
  explicit ExactArray(int64_t count, int64_t offset = 0) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
#ifdef MQGRAD_GUARD_PAGES
    const int64_t page = sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    void* base = mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(static_cast<uint8_t*>(base) + page, room, PROT_READ | PROT_WRITE) != 0) {
      std::perror("guard pages");
      std::abort();
    }
    memory_ = {static_cast<uint8_t*>(base), Release{room + 2 * page}};
    begin_ = reinterpret_cast<T*>(memory_.get() + page + room - bytes);
#else
    memory_ = {new uint8_t[bytes + offset * sizeof(T)](), Release{0}};
    begin_ = reinterpret_cast<T*>(memory_.get()) + offset;
#endif
  }

  T* get() const { return begin_; }
  T& operator[](int64_t i) const { return begin_[i]; }

 private:
  struct Release {
    int64_t mapped = 0;
#ifdef MQGRAD_GUARD_PAGES
    void operator()(uint8_t* base) const { munmap(base, mapped); }
#else
    void operator()(uint8_t* base) const { delete[] base; }
#endif
  };

  std::unique_ptr<uint8_t[], Release> memory_;
  T* begin_;
};
