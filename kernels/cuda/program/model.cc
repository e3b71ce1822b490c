// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/frame_blocks.h"
#include "kernels/cuda/program/grid_plan.h"
#include "kernels/cuda/program/tape.h"
#include "kernels/cuda/stack/stack_model.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/program/dependence.h"
#include "kernels/program/time_tables.h"

namespace deeppcr::cuda {
namespace {

using program::Op;
using program::OpKind;
using program::PlacedInstruction;
using program::PlacedSection;

// Rounding of an operation on a GPU, where some functions of CUDA's library round more than those
// that OpRow speaks of: twice the ulps that its documentation states for the whole range.
float UlpsOf(Op op) {
  switch (op) {
    case Op::kSin:
    case Op::kCos:
    case Op::kAtan:
    case Op::kErf:
      return 4;
    case Op::kPower:
      return 8;
    case Op::kGelu:
      return 10;  // erfcf: 4 ulps
    default:
      return program::RowOf(op).ulps;
  }
}

absl::Status TooLarge(std::string_view what) {
  return absl::UnimplementedError(StrCat("a block of this GPU has no memory for the values of ",
                                         what,
                                         " of the step program; --backend cpu can run this model"));
}

}  // namespace

// Uploads the program of a model.
class ProgramModel::Uploader {
 public:
  Uploader(Device& device, const program::Program& program, std::span<const ReverseStep> steps,
           const PackingLimits& limits, ProgramCompiler* compiler, Use use, ProgramModel* model)
      : device_(device),
        compiler_(compiler),
        program_(program),
        num_steps_(model->shape_.num_steps),
        steps_(steps),
        limits_(limits),
        use_(use),
        problems_(limits),
        placed_(program::PlaceValues(program, &ValueWidth)),
        model_(*model) {
    model->memory_ = ProgramMemory(device);
  }

  absl::Status Run() {
    DEEPPCR_RETURN_IF_ERROR(CheckSizes());
    DEEPPCR_RETURN_IF_ERROR(UploadRows());
    DEEPPCR_RETURN_IF_ERROR(problems_.first());
    ProgramView& view = model_.view_;
    const program::Place of_state[] = {placed_.state_input};
    const FrameBlocks frame(placed_.state, of_state);
    DEEPPCR_ASSIGN_OR_RETURN(view.section,
                             UploadSection(placed_.state, frame, "the step", use_ == Use::kAll));
    view.state = frame.ValueAt(placed_.state_input);
    view.next = frame.ValueAt(placed_.output);
    view.prediction = frame.ValueAt(placed_.prediction);
    view.condition_floats = static_cast<int32_t>(placed_.condition.row_floats);
    view.mixed_floats = static_cast<int32_t>(placed_.mixed.row_floats);
    model_.rows_per_step_ = StepRows(view, device_.limits());
    const size_t coarse = model_.shape_.coarse_guess ? CoarseBytes(view) : 0;
    const bool fits = model_.rows_per_step_ > 0 && coarse <= device_.limits().shared_bytes;
    if (use_ == Use::kAll && !fits) return TooLarge("a step");
    if (use_ == Use::kAll) model_.grid_ = PlanGrid(view, packed_, device_.limits());
    DEEPPCR_RETURN_IF_ERROR(Compile());
    DEEPPCR_RETURN_IF_ERROR(Tape(placed_.state, program::kOnState, &model_.back_.state));
    DEEPPCR_RETURN_IF_ERROR(UploadCondition(placed_.condition, false, &model_.condition_));
    // The way back to a vector that each sample brings.
    const bool vector = placed_.condition_input.width > 0 && placed_.condition.row_floats > 0;
    if (vector)
      DEEPPCR_RETURN_IF_ERROR(
          Tape(placed_.condition, program::kOnCondition, &model_.back_.condition));
    DEEPPCR_RETURN_IF_ERROR(UploadCondition(placed_.mixed, true, &model_.mixed_));
    if (vector && placed_.mixed.row_floats > 0)
      DEEPPCR_RETURN_IF_ERROR(
          Tape(placed_.mixed, program::kOnTimeAndCondition, &model_.back_.mixed));
    if (limits_.backward) model_.back_.process = view;
    return absl::OkStatus();
  }

