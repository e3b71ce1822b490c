// SPDX-License-Identifier: Apache-2.0
#include "server/codec/gradient_codec.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "absl/strings/str_join.h"
#include "kernels/base/losses.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/generation_controls.h"
#include "server/codec/request_codec.h"

namespace deeppcr {
namespace {

// Upper bound of what a reply has for a sample's way back, its report and its loss, in floats.
constexpr int64_t kBackwardFloats = 16;

// True if the request names what goes back.
bool HasCotangents(const v1::GradientRequest& request) {
  return request.has_cotangents() || request.has_final_state_cotangents();
}

// Decodes the states to go back along, or their handle. What would be solved for has no place
// beside them.
absl::Status DecodeTrajectory(const v1::GradientRequest& request, const ModelInfo& info,
                              SolveInput* solve, GradientInput* input) {
  input->handle = request.trajectory_handle();
  if (!request.has_trajectory() && input->handle.empty()) return absl::OkStatus();
  if (request.has_trajectory() && !input->handle.empty())
    return Mismatch(input->names.handle, "none beside a trajectory", "one");
  constexpr std::string_view kNone = "none beside a trajectory, as nothing is solved";
  if (request.has_options()) return Mismatch(input->names.options, kNone, "some");
  if (request.loss() != v1::LOSS_UNSPECIFIED)
    return Mismatch(input->names.loss,
                    "none beside a trajectory, as there are no outputs: set cotangents",
                    v1::Loss_Name(request.loss()));
  if (request.estimate_error())
    return Mismatch(input->names.estimate_error,
                    "none beside a trajectory, whose error is not known", "true");
  solve->options.solver = "sequential";  // of which plans choose nothing
  if (!request.has_trajectory()) return absl::OkStatus();
  const ExpectedShape expected = {"trajectory", {solve->num_steps + 1, info.state_dim}};
  DEEPPCR_ASSIGN_OR_RETURN(input->trajectory, DecodeTensor(request.trajectory(), expected,
                                                           solve->num_samples, solve->num_samples));
  return absl::OkStatus();
}

// Decodes cotangents [n, dim] or [n, m, dim].
absl::StatusOr<TensorInput> DecodeCotangents(const v1::Tensor& tensor, std::string_view field,
                                             int64_t dim, int64_t num_samples, bool first,
                                             GradientInput* input) {
  const bool ranked = tensor.shape_size() == 3;
  if (!first && ranked != input->ranked)
    return Mismatch(StrCat(field, ".shape"),
                    StrCat("as many extents as those of ", input->names.cotangents),
                    StrCat(tensor.shape_size(), " of them"));
  if (ranked && first) {
    DEEPPCR_RETURN_IF_ERROR(
        CheckRange<int64_t>(StrCat(field, ".shape[1]"), tensor.shape(1), 1, kMostCotangents));
    input->columns = tensor.shape(1);
    input->ranked = true;
  }
  ExpectedShape expected = {field, {dim}};
  if (ranked) expected.inner.insert(expected.inner.begin(), input->columns);
  return DecodeTensor(tensor, expected, num_samples, num_samples);
}

// Decodes the cotangents in place of a loss.
absl::Status DecodeSeeds(const v1::GradientRequest& request, const ModelInfo& info, int64_t n,
                         GradientInput* input) {
  if (!HasCotangents(request))
    return Mismatch(input->names.cotangents,
                    StrCat("a tensor [n, ", info.output_dim, "] or [n, m, ", info.output_dim, "], ",
                           input->names.final_cotangents, ", or a loss"),
                    "none");
  if (request.has_cotangents()) {
    DEEPPCR_ASSIGN_OR_RETURN(input->of_outputs,
                             DecodeCotangents(request.cotangents(), input->names.cotangents,
                                              info.output_dim, n, /*first=*/true, input));
  }
  if (!request.has_final_state_cotangents()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(
      input->of_final,
      DecodeCotangents(request.final_state_cotangents(), input->names.final_cotangents,
                       info.state_dim, n, /*first=*/!request.has_cotangents(), input));
  return absl::OkStatus();
}

absl::Status DecodeTargets(const v1::GradientRequest& request, const ModelInfo& info, int64_t n,
                           GradientInput* input) {
  if (request.loss() != v1::LOSS_MSE) {
    if (!request.has_targets()) return absl::OkStatus();
    return Mismatch("targets", "none unless loss is LOSS_MSE", "a tensor");
  }
  const ExpectedShape expected = {"targets", {info.output_dim}};
  if (!request.has_targets())
    return Mismatch("targets", StrCat("a tensor ", expected.Text(), " for LOSS_MSE"), "none");
  DEEPPCR_ASSIGN_OR_RETURN(input->targets, DecodeTensor(request.targets(), expected, n, n));
  return absl::OkStatus();
}

absl::Status DecodeClasses(const v1::GradientRequest& request, const ModelInfo& info, int64_t n,
                           GradientInput* input) {
  const auto& classes = request.target_classes();
  if (request.loss() != v1::LOSS_CROSS_ENTROPY) {
    if (classes.empty()) return absl::OkStatus();
    return Mismatch("target_classes", "none unless loss is LOSS_CROSS_ENTROPY",
                    StrCat(classes.size(), " of them"));
  }
  if (classes.size() != n)
    return Mismatch("target_classes", StrCat(n, " of them, one per sample"), classes.size());
  for (const int32_t label : classes)
    DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>("target_classes", label, 0, info.output_dim - 1));
  input->classes = {classes.data(), static_cast<size_t>(n)};
  return absl::OkStatus();
}

absl::Status DecodeLoss(const v1::GradientRequest& request, const ModelInfo& info, int64_t n,
                        GradientInput* input) {
  input->loss = request.loss();
  if (!v1::Loss_IsValid(input->loss))
    return Mismatch(input->names.loss, "a value of Loss", static_cast<int>(input->loss));
  DEEPPCR_RETURN_IF_ERROR(DecodeTargets(request, info, n, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeClasses(request, info, n, input));
  if (input->loss == v1::LOSS_UNSPECIFIED) return DecodeSeeds(request, info, n, input);
  if (!HasCotangents(request)) return absl::OkStatus();
  return Mismatch(
      request.has_cotangents() ? input->names.cotangents : input->names.final_cotangents,
      "none beside a loss", "a tensor");
}

absl::Status DecodeWay(const v1::GradientRequest& request, int64_t num_steps,
                       GradientInput* input) {
  if (!v1::BackwardWay_IsValid(request.way()))
    return Mismatch(input->names.way, "a value of BackwardWay", static_cast<int>(request.way()));
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange<int64_t>(input->names.way_interval, request.shooting_interval(), 0, num_steps));
  const bool parallel = request.way() == v1::BACKWARD_WAY_PARALLEL;
  input->plans_way = request.way() == v1::BACKWARD_WAY_AUTO;
  input->wanted = {.way = parallel ? BackwardWay::kParallel : BackwardWay::kSequential,
                   .shooting_interval = request.shooting_interval()};
  return absl::OkStatus();
}

absl::Status DecodeWanted(const v1::GradientRequest& request, const ModelInfo& info,
                          GradientInput* input) {
  if (request.gradients().empty())
    (info.input_dim > 0 ? input->by_inputs : input->by_initial_state) = true;
  for (const int by : request.gradients()) {
    bool* wanted = nullptr;
    if (by == v1::GRADIENT_BY_INPUTS) wanted = &input->by_inputs;
    if (by == v1::GRADIENT_BY_INITIAL_STATE) wanted = &input->by_initial_state;
    if (by == v1::GRADIENT_BY_STEP_NOISE) wanted = &input->by_step_noise;
    if (wanted == nullptr) return Mismatch("gradients", "values of GradientBy, set", by);
    if (*wanted)
      return Mismatch("gradients", "every one once",
                      StrCat(v1::GradientBy_Name(static_cast<v1::GradientBy>(by)), " again"));
    *wanted = true;
  }
  if (input->by_inputs && info.input_dim == 0)
    return Mismatch("gradients", "BY_INITIAL_STATE or BY_STEP_NOISE, as the model takes no inputs",
                    "BY_INPUTS");
  if (input->by_step_noise && !info.generates())
    return Mismatch("gradients", "BY_INPUTS or BY_INITIAL_STATE, as the model draws no noise",
                    "BY_STEP_NOISE");
  return absl::OkStatus();
}

// One sample's displaced states, with what goes back along them and what comes of it.
absl::Status CountDisplaced(const ModelInfo& info, const GradientInput& input, int64_t steps,
                            int64_t inputs, int64_t* scratch) {
  const int64_t d = kDisplacements, m = input.columns, dim = info.state_dim;
  const int64_t noise = info.sample_dim();
  DEEPPCR_RETURN_IF_ERROR(AddBytes({d, steps + 1, dim}, scratch));
  DEEPPCR_RETURN_IF_ERROR(AddBytes({d, inputs}, scratch));
  DEEPPCR_RETURN_IF_ERROR(AddBytes({d, m, info.output_dim + dim + noise + inputs}, scratch));
  return input.by_step_noise ? AddBytes({d, m, steps, noise}, scratch) : absl::OkStatus();
}

absl::Status CountBytes(const ModelInfo& info, int64_t max_message_bytes,
                        const GradientInput& input, SolveInput* solve) {
  const int64_t n = solve->num_samples, rows = n * input.columns;
  const int64_t steps = solve->num_steps, dim = info.state_dim;
  int64_t* const reply = &solve->reply_bytes;
  int64_t* const scratch = &solve->scratch_bytes;
  if (input.by_inputs) DEEPPCR_RETURN_IF_ERROR(AddBytes({rows, info.input_dim}, reply));
  if (input.by_initial_state) DEEPPCR_RETURN_IF_ERROR(AddBytes({rows, info.sample_dim()}, reply));
  if (input.by_step_noise)
    DEEPPCR_RETURN_IF_ERROR(AddBytes({rows, steps, info.sample_dim()}, reply));
  DEEPPCR_RETURN_IF_ERROR(AddBytes({n, kBackwardFloats}, reply));
  if (*reply > max_message_bytes)
    return NeverFits("the reply would have ", *reply, " bytes; the limit is ", max_message_bytes,
                     ". Ask for fewer samples, cotangents or gradients");
  if (input.loss != v1::LOSS_UNSPECIFIED)
    DEEPPCR_RETURN_IF_ERROR(AddBytes({n, info.output_dim}, scratch));
  const int64_t inputs = VariedInputDim(info, *solve);
  if (input.by_inputs && inputs > info.input_dim)
    DEEPPCR_RETURN_IF_ERROR(AddBytes({rows, inputs}, scratch));
  if (input.estimates_error)
    DEEPPCR_RETURN_IF_ERROR(CountDisplaced(info, input, steps, inputs, scratch));
  // The states are counted where neither request nor reply has them, once.
  const bool known = !input.trajectory.values.empty() || solve->options.return_trajectory ||
                     solve->keeps_trajectory;
  return known ? absl::OkStatus() : AddBytes({n, steps + 1, dim}, scratch);
}

// What the sums take on the way.
absl::Status CountWorkspace(const ModelInfo& info, int64_t* scratch) {
  return AddBytes({info.parameter_bytes / int64_t{sizeof(float)}}, scratch);
}

}  // namespace

absl::StatusOr<GradientInput> DecodeGradient(const v1::GradientRequest& request,
                                             const ModelInfo& info, int64_t max_message_bytes,
                                             SolveInput* solve, const FieldNames& names) {
  DEEPPCR_ASSIGN_OR_RETURN(*solve, DecodeGradientSolve(request, info, max_message_bytes, names));
  if (solve->options.on_no_convergence == OnNoConvergence::kReturn)
    return Mismatch(FieldName(names.options, ".on_no_convergence"),
                    "FALLBACK or ERROR, as states that have not converged have no gradient",
                    "RETURN");
  GradientInput input;
  input.names = names;
  const int64_t n = solve->num_samples;
  DEEPPCR_RETURN_IF_ERROR(DecodeTrajectory(request, info, solve, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeLoss(request, info, n, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeWay(request, solve->num_steps, &input));
  DEEPPCR_RETURN_IF_ERROR(DecodeWanted(request, info, &input));
  input.estimates_error = request.estimate_error();
  DEEPPCR_RETURN_IF_ERROR(CountBytes(info, max_message_bytes, input, solve));
  return input;
}

absl::StatusOr<GradientInput> DecodeParameterGradient(const v1::GradientRequest& request,
                                                      const ModelInfo& info,
                                                      int64_t max_message_bytes,
                                                      SolveInput* solve) {
  DEEPPCR_ASSIGN_OR_RETURN(GradientInput input,
                           DecodeGradient(request, info, max_message_bytes, solve));
  if (info.parameters.empty())
    return absl::UnimplementedError(
        StrCat("model: no gradients by its parameters: ",
               info.no_parameters.empty() ? "it has none" : info.no_parameters));
  if (input.columns > 1)
    return Mismatch("cotangents.shape[1]", "1, as gradients by parameters are one sum",
                    input.columns);
  if (input.estimates_error) return Mismatch("estimate_error", "false in StreamGradient", "true");
  if (solve->system.guided)
    return Mismatch("generation.guidance_scale", "1 in StreamGradient",
                    solve->controls.guidance_scale);
  if (solve->system.known)
    return Mismatch("generation.known_elements", "none in StreamGradient", "some");
  if (request.gradients().empty()) input.by_inputs = input.by_initial_state = false;
  for (const TensorShape& tensor : info.parameters) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t count, CheckedProduct(tensor.extents));
    DEEPPCR_RETURN_IF_ERROR(AddBytes({count}, &solve->scratch_bytes));
  }
  DEEPPCR_RETURN_IF_ERROR(CountWorkspace(info, &solve->scratch_bytes));
  // The cotangents of all layers, the first included.
  DEEPPCR_RETURN_IF_ERROR(
      AddBytes({solve->num_samples, solve->num_steps + 1, info.state_dim}, &solve->scratch_bytes));
  return input;
}

absl::Status CheckFinite(const GradientInput& input) {
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.trajectory.values, "trajectory"));
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.of_outputs.values, input.names.cotangents));
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input.of_final.values, input.names.final_cotangents));
  return CheckFinite(input.targets.values, "targets");
}

