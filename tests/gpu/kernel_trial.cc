// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU, with only the CUDA runtime and the standard library, so that this program
// builds on a machine without Abseil and GoogleTest, and is small enough for compute-sanitizer.
//
//   kernel_trial check [small | tiny | L D] [FAMILY]   every kernel compared with a loop in double
//                          precision, the same bits when repeated, alone and in a batch, causality
//                          bit for bit; tiny: dense layers only; L D: networks of this depth and
//                          width alone. FAMILY: dense, sequential, newton or backward
//   kernel_trial time WORKLOAD   device times by events as lines of JSON. WORKLOAD: W1, W2, W3, W4,
//                          W5, W6; sequential; shapes: the parallel kernels at several depths,
//                          widths, shooting intervals, blocks and warps
//   kernel_trial once WORKLOAD   the same launches, each once and in its first shape: for profilers
//   kernel_trial device    what the device holds, as a line of JSON
//
// Says each case before it runs. Exit status: 0, 1 if a check failed, 77 if there is no GPU.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"
#include "kernels/cuda/runtime/probe.h"
#include "tests/gpu/affine_fit.h"
#include "tests/gpu/backward_trial.h"
#include "tests/gpu/diffusion_trial.h"
#include "tests/gpu/panel_trial.h"
#include "tests/gpu/stopwatch.h"
#include "tests/gpu/trial.h"
#include "tests/gpu/wide_trial.h"

