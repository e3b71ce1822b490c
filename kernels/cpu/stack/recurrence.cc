// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/stack/recurrence.h"

#include <algorithm>

namespace deeppcr::cpu {
namespace {

// Floats of PropagateArgs::scratch or of the sequential kernel's scratch, whichever is larger.
int64_t WalkerFloats(const PackedStack& stack) {
  const int64_t walker = 2 * (stack.width + kColumns - 1) * stack.width + 4 * stack.width;
  return std::max(walker, kSequentialGroup * stack.width);
}

int64_t ScratchFloats(const PackedStack& stack) {
  return WalkerFloats(stack) + std::max(stack.decode.width, int64_t{4});
}

// Intervals between two polls of the token: some hundred microseconds of work on one core.
int64_t IntervalsPerProbe(int64_t width, int64_t vectors_per_interval) {
  return std::max<int64_t>(1, (int64_t{1} << 22) / (width * width * vectors_per_interval));
}

}  // namespace

StackRecurrence::StackRecurrence(const PackedStack& stack)
    : stack_(stack),
      layers_(stack.View()),
      scratch_(ScratchFloats(stack)),
      decoded_(scratch_.data() + WalkerFloats(stack)) {}

int64_t StackRecurrence::Bytes(const PackedStack& stack) {
  return ScratchFloats(stack) * static_cast<int64_t>(sizeof(float));
}

void StackRecurrence::Encode(int32_t, const SampleInput& input, float* z) {
  const int64_t dim = stack_.shape.state_dim;
  if (stack_.encode.rows == 0) {
    std::copy_n(input.inputs, dim, z);
    return;
  }
  stack_.encode.Apply(input.inputs, z);
  std::fill(z + dim, z + stack_.width, 0.0F);
}

void StackRecurrence::Decode(const float* z, float* outputs) {
  if (stack_.decode.rows == 0) {
    std::copy_n(z, stack_.shape.state_dim, outputs);
    return;
  }
  stack_.decode.Apply(z, decoded_);
  std::copy_n(decoded_, stack_.decode.rows, outputs);
}

// The output layer has no activation.
double StackRecurrence::OutputAmplification(const float*) {
  return stack_.decode.rows == 0 ? 1 : stack_.decode.row_sum;
}

int64_t StackRecurrence::Advance(float* states, int32_t n, int64_t begin, int64_t end,
                                 float* const* trajectories) {
  return stack_.kernels.advance(layers_, states, scratch_.data(), n, begin, end,
                                {.states = trajectories, .sides = sides_});
}

PassCount StackRecurrence::Propagate(const IntervalPass& pass) {
  PassCount count;
  // The diagonal comes out of the primal pass.
  const bool dense = pass.matrices != nullptr && !pass.diagonal;
  count.columns = (pass.probes ? kColumns : 1) + (dense ? stack_.shape.state_dim : 0);
  const int64_t together = IntervalsPerProbe(stack_.width, pass.interval * count.columns);
  for (int64_t p = 0; p < pass.num_intervals && !Fired(pass.token); p += together) {
    const int64_t stages =
        stack_.kernels.propagate({.layers = layers_,
                                  .interval = pass.interval,
                                  .first_interval = p,
                                  .end_interval = std::min(p + together, pass.num_intervals),
                                  .states = pass.states,
                                  .propagated = pass.propagated,
                                  .jacobians = pass.matrices,
                                  .scratch = scratch_.data(),
                                  .diagonal = pass.diagonal,
                                  .probes = pass.probes,
                                  .draw = pass.draw});
    count.stages = std::max(count.stages, stages);
  }
  return count;
}

// Places z_0: dense stacks have no coarse guess, and requests that ask for it are refused before.
PassCount StackRecurrence::GuessCoarse(int64_t interval, int64_t stride, float* states,
                                       const CancelToken*) {
  const int64_t intervals = (stack_.shape.num_steps - 1) / interval + 1;
  for (int64_t p = 1; p <= intervals; ++p) std::copy_n(states, stack_.width, states + p * stride);
  return {};
}

}  // namespace deeppcr::cpu
