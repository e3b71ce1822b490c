// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_LOWERED_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_LOWERED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/testing/onnx_model.h"

namespace deeppcr::testing {

inline const program::OnnxInputs kState = {.state = "x"};

// A model of a state x, [batch, shape], and the output y.
inline OnnxModel Of(Shape shape, int64_t opset = 17) {
  OnnxModel model(opset);
  shape.insert(shape.begin(), -1);
  model.Input("x", shape).Output("y");
  return model;
}

inline program::Program MustLower(const OnnxModel& model,
                                  const program::OnnxInputs& inputs = kState) {
  auto lowered = LowerBytes(model.Bytes(), inputs);
  EXPECT_TRUE(lowered.ok()) << lowered.status();
  return lowered.ok() ? *std::move(lowered) : program::Program();
}

inline std::vector<double> Say(const OnnxModel& model, const std::vector<double>& state) {
  const program::Program lowered = MustLower(model);
  if (lowered.prediction == program::kNoValue) return {};
  return Predict(lowered, {}, state);
}

inline int CountOf(const program::Program& lowered, program::Op op) {
  return static_cast<int>(std::ranges::count(lowered.instructions, op, &program::Instruction::op));
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_LOWERED_H_
