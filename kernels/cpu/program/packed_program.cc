// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_program.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/program/frame_plan.h"
#include "kernels/cpu/program/joins.h"
#include "kernels/program/evaluate.h"

namespace deeppcr::cpu {
namespace {

using program::Instruction;
using program::OpKind;
using program::Program;
using program::ValueId;

Home HomeOf(uint8_t section) {
  switch (section) {
    case program::kOnNothing:
      return Home::kConstant;
    case program::kOnTime:
      return Home::kTime;
    case program::kOnCondition:
      return Home::kCondition;
    case program::kOnTimeAndCondition:
      return Home::kMixed;
    default:
      return Home::kFrame;
  }
}

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
      : program_(program), num_steps_(num_steps), steps_(steps), limits_(limits) {}

  absl::StatusOr<PackedProgram> Run() {
    FindExports();
    DEEPPCR_RETURN_IF_ERROR(CheckSize());
    DEEPPCR_RETURN_IF_ERROR(PackConstants());
    DEEPPCR_RETURN_IF_ERROR(PackTimeTables());
    DEEPPCR_RETURN_IF_ERROR(first_problem_);
    DEEPPCR_RETURN_IF_ERROR(PackSection(program::kOnCondition, &packed_.condition));
    DEEPPCR_RETURN_IF_ERROR(PackSection(program::kOnTimeAndCondition, &packed_.mixed));
    DEEPPCR_RETURN_IF_ERROR(PackSection(program::kOnState, &packed_.state));
    ChooseParts(CachesOfThisMachine(), packed_.panels);
    return std::move(packed_);
  }

 private:
  // An error comes back to end the packing; but where all are kept, it ends later.
  absl::Status Note(const absl::Status& status) {
    if (first_problem_.ok()) first_problem_ = status;
    return limits_.all_problems == nullptr ? status : limits_.all_problems->Add(status);
  }

  uint8_t SectionAt(ValueId id) const { return SectionOf(program_.at(id).depends); }

  // Gives values that another section reads a place in the row of their own section.
  void FindExports() {
    exports_.assign(program_.values.size(), -1);
    for (const Instruction& instruction : program_.instructions) {
      const uint8_t section = SectionAt(instruction.result);
      for (const ValueId id : ReadInRows(instruction)) {
        const uint8_t from = SectionAt(id);
        if (from == section || exports_[id] >= 0) continue;
        exports_[id] = row_floats_[from];
        row_floats_[from] += PanelRowWidth(program_.at(id).size);
      }
    }
  }

  // A product whose matrix is packed for each step: one that is not evaluated ahead as a whole.
  bool IsPackedProduct(const Instruction& instruction) const {
    return instruction.op == program::Op::kProduct &&
           SectionAt(instruction.result) != program::kOnTime;
  }

  // The bytes are known before any is taken.
  absl::Status CheckSize() {
    if (program_.prediction != program::kNoValue &&
        SectionAt(program_.prediction) != program::kOnState)
      DEEPPCR_RETURN_IF_ERROR(
          Note(InvalidArgument("the prediction of the denoiser does not depend on the state")));
    DEEPPCR_RETURN_IF_ERROR(CheckConditionRows());
    PackedSize floats;
    floats.Add({row_floats_[program::kOnNothing]});
    floats.Add({num_steps_, row_floats_[program::kOnTime]});
    for (const Instruction& instruction : program_.instructions) {
      DEEPPCR_RETURN_IF_ERROR(Note(CheckJump(instruction)));
      AddWeights(instruction, &floats);
    }
    floats.Add({BytesBesideFloats() / static_cast<int64_t>(sizeof(float))});
    return floats.Check(limits_);
  }

