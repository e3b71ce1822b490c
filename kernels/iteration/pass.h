// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_PASS_H_
#define DEEPPCR_KERNELS_ITERATION_PASS_H_

// Data about an iteration that solvers and backends exchange: plain data, for nvcc too.

#include <cstdint>

namespace deeppcr {

// The transition matrices of the linear system that an iteration solves.
enum class Linearization : uint8_t {
  kFull,      // A_p = dF_p/dz: Newton
  kDiagonal,  // the diagonal of dF_p/dz: quasi-Newton, C = 1 only
  kIdentity,  // I: Picard
  kZero,      // 0: Jacobi
};

// Number of probes: tangent vectors that pick up the rounding of every step, with random signs, to
// measure the effect of rounding on the states. Probes enter every interval as zeros: the scan adds
// them up.
inline constexpr int kNumProbes = 4;
// Vectors per interval: the state, then the probes.
inline constexpr int kNumColumns = 1 + kNumProbes;

// Number by which the signs of the rounding in `step` are drawn, the `draw`-th time. A claim that a
// confirmation has refused is made again with more probes, of other signs: an element near zero
// that met four small ones has a ball smaller than its rounding, and would be refused for ever. The
// largest of all that an element has met counts, so that no claim passes for a lucky draw.
constexpr int64_t DrawOfSigns(int64_t step, int64_t draw, int64_t num_steps) {
  return step + draw * num_steps;
}

// Factor of the largest probe that bounds the effect of rounding: four probes are a small sample of
// the possible effects. Measured (tests/kernels/conformance): no claim of 60,000 at rtol 1e-5 and
// 1e-6 is false with a factor of 1.5 or more. Searches that bend the weights until rounding adds up
// reach 2.6 probes; five of 300,000 claims at a tolerance lowered to their own bound reached up to
// 2.9, through rounding of activations, which is no source of its own. A factor of 2.5 stops
// neither and refuses what is right: some of digits-resnet at rtol 1e-5.
inline constexpr float kRoundingFactor = 2;

// Square of the rounding of a sum of n terms, one added after another, by that of a sum of a few:
// the squares of the n partial sums add up to n / 2 times the square of the whole sum on average,
// and each partial sum is rounded by 2^-24 of its size at most, the square of its rounding being a
// sixth of the square of this bound on average. Kernels with several partial sums round less.
constexpr float SquaredRoundingOfSum(int64_t n) {
  const float squared = static_cast<float>(n) / 12;
  return squared > 1 ? squared : 1;
}

// The rounding of a product's sum of n terms, which are added one after another, is the root of
//   (RoundingOfLongSum(n) spread |x|)^2 + (RoundingOfDrift(n) y)^2
// in units of 2^-24. The spread (RoundingSpread of kernels/backend/common.h) is of terms that go to
// and fro. Where they have a sign in common, the partial sums grow to y in equal parts, and the
// squares of their rounding add up to n / 18 of y^2. Thousands of terms of like sizes round alike,
// which the longest sums make room for. Measured: tests/kernels/cpu/program/sums_test.cc.
inline float RoundingOfLongSum(int64_t n) {
  return __builtin_sqrtf(1 + static_cast<float>(n) / 8192);
}
inline float RoundingOfDrift(int64_t n) {
  const float squares = static_cast<float>(n) / 12;
  return RoundingOfLongSum(n) * __builtin_sqrtf(squares > 1 ? squares : 1);
}

// Least normal float; an error up to this size counts as zero.
inline constexpr float kLeastNormal = 0x1p-126F;

// Gives `ball` the sign of `way`, the last known movement of an element; a zero `way` leaves the
// sign as it is.
constexpr float Along(float way, float ball) {
  const float size = ball < 0 ? -ball : ball;
  return way > 0 ? size : way < 0 ? -size : ball;
}

// Ball of an element of y_p: the largest error that is expected after a correction c that followed
// an update d, with probes of up to rho. The ball has the sign of c and is the largest of four
// sizes. A contracting iteration leaves a quarter of d; the shares of the state and of rho keep the
// rounding of the test itself small within the ball; the least normal float lets an error grow that
// is too small to be a normal number.
constexpr float BallOf(float last_update, float correction, float state, float rho) {
  float ball = 0.25F * (last_update < 0 ? -last_update : last_update);
  const float of_state = 0x1p-15F * (state < 0 ? -state : state);
  const float of_rounding = 8 * kRoundingFactor * rho;
  if (!(ball >= of_state)) ball = of_state;
  if (!(ball >= of_rounding)) ball = of_rounding;
  if ((correction > 0 || correction < 0) && ball < kLeastNormal) ball = kLeastNormal;
  return Along(correction, ball);
}

// Distance from a pre-activation within which probes look for the slope that they go through: terms
// that cancel may leave a unit at rest, with no slope, until the rounding of these terms or of
// earlier steps wakes the unit. `terms` is the size of the terms of the pre-activation's sum,
// `probe` the largest probe that enters. BallOf displaces an element that is not found to move by
// shares of the same size.
constexpr float SlopeReach(float terms, float probe) {
  return 0x1p-15F * terms + 8 * kRoundingFactor * probe;
}

// An error as a share of its ball.
constexpr float ShareOfBall(float error, float ball) {
  if (error <= kLeastNormal) return 0;
  const float share = error / (ball < 0 ? -ball : ball);
  return share >= 0 ? share : __builtin_inff();  // the ball is zero, or NaN
}

// States at which a confirmation tries the map.
enum class Confirmation : uint8_t {
  kNone,
  kStates,     // the states themselves
  kUpdated,    // the states to which the map took those of the confirmation before
  kDisplaced,  // every element displaced by its ball, in the direction of its last known movement
};

// Value of an element that a confirmation tries, from the element's state, update and ball.
constexpr float TriedAt(Confirmation confirmation, float state, float update, float ball) {
  if (confirmation == Confirmation::kUpdated) return state + update;
  return confirmation == Confirmation::kDisplaced ? state + ball : state;
}

// Error of a state that a pass would still move by an update, in updates: what a contraction by a
// half leaves.
inline constexpr double kUpdateFactor = 2;

// Bound of the error of an interval after a pass that would still move its state by `update`, with
// probes of up to rho.
constexpr double ErrorBound(double update, double rho) {
  const double of_both = kUpdateFactor * update + rho, of_rounding = kRoundingFactor * rho;
  return of_rounding > of_both ? of_rounding : of_both;  // NaN if update or rho is NaN
}

// Columns of the probes that hold data of a state y_p [W] after a pass: the update of each element
// (in a confirmation, the update that the element would have made), and after an update with probes
// the ball of each element and the largest probe that it has met.
inline constexpr int kUpdateColumn = 1;
inline constexpr int kBallColumn = 2;
inline constexpr int kRoundingColumn = 4;

// Largest norms over the intervals of one sample, the first three relative to |y_p| + floor (max
// norms).
struct UpdateNorms {
  double update = 0;    // |d_p|
  double rounding = 0;  // largest probe
  double combined = 0;  // ErrorBound of the two
  double share = 0;     // |d| + kRoundingFactor |probe| of an element by its ball
  uint8_t finite = 1;   // every state; no bool, as kernels without a barrier may read other bytes
};

// Cost of an operation, counted by the loops that ran.
struct PassCount {
  int64_t stages = 0;   // dependent steps: each had to wait for the one before
  int64_t columns = 0;  // vectors pushed through all L steps
};

// Kind of an iteration: the parts of the work that it does.
struct IterationKind {
  Linearization linearization = Linearization::kFull;
  bool refresh = true;  // evaluate the transition matrices and their tree anew; else reuse them
  bool probes = false;  // carry the probes along
  // A confirmation leaves the states as they are: norms measure the way from the states to the
  // map's image of the states that the confirmation tries.
  Confirmation confirmation = Confirmation::kNone;
  int32_t draw = 0;  // of the signs of the probes (DrawOfSigns); 0 where none are carried

  constexpr bool confirms() const { return confirmation != Confirmation::kNone; }
  constexpr bool has_matrices() const {
    return linearization == Linearization::kFull || linearization == Linearization::kDiagonal;
  }
  constexpr bool forms_matrices() const { return refresh && has_matrices(); }
  constexpr bool forms_jacobians() const {
    return refresh && linearization == Linearization::kFull;
  }
  // The probes of the draws before count too.
  constexpr bool more_probes() const { return probes && draw > 0; }
  constexpr int vectors() const { return probes ? kNumColumns : 1; }
  // Vectors pushed through all steps. A diagonal takes no vectors of its own.
  constexpr int64_t columns(int64_t state_dim) const {
    return vectors() + (forms_jacobians() ? state_dim : 0);
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ITERATION_PASS_H_
