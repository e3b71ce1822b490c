// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/measure.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend/registry.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "kernels/model/model.h"
#include "kernels/problem/philox.h"
#include "kernels/solver/runner.h"

namespace deeppcr::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Largest(std::span<const float> values) {
  double largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(double{x}));
  return largest;
}

// max |got - expected| / max |expected|; NaN if a value is NaN.
double RelativeDifference(std::span<const float> got, std::span<const float> expected) {
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(double{got[i]} - expected[i]);
    if (!(difference <= largest)) largest = difference;
  }
  return largest == 0 ? 0 : largest / Largest(expected);
}

// The largest error of a step of a trajectory [L + 1, D].
double StateError(std::span<const float> got, std::span<const float> expected, int64_t state_dim) {
  double worst = 0;
  const size_t width = static_cast<size_t>(state_dim);
  for (size_t at = 0; at < got.size(); at += width) {
    const double error = RelativeDifference(got.subspan(at, width), expected.subspan(at, width));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

int64_t PlaceOfLargest(std::span<const float> values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void AddSample(const SampleReport& report, Verdict* verdict) {
  ++verdict->samples;
  verdict->converged += report.converged ? 1 : 0;
  verdict->fallbacks += report.fallback ? 1 : 0;
  verdict->mean_iterations += report.iterations;
  verdict->mean_chord_corrections += report.chord_corrections;
  verdict->mean_column_passes += static_cast<double>(report.column_passes);
  verdict->max_stages = std::max(verdict->max_stages, report.dependent_stages);
}

std::span<const float> Row(std::span<const float> values, int64_t row, size_t size) {
  return values.subspan(static_cast<size_t>(row) * size, size);
}

void Compare(const Workload& workload, int64_t sample, const Expected& expected, Verdict* verdict) {
  const auto outputs = Row(workload.outputs(), sample, expected.outputs.size());
  const auto states = Row(workload.trajectory(), sample, expected.trajectory.size());
  const double error = StateError(states, expected.trajectory, workload.model().info().state_dim);
  const double difference = RelativeDifference(outputs, expected.outputs);
  if (!(error <= verdict->max_state_error)) verdict->max_state_error = error;
  if (!(difference <= verdict->max_output_difference)) verdict->max_output_difference = difference;
  verdict->same_largest += PlaceOfLargest(outputs) == PlaceOfLargest(expected.outputs) ? 1 : 0;
}

}  // namespace

absl::StatusOr<int> PinToCore(int core) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return absl::UnknownError(strerror(errno));
  for (int i = 0; core < 0 && i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(CPU_SETSIZE - 1 - i, &set)) core = CPU_SETSIZE - 1 - i;
  }
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return core;
  return absl::InvalidArgumentError(absl::StrCat("core ", core, ": ", strerror(errno)));
}

Workload::Workload(std::shared_ptr<const LoadedModel> model, std::span<const float> inputs,
                   int64_t n)
    : model_(std::move(model)),
      system_(model_->Find()),
      inputs_(inputs),
      n_(n),
      input_dim_(model_->info().input_dim) {
  const ModelInfo& info = model_->info();
  outputs_.resize(static_cast<size_t>(n * info.output_dim));
  trajectory_.resize(static_cast<size_t>(n * (info.num_layers + 1) * info.state_dim));
  reports_.resize(static_cast<size_t>(n));
}

int64_t Workload::num_batches() const {
  const bool draws = model_->info().generates();
  const int64_t count = draws ? kDrawnSamples : static_cast<int64_t>(inputs_.size()) / input_dim_;
  return std::max<int64_t>(1, count / n_);
}

RunItem Workload::Item(int64_t index, bool trajectory) {
  const int64_t batch = index % num_batches();
  const size_t size = static_cast<size_t>(n_ * input_dim_);
  return {.samples = {.num_samples = n_,
                      .inputs = Row(inputs_, batch, size),
                      .seed = kSeed,
                      .first_sample = static_cast<uint64_t>(batch * n_)},
          .outputs = outputs_,
          .trajectory = trajectory ? std::span<float>(trajectory_) : std::span<float>(),
          .reports = reports_};
}

