// SPDX-License-Identifier: Apache-2.0
// Rounding in the executor: how much each operation rounds, and the probes that pick it up.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/program/element_rows.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cpu {

using program::Op;
using program::OpKind;

namespace {

// Size, in units of 2^-24, of a value that may be one or zero.
constexpr float kJumpSize = 0x1p24F;

}  // namespace

// Size of the rounding of a result, in units of 2^-24: what probes pick up, or, where an operation
// is exact, what it passes on of its operands' for the reach of later ones.
void Executor::SizeRow(const PackedInstruction& instruction, int64_t r) {
  const Place& result = instruction.result;
  const float* value = Row(result, r);
  float* size = Size(result, r);
  if (instruction.layers != nullptr && instruction.repeat == 1) {
    const Place& from = instruction.operands[0];
    kernels_.product_size(LayerOf(instruction, r), Read(from, r), from.width, value, size);
    return ClearPadding(result, size);
  }
  if (instruction.kind == OpKind::kArrange) {
    return Arrange(
        instruction, [&](int32_t k) { return SizeOrNull(instruction, k, r); }, size);
  }
  kernels_.scaled_size(instruction.ulps, value, size, result.width);
  if (instruction.kind == OpKind::kElementwise && instruction.ulps == 0) {
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      if (instruction.moves[k] != 0)
        kernels_.larger_size(Size(instruction.operands[k], r), size, result.width);
    }
  }
  if (instruction.layers != nullptr || instruction.kind == OpKind::kReduction)
    AddTerms(instruction, r, size);
  if (instruction.op == Op::kLess || instruction.op == Op::kEqual) SizeJump(instruction, r, size);
  if (instruction.op == Op::kGeluTanh) {
    const float* a = Read(instruction.operands[0], r);
    for (int64_t i = 0; i < result.size; ++i)
      size[i] = program::UlpsAt(instruction.op, a[i]) * std::fabs(value[i]);
  }
}

// The terms of sums round as they are added up, however little is left of them.
void Executor::AddTerms(const PackedInstruction& instruction, int64_t r, float* size) {
  const float* in = Read(instruction.operands[0], r);
  const Place& result = instruction.result;
  if (instruction.layers != nullptr) {
    const PanelView& layer = LayerOf(instruction, r);
    const int64_t cols = instruction.operands[0].size / instruction.repeat;
    const int64_t rows = result.size / instruction.repeat;
    for (int64_t i = 0; i < instruction.repeat; ++i) {
      float squares = 0;
      for (int64_t k = 0; k < cols; ++k) squares += in[i * cols + k] * in[i * cols + k];
      const float length = RoundingOfLongSum(cols) * std::sqrt(squares);
      for (int64_t k = 0; k < rows; ++k) {
        float& sum = size[i * rows + k];
        sum = std::hypot(layer.spreads[k] * length, RoundingOfDrift(cols) * sum);
      }
    }
    return;
  }
  const program::Axis& axis = instruction.axis;
  for (int64_t o = 0; o < axis.outer; ++o) {
    for (int64_t i = 0; i < axis.inner; ++i) {
      float squares = 0, passed_on = 0;
      for (int64_t a = 0; a < axis.length; ++a) {
        const int64_t at = (o * axis.length + a) * axis.inner + i;
        squares += in[at] * in[at];
        passed_on = std::max(passed_on, Size(instruction.operands[0], r)[at]);
      }
      if (instruction.op == Op::kLargest) {
        size[o * axis.inner + i] = passed_on;
        continue;
      }
      const float terms = std::sqrt(squares);
      size[o * axis.inner + i] +=
          instruction.op == Op::kMean ? terms / static_cast<float>(axis.length) : terms;
    }
  }
}

// A comparison may turn out otherwise where its operands are within their rounding.
void Executor::SizeJump(const PackedInstruction& instruction, int64_t r, float* size) {
  const float* a = Read(instruction.operands[0], r);
  const float* b = Read(instruction.operands[1], r);
  for (int64_t i = 0; i < instruction.result.size; ++i) {
    float reach = 0;
    for (int k = 0; k < 2; ++k) {
      if (instruction.moves[k] == 0) continue;
      float probe = 0;
      for (int64_t v = 0; v < along_.probes; ++v)
        probe =
            std::max(probe, std::fabs(Tangent(instruction.operands[k], r * along_.columns + v)[i]));
      reach += SlopeReach(Size(instruction.operands[k], r)[i], probe);
    }
    size[i] = std::fabs(a[i] - b[i]) > reach ? 0 : kJumpSize;
  }
}

