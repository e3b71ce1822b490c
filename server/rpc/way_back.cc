// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/way_back.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/reply_codec.h"

namespace deeppcr {
namespace {

// The states of a sample that did not converge have no gradient, whatever the request's options.
absl::Status CheckConverged(std::span<const SampleReport> reports) {
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].converged) continue;
    return absl::AbortedError(StrCat("sample ", i, " did not converge: ", reports[i].solver,
                                     " ended with ", ToString(reports[i].termination),
                                     ", and its states have no gradient"));
  }
  return absl::OkStatus();
}

// The first field in which two requests for samples differ; empty if they are the same samples.
std::string_view Difference(const SampleInputs& a, const SystemKey& system_of_a,
                            const SampleInputs& b, const SystemKey& system_of_b) {
  if (a.num_samples != b.num_samples) return "number of samples";
  if (system_of_a.num_steps != system_of_b.num_steps) return "number of steps";
  if (system_of_a.first_step != system_of_b.first_step) return "first_step";
  if (system_of_a.guided != system_of_b.guided) return "guidance_scale";
  if (system_of_a.known != system_of_b.known) return "set of known elements";
  if (a.seed != b.seed) return "seed";
  if (a.first_sample != b.first_sample) return "first_sample";
  if (!std::ranges::equal(a.labels, b.labels)) return "class_labels";
  // NaN is no value of a request, so that equal values have equal bits, or are zeros of either
  // sign.
  if (!std::ranges::equal(a.inputs, b.inputs)) return "inputs or conditioning";
  if (!std::ranges::equal(a.initial_noise, b.initial_noise))
    return system_of_a.first_step > 0 ? "tensor of initial_samples"
                                      : "initial_noise, or temperature or clip of it";
  if (!std::ranges::equal(a.step_noise, b.step_noise))
    return "step_noise, or temperature or clip of it";
  return {};
}

// Takes gradients [n, m, ..] by shaped noise [n, ..], which is empty where it is as it was, to
// those by the noise itself: what a clip holds has none.
void ThroughShape(const NoiseShape& shape, std::span<const float> shaped, int64_t columns,
                  int64_t num_samples, std::span<float> gradients) {
  if (shaped.empty()) return;
  const auto factor = static_cast<float>(shape.scale), clip = static_cast<float>(shape.clip);
  const auto size = static_cast<int64_t>(shaped.size()) / num_samples;
  for (int64_t row = 0; row < std::ssize(gradients) / size; ++row) {
    for (int64_t i = 0; i < size; ++i) {
      const float value = shaped[static_cast<size_t>(row / columns * size + i)];
      float& gradient = gradients[static_cast<size_t>(row * size + i)];
      const bool held = factor == 0 || std::fabs(value) >= factor * clip;
      gradient = held ? 0 : factor * gradient;
    }
  }
}

}  // namespace

absl::Status WayBack::Check(const SolveInput& solve) const {
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_));
  if (kept_ == nullptr) return absl::OkStatus();
  const std::string_view difference =
      Difference(kept_->samples.View(), kept_->system, solve.Samples(), solve.system);
  if (difference.empty()) return absl::OkStatus();
  return Mismatch(input_.names.handle, "the samples that its states were solved for",
                  StrCat("others: another ", difference));
}

absl::StatusOr<BackwardOptions> WayBack::Resolve(const LoadedSystem& system, int64_t num_steps,
                                                 int64_t num_samples) const {
  const BackwardLimits* limits = system.backward_limits();
  if (limits == nullptr)
    return absl::UnimplementedError(
        StrCat("the backend that runs this model on ", system.plan().device,
               " has no gradients of it; start the server with --backend=cpu"));
  BackwardOptions wanted = input_.wanted;
  if (input_.plans_way) {
    const std::optional<PlanWays>& ways = system.plan().Lookup(num_samples).ways;
    const bool parallel = ways.has_value() && ways->way == BackwardWay::kParallel;
    if (parallel && limits->parallel) {
      wanted.way = BackwardWay::kParallel;
    } else {
      wanted.shooting_interval = 0;  // of the way that was not taken
    }
  }
  absl::StatusOr<BackwardOptions> resolved = ResolveBackward(wanted, *limits, num_steps);
  if (resolved.ok()) return resolved;
  // The engine calls its fields `way` and `shooting_interval`.
  const std::string_view message = ToStd(resolved.status().message());
  const size_t colon = std::min(message.find(':'), message.size());
  const FieldNames& names = input_.names;
  const std::string_view field = message.substr(0, colon) == "way" ? names.way : names.way_interval;
  return InvalidArgument(field, message.substr(colon));
}

