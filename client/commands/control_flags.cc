// SPDX-License-Identifier: Apache-2.0
#include "client/commands/control_flags.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/array_file.h"
#include "client/batching.h"
#include "client/commands/generation_flags.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

absl::Status ParseKnown(const std::string& text, v1::GenerationInput* to) {
  if (text.empty()) return absl::OkStatus();
  std::vector<float> values;
  for (const absl::string_view pair : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(pair, '=');
    int32_t element = 0;
    float value = 0;
    if (!absl::SimpleAtoi(parts.first, &element) || !absl::SimpleAtof(parts.second, &value))
      return InvalidArgument("known: expected ELEMENT=VALUE, separated by commas, got ",
                             Quoted(ToStd(pair)));
    to->add_known_elements(element);
    values.push_back(value);
  }
  const auto size = static_cast<int64_t>(values.size());
  RowsToTensor({.shape = {1, size}, .values = std::move(values)}, 0, 1, to->mutable_known_values());
  return absl::OkStatus();
}

absl::Status ReadIfNamed(const std::string& path, const std::string& format, int64_t row,
                         Array* array) {
  if (path.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(*array, ReadRows(path, format, {row}));
  return absl::OkStatus();
}

}  // namespace

void ControlFlags::Add(CLI::App* app, bool with_bounds) {
  const auto add = [app](const char* name, auto& to, const char* help, const char* type) {
    return app->add_option(name, to, help)->type_name(type)->group("Process of a diffusion model");
  };
  add("--guidance_scale", guidance_scale_,
      "scale w of classifier-free guidance, m_null + w (m - m_null) (default 1: none)", "W");
  add("--null_conditioning", null_conditioning_path_,
      "vectors that stand for no condition [n, input_dim], or one for all (default: the model's)",
      "FILE");
  add("--temperature", temperature_, "scale of the noise of the steps (default 1)", "T");
  add("--initial_temperature", initial_temperature_, "scale of the initial noise (default 1)", "T");
  add("--noise_clip", noise_clip_, "largest magnitude of the steps' noise, before it is scaled",
      "C");
  add("--initial_noise_clip", initial_noise_clip_, "the same of the initial noise", "C");
  add("--known", known_, "elements of the state that are known, and their values", "I=V[,I=V...]");
  add("--first_step", first_step_, "steps that are left out; needs --initial_samples", "K")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  add("--initial_samples", initial_samples_path_,
      "states that --first_step begins at [n, sample_dim], or one for all", "FILE");
  if (!with_bounds) return;
  add("--lower", lower_, "lower bounds of the samples: one number, or one for each element",
      "V[,V...]")
      ->delimiter(',');
  add("--upper", upper_, "upper bounds of the samples", "V[,V...]")->delimiter(',');
}

absl::Status ControlFlags::CheckUnset() const {
  const bool number = guidance_scale_.has_value() || temperature_.has_value() ||
                      initial_temperature_.has_value() || noise_clip_.has_value() ||
                      initial_noise_clip_.has_value() || first_step_ > 0;
  const bool text = !known_.empty() || !null_conditioning_path_.empty() ||
                    !initial_samples_path_.empty() || !lower_.empty() || !upper_.empty();
  if (!number && !text) return absl::OkStatus();
  return InvalidArgument(
      "model: guidance, noise, known elements and first steps are for diffusion models only");
}

absl::Status ControlFlags::ReadFiles(const v1::GetModelResponse& model, const std::string& format) {
  if (!null_conditioning_path_.empty() && model.input_dim() == 0)
    return InvalidArgument("null_conditioning: this model is not conditioned on vectors");
  absl::Status status =
      ReadIfNamed(null_conditioning_path_, format, model.input_dim(), &null_conditioning_);
  status.Update(ReadIfNamed(initial_samples_path_, format, SampleDim(model), &initial_samples_));
  return status;
}

absl::StatusOr<int64_t> ControlFlags::StepsMade(int64_t num_inference_steps) const {
  Generation generation;
  generation.controls.set_first_step(static_cast<int32_t>(first_step_));
  return deeppcr::StepsMade(generation, num_inference_steps);
}

absl::Status ControlFlags::Take(Generation* generation) {
  v1::GenerationInput& to = generation->controls;
  if (guidance_scale_.has_value()) to.set_guidance_scale(*guidance_scale_);
  if (temperature_.has_value()) to.set_temperature(*temperature_);
  if (initial_temperature_.has_value()) to.set_initial_temperature(*initial_temperature_);
  if (noise_clip_.has_value()) to.set_noise_clip(*noise_clip_);
  if (initial_noise_clip_.has_value()) to.set_initial_noise_clip(*initial_noise_clip_);
  to.set_first_step(static_cast<int32_t>(first_step_));
  to.mutable_lower_bounds()->Add(lower_.begin(), lower_.end());
  to.mutable_upper_bounds()->Add(upper_.begin(), upper_.end());
  DEEPPCR_RETURN_IF_ERROR(ParseKnown(known_, &to));
  const auto take = [&](std::string_view name, Array* array, const Array** member) {
    if (array->shape.empty()) return absl::OkStatus();
    DEEPPCR_RETURN_IF_ERROR(SpreadRows(generation->num_samples, name, array));
    *member = array;
    return absl::OkStatus();
  };
  DEEPPCR_RETURN_IF_ERROR(
      take("null_conditioning", &null_conditioning_, &generation->null_conditioning));
  return take("initial_samples", &initial_samples_, &generation->initial_samples);
}

}  // namespace deeppcr
