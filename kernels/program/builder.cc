// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/builder.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/evaluate.h"

namespace deeppcr::program {
namespace {

// What tells two instructions with the same operands apart.
bool SameWork(const Instruction& a, const Instruction& b) {
  const auto same_axis = [](const Axis& x, const Axis& y) {
    return x.outer == y.outer && x.length == y.length && x.inner == y.inner;
  };
  const auto same_element = [](const Element& x, const Element& y) {
    return x.operand == y.operand && x.index == y.index;
  };
  return a.op == b.op && a.operands == b.operands && a.linear.rows == b.linear.rows &&
         a.linear.cols == b.linear.cols && a.linear.repeat == b.linear.repeat &&
         a.linear.weight == b.linear.weight && a.linear.bias == b.linear.bias &&
         a.linear.transposed == b.linear.transposed && same_axis(a.axis, b.axis) &&
         a.epsilon == b.epsilon && a.part == b.part &&
         std::ranges::equal(a.elements, b.elements, same_element);
}

// A hash of the same data but the elements, of which the number and a few are enough.
uint64_t HashOf(const Instruction& a) {
  uint64_t hash = 1469598103934665603ULL;
  const auto mix = [&](uint64_t x) { hash = (hash ^ x) * 1099511628211ULL; };
  mix(static_cast<uint64_t>(a.op));
  mix(static_cast<uint64_t>(a.part));
  for (const ValueId id : a.operands) mix(static_cast<uint64_t>(id));
  mix(reinterpret_cast<uintptr_t>(a.linear.weight.get()));
  mix(static_cast<uint64_t>(a.axis.length));
  mix(a.elements.size());
  for (size_t i = 0; i < a.elements.size(); i += 1 + a.elements.size() / 8)
    mix(static_cast<uint64_t>(a.elements[i].index) * 31 +
        static_cast<uint64_t>(a.elements[i].operand));
  return hash;
}

// Instructions of one hash that are compared with a new one: a graph may be made to have many.
constexpr int kMostTries = 16;

int64_t SizeOf(const std::shared_ptr<const std::vector<float>>& numbers) {
  return numbers == nullptr ? 0 : static_cast<int64_t>(numbers->size());
}

}  // namespace

ProgramBuilder::ProgramBuilder(const ProgramLimits& limits) : limits_(limits) {}

absl::StatusOr<ValueId> ProgramBuilder::AddInput(ValueId Program::*slot, int64_t size,
                                                 uint8_t depends) {
  if (program_.*slot != kNoValue) return Internal("an input that is there already");
  if (size < 1 || size > limits_.max_value_size)
    return InvalidArgument("an input of ", size, " elements; 1 to ", limits_.max_value_size,
                           " are allowed");
  program_.*slot = static_cast<ValueId>(program_.values.size());
  program_.values.push_back({.size = size, .depends = depends});
  return program_.*slot;
}

absl::StatusOr<ValueId> ProgramBuilder::AddState(int64_t size) {
  return AddInput(&Program::state, size, kOnState);
}
absl::StatusOr<ValueId> ProgramBuilder::AddTime() { return AddInput(&Program::time, 1, kOnTime); }
absl::StatusOr<ValueId> ProgramBuilder::AddCondition(int64_t size) {
  return AddInput(&Program::condition, size, kOnCondition);
}
absl::StatusOr<ValueId> ProgramBuilder::AddLabel() {
  return AddInput(&Program::label, 1, kOnCondition);
}

absl::StatusOr<ValueId> ProgramBuilder::AddConstant(std::vector<double> elements) {
  const auto size = static_cast<int64_t>(elements.size());
  if (size < 1 || size > limits_.max_value_size)
    return InvalidArgument("a constant of ", size, " elements; 1 to ", limits_.max_value_size,
                           " are allowed");
  if (size > limits_.max_constant_elements - constant_elements_)
    return ResourceExhausted("constants of more than ", limits_.max_constant_elements,
                             " elements in all");
  constant_elements_ += size;
  program_.values.push_back({.size = size, .constant = std::move(elements)});
  return static_cast<ValueId>(program_.values.size() - 1);
}

// Takes the numbers of all steps, [L, size], L the same for all.
absl::Status ProgramBuilder::CheckSteps(int64_t elements, int64_t size) {
  if (elements % size != 0 || elements == 0 || (num_steps_ > 0 && elements / size != num_steps_))
    return Internal("numbers of the steps that do not fit their sizes");
  num_steps_ = elements / size;
  return absl::OkStatus();
}

absl::StatusOr<ValueId> ProgramBuilder::AddStacked(std::shared_ptr<const std::vector<float>> rows,
                                                   int64_t size) {
  if (size < 1 || size > limits_.max_matrix_elements)
    return InvalidArgument("a stacked constant of ", size, " elements for each layer; 1 to ",
                           limits_.max_matrix_elements, " are allowed");
  const int64_t elements = SizeOf(rows);
  DEEPPCR_RETURN_IF_ERROR(CheckSteps(elements, size));
  if (elements > limits_.max_weight_elements - weight_elements_)
    return ResourceExhausted("stacked constants of more than ", limits_.max_weight_elements,
                             " elements in all");
  weight_elements_ += elements;
  const auto id = static_cast<ValueId>(program_.values.size());
  program_.values.push_back({.size = size, .depends = kOnTime});
  program_.stacked.push_back({id, std::move(rows)});
  return id;
}

absl::StatusOr<ValueId> ProgramBuilder::AddParameter(
    std::shared_ptr<const std::vector<float>> numbers, int64_t size, bool per_step,
    std::vector<ParameterSlice> slices) {
  const int64_t elements = SizeOf(numbers);
  int64_t sliced = 0;
  for (const ParameterSlice& slice : slices) sliced += slice.size;
  if (size < 1 || sliced != size || (!per_step && elements != size) ||
      (per_step && slices.size() != 1))
    return Internal("a parameter whose numbers do not fit its sizes");
  if (per_step) DEEPPCR_RETURN_IF_ERROR(CheckSteps(elements, size));
  if (elements > limits_.max_weight_elements - weight_elements_)
    return ResourceExhausted("parameters of more than ", limits_.max_weight_elements,
                             " elements in all");
  weight_elements_ += elements;
  const auto id = static_cast<ValueId>(program_.values.size());
  const auto depends = static_cast<uint8_t>(kOnParameters | (per_step ? kOnTime : kOnNothing));
  program_.values.push_back({.size = size, .depends = depends});
  program_.parameters.push_back({id, std::move(numbers), per_step, std::move(slices)});
  return id;
}

absl::StatusOr<ValueId> ProgramBuilder::AddElementwise(Op op, std::span<const ValueId> operands) {
  const OpRow& row = RowOf(op);
  if (row.kind != OpKind::kElementwise || static_cast<int>(operands.size()) != row.operands)
    return Internal(row.name, " of ", operands.size(), " operands");
  const int64_t size = at(operands[0]).size;
  for (const ValueId id : operands) {
    if (at(id).size != size)
      return InvalidArgument(row.name, " of ", size, " and ", at(id).size, " elements");
  }
  return Add({.op = op, .operands = {operands.begin(), operands.end()}}, size);
}

absl::StatusOr<ValueId> ProgramBuilder::AddAlongAxis(Op op, ValueId operand, const Axis& axis,
                                                     double epsilon) {
  const OpRow& row = RowOf(op);
  if (row.kind != OpKind::kReduction && row.kind != OpKind::kAlongAxis)
    return Internal(row.name, " along an axis");
  if (axis.outer < 1 || axis.length < 1 || axis.inner < 1)
    return InvalidArgument(row.name, " along an axis without elements");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size,
                           CheckedProduct({axis.outer, axis.length, axis.inner}));
  if (size != at(operand).size)
    return InvalidArgument(row.name, " of ", at(operand).size, " elements as [", axis.outer, ", ",
                           axis.length, ", ", axis.inner, "]");
  if (!(epsilon >= 0)) return InvalidArgument(row.name, " with epsilon ", epsilon);
  return Add({.op = op, .operands = {operand}, .axis = axis, .epsilon = epsilon},
             row.kind == OpKind::kReduction ? axis.outer * axis.inner : size);
}

