// SPDX-License-Identifier: Apache-2.0
// The rungs of the engine in the ladder: whole Run calls with host buffers, on one core or on a
// GPU. Every rung is checked against the sequential solver, and the sequential solver against the
// reference backend, before anything is timed. Measures on its own (--rounds), or one round for
// each line of standard input (--follow), so that rounds of another program can stand between its
// own.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/latency.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/measure.h"

namespace deeppcr::bench {
namespace {

// The accuracy that an answer must have before it is timed: the tolerance asked for, and a tenth of
// it for the sequential solver in float32 compared with double precision; all of it for a diffusion
// model, whose steps rescale their inputs, and on a GPU.
constexpr double kTolerance = 1e-4;
constexpr double kSequentialTolerance = 1e-5;
// Samples of a diffusion model that the reference computes; kDrawnJudged is the least number on
// which an iterative rung is judged.
constexpr int64_t kDrawnByReference = 1;
// A candidate that takes longer than this is timed in the first few rounds only.
constexpr double kLongSeconds = 0.4;
constexpr size_t kRoundsOfLong = 3;
constexpr int64_t kDrawnJudged = 2;

struct Flags {
  std::string backend = "cpu";
  std::string repository = "deploy/models/repository";
  std::string inputs = "deploy/models/data/digits_heldout.npy";
  std::vector<std::string> models = {"digits-resnet", "digits-mlp", "digits-ddpm"};
  std::vector<int64_t> samples = {1, 8, 64};
  std::vector<int64_t> drawn_samples = {1, 64};
  std::vector<std::string> rungs;  // empty: all
  std::string plan_cache_dir;
  std::string outputs_dir;  // receives <model>.npy with the sequential outputs
  std::string json;
  int64_t judged = 64;
  int core = -1;
  int rounds = 5;
  double seconds = 0.05;
  double longest = 1.5;
  bool follow = false;
  bool keep_going = false;
};

struct Rung {
  const char* name;
  SolveOptions options;
};

std::vector<Rung> Rungs() {
  return {{"sequential", {.solver = "sequential"}},
          {"newton C=1",  // the published options
           {.solver = "newton",
            .shooting_interval = 1,
            .warm_sweeps = 0,
            .initial_guess = InitialGuess::kConstant,
            .jacobian_refresh = JacobianRefresh::kEveryIteration}},
          {"newton", {.solver = "newton"}},
          {"auto", {.solver = "auto"}},
          {"picard", {.solver = "picard"}},
          {"quasi_newton", {.solver = "quasi_newton"}}};
}

std::vector<Rung> DiffusionRungs() {
  return {{"sequential", {.solver = "sequential"}},
          {"newton C=1",
           {.solver = "newton",
            .shooting_interval = 1,
            .warm_sweeps = 0,
            .initial_guess = InitialGuess::kCoarse,
            .jacobian_refresh = JacobianRefresh::kEveryIteration}},
          {"newton", {.solver = "newton"}},
          {"auto", {.solver = "auto"}},
          {"picard", {.solver = "picard"}}};
}

// One model at one number of samples: the candidates, and the times so far.
struct Group {
  std::string model_name;
  Workload workload;
  std::vector<Candidate> candidates;
  std::vector<std::vector<double>> seconds;  // indexed by candidate
  nlohmann::ordered_json json;
};

absl::Status CheckSequential(const std::string& name, double difference, double tolerance) {
  if (difference <= tolerance) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(name, ": sequential is ", difference,
                                          " away from the reference, expected at most ",
                                          tolerance));
}

// Begins the reason why a rung with a wrong answer is missing; measure_gpu.py looks for it.
constexpr char kWrong[] = "wrong: ";

// A rung that fell back has the bits of the sequential solver; one that claims convergence must be
// right.
absl::Status CheckVerdict(const Candidate& candidate, const Verdict& verdict) {
  const bool right = verdict.max_state_error <= kTolerance &&
                     verdict.same_largest == verdict.samples &&
                     verdict.converged == verdict.samples;
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      candidate.name, ": state error ", verdict.max_state_error, ", ", verdict.converged,
      " converged and ", verdict.same_largest, " same labels of ", verdict.samples));
}

