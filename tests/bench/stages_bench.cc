// SPDX-License-Identifier: Apache-2.0
// Counts the dependent stages that newton needs as a residual network grows deeper, compared with
// the L of the sequential solver: with C = 1 and with the power of two that needs the fewest. The
// counts come from the reports; no clock is read. Every answer is compared with the sequential one.
// Writes JSON to stdout.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::bench {
namespace {

constexpr double kTolerance = 1e-4;
constexpr double kFloor = 1e-2;  // atol / rtol
constexpr int64_t kInputs = 4;

struct Flags {
  std::vector<int64_t> depths = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  int64_t width = 16;
};

// Networks whose states keep their size whatever L is.
struct Family {
  std::string name;
  Activation activation;
  double gain;
};
const Family kFamilies[] = {{"relu, gain 0.1", Activation::kRelu, 0.1},
                            {"tanh, gain 1", Activation::kTanh, 1.0}};

struct Count {
  int64_t interval = 0;
  SampleReport report;     // the report of the input with the most stages
  bool converged = false;  // whether every input converged
  double error = 0;        // error of the states, relative to the sequential ones
};

struct Point {
  std::string family;
  int64_t depth = 0;
  Count published, best;  // C = 1, and the C with the fewest stages
};

// A network, its inputs and the sequential answers.
struct Subject {
  testing::RandomSystem system;
  testing::SolverRig rig;
  std::vector<float> inputs;
  std::vector<double> expected;
};

Subject MakeSubject(const Family& family, int64_t depth, int64_t width) {
  testing::RandomSystem system({.num_steps = depth,
                                .state_dim = width,
                                .residual = true,
                                .activation = family.activation,
                                .gain = family.gain,
                                .seed = static_cast<uint64_t>(depth)});
  testing::SolverRig rig(*cpu::NewCpuBackend(), system.spec());
  std::vector<float> inputs = system.Inputs(kInputs, 1);
  const testing::Solved solved = rig.Solve({.solver = "sequential"}, inputs);
  return {std::move(system),
          std::move(rig),
          std::move(inputs),
          {solved.trajectory.begin(), solved.trajectory.end()}};
}

absl::StatusOr<Count> CountStages(const Subject& subject, int64_t interval) {
  const DenseStackSpec& spec = subject.system.spec();
  const testing::Solved solved = subject.rig.Solve(
      testing::OptionsFor("newton", spec.num_steps, interval, kTolerance), subject.inputs);
  if (solved.reports.empty()) return absl::InternalError("the solver failed");
  Count count{.interval = interval, .report = solved.reports[0], .converged = true};
  for (const SampleReport& report : solved.reports) {
    if (report.dependent_stages > count.report.dependent_stages) count.report = report;
    count.converged = count.converged && report.converged && !report.fallback;
  }
  count.error = testing::RelativeError(solved.trajectory, subject.expected, spec.state_dim, kFloor);
  if (count.error <= kTolerance) return count;
  return absl::InternalError(
      absl::StrCat("L = ", spec.num_steps, ", C = ", interval, ": newton is off by ", count.error));
}

// Tries C = 1, 2, 4, ... A solve has at least C stages, so intervals beyond the best count cannot
// win.
absl::StatusOr<Point> MeasurePoint(const Family& family, int64_t depth, int64_t width) {
  const Subject subject = MakeSubject(family, depth, width);
  Point point{.family = family.name, .depth = depth};
  for (int64_t interval = 1; interval <= depth; interval *= 2) {
    if (interval > 1 && interval >= point.best.report.dependent_stages) break;
    DEEPPCR_ASSIGN_OR_RETURN(const Count count, CountStages(subject, interval));
    if (interval == 1) point.published = point.best = count;
    const bool fewer = count.report.dependent_stages < point.best.report.dependent_stages;
    if (count.converged && (fewer || !point.best.converged)) point.best = count;
  }
  return point;
}

nlohmann::ordered_json JsonOf(const Count& count) {
  return {{"shooting_interval", count.interval},
          {"converged", count.converged},
          {"dependent_stages", count.report.dependent_stages},
          {"iterations", count.report.iterations},
          {"chord_corrections", count.report.chord_corrections},
          {"state_error", count.error}};
}

absl::Status RunStages(const Flags& flags) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Family& family : kFamilies) {
    for (const int64_t depth : flags.depths) {
      std::fprintf(stderr, "%s, L = %lld\n", family.name.c_str(), static_cast<long long>(depth));
      DEEPPCR_ASSIGN_OR_RETURN(const Point point, MeasurePoint(family, depth, flags.width));
      rows.push_back({{"family", point.family},
                      {"num_layers", depth},
                      {"state_dim", flags.width},
                      {"published", JsonOf(point.published)},
                      {"best", JsonOf(point.best)}});
    }
  }
  std::puts(rows.dump(2).c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Dependent stages of newton over the depth of residual networks.", "stages_bench");
  Flags flags;
  app.add_option("--depths", flags.depths)->delimiter(',')->capture_default_str();
  app.add_option("--width", flags.width)->check(CLI::PositiveNumber)->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = RunStages(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "stages_bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace deeppcr::bench

int main(int argc, char** argv) { return deeppcr::bench::Main(argc, argv); }
