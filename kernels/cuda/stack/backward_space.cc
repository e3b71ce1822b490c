// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/backward_space.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/backward_samples.h"
#include "kernels/cuda/stack/backward_shape.h"
#include "kernels/cuda/tuning.h"
#include "kernels/cuda/workspace.h"

namespace deeppcr::cuda {
namespace {

// Numbers of values of a space's buffers. G samples, the more of both ways.
struct BackwardSizes {
  int64_t inputs = 0;           // [G, input_dim]
  int64_t of_outputs = 0;       // [G, m, output_dim]
  int64_t of_final = 0;         // [G, m, D]
  int64_t by_inputs = 0;        // [G, m, input_dim]
  int64_t gradients = 0;        // [G, m, W]
  int64_t states = 0;           // [G, L + 1, D]
  int64_t deltas = 0;           // [G, L, D]
  int64_t encode_deltas = 0;    // [G, m, D]
  int64_t decode_deltas = 0;    // [G, m, output_dim]
  int64_t workspace_bytes = 0;  // of all scans

  int64_t bytes() const {
    const int64_t floats = inputs + of_outputs + of_final + by_inputs + 3 * gradients + states +
                           deltas + encode_deltas + decode_deltas;
    return floats * int64_t{sizeof(float)} + workspace_bytes + int64_t{sizeof(int64_t)};
  }
};

BackwardScanSize ScanSize(const StackModel& model, int64_t interval, int64_t columns) {
  return {.width = model.width(),
          .num_intervals = static_cast<int32_t>(NumIntervals(model.shape(), interval)),
          .shooting_interval = static_cast<int32_t>(interval),
          .num_columns = static_cast<int32_t>(columns)};
}

// The largest workspace of a scan with at least so many steps per interval. Of all intervals that
// give the same number P of them, the longest takes the most.
int64_t MostWorkspaceBytes(const Device& device, const StackModel& model,
                           const BackwardLimits& limits) {
  const int64_t steps = model.shape().num_steps;
  int64_t most = 0;
  for (int64_t interval = limits.min_shooting_interval; interval <= steps; ++interval) {
    const int64_t intervals = NumIntervals(model.shape(), interval);
    interval = intervals == 1 ? steps : (steps - 1) / (intervals - 1);
    most = std::max(
        most, BackwardWorkspaceBytes(ScanSize(model, interval, limits.columns), device.limits()));
  }
  return most;
}

// Sizes, or none where they are beyond all memory.
std::optional<BackwardSizes> SizesOf(const Device& device, const StackModel& model,
                                     const BackwardLimits& limits) {
  const SystemShape& shape = model.shape();
  const int64_t group = MostSamples(limits), width = model.width();
  const int64_t widest = std::max({shape.input_dim, shape.output_dim, width});
  constexpr int64_t kMost = int64_t{1} << 40;  // floats
  const auto fits = [](std::initializer_list<int64_t> factors) {
    const absl::StatusOr<int64_t> product = CheckedProduct(factors);
    return product.ok() && *product <= kMost;
  };
  if (!fits({group, limits.columns, widest}) || !fits({group, shape.num_steps + 1, width, width}))
    return std::nullopt;
  const int64_t rows = group * limits.columns;
  BackwardSizes sizes = {
      .inputs = group * shape.input_dim,
      .of_outputs = rows * shape.output_dim,
      .of_final = rows * shape.state_dim,
      .by_inputs = rows * shape.input_dim,
      .gradients = rows * width,
      .states = group * (shape.num_steps + 1) * shape.state_dim,
      .deltas = group * shape.num_steps * shape.state_dim,
      .encode_deltas = model.encode().OnlyLayer().rows * rows,
      .decode_deltas = model.decode().OnlyLayer().rows * rows,
  };
  if (limits.parallel)
    sizes.workspace_bytes = limits.scanned_samples * MostWorkspaceBytes(device, model, limits);
  return sizes;
}

class CudaBackwardSpace final : public BackwardSpace, public BackwardScan {
 public:
  CudaBackwardSpace(Device& device, const StackModel& model, const BackwardSizes& sizes,
                    int64_t group)
      : device_(device), model_(model), shape_(model.shape()), sizes_(sizes), samples_(group) {}

