// SPDX-License-Identifier: Apache-2.0
#include "client/commands/train_data.h"

#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/array_file.h"
#include "client/npz.h"
#include "kernels/base/file.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using training::Dataset;
using training::LossKind;

const char* AnswersName(LossKind loss) { return loss == LossKind::kMse ? "targets" : "labels"; }

absl::StatusOr<std::vector<int32_t>> LabelsOf(const Array& array, const std::string& what) {
  std::vector<int32_t> labels;
  for (size_t i = 0; i < array.values.size(); ++i) {
    const float value = array.values[i];
    // Beyond 2^24 whole numbers are no longer told apart.
    if (!(value >= 0 && value < 0x1p24F && value == std::floor(value)))
      return InvalidArgument(what, ": labels: sample ", i, ": expected a whole number from 0, got ",
                             value);
    labels.push_back(static_cast<int32_t>(value));
  }
  return labels;
}

absl::StatusOr<Dataset> LoadNpz(const std::string& path, LossKind loss) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxArrayBytes));
  const std::string_view names[] = {"inputs", AnswersName(loss)};
  absl::StatusOr<std::map<std::string, Array>> arrays = ParseNpz(bytes, names);
  if (!arrays.ok()) return WithContext(arrays.status(), path);
  return MakeDataset(std::move(arrays->at("inputs")), std::move(arrays->at(AnswersName(loss))),
                     loss, path);
}

absl::StatusOr<Dataset> LoadFiles(const std::string& inputs, const std::string& answers,
                                  LossKind loss) {
  DEEPPCR_ASSIGN_OR_RETURN(Array x, ReadArray(inputs, ""));
  DEEPPCR_ASSIGN_OR_RETURN(Array y, ReadArray(answers, ""));
  return MakeDataset(std::move(x), std::move(y), loss, answers);
}

// Data of one or the other kind of flag; none of either is no data.
absl::StatusOr<std::optional<Dataset>> LoadOne(const std::string& npz, const std::string& inputs,
                                               const std::string& targets, LossKind loss,
                                               const std::string& prefix) {
  const bool files = !inputs.empty() || !targets.empty();
  if (npz.empty() && !files) return std::nullopt;
  if (npz.empty() == files && inputs.empty() == targets.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(Dataset data,
                             files ? LoadFiles(inputs, targets, loss) : LoadNpz(npz, loss));
    return data;
  }
  return InvalidArgument("expected either --", prefix, "data FILE.npz or both of --", prefix,
                         "inputs and --", prefix, "targets");
}

}  // namespace

void DataFlags::Add(CLI::App* app) {
  app->add_option("--data", data,
                  "samples: an .npz file with the arrays inputs [n, input_dim] and labels [n] (of "
                  "mse: targets [n, output_dim])")
      ->type_name("FILE");
  app->add_option("--inputs", inputs, "the inputs alone, in place of --data")->type_name("FILE");
  app->add_option("--targets", targets, "the labels or targets of --inputs")->type_name("FILE");
  app->add_option("--validation", validation_share,
                  "share of the samples that is held out, drawn by the seed (default: none)")
      ->type_name("SHARE");
  app->add_option("--validation_data", validation_data, "held-out samples of their own, as --data")
      ->type_name("FILE");
  app->add_option("--validation_inputs", validation_inputs, "the same, as --inputs")
      ->type_name("FILE");
  app->add_option("--validation_targets", validation_targets, "the same, as --targets")
      ->type_name("FILE");
}

absl::StatusOr<Dataset> MakeDataset(Array inputs, Array answers, LossKind loss,
                                    const std::string& what) {
  if (inputs.shape.empty() || answers.shape.empty())
    return InvalidArgument(what, ": expected arrays with an axis of samples, got shapes ",
                           ShapeToString(inputs.shape), " and ", ShapeToString(answers.shape));
  if (inputs.rows() != answers.rows())
    return InvalidArgument(what, ": expected ", AnswersName(loss), " of ", inputs.rows(),
                           " samples, as there are inputs, got ", answers.rows());
  Dataset data = {.num_samples = inputs.rows(), .input_dim = inputs.row_size()};
  data.inputs = std::move(inputs.values);
  if (loss == LossKind::kMse) {
    data.target_dim = answers.row_size();
    data.targets = std::move(answers.values);
    return data;
  }
  if (answers.row_size() != 1)
    return InvalidArgument(what, ": labels: expected one number a sample, got shape ",
                           ShapeToString(answers.shape));
  DEEPPCR_ASSIGN_OR_RETURN(data.labels, LabelsOf(answers, what));
  return data;
}

absl::StatusOr<TrainingData> LoadData(const DataFlags& flags, LossKind loss, int64_t input_dim,
                                      int64_t output_dim, uint64_t seed) {
  DEEPPCR_ASSIGN_OR_RETURN(std::optional<Dataset> all,
                           LoadOne(flags.data, flags.inputs, flags.targets, loss, ""));
  if (!all.has_value())
    return InvalidArgument("expected samples: --data FILE.npz, or --inputs and --targets");
  DEEPPCR_ASSIGN_OR_RETURN(std::optional<Dataset> validation,
                           LoadOne(flags.validation_data, flags.validation_inputs,
                                   flags.validation_targets, loss, "validation_"));
  DEEPPCR_RETURN_IF_ERROR(training::CheckDataset(*all, input_dim, output_dim, "training data"));
  if (flags.validation_share == 0) {
    if (validation.has_value())
      DEEPPCR_RETURN_IF_ERROR(
          training::CheckDataset(*validation, input_dim, output_dim, "validation data"));
    return TrainingData{*std::move(all), std::move(validation)};
  }
  if (validation.has_value())
    return InvalidArgument("--validation: expected no held-out samples of their own beside it");
  DEEPPCR_ASSIGN_OR_RETURN(training::SplitDataset split,
                           training::Split(*all, flags.validation_share, seed));
  return TrainingData{std::move(split.training), std::move(split.validation)};
}

}  // namespace deeppcr
