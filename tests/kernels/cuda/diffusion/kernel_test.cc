// SPDX-License-Identifier: Apache-2.0
// Properties of the diffusion kernels that the conformance tests do not see: columns that do not
// fit one step together, tables per sample, and the need for each barrier.
#include "kernels/cuda/diffusion/kernel.h"

#include <gtest/gtest.h>

#include <algorithm>

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
using simt::Order;

std::unique_ptr<Backend> BackendOn(const DeviceOptions& options) {
  return cuda::NewCudaBackend(NewSimtDevice(options));
}

ResolvedOptions CoarseNewton(int64_t steps, int64_t interval) {
  ResolvedOptions options = OptionsFor("newton", steps, interval, 1e-4);
  options.initial_guess = InitialGuess::kCoarse;
  return options;
}

TEST(DiffusionKernelTest, ColumnsThatDoNotFitGoAlongWithTheStateAgain) {
  struct Case {
    DenoiserKind kind;
    int64_t hidden_dim;   // no resident one
    size_t shared_bytes;  // for eight rows
  };
  for (const auto& [kind, hidden_dim, shared_bytes] :
       {Case{DenoiserKind::kResidualMlp, 150, 20'000}, Case{DenoiserKind::kAdaLnMlp, 30, 8000}}) {
    const RandomDiffusion process({.kind = kind,
                                   .state_dim = 12,
                                   .hidden_dim = hidden_dim,
                                   .num_steps = 20,
                                   .output_gain = 0.2});
    DeviceOptions small;
    small.limits.shared_bytes = shared_bytes;
    const ResolvedOptions options = CoarseNewton(20, 3);
    const SampleInputs request{.num_samples = 2, .seed = 3};
    const SolverRig roomy(BackendOn({}), process.spec());
    const SolverRig narrow(BackendOn(small), process.spec());
    EXPECT_TRUE(roomy.Solve(options, request).SameAnswers(narrow.Solve(options, request)));
  }
}

// Rows have the same bits whether they were made for all classes or for one sample.
TEST(DiffusionKernelTest, ClassesWithoutTablesHaveRowsOfTheirOwn) {
  const RandomDiffusion process({.kind = DenoiserKind::kAdaLnMlp, .num_classes = 3});
  const auto device = NewSimtDevice({});
  const auto with = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
  const auto without = *cuda::DiffusionModel::Upload(*device, process.spec(), {}, 0);
  EXPECT_FALSE(with.tables_per_sample());
  EXPECT_TRUE(without.tables_per_sample());
  const std::vector<float> conditions(without.class_embedding().begin(),
                                      without.class_embedding().end());
  std::vector<float> tables(3 * without.table_floats());
  cuda::ModulationArgs args = without.modulation();
  args.conditions = conditions.data();
  args.tables = tables.data();
  const auto stream = *device->NewStream();
  stream->Launch(args, 3);
  ASSERT_TRUE(stream->status().ok());
  for (size_t i = 0; i < tables.size(); ++i) EXPECT_EQ(tables[i], with.view().tables[i]);
}

TEST(DiffusionKernelTest, SaysWhatNoBlockHasMemoryFor) {
  const RandomDiffusion process({.hidden_dim = 200});
  DeviceOptions small;
  small.limits.shared_bytes = 8000;
  const auto system = BackendOn(small)->NewSystem(process.spec());
  EXPECT_EQ(system.status().code(), absl::StatusCode::kUnimplemented);
}

// The answers of both solvers to two samples.
std::vector<Solved> AllAnswers(const RandomDiffusion& process, const DeviceOptions& device) {
  const SolverRig rig(BackendOn(device), process.spec());
  const SampleInputs request{.num_samples = 2, .seed = 5};
  return {rig.Solve({.solver = "sequential"}, request),
          rig.Solve(CoarseNewton(process.spec().num_steps(), 2), request)};
}

std::vector<Solved> SequentialAnswer(const RandomDiffusion& process, const DeviceOptions& device) {
  const SolverRig rig(BackendOn(device), process.spec());
  return {rig.Solve({.solver = "sequential"}, SampleInputs{.num_samples = 2, .seed = 5})};
}

bool Differ(const std::vector<Solved>& a, const std::vector<Solved>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i].reports.empty() || !a[i].SameAnswers(b[i])) return true;
    if (a[i].reports[0].error_estimate != b[i].reports[0].error_estimate) return true;
  }
  return false;
}

using Answers = std::vector<Solved>(const RandomDiffusion& process, const DeviceOptions& device);

