// The ops that write and compare checksums: schemas, and what runs on CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <vector>

#include "checksum.h"
#include "op_checks.h"

namespace mqgrad {
namespace {

using Lengths = std::vector<int64_t>;

// Messages lie one behind the other, each with its checksum in its last bytes: that of its first `covered` bytes.
void check_messages(const Tensor& messages, const Lengths& lengths, const Lengths& covered) {
  STD_TORCH_CHECK(lengths.size() == covered.size(), "mqgrad: ", lengths.size(), " lengths, but ", covered.size(),
                  " covered parts");
  int64_t left = messages.numel();
  for (size_t i = 0; i < lengths.size(); ++i) {
    STD_TORCH_CHECK(kChecksumBytes <= lengths[i] && lengths[i] <= left, "mqgrad: a message of ", lengths[i],
                    " bytes does not fit: it has a checksum of ", kChecksumBytes, ", and ", left, " bytes are left");
    STD_TORCH_CHECK(0 <= covered[i] && covered[i] <= lengths[i] - kChecksumBytes, "mqgrad: the checksum of a message of ",
                    lengths[i], " bytes cannot cover ", covered[i]);
    left -= lengths[i];
  }
  check_payload(messages, messages.numel() - left);
}

void write_checksums(const Tensor& messages, Lengths lengths, Lengths covered, int64_t salt) {
  check_messages(messages, lengths, covered);
  uint8_t* message = static_cast<uint8_t*>(messages.mutable_data_ptr());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const uint64_t sum = checksum(message, covered[i], static_cast<uint64_t>(salt));
    message += lengths[i];
    std::memcpy(message - kChecksumBytes, &sum, kChecksumBytes);
  }
}

Tensor wrong_checksums(const Tensor& messages, Lengths lengths, Lengths covered, int64_t salt) {
  check_messages(messages, lengths, covered);
  const Tensor wrong = torch::stable::new_empty(messages, {static_cast<int64_t>(lengths.size())}, ScalarType::Bool);
  bool* flags = static_cast<bool*>(wrong.mutable_data_ptr());
  const uint8_t* message = static_cast<const uint8_t*>(messages.const_data_ptr());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const uint64_t expected = checksum(message, covered[i], static_cast<uint64_t>(salt));
    uint64_t sum;
    message += lengths[i];
    std::memcpy(&sum, message - kChecksumBytes, kChecksumBytes);
    flags[i] = sum != expected;
  }
  return wrong;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("write_checksums_(Tensor(a!) messages, int[] lengths, int[] covered, int salt) -> ()");
  m.def("wrong_checksums(Tensor messages, int[] lengths, int[] covered, int salt) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("write_checksums_", TORCH_BOX(&write_checksums));
  m.impl("wrong_checksums", TORCH_BOX(&wrong_checksums));
}

}  // namespace mqgrad
