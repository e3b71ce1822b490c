// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/training_system.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/base/losses.h"
#include "kernels/training/loss.h"
#include "tests/testing/larger.h"
#include "tests/testing/plain_training.h"

namespace deeppcr::training {
namespace {

ModelConfig ConfigOf(const std::string& type, Activation activation, int64_t layers, int64_t dim) {
  return {.model_type = type,
          .input_dim = 5,
          .output_dim = 3,
          .state_dim = dim,
          .num_layers = layers,
          .activation = activation,
          .residual_scale = type == "resnet" ? 0.5 : 1.0,
          .input_activation = Activation::kTanh};
}

Dataset RandomData(int64_t n, bool labelled) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  Dataset data = {.num_samples = n, .input_dim = 5, .target_dim = labelled ? 0 : 3};
  for (int64_t i = 0; i < n * 5; ++i) data.inputs.push_back(normal(random));
  for (int64_t i = 0; i < n * 3 && !labelled; ++i) data.targets.push_back(normal(random));
  for (int64_t i = 0; i < n && labelled; ++i) data.labels.push_back(static_cast<int32_t>(i % 3));
  return data;
}

std::vector<float> RandomParameters(const ParameterLayout& layout) {
  std::vector<float> values =
      InitialParameters(layout, {.orthogonal_layers = true, .layer_gain = 1.1});
  // Biases are not zero, or their part in the sums would go untested.
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 0.3F);
  for (const ParameterTensor& tensor : layout.tensors())
    for (int64_t i = 0; i < tensor.size && tensor.is_bias(); ++i)
      values[tensor.offset + i] = normal(random);
  return values;
}

// The gradient of the mean loss of all samples.
std::vector<float> GradientOf(const ParameterLayout& layout, std::span<const float> parameters,
                              const Dataset& data, const SystemOptions& options) {
  auto system = TrainingSystem::Create(layout, std::vector<float>(layout.size()), options).value();
  EXPECT_TRUE(system->Pack(parameters).ok());
  std::vector<float> outputs(data.num_samples * 3), of_outputs(outputs.size());
  TrainingSystem::ForwardCounts counts;
  EXPECT_TRUE(system->Forward(data.inputs, {}, outputs, &counts).ok());
  EXPECT_EQ(counts.fallbacks, 0);
  EXPECT_EQ(counts.iterations > 0, options.way == BackwardWay::kParallel);
  const double scale = 1.0 / static_cast<double>(data.num_samples);
  for (int64_t i = 0; i < data.num_samples; ++i) {
    const std::span<const float> y = std::span(outputs).subspan(i * 3, 3);
    const std::span<float> g = std::span(of_outputs).subspan(i * 3, 3);
    if (data.labels.empty()) {
      MeanSquaredError(y, data.TargetsOf(i), scale, g);
    } else {
      CrossEntropy(y, data.labels[i], scale, g);
    }
  }
  std::vector<float> gradient(layout.size());
  EXPECT_TRUE(system->Backward(of_outputs, gradient).value());
  return gradient;
}

struct Case {
  std::string type;
  Activation activation;
  int64_t layers, dim;
  bool labelled;
};

class TrainingGradientsTest : public ::testing::TestWithParam<Case> {};