// The answers for all processes under other orders of warps than the one of `{}`.
auto Orders(const std::vector<RandomDiffusion>& processes, const DeviceOptions& options = {},
            Answers* answers = AllAnswers) {
  DeviceOptions plain;
  plain.limits.grid_blocks = options.limits.grid_blocks;
  std::vector<std::vector<Solved>> right;
  for (const RandomDiffusion& process : processes) right.push_back(answers(process, plain));
  return simt::OrdersOfWarps(
      [=, &processes, right = std::move(right)](const simt::Schedule& schedule) {
        DeviceOptions device = options;
        device.schedule = schedule;
        for (size_t i = 0; i < processes.size(); ++i)
          if (Differ(right[i], answers(processes[i], device))) return true;
        return false;
      });
}

TEST(DiffusionKernelTest, EveryBarrierIsNeeded) {
  const std::vector<RandomDiffusion> processes = BothDenoisers(40, 7);
  const auto orders = Orders(processes);
  for (const int site : {int{cuda::kAfterInitialState}, int{cuda::kAfterCoarseState}})
    EXPECT_TRUE(orders.Notice(site)) << "site " << site;
  for (int site = cuda::kAfterInputLayer; site < cuda::kNumDenoiserSites; ++site) {
    // That of the coarse guess, and one of states that are wider than what a warp writes at a time.
    if (site == cuda::kAfterPrediction || site == cuda::kAfterNorm) continue;
    EXPECT_TRUE(orders.Notice(site)) << "site " << site;
  }
}

// ---- Weights in registers, where a block has a warp for every panel of a layer
TEST(HeldLayersTest, HaveTheBitsOfLayersThatAreReadEveryStep) {
  for (const int64_t hidden_dim : {5, 40, 120, 128}) {
    for (const int64_t num_blocks : {1, 3, 4}) {  // three are held
      const RandomDiffusion process({.state_dim = 12,
                                     .hidden_dim = hidden_dim,
                                     .num_blocks = num_blocks,
                                     .num_steps = 7,
                                     .output_gain = 0.2});
      DeviceOptions many_warps, one_warp;
      many_warps.limits.max_warps = cuda::kMaxBlockWarps;
      one_warp.limits.max_warps = 1;
      const auto device = NewSimtDevice({});
      const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
      EXPECT_TRUE(cuda::HoldsLayers(model.view(), 1, many_warps.limits.max_warps));
      EXPECT_FALSE(cuda::HoldsLayers(model.view(), 1, one_warp.limits.max_warps));
      EXPECT_FALSE(Differ(AllAnswers(process, one_warp), AllAnswers(process, many_warps)))
          << hidden_dim << " " << num_blocks;
    }
  }
}

// The barriers of a sequential step that keeps weights in registers.
TEST(HeldLayersTest, EveryBarrierIsNeeded) {
  std::vector<RandomDiffusion> processes;
  processes.emplace_back(DiffusionOptions{
      .state_dim = 12, .hidden_dim = 40, .num_blocks = 4, .num_steps = 5, .output_gain = 0.2});
  DeviceOptions device;
  device.limits.max_warps = cuda::kMaxBlockWarps;
  const auto orders = Orders(processes, device, SequentialAnswer);
  for (const int site : {int{cuda::kAfterInitialState}, int{cuda::kAfterInputLayer},
                         int{cuda::kAfterResidualBlock}, int{cuda::kAfterReverseStep}})
    EXPECT_TRUE(orders.Notice(site)) << "site " << site;
}

// ---- Layers in shared memory while intervals are propagated
// A device on which every pass of a solve has launches of its own.
DeviceOptions PassByPass() {
  DeviceOptions options;
  options.limits.grid_blocks = 0;
  return options;
}

// By blocks of one interval, some or eight of them, and with one step an interval or three, of
// which the last one lacks some.
TEST(ResidentLayersTest, BitsDependOnNoShapeOfALaunch) {
  for (const auto& [state_dim, hidden_dim] :
       {std::pair{5, 30}, std::pair{16, 40}, std::pair{17, 64}, std::pair{12, 128}}) {
    const RandomDiffusion process({.state_dim = state_dim,
                                   .hidden_dim = hidden_dim,
                                   .num_blocks = 2,
                                   .num_steps = 11,
                                   .output_gain = 0.2});
    const auto device = NewSimtDevice({});
    EXPECT_TRUE(cuda::DiffusionModel::Upload(*device, process.spec(), {})->is_resident());
    const SampleInputs request{.num_samples = 2, .seed = 5};
    for (const int64_t interval : {1, 3}) {
      const ResolvedOptions options = CoarseNewton(11, interval);
      const Solved right =
          SolverRig(BackendOn(PassByPass()), process.spec()).Solve(options, request);
      ASSERT_FALSE(right.reports.empty());
      EXPECT_TRUE(right.reports[0].converged && !right.reports[0].fallback);
      for (const int multiprocessors : {1, 3, 8, 22}) {
        DeviceOptions other = PassByPass();
        other.limits.multiprocessors = multiprocessors;
        const Solved solved = SolverRig(BackendOn(other), process.spec()).Solve(options, request);
        EXPECT_TRUE(right.SameAnswers(solved)) << state_dim << " " << hidden_dim;
        EXPECT_EQ(right.reports[0].error_estimate, solved.reports[0].error_estimate);
      }
    }
  }
}

