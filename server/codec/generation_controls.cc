// SPDX-License-Identifier: Apache-2.0
#include "server/codec/generation_controls.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/never_fits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr double kMostScale = 1000;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Decodes a number in [low, high] that may be left out.
absl::Status DecodeNumber(bool present, double value, const FieldName& field, double low,
                          double high, double* to) {
  if (!present) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(CheckRange(field, value, low, high));
  *to = value;
  return absl::OkStatus();
}

absl::Status DecodeGuidance(const v1::GenerationInput& message, const ModelInfo& info,
                            SolveInput* input) {
  GenerationControls& controls = input->controls;
  const FieldName field = input->names.Setting("guidance_scale");
  DEEPPCR_RETURN_IF_ERROR(DecodeNumber(message.has_guidance_scale(), message.guidance_scale(),
                                       field, -kMostScale, kMostScale, &controls.guidance_scale));
  // The scale is a float of the system's inputs.
  controls.guidance_scale = static_cast<float>(controls.guidance_scale);
  const ExpectedShape expected = {input->names.Tensor("null_conditioning"), {info.input_dim}};
  if (message.has_null_conditioning()) {
    if (info.input_dim == 0)
      return Mismatch(expected.field, "none: the model is not conditioned on a vector", "a tensor");
    DEEPPCR_ASSIGN_OR_RETURN(
        controls.null_condition,
        DecodeRowsOrOne(message.null_conditioning(), expected, input->num_samples));
  }
  input->system.guided = controls.guidance_scale != 1;
  if (!input->system.guided) return absl::OkStatus();
  if (info.num_classes == 0 && info.input_dim == 0)
    return Mismatch(field, "1, as the model takes no condition", controls.guidance_scale);
  if (info.num_classes > 0 && !info.has_null_class)
    return Mismatch(field, "1, as no class stands for no condition (null_class of config.json)",
                    controls.guidance_scale);
  if (info.num_classes == 0 && info.null_condition.empty() && !message.has_null_conditioning())
    return Mismatch(expected.field,
                    StrCat("a tensor ", expected.Text(),
                           " beside guidance_scale, as the model's "
                           "config.json has no null_condition"),
                    "none");
  return absl::OkStatus();
}

absl::Status DecodeClip(bool present, double value, const FieldName& field, double* to) {
  if (!present) return absl::OkStatus();
  if (!(value > 0)) return Mismatch(field, "a number above 0", value);
  *to = value;
  return absl::OkStatus();
}

absl::Status DecodeNoiseShape(const v1::GenerationInput& message, SolveInput* input) {
  NoiseShape &initial = input->controls.initial_noise, &steps = input->controls.step_noise;
  const FieldNames& names = input->names;
  DEEPPCR_RETURN_IF_ERROR(DecodeNumber(message.has_temperature(), message.temperature(),
                                       names.Setting("temperature"), 0, kMostScale, &steps.scale));
  DEEPPCR_RETURN_IF_ERROR(
      DecodeNumber(message.has_initial_temperature(), message.initial_temperature(),
                   names.Setting("initial_temperature"), 0, kMostScale, &initial.scale));
  DEEPPCR_RETURN_IF_ERROR(DecodeClip(message.has_noise_clip(), message.noise_clip(),
                                     names.Setting("noise_clip"), &steps.clip));
  return DecodeClip(message.has_initial_noise_clip(), message.initial_noise_clip(),
                    names.Setting("initial_noise_clip"), &initial.clip);
}

