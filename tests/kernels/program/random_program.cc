// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/program/random_program.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "tests/kernels/program/draft.h"

namespace deeppcr::program {
namespace {

// Draws a program. Every value has a bound, so that operations which grow fast, or have poles, are
// given operands that have been made harmless before.
class Maker {
 public:
  Maker(uint64_t seed, const RandomProgramOptions& options) : options_(options), draft_(seed) {
    Keep(state_ = draft_.State(options.state), 4);
    Keep(time_ = draft_.Time(), kRowsOfTables);
    Keep(draft_.Condition(options.condition), 4);
    label_ = draft_.Label();
    Keep(draft_.Normal(options.condition), 4);
  }

  Program Make() {
    for (int i = 0; i < options_.instructions; ++i) DrawOne();
    const ValueId said = draft_.Linear(ConcatenateAll(), options_.state);
    const ValueId mean = draft_.Add(said, Fit(Pick(), options_.state));
    if (!options_.reverse_step) return draft_.Finish(mean);
    return draft_.Finish(draft_.ReverseStep(state_, mean), mean);
  }

 private:
  int64_t Below(int64_t end) {
    return std::uniform_int_distribution<int64_t>(0, end - 1)(draft_.random());
  }
  ValueId Pick() { return pool_[static_cast<size_t>(Below(std::ssize(pool_)))]; }

  ValueId Bounded(ValueId id, double bound) {
    bounds_[id] = bound;
    return id;
  }
  // Puts a value among those that later operations draw from.
  void Keep(ValueId id, double bound) { pool_.push_back(Bounded(id, bound)); }
  double BoundOf(ValueId id) const { return bounds_.at(id); }

  // A value within +-limit: itself, or its tanh.
  ValueId Mild(ValueId id, double limit) {
    if (BoundOf(id) <= limit) return id;
    return Bounded(draft_.Do(Op::kTanh, {id}), 1);
  }
  // A value above 1 / 4.
  ValueId Positive(ValueId id) {
    const ValueId softplus = draft_.Do(Op::kSoftplus, {Mild(id, 8)});
    return Bounded(draft_.By(Op::kAdd, softplus, 0.25), 9);
  }
  // A value that is no round number, so that no jump is met by more than chance.
  ValueId Uneven(ValueId id) {
    const ValueId scaled = draft_.By(Op::kMultiply, Mild(id, 8), 1.3717);
    return Bounded(draft_.By(Op::kAdd, scaled, 0.1234567), 12);
  }

  // The value's elements as a vector of another size: some of them, or sums of them.
  ValueId Fit(ValueId id, int64_t size) {
    if (draft_.size(id) == size) return id;
    if (Below(2) == 0) {
      return Bounded(draft_.Linear(Mild(id, 4), size), 8);
    }
    std::vector<Element> elements;
    const int64_t from = draft_.size(id);
    for (int64_t i = 0; i < size; ++i) elements.push_back({0, i % from});
    return Bounded(draft_.Arrange({id}, std::move(elements)), BoundOf(id));
  }
  // A second operand for a value: another value, a vector of constants, or one number.
  ValueId Other(ValueId a) {
    static constexpr std::array kNumbers = {0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 0.3};
    const int64_t draw = Below(10);
    if (draw == 0) return Bounded(draft_.Normal(draft_.size(a)), 4);
    if (draw == 1) return Bounded(draft_.Number(kNumbers[Below(kNumbers.size())], a), 3);
    return Fit(Pick(), draft_.size(a));
  }
  Axis DrawAxis(ValueId id) {
    const int64_t size = draft_.size(id);
    std::vector<Axis> axes;
    for (int64_t outer = 1; outer <= size; ++outer) {
      for (int64_t length = 2; size % outer == 0 && length <= size / outer; ++length) {
        if (size / outer % length == 0) axes.push_back({outer, length, size / outer / length});
      }
    }
    return axes.empty() ? Axis{size, 1, 1} : axes[static_cast<size_t>(Below(std::ssize(axes)))];
  }

  void DrawOne() {
    if (options_.layers > 0 && Below(6) == 0) return DrawProduct();
    static constexpr std::array kDraws = {
        &Maker::DrawUnary,  &Maker::DrawBinary, &Maker::DrawBinary,  &Maker::DrawSelect,
        &Maker::DrawAlong,  &Maker::DrawLinear, &Maker::DrawLinear,  &Maker::DrawLookup,
        &Maker::DrawConcat, &Maker::DrawPicked, &Maker::DrawPattern, &Maker::DrawPattern,
        &Maker::DrawNorm};
    (this->*kDraws[static_cast<size_t>(Below(kDraws.size()))])();
  }

