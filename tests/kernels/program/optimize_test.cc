// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/optimize.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/program/cost.h"
#include "kernels/program/denoiser_program.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/same_meaning.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::program {
namespace {

// What two layers, an activation between, of the concatenation [x, e(t), c] are.
Program PolicyNetwork() {
  Draft draft;
  const ValueId x = draft.State(3), t = draft.Time(), c = draft.Condition(11);
  const ValueId frequencies = draft.Linear(t, 8);
  const ValueId embedded = draft.Linear(draft.Do(Op::kSin, {frequencies}), 16);
  const ValueId hidden = draft.Linear(draft.Concatenate({x, embedded, c}), 64);
  const ValueId sum = draft.By(Op::kAdd, draft.Do(Op::kExp, {hidden}), 1);
  const ValueId mish = draft.Multiply(hidden, draft.Do(Op::kTanh, {draft.Do(Op::kLog, {sum})}));
  const ValueId said = draft.Linear(mish, 3);
  return draft.Finish(draft.ReverseStep(x, said), said);
}

TEST(OptimizeTest, LeavesOfAConcatenationOnlyTheStatesPartInTheStep) {
  const Program before = PolicyNetwork();
  const Program after = *Optimize(before);
  ExpectSameMeaning(before, after);
  EXPECT_EQ(CountOf(after, Op::kMish), 1);
  EXPECT_EQ(CountOf(after, Op::kArrange), 0);
  // Both layers' products of the state, the sum with what is in the table, mish, the reverse step.
  EXPECT_EQ(InStep(after), 64 * 3 + 64 + 64 + 3 * 64 + 6 * 3);
  EXPECT_LT(InStep(after), 0.3 * CostsOf(before).total());
}

// Random programs that are tried; the environment may ask for more.
uint64_t NumPrograms() {
  const char* text = std::getenv("DEEPPCR_TEST_PROGRAMS");
  return text == nullptr ? 2000 : std::strtoull(text, nullptr, 10);
}

TEST(OptimizeTest, MeansTheSameForRandomPrograms) {
  uint64_t cheaper = 0;
  for (uint64_t seed = 1; seed <= NumPrograms(); ++seed) {
    SCOPED_TRACE(seed);
    const Program before = RandomProgram(seed, {.layers = seed % 3 == 0 ? 2 : 0});
    const Program after = *Optimize(before);
    // Biases rounded anew, behind tens of operations with slopes above 1.
    ExpectSameMeaning(before, after, 1e-4);
    EXPECT_LE(InStep(after), InStep(before));
    cheaper += InStep(after) < 0.8 * InStep(before) ? 1 : 0;
  }
  EXPECT_GT(cheaper, NumPrograms() / 2) << "or the programs have nothing to optimise";
}

TEST(OptimizeTest, MeansTheSameForNamedDenoisers) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp}) {
    const int64_t classes = kind == DenoiserKind::kResidualMlp ? kRowsOfTables : 0;
    const testing::RandomDiffusion diffusion({.kind = kind,
                                              .state_dim = 3,
                                              .hidden_dim = 16,
                                              .num_blocks = 2,
                                              .num_steps = kRowsOfTables,
                                              .num_classes = classes,
                                              .condition_dim = classes > 0 ? 0 : 4});
    const Program before = *ProgramOfDenoiser(diffusion.spec());
    const Program after = *Optimize(before);
    ExpectSameMeaning(before, after);
    EXPECT_LE(InStep(after), InStep(before));
    EXPECT_EQ(CountOf(after, Op::kLinear), CountOf(before, Op::kLinear));
  }
}

TEST(OptimizeTest, FindsNothingMoreInWhatItMade) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    const Program once = *Optimize(RandomProgram(seed, {.layers = seed % 3 == 0 ? 2 : 0}));
    const Program twice = *Optimize(once);
    ASSERT_EQ(once.instructions.size(), twice.instructions.size());
    for (size_t i = 0; i < once.instructions.size(); ++i) {
      EXPECT_EQ(once.instructions[i].op, twice.instructions[i].op);
      EXPECT_EQ(once.instructions[i].operands.size(), twice.instructions[i].operands.size());
    }
  }
}

