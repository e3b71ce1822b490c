// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/batched_gradient.h"
#include "client/batching.h"
#include "client/class_labels.h"
#include "client/commands/command.h"
#include "client/commands/control_flags.h"
#include "client/commands/generation_flags.h"
#include "client/progress.h"
#include "client/solver_options.h"
#include "client/table.h"
#include "kernels/base/file.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "proto/message_json.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxKeptBytes = int64_t{64} << 20;  // of the file of --kept

struct GradFlags {
  ModelFlags model;
  InputFlags inputs;
  GenerationFlags generation;
  ControlFlags controls;
  SolverFlags solver;
  uint64_t first_sample = 0;
  std::string initial_noise, step_noise, previous, states, kept;
  std::string cotangent, final_cotangent, loss, target, target_class;
  std::string way;
  int32_t way_interval = 0;
  std::string out, initial_out, noise_out, parameters, outputs, trajectory, report;
  int64_t batch_size = 0;
  bool estimate_error = false;
  bool quiet = false;
};

void AddPathFlag(CLI::App* app, const char* name, const char* help, std::string* path) {
  app->add_option(name, *path, help)->type_name("FILE");
}

void AddSources(CLI::App* app, GradFlags* flags) {
  flags->inputs.AddPath(app, false);
  flags->inputs.AddDrawing(app);
  app->add_option("--samples,--num", flags->inputs.samples,
                  "samples drawn without --in (default: as many as noise, conditioning or states "
                  "have rows, else 1)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}));
  app->add_option("--first_sample", flags->first_sample,
                  "number of the first sample of a diffusion model (default 0)")
      ->type_name("I")
      ->check(CheckUnsigned);
  flags->generation.Add(app);
  flags->controls.Add(app, false);
  AddPathFlag(app, "--initial_noise", "noise [n, sample_dim] in place of what is drawn",
              &flags->initial_noise);
  AddPathFlag(app, "--step_noise", "noise [n, steps, sample_dim] in place of what is drawn",
              &flags->step_noise);
  AddPathFlag(app, "--previous",
              "states to start the solve from, as --trajectory wrote them (implies "
              "--initial_guess previous)",
              &flags->previous);
  AddPathFlag(app, "--states",
              "states to go back along [n, L + 1, D], as --trajectory wrote them of the same "
              "samples; nothing is solved then",
              &flags->states);
  AddPathFlag(app, "--kept",
              "go back along the states that --keep FILE of forward or generate has left on the "
              "server; samples whose states are gone are solved again",
              &flags->kept);
}

void AddSeeds(CLI::App* app, GradFlags* flags) {
  AddPathFlag(app, "--cotangent",
              "cotangents of the outputs [n, output_dim], or m of each sample [n, m, output_dim]",
              &flags->cotangent);
  AddPathFlag(app, "--final_cotangent", "cotangents of the final states [n, D] or [n, m, D]",
              &flags->final_cotangent);
  app->add_option("--loss", flags->loss,
                  "mse: mean of the squared differences from --target; cross_entropy: of softmax "
                  "and --target_class")
      ->type_name("NAME")
      ->check(CLI::IsMember({"mse", "cross_entropy"}));
  AddPathFlag(app, "--target", "targets of mse [n, output_dim], or one for all", &flags->target);
  app->add_option("--target_class", flags->target_class,
                  "output that cross_entropy asks for; several, separated by commas, take turns")
      ->type_name("C[,C...]")
      ->check([](const std::string& text) {
        const std::string message(ParseClassChoice(text).status().message());
        // The parser puts the flag's name in front.
        return message.substr(std::min(message.size(), message.find("expected")));
      });
  app->add_option("--way", flags->way,
                  "sequential (the default), parallel, or auto: the faster one by the plan")
      ->type_name("NAME")
      ->check(CLI::IsMember({"sequential", "parallel", "auto"}));
  app->add_option("--way_interval", flags->way_interval,
                  "steps per interval of the parallel way (default: the root of their number)")
      ->type_name("C")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--estimate_error", flags->estimate_error,
                "estimate what the tolerance of the solve makes of the gradients; takes eight "
                "more ways back");
}

