// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/tape.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/dependence.h"
#include "kernels/program/tape.h"

namespace deeppcr::cuda {
namespace {

using program::Instruction;
using program::OpKind;
using program::Place;
using program::PlacedInstruction;
using program::PlacedSection;
using program::TapedInstruction;

Place At(Place place, int64_t offset) {
  place.offset = offset;
  return place;
}

class TapeUploader {
 public:
  TapeUploader(const TapeSource& source, ProgramMemory* memory)
      : source_(source),
        memory_(*memory),
        taped_(program::MakeTape(source.program, source.depends, &ValueWidth)),
        section_(SectionOf(source, taped_)),
        inputs_(InputsOf(source, taped_)),
        frame_(section_, inputs_, true) {}

  absl::StatusOr<ProgramTape> Run() {
    if (frame_.cols() > kMostInt32)
      return absl::UnimplementedError(
          "the step program has more values than the way back on a GPU counts; --backend cpu can "
          "run this model");
    DEEPPCR_RETURN_IF_ERROR(UploadInstructions());
    tape_.state = frame_.ValueAt(inputs_[kState]);
    tape_.condition = frame_.ValueAt(inputs_[kCondition]);
    tape_.label = frame_.ValueAt(inputs_[kLabel]);
    if (source_.depends == program::kOnState) FindResults();
    DEEPPCR_RETURN_IF_ERROR(UploadExports());
    return tape_;
  }

 private:
  enum InputOfSection : size_t { kState, kCondition, kLabel, kNumInputs };
  using Inputs = std::array<Place, kNumInputs>;

  static Inputs InputsOf(const TapeSource& source, const program::Tape& taped) {
    const program::Placement& placed = source.placed;
    Inputs inputs = {};
    if (source.depends == program::kOnState) inputs[kState] = At(placed.state_input, taped.state);
    if (source.depends != program::kOnCondition) return inputs;
    inputs[kCondition] = At(placed.condition_input, taped.condition);
    inputs[kLabel] = At(placed.label_input, taped.label);
    return inputs;
  }
  // The section with every value in the place that the tape gives it.
  static PlacedSection SectionOf(const TapeSource& source, const program::Tape& taped) {
    PlacedSection section = source.section;
    section.frame_floats = taped.floats;
    for (size_t at = 0; at < taped.instructions.size(); ++at) {
      const TapedInstruction& from = taped.instructions[at];
      PlacedInstruction& to = section.instructions[at];
      to.result.offset = from.result;
      for (size_t k = 0; k < to.operands.size(); ++k)
        if (from.operands[k] >= 0) to.operands[k].offset = from.operands[k];
    }
    for (size_t e = 0; e < section.exports.size(); ++e)
      section.exports[e].from.offset = taped.exports[e];
    return section;
  }

