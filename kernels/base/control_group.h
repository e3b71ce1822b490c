// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_CONTROL_GROUP_H_
#define DEEPPCR_KERNELS_BASE_CONTROL_GROUP_H_

// What the control group of this process, that of a container for instance, lets it have. The
// machine has more: threads for cores beyond a quota are stopped in turn, for tenths of a second.

#include <cstdint>
#include <optional>
#include <string>

namespace deeppcr {

struct ControlGroupLimits {
  std::optional<double> cores;   // CPU seconds a second; none: no quota
  std::optional<int64_t> bytes;  // of memory; none: no limit
};

// The limits by the files of the kernel, those of every group around this one included, version 1
// or 2. self: the list of the process's groups; root: where their trees are mounted. What cannot be
// read limits nothing. Thread-safe.
ControlGroupLimits ReadControlGroup(const std::string& self = "/proc/self/cgroup",
                                    const std::string& root = "/sys/fs/cgroup");

// The cores that this process may run on by its affinity, that of its first thread, which taskset,
// a cpuset of a container, or a policy of a cluster set. At least 1. Thread-safe.
int AllowedCores();

// CPU seconds a second that this process can use up: of every core that it may run on, and no more
// than its quota. Above 0. Read once. Thread-safe.
double AvailableCoreSeconds();

// The cores that this process can keep busy, the last of them perhaps in part: the seconds of
// above, rounded up. At least 1. Thread-safe.
int AvailableCores();

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_CONTROL_GROUP_H_
