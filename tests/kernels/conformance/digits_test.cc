// SPDX-License-Identifier: Apache-2.0
// The demo models on all held-out digits, through the engine, as a server would run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/engine.h"

namespace deeppcr {
namespace {

constexpr int64_t kPixels = 64, kClasses = 10;

// The values of a .npy file that the training script wrote: little-endian, row-major.
template <class T>
std::vector<T> ReadNpy(const std::string& name) {
  const auto text =
      ReadFile(std::string(DEEPPCR_SOURCE_DIR) + "/deploy/models/data/" + name, 1 << 24);
  if (!text.ok() || text->size() < 10) return {};
  const size_t header =
      10 + static_cast<unsigned char>((*text)[8]) + 256 * static_cast<unsigned char>((*text)[9]);
  std::vector<T> values((text->size() - header) / sizeof(T));
  std::memcpy(values.data(), text->data() + header, values.size() * sizeof(T));
  return values;
}

class DigitsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    engine_ = Engine::Create({.backend = "cpu", .num_threads = 1}).value();
    const std::string models = std::string(DEEPPCR_SOURCE_DIR) + "/deploy/models/repository/";
    model_ = engine_->LoadModel(models + GetParam() + "/1", nullptr, nullptr).value();
    inputs_ = ReadNpy<float>("digits_heldout.npy");
    labels_ = ReadNpy<int64_t>("digits_heldout_labels.npy");
    ASSERT_EQ(inputs_.size(), labels_.size() * kPixels);
    ASSERT_GE(labels_.size(), 400U);
  }

  struct Answers {
    std::vector<int64_t> labels;
    std::vector<SampleReport> reports;
  };
  Answers Ask(const SolveOptions& options) {
    Answers answers{.labels = std::vector<int64_t>(labels_.size()),
                    .reports = std::vector<SampleReport>(labels_.size())};
    std::vector<float> outputs(labels_.size() * kClasses);
    const auto resolved = model_->Find()->Resolve(options, 1);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    if (!resolved.ok()) return answers;
    RunItem item{
        .samples = {.num_samples = static_cast<int64_t>(labels_.size()), .inputs = inputs_},
        .outputs = outputs,
        .reports = answers.reports};
    EXPECT_TRUE(model_->Find()->Run(*resolved, {&item, 1}, nullptr).ok());
    for (size_t i = 0; i < labels_.size(); ++i) {
      const auto first = outputs.begin() + static_cast<int64_t>(i) * kClasses;
      answers.labels[i] = std::max_element(first, first + kClasses) - first;
    }
    return answers;
  }

  double Accuracy(const std::vector<int64_t>& labels) const {
    int right = 0;
    for (size_t i = 0; i < labels.size(); ++i) right += labels[i] == labels_[i] ? 1 : 0;
    return static_cast<double>(right) / static_cast<double>(labels.size());
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const LoadedModel> model_;
  std::vector<float> inputs_;
  std::vector<int64_t> labels_;
};

TEST_P(DigitsTest, EverySolverGivesTheLabelsOfTheSequentialOne) {
  const Answers sequential = Ask({.solver = "sequential"});
  EXPECT_GE(Accuracy(sequential.labels), GetParam() == "digits-resnet" ? 0.95 : 0.90);
  for (const std::string& solver : model_->info().solvers)
    EXPECT_EQ(Ask({.solver = solver}).labels, sequential.labels) << solver;
}

INSTANTIATE_TEST_SUITE_P(Models, DigitsTest, ::testing::Values("digits-resnet", "digits-mlp"),
                         [](const auto& test) {
                           return test.param == "digits-mlp" ? "mlp" : "resnet";
                         });

class DigitsResnetTest : public DigitsTest {
 protected:
  // The median of the Newton iterations; expects every digit to converge without a fallback.
  int32_t MedianIterations(int32_t interval, InitialGuess guess, int32_t sweeps) {
    const Answers answers = Ask({.solver = "newton",
                                 .rtol = 1e-5,
                                 .shooting_interval = interval,
                                 .warm_sweeps = sweeps,
                                 .initial_guess = guess,
                                 .jacobian_refresh = JacobianRefresh::kEveryIteration});
    std::vector<int32_t> iterations;
    for (const SampleReport& report : answers.reports) {
      EXPECT_TRUE(report.converged);
      EXPECT_FALSE(report.fallback);
      iterations.push_back(report.iterations);
    }
    std::nth_element(iterations.begin(), iterations.begin() + iterations.size() / 2,
                     iterations.end());
    const int32_t median = iterations[iterations.size() / 2];
    std::printf("C=%-3d guess=%-10s sweeps=%d: median K=%d\n", interval,
                std::string(ToString(guess)).c_str(), sweeps, median);
    return median;
  }
};

TEST_P(DigitsResnetTest, NewtonNeedsFewIterations) {
  for (const int32_t interval : {1, 16, 32}) {
    EXPECT_LE(MedianIterations(interval, InitialGuess::kConstant, 0), 9);
    EXPECT_LE(MedianIterations(interval, InitialGuess::kCalibrated, 6), 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DigitsResnetTest, ::testing::Values("digits-resnet"));

}  // namespace
}  // namespace deeppcr
