// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_ITERATION_FED_SOLVE_H_
#define DEEPPCR_TESTS_KERNELS_ITERATION_FED_SOLVE_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/iteration/stopping.h"

namespace deeppcr {

// A solve that is fed the norms of one pass after the other.
class FedSolve {
 public:
  explicit FedSolve(const StoppingPolicy& policy)
      : policy_(policy), progress_(StartProgress(policy)) {}

  // Feeds the update of the pass that was due: its size, its rounding, and the share that it fills
  // of the balls of its elements.
  FedSolve& Pass(double update, double rounding = 0, double share = 0.5) {
    EXPECT_NE(progress_.next, NextPass::kConfirm) << "no update is due";
    return Take({.update = update,
                 .rounding = rounding,
                 .combined = ErrorBound(update, rounding),
                 .share = share});
  }
  // Feeds the same norms to the confirmation that was due and to those that follow: the states came
  // back to this distance, in this share of the balls.
  FedSolve& Confirm(double distance, double share = 0.05, bool finite = true) {
    ExpectNext(NextPass::kConfirm);
    const UpdateNorms norms = {.update = distance,
                               .combined = 2 * distance,
                               .share = share,
                               .finite = static_cast<uint8_t>(finite)};
    for (Take(norms); progress_.next > NextPass::kConfirm && progress_.next < NextPass::kStop;)
      Take(norms);
    return *this;
  }
  FedSolve& Take(const UpdateNorms& norms, int64_t stages = 10, int64_t columns = 3) {
    EXPECT_NE(progress_.next, NextPass::kStop) << "a pass after the end";
    AdvanceProgress(policy_, norms, stages, columns, &progress_);
    return *this;
  }

  void ExpectNext(NextPass next, bool probes = false) const {
    EXPECT_EQ(static_cast<int>(progress_.next), static_cast<int>(next));
    EXPECT_EQ(progress_.probes, probes);
  }
  // The draw of the signs of the pass that is due.
  void ExpectDraw(int32_t draw) const {
    EXPECT_EQ(KindOf(progress_, policy_.linearization).draw, draw);
  }
  void ExpectStop(Termination termination) const {
    EXPECT_EQ(progress_.next, NextPass::kStop);
    EXPECT_EQ(ToString(progress_.termination), ToString(termination));
  }
  const Progress& progress() const { return progress_; }

 private:
  const StoppingPolicy policy_;
  Progress progress_;
};

inline StoppingPolicy Newton() { return {.rtol = 1e-4, .max_iterations = 8, .num_intervals = 100}; }
inline StoppingPolicy Linear(Linearization linearization = Linearization::kIdentity) {
  StoppingPolicy policy = Newton();
  policy.linearization = linearization;
  return policy;
}

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_KERNELS_ITERATION_FED_SOLVE_H_
