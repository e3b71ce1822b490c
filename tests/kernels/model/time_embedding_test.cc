// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/time_embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/expect_error.h"

namespace deeppcr {
namespace {

std::vector<ReverseStep> Steps(const std::vector<int64_t>& timesteps) {
  std::vector<ReverseStep> steps;
  for (const int64_t timestep : timesteps) {
    steps.emplace_back();
    steps.back().timestep = timestep;
  }
  return steps;
}

struct Weights {
  std::vector<float> first = {1.0F, -0.5F, 2.0F, 0.25F, 0.0F, 1.5F, -1.0F, 3.0F};
  std::vector<float> first_bias = {0.5F, -0.25F};
  std::vector<float> second = {2.0F, -1.0F, 0.5F, 4.0F};
  std::vector<float> second_bias = {10.0F, -20.0F};
};

TimeMlp MlpOver(const Weights& weights) {
  return {.first = {2, 4, weights.first, weights.first_bias},
          .second = {2, 2, weights.second, weights.second_bias}};
}

TimeMlp Mlp() {
  static const Weights weights;
  return MlpOver(weights);
}

TEST(SinusoidalEmbeddingTest, IsCosinesThenSinesOfFallingFrequencies) {
  EXPECT_EQ(SinusoidalEmbedding(0, 6), (std::vector<double>{1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(SinusoidalEmbedding(3, 2), (std::vector<double>{std::cos(3.0), std::sin(3.0)}));
  // Frequencies 1 and 10000^(-1/2) = 0.01.
  const std::vector<double> embedding = SinusoidalEmbedding(700, 4);
  ASSERT_EQ(embedding.size(), 4U);
  EXPECT_NEAR(embedding[0], -0.8391043258807425, 1e-13);
  EXPECT_NEAR(embedding[1], 0.7539022543433046, 1e-13);
  EXPECT_NEAR(embedding[2], 0.5439705233633756, 1e-13);
  EXPECT_NEAR(embedding[3], 0.6569865987187891, 1e-13);
}

// Computed by hand at timestep 0: the embedding is 1, 1, 0, 0, the values before the activation are
// 1 and 1.25.
TEST(EmbedTimestepsTest, IsTheNetworkOfTheEmbedding) {
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };

  const std::vector<double> y = EmbedTimesteps(Mlp(), Steps({700, 0})).value();

  ASSERT_EQ(y.size(), 4U);
  EXPECT_NEAR(y[0], 8.577465367929861, 1e-12);
  EXPECT_NEAR(y[1], -11.434716203599908, 1e-12);
  EXPECT_NEAR(y[2], 10.0 + 2.0 * silu(1.0) - silu(1.25), 1e-14);
  EXPECT_NEAR(y[3], -20.0 + 0.5 * silu(1.0) + 4.0 * silu(1.25), 1e-14);
}

TEST(EmbedTimestepsTest, EachRowDependsOnItsTimestepAlone) {
  const std::vector<int64_t> timesteps = {999, 998, 700, 50, 49, 48, 47, 3, 2, 1, 0};
  const std::vector<double> all = *EmbedTimesteps(Mlp(), Steps(timesteps));

  ASSERT_EQ(all.size(), 2 * timesteps.size());
  for (size_t l = 0; l < timesteps.size(); ++l) {
    const std::vector<double> one = *EmbedTimesteps(Mlp(), Steps({timesteps[l]}));
    EXPECT_EQ(one, (std::vector<double>{all[2 * l], all[2 * l + 1]})) << timesteps[l];
  }
}

TEST(EmbedTimestepsTest, StopsWhenTheTokenFires) {
  CancelToken token;
  token.Cancel();
  testing::ExpectError(EmbedTimesteps(Mlp(), Steps({7}), &token), absl::StatusCode::kCancelled,
                       "stopped while timesteps were embedded");
}

TEST(EmbedTimestepsTest, RefusesWhatIsNotFiniteAsFloat) {
  Weights weights;
  weights.second[3] = weights.first_bias[1] = std::numeric_limits<float>::max();
  const TimeMlp mlp = MlpOver(weights);

  testing::ExpectError(EmbedTimesteps(mlp, Steps({7})), absl::StatusCode::kInvalidArgument,
                       "time_embed.mlp.{0,2}.{weight,bias}: expected an embedding that is finite "
                       "as float32, got 1.1579");
  testing::ExpectError(EmbedTimesteps(mlp, Steps({7})), absl::StatusCode::kInvalidArgument,
                       "at timestep 7");
}

}  // namespace
}  // namespace deeppcr
