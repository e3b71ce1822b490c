// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/guidance.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {
namespace {

// What became of a value: the same under both conditions; a value for each; or, inside the step,
// one value of two halves.
struct Guided {
  ValueId condition = kNoValue, null = kNoValue;
  ValueId halves = kNoValue;

  bool same() const { return condition != kNoValue && condition == null; }
};

class Writer {
 public:
  Writer(const Program& from, int64_t null_class, const ProgramLimits& limits)
      : from_(from), null_class_(null_class), writer_(from, limits), now_(from.values.size()) {}

  absl::StatusOr<Program> Run() {
    DEEPPCR_RETURN_IF_ERROR(AddInputs());
    for (const Instruction& instruction : from_.instructions) {
      DEEPPCR_RETURN_IF_ERROR(instruction.op == Op::kReverseStep ? AddReverseStep(instruction)
                                                                 : Add(instruction));
    }
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId prediction, GuidedPrediction());
    writer_.Set(from_.prediction, prediction);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId output, OfCondition(from_.output));
    writer_.Set(from_.output, output);
    return writer_.Finish();
  }

 private:
  ProgramBuilder& builder() { return writer_.builder(); }
  Guided& at(ValueId old) { return now_[static_cast<size_t>(old)]; }
  int64_t SizeOf(ValueId old) const { return from_.at(old).size; }

  absl::Status AddInputs() {
    const int64_t size = from_.condition == kNoValue ? 0 : SizeOf(from_.condition);
    DEEPPCR_RETURN_IF_ERROR(writer_.Begin(std::vector<bool>(from_.values.size(), true), size + 1));
    for (const ValueId id : {from_.state, from_.time, from_.condition, from_.label}) {
      if (id != kNoValue) at(id) = {writer_.Now(id), writer_.Now(id)};
    }
    for (const StackedConstant& stacked : from_.stacked)
      at(stacked.value) = {writer_.Now(stacked.value), writer_.Now(stacked.value)};
    for (size_t i = 0; i < now_.size(); ++i) {
      const auto id = static_cast<ValueId>(i);
      if (!from_.at(id).constant.empty()) at(id) = {writer_.Now(id), writer_.Now(id)};
    }
    if (size > 0) {
      DEEPPCR_ASSIGN_OR_RETURN(at(from_.condition).null, writer_.AddMore(0, size));
    }
    if (from_.label != kNoValue) {
      DEEPPCR_ASSIGN_OR_RETURN(at(from_.label).null,
                               writer_.AddNumber(static_cast<double>(null_class_), 1));
    }
    DEEPPCR_ASSIGN_OR_RETURN(scale_, writer_.AddMore(size, 1));
    return absl::OkStatus();
  }

  absl::Status Add(const Instruction& instruction) {
    bool same = true;
    for (const ValueId id : instruction.operands) same = same && at(id).same();
    Guided& result = at(instruction.result);
    if (!same && (from_.at(instruction.result).depends & kOnState) != 0) {
      DEEPPCR_ASSIGN_OR_RETURN(result.halves, AddHalves(instruction));
      writer_.Set(instruction.result, result.halves);
      return absl::OkStatus();
    }
    std::vector<ValueId> operands;
    for (const ValueId id : instruction.operands) operands.push_back(at(id).condition);
    DEEPPCR_ASSIGN_OR_RETURN(result.condition, builder().AddLike(instruction, operands));
    for (size_t i = 0; i < operands.size(); ++i) operands[i] = at(instruction.operands[i]).null;
    DEEPPCR_ASSIGN_OR_RETURN(result.null, builder().AddLike(instruction, operands));
    writer_.Set(instruction.result, result.condition);
    return absl::OkStatus();
  }

  // The instruction on both halves of its operands: twice as many rows.
  absl::StatusOr<ValueId> AddHalves(const Instruction& instruction) {
    if (instruction.op == Op::kArrange) return ArrangeHalves(instruction);
    std::vector<ValueId> operands;
    for (const ValueId id : instruction.operands) {
      // The matrix and the bias of a product are those of both.
      if (instruction.op == Op::kProduct && !operands.empty()) {
        operands.push_back(at(id).condition);
        continue;
      }
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId halves, HalvesOf(id));
      operands.push_back(halves);
    }
    Instruction twice = instruction;
    twice.linear.repeat *= 2;
    twice.axis.outer *= 2;
    return builder().AddLike(twice, operands);
  }

  absl::StatusOr<ValueId> ArrangeHalves(const Instruction& instruction) {
    std::vector<ValueId> operands;
    std::vector<Element> elements;
    for (const bool null : {false, true}) {
      const auto first = static_cast<int32_t>(operands.size());
      for (const ValueId id : instruction.operands) {
        const Guided& guided = at(id);
        const ValueId one = null ? guided.null : guided.condition;
        operands.push_back(guided.halves != kNoValue ? guided.halves : one);
      }
      for (const Element& element : instruction.elements) {
        const ValueId id = instruction.operands[static_cast<size_t>(element.operand)];
        const int64_t skipped = null && at(id).halves != kNoValue ? SizeOf(id) : 0;
        elements.push_back({first + element.operand, skipped + element.index});
      }
    }
    return builder().AddArrange(operands, std::move(elements));
  }

  // The value in two halves.
  absl::StatusOr<ValueId> HalvesOf(ValueId old) {
    const Guided& guided = at(old);
    if (guided.halves != kNoValue) return guided.halves;
    std::vector<Element> elements;
    for (const int32_t half : {0, 1})
      for (int64_t i = 0; i < SizeOf(old); ++i) elements.push_back({half, i});
    return builder().AddArrange({{guided.condition, guided.null}}, std::move(elements));
  }

  // A part of the reverse step, of the guided m. The scale of the noise is that of the condition.
  absl::Status AddReverseStep(const Instruction& instruction) {
    dim_ = SizeOf(instruction.result);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId first, OfCondition(instruction.operands[0]));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId m, GuidedPart(instruction.operands[1], dim_));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId next, builder().AddLike(instruction, {{first, m}}));
    at(instruction.result) = {next, next};
    writer_.Set(instruction.result, next);
    return absl::OkStatus();
  }

  // The value with the condition.
  absl::StatusOr<ValueId> OfCondition(ValueId old) {
    const Guided& guided = at(old);
    if (guided.halves == kNoValue) return guided.condition;
    return builder().AddPart(guided.halves, 0, SizeOf(old));
  }

  // m, and behind it what gives the scale of the noise.
  absl::StatusOr<ValueId> GuidedPrediction() {
    const int64_t size = SizeOf(from_.prediction);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId m, GuidedPart(from_.prediction, dim_));
    if (size == dim_) return m;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId all, OfCondition(from_.prediction));
    std::vector<Element> elements;
    for (int64_t i = 0; i < size; ++i) elements.push_back({i < dim_ ? 0 : 1, i});
    return builder().AddArrange({{m, all}}, std::move(elements));
  }

  // m_null + w (m_condition - m_null) of the first elements of a value.
  absl::StatusOr<ValueId> GuidedPart(ValueId old, int64_t size) {
    const ValueId halves = at(old).halves;
    if (halves == kNoValue)
      return InvalidArgument("the prediction does not depend on the condition: nothing to guide");
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId of_condition, builder().AddPart(halves, 0, size));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId of_null, builder().AddPart(halves, SizeOf(old), size));
    DEEPPCR_ASSIGN_OR_RETURN(
        const ValueId scale,
        builder().AddArrange({{scale_}}, std::vector<Element>(static_cast<size_t>(size), {0, 0})));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId difference,
                             builder().AddElementwise(Op::kSubtract, {{of_condition, of_null}}));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId scaled,
                             builder().AddElementwise(Op::kMultiply, {{scale, difference}}));
    return builder().AddElementwise(Op::kAdd, {{of_null, scaled}});
  }

  const Program& from_;
  const int64_t null_class_;
  ProgramWriter writer_;
  std::vector<Guided> now_;
  ValueId scale_ = kNoValue;
  int64_t dim_ = 0;  // elements of z
};

}  // namespace

absl::StatusOr<Program> WithGuidance(const Program& program, int64_t null_class,
                                     const ProgramLimits& limits) {
  return Writer(program, null_class, limits).Run();
}

}  // namespace deeppcr::program
