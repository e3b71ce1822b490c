// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_RANDOM_DIFFUSION_H_
#define DEEPPCR_TESTS_TESTING_RANDOM_DIFFUSION_H_

// Seeded random reverse processes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr::testing {

struct DiffusionOptions {
  DenoiserKind kind = DenoiserKind::kResidualMlp;
  int64_t state_dim = 3;
  int64_t hidden_dim = 16;
  int64_t num_blocks = 1;
  int64_t num_steps = 4;
  bool clip = true;
  Activation activation = Activation::kSilu;
  int64_t num_classes = 0;
  int64_t condition_dim = 0;
  bool decoder = false;
  double output_gain = 0.5;   // gain of the output layer: weight of the network in a step
  double input_scale = 1;     // scale of the first layer; if small, a layer norm's epsilon shows
  double first_signal = 0.3;  // first signal of the default schedule; a small one is expansive
  bool ddpm = false;          // the schedule of Ho et al. 2020 instead
  // Bound of the random integers that, times a scale, are the weights; 0: normal weights. Integer
  // weights come without biases and, in a residual denoiser, without modulation, so that terms
  // cancel to nothing.
  int largest_integer = 0;
  // Of a memory, whose coefficients are made for every step, and of a learned scale of the noise,
  // for which the output layer has twice the rows.
  SamplerForm form;
  uint64_t seed = 1;
};

// Options of a residual denoiser with classes and the schedule of Ho et al.
inline DiffusionOptions ResidualDdpm(int64_t num_steps, uint64_t seed) {
  return {.state_dim = 5,
          .hidden_dim = 20,
          .num_blocks = 2,
          .num_steps = num_steps,
          .clip = false,
          .num_classes = 3,
          .output_gain = 0.3,
          .ddpm = true,
          .seed = seed};
}

// Options of an adaLN denoiser with conditions, a decoder and clipping.
inline DiffusionOptions AdaLnWithDecoder(int64_t num_steps, uint64_t seed) {
  return {.kind = DenoiserKind::kAdaLnMlp,
          .state_dim = 3,
          .hidden_dim = 16,
          .num_steps = num_steps,
          .condition_dim = 4,
          .decoder = true,
          .output_gain = 0.2,
          .first_signal = 0.6,
          .seed = seed};
}

// A reverse process with random weights. Owns what its DiffusionSpec points to.
class RandomDiffusion {
 public:
  explicit RandomDiffusion(const DiffusionOptions& options)
      : largest_integer_(options.largest_integer), random_(options.seed) {
    const int64_t dim = options.state_dim, hidden = options.hidden_dim, n = options.num_blocks;
    arrays_.reserve(32);
    spec_.state_dim = dim;
    spec_.clip_range = options.clip ? 1.0 : std::numeric_limits<double>::infinity();
    options.ddpm ? MakeDdpmSteps(options.num_steps) : MakeSteps(options);
    spec_.form = options.form;
    if (options.form != SamplerForm{}) AddForm();
    spec_.steps = steps_;
    DenoiserSpec& d = spec_.denoiser;
    d.kind = options.kind;
    d.hidden_dim = hidden;
    d.num_blocks = n;
    d.activation = options.activation;
    d.input = Layer(hidden, dim, 1.0, options.input_scale);
    const bool learned = options.form.noise_scale != NoiseScale::kFixed;
    d.output = Layer(learned ? 2 * dim : dim, hidden, options.output_gain);
    d.first_weight = Weights(n * hidden * hidden, Scale(hidden));
    d.first_bias = Biases(n * hidden, 0.1);
    if (options.kind == DenoiserKind::kAdaLnMlp) {
      d.second_weight = Weights(n * hidden * hidden, Scale(hidden));
      d.second_bias = Biases(n * hidden, 0.1);
      d.norm_weight = Array(n * hidden, 1.0);
      d.norm_bias = Array(n * hidden, 0.2);
    }
    d.modulation = Layer(d.modulation_dim(), hidden, 0.5);
    time_embedding_.resize(options.num_steps * hidden);
    const bool modulated = largest_integer_ == 0 || options.kind == DenoiserKind::kAdaLnMlp;
    for (double& y : time_embedding_) y = modulated ? normal_(random_) : 0;
    spec_.time_embedding = time_embedding_;
    spec_.num_classes = options.num_classes;
    if (options.num_classes > 0) spec_.class_embedding = Array(options.num_classes * hidden, 1.0);
    if (options.condition_dim > 0) spec_.condition = Layer(hidden, options.condition_dim, 1.0);
    if (options.decoder) {
      decoder_ = {Layer(21, dim, 1.0), Layer(70, 21, 1.0), Layer(9, 70, 1.0)};
      decoder_[0].activation = Activation::kTanh;
      decoder_[1].activation = Activation::kSilu;
      spec_.decoder = decoder_;
    }
  }