std::vector<double> ComputeLosses(const GradientInput& input, std::span<const float> outputs,
                                  int64_t num_samples, std::span<float> cotangents) {
  std::vector<double> losses;
  const size_t size = outputs.size() / static_cast<size_t>(num_samples);
  for (size_t i = 0; i < static_cast<size_t>(num_samples); ++i) {
    const std::span<const float> of_sample = outputs.subspan(i * size, size);
    const std::span<float> to = cotangents.subspan(i * size, size);
    const SampleLoss loss =
        input.loss == v1::LOSS_MSE
            ? MeanSquaredError(of_sample, input.targets.values.subspan(i * size, size), 1, to)
            : CrossEntropy(of_sample, input.classes[i], 1, to);
    losses.push_back(loss.loss);
  }
  return losses;
}

void FillBackwardReport(const BackwardOptions& options, std::span<const BackwardReport> samples,
                        std::span<const std::optional<double>> errors, double seconds,
                        v1::BackwardReport* report) {
  report->set_way(std::string(ToString(options.way)));
  report->set_shooting_interval(options.shooting_interval);
  report->set_seconds(seconds);
  for (size_t i = 0; i < samples.size(); ++i) {
    const BackwardReport& from = samples[i];
    v1::SampleBackwardReport* to = report->add_samples();
    to->set_termination(std::string(ToString(from.termination)));
    to->set_dependent_stages(from.dependent_stages);
    to->set_column_passes(from.column_passes);
    if (!errors.empty() && errors[i].has_value()) to->set_gradient_error_estimate(*errors[i]);
  }
}

}  // namespace deeppcr
