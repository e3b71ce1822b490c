// SPDX-License-Identifier: Apache-2.0
// Gradients of the engine on one core, in turns with those of torch_gradients.py: back through a
// network and a diffusion process of one sample, and training steps. Everything is compared with
// the reference backend before it is timed, and what it gave is written for the other program to
// compare with. Describes itself in a line of JSON, then answers every line of standard input with
// a round.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/commands/train_data.h"
#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/training/trainer.h"
#include "tests/bench/gradient_subject.h"
#include "tests/bench/measure.h"

namespace deeppcr::bench {
namespace {

// Gradients in float32 beside those in double, of the largest element, and the losses and norms of
// a training step.
constexpr double kTolerance = 1e-4;
constexpr int64_t kBatch = 64;

struct Flags {
  std::string repository = "deploy/models/repository";
  std::string data = "deploy/models/data";
  std::string outputs_dir;
  int core = -1;
  double seconds = 0.05;
};

struct Timed {
  std::string name;
  std::function<absl::Status()> call;
};

// What is timed in turns.
struct Group {
  std::string model;
  int64_t samples = 1;
  int64_t num_layers = 0;
  std::vector<Timed> timed;
};

absl::Status CheckClose(const std::string& what, std::span<const float> got,
                        std::span<const float> wanted) {
  double largest = 0, apart = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::fabs(double{wanted[i]}));
    const double difference = std::fabs(double{got[i]} - wanted[i]);
    if (!(difference <= apart)) apart = difference;
  }
  if (apart <= kTolerance * largest && largest > 0) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: off by %g of %g", what, apart, largest));
}

absl::Status WriteRow(const Flags& flags, const std::string& name, std::span<const float> values) {
  return WriteArray(Array{{1, static_cast<int64_t>(values.size())}, {values.begin(), values.end()}},
                    absl::StrCat(flags.outputs_dir, "/", name, ".npy"), "npy");
}

// Both ways against the reference backend at the same states.
absl::Status CheckWays(const std::string& name, GradientSubject* subject,
                       GradientSubject* reference) {
  reference->TakeStatesOf(*subject);
  DEEPPCR_RETURN_IF_ERROR(reference->Back(BackwardWay::kSequential));
  for (const BackwardWay way : {BackwardWay::kParallel, BackwardWay::kSequential}) {
    DEEPPCR_RETURN_IF_ERROR(subject->Back(way));
    DEEPPCR_RETURN_IF_ERROR(CheckClose(absl::StrCat(name, ", ", std::string(ToString(way))),
                                       subject->gradient(), reference->gradient()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Group> NetworkGroup(const Flags& flags, const std::string& name,
                                   GradientSubject* subject, GradientSubject* reference) {
  DEEPPCR_RETURN_IF_ERROR(CheckWays(name, subject, reference));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-input", subject->input()));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-cotangent", subject->of_outputs()));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-gradient", subject->gradient()));
  DEEPPCR_RETURN_IF_ERROR(subject->Jacobian());
  DEEPPCR_RETURN_IF_ERROR(reference->Jacobian());
  DEEPPCR_RETURN_IF_ERROR(
      CheckClose(name + ", Jacobian", subject->jacobian(), reference->jacobian()));
  DEEPPCR_RETURN_IF_ERROR(subject->BackToParameters());
  DEEPPCR_RETURN_IF_ERROR(
      WriteRow(flags, name + "-weights", subject->gradient_by("layers.weight")));
  return Group{
      .model = name,
      .num_layers = subject->info().num_layers,
      .timed = {{"forward", [=] { return subject->Forward(false); }},
                {"backward", [=] { return subject->Back(BackwardWay::kSequential); }},
                {"backward, parallel", [=] { return subject->Back(BackwardWay::kParallel); }},
                {"backward, parameters too", [=] { return subject->BackToParameters(); }},
                {"forward and backward",
                 [=] {
                   DEEPPCR_RETURN_IF_ERROR(subject->Forward(true));
                   return subject->Back(BackwardWay::kSequential);
                 }},
                {"Jacobian", [=] { return subject->Jacobian(); }}}};
}

absl::StatusOr<Group> DiffusionGroup(const Flags& flags, const std::string& name,
                                     GradientSubject* subject, GradientSubject* reference) {
  DEEPPCR_RETURN_IF_ERROR(CheckWays(name, subject, reference));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-cotangent", subject->of_outputs()));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-gradient", subject->gradient()));
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, name + "-noise", DrawnNoise(subject->info(), 1)));
  return Group{.model = name,
               .num_layers = subject->info().num_layers,
               .timed = {{"forward", [=] { return subject->Forward(false); }},
                         {"backward", [=] { return subject->Back(BackwardWay::kSequential); }},
                         {"forward and backward", [=] {
                            DEEPPCR_RETURN_IF_ERROR(subject->Forward(true));
                            return subject->Back(BackwardWay::kSequential);
                          }}}};
}

