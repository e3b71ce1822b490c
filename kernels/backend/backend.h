// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_BACKEND_H_
#define DEEPPCR_KERNELS_BACKEND_BACKEND_H_

// Interface of a backend to the solvers: coarse operations over all shooting intervals of a group
// of samples. The solvers know no backend and the backends know no solver.
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
#include "kernels/backend/backward_space.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/load_progress.h"
#include "kernels/base/memory_budget.h"
#include "kernels/base/problems.h"
#include "kernels/base/team.h"
#include "kernels/iteration/pass.h"
#include "kernels/iteration/stopping.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// The affine map z_0 -> z_l fitted at load, at steps stride, 2 stride, ... (the last step may be L
// instead). coefficients [count, D + 1, D]: for each step first the constant, then the image of
// each unit vector.
struct AffineGuess {
  int64_t stride = 1;
  int64_t count = 0;
  std::vector<float> coefficients;
};

// Input of one sample. Pointers are the caller's and outlive the solve.
struct SampleInput {
  // [input_dim]: the input of a dense stack, the conditioning vector of a denoiser.
  const float* inputs = nullptr;
  // Input of diffusion models only. Noise: kernels/problem/philox.h.
  int32_t label = 0;                     // in [0, num_classes)
  uint64_t seed = 0;                     // seed of the noise
  uint64_t sample = 0;                   // index of the sample in the noise
  const float* initial_noise = nullptr;  // [sample_dim] instead of drawn noise, or null
  const float* step_noise = nullptr;     // [L, sample_dim] instead of drawn noise, or null

  const CancelToken* token = nullptr;  // may be null
};

// The iterative loop, pass by pass, for solvers that run the loop on the host. Intervals, guesses
// and samples are those of the space that owns this object.
class IterationPasses {
 public:
  virtual ~IterationPasses() = default;
  // Samples 0..n-1 start from their guesses, with zeros in the other columns.
  virtual void Begin(int32_t num_samples) = 0;
  // F_p and, on refresh, A_p at the current states; right-hand side F_p - y_p.
  virtual PassCount Propagate(std::span<const int32_t> samples, IterationKind kind) = 0;
  // True if Propagate or UpSweep has left work of this sample undone since the sample was encoded,
  // because its token has fired: the states of the sample are of no use then.
  virtual bool interrupted(int32_t sample) const = 0;
  // One level of the up-sweep: forms the nodes of `level` from the nodes of the level below
  // (1 <= level < tree levels).
  virtual void UpSweep(std::span<const int32_t> samples, int level, IterationKind kind) = 0;
  // One level of the down-sweep: forms the exclusive prefixes of the nodes of `level`, the vectors
  // that enter them, from those of `level` + 1. DownSweep, and UpSweep for its vectors, may put off
  // the work until Update of the same samples.
  virtual void DownSweep(std::span<const int32_t> samples, int level, IterationKind kind) = 0;
  // y_p <- F_p + A_p d_{p-1}; keeps the very bits of F_p where A_p d_{p-1} is zero. In a
  // confirmation the states stay; the movement that they would have made is stored, and their balls
  // take its sign. norms[i] belongs to samples[i].
  virtual void Update(std::span<const int32_t> samples, IterationKind kind, double floor,
                      std::span<UpdateNorms> norms) = 0;
  // Makes y_P the current states of samples 0..n-1, for Decode. trajectories[b] [L + 1, D], unless
  // that pointer or trajectories itself is null, receives all states: y_p at the ends of intervals,
  // and states propagated from y_{p-1} within intervals.
  virtual void Finish(int32_t num_samples, float* const* trajectories) = 0;
};

// The iterative loop as a whole, for backends that run it on their device.
class IterationLoop {
 public:
  virtual ~IterationLoop() = default;
  // Takes samples 0..n-1 from their guesses to their end and makes y_P the current states;
  // trajectories[b] [L + 1, D] receives all states unless that pointer or trajectories itself is
  // null. progress[b] comes with the guess in its counts. A sample whose token fires ends with
  // kDeadline or kCancelled.
  virtual void Iterate(int32_t num_samples, const StoppingPolicy& policy,
                       float* const* trajectories, Progress* progress) = 0;
};

// Memory and operations for one group of samples. Not thread-safe: one thread at a time. Nothing
// here allocates. `samples` lists members of the group in [0, capacity).
class SolveSpace {
 public:
  virtual ~SolveSpace() = default;

