// SPDX-License-Identifier: Apache-2.0
// The diffusion family as spaces use it: encode, the sequential mode, guesses and decode, compared
// with plain loops; and bits that must agree. intervals_test.cc tests the iterative mode.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/team.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/problem/philox.h"
#include "tests/kernels/cpu/diffusion/diffusion_process.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using cpu::kColumns;

class DiffusionTest : public SetAndKindTest {};

TEST_P(DiffusionTest, AdvanceRunsThePlainProcessFromDrawnNoise) {
  for (const int64_t dim : {1, 3, 17}) {
    Process process({.kind = kind(), .state_dim = dim, .num_steps = 4}, set());
    const SampleInput input = {.seed = 11, .sample = 1234567890123};
    const std::vector<float> trajectory = process.Trajectory(input);
    std::vector<float> z0(dim);
    FillNormals(input.seed, input.sample, kInitialNoiseStep, dim, z0.data());
    ASSERT_TRUE(SameFloats(trajectory.data(), z0.data(), dim));
    Values<Bounded> z = Exactly<Bounded>(z0.data(), dim);
    for (int64_t l = 1; l <= process.steps; ++l) {
      z = process.PlainFrom(input, l - 1, l, z);
      for (int64_t i = 0; i < dim; ++i)
        ASSERT_NEAR(trajectory[l * dim + i], z[i].value, 2 * z[i].error) << "z_" << l;
    }
  }
}

TEST_P(DiffusionTest, NoiseOfTheCallerReplacesWhatWouldBeDrawn) {
  Process process({.kind = kind(), .state_dim = 5, .num_steps = 9}, set());
  const SampleInput drawn = {.seed = 7, .sample = 2};
  std::vector<float> initial(5), noise;
  FillNormals(7, 2, kInitialNoiseStep, 5, initial.data());
  for (int64_t i = 0; i < 9; ++i)
    for (const float x : process.Noise(drawn, i)) noise.push_back(x);
  const std::vector<float> expected = process.Trajectory(drawn);
  const SampleInput given = {.initial_noise = initial.data(), .step_noise = noise.data()};
  EXPECT_EQ(process.Trajectory(given), expected);
  noise[0] += 1;
  EXPECT_NE(process.Trajectory(given), expected);
  // A step with sigma 0 adds no noise, whatever the caller gives.
  ASSERT_EQ(process.random.spec().steps[8].sigma, 0);
  noise[0] -= 1;
  noise[8 * 5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(
      process.Trajectory({.initial_noise = initial.data(), .step_noise = noise.data()}).back(),
      process.Trajectory(given).back());
  EXPECT_TRUE(std::isfinite(process.FinalState(given)[0]));
}

TEST_P(DiffusionTest, SamplesOfAGroupHaveTheBitsTheyHaveAlone) {
  Process process({.kind = kind(), .state_dim = 3, .hidden_dim = 70, .num_steps = 6}, set());
  std::vector<std::vector<float>> alone;
  constexpr int32_t kGroup = cpu::kDiffusionGroup;
  ASSERT_EQ(process.packed->group, kGroup);
  for (uint64_t b = 0; b < kGroup; ++b)
    alone.push_back(process.Trajectory({.seed = 5, .sample = b}));
  for (const int32_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 24, kGroup}) {
    std::vector<float> states(n * process.width), trajectory(7 * 3);
    for (int32_t b = 0; b < n; ++b)
      process.recurrence->Encode(b, {.seed = 5, .sample = static_cast<uint64_t>(b)},
                                 states.data() + b * process.width);
    std::vector<float*> to(n, nullptr);
    to[n - 1] = trajectory.data();
    // Two calls: the second one continues where the first one ended.
    EXPECT_EQ(process.recurrence->Advance(states.data(), n, 0, 2, to.data()), 2);
    EXPECT_EQ(process.recurrence->Advance(states.data(), n, 2, 6, to.data()), 4);
    for (int32_t b = 0; b < n; ++b) {
      ASSERT_TRUE(SameFloats(states.data() + b * process.width, alone[b].data() + 6 * 3, 3));
      for (int64_t i = 3; i < process.width; ++i) ASSERT_EQ(states[b * process.width + i], 0.0F);
    }
    ASSERT_TRUE(SameFloats(trajectory.data() + 3, alone[n - 1].data() + 3, 6 * 3));
  }
}

