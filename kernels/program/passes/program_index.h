// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_INDEX_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_INDEX_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/program/program.h"

namespace deeppcr::program {

// What all elements of a constant are, if they are equal; nothing for other values.
std::optional<double> NumberOf(const Value& value);

// Who makes and who reads the values of a program, which has to outlive the index and to stay as it
// is. Thread-safe.
class ProgramIndex {
 public:
  explicit ProgramIndex(const Program& program);

  const Program& program() const { return program_; }
  const Value& at(ValueId id) const { return program_.at(id); }

  // The instruction that makes a value; null for inputs and constants.
  const Instruction* Producer(ValueId id) const { return At(makers_[static_cast<size_t>(id)]); }
  // The same, and null where it is not an `op` or its result is read elsewhere too: a value that a
  // pattern may swallow.
  const Instruction* Inner(ValueId id, Op op) const;

  // Reads of a value: by every operand of every instruction, as output and as prediction.
  int64_t Reads(ValueId id) const { return reads_[static_cast<size_t>(id)]; }
  bool ReadOnce(ValueId id) const { return Reads(id) == 1; }
  // The instruction that reads a value which is read once; null if that is the program's end.
  const Instruction* OnlyReader(ValueId id) const;

  std::optional<double> Number(ValueId id) const { return numbers_[static_cast<size_t>(id)]; }

 private:
  const Instruction* At(int32_t index) const {
    return index < 0 ? nullptr : &program_.instructions[static_cast<size_t>(index)];
  }

  const Program& program_;
  std::vector<int32_t> makers_;   // instruction of a value, or -1
  std::vector<int64_t> reads_;    // of a value
  std::vector<int32_t> readers_;  // the last instruction that reads a value, or -1
  std::vector<std::optional<double>> numbers_;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_INDEX_H_
