// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_tape.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/base/status_macros.h"

namespace deeppcr::cpu {
namespace {

using program::Instruction;
using program::OpKind;
using program::Program;
using program::ValueId;

// The matrix of a layer, [view.rows, cols] row-major.
std::vector<float> MatrixOf(const PanelView& view, int64_t cols) {
  std::vector<float> matrix(static_cast<size_t>(view.rows * cols));
  for (int64_t i = 0; i < view.rows; ++i) {
    const float* column = view.weights + i / view.panel * view.panel * view.cols + i % view.panel;
    for (int64_t k = 0; k < cols; ++k)
      matrix[static_cast<size_t>(i * cols + k)] = column[k * view.panel];
  }
  return matrix;
}

std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t cols) {
  std::vector<float> transposed(matrix.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < cols; ++k) transposed[k * rows + i] = matrix[i * cols + k];
  return transposed;
}

class TapePacker {
 public:
  TapePacker(const Program& program, const PackedSection& section, uint8_t depends,
             int64_t num_steps)
      : program_(program), section_(section), depends_(depends), num_steps_(num_steps) {}

  absl::StatusOr<PackedTape> Run() {
    tape_.section = section_;
    FindInstructions();
    FindExports();
    PlaceValues();
    DEEPPCR_RETURN_IF_ERROR(PackBack());
    ChooseParts(CachesOfThisMachine(), tape_.panels);
    return std::move(tape_);
  }

 private:
  bool IsHere(ValueId id) const {
    return id != program::kNoValue && program::ClassOf(program_.at(id)) == depends_;
  }

  // The instructions that the section was packed from, in its order.
  void FindInstructions() {
    for (const Instruction& instruction : program_.instructions)
      if (IsHere(instruction.result)) made_from_.push_back(&instruction);
  }

  Place TakePlace(ValueId id) {
    const int64_t size = program_.at(id).size, width = PanelRowWidth(size);
    const Place place = {.offset = floats_, .size = size, .width = width};
    floats_ += width;
    offsets_[static_cast<size_t>(id)] = place.offset;
    return place;
  }

  // Marks the values of the section that later sections read.
  void FindExports() {
    exported_.assign(program_.values.size(), 0);
    if (depends_ == program::kOnState) return;
    for (const Instruction& instruction : program_.instructions) {
      if (IsHere(instruction.result)) continue;
      for (const ValueId id : program::ReadInRows(instruction))
        if (IsHere(id)) exported_[static_cast<size_t>(id)] = 1;
    }
  }

  void PlaceValues() {
    offsets_.assign(program_.values.size(), -1);
    if (IsHere(program_.state)) tape_.state = TakePlace(program_.state);
    if (IsHere(program_.condition)) tape_.condition = TakePlace(program_.condition);
    if (IsHere(program_.label)) tape_.label = TakePlace(program_.label);
    for (const Instruction* instruction : made_from_) TakePlace(instruction->result);
    for (size_t at = 0; at < made_from_.size(); ++at) {
      PackedInstruction& packed = tape_.section.instructions[at];
      packed.together = 1;
      packed.result.offset = OffsetOf(made_from_[at]->result);
      for (size_t k = 0; k < packed.operands.size(); ++k) {
        if (packed.moves[k] != 0) packed.operands[k].offset = OffsetOf(made_from_[at]->operands[k]);
      }
    }
    // The exports stand in the order of their values.
    size_t next = 0;
    for (size_t id = 0; id < program_.values.size() && next < tape_.section.exports.size(); ++id) {
      if (exported_[id] == 0) continue;
      tape_.section.exports[next++].from.offset = offsets_[id];
    }
    for (const PackedInstruction& packed : tape_.section.instructions)
      if (AddsNoise(packed)) tape_.noise = packed.result;
    if (depends_ == program::kOnState)
      tape_.output = {.offset = OffsetOf(program_.output),
                      .size = program_.at(program_.output).size,
                      .width = PanelRowWidth(program_.at(program_.output).size)};
    tape_.section.frame_floats = floats_;
  }

