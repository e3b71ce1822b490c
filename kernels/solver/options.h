// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_OPTIONS_H_
#define DEEPPCR_KERNELS_SOLVER_OPTIONS_H_

#include <cstdint>
#include <string_view>

#include "kernels/problem/system_key.h"

namespace deeppcr {

enum class InitialGuess : uint8_t {
  kFromPlan,
  kConstant,    // z_0 at every interval end
  kCoarse,      // a run with few evaluations of the denoiser; diffusion only
  kCalibrated,  // affine map z_0 -> y_p fitted at load
  kPrevious,    // the caller's trajectory
};

enum class JacobianRefresh : uint8_t {
  kFromPlan,
  kEveryIteration,
  kWhileContracting,  // reuse the transition matrices while updates shrink: kReuseContraction
};

enum class OnNoConvergence : uint8_t {
  kFallback,  // the sequential solver answers, bit for bit
  kReturn,    // the last iterate, unconverged
  kError,     // an error
};

// Names as on the wire, in metrics and in plans.
std::string_view ToString(InitialGuess guess);
std::string_view ToString(JacobianRefresh refresh);

// Limit on the iterations where a caller sets none and there are more intervals.
inline constexpr int32_t kDefaultMostIterations = 32;

// Options of a caller. Values marked "plan" are filled by LoadedSystem::Resolve.
struct SolveOptions {
  std::string_view solver = "auto";  // a name of the solver registry, or "auto"
  double rtol = 1e-4;                // [1e-7, 0.1]
  double atol = 1e-6;                // [0, 1]
  int32_t max_iterations = 0;        // 0: min(P, kDefaultMostIterations); at most 10000
  int32_t shooting_interval = 0;     // C in [1, L]; 0: plan
  int32_t warm_sweeps = -1;          // [0, 64]; -1: plan
  InitialGuess initial_guess = InitialGuess::kFromPlan;
  JacobianRefresh jacobian_refresh = JacobianRefresh::kFromPlan;
  OnNoConvergence on_no_convergence = OnNoConvergence::kFallback;
  bool return_trajectory = false;
};

// Options with everything decided. Equal resolved options may be computed in one batch without
// changing a bit.
struct ResolvedOptions {
  std::string_view solver;  // sequential, newton, ...: never auto; static storage
  bool automatic = false;   // auto chose the solver: gives up when slower than sequential
  double rtol = 0;
  double atol = 0;
  int32_t max_iterations = 0;
  int32_t shooting_interval = 0;  // 0 for sequential
  int32_t warm_sweeps = 0;
  InitialGuess initial_guess = InitialGuess::kConstant;
  JacobianRefresh jacobian_refresh = JacobianRefresh::kEveryIteration;
  OnNoConvergence on_no_convergence = OnNoConvergence::kFallback;
  int64_t num_steps = 0;     // L; 0: not checked
  SystemKey system;          // the system that resolved them
  std::string_view backend;  // of the system that resolved them; static storage

  bool operator==(const ResolvedOptions&) const = default;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_OPTIONS_H_
