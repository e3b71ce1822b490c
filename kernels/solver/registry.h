// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_REGISTRY_H_
#define DEEPPCR_KERNELS_SOLVER_REGISTRY_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend/backend.h"

namespace deeppcr {

// One row per solver. Conformance tests, the planner, metric labels and request validation iterate
// this table.
struct SolverRow {
  std::string_view name;
  bool iterative = false;
  Linearization linearization = Linearization::kFull;  // of an iterative solver
  int64_t max_shooting_interval = 0;                   // 0: any
  bool automatic = false;                              // `auto` may choose the solver
  std::string_view summary;
};

// True if the solver can run a system of this family. The exact diagonal of a denoiser costs as
// much as the whole Jacobian, so there is no quasi_newton for diffusion.
inline bool Suits(const SolverRow& row, bool diffusion) {
  return !(diffusion && row.iterative && row.linearization == Linearization::kDiagonal);
}

std::span<const SolverRow> Solvers();
// Row of the solver; null for an unknown name.
const SolverRow* FindSolver(std::string_view name);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_REGISTRY_H_
