// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SELF_CHECK_RIG_H_
#define DEEPPCR_TESTS_TESTING_SELF_CHECK_RIG_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/self_check.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {

// A system on a backend under check, and what its self-check needs: the same system on another
// backend, and a plan that has a choice for newton.
class SelfCheckRig {
 public:
  SelfCheckRig(const SystemSpec& spec, std::unique_ptr<Backend> under_check,
               std::unique_ptr<Backend> oracle, int32_t interval, int32_t max_batch_size)
      : under_check_(std::move(under_check), spec),
        backend_(std::move(oracle)),
        oracle_(*backend_->NewSystem(spec)),
        inputs_(SyntheticInputs(16, ShapeOf(spec).input_dim)),
        max_batch_size_(max_batch_size) {
    resolve_.shape = ShapeOf(spec);
    plan_.choices = {{.solver = "newton",
                      .shooting_interval = interval,
                      .initial_guess = InitialGuess::kConstant}};
    plan_.entries = {{.max_samples = max_batch_size}};
  }

  // Expects no solver to converge, as where the planner saw none that does.
  void ForgetChoices() { plan_.choices.clear(); }
  // Makes the plan that of another number of steps.
  void TakeNearestPlan() { plan_.source = PlanSource::kNearest; }

  absl::Status Check(double seconds_per_run = 20, const CancelToken* token = nullptr) const {
    return RunSelfCheck({.runner = under_check_.runner(),
                         .oracle = *oracle_,
                         .plan = plan_,
                         .resolve = resolve_,
                         .inputs = inputs_,
                         .max_batch_size = max_batch_size_,
                         .seconds_per_run = seconds_per_run,
                         .token = token});
  }

 private:
  SolverRig under_check_;
  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<System> oracle_;
  const CalibrationInputs inputs_;
  const int32_t max_batch_size_;
  ResolveContext resolve_;
  Plan plan_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SELF_CHECK_RIG_H_