  // Threads that may share the work of the calls that follow, with the same bits; null: none.
  virtual void SetTeam(Team* team) { (void)team; }

  // Sets z_0 of a sample, and the noise and the conditioning that its steps need.
  virtual void Encode(int32_t sample, const SampleInput& input) = 0;
  // Answer [output_dim] from the final state of a sample.
  virtual void Decode(int32_t sample, float* outputs) = 0;
  // Bound of the effect of an error of the final state, relative to |z_L| + floor, on the outputs,
  // relative to the largest output: the error times the largest row sum of the absolute Jacobian of
  // the output layers at the final state. 0 for no error.
  virtual double AmplifyError(int32_t sample, double relative_error, double floor,
                              const float* outputs) = 0;

  // Sequential mode. Restart puts the current state of samples 0..n-1 at z_0; Advance takes them
  // through steps (begin, end], writing z_l to trajectories[b] + l * D where trajectories[b] is not
  // null. Returns the number of dependent steps.
  virtual void Restart(int32_t num_samples) = 0;
  virtual int64_t Advance(int32_t num_samples, int64_t begin, int64_t end,
                          float* const* trajectories) = 0;
  // Of a space without the iterative mode: where Advance from here on leaves the sides of the kinks
  // on which the units of each sample are, [L, System::side_bytes()]; null, as at first: nowhere.
  // The array outlives these calls. For systems with side_bytes() > 0.
  virtual void KeepSides(uint8_t* const* sides) { (void)sides; }
  // Steps of num_samples samples between two polls of their tokens: some hundred microseconds of
  // work.
  virtual int64_t StepsPerPoll(int32_t num_samples) const = 0;
  // The current state of the sample, [D].
  virtual void CopyState(int32_t sample, float* state) const = 0;
  // True if the final state of the sample is finite.
  virtual bool FinalStateFinite(int32_t sample) const = 0;

  // Iterative mode, with C steps per interval from here on. C in [min_shooting_interval, L].
  virtual void SetShootingInterval(int64_t steps) = 0;
  virtual int64_t num_intervals() const = 0;
  // Initial guesses: z_0 everywhere; a run that evaluates the denoiser every few steps only and
  // holds the denoised sample x0 in between (diffusion only; returns its cost); the affine map
  // (must be set on the System); a trajectory [L + 1, D].
  virtual void GuessConstant(int32_t sample) = 0;
  virtual PassCount GuessCoarse(int32_t sample) = 0;
  virtual void GuessAffine(int32_t sample) = 0;
  virtual void GuessTrajectory(int32_t sample, const float* trajectory) = 0;
  // The loop of a solve with this policy, from the last guess.
  virtual std::variant<IterationPasses*, IterationLoop*> iteration(
      const StoppingPolicy& policy) = 0;

  // kUnavailable: the device has failed, and all results read since then are void.
  virtual absl::Status status() const = 0;
};

struct SpaceLimits {
  int64_t min_shooting_interval = 1;
  bool iterative = true;  // false: sequential mode only
};

// Best distribution of the samples of a batch over spaces.
struct Grouping {
  int32_t sequential = 1;  // samples that a space advances together, at most
  int32_t iterative = 1;   // samples that a space iterates on together, at most
  int64_t worthwhile = 1;  // sequential samples that are worth a thread more, beside as many
  // Sequential samples advance in about the time of the next multiple of it, where they are more.
  int32_t multiple = 1;
  int32_t spaces = INT32_MAX;  // spaces that one batch can use at a time
  // True if steps in sequential mode, or passes in iterative mode, have pieces that are worth
  // sharing among threads (SolveSpace::SetTeam).
  bool shares_steps = false, shares_passes = false;
};

