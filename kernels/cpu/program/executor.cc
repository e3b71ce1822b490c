// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/executor.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/program/element_rows.h"

namespace deeppcr::cpu {

using program::OpKind;

Executor::Executor(const PackedSection& section, const ProgramKernels& kernels, float clip_range,
                   int64_t rows, int64_t tangents, Carried carried)
    : section_(section),
      kernels_(kernels),
      clip_range_(clip_range),
      rows_(rows),
      max_tangents_(tangents),
      frame_(section.frame_floats * rows),
      sizes_(tangents > 0 && carried == Carried::kTangents ? section.frame_floats * rows : 0),
      tangents_(section.frame_floats * tangents),
      moments_(section.moment_floats * rows),
      scratch_(kScratchRows * section.widest),
      gathered_(kGathered * section.gathered_floats),
      products_(carried == Carried::kCotangents ? tangents * section.widest : 0),
      one_row_(CallsOfOneRow()) {}

int64_t Executor::Floats(const PackedSection& section, int64_t rows, int64_t tangents,
                         Carried carried) {
  const bool back = carried == Carried::kCotangents;
  return section.frame_floats * ((tangents > 0 && !back ? 2 : 1) * rows + tangents) +
         section.moment_floats * rows + kScratchRows * section.widest +
         kGathered * section.gathered_floats + (back ? tangents * section.widest : 0) +
         kCallFloats * std::ssize(section.instructions);
}

bool Executor::ok() const {
  return frame_.ok() && sizes_.ok() && tangents_.ok() && moments_.ok() && scratch_.ok() &&
         gathered_.ok() && products_.ok();
}

void Executor::Run(const RowContext* contexts, int64_t count, const TangentRows& tangents,
                   const Sharing* sharing, const CancelToken* token) {
  contexts_ = contexts;
  count_ = count;
  along_ = tangents;
  sharing_ = sharing;
  if (count == 1 && tangents.columns == 0 && sharing == nullptr) return RunOneRow(token);
  for (int64_t i = 0; i < std::ssize(section_.instructions) && !Fired(token); ++i) {
    const PackedInstruction& instruction = section_.instructions[i];
    if (along_.columns == 0 && instruction.together > 1) {
      Joined(i);
      i += instruction.together - 1;
      continue;
    }
    Primal(instruction);
    if (along_.columns > 0) Tangents(instruction, i);
  }
}

const float* Executor::SizeOrNull(const PackedInstruction& i, int k, int64_t r) {
  return i.moves[k] != 0 ? Size(i.operands[k], r) : nullptr;
}

void Executor::Primal(const PackedInstruction& instruction) {
  if (instruction.kind == OpKind::kElementwise) return PrimalElementwise(instruction);
  if (instruction.layers != nullptr) return PrimalLinear(instruction);
  if (instruction.kind == OpKind::kReduction || instruction.kind == OpKind::kAlongAxis)
    return PrimalAlong(instruction);
  for (int64_t r = 0; r < count_; ++r) PrimalRow(instruction, r);
}

void Executor::PrimalElementwise(const PackedInstruction& instruction) {
  const auto value = kernels_.elementwise[static_cast<int>(instruction.op)].value;
  const Place& result = instruction.result;
  const bool all_here = std::ranges::all_of(instruction.moves, [](uint8_t m) { return m != 0; });
  const float* operands[kMostOperands] = {};
  const int64_t together = all_here ? count_ : 1;
  for (int64_t r = 0; r < count_; r += together) {
    for (size_t k = 0; k < instruction.operands.size(); ++k)
      operands[k] = Read(instruction.operands[k], r);
    value(operands, Row(result, r), together * result.width);
  }
  for (int64_t r = 0; r < count_ && result.width > result.size; ++r)
    ClearPadding(result, Row(result, r));
}

void Executor::Joined(int64_t index) {
  const program::Op op = section_.instructions[index].op;
  if (op == program::Op::kSin || op == program::Op::kCos) return SineAndCosine(index);
  if (op == program::Op::kArrange) return Scale(index);
  Branch(index);
}

void Executor::Scale(int64_t index) {
  const PackedInstruction& repeats = section_.instructions[index];
  const PackedInstruction& product = section_.instructions[index + 1];
  const ElementRun& run = repeats.runs[0];
  const Place &number = repeats.operands[run.operand], &result = product.result;
  const Place& factors = product.operands[repeats.other];
  const bool here = factors.home == Home::kFrame;
  const bool all = number.home == Home::kFrame && (here || factors.home == Home::kConstant);
  const int64_t together = all ? count_ : 1;
  for (int64_t r = 0; r < count_; r += together) {
    kernels_.scale({.numbers = Read(number, r) + run.from,
                    .numbers_stride = number.width,
                    .factors = Read(factors, r),
                    .factors_stride = here ? factors.width : 0,
                    .out = Row(result, r),
                    .rows = together,
                    .n = result.width});
  }
  for (int64_t r = 0; r < count_; ++r) ClearPadding(result, Row(result, r));
}

// Of a value of the same section: what a unary operation makes depends on what its operand does.
void Executor::SineAndCosine(int64_t index) {
  const PackedInstruction* first = &section_.instructions[index];
  const bool sine_first = first->op == program::Op::kSin;
  const Place& sine = first[sine_first ? 0 : 1].result;
  const Place& cosine = first[sine_first ? 1 : 0].result;
  kernels_.sine_cosine(Read(first->operands[0], 0), Row(sine, 0), Row(cosine, 0),
                       count_ * sine.width);
  for (int64_t r = 0; r < count_; ++r) {
    ClearPadding(sine, Row(sine, r));
    ClearPadding(cosine, Row(cosine, r));
  }
}

// a b + c, or act(a + b) + c of which b or c may be missing: rows at once, of which each has
// operands of its own in the frame, and elsewhere all have the same.
void Executor::Branch(int64_t index) {
  const PackedInstruction* first = &section_.instructions[index];
  const PackedInstruction& last = first[first->together - 1];
  const program::Op op = first->op == program::Op::kAdd ? first[1].op : first->op;
  const auto kernel = kernels_.branch[static_cast<int>(op)];
  const Place* const added = last.op == program::Op::kAdd ? &last.operands[first->other] : nullptr;
  const Place* const operands[] = {
      &first->operands[0], first->operands.size() > 1 ? &first->operands[1] : nullptr, added};
  int64_t strides[3];
  bool shared[3];  // what rows may have the same of
  for (int k = 0; k < 3; ++k) {
    const bool here = operands[k] != nullptr && operands[k]->home == Home::kFrame;
    strides[k] = here ? operands[k]->width : 0;
    shared[k] = operands[k] != nullptr && !here;
  }
  const bool any_shared = shared[0] || shared[1] || shared[2];
  const auto read = [&](int k, int64_t r) {
    return operands[k] == nullptr ? nullptr : Read(*operands[k], r);
  };
  const auto same = [&](int64_t r, int64_t s) {
    for (int k = 0; k < 3; ++k)
      if (shared[k] && read(k, r) != read(k, s)) return false;
    return true;
  };
  for (int64_t r = 0, end = 0; r < count_; r = end) {
    for (end = any_shared ? r + 1 : count_; end < count_ && same(r, end);) ++end;
    kernel({.a = read(0, r),
            .b = read(1, r),
            .c = read(2, r),
            .a_stride = strides[0],
            .b_stride = strides[1],
            .c_stride = strides[2],
            .y = Row(last.result, r),
            .rows = end - r,
            .n = last.result.width});
  }
  for (int64_t r = 0; r < count_; ++r) ClearPadding(last.result, Row(last.result, r));
}

int64_t Executor::EndOfLayer(const PackedInstruction& instruction, int64_t first) const {
  if (instruction.layer_stride == 0) return count_;
  int64_t end = first + 1;
  while (end < count_ && contexts_[end].step == contexts_[first].step) ++end;
  return end;
}

void Executor::Gemm(const PanelView& layer, const float* bias, const float* in, int64_t in_width,
                    float* out, int64_t count) {
  kernels_.gemm(sharing_, {.layer = &layer,
                           .bias = bias,
                           .in = in,
                           .out = out,
                           .in_stride = in_width,
                           .out_stride = layer.width,
                           .count = count});
}

// Multiplies the `repeat` vectors of each of `rows` rows.
void Executor::Multiply(const PanelView& layer, int64_t repeat, const float* bias,
                        const Place& from, const float* in, const Place& result, float* out,
                        int64_t rows) {
  if (repeat == 1) {
    Gemm(layer, bias, in, from.width, out, rows);
  } else {
    Repeated(layer, repeat, bias, from, in, result, out, rows);
  }
  // Zero times what overflowed is NaN.
  for (int64_t r = 0; r < rows && result.width > result.size; ++r)
    ClearPadding(result, out + r * result.width);
}

// Multiplies all vectors as if they followed one another: at once where they do, and through copies
// of so many vectors at a time where their padding is missing.
void Executor::Repeated(const PanelView& layer, int64_t repeat, const float* bias,
                        const Place& from, const float* in, const Place& result, float* out,
                        int64_t rows) {
  const int64_t cols = from.size / repeat, outputs = result.size / repeat;
  // A product reads the columns with their padding, and writes whole panels.
  const bool fits_in = cols == layer.cols, fits_out = outputs == layer.width;
  if (fits_in && fits_out && from.size == from.width && result.size == result.width)
    return Gemm(layer, bias, in, cols, out, rows * repeat);
  for (int64_t first = 0; first < rows * repeat; first += kGathered) {
    const int64_t count = std::min(kGathered, rows * repeat - first);
    float* gathered = gathered_.data();
    float* made = gathered + count * layer.cols;
    for (int64_t i = 0; i < count; ++i) {
      const float* vector = in + (first + i) / repeat * from.width + (first + i) % repeat * cols;
      std::fill(std::copy_n(vector, cols, gathered + i * layer.cols),
                gathered + (i + 1) * layer.cols, 0.0F);
    }
    Gemm(layer, bias, gathered, layer.cols, made, count);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(made + i * layer.width, outputs,
                  out + (first + i) / repeat * result.width + (first + i) % repeat * outputs);
    }
  }
}

