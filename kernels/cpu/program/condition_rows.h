// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_CONDITION_ROWS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_CONDITION_ROWS_H_

#include <array>
#include <cstdint>

#include "kernels/backend/backend.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/system.h"

namespace deeppcr::cpu {

// Sets the inputs of a section in row 0, as far as the section has them.
void TakeCondition(const SampleInput& input, const Place& vector, const Place& label,
                   Executor& executor);

// Copies the values of row r that later sections read into their row.
void GiveExports(const PackedSection& section, Executor& executor, int64_t r, float* row);

// Computes what a condition gives: once for all steps, then with each of them, by blocks of steps.
// Not thread-safe. Nothing allocates but the constructor.
class ConditionRows {
 public:
  // `model` must outlive this.
  explicit ConditionRows(const PackedProgramSystem& model);
  static int64_t Floats(const PackedProgramSystem& model);
  bool ok() const { return condition_.ok() && mixed_.ok(); }

  // Fills rows [condition_floats] from the inputs or the label; unfinished if the token has fired.
  void Fill(const SampleInput& input, const Sharing* sharing, float* rows);

 private:
  const PackedProgramSystem& model_;
  Executor condition_, mixed_;
  std::array<RowContext, kModulationTile> contexts_ = {};
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_CONDITION_ROWS_H_
