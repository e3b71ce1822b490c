// SPDX-License-Identifier: Apache-2.0
#include "kernels/find_plan.h"

#include <utility>

#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/plan_cache.h"

namespace deeppcr {
namespace {

// Fills the names of a plan that will be served: device class, build, rtol and id.
absl::StatusOr<Plan> Named(const PlanSearch& search, Plan plan) {
  if (plan.device_class.empty()) plan.device_class = search.key.device_class;
  plan.build = search.key.build;
  plan.rtol = search.key.rtol;
  DEEPPCR_ASSIGN_OR_RETURN(plan.id, PlanId(search.key, plan));
  return plan;
}

// Checks a plan whose key fits but for the build.
absl::StatusOr<Plan> Checked(const PlanSearch& search, Plan plan) {
  if (const std::string unfit = search.unfit(plan); !unfit.empty())
    return absl::FailedPreconditionError(StrCat("this model cannot run with ", unfit));
  if (plan.build != search.key.build) {
    const std::string theirs = StrCat("a plan of build ", Quoted(plan.build));
    search.say(LoadNews::kStep, StrCat("checking ", theirs));
    if (const absl::Status checked = search.check(&plan); !checked.ok())
      return WithContext(checked, StrCat(theirs, ", checked in this one"));
  }
  return Named(search, std::move(plan));
}

absl::StatusOr<Plan> FromFile(const PlanSearch& search) {
  if (search.file == nullptr) return absl::NotFoundError("there is none");
  const KeyedPlan* item = search.file->Find(search.key);
  if (item == nullptr)
    return absl::NotFoundError(StrCat("no plan for device class ", Quoted(search.key.device_class),
                                      " and ", search.key.num_steps,
                                      " steps; classes (steps): ", search.file->Contents()));
  if (const std::string misfit = MisfitOf(search.key, item->key); !misfit.empty())
    return absl::FailedPreconditionError(misfit);
  return Checked(search, item->plan);
}

// Plan of a model that is loaded already; kNotFound if no model has a plan that fits.
absl::StatusOr<Plan> FromLoaded(const PlanSearch& search) {
  for (const auto& model : search.loaded) {
    const Plan* found = model->PlanOf(search.key);
    if (found == nullptr || !search.unfit(*found).empty()) continue;
    Plan plan = *found;
    plan.source = PlanSource::kServing;
    return plan;
  }
  return absl::NotFoundError("no model that is loaded");
}

absl::StatusOr<Plan> FromCache(const PlanSearch& search, const PlanCache& cache) {
  DEEPPCR_ASSIGN_OR_RETURN(Plan plan, cache.Load(search.key));
  return Checked(search, std::move(plan));
}

absl::StatusOr<Plan> Measured(const PlanSearch& search) {
  DEEPPCR_ASSIGN_OR_RETURN(Plan plan, search.measure());
  return Named(search, std::move(plan));
}

// True if the search is over: with a plan, or because the load was stopped.
bool IsFinal(const absl::StatusOr<Plan>& found) {
  return found.ok() || absl::IsCancelled(found.status());
}

void SayWhyNot(const PlanSearch& search, std::string_view where, const absl::Status& status) {
  const bool missing = absl::IsNotFound(status);
  search.say(missing ? LoadNews::kStep : LoadNews::kProblem,
             StrCat(where, missing ? ": " : ": not taken: ", ToStd(status.message())));
}

// Plan from the cache, or else a new plan, which is put into the cache.
absl::StatusOr<Plan> FromCacheOrMeasured(const PlanSearch& search) {
  const PlanCache cache(search.cache_dir);
  if (search.mode != PlanMode::kMeasure) {
    absl::StatusOr<Plan> cached = FromCache(search, cache);
    if (IsFinal(cached)) return cached;
    if (!absl::IsNotFound(cached.status())) SayWhyNot(search, "plan cache", cached.status());
  }
  DEEPPCR_ASSIGN_OR_RETURN(Plan plan, Measured(search));
  if (const absl::Status saved = cache.Save(search.key, plan); !saved.ok())
    search.say(LoadNews::kProblem, ToStd(saved.message()));
  return plan;
}

}  // namespace

absl::StatusOr<Plan> FindPlan(const PlanSearch& search) {
  if (search.mode == PlanMode::kMeasure) return FromCacheOrMeasured(search);
  absl::StatusOr<Plan> plan = FromFile(search);
  if (IsFinal(plan)) return plan;
  if (absl::IsUnavailable(plan.status())) return plan;  // the device failed, not the plan
  if (search.mode == PlanMode::kRequire)
    return absl::FailedPreconditionError(
        StrCat(kPlanFileName, ": ", plan.status().message(), " (--plan=require)"));
  if (search.file != nullptr) SayWhyNot(search, kPlanFileName, plan.status());
  plan = FromLoaded(search);
  return plan.ok() ? std::move(plan) : FromCacheOrMeasured(search);
}

}  // namespace deeppcr
