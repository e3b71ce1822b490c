// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  deeppcr::fuzz::TryInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
