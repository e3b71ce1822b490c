// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_BACKWARD_SPACE_H_
#define DEEPPCR_KERNELS_BACKEND_BACKWARD_SPACE_H_

// Interface of a backend to the backward pass. With z_0..z_L the states of a sample and g_l the
// cotangent of z_l,
//
//   g_{l-1} = (df_l/dz at z_{l-1})^T g_l,   l = L..1.
//
// The pass is linear: there is nothing to iterate and no tolerance. It gives the derivative of the
// states that were handed in, whichever solver has found them. Symbols as in backend.h.

#include <cstdint>
#include <variant>

#include "absl/status/status.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/team.h"
#include "kernels/iteration/pass.h"

namespace deeppcr {

struct SampleInput;  // kernels/backend/backend.h

// Sizes of a space, at most.
struct BackwardLimits {
  int32_t samples = 1;                // that go back together by the sequential way
  int32_t scanned_samples = 1;        // that go back together by the parallel way
  int64_t columns = 1;                // m: cotangents of a sample that go back together
  int64_t min_shooting_interval = 1;  // of the parallel way
  bool parallel = true;               // false: the sequential way only
  int64_t busy_rows = 32;             // of a runner: cotangents that keep all its threads busy
};

// One sample on its way back. Every pointer is the caller's memory and outlives the pass; a result
// that is null is not wanted.
struct BackwardSample {
  const SampleInput* input = nullptr;  // inputs, label; noise of a learned scale
  const float* states = nullptr;       // z_0..z_L [L + 1, D], finite
  // As SolveSpace::KeepSides has left them with these states, where the system has any; may be
  // null.
  const uint8_t* sides = nullptr;
  int64_t columns = 1;  // m
  // Cotangents of the outputs [m, output_dim] and of z_L [m, D], whose effects add up; null: zero.
  const float* of_outputs = nullptr;
  const float* of_final = nullptr;

  float* inputs = nullptr;   // [m, input_dim]
  float* initial = nullptr;  // [m, sample_dim]: by z_0; of a diffusion model by the initial noise
  float* step_noise = nullptr;  // [m, L, sample_dim]; of systems that draw noise
  // Dense stacks with m = 1: the cotangents of the pre-activations of all layers [L, D], of the
  // input layer and of the output layer (absent layers have none). Stacks of programs have the
  // latter two. With the states these are all
  // that the gradients of weights and biases take.
  float* deltas = nullptr;
  float* encode_delta = nullptr;
  float* decode_delta = nullptr;
  // With m = 1, of systems that give them (System::gives_state_cotangents): g_1..g_L [L, D], which
  // with the states are all that the gradients of any step's parameters take.
  float* state_cotangents = nullptr;
};

// What one sample gives to the gradients of parameters. Of a dense stack: delta_l z_{l-1}^T and
// delta_l of each layer, with delta as in BackwardSample. Of a step program: (dz_l / dtheta at
// z_{l-1})^T g_l.
struct ParameterSample {
  const float* inputs = nullptr;            // [input_dim]
  int32_t label = 0;                        // of models with classes
  const float* states = nullptr;            // [L + 1, D]
  const float* deltas = nullptr;            // [L, D], of a dense stack
  const float* state_cotangents = nullptr;  // [L, D], of a step program
  const float* encode_delta = nullptr;      // [D], where there is an input layer
  const float* decode_delta = nullptr;      // [output_dim], where layers follow z_L
  // Noise of the steps as in SampleInput, where the network gives its scale.
  const float* step_noise = nullptr;
  uint64_t seed = 0, sample = 0;
};

// The gradients of a dense stack, laid out as its weights and biases are; null: not wanted.
struct ParameterSums {
  float* weights = nullptr;        // [L, D, D]
  float* biases = nullptr;         // [L, D]
  float* encode_weight = nullptr;  // [D, input_dim]
  float* encode_bias = nullptr;    // [D]
  float* decode_weight = nullptr;  // [output_dim, D]
  float* decode_bias = nullptr;    // [output_dim]
};

// The transposed reverse scan of sample 0, stage by stage, for backends whose stages the host puts
// one after another:
//
//   (1) FormMatrices       A_p^T, by the cotangents of the unit vectors
//   (2) UpSweep(level)     products of these, for level = 1 .. levels - 1
//   (3) DownSweep(level)   cotangents that enter the nodes, from level = levels - 1 down to 0
//   (4) RetreatIntervals   cotangents within the intervals
//
// over the tree of kernels/iteration/scan_tree.h, mirrored: its first node is the last interval.
// The scan is seeded by the vectors g_L, so that products of matrices are made on the way up only.
// FormMatrices and RetreatIntervals stop early where the sample's token has fired.
class BackwardScanStages {
 public:
  virtual ~BackwardScanStages() = default;
  // C steps per interval from here on.
  virtual void SetShootingInterval(int64_t steps) = 0;
  virtual int64_t num_intervals() const = 0;
  virtual PassCount FormMatrices() = 0;
  virtual void UpSweep(int level) = 0;
  virtual void DownSweep(int level) = 0;
  virtual PassCount RetreatIntervals() = 0;
};

// The same scan as a whole, for backends that run it on their device: of samples 0..n-1, n at most
// limits.scanned_samples, with C steps per interval. Its tree may have another shape, which
// depends on the number of intervals alone. The count is that of one sample.
class BackwardScan {
 public:
  virtual ~BackwardScan() = default;
  virtual PassCount GoBack(int32_t num_samples, int64_t shooting_interval) = 0;
};

// Memory and operations for the samples of a group, which have as many columns and want the same
// results. Not thread-safe. Nothing here allocates. The bits of a sample's results do not depend on
// the other samples, nor on the other columns.
class BackwardSpace {
 public:
  virtual ~BackwardSpace() = default;

  // Threads that may share the work of the calls that follow, with the same bits; null: none.
  virtual void SetTeam(Team* team) { (void)team; }

  // Takes a sample of the group, in [0, limits.samples) or, to be scanned, in [0,
  // limits.scanned_samples), and forms its g_L.
  virtual void Begin(int32_t sample, const BackwardSample& taken) = 0;

  // Sequential way: takes samples 0..n-1 back through steps end, end - 1, .., begin + 1. Returns
  // the number of dependent steps.
  virtual int64_t Retreat(int32_t num_samples, int64_t begin, int64_t end) = 0;
  // Steps between two polls of the tokens: some hundred microseconds of work.
  virtual int64_t StepsPerPoll(int32_t num_samples) const = 0;

  // Parallel way.
  virtual std::variant<BackwardScanStages*, BackwardScan*> scan() = 0;

  // Fills the results of a sample that has gone back through all steps.
  virtual void Finish(int32_t sample) = 0;

  // kUnavailable: the device has failed, and all results since then are void.
  virtual absl::Status status() const = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_BACKWARD_SPACE_H_
