// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_STEP_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_STEP_H_

// The instructions of a section of a step program, by a team of threads (team.h): every solver
// takes its states through this code, so that states agree bit for bit. The state may bring tangent
// vectors along, probes that pick up the rounding and columns of the Jacobian, which change nothing
// about its bits.
//
// Every block of a team has a frame of its own. The rows of a layer are dealt out to the warps of
// the team; everything else a block does for itself. A layer ends when all blocks have its result.

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/program/element_step.h"
#include "kernels/cuda/program/frame.h"
#include "kernels/cuda/program/line_step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// The barrier calls of a section.
enum ProgramSite : int {
  kBeforeInstruction = 56,  // beyond those of the kernels that make the steps
  kBeforeTeamInstruction,
  kAfterGathering,
  kAfterProduct,
  kAfterState,
  kNumProgramSites,
};

// Instructions as they lie in memory.
struct Interpreted {
  // True where there may be instructions of this kind, of this operation, of an operation on
  // elements with as many operands, or of any other operation than these.
  static constexpr bool Has(program::OpKind) { return true; }
  static constexpr bool Has(program::Op) { return true; }
  static constexpr bool HasOfOperands(int) { return true; }
  // The operation, as a FixedOp where it is known.
  DEEPPCR_DEVICE static program::Op OpOf(const ProgramInstruction& instruction) {
    return instruction.op;
  }
  template <class... Ops>
  static constexpr bool HasBeside(Ops...) {
    return true;
  }

  template <class Runner>
  DEEPPCR_DEVICE static void Run(const Runner& runner, const ProgramSection& section,
                                 const ProgramStepView& step) {
    for (int at = 0; at < section.count; ++at) runner.Execute(step, section.instructions[at], at);
  }
};

// Layers whose weights are read from global memory, their first rows by the first warp of a team.
struct StreamedLayers {
  template <int P, class Context>
  using Panels = StreamedPanels<P, Context>;

  // The weights of instruction `at` in a step, and the team as their rows are dealt out to it.
  DEEPPCR_DEVICE PanelLayer LayerOf(const ProgramInstruction& instruction, int,
                                    int64_t step) const {
    return instruction.layer.Next(static_cast<int>(step) * instruction.layer_stride);
  }
  template <class Team>
  DEEPPCR_DEVICE const Team& TeamOf(const Team& team, int) const {
    return team;
  }
};

// The first `cols` elements of a vector.
struct FirstElements {
  static constexpr bool kMayBeOdd = true;
  int cols;
  VectorShape shape;
  constexpr int Place(int r, int k) const { return shape.Place(r, k); }
};

// Runs sections, with rows of a state and its tangents of which there are at most S. `Code` says
// how instructions are known: Interpreted, or Compiled (compiled_section.h); `Layers` where their
// weights are: StreamedLayers, or OwnLayers (grid_steps.h).
template <int S, class Team, class Code, class Layers = StreamedLayers>
class SectionRunner {
 public:
  static constexpr bool kAlone = S == 1;  // a state without tangents

  // `memory`: FrameFloats(section, rows) floats of a block's shared memory, aligned to 16 bytes.
  DEEPPCR_DEVICE SectionRunner(const Team& team, const ProgramSection& section, float* memory,
                               int rows, bool probes, float clip_range, const Layers& layers = {})
      : team_(team),
        context_(team.context()),
        section_(section),
        rows_{S == 1 ? 1 : rows, probes ? kNumProbes : 0},
        frame_{memory, FrameRows(rows_.count)},
        clip_range_(clip_range),
        layers_(layers) {}

  // For a state alone whose values are row 0 of `frame`, which has room for others.
  DEEPPCR_DEVICE SectionRunner(const Team& team, const ProgramSection& section, const Frame& frame,
                               float clip_range)
      : team_(team),
        context_(team.context()),
        section_(section),
        rows_{1, 0},
        frame_(frame),
        clip_range_(clip_range),
        layers_() {
    static_assert(kAlone);
  }

  DEEPPCR_DEVICE const ProgramRows& rows() const { return rows_; }
  DEEPPCR_DEVICE FrameVectors At(const ProgramValue& value) const { return frame_[value]; }

  // Runs all instructions. The caller has synchronised the team after writing the inputs in every
  // block; Run has synchronised each block when it returns.
  DEEPPCR_DEVICE void Run(const ProgramStepView& step) const {
    Code::Run(*this, section_, step);
    Wait(section_.after);
  }

