// SPDX-License-Identifier: Apache-2.0
// What conditions give, of samples that are encoded in any order, again, and alone.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/program/system.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"
#include "tests/kernels/program/draft.h"

namespace deeppcr::cpu {
namespace {

using program::Draft;
using program::Op;
using program::Program;

constexpr int64_t kDim = 3, kInputs = 2, kSteps = 4;

// A denoiser that reads the condition alone, and with the time.
Program Conditioned() {
  Draft draft(3);
  const auto z = draft.State(kDim);
  const auto condition = draft.Condition(kInputs);
  const auto alone = draft.Do(Op::kTanh, {draft.Linear(condition, kDim)});
  const auto mixed =
      draft.Do(Op::kSin, {draft.Linear(draft.Concatenate({condition, draft.Time()}), kDim)});
  const auto said = draft.Multiply(draft.Add(draft.Do(Op::kTanh, {z}), alone), mixed);
  return draft.Finish(draft.ReverseStep(z, said), said);
}

class ConditionRowsTest : public ::testing::TestWithParam<size_t> {
 protected:
  ConditionRowsTest() : program_(Conditioned()) {
    for (int64_t l = 0; l < kSteps; ++l)
      steps_.push_back(
          {.timestep = static_cast<double>(l), .x0_z = 1, .x0_m = -0.5, .z_z = 0.5, .z_x0 = 0.4});
    spec_ = {.state_dim = kDim,
             .steps = steps_,
             .clip_range = std::numeric_limits<double>::infinity(),
             .program = &program_,
             .step_weights = 1,
             .condition_dim = kInputs};
    packed_ =
        *PackProgramSystem(spec_, testing::KernelsOfThisMachine()[GetParam()].set, PackingLimits{});
  }

  static void Encode(Recurrence& recurrence, int32_t sample, int condition, float* state) {
    static constexpr std::array<float, kDim> kNoise = {0.3F, -0.7F, 1.1F};
    static constexpr std::array<std::array<float, kInputs>, 3> kConditions = {
        {{1, 2}, {-1, 0.5F}, {0.25F, -3}}};
    SampleInput input;
    input.inputs = kConditions[static_cast<size_t>(condition)].data();
    input.initial_noise = kNoise.data();
    recurrence.Encode(sample, input, state);
  }
  // The last state under a condition, with a recurrence that encodes nothing else.
  std::vector<float> Alone(int condition) const {
    const auto recurrence = packed_->NewRecurrence();
    std::vector<float> state(static_cast<size_t>(packed_->width));
    Encode(*recurrence, 0, condition, state.data());
    recurrence->Advance(state.data(), 1, 0, kSteps, nullptr);
    return {state.begin(), state.begin() + kDim};
  }