// Decodes the beginning of a process whose first steps are left out. What it begins at stands in
// the place of the initial noise.
absl::Status DecodeBeginning(const v1::GenerationInput& message, const ModelInfo& info,
                             SolveInput* input) {
  const FieldNames& names = input->names;
  const ExpectedShape expected = {names.Tensor("initial_samples"), {info.sample_dim()}};
  if (message.first_step() == 0) {
    if (!message.has_initial_samples()) return absl::OkStatus();
    return Mismatch(expected.field, "none without first_step", "a tensor");
  }
  if (!message.has_initial_samples())
    return Mismatch(expected.field, StrCat("a tensor ", expected.Text(), " beside first_step"),
                    "none");
  if (message.has_initial_noise())
    return Mismatch(names.Tensor("initial_noise"), "none beside initial_samples", "a tensor");
  for (const auto& [given, name] :
       {std::pair(message.has_initial_temperature(), "initial_temperature"),
        std::pair(message.has_initial_noise_clip(), "initial_noise_clip")})
    if (given) return Mismatch(names.Setting(name), "none beside initial_samples", "one");
  const int64_t n = input->num_samples;
  DEEPPCR_ASSIGN_OR_RETURN(input->initial_noise,
                           DecodeTensor(message.initial_samples(), expected, n, n));
  return absl::OkStatus();
}

absl::Status DecodeKnown(const v1::GenerationInput& message, const ModelInfo& info,
                         SolveInput* input) {
  GenerationControls& controls = input->controls;
  const auto& elements = message.known_elements();
  const FieldName field = input->names.Tensor("known_elements");
  const ExpectedShape expected = {input->names.Tensor("known_values"), {elements.size()}};
  if (elements.empty()) {
    if (!message.has_known_values()) return absl::OkStatus();
    return Mismatch(expected.field, "none without known_elements", "a tensor");
  }
  if (!message.has_known_values())
    return Mismatch(expected.field, StrCat("a tensor ", expected.Text()), "none");
  if (elements.size() > info.sample_dim())
    return Mismatch(field, StrCat("at most ", info.sample_dim(), " elements"), elements.size());
  controls.known_elements.assign(elements.begin(), elements.end());
  std::vector<bool> known(static_cast<size_t>(info.sample_dim()));
  for (const int32_t element : elements) {
    DEEPPCR_RETURN_IF_ERROR(CheckRange<int64_t>(field, element, 0, info.sample_dim() - 1));
    if (known[static_cast<size_t>(element)])
      return Mismatch(field, "every element once", StrCat(element, " twice"));
    known[static_cast<size_t>(element)] = true;
  }
  DEEPPCR_ASSIGN_OR_RETURN(controls.known_values,
                           DecodeRowsOrOne(message.known_values(), expected, input->num_samples));
  input->system.known = true;
  return absl::OkStatus();
}

// `excluded`: the infinity that no sample would be left beside.
absl::Status DecodeBound(const google::protobuf::RepeatedField<float>& bounds, float excluded,
                         const FieldName& field, int64_t size, std::vector<float>* to) {
  if (bounds.empty()) return absl::OkStatus();
  if (bounds.size() != 1 && bounds.size() != size)
    return Mismatch(field, StrCat("1 or output_dim = ", size, " numbers"), bounds.size());
  to->assign(bounds.begin(), bounds.end());
  for (const float bound : *to) {
    if (std::isnan(bound)) return Mismatch(field, "numbers", "NaN");
    if (bound == excluded) return Mismatch(field, "bounds between which numbers are", bound);
  }
  to->resize(static_cast<size_t>(size), to->front());
  return absl::OkStatus();
}

absl::Status DecodeBounds(const v1::GenerationInput& message, const ModelInfo& info,
                          SolveInput* input) {
  GenerationControls& controls = input->controls;
  const FieldName lower = input->names.Setting("lower_bounds");
  DEEPPCR_RETURN_IF_ERROR(
      DecodeBound(message.lower_bounds(), kInfinity, lower, info.output_dim, &controls.lower));
  DEEPPCR_RETURN_IF_ERROR(DecodeBound(message.upper_bounds(), -kInfinity,
                                      input->names.Setting("upper_bounds"), info.output_dim,
                                      &controls.upper));
  for (size_t i = 0; i < std::min(controls.lower.size(), controls.upper.size()); ++i) {
    if (controls.lower[i] <= controls.upper[i]) continue;
    return Mismatch(lower, "bounds at most those of upper_bounds",
                    StrCat(controls.lower[i], " above ", controls.upper[i], " at ", i));
  }
  return absl::OkStatus();
}

