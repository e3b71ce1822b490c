// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/control_group.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace deeppcr {
namespace {

namespace fs = std::filesystem;

// Limits of this many bytes and more are version 1's way of saying none.
constexpr double kMostBytes = 1e18;
// Above what any kernel is built for.
constexpr int kMostCores = 1 << 20;

template <typename T>
void LowerTo(T value, std::optional<T>* least) {
  if (!least->has_value() || value < **least) *least = value;
}

// The number that a file begins with; none for a word, such as `max`.
std::optional<double> FirstNumber(const fs::path& path) {
  std::ifstream file(path);
  double number = 0;
  if (file >> number && std::isfinite(number)) return number;
  return std::nullopt;
}

// cpu.max of version 2: "QUOTA PERIOD", where QUOTA may be `max`.
std::optional<double> CoresOfVersion2(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

std::optional<double> CoresOfVersion1(const fs::path& group) {
  const auto quota = FirstNumber(group / "cpu.cfs_quota_us");
  const auto period = FirstNumber(group / "cpu.cfs_period_us");
  if (quota.value_or(-1) > 0 && period.value_or(-1) > 0) return *quota / *period;
  return std::nullopt;
}

std::optional<int64_t> BytesIn(const fs::path& path) {
  const auto bytes = FirstNumber(path);
  if (bytes.value_or(-1) > 0 && *bytes < kMostBytes) return static_cast<int64_t>(*bytes);
  return std::nullopt;
}

// Calls look of the group and those around it. A container without a namespace of its own sees the
// path of the host's tree, of which it has mounted its own group alone: the tree's root then.
template <typename Look>
void ForGroups(const fs::path& tree, const std::string& path, const Look& look) {
  fs::path group = tree / fs::path(path).relative_path();
  std::error_code error;
  if (!fs::is_directory(group, error)) group = tree;
  while (true) {
    look(group);
    if (group == tree || !group.has_parent_path() || group == group.parent_path()) return;
    group = group.parent_path();
  }
}

// True if `controllers`, by commas, has this one.
bool Has(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

ControlGroupLimits ReadControlGroup(const std::string& self, const std::string& root) {
  ControlGroupLimits limits;
  std::ifstream groups(self);
  // A line is "NUMBER:CONTROLLERS:PATH"; version 2 has one, without controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/' || path.find("/..") != path.npos) path = "/";
    if (path.size() > 1 && path.back() == '/') path.pop_back();
    if (controllers.empty()) {
      ForGroups(root, path, [&](const fs::path& group) {
        if (const auto cores = CoresOfVersion2(group)) LowerTo(*cores, &limits.cores);
        if (const auto bytes = BytesIn(group / "memory.max")) LowerTo(*bytes, &limits.bytes);
      });
    }
    if (Has(controllers, "cpu")) {
      ForGroups(fs::path(root) / "cpu", path, [&](const fs::path& group) {
        if (const auto cores = CoresOfVersion1(group)) LowerTo(*cores, &limits.cores);
      });
    }
    if (Has(controllers, "memory")) {
      ForGroups(fs::path(root) / "memory", path, [&](const fs::path& group) {
        if (const auto bytes = BytesIn(group / "memory.limit_in_bytes"))
          LowerTo(*bytes, &limits.bytes);
      });
    }
  }
  return limits;
}

int AllowedCores() {
  const int present = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // The kernel refuses a mask that is shorter than its own.
  for (int cores = std::max(present, CPU_SETSIZE); cores <= kMostCores; cores *= 2) {
    std::vector<cpu_set_t> mask(CPU_ALLOC_SIZE(cores) / sizeof(cpu_set_t));
    const size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(getpid(), bytes, mask.data()) == 0)
      return std::max(1, CPU_COUNT_S(bytes, mask.data()));
  }
  return present;
}

double AvailableCoreSeconds() {
  static const double seconds = [] {
    const double allowed = AllowedCores();
    return std::min(allowed, ReadControlGroup().cores.value_or(allowed));
  }();
  return seconds;
}

int AvailableCores() { return static_cast<int>(std::ceil(AvailableCoreSeconds())); }

}  // namespace deeppcr
