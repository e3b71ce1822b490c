// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_BLOCKED_PASSES_H_
#define DEEPPCR_KERNELS_TRAINING_BLOCKED_PASSES_H_

// The sequential way through a dense stack and back for many samples on one thread: all of them
// take a few layers before any takes the next ones. The weights of these layers, and on the way
// back their states, cotangents and sums, then stay in the caches from sample to sample, where a
// stack of a thousand layers does not fit. The bits are those of one sample after another.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/base/cancel_token.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr::training {

// Not thread-safe.
class BlockedPasses {
 public:
  // Layers that all samples take before the next ones.
  static constexpr int64_t kLayers = 32;

  // Memory of the spaces for so many samples, one for each few of them: much where layers are wide,
  // whose weights fill the caches anyway.
  static int64_t Bytes(const System& system, const SystemShape& shape, int64_t most_samples);
  // For at most so many samples at a time. `system` outlives this. Errors: as System::NewSpace and
  // NewBackwardSpace.
  static absl::StatusOr<std::unique_ptr<BlockedPasses>> Create(const System& system,
                                                               const SystemShape& shape,
                                                               int64_t most_samples);

  // Bytes of the sides of all samples, beside the spaces.
  int64_t side_bytes() const { return sides_.size(); }

  // Outputs [n, output_dim] and states [n, L + 1, D] of the samples; values that overflow are among
  // them. Errors: kCancelled once the token, which may be null, has fired.
  absl::Status Forward(const SampleInputs& samples, const CancelToken* token,
                       std::span<float> states, std::span<float> outputs);

  // Fills `deltas` [n, L, D] and `encode_deltas` [n, D] of the samples of the last Forward, and
  // adds the gradients of all parameters, one sample after another. `samples` are views of these
  // arrays. False at the first cotangent that is not finite; the sums are of no use then. Errors:
  // as Forward and System::AddParameterGradients.
  absl::StatusOr<bool> Backward(std::span<const ParameterSample> samples, std::span<float> deltas,
                                std::span<float> encode_deltas, const ParameterSums& sums);

 private:
  // A group of samples that a space takes together.
  struct Group {
    std::unique_ptr<SolveSpace> forward;
    std::unique_ptr<BackwardSpace> backward;
    int32_t samples = 0;  // of the last Forward
    std::vector<float*> trajectories;
    std::vector<uint8_t*> sides;  // empty: the system has none
  };

  BlockedPasses(const System& system, const SystemShape& shape, int32_t group, int64_t most_samples)
      : system_(system),
        shape_(shape),
        group_(group),
        sides_(most_samples * shape.num_steps * system.side_bytes()),
        inputs_(most_samples) {}

  // Those of a sample; null where the system has none.
  uint8_t* SidesOf(int64_t sample) {
    const int64_t bytes = shape_.num_steps * system_.side_bytes();
    return bytes == 0 ? nullptr : sides_.data() + sample * bytes;
  }

  absl::Status CheckStopped() const;

  const System& system_;
  const SystemShape shape_;
  const int32_t group_;           // samples of a group, at most
  AlignedBuffer<uint8_t> sides_;  // of the last Forward, [n, L, side_bytes]
  std::vector<Group> groups_;
  std::vector<SampleInput> inputs_;  // of the last Forward
  const CancelToken* token_ = nullptr;
};

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_BLOCKED_PASSES_H_
