// SPDX-License-Identifier: Apache-2.0
// Matrix products and Einstein sums.

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/contract.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

// Batch axes of a matrix of this rank, from the last one back: d, c, b, a ..
std::string BatchAxes(size_t rank) {
  std::string axes;
  for (size_t i = 2; i < rank; ++i) axes.insert(axes.begin(), static_cast<char>('a' + i - 2));
  return axes;
}

absl::StatusOr<Tensor> MatMul(Call& call) {
  const size_t rank_a = call.in(0).shape.size(), rank_b = call.in(1).shape.size();
  if (rank_a == 0 || rank_b == 0) return InvalidArgument("a product with a scalar");
  const std::string batch_a = BatchAxes(rank_a), batch_b = BatchAxes(rank_b);
  const Labelled a{call.in(0), rank_a == 1 ? "k" : batch_a + "mk"};
  const Labelled b{call.in(1), rank_b == 1 ? "k" : batch_b + "kn"};
  const int64_t cols = a.tensor.shape.back();
  const int64_t rows = b.tensor.shape[rank_b == 1 ? 0 : rank_b - 2];
  if (cols != rows) {
    return InvalidArgument("a product of shapes ", ShapeString(a.tensor.shape), " and ",
                           ShapeString(b.tensor.shape));
  }
  std::string out = batch_a.size() > batch_b.size() ? batch_a : batch_b;
  if (rank_a > 1) out += 'm';
  if (rank_b > 1) out += 'n';
  return Contract(call.lowering, a, b, out);
}

// The bias of a layer of `rows` rows, or null where C is none.
std::shared_ptr<const std::vector<float>> BiasOf(const Tensor& c, int64_t rows) {
  const int64_t size = NumElements(c.shape);
  if (!c.is_constant() || size != rows || (!c.shape.empty() && c.shape.back() != rows)) {
    return nullptr;
  }
  auto bias = std::make_shared<std::vector<float>>(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    const double element = (*c.constant)[i];
    const auto rounded = static_cast<float>(element);
    if (double{rounded} != element || !std::isfinite(rounded)) return nullptr;
    (*bias)[static_cast<size_t>(i)] = rounded;
  }
  return bias;
}

absl::StatusOr<Tensor> Gemm(Call& call) {
  Lowering& lowering = call.lowering;
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1));
  DEEPPCR_ASSIGN_OR_RETURN(const double beta, call.Float("beta", 1));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t turn_a, call.Int("transA", 0));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t turn_b, call.Int("transB", 0));
  const Labelled a{call.in(0), turn_a != 0 ? "km" : "mk"};
  const Labelled b{call.in(1), turn_b != 0 ? "nk" : "kn"};
  const Shape& shape_a = a.tensor.shape;
  const Shape& shape_b = b.tensor.shape;
  if (shape_a.size() != 2 || shape_b.size() != 2 ||
      shape_a[a.axes.find('k')] != shape_b[b.axes.find('k')]) {
    return InvalidArgument("a product of shapes ", ShapeString(shape_a), " and ",
                           ShapeString(shape_b));
  }
  const int64_t rows = shape_b[b.axes.find('n')];
  // The layer's rows are b's only where a is what is computed.
  std::shared_ptr<const std::vector<float>> bias;
  if (call.Has(2) && alpha == 1 && beta == 1 && b.tensor.is_constant() && !a.tensor.is_constant()) {
    bias = BiasOf(call.in(2), rows);
  }
  DEEPPCR_ASSIGN_OR_RETURN(Tensor y, Contract(lowering, a, b, "mn", bias));
  if (alpha != 1) {
    DEEPPCR_ASSIGN_OR_RETURN(y, lowering.Elementwise(Op::kMultiply, y, alpha));
  }
  if (!call.Has(2) || bias != nullptr || beta == 0) return y;
  Tensor c = call.in(2);
  if (beta != 1) {
    DEEPPCR_ASSIGN_OR_RETURN(c, lowering.Elementwise(Op::kMultiply, c, beta));
  }
  DEEPPCR_ASSIGN_OR_RETURN(c, lowering.Broadcast(c, y.shape));
  return lowering.Elementwise(Op::kAdd, {y, c});
}

// An equation's operands and result.
struct Equation {
  std::vector<std::string> operands;
  std::string out;
};

// Letters that come once, in their order, which are the result's where the equation names none.
std::string SingleLetters(const std::vector<std::string>& operands) {
  std::map<char, int> counts;
  for (const std::string& axes : operands) {
    for (const char letter : axes) ++counts[letter];
  }
  std::string single;
  for (const auto& [letter, count] : counts) {
    if (count == 1) single.push_back(letter);
  }
  return single;
}

absl::StatusOr<Equation> ParseEquation(std::string text, size_t num_operands) {
  const absl::Status refused = InvalidArgument(
      "attribute equation: expected one or two lists of letters, each once in its "
      "list, as \"bi,oi->bo\", got ",
      Quoted(text));
  std::erase(text, ' ');
  const size_t arrow = text.find("->");
  Equation equation;
  equation.operands.emplace_back();
  for (const char letter : text.substr(0, arrow)) {
    if (letter == ',') {
      equation.operands.emplace_back();
    } else {
      equation.operands.back().push_back(letter);
    }
  }
  equation.out =
      arrow == std::string::npos ? SingleLetters(equation.operands) : text.substr(arrow + 2);
  std::vector<std::string> lists = equation.operands;
  lists.push_back(equation.out);
  for (std::string list : lists) {
    std::sort(list.begin(), list.end());
    const bool letters = std::all_of(list.begin(), list.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
    if (!letters || std::adjacent_find(list.begin(), list.end()) != list.end()) return refused;
  }
  if (equation.operands.size() != num_operands) return refused;
  return equation;
}

absl::StatusOr<Tensor> Einsum(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, call.String("equation", ""));
  DEEPPCR_ASSIGN_OR_RETURN(const Equation equation, ParseEquation(text, call.inputs.size()));
  std::string all;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.Has(i) || call.in(i).shape.size() != equation.operands[i].size()) {
      return InvalidArgument("attribute equation: ", Quoted(text), " does not fit input ", i);
    }
    all += equation.operands[i];
  }
  for (const char letter : equation.out) {
    if (all.find(letter) == std::string::npos) {
      return InvalidArgument("attribute equation: ", Quoted(text),
                             " has a result's letter that no operand has");
    }
  }
  const Labelled a{call.in(0), equation.operands[0]};
  const Labelled b = call.inputs.size() == 2 ? Labelled{call.in(1), equation.operands[1]}
                                             : Labelled{Lowering::Scalar(1, a.tensor.type), ""};
  return Contract(call.lowering, a, b, equation.out);
}

constexpr OperatorRow kRows[] = {
    {"Einsum", 12, 1, 2, One<Einsum>},
    {"Gemm", 7, 2, 3, One<Gemm>},
    {"MatMul", 7, 2, 2, One<MatMul>},
};

}  // namespace

std::span<const OperatorRow> ProductOperators() { return kRows; }

}  // namespace deeppcr::program
