// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "kernels/base/file.h"
#include "kernels/base/sha256.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/registry.h"
#include "kernels/model/reverse_process.h"
#include "kernels/model/step_table.h"

namespace deeppcr {
namespace {

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kSchedulerFile = "scheduler_config.json";
constexpr std::string_view kWeightsFile = "model.safetensors";
constexpr std::string_view kCalibrationFile = "calibration.safetensors";
constexpr std::string_view kCalibrationTensor = "inputs";
constexpr int64_t kMaxCalibrationSamples = 4096;

std::string PathOf(const std::string& directory, std::string_view file) {
  return StrCat(directory, "/", file);
}

absl::Status ReadConfig(const std::string& directory, const ModelLimits& limits, Model& model) {
  DEEPPCR_ASSIGN_OR_RETURN(model.config_json,
                           ReadFile(PathOf(directory, kConfigFile), limits.max_config_bytes));
  absl::StatusOr<ModelConfig> config =
      ParseConfig(model.config_json, ConfigKeys(), limits.all_problems);
  DEEPPCR_RETURN_IF_ERROR(WithContext(config.status(), kConfigFile));
  model.config = *std::move(config);
  return absl::OkStatus();
}

bool IsThere(const std::string& directory, std::string_view file) {
  return !absl::IsNotFound(ReadFile(PathOf(directory, file), 0).status());
}

// A file that has no effect is a mistake of the author's.
absl::Status RefuseScheduler(const std::string& directory, const Model& model) {
  std::string_view file = kSchedulerFile;
  if (!IsThere(directory, file)) file = kStepTableFile;
  if (!IsThere(directory, file)) return absl::OkStatus();
  std::string names;
  for (const ModelFamily& family : ModelFamilies()) {
    if (family.load_scheduler == nullptr) continue;
    names += StrCat(names.empty() ? "" : ", ", family.name);
  }
  return InvalidArgument(file, ": only for model_type ", names, ", this is ",
                         model.config.model_type);
}

absl::Status ReadStepTable(const std::string& directory, const ModelLimits& limits, Model& model) {
  DEEPPCR_ASSIGN_OR_RETURN(model.scheduler_file,
                           ReadFile(PathOf(directory, kStepTableFile),
                                    std::min(kMaxTableBytes, limits.max_weights_bytes)));
  absl::StatusOr<StepTables> table = ParseStepTable(model.scheduler_file);
  DEEPPCR_RETURN_IF_ERROR(WithContext(table.status(), kStepTableFile));
  if (IsThere(directory, kSchedulerFile))
    return InvalidArgument(kSchedulerFile, ": expected no such file beside ", kStepTableFile);
  model.diffusion.form = table->form;
  model.diffusion.step_table = *std::move(table);
  return absl::OkStatus();
}

absl::Status ReadScheduler(const std::string& directory, const ModelLimits& limits,
                           const ModelFamily& family, Model& model) {
  if (family.load_scheduler == nullptr) return RefuseScheduler(directory, model);
  if (IsThere(directory, kStepTableFile)) return ReadStepTable(directory, limits, model);
  DEEPPCR_ASSIGN_OR_RETURN(model.scheduler_file,
                           ReadFile(PathOf(directory, kSchedulerFile), limits.max_config_bytes));
  absl::StatusOr<SchedulerConfig> scheduler =
      ParseSchedulerConfig(model.scheduler_file, SchedulerConfigKeys(), limits.all_problems);
  DEEPPCR_RETURN_IF_ERROR(WithContext(scheduler.status(), kSchedulerFile));
  model.scheduler = *std::move(scheduler);
  model.diffusion.form = FormOf(model.scheduler);
  model.config.learned_variance = model.diffusion.form.noise_scale != NoiseScale::kFixed;
  for (const std::string& key : model.scheduler.ignored_keys) {
    if (limits.notes == nullptr) break;
    limits.notes->push_back(StrCat(kSchedulerFile, ": ", key, " has no effect, as ",
                                   NameOf(model.scheduler.scheduler_class), " has no such key"));
  }
  return absl::OkStatus();
}

// Makes what follows from the scheduler that was read.
absl::Status LoadScheduler(const ModelLimits& limits, const ModelFamily& family, Model& model) {
  if (family.load_scheduler == nullptr) return absl::OkStatus();
  const std::string_view file =
      model.diffusion.step_table.has_value() ? kStepTableFile : kSchedulerFile;
  return WithContext(family.load_scheduler(limits, model), StrCat(file, " with ", kConfigFile));
}

bool HasProgram(const Model& model) {
  return model.diffusion.program != nullptr || model.stack.graph != nullptr;
}

// Tensors of a model that may need none: beside an .onnx file this one may be missing.
absl::StatusOr<std::string> ReadWeightsFile(const std::string& directory, const ModelLimits& limits,
                                            const Model& model, MemoryShare* memory) {
  absl::StatusOr<std::string> bytes =
      ReadFile(PathOf(directory, kWeightsFile), limits.max_weights_bytes, memory);
  if (HasProgram(model) && absl::IsNotFound(bytes.status())) return std::string();
  return bytes;
}

absl::Status ReadWeights(const std::string& directory, const ModelLimits& limits,
                         const ModelFamily& family, Model& model) {
  MemoryShare of_file = limits.Another();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadWeightsFile(directory, limits, model, &of_file));
  absl::StatusOr<Tensors> tensors = Tensors({});
  if (!bytes.empty() || !HasProgram(model)) tensors = ParseSafetensors(bytes);
  DEEPPCR_RETURN_IF_ERROR(WithContext(tensors.status(), kWeightsFile));
  DEEPPCR_RETURN_IF_ERROR(WithContext(family.load(*tensors, limits, model), kWeightsFile));
  if (family.complete != nullptr) DEEPPCR_RETURN_IF_ERROR(family.complete(limits, model));
  if (bytes.empty()) return absl::OkStatus();
  // Both files decide, where there are two.
  DEEPPCR_ASSIGN_OR_RETURN(std::string hash, Sha256Hex(bytes));
  if (!model.weights_sha256.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(hash, Sha256Hex(StrCat(model.weights_sha256, hash)));
  }
  model.weights_sha256 = std::move(hash);
  return absl::OkStatus();
}

absl::Status UseCalibration(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  if (model.config.input_dim == 0) {
    return InvalidArgument("expected no such file for a model without inputs (conditioning_dim 0)");
  }
  const TensorEntry* inputs = tensors.Find(kCalibrationTensor);
  if (inputs == nullptr || tensors.entries().size() != 1) {
    return InvalidArgument("expected one tensor \"", kCalibrationTensor, "\", got ",
                           tensors.entries().size(), " tensors");
  }
  const std::vector<int64_t>& shape = inputs->shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[0] > kMaxCalibrationSamples ||
      shape[1] != model.config.input_dim) {
    return InvalidArgument("tensor \"", kCalibrationTensor, "\": expected shape [1 .. ",
                           kMaxCalibrationSamples, ", ", model.config.input_dim, "], got ",
                           ShapeString(shape));
  }
  DEEPPCR_RETURN_IF_ERROR(limits.Take(NumElements(*inputs) * int64_t{sizeof(float)}));
  DEEPPCR_ASSIGN_OR_RETURN(model.calibration_inputs, ToFloat(*inputs));
  model.num_calibration = shape[0];
  return absl::OkStatus();
}

