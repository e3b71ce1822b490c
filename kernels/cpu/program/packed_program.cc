// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/program/joins.h"
#include "kernels/program/dependence.h"
#include "kernels/program/time_tables.h"

namespace deeppcr::cpu {
namespace {

using program::Instruction;
using program::OpKind;
using program::Program;
using program::ValueId;

// Floats that are packed, as long as 64 bits hold their bytes.
class PackedSize {
 public:
  void Add(std::initializer_list<int64_t> shape) {
    const absl::StatusOr<int64_t> product = CheckedProduct(shape);
    fits_ = fits_ && product.ok() && *product <= kMost - floats_;
    if (fits_) floats_ += *product;
  }
  absl::Status Check(const PackingLimits& limits) const {
    if (fits_) return CheckPackedFloats(floats_, limits);
    return ResourceExhausted("packed, the model takes more bytes than 64 bits count");
  }

 private:
  static constexpr int64_t kMost = INT64_MAX / int64_t{sizeof(float)};
  int64_t floats_ = 0;
  bool fits_ = true;
};

class Packer {
 public:
  Packer(const Program& program, int64_t num_steps, std::span<const ReverseStep> steps,
         const PackingLimits& limits)
      : program_(program),
        num_steps_(num_steps),
        steps_(steps),
        limits_(limits),
        placed_(program::PlaceValues(program, PanelRowWidth)),
        problems_(limits) {}

  absl::StatusOr<PackedProgram> Run() {
    DEEPPCR_RETURN_IF_ERROR(CheckSize());
    DEEPPCR_RETURN_IF_ERROR(PackConstants());
    DEEPPCR_RETURN_IF_ERROR(PackTimeTables());
    DEEPPCR_RETURN_IF_ERROR(problems_.first());
    DEEPPCR_RETURN_IF_ERROR(
        PackSection(program::kOnCondition, placed_.condition, &packed_.condition));
    DEEPPCR_RETURN_IF_ERROR(
        PackSection(program::kOnTimeAndCondition, placed_.mixed, &packed_.mixed));
    DEEPPCR_RETURN_IF_ERROR(PackSection(program::kOnState, placed_.state, &packed_.state));
    packed_.state_input = placed_.state_input;
    packed_.condition_input = placed_.condition_input;
    packed_.label_input = placed_.label_input;
    packed_.prediction = placed_.prediction;
    packed_.output = placed_.output;
    ChooseParts(CachesOfThisMachine(), packed_.panels);
    return std::move(packed_);
  }

 private:
  int SectionAt(ValueId id) const { return program::ClassOf(program_.at(id)); }

  // The bytes are known before any is taken.
  absl::Status CheckSize() {
    DEEPPCR_RETURN_IF_ERROR(program::CheckPlaced(program_, placed_, num_steps_, kMostConditionBytes,
                                                 problems_.Notes()));
    PackedSize floats;
    floats.Add({placed_.constant_floats});
    floats.Add({num_steps_, placed_.time_floats});
    for (const Instruction& instruction : program_.instructions) AddWeights(instruction, &floats);
    floats.Add({BytesBesideFloats() / static_cast<int64_t>(sizeof(float))});
    return floats.Check(limits_);
  }

  // Of an instruction's matrices or table; what makes values of the time is not packed.
  void AddWeights(const Instruction& instruction, PackedSize* floats) const {
    const program::LinearLayer& sizes = instruction.linear;
    if (SectionAt(instruction.result) == program::kOnTime) return;
    if (instruction.op == program::Op::kProduct)
      floats->Add({num_steps_, PanelFloats(sizes.rows, sizes.cols)});
    if (instruction.op == program::Op::kLinear) floats->Add({PanelFloats(sizes.rows, sizes.cols)});
    if (instruction.op == program::Op::kLookup)
      floats->Add({sizes.rows, PanelRowWidth(sizes.cols)});
  }

  // Of the runs of arrangements, and of the seeds of probes, which values of one width share.
  int64_t BytesBesideFloats() const {
    std::set<int64_t> widths;
    int64_t runs = 0;
    for (const Instruction& instruction : program_.instructions) {
      if (SectionAt(instruction.result) == program::kOnTime) continue;
      widths.insert(PanelRowWidth(program_.at(instruction.result).size));
      ForRuns(instruction.elements, [&](const ElementRun&) { ++runs; });
    }
    int64_t seeds = 0;
    for (const int64_t width : widths) seeds += width * kNumProbes;
    return runs * static_cast<int64_t>(sizeof(ElementRun)) +
           seeds * static_cast<int64_t>(sizeof(uint32_t));
  }

