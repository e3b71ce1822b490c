// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_
#define DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_

// Device times of the sequential kernels of dense stacks that a block of threads steps through: the
// one of their own, and the steps that all other solvers make.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/stack/panel_sequential_kernel.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/stopwatch.h"

namespace deeppcr::cuda {

// A random residual network whose layers lie as panels.
class PanelTrial {
 public:
  PanelTrial(int64_t steps, int dim)
      : steps_(steps),
        dim_(dim),
        width_(PanelWidth(dim)),
        weights_(Draw(steps, dim, width_)),
        biases_(std::vector<float>((steps + kLayersBehind) * width_)),
        states_(std::vector<float>(width_, 0.5F)),
        dependent_(1) {}

  BlockSequentialArgs<PanelStackView> Sequential(bool in_sequence) const {
    const float scale = 1 / std::sqrt(static_cast<float>(steps_));
    return {{steps_, dim_, width_, weights_.data(), biases_.data(), scale, true, Activation::kRelu,
             in_sequence},
            {1, 1},
            1,
            0,
            steps_,
            states_.data(),
            states_.data(),
            nullptr,
            dependent_.data()};
  }

 private:
  static std::vector<float> Draw(int64_t steps, int dim, int width) {
    std::mt19937 generator(5);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(dim)));
    const int64_t floats = int64_t{width} * width;
    std::vector<float> weights((steps + kLayersBehind) * floats);
    for (int64_t l = 0; l < steps; ++l)
      for (int i = 0; i < dim; ++i)
        for (int k = 0; k < dim; ++k)
          weights[l * floats + PanelPlace(width, i, k)] = normal(generator);
    return weights;
  }

  const int64_t steps_;
  const int dim_, width_;
  const OnDevice<float> weights_, biases_, states_;
  const OnDevice<int64_t> dependent_;
};

inline void TimePanels(int64_t steps, int dim) {
  const PanelTrial trial(steps, dim);
  for (const bool in_sequence : {true, false}) {
    const char* const kernel = in_sequence ? "panel_sequential" : "panel_steps";
    Begin("L=" + std::to_string(steps) + " D=" + std::to_string(dim) + " " + kernel);
    const auto args = trial.Sequential(in_sequence);
    Print({kernel, steps, dim, 1, "relu"}, Measure([&] { return LaunchBlocks(args, 1, nullptr); }));
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_