// Rounded factors lead to the same answer as exact ones, in no more passes.
TEST(ResidentLayersTest, TakesNoMorePassesThanExactTangents) {
  const RandomDiffusion process(
      {.state_dim = 12, .hidden_dim = 40, .num_blocks = 3, .num_steps = 40, .output_gain = 0.4});
  DeviceOptions small = PassByPass();
  small.limits.shared_bytes = 50'000;  // for steps, and not for layers
  const SampleInputs request{.num_samples = 3, .seed = 5};
  const ResolvedOptions options = CoarseNewton(40, 1);
  const Solved rounded = SolverRig(BackendOn(PassByPass()), process.spec()).Solve(options, request);
  const Solved exact = SolverRig(BackendOn(small), process.spec()).Solve(options, request);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_TRUE(rounded.reports[s].converged && !rounded.reports[s].fallback);
    EXPECT_LE(rounded.reports[s].iterations, exact.reports[s].iterations);
    EXPECT_LE(*rounded.reports[s].error_estimate, 2 * *exact.reports[s].error_estimate);
  }
}

// Probes pick up the same rounding as where layers are not resident, but for that of factors; with
// intervals of one step and of several, activations with and without kinks, and one block for all
// intervals or several.
TEST(ResidentLayersTest, ProbesAreThoseOfExactTangents) {
  struct Case {
    int64_t state_dim, hidden_dim, num_blocks;
    Activation activation;
    double output_gain;
  };
  for (const auto& [state_dim, hidden_dim, num_blocks, activation, output_gain] :
       {Case{5, 30, 1, Activation::kSilu, 0.3}, Case{16, 40, 3, Activation::kTanh, 0.3},
        Case{17, 64, 5, Activation::kRelu, 0.1}, Case{32, 33, 2, Activation::kGelu, 0.3},
        Case{12, 128, 2, Activation::kSilu, 0.3}}) {
    const RandomDiffusion process({.state_dim = state_dim,
                                   .hidden_dim = hidden_dim,
                                   .num_blocks = num_blocks,
                                   .num_steps = 13,
                                   .activation = activation,
                                   .output_gain = output_gain});
    DeviceOptions one_block, small;
    one_block.limits.multiprocessors = 1;
    const auto device = NewSimtDevice({});
    const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
    small.limits.shared_bytes = cuda::ResidentBytes(model.view(), 1) - 4;
    for (const int64_t interval : {1, 3}) {
      const ResolvedOptions options = CoarseNewton(13, interval);
      const SampleInputs request{.num_samples = 2, .seed = 5};
      const Solved exact = SolverRig(BackendOn(small), process.spec()).Solve(options, request);
      for (const DeviceOptions& large : {DeviceOptions(), one_block}) {
        const Solved solved = SolverRig(BackendOn(large), process.spec()).Solve(options, request);
        for (size_t s = 0; s < 2; ++s) {
          // Otherwise their signs differ.
          EXPECT_EQ(solved.reports[s].iterations, exact.reports[s].iterations);
          EXPECT_NEAR(*solved.reports[s].rounding_estimate / *exact.reports[s].rounding_estimate, 1,
                      0.01)
              << state_dim << " " << hidden_dim << " " << interval;
        }
      }
    }
  }
}

// Of intervals of several steps, in blocks of several intervals. That before the numbers of
// elements are replaced is not seen to be needed: products of tiles, which wait for all lanes but
// order no memory, come between.
TEST(ResidentLayersTest, EveryBarrierIsNeeded) {
  std::vector<RandomDiffusion> processes;
  processes.emplace_back(DiffusionOptions{
      .state_dim = 12, .hidden_dim = 70, .num_blocks = 2, .num_steps = 10, .output_gain = 0.2});
  DeviceOptions device = PassByPass();
  device.limits.multiprocessors = 2;
  const auto orders = Orders(processes, device);
  for (int site = cuda::kAfterResidentEntries; site < cuda::kNumResidentSites; ++site)
    EXPECT_EQ(orders.Notice(site), site != cuda::kBeforeElements) << "site " << site;
}