absl::Status Workload::Run(const ResolvedOptions& options, int64_t index, bool trajectory) {
  RunItem item = Item(index, trajectory);
  return system_->Run(options, {&item, 1}, nullptr);
}

absl::StatusOr<double> Workload::Time(const ResolvedOptions& options, int64_t index) {
  RunItem item = Item(index, false);
  const Clock::time_point start = Clock::now();
  const absl::Status status = system_->Run(options, {&item, 1}, nullptr);
  const Clock::time_point end = Clock::now();
  if (!status.ok()) return status;
  return std::chrono::duration<double>(end - start).count();
}

absl::StatusOr<std::vector<std::vector<double>>> TimeInTurns(Workload* workload,
                                                             std::span<const Candidate> candidates,
                                                             double seconds,
                                                             const std::vector<bool>& skip) {
  std::vector<std::vector<double>> all(candidates.size());
  std::vector<double> spent(candidates.size());
  bool working = true;
  for (int64_t turn = 0; std::exchange(working, false); ++turn) {
    for (size_t c = 0; c < candidates.size(); ++c) {
      if ((!all[c].empty() && spent[c] >= seconds) || (!skip.empty() && skip[c])) continue;
      working = true;
      const ResolvedOptions& options = candidates[c].options;
      DEEPPCR_ASSIGN_OR_RETURN(const double first, workload->Time(options, turn));
      if (first > seconds) {
        all[c].push_back(first);
        spent[c] += first;
        continue;
      }
      for (int i = 0; i < kTimedRuns && (i == 0 || spent[c] < seconds); ++i) {
        DEEPPCR_ASSIGN_OR_RETURN(const double s, workload->Time(options, turn + i + 1));
        all[c].push_back(s);
        spent[c] += s;
      }
    }
  }
  return all;
}

absl::StatusOr<Verdict> Judge(Workload* workload, const ResolvedOptions& options,
                              std::span<const Expected> expected) {
  Verdict verdict;
  const int64_t n = workload->samples();
  for (int64_t batch = 0; (batch + 1) * n <= static_cast<int64_t>(expected.size()); ++batch) {
    DEEPPCR_RETURN_IF_ERROR(workload->Run(options, batch, true));
    for (int64_t i = 0; i < n; ++i) {
      AddSample(workload->reports()[static_cast<size_t>(i)], &verdict);
      Compare(*workload, i, expected[static_cast<size_t>(batch * n + i)], &verdict);
    }
  }
  const double count = static_cast<double>(verdict.samples);
  verdict.mean_iterations /= count;
  verdict.mean_chord_corrections /= count;
  verdict.mean_column_passes /= count;
  return verdict;
}

absl::StatusOr<std::vector<Expected>> SequentialAnswers(std::shared_ptr<const LoadedModel> model,
                                                        std::span<const float> inputs,
                                                        int64_t count) {
  const int64_t n = model->info().generates() ? count : 1;
  Workload workload(model, inputs, n);
  DEEPPCR_ASSIGN_OR_RETURN(const ResolvedOptions options,
                           model->Find()->Resolve({.solver = "sequential"}, n));
  const size_t num_states = workload.trajectory().size() / static_cast<size_t>(n);
  const size_t num_outputs = workload.outputs().size() / static_cast<size_t>(n);
  std::vector<Expected> answers;
  for (int64_t i = 0; i < count; ++i) {
    if (i % n == 0) DEEPPCR_RETURN_IF_ERROR(workload.Run(options, i / n, true));
    const auto states = Row(workload.trajectory(), i % n, num_states);
    const auto outputs = Row(workload.outputs(), i % n, num_outputs);
    answers.push_back({{states.begin(), states.end()}, {outputs.begin(), outputs.end()}});
  }
  return answers;
}

