// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_DIFFUSION_TRIAL_H_
#define DEEPPCR_TESTS_GPU_DIFFUSION_TRIAL_H_

// Times of the kernels of a diffusion model whose residual denoiser a block's registers hold.
// Weights are random and lie as they were drawn: what a kernel takes does not depend on which row
// is which. Its answers are the business of cuda_on_gpu_test.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/runtime/launch.h"
#include "tests/gpu/stopwatch.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {

class DiffusionTrial {
 public:
  DiffusionTrial(int64_t steps, int dim, int hidden, int num_blocks)
      : steps_(steps),
        dim_(dim),
        width_(WarpWidth(dim)),
        hidden_(PanelWidth(hidden)),
        num_blocks_(num_blocks),
        cols_(PanelWidth(dim)),
        input_(Draw(hidden_ * cols_, 1 / std::sqrt(static_cast<float>(dim)))),
        output_(Draw(cols_ * hidden_, 1 / std::sqrt(static_cast<float>(hidden)))),
        inner_(Draw(num_blocks * hidden_ * hidden_, 1 / std::sqrt(static_cast<float>(hidden)))),
        halves_(DrawHalves((num_blocks * hidden_ + 2 * cols_) * hidden_)),
        zeros_(std::vector<float>(num_blocks * hidden_, 0.0F)),
        ones_(std::vector<float>(num_blocks * hidden_, 1.0F)),
        tables_(Draw(steps * num_blocks * hidden_, 0.3F)),
        noise_(Draw(steps * dim, 1)),
        initial_(Draw(width_, 1)),
        final_(width_),
        guesses_(steps * width_),
        coefficients_(std::vector<ReverseCoefficients>(steps, {1, -0.1F, 0.99F, 0, 0.01F, 0.01F})),
        holds_(std::vector<HoldCoefficients>(steps, {0.99F, 0.01F, 0, 0.01F})),
        table_of_(std::vector<int32_t>{0}),
        dependent_(1),
        progress_(1),
        outcomes_(1),
        tape_(steps * DenoiserTape::Floats(View().denoiser)) {}

  DiffusionView View() const {
    const DenoiserView denoiser = {.ada_ln = false,
                                   .activation = Activation::kSilu,
                                   .state_dim = dim_,
                                   .state_cols = cols_,
                                   .hidden_dim = hidden_,
                                   .hidden_width = hidden_,
                                   .num_blocks = num_blocks_,
                                   .input = Layer(input_.data(), hidden_, cols_),
                                   .output = Layer(output_.data(), cols_, hidden_),
                                   .first = Layer(inner_.data(), hidden_, hidden_),
                                   .second = {},
                                   .halves = {.input = HalvesFrom(0, hidden_, cols_),
                                              .output = HalvesFrom(1, cols_, hidden_),
                                              .first = HalvesFrom(2, hidden_, hidden_)},
                                   .clip_range = INFINITY,
                                   .norm_epsilon = 1e-6F};
    return {denoiser,      steps_,        dim_,           width_,          coefficients_.data(),
            holds_.data(), noise_.data(), tables_.data(), table_of_.data()};
  }
  BlockSequentialArgs<DiffusionView> Sequential() const {
    return {View(),  {1, 1},           1, 0, steps_, initial_.data(), final_.data(),
            nullptr, dependent_.data()};
  }
  CoarseArgs<DiffusionView> Coarse(int interval, const LaunchLimits& limits) const {
    return {View(),
            1,
            interval,
            Intervals(interval),
            initial_.data(),
            guesses_.data(),
            StagedFloats(View(), limits)};
  }
  // Propagation of a pass with its Jacobians, or of a correction, which reuses them.
  PropagationArgs<DiffusionView> Propagation(int interval, const NewtonShape& shape,
                                             std::byte* workspace, bool full,
                                             const LaunchLimits& limits) const {
    const IntervalTree tree(Intervals(interval), shape.num_blocks);
    IterationKind kind;
    kind.refresh = full;
    kind.probes = !full;
    return {View(),
            {tree, interval, kEveryMember, workspace},
            StepRows(View(), limits),
            nullptr,
            Linearization::kFull,
            kind};
  }
  ResidentArgs Resident(const PropagationArgs<DiffusionView>& propagation,
                        const LaunchLimits& limits) const {
    return ResidentArgsOf(propagation, propagation.intervals.tree.num_intervals, limits,
                          {tape_.data()});
  }
  NewtonArgs Part(NewtonPart part, int interval, const NewtonShape& shape,
                  const LaunchLimits& limits, std::byte* workspace) const {
    StoppingPolicy policy;
    policy.num_intervals = Intervals(interval);
    StackView sizes = {};
    sizes.num_steps = steps_;
    sizes.state_dim = dim_;
    const IntervalTree tree(Intervals(interval), shape.num_blocks);
    return {part,
            sizes,
            policy,
            StartProgress(policy),
            tree,
            interval,
            {guesses_.data(), nullptr, 0, 0},
            initial_.data(),
            final_.data(),
            nullptr,
            outcomes_.data(),
            progress_.data(),
            nullptr,
            workspace,
            false,
            BlockMemory::TreeBytes(tree, width_) <= limits.shared_bytes};
  }
  // A whole solve over the GPU, with numbers behind `made`.
  ResidentSolveArgs Solve(const IntervalTree& tree, int interval, const LaunchLimits& limits,
                          std::byte* workspace, uint64_t* places, uint32_t made) const {
    NewtonShape shape;
    shape.num_blocks = tree.num_blocks;
    const auto propagation = Propagation(interval, shape, workspace, true, limits);
    return {{propagation, tree.per_block, GridBlocksOf(tree), {tape_.data()}},
            {Part(NewtonPart::kWhole, interval, shape, limits, workspace), {places, made}}};
  }
  Progress Outcome() const { return outcomes_.Host()[0]; }
  NewtonShape Shape(int interval, const LaunchLimits& limits) const {
    return ChoosePartShape(width_, 1, Intervals(interval), limits);
  }
  int32_t Intervals(int interval) const {
    return static_cast<int32_t>((steps_ - 1) / interval + 1);
  }
  int width() const { return width_; }
  Row RowFor(const char* kernel) const { return {kernel, steps_, dim_, 1, "silu", "coarse"}; }

