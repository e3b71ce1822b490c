// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/command.h"
#include "client/commands/train_data.h"
#include "client/commands/train_run.h"
#include "client/table.h"
#include "kernels/base/file.h"
#include "kernels/base/sha256.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/training/publish.h"
#include "kernels/training/trainer.h"

namespace deeppcr {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

struct TrainFlags {
  std::string config;
  DataFlags data;
  training::Destination destination;
  std::string loss = "cross_entropy", optimizer = "adamw", schedule = "cosine";
  std::string initialization, way = "sequential";  // initialization empty: by the model type
  std::optional<double> gain;                      // none: by the model type
  int64_t epochs = 10, steps = 0, warm_start_mib = 0;
  training::TrainerOptions trainer;
  RunOptions run = {.checkpoint_every = 200};
};

void AddModelFlags(CLI::App* app, TrainFlags* flags) {
  app->add_option("--config", flags->config, "the config.json of an mlp or resnet")
      ->required()
      ->type_name("FILE");
  app->add_option("--repository", flags->destination.repository,
                  "the model repository that gets the trained version")
      ->required()
      ->type_name("DIR");
  app->add_option("--model", flags->destination.model, "name of the model there")
      ->required()
      ->type_name("NAME");
  app->add_option("--model_version", flags->destination.version,
                  "version to publish (default: the next one)")
      ->type_name("N");
  app->add_option("--calibration", flags->destination.calibration_samples,
                  "training inputs, the first ones, that are published as calibration.safetensors "
                  "for the server to make plans on; 0: none")
      ->capture_default_str()
      ->type_name("N");
}

void AddStepFlags(CLI::App* app, TrainFlags* flags) {
  training::TrainerOptions& options = flags->trainer;
  app->add_option("--loss", flags->loss, "cross_entropy of labels, or mse of targets")
      ->capture_default_str();
  app->add_option("--epochs", flags->epochs, "passes over the samples")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--steps", flags->steps, "steps in all, in place of --epochs")->type_name("N");
  app->add_option("--batch_size", options.batch_size, "samples of a step")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--seed", options.seed, "of the first parameters, the order and the division")
      ->check(CheckUnsigned)
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--init", flags->initialization,
                  "first weights of the layers: normal, or orthogonal matrices (default: normal of "
                  "a resnet, orthogonal of an mlp)");
  app->add_option(
         "--gain", flags->gain,
         "their size: deviation times sqrt(width), or factor of the matrices (default: 0.1 "
         "of a resnet, 1 of an mlp)")
      ->type_name("X");
  app->add_option("--outer_gain", options.initialization.outer_gain,
                  "the same of the input and output layers")
      ->capture_default_str()
      ->type_name("X");
  app->add_option(
         "--split_state", options.split_state,
         "the input layer writes the first N elements of the state, the output layer reads "
         "the others; 0: both all")
      ->capture_default_str()
      ->type_name("N");
}

void AddOptimizerFlags(CLI::App* app, TrainFlags* flags) {
  training::OptimizerOptions& options = flags->trainer.optimizer;
  training::Schedule& schedule = flags->trainer.schedule;
  const auto number = [&](const char* name, double* value, const char* help) {
    app->add_option(name, *value, help)->capture_default_str()->type_name("X");
  };
  app->add_option("--optimizer", flags->optimizer, "sgd, adam or adamw")->capture_default_str();
  number("--learning_rate", &schedule.peak, "largest learning rate");
  app->add_option("--warmup_steps", schedule.warmup_steps, "steps in which it rises from zero")
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--schedule", flags->schedule, "then cosine or constant")->capture_default_str();
  number("--cosine_floor", &schedule.floor, "share of the rate at which the cosine ends");
  number("--momentum", &options.momentum, "of sgd");
  number("--beta1", &options.beta1, "of adam and adamw");
  number("--beta2", &options.beta2, "of adam and adamw");
  number("--epsilon", &options.epsilon, "of adam and adamw");
  number("--weight_decay", &options.weight_decay, "of weights, not of biases");
  number("--clip_norm", &options.clip_norm, "largest norm of the gradient; 0: any");
}

