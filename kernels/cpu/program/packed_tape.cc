// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_tape.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/program/tape.h"

namespace deeppcr::cpu {
namespace {

using program::Program;
using program::TapedInstruction;
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
      : program_(program),
        taped_(program::MakeTape(program, depends, &PanelRowWidth)),
        num_steps_(num_steps) {
    tape_.section = section;
  }

  absl::StatusOr<PackedTape> Run() {
    PlaceValues();
    DEEPPCR_RETURN_IF_ERROR(PackBack());
    ChooseParts(CachesOfThisMachine(), tape_.panels);
    return std::move(tape_);
  }

 private:
  // The place of a value that the program has, in a section that has it.
  Place PlaceOf(ValueId id, int64_t offset) const {
    if (offset < 0) return {};
    const int64_t size = program_.at(id).size;
    return {.offset = offset, .size = size, .width = PanelRowWidth(size)};
  }

  void PlaceValues() {
    tape_.state = PlaceOf(program_.state, taped_.state);
    tape_.condition = PlaceOf(program_.condition, taped_.condition);
    tape_.label = PlaceOf(program_.label, taped_.label);
    tape_.output = PlaceOf(program_.output, taped_.output);
    for (size_t at = 0; at < taped_.instructions.size(); ++at) {
      const TapedInstruction& taped = taped_.instructions[at];
      PackedInstruction& packed = tape_.section.instructions[at];
      packed.together = 1;
      packed.activated = false;
      packed.result.offset = taped.result;
      for (size_t k = 0; k < packed.operands.size(); ++k)
        if (taped.operands[k] >= 0) packed.operands[k].offset = taped.operands[k];
      if (taped.result == taped_.noise) tape_.noise = packed.result;
    }
    for (size_t e = 0; e < tape_.section.exports.size(); ++e)
      tape_.section.exports[e].from.offset = taped_.exports[e];
    tape_.section.frame_floats = taped_.floats;
  }

  absl::Status PackBack() {
    tape_.back.resize(taped_.instructions.size());
    for (size_t at = taped_.instructions.size(); at-- > 0;) {
      const TapedInstruction& taped = taped_.instructions[at];
      BackwardInstruction& back = tape_.back[at];
      back = {.adds = taped.adds, .wants = taped.wants, .reached = taped.reached};
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
  const program::Tape taped_;
  const int64_t num_steps_;
  PackedTape tape_;
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
