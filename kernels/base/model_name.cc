// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/model_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

}  // namespace

absl::Status CheckModelName(std::string_view name) {
  const bool plain = std::ranges::all_of(name, IsNameCharacter);
  if (plain && !name.empty() && name.size() <= 128 && name != "." && name != "..")
    return absl::OkStatus();
  return InvalidArgument("model: expected 1 to 128 of A-Z a-z 0-9 . _ -, and not . or .., got ",
                         Quoted(name), " (", name.size(), " bytes)");
}

int64_t ParseVersion(std::string_view text) {
  int64_t version = 0;
  const bool digits = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return absl::ascii_isdigit(c);
  });
  if (!digits || text.front() == '0' || !absl::SimpleAtoi(ToAbsl(text), &version)) return 0;
  return version;
}

}  // namespace deeppcr
