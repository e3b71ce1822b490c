// SPDX-License-Identifier: Apache-2.0
#include "client/commands/generation_flags.h"

#include <algorithm>

#include "client/class_labels.h"
#include "client/commands/command.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {

void GenerationFlags::Add(CLI::App* app) {
  app->add_option("--steps", steps,
                  "inference steps of a diffusion model (default: the first of its config.json)")
      ->type_name("K")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  app->add_option("--class", classes,
                  "class of the samples; several, separated by commas, or all, take turns")
      ->type_name("C[,C...]")
      ->check([](const std::string& text) {
        const std::string message(ParseClassChoice(text).status().message());
        // The parser puts the flag's name in front.
        return message.substr(std::min(message.size(), message.find("expected")));
      });
  app->add_option("--conditioning", conditioning,
                  "vectors that the samples are conditioned on [n, input_dim], or one for all")
      ->type_name("FILE");
}

absl::Status GenerationFlags::CheckUnset() const {
  if (steps == 0 && classes.empty() && conditioning.empty()) return absl::OkStatus();
  return InvalidArgument(
      "model: --steps, --class and --conditioning are for diffusion models, and this is none");
}

absl::StatusOr<std::vector<int32_t>> GenerationFlags::Labels(const v1::GetModelResponse& model,
                                                             uint64_t first_sample,
                                                             int64_t count) const {
  DEEPPCR_ASSIGN_OR_RETURN(const ClassChoice choice, ParseClassChoice(classes));
  return CycleClasses(choice, model.num_classes(), first_sample, count);
}

absl::StatusOr<Array> GenerationFlags::LoadConditioning(const v1::GetModelResponse& model,
                                                        const std::string& format) const {
  const bool wanted = model.input_dim() > 0;
  if (wanted && !conditioning.empty()) return ReadRows(conditioning, format, {model.input_dim()});
  if (!wanted && conditioning.empty()) return Array();
  return InvalidArgument(wanted ? StrCat("conditioning: this model is conditioned on vectors of ",
                                         model.input_dim(),
                                         " values: give them with --conditioning FILE")
                                : "conditioning: this model is not conditioned on vectors");
}

absl::Status SpreadRows(int64_t count, std::string_view what, Array* array) {
  if (array->rows() == count) return absl::OkStatus();
  if (array->rows() != 1) {
    return InvalidArgument(what, ": expected 1 or ", count, " rows for ", count, " samples, got ",
                           array->rows());
  }
  const std::vector<int64_t> shape = {count, array->row_size()};
  DEEPPCR_RETURN_IF_ERROR(CountElements(shape, kMaxArrayBytes / 4, what).status());
  const std::vector<float> row = array->values;
  for (int64_t i = 1; i < count; ++i) {
    array->values.insert(array->values.end(), row.begin(), row.end());
  }
  array->shape[0] = count;
  return absl::OkStatus();
}

}  // namespace deeppcr
