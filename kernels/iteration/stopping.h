// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_ITERATION_STOPPING_H_
#define DEEPPCR_KERNELS_ITERATION_STOPPING_H_

// Stopping rule: the one place that decides, per sample and from the norms of an update, when to
// stop and which pass comes next.
//
// The certificate. A Newton pass leaves states y and matrices A. The passes from there to a claim
// reuse A, so all of them are evaluations of one map, the chord map
//     T(y) = y + (I - A S)^-1 (F(y) - y),   S: the shift by one interval,
// whose only fixed point is the sequential trajectory: by causality T(y) = y means y_p = F_p(y_p-1)
// for all p, from y_0 on. The error of y is bounded by a ball that T maps into itself (Brouwer: a
// continuous map of a ball into itself has a fixed point there, and there is no other one); where T
// contracts the ball by kappa, |y* - y| <= |T(y) - y| / (1 - kappa). Three conditions have to hold
// after an update of relative size at most 0.1:
//   1. The correction c = T(y) - y and the rounding rho, which probes pick up in the same pass, are
//      small enough: max(2 |c| + rho, kRoundingFactor rho) <= rtol and 2 |c| <= 0.01, max norms per
//      interval relative to |y_p| + atol/rtol.
//   2. Every element of every y_p has moved no further than its ball, which was predicted from the
//      update before: BallOf in kernels/iteration/pass.h. Information that still travels from
//      interval to interval, unseen by the slopes, fails this condition: where the front of the
//      information arrives, no movement was predicted.
//   3. Confirmations, passes that leave the states as they are. The first confirmation tries the
//      states y' = y + c: x = T(y') - y' is the remaining error, but for rounding and for
//      components that T does not contract; max(2 |x| + rho, kRoundingFactor rho) <= rtol is the
//      bound that certifies. Where x is more than rounding, further confirmations try y' + x, the
//      answer as the one before found it, and have to end within the same bound of y': a step
//      between y' and these states, however narrow, shows there. Each follows x to what it has
//      found, x <- T(y' + x) - y', until the rest of the way, taken to shrink to a quarter in every
//      pass, is rounding. The last confirmation tries y' with every element displaced by its ball,
//      in the direction in which the element was found to move: the answer would lie there if the
//      error were as large as the ball. Whatever A does not represent of the way there, be it a
//      kink, a clip, curvature, or slopes of a state long left, keeps T from bringing the element
//      back. All confirmations must end within a quarter of the ball of y', element by element.
// For a map that is linear within the ball x is rounding, so (3) costs a smooth or settled system
// two passes of vectors and no claim. Condition (3) tests one direction, in which the error was
// found to lie, and is no proof for all directions: evidence about kinks that only another
// direction crosses comes from the searches in tests/kernels/conformance. Neither the residual, nor
// a small update, nor an extrapolated rate, nor (1) alone (a unit at rest behind a kink hides a
// growing error from A), nor (1) and (2) are enough: tests/testing/weaker_rules.h plants each of
// them. Displacing by fixed random signs is not enough either: a unit that reads two equal channels
// may see nothing of the displacement.
//
// The reported error_estimate is 2 |x| + rho, with the largest x of all confirmations but the last.
//
// Quasi-Newton, Picard and Jacobi contract linearly: with theta = |d_k| / |d_(k-1)| < 0.5 after at
// least three iterations and |d_k| theta / (1 - theta) <= rtol they claim to be done. This claim
// alone was false for one system in ten (information that still travels along the intervals is not
// in |d_k|), so the claim is put to the same certificate: one Newton pass, its correction, its
// confirmations.
//
// After as many updates as there are intervals the states are exact (causality); then only rho is
// left.
//
// A claim that a confirmation has refused is made again, after another iteration, with more probes:
// DrawOfSigns.
//
// Plain data and constexpr functions: device code makes the same decisions with the same source.

#include <cstdint>

#include "kernels/iteration/pass.h"
#include "kernels/iteration/termination.h"

