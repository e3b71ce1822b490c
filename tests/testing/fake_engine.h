// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_FAKE_ENGINE_H_
#define DEEPPCR_TESTS_TESTING_FAKE_ENGINE_H_

// An engine whose models compute nothing, record what they were asked, and stop where a test wants
// them to.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/engine.h"

namespace deeppcr::testing {

// A gate that holds threads back until it is opened.
class Gate {
 public:
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  // Returns once `count` threads in all have arrived; false after ten seconds.
  bool WaitForArrivals(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return arrived_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int arrived_ = 0;
};

// A model whose outputs are output_dim copies of the sum of a sample's inputs, plus `offset`.
class FakeModel : public LoadedModel {
 public:
  struct Batch {
    ResolvedOptions options;
    std::vector<int64_t> samples;  // one count per item
  };

  struct WayBack {
    BackwardOptions options;
    std::vector<int64_t> samples;  // one count per item
  };

  FakeModel() {
    info_.model_type = "mlp";
    info_.input_dim = 2;
    info_.output_dim = 3;
    info_.state_dim = 4;
    info_.num_layers = 8;
    info_.max_batch_size = 16;
    info_.config_json = "{}";
    info_.weights_sha256 = "00";
    for (const std::string_view name : SolverNames()) info_.solvers.emplace_back(name);
    plan_.id = "0123456789abcdef";
    plan_.device = "fake-device";
    plan_.measured_seconds = 0.25;
    plan_.entries.emplace_back().max_samples = 16;
  }

  const ModelInfo& info() const override { return info_; }
  int64_t memory_bytes() const override { return 1000; }
  const Plan* PlanOf(const PlanKey&) const override { return nullptr; }
  std::string PlanFileText() const override { return "fake plans"; }
  std::shared_ptr<const LoadedSystem> Find(const SystemKey& key, int64_t,
                                           std::string_view) const override {
    const auto other = other_plans_.find(key.num_steps);
    return std::make_shared<System>(*this, other == other_plans_.end() ? plan_ : other->second);
  }
  absl::StatusOr<std::shared_ptr<const LoadedSystem>> Prepare(const SystemKey& key,
                                                              const CancelToken*) const override {
    return Find(key, 1, {});
  }

  absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options) const {
    ResolvedOptions resolved;
    resolved.automatic = options.solver == "auto";
    resolved.solver = "sequential";
    for (const std::string_view name : SolverNames()) {
      if (name == options.solver && !resolved.automatic) resolved.solver = name;
    }
    resolved.rtol = options.rtol;
    resolved.atol = options.atol;
    resolved.max_iterations = options.max_iterations;
    resolved.initial_guess = options.initial_guess;
    if (resolved.solver != "sequential") Choose(&resolved);
    resolved.on_no_convergence = options.on_no_convergence;
    return resolved;
  }

  absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                   RunTimings* timings) const {
    Batch batch = {options, {}};
    for (const RunItem& item : items) batch.samples.push_back(item.samples.num_samples);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      batches_.push_back(std::move(batch));
    }
    gate.Pass();
    for (const RunItem& item : items) Answer(item);
    *timings = {1e-6, 2e-6, 1e-6, 4e-6};
    return run_status;
  }

  // Gives every item `back_value` in all of its gradients, by the parallel way `parallel_excess`
  // more.
  absl::Status GoBack(const BackwardOptions& options, std::span<BackwardItem> items) const {
    if (!backward_limits_.has_value())
      return absl::UnimplementedError("this fake has no backward pass");
    WayBack way = {options, {}};
    for (BackwardItem& item : items) {
      way.samples.push_back(item.samples.num_samples);
      for (const std::span<float> gradient : {item.inputs, item.initial, item.step_noise})
        std::fill(gradient.begin(), gradient.end(),
                  back_value + (options.way == BackwardWay::kParallel ? parallel_excess : 0));
      for (BackwardReport& way_report : item.reports) way_report = {.dependent_stages = 8};
    }
    std::this_thread::sleep_for(back_time);
    std::lock_guard<std::mutex> lock(mutex_);
    ways_back_.push_back(std::move(way));
    return back_status;
  }

  absl::StatusOr<std::vector<ComparisonRow>> Compare(
      const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
      const ComparisonLimits& limits, const CancelToken* token) const {
    const int64_t n = samples.num_samples;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      comparisons_.emplace_back(samples.inputs.begin(), samples.inputs.end());
    }
    compare_gate.Pass();
    if (token != nullptr && token->cancelled()) return absl::CancelledError("cancelled");
    std::vector<ComparisonRow> rows;
    for (const absl::StatusOr<ResolvedOptions>& option : options) {
      ComparisonRow& row = rows.emplace_back();
      if (!option.ok()) {
        row.error = std::string(option.status().message());
        continue;
      }
      row.solver = std::string(option->solver);
      const double seconds = row.solver == "sequential" ? 4e-3 : 1e-3;
      row.seconds.assign(static_cast<size_t>(limits.repetitions), seconds);
      row.outputs.assign(static_cast<size_t>(n * info_.output_dim), 1.0f);
      row.reports.assign(static_cast<size_t>(n), report);
      row.max_state_error = row.solver == "sequential" ? 0 : max_state_error;
    }
    return rows;
  }

  std::vector<Batch> batches() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  std::vector<WayBack> ways_back() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ways_back_;
  }
  // The inputs of each Compare call.
  std::vector<std::vector<float>> comparisons() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return comparisons_;
  }

  // Tests set these members before they use the model.
  ModelInfo info_;
  Plan plan_;
  std::map<int64_t, Plan> other_plans_;  // keyed by number of steps
  SampleReport report = ConvergedReport();
  absl::Status run_status;
  std::optional<BackwardLimits> backward_limits_;  // none: no backward pass
  absl::Status back_status;
  std::chrono::milliseconds back_time{0};  // of each call of GoBack
  float back_value = 0, parallel_excess = 0;
  float offset = 0;
  double max_state_error = 2e-5;  // reported for the parallel rows of Compare
  mutable Gate gate;              // passed by Run
  mutable Gate compare_gate;      // passed by Compare

 private:
  // A system of the model, which outlives it.
  class System final : public LoadedSystem {
   public:
    System(const FakeModel& model, const Plan& plan) : model_(model), plan_(plan) {}

    const Plan& plan() const override { return plan_; }
    absl::StatusOr<ResolvedOptions> Resolve(const SolveOptions& options, int64_t) const override {
      return model_.Resolve(options);
    }
    absl::Status Run(const ResolvedOptions& options, std::span<RunItem> items,
                     RunTimings* timings) const override {
      return model_.Run(options, items, timings);
    }
    const BackwardLimits* backward_limits() const override {
      return model_.backward_limits_.has_value() ? &*model_.backward_limits_ : nullptr;
    }
    absl::Status GoBack(const BackwardOptions& options,
                        std::span<BackwardItem> items) const override {
      return model_.GoBack(options, items);
    }
    absl::Status AddParameterGradients(std::span<const ParameterSample>, std::span<float* const>,
                                       const CancelToken*,
                                       absl::FunctionRef<void(double)>) const override {
      return absl::UnimplementedError("a fake has no backward pass");
    }
    bool has_parameter_gradients() const override { return false; }
    absl::StatusOr<std::vector<ComparisonRow>> Compare(
        const SampleInputs& samples, std::span<const absl::StatusOr<ResolvedOptions>> options,
        const ComparisonLimits& limits, const CancelToken* token) const override {
      return model_.Compare(samples, options, limits, token);
    }

   private:
    const FakeModel& model_;
    const Plan& plan_;
  };

  static SampleReport ConvergedReport() {
    SampleReport converged;
    converged.converged = true;
    converged.dependent_stages = 8;
    return converged;
  }

  // Takes the options from the plan, or the defaults.
  void Choose(ResolvedOptions* options) const {
    const PlanChoice* planned = plan_.ChoiceOf(options->solver);
    const PlanChoice choice = planned != nullptr ? *planned : PlanChoice();
    if (options->max_iterations == 0) options->max_iterations = 32;
    if (options->initial_guess == InitialGuess::kFromPlan)
      options->initial_guess = choice.initial_guess;
    options->shooting_interval = choice.shooting_interval;
    options->warm_sweeps = choice.warm_sweeps;
    options->jacobian_refresh = choice.jacobian_refresh;
  }

  void Answer(const RunItem& item) const {
    for (int64_t i = 0; i < item.samples.num_samples; ++i) {
      float sum = offset;
      for (int64_t j = 0; j < info_.input_dim; ++j)
        sum += item.samples.inputs[i * info_.input_dim + j];
      for (int64_t j = 0; j < info_.output_dim; ++j) item.outputs[i * info_.output_dim + j] = sum;
      SampleReport& answer = item.reports[i];
      answer = report;
      if (item.token->expired()) answer.termination = Termination::kDeadline;
      if (item.token->cancelled()) answer.termination = Termination::kCancelled;
    }
  }

  mutable std::mutex mutex_;
  mutable std::vector<Batch> batches_;
  mutable std::vector<WayBack> ways_back_;
  mutable std::vector<std::vector<float>> comparisons_;
};

// An engine whose LoadModel returns whatever `load` returns for a directory.
class FakeEngine : public Engine {
 public:
  using Load =
      std::function<absl::StatusOr<std::shared_ptr<const LoadedModel>>(const std::string&)>;
  explicit FakeEngine(Load load) : load_(std::move(load)) {}

  std::string_view backend() const override { return "fake"; }
  std::string_view device() const override { return "fake-device"; }
  std::string_view backend_reason() const override { return "a test asked for it"; }
  int64_t available_memory() const override { return available; }
  absl::StatusOr<std::shared_ptr<const LoadedModel>> LoadModel(
      const std::string& directory, const LoadProgress& progress, const CancelToken*,
      std::span<const std::shared_ptr<const LoadedModel>> loaded) const override {
    progress(LoadNews::kStep, "pretending");
    if (!problem.empty()) progress(LoadNews::kProblem, problem);
    offered = {loaded.begin(), loaded.end()};
    return load_(directory);
  }

  std::string problem;  // reported by every load, if not empty
  int64_t available = 0;
  // The models from which the last load could have taken its plan.
  mutable std::vector<std::shared_ptr<const LoadedModel>> offered;

 private:
  const Load load_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_FAKE_ENGINE_H_
