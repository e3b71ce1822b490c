// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_STOPPING_H_
#define DEEPPCR_KERNELS_SOLVER_STOPPING_H_

// When to stop, and what to do next: the one place where it is decided, per sample, from the norms
// of an update.
//
// The certificate. A small update d of a Newton pass (relative size at most 0.1) is followed by a
// pass that reuses the matrices at hand (a chord correction c) and carries the probes. The answer
// is certified when
//     2 |c| + rho <= rtol,  2 |c| <= 0.01   (max norms per interval, relative to |y_p| + atol/rtol)
// where rho is the effect of rounding that the probes have picked up. Neither the residual, nor a
// small update, nor an extrapolated rate is safe near the edge of stability:
// tests/kernels/solver/certificate_test.cc runs the systems that tell. The error that is left after
// c has been applied is smaller than the bound that certified it; reported is
//     error_estimate = min(2, 10 theta) |c| + rho,   theta = |c| / |d|.
//
// Quasi-Newton, Picard and Jacobi contract linearly: with theta = |d_k| / |d_(k-1)| < 0.5 after at
// least three iterations and |d_k| theta / (1 - theta) <= rtol they claim to be done. That claim
// alone was false for one system in ten (information that still travels along the intervals is not
// in |d_k|), so it is put to the same certificate: one Newton pass and its correction.
//
// After as many updates as there are intervals the states are exact (causality); then only rho is
// left.
//
// Plain data and constexpr functions: device code makes the same decisions with the same source.

#include <cstdint>

#include "kernels/backend/iteration.h"
#include "kernels/solver/report.h"

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

  constexpr double floor() const { return atol / rtol; }
};

enum class NextPass : uint8_t {
  kWarmSweep,  // Picard, before the solver itself
  kIterate,    // the solver's own transition matrices, evaluated anew
  kLinearize,  // Jacobians, to put the claim of a linearly convergent solver to the certificate
  kCorrect,    // the Jacobians at hand
  kStop,
};

// What a pass computes.
constexpr IterationKind KindOf(NextPass next, bool probes, Linearization linearization) {
  IterationKind kind;
  if (next == NextPass::kWarmSweep) kind.linearization = Linearization::kIdentity;
  if (next == NextPass::kIterate) kind.linearization = linearization;
  kind.refresh = next != NextPass::kCorrect;
  kind.probes = probes;
  return kind;
}

// How far one sample has come.
struct Progress {
  NextPass next = NextPass::kIterate;
  bool probes = false;  // the next pass carries them
  int32_t warm_sweeps = 0;
  int32_t iterations = 0;
  int32_t corrections = 0;
  int64_t stages = 0;
  int64_t columns = 0;
  double update = 0;       // of the last pass
  double contraction = 1;  // theta of the last pass; 1 where it is not known
  double error_estimate = 0;
  double rounding_estimate = 0;
  Termination termination = Termination::kConverged;

  constexpr int64_t updates() const { return int64_t{warm_sweeps} + iterations + corrections; }
};

inline constexpr double kCertifyBelow = 0.1;  // relative update at which certification starts
inline constexpr double kReuseContraction =
    0.2;  // matrices are reused while updates shrink this much
inline constexpr double kLinearContraction = 0.5;  // theta above which a linear rate is not trusted
inline constexpr int32_t kLinearIterations = 3;
// Larger corrections bound no error, whatever the tolerance: two passes on the wrong side of a clip
// or of a steep slope may agree with one another to a few per cent.
inline constexpr double kLargestBound = 0.01;

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

constexpr void Correct(bool probes, Progress* progress) {
  progress->next = NextPass::kCorrect;
  progress->probes = probes;
}

// Judges a correction that carried probes: true if that ended the solve.
constexpr bool Judge(const StoppingPolicy& policy, const UpdateNorms& norms, Progress* progress) {
  const double theta = progress->contraction;
  progress->rounding_estimate = norms.rounding;
  progress->error_estimate = norms.update * (10 * theta < 2 ? 10 * theta : 2) + norms.rounding;
  if (norms.combined <= policy.rtol && 2 * norms.update <= kLargestBound) {
    Stop(progress, Termination::kConverged);
  } else if (norms.combined > policy.rtol && 2 * norms.update <= norms.rounding) {
    Stop(progress, Termination::kPrecisionLimited);
  }
  return progress->next == NextPass::kStop;
}

constexpr void AfterNewtonPass(const StoppingPolicy& policy, NextPass done,
                               const UpdateNorms& norms, Progress* progress) {
  const bool close = IsClose(policy, *progress);
  if (done == NextPass::kIterate) {
    if (close || policy.reuse_matrices) return Correct(close, progress);
  } else {
    if (progress->probes && Judge(policy, norms, progress)) return;
    if (policy.reuse_matrices && progress->contraction < kReuseContraction)
      return Correct(close, progress);
  }
  IterateOrStop(policy, progress);
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

// Takes in the outcome of the pass `progress->next` and decides on the next one.
constexpr void AdvanceProgress(const StoppingPolicy& policy, const UpdateNorms& norms,
                               int64_t stages, int64_t columns, Progress* progress) {
  const NextPass done = progress->next;
  progress->stages += stages;
  progress->columns += columns;
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
  const bool over = policy.stage_budget > 0 && progress->stages > policy.stage_budget;
  if (over && progress->next != NextPass::kStop) Stop(progress, Termination::kSlow);
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_STOPPING_H_
