// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_MODEL_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_MODEL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/program/backward_kernel.h"
#include "kernels/cuda/program/compiler.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/program/memory.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/problem/spec.h"
#include "kernels/program/placement.h"

namespace deeppcr::cuda {

// A recurrence whose step is a program, in a device's memory: a reverse process, or a stack of
// blocks, which has neither coefficients nor conditions.
class ProgramModel {
 public:
  // `device` must outlive the result. Errors: kUnimplemented for states or values that a block of
  // threads cannot hold, naming an alternative that can run the model; else as Backend::NewSystem.
  // `compiler`, which may be null, compiles the step where it can. `use`: whether steps are made,
  // for which a block needs memory, or only taken back.
  enum class Use : uint8_t { kAll, kWayBack };
  static absl::StatusOr<ProgramModel> Upload(Device& device, const DiffusionProgramSpec& spec,
                                             const PackingLimits& limits,
                                             ProgramCompiler* compiler = nullptr,
                                             Use use = Use::kAll);
  static absl::StatusOr<ProgramModel> Upload(Device& device, const StackProgramSpec& spec,
                                             const PackingLimits& limits,
                                             ProgramCompiler* compiler = nullptr,
                                             Use use = Use::kAll);
  // Of a stack.
  absl::Status SetGuess(Device& device, const AffineGuess& guess);

  const SystemShape& shape() const { return shape_; }
  int width() const { return view_.width; }
  int64_t memory_bytes() const;
  const DeviceChain& encode() const { return encode_; }  // of a stack
  const DeviceChain& decode() const { return decode_; }
  // View without what samples have for themselves: conditions and noise.
  const ProgramView& view() const { return view_; }
  // What makes the rows of conditions, without what samples have; num_exports is 0 where there is
  // nothing to make.
  const ConditionArgs& condition() const { return condition_; }
  const ConditionArgs& mixed() const { return mixed_; }
  float initial_scale() const { return initial_scale_; }
  // What the way back takes, without what samples have for themselves: of no instructions unless
  // PackingLimits asked for it.
  const ProgramBackView& back() const { return back_; }
  // Rows that a block takes through a step together.
  int rows_per_step() const { return rows_per_step_; }
  // How all blocks of the device make a step, if they do.
  const GridPlan& grid() const { return grid_; }
  // The fitted map; its pointer is null if there is no map.
  const GuessView& guess() const { return guess_; }

 private:
  class Uploader;

  void SetShape(const SystemShape& shape);
  absl::Status UploadSampler(Device& device, const DiffusionProgramSpec& spec);

  SystemShape shape_;
  int rows_per_step_ = 0;
  GridPlan grid_;
  float initial_scale_ = 1.0F;
  ProgramView view_ = {};
  ConditionArgs condition_ = {}, mixed_ = {};
  ProgramBackView back_ = {};
  GuessView guess_ = {};
  DeviceChain encode_, decode_;
  ProgramMemory memory_;     // of the program
  DeviceBuffer<float> map_;  // of the guess
  DeviceBuffer<ReverseCoefficients> coefficients_;
  DeviceBuffer<HoldCoefficients> holds_;
  DeviceBuffer<MemoryHold> memory_holds_;
  std::shared_ptr<const DeviceCode> code_;  // what view_.kernels belongs to
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_MODEL_H_
