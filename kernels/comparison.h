// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_COMPARISON_H_
#define DEEPPCR_KERNELS_COMPARISON_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine.h"
#include "kernels/solver/runner.h"

namespace deeppcr {

// See LoadedSystem::Compare. Memory beside the rows: two trajectories of one sample.
absl::StatusOr<std::vector<ComparisonRow>> CompareSolvers(
    const Runner& runner, const SampleInputs& samples,
    std::span<const absl::StatusOr<ResolvedOptions>> options, const ComparisonLimits& limits,
    const CancelToken* token);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_COMPARISON_H_