namespace deeppcr::cuda {
namespace {

void CheckNewton(const Trial& trial, int interval, const LaunchLimits& limits, int n,
                 const std::vector<float>& sequential) {
  const std::string name = trial.network().Name() + " C=" + std::to_string(interval);
  Begin(name);
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

// Families of kernels that are checked: one, or all if it is empty.
struct Wanted {
  std::string family;
  bool operator()(const char* name) const { return family.empty() || family == name; }
};

void CheckNetwork(const Network& network, const LaunchLimits& limits, int n, const Wanted& wanted) {
  Begin(network.Name() + " sequential");
  const Trial trial(network, n);
  const std::vector<float> sequential = trial.SolveSequentially(n);
  if (wanted("sequential")) {
    const std::vector<double> reference = trial.Reference(0);
    const std::vector<float> first(sequential.begin(), sequential.begin() + trial.FloatsOf(1));
    const double error = WorstState(first, reference, network.dim);
    Check(error <= 1e-4, network.Name() + ": sequential is " + std::to_string(error) + " off");
    Check(SameBits(first, trial.SolveSequentially(1), first.size()),
          network.Name() + ": sequential has other bits alone");
  }
  for (const int interval : {1, 3, 8, 32}) {
    if (wanted("newton") && interval <= network.steps)
      CheckNewton(trial, interval, limits, n, sequential);
  }
  if (wanted("backward")) CheckBackward(trial, limits, n);
}

// Checks the outputs of two random layers, and how much they amplify, with loops in double
// precision.
void CheckDenseChain(int input_dim, int hidden, int output_dim, int n) {
  const std::string name = "dense layers " + std::to_string(input_dim) + "-" +
                           std::to_string(hidden) + "-" + std::to_string(output_dim);
  Begin(name);
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
  const DenseChainArgs args = {layers.data(), 2,        input_dim, output_dim,
                               widest,        x.data(), input_dim, outputs.data(),
                               output_dim,    nullptr,  0,         amplification.data(),
                               nullptr};
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
      Check(std::isfinite(got[s * output_dim + i]), name + ": no finite output");
      error = std::max(error, std::fabs(got[s * output_dim + i] - y));
      largest = std::max(largest, row_sum);
    }
    Check(error <= 1e-4, name + ": off by " + std::to_string(error));
    Check(std::fabs(amplified[s] - largest) <= 1e-4 * (1 + largest), name + ": amplification");
  }
}

void CheckBoth(int64_t steps, int dim, const LaunchLimits& limits, int n, const Wanted& wanted) {
  CheckNetwork({steps, dim, false, 0.9F}, limits, n, wanted);
  CheckNetwork({steps, dim, true, 1.0F}, limits, n, wanted);
}

void CheckAll(const LaunchLimits& limits, bool small, const Wanted& wanted) {
  if (wanted("dense")) {
    CheckDenseChain(5, 9, 3, 2);
    CheckDenseChain(16, 70, 65, small ? 1 : 40);
  }
  if (wanted.family == "dense") return;
  for (const int dim : {1, 5, 8, 13, 16, 31, 32}) {
    for (const int64_t steps :
         small ? std::vector<int64_t>{1, 33} : std::vector<int64_t>{1, 2, 7, 33, 130, 1000})
      CheckBoth(steps, dim, limits, small ? 2 : 5, wanted);
  }
  if (!small) CheckNetwork({1024, 16, true, 1.0F}, limits, 256, wanted);
}

// ---- Times
// With this gain a solve from the constant guess takes four passes and a correction, as those of
// the demo model do that tests/gpu/model/workloads.py counts.
constexpr float kReluGain = 1.0F;
Network Relu(int64_t steps, int dim) { return {steps, dim, true, kReluGain, Activation::kRelu}; }

void TimeSequential(const Trial& trial, int n) {
  Begin(trial.network().Name() + " sequential, samples: " + std::to_string(n));
  const SequentialArgs args = trial.Sequential(n, false);
  const int width = trial.network().width;
  Print(RowOf("sequential", trial.network(), n),
        Measure([&] { return LaunchSequential(args, width, nullptr); }));
}

// Blocks of a cluster are tried from the most down to `least_blocks`.
void TimeNewton(const Trial& trial, int n, int interval, int least_blocks,
                const LaunchLimits& limits, const GuessView& guess = {}) {
  const Network& network = trial.network();
  const int intervals = static_cast<int>((network.steps - 1) / interval + 1);
  for (int blocks = limits.max_cluster_blocks; blocks >= least_blocks; blocks /= 2) {
    const IntervalTree tree(intervals, blocks);
    NewtonShape shape = NewtonShapeOf(network.width, n, tree, limits);
    // Times the workspace only in the largest cluster, and with one sample.
    if (shape.in_workspace && (blocks < limits.max_cluster_blocks || n > 1)) continue;
    const OnDevice<std::byte> workspace(shape.in_workspace ? WorkspaceBytes(network.width, tree)
                                                           : 1);
    const NewtonArgs args = trial.Newton(interval, blocks, limits, 32, false,
                                         shape.in_workspace ? workspace.data() : nullptr, guess);
    for (const int most = shape.num_warps; shape.num_warps >= std::min(4, most);
         shape.num_warps /= 2) {
      Begin(network.Name() + " newton C=" + std::to_string(interval) +
            ", samples: " + std::to_string(n) + ", blocks: " + std::to_string(blocks) +
            ", warps: " + std::to_string(shape.num_warps));
      const Times times = Measure([&] { return LaunchNewton(args, shape, nullptr); });
      Row row = RowOf("newton", network, n);
      row.guess = guess.map == nullptr ? "constant" : "affine";
      row.interval = interval;
      row.shape = shape;
      row.progress = trial.outcomes()[0];
      row.converged = row.progress.termination == Termination::kConverged;
      Print(row, times);
      if (once) return;
    }
  }
}

// One sample of a network as the demo models are: relu, with a fitted guess.
void TimeFitted(const Network& network, const std::vector<int>& intervals,
                const LaunchLimits& limits) {
  constexpr int kFitted = 64;
  Begin(network.Name() + " fit of the guess");
  const Trial trial(network, kFitted);
  const std::vector<float> states = trial.SolveSequentially(kFitted);
  TimeSequential(trial, 1);
  for (const int interval : intervals) {
    const AffineFit fit(trial, states, interval);
    TimeNewton(trial, 1, interval, limits.max_cluster_blocks / 2 + 1, limits, fit.View());
    TimeNewton(trial, 1, interval, limits.max_cluster_blocks / 2 + 1, limits);
    if (once) return;
  }
}

void TimeShapes(const LaunchLimits& limits) {
  for (const int dim : {8, 16, 32}) {
    for (const int64_t steps : {256, 1024, 4096, 16384}) {
      for (const int n : {1, 8, 64}) {
        if (n > 1 && steps != 1024) continue;
        const Trial trial({steps, dim, true, 1.0F}, n);
        TimeSequential(trial, n);
        for (const int interval : {1, 2, 4, 8, 16, 32, 64, 128})
          TimeNewton(trial, n, interval, 1, limits);
      }
    }
  }
  for (const int n : {1, 8, 64})
    TimeBackward({1024, 16, true, 1.0F}, n, {1, 2, 4, 8, 16, 32, 64}, 1, limits);
}

bool Time(const std::string& name, const LaunchLimits& limits) {
  workload = name;
  const int most = limits.max_cluster_blocks;
  if (name == "sequential") {
    for (const int dim : {16, 8, 32}) {
      for (const int n : {1, 64}) TimeSequential(Trial(Relu(1024, dim), n), n);
      TimeSequential(Trial({1024, dim, true, 1.0F}, 1), 1);
      if (once) break;
    }
  } else if (name == "W1") {
    TimeFitted(Relu(1024, 16), {16, 8, 32}, limits);
  } else if (name == "W2") {
    TimeFitted(Relu(16384, 16), {64, 32, 128}, limits);
  } else if (name == "W3") {
    TimeBackward(Relu(1024, 16), 1, {16, 8, 32}, most / 2 + 1, limits);
  } else if (name == "W4") {
    TimeDiffusion(once ? 100 : 1000, limits);
  } else if (name == "W5") {
    TimeWide(once ? 3 : 100, once ? 256 : 1024, limits);
  } else if (name == "W6") {
    for (const int dim : {64, 128}) {
      TimePanels(1024, dim, limits);
      if (!once) continue;
      TimeResidentStack(PanelTrial(40, dim), 40, dim, limits);  // also on a GPU of a few blocks
      break;
    }
  } else if (name == "shapes") {
    TimeShapes(limits);
  } else {
    return false;
  }
  return true;
}

// ---- The device
void PrintDevice(const cudaDeviceProp& properties, const LaunchLimits& limits) {
  std::printf(
      "{\"occupancy\": {\"name\": \"%s\", \"compute_capability\": \"%d.%d\", "
      "\"multiprocessors\": %d, \"shared_bytes\": %zu, \"l2_bytes\": %d, "
      "\"largest_cluster\": %d, \"clusters_at_once\": {",
      properties.name, properties.major, properties.minor, properties.multiProcessorCount,
      properties.sharedMemPerBlockOptin, properties.l2CacheSize, limits.max_cluster_blocks);
  for (int blocks = 1; blocks <= limits.max_cluster_blocks; blocks *= 2)
    std::printf("%s\"%d\": %d", blocks > 1 ? ", " : "", blocks, limits.ClustersAtOnce(blocks));
  std::printf("}}}\n");
}

int Usage() {
  std::printf(
      "usage: kernel_trial check [small | tiny | L D] [dense | sequential | newton | backward]\n"
      "       kernel_trial time | once W1 | W2 | W3 | W4 | W5 | W6 | sequential | shapes\n"
      "       kernel_trial device\n");
  return 2;
}

int Main(const std::vector<std::string>& words) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a hang or a crash leaves is what was printed
  const std::string mode = words.empty() ? "" : words[0];
  if (mode != "check" && mode != "time" && mode != "once" && mode != "device") return Usage();
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("skipped: there is no GPU\n");
    return 77;
  }
  Begin("preparing the kernels");
  cudaDeviceProp properties;
  Must(cudaGetDeviceProperties(&properties, 0), "properties");
  LaunchLimits limits;
  limits.multiprocessors = properties.multiProcessorCount;
  limits.shared_bytes = properties.sharedMemPerBlockOptin;
  Must(PrepareKernels(), "limits");
  Must(CountGridBlocks(limits.multiprocessors, limits.shared_bytes, &limits.grid_blocks),
       "blocks side by side");
  Must(MaxNewtonClusterBlocks(&limits.max_cluster_blocks), "cluster size");
  Must(CountClusters(limits.max_cluster_blocks, &limits.clusters), "clusters at a time");
  if (mode == "device") {
    PrintDevice(properties, limits);
    return 0;
  }
  if (mode == "time" || mode == "once") {
    once = mode == "once";
    return words.size() == 2 && Time(words[1], limits) ? 0 : Usage();
  }
  const std::string size = words.size() > 1 ? words[1] : "";
  const int64_t steps = std::atoll(size.c_str());
  const int dim = words.size() > 2 ? std::atoi(words[2].c_str()) : 0;
  const size_t next = steps > 0 ? 3 : size == "tiny" || size == "small" ? 2 : 1;
  const Wanted wanted = {next < words.size() ? words[next] : ""};
  if (steps > 0 && (dim < 1 || dim > kMaxWarpStateDim)) return Usage();
  if (size == "tiny") {
    CheckDenseChain(5, 9, 3, 2);
  } else if (steps > 0) {
    CheckBoth(steps, dim, limits, 2, wanted);
  } else {
    CheckAll(limits, size == "small", wanted);
  }
  if (checks == 0) return Usage();
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures > 0 ? 1 : 0;
}

}  // namespace
}  // namespace deeppcr::cuda

int main(int argc, char** argv) { return deeppcr::cuda::Main({argv + 1, argv + argc}); }
