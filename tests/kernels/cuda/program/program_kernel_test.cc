// SPDX-License-Identifier: Apache-2.0
// Properties of the kernels of step programs that random programs and the conformance tests do not
// see: clusters that share a step, columns that do not fit one step together, vectors that are
// copied for a layer, and the need for each barrier.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/program/model.h"
#include "tests/kernels/cuda/program/mixer.h"
#include "tests/testing/expect_error.h"
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

std::unique_ptr<Backend> BackendOn(const DeviceOptions& options) {
  return cuda::NewCudaBackend(NewSimtDevice(options));
}

// The answers of both solvers to two samples with conditions of their own, and what one sweep makes
// of the coarse guess.
std::vector<Solved> AllAnswers(const SystemSpec& spec, const DeviceOptions& device) {
  const SolverRig rig(BackendOn(device), spec);
  const SystemShape shape = ShapeOf(spec);
  std::vector<float> conditions;
  for (int64_t i = 0; i < 2 * shape.input_dim; ++i)
    conditions.push_back(std::sin(static_cast<float>(i + 1)));
  const SampleInputs request{.num_samples = 2, .inputs = conditions, .seed = 5};
  ResolvedOptions newton = OptionsFor("newton", shape.num_steps, 2, 1e-4);
  newton.initial_guess = InitialGuess::kCoarse;
  ResolvedOptions sweep = OptionsFor("picard", shape.num_steps, 2, 1e-4);
  sweep.initial_guess = InitialGuess::kCoarse;
  sweep.max_iterations = 1;
  sweep.on_no_convergence = OnNoConvergence::kReturn;
  return {rig.Solve({.solver = "sequential"}, request), rig.Solve(newton, request),
          rig.Solve(sweep, request)};
}

bool Differ(const std::vector<Solved>& a, const std::vector<Solved>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i].reports.empty() || !a[i].SameAnswers(b[i])) return true;
    if (a[i].reports[0].error_estimate != b[i].reports[0].error_estimate) return true;
  }
  return false;
}

// A device whose steps are made by blocks and clusters; grid_steps_test.cc has those of all blocks.
DeviceOptions Teams() {
  DeviceOptions options;
  options.limits.grid_blocks = 0;
  return options;
}

// Whether leaving out the barrier of a site shows in the answers to any of the specs.
class Barriers {
 public:
  explicit Barriers(const std::vector<SystemSpec>& specs) {
    for (const SystemSpec& spec : specs)
      orders_.emplace_back(Differs{spec, AllAnswers(spec, Teams())}, 3);
  }
  bool Notice(int site) const {
    return std::ranges::any_of(orders_, [&](const auto& order) { return order.Notice(site); });
  }

 private:
  struct Differs {
    SystemSpec spec;
    std::vector<Solved> right;
    bool operator()(const simt::Schedule& schedule) const {
      DeviceOptions device = Teams();
      device.schedule = schedule;
      return Differ(right, AllAnswers(spec, device));
    }
  };
  std::deque<simt::OrdersOfWarps<Differs>> orders_;
};

TEST(ProgramKernelTest, EveryBarrierIsNeeded) {
  const ProgramProcess narrow(Mixer(40), kDim, 5);
  const ProgramProcess wide(Mixer(256), kDim, 4);
  const RandomDiffusion carrying = WithMemory(20);
  const Barriers barriers({narrow.spec(), wide.spec(), carrying.spec()});
  for (const int site : {int{cuda::kAfterInitialState}, int{cuda::kAfterCoarseState},
                         int{cuda::kAfterConditionInputs}})
    EXPECT_TRUE(barriers.Notice(site)) << "site " << site;
  for (int site = cuda::kBeforeInstruction; site < cuda::kNumProgramSites; ++site)
    EXPECT_TRUE(barriers.Notice(site)) << "site " << site;
}

TEST(ProgramKernelTest, NewtonAgreesWithSequential) {
  const ProgramProcess narrow(Mixer(40), kDim, 9);
  const RandomDiffusion carrying = WithMemory(33);
  for (const SystemSpec& spec : {narrow.spec(), SystemSpec(carrying.spec())}) {
    const std::vector<Solved> answers = AllAnswers(spec, {});
    const std::vector<double> want(answers[0].trajectory.begin(), answers[0].trajectory.end());
    EXPECT_LE(RelativeError(answers[1].trajectory, want, ShapeOf(spec).state_dim, 1e-2), 1e-4);
    for (const SampleReport& report : answers[1].reports)
      EXPECT_TRUE(report.converged && !report.fallback);
  }
}

