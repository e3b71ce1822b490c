// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_BLOCKS_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_BLOCKS_H_

// Where the values of a section are in the frame of a block of threads, by their places, and which
// instructions have to wait for one another there.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>

#include "kernels/cuda/program/view.h"
#include "kernels/program/placement.h"

namespace deeppcr::cuda {

inline constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

// Floats of a value with its padding.
inline int64_t ValueWidth(int64_t size) {
  return (size + kPanelCols - 1) / kPanelCols * kPanelCols;
}

inline bool IsLayer(const program::PlacedInstruction& made) {
  return made.instruction->op == program::Op::kLinear ||
         made.instruction->op == program::Op::kProduct;
}
// True for what makes element i of its result from element i of its operands.
inline bool IsOfElements(const program::PlacedInstruction& made) {
  const program::OpKind kind = program::RowOf(made.instruction->op).kind;
  return kind == program::OpKind::kElementwise || kind == program::OpKind::kReverseStep;
}
// Vectors are copied where a row has several of them, or where the operand is not in the frame.
inline bool Gathers(const program::PlacedInstruction& made) {
  return IsLayer(made) &&
         (made.instruction->linear.repeat > 1 || made.operands[0].home != program::Home::kFrame);
}

// True if the threads of one instruction need only what they have written themselves in the other.
inline bool ByTheSameThreads(const program::PlacedInstruction& one,
                             const program::PlacedInstruction& other) {
  return IsOfElements(one) && IsOfElements(other) && one.result.size == other.result.size;
}
// What has to be waited for before an instruction, by the one before it, which may be null. A layer
// waits for the team when it is done, and before it begins: it writes to the frames of all blocks.
inline ProgramWait WaitBetween(const program::PlacedInstruction* before,
                               const program::PlacedInstruction& next) {
  if (before != nullptr && IsLayer(*before)) return ProgramWait::kNone;
  if (IsLayer(next)) return ProgramWait::kTeam;
  return before == nullptr || ByTheSameThreads(*before, next) ? ProgramWait::kNone
                                                              : ProgramWait::kBlock;
}

// The frame of a section as blocks: where values of one block begin, all in ascending order.
class FrameBlocks {
 public:
  // `goes_back`: cotangents of results are copied too.
  FrameBlocks(const program::PlacedSection& section, std::span<const program::Place> inputs,
              bool goes_back = false)
      : cols_(section.frame_floats) {
    for (const program::Place& input : inputs) Add(input);
    for (const program::PlacedInstruction& made : section.instructions) {
      Add(made.result);
      for (const program::Place& operand : made.operands) Add(operand);
      if (!Gathers(made)) continue;
      const program::LinearLayer& layer = made.instruction->linear;
      gathered_ = std::max(gathered_, ValueWidth(layer.cols));
      if (goes_back) gathered_ = std::max(gathered_, ValueWidth(layer.rows));
    }
    int32_t at = 0;
    for (auto& [offset, block] : blocks_) block = at++;
  }

  int64_t cols() const { return cols_ + 2 * gathered_; }
  int64_t count() const { return std::ssize(blocks_) + (gathered_ > 0 ? 2 : 0); }

  // Where nothing has been found to be too large for an int32.
  ProgramValue ValueAt(const program::Place& place) const {
    const bool here = place.home == program::Home::kFrame;
    return {.home = place.home,
            .offset = static_cast<int32_t>(place.offset),
            .block = here && place.width > 0 ? blocks_.at(place.offset) : 0,
            .size = static_cast<int32_t>(place.size)};
  }
  // The place of vectors of `size` that are copied, of two that take turns.
  ProgramValue GatheredAt(int which, int64_t size) const {
    return {.home = program::Home::kFrame,
            .offset = static_cast<int32_t>(cols_ + which * gathered_),
            .block = static_cast<int32_t>(std::ssize(blocks_) + which),
            .size = static_cast<int32_t>(size)};
  }

 private:
  void Add(const program::Place& place) {
    if (place.home == program::Home::kFrame && place.width > 0) blocks_[place.offset] = 0;
  }

  const int64_t cols_;
  int64_t gathered_ = 0;
  std::map<int64_t, int32_t> blocks_;  // by offset
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_FRAME_BLOCKS_H_
