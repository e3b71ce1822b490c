// SPDX-License-Identifier: Apache-2.0
#include "server/reply_codec.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/testing/fake_engine.h"

namespace deeppcr {
namespace {

using testing::FakeModel;

std::shared_ptr<ServedModel> Served() {
  return std::make_shared<ServedModel>("m", 7, std::make_shared<FakeModel>(), nullptr);
}

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
  sample.fallback = true;
  sample.iterations = 1;
  sample.chord_corrections = 2;
  sample.warm_sweeps = 3;
  sample.dependent_stages = 4;
  sample.column_passes = 5;
  sample.error_estimate = 6;
  sample.rounding_estimate = 7;
  sample.output_error_estimate = 8;
  ResolvedOptions options;
  options.solver = "newton";
  options.shooting_interval = 9;
  options.initial_guess = InitialGuess::kCalibrated;
  v1::SolveReport report;

  FillSolveReport(*Served(), options, {&sample, 1}, {true, 0.5, {1, 2, 1, 4}, 11}, &report);

  ASSERT_EQ(report.samples_size(), 1);
  const v1::SampleReport& got = report.samples(0);
  EXPECT_EQ(got.solver(), "newton");
  EXPECT_EQ(got.termination(), "converged");
  EXPECT_TRUE(got.converged());
  EXPECT_TRUE(got.fallback());
  EXPECT_EQ(got.iterations(), 1);
  EXPECT_EQ(got.chord_corrections(), 2);
  EXPECT_EQ(got.warm_sweeps(), 3);
  EXPECT_EQ(got.dependent_stages(), 4);
  EXPECT_EQ(got.column_passes(), 5);
  EXPECT_EQ(got.error_estimate(), 6);
  EXPECT_EQ(got.rounding_estimate(), 7);
  EXPECT_EQ(got.output_error_estimate(), 8);
  EXPECT_EQ(report.device(), "fake-device");
  EXPECT_EQ(report.plan_id(), "0123456789abcdef");
  EXPECT_EQ(report.model_version(), 7);
  EXPECT_EQ(report.batch_samples(), 11);
  EXPECT_EQ(report.queue_seconds(), 0.5);
  EXPECT_EQ(report.solve_seconds(), 2);
  EXPECT_EQ(report.shooting_interval(), 9);
  EXPECT_EQ(report.initial_guess(), "calibrated");
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

  FillCompare(*Served(), input, rows, &response);

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
}  // namespace deeppcr