 private:
  // The bytes are known before any is taken.
  absl::Status CheckSizes() {
    DEEPPCR_RETURN_IF_ERROR(program::CheckPlaced(program_, placed_, num_steps_, kMostConditionBytes,
                                                 problems_.Notes()));
    double floats = static_cast<double>(placed_.constant_floats) +
                    static_cast<double>(num_steps_) * static_cast<double>(placed_.time_floats);
    for (const program::Instruction& made : program_.instructions) {
      if (program::ClassOf(program_.at(made.result)) == program::kOnTime) continue;
      const double layers = made.op == Op::kProduct ? static_cast<double>(num_steps_) : 1;
      const bool weights = made.op == Op::kProduct || made.op == Op::kLinear;
      if (weights)
        floats += (limits_.backward ? 2 : 1) * layers *
                  static_cast<double>(ValueWidth(made.linear.rows) + 2) *
                  static_cast<double>(ValueWidth(made.linear.cols) + 2);
      if (made.op == Op::kLookup)
        floats += static_cast<double>(made.linear.rows) * static_cast<double>(made.linear.cols);
      floats += (limits_.backward ? 4 : 2) * static_cast<double>(made.elements.size());
    }
    const double bytes = floats * sizeof(float);
    if (bytes > 0x1p62)
      return ResourceExhausted("packed, the model takes more bytes than 64 bits count");
    DEEPPCR_RETURN_IF_ERROR(CheckPackedBytes(static_cast<int64_t>(bytes), limits_));
    for (const int64_t row : {placed_.constant_floats, placed_.time_floats,
                              placed_.condition.row_floats, placed_.mixed.row_floats})
      if (row > kMostInt32) return TooLarge("a row");
    return absl::OkStatus();
  }

  // Constants, what depends on the time, and the matrices of products.
  absl::Status UploadRows() {
    std::vector<float> constants(static_cast<size_t>(placed_.constant_floats));
    program::FillConstants(program_, placed_, constants.data());
    DEEPPCR_ASSIGN_OR_RETURN(model_.view_.constants, model_.memory_.List<float>(constants));
    std::vector<float> times(static_cast<size_t>(num_steps_ * placed_.time_floats));
    DEEPPCR_RETURN_IF_ERROR(program::MakeTimeTables(
        program_, placed_, num_steps_, steps_, limits_.token, problems_.Notes(), times.data(),
        [this](const program::StepMatrix& made) {
          Product& product = products_[made.product];
          product.weights.insert(product.weights.end(), made.weight.begin(), made.weight.end());
          product.biases.insert(product.biases.end(), made.bias.begin(), made.bias.end());
        }));
    model_.view_.time_floats = static_cast<int32_t>(placed_.time_floats);
    DEEPPCR_ASSIGN_OR_RETURN(model_.view_.times, model_.memory_.List<float>(times));
    return absl::OkStatus();
  }

  // Compiles the instructions that were packed last, those of the step. What a condition gives is
  // made once a sample, and interpreted.
  absl::Status Compile() {
    if (compiler_ == nullptr) return absl::OkStatus();
    const KernelsWanted wanted = {.rows = model_.rows_per_step_,
                                  .clusters = device_.limits().max_cluster_blocks > 1,
                                  .grid = model_.grid_.shape.blocks > 0,
                                  .guesses = model_.shape_.coarse_guess};
    DEEPPCR_ASSIGN_OR_RETURN(model_.code_, compiler_->KernelsOf(packed_, wanted, limits_));
    if (model_.code_ != nullptr) model_.view_.kernels = &model_.code_->kernels();
    return absl::OkStatus();
  }

  // `made`: blocks make the values, in their shared memory.
  absl::StatusOr<ProgramSection> UploadSection(const PlacedSection& placed,
                                               const FrameBlocks& frame, std::string_view what,
                                               bool made) {
    ProgramSection section = {.widest = kPanelCols, .after = ProgramWait::kBlock};
    // Beyond this nothing overflows: a value of a frame is no wider than the frame.
    const int64_t most =
        made ? static_cast<int64_t>(device_.limits().shared_bytes / sizeof(float)) : kMostInt32;
    if (frame.cols() + frame.count() * kBlockGap > most) return TooLarge(what);
    section.frame_cols = static_cast<int32_t>(frame.cols());
    section.frame_blocks = static_cast<int32_t>(frame.count());
    packed_.clear();
    const PlacedInstruction* before = nullptr;
    for (const PlacedInstruction& placed_one : placed.instructions) {
      DEEPPCR_ASSIGN_OR_RETURN(ProgramInstruction packed, Pack(placed_one, frame));
      packed.wait = WaitBetween(before, placed_one);
      packed_.push_back(packed);
      before = &placed_one;
      const int64_t rows =
          IsLayer(placed_one) ? placed_one.instruction->linear.rows : placed_one.result.size / 4;
      section.widest = std::max(section.widest, PanelWidth(rows));
    }
    if (before != nullptr && IsLayer(*before)) section.after = ProgramWait::kNone;
    section.count = static_cast<int32_t>(packed_.size());
    DEEPPCR_ASSIGN_OR_RETURN(section.instructions,
                             model_.memory_.List<ProgramInstruction>(packed_));
    return section;
  }

