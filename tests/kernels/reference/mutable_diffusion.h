// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_REFERENCE_MUTABLE_DIFFUSION_H_
#define DEEPPCR_TESTS_KERNELS_REFERENCE_MUTABLE_DIFFUSION_H_

// Reverse processes whose numbers tests of the reference backend can change and spoil.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <random>
#include <span>
#include <vector>

#include "kernels/problem/spec.h"

namespace deeppcr {

struct DiffusionSizes {
  DenoiserKind kind = DenoiserKind::kResidualMlp;
  Activation activation = Activation::kSilu;
  int64_t dim = 2, width = 3, blocks = 2, steps = 4;
};

// A random model that takes vectors of 2, or class labels once TakeClasses is called. Its numbers
// live as long as the object.
class MutableDiffusion {
 public:
  explicit MutableDiffusion(const DiffusionSizes& sizes, uint32_t seed = 5) : generator_(seed) {
    const auto [kind, activation, dim, width, blocks, num_steps] = sizes;
    for (int64_t i = 0; i < num_steps; ++i) steps_.push_back(RandomStep());
    spec_ = {.state_dim = dim, .steps = steps_, .clip_range = 0.8};
    DenoiserSpec& net = spec_.denoiser;
    net = {.kind = kind, .hidden_dim = width, .num_blocks = blocks, .activation = activation};
    net.input = Dense(width, dim);
    net.output = Dense(dim, width);
    net.modulation = Dense(net.modulation_dim(), width);
    net.first_weight = Draw(blocks * width * width);
    net.first_bias = Draw(blocks * width);
    if (kind == DenoiserKind::kAdaLnMlp) {
      net.second_weight = Draw(blocks * width * width);
      net.second_bias = Draw(blocks * width);
      net.norm_weight = Draw(blocks * width);
      net.norm_bias = Draw(blocks * width);
    }
    for (int64_t i = 0; i < num_steps * width; ++i) time_embedding_.push_back(Normal());
    spec_.time_embedding = time_embedding_;
    spec_.condition = Dense(width, 2);
  }
  MutableDiffusion(const MutableDiffusion&) = delete;

  DiffusionSpec& spec() { return spec_; }
  std::vector<ReverseStep>& steps() { return steps_; }
  double Normal() { return normal_(generator_); }
  std::vector<double> State() {
    std::vector<double> z(spec_.state_dim);
    for (double& x : z) x = Normal();
    return z;
  }
  std::span<const float> Draw(int64_t count) {
    std::vector<float>& drawn = numbers_.emplace_back(count);
    for (float& x : drawn) x = static_cast<float>(0.7 * Normal());
    return drawn;
  }
  DenseSpec Dense(int64_t rows, int64_t cols) {
    return {.rows = rows, .cols = cols, .weight = Draw(rows * cols), .bias = Draw(rows)};
  }
  // Overwrites every number that the spec refers to.
  void Spoil() {
    for (std::vector<float>& numbers : numbers_) std::fill(numbers.begin(), numbers.end(), NAN);
    std::fill(time_embedding_.begin(), time_embedding_.end(), NAN);
    std::fill(steps_.begin(), steps_.end(), ReverseStep{.z_z = NAN});
  }
  void TakeClasses(int64_t count) {
    spec_.condition = {};
    spec_.num_classes = count;
    spec_.class_embedding = Draw(count * spec_.denoiser.hidden_dim);
  }

 private:
  ReverseStep RandomStep() {
    return {.x0_z = Normal(),
            .x0_m = 0.5 + std::fabs(Normal()),
            .z_z = 0.4 * Normal(),
            .z_m = 0.4 * Normal(),
            .z_x0 = Normal(),
            .sigma = std::fabs(Normal())};
  }

  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
  DiffusionSpec spec_;
  std::vector<ReverseStep> steps_;
  std::vector<double> time_embedding_;
  std::list<std::vector<float>> numbers_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_KERNELS_REFERENCE_MUTABLE_DIFFUSION_H_