// Shares of a product, done one after another.
struct InTurns {
  static void Share(void* self, void (*piece)(void*, int64_t, int64_t), void* context,
                    int64_t most) {
    auto* turns = static_cast<InTurns*>(self);
    ++turns->products;
    EXPECT_EQ(most, 9) << "panels of 64 outputs";
    for (int64_t i = turns->shares - 1; i >= 0; --i) piece(context, i, turns->shares);
  }
  int64_t shares = 1, products = 0;
};

TEST_P(DiffusionTest, LargeProductsAreSharedWithTheSameBits) {
  for (const int64_t hidden : {100, 520}) {
    Process process({.kind = kind(), .state_dim = 5, .hidden_dim = hidden, .num_blocks = 2}, set());
    const cpu::PackedProgramSystem& model = process.model();
    const auto states_after = [&](InTurns turns) {
      const cpu::Sharing sharing = {&InTurns::Share, &turns};
      cpu::Executor step(model.program.state, model.program_kernels, model.clip_range, 1, 0);
      float* state = step.Row(model.program.state_input, 0);
      for (int64_t i = 0; i < 5; ++i) state[i] = 0.3F * static_cast<float>(i) - 0.5F;
      const cpu::RowContext context = model.ContextOf(0, nullptr);
      step.Run(&context, 1, {}, turns.shares == 1 ? nullptr : &sharing);
      EXPECT_EQ(turns.products, turns.shares == 1 || hidden < 512      ? 0
                                : kind() == DenoiserKind::kResidualMlp ? 2
                                                                       : 4);
      const float* next = step.Row(model.program.output, 0);
      return std::vector<float>(next, next + 5);
    };
    const std::vector<float> alone = states_after({});
    for (const int64_t shares : {2, 3, 7, 16}) EXPECT_EQ(states_after({.shares = shares}), alone);
  }
}

TEST_P(DiffusionTest, ATeamLeavesTheBits) {
  Process process({.kind = kind(), .state_dim = 5, .hidden_dim = 520, .num_steps = 3}, set());
  const SampleInput input = {.seed = 3, .sample = 4};
  const std::vector<float> expected = process.Trajectory(input);
  Team team;
  std::thread first([&team] { team.Help(); }), second([&team] { team.Help(); });
  process.recurrence->SetTeam(&team);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(process.Trajectory(input), expected) << i;
  process.recurrence->SetTeam(nullptr);
  team.Disband();
  first.join();
  second.join();
  EXPECT_EQ(process.Trajectory(input), expected);
}

TEST_P(DiffusionTest, ClassTablesAndModulationPerSampleHaveTheSameBits) {
  const DiffusionOptions options = {
      .kind = kind(), .state_dim = 3, .hidden_dim = 20, .num_steps = 70, .num_classes = 4};
  Process tables(options, set()), per_sample(options, set(), 0);
  EXPECT_LT(per_sample.model().classes.size(), 1);
  EXPECT_GT(per_sample.packed->RecurrenceBytes(), tables.packed->RecurrenceBytes());
  // The tables replace the layers that they were made with.
  EXPECT_LT(tables.model().program.memory_bytes(), per_sample.model().program.memory_bytes());
  std::vector<std::vector<float>> seen;
  for (int32_t label = 0; label < 4; ++label) {
    seen.push_back(tables.FinalState({.label = label, .seed = 1}));
    EXPECT_EQ(per_sample.FinalState({.label = label, .seed = 1}), seen.back());
    for (int32_t other = 0; other < label; ++other) EXPECT_NE(seen[other], seen[label]);
  }
  // Plain loops show that the class is the right one.
  const std::vector<float> trajectory = tables.Trajectory({.label = 2, .seed = 1});
  const auto embedding = Exactly<Bounded>(tables.random.spec().class_embedding.data() + 2 * 20, 20);
  const auto z =
      tables.PlainFrom({.seed = 1}, 0, 2, Exactly<Bounded>(trajectory.data(), 3), embedding);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(trajectory[2 * 3 + i], z[i].value, 2 * z[i].error);
}

