// SPDX-License-Identifier: Apache-2.0
// Instructions that one pass does, found and not found, with the bits that they have one by one.
#include "kernels/cpu/program/joins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/program/executor.h"
#include "tests/kernels/cpu/diffusion/plain_diffusion.h"
#include "tests/kernels/program/draft.h"

namespace deeppcr::cpu {
namespace {

using program::Draft;
using program::Op;
using program::Program;
using program::ValueId;

constexpr int64_t kMostRows = 3;

// A program, and how many of its instructions each pass does, as far as it is more than one, and
// layers that are activated at once.
struct Joined {
  Program program;
  std::vector<int32_t> together;
  int layers = 0;
};

// Ends with a sum in which every value has a factor of its own.
Program Finish(Draft& draft, const std::vector<ValueId>& values) {
  ValueId sum = draft.By(Op::kMultiply, values[0], 0.7);
  for (size_t i = 1; i < values.size(); ++i)
    sum = draft.Subtract(draft.By(Op::kDivide, values[i], 0.3 + static_cast<double>(i)), sum);
  return draft.Finish(sum);
}

Joined SineThenCosine(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size);
  const ValueId sine = draft.Do(Op::kSin, {z}), cosine = draft.Do(Op::kCos, {z});
  return {Finish(draft, {sine, cosine}), {2}};
}
Joined CosineThenSine(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size);
  const ValueId cosine = draft.Do(Op::kCos, {z}), sine = draft.Do(Op::kSin, {z});
  return {Finish(draft, {sine, cosine}), {2}};
}
// A third one is alone, and so are those of two values.
Joined SinesOfSeveral(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), other = draft.Do(Op::kNegate, {z});
  const ValueId first = draft.Do(Op::kSin, {other}), apart = draft.Do(Op::kCos, {z});
  const ValueId sine = draft.Do(Op::kSin, {z}), again = draft.Do(Op::kCos, {z});
  return {Finish(draft, {first, apart, sine, again}), {2}};
}
Joined ProductAndSum(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), other = draft.Normal(size);
  return {draft.Finish(draft.Add(other, draft.Multiply(z, z))), {2}};
}
Joined Branch(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), other = draft.Normal(size);
  return {draft.Finish(draft.Add(z, draft.Do(Op::kGelu, {draft.Add(z, other)}))), {3}};
}
Joined BranchOfASum(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), other = draft.Normal(size);
  return {draft.Finish(draft.Add(draft.Do(Op::kMish, {draft.Add(z, other)}), z)), {3}};
}
Joined ActivationAndSum(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), twice = draft.By(Op::kDivide, z, 0.5);
  const ValueId first = draft.Add(draft.Do(Op::kGelu, {twice}), draft.Normal(size));
  return {draft.Finish(draft.Add(z, draft.Do(Op::kSilu, {first}))), {2, 2}};
}
Joined TwiceAnActivation(int64_t size) {
  Draft draft;
  const ValueId tanh = draft.Do(Op::kTanh, {draft.State(size)});
  return {draft.Finish(draft.Add(tanh, tanh)), {}};
}
// The last element of what divides the state, times a constant vector, and times the state.
Joined Scaled(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), divided = draft.By(Op::kDivide, z, 3);
  const std::vector<program::Element> elements(static_cast<size_t>(size), {0, size - 1});
  const ValueId by_constant =
      draft.Multiply(draft.Arrange({divided}, elements), draft.Normal(size));
  const ValueId by_state = draft.Multiply(z, draft.Arrange({by_constant}, elements));
  std::vector<int32_t> together;
  if (size > 1) together = {2, 2};
  return {draft.Finish(draft.Subtract(by_constant, by_state)), together};
}
// A number of a narrow value that lies where the product will, which would write over those of the
// rows behind.
Joined ScaledInTheSamePlace(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), wide = draft.Do(Op::kExp, {z});
  const ValueId narrow = draft.Linear(wide, (size + 1) / 2);
  const std::vector<program::Element> elements(static_cast<size_t>(size), {0, 0});
  const ValueId scaled =
      draft.Multiply(z, draft.Arrange({draft.Do(Op::kTanh, {narrow})}, elements));
  return {draft.Finish(draft.Subtract(scaled, z)), {}};
}
// Operands of other sections, which each row has elsewhere: of the time, and of a condition.
Joined BranchBesideTheTime(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), time = draft.Linear(draft.Time(), size);
  return {draft.Finish(draft.Add(z, draft.Do(Op::kMish, {draft.Add(z, time)}))), {3}};
}
Joined ProductsWithACondition(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), said = draft.Linear(draft.Condition(3), 2 * size);
  const ValueId scale = draft.Slice(said, 0, size), shift = draft.Slice(said, size, 2 * size);
  const ValueId moved = draft.Add(draft.Multiply(z, scale), shift);
  return {draft.Finish(draft.Add(draft.Do(Op::kSilu, {moved}), scale)), {2, 2}};
}
Joined ScaledByTheTime(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), time = draft.Linear(draft.Time(), size);
  const std::vector<program::Element> elements(static_cast<size_t>(size), {0, size - 1});
  const ValueId scaled = draft.Multiply(time, draft.Arrange({draft.Do(Op::kExp, {z})}, elements));
  std::vector<int32_t> together;
  if (size > 1) together = {2};
  return {draft.Finish(draft.Subtract(scaled, z)), together};
}
// Blocks of a residual network: the last one ends where its input was, or the layer's output, and
// the first is narrower.
Joined ResidualBlocks(int64_t size) {
  Draft draft;
  ValueId h = draft.Linear(draft.State(size), size + 20);
  for (int block = 0; block < 3; ++block) {
    const ValueId a = draft.Linear(h, size + 20), shift = draft.Normal(size + 20);
    const ValueId sum = block == 1 ? draft.Add(shift, a) : draft.Add(a, shift);
    const ValueId branch = draft.Do(block == 2 ? Op::kTanh : Op::kSilu, {sum});
    h = block == 1 ? draft.Add(branch, h) : draft.Add(h, branch);
  }
  return {draft.Finish(draft.Linear(h, size)), {3, 3, 3}, 3};
}
// Without a sum before or behind the activation.
Joined ActivatedLayers(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size);
  const ValueId first =
      draft.Do(Op::kGelu, {draft.Add(draft.Linear(z, 2 * size), draft.Normal(2 * size))});
  const ValueId second = draft.Add(z, draft.Do(Op::kMish, {draft.Linear(first, size)}));
  return {draft.Finish(second), {2, 2}, 2};
}
// What layers make is read once more, or is not the activation's.
Joined LayersApart(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), a = draft.Linear(z, size), b = draft.Linear(z, size);
  const ValueId first = draft.Add(a, draft.Do(Op::kSilu, {draft.Add(a, z)}));
  const ValueId second = draft.Add(b, draft.Do(Op::kSilu, {draft.Add(first, z)}));
  return {draft.Finish(second), {3, 3}};
}
// The sum is read once more.
Joined NoBranch(int64_t size) {
  Draft draft;
  const ValueId z = draft.State(size), sum = draft.Add(z, draft.Normal(size));
  return {draft.Finish(draft.Multiply(sum, draft.Do(Op::kGelu, {sum}))), {}};
}