absl::StatusOr<ValueId> ProgramBuilder::AddLinear(ValueId operand, const LinearLayer& layer) {
  if (layer.rows < 1 || layer.cols < 1 || layer.repeat < 1)
    return InvalidArgument("a linear layer of ", layer.rows, " rows and ", layer.cols, " columns");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t inputs, CheckedProduct({layer.cols, layer.repeat}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t outputs, CheckedProduct({layer.rows, layer.repeat}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t weights, CheckedProduct({layer.rows, layer.cols}));
  if (inputs != at(operand).size)
    return InvalidArgument("a linear layer of ", inputs, " inputs on ", at(operand).size,
                           " elements");
  if (SizeOf(layer.weight) != weights ||
      (layer.bias != nullptr && SizeOf(layer.bias) != layer.rows))
    return Internal("a linear layer whose numbers do not fit its sizes");
  if (weights > limits_.max_weight_elements - weight_elements_)
    return ResourceExhausted("linear layers of more than ", limits_.max_weight_elements,
                             " weights in all");
  weight_elements_ += weights;
  return Add({.op = Op::kLinear, .operands = {operand}, .linear = layer}, outputs);
}

absl::StatusOr<ValueId> ProgramBuilder::AddProduct(ValueId operand, ValueId matrix, ValueId bias,
                                                   const LinearLayer& sizes) {
  const LinearLayer layer = {.rows = sizes.rows,
                             .cols = sizes.cols,
                             .repeat = sizes.repeat,
                             .transposed = sizes.transposed};
  if (layer.rows < 1 || layer.cols < 1 || layer.repeat < 1)
    return InvalidArgument("a product with a matrix of ", layer.rows, " rows and ", layer.cols,
                           " columns");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t inputs, CheckedProduct({layer.cols, layer.repeat}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t outputs, CheckedProduct({layer.rows, layer.repeat}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t weights, CheckedProduct({layer.rows, layer.cols}));
  if (inputs != at(operand).size || weights != at(matrix).size ||
      (bias != kNoValue && at(bias).size != layer.rows))
    return InvalidArgument("a product with a matrix of ", at(matrix).size, " elements on ",
                           at(operand).size);
  constexpr uint8_t kAllowed = kOnTime | kOnParameters;
  if (at(matrix).depends == kOnNothing || (at(matrix).depends & ~kAllowed) != 0 ||
      (bias != kNoValue && (at(bias).depends & ~kAllowed) != 0))
    return Internal("a product with a matrix or bias that does not depend on the time alone");
  std::vector<ValueId> operands = {operand, matrix};
  if (bias != kNoValue) operands.push_back(bias);
  return Add({.op = Op::kProduct, .operands = std::move(operands), .linear = layer}, outputs);
}

namespace {

absl::Status CheckIndex(const Value& index) {
  if (index.size != 1) return InvalidArgument("a lookup of ", index.size, " rows");
  if ((index.depends & kOnState) == 0) return absl::OkStatus();
  return InvalidArgument("a lookup of a row that depends on the state");
}

}  // namespace

absl::StatusOr<ValueId> ProgramBuilder::AddLookup(ValueId index, const LinearLayer& table) {
  DEEPPCR_RETURN_IF_ERROR(CheckIndex(at(index)));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t elements, CheckedProduct({table.rows, table.cols}));
  if (table.rows < 1 || table.cols < 1 || SizeOf(table.weight) != elements)
    return Internal("a table whose numbers do not fit its sizes");
  if (elements > limits_.max_weight_elements - weight_elements_)
    return ResourceExhausted("tables of more than ", limits_.max_weight_elements,
                             " elements in all");
  weight_elements_ += elements;
  return Add({.op = Op::kLookup, .operands = {index}, .linear = table}, table.cols);
}

absl::StatusOr<ValueId> ProgramBuilder::AddLookup(ValueId index, ValueId table,
                                                  const LinearLayer& sizes) {
  DEEPPCR_RETURN_IF_ERROR(CheckIndex(at(index)));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t elements, CheckedProduct({sizes.rows, sizes.cols}));
  if (sizes.rows < 1 || sizes.cols < 1 || at(table).size != elements)
    return Internal("a table whose numbers do not fit its sizes");
  return Add({.op = Op::kLookup,
              .operands = {index, table},
              .linear = {.rows = sizes.rows, .cols = sizes.cols}},
             sizes.cols);
}

