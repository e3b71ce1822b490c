// SPDX-License-Identifier: Apache-2.0
#include "server/codec/generation_codec.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/codec/generation_controls.h"

namespace deeppcr {
namespace {

// Decodes a tensor [num_samples, inner..], if it is present.
absl::Status DecodeOptional(bool present, const v1::Tensor& tensor, const ExpectedShape& expected,
                            int64_t num_samples, TensorInput* input) {
  if (!present) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(*input, DecodeTensor(tensor, expected, num_samples, num_samples));
  return absl::OkStatus();
}

absl::Status DecodeSteps(int64_t wanted, const ModelInfo& info, SolveInput* input) {
  const auto& planned = info.num_inference_steps;
  input->system.num_steps = input->num_steps = wanted == 0 ? info.num_layers : wanted;
  const bool on_demand = wanted >= 0 && wanted <= info.max_inference_steps;
  if (wanted == 0 || on_demand || std::ranges::count(planned, wanted) > 0) return absl::OkStatus();
  const std::string expected =
      info.max_inference_steps > 0
          ? StrCat("an integer in [0, ", info.max_inference_steps, "], or one of ",
                   absl::StrJoin(planned, ", "))
          : StrCat("one of ", absl::StrJoin(planned, ", "), " (those of the model's config.json)");
  return Mismatch(input->names.Setting("num_inference_steps"), expected, wanted);
}

// Decodes the number of steps that are left out, after that of all.
absl::Status DecodeFirstStep(int64_t first, SolveInput* input) {
  DEEPPCR_RETURN_IF_ERROR(
      CheckRange<int64_t>(input->names.Setting("first_step"), first, 0, input->num_steps - 1));
  input->system.first_step = first;
  input->num_steps -= first;
  return absl::OkStatus();
}

// Decodes one label per sample, or one for all samples.
absl::Status DecodeLabels(const v1::GenerationInput& message, const ModelInfo& info,
                          SolveInput* input) {
  const int64_t n = input->num_samples;
  const auto& labels = message.class_labels();
  if (info.num_classes == 0) {
    if (labels.empty()) return absl::OkStatus();
    return Mismatch(input->names.Tensor("class_labels"), "none: the model has no classes",
                    StrCat(labels.size(), " of them"));
  }
  if (labels.size() != 1 && labels.size() != n) {
    return Mismatch(input->names.Tensor("class_labels"),
                    StrCat("1 or num_samples = ", n, " of them"), labels.size());
  }
  for (const int32_t label : labels)
    DEEPPCR_RETURN_IF_ERROR(
        CheckRange<int64_t>(input->names.Tensor("class_labels"), label, 0, info.num_classes - 1));
  input->labels.assign(labels.begin(), labels.end());
  input->labels.resize(static_cast<size_t>(n), labels[0]);
  return absl::OkStatus();
}

absl::Status DecodeCondition(const v1::GenerationInput& message, const ModelInfo& info,
                             SolveInput* input) {
  const ExpectedShape expected = {input->names.Tensor("conditioning"), {info.input_dim}};
  if (message.has_conditioning() != (info.input_dim > 0)) {
    return info.input_dim > 0
               ? Mismatch(expected.field, StrCat("a tensor ", expected.Text()), "none")
               : Mismatch(expected.field, "none: the model takes none", "a tensor");
  }
  if (info.input_dim == 0) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(input->inputs,
                           DecodeRowsOrOne(message.conditioning(), expected, input->num_samples));
  return absl::OkStatus();
}

absl::Status DecodeNoise(const v1::GenerationInput& message, const ModelInfo& info,
                         SolveInput* input) {
  const int64_t n = input->num_samples, steps = input->num_steps, dim = info.sample_dim();
  DEEPPCR_RETURN_IF_ERROR(DecodeOptional(message.has_initial_noise(), message.initial_noise(),
                                         {input->names.Tensor("initial_noise"), {dim}}, n,
                                         &input->initial_noise));
  return DecodeOptional(message.has_step_noise(), message.step_noise(),
                        {input->names.Tensor("step_noise"), {steps, dim}}, n, &input->step_noise);
}

}  // namespace

absl::Status DecodeGeneration(const v1::GenerationInput& message, const ModelInfo& info,
                              SolveInput* input) {
  input->generates = true;
  input->num_samples = message.num_samples() == 0 ? 1 : message.num_samples();
  DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>(input->names.Setting("num_samples"),
                                              input->num_samples, 1, info.max_batch_size));
  input->seed = message.seed();
  input->first_sample = message.first_sample();
  if (input->first_sample > UINT64_MAX - static_cast<uint64_t>(input->num_samples)) {
    return Mismatch(input->names.Setting("first_sample"), "first_sample + num_samples below 2^64",
                    input->first_sample);
  }
  DEEPPCR_RETURN_IF_ERROR(DecodeSteps(message.num_inference_steps(), info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeFirstStep(message.first_step(), input));
  DEEPPCR_RETURN_IF_ERROR(DecodeLabels(message, info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeCondition(message, info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeNoise(message, info, input));
  return DecodeControls(message, info, input);
}

}  // namespace deeppcr
