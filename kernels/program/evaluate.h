// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_EVALUATE_H_
#define DEEPPCR_KERNELS_PROGRAM_EVALUATE_H_

// Programs in double, plainly: the oracle of all backends, and what makes constants and the tables
// of what depends on the time alone.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/cancel_token.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Data of a step beside the state.
struct StepInputs {
  double time = 0;
  int64_t step = 0;  // row of the stacked constants
  std::span<const double> condition;
  double label = 0;
  const ReverseStep* reverse = nullptr;  // for kReverseStep
  double clip_range = 0;
  std::span<const double> noise;  // [D], or empty for none
};

// Values and tangents of a program. Not thread-safe.
class Evaluation {
 public:
  // What results are rounded to. Float: roughly what float32 makes of the program.
  enum class Rounding { kDouble, kFloat };

  explicit Evaluation(const Program& program, Rounding rounding = Rounding::kDouble);

  // Sets all values that depend on nothing but `depends` (bits of Depends) and the inputs of that
  // kind; the others stay as they are. Stops some milliseconds after the token has fired, with
  // values that are of no use.
  void Run(const StepInputs& inputs, std::span<const double> state, uint8_t depends = 0xFF,
           const CancelToken* token = nullptr);
  // Value [size]; empty before Run has set it.
  std::span<const double> at(ValueId id) const { return values_[static_cast<size_t>(id)]; }

  // After Run: tangents of `output` along `columns` directions of the state.
  //   directions [D, columns], result [D', columns], both row-major
  std::vector<double> Tangents(std::span<const double> directions, int64_t columns) const;
  // After Run: cotangent of an input, the state or the condition, from one of the output.
  //   cotangent [D'], result [size of the input]
  std::vector<double> Cotangent(std::span<const double> cotangent, ValueId input) const;
  std::vector<double> Cotangent(std::span<const double> cotangent) const {
    return Cotangent(cotangent, program_.state);
  }

 private:
  void Round(std::vector<double>& value) const;
  void SetParameter(const Parameter& parameter, int64_t step);

  const Program& program_;
  const Rounding rounding_;
  StepInputs inputs_;
  std::vector<std::vector<double>> values_;
};

// One instruction on operands in double; `inputs` for kReverseStep only. Any sizes that fit. Stops
// as Evaluation::Run does.
std::vector<double> EvaluateInstruction(const Instruction& instruction, int64_t size,
                                        std::span<const std::span<const double>> operands,
                                        const StepInputs& inputs = {},
                                        const CancelToken* token = nullptr);

// Adds the cotangents of an instruction's operands, which have these values, to `to`, from one of
// its result; an operand whose `to` is empty wants none. Linear layers have none of their weights.
void AddOperandCotangents(const Instruction& instruction, std::span<const double> result,
                          std::span<const std::span<const double>> operands,
                          std::span<const double> cotangent, const StepInputs& inputs,
                          std::span<const std::span<double>> to);

// The row of a table of so many rows that an index finds, counted from the end where it is
// negative; -1: none.
int64_t FoundRow(double index, int64_t rows);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_EVALUATE_H_
