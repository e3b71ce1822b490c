// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_FUZZ_TARGET_H_
#define DEEPPCR_TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"

namespace deeppcr::fuzz {

// Defined by each target. Gives the bytes to the code under test and checks, by means of its own,
// every property that callers rely on. Returns whether the input was accepted.
bool TryInput(std::string_view bytes);

// A property that must hold whatever the input.
inline void Require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", property);
  std::abort();
}

// What every refusal of untrusted bytes must be: the caller's fault, in bounded printable words.
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