  absl::Status CheckConditionRows() {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    const int64_t once = row_floats_[program::kOnCondition] * kFloat;
    const int64_t per_step = row_floats_[program::kOnTimeAndCondition] * kFloat;
    const int64_t bytes = once + num_steps_ * per_step;
    if (bytes <= kMostConditionBytes) return absl::OkStatus();
    return Note(ResourceExhausted("a condition gives ", once, " bytes, and ", per_step,
                                  " for each of ", num_steps_, " steps: ", bytes,
                                  " bytes a sample; ", kMostConditionBytes, " are allowed"));
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

  // No probe passes through a value that jumps, but where a comparison makes it.
  absl::Status CheckJump(const Instruction& instruction) const {
    if (instruction.op != program::Op::kFloor && instruction.op != program::Op::kLookup)
      return absl::OkStatus();
    const program::Value& value = program_.at(instruction.result);
    if (SectionOf(value.depends) != program::kOnState) return absl::OkStatus();
    return absl::UnimplementedError(
        StrCat("a ", program::RowOf(instruction.op).name, " of something that depends on the state",
               value.name.empty() ? "" : StrCat(" (", Quoted(value.name), ")")));
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
    const int64_t floats = row_floats_[program::kOnNothing];
    packed_.constants = AlignedBuffer<float>(floats);
    DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed_.constants.ok(), floats));
    for (size_t i = 0; i < exports_.size(); ++i) {
      const program::Value& value = program_.values[i];
      if (exports_[i] < 0 || value.depends != program::kOnNothing) continue;
      for (size_t k = 0; k < value.constant.size(); ++k)
        packed_.constants[exports_[i] + static_cast<int64_t>(k)] =
            static_cast<float>(value.constant[k]);
    }
    return absl::OkStatus();
  }

  // Evaluates what depends on the time alone, in double.
  absl::Status PackTimeTables() {
    packed_.time_floats = row_floats_[program::kOnTime];
    packed_.time_tables = AlignedBuffer<float>(num_steps_ * packed_.time_floats);
    DEEPPCR_RETURN_IF_ERROR(
        CheckAllocated(packed_.time_tables.ok(), num_steps_ * packed_.time_floats));
    for (const Instruction& instruction : program_.instructions) {
      if (!IsPackedProduct(instruction)) continue;
      DEEPPCR_ASSIGN_OR_RETURN(
          products_[&instruction],
          NewPanels(num_steps_, instruction.linear.rows, instruction.linear.cols));
    }
    program::Evaluation evaluation(program_);
    for (int64_t l = 0; l < num_steps_; ++l) {
      const double time = steps_.empty() ? static_cast<double>(l) : steps_[l].timestep;
      evaluation.Run({.time = time, .step = l}, {}, program::kOnTime, limits_.token);
      if (Fired(limits_.token)) return absl::CancelledError("stopped while tables were made");
      float* row = packed_.time_tables.data() + l * packed_.time_floats;
      for (size_t i = 0; i < exports_.size(); ++i) {
        if (exports_[i] < 0 || program_.values[i].depends != program::kOnTime) continue;
        const auto value = evaluation.at(static_cast<ValueId>(i));
        for (size_t k = 0; k < value.size(); ++k)
          row[exports_[i] + static_cast<int64_t>(k)] = static_cast<float>(value[k]);
        DEEPPCR_RETURN_IF_ERROR(CheckFinite(static_cast<ValueId>(i), evaluation, time));
      }
      for (auto& [instruction, panels] : products_)
        DEEPPCR_RETURN_IF_ERROR(PackMatrix(evaluation, *instruction, l, &panels));
    }
    return absl::OkStatus();
  }

  static bool IsFinite(std::span<const double> value) {
    return std::ranges::all_of(value,
                               [](double x) { return std::isfinite(static_cast<float>(x)); });
  }

  // The value that is not finite though what it is made of is, from which `id` has it.
  ValueId OriginOf(ValueId id, const program::Evaluation& evaluation) const {
    for (auto made = program_.instructions.rbegin(); made != program_.instructions.rend(); ++made) {
      if (made->result != id) continue;
      const auto from = std::ranges::find_if(made->operands, [&](ValueId operand) {
        return program_.at(operand).depends == program::kOnTime &&
               !IsFinite(evaluation.at(operand));
      });
      if (from != made->operands.end()) id = *from;
    }
    return id;
  }

