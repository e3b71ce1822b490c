// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_TRIAL_H_
#define DEEPPCR_TESTS_GPU_TRIAL_H_

// Random networks on the device, solved by the kernels and by a loop in double precision.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"
#include "tests/gpu/cases.h"

namespace deeppcr::cuda {

// A random network, residual or not, of one of two activations.
struct Network {
  int64_t steps;
  int dim;
  bool residual;
  float gain;
  Activation activation = Activation::kTanh;  // or kRelu
  int width = WarpWidth(dim);
  float scale = residual ? 1 / std::sqrt(static_cast<float>(steps)) : 1.0F;

  std::string Name() const {
    return "L=" + std::to_string(steps) + " D=" + std::to_string(dim) +
           (residual ? " residual" : "") + (activation == Activation::kRelu ? " relu" : "");
  }
  double Activate(double a) const {
    return activation == Activation::kRelu ? std::max(a, 0.0) : std::tanh(a);
  }
};

class Trial {
 public:
  Trial(const Network& network, int num_samples)
      : network_(network),
        n_(num_samples),
        weights_host_(Draw(network.steps * network.width, network.dim, network.width, network.dim,
                           network.gain / std::sqrt(static_cast<float>(network.dim)))),
        biases_host_(Draw(network.steps, network.dim, network.width, network.width, 0.1F)),
        initial_host_(Draw(num_samples, network.dim, network.width, network.width, 1.0F)),
        weights_(weights_host_),
        biases_(biases_host_),
        initial_(initial_host_),
        final_(static_cast<size_t>(num_samples) * network.width),
        trajectory_(Floats()),
        outcomes_(num_samples),
        dependent_(1) {}

  StackView View() const {
    return {network_.steps, network_.dim,      weights_.data(),    biases_.data(),
            network_.scale, network_.residual, network_.activation};
  }
  // Rows of `width` values, zero beyond `dim`. Of every `width` rows those beyond `rows_used` are
  // zero too.
  static std::vector<float> Draw(int64_t rows, int dim, int width, int rows_used, float scale) {
    static std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(rows * width);
    for (int64_t r = 0; r < rows; ++r)
      for (int i = 0; i < dim && r % width < rows_used; ++i)
        values[r * width + i] = normal(generator);
    return values;
  }
  SequentialArgs Sequential(int n, bool trajectory) const {
    return {View(),
            n,
            0,
            network_.steps,
            initial_.data(),
            final_.data(),
            trajectory ? trajectory_.data() : nullptr,
            dependent_.data()};
  }
  NewtonArgs Newton(int interval, int blocks, const LaunchLimits& limits, int max_iterations,
                    bool trajectory, std::byte* workspace = nullptr,
                    const GuessView& guess = {}) const {
    const int intervals = static_cast<int>((network_.steps - 1) / interval + 1);
    StoppingPolicy policy;
    policy.max_iterations = max_iterations;
    policy.num_intervals = intervals;
    return {NewtonPart::kWhole,
            View(),
            policy,
            StartProgress(policy),
            IntervalTree(intervals, blocks),
            interval,
            guess,
            initial_.data(),
            final_.data(),
            trajectory ? trajectory_.data() : nullptr,
            outcomes_.data(),
            nullptr,
            nullptr,
            workspace,
            workspace == nullptr && CanHoldLayers(IntervalTree(intervals, blocks), interval,
                                                  network_.width, limits.shared_bytes)};
  }

  std::vector<float> SolveSequentially(int n) const {
    Must(LaunchSequential(Sequential(n, true), network_.width, nullptr), "sequential launch");
    Must(cudaDeviceSynchronize(), "sequential kernel");
    return Taken(n);
  }
  std::vector<float> SolveNewton(int n, int interval, const LaunchLimits& limits,
                                 int max_iterations) const {
    const int intervals = static_cast<int>((network_.steps - 1) / interval + 1);
    const NewtonShape shape = ChooseNewtonShape(network_.width, n, intervals, limits);
    const int64_t bytes = WorkspaceBytes(network_.width, IntervalTree(intervals, shape.num_blocks));
    const OnDevice<std::byte> workspace(shape.in_workspace ? n * bytes : 1);
    const NewtonArgs args = Newton(interval, shape.num_blocks, limits, max_iterations, true,
                                   shape.in_workspace ? workspace.data() : nullptr);
    Must(LaunchNewton(args, shape, nullptr), "newton launch");
    Must(cudaDeviceSynchronize(), "newton kernel");
    return Taken(n);
  }
  std::vector<Progress> outcomes() const { return outcomes_.Host(); }
  // The trajectories z_0..z_L of the samples that were solved last, on the device.
  const float* trajectory() const { return trajectory_.data(); }
  const std::vector<float>& initial() const { return initial_host_; }  // [n, W]
  const std::vector<float>& weights() const { return weights_host_; }  // [L, W, W]
  const std::vector<float>& biases() const { return biases_host_; }    // [L, W]

  // All states, computed in double precision.
  std::vector<double> Reference(int sample) const {
    const int d = network_.dim, w = network_.width;
    std::vector<double> z(initial_host_.begin() + sample * w,
                          initial_host_.begin() + sample * w + d);
    std::vector<double> all = z;
    for (int64_t l = 0; l < network_.steps; ++l) {
      std::vector<double> next(d);
      for (int i = 0; i < d; ++i) {
        double a = biases_host_[l * w + i];
        for (int k = 0; k < d; ++k) a += double{weights_host_[(l * w + i) * w + k]} * z[k];
        const double f = network_.Activate(a);
        next[i] = network_.residual ? z[i] + network_.scale * f : f;
      }
      z = next;
      all.insert(all.end(), z.begin(), z.end());
    }
    return all;
  }
  const Network& network() const { return network_; }
  size_t FloatsOf(int n) const {
    return n * (network_.steps + 1) * static_cast<size_t>(network_.dim);
  }

 private:
  size_t Floats() const { return FloatsOf(n_); }
  std::vector<float> Taken(int n) const {
    std::vector<float> states = trajectory_.Host();
    states.resize(FloatsOf(n));
    return states;
  }

  const Network network_;
  const int n_;
  const std::vector<float> weights_host_, biases_host_, initial_host_;
  const OnDevice<float> weights_, biases_, initial_, final_, trajectory_;
  const OnDevice<Progress> outcomes_;
  const OnDevice<int64_t> dependent_;
};

// The largest error of a row, relative to its size, as `sizes` have it, or to `floor`.
template <class A, class B, class C>
double WorstState(const A& got, const B& want, const C& sizes, int dim, double floor) {
  double worst = 0;
  for (size_t at = 0; at < got.size(); at += dim) {
    double error = 0, size = floor;
    for (int i = 0; i < dim; ++i) {
      if (!std::isfinite(got[at + i]) || !std::isfinite(want[at + i])) return INFINITY;
      error = std::max(error, std::fabs(double{got[at + i]} - want[at + i]));
      size = std::max(size, std::fabs(double{sizes[at + i]}));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}
template <class A, class B>
double WorstState(const A& got, const B& want, int dim) {
  return WorstState(got, want, want, dim, 1e-2);
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_TRIAL_H_