void Executor::AddSource(const PackedInstruction& instruction, int64_t index, int64_t r) {
  const bool jumps = instruction.op == Op::kLess || instruction.op == Op::kEqual;
  if (instruction.ulps == 0 && !jumps) return;
  const int64_t instructions = std::ssize(section_.instructions);
  const Place& result = instruction.result;
  SourceArgs source = {.size = Size(result, r),
                       .seeds = instruction.seeds,
                       .probes = Tangent(result, r * along_.columns),
                       .count = along_.probes,
                       .n = result.width,
                       .salt = contexts_[r].draw * instructions + index};
  kernels_.source(source);
  if (instruction.op != Op::kStandardize) return;
  // The rounding of the mean, which moves all elements of a line alike: equal elements round alike.
  float* of_mean = scratch_.data();
  const program::Axis& axis = instruction.axis;
  const float* moments = Moments(instruction, r);
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i) {
        const float* line = moments + 2 * (o * axis.inner + i);
        of_mean[(o * axis.length + a) * axis.inner + i] = 2 * std::fabs(line[0] * line[1]);
      }
  std::fill(of_mean + result.size, of_mean + result.width, 0.0F);
  source.size = of_mean;
  source.salt += int64_t{1} << 20;
  source.alike = true;
  kernels_.source(source);
}

// Probes through what bends within their reach.
void Executor::ProbesElementwise(const PackedInstruction& instruction, const float* const* slopes,
                                 int64_t r) {
  const int64_t n = instruction.result.width;
  if (instruction.operands.size() == 1) {
    if (instruction.op == Op::kAbs) return ProbesOfAbs(instruction, r);
    if (instruction.op != Op::kNegate) ProbesNear(instruction, slopes[0], r);
    return;
  }
  if (instruction.op != Op::kMaximum && instruction.op != Op::kMinimum) return;
  float* zeros = scratch_.data() + (kScratchRows - 1) * section_.widest;
  std::fill_n(zeros, n, 0.0F);
  EitherArgs either = {.slopes = {slopes[0], slopes[1]},
                       .seeds = instruction.seeds,
                       .out = Tangent(instruction.result, r * along_.columns),
                       .count = along_.probes,
                       .n = n,
                       .salt = contexts_[r].draw};
  for (int k = 0; k < 2; ++k) {
    either.a[k] = Read(instruction.operands[k], r);
    either.sizes[k] = SizeOrNull(instruction, k, r);
    if (instruction.moves[k] != 0)
      either.probes[k] = Tangent(instruction.operands[k], r * along_.columns);
    if (either.slopes[k] == nullptr) either.slopes[k] = zeros;
  }
  kernels_.either(either);
}

namespace {
// The larger and the smaller of two; NaN where one of them is.
float LargerOrNan(float a, float b) { return b > a || b != b ? b : a; }
float SmallerOrNan(float a, float b) { return b < a || b != b ? b : a; }

uint32_t HashOf(const PackedInstruction& instruction, int64_t v, int64_t i, int64_t draw) {
  return instruction.seeds[v * instruction.result.width + i] * 0x9E3779B9U +
         static_cast<uint32_t>(draw) * 0x85EBCA6BU;
}
// As in Either of kernels_impl.h.
float OffTheMiddle(float between, const PackedInstruction& instruction, int64_t v, int64_t i,
                   int64_t draw) {
  uint32_t hash = HashOf(instruction, v / 2 * 2, i, draw);
  hash ^= hash >> 13;
  hash *= 0xC2B2AE35U;
  const float share = 0.75F + 0.5F * 0x1p-23F * static_cast<float>(hash & 0x007FFFFFU);
  return (v % 2 == 0) == (hash >> 31 == 0) ? share * between : -share * between;
}
}  // namespace