TEST(OptimizeTest, KeepsNamesOfWhatItKeeps) {
  Draft draft;
  const ValueId x = draft.State(4);
  draft.builder().Name(x, "x");
  const ValueId activated = draft.Multiply(x, draft.Do(Op::kSigmoid, {x}));
  draft.builder().Name(activated, "h");
  const Program after = *Optimize(draft.Finish(activated));
  EXPECT_EQ(after.at(after.state).name, "x");
  EXPECT_EQ(after.at(after.output).name, "h");
}

TEST(OptimizeTest, LeavesOutInputsThatNothingReadsAnyMore) {
  Draft draft;
  const ValueId x = draft.State(4), c = draft.Condition(4);
  const ValueId both = draft.Concatenate({x, c});
  const Program after = *Optimize(draft.Finish(draft.By(Op::kAdd, draft.Slice(both, 0, 4), 1)));
  EXPECT_EQ(after.condition, kNoValue);
  EXPECT_EQ(after.at(after.output).depends, kOnState);
}

TEST(OptimizeTest, LeavesAProgramThatWouldGrowBeyondTheLimits) {
  Draft draft;
  const ValueId x = draft.State(2), t = draft.Time(), c = draft.Condition(2);
  const Program before = draft.Finish(draft.Linear(draft.Concatenate({x, t, c}), 2));
  const Program after = *Optimize(before, {.max_instructions = 2});
  EXPECT_EQ(after.instructions.size(), 2u);
  ExpectSameMeaning(before, after, 0);
}

// Programs as large as the limits allow, of what a pass goes through.
class HostileTest : public ::testing::Test {
 protected:
  static constexpr int kMany = 99'000;

  void ExpectQuick(Draft& draft, ValueId output) {
    const Program before = draft.Finish(output);
    const auto start = std::chrono::steady_clock::now();
    const Program after = *Optimize(before);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    // Quadratic time would take minutes; a loaded machine, or a sanitizer, ten times the usual.
    EXPECT_LT(took.count(), 20);
    RecordProperty("seconds", std::to_string(took.count()));
    EXPECT_LE(InStep(after), InStep(before));
  }
};

TEST_F(HostileTest, LongSums) {
  Draft draft;
  const ValueId x = draft.State(2), t = draft.Concatenate({draft.Time(), x});
  ValueId sum = x;
  for (int i = 0; i < kMany / 2; ++i) {
    sum = draft.Subtract(sum, draft.By(Op::kMultiply, draft.Slice(t, 1, 3), i + 2.0));
  }
  ExpectQuick(draft, sum);
}

TEST_F(HostileTest, LongProducts) {
  Draft draft;
  const ValueId x = draft.State(2), one = draft.Number(0.3, x);
  ValueId product = x;
  for (int i = 0; i < kMany; ++i) product = draft.Multiply(one, product);
  ExpectQuick(draft, product);
}

TEST_F(HostileTest, LongAlternations) {
  Draft draft;
  const ValueId x = draft.State(2), t = draft.Linear(draft.Time(), 2);
  ValueId value = x;
  for (int i = 0; i < kMany / 2; ++i) value = draft.Add(draft.Multiply(value, t), t);
  ExpectQuick(draft, value);
}

TEST_F(HostileTest, ManyArrangements) {
  Draft draft;
  const ValueId x = draft.State(50);
  ValueId value = x;
  for (int i = 0; i < kMany; ++i) {
    std::vector<Element> elements;
    for (int64_t k = 0; k < 50; ++k) elements.push_back({0, (k + 1) % 50});
    value = draft.Arrange({value}, std::move(elements));
  }
  ExpectQuick(draft, draft.Do(Op::kExp, {value}));
}

TEST_F(HostileTest, ManyLayersOfTheSameWeights) {
  Draft draft;
  const ValueId x = draft.State(64), t = draft.Time();
  const LinearLayer layer = draft.Layer(64, 65);
  ValueId value = x;
  for (int i = 0; i < 20'000; ++i) value = draft.Linear(draft.Concatenate({value, t}), layer);
  ExpectQuick(draft, value);
}

TEST_F(HostileTest, DeepTreesOfSquares) {
  Draft draft;
  const ValueId x = draft.State(2);
  ValueId value = x;
  for (int i = 0; i < kMany / 4; ++i) {
    const ValueId square = draft.Do(Op::kSquare, {value});
    value = draft.Add(draft.By(Op::kMultiply, value, 0.5), draft.Do(Op::kSigmoid, {square}));
  }
  ExpectQuick(draft, value);
}

}  // namespace
}  // namespace deeppcr::program
