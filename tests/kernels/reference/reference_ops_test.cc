// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/reference_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "tests/testing/golden.h"
#include "tests/testing/larger.h"

namespace deeppcr::testing {
namespace {

using nlohmann::json;
using Vector = std::vector<double>;

constexpr double kRelative = 1e-12;

double Largest(const Vector& a) {
  double largest = 0;
  for (const double x : a) largest = Larger(largest, std::fabs(x));
  return largest;
}

// Compares within 1e-12 of the largest element: terms of both signs cancel in single elements.
void ExpectEqual(const Vector& got, const Vector& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  ASSERT_FALSE(want.empty()) << what;
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], kRelative * Largest(want)) << what << " [" << i << "]";
}

// A system of systems.json.
class GoldenSystem {
 public:
  explicit GoldenSystem(const json& golden) : golden_(golden) {
    const json& config = golden["config"];
    spec_ = {.num_steps = config["num_layers"],
             .state_dim = config["state_dim"],
             .residual = config["model_type"] == "resnet",
             .residual_scale = config.value("residual_scale", 1.0F),
             .activation = ActivationOf(config["activation"]),
             .weights = Tensor("layers.weight", &weights_),
             .biases = Tensor("layers.bias", &biases_)};
    spec_.encode = Dense("input", config["state_dim"], config["input_dim"], &encode_);
    spec_.encode.activation = ActivationOf(config["input_activation"]);
    spec_.decode = Dense("output", config["output_dim"], config["state_dim"], &decode_);
    input_dim_ = config["input_dim"];
  }
  GoldenSystem(const GoldenSystem&) = delete;

  const DenseStackSpec& spec() const { return spec_; }
  int64_t num_samples() const { return static_cast<int64_t>(golden_["inputs"].size()); }
  std::string name() const { return golden_["name"]; }
  Vector Sample(const char* key, int64_t i) const { return Flat<double>(golden_[key][i]); }
  Vector InputGradient(int64_t i) const { return Flat<double>(golden_["gradients"]["inputs"][i]); }

 private:
  struct Layer {
    std::vector<float> weight, bias;
  };

  std::span<const float> Tensor(const std::string& name, std::vector<float>* to) const {
    if (golden_["tensors"].contains(name)) *to = Flat<float>(golden_["tensors"][name]);
    return *to;
  }
  DenseSpec Dense(const std::string& name, int64_t rows, int64_t cols, Layer* layer) const {
    if (!golden_["tensors"].contains(name + ".weight")) return {};
    return {.rows = rows,
            .cols = cols,
            .weight = Tensor(name + ".weight", &layer->weight),
            .bias = Tensor(name + ".bias", &layer->bias)};
  }

  const json& golden_;
  DenseStackSpec spec_;
  int64_t input_dim_ = 0;
  std::vector<float> weights_, biases_;
  Layer encode_, decode_;
};

// M^T g, for a row-major matrix M [rows, cols].
template <class T>
Vector TransposedProduct(const T& matrix, const Vector& g, int64_t cols) {
  Vector product(cols);
  for (size_t i = 0; i < g.size(); ++i)
    for (int64_t k = 0; k < cols; ++k) product[k] += matrix[i * cols + k] * g[i];
  return product;
}

// The gradient with respect to the inputs, from one transposed Jacobian after the other.
Vector PullBack(const DenseStackSpec& spec, const Vector& inputs, const Vector& trajectory,
                Vector g) {
  const int64_t dim = spec.state_dim;
  if (spec.decode.rows > 0) g = TransposedProduct(spec.decode.weight, g, dim);
  for (int64_t l = spec.num_steps; l >= 1; --l) {
    const std::span z = std::span(trajectory).subspan((l - 1) * dim, dim);
    g = TransposedProduct(reference::StepJacobian(spec, l, z), g, dim);
  }
  if (spec.encode.rows == 0) return g;
  DenseSpec linear = spec.encode;
  linear.activation = Activation::kIdentity;
  const Vector a = reference::Dense(linear, inputs);
  for (int64_t i = 0; i < dim; ++i) g[i] *= reference::Differentiate(spec.encode.activation, a[i]);
  return TransposedProduct(spec.encode.weight, g, spec.encode.cols);
}

TEST(ReferenceGoldenTest, ActivationsEqualPyTorch) {
  const json golden = ReadGolden("activations.json");
  const Vector points = Flat<double>(golden["points"]);
  ASSERT_FALSE(points.empty());
  EXPECT_EQ(golden["activations"].size(), std::size(kActivationNames));
  for (const ActivationName& row : kActivationNames) {
    const json& table = golden["activations"][std::string(row.name)];
    const Vector values = Flat<double>(table["values"]);
    const Vector derivatives = Flat<double>(table["derivatives"]);
    ASSERT_EQ(values.size(), points.size());
    ASSERT_EQ(derivatives.size(), points.size());
    for (size_t i = 0; i < points.size(); ++i) {
      EXPECT_NEAR(reference::Activate(row.activation, points[i]), values[i],
                  kRelative * std::fabs(values[i]))
          << row.name << " at " << points[i];
      // The golden derivatives themselves are good to 1e-14 (1 - t^2 cancels in the tails).
      EXPECT_NEAR(reference::Differentiate(row.activation, points[i]), derivatives[i],
                  kRelative * std::fabs(derivatives[i]) + 1e-14)
          << row.name << " at " << points[i];
    }
  }
}