namespace deeppcr {

struct StoppingPolicy {
  Linearization linearization = Linearization::kFull;
  double rtol = 1e-4;
  double atol = 1e-6;
  int32_t max_iterations = 32;  // a claim made by the last one may still be put to the certificate
  int32_t warm_sweeps = 0;
  bool reuse_matrices = false;  // JacobianRefresh::kWhileContracting
  int64_t num_intervals = 1;
  int64_t stage_budget = 0;  // give up beyond so many dependent stages; 0: never

  // Floor of relative norms: where the state is zero, an error of atol, or of the least normal
  // float if that is larger, is a relative error of rtol.
  constexpr double floor() const { return (atol > kLeastNormal ? atol : kLeastNormal) / rtol; }
};

enum class NextPass : uint8_t {
  kWarmSweep,  // Picard, before the solver itself
  kIterate,    // the solver's own transition matrices, evaluated anew
  kLinearize,  // Jacobians, to put the claim of a linearly convergent solver to the certificate
  kCorrect,    // an update with the Jacobians at hand
  kConfirm,    // a pass with the Jacobians at hand that leaves the states as they are
  kConfirmUpdated,
  kConfirmDisplaced,
  kStop,
};

// Progress of one sample.
struct Progress {
  NextPass next = NextPass::kIterate;
  bool probes = false;   // the next pass carries the probes
  bool refused = false;  // the last claim, and no pass with probes is due or has been made since
  int32_t draws = 0;     // claims that were refused and made again: draws of signs before this one
  int32_t warm_sweeps = 0;
  int32_t iterations = 0;
  int32_t corrections = 0;
  int32_t confirmations = 0;
  int64_t stages = 0;
  int64_t columns = 0;
  double update = 0;       // size of the last update
  double contraction = 1;  // theta of the last pass; 1 where theta is not known
  double error_estimate = 0;
  double rounding_estimate = 0;
  double remaining_way = 0;  // from the states last tried to the answer, in a confirmation
  Termination termination = Termination::kMaxIterations;  // if the solve ended here

