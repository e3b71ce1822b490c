// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/json_mutator.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <utility>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace deeppcr::fuzz {
namespace {

bool IsDigit(uint8_t byte) { return std::isdigit(byte) != 0; }

// The range [begin, end) of every run of digits, except in words such as F32.
std::vector<std::pair<size_t, size_t>> Numbers(const std::vector<uint8_t>& text) {
  std::vector<std::pair<size_t, size_t>> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsDigit(text[i])) continue;
    const size_t begin = i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    if (begin == 0 || std::isalpha(text[begin - 1]) == 0) numbers.emplace_back(begin, i);
  }
  return numbers;
}

std::string OtherNumber(const std::string& number, const std::string& another,
                        std::minstd_rand& random) {
  const uint64_t value = std::strtoull(number.c_str(), nullptr, 10);
  const uint64_t delta = random() % 3 - 1;  // -1, 0 or 1, modulo 2^64
  switch (random() % 4) {
    case 0:
      return std::to_string(value + delta);
    case 1:
      return std::to_string((uint64_t{1} << (random() % 64)) + delta);
    default:
      return another;
  }
}

void MutateNumber(std::vector<uint8_t>& text, std::minstd_rand& random) {
  const auto numbers = Numbers(text);
  if (numbers.empty()) return;
  const auto string_at = [&](std::pair<size_t, size_t> range) {
    return std::string(text.begin() + static_cast<std::ptrdiff_t>(range.first),
                       text.begin() + static_cast<std::ptrdiff_t>(range.second));
  };
  const auto target = numbers[random() % numbers.size()];
  const std::string replacement =
      OtherNumber(string_at(target), string_at(numbers[random() % numbers.size()]), random);
  const auto at = text.erase(text.begin() + static_cast<std::ptrdiff_t>(target.first),
                             text.begin() + static_cast<std::ptrdiff_t>(target.second));
  text.insert(at, replacement.begin(), replacement.end());
}

}  // namespace

void MutateJson(std::vector<uint8_t>& text, size_t max_size, std::minstd_rand& random) {
  if (random() % 4 != 0) {
    do {
      MutateNumber(text, random);
    } while (random() % 2 == 0);
    text.resize(std::min(text.size(), max_size));
    return;
  }
  const size_t size = text.size();
  text.resize(max_size);
  text.resize(LLVMFuzzerMutate(text.data(), size, max_size));
}

}  // namespace deeppcr::fuzz
