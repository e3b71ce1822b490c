// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::minstd_rand random(seed);
  std::vector<uint8_t> text(data, data + size);
  deeppcr::fuzz::MutateJson(text, max_size, random);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
