// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_BATCHED_GRADIENT_H_
#define DEEPPCR_CLIENT_BATCHED_GRADIENT_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/array.h"
#include "client/batched_generate.h"
#include "client/client.h"
#include "client/kept_states.h"
#include "client/parameter_gradients.h"

namespace deeppcr {

// What goes back for n samples, and along which states; see GradientRequest. Arrays may be null.
struct GradientTask {
  // The samples: inputs [n, input_dim], or a generation of a diffusion model.
  const Array* inputs = nullptr;
  const Generation* generation = nullptr;
  const Array* previous = nullptr;    // [n, L + 1, D] for INITIAL_GUESS_PREVIOUS
  const Array* trajectory = nullptr;  // [n, L + 1, D]: states to go back along; nothing is solved
  // In place of these: what the server keeps of an earlier call about the same samples, of which
  // each request takes one. Nothing is solved but for those that are gone. No loss beside them.
  std::vector<KeptStates> kept = {};
  const Array* cotangents = nullptr;              // [n, output_dim] or [n, m, output_dim]
  const Array* final_state_cotangents = nullptr;  // [n, D] or [n, m, D]
  v1::Loss loss = v1::LOSS_UNSPECIFIED;
  const Array* targets = nullptr;       // [n, output_dim] for LOSS_MSE
  std::vector<int32_t> target_classes;  // [n] for LOSS_CROSS_ENTROPY
  v1::BackwardWay way = v1::BACKWARD_WAY_UNSPECIFIED;
  int32_t shooting_interval = 0;          // of the way back
  std::vector<v1::GradientBy> gradients;  // that are wanted; empty: the server's default
  bool estimate_error = false;            // not beside a trajectory
  // Gradients by parameters too; then `gradients` has no default, and there is
  // no estimate.
  bool parameters = false;

  int64_t num_samples() const {
    return inputs != nullptr ? inputs->rows() : generation->num_samples;
  }
};

struct BatchedGradientOptions {
  v1::SolverOptions solver = {};         // not looked at with a trajectory
  int64_t batch_size = 0;                // samples per request; 0: as many as fit, or as kept
  absl::Duration deadline = {};          // for each request; zero: the client's
  std::atomic<int64_t>* done = nullptr;  // counts finished samples, for a progress line
};

// Arrays that were not asked for have no shape; gradients are [n, ..], or [n, m, ..] where the
// cotangents were.
struct BatchedGradientResult {
  Array outputs;                                     // [n, output_dim], unless nothing was solved
  Array by_inputs, by_initial_state, by_step_noise;  // [.., input_dim], [.., D], [.., L, D]
  Array trajectory;                                  // [n, L + 1, D]
  std::vector<double> losses;                        // [n] with a loss
  std::vector<v1::SolveReport> reports;              // one per request, in order, as the next
  std::vector<v1::BackwardReport> backward_reports;
  int64_t solved_again = 0;            // samples whose kept states were gone
  std::vector<NamedArray> parameters;  // sums over all samples, request by request
};

// Takes any number of samples back, in as many requests as it takes, one after the other. model:
// the description by GetModel.
// Errors: the error of the first failed request; kInvalidArgument for arrays that have not a row
// for each sample; kInternal for replies that do not match their request.
absl::StatusOr<BatchedGradientResult> BatchedGradient(const Client& client,
                                                      const v1::GetModelResponse& model,
                                                      const GradientTask& task,
                                                      const BatchedGradientOptions& options);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_BATCHED_GRADIENT_H_
