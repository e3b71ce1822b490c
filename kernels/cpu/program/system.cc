// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/system.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/diffusion/system.h"
#include "kernels/cpu/program/recurrence.h"

namespace deeppcr::cpu {
namespace {

// Multiply-adds of the largest product of a step, by one row.
int64_t LargestProduct(const PackedSection& section) {
  int64_t largest = 0;
  for (const PackedInstruction& instruction : section.instructions) {
    if (instruction.op == program::Op::kLinear)
      largest = std::max(largest, instruction.layer.width * instruction.layer.cols);
  }
  return largest;
}

}  // namespace

int64_t PackedProgramSystem::memory_bytes() const {
  int64_t bytes = program.memory_bytes() +
                  static_cast<int64_t>(coefficients.size() * sizeof(ReverseCoefficients) +
                                       holds.size() * sizeof(HoldCoefficients));
  for (const PackedDense& layer : decoder) bytes += layer.memory_bytes();
  return bytes;
}

int64_t PackedProgramSystem::RecurrenceBytes() const { return ProgramRecurrence::Bytes(*this); }

std::unique_ptr<Recurrence> PackedProgramSystem::NewRecurrence() const {
  auto recurrence = std::make_unique<ProgramRecurrence>(*this);
  if (!recurrence->ok()) return nullptr;
  return recurrence;
}

absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const DiffusionProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits) {
  auto packed = std::make_unique<PackedProgramSystem>();
  packed->shape = ShapeOf(spec);
  packed->width = PaddedWidth(spec.state_dim);
  packed->kernels = set.kernels(packed->width);
  packed->denoiser_kernels = set.denoiser();
  packed->program_kernels = set.program();
  packed->clip_range = static_cast<float>(spec.clip_range);
  for (const ReverseStep& step : spec.steps) {
    packed->coefficients.push_back(ToFloat(step));
    packed->holds.push_back(HoldOf(step));
  }
  DEEPPCR_ASSIGN_OR_RETURN(packed->program, PackProgram(*spec.program, spec.steps, limits));
  for (const DenseSpec& layer : spec.decoder) {
    DEEPPCR_ASSIGN_OR_RETURN(PackedDense dense, PackDense(layer, set.kernels));
    packed->decoder.push_back(std::move(dense));
  }
  const int64_t largest = LargestProduct(packed->program.state);
  packed->shares_steps = largest >= kSharedProduct;
  packed->shares_passes = largest * kTangentTile >= kSharedProduct;
  const int64_t fit = kMaxGroupBytes / (packed->sample_floats() * int64_t{sizeof(float)});
  packed->group = static_cast<int32_t>(std::clamp<int64_t>(fit, kSequentialGroup, kDiffusionGroup));
  return std::unique_ptr<PackedSystem>(std::move(packed));
}

}  // namespace deeppcr::cpu
