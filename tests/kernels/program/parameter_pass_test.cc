// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/parameter_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/program/evaluate.h"
#include "tests/kernels/program/draft.h"
#include "tests/kernels/program/parameters_of_constants.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {
namespace {

using Sums = std::vector<std::vector<float>>;  // by tensor

// Steps of one sample through a program, with any states and cotangents.
struct Steps {
  Steps(const Program& program, int64_t count, uint64_t seed) : random(program, seed) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    const int64_t dim = program.at(program.state).size, out = program.at(program.output).size;
    for (int64_t i = 0; i < count * dim; ++i)
      states.push_back(static_cast<float>(random.state()[i % dim]) + 0.01F * normal(engine));
    for (int64_t i = 0; i < count * out; ++i) cotangents.push_back(normal(engine));
    for (int64_t l = 0; l < count; ++l) {
      reverse.push_back(*random.inputs().reverse);
      reverse.back().timestep = static_cast<double>(l % kRowsOfTables);
    }
    for (const double x : random.inputs().condition) condition.push_back(static_cast<float>(x));
  }

  ParameterRows Rows(const Program& program, int64_t first, int64_t count) const {
    return {.first = first,
            .count = count,
            .states = states.data() + first * program.at(program.state).size,
            .cotangents = cotangents.data() + first * program.at(program.output).size,
            .reverse = std::span(reverse).subspan(first, count),
            .clip_range = random.inputs().clip_range,
            .condition = condition.data(),
            .label = random.inputs().label};
  }
  int64_t count() const { return std::ssize(reverse); }

  RandomInputs random;
  std::vector<float> states, cotangents, condition;
  std::vector<ReverseStep> reverse;
};

Sums ZerosOf(const Program& program) {
  Sums sums;
  for (const Parameter& parameter : program.parameters) {
    const auto tensor = static_cast<size_t>(parameter.slices[0].tensor);
    if (sums.size() <= tensor) sums.resize(tensor + 1);
    sums[tensor].resize(parameter.numbers->size());
  }
  return sums;
}

// The gradients by the pass, `together` blocks at a time.
Sums Gradients(const Program& program, const Steps& steps, size_t together = 2) {
  const ParameterPass pass(program);
  const ParameterPass::Shared shared(pass);
  std::vector<ParameterPass::Block> blocks;
  for (size_t i = 0; i < together; ++i) blocks.emplace_back(pass);
  Sums sums = ZerosOf(program);
  std::vector<float*> pointers;
  for (std::vector<float>& tensor : sums) pointers.push_back(tensor.data());
  for (int64_t first = 0; first < steps.count();) {
    size_t used = 0;
    for (; used < together && first < steps.count(); ++used) {
      const int64_t count = std::min(pass.rows(), steps.count() - first);
      EXPECT_TRUE(pass.Run(steps.Rows(program, first, count), shared, nullptr, &blocks[used]));
      first += count;
    }
    for (int64_t piece = 0; piece < pass.num_pieces(); ++piece)
      pass.Add(piece, std::span(blocks).first(used), shared, pointers);
  }
  return sums;
}

// sum_l g_l^T z_l at given numbers of the parameters, plainly.
double Weighted(const Program& program, const Steps& steps) {
  Evaluation evaluation(program);
  double sum = 0;
  const int64_t dim = program.at(program.state).size, out = program.at(program.output).size;
  const std::vector<double> condition(steps.condition.begin(), steps.condition.end());
  for (int64_t l = 0; l < steps.count(); ++l) {
    StepInputs inputs = steps.random.inputs();
    inputs.step = l;
    inputs.reverse = &steps.reverse[static_cast<size_t>(l)];
    inputs.time = inputs.reverse->timestep;
    inputs.condition = condition;
    const std::vector<double> state(steps.states.begin() + l * dim,
                                    steps.states.begin() + (l + 1) * dim);
    evaluation.Run(inputs, state);
    for (int64_t i = 0; i < out; ++i)
      sum += double{steps.cotangents[l * out + i]} * evaluation.at(program.output)[i];
  }
  return sum;
}

double NormOf(const std::vector<float>& x) {
  double square = 0;
  for (const float element : x) square += double{element} * element;
  return std::sqrt(square);
}

