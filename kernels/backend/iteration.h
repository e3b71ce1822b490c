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
// rounding does to the states. They enter every interval as zeros: the scan adds them up.
inline constexpr int kNumProbes = 4;
// Vectors per interval: the state, then the probes.
inline constexpr int kNumColumns = 1 + kNumProbes;

// What the largest probe is multiplied by to bound the effect of rounding: four probes are a small
// sample of what may happen.
inline constexpr float kRoundingFactor = 3;

// Below the least normal float an error counts as none.
inline constexpr float kLeastNormal = 0x1p-126F;

// The ball of an element of y_p: how far its error is expected to reach at most, after a correction
// c that followed an update d, with probes of up to rho. A quarter of the last update is what a
// contracting iteration leaves; the other two keep the rounding of the test itself small in it.
constexpr float BallOf(float last_update, float state, float rho) {
  float ball = 0.25F * last_update;
  const float of_state = 0x1p-15F * (state < 0 ? -state : state);
  const float of_rounding = 8 * kRoundingFactor * rho;
  if (!(ball >= of_state)) ball = of_state;
  if (!(ball >= of_rounding)) ball = of_rounding;
  return ball;
}

// An error as a share of its ball.
constexpr float ShareOfBall(float error, float ball) {
  if (error <= kLeastNormal) return 0;
  const float share = error / ball;
  return share >= 0 ? share : __builtin_inff();  // of no ball, or not a number
}

// A corner of a ball: element i of y_p goes one way or the other, by a hash of (p, i), and at the
// opposite corner the other way.
enum class Corner : uint8_t { kNone, kOne, kOpposite };

// Where a confirmation puts element i of y_p.
constexpr float Displaced(Corner corner, float state, float ball, int64_t p, int64_t i) {
  if (corner == Corner::kNone) return state;
  uint32_t h = static_cast<uint32_t>(p) * 0x9E3779B9U + static_cast<uint32_t>(i) * 0x85EBCA6BU;
  h ^= h >> 16;
  h *= 0x7FEB352DU;
  h ^= h >> 15;
  h *= 0x846CA68BU;
  h ^= h >> 16;
  return ((h & 1U) != 0) == (corner == Corner::kOne) ? state - ball : state + ball;
}

// What stands beside a state y_p [W] once its update is made, in the columns of the probes: the
// size of the update of each element, and after one with probes its ball.
inline constexpr int kUpdateColumn = 1;
inline constexpr int kBallColumn = 2;

// Largest norms over the intervals of one sample, the first three relative to |y_p| + floor (max
// norms).
struct UpdateNorms {
  double update = 0;    // |d_p|
  double rounding = 0;  // largest probe
  double combined = 0;  // 2 |d_p| + kRoundingFactor times the largest probe
  double share = 0;     // of an element, with kRoundingFactor times its probes, in its ball
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
  // Start from displaced states, and leave them where they were: norms are those of the way from
  // there to where the displaced ones have come.
  Corner corner = Corner::kNone;

  constexpr bool displaced() const { return corner != Corner::kNone; }
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
