// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_OPERATORS_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_OPERATORS_H_

// ONNX's operators, one row each, in a table per group. Adding one is a row and its function.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/program/onnx/call.h"
#include "kernels/program/onnx/lowering.h"

namespace deeppcr::program {

using Tensors = std::vector<Tensor>;

// What an operator computes: the outputs that are computed, from the first on.
using LowerFunction = absl::StatusOr<Tensors> (*)(Call&);

struct OperatorRow {
  const char* name;
  // Opset version from which it is taken; up to kMaxOnnxOpset.
  int64_t since;
  size_t min_inputs, max_inputs;
  LowerFunction lower;
};

inline constexpr size_t kAnyNumber = static_cast<size_t>(-1);

// A row's function from one that computes one output.
template <absl::StatusOr<Tensor> (*lower)(Call&)>
absl::StatusOr<Tensors> One(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(Tensor output, lower(call));
  return Tensors{std::move(output)};
}

// The groups, one source file each.
std::span<const OperatorRow> ArithmeticOperators();
std::span<const OperatorRow> ActivationOperators();
std::span<const OperatorRow> ReductionOperators();
std::span<const OperatorRow> NormOperators();
std::span<const OperatorRow> ProductOperators();
std::span<const OperatorRow> ShapeOperators();
std::span<const OperatorRow> GatherOperators();
std::span<const OperatorRow> ConstantOperators();

// Computes or writes what a node says. The result's outputs are those that are computed.
// Errors: kInvalidArgument for an operator that is not taken, with what is.
absl::StatusOr<Tensors> LowerNode(Call& call);

// What operators of several groups need.

// a towards zero; nothing to do for integers.
absl::StatusOr<Tensor> Truncated(Lowering& lowering, const Tensor& a);
// Sorted, each once, counted from the front.
absl::StatusOr<std::vector<int64_t>> NormalizedAxes(std::vector<int64_t> axes, int64_t rank);
// A reduction over axes (sorted, from the front), which stay with extent 1.
absl::StatusOr<Tensor> Reduced(Lowering& lowering, Op op, const Tensor& operand,
                               std::span<const int64_t> axes);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_OPERATORS_H_
