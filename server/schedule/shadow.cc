// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/shadow.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <tuple>
#include <utility>

namespace deeppcr {
namespace {

// One is enough: Compare warms caches by a repetition of its own.
constexpr int kRepetitions = 1;

// Compare runs each of a pair this often: to warm up, for its time, and for its states.
constexpr double kRunsOfCompare = kRepetitions + 2;
constexpr double kRunsOfBack = kRepetitions + 1;

// What the states of both halves of a pair may take, and the noise that comes with a request.
constexpr int64_t kMaxPairBytes = int64_t{32} << 20;
constexpr int64_t kMaxPairSamples = 64;
constexpr int kLongestWait = 5;

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
                                            const ResolvedOptions& primary, int64_t num_samples) {
  SolveOptions options;
  options.solver = "sequential";
  if (primary.solver == "sequential")
    options.solver = system.plan().Lookup(num_samples).parallel.solver;
  return system.Resolve(options, num_samples);
}

// A fallback's error would be that of the sequential solver against itself: an undeserved 0.
bool FellBack(const ComparisonRow& row) {
  return std::any_of(row.reports.begin(), row.reports.end(),
                     [](const SampleReport& report) { return report.fallback; });
}

// The largest relative difference of a row of n values, in the max norm. NaN where anything is not
// finite.
double RowError(std::span<const float> row, std::span<const float> exact) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (!std::isfinite(row[i]) || !std::isfinite(exact[i])) return NAN;
    largest = std::max(largest, std::fabs(double{exact[i]}));
    difference = std::max(difference, std::fabs(double{row[i]} - double{exact[i]}));
  }
  return difference == 0 ? 0 : difference / largest;
}

// One way back of a sample, and the gradients that it gives.
class WayBackRun {
 public:
  // The references outlive the object.
  WayBackRun(const OwnedBackwardSample& sample, const ModelInfo& info,
             const BackwardOptions& options, const CancelToken& token)
      : sample_(sample),
        info_(info),
        options_(options),
        token_(token),
        initial_(static_cast<size_t>(sample.columns * info.sample_dim())),
        input_dim_(sample.by_inputs ? std::ssize(sample.samples.View().inputs) : 0),
        inputs_(static_cast<size_t>(sample.columns * input_dim_)) {}

  absl::Status Run(const LoadedSystem& system) {
    BackwardItem item{.samples = sample_.samples.View(),
                      .states = sample_.states,
                      .columns = sample_.columns,
                      .of_outputs = sample_.of_outputs,
                      .of_final = sample_.of_final,
                      .inputs = inputs_,
                      .initial = initial_,
                      .reports = {&report_, 1},
                      .token = &token_};
    const int64_t start = NowNs();
    const absl::Status status = system.GoBack(options_, {&item, 1});
    seconds_ = 1e-9 * static_cast<double>(NowNs() - start);
    return status.ok() ? JudgeReports(item.reports) : status;
  }
  double seconds() const { return seconds_; }  // of the last run

  // The largest relative error of a gradient, each cotangent for itself.
  double ErrorAgainst(const WayBackRun& exact) const {
    double largest = 0;
    for (int64_t column = 0; column < sample_.columns; ++column) {
      for (const auto& [row, other, dim] :
           {std::tuple(&initial_, &exact.initial_, info_.sample_dim()),
            std::tuple(&inputs_, &exact.inputs_, input_dim_)}) {
        const auto at = static_cast<size_t>(column * dim), size = static_cast<size_t>(dim);
        const double error =
            RowError(std::span(*row).subspan(at, size), std::span(*other).subspan(at, size));
        if (!std::isfinite(error)) return error;
        largest = std::max(largest, error);
      }
    }
    return largest;
  }

 private:
  const OwnedBackwardSample& sample_;
  const ModelInfo& info_;
  const BackwardOptions options_;
  const CancelToken& token_;
  std::vector<float> initial_;  // [m, D]
  const int64_t input_dim_;     // of the system; 0: no gradients by the inputs
  std::vector<float> inputs_;   // [m, input_dim]
  BackwardReport report_;
  double seconds_ = 0;
};

bool Converged(const ComparisonRow& row) {
  return std::all_of(row.reports.begin(), row.reports.end(),
                     [](const SampleReport& report) { return report.converged; });
}

}  // namespace

OwnedBackwardSample FirstOf(const BackwardItem& item) {
  const auto first = [&](std::span<const float> all) {
    const size_t row = all.size() / static_cast<size_t>(item.samples.num_samples);
    return std::vector<float>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(row));
  };
  return {.samples = OwnedSampleInputs(SamplesOf(item.samples, 0, 1)),
          .states = first(item.states),
          .columns = item.columns,
          .of_outputs = first(item.of_outputs),
          .of_final = first(item.of_final),
          .by_inputs = !item.inputs.empty()};
}