void AddRunFlags(CLI::App* app, TrainFlags* flags) {
  RunOptions& run = flags->run;
  training::SystemOptions& system = flags->trainer.system;
  app->add_option("--way", flags->way,
                  "sequential, or parallel: newton forward and the transposed scan backward, which "
                  "on a CPU is slower")
      ->capture_default_str();
  app->add_option("--shooting_interval", system.shooting_interval, "steps per interval of parallel")
      ->capture_default_str()
      ->type_name("C");
  app->add_option("--rtol", system.rtol, "tolerance of parallel")
      ->capture_default_str()
      ->check(CLI::Range(1e-7, 0.1))
      ->type_name("X");
  app->add_option("--warm_start_mib", flags->warm_start_mib,
                  "newton of parallel begins with the trajectory that the sample had an epoch ago, "
                  "if those of all samples take at most so much memory; 0: with a constant one")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, training::kMostWarmStartBytes >> 20))
      ->type_name("N");
  app->add_option("--threads", system.num_threads, "0 for one per core; the result is the same")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024))
      ->type_name("N");
  app->add_option("--checkpoint", run.checkpoint,
                  "file for checkpoints, removed once the model is published (default: "
                  "NAME.checkpoint.safetensors)")
      ->type_name("FILE");
  app->add_option("--checkpoint_every", run.checkpoint_every, "steps between two")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, training::kMostSteps))
      ->type_name("N");
  app->add_flag("--resume", run.resume, "go on from the checkpoint, to the same bits");
  app->add_option("--evaluate_every", run.evaluate_every,
                  "steps between two looks at the held-out samples (default: an epoch's)")
      ->check(CLI::Range(int64_t{1}, training::kMostSteps))
      ->type_name("N");
  app->add_option("--log", run.log, "one JSON object per step and per evaluation")
      ->type_name("FILE");
  app->add_option("--curves", run.curves, "loss and accuracy over the steps, as PNG")
      ->type_name("FILE");
  app->add_flag("--quiet", run.quiet, "no progress and no summary on standard error");
}

void AddFlags(CLI::App* app, TrainFlags* flags) {
  AddModelFlags(app, flags);
  flags->data.Add(app);
  AddStepFlags(app, flags);
  AddOptimizerFlags(app, flags);
  AddRunFlags(app, flags);
  app->footer(
      "Trains here, without a server. SIGINT and SIGTERM save a checkpoint and end the run.\n"
      "Example:\n"
      "  deeppcr train --config config.json --data digits.npz --validation 0.2 --epochs 30 \\\n"
      "    --learning_rate 2e-3 --warmup_steps 50 --clip_norm 1 --repository models --model "
      "digits");
}

// The value of a flag that takes one of two names.
absl::StatusOr<bool> IsSecond(const char* flag, const std::string& value, const char* first,
                              const char* second) {
  if (value == first || value == second) return value == second;
  return InvalidArgument(flag, ": expected ", first, " or ", second, ", got ", Quoted(value));
}

absl::Status ReadNames(const ModelConfig& config, TrainFlags* flags) {
  training::TrainerOptions& options = flags->trainer;
  DEEPPCR_ASSIGN_OR_RETURN(options.loss, training::ParseLossKind(flags->loss));
  DEEPPCR_ASSIGN_OR_RETURN(options.optimizer.kind, training::ParseOptimizerKind(flags->optimizer));
  DEEPPCR_ASSIGN_OR_RETURN(options.schedule.cosine,
                           IsSecond("schedule", flags->schedule, "constant", "cosine"));
  // Small layers of a resnet leave the state nearly as it is; an mlp has to carry it through.
  const bool mlp = config.model_type == "mlp";
  if (flags->initialization.empty()) flags->initialization = mlp ? "orthogonal" : "normal";
  options.initialization.layer_gain = flags->gain.value_or(mlp ? 1 : 0.1);
  DEEPPCR_ASSIGN_OR_RETURN(options.initialization.orthogonal_layers,
                           IsSecond("init", flags->initialization, "normal", "orthogonal"));
  DEEPPCR_ASSIGN_OR_RETURN(const bool parallel,
                           IsSecond("way", flags->way, "sequential", "parallel"));
  options.system.way = parallel ? BackwardWay::kParallel : BackwardWay::kSequential;
  options.initialization.seed = options.seed;
  options.warm_start_bytes = flags->warm_start_mib << 20;
  if (flags->run.checkpoint.empty())
    flags->run.checkpoint = flags->destination.model + ".checkpoint.safetensors";
  return absl::OkStatus();
}

