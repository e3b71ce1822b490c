// SPDX-License-Identifier: Apache-2.0
#include "client/generation_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deeppcr {
namespace {

v1::SampleReport* AddSample(const char* solver, int iterations, v1::SolveReport* report) {
  v1::SampleReport* sample = report->add_samples();
  sample->set_solver(solver);
  sample->set_converged(true);
  sample->set_iterations(iterations);
  return sample;
}

// Two requests: newton 3, 5 and 9 iterations, and one sample that fell back.
std::vector<v1::SolveReport> Reports() {
  std::vector<v1::SolveReport> reports(2);
  for (v1::SolveReport& report : reports) report.set_num_steps(1000);
  reports[0].set_solve_seconds(0.5);
  reports[1].set_solve_seconds(0.25);
  AddSample("newton", 9, &reports[0])->set_dependent_stages(70);
  AddSample("newton", 3, &reports[0])->set_error_estimate(3e-5);
  AddSample("newton", 5, &reports[1])->set_converged(false);
  v1::SampleReport* fallback = AddSample("sequential", 32, &reports[1]);
  fallback->set_fallback(true);
  fallback->set_termination("max_iterations");
  fallback->set_dependent_stages(1450);
  fallback->set_column_passes(33000);
  fallback->set_warm_sweeps(2);
  return reports;
}

TEST(GenerationSummaryTest, OneRowPerSolverThatAnswered) {
  EXPECT_EQ(
      SummaryTable(SummarizeBySolver(Reports())),
      "solver      samples  iterations        most  dependent stages     L  column passes  error "
      "estimate  converged  fallbacks         solve per request\n"
      "----------  -------  ----------  ----------  ----------------  ----  -------------  "
      "--------------  ---------  ----------------  -----------------\n"
      "newton            3           5           9                70  1000              0         "
      "3.0e-05  all but 1  none                         250 ms\n"
      "sequential        1          32  32 +2 warm              1450  1000          33000         "
      "      0  all        max_iterations 1             250 ms\n");
}

TEST(GenerationSummaryTest, JsonHoldsTheSameFigures) {
  const auto json = SummaryJson(SummarizeBySolver(Reports()));

  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["solver"], "newton");
  EXPECT_EQ(json[0]["median_iterations"], 5);
  EXPECT_EQ(json[0]["max_iterations"], 9);
  EXPECT_EQ(json[0]["unconverged"], 1);
  EXPECT_EQ(json[1]["fallbacks"]["max_iterations"], 1);
  EXPECT_EQ(json[1]["max_dependent_stages"], 1450);
}

TEST(GenerationSummaryTest, NoErrorEstimateHidesNan) {
  for (const bool last : {false, true}) {
    v1::SolveReport report;
    for (int i = 0; i < 3; ++i) AddSample("newton", 1, &report)->set_error_estimate(1e-5);
    report.mutable_samples(last ? 2 : 0)
        ->set_error_estimate(std::numeric_limits<double>::quiet_NaN());

    EXPECT_TRUE(std::isnan(SummarizeBySolver({&report, 1})[0].error_estimate));
  }
}

}  // namespace
}  // namespace deeppcr
