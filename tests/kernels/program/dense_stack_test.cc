// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/dense_stack.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/program/evaluate.h"
#include "kernels/program/optimize.h"
#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

constexpr int64_t kLayers = 3, kDim = 4;

struct NamedStack {
  std::vector<float> weights, biases;
  DenseStackSpec spec;

  NamedStack(Activation activation, bool residual, bool biased) {
    for (int64_t i = 0; i < kLayers * kDim * kDim; ++i)
      weights.push_back(std::sin(static_cast<float>(i)));
    for (int64_t i = 0; biased && i < kLayers * kDim; ++i)
      biases.push_back(std::cos(static_cast<float>(i)));
    spec = {.num_steps = kLayers,
            .state_dim = kDim,
            .residual = residual,
            .residual_scale = residual ? 0.37F : 1.0F,
            .activation = activation,
            .weights = weights,
            .biases = biases};
  }
};

std::vector<double> At(const Program& program, ValueId id, int64_t step) {
  Evaluation evaluation(program);
  evaluation.Run({.step = step}, {}, kOnTime);
  const auto value = evaluation.at(id);
  return {value.begin(), value.end()};
}

TEST(DenseStackTest, ANamedStackIsFoundAgainInItsProgram) {
  for (const ActivationName& row : kActivationNames) {
    for (const bool residual : {false, true}) {
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(std::string(row.name));
        const NamedStack stack(row.activation, residual, biased);
        const Program program = *Optimize(*ProgramOfStack(stack.spec));
        const auto form = DenseStackFormOf(program);
        ASSERT_TRUE(form.has_value());
        EXPECT_EQ(form->residual, residual);
        EXPECT_EQ(form->scale, stack.spec.residual_scale);
        EXPECT_EQ(form->activation, row.activation);
        ASSERT_EQ(form->bias != kNoValue, biased);
        for (int64_t l = 0; l < kLayers; ++l) {
          const std::vector<double> matrix = At(program, form->matrix, l);
          for (int64_t i = 0; i < kDim * kDim; ++i)
            EXPECT_EQ(matrix[i], stack.weights[l * kDim * kDim + i]);
          if (!biased) continue;
          const std::vector<double> bias = At(program, form->bias, l);
          for (int64_t i = 0; i < kDim; ++i) EXPECT_EQ(bias[i], stack.biases[l * kDim + i]);
        }
      }
    }
  }
}

// Blocks that look like one, and are not.
TEST(DenseStackTest, OtherBlocksAreNotTakenForOne) {
  const auto block = [](int form) {
    Draft draft;
    const ValueId z = draft.State(kDim);
    const auto product = [&](ValueId x) {
      return draft.Product(x, draft.Stacked(kLayers, kDim * kDim, kDim), kNoValue,
                           {.rows = kDim, .cols = kDim});
    };
    const auto relu = [&](ValueId x) { return draft.Do(Op::kRelu, {x}); };
    const ValueId y = product(z);
    switch (form) {
      case 0:  // the branch reads an activation of the state
        return draft.Finish(draft.Add(z, product(relu(z))));
      case 1:  // two layers
        return draft.Finish(draft.Add(z, product(relu(y))));
      case 2:  // an activation behind the sum
        return draft.Finish(relu(draft.Add(z, y)));
      case 3:  // a factor for each element
        return draft.Finish(draft.Add(z, draft.Multiply(draft.Normal(kDim), relu(y))));
      case 4:  // the branch twice
        return draft.Finish(draft.Add(draft.Add(z, relu(y)), y));
      case 5:  // a scaled state
        return draft.Finish(draft.Add(draft.By(Op::kMultiply, z, 0.5), relu(y)));
      case 6:  // z - branch
        return draft.Finish(draft.Subtract(z, relu(y)));
      case 7:  // a matrix for all layers, of which there would have to be copies
        return draft.Finish(draft.Add(z, relu(draft.Linear(z, kDim))));
      case 8:  // a factor that float32 does not hold
        return draft.Finish(draft.Add(z, draft.By(Op::kMultiply, relu(y), 1e-60)));
      default:  // a factor of a plain layer
        return draft.Finish(draft.By(Op::kMultiply, relu(y), 0.3));
    }
  };
  for (int form = 0; form <= 9; ++form)
    EXPECT_FALSE(DenseStackFormOf(*Optimize(block(form))).has_value()) << form;
}

}  // namespace
}  // namespace deeppcr::program
