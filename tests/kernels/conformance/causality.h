// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CONFORMANCE_CAUSALITY_H_
#define DEEPPCR_TESTS_KERNELS_CONFORMANCE_CAUSALITY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {

// Expects that every update makes the states of one more interval of one sample the sequential
// solver's, bit for bit, from 1 to `most_iterations` iterations of each parallel solver.
inline void ExpectCausality(const SolverRig& rig, const SampleInputs& request, int64_t num_steps,
                            int64_t interval, int32_t most_iterations) {
  const Solved sequential = rig.Solve({.solver = "sequential"}, request);
  const int64_t dim = static_cast<int64_t>(sequential.trajectory.size()) / (num_steps + 1);
  for (const std::string_view solver : {"newton", "picard", "jacobi"}) {
    for (int32_t k = 1; k <= most_iterations; ++k) {
      ResolvedOptions options = OptionsFor(solver, num_steps, interval, 1e-7);
      options.max_iterations = k;
      options.on_no_convergence = OnNoConvergence::kReturn;
      const Solved solved = rig.Solve(options, request);
      const SampleReport& report = solved.reports[0];
      const int64_t updates = report.iterations + report.chord_corrections;
      ASSERT_GE(updates, 1);
      ASSERT_EQ(solved.trajectory.size(), sequential.trajectory.size());
      const int64_t exact = std::min(num_steps, updates * interval) * dim;
      EXPECT_EQ(std::memcmp(solved.trajectory.data(), sequential.trajectory.data(),
                            static_cast<size_t>(exact + dim) * sizeof(float)),
                0)
          << solver << " after " << updates << " updates";
    }
  }
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CONFORMANCE_CAUSALITY_H_