void AddFlags(CLI::App* app, GradFlags* flags) {
  flags->model.Add(app)->required();
  AddSources(app, flags);
  AddSeeds(app, flags);
  AddPathFlag(app, "--out",
              "gradients by the inputs, or the conditioning [n, input_dim] or [n, m, input_dim]; "
              "- is standard output",
              &flags->out);
  AddPathFlag(app, "--initial_out",
              "gradients by the initial state, of a diffusion model its initial noise [n, D] or "
              "[n, m, D]",
              &flags->initial_out);
  AddPathFlag(app, "--noise_out",
              "gradients by the noise of the steps [n, L, D] or [n, m, L, D]; diffusion models",
              &flags->noise_out);
  AddPathFlag(app, "--parameters",
              "gradients by the parameters of the model, summed over all samples, as a "
              ".safetensors file with the names of model.safetensors",
              &flags->parameters);
  AddPathFlag(app, "--outputs", "write the outputs [n, output_dim]", &flags->outputs);
  AddPathFlag(app, "--trajectory", "write the states [n, L + 1, D]", &flags->trajectory);
  app->add_option("--report", flags->report,
                  "write losses, solve reports and those of the way back as JSON; - is standard "
                  "output")
      ->type_name("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  AddBatchSizeFlag(app, &flags->batch_size);
  app->add_flag("--quiet", flags->quiet, "no summary on standard error; warnings stay");
  flags->solver.Add(app, true);
  app->footer(
      "Options under Solver are those of the solve before the way back. The server has to be "
      "started with\n--gradients.\n"
      "Examples:\n"
      "  deeppcr grad digits-resnet --in digits.npy --loss cross_entropy --target_class 3 "
      "--out g.npy\n"
      "  deeppcr grad digits-resnet --in digits.npy --cotangent v.npy --way parallel --out g.npy\n"
      "  deeppcr grad digits-resnet --in digits.npy --loss cross_entropy --target_class 3 \\\n"
      "      --parameters g.safetensors\n"
      "  deeppcr grad digits-ddpm --num 8 --seed 7 --steps 100 --loss mse --target digit.npy \\\n"
      "      --initial_out noise.npy --report -");
}

// The named outputs.
std::vector<std::string> OutPaths(const GradFlags& flags) {
  std::vector<std::string> paths;
  for (const std::string* path : {&flags.out, &flags.initial_out, &flags.noise_out, &flags.outputs,
                                  &flags.trajectory, &flags.parameters, &flags.report}) {
    if (!path->empty()) paths.push_back(*path);
  }
  return paths;
}

absl::Status CheckParameters(const GradFlags& flags) {
  if (flags.parameters.empty()) return absl::OkStatus();
  if (flags.estimate_error)
    return InvalidArgument("parameters: expected no --estimate_error beside it");
  if (std::filesystem::path(flags.parameters).extension() == ".safetensors")
    return absl::OkStatus();
  return InvalidArgument("parameters: expected a name that ends in .safetensors, got ",
                         flags.parameters);
}

// Checks the names of files, and flags against one another, before anything is computed.
absl::Status CheckFlags(const GradFlags& flags) {
  if (!flags.loss.empty() && !(flags.cotangent.empty() && flags.final_cotangent.empty()))
    return InvalidArgument("loss: expected no --cotangent and no --final_cotangent beside it");
  if (flags.loss.empty() && flags.cotangent.empty() && flags.final_cotangent.empty())
    return InvalidArgument(
        "cotangent: expected --cotangent FILE, --final_cotangent FILE or --loss NAME, got none");
  if ((flags.loss == "mse") != !flags.target.empty())
    return InvalidArgument("target: expected with --loss mse, and only there");
  if ((flags.loss == "cross_entropy") != !flags.target_class.empty())
    return InvalidArgument("target_class: expected with --loss cross_entropy, and only there");
  if (flags.way_interval > 0 && (flags.way.empty() || flags.way == "sequential"))
    return InvalidArgument("way_interval: expected beside --way parallel or --way auto only");
  if (!flags.states.empty() && !flags.loss.empty())
    return InvalidArgument("states: expected no --loss beside it, as there are no outputs");
  if (!flags.states.empty() && flags.estimate_error)
    return InvalidArgument(
        "states: expected no --estimate_error beside it: their error is not known");
  if (!flags.states.empty() && !(flags.outputs.empty() && flags.trajectory.empty()))
    return InvalidArgument("states: expected no --outputs and no --trajectory beside it");
  if (!flags.kept.empty() &&
      (!flags.states.empty() || !flags.previous.empty() || !flags.loss.empty() ||
       flags.estimate_error || !flags.outputs.empty() || !flags.trajectory.empty() ||
       flags.batch_size > 0))
    return InvalidArgument(
        "kept: expected no --states, --previous, --loss, --estimate_error, --outputs, --trajectory "
        "and --batch_size beside it");
  absl::Status status = CheckParameters(flags);
  for (const std::string* path :
       {&flags.inputs.path, &flags.initial_noise, &flags.cotangent, &flags.final_cotangent,
        &flags.target, &flags.out, &flags.initial_out, &flags.outputs}) {
    if (!path->empty()) status.Update(ChooseArrayFormat(*path, flags.inputs.format).status());
  }
  for (const std::string* path :
       {&flags.step_noise, &flags.previous, &flags.states, &flags.noise_out, &flags.trajectory}) {
    if (!path->empty()) status.Update(CheckHolds(*path, flags.inputs.format, 3));
  }
  std::set<std::filesystem::path> seen;
  std::error_code ignored;  // a path that cannot be resolved cannot be written either
  for (const std::string& path : OutPaths(flags)) {
    const auto canonical =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored);
    if (!seen.insert(canonical).second)
      status.Update(InvalidArgument(path, ": expected one output there, got two"));
    status.Update(CheckWritable(path));
  }
  return status;
}

