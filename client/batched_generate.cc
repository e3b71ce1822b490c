// SPDX-License-Identifier: Apache-2.0
#include "client/batched_generate.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_join.h"
#include "client/batching.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// The most bytes that a sample report takes in a reply.
constexpr double kReportBytes = 256;

absl::Status CheckCount(const v1::GetModelResponse& model, const Generation& generation) {
  const int64_t n = generation.num_samples;
  if (n < 1) return InvalidArgument("num_samples: expected at least 1, got ", n);
  const uint64_t last = std::numeric_limits<uint64_t>::max() - static_cast<uint64_t>(n);
  if (generation.first_sample > last) {
    return InvalidArgument("first_sample: expected at most ", last, " for ", n, " samples, got ",
                           generation.first_sample);
  }
  const std::vector<int64_t> samples = {n, model.output_dim()};
  absl::Status status = CountElements(samples, kMaxArrayBytes / 4, "samples").status();
  const std::vector<int64_t> latents = {n, model.summary().state_dim()};
  status.Update(CountElements(latents, kMaxArrayBytes / 4, "latents").status());
  return status;
}

absl::Status CheckClassLabels(const v1::GetModelResponse& model, const Generation& generation) {
  const std::vector<int32_t>& labels = generation.class_labels;
  const int64_t expected = model.num_classes() > 0 ? generation.num_samples : 0;
  if (static_cast<int64_t>(labels.size()) != expected) {
    return InvalidArgument("class_labels: expected ", expected, " for ", generation.num_samples,
                           " samples of this model, got ", labels.size());
  }
  for (const int32_t label : labels) {
    if (label >= 0 && label < model.num_classes()) continue;
    return InvalidArgument("class_labels: expected 0 to ", model.num_classes() - 1, ", got ",
                           label);
  }
  return absl::OkStatus();
}

absl::Status CheckConditioning(const v1::GetModelResponse& model, const Generation& generation) {
  const bool given = generation.conditioning != nullptr;
  const bool wanted = model.input_dim() > 0;
  if (given && wanted) {
    return CheckShape(*generation.conditioning, {generation.num_samples, model.input_dim()},
                      "conditioning");
  }
  if (given == wanted) return absl::OkStatus();
  return InvalidArgument(wanted
                             ? StrCat("conditioning: this model is conditioned on a vector of ",
                                      model.input_dim(), " values per sample, and none was given")
                             : "conditioning: this model is not conditioned on a vector");
}

absl::Status CheckArrays(const v1::GetModelResponse& model, const Generation& generation,
                         int64_t steps, bool with_trajectory) {
  const int64_t n = generation.num_samples;
  const int64_t width = model.summary().state_dim(), sample = SampleDim(model);
  absl::Status status = CheckConditioning(model, generation);
  if (generation.initial_noise != nullptr) {
    status.Update(CheckShape(*generation.initial_noise, {n, sample}, "initial_noise"));
  }
  if (generation.step_noise != nullptr) {
    status.Update(CheckShape(*generation.step_noise, {n, steps, sample}, "step_noise"));
  }
  if (generation.null_conditioning != nullptr) {
    status.Update(
        CheckShape(*generation.null_conditioning, {n, model.input_dim()}, "null_conditioning"));
  }
  if (generation.initial_samples != nullptr) {
    status.Update(CheckShape(*generation.initial_samples, {n, sample}, "initial_samples"));
  }
  const std::vector<int64_t> states = {n, steps + 1, width};
  if (generation.previous != nullptr) {
    status.Update(CheckShape(*generation.previous, states, "previous trajectory"));
  }
  if (with_trajectory) {
    status.Update(CountElements(states, kMaxArrayBytes / 4, "trajectory").status());
  }
  return status;
}

absl::Status Collect(const v1::GetModelResponse& model, const v1::GenerateResponse& reply,
                     int64_t count, int64_t steps, bool with_trajectory,
                     BatchedGenerateResult* result) {
  const int64_t width = model.summary().state_dim();
  absl::Status status = CheckReportCount(reply.report(), count);
  status.Update(
      CollectRows(reply.samples(), {count, model.output_dim()}, "samples", &result->samples));
  const bool first = result->reports.empty();
  const bool expects_latents = first ? reply.has_latents() : !result->latents.shape.empty();
  if (expects_latents) {
    status.Update(CollectRows(reply.latents(), {count, width}, "latents", &result->latents));
  }
  if (with_trajectory) {
    status.Update(CollectRows(reply.trajectory(), {count, steps + 1, width}, "trajectory",
                              &result->trajectory));
  }
  result->reports.push_back(reply.report());
  return status;
}

absl::StatusOr<v1::GenerateResponse> Send(const Client& client, const v1::GenerateRequest& request,
                                          const BatchedGenerateOptions& options,
                                          GenerationProgress progress) {
  if (!options.on_progress) return client.Generate(request, options.deadline);
  options.on_progress(progress);
  const auto on_progress = [&](const v1::GenerateProgress& solve) {
    progress.solve = solve;
    options.on_progress(progress);
  };
  return client.StreamGenerate(request, on_progress, options.deadline);
}

}  // namespace