TEST_P(DiffusionTest, AConditionVectorModulatesEverySampleOnItsOwn) {
  Process process(
      {.kind = kind(), .state_dim = 3, .hidden_dim = 20, .num_steps = 3, .condition_dim = 7},
      set());
  std::vector<std::vector<float>> inputs = {process.random.Vector(7), process.random.Vector(7)};
  std::vector<float> states(2 * process.width);
  for (int32_t b = 0; b < 2; ++b)
    process.recurrence->Encode(b, {.inputs = inputs[b].data(), .seed = 4},
                               states.data() + b * process.width);
  const std::vector<float> z0(states.begin(), states.begin() + 3);
  process.recurrence->Advance(states.data(), 2, 0, 3, nullptr);
  for (int32_t b = 0; b < 2; ++b) {
    const auto condition =
        PlainDense(process.random.spec().condition, Exactly<Bounded>(inputs[b].data(), 7));
    const auto z = process.PlainFrom({.seed = 4}, 0, 3, Exactly<Bounded>(z0.data(), 3), condition);
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_NEAR(states[b * process.width + i], z[i].value, 2 * z[i].error) << "sample " << b;
  }
}

TEST_P(DiffusionTest, CoarseGuessHoldsTheDenoisedSample) {
  for (const int64_t steps : {5, 16, 40}) {
    Process process({.kind = kind(), .state_dim = 3, .num_steps = steps}, set());
    const SampleInput input = {.seed = 8};
    const DiffusionSpec& spec = process.random.spec();
    const std::vector<float> z0 = process.Encode(input);
    const int64_t every = (steps + 15) / 16;
    // The plain loops take x0 at every few steps, and m as far as it follows from x0.
    std::vector<Values<Bounded>> plain = {Exactly<Bounded>(z0.data(), 3)};
    Values<Bounded> x0(3);
    int64_t evaluations = 0;
    for (int64_t l = 0; l < steps; ++l) {
      const ReverseStep& s = spec.steps[l];
      const auto constant = [](double v) { return AsFloat<Bounded>(v); };
      if (l % every == 0) {
        ++evaluations;
        const auto m =
            PlainDenoiser(spec.denoiser, PlainModulation<Bounded>(spec, l, {}), plain[l]);
        for (int64_t i = 0; i < 3; ++i)
          x0[i] = constant(s.x0_z) * plain[l][i] + constant(s.x0_m) * m[i];
      }
      Values<Bounded> next;
      for (int64_t i = 0; i < 3; ++i) {
        const Bounded z = plain[l][i];
        Bounded sum = constant(s.z_z) * z + constant(s.z_x0) * PlainClip(spec.clip_range, x0[i]);
        if (s.z_m != 0)
          sum = sum + constant(s.z_m) * ((x0[i] - constant(s.x0_z) * z) / constant(s.x0_m));
        if (s.sigma != 0) sum = sum + constant(s.sigma) * Bounded(process.Noise(input, l)[i]);
        next.push_back(sum);
      }
      plain.push_back(next);
    }
    for (const int64_t interval : {1, 3, 5}) {
      const int64_t intervals = (steps - 1) / interval + 1, stride = kColumns * process.width;
      std::vector<float> states((intervals + 1) * stride, 77.0F);
      std::copy(z0.begin(), z0.end(), states.begin());
      const PassCount count =
          process.recurrence->GuessCoarse(interval, stride, states.data(), nullptr);
      EXPECT_EQ(count.stages, evaluations);
      EXPECT_EQ(count.columns, 1);
      for (int64_t p = 1; p <= intervals; ++p) {
        const Values<Bounded>& z = plain[std::min(p * interval, steps)];
        for (int64_t i = 0; i < 3; ++i)
          ASSERT_NEAR(states[p * stride + i], z[i].value, 2 * z[i].error) << "interval " << p;
        ASSERT_EQ(states[p * stride + 3], 0.0F) << "padding";
        ASSERT_EQ(states[p * stride + process.width], 77.0F) << "beyond the state";
      }
    }
  }
}