 private:
  static std::vector<float> Draw(int64_t count, float scale) {
    static std::mt19937 generator(3);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(count);
    for (float& x : values) x = normal(generator);
    return values;
  }
  // Halves of about the size of a layer's weights.
  static std::vector<uint16_t> DrawHalves(int64_t count) {
    std::mt19937 generator(5);
    std::vector<uint16_t> halves(count);
    for (uint16_t& half : halves) half = static_cast<uint16_t>((generator() & 0x83FF) | 0x2C00);
    return halves;
  }
  // A layer of halves that has so many of the input or the output layer before it.
  HalfLayer HalvesFrom(int before, int rows, int cols) const {
    return {halves_.data() + int64_t{before} * cols_ * hidden_, ones_.data(), rows, cols};
  }
  PanelLayer Layer(const float* weights, int rows, int cols) const {
    return {weights, zeros_.data(), zeros_.data(), rows, cols};
  }

  const int64_t steps_;
  const int dim_, width_, hidden_, num_blocks_, cols_;
  const OnDevice<float> input_, output_, inner_;
  const OnDevice<uint16_t> halves_;
  const OnDevice<float> zeros_, ones_;
  const OnDevice<float> tables_, noise_, initial_, final_, guesses_;
  const OnDevice<ReverseCoefficients> coefficients_;
  const OnDevice<HoldCoefficients> holds_;
  const OnDevice<int32_t> table_of_;
  const OnDevice<int64_t> dependent_;
  const OnDevice<Progress> progress_, outcomes_;
  const OnDevice<float> tape_;
};

// The passes of a solve are as many as random weights want: its row says how many.
inline void TimeSolve(const DiffusionTrial& trial, int interval, const LaunchLimits& limits) {
  const IntervalTree tree = PlanResidentSolve(trial.View(), trial.Intervals(interval), limits);
  if (tree.num_intervals == 0) return;
  const int blocks = GridBlocksOf(tree), width = trial.width();
  const OnDevice<std::byte> workspace(
      std::vector<std::byte>(WorkspaceBytes(width, tree), std::byte{0}));
  const OnDevice<uint64_t> places(std::vector<uint64_t>(GridPlaces::Count(blocks, width), 0));
  auto solve = trial.Solve(tree, interval, limits, workspace.data(), places.data(), 0);
  Begin("W4 resident_solve");
  const Times times = Measure([&] {
    const cudaError_t error = LaunchBlocks(solve, nullptr);
    solve.solve.places.made += kMostGridPasses;
    return error;
  });
  Row row = trial.RowFor("resident_solve");
  row.interval = interval;
  row.shape = {width, 1, blocks, kResidentWarps, true};
  row.progress = trial.Outcome();
  row.converged = row.progress.termination == Termination::kConverged;
  Print(row, times);
}

inline void TimeDiffusion(int64_t steps, const LaunchLimits& limits) {
  constexpr int kInterval = 1;
  const DiffusionTrial trial(steps, 16, 128, 3);
  const auto time = [&](const char* kernel, const auto& launch) {
    Begin("W4 " + std::string(kernel) + ", steps: " + std::to_string(steps));
    Row row = trial.RowFor(kernel);
    row.interval = kInterval;
    Print(row, Measure(launch));
  };
  const auto sequential = trial.Sequential();
  time("held_sequential", [&] { return LaunchBlocks(sequential, 1, nullptr); });
  const auto coarse = trial.Coarse(kInterval, limits);
  time("half_coarse_guess", [&] { return LaunchBlocks(coarse, 1, nullptr); });
  if (limits.max_cluster_blocks == 0) return;

  TimeSolve(trial, kInterval, limits);
  const NewtonShape shape = trial.Shape(kInterval, limits);
  const IntervalTree tree(trial.Intervals(kInterval), shape.num_blocks);
  const OnDevice<std::byte> workspace(
      std::vector<std::byte>(WorkspaceBytes(trial.width(), tree), std::byte{0}));
  const auto start = trial.Part(NewtonPart::kStart, kInterval, shape, limits, workspace.data());
  const auto pass = trial.Part(NewtonPart::kPass, kInterval, shape, limits, workspace.data());
  const auto full = trial.Propagation(kInterval, shape, workspace.data(), true, limits);
  const auto correction = trial.Propagation(kInterval, shape, workspace.data(), false, limits);
  time("newton_start", [&] { return LaunchNewton(start, shape, nullptr); });
  time("propagation", [&] { return LaunchBlocks(full, 1, nullptr); });
  time("propagation_of_correction", [&] { return LaunchBlocks(correction, 1, nullptr); });
  const auto resident = trial.Resident(full, limits);
  const auto resident_correction = trial.Resident(correction, limits);
  time("resident_propagation", [&] { return LaunchBlocks(resident, 1, nullptr); });
  time("resident_correction", [&] { return LaunchBlocks(resident_correction, 1, nullptr); });
  // A pass ends at once where the one before has stopped, so each has its own start.
  time("newton_start_and_pass", [&] {
    const cudaError_t error = LaunchNewton(start, shape, nullptr);
    return error != cudaSuccess ? error : LaunchNewton(pass, shape, nullptr);
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_DIFFUSION_TRIAL_H_
