// SPDX-License-Identifier: Apache-2.0
#include "kernels/solver/registry.h"

#include <algorithm>
#include <array>

namespace deeppcr {
namespace {

constexpr std::array<SolverRow, 5> kSolvers = {{
    {.name = "sequential", .automatic = true, .summary = "step by step; exact by definition"},
    {.name = "newton",
     .iterative = true,
     .linearization = Linearization::kFull,
     .automatic = true,
     .summary = "multiple-shooting Newton, dense Jacobians, parallel scan"},
    {.name = "quasi_newton",
     .iterative = true,
     .linearization = Linearization::kDiagonal,
     .max_shooting_interval = 1,
     .automatic = true,
     .summary = "Newton with the diagonal of the Jacobian, elementwise scan"},
    {.name = "picard",
     .iterative = true,
     .linearization = Linearization::kIdentity,
     .automatic = true,
     .summary = "fixed-point iteration with the identity in place of the Jacobian, prefix sum"},
    {.name = "jacobi",
     .iterative = true,
     .linearization = Linearization::kZero,
     .summary = "every step from the last iterate, no linear solve"},
}};

}  // namespace

std::span<const SolverRow> Solvers() { return kSolvers; }

const SolverRow* FindSolver(std::string_view name) {
  const auto row = std::find_if(kSolvers.begin(), kSolvers.end(),
                                [&](const SolverRow& r) { return r.name == name; });
  return row == kSolvers.end() ? nullptr : &*row;
}

}  // namespace deeppcr
