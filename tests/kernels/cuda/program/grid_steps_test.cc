// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/grid_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/program/grid_plan.h"
#include "kernels/cuda/program/model.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/optimize.h"
#include "tests/kernels/cuda/program/mixer.h"
#include "tests/kernels/cuda/program/random_program.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;
using simt::DeviceOptions;
using simt::NewSimtDevice;

DeviceOptions GridOf(int blocks, int warps = 2) {
  DeviceOptions options;
  options.limits.grid_blocks = blocks;
  options.limits.max_warps = warps;
  options.limits.shared_bytes = size_t{4} << 20;  // for all layers, also of one block
  return options;
}

// A denoiser with a wide layer, one whose matrix depends on the time, and a narrow one, which fewer
// blocks than there are have panels of.
Program TimeDependent(int64_t hidden) {
  Draft draft(5);
  const ValueId z = draft.State(kDim), time = draft.Time();
  const ValueId wide = draft.Do(Op::kTanh, {draft.Linear(z, hidden)});
  const int64_t rows = 24;
  const ValueId spread =
      draft.Arrange({time}, std::vector<program::Element>(rows * hidden, {0, 0}));
  const ValueId matrix = draft.By(Op::kMultiply, draft.Do(Op::kSin, {spread}), 0.01);
  const program::LinearLayer sizes = {.rows = rows, .cols = hidden};
  const ValueId narrow = draft.Product(wide, matrix, program::kNoValue, sizes);
  const ValueId m = draft.Linear(draft.Do(Op::kSilu, {narrow}), kDim);
  return draft.Finish(draft.ReverseStep(z, m), m);
}

// Layers one after another, with nothing between them; the first two of several vectors, the last
// of which ends at an odd element, and of which the second have a panel that is all padding.
Program OnlyLayers(int64_t hidden) {
  Draft draft(9);
  const ValueId z = draft.State(kDim);
  const ValueId tokens = draft.Linear(z, draft.Layer(kOfToken, kOfToken, true, kTokens));
  const ValueId few = draft.Linear(tokens, draft.Layer(3, kOfToken, true, kTokens));
  const ValueId m = draft.Linear(draft.Linear(few, hidden), kDim);
  return draft.Finish(draft.ReverseStep(z, m), m);
}

std::vector<ProgramProcess> Processes() {
  std::vector<ProgramProcess> processes;
  for (Program program : {Mixer(256), Mixer(300), TimeDependent(256), OnlyLayers(272)})
    processes.emplace_back(std::move(program), kDim, 4);
  return processes;
}

SolverRig RigOn(const DeviceOptions& options, const SystemSpec& spec) {
  return SolverRig(cuda::NewCudaBackend(NewSimtDevice(options)), spec);
}

Solved StepsOf(const SolverRig& rig, int64_t samples, uint64_t seed) {
  std::vector<float> conditions;
  for (int64_t i = 0; i < samples * kConditionDim; ++i)
    conditions.push_back(std::sin(static_cast<float>(i + 1)));
  return rig.Solve({.solver = "sequential"},
                   {.num_samples = samples, .inputs = conditions, .seed = seed});
}

cuda::GridPlan PlanOf(const SystemSpec& spec, const DeviceOptions& options) {
  const auto device = NewSimtDevice(options);
  return cuda::ProgramModel::Upload(*device, std::get<DiffusionProgramSpec>(spec), {})->grid();
}

// With fewer panels than warps and more, and a block for each panel; one request after another,
// whose exchanges go on counting. Three samples are for clusters.
TEST(ProgramGridTest, HasTheBitsOfACluster) {
  for (const ProgramProcess& process : Processes()) {
    const SolverRig right = RigOn(GridOf(0), process.spec());
    for (const auto& [blocks, warps] :
         {std::pair{1, 2}, std::pair{3, 1}, std::pair{8, 3}, std::pair{1000, 1}}) {
      DeviceOptions options = GridOf(blocks, warps);
      options.schedule = {.order = simt::Order::kShuffled, .seed = 2};
      const SolverRig rig = RigOn(options, process.spec());
      const int planned = PlanOf(process.spec(), options).shape.blocks;
      EXPECT_GE(planned, std::min(blocks, 30));
      EXPECT_LE(planned, blocks);
      for (const int64_t samples : {1, 2, 3, 1}) {
        const Solved want = StepsOf(right, samples, 3 + samples);
        const Solved got = StepsOf(rig, samples, 3 + samples);
        ASSERT_FALSE(got.reports.empty());
        EXPECT_TRUE(want.SameAnswers(got)) << blocks << " " << samples;
        EXPECT_EQ(got.reports[0].dependent_stages, want.reports[0].dependent_stages);
      }
    }
  }
}

