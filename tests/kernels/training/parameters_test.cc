// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/parameters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/testing/training_run.h"

namespace deeppcr::training {
namespace {

ParameterLayout WideLayout() {
  ModelConfig config = testing::SmallModel("mlp", 20);
  config.state_dim = 32;
  return ParameterLayout::Of(config).value();
}

TEST(ParametersTest, TensorsFollowOneAnotherWithoutGaps) {
  const ParameterLayout layout = WideLayout();
  int64_t end = 0;
  for (const ParameterTensor& tensor : layout.tensors()) {
    EXPECT_EQ(tensor.offset, end);
    int64_t size = 1;
    for (const int64_t extent : tensor.shape) size *= extent;
    EXPECT_EQ(tensor.size, size);
    end += tensor.size;
  }
  EXPECT_EQ(end, layout.size());
  EXPECT_EQ(layout.size(), 32 * 3 + 32 + 20 * 32 * 33 + 2 * 32 + 2);
}

TEST(ParametersTest, NormalWeightsHaveTheirDeviation) {
  const ParameterLayout layout = WideLayout();
  const std::vector<float> values = InitialParameters(layout, {.layer_gain = 3});
  const ParameterTensor& weights = layout.tensors()[2];
  ASSERT_EQ(weights.name, "layers.weight");
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < weights.size; ++i) {
    sum += values[weights.offset + i];
    squares += std::pow(values[weights.offset + i], 2);
  }
  const auto n = static_cast<double>(weights.size);
  const double deviation = 3 / std::sqrt(32.0);
  EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), deviation, 5 * deviation / std::sqrt(2 * n));
}

TEST(ParametersTest, SplitZeroesWhatTheOuterLayersShare) {
  const ParameterLayout layout = ParameterLayout::Of(testing::SmallModel()).value();
  std::vector<float> values(layout.size(), 1), untouched = values;
  SplitState(layout, 0, untouched);
  EXPECT_EQ(untouched, values);
  SplitState(layout, 2, values);
  const DenseStackSpec spec = layout.SpecOf(values);
  for (int64_t i = 0; i < 5; ++i) {
    const float written = i < 2 ? 1.0F : 0.0F;
    for (int64_t k = 0; k < 3; ++k) EXPECT_EQ(spec.encode.weight[i * 3 + k], written) << i;
    EXPECT_EQ(spec.encode.bias[i], written) << i;
    for (int64_t k = 0; k < 2; ++k) EXPECT_EQ(spec.decode.weight[k * 5 + i], 1 - written) << i;
  }
  for (const float value : spec.weights) EXPECT_EQ(value, 1);
  for (const float value : spec.biases) EXPECT_EQ(value, 1);
  for (const float value : spec.decode.bias) EXPECT_EQ(value, 1);
}

TEST(ParametersTest, OrthogonalLayersAreOrthogonalAndDiffer) {
  const ParameterLayout layout = WideLayout();
  const std::vector<float> values =
      InitialParameters(layout, {.orthogonal_layers = true, .layer_gain = 2});
  const float* weights = values.data() + layout.tensors()[2].offset;
  for (int64_t l = 0; l < 20; ++l) {
    const float* w = weights + l * 32 * 32;
    for (int64_t i = 0; i < 32; ++i) {
      for (int64_t j = 0; j < 32; ++j) {
        double product = 0;
        for (int64_t k = 0; k < 32; ++k) product += double{w[i * 32 + k]} * w[j * 32 + k];
        ASSERT_NEAR(product, i == j ? 4 : 0, 2e-6);
      }
    }
  }
  EXPECT_NE(weights[0], weights[32 * 32]);
}

TEST(ParametersTest, AreAFunctionOfTheSeed) {
  const ParameterLayout layout = WideLayout();
  EXPECT_EQ(InitialParameters(layout, {.seed = 4}), InitialParameters(layout, {.seed = 4}));
  EXPECT_NE(InitialParameters(layout, {.seed = 4}), InitialParameters(layout, {.seed = 5}));
}

}  // namespace
}  // namespace deeppcr::training
