// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_FUZZ_TARGET_H_
#define DEEPPCR_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"

namespace deeppcr::fuzz {

// Gives the bytes to the code under test, and checks every property that callers rely on by
// independent means. Returns whether the input was accepted. Each target defines this function.
bool TryInput(std::string_view bytes);

// Aborts if a property does not hold that must hold for every input.
inline void Require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", property);
  std::abort();
}

// Requires a refusal of untrusted bytes to be the caller's fault, in bounded printable words.
inline void RequireCleanRefusal(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status),
          "a refusal is kInvalidArgument or kResourceExhausted");
  Require(!status.message().empty() && status.message().size() <= 2048,
          "a message has 1 to 2048 bytes");
  for (const char c : status.message()) {
    Require(c >= 0x20 && c < 0x7F, "a message is printable ASCII");
  }
}

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_FUZZ_TARGET_H_
