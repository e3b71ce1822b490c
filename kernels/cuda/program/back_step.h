// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_BACK_STEP_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_BACK_STEP_H_

// The instructions of a section backwards, by a block of threads: from the cotangents of its
// results to those of its operands. Row 0 of a tape's frame has the values, rows 1, 2, ... the
// cotangents of as many results, which share nothing but the values: the bits of one depend on no
// other. kernels/cpu/program/executor_cotangents.cc has the same in the CPU's way.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/program/element_step.h"
#include "kernels/cuda/program/elementwise.h"
#include "kernels/cuda/program/frame.h"
#include "kernels/cuda/program/line_step.h"
#include "kernels/cuda/program/step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// The barrier calls of the way back through a section.
enum ProgramBackSite : int {
  kBeforeBack = kNumProgramSites,
  kAfterGatheringBack,
  kAfterBack,
  kNumProgramBackSites,
};

// Sums of cotangents of the rows that a condition gives, in memory of the device: those of
// cotangent j begin at at + j * stride. Null: not wanted.
struct RowSums {
  float* at = nullptr;
  int64_t stride = 0;
};

// Cotangents of the values in rows of other sections.
struct RowCotangents {
  RowSums condition, mixed;

  DEEPPCR_DEVICE const RowSums& Of(program::Home home) const {
    return home == program::Home::kCondition ? condition : mixed;
  }
};

// The cotangents of an operand.
class OperandCotangents {
 public:
  DEEPPCR_DEVICE OperandCotangents(const Frame& frame, const RowCotangents& rows,
                                   const ProgramValue& value, bool wants, bool adds)
      : vectors_(frame[value]),
        sums_(rows.Of(value.home)),
        offset_(value.offset),
        size_(value.size),
        moves_(value.moves()),
        wanted_(wants && (moves_ || sums_.at != nullptr)),
        adds_(adds) {}

  DEEPPCR_DEVICE bool wanted() const { return wanted_; }
  DEEPPCR_DEVICE int size() const { return size_; }
  // True where what the operand has is yet to be written.
  DEEPPCR_DEVICE bool begins() const { return wanted_ && moves_ && !adds_; }
  // Gives g to element i < size() of cotangent r - 1.
  DEEPPCR_DEVICE void Give(int r, int i, float g) const {
    float& to = moves_ ? vectors_(r, i) : sums_.at[(r - 1) * sums_.stride + offset_ + i];
    to = adds_ ? to + g : g;
  }
  // Writes a zero where nothing has been written yet, i < the operand's width.
  DEEPPCR_DEVICE void Begin(int r, int i) const {
    if (begins()) vectors_(r, i) = 0.0F;
  }

 private:
  const FrameVectors vectors_;
  const RowSums sums_;
  const int offset_, size_;
  const bool moves_, wanted_, adds_;
};

// Takes up to S cotangents back through a section.
template <int S, class Context>
class SectionBack {
 public:
  DEEPPCR_DEVICE SectionBack(Context& context, const ProgramTape& tape, const Frame& frame,
                             float clip_range)
      : context_(context), tape_(tape), frame_(frame), clip_range_(clip_range) {}

  DEEPPCR_DEVICE const Frame& frame() const { return frame_; }
  DEEPPCR_DEVICE FrameVectors At(const ProgramValue& value) const { return frame_[value]; }
  // Calls f(i) for i = 0, ..., n - 1, always by the same thread.
  template <class F>
  DEEPPCR_DEVICE void ForElements(int n, const F& f) const {
    for (int i = context_.thread(); i < n; i += context_.num_threads()) f(i);
  }
  // Writes f(r, i) as cotangent r - 1 of element i of a value; zeros beyond it.
  template <class F>
  DEEPPCR_DEVICE void Place(const ProgramValue& value, int count, const F& f) const {
    if (value.size == 0) return;
    const FrameVectors to = frame_[value];
    ForElements(PanelWidth(value.size), [&](int i) {
      for (int r = 1; r <= count; ++r) to(r, i) = i < value.size ? f(r, i) : 0.0F;
    });
  }

