// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_RANDOM_PROGRAM_H_
#define DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_RANDOM_PROGRAM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/diffusion/coarse_guess.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/compiler.h"
#include "kernels/cuda/program/grid_plan.h"
#include "kernels/cuda/program/model.h"
#include "tests/kernels/program/random_process.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {

// A random process of three steps on the executor, with the condition and the noise of one sample.
class ProgramOnExecutor : public program::RandomProcess {
 public:
  static constexpr int kSteps = 3;
  // Rows that hold all tangents of these programs.
  static constexpr int kMostRows = 1 + kNumProbes + 24;

  explicit ProgramOnExecutor(int seed, const simt::DeviceOptions& options = {})
      : RandomProcess(seed, kSteps), device_(simt::NewSimtDevice(options)), compiler_(*device_) {
    auto model = cuda::ProgramModel::Upload(*device_, spec(), {}, &compiler_);
    status_ = model.status();
    if (!model.ok()) return;
    model_ = *std::move(model);
    stream_ = *device_->NewStream();
    given_.resize(static_cast<size_t>(model_.view().given_floats()));
    const float label_in_float = static_cast<float>(label());
    for (cuda::ConditionArgs args : {model_.condition(), model_.mixed()}) {
      if (args.num_exports == 0) continue;
      args.process = View();
      args.inputs = condition().data();
      args.labels = &label_in_float;
      args.conditions = given_.data();
      stream_->Launch(args, 1);
    }
  }

  const absl::Status& status() const { return status_; }
  absl::Status launched() const { return stream_->status(); }
  int width() const { return model_.width(); }
  cuda::ProgramView View() const {
    cuda::ProgramView view = model_.view();
    view.conditions = given_.data();
    view.noise = step_noise().data();
    return view;
  }

  const cuda::ProgramSection& section() const { return model_.view().section; }
  int rows_per_step() const { return model_.rows_per_step(); }

  // The state after some steps of the sequential solver, by a team of so many blocks.
  std::vector<float> Step(int64_t steps = 1, int num_blocks = 1) {
    return AfterSteps(steps, num_blocks, [&](const auto& args) { stream_->Launch(args, 1); });
  }

  // The state after all steps by as many blocks as have panels, at most so many, which keep some of
  // them or all; empty if the step has no layer.
  std::vector<float> StepOverGrid(int most_blocks = 3, int most_floats = 1 << 20) {
    const cuda::ProgramSection& step = section();
    int panels = 0, layers = 0;
    for (int i = 0; i < step.count; ++i) {
      panels += cuda::PanelsOf(step.instructions[i]);
      layers += cuda::PanelsOf(step.instructions[i]) > 0 ? 1 : 0;
    }
    if (layers == 0) return {};
    const int blocks = std::min(panels, most_blocks);
    const std::span instructions(step.instructions, static_cast<size_t>(step.count));
    cuda::GridExchange exchange = cuda::NewExchange(layers, View().StepFloats(1));
    std::vector<uint64_t> places(static_cast<size_t>(exchange.num_places()));
    exchange.places = places.data();
    const auto resident = static_cast<int32_t>(
        std::min<int64_t>(most_floats, cuda::MostOwnFloats(instructions, blocks)));
    return AfterSteps(kSteps, blocks, [&](const auto& args) {
      stream_->Launch(cuda::GridStepsArgs<cuda::ProgramView>{args, exchange, resident});
    });
  }

  // The coarse guess of three intervals.
  std::vector<float> Guess(int num_blocks = 1) {
    std::vector<float> z(static_cast<size_t>(width())), guesses(kSteps * z.size());
    std::ranges::copy(state(), z.begin());
    stream_->Launch(cuda::CoarseArgs<cuda::ProgramView>{.process = View(),
                                                        .num_blocks = num_blocks,
                                                        .shooting_interval = 1,
                                                        .num_intervals = kSteps,
                                                        .initial_states = z.data(),
                                                        .guesses = guesses.data(),
                                                        .staged_floats = 0},
                    1);
    return guesses;
  }

  // What a pass over three intervals of a step each leaves, all from the same state.
  struct Pass {
    explicit Pass(ProgramOnExecutor& system, int rows)
        : tree(kSteps, 1), bytes(cuda::BlockMemory::Bytes(tree, system.width()) / sizeof(float)) {
      const cuda::BlockMemory memory = MemoryOf(system);
      for (int p = 0; p <= kSteps; ++p) std::ranges::copy(system.state(), memory.State(p));
      IterationKind kind;
      kind.probes = true;
      system.stream_->Launch(
          cuda::PropagationArgs<cuda::ProgramView>{
              .process = system.View(),
              .intervals = {tree, 1, cuda::kEveryMember,
                            reinterpret_cast<std::byte*>(bytes.data())},
              .rows = rows,
              .progress = nullptr,
              .linearization = Linearization::kFull,
              .kind = kind},
          1);
    }
    cuda::BlockMemory MemoryOf(const ProgramOnExecutor& system) {
      return {tree, system.width(), reinterpret_cast<std::byte*>(bytes.data())};
    }

    cuda::IntervalTree tree;
    std::vector<float> bytes;
  };

 private:
  // The state after some steps by a team of so many blocks, which `launch` launches.
  template <class Launch>
  std::vector<float> AfterSteps(int64_t steps, int num_blocks, const Launch& launch) {
    std::vector<float> z(static_cast<size_t>(width())), end(z.size());
    std::ranges::copy(state(), z.begin());
    int64_t made = 0;
    launch(cuda::BlockSequentialArgs<cuda::ProgramView>{.process = View(),
                                                        .team = {num_blocks, 1},
                                                        .num_samples = 1,
                                                        .begin = 0,
                                                        .end = steps,
                                                        .states = z.data(),
                                                        .final_states = end.data(),
                                                        .trajectories = nullptr,
                                                        .num_dependent = &made});
    EXPECT_EQ(made, steps) << stream_->status();
    return end;
  }

  std::unique_ptr<cuda::Device> device_;
  cuda::ProgramCompiler compiler_;
  absl::Status status_;
  cuda::ProgramModel model_;
  std::unique_ptr<cuda::Stream> stream_;
  std::vector<float> given_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_RANDOM_PROGRAM_H_