// A block and a cluster of blocks, few warps and many, all columns at once and a few at a time.
TEST(ProgramKernelTest, BitsDependOnNoShapeOfALaunch) {
  const ProgramProcess process(Mixer(256), kDim, 4);
  const auto device_of_model = NewSimtDevice({});
  const auto model = *cuda::ProgramModel::Upload(
      *device_of_model, std::get<DiffusionProgramSpec>(process.spec()), {});
  DeviceOptions one_block = Teams(), many_warps = Teams(), small = Teams();
  one_block.limits.multiprocessors = 1;
  many_warps.limits.max_warps = cuda::kMaxBlockWarps;
  small.limits.shared_bytes = 160'000;
  EXPECT_EQ(cuda::ChooseTeams(model.view(), 2, one_block.limits).num_blocks, 1);
  EXPECT_EQ(cuda::ChooseTeams(model.view(), 2, DeviceOptions{}.limits).num_blocks, 4);
  const int rows = cuda::StepRows(model.view(), DeviceOptions{}.limits);
  const int fewer = cuda::StepRows(model.view(), small.limits);
  EXPECT_GT(rows, fewer);
  EXPECT_GT(fewer, 0);
  const std::vector<Solved> right = AllAnswers(process.spec(), {});
  for (const DeviceOptions& device : {Teams(), one_block, many_warps, small})
    EXPECT_FALSE(Differ(right, AllAnswers(process.spec(), device)));
}

// What a layer of several vectors of a row makes, one vector at a time.
TEST(ProgramKernelTest, RepeatedLayersHaveTheBitsOfLayersOneByOne) {
  const auto made = [](bool repeated) {
    Draft draft(7);
    const ValueId z = draft.State(kDim);
    const program::LinearLayer layer = draft.Layer(kOfToken, kOfToken);
    ValueId m = program::kNoValue;
    if (repeated) {
      program::LinearLayer all = layer;
      all.repeat = kTokens;
      m = draft.Linear(z, all);
    } else {
      std::vector<ValueId> tokens;
      std::vector<program::Element> elements;
      for (int32_t t = 0; t < kTokens; ++t) {
        tokens.push_back(draft.Linear(draft.Slice(z, t * kOfToken, (t + 1) * kOfToken), layer));
        for (int64_t i = 0; i < kOfToken; ++i) elements.push_back({t, i});
      }
      m = draft.Arrange(tokens, elements);
    }
    return ProgramProcess(draft.Finish(draft.ReverseStep(z, m), m), kDim, 6);
  };
  const ProgramProcess together = made(true), apart = made(false);
  const Solved first = AllAnswers(together.spec(), {})[0], second = AllAnswers(apart.spec(), {})[0];
  EXPECT_TRUE(first.SameAnswers(second));
}

TEST(ProgramKernelTest, SaysWhatNoBlockHasMemoryFor) {
  const auto refusal = [](const Program& program, int64_t dim) {
    const ProgramProcess process(program, dim, 3);
    return BackendOn({})->NewSystem(process.spec()).status();
  };
  ExpectError(refusal(Mixer(4000), kDim), absl::StatusCode::kUnimplemented,
              "a block of this GPU has no memory for the values of a step of the step program; "
              "--backend cpu can run this model");
  Draft draft;
  const ValueId z = draft.State(2), given = draft.Linear(draft.Condition(kConditionDim), 60'000);
  const ValueId m = draft.Add(z, draft.Linear(draft.Do(Op::kSilu, {given}), 2));
  ExpectError(refusal(draft.Finish(draft.ReverseStep(z, m), m), 2),
              absl::StatusCode::kUnimplemented,
              "a block of this GPU has no memory for the values of a condition");
  Draft wide;
  const ValueId state = wide.State(257);
  ExpectError(refusal(wide.Finish(wide.ReverseStep(state, state), state), 257),
              absl::StatusCode::kUnimplemented, "takes 1 .. 256, got 257");
}

}  // namespace
}  // namespace deeppcr::testing