  // Runs instruction `at`.
  DEEPPCR_DEVICE void Execute(const ProgramStepView& step, const ProgramInstruction& instruction,
                              int at) const {
    using program::OpKind;
    Wait(instruction.wait);
    const int64_t salt = FirstSalt(step) + at;
    switch (instruction.kind) {
      case OpKind::kElementwise:
      case OpKind::kReverseStep:
        if constexpr (Code::Has(OpKind::kElementwise) || Code::Has(OpKind::kReverseStep))
          Elements(step, instruction, at);
        break;
      case OpKind::kReduction:
      case OpKind::kAlongAxis:
        if constexpr (Code::Has(OpKind::kReduction) || Code::Has(OpKind::kAlongAxis))
          Lines(step, instruction, salt);
        break;
      case OpKind::kLinear:
      case OpKind::kProduct:
        if constexpr (Code::Has(OpKind::kLinear) || Code::Has(OpKind::kProduct))
          Layer(step, instruction, at, salt);
        break;
      case OpKind::kArrange:
        if constexpr (Code::Has(OpKind::kArrange)) Arrange(step, instruction);
        break;
      case OpKind::kLookup:
        if constexpr (Code::Has(OpKind::kLookup)) Lookup(step, instruction);
        break;
    }
  }
  // What instructions on elements work on.
  DEEPPCR_DEVICE ElementPlace ElementsOf(const ProgramStepView& step) const {
    return {frame_, rows_, step, FirstSalt(step), clip_range_};
  }
  DEEPPCR_DEVICE void Wait(ProgramWait wait) const {
    if (wait == ProgramWait::kBlock) context_.SyncBlock(kBeforeInstruction);
    if (wait == ProgramWait::kTeam) team_.Sync(kBeforeTeamInstruction);
  }
  // Calls f(i) for i = 0, ..., n - 1, always by the same thread.
  template <class F>
  DEEPPCR_DEVICE void ForElements(int n, const F& f) const {
    for (int i = context_.thread(); i < n; i += context_.num_threads()) f(i);
  }

 private:
  // Shares of a product: with columns two panels share what is read of a vector, and all probes are
  // in the first part.
  using Tile =
      std::conditional_t<(S > 1 + kNumProbes), PanelTile<2, S <= 21 ? 2 : 6>, PanelTile<1, 1>>;
  static constexpr Squares kSquares = S == 1 ? Squares::kNone : Squares::kOfVector;

  DEEPPCR_DEVICE bool IsProbe(int r) const { return r >= 1 && r <= rows_.probes; }

  DEEPPCR_DEVICE int64_t FirstSalt(const ProgramStepView& step) const {
    return step.draw * section_.count;
  }

  DEEPPCR_DEVICE void Elements(const ProgramStepView& step, const ProgramInstruction& instruction,
                               int at) const {
    const ElementPlace place = ElementsOf(step);
    const ElementStep<Code, kAlone> element(place, instruction, at);
    ForElements(PanelWidth(instruction.result.size), [&](int i) { element.Make(i); });
  }

  DEEPPCR_DEVICE void Lines(const ProgramStepView& step, const ProgramInstruction& instruction,
                            int64_t salt) const {
    ClearPadding(instruction.result);
    const int lines = instruction.outer * instruction.inner;
    const int warps = context_.num_threads() / kWarpSize;
    for (int job = context_.warp(); job < lines * rows_.count; job += warps) {
      const LineStep<typename Team::Context, Code> line(context_, frame_, rows_, step, instruction,
                                                        salt, job / rows_.count);
      line.Make(job % rows_.count);
    }
  }
  // Zeros behind the elements of a value in all rows.
  DEEPPCR_DEVICE void ClearPadding(const ProgramValue& value) const {
    const FrameVectors to = frame_[value];
    ForElements(PanelWidth(value.size) - value.size, [&](int i) {
      for (int r = 0; r < rows_.written(); ++r) to(r, value.size + i) = 0.0F;
    });
  }

