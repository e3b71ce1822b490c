// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <sstream>
#include <system_error>

#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"

namespace deeppcr {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Labels;

std::vector<double> Geometric(double first, double factor, double last) {
  std::vector<double> bounds;
  for (double bound = first; bound <= last; bound *= factor) bounds.push_back(bound);
  return bounds;
}

template <typename Builder>
auto& Register(Builder builder, prometheus::Registry& registry, const std::string& name,
               const std::string& help) {
  return builder.Name("deeppcr_" + name).Help(help).Register(registry);
}

prometheus::MetricFamily GaugeFamily(const std::string& name, const std::string& help,
                                     double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  family.metric.resize(1);
  family.metric[0].gauge.value = value;
  return family;
}

}  // namespace

// Reads the kernel's figures when scraped, so that they cost nothing between scrapes. Names are
// those of every client library of Prometheus, which dashboards and alerts of others know.
class Metrics::ProcessStatistics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    double virtual_pages = 0, resident_pages = 0;
    std::ifstream("/proc/self/statm") >> virtual_pages >> resident_pages;
    const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
    rusage used = {};
    getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    rlimit files = {};
    getrlimit(RLIMIT_NOFILE, &files);
    std::vector<prometheus::MetricFamily> families = {
        GaugeFamily("process_resident_memory_bytes", "Resident memory size in bytes.",
                    resident_pages * page),
        GaugeFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.",
                    virtual_pages * page),
        GaugeFamily("process_start_time_seconds",
                    "Start time of the process since unix epoch in seconds.", start_),
        GaugeFamily("process_open_fds", "Number of open file descriptors.", OpenFiles()),
        GaugeFamily("process_max_fds", "Maximum number of open file descriptors.",
                    static_cast<double>(files.rlim_cur))};
    prometheus::MetricFamily cpu = GaugeFamily(
        "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", 0);
    cpu.type = prometheus::MetricType::Counter;
    cpu.metric[0].counter.value = seconds(used.ru_utime) + seconds(used.ru_stime);
    families.push_back(std::move(cpu));
    return families;
  }

 private:
  static double OpenFiles() {
    std::error_code error;
    double files = 0;
    for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
         it.increment(error))
      ++files;
    return files;
  }

  const double start_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
};

std::vector<double> DurationBuckets() { return Geometric(10e-6, std::numbers::sqrt2, 45); }
std::vector<double> IterationBuckets() {
  return {0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128, 1024, 10000};
}
std::vector<double> StageBuckets() { return Geometric(1, 2, 1 << 20); }
std::vector<double> ErrorBuckets() {
  return {1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1};
}
std::vector<double> BatchBuckets() { return Geometric(1, 2, 4096); }
// Fine around 1, where it is decided which solver is the better one.
std::vector<double> RatioBuckets() {
  return {0.01, 0.03, 0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 0.95, 1,   1.05, 1.1,
          1.25, 1.5,  2,   3,   5,    10,  20,   30,  50,  100,  200, 500,  1000};
}
std::vector<double> ToleranceBuckets() {
  return {1e-3, 1e-2, 0.03, 0.1, 0.2, 0.33, 0.5, 0.7, 1, 1.5, 2, 5, 10, 100, 1000};
}

void ObserveFinite(prometheus::Histogram& histogram, double value) {
  if (std::isfinite(value)) histogram.Observe(value);
}

const SolverSeries* ModelMetrics::ForSolver(std::string_view name, Method method) {
  for (OfSolver& of : solvers_) {
    if (of.name != name || of.method != method) continue;
    std::call_once(of.made,
                   [&] { of.series = metrics_->MakeSolver(labels_, method, name, owner_); });
    return &of.series;
  }
  return nullptr;
}

void ModelMetrics::SetBackend(std::string_view backend, std::string_view why) {
  prometheus::Labels labels = labels_;
  labels["backend"] = std::string(backend);
  labels["why"] = std::string(why);
  prometheus::Gauge* const series = owner_.Add(metrics_->backend_, labels);
  // A version that is loaded again may run elsewhere.
  prometheus::Gauge* const before = backend_series_.exchange(series);
  if (before != nullptr) before->Set(0);
  series->Set(1);
}

