// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_system.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_backward_space.h"
#include "kernels/cpu/cpu_space.h"
#include "kernels/cpu/program/system.h"
#include "kernels/cpu/stack/system.h"

namespace deeppcr::cpu {
namespace {

// Samples that keep a thread busy for some 400 us, so that two that share them have 200 each: what
// is shorter is over before a thread has woken and found its weights. Among others a sample takes
// about 1 ns a step and 0.025 ns per weight (tests/bench/results/NOTES.md).
int64_t SamplesWorthAThread(const SystemShape& shape) {
  const double per_step = 1 + 0.025 * static_cast<double>(shape.step_weights);
  return std::max<int64_t>(
      1, static_cast<int64_t>(4e5 / (static_cast<double>(shape.num_steps) * per_step)));
}

// More samples do not pay, as their states and cotangents come from farther away (measured at 1024
// layers of width 16: a sample takes 26 ns a layer among 8, 40 among 64).
constexpr BackwardGrouping kBackwardGrouping = {.samples = 8, .columns = 32};

class CpuSystem final : public System {
 public:
  explicit CpuSystem(std::unique_ptr<PackedSystem> packed) : packed_(std::move(packed)) {}

  int64_t memory_bytes() const override {
    return packed_->memory_bytes() +
           static_cast<int64_t>(packed_->guess.coefficients.size() * sizeof(float));
  }
  Grouping grouping() const override {
    return {.sequential = packed_->group,
            .worthwhile = SamplesWorthAThread(packed_->shape),
            .multiple = packed_->group_multiple,
            .shares_steps = packed_->shares_steps,
            .shares_passes = packed_->shares_passes};
  }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    return CpuSpaceBytes(*packed_, limits);
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const override {
    return NewCpuSpace(*packed_, limits);
  }
  BackwardGrouping backward_grouping() const override { return kBackwardGrouping; }
  int64_t BackwardSpaceBytes(const BackwardLimits& limits) const override {
    return CpuBackwardSpaceBytes(*packed_, limits);
  }
  absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(
      const BackwardLimits& limits) const override {
    return NewCpuBackwardSpace(*packed_, limits);
  }
  int64_t side_bytes() const override { return packed_->side_bytes(); }
  bool gives_state_cotangents() const override { return packed_->has_backward; }
  absl::Status AddParameterGradients(std::span<const ParameterSample> samples, int64_t begin,
                                     int64_t end, const ParameterSums& sums) const override {
    return packed_->AddParameterGradients(samples, begin, end, sums);
  }
  absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) override {
    return packed_->Repack(spec, begin, end);
  }
  absl::Status SetAffineGuess(const AffineGuess& guess) override {
    packed_->guess = guess;
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<PackedSystem> packed_;
};

// One overload per family.
struct NewSystemFrom {
  absl::StatusOr<std::unique_ptr<System>> operator()(const DenseStackSpec& spec) const {
    return Wrap(PackStack(spec, set.kernels, limits));
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionSpec& spec) const {
    return Wrap(PackProgramSystem(spec, set, limits));
  }
  absl::StatusOr<std::unique_ptr<System>> operator()(const DiffusionProgramSpec& spec) const {
    return Wrap(PackProgramSystem(spec, set, limits));
  }

  absl::StatusOr<std::unique_ptr<System>> operator()(const StackProgramSpec& spec) const {
    return Wrap(PackProgramSystem(spec, set, limits));
  }

  static absl::StatusOr<std::unique_ptr<System>> Wrap(
      absl::StatusOr<std::unique_ptr<PackedSystem>> packed) {
    DEEPPCR_RETURN_IF_ERROR(packed.status());
    return std::make_unique<CpuSystem>(*std::move(packed));
  }

  const KernelSet& set;
  const PackingLimits& limits;
};

}  // namespace

absl::StatusOr<std::unique_ptr<System>> NewCpuSystem(const SystemSpec& spec, const KernelSet& set,
                                                     const PackingLimits& limits) {
  return NewSystemOf(spec, NewSystemFrom{set, limits});
}

}  // namespace deeppcr::cpu
