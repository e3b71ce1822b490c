// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_BACKWARD_TRIAL_H_
#define DEEPPCR_TESTS_GPU_BACKWARD_TRIAL_H_

// The backward pass on a GPU: compared with a loop in double precision, and timed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"
#include "tests/gpu/stopwatch.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {

// Gradients with respect to the initial states [n, W], deltas [n, L, D], and gradients with respect
// to the parameters, [L, D, D] and [L, D].
struct Gradients {
  std::vector<float> initial, deltas, weights, biases;
};

// The backward pass of a network whose samples were solved.
class BackwardTrial {
 public:
  BackwardTrial(const Trial& trial, int num_samples)
      : trial_(trial),
        n_(num_samples),
        final_host_(Trial::Draw(num_samples, network().dim, network().width, network().width, 1)),
        final_(final_host_),
        initial_(final_host_.size()),
        deltas_(num_samples * Rows() * network().dim),
        weights_(Rows() * network().dim * network().dim),
        biases_(Rows() * network().dim),
        dependent_(1) {}

  const Network& network() const { return trial_.network(); }
  int Intervals(int interval) const {
    return static_cast<int>((network().steps - 1) / interval + 1);
  }
  BackwardStepsArgs Sequential(int n) const {
    return {Backward(n), 0, static_cast<int32_t>(network().steps)};
  }
  BackwardScanSize ScanSize(int interval) const {
    return {network().width, Intervals(interval), interval, 1};
  }
  BackwardScanArgs Scan(int n, int interval, int blocks, std::byte* workspace) const {
    return {Backward(n), IntervalTree(Intervals(interval), blocks), interval, workspace};
  }
  ParameterGradientArgs Parameters(int n) const {
    const int dim = network().dim;
    return {network().steps,
            dim,
            dim,
            n,
            trial_.trajectory(),
            (network().steps + 1) * dim,
            deltas_.data(),
            weights_.data(),
            biases_.data()};
  }

  Gradients GoBackSequentially(int n) const {
    Must(LaunchBackward(Sequential(n), network().width, nullptr), "backward launch");
    return Taken(n);
  }
  Gradients GoBackByScan(int n, int interval, const LaunchLimits& limits) const {
    const NewtonShape shape = ChooseBackwardShape(ScanSize(interval), n, limits);
    const OnDevice<std::byte> workspace(
        std::max<int64_t>(1, n * BackwardWorkspaceBytes(ScanSize(interval), limits)));
    const BackwardScanArgs args =
        Scan(n, interval, shape.num_blocks, shape.in_workspace ? workspace.data() : nullptr);
    Must(LaunchBackwardScan(args, shape, nullptr), "backward scan launch");
    return Taken(n);
  }

  // Gradients in double precision, in rows of W, from the states that the device has.
  // `weight_terms`, `bias_terms`: the sums of the absolute values of what samples give, which a sum
  // may be far smaller than.
  struct Doubles {
    std::vector<double> initial, deltas, weights, biases, weight_terms, bias_terms;
  };
  Doubles Reference(int n, const std::vector<float>& states) const {
    const int w = network().width, d = network().dim;
    Doubles all{{},
                std::vector<double>(n * Rows() * d),
                std::vector<double>(Rows() * d * d),
                std::vector<double>(Rows() * d),
                std::vector<double>(Rows() * d * d),
                std::vector<double>(Rows() * d)};
    for (int s = 0; s < n; ++s) {
      std::vector<double> g(final_host_.begin() + s * w, final_host_.begin() + (s + 1) * w);
      const float* z = states.data() + s * (network().steps + 1) * network().dim;
      for (int64_t l = network().steps - 1; l >= 0; --l)
        StepBack(l, z + l * network().dim, s, &g, &all);
      all.initial.insert(all.initial.end(), g.begin(), g.end());
    }
    return all;
  }

 private:
  size_t Rows() const { return static_cast<size_t>(network().steps); }
  BackwardArgs Backward(int n) const {
    return {
        trial_.View(),    n, 1, trial_.trajectory(), final_.data(), initial_.data(), deltas_.data(),
        dependent_.data()};
  }

  void StepBack(int64_t l, const float* z, int sample, std::vector<double>* g, Doubles* all) const {
    const int d = network().dim, w = network().width;
    std::vector<double> next = network().residual ? *g : std::vector<double>(w);
    for (int i = 0; i < d; ++i) {
      const float* row = trial_.weights().data() + (l * w + i) * w;
      double a = trial_.biases()[l * w + i];
      for (int k = 0; k < d; ++k) a += double{row[k]} * z[k];
      const double delta = network().scale * (1 - std::tanh(a) * std::tanh(a)) * (*g)[i];
      all->deltas[(sample * network().steps + l) * d + i] = delta;
      all->biases[l * d + i] += delta;
      all->bias_terms[l * d + i] += std::fabs(delta);
      for (int k = 0; k < d; ++k) {
        next[k] += row[k] * delta;
        all->weights[(l * d + i) * d + k] += delta * z[k];
        all->weight_terms[(l * d + i) * d + k] += std::fabs(delta * z[k]);
      }
    }
    *g = next;
  }
  Gradients Taken(int n) const {
    Must(cudaMemset(weights_.data(), 0, weights_.size() * sizeof(float)), "clearing the sums");
    Must(cudaMemset(biases_.data(), 0, biases_.size() * sizeof(float)), "clearing the sums");
    Must(LaunchParameterGradients(Parameters(n), nullptr), "parameter launch");
    Must(cudaDeviceSynchronize(), "backward kernels");
    Gradients gradients{initial_.Host(), deltas_.Host(), weights_.Host(), biases_.Host()};
    gradients.initial.resize(static_cast<size_t>(n) * network().width);
    gradients.deltas.resize(n * Rows() * network().dim);
    return gradients;
  }

