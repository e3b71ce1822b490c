// SPDX-License-Identifier: Apache-2.0
// A map of which solver wins where, and whether `auto` takes it: the sequential solver compared
// with the planned newton over depths, widths and samples of a request, on one core or on a GPU,
// for random residual networks with scale 1/sqrt(L), relu of gain 0.1 and tanh of gain 1. The table
// has the losing region too. Answers are compared with the sequential ones before they are timed.

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
constexpr int64_t kInputs = 32;                   // least number of inputs
constexpr int64_t kJudged = 4;                    // least number of judged samples
constexpr int64_t kMaxStates = int64_t{1} << 26;  // floats of all trajectories of a request

struct Flags {
  std::vector<int64_t> depths = {64, 256, 1024, 4096, 16384};
  std::vector<int64_t> widths = {2, 4, 8, 16, 32, 64};
  std::vector<int64_t> samples = {1};
  int64_t max_weights = int64_t{1} << 24;  // larger systems are left out
  std::string backend = "cpu";
  int core = -1;
  double seconds = 0.3;
  double max_seconds = 0;
  std::string json;
  bool json_lines = false;
};

struct Point {
  std::string activation;
  int64_t depth = 0, width = 0, samples = 1;
  bool newton_ran = false;   // every judged sample converged, without a fallback
  Candidate newton, chosen;  // the plan's newton, and the choice of `auto`
  Verdict verdict;
  double sequential_seconds = 0, newton_seconds = 0, auto_seconds = 0;
  int64_t sequential_stages = 0;

  // The ratio of the times: above 1 if newton is faster.
  double Ratio() const { return sequential_seconds / newton_seconds; }
  // The time of `auto` over that of the fastest solver.
  double AutoOverBest() const {
    double best = std::min(sequential_seconds, auto_seconds);
    if (newton_ran) best = std::min(best, newton_seconds);
    return auto_seconds / best;
  }
};

// Networks whose states keep their size whatever L is; relu with gain 1 grows like exp(c sqrt(L)).
struct Family {
  const char* activation;
  float gain;
};
constexpr Family kFamilies[] = {{"relu", 0.1F}, {"tanh", 1.0F}};

// Writes z + act(W z + b) / sqrt(L) with weights of standard deviation gain / sqrt(D).
absl::Status WriteRandomModel(const std::string& directory, const Family& family, int64_t depth,
                              int64_t width, int64_t max_samples, std::mt19937* generator) {
  std::normal_distribution<float> weight(0, family.gain / std::sqrt(static_cast<float>(width)));
  std::normal_distribution<float> bias(0, 0.1F);
  testing::NamedTensor weights{"layers.weight", {depth, width, width}, {}};
  testing::NamedTensor biases{"layers.bias", {depth, width}, {}};
  weights.values.resize(static_cast<size_t>(depth * width * width));
  biases.values.resize(static_cast<size_t>(depth * width));
  for (float& x : weights.values) x = weight(*generator);
  for (float& x : biases.values) x = bias(*generator);
  const nlohmann::json config = {{"model_type", "resnet"},       {"input_dim", width},
                                 {"output_dim", width},          {"state_dim", width},
                                 {"num_layers", depth},          {"activation", family.activation},
                                 {"max_batch_size", max_samples}};
  return testing::WriteModel(directory, config.dump(), {weights, biases});
}

std::vector<float> RandomInputs(int64_t count, int64_t width, std::mt19937* generator) {
  std::normal_distribution<float> normal;
  std::vector<float> inputs(static_cast<size_t>(count * width));
  for (float& x : inputs) x = normal(*generator);
  return inputs;
}

// Times newton only if it converged, and `auto` only if it is not the sequential solver.
absl::Status TimePoint(Workload* workload, const Candidate& sequential, double seconds,
                       Point* point) {
  const std::vector<Candidate> candidates = {sequential, point->newton, point->chosen};
  const bool automatic = point->chosen.options != sequential.options;
  DEEPPCR_ASSIGN_OR_RETURN(const auto all, TimeInTurns(workload, candidates, seconds,
                                                       {false, !point->newton_ran, !automatic}));
  point->sequential_seconds = Summarize(all[0]).p50;
  if (point->newton_ran) point->newton_seconds = Summarize(all[1]).p50;
  point->auto_seconds = automatic ? Summarize(all[2]).p50 : point->sequential_seconds;
  return absl::OkStatus();
}