  absl::Status Allocate() {
    const auto mapped = [&](DeviceBuffer<float>* buffer, int64_t size) {
      return Take(buffer, MemoryKind::kMapped, size);
    };
    DEEPPCR_RETURN_IF_ERROR(mapped(&inputs_, sizes_.inputs));
    DEEPPCR_RETURN_IF_ERROR(mapped(&of_outputs_, sizes_.of_outputs));
    DEEPPCR_RETURN_IF_ERROR(mapped(&of_final_, sizes_.of_final));
    DEEPPCR_RETURN_IF_ERROR(mapped(&by_inputs_, sizes_.by_inputs));
    DEEPPCR_RETURN_IF_ERROR(mapped(&by_initial_, sizes_.gradients));
    DEEPPCR_RETURN_IF_ERROR(mapped(&encode_deltas_, sizes_.encode_deltas));
    DEEPPCR_RETURN_IF_ERROR(mapped(&decode_deltas_, sizes_.decode_deltas));
    DEEPPCR_RETURN_IF_ERROR(Take(&num_dependent_, MemoryKind::kMapped, 1));
    DEEPPCR_RETURN_IF_ERROR(Take(&gradients_, MemoryKind::kDevice, sizes_.gradients));
    DEEPPCR_RETURN_IF_ERROR(Take(&initial_, MemoryKind::kDevice, sizes_.gradients));
    DEEPPCR_RETURN_IF_ERROR(Take(&states_, MemoryKind::kDevice, sizes_.states));
    DEEPPCR_RETURN_IF_ERROR(Take(&deltas_, MemoryKind::kDevice, sizes_.deltas));
    DEEPPCR_RETURN_IF_ERROR(Take(&workspace_, MemoryKind::kDevice, sizes_.workspace_bytes));
    DEEPPCR_ASSIGN_OR_RETURN(stream_, device_.NewStream());
    return absl::OkStatus();
  }

  void Begin(int32_t sample, const BackwardSample& taken) override {
    columns_ = taken.columns;
    samples_[sample] = taken;
    const int64_t states = (shape_.num_steps + 1) * shape_.state_dim;
    stream_->CopyToDevice(states_.data() + sample * states, taken.states,
                          static_cast<size_t>(states) * sizeof(float));
    std::copy_n(taken.input->inputs, shape_.input_dim, inputs_.data() + sample * shape_.input_dim);
    PlaceCotangents(taken.of_outputs, sample, columns_ * shape_.output_dim, of_outputs_);
    PlaceCotangents(taken.of_final, sample, columns_ * shape_.state_dim, of_final_);
  }

  // ---- Step by step
  int64_t StepsPerPoll(int32_t) const override { return kWarpStepsPerPoll; }
  int64_t Retreat(int32_t num_samples, int64_t begin, int64_t end) override {
    if (end == shape_.num_steps) LaunchOutputs(num_samples);
    stream_->Launch(BackwardStepsArgs{.backward = Args(num_samples, gradients_),
                                      .begin = static_cast<int32_t>(begin),
                                      .end = static_cast<int32_t>(end)},
                    model_.width());
    if (begin == 0) LaunchInputs(num_samples, gradients_);
    stream_->Wait([] {});
    if (begin == 0) CopyDeltas(num_samples);
    return Dependent();
  }

  // ---- By a scan
  std::variant<BackwardScanStages*, BackwardScan*> scan() override { return this; }
  PassCount GoBack(int32_t num_samples, int64_t shooting_interval) override {
    const BackwardScanSize size = ScanSize(model_, shooting_interval, columns_);
    const NewtonShape shape = ChooseBackwardShape(size, num_samples, device_.limits());
    LaunchOutputs(num_samples);
    stream_->Launch(BackwardScanArgs{.backward = Args(num_samples, initial_),
                                     .tree = IntervalTree(size.num_intervals, shape.num_blocks),
                                     .shooting_interval = size.shooting_interval,
                                     .workspace = shape.in_workspace ? workspace_.data() : nullptr},
                    shape);
    LaunchInputs(num_samples, initial_);
    stream_->Wait([] {});
    CopyDeltas(num_samples);
    return {.stages = Dependent(), .columns = size.num_intervals > 1 ? shape_.state_dim + 1 : 1};
  }

  void Finish(int32_t sample) override {
    const BackwardSample& taken = samples_[sample];
    const int64_t row = sample * columns_, dim = shape_.state_dim, width = model_.width();
    for (int64_t j = 0; j < columns_ && taken.initial != nullptr; ++j)
      std::copy_n(by_initial_.data() + (row + j) * width, dim, taken.initial + j * dim);
    const auto give = [&](float* to, const DeviceBuffer<float>& from, int64_t size) {
      if (to != nullptr) std::copy_n(from.data() + row * size, columns_ * size, to);
    };
    give(taken.inputs, by_inputs_, shape_.input_dim);
    give(taken.encode_delta, encode_deltas_, model_.encode().OnlyLayer().rows);
    give(taken.decode_delta, decode_deltas_, model_.decode().OnlyLayer().rows);
  }

  absl::Status status() const override { return stream_->status(); }

 private:
  template <class T>
  absl::Status Take(DeviceBuffer<T>* buffer, MemoryKind kind, int64_t size) {
    DEEPPCR_ASSIGN_OR_RETURN(*buffer, DeviceBuffer<T>::New(device_, kind, size));
    return absl::OkStatus();
  }
  int64_t Dependent() const { return status().ok() ? *num_dependent_.data() : 0; }

