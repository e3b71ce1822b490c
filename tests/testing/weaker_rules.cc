// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/weaker_rules.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <variant>

#include "kernels/iteration/stopping.h"
#include "kernels/solver/interval_scan.h"

namespace deeppcr::testing {
namespace {

constexpr std::array<int32_t, 1> kSample = {0};

// The passes of one sample's solve.
class WeakSolve {
 public:
  WeakSolve(const StackAttack& attack, System& system, WeakRule rule)
      : attack_(attack),
        rule_(rule),
        space_(*system.NewSpace({})),
        passes_(*std::get<IterationPasses*>(space_->iteration({}))) {}

  WeakClaim Run() {
    const ResolvedOptions& options = attack_.options;
    space_->Encode(0, {.inputs = attack_.inputs.data()});
    space_->SetShootingInterval(options.shooting_interval);
    if (options.initial_guess == InitialGuess::kPrevious) {
      space_->GuessTrajectory(0, attack_.previous.data());
    } else if (options.initial_guess == InitialGuess::kCalibrated) {
      space_->GuessAffine(0);
    } else {
      space_->GuessConstant(0);
    }
    passes_.Begin(1);
    WeakClaim claim;
    while (claim.iterations < options.max_iterations && finite_ && !claim.claimed) {
      const double d = Pass({}).update;
      ++claim.iterations;
      if (d <= kCertifyBelow || Exact()) claim.claimed = Claims(d, &claim);
    }
    claim.claimed = claim.claimed && finite_;
    if (!claim.claimed) return claim;
    claim.trajectory.resize((attack_.num_steps + 1) * attack_.state_dim);
    float* const to[] = {claim.trajectory.data()};
    passes_.Finish(1, to);
    return claim;
  }

 private:
  bool Exact() const { return updates_ >= space_->num_intervals(); }

  UpdateNorms Pass(IterationKind kind) {
    const StoppingPolicy policy{.rtol = attack_.options.rtol, .atol = attack_.options.atol};
    UpdateNorms norms[1];
    passes_.Propagate(kSample, kind);
    ScanIntervals(passes_, space_->num_intervals(), kSample, kind);
    passes_.Update(kSample, kind, policy.floor(), norms);
    if (kind.confirms()) return norms[0];
    ++updates_;
    finite_ = finite_ && norms[0].finite;
    return norms[0];
  }

  bool Claims(double last, WeakClaim* claim) {
    const double rtol = attack_.options.rtol;
    for (int chord = 0;; ++chord) {
      const UpdateNorms norms = Pass({.refresh = false, .probes = true});
      ++claim->corrections;
      const bool small = kUpdateFactor * norms.update + norms.rounding <= rtol &&
                         kUpdateFactor * norms.update <= kLargestBound;
      if (!small || Exact()) return small;
      const bool contracts =
          norms.update < 0.5 * last || kUpdateFactor * norms.update <= norms.rounding;
      last = norms.update;
      if (rule_ == WeakRule::kChord) return true;
      if (rule_ == WeakRule::kRate) return contracts;
      if (rule_ >= WeakRule::kFront && !(norms.combined <= rtol && norms.share <= 1)) return false;
      if (rule_ == WeakRule::kFront) return true;
      if (rule_ == WeakRule::kUnfollowed)
        return ErrorBound(Returns(Confirmation::kStates), norms.rounding) <= rtol &&
               std::isfinite(Returns(Confirmation::kDisplaced));
      if (chord == 1) return contracts;
    }
  }

  // The distance by which the map still moves the states; infinite if they do not return.
  double Returns(Confirmation confirmation) {
    const UpdateNorms norms = Pass({.refresh = false, .confirmation = confirmation});
    const bool returns = norms.finite && norms.share <= kReturnedShare;
    return returns ? norms.update : std::numeric_limits<double>::infinity();
  }

  const StackAttack& attack_;
  const WeakRule rule_;
  const std::unique_ptr<SolveSpace> space_;
  IterationPasses& passes_;
  int64_t updates_ = 0;
  bool finite_ = true;
};

}  // namespace

std::string_view NameOf(WeakRule rule) {
  constexpr std::string_view kNames[] = {"one chord", "rate", "two chords", "front", "unfollowed"};
  return kNames[static_cast<int>(rule)];
}

WeakClaim SolveByWeakRule(const StackAttack& attack, System& system, WeakRule rule) {
  return WeakSolve(attack, system, rule).Run();
}

}  // namespace deeppcr::testing
