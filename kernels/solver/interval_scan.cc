// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/interval_scan.h"

#include "kernels/iteration/scan_tree.h"

namespace deeppcr {

int64_t ScanIntervals(IterationPasses& passes, int64_t num_intervals,
                      std::span<const int32_t> samples, IterationKind kind) {
  if (kind.linearization == Linearization::kZero) return 0;
  const int levels = ScanTree(num_intervals).levels();
  int64_t stages = 0;
  for (int level = 1; level < levels; ++level, ++stages) passes.UpSweep(samples, level, kind);
  for (int level = levels - 1; level >= 0; --level, ++stages)
    passes.DownSweep(samples, level, kind);
  return stages;
}

}  // namespace deeppcr
