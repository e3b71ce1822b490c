// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_
#define DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_

// The choice of a model's versions that the server loads when it starts.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace deeppcr {

// Chooses the highest `latest` versions, or the `specific` ones if there are any.
struct VersionPolicy {
  int64_t latest = 1;
  std::vector<int64_t> specific;  // ascending

  static constexpr int64_t kAll = INT64_MAX;
  // True if a later version may stand in for a chosen one: no client has asked for that very one.
  bool of_latest() const { return specific.empty() && latest != kAll; }

  // The versions to load out of those `on_disk`; both ascending. A specific version that is not on
  // disk is among them: its load says so.
  std::vector<int64_t> Choose(std::span<const int64_t> on_disk) const;

  friend bool operator==(const VersionPolicy&, const VersionPolicy&) = default;
};

// A policy for each model. Immutable.
class VersionPolicies {
 public:
  // The policy "latest": the highest version of every model.
  VersionPolicies() = default;

  // Rules separated by commas: latest, latest:N or all for every model without a rule of its own,
  // and MODEL=latest, MODEL=latest:N, MODEL=all, MODEL=V or MODEL=V+V... for one.
  // Errors: kInvalidArgument, for a second rule for the same model too.
  static absl::StatusOr<VersionPolicies> Parse(std::string_view text);

  const VersionPolicy& For(std::string_view model) const;

  // The rules as they were given.
  const std::string& text() const { return text_; }

  // The models with a rule of their own.
  std::vector<std::string> Models() const;

 private:
  std::string text_ = "latest";
  VersionPolicy default_;
  std::map<std::string, VersionPolicy, std::less<>> models_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_VERSION_POLICY_H_
