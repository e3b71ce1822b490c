// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_STEP_JUDGE_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_STEP_JUDGE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>

#include "kernels/iteration/pass.h"
#include "tests/kernels/program/random_process.h"
#include "tests/testing/larger.h"

namespace deeppcr::program {

// Judges steps of random programs by their evaluation in double: states, matrices, and whether the
// probes know how large the rounding is.
class StepJudge {
 public:
  // `z`: the state after a step; `propagated`: the same and its probes by a pass, rows of `width`;
  // matrix_at(i, k): the pass's d z'_i / d z_k; `jacobian` [D, D], row-major.
  template <class MatrixAt>
  void Judge(std::span<const float> z, const float* propagated, int64_t width,
             const MatrixAt& matrix_at, std::span<const double> want,
             std::span<const double> jacobian) {
    const auto dim = std::ssize(want);
    const double size = LargestOf(want), slope = LargestOf(jacobian);
    for (int64_t i = 0; i < dim; ++i) {
      const double error = std::fabs(z[i] - want[i]);
      worst_ = testing::Larger(worst_, error / size);
      ASSERT_LE(error, 2e-4 * size) << "element " << i;
      float probe = 0;
      for (int64_t v = 1; v <= kNumProbes; ++v)
        probe = std::max(probe, std::fabs(propagated[v * width + i]));
      if (error > kRoundingFactor * probe + 1e-7 * size) ++unknown_;
      ASSERT_EQ(z[i], propagated[i]) << "bits of a pass";
      for (int64_t k = 0; k < dim; ++k) {
        const double off = std::fabs(matrix_at(i, k) - jacobian[i * dim + k]);
        worst_matrix_ = std::max(worst_matrix_, off / slope);
        ASSERT_LE(off, 1e-3 * slope) << i << " " << k;
      }
      ++compared_;
    }
  }
  // Of `programs`, some were refused, and some not judged as they are at a kink.
  void ExpectMostJudged(int programs, int refused, int at_a_kink) const {
    std::printf(
        "%d elements, %d programs refused, %d at a kink; %d errors that probes did not "
        "foretell; off by at most %.1e, matrices %.1e\n",
        compared_, refused, at_a_kink, unknown_, worst_, worst_matrix_);
    EXPECT_GT(compared_, programs);
    EXPECT_LE(at_a_kink + refused, programs / 5);
    EXPECT_LE(unknown_, compared_ / 100);
  }

 private:
  int compared_ = 0, unknown_ = 0;
  double worst_ = 0, worst_matrix_ = 0;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_STEP_JUDGE_H_
