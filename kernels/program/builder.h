// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_BUILDER_H_
#define DEEPPCR_KERNELS_PROGRAM_BUILDER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Limits of a program, so that hostile graphs end before anything large is allocated.
struct ProgramLimits {
  int64_t max_value_size = int64_t{1} << 20;  // elements of one value
  int64_t max_instructions = 100'000;
  // Elements of all constants that are no weights, and of all arrangements.
  int64_t max_constant_elements = int64_t{1} << 24;
  int64_t max_result_elements = int64_t{1} << 24;  // of all results together
  int64_t max_weight_elements = int64_t{1} << 28;  // of all matrices
  int64_t max_matrix_elements = int64_t{1} << 24;  // of one matrix of a stack
};

// For models that have limits of their own.
inline constexpr ProgramLimits kNoLimits = {int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40,
                                            int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40};

// Writes a program, one instruction after another. Checks shapes, folds what depends on nothing,
// in double, and returns a value that is there already where the same instruction comes again.
//
// Errors of every Add: kInvalidArgument where shapes do not fit, kResourceExhausted beyond the
// limits; messages name the operation and the sizes, not the graph's node: the caller does.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const ProgramLimits& limits = {});

  // Inputs. Each at most once.
  absl::StatusOr<ValueId> AddState(int64_t size);
  absl::StatusOr<ValueId> AddTime();
  absl::StatusOr<ValueId> AddCondition(int64_t size);
  absl::StatusOr<ValueId> AddLabel();
  absl::StatusOr<ValueId> AddConstant(std::vector<double> elements);
  // A constant of `size` elements for each step: rows [L, size], L the same for all.
  absl::StatusOr<ValueId> AddStacked(std::shared_ptr<const std::vector<float>> rows, int64_t size);

  // Weights that are not folded, and the values that depend on them: [size], or, for each step,
  // [L, size]. The slices have `size` elements together.
  absl::StatusOr<ValueId> AddParameter(std::shared_ptr<const std::vector<float>> numbers,
                                       int64_t size, bool per_step,
                                       std::vector<ParameterSlice> slices);

  absl::StatusOr<ValueId> AddElementwise(Op op, std::span<const ValueId> operands);
  absl::StatusOr<ValueId> AddAlongAxis(Op op, ValueId operand, const Axis& axis,
                                       double epsilon = 0);  // reductions too
  absl::StatusOr<ValueId> AddLinear(ValueId operand, const LinearLayer& layer);
  // A product with a matrix value; `bias` may be kNoValue. Both depend on the time and on
  // parameters alone.
  absl::StatusOr<ValueId> AddProduct(ValueId operand, ValueId matrix, ValueId bias,
                                     const LinearLayer& sizes);
  absl::StatusOr<ValueId> AddLookup(ValueId index, const LinearLayer& table);
  // The same for a table that is a value, of `sizes.rows` rows.
  absl::StatusOr<ValueId> AddLookup(ValueId index, ValueId table, const LinearLayer& sizes);
  absl::StatusOr<ValueId> AddArrange(std::span<const ValueId> operands,
                                     std::vector<Element> elements);
  // `count` elements of a value, from `first` on.
  absl::StatusOr<ValueId> AddPart(ValueId id, int64_t first, int64_t count);
  // A part of the reverse step; of all but kRecall and kSpread `state` is z.
  absl::StatusOr<ValueId> AddReverseStep(ValueId state, ValueId prediction,
                                         StepPart part = StepPart::kState);
  // An instruction of another program as it is, on these operands.
  absl::StatusOr<ValueId> AddLike(const Instruction& instruction,
                                  std::span<const ValueId> operands);

  // Names a value for messages and listings.
  void Name(ValueId id, std::string_view name);

  const Value& at(ValueId id) const { return program_.at(id); }
  const Program& program() const { return program_; }
  const ProgramLimits& limits() const { return limits_; }

  // The program, without instructions whose results nobody reads. `output` must depend on the
  // state's size: as long as the state. Ends the builder.
  absl::StatusOr<Program> Finish(ValueId output, ValueId prediction = kNoValue);
  // The same for layers outside a recurrence, whose output has any size.
  absl::StatusOr<Program> FinishLayers(ValueId output);

 private:
  absl::StatusOr<ValueId> AddInput(ValueId Program::*slot, int64_t size, uint8_t depends);
  absl::StatusOr<ValueId> Add(Instruction instruction, int64_t size);
  absl::Status CheckSteps(int64_t elements, int64_t size);

  ProgramLimits limits_;
  Program program_;
  int64_t constant_elements_ = 0, result_elements_ = 0, weight_elements_ = 0;
  int64_t num_steps_ = 0;                            // of what each step has for itself; 0: nothing
  std::unordered_multimap<uint64_t, size_t> known_;  // instructions by a hash of their work
};

// Takes out what neither the output nor the prediction needs, and numbers the rest anew.
Program WithoutUnread(Program program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_BUILDER_H_
