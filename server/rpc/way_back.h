// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_WAY_BACK_H_
#define DEEPPCR_SERVER_RPC_WAY_BACK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"
#include "kernels/engine.h"
#include "server/codec/gradient_codec.h"
#include "server/codec/solve_input.h"
#include "server/schedule/trajectory_store.h"

namespace deeppcr {

// The way back of a call that asks for gradients: what SolveCall does beside its solve.
class WayBack {
 public:
  // Memory that the reply has for the gradients; what is null is not wanted.
  struct Tensors {
    v1::Tensor* inputs = nullptr;
    v1::Tensor* initial_state = nullptr;
    v1::Tensor* step_noise = nullptr;
  };

  explicit WayBack(GradientInput input) : input_(std::move(input)) {}

  const GradientInput& input() const { return input_; }
  // True if there are states to be found before.
  bool solves() const { return input_.solves(); }

  // Goes back along these states, which the request has a handle of.
  void Follow(std::shared_ptr<const KeptTrajectory> kept) { kept_ = std::move(kept); }
  // Checks the values of the request, and that it is about the samples of the states that it
  // follows. Errors: kInvalidArgument.
  absl::Status Check(const SolveInput& solve) const;

  // The options of the backward pass of a system. Errors: kUnimplemented where it has none;
  // kInvalidArgument.
  absl::StatusOr<BackwardOptions> Resolve(const LoadedSystem& system, int64_t num_steps,
                                          int64_t num_samples) const;

  // Shapes the tensors and points the item at them, and the run at memory for its states. `run` has
  // its samples and outputs.
  void Allocate(const ModelInfo& info, int64_t num_steps, const Tensors& tensors, RunItem* run,
                BackwardItem* item);

  // Completes the item once the run is computed. Errors: those of JudgeReports; kAborted for a
  // sample that did not converge, whose states have no gradient.
  absl::Status Seed(const SolveInput& solve, const RunItem& run, BackwardItem* item);

  // Estimates, if that was asked for, what the errors of the states that `run` has found by
  // `options` make of the gradients, once `item` has gone back by `go_back`. Errors: those of
  // `go_back` and of JudgeReports.
  absl::Status EstimateErrors(GoBackFunction go_back, const ResolvedOptions& options,
                              const RunItem& run, const BackwardItem& item);

  // Makes the gradients those by the request's fields, once the item has gone back: of the inputs
  // of a system that has more (SystemKey) those of the condition, and by noise as it was before it
  // was scaled and clipped.
  void Complete(const SolveInput& solve);

  // The status of a request that went back: kCancelled, kDeadlineExceeded, and, for
  // OnNoConvergence::kError, kAborted with the first sample whose gradient overflowed.
  absl::Status Judge(const SolveOptions& options) const;

  std::span<const double> losses() const { return losses_; }
  std::span<const BackwardReport> reports() const { return reports_; }
  // One for each sample if they were asked for; see GradientResponse.
  std::span<const std::optional<double>> errors() const { return errors_; }

 private:
  GradientInput input_;
  std::shared_ptr<const KeptTrajectory> kept_;  // null unless the request has a handle
  int64_t state_dim_ = 0;
  int64_t input_dim_ = 0, varied_dim_ = 0;
  std::span<float> inputs_;           // [n, m, input_dim], the reply's
  std::span<float> initial_, noise_;  // [n, m, D], [n, m, L, D], the reply's
  std::vector<float> varied_inputs_;  // [n, m, inputs of the system], where it has more
  std::vector<float> states_;         // [n, L + 1, D], where neither request nor reply has them
  std::vector<float> cotangents_;     // [n, output_dim] of a loss
  std::vector<double> losses_;
  std::vector<BackwardReport> reports_;
  std::vector<std::optional<double>> errors_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_WAY_BACK_H_