std::vector<float> Numbers(int64_t n) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(n));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// The outputs of all rows, with tangents, for which nothing is joined, or without.
std::vector<float> OutputsOf(const PackedProgram& packed, const ProgramKernels& kernels,
                             const std::vector<float>& states, int64_t rows, bool joined) {
  Executor executor(packed.state, kernels, std::numeric_limits<float>::infinity(), rows, rows);
  const Place &in = packed.state_input, &out = packed.output;
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(states.data() + r * in.size, in.size, executor.Row(in, r));
  std::vector<RowContext> contexts(static_cast<size_t>(rows));
  // What conditions would give.
  const std::vector<float> said = Numbers(rows * packed.condition.row_floats);
  for (int64_t r = 0; r < rows; ++r) {
    RowContext& context = contexts[static_cast<size_t>(r)];
    context.step = r;
    context.rows[static_cast<size_t>(Home::kConstant)] = packed.constants.data();
    context.rows[static_cast<size_t>(Home::kTime)] =
        packed.time_tables.data() + r * packed.time_floats;
    context.rows[static_cast<size_t>(Home::kCondition)] =
        said.data() + r * packed.condition.row_floats;
  }
  executor.Run(contexts.data(), rows, {.columns = joined ? 0 : 1}, nullptr);
  const float* first = executor.Row(out, 0);
  return {first, first + rows * out.width};
}

class JoinsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(JoinsTest, HaveTheBitsOfInstructionsOneByOne) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0F,       -0.0F,      kInfinity, -kInfinity,
                                      1048576.0F, 2e6F,       -3.4e38F,  1e-40F,
                                      1.5707964F, 3.1415927F, 1e10F,     -1048577.0F};
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 10);
  for (const auto& make :
       {&SineThenCosine, &CosineThenSine, &SinesOfSeveral, &ProductAndSum, &Branch, &BranchOfASum,
        &NoBranch, &ActivationAndSum, &TwiceAnActivation, &Scaled, &ScaledInTheSamePlace,
        &BranchBesideTheTime, &ProductsWithACondition, &ScaledByTheTime, &ResidualBlocks,
        &ActivatedLayers, &LayersApart}) {
    for (const int64_t size : {1, 5, 16, 33, 64, 100, 125, 230, 270}) {
      const Joined made = make(size);
      const auto packed = PackProgram(made.program, kMostRows, {}, {});
      ASSERT_TRUE(packed.ok()) << packed.status();
      std::vector<int32_t> together;
      int layers = 0;
      for (const PackedInstruction& instruction : packed->state.instructions) {
        if (instruction.together > 1) together.push_back(instruction.together);
        layers += instruction.activated ? 1 : 0;
      }
      EXPECT_EQ(together, made.together);
      EXPECT_EQ(layers, made.layers);
      for (int64_t rows = 1; rows <= kMostRows; ++rows) {
        std::vector<float> states(static_cast<size_t>(rows * size));
        for (float& x : states) x = normal(random);
        // Angles beyond those that vectors reduce, beside others.
        const bool special_ones = rows == 2 || (rows == 1 && size % 5 == 0);
        for (size_t i = special_ones ? 0 : states.size(); i < states.size(); i += 3)
          states[i] = special[i / 3 % special.size()];
        const std::vector<float> joined = OutputsOf(*packed, kernels, states, rows, true);
        const std::vector<float> apart = OutputsOf(*packed, kernels, states, rows, false);
        EXPECT_EQ(std::memcmp(joined.data(), apart.data(), apart.size() * sizeof(float)), 0)
            << size << " elements, " << rows << " rows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, JoinsTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
