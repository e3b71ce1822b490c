// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_ITERATION_H_
#define DEEPPCR_KERNELS_BACKEND_ITERATION_H_

// What solvers and backends tell one another about an iteration: plain data, for nvcc too.

#include <cstdint>

namespace deeppcr {

// The transition matrices of the linear system that an iteration solves.
enum class Linearization : uint8_t {
  kFull,      // A_p = dF_p/dz: Newton
  kDiagonal,  // its diagonal: quasi-Newton, C = 1 only
  kIdentity,  // I: Picard
  kZero,      // 0: Jacobi
};

// Tangent vectors that pick up the rounding of every step, with random signs, to measure what
// rounding does to the states.
inline constexpr int kNumProbes = 4;
// Vectors per interval: the state, then the probes.
inline constexpr int kNumColumns = 1 + kNumProbes;

// Largest norms over the intervals of one sample, each relative to |y_p| + floor (max norms).
struct UpdateNorms {
  double update = 0;    // |d_p|
  double rounding = 0;  // largest probe
  double combined = 0;  // 2 |d_p| + largest probe
  uint8_t finite = 1;   // every state; no bool, as kernels without a barrier read what is none
};

// What an operation cost, counted by the loops that ran.
struct PassCount {
  int64_t stages = 0;   // steps that had to wait for one another
  int64_t columns = 0;  // vectors pushed through all L steps
};

// Which part of the work an iteration does.
struct IterationKind {
  Linearization linearization = Linearization::kFull;
  bool refresh = true;  // evaluate the transition matrices and their tree anew; else reuse them
  bool probes = false;  // carry the probes along

  constexpr bool has_matrices() const {
    return linearization == Linearization::kFull || linearization == Linearization::kDiagonal;
  }
  constexpr bool forms_matrices() const { return refresh && has_matrices(); }
  constexpr bool forms_jacobians() const {
    return refresh && linearization == Linearization::kFull;
  }
  constexpr int vectors() const { return probes ? kNumColumns : 1; }
  // Pushed through all steps. A diagonal takes none of its own.
  constexpr int64_t columns(int64_t state_dim) const {
    return vectors() + (forms_jacobians() ? state_dim : 0);
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_ITERATION_H_
