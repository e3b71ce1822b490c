// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/grid_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/diffusion/model.h"
#include "kernels/cuda/loop/block_shape.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;

constexpr DenoiserKind kKinds[] = {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp};

RandomDiffusion Process(DenoiserKind kind, int64_t hidden_dim, int64_t num_blocks, int64_t steps) {
  return RandomDiffusion({.kind = kind,
                          .state_dim = 12,
                          .hidden_dim = hidden_dim,
                          .num_blocks = num_blocks,
                          .num_steps = steps,
                          .num_classes = 3,
                          .output_gain = 0.2});
}

DeviceOptions GridOf(int blocks, int warps = 2) {
  DeviceOptions options;
  options.limits.grid_blocks = blocks;
  options.limits.max_warps = warps;
  options.limits.shared_bytes = size_t{4} << 20;  // for all layers, also of one block
  return options;
}

// Blocks of a process's sequential steps.
int BlocksOf(const RandomDiffusion& process, const DeviceOptions& options) {
  const auto device = NewSimtDevice(options);
  const auto model = cuda::DiffusionModel::Upload(*device, process.spec(), {});
  return cuda::PlanGrid(model->view(), options.limits).shape.blocks;
}

SolverRig RigOn(const DeviceOptions& options, const RandomDiffusion& process) {
  return SolverRig(cuda::NewCudaBackend(NewSimtDevice(options)), process.spec());
}

SampleInputs Request(int64_t samples, uint64_t seed) {
  static const std::vector<int32_t> labels = {2, 0, 1, 1, 2};
  return {.num_samples = samples, .seed = seed, .labels = {labels.data(), size_t(samples)}};
}

// With fewer panels than warps and more, and a last block that has fewer of them than the others;
// one request after another, whose exchanges go on counting. Three samples are for clusters.
TEST(GridStepsTest, HaveTheBitsOfABlock) {
  for (const DenoiserKind kind : kKinds) {
    for (const auto& [hidden_dim, num_blocks, steps] :
         {std::tuple{250, 1, 5}, std::tuple{256, 2, 4}, std::tuple{300, 3, 3}}) {
      const RandomDiffusion process = Process(kind, hidden_dim, num_blocks, steps);
      const SolverRig right = RigOn(GridOf(0), process);
      const int most = (hidden_dim > 256 ? 304 : 256) / cuda::kPanelRows + 2;
      for (const auto& [blocks, warps] :
           {std::pair{1, 2}, std::pair{3, 1}, std::pair{8, 3}, std::pair{50, 1}}) {
        const SolverRig rig = RigOn(GridOf(blocks, warps), process);
        EXPECT_EQ(BlocksOf(process, GridOf(blocks, warps)), std::min(blocks, most));
        for (const int64_t samples : {1, 2, 3, 1}) {
          const SampleInputs request = Request(samples, 3 + samples);
          const Solved want = right.Solve({.solver = "sequential"}, request);
          const Solved got = rig.Solve({.solver = "sequential"}, request);
          ASSERT_FALSE(got.reports.empty());
          EXPECT_TRUE(want.SameAnswers(got)) << hidden_dim << " " << blocks << " " << samples;
          EXPECT_EQ(got.reports[0].dependent_stages, want.reports[0].dependent_stages);
        }
      }
    }
  }
}

// The barrier before an exchange only keeps warps from asking early.
TEST(GridStepsTest, EveryWaitIsNeeded) {
  for (const DenoiserKind kind : kKinds) {
    const RandomDiffusion process = Process(kind, 250, 2, 4);
    const auto answers = [&](const simt::Schedule& schedule) {
      DeviceOptions options = GridOf(5);
      options.schedule = schedule;
      return RigOn(options, process).Solve({.solver = "sequential"}, Request(2, 3));
    };
    EXPECT_EQ(BlocksOf(process, GridOf(5)), 5);
    const Solved right = answers({});
    const simt::OrdersOfWarps orders(
        [&](const simt::Schedule& schedule) {
          const Solved other = answers(schedule);
          return other.reports.empty() || !other.SameAnswers(right);
        },
        6);
    std::vector<int> needed = {cuda::kAfterInitialState, cuda::kForElements, cuda::kAfterExchange};
    if (kind == DenoiserKind::kAdaLnMlp) needed.push_back(cuda::kAfterModulation);
    for (const int site : needed)
      EXPECT_TRUE(orders.Notice(site)) << "site " << site << " of denoiser " << int(kind);
    EXPECT_FALSE(orders.Notice(cuda::kBeforeExchange));
  }
}

