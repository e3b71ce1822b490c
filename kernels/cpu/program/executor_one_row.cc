// SPDX-License-Identifier: Apache-2.0
// The run of one row alone, without tangents or threads.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/program/element_rows.h"
#include "kernels/cpu/program/executor.h"

namespace deeppcr::cpu {

std::vector<Executor::Call> Executor::CallsOfOneRow() {
  std::vector<Call> calls;
  static_assert(sizeof(Call) <= kCallFloats * sizeof(float));
  if (!ok()) return calls;
  calls.reserve(section_.instructions.size());
  for (int64_t i = 0; i < std::ssize(section_.instructions); ++i) {
    const PackedInstruction& instruction = section_.instructions[i];
    if (IsBranchOfOneRow(i)) {
      calls.push_back(BranchCall(i));
      i += section_.instructions[i + 1].together;
    } else if (instruction.layers != nullptr && instruction.repeat == 1) {
      calls.push_back(ProductCall(instruction));
    } else {
      calls.emplace_back().index = i;
      i += instruction.together - 1;
    }
  }
  return calls;
}

// True if one kernel takes the row through the layer `index` and the branch behind it.
bool Executor::IsBranchOfOneRow(int64_t index) const {
  const PackedInstruction* const linear = &section_.instructions[index];
  if (!linear->activated) return false;
  const PanelView& layer = linear->layers[0];
  return layer.width <= kMostPanelsInPlace * layer.panel &&
         layer.width == linear[linear[1].together].result.width;
}

Executor::Call Executor::ProductCall(const PackedInstruction& linear) {
  Call call;
  if (linear.layer_stride == 0) {
    call.layer = *linear.layers;
  } else {
    call.layers = linear.layers;
    call.layer_stride = linear.layer_stride;
  }
  call.in = OperandAt(linear.operands[0]);
  call.out = call.to = Row(linear.result, 0);
  call.size = linear.result.size;
  call.width = linear.result.width;
  return call;
}

Executor::Call Executor::BranchCall(int64_t index) {
  const PackedInstruction& linear = section_.instructions[index];
  const PackedInstruction* const first = &linear + 1;
  const PackedInstruction& last = first[first->together - 1];
  const bool sums = first->op == program::Op::kAdd;
  Call call = ProductCall(linear);
  call.branch = kernels_.layer_branch[static_cast<int>(sums ? first[1].op : first->op)];
  if (sums) call.added = OperandAt(first->operands[linear.other]);
  if (last.op == program::Op::kAdd && &last != first)
    call.beside = OperandAt(last.operands[first->other]);
  call.to = Row(last.result, 0);
  call.size = last.result.size;
  call.width = last.result.width;
  return call;
}

Executor::Operand Executor::OperandAt(const Place& place) {
  if (place.home == Home::kFrame) return {.in_frame = Row(place, 0)};
  return {.home = place.home, .offset = place.offset};
}

void Executor::RunOneRow(const CancelToken* token) {
  for (const Call& call : one_row_) {
    if (Fired(token)) return;
    if (call.index < 0) {
      RunLayer(call);
    } else if (section_.instructions[call.index].together > 1) {
      Joined(call.index);
    } else {
      Primal(section_.instructions[call.index]);
    }
  }
}

void Executor::RunLayer(const Call& call) {
  const PanelView& layer =
      call.layers == nullptr ? call.layer : call.layers[contexts_[0].step * call.layer_stride];
  const GemmArgs product = {.layer = &layer,
                            .bias = layer.bias,
                            .in = Read(call.in),
                            .out = call.out,
                            .in_stride = layer.cols,
                            .out_stride = layer.width,
                            .count = 1};
  if (call.branch == nullptr) {
    kernels_.gemm(nullptr, product);
  } else {
    call.branch(product, Read(call.added), Read(call.beside), call.to);
  }
  // Zero times what overflowed is NaN.
  if (call.width > call.size) std::fill(call.to + call.size, call.to + call.width, 0.0F);
}

}  // namespace deeppcr::cpu