void Executor::PrimalLinear(const PackedInstruction& instruction) {
  const Place& from = instruction.operands[0];
  const Place& result = instruction.result;
  const bool here = instruction.moves[0] != 0;
  for (int64_t first = 0, end = 0; first < count_; first = end) {
    end = here ? EndOfLayer(instruction, first) : first + 1;
    const PanelView& layer = LayerOf(instruction, first);
    Multiply(layer, instruction.repeat, layer.bias, from, Read(from, first), result,
             Row(result, first), end - first);
  }
}

// Rows that are in the frame together, where the axis is contiguous: one by one, a row of one line
// waits for itself.
void Executor::PrimalAlong(const PackedInstruction& instruction) {
  const program::Axis& axis = instruction.axis;
  float* lines = scratch_.data();
  float* made = lines + section_.widest;
  const bool apart = axis.inner > 1, reduces = instruction.kind == OpKind::kReduction;
  const int64_t together = !apart && instruction.moves[0] != 0 ? count_ : 1;
  for (int64_t r = 0; r < count_; r += together) {
    const float* in = Read(instruction.operands[0], r);
    float* out = Row(instruction.result, r);
    if (apart) ToLines(axis, in, lines);
    kernels_.along({.op = instruction.op,
                    .lines = axis.outer * axis.inner,
                    .length = axis.length,
                    .epsilon = instruction.epsilon,
                    .in = apart ? lines : in,
                    .out = apart && !reduces ? made : out,
                    .moments = reduces ? nullptr : Moments(instruction, r),
                    .rows = together,
                    .in_n = instruction.operands[0].width,
                    .out_n = instruction.result.width,
                    .moments_n = section_.moment_floats});
    if (apart && !reduces) FromLines(axis, made, out);
  }
  for (int64_t r = 0; r < count_; ++r) ClearPadding(instruction.result, Row(instruction.result, r));
}

