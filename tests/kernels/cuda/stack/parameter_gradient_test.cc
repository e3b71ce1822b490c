// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "kernels/cuda/stack/backward_kernel.h"
#include "tests/kernels/cuda/stack/backward_problem.h"

namespace deeppcr::testing {
namespace {

constexpr double kTolerance = 1e-4;  // the tolerance of all float32 backends
constexpr double kFloor = 1e-30;     // far above the least normal float, far below every gradient

struct ParameterAnswer {
  DeviceVector weights, biases;  // [L, D, D], [L, D]
};

// Adds the samples [first, first + n) to the answer.
void AddGradients(const BackwardProblem& problem, const DeviceVector& deltas, int64_t first,
                  int64_t n, int num_clusters, int num_threads, ParameterAnswer* answer) {
  const int64_t steps = problem.steps(), dim = problem.dim();
  const cuda::ParameterGradientArgs args{.num_layers = steps,
                                         .rows = static_cast<int32_t>(dim),
                                         .cols = static_cast<int32_t>(dim),
                                         .num_samples = static_cast<int32_t>(n),
                                         .inputs = problem.state(first, 0),
                                         .input_stride = (steps + 1) * dim,
                                         .deltas = deltas.data() + first * steps * dim,
                                         .weights = answer->weights.data(),
                                         .biases = answer->biases.data()};
  const auto outcome =
      simt::Execute({.num_clusters = num_clusters, .num_threads = num_threads}, {},
                    [&](simt::Thread& thread) { cuda::SumParameterGradients(thread, args); });
  EXPECT_EQ(outcome.trouble, "");
}

ParameterAnswer SumGradients(const BackwardProblem& problem, const DeviceVector& deltas,
                             int num_clusters, int num_threads) {
  const int64_t steps = problem.steps(), dim = problem.dim();
  ParameterAnswer answer{DeviceVector(steps * dim * dim), DeviceVector(steps * dim)};
  AddGradients(problem, deltas, 0, problem.n, num_clusters, num_threads, &answer);
  return answer;
}

std::vector<float> Floats(const DeviceVector& values) { return {values.begin(), values.end()}; }

template <int W>
void ExpectParameterGradients(const StackOptions& options, int64_t n) {
  const BackwardProblem problem(options, n);
  const StackGradients want = ReferenceGradients(problem);
  const int64_t dim = options.state_dim;
  for (const int64_t interval : {0, 4}) {
    const BackwardAnswer back = GoBack<W>(problem, {.interval = interval, .num_blocks = 2});
    const ParameterAnswer got = SumGradients(problem, back.deltas, 2, 64);
    const std::string what = Describe(options) + " n " + std::to_string(n);
    EXPECT_LT(RelativeError(Floats(got.weights), want.weights, dim * dim, kFloor), kTolerance)
        << what;
    EXPECT_LT(RelativeError(Floats(got.biases), want.biases, dim, kFloor), kTolerance) << what;
  }
}

TEST(ParameterGradientTest, AgreesWithTheReference) {
  for (const int64_t dim : {1, 3, 8, 13, 16, 32}) {
    for (const int64_t n : {1, 3}) {
      const StackOptions options{.num_steps = 9, .state_dim = dim, .residual = true};
      if (dim <= 8) ExpectParameterGradients<8>(options, n);
      if (dim > 3 && dim <= 16) ExpectParameterGradients<16>(options, n);
      ExpectParameterGradients<32>(options, n);
    }
  }
}

// A stack in double precision, as a function of everything that has a gradient.
struct DoubleStack {
  DoubleStack(const BackwardProblem& problem, int64_t sample)
      : spec(problem.system.spec()),
        weights(spec.weights.begin(), spec.weights.end()),
        biases(spec.biases.begin(), spec.biases.end()),
        initial(problem.state(sample, 0), problem.state(sample, 1)),
        final_gradient(problem.final_gradients.begin() + sample * spec.state_dim,
                       problem.final_gradients.begin() + (sample + 1) * spec.state_dim) {}