// The least seconds of a call of n samples, estimated from a call of one: on one core a parallel
// solver takes the samples one after the other. 0 if no estimate is needed.
absl::StatusOr<double> ExpectedSeconds(const std::shared_ptr<const LoadedModel>& model,
                                       const ResolvedOptions& options, int64_t n) {
  if (!model->info().generates() || options.solver == "sequential") return 0;
  Workload one(model, {}, 1);
  DEEPPCR_ASSIGN_OR_RETURN(const double seconds, one.Time(options, 0));
  return seconds * static_cast<double>(n);
}

// The samples that a rung is judged on.
std::span<const Expected> Judged(const LoadedModel& model, const ResolvedOptions& options,
                                 int64_t n, std::span<const Expected> expected) {
  if (!model.info().generates() || options.solver == "sequential") return expected;
  return expected.first(static_cast<size_t>(std::max(n, kDrawnJudged)));
}

absl::StatusOr<Group> MakeGroup(const Flags& flags, const std::string& name,
                                const std::shared_ptr<const LoadedModel>& model,
                                const Array& inputs, int64_t n,
                                std::span<const Expected> expected) {
  Group group{name, Workload(model, inputs.values, n), {}, {}, {}};
  group.json = {{"model", name},
                {"samples", n},
                {"num_layers", model->info().num_layers},
                {"state_dim", model->info().state_dim},
                {"plan", model->Find()->plan().id},
                {"missing", nlohmann::ordered_json::object()},
                {"candidates", nlohmann::ordered_json::array()}};
  for (const Rung& rung : model->info().generates() ? DiffusionRungs() : Rungs()) {
    if (!flags.rungs.empty() && std::ranges::find(flags.rungs, rung.name) == flags.rungs.end())
      continue;
    const absl::StatusOr<ResolvedOptions> resolved = model->Find()->Resolve(rung.options, n);
    if (!resolved.ok()) {
      group.json["missing"][rung.name] = std::string(resolved.status().message());
      continue;
    }
    const ResolvedOptions& options = *resolved;
    DEEPPCR_ASSIGN_OR_RETURN(const double seconds, ExpectedSeconds(model, options, n));
    if (n > 1 && seconds > flags.longest) {
      group.json["missing"][rung.name] =
          absl::StrFormat("a call is expected to take %.1f s", seconds);
      continue;
    }
    group.candidates.push_back({rung.name, options});
    DEEPPCR_ASSIGN_OR_RETURN(const Verdict verdict,
                             Judge(&group.workload, options, Judged(*model, options, n, expected)));
    const absl::Status right = CheckVerdict(group.candidates.back(), verdict);
    if (!right.ok() && !flags.keep_going) return right;
    if (!right.ok()) {
      group.json["missing"][rung.name] = absl::StrCat(kWrong, right.message());
      group.candidates.pop_back();
      continue;
    }
    group.json["candidates"].push_back(ToJson(group.candidates.back(), verdict));
  }
  group.seconds.resize(group.candidates.size());
  return group;
}

