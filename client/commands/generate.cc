// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_generate.h"
#include "client/batching.h"
#include "client/class_labels.h"
#include "client/commands/command.h"
#include "client/commands/control_flags.h"
#include "client/commands/generation_flags.h"
#include "client/generation_summary.h"
#include "client/progress_bar.h"
#include "client/sample_picture.h"
#include "client/solver_options.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

// The most samples for --json: each takes a kilobyte and more while the JSON is put together.
constexpr int64_t kMaxJsonSamples = 100'000;

struct GenerateFlags {
  ModelFlags model;
  GenerationFlags generation;
  ControlFlags controls;
  SolverFlags solver;
  int64_t num_samples = 0;
  uint64_t seed = 1;
  uint64_t first_sample = 0;
  std::string initial_noise;
  std::string step_noise;
  std::string previous;
  std::string format;
  std::string out;
  std::string png;
  int64_t scale = 4;
  std::string latents_out;
  std::string labels_out;
  std::string trajectory;
  std::string keep;
  std::string json;
  int64_t batch_size = 0;
  bool quiet = false;
};

void AddFile(CLI::App* app, const char* name, const char* help, std::string* path) {
  app->add_option(name, *path, help)->type_name("FILE");
}

void AddSampleFlags(CLI::App* app, GenerateFlags* flags) {
  app->add_option("--num", flags->num_samples,
                  "samples, at most 10 million (default: as many as the noise or conditioning has "
                  "rows, else 1)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}));
  app->add_option("--seed", flags->seed, "seed of the noise (default 1)")
      ->type_name("S")
      ->check(CheckUnsigned);
  app->add_option("--first_sample", flags->first_sample,
                  "number of the first sample: noise is drawn from the seed and this (default 0)")
      ->type_name("I")
      ->check(CheckUnsigned);
  flags->generation.Add(app);
  flags->controls.Add(app, true);
  AddFile(app, "--initial_noise", "standard normal noise [n, sample_dim] in place of what is drawn",
          &flags->initial_noise);
  AddFile(app, "--step_noise",
          "standard normal noise of every step [n, steps, sample_dim] in place of what is drawn",
          &flags->step_noise);
  AddFile(app, "--previous",
          "states to start from, as --trajectory wrote them (implies --initial_guess previous)",
          &flags->previous);
}

void AddOutputFlags(CLI::App* app, GenerateFlags* flags) {
  AddFile(app, "--out", "write the samples [n, output_dim]; - is standard output", &flags->out);
  AddFormatFlag(app, &flags->format);
  AddFile(app, "--png", "draw the samples: a grid of images, or points for samples of two numbers",
          &flags->png);
  app->add_option("--scale", flags->scale,
                  "pixels drawn for a pixel of a sample (default 4); points: a picture 128 N wide")
      ->type_name("N")
      ->check(CLI::Range(1, 64));
  AddFile(app, "--latents_out",
          "write the final states [n, state_dim] (of a model without decoder: the samples)",
          &flags->latents_out);
  AddFile(app, "--labels_out", "write the class that each sample was asked for [n]",
          &flags->labels_out);
  AddFile(app, "--trajectory", "write the states [n, steps + 1, state_dim]", &flags->trajectory);
  AddKeepFlag(app, &flags->keep);
  AddFile(app, "--json",
          "also write the figures as JSON, of at most 100,000 samples; - is standard output",
          &flags->json);
}

void AddFlags(CLI::App* app, GenerateFlags* flags) {
  flags->model.Add(app)->required();
  AddSampleFlags(app, flags);
  AddOutputFlags(app, flags);
  AddBatchSizeFlag(app, &flags->batch_size);
  app->add_flag("--quiet", flags->quiet, "no table and no progress; warnings stay");
  flags->solver.Add(app, true);
  app->footer(
      "A sample's noise comes from the seed and its number alone: 8 samples from --first_sample 8 "
      "on are\n"
      "the second half of 16.\n"
      "Examples:\n"
      "  deeppcr generate digits-ddpm --num 64 --seed 7 --png digits.png --out digits.npy\n"
      "  deeppcr generate digits-class --num 100 --class all --solver newton --png digits.png\n"
      "  deeppcr generate swissroll-ddpm --num 2000 --steps 100 --png roll.png --json -");
}

std::vector<std::string> OutputPaths(const GenerateFlags& flags) {
  std::vector<std::string> paths;
  for (const std::string* path : {&flags.out, &flags.png, &flags.latents_out, &flags.labels_out,
                                  &flags.trajectory, &flags.keep, &flags.json}) {
    if (!path->empty()) paths.push_back(*path);
  }
  return paths;
}

// Checks the names of files before anything is computed.
absl::Status CheckPaths(const GenerateFlags& flags) {
  absl::Status status;
  for (const std::string* path : {&flags.generation.conditioning, &flags.initial_noise, &flags.out,
                                  &flags.latents_out, &flags.labels_out}) {
    if (!path->empty()) status.Update(ChooseArrayFormat(*path, flags.format).status());
  }
  for (const std::string* path : {&flags.step_noise, &flags.previous, &flags.trajectory}) {
    if (!path->empty()) status.Update(CheckHolds(*path, flags.format, 3));
  }
  std::set<std::filesystem::path> seen;
  std::error_code ignored;  // a path that cannot be resolved cannot be written either
  for (const std::string& path : OutputPaths(flags)) {
    if (!seen.insert(std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored))
             .second) {
      status.Update(InvalidArgument(path, ": expected one output there, got two"));
    }
    status.Update(CheckWritable(path));
  }
  if (!flags.labels_out.empty() && flags.generation.classes.empty()) {
    status.Update(InvalidArgument("labels_out: expected --class with it"));
  }
  return status;
}

