// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <sstream>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  Metrics metrics_{{"sequential", "newton"}, "1.2.3", "cpu-test", "cpu"};
};

TEST_F(MetricsTest, SeriesAppearWhenTheyAreFirstUsed) {
  ModelMetrics* model = metrics_.ForModel("m", 3);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("solver=")));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("method=\"Forward\",model=\"m\"")));

  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(model->ForSolver("newton", Method::kForward), nullptr);
    EXPECT_NE(model->ForSolver("sequential", Method::kGenerate), nullptr);
    EXPECT_NE(model->ForSolver(kSeveralSolvers, Method::kCompare), nullptr);
  }
  EXPECT_EQ(model->ForSolver("auto", Method::kForward), nullptr);
  EXPECT_EQ(model->ForSolver("newton", Method::kForward)->iterations,
            model->ForSolver("newton", Method::kGenerate)->iterations);
  metrics_.CountRequest("m", Method::kForward, 0);
  metrics_.CountRequest("m", Method::kCompare, 0);

  const std::string text = metrics_.Text();
  EXPECT_THAT(text, Not(HasSubstr("method=\"ListModels\",model=\"m\"")));

  for (
      const char* line : {
          R"(deeppcr_request_duration_seconds_count{method="Forward",model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_queue_duration_seconds_count{method="Forward",model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_solve_duration_seconds_count{method="Compare",model="m",solver="several",version="3"} 0)",
          R"(deeppcr_iterations_count{model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_dependent_stages_count{model="m",solver="sequential",version="3"} 0)",
          R"(deeppcr_error_estimate_count{model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_batch_samples_count{model="m",version="3"} 0)",
          R"(deeppcr_requests_total{code="OK",method="Forward",model="m"} 1)",
          R"(deeppcr_request_duration_seconds_count{method="Generate",model="m",solver="sequential",version="3"} 0)",
          R"(deeppcr_requests_total{code="RESOURCE_EXHAUSTED",method="Compare",model="m"} 0)",
          R"(deeppcr_fallbacks_total{model="m",reason="max_iterations",version="3"} 0)",
          R"(deeppcr_queue_depth{model="m",version="3"} 0)",
          R"(deeppcr_speedup_ratio_count{model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_shadow_relative_error_count{model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_model_load_seconds_count{model="m",version="3"} 0)",
          R"(deeppcr_model_plan_seconds_count{model="m",version="3"} 0)",
          R"(deeppcr_model_memory_bytes{model="m",version="3"} 0)",
          R"(deeppcr_requests_in_flight{method="Forward"} 0)",
          "deeppcr_replies_dropped_total 0",
          R"(deeppcr_shadow_runs_total{outcome="measured"} 0)",
          R"(deeppcr_build_info{backend="cpu",device="cpu-test",version="1.2.3"} 1)",
      }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
}

TEST_F(MetricsTest, TextIsWellFormed) {
  ModelMetrics* model = metrics_.ForModel("m", 1);
  ObserveFinite(*model->ForSolver("newton", Method::kForward)->request_seconds, 0.003);

  std::istringstream text(metrics_.Text());

  const std::regex sample(R"re(deeppcr_[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? ([0-9.e+-]+|\+Inf))re");
  const std::regex comment(R"(# (HELP|TYPE) deeppcr_[a-z_]+ .+)");
  std::set<std::string> types;
  int samples = 0;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("#")) {
      EXPECT_TRUE(std::regex_match(line, comment)) << line;
      EXPECT_TRUE(!line.starts_with("# TYPE") || types.insert(line).second) << line;
      EXPECT_THAT(line, Not(::testing::EndsWith("summary")));
    } else {
      EXPECT_TRUE(std::regex_match(line, sample)) << line;
      ++samples;
    }
  }
  EXPECT_GT(samples, 100);
}

TEST_F(MetricsTest, NanAndInfinityAreNotObserved) {
  prometheus::Histogram& histogram = *metrics_.ForModel("m", 1)->batch_samples;

  ObserveFinite(histogram, std::nan(""));
  ObserveFinite(histogram, std::numeric_limits<double>::infinity());
  ObserveFinite(histogram, 2);

  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_batch_samples_count{model=\"m\",version=\"1\"} 1\n"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_batch_samples_sum{model=\"m\",version=\"1\"} 2\n"));
}

TEST_F(MetricsTest, UnknownModelsShareOneSeries) {
  for (int i = 0; i < 100; ++i) {
    metrics_.CountRequest("made-up-" + std::to_string(i), Method::kForward, 5);
  }

  const std::string text = metrics_.Text();

  EXPECT_THAT(
      text, HasSubstr(R"(deeppcr_requests_total{code="NOT_FOUND",method="Forward",model=""} 100)"));
  EXPECT_THAT(text, Not(HasSubstr("made-up")));
}

TEST_F(MetricsTest, CodesOutsideTheTableCountAsUnknown) {
  metrics_.ForModel("m", 1);
  metrics_.CountRequest("m", Method::kForward, 99);
  metrics_.CountRequest("m", Method::kForward, -1);

  EXPECT_THAT(metrics_.Text(),
              HasSubstr(R"(deeppcr_requests_total{code="UNKNOWN",method="Forward",model="m"} 2)"));
}

TEST_F(MetricsTest, AReloadKeepsItsSeries) {
  EXPECT_EQ(metrics_.ForModel("m", 1), metrics_.ForModel("m", 1));
  EXPECT_NE(metrics_.ForModel("m", 1), metrics_.ForModel("m", 2));
}

TEST_F(MetricsTest, ProcessMemoryIsPlausible) {
  const std::string text = metrics_.Text();
  const std::string name = "\ndeeppcr_process_resident_memory_bytes ";
  const size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos);
  const double bytes = std::stod(text.substr(at + name.size()));
  EXPECT_GT(bytes, 1e5);
  EXPECT_LT(bytes, 1e12);
}

TEST(BucketsTest, AscendAndCoverTheirRange) {
  const std::vector<double> durations = DurationBuckets();
  EXPECT_DOUBLE_EQ(durations.front(), 10e-6);
  EXPECT_GE(durations.back(), 30);
  for (const auto& buckets : {durations, IterationBuckets(), StageBuckets(), ErrorBuckets(),
                              BatchBuckets(), RatioBuckets()}) {
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end(), std::less_equal<>()));
  }
}

}  // namespace
}  // namespace deeppcr
