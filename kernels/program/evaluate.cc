// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/evaluate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/program/elementwise.h"
#include "kernels/program/row_products.h"

namespace deeppcr::program {
namespace {

using Vector = std::vector<double>;
using View = std::span<const double>;

// Index of element a of a line of the view [outer, axis, inner]; of its reduction.
int64_t At(const Axis& axis, int64_t outer, int64_t a, int64_t inner) {
  return (outer * axis.length + a) * axis.inner + inner;
}

// Calls f(line, at), at(a) the index of its element a, for every line along the axis.
template <class F>
void ForLines(const Axis& axis, const F& f) {
  for (int64_t o = 0; o < axis.outer; ++o) {
    for (int64_t i = 0; i < axis.inner; ++i)
      f(o * axis.inner + i, [&, o, i](int64_t a) { return At(axis, o, a, i); });
  }
}

// 1 / sqrt(mean of squares + epsilon) of a line less its mean (standardize) or of the line itself.
struct LineScale {
  double mean, inverse;
};
template <class At>
LineScale ScaleOf(const Instruction& instruction, View x, const At& at) {
  const auto count = static_cast<double>(instruction.axis.length);
  LineScale scale = {0, 0};
  for (int64_t a = 0; instruction.op == Op::kStandardize && a < instruction.axis.length; ++a)
    scale.mean += x[at(a)] / count;
  double square = 0;
  for (int64_t a = 0; a < instruction.axis.length; ++a) {
    const double centred = x[at(a)] - scale.mean;
    square += centred * centred / count;
  }
  scale.inverse = 1 / std::sqrt(square + instruction.epsilon);
  return scale;
}

Vector Along(const Instruction& instruction, View x, int64_t size) {
  const Axis& axis = instruction.axis;
  Vector y(static_cast<size_t>(size));
  ForLines(axis, [&](int64_t line, const auto& at) {
    double sum = 0, largest = x[at(0)];
    for (int64_t a = 0; a < axis.length; ++a) {
      sum += x[at(a)];
      if (std::isnan(x[at(a)]) || x[at(a)] > largest) largest = x[at(a)];
    }
    switch (instruction.op) {
      case Op::kSum:
        y[line] = sum;
        return;
      case Op::kMean:
        y[line] = sum / static_cast<double>(axis.length);
        return;
      case Op::kLargest:
        y[line] = largest;
        return;
      case Op::kSoftmax: {
        double total = 0;
        for (int64_t a = 0; a < axis.length; ++a) total += std::exp(x[at(a)] - largest);
        for (int64_t a = 0; a < axis.length; ++a) y[at(a)] = std::exp(x[at(a)] - largest) / total;
        return;
      }
      default: {
        const LineScale scale = ScaleOf(instruction, x, at);
        for (int64_t a = 0; a < axis.length; ++a)
          y[at(a)] = (x[at(a)] - scale.mean) * scale.inverse;
      }
    }
  });
  return y;
}

// Tangent of Along at x with the result y.
Vector AlongTangent(const Instruction& instruction, View x, View y, View t) {
  const Axis& axis = instruction.axis;
  const auto count = static_cast<double>(axis.length);
  Vector out(y.size());
  ForLines(axis, [&](int64_t line, const auto& at) {
    double sum = 0, along = 0, largest = 0;
    bool found = false;
    const bool reduces = RowOf(instruction.op).kind == OpKind::kReduction;
    for (int64_t a = 0; a < axis.length; ++a) {
      sum += t[at(a)];
      if (!reduces) along += y[at(a)] * t[at(a)];
      if (instruction.op == Op::kLargest && !found && x[at(a)] == y[line])
        found = true, largest = t[at(a)];
    }
    switch (instruction.op) {
      case Op::kSum:
        out[line] = sum;
        return;
      case Op::kMean:
        out[line] = sum / count;
        return;
      case Op::kLargest:
        out[line] = largest;
        return;
      case Op::kSoftmax:
        for (int64_t a = 0; a < axis.length; ++a) out[at(a)] = y[at(a)] * (t[at(a)] - along);
        return;
      default: {
        const LineScale scale = ScaleOf(instruction, x, at);
        const double mean = instruction.op == Op::kStandardize ? sum / count : 0;
        for (int64_t a = 0; a < axis.length; ++a)
          out[at(a)] = (t[at(a)] - mean - y[at(a)] * along / count) * scale.inverse;
      }
    }
  });
  return out;
}

// Cotangent of the operand of Along. The maps of softmax and of the norms are symmetric.
Vector AlongCotangent(const Instruction& instruction, View x, View y, View g) {
  const Axis& axis = instruction.axis;
  if (RowOf(instruction.op).kind == OpKind::kAlongAxis) return AlongTangent(instruction, x, y, g);
  Vector out(x.size());
  ForLines(axis, [&](int64_t line, const auto& at) {
    bool found = false;
    for (int64_t a = 0; a < axis.length; ++a) {
      double slope = instruction.op == Op::kMean ? 1 / static_cast<double>(axis.length) : 1;
      if (instruction.op == Op::kLargest)
        slope = !found && x[at(a)] == y[line] ? (found = true, 1.0) : 0.0;
      out[at(a)] = MovedBy(slope, g[line]);
    }
  });
  return out;
}

// w x, in several sums at a time: one alone waits for every addition.
double Dot(const float* w, const double* x, int64_t n) {
  constexpr int kSums = 8;
  double sums[kSums] = {};
  int64_t k = 0;
  for (; k + kSums <= n; k += kSums)
    for (int i = 0; i < kSums; ++i) sums[i] += double{w[k + i]} * x[k + i];
  for (; k < n; ++k) sums[0] += double{w[k]} * x[k];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

Vector Linear(const LinearLayer& layer, View x, bool with_bias,
              const CancelToken* token = nullptr) {
  Vector y(static_cast<size_t>(layer.rows * layer.repeat));
  Pause pause(token);
  for (int64_t r = 0; r < layer.repeat; ++r) {
    for (int64_t i = 0; i < layer.rows; ++i) {
      if (pause.Stop(layer.cols)) return y;
      const double bias = with_bias && layer.bias != nullptr ? (*layer.bias)[i] : 0.0;
      y[r * layer.rows + i] =
          bias + Dot(layer.weight->data() + i * layer.cols, x.data() + r * layer.cols, layer.cols);
    }
  }
  return y;
}

Vector LinearCotangent(const LinearLayer& layer, View g) {
  Vector x(static_cast<size_t>(layer.cols * layer.repeat));
  for (int64_t r = 0; r < layer.repeat; ++r) {
    for (int64_t i = 0; i < layer.rows; ++i) {
      for (int64_t k = 0; k < layer.cols; ++k)
        x[r * layer.cols + k] +=
            double{(*layer.weight)[i * layer.cols + k]} * g[r * layer.rows + i];
    }
  }
  return x;
}

// Index of element (row, col) of the matrix of a product.
int64_t MatrixAt(const LinearLayer& sizes, int64_t row, int64_t col) {
  return sizes.transposed ? col * sizes.rows + row : row * sizes.cols + col;
}

// A x (+ b) for each of the rows x.
Vector Product(const LinearLayer& sizes, View x, View matrix, View bias,
               const CancelToken* token = nullptr) {
  Vector y(static_cast<size_t>(sizes.rows * sizes.repeat));
  Pause pause(token);
  for (int64_t r = 0; r < sizes.repeat; ++r) {
    for (int64_t i = 0; i < sizes.rows; ++i) {
      if (pause.Stop(sizes.cols)) return y;
      double sum = bias.empty() ? 0.0 : bias[i];
      for (int64_t k = 0; k < sizes.cols; ++k)
        sum += matrix[MatrixAt(sizes, i, k)] * x[r * sizes.cols + k];
      y[r * sizes.rows + i] = sum;
    }
  }
  return y;
}

// Adds the cotangents of x and A, of the result's g.
void AddProductCotangents(const LinearLayer& sizes, View x, View matrix, View g,
                          std::span<double> of_x, std::span<double> of_matrix) {
  for (int64_t r = 0; r < sizes.repeat; ++r) {
    for (int64_t i = 0; i < sizes.rows; ++i) {
      const double from = g[r * sizes.rows + i];
      for (int64_t k = 0; k < sizes.cols; ++k) {
        const int64_t at = MatrixAt(sizes, i, k);
        if (!of_x.empty()) of_x[r * sizes.cols + k] += matrix[at] * from;
        if (!of_matrix.empty()) of_matrix[at] += from * x[r * sizes.cols + k];
      }
    }
  }
}

// Slopes of z' by z and by m of one element of a reverse step: 1 on the boundary of the clip.
struct ReverseSlopes {
  double z, m;
};
ReverseSlopes SlopesOfReverse(const ReverseStep& step, const StepInputs& inputs, double z,
                              double m) {
  const double x0 = step.x0_z * z + step.x0_m * m;
  const double inside = std::fabs(x0) <= inputs.clip_range ? 1 : 0;
  return {step.z_z + inside * step.z_x0 * step.x0_z, step.z_m + inside * step.z_x0 * step.x0_m};
}

double ReverseElement(const ReverseStep& step, const StepInputs& inputs, double z, double m,
                      double noise) {
  double x0 = step.x0_z * z + step.x0_m * m;
  if (x0 > inputs.clip_range) x0 = inputs.clip_range;  // keeps a NaN, which std::clamp may not
  if (x0 < -inputs.clip_range) x0 = -inputs.clip_range;
  return step.z_z * z + step.z_m * m + step.z_x0 * x0 + step.sigma * noise;
}

// The table is the second operand, where there is one.
Vector LookedUp(const LinearLayer& table, std::span<const View> operands) {
  Vector row(static_cast<size_t>(table.cols), std::nan(""));
  // An index that is not there makes NaN, as no caller lets it in.
  const int64_t at = FoundRow(operands[0][0], table.rows);
  if (at < 0) return row;
  for (int64_t k = 0; k < table.cols; ++k) {
    const int64_t element = at * table.cols + k;
    row[k] = operands.size() > 1 ? operands[1][element] : double{(*table.weight)[element]};
  }
  return row;
}

Vector Elementwise(Op op, int64_t size, std::span<const View> operands) {
  Vector y(static_cast<size_t>(size));
  double a[3] = {};
  for (int64_t i = 0; i < size; ++i) {
    for (size_t k = 0; k < operands.size(); ++k) a[k] = operands[k][i];
    y[i] = ElementwiseRowOf(op).value(a);
  }
  return y;
}

}  // namespace

int64_t FoundRow(double index, int64_t rows) {
  const double wanted = index < 0 ? index + static_cast<double>(rows) : index;
  return wanted >= 0 && wanted < static_cast<double>(rows) ? static_cast<int64_t>(wanted) : -1;
}

std::vector<double> EvaluateInstruction(const Instruction& instruction, int64_t size,
                                        std::span<const std::span<const double>> operands,
                                        const StepInputs& inputs, const CancelToken* token) {
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise:
      return Elementwise(instruction.op, size, operands);
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return Along(instruction, operands[0], size);
    case OpKind::kLinear:
      return Linear(instruction.linear, operands[0], true, token);
    case OpKind::kProduct:
      return Product(instruction.linear, operands[0], operands[1],
                     operands.size() > 2 ? operands[2] : View(), token);
    case OpKind::kLookup:
      return LookedUp(instruction.linear, operands);
    case OpKind::kArrange: {
      Vector y;
      y.reserve(instruction.elements.size());
      for (const Element& element : instruction.elements)
        y.push_back(operands[element.operand][element.index]);
      return y;
    }
    case OpKind::kReverseStep: {
      Vector y(static_cast<size_t>(size));
      const ReverseStep step = PartOf(*inputs.reverse, instruction.part);
      for (int64_t i = 0; i < size; ++i)
        y[i] = ReverseElement(step, inputs, operands[0][i], operands[1][i],
                              inputs.noise.empty() ? 0 : inputs.noise[i]);
      return y;
    }
  }
  return {};
}

Evaluation::Evaluation(const Program& program, Rounding rounding)
    : program_(program), rounding_(rounding) {
  values_.resize(program.values.size());
  for (size_t i = 0; i < values_.size(); ++i) {
    values_[i] = program.values[i].constant;
    Round(values_[i]);
  }
  for (const Parameter& parameter : program.parameters) SetParameter(parameter, 0);
}

void Evaluation::SetParameter(const Parameter& parameter, int64_t step) {
  const auto size = static_cast<size_t>(program_.at(parameter.value).size);
  const float* const from =
      parameter.numbers->data() + (parameter.per_step ? static_cast<size_t>(step) * size : 0);
  values_[static_cast<size_t>(parameter.value)].assign(from, from + size);
}

void Evaluation::Round(std::vector<double>& value) const {
  if (rounding_ == Rounding::kDouble) return;
  for (double& element : value) element = static_cast<float>(element);
}

void Evaluation::Run(const StepInputs& inputs, std::span<const double> state, uint8_t depends,
                     const CancelToken* token) {
  inputs_ = inputs;
  const auto set = [&](ValueId id, uint8_t kind, View from) {
    if (id == kNoValue || (kind & ~depends) != 0) return;
    values_[static_cast<size_t>(id)].assign(from.begin(), from.end());
    Round(values_[static_cast<size_t>(id)]);
  };
  set(program_.state, kOnState, state);
  set(program_.time, kOnTime, {&inputs.time, 1});
  set(program_.condition, kOnCondition, inputs.condition);
  set(program_.label, kOnCondition, {&inputs.label, 1});
  for (const StackedConstant& stacked : program_.stacked) {
    if ((kOnTime & ~depends) != 0) break;
    const auto size = static_cast<size_t>(program_.at(stacked.value).size);
    const auto* const row = stacked.rows->data() + static_cast<size_t>(inputs.step) * size;
    values_[static_cast<size_t>(stacked.value)].assign(row, row + size);
  }
  for (const Parameter& parameter : program_.parameters)
    if (parameter.per_step && (kOnTime & ~depends) == 0) SetParameter(parameter, inputs.step);
  for (const Instruction& instruction : program_.instructions) {
    const Value& value = program_.at(instruction.result);
    if ((value.depends & ~depends) != 0) continue;
    if (Fired(token)) return;
    std::vector<View> operands;
    for (const ValueId id : instruction.operands) operands.push_back(at(id));
    Vector& result = values_[static_cast<size_t>(instruction.result)];
    result = EvaluateInstruction(instruction, value.size, operands, inputs, token);
    Round(result);
  }
}

namespace {

// Tangent of an instruction's result along one direction; an empty tangent is zero.
Vector TangentOf(const Instruction& instruction, View result, std::span<const View> operands,
                 std::span<const View> tangents, const StepInputs& inputs) {
  Vector t(result.size());
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise: {
      double a[3] = {}, s[3] = {};
      for (size_t i = 0; i < t.size(); ++i) {
        for (size_t k = 0; k < operands.size(); ++k) a[k] = operands[k][i];
        ElementwiseRowOf(instruction.op).slopes(a, s);
        for (size_t k = 0; k < operands.size(); ++k) {
          if (!tangents[k].empty()) t[i] += MovedBy(s[k], tangents[k][i]);
        }
      }
      return t;
    }
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return AlongTangent(instruction, operands[0], result, tangents[0]);
    case OpKind::kLinear:
      return Linear(instruction.linear, tangents[0], false);
    case OpKind::kProduct:
      return Product(instruction.linear, tangents[0], operands[1], {});
    case OpKind::kLookup:
      return t;
    case OpKind::kArrange:
      for (size_t i = 0; i < t.size(); ++i) {
        const Element& element = instruction.elements[i];
        if (!tangents[element.operand].empty()) t[i] = tangents[element.operand][element.index];
      }
      return t;
    case OpKind::kReverseStep: {
      const ReverseStep step = PartOf(*inputs.reverse, instruction.part);
      for (size_t i = 0; i < t.size(); ++i) {
        const ReverseSlopes slopes = SlopesOfReverse(step, inputs, operands[0][i], operands[1][i]);
        if (!tangents[0].empty()) t[i] += MovedBy(slopes.z, tangents[0][i]);
        if (!tangents[1].empty()) t[i] += MovedBy(slopes.m, tangents[1][i]);
      }
      return t;
    }
  }
  return t;
}

}  // namespace

