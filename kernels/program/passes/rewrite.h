// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_REWRITE_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_REWRITE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/passes/program_index.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {

// Another way to make the result of an instruction.
struct Rewrite {
  // Values of the program as it is that `write` reads: inputs, constants, and results of
  // instructions before this one.
  std::vector<ValueId> reads;
  // Writes it, and returns the value of the new program.
  std::function<absl::StatusOr<ValueId>(ProgramWriter&)> write;
};

// What the search for rewrites looks at. Not thread-safe.
class Search {
 public:
  explicit Search(const ProgramIndex& index) : index_(index) {}

  const ProgramIndex& index() const { return index_; }

  // Whether so many numbers (or multiply-adds) may still be gone through. A program may read the
  // same matrix or constant any number of times, and its search has to end soon all the same.
  bool Spend(int64_t work) {
    if (work > work_left_) return false;
    work_left_ -= work;
    return true;
  }

 private:
  const ProgramIndex& index_;
  int64_t work_left_ = int64_t{1} << 29;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_REWRITE_H_