absl::StatusOr<ValueId> ProgramBuilder::AddArrange(std::span<const ValueId> operands,
                                                   std::vector<Element> elements) {
  if (operands.empty() || elements.empty()) return InvalidArgument("an arrangement of nothing");
  for (const Element& element : elements) {
    if (element.operand < 0 || element.operand >= std::ssize(operands) || element.index < 0 ||
        element.index >= at(operands[static_cast<size_t>(element.operand)]).size)
      return InvalidArgument("an arrangement of element ", element.index, ", which is not there");
  }
  const auto size = std::ssize(elements);
  if (size > limits_.max_constant_elements - constant_elements_)
    return ResourceExhausted("arrangements of more than ", limits_.max_constant_elements,
                             " elements in all");
  constant_elements_ += size;
  return Add({.op = Op::kArrange,
              .operands = {operands.begin(), operands.end()},
              .elements = std::move(elements)},
             size);
}

absl::StatusOr<ValueId> ProgramBuilder::AddPart(ValueId id, int64_t first, int64_t count) {
  std::vector<Element> elements;
  for (int64_t i = first; i < first + count; ++i) elements.push_back({0, i});
  return AddArrange({{id}}, std::move(elements));
}

absl::StatusOr<ValueId> ProgramBuilder::AddReverseStep(ValueId state, ValueId prediction,
                                                       StepPart part) {
  if (at(state).size != at(prediction).size)
    return InvalidArgument("the denoiser makes ", at(prediction).size, " values of a state of ",
                           at(state).size);
  return Add({.op = Op::kReverseStep, .operands = {state, prediction}, .part = part},
             at(state).size);
}