OwnedSampleInputs SamplesOfPair(const SampleInputs& samples, const ModelInfo& info,
                                int64_t num_steps) {
  const int64_t trajectory = (num_steps + 1) * info.state_dim;
  const int64_t own = samples.same_noise ? 0 : std::ssize(samples.step_noise) / samples.num_samples;
  const int64_t bytes = static_cast<int64_t>(sizeof(float)) * (2 * trajectory + own);
  const int64_t fit = std::clamp<int64_t>(kMaxPairBytes / bytes, 1, kMaxPairSamples);
  return OwnedSampleInputs(SamplesOf(samples, 0, std::min(fit, samples.num_samples)));
}

ShadowSampler::ShadowSampler(double rate, Batcher& batcher, Metrics& metrics)
    : rate_(rate), batcher_(batcher), metrics_(metrics) {}

bool ShadowSampler::Sample(const ServedModel& model) {
  const double rate = model.serving.shadow_rate.value_or(rate_);
  if (rate <= 0) return false;
  const auto before = static_cast<double>(count_.fetch_add(1, std::memory_order_relaxed));
  // The first request is sampled: a fresh server has its pair at once.
  const bool sampled = before == 0 || static_cast<int64_t>((before + 1) * rate) !=
                                          static_cast<int64_t>(before * rate);
  return sampled && IsDue();
}

bool ShadowSampler::IsDue() const {
  return !pending_.load(std::memory_order_relaxed) &&
         NowNs() >= not_before_ns_.load(std::memory_order_relaxed);
}

void ShadowSampler::Offer(const std::shared_ptr<ServedModel>& model, const ResolvedOptions& primary,
                          OwnedSampleInputs samples, bool automatic) {
  // A pair has no trajectory of the caller to start from.
  if (primary.initial_guess == InitialGuess::kPrevious) return;
  const int64_t num_samples = samples.View().num_samples;
  const auto system = model->model->Find(primary.system, num_samples, primary.backend);
  double seconds = 0;
  if (system != nullptr) {
    const PlanEntry& entry = system->plan().Lookup(num_samples);
    if (entry.has_parallel())
      seconds = kRunsOfCompare * (entry.sequential_seconds + entry.parallel_seconds);
  }
  Queue(model, seconds,
        [this, primary, automatic, samples = std::move(samples)](const ServedModel& served,
                                                                 const CancelToken& token) {
          Measure(served, primary, samples, automatic, token);
        });
}

void ShadowSampler::OfferBack(const std::shared_ptr<ServedModel>& model,
                              const ResolvedOptions& solve, const BackwardOptions& primary,
                              OwnedBackwardSample sample) {
  const auto system = model->model->Find(solve.system, 1, solve.backend);
  double seconds = 0;
  if (system != nullptr) {
    const std::optional<PlanWays>& ways = system->plan().Lookup(1).ways;
    if (ways.has_value() && ways->parallel_seconds > 0)
      seconds = kRunsOfBack * static_cast<double>(sample.columns) *
                (ways->sequential_seconds + ways->parallel_seconds);
  }
  Queue(model, seconds,
        [this, solve, primary, sample = std::move(sample)](const ServedModel& served,
                                                           const CancelToken& token) {
          MeasureBack(served, solve, primary, sample, token);
        });
}

// seconds: of the pair, by the plan; 0: not known.
void ShadowSampler::Queue(const std::shared_ptr<ServedModel>& model, double seconds, Task task) {
  if (!IsDue() || pending_.exchange(true)) return;
  // Gone with the task, whether it ran or not.
  const std::shared_ptr<ShadowSampler> pending(
      this, [](ShadowSampler* self) { self->pending_.store(false); });
  Batcher::Clock::time_point insists_at = Batcher::Clock::time_point::max();
  if (seconds > 0 && seconds <= kMaxLoadedSeconds) {
    const std::chrono::nanoseconds allowed(insists_not_before_ns_.load(std::memory_order_relaxed));
    insists_at = std::max(Batcher::Clock::now() + kPatience, Batcher::Clock::time_point(allowed));
  }
  // One that is cancelled waits for its time, if that is near; else others take its place.
  const bool insists_later = insists_at < Batcher::Clock::now() + kLongestWait * kPatience;
  // Under constant load the task may wait on and on; it must not keep an unloaded model alive.
  batcher_.OfferIdleTask(
      [this, pending, insists_later, weak = std::weak_ptr<ServedModel>(model),
       task = std::move(task)](const CancelToken& token, bool insists) {
        const std::shared_ptr<ServedModel> served = weak.lock();
        if (served == nullptr) {
          metrics_.CountShadow(ShadowOutcome::kInterrupted);
          return false;
        }
        const int64_t start = NowNs();
        task(*served, token);
        Rest(start, insists);
        return token.cancelled() && insists_later;
      },
      insists_at);
}

