// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_EXECUTOR_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/program/packed_program.h"
#include "kernels/cpu/program/packed_tape.h"

namespace deeppcr::cpu {

// What a row of a section reads beside its frame.
struct RowContext {
  std::array<const float*, kNumHomes> rows = {};      // by Home; kFrame unused
  const ReverseCoefficients* coefficients = nullptr;  // of kReverseStep, by StepPart
  const float* noise = nullptr;                       // [width of z], or null where sigma is 0
  int64_t step = 0;
  int64_t draw = 0;  // draws the signs of rounding
};

// Tangents that go along: `columns` for each row, of which the first `probes` pick up rounding.
struct TangentRows {
  int64_t columns = 0, probes = 0;
};

// Where the cotangents of rows that a section reads are summed up: row `index` of a home at sums +
// index stride; null: not wanted.
struct CotangentRows {
  float* sums = nullptr;
  int64_t stride = 0;
};

// What goes along with the values of a run: tangents, or cotangents on the way back.
enum class Carried : uint8_t { kTangents, kCotangents };

// The memory in which a section runs, and the runs. Not thread-safe. Nothing allocates but the
// constructor.
//
// A row's values have the same bits whatever rows are beside it, and with or without tangents.
class Executor {
 public:
  // For up to `rows` rows with up to `tangents` tangents in all.
  Executor(const PackedSection& section, const ProgramKernels& kernels, float clip_range,
           int64_t rows, int64_t tangents, Carried carried = Carried::kTangents);
  static int64_t Floats(const PackedSection& section, int64_t rows, int64_t tangents,
                        Carried carried = Carried::kTangents);
  bool ok() const;

  // A value of row r in this section's frame, and its tangent `column` of `columns`.
  float* Row(const Place& place, int64_t r) {
    return frame_.data() + place.offset * rows_ + r * place.width;
  }
  float* Tangent(const Place& place, int64_t index) {
    return tangents_.data() + place.offset * max_tangents_ + index * place.width;
  }

  // The cotangent of a value on the way back, in the same place.
  float* Cotangent(const Place& place, int64_t index) { return Tangent(place, index); }

  // The rounding of a value of row r, in units of 2^-24; of the state, to be set where probes go
  // along.
  float* Size(const Place& place, int64_t r) {
    return sizes_.data() + place.offset * rows_ + r * place.width;
  }

  // Runs rows 0..count-1, whose inputs are in the frame. Ends between instructions once the token
  // has fired; the values are worth nothing then.
  void Run(const RowContext* contexts, int64_t count, const TangentRows& tangents,
           const Sharing* sharing, const CancelToken* token = nullptr);

  // Starts the sums of `count` cotangents: those of a section's inputs are zero, and may then be
  // set as the section's results are, which an input may be as well.
  void BeginBack(const PackedTape& tape, int64_t count);
  // Takes `columns` cotangents of each of the rows first .. first + count - 1, which have run and
  // have one step, back through the section: cotangent j of row first + b has index b columns + j.
  // Those of the section's results are set before, after BeginBack; those of its inputs receive the
  // sums. `tape` is what the section belongs to; `homes` by Home.
  void RunBack(const PackedTape& tape, const RowContext* contexts, int64_t first, int64_t count,
               int64_t columns, const std::array<CotangentRows, kNumHomes>& homes,
               const Sharing* sharing);

 private:
  struct Way;  // of a run back

  // A row's operand, or null.
  struct Operand {
    const float* in_frame = nullptr;
    Home home = Home::kFrame;
    int64_t offset = 0;  // in the row of another home
  };
  // A part of what one row goes through that is alone: a layer with the branch behind it, if
  // `branch`, or instructions from `index` on. What a layer needs lies together, since the weights
  // of a step push everything else out of the first-level cache.
  struct alignas(64) Call {
    PanelView layer = {};
    const PanelView* layers = nullptr;  // of the steps, in place of `layer`
    int64_t layer_stride = 0;
    LayerBranchKernel branch = nullptr;
    Operand in, added, beside;
    float* out = nullptr;  // of the layer
    float* to = nullptr;   // of the branch, or of the layer
    int64_t size = 0, width = 0;
    int64_t index = -1;  // no layer: -1 else
  };
  static constexpr int64_t kCallFloats = 64;  // of a Call
  std::vector<Call> CallsOfOneRow();
  bool IsBranchOfOneRow(int64_t index) const;
  Call ProductCall(const PackedInstruction& linear);
  Call BranchCall(int64_t index);
  Operand OperandAt(const Place& place);
  const float* Read(const Operand& operand) const {
    if (operand.home == Home::kFrame) return operand.in_frame;
    return contexts_[0].rows[static_cast<int>(operand.home)] + operand.offset;
  }
  // The run of one row without tangents or threads.
  void RunOneRow(const CancelToken* token);
  void RunLayer(const Call& call);