  absl::Status PackConstants() {
    const int64_t floats = placed_.constant_floats;
    packed_.constants = AlignedBuffer<float>(floats);
    DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed_.constants.ok(), floats));
    program::FillConstants(program_, placed_, packed_.constants.data());
    return absl::OkStatus();
  }

  absl::Status PackTimeTables() {
    const int64_t floats = num_steps_ * placed_.time_floats;
    packed_.time_floats = placed_.time_floats;
    packed_.time_tables = AlignedBuffer<float>(floats);
    DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed_.time_tables.ok(), floats));
    for (const Instruction& instruction : program_.instructions) {
      if (!program::IsPackedProduct(program_, instruction)) continue;
      DEEPPCR_ASSIGN_OR_RETURN(
          products_[&instruction],
          NewPanels(num_steps_, instruction.linear.rows, instruction.linear.cols));
    }
    return program::MakeTimeTables(program_, placed_, num_steps_, steps_, limits_.token,
                                   problems_.Notes(), packed_.time_tables.data(),
                                   [this](const program::StepMatrix& made) {
                                     PackLayer(made.step, made.product->linear.cols, made.weight,
                                               made.bias, &products_.at(made.product));
                                   });
  }

  absl::Status PackSection(int section, const program::PlacedSection& placed,
                           PackedSection* packed) {
    for (const program::PlacedInstruction& instruction : placed.instructions) {
      DEEPPCR_ASSIGN_OR_RETURN(PackedInstruction made, Pack(instruction, packed));
      packed->instructions.push_back(std::move(made));
    }
    JoinInstructions(program_, section, packed);
    packed->exports = placed.exports;
    packed->row_floats = placed.row_floats;
    packed->frame_floats = placed.frame_floats;
    return absl::OkStatus();
  }

  absl::StatusOr<PackedInstruction> Pack(const program::PlacedInstruction& placed,
                                         PackedSection* into) {
    const Instruction& instruction = *placed.instruction;
    const program::OpRow& row = program::RowOf(instruction.op);
    PackedInstruction packed = {
        .op = instruction.op, .kind = row.kind, .part = instruction.part, .ulps = row.ulps};
    packed.operands = placed.operands;
    for (const Place& operand : placed.operands) {
      packed.moves.push_back(operand.home == Home::kFrame ? 1 : 0);
      into->widest = std::max(into->widest, operand.width);
    }
    packed.result = placed.result;
    into->widest = std::max(into->widest, packed.result.width);
    packed.axis = instruction.axis;
    packed.epsilon = static_cast<float>(instruction.epsilon);
    packed.repeat = instruction.linear.repeat;
    if (instruction.op == program::Op::kLinear) {
      DEEPPCR_RETURN_IF_ERROR(PackLinear(instruction.linear, &packed));
    } else if (instruction.op == program::Op::kProduct) {
      packed_.panels.push_back(std::move(products_.at(&instruction)));
      packed.layers = packed_.panels.back().views.data();
      packed.layer_stride = 1;
    } else if (instruction.op == program::Op::kLookup) {
      DEEPPCR_RETURN_IF_ERROR(PackTable(instruction.linear, &packed));
    } else if (instruction.op == program::Op::kArrange) {
      packed.runs = RunsOf(instruction.elements);
    }
    if (packed.layers != nullptr && packed.repeat > 1)
      into->gathered_floats =
          std::max(into->gathered_floats, packed.layers->cols + packed.layers->width);
    if (row.kind == OpKind::kAlongAxis) {
      packed.moments = into->moment_floats;
      into->moment_floats += 2 * instruction.axis.outer * instruction.axis.inner;
    }
    DEEPPCR_ASSIGN_OR_RETURN(packed.seeds, SeedsOf(packed.result.width));
    return packed;
  }

  absl::Status PackLinear(const program::LinearLayer& layer, PackedInstruction* packed) {
    std::span<const float> bias;
    if (layer.bias != nullptr) bias = *layer.bias;
    DEEPPCR_ASSIGN_OR_RETURN(PackedPanels panels,
                             PackPanels(1, layer.rows, layer.cols, *layer.weight, bias));
    packed_.panels.push_back(std::move(panels));
    packed->layers = packed_.panels.back().views.data();
    return absl::OkStatus();
  }

  absl::Status PackTable(const program::LinearLayer& table, PackedInstruction* packed) {
    const int64_t width = PanelRowWidth(table.cols);
    AlignedBuffer<float> rows(table.rows * width);
    DEEPPCR_RETURN_IF_ERROR(CheckAllocated(rows.ok(), table.rows * width));
    for (int64_t r = 0; r < table.rows; ++r)
      std::copy_n(table.weight->data() + r * table.cols, table.cols, rows.data() + r * width);
    packed->table = rows.data();
    packed->rows = table.rows;
    packed_.tables.push_back(std::move(rows));
    return absl::OkStatus();
  }

  // Calls take(run) for every run of elements.
  template <class Take>
  static void ForRuns(const std::vector<program::Element>& elements, const Take& take) {
    ElementRun run = {.count = 0};
    for (size_t i = 0; i < elements.size(); ++i) {
      const program::Element& element = elements[i];
      if (run.count > 0 && run.operand == element.operand) {
        const bool next =
            element.index == run.from + run.count && (run.count == 1 || !run.repeated);
        const bool again = element.index == run.from && (run.count == 1 || run.repeated);
        if (next || again) {
          run.repeated = again;
          ++run.count;
          continue;
        }
      }
      if (run.count > 0) take(run);
      run = {element.operand, element.index, static_cast<int64_t>(i), 1, false};
    }
    if (run.count > 0) take(run);
  }

  static std::vector<ElementRun> RunsOf(const std::vector<program::Element>& elements) {
    std::vector<ElementRun> runs;
    ForRuns(elements, [&](const ElementRun& run) { runs.push_back(run); });
    runs.shrink_to_fit();
    return runs;
  }

  absl::StatusOr<const uint32_t*> SeedsOf(int64_t width) {
    const auto found = seeds_.find(width);
    if (found != seeds_.end()) return found->second;
    AlignedBuffer<uint32_t> seeds = ProbeSeeds(width);
    DEEPPCR_RETURN_IF_ERROR(CheckAllocated(seeds.ok(), width * kNumProbes));
    seeds_[width] = seeds.data();
    packed_.seeds.push_back(std::move(seeds));
    return seeds_[width];
  }

  const Program& program_;
  const int64_t num_steps_;
  const std::span<const ReverseStep> steps_;
  const PackingLimits& limits_;
  const program::Placement placed_;
  PackedProgram packed_;
  std::map<int64_t, const uint32_t*> seeds_;
  std::map<const Instruction*, PackedPanels> products_;
  PackingProblems problems_;
};

}  // namespace