  // Runs all instructions backwards for cotangents 0, ..., count - 1, with the values of `step`.
  // The threads that place a value's cotangents may go on at once; Run has synchronised the block
  // when it returns.
  DEEPPCR_DEVICE void Run(const ProgramStepView& step, const RowCotangents& rows, int count) const {
    context_.SyncBlock(kAfterBack);
    for (int at = tape_.section.count - 1; at >= 0; --at) {
      const ProgramBack& back = tape_.back[at];
      if (!back.reached) continue;
      if (back.waits) context_.SyncBlock(kBeforeBack);
      Execute({step, tape_.section.instructions[at], back, rows, count});
    }
    context_.SyncBlock(kAfterBack);
  }

 private:
  using OpKind = program::OpKind;

  struct Way {
    const ProgramStepView& step;
    const ProgramInstruction& instruction;
    const ProgramBack& back;
    const RowCotangents& rows;
    int count;
  };

  DEEPPCR_DEVICE void Execute(const Way& way) const {
    switch (way.instruction.kind) {
      case OpKind::kElementwise:
      case OpKind::kReverseStep:
        return Elements(way);
      case OpKind::kReduction:
      case OpKind::kAlongAxis:
        return Lines(way);
      case OpKind::kLinear:
      case OpKind::kProduct:
        return Layer(way);
      case OpKind::kArrange:
        return Arrangement(way);
      case OpKind::kLookup:
        return;  // a constant between the jumps of its index
    }
  }
  DEEPPCR_DEVICE OperandCotangents OperandOf(const Way& way, int k) const {
    return {frame_, way.rows, way.instruction.operands[k], way.back.wants[k], way.back.adds[k]};
  }

  // ---- Elements
  // The slopes of an instruction at an element, by each operand.
  struct Slopes {
    float by[kMostProgramOperands];
  };
  DEEPPCR_DEVICE Slopes SlopesAt(const Way& way, int i) const {
    const ProgramInstruction& instruction = way.instruction;
    float a[kMostProgramOperands];
    DEEPPCR_UNROLL
    for (int k = 0; k < kMostProgramOperands; ++k)
      a[k] = k < instruction.num_operands
                 ? OperandValue(frame_, way.step, instruction.operands[k])[i]
                 : 0.0F;
    if (instruction.kind == OpKind::kReverseStep) {
      const ReverseCoefficients& c = way.step.coefficients[static_cast<int>(instruction.part)];
      const ReverseTangent tangent(c, BeyondClip(c, clip_range_, a[1], a[0]) > 0.0F);
      return {{tangent.by_z, tangent.by_m, 0.0F}};
    }
    if (instruction.num_operands == 1) return {{SlopeOf(instruction.op, a[0]), 0.0F, 0.0F}};
    const TwoSlopes slopes = SlopesOf(instruction.op, a[0], a[1]);
    return {{slopes.first, slopes.second, 0.0F}};
  }
  DEEPPCR_DEVICE void Elements(const Way& way) const {
    const ProgramInstruction& instruction = way.instruction;
    const FrameVectors result = frame_[instruction.result];
    ForElements(PanelWidth(instruction.result.size), [&](int i) {
      const bool real = i < instruction.result.size;
      if (real && instruction.op == program::Op::kSelect) return Select(way, result, i);
      const Slopes slopes = real ? SlopesAt(way, i) : Slopes();
      DEEPPCR_UNROLL
      for (int k = 0; k < kMostProgramOperands; ++k) {
        if (k >= instruction.num_operands) break;
        const OperandCotangents to = OperandOf(way, k);
        for (int r = 1; r <= way.count && to.wanted(); ++r)
          real ? to.Give(r, i, program::MovedBy(slopes.by[k], result(r, i))) : to.Begin(r, i);
      }
    });
  }
  // The side that was chosen gets it all, whatever the other one is. The condition jumps, and has
  // no cotangent but what it is given as a side, or elsewhere.
  DEEPPCR_DEVICE void Select(const Way& way, const FrameVectors& result, int i) const {
    const bool first = OperandValue(frame_, way.step, way.instruction.operands[0])[i] != 0.0F;
    for (int k = 0; k < 3; ++k) {
      const OperandCotangents to = OperandOf(way, k);
      const bool chosen = k == (first ? 1 : 2);
      for (int r = 1; r <= way.count && to.wanted(); ++r) {
        if (k == 0) {
          to.Begin(r, i);
        } else {
          to.Give(r, i, chosen ? result(r, i) : 0.0F);
        }
      }
    }
  }

