// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_space.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/backend/common.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/iteration/scan_tree.h"

namespace deeppcr::cpu {
namespace {

// Sizes of a space's buffers, in floats.
struct SpaceSizes {
  int64_t vectors = 0;    // [nodes, kColumns, W]: right-hand sides; prefixes take as much again
  int64_t matrices = 0;   // [nodes, W, W]; diagonals take [nodes, W] of these
  int64_t intervals = 0;  // [P, kColumns, W]: propagated
  int64_t states = 0;     // [P + 1, kColumns, W]
  int64_t samples = 0;    // [group, W], two of these
  bool overflow = false;

  int64_t total_bytes() const {
    return overflow
               ? std::numeric_limits<int64_t>::max()
               : (2 * vectors + matrices + intervals + states + samples) * int64_t{sizeof(float)};
  }
};

SpaceSizes SizesOf(const PackedSystem& system, const SpaceLimits& limits) {
  const int64_t width = system.width;
  SpaceSizes sizes;
  sizes.samples = 2 * system.group * width;
  if (!limits.iterative) return sizes;
  const int64_t intervals = (system.shape.num_steps - 1) / limits.min_shooting_interval + 1;
  const int64_t nodes = ScanTree(intervals).total();
  // nodes < 2^21 and width <= 2^12 by the limits of a configuration, so the products below stay far
  // below 2^63.
  sizes.vectors = nodes * kColumns * width;
  sizes.matrices = nodes * width * width;
  sizes.intervals = intervals * kColumns * width;
  sizes.states = (intervals + 1) * kColumns * width;
  sizes.overflow = nodes > (int64_t{1} << 32) || width > (int64_t{1} << 14);
  return sizes;
}

// A product of matrices this wide takes longer than a poll of the token.
constexpr int64_t kWideMatrix = 64;

int64_t SaturatingAdd(int64_t a, int64_t b) {
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

class CpuSpace final : public SolveSpace, public IterationPasses {
 public:
  CpuSpace(const PackedSystem& system, const SpaceSizes& sizes)
      : system_(system),
        dim_(system.shape.state_dim),
        num_steps_(system.shape.num_steps),
        width_(system.width),
        row_(kColumns * system.width),
        recurrence_(system.NewRecurrence()),
        residuals_(sizes.vectors),
        prefixes_(sizes.vectors),
        matrices_(sizes.matrices),
        propagated_(sizes.intervals),
        states_(sizes.states),
        samples_(sizes.samples),
        initial_(samples_.data()),
        current_(initial_ + system.group * width_) {}

  bool ok() const {
    return recurrence_ != nullptr && residuals_.ok() && prefixes_.ok() && matrices_.ok() &&
           propagated_.ok() && states_.ok() && samples_.ok();
  }

  void SetTeam(Team* team) override { recurrence_->SetTeam(team); }

  void Encode(int32_t sample, const SampleInput& input) override {
    recurrence_->Encode(sample, input, initial_ + sample * width_);
    token_ = input.token;
    interrupted_ = false;
  }

  void Decode(int32_t sample, float* outputs) override {
    recurrence_->Decode(current_ + sample * width_, outputs);
  }

  double AmplifyError(int32_t sample, double relative_error, double floor,
                      const float* outputs) override {
    const float* z = current_ + sample * width_;
    if (relative_error == 0) return 0;
    return AmplifiedError(relative_error, {z, static_cast<size_t>(dim_)}, floor,
                          recurrence_->OutputAmplification(z),
                          {outputs, static_cast<size_t>(system_.shape.output_dim)});
  }

  void Restart(int32_t num_samples) override {
    std::copy_n(initial_, num_samples * width_, current_);
  }

  void KeepSides(uint8_t* const* sides) override { recurrence_->KeepSides(sides); }

  int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                  float* const* trajectories) override {
    if (begin == 0 && trajectories != nullptr) {
      for (int32_t b = 0; b < num_samples; ++b) {
        if (trajectories[b] != nullptr) std::copy_n(current_ + b * width_, dim_, trajectories[b]);
      }
    }
    return recurrence_->Advance(current_, num_samples, begin, end, trajectories);
  }

  int64_t StepsPerPoll(int32_t num_samples) const override {
    return std::clamp<int64_t>(kWorkPerPoll / (system_.shape.step_weights * num_samples), 1, 16384);
  }

  void CopyState(int32_t sample, float* state) const override {
    std::copy_n(current_ + sample * width_, dim_, state);
  }

  bool FinalStateFinite(int32_t sample) const override {
    const float* z = current_ + sample * width_;
    return std::all_of(z, z + dim_, [](float x) { return std::isfinite(x); });
  }

  void SetShootingInterval(int64_t steps) override {
    interval_ = steps;
    intervals_ = (num_steps_ - 1) / steps + 1;
    tree_ = ScanTree(intervals_);
  }
  int64_t num_intervals() const override { return intervals_; }

  void GuessConstant(int32_t sample) override {
    PlaceInitialState(sample);
    for (int64_t p = 1; p <= intervals_; ++p) std::copy_n(initial_, width_, State(p));
  }

  PassCount GuessCoarse(int32_t sample) override {
    PlaceInitialState(sample);
    return recurrence_->GuessCoarse(interval_, row_, states_.data(), token_);
  }

  void GuessAffine(int32_t sample) override {
    PlaceInitialState(sample);
    for (int64_t p = 1; p <= intervals_; ++p) EvaluateGuess(EndOf(p), State(p));
  }

  void GuessTrajectory(int32_t sample, const float* trajectory) override {
    PlaceInitialState(sample);
    for (int64_t p = 1; p <= intervals_; ++p) {
      std::copy_n(trajectory + EndOf(p) * dim_, dim_, State(p));
      std::fill(State(p) + dim_, State(p) + width_, 0.0F);
    }
  }

  std::variant<IterationPasses*, IterationLoop*> iteration(const StoppingPolicy&) override {
    return this;
  }
  absl::Status status() const override { return absl::OkStatus(); }

  void Begin(int32_t) override {
    for (int64_t p = 0; p <= intervals_; ++p) std::fill(State(p) + width_, State(p) + row_, 0.0F);
  }

  PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) override {
    if (samples.empty()) return {};
    if (kind.confirms()) Place(kind.confirmation);
    const PassCount count =
        recurrence_->Propagate({.interval = interval_,
                                .num_intervals = intervals_,
                                .states = states_.data(),
                                .propagated = propagated_.data(),
                                .matrices = kind.forms_matrices() ? matrices_.data() : nullptr,
                                .diagonal = kind.linearization == Linearization::kDiagonal,
                                .probes = kind.probes,
                                .draw = kind.draw,
                                .token = token_});
    interrupted_ = interrupted_ || Fired(token_);
    FormResiduals(Columns(kind));
    return count;
  }