// A task and the arrays that it points to.
struct Prepared {
  Array inputs, conditioning, initial_noise, step_noise, previous, states;
  Array cotangents, final_cotangents, targets;
  ControlFlags controls;
  Generation generation;
  GradientTask task;
};

const Array* Given(const Array& array) { return array.shape.empty() ? nullptr : &array; }

absl::Status ReadOptional(const std::string& path, const std::string& format,
                          const std::vector<int64_t>& row_shape, Array* array) {
  if (path.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(*array, ReadRows(path, format, row_shape));
  return absl::OkStatus();
}

// Reads [n, dim] or [n, m, dim]; a single row may lack the first axis.
absl::Status ReadCotangents(const std::string& path, const std::string& format, int64_t dim,
                            Array* array) {
  if (path.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(*array, ReadArray(path, format));
  std::vector<int64_t>& shape = array->shape;
  if (shape == std::vector<int64_t>{dim}) shape.insert(shape.begin(), 1);
  const bool fits = (shape.size() == 2 || shape.size() == 3) && shape.back() == dim;
  if (fits && shape.front() >= 1) return absl::OkStatus();
  return InvalidArgument(path, ": expected shape [n, ", dim, "] or [n, m, ", dim,
                         "] for this model, got ", ShapeToString(shape));
}

absl::Status ReadArrays(const GradFlags& flags, const v1::GetModelResponse& model, int64_t steps,
                        Prepared* to) {
  const std::string& format = flags.inputs.format;
  const int64_t dim = model.summary().state_dim(), sample = SampleDim(model);
  absl::Status status = ReadOptional(flags.previous, format, {steps + 1, dim}, &to->previous);
  status.Update(ReadOptional(flags.states, format, {steps + 1, dim}, &to->states));
  status.Update(ReadOptional(flags.initial_noise, format, {sample}, &to->initial_noise));
  status.Update(ReadOptional(flags.step_noise, format, {steps, sample}, &to->step_noise));
  status.Update(ReadOptional(flags.target, format, {model.output_dim()}, &to->targets));
  status.Update(ReadCotangents(flags.cotangent, format, model.output_dim(), &to->cotangents));
  status.Update(ReadCotangents(flags.final_cotangent, format, dim, &to->final_cotangents));
  return status;
}

// Checks that the flags are for a model of this kind.
absl::Status CheckKind(const GradFlags& flags, const v1::GetModelResponse& model, bool generates) {
  if (generates) {
    if (!flags.inputs.path.empty())
      return InvalidArgument(
          "in: a diffusion model takes no inputs: give --num, --seed, --steps and --class instead");
    if (flags.out.empty() || model.input_dim() > 0) return absl::OkStatus();
    return InvalidArgument(
        "out: this model takes no inputs: --initial_out has its gradients by the initial noise");
  }
  DEEPPCR_RETURN_IF_ERROR(flags.generation.CheckUnset());
  DEEPPCR_RETURN_IF_ERROR(flags.controls.CheckUnset());
  if (!flags.inputs.path.empty() && flags.inputs.samples > 0)
    return InvalidArgument("num: expected none beside --in, whose rows are the samples");
  if (flags.initial_noise.empty() && flags.step_noise.empty() && flags.noise_out.empty())
    return absl::OkStatus();
  return InvalidArgument(
      "model: --initial_noise, --step_noise and --noise_out are for diffusion models, and this is "
      "none");
}

absl::Status PrepareInputs(const GradFlags& flags, const v1::GetModelResponse& model,
                           Prepared* to) {
  DEEPPCR_ASSIGN_OR_RETURN(to->inputs, flags.inputs.Load(model.input_dim()));
  to->task.inputs = &to->inputs;
  to->task.previous = Given(to->previous);
  return absl::OkStatus();
}

absl::Status PrepareGeneration(const GradFlags& flags, const v1::GetModelResponse& model,
                               int64_t steps, Prepared* to) {
  DEEPPCR_ASSIGN_OR_RETURN(to->conditioning,
                           flags.generation.LoadConditioning(model, flags.inputs.format));
  int64_t n = flags.inputs.samples;
  for (const Array* array :
       {&to->initial_noise, &to->step_noise, &to->states, &to->previous, &to->conditioning}) {
    if (n == 0 && !array->shape.empty()) n = array->rows();
  }
  to->controls = flags.controls;
  DEEPPCR_RETURN_IF_ERROR(to->controls.ReadFiles(model, flags.inputs.format));
  if (n == 0) n = to->controls.rows();
  Generation& generation = to->generation;
  generation = {.num_samples = std::max<int64_t>(n, 1),
                .seed = flags.inputs.seed,
                .first_sample = flags.first_sample,
                .num_inference_steps = steps};
  DEEPPCR_ASSIGN_OR_RETURN(
      generation.class_labels,
      flags.generation.Labels(model, flags.first_sample, generation.num_samples));
  if (Given(to->conditioning) != nullptr)
    DEEPPCR_RETURN_IF_ERROR(SpreadRows(generation.num_samples, "conditioning", &to->conditioning));
  generation.conditioning = Given(to->conditioning);
  generation.initial_noise = Given(to->initial_noise);
  generation.step_noise = Given(to->step_noise);
  generation.previous = Given(to->previous);
  DEEPPCR_RETURN_IF_ERROR(to->controls.Take(&generation));
  to->task.generation = &generation;
  return absl::OkStatus();
}

// Fills in what goes back. A row for all samples is repeated.
absl::Status PrepareSeeds(const GradFlags& flags, const v1::GetModelResponse& model, Prepared* to) {
  GradientTask& task = to->task;
  const int64_t n = task.num_samples();
  const std::pair<const char*, Array*> arrays[] = {{"cotangent", &to->cotangents},
                                                   {"final_cotangent", &to->final_cotangents},
                                                   {"target", &to->targets}};
  for (const auto& [name, array] : arrays) {
    if (array->shape.size() == 2) DEEPPCR_RETURN_IF_ERROR(SpreadRows(n, name, array));
  }
  task.trajectory = Given(to->states);
  task.cotangents = Given(to->cotangents);
  task.final_state_cotangents = Given(to->final_cotangents);
  task.targets = Given(to->targets);
  if (flags.loss == "mse") task.loss = v1::LOSS_MSE;
  if (flags.loss == "cross_entropy") {
    task.loss = v1::LOSS_CROSS_ENTROPY;
    DEEPPCR_ASSIGN_OR_RETURN(const ClassChoice choice, ParseClassChoice(flags.target_class));
    absl::StatusOr<std::vector<int32_t>> classes = CycleClasses(choice, model.output_dim(), 0, n);
    if (!classes.ok()) return WithContext(classes.status(), "target_class");
    task.target_classes = *std::move(classes);
  }
  task.way = flags.way == "parallel" ? v1::BACKWARD_WAY_PARALLEL
             : flags.way == "auto"   ? v1::BACKWARD_WAY_AUTO
                                     : v1::BACKWARD_WAY_SEQUENTIAL;
  task.shooting_interval = flags.way_interval;
  task.estimate_error = flags.estimate_error;
  task.parameters = !flags.parameters.empty();
  if (!flags.kept.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.kept, kMaxKeptBytes));
    absl::StatusOr<std::vector<KeptStates>> kept = ParseKept(text);
    if (!kept.ok()) return WithContext(kept.status(), flags.kept);
    task.kept = *std::move(kept);
  }
  if (!flags.out.empty()) task.gradients.push_back(v1::GRADIENT_BY_INPUTS);
  if (!flags.initial_out.empty()) task.gradients.push_back(v1::GRADIENT_BY_INITIAL_STATE);
  if (!flags.noise_out.empty()) task.gradients.push_back(v1::GRADIENT_BY_STEP_NOISE);
  return absl::OkStatus();
}