// Writes the outputs of each sample, and the noise that a diffusion model drew for them.
absl::Status WriteAnswers(const Flags& flags, const std::string& name, const ModelInfo& info,
                          std::span<const Expected> answers) {
  if (flags.outputs_dir.empty()) return absl::OkStatus();
  Array array{
      {static_cast<int64_t>(answers.size()), static_cast<int64_t>(answers.front().outputs.size())},
      {}};
  for (const Expected& answer : answers)
    array.values.insert(array.values.end(), answer.outputs.begin(), answer.outputs.end());
  const std::string stem = absl::StrCat(flags.outputs_dir, "/", name);
  DEEPPCR_RETURN_IF_ERROR(WriteArray(array, stem + ".npy", "npy"));
  if (!info.generates()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(answers.size());
  Array noise{{count, (info.num_layers + 1) * info.state_dim}, DrawnNoise(info, count)};
  return WriteArray(noise, stem + "-noise.npy", "npy");
}

// The folder of a model in the repository, or of one that is given by its folder.
std::string FolderOf(const Flags& flags, const std::string& model) {
  return model.find('/') == std::string::npos ? absl::StrCat(flags.repository, "/", model) : model;
}

// Loads a model, checks it, and makes its groups.
absl::Status AddModel(const Flags& flags, const Engine& engine, const std::string& wanted,
                      const Array& inputs, std::vector<Group>* groups) {
  const std::string directory = FolderOf(flags, wanted) + "/1";
  const std::string name = wanted.substr(wanted.rfind('/') + 1);
  absl::FPrintF(stderr, "%s %s: loading and checking\n", engine.device(), name);
  DEEPPCR_ASSIGN_OR_RETURN(const auto model, engine.LoadModel(directory, nullptr, nullptr));
  const bool draws = model->info().generates();
  const int64_t judged = draws ? kDrawnSamples : std::min(flags.judged, inputs.rows());
  DEEPPCR_ASSIGN_OR_RETURN(const auto expected, SequentialAnswers(model, inputs.values, judged));
  const int64_t by_reference = draws ? kDrawnByReference : judged;
  DEEPPCR_ASSIGN_OR_RETURN(const auto exact,
                           ReferenceAnswers(directory, inputs.values, by_reference));
  const double difference = LargestDifference(
      std::span(expected).first(static_cast<size_t>(by_reference)), exact, model->info());
  DEEPPCR_RETURN_IF_ERROR(CheckSequential(
      name, difference, draws || flags.backend != "cpu" ? kTolerance : kSequentialTolerance));
  DEEPPCR_RETURN_IF_ERROR(WriteAnswers(flags, name, model->info(), expected));
  for (const int64_t n : draws ? flags.drawn_samples : flags.samples) {
    if (n > judged || n > model->info().max_batch_size) continue;
    DEEPPCR_ASSIGN_OR_RETURN(Group group, MakeGroup(flags, name, model, inputs, n, expected));
    group.json["sequential_against_reference"] = difference;
    groups->push_back(std::move(group));
  }
  return absl::OkStatus();
}

// Runs a round over all groups; returns the seconds of its runs by group and candidate.
absl::StatusOr<nlohmann::ordered_json> RunRound(const Flags& flags, std::vector<Group>* groups) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (Group& group : *groups) {
    std::vector<bool> skip;
    for (const std::vector<double>& taken : group.seconds)
      skip.push_back(taken.size() >= kRoundsOfLong &&
                     *std::ranges::min_element(taken) > kLongSeconds);
    DEEPPCR_ASSIGN_OR_RETURN(const auto seconds,
                             TimeInTurns(&group.workload, group.candidates, flags.seconds, skip));
    for (size_t c = 0; c < seconds.size(); ++c)
      group.seconds[c].insert(group.seconds[c].end(), seconds[c].begin(), seconds[c].end());
    json.push_back(seconds);
  }
  return json;
}

nlohmann::ordered_json Describe(const Engine& engine, int core, const std::vector<Group>& groups) {
  nlohmann::ordered_json json = {
      {"device", engine.device()}, {"core", core}, {"groups", nlohmann::ordered_json::array()}};
  for (const Group& group : groups) json["groups"].push_back(group.json);
  return json;
}

void PrintLine(const nlohmann::ordered_json& json) {
  std::cout << json.dump() << std::endl;  // flushed, as the reader waits for the line
}

// Describes the groups in a line of JSON, then answers every line of standard input with a round.
absl::Status Follow(const Flags& flags, const Engine& engine, int core,
                    std::vector<Group>* groups) {
  PrintLine(Describe(engine, core, *groups));
  for (std::string line; std::getline(std::cin, line);) {
    DEEPPCR_ASSIGN_OR_RETURN(const auto round, RunRound(flags, groups));
    PrintLine(round);
  }
  return absl::OkStatus();
}

