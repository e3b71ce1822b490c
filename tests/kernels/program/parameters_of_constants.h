// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETERS_OF_CONSTANTS_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETERS_OF_CONSTANTS_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/program/builder.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// A program in which constants, weights, tables and stacked constants are parameters, each with a
// chance of a half, or all of them. Every tensor is one parameter. Whole exponents stay constants:
// a power of a negative number has no slope by its exponent.
class ParametersOfConstants {
 public:
  ParametersOfConstants(const Program& program, uint64_t seed, bool all)
      : from_(program), random_(seed), all_(all), builder_(kNoLimits), now_(from_.values.size()) {}

  Program Make() {
    AddInputs();
    for (const Instruction& instruction : from_.instructions)
      now_[static_cast<size_t>(instruction.result)] = Write(instruction);
    const ValueId prediction = from_.prediction == kNoValue ? kNoValue : At(from_.prediction);
    return builder_.Finish(At(from_.output), prediction).value();
  }

 private:
  ValueId At(ValueId id) const { return now_[static_cast<size_t>(id)]; }
  bool Chosen() { return all_ || std::bernoulli_distribution()(random_); }

  bool IsWholeExponent(ValueId id) const {
    const double exponent = from_.at(id).constant[0];
    return exponent == std::floor(exponent) &&
           std::ranges::any_of(from_.instructions, [&](const Instruction& instruction) {
             return instruction.op == Op::kPower && instruction.operands[1] == id;
           });
  }

  template <class Numbers>
  ValueId Parameter(const Numbers& numbers, int64_t size, bool per_step) {
    return builder_
        .AddParameter(
            std::make_shared<const std::vector<float>>(std::begin(numbers), std::end(numbers)),
            size, per_step, {{tensors_++, size}})
        .value();
  }

  void AddInputs() {
    for (size_t i = 0; i < from_.values.size(); ++i) {
      const Value& value = from_.values[i];
      if (value.constant.empty()) continue;
      now_[i] = Chosen() && !IsWholeExponent(static_cast<ValueId>(i))
                    ? Parameter(value.constant, value.size, false)
                    : builder_.AddConstant(value.constant).value();
    }
    const auto add = [this](ValueId id, auto value) {
      if (id != kNoValue) now_[static_cast<size_t>(id)] = value().value();
    };
    add(from_.state, [&] { return builder_.AddState(from_.at(from_.state).size); });
    add(from_.time, [&] { return builder_.AddTime(); });
    add(from_.condition, [&] { return builder_.AddCondition(from_.at(from_.condition).size); });
    add(from_.label, [&] { return builder_.AddLabel(); });
    for (const StackedConstant& stacked : from_.stacked) {
      const int64_t size = from_.at(stacked.value).size;
      now_[static_cast<size_t>(stacked.value)] =
          Chosen() ? Parameter(*stacked.rows, size, true)
                   : builder_.AddStacked(stacked.rows, size).value();
    }
  }

  ValueId Write(const Instruction& from) {
    std::vector<ValueId> operands;
    for (const ValueId id : from.operands) operands.push_back(At(id));
    switch (RowOf(from.op).kind) {
      case OpKind::kElementwise:
        return builder_.AddElementwise(from.op, operands).value();
      case OpKind::kReduction:
      case OpKind::kAlongAxis:
        return builder_.AddAlongAxis(from.op, operands[0], from.axis, from.epsilon).value();
      case OpKind::kLinear:
        return Chosen() ? ProductOf(from.linear, operands[0])
                        : builder_.AddLinear(operands[0], from.linear).value();
      case OpKind::kProduct:
        return builder_
            .AddProduct(operands[0], operands[1], operands.size() > 2 ? operands[2] : kNoValue,
                        from.linear)
            .value();
      case OpKind::kLookup:
        if (!Chosen()) return builder_.AddLookup(operands[0], from.linear).value();
        return builder_
            .AddLookup(operands[0],
                       Parameter(*from.linear.weight, from.linear.rows * from.linear.cols, false),
                       from.linear)
            .value();
      case OpKind::kArrange:
        return builder_.AddArrange(operands, from.elements).value();
      case OpKind::kReverseStep:
        return builder_.AddReverseStep(operands[0], operands[1]).value();
    }
    return kNoValue;
  }

  // The matrix as it is, or as its transpose.
  ValueId ProductOf(const LinearLayer& layer, ValueId x) {
    LinearLayer sizes = {.rows = layer.rows, .cols = layer.cols, .repeat = layer.repeat};
    std::vector<float> matrix = *layer.weight;
    sizes.transposed = std::bernoulli_distribution()(random_);
    for (int64_t i = 0; sizes.transposed && i < layer.rows; ++i)
      for (int64_t k = 0; k < layer.cols; ++k)
        matrix[k * layer.rows + i] = (*layer.weight)[i * layer.cols + k];
    const ValueId weight = Parameter(matrix, layer.rows * layer.cols, false);
    const ValueId bias =
        layer.bias == nullptr ? kNoValue : Parameter(*layer.bias, layer.rows, false);
    return builder_.AddProduct(x, weight, bias, sizes).value();
  }

  const Program& from_;
  std::mt19937_64 random_;
  const bool all_;
  ProgramBuilder builder_;
  std::vector<ValueId> now_;
  int32_t tensors_ = 0;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_PARAMETERS_OF_CONSTANTS_H_
