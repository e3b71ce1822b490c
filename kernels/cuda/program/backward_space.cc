// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/backward_space.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/base/cancel_token.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/backward_samples.h"
#include "kernels/cuda/math/dense_back.h"
#include "kernels/cuda/program/backward_shape.h"
#include "kernels/cuda/program/recurrence.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {
namespace {

// Launches of a pass, each of which counts the steps that it makes one after another.
enum CountedLaunch : int { kForming, kWalking, kRetreating, kNumCountedLaunches };

bool TakesVector(const ProgramModel& model) { return model.back().condition.num_exports > 0; }

bool HasDeltas(const ProgramModel& model) {
  return !model.shape().draws_noise && model.back().state.layer.size == model.shape().state_dim;
}

// Numbers of values of a space's buffers. G samples, the more of both ways.
struct BackwardSizes {
  SpaceSizes forward;            // of what the samples have for themselves, and their states
  int64_t of_outputs = 0;        // [G, m, output_dim]
  int64_t of_final = 0;          // [G, m, D]
  int64_t by_inputs = 0;         // [G, m, input_dim]
  int64_t gradients = 0;         // [G, m, W]
  int64_t step_noise = 0;        // [G, m, L, sample_dim]
  int64_t state_cotangents = 0;  // [G, L, D]
  int64_t deltas = 0;            // the same, of steps with a layer of D elements
  int64_t vectors = 0;           // [scanned, P, m, W]
  int64_t matrices = 0;          // [scanned, places of the tree, D, W]
  int64_t condition_sums = 0;    // [G or scanned P, m, floats of the condition's row]
  int64_t outer = 0;             // of the layers before and after
  int64_t workspace_bytes = 0;

  int64_t bytes() const {
    const int64_t floats = of_outputs + of_final + by_inputs + 2 * gradients + step_noise +
                           state_cotangents + deltas + 2 * vectors + matrices + condition_sums +
                           outer;
    return forward.bytes() + floats * int64_t{sizeof(float)} + workspace_bytes +
           kNumCountedLaunches * int64_t{sizeof(int64_t)};
  }
};

// The largest workspace of any launch.
int64_t MostWorkspaceBytes(const Device& device, const ProgramModel& model,
                           const BackwardLimits& limits, int64_t intervals) {
  const ProgramBackView& back = model.back();
  int64_t most = 0;
  // A request may have fewer cotangents than there is room for, and matrices have D.
  const int64_t of_matrices = limits.parallel ? model.shape().state_dim : 1;
  for (const int64_t columns : {int64_t{1}, limits.columns, of_matrices}) {
    const int64_t parts = (columns - 1) / BackColumns(columns) + 1;
    const int64_t jobs = MostSamples(limits) * intervals * parts;
    for (const bool condition : {false, true})
      most = std::max(
          most, WorkspaceBytes(RetreatShape(back, condition, columns, device.limits()), jobs));
    most = std::max(most, WorkspaceBytes(ConditionBackShape(back, columns, device.limits()), jobs));
  }
  return most;
}

// Sizes, or none where they are beyond all memory.
std::optional<BackwardSizes> SizesOf(const Device& device, const ProgramModel& model,
                                     const BackwardLimits& limits) {
  const SystemShape& shape = model.shape();
  const int64_t group = MostSamples(limits), width = model.width(), m = limits.columns;
  const int64_t intervals = limits.parallel ? NumIntervals(shape, limits.min_shooting_interval) : 1;
  const int64_t condition = TakesVector(model) ? model.view().condition_floats : 0;
  constexpr int64_t kMost = int64_t{1} << 38;  // floats
  const auto fits = [](std::initializer_list<int64_t> factors) {
    const absl::StatusOr<int64_t> product = CheckedProduct(factors);
    return product.ok() && *product <= kMost;
  };
  const int64_t widest = std::max({shape.input_dim, shape.output_dim, width, condition});
  if (!fits({group, m, widest, intervals}) || !fits({group, intervals, width, width}) ||
      !fits({group, m, shape.num_steps + 1, width}))
    return std::nullopt;
  const int64_t rows = group * m;
  BackwardSizes sizes = {
      .forward = SizesOf(device.limits(), model, {.iterative = false}),
      .of_outputs = rows * shape.output_dim,
      .of_final = rows * shape.state_dim,
      .by_inputs = rows * shape.input_dim,
      .gradients = rows * width,
      .step_noise = shape.draws_noise ? rows * shape.num_steps * shape.sample_dim() : 0,
      .state_cotangents = group * shape.num_steps * shape.state_dim,
      .deltas = HasDeltas(model) ? group * shape.num_steps * shape.state_dim : 0,
      .condition_sums = rows * condition,
      .outer = DenseBack::Floats(model.encode(), device.limits(), group, m) +
               DenseBack::Floats(model.decode(), device.limits(), group, m),
      .workspace_bytes = MostWorkspaceBytes(device, model, limits, intervals),
  };
  sizes.forward.loop_bytes = 0;  // of steps, which none are made of
  sizes.forward.group = group;
  sizes.forward.iterative = 0;
  if (!limits.parallel) return sizes;
  const int64_t scanned = limits.scanned_samples * intervals;
  sizes.vectors = scanned * m * width;
  const RetreatTree tree = {static_cast<int32_t>(intervals)};
  sizes.matrices = limits.scanned_samples * tree.places() * shape.state_dim * width;
  sizes.condition_sums = std::max(sizes.condition_sums, scanned * m * condition);
  return sizes;
}

class ProgramBackwardSpace final : public BackwardSpace, public BackwardScan {
 public:
  ProgramBackwardSpace(Device& device, const ProgramModel& model, const BackwardSizes& sizes)
      : model_(model),
        shape_(model.shape()),
        sizes_(sizes),
        work_(device, sizes.forward),
        samples_(static_cast<size_t>(sizes.forward.group)),
        encode_(model.encode()),
        decode_(model.decode()) {}

