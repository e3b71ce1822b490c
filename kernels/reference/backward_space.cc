// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/backward_space.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "kernels/iteration/scan_tree.h"
#include "kernels/program/op.h"

namespace deeppcr::reference {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<double>;

// A^T g of a row-major matrix with as many rows as g; empty for a zero matrix.
Vector MultiplyTransposed(const Matrix& a, const Vector& g) {
  Vector y(a.size() / g.size());
  for (size_t i = 0; i < g.size(); ++i)
    for (size_t k = 0; k < y.size(); ++k) y[k] += a[i * y.size() + k] * g[i];
  return y;
}

void AddTo(Vector* sum, const Vector& x) {
  for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += x[i];
}

void Give(const Vector& from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]);
}

class ReferenceBackwardSpace final : public BackwardSpace, public BackwardScanStages {
 public:
  ReferenceBackwardSpace(const Family& family, const BackwardLimits& limits)
      : family_(family),
        dim_(family.shape.state_dim),
        num_steps_(family.shape.num_steps),
        samples_(static_cast<size_t>(limits.samples)) {}

  void Begin(int32_t sample, const BackwardSample& taken) override {
    Sample& s = samples_[static_cast<size_t>(sample)];
    s = {.taken = taken, .recurrence = family_.Encode(*taken.input)};
    const Vector last = State(s, num_steps_);
    if (taken.of_outputs == nullptr && taken.decode_delta != nullptr)
      std::fill_n(taken.decode_delta, family_.shape.output_dim, 0.0F);
    for (int64_t j = 0; j < taken.columns; ++j) {
      Vector g(static_cast<size_t>(dim_));
      if (taken.of_outputs != nullptr) {
        const int64_t n = family_.shape.output_dim;
        const Vector of_outputs(taken.of_outputs + j * n, taken.of_outputs + (j + 1) * n);
        AddTo(&g, MultiplyTransposed(family_.DecodeJacobian(last), of_outputs));
        // The output layer of a stack has no activation.
        if (taken.decode_delta != nullptr) Give(of_outputs, taken.decode_delta);
      }
      for (int64_t i = 0; i < dim_ && taken.of_final != nullptr; ++i)
        g[i] += taken.of_final[j * dim_ + i];
      s.g.push_back(g);
      s.by_inputs.emplace_back(static_cast<size_t>(family_.shape.input_dim));
    }
  }

  int64_t Retreat(int32_t num_samples, int64_t begin, int64_t end) override {
    for (int32_t b = 0; b < num_samples; ++b) {
      Sample& s = samples_[static_cast<size_t>(b)];
      for (size_t j = 0; j < s.g.size(); ++j) s.g[j] = Through(s, begin, end, s.g[j], j);
    }
    return end - begin;
  }

  int64_t StepsPerPoll(int32_t) const override { return num_steps_; }

  std::variant<BackwardScanStages*, BackwardScan*> scan() override { return this; }

  void SetShootingInterval(int64_t steps) override {
    interval_ = steps;
    intervals_ = (num_steps_ - 1) / steps + 1;
    tree_ = ScanTree(intervals_);
    matrices_.clear();
    entering_.clear();
  }
  int64_t num_intervals() const override { return intervals_; }

  // Row-major A_p, whose transposes the scan applies.
  PassCount FormMatrices() override {
    for (int64_t q = 0; q < intervals_; ++q) {
      Matrix product(static_cast<size_t>(dim_ * dim_));
      for (int64_t i = 0; i < dim_; ++i) product[i * dim_ + i] = 1;
      for (int64_t l = BeginOf(q) + 1; l <= EndOf(q); ++l)
        product =
            Product(samples_[0].recurrence->StepJacobian(l, State(samples_[0], l - 1)), product);
      matrices_[{0, q}] = product;
    }
    return {.stages = std::min(interval_, num_steps_), .columns = dim_};
  }

  // The later leaves of a node are the earlier intervals, whose matrices stand on the right.
  // Nothing follows the last node, whose matrix is not needed.
  void UpSweep(int level) override {
    for (int64_t j = 0; j + 1 < tree_.nodes(level); ++j)
      matrices_[{level, j}] =
          Product(matrices_[{level - 1, 2 * j}], matrices_[{level - 1, 2 * j + 1}]);
  }

  void DownSweep(int level) override {
    if (level + 1 == tree_.levels()) entering_[{level + 1, 0}] = samples_[0].g;
    for (int64_t j = 0; j < tree_.nodes(level); ++j) {
      std::vector<Vector> g = entering_[{level + 1, j / 2}];
      for (Vector& column : g)
        if (j % 2 == 1) column = MultiplyTransposed(matrices_[{level, j - 1}], column);
      entering_[{level, j}] = g;
    }
  }

  PassCount RetreatIntervals() override {
    Sample& s = samples_[0];
    if (intervals_ == 1) entering_[{0, 0}] = s.g;
    for (int64_t q = 0; q < intervals_; ++q)
      for (size_t j = 0; j < s.g.size(); ++j)
        s.g[j] = Through(s, BeginOf(q), EndOf(q), entering_[{0, q}][j], j);
    return {.stages = std::min(interval_, num_steps_), .columns = s.taken.columns};
  }

