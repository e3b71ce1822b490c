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

// Reports of two requests: newton with 3, 5 and 9 iterations, one of them unconverged, and one
// sample that fell back.
std::vector<v1::SolveReport> Reports() {
  std::vector<v1::SolveReport> reports(2);
  for (v1::SolveReport& report : reports) report.set_num_steps(1000);
  reports[0].set_solve_seconds(0.5);
  reports[1].set_solve_seconds(0.25);
  AddSample("newton", 9, &reports[0])->set_dependent_stages(70);
  AddSample("newton", 3, &reports[0]);
  for (v1::SampleReport& sample : *reports[0].mutable_samples()) sample.set_error_estimate(3e-5);
  v1::SampleReport* unconverged = AddSample("newton", 5, &reports[1]);
  unconverged->set_converged(false);
  unconverged->set_termination("precision_limited");
  v1::SampleReport* fallback = AddSample("sequential", 32, &reports[1]);
  fallback->set_fallback(true);
  fallback->set_termination("direct");
  fallback->mutable_attempt()->set_termination("max_iterations");
  fallback->set_dependent_stages(1450);
  fallback->set_column_passes(33000);
  fallback->set_warm_sweeps(2);
  return reports;
}

TEST(GenerationSummaryTest, OneRowPerSolverThatAnswered) {
  EXPECT_EQ(
      SummaryTable(SummarizeBySolver(Reports())),
      "solver      samples  iterations        most  dependent stages     L  column passes  error "
      "estimate  converged                    fallbacks         solve per request\n"
      "----------  -------  ----------  ----------  ----------------  ----  -------------  "
      "--------------  ---------------------------  ----------------  -----------------\n"
      "newton            3           5           9                70  1000              0         "
      "      -  all but precision_limited 1  none                         250 ms\n"
      "sequential        1          32  32 +2 warm              1450  1000          33000         "
      "      -  all                          max_iterations 1             250 ms\n");
}

TEST(GenerationSummaryTest, JsonHoldsTheSameFigures) {
  const auto json = SummaryJson(SummarizeBySolver(Reports()));

  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["solver"], "newton");
  EXPECT_EQ(json[0]["median_iterations"], 5);
  EXPECT_EQ(json[0]["max_iterations"], 9);
  EXPECT_EQ(json[0]["unconverged"]["precision_limited"], 1);
  EXPECT_TRUE(json[0]["max_error_estimate"].is_null());
  EXPECT_EQ(json[1]["fallbacks"]["max_iterations"], 1);
  EXPECT_EQ(json[1]["max_dependent_stages"], 1450);
}

TEST(GenerationSummaryTest, TheLargestEstimateIsThereIfEverySampleHasOne) {
  v1::SolveReport report;
  for (const double estimate : {1e-5, 3e-5, 2e-5})
    AddSample("newton", 1, &report)->set_error_estimate(estimate);
  EXPECT_EQ(SummarizeBySolver({&report, 1})[0].error_estimate, 3e-5);
  EXPECT_EQ(SummaryJson(SummarizeBySolver({&report, 1}))[0]["max_error_estimate"], 3e-5);
  for (int i = 0; i < 3; ++i) {
    v1::SolveReport one_less = report;
    one_less.mutable_samples(i)->clear_error_estimate();
    EXPECT_EQ(SummarizeBySolver({&one_less, 1})[0].error_estimate, std::nullopt) << i;
  }
}

TEST(GenerationSummaryTest, NoErrorEstimateHidesNan) {
  for (const bool last : {false, true}) {
    v1::SolveReport report;
    for (int i = 0; i < 3; ++i) AddSample("newton", 1, &report)->set_error_estimate(1e-5);
    report.mutable_samples(last ? 2 : 0)
        ->set_error_estimate(std::numeric_limits<double>::quiet_NaN());

    EXPECT_TRUE(std::isnan(SummarizeBySolver({&report, 1})[0].error_estimate.value()));
  }
}

}  // namespace
}  // namespace deeppcr
