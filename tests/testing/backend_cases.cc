// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/testing/program_backend.h"
#include "tests/testing/solver_rig.h"

namespace deeppcr::testing {
namespace {

template <cpu::InstructionSet kSet>
std::unique_ptr<Backend> NewCpu() {
  return *cpu::NewCpuBackend(kSet);
}

std::unique_ptr<Backend> NewCpuWithProgramsForStacks() {
  return WithProgramsForStacks(*cpu::NewCpuBackend(cpu::DetectInstructionSet()));
}

}  // namespace

std::unique_ptr<Backend> NewBackendOfUsers() {
  return *cpu::NewCpuBackend(cpu::DetectInstructionSet());
}

const std::vector<BackendCase>& BackendCases() {
  static const auto* cases = [] {
    auto* all = new std::vector<BackendCase>;
    const cpu::InstructionSet newest = cpu::DetectInstructionSet();
    all->push_back({"cpu_baseline", &NewCpu<cpu::InstructionSet::kBaseline>});
    if (newest >= cpu::InstructionSet::kAvx2)
      all->push_back({"cpu_avx2", &NewCpu<cpu::InstructionSet::kAvx2>});
    if (newest >= cpu::InstructionSet::kAvx512)
      all->push_back({"cpu_avx512", &NewCpu<cpu::InstructionSet::kAvx512>});
    all->push_back({"cpu_programs", &NewCpuWithProgramsForStacks, 256});
    all->push_back({"reference", &reference::NewReferenceBackend});
    return all;
  }();
  return *cases;
}

}  // namespace deeppcr::testing
