// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_
#define DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {

// A reverse process whose denoiser has, in one step, a relu that reads nothing but rounding, and
// multiplies what it lets through by `gain`. In all other steps the modulation holds it down.
//   residual MLP: h0 + h1 - h2, where the rows of the input layer add up
//   adaLN MLP: the sum of a normed vector, of `mean` more or less its deviation
class RoundingGate {
 public:
  RoundingGate(DiffusionOptions options, double gain, double mean = 1)
      : random_(options.seed),
        process_(Denoiser(options)),
        spec_(process_.spec()),
        hidden_(spec_.denoiser.hidden_dim) {
    DenoiserSpec& d = spec_.denoiser;
    Take(d.input.weight, &input_);
    Take(d.input.bias, &input_bias_);
    Take(d.first_weight, &first_);
    Take(d.first_bias, &first_bias_);
    Take(d.modulation.weight, &modulation_);
    Take(d.modulation.bias, &modulation_bias_);
    d.kind == DenoiserKind::kAdaLnMlp ? PlantSum(gain, mean) : PlantDifference(gain);
    time_.assign(spec_.time_embedding.begin(), spec_.time_embedding.end());
    const auto open = static_cast<int64_t>(random_() % static_cast<uint64_t>(spec_.num_steps()));
    for (int64_t l = 0; l < spec_.num_steps(); ++l) time_[l * hidden_] = l == open ? 0 : -1;
    spec_.time_embedding = time_;
  }
  RoundingGate(const RoundingGate&) = delete;

  const DiffusionSpec& spec() const { return spec_; }

 private:
  static constexpr int kUnit = 3;
  // silu(0) is 0, and silu(-1) less than -0.2.
  static constexpr float kShut = 100;

  static DiffusionOptions Denoiser(DiffusionOptions options) {
    options.activation = Activation::kRelu;
    options.hidden_dim = std::max<int64_t>(options.hidden_dim, 16);
    options.num_blocks = 2;
    return options;
  }
  static void Take(std::span<const float>& from, std::vector<float>* to) {
    to->assign(from.begin(), from.end());
    from = *to;
  }
  // Row i of a part of the modulation follows from the first element of the time embedding alone.
  void SetModulation(int64_t part, int64_t i, float weight, float bias) {
    const int64_t row = part * hidden_ + i;
    std::fill_n(modulation_.begin() + row * hidden_, hidden_, 0.0F);
    modulation_[row * hidden_] = weight;
    modulation_bias_[row] = bias;
  }

  void PlantDifference(double gain) {
    std::uniform_int_distribution<int> part(-64, 64);  // sums of two are exact
    const int64_t dim = spec_.state_dim;
    for (int64_t j = 0; j < dim; ++j) {
      input_[j] = static_cast<float>(part(random_)) / 64;
      input_[dim + j] = static_cast<float>(part(random_)) / 64;
      input_[2 * dim + j] = input_[j] + input_[dim + j];
      input_[kUnit * dim + j] = 0;
    }
    for (int64_t row = 0; row < 2 * hidden_; ++row)
      for (int64_t k = 0; k < hidden_; ++k)
        if (row % hidden_ <= kUnit || k == kUnit) first_[row * hidden_ + k] = 0;
    float* const reads = &first_[kUnit * hidden_];
    reads[0] = reads[1] = 1;
    reads[2] = -1;
    first_[(hidden_ + kUnit + 1) * hidden_ + kUnit] = static_cast<float>(gain);
    for (int i = 0; i <= kUnit; ++i) {
      input_bias_[i] = first_bias_[i] = 0;
      SetModulation(0, i, i == kUnit ? kShut : 0, 0);
    }
  }

  void PlantSum(double gain, double mean) {
    DenoiserSpec& d = spec_.denoiser;
    Take(d.second_weight, &second_);
    Take(d.norm_weight, &norm_weight_);
    Take(d.norm_bias, &norm_bias_);
    for (float& b : input_bias_) b += static_cast<float>(mean);
    std::fill_n(first_.begin(), hidden_ * hidden_, 0.0F);
    std::fill_n(first_.begin() + kUnit * hidden_, hidden_, 1.0F);
    std::fill_n(first_bias_.begin(), hidden_, 0.0F);
    std::fill_n(second_.begin(), hidden_ * hidden_, 0.0F);
    second_[(kUnit + 1) * hidden_ + kUnit] = static_cast<float>(gain);
    std::fill_n(norm_weight_.begin(), hidden_, 1.0F);
    std::fill_n(norm_bias_.begin(), hidden_, 0.0F);
    for (int64_t i = 0; i < hidden_; ++i) {
      SetModulation(0, i, kShut, 0);  // shift
      SetModulation(1, i, 0, 0);      // scale
      SetModulation(2, i, 0, 1);      // gate
    }
  }

  std::mt19937_64 random_;
  const RandomDiffusion process_;
  DiffusionSpec spec_;
  const int64_t hidden_;
  std::vector<float> input_, input_bias_, first_, first_bias_, modulation_, modulation_bias_;
  std::vector<float> second_, norm_weight_, norm_bias_;
  std::vector<double> time_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_
