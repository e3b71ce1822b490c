// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_FIND_PLAN_H_
#define DEEPPCR_KERNELS_FIND_PLAN_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/plan_file.h"
#include "kernels/plan/plan_key.h"

namespace deeppcr {

// Places where a load looks for the plan of one system, and functions that judge or make a plan.
struct PlanSearch {
  PlanKey key;
  PlanMode mode = PlanMode::kPrefer;
  const PlanFile* file = nullptr;  // plan.json; null: there is none
  std::span<const std::shared_ptr<const LoadedModel>> loaded;
  std::string cache_dir;
  std::function<std::string(const Plan&)> unfit;  // UnfitChoice
  std::function<absl::Status(Plan*)> check;       // CheckPlan
  std::function<absl::StatusOr<Plan>()> measure;  // MeasurePlan
  std::function<void(LoadNews, std::string_view)> say;
};

// Looks in plan.json first; then, unless a plan is required there, in a model that is loaded
// already, then in the cache; measures at last. A plan of another build is checked and kept.
// Errors: kFailedPrecondition if a plan is required and there is none, or the plan does not fit,
// and why; errors of measure; kCancelled.
absl::StatusOr<Plan> FindPlan(const PlanSearch& search);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_FIND_PLAN_H_