PairSeries ModelMetrics::ForPair(std::string_view name, Method method) {
  return metrics_->MakePair(labels_, method, name, owner_);
}

PairedSeries ModelMetrics::ForPaired(std::string_view solver, std::string_view parallel,
                                     bool automatic, Method method) {
  Labels labels = labels_;
  labels["method"] = std::string(NameOf(method));
  labels["solver"] = std::string(solver);
  labels["parallel"] = std::string(parallel);
  labels["chosen"] = automatic ? "auto" : "request";
  return {.pairs = owner_.Add(metrics_->pairs_, labels),
          .last = owner_.Add(metrics_->paired_, labels)};
}

const StageSeries& ModelMetrics::stages() {
  std::call_once(stages_made_, [&] { stages_ = metrics_->MakeStages(labels_, owner_); });
  return stages_;
}

Metrics::Metrics(std::vector<std::string> solvers, std::string_view version,
                 std::string_view device, std::string_view backend)
    : solvers_(std::move(solvers)),
      process_(std::make_unique<ProcessStatistics>()),
      gpus_(backend == "cuda" ? GpuStatistics::Open({}) : nullptr),
      request_(Register(BuildHistogram(), registry_, "request_duration_seconds",
                        "From the arrival of a request to its reply.")),
      queue_(Register(BuildHistogram(), registry_, "queue_duration_seconds", "Wait for a worker.")),
      solve_(Register(BuildHistogram(), registry_, "solve_duration_seconds",
                      "Computation of the batch that a request was part of.")),
      stage_(Register(BuildHistogram(), registry_, "stage_duration_seconds",
                      "Where a request spent its time, from its arrival to the end of its reply.")),
      iterations_(Register(BuildHistogram(), registry_, "iterations",
                           "Newton (or fixed-point) iterations of a sample.")),
      stages_(Register(BuildHistogram(), registry_, "dependent_stages",
                       "Steps of a sample's solve that had to wait for one another.")),
      error_(Register(BuildHistogram(), registry_, "error_estimate",
                      "Estimated relative error of a sample's states, where an iterative solver "
                      "converged.")),
      batch_(Register(BuildHistogram(), registry_, "batch_samples", "Samples computed together.")),
      speedup_(Register(BuildHistogram(), registry_, "speedup_ratio",
                        "Sequential seconds / parallel seconds on the same input, from shadow "
                        "pairs; labelled by the solver that answered the request, and by the way "
                        "back where the method is Gradient.")),
      shadow_error_(Register(BuildHistogram(), registry_, "shadow_relative_error",
                             "Largest relative difference of the parallel states, or with the "
                             "method Gradient gradients, from the sequential ones, from shadow "
                             "pairs without a fallback.")),
      tolerance_(Register(BuildHistogram(), registry_, "shadow_error_over_tolerance",
                          "The relative difference of such a pair, divided by the tolerance that "
                          "its request asked for: above 1 an answer was not what it claimed.")),
      load_(Register(BuildHistogram(), registry_, "model_load_seconds",
                     "Loading a model, its plan included.")),
      plan_(Register(BuildHistogram(), registry_, "model_plan_seconds",
                     "Measuring a model's plans in a load; 0 where all were found.")),
      requests_(Register(BuildCounter(), registry_, "requests_total",
                         "Requests answered, by status code.")),
      fallbacks_(
          Register(BuildCounter(), registry_, "fallbacks_total",
                   "Samples answered by the sequential solver in place of the requested one, by "
                   "why that one gave up.")),
      pairs_(Register(BuildCounter(), registry_, "pairs_total",
                      "Shadow pairs of solves: the solver that answered, the parallel one of the "
                      "pair, and whether auto or the request chose.")),
      queue_depth_(Register(BuildGauge(), registry_, "queue_depth", "Samples that wait.")),
      queue_capacity_(Register(BuildGauge(), registry_, "queue_capacity",
                               "Samples that may wait for a model version.")),
      memory_(Register(BuildGauge(), registry_, "model_memory_bytes",
                       "Weights, tables and workspaces of a ready model.")),
      backend_(Register(BuildGauge(), registry_, "model_backend",
                        "1 for the backend that runs a model version; why: first of those tried, "
                        "or no_code or self_check of the one before.")),
      paired_(Register(BuildGauge(), registry_, "last_pair_timestamp_seconds",
                       "When the last shadow pair of these solvers was measured.")) {
  auto& in_flight = Register(BuildGauge(), registry_, "requests_in_flight",
                             "Requests in progress, or whose reply is not read yet.");
  for (size_t i = 0; i < kMethodNames.size(); ++i) {
    in_flight_[i] = &in_flight.Add({{"method", std::string(kMethodNames[i].name)}});
  }
  ready_ =
      &Register(BuildGauge(), registry_, "ready", "1 while /readyz answers with success.").Add({});
  auto& models = Register(BuildGauge(), registry_, "models", "Model versions by their state.");
  models_ready_ = &models.Add({{"state", "ready"}});
  models_failed_ = &models.Add({{"state", "failed"}});
  load_failures_ = &Register(BuildCounter(), registry_, "model_load_failures_total",
                             "Loads that failed, those of reloads included.")
                        .Add({});
  dropped_replies_ = &Register(BuildCounter(), registry_, "replies_dropped_total",
                               "Replies given up because their client did not read them.")
                          .Add({});
  refused_connections_ = &Register(BuildCounter(), registry_, "connections_refused_total",
                                   "Connections closed as they came, beyond --max_connections.")
                              .Add({});
  auto& shadows = Register(BuildCounter(), registry_, "shadow_runs_total",
                           "Shadow pairs: measured, interrupted by a request, failed.");
  for (size_t i = 0; i < shadows_.size(); ++i) {
    constexpr std::array<const char*, 3> kOutcomes = {"measured", "interrupted", "failed"};
    shadows_[i] = &shadows.Add({{"outcome", kOutcomes[i]}});
  }
  AddTrajectories();
  AddServer();
  Register(BuildGauge(), registry_, "build_info", "Always 1; the labels say what runs.")
      .Add({{"version", std::string(version)},
            {"device", std::string(device)},
            {"backend", std::string(backend)}})
      .Set(1);
  names_.try_emplace("");
}