absl::Status Prepare(const GradFlags& flags, const v1::GetModelResponse& model, Prepared* to) {
  const bool generates = !model.num_inference_steps().empty();
  DEEPPCR_RETURN_IF_ERROR(CheckKind(flags, model, generates));
  int64_t steps = model.summary().num_layers();
  if (generates) {
    DEEPPCR_ASSIGN_OR_RETURN(steps, ResolveInferenceSteps(model, flags.generation.steps));
  }
  int64_t made = steps;
  if (generates) {
    DEEPPCR_ASSIGN_OR_RETURN(made, flags.controls.StepsMade(steps));
  }
  DEEPPCR_RETURN_IF_ERROR(ReadArrays(flags, model, made, to));
  DEEPPCR_RETURN_IF_ERROR(generates ? PrepareGeneration(flags, model, steps, to)
                                    : PrepareInputs(flags, model, to));
  return PrepareSeeds(flags, model, to);
}

std::string ReportText(const BatchedGradientResult& result) {
  nlohmann::ordered_json requests = nlohmann::ordered_json::array();
  for (size_t i = 0; i < result.reports.size(); ++i)
    requests.push_back({{"report", MessageToJson(result.reports[i])},
                        {"backward", MessageToJson(result.backward_reports[i])}});
  return DumpJson({{"losses", result.losses}, {"requests", requests}});
}

