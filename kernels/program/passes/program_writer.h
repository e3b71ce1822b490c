// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_WRITER_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_WRITER_H_

#include <cassert>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/program/builder.h"

namespace deeppcr::program {

// Writes a program anew from another, which has to outlive the writer: a builder that knows what
// became of the other's values and who makes its own. Not thread-safe.
class ProgramWriter {
 public:
  ProgramWriter(const Program& from, const ProgramLimits& limits);

  // Writes the inputs, and the constants that are `needed` [values of the other program]. The
  // condition's vector gets `more` elements behind those that it has, or becomes these.
  absl::Status Begin(const std::vector<bool>& needed, int64_t more = 0);
  // Elements [first, first + count) of these.
  absl::StatusOr<ValueId> AddMore(int64_t first, int64_t count);
  // Ends the writer.
  absl::StatusOr<Program> Finish();

  // What became of a value of the other program, which has been set.
  ValueId Now(ValueId old) const {
    assert(now_[static_cast<size_t>(old)] != kNoValue);
    return now_[static_cast<size_t>(old)];
  }
  std::vector<ValueId> Now(const std::vector<ValueId>& old) const;
  // Says so, and hands the value's name on.
  void Set(ValueId old, ValueId now);

  // The program as written so far.
  ProgramBuilder& builder() { return builder_; }
  const Value& at(ValueId id) const { return builder_.at(id); }
  // The instruction that makes a value, until the next one is written; null for others.
  const Instruction* Producer(ValueId id);
  // What all elements of a constant are, as NumberOf.
  std::optional<double> Number(ValueId id);
  // A constant of `size` elements that are all `number`.
  absl::StatusOr<ValueId> AddNumber(double number, int64_t size);

  // Counts what was written otherwise than it was.
  void CountChange() { ++changes_; }
  int64_t changes() const { return changes_; }

 private:
  absl::Status AddCondition(int64_t more);

  const Program& from_;
  ProgramBuilder builder_;
  std::vector<ValueId> now_;
  std::vector<int32_t> makers_;  // instruction of a value, or -1
  size_t known_instructions_ = 0;
  std::vector<std::optional<double>> numbers_;
  int64_t changes_ = 0;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_PROGRAM_WRITER_H_