  DEEPPCR_DEVICE void Layer(const ProgramStepView& step, const ProgramInstruction& instruction,
                            int at, int64_t salt) const {
    const PanelLayer layer = layers_.LayerOf(instruction, at, step.step);
    const FrameVectors to = frame_[instruction.result];
    if (!instruction.gathers) {
      Multiply(instruction, layer, at, frame_[instruction.operands[0]], 0, salt);
      return team_.Complete(kAfterProduct, to.at, to.shape);
    }
    ClearPadding(instruction.result);
    for (int vector = 0; vector < instruction.repeat; ++vector) {
      const ProgramValue& place = instruction.gathered[vector % 2];
      Gather(step, instruction, vector, place);
      context_.SyncBlock(kAfterGathering);
      Multiply(instruction, layer, at, frame_[place], vector, salt);
    }
    team_.Complete(kAfterProduct, to.at, FirstElements{instruction.result.size, to.shape});
  }
  DEEPPCR_DEVICE void Gather(const ProgramStepView& step, const ProgramInstruction& instruction,
                             int vector, const ProgramValue& place) const {
    const OperandValue from(frame_, step, instruction.operands[0]);
    const FrameVectors to = frame_[place];
    const int first = vector * instruction.inputs;
    ForElements(PanelWidth(instruction.inputs), [&](int i) {
      const bool real = i < instruction.inputs;
      to(0, i) = real ? from[first + i] : 0.0F;
      for (int r = 1; r < rows_.count; ++r) to(r, i) = real ? from.Of(r, first + i) : 0.0F;
    });
  }
  // Multiplies one vector of every row; its result is number `vector` of the instruction's.
  DEEPPCR_DEVICE void Multiply(const ProgramInstruction& instruction, const PanelLayer& layer,
                               int at, const FrameVectors& from, int vector, int64_t salt) const {
    struct OfRow {
      float bias, spread;
    };
    const FrameVectors to = frame_[instruction.result];
    const int first = vector * instruction.outputs;
    // Where vectors are copied, padding has been cleared already, and behind a vector comes the
    // next one.
    const int end = instruction.gathers ? instruction.outputs : layer.rows;
    ForRows<S, Tile, kSquares, Layers::template Panels>(
        layers_.TeamOf(team_, at), layer, PanelVectors{from.at, from.shape, rows_.count},
        [&](int i) {
          return OfRow{layer.bias[i], layer.spreads[i]};
        },
        [&](int i, const OfRow& of_row, const auto& p) {
          if (i >= end) return;
          const float y = p.first + of_row.bias;
          const float terms = of_row.spread * instruction.long_sum * sqrtf(p.squares);
          const float sum = instruction.drift * y;
          const float size = sqrtf(fmaf(terms, terms, sum * sum));
          p.ForMine(context_.lane(), rows_.count, [&](int r, float product) {
            float value = r == 0 ? y : product;
            if (IsProbe(r)) value += RoundingSource(size, r - 1, first + i, salt);
            team_.Put(&to(r, first + i), value);
          });
          if (rows_.probes > 0 && p.skipped == 0 && context_.lane() % kSegments == 0)
            team_.Put(&to(rows_.sizes(), first + i), size);
        });
  }

  DEEPPCR_DEVICE void Arrange(const ProgramStepView& step,
                              const ProgramInstruction& instruction) const {
    const FrameVectors to = frame_[instruction.result];
    ForElements(PanelWidth(instruction.result.size), [&](int i) {
      if (i >= instruction.result.size) {
        for (int r = 0; r < rows_.written(); ++r) to(r, i) = 0.0F;
        return;
      }
      const ProgramElement element = instruction.elements[i];
      const OperandValue from(frame_, step, instruction.arranged[element.operand]);
      to(0, i) = from[element.index];
      for (int r = 1; r < rows_.written(); ++r) to(r, i) = from.Of(r, element.index);
    });
  }

  // As in evaluate.cc: a negative index counts from the end, and one that is not there makes NaN,
  // which the answer shows. Nothing that a lookup reads depends on the state.
  DEEPPCR_DEVICE void Lookup(const ProgramStepView& step,
                             const ProgramInstruction& instruction) const {
    const OperandValue from(frame_, step, instruction.operands[0]);
    const auto rows = static_cast<float>(instruction.rows);
    const float index = from[0], wanted = index < 0.0F ? index + rows : index;
    const bool found = wanted >= 0.0F && wanted < rows;
    const int size = instruction.result.size;
    const float* const row =
        instruction.table + (found ? static_cast<int64_t>(wanted) * size : int64_t{0});
    const FrameVectors to = frame_[instruction.result];
    ForElements(PanelWidth(size), [&](int i) {
      const float value = found ? row[i < size ? i : 0] : NAN;
      to(0, i) = i < size ? value : 0.0F;
    });
  }

  const Team team_;
  typename Team::Context& context_;
  const ProgramSection section_;
  const ProgramRows rows_;
  const Frame frame_;
  const float clip_range_;
  const Layers layers_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_STEP_H_
