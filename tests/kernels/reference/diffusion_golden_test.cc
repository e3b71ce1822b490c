// SPDX-License-Identifier: Apache-2.0
// Whole sampling runs of the reference backend against diffusers (diffusion.json).

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>
#include <string>

#include "kernels/base/strings.h"
#include "kernels/model/reverse_process.h"
#include "kernels/reference/diffusion_ops.h"
#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_ops.h"
#include "tests/testing/golden.h"

namespace deeppcr::testing {
namespace {

using nlohmann::json;
using Vector = std::vector<double>;

// diffusers computes network, tables and steps in float32; the transcription differs by the order
// of operations only.
constexpr double kOfDiffusers = 2e-4;
constexpr double kOfTranscription = 1e-10;

const json& Golden() {
  static const json* const golden = new json(ReadGolden("diffusion.json"));
  return *golden;
}

const json& NetworkOf(const json& golden) {
  const json& networks = Golden()["networks"];
  const auto found = std::find_if(networks.begin(), networks.end(),
                                  [&](const json& n) { return n["name"] == golden["network"]; });
  EXPECT_NE(found, networks.end()) << golden["network"];
  return *found;
}

absl::StatusOr<ReverseProcess> Process(const json& golden) {
  const absl::StatusOr<SchedulerConfig> config = ParseSchedulerConfig(golden["config"].dump());
  if (!config.ok()) return config.status();
  EXPECT_TRUE(config->ignored_keys.empty());
  return BuildReverseProcess(*config, {.num_inference_steps = golden["num_inference_steps"],
                                       .eta = golden["eta"],
                                       .diffusers_compatible = golden["diffusers_compatible"]});
}

// A case of diffusion.json as a DiffusionSpec, whose numbers live as long as this object.
class GoldenDiffusion {
 public:
  GoldenDiffusion(const json& network, ReverseProcess process)
      : network_(network), process_(std::move(process)), num_blocks_(network["num_blocks"]) {
    const bool residual = network["kind"] == "residual_mlp";
    spec_ = {.state_dim = network["state_dim"],
             .steps = process_.steps,
             .clip_range = process_.clip_range};
    DenoiserSpec& net = spec_.denoiser;
    net = {.kind = residual ? DenoiserKind::kResidualMlp : DenoiserKind::kAdaLnMlp,
           .hidden_dim = network["hidden_dim"],
           .num_blocks = num_blocks_,
           .activation = ActivationOf(network["activation"]),
           .input = Dense({"input_proj"}),
           .output = Dense({"final_layer.linear"})};
    residual ? SetResidual(net) : SetAdaLn(net);
    if (network["condition"] == "class") {
      spec_.class_embedding = Tensors({"class_embed.weight"});
      spec_.num_classes = static_cast<int64_t>(network["tensors"]["class_embed.weight"].size());
    }
    if (network["condition"] == "vector") spec_.condition = Dense({"cond_embed"});
    for (const ReverseStep& step : process_.steps) EmbedTime(step.timestep);
    spec_.time_embedding = time_embedding_;
    vector_ = Flat<float>(network["vector"]);
    initial_noise_ = Flat<float>(network["initial_noise"]);
    step_noise_ = Flat<float>(network["step_noise"]);
  }
  GoldenDiffusion(const GoldenDiffusion&) = delete;

  const DiffusionSpec& spec() const { return spec_; }
  SampleInput input() const {
    return {.inputs = vector_.data(),
            .label = network_["label"],
            .initial_noise = initial_noise_.data(),
            .step_noise = step_noise_.data()};
  }

