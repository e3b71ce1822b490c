// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_PLAIN_TRAINING_H_
#define DEEPPCR_TESTS_TESTING_PLAIN_TRAINING_H_

// The loss of a dense stack as a function of its parameters, in plain double loops: what gradients
// of a training step are compared with, by differences.

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/model/config.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/training/dataset.h"

namespace deeppcr::testing {

// Reads the parameters in the order of training::ParameterLayout.
class PlainStack {
 public:
  explicit PlainStack(const ModelConfig& config) : config_(config) {}

  // The outputs of an input.
  std::vector<double> Outputs(std::span<const double> parameters,
                              std::span<const float> inputs) const {
    const int64_t dim = config_.state_dim;
    const double* next = parameters.data();
    std::vector<double> z(inputs.begin(), inputs.end());
    z = Dense(z, dim, config_.input_activation, next, next + dim * config_.input_dim);
    const double* const weights = next + dim * (config_.input_dim + 1);
    const double* const biases = weights + config_.num_layers * dim * dim;
    for (int64_t l = 0; l < config_.num_layers; ++l) {
      const std::vector<double> y =
          Dense(z, dim, config_.activation, weights + l * dim * dim, biases + l * dim);
      for (int64_t i = 0; i < dim; ++i)
        z[i] = config_.model_type == "resnet" ? z[i] + config_.residual_scale * y[i] : y[i];
    }
    const double* const output = biases + config_.num_layers * dim;
    return Dense(z, config_.output_dim, Activation::kIdentity, output,
                 output + config_.output_dim * dim);
  }

  // The mean loss of all samples: cross entropy where there are labels, else squares.
  double Loss(std::span<const double> parameters, const training::Dataset& data) const {
    double sum = 0;
    for (int64_t i = 0; i < data.num_samples; ++i) {
      const std::vector<double> y = Outputs(parameters, data.InputsOf(i));
      if (data.labels.empty()) {
        for (size_t k = 0; k < y.size(); ++k)
          sum += std::pow(y[k] - data.TargetsOf(i)[k], 2) / static_cast<double>(y.size());
        continue;
      }
      double all = 0;
      for (const double value : y) all += std::exp(value);
      sum += std::log(all) - y[data.labels[i]];
    }
    return sum / static_cast<double>(data.num_samples);
  }

 private:
  static std::vector<double> Dense(const std::vector<double>& x, int64_t rows,
                                   Activation activation, const double* weight,
                                   const double* bias) {
    std::vector<double> y(rows);
    for (int64_t i = 0; i < rows; ++i) {
      y[i] = bias[i];
      for (size_t k = 0; k < x.size(); ++k) y[i] += weight[i * x.size() + k] * x[k];
      y[i] = reference::Activate(activation, y[i]);
    }
    return y;
  }

  const ModelConfig config_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_PLAIN_TRAINING_H_
