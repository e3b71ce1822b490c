// SPDX-License-Identifier: Apache-2.0
// Properties of the way back of step programs that random programs and the conformance tests do not
// see: blocks that take many intervals, frames that no block has shared memory for, launches of a
// few steps, and the need for each barrier.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/program/backward_kernel.h"
#include "kernels/cuda/program/backward_shape.h"
#include "kernels/cuda/program/backward_space.h"
#include "kernels/cuda/program/model.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cuda/program/mixer.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;

std::vector<float> Waves(int64_t n, float frequency) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < n; ++i)
    numbers.push_back(std::sin(frequency * static_cast<float>(i + 1)));
  return numbers;
}

// Two samples at any states, with as many cotangents each.
class WayBack {
 public:
  WayBack(const SystemSpec& spec, int64_t columns)
      : spec_(spec), shape_(ShapeOf(spec)), conditions_(Waves(2 * shape_.input_dim, 1)) {
    request_ = {.samples = {.num_samples = 2, .inputs = conditions_, .seed = 5},
                .states = Waves(2 * (shape_.num_steps + 1) * shape_.state_dim, 0.7F),
                .columns = columns,
                .of_outputs = Waves(2 * columns * shape_.output_dim, 0.3F),
                .state_cotangents = columns == 1};
  }
  WayBack(const WayBack&) = delete;

  const BackwardRequest& request() const { return request_; }
  const SystemShape& shape() const { return shape_; }
  BackwardRig On(const DeviceOptions& device) const {
    return {cuda::NewCudaBackend(NewSimtDevice(device)), spec_};
  }
  // By both ways.
  std::vector<Gradients> On(const DeviceOptions& device, int64_t interval) const {
    const BackwardRig rig = On(device);
    return {rig.Sequential(request_), rig.ScannedTogether(request_, interval)};
  }
  std::vector<Gradients> ByReference() const {
    const BackwardRig rig(reference::NewReferenceBackend(), spec_);
    return {rig.Sequential(request_)};
  }

 private:
  const SystemSpec spec_;
  const SystemShape shape_;
  const std::vector<float> conditions_;
  BackwardRequest request_;
};

bool Differ(const std::vector<Gradients>& a, const std::vector<Gradients>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!a[i].SameBits(b[i])) return true;
  return false;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error = std::fmax(error, std::fabs(double{a[i]} - b[i]));
    scale = std::fmax(scale, std::fabs(double{b[i]}));
    if (!std::isfinite(a[i])) return INFINITY;
  }
  return error == 0 ? 0 : error / scale;
}

TEST(ProgramBackwardTest, BothWaysAgreeWithTheReference) {
  const ProgramProcess process(Mixer(40), kDim, 37);
  const RandomDiffusion carrying = WithMemory(21);
  for (const SystemSpec& spec : {process.spec(), SystemSpec(carrying.spec())}) {
    for (const int64_t columns : {1, 3, 20}) {
      const WayBack way(spec, columns);
      const Gradients right = way.ByReference()[0];
      for (const Gradients& made : way.On({}, 2)) {
        EXPECT_LE(LargestDifference(made.initial, right.initial), 1e-5);
        EXPECT_LE(LargestDifference(made.inputs, right.inputs), 1e-5);
        EXPECT_LE(LargestDifference(made.step_noise, right.step_noise), 1e-5);
        EXPECT_LE(LargestDifference(made.state_cotangents, right.state_cotangents), 1e-5);
      }
    }
  }
}

// Many blocks, and few that take one interval after another, few warps and many, frames in shared
// memory and in a workspace.
TEST(ProgramBackwardTest, BitsDependOnNoShapeOfALaunch) {
  const ProgramProcess process(Mixer(48), kDim, 7);
  DeviceOptions few_blocks, many_warps, small;
  few_blocks.limits.multiprocessors = 1;
  many_warps.limits.max_warps = cuda::kMaxBlockWarps;
  small.limits.shared_bytes = 60'000;
  const auto device_of_model = NewSimtDevice({});
  const auto model = *cuda::ProgramModel::Upload(
      *device_of_model, std::get<DiffusionProgramSpec>(process.spec()), {.backward = true});
  const auto shape = [&](const DeviceOptions& on) {
    return cuda::RetreatShape(model.back(), true, 20, on.limits);
  };
  EXPECT_EQ(cuda::BlocksOf(shape(few_blocks), 100), cuda::kBackBlocks);
  EXPECT_GT(cuda::BlocksOf(shape({}), 100), cuda::kBackBlocks);
  EXPECT_TRUE(shape(small).frames_in_workspace);
  EXPECT_FALSE(shape({}).frames_in_workspace);
  for (const int64_t columns : {1, 20}) {
    const WayBack way(process.spec(), columns);
    const std::vector<Gradients> right = way.On({}, 2);
    for (const DeviceOptions& device : {few_blocks, many_warps, small})
      EXPECT_FALSE(Differ(right, way.On(device, 2)));
  }
}

