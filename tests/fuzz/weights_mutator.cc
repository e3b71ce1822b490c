// SPDX-License-Identifier: Apache-2.0
// Mutates a safetensors file by its parts, or a new well-formed file. Blind mutation nearly always
// breaks the length prefix or the JSON first, and never gets behind them.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kPrefix = sizeof(uint64_t);
using Bytes = std::vector<uint8_t>;

// The length of the header, at most what the file has.
size_t HeaderSize(const uint8_t* data, size_t size) {
  uint64_t length = 0;
  std::memcpy(&length, data, kPrefix);
  return static_cast<size_t>(std::min<uint64_t>(length, size - kPrefix));
}

void MutateBytes(Bytes& bytes, size_t max_size) {
  const size_t size = bytes.size();
  bytes.resize(max_size);
  bytes.resize(LLVMFuzzerMutate(bytes.data(), size, max_size));
}

struct Parts {
  Bytes header;
  Bytes data;
};

size_t SizeOf(const Parts& parts) { return kPrefix + parts.header.size() + parts.data.size(); }

Parts Split(const uint8_t* file, size_t size) {
  const uint8_t* const data = file + kPrefix + HeaderSize(file, size);
  return {Bytes(file + kPrefix, data), Bytes(data, file + size)};
}

// One to three F32 tensors of zeros, one after the other.
Parts WellFormed(std::minstd_rand& random) {
  std::string header = "{";
  size_t end = 0;
  const auto count = 1 + random() % 3;
  for (unsigned int i = 0; i < count; ++i) {
    const size_t elements = random() % 4;
    const size_t begin = std::exchange(end, end + elements * sizeof(float));
    header += (i > 0 ? ",\"" : "\"") + std::string(1, static_cast<char>('a' + i)) +
              R"(":{"dtype":"F32","shape":[)" + std::to_string(elements) + R"(],"data_offsets":[)" +
              std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  header += "}";
  return {Bytes(header.begin(), header.end()), Bytes(end, 0)};
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::minstd_rand random(seed);
  const auto choice = random() % 8;
  // One time in eight mutates any bytes, the prefix included.
  if (size < kPrefix || size >= max_size || choice == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  Parts parts = choice <= 3 ? WellFormed(random) : Split(data, size);
  if (SizeOf(parts) > max_size) parts = Split(data, size);
  if (choice == 4) {
    MutateBytes(parts.data, max_size - kPrefix - parts.header.size());
  } else {
    deeppcr::fuzz::MutateJson(parts.header, max_size - kPrefix - parts.data.size(), random);
  }
  const uint64_t length = parts.header.size();
  std::memcpy(data, &length, kPrefix);
  uint8_t* const end = std::copy(parts.header.begin(), parts.header.end(), data + kPrefix);
  return static_cast<size_t>(std::copy(parts.data.begin(), parts.data.end(), end) - data);
}
