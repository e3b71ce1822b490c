// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_RECURRENCE_H_

// Operations in which the families differ: encode, step, decode. Everything else of a space (tree,
// update, norms, guesses) is the same for all families.
//
// Vectors are padded with zeros to W = PaddedWidth(D) floats; matrices are column-major, W floats a
// column (kernels/cpu/kernels.h).

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cpu/backward_recurrence.h"
#include "kernels/cpu/kernels.h"

namespace deeppcr::cpu {

// Multiply-adds of some hundred microseconds on one core: the work between two polls of a token.
inline constexpr int64_t kWorkPerPoll = int64_t{1} << 22;

// Propagation of sample 0 through all intervals.
struct IntervalPass {
  int64_t interval;       // C
  int64_t num_intervals;  // P
  const float* states;    // [P + 1, kColumns, W]: y_p and its probes
  float* propagated;      // [P, kColumns, W]: F_p and its probes
  float* matrices;  // [P, W (column), W], or [P, W] if diagonal, or null to leave them as they are;
                    // the first interval's is never used and may be left out
  bool diagonal;
  bool probes;
  int64_t draw;              // see DrawOfSigns
  const CancelToken* token;  // may be null
};

// The steps of one system with the memory they need for PackedSystem::group samples. Not
// thread-safe. Nothing allocates but the constructor.
class Recurrence {
 public:
  virtual ~Recurrence() = default;

  // See SolveSpace::SetTeam.
  virtual void SetTeam(Team* team) { (void)team; }
  // Computes z_0 [W] of a sample; other data that its steps need is kept under its index.
  virtual void Encode(int32_t sample, const SampleInput& input, float* z) = 0;
  // Answer [output_dim] of the final state z [W].
  virtual void Decode(const float* z, float* outputs) = 0;
  // Largest row sum of the absolute Jacobian of Decode at z.
  virtual double OutputAmplification(const float* z) = 0;

  // See SolveSpace::KeepSides.
  virtual void KeepSides(uint8_t* const* sides) { (void)sides; }
  // Takes states [n, W] of samples 0..n-1 through steps (begin, end]; trajectories[b] + l * D
  // receives z_l where that pointer is not null (trajectories itself may be). Returns the dependent
  // steps.
  virtual int64_t Advance(float* states, int32_t n, int64_t begin, int64_t end,
                          float* const* trajectories) = 0;
  // Propagates, with the very bits of Advance in the states. Unfinished if the token, which is
  // probed every few hundred microseconds, has fired.
  virtual PassCount Propagate(const IntervalPass& pass) = 0;
  // See SolveSpace::GuessCoarse: z_l of sample 0 [W] into states + p * stride for the ends l of
  // intervals p = 1..P. states[0] is z_0. Unfinished if the token has fired.
  virtual PassCount GuessCoarse(int64_t interval, int64_t stride, float* states,
                                const CancelToken* token) = 0;
};

// A model as the spaces of one system share it. Immutable but for Repack.
class PackedSystem {
 public:
  virtual ~PackedSystem() = default;
  virtual int64_t memory_bytes() const = 0;
  // Bytes that NewRecurrence allocates.
  virtual int64_t RecurrenceBytes() const = 0;
  // Steps of the system with their memory; null if the allocation failed. `this` must outlive the
  // result.
  virtual std::unique_ptr<Recurrence> NewRecurrence() const = 0;
  // The same for the steps backwards; also null where the system was packed without.
  virtual int64_t BackwardRecurrenceBytes(const BackwardLimits& limits) const {
    (void)limits;
    return 0;
  }
  virtual std::unique_ptr<BackwardRecurrence> NewBackwardRecurrence(
      const BackwardLimits& limits) const {
    (void)limits;
    return nullptr;
  }

  // See System::side_bytes.
  virtual int64_t side_bytes() const { return 0; }

  // See System::AddParameterGradients.
  virtual absl::Status AddParameterGradients(std::span<const ParameterSample> samples,
                                             int64_t begin, int64_t end,
                                             const ParameterSums& sums) const {
    (void)samples, (void)begin, (void)end, (void)sums;
    return absl::UnimplementedError("gradients of parameters are those of dense stacks only");
  }

  // See System::Repack.
  virtual absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) {
    (void)spec, (void)begin, (void)end;
    return absl::UnimplementedError("only dense stacks take other weights");
  }

  SystemShape shape;
  int64_t width = 0;                                 // PaddedWidth(state_dim)
  int32_t group = kSequentialGroup;                  // samples that are advanced together, at most
  int32_t group_multiple = 1;                        // see Grouping::multiple
  bool shares_steps = false, shares_passes = false;  // see Grouping
  Kernels kernels = {};                              // for `width`
  AffineGuess guess;                                 // may be empty
  bool has_backward = false;                         // packed for the backward pass, too
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_RECURRENCE_H_