// Everything that decides the bits of a run, by the names of its flags.
absl::StatusOr<json> FingerprintOf(const TrainFlags& flags, const std::string& config_json,
                                   const TrainingData& data) {
  const training::TrainerOptions& options = flags.trainer;
  const training::OptimizerOptions& optimizer = options.optimizer;
  DEEPPCR_ASSIGN_OR_RETURN(const std::string config, Sha256Hex(config_json));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string training, training::HashOf(data.training));
  std::string validation;  // empty: none
  if (data.validation.has_value()) {
    DEEPPCR_ASSIGN_OR_RETURN(validation, training::HashOf(*data.validation));
  }
  json run = {{"config_sha256", config},
              {"data_sha256", training},
              {"validation_sha256", validation},
              {"loss", flags.loss},
              {"steps", options.num_steps},
              {"batch_size", options.batch_size},
              {"seed", options.seed},
              {"init", flags.initialization},
              {"gain", options.initialization.layer_gain},
              {"outer_gain", options.initialization.outer_gain},
              {"split_state", options.split_state},
              {"optimizer", flags.optimizer},
              {"learning_rate", options.schedule.peak},
              {"warmup_steps", options.schedule.warmup_steps},
              {"schedule", flags.schedule},
              {"cosine_floor", options.schedule.floor},
              {"momentum", optimizer.momentum},
              {"beta1", optimizer.beta1},
              {"beta2", optimizer.beta2},
              {"epsilon", optimizer.epsilon},
              {"weight_decay", optimizer.weight_decay},
              {"clip_norm", optimizer.clip_norm},
              {"way", flags.way},
              {"shooting_interval", options.system.shooting_interval},
              {"rtol", options.system.rtol},
              {"warm_start_mib", flags.warm_start_mib}};
  return run;
}

int64_t NumSteps(const TrainFlags& flags, int64_t num_samples) {
  if (flags.steps != 0) return flags.steps;
  const int64_t batch_size = std::max<int64_t>(1, flags.trainer.batch_size);
  const int64_t steps_per_epoch = (num_samples - 1) / batch_size + 1;
  // More than are allowed, without an overflow.
  return std::min(flags.epochs, training::kMostSteps + 1) * steps_per_epoch;
}

void AppendEvaluation(std::string_view what, const std::optional<training::Evaluation>& evaluation,
                      std::string* text) {
  if (!evaluation.has_value()) return;
  absl::StrAppendFormat(text, "; %s: loss %.4g", what, evaluation->loss);
  if (evaluation->accuracy.has_value())
    absl::StrAppendFormat(text, ", accuracy %.2f %%", 100 * *evaluation->accuracy);
}

std::string SummaryText(const training::Trainer& trainer, int64_t steps, double seconds,
                        const TrainRun& run) {
  std::string text = StrCat(steps, " steps on ", trainer.device(), " in ", FormatSeconds(seconds));
  if (steps > 0)
    absl::StrAppend(&text, ", ", FormatSeconds(seconds / static_cast<double>(steps)), " each");
  if (trainer.skipped() > 0)
    absl::StrAppend(&text, "; ", trainer.skipped(), " of the run's ", trainer.step(),
                    " steps were skipped");
  AppendEvaluation("held out", run.last_evaluation(), &text);
  AppendEvaluation("layers bypassed", run.bypassed(), &text);
  return text;
}

// Ends as a program should that a signal has come for, so that a shell or a make that waits for it
// ends, too.
[[noreturn]] void EndBy(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  // The first process of a container outlives its own signals: a shell's status of one, then.
  std::exit(128 + signal);
}

