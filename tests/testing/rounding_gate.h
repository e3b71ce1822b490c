// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_
#define DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {

// A reverse process whose residual denoiser has, in one step, a relu that reads h0 + h1 - h2, which
// is nothing but rounding: the rows of the input layer add up. The second block multiplies what it
// lets through by `gain`. In all other steps its modulation holds it down.
class RoundingGate {
 public:
  RoundingGate(DiffusionOptions options, double gain)
      : random_(options.seed), process_(Denoiser(options)), spec_(process_.spec()) {
    DenoiserSpec& d = spec_.denoiser;
    Take(d.input.weight, &input_);
    Take(d.input.bias, &input_bias_);
    Take(d.first_weight, &first_);
    Take(d.first_bias, &first_bias_);
    Take(d.modulation.weight, &modulation_);
    Take(d.modulation.bias, &modulation_bias_);
    PlantInput();
    for (int block = 0; block < kBlocks; ++block)
      for (int i = 0; i < kHidden; ++i) {
        float* const row = &first_[(block * kHidden + i) * kHidden];
        for (int k = 0; k < kHidden; ++k) row[k] = i <= kUnit || k == kUnit ? 0 : row[k];
        if (block == 0 && i == kUnit) row[0] = row[1] = 1, row[2] = -1;
        if (block == 1 && i == kUnit + 1) row[kUnit] = static_cast<float>(gain);
      }
    PlantModulation();
  }
  RoundingGate(const RoundingGate&) = delete;

  const DiffusionSpec& spec() const { return spec_; }

 private:
  static constexpr int kHidden = 16, kBlocks = 2, kUnit = 3;

  static DiffusionOptions Denoiser(DiffusionOptions options) {
    options.kind = DenoiserKind::kResidualMlp;
    options.activation = Activation::kRelu;
    options.hidden_dim = kHidden;
    options.num_blocks = kBlocks;
    return options;
  }
  static void Take(std::span<const float>& from, std::vector<float>* to) {
    to->assign(from.begin(), from.end());
    from = *to;
  }
  // Sums of two rows are exact.
  void PlantInput() {
    std::uniform_int_distribution<int> part(-64, 64);
    const int64_t dim = spec_.state_dim;
    for (int64_t j = 0; j < dim; ++j) {
      input_[j] = static_cast<float>(part(random_)) / 64;
      input_[dim + j] = static_cast<float>(part(random_)) / 64;
      input_[2 * dim + j] = input_[j] + input_[dim + j];
      input_[kUnit * dim + j] = 0;
    }
    for (int i = 0; i <= kUnit; ++i) input_bias_[i] = 0;
  }
  // silu(0) is 0, and silu(-1) less than -0.2.
  void PlantModulation() {
    for (int i = 0; i <= kUnit; ++i) {
      for (int k = 0; k < kHidden; ++k) modulation_[i * kHidden + k] = 0;
      modulation_bias_[i] = first_bias_[i] = 0;
    }
    modulation_[kUnit * kHidden] = 100;
    time_.assign(spec_.time_embedding.begin(), spec_.time_embedding.end());
    const auto open = static_cast<int64_t>(random_() % static_cast<uint64_t>(spec_.num_steps()));
    for (int64_t l = 0; l < spec_.num_steps(); ++l) time_[l * kHidden] = l == open ? 0 : -1;
    spec_.time_embedding = time_;
  }

  std::mt19937_64 random_;
  const RandomDiffusion process_;
  DiffusionSpec spec_;
  std::vector<float> input_, input_bias_, first_, first_bias_, modulation_, modulation_bias_;
  std::vector<double> time_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_ROUNDING_GATE_H_
