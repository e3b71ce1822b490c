// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_
#define DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_

// Device times of dense stacks that a block of threads steps through: of the sequential kernel of
// their own, of the steps that all other solvers make, and of Newton over the whole GPU.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/stack/panel_sequential_kernel.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/stopwatch.h"
#include "tests/gpu/trial.h"

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
        sequential_(width_),
        final_(width_),
        outcomes_(1),
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
            sequential_.data(),
            nullptr,
            dependent_.data()};
  }
  // A Newton solve over the whole GPU, from the constant guess.
  ResidentStackArgs Solve(const IntervalTree& tree, int32_t interval, std::byte* workspace,
                          uint64_t* places) const {
    StoppingPolicy policy;
    policy.num_intervals = tree.num_intervals;
    const PanelStackView stack = Sequential(true).process;
    NewtonArgs newton = {NewtonPart::kWhole,
                         {steps_, dim_, nullptr, nullptr, stack.scale, true, stack.activation},
                         policy,
                         StartProgress(policy),
                         tree,
                         interval,
                         {nullptr, nullptr, 0, 0},
                         states_.data(),
                         final_.data(),
                         nullptr,
                         outcomes_.data(),
                         nullptr,
                         nullptr,
                         workspace,
                         false};
    return {stack, {newton, {places, 0}}};
  }
  Progress Outcome() const { return outcomes_.Host()[0]; }
  std::vector<float> SequentialStates() const { return sequential_.Host(); }
  std::vector<float> NewtonStates() const { return final_.Host(); }
  int width() const { return width_; }

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
  const OnDevice<float> weights_, biases_, states_, sequential_, final_;
  const OnDevice<Progress> outcomes_;
  const OnDevice<int64_t> dependent_;
};

// Newton with the least interval that one launch takes, beside the sequential state.
inline void TimeResidentStack(const PanelTrial& trial, int64_t steps, int dim,
                              const LaunchLimits& limits) {
  IntervalTree tree(0, 1);
  int32_t interval = 0, intervals = 0;
  while (tree.num_intervals == 0 && intervals != 1) {
    ++interval;
    intervals = static_cast<int32_t>((steps - 1) / interval + 1);
    tree = PlanResidentStack(trial.width(), intervals, interval, limits);
  }
  if (tree.num_intervals == 0) return;
  Must(LaunchBlocks(trial.Sequential(true), 1, nullptr), "sequential launch");
  const OnDevice<std::byte> workspace(
      std::vector<std::byte>(WorkspaceBytes(trial.width(), tree), std::byte{0}));
  const OnDevice<uint64_t> places(
      std::vector<uint64_t>(HelpedPlaces::Count(intervals, trial.width()), 0));
  auto solve = trial.Solve(tree, interval, workspace.data(), places.data());
  Begin("L=" + std::to_string(steps) + " D=" + std::to_string(dim) + " resident_stack");
  const Times times = Measure([&] {
    const cudaError_t error = LaunchBlocks(solve, nullptr);
    solve.solve.places.made += kMostGridPasses;
    return error;
  });
  Row row = {"resident_stack", steps, dim, 1, "relu", "constant"};
  row.interval = interval;
  row.shape = {trial.width(), 1, solve.num_blocks(), kResidentWarps, true};
  row.progress = trial.Outcome();
  row.converged = row.progress.termination == Termination::kConverged &&
                  WorstState(trial.NewtonStates(), trial.SequentialStates(), trial.width()) < 1e-3;
  Print(row, times);
}

inline void TimePanels(int64_t steps, int dim, const LaunchLimits& limits) {
  const PanelTrial trial(steps, dim);
  for (const bool in_sequence : {true, false}) {
    const char* const kernel = in_sequence ? "panel_sequential" : "panel_steps";
    Begin("L=" + std::to_string(steps) + " D=" + std::to_string(dim) + " " + kernel);
    const auto args = trial.Sequential(in_sequence);
    Print({kernel, steps, dim, 1, "relu"}, Measure([&] { return LaunchBlocks(args, 1, nullptr); }));
  }
  if (once) return;
  TimeResidentStack(trial, steps, dim, limits);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_PANEL_TRIAL_H_
