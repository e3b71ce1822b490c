// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/iteration/scan_tree.h"
#include "kernels/reference/backward_space.h"
#include "kernels/reference/recurrence.h"

namespace deeppcr::reference {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<double>;  // [D, D] row-major

Vector Multiply(const Matrix& a, const Vector& x) {
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t k = 0; k < x.size(); ++k) y[i] += a[i * x.size() + k] * x[k];
  return y;
}

Matrix Multiply(const Matrix& a, const Matrix& b, int64_t dim) {
  Matrix c(dim * dim);
  for (int64_t i = 0; i < dim; ++i)
    for (int64_t k = 0; k < dim; ++k)
      for (int64_t j = 0; j < dim; ++j) c[i * dim + j] += a[i * dim + k] * b[k * dim + j];
  return c;
}

Vector Add(const Vector& a, const Vector& b, double factor = 1) {
  Vector c = a;
  for (size_t i = 0; i < c.size(); ++i) c[i] += factor * b[i];
  return c;
}

// The larger of the two; infinite if either is a NaN.
double Larger(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
}

double Norm(const Vector& a) {
  double largest = 0;
  for (const double x : a) {
    if (!(std::fabs(x) <= largest)) largest = std::fabs(x);
    if (std::isnan(largest)) break;  // a NaN is larger than everything
  }
  return largest;
}

// State of an interval end and its probes, the vectors that travel through an interval together.
using Columns = std::array<Vector, kNumColumns>;

struct Node {
  Matrix matrix;
  Columns residual, prefix;
};

class ReferenceSpace final : public SolveSpace, public IterationPasses {
 public:
  ReferenceSpace(const Family& family, const AffineGuess& guess)
      : family_(family),
        guess_(guess),
        dim_(family.shape.state_dim),
        num_steps_(family.shape.num_steps) {}

  void Encode(int32_t, const SampleInput& input) override {
    recurrence_ = family_.Encode(input);
    initial_ = recurrence_->Initial();
  }
  void Decode(int32_t, float* outputs) override {
    const Vector y = family_.Decode(current_);
    std::copy(y.begin(), y.end(), outputs);
  }
  double AmplifyError(int32_t, double relative_error, double floor, const float* outputs) override {
    if (relative_error == 0) return 0;
    const double error =
        relative_error * (Norm(current_) + floor) * family_.OutputAmplification(current_);
    return error == 0 ? 0 : error / Norm(Vector(outputs, outputs + family_.shape.output_dim));
  }

  void Restart(int32_t) override { current_ = initial_; }
  int64_t Advance(int32_t, int64_t begin, int64_t end, float* const* trajectories) override {
    float* trajectory = trajectories == nullptr ? nullptr : trajectories[0];
    if (trajectory != nullptr && begin == 0)
      std::copy(current_.begin(), current_.end(), trajectory);
    int64_t stages = 0;
    for (int64_t l = begin + 1; l <= end; ++l, ++stages) {
      current_ = recurrence_->Step(l, current_);
      if (trajectory != nullptr) std::copy(current_.begin(), current_.end(), trajectory + l * dim_);
    }
    return stages;
  }
  int64_t StepsPerPoll(int32_t) const override {
    return std::clamp<int64_t>((int64_t{1} << 18) / family_.shape.step_weights, 1, 4096);
  }
  void CopyState(int32_t, float* state) const override {
    std::copy(current_.begin(), current_.end(), state);
  }
  bool FinalStateFinite(int32_t) const override {
    return std::all_of(current_.begin(), current_.end(), [](double x) { return std::isfinite(x); });
  }

