// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PLAN_SAMPLE_PLAN_H_
#define DEEPPCR_TESTS_KERNELS_PLAN_SAMPLE_PLAN_H_

#include <gtest/gtest.h>

#include "kernels/plan/plan.h"
#include "kernels/plan/plan_key.h"

namespace deeppcr::testing {

inline PlanKey MakeKey() {
  return {.device_class = "cpu-test l1d=32K",
          .device_bits = "cpu-test",
          .backend = "cpu",
          .build = "0.1.0+abc",
          .weights_sha256 = "0123",
          .config_sha256 = "4567",
          .scheduler_sha256 = "89ab",
          .calibration_sha256 = "cdef",
          .num_steps = 128,
          .rtol = 1e-3};
}

// Changes to MakeKey(), one for each part that the key of an answer consists of. The build is not
// among them, as other builds may check and keep its plans, nor is the device class, on which only
// speed depends.
using KeyChange = void (*)(PlanKey&);
inline constexpr KeyChange kKeyChanges[] = {[](PlanKey& k) { k.device_bits = "cpu-other"; },
                                            [](PlanKey& k) { k.backend = "other"; },
                                            [](PlanKey& k) { k.weights_sha256 = "0124"; },
                                            [](PlanKey& k) { k.config_sha256 = "4568"; },
                                            [](PlanKey& k) { k.scheduler_sha256 = ""; },
                                            [](PlanKey& k) { k.calibration_sha256 = ""; },
                                            [](PlanKey& k) { k.num_steps = 127; },
                                            [](PlanKey& k) { k.min_shooting_interval = 2; },
                                            [](PlanKey& k) { k.iterative = false; },
                                            [](PlanKey& k) { k.rtol = 1.0000001e-3; }};

// A plan as a load of MakeKey() would serve it.
inline Plan MakePlan() {
  Plan plan;
  plan.device_class = MakeKey().device_class;
  plan.build = MakeKey().build;
  plan.rtol = 1e-3;
  plan.least_rtol = 2e-5;
  plan.measured_seconds = 1.25;
  plan.choices = {{.solver = "newton",
                   .shooting_interval = 32,
                   .initial_guess = InitialGuess::kCalibrated,
                   .warm_sweeps = 6,
                   .jacobian_refresh = JacobianRefresh::kWhileContracting},
                  {.solver = "quasi_newton"}};
  plan.entries = {{.max_samples = 1,
                   .solver = "newton",
                   .parallel = plan.choices[0],
                   .sequential_seconds = 0.1,
                   .parallel_seconds = 1.0 / 3,
                   .parallel_iterations = 2.5,
                   .parallel_error = 1e-5,
                   .parallel_stages = 77},
                  {.max_samples = 16, .parallel = plan.choices[1], .sequential_seconds = 4e-5}};
  plan.id = PlanId(MakeKey(), plan).value_or("");
  return plan;
}

inline void ExpectEqual(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.least_rtol, b.least_rtol);
  EXPECT_EQ(a.measured_seconds, b.measured_seconds);
  EXPECT_EQ(a.choices, b.choices);
  EXPECT_TRUE(a.entries == b.entries);
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_PLAN_SAMPLE_PLAN_H_