  constexpr int64_t updates() const { return int64_t{warm_sweeps} + iterations + corrections; }
};

// Kind of the iteration that the next pass runs.
constexpr IterationKind KindOf(const Progress& progress, Linearization linearization) {
  const NextPass next = progress.next;
  IterationKind kind;
  if (next == NextPass::kWarmSweep) kind.linearization = Linearization::kIdentity;
  if (next == NextPass::kIterate) kind.linearization = linearization;
  kind.refresh = next < NextPass::kCorrect;
  if (next == NextPass::kConfirm) kind.confirmation = Confirmation::kStates;
  if (next == NextPass::kConfirmUpdated) kind.confirmation = Confirmation::kUpdated;
  if (next == NextPass::kConfirmDisplaced) kind.confirmation = Confirmation::kDisplaced;
  kind.probes = progress.probes;
  if (kind.probes) kind.draw = progress.draws;
  return kind;
}

inline constexpr double kCertifyBelow = 0.1;  // relative update at which certification starts
inline constexpr double kReuseContraction =
    0.2;                                    // matrices are reused while updates shrink this much
inline constexpr double kReuseBelow = 0.2;  // relative update at which reuse starts
inline constexpr double kLinearContraction = 0.5;  // theta above which a linear rate is not trusted
inline constexpr int32_t kLinearIterations = 3;
// Larger corrections bound no error, whatever the tolerance: two passes on the wrong side of a clip
// or of a steep slope may agree with one another to a few per cent.
inline constexpr double kLargestBound = 0.01;
// Share of its ball within which the chord map has to bring back an element of the tried states.
inline constexpr double kReturnedShare = 0.25;
// Share of the way to the answer that is taken to remain after a confirmation has followed it.
inline constexpr double kRemainingShare = 0.25;
// Smallest way that a confirmation follows again: float32 knows no smaller one.
inline constexpr double kLeastWay = 0x1p-24;
// Share of the update before: a larger correction is noise if it is also no larger than rounding.
inline constexpr double kNoiseContraction = 0.25;

constexpr void Stop(Progress* progress, Termination termination) {
  progress->next = NextPass::kStop;
  progress->termination = termination;
}

// True if causality has made every state exact.
constexpr bool IsExact(const StoppingPolicy& policy, const Progress& progress) {
  return progress.updates() >= policy.num_intervals;
}

constexpr bool IsClose(const StoppingPolicy& policy, const Progress& progress) {
  return progress.update <= kCertifyBelow || IsExact(policy, progress);
}

// Iterates again, unless a limit says stop.
constexpr void IterateOrStop(const StoppingPolicy& policy, Progress* progress) {
  progress->next = NextPass::kIterate;
  progress->probes = false;
  if (progress->iterations >= policy.max_iterations) Stop(progress, Termination::kMaxIterations);
}

// Corrects, with other probes than before where these made a claim that was refused.
constexpr void Correct(bool probes, Progress* progress) {
  progress->next = NextPass::kCorrect;
  progress->probes = probes;
  if (!probes || !progress->refused) return;
  ++progress->draws;
  progress->refused = false;
}

// True if the bound of a correction is rounding, which further iterations do not reduce.
constexpr bool IsRounding(const StoppingPolicy& policy, const UpdateNorms& norms,
                          double contraction) {
  const double rounding = kRoundingFactor * norms.rounding;
  return kUpdateFactor * norms.update <= rounding &&
         (rounding > policy.rtol || contraction > kNoiseContraction);
}

// Judges a correction that carried probes: true if the correction ends the solve or calls for a
// confirmation.
constexpr bool Judge(const StoppingPolicy& policy, const UpdateNorms& norms, Progress* progress) {
  const bool small = norms.combined <= policy.rtol && kUpdateFactor * norms.update <= kLargestBound;
  progress->rounding_estimate = norms.rounding;
  if (small && IsExact(policy, *progress)) {
    const double sum =
        kUpdateFactor * norms.update + norms.rounding;  // largest of each, wherever they are
    progress->error_estimate = sum < norms.combined ? sum : norms.combined;
    Stop(progress, Termination::kConverged);
  } else if (small && norms.share <= 1) {
    progress->next = NextPass::kConfirm;
    progress->probes = false;
    return true;
  } else if (norms.combined > policy.rtol && IsRounding(policy, norms, progress->contraction)) {
    Stop(progress, Termination::kPrecisionLimited);
  }
  return progress->next == NextPass::kStop;
}

// Judges a confirmation: true if the claim stands.
constexpr bool Confirms(const StoppingPolicy& policy, NextPass done, const UpdateNorms& norms,
                        Progress* progress) {
  if (!norms.finite || !(norms.share <= kReturnedShare)) return false;
  if (done == NextPass::kConfirmDisplaced) return true;
  const double rounding = progress->rounding_estimate;
  const double estimate = kUpdateFactor * norms.update + rounding;
  const bool larger = done == NextPass::kConfirm || estimate > progress->error_estimate;
  if (larger) progress->error_estimate = estimate;
  return ErrorBound(norms.update, rounding) <= policy.rtol;
}

// True if the next correction may be small enough to be judged, so that probes are worth their
// columns: an iteration squares an error, a correction leaves about a tenth of it. Where iterations
// no longer reduce the error the correction may be rounding, the last one is tried in any case, and
// one that makes the states exact leaves nothing but rounding.
constexpr bool MayBeJudged(const StoppingPolicy& policy, NextPass done, const Progress& progress) {
  if (!IsClose(policy, progress)) return false;
  const bool iterated = done == NextPass::kIterate;
  const bool stalled =
      iterated && progress.iterations > 1 && progress.contraction > kLinearContraction;
  const bool will_be_exact = progress.updates() + 1 >= policy.num_intervals;
  if (stalled || will_be_exact || progress.iterations >= policy.max_iterations) return true;
  return progress.update * (iterated ? progress.update : kCertifyBelow) <= policy.rtol;
}

constexpr void AfterNewtonPass(const StoppingPolicy& policy, NextPass done,
                               const UpdateNorms& norms, Progress* progress) {
  const bool close = MayBeJudged(policy, done, *progress);
  if (done == NextPass::kIterate) {
    const bool contracting = policy.reuse_matrices && progress->update <= kReuseBelow;
    if (close || contracting) return Correct(close, progress);
  } else {
    if (progress->probes && Judge(policy, norms, progress)) return;
    if (policy.reuse_matrices && progress->contraction < kReuseContraction)
      return Correct(close, progress);
  }
  IterateOrStop(policy, progress);
}

// True if no further confirmation has to follow the way to the answer.
constexpr bool HasArrived(NextPass done, const UpdateNorms& norms, Progress* progress) {
  const bool first = done == NextPass::kConfirm;
  progress->remaining_way = first ? norms.update : kRemainingShare * progress->remaining_way;
  return progress->remaining_way <= progress->rounding_estimate ||
         (!first && progress->remaining_way <= kLeastWay);
}

constexpr void AfterConfirmation(const StoppingPolicy& policy, NextPass done,
                                 const UpdateNorms& norms, Progress* progress) {
  ++progress->confirmations;
  progress->refused = !Confirms(policy, done, norms, progress);
  if (progress->refused) return IterateOrStop(policy, progress);
  if (done == NextPass::kConfirmDisplaced) return Stop(progress, Termination::kConverged);
  progress->next =
      HasArrived(done, norms, progress) ? NextPass::kConfirmDisplaced : NextPass::kConfirmUpdated;
}

// True if a linearly convergent iteration would claim to have converged.
constexpr bool ClaimsConvergence(const StoppingPolicy& policy, const Progress& progress) {
  const double theta = progress.contraction;
  return progress.iterations >= kLinearIterations && theta < kLinearContraction &&
         progress.update * theta / (1 - theta) <= policy.rtol;
}

constexpr void AfterLinearPass(const StoppingPolicy& policy, NextPass done,
                               const UpdateNorms& norms, Progress* progress) {
  if (done == NextPass::kLinearize && IsClose(policy, *progress)) return Correct(true, progress);
  if (done == NextPass::kCorrect && Judge(policy, norms, progress)) return;
  if (done == NextPass::kIterate &&
      (ClaimsConvergence(policy, *progress) || IsExact(policy, *progress))) {
    progress->next = NextPass::kLinearize;
    return;
  }
  IterateOrStop(policy, progress);
}

constexpr Progress StartProgress(const StoppingPolicy& policy) {
  Progress progress;
  if (policy.warm_sweeps > 0) progress.next = NextPass::kWarmSweep;
  return progress;
}

constexpr void StopIfSlow(const StoppingPolicy& policy, Progress* progress) {
  const bool over = policy.stage_budget > 0 && progress->stages > policy.stage_budget;
  if (over && progress->next != NextPass::kStop) Stop(progress, Termination::kSlow);
}

// Takes in the outcome of the pass `progress->next` and decides on the next one.
constexpr void AdvanceProgress(const StoppingPolicy& policy, const UpdateNorms& norms,
                               int64_t stages, int64_t columns, Progress* progress) {
  const NextPass done = progress->next;
  progress->stages += stages;
  progress->columns += columns;
  if (done >= NextPass::kConfirm && done != NextPass::kStop) {
    AfterConfirmation(policy, done, norms, progress);
    return StopIfSlow(policy, progress);
  }
  progress->contraction = progress->update > 0 ? norms.update / progress->update : 1;
  progress->update = norms.update;
  if (done == NextPass::kWarmSweep) ++progress->warm_sweeps;
  if (done == NextPass::kIterate || done == NextPass::kLinearize) ++progress->iterations;
  if (done == NextPass::kCorrect) ++progress->corrections;
  if (!norms.finite) return Stop(progress, Termination::kNonFinite);

  if (done == NextPass::kWarmSweep) {
    if (progress->warm_sweeps >= policy.warm_sweeps) progress->next = NextPass::kIterate;
  } else if (policy.linearization == Linearization::kFull) {
    AfterNewtonPass(policy, done, norms, progress);
  } else {
    AfterLinearPass(policy, done, norms, progress);
  }
  StopIfSlow(policy, progress);
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_ITERATION_STOPPING_H_
