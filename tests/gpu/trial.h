// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_TRIAL_H_
#define DEEPPCR_TESTS_GPU_TRIAL_H_

// The common part of the kernel trials: random networks on the device, solved by the kernels and by
// a loop in double precision; checks; times.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"

namespace deeppcr::cuda {

inline int checks = 0, failures = 0;

inline void Check(bool right, const std::string& what) {
  ++checks;
  if (right) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t size) : size_(size) {
    void* memory = nullptr;
    Must(cudaMalloc(&memory, size * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(memory);
    Must(cudaMemset(data_, 0xFF, size * sizeof(T)), "cudaMemset");
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    Must(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return data_; }
  std::vector<T> Host() const {
    std::vector<T> values(size_);
    Must(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// A random tanh network, residual or not.
struct Network {
  int64_t steps;
  int dim;
  bool residual;
  float gain;
  int width = WarpWidth(dim);
  float scale = residual ? 1 / std::sqrt(static_cast<float>(steps)) : 1.0F;

  std::string Name() const {
    return "L=" + std::to_string(steps) + " D=" + std::to_string(dim) +
           (residual ? " residual" : "");
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
    return {network_.steps, network_.dim,      weights_.data(),  biases_.data(),
            network_.scale, network_.residual, Activation::kTanh};
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
  NewtonArgs Newton(int interval, int blocks, int max_iterations, bool trajectory,
                    std::byte* workspace = nullptr) const {
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
            {},
            initial_.data(),
            final_.data(),
            trajectory ? trajectory_.data() : nullptr,
            outcomes_.data(),
            nullptr,
            nullptr,
            workspace};
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
    const NewtonArgs args = Newton(interval, shape.num_blocks, max_iterations, true,
                                   shape.in_workspace ? workspace.data() : nullptr);
    Must(LaunchNewton(args, shape, nullptr), "newton launch");
    Must(cudaDeviceSynchronize(), "newton kernel");
    return Taken(n);
  }
  std::vector<Progress> outcomes() const { return outcomes_.Host(); }
  // The trajectories z_0..z_L of the samples that were solved last, on the device.
  const float* trajectory() const { return trajectory_.data(); }
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
        next[i] = network_.residual ? z[i] + network_.scale * std::tanh(a) : std::tanh(a);
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

// The largest error of a row, relative to its size or to `floor`.
template <class A, class B>
double WorstState(const A& got, const B& want, int dim, double floor = 1e-2) {
  double worst = 0;
  for (size_t at = 0; at < got.size(); at += dim) {
    double error = 0, size = floor;
    for (int i = 0; i < dim; ++i) {
      if (!std::isfinite(got[at + i])) return INFINITY;
      error = std::max(error, std::fabs(double{got[at + i]} - want[at + i]));
      size = std::max(size, std::fabs(double{want[at + i]}));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

// ---- Times
struct Times {
  double median, least;
};

template <class Launch>
Times Measure(const Launch& launch) {
  constexpr int kWarmUps = 5, kRuns = 60;
  cudaEvent_t start, end;
  Must(cudaEventCreate(&start), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<double> taken;
  for (int i = 0; i < kWarmUps + kRuns; ++i) {
    Must(cudaEventRecord(start), "event");
    Must(launch(), "launch");
    Must(cudaEventRecord(end), "event");
    Must(cudaEventSynchronize(end), "kernel");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, start, end), "event");
    if (i >= kWarmUps) taken.push_back(1e3 * ms);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  std::sort(taken.begin(), taken.end());
  return {taken[kRuns / 2], taken.front()};
}

inline void Print(const char* kernel, const Network& network, int n, int interval,
                  const NewtonShape& shape, const Progress& progress, const Times& times) {
  std::printf(
      "{\"kernel\": \"%s\", \"num_layers\": %lld, \"state_dim\": %d, \"residual\": %s, "
      "\"samples\": %d, \"shooting_interval\": %d, \"blocks\": %d, \"warps\": %d, "
      "\"in_workspace\": "
      "%s, "
      "\"iterations\": %d, \"corrections\": %d, \"converged\": %s, \"median_us\": %.2f, "
      "\"min_us\": %.2f}\n",
      kernel, static_cast<long long>(network.steps), network.dim,
      network.residual ? "true" : "false", n, interval, shape.num_blocks, shape.num_warps,
      shape.in_workspace ? "true" : "false", progress.iterations, progress.corrections,
      progress.termination == Termination::kConverged ? "true" : "false", times.median,
      times.least);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_TRIAL_H_
