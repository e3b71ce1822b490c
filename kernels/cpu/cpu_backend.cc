// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cache_sizes.h"
#include "kernels/cpu/cpu_system.h"

namespace deeppcr::cpu {
namespace {

struct InstructionSetRow {
  InstructionSet set;
  std::string_view name;
  std::string_view device;
  KernelSet kernels;
  bool (*available)();
};

// The compiler's names of the x86-64 levels are newer than GCC 12, hence the features one by one.
bool HasBaseline() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt"); }
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

constexpr std::array<InstructionSetRow, 3> kInstructionSets = {{
    {InstructionSet::kBaseline,
     "baseline",
     "cpu-baseline",
     {&KernelsBaseline, &ProgramKernelsBaseline},
     &HasBaseline},
    {InstructionSet::kAvx2, "avx2", "cpu-avx2", {&KernelsAvx2, &ProgramKernelsAvx2}, &HasAvx2},
    {InstructionSet::kAvx512,
     "avx512",
     "cpu-avx512",
     {&KernelsAvx512, &ProgramKernelsAvx512},
     &HasAvx512},
}};

const InstructionSetRow& RowOf(InstructionSet set) {
  return kInstructionSets[static_cast<size_t>(set)];
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const InstructionSetRow& row) : row_(row) {}
  std::string_view name() const override { return "cpu"; }
  std::string_view device() const override { return row_.device; }
  DeviceClass device_class() const override {
    return {.bits = std::string(row_.device), .speed = CacheClass(kCachesOfFirstCore)};
  }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits& limits) const override {
    return NewCpuSystem(spec, row_.kernels, limits);
  }

 private:
  const InstructionSetRow& row_;
};

}  // namespace

InstructionSet DetectInstructionSet() {
  InstructionSet best = InstructionSet::kBaseline;
  for (const InstructionSetRow& row : kInstructionSets) {
    if (row.available()) best = row.set;
  }
  return best;
}

std::string_view ToString(InstructionSet set) { return RowOf(set).name; }

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend() {
  const char* forced = std::getenv("DEEPPCR_CPU_ISA");
  if (forced == nullptr || *forced == '\0') return NewCpuBackend(DetectInstructionSet());
  for (const InstructionSetRow& row : kInstructionSets) {
    if (row.name == forced) return NewCpuBackend(row.set);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("DEEPPCR_CPU_ISA: expected baseline, avx2 or avx512, got \"", forced, "\""));
}

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(InstructionSet set) {
  const InstructionSetRow& row = RowOf(set);
  if (!row.available()) {
    return absl::UnavailableError(absl::StrCat("this machine has no ", std::string(row.name),
                                               " (its newest is ",
                                               std::string(ToString(DetectInstructionSet())), ")"));
  }
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(row));
}

}  // namespace deeppcr::cpu
