// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/stack/backward.h"

#include <algorithm>

namespace deeppcr::cpu {
namespace {

// The layer as a list of one, or of none.
std::span<const PackedDense> ListOf(const PackedDense& layer) {
  return {&layer, layer.rows == 0 ? size_t{0} : size_t{1}};
}

// A matrix is formed by the cotangents of all unit vectors.
int64_t ScratchFloats(const PackedStack& stack, const BackwardLimits& limits) {
  const int64_t columns =
      limits.parallel ? std::max(limits.columns, stack.shape.state_dim) : limits.columns;
  return std::max(RetreatScratchFloats(stack.width, limits.samples, limits.columns),
                  RetreatScratchFloats(stack.width, 1, columns));
}

}  // namespace

StackBackward::StackBackward(const PackedStack& stack, const BackwardLimits& limits)
    : stack_(stack),
      layers_(stack.View()),
      encode_(ListOf(stack.encode), stack.shape.state_dim),
      decode_(ListOf(stack.decode), stack.shape.state_dim),
      scratch_(ScratchFloats(stack, limits)),
      states_(limits.samples),
      sides_(limits.samples),
      deltas_(limits.samples) {}

int64_t StackBackward::Bytes(const PackedStack& stack, const BackwardLimits& limits) {
  return ScratchFloats(stack, limits) * int64_t{sizeof(float)} +
         OuterBackward::Bytes(ListOf(stack.encode), stack.shape.state_dim) +
         OuterBackward::Bytes(ListOf(stack.decode), stack.shape.state_dim);
}

void StackBackward::Begin(int32_t, const BackwardSample& taken, float* g) {
  BeginOutputs(decode_, stack_.shape, stack_.width, taken, g);
}

int64_t StackBackward::Retreat(const RetreatPass& pass) {
  const std::span<const BackwardSample> samples(pass.samples + pass.first_sample,
                                                static_cast<size_t>(pass.num_samples));
  const bool wanted = std::ranges::any_of(
      samples, [](const BackwardSample& sample) { return sample.state_cotangents != nullptr; });
  if (!pass.results || !wanted) return RetreatThrough(pass);
  // Step by step, as the kernel keeps no cotangents.
  const int64_t dim = stack_.shape.state_dim;
  int64_t stages = 0;
  for (int64_t l = pass.end; l > pass.begin; --l) {
    for (int32_t b = 0; b < pass.num_samples; ++b) {
      if (samples[b].state_cotangents == nullptr) continue;
      std::copy_n(pass.g + b * pass.columns * stack_.width, dim,
                  samples[b].state_cotangents + (l - 1) * dim);
    }
    RetreatPass step = pass;
    step.begin = l - 1;
    step.end = l;
    stages += RetreatThrough(step);
  }
  return stages;
}

int64_t StackBackward::RetreatThrough(const RetreatPass& pass) {
  bool sides = true;
  for (int32_t b = 0; b < pass.num_samples; ++b) {
    const BackwardSample& sample = pass.samples[pass.first_sample + b];
    states_[b] = sample.states;
    sides_[b] = sample.sides;
    sides = sides && sample.sides != nullptr;
    deltas_[b] = sample.deltas;
  }
  return stack_.kernels.retreat({.layers = layers_,
                                 .transposed = stack_.transposed.data(),
                                 .zeros = stack_.zeros.data(),
                                 .begin = pass.begin,
                                 .end = pass.end,
                                 .samples = pass.num_samples,
                                 .columns = pass.columns,
                                 .states = states_.data(),
                                 .sides = sides ? sides_.data() : nullptr,
                                 .g = pass.g,
                                 .deltas = pass.results ? deltas_.data() : nullptr,
                                 .scratch = scratch_.data()});
}

void StackBackward::Finish(int32_t, const BackwardSample& taken, const float* g) {
  const int64_t dim = stack_.shape.state_dim;
  for (int64_t j = 0; j < taken.columns && taken.initial != nullptr; ++j)
    std::copy_n(g + j * stack_.width, dim, taken.initial + j * dim);
  FinishInputs(encode_, stack_.shape, stack_.width, taken, g);
}

}  // namespace deeppcr::cpu
