// SPDX-License-Identifier: Apache-2.0
// Matrix products and Einstein sums.

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
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

constexpr std::string_view kEllipsis = "...";

std::string WithoutEllipsis(std::string list) {
  const size_t at = list.find(kEllipsis);
  return at == std::string::npos ? list : list.erase(at, kEllipsis.size());
}

// Letters of their own in place of every ellipsis. They are counted from the last one, as axes that
// are broadcast are. False where an operand has too few axes, or the alphabet too few letters.
bool SpellOut(const std::string& text, std::span<const size_t> ranks, Equation& equation) {
  std::string free;
  for (char letter = 'A'; letter <= 'Z'; ++letter) {
    if (text.find(letter) == std::string::npos) free.push_back(letter);
  }
  size_t most = 0;
  const auto fill = [&free](std::string& list, size_t count) {
    list.replace(list.find(kEllipsis), kEllipsis.size(), free, free.size() - count, count);
  };
  for (size_t i = 0; i < equation.operands.size(); ++i) {
    std::string& list = equation.operands[i];
    if (list.find(kEllipsis) == std::string::npos) continue;
    const size_t named = list.size() - kEllipsis.size();
    if (ranks[i] < named || ranks[i] - named > free.size()) return false;
    most = std::max(most, ranks[i] - named);
    fill(list, ranks[i] - named);
  }
  if (equation.out.find(kEllipsis) != std::string::npos) fill(equation.out, most);
  return true;
}

// The result where the equation names none: the axes of an ellipsis, then letters that come once.
std::string ImpliedResult(const std::string& text, const std::vector<std::string>& operands) {
  std::vector<std::string> named;
  for (const std::string& list : operands) named.push_back(WithoutEllipsis(list));
  return StrCat(text.find(kEllipsis) == std::string::npos ? "" : kEllipsis, SingleLetters(named));
}

absl::StatusOr<Equation> ParseEquation(std::string text, std::span<const size_t> ranks) {
  const absl::Status refused = InvalidArgument(
      "attribute equation: expected one or two lists of letters, each once in its "
      "list, as \"bi,oi->bo\" or \"...i,oi->...o\", got ",
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
      arrow == std::string::npos ? ImpliedResult(text, equation.operands) : text.substr(arrow + 2);
  if (equation.operands.size() != ranks.size() || !SpellOut(text, ranks, equation)) return refused;
  std::vector<std::string> lists = equation.operands;
  lists.push_back(equation.out);
  for (std::string list : lists) {
    std::sort(list.begin(), list.end());
    const bool letters = std::all_of(list.begin(), list.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
    if (!letters || std::adjacent_find(list.begin(), list.end()) != list.end()) return refused;
  }
  return equation;
}

absl::StatusOr<Tensor> Einsum(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, call.String("equation", ""));
  std::vector<size_t> ranks;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.Has(i)) return InvalidArgument("input ", i, " is missing");
    ranks.push_back(call.in(i).shape.size());
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Equation equation, ParseEquation(text, ranks));
  std::string all;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (ranks[i] != equation.operands[i].size()) {
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