  void SetShootingInterval(int64_t steps) override {
    interval_ = steps;
    tree_ = ScanTree((num_steps_ - 1) / steps + 1);
    nodes_.assign(tree_.total(), Node{});
    states_.assign(num_intervals() + 1, Columns{});
    propagated_.assign(num_intervals(), Columns{});
  }
  int64_t num_intervals() const override { return (num_steps_ - 1) / interval_ + 1; }
  void GuessConstant(int32_t) override {
    for (Columns& y : states_) y[0] = initial_;
  }
  PassCount GuessCoarse(int32_t) override {
    PassCount count;
    const std::vector<Vector> trajectory = recurrence_->CoarseTrajectory(&count);
    for (int64_t p = 0; p <= num_intervals(); ++p) states_[p][0] = trajectory[EndOf(p)];
    return count;
  }
  void GuessAffine(int32_t) override {
    states_[0][0] = initial_;
    for (int64_t p = 1; p <= num_intervals(); ++p) states_[p][0] = EvaluateGuess(EndOf(p));
  }
  void GuessTrajectory(int32_t, const float* trajectory) override {
    states_[0][0] = initial_;
    for (int64_t p = 1; p <= num_intervals(); ++p) {
      const float* z = trajectory + EndOf(p) * dim_;
      states_[p][0].assign(z, z + dim_);
    }
  }
  std::variant<IterationPasses*, IterationLoop*> iteration(const StoppingPolicy&) override {
    return this;
  }
  absl::Status status() const override { return absl::OkStatus(); }

  void Begin(int32_t) override {
    for (Columns& y : states_)
      for (int v = 1; v < kNumColumns; ++v) y[v] = Vector(dim_);
  }

  PassCount Propagate(std::span<const int32_t>, IterationKind kind) override {
    PassCount count;
    for (int64_t p = 1; p <= num_intervals(); ++p)
      count.stages = std::max(count.stages, PropagateInterval(p, kind));
    const bool dense = kind.refresh && kind.linearization == Linearization::kFull;
    count.columns = NumColumns(kind) + (dense ? dim_ : 0);
    return count;
  }

  bool interrupted(int32_t) const override { return false; }

  void UpSweep(std::span<const int32_t>, int level, IterationKind kind) override {
    for (int64_t j = 0; j + 1 < tree_.nodes(level); ++j) {
      Node& node = nodes_[tree_.node(level, j)];
      const Node& left = nodes_[tree_.node(level - 1, 2 * j)];
      const Node& right = nodes_[tree_.node(level - 1, 2 * j + 1)];
      for (int v = 0; v < NumColumns(kind); ++v)
        node.residual[v] = Add(right.residual[v], Transition(right.matrix, left.residual[v], kind));
      if (kind.refresh && tree_.needs_matrix(level, j) && !right.matrix.empty())
        node.matrix = Multiply(right.matrix, left.matrix, dim_);
    }
  }
  void DownSweep(std::span<const int32_t>, int level, IterationKind kind) override {
    for (int64_t j = 0; j < tree_.nodes(level); ++j) {
      Node& node = nodes_[tree_.node(level, j)];
      for (int v = 0; v < NumColumns(kind); ++v) {
        const Vector parent = j < 2 ? Vector(dim_) : nodes_[tree_.node(level + 1, j / 2)].prefix[v];
        node.prefix[v] = parent;
        if (j % 2 == 0) continue;
        const Node& left = nodes_[tree_.node(level, j - 1)];
        node.prefix[v] = left.residual[v];
        if (j > 1) node.prefix[v] = Add(left.residual[v], Transition(left.matrix, parent, kind));
      }
    }
  }
  void Update(std::span<const int32_t>, IterationKind kind, double floor,
              std::span<UpdateNorms> norms) override {
    norms[0] = {};
    for (int64_t p = 1; p <= num_intervals(); ++p) UpdateInterval(p, kind, floor, &norms[0]);
  }

  void Finish(int32_t, float* const* trajectories) override {
    current_ = states_.back()[0];
    if (trajectories != nullptr && trajectories[0] != nullptr) WriteTrajectory(trajectories[0]);
  }

 private:
  void WriteTrajectory(float* trajectory) const {
    std::copy(initial_.begin(), initial_.end(), trajectory);
    for (int64_t p = 1; p <= num_intervals(); ++p) {
      Vector z = states_[p - 1][0];
      for (int64_t l = EndOf(p - 1) + 1; l <= EndOf(p); ++l) {
        z = l == EndOf(p) ? states_[p][0] : recurrence_->Step(l, z);
        std::copy(z.begin(), z.end(), trajectory + l * dim_);
      }
    }
  }
  static int NumColumns(IterationKind kind) { return kind.probes ? kNumColumns : 1; }
  int64_t EndOf(int64_t p) const { return std::min(p * interval_, num_steps_); }

