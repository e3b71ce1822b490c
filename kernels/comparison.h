// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_COMPARISON_H_
#define DEEPPCR_KERNELS_COMPARISON_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// See LoadedModel::Compare. Memory beside the rows: two trajectories of one sample.
absl::StatusOr<std::vector<ComparisonRow>> CompareSolvers(const LoadedModel& model,
                                                          const Runner& runner,
                                                          const RunItem& request,
                                                          std::span<const SolveOptions> options,
                                                          int repetitions);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_COMPARISON_H_
