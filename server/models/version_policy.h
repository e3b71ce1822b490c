// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_
#define DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_

// Which versions of a model the server loads when it starts.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deeppcr {

// The highest `latest` ones, or, where `specific` is not empty, these.
struct VersionPolicy {
  int64_t latest = 1;
  std::vector<int64_t> specific;  // ascending

  static constexpr int64_t kAll = INT64_MAX;
  // A later version may stand in for one of these: no client has asked for this very one.
  bool of_latest() const { return specific.empty() && latest != kAll; }

  // The versions to load of those `on_disk` (ascending), ascending. A specific one that is not on
  // disk is among them: its load says so.
  std::vector<int64_t> Choose(std::span<const int64_t> on_disk) const;

  friend bool operator==(const VersionPolicy&, const VersionPolicy&) = default;
};

// A policy for each model. Immutable.
class VersionPolicies {
 public:
  // "latest": the highest version of every model.
  VersionPolicies() = default;

  // Rules separated by commas: latest, latest:N or all for every model without a rule of its own,
  // and MODEL=latest, MODEL=latest:N, MODEL=all, MODEL=V or MODEL=V+V... for one.
  // Errors: kInvalidArgument, for a second rule for the same model too.
  static absl::StatusOr<VersionPolicies> Parse(std::string_view text);

  const VersionPolicy& For(std::string_view model) const;

  // Those with a rule of their own.
  std::vector<std::string> Models() const;

 private:
  VersionPolicy default_;
  std::map<std::string, VersionPolicy, std::less<>> models_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_