// Every parameter, by differences of the loss in double.
TEST_P(TrainingGradientsTest, EqualDifferencesOfTheLossBothWaysOnBothBackends) {
  const Case& c = GetParam();
  const ModelConfig config = ConfigOf(c.type, c.activation, c.layers, c.dim);
  const ParameterLayout layout = ParameterLayout::Of(config).value();
  const std::vector<float> parameters = RandomParameters(layout);
  const Dataset data = RandomData(7, c.labelled);
  const testing::PlainStack plain(config);
  std::vector<double> at(parameters.begin(), parameters.end()), expected(layout.size());
  double largest = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    const double here = at[i], step = 1e-5;
    at[i] = here + step;
    const double above = plain.Loss(at, data);
    at[i] = here - step;
    expected[i] = (above - plain.Loss(at, data)) / (2 * step);
    at[i] = here;
    largest = testing::Larger(largest, std::fabs(expected[i]));
  }
  ASSERT_GT(largest, 1e-2) << "the differences say nothing";
  for (const std::string backend : {"reference", "cpu"}) {
    for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
      const SystemOptions options = {
          .backend = backend, .num_threads = 2, .way = way, .shooting_interval = 2, .rtol = 1e-5};
      const std::vector<float> gradient = GradientOf(layout, parameters, data, options);
      // Newton's states are right to its tolerance, the others to rounding.
      const double bound = way == BackwardWay::kParallel ? 5e-5 : 5e-6;
      for (const ParameterTensor& tensor : layout.tensors())
        for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i)
          ASSERT_NEAR(gradient[i], expected[i], bound * largest)
              << backend << ", " << ToString(way) << ", " << tensor.name << "[" << i - tensor.offset
              << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stacks, TrainingGradientsTest,
                         ::testing::Values(Case{"mlp", Activation::kTanh, 6, 4, true},
                                           Case{"mlp", Activation::kRelu, 3, 7, false},
                                           Case{"resnet", Activation::kRelu, 9, 5, true},
                                           Case{"resnet", Activation::kSilu, 5, 16, false},
                                           Case{"mlp", Activation::kGelu, 1, 33, true},
                                           Case{"resnet", Activation::kMish, 2, 1, false}),
                         [](const auto& test) {
                           return test.param.type + std::to_string(test.param.layers) + "x" +
                                  std::to_string(test.param.dim);
                         });

// One thread takes slopes of rectifiers from sides that forward has kept, several from the states.
TEST(TrainingSystemTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  for (const Activation activation :
       {Activation::kTanh, Activation::kRelu, Activation::kLeakyRelu}) {
    const ModelConfig config = ConfigOf("resnet", activation, 70, 9);
    const ParameterLayout layout = ParameterLayout::Of(config).value();
    const std::vector<float> parameters = RandomParameters(layout);
    for (const int64_t samples : {64, 13, 1}) {
      const Dataset data = RandomData(samples, true);
      for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
        const auto with = [&](int threads) {
          return GradientOf(layout, parameters, data, {.num_threads = threads, .way = way});
        };
        const std::vector<float> one = with(1);
        for (const int threads : {2, 3, 8}) EXPECT_EQ(with(threads), one) << threads;
      }
    }
  }
}

// What a system keeps of a forward is that of the last one, whatever came before it.
TEST(TrainingSystemTest, GoesBackThroughTheLastForwardOfMany) {
  struct Turn {
    int64_t samples;
    bool packs, goes_back;
  };
  constexpr Turn kTurns[] = {{64, true, true}, {13, false, true}, {40, false, false},
                             {3, true, true},  {64, false, true}, {9, false, true},
                             {9, true, true},  {64, true, false}, {1, false, true}};
  for (const Activation activation : {Activation::kRelu, Activation::kLeakyRelu}) {
    const ParameterLayout layout =
        ParameterLayout::Of(ConfigOf("resnet", activation, 70, 9)).value();
    std::vector<float> parameters = RandomParameters(layout);
    const auto system_of = [&](int threads) {
      return TrainingSystem::Create(layout, parameters, {.num_threads = threads}).value();
    };
    const auto blocked = system_of(1), plain = system_of(2);
    ASSERT_EQ(blocked->samples_together(), TrainingSystem::kSamplesTogether);
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* values) {
      for (float& value : *values) value = normal(random);
    };
    for (const Turn& turn : kTurns) {
      std::vector<float> inputs(turn.samples * 5), of_outputs(turn.samples * 3);
      fill(&inputs);
      fill(&of_outputs);
      if (turn.packs) {
        for (float& value : parameters) value *= 1 + 0.1F * normal(random);
      }
      const auto gradient_by = [&](TrainingSystem& system) {
        std::vector<float> outputs(of_outputs.size()), gradient(layout.size());
        TrainingSystem::ForwardCounts counts;
        if (turn.packs) {
          EXPECT_TRUE(system.Pack(parameters).ok());
        }
        EXPECT_TRUE(system.Forward(inputs, {}, outputs, &counts).ok());
        if (turn.goes_back) {
          EXPECT_TRUE(system.Backward(of_outputs, gradient).value());
        }
        return gradient;
      };
      EXPECT_EQ(gradient_by(*blocked), gradient_by(*plain)) << turn.samples;
    }
  }
}