// The states behind a launch.
std::vector<float> StatesAfter(const cuda::DiffusionView& process, const DeviceOptions& options) {
  const auto device = NewSimtDevice(options);
  const auto stream = *device->NewStream();
  std::vector<float> states(process.width, 0.25F),
      noise(process.num_steps * process.state_dim, 0.1F);
  const cuda::GridPlan plan = cuda::PlanGrid(process, options.limits);
  const cuda::GridShape& shape = plan.shape;
  std::vector<uint64_t> places(plan.Exchange().num_places());
  std::vector<int32_t> table_of = {0};
  int64_t num_dependent = 0;
  cuda::GridStepsArgs<cuda::DiffusionView> args = {};
  args.sequential = {.process = process,
                     .team = {shape.blocks, 1},
                     .num_samples = 1,
                     .begin = 0,
                     .end = process.num_steps,
                     .states = states.data(),
                     .final_states = states.data(),
                     .trajectories = nullptr,
                     .num_dependent = &num_dependent};
  args.sequential.process.noise = noise.data();
  args.sequential.process.table_of = table_of.data();
  args.exchange = plan.Exchange();
  args.exchange.places = places.data();
  args.resident = shape.resident;
  stream->Launch(args);
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  return states;
}

// A space begins without numbers, as it is once all are used up: places have NaN with the number
// that comes next until it clears them. Requests of two samples and of one have other buffers in a
// set.
TEST(GridStepsTest, NumbersBeginAnew) {
  cuda::GridExchange exchange = {};
  exchange.made = 0xFFFFFFF0;
  EXPECT_TRUE(exchange.HasNumbersFor(15));
  EXPECT_FALSE(exchange.HasNumbersFor(16));
  for (const DenoiserKind kind : kKinds) {
    const RandomDiffusion process = Process(kind, 250, 1, 3);
    DeviceOptions options = GridOf(4);
    options.schedule = {.order = simt::Order::kShuffled, .seed = 4};
    options.fill = uint64_t{1} << 32 | 0xFFFFFFFF;
    const SolverRig rig = RigOn(options, process), right = RigOn(GridOf(0), process);
    for (int i = 0; i < 20; ++i) {
      const SampleInputs request = Request(1 + i % 2, 3 + i);
      EXPECT_TRUE(rig.Solve({.solver = "sequential"}, request)
                      .SameAnswers(right.Solve({.solver = "sequential"}, request)))
          << i;
    }
  }
}

// Shared memory for some of the layers, and none for those between input and output: what is read
// in every step gives the same bits.
TEST(GridStepsTest, SomeLayersMayBeElsewhere) {
  for (const DenoiserKind kind : kKinds) {
    const RandomDiffusion process = Process(kind, 250, 2, 4);
    const auto device = NewSimtDevice({});
    const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
    const int layers = cuda::GridLayers::HiddenLayers(model.view().denoiser);
    for (const int blocks : {5, 34}) {
      for (int resident = 0; resident <= layers; ++resident) {
        DeviceOptions options = GridOf(blocks);
        options.limits.shared_bytes = cuda::GridBytes(model.view(), {blocks, resident});
        EXPECT_EQ(cuda::PlanGrid(model.view(), options.limits).shape.resident, resident);
        // The rig's other kernels want more memory than a block of few layers has.
        EXPECT_EQ(StatesAfter(model.view(), options), StatesAfter(model.view(), GridOf(blocks)))
            << resident << " of " << layers;
      }
    }
  }
}

// W5, an adaLN denoiser of three blocks 1024 wide, on an H200.
TEST(GridStepsTest, HoldWhatTheGpuHasRoomFor) {
  cuda::LaunchLimits h200 = {
      .multiprocessors = 132, .shared_bytes = size_t{227} << 10, .grid_blocks = 132};
  cuda::DiffusionView process = {};
  cuda::DenoiserView& d = process.denoiser;
  const auto shape = [&] {
    const cuda::GridShape chosen = cuda::PlanGrid(process, h200).shape;
    return std::pair(chosen.blocks, chosen.resident);
  };
  d.ada_ln = true;
  d.state_dim = d.state_cols = 16;
  d.hidden_dim = d.hidden_width = 1024;
  d.num_blocks = 3;
  EXPECT_EQ(shape(), std::pair(130, 6));
  EXPECT_EQ(cuda::GridLayers::Floats(d, 130, 6), 8 * (16 + 6 * 1024));
  EXPECT_EQ(cuda::GridLayers::Floats(d, 128, 6), 8 * (16 + 7 * 1024));  // with an output's panel
  EXPECT_EQ(cuda::GridLayers::Floats(d, 1, 6), 6 * 1024 * 1024 + 2 * 16 * 1024);
  d.num_blocks = 12;  // a head of MAR
  EXPECT_EQ(shape(), std::pair(130, 6));
  d.ada_ln = false;
  d.num_blocks = 4;
  EXPECT_EQ(shape(), std::pair(130, 4));
  d.hidden_dim = d.hidden_width = 1536;  // one or two panels a block
  EXPECT_EQ(shape(), std::pair(132, 2));
  h200.grid_blocks = 0;
  EXPECT_EQ(shape(), std::pair(0, 0));
  h200.grid_blocks = 132;
  d.hidden_dim = d.hidden_width = 128;  // for one block
  EXPECT_EQ(shape(), std::pair(0, 0));
  d.hidden_dim = d.hidden_width = 1024;
  h200.shared_bytes = 10'000;
  EXPECT_EQ(shape(), std::pair(0, 0));
}

}  // namespace
}  // namespace deeppcr::testing