 private:
  // The values of these tensors, one after the other.
  std::span<const float> Tensors(const std::vector<std::string>& names) {
    std::vector<float>& all = numbers_.emplace_back();
    for (const std::string& name : names)
      for (const float x : Flat<float>(network_["tensors"].at(name))) all.push_back(x);
    return all;
  }
  // Layers that share their input, stacked into one.
  DenseSpec Dense(const std::vector<std::string>& names) {
    std::vector<std::string> weights, biases;
    for (const std::string& name : names) {
      weights.push_back(name + ".weight");
      biases.push_back(name + ".bias");
    }
    DenseSpec layer = {.weight = Tensors(weights), .bias = Tensors(biases)};
    layer.rows = std::ssize(layer.bias);
    layer.cols = std::ssize(layer.weight) / layer.rows;
    return layer;
  }
  std::vector<std::string> OfBlocks(const std::string& name) const {
    std::vector<std::string> names;
    for (int64_t i = 0; i < num_blocks_; ++i) names.push_back(StrCat("res_blocks.", i, ".", name));
    return names;
  }
  void SetResidual(DenoiserSpec& net) {
    net.first_weight = Tensors(OfBlocks("linear.weight"));
    net.first_bias = Tensors(OfBlocks("linear.bias"));
    net.modulation = Dense(OfBlocks("modulation"));
  }
  void SetAdaLn(DenoiserSpec& net) {
    net.first_weight = Tensors(OfBlocks("mlp.0.weight"));
    net.first_bias = Tensors(OfBlocks("mlp.0.bias"));
    net.second_weight = Tensors(OfBlocks("mlp.2.weight"));
    net.second_bias = Tensors(OfBlocks("mlp.2.bias"));
    net.norm_weight = Tensors(OfBlocks("in_ln.weight"));
    net.norm_bias = Tensors(OfBlocks("in_ln.bias"));
    std::vector<std::string> modulations = OfBlocks("adaLN_modulation.1");
    modulations.push_back("final_layer.adaLN_modulation.1");
    net.modulation = Dense(modulations);
  }
  // Appends to time_embedding_ the sinusoids of a timestep, sent through the two layers of
  // time_embed.mlp.
  void EmbedTime(double timestep) {
    DenseSpec first = Dense({"time_embed.mlp.0"});
    first.activation = Activation::kSilu;
    Vector sinusoids(first.cols);
    const int64_t half = first.cols / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = static_cast<double>(i) / static_cast<double>(half);
      const double angle = timestep * std::exp(-std::log(10000.0) * exponent);
      sinusoids[i] = std::cos(angle);
      sinusoids[half + i] = std::sin(angle);
    }
    const Vector hidden = reference::Dense(first, sinusoids);
    const Vector y = reference::Dense(Dense({"time_embed.mlp.2"}), hidden);
    time_embedding_.insert(time_embedding_.end(), y.begin(), y.end());
  }

  const json& network_;
  const ReverseProcess process_;
  const int64_t num_blocks_;
  DiffusionSpec spec_;
  std::vector<std::vector<float>> numbers_;
  Vector time_embedding_;
  std::vector<float> vector_, initial_noise_, step_noise_;
};

// z_0 .. z_L, computed by the reference family.
std::vector<Vector> Trajectory(const GoldenDiffusion& golden) {
  const auto family = reference::NewFamily(golden.spec());
  const auto sample = family->Encode(golden.input());
  std::vector<Vector> states = {sample->Initial()};
  for (int64_t l = 1; l <= family->shape.num_steps; ++l)
    states.push_back(sample->Step(l, states.back()));
  return states;
}

// The largest difference of two states relative to the second, in max norms. NaN is infinitely far.
double Distance(const Vector& got, const Vector& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double distance = std::fabs(got[i] - want[i]);
    difference = std::isnan(distance) ? INFINITY : std::max(difference, distance);
    size = std::max(size, std::fabs(want[i]));
  }
  return difference / size;
}

struct Worst {
  double distance = 0;
  std::string name;
};

class GoldenDiffusionTest : public ::testing::TestWithParam<int> {
 protected:
  static void TearDownTestSuite() {
    std::printf(
        "largest relative difference of a state: %.2e of diffusers (%s), %.2e of the "
        "transcription (%s)\n",
        worst_[0].distance, worst_[0].name.c_str(), worst_[1].distance, worst_[1].name.c_str());
  }

  const json& golden() const { return Golden()["cases"][static_cast<size_t>(GetParam())]; }

  void ExpectStates(const std::vector<Vector>& got, const char* key, double tolerance,
                    int witness) const {
    const auto want = golden()[key].get<std::vector<Vector>>();
    ASSERT_EQ(got.size(), want.size());
    for (size_t l = 0; l < want.size(); ++l) {
      ASSERT_EQ(got[l].size(), want[l].size());
      const double distance = Distance(got[l], want[l]);
      EXPECT_LE(distance, tolerance) << key << " z_" << l;
      if (distance > worst_[witness].distance) worst_[witness] = {distance, golden()["name"]};
    }
  }