// Widths that are padded, and one that is not.
TEST(TrainingSystemTest, TakesOtherWeightsToTheBitsOfANewSystem) {
  for (const std::string backend : {"reference", "cpu"}) {
    for (const int64_t dim : {3, 16, 33}) {
      const ParameterLayout layout =
          ParameterLayout::Of(ConfigOf("resnet", Activation::kTanh, 70, dim)).value();
      const std::vector<float> parameters = RandomParameters(layout);
      const Dataset data = RandomData(9, true);
      const auto outputs_of = [&](std::span<const float> first, bool pack) {
        auto system =
            TrainingSystem::Create(layout, first, {.backend = backend, .num_threads = 1}).value();
        if (pack) {
          EXPECT_TRUE(system->Pack(parameters).ok());
        }
        std::vector<float> outputs(9 * 3);
        TrainingSystem::ForwardCounts counts;
        EXPECT_TRUE(system->Forward(data.inputs, {}, outputs, &counts).ok());
        return outputs;
      };
      const std::vector<float> others(layout.size(), 0.25F);
      EXPECT_EQ(outputs_of(others, true), outputs_of(parameters, false)) << backend << dim;
      EXPECT_NE(outputs_of(others, false), outputs_of(parameters, false)) << backend << dim;
    }
  }
}

TEST(TrainingSystemTest, ASystemRefusesWeightsOfAnotherShape) {
  const auto layout_of = [](int64_t layers, int64_t dim) {
    return ParameterLayout::Of(ConfigOf("mlp", Activation::kTanh, layers, dim)).value();
  };
  const ParameterLayout layout = layout_of(4, 5), longer = layout_of(5, 5), wider = layout_of(4, 6);
  const std::vector<float> values(longer.size() + wider.size());
  for (const std::string backend : {"reference", "cpu"}) {
    SelectedBackends selected = SelectBackends(backend).value();
    const auto system =
        selected.backends[0].backend->NewSystem(layout.SpecOf(values), {.backward = true}).value();
    EXPECT_TRUE(system->Repack(layout.SpecOf(values), 0, 4).ok());
    for (const ParameterLayout* other : {&longer, &wider})
      EXPECT_TRUE(absl::IsInvalidArgument(system->Repack(other->SpecOf(values), 0, 4)));
  }
}

TEST(TrainingSystemTest, SaysWhereACotangentOverflows) {
  const ModelConfig config = ConfigOf("resnet", Activation::kIdentity, 40, 4);
  const ParameterLayout layout = ParameterLayout::Of(config).value();
  const std::vector<float> parameters =
      InitialParameters(layout, {.orthogonal_layers = true, .layer_gain = 30});
  const Dataset data = RandomData(2, true);
  for (const int threads : {1, 2}) {
    auto system = TrainingSystem::Create(layout, parameters, {.num_threads = threads}).value();
    std::vector<float> outputs(6), gradient(layout.size());
    TrainingSystem::ForwardCounts counts;
    const std::vector<float> small(data.inputs.size(), 1e-30F);
    ASSERT_TRUE(system->Forward(small, {}, outputs, &counts).ok());
    ASSERT_TRUE(std::isfinite(outputs[0]));
    EXPECT_FALSE(system->Backward(std::vector<float>(6, 1e20F), gradient).value()) << threads;
    EXPECT_EQ(gradient, std::vector<float>(layout.size())) << threads;
  }
}

}  // namespace
}  // namespace deeppcr::training
