// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/training_system.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "kernels/base/control_group.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::training {
namespace {

// Layers of a piece of work: some ten microseconds.
constexpr int64_t kLayersOfPiece = 32;
// Bytes of a thread's workspace of the parallel way.
constexpr int64_t kMaxWorkspaceBytes = int64_t{256} << 20;
// And of blocks of layers, beyond which one of them takes too long between two looks at the token.
constexpr int64_t kMaxBlockedBytes = int64_t{32} << 20;

int NumThreads(int asked) { return asked > 0 ? asked : AvailableCores(); }

ResolvedOptions ForwardOptions(const SystemOptions& options, const SystemShape& shape) {
  if (options.way == BackwardWay::kSequential)
    return {.solver = "sequential", .num_steps = shape.num_steps};
  return {.solver = "newton",
          .rtol = options.rtol,
          .atol = SolveOptions{}.atol,
          .max_iterations = kDefaultMostIterations,
          .shooting_interval =
              static_cast<int32_t>(std::min<int64_t>(options.shooting_interval, shape.num_steps)),
          .num_steps = shape.num_steps};
}

}  // namespace

TrainingSystem::TrainingSystem(const ParameterLayout& layout, const SystemOptions& options)
    : layout_(layout),
      shape_(ShapeOf(layout.SpecOf(std::vector<float>(layout.size())))),
      pool_(NumThreads(options.num_threads)),
      forward_(ForwardOptions(options, shape_)),
      backward_{.way = options.way, .shooting_interval = forward_.shooting_interval},
      states_(kSamplesTogether * (shape_.num_steps + 1) * shape_.state_dim),
      deltas_(kSamplesTogether * shape_.num_steps * shape_.state_dim),
      encode_deltas_(kSamplesTogether * shape_.state_dim),
      reports_(kSamplesTogether),
      backward_reports_(kSamplesTogether),
      samples_(kSamplesTogether) {}

absl::StatusOr<std::unique_ptr<TrainingSystem>> TrainingSystem::Create(
    const ParameterLayout& layout, std::span<const float> parameters,
    const SystemOptions& options) {
  std::unique_ptr<TrainingSystem> system(new TrainingSystem(layout, options));
  DEEPPCR_RETURN_IF_ERROR(system->Prepare(parameters, options));
  return system;
}

absl::Status TrainingSystem::Prepare(std::span<const float> parameters,
                                     const SystemOptions& options) {
  if (!states_.ok() || !deltas_.ok())
    return ResourceExhausted("the trajectories of ", kSamplesTogether, " samples do not fit");
  DEEPPCR_ASSIGN_OR_RETURN(SelectedBackends selected, SelectBackends(options.backend));
  const SystemSpec spec = layout_.SpecOf(parameters);
  backend_ = std::move(selected.backends.front().backend);
  DEEPPCR_ASSIGN_OR_RETURN(system_, backend_->NewSystem(spec, {.backward = true}));
  const bool parallel = backward_.way == BackwardWay::kParallel;
  const bool alone = !parallel && pool_.num_threads() == 1 && !backend_->on_gpu();
  if (alone && BlockedPasses::Bytes(*system_, shape_, kSamplesTogether) <= kMaxBlockedBytes) {
    DEEPPCR_ASSIGN_OR_RETURN(blocked_, BlockedPasses::Create(*system_, shape_, kSamplesTogether));
    return absl::OkStatus();
  }
  const int64_t interval = std::max<int64_t>(1, forward_.shooting_interval);
  const SpaceLimits limits = {.min_shooting_interval = interval, .iterative = parallel};
  if (system_->SpaceBytes(limits) > kMaxWorkspaceBytes)
    return ResourceExhausted("shooting_interval: ", interval, " takes ",
                             system_->SpaceBytes(limits), " bytes per thread, ", kMaxWorkspaceBytes,
                             " allowed");
  DEEPPCR_ASSIGN_OR_RETURN(runner_, Runner::Create(*system_, shape_, limits, &pool_, 1));
  DEEPPCR_ASSIGN_OR_RETURN(BackwardLimits backward,
                           ChooseBackwardLimits(*system_, shape_.num_steps, kMaxWorkspaceBytes));
  backward.columns = 1;
  backward.parallel = parallel;
  backward.min_shooting_interval = interval;
  DEEPPCR_ASSIGN_OR_RETURN(backward_runner_,
                           BackwardRunner::Create(*system_, shape_, backward, &pool_, 1));
  return absl::OkStatus();
}

int64_t TrainingSystem::memory_bytes() const {
  const int64_t floats = states_.size() + deltas_.size() + std::ssize(encode_deltas_);
  const int64_t of_passes =
      blocked_ != nullptr
          ? BlockedPasses::Bytes(*system_, shape_, kSamplesTogether) + blocked_->side_bytes()
          : runner_->memory_bytes() + backward_runner_->memory_bytes();
  return floats * int64_t{sizeof(float)} + system_->memory_bytes() + of_passes;
}