  // An operand and a bound of the result that suit an operation of one operand.
  void DrawUnary() {
    const Op op = static_cast<Op>(Below(static_cast<int64_t>(Op::kFloor) + 1));
    const ValueId a = Pick();
    switch (op) {
      case Op::kReciprocal:
        return Keep(draft_.Do(op, {Positive(a)}), 4);
      case Op::kSqrt:
      case Op::kLog:
        return Keep(draft_.Do(op, {Positive(a)}), 3);
      case Op::kExp:
      case Op::kExpMinusOne:
        return Keep(draft_.Do(op, {Mild(a, 1.5)}), 5);
      case Op::kSquare:
        return Keep(draft_.Do(op, {Mild(a, 3)}), 9);
      case Op::kFloor:
        if (!options_.jumps) return;
        return Keep(draft_.Do(op, {Uneven(a)}), 13);
      default:
        return Keep(draft_.Do(op, {Mild(a, 8)}), 9);
    }
  }

  void DrawBinary() {
    const auto first = static_cast<int64_t>(Op::kAdd);
    const Op op = static_cast<Op>(first + Below(static_cast<int64_t>(Op::kEqual) - first + 1));
    const ValueId a = Pick();
    const ValueId b = Other(a);
    switch (op) {
      case Op::kMultiply:
        return Keep(draft_.Do(op, {Mild(a, 4), Mild(b, 4)}), 16);
      case Op::kDivide:
        return DrawQuotient(a, b);
      case Op::kPower:
        return Keep(draft_.Do(op, {Positive(Mild(a, 3)), Mild(b, 3)}), 64);
      case Op::kLess:
      case Op::kEqual:
        return DrawComparison(op, a, b);
      default:
        return Keep(draft_.Do(op, {Mild(a, 8), Mild(b, 8)}), 16);
    }
  }
  void DrawQuotient(ValueId a, ValueId b) {
    if (Below(3) == 0) return Keep(draft_.By(Op::kDivide, a, 4), BoundOf(a));
    Keep(draft_.Do(Op::kDivide, {Mild(a, 4), Positive(b)}), 16);
  }
  void DrawComparison(Op op, ValueId a, ValueId b) {
    if (!options_.jumps) return;
    ValueId left = Uneven(a), right = Mild(b, 8);
    if (op == Op::kEqual) {
      left = draft_.Do(Op::kFloor, {left});
      right = draft_.Do(Op::kFloor, {Uneven(b)});
    }
    Keep(draft_.Do(op, {left, right}), 1);
  }
  void DrawSelect() {
    if (!options_.jumps) return;
    const ValueId a = Pick();
    const ValueId which = draft_.Do(Op::kLess, {Uneven(Other(a)), Mild(a, 8)});
    const ValueId b = Other(a);
    Keep(draft_.Do(Op::kSelect, {which, a, b}), std::max(BoundOf(a), BoundOf(b)));
  }

  void DrawAlong() {
    static constexpr std::array kAlong = {Op::kSum,         Op::kMean,        Op::kLargest,
                                          Op::kStandardize, Op::kScaleToUnit, Op::kSoftmax};
    const Op op = kAlong[static_cast<size_t>(Below(kAlong.size()))];
    const ValueId a = Mild(Pick(), 8);
    const bool is_norm = op == Op::kStandardize || op == Op::kScaleToUnit;
    const Axis axis = DrawAxis(a);
    const double bound = op == Op::kSum ? 8.0 * static_cast<double>(axis.length) : 8;
    Keep(draft_.Along(op, a, axis, is_norm ? 0.01 : 0), bound);
  }

  void DrawLinear() {
    const ValueId a = Mild(Pick(), 4);
    const int64_t repeat = draft_.size(a) % 2 == 0 && Below(3) == 0 ? 2 : 1;
    const LinearLayer layer = draft_.Layer(1 + Below(options_.largest / 2), draft_.size(a) / repeat,
                                           Below(4) > 0, repeat);
    Keep(draft_.Linear(a, layer), 8);
  }
  // A product with a matrix of each layer, with a bias in it, behind it, or without one; or a
  // vector of each layer.
  void DrawProduct() {
    const ValueId a = Mild(Pick(), 4);
    if (Below(4) == 0)
      return Keep(draft_.Multiply(draft_.Stacked(options_.layers, draft_.size(a), 1), a), 16);
    const int64_t repeat = draft_.size(a) % 2 == 0 && Below(3) == 0 ? 2 : 1;
    const int64_t rows = 1 + Below(options_.largest / 2), cols = draft_.size(a) / repeat;
    const ValueId matrix = draft_.Stacked(options_.layers, rows * cols, cols);
    const ValueId bias = draft_.Stacked(options_.layers, rows, 1);
    const bool inside = Below(3) == 0;
    ValueId y =
        draft_.Product(a, matrix, inside ? bias : kNoValue,
                       {.rows = rows, .cols = cols, .repeat = repeat, .transposed = Below(2) == 0});
    if (!inside && repeat == 1) y = draft_.Add(y, bias);
    Keep(y, 8);
  }
  void DrawLookup() {
    const LinearLayer table = draft_.Layer(kRowsOfTables, 1 + Below(8), false);
    Keep(draft_.Lookup(Below(2) == 0 ? time_ : label_, table), 4);
  }