// Intervals that take one multiprocessor too long for a single launch, and many ones do not.
TEST(ProgramBackwardTest, LongIntervalsGoBackInPieces) {
  const ProgramProcess process(Mixer(16), kDim, 60, 200'000);
  const WayBack way(process.spec(), 1);
  DeviceOptions small, large;
  small.limits.multiprocessors = 1;
  large.limits.multiprocessors = 132;
  const Gradients pieces = way.On(small).ScannedTogether(way.request(), 30);
  const Gradients whole = way.On(large).ScannedTogether(way.request(), 30);
  EXPECT_TRUE(pieces.SameBits(whole));
  EXPECT_EQ(pieces.count.stages, whole.count.stages);
  EXPECT_EQ(pieces.count.stages, 30 + 1 + 30);
  // The launches of the large device are not enough for the small one.
  const auto suffice = [&](DeviceOptions device, int launches) {
    device.fail_after = launches;
    const BackwardRig rig = way.On(device);
    const auto space = *rig.system().NewBackwardSpace({.min_shooting_interval = 30});
    const SampleInput input = InputOf(way.request().samples, 0, nullptr);
    space->Begin(0, {.input = &input,
                     .states = way.request().states.data(),
                     .of_outputs = way.request().of_outputs.data()});
    std::get<BackwardScan*>(space->scan())->GoBack(1, 30);
    return space->status().ok();
  };
  int launches = 1;
  while (!suffice(large, launches)) ++launches;
  EXPECT_FALSE(suffice(small, launches));
}

// Steps over the whole GPU are quicker than those of a block, which makes the way back: launches
// are as long, and take the same memory, where there are none.
TEST(ProgramBackwardTest, IsNoStepOfTheWholeGpu) {
  const ProgramProcess process(Mixer(256), kDim, 12, 30'000'000);
  const WayBack way(process.spec(), 1);
  DeviceOptions grid, none;
  none.limits.grid_blocks = 0;
  const auto launches = [&](DeviceOptions device) {
    device.fail_after = 0;
    for (;; ++device.fail_after) {
      const BackwardRig rig = way.On(device);
      const auto space = *rig.system().NewBackwardSpace({.min_shooting_interval = 12});
      const SampleInput input = InputOf(way.request().samples, 0, nullptr);
      space->Begin(0, {.input = &input,
                       .states = way.request().states.data(),
                       .of_outputs = way.request().of_outputs.data()});
      std::get<BackwardScan*>(space->scan())->GoBack(1, 12);
      if (space->status().ok()) return device.fail_after;
    }
  };
  EXPECT_EQ(launches(grid), launches(none));
  const auto bytes = [&](const DeviceOptions& device) {
    return way.On(device).system().BackwardSpaceBytes({.min_shooting_interval = 12});
  };
  EXPECT_EQ(bytes(grid), bytes(none));
}

// Spaces are made for the most intervals that a request may ask for.
TEST(ProgramBackwardTest, MatricesOfFewerIntervalsHaveRoom) {
  int64_t most = 0;
  for (int32_t intervals = 1; intervals <= 70000; ++intervals) {
    const cuda::RetreatTree tree = {intervals};
    const int top = tree.chain_level();
    ASSERT_LE(tree.nodes(top), cuda::kMostChained);
    ASSERT_EQ(tree.place(top, tree.nodes(top) - 1), tree.places() - 1);
    ASSERT_GE(tree.places(), most);
    most = tree.places();
  }
}

// Launches of a few steps each, as a long way back is cut into.
TEST(ProgramBackwardTest, PiecesHaveTheBitsOfTheWhole) {
  const ProgramProcess process(Mixer(40), kDim, 9);
  const WayBack way(process.spec(), 1);
  const BackwardRig rig = way.On({});
  const BackwardRequest& request = way.request();
  const auto go_back = [&](std::vector<int64_t> ends) {
    const auto space = *rig.system().NewBackwardSpace({.parallel = false});
    const SampleInput input = InputOf(request.samples, 0, nullptr);
    Gradients made;
    made.inputs.resize(static_cast<size_t>(way.shape().input_dim));
    made.initial.resize(kDim);
    made.step_noise.resize(static_cast<size_t>(way.shape().num_steps * kDim));
    space->Begin(0, {.input = &input,
                     .states = request.states.data(),
                     .of_outputs = request.of_outputs.data(),
                     .inputs = made.inputs.data(),
                     .initial = made.initial.data(),
                     .step_noise = made.step_noise.data()});
    for (size_t i = 0; i + 1 < ends.size(); ++i)
      EXPECT_EQ(space->Retreat(1, ends[i + 1], ends[i]), ends[i] - ends[i + 1]);
    space->Finish(0);
    return made;
  };
  EXPECT_TRUE(go_back({9, 0}).SameBits(go_back({9, 8, 3, 0})));
}

// Whether leaving out the barrier of a site shows in the gradients.
class BackwardBarriers {
 public:
  explicit BackwardBarriers(const std::vector<SystemSpec>& specs) {
    for (const SystemSpec& spec : specs) {
      for (const int64_t columns : {1, 2}) {
        const WayBack& way = ways_.emplace_back(spec, columns);
        orders_.emplace_back(Differs{way, way.On(Device({}), 2)}, 3);
      }
    }
  }
  bool Notice(int site) const {
    return std::ranges::any_of(orders_, [&](const auto& order) { return order.Notice(site); });
  }

 private:
  // Few blocks, which take one interval after another.
  static DeviceOptions Device(const simt::Schedule& schedule) {
    DeviceOptions device;
    device.limits.multiprocessors = 1;
    device.schedule = schedule;
    return device;
  }
  struct Differs {
    const WayBack& way;
    std::vector<Gradients> right;
    bool operator()(const simt::Schedule& schedule) const {
      return Differ(right, way.On(Device(schedule), 2));
    }
  };
  std::deque<WayBack> ways_;
  std::deque<simt::OrdersOfWarps<Differs>> orders_;
};

TEST(ProgramBackwardTest, EveryBarrierIsNeeded) {
  const ProgramProcess process(Mixer(40), kDim, 7);
  const BackwardBarriers barriers({process.spec()});
  for (int site = cuda::kBeforeBack; site < cuda::kNumProgramBackSites; ++site)
    EXPECT_TRUE(barriers.Notice(site)) << "site " << site;
  for (int site = cuda::kAfterBackState; site < cuda::kNumProgramBackwardSites; ++site)
    EXPECT_TRUE(barriers.Notice(site)) << "site " << site;
}

// Where a block has no memory for what a condition gives, a denoiser is served without its way
// back.
TEST(ProgramBackwardTest, ADenoiserIsServedWhereItCannotGoBack) {
  const RandomDiffusion process({.kind = DenoiserKind::kAdaLnMlp,
                                 .state_dim = 3,
                                 .hidden_dim = 64,
                                 .num_blocks = 12,
                                 .num_steps = 4,
                                 .condition_dim = 5});
  DeviceOptions small;
  small.limits.shared_bytes = 24'000;
  const auto backend = cuda::NewCudaBackend(NewSimtDevice(small));
  const auto system = backend->NewSystem(process.spec(), {.backward = true});
  ASSERT_TRUE(system.ok()) << system.status();
  EXPECT_TRUE((*system)->NewSpace({}).ok());
  EXPECT_TRUE(absl::IsUnimplemented((*system)->NewBackwardSpace({}).status()));
}

TEST(ProgramBackwardTest, NeedsAModelThatWasLoadedForIt) {
  const ProgramProcess process(Mixer(40), kDim, 3);
  const auto backend = cuda::NewCudaBackend(NewSimtDevice({}));
  const auto system = *backend->NewSystem(process.spec(), {.backward = false});
  ExpectError(system->NewBackwardSpace({}).status(), absl::StatusCode::kUnimplemented,
              "this backend has no backward pass");
}

}  // namespace
}  // namespace deeppcr::testing
