// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_OBSERVE_METRICS_H_
#define DEEPPCR_SERVER_OBSERVE_METRICS_H_

// Every metric of the server. Prefix deeppcr_, base units, histograms and never summaries (a
// summary costs 500 histograms per observation). The request path holds pointers to its series and
// looks nothing up.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/solver/report.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/observe/gpu_statistics.h"
#include "server/observe/inference_statistics.h"
#include "server/observe/method.h"
#include "server/observe/span_exporter.h"

namespace deeppcr {

// Label `stage`: where a request that was computed in a batch spent its time: from its arrival to
// the queue; in the queue; in the three stages of its batch's solve; on the way back, if it asked
// for gradients; from the end of the batch until gRPC is rid of the reply.
inline constexpr std::array<std::string_view, 7> kStageNames = {
    "recv", "queue", "encode", "solve", "decode", "backward", "send"};
inline constexpr size_t kBackwardStage = 5;  // which only requests for gradients have
static_assert(kStageNames[kBackwardStage] == "backward");
using StageSeries = std::array<prometheus::Histogram*, kStageNames.size()>;

// Label `code`, by the number of the status code.
inline constexpr std::array<std::string_view, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

using CodeCounters = std::array<prometheus::Counter*, kCodeNames.size()>;

// Bucket bounds, ascending. Durations: x2 from 10 us to above 30 s.
std::vector<double> DurationBuckets();
std::vector<double> IterationBuckets();
std::vector<double> StageBuckets();
std::vector<double> ErrorBuckets();
std::vector<double> BatchBuckets();
std::vector<double> RatioBuckets();
std::vector<double> ToleranceBuckets();

// Observes a finite value; a NaN or infinity would spoil the sum for ever.
void ObserveFinite(prometheus::Histogram& histogram, double value);

// Series of one model version, one method and one solver that ran (never "auto"). Those of the
// solve itself are the same for all methods.
struct SolverSeries {
  prometheus::Histogram* request_seconds = nullptr;
  prometheus::Histogram* queue_seconds = nullptr;
  prometheus::Histogram* solve_seconds = nullptr;
  prometheus::Histogram* iterations = nullptr;
  prometheus::Histogram* dependent_stages = nullptr;
  prometheus::Histogram* error_estimate = nullptr;
};

// Series of the shadow pairs of one model version, one method and what answered its requests: a
// solver, or, for Gradient, a way back.
struct PairSeries {
  prometheus::Histogram* speedup_ratio = nullptr;  // sequential / parallel seconds
  prometheus::Histogram* relative_error = nullptr;
  prometheus::Histogram* error_over_tolerance = nullptr;  // of a solve
};

// Series that tell which solvers the pairs of solves were of, and how old that knowledge is.
struct PairedSeries {
  prometheus::Counter* pairs = nullptr;
  prometheus::Gauge* last = nullptr;  // UNIX time of the last pair
};

// What the server does as a whole, as of a scrape.
struct ServerFigures {
  int64_t connections = 0;  // of gRPC
  int64_t workers = 0;      // threads that compute
  double busy_seconds = 0;  // of all workers together, since the start; never falls
  int64_t held_bytes = 0;   // of requests and replies in progress
  SpanExporter::Counts spans;
};

// Owns series: they leave their families with it. Add is thread-safe.
class SeriesOwner {
 public:
  SeriesOwner() = default;
  ~SeriesOwner() {
    for (const auto& [series, remove] : removals_) remove();
  }
  SeriesOwner(const SeriesOwner&) = delete;
  SeriesOwner& operator=(const SeriesOwner&) = delete;