Metrics::~Metrics() = default;

void Metrics::AddServer() {
  connections_ =
      &Register(BuildGauge(), registry_, "connections", "Open connections of gRPC.").Add({});
  workers_ = &Register(BuildGauge(), registry_, "workers", "Threads that compute batches.").Add({});
  held_bytes_ = &Register(BuildGauge(), registry_, "request_bytes",
                          "Bytes of requests and replies in progress.")
                     .Add({});
  max_held_bytes_ = &Register(BuildGauge(), registry_, "request_bytes_limit",
                              "Bytes that these may have: --max_queue_bytes.")
                         .Add({});
  memory_limit_ = &Register(BuildGauge(), registry_, "memory_limit_bytes",
                            "Memory that the process may have by its control group; 0: no limit.")
                       .Add({});
  certificate_end_ = &Register(BuildGauge(), registry_, "certificate_expiry_timestamp_seconds",
                               "When the certificate of --tls_cert ends; 0: there is none.")
                          .Add({});
  busy_seconds_ = &Register(BuildCounter(), registry_, "worker_busy_seconds_total",
                            "Time that workers computed, all of them together.")
                       .Add({});
  sent_spans_ = &Register(BuildCounter(), registry_, "spans_sent_total",
                          "Spans of traces that the collector of --otlp_traces_endpoint took.")
                     .Add({});
  dropped_spans_ = &Register(BuildCounter(), registry_, "spans_dropped_total",
                             "Spans of traces that it did not take, or not fast enough.")
                        .Add({});
}

