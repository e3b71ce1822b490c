// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_BATCHED_FORWARD_H_
#define DEEPPCR_CLIENT_BATCHED_FORWARD_H_

#include <atomic>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/array.h"
#include "client/client.h"
#include "client/kept_states.h"

namespace deeppcr {

struct BatchedForwardOptions {
  v1::SolverOptions solver = {};
  int64_t batch_size = 0;  // samples per request; 0: as many as the model and message sizes allow
  const Array* previous = nullptr;       // [n, L + 1, D] for INITIAL_GUESS_PREVIOUS
  absl::Duration deadline = {};          // for each request; zero: the client's
  std::atomic<int64_t>* done = nullptr;  // counts finished samples, for a progress line
};

struct BatchedForwardResult {
  Array outputs;                         // [n, output_dim]
  Array trajectory;                      // [n, L + 1, D], or without shape if not asked for
  std::vector<v1::SolveReport> reports;  // one per request, in order
  std::vector<KeptStates> kept;          // as many, if the solver options keep trajectories
};

// Runs any number of samples through a model, in as many requests as it takes, one after the other.
// inputs: [n, input_dim], n >= 1. model: the description by GetModel.
// Errors: the error of the first failed request; kInvalidArgument for inputs that do not fit the
// model; kInternal for replies that do not match their request.
absl::StatusOr<BatchedForwardResult> BatchedForward(const Client& client,
                                                    const v1::GetModelResponse& model,
                                                    const Array& inputs,
                                                    const BatchedForwardOptions& options);

// The most samples per request for which inputs, outputs and trajectories together stay within
// 12 MiB, at most the model's max_batch_size and at least 1.
int64_t LargestBatch(const v1::GetModelResponse& model, bool with_trajectory);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHED_FORWARD_H_
