// SPDX-License-Identifier: Apache-2.0
#include "kernels/c_api/gradients.h"

#include <chrono>
#include <vector>

#include "kernels/base/finite.h"
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
  DEEPPCR_ASSIGN_OR_RETURN(
      const std::shared_ptr<const LoadedSystem> system,
      SystemFor(*model, {}, known.num_inference_steps, from.num_samples, token.get()));
  if (system->backward_limits() == nullptr)
    return absl::UnimplementedError(
        "no gradients: set gradients in the engine's options, and a backend that has them");
  const int64_t num_steps =
      known.num_inference_steps > 0 ? known.num_inference_steps : info.num_layers;
  DEEPPCR_ASSIGN_OR_RETURN(const BackwardOptions way,
                           Translate(known, *system->backward_limits(), num_steps));
  DEEPPCR_ASSIGN_OR_RETURN(const SampleInputs samples, InputsOf(from, info, num_steps));
  const int64_t n = from.num_samples, rows = n * back.columns, dim = info.state_dim;
  const std::span<const float> states = Rows(back.states, n, (num_steps + 1) * dim);
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(states));
  std::vector<BackwardReport> reports(n);
  BackwardItem item{.samples = samples,
                    .states = states,
                    .columns = back.columns,
                    .of_outputs = Rows(back.of_outputs, rows, info.output_dim),
                    .of_final = Rows(back.of_final_states, rows, dim),
                    .inputs = Rows(to.inputs, rows, info.input_dim),
                    .initial = Rows(to.initial_states, rows, dim),
                    .step_noise = Rows(to.step_noise, rows, num_steps * dim),
                    .reports = reports,
                    .token = token.get()};
  const auto start = std::chrono::steady_clock::now();
  DEEPPCR_RETURN_IF_ERROR(system->GoBack(way, {&item, 1}));
  to.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  to.dependent_stages = reports.front().dependent_stages;
  std::memcpy(gradients, &to, gradients->struct_size);
  return JudgeReports(reports);
}

}  // namespace deeppcr