 private:
  static inline std::array<Worst, 2> worst_;
};

TEST_P(GoldenDiffusionTest, EveryStateEqualsDiffusersAndItsFormulasInFloat64) {
  const ReverseProcess process = Process(golden()).value();
  const GoldenDiffusion diffusion(NetworkOf(golden()), process);
  const std::vector<Vector> states = Trajectory(diffusion);
  ExpectStates(states, "diffusers", kOfDiffusers, 0);
  ExpectStates(states, "float64", kOfTranscription, 1);
}

std::string GoldenName(const ::testing::TestParamInfo<int>& info) {
  return Golden()["cases"][static_cast<size_t>(info.param)]["name"];
}

int NumGoldenCases() { return static_cast<int>(Golden()["cases"].size()); }

INSTANTIATE_TEST_SUITE_P(All, GoldenDiffusionTest, ::testing::Range(0, NumGoldenCases()),
                         GoldenName);

// The combinations of options in the cases.
std::set<std::string> Combinations() {
  std::set<std::string> names;
  for (const json& golden : Golden()["cases"]) {
    const json& config = golden["config"];
    names.insert(StrCat(
        NetworkOf(golden)["kind"].get<std::string>(), " ", config["_class_name"].get<std::string>(),
        " ", golden["eta"].get<double>(), " ", config["prediction_type"].get<std::string>(), " ",
        config["timestep_spacing"].get<std::string>(), " ", config["clip_sample"].get<bool>()));
  }
  return names;
}

TEST(GoldenDiffusionCoverageTest, RunsEveryCombinationOfDenoiserAndScheduler) {
  const std::set<std::string> names = Combinations();
  for (const std::string_view kind : {"residual_mlp", "adaln_mlp"})
    for (const std::string_view sampler :
         {"DDPMScheduler 0", "DDIMScheduler 0", "DDIMScheduler 0.5"})
      for (const std::string_view prediction : {"epsilon", "sample", "v_prediction"})
        for (const std::string_view spacing : {"leading", "linspace", "trailing"})
          for (const bool clip : {false, true}) {
            const std::string name =
                StrCat(kind, " ", sampler, " ", prediction, " ", spacing, " ", clip);
            EXPECT_TRUE(names.contains(name)) << name;
          }
}

TEST(GoldenDiffusionCoverageTest, RunsEveryNetworkAndBothVariances) {
  std::map<std::string, int> networks, variances;
  for (const json& golden : Golden()["cases"]) {
    ++networks[golden["network"]];
    ++variances[golden["config"].value("variance_type", "none")];
  }
  EXPECT_EQ(networks.size(), Golden()["networks"].size());
  for (const json& network : Golden()["networks"]) EXPECT_GE(networks[network["name"]], 10);
  EXPECT_GT(variances["fixed_small"], 0);
  EXPECT_GT(variances["fixed_large"], 0);
}

// Without clipped and unclipped values, a clip that does nothing would pass.
TEST(GoldenDiffusionCoverageTest, ClipsSomeValuesAndNotOthers) {
  int clipped = 0, kept = 0;
  for (const json& golden : Golden()["cases"]) {
    if (!golden["config"]["clip_sample"].get<bool>()) continue;
    const GoldenDiffusion diffusion(NetworkOf(golden), *Process(golden));
    const DiffusionSpec& spec = diffusion.spec();
    const SampleInput input = diffusion.input();
    const Vector condition = reference::Condition(spec, input.inputs, input.label);
    const auto states = golden["float64"].get<std::vector<Vector>>();
    for (int64_t i = 0; i < spec.num_steps(); ++i) {
      const Vector m = reference::Denoise(spec, i, condition, states[i]);
      for (size_t k = 0; k < m.size(); ++k) {
        const double raw = spec.steps[i].x0_z * states[i][k] + spec.steps[i].x0_m * m[k];
        ++(std::fabs(raw) > spec.clip_range ? clipped : kept);
      }
    }
  }
  EXPECT_GT(clipped, 100);
  EXPECT_GT(kept, 100);
}

}  // namespace
}  // namespace deeppcr::testing