// A launch for each step: the state goes on where the last one has left it.
TEST(ProgramGridTest, LaunchesGoOnWhereTheLastEnded) {
  const ProgramProcess pieces(Mixer(256), kDim, 4, 5'000'000'000), whole(Mixer(256), kDim, 4);
  for (const int64_t samples : {1, 2}) {
    const Solved want = StepsOf(RigOn(GridOf(8), whole.spec()), samples, 3);
    EXPECT_TRUE(want.SameAnswers(StepsOf(RigOn(GridOf(8), pieces.spec()), samples, 3)));
  }
  // As many launches fail as there are steps.
  const auto done = [&](const ProgramProcess& process, int launches) {
    DeviceOptions options = GridOf(8);
    options.fail_after = launches;
    return !StepsOf(RigOn(options, process.spec()), 1, 3).reports.empty();
  };
  int launches = 0;
  while (!done(whole, launches)) ++launches;
  EXPECT_FALSE(done(pieces, launches + 2));
  EXPECT_TRUE(done(pieces, launches + 3));
}

// The barrier before an exchange only keeps warps from asking early, and a layer by all blocks need
// not wait for those whose vectors it does not write to.
TEST(ProgramGridTest, EveryWaitIsNeeded) {
  const std::vector<ProgramProcess> processes = Processes();
  std::vector<int> needed = {cuda::kForElements,           cuda::kAfterExchange,
                             cuda::kAfterInitialState,     cuda::kBeforeInstruction,
                             cuda::kBeforeTeamInstruction, cuda::kAfterGathering};
  std::erase_if(needed, [&](int site) {
    for (const ProgramProcess& process : processes) {
      const auto answers = [&](const simt::Schedule& schedule) {
        DeviceOptions options = GridOf(5);
        options.schedule = schedule;
        return StepsOf(RigOn(options, process.spec()), 2, 3);
      };
      const Solved right = answers({});
      const simt::OrdersOfWarps orders(
          [&](const simt::Schedule& schedule) {
            const Solved other = answers(schedule);
            return other.reports.empty() || !other.SameAnswers(right);
          },
          4);
      if (orders.Notice(site)) return true;
    }
    return false;
  });
  EXPECT_TRUE(needed.empty()) << "not noticed: site " << needed[0];
}

// Each block makes an element in every step: without one it could write over what another block
// still waits for. Where vectors are copied, rows of padding make none.
TEST(ProgramGridTest, EveryBlockMakesAnElement) {
  int plans = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    const ProgramOnExecutor system(seed);
    if (!system.status().ok()) continue;
    const cuda::ProgramSection& section = system.section();
    int panels = 0;
    for (int i = 0; i < section.count; ++i) panels += cuda::PanelsOf(section.instructions[i]);
    for (int blocks = 1; blocks <= panels; ++blocks) {
      std::vector<int> own(static_cast<size_t>(blocks));
      cuda::PanelDeal deal(blocks);
      for (int i = 0; i < section.count; ++i) {
        const cuda::ProgramInstruction& instruction = section.instructions[i];
        for (int b = 0; b < blocks; ++b)
          own[b] += cuda::OwnPanelsOf(cuda::PanelsOf(instruction), deal.first(), b, blocks);
        const int rows = instruction.gathers ? instruction.outputs : instruction.layer.rows;
        EXPECT_LT((cuda::PanelsOf(instruction) - 1) * cuda::kPanelRows, rows);
        deal.Next(instruction);
      }
      const auto [least, most] = std::ranges::minmax(own);
      EXPECT_GE(least, 1);
      EXPECT_LE(most, least + 1);
      ++plans;
    }
  }
  EXPECT_GT(plans, 100);
}

// W5 as a graph would describe it, and a program without a wide layer, on an H200.
TEST(ProgramGridTest, HoldsWhatTheGpuHasRoomFor) {
  DeviceOptions h200;
  h200.limits.multiprocessors = h200.limits.grid_blocks = 132;
  h200.limits.shared_bytes = size_t{227} << 10;
  const auto plan_of = [&](int64_t hidden) {
    const RandomDiffusion denoiser({.kind = DenoiserKind::kAdaLnMlp,
                                    .state_dim = 16,
                                    .hidden_dim = hidden,
                                    .num_blocks = 3,
                                    .num_steps = 2});
    const Program program =
        *program::Optimize(*program::ProgramOfDenoiser(denoiser.spec()), program::kNoLimits);
    return PlanOf(program::WithProgram(denoiser.spec(), program), h200);
  };
  const cuda::GridPlan plan = plan_of(1024);
  EXPECT_EQ(plan.shape.blocks, 132);
  EXPECT_EQ(plan.exchanges, 8);
  // 898 panels over 132 blocks: seven at most, six of them of wide rows and one of the state's.
  EXPECT_EQ(plan.shape.resident, 8 * (6 * 1024 + 16));
  EXPECT_EQ(plan_of(128).shape.blocks, 0);
  h200.limits.shared_bytes = size_t{120} << 10;
  const cuda::GridPlan small = plan_of(1024);
  EXPECT_EQ(small.shape.blocks, 132);
  EXPECT_GT(small.shape.resident, 3 * 8 * 1024);
  EXPECT_LT(small.shape.resident, 4 * 8 * 1024);
  h200.limits.grid_blocks = 0;
  EXPECT_EQ(plan_of(1024).shape.blocks, 0);
}

}  // namespace
}  // namespace deeppcr::testing
