// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/faulty_backend.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

namespace deeppcr::testing {
namespace {

void NextFloat(float* value) { *value = std::nextafter(*value, 1e30F); }

class FaultyPasses final : public IterationPasses {
 public:
  FaultyPasses(IterationPasses& inner, Fault fault, int64_t row)
      : inner_(inner), fault_(fault), row_(row) {}

  void Begin(int32_t n) override { inner_.Begin(n); }
  PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) override {
    return inner_.Propagate(samples, kind);
  }
  bool interrupted(int32_t sample) const override { return inner_.interrupted(sample); }
  void UpSweep(std::span<const int32_t> samples, int level, IterationKind kind) override {
    inner_.UpSweep(samples, level, kind);
  }
  void DownSweep(std::span<const int32_t> samples, int level, IterationKind kind) override {
    inner_.DownSweep(samples, level, kind);
  }
  void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
              std::span<UpdateNorms> norms) override {
    inner_.Update(samples, kind, floor, norms);
    const double factor = fault_ == Fault::kEarlyCertified   ? 1e-9
                          : fault_ == Fault::kNeverCertified ? 1e9
                                                             : 1;
    for (UpdateNorms& each : norms) {
      each.update *= factor;
      each.combined *= factor;
      each.share *= factor;
    }
  }
  void Finish(int32_t n, float* const* trajectories) override {
    inner_.Finish(n, trajectories);
    if (fault_ != Fault::kNotCausal || trajectories == nullptr) return;
    for (int32_t b = 0; b < n; ++b) {
      if (trajectories[b] != nullptr) NextFloat(trajectories[b] + row_);
    }
  }

 private:
  IterationPasses& inner_;
  const Fault fault_;
  const int64_t row_;  // width of a state: the element that is off is the first of z_1
};

class FaultySpace final : public SolveSpace {
 public:
  FaultySpace(std::unique_ptr<SolveSpace> inner, Fault fault, SystemShape shape)
      : inner_(std::move(inner)), fault_(fault), shape_(shape) {}