  BackwardArgs Args(int32_t num_samples, const DeviceBuffer<float>& to) const {
    const bool deltas = samples_[0].deltas != nullptr;
    return {.stack = model_.view(),
            .num_samples = num_samples,
            .num_columns = static_cast<int32_t>(columns_),
            .states = states_.data(),
            .final_gradients = gradients_.data(),
            .initial_gradients = to.data(),
            .deltas = deltas ? deltas_.data() : nullptr,
            .num_dependent = num_dependent_.data()};
  }
  // g_L from the cotangents of outputs and final states.
  void LaunchOutputs(int32_t num_samples) {
    const int64_t dim = shape_.state_dim;
    // The final states, one trajectory after another.
    stream_->Launch(DenseBackArgs{.layer = model_.decode().OnlyLayer(),
                                  .num_columns = static_cast<int32_t>(columns_),
                                  .inputs = states_.data() + shape_.num_steps * dim,
                                  .input_stride = (shape_.num_steps + 1) * dim,
                                  .of_outputs = of_outputs_.data(),
                                  .of_outputs_stride = shape_.output_dim,
                                  .beside = of_final_.data(),
                                  .beside_dim = static_cast<int32_t>(dim),
                                  .deltas = decode_deltas_.data(),
                                  .of_inputs = gradients_.data(),
                                  .of_inputs_stride = model_.width()},
                    num_samples);
  }
  // The cotangents of the inputs from g_0, which the host gets as well.
  void LaunchInputs(int32_t num_samples, const DeviceBuffer<float>& from) {
    stream_->Launch(DenseBackArgs{.layer = model_.encode().OnlyLayer(),
                                  .num_columns = static_cast<int32_t>(columns_),
                                  .inputs = inputs_.data(),
                                  .input_stride = shape_.input_dim,
                                  .of_outputs = from.data(),
                                  .of_outputs_stride = model_.width(),
                                  .beside = nullptr,
                                  .beside_dim = 0,
                                  .deltas = encode_deltas_.data(),
                                  .of_inputs = by_inputs_.data(),
                                  .of_inputs_stride = shape_.input_dim},
                    num_samples);
    const int64_t floats = num_samples * columns_ * model_.width();
    stream_->CopyToHost(by_initial_.data(), from.data(),
                        static_cast<size_t>(floats) * sizeof(float));
  }
  // Copies once the pass is done, as a copy to the caller's memory keeps the host from other work.
  void CopyDeltas(int32_t num_samples) {
    if (samples_[0].deltas == nullptr) return;
    const int64_t floats = shape_.num_steps * shape_.state_dim;
    for (int32_t b = 0; b < num_samples; ++b)
      stream_->CopyToHost(samples_[b].deltas, deltas_.data() + b * floats,
                          static_cast<size_t>(floats) * sizeof(float));
    stream_->Wait([] {});
  }

  Device& device_;
  const StackModel& model_;
  const SystemShape& shape_;  // of the model
  const BackwardSizes sizes_;
  int64_t columns_ = 1;                  // m of the samples at hand
  std::vector<BackwardSample> samples_;  // G
  std::unique_ptr<Stream> stream_;
  // Mapped memory; of the gradients by z_0 those of the whole group.
  DeviceBuffer<float> inputs_, of_outputs_, of_final_;
  DeviceBuffer<float> by_inputs_, by_initial_, encode_deltas_, decode_deltas_;
  DeviceBuffer<int64_t> num_dependent_;
  // Device memory.
  DeviceBuffer<float> gradients_, initial_, states_, deltas_;
  DeviceBuffer<std::byte> workspace_;
};

}  // namespace

BackwardGrouping BackwardGroupingOf(const StackModel& model) {
  const auto group = static_cast<int32_t>(GroupSize(model.shape(), 0));
  return {.samples = group,
          .scanned_samples = std::min<int32_t>(group, kWorkspaceGroup),
          .columns = kBackwardColumns};
}

int64_t BackwardSpaceBytes(const Device& device, const StackModel& model,
                           const BackwardLimits& limits) {
  const std::optional<BackwardSizes> sizes = SizesOf(device, model, limits);
  return sizes.has_value() ? sizes->bytes() : std::numeric_limits<int64_t>::max();
}

absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(Device& device,
                                                                const StackModel& model,
                                                                const BackwardLimits& limits) {
  const std::optional<BackwardSizes> sizes = SizesOf(device, model, limits);
  if (!sizes.has_value()) return absl::ResourceExhaustedError("backward pass: beyond all memory");
  auto space = std::make_unique<CudaBackwardSpace>(device, model, *sizes, MostSamples(limits));
  DEEPPCR_RETURN_IF_ERROR(space->Allocate());
  return std::unique_ptr<BackwardSpace>(std::move(space));
}

}  // namespace deeppcr::cuda
