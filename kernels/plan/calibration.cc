// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/plan/candidates.h"

namespace deeppcr {
namespace {

// Normal equations of y ~ M (1; z_0) for all fitted steps at once, which share the left-hand side.
class LeastSquares {
 public:
  LeastSquares(int64_t dim, int64_t count)
      : dim_(dim), terms_(dim + 1), gram_(terms_ * terms_), rhs_(count * terms_ * dim) {}

  // Adds a trajectory; steps[j] is the state at fitted step j.
  void Add(std::span<const float> z0, const std::vector<const float*>& steps) {
    std::vector<double> x(terms_, 1.0);
    std::copy(z0.begin(), z0.end(), x.begin() + 1);
    for (int64_t a = 0; a < terms_; ++a)
      for (int64_t b = 0; b < terms_; ++b) gram_[a * terms_ + b] += x[a] * x[b];
    for (size_t j = 0; j < steps.size(); ++j) {
      double* rhs = rhs_.data() + static_cast<int64_t>(j) * terms_ * dim_;
      for (int64_t a = 0; a < terms_; ++a)
        for (int64_t i = 0; i < dim_; ++i) rhs[a * dim_ + i] += x[a] * steps[j][i];
    }
  }

  // Coefficients [count, D + 1, D].
  std::vector<float> Solve() {
    Factorize();
    std::vector<float> coefficients(rhs_.size());
    for (size_t at = 0; at < rhs_.size(); at += terms_ * dim_) Substitute(rhs_.data() + at);
    std::transform(rhs_.begin(), rhs_.end(), coefficients.begin(),
                   [](double x) { return static_cast<float>(x); });
    return coefficients;
  }

 private:
  // Cholesky, in place, with a ridge that keeps it positive definite.
  void Factorize() {
    double trace = 0;
    for (int64_t a = 0; a < terms_; ++a) trace += gram_[a * terms_ + a];
    for (int64_t a = 0; a < terms_; ++a)
      gram_[a * terms_ + a] += 1e-6 * trace / static_cast<double>(terms_);
    for (int64_t a = 0; a < terms_; ++a) {
      for (int64_t b = 0; b <= a; ++b) {
        double sum = gram_[a * terms_ + b];
        for (int64_t k = 0; k < b; ++k) sum -= gram_[a * terms_ + k] * gram_[b * terms_ + k];
        gram_[a * terms_ + b] = a == b ? std::sqrt(sum) : sum / gram_[b * terms_ + b];
      }
    }
  }

  // [D + 1, D] right-hand sides to solutions.
  void Substitute(double* x) const {
    for (int64_t a = 0; a < terms_; ++a) {
      for (int64_t k = 0; k < a; ++k) Subtract(x, a, k, gram_[a * terms_ + k]);
      Divide(x, a);
    }
    for (int64_t a = terms_ - 1; a >= 0; --a) {
      for (int64_t k = a + 1; k < terms_; ++k) Subtract(x, a, k, gram_[k * terms_ + a]);
      Divide(x, a);
    }
  }
  void Subtract(double* x, int64_t row, int64_t other, double factor) const {
    for (int64_t i = 0; i < dim_; ++i) x[row * dim_ + i] -= factor * x[other * dim_ + i];
  }
  void Divide(double* x, int64_t row) const {
    for (int64_t i = 0; i < dim_; ++i) x[row * dim_ + i] /= gram_[row * terms_ + row];
  }

  const int64_t dim_, terms_;
  std::vector<double> gram_, rhs_;
};

int64_t StrideFor(const SystemShape& shape, int64_t max_bytes) {
  const int64_t per_step = (shape.state_dim + 1) * shape.state_dim * int64_t{sizeof(float)};
  const int64_t most = std::max<int64_t>(1, max_bytes / per_step);
  int64_t stride = 1;
  while ((shape.num_steps - 1) / stride + 1 > most) stride *= 2;
  return stride;
}

int64_t CountFor(const SystemShape& shape, int64_t stride) {
  return (shape.num_steps - 1) / stride + 1;
}

// Number of inputs to fit: as many as are useful and can be afforded.
int64_t NumFitted(const SystemShape& shape, int64_t num_inputs, int64_t num_steps) {
  const auto width = static_cast<double>(shape.state_dim);
  const double each =
      2 * static_cast<double>(shape.input_dim) * width +
      2 * static_cast<double>(shape.num_steps) * static_cast<double>(shape.step_weights) +
      2 * static_cast<double>(num_steps) * width * (width + 1);
  const auto affordable = static_cast<int64_t>(kMostGuessFlops / each);
  return std::min({num_inputs, affordable, std::max<int64_t>(600, 4 * (shape.state_dim + 1))});
}

absl::Status CheckEnough(int64_t usable, const SystemShape& shape) {
  if (usable >= shape.state_dim + 2) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("calibration: ", usable, " usable inputs, needs at least ", shape.state_dim + 2));
}

// Seed of the noise of diffusion models.
constexpr uint64_t kNoiseSeed = 20230916;

}  // namespace