  static bool AddsNoise(const PackedInstruction& packed) {
    return packed.kind == program::OpKind::kReverseStep &&
           (packed.part == StepPart::kState || packed.part == StepPart::kNoise);
  }

  int64_t OffsetOf(ValueId id) const { return offsets_[static_cast<size_t>(id)]; }

  // Goes through the instructions as the backward pass does.
  absl::Status PackBack() {
    std::vector<uint8_t> written = exported_;
    for (const ValueId id : {program_.state, program_.condition, program_.label})
      if (IsHere(id)) written[static_cast<size_t>(id)] = 1;
    if (depends_ == program::kOnState) written[static_cast<size_t>(program_.output)] = 1;
    tape_.back.resize(made_from_.size());
    for (size_t at = made_from_.size(); at-- > 0;) {
      const Instruction& instruction = *made_from_[at];
      BackwardInstruction& back = tape_.back[at];
      back.reached = written[static_cast<size_t>(instruction.result)] != 0;
      // The index of a row is nobody's to change: no cotangent is written.
      const bool gives = instruction.op != program::Op::kLookup;
      for (const ValueId id : program::ReadInRows(instruction)) {
        const bool here = IsHere(id);
        const bool moves = here || (program_.at(id).depends & program::kOnCondition) != 0;
        back.wants.push_back(gives && moves);
        // Rows of other sections hold the sums of several steps.
        back.adds.push_back(!here || written[static_cast<size_t>(id)] != 0);
        if (back.reached && gives && here) written[static_cast<size_t>(id)] = 1;
      }
      if (back.reached && back.wants[0] != 0)
        DEEPPCR_RETURN_IF_ERROR(PackTransposed(tape_.section.instructions[at], &back));
    }
    return absl::OkStatus();
  }

  absl::Status PackTransposed(const PackedInstruction& packed, BackwardInstruction* back) {
    if (packed.layers == nullptr) return absl::OkStatus();
    const int64_t layers = packed.layer_stride == 0 ? 1 : num_steps_;
    const int64_t rows = packed.layers[0].rows, cols = packed.operands[0].size / packed.repeat;
    DEEPPCR_ASSIGN_OR_RETURN(PackedPanels panels, NewPanels(layers, cols, rows));
    for (int64_t l = 0; l < layers; ++l)
      PackLayer(l, rows, Transposed(MatrixOf(packed.layers[l], cols), rows, cols), {}, &panels);
    tape_.panels.push_back(std::move(panels));
    back->transposed = tape_.panels.back().views.data();
    if (packed.repeat > 1)
      tape_.section.gathered_floats =
          std::max(tape_.section.gathered_floats, back->transposed->cols + back->transposed->width);
    return absl::OkStatus();
  }

  const Program& program_;
  const PackedSection& section_;
  const uint8_t depends_;
  const int64_t num_steps_;
  PackedTape tape_;
  std::vector<const Instruction*> made_from_;
  std::vector<uint8_t> exported_;  // by value
  std::vector<int64_t> offsets_;   // by value
  int64_t floats_ = 0;
};

}  // namespace

int64_t TransposedBytes(const PackedSection& section, int64_t num_steps) {
  int64_t floats = 0;
  for (const PackedInstruction& instruction : section.instructions) {
    if (instruction.layers == nullptr) continue;
    const int64_t cols = instruction.operands[0].size / instruction.repeat;
    floats += (instruction.layer_stride == 0 ? 1 : num_steps) *
              PanelFloats(cols, instruction.layers->rows);
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

int64_t PackedTape::memory_bytes() const {
  int64_t bytes = 0;
  for (const PackedPanels& layer : panels) bytes += layer.memory_bytes();
  return bytes;
}

absl::StatusOr<PackedTape> PackTape(const Program& program, const PackedSection& section,
                                    uint8_t depends, int64_t num_steps) {
  return TapePacker(program, section, depends, num_steps).Run();
}

}  // namespace deeppcr::cpu
