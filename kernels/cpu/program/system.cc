// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/system.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/program/backward.h"
#include "kernels/cpu/program/block_stack.h"
#include "kernels/cpu/program/condition_rows.h"
#include "kernels/cpu/program/reverse_process.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/optimize.h"

namespace deeppcr::cpu {
namespace {

// Multiply-adds of the largest product of a step, by one row.
int64_t LargestProduct(const PackedSection& section) {
  int64_t largest = 0;
  for (const PackedInstruction& instruction : section.instructions) {
    if (instruction.layers != nullptr)
      largest = std::max(largest, instruction.layers->width * instruction.layers->cols);
  }
  return largest;
}

// Computes what every class gives, if that fits, and nothing depends on a vector beside it; a
// sample's label then costs nothing.
absl::Status FillClasses(int64_t max_bytes, const PackingLimits& limits,
                         PackedProgramSystem* packed) {
  const int64_t classes = packed->shape.num_classes, floats = packed->condition_floats();
  const int64_t most_floats = max_bytes / int64_t{sizeof(float)};
  if (classes == 0 || floats == 0 || floats > most_floats / classes) return absl::OkStatus();
  if (packed->program.condition_input.width > 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(classes * floats, limits, packed->memory_bytes()));
  AlignedBuffer<float> filled(classes * floats);
  ConditionRows rows(*packed);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(filled.ok() && rows.ok(), classes * floats));
  for (int64_t i = 0; i < classes && !Fired(limits.token); ++i)
    rows.Fill({.label = static_cast<int32_t>(i), .token = limits.token}, nullptr,
              filled.data() + i * floats);
  if (Fired(limits.token)) return absl::CancelledError("stopped while tables were made");
  packed->classes = std::move(filled);
  packed->program.ForgetConditions();
  return absl::OkStatus();
}

}  // namespace

int64_t PackedProgramSystem::memory_bytes() const {
  int64_t bytes = program.memory_bytes() + classes.size() * static_cast<int64_t>(sizeof(float)) +
                  static_cast<int64_t>(coefficients.size() * sizeof(ReverseCoefficients) +
                                       parts.size() * sizeof(ReverseCoefficients) +
                                       holds.size() * sizeof(HoldCoefficients) +
                                       memory_holds.size() * sizeof(MemoryHold));
  for (const PackedDense& layer : decoder) bytes += layer.memory_bytes();
  for (const PackedTape* tape : {&state_tape, &mixed_tape, &condition_tape})
    bytes += tape->memory_bytes();
  return bytes + encode.memory_bytes();
}

RowContext PackedProgramSystem::ContextOf(int64_t step, const float* condition_rows) const {
  return ContextOf(step, condition_rows,
                   condition_rows + program.condition.row_floats + step * program.mixed.row_floats);
}

RowContext PackedProgramSystem::ContextOf(int64_t step, const float* condition_row,
                                          const float* mixed_row) const {
  RowContext context = {.step = step};
  if (!parts.empty()) {
    context.coefficients = &parts[step * kNumStepParts];
  } else if (!coefficients.empty()) {
    context.coefficients = &coefficients[step];
  }
  const auto set = [&](Home home, const float* row) {
    context.rows[static_cast<size_t>(home)] = row;
  };
  set(Home::kConstant, program.constants.data());
  set(Home::kTime, program.time_tables.data() + step * program.time_floats);
  set(Home::kCondition, condition_row);
  set(Home::kMixed, mixed_row);
  return context;
}

int64_t PackedProgramSystem::RecurrenceBytes() const {
  return shape.draws_noise ? ReverseProcess::Bytes(*this) : BlockStack::Bytes(*this);
}

std::unique_ptr<Recurrence> PackedProgramSystem::NewRecurrence() const {
  const auto checked = [](auto recurrence) -> std::unique_ptr<Recurrence> {
    if (!recurrence->ok()) return nullptr;
    return recurrence;
  };
  return shape.draws_noise ? checked(std::make_unique<ReverseProcess>(*this))
                           : checked(std::make_unique<BlockStack>(*this));
}

int64_t PackedProgramSystem::BackwardRecurrenceBytes(const BackwardLimits& limits) const {
  return ProgramBackward::Bytes(*this, limits);
}

std::unique_ptr<BackwardRecurrence> PackedProgramSystem::NewBackwardRecurrence(
    const BackwardLimits& limits) const {
  auto backward = std::make_unique<ProgramBackward>(*this, limits);
  if (!backward->ok()) return nullptr;
  return backward;
}

