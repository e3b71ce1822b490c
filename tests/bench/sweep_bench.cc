// SPDX-License-Identifier: Apache-2.0
// Where which solver wins: the sequential solver against the planned newton over depths
// and widths, one sample at a time, on one core or on a GPU, random residual networks with scale
// 1/sqrt(L). The losing region is part of the table. Answers are compared with sequential's before
// they are timed.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/latency.h"
#include "client/table.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/measure.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::bench {
namespace {

constexpr double kTolerance = 1e-4;
constexpr int64_t kInputs = 32;                   // at least
constexpr int64_t kJudged = 4;                    // the same
constexpr int64_t kMaxStates = int64_t{1} << 26;  // floats of all trajectories of a request

struct Flags {
  std::vector<int64_t> depths = {64, 256, 1024, 4096, 16384};
  std::vector<int64_t> widths = {2, 4, 8, 16, 32, 64};
  std::vector<int64_t> samples = {1};
  int64_t max_weights = int64_t{1} << 24;  // larger systems are left out
  std::string backend = "cpu";
  int core = -1;
  double seconds = 0.3;
  std::string json;
};

struct Point {
  int64_t depth = 0, width = 0, samples = 1;
  bool newton_ran = false;  // and every judged sample converged within the tolerance
  Candidate newton;
  Verdict verdict;
  double sequential_seconds = 0, newton_seconds = 0;
  int64_t sequential_stages = 0;

