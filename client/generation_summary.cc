// SPDX-License-Identifier: Apache-2.0
#include "client/generation_summary.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_format.h"
#include "client/latency.h"
#include "client/table.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// The values that medians are taken of.
struct Values {
  std::vector<double> iterations;
  std::vector<double> solve_seconds;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 50);
}

// The larger value; NaN counts as the largest, so that nothing hides it.
double Worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

std::optional<double> EstimateOf(const v1::SampleReport& sample) {
  if (!sample.has_error_estimate()) return std::nullopt;
  return sample.error_estimate();
}

// The largest estimate of the row and one more sample; none if any sample has none.
std::optional<double> Worst(const SolverSummary& row, const v1::SampleReport& sample) {
  const std::optional<double> estimate = EstimateOf(sample);
  if (row.samples == 0) return estimate;
  if (!estimate.has_value() || !row.error_estimate.has_value()) return std::nullopt;
  return Worse(*row.error_estimate, *estimate);
}

void AddSample(const v1::SampleReport& sample, int64_t num_steps, SolverSummary* row) {
  row->error_estimate = Worst(*row, sample);
  row->solver = sample.solver();
  ++row->samples;
  row->max_iterations = std::max(row->max_iterations, sample.iterations());
  row->max_warm_sweeps = std::max(row->max_warm_sweeps, sample.warm_sweeps());
  row->max_chord_corrections = std::max(row->max_chord_corrections, sample.chord_corrections());
  row->dependent_stages = std::max(row->dependent_stages, sample.dependent_stages());
  row->column_passes = std::max(row->column_passes, sample.column_passes());
  row->num_steps = std::max(row->num_steps, num_steps);
  if (!sample.converged()) ++row->unconverged[sample.termination()];
  if (sample.fallback()) ++row->fallbacks[sample.attempt().termination()];
}

std::string ConvergedText(const SolverSummary& row) {
  return row.unconverged.empty() ? "all" : StrCat("all but ", CountsText(row.unconverged));
}

}  // namespace

std::vector<SolverSummary> SummarizeBySolver(std::span<const v1::SolveReport> reports) {
  std::map<std::string, SolverSummary> rows;
  std::map<std::string, Values> values;
  for (const v1::SolveReport& report : reports) {
    std::set<std::string> solvers;
    for (const v1::SampleReport& sample : report.samples()) {
      AddSample(sample, report.num_steps(), &rows[sample.solver()]);
      values[sample.solver()].iterations.push_back(sample.iterations());
      solvers.insert(sample.solver());
    }
    for (const std::string& solver : solvers) {
      values[solver].solve_seconds.push_back(report.solve_seconds());
    }
  }
  std::vector<SolverSummary> summary;
  for (auto& [solver, row] : rows) {
    row.median_iterations = Median(std::move(values[solver].iterations));
    row.median_solve_seconds = Median(std::move(values[solver].solve_seconds));
    summary.push_back(std::move(row));
  }
  return summary;
}

std::string SummaryTable(std::span<const SolverSummary> rows) {
  using Align = Table::Align;
  Table table({{"solver", Align::kLeft},
               {"samples"},
               {"iterations"},
               {"most"},
               {"dependent stages"},
               {"L"},
               {"column passes"},
               {"error estimate"},
               {"converged", Align::kLeft},
               {"fallbacks", Align::kLeft},
               {"solve per request"}});
  for (const SolverSummary& row : rows) {
    table.AddRow(
        {row.solver, StrCat(row.samples), absl::StrFormat("%g", row.median_iterations),
         IterationsText(row.max_iterations, row.max_warm_sweeps, row.max_chord_corrections),
         StrCat(row.dependent_stages), StrCat(row.num_steps), StrCat(row.column_passes),
         FormatEstimate(row.error_estimate), ConvergedText(row),
         row.fallbacks.empty() ? "none" : CountsText(row.fallbacks),
         FormatSeconds(row.median_solve_seconds)});
  }
  return table.Format();
}

nlohmann::ordered_json SummaryJson(std::span<const SolverSummary> rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SolverSummary& row : rows) {
    nlohmann::ordered_json estimate = nullptr;
    if (row.error_estimate.has_value()) estimate = *row.error_estimate;
    list.push_back({{"solver", row.solver},
                    {"samples", row.samples},
                    {"median_iterations", row.median_iterations},
                    {"max_iterations", row.max_iterations},
                    {"max_warm_sweeps", row.max_warm_sweeps},
                    {"max_chord_corrections", row.max_chord_corrections},
                    {"max_dependent_stages", row.dependent_stages},
                    {"max_column_passes", row.column_passes},
                    {"max_error_estimate", estimate},
                    {"num_steps", row.num_steps},
                    {"unconverged", row.unconverged},
                    {"fallbacks", row.fallbacks},
                    {"median_solve_seconds", row.median_solve_seconds}});
  }
  return list;
}

}  // namespace deeppcr
