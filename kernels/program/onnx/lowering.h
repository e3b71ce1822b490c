// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_ONNX_LOWERING_H_
#define DEEPPCR_KERNELS_PROGRAM_ONNX_LOWERING_H_

// Abstract interpretation of ONNX graphs: a tensor is known, or is a value of the program. Every
// operation here computes the one and writes instructions for the other, so that operators need not
// tell them apart.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/program/builder.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

using Shape = std::vector<int64_t>;

struct Tensor {
  Shape shape;
  OnnxType type = OnnxType::kFloat;
  std::optional<Numbers> constant;  // where it is known
  ValueId id = kNoValue;            // else

  bool is_constant() const { return constant.has_value(); }
};

// The product of the extents of a shape that a tensor has, hence within limits.
int64_t NumElements(std::span<const int64_t> shape);

// What both shapes are broadcast to. Errors: kInvalidArgument naming both.
absl::StatusOr<Shape> BroadcastShape(std::span<const int64_t> a, std::span<const int64_t> b);

// Strides of a shape in row-major order.
Shape StridesOf(std::span<const int64_t> shape);

// An axis of a tensor of this rank, counted from the end where it is negative.
absl::StatusOr<int64_t> NormalizedAxis(int64_t axis, int64_t rank);

// Not thread-safe.
class Lowering {
 public:
  // At most `max_elements` are rearranged or computed ahead, all together.
  Lowering(ProgramBuilder& builder, int64_t max_elements)
      : builder_(builder), elements_left_(max_elements) {}

  static Tensor Scalar(double value, OnnxType type = OnnxType::kFloat);
  static Tensor Vector(std::vector<double> elements, OnnxType type);

  // Result of the operands' shapes, broadcast. Without a type: the first operand's, or a float
  // where the operation makes floats of integers.
  absl::StatusOr<Tensor> Elementwise(Op op, std::initializer_list<Tensor> operands,
                                     std::optional<OnnxType> type = std::nullopt);
  absl::StatusOr<Tensor> Elementwise(Op op, const Tensor& a, double b) {
    return Elementwise(op, {a, Scalar(b, a.type)});
  }

  // Reductions and operations along an axis; the result has `shape`.
  absl::StatusOr<Tensor> AlongAxis(Op op, const Tensor& operand, const Axis& axis, Shape shape,
                                   double epsilon = 0);
  // The operand's elements as rows of layer.cols.
  absl::StatusOr<Tensor> Linear(const Tensor& operand, const LinearLayer& layer, Shape shape);
  // The same by a matrix that is a value: OnTimeAlone or OnParametersAlone.
  absl::StatusOr<Tensor> Product(const Tensor& operand, const Tensor& matrix,
                                 const LinearLayer& sizes, Shape shape);
  // A row of the table for the operand's one element.
  absl::StatusOr<Tensor> Lookup(const Tensor& index, const LinearLayer& table, Shape shape);
  // The same of a table that is a value: OnParametersAlone.
  absl::StatusOr<Tensor> Lookup(const Tensor& index, const Tensor& table, const LinearLayer& sizes,
                                Shape shape);

  // The same elements. Errors: kInvalidArgument where the shape has another number.
  absl::StatusOr<Tensor> Reshaped(const Tensor& operand, Shape shape);
  absl::StatusOr<Tensor> Broadcast(const Tensor& operand, Shape shape);
  absl::StatusOr<Tensor> Transposed(const Tensor& operand, std::span<const int64_t> order);
  // Element i of the result is the one at sum_k i_k strides_k + offset.
  absl::StatusOr<Tensor> Strided(const Tensor& operand, Shape shape,
                                 std::span<const int64_t> strides, int64_t offset);
  // Elements of the operands, of one type, in any order.
  absl::StatusOr<Tensor> Arranged(std::span<const Tensor> operands, Shape shape,
                                  std::vector<Element> elements);

  // Whether a tensor depends on the state.
  bool OnState(const Tensor& tensor) const {
    return !tensor.is_constant() && (builder_.at(tensor.id).depends & kOnState) != 0;
  }
  // Whether a tensor is made anew for each step, and for nothing else.
  bool OnTimeAlone(const Tensor& tensor) const {
    return !tensor.is_constant() && (builder_.at(tensor.id).depends & ~kOnParameters) == kOnTime;
  }
  // Whether a tensor is a constant but for parameters that stay values.
  bool OnParametersAlone(const Tensor& tensor) const {
    return !tensor.is_constant() && builder_.at(tensor.id).depends == kOnParameters;
  }
  // Takes from what may be rearranged or computed ahead. Errors: kResourceExhausted.
  absl::Status Spend(int64_t elements);
  // Number of elements of a shape, all of which are spent. Errors: kInvalidArgument,
  // kResourceExhausted.
  absl::StatusOr<int64_t> SpendShape(std::span<const int64_t> shape);

  // The value of the program that a tensor is.
  absl::StatusOr<ValueId> Value(const Tensor& tensor);
  ProgramBuilder& builder() { return builder_; }

 private:
  absl::StatusOr<Tensor> Finish(Instruction instruction, std::span<const Tensor> operands,
                                Shape shape, OnnxType type);
  absl::StatusOr<Tensor> Fold(const Instruction& instruction, std::span<const Tensor> operands,
                              Shape shape, OnnxType type);
  absl::StatusOr<ValueId> Write(Instruction instruction, std::span<const Tensor> operands);
  absl::StatusOr<Tensor> Filled(const Tensor& operand, Shape shape, int64_t size);
  absl::Status CheckValueSize(int64_t size) const;

  struct Written {
    Numbers numbers;  // keeps the key's address in use
    ValueId id;
  };

  ProgramBuilder& builder_;
  int64_t elements_left_;
  std::map<const void*, Written> constants_;              // by the address of their elements
  std::map<std::pair<double, int64_t>, Numbers> filled_;  // by their number and size
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_ONNX_LOWERING_H_