// Formats the figures of all rounds as a table, and adds them to the groups' JSON.
std::string Report(std::vector<Group>* groups) {
  Table table({{"model", Table::Align::kLeft},
               {"n"},
               {"rung", Table::Align::kLeft},
               {"median"},
               {"p99"},
               {"min"},
               {"ns/layer"},
               {"stages"},
               {"iterations"},
               {"runs"}});
  for (Group& group : *groups) {
    const ModelInfo& info = group.workload.model().info();
    for (size_t c = 0; c < group.candidates.size(); ++c) {
      const LatencySummary s = Summarize(group.seconds[c]);
      const double steps = static_cast<double>(info.num_layers * group.workload.samples());
      nlohmann::ordered_json& json = group.json["candidates"][c];
      json["median_seconds"] = s.p50;
      json["p99_seconds"] = s.p99;
      json["min_seconds"] = s.min;
      json["runs"] = s.count;
      table.AddRow({group.model_name, absl::StrCat(group.workload.samples()),
                    group.candidates[c].name, FormatSeconds(s.p50), FormatSeconds(s.p99),
                    FormatSeconds(s.min), absl::StrFormat("%.1f", 1e9 * s.p50 / steps),
                    absl::StrCat(json["dependent_stages"].get<int64_t>()),
                    absl::StrFormat("%.1f", json["mean_iterations"].get<double>()),
                    absl::StrCat(s.count)});
    }
  }
  return table.Format();
}

absl::Status RunBenchmark(const Flags& flags) {
  int core = flags.core;
  if (flags.backend == "cpu") {
    DEEPPCR_ASSIGN_OR_RETURN(core, PinToCore(flags.core));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Array inputs, ReadArray(flags.inputs, ""));
  DEEPPCR_ASSIGN_OR_RETURN(
      const auto engine,
      Engine::Create(
          {.backend = flags.backend, .num_threads = 1, .plan_cache_dir = flags.plan_cache_dir}));
  std::vector<Group> groups;
  for (const std::string& name : flags.models)
    DEEPPCR_RETURN_IF_ERROR(AddModel(flags, *engine, name, inputs, &groups));
  if (flags.follow) return Follow(flags, *engine, core, &groups);
  for (int round = 0; round < flags.rounds; ++round)
    DEEPPCR_RETURN_IF_ERROR(RunRound(flags, &groups).status());
  const std::string text = Report(&groups);
  DEEPPCR_RETURN_IF_ERROR(WriteFile("-", text));
  if (flags.json.empty()) return absl::OkStatus();
  return WriteFile(flags.json, Describe(*engine, core, groups).dump(2) + "\n");
}

int Main(int argc, char** argv) {
  CLI::App app("The engine's solvers side by side.", "solver_bench");
  Flags flags;
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--model_repository", flags.repository)->capture_default_str();
  app.add_option("--in", flags.inputs, "inputs of the models")->capture_default_str();
  app.add_option("--models", flags.models, "of the repository, or folders of models")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--samples", flags.samples, "samples per call")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--drawn_samples", flags.drawn_samples, "the same, of diffusion models")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kDrawnSamples))
      ->capture_default_str();
  app.add_option("--longest", flags.longest,
                 "seconds; a parallel solver of a diffusion model that takes longer for a batch is "
                 "left out")
      ->capture_default_str();
  app.add_option("--rungs", flags.rungs, "only these, for a profiler")->delimiter(',');
  app.add_option("--judged", flags.judged, "inputs that every rung is checked on")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--core", flags.core, "to run on with --backend cpu; -1: the last one")
      ->capture_default_str();
  app.add_option("--plan_cache_dir", flags.plan_cache_dir, "keep measured plans there");
  app.add_option("--outputs_dir", flags.outputs_dir, "write the outputs of each model there");
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per rung and round")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  app.add_option("--json", flags.json, "also write the figures as JSON");
  app.add_flag("--keep_going", flags.keep_going,
               "name a rung that misses its check as missing, and time the others");
  app.add_flag("--follow", flags.follow, "a round of JSON for each line of standard input");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = RunBenchmark(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "solver_bench: %s\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr::bench

int main(int argc, char** argv) { return deeppcr::bench::Main(argc, argv); }