  bool interrupted(int32_t) const override { return interrupted_; }

  void UpSweep(std::span<const int32_t> samples, int level, IterationKind kind) override {
    if (samples.empty()) return;
    const bool dense = kind.linearization == Linearization::kFull;
    for (int64_t j = 0; j + 1 < tree_.nodes(level) && !interrupted_; ++j) {
      const int64_t node = tree_.node(level, j);
      const int64_t left = tree_.node(level - 1, 2 * j), right = left + 1;
      ApplyNode(right, kind, residuals_.data() + left * row_, residuals_.data() + right * row_,
                residuals_.data() + node * row_);
      if (kind.refresh && tree_.needs_matrix(level, j)) {
        if (dense) MultiplyNodes(right, left, node);
        if (kind.linearization == Linearization::kDiagonal) MultiplyDiagonals(right, left, node);
      }
      if (dense && width_ >= kWideMatrix) interrupted_ = Fired(token_);
    }
  }

  void DownSweep(std::span<const int32_t> samples, int level, IterationKind kind) override {
    if (samples.empty()) return;
    const int64_t floats = Columns(kind) * width_;
    for (int64_t j = 0; 2 * j < tree_.nodes(level); ++j) {
      const int64_t left = tree_.node(level, 2 * j), right = left + 1;
      if (j == 0) {  // entered by d_0 = 0
        std::fill_n(prefixes_.data() + left * row_, floats, 0.0F);
        if (tree_.nodes(level) > 1)
          std::copy_n(residuals_.data() + left * row_, floats, prefixes_.data() + right * row_);
        continue;
      }
      const float* parent = prefixes_.data() + tree_.node(level + 1, j) * row_;
      std::copy_n(parent, floats, prefixes_.data() + left * row_);
      if (2 * j + 1 < tree_.nodes(level))
        ApplyNode(left, kind, parent, residuals_.data() + left * row_,
                  prefixes_.data() + right * row_);
    }
  }