std::vector<float> DrawnNoise(const ModelInfo& info, int64_t count) {
  const int64_t dim = info.state_dim;
  std::vector<float> noise(static_cast<size_t>(count * (info.num_layers + 1) * dim));
  float* to = noise.data();
  for (int64_t i = 0; i < count; ++i) {
    const auto sample = static_cast<uint64_t>(i);
    FillNormals(kSeed, sample, kInitialNoiseStep, dim, to);
    to += dim;
    for (int64_t l = 0; l < info.num_layers; ++l, to += dim)
      FillNormals(kSeed, sample, static_cast<uint32_t>(l), dim, to);
  }
  return noise;
}

absl::StatusOr<std::vector<Expected>> ReferenceAnswers(const std::string& directory,
                                                       std::span<const float> inputs,
                                                       int64_t count) {
  DEEPPCR_ASSIGN_OR_RETURN(const Model model, ReadModel(directory, {}));
  DEEPPCR_ASSIGN_OR_RETURN(const SelectedBackends selected, SelectBackends("reference"));
  const SystemSpec& spec = model.systems.front();
  DEEPPCR_ASSIGN_OR_RETURN(const auto system, selected.backends.front().backend->NewSystem(spec));
  const SystemShape shape = ShapeOf(spec);
  ThreadPool pool(1);
  DEEPPCR_ASSIGN_OR_RETURN(const auto runner,
                           Runner::Create(*system, shape, {.iterative = false}, &pool, 1));
  const size_t states = static_cast<size_t>((shape.num_steps + 1) * shape.state_dim);
  std::vector<Expected> answers;
  for (int64_t i = 0; i < count; ++i) {
    Expected e{std::vector<float>(states),
               std::vector<float>(static_cast<size_t>(shape.output_dim))};
    SampleReport report;
    RunItem item{.samples = {.num_samples = 1,
                             .inputs = Row(inputs, i, static_cast<size_t>(shape.input_dim)),
                             .seed = kSeed,
                             .first_sample = static_cast<uint64_t>(i)},
                 .outputs = e.outputs,
                 .trajectory = e.trajectory,
                 .reports = {&report, 1}};
    DEEPPCR_RETURN_IF_ERROR(runner->Run({.solver = "sequential"}, {&item, 1}, nullptr));
    answers.push_back(std::move(e));
  }
  return answers;
}

double LargestDifference(std::span<const Expected> got, std::span<const Expected> expected,
                         const ModelInfo& info) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = StateError(got[i].trajectory, expected[i].trajectory, info.state_dim);
    const double difference = RelativeDifference(got[i].outputs, expected[i].outputs);
    for (const double d : {error, difference})
      if (!(d <= worst)) worst = d;
  }
  return worst;
}

nlohmann::ordered_json ToJson(const Candidate& candidate, const Verdict& verdict) {
  const ResolvedOptions& options = candidate.options;
  nlohmann::ordered_json json = {{"name", candidate.name}, {"solver", options.solver}};
  if (options.shooting_interval > 0) {
    json["shooting_interval"] = options.shooting_interval;
    json["initial_guess"] = ToString(options.initial_guess);
    json["warm_sweeps"] = options.warm_sweeps;
    json["jacobian_refresh"] = ToString(options.jacobian_refresh);
    json["max_iterations"] = options.max_iterations;
  }
  json["samples_judged"] = verdict.samples;
  json["converged"] = verdict.converged;
  json["fallbacks"] = verdict.fallbacks;
  json["same_largest"] = verdict.same_largest;
  json["max_state_error"] = verdict.max_state_error;
  json["max_output_difference"] = verdict.max_output_difference;
  json["mean_iterations"] = verdict.mean_iterations;
  json["mean_chord_corrections"] = verdict.mean_chord_corrections;
  json["dependent_stages"] = verdict.max_stages;
  json["mean_column_passes"] = verdict.mean_column_passes;
  return json;
}

}  // namespace deeppcr::bench