  absl::StatusOr<ProgramInstruction> Pack(const PlacedInstruction& made, const FrameBlocks& frame) {
    const program::Instruction& instruction = *made.instruction;
    ProgramInstruction packed = {.op = instruction.op,
                                 .kind = program::RowOf(instruction.op).kind,
                                 .part = instruction.part,
                                 .gathers = Gathers(made),
                                 .ulps = UlpsOf(instruction.op),
                                 .epsilon = static_cast<float>(instruction.epsilon),
                                 .result = frame.ValueAt(made.result),
                                 .outer = static_cast<int32_t>(instruction.axis.outer),
                                 .length = static_cast<int32_t>(instruction.axis.length),
                                 .inner = static_cast<int32_t>(instruction.axis.inner)};
    if (packed.kind == OpKind::kArrange) {
      DEEPPCR_RETURN_IF_ERROR(UploadElements(made, frame, &model_.memory_, &packed));
      return packed;
    }
    for (const program::Place& operand : made.operands)
      packed.operands[packed.num_operands++] = frame.ValueAt(operand);
    if (IsLayer(made)) DEEPPCR_RETURN_IF_ERROR(PackLayer(instruction, frame, &packed));
    if (packed.kind == OpKind::kLookup) {
      packed.rows = static_cast<int32_t>(instruction.linear.rows);
      DEEPPCR_ASSIGN_OR_RETURN(packed.table,
                               model_.memory_.List<float>(*instruction.linear.weight));
    }
    return packed;
  }

  // The matrices of a layer, step by step where it is a product.
  std::span<const float> WeightsOf(const program::Instruction& layer) const {
    if (layer.op == Op::kProduct) return products_.at(&layer).weights;
    return *layer.linear.weight;
  }
  absl::Status PackLayer(const program::Instruction& instruction, const FrameBlocks& frame,
                         ProgramInstruction* packed) {
    const program::LinearLayer& layer = instruction.linear;
    std::span<const float> biases;
    int64_t layers = 1;
    if (instruction.op == Op::kProduct) {
      biases = products_.at(&instruction).biases;
      layers = num_steps_;
    } else if (layer.bias != nullptr) {
      biases = *layer.bias;
    }
    DEEPPCR_ASSIGN_OR_RETURN(packed->layer, model_.memory_.Panels(layers, layer.rows, layer.cols,
                                                                  WeightsOf(instruction), biases));
    packed->layer_stride = layers > 1 ? 1 : 0;
    packed->repeat = static_cast<int32_t>(layer.repeat);
    packed->inputs = static_cast<int32_t>(layer.cols);
    packed->outputs = static_cast<int32_t>(layer.rows);
    packed->long_sum = RoundingOfLongSum(layer.cols);
    packed->drift = RoundingOfDrift(layer.cols);
    for (int i = 0; i < 2 && packed->gathers; ++i)
      packed->gathered[i] = frame.GatheredAt(i, layer.cols);
    return absl::OkStatus();
  }

  // Uploads the tape of the section that was packed last, if the way back is wanted.
  absl::Status Tape(const PlacedSection& placed, uint8_t depends, ProgramTape* tape) {
    if (!limits_.backward) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(
        *tape,
        UploadTape(
            {.program = program_,
             .placed = placed_,
             .section = placed,
             .depends = depends,
             .packed = packed_,
             .weights_of = [this](const program::Instruction& layer) { return WeightsOf(layer); }},
            &model_.memory_));
    return absl::OkStatus();
  }

  absl::Status UploadCondition(const PlacedSection& placed, bool per_step, ConditionArgs* args) {
    if (placed.row_floats == 0) return absl::OkStatus();
    const program::Place none, inputs[] = {per_step ? none : placed_.condition_input,
                                           per_step ? none : placed_.label_input};
    const FrameBlocks frame(placed, inputs);
    DEEPPCR_ASSIGN_OR_RETURN(args->section, UploadSection(placed, frame, "a condition", true));
    std::vector<ProgramExport> exports;
    for (const program::Export& value : placed.exports)
      exports.push_back({frame.ValueAt(value.from), static_cast<int32_t>(value.to)});
    args->num_exports = static_cast<int32_t>(exports.size());
    DEEPPCR_ASSIGN_OR_RETURN(args->exports, model_.memory_.List<ProgramExport>(exports));
    args->condition = frame.ValueAt(inputs[0]);
    args->label = frame.ValueAt(inputs[1]);
    args->per_step = per_step;
    return absl::OkStatus();
  }

  // The matrices and biases of a product, step by step.
  struct Product {
    std::vector<float> weights, biases;
  };