  void Finish(int32_t sample) override {
    Sample& s = samples_[static_cast<size_t>(sample)];
    for (size_t j = 0; j < s.g.size(); ++j) {
      const Vector& g = s.g[j];
      if (s.taken.initial != nullptr) {
        Vector by_noise(g.begin(), g.begin() + family_.shape.sample_dim());
        for (double& value : by_noise) value *= s.recurrence->InitialFactor();
        Give(by_noise, s.taken.initial + j * by_noise.size());
      }
      if (s.taken.encode_delta != nullptr) Give(s.recurrence->EncodeDelta(g), s.taken.encode_delta);
      const Matrix by_inputs = s.recurrence->InitialByInputs();
      if (!by_inputs.empty()) AddTo(&s.by_inputs[j], MultiplyTransposed(by_inputs, g));
      if (s.taken.inputs != nullptr)
        Give(s.by_inputs[j], s.taken.inputs + j * s.by_inputs[j].size());
    }
  }

  absl::Status status() const override { return absl::OkStatus(); }

 private:
  struct Sample {
    BackwardSample taken;
    std::unique_ptr<Recurrence> recurrence;
    std::vector<Vector> g;          // by column
    std::vector<Vector> by_inputs;  // by column
  };

  Vector State(const Sample& sample, int64_t l) const {
    const float* from = sample.taken.states + l * dim_;
    return {from, from + dim_};
  }
  int64_t BeginOf(int64_t q) const { return (intervals_ - 1 - q) * interval_; }
  int64_t EndOf(int64_t q) const { return std::min(BeginOf(q) + interval_, num_steps_); }

  Matrix Product(const Matrix& a, const Matrix& b) const {
    Matrix c(static_cast<size_t>(dim_ * dim_));
    for (int64_t i = 0; i < dim_; ++i)
      for (int64_t k = 0; k < dim_; ++k)
        for (int64_t j = 0; j < dim_; ++j) c[i * dim_ + j] += a[i * dim_ + k] * b[k * dim_ + j];
    return c;
  }

  // g at z_begin from g at z_end, of column j.
  Vector Through(Sample& s, int64_t begin, int64_t end, Vector g, size_t j) const {
    for (int64_t l = end; l > begin; --l) {
      const Vector z = State(s, l - 1);
      if (s.taken.step_noise != nullptr) {
        const Vector factors = s.recurrence->NoiseFactors(l, z);
        const int64_t dim = std::ssize(factors);
        float* to = s.taken.step_noise + (static_cast<int64_t>(j) * num_steps_ + l - 1) * dim;
        for (int64_t i = 0; i < dim; ++i)
          to[i] = static_cast<float>(program::MovedBy(factors[i], g[i]));
      }
      if (s.taken.state_cotangents != nullptr) Give(g, s.taken.state_cotangents + (l - 1) * dim_);
      if (s.taken.deltas != nullptr)
        Give(s.recurrence->Delta(l, z, g), s.taken.deltas + (l - 1) * dim_);
      const Matrix by_inputs =
          s.taken.inputs == nullptr ? Matrix() : s.recurrence->StepByInputs(l, z);
      if (!by_inputs.empty()) AddTo(&s.by_inputs[j], MultiplyTransposed(by_inputs, g));
      g = MultiplyTransposed(s.recurrence->StepJacobian(l, z), g);
    }
    return g;
  }

  const Family& family_;
  const int64_t dim_, num_steps_;
  std::vector<Sample> samples_;
  int64_t interval_ = 1, intervals_ = 0;
  ScanTree tree_;
  std::map<std::pair<int, int64_t>, Matrix> matrices_;               // by level and node
  std::map<std::pair<int, int64_t>, std::vector<Vector>> entering_;  // the same; by column
};

}  // namespace

std::unique_ptr<BackwardSpace> NewBackwardSpace(const Family& family,
                                                const BackwardLimits& limits) {
  return std::make_unique<ReferenceBackwardSpace>(family, limits);
}

namespace {

// One layer: deltas and inputs of all samples, from accessors.
template <class Delta, class Input>
void AddLayer(std::span<const ParameterSample> samples, int64_t rows, int64_t cols,
              const Delta& delta, const Input& input, float* weight, float* bias) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < cols && weight != nullptr; ++k) {
      double sum = weight[i * cols + k];
      for (const ParameterSample& s : samples) sum += double{delta(s)[i]} * input(s)[k];
      weight[i * cols + k] = static_cast<float>(sum);
    }
    if (bias == nullptr) continue;
    double sum = bias[i];
    for (const ParameterSample& s : samples) sum += delta(s)[i];
    bias[i] = static_cast<float>(sum);
  }
}

}  // namespace

absl::Status AddParameterGradients(const Family& family, std::span<const ParameterSample> samples,
                                   int64_t begin, int64_t end, const ParameterSums& sums) {
  if (!family.has_parameter_gradients())
    return absl::UnimplementedError("gradients of parameters are those of dense stacks only");
  const SystemShape& shape = family.shape;
  const int64_t dim = shape.state_dim;
  const auto part = [](float* all, int64_t offset) {
    return all == nullptr ? nullptr : all + offset;
  };
  for (int64_t l = begin; l < end; ++l)
    AddLayer(
        samples, dim, dim, [&](const ParameterSample& s) { return s.deltas + l * dim; },
        [&](const ParameterSample& s) { return s.states + l * dim; },
        part(sums.weights, l * dim * dim), part(sums.biases, l * dim));
  if (begin > 0) return absl::OkStatus();
  AddLayer(
      samples, dim, shape.input_dim, [](const ParameterSample& s) { return s.encode_delta; },
      [](const ParameterSample& s) { return s.inputs; }, sums.encode_weight, sums.encode_bias);
  AddLayer(
      samples, shape.output_dim, dim, [](const ParameterSample& s) { return s.decode_delta; },
      [&](const ParameterSample& s) { return s.states + shape.num_steps * dim; },
      sums.decode_weight, sums.decode_bias);
  return absl::OkStatus();
}

}  // namespace deeppcr::reference