// ---- Wide layers, which a cluster of blocks shares, or all blocks of a launch
constexpr int kWideHidden = 250;

// A cluster takes the samples one by one, a block takes both together.
TEST(WideDenoiserTest, AClusterHasTheBitsOfABlock) {
  for (const RandomDiffusion& process : BothDenoisers(kWideHidden, 5)) {
    DeviceOptions one_block, blocks;
    one_block.limits.multiprocessors = 1;
    one_block.limits.grid_blocks = blocks.limits.grid_blocks = 0;
    const auto device = NewSimtDevice({});
    const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
    EXPECT_EQ(cuda::ChooseTeams(model.view(), 2, one_block.limits).num_blocks, 1);
    EXPECT_EQ(cuda::ChooseTeams(model.view(), 2, blocks.limits).num_blocks, 4);
    EXPECT_FALSE(Differ(AllAnswers(process, one_block), AllAnswers(process, blocks)));
  }
}

// With more samples than clusters a team takes several together, each with its own noise and class.
TEST(WideDenoiserTest, SamplesTogetherHaveTheBitsOfSamplesAlone) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const RandomDiffusion process({.kind = kind,
                                   .state_dim = 12,
                                   .hidden_dim = kWideHidden,
                                   .num_steps = 3,
                                   .num_classes = 3,
                                   .output_gain = 0.2});
    const auto device = NewSimtDevice({});
    const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
    EXPECT_EQ(cuda::ChooseTeams(model.view(), 7, device->limits()).samples, 4);
    const SolverRig rig(BackendOn({}), process.spec());
    const std::vector<int32_t> labels = {2, 0, 1, 1, 2, 0, 2};
    const Solved together = rig.Solve({.solver = "sequential"},
                                      SampleInputs{.num_samples = 7, .seed = 5, .labels = labels});
    for (int64_t s = 0; s < 7; ++s) {
      const Solved alone =
          rig.Solve({.solver = "sequential"}, SampleInputs{.num_samples = 1,
                                                           .seed = 5,
                                                           .first_sample = static_cast<uint64_t>(s),
                                                           .labels = {&labels[s], 1}});
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(),
                             together.trajectory.begin() + s * 4 * 12))
          << "sample " << s;
      EXPECT_TRUE(
          std::equal(alone.outputs.begin(), alone.outputs.end(), together.outputs.begin() + s * 12))
          << "sample " << s;
    }
  }
}

TEST(WideDenoiserTest, EveryBarrierIsNeeded) {
  const std::vector<RandomDiffusion> processes = BothDenoisers(kWideHidden, 4);
  const auto orders = Orders(processes);
  for (int site = cuda::kAfterInputLayer; site < cuda::kNumDenoiserSites; ++site)
    EXPECT_TRUE(orders.Notice(site)) << "site " << site;
}

// Both samples share a cluster. One of the barriers is that of the coarse guess, and one that of a
// state alone.
TEST(WideDenoiserTest, EveryBarrierOfSamplesTogetherIsNeeded) {
  const std::vector<RandomDiffusion> processes = BothDenoisers(kWideHidden, 4);
  DeviceOptions device;
  device.limits.multiprocessors = 4;
  device.limits.grid_blocks = 0;
  const auto orders = Orders(processes, device, SequentialAnswer);
  for (int site = cuda::kAfterInputLayer; site < cuda::kNumDenoiserSites; ++site)
    EXPECT_EQ(orders.Notice(site), site != cuda::kAfterPrediction && site != cuda::kAfterNorm)
        << "site " << site;
}

// These states are too wide for a warp, so the loop runs on the host.
TEST(WideDiffusionTest, NewtonAgreesWithSequential) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const RandomDiffusion process(
        {.kind = kind, .state_dim = 40, .hidden_dim = 30, .num_steps = 9, .output_gain = 0.2});
    const std::vector<Solved> answers = AllAnswers(process, {});
    const std::vector<double> want(answers[0].trajectory.begin(), answers[0].trajectory.end());
    EXPECT_LE(RelativeError(answers[1].trajectory, want, 40, 1e-2), 1e-4);
    for (const SampleReport& report : answers[1].reports)
      EXPECT_TRUE(report.converged && !report.fallback);
  }
}

}  // namespace
}  // namespace deeppcr::testing
