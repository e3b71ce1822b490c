// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_WIDE_TRIAL_H_
#define DEEPPCR_TESTS_GPU_WIDE_TRIAL_H_

// Times of the sequential kernels of a wide adaLN denoiser: by all blocks of the GPU, which keep
// its layers, and by a cluster, which reads them in every step. Both have to give the same bits.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/gpu/stopwatch.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {

// Weights are random and lie as they were drawn.
class WideTrial {
 public:
  WideTrial(int64_t steps, int dim, int hidden, int num_blocks, const LaunchLimits& limits)
      : steps_(steps),
        dim_(dim),
        hidden_(PanelWidth(hidden)),
        num_blocks_(num_blocks),
        cols_(PanelWidth(dim)),
        input_(Draw(hidden_ * cols_, 1 / std::sqrt(static_cast<float>(dim)))),
        output_(Draw(cols_ * hidden_, 1 / std::sqrt(static_cast<float>(hidden)))),
        inner_(Draw(int64_t{2} * num_blocks * hidden_ * hidden_,
                    1 / std::sqrt(static_cast<float>(hidden)))),
        zeros_(std::vector<float>(num_blocks * hidden_, 0.0F)),
        tables_(Draw(steps * (3 * num_blocks + 2) * hidden_, 0.3F)),
        noise_(Draw(steps * dim, 1)),
        initial_(Draw(WarpWidth(dim), 1)),
        final_(WarpWidth(dim)),
        coefficients_(std::vector<ReverseCoefficients>(steps, {1, -0.1F, 0.99F, 0, 0.01F, 0.01F})),
        table_of_(std::vector<int32_t>{0}),
        dependent_(1),
        plan_(PlanGrid(View(), limits)),
        places_(std::vector<uint64_t>(plan_.bytes() / sizeof(uint64_t), 0)) {}

  DiffusionView View() const {
    const int64_t floats = int64_t{num_blocks_} * hidden_ * hidden_;
    const DenoiserView denoiser = {.ada_ln = true,
                                   .activation = Activation::kSilu,
                                   .state_dim = dim_,
                                   .state_cols = cols_,
                                   .hidden_dim = hidden_,
                                   .hidden_width = hidden_,
                                   .num_blocks = num_blocks_,
                                   .input = Layer(input_.data(), hidden_, cols_),
                                   .output = Layer(output_.data(), cols_, hidden_),
                                   .first = Layer(inner_.data(), hidden_, hidden_),
                                   .second = Layer(inner_.data() + floats, hidden_, hidden_),
                                   .halves = {},
                                   .clip_range = INFINITY,
                                   .norm_epsilon = 1e-6F};
    return {denoiser, steps_,        dim_,           WarpWidth(dim_), coefficients_.data(),
            nullptr,  noise_.data(), tables_.data(), table_of_.data()};
  }
  BlockSequentialArgs<DiffusionView> ByTeam(const TeamShape& team) const {
    return {View(), team, 1, 0, steps_, initial_.data(), final_.data(), nullptr, dependent_.data()};
  }
  GridStepsArgs<DiffusionView> ByGrid() const {
    GridExchange exchange = plan_.Exchange();
    exchange.places = places_.data();
    return {ByTeam({plan_.shape.blocks, 1}), exchange, plan_.shape.resident};
  }
  const GridPlan& plan() const { return plan_; }
  uint32_t exchanges() const {
    return static_cast<uint32_t>(steps_) * static_cast<uint32_t>(plan_.exchanges);
  }
  std::vector<float> FinalState() const { return final_.Host(); }
  Row RowFor(const char* kernel) const { return {kernel, steps_, dim_, 1, "silu"}; }

 private:
  static std::vector<float> Draw(int64_t count, float scale) {
    static std::mt19937 generator(7);
    std::uniform_real_distribution<float> uniform(-1.7F * scale, 1.7F * scale);
    std::vector<float> values(count);
    for (float& x : values) x = uniform(generator);
    return values;
  }
  PanelLayer Layer(const float* weights, int rows, int cols) const {
    return {weights, zeros_.data(), zeros_.data(), rows, cols};
  }

  const int64_t steps_;
  const int dim_, hidden_, num_blocks_, cols_;
  const OnDevice<float> input_, output_, inner_, zeros_, tables_, noise_, initial_, final_;
  const OnDevice<ReverseCoefficients> coefficients_;
  const OnDevice<int32_t> table_of_;
  const OnDevice<int64_t> dependent_;
  const GridPlan plan_;
  const OnDevice<uint64_t> places_;
};

inline void TimeWide(int64_t steps, int hidden, const LaunchLimits& limits) {
  const WideTrial trial(steps, 16, hidden, 3, limits);
  const auto time = [&](const char* kernel, const auto& launch) {
    Begin("W5 " + std::string(kernel) + ", H = " + std::to_string(hidden));
    Print(trial.RowFor(kernel), Measure(launch));
    return trial.FinalState();
  };
  const auto by_team = trial.ByTeam(ChooseTeams(trial.View(), 1, limits));
  const std::vector<float> right =
      time("team_steps", [&] { return LaunchBlocks(by_team, 1, nullptr); });
  if (trial.plan().shape.blocks == 0) return;
  auto by_grid = trial.ByGrid();
  const std::vector<float> found = time("grid_steps", [&] {
    const cudaError_t error = LaunchBlocks(by_grid, nullptr);
    by_grid.exchange.made += trial.exchanges();
    return error;
  });
  if (found == right) return;
  std::printf("failed: the two leave different states\n");
  std::exit(1);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_WIDE_TRIAL_H_