void WayBack::Allocate(const ModelInfo& info, int64_t num_steps, const Tensors& tensors,
                       RunItem* run, BackwardItem* item) {
  const int64_t n = run->samples.num_samples, m = input_.columns, dim = info.state_dim;
  state_dim_ = dim;
  const auto allocate = [&](std::initializer_list<int64_t> extents, v1::Tensor* tensor) {
    if (tensor == nullptr) return std::span<float>();
    absl::InlinedVector<int64_t, 4> shape = {n};
    if (input_.ranked) shape.push_back(m);
    shape.insert(shape.end(), extents);
    return AllocateTensor(shape, tensor);
  };
  item->inputs = inputs_ = allocate({info.input_dim}, tensors.inputs);
  input_dim_ = info.input_dim;
  varied_dim_ = std::ssize(run->samples.inputs) / n;
  if (!inputs_.empty() && varied_dim_ > input_dim_) {
    varied_inputs_.resize(static_cast<size_t>(n * m * varied_dim_));
    item->inputs = varied_inputs_;
  }
  item->answered_inputs = info.input_dim;
  item->initial = initial_ = allocate({info.sample_dim()}, tensors.initial_state);
  item->step_noise = noise_ = allocate({num_steps, info.sample_dim()}, tensors.step_noise);
  reports_.resize(static_cast<size_t>(n));
  item->reports = reports_;
  item->samples = run->samples;
  item->of_outputs = input_.of_outputs.values;
  item->of_final = input_.of_final.values;
  item->states = kept_ != nullptr ? std::span<const float>(kept_->states)
                                  : std::span<const float>(input_.trajectory.values);
  if (!solves()) return;
  if (run->trajectory.empty()) {
    states_.resize(static_cast<size_t>(n * (num_steps + 1) * dim));
    run->trajectory = states_;
  }
  item->states = run->trajectory;
}

absl::Status WayBack::Seed(const SolveInput& solve, const RunItem& run, BackwardItem* item) {
  if (!solves()) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(JudgeReports(run.reports, solve.options));
  DEEPPCR_RETURN_IF_ERROR(CheckConverged(run.reports));
  if (input_.loss == v1::LOSS_UNSPECIFIED) return absl::OkStatus();
  cotangents_.resize(run.outputs.size());
  losses_ = ComputeLosses(input_, run.outputs, solve.num_samples, cotangents_);
  item->of_outputs = cotangents_;
  return absl::OkStatus();
}

absl::Status WayBack::EstimateErrors(GoBackFunction go_back, const ResolvedOptions& options,
                                     const RunItem& run, const BackwardItem& item) {
  if (!input_.estimates_error) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(JudgeReports(reports_));
  std::vector<std::optional<StateError>> of_states;
  for (const SampleReport& report : run.reports) {
    std::optional<StateError>& error = of_states.emplace_back();
    if (!report.error_estimate.has_value()) continue;
    error = {.relative = *report.error_estimate, .floor = options.atol / options.rtol};
  }
  DEEPPCR_ASSIGN_OR_RETURN(errors_, EstimateGradientErrors(state_dim_, item, of_states, go_back));
  return absl::OkStatus();
}

void WayBack::Complete(const SolveInput& solve) {
  const GenerationControls& controls = solve.controls;
  ThroughShape(controls.initial_noise, solve.shaped_initial_noise, input_.columns,
               solve.num_samples, initial_);
  ThroughShape(controls.step_noise, solve.shaped_step_noise, input_.columns, solve.num_samples,
               noise_);
  if (varied_inputs_.empty()) return;
  const float* from = varied_inputs_.data();
  for (auto to = inputs_.begin(); to != inputs_.end(); to += input_dim_, from += varied_dim_)
    std::copy_n(from, input_dim_, to);
}

absl::Status WayBack::Judge(const SolveOptions& options) const {
  DEEPPCR_RETURN_IF_ERROR(JudgeReports(reports_));
  if (options.on_no_convergence != OnNoConvergence::kError) return absl::OkStatus();
  for (size_t i = 0; i < reports_.size(); ++i) {
    if (reports_[i].termination == Termination::kDirect) continue;
    return absl::AbortedError(StrCat("the gradient of sample ", i, " ended with ",
                                     ToString(reports_[i].termination),
                                     " (on_no_convergence is error)"));
  }
  return absl::OkStatus();
}

}  // namespace deeppcr
