// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETER_DIFFERENCES_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETER_DIFFERENCES_H_

// Gradients of programs by their parameters, and what differences of the program in double say.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/program/evaluate.h"
#include "kernels/program/parameter_pass.h"
#include "tests/kernels/program/random_program.h"

namespace deeppcr::program {

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

inline Sums ZerosOf(const Program& program) {
  Sums sums;
  for (const Parameter& parameter : program.parameters) {
    const auto tensor = static_cast<size_t>(parameter.slices[0].tensor);
    if (sums.size() <= tensor) sums.resize(tensor + 1);
    sums[tensor].resize(parameter.numbers->size());
  }
  return sums;
}

// The gradients by the pass, `together` blocks at a time.
inline Sums Gradients(const Program& program, const Steps& steps, size_t together = 2) {
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
inline double Weighted(const Program& program, const Steps& steps) {
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

inline double NormOf(const std::vector<float>& x) {
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
inline void Compare(Program program, size_t parameter, const std::vector<double>& direction,
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
  const double off = std::fabs((along_above - along_below) - (high - low));
  // A kink or a jump shows as a difference between the two ways, which a wrong slope does not.
  const double bend = std::fabs((high - along_above) + (low - along_below));
  const double allowed = 2 * kDistance * (2e-5 * norm + 1e-7);
  if (off > allowed && bend > off / 4) {
    ++compared->bent;
    return;
  }
  ++compared->smooth;
  EXPECT_LE(off, allowed) << "parameter " << parameter << ", norm " << norm;
}

// Compares the gradient by every parameter with differences, along itself and along any direction.
inline void ExpectDifferences(const Program& program, const Steps& steps, const Sums& sums,
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

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETER_DIFFERENCES_H_