  void DrawConcat() {
    std::vector<ValueId> operands;
    std::vector<Element> elements;
    double bound = 0;
    for (int64_t pieces = 2 + Below(3); pieces > 0; --pieces) {
      const ValueId id = Mild(Pick(), 4);
      if (std::ssize(elements) + draft_.size(id) > options_.largest) continue;
      for (int64_t i = 0; i < draft_.size(id); ++i)
        elements.push_back({static_cast<int32_t>(operands.size()), i});
      operands.push_back(id);
      bound = std::max(bound, BoundOf(id));
    }
    if (!operands.empty()) Keep(draft_.Arrange(operands, std::move(elements)), bound);
  }
  // Any elements of two values.
  void DrawPicked() {
    const std::vector<ValueId> operands = {Pick(), Pick()};
    std::vector<Element> elements;
    for (int64_t i = 1 + Below(options_.largest); i > 0; --i) {
      const auto operand = static_cast<int32_t>(Below(2));
      elements.push_back({operand, Below(draft_.size(operands[static_cast<size_t>(operand)]))});
    }
    Keep(draft_.Arrange(operands, std::move(elements)),
         std::max(BoundOf(operands[0]), BoundOf(operands[1])));
  }

  // An activation as an exporter takes it apart.
  void DrawPattern() {
    const ValueId x = Mild(Pick(), 4);
    switch (Below(5)) {
      case 0:
        return Keep(draft_.Multiply(draft_.Do(Op::kSigmoid, {x}), x), 4);
      case 1: {
        const ValueId erf = draft_.Do(Op::kErf, {draft_.By(Op::kDivide, x, 1.41421354)});
        const ValueId gate = draft_.By(Op::kAdd, erf, 1);
        return Keep(draft_.By(Op::kMultiply, draft_.Multiply(x, gate), 0.5), 4);
      }
      case 2: {
        const ValueId sum = draft_.By(Op::kAdd, draft_.Do(Op::kExp, {x}), 1);
        return Keep(draft_.Do(Op::kLog, {sum}), 5);
      }
      case 3: {
        const ValueId sum = draft_.By(Op::kAdd, draft_.Do(Op::kExp, {x}), 1);
        const ValueId gate = draft_.Do(Op::kTanh, {draft_.Do(Op::kLog, {sum})});
        return Keep(draft_.Multiply(x, gate), 4);
      }
      default:
        return Keep(draft_.By(Op::kMaximum, x, 0), 4);
    }
  }
  // A layer norm or an RMS norm as an exporter takes it apart.
  void DrawNorm() {
    ValueId x = Mild(Pick(), 8);
    const Axis axis = DrawAxis(x);
    if (Below(2) == 0) {
      const ValueId mean = draft_.Broadcast(draft_.Along(Op::kMean, x, axis), axis);
      x = draft_.Subtract(x, mean);
    }
    const ValueId square = draft_.Along(Op::kMean, draft_.By(Op::kPower, x, 2), axis);
    const ValueId root = draft_.Do(Op::kSqrt, {draft_.By(Op::kAdd, square, 0.01)});
    Keep(draft_.Divide(x, draft_.Broadcast(root, axis)), 8);
  }

  // All values drawn, so that none is left out of the output.
  ValueId ConcatenateAll() {
    std::vector<ValueId> operands;
    std::vector<Element> elements;
    for (const ValueId id : pool_) {
      for (int64_t i = 0; i < draft_.size(id); ++i)
        elements.push_back({static_cast<int32_t>(operands.size()), i});
      operands.push_back(Mild(id, 5));
    }
    return draft_.Arrange(operands, std::move(elements));
  }

  RandomProgramOptions options_;
  Draft draft_;
  ValueId state_ = kNoValue, time_ = kNoValue, label_ = kNoValue;
  std::vector<ValueId> pool_;
  std::unordered_map<ValueId, double> bounds_;
};

std::vector<double> Normal(std::mt19937_64& random, const Program& program, ValueId id) {
  std::normal_distribution<double> normal;
  std::vector<double> numbers(id == kNoValue ? 0 : static_cast<size_t>(program.at(id).size));
  for (double& number : numbers) number = normal(random);
  return numbers;
}

}  // namespace

Program RandomProgram(uint64_t seed, const RandomProgramOptions& options) {
  return Maker(seed, options).Make();
}

RandomInputs::RandomInputs(const Program& program, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> row(0, kRowsOfTables - 1);
  state_ = Normal(random, program, program.state);
  noise_ = Normal(random, program, program.state);
  condition_ = Normal(random, program, program.condition);
  time_ = static_cast<double>(row(random));
  label_ = static_cast<double>(row(random));
  reverse_ = {.x0_z = 1.1, .x0_m = -0.7, .z_z = 0.6, .z_m = 0.1, .z_x0 = 0.3, .sigma = 0.2};
}

StepInputs RandomInputs::inputs() const {
  return {.time = time_,
          .condition = condition_,
          .label = label_,
          .reverse = &reverse_,
          .clip_range = 1.5,
          .noise = noise_};
}

}  // namespace deeppcr::program
