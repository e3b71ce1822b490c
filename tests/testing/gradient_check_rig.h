// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_GRADIENT_CHECK_RIG_H_
#define DEEPPCR_TESTS_TESTING_GRADIENT_CHECK_RIG_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/gradient_check.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {

// A system on a backend under check, packed for the backward pass, and the same on another backend.
class GradientCheckRig {
 public:
  GradientCheckRig(const SystemSpec& spec, std::unique_ptr<Backend> under_check,
                   std::unique_ptr<Backend> oracle)
      : shape_(ShapeOf(spec)),
        backend_(std::move(under_check)),
        of_oracle_(std::move(oracle)),
        system_(*backend_->NewSystem(spec, {.backward = true})),
        oracle_(*of_oracle_->NewSystem(spec, {.backward = true})),
        pool_(2),
        runner_(*Runner::Create(*system_, shape_, {.iterative = false}, &pool_, 1)),
        backward_(*BackwardRunner::Create(
            *system_, shape_, *ChooseBackwardLimits(*system_, shape_.num_steps, int64_t{1} << 28),
            &pool_, 1)),
        inputs_(SyntheticInputs(16, shape_.input_dim)) {}

  absl::Status Check(const CancelToken* token = nullptr) {
    return RunGradientCheck({.system = *system_,
                             .runner = *runner_,
                             .backward = *backward_,
                             .oracle = *oracle_,
                             .shape = shape_,
                             .inputs = inputs_,
                             .pool = &pool_,
                             .token = token});
  }

 private:
  const SystemShape shape_;
  const std::unique_ptr<Backend> backend_, of_oracle_;
  const std::unique_ptr<System> system_, oracle_;
  ThreadPool pool_;
  const std::unique_ptr<Runner> runner_;
  const std::unique_ptr<BackwardRunner> backward_;
  const CalibrationInputs inputs_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_GRADIENT_CHECK_RIG_H_
