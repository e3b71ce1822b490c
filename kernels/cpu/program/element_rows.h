// SPDX-License-Identifier: Apache-2.0
// Rows of elements moved as instructions say: values, tangents and sizes alike.
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENT_ROWS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENT_ROWS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/program/packed_program.h"

namespace deeppcr::cpu {

// Clears what is behind a value's elements, which has to be zero in every row that is read:
// products read it, with weights of zero, and what overflowed would be NaN there and stay.
inline void ClearPadding(const Place& place, float* row) {
  if (place.width > place.size) std::fill(row + place.size, row + place.width, 0.0F);
}

// Copies a value to a row whose memory may have been another value's.
inline void CopyRow(const float* from, const Place& place, float* to) {
  std::copy_n(from, place.size, to);
  ClearPadding(place, to);
}

// Copies elements from operands' rows to a result's row.
template <class RowOf>
void Arrange(const PackedInstruction& instruction, const RowOf& row_of, float* to) {
  for (const ElementRun& run : instruction.runs) {
    const float* from = row_of(run.operand);
    if (from == nullptr) {
      std::fill_n(to + run.to, run.count, 0.0F);
    } else if (run.repeated) {
      std::fill_n(to + run.to, run.count, from[run.from]);
    } else {
      std::copy_n(from + run.from, run.count, to + run.to);
    }
  }
  ClearPadding(instruction.result, to);
}

// [outer, length, inner] to lines [outer, inner, length], and back.
inline void ToLines(const program::Axis& axis, const float* from, float* to) {
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i)
        to[(o * axis.inner + i) * axis.length + a] = from[(o * axis.length + a) * axis.inner + i];
}
inline void FromLines(const program::Axis& axis, const float* from, float* to) {
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i)
        to[(o * axis.length + a) * axis.inner + i] = from[(o * axis.inner + i) * axis.length + a];
}

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_ELEMENT_ROWS_H_
