// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/describe.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "kernels/base/strings.h"
#include "kernels/program/cost.h"
#include "kernels/program/dependence.h"
#include "kernels/program/passes/program_index.h"

namespace deeppcr::program {
namespace {

// Operands that a line names, as an arrangement may have any number.
constexpr size_t kMostOperands = 8;

// Names in a listing: a value's own where no other has it, else its number, with the name.
class Labels {
 public:
  explicit Labels(const Program& program) : program_(program) {
    for (const Value& value : program.values) ++count_[value.name];
  }

  std::string Of(ValueId id) const {
    const std::string& name = program_.at(id).name;
    const std::string text = absl::CHexEscape(name.substr(0, kLongest));
    if (name.empty()) return StrCat("%", id);
    return count_.at(name) == 1 && name.size() <= kLongest ? text : StrCat(text, "%", id);
  }

 private:
  static constexpr size_t kLongest = 80;

  const Program& program_;
  std::unordered_map<std::string, int> count_;
};

// Which input a value is; null for others.
const char* InputOf(const Program& program, ValueId id) {
  if (id == program.state) return "state";
  if (id == program.time) return "time";
  if (id == program.condition) return "condition";
  if (id == program.label) return "label";
  for (const StackedConstant& stacked : program.stacked)
    if (id == stacked.value) return "of each layer";
  return nullptr;
}

// What an instruction says beside its operands.
std::string SettingsOf(const Instruction& instruction) {
  const LinearLayer& linear = instruction.linear;
  const Axis& axis = instruction.axis;
  std::string repeat = linear.repeat > 1 ? StrCat(", ", linear.repeat, " times") : "";
  switch (RowOf(instruction.op).kind) {
    case OpKind::kLinear:
      return StrCat(" ", linear.rows, " x ", linear.cols, repeat,
                    linear.bias == nullptr ? ", no bias" : "");
    case OpKind::kProduct:
      return StrCat(" ", linear.rows, " x ", linear.cols, repeat,
                    instruction.operands.size() == 2 ? ", no bias" : "");
    case OpKind::kLookup:
      return StrCat(" ", linear.rows, " x ", linear.cols);
    case OpKind::kReduction:
      return StrCat(" of [", axis.outer, ", ", axis.length, ", ", axis.inner, "]");
    case OpKind::kAlongAxis: {
      const std::string epsilon =
          instruction.epsilon > 0 ? StrCat(", epsilon ", instruction.epsilon) : "";
      return StrCat(" of [", axis.outer, ", ", axis.length, ", ", axis.inner, "]", epsilon);
    }
    case OpKind::kReverseStep:
      return instruction.part == StepPart::kState ? "" : StrCat(", ", NameOf(instruction.part));
    default:
      return "";
  }
}

// How a value is made.
std::string MadeBy(const ProgramIndex& index, const Labels& labels, ValueId id) {
  const Instruction* maker = index.Producer(id);
  if (const char* input = InputOf(index.program(), id)) return StrCat("input ", input);
  if (maker == nullptr) {
    const std::optional<double> number = index.Number(id);
    return number.has_value() ? StrCat("constant ", *number) : "constant";
  }
  const auto label = [&](ValueId operand) { return labels.Of(operand); };
  const std::span<const ValueId> operands = maker->operands;
  const auto shown = operands.first(std::min(operands.size(), kMostOperands));
  const std::string more = shown.size() < operands.size()
                               ? StrCat(" and ", operands.size() - shown.size(), " more")
                               : "";
  return StrCat(RowOf(maker->op).name, "(", StrJoin(shown, ", ", label), more, ")",
                SettingsOf(*maker));
}

std::string Line(const ProgramIndex& index, const Labels& labels, ValueId id) {
  const Value& value = index.at(id);
  const Instruction* maker = index.Producer(id);
  std::string line = StrCat(labels.Of(id), " = ", MadeBy(index, labels, id), "  [", value.size,
                            "]  ", kClassNames[static_cast<size_t>(ClassOf(value))]);
  if (maker != nullptr) {
    line += absl::StrFormat("  %.0f", MultiplyAdds(index.program(), *maker));
  }
  if (id == index.program().prediction) line += "  (prediction)";
  if (id == index.program().output) line += "  (output)";
  return line + "\n";
}

std::string CostLine(const Program& program, const char* what) {
  const Costs costs = CostsOf(program);
  std::string line = StrCat(what, ": multiply-adds");
  for (int k = kOnTime; k < kNumClasses; ++k) {
    const auto at = static_cast<size_t>(k);
    line += absl::StrFormat("%s %.0f on %s", k == kOnTime ? "" : ",", costs.by_class[at],
                            kClassNames[at]);
  }
  return line + absl::StrFormat("; %.1f %% in the step\n", 100 * costs.ShareInStep());
}

// Of all that a loop would do which makes the whole program as written in each step.
std::string ShareLine(const Program& program, const Program& written) {
  const double all = CostsOf(written).total();
  const double left = CostsOf(program).by_class[kOnState];
  return absl::StrFormat("left in the step: %.1f %% of the arithmetic as written\n",
                         all == 0 ? 0 : 100 * left / all);
}

// How much a program holds. Numbers that several instructions read count once.
std::string HoldingsLine(const Program& program) {
  int64_t constants = 0, elements = 0, layers = 0, tables = 0;
  for (const Value& value : program.values) {
    constants += value.constant.empty() ? 0 : 1;
    elements += static_cast<int64_t>(value.constant.size());
  }
  std::set<const void*> seen;
  int64_t weights = 0;
  for (const StackedConstant& stacked : program.stacked)
    weights += static_cast<int64_t>(stacked.rows->size());
  for (const Instruction& instruction : program.instructions) {
    layers += instruction.op == Op::kLinear || instruction.op == Op::kProduct ? 1 : 0;
    tables += instruction.op == Op::kLookup ? 1 : 0;
    for (const auto& numbers : {instruction.linear.weight, instruction.linear.bias}) {
      if (numbers == nullptr || !seen.insert(numbers.get()).second) continue;
      weights += static_cast<int64_t>(numbers->size());
    }
  }
  return StrCat(program.instructions.size(), " instructions; ", constants, " constants of ",
                elements, " elements; ", layers, " linear layers and ", tables, " tables of ",
                weights, " numbers\n");
}

}  // namespace

std::string Describe(const Program& program, const Program* written) {
  const ProgramIndex index(program);
  const Labels labels(program);
  std::string text;
  for (size_t i = 0; i < program.values.size(); ++i) {
    text += Line(index, labels, static_cast<ValueId>(i));
  }
  if (written != nullptr) text += CostLine(*written, "as written");
  text += CostLine(program, written == nullptr ? "program" : "optimised");
  if (written != nullptr) text += ShareLine(program, *written);
  return text + HoldingsLine(program);
}

}  // namespace deeppcr::program
