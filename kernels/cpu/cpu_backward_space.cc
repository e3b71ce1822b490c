// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backward_space.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/iteration/reverse_tree.h"

namespace deeppcr::cpu {
namespace {

// Sizes of a space's buffers, in floats.
struct BackwardSizes {
  int64_t vectors = 0;   // [P, m, W]
  int64_t matrices = 0;  // [P, D (column), W]
  int64_t product = 0;   // [D (column), W]
  int64_t samples = 0;   // [samples, m, W]
  bool overflow = false;

  int64_t total_bytes() const {
    return overflow ? std::numeric_limits<int64_t>::max()
                    : (vectors + matrices + product + samples) * int64_t{sizeof(float)};
  }
};

BackwardSizes SizesOf(const PackedSystem& system, const BackwardLimits& limits) {
  const int64_t width = system.width, dim = system.shape.state_dim;
  BackwardSizes sizes;
  sizes.overflow = limits.samples > (1 << 16) || limits.columns > (1 << 16) ||
                   width > (int64_t{1} << 14) || system.shape.num_steps > (int64_t{1} << 24);
  if (sizes.overflow) return sizes;
  sizes.samples = limits.samples * limits.columns * width;
  if (!limits.parallel) return sizes;
  const int64_t intervals = (system.shape.num_steps - 1) / limits.min_shooting_interval + 1;
  sizes.vectors = intervals * limits.columns * width;
  sizes.matrices = intervals * dim * width;
  sizes.product = dim * width;
  return sizes;
}

class CpuBackwardSpace final : public BackwardSpace, public BackwardScanStages {
 public:
  CpuBackwardSpace(const PackedSystem& system, const BackwardLimits& limits,
                   const BackwardSizes& sizes)
      : system_(system),
        dim_(system.shape.state_dim),
        num_steps_(system.shape.num_steps),
        width_(system.width),
        recurrence_(system.NewBackwardRecurrence(limits)),
        samples_(limits.samples),
        vectors_(sizes.vectors),
        matrices_(sizes.matrices),
        product_(sizes.product),
        g_(sizes.samples) {}

  bool ok() const {
    return recurrence_ != nullptr && vectors_.ok() && matrices_.ok() && product_.ok() && g_.ok();
  }

  void SetTeam(Team* team) override { recurrence_->SetTeam(team); }

  void Begin(int32_t sample, const BackwardSample& taken) override {
    columns_ = taken.columns;
    samples_[sample] = taken;
    recurrence_->Begin(sample, taken, Cotangents(sample));
  }

  int64_t Retreat(int32_t num_samples, int64_t begin, int64_t end) override {
    return recurrence_->Retreat({.num_samples = num_samples,
                                 .columns = columns_,
                                 .begin = begin,
                                 .end = end,
                                 .samples = samples_.data(),
                                 .g = g_.data()});
  }

  int64_t StepsPerPoll(int32_t num_samples) const override {
    return StepsOf(num_samples * columns_);
  }

  std::variant<BackwardScanStages*, BackwardScan*> scan() override { return this; }

  void SetShootingInterval(int64_t steps) override {
    interval_ = steps;
    tree_ = ReverseTree((num_steps_ - 1) / steps + 1);
  }
  int64_t num_intervals() const override { return tree_.num_intervals(); }

  PassCount FormMatrices() override {
    PassCount count = {.columns = dim_};
    for (int64_t q = 0; q < num_intervals() && !Fired(token()); ++q) {
      if (!tree_.needs_matrix(0, q)) continue;
      float* matrix = Matrix(tree_.place(0, q));
      std::fill_n(matrix, dim_ * width_, 0.0F);
      for (int64_t i = 0; i < dim_; ++i) matrix[i * width_ + i] = 1.0F;
      count.stages = std::max(count.stages, RetreatInterval(q, dim_, false, matrix));
    }
    return count;
  }

  void UpSweep(int level) override {
    for (int64_t j = 0; j < tree_.nodes(level) && !Fired(token()); ++j) {
      if (!tree_.needs_matrix(level, j)) continue;  // the others have two children
      const float* left = Matrix(tree_.place(level - 1, 2 * j));
      float* right = Matrix(tree_.place(level - 1, 2 * j + 1));
      Apply(right, left, dim_, product_.data());
      std::copy_n(product_.data(), dim_ * width_, right);
    }
  }