  // Above 1: newton is faster.
  double Ratio() const { return sequential_seconds / newton_seconds; }
};

// z + relu(W z + b) / sqrt(L): weights of standard deviation 1/sqrt(D), so that a branch keeps the
// size of its input.
absl::Status WriteRandomModel(const std::string& directory, int64_t depth, int64_t width,
                              int64_t max_samples, std::mt19937* generator) {
  std::normal_distribution<float> weight(0, 1 / std::sqrt(static_cast<float>(width)));
  std::normal_distribution<float> bias(0, 0.1F);
  testing::NamedTensor weights{"layers.weight", {depth, width, width}, {}};
  testing::NamedTensor biases{"layers.bias", {depth, width}, {}};
  weights.values.resize(static_cast<size_t>(depth * width * width));
  biases.values.resize(static_cast<size_t>(depth * width));
  for (float& x : weights.values) x = weight(*generator);
  for (float& x : biases.values) x = bias(*generator);
  const nlohmann::json config = {{"model_type", "resnet"},       {"input_dim", width},
                                 {"output_dim", width},          {"state_dim", width},
                                 {"num_layers", depth},          {"activation", "relu"},
                                 {"max_batch_size", max_samples}};
  return testing::WriteModel(directory, config.dump(), {weights, biases});
}

std::vector<float> RandomInputs(int64_t count, int64_t width, std::mt19937* generator) {
  std::normal_distribution<float> normal;
  std::vector<float> inputs(static_cast<size_t>(count * width));
  for (float& x : inputs) x = normal(*generator);
  return inputs;
}

// Newton takes part where it gives the right answer.
absl::Status TimePoint(Workload* workload, const Candidate& sequential, double seconds,
                       Point* point) {
  std::vector<Candidate> candidates = {sequential};
  if (point->newton_ran) candidates.push_back(point->newton);
  DEEPPCR_ASSIGN_OR_RETURN(const auto all, TimeInTurns(workload, candidates, seconds));
  point->sequential_seconds = Summarize(all[0]).p50;
  if (point->newton_ran) point->newton_seconds = Summarize(all[1]).p50;
  return absl::OkStatus();
}

// A model of one depth and width, and what goes through it.
struct Subject {
  std::shared_ptr<const LoadedModel> model;
  std::vector<float> inputs;
};

absl::StatusOr<Subject> LoadSubject(const Engine& engine, int64_t depth, int64_t width,
                                    int64_t max_samples) {
  std::mt19937 generator(static_cast<uint32_t>(depth * 1000 + width));
  const testing::TemporaryDirectory folder;
  const std::string directory = folder.File("model");
  DEEPPCR_RETURN_IF_ERROR(WriteRandomModel(directory, depth, width, max_samples, &generator));
  Subject subject;
  subject.inputs = RandomInputs(std::max(kInputs, max_samples), width, &generator);
  DEEPPCR_ASSIGN_OR_RETURN(subject.model, engine.LoadModel(directory, nullptr, nullptr));
  return subject;
}

absl::StatusOr<Point> MeasurePoint(const Subject& subject, int64_t samples, double seconds) {
  const auto& [model, inputs] = subject;
  DEEPPCR_ASSIGN_OR_RETURN(const auto expected,
                           SequentialAnswers(model, inputs, std::max(kJudged, samples)));
  Point point{.depth = model->info().num_layers,
              .width = model->info().state_dim,
              .samples = samples,
              .newton = {"newton", {}},
              .verdict = {}};
  Workload workload(model, inputs, samples);
  Candidate sequential{"sequential", {}};
  DEEPPCR_ASSIGN_OR_RETURN(sequential.options, model->Resolve({.solver = "sequential"}, samples));
  DEEPPCR_RETURN_IF_ERROR(workload.Run(sequential.options, 0, false));
  point.sequential_stages = workload.reports()[0].dependent_stages;
  DEEPPCR_ASSIGN_OR_RETURN(point.newton.options, model->Resolve({.solver = "newton"}, samples));
  DEEPPCR_ASSIGN_OR_RETURN(point.verdict, Judge(&workload, point.newton.options, expected));
  const Verdict& verdict = point.verdict;
  if (!(verdict.max_state_error <= kTolerance))
    return absl::InternalError(absl::StrCat("L = ", point.depth, ", D = ", point.width,
                                            ", B = ", samples, ": newton is off by ",
                                            verdict.max_state_error));
  point.newton_ran = verdict.converged == verdict.samples && verdict.fallbacks == 0;
  DEEPPCR_RETURN_IF_ERROR(TimePoint(&workload, sequential, seconds, &point));
  return point;
}

std::vector<std::string> RowOf(const Point& point) {
  std::vector<std::string> row = {absl::StrCat(point.depth), absl::StrCat(point.width),
                                  absl::StrCat(point.samples),
                                  FormatSeconds(point.sequential_seconds)};
  if (!point.newton_ran) {
    row.insert(row.end(), {"-", "-", "-", absl::StrCat(point.sequential_stages), "-", "-"});
    row.push_back("did not converge");
    return row;
  }
  const double gain =
      static_cast<double>(point.sequential_stages) / static_cast<double>(point.verdict.max_stages);
  row.insert(
      row.end(),
      {FormatSeconds(point.newton_seconds), absl::StrCat(point.newton.options.shooting_interval),
       absl::StrFormat("%.1f", point.verdict.mean_iterations),
       absl::StrCat(point.sequential_stages), absl::StrCat(point.verdict.max_stages),
       absl::StrFormat("%.1f", gain),
       point.Ratio() > 1 ? absl::StrFormat("newton wins %.2fx", point.Ratio())
                         : absl::StrFormat("newton loses %.1fx", 1 / point.Ratio())});
  return row;
}

nlohmann::ordered_json JsonOf(const Point& point) {
  nlohmann::ordered_json json = {{"num_layers", point.depth},
                                 {"state_dim", point.width},
                                 {"samples", point.samples},
                                 {"sequential_seconds", point.sequential_seconds},
                                 {"sequential_stages", point.sequential_stages},
                                 {"newton_converged", point.newton_ran}};
  if (point.newton_ran) {
    json["newton_seconds"] = point.newton_seconds;
    json["newton"] = ToJson(point.newton, point.verdict);
  }
  return json;
}

absl::Status RunSweep(const Flags& flags) {
  if (flags.backend == "cpu") DEEPPCR_RETURN_IF_ERROR(PinToCore(flags.core).status());
  DEEPPCR_ASSIGN_OR_RETURN(const auto engine,
                           Engine::Create({.backend = flags.backend, .num_threads = 1}));
  Table table({{"L"},
               {"D"},
               {"B"},
               {"sequential"},
               {"newton"},
               {"C"},
               {"iterations"},
               {"stages, sequential"},
               {"stages, newton"},
               {"fewer by"},
               {"time", Table::Align::kLeft}});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t depth : flags.depths) {
    for (const int64_t width : flags.widths) {
      if (depth * width * width > flags.max_weights) continue;
      const int64_t most = *std::max_element(flags.samples.begin(), flags.samples.end());
      DEEPPCR_ASSIGN_OR_RETURN(const Subject subject, LoadSubject(*engine, depth, width, most));
      for (const int64_t samples : flags.samples) {
        if (samples * (depth + 1) * width > kMaxStates) continue;
        absl::FPrintF(stderr, "L = %d, D = %d, B = %d\n", depth, width, samples);
        DEEPPCR_ASSIGN_OR_RETURN(const Point point, MeasurePoint(subject, samples, flags.seconds));
        table.AddRow(RowOf(point));
        rows.push_back(JsonOf(point));
      }
    }
  }
  DEEPPCR_RETURN_IF_ERROR(WriteFile("-", table.Format()));
  if (flags.json.empty()) return absl::OkStatus();
  const nlohmann::ordered_json json = {{"device", engine->device()}, {"rows", rows}};
  return WriteFile(flags.json, json.dump(2) + "\n");
}

int Main(int argc, char** argv) {
  CLI::App app("Sequential against newton over depths, widths and samples.", "sweep_bench");
  Flags flags;
  app.add_option("--backend", flags.backend)->capture_default_str();
  app.add_option("--depths", flags.depths)->delimiter(',')->capture_default_str();
  app.add_option("--widths", flags.widths)->delimiter(',')->capture_default_str();
  app.add_option("--samples", flags.samples, "of a request")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max_weights", flags.max_weights, "leave out systems with more")
      ->capture_default_str();
  app.add_option("--core", flags.core, "to run on with --backend cpu; -1: the last one")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "per solver and point")->capture_default_str();
  app.add_option("--json", flags.json, "also write the figures as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = RunSweep(flags);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "sweep_bench: %s\n", status.ToString());
  return 1;
}

}  // namespace
}  // namespace deeppcr::bench

int main(int argc, char** argv) { return deeppcr::bench::Main(argc, argv); }