  void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
              std::span<UpdateNorms> norms) override {
    if (samples.empty()) return;
    const bool matrices = kind.linearization == Linearization::kFull ||
                          kind.linearization == Linearization::kDiagonal;
    const bool none = kind.linearization == Linearization::kZero || intervals_ == 1;
    const IntervalNorms n =
        system_.kernels.update({.width = width_,
                                .inner = dim_,
                                .num_intervals = intervals_,
                                .states = states_.data(),
                                .propagated = propagated_.data(),
                                .jacobians = matrices ? matrices_.data() : nullptr,
                                .prefix = none ? nullptr : prefixes_.data(),
                                .floor = floor,
                                .diagonal = kind.linearization == Linearization::kDiagonal,
                                .probes = kind.probes,
                                .more_probes = kind.more_probes(),
                                .confirms = kind.confirms()});
    norms[0] = {.update = n.update,
                .rounding = n.rounding,
                .combined = n.combined,
                .share = n.share,
                .finite = n.finite};
  }

  void Finish(int32_t, float* const* trajectories) override {
    if (trajectories != nullptr && trajectories[0] != nullptr) WriteTrajectory(trajectories[0]);
    std::copy_n(State(intervals_), width_, current_);
  }

 private:
  void WriteTrajectory(float* trajectory) {
    std::copy_n(State(0), dim_, trajectory);
    for (int64_t p = 1; p <= intervals_; ++p) {
      std::copy_n(State(p - 1), width_, current_);
      recurrence_->Advance(current_, 1, (p - 1) * interval_, EndOf(p) - 1, &trajectory);
      std::copy_n(State(p), dim_, trajectory + EndOf(p) * dim_);
    }
  }
  static int64_t Columns(IterationKind kind) { return kind.probes ? kColumns : 1; }
  float* State(int64_t p) { return states_.data() + p * row_; }
  // The step at which interval p = 1..P ends.
  int64_t EndOf(int64_t p) const { return std::min(p * interval_, num_steps_); }

  void PlaceInitialState(int32_t sample) {
    std::copy_n(initial_ + sample * width_, width_, State(0));
  }

  // The guess at the first fitted step that is not before `step`.
  void EvaluateGuess(int64_t step, float* y) const {
    const AffineGuess& guess = system_.guess;
    const int64_t at =
        std::clamp<int64_t>((step + guess.stride - 1) / guess.stride - 1, 0, guess.count - 1);
    const float* map = guess.coefficients.data() + at * (dim_ + 1) * dim_;
    std::copy_n(map, dim_, y);
    for (int64_t k = 0; k < dim_; ++k)
      for (int64_t i = 0; i < dim_; ++i) y[i] += map[(k + 1) * dim_ + i] * initial_[k];
    std::fill(y + dim_, y + width_, 0.0F);
  }