bool VariesInputs(const SolveInput& input) { return input.system.guided || input.system.known; }
// One row of the condition is for all samples, and the system takes a row for each.
bool RepeatsInputs(const ModelInfo& info, const SolveInput& input) {
  return info.generates() && input.num_samples > 1 && info.input_dim > 0 &&
         std::ssize(input.inputs.values) == info.input_dim;
}
bool ShapesInitialNoise(const SolveInput& input) {
  return input.controls.initial_noise != NoiseShape{};
}
// Steps that are not the first of their process draw the noise of their places in it.
bool ShapesStepNoise(const SolveInput& input) {
  return input.controls.step_noise != NoiseShape{} ||
         (input.system.first_step > 0 && input.step_noise.values.empty());
}

absl::Status CountMade(const ModelInfo& info, SolveInput* input) {
  const int64_t n = input->num_samples, steps = input->num_steps, dim = info.sample_dim();
  const auto add = [&](bool made, std::initializer_list<int64_t> extents) {
    return made ? AddBytes(extents, &input->made_bytes) : absl::OkStatus();
  };
  DEEPPCR_RETURN_IF_ERROR(
      add(VariesInputs(*input) || RepeatsInputs(info, *input), {n, VariedInputDim(info, *input)}));
  DEEPPCR_RETURN_IF_ERROR(add(ShapesInitialNoise(*input), {n, dim}));
  DEEPPCR_RETURN_IF_ERROR(add(ShapesStepNoise(*input) && info.draws_step_noise, {n, steps, dim}));
  input->scratch_bytes = input->made_bytes;
  return absl::OkStatus();
}

// Appends row i of [n or 1, size].
void AppendRow(std::span<const float> rows, int64_t i, int64_t size, std::vector<float>* to) {
  const bool one = std::ssize(rows) == size;
  const auto row = rows.subspan(static_cast<size_t>(one ? 0 : i * size), static_cast<size_t>(size));
  to->insert(to->end(), row.begin(), row.end());
}

// The condition's vector of every sample, as SystemKey names it.
void VaryInputs(const ModelInfo& info, SolveInput* input) {
  const GenerationControls& controls = input->controls;
  const auto dim = static_cast<size_t>(info.sample_dim());
  std::vector<float>& to = input->varied_inputs;
  to.reserve(static_cast<size_t>(input->num_samples * VariedInputDim(info, *input)));
  for (int64_t i = 0; i < input->num_samples; ++i) {
    AppendRow(input->inputs.values, i, info.input_dim, &to);
    if (input->system.guided) {
      const std::span<const float> null = controls.null_condition.values;
      AppendRow(null.empty() ? std::span<const float>(info.null_condition) : null, i,
                info.input_dim, &to);
      to.push_back(static_cast<float>(controls.guidance_scale));
    }
    if (!input->system.known) continue;
    const size_t mask = to.size();
    to.resize(mask + 2 * dim);
    std::vector<float> values;
    AppendRow(controls.known_values.values, i, std::ssize(controls.known_elements), &values);
    for (size_t k = 0; k < values.size(); ++k) {
      const auto element = static_cast<size_t>(controls.known_elements[k]);
      to[mask + element] = 1;
      to[mask + dim + element] = values[k];
    }
  }
}

void Shape(const NoiseShape& shape, std::vector<float>* noise) {
  const auto most = static_cast<float>(shape.clip), factor = static_cast<float>(shape.scale);
  for (float& value : *noise) value = factor * std::clamp(value, -most, most);
}

// Noise that was given, or [n, rows, D] that draw(sample, row, noise) draws.
template <class Draw>
std::vector<float> GivenOrDrawn(const SolveInput& input, std::span<const float> given, int64_t rows,
                                int64_t dim, const Draw& draw) {
  std::vector<float> noise(given.begin(), given.end());
  if (!given.empty()) return noise;
  noise.resize(static_cast<size_t>(input.num_samples * rows * dim));
  float* row = noise.data();
  for (int64_t i = 0; i < input.num_samples; ++i) {
    const uint64_t sample = input.first_sample + static_cast<uint64_t>(i);
    for (int64_t l = 0; l < rows; ++l, row += dim)
      draw(sample, l, std::span(row, static_cast<size_t>(dim)));
  }
  return noise;
}

}  // namespace