  const Trial& trial_;
  const int n_;
  const std::vector<float> final_host_;
  const OnDevice<float> final_, initial_, deltas_, weights_, biases_;
  const OnDevice<int64_t> dependent_;
};

// Errors are relative to the sizes of `reference`. A step back rounds a sum of D products and a few
// factors, and the errors of all steps add up.
template <class Wanted>
void CheckGradients(const Gradients& got, const Wanted& want,
                    const BackwardTrial::Doubles& reference, const Network& network,
                    const std::string& name) {
  constexpr double kFloor = 1e-30;  // gradients may vanish: only their relative error counts
  Check(got.initial.size() == want.initial.size() && got.deltas.size() == want.deltas.size() &&
            got.weights.size() == want.weights.size() && got.biases.size() == want.biases.size(),
        name + ": other sizes");
  const int dim = network.dim;
  const double worst =
      std::max({WorstState(got.initial, want.initial, reference.initial, network.width, kFloor),
                WorstState(got.deltas, want.deltas, reference.deltas, dim, kFloor),
                WorstState(got.weights, want.weights, reference.weight_terms, dim * dim, kFloor),
                WorstState(got.biases, want.biases, reference.bias_terms, dim, kFloor)});
  const double bound = 0x1p-24 * static_cast<double>(network.steps + 4) * (dim + 8);
  Check(worst <= bound, name + ": gradients are " + std::to_string(worst) + " off, more than " +
                            std::to_string(bound));
}

inline void CheckSameBits(const Gradients& a, const Gradients& b, const std::string& what) {
  const size_t deltas = std::min(a.deltas.size(), b.deltas.size());
  Check(SameBits(a.initial, b.initial, std::min(a.initial.size(), b.initial.size())) &&
            SameBits(a.deltas, b.deltas, deltas),
        what);
}

// Checks the backward pass; solves the samples first.
inline void CheckBackward(const Trial& trial, const LaunchLimits& limits, int n) {
  const std::string name = trial.network().Name() + " backward";
  Begin(name);
  const std::vector<float> states = trial.SolveSequentially(n);
  const BackwardTrial back(trial, n);
  const BackwardTrial::Doubles reference = back.Reference(n, states);
  const Gradients sequential = back.GoBackSequentially(n);
  CheckGradients(sequential, reference, reference, trial.network(), name);
  CheckSameBits(sequential, back.GoBackSequentially(1), name + ": other bits alone");
  for (const int interval : {1, 3, 8, 32}) {
    if (interval > trial.network().steps) continue;
    const std::string what = name + " C=" + std::to_string(interval);
    Begin(what);
    const Gradients scan = back.GoBackByScan(n, interval, limits);
    CheckGradients(scan, reference, reference, trial.network(), what);
    CheckGradients(scan, sequential, reference, trial.network(), what + " against sequential");
    CheckSameBits(scan, back.GoBackByScan(n, interval, limits), what + ": other bits repeated");
    CheckSameBits(scan, back.GoBackByScan(1, interval, limits), what + ": other bits alone");
  }
}

// ---- Times of the gradients with respect to the initial states and of all deltas, and with the
// gradients with respect to all parameters.
// Blocks of a cluster are tried from the most down to `least_blocks`.
inline void TimeBackwardScan(const BackwardTrial& back, int n, int interval, int least_blocks,
                             const LaunchLimits& limits) {
  const Network& network = back.network();
  for (int blocks = std::min(limits.max_cluster_blocks, kChainNodes); blocks >= least_blocks;
       blocks /= 2) {
    const BackwardScanArgs args = back.Scan(n, interval, blocks, nullptr);
    NewtonShape shape = BackwardShapeOf(back.ScanSize(interval), n, blocks, limits);
    if (shape.in_workspace) continue;
    for (const int most = shape.num_warps; shape.num_warps >= std::min(4, most);
         shape.num_warps /= 2) {
      const auto scan = [&] { return LaunchBackwardScan(args, shape, nullptr); };
      Row row = RowOf("backward_scan", network, n);
      row.interval = interval;
      row.shape = shape;
      Print(row, Measure(scan));
      row.kernel = "backward_scan_parameters";
      Print(row, Measure([&] {
              const cudaError_t error = scan();
              return error != cudaSuccess ? error
                                          : LaunchParameterGradients(back.Parameters(n), nullptr);
            }));
      if (once) return;
    }
  }
}

inline void TimeBackward(const Network& network, int n, const std::vector<int>& intervals,
                         int least_blocks, const LaunchLimits& limits) {
  Begin(network.Name() + " backward, samples: " + std::to_string(n));
  const Trial trial(network, n);
  trial.SolveSequentially(n);
  const BackwardTrial back(trial, n);
  const int width = network.width;
  const BackwardStepsArgs args = back.Sequential(n);
  const ParameterGradientArgs parameters = back.Parameters(n);
  const auto sequential = [&] { return LaunchBackward(args, width, nullptr); };
  const auto sums = [&] { return LaunchParameterGradients(parameters, nullptr); };
  Print(RowOf("backward_sequential", network, n), Measure(sequential));
  Print(RowOf("backward_sequential_parameters", network, n), Measure([&] {
          const cudaError_t error = sequential();
          return error != cudaSuccess ? error : sums();
        }));
  Print(RowOf("parameter_gradients", network, n), Measure(sums));
  for (const int interval : intervals) {
    Begin(network.Name() + " backward C=" + std::to_string(interval));
    TimeBackwardScan(back, n, interval, least_blocks, limits);
    if (once) return;
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_BACKWARD_TRIAL_H_
