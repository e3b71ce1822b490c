// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_BACKEND_H_
#define DEEPPCR_KERNELS_BACKEND_BACKEND_H_

// What a backend offers to the solvers: coarse operations over all shooting intervals of a group of
// samples. The solvers know no backend and the backends know no solver.
//
// Symbols, as in kernels/README.md: L steps, D width, C steps per shooting interval, P = ceil(L /
// C) intervals, y_p the state at the end of interval p, F_p the composition of its steps, A_p its
// transition matrix.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// The affine map z_0 -> z_l fitted at load, at steps stride, 2 stride, ... (the last one may be L
// instead). coefficients [count, D + 1, D]: for each step first the constant, then the image of
// each unit vector.
struct AffineGuess {
  int64_t stride = 1;
  int64_t count = 0;
  std::vector<float> coefficients;
};

// What one sample starts from. Pointers are the caller's and outlive the solve.
struct SampleInput {
  // [input_dim]: the input of a dense stack, the conditioning vector of a denoiser.
  const float* inputs = nullptr;
  // Of diffusion models only.
  int32_t label = 0;                     // in [0, num_classes)
  uint64_t seed = 0;                     // of the noise, with
  uint64_t sample = 0;                   // the sample's index: kernels/problem/philox.h
  const float* initial_noise = nullptr;  // [D] instead of what would be drawn
  const float* step_noise = nullptr;     // [L, D] likewise

  const CancelToken* token = nullptr;  // may be null
};

// The iterative loop, pass by pass, for solvers that run it on the host. Intervals, guesses and
// samples are those of the space it belongs to.
class IterationPasses {
 public:
  virtual ~IterationPasses() = default;
  // Samples 0..n-1 start from their guesses, with zeros in the other columns.
  virtual void Begin(int32_t num_samples) = 0;
  // F_p and, on refresh, A_p at the current states; right-hand side F_p - y_p.
  virtual PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) = 0;
  // True if Propagate or ReduceLevel has left work of this sample undone since it was encoded,
  // because its token has fired: its states are of no use then.
  virtual bool interrupted(int32_t sample) const = 0;
  // One level of the scan: forms the nodes of `level` from those below it (1 <= level < tree
  // levels).
  virtual void ReduceLevel(std::span<const int32_t> samples, int level, IterationKind kind) = 0;
  // The vectors that enter the nodes of `level` from those that enter `level` + 1. May put off what
  // it does, and ReduceLevel its vectors, until Update of the same samples.
  virtual void DistributeLevel(std::span<const int32_t> samples, int level, IterationKind kind) = 0;
  // y_p <- F_p + A_p d_{p-1}; keeps the very bits of F_p where A_p d_{p-1} is zero. In a
  // confirmation the states stay; how they would have moved is noted, and their balls turn that
  // way. norms[i] belongs to samples[i].
  virtual void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
                      std::span<UpdateNorms> norms) = 0;
  // Makes y_P the current states of samples 0..n-1, for Decode. trajectories[b] [L + 1, D], where
  // that pointer is not null (trajectories itself may be), receives all states: y_p at interval
  // ends, propagated from y_{p-1} within.
  virtual void Finish(int32_t num_samples, float* const* trajectories) = 0;
};

// The iterative loop as a whole, for backends that run it on their device.
class IterationLoop {
 public:
  virtual ~IterationLoop() = default;
  // Takes samples 0..n-1 from their guesses to their end and makes y_P the current states;
  // trajectories[b] [L + 1, D] receives all states where that pointer is not null (trajectories
  // itself may be). progress[b] comes with the guess in its counts. A sample whose token fires ends
  // with kDeadline or kCancelled.
  virtual void Iterate(int32_t num_samples, const StoppingPolicy& policy,
                       float* const* trajectories, Progress* progress) = 0;
};

// Memory and operations for one group of samples. Not thread-safe: one thread at a time. Nothing
// here allocates. `samples` lists members of the group in [0, capacity).
class SolveSpace {
 public:
  virtual ~SolveSpace() = default;

