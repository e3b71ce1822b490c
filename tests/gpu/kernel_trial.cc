// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU, with only the CUDA runtime and the standard library, so that this program
// builds on a machine without Abseil and GoogleTest, and is small enough for compute-sanitizer.
//
//   kernel_trial check [small | tiny]   every kernel compared with a loop in double precision, the
//                                       same bits when repeated, alone and in a batch, causality
//                                       bit for bit; tiny: dense layers only
//   kernel_trial time                   device times by events, for the sequential kernels and for
//                                       the parallel ones at several shooting intervals, blocks
//                                       and warps, forward and backward: JSON lines
//
// Exit status: 0, 1 if a check failed, 77 if there is no GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/probe.h"
#include "tests/gpu/backward_trial.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {
namespace {

void CheckNewton(const Trial& trial, int interval, const LaunchLimits& limits, int n,
                 const std::vector<float>& sequential) {
  const std::string name = trial.network().Name() + " C=" + std::to_string(interval);
  const std::vector<float> batch = trial.SolveNewton(n, interval, limits, 32);
  for (const Progress& progress : trial.outcomes())
    Check(progress.termination == Termination::kConverged, name + " does not converge");
  const double error = WorstState(batch, sequential, trial.network().dim);
  Check(error <= 1e-4, name + ": newton is " + std::to_string(error) + " from sequential");
  Check(SameBits(batch, trial.SolveNewton(n, interval, limits, 32), batch.size()),
        name + ": other bits when repeated");
  const std::vector<float> alone = trial.SolveNewton(1, interval, limits, 32);
  Check(SameBits(batch, alone, alone.size()), name + ": other bits alone");
  for (int k = 1; k <= 3; ++k) {
    const std::vector<float> states = trial.SolveNewton(1, interval, limits, k);
    const int64_t updates = trial.outcomes()[0].updates();
    const int64_t exact = std::min<int64_t>(updates * interval, trial.network().steps) + 1;
    Check(SameBits(states, sequential, exact * trial.network().dim),
          name + ": not causal after " + std::to_string(updates) + " updates");
  }
}

void CheckNetwork(const Network& network, const LaunchLimits& limits, int n) {
  const Trial trial(network, n);
  const std::vector<float> sequential = trial.SolveSequentially(n);
  const std::vector<double> reference = trial.Reference(0);
  const std::vector<float> first(sequential.begin(), sequential.begin() + trial.FloatsOf(1));
  const double error = WorstState(first, reference, network.dim);
  Check(error <= 1e-4, network.Name() + ": sequential is " + std::to_string(error) + " off");
  Check(SameBits(first, trial.SolveSequentially(1), first.size()),
        network.Name() + ": sequential has other bits alone");
  for (const int interval : {1, 3, 8, 32}) {
    if (interval <= network.steps) CheckNewton(trial, interval, limits, n, sequential);
  }
  CheckBackward(trial, limits, n);
}

// Checks the outputs of two random layers, and how much they amplify, with loops in double
// precision.
void CheckDenseChain(int input_dim, int hidden, int output_dim, int n) {
  const std::string name = "dense layers " + std::to_string(input_dim) + "-" +
                           std::to_string(hidden) + "-" + std::to_string(output_dim);
  std::mt19937 generator(2);
  std::normal_distribution<float> normal(0, 0.3F);
  const auto draw = [&](int count) {
    std::vector<float> values(count);
    for (float& x : values) x = normal(generator);
    return values;
  };
  const std::vector<float> first = draw(hidden * input_dim), second = draw(output_dim * hidden);
  const std::vector<float> bias = draw(std::max(hidden, output_dim)), inputs = draw(n * input_dim);
  const OnDevice<float> w1(first), w2(second), b(bias), x(inputs);
  const OnDevice<float> outputs(static_cast<size_t>(n) * output_dim), amplification(n);
  const OnDevice<DenseView> layers(
      std::vector<DenseView>{{w1.data(), b.data(), hidden, input_dim, Activation::kTanh},
                             {w2.data(), b.data(), output_dim, hidden, Activation::kIdentity}});
  const int widest = std::max({input_dim, hidden, output_dim});
  const DenseChainArgs args = {
      layers.data(),  2,          input_dim, output_dim,           widest, x.data(), input_dim,
      outputs.data(), output_dim, nullptr,   amplification.data(), nullptr};
  Must(LaunchDenseChain(args, n, nullptr), "dense layers launch");
  Must(cudaDeviceSynchronize(), "dense layers kernel");
  const std::vector<float> got = outputs.Host(), amplified = amplification.Host();
  for (int s = 0; s < n; ++s) {
    std::vector<double> h(hidden), slope(hidden);
    for (int i = 0; i < hidden; ++i) {
      double a = bias[i];
      for (int k = 0; k < input_dim; ++k)
        a += double{first[i * input_dim + k]} * inputs[s * input_dim + k];
      h[i] = std::tanh(a);
      slope[i] = 1 - h[i] * h[i];
    }
    double error = 0, largest = 0;
    for (int i = 0; i < output_dim; ++i) {
      double y = bias[i], row_sum = 0;
      for (int k = 0; k < hidden; ++k) y += double{second[i * hidden + k]} * h[k];
      for (int j = 0; j < input_dim; ++j) {
        double entry = 0;
        for (int k = 0; k < hidden; ++k)
          entry += double{second[i * hidden + k]} * slope[k] * first[k * input_dim + j];
        row_sum += std::fabs(entry);
      }
      error = std::max(error, std::fabs(got[s * output_dim + i] - y));
      largest = std::max(largest, row_sum);
    }
    Check(error <= 1e-4, name + ": off by " + std::to_string(error));
    Check(std::fabs(amplified[s] - largest) <= 1e-4 * (1 + largest), name + ": amplification");
  }
}

void CheckAll(const LaunchLimits& limits, bool small) {
  CheckDenseChain(5, 9, 3, 2);
  CheckDenseChain(16, 70, 65, small ? 1 : 40);
  for (const int dim : {1, 5, 8, 13, 16, 31, 32}) {
    for (const int64_t steps :
         small ? std::vector<int64_t>{1, 33} : std::vector<int64_t>{1, 2, 7, 33, 130, 1000}) {
      CheckNetwork({steps, dim, false, 0.9F}, limits, small ? 2 : 5);
      CheckNetwork({steps, dim, true, 1.0F}, limits, small ? 2 : 5);
    }
  }
  if (!small) CheckNetwork({1024, 16, true, 1.0F}, limits, 256);
}

// ---- Times
void TimeNewton(const Trial& trial, int n, int interval, const LaunchLimits& limits) {
  const Network& network = trial.network();
  const int intervals = static_cast<int>((network.steps - 1) / interval + 1);
  for (int blocks = 1; blocks <= limits.max_cluster_blocks; blocks *= 2) {
    const IntervalTree tree(intervals, blocks);
    NewtonShape shape = NewtonShapeOf(network.width, n, tree, limits);
    // Times the workspace only in the largest cluster, and with one sample.
    if (shape.in_workspace && (blocks < limits.max_cluster_blocks || n > 1)) continue;
    const OnDevice<std::byte> workspace(shape.in_workspace ? WorkspaceBytes(network.width, tree)
                                                           : 1);
    const NewtonArgs args =
        trial.Newton(interval, blocks, 32, false, shape.in_workspace ? workspace.data() : nullptr);
    for (const int most = shape.num_warps; shape.num_warps >= std::min(4, most);
         shape.num_warps /= 2) {
      const Times times = Measure([&] { return LaunchNewton(args, shape, nullptr); });
      Print("newton", network, n, interval, shape, trial.outcomes()[0], times);
    }
  }
}

void TimeAll(const LaunchLimits& limits) {
  for (const int dim : {8, 16, 32}) {
    for (const int64_t steps : {256, 1024, 4096, 16384}) {
      for (const int n : {1, 8, 64}) {
        if (n > 1 && steps != 1024) continue;
        const Trial trial({steps, dim, true, 1.0F}, n);
        const SequentialArgs args = trial.Sequential(n, false);
        const int width = trial.network().width;
        Print("sequential", trial.network(), n, 0, {}, {},
              Measure([&] { return LaunchSequential(args, width, nullptr); }));
        for (const int interval : {1, 2, 4, 8, 16, 32, 64, 128})
          TimeNewton(trial, n, interval, limits);
      }
    }
  }
  for (const int n : {1, 8, 64}) TimeBackward({1024, 16, true, 1.0F}, n, limits);  // W3
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "check" && mode != "time") {
    std::printf("usage: kernel_trial check [small | tiny] | time\n");
    return 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("skipped: there is no GPU\n");
    return 77;
  }
  cudaDeviceProp properties;
  Must(cudaGetDeviceProperties(&properties, 0), "properties");
  LaunchLimits limits;
  limits.multiprocessors = properties.multiProcessorCount;
  limits.shared_bytes = properties.sharedMemPerBlockOptin;
  Must(PrepareKernels(), "preparing the kernels");
  Must(MaxNewtonClusterBlocks(&limits.max_cluster_blocks), "cluster size");
  Must(CountClusters(limits.max_cluster_blocks, &limits.clusters), "clusters at a time");
  std::fprintf(stderr, "%s: clusters of up to %d blocks; at a time, by size:", properties.name,
               limits.max_cluster_blocks);
  for (int blocks = 1; blocks <= limits.max_cluster_blocks; blocks *= 2)
    std::fprintf(stderr, " %d", limits.ClustersAtOnce(blocks));
  std::fprintf(stderr, "\n");
  if (mode == "time") {
    TimeAll(limits);
    return 0;
  }
  const std::string size = argc > 2 ? argv[2] : "";
  size == "tiny" ? CheckDenseChain(5, 9, 3, 2) : CheckAll(limits, size == "small");
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace deeppcr::cuda

int main(int argc, char** argv) { return deeppcr::cuda::Main(argc, argv); }
