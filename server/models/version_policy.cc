// SPDX-License-Identifier: Apache-2.0
#include "server/models/version_policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/models/repository.h"

namespace deeppcr {
namespace {

constexpr std::string_view kLatest = "latest";

absl::Status Mismatch(std::string_view expected, std::string_view got) {
  return InvalidArgument("expected ", expected, ", got ", Quoted(got, 200));
}

absl::StatusOr<std::vector<int64_t>> ParseSpecific(std::string_view text) {
  std::vector<int64_t> versions;
  for (const absl::string_view each : absl::StrSplit(ToAbsl(text), '+')) {
    const int64_t version = ParseVersion(ToStd(each));
    if (version == 0) return Mismatch("latest, latest:N, all or versions as 1+3", text);
    versions.push_back(version);
  }
  std::sort(versions.begin(), versions.end());
  versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  return versions;
}

absl::StatusOr<VersionPolicy> ParsePolicy(std::string_view text) {
  if (text == kLatest) return VersionPolicy();
  if (text == "all") return VersionPolicy{.latest = VersionPolicy::kAll};
  if (text.starts_with("latest:")) {
    const int64_t count = ParseVersion(text.substr(kLatest.size() + 1));
    if (count == 0) return Mismatch("latest:N with a positive N", text);
    return VersionPolicy{.latest = count};
  }
  VersionPolicy policy;
  DEEPPCR_ASSIGN_OR_RETURN(policy.specific, ParseSpecific(text));
  return policy;
}

}  // namespace

std::vector<int64_t> VersionPolicy::Choose(std::span<const int64_t> on_disk) const {
  if (!specific.empty()) return specific;
  const int64_t count = std::min(latest, static_cast<int64_t>(on_disk.size()));
  return {on_disk.end() - count, on_disk.end()};
}

absl::StatusOr<VersionPolicies> VersionPolicies::Parse(std::string_view text) {
  VersionPolicies policies;
  bool has_default = false;
  for (const absl::string_view each : absl::StrSplit(ToAbsl(text), ',')) {
    const std::string_view rule = ToStd(each);
    const size_t equals = rule.find('=');
    const bool named = equals != std::string_view::npos;
    const std::string model(named ? rule.substr(0, equals) : "");
    DEEPPCR_ASSIGN_OR_RETURN(VersionPolicy policy,
                             ParsePolicy(named ? rule.substr(equals + 1) : rule));
    if (named) {
      DEEPPCR_RETURN_IF_ERROR(CheckModelName(model));
    } else if (!policy.specific.empty()) {
      return Mismatch("MODEL=VERSIONS: the versions of one model", rule);
    }
    const bool first =
        named ? policies.models_.emplace(model, policy).second : !std::exchange(has_default, true);
    if (!first) return Mismatch("one rule for each model", text);
    if (!named) policies.default_ = std::move(policy);
  }
  policies.text_ = std::string(text);
  return policies;
}

std::vector<std::string> VersionPolicies::Models() const {
  std::vector<std::string> names;
  for (const auto& [name, policy] : models_) names.push_back(name);
  return names;
}

const VersionPolicy& VersionPolicies::For(std::string_view model) const {
  const auto found = models_.find(model);
  return found == models_.end() ? default_ : found->second;
}

}  // namespace deeppcr
