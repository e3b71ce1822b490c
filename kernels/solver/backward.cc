// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/backward.h"

#include <algorithm>

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

PassCount GoBackByScan(BackwardSpace& space, int64_t shooting_interval) {
  space.SetShootingInterval(shooting_interval);
  const int levels = ScanTree(space.num_intervals()).levels();
  PassCount count = {.columns = 1};
  const auto add = [&](const PassCount& pass) { count.stages += pass.stages; };
  if (levels > 0) {
    const PassCount matrices = space.FormMatrices();
    add(matrices);
    count.columns += matrices.columns;
  }
  for (int level = 1; level < levels; ++level, ++count.stages) space.UpSweep(level);
  for (int level = levels - 1; level >= 0; --level, ++count.stages) space.DownSweep(level);
  add(space.RetreatIntervals());
  return count;
}

}  // namespace deeppcr
