// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_STOPWATCH_H_
#define DEEPPCR_TESTS_GPU_STOPWATCH_H_

// Times of kernels by events, as lines of JSON.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cuda/runtime/launch.h"
#include "tests/gpu/trial.h"

namespace deeppcr::cuda {

// True where a profiler looks at a kernel: each is launched once, in its first shape.
inline bool once = false;
inline std::string workload;  // of the rows that follow

// Microseconds of a launch: of launches one behind the other, and of one on a GPU that waits, which
// takes longer by what the host needs from the first event to the launch.
struct Times {
  double median = 0, least = 0, alone = 0;
};

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Stopwatch {
 public:
  Stopwatch() {
    Must(cudaEventCreate(&start_), "event");
    Must(cudaEventCreate(&end_), "event");
  }
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  // Microseconds of each of `count` launches. One goes before the first event, unless it is to find
  // the GPU waiting: while that one runs, the host gets ahead.
  template <class Launch>
  double Take(const Launch& launch, int count, bool ahead) const {
    if (ahead) Must(launch(), "launch");
    Must(cudaEventRecord(start_), "event");
    for (int i = 0; i < count; ++i) Must(launch(), "launch");
    Must(cudaEventRecord(end_), "event");
    Must(cudaEventSynchronize(end_), "kernel");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, start_, end_), "event");
    return 1e3 * ms / count;
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

template <class Launch>
Times Measure(const Launch& launch) {
  constexpr int kWarmUps = 3, kAlone = 11, kBatches = 15;
  constexpr double kBatchMicroseconds = 500;
  constexpr int kMostInBatch = 16;
  const Stopwatch watch;
  if (once) return {watch.Take(launch, 1, false)};
  for (int i = 0; i < kWarmUps; ++i) watch.Take(launch, 1, false);
  std::vector<double> alone, batches;
  for (int i = 0; i < kAlone; ++i) alone.push_back(watch.Take(launch, 1, false));
  const int count =
      std::clamp(static_cast<int>(kBatchMicroseconds / (Median(alone) + 1e-3)), 1, kMostInBatch);
  for (int i = 0; i < kBatches; ++i) batches.push_back(watch.Take(launch, count, true));
  return {Median(batches), *std::min_element(batches.begin(), batches.end()), Median(alone)};
}

// What a row says beside the times: the system, and the launch.
struct Row {
  const char* kernel;
  int64_t layers;
  int dim;
  int samples = 1;
  const char* activation = "tanh";
  const char* guess = "constant";
  int interval = 0;
  NewtonShape shape = {};
  Progress progress = {};
  bool converged = true;
};

inline void Print(const Row& row, const Times& times) {
  const auto text = [](bool value) { return value ? "true" : "false"; };
  std::printf(
      "{\"kernel\": \"%s\", \"workload\": \"%s\", \"num_layers\": %lld, \"state_dim\": %d, "
      "\"samples\": %d, \"activation\": \"%s\", \"guess\": \"%s\", "
      "\"shooting_interval\": %d, \"blocks\": %d, \"warps\": %d, \"in_workspace\": %s, "
      "\"iterations\": %d, \"corrections\": %d, \"confirmations\": %d, \"converged\": %s, "
      "\"median_us\": %.2f, \"min_us\": %.2f, \"alone_us\": %.2f}\n",
      row.kernel, workload.c_str(), static_cast<long long>(row.layers), row.dim, row.samples,
      row.activation, row.guess, row.interval, row.shape.num_blocks, row.shape.num_warps,
      text(row.shape.in_workspace), row.progress.iterations, row.progress.corrections,
      row.progress.confirmations, text(row.converged), times.median, times.least, times.alone);
}

inline Row RowOf(const char* kernel, const Network& network, int n) {
  return {kernel, network.steps, network.dim, n,
          network.activation == Activation::kRelu ? "relu" : "tanh"};
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_STOPWATCH_H_
