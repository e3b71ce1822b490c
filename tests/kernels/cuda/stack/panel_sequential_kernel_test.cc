// SPDX-License-Identifier: Apache-2.0
// The sequential solver of dense stacks by blocks, against the kernel that makes their steps for
// every other solver.
#include "kernels/cuda/stack/panel_sequential_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/math/team.h"
#include "kernels/cuda/stack/warp_stack_model.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using cuda::PanelStackView;
using simt::Schedule;

constexpr int kSamples = 2;

// A random stack on the executor, with samples that begin at random states.
class PanelStack {
 public:
  explicit PanelStack(const StackOptions& options)
      : system_(options),
        device_(simt::NewSimtDevice({.limits = {.multiprocessors = 8,
                                                .shared_bytes = size_t{227} << 10,
                                                .max_cluster_blocks = 0,
                                                .max_warps = cuda::kMaxBlockWarps}})),
        model_(*cuda::PanelStackModel::Upload(*device_, system_.spec(), {})),
        states_(static_cast<size_t>(kSamples * view().width)) {
    for (int b = 0; b < kSamples; ++b)
      for (int i = 0; i < view().state_dim; ++i)
        states_[static_cast<size_t>(b * view().width + i)] =
            std::sin(static_cast<float>(7 * b + 3 * i + 1));
  }

  const PanelStackView& view() const { return model_.view(); }

  struct Answer {
    simt::Outcome launch;
    std::vector<float> final_states, trajectories;
    int64_t made = 0;
  };
  // The states of all samples after the steps between `ends`, a launch for each two.
  Answer Solve(const std::vector<int64_t>& ends, bool in_sequence,
               const Schedule& schedule = {}) const {
    Answer answer;
    answer.final_states = states_;
    answer.trajectories.resize(
        static_cast<size_t>(kSamples * (view().num_steps + 1) * view().state_dim));
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      const cuda::BlockSequentialArgs<PanelStackView> args = {
          .process = view(),
          .team = {1, 1},
          .num_samples = kSamples,
          .begin = ends[i],
          .end = ends[i + 1],
          .states = answer.final_states.data(),
          .final_states = answer.final_states.data(),
          .trajectories = answer.trajectories.data(),
          .num_dependent = &answer.made};
      answer.launch = in_sequence ? InSequence(args, schedule) : ByTeams(args);
      EXPECT_EQ(answer.made, ends[i + 1] - ends[i]);
    }
    return answer;
  }

 private:
  using Args = cuda::BlockSequentialArgs<PanelStackView>;

  static simt::Outcome InSequence(const Args& args, const Schedule& schedule) {
    simt::Outcome outcome;
    EXPECT_TRUE(cuda::WithPanelGroups(args.process.width, [&](auto groups) {
      using Ring = cuda::PanelRing<groups.value>;
      outcome = simt::Execute({.num_clusters = kSamples,
                               .num_threads = Ring::kWarps * cuda::kWarpSize,
                               .shared_bytes = Ring::kBytes},
                              schedule, [&](simt::Thread& thread) {
                                cuda::SolvePanelsSequentially<groups.value>(thread, args);
                              });
    }));
    return outcome;
  }
  static simt::Outcome ByTeams(const Args& args) {
    const auto floats = args.process.StepFloats(1);
    return simt::Execute(
        {.num_clusters = kSamples,
         .num_threads = 2 * cuda::kWarpSize,
         .shared_bytes = static_cast<size_t>(floats) * sizeof(float)},
        {}, [&](simt::Thread& thread) { cuda::SolveByTeams(cuda::BlockTeam(thread), args); });
  }

  const RandomSystem system_;
  const std::unique_ptr<cuda::Device> device_;
  const cuda::PanelStackModel model_;
  std::vector<float> states_;
};

bool Same(const PanelStack::Answer& a, const PanelStack::Answer& b) {
  return a.final_states == b.final_states && a.trajectories == b.trajectories;
}

// Every width, depths around those of the ring, every activation, with and without a residual path.
TEST(PanelSequentialKernelTest, StatesHaveTheBitsOfSteps) {
  uint64_t seed = 1;
  for (const int64_t dim : {5, 27, 41, 64, 70, 96, 99, 120}) {
    for (const int64_t steps : {1, 2, 3, 4, 7, 8, 9, 29}) {
      const StackOptions options = {
          .num_steps = steps,
          .state_dim = dim,
          .residual = seed % 2 == 0,
          .activation = kActivationNames[seed % std::size(kActivationNames)].activation,
          .gain = 0.8,
          .seed = seed};
      SCOPED_TRACE(Describe(options));
      const PanelStack stack(options);
      EXPECT_TRUE(stack.view().in_sequence);
      const PanelStack::Answer whole = stack.Solve({0, steps}, true);
      EXPECT_TRUE(Same(whole, stack.Solve({0, steps}, false)));
      if (steps > 2) {
        EXPECT_TRUE(Same(whole, stack.Solve({0, 1, steps - 1, steps}, true)));
      }
      ++seed;
    }
  }
}

TEST(PanelSequentialKernelTest, EveryBarrierIsNeeded) {
  const std::vector<StackOptions> options = {
      {.num_steps = 11, .state_dim = 40, .residual = true, .gain = 0.5},
      {.num_steps = 5, .state_dim = 100, .gain = 0.8}};
  std::vector<std::unique_ptr<PanelStack>> stacks;
  for (const StackOptions& each : options) stacks.push_back(std::make_unique<PanelStack>(each));
  simt::ExpectEveryBarrierIsNeeded(
      cuda::kNumPanelSequentialSites, stacks,
      [](const auto& stack, const Schedule& schedule) {
        return stack->Solve({0, stack->view().num_steps}, true, schedule);
      },
      &Same);
}

// Where a block has too few warps, or too little memory, and for the widest states.
TEST(PanelSequentialKernelTest, LeavesWhatItHasNoRoomFor) {
  constexpr size_t kBytes = size_t{227} << 10;
  for (int width = 16; width <= 128; width += 16)
    EXPECT_TRUE(cuda::TakesPanelSequence(width, kBytes, cuda::kMaxBlockWarps)) << width;
  EXPECT_FALSE(cuda::TakesPanelSequence(144, kBytes, cuda::kMaxBlockWarps));
  EXPECT_FALSE(cuda::TakesPanelSequence(64, kBytes, 7));
  EXPECT_FALSE(cuda::TakesPanelSequence(64, size_t{100} << 10, cuda::kMaxBlockWarps));
}

}  // namespace
}  // namespace deeppcr::testing
