// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_
#define DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/plan_key.h"

namespace deeppcr {

// Plans as files of a directory, one per key but for its build, replaced atomically. Thread-safe.
class PlanCache {
 public:
  // An empty directory name switches the cache off.
  explicit PlanCache(std::string directory) : directory_(std::move(directory)) {}

  // The plan, whose `build` may differ from the key's. Errors: kNotFound; kInvalidArgument naming
  // a damaged or edited file.
  absl::StatusOr<Plan> Load(const PlanKey& key) const;
  absl::Status Save(const PlanKey& key, const Plan& plan) const;

 private:
  absl::StatusOr<std::string> PathOf(const PlanKey& key) const;
  std::string directory_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PLAN_PLAN_CACHE_H_
