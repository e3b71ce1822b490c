// SPDX-License-Identifier: Apache-2.0
// Exports of public denoisers, as PyTorch writes them, against what the modules say in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/strings.h"
#include "tests/testing/onnx_model.h"

namespace deeppcr::testing {
namespace {

using program::OnnxGraph;
using program::OnnxInputs;
using program::Program;

// Double against double: sums are in another order.
constexpr double kTolerance = 1e-12;

std::string PathOf(const std::string& name) {
  return StrCat(DEEPPCR_SOURCE_DIR, "/tests/data/program/", name);
}

std::string Contents(const std::string& name) {
  const absl::StatusOr<std::string> contents = ReadFile(PathOf(name), 1 << 20);
  EXPECT_TRUE(contents.ok()) << contents.status();
  return contents.value_or("");
}

nlohmann::json RowsOf(const std::string& name) {
  const auto json = ParseJson(Contents(name + ".json"), {});
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? (*json)["rows"] : nlohmann::json::array();
}

// The roles of an export are the names of its inputs.
OnnxInputs NamesOf(const OnnxGraph& graph) {
  const auto named = [&](const std::string& role) {
    return std::ranges::find(graph.inputs, role, &program::OnnxInput::name) == graph.inputs.end()
               ? ""
               : role;
  };
  return {.state = named("state"),
          .time = named("time"),
          .condition = named("condition"),
          .label = named("label")};
}

std::vector<double> ListOf(const nlohmann::json& row, const char* key) {
  return row.contains(key) ? row[key].get<std::vector<double>>() : std::vector<double>();
}

class ExportsTest : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string name_ = GetParam();
};

TEST_P(ExportsTest, SaysWhatTheModuleSays) {
  const auto graph = program::ReadOnnxGraph(Contents(name_ + ".onnx"), "");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto lowered = LowerGraph(*graph, NamesOf(*graph));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const nlohmann::json rows = RowsOf(name_);
  ASSERT_EQ(rows.size(), 4u);
  for (const auto& row : rows) {
    const std::vector<double> condition = ListOf(row, "condition"), label = ListOf(row, "label");
    const program::StepInputs inputs = {.time = ListOf(row, "time").at(0),
                                        .condition = condition,
                                        .label = label.empty() ? 0 : label[0]};
    const std::vector<double> got = Predict(*lowered, inputs, ListOf(row, "state"));
    const std::vector<double> expected = ListOf(row, "prediction");
    ASSERT_EQ(got.size(), expected.size());
    double scale = 0;
    for (const double x : expected) scale = std::max(scale, std::abs(x));
    ASSERT_GT(scale, 1e-3) << "a prediction of zero would prove nothing";
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], kTolerance * scale) << name_ << ", element " << i;
    }
  }
}

TEST_P(ExportsTest, LeavesOnlyWhatTheStateNeedsInTheRecurrence) {
  const auto graph = program::ReadOnnxGraph(Contents(name_ + ".onnx"), "");
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto lowered = LowerGraph(*graph, NamesOf(*graph));
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  const auto is_trigonometric = [](program::Op op) {
    return op == program::Op::kSin || op == program::Op::kCos;
  };
  int of_time = 0, of_state = 0;
  for (const program::Instruction& instruction : lowered->instructions) {
    if (!is_trigonometric(instruction.op)) continue;
    const uint8_t depends = lowered->at(instruction.result).depends;
    of_time += depends == program::kOnTime;
    of_state += (depends & program::kOnState) != 0;
  }
  EXPECT_EQ(of_time, name_ == "group_norm" ? 0 : 2) << "the time's embedding";
  EXPECT_EQ(of_state, name_ == "tiny_sinusoidal" ? 4 : 0) << "the features of the state";
}

INSTANTIATE_TEST_SUITE_P(All, ExportsTest,
                         ::testing::Values("tiny_identity", "tiny_sinusoidal", "diffusion_ql",
                                           "dppo", "tabddpm", "idql", "idql_decomposed",
                                           "swiglu_head", "mar", "group_norm"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace deeppcr::testing