  // Of a value that is not finite, the first step alone is noted.
  absl::Status CheckFinite(ValueId id, const program::Evaluation& evaluation, double time) {
    if (IsFinite(evaluation.at(id)) || !not_finite_.insert(id).second) return absl::OkStatus();
    const ValueId origin = OriginOf(id, evaluation);
    if (origin != id && !not_finite_.insert(origin).second) return absl::OkStatus();
    return Note(InvalidArgument("at ", steps_.empty() ? "layer " : "timestep ", time, " the value ",
                                Quoted(program_.at(origin).name),
                                " of the step program is not finite"));
  }

  // The matrix and the bias of a product, of one step.
  absl::Status PackMatrix(const program::Evaluation& evaluation, const Instruction& product,
                          int64_t step, PackedPanels* panels) {
    const program::LinearLayer& sizes = product.linear;
    const auto matrix = evaluation.at(product.operands[1]);
    const auto bias = product.operands.size() > 2 ? evaluation.at(product.operands[2])
                                                  : std::span<const double>();
    matrix_.resize(matrix.size());
    for (int64_t i = 0; i < sizes.rows; ++i) {
      for (int64_t k = 0; k < sizes.cols; ++k)
        matrix_[i * sizes.cols + k] =
            static_cast<float>(matrix[sizes.transposed ? k * sizes.rows + i : i * sizes.cols + k]);
    }
    bias_.assign(bias.begin(), bias.end());
    for (const std::vector<float>* numbers : {&matrix_, &bias_}) {
      if (!std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); }))
        return InvalidArgument("the matrix or bias ", Quoted(program_.at(product.operands[1]).name),
                               " of layer ", step, " is not finite");
    }
    PackLayer(step, sizes.cols, matrix_, bias_, panels);
    return absl::OkStatus();
  }

  Place PlaceOf(ValueId id, uint8_t section) const {
    const program::Value& value = program_.at(id);
    Place place = {.size = value.size, .width = PanelRowWidth(value.size)};
    const uint8_t from = SectionOf(value.depends);
    place.home = from == section ? Home::kFrame : HomeOf(from);
    place.offset = from == section ? frame_[id] : exports_[id];
    return place;
  }

  absl::Status PackSection(uint8_t section, PackedSection* packed) {
    FramePlan plan;
    frame_.assign(program_.values.size(), -1);
    const std::vector<int64_t> last = LastReads(section);
    TakeInputs(section, &plan);
    for (size_t at = 0; at < program_.instructions.size(); ++at) {
      const Instruction& instruction = program_.instructions[at];
      if (SectionAt(instruction.result) != section) continue;
      const ValueId replaced = ReplacedBy(instruction, section, last, static_cast<int64_t>(at));
      frame_[instruction.result] =
          replaced != program::kNoValue
              ? frame_[replaced]
              : plan.Take(PanelRowWidth(program_.at(instruction.result).size));
      DEEPPCR_ASSIGN_OR_RETURN(PackedInstruction made, Pack(instruction, section, packed));
      packed->instructions.push_back(std::move(made));
      for (const ValueId id : Unique(instruction.operands)) {
        if (id != replaced && SectionAt(id) == section && last[id] == static_cast<int64_t>(at))
          plan.Free(frame_[id]);
      }
    }
    JoinInstructions(program_, section, packed);
    for (size_t i = 0; i < exports_.size(); ++i) {
      const auto id = static_cast<ValueId>(i);
      if (exports_[i] >= 0 && SectionAt(id) == section && section != program::kOnState)
        packed->exports.push_back({PlaceOf(id, section), exports_[i]});
    }
    if (section == program::kOnState) {
      packed_.output = PlaceOf(program_.output, section);
      if (program_.prediction != program::kNoValue)
        packed_.prediction = PlaceOf(program_.prediction, section);
    }
    packed->row_floats = row_floats_[section];
    packed->frame_floats = plan.floats();
    return absl::OkStatus();
  }

  // The operand whose place a result takes, with its tangents: one that nothing reads behind
  // instruction `at`, of an operation whose tangents ask for no operand that moves.
  ValueId ReplacedBy(const Instruction& instruction, uint8_t section,
                     const std::vector<int64_t>& last, int64_t at) const {
    if (instruction.op != program::Op::kAdd && instruction.op != program::Op::kMultiply)
      return program::kNoValue;
    ValueId replaced = program::kNoValue;
    int64_t moving = 0;
    for (const ValueId id : instruction.operands) {
      if (SectionAt(id) != section) continue;
      ++moving;
      if (last[id] == at) replaced = id;
    }
    return instruction.op == program::Op::kAdd || moving == 1 ? replaced : program::kNoValue;
  }

  static std::vector<ValueId> Unique(std::vector<ValueId> ids) {
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  // The instruction of the section that reads a value last; the end for what lives beyond it.
  std::vector<int64_t> LastReads(uint8_t section) const {
    std::vector<int64_t> last(program_.values.size(), -1);
    for (size_t at = 0; at < program_.instructions.size(); ++at) {
      if (SectionAt(program_.instructions[at].result) != section) continue;
      for (const ValueId id : program_.instructions[at].operands)
        last[id] = static_cast<int64_t>(at);
    }
    const auto end = static_cast<int64_t>(program_.instructions.size());
    for (size_t i = 0; i < last.size(); ++i) {
      if (exports_[i] >= 0) last[i] = end;
    }
    for (const ValueId id : {program_.output, program_.prediction, program_.state}) {
      if (id != program::kNoValue) last[id] = end;
    }
    return last;
  }

  void TakeInputs(uint8_t section, FramePlan* plan) {
    const auto take = [&](ValueId id, Place* place) {
      if (id == program::kNoValue || SectionAt(id) != section) return;
      frame_[id] = plan->Take(PanelRowWidth(program_.at(id).size));
      *place = PlaceOf(id, section);
    };
    take(program_.state, &packed_.state_input);
    take(program_.condition, &packed_.condition_input);
    take(program_.label, &packed_.label_input);
  }

  absl::StatusOr<PackedInstruction> Pack(const Instruction& instruction, uint8_t section,
                                         PackedSection* into) {
    const program::OpRow& row = program::RowOf(instruction.op);
    PackedInstruction packed = {
        .op = instruction.op, .kind = row.kind, .part = instruction.part, .ulps = row.ulps};
    for (const ValueId id : ReadInRows(instruction)) {
      packed.operands.push_back(PlaceOf(id, section));
      packed.moves.push_back(packed.operands.back().home == Home::kFrame ? 1 : 0);
      into->widest = std::max(into->widest, packed.operands.back().width);
    }
    packed.result = PlaceOf(instruction.result, section);
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
  PackedProgram packed_;
  std::array<int64_t, 8> row_floats_ = {};  // by section
  std::vector<int64_t> exports_;            // by value: offset in its section's row, or -1
  std::vector<int64_t> frame_;              // by value: offset in the frame being packed
  std::map<int64_t, const uint32_t*> seeds_;
  std::map<const Instruction*, PackedPanels> products_;
  std::vector<float> matrix_, bias_;  // of a product, of one step
  std::set<ValueId> not_finite_;
  absl::Status first_problem_;
};

}  // namespace

uint8_t SectionOf(uint8_t depends) {
  return (depends & program::kOnState) != 0 ? uint8_t{program::kOnState} : depends;
}

std::span<const ValueId> ReadInRows(const Instruction& instruction) {
  const std::span<const ValueId> all = instruction.operands;
  return instruction.op == program::Op::kProduct ? all.first(1) : all;
}

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
