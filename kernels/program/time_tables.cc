// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/time_tables.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/dependence.h"
#include "kernels/program/evaluate.h"

namespace deeppcr::program {
namespace {

bool IsFinite(std::span<const double> value) {
  return std::ranges::all_of(value, [](double x) { return std::isfinite(static_cast<float>(x)); });
}

class TableMaker {
 public:
  TableMaker(const Program& program, const Placement& placement, bool layers, NoteProblem note)
      : program_(program),
        placement_(placement),
        layers_(layers),
        note_(note),
        evaluation_(program) {}

  absl::Status MakeStep(int64_t step, double time, const CancelToken* token, float* row) {
    evaluation_.Run({.time = time, .step = step}, {}, kOnTime, token);
    if (Fired(token)) return absl::CancelledError("stopped while tables were made");
    for (size_t i = 0; i < placement_.in_rows.size(); ++i) {
      const int64_t at = placement_.in_rows[i];
      if (at < 0 || program_.values[i].depends != kOnTime) continue;
      const auto value = evaluation_.at(static_cast<ValueId>(i));
      for (size_t k = 0; k < value.size(); ++k)
        row[at + static_cast<int64_t>(k)] = static_cast<float>(value[k]);
      DEEPPCR_RETURN_IF_ERROR(CheckFinite(static_cast<ValueId>(i), time));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepMatrix> MatrixOf(const Instruction& product, int64_t step) {
    const LinearLayer& sizes = product.linear;
    const auto matrix = evaluation_.at(product.operands[1]);
    const auto bias = product.operands.size() > 2 ? evaluation_.at(product.operands[2])
                                                  : std::span<const double>();
    weight_.resize(matrix.size());
    for (int64_t i = 0; i < sizes.rows; ++i) {
      for (int64_t k = 0; k < sizes.cols; ++k)
        weight_[i * sizes.cols + k] =
            static_cast<float>(matrix[sizes.transposed ? k * sizes.rows + i : i * sizes.cols + k]);
    }
    bias_.assign(bias.begin(), bias.end());
    for (const std::vector<float>* numbers : {&weight_, &bias_}) {
      if (!std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); }))
        return InvalidArgument("the matrix or bias ", Quoted(program_.at(product.operands[1]).name),
                               " of layer ", step, " is not finite");
    }
    return StepMatrix{&product, step, weight_, bias_};
  }

 private:
  // The value that is not finite though what it is made of is, from which `id` has it.
  ValueId OriginOf(ValueId id) const {
    for (auto made = program_.instructions.rbegin(); made != program_.instructions.rend(); ++made) {
      if (made->result != id) continue;
      const auto from = std::ranges::find_if(made->operands, [&](ValueId operand) {
        return program_.at(operand).depends == kOnTime && !IsFinite(evaluation_.at(operand));
      });
      if (from != made->operands.end()) id = *from;
    }
    return id;
  }

  // Of a value that is not finite, the first step alone is noted.
  absl::Status CheckFinite(ValueId id, double time) {
    if (IsFinite(evaluation_.at(id)) || !not_finite_.insert(id).second) return absl::OkStatus();
    const ValueId origin = OriginOf(id);
    if (origin != id && !not_finite_.insert(origin).second) return absl::OkStatus();
    return note_(InvalidArgument("at ", layers_ ? "layer " : "timestep ", time, " the value ",
                                 Quoted(program_.at(origin).name),
                                 " of the step program is not finite"));
  }

  const Program& program_;
  const Placement& placement_;
  const bool layers_;  // steps are layers of a stack
  const NoteProblem note_;
  Evaluation evaluation_;
  std::vector<float> weight_, bias_;  // of a product, of one step
  std::set<ValueId> not_finite_;
};

}  // namespace

bool IsPackedProduct(const Program& program, const Instruction& instruction) {
  return instruction.op == Op::kProduct && ClassOf(program.at(instruction.result)) != kOnTime;
}

void FillConstants(const Program& program, const Placement& placement, float* row) {
  for (size_t i = 0; i < placement.in_rows.size(); ++i) {
    const Value& value = program.values[i];
    if (placement.in_rows[i] < 0 || value.depends != kOnNothing) continue;
    for (size_t k = 0; k < value.constant.size(); ++k)
      row[placement.in_rows[i] + static_cast<int64_t>(k)] = static_cast<float>(value.constant[k]);
  }
}

absl::Status MakeTimeTables(const Program& program, const Placement& placement, int64_t num_steps,
                            std::span<const ReverseStep> steps, const CancelToken* token,
                            NoteProblem note, float* rows,
                            absl::FunctionRef<void(const StepMatrix&)> take) {
  std::vector<const Instruction*> products;
  for (const Instruction& instruction : program.instructions)
    if (IsPackedProduct(program, instruction)) products.push_back(&instruction);
  TableMaker maker(program, placement, steps.empty(), note);
  for (int64_t l = 0; l < num_steps; ++l) {
    const double time = steps.empty() ? static_cast<double>(l) : steps[l].timestep;
    DEEPPCR_RETURN_IF_ERROR(maker.MakeStep(l, time, token, rows + l * placement.time_floats));
    for (const Instruction* product : products) {
      DEEPPCR_ASSIGN_OR_RETURN(const StepMatrix matrix, maker.MatrixOf(*product, l));
      take(matrix);
    }
  }
  return absl::OkStatus();
}

}  // namespace deeppcr::program