// Within the rounding of zero either side may be met. The probe takes a sign of its own and half as
// much again, so that no sum with the operand cancels in it, as x + |x| would.
void Executor::ProbesOfAbs(const PackedInstruction& instruction, int64_t r) {
  const Place& from = instruction.operands[0];
  const float* a = Read(from, r);
  for (int64_t i = 0; i < instruction.result.size; ++i) {
    float largest = 0;
    for (int64_t v = 0; v < along_.probes; ++v)
      largest = LargerOrNan(largest, std::fabs(Tangent(from, r * along_.columns + v)[i]));
    if (std::fabs(a[i]) > SlopeReach(Size(from, r)[i], largest)) continue;
    for (int64_t v = 0; v < along_.probes; ++v) {
      const uint32_t hash = HashOf(instruction, v, i, contexts_[r].draw);
      Tangent(instruction.result, r * along_.columns + v)[i] =
          (hash >> 31 != 0 ? 1.5F : -1.5F) * largest;
    }
  }
}

void Executor::ProbesNear(const PackedInstruction& instruction, const float* slope, int64_t r) {
  const ElementwiseKernels& kernel = kernels_.elementwise[static_cast<int>(instruction.op)];
  const int64_t n = instruction.result.width;
  float* below = scratch_.data() + 3 * section_.widest;
  float* above = below + section_.widest;
  float* slopes[2] = {above + section_.widest, above + 2 * section_.widest};
  const float* probes = Tangent(instruction.operands[0], r * along_.columns);
  kernels_.near({.a = Read(instruction.operands[0], r),
                 .size = Size(instruction.operands[0], r),
                 .probes = probes,
                 .count = along_.probes,
                 .n = n,
                 .below = below,
                 .above = above});
  const float* at[2] = {below, above};
  for (int side = 0; side < 2; ++side) {
    float* to[1] = {slopes[side]};
    kernel.slopes(&at[side], to, n);
  }
  kernels_.spread({.slopes = {slope, slopes[0], slopes[1]},
                   .probes = probes,
                   .out = Tangent(instruction.result, r * along_.columns),
                   .count = along_.probes,
                   .n = n});
}

// Probes of the largest element. Where several could be it within their rounding, a probe goes
// beyond those of all of them (EitherArgs in kernels.h).
void Executor::ProbesOfLargest(const PackedInstruction& instruction, int64_t r) {
  if (along_.probes == 0) return;
  const program::Axis& axis = instruction.axis;
  const Place& from = instruction.operands[0];
  const float* in = Read(from, r);
  const float* size = Size(from, r);
  const float* largest = Row(instruction.result, r);
  const auto probe_at = [&](int64_t v, int64_t i) {
    return Tangent(from, r * along_.columns + v)[i];
  };
  const auto reach_at = [&](int64_t i) {
    float probe = 0;
    for (int64_t v = 0; v < along_.probes; ++v)
      probe = LargerOrNan(probe, std::fabs(probe_at(v, i)));
    return SlopeReach(size[i], probe);
  };
  for (int64_t line = 0; line < axis.outer * axis.inner; ++line) {
    const auto at = [&](int64_t a) {
      return (line / axis.inner * axis.length + a) * axis.inner + line % axis.inner;
    };
    float of_largest = 0;
    for (int64_t a = 0; a < axis.length; ++a)
      if (in[at(a)] == largest[line]) of_largest = LargerOrNan(of_largest, reach_at(at(a)));
    const auto probe_of = [&](int64_t v) -> float& {
      return Tangent(instruction.result, r * along_.columns + v)[line];
    };
    float low[kNumProbes], high[kNumProbes];
    for (int64_t v = 0; v < along_.probes; ++v) low[v] = high[v] = probe_of(v);
    for (int64_t a = 0; a < axis.length; ++a) {
      if (largest[line] - in[at(a)] > of_largest + reach_at(at(a))) continue;
      for (int64_t v = 0; v < along_.probes; ++v) {
        low[v] = SmallerOrNan(low[v], probe_at(v, at(a)));
        high[v] = LargerOrNan(high[v], probe_at(v, at(a)));
      }
    }
    float between = 0;
    for (int64_t v = 0; v < along_.probes; ++v) between = LargerOrNan(between, high[v] - low[v]);
    for (int64_t v = 0; v < along_.probes; ++v)
      probe_of(v) = 0.5F * low[v] + 0.5F * high[v] +
                    OffTheMiddle(between, instruction, v, line, contexts_[r].draw);
  }
}

}  // namespace deeppcr::cpu