  Device& device_;
  ProgramCompiler* const compiler_;
  const program::Program& program_;
  const int64_t num_steps_;
  const std::span<const ReverseStep> steps_;
  const PackingLimits& limits_;
  const Use use_;
  PackingProblems problems_;
  const program::Placement placed_;
  std::map<const program::Instruction*, Product> products_;
  std::vector<ProgramInstruction> packed_;  // of the section that was uploaded last
  ProgramModel& model_;
};

absl::Status ProgramModel::UploadSampler(Device& device, const DiffusionProgramSpec& spec) {
  std::vector<ReverseCoefficients> coefficients;
  std::vector<HoldCoefficients> holds;
  std::vector<MemoryHold> memory_holds;
  const bool in_parts = spec.form != SamplerForm{};
  for (const ReverseStep& step : spec.steps) {
    holds.push_back(HoldOf(step));
    if (spec.form.carries) memory_holds.push_back(MemoryHoldOf(step));
    if (!in_parts) coefficients.push_back(ToFloat(step));
    for (int part = 0; part < kNumStepParts && in_parts; ++part)
      coefficients.push_back(ToFloat(PartOf(step, static_cast<StepPart>(part))));
  }
  DEEPPCR_ASSIGN_OR_RETURN(coefficients_,
                           DeviceBuffer<ReverseCoefficients>::Of(device, coefficients));
  DEEPPCR_ASSIGN_OR_RETURN(holds_, DeviceBuffer<HoldCoefficients>::Of(device, holds));
  DEEPPCR_ASSIGN_OR_RETURN(memory_holds_, DeviceBuffer<MemoryHold>::Of(device, memory_holds));
  initial_scale_ = spec.initial_scale;
  view_.clip_range = static_cast<float>(spec.clip_range);
  view_.sample_dim = static_cast<int32_t>(spec.state_dim);
  view_.noise_scale = spec.form.noise_scale;
  view_.parts = in_parts ? kNumStepParts : 1;
  view_.coefficients = coefficients_.data();
  view_.holds = holds_.data();
  view_.memory_holds = memory_holds_.data();
  return absl::OkStatus();
}

absl::StatusOr<ProgramModel> ProgramModel::Upload(Device& device, const DiffusionProgramSpec& spec,
                                                  const PackingLimits& limits,
                                                  ProgramCompiler* compiler, Use use) {
  ProgramModel model;
  model.SetShape(ShapeOf(spec));
  DEEPPCR_RETURN_IF_ERROR(CheckStateDim(model.shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(model.UploadSampler(device, spec));
  DEEPPCR_RETURN_IF_ERROR(
      Uploader(device, *spec.program, spec.steps, limits, compiler, use, &model).Run());
  DEEPPCR_ASSIGN_OR_RETURN(model.decode_,
                           DeviceChain::Upload(device, spec.state_dim, spec.decoder));
  return model;
}

absl::StatusOr<ProgramModel> ProgramModel::Upload(Device& device, const StackProgramSpec& spec,
                                                  const PackingLimits& limits,
                                                  ProgramCompiler* compiler, Use use) {
  ProgramModel model;
  model.SetShape(ShapeOf(spec));
  DEEPPCR_RETURN_IF_ERROR(CheckStateDim(model.shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(Uploader(device, *spec.program, {}, limits, compiler, use, &model).Run());
  DEEPPCR_ASSIGN_OR_RETURN(model.encode_,
                           DeviceChain::Upload(device, spec.input_dim(), {&spec.encode, 1}));
  DEEPPCR_ASSIGN_OR_RETURN(model.decode_,
                           DeviceChain::Upload(device, spec.state_dim, {&spec.decode, 1}));
  return model;
}

void ProgramModel::SetShape(const SystemShape& shape) {
  shape_ = shape;
  view_.num_steps = shape.num_steps;
  view_.state_dim = static_cast<int32_t>(shape.state_dim);
  view_.width = shape.state_dim <= kMaxWarpStateDim ? WarpWidth(shape.state_dim)
                                                    : PanelWidth(shape.state_dim);
}

absl::Status ProgramModel::SetGuess(Device& device, const AffineGuess& guess) {
  const std::vector<float> map = Padded(guess.coefficients, shape_.state_dim, width());
  DEEPPCR_ASSIGN_OR_RETURN(map_, DeviceBuffer<float>::Of(device, map));
  guess_ = {.states = nullptr, .map = map_.data(), .stride = guess.stride, .count = guess.count};
  return absl::OkStatus();
}

int64_t ProgramModel::memory_bytes() const {
  return map_.bytes() + memory_.bytes() + encode_.memory_bytes() + decode_.memory_bytes() +
         coefficients_.bytes() + holds_.bytes() + memory_holds_.bytes();
}

}  // namespace deeppcr::cuda
