// SPDX-License-Identifier: Apache-2.0
#include "server/codec/reply_codec.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

std::shared_ptr<ServedModel> Served() {
  return std::make_shared<ServedModel>("m", 7, std::make_shared<FakeModel>(), nullptr);
}

// A job of version 7 of a model, done with these options.
class DoneJob : public Job {
 public:
  explicit DoneJob(const ResolvedOptions& resolved) {
    model = Served();
    system = model->model->Find();
    options = resolved;
  }
  void Done(absl::Status, const JobTimings&) override {}
};

TEST(ReplyCodecTest, TensorsAreWrittenInPlace) {
  v1::Tensor tensor;
  const std::span<float> values = AllocateTensor(std::array<int64_t, 2>{2, 3}, &tensor);
  ASSERT_EQ(values.size(), 6u);
  EXPECT_EQ(reinterpret_cast<const char*>(values.data()), tensor.data().data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % alignof(float), 0u);
  EXPECT_EQ(tensor.shape(0), 2);
  EXPECT_EQ(tensor.shape(1), 3);
  for (const float value : values) EXPECT_EQ(value, 0);
}

TEST(ReplyCodecTest, ReportsCarryEveryField) {
  SampleReport sample;
  sample.solver = "newton";
  sample.termination = Termination::kConverged;
  sample.converged = true;
  sample.iterations = 1;
  sample.chord_corrections = 2;
  sample.warm_sweeps = 3;
  sample.dependent_stages = 4;
  sample.column_passes = 5;
  sample.error_estimate = 6;
  sample.rounding_estimate = 7;
  sample.output_error_estimate = 8;
  sample.update = 9;
  ResolvedOptions options;
  options.solver = "newton";
  options.shooting_interval = 9;
  options.initial_guess = InitialGuess::kCalibrated;
  v1::SolveReport report;

  FillSolveReport(DoneJob(options), {&sample, 1}, {true, 0.5, {1, 2, 1, 4}, 11}, &report);

  ASSERT_EQ(report.samples_size(), 1);
  const v1::SampleReport& got = report.samples(0);
  EXPECT_EQ(got.solver(), "newton");
  EXPECT_EQ(got.termination(), "converged");
  EXPECT_TRUE(got.converged());
  EXPECT_FALSE(got.fallback() || got.has_attempt());
  EXPECT_EQ(got.iterations(), 1);
  EXPECT_EQ(got.chord_corrections(), 2);
  EXPECT_EQ(got.warm_sweeps(), 3);
  EXPECT_EQ(got.dependent_stages(), 4);
  EXPECT_EQ(got.column_passes(), 5);
  EXPECT_EQ(got.error_estimate(), 6);
  EXPECT_EQ(got.rounding_estimate(), 7);
  EXPECT_EQ(got.output_error_estimate(), 8);
  EXPECT_EQ(got.update(), 9);
  EXPECT_EQ(report.device(), "fake-device");
  EXPECT_EQ(report.plan_id(), "0123456789abcdef");
  EXPECT_EQ(report.model_version(), 7);
  EXPECT_EQ(report.batch_samples(), 11);
  EXPECT_EQ(report.queue_seconds(), 0.5);
  EXPECT_EQ(report.solve_seconds(), 2);
  EXPECT_EQ(report.shooting_interval(), 9);
  EXPECT_EQ(report.initial_guess(), "calibrated");
}

TEST(ReplyCodecTest, WhatWasNotFoundHasNoField) {
  const SampleReport sample{.solver = "newton", .termination = Termination::kMaxIterations};
  v1::SolveReport report;

  FillSolveReport(DoneJob({.solver = "newton"}), {&sample, 1}, {}, &report);

  const v1::SampleReport& got = report.samples(0);
  EXPECT_FALSE(got.has_error_estimate() || got.has_output_error_estimate());
  EXPECT_FALSE(got.has_rounding_estimate() || got.has_update());
  v1::GenerateProgress progress;
  FillProgress({.updates = 3, .update = 0.5}, 8, &progress);
  EXPECT_EQ(progress.update(), 0.5);
  EXPECT_FALSE(progress.has_error_estimate());
  progress.Clear();
  FillProgress({.error_estimate = 1e-5}, 8, &progress);
  EXPECT_FALSE(progress.has_update());
  EXPECT_EQ(progress.error_estimate(), 1e-5);
}

SampleReport FallenBack(Termination reason) {
  SampleReport sample{.converged = true, .fallback = true, .dependent_stages = 70};
  sample.attempt = {.solver = "picard",
                    .termination = reason,
                    .iterations = 1,
                    .chord_corrections = 2,
                    .warm_sweeps = 3,
                    .update = 4,
                    .error_estimate = 5,
                    .rounding_estimate = 6};
  return sample;
}

