// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/fingerprint.h"

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/base/sha256.h"
#include "kernels/base/status_macros.h"

namespace deeppcr::program {
namespace {

// Text of a program, with hashes in place of long lists of numbers.
class Text {
 public:
  template <class T>
  void AddNumber(T number) {
    text_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void AddName(std::string_view name) {
    AddNumber(static_cast<int64_t>(name.size()));
    text_ += name;
  }
  template <class T>
  absl::Status AddNumbers(const std::vector<T>& numbers) {
    AddNumber(static_cast<int64_t>(numbers.size()));
    DEEPPCR_ASSIGN_OR_RETURN(
        const std::string hash,
        Sha256Hex(std::string_view(reinterpret_cast<const char*>(numbers.data()),
                                   numbers.size() * sizeof(T))));
    text_ += hash;
    return absl::OkStatus();
  }
  absl::Status AddShared(const std::shared_ptr<const std::vector<float>>& numbers) {
    return numbers == nullptr ? AddNumbers(std::vector<float>()) : AddNumbers(*numbers);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status AddInstruction(const Instruction& instruction, Text& text) {
  // Not the enumerator's number, which a new operation changes.
  text.AddName(RowOf(instruction.op).name);
  if (instruction.part != StepPart::kState) text.AddName(NameOf(instruction.part));
  DEEPPCR_RETURN_IF_ERROR(text.AddNumbers(instruction.operands));
  text.AddNumber(instruction.result);
  const LinearLayer& linear = instruction.linear;
  for (const int64_t size : {linear.rows, linear.cols, linear.repeat, instruction.axis.outer,
                             instruction.axis.length, instruction.axis.inner})
    text.AddNumber(size);
  text.AddNumber(linear.transposed);
  text.AddNumber(instruction.epsilon);
  DEEPPCR_RETURN_IF_ERROR(text.AddShared(linear.weight));
  DEEPPCR_RETURN_IF_ERROR(text.AddShared(linear.bias));
  std::vector<int64_t> elements;
  for (const Element& element : instruction.elements) {
    elements.push_back(element.operand);
    elements.push_back(element.index);
  }
  return text.AddNumbers(elements);
}

}  // namespace

absl::StatusOr<std::string> Fingerprint(const Program& program) {
  Text text;
  for (const Value& value : program.values) {
    text.AddNumber(value.size);
    text.AddNumber(value.depends);
    if (!value.constant.empty()) DEEPPCR_RETURN_IF_ERROR(text.AddNumbers(value.constant));
  }
  for (const StackedConstant& stacked : program.stacked) {
    text.AddNumber(stacked.value);
    DEEPPCR_RETURN_IF_ERROR(text.AddShared(stacked.rows));
  }
  for (const Instruction& instruction : program.instructions)
    DEEPPCR_RETURN_IF_ERROR(AddInstruction(instruction, text));
  for (const ValueId id : {program.state, program.time, program.condition, program.label,
                           program.prediction, program.output})
    text.AddNumber(id);
  return Sha256Hex(text.text());
}

}  // namespace deeppcr::program