  const DiffusionSpec& spec() const { return spec_; }
  std::vector<ReverseStep>& steps() { return steps_; }
  std::vector<float> Vector(int64_t n) {
    const std::span<const float> values = Array(n, 1.0);
    return {values.begin(), values.end()};
  }

 private:
  static double Scale(int64_t cols) { return 1.0 / std::sqrt(static_cast<double>(cols)); }

  std::span<const float> Array(int64_t n, double scale) {
    std::vector<float>& array = arrays_.emplace_back(n);
    for (float& x : array) x = static_cast<float>(scale * normal_(random_));
    return array;
  }
  DenseSpec Layer(int64_t rows, int64_t cols, double gain, double scale = 1) {
    return {.rows = rows,
            .cols = cols,
            .weight = Weights(rows * cols, scale * gain * Scale(cols)),
            .bias = Biases(rows, scale * 0.1)};
  }
  std::span<const float> Weights(int64_t n, double scale) {
    if (largest_integer_ == 0) return Array(n, scale);
    std::uniform_int_distribution<int> integer(-largest_integer_, largest_integer_);
    std::vector<float>& array = arrays_.emplace_back(n);
    for (float& x : array) x = static_cast<float>(scale * integer(random_));
    return array;
  }
  std::span<const float> Biases(int64_t n, double scale) {
    return Array(n, largest_integer_ == 0 ? scale : 0);
  }
  // Makes steps in which z_z, z_m and sigma are zero at some steps and not at others; the last step
  // is free of noise.
  void MakeSteps(const DiffusionOptions& options) {
    const int64_t count = options.num_steps;
    for (int64_t l = 0; l < count; ++l) {
      const double a = options.first_signal + (0.9 - options.first_signal) *
                                                  static_cast<double>(l + 1) /
                                                  static_cast<double>(count);
      ReverseStep step;
      step.timestep = count - 1 - l;
      step.prev_timestep = count - 2 - l;
      step.x0_z = 1 / a;
      step.x0_m = -std::sqrt(1 - a * a) / a;
      step.z_z = l % 3 == 2 ? 0.0 : 0.5 * a;
      step.z_m = l % 2 == 0 ? 0.3 : 0.0;
      step.z_x0 = 0.45;
      step.sigma = l % 5 == 3 || l + 1 == count ? 0.0 : 0.1 + 0.05 * a;
      steps_.push_back(step);
    }
  }
  // Steps that read the memory and steps that do not, and both ways to write it.
  void AddForm() {
    for (size_t l = 0; l < steps_.size(); ++l) {
      ReverseStep& step = steps_[l];
      step.z_c = l % 4 == 3 ? 0.0 : (l % 2 == 0 ? 0.25 : -0.2);
      step.c_z = l % 3 == 0 ? 0.3 : 0.0;
      step.c_m = l % 2 == 0 ? -0.15 : 0.1;
      step.c_x0 = l % 5 == 4 ? 0.0 : 0.5;
      step.sigma_v = 0.3;
    }
  }
  // Makes steps from the linear betas of 1000 steps, scaled by 1000 / count and at most 1/2.
  void MakeDdpmSteps(int64_t count) {
    const auto n = static_cast<double>(count);
    std::vector<double> products = {1.0};
    for (int64_t t = 0; t < count; ++t) {
      const double beta = 1000 / n * (1e-4 + 0.0199 * static_cast<double>(t) / n);
      products.push_back(products.back() * (1 - std::min(beta, 0.5)));
    }
    for (int64_t t = count - 1; t >= 0; --t) {
      const double now = products[t + 1], before = products[t];
      ReverseStep step;
      step.timestep = t;
      step.prev_timestep = t - 1;
      step.x0_z = 1 / std::sqrt(now);
      step.x0_m = -std::sqrt(1 / now - 1);
      step.z_x0 = std::sqrt(before) * (1 - now / before) / (1 - now);
      step.z_z = std::sqrt(now / before) * (1 - before) / (1 - now);
      step.sigma = std::sqrt((1 - before) / (1 - now) * (1 - now / before));
      steps_.push_back(step);
    }
  }

  const int largest_integer_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<std::vector<float>> arrays_;
  std::vector<double> time_embedding_;
  std::vector<ReverseStep> steps_;
  std::vector<DenseSpec> decoder_;
  DiffusionSpec spec_;
};

// Small processes with either denoiser.
inline std::vector<RandomDiffusion> BothDenoisers(int64_t hidden_dim, int64_t num_steps) {
  std::vector<RandomDiffusion> processes;
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp})
    processes.emplace_back(DiffusionOptions{.kind = kind,
                                            .state_dim = 12,
                                            .hidden_dim = hidden_dim,
                                            .num_blocks = 2,
                                            .num_steps = num_steps,
                                            .output_gain = 0.2});
  return processes;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_RANDOM_DIFFUSION_H_
