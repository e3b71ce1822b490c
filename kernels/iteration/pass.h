// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_PASS_H_
#define DEEPPCR_KERNELS_ITERATION_PASS_H_

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
// sample of what may happen. Measured (tests/kernels/conformance): of 60,000 claims at rtol 1e-5
// and 1e-6 none is false with a factor of 1.5 or more, and searches that bend the weights until
// rounding adds up reach 1.95 probes.
inline constexpr float kRoundingFactor = 2;

// Below the least normal float an error counts as none.
inline constexpr float kLeastNormal = 0x1p-126F;

// A ball with the sign of the way that an element has last been found to go, if it went any.
constexpr float Along(float way, float ball) {
  const float size = ball < 0 ? -ball : ball;
  return way > 0 ? size : way < 0 ? -size : ball;
}

// The ball of an element of y_p: how far its error is expected to reach at most, after a correction
// c that followed an update d, with probes of up to rho; it has the sign of c. A quarter of the
// last update is what a contracting iteration leaves; the next two keep the rounding of the test
// itself small in it; the last one lets an error grow that is too small to be a normal number.
constexpr float BallOf(float last_update, float correction, float state, float rho) {
  float ball = 0.25F * (last_update < 0 ? -last_update : last_update);
  const float of_state = 0x1p-15F * (state < 0 ? -state : state);
  const float of_rounding = 8 * kRoundingFactor * rho;
  if (!(ball >= of_state)) ball = of_state;
  if (!(ball >= of_rounding)) ball = of_rounding;
  if ((correction > 0 || correction < 0) && ball < kLeastNormal) ball = kLeastNormal;
  return Along(correction, ball);
}

// How far around a pre-activation probes look for the slope that they go through: terms that cancel
// leave a unit at rest, with no slope, and their rounding, or that of the steps before, wakes it.
// `terms` is the size of those of its sum, `probe` the largest that enters. As far as BallOf
// displaces what is not found to move.
constexpr float SlopeReach(float terms, float probe) {
  return 0x1p-15F * terms + 8 * kRoundingFactor * probe;
}

// An error as a share of its ball.
constexpr float ShareOfBall(float error, float ball) {
  if (error <= kLeastNormal) return 0;
  const float share = error / (ball < 0 ? -ball : ball);
  return share >= 0 ? share : __builtin_inff();  // of no ball, or not a number
}

// From where a confirmation tries the map.
enum class Confirmation : uint8_t {
  kNone,
  kStates,     // the states themselves
  kUpdated,    // where kStates has found that the map takes them
  kDisplaced,  // every element a ball further, the way that it has last been found to go
};

// Where a confirmation puts an element, from its state and the two that stand beside it.
constexpr float TriedAt(Confirmation confirmation, float state, float update, float ball) {
  if (confirmation == Confirmation::kUpdated) return state + update;
  return confirmation == Confirmation::kDisplaced ? state + ball : state;
}

// What the error of an interval is taken to be at most, after a pass that would move it by `update`
// still and with probes of up to rho.
constexpr double ErrorBound(double update, double rho) {
  const double of_both = 2 * update + rho, of_rounding = kRoundingFactor * rho;
  return of_rounding > of_both ? of_rounding : of_both;  // not a number where one of them is none
}

// What stands beside a state y_p [W] after a pass, in the columns of the probes: the update of each
// element, in a confirmation the one that it would have been; and after an update with probes its
// ball.
inline constexpr int kUpdateColumn = 1;
inline constexpr int kBallColumn = 2;

// Largest norms over the intervals of one sample, the first three relative to |y_p| + floor (max
// norms).
struct UpdateNorms {
  double update = 0;    // |d_p|
  double rounding = 0;  // largest probe
  double combined = 0;  // ErrorBound of the two
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
  // Leave the states as they are: norms are those of the way from there to where the map brings
  // what the confirmation puts in their place.
  Confirmation confirmation = Confirmation::kNone;

  constexpr bool confirms() const { return confirmation != Confirmation::kNone; }
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

#endif  // DEEPPCR_KERNELS_ITERATION_PASS_H_