absl::StatusOr<ValueId> ProgramBuilder::AddLike(const Instruction& instruction,
                                                std::span<const ValueId> operands) {
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise:
      return AddElementwise(instruction.op, operands);
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return AddAlongAxis(instruction.op, operands[0], instruction.axis, instruction.epsilon);
    case OpKind::kLinear:
      return AddLinear(operands[0], instruction.linear);
    case OpKind::kProduct:
      return AddProduct(operands[0], operands[1], operands.size() > 2 ? operands[2] : kNoValue,
                        instruction.linear);
    case OpKind::kLookup:
      return AddLookup(operands[0], instruction.linear);
    case OpKind::kArrange:
      return AddArrange(operands, instruction.elements);
    case OpKind::kReverseStep:
      return AddReverseStep(operands[0], operands[1], instruction.part);
  }
  return Internal("an operation of no kind");
}

// Folds, shares or appends an instruction whose shapes have been checked.
absl::StatusOr<ValueId> ProgramBuilder::Add(Instruction instruction, int64_t size) {
  if (size > limits_.max_value_size)
    return ResourceExhausted(RowOf(instruction.op).name, " makes ", size, " elements; ",
                             limits_.max_value_size, " are allowed");
  uint8_t depends = kOnNothing;
  for (const ValueId id : instruction.operands) depends |= at(id).depends;
  if (instruction.op == Op::kReverseStep) depends |= kOnState;
  if (depends == kOnNothing) {
    std::vector<std::span<const double>> operands;
    for (const ValueId id : instruction.operands) operands.emplace_back(at(id).constant);
    return AddConstant(EvaluateInstruction(instruction, size, operands));
  }
  const uint64_t hash = HashOf(instruction);
  const auto [begin, end] = known_.equal_range(hash);
  int tries = 0;
  for (auto it = begin; it != end && tries < kMostTries; ++it, ++tries) {
    const Instruction& known = program_.instructions[it->second];
    if (SameWork(known, instruction)) return known.result;
  }
  if (size > limits_.max_result_elements - result_elements_)
    return ResourceExhausted("results of more than ", limits_.max_result_elements,
                             " elements in all");
  result_elements_ += size;
  if (std::ssize(program_.instructions) >= limits_.max_instructions)
    return ResourceExhausted("more than ", limits_.max_instructions, " instructions");
  instruction.result = static_cast<ValueId>(program_.values.size());
  known_.emplace(hash, program_.instructions.size());
  program_.values.push_back({.size = size, .depends = depends});
  program_.instructions.push_back(std::move(instruction));
  return program_.instructions.back().result;
}

