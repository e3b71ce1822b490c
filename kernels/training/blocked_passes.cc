// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/blocked_passes.h"

#include <algorithm>
#include <limits>

#include "kernels/base/finite.h"
#include "kernels/base/status_macros.h"

namespace deeppcr::training {

namespace {

int32_t SamplesOfGroup(const System& system) {
  return std::max(1, std::min(system.grouping().sequential, system.backward_grouping().samples));
}
SpaceLimits ForwardLimits(const SystemShape& shape) {
  return {.min_shooting_interval = shape.num_steps, .iterative = false};
}
BackwardLimits LimitsBack(int32_t group) { return {.samples = group, .parallel = false}; }

}  // namespace

int64_t BlockedPasses::Bytes(const System& system, const SystemShape& shape, int64_t most_samples) {
  const int32_t group = SamplesOfGroup(system);
  const int64_t of_group = system.SpaceBytes(ForwardLimits(shape)) / 2 +
                           system.BackwardSpaceBytes(LimitsBack(group)) / 2;
  const int64_t groups = (most_samples - 1) / group + 1;
  if (of_group > std::numeric_limits<int64_t>::max() / 2 / groups)
    return std::numeric_limits<int64_t>::max();
  return 2 * groups * of_group;
}

absl::StatusOr<std::unique_ptr<BlockedPasses>> BlockedPasses::Create(const System& system,
                                                                     const SystemShape& shape,
                                                                     int64_t most_samples) {
  const int32_t group = SamplesOfGroup(system);
  std::unique_ptr<BlockedPasses> passes(new BlockedPasses(system, shape, group, most_samples));
  if (!passes->sides_.ok())
    return absl::ResourceExhaustedError("the sides of the units of all layers do not fit");
  for (int64_t first = 0; first < most_samples; first += group) {
    Group& each = passes->groups_.emplace_back();
    DEEPPCR_ASSIGN_OR_RETURN(each.forward, system.NewSpace(ForwardLimits(shape)));
    DEEPPCR_ASSIGN_OR_RETURN(each.backward, system.NewBackwardSpace(LimitsBack(group)));
    each.trajectories.resize(group);
    if (system.side_bytes() == 0) continue;
    for (int64_t b = 0; b < group; ++b)
      each.sides.push_back(first + b < most_samples ? passes->SidesOf(first + b) : nullptr);
    each.forward->KeepSides(each.sides.data());
  }
  return passes;
}

absl::Status BlockedPasses::CheckStopped() const {
  return Fired(token_) ? absl::CancelledError("training was stopped") : absl::OkStatus();
}

absl::Status BlockedPasses::Forward(const SampleInputs& samples, const CancelToken* token,
                                    std::span<float> states, std::span<float> outputs) {
  token_ = token;
  const int64_t trajectory = (shape_.num_steps + 1) * shape_.state_dim;
  for (int64_t first = 0; Group & group : groups_) {
    group.samples =
        static_cast<int32_t>(std::clamp<int64_t>(samples.num_samples - first, 0, int64_t{group_}));
    for (int32_t b = 0; b < group.samples; ++b) {
      inputs_[first + b] = InputOf(samples, first + b, token);
      group.forward->Encode(b, inputs_[first + b]);
      group.trajectories[b] = states.data() + (first + b) * trajectory;
    }
    if (group.samples > 0) group.forward->Restart(group.samples);
    first += group.samples;
  }
  for (int64_t begin = 0; begin < shape_.num_steps; begin += kLayers) {
    DEEPPCR_RETURN_IF_ERROR(CheckStopped());
    const int64_t end = std::min(begin + kLayers, shape_.num_steps);
    for (Group& group : groups_)
      if (group.samples > 0)
        group.forward->Advance(group.samples, begin, end, group.trajectories.data());
  }
  for (int64_t first = 0; Group & group : groups_) {
    for (int32_t b = 0; b < group.samples; ++b)
      group.forward->Decode(b, outputs.data() + (first + b) * shape_.output_dim);
    first += group.samples;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BlockedPasses::Backward(std::span<const ParameterSample> samples,
                                             std::span<float> deltas,
                                             std::span<float> encode_deltas,
                                             const ParameterSums& sums) {
  const int64_t dim = shape_.state_dim, steps = shape_.num_steps;
  const auto n = std::ssize(samples);
  for (int64_t first = 0; Group & group : groups_) {
    for (int32_t b = 0; b < group.samples; ++b) {
      const int64_t i = first + b;
      group.backward->Begin(b, {.input = &inputs_[i],
                                .states = samples[i].states,
                                .sides = SidesOf(i),
                                .of_outputs = samples[i].decode_delta,
                                .deltas = deltas.data() + i * steps * dim,
                                .encode_delta = encode_deltas.data() + i * dim});
    }
    first += group.samples;
  }
  for (int64_t end = steps, begin = 0; end > 0; end = begin) {
    DEEPPCR_RETURN_IF_ERROR(CheckStopped());
    begin = std::max<int64_t>(0, end - kLayers);
    for (Group& group : groups_)
      if (group.samples > 0) group.backward->Retreat(group.samples, begin, end);
    for (int64_t i = 0; i < n; ++i)
      if (!AllFinite(deltas.subspan((i * steps + begin) * dim, (end - begin) * dim))) return false;
    if (begin == 0) {
      for (Group& group : groups_)
        for (int32_t b = 0; b < group.samples; ++b) group.backward->Finish(b);
      if (!AllFinite(encode_deltas.first(n * dim))) return false;
    }
    DEEPPCR_RETURN_IF_ERROR(system_.AddParameterGradients(samples, begin, end, sums));
  }
  return true;
}

}  // namespace deeppcr::training