// The largest estimate of all samples, and how many have none.
std::string ErrorText(const BatchedGradientResult& result) {
  double largest = 0;
  int64_t absent = 0, known = 0;
  for (const v1::BackwardReport& report : result.backward_reports) {
    for (const v1::SampleBackwardReport& sample : report.samples()) {
      largest = std::max(largest, sample.gradient_error_estimate());
      ++(sample.has_gradient_error_estimate() ? known : absent);
    }
  }
  if (known == 0) return "; error of the gradients not known";
  std::string text = absl::StrFormat("; error of the gradients about %.1e", largest);
  if (absent > 0) absl::StrAppend(&text, ", not known of ", absent, " samples");
  return text;
}

// Prints what ran, unless `quiet`, and warnings about samples whose solve fell back or whose
// gradient overflowed.
void PrintSummary(const BatchedGradientResult& result, const GradientTask& task, bool quiet) {
  const int64_t num_samples = task.num_samples();
  SolveTotals totals;
  std::map<std::string, int64_t> solvers;
  for (const v1::SolveReport& report : result.reports) {
    totals.Add(report);
    for (const v1::SampleReport& sample : report.samples()) ++solvers[sample.solver()];
  }
  double seconds = 0;
  int64_t stages = 0, overflowed = 0;
  for (const v1::BackwardReport& report : result.backward_reports) {
    seconds += report.seconds();
    for (const v1::SampleBackwardReport& sample : report.samples()) {
      stages = std::max(stages, sample.dependent_stages());
      overflowed += sample.termination() == "non_finite" ? 1 : 0;
    }
  }
  if (!quiet) {
    const double loss = std::accumulate(result.losses.begin(), result.losses.end(), 0.0);
    absl::FPrintF(
        stderr, "%d samples in %d requests on %s; %s; back %s in %s, %d dependent stages%s%s\n",
        num_samples, result.reports.size(), Printable(result.reports.front().device()),
        solvers.empty() ? "along given states" : StrCat("solved by: ", CountsText(solvers)),
        Printable(result.backward_reports.front().way()), FormatSeconds(seconds), stages,
        result.losses.empty() ? "" : absl::StrFormat("; sum of losses %.9g", loss),
        task.estimate_error ? ErrorText(result) : "");
  }
  absl::FPrintF(stderr, "%s", WarningsText(totals));
  if (result.solved_again > 0)
    absl::FPrintF(stderr,
                  "warning: the server keeps the states of %d of %d samples no more; they were "
                  "solved again\n",
                  result.solved_again, num_samples);
  if (overflowed > 0)
    absl::FPrintF(stderr, "warning: the gradients of %d of %d samples overflowed\n", overflowed,
                  num_samples);
}