// Lets no pair begin until shadows have taken no more than their shares since start_ns.
void ShadowSampler::Rest(int64_t start_ns, bool insisted) {
  const int64_t end = NowNs();
  const auto after = [&](double share) {
    return end + static_cast<int64_t>(static_cast<double>(end - start_ns) / share);
  };
  not_before_ns_.store(after(kMaxShare), std::memory_order_relaxed);
  if (insisted) insists_not_before_ns_.store(after(kMaxLoadedShare), std::memory_order_relaxed);
}

void ShadowSampler::Measure(const ServedModel& model, const ResolvedOptions& primary,
                            const OwnedSampleInputs& samples, bool automatic,
                            const CancelToken& token) {
  const SampleInputs inputs = samples.View();
  const std::shared_ptr<const LoadedSystem> system =
      model.model->Find(primary.system, inputs.num_samples, primary.backend);
  if (system == nullptr) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  const std::array<absl::StatusOr<ResolvedOptions>, 2> pair = {
      ToTheEnd(primary), Counterpart(*system, primary, inputs.num_samples)};
  const auto rows = system->Compare(inputs, pair, {.repetitions = kRepetitions}, &token);
  if (token.cancelled()) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  if (!rows.ok() || rows->size() != pair.size() || (*rows)[0].seconds.empty() ||
      (*rows)[1].seconds.empty()) {
    return metrics_.CountShadow(ShadowOutcome::kFailed);
  }
  const size_t parallel = primary.solver == "sequential" ? 1 : 0;
  // An unconverged answer, as its client allowed, claims nothing and is not compared.
  if (!std::isfinite((*rows)[parallel].max_state_error) || !Converged((*rows)[0]) ||
      !Converged((*rows)[1])) {
    return metrics_.CountShadow(ShadowOutcome::kFailed);
  }
  const double sequential_seconds = (*rows)[1 - parallel].seconds.front();
  const PairSeries series = model.metrics->ForPair(
      primary.solver, model.model->info().generates() ? Method::kGenerate : Method::kForward);
  ObserveFinite(*series.speedup_ratio, sequential_seconds / (*rows)[parallel].seconds.front());
  if (!FellBack((*rows)[parallel])) {
    ObserveFinite(*series.relative_error, (*rows)[parallel].max_state_error);
    ObserveFinite(*series.error_over_tolerance, (*rows)[parallel].max_error_over_tolerance);
  }
  const PairedSeries paired = model.metrics->ForPaired(
      primary.solver, pair[parallel]->solver, automatic,
      model.model->info().generates() ? Method::kGenerate : Method::kForward);
  paired.pairs->Increment();
  paired.last->SetToCurrentTime();
  metrics_.CountShadow(ShadowOutcome::kMeasured);
}

void ShadowSampler::MeasureBack(const ServedModel& model, const ResolvedOptions& solve,
                                const BackwardOptions& primary, const OwnedBackwardSample& sample,
                                const CancelToken& token) {
  const std::shared_ptr<const LoadedSystem> system =
      model.model->Find(solve.system, 1, solve.backend);
  if (system == nullptr || system->backward_limits() == nullptr)
    return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  const bool sequential = primary.way == BackwardWay::kSequential;
  const absl::StatusOr<BackwardOptions> other =
      ResolveBackward({.way = sequential ? BackwardWay::kParallel : BackwardWay::kSequential},
                      *system->backward_limits(), solve.num_steps);
  if (!other.ok()) return metrics_.CountShadow(ShadowOutcome::kFailed);
  const ModelInfo& info = model.model->info();
  WayBackRun of_sequential(sample, info, sequential ? primary : *other, token);
  WayBackRun of_parallel(sample, info, sequential ? *other : primary, token);
  // The first run of each warms the caches, and makes what is compared.
  absl::Status status;
  for (int repetition = 0; repetition <= kRepetitions; ++repetition) {
    status.Update(of_sequential.Run(*system));
    status.Update(of_parallel.Run(*system));
  }
  if (token.cancelled()) return metrics_.CountShadow(ShadowOutcome::kInterrupted);
  const double error = status.ok() ? of_parallel.ErrorAgainst(of_sequential) : NAN;
  if (!std::isfinite(error)) return metrics_.CountShadow(ShadowOutcome::kFailed);
  const PairSeries series = model.metrics->ForPair(ToString(primary.way), Method::kGradient);
  ObserveFinite(*series.speedup_ratio, of_sequential.seconds() / of_parallel.seconds());
  ObserveFinite(*series.relative_error, error);
  metrics_.CountShadow(ShadowOutcome::kMeasured);
}

}  // namespace deeppcr