  // z_0 of a sample, and whatever else its steps need: noise, conditioning.
  virtual void Encode(int32_t sample, const SampleInput& input) = 0;
  // Answer [output_dim] from the final state of a sample.
  virtual void Decode(int32_t sample, float* outputs) = 0;
  // How an error of the final state, relative to |z_L| + floor, may show in the outputs, relative
  // to the largest of them: the error times the largest row sum of the absolute Jacobian of the
  // output layers at the final state. 0 for no error.
  virtual double AmplifyError(int32_t sample, double relative_error, double floor,
                              const float* outputs) = 0;

  // Sequential mode. Restart puts the current state of samples 0..n-1 at z_0; Advance takes them
  // through steps (begin, end], writing z_l to trajectories[b] + l * D where that pointer is not
  // null. Returns dependent steps.
  virtual void Restart(int32_t num_samples) = 0;
  virtual int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                          float* const* trajectories) = 0;
  // Steps of so many samples between two looks at their tokens: some hundred microseconds of work.
  virtual int64_t StepsPerLook(int32_t num_samples) const = 0;
  // The current state of the sample, [D].
  virtual void CopyState(int32_t sample, float* state) const = 0;
  // True if it is finite.
  virtual bool FinalStateFinite(int32_t sample) const = 0;

  // Iterative mode, with C steps per interval from here on. C in [min_shooting_interval, L].
  virtual void SetShootingInterval(int64_t steps) = 0;
  virtual int64_t num_intervals() const = 0;
  // Initial guesses: z_0 everywhere; a run that evaluates the denoiser every so many steps only and
  // holds the denoised sample x0 in between (diffusion only; returns what it cost); the affine map
  // (must be set on the System); a trajectory [L + 1, D].
  virtual void GuessConstant(int32_t sample) = 0;
  virtual PassCount GuessCoarse(int32_t sample) = 0;
  virtual void GuessAffine(int32_t sample) = 0;
  virtual void GuessTrajectory(int32_t sample, const float* trajectory) = 0;
  virtual std::variant<IterationPasses*, IterationLoop*> iteration() = 0;

  // kUnavailable: the device has failed, and what has been read since is void.
  virtual absl::Status status() const = 0;
};

struct SpaceLimits {
  int64_t min_shooting_interval = 1;
  bool iterative = true;  // false: sequential mode only
};

// How the samples of a batch are best dealt out to spaces.
struct Grouping {
  int32_t sequential = 1;      // samples that a space advances together, at most
  int32_t iterative = 1;       // the same in iterative mode
  int64_t worthwhile = 1;      // sequential samples that are worth a thread of their own
  int32_t spaces = INT32_MAX;  // that are of use to one batch at a time
};

// A model's weights in the form a backend wants. Immutable once it serves; NewSpace is thread-safe.
class System {
 public:
  virtual ~System() = default;
  virtual int64_t memory_bytes() const = 0;
  virtual Grouping grouping() const = 0;
  // Memory of a space with these limits. Saturates instead of overflowing.
  virtual int64_t SpaceBytes(const SpaceLimits& limits) const = 0;
  // Errors: kResourceExhausted; kUnimplemented where the machine lacks a library that the iterative
  // mode takes, with what to install.
  virtual absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const = 0;
  // Takes the fitted guess. Only before the system serves. Errors: kResourceExhausted.
  virtual absl::Status SetAffineGuess(const AffineGuess& guess) = 0;
};

// What packing a model may take.
struct PackingLimits {
  int64_t max_bytes = INT64_MAX;       // of the system, as far as they are known beforehand
  const CancelToken* token = nullptr;  // may be null
};

// What kind of device a backend runs on: what plans are kept by.
struct DeviceClass {
  std::string bits;   // everything of it that bits depend on, e.g. "cpu-avx2"
  std::string speed;  // what else the fastest way to solve depends on; may be empty

  // Both in one, e.g. "cpu-avx2 l1d=32K l2=512K l3=32M".
  std::string Name() const { return speed.empty() ? bits : bits + " " + speed; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  // The device's short name for reports and metrics, e.g. "cpu-avx512".
  virtual std::string_view device() const = 0;
  virtual DeviceClass device_class() const = 0;
  // Copies what it needs of the spec. Errors: kResourceExhausted, before anything large is
  // allocated where max_bytes are not enough; kCancelled soon after the token has fired.
  virtual absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                            const PackingLimits& limits) const = 0;
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec) const {
    return NewSystem(spec, {});
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_BACKEND_H_