  Program program_;
  std::vector<ReverseStep> steps_;
  DiffusionProgramSpec spec_;
  std::unique_ptr<PackedSystem> packed_;
};

TEST_P(ConditionRowsTest, AnyOrderOfSamplesHasTheSameBits) {
  const std::array<std::vector<float>, 3> want = {Alone(0), Alone(1), Alone(2)};
  ASSERT_NE(want[0], want[1]);
  ASSERT_NE(want[1], want[2]);
  const auto recurrence = packed_->NewRecurrence();
  const int32_t samples = packed_->group;
  ASSERT_GE(samples, 3);
  const int64_t width = packed_->width;
  std::vector<float> states(static_cast<size_t>(samples * width));
  std::vector<int> conditions(static_cast<size_t>(samples));
  for (int32_t b = 0; b < samples; ++b) Encode(*recurrence, b, 0, states.data() + b * width);
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    // Some samples again, in any order; the others keep what they have.
    for (int again = static_cast<int>(random() % 6); again >= 0; --again) {
      const auto b = static_cast<int32_t>(random() % static_cast<uint64_t>(samples));
      conditions[static_cast<size_t>(b)] = static_cast<int>(random() % 3);
      Encode(*recurrence, b, conditions[static_cast<size_t>(b)], states.data() + b * width);
    }
    std::vector<float> last = states;
    recurrence->Advance(last.data(), samples, 0, kSteps, nullptr);
    for (int32_t b = 0; b < samples; ++b) {
      const float* state = last.data() + b * width;
      ASSERT_EQ(std::vector<float>(state, state + kDim),
                want[static_cast<size_t>(conditions[static_cast<size_t>(b)])])
          << "round " << round << ", sample " << b;
    }
  }
}

// A denoiser to which a condition gives `once` elements for all steps and `per_step` for each.
Program Giving(int64_t once, int64_t per_step) {
  Draft draft(3);
  const auto z = draft.State(kDim), condition = draft.Condition(kInputs), time = draft.Time();
  const auto sum_with_state = [&](program::ValueId wide, int64_t size) {
    const auto of_state =
        draft.Arrange({z}, std::vector<program::Element>(static_cast<size_t>(size), {0, 0}));
    const auto sum = draft.Along(Op::kSum, draft.Multiply(of_state, wide), {1, size, 1});
    return draft.Arrange({sum}, std::vector<program::Element>(kDim, {0, 0}));
  };
  const auto wide = [&](program::ValueId from, int64_t size) {
    return draft.Arrange({from}, std::vector<program::Element>(static_cast<size_t>(size), {0, 0}));
  };
  const auto mixed = draft.Do(Op::kSin, {draft.Linear(draft.Concatenate({condition, time}), 1)});
  const auto said = draft.Add(sum_with_state(wide(condition, once), once),
                              sum_with_state(wide(mixed, per_step), per_step));
  return draft.Finish(draft.ReverseStep(z, said), said);
}

TEST_P(ConditionRowsTest, ABudgetBoundsWhatConditionsGive) {
  constexpr int64_t kOnce = 4096, kPerStep = 1 << 16, kRowBytes = kPerStep * 4;
  constexpr int64_t kOnceBytes = (kOnce + 16) * 4;  // what depends on the time reads the inputs too
  const Program program = Giving(kOnce, kPerStep);
  const auto pack = [&](int64_t num_steps, int64_t max_workspace_bytes = INT64_MAX) {
    const std::vector<ReverseStep> steps(static_cast<size_t>(num_steps), steps_[0]);
    DiffusionProgramSpec spec = spec_;
    spec.steps = steps;
    spec.program = &program;
    return PackProgramSystem(spec, testing::KernelsOfThisMachine()[GetParam()].set,
                             {.max_workspace_bytes = max_workspace_bytes});
  };
  constexpr int64_t kFit = (kMostConditionBytes - kOnceBytes) / kRowBytes;
  struct Case {
    int64_t steps;
    int32_t group;
  };
  // As many as ever; no fewer than eight while these fit; as many as fit; one.
  for (const Case c :
       {Case{3, kDiffusionGroup}, Case{100, 8}, Case{kFit / 5, 5}, Case{kFit - 10, 1}}) {
    const auto packed = pack(c.steps);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ((*packed)->group, c.group) << c.steps;
    const int64_t rows = c.group * (kOnceBytes + c.steps * kRowBytes);
    EXPECT_LE(rows, kMostConditionBytes);
    EXPECT_GE((*packed)->RecurrenceBytes(), rows);
  }
  // A workspace that is too small for eight of them is for fewer; one has to be.
  constexpr int64_t kSample = kOnceBytes + 100 * kRowBytes;
  const int64_t of_eight = (*pack(100))->RecurrenceBytes();
  for (const int64_t fewer : {0, 1, 3, 7, 8}) {
    const int64_t room = of_eight - fewer * kSample;
    const auto packed = pack(100, (room + 64 * kDiffusionGroup) / 7 * 8 + 8);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ((*packed)->group, std::max<int64_t>(1, 8 - fewer));
  }
  const absl::Status refused = pack(kFit + 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(),
            absl::StrCat("a condition gives ", kOnceBytes, " bytes, and ", kRowBytes,
                         " for each of ", kFit + 1, " steps: ", kOnceBytes + (kFit + 1) * kRowBytes,
                         " bytes a sample; ", kMostConditionBytes, " are allowed"));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, ConditionRowsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
