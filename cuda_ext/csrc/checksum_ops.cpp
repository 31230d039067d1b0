// The ops that write and compare checksums: schemas, and what runs on CPU tensors.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstring>
#include <vector>

#include "checksum.h"
#include "op_checks.h"

namespace mqgrad {
namespace {

// Messages lie one behind the other, each with its checksum in its last bytes.
void check_messages(const Tensor& messages, const std::vector<int64_t>& lengths) {
  int64_t left = messages.numel();
  for (int64_t length : lengths) {
    STD_TORCH_CHECK(kChecksumBytes <= length && length <= left, "mqgrad: a message of ", length,
                    " bytes does not fit: it has a checksum of ", kChecksumBytes, ", and ", left, " bytes are left");
    left -= length;
  }
  check_payload(messages, messages.numel() - left);
}

void write_checksums(const Tensor& messages, std::vector<int64_t> lengths, int64_t salt) {
  check_messages(messages, lengths);
  uint8_t* message = static_cast<uint8_t*>(messages.mutable_data_ptr());
  for (int64_t length : lengths) {
    const int64_t n = length - kChecksumBytes;
    const uint64_t sum = checksum(message, n, static_cast<uint64_t>(salt));
    std::memcpy(message + n, &sum, kChecksumBytes);
    message += length;
  }
}

Tensor wrong_checksums(const Tensor& messages, std::vector<int64_t> lengths, int64_t salt) {
  check_messages(messages, lengths);
  const Tensor wrong = torch::stable::new_empty(messages, {static_cast<int64_t>(lengths.size())}, ScalarType::Bool);
  bool* flags = static_cast<bool*>(wrong.mutable_data_ptr());
  const uint8_t* message = static_cast<const uint8_t*>(messages.const_data_ptr());
  for (int64_t length : lengths) {
    const int64_t n = length - kChecksumBytes;
    uint64_t sum;
    std::memcpy(&sum, message + n, kChecksumBytes);
    *flags++ = sum != checksum(message, n, static_cast<uint64_t>(salt));
    message += length;
  }
  return wrong;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(mqgrad, m) {
  m.def("write_checksums_(Tensor(a!) messages, int[] lengths, int salt) -> ()");
  m.def("wrong_checksums(Tensor messages, int[] lengths, int salt) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(mqgrad, CPU, m) {
  m.impl("write_checksums_", TORCH_BOX(&write_checksums));
  m.impl("wrong_checksums", TORCH_BOX(&wrong_checksums));
}

}  // namespace mqgrad