  Vector EvaluateGuess(int64_t step) const {
    const int64_t at =
        std::clamp<int64_t>((step + guess_.stride - 1) / guess_.stride - 1, 0, guess_.count - 1);
    const float* map = guess_.coefficients.data() + at * (dim_ + 1) * dim_;
    Vector y(map, map + dim_);
    for (int64_t k = 0; k < dim_; ++k)
      for (int64_t i = 0; i < dim_; ++i) y[i] += map[(k + 1) * dim_ + i] * initial_[k];
    return y;
  }

  // Any fixed signs serve; these come from a small linear congruential generator.
  static double Sign(int64_t step, int probe, int64_t lane) {
    const uint64_t h = (static_cast<uint64_t>(step) * 7919 + static_cast<uint64_t>(probe) * 104729 +
                        static_cast<uint64_t>(lane) * 1299709 + 1) *
                       6364136223846793005ULL;
    return (h >> 40) % 2 == 0 ? 1 : -1;
  }

  // State y_p as the next interval takes it: in a confirmation, the tried one.
  Vector EntryOf(int64_t p, IterationKind kind) const {
    Vector y = states_[p][0];
    if (p == 0 || kind.confirmation < Confirmation::kUpdated) return y;
    const bool updated = kind.confirmation == Confirmation::kUpdated;
    return Add(y, states_[p][updated ? kUpdateColumn : kBallColumn]);
  }

  int64_t PropagateInterval(int64_t p, IterationKind kind) {
    Columns y;
    y[0] = EntryOf(p - 1, kind);
    for (int v = 1; v < kNumColumns; ++v) y[v] = Vector(dim_);
    Matrix product(dim_ * dim_);
    for (int64_t i = 0; i < dim_; ++i) product[i * dim_ + i] = 1;
    int64_t stages = 0;
    for (int64_t l = EndOf(p - 1) + 1; l <= EndOf(p); ++l, ++stages) {
      const Matrix jacobian = recurrence_->StepJacobian(l, y[0]);
      y[0] = recurrence_->Step(l, y[0]);
      if (kind.refresh) product = Multiply(jacobian, product, dim_);
      for (int v = 1; v < NumColumns(kind); ++v) {
        y[v] = Multiply(jacobian, y[v]);
        for (int64_t i = 0; i < dim_; ++i) y[v][i] += Sign(l, v, i) * 0x1p-53 * std::fabs(y[0][i]);
      }
    }
    propagated_[p - 1] = y;
    Node& leaf = nodes_[tree_.node(0, p - 1)];
    if (kind.refresh) leaf.matrix = Linearize(product, kind.linearization);
    leaf.residual = y;
    leaf.residual[0] = Add(y[0], EntryOf(p, kind), -1);
    return stages;
  }

  Matrix Linearize(const Matrix& jacobian, Linearization linearization) const {
    if (linearization == Linearization::kFull) return jacobian;
    if (linearization != Linearization::kDiagonal) return {};
    Matrix diagonal(dim_ * dim_);
    for (int64_t i = 0; i < dim_; ++i) diagonal[i * dim_ + i] = jacobian[i * dim_ + i];
    return diagonal;
  }

  static Vector Transition(const Matrix& matrix, const Vector& x, IterationKind kind) {
    if (kind.linearization == Linearization::kIdentity) return x;
    return Multiply(matrix, x);
  }

  // F_p + A_p d_{p-1}, in every column.
  Columns Corrected(int64_t p, IterationKind kind) const {
    const Node& leaf = nodes_[tree_.node(0, p - 1)];
    Columns next = propagated_[p - 1];
    if (p == 1 || kind.linearization == Linearization::kZero) return next;
    for (int v = 0; v < NumColumns(kind); ++v)
      next[v] = Add(next[v], Transition(leaf.matrix, leaf.prefix[v], kind));
    return next;
  }