absl::StatusOr<TensorInput> DecodeRowsOrOne(const v1::Tensor& tensor, const ExpectedShape& expected,
                                            int64_t num_samples) {
  const bool one = tensor.shape_size() > 0 && tensor.shape(0) == 1;
  const int64_t rows = one ? 1 : num_samples;
  return DecodeTensor(tensor, expected, rows, rows);
}

absl::Status DecodeControls(const v1::GenerationInput& message, const ModelInfo& info,
                            SolveInput* input) {
  DEEPPCR_RETURN_IF_ERROR(DecodeGuidance(message, info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeNoiseShape(message, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeBeginning(message, info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeKnown(message, info, input));
  DEEPPCR_RETURN_IF_ERROR(DecodeBounds(message, info, input));
  if (!input->system.plain() && info.max_inference_steps == 0)
    return NeverFits(input->names.settings, FieldOf(input->system),
                     ": the model's server has no memory for such systems; raise its "
                     "--max_unplanned_bytes");
  return CountMade(info, input);
}

std::string_view FieldOf(const SystemKey& key) {
  if (key.first_step > 0) return "first_step";
  if (key.guided) return "guidance_scale";
  return key.known ? "known_elements" : "num_inference_steps";
}

absl::Status CheckNoBounds(const SolveInput& input) {
  if (input.controls.lower.empty() && input.controls.upper.empty()) return absl::OkStatus();
  return Mismatch(
      input.names.Setting(input.controls.lower.empty() ? "upper_bounds" : "lower_bounds"),
      "none but in Generate and StreamGenerate", "some");
}

absl::Status CheckFiniteControls(const SolveInput& input) {
  DEEPPCR_RETURN_IF_ERROR(
      CheckFinite(input.controls.null_condition.values, input.names.Tensor("null_conditioning")));
  return CheckFinite(input.controls.known_values.values, input.names.Tensor("known_values"));
}

int64_t VariedInputDim(const ModelInfo& info, const SolveInput& input) {
  int64_t size = info.input_dim;
  if (input.system.guided) size += info.input_dim + 1;
  if (input.system.known) size += 2 * info.sample_dim();
  return size;
}

bool NeedsCompletion(const ModelInfo& info, const SolveInput& input) {
  return VariesInputs(input) || RepeatsInputs(info, input) || ShapesInitialNoise(input) ||
         ShapesStepNoise(input);
}

void CompleteGeneration(const ModelInfo& info, SolveInput* input) {
  if (VariesInputs(*input) || RepeatsInputs(info, *input)) VaryInputs(info, input);
  const uint64_t seed = input->seed;
  if (ShapesInitialNoise(*input)) {
    input->shaped_initial_noise =
        GivenOrDrawn(*input, input->initial_noise.values, 1, info.sample_dim(),
                     [=](uint64_t sample, int64_t, std::span<float> row) {
                       DrawInitialNoise(seed, sample, row);
                     });
    Shape(input->controls.initial_noise, &input->shaped_initial_noise);
  }
  if (!ShapesStepNoise(*input) || !info.draws_step_noise) return;
  const int64_t first = input->system.first_step;
  input->shaped_step_noise =
      GivenOrDrawn(*input, input->step_noise.values, input->num_steps, info.sample_dim(),
                   [=](uint64_t sample, int64_t step, std::span<float> row) {
                     DrawStepNoise(seed, sample, first + step, row);
                   });
  Shape(input->controls.step_noise, &input->shaped_step_noise);
}

void PutIntoBounds(const GenerationControls& controls, std::span<float> outputs) {
  // A sample that is no number is left as it is.
  const auto put = [&](const std::vector<float>& bounds, auto worse) {
    for (size_t i = 0; i < outputs.size() && !bounds.empty(); ++i) {
      const float bound = bounds[i % bounds.size()];
      if (worse(outputs[i], bound)) outputs[i] = bound;
    }
  };
  put(controls.lower, [](float value, float bound) { return value < bound; });
  put(controls.upper, [](float value, float bound) { return value > bound; });
}

}  // namespace deeppcr
