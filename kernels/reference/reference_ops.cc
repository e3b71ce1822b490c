// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace deeppcr::reference {
namespace {

double Sigmoid(double a) {
  return a >= 0 ? 1 / (1 + std::exp(-a)) : std::exp(a) / (1 + std::exp(a));
}

double Softplus(double a) { return std::max(a, 0.0) + std::log1p(std::exp(-std::fabs(a))); }

double NormalCdf(double a) { return 0.5 * std::erfc(-a / std::numbers::sqrt2); }
double NormalDensity(double a) {
  return std::exp(-0.5 * a * a) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

// The tanh approximation of GELU is a sigmoid(2 g) with g = sqrt(2/pi) (a + 0.044715 a^3).
double GeluTanhArgument(double a) {
  return 2 * std::sqrt(2 * std::numbers::inv_pi) * (a + 0.044715 * a * a * a);
}
double GeluTanhSlope(double a) {
  return 2 * std::sqrt(2 * std::numbers::inv_pi) * (1 + 3 * 0.044715 * a * a);
}

// W_l z + b_l.
std::vector<double> PreActivation(const DenseStackSpec& spec, int64_t l,
                                  std::span<const double> z) {
  const int64_t dim = spec.state_dim;
  std::vector<double> a(dim);
  for (int64_t i = 0; i < dim; ++i) {
    a[i] = spec.biases.empty() ? 0.0 : spec.biases[(l - 1) * dim + i];
    for (int64_t k = 0; k < dim; ++k) a[i] += spec.weights[((l - 1) * dim + i) * dim + k] * z[k];
  }
  return a;
}

}  // namespace

double Activate(Activation activation, double a) {
  switch (activation) {
    case Activation::kIdentity:
      return a;
    case Activation::kRelu:
      return a < 0 ? 0 : a;
    case Activation::kLeakyRelu:
      return a < 0 ? 0.01 * a : a;
    case Activation::kTanh:
      return std::tanh(a);
    case Activation::kSigmoid:
      return Sigmoid(a);
    case Activation::kSilu:
      return a * Sigmoid(a);
    case Activation::kGelu:
      return a * NormalCdf(a);
    case Activation::kGeluTanh:
      return a * Sigmoid(GeluTanhArgument(a));
    case Activation::kElu:
      return a > 0 ? a : std::expm1(a);
    case Activation::kSoftplus:
      return Softplus(a);
    case Activation::kMish:
      return a * std::tanh(Softplus(a));
  }
  return NAN;
}

double Differentiate(Activation activation, double a) {
  switch (activation) {
    case Activation::kIdentity:
      return 1;
    case Activation::kRelu:
      return a > 0 ? 1 : 0;
    case Activation::kLeakyRelu:
      return a > 0 ? 1 : 0.01;
    case Activation::kTanh: {
      // 1 - tanh(a)^2 would have no digits where tanh(a) is near 1.
      const double cosh = std::cosh(a);
      return 1 / (cosh * cosh);
    }
    case Activation::kSigmoid:
      return Sigmoid(a) * Sigmoid(-a);
    case Activation::kSilu:
      return Sigmoid(a) + a * Sigmoid(a) * Sigmoid(-a);
    case Activation::kGelu:
      return NormalCdf(a) + a * NormalDensity(a);
    case Activation::kGeluTanh: {
      const double s = Sigmoid(GeluTanhArgument(a));
      return s + a * s * Sigmoid(-GeluTanhArgument(a)) * GeluTanhSlope(a);
    }
    case Activation::kElu:
      return a > 0 ? 1 : std::exp(a);
    case Activation::kSoftplus:
      return Sigmoid(a);
    case Activation::kMish: {
      const double cosh = std::cosh(Softplus(a));
      return std::tanh(Softplus(a)) + a * Sigmoid(a) / (cosh * cosh);
    }
  }
  return NAN;
}

std::vector<double> Dense(const DenseSpec& spec, std::span<const double> x) {
  std::vector<double> y(spec.rows);
  for (int64_t i = 0; i < spec.rows; ++i) {
    y[i] = spec.bias.empty() ? 0.0 : spec.bias[i];
    for (int64_t k = 0; k < spec.cols; ++k) y[i] += spec.weight[i * spec.cols + k] * x[k];
    y[i] = Activate(spec.activation, y[i]);
  }
  return y;
}

std::vector<double> DenseSlopes(const DenseSpec& spec, std::span<const double> x) {
  DenseSpec linear = spec;
  linear.activation = Activation::kIdentity;
  std::vector<double> slopes = Dense(linear, x);
  for (double& slope : slopes) slope = Differentiate(spec.activation, slope);
  return slopes;
}

std::vector<double> DenseJacobian(const DenseSpec& spec, std::span<const double> x) {
  if (spec.rows == 0) {
    std::vector<double> unit(x.size() * x.size());
    for (size_t i = 0; i < x.size(); ++i) unit[i * x.size() + i] = 1;
    return unit;
  }
  std::vector<double> jacobian(spec.rows * spec.cols);
  const std::vector<double> slopes = DenseSlopes(spec, x);
  for (int64_t i = 0; i < spec.rows; ++i)
    for (int64_t k = 0; k < spec.cols; ++k)
      jacobian[i * spec.cols + k] = slopes[i] * spec.weight[i * spec.cols + k];
  return jacobian;
}

double LargestRowSum(const DenseSpec& layer) {
  double largest = layer.rows == 0 ? 1 : 0;
  for (int64_t i = 0; i < layer.rows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < layer.cols; ++k) sum += std::fabs(layer.weight[i * layer.cols + k]);
    largest = std::max(largest, sum);
  }
  return largest;
}