  void UpdateInterval(int64_t p, IterationKind kind, double floor, UpdateNorms* norms) {
    const Columns next = Corrected(p, kind);
    Columns& y = states_[p];
    double update = 0, rounding = 0;
    for (int64_t i = 0; i < dim_; ++i) {
      const double way = next[0][i] - y[0][i], moved = std::fabs(way);
      double probe = 0;
      for (int v = 1; v < NumColumns(kind); ++v) probe = Larger(probe, std::fabs(next[v][i]));
      const double error = moved + kRoundingFactor * probe;
      if (kind.probes) {
        y[kBallColumn][i] =
            std::max({0.25 * std::fabs(y[kUpdateColumn][i]), 0x1p-15 * std::fabs(next[0][i]),
                      8 * kRoundingFactor * probe, moved > 0 ? double{kLeastNormal} : 0});
      }
      if ((kind.probes || kind.confirms()) && error > kLeastNormal)
        norms->share = Larger(norms->share, error / std::fabs(y[kBallColumn][i]));
      if ((kind.probes || kind.confirms()) && way != 0)
        y[kBallColumn][i] = std::copysign(y[kBallColumn][i], way);
      norms->finite = norms->finite && std::isfinite(next[0][i]);
      update = Larger(update, moved);
      rounding = Larger(rounding, probe);
      y[kUpdateColumn][i] = way;
    }
    if (!kind.confirms()) y[0] = next[0];
    const double scale = Norm(y[0]) + floor;
    if (update == 0 && rounding == 0) return;
    norms->update = Larger(norms->update, update / scale);
    norms->rounding = Larger(norms->rounding, rounding / scale);
    norms->combined = Larger(norms->combined, ErrorBound(update, rounding) / scale);
  }

  const Family& family_;
  const AffineGuess& guess_;
  const int64_t dim_, num_steps_;
  std::unique_ptr<Recurrence> recurrence_;
  int64_t interval_ = 1;
  ScanTree tree_;
  Vector initial_, current_;
  std::vector<Columns> states_, propagated_;
  std::vector<Node> nodes_;
};

class ReferenceSystem final : public System {
 public:
  explicit ReferenceSystem(std::unique_ptr<Family> family) : family_(std::move(family)) {}
  int64_t memory_bytes() const override { return family_->memory_bytes(); }
  Grouping grouping() const override { return {}; }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    const SystemShape& shape = family_->shape;
    const int64_t nodes = 2 * ((shape.num_steps - 1) / limits.min_shooting_interval + 1);
    return nodes * shape.state_dim * (shape.state_dim + 4 * kNumColumns) * int64_t{sizeof(double)};
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits&) const override {
    return std::unique_ptr<SolveSpace>(std::make_unique<ReferenceSpace>(*family_, guess_));
  }
  BackwardGrouping backward_grouping() const override { return {.samples = 8, .columns = 32}; }
  absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(
      const BackwardLimits& limits) const override {
    return reference::NewBackwardSpace(*family_, limits);
  }
  bool gives_state_cotangents() const override { return true; }
  absl::Status AddParameterGradients(std::span<const ParameterSample> samples, int64_t begin,
                                     int64_t end, const ParameterSums& sums) const override {
    return reference::AddParameterGradients(*family_, samples, begin, end, sums);
  }
  absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) override {
    return family_->Repack(spec, begin, end);
  }
  absl::Status SetAffineGuess(const AffineGuess& guess) override {
    guess_ = guess;
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Family> family_;
  AffineGuess guess_;
};

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string_view device() const override { return "reference-float64"; }
  DeviceClass device_class() const override { return {.bits = "reference-float64"}; }
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                    const PackingLimits&) const override {
    return std::unique_ptr<System>(std::make_unique<ReferenceSystem>(
        std::visit([](const auto& s) { return NewFamily(s); }, spec)));
  }
};

}  // namespace

std::unique_ptr<Backend> NewReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace deeppcr::reference