// Best sizes of a backward space, where memory allows them.
struct BackwardGrouping {
  int32_t samples = 1, scanned_samples = 1;
  int64_t columns = 1;
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
  virtual BackwardGrouping backward_grouping() const { return {}; }
  // The same memory and space for the backward pass. Errors: kUnimplemented where the backend has
  // none for this system, or where it was packed without.
  virtual int64_t BackwardSpaceBytes(const BackwardLimits& limits) const {
    (void)limits;
    return 0;
  }
  virtual absl::StatusOr<std::unique_ptr<BackwardSpace>> NewBackwardSpace(
      const BackwardLimits& limits) const {
    (void)limits;
    return absl::UnimplementedError("this backend has no backward pass");
  }
  // Bytes of SolveSpace::KeepSides for a step of a sample, where backward spaces can do with them
  // in place of the states; else 0.
  virtual int64_t side_bytes() const { return 0; }
  // True where backward spaces fill BackwardSample::state_cotangents.
  virtual bool gives_state_cotangents() const { return false; }
  // Adds what samples give to the gradients of layers begin .. end - 1, counted from 0, one sample
  // after another, so that the bits do not depend on how the layers are divided; where begin is 0,
  // of the outer layers too. Thread-safe for layers apart. Errors: kUnimplemented but for dense
  // stacks.
  virtual absl::Status AddParameterGradients(std::span<const ParameterSample> samples,
                                             int64_t begin, int64_t end,
                                             const ParameterSums& sums) const {
    (void)samples, (void)begin, (void)end, (void)sums;
    return absl::UnimplementedError("gradients of parameters are those of dense stacks only");
  }
  // Takes the weights of layers begin .. end - 1, counted from 0, from a spec of the same shape, in
  // place; where begin is 0, those of the outer layers too. For training, whose weights change in
  // every step: spaces stay valid, and none may compute meanwhile. Thread-safe for layers apart.
  // Errors: kUnimplemented but for dense stacks; kInvalidArgument for a spec of another shape.
  virtual absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) {
    (void)spec, (void)begin, (void)end;
    return absl::UnimplementedError("this backend cannot take other weights for this system");
  }
  // True where a Newton solve with C steps per interval and no warm sweeps goes without the host,
  // and other C do not: its stages take less time than those of others.
  virtual bool SolvesAtOnce(int64_t shooting_interval) const {
    (void)shooting_interval;
    return false;
  }
  // Takes the fitted guess. Only before the system serves. Errors: kResourceExhausted.
  virtual absl::Status SetAffineGuess(const AffineGuess& guess) = 0;
};

// Limits on packing a model.
struct PackingLimits {
  int64_t max_bytes = INT64_MAX;       // bytes of the system, as far as known beforehand
  const CancelToken* token = nullptr;  // may be null
  bool backward = false;               // pack what the backward pass takes, too
  // Of a workspace in sequential mode, where one for fewer samples at a time is smaller.
  int64_t max_workspace_bytes = INT64_MAX;
  // Set: packing goes on after an error that the rest does not depend on, and leaves here all that
  // it found; it fails all the same.
  Problems* all_problems = nullptr;
  // What to do about a system that takes more, for messages.
  std::string_view advice = "raise max_model_bytes";
  // Counts in what is packed before it is allocated, so that of systems that are packed at a time
  // none takes what another was promised; may be null.
  MemoryShare* memory = nullptr;
  // Folder for code that is compiled for the system; empty: it is not kept.
  std::string_view code_cache_dir;
  // False: code that is there is used, and none is compiled, which a request would wait for.
  bool compiles = true;
  // Told of steps that take long and of problems; may be null.
  const LoadProgress* progress = nullptr;
};

// Kind of device that a backend runs on: plans are kept by it.
struct DeviceClass {
  std::string bits;   // every property that bits depend on, e.g. "cpu-avx2"
  std::string speed;  // other properties that the fastest way to solve depends on; may be empty

  // Bits and speed in one, e.g. "cpu-avx2 l1d=32K l2=512K l3=32M".
  std::string Name() const { return speed.empty() ? bits : bits + " " + speed; }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;  // static storage
  // The device's short name for reports and metrics, e.g. "cpu-avx512".
  virtual std::string_view device() const = 0;
  virtual bool on_gpu() const { return false; }
  virtual DeviceClass device_class() const = 0;
  // Copies all that the system needs of the spec. Errors: kUnimplemented where the backend has no
  // code for this family, or for one of this size; kResourceExhausted, before anything large is
  // allocated where max_bytes are not enough; kCancelled soon after the token has fired.
  virtual absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec,
                                                            const PackingLimits& limits) const = 0;
  absl::StatusOr<std::unique_ptr<System>> NewSystem(const SystemSpec& spec) const {
    return NewSystem(spec, {});
  }
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_BACKEND_H_