void Metrics::SetFigures(const ServerFigures& figures) {
  connections_->Set(static_cast<double>(figures.connections));
  workers_->Set(static_cast<double>(figures.workers));
  held_bytes_->Set(static_cast<double>(figures.held_bytes));
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto reach = [](prometheus::Counter* counter, double value) {
    counter->Increment(std::max(0.0, value - counter->Value()));
  };
  reach(busy_seconds_, figures.busy_seconds);
  reach(sent_spans_, static_cast<double>(figures.spans.sent));
  reach(dropped_spans_, static_cast<double>(figures.spans.dropped));
}

void Metrics::SetLimits(int64_t request_bytes, int64_t memory_bytes) {
  max_held_bytes_->Set(static_cast<double>(request_bytes));
  memory_limit_->Set(static_cast<double>(memory_bytes));
}

void Metrics::AddTrajectories() {
  trajectories_ = &Register(BuildGauge(), registry_, "kept_trajectories",
                            "Trajectories that stay on the server for gradients.")
                       .Add({});
  trajectory_bytes_ = &Register(BuildGauge(), registry_, "kept_trajectory_bytes",
                                "Memory of trajectories that stay on the server for gradients.")
                           .Add({});
  auto& drops = Register(BuildCounter(), registry_, "kept_trajectories_dropped_total",
                         "Trajectories that were kept and are no more: expired, without room for "
                         "them among newer ones, gone with their model.");
  for (size_t i = 0; i < trajectory_drops_.size(); ++i) {
    constexpr std::array<const char*, 3> kReasons = {"expired", "no_room", "unloaded"};
    trajectory_drops_[i] = &drops.Add({{"reason", kReasons[i]}});
  }
}

// Makes all counters of a method at once: a rate has to see a counter at 0 before it sees it at 1.
CodeCounters Metrics::MakeCounters(const std::string& model, Method method, SeriesOwner& owner) {
  CodeCounters counters{};
  for (size_t code = 0; code < kCodeNames.size(); ++code) {
    counters[code] = owner.Add(requests_, {{"model", model},
                                           {"method", std::string(NameOf(method))},
                                           {"code", std::string(kCodeNames[code])}});
  }
  return counters;
}

StageSeries Metrics::MakeStages(const Labels& model, SeriesOwner& owner) {
  StageSeries series{};
  for (size_t i = 0; i < series.size(); ++i) {
    Labels labels = model;
    labels["stage"] = std::string(kStageNames[i]);
    series[i] = owner.Add(stage_, labels, DurationBuckets());
  }
  return series;
}

PairSeries Metrics::MakePair(const Labels& model, Method method, std::string_view name,
                             SeriesOwner& owner) {
  Labels labels = model;
  labels["solver"] = std::string(name);
  labels["method"] = std::string(NameOf(method));
  return {.speedup_ratio = owner.Add(speedup_, labels, RatioBuckets()),
          .relative_error = owner.Add(shadow_error_, labels, ErrorBuckets()),
          .error_over_tolerance = owner.Add(tolerance_, labels, ToleranceBuckets())};
}

SolverSeries Metrics::MakeSolver(const Labels& model, Method method, std::string_view solver,
                                 SeriesOwner& owner) {
  Labels labels = model;
  labels["solver"] = std::string(solver);
  SolverSeries series;
  if (solver != kSeveralSolvers) {
    series.iterations = owner.Add(iterations_, labels, IterationBuckets());
    series.dependent_stages = owner.Add(stages_, labels, StageBuckets());
    series.error_estimate = owner.Add(error_, labels, ErrorBuckets());
    // Pairs begin at 0 with the first request: a rate has to see that. Those of Gradient are of
    // ways.
    if (method == Method::kGradient) {
      for (const char* way : {"sequential", "parallel"}) MakePair(model, method, way, owner);
    } else {
      MakePair(model, method, solver, owner);
    }
  }
  labels["method"] = std::string(NameOf(method));
  series.request_seconds = owner.Add(request_, labels, DurationBuckets());
  series.queue_seconds = owner.Add(queue_, labels, DurationBuckets());
  series.solve_seconds = owner.Add(solve_, labels, DurationBuckets());
  return series;
}

