// SPDX-License-Identifier: Apache-2.0
#include "kernels/c_api/gradients.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/base/finite.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/c_api/calls.h"

namespace deeppcr {
namespace {

absl::StatusOr<BackwardOptions> Translate(const deeppcr_backward_options& given,
                                          const BackwardLimits& limits, int64_t num_steps) {
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_way way,
                           EnumOf(given.way, DEEPPCR_WAY_PARALLEL, "options.way"));
  const BackwardOptions wanted = {
      .way = way == DEEPPCR_WAY_PARALLEL ? BackwardWay::kParallel : BackwardWay::kSequential,
      .shooting_interval = given.shooting_interval};
  absl::StatusOr<BackwardOptions> resolved = ResolveBackward(wanted, limits, num_steps);
  if (!resolved.ok()) return InvalidArgument("options.", resolved.status().message());
  return resolved;
}

// The trajectory of a run that did not come to an end has no derivative.
absl::Status CheckFinite(std::span<const float> states) {
  if (AllFinite(states)) return absl::OkStatus();
  return InvalidArgument("cotangents.states: expected finite numbers");
}

absl::Status CheckReal(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument(name, ": expected a number in [", least, ", ", most, "], got ", value);
}

// A wish for estimates, with the errors of the states that they follow from.
absl::Status CheckErrors(const deeppcr_cotangents& back, const deeppcr_gradients& to, int64_t n) {
  if (to.error_estimates == nullptr) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(Required(back.state_errors, "cotangents.state_errors"));
  DEEPPCR_RETURN_IF_ERROR(CheckReal("cotangents.state_floor", back.state_floor, 0.0, 1e7));
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isnan(back.state_errors[i]))
      DEEPPCR_RETURN_IF_ERROR(CheckReal("cotangents.state_errors", back.state_errors[i], 0.0, 1.0));
  }
  return absl::OkStatus();
}

// Fills the estimates [n] of what has gone back; null: not wanted.
absl::Status EstimateErrors(const LoadedSystem& system, const BackwardOptions& way,
                            const deeppcr_cotangents& back, int64_t state_dim,
                            const BackwardItem& item, double* estimates) {
  if (estimates == nullptr) return absl::OkStatus();
  std::vector<std::optional<StateError>> of_states;
  for (int64_t i = 0; i < item.samples.num_samples; ++i) {
    std::optional<StateError>& error = of_states.emplace_back();
    if (!std::isnan(back.state_errors[i]))
      error = {.relative = back.state_errors[i], .floor = back.state_floor};
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      const auto errors,
      EstimateGradientErrors(state_dim, item, of_states, [&](std::span<BackwardItem> items) {
        return system.GoBack(way, items);
      }));
  for (size_t i = 0; i < errors.size(); ++i) estimates[i] = errors[i].value_or(NAN);
  return absl::OkStatus();
}

}  // namespace

absl::Status GoBack(const deeppcr_model* model, const deeppcr_backward_options* options,
                    const deeppcr_inputs* inputs, const deeppcr_cotangents* cotangents,
                    deeppcr_gradients* gradients) {
  DEEPPCR_RETURN_IF_ERROR(Required(model, "model"));
  DEEPPCR_RETURN_IF_ERROR(Required(inputs, "inputs"));
  DEEPPCR_RETURN_IF_ERROR(Required(cotangents, "cotangents"));
  DEEPPCR_RETURN_IF_ERROR(Required(gradients, "gradients"));
  DEEPPCR_RETURN_IF_ERROR(CheckProcess(model->process));
  DEEPPCR_ASSIGN_OR_RETURN(
      const deeppcr_backward_options known,
      Known(options, deeppcr_backward_options DEEPPCR_BACKWARD_OPTIONS_INIT, "options"));
  DEEPPCR_ASSIGN_OR_RETURN(const deeppcr_inputs from,
                           Known(inputs, deeppcr_inputs DEEPPCR_INPUTS_INIT, "inputs"));
  DEEPPCR_ASSIGN_OR_RETURN(
      const deeppcr_cotangents back,
      Known(cotangents, deeppcr_cotangents DEEPPCR_COTANGENTS_INIT, "cotangents"));
  DEEPPCR_ASSIGN_OR_RETURN(deeppcr_gradients to,
                           Known(gradients, deeppcr_gradients DEEPPCR_GRADIENTS_INIT, "gradients"));
  const ModelInfo& info = model->model->info();
  DEEPPCR_RETURN_IF_ERROR(
      CheckNumbers(info, from.num_samples, known.num_inference_steps, known.timeout_seconds));
  DEEPPCR_RETURN_IF_ERROR(CheckRange("cotangents.columns", back.columns, 1, kMostCotangents));
  DEEPPCR_RETURN_IF_ERROR(Required(back.states, "cotangents.states"));
  if (to.step_noise != nullptr && !info.generates())
    return InvalidArgument("gradients.step_noise: expected NULL, as the model draws no noise");
  const RunToken token(known.token, known.timeout_seconds);
  SystemKey key(known.num_inference_steps);
  key.backward = true;
  DEEPPCR_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedSystem> system,
                           FoundOrMade(model->model->FindForGradients({}, key, from.num_samples),
                                       *model, key, token.get()));
  if (system->backward_limits() == nullptr)
    return absl::UnimplementedError(
        "no gradients: set gradients in the engine's options, and a backend that has them");
  const int64_t num_steps =
      known.num_inference_steps > 0 ? known.num_inference_steps : info.num_layers;
  DEEPPCR_ASSIGN_OR_RETURN(const BackwardOptions way,
                           Translate(known, *system->backward_limits(), num_steps));
  DEEPPCR_ASSIGN_OR_RETURN(const SampleInputs samples, InputsOf(from, info, num_steps));
  const int64_t n = from.num_samples, rows = n * back.columns, dim = info.state_dim;
  DEEPPCR_RETURN_IF_ERROR(CheckErrors(back, to, n));
  const std::span<const float> states = Rows(back.states, n, (num_steps + 1) * dim);
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(states));
  std::vector<BackwardReport> reports(n);
  BackwardItem item{.samples = samples,
                    .states = states,
                    .columns = back.columns,
                    .of_outputs = Rows(back.of_outputs, rows, info.output_dim),
                    .of_final = Rows(back.of_final_states, rows, dim),
                    .inputs = Rows(to.inputs, rows, info.input_dim),
                    .initial = Rows(to.initial_states, rows, info.sample_dim()),
                    .step_noise = Rows(to.step_noise, rows, num_steps * info.sample_dim()),
                    .reports = reports,
                    .token = token.get()};
  const auto start = std::chrono::steady_clock::now();
  DEEPPCR_RETURN_IF_ERROR(system->GoBack(way, {&item, 1}));
  DEEPPCR_RETURN_IF_ERROR(JudgeReports(reports));
  DEEPPCR_RETURN_IF_ERROR(EstimateErrors(*system, way, back, dim, item, to.error_estimates));
  to.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  to.dependent_stages = reports.front().dependent_stages;
  std::memcpy(gradients, &to, gradients->struct_size);
  return absl::OkStatus();
}

}  // namespace deeppcr
