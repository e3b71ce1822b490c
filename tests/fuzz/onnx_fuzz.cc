// SPDX-License-Identifier: Apache-2.0
// The reader of ONNX graphs and their lowering. What is accepted is checked as a program: every
// value comes before its use, sizes are those of the operations, and it can be evaluated.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/program/builder.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/onnx_graph.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

using program::Element;
using program::Instruction;
using program::OpKind;
using program::Program;
using program::ValueId;

constexpr program::OnnxLimits kOnnxLimits = {.max_nodes = 200, .max_elements = 1 << 16};
constexpr program::ProgramLimits kProgramLimits = {.max_value_size = 1 << 12,
                                                   .max_instructions = 1000,
                                                   .max_constant_elements = 1 << 18,
                                                   .max_weight_elements = 1 << 18};

constexpr int64_t kLayers = 2;

// The first input that fits each role.
program::OnnxInputs RolesOf(const program::OnnxGraph& graph) {
  program::OnnxInputs roles;
  for (const program::OnnxInput& input : graph.inputs) {
    const bool is_float = input.type == program::OnnxType::kFloat;
    if (is_float && roles.state.empty()) {
      roles.state = input.name;
    } else if (input.shape.size() <= 1 && roles.time.empty()) {
      roles.time = input.name;
    } else if (is_float && roles.condition.empty()) {
      roles.condition = input.name;
    } else if (!is_float && roles.label.empty()) {
      roles.label = input.name;
    }
  }
  roles.prediction = graph.outputs[0];
  return roles;
}

// Every initialiser of floats, as each layer of a stack has it for itself.
program::OnnxInputs StackedRolesOf(const program::OnnxGraph& graph) {
  program::OnnxInputs roles = RolesOf(graph);
  for (const auto& [name, tensor] : graph.initializers) {
    int64_t size = 1;
    for (const int64_t extent : tensor.shape) size *= extent;
    if (tensor.type != program::OnnxType::kFloat || size == 0) continue;
    auto rows = std::make_shared<std::vector<float>>();
    for (int64_t i = 0; i < kLayers * size; ++i)
      rows->push_back(static_cast<float>(tensor.numbers[i % size]));
    roles.stacked[name] = std::move(rows);
  }
  return roles;
}

void RequireInputsBeforeUse(const program::OnnxGraph& graph) {
  std::set<std::string> known = {""};
  for (const auto& [name, tensor] : graph.initializers) known.insert(name);
  for (const program::OnnxInput& input : graph.inputs) known.insert(input.name);
  for (const program::OnnxNode& node : graph.nodes) {
    for (const std::string& input : node.inputs) {
      Require(known.contains(input), "a node's inputs come before it");
    }
    known.insert(node.outputs.begin(), node.outputs.end());
  }
}

// Elements of the result, by the rule of the operation's kind.
int64_t SizeOf(const Program& lowered, const Instruction& instruction) {
  const program::Axis& axis = instruction.axis;
  switch (program::RowOf(instruction.op).kind) {
    case OpKind::kReduction:
      return axis.outer * axis.inner;
    case OpKind::kLinear:
    case OpKind::kProduct:
      return instruction.linear.rows * instruction.linear.repeat;
    case OpKind::kLookup:
      return instruction.linear.cols;
    case OpKind::kArrange:
      return static_cast<int64_t>(instruction.elements.size());
    default:
      return lowered.at(instruction.operands[0]).size;
  }
}

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Counts from one where an arrangement begins with an operand's last element.
void Plant(Program& lowered) {
  for (Instruction& instruction : lowered.instructions) {
    if (instruction.elements.empty()) continue;
    Element& first = instruction.elements[0];
    const ValueId operand = instruction.operands[static_cast<size_t>(first.operand)];
    if (first.index > 0 && first.index + 1 == lowered.at(operand).size) ++first.index;
  }
}
#else
void Plant(Program&) {}
#endif

void RequireSoundInstruction(const Program& lowered, const Instruction& instruction,
                             std::vector<bool>& known) {
  for (const ValueId id : instruction.operands) {
    Require(known.at(static_cast<size_t>(id)), "an operand comes before its use");
  }
  Require(lowered.at(instruction.result).size == SizeOf(lowered, instruction),
          "a result has its operation's size");
  for (const Element& element : instruction.elements) {
    const ValueId id = instruction.operands.at(static_cast<size_t>(element.operand));
    Require(element.index >= 0 && element.index < lowered.at(id).size,
            "an arrangement stays inside its operands");
  }
  known.at(static_cast<size_t>(instruction.result)) = true;
}

void RequireSound(const Program& lowered) {
  std::vector<bool> known(lowered.values.size());
  for (size_t i = 0; i < known.size(); ++i) {
    const auto& constant = lowered.values[i].constant;
    known[i] = !constant.empty();
    Require(std::none_of(constant.begin(), constant.end(), [](double x) { return x != x; }),
            "constants are numbers");
  }
  for (const ValueId id : {lowered.state, lowered.time, lowered.condition, lowered.label}) {
    if (id != program::kNoValue) known.at(static_cast<size_t>(id)) = true;
  }
  for (const program::StackedConstant& stacked : lowered.stacked) {
    known.at(static_cast<size_t>(stacked.value)) = true;
    Require(static_cast<int64_t>(stacked.rows->size()) == kLayers * lowered.at(stacked.value).size,
            "a stacked constant has a row for each layer");
  }
  for (const Instruction& instruction : lowered.instructions) {
    RequireSoundInstruction(lowered, instruction, known);
  }
  Require(known.at(static_cast<size_t>(lowered.prediction)), "the prediction is computed");
}

void RequireEvaluation(const Program& lowered) {
  const auto ones = [&](ValueId id) {
    return std::vector<double>(
        id == program::kNoValue ? 0 : static_cast<size_t>(lowered.at(id).size), 1);
  };
  const std::vector<double> condition = ones(lowered.condition), state = ones(lowered.state);
  program::Evaluation evaluation(lowered);
  evaluation.Run({.time = 1, .step = kLayers - 1, .condition = condition}, state);
  Require(static_cast<int64_t>(evaluation.at(lowered.prediction).size()) ==
              lowered.at(lowered.prediction).size,
          "a prediction has the elements of its size");
}

bool TryLowering(const program::OnnxGraph& graph, const program::OnnxInputs& roles) {
  program::ProgramBuilder builder(kProgramLimits);
  const auto prediction = program::LowerOnnx(graph, roles, builder);
  if (!prediction.ok()) {
    RequireCleanRefusal(prediction.status());
    return false;
  }
  auto lowered = builder.Finish(builder.program().state, *prediction);
  Require(lowered.ok(), "a program whose output is the state can be finished");
  Plant(*lowered);
  RequireSound(*lowered);
  RequireEvaluation(*lowered);
  return true;
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const auto graph = program::ReadOnnxGraph(bytes, "", kOnnxLimits);
  if (!graph.ok()) {
    RequireCleanRefusal(graph.status());
    return false;
  }
  RequireInputsBeforeUse(*graph);
  TryLowering(*graph, StackedRolesOf(*graph));
  return TryLowering(*graph, RolesOf(*graph));
}

}  // namespace deeppcr::fuzz
