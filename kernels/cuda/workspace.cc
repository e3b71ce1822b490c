// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/workspace.h"

#include <algorithm>
#include <limits>

#include "kernels/base/status_macros.h"

namespace deeppcr::cuda {

int64_t SpaceSizes::bytes() const {
  const double states = static_cast<double>(shape.num_steps + 1) * shape.state_dim;
  const double floats = static_cast<double>(inputs) + shape.output_dim + 2 + shape.state_dim +
                        2 * width + states + scratch + beside;
  const double guesses = static_cast<double>(intervals) * width * iterative;
  const double bytes = (group * floats + guesses) * sizeof(float) +
                       static_cast<double>(workspace_bytes) + static_cast<double>(loop_bytes) +
                       static_cast<double>(product_bytes) + sizeof(int64_t);  // num_dependent
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return bytes < static_cast<double>(kMost) ? static_cast<int64_t>(bytes) : kMost;
}

int64_t GroupSize(const SystemShape& shape, int64_t floats_beside) {
  const int64_t floats = (shape.num_steps + 1) * shape.state_dim + floats_beside;
  return std::clamp<int64_t>(kGroupBytes / (floats * int64_t{sizeof(float)}), 1, kMaxGroup);
}

int64_t NumIntervals(const SystemShape& shape, int64_t shooting_interval) {
  return (shape.num_steps - 1) / shooting_interval + 1;
}

Workspace::Workspace(Device& on, const SpaceSizes& of)
    : device(on),
      limits(on.limits()),
      sizes(of),
      shape(sizes.shape),
      width(static_cast<int>(of.width)) {}

absl::Status Workspace::Allocate() {
  const int64_t group = sizes.group, states = group * width;
  DEEPPCR_RETURN_IF_ERROR(Take(&inputs, MemoryKind::kMapped, group * sizes.inputs));
  DEEPPCR_RETURN_IF_ERROR(Take(&outputs, MemoryKind::kMapped, group * shape.output_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&amplification, MemoryKind::kMapped, group));
  DEEPPCR_RETURN_IF_ERROR(Take(&final_states, MemoryKind::kMapped, group * shape.state_dim));
  DEEPPCR_RETURN_IF_ERROR(
      Take(&guesses, MemoryKind::kMapped, sizes.iterative * sizes.intervals * width));
  DEEPPCR_RETURN_IF_ERROR(Take(&num_dependent, MemoryKind::kMapped, 1));
  DEEPPCR_RETURN_IF_ERROR(Take(&initial, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(Take(&current, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(
      Take(&trajectories, MemoryKind::kDevice, group * (shape.num_steps + 1) * shape.state_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&scratch, MemoryKind::kDevice, group * sizes.scratch));
  DEEPPCR_RETURN_IF_ERROR(Take(&block_memory, MemoryKind::kDevice, sizes.workspace_bytes));
  DEEPPCR_ASSIGN_OR_RETURN(stream, device.NewStream());
  if (sizes.product_bytes == 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(Take(&for_products, MemoryKind::kDevice, sizes.product_bytes));
  return stream->PrepareProducts(for_products.data(), for_products.size());
}

void Workspace::LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples) {
  args.layers = chain.args().layers;
  args.num_layers = chain.args().num_layers;
  args.input_dim = chain.args().input_dim;
  args.output_dim = chain.args().output_dim;
  args.widest = chain.args().widest;
  args.scratch = chain.ScratchFloats(limits) > 0 ? scratch.data() : nullptr;
  stream->Launch(args, num_samples);
}

void Workspace::LaunchDecode(const DeviceChain& decode, int32_t num_samples) {
  LaunchChain(decode,
              {.inputs = current.data(),
               .input_stride = width,
               .outputs = outputs.data(),
               .output_stride = shape.output_dim,
               .input_copies = final_states.data(),
               .copied_dim = shape.state_dim,
               .amplification = amplification.data()},
              num_samples);
}

void Workspace::CopyTrajectories(int32_t num_samples, float* const* callers) {
  if (callers == nullptr) return;
  const int64_t floats = (shape.num_steps + 1) * shape.state_dim;
  for (int32_t b = 0; b < num_samples; ++b) {
    if (callers[b] == nullptr) continue;
    stream->CopyToHost(callers[b], trajectories.data() + b * floats,
                       static_cast<size_t>(floats) * sizeof(float));
  }
  stream->Wait([] {});
}

}  // namespace deeppcr::cuda