TEST(ReplyCodecTest, AFallbackCarriesEveryFieldOfTheAttempt) {
  const SampleReport sample = FallenBack(Termination::kSlow);
  v1::SolveReport report;

  FillSolveReport(DoneJob({.solver = "picard"}), {&sample, 1}, {}, &report);

  EXPECT_EQ(report.samples(0).termination(), "direct");
  EXPECT_TRUE(report.samples(0).fallback());
  const v1::Attempt& got = report.samples(0).attempt();
  EXPECT_EQ(got.solver(), "picard");
  EXPECT_EQ(got.termination(), "slow");
  EXPECT_EQ(got.iterations(), 1);
  EXPECT_EQ(got.chord_corrections(), 2);
  EXPECT_EQ(got.warm_sweeps(), 3);
  EXPECT_EQ(got.update(), 4);
  EXPECT_EQ(got.error_estimate(), 5);
  EXPECT_EQ(got.rounding_estimate(), 6);
}

// The row of a comparison with these reports.
v1::CompareRow Compared(const std::vector<SampleReport>& reports) {
  CompareInput input;
  input.request.num_samples = static_cast<int64_t>(reports.size());
  input.rows.resize(1);
  std::vector<ComparisonRow> rows(1);
  rows[0].outputs.resize(reports.size());
  rows[0].reports = reports;
  v1::CompareResponse response;
  FillCompare(FakeModel().plan_, input, rows, &response);
  return response.rows(0);
}

TEST(ReplyCodecTest, ComparedSamplesHaveAnEstimateIfEachOfThemHas) {
  SampleReport good{.termination = Termination::kConverged, .converged = true};
  good.error_estimate = 2e-5;
  SampleReport better = good;
  better.error_estimate = 1e-5;

  EXPECT_EQ(Compared({good, better}).error_estimate(), 2e-5);
  EXPECT_EQ(Compared({good, better}).unconverged_reasons_size(), 0);
  EXPECT_FALSE(Compared({good, SampleReport()}).has_error_estimate());
  EXPECT_FALSE(Compared({SampleReport(), good}).has_error_estimate());
}

TEST(ReplyCodecTest, ComparedSamplesAreCountedByWhyTheyFellBackOrDidNotConverge) {
  const SampleReport slow = FallenBack(Termination::kSlow);
  SampleReport overflow = FallenBack(Termination::kMaxIterations);
  overflow.converged = false;
  overflow.termination = Termination::kNonFinite;

  const v1::CompareRow row = Compared({slow, overflow, slow});

  EXPECT_EQ(row.fallbacks(), 3);
  ASSERT_EQ(row.fallback_reasons_size(), 2);
  EXPECT_EQ(row.fallback_reasons(0).termination(), "slow");
  EXPECT_EQ(row.fallback_reasons(0).samples(), 2);
  EXPECT_EQ(row.fallback_reasons(1).termination(), "max_iterations");
  EXPECT_EQ(row.fallback_reasons(1).samples(), 1);
  ASSERT_EQ(row.unconverged_reasons_size(), 1);
  EXPECT_EQ(row.unconverged_reasons(0).termination(), "non_finite");
}

// Choices come from the engine, which tells its defaults from measured choices.
TEST(ReplyCodecTest, PlansSayWhatTheNamesOfSolversStandFor) {
  const auto model = std::make_shared<FakeModel>();
  model->plan_.choices = {{.solver = "picard",
                           .shooting_interval = 4,
                           .initial_guess = InitialGuess::kCalibrated,
                           .warm_sweeps = 2,
                           .jacobian_refresh = JacobianRefresh::kWhileContracting}};
  v1::GetModelResponse response;

  FillModel({"m", 2, ModelState::kReady, "", std::make_shared<ServedModel>("m", 2, model, nullptr)},
            &response);

  std::map<std::string, v1::SolverChoice> choices;
  for (const v1::SolverChoice& choice : response.plan().choices())
    choices[choice.solver()] = choice;
  EXPECT_EQ(choices.size(), SolverNames().size() - 2);  // all but auto and sequential
  const v1::SolverChoice& picard = choices["picard"];
  EXPECT_TRUE(picard.measured());
  EXPECT_EQ(picard.shooting_interval(), 4);
  EXPECT_EQ(picard.initial_guess(), "calibrated");
  EXPECT_EQ(picard.warm_sweeps(), 2);
  EXPECT_EQ(picard.jacobian_refresh(), "while_contracting");
  EXPECT_EQ(picard.max_iterations(), 32);
  EXPECT_FALSE(choices["newton"].measured());
  EXPECT_EQ(choices["newton"].shooting_interval(), 1);
}