// A model of one depth and width, and its inputs.
struct Subject {
  std::string activation;
  std::shared_ptr<const LoadedModel> model;
  std::vector<float> inputs;
};

absl::StatusOr<Subject> LoadSubject(const Engine& engine, const Family& family, int64_t depth,
                                    int64_t width, int64_t max_samples) {
  std::mt19937 generator(static_cast<uint32_t>(depth * 1000 + width));
  const testing::TemporaryDirectory folder;
  const std::string directory = folder.File("model");
  DEEPPCR_RETURN_IF_ERROR(
      WriteRandomModel(directory, family, depth, width, max_samples, &generator));
  Subject subject{.activation = family.activation, .model = {}, .inputs = {}};
  subject.inputs = RandomInputs(std::max(kInputs, max_samples), width, &generator);
  DEEPPCR_ASSIGN_OR_RETURN(subject.model, engine.LoadModel(directory, nullptr, nullptr));
  return subject;
}

// Judges the candidate on inputs whose answers are known. Errors: kInternal for a wrong answer.
absl::StatusOr<Verdict> JudgeAt(const Point& point, Workload* workload, const Candidate& candidate,
                                std::span<const Expected> expected) {
  DEEPPCR_ASSIGN_OR_RETURN(const Verdict verdict, Judge(workload, candidate.options, expected));
  if (verdict.max_state_error <= kTolerance) return verdict;
  return absl::InternalError(absl::StrCat(point.activation, ", L = ", point.depth,
                                          ", D = ", point.width, ", B = ", point.samples, ": ",
                                          candidate.name, " is off by ", verdict.max_state_error));
}

absl::StatusOr<Point> MeasurePoint(const Subject& subject, int64_t samples, double seconds) {
  const auto& [activation, model, inputs] = subject;
  DEEPPCR_ASSIGN_OR_RETURN(const auto expected,
                           SequentialAnswers(model, inputs, std::max(kJudged, samples)));
  Point point{.activation = activation,
              .depth = model->info().num_layers,
              .width = model->info().state_dim,
              .samples = samples,
              .newton = {"newton", {}},
              .chosen = {"auto", {}},
              .verdict = {}};
  Workload workload(model, inputs, samples);
  Candidate sequential{"sequential", {}};
  DEEPPCR_ASSIGN_OR_RETURN(sequential.options,
                           model->Find()->Resolve({.solver = "sequential"}, samples));
  DEEPPCR_RETURN_IF_ERROR(workload.Run(sequential.options, 0, false));
  point.sequential_stages = workload.reports()[0].dependent_stages;
  DEEPPCR_ASSIGN_OR_RETURN(point.newton.options,
                           model->Find()->Resolve({.solver = "newton"}, samples));
  DEEPPCR_ASSIGN_OR_RETURN(point.chosen.options,
                           model->Find()->Resolve({.solver = "auto"}, samples));
  DEEPPCR_ASSIGN_OR_RETURN(point.verdict, JudgeAt(point, &workload, point.newton, expected));
  DEEPPCR_RETURN_IF_ERROR(JudgeAt(point, &workload, point.chosen, expected).status());
  const Verdict& verdict = point.verdict;
  point.newton_ran = verdict.converged == verdict.samples && verdict.fallbacks == 0;
  DEEPPCR_RETURN_IF_ERROR(TimePoint(&workload, sequential, seconds, &point));
  return point;
}

std::vector<std::string> RowOf(const Point& point) {
  std::vector<std::string> row = {point.activation, absl::StrCat(point.depth),
                                  absl::StrCat(point.width), absl::StrCat(point.samples),
                                  FormatSeconds(point.sequential_seconds)};
  const std::string taken =
      absl::StrFormat("%s, %.2fx", std::string(point.chosen.options.solver), point.AutoOverBest());
  if (!point.newton_ran) {
    row.insert(row.end(), {"-", "-", "-", absl::StrCat(point.sequential_stages), "-", "-"});
    row.insert(row.end(), {"did not converge", taken});
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
                         : absl::StrFormat("newton loses %.1fx", 1 / point.Ratio()),
       taken});
  return row;
}

