// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_BENCH_GRADIENT_SUBJECT_H_
#define DEEPPCR_TESTS_BENCH_GRADIENT_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine.h"

namespace deeppcr::bench {

// One sample of a model, its trajectory and a cotangent of its outputs, and the gradients of them.
// Not thread-safe.
class GradientSubject {
 public:
  // `engine`, which outlives the subject, loads gradients. `input` is that of a network; a
  // diffusion model draws its noise (kSeed of measure.h, sample 0). Errors: as LoadModel and Run.
  static absl::StatusOr<std::unique_ptr<GradientSubject>> Load(const Engine& engine,
                                                               const std::string& directory,
                                                               std::span<const float> input);

  const ModelInfo& info() const { return model_->info(); }
  // Solves by the sequential solver; keeps the states where that is asked for.
  absl::Status Forward(bool keeps_states);
  // By the inputs; of a diffusion model by the initial noise. From the states that were kept.
  absl::Status Back(BackwardWay way);
  // The same and by all parameters.
  absl::Status BackToParameters();
  // All derivatives of the final state by the first: D cotangents at once.
  absl::Status Jacobian();

  // Takes over the states and the cotangent of another subject of the same model.
  void TakeStatesOf(const GradientSubject& other);

  std::span<const float> of_outputs() const { return of_outputs_; }
  std::span<const float> gradient() const { return gradient_; }  // of Back
  std::span<const float> jacobian() const { return jacobian_; }  // [D, D]: row i of element i
  // Of BackToParameters, by the parameter of this name; empty if there is none.
  std::span<const float> gradient_by(std::string_view parameter) const;
  std::span<const float> input() const { return input_; }

 private:
  explicit GradientSubject(std::shared_ptr<const LoadedModel> model);

  SampleInputs Samples() const;
  absl::Status GoBack(BackwardWay way, BackwardItem item);

  const std::shared_ptr<const LoadedModel> model_;
  const std::shared_ptr<const LoadedSystem> system_;
  ResolvedOptions sequential_;
  BackwardReport report_;
  SampleReport forward_report_;
  std::vector<float> input_, outputs_, states_, of_outputs_, of_final_;
  std::vector<float> gradient_, jacobian_, deltas_, encode_delta_;
  std::vector<std::vector<float>> by_parameters_;
};

}  // namespace deeppcr::bench

#endif  // DEEPPCR_TESTS_BENCH_GRADIENT_SUBJECT_H_