int64_t PackedProgram::memory_bytes() const {
  int64_t bytes = (constants.size() + time_tables.size()) * static_cast<int64_t>(sizeof(float));
  for (const PackedPanels& layer : panels) bytes += layer.memory_bytes();
  for (const auto& table : tables) bytes += table.size() * static_cast<int64_t>(sizeof(float));
  for (const auto& seed : seeds) bytes += seed.size() * static_cast<int64_t>(sizeof(uint32_t));
  for (const PackedSection* section : {&condition, &mixed, &state}) {
    for (const PackedInstruction& instruction : section->instructions)
      bytes += std::ssize(instruction.runs) * static_cast<int64_t>(sizeof(ElementRun));
  }
  return bytes;
}

void PackedProgram::ForgetConditions() {
  for (PackedSection* section : {&condition, &mixed}) {
    for (const PackedInstruction& instruction : section->instructions) {
      std::erase_if(panels, [&](const PackedPanels& layer) {
        return instruction.layers != nullptr && layer.views.data() == instruction.layers;
      });
      std::erase_if(tables, [&](const AlignedBuffer<float>& table) {
        return instruction.table != nullptr && table.data() == instruction.table;
      });
    }
    *section = {.row_floats = section->row_floats};
  }
}

absl::StatusOr<PackedProgram> PackProgram(const Program& program, int64_t num_steps,
                                          std::span<const ReverseStep> steps,
                                          const PackingLimits& limits) {
  return Packer(program, num_steps, steps, limits).Run();
}

}  // namespace deeppcr::cpu