nlohmann::ordered_json JsonOf(const Point& point) {
  nlohmann::ordered_json json = {{"activation", point.activation},
                                 {"num_layers", point.depth},
                                 {"state_dim", point.width},
                                 {"samples", point.samples},
                                 {"sequential_seconds", point.sequential_seconds},
                                 {"sequential_stages", point.sequential_stages},
                                 {"newton_converged", point.newton_ran},
                                 {"auto_solver", std::string(point.chosen.options.solver)},
                                 {"auto_seconds", point.auto_seconds},
                                 {"auto_over_best", point.AutoOverBest()}};
  if (point.newton_ran) {
    json["newton_seconds"] = point.newton_seconds;
    json["newton"] = ToJson(point.newton, point.verdict);
  }
  return json;
}

class Sweep {
 public:
  explicit Sweep(const Flags& flags) : flags_(flags) {}

  absl::Status Run() {
    DEEPPCR_ASSIGN_OR_RETURN(const auto engine,
                             Engine::Create({.backend = flags_.backend, .num_threads = 1}));
    for (const int64_t depth : flags_.depths) {
      for (const int64_t width : flags_.widths) {
        if (depth * width * width > flags_.max_weights) continue;
        for (const Family& family : kFamilies)
          DEEPPCR_RETURN_IF_ERROR(MeasureModel(*engine, family, depth, width));
      }
    }
    DEEPPCR_RETURN_IF_ERROR(WriteFile("-", table_.Format()));
    if (!flags_.json.empty()) {
      const nlohmann::ordered_json json = {
          {"device", engine->device()}, {"left_out", left_out_}, {"rows", rows_}};
      DEEPPCR_RETURN_IF_ERROR(WriteFile(flags_.json, json.dump(2) + "\n"));
    }
    return wrong_;
  }

 private:
  bool TimeLeft() const { return flags_.max_seconds == 0 || SecondsSoFar() < flags_.max_seconds; }
  // Tells whoever reads along, and who may not see the end of the sweep.
  void Tell(const nlohmann::ordered_json& row) const {
    if (!flags_.json_lines) return;
    absl::PrintF("%s\n", row.dump());
    std::fflush(stdout);
  }
  double SecondsSoFar() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  absl::Status MeasureModel(const Engine& engine, const Family& family, int64_t depth,
                            int64_t width) {
    if (!TimeLeft()) {
      left_out_.push_back(
          {{"activation", family.activation}, {"num_layers", depth}, {"state_dim", width}});
      nlohmann::ordered_json line = left_out_.back();
      line["left_out"] = true;
      Tell(line);
      return absl::OkStatus();
    }
    const int64_t most = *std::max_element(flags_.samples.begin(), flags_.samples.end());
    DEEPPCR_ASSIGN_OR_RETURN(const Subject subject,
                             LoadSubject(engine, family, depth, width, most));
    for (const int64_t samples : flags_.samples) {
      if (samples * (depth + 1) * width > kMaxStates) continue;
      absl::FPrintF(stderr, "%s, L = %d, D = %d, B = %d\n", family.activation, depth, width,
                    samples);
      const auto point = MeasurePoint(subject, samples, flags_.seconds);
      if (point.ok()) {
        table_.AddRow(RowOf(*point));
        rows_.push_back(JsonOf(*point));
        Tell(rows_.back());
        continue;
      }
      // A wrong answer fails the sweep, but leaves the figures of the other points.
      if (!absl::IsInternal(point.status())) return point.status();
      absl::FPrintF(stderr, "%s\n", point.status().ToString());
      wrong_.Update(point.status());
    }
    return absl::OkStatus();
  }

  const Flags& flags_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Table table_{{{"f", Table::Align::kLeft},
                {"L"},
                {"D"},
                {"B"},
                {"sequential"},
                {"newton"},
                {"C"},
                {"iterations"},
                {"stages, sequential"},
                {"stages, newton"},
                {"fewer by"},
                {"time", Table::Align::kLeft},
                {"auto, over the best", Table::Align::kLeft}}};
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json left_out_ = nlohmann::ordered_json::array();
  absl::Status wrong_;
};

absl::Status RunSweep(const Flags& flags) {
  if (flags.backend == "cpu") DEEPPCR_RETURN_IF_ERROR(PinToCore(flags.core).status());
  return Sweep(flags).Run();
}

int Main(int argc, char** argv) {
  CLI::App app("Sequential against newton and auto over depths, widths and samples.",
               "sweep_bench");
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
  app.add_option("--max_seconds", flags.max_seconds,
                 "start no other model after so long; 0: no limit")
      ->capture_default_str();
  app.add_option("--json", flags.json, "also write the figures as JSON");
  app.add_flag("--json_lines", flags.json_lines, "print every point as a line of JSON at once");
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
