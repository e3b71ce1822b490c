// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/backward.h"

#include <algorithm>
#include <variant>

#include "kernels/iteration/scan_tree.h"

namespace deeppcr {

PassCount GoBackSequentially(BackwardSpace& space, int64_t num_steps,
                             std::span<const CancelToken* const> tokens) {
  const auto fired = [](const CancelToken* token) { return Fired(token); };
  const auto n = static_cast<int32_t>(tokens.size());
  const int64_t stride = space.StepsPerPoll(n);
  PassCount count = {.columns = 1};
  for (int64_t end = num_steps; end > 0 && !std::ranges::all_of(tokens, fired);) {
    const int64_t begin = std::max<int64_t>(0, end - stride);
    count.stages += space.Retreat(n, begin, end);
    end = begin;
  }
  return count;
}

namespace {

PassCount ScanByStages(BackwardScanStages& scan, int64_t shooting_interval) {
  scan.SetShootingInterval(shooting_interval);
  const int levels = ScanTree(scan.num_intervals()).levels();
  PassCount count = {.columns = 1};
  const auto add = [&](const PassCount& pass) { count.stages += pass.stages; };
  if (levels > 0) {
    const PassCount matrices = scan.FormMatrices();
    add(matrices);
    count.columns += matrices.columns;
  }
  for (int level = 1; level < levels; ++level, ++count.stages) scan.UpSweep(level);
  for (int level = levels - 1; level >= 0; --level, ++count.stages) scan.DownSweep(level);
  add(scan.RetreatIntervals());
  return count;
}

}  // namespace

PassCount GoBackByScan(BackwardSpace& space, int32_t num_samples, int64_t shooting_interval) {
  const auto scan = space.scan();
  if (auto* const* whole = std::get_if<BackwardScan*>(&scan))
    return (*whole)->GoBack(num_samples, shooting_interval);
  return ScanByStages(*std::get<BackwardScanStages*>(scan), shooting_interval);
}

}  // namespace deeppcr