// Checks that each file that is written is no other one that is written or read.
absl::Status CheckPaths(const TrainFlags& flags) {
  const RunOptions& run = flags.run;
  const std::string lock = LockPath(run.checkpoint);
  const DataFlags& data = flags.data;
  const std::pair<const char*, const std::string*> read[] = {
      {"config", &flags.config},
      {"data", &data.data},
      {"inputs", &data.inputs},
      {"targets", &data.targets},
      {"validation_data", &data.validation_data},
      {"validation_inputs", &data.validation_inputs},
      {"validation_targets", &data.validation_targets}};
  const std::pair<const char*, const std::string*> written[] = {{"checkpoint", &run.checkpoint},
                                                                {"checkpoint (its lock)", &lock},
                                                                {"log", &run.log},
                                                                {"curves", &run.curves}};
  std::map<std::filesystem::path, const char*> seen;
  std::error_code ignored;  // a path that cannot be resolved cannot be written either
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path), ignored);
  };
  const auto is_file = [](const std::string& path) { return !path.empty() && path != "-"; };
  for (const auto& [flag, path] : read)
    if (is_file(*path)) seen.emplace(canonical(*path), flag);
  for (const auto& [flag, path] : written) {
    if (!is_file(*path)) continue;
    const auto [other, added] = seen.emplace(canonical(*path), flag);
    if (!added)
      return InvalidArgument(flag, ": ", *path, ": expected a file of its own, got that of ",
                             other->second);
  }
  return absl::OkStatus();
}

// Returns the signal that ended the run; 0: the model is published.
absl::StatusOr<int> Train(TrainFlags flags) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string config_json, ReadFile(flags.config, kMaxConfigBytes));
  const absl::StatusOr<ModelConfig> config = ParseConfig(config_json);
  if (!config.ok()) return WithContext(config.status(), flags.config);
  DEEPPCR_RETURN_IF_ERROR(ReadNames(*config, &flags));
  DEEPPCR_RETURN_IF_ERROR(training::CheckDestination(flags.destination));
  DEEPPCR_RETURN_IF_ERROR(CheckPaths(flags));
  DEEPPCR_ASSIGN_OR_RETURN(const TrainingData data,
                           LoadData(flags.data, flags.trainer.loss, config->input_dim,
                                    config->output_dim, flags.trainer.seed));
  flags.trainer.num_steps = flags.run.num_steps = NumSteps(flags, data.training.num_samples);
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<training::Trainer> trainer,
                           training::Trainer::Create(*config, flags.trainer, data.training));
  DEEPPCR_ASSIGN_OR_RETURN(json fingerprint, FingerprintOf(flags, config_json, data));
  TrainRun run(flags.run, trainer.get(), data.validation.has_value() ? &*data.validation : nullptr,
               std::move(fingerprint));
  DEEPPCR_RETURN_IF_ERROR(run.Prepare());
  const int64_t first_step = trainer->step();
  const auto begin = std::chrono::steady_clock::now();
  DEEPPCR_ASSIGN_OR_RETURN(const int signal, run.Run());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::string summary =
      SummaryText(*trainer, trainer->step() - first_step, seconds.count(), run);
  if (signal != 0) {
    absl::FPrintF(stderr, "%s\ninterrupted after step %d of %d, saved in %s: --resume goes on\n",
                  summary, trainer->step(), flags.run.num_steps, flags.run.checkpoint);
    return signal;
  }
  const absl::StatusOr<std::string> place =
      training::Publish(flags.destination, config_json, trainer->layout(),
                        trainer->state().optimizer.parameters, data.training);
  if (!place.ok()) return WithContext(place.status(), "trained, and not published");
  std::error_code ignored;
  std::filesystem::remove(flags.run.checkpoint, ignored);
  if (!flags.run.quiet) absl::FPrintF(stderr, "%s\n", summary);
  absl::PrintF("%s\n", *place);
  DEEPPCR_RETURN_IF_ERROR(run.Unwritten());
  return 0;
}

absl::Status Run(TrainFlags flags) {
  DEEPPCR_ASSIGN_OR_RETURN(const int signal, Train(std::move(flags)));
  if (signal != 0) EndBy(signal);
  return absl::OkStatus();
}

}  // namespace

RunCommand AddTrain(CLI::App* app, const GlobalOptions*) {
  auto flags = std::make_shared<TrainFlags>();
  AddFlags(app, flags.get());
  return [flags] { return Run(*flags); };
}

}  // namespace deeppcr
