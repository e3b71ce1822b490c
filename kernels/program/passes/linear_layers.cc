// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/linear_layers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/arrangements.h"
#include "kernels/program/passes/chain.h"

namespace deeppcr::program {
namespace {

using Numbers = std::shared_ptr<const std::vector<float>>;

std::vector<double> BiasOf(const LinearLayer& layer) {
  if (layer.bias == nullptr) return std::vector<double>(static_cast<size_t>(layer.rows));
  return {layer.bias->begin(), layer.bias->end()};
}

// Numbers as float32; null if one is too large.
Numbers Rounded(const std::vector<double>& numbers) {
  auto rounded = std::make_shared<std::vector<float>>(numbers.begin(), numbers.end());
  const bool fits =
      std::ranges::all_of(*rounded, [](float number) { return std::isfinite(number); });
  return fits ? rounded : nullptr;
}

// Columns of a layer whose operand's elements are of one class.
struct Part {
  std::vector<Element> elements;
  std::vector<int64_t> columns;
};

struct Split {
  std::vector<ValueId> operands;  // of the arrangement
  std::array<Part, kNumClasses> parts;
  LinearLayer layer;
  std::vector<double> constant;  // what constants add, [rows]; empty if there are none
};

// What the columns of constants add to the result, [rows].
std::vector<double> SumOfConstants(const ProgramIndex& index, const Split& split) {
  const Part& part = split.parts[kOnNothing];
  const LinearLayer& layer = split.layer;
  std::vector<double> sum(static_cast<size_t>(layer.rows));
  for (int64_t row = 0; row < layer.rows; ++row) {
    for (size_t k = 0; k < part.columns.size(); ++k) {
      const Element& element = part.elements[k];
      const ValueId operand = split.operands[static_cast<size_t>(element.operand)];
      sum[row] += double{(*layer.weight)[row * layer.cols + part.columns[k]]} *
                  index.at(operand).constant[static_cast<size_t>(element.index)];
    }
  }
  return sum;
}

Split SplitOf(const ProgramIndex& index, const Instruction& linear, const Instruction& arrange) {
  Split split = {arrange.operands, {}, linear.linear, {}};
  for (size_t i = 0; i < arrange.elements.size(); ++i) {
    const Element& element = arrange.elements[i];
    const ValueId operand = arrange.operands[static_cast<size_t>(element.operand)];
    Part& part = split.parts[static_cast<size_t>(ClassOf(index.at(operand)))];
    part.elements.push_back(element);
    part.columns.push_back(static_cast<int64_t>(i));
  }
  if (!split.parts[kOnNothing].columns.empty()) split.constant = SumOfConstants(index, split);
  return split;
}

LinearLayer ColumnsOf(const LinearLayer& layer, const std::vector<int64_t>& columns,
                      bool with_bias) {
  const auto cols = static_cast<int64_t>(columns.size());
  auto weight = std::make_shared<std::vector<float>>();
  weight->reserve(static_cast<size_t>(layer.rows * cols));
  for (int64_t row = 0; row < layer.rows; ++row) {
    for (const int64_t column : columns) {
      weight->push_back((*layer.weight)[row * layer.cols + column]);
    }
  }
  return {layer.rows, cols, 1, std::move(weight), with_bias ? layer.bias : nullptr};
}

// Classes of the elements that an arrangement reads: a bit each. It may have operands that it does
// not read.
uint32_t ClassesOf(const ProgramIndex& index, const Instruction& arrange) {
  uint32_t classes = 0;
  for (const Element& element : arrange.elements) {
    const ValueId operand = arrange.operands[static_cast<size_t>(element.operand)];
    classes |= 1U << ClassOf(index.at(operand));
  }
  return classes;
}

absl::StatusOr<ValueId> WriteSplit(ProgramWriter& writer, const Split& split) {
  const std::vector<ValueId> operands = writer.Now(split.operands);
  std::vector<Term> terms;
  for (int k = kOnTime; k < kNumClasses; ++k) {
    const Part& part = split.parts[static_cast<size_t>(k)];
    if (part.columns.empty()) continue;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId arranged, WriteArrange(writer, operands, part.elements));
    const LinearLayer layer = ColumnsOf(split.layer, part.columns, terms.empty());
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId linear, writer.builder().AddLinear(arranged, layer));
    terms.push_back({linear});
  }
  if (!split.constant.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId constant, writer.builder().AddConstant(split.constant));
    terms.push_back({constant});
  }
  return WriteChain(writer, Op::kAdd, terms);
}

// The layer that two in a row are; without weights if a number of it is too large.
LinearLayer Merged(const LinearLayer& outer, const LinearLayer& inner) {
  const int64_t rows = outer.rows, cols = inner.cols;
  std::vector<double> weight(static_cast<size_t>(rows * cols));
  std::vector<double> bias = BiasOf(outer);
  const std::vector<double> inner_bias = BiasOf(inner);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < outer.cols; ++k) {
      const double factor = (*outer.weight)[i * outer.cols + k];
      for (int64_t j = 0; j < cols; ++j) {
        weight[i * cols + j] += factor * (*inner.weight)[k * cols + j];
      }
      bias[i] += factor * inner_bias[k];
    }
  }
  LinearLayer merged = {rows, cols, outer.repeat, Rounded(weight), nullptr};
  if (outer.bias == nullptr && inner.bias == nullptr) return merged;
  merged.bias = Rounded(bias);
  if (merged.bias == nullptr) merged.weight = nullptr;
  return merged;
}

}  // namespace

std::optional<Rewrite> SplitByClass(Search& search, const Instruction& instruction) {
  const ProgramIndex& index = search.index();
  if (instruction.op != Op::kLinear || instruction.linear.repeat != 1) return std::nullopt;
  const Instruction* arrange = index.Producer(instruction.operands[0]);
  if (arrange == nullptr || arrange->op != Op::kArrange) return std::nullopt;
  if (std::has_single_bit(ClassesOf(index, *arrange))) return std::nullopt;
  if (!search.Spend(instruction.linear.rows * instruction.linear.cols)) return std::nullopt;
  Rewrite rewrite;
  rewrite.reads = arrange->operands;
  rewrite.write = [split = SplitOf(index, instruction, *arrange)](ProgramWriter& writer) {
    return WriteSplit(writer, split);
  };
  return rewrite;
}

std::optional<Rewrite> MergeLayers(Search& search, const Instruction& instruction) {
  if (instruction.op != Op::kLinear) return std::nullopt;
  const Instruction* inner = search.index().Inner(instruction.operands[0], Op::kLinear);
  const LinearLayer& outer = instruction.linear;
  if (inner == nullptr || inner->linear.rows != outer.cols) return std::nullopt;
  if (ClassOf(search.index().at(instruction.result)) == kOnTime) return std::nullopt;
  const int64_t merged = outer.rows * inner->linear.cols;
  if (merged >= outer.rows * outer.cols + inner->linear.rows * inner->linear.cols) {
    return std::nullopt;
  }
  if (!search.Spend(merged) || !search.Spend(merged * outer.cols)) return std::nullopt;
  const LinearLayer layer = Merged(outer, inner->linear);
  if (layer.weight == nullptr) return std::nullopt;
  Rewrite rewrite;
  rewrite.reads = inner->operands;
  rewrite.write = [layer, operand = inner->operands[0]](ProgramWriter& writer) {
    return writer.builder().AddLinear(writer.Now(operand), layer);
  };
  return rewrite;
}

}  // namespace deeppcr::program
