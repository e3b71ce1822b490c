// SPDX-License-Identifier: Apache-2.0
// Gradients of the demo models through the engine, as a server would ask for them.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/engine.h"

namespace deeppcr {
namespace {

std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

class GradientsTest : public ::testing::TestWithParam<std::string> {
 protected:
  void Load(bool gradients) {
    engine_ = Engine::Create({.backend = "cpu", .num_threads = 2, .gradients = gradients}).value();
    model_ = engine_
                 ->LoadModel(std::string(DEEPPCR_SOURCE_DIR) + "/deploy/models/repository/" +
                                 GetParam() + "/1",
                             nullptr, nullptr)
                 .value();
    system_ = model_->Find();
    const ModelInfo& info = model_->info();
    point_ = info.generates() ? Normals(kSamples * info.state_dim, 3)
                              : Normals(kSamples * info.input_dim, 3);
    labels_.assign(info.num_classes > 0 ? kSamples : 0, 4);
  }

  // Samples at a point: the inputs, or the initial noise.
  SampleInputs SamplesAt(const std::vector<float>& point) const {
    if (!model_->info().generates()) return {.num_samples = kSamples, .inputs = point};
    return {.num_samples = kSamples, .seed = 5, .labels = labels_, .initial_noise = point};
  }

  std::vector<float> Outputs(const std::vector<float>& point, std::vector<float>* states) const {
    const ModelInfo& info = model_->info();
    std::vector<float> outputs(kSamples * info.output_dim);
    std::vector<SampleReport> reports(kSamples);
    states->resize(kSamples * (info.num_layers + 1) * info.state_dim);
    RunItem item{
        .samples = SamplesAt(point), .outputs = outputs, .trajectory = *states, .reports = reports};
    const auto options = system_->Resolve({.solver = "sequential"}, kSamples).value();
    EXPECT_TRUE(system_->Run(options, {&item, 1}, nullptr).ok());
    return outputs;
  }

  // The change of the outputs times weights, by a unit of the way.
  struct Difference {
    double value = 0, size = 0;  // the sum, and that of the terms' sizes
  };
  Difference DifferenceAlong(const std::vector<float>& direction, const std::vector<float>& weights,
                             float distance) const {
    std::vector<float> above = point_, below = point_, ignored;
    for (size_t i = 0; i < point_.size(); ++i) {
      above[i] += distance * direction[i];
      below[i] -= distance * direction[i];
    }
    const std::vector<float> high = Outputs(above, &ignored), low = Outputs(below, &ignored);
    Difference difference;
    for (size_t i = 0; i < high.size(); ++i) {
      const double term = weights[i] * (double{high[i]} - low[i]) / (2 * distance);
      difference.value += term;
      difference.size += std::fabs(term);
    }
    return difference;
  }

  static constexpr int64_t kSamples = 3;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const LoadedModel> model_;
  std::shared_ptr<const LoadedSystem> system_;
  std::vector<float> point_;
  std::vector<int32_t> labels_;
};

// Along a direction, by differences in float32; by both ways.
TEST_P(GradientsTest, AreThoseOfDifferences) {
  Load(true);
  ASSERT_NE(system_->backward_limits(), nullptr);
  const ModelInfo& info = model_->info();
  std::vector<float> states;
  const std::vector<float> outputs = Outputs(point_, &states);
  const std::vector<float> weights = Normals(std::ssize(outputs), 8);
  std::vector<float> gradient(point_.size());
  std::vector<BackwardReport> reports(kSamples);
  BackwardItem item{
      .samples = SamplesAt(point_), .states = states, .of_outputs = weights, .reports = reports};
  (info.generates() ? item.initial : item.inputs) = gradient;
  for (const BackwardOptions& options :
       {BackwardOptions{},
        BackwardOptions{.way = BackwardWay::kParallel, .shooting_interval = 16}}) {
    std::fill(gradient.begin(), gradient.end(), 0.0F);
    ASSERT_TRUE(system_->GoBack(options, {&item, 1}).ok());
    const std::vector<float> direction = Normals(std::ssize(point_), 11);
    double along = 0;
    for (size_t i = 0; i < point_.size(); ++i) along += double{gradient[i]} * direction[i];
    const Difference near = DifferenceAlong(direction, weights, 2e-2F);
    const Difference far = DifferenceAlong(direction, weights, 4e-2F);
    // What the longer difference is off by, of which the shorter one has a quarter, and rounding.
    const double known = std::fabs(far.value - near.value) + 1e-3 * near.size;
    EXPECT_NEAR(along, near.value, known);
    EXPECT_LT(known, 0.02 * near.size) << "the differences say nothing";
    for (const BackwardReport& report : reports)
      EXPECT_EQ(report.termination, Termination::kDirect);
  }
}

TEST_P(GradientsTest, AreNoneUnlessTheEngineLoadsThem) {
  Load(false);
  EXPECT_EQ(system_->backward_limits(), nullptr);
  EXPECT_TRUE(absl::IsUnimplemented(system_->GoBack({}, {})));
}

INSTANTIATE_TEST_SUITE_P(DemoModels, GradientsTest,
                         ::testing::Values("digits-mlp", "digits-resnet", "digits-ddpm",
                                           "digits-ddpm-onnx", "digits-class", "digits-pixels",
                                           "swissroll-ddpm"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace deeppcr
