// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_space.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/device_loop.h"
#include "kernels/cuda/loop/pass_loop.h"

namespace deeppcr::cuda {
namespace {

class CudaSpace final : public SolveSpace {
 public:
  CudaSpace(Device& device, const SpaceSizes& sizes, const MakeRecurrence& make)
      : work_(device, sizes), recurrence_(make(work_)) {
    const bool by_warps = ByWarps(sizes.shape.state_dim, work_.limits);
    if (by_warps || sizes.solves_at_once) device_loop_.emplace(work_, *recurrence_);
    if (!by_warps) pass_loop_.emplace(work_, *recurrence_);
  }

  absl::Status Allocate() {
    DEEPPCR_RETURN_IF_ERROR(work_.Allocate());
    if (device_loop_.has_value()) DEEPPCR_RETURN_IF_ERROR(device_loop_->Allocate());
    if (pass_loop_.has_value()) DEEPPCR_RETURN_IF_ERROR(pass_loop_->Allocate());
    return recurrence_->Allocate();
  }

  // ---- One sample, before and after
  void Encode(int32_t sample, const SampleInput& input) override {
    std::copy_n(input.inputs, work_.shape.input_dim,
                work_.inputs.data() + sample * work_.sizes.inputs);
    recurrence_->Encode(sample, input);
    if (device_loop_.has_value()) device_loop_->Watch(sample, input.token);
  }
  void Decode(int32_t sample, float* outputs) override {
    const int64_t dim = work_.shape.output_dim;
    std::copy_n(work_.outputs.data() + sample * dim, dim, outputs);
  }
  double AmplifyError(int32_t sample, double relative_error, double floor,
                      const float* outputs) override {
    return AmplifiedError(relative_error, FinalState(sample), floor,
                          work_.amplification.data()[sample],
                          {outputs, static_cast<size_t>(work_.shape.output_dim)});
  }
  void CopyState(int32_t sample, float* state) const override {
    std::ranges::copy(FinalState(sample), state);
  }
  bool FinalStateFinite(int32_t sample) const override {
    return std::ranges::all_of(FinalState(sample), [](float x) { return std::isfinite(x); });
  }

  // ---- Sequential mode
  void Restart(int32_t num_samples) override { recurrence_->LaunchEncode(num_samples); }
  int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                  float* const* trajectories) override {
    const bool last = end == work_.shape.num_steps;
    recurrence_->LaunchSteps(num_samples, begin, end, work_.Wanted(trajectories));
    if (last) work_.LaunchDecode(recurrence_->decode(), num_samples);
    work_.stream->Wait([] {});
    if (last) work_.CopyTrajectories(num_samples, trajectories);
    return status().ok() ? *work_.num_dependent.data() : 0;
  }
  int64_t StepsPerPoll(int32_t num_samples) const override {
    return recurrence_->StepsPerPoll(num_samples);
  }

  // ---- Iterative mode
  void SetShootingInterval(int64_t steps) override {
    work_.interval = steps;
    work_.intervals = NumIntervals(work_.shape, steps);
    work_.guess = {};
  }
  int64_t num_intervals() const override { return work_.intervals; }
  void GuessConstant(int32_t) override { work_.guess = {}; }
  PassCount GuessCoarse(int32_t) override { return recurrence_->GuessCoarse(); }
  void GuessAffine(int32_t) override { recurrence_->GuessAffine(); }
  void GuessTrajectory(int32_t sample, const float* trajectory) override {
    const int64_t dim = work_.shape.state_dim, width = work_.width;
    for (int64_t p = 0; p < work_.intervals; ++p) {
      const int64_t end = std::min((p + 1) * work_.interval, work_.shape.num_steps);
      float* const y = work_.guesses.data() + (sample * work_.intervals + p) * width;
      std::copy_n(trajectory + end * dim, dim, y);
      std::fill(y + dim, y + width, 0.0F);
    }
    work_.guess = {.states = work_.guesses.data()};
  }
  std::variant<IterationPasses*, IterationLoop*> iteration(const StoppingPolicy& policy) override {
    const bool at_once =
        !pass_loop_.has_value() ||
        (device_loop_.has_value() && recurrence_->grid_tree(policy).num_intervals > 0);
    if (at_once) return &*device_loop_;
    return &*pass_loop_;
  }

  absl::Status status() const override { return work_.stream->status(); }

 private:
  std::span<const float> FinalState(int32_t sample) const {
    const int64_t dim = work_.shape.state_dim;
    return {work_.final_states.data() + sample * dim, static_cast<size_t>(dim)};
  }

  Workspace work_;
  const std::unique_ptr<Recurrence> recurrence_;
  // One of the two, or both: then that of the device is for solves that one launch makes.
  std::optional<DeviceLoop> device_loop_;
  std::optional<PassLoop> pass_loop_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SolveSpace>> NewCudaSpace(Device& device, const SpaceSizes& sizes,
                                                         const MakeRecurrence& make) {
  auto space = std::make_unique<CudaSpace>(device, sizes, make);
  DEEPPCR_RETURN_IF_ERROR(space->Allocate());
  return std::unique_ptr<SolveSpace>(std::move(space));
}

}  // namespace deeppcr::cuda