  // Residuals of the states; the residual of a probe is the rounding that it has picked up.
  void FormResiduals(int64_t columns) {
    for (int64_t p = 0; p < intervals_; ++p) {
      const float* f = propagated_.data() + p * row_;
      const float* y = State(p + 1);
      float* r = residuals_.data() + p * row_;
      for (int64_t i = 0; i < width_; ++i) r[i] = f[i] - y[i];
      std::copy(f + width_, f + columns * width_, r + width_);
    }
  }

  void Place(Confirmation confirmation) {
    for (int64_t p = 1; p <= intervals_; ++p) {
      float* y = State(p);
      const float* update = y + kUpdateColumn * width_;
      const float* ball = y + kBallColumn * width_;
      std::copy_n(y, width_, y + kKeptColumn * width_);
      for (int64_t i = 0; i < dim_; ++i) y[i] = TriedAt(confirmation, y[i], update[i], ball[i]);
    }
  }

  // out = A_node in + base, for the vectors in use.
  void ApplyNode(int64_t node, IterationKind kind, const float* in, const float* base, float* out) {
    const bool diagonal = kind.linearization == Linearization::kDiagonal;
    const bool dense = kind.linearization == Linearization::kFull;
    const float* matrix = nullptr;
    if (dense) matrix = matrices_.data() + node * width_ * width_;
    if (diagonal) matrix = matrices_.data() + node * width_;
    system_.kernels.apply({.width = width_,
                           .inner = dim_,
                           .matrix = matrix,
                           .in = in,
                           .base = base,
                           .out = out,
                           .in_stride = width_,
                           .base_stride = width_,
                           .out_stride = width_,
                           .count = Columns(kind),
                           .diagonal = diagonal});
  }

  // A_node = A_right A_left.
  void MultiplyNodes(int64_t right, int64_t left, int64_t node) {
    const int64_t size = width_ * width_;
    system_.kernels.apply({.width = width_,
                           .inner = dim_,
                           .matrix = matrices_.data() + right * size,
                           .in = matrices_.data() + left * size,
                           .base = nullptr,
                           .out = matrices_.data() + node * size,
                           .in_stride = width_,
                           .base_stride = 0,
                           .out_stride = width_,
                           .count = dim_,
                           .diagonal = false});
  }

  void MultiplyDiagonals(int64_t right, int64_t left, int64_t node) {
    for (int64_t i = 0; i < width_; ++i)
      matrices_[node * width_ + i] = matrices_[right * width_ + i] * matrices_[left * width_ + i];
  }

  const PackedSystem& system_;
  const int64_t dim_, num_steps_;
  const int64_t width_;
  const int64_t row_;                   // floats of the kColumns vectors of one node
  const CancelToken* token_ = nullptr;  // token of sample 0, the only sample of iterative mode
  bool interrupted_ = false;
  int64_t interval_ = 1, intervals_ = 0;
  ScanTree tree_;
  const std::unique_ptr<Recurrence> recurrence_;
  AlignedBuffer<float> residuals_, prefixes_, matrices_, propagated_, states_, samples_;
  float* const initial_;  // [group, W]: z_0
  float* const current_;  // [group, W]
};

}  // namespace

int64_t CpuSpaceBytes(const PackedSystem& system, const SpaceLimits& limits) {
  return SaturatingAdd(SizesOf(system, limits).total_bytes(), system.RecurrenceBytes());
}

absl::StatusOr<std::unique_ptr<SolveSpace>> NewCpuSpace(const PackedSystem& system,
                                                        const SpaceLimits& limits) {
  const SpaceSizes sizes = SizesOf(system, limits);
  if (!sizes.overflow) {
    auto space = std::make_unique<CpuSpace>(system, sizes);
    if (space->ok()) return std::unique_ptr<SolveSpace>(std::move(space));
  }
  return absl::ResourceExhaustedError(absl::StrCat("workspace: ", CpuSpaceBytes(system, limits),
                                                   " bytes of memory could not be had"));
}

}  // namespace deeppcr::cpu