  absl::Status Allocate(int64_t columns) {
    DEEPPCR_RETURN_IF_ERROR(work_.Allocate());
    recurrence_ = NewRecurrenceOfBlocks(work_, model_);
    DEEPPCR_RETURN_IF_ERROR(recurrence_->Allocate());
    const int64_t group = sizes_.forward.group;
    DEEPPCR_RETURN_IF_ERROR(encode_.Allocate(work_.device, group, columns));
    DEEPPCR_RETURN_IF_ERROR(decode_.Allocate(work_.device, group, columns));
    constexpr auto kMapped = MemoryKind::kMapped, kDevice = MemoryKind::kDevice;
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&labels_, kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&of_outputs_, kMapped, sizes_.of_outputs));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&of_final_, kMapped, sizes_.of_final));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&by_inputs_, kMapped, sizes_.by_inputs));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&by_initial_, kMapped, sizes_.gradients));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&num_dependent_, kMapped, kNumCountedLaunches));
    std::fill_n(num_dependent_.data(), kNumCountedLaunches, 0);
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&gradients_, kDevice, sizes_.gradients));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&step_noise_, kDevice, sizes_.step_noise));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&state_cotangents_, kDevice, sizes_.state_cotangents));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&deltas_, kDevice, sizes_.deltas));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&entering_, kDevice, sizes_.vectors));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&leaving_, kDevice, sizes_.vectors));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&matrices_, kDevice, sizes_.matrices));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&condition_sums_, kDevice, sizes_.condition_sums));
    return work_.Take(&workspace_, kDevice, sizes_.workspace_bytes);
  }

  void Begin(int32_t sample, const BackwardSample& taken) override {
    columns_ = taken.columns;
    samples_[static_cast<size_t>(sample)] = taken;
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    work_.stream->CopyToDevice(work_.trajectories.data() + sample * states, taken.states,
                               static_cast<size_t>(states) * sizeof(float));
    std::copy_n(taken.input->inputs, shape_.input_dim,
                work_.inputs.data() + sample * work_.sizes.inputs);
    recurrence_->Encode(sample, *taken.input);
    labels_.data()[sample] = static_cast<float>(taken.input->label);
    PlaceCotangents(taken.of_outputs, sample, columns_ * shape_.output_dim, of_outputs_);
    PlaceCotangents(taken.of_final, sample, columns_ * shape_.state_dim, of_final_);
  }

  // ---- Step by step
  int64_t StepsPerPoll(int32_t num_samples) const override {
    return StepsOf(num_samples, columns_);
  }
  int64_t Retreat(int32_t num_samples, int64_t begin, int64_t end) override {
    if (end == shape_.num_steps) LaunchBefore(num_samples);
    Launch({.shooting_interval = shape_.num_steps,
            .done = shape_.num_steps - end,
            .count = end - begin,
            .entering = gradients_.data(),
            .leaving = gradients_.data()},
           num_samples, kRetreating);
    if (begin == 0) {
      LaunchCondition(num_samples, 1);
      LaunchInputs(num_samples, gradients_.data(), 1);
    }
    work_.stream->Wait([] {});
    if (begin == 0) CopyResults(num_samples);
    return DependentOf(kRetreating);
  }

  // ---- By intervals
  std::variant<BackwardScanStages*, BackwardScan*> scan() override { return this; }
  PassCount GoBack(int32_t num_samples, int64_t shooting_interval) override {
    const auto intervals = static_cast<int32_t>(NumIntervals(shape_, shooting_interval));
    LaunchBefore(num_samples);
    PassCount count = {.columns = intervals > 1 ? 1 + shape_.state_dim : 1};
    if (intervals > 1) {
      // A_p of all intervals but the first, which no cotangent goes through as a matrix.
      count.stages += LaunchInPieces({.shooting_interval = shooting_interval,
                                      .first_interval = 1,
                                      .leaving = matrices_.data()},
                                     num_samples, kForming);
      count.stages += LaunchScan(num_samples, intervals);
    }
    count.stages +=
        LaunchInPieces({.shooting_interval = shooting_interval,
                        .entering = intervals > 1 ? entering_.data() : gradients_.data(),
                        .leaving = leaving_.data()},
                       num_samples, kRetreating);
    LaunchCondition(num_samples, intervals);
    LaunchInputs(num_samples, leaving_.data(), intervals);
    work_.stream->Wait([] {});
    CopyResults(num_samples);
    count.stages += DependentOf(kRetreating);
    if (intervals > 1) count.stages += DependentOf(kForming) + DependentOf(kWalking);
    return count;
  }

  void Finish(int32_t sample) override {
    const BackwardSample& taken = samples_[static_cast<size_t>(sample)];
    const int64_t row = sample * columns_, dim = shape_.sample_dim(), width = model_.width();
    for (int64_t j = 0; j < columns_ && taken.initial != nullptr; ++j)
      for (int64_t i = 0; i < dim; ++i)
        taken.initial[j * dim + i] =
            model_.initial_scale() * by_initial_.data()[(row + j) * width + i];
    if (taken.inputs == nullptr) return;
    const int64_t floats = columns_ * shape_.input_dim;
    if (shape_.draws_noise && !TakesVector(model_)) {
      // The program does not read the condition that the model takes.
      std::fill_n(taken.inputs, floats, 0.0F);
    } else {
      std::copy_n(by_inputs_.data() + sample * floats, floats, taken.inputs);
    }
  }

  absl::Status status() const override { return work_.stream->status(); }

 private:
  int64_t DependentOf(CountedLaunch launch) const {
    return status().ok() ? num_dependent_.data()[launch] : 0;
  }
  // Samples of a group want the same results.
  bool WantsCondition() const { return TakesVector(model_) && samples_[0].inputs != nullptr; }
  ProgramBackView View() const {
    ProgramBackView view = model_.back();
    view.process = recurrence_->ProcessFrom(0);
    return view;
  }
  BackMemory MemoryOf(const ProgramBackShape& shape) const {
    return {workspace_.data(), shape.workspace_bytes, shape.frames_in_workspace};
  }

  // What the samples have for themselves, and g_L from the cotangents of outputs and final states.
  void LaunchBefore(int32_t num_samples) {
    if (shape_.draws_noise) recurrence_->LaunchEncode(num_samples);
    const int64_t dim = shape_.state_dim;
    const float* const finals = work_.trajectories.data() + shape_.num_steps * dim;
    decode_.Launch(*work_.stream, num_samples, static_cast<int32_t>(columns_),
                   {.inputs = finals,
                    .input_stride = (shape_.num_steps + 1) * dim,
                    .of_outputs = of_outputs_.data(),
                    .of_outputs_stride = shape_.output_dim,
                    .beside = of_final_.data(),
                    .beside_dim = static_cast<int32_t>(dim),
                    .of_inputs = gradients_.data(),
                    .of_inputs_stride = model_.width()});
  }
  // Steps that some milliseconds are taken to suffice for, where so many intervals go back with so
  // many cotangents each: a step is made forwards, and back with two products for each that was
  // made, which takes longer where the values lie in a workspace.
  int64_t StepsOf(int64_t intervals, int64_t columns) const {
    const ProgramBackShape shape = RetreatShape(model_.back(), true, columns, work_.limits);
    const int64_t jobs = intervals * ((columns - 1) / shape.columns + 1);
    const int64_t blocks = std::clamp<int64_t>(work_.limits.multiprocessors, 1, shape.num_blocks);
    const int64_t waves = 3 * ((jobs - 1) / blocks + 1);
    return std::max<int64_t>(1, recurrence_->StepsPerPoll(1) /
                                    (waves * (shape.frames_in_workspace ? kWorkspaceCost : 1)));
  }
  // True if nobody waits for any of the samples.
  bool AllFired(int32_t num_samples) const {
    return std::all_of(samples_.begin(), samples_.begin() + num_samples,
                       [](const BackwardSample& taken) { return Fired(taken.input->token); });
  }
  // Goes back through intervals, with a look at the tokens between launches where one would take
  // too long, and no further once all have fired. Returns the dependent steps of all launches but
  // the last, which is yet to be waited for.
  int64_t LaunchInPieces(ProgramRetreatArgs args, int32_t num_samples, CountedLaunch launch) {
    const int64_t columns = launch == kForming ? shape_.state_dim : columns_;
    args.count = StepsOf(num_samples * NumIntervals(shape_, args.shooting_interval), columns);
    int64_t made = 0;
    for (; args.done < args.shooting_interval; args.done += args.count) {
      if (args.done > 0) {
        work_.stream->Wait([] {});
        made += DependentOf(launch);
      }
      if (AllFired(num_samples)) break;
      Launch(args, num_samples, launch);
    }
    return made;
  }
  // Goes back through intervals with the arguments that are given.
  void Launch(ProgramRetreatArgs args, int32_t num_samples, CountedLaunch launch) {
    const bool forms = launch == kForming;
    const ProgramBackView view = View();
    args.num_columns = static_cast<int32_t>(forms ? shape_.state_dim : columns_);
    const bool condition = !forms && WantsCondition();
    const ProgramBackShape shape = RetreatShape(view, condition, args.num_columns, work_.limits);
    args.model = view;
    args.memory = MemoryOf(shape);
    args.num_samples = num_samples;
    args.states = work_.trajectories.data();
    args.num_dependent = num_dependent_.data() + launch;
    if (!forms) {
      if (samples_[0].step_noise != nullptr) args.step_noise = step_noise_.data();
      if (samples_[0].state_cotangents != nullptr) args.state_cotangents = state_cotangents_.data();
      if (samples_[0].deltas != nullptr) args.deltas = deltas_.data();
      if (condition) args.condition_sums = condition_sums_.data();
    }
    work_.stream->Launch(args, shape);
  }
  // Takes g_L to the ends of all intervals. Returns the number of levels of the tree that were gone
  // through, up and down.
  int64_t LaunchScan(int32_t num_samples, int32_t intervals) {
    const ProgramScanArgs scan = {.tree = {intervals},
                                  .num_samples = num_samples,
                                  .num_columns = static_cast<int32_t>(columns_),
                                  .state_dim = static_cast<int32_t>(shape_.state_dim),
                                  .width = model_.width(),
                                  .matrices = matrices_.data(),
                                  .final_gradients = gradients_.data(),
                                  .entering = entering_.data(),
                                  .num_dependent = num_dependent_.data() + kWalking};
    const int top = scan.tree.chain_level();
    int64_t levels = 0;
    const auto launch = [&](ScanPart part, int level) {
      work_.stream->Launch(ProgramLevelArgs{scan, part, level});
      if (part != ScanPart::kWalk) ++levels;
    };
    for (int level = 1; level <= top; ++level) launch(ScanPart::kMultiply, level);
    launch(ScanPart::kWalk, top);
    for (int level = top; level-- > 0;) launch(ScanPart::kDescend, level);
    return levels;
  }
  void LaunchCondition(int32_t num_samples, int32_t intervals) {
    if (!WantsCondition()) return;
    const ProgramBackView view = View();
    const ProgramBackShape shape = ConditionBackShape(view, columns_, work_.limits);
    work_.stream->Launch(ConditionBackArgs{.model = view,
                                           .memory = MemoryOf(shape),
                                           .num_samples = num_samples,
                                           .num_columns = static_cast<int32_t>(columns_),
                                           .num_intervals = intervals,
                                           .sums = condition_sums_.data(),
                                           .inputs = work_.inputs.data(),
                                           .input_stride = work_.sizes.inputs,
                                           .labels = labels_.data(),
                                           .of_inputs = by_inputs_.data()},
                         shape);
  }
  // g_0, which lies in the first of so many intervals, and of a stack the cotangents of the inputs.
  void LaunchInputs(int32_t num_samples, const float* from, int32_t intervals) {
    const int64_t floats = columns_ * model_.width();
    for (int32_t b = 0; b < num_samples; ++b)
      work_.stream->CopyToHost(by_initial_.data() + b * floats, from + b * intervals * floats,
                               static_cast<size_t>(floats) * sizeof(float));
    if (shape_.draws_noise) return;
    encode_.Launch(*work_.stream, num_samples, static_cast<int32_t>(columns_),
                   {.inputs = work_.inputs.data(),
                    .input_stride = work_.sizes.inputs,
                    .of_outputs = by_initial_.data(),
                    .of_outputs_stride = model_.width(),
                    .beside = nullptr,
                    .beside_dim = 0,
                    .of_inputs = by_inputs_.data(),
                    .of_inputs_stride = shape_.input_dim});
  }
  // Copies once the pass is done, as a copy to the caller's memory keeps the host from other work.
  void CopyResults(int32_t num_samples) {
    const int64_t noise = columns_ * shape_.num_steps * shape_.sample_dim();
    const int64_t states = shape_.num_steps * shape_.state_dim;
    for (int32_t b = 0; b < num_samples; ++b) {
      const BackwardSample& taken = samples_[static_cast<size_t>(b)];
      if (taken.step_noise != nullptr)
        work_.stream->CopyToHost(taken.step_noise, step_noise_.data() + b * noise,
                                 static_cast<size_t>(noise) * sizeof(float));
      if (taken.state_cotangents != nullptr)
        work_.stream->CopyToHost(taken.state_cotangents, state_cotangents_.data() + b * states,
                                 static_cast<size_t>(states) * sizeof(float));
      const auto copy_deltas = [&](float* to, const DenseBack& layers, int64_t rows) {
        if (to != nullptr && layers.deltas() != nullptr)
          work_.stream->CopyToHost(to, layers.deltas() + b * rows,
                                   static_cast<size_t>(rows) * sizeof(float));
      };
      copy_deltas(taken.encode_delta, encode_, shape_.state_dim);
      copy_deltas(taken.decode_delta, decode_, shape_.output_dim);
      if (taken.deltas != nullptr)
        work_.stream->CopyToHost(taken.deltas, deltas_.data() + b * states,
                                 static_cast<size_t>(states) * sizeof(float));
    }
    work_.stream->Wait([] {});
  }

  const ProgramModel& model_;
  const SystemShape& shape_;  // of the model
  const BackwardSizes sizes_;
  int64_t columns_ = 1;  // m of the samples at hand
  Workspace work_;
  std::vector<BackwardSample> samples_;  // G
  DenseBack encode_, decode_;
  std::unique_ptr<BlockRecurrence<ProgramView>> recurrence_;
  // Mapped memory; of the gradients by z_0 those of the whole group.
  DeviceBuffer<float> labels_, of_outputs_, of_final_, by_inputs_, by_initial_;
  DeviceBuffer<int64_t> num_dependent_;
  // Device memory.
  DeviceBuffer<float> gradients_, step_noise_, state_cotangents_, deltas_;
  DeviceBuffer<float> entering_, leaving_, matrices_, condition_sums_;
  DeviceBuffer<std::byte> workspace_;
};

}  // namespace

