// SPDX-License-Identifier: Apache-2.0
#include "server/observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The exposition without the lines whose figures change by themselves.
std::string WithoutProcess(const std::string& text) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("process_") == std::string::npos) kept += line + "\n";
  }
  return kept;
}

class MetricsTest : public ::testing::Test {
 protected:
  Metrics metrics_{{"sequential", "newton"}, "1.2.3", "cpu-test", "cpu"};
};

TEST_F(MetricsTest, SeriesAppearWhenTheyAreFirstUsed) {
  const auto model = metrics_.ForModel("m", 3);
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
          R"(deeppcr_speedup_ratio_count{method="Forward",model="m",solver="newton",version="3"} 0)",
          R"(deeppcr_shadow_relative_error_count{method="Forward",model="m",solver="newton",version="3"} 0)",
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

TEST_F(MetricsTest, TheBackendOfAModelIsTheOneOfItsLastLoad) {
  const auto model = metrics_.ForModel("m", 3);
  model->SetBackend("cuda", "first");
  model->SetBackend("cpu", "self_check");

  const std::string text = metrics_.Text();

  EXPECT_THAT(text, HasSubstr("deeppcr_model_backend{backend=\"cuda\",model=\"m\",version=\"3\","
                              "why=\"first\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("deeppcr_model_backend{backend=\"cpu\",model=\"m\",version=\"3\","
                              "why=\"self_check\"} 1\n"));
}

TEST_F(MetricsTest, TextIsWellFormed) {
  const auto model = metrics_.ForModel("m", 1);
  ObserveFinite(*model->ForSolver("newton", Method::kForward)->request_seconds, 0.003);

  std::istringstream text(metrics_.Text());

  const std::regex sample(
      R"re((deeppcr|process)_[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? ([0-9.e+-]+|\+Inf))re");
  const std::regex comment(R"(# (HELP|TYPE) (deeppcr|process)_[a-z_]+ .+)");
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
  const auto model = metrics_.ForModel("m", 1);
  prometheus::Histogram& histogram = *model->batch_samples;

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
  const auto model = metrics_.ForModel("m", 1);
  metrics_.CountRequest("m", Method::kForward, 99);
  metrics_.CountRequest("m", Method::kForward, -1);

  EXPECT_THAT(metrics_.Text(),
              HasSubstr(R"(deeppcr_requests_total{code="UNKNOWN",method="Forward",model="m"} 2)"));
}

TEST_F(MetricsTest, AReloadKeepsItsSeries) {
  const auto one = metrics_.ForModel("m", 1), again = metrics_.ForModel("m", 1),
             two = metrics_.ForModel("m", 2);
  EXPECT_EQ(one.get(), again.get());
  EXPECT_NE(one.get(), two.get());
}

TEST_F(MetricsTest, SeriesEndWithTheLastWhoHoldsThem) {
  const std::string before = metrics_.Text();
  auto loaded = metrics_.ForModel("m", 1), in_use = metrics_.ForModel("m", 1);
  for (const char* solver : {"sequential", "newton"}) {
    EXPECT_NE(loaded->ForSolver(solver, Method::kForward), nullptr);
    EXPECT_NE(loaded->ForSolver(solver, Method::kGenerate), nullptr);
  }
  loaded->stages();
  metrics_.CountRequest("m", Method::kForward, 0);
  loaded.reset();
  EXPECT_THAT(metrics_.Text(), HasSubstr("solver=\"newton\",version=\"1\""));
  in_use->batch_samples->Observe(1);
  in_use.reset();
  EXPECT_EQ(WithoutProcess(metrics_.Text()), WithoutProcess(before));

  // A later load starts from nothing.
  const auto later = metrics_.ForModel("m", 1);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_batch_samples_count{model=\"m\",version=\"1\"} 0\n"));
}

TEST_F(MetricsTest, CountersOfANameEndWithItsLastVersion) {
  auto one = metrics_.ForModel("m", 1), two = metrics_.ForModel("m", 2);
  metrics_.CountRequest("m", Method::kForward, 0);
  one.reset();
  metrics_.CountRequest("m", Method::kForward, 0);
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"({code="OK",method="Forward",model="m"} 2)"));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("model=\"m\",version=\"1\"")));
  two.reset();
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("model=\"m\"")));
  metrics_.CountRequest("m", Method::kForward, 0);
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"({code="OK",method="Forward",model=""} 1)"));
}

// Loads, requests and scrapes at a time: no series is removed that somebody else has just made.
TEST_F(MetricsTest, SeriesComeAndGoWhileOthersUseTheirs) {
  constexpr int kThreads = 4, kRounds = 200;
  const auto kept = metrics_.ForModel("m", 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kRounds; ++i) {
        const auto model = metrics_.ForModel("m", i % 3);
        model->ForSolver("newton", Method::kForward)->iterations->Observe(1);
        model->ForSolver("newton", Method::kGenerate)->iterations->Observe(1);
        model->stages()[0]->Observe(1);
        metrics_.CountRequest("m", Method::kForward, 0);
        if (t == 0) {
          EXPECT_THAT(metrics_.Text(), HasSubstr("model=\"m\",version=\"0\""));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("{code=\"OK\",method=\"Forward\",model=\"m\"} " +
                              std::to_string(kThreads * kRounds)));
  // All observations of the version that somebody held throughout: i % 3 == 0 in 67 rounds.
  EXPECT_THAT(text, HasSubstr("deeppcr_iterations_count{model=\"m\",solver=\"newton\",version="
                              "\"0\"} " +
                              std::to_string(2 * kThreads * 67)));
  EXPECT_THAT(text, Not(HasSubstr("version=\"1\"")));
}

TEST_F(MetricsTest, ProcessMemoryIsPlausible) {
  const std::string text = metrics_.Text();
  const std::string name = "\nprocess_resident_memory_bytes ";
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
                              BatchBuckets(), RatioBuckets(), ToleranceBuckets()}) {
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end(), std::less_equal<>()));
  }
}

}  // namespace
}  // namespace deeppcr
