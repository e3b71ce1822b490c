// SPDX-License-Identifier: Apache-2.0
#include "client/kept_states.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMostSamples = 10'000'000;
constexpr size_t kMostHandleBytes = 128;

}  // namespace

std::string FormatKept(const std::vector<KeptStates>& kept) {
  std::string text;
  for (const KeptStates& each : kept)
    text += StrCat(each.handle.empty() ? "-" : each.handle, " ", each.num_samples, "\n");
  return text;
}

absl::StatusOr<std::vector<KeptStates>> ParseKept(std::string_view text) {
  std::vector<KeptStates> kept;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(text), '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    KeptStates each;
    if (words.size() != 2 || words[0].empty() || words[0].size() > kMostHandleBytes ||
        !absl::SimpleAtoi(words[1], &each.num_samples) || each.num_samples < 1 ||
        each.num_samples > kMostSamples)
      return InvalidArgument("line ", kept.size() + 1,
                             ": expected a handle and a number of samples, got ",
                             Quoted(ToStd(line.substr(0, 80))));
    if (words[0] != "-") each.handle = words[0];
    kept.push_back(std::move(each));
  }
  if (kept.empty()) return InvalidArgument("expected a line for each request, got none");
  return kept;
}

}  // namespace deeppcr