BackwardGrouping BackwardGroupingOf(const ProgramModel& model) {
  const auto group = static_cast<int32_t>(std::min(GroupSize(model.shape(), 0), kBackSamples));
  return {.samples = group,
          .scanned_samples = std::min<int32_t>(group, kWorkspaceGroup),
          .columns = kBackwardColumns};
}

int64_t BackwardSpaceBytes(const Device& device, const ProgramModel& model,
                           const BackwardLimits& limits) {
  const std::optional<BackwardSizes> sizes = SizesOf(device, model, limits);
  return sizes.has_value() ? sizes->bytes() : std::numeric_limits<int64_t>::max();
}

absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(Device& device,
                                                                const ProgramModel& model,
                                                                const BackwardLimits& limits) {
  if (model.back().process.num_steps == 0)
    return absl::UnimplementedError("the model was loaded without its backward pass");
  const std::optional<BackwardSizes> sizes = SizesOf(device, model, limits);
  if (!sizes.has_value()) return absl::ResourceExhaustedError("backward pass: beyond all memory");
  auto space = std::make_unique<ProgramBackwardSpace>(device, model, *sizes);
  DEEPPCR_RETURN_IF_ERROR(space->Allocate(limits.columns));
  return std::unique_ptr<BackwardSpace>(std::move(space));
}

}  // namespace deeppcr::cuda