// A generation and the arrays that it points to.
struct Inputs {
  Array conditioning;
  Array initial_noise;
  Array step_noise;
  Array previous;
  ControlFlags controls;
  Generation generation;
};

absl::Status ReadIfNamed(const std::string& path, const std::string& format,
                         const std::vector<int64_t>& row_shape, Array* array) {
  if (path.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(*array, ReadRows(path, format, row_shape));
  return absl::OkStatus();
}

absl::Status ReadFiles(const GenerateFlags& flags, const v1::GetModelResponse& model, int64_t steps,
                       Inputs* inputs) {
  const int64_t width = model.summary().state_dim(), sample = SampleDim(model);
  DEEPPCR_ASSIGN_OR_RETURN(inputs->conditioning,
                           flags.generation.LoadConditioning(model, flags.format));
  inputs->controls = flags.controls;
  DEEPPCR_RETURN_IF_ERROR(inputs->controls.ReadFiles(model, flags.format));
  absl::Status status =
      ReadIfNamed(flags.initial_noise, flags.format, {sample}, &inputs->initial_noise);
  status.Update(ReadIfNamed(flags.step_noise, flags.format, {steps, sample}, &inputs->step_noise));
  status.Update(ReadIfNamed(flags.previous, flags.format, {steps + 1, width}, &inputs->previous));
  return status;
}

int64_t DefaultCount(const Inputs& inputs) {
  for (const Array* array :
       {&inputs.initial_noise, &inputs.step_noise, &inputs.previous, &inputs.conditioning}) {
    if (!array->shape.empty()) return array->rows();
  }
  return std::max<int64_t>(1, inputs.controls.rows());
}

const Array* IfGiven(const Array& array) { return array.shape.empty() ? nullptr : &array; }

absl::Status Prepare(const GenerateFlags& flags, const v1::GetModelResponse& model,
                     Inputs* inputs) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t steps,
                           ResolveInferenceSteps(model, flags.generation.steps));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t made, flags.controls.StepsMade(steps));
  DEEPPCR_RETURN_IF_ERROR(ReadFiles(flags, model, made, inputs));
  Generation& generation = inputs->generation;
  generation.num_samples = flags.num_samples > 0 ? flags.num_samples : DefaultCount(*inputs);
  if (!flags.json.empty() && generation.num_samples > kMaxJsonSamples) {
    return InvalidArgument("json: expected at most ", kMaxJsonSamples, " samples with it, got ",
                           generation.num_samples);
  }
  generation.seed = flags.seed;
  generation.first_sample = flags.first_sample;
  generation.num_inference_steps = steps;
  DEEPPCR_ASSIGN_OR_RETURN(
      generation.class_labels,
      flags.generation.Labels(model, flags.first_sample, generation.num_samples));
  if (IfGiven(inputs->conditioning) != nullptr) {
    DEEPPCR_RETURN_IF_ERROR(
        SpreadRows(generation.num_samples, "conditioning", &inputs->conditioning));
  }
  generation.conditioning = IfGiven(inputs->conditioning);
  generation.initial_noise = IfGiven(inputs->initial_noise);
  generation.step_noise = IfGiven(inputs->step_noise);
  generation.previous = IfGiven(inputs->previous);
  return inputs->controls.Take(&generation);
}