// A figure of 0 would mean the fastest and the most exact solver.
TEST(ReplyCodecTest, APlanHasNoFiguresOfWhatWasNotMeasured) {
  const auto model = std::make_shared<FakeModel>();
  model->plan_.entries = {{.max_samples = 1, .sequential_seconds = 0.5},
                          {.max_samples = 2,
                           .solver = "newton",
                           .parallel = {.shooting_interval = 8},
                           .sequential_seconds = 0.5,
                           .parallel_seconds = 0.25,
                           .parallel_iterations = 0,
                           .parallel_error = 0,
                           .parallel_stages = 7},
                          {.max_samples = 4, .parallel = {}, .parallel_stages = 7}};
  v1::GetModelResponse response;

  FillModel({"m", 2, ModelState::kReady, "", std::make_shared<ServedModel>("m", 2, model, nullptr)},
            &response);

  const v1::PlanEntry& alone = response.plan().entries(0);
  EXPECT_EQ(alone.seconds(), 0.5);
  EXPECT_EQ(alone.sequential_seconds(), 0.5);
  EXPECT_FALSE(alone.has_parallel_seconds() || alone.has_parallel_iterations());
  EXPECT_FALSE(alone.has_parallel_error() || alone.has_parallel_stages());
  const v1::PlanEntry& both = response.plan().entries(1);
  EXPECT_EQ(both.seconds(), 0.25);
  EXPECT_EQ(both.parallel_seconds(), 0.25);
  EXPECT_TRUE(both.has_parallel_iterations() && both.has_parallel_error()) << "found to be 0";
  EXPECT_EQ(both.parallel_stages(), 7);
  EXPECT_EQ(both.shooting_interval(), 8);
  const v1::PlanEntry& untimed = response.plan().entries(2);
  EXPECT_FALSE(untimed.has_seconds() || untimed.has_sequential_seconds());
  EXPECT_FALSE(untimed.has_parallel_seconds());
  EXPECT_EQ(untimed.parallel_stages(), 7);
}

TEST(ReplyCodecTest, CompareHidesTheBaselineThatWasNotAskedFor) {
  CompareInput input;
  input.request.num_samples = 1;
  input.sequential_added = true;
  input.rows.resize(3);
  input.rows[0].solver = "sequential";
  input.rows[1].solver = input.rows[2].solver = "newton";
  std::vector<ComparisonRow> rows(3);
  rows[0].solver = "sequential";
  rows[0].seconds = {4, 5, 6};
  rows[0].reports.resize(1);
  rows[0].reports[0].dependent_stages = 64;
  rows[1].solver = "newton";
  for (int i = 1; i <= 100; ++i) rows[1].seconds.push_back(i);
  rows[1].outputs = {1, 2, 3};
  rows[1].reports.resize(1);
  rows[2].error = "cannot run";
  v1::CompareResponse response;

  FillCompare(FakeModel().plan_, input, rows, &response);

  ASSERT_EQ(response.rows_size(), 2);
  EXPECT_EQ(response.sequential_stages(), 64);
  const v1::CompareRow& newton = response.rows(0);
  EXPECT_EQ(newton.min_seconds(), 1);
  EXPECT_EQ(newton.median_seconds(), 50);
  EXPECT_EQ(newton.p99_seconds(), 99);
  EXPECT_EQ(newton.speedup(), 5.0 / 50);
  EXPECT_FALSE(newton.converged());
  EXPECT_EQ(newton.outputs().shape(1), 3);
  EXPECT_EQ(response.rows(1).error(), "cannot run");
  EXPECT_EQ(response.rows(1).requested_solver(), "newton");
  EXPECT_EQ(response.rows(1).solver(), "");
}

TEST(ReplyCodecTest, AModelThatIsNotReadyHasOnlyItsSummary) {
  v1::GetModelResponse response;

  FillModel({"m", 2, ModelState::kFailed, "torn", nullptr}, &response);

  EXPECT_EQ(response.summary().name(), "m");
  EXPECT_EQ(response.summary().version(), 2);
  EXPECT_EQ(response.summary().state(), v1::MODEL_STATE_FAILED);
  EXPECT_EQ(response.summary().reason(), "torn");
  EXPECT_FALSE(response.has_plan());
}

}  // namespace
}  // namespace deeppcr::testing
