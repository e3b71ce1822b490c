// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_H_

// The values of a section while it runs: each a VectorShape of all rows in shared memory, so that
// layers read vectors where they are. A frame has blocks, whose values come and go.

#include <cstdint>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// A value in a frame: element i of row r.
struct FrameVectors {
  float* at;
  VectorShape shape;

  DEEPPCR_DEVICE float& operator()(int r, int i) const { return at[shape.Place(r, i)]; }
};

struct Frame {
  float* at;  // aligned to 16 bytes
  int rows;   // FrameRows of the step

  DEEPPCR_DEVICE FrameVectors operator[](const ProgramValue& value) const {
    return {at + int64_t{value.offset} * rows + int64_t{value.block} * kBlockGap,
            {PanelWidth(value.size), rows}};
  }
};

// An operand in row 0, wherever it is.
class OperandValue {
 public:
  DEEPPCR_DEVICE OperandValue(const Frame& frame, const ProgramStepView& step,
                              const ProgramValue& value)
      : vectors_(frame[value]),
        row_(value.moves() ? nullptr : step.RowOf(value.home) + value.offset) {}

  DEEPPCR_DEVICE bool moves() const { return row_ == nullptr; }
  DEEPPCR_DEVICE float operator[](int i) const { return moves() ? vectors_(0, i) : row_[i]; }
  // Row r of a value that moves, or zero.
  DEEPPCR_DEVICE float Of(int r, int i) const { return moves() ? vectors_(r, i) : 0.0F; }

 private:
  const FrameVectors vectors_;
  const float* const row_;  // null: in the frame
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_H_