// A run whose rate is zero: every step is the first one.
struct Training {
  ModelConfig config;
  TrainingData data;
  std::unique_ptr<training::Trainer> trainer;
  nlohmann::ordered_json phases;  // seconds of every step

  absl::Status Step() {
    DEEPPCR_ASSIGN_OR_RETURN(const training::StepReport report, trainer->Step());
    const training::StepReport::Seconds& seconds = report.seconds;
    for (const auto& [name, value] :
         {std::pair{"pack", seconds.pack}, std::pair{"forward", seconds.forward},
          std::pair{"loss", seconds.loss}, std::pair{"backward", seconds.backward},
          std::pair{"update", seconds.update}})
      phases[name].push_back(value);
    return absl::OkStatus();
  }
};

absl::StatusOr<Training> LoadTraining(const Flags& flags) {
  DEEPPCR_ASSIGN_OR_RETURN(
      const std::string text,
      ReadFile(flags.repository + "/digits-resnet/1/config.json", int64_t{1} << 20));
  Training training;
  DEEPPCR_ASSIGN_OR_RETURN(training.config, ParseConfig(text));
  DataFlags data;
  data.data = flags.data + "/digits_train.npz";
  DEEPPCR_ASSIGN_OR_RETURN(
      training.data, LoadData(data, training::LossKind::kCrossEntropy, training.config.input_dim,
                              training.config.output_dim, 1));
  training::Dataset& samples = training.data.training;
  samples.num_samples = kBatch;
  samples.inputs.resize(kBatch * samples.input_dim);
  samples.labels.resize(kBatch);
  return training;
}

absl::StatusOr<Group> TrainingGroup(const Flags& flags, Training* training) {
  DEEPPCR_ASSIGN_OR_RETURN(training->trainer,
                           training::Trainer::Create(training->config,
                                                     {.optimizer = {.clip_norm = 1},
                                                      .schedule = {.peak = 0, .cosine = false},
                                                      .batch_size = kBatch,
                                                      .num_steps = training::kMostSteps,
                                                      .initialization = {.layer_gain = 0.1},
                                                      .system = {.num_threads = 1}},
                                                     training->data.training));
  training::Trainer* const trainer = training->trainer.get();
  DEEPPCR_RETURN_IF_ERROR(
      WriteRow(flags, "training-parameters", trainer->state().optimizer.parameters));
  DEEPPCR_ASSIGN_OR_RETURN(const training::StepReport report, trainer->Step());
  const float found[] = {static_cast<float>(report.loss), static_cast<float>(report.gradient_norm)};
  DEEPPCR_RETURN_IF_ERROR(WriteRow(flags, "training-found", found));
  return Group{.model = "digits-resnet, training",
               .samples = kBatch,
               .num_layers = training->config.num_layers,
               .timed = {{"training step", [=] { return training->Step(); }}}};
}

