// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_PROGRAM_DRAFT_H_
#define DEEPPCR_TESTS_KERNELS_PROGRAM_DRAFT_H_

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/program/builder.h"

namespace deeppcr::program {

// A builder for tests, which ends the test program where a builder would give an error, and draws
// the numbers of layers.
class Draft {
 public:
  explicit Draft(uint64_t seed = 1, const ProgramLimits& limits = {})
      : random_(seed), builder_(limits) {}

  ValueId State(int64_t size) { return builder_.AddState(size).value(); }
  ValueId Time() { return builder_.AddTime().value(); }
  ValueId Condition(int64_t size) { return builder_.AddCondition(size).value(); }
  ValueId Label() { return builder_.AddLabel().value(); }

  ValueId Constant(std::vector<double> elements) {
    return builder_.AddConstant(std::move(elements)).value();
  }
  // A constant as long as `like`, all of it `number`.
  ValueId Number(double number, ValueId like) {
    return Constant(std::vector<double>(static_cast<size_t>(size(like)), number));
  }
  // A constant of `size` numbers drawn from a normal distribution.
  ValueId Normal(int64_t size) { return Constant(Draw<double>(size, 1)); }

  ValueId Do(Op op, std::initializer_list<ValueId> operands) {
    return builder_.AddElementwise(op, {operands.begin(), operands.size()}).value();
  }
  // An operation of a value and a number.
  ValueId By(Op op, ValueId a, double number) { return Do(op, {a, Number(number, a)}); }
  ValueId Add(ValueId a, ValueId b) { return Do(Op::kAdd, {a, b}); }
  ValueId Subtract(ValueId a, ValueId b) { return Do(Op::kSubtract, {a, b}); }
  ValueId Multiply(ValueId a, ValueId b) { return Do(Op::kMultiply, {a, b}); }
  ValueId Divide(ValueId a, ValueId b) { return Do(Op::kDivide, {a, b}); }
  ValueId Along(Op op, ValueId a, const Axis& axis, double epsilon = 0) {
    return builder_.AddAlongAxis(op, a, axis, epsilon).value();
  }

  // A layer with drawn weights, of about unit gain.
  LinearLayer Layer(int64_t rows, int64_t cols, bool bias = true, int64_t repeat = 1) {
    const double scale = 1 / std::sqrt(static_cast<double>(cols));
    const auto share = [](std::vector<float> numbers) {
      return std::make_shared<const std::vector<float>>(std::move(numbers));
    };
    return {rows, cols, repeat, share(Draw<float>(rows * cols, scale)),
            bias ? share(Draw<float>(rows, 0.5)) : nullptr};
  }
  ValueId Linear(ValueId a, const LinearLayer& layer) {
    return builder_.AddLinear(a, layer).value();
  }
  ValueId Linear(ValueId a, int64_t rows, bool bias = true) {
    return Linear(a, Layer(rows, size(a), bias));
  }
  // A constant of each of `steps` layers, drawn as weights of so many columns are.
  ValueId Stacked(int64_t steps, int64_t size, int64_t cols) {
    const double scale = 1 / std::sqrt(static_cast<double>(cols));
    return builder_
        .AddStacked(std::make_shared<const std::vector<float>>(Draw<float>(steps * size, scale)),
                    size)
        .value();
  }
  ValueId Product(ValueId a, ValueId matrix, ValueId bias, const LinearLayer& sizes) {
    return builder_.AddProduct(a, matrix, bias, sizes).value();
  }
  ValueId Lookup(ValueId index, const LinearLayer& table) {
    return builder_.AddLookup(index, table).value();
  }

  ValueId Arrange(std::vector<ValueId> operands, std::vector<Element> elements) {
    return builder_.AddArrange(operands, std::move(elements)).value();
  }
  ValueId Concatenate(std::initializer_list<ValueId> operands) {
    std::vector<Element> elements;
    int32_t operand = 0;
    for (const ValueId id : operands) {
      for (int64_t i = 0; i < size(id); ++i) elements.push_back({operand, i});
      ++operand;
    }
    return Arrange(operands, std::move(elements));
  }
  ValueId Slice(ValueId a, int64_t begin, int64_t end) {
    std::vector<Element> elements;
    for (int64_t i = begin; i < end; ++i) elements.push_back({0, i});
    return Arrange({a}, std::move(elements));
  }
  // [outer, inner] to all of [outer, length, inner], as a lowering writes it.
  ValueId Broadcast(ValueId a, const Axis& axis) {
    std::vector<Element> elements;
    for (int64_t o = 0; o < axis.outer; ++o) {
      for (int64_t k = 0; k < axis.length; ++k) {
        for (int64_t i = 0; i < axis.inner; ++i) elements.push_back({0, o * axis.inner + i});
      }
    }
    return Arrange({a}, std::move(elements));
  }
  ValueId ReverseStep(ValueId state, ValueId prediction) {
    return builder_.AddReverseStep(state, prediction).value();
  }

  Program Finish(ValueId output, ValueId prediction = kNoValue) {
    return builder_.Finish(output, prediction).value();
  }

  int64_t size(ValueId id) const { return builder_.at(id).size; }
  const Value& at(ValueId id) const { return builder_.at(id); }
  ProgramBuilder& builder() { return builder_; }
  std::mt19937_64& random() { return random_; }

 private:
  template <class T>
  std::vector<T> Draw(int64_t size, double scale) {
    std::normal_distribution<double> normal(0, scale);
    std::vector<T> numbers(static_cast<size_t>(size));
    for (T& number : numbers) number = static_cast<T>(normal(random_));
    return numbers;
  }

  std::mt19937_64 random_;
  ProgramBuilder builder_;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_TESTS_KERNELS_PROGRAM_DRAFT_H_
