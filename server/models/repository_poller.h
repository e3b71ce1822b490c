// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_MODELS_REPOSITORY_POLLER_H_
#define DEEPPCR_SERVER_MODELS_REPOSITORY_POLLER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/models/model_store.h"
#include "server/models/version_policy.h"

namespace deeppcr {

// Follows the repository: loads versions that the policy chooses once they are there and whole, or
// again when their files have changed, and unloads those that are gone, so that replicas of a
// server roll by themselves. A version is whole once nothing of it has changed between two looks; a
// folder that is renamed into place is whole at once, but is looked at twice all the same. What an
// operator loads or unloads stays so until its files change.
//
// Called on the thread of the store's loads.
class RepositoryPoller {
 public:
  // The store outlives this object.
  RepositoryPoller(Repository repository, VersionPolicies versions, ModelStore& store)
      : repository_(std::move(repository)), versions_(std::move(versions)), store_(store) {}

  // Notes what is there before the store loads it all: what changes from then on is new.
  void Begin();

  // Looks once. A repository that cannot be read, or has no model at all as one that is not
  // mounted, changes nothing.
  void Poll();

 private:
  using Version = std::pair<std::string, int64_t>;
  struct Refusal {
    int64_t available;  // bytes, after it
    int64_t wanted;     // bytes for another try
    int patience;       // looks until a try with fewer
    int looks;          // of them, those that are left
  };
  struct Seen {
    std::string files;               // their names, sizes and times at the last look
    std::string loaded;              // the same when they were loaded, or tried
    bool of_start = false;           // noted by Begin, and not looked at since
    std::optional<Refusal> refused;  // where others left it no room
  };

  bool IsModel(const std::string& name) const;
  std::set<Version> Chosen(const std::vector<std::string>& names) const;
  void Follow(const Version& version);
  bool IsWorthAnotherTry(const Version& version, Seen* seen) const;
  void UnloadAbsent();

  const Repository repository_;
  const VersionPolicies versions_;
  ModelStore& store_;
  std::map<Version, Seen> seen_;
  std::map<Version, int> absent_;  // looks in a row that have not found a version that is listed
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_MODELS_REPOSITORY_POLLER_H_
