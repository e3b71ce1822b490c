// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_SCHEDULE_SERVED_MODEL_H_
#define DEEPPCR_SERVER_SCHEDULE_SERVED_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kernels/engine.h"
#include "server/observe/metrics.h"
#include "server/schedule/client_account.h"
#include "server/schedule/serving_settings.h"
#include "server/schedule/wait_prediction.h"

namespace deeppcr {

class Job;

// The queue of one model version, and its account in fair queueing. Read and written by Schedule
// alone, under the lock of its caller.
struct ModelQueue {
  // What waits, of all clients or of one.
  struct Waiting {
    int64_t samples = 0;
    double cost = 0;  // see Schedule::CostOf
  };

  std::deque<Job*> jobs;                            // that wait, by arrival
  Waiting waiting;                                  // sum over jobs
  std::map<const ClientAccount*, Waiting> clients;  // those of named clients
  int instances = 0;                                // batches that are computed now
  double used_seconds = 0;      // virtual time: what the batches took, or are estimated to take,
                                // over the model's weight
  double charged_seconds = 0;   // part of used_seconds: estimates for batches computed now
  double seconds_per_work = 0;  // of the last batch
  double cost_per_work = 0;     // of the last job that a plan tells of
  SecondsPerCost seconds_per_cost;
  WaitCaution wait_caution;
  CancelToken::Clock::time_point start_by;  // latest start of the next batch
};

// A loaded model version. A reload makes a new one; requests in progress keep theirs alive.
struct ServedModel {
  ServedModel(std::string model_name, int64_t model_version,
              std::shared_ptr<const LoadedModel> loaded,
              std::shared_ptr<ModelMetrics> model_metrics, const ServingSettings& settings = {})
      : name(std::move(model_name)),
        version(model_version),
        model(std::move(loaded)),
        metrics(std::move(model_metrics)),
        serving(settings) {}

  const std::string name;
  const int64_t version;
  const std::shared_ptr<const LoadedModel> model;
  const std::shared_ptr<ModelMetrics> metrics;  // may be null
  const ServingSettings serving;
  ModelQueue queue;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_SCHEDULE_SERVED_MODEL_H_