absl::StatusOr<int64_t> ResolveInferenceSteps(const v1::GetModelResponse& model, int64_t steps) {
  const auto& known = model.num_inference_steps();
  if (known.empty()) {
    return InvalidArgument("model: '", model.summary().name(),
                           "' is no diffusion model and draws no samples");
  }
  if (steps == 0) return known.Get(0);
  const int64_t most = model.max_inference_steps();
  if (steps > 0 && steps <= most) return steps;
  if (std::find(known.begin(), known.end(), steps) != known.end()) return steps;
  if (most > 0) return InvalidArgument("steps: expected 1 to ", most, ", got ", steps);
  return InvalidArgument("steps: expected a number that the model was loaded for (",
                         absl::StrJoin(known, ", "), "), got ", steps);
}

absl::StatusOr<int64_t> StepsMade(const Generation& generation, int64_t num_inference_steps) {
  const int64_t left_out = generation.controls.first_step();
  if (left_out >= 0 && left_out < num_inference_steps) return num_inference_steps - left_out;
  return InvalidArgument("first_step: expected 0 to ", num_inference_steps - 1, ", got ", left_out);
}

int64_t LargestGeneration(const v1::GetModelResponse& model, const Generation& generation,
                          int64_t num_inference_steps, bool with_trajectory) {
  // Computed in double, since the product of dimensions from the server might overflow int64_t.
  const double width = static_cast<double>(model.summary().state_dim());
  const double noise = static_cast<double>(num_inference_steps) * width;
  const double states = noise + width;
  double asked = static_cast<double>(model.input_dim());
  if (generation.null_conditioning != nullptr) asked += static_cast<double>(model.input_dim());
  if (generation.initial_noise != nullptr || generation.initial_samples != nullptr) asked += width;
  if (generation.step_noise != nullptr) asked += noise;
  if (generation.previous != nullptr) asked += states;
  double answered = static_cast<double>(model.output_dim()) + width;
  if (with_trajectory) answered += states;
  return FittingBatch(4 * std::max(asked, answered) + kReportBytes, model.max_batch_size());
}

void FillGenerationInput(const Generation& generation, int64_t begin, int64_t count,
                         v1::GenerationInput* input) {
  *input = generation.controls;
  input->set_num_samples(static_cast<int32_t>(count));
  input->set_seed(generation.seed);
  input->set_first_sample(generation.first_sample + static_cast<uint64_t>(begin));
  input->set_num_inference_steps(static_cast<int32_t>(generation.num_inference_steps));
  input->clear_class_labels();
  if (!generation.class_labels.empty()) {
    const auto first = generation.class_labels.begin() + begin;
    input->mutable_class_labels()->Add(first, first + count);
  }
  if (generation.conditioning != nullptr) {
    RowsToTensor(*generation.conditioning, begin, count, input->mutable_conditioning());
  }
  if (generation.initial_noise != nullptr) {
    RowsToTensor(*generation.initial_noise, begin, count, input->mutable_initial_noise());
  }
  if (generation.step_noise != nullptr) {
    RowsToTensor(*generation.step_noise, begin, count, input->mutable_step_noise());
  }
  if (generation.null_conditioning != nullptr) {
    RowsToTensor(*generation.null_conditioning, begin, count, input->mutable_null_conditioning());
  }
  if (generation.initial_samples != nullptr) {
    RowsToTensor(*generation.initial_samples, begin, count, input->mutable_initial_samples());
  }
}

absl::StatusOr<BatchedGenerateResult> BatchedGenerate(const Client& client,
                                                      const v1::GetModelResponse& model,
                                                      const Generation& generation,
                                                      const BatchedGenerateOptions& options) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t all_steps,
                           ResolveInferenceSteps(model, generation.num_inference_steps));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t steps, StepsMade(generation, all_steps));
  const bool with_trajectory = options.solver.return_trajectory();
  DEEPPCR_RETURN_IF_ERROR(CheckCount(model, generation));
  DEEPPCR_RETURN_IF_ERROR(CheckClassLabels(model, generation));
  DEEPPCR_RETURN_IF_ERROR(CheckArrays(model, generation, steps, with_trajectory));
  DEEPPCR_RETURN_IF_ERROR(CheckBatchSize(options.batch_size, model));
  const int64_t batch = options.batch_size > 0
                            ? options.batch_size
                            : LargestGeneration(model, generation, steps, with_trajectory);
  v1::GenerateRequest request;
  request.set_model(model.summary().name());
  request.set_version(model.summary().version());
  *request.mutable_options() = options.solver;
  BatchedGenerateResult result;
  result.class_labels = generation.class_labels;
  const int64_t n = generation.num_samples;
  for (int64_t begin = 0; begin < n; begin += batch) {
    const int64_t count = std::min(batch, n - begin);
    FillGenerationInput(generation, begin, count, request.mutable_input());
    if (generation.previous != nullptr) {
      RowsToTensor(*generation.previous, begin, count, request.mutable_initial_states());
    }
    const GenerationProgress progress{.done = begin, .in_request = count, .num_samples = n};
    DEEPPCR_ASSIGN_OR_RETURN(const v1::GenerateResponse reply,
                             Send(client, request, options, progress));
    DEEPPCR_RETURN_IF_ERROR(Collect(model, reply, count, steps, with_trajectory, &result));
    if (options.solver.keep_trajectory()) result.kept.push_back({reply.trajectory_handle(), count});
  }
  return result;
}

}  // namespace deeppcr
