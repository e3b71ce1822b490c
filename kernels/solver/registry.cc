// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/registry.h"

#include <algorithm>
#include <array>

namespace deeppcr {
namespace {

void StepByStep(const SolverRow&, SolveSpace& space, const SystemShape& shape,
                const ResolvedOptions&, std::span<const GroupSample> samples,
                GroupScratch& scratch) {
  SolveSequentially(space, shape, samples, scratch);
}

// The iterative solvers, which differ in their linearisation alone.
void Iterate(const SolverRow& row, SolveSpace& space, const SystemShape& shape,
             const ResolvedOptions& options, std::span<const GroupSample> samples,
             GroupScratch& scratch) {
  SolveFixedPoint(space, FixedPointOptionsOf(options, row.linearization, shape.num_steps), samples,
                  scratch);
}

constexpr std::array<SolverRow, 5> kSolvers = {{
    {.name = "sequential", .solve = StepByStep, .automatic = true},
    {.name = "newton",
     .solve = Iterate,
     .iterative = true,
     .linearization = Linearization::kFull,
     .takes_warm_sweeps = true,
     .takes_refresh = true,
     .automatic = true},
    {.name = "quasi_newton",
     .solve = Iterate,
     .iterative = true,
     .linearization = Linearization::kDiagonal,
     .max_shooting_interval = 1,
     .needs_cheap_diagonal = true,
     .automatic = true},
    {.name = "picard",
     .solve = Iterate,
     .iterative = true,
     .linearization = Linearization::kIdentity,
     .automatic = true},
    {.name = "jacobi", .solve = Iterate, .iterative = true, .linearization = Linearization::kZero},
}};

}  // namespace

std::span<const SolverRow> Solvers() { return kSolvers; }

const SolverRow* FindSolver(std::string_view name) {
  const auto row = std::find_if(kSolvers.begin(), kSolvers.end(),
                                [&](const SolverRow& r) { return r.name == name; });
  return row == kSolvers.end() ? nullptr : &*row;
}

}  // namespace deeppcr