  // ---- Lines along an axis, a warp for each line of each cotangent
  DEEPPCR_DEVICE void Lines(const Way& way) const {
    const ProgramInstruction& instruction = way.instruction;
    const OperandCotangents to = OperandOf(way, 0);
    if (!to.wanted()) return;
    BeginPadding(to, way.count);
    const ProgramRows rows{1 + way.count, 0};
    const int lines = instruction.outer * instruction.inner;
    const int warps = context_.num_threads() / kWarpSize;
    for (int job = context_.warp(); job < lines * way.count; job += warps) {
      const LineStep<Context, Interpreted> line(context_, frame_, rows, way.step, instruction, 0,
                                                job / way.count);
      const int r = 1 + job % way.count;
      line.GoBack(r, [&](int i, float g) { to.Give(r, i, g); });
    }
  }
  DEEPPCR_DEVICE void BeginPadding(const OperandCotangents& to, int count) const {
    ForElements(PanelWidth(to.size()) - to.size(), [&](int i) {
      for (int r = 1; r <= count; ++r) to.Begin(r, to.size() + i);
    });
  }

  // ---- Layers
  DEEPPCR_DEVICE void Layer(const Way& way) const {
    const ProgramInstruction& instruction = way.instruction;
    const OperandCotangents to = OperandOf(way, 0);
    if (!to.wanted()) return;
    const PanelLayer layer =
        way.back.transposed.Next(static_cast<int>(way.step.step) * instruction.layer_stride);
    BeginPadding(to, way.count);
    if (instruction.repeat == 1)
      return Multiply(layer, frame_[instruction.result], way.count, 0, instruction.inputs, to);
    for (int vector = 0; vector < instruction.repeat; ++vector) {
      const ProgramValue& place = way.back.gathered[vector % 2];
      Gather(way, vector, place);
      context_.SyncBlock(kAfterGatheringBack);
      Multiply(layer, frame_[place], way.count, vector * instruction.inputs, instruction.inputs,
               to);
    }
  }
  // Copies the cotangents of one vector of the result.
  DEEPPCR_DEVICE void Gather(const Way& way, int vector, const ProgramValue& place) const {
    const FrameVectors from = frame_[way.instruction.result];
    const int first = vector * way.instruction.outputs;
    Place(place, way.count, [&](int r, int i) { return from(r, first + i); });
  }
  using Tile = std::conditional_t<(S > 1), PanelTile<2, 2>, PanelTile<1, 1>>;
  struct Nothing {};
  // Gives elements first, ..., first + end - 1 of an operand the products of a transposed layer.
  DEEPPCR_DEVICE void Multiply(const PanelLayer& layer, const FrameVectors& from, int count,
                               int first, int end, const OperandCotangents& to) const {
    // The values, in row 0, are left out.
    const PanelVectors cotangents{from.at + from.shape.Place(1, 0), from.shape, count};
    ForRows<S, Tile, Squares::kNone>(
        BlockTeam(context_), layer, cotangents, [](int) { return Nothing(); },
        [&](int i, const Nothing&, const auto& p) {
          if (i >= end) return;
          p.ForMine(context_.lane(), count,
                    [&](int v, float product) { to.Give(1 + v, first + i, product); });
        });
  }

  // ---- Arrangements
  DEEPPCR_DEVICE void Arrangement(const Way& way) const {
    const FrameVectors result = frame_[way.instruction.result];
    for (int k = 0; k < way.back.num_scatters; ++k) {
      const ProgramScatter& scatter = way.back.scatters[k];
      const OperandCotangents to(frame_, way.rows, scatter.operand, true, scatter.adds);
      if (!to.wanted()) continue;
      BeginPadding(to, way.count);
      ForElements(to.size(), [&](int i) {
        for (int r = 1; r <= way.count; ++r) {
          float sum = 0.0F;
          for (int at = scatter.starts[i]; at < scatter.starts[i + 1]; ++at)
            sum += result(r, scatter.sources[at]);
          to.Give(r, i, sum);
        }
      });
    }
  }

  Context& context_;
  const ProgramTape& tape_;
  const Frame frame_;
  const float clip_range_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_BACK_STEP_H_