namespace {

// Packs what the backward pass takes: of what makes the rows of conditions only where each sample
// makes its own.
absl::Status PackTapes(const program::Program& program, const PackingLimits& limits,
                       PackedProgramSystem* packed) {
  if (!limits.backward) return absl::OkStatus();
  struct Tape {
    uint8_t depends;
    const PackedSection& section;
    PackedTape& tape;
  };
  std::vector<Tape> tapes = {{program::kOnState, packed->program.state, packed->state_tape}};
  if (packed->condition_per_sample()) {
    tapes.push_back({program::kOnTimeAndCondition, packed->program.mixed, packed->mixed_tape});
    tapes.push_back({program::kOnCondition, packed->program.condition, packed->condition_tape});
  }
  const int64_t num_steps = packed->shape.num_steps;
  int64_t bytes = packed->memory_bytes();
  for (const Tape& tape : tapes) bytes += TransposedBytes(tape.section, num_steps);
  DEEPPCR_RETURN_IF_ERROR(CheckPackedBytes(bytes, limits));
  for (const Tape& tape : tapes) {
    DEEPPCR_ASSIGN_OR_RETURN(tape.tape, PackTape(program, tape.section, tape.depends, num_steps));
  }
  packed->has_backward = true;
  return absl::OkStatus();
}

template <class Spec>
std::unique_ptr<PackedProgramSystem> NewPacked(const Spec& spec, const KernelSet& set) {
  auto packed = std::make_unique<PackedProgramSystem>();
  packed->shape = ShapeOf(spec);
  packed->width = PaddedWidth(packed->shape.state_dim);
  packed->kernels = set.kernels(packed->width);
  packed->program_kernels = set.program();
  return packed;
}

// Lower bound of the floats that the layers and the time embeddings of a named denoiser take.
int64_t NetworkFloats(const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t rows = d.modulation_dim() / d.hidden_dim +
                       (d.kind == DenoiserKind::kAdaLnMlp ? 2 : 1) * d.num_blocks;
  return (rows * d.hidden_dim + spec.num_steps()) * PanelRowWidth(d.hidden_dim);
}

// How steps and passes are shared and samples grouped.
std::unique_ptr<PackedSystem> Planned(std::unique_ptr<PackedProgramSystem> packed,
                                      const PackingLimits& limits) {
  const int64_t largest = LargestProduct(packed->program.state);
  packed->shares_steps = largest >= kSharedProduct;
  packed->shares_passes = largest * kTangentTile >= kSharedProduct;
  const int64_t bytes = std::max<int64_t>(1, packed->sample_floats() * int64_t{sizeof(float)});
  const int64_t kept = std::max(kMaxGroupBytes, packed->memory_bytes() / 4);
  const int64_t wanted = std::clamp<int64_t>(kept / bytes, kSequentialGroup, kDiffusionGroup);
  packed->group = static_cast<int32_t>(std::clamp<int64_t>(kMostConditionBytes / bytes, 1, wanted));
  // An eighth is for what else a workspace has.
  while (packed->group > 1 && packed->RecurrenceBytes() > limits.max_workspace_bytes / 8 * 7)
    --packed->group;
  return packed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const DiffusionProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits,
                                                                int64_t max_class_bytes) {
  std::unique_ptr<PackedProgramSystem> packed = NewPacked(spec, set);
  packed->clip_range = static_cast<float>(spec.clip_range);
  packed->initial_scale = spec.initial_scale;
  packed->noise_scale = spec.form.noise_scale;
  for (const ReverseStep& step : spec.steps) {
    packed->coefficients.push_back(ToFloat(step));
    packed->holds.push_back(HoldOf(step));
    if (spec.form.carries) packed->memory_holds.push_back(MemoryHoldOf(step));
    for (int part = 0; part < kNumStepParts && spec.form != SamplerForm{}; ++part)
      packed->parts.push_back(ToFloat(PartOf(step, static_cast<StepPart>(part))));
  }
  DEEPPCR_ASSIGN_OR_RETURN(packed->program,
                           PackProgram(*spec.program, spec.num_steps(), spec.steps, limits));
  for (const DenseSpec& layer : spec.decoder) {
    DEEPPCR_ASSIGN_OR_RETURN(PackedDense dense,
                             PackDense(layer, set.kernels, limits, packed->memory_bytes()));
    packed->decoder.push_back(std::move(dense));
  }
  DEEPPCR_RETURN_IF_ERROR(FillClasses(max_class_bytes, limits, packed.get()));
  DEEPPCR_RETURN_IF_ERROR(PackTapes(*spec.program, limits, packed.get()));
  return Planned(std::move(packed), limits);
}

absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const DiffusionSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits,
                                                                int64_t max_class_bytes) {
  const int64_t floats = NetworkFloats(spec);
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(floats, limits));
  // The program has the weights once more, for as long as it is packed.
  MemoryShare of_program = limits.memory == nullptr ? MemoryShare() : limits.memory->Another();
  DEEPPCR_RETURN_IF_ERROR(of_program.Set(floats * int64_t{sizeof(float)}));
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written,
                           program::ProgramOfDenoiser(spec, program::kNoLimits));
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program program,
                           program::Optimize(written, program::kNoLimits));
  return PackProgramSystem(program::WithProgram(spec, program), set, limits, max_class_bytes);
}

absl::StatusOr<std::unique_ptr<PackedSystem>> PackProgramSystem(const StackProgramSpec& spec,
                                                                const KernelSet& set,
                                                                const PackingLimits& limits) {
  std::unique_ptr<PackedProgramSystem> packed = NewPacked(spec, set);
  DEEPPCR_ASSIGN_OR_RETURN(packed->program, PackProgram(*spec.program, spec.num_steps, {}, limits));
  DEEPPCR_RETURN_IF_ERROR(PackTapes(*spec.program, limits, packed.get()));
  DEEPPCR_ASSIGN_OR_RETURN(packed->encode,
                           PackDense(spec.encode, set.kernels, limits, packed->memory_bytes()));
  if (spec.decode.rows > 0) {
    DEEPPCR_ASSIGN_OR_RETURN(PackedDense decode,
                             PackDense(spec.decode, set.kernels, limits, packed->memory_bytes()));
    packed->decoder.push_back(std::move(decode));
  }
  return Planned(std::move(packed), limits);
}

}  // namespace deeppcr::cpu
