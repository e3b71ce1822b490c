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

SolveOptions Unresolve(const LoadedModel& model, const ResolvedOptions& resolved) {
  SolveOptions options;
  options.solver = resolved.solver;
  options.num_inference_steps = model.info().generates() ? resolved.num_steps : 0;
  // The sequential solver takes no options, and resolves to none.
  if (resolved.solver == "sequential") return options;
  options.rtol = resolved.rtol;
  options.atol = resolved.atol;
  options.on_no_convergence = resolved.on_no_convergence;
  options.max_iterations = resolved.max_iterations;
  options.shooting_interval = resolved.shooting_interval;
  options.warm_sweeps = resolved.warm_sweeps;
  options.initial_guess = resolved.initial_guess;
  options.jacobian_refresh = resolved.jacobian_refresh;
  return options;
}

// The other half of the pair: sequential, or the plan's best parallel solver.
SolveOptions Counterpart(const LoadedModel& model, const ResolvedOptions& primary) {
  SolveOptions options;
  options.solver = "sequential";
  options.num_inference_steps = model.info().generates() ? primary.num_steps : 0;
  if (primary.solver == "sequential")
    options.solver = model.plan(primary.num_steps).Lookup(1).parallel.solver;
  return options;
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

template <typename T>
std::vector<T> Copy(std::span<const T> values) {
  return {values.begin(), values.end()};
}

}  // namespace

SampleCopy::SampleCopy(const RunItem& request)
    : seed_(request.seed), sample_(request.first_sample) {
  const RunItem first = InputsOf(request, 0, 1);
  inputs_ = Copy(first.inputs);
  initial_noise_ = Copy(first.initial_noise);
  step_noise_ = Copy(first.step_noise);
  labels_ = Copy(first.labels);
}

RunItem SampleCopy::Item() const {
  return {.num_samples = 1,
          .inputs = inputs_,
          .seed = seed_,
          .first_sample = sample_,
          .labels = labels_,
          .initial_noise = initial_noise_,
          .step_noise = step_noise_};
}

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
                          SampleCopy sample) {
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
                            const SampleCopy& sample, const CancelToken& token) {
  const int64_t start = NowNs();
  const std::array<SolveOptions, 2> pair = {Unresolve(*model.model, primary),
                                            Counterpart(*model.model, primary)};
  RunItem request = sample.Item();
  request.token = &token;
  const auto rows = model.model->Compare(request, pair, kRepetitions);
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
