// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/wide_propagation.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

int64_t MostTangents(const DiffusionModel& model) { return kNumProbes + model.shape().state_dim; }
int64_t PartIntervals(const DiffusionModel& model, int64_t intervals) {
  return std::clamp<int64_t>(kPartTangents / MostTangents(model), 1, intervals);
}

// Sizes of the buffers of a part, in floats; there are three of size `hidden`.
struct PartFloats {
  PartFloats(const DiffusionModel& model, int64_t intervals) {
    const DenoiserView& d = model.view().denoiser;
    const int64_t part = PartIntervals(model, intervals), tangents = part * MostTangents(model);
    tape = part * DenoiserTape::Floats(d);
    states = tangents * d.state_cols;
    hidden = tangents * d.hidden_width;
  }
  int64_t tape, states, hidden;
};

}  // namespace

int64_t WidePropagation::Bytes(const DiffusionModel& model, int64_t intervals) {
  const PartFloats floats(model, intervals);
  return (floats.tape + floats.states + 3 * floats.hidden) * int64_t{sizeof(float)};
}

absl::Status WidePropagation::Allocate(Device& device, const DiffusionModel& model,
                                       int64_t intervals) {
  const PartFloats floats(model, intervals);
  const auto take = [&](DeviceBuffer<float>* buffer, int64_t count) -> absl::Status {
    DEEPPCR_ASSIGN_OR_RETURN(*buffer, DeviceBuffer<float>::New(device, MemoryKind::kDevice, count));
    return absl::OkStatus();
  };
  model_ = &model;
  limits_ = device.limits();
  DEEPPCR_RETURN_IF_ERROR(take(&tape_, floats.tape));
  DEEPPCR_RETURN_IF_ERROR(take(&states_, floats.states));
  DEEPPCR_RETURN_IF_ERROR(take(&hidden_, floats.hidden));
  DEEPPCR_RETURN_IF_ERROR(take(&inner_, floats.hidden));
  return take(&products_, floats.hidden);
}

// Some intervals of a sample, taken together through one step after the other.
class WidePropagation::Part {
 public:
  Part(const WidePropagation& memory, Stream& stream, const DiffusionView& process,
       const IntervalsView& intervals, const IntervalRange& range, const TangentRows& rows)
      : memory_(memory),
        model_(*memory.model_),
        stream_(stream),
        d_(process.denoiser),
        all_(range.count),
        args_{.process = process,
              .intervals = intervals,
              .range = range,
              .rows = rows,
              .stage = TangentStage::kPlace,
              .block = 0,
              .tape = {rows.count() > 0 ? memory.tape_.data() : nullptr},
              .states = memory.states_.data(),
              .hidden = memory.hidden_.data(),
              .inner = memory.inner_.data(),
              .products = memory.products_.data()} {}

  void Launch() {
    if (args_.rows.count() > 0) Tangents(TangentStage::kPlace);
    for (int32_t step = 0; step < args_.intervals.shooting_interval; ++step) {
      args_.range.step = step;
      args_.range.count = NumActive();
      if (args_.range.count > 0) Step();
    }
    args_.range.step = 0;
    args_.range.count = all_;
    Tangents(TangentStage::kTake);
  }

 private:
  // Number of intervals that have this step: the last interval of the sample may have fewer steps.
  int32_t NumActive() const {
    const IntervalRange& range = args_.range;
    const int64_t last = int64_t{range.first} + all_ - 1;
    const bool ended =
        last * args_.intervals.shooting_interval + range.step >= args_.process.num_steps;
    return all_ - (ended ? 1 : 0);
  }

  void Step() {
    stream_.Launch(
        IntervalStepArgs{.process = args_.process,
                         .intervals = args_.intervals,
                         .range = args_.range,
                         .team = ChooseTeams(args_.process, args_.range.count, memory_.limits_),
                         .tape = args_.tape});
    if (args_.rows.count() == 0) return;
    const DiffusionModel::Matrices& layers = model_.matrices();
    Multiply(layers.input.layer(0), args_.states, d_.state_cols, args_.hidden, d_.hidden_width);
    Tangents(TangentStage::kInput);
    for (int32_t b = 0; b < d_.num_blocks; ++b) d_.ada_ln ? AdaLnBlock(b) : ResidualBlock(b);
    Multiply(layers.output.layer(0), d_.ada_ln ? args_.inner : args_.hidden, d_.hidden_width,
             args_.products, d_.state_cols);
    Tangents(TangentStage::kReverse);
  }
  void ResidualBlock(int32_t block) {
    MultiplyHidden(model_.matrices().first.layer(block), args_.hidden);
    Tangents(TangentStage::kResidual, block);
  }
  void AdaLnBlock(int32_t block) {
    MultiplyHidden(model_.matrices().first.layer(block), args_.inner);
    Tangents(TangentStage::kInner, block);
    MultiplyHidden(model_.matrices().second.layer(block), args_.inner);
    Tangents(TangentStage::kGated, block);
  }

  void Tangents(TangentStage stage, int32_t block = 0) {
    args_.stage = stage;
    args_.block = block;
    stream_.Launch(args_);
  }
  void MultiplyHidden(const float* weights, const float* vectors) {
    Multiply(weights, vectors, d_.hidden_width, args_.products, d_.hidden_width);
  }
  void Multiply(const float* weights, const float* vectors, int32_t inputs, float* products,
                int32_t outputs) {
    stream_.Launch(LayerGemmArgs{.rows = args_.range.count * args_.rows.count(),
                                 .outputs = outputs,
                                 .inputs = inputs,
                                 .vectors = vectors,
                                 .weights = weights,
                                 .products = products});
  }

  const WidePropagation& memory_;
  const DiffusionModel& model_;
  Stream& stream_;
  const DenoiserView& d_;
  const int32_t all_;
  TangentArgs args_;
};

void WidePropagation::Launch(Stream& stream, const DiffusionView& process,
                             const IntervalsView& intervals, int64_t sample,
                             IterationKind kind) const {
  const int32_t count = intervals.tree.num_intervals;
  const auto part = static_cast<int32_t>(PartIntervals(*model_, count));
  const TangentRows rows = {.probes = kind.probes ? kNumProbes : 0,
                            // d_0 = 0: the first matrix is never used.
                            .columns = kind.forms_jacobians() && count > 1 ? process.state_dim : 0,
                            .draw = kind.draw};
  for (int32_t first = 0; first < count; first += part) {
    const IntervalRange range = {.sample = sample,
                                 .first = first,
                                 .count = std::min(part, count - first),
                                 .step = 0,
                                 .confirmation = kind.confirmation};
    Part(*this, stream, process, intervals, range, rows).Launch();
  }
}

}  // namespace deeppcr::cuda
