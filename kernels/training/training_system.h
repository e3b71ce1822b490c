// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_TRAINING_SYSTEM_H_
#define DEEPPCR_KERNELS_TRAINING_TRAINING_SYSTEM_H_

// A dense stack whose weights change in every step: forward, backward, gradients, on a backend.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/registry.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/thread_pool.h"
#include "kernels/solver/backward_runner.h"
#include "kernels/solver/runner.h"
#include "kernels/training/blocked_passes.h"
#include "kernels/training/parameters.h"

namespace deeppcr::training {

struct SystemOptions {
  std::string backend = "cpu";  // a name of the backend registry
  int num_threads = 0;          // 0: one per core
  // kParallel: newton forward, the transposed scan backward. On a CPU the slower way.
  BackwardWay way = BackwardWay::kSequential;
  int32_t shooting_interval = 16;  // C of the parallel way, at most L
  double rtol = 1e-4;              // tolerance of newton
};

// Not thread-safe; uses the threads of its own pool. Results do not depend on their number, bit for
// bit.
class TrainingSystem {
 public:
  // Samples that go through forward and backward together, at most: their states are what is kept
  // in memory, and more samples take their turns.
  static constexpr int64_t kSamplesTogether = 64;
  // The number that is fastest here. Where one thread takes samples through all layers, it finds
  // the states of a few in its cache.
  int64_t samples_together() const {
    return blocked_ == nullptr && pool_.num_threads() == 1 ? 8 : kSamplesTogether;
  }

  // `parameters` are those to begin with. Errors: as SelectBackends and Backend::NewSystem;
  // kResourceExhausted; kUnimplemented where the backend has no gradients of parameters.
  static absl::StatusOr<std::unique_ptr<TrainingSystem>> Create(const ParameterLayout& layout,
                                                                std::span<const float> parameters,
                                                                const SystemOptions& options);

  int64_t memory_bytes() const;
  ThreadPool& pool() { return pool_; }
  std::string_view device() const { return backend_->device(); }

  // Forward and Backward return kCancelled once the token, which may be null, has fired.
  void StopBy(const CancelToken* token) { token_ = token; }

  // Takes other parameters, in the order of the layout.
  absl::Status Pack(std::span<const float> parameters);

  struct ForwardCounts {
    int64_t fallbacks = 0;   // samples that newton gave up and the sequential solver answered
    int64_t iterations = 0;  // of newton, the most of any sample
  };
  // Outputs [n, output_dim] of inputs [n, input_dim], 1 <= n <= kSamplesTogether; the states are
  // kept for Backward. Values that overflow are in the outputs.
  // `guesses` [n, L + 1, state_dim] are trajectories that newton begins with; empty: it begins with
  // z_0 everywhere.
  absl::Status Forward(std::span<const float> inputs, std::span<const float> guesses,
                       std::span<float> outputs, ForwardCounts* counts);
  // Floats of a trajectory.
  int64_t trajectory_size() const { return (shape_.num_steps + 1) * shape_.state_dim; }
  // The trajectory [L + 1, state_dim] of sample b of the last Forward.
  std::span<const float> TrajectoryOf(int64_t b) const {
    return states_.span().subspan(b * trajectory_size(), trajectory_size());
  }
  // Adds to gradients [layout.size()] what the samples of the last Forward give, whose outputs have
  // the cotangents [n, output_dim]: one sample after another, whatever the number of threads. False
  // if a cotangent overflowed; the gradients are zeros then.
  absl::StatusOr<bool> Backward(std::span<const float> of_outputs, std::span<float> gradients);

 private:
  TrainingSystem(const ParameterLayout& layout, const SystemOptions& options);

  absl::Status Prepare(std::span<const float> parameters, const SystemOptions& options);
  // Fills deltas_ and encode_deltas_; false if one is not finite.
  absl::StatusOr<bool> FormDeltas(std::span<const float> of_outputs);
  absl::Status AddGradients(std::span<const ParameterSample> samples, const ParameterSums& sums);
  // Calls work(begin, end) for pieces of the layers, on all threads. Errors: the last one.
  template <class Work>
  absl::Status OverLayers(const Work& work);

  absl::Status CheckStopped() const;

  const CancelToken* token_ = nullptr;
  const ParameterLayout layout_;
  const SystemShape shape_;
  ThreadPool pool_;
  ResolvedOptions forward_;
  BackwardOptions backward_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<System> system_;
  // The sequential way of one thread; else null, and the runners below are not.
  std::unique_ptr<BlockedPasses> blocked_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<BackwardRunner> backward_runner_;
  // Of the last Forward.
  std::span<const float> inputs_;
  int64_t n_ = 0;
  AlignedBuffer<float> states_, deltas_;  // of rows far apart, hence in large pages
  std::vector<float> encode_deltas_;
  std::vector<SampleReport> reports_;
  std::vector<BackwardReport> backward_reports_;
  std::vector<ParameterSample> samples_;
};

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_TRAINING_SYSTEM_H_