absl::Status ReadCalibration(const std::string& directory, const ModelLimits& limits,
                             Model& model) {
  MemoryShare of_file = limits.Another();
  const absl::StatusOr<std::string> bytes =
      ReadFile(PathOf(directory, kCalibrationFile), limits.max_weights_bytes, &of_file);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(bytes.status());
  const absl::StatusOr<Tensors> tensors = ParseSafetensors(*bytes);
  DEEPPCR_RETURN_IF_ERROR(WithContext(tensors.status(), kCalibrationFile));
  return WithContext(UseCalibration(*tensors, limits, model), kCalibrationFile);
}

}  // namespace

absl::StatusOr<OwnedSystem> SystemOf(const Model& model, const SystemKey& key,
                                     const ModelLimits& limits) {
  const ModelFamily* family = FindModelFamily(model.config.model_type);
  if (family != nullptr && family->system_of != nullptr)
    return family->system_of(model, key, limits);
  return absl::FailedPreconditionError(
      StrCat("the number of steps of a model of type ", model.config.model_type, " is fixed"));
}

int64_t MemoryBytes(const Model& model) {
  size_t bytes = 0;
  const auto add = [&](const auto&... values) {
    ((bytes += values.size() * sizeof(values[0])), ...);
  };
  add(model.weights, model.biases, model.encode_weight, model.encode_bias, model.decode_weight,
      model.decode_bias, model.calibration_inputs);
  const DiffusionStorage& d = model.diffusion;
  for (const LayerStorage* layer :
       {&d.input, &d.time_first, &d.time_second, &d.class_embedding, &d.condition, &d.first,
        &d.second, &d.norm, &d.modulation, &d.output})
    add(layer->weight, layer->bias);
  for (const LayerStorage& layer : d.decoder_layers) add(layer.weight, layer.bias);
  for (const StepTables& tables : d.tables) add(tables.steps, tables.time_embedding);
  if (d.step_table.has_value()) add(d.step_table->steps);
  for (const auto* program : {&d.program, &model.stack.program}) {
    if (*program != nullptr) bytes += static_cast<size_t>(program::MemoryBytes(**program));
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<Model> ReadModel(const std::string& directory, const ModelLimits& limits) {
  Model model;
  DEEPPCR_RETURN_IF_ERROR(ReadConfig(directory, limits, model));
  const ModelFamily* family = FindModelFamily(model.config.model_type);
  if (family == nullptr) {
    return Internal("no family \"", model.config.model_type, "\" for an accepted model_type");
  }
  // The program is compiled for the scheduler, whose steps are made with the program.
  DEEPPCR_RETURN_IF_ERROR(ReadScheduler(directory, limits, *family, model));
  if (family->load_program != nullptr)
    DEEPPCR_RETURN_IF_ERROR(family->load_program(directory, limits, model));
  DEEPPCR_RETURN_IF_ERROR(LoadScheduler(limits, *family, model));
  DEEPPCR_RETURN_IF_ERROR(ReadWeights(directory, limits, *family, model));
  DEEPPCR_RETURN_IF_ERROR(ReadCalibration(directory, limits, model));
  return model;
}

namespace {

// Reads one file after another, and goes on where the next does not need what is wrong.
class FilesCheck {
 public:
  FilesCheck(const std::string& directory, const ModelLimits& limits)
      : directory_(directory), limits_(limits) {
    limits_.listing = &report_.listing;
    limits_.notes = &report_.notes;
  }

  ModelFilesReport Run() {
    const bool known = Note(kConfigFile, [&] { return ReadConfig(directory_, limits_, model_); });
    if (!known) {
      NoteSchedulerAlone();
      return std::move(report_);
    }
    const ModelFamily* family = FindModelFamily(model_.config.model_type);
    const bool scheduled =
        Note(kSchedulerFile, [&] { return ReadScheduler(directory_, limits_, *family, model_); });
    if (family->load_program != nullptr &&
        !Note("", [&] { return family->load_program(directory_, limits_, model_); }))
      return std::move(report_);
    // The names of tensors do not depend on the scheduler.
    if (!scheduled || !Note("", [&] { return LoadScheduler(limits_, *family, model_); }))
      model_.diffusion.tables.resize(model_.config.num_inference_steps.size());
    Note(kWeightsFile, [&] { return ReadWeights(directory_, limits_, *family, model_); });
    Note("", [&] { return ReadCalibration(directory_, limits_, model_); });
    report_.model = std::move(model_);
    return std::move(report_);
  }

 private:
  // What is wrong with the scheduler's file whatever config.json says.
  void NoteSchedulerAlone() {
    if (!IsThere(directory_, kSchedulerFile)) return;
    Note(kSchedulerFile, [&]() -> absl::Status {
      DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadFile(PathOf(directory_, kSchedulerFile),
                                                                limits_.max_config_bytes));
      return WithContext(
          ParseSchedulerConfig(text, SchedulerConfigKeys(), limits_.all_problems).status(),
          kSchedulerFile);
    });
  }

  // Notes what a step found, all of it where the step kept all. True if there was nothing.
  template <class Step>
  bool Note(std::string_view file, const Step& step) {
    Problems problems(true);
    limits_.all_problems = &problems;
    const absl::Status first = step();
    // What stopped the step may be none of those that it kept.
    bool kept = false;
    for (const absl::Status& status : problems.all()) {
      report_.problems.push_back(StrCat(file, ": ", status.message()));
      kept = kept || absl::StrContains(first.message(), status.message());
    }
    if (!first.ok() && !kept) report_.problems.emplace_back(first.message());
    return first.ok() && problems.empty();
  }

  const std::string& directory_;
  ModelLimits limits_;
  Model model_;
  ModelFilesReport report_;
};

}  // namespace

ModelFilesReport CheckModelFiles(const std::string& directory, const ModelLimits& limits) {
  return FilesCheck(directory, limits).Run();
}

}  // namespace deeppcr