  // The series with these labels, which this object may have added before.
  template <typename T, typename... Arguments>
  T* Add(prometheus::Family<T>& family, const prometheus::Labels& labels,
         Arguments&&... arguments) {
    const std::lock_guard<std::mutex> lock(mutex_);
    T* const series = &family.Add(labels, std::forward<Arguments>(arguments)...);
    removals_.try_emplace(series, [&family, series] { family.Remove(series); });
    return series;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::function<void()>> removals_;  // by series
};

class Metrics;

// Label `solver` of Compare, which has only durations.
inline constexpr std::string_view kSeveralSolvers = "several";

// Series of one model version.
class ModelMetrics {
 public:
  // Created on first use: most models see few of the solvers. Generate's durations count streamed
  // calls too; calls of the v2 protocol count as Forward, Generate or Gradient. Null for a name
  // that is no solver. Thread-safe.
  const SolverSeries* ForSolver(std::string_view name, Method method);
  // The series of pairs whose requests were answered by this solver, or this way back of Gradient.
  // Created on first use. Thread-safe.
  PairSeries ForPair(std::string_view name, Method method);
  // The series of pairs of a solve that `solver` answered, with `parallel` in the pair, which may
  // be the same; automatic: the plan chose the solver, and not the request. Created on first use.
  // Thread-safe.
  PairedSeries ForPaired(std::string_view solver, std::string_view parallel, bool automatic,
                         Method method);
  // Created on first use. Thread-safe.
  const StageSeries& stages();

  // Sets the backend that runs the model version, and why (a BackendChoice). One call at a time.
  void SetBackend(std::string_view backend, std::string_view why);

  prometheus::Histogram* batch_samples = nullptr;
  prometheus::Gauge* queue_samples = nullptr;
  prometheus::Gauge* queue_capacity = nullptr;  // samples
  prometheus::Gauge* memory_bytes = nullptr;
  prometheus::Histogram* load_seconds = nullptr;
  prometheus::Histogram* plan_seconds = nullptr;
  std::array<prometheus::Counter*, kTerminations.size()> fallbacks{};  // by Termination
  InferenceStatistics statistics;

 private:
  friend class Metrics;
  struct OfSolver {
    OfSolver(std::string_view solver_name, Method of) : name(solver_name), method(of) {}
    const std::string_view name;
    const Method method;
    std::once_flag made;
    SolverSeries series;
  };

  Metrics* metrics_ = nullptr;
  prometheus::Labels labels_;
  SeriesOwner owner_;
  std::deque<OfSolver> solvers_;
  std::atomic<prometheus::Gauge*> backend_series_{nullptr};
  std::once_flag stages_made_;
  StageSeries stages_{};
  // The counters of the model's name, null until the first request of a method.
  std::array<std::atomic<const CodeCounters*>, kMethodNames.size()> counters_{};
};

enum class ShadowOutcome : uint8_t { kMeasured, kInterrupted, kFailed };
// Why a trajectory that was kept for gradients is kept no more.
enum class TrajectoryDrop : uint8_t { kExpired, kNoRoom, kUnloaded };

// Thread-safe. Owns every series.
class Metrics {
 public:
  // solvers: names for the label `solver`, "auto" excluded by the caller.
  Metrics(std::vector<std::string> solvers, std::string_view version, std::string_view device,
          std::string_view backend);
  ~Metrics();

  // The series of a model version, which end when nobody holds the result any more; all who hold it
  // have the same. Callers pass only names of models that exist in the repository, so that the
  // number of series is bounded. This object outlives the result.
  std::shared_ptr<ModelMetrics> ForModel(const std::string& name, int64_t version);

  // model: the name of a model whose series somebody holds; any other counts under the empty name.
  // held: the series of a version of that model, where the caller holds some: without them the
  // counters are looked up, under a lock.
  void CountRequest(std::string_view model, Method method, int code, ModelMetrics* held = nullptr);
  prometheus::Gauge& in_flight(Method method) { return *in_flight_[static_cast<size_t>(method)]; }
  // Sets the answer of /readyz, and the number of model versions in either state.
  void SetReady(bool ready) { ready_->Set(ready ? 1 : 0); }
  void SetModels(int64_t ready, int64_t failed) {
    models_ready_->Set(static_cast<double>(ready));
    models_failed_->Set(static_cast<double>(failed));
  }
  void CountLoadFailure() { load_failures_->Increment(); }
  void CountDroppedReply() { dropped_replies_->Increment(); }
  void SetFigures(const ServerFigures& figures);
  // Sets limits that do not change: bytes of requests and replies, and of the process's memory (0:
  // none).
  void SetLimits(int64_t request_bytes, int64_t memory_bytes);
  // Sets when the certificate of the server ends, in UNIX time.
  void SetCertificateEnd(int64_t seconds) { certificate_end_->Set(static_cast<double>(seconds)); }
  void CountRefusedConnection() { refused_connections_->Increment(); }
  void CountShadow(ShadowOutcome outcome) { shadows_[static_cast<size_t>(outcome)]->Increment(); }

