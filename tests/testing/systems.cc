// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/systems.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/base/strings.h"

namespace deeppcr::testing {
namespace {

std::vector<float> Normal(int64_t count, double deviation, std::mt19937_64& generator) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(normal(generator));
  return values;
}

}  // namespace

RandomSystem::RandomSystem(const StackOptions& shape) {
  std::mt19937_64 generator(shape.seed);
  const int64_t dim = shape.state_dim;
  const double deviation = shape.gain / std::sqrt(static_cast<double>(dim));
  weights_ = Normal(shape.num_steps * dim * dim, deviation, generator);
  biases_ = Normal(shape.num_steps * dim, shape.bias, generator);
  spec_ = {.num_steps = shape.num_steps,
           .state_dim = dim,
           .residual = shape.residual,
           .residual_scale =
               shape.residual
                   ? static_cast<float>(1 / std::sqrt(static_cast<double>(shape.num_steps)))
                   : 1.0F,
           .activation = shape.activation,
           .weights = weights_,
           .biases = biases_};
  if (shape.input_dim > 0) {
    encode_weight_ = Normal(dim * shape.input_dim,
                            1 / std::sqrt(static_cast<double>(shape.input_dim)), generator);
    encode_bias_ = Normal(dim, 0.1, generator);
    spec_.encode = {
        .rows = dim, .cols = shape.input_dim, .weight = encode_weight_, .bias = encode_bias_};
  }
  if (shape.output_dim > 0) {
    decode_weight_ =
        Normal(shape.output_dim * dim, 1 / std::sqrt(static_cast<double>(dim)), generator);
    decode_bias_ = Normal(shape.output_dim, 0.1, generator);
    spec_.decode = {
        .rows = shape.output_dim, .cols = dim, .weight = decode_weight_, .bias = decode_bias_};
  }
}

std::vector<float> RandomSystem::Inputs(int64_t n, uint64_t seed) const {
  std::mt19937_64 generator(seed);
  return Normal(n * spec_.input_dim(), 1.0, generator);
}

std::string Describe(const StackOptions& shape) {
  const auto name =
      std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                   [&](const ActivationName& n) { return n.activation == shape.activation; });
  return StrCat(shape.residual ? "resnet" : "mlp", " ", name->name, " L=", shape.num_steps,
                " D=", shape.state_dim, " gain=", shape.gain, " seed=", shape.seed);
}

double RelativeError(const std::vector<float>& a, const std::vector<double>& b, int64_t row_size,
                     double floor) {
  double worst = 0;
  for (size_t at = 0; at < b.size(); at += row_size) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < row_size; ++i) {
      const double difference = std::fabs(a[at + i] - b[at + i]);
      error = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                     : std::max(error, difference);
      size = std::max(size, std::fabs(b[at + i]));
    }
    if (error > 0) worst = std::max(worst, error / (size + floor));
  }
  return worst;
}

}  // namespace deeppcr::testing
