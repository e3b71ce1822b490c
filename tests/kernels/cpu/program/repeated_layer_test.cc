// SPDX-License-Identifier: Apache-2.0
// A layer that several vectors of a row pass, as in a network over tokens: the same bits as a layer
// for each vector, whatever rows and vectors are multiplied together.
#include <gtest/gtest.h>

#include <cmath>
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
using program::Element;
using program::LinearLayer;
using program::Program;
using program::ValueId;

struct LayerShape {
  int64_t rows, cols, repeat;
};
constexpr LayerShape kShapes[] = {{3, 5, 7},    {64, 64, 4}, {64, 64, 3},  {16, 12, 5},
                                  {64, 12, 60}, {5, 64, 3},  {64, 4, 16},  {1, 2, 32},
                                  {100, 9, 20}, {128, 6, 3}, {32, 32, 50}, {16, 4, 100}};
constexpr int64_t kRows = 3, kTangents = 2;

// The layer's outputs from the state, cut or repeated to the state's size.
Program Finished(Draft draft, ValueId outputs, int64_t state_size) {
  std::vector<Element> elements;
  for (int64_t i = 0; i < state_size; ++i) elements.push_back({0, i % draft.size(outputs)});
  return draft.Finish(draft.Arrange({outputs}, elements));
}

Program Repeated(const LayerShape& shape, LinearLayer layer) {
  Draft draft;
  const ValueId z = draft.State(shape.repeat * shape.cols);
  layer.repeat = shape.repeat;
  return Finished(draft, draft.Linear(z, layer), draft.size(z));
}

Program OneByOne(const LayerShape& shape, const LinearLayer& layer) {
  Draft draft;
  const ValueId z = draft.State(shape.repeat * shape.cols);
  std::vector<ValueId> all;
  std::vector<Element> elements;
  for (int64_t i = 0; i < shape.repeat; ++i) {
    all.push_back(draft.Linear(draft.Slice(z, i * shape.cols, (i + 1) * shape.cols), layer));
    for (int64_t k = 0; k < shape.rows; ++k) elements.push_back({static_cast<int32_t>(i), k});
  }
  return Finished(draft, draft.Arrange(all, elements), draft.size(z));
}

// Results of rows of states and of their tangents.
std::vector<float> ResultsOf(const Program& program, const ProgramKernels& kernels,
                             const std::vector<float>& states) {
  const auto packed = PackProgram(program, 1, {}, {});
  EXPECT_TRUE(packed.ok()) << packed.status();
  Executor executor(packed->state, kernels, std::numeric_limits<float>::infinity(), kRows,
                    kRows * kTangents);
  const Place &in = packed->state_input, &out = packed->output;
  for (int64_t r = 0; r < kRows; ++r) {
    std::copy_n(states.data() + r * in.size, in.size, executor.Row(in, r));
    for (int64_t j = 0; j < kTangents; ++j)
      std::copy_n(states.data() + (r + j + 1) % kRows * in.size, in.size,
                  executor.Tangent(in, r * kTangents + j));
  }
  const std::vector<RowContext> contexts(kRows);
  executor.Run(contexts.data(), kRows, {.columns = kTangents}, nullptr);
  std::vector<float> results;
  for (int64_t r = 0; r < kRows; ++r) {
    results.insert(results.end(), executor.Row(out, r), executor.Row(out, r) + out.width);
    for (int64_t j = 0; j < kTangents; ++j) {
      const float* tangent = executor.Tangent(out, r * kTangents + j);
      results.insert(results.end(), tangent, tangent + out.width);
    }
  }
  return results;
}

class RepeatedLayerTest : public ::testing::TestWithParam<size_t> {};

TEST_P(RepeatedLayerTest, HasTheBitsOfALayerForEachVector) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const LayerShape& shape : kShapes) {
    const LinearLayer layer = Draft(7).Layer(shape.rows, shape.cols);
    std::vector<float> states(kRows * shape.repeat * shape.cols);
    for (float& x : states) x = normal(random);
    const std::vector<float> together = ResultsOf(Repeated(shape, layer), kernels, states);
    const std::vector<float> alone = ResultsOf(OneByOne(shape, layer), kernels, states);
    ASSERT_EQ(together.size(), alone.size());
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0)
        << shape.rows << " x " << shape.cols << ", " << shape.repeat << " times";
  }
}

// The columns' padding would read the next vector.
TEST_P(RepeatedLayerTest, AnInfinityStaysInItsVector) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  for (const LayerShape& shape : kShapes) {
    if (shape.rows > shape.cols) continue;  // all outputs are in the result
    const LinearLayer layer = Draft(7).Layer(shape.rows, shape.cols);
    std::vector<float> states(kRows * shape.repeat * shape.cols, 1);
    states[shape.cols] = std::numeric_limits<float>::infinity();  // of the second vector
    const std::vector<float> results = ResultsOf(Repeated(shape, layer), kernels, states);
    for (int64_t i = 0; i < shape.repeat * shape.rows; ++i) {
      EXPECT_EQ(std::isfinite(results[i]), i / shape.rows != 1)
          << shape.rows << " x " << shape.cols << ", " << shape.repeat << " times: output " << i;
    }
  }
}

// A token that has fired ends a run, whatever is left of it.
TEST_P(RepeatedLayerTest, ATokenEndsARun) {
  const ProgramKernels kernels = testing::KernelsOfThisMachine()[GetParam()].set.program();
  Draft draft;
  const ValueId z = draft.State(2);
  const auto packed = PackProgram(draft.Finish(draft.Linear(z, 2)), 1, {}, {});
  ASSERT_TRUE(packed.ok()) << packed.status();
  Executor executor(packed->state, kernels, std::numeric_limits<float>::infinity(), 1, 0);
  const std::vector<RowContext> contexts(1);
  float* result = executor.Row(packed->output, 0);
  result[0] = 12345;
  const CancelToken fired(CancelToken::Clock::now());
  executor.Run(contexts.data(), 1, {}, nullptr, &fired);
  EXPECT_EQ(result[0], 12345);
  executor.Run(contexts.data(), 1, {}, nullptr);
  EXPECT_NE(result[0], 12345);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RepeatedLayerTest,
                         ::testing::Range(size_t{0}, testing::KernelsOfThisMachine().size()),
                         [](const auto& test) {
                           return testing::KernelsOfThisMachine()[test.param].name;
                         });

}  // namespace
}  // namespace deeppcr::cpu