std::unique_ptr<ModelMetrics> Metrics::MakeModel(const std::string& name,
                                                 const std::string& version) {
  const Labels model = {{"model", name}, {"version", version}};
  auto metrics = std::make_unique<ModelMetrics>();
  metrics->metrics_ = this;
  metrics->labels_ = model;
  SeriesOwner& owner = metrics->owner_;
  for (const std::string& solver : solvers_) {
    metrics->solvers_.emplace_back(solver, Method::kForward);
    metrics->solvers_.emplace_back(solver, Method::kGenerate);
    metrics->solvers_.emplace_back(solver, Method::kGradient);
  }
  metrics->solvers_.emplace_back(kSeveralSolvers, Method::kCompare);
  metrics->batch_samples = owner.Add(batch_, model, BatchBuckets());
  metrics->queue_samples = owner.Add(queue_depth_, model);
  metrics->queue_capacity = owner.Add(queue_capacity_, model);
  metrics->memory_bytes = owner.Add(memory_, model);
  metrics->load_seconds = owner.Add(load_, model, DurationBuckets());
  metrics->plan_seconds = owner.Add(plan_, model, DurationBuckets());
  for (Termination termination : kTerminations) {
    Labels labels = model;
    labels["reason"] = std::string(ToString(termination));
    metrics->fallbacks[static_cast<size_t>(termination)] = owner.Add(fallbacks_, labels);
  }
  return metrics;
}

std::shared_ptr<ModelMetrics> Metrics::ForModel(const std::string& name, int64_t version) {
  const ModelKey key(name, version);
  ModelMetrics* metrics = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Held& held = models_[key];
    if (held.metrics == nullptr) {
      held.metrics = MakeModel(name, std::to_string(version));
      ++names_[name].versions;
    }
    ++held.holders;
    metrics = held.metrics.get();
  }
  return {metrics, [this, key](ModelMetrics*) { Release(key); }};
}

void Metrics::Release(const ModelKey& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto held = models_.find(key);
  if (--held->second.holders > 0) return;
  models_.erase(held);
  const auto name = names_.find(key.first);
  if (--name->second.versions == 0) names_.erase(name);
}

void Metrics::CountRequest(std::string_view model, Method method, int code, ModelMetrics* held) {
  const size_t index = code >= 0 && code < static_cast<int>(kCodeNames.size()) ? code : 2;
  if (held == nullptr) {
    // The lock keeps the name, which nobody may hold.
    const std::lock_guard<std::mutex> lock(mutex_);
    CountersOf(model, method)[index]->Increment();
    return;
  }
  std::atomic<const CodeCounters*>& counters = held->counters_[static_cast<size_t>(method)];
  if (counters.load(std::memory_order_acquire) == nullptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counters.store(&CountersOf(model, method), std::memory_order_release);
  }
  (*counters.load(std::memory_order_acquire))[index]->Increment();
}

// The caller holds mutex_.
const CodeCounters& Metrics::CountersOf(std::string_view model, Method method) {
  auto found = names_.find(model);
  if (found == names_.end()) found = names_.find(std::string_view());
  auto& [name, of] = *found;
  std::optional<CodeCounters>& counters = of.methods[static_cast<size_t>(method)];
  if (!counters.has_value()) counters = MakeCounters(name, method, of.owner);
  return *counters;
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (prometheus::MetricFamily& family : process_->Collect())
    families.push_back(std::move(family));
  if (gpus_ != nullptr) {
    for (prometheus::MetricFamily& family : gpus_->Collect())
      if (!family.metric.empty()) families.push_back(std::move(family));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace deeppcr
