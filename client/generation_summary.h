// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_GENERATION_SUMMARY_H_
#define DEEPPCR_CLIENT_GENERATION_SUMMARY_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// The cost of the samples that one solver answered.
struct SolverSummary {
  std::string solver;
  int64_t samples = 0;
  double median_iterations = 0;
  int32_t max_iterations = 0;
  int32_t max_warm_sweeps = 0;
  int32_t max_chord_corrections = 0;
  int64_t dependent_stages = 0;  // largest, like column_passes
  int64_t column_passes = 0;
  std::optional<double> error_estimate;        // largest; none unless every sample has one
  int64_t num_steps = 0;                       // L
  std::map<std::string, int64_t> unconverged;  // samples by termination
  std::map<std::string, int64_t> fallbacks;    // samples by the attempt's termination
  // The median time of the whole solve, over requests with samples that this solver answered; other
  // solvers may have answered some samples of these requests.
  double median_solve_seconds = 0;
};

// One row per solver, sorted by name.
std::vector<SolverSummary> SummarizeBySolver(std::span<const v1::SolveReport> reports);

// The rows as a table, and as JSON.
std::string SummaryTable(std::span<const SolverSummary> rows);
nlohmann::ordered_json SummaryJson(std::span<const SolverSummary> rows);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_GENERATION_SUMMARY_H_
