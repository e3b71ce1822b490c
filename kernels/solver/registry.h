// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_REGISTRY_H_
#define DEEPPCR_KERNELS_SOLVER_REGISTRY_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend/backend.h"
#include "kernels/solver/options.h"
#include "kernels/solver/solver.h"

namespace deeppcr {

struct SolverRow;

// Solves one group of samples, which the space has encoded: leaves the answer of each as its
// current state, writes trajectories, and fills the reports.
using SolveFunction = void (*)(const SolverRow& row, SolveSpace& space, const SystemShape& shape,
                               const ResolvedOptions& options, std::span<const GroupSample> samples,
                               GroupScratch& scratch);

// One row per solver: what it does, and what it takes. Conformance tests, the planner, metric
// labels and request validation iterate this table.
struct SolverRow {
  std::string_view name;
  SolveFunction solve = nullptr;
  bool iterative = false;  // takes tolerances and a guess, and may not converge
  Linearization linearization = Linearization::kFull;  // of an iterative one
  int64_t max_shooting_interval = 0;                   // 0: any
  bool takes_warm_sweeps = false;
  bool takes_refresh = false;  // may reuse its transition matrices
  bool needs_cheap_diagonal = false;
  bool automatic = false;  // `auto` may choose it
};

// True if the solver can run a system of this shape.
inline bool Suits(const SolverRow& row, const SystemShape& shape) {
  return shape.cheap_diagonal || !row.needs_cheap_diagonal;
}

std::span<const SolverRow> Solvers();
// Row of the solver; null for an unknown name.
const SolverRow* FindSolver(std::string_view name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_REGISTRY_H_