void ProgramBuilder::Name(ValueId id, std::string_view name) {
  std::string& to = program_.values[static_cast<size_t>(id)].name;
  if (to.empty()) to = name;
}

absl::StatusOr<Program> ProgramBuilder::Finish(ValueId output, ValueId prediction) {
  if (program_.state == kNoValue) return Internal("a program without a state");
  if ((at(output).depends & kOnState) == 0)
    return InvalidArgument("the output does not depend on the state");
  if (at(output).size != at(program_.state).size)
    return InvalidArgument("the output has ", at(output).size, " elements, the state ",
                           at(program_.state).size);
  program_.output = output;
  program_.prediction = prediction;
  return WithoutUnread(std::move(program_));
}

absl::StatusOr<Program> ProgramBuilder::FinishLayers(ValueId output) {
  if (program_.state == kNoValue) return Internal("layers without an input");
  program_.output = output;
  return WithoutUnread(std::move(program_));
}

int64_t MemoryBytes(const Program& program) {
  size_t bytes = 0;
  for (const Value& value : program.values) bytes += value.constant.size() * sizeof(double);
  for (const StackedConstant& stacked : program.stacked)
    bytes += stacked.rows->size() * sizeof(float);
  for (const Parameter& parameter : program.parameters)
    bytes += parameter.numbers->size() * sizeof(float);
  for (const Instruction& instruction : program.instructions) {
    bytes += instruction.elements.size() * sizeof(Element);
    for (const auto& numbers : {instruction.linear.weight, instruction.linear.bias})
      bytes += numbers == nullptr ? 0 : numbers->size() * sizeof(float);
  }
  return static_cast<int64_t>(bytes);
}

Program WithoutUnread(Program program) {
  std::vector<bool> read(program.values.size());
  for (const ValueId id : {program.output, program.prediction, program.state}) {
    if (id != kNoValue) read[static_cast<size_t>(id)] = true;
  }
  std::vector<Instruction> kept;
  for (auto it = program.instructions.rbegin(); it != program.instructions.rend(); ++it) {
    if (!read[static_cast<size_t>(it->result)]) continue;
    for (const ValueId id : it->operands) read[static_cast<size_t>(id)] = true;
    kept.push_back(std::move(*it));
  }
  std::ranges::reverse(kept);
  std::vector<ValueId> moved(program.values.size(), kNoValue);
  std::vector<Value> values;
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (!read[i]) continue;
    moved[i] = static_cast<ValueId>(values.size());
    values.push_back(std::move(program.values[i]));
  }
  const auto move = [&](ValueId& id) {
    if (id != kNoValue) id = moved[static_cast<size_t>(id)];
  };
  for (Instruction& instruction : kept) {
    for (ValueId& id : instruction.operands) move(id);
    move(instruction.result);
  }
  std::erase_if(program.stacked, [&](const StackedConstant& stacked) {
    return moved[static_cast<size_t>(stacked.value)] == kNoValue;
  });
  for (StackedConstant& stacked : program.stacked) move(stacked.value);
  std::erase_if(program.parameters, [&](const Parameter& parameter) {
    return moved[static_cast<size_t>(parameter.value)] == kNoValue;
  });
  for (Parameter& parameter : program.parameters) move(parameter.value);
  for (ValueId* id : {&program.state, &program.time, &program.condition, &program.label,
                      &program.prediction, &program.output})
    move(*id);
  program.values = std::move(values);
  program.instructions = std::move(kept);
  return program;
}

}  // namespace deeppcr::program