  const float* Read(const Place& place, int64_t r) const {
    if (place.home == Home::kFrame) return frame_.data() + place.offset * rows_ + r * place.width;
    return contexts_[r].rows[static_cast<int>(place.home)] + place.offset;
  }
  const float* SizeOrNull(const PackedInstruction& i, int k, int64_t r);
  // Of a norm of row r.
  float* Moments(const PackedInstruction& i, int64_t r) {
    return moments_.data() + r * section_.moment_floats + i.moments;
  }

  const ReverseCoefficients* CoefficientsOf(const PackedInstruction& i, int64_t r) const {
    return contexts_[r].coefficients + static_cast<int>(i.part);
  }

  void Primal(const PackedInstruction& instruction);
  // Instructions from `index` on that are done together.
  void Joined(int64_t index);
  void SineAndCosine(int64_t index);
  void Scale(int64_t index);
  void Branch(int64_t index);
  void PrimalElementwise(const PackedInstruction& instruction);
  void PrimalLinear(const PackedInstruction& instruction);
  void Multiply(const PanelView& layer, int64_t repeat, const float* bias, const Place& from,
                const float* in, const Place& result, float* out, int64_t rows);
  void Repeated(const PanelView& layer, int64_t repeat, const float* bias, const Place& from,
                const float* in, const Place& result, float* out, int64_t rows);
  void PrimalAlong(const PackedInstruction& instruction);
  void PrimalRow(const PackedInstruction& instruction, int64_t r);
  // Rows [first, result) have the layer of row `first`.
  int64_t EndOfLayer(const PackedInstruction& instruction, int64_t first) const;
  const PanelView& LayerOf(const PackedInstruction& instruction, int64_t r) const {
    return instruction.layers[contexts_[r].step * instruction.layer_stride];
  }
  void Gemm(const PanelView& layer, const float* bias, const float* in, int64_t in_width,
            float* out, int64_t count);

  void Tangents(const PackedInstruction& instruction, int64_t index);
  void TangentsSelect(const PackedInstruction& instruction, int64_t r);
  void TangentsElementwise(const PackedInstruction& instruction, int64_t r);
  void ProbesElementwise(const PackedInstruction& instruction, const float* const* slopes,
                         int64_t r);
  void ProbesOfAbs(const PackedInstruction& instruction, int64_t r);
  void ProbesOfLargest(const PackedInstruction& instruction, int64_t r);
  void ProbesNear(const PackedInstruction& instruction, const float* slope, int64_t r);
  void TangentsLinear(const PackedInstruction& instruction);
  void TangentsAlong(const PackedInstruction& instruction, int64_t r);
  void TangentsArrange(const PackedInstruction& instruction, int64_t r);
  void TangentsReverse(const PackedInstruction& instruction, int64_t r);
  void SizeRow(const PackedInstruction& instruction, int64_t r);
  void AddTerms(const PackedInstruction& instruction, int64_t r, float* size);
  void SizeJump(const PackedInstruction& instruction, int64_t r, float* size);
  void AddSource(const PackedInstruction& instruction, int64_t index, int64_t r);

  void BackElementwise(const Way& way, const PackedInstruction& instruction,
                       const BackwardInstruction& back);
  void BackSelect(const Way& way, const PackedInstruction& instruction,
                  const BackwardInstruction& back, int64_t b);
  void BackLinear(const Way& way, const PackedInstruction& instruction,
                  const BackwardInstruction& back);
  void BackAlong(const Way& way, const PackedInstruction& instruction,
                 const BackwardInstruction& back);
  void BackReduction(const PackedInstruction& instruction, int64_t r, const float* g, float* to);
  void BackArrange(const Way& way, const PackedInstruction& instruction,
                   const BackwardInstruction& back);
  void BackReverse(const Way& way, const PackedInstruction& instruction,
                   const BackwardInstruction& back);
  float* CotangentOf(const Way& way, const Place& place, int64_t index);
  void Give(const Way& way, const Place& operand, bool adds, const float* slope, const float* g,
            int64_t index, int64_t count);

  const PackedSection& section_;
  const ProgramKernels& kernels_;
  const float clip_range_;
  const int64_t rows_, max_tangents_;
  AlignedBuffer<float> frame_, sizes_, tangents_, moments_;
  // Three slopes, two positions near a value and the slopes there, and one spare.
  static constexpr int64_t kScratchRows = 8;
  AlignedBuffer<float> scratch_;  // [kScratchRows, widest]
  // Vectors of a repeated layer that are multiplied together, a multiple of what a block of any
  // instruction set takes.
  static constexpr int64_t kGathered = 48;
  AlignedBuffer<float> gathered_;  // [kGathered, inputs and outputs]
  AlignedBuffer<float> products_;  // of cotangents that are added to others: [max_tangents, widest]
  const std::vector<Call> one_row_;
  // Of the run under way.
  const RowContext* contexts_ = nullptr;
  int64_t count_ = 0;
  TangentRows along_;
  const Sharing* sharing_ = nullptr;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_EXECUTOR_H_
