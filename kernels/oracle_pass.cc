// SPDX-License-Identifier: Apache-2.0
#include "kernels/oracle_pass.h"

#include "kernels/solver/interval_scan.h"

namespace deeppcr {

absl::StatusOr<OraclePass> RunOraclePass(SolveSpace& space, IterationPasses& passes,
                                         const std::vector<float>& guess, int64_t shooting_interval,
                                         Linearization linearization, double floor) {
  constexpr int32_t kSample = 0;
  const IterationKind kind{.linearization = linearization, .refresh = true, .probes = true};
  OraclePass pass{.trajectory = std::vector<float>(guess.size())};
  space.SetShootingInterval(shooting_interval);
  space.GuessTrajectory(kSample, guess.data());
  passes.Begin(1);
  passes.Propagate({&kSample, 1}, kind);
  ScanIntervals(passes, space.num_intervals(), {&kSample, 1}, kind);
  if (passes.interrupted(kSample)) return absl::CancelledError("stopped during a pass");
  passes.Update({&kSample, 1}, kind, floor, {&pass.norms, 1});
  float* const to = pass.trajectory.data();
  passes.Finish(1, &to);
  return pass;
}

}  // namespace deeppcr