template <class Work>
absl::Status TrainingSystem::OverLayers(const Work& work) {
  std::mutex mutex;
  absl::Status status;
  auto piece = [&](int64_t i) {
    const int64_t begin = i * kLayersOfPiece;
    const absl::Status done = work(begin, std::min(begin + kLayersOfPiece, shape_.num_steps));
    if (done.ok()) return;
    std::lock_guard lock(mutex);
    status = done;
  };
  pool_.ParallelFor((shape_.num_steps - 1) / kLayersOfPiece + 1, piece);
  return status;
}

absl::Status TrainingSystem::CheckStopped() const {
  return Fired(token_) ? absl::CancelledError("training was stopped") : absl::OkStatus();
}

absl::Status TrainingSystem::Pack(std::span<const float> parameters) {
  const DenseStackSpec spec = layout_.SpecOf(parameters);
  return OverLayers([&](int64_t begin, int64_t end) { return system_->Repack(spec, begin, end); });
}

absl::Status TrainingSystem::Forward(std::span<const float> inputs, std::span<const float> guesses,
                                     std::span<float> outputs, ForwardCounts* counts) {
  inputs_ = inputs;
  n_ = std::ssize(outputs) / shape_.output_dim;
  if (blocked_ != nullptr)
    return blocked_->Forward({.num_samples = n_, .inputs = inputs}, token_, states_.span(),
                             outputs);
  RunItem item = {
      .samples = {.num_samples = n_, .inputs = inputs, .initial_states = guesses},
      .outputs = outputs,
      .trajectory = states_.span().first(n_ * (shape_.num_steps + 1) * shape_.state_dim),
      .reports = std::span(reports_).first(n_),
      .token = token_};
  forward_.initial_guess = guesses.empty() ? InitialGuess::kConstant : InitialGuess::kPrevious;
  DEEPPCR_RETURN_IF_ERROR(runner_->Run(forward_, {&item, 1}, nullptr));
  DEEPPCR_RETURN_IF_ERROR(CheckStopped());
  for (const SampleReport& report : item.reports) {
    counts->fallbacks += report.fallback ? 1 : 0;
    counts->iterations = std::max<int64_t>(counts->iterations, report.iterations);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TrainingSystem::Backward(std::span<const float> of_outputs,
                                              std::span<float> gradients) {
  const int64_t dim = shape_.state_dim, steps = shape_.num_steps;
  for (int64_t b = 0; b < n_; ++b)
    samples_[b] = {.inputs = inputs_.data() + b * shape_.input_dim,
                   .states = states_.data() + b * (steps + 1) * dim,
                   .deltas = deltas_.data() + b * steps * dim,
                   .encode_delta = encode_deltas_.data() + b * dim,
                   // The output layer has no activation: the cotangents of the outputs are those of
                   // its pre-activations.
                   .decode_delta = of_outputs.data() + b * shape_.output_dim};
  const std::span<const ParameterSample> samples = std::span(samples_).first(n_);
  const ParameterSums sums = layout_.SumsOf(gradients);
  if (blocked_ == nullptr) {
    DEEPPCR_ASSIGN_OR_RETURN(const bool finite, FormDeltas(of_outputs));
    if (finite) DEEPPCR_RETURN_IF_ERROR(AddGradients(samples, sums));
    if (finite) return true;
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(const bool finite,
                             blocked_->Backward(samples, deltas_.span(), encode_deltas_, sums));
    if (finite) return true;
  }
  std::ranges::fill(gradients, 0.0F);
  return false;
}

absl::StatusOr<bool> TrainingSystem::FormDeltas(std::span<const float> of_outputs) {
  const int64_t dim = shape_.state_dim;
  BackwardItem item = {.samples = {.num_samples = n_, .inputs = inputs_},
                       .states = states_.span().first(n_ * (shape_.num_steps + 1) * dim),
                       .of_outputs = of_outputs,
                       .deltas = deltas_.span().first(n_ * shape_.num_steps * dim),
                       .encode_deltas = std::span(encode_deltas_).first(n_ * dim),
                       .reports = std::span(backward_reports_).first(n_),
                       .token = token_};
  DEEPPCR_RETURN_IF_ERROR(backward_runner_->Run(backward_, {&item, 1}));
  DEEPPCR_RETURN_IF_ERROR(CheckStopped());
  return std::ranges::all_of(item.reports, [](const BackwardReport& report) {
    return report.termination == Termination::kDirect;
  });
}

absl::Status TrainingSystem::AddGradients(std::span<const ParameterSample> samples,
                                          const ParameterSums& sums) {
  return OverLayers([&](int64_t begin, int64_t end) {
    DEEPPCR_RETURN_IF_ERROR(CheckStopped());
    return system_->AddParameterGradients(samples, begin, end, sums);
  });
}

}  // namespace deeppcr::training