TEST(ReferenceGoldenTest, SystemsEqualPyTorch) {
  const json golden = ReadGolden("systems.json");
  ASSERT_GE(golden["systems"].size(), 2 * std::size(kActivationNames));
  for (const json& object : golden["systems"]) {
    const GoldenSystem system(object);
    ASSERT_GE(system.num_samples(), 1);
    for (int64_t i = 0; i < system.num_samples(); ++i) {
      const DenseStackSpec& spec = system.spec();
      const Vector inputs = system.Sample("inputs", i);
      const Vector states = reference::Trajectory(spec, reference::Encode(spec, inputs));
      ExpectEqual(states, system.Sample("trajectory", i), system.name() + " trajectory");
      const Vector last(states.end() - spec.state_dim, states.end());
      ExpectEqual(reference::Decode(spec, last), system.Sample("outputs", i),
                  system.name() + " outputs");
      ExpectEqual(PullBack(spec, inputs, states, system.Sample("output_cotangent", i)),
                  system.InputGradient(i), system.name() + " gradient");
    }
  }
}

TEST(ReferenceOpsTest, OneIdentityLayerIsAnAffineMap) {
  const std::vector<float> weights = {1, 2, 3, 4}, biases = {10, 20};
  const DenseStackSpec spec = {
      .num_steps = 1, .state_dim = 2, .weights = weights, .biases = biases};
  EXPECT_EQ(reference::Trajectory(spec, Vector{1, -1}), (Vector{1, -1, 9, 19}));
  EXPECT_EQ(reference::StepJacobian(spec, 1, Vector{1, -1}), (Vector{1, 2, 3, 4}));
  EXPECT_EQ(reference::Encode(spec, Vector{5, 6}), (Vector{5, 6}));
  EXPECT_EQ(reference::Decode(spec, Vector{5, 6}), (Vector{5, 6}));
}

TEST(ReferenceOpsTest, ReluIsFlatAtExactlyZero) {
  const std::vector<float> weights = {1, -1, 0, 2};
  const DenseStackSpec spec = {
      .num_steps = 1, .state_dim = 2, .activation = Activation::kRelu, .weights = weights};
  // Pre-activations 0 and 6.
  EXPECT_EQ(reference::Step(spec, 1, Vector{3, 3}), (Vector{0, 6}));
  EXPECT_EQ(reference::StepJacobian(spec, 1, Vector{3, 3}), (Vector{0, 0, 0, 2}));
}

TEST(ReferenceOpsTest, ResidualAddsTheScaledBranch) {
  // Two steps of z + 0.5 relu(w z + b) with w = 2, b = -1 and w = -4, b = 16, from 3:
  // 3 + 0.5 * 5 = 5.5, then -22 + 16 < 0 leaves it.
  const std::vector<float> weights = {2, -4}, biases = {-1, 16};
  const DenseStackSpec spec = {.num_steps = 2,
                               .state_dim = 1,
                               .residual = true,
                               .residual_scale = 0.5F,
                               .activation = Activation::kRelu,
                               .weights = weights,
                               .biases = biases};
  EXPECT_EQ(reference::Trajectory(spec, Vector{3}), (Vector{3, 5.5, 5.5}));
  EXPECT_EQ(reference::StepJacobian(spec, 1, Vector{3}), (Vector{2}));
  EXPECT_EQ(reference::StepJacobian(spec, 2, Vector{5.5}), (Vector{1}));
}

TEST(ReferenceOpsTest, DenseMultipliesRowsAndActivates) {
  const std::vector<float> weight = {1, 2, 3, 0, -1, 0}, bias = {0.5F, 0.25F};
  const DenseSpec spec = {
      .rows = 2, .cols = 3, .weight = weight, .bias = bias, .activation = Activation::kRelu};
  EXPECT_EQ(reference::Dense(spec, Vector{1, 1, 1}), (Vector{6.5, 0}));
}

TEST(ReferenceOpsTest, StepJacobianEqualsCentralDifferences) {
  constexpr int64_t kDim = 3, kSteps = 2;
  std::mt19937 generator(5);
  std::normal_distribution<double> normal;
  std::vector<float> weights(kSteps * kDim * kDim), biases(kSteps * kDim);
  for (float& w : weights) w = static_cast<float>(normal(generator));
  for (float& b : biases) b = static_cast<float>(normal(generator));
  for (const ActivationName& row : kActivationNames) {
    for (const bool residual : {false, true}) {
      const DenseStackSpec spec = {.num_steps = kSteps,
                                   .state_dim = kDim,
                                   .residual = residual,
                                   .residual_scale = 0.7F,
                                   .activation = row.activation,
                                   .weights = weights,
                                   .biases = biases};
      Vector z(kDim);
      for (double& x : z) x = normal(generator);
      const Vector jacobian = reference::StepJacobian(spec, kSteps, z);
      constexpr double kStep = 1e-5;  // truncation and rounding both about 1e-10
      for (int64_t k = 0; k < kDim; ++k) {
        Vector up = z, down = z;
        up[k] += kStep;
        down[k] -= kStep;
        const Vector high = reference::Step(spec, kSteps, up);
        const Vector low = reference::Step(spec, kSteps, down);
        for (int64_t i = 0; i < kDim; ++i)
          EXPECT_NEAR(jacobian[i * kDim + k], (high[i] - low[i]) / (2 * kStep), 1e-8)
              << row.name << " residual " << residual << " d" << i << "/d" << k;
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
