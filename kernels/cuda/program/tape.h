// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_TAPE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_TAPE_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/program/frame_blocks.h"
#include "kernels/cuda/program/memory.h"
#include "kernels/cuda/program/view.h"
#include "kernels/program/placement.h"
#include "kernels/program/program.h"

namespace deeppcr::cuda {

// A section that was uploaded to be run forwards.
struct TapeSource {
  const program::Program& program;
  const program::Placement& placed;
  const program::PlacedSection& section;  // of `placed`
  uint8_t depends;                        // of its values: see program::MakeTape
  std::span<const ProgramInstruction> packed;
  // The matrices of a layer [1 or L, rows, cols].
  absl::FunctionRef<std::span<const float>(const program::Instruction&)> weights_of;
};

// Uploads the section for the way back. Errors: kUnimplemented for one with more values than the
// device counts; else the device's.
absl::StatusOr<ProgramTape> UploadTape(const TapeSource& source, ProgramMemory* memory);

// Uploads the elements and the operands of an arrangement.
absl::Status UploadElements(const program::PlacedInstruction& made, const FrameBlocks& frame,
                            ProgramMemory* memory, ProgramInstruction* packed);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_TAPE_H_