std::vector<double> Encode(const DenseStackSpec& spec, std::span<const double> inputs) {
  if (spec.encode.rows == 0) return {inputs.begin(), inputs.end()};
  return Dense(spec.encode, inputs);
}

std::vector<double> Decode(const DenseStackSpec& spec, std::span<const double> state) {
  if (spec.decode.rows == 0) return {state.begin(), state.end()};
  return Dense(spec.decode, state);
}

std::vector<double> Step(const DenseStackSpec& spec, int64_t l, std::span<const double> z) {
  std::vector<double> next = PreActivation(spec, l, z);
  for (int64_t i = 0; i < spec.state_dim; ++i) {
    next[i] = Activate(spec.activation, next[i]);
    if (spec.residual) next[i] = z[i] + double{spec.residual_scale} * next[i];
  }
  return next;
}

std::vector<double> StepSlopes(const DenseStackSpec& spec, int64_t l, std::span<const double> z) {
  std::vector<double> slopes = PreActivation(spec, l, z);
  for (double& slope : slopes)
    slope =
        Differentiate(spec.activation, slope) * (spec.residual ? double{spec.residual_scale} : 1.0);
  return slopes;
}

std::vector<double> StepJacobian(const DenseStackSpec& spec, int64_t l, std::span<const double> z) {
  const int64_t dim = spec.state_dim;
  const std::vector<double> slopes = StepSlopes(spec, l, z);
  std::vector<double> jacobian(dim * dim);
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t k = 0; k < dim; ++k) {
      jacobian[i * dim + k] = slopes[i] * spec.weights[((l - 1) * dim + i) * dim + k];
      if (spec.residual && i == k) jacobian[i * dim + k] += 1;
    }
  }
  return jacobian;
}

std::vector<double> Trajectory(const DenseStackSpec& spec, std::span<const double> z0) {
  std::vector<double> states(z0.begin(), z0.end());
  for (int64_t l = 1; l <= spec.num_steps; ++l) {
    const std::vector<double> z(states.end() - spec.state_dim, states.end());
    const std::vector<double> next = Step(spec, l, z);
    states.insert(states.end(), next.begin(), next.end());
  }
  return states;
}

}  // namespace deeppcr::reference