std::vector<double> Evaluation::Tangents(std::span<const double> directions,
                                         int64_t columns) const {
  const int64_t dim = program_.at(program_.state).size;
  const int64_t size = program_.at(program_.output).size;
  Vector result(static_cast<size_t>(size * columns));
  for (int64_t j = 0; j < columns; ++j) {
    std::vector<Vector> tangents(values_.size());
    Vector& of_state = tangents[static_cast<size_t>(program_.state)];
    for (int64_t i = 0; i < dim; ++i) of_state.push_back(directions[i * columns + j]);
    for (const Instruction& instruction : program_.instructions) {
      if ((program_.at(instruction.result).depends & kOnState) == 0) continue;
      std::vector<View> operands, of_operands;
      for (const ValueId id : instruction.operands) {
        operands.push_back(at(id));
        of_operands.emplace_back(tangents[static_cast<size_t>(id)]);
      }
      tangents[static_cast<size_t>(instruction.result)] =
          TangentOf(instruction, at(instruction.result), operands, of_operands, inputs_);
    }
    const Vector& of_output = tangents[static_cast<size_t>(program_.output)];
    for (int64_t i = 0; i < size; ++i) result[i * columns + j] = of_output[i];
  }
  return result;
}

void AddOperandCotangents(const Instruction& instruction, std::span<const double> result,
                          std::span<const std::span<const double>> operands,
                          std::span<const double> cotangent, const StepInputs& inputs,
                          std::span<const std::span<double>> to) {
  const View g = cotangent;
  const auto add = [](std::span<double> sum, const auto& x) {
    if (sum.empty()) return;
    const Vector added = x();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
  };
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise: {
      double a[3] = {}, s[3] = {};
      for (size_t i = 0; i < g.size(); ++i) {
        for (size_t k = 0; k < operands.size(); ++k) a[k] = operands[k][i];
        ElementwiseRowOf(instruction.op).slopes(a, s);
        for (size_t k = 0; k < operands.size(); ++k)
          if (!to[k].empty()) to[k][i] += MovedBy(s[k], g[i]);
      }
      return;
    }
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return add(to[0], [&] { return AlongCotangent(instruction, operands[0], result, g); });
    case OpKind::kProduct:
      AddProductCotangents(instruction.linear, operands[0], operands[1], g, to[0], to[1]);
      if (to.size() > 2 && !to[2].empty()) {
        for (size_t i = 0; i < g.size(); ++i) to[2][i % to[2].size()] += g[i];
      }
      return;
    case OpKind::kLinear:
      return add(to[0], [&] { return LinearCotangent(instruction.linear, g); });
    case OpKind::kLookup: {
      if (to.size() < 2 || to[1].empty()) return;
      const int64_t row = FoundRow(operands[0][0], instruction.linear.rows);
      for (size_t k = 0; row >= 0 && k < g.size(); ++k)
        to[1][static_cast<size_t>(row) * g.size() + k] += g[k];
      return;
    }
    case OpKind::kArrange:
      for (size_t i = 0; i < g.size(); ++i) {
        const Element& element = instruction.elements[i];
        if (!to[element.operand].empty()) to[element.operand][element.index] += g[i];
      }
      return;
    case OpKind::kReverseStep: {
      const ReverseStep step = PartOf(*inputs.reverse, instruction.part);
      for (size_t i = 0; i < g.size(); ++i) {
        const ReverseSlopes slopes = SlopesOfReverse(step, inputs, operands[0][i], operands[1][i]);
        if (!to[0].empty()) to[0][i] += MovedBy(slopes.z, g[i]);
        if (!to[1].empty()) to[1][i] += MovedBy(slopes.m, g[i]);
      }
      return;
    }
  }
}

std::vector<double> Evaluation::Cotangent(std::span<const double> cotangent, ValueId input) const {
  std::vector<Vector> cotangents(values_.size());
  for (size_t i = 0; i < values_.size(); ++i)
    cotangents[i].resize(static_cast<size_t>(program_.values[i].size));
  Vector& of_output = cotangents[static_cast<size_t>(program_.output)];
  for (size_t i = 0; i < of_output.size(); ++i) of_output[i] += cotangent[i];
  for (auto it = program_.instructions.rbegin(); it != program_.instructions.rend(); ++it) {
    if ((program_.at(it->result).depends & program_.at(input).depends) == 0) continue;
    std::vector<View> operands;
    std::vector<std::span<double>> to;
    for (const ValueId id : it->operands) {
      operands.push_back(at(id));
      to.emplace_back(cotangents[static_cast<size_t>(id)]);
    }
    const Vector g = cotangents[static_cast<size_t>(it->result)];
    AddOperandCotangents(*it, at(it->result), operands, g, inputs_, to);
  }
  return cotangents[static_cast<size_t>(input)];
}

}  // namespace deeppcr::program