nlohmann::ordered_json FiguresJson(const v1::GetModelResponse& model, const Generation& generation,
                                   const BatchedGenerateResult& result) {
  nlohmann::ordered_json requests = nlohmann::ordered_json::array();
  for (const v1::SolveReport& report : result.reports) requests.push_back(MessageToJson(report));
  return {{"model", model.summary().name()},
          {"version", model.summary().version()},
          {"num_samples", generation.num_samples},
          {"seed", generation.seed},
          {"first_sample", generation.first_sample},
          {"num_inference_steps", generation.num_inference_steps},
          {"class_labels", result.class_labels},
          {"solvers", SummaryJson(SummarizeBySolver(result.reports))},
          {"requests", requests}};
}

absl::Status WriteResults(const GenerateFlags& flags, const v1::GetModelResponse& model,
                          const Generation& generation, const std::optional<PictureLayout>& layout,
                          const BatchedGenerateResult& result) {
  absl::Status status;
  if (!flags.out.empty()) status.Update(WriteArray(result.samples, flags.out, flags.format));
  if (!flags.latents_out.empty()) {
    const Array& latents = result.latents.shape.empty() ? result.samples : result.latents;
    status.Update(WriteArray(latents, flags.latents_out, flags.format));
  }
  if (!flags.labels_out.empty()) {
    const ArrayFormat format = *ChooseArrayFormat(flags.labels_out, flags.format);
    status.Update(WriteFile(flags.labels_out, FormatClassLabels(result.class_labels, format)));
  }
  if (!flags.trajectory.empty()) {
    status.Update(WriteArray(result.trajectory, flags.trajectory, flags.format));
  }
  if (!flags.keep.empty()) status.Update(WriteFile(flags.keep, FormatKept(result.kept)));
  if (layout) {
    const absl::StatusOr<std::string> png = EncodePng(DrawSamples(*layout, result.samples));
    status.Update(png.ok() ? WriteFile(flags.png, *png) : png.status());
  }
  if (!flags.json.empty()) {
    status.Update(WriteFile(flags.json, DumpJson(FiguresJson(model, generation, result))));
  }
  return status;
}

absl::Status PrintTable(const GenerateFlags& flags, const BatchedGenerateResult& result) {
  if (flags.quiet) return absl::OkStatus();
  const v1::SolveReport& first = result.reports.front();
  const std::string text = StrCat(
      SummaryTable(SummarizeBySolver(result.reports)), "\n", result.samples.rows(), " samples in ",
      result.reports.size(), " requests on ", Printable(first.device()), ", plan ",
      Printable(first.plan_id()), "; stages, passes and error are the largest of a sample, ",
      "iterations and seconds medians\n");
  const std::vector<std::string> paths = OutputPaths(flags);
  const bool taken = std::find(paths.begin(), paths.end(), "-") != paths.end();
  if (!taken) return WriteFile("-", text);
  absl::FPrintF(stderr, "%s", text);
  return absl::OkStatus();
}

absl::StatusOr<BatchedGenerateResult> Generate(const GenerateFlags& flags, const Client& client,
                                               const v1::GetModelResponse& model,
                                               const Generation& generation) {
  DEEPPCR_ASSIGN_OR_RETURN(const v1::SolverOptions solver, flags.solver.Build());
  BatchedGenerateOptions options{.solver = solver, .batch_size = flags.batch_size};
  options.solver.set_return_trajectory(!flags.trajectory.empty());
  options.solver.set_keep_trajectory(!flags.keep.empty());
  if (generation.previous != nullptr) DEEPPCR_RETURN_IF_ERROR(StartFromPrevious(&options.solver));
  if (flags.quiet || isatty(STDERR_FILENO) == 0) {
    return BatchedGenerate(client, model, generation, options);
  }
  ProgressBar bar;
  options.on_progress = [&](const GenerationProgress& progress) { bar.Show(progress); };
  return BatchedGenerate(client, model, generation, options);
}

absl::Status Run(const GenerateFlags& flags, const GlobalOptions& global) {
  DEEPPCR_RETURN_IF_ERROR(CheckPaths(flags));
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Minutes(10)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model, ReadyModel(*client, flags.model));
  Inputs inputs;
  DEEPPCR_RETURN_IF_ERROR(Prepare(flags, model, &inputs));
  std::optional<PictureLayout> layout;
  if (!flags.png.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(layout,
                             LayOutPicture(model, inputs.generation.num_samples, flags.scale));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const BatchedGenerateResult result,
                           Generate(flags, *client, model, inputs.generation));
  SolveTotals totals;
  for (const v1::SolveReport& report : result.reports) totals.Add(report);
  absl::FPrintF(stderr, "%s", WarningsText(totals));
  const absl::Status status = WriteResults(flags, model, inputs.generation, layout, result);
  return status.ok() ? PrintTable(flags, result) : status;
}

}  // namespace

RunCommand AddGenerate(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<GenerateFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