absl::Status WriteResults(const GradFlags& flags, const BatchedGradientResult& result) {
  const std::string& format = flags.inputs.format;
  absl::Status status;
  const auto write = [&](const Array& array, const std::string& path) {
    if (!path.empty()) status.Update(WriteArray(array, path, format));
  };
  write(result.by_inputs, flags.out);
  write(result.by_initial_state, flags.initial_out);
  write(result.by_step_noise, flags.noise_out);
  write(result.outputs, flags.outputs);
  write(result.trajectory, flags.trajectory);
  if (!flags.parameters.empty())
    status.Update(WriteFile(flags.parameters, FormatSafetensors(result.parameters)));
  if (!flags.report.empty()) status.Update(WriteFile(flags.report, ReportText(result)));
  // Without a name for them the gradients of the default go to standard output.
  const bool nothing = flags.out.empty() && flags.initial_out.empty() && flags.noise_out.empty();
  if (nothing && flags.report.empty() && flags.parameters.empty())
    write(result.by_inputs.shape.empty() ? result.by_initial_state : result.by_inputs, "-");
  return status;
}

absl::Status Run(const GradFlags& flags, const GlobalOptions& global) {
  DEEPPCR_RETURN_IF_ERROR(CheckFlags(flags));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::SolverOptions solver, flags.solver.Build());
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           MakeClient(global, absl::Minutes(10)));
  DEEPPCR_ASSIGN_OR_RETURN(const v1::GetModelResponse model, ReadyModel(*client, flags.model));
  Prepared prepared;
  DEEPPCR_RETURN_IF_ERROR(Prepare(flags, model, &prepared));
  const int64_t n = prepared.task.num_samples();
  std::atomic<int64_t> done{0};
  BatchedGradientOptions options{.solver = solver, .batch_size = flags.batch_size, .done = &done};
  options.solver.set_return_trajectory(!flags.trajectory.empty());
  if (!flags.previous.empty()) DEEPPCR_RETURN_IF_ERROR(StartFromPrevious(&options.solver));
  const auto line = [&] { return StrCat(done.load(), " of ", n, " samples"); };
  const absl::StatusOr<BatchedGradientResult> result = [&] {
    const ProgressText progress(line);
    return BatchedGradient(*client, model, prepared.task, options);
  }();
  if (!result.ok()) return result.status();
  PrintSummary(*result, prepared.task, flags.quiet);
  return WriteResults(flags, *result);
}

}  // namespace

RunCommand AddGrad(CLI::App* app, const GlobalOptions* global) {
  const auto flags = std::make_shared<GradFlags>();
  AddFlags(app, flags.get());
  return [flags, global] { return Run(*flags, *global); };
}

}  // namespace deeppcr