  void DownSweep(int level) override {
    if (level + 1 == tree_.levels())
      std::copy_n(g_.data(), floats(), Vector(tree_.place(level + 1, 0)));
    for (int64_t j = 0; 2 * j < tree_.nodes(level) && !Fired(token()); ++j) {
      // The parent's vector lies in the place of the right child, if there is one.
      const int64_t left = tree_.place(level, 2 * j);
      float* parent = Vector(tree_.place(level + 1, j));
      if (2 * j + 1 == tree_.nodes(level)) continue;
      std::copy_n(parent, floats(), Vector(left));
      Apply(Matrix(left), Vector(left), columns_, parent);
    }
  }

  PassCount RetreatIntervals() override {
    if (tree_.levels() == 0) std::copy_n(g_.data(), floats(), Vector(0));
    PassCount count = {.columns = columns_};
    for (int64_t q = 0; q < num_intervals() && !Fired(token()); ++q)
      count.stages = std::max(count.stages, RetreatInterval(q, columns_, true, Vector(q)));
    std::copy_n(Vector(num_intervals() - 1), floats(), g_.data());
    return count;
  }

  void Finish(int32_t sample) override {
    recurrence_->Finish(sample, samples_[sample], Cotangents(sample));
  }

  absl::Status status() const override { return absl::OkStatus(); }

 private:
  int64_t floats() const { return columns_ * width_; }
  float* Cotangents(int32_t sample) { return g_.data() + sample * floats(); }
  float* Matrix(int64_t place) { return matrices_.data() + place * dim_ * width_; }
  float* Vector(int64_t place) { return vectors_.data() + place * floats(); }
  const CancelToken* token() const { return samples_[0].input->token; }
  int64_t StepsOf(int64_t rows) const {
    return std::clamp<int64_t>(kWorkPerPoll / (system_.shape.step_weights * rows), 1, 16384);
  }

  // Takes cotangents through the interval of leaf q, with the token probed on the way.
  int64_t RetreatInterval(int64_t q, int64_t columns, bool results, float* g) {
    const int64_t begin = tree_.interval(q) * interval_;
    int64_t stages = 0;
    for (int64_t end = std::min(begin + interval_, num_steps_); end > begin && !Fired(token());) {
      const int64_t from = std::max(begin, end - StepsOf(columns));
      stages += recurrence_->Retreat({.columns = columns,
                                      .begin = from,
                                      .end = end,
                                      .samples = samples_.data(),
                                      .g = g,
                                      .results = results});
      end = from;
    }
    return stages;
  }

  // out_j = M in_j.
  void Apply(const float* matrix, const float* in, int64_t count, float* out) const {
    system_.kernels.apply({.width = width_,
                           .inner = dim_,
                           .matrix = matrix,
                           .in = in,
                           .base = nullptr,
                           .out = out,
                           .in_stride = width_,
                           .base_stride = 0,
                           .out_stride = width_,
                           .count = count,
                           .diagonal = false});
  }

  const PackedSystem& system_;
  const int64_t dim_, num_steps_;
  const int64_t width_;
  int64_t columns_ = 1;  // m of the samples at hand
  int64_t interval_ = 1;
  ReverseTree tree_;
  const std::unique_ptr<BackwardRecurrence> recurrence_;
  std::vector<BackwardSample> samples_;
  AlignedBuffer<float> vectors_, matrices_, product_;
  AlignedBuffer<float> g_;  // [samples, m, W]
};

}  // namespace

int64_t CpuBackwardSpaceBytes(const PackedSystem& system, const BackwardLimits& limits) {
  if (!system.has_backward) return 0;
  const BackwardSizes sizes = SizesOf(system, limits);
  if (sizes.overflow) return sizes.total_bytes();
  return sizes.total_bytes() + system.BackwardRecurrenceBytes(limits);
}

absl::StatusOr<std::unique_ptr<BackwardSpace>> NewCpuBackwardSpace(const PackedSystem& system,
                                                                   const BackwardLimits& limits) {
  if (!system.has_backward)
    return absl::UnimplementedError("the model was loaded without its backward pass");
  const BackwardSizes sizes = SizesOf(system, limits);
  if (!sizes.overflow) {
    auto space = std::make_unique<CpuBackwardSpace>(system, limits, sizes);
    if (space->ok()) return std::unique_ptr<BackwardSpace>(std::move(space));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("backward pass: ", CpuBackwardSpaceBytes(system, limits),
                   " bytes of memory could not be had"));
}

}  // namespace deeppcr::cpu