OwnedSampleInputs CalibrationSamples(const CalibrationInputs& inputs, const SystemShape& shape,
                                     int64_t first, int64_t n) {
  std::vector<float> values(n * shape.input_dim);
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < n; ++i) {
    const std::span<const float> x = inputs.Sample(first + i, shape.input_dim);
    std::copy(x.begin(), x.end(), values.begin() + i * shape.input_dim);
    if (shape.num_classes > 0)
      labels.push_back(static_cast<int32_t>((first + i) % shape.num_classes));
  }
  return OwnedSampleInputs({.num_samples = n,
                            .inputs = values,
                            .seed = kNoiseSeed,
                            .first_sample = static_cast<uint64_t>(first),
                            .labels = labels});
}

CalibrationInputs SyntheticInputs(int64_t count, int64_t input_dim) {
  CalibrationInputs inputs{.values = std::vector<float>(count * input_dim), .count = count};
  std::mt19937_64 generator(kNoiseSeed);
  // Box-Muller by hand: the standard leaves the algorithm of its normal distribution open.
  const auto uniform = [&] { return (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53; };
  for (float& x : inputs.values)
    x = static_cast<float>(std::sqrt(-2 * std::log(uniform())) * std::cos(2 * M_PI * uniform()));
  return inputs;
}

absl::Status CheckFit(const SystemShape& shape, int64_t num_inputs, int64_t max_bytes) {
  DEEPPCR_RETURN_IF_ERROR(CheckEnough(num_inputs, shape));
  const int64_t count = CountFor(shape, StrideFor(shape, max_bytes));
  return CheckEnough(NumFitted(shape, num_inputs, count), shape);
}

int64_t FittingBytes(const SystemShape& shape, int64_t max_bytes) {
  const int64_t terms = shape.state_dim + 1;
  const int64_t coefficients =
      CountFor(shape, StrideFor(shape, max_bytes)) * terms * shape.state_dim;
  return (terms * terms + coefficients) * int64_t{sizeof(double)} +
         (coefficients + (shape.num_steps + 1) * shape.state_dim) * int64_t{sizeof(float)};
}

absl::StatusOr<AffineGuess> FitAffineGuess(const Runner& runner, const CalibrationInputs& inputs,
                                           int64_t max_bytes, const CancelToken* token,
                                           int64_t first) {
  const SystemShape& shape = runner.shape();
  const int64_t num_inputs = inputs.count - first;
  DEEPPCR_RETURN_IF_ERROR(CheckFit(shape, num_inputs, max_bytes));
  AffineGuess guess;
  guess.stride = StrideFor(shape, max_bytes);
  guess.count = CountFor(shape, guess.stride);
  LeastSquares fit(shape.state_dim, guess.count);
  std::vector<float> trajectory((shape.num_steps + 1) * shape.state_dim), outputs(shape.output_dim);
  std::vector<const float*> steps(guess.count);
  for (int64_t j = 0; j < guess.count; ++j)
    steps[j] =
        trajectory.data() + std::min((j + 1) * guess.stride, shape.num_steps) * shape.state_dim;
  SampleReport report;
  int64_t used = 0;
  const int64_t wanted = NumFitted(shape, num_inputs, guess.count);
  for (int64_t i = 0; i < wanted && !Fired(token); ++i) {
    const OwnedSampleInputs sample = CalibrationSamples(inputs, shape, first + i, 1);
    RunItem item{.samples = sample.View(),
                 .outputs = outputs,
                 .trajectory = trajectory,
                 .reports = {&report, 1},
                 .token = token};
    DEEPPCR_RETURN_IF_ERROR(runner.Run({.solver = "sequential"}, {&item, 1}, nullptr));
    if (!report.converged) continue;
    fit.Add(std::span(trajectory).first(shape.state_dim), steps);
    ++used;
  }
  DEEPPCR_RETURN_IF_ERROR(CheckEnough(used, shape));
  guess.coefficients = fit.Solve();
  return guess;
}

}  // namespace deeppcr
