// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_space.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/backend/common.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {
namespace {

constexpr int64_t kGroupBytes = int64_t{64} << 20;
constexpr int64_t kMaxGroup = 256;

}  // namespace

int64_t SpaceSizes::bytes() const {
  const double states = static_cast<double>(shape.num_steps + 1) * shape.state_dim;
  const double floats = static_cast<double>(inputs) + shape.output_dim + 2 + shape.state_dim +
                        2 * width + states + scratch + beside;
  const double guesses = static_cast<double>(intervals) * width * iterative;
  const double bytes = (group * floats + guesses) * sizeof(float) +
                       static_cast<double>(slab_bytes) + static_cast<double>(loop_bytes) +
                       static_cast<double>(product_bytes) + sizeof(int64_t);  // num_dependent_
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

CudaSpace::CudaSpace(Device& device, const SpaceSizes& sizes, const DeviceChain& decode)
    : device_(device),
      limits_(device.limits()),
      sizes_(sizes),
      shape_(sizes_.shape),
      width_(static_cast<int>(sizes.width)),
      decode_(decode) {}

absl::Status CudaSpace::Allocate() {
  const int64_t group = sizes_.group, states = group * width_;
  DEEPPCR_RETURN_IF_ERROR(Take(&inputs_, MemoryKind::kMapped, group * sizes_.inputs));
  DEEPPCR_RETURN_IF_ERROR(Take(&outputs_, MemoryKind::kMapped, group * shape_.output_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&amplification_, MemoryKind::kMapped, group));
  DEEPPCR_RETURN_IF_ERROR(Take(&final_states_, MemoryKind::kMapped, group * shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(
      Take(&guesses_, MemoryKind::kMapped, sizes_.iterative * sizes_.intervals * width_));
  DEEPPCR_RETURN_IF_ERROR(Take(&num_dependent_, MemoryKind::kMapped, 1));
  DEEPPCR_RETURN_IF_ERROR(Take(&initial_, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(Take(&current_, MemoryKind::kDevice, states));
  DEEPPCR_RETURN_IF_ERROR(
      Take(&trajectories_, MemoryKind::kDevice, group * (shape_.num_steps + 1) * shape_.state_dim));
  DEEPPCR_RETURN_IF_ERROR(Take(&scratch_, MemoryKind::kDevice, group * sizes_.scratch));
  DEEPPCR_RETURN_IF_ERROR(Take(&slabs_, MemoryKind::kDevice, sizes_.slab_bytes));
  DEEPPCR_ASSIGN_OR_RETURN(stream_, device_.NewStream());
  if (sizes_.product_bytes == 0) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(Take(&for_products_, MemoryKind::kDevice, sizes_.product_bytes));
  return stream_->PrepareProducts(for_products_.data(), for_products_.size());
}

// ---- One sample, before and after
void CudaSpace::Encode(int32_t sample, const SampleInput& input) {
  std::copy_n(input.inputs, shape_.input_dim, inputs_.data() + sample * sizes_.inputs);
}
void CudaSpace::Decode(int32_t sample, float* outputs) {
  std::copy_n(outputs_.data() + sample * shape_.output_dim, shape_.output_dim, outputs);
}
double CudaSpace::AmplifyError(int32_t sample, double relative_error, double floor,
                               const float* outputs) {
  return AmplifiedError(relative_error, FinalState(sample), floor, amplification_.data()[sample],
                        {outputs, static_cast<size_t>(shape_.output_dim)});
}
std::span<const float> CudaSpace::FinalState(int32_t sample) const {
  return {final_states_.data() + sample * shape_.state_dim, static_cast<size_t>(shape_.state_dim)};
}
void CudaSpace::CopyState(int32_t sample, float* state) const {
  const std::span<const float> z = FinalState(sample);
  std::copy(z.begin(), z.end(), state);
}
bool CudaSpace::FinalStateFinite(int32_t sample) const {
  const std::span<const float> z = FinalState(sample);
  return std::all_of(z.begin(), z.end(), [](float x) { return std::isfinite(x); });
}

// ---- Sequential mode
int64_t CudaSpace::Advance(int32_t num_samples, int64_t begin, int64_t end,
                           float* const* trajectories) {
  LaunchSteps(num_samples, begin, end, Wanted(trajectories));
  if (end == shape_.num_steps) LaunchDecode(num_samples);
  stream_->Wait([] {});
  if (end == shape_.num_steps) CopyTrajectories(num_samples, trajectories);
  return stream_->status().ok() ? *num_dependent_.data() : 0;
}

// ---- Iterative mode
void CudaSpace::SetShootingInterval(int64_t steps) {
  interval_ = steps;
  intervals_ = NumIntervals(shape_, steps);
  guess_ = {};
}
void CudaSpace::GuessConstant(int32_t) { guess_ = {}; }
void CudaSpace::GuessTrajectory(int32_t sample, const float* trajectory) {
  const int64_t dim = shape_.state_dim;
  for (int64_t p = 0; p < intervals_; ++p) {
    const int64_t end = std::min((p + 1) * interval_, shape_.num_steps);
    float* const y = guesses_.data() + (sample * intervals_ + p) * width_;
    std::copy_n(trajectory + end * dim, dim, y);
    std::fill(y + dim, y + width_, 0.0F);
  }
  guess_ = {.states = guesses_.data()};
}

// ---- Layers around the recurrence
void CudaSpace::LaunchChain(const DeviceChain& chain, DenseChainArgs args, int32_t num_samples) {
  args.layers = chain.args().layers;
  args.num_layers = chain.args().num_layers;
  args.input_dim = chain.args().input_dim;
  args.output_dim = chain.args().output_dim;
  args.widest = chain.args().widest;
  args.scratch = chain.ScratchFloats(limits_) > 0 ? scratch_.data() : nullptr;
  stream_->Launch(args, num_samples);
}
void CudaSpace::LaunchDecode(int32_t num_samples) {
  LaunchChain(decode_,
              {.inputs = current_.data(),
               .input_stride = width_,
               .outputs = outputs_.data(),
               .output_stride = shape_.output_dim,
               .input_copies = final_states_.data(),
               .amplification = amplification_.data()},
              num_samples);
}
void CudaSpace::CopyTrajectories(int32_t num_samples, float* const* trajectories) {
  if (trajectories == nullptr) return;
  const int64_t floats = (shape_.num_steps + 1) * shape_.state_dim;
  for (int32_t b = 0; b < num_samples; ++b) {
    if (trajectories[b] == nullptr) continue;
    stream_->CopyToHost(trajectories[b], trajectories_.data() + b * floats,
                        static_cast<size_t>(floats) * sizeof(float));
  }
  stream_->Wait([] {});
}

}  // namespace deeppcr::cuda