  void SetTeam(Team* team) override { inner_->SetTeam(team); }
  void Encode(int32_t sample, const SampleInput& input) override {
    SampleInput wrong = input;
    std::vector<float> inputs;
    if (fault_ == Fault::kEncode) {
      inputs.assign(input.inputs, input.inputs + shape_.input_dim);
      inputs.front() += 1e-2F;
      wrong.inputs = inputs.data();
    }
    if (fault_ == Fault::kOtherNoise) ++wrong.sample;
    if (fault_ == Fault::kNoLabel) wrong.label = 0;
    encoded_ = std::max(sample + 1, sample == 0 ? 1 : encoded_);
    inner_->Encode(sample, wrong);
  }
  void Decode(int32_t sample, float* outputs) override {
    inner_->Decode(fault_ == Fault::kWrongSample && sample == 1 ? 0 : sample, outputs);
    const int64_t n = shape_.output_dim;
    if (fault_ == Fault::kOutputOrder) std::rotate(outputs, outputs + 1, outputs + n);
    if (fault_ == Fault::kNotANumber) outputs[n - 1] = std::numeric_limits<float>::quiet_NaN();
    if (fault_ == Fault::kLastSample && sample > 1 && sample == encoded_ - 1) NextFloat(outputs);
    if (fault_ == Fault::kBatchBits && encoded_ > 1) NextFloat(outputs);
    if (fault_ == Fault::kRare && ++decoded_ % 30 == 0) NextFloat(outputs);
  }
  double AmplifyError(int32_t sample, double error, double floor, const float* outputs) override {
    return inner_->AmplifyError(sample, error, floor, outputs);
  }
  void Restart(int32_t n) override { inner_->Restart(n); }
  int64_t Advance(int32_t n, int64_t begin, int64_t end, float* const* trajectories) override {
    if (fault_ == Fault::kHangs) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (fault_ == Fault::kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return inner_->Advance(n, begin, end, trajectories);
  }
  int64_t StepsPerPoll(int32_t n) const override { return inner_->StepsPerPoll(n); }
  void CopyState(int32_t sample, float* state) const override {
    inner_->CopyState(sample, state);
    if (fault_ == Fault::kFinalState) state[0] += 1;
  }
  bool FinalStateFinite(int32_t sample) const override { return inner_->FinalStateFinite(sample); }
  void SetShootingInterval(int64_t steps) override { inner_->SetShootingInterval(steps); }
  int64_t num_intervals() const override { return inner_->num_intervals(); }
  void GuessConstant(int32_t sample) override { inner_->GuessConstant(sample); }
  PassCount GuessCoarse(int32_t sample) override { return inner_->GuessCoarse(sample); }
  void GuessAffine(int32_t sample) override { inner_->GuessAffine(sample); }
  void GuessTrajectory(int32_t sample, const float* trajectory) override {
    inner_->GuessTrajectory(sample, trajectory);
  }
  std::variant<IterationPasses*, IterationLoop*> iteration(const StoppingPolicy& policy) override {
    passes_ = std::make_unique<FaultyPasses>(*std::get<IterationPasses*>(inner_->iteration(policy)),
                                             fault_, shape_.state_dim);
    return passes_.get();
  }
  absl::Status status() const override { return inner_->status(); }

 private:
  const std::unique_ptr<SolveSpace> inner_;
  std::unique_ptr<FaultyPasses> passes_;
  const Fault fault_;
  const SystemShape shape_;
  int32_t encoded_ = 0;  // samples of the group
  int decoded_ = 0;
};

class FaultySystem final : public System {
 public:
  FaultySystem(std::unique_ptr<System> inner, Fault fault, SystemShape shape)
      : inner_(std::move(inner)), fault_(fault), shape_(shape) {}

  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  Grouping grouping() const override { return inner_->grouping(); }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    return inner_->SpaceBytes(limits);
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const override {
    auto space = inner_->NewSpace(limits);
    if (!space.ok()) return space.status();
    return std::make_unique<FaultySpace>(*std::move(space), fault_, shape_);
  }
  absl::Status SetAffineGuess(const AffineGuess& guess) override {
    return inner_->SetAffineGuess(guess);
  }

 private:
  const std::unique_ptr<System> inner_;
  const Fault fault_;
  const SystemShape shape_;
};

class FaultyBackend final : public Backend {
 public:
  FaultyBackend(std::unique_ptr<Backend> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  std::string_view name() const override { return "faulty"; }
  std::string_view device() const override { return inner_->device(); }
  DeviceClass device_class() const override { return inner_->device_class(); }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits& limits) const override {
    SystemSpec wrong = spec;
    std::vector<float> weights, biases;
    if (auto* stack = std::get_if<DenseStackSpec>(&wrong)) {
      weights.assign(stack->weights.begin(), stack->weights.end());
      biases.assign(stack->biases.begin(), stack->biases.end());
      if (fault_ == Fault::kLayerWeights) weights[weights.size() / 2] *= 1.01F;
      if (fault_ == Fault::kForgottenBias)
        std::fill(biases.end() - stack->state_dim, biases.end(), 0.0F);
      stack->weights = weights;
      stack->biases = biases;
    }
    auto system = inner_->NewSystem(wrong, limits);
    if (!system.ok()) return system.status();
    return std::make_unique<FaultySystem>(*std::move(system), fault_, ShapeOf(spec));
  }

 private:
  const std::unique_ptr<Backend> inner_;
  const Fault fault_;
};

}  // namespace

std::unique_ptr<Backend> NewFaultyBackend(std::unique_ptr<Backend> inner, Fault fault) {
  return std::make_unique<FaultyBackend>(std::move(inner), fault);
}

}  // namespace deeppcr::testing