TEST_P(DiffusionTest, CoarseGuessIsFiniteWhateverTheNetworkSays) {
  Process process({.kind = kind(), .state_dim = 3, .num_steps = 20}, set());
  std::vector<float> bad = {std::numeric_limits<float>::max(), 0.5F, -0.5F};
  std::vector<float> states(21 * kColumns * process.width);
  const std::vector<float> z0 = process.Encode({.initial_noise = bad.data()});
  std::copy(z0.begin(), z0.end(), states.begin());
  process.recurrence->GuessCoarse(1, kColumns * process.width, states.data(), nullptr);
  for (const float x : states) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(DiffusionTest, DecodesAndKnowsHowMuchTheDecoderAmplifies) {
  for (const int64_t dim : {1, 3, 20}) {
    Process process({.kind = kind(), .state_dim = dim, .decoder = true}, set());
    const std::vector<float> z = process.Encode({.seed = 1});
    std::vector<float> outputs(9);
    process.recurrence->Decode(z.data(), outputs.data());
    const auto chain = [&](auto x) {
      for (const DenseSpec& layer : process.random.spec().decoder) x = PlainDense(layer, x);
      return x;
    };
    const auto expected = chain(Exactly<Bounded>(z.data(), dim));
    std::vector<Bounded> sums(9);
    for (int64_t i = 0; i < 9; ++i)
      EXPECT_NEAR(outputs[i], expected[i].value, 2 * expected[i].error);
    for (int64_t j = 0; j < dim; ++j) {
      const auto column = chain(Along<Bounded>(z.data(), UnitVector(dim, j)));
      for (int64_t i = 0; i < 9; ++i)
        sums[i] = Bounded(sums[i].value + std::fabs(column[i].slope.value),
                          sums[i].error + column[i].slope.error);
    }
    const Bounded largest = *std::max_element(
        sums.begin(), sums.end(), [](Bounded a, Bounded b) { return a.value < b.value; });
    EXPECT_NEAR(process.recurrence->OutputAmplification(z.data()), largest.value,
                2 * largest.error);
    std::vector<float> nan(z.size(), std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isinf(process.recurrence->OutputAmplification(nan.data())));
  }
}

TEST_P(DiffusionTest, WithoutADecoderTheAnswerIsTheState) {
  Process process({.kind = kind(), .state_dim = 3}, set());
  const std::vector<float> z = {1, 2, 3, 0};
  std::vector<float> outputs(4, 77.0F);
  process.recurrence->Decode(z.data(), outputs.data());
  EXPECT_EQ(outputs, std::vector<float>({1, 2, 3, 77}));
  EXPECT_EQ(process.recurrence->OutputAmplification(z.data()), 1);
}

// Rows of ten floats take many times as much memory with padding.
TEST_P(DiffusionTest, RefusesWhatDoesNotFitBeforeItAllocates) {
  const RandomDiffusion random({.kind = kind(), .hidden_dim = 10, .num_steps = 100});
  const auto backend = *cpu::NewCpuBackend();
  const std::unique_ptr<System> system = *backend->NewSystem(random.spec());
  const int64_t enough = system->memory_bytes();
  EXPECT_TRUE(backend->NewSystem(random.spec(), {.max_bytes = enough}).ok());
  const int64_t table = 100 * 64;  // lower bound of the bytes of a table
  for (const int64_t allowed : {int64_t{0}, int64_t{1000}, table}) {
    testing::ExpectError(backend->NewSystem(random.spec(), {.max_bytes = allowed}),
                         absl::StatusCode::kResourceExhausted,
                         absl::StrCat("bytes; ", allowed, " are left of those allowed"));
  }
}

TEST_P(DiffusionTest, TakesItsShareBeforeItAllocates) {
  const RandomDiffusion random({.kind = kind(), .hidden_dim = 10, .num_steps = 100});
  const auto backend = *cpu::NewCpuBackend();
  const auto budget = std::make_shared<MemoryBudget>(1 << 30);
  MemoryShare share(budget);
  const std::unique_ptr<System> system = *backend->NewSystem(random.spec(), {.memory = &share});
  EXPECT_GT(share.bytes(), 100 * 64);  // at least a table
  EXPECT_LE(share.bytes(), system->memory_bytes());

  MemoryShare others(budget);
  ASSERT_TRUE(others.Set(budget->free() - share.bytes() / 2).ok());
  MemoryShare second(budget);
  testing::ExpectError(backend->NewSystem(random.spec(), {.memory = &second}),
                       absl::StatusCode::kResourceExhausted, "the memory of this process");
}

INSTANTIATE_TEST_SUITE_P(All, DiffusionTest, EverySetAndKind(),
                         [](const auto& test) { return SetAndKindName(test.param); });

}  // namespace
}  // namespace deeppcr::testing