  // Sets the number of trajectories that are kept for gradients, and their bytes.
  void SetTrajectories(int64_t count, int64_t bytes) {
    trajectories_->Set(static_cast<double>(count));
    trajectory_bytes_->Set(static_cast<double>(bytes));
  }
  void CountTrajectoryDrop(TrajectoryDrop why) {
    trajectory_drops_[static_cast<size_t>(why)]->Increment();
  }

  // The exposition in Prometheus' text format.
  std::string Text() const;

 private:
  friend class ModelMetrics;
  class ProcessStatistics;
  using ModelKey = std::pair<std::string, int64_t>;  // name and version
  struct Held {
    std::unique_ptr<ModelMetrics> metrics;
    int64_t holders = 0;
  };
  struct OfName {
    std::array<std::optional<CodeCounters>, kMethodNames.size()> methods;
    int64_t versions = 0;  // versions of the name in models_
    SeriesOwner owner;
  };

  void AddTrajectories();
  void AddServer();
  void Release(const ModelKey& key);
  const CodeCounters& CountersOf(std::string_view model, Method method);
  CodeCounters MakeCounters(const std::string& model, Method method, SeriesOwner& owner);
  std::unique_ptr<ModelMetrics> MakeModel(const std::string& name, const std::string& version);
  StageSeries MakeStages(const prometheus::Labels& model, SeriesOwner& owner);
  PairSeries MakePair(const prometheus::Labels& model, Method method, std::string_view name,
                      SeriesOwner& owner);
  SolverSeries MakeSolver(const prometheus::Labels& model, Method method, std::string_view solver,
                          SeriesOwner& owner);

  const std::vector<std::string> solvers_;
  prometheus::Registry registry_;
  std::unique_ptr<ProcessStatistics> process_;
  std::unique_ptr<GpuStatistics> gpus_;  // null without one
  prometheus::Family<prometheus::Histogram>&request_, &queue_, &solve_, &stage_, &iterations_,
      &stages_, &error_, &batch_, &speedup_, &shadow_error_, &tolerance_, &load_, &plan_;
  prometheus::Family<prometheus::Counter>&requests_, &fallbacks_, &pairs_;
  prometheus::Family<prometheus::Gauge>&queue_depth_, &queue_capacity_, &memory_, &backend_,
      &paired_;
  std::array<prometheus::Gauge*, kMethodNames.size()> in_flight_{};
  prometheus::Gauge *ready_ = nullptr, *models_ready_ = nullptr, *models_failed_ = nullptr;
  prometheus::Counter* load_failures_ = nullptr;
  prometheus::Counter* dropped_replies_ = nullptr;
  prometheus::Gauge *connections_ = nullptr, *workers_ = nullptr, *held_bytes_ = nullptr,
                    *max_held_bytes_ = nullptr, *memory_limit_ = nullptr,
                    *certificate_end_ = nullptr;
  prometheus::Counter *busy_seconds_ = nullptr, *sent_spans_ = nullptr, *dropped_spans_ = nullptr;
  prometheus::Counter* refused_connections_ = nullptr;
  std::array<prometheus::Counter*, 3> shadows_{}, trajectory_drops_{};
  prometheus::Gauge *trajectories_ = nullptr, *trajectory_bytes_ = nullptr;

  std::mutex mutex_;
  std::map<ModelKey, Held> models_;
  std::map<std::string, OfName, std::less<>> names_;  // the empty one always
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_OBSERVE_METRICS_H_