void Executor::PrimalRow(const PackedInstruction& instruction, int64_t r) {
  switch (instruction.kind) {
    case OpKind::kArrange:
      return Arrange(
          instruction, [&](int32_t k) { return Read(instruction.operands[k], r); },
          Row(instruction.result, r));
    case OpKind::kLookup: {
      // As in evaluate.cc: a negative index counts from the end, and one that is not there makes
      // NaN, which the answer shows.
      const auto rows = static_cast<float>(instruction.rows);
      const float index = Read(instruction.operands[0], r)[0];
      const float wanted = index < 0 ? index + rows : index;
      float* to = Row(instruction.result, r);
      if (wanted >= 0 && wanted < rows) {
        std::copy_n(instruction.table + static_cast<int64_t>(wanted) * instruction.result.width,
                    instruction.result.width, to);
      } else {
        std::fill_n(to, instruction.result.size, std::numeric_limits<float>::quiet_NaN());
        ClearPadding(instruction.result, to);
      }
      return;
    }
    default: {
      const ReverseCoefficients* const coefficients = CoefficientsOf(instruction, r);
      kernels_.reverse({.coefficients = coefficients,
                        .clip_range = clip_range_,
                        .state = Read(instruction.operands[0], r),
                        .prediction = Read(instruction.operands[1], r),
                        .noise = coefficients->sigma == 0 ? nullptr : contexts_[r].noise,
                        .next = Row(instruction.result, r),
                        .n = instruction.result.width});
      ClearPadding(instruction.result, Row(instruction.result, r));
    }
  }
}

}  // namespace deeppcr::cpu