  absl::Status UploadInstructions() {
    std::vector<ProgramInstruction> instructions(source_.packed.begin(), source_.packed.end());
    std::vector<ProgramBack> backs(instructions.size());
    int widest = kPanelCols;
    for (size_t at = 0; at < instructions.size(); ++at) {
      const PlacedInstruction& made = section_.instructions[at];
      DEEPPCR_RETURN_IF_ERROR(PlacePacked(made, &instructions[at]));
      DEEPPCR_RETURN_IF_ERROR(PackBack(made, taped_.instructions[at], &backs[at]));
      const program::LinearLayer& layer = made.instruction->linear;
      const int64_t rows = IsLayer(made) ? std::max(layer.rows, layer.cols) : made.result.size / 4;
      widest = std::max(widest, PanelWidth(rows));
    }
    DecideWaits(&backs);
    tape_.section = {.count = static_cast<int32_t>(instructions.size()),
                     .frame_cols = static_cast<int32_t>(frame_.cols()),
                     .frame_blocks = static_cast<int32_t>(frame_.count()),
                     .widest = widest,
                     .after = ProgramWait::kBlock};
    DEEPPCR_ASSIGN_OR_RETURN(tape_.section.instructions,
                             memory_.List<ProgramInstruction>(instructions));
    DEEPPCR_ASSIGN_OR_RETURN(tape_.back, memory_.List<ProgramBack>(backs));
    return absl::OkStatus();
  }
  // Gives a packed instruction the places of this frame.
  absl::Status PlacePacked(const PlacedInstruction& made, ProgramInstruction* packed) {
    packed->result = frame_.ValueAt(made.result);
    if (packed->kind == OpKind::kArrange) return UploadElements(made, frame_, &memory_, packed);
    for (int k = 0; k < packed->num_operands; ++k)
      packed->operands[k] = frame_.ValueAt(made.operands[static_cast<size_t>(k)]);
    for (int i = 0; i < 2 && packed->gathers; ++i)
      packed->gathered[i] = frame_.GatheredAt(i, packed->inputs);
    return absl::OkStatus();
  }
  absl::Status PackBack(const PlacedInstruction& made, const TapedInstruction& taped,
                        ProgramBack* back) {
    back->reached = taped.reached;
    if (!taped.reached) return absl::OkStatus();
    if (program::RowOf(made.instruction->op).kind == OpKind::kArrange)
      return PackScatters(made, taped, back);
    for (size_t k = 0; k < taped.wants.size(); ++k) {
      back->wants[k] = taped.wants[k] != 0;
      back->adds[k] = taped.adds[k] != 0;
    }
    if (!IsLayer(made) || !back->wants[0]) return absl::OkStatus();
    return PackTransposed(*made.instruction, back);
  }
  absl::Status PackTransposed(const Instruction& instruction, ProgramBack* back) {
    const program::LinearLayer& layer = instruction.linear;
    const std::span<const float> weights = source_.weights_of(instruction);
    const int64_t floats = layer.rows * layer.cols;
    std::vector<float> transposed(weights.size());
    for (size_t first = 0; first < weights.size(); first += static_cast<size_t>(floats))
      for (int64_t i = 0; i < layer.rows; ++i)
        for (int64_t k = 0; k < layer.cols; ++k)
          transposed[first + k * layer.rows + i] = weights[first + i * layer.cols + k];
    DEEPPCR_ASSIGN_OR_RETURN(
        back->transposed,
        memory_.Panels(std::ssize(weights) / floats, layer.cols, layer.rows, transposed, {}));
    for (int i = 0; i < 2 && layer.repeat > 1; ++i)
      back->gathered[i] = frame_.GatheredAt(i, layer.rows);
    return absl::OkStatus();
  }
  // Finds, for each element of the operands that want it, the elements that were made of it.
  absl::Status PackScatters(const PlacedInstruction& made, const TapedInstruction& taped,
                            ProgramBack* back) {
    std::vector<ProgramScatter> scatters;
    for (size_t k = 0; k < taped.wants.size(); ++k) {
      if (taped.wants[k] == 0) continue;
      ProgramScatter scatter = {.operand = frame_.ValueAt(made.operands[k]),
                                .adds = taped.adds[k] != 0};
      DEEPPCR_RETURN_IF_ERROR(
          UploadSources(made.instruction->elements, static_cast<int32_t>(k), &scatter));
      scatters.push_back(scatter);
    }
    back->num_scatters = static_cast<int32_t>(scatters.size());
    DEEPPCR_ASSIGN_OR_RETURN(back->scatters, memory_.List<ProgramScatter>(scatters));
    return absl::OkStatus();
  }
  absl::Status UploadSources(const std::vector<program::Element>& elements, int32_t operand,
                             ProgramScatter* scatter) {
    std::vector<int32_t> starts(static_cast<size_t>(scatter->operand.size) + 1);
    for (const program::Element& element : elements)
      if (element.operand == operand) ++starts[static_cast<size_t>(element.index) + 1];
    for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
    std::vector<int32_t> sources(static_cast<size_t>(starts.back())), next = starts;
    for (size_t i = 0; i < elements.size(); ++i) {
      if (elements[i].operand != operand) continue;
      int32_t& place = next[static_cast<size_t>(elements[i].index)];
      sources[static_cast<size_t>(place++)] = static_cast<int32_t>(i);
    }
    DEEPPCR_ASSIGN_OR_RETURN(scatter->starts, memory_.List<int32_t>(starts));
    DEEPPCR_ASSIGN_OR_RETURN(scatter->sources, memory_.List<int32_t>(sources));
    return absl::OkStatus();
  }
  // An instruction waits for those behind it, unless each of its threads needs what it has written
  // itself.
  void DecideWaits(std::vector<ProgramBack>* backs) const {
    const PlacedInstruction* behind = nullptr;
    for (size_t at = backs->size(); at-- > 0;) {
      ProgramBack& back = (*backs)[at];
      if (!back.reached) continue;
      const PlacedInstruction& made = section_.instructions[at];
      back.waits = behind != nullptr && !ByTheSameThreads(*behind, made);
      behind = &made;
    }
  }

  void FindResults() {
    tape_.output = frame_.ValueAt(At(source_.placed.output, taped_.output));
    tape_.noise_part = taped_.noise_part;
    int layers = 0;
    for (const PlacedInstruction& made : section_.instructions) {
      const ProgramValue result = frame_.ValueAt(made.result);
      if (made.result.offset == taped_.noise) tape_.noise = result;
      if (IsLayer(made)) tape_.layer = ++layers == 1 ? result : ProgramValue{};
    }
  }
  absl::Status UploadExports() {
    std::vector<ProgramExport> exports;
    for (const program::Export& value : section_.exports)
      exports.push_back({frame_.ValueAt(value.from), static_cast<int32_t>(value.to)});
    tape_.num_exports = static_cast<int32_t>(exports.size());
    DEEPPCR_ASSIGN_OR_RETURN(tape_.exports, memory_.List<ProgramExport>(exports));
    return absl::OkStatus();
  }

  const TapeSource& source_;
  ProgramMemory& memory_;
  const program::Tape taped_;
  const PlacedSection section_;
  const Inputs inputs_;
  const FrameBlocks frame_;
  ProgramTape tape_ = {};
};

}  // namespace

absl::StatusOr<ProgramTape> UploadTape(const TapeSource& source, ProgramMemory* memory) {
  return TapeUploader(source, memory).Run();
}

absl::Status UploadElements(const PlacedInstruction& made, const FrameBlocks& frame,
                            ProgramMemory* memory, ProgramInstruction* packed) {
  std::vector<ProgramValue> operands;
  for (const Place& operand : made.operands) operands.push_back(frame.ValueAt(operand));
  std::vector<ProgramElement> elements;
  for (const program::Element& element : made.instruction->elements)
    elements.push_back({element.operand, static_cast<int32_t>(element.index)});
  DEEPPCR_ASSIGN_OR_RETURN(packed->arranged, memory->List<ProgramValue>(operands));
  DEEPPCR_ASSIGN_OR_RETURN(packed->elements, memory->List<ProgramElement>(elements));
  return absl::OkStatus();
}

}  // namespace deeppcr::cuda