  // The inner product of z_L and `final_gradient`.
  double Loss() const {
    const int64_t dim = spec.state_dim;
    std::vector<double> z = initial;
    for (int64_t l = 0; l < spec.num_steps; ++l) {
      std::vector<double> next(dim);
      for (int64_t i = 0; i < dim; ++i) {
        double a = biases[l * dim + i];
        for (int64_t k = 0; k < dim; ++k) a += weights[(l * dim + i) * dim + k] * z[k];
        next[i] = reference::Activate(spec.activation, a);
        if (spec.residual) next[i] = z[i] + spec.residual_scale * next[i];
      }
      z = next;
    }
    return std::inner_product(z.begin(), z.end(), final_gradient.begin(), 0.0);
  }
  double Difference(double* value) const {
    constexpr double kStep = 1e-6;
    const double at = *value;
    *value = at + kStep;
    const double above = Loss();
    *value = at - kStep;
    const double below = Loss();
    *value = at;
    return (above - below) / (2 * kStep);
  }
  // The derivatives by each of `values`, which must belong to this stack.
  std::vector<double> Differences(std::vector<double>& values) const {
    std::vector<double> differences;
    for (double& value : values) differences.push_back(Difference(&value));
    return differences;
  }

  const DenseStackSpec& spec;
  std::vector<double> weights, biases, initial, final_gradient;
};

TEST(ParameterGradientTest, IsTheSlopeOfALoss) {
  for (const bool residual : {false, true}) {
    const BackwardProblem problem({.num_steps = 6, .state_dim = 3, .residual = residual}, 2);
    std::vector<double> weights(6 * 9), biases(6 * 3), initial;
    for (int64_t s = 0; s < 2; ++s) {
      DoubleStack stack(problem, s);
      const std::vector<double> w = stack.Differences(stack.weights);
      const std::vector<double> b = stack.Differences(stack.biases);
      const std::vector<double> z = stack.Differences(stack.initial);
      std::transform(w.begin(), w.end(), weights.begin(), weights.begin(), std::plus<>());
      std::transform(b.begin(), b.end(), biases.begin(), biases.begin(), std::plus<>());
      initial.insert(initial.end(), z.begin(), z.end());
    }
    for (const int64_t interval : {0, 1, 4}) {
      const BackwardAnswer back = GoBack<8>(problem, {.interval = interval});
      const ParameterAnswer got = SumGradients(problem, back.deltas, 2, 64);
      EXPECT_LT(RelativeError(Used(back.initial, 3, 8), initial, 3, kFloor), kTolerance);
      EXPECT_LT(RelativeError(Floats(got.weights), weights, 9, kFloor), kTolerance);
      EXPECT_LT(RelativeError(Floats(got.biases), biases, 3, kFloor), kTolerance);
    }
  }
}

TEST(ParameterGradientTest, AddsSamplesInTheirOrderInEveryLaunch) {
  const BackwardProblem problem({.num_steps = 5, .state_dim = 6}, 7);
  const DeviceVector deltas = GoBack<8>(problem, {}).deltas;
  const ParameterAnswer first = SumGradients(problem, deltas, 1, 32);
  for (int64_t l = 0; l < 5; ++l) {
    float weight = 0, bias = 0;
    for (int64_t s = 0; s < 7; ++s) {
      const float delta = deltas[(s * 5 + l) * 6 + 4];
      weight = std::fmaf(delta, problem.state(s, l)[2], weight);
      bias += delta;
    }
    EXPECT_EQ(first.weights[(l * 6 + 4) * 6 + 2], weight);
    EXPECT_EQ(first.biases[l * 6 + 4], bias);
  }
  for (const int num_clusters : {2, 5, 11}) {
    const ParameterAnswer other = SumGradients(problem, deltas, num_clusters, 64);
    EXPECT_EQ(first.weights, other.weights);
    EXPECT_EQ(first.biases, other.biases);
  }
  ParameterAnswer parts{DeviceVector(5 * 36), DeviceVector(5 * 6)};
  AddGradients(problem, deltas, 0, 3, 2, 32, &parts);
  AddGradients(problem, deltas, 3, 4, 2, 32, &parts);
  EXPECT_EQ(first.weights, parts.weights);
  EXPECT_EQ(first.biases, parts.biases);
}

}  // namespace
}  // namespace deeppcr::testing