absl::StatusOr<double> Time(const Timed& timed) {
  const auto begin = std::chrono::steady_clock::now();
  DEEPPCR_RETURN_IF_ERROR(timed.call());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// In its turn a candidate runs once untimed, and then up to kTimedRuns times timed, until each has
// had its seconds.
absl::StatusOr<std::vector<std::vector<double>>> RunRound(const Group& group, double seconds) {
  std::vector<std::vector<double>> taken(group.timed.size());
  std::vector<double> spent(group.timed.size());
  while (std::ranges::any_of(spent, [&](double s) { return s < seconds; })) {
    for (size_t c = 0; c < group.timed.size(); ++c) {
      if (spent[c] >= seconds) continue;
      DEEPPCR_RETURN_IF_ERROR(Time(group.timed[c]).status());
      for (int i = 0; i < kTimedRuns; ++i) {
        DEEPPCR_ASSIGN_OR_RETURN(const double s, Time(group.timed[c]));
        taken[c].push_back(s);
        spent[c] += s;
      }
    }
  }
  return taken;
}

nlohmann::ordered_json Describe(const Engine& engine, int core, const std::vector<Group>& groups) {
  nlohmann::ordered_json json = {
      {"device", engine.device()}, {"core", core}, {"groups", nlohmann::ordered_json::array()}};
  for (const Group& group : groups) {
    nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
    for (const Timed& timed : group.timed) candidates.push_back({{"name", timed.name}});
    json["groups"].push_back({{"model", group.model},
                              {"samples", group.samples},
                              {"num_layers", group.num_layers},
                              {"candidates", std::move(candidates)}});
  }
  return json;
}

absl::Status Run(const Flags& flags) {
  DEEPPCR_ASSIGN_OR_RETURN(const int core, PinToCore(flags.core));
  DEEPPCR_ASSIGN_OR_RETURN(const Array inputs, ReadArray(flags.data + "/digits_heldout.npy", ""));
  const auto engine_of = [](const char* backend) {
    return Engine::Create({.backend = backend, .num_threads = 1, .gradients = true});
  };
  DEEPPCR_ASSIGN_OR_RETURN(const auto engine, engine_of("cpu"));
  DEEPPCR_ASSIGN_OR_RETURN(const auto exact, engine_of("reference"));
  std::vector<std::unique_ptr<GradientSubject>> subjects;
  std::vector<Group> groups;
  for (const std::string name : {"digits-resnet", "digits-ddpm"}) {
    const std::string directory = absl::StrCat(flags.repository, "/", name, "/1");
    absl::FPrintF(stderr, "%s %s: loading and checking\n", engine->device(), name);
    DEEPPCR_ASSIGN_OR_RETURN(auto subject,
                             GradientSubject::Load(*engine, directory, inputs.values));
    DEEPPCR_ASSIGN_OR_RETURN(auto reference,
                             GradientSubject::Load(*exact, directory, inputs.values));
    const auto make = subject->info().generates() ? DiffusionGroup : NetworkGroup;
    DEEPPCR_ASSIGN_OR_RETURN(Group group, make(flags, name, subject.get(), reference.get()));
    groups.push_back(std::move(group));
    subjects.push_back(std::move(subject));
  }
  DEEPPCR_ASSIGN_OR_RETURN(Training training, LoadTraining(flags));
  DEEPPCR_ASSIGN_OR_RETURN(Group group, TrainingGroup(flags, &training));
  groups.push_back(std::move(group));
  std::cout << Describe(*engine, core, groups).dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json round = nlohmann::ordered_json::array();
    for (const Group& each : groups) {
      DEEPPCR_ASSIGN_OR_RETURN(const auto taken, RunRound(each, flags.seconds));
      round.push_back(taken);
    }
    std::cout << round.dump() << std::endl;  // flushed, as the reader waits for the line
  }
  return WriteFile(
      absl::StrCat(flags.outputs_dir, "/training-phases-", std::string(engine->device()), ".json"),
      training.phases.dump());
}

int Main(int argc, char** argv) {
  CLI::App app("Gradients and training steps on one core.", "gradient_bench");
  Flags flags;
  app.add_option("--model_repository", flags.repository)->capture_default_str();
  app.add_option("--data", flags.data, "folder of the digits")->capture_default_str();
  app.add_option("--outputs_dir", flags.outputs_dir, "what everything gave is written there")
      ->required();
  app.add_option("--core", flags.core, "to run on; -1: the last one")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per candidate and round")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = Run(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "gradient_bench: %s\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr::bench

int main(int argc, char** argv) { return deeppcr::bench::Main(argc, argv); }
