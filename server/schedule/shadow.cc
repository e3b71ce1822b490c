// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/shadow.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

namespace deeppcr {
namespace {

// One is enough: Compare warms caches by a repetition of its own.
constexpr int kRepetitions = 1;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The options of the request's own half of the pair. Nothing gives up early for being slow: the
// pair is there to measure that.
ResolvedOptions ToTheEnd(const ResolvedOptions& primary) {
  ResolvedOptions options = primary;
  options.automatic = false;
  return options;
}

// The other half of the pair: sequential, or the plan's best parallel solver.
absl::StatusOr<ResolvedOptions> Counterpart(const LoadedSystem& system,
                                            const ResolvedOptions& primary) {
  SolveOptions options;
  options.solver = "sequential";
  if (primary.solver == "sequential") options.solver = system.plan().Lookup(1).parallel.solver;
  return system.Resolve(options, 1);
}

// A fallback's error would be that of the sequential solver against itself: an undeserved 0.
bool FellBack(const ComparisonRow& row) {
  return std::any_of(row.reports.begin(), row.reports.end(),
                     [](const SampleReport& report) { return report.fallback; });
}

bool Converged(const ComparisonRow& row) {
  return std::all_of(row.reports.begin(), row.reports.end(),
                     [](const SampleReport& report) { return report.converged; });
}

}  // namespace

ShadowSampler::ShadowSampler(double rate, Batcher& batcher, Metrics& metrics)
    : rate_(rate), batcher_(batcher), metrics_(metrics) {}

bool ShadowSampler::Sample() {
  if (rate_ <= 0) return false;
  const auto before = static_cast<double>(count_.fetch_add(1, std::memory_order_relaxed));
  // The first request is sampled: a fresh server has its pair at once.
  return before == 0 ||
         static_cast<int64_t>((before + 1) * rate_) != static_cast<int64_t>(before * rate_);
}

void ShadowSampler::Offer(const std::shared_ptr<ServedModel>& model, const ResolvedOptions& primary,
                          OwnedSampleInputs sample) {
  // A pair has no trajectory of the caller to start from.
  if (primary.initial_guess == InitialGuess::kPrevious) return;
  if (NowNs() < not_before_ns_.load(std::memory_order_relaxed)) return;
  // Under constant load the task waits on and on; it must not keep an unloaded model alive.
  batcher_.OfferIdleTask([this, weak = std::weak_ptr<ServedModel>(model), primary,
                          sample = std::move(sample)](const CancelToken& token) {
    const std::shared_ptr<ServedModel> served = weak.lock();
    if (served == nullptr) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
    Measure(*served, primary, sample, token);
  });
}

void ShadowSampler::Measure(const ServedModel& model, const ResolvedOptions& primary,
                            const OwnedSampleInputs& sample, const CancelToken& token) {
  const std::shared_ptr<const LoadedSystem> system =
      model.model->Find(primary.num_steps, 1, primary.backend);
  if (system == nullptr) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  const int64_t start = NowNs();
  const std::array<absl::StatusOr<ResolvedOptions>, 2> pair = {ToTheEnd(primary),
                                                               Counterpart(*system, primary)};
  const auto rows = system->Compare(sample.View(), pair, kRepetitions, &token);
  const int64_t end = NowNs();
  not_before_ns_.store(end + static_cast<int64_t>(static_cast<double>(end - start) / kMaxShare),
                       std::memory_order_relaxed);
  if (token.cancelled()) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  const SolverSeries* series = model.metrics->ForSolver(
      primary.solver, model.model->info().generates() ? Method::kGenerate : Method::kForward);
  if (!rows.ok() || rows->size() != pair.size() || series == nullptr ||
      (*rows)[0].seconds.empty() || (*rows)[1].seconds.empty()) {
    return metrics_.CountShadow(ShadowOutcome::kFailed);
  }
  const size_t parallel = primary.solver == "sequential" ? 1 : 0;
  // An unconverged answer, as its client allowed, claims nothing and is not compared.
  if (!std::isfinite((*rows)[parallel].max_state_error) || !Converged((*rows)[0]) ||
      !Converged((*rows)[1])) {
    return metrics_.CountShadow(ShadowOutcome::kFailed);
  }
  const double sequential_seconds = (*rows)[1 - parallel].seconds.front();
  ObserveFinite(*series->speedup_ratio, sequential_seconds / (*rows)[parallel].seconds.front());
  if (!FellBack((*rows)[parallel]))
    ObserveFinite(*series->shadow_relative_error, (*rows)[parallel].max_state_error);
  metrics_.CountShadow(ShadowOutcome::kMeasured);
}

}  // namespace deeppcr