// Movements that were compared, and those on which a kink or a jump lies.
struct Compared {
  int64_t smooth = 0, bent = 0;
};

// Moves one parameter along a direction of unit length, a way up and a way down, and compares what
// that changes with the gradient.
void Compare(Program program, size_t parameter, const std::vector<double>& direction,
             const Steps& steps, const std::vector<float>& gradient, Compared* compared) {
  constexpr double kDistance = 1e-5;
  const auto numbers = program.parameters[parameter].numbers;
  const auto moved = [&](double distance) {
    auto to = std::make_shared<std::vector<float>>(*numbers);
    for (size_t i = 0; i < to->size(); ++i)
      (*to)[i] = static_cast<float>((*to)[i] + distance * direction[i]);
    return to;
  };
  const auto above = moved(kDistance), below = moved(-kDistance);
  double along_above = 0, along_below = 0;
  for (size_t i = 0; i < numbers->size(); ++i) {
    along_above += double{gradient[i]} * (double{(*above)[i]} - (*numbers)[i]);
    along_below += double{gradient[i]} * (double{(*below)[i]} - (*numbers)[i]);
  }
  const double here = Weighted(program, steps);
  program.parameters[parameter].numbers = above;
  const double high = Weighted(program, steps) - here;
  program.parameters[parameter].numbers = below;
  const double low = Weighted(program, steps) - here;
  const double norm = NormOf(gradient);
  // What the differences have of the second derivative, and rounding of the numbers.
  const double bend = std::fabs((high - along_above) + (low - along_below));
  if (bend > 1e-3 * kDistance * norm + 1e-9) {
    ++compared->bent;
    return;
  }
  ++compared->smooth;
  EXPECT_NEAR(along_above - along_below, high - low, 2 * kDistance * (2e-5 * norm + 1e-7))
      << "parameter " << parameter << ", norm " << norm;
}

// Compares the gradient by every parameter with differences, along itself and along any direction.
void ExpectDifferences(const Program& program, const Steps& steps, const Sums& sums,
                       Compared* compared) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (size_t p = 0; p < program.parameters.size(); ++p) {
    const std::vector<float>& gradient =
        sums[static_cast<size_t>(program.parameters[p].slices[0].tensor)];
    for (int draw = 0; draw < 4; ++draw) {
      std::vector<double> direction;
      double square = 0;
      for (const float g : gradient) {
        direction.push_back(draw == 0 && NormOf(gradient) > 0 ? g : normal(random));
        square += direction.back() * direction.back();
      }
      for (double& d : direction) d /= std::sqrt(square);
      Compare(program, p, direction, steps, gradient, compared);
    }
  }
}

// Programs of all rows: every constant in them is a parameter, or each with a chance of a half.
TEST(ParameterPassTest, IsTheDerivativeOfRandomPrograms) {
  std::set<Op> seen;
  Compared compared;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const int64_t layers = seed % 3 == 0 ? 37 : 0;
    const Program from = RandomProgram(seed, {.reverse_step = seed % 3 != 0, .layers = layers});
    const Program program = ParametersOfConstants(from, seed, seed % 2 == 0).Make();
    for (const Instruction& instruction : program.instructions)
      if ((program.at(instruction.result).depends & kOnParameters) != 0) seen.insert(instruction.op);
    const Steps steps(program, layers > 0 ? layers : 5, seed);
    ExpectDifferences(program, steps, Gradients(program, steps), &compared);
    if (HasFailure()) return;
  }
  EXPECT_GT(compared.smooth, 2000);
  EXPECT_LT(compared.bent, compared.smooth / 20);
  for (const OpRow& row : kOps) {
    if (row.op == Op::kLinear) continue;  // a product, where its weights are parameters
    EXPECT_TRUE(seen.contains(row.op)) << row.name;
  }
}

TEST(ParameterPassTest, HasTheSameBitsHoweverBlocksAreDivided) {
  const Program from = RandomProgram(3, {.layers = 83});
  const Program program = ParametersOfConstants(from, 3, true).Make();
  const Steps steps(program, 83, 3);
  const Sums one = Gradients(program, steps, 1);
  for (const size_t together : {2, 3, 100}) EXPECT_EQ(Gradients(program, steps, together), one);
}

}  // namespace
}  // namespace deeppcr::program
