// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SHADOW_H_
#define DEEPPCR_SERVER_SCHEDULE_SHADOW_H_

// Shadow pairs: a sampled share of requests is repeated after the reply by both kinds of solver, or
// by both ways back, so that the metrics always say what the parallel one gains, and whether it is
// right, on live inputs.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/engine.h"
#include "server/observe/metrics.h"
#include "server/schedule/batcher.h"

namespace deeppcr {

// One sample on its way back, in memory of its own.
struct OwnedBackwardSample {
  OwnedSampleInputs samples;                // of one sample
  std::vector<float> states;                // [L + 1, D]
  int64_t columns = 1;                      // m
  std::vector<float> of_outputs, of_final;  // [m, output_dim], [m, D], or empty
  bool by_inputs = false;  // gradients by the inputs too, beside those by the initial state
};
// The first sample of an item.
OwnedBackwardSample FirstOf(const BackwardItem& item);

// The first samples of a request, as many as a pair may have memory for, at least one.
OwnedSampleInputs SamplesOfPair(const SampleInputs& samples, const ModelInfo& info,
                                int64_t num_steps);

// Thread-safe.
class ShadowSampler {
 public:
  // rate: share of requests, in [0, 1]. Both references outlive the sampler and the tasks it
  // offers.
  ShadowSampler(double rate, Batcher& batcher, Metrics& metrics);

  // Counts a request; true if it is one of the sampled share, which the model may have its own of:
  // evenly spaced, without randomness; and if a pair would be measured now.
  bool Sample(const ServedModel& model);

  // Offers to run the pair for samples of a request, which is gone by then, once nothing waits, but
  // after kPatience in any case if it takes less than kMaxLoadedSeconds by the plan. The offer is
  // dropped where a pair waits or was measured so lately that shadows would take more than
  // kMaxShare of a worker. It waits for longer where those that made requests wait would take more
  // than kMaxLoadedShare.
  // automatic: the request left the choice of its solver to the plan.
  void Offer(const std::shared_ptr<ServedModel>& model, const ResolvedOptions& primary,
             OwnedSampleInputs samples, bool automatic);

  // The same for a way back: by this one, at the same states, and by the other. Not offered where
  // the system has no other.
  void OfferBack(const std::shared_ptr<ServedModel>& model, const ResolvedOptions& solve,
                 const BackwardOptions& primary, OwnedBackwardSample sample);

  static constexpr double kMaxShare = 0.05, kMaxLoadedShare = 0.01;
  static constexpr std::chrono::milliseconds kPatience{1000};
  static constexpr double kMaxLoadedSeconds = 0.25;

 private:
  using Task = std::function<void(const ServedModel&, const CancelToken&)>;
  bool IsDue() const;
  void Queue(const std::shared_ptr<ServedModel>& model, double seconds, Task task);
  void MeasureBack(const ServedModel& model, const ResolvedOptions& solve,
                   const BackwardOptions& primary, const OwnedBackwardSample& sample,
                   const CancelToken& token);
  void Rest(int64_t start_ns, bool insisted);
  void Measure(const ServedModel& model, const ResolvedOptions& primary,
               const OwnedSampleInputs& samples, bool automatic, const CancelToken& token);

  const double rate_;
  Batcher& batcher_;
  Metrics& metrics_;
  std::atomic<uint64_t> count_{0};
  std::atomic<bool> pending_{false};  // a pair waits or runs
  // Steady clock: when the next pair may begin, and when it may make requests wait.
  std::atomic<int64_t> not_before_ns_{0}, insists_not_before_ns_{0};
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SHADOW_H_
